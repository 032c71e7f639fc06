//! Who runs the jobs of a server: the executors that it prefers, for example that of a GPU, and the
//! cores of this machine.
//!
//! A job is offered to the preferred executors in their order. One that cannot take it is passed
//! over. If one declines it after it has begun, or none takes it, the job goes on within the same
//! attempt. In the end the cores run it (RFC 9, section 21).
//!
//! Invariants:
//! - X1 (outputs): a preferred executor has neither the handover nor the listener of parts, so
//!   nothing of its run is known outside of the attempt. The next run begins only when all objects
//!   that were created are deleted.
//! - X2 (progress): each run has counts of its own. See `runs.rs`.
//! - X3 (ends): only after a decline does the next executor run the job. An outcome, a failure, a
//!   cancel and a panic end the attempt.
//! - X4 (slots): an executor never runs more jobs than it says that it has slots.
//! - X5 (pauses): after [`FAILURES_MAX`] runs in a row without an outcome an executor is not asked
//!   for a while, and then it is tried with one job.
//!
//! Threading: shared. Each executor has a lock, which is never held while the executor is called.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone_storage::{Instant, Mutex, Runtime};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, ExecutorState};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::names_kept::NamesKept;
use super::runs::Runs;

/// After this many runs in a row without an outcome, an executor is paused.
const FAILURES_MAX: u32 = 3;

/// The first pause. Each further failure doubles it.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Executors to which a server offers its jobs before its own cores, in this order.
#[derive(Clone, Default)]
pub struct Preferred(pub Vec<Arc<dyn Executor>>);

impl fmt::Debug for Preferred {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.0.iter().map(|executor| executor.name());
        f.debug_list().entries(names).finish()
    }
}

/// What an executor of a server has done since the server was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorReport {
    /// Its name. That of the cores is `cpu`.
    pub name: String,
    /// Whether it can be given jobs.
    pub state: ExecutorState,
    /// The number of jobs that it runs now.
    pub running_count: u64,
    /// The number of jobs that it has turned into tables.
    pub done_count: u64,
    /// The number of jobs that it was not given: it was passed over.
    pub passed_over_count: u64,
    /// Why it was passed over last.
    pub last_passed_over: Option<String>,
    /// The number of jobs that it began and ended without an outcome, apart from those that were
    /// cancelled.
    pub given_up_count: u64,
    /// Why that happened last.
    pub last_given_up: Option<String>,
    /// The executor's own counts, by name.
    pub counters: Vec<(String, u64)>,
}

/// What is known of an executor.
#[derive(Default)]
struct Record {
    running: usize,
    done_count: u64,
    passed_over_count: u64,
    last_passed_over: Option<String>,
    given_up_count: u64,
    last_given_up: Option<String>,
    /// The runs without an outcome since the last one with an outcome.
    failures_in_a_row: u32,
    pause: Duration,
    paused_until: Option<Instant>,
}

impl Record {
    /// Why no job may begin now.
    fn refuses(&self, now: Instant, slots: usize) -> Option<String> {
        if let Some(until) = self.paused_until.filter(|until| now < *until) {
            let seconds = until.since(now).as_secs() + 1;
            let failures = self.failures_in_a_row;
            return Some(format!(
                "it ended {failures} jobs in a row without an outcome, and is asked again in \
                 {seconds} s"
            ));
        }
        let slots = match self.failures_in_a_row >= FAILURES_MAX {
            true => slots.min(1),
            false => slots,
        };
        (self.running >= slots).then(|| match slots {
            0 => "it has no slots now".to_string(),
            _ => format!("it runs as many jobs as it has slots ({slots})"),
        })
    }

    fn pass_over(&mut self, reason: String) {
        self.passed_over_count += 1;
        self.last_passed_over = Some(reason);
    }

    /// Notes the end of a run. `reason` is why there is no outcome.
    fn ended(&mut self, now: Instant, reason: Option<String>) {
        let Some(reason) = reason else {
            self.done_count += 1;
            self.failures_in_a_row = 0;
            self.pause = Duration::ZERO;
            self.paused_until = None;
            return;
        };
        self.given_up_count += 1;
        self.last_given_up = Some(reason);
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        // A job that was running already when the pause began does not make it longer.
        let is_paused = self.paused_until.is_some_and(|until| now < until);
        if self.failures_in_a_row >= FAILURES_MAX && !is_paused {
            self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            self.paused_until = Some(now + self.pause);
        }
    }
}

/// A preferred executor.
struct Side {
    executor: Arc<dyn Executor>,
    record: Mutex<Record>,
    /// It was logged that the executor is down.
    is_down_logged: AtomicBool,
}

/// See the module.
pub(super) struct Executors {
    runtime: Runtime,
    sides: Vec<Side>,
    cores: Mutex<Record>,
}

/// A job that an executor runs. Its slot is free again when this is dropped, also by a panic.
struct Running<'a> {
    runtime: &'a Runtime,
    record: &'a Mutex<Record>,
    /// How the run ended: `None` if it was cancelled.
    ended: Option<Result<(), String>>,
}

impl<'a> Running<'a> {
    /// Counts a job whose slot was taken already.
    fn new(runtime: &'a Runtime, record: &'a Mutex<Record>) -> Running<'a> {
        Running {
            runtime,
            record,
            ended: Some(Err("it panicked".to_string())),
        }
    }

    fn end(mut self, result: &Result<Outcome, ExecError>) {
        self.ended = match result {
            Ok(_) => Some(Ok(())),
            Err(ExecError::Cancelled) => None,
            Err(ExecError::Declined { reason }) => Some(Err(reason.clone())),
            Err(error) => Some(Err(error.to_string())),
        };
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let now = self.runtime.now();
        let mut record = self.record.lock();
        record.running -= 1;
        if let Some(ended) = self.ended.take() {
            record.ended(now, ended.err());
        }
    }
}

/// A job of an attempt, and what its runs share.
pub(super) struct ToRun<'a> {
    pub job: &'a Job,
    /// The context of the attempt. Each run gets counts of its own.
    pub context: &'a ExecContext,
    /// The storage in the context, which knows what was created.
    pub names: &'a NamesKept,
    pub runs: &'a Runs,
}

impl Executors {
    pub(super) fn new(runtime: &Runtime, preferred: &Preferred) -> Executors {
        let side = |executor: &Arc<dyn Executor>| Side {
            executor: Arc::clone(executor),
            record: runtime.mutex(Record::default()),
            is_down_logged: AtomicBool::new(false),
        };
        Executors {
            runtime: runtime.clone(),
            sides: preferred.0.iter().map(side).collect(),
            cores: runtime.mutex(Record::default()),
        }
    }

    /// Runs a job to the end of its attempt. `is_whole` is false if the attempt begins with tables
    /// of an earlier one, so that only the cores can run it.
    pub(super) fn run(&self, to_run: &ToRun<'_>, is_whole: bool) -> Result<Outcome, ExecError> {
        let context = to_run.context;
        for side in &self.sides {
            if let Err(reason) = self.take(side, to_run.job, is_whole) {
                side.record.lock().pass_over(reason);
                continue;
            }
            let running = Running::new(&self.runtime, &side.record);
            let executor = &side.executor;
            let result = executor.run(
                to_run.job,
                &ExecContext {
                    progress: to_run.runs.begin(),
                    max_parallel: context.max_parallel.max(executor.tasks()),
                    handover: None,
                    part_listener: None,
                    ..context.clone()
                },
            );
            running.end(&result);
            let Err(ExecError::Declined { reason }) = result else {
                return result;
            };
            let name = executor.name();
            tracing::warn!(executor = name, reason, "a job was declined after it began");
            side.log_if_down();
            if context.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            if let Some(object) = to_run.names.delete_created(context.epoch) {
                return Err(ExecError::declined(format!(
                    "{name}: {reason}; then the object {object} could not be deleted, so the cores \
                     of the device cannot run the job under the same names"
                )));
            }
        }
        self.cores.lock().running += 1;
        let running = Running::new(&self.runtime, &self.cores);
        let result = CpuExecutor.run(
            to_run.job,
            &ExecContext {
                progress: to_run.runs.begin(),
                ..context.clone()
            },
        );
        running.end(&result);
        result
    }

    /// Takes a slot of an executor for a job, or says why not.
    fn take(&self, side: &Side, job: &Job, is_whole: bool) -> Result<(), String> {
        if !is_whole {
            return Err("the attempt continues after tables of an earlier one".to_string());
        }
        let executor = &side.executor;
        match executor.state() {
            ExecutorState::Ready => {}
            state => {
                side.log_if_down();
                return Err(format!("it is {state}"));
            }
        }
        executor.accepts(job)?;
        let (slots, now) = (executor.slots(), self.runtime.now());
        let mut record = side.record.lock();
        match record.refuses(now, slots) {
            Some(reason) => Err(reason),
            None => {
                record.running += 1;
                Ok(())
            }
        }
    }

    /// What the executors have done, the cores last.
    pub(super) fn report(&self) -> Vec<ExecutorReport> {
        let of = |name: &str, state, record: &Mutex<Record>, counters| {
            let record = record.lock();
            ExecutorReport {
                name: name.to_string(),
                state,
                running_count: record.running as u64,
                done_count: record.done_count,
                passed_over_count: record.passed_over_count,
                last_passed_over: record.last_passed_over.clone(),
                given_up_count: record.given_up_count,
                last_given_up: record.last_given_up.clone(),
                counters,
            }
        };
        let sides = self.sides.iter().map(|side| {
            let executor = &side.executor;
            let (state, counters) = (executor.state(), executor.counters());
            of(executor.name(), state, &side.record, counters)
        });
        let cores = of(
            CpuExecutor.name(),
            ExecutorState::Ready,
            &self.cores,
            Vec::new(),
        );
        sides.chain([cores]).collect()
    }
}

impl Side {
    /// Logs once that the executor is down.
    fn log_if_down(&self) {
        if let ExecutorState::Down(reason) = self.executor.state()
            && !self.is_down_logged.swap(true, Ordering::Relaxed)
        {
            let executor = self.executor.name();
            tracing::warn!(
                executor,
                reason,
                "an executor is down; other executors run all jobs until the device is started \
                 again"
            );
        }
    }
}
