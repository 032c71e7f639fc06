//! An executor with slots that takes time: what a test of the choice of sides needs.
//!
//! What it is: [`Device`] runs jobs as the host does, after it has slept as long as its plan says.
//! A test decides its slots, its state, what it accepts, how fast it is and how each of its next
//! jobs ends, and may change all of that while jobs run. It notes what it ran.
//!
//! Threading: shared; one mutex of the runtime, not held while a job sleeps or runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{Instant, Mutex, OpKind, Runtime, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// As it should.
    Done,
    /// Declined, although it was accepted.
    Declined,
    /// Failed before a table was made.
    Failed,
    /// Failed when this many tables were finished. They are left to the next attempt.
    FailedAfter(u64),
    /// With a digest that is wrong.
    Lie,
    /// With a panic.
    Panic,
    /// For this long the job shows no sign of life and does not notice that it is cancelled. Then
    /// it runs as if nothing had happened.
    Hang(Duration),
}

/// What a device is like.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Jobs at once.
    pub slots: usize,
    /// Subjobs at once.
    pub parallelism: usize,
    /// Whether it can be given jobs.
    pub state: ExecutorState,
    /// How long each job takes at least.
    pub job_time: Duration,
    /// How long it takes beside that, for each byte of input tables.
    pub ns_per_byte: u64,
    /// Whether its reads and writes count against the host's rate (`background_bytes_per_s`). They
    /// do not if its tables lie next to it.
    pub is_rate_limited: bool,
    /// Whether it accepts flushes.
    pub takes_flushes: bool,
    /// It accepts no job with more bytes of input tables.
    pub bytes_max: u64,
    /// How its next jobs end, in order; those behind them end as they should.
    pub endings: VecDeque<Ending>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            slots: 1,
            parallelism: 1,
            state: ExecutorState::Ready,
            job_time: Duration::ZERO,
            ns_per_byte: 0,
            is_rate_limited: true,
            takes_flushes: true,
            bytes_max: u64::MAX,
            endings: VecDeque::new(),
        }
    }
}

/// A job that a device was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whether it was a flush.
    pub is_flush: bool,
    /// Bytes of input tables.
    pub bytes: u64,
    /// Parts between hard cuts.
    pub subjob_count: usize,
    /// When it was given.
    pub begin: Instant,
    /// When it returned, if it has.
    pub end: Option<Instant>,
}

struct State {
    plan: Plan,
    ran: Vec<Ran>,
    running: usize,
    most_running: usize,
}

/// See the module.
pub struct Device {
    name: String,
    runtime: Runtime,
    state: Mutex<State>,
}

/// Bytes of a job's input tables.
fn table_bytes(job: &Job) -> u64 {
    job.inputs.iter().map(|input| input.len_bytes).sum()
}

fn is_flush(job: &Job) -> bool {
    job.inputs.iter().any(|i| i.kind == InputKind::Stream)
}

/// How long a job sleeps before it shows a sign of life and asks whether it was cancelled.
const NAP: Duration = Duration::from_millis(100);

impl Device {
    /// A device with a name for statistics.
    pub fn new(runtime: &Runtime, name: &str, plan: Plan) -> Arc<Device> {
        Arc::new(Device {
            name: name.to_string(),
            runtime: runtime.clone(),
            state: runtime.mutex(State {
                plan,
                ran: Vec::new(),
                running: 0,
                most_running: 0,
            }),
        })
    }

    /// Changes its plan, for the jobs to come.
    pub fn change(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.state.lock().plan);
    }

    /// The jobs that it was given, in order.
    pub fn ran(&self) -> Vec<Ran> {
        self.state.lock().ran.clone()
    }

    /// How many jobs it has now.
    pub fn running(&self) -> usize {
        self.state.lock().running
    }

    /// How many jobs it had at once, at most.
    pub fn most_running(&self) -> usize {
        self.state.lock().most_running
    }

    fn sleep(&self, time: Duration, ctx: &ExecContext) -> Result<(), ExecError> {
        let end = self.runtime.now() + time;
        loop {
            if ctx.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            ctx.progress.beat();
            let left = end.since(self.runtime.now());
            if left.is_zero() {
                return Ok(());
            }
            self.runtime.sleep(left.min(NAP));
        }
    }

    fn compute(
        &self,
        job: &Job,
        ctx: &ExecContext,
        time: Duration,
        ending: Ending,
    ) -> Result<Outcome, ExecError> {
        // Another machine does not know what the host's attempts left.
        let is_rate_limited = self.state.lock().plan.is_rate_limited;
        let own = ExecContext {
            handover: None,
            throttle: ctx.throttle.clone().filter(|_| is_rate_limited),
            ..ctx.clone()
        };
        let host = CpuExecutor::new();
        match ending {
            Ending::Done => {
                self.sleep(time, ctx)?;
                host.run(job, &own)
            }
            Ending::Declined => Err(ExecError::declined("the device has changed its mind")),
            Ending::Failed => {
                self.sleep(time, ctx)?;
                Err(TableError::Misuse("the device failed").into())
            }
            Ending::FailedAfter(tables) => {
                self.sleep(time, ctx)?;
                let faults = FaultStorage::new(ctx.outputs.clone(), &self.runtime);
                let fault = Fault::Fail(StorageErrorKind::Io);
                faults.add(Rule::on(OpKind::Create, fault).nth(tables));
                let fails = ExecContext {
                    outputs: Arc::new(faults),
                    ..ctx.clone()
                };
                host.run(job, &fails)
            }
            Ending::Lie => {
                self.sleep(time, ctx)?;
                let mut outcome = host.run(job, &own)?;
                match outcome.tables.first_mut() {
                    Some(table) => table.digest ^= 1,
                    None => outcome.job ^= 1,
                }
                Ok(outcome)
            }
            Ending::Panic => panic!("the device panics"),
            Ending::Hang(silence) => {
                self.runtime.sleep(silence);
                let deaf = ExecContext {
                    cancel: Default::default(),
                    ..own
                };
                host.run(job, &deaf)
            }
        }
    }
}

impl Executor for Device {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        let state = self.state.lock();
        if is_flush(job) && !state.plan.takes_flushes {
            return Err("the device takes no flushes".into());
        }
        if table_bytes(job) > state.plan.bytes_max {
            return Err(format!("the job is larger than {}", state.plan.bytes_max));
        }
        CpuExecutor::new().accepts(job)
    }

    fn slots(&self) -> usize {
        self.state.lock().plan.slots
    }

    fn parallelism(&self) -> usize {
        self.state.lock().plan.parallelism
    }

    fn state(&self) -> ExecutorState {
        self.state.lock().plan.state.clone()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let (at, time, ending) = {
            let mut state = self.state.lock();
            state.running += 1;
            state.most_running = state.most_running.max(state.running);
            state.ran.push(Ran {
                is_flush: is_flush(job),
                bytes: table_bytes(job),
                subjob_count: job.subjobs(),
                begin: self.runtime.now(),
                end: None,
            });
            let plan = &mut state.plan;
            let ns = table_bytes(job).saturating_mul(plan.ns_per_byte);
            let time = plan.job_time + Duration::from_nanos(ns);
            let ending = plan.endings.pop_front().unwrap_or(Ending::Done);
            (state.ran.len() - 1, time, ending)
        };
        let result = self.compute(job, ctx, time, ending);
        let mut state = self.state.lock();
        state.running -= 1;
        state.ran[at].end = Some(self.runtime.now());
        result
    }
}

#[cfg(test)]
mod tests;
