//! The executors of a store, and what is known of each: how fast it is, and whether it fails.
//!
//! What it is: `Sides` holds the executors, the host's own last. A side is measured by the jobs
//! that it finished, by kind. A side that fails or lies costs a run of each job, and of its
//! verification. So after `TROUBLES_IN_A_ROW` failures or rejected outcomes in a row it is
//! *suspended*: it is given no job for a while, then one to try it. Each further trouble doubles
//! the pause, and a believed outcome ends the matter. The host is never suspended: somebody must
//! run the jobs, and its failure is a failure of the job that is reported as such ([RFC
//! 7](../../../../docs/rfc/0007-slots.md), section 6).
//!
//! Threading: shared; one mutex for the records, which is held over nothing else. Events are
//! emitted after it is released.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{Instant, Mutex, Runtime, StorageErrorKind};
use siltstone_table::exec::{CpuExecutor, ExecError, Executor, ExecutorState, Progress};
use siltstone_table::job::Job;

use crate::env::failures::{JOB_KINDS, JobKind};
use crate::jobs::choice::{Answer, SideView};
use crate::types::error::{Error, ErrorKind};
use crate::types::event::{Event, Events};
use crate::types::job_stats::SideStats;
use crate::types::metrics::Counter;

/// A side, by its place in the list of executors.
pub(crate) type SideId = usize;

/// Jobs that a side's speed is measured over.
const MEASURED_JOBS: usize = 5;

/// For how long a measurement of a side holds.
const MEASUREMENT_HOLDS: Duration = Duration::from_secs(600);

/// Troubles in a row after which a side is suspended.
const TROUBLES_IN_A_ROW: u32 = 3;

/// A side has no more slots than this, whatever its executor says.
const SLOTS_MAX: usize = 64;

/// The jobs of one side together may have one in this many of the process's files open.
const FILES_SHARE: u64 = 8;

/// A job is cut into no more subjobs than this, whatever its executor says.
const PARALLELISM_MAX: usize = 256;

/// What an executor did when it was asked what it can do.
const PANICKED: &str = "it panicked when it was asked what it can do";

/// Calls foreign code. `None` if it panics; in a simulated run a panic ends the run.
pub(crate) fn guarded<T>(runtime: &Runtime, call: impl FnOnce() -> T) -> Option<T> {
    if runtime.is_simulated() {
        return Some(call());
    }
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// How an attempt ended whose outcome is not believed.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The verification found that the tables are not what they must be.
    Rejected(Error),
    /// The executor lacks something that the job names.
    Declined(String),
    /// The executor failed, or its tables could not be read back.
    Failed(Error),
    /// It showed no sign of life.
    Hung,
    /// It was asked to stop.
    Cancelled,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Rejected(error) | Ended::Failed(error) => error.fmt(f),
            Ended::Declined(reason) => {
                write!(f, "it declined a job that it had accepted: {reason}")
            }
            Ended::Hung => f.write_str("it showed no sign of life, and its job was given up"),
            Ended::Cancelled => f.write_str("its job was cancelled"),
        }
    }
}

impl From<ExecError> for Ended {
    fn from(error: ExecError) -> Ended {
        match error {
            ExecError::Declined { reason } => Ended::Declined(reason),
            ExecError::Cancelled => Ended::Cancelled,
            ExecError::Failed(error) => Ended::Failed(error.into()),
        }
    }
}

impl Ended {
    /// The error of a job that the host could not do either.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Ended::Rejected(error) | Ended::Failed(error) => error,
            Ended::Hung | Ended::Cancelled => cancelled(),
            Ended::Declined(reason) => Error::new(
                ErrorKind::Unsupported,
                format!("every executor declined a job, the last: {reason}"),
            )
            .advice(
                "the store holds data of a kind that this build cannot compact; use a newer one",
            ),
        }
    }

    /// As the side is to be judged for it, when the store has not cancelled the job: an executor
    /// that says that it was cancelled has failed, for example because its device was reset.
    pub(crate) fn unless_unasked(self, is_host: bool) -> Ended {
        match self {
            Ended::Cancelled if !is_host => Ended::Failed(Error::new(
                ErrorKind::Io,
                "the executor ended the job as cancelled, but nobody had cancelled it",
            )),
            ended => ended,
        }
    }

    /// Whether the fault may be the store's own and not the side's: it is the side's if another one
    /// does the same job.
    pub(crate) fn may_be_the_stores(&self) -> bool {
        let Ended::Failed(error) = self else {
            return false;
        };
        let storage = error.storage().map(|error| error.kind);
        matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Corruption)
            || matches!(
                storage,
                Some(StorageErrorKind::Fenced | StorageErrorKind::TooManyOpen)
            )
    }
}

/// What went wrong with a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its outcome was rejected.
    Lie,
    /// It failed, declined what it had accepted, or panicked.
    Failure,
    /// It showed no sign of life. That costs so much time that it is suspended at once.
    Silence,
}

impl Trouble {
    /// The first pause, and the longest one.
    fn pauses(self) -> (Duration, Duration) {
        match self {
            Trouble::Lie => (Duration::from_secs(30), Duration::from_secs(3600)),
            Trouble::Failure | Trouble::Silence => {
                (Duration::from_secs(1), Duration::from_secs(60))
            }
        }
    }
}

/// How fast a side is with jobs of one kind.
#[derive(Default)]
struct Speed {
    /// Bytes and nanoseconds of its last jobs.
    recent: VecDeque<(u64, u64)>,
    measured: Option<Instant>,
}

impl Speed {
    fn totals(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), job: &(u64, u64)| (sum.0 + job.0, sum.1 + job.1);
        self.recent.iter().fold((0, 0), add)
    }

    /// Nanoseconds a byte.
    fn ns_per_byte(&self) -> Option<f64> {
        let (bytes, ns) = self.totals();
        (bytes > 0).then(|| ns as f64 / bytes as f64)
    }

    /// Bytes a second.
    fn bytes_per_s(&self) -> Option<f64> {
        let ns_per_byte = self.ns_per_byte().filter(|ns| *ns > 0.0);
        ns_per_byte.map(|ns| 1e9 / ns)
    }

    fn holds(&self, now: Instant) -> bool {
        let holds = |at: Instant| now.since(at) < MEASUREMENT_HOLDS;
        self.measured.is_some_and(holds)
    }
}

/// What one executor has done.
#[derive(Default)]
struct Record {
    /// By [`JobKind`].
    speeds: [Speed; JOB_KINDS],
    /// What went wrong the last time.
    last_failure: Option<String>,
    /// Why it did not accept the last job that it was asked about, if it did not.
    refusal: Option<String>,
    /// Troubles since the last outcome that was believed. Those of jobs that came back while it was
    /// suspended are left out.
    troubles_in_a_row: u32,
    /// How often it was suspended.
    suspended: u64,
    /// It is given nothing before this.
    suspended_until: Option<Instant>,
    /// The attempts that were abandoned and have not returned. Each has a slot, and memory.
    lost: Vec<Arc<Progress>>,
}

impl Record {
    /// Whether it is given no job now.
    fn is_suspended(&self, now: Instant) -> bool {
        self.suspended_until.is_some_and(|until| now < until)
    }

    /// Whether it has to show that it works again.
    fn is_on_trial(&self) -> bool {
        self.troubles_in_a_row >= TROUBLES_IN_A_ROW
    }

    /// `took`: bytes and nanoseconds, if they say something of the speed. Returns whether that ends
    /// a suspension.
    fn believed(&mut self, kind: JobKind, took: Option<(u64, u64)>, now: Instant) -> bool {
        if let Some(took) = took {
            let speed = &mut self.speeds[kind as usize];
            if speed.recent.len() == MEASURED_JOBS {
                speed.recent.pop_front();
            }
            speed.recent.push_back(took);
            speed.measured = Some(now);
        }
        self.troubles_in_a_row = 0;
        self.suspended_until.take().is_some()
    }

    /// Returns the pause, if the side is suspended for that.
    fn trouble(&mut self, trouble: Trouble, now: Instant) -> Option<Duration> {
        // Jobs that it had before it was suspended may still come back. They do not lengthen the
        // pause.
        if self.is_suspended(now) {
            return None;
        }
        self.troubles_in_a_row = self.troubles_in_a_row.saturating_add(1);
        if trouble == Trouble::Silence {
            self.troubles_in_a_row = self.troubles_in_a_row.max(TROUBLES_IN_A_ROW);
        }
        let before = self.troubles_in_a_row.checked_sub(TROUBLES_IN_A_ROW)?;
        let (first, longest) = trouble.pauses();
        let pause = first.saturating_mul(1 << before.min(16)).min(longest);
        self.suspended += 1;
        self.suspended_until = Some(now + pause);
        Some(pause)
    }

    /// Why the side has no slots, if it has none, for people.
    fn no_slots(&self, asked: &Asked, now: Instant) -> &'static str {
        if self.is_suspended(now) {
            "is suspended"
        } else if asked.state != ExecutorState::Ready {
            "is not ready"
        } else if asked.slots > 0 {
            "has lost its slots"
        } else {
            "has no slots"
        }
    }
}

/// How often jobs of a side ended badly. Counting takes no lock.
#[derive(Default)]
struct Ends {
    /// Jobs that failed, panicked or hung.
    failed: Counter,
    /// Jobs that it declined after it had accepted them.
    declined: Counter,
    /// Outcomes that were rejected.
    rejected: Counter,
}

/// What an executor says of itself now.
pub(crate) struct Asked {
    state: ExecutorState,
    /// How many jobs it may have at once.
    slots: usize,
}

/// The longest name of an executor, in characters; what is longer is cut.
const NAME_MAX: usize = 64;

/// An executor's name, and where it computes. It is foreign code, so the name is made fit to be
/// printed, and to be part of a task's name.
fn names_of(runtime: &Runtime, executor: &dyn Executor) -> (String, String) {
    let names = || (executor.name().to_string(), executor.side().to_string());
    let (name, side) = guarded(runtime, names).unwrap_or_default();
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let name: String = name.chars().take(NAME_MAX).map(printable).collect();
    match name.is_empty() {
        true => ("unnamed".to_string(), side),
        false => (name, side),
    }
}

/// See the module.
pub(crate) struct Sides {
    runtime: Runtime,
    events: Arc<Events>,
    executors: Vec<Arc<dyn Executor>>,
    /// The name of each executor, and where it computes, as they were at the open.
    names: Vec<(String, String)>,
    /// How many files the jobs of one side may have open.
    files_max: usize,
    /// Of each executor, in their order.
    records: Mutex<Vec<Record>>,
    /// Of each executor, in their order.
    ends: Vec<Ends>,
    fallbacks: Counter,
}

impl Sides {
    /// The sides of a store in a process that may have `open_objects_max` files open.
    pub(crate) fn new(
        runtime: &Runtime,
        mut executors: Vec<Arc<dyn Executor>>,
        events: &Arc<Events>,
        open_objects_max: Option<u64>,
    ) -> Sides {
        executors.push(Arc::new(CpuExecutor::new()));
        let records = executors.iter().map(|_| Record::default()).collect();
        let files_max = open_objects_max.map_or(u64::MAX, |max| max / FILES_SHARE);
        Sides {
            records: runtime.mutex(records),
            ends: executors.iter().map(|_| Ends::default()).collect(),
            names: executors.iter().map(|e| names_of(runtime, &**e)).collect(),
            runtime: runtime.clone(),
            events: events.clone(),
            executors,
            files_max: usize::try_from(files_max).unwrap_or(usize::MAX),
            fallbacks: Counter::default(),
        }
    }

    /// The host alone, for jobs beside those of an open store.
    pub(crate) fn host_only(&self) -> Sides {
        Sides::new(&self.runtime, Vec::new(), &self.events, None)
    }

    /// The host's own executor.
    pub(crate) fn host(&self) -> SideId {
        self.executors.len() - 1
    }

    pub(crate) fn executor(&self, side: SideId) -> &Arc<dyn Executor> {
        &self.executors[side]
    }

    /// An executor's name.
    pub(crate) fn name(&self, side: SideId) -> &str {
        &self.names[side].0
    }

    /// An executor's name, and where it computes.
    pub(crate) fn name_of(&self, side: SideId) -> (String, String) {
        self.names[side].clone()
    }

    /// Which sides accept a job. Not to be called under a lock: executors are foreign code.
    pub(crate) fn ask(&self, job: &Job) -> Vec<Answer> {
        let host = self.host();
        let accepts = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            if i == host {
                return Answer::Accepts;
            }
            let refusal = match self.ask_one(i, || executor.accepts(job)) {
                Some(answer) => answer.err(),
                None => Some(PANICKED.to_string()),
            };
            let answer = match refusal {
                None => Answer::Accepts,
                Some(_) => Answer::Refuses,
            };
            self.records.lock()[i].refusal = refusal;
            answer
        };
        self.executors.iter().enumerate().map(accepts).collect()
    }

    /// The answer to [`Sides::ask`] that no side but the host accepts.
    pub(crate) fn nobody(&self) -> Vec<Answer> {
        vec![Answer::Refuses; self.executors.len()]
    }

    /// Asks an executor something. A panic counts as a failure of the side.
    fn ask_one<T>(&self, side: SideId, question: impl FnOnce() -> T) -> Option<T> {
        let answer = guarded(&self.runtime, question);
        if answer.is_none() {
            self.records.lock()[side].last_failure = Some(PANICKED.to_string());
            self.count_trouble(side, Trouble::Failure, PANICKED);
        }
        answer
    }

    /// Asks each executor but the host's own whether it can be given jobs, and how many.
    /// Not to be called under a lock: executors are foreign code.
    pub(crate) fn ask_all(&self) -> Vec<Asked> {
        let asked = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            if i == self.host() {
                let (state, slots) = (ExecutorState::Ready, 0);
                return Asked { state, slots };
            }
            let answer = self.ask_one(i, || match executor.state() {
                ExecutorState::Ready => {
                    let parallelism = executor.parallelism().clamp(1, PARALLELISM_MAX);
                    let slots = self.slots_at_most(parallelism).min(executor.slots());
                    (ExecutorState::Ready, slots)
                }
                state => (state, 0),
            });
            let (state, slots) =
                answer.unwrap_or_else(|| (ExecutorState::Down(PANICKED.to_string()), 0));
            Asked { state, slots }
        };
        self.executors.iter().enumerate().map(asked).collect()
    }

    /// The most slots of a side whose jobs have so many subjobs. Each subjob has one unfinished
    /// table open. Input tables are bounded in `env::descriptors`. With a very low limit a side
    /// still has one slot, because a limit must make the store slower and not stop a part of it.
    fn slots_at_most(&self, parallelism: usize) -> usize {
        (self.files_max / parallelism).clamp(1, SLOTS_MAX)
    }

    /// The number of subjobs that a job for this side is cut into at most.
    pub(crate) fn parallelism(&self, side: SideId) -> usize {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.parallelism());
        answer.unwrap_or(1).clamp(1, PARALLELISM_MAX)
    }

    /// What is known of each side now, but for the jobs that it runs. `asked` is what the executors
    /// said of themselves.
    pub(crate) fn view(&self, asked: &[Asked]) -> Vec<SideView<'_>> {
        let host = self.host();
        let now = self.runtime.now();
        let records = self.records.lock();
        let view = records.iter().enumerate().map(|(i, record)| {
            let is_suspended = record.is_suspended(now) && !planted!(OfferToLiars);
            let speed = record.speeds.each_ref();
            SideView {
                name: match i == host {
                    true => "host",
                    false => self.name(i),
                },
                slots: match is_suspended {
                    true => 0,
                    false => asked[i].slots.saturating_sub(record.lost.len()),
                },
                no_slots: record.no_slots(&asked[i], now),
                running: Vec::new(),
                // The host runs jobs whatever its speed, so it is measured in any case.
                speed: speed.map(|s| s.ns_per_byte().filter(|_| i == host || s.holds(now))),
                is_on_trial: record.is_on_trial() && !planted!(OfferToLiars),
            }
        });
        view.collect()
    }

    /// An attempt was abandoned: its slot is lost until the executor returns.
    pub(crate) fn count_lost(&self, side: SideId, progress: &Arc<Progress>) {
        self.records.lock()[side].lost.push(progress.clone());
    }

    /// An abandoned attempt has returned.
    pub(crate) fn count_found(&self, side: SideId, progress: &Arc<Progress>) {
        let lost = &mut self.records.lock()[side].lost;
        lost.retain(|p| !Arc::ptr_eq(p, progress));
    }

    /// Memory of the abandoned attempts that have not returned, in bytes.
    pub(crate) fn lost_buffer_bytes(&self) -> u64 {
        if !self.has_others() {
            return 0;
        }
        let records = self.records.lock();
        let lost = records.iter().flat_map(|record| &record.lost);
        let bytes = lost.map(|p| p.buffer_bytes.load(Ordering::Relaxed));
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether there is another side than the host.
    pub(crate) fn has_others(&self) -> bool {
        self.host() > 0
    }

    /// A side has done a job. `took`: its bytes and the nanoseconds, unless it took over a part from
    /// an earlier attempt, so that these say nothing of its speed.
    pub(crate) fn count_believed(&self, side: SideId, kind: JobKind, took: Option<(u64, u64)>) {
        let now = self.runtime.now();
        let took = took.map(|(bytes, ns)| (bytes.max(1), ns));
        let is_resumed = self.records.lock()[side].believed(kind, took, now);
        if is_resumed {
            let (executor, side) = self.name_of(side);
            self.events.emit(|| Event::SideResumed { executor, side });
        }
    }

    /// A side has not done a job. If the fault may be the store's own, the caller counts the
    /// trouble when another side has done the job.
    pub(crate) fn count_ended(&self, side: SideId, ended: &Ended) {
        let trouble = match ended {
            Ended::Cancelled => return,
            Ended::Rejected(_) => Trouble::Lie,
            Ended::Hung => Trouble::Silence,
            Ended::Declined(_) | Ended::Failed(_) => Trouble::Failure,
        };
        let ends = &self.ends[side];
        match ended {
            Ended::Rejected(_) => ends.rejected.add(1),
            Ended::Declined(_) => ends.declined.add(1),
            _ => ends.failed.add(1),
        };
        if side == self.host() {
            return;
        }
        if matches!(ended, Ended::Failed(_) | Ended::Hung) {
            self.fallbacks.add(1);
        }
        let said = ended.to_string();
        self.records.lock()[side].last_failure = Some(said.clone());
        if !ended.may_be_the_stores() {
            self.count_trouble(side, trouble, &said);
        }
    }

    /// Something went wrong with a side: `said` is what. It may be suspended for that.
    pub(crate) fn count_trouble(&self, side: SideId, trouble: Trouble, said: &str) {
        let now = self.runtime.now();
        let pause = self.records.lock()[side].trouble(trouble, now);
        let Some(pause) = pause else { return };
        let (executor, side) = self.name_of(side);
        tracing::warn!(
            executor,
            pause_us = pause.as_micros() as u64,
            reason = said,
            "an executor is suspended"
        );
        self.events.emit(|| Event::SideSuspended {
            executor,
            side,
            reason: said.to_string(),
            pause_us: pause.as_micros() as u64,
        });
    }

    pub(crate) fn declined_count(&self) -> u64 {
        self.ends.iter().map(|ends| ends.declined.get()).sum()
    }

    pub(crate) fn rejected_count(&self) -> u64 {
        self.ends.iter().map(|ends| ends.rejected.get()).sum()
    }

    pub(crate) fn fallback_count(&self) -> u64 {
        self.fallbacks.get()
    }

    pub(crate) fn suspended_count(&self) -> u64 {
        self.records.lock().iter().map(|r| r.suspended).sum()
    }

    /// The statistics of each side, but for the jobs that it runs or that wait for it. Calls
    /// executors, so it is not to be called under a lock.
    pub(crate) fn stats(&self) -> Vec<SideStats> {
        let asked = self.ask_all();
        let now = self.runtime.now();
        let records = self.records.lock();
        let of = |(i, record): (SideId, &Record)| {
            let (name, side) = self.name_of(i);
            let left = record.suspended_until.unwrap_or(now).since(now);
            let speed = |kind: JobKind| record.speeds[kind as usize].bytes_per_s();
            SideStats {
                name,
                side,
                state: asked[i].state.to_string(),
                slot_count: asked[i].slots as u64,
                lost_slot_count: record.lost.len() as u64,
                running_job_count: 0,
                waiting_job_count: 0,
                flush_bytes_per_s: speed(JobKind::Flush),
                compaction_bytes_per_s: speed(JobKind::Compaction),
                refusal: record.refusal.clone(),
                failed_count: self.ends[i].failed.get(),
                declined_count: self.ends[i].declined.get(),
                rejected_count: self.ends[i].rejected.get(),
                last_failure: record.last_failure.clone(),
                suspended_count: record.suspended,
                suspended_us: left.as_micros() as u64,
            }
        };
        records.iter().enumerate().map(of).collect()
    }
}

/// An outcome was not accepted.
pub(crate) fn rejection(reason: &str, executor: &str) -> Error {
    let message = format!("the outcome of a job was rejected: {reason} (executor {executor})");
    Error::new(ErrorKind::Io, message).advice(
        "nothing was installed and the job runs again; if it happens again, test the machine's \
         memory and report it",
    )
}

/// The answer of a job that was asked to stop.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the job was cancelled")
}

#[cfg(test)]
mod tests {
    use siltstone_storage::sim::{SimConfig, run};

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (trouble, first, longest) in [(Trouble::Lie, 30, 3600), (Trouble::Failure, 1, 60)] {
            let mut record = Record::default();
            let mut now = Instant::default();
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now), "two in a row are borne");
            record.believed(JobKind::Flush, Some((1, 1)), now);
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(
                !record.is_suspended(now),
                "a believed one between ends the row"
            );
            for trial in 0..40u32 {
                record.trouble(trouble, now);
                // What comes back late changes nothing.
                record.trouble(trouble, now);
                let pause = Duration::from_secs((first << trial.min(7)).min(longest));
                assert!(record.is_suspended(now + (pause - Duration::from_nanos(1))));
                now = now + pause;
                assert!(!record.is_suspended(now) && record.is_on_trial(), "{trial}");
            }
            assert_eq!(record.suspended, 40);
            record.believed(JobKind::Flush, Some((1, 1)), now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now) && !record.is_on_trial());
        }
    }

    fn simulated(story: impl FnOnce(Runtime) + Send + 'static) {
        let report = run(SimConfig::new(5), story);
        report.result.unwrap();
    }

    fn sides(rt: &Runtime, open_objects_max: Option<u64>) -> Sides {
        let events = Events::start(rt, None).unwrap();
        let other: Arc<dyn Executor> = Arc::new(CpuExecutor::new());
        Sides::new(rt, vec![other], &events, open_objects_max)
    }

    #[test]
    fn open_files_bound_slots() {
        simulated(|rt| {
            for (files, parallelism, slots) in [
                (None, 1, SLOTS_MAX),
                (None, PARALLELISM_MAX, SLOTS_MAX),
                (Some(u64::MAX), 1, SLOTS_MAX),
                (Some(1024), 1, SLOTS_MAX),
                (Some(1024), 4, 32),
                (Some(1024), 100, 1),
                (Some(1024), PARALLELISM_MAX, 1),
                (Some(0), 1, 1),
            ] {
                let sides = sides(&rt, files);
                assert_eq!(sides.slots_at_most(parallelism), slots, "{files:?}");
            }
        });
    }

    #[test]
    fn each_end_of_a_job_is_counted_and_named() {
        simulated(|rt| {
            let sides = sides(&rt, None);
            let io = || Error::new(ErrorKind::Io, "its link is down");
            let last = |side: &SideStats| side.last_failure.clone().unwrap();
            sides.count_ended(0, &Ended::Declined("no kernel".into()));
            let side = &sides.stats()[0];
            assert_eq!((side.declined_count, side.suspended_us), (1, 0));
            assert!(last(side).contains("no kernel"), "{side:?}");
            sides.count_ended(0, &Ended::Failed(io()));
            sides.count_ended(0, &Ended::Cancelled);
            sides.count_ended(0, &Ended::Rejected(rejection("a count is wrong", "gpu0")));
            let side = &sides.stats()[0];
            assert_eq!((side.failed_count, side.rejected_count), (1, 1));
            assert!(last(side).contains("a count is wrong"), "{side:?}");
            assert_eq!((side.suspended_count, side.suspended_us), (1, 30_000_000));
            // The host is counted, but never suspended.
            (0..5).for_each(|_| sides.count_ended(1, &Ended::Failed(io())));
            let host = &sides.stats()[1];
            assert_eq!((host.failed_count, host.suspended_count), (5, 0));
            assert_eq!(host.last_failure, None);
            assert_eq!((sides.declined_count(), sides.rejected_count()), (1, 1));
            assert_eq!((sides.fallback_count(), sides.suspended_count()), (1, 1));
        });
    }

    #[test]
    fn a_side_is_measured_by_kind_and_for_a_while() {
        let mut record = Record::default();
        let now = Instant::default();
        for n in 1..=10 {
            record.believed(JobKind::Compaction, Some((100, n * 100)), now);
        }
        let [flushes, compactions] = &record.speeds;
        assert_eq!(flushes.ns_per_byte(), None);
        assert_eq!(
            compactions.ns_per_byte(),
            Some(8.0),
            "of its last five jobs"
        );
        assert!(compactions.holds(now + Duration::from_secs(599)));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
        // A job that was resumed says nothing of the speed.
        record.believed(JobKind::Compaction, None, now + Duration::from_secs(600));
        let [_, compactions] = &record.speeds;
        assert_eq!(compactions.ns_per_byte(), Some(8.0));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
    }
}
