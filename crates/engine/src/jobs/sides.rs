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
//! Threading: shared; one mutex for the records, which is held over nothing else.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{Instant, Mutex, Runtime};
use siltstone_table::exec::{CpuExecutor, ExecError, Executor, ExecutorState};
use siltstone_table::job::Job;

use crate::env::failures::{JOB_KINDS, JobKind};
use crate::jobs::choice::SideView;
use crate::types::error::{Error, ErrorKind};

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

/// A job is cut into no more subjobs than this, whatever its executor says.
const PARALLELISM_MAX: usize = 256;

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

    /// Whether the fault may be the store's own and not the side's: it is the side's if another one
    /// does the same job.
    pub(crate) fn may_be_the_stores(&self) -> bool {
        let Ended::Failed(error) = self else {
            return false;
        };
        matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Corruption)
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
    /// Outcomes of it that were rejected.
    rejected: u64,
    /// Troubles since the last outcome that was believed. Those of jobs that came back while it was
    /// suspended are left out.
    troubles_in_a_row: u32,
    /// How often it was suspended.
    suspended: u64,
    /// It is given nothing before this.
    suspended_until: Option<Instant>,
    /// Slots whose attempts were abandoned and have not returned.
    lost: usize,
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

    fn believed(&mut self, kind: JobKind, bytes: u64, ns: u64, now: Instant) {
        let speed = &mut self.speeds[kind as usize];
        if speed.recent.len() == MEASURED_JOBS {
            speed.recent.pop_front();
        }
        speed.recent.push_back((bytes, ns));
        speed.measured = Some(now);
        self.troubles_in_a_row = 0;
        self.suspended_until = None;
    }

    fn trouble(&mut self, trouble: Trouble, now: Instant) {
        if trouble == Trouble::Lie {
            self.rejected += 1;
        }
        // Jobs that it had before it was suspended may still come back. They do not lengthen the
        // pause.
        if self.is_suspended(now) {
            return;
        }
        self.troubles_in_a_row = self.troubles_in_a_row.saturating_add(1);
        if trouble == Trouble::Silence {
            self.troubles_in_a_row = self.troubles_in_a_row.max(TROUBLES_IN_A_ROW);
        }
        let Some(before) = self.troubles_in_a_row.checked_sub(TROUBLES_IN_A_ROW) else {
            return;
        };
        let (first, longest) = trouble.pauses();
        let pause = first.saturating_mul(1 << before.min(16)).min(longest);
        self.suspended += 1;
        self.suspended_until = Some(now + pause);
    }
}

#[derive(Default)]
struct Measured {
    /// Of each executor, in their order.
    records: Vec<Record>,
    /// Why executors declined, and how often.
    declined: BTreeMap<String, u64>,
}

/// See the module.
pub(crate) struct Sides {
    runtime: Runtime,
    executors: Vec<Arc<dyn Executor>>,
    measured: Mutex<Measured>,
    declined: AtomicU64,
    rejected: AtomicU64,
    fallbacks: AtomicU64,
}

/// What an executor has done lately.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct SideStats {
    /// The executor's name.
    pub name: String,
    /// Where it computes.
    pub side: String,
    /// Bytes of input a second over its last jobs, if it has run any.
    pub bytes_per_second: Option<f64>,
    /// Outcomes of it that were rejected.
    pub rejected_count: u64,
    /// How often it was suspended because it failed, or its outcomes were rejected, several times
    /// in a row.
    pub set_aside_count: u64,
    /// For how long it will be given no job, in microseconds; 0 if it is not suspended.
    pub set_aside_us: u64,
}

impl Sides {
    pub(crate) fn new(runtime: &Runtime, mut executors: Vec<Arc<dyn Executor>>) -> Sides {
        executors.push(Arc::new(CpuExecutor::new()));
        let records = executors.iter().map(|_| Record::default()).collect();
        Sides {
            measured: runtime.mutex(Measured {
                records,
                declined: BTreeMap::new(),
            }),
            runtime: runtime.clone(),
            executors,
            declined: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            fallbacks: AtomicU64::new(0),
        }
    }

    /// The host's own executor.
    pub(crate) fn host(&self) -> SideId {
        self.executors.len() - 1
    }

    pub(crate) fn executor(&self, side: SideId) -> &Arc<dyn Executor> {
        &self.executors[side]
    }

    /// Which sides accept a job. Not to be called under a lock: executors are foreign code.
    pub(crate) fn ask(&self, job: &Job) -> Vec<bool> {
        let host = self.host();
        let accepts = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            let answer = || self.ask_one(i, || executor.accepts(job));
            i == host || answer().is_some_and(|answer| answer.is_ok())
        };
        self.executors.iter().enumerate().map(accepts).collect()
    }

    /// The answer to [`Sides::ask`] that no side but the host accepts.
    pub(crate) fn nobody(&self) -> Vec<bool> {
        vec![false; self.executors.len()]
    }

    /// Asks an executor something. A panic counts as a failure of the side.
    fn ask_one<T>(&self, side: SideId, question: impl FnOnce() -> T) -> Option<T> {
        let answer = guarded(&self.runtime, question);
        if answer.is_none() {
            self.count_trouble(side, Trouble::Failure);
        }
        answer
    }

    /// The number of subjobs that a job for this side is cut into at most.
    pub(crate) fn parallelism(&self, side: SideId) -> usize {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.parallelism());
        answer.unwrap_or(1).clamp(1, PARALLELISM_MAX)
    }

    /// What is known of each side now, but for the jobs that it runs. Calls executors, so it is not
    /// to be called under a lock. `None` if the host is the only side.
    pub(crate) fn view(&self) -> Option<Vec<SideView<'_>>> {
        let host = self.host();
        if host == 0 {
            return None;
        }
        let slots = |i: SideId, executor: &Arc<dyn Executor>| {
            let answer = self.ask_one(i, || match executor.state() {
                ExecutorState::Ready => executor.slots(),
                _ => 0,
            });
            answer.unwrap_or(0).min(SLOTS_MAX)
        };
        let executors = self.executors.iter().enumerate();
        let slots: Vec<usize> = executors
            .map(|(i, executor)| if i == host { 0 } else { slots(i, executor) })
            .collect();
        let now = self.runtime.now();
        let measured = self.measured.lock();
        let records = measured.records.iter().zip(&self.executors).enumerate();
        let view = records.map(|(i, (record, executor))| {
            let is_suspended = record.is_suspended(now) && !planted!(OfferToLiars);
            let speed = record.speeds.each_ref();
            SideView {
                name: executor.name(),
                slots: match is_suspended {
                    true => 0,
                    false => slots[i].saturating_sub(record.lost),
                },
                running: Vec::new(),
                // The host runs jobs whatever its speed, so it is measured in any case.
                speed: speed.map(|s| s.ns_per_byte().filter(|_| i == host || s.holds(now))),
                is_on_trial: record.is_on_trial() && !planted!(OfferToLiars),
            }
        });
        Some(view.collect())
    }

    /// An attempt was abandoned: its slot is lost until the executor returns.
    pub(crate) fn count_lost(&self, side: SideId) {
        self.measured.lock().records[side].lost += 1;
    }

    /// An abandoned attempt has returned.
    pub(crate) fn count_found(&self, side: SideId) {
        self.measured.lock().records[side].lost -= 1;
    }

    /// Whether there is another side than the host.
    pub(crate) fn has_others(&self) -> bool {
        self.host() > 0
    }

    /// A side has done a job.
    pub(crate) fn count_believed(&self, side: SideId, kind: JobKind, bytes: u64, ns: u64) {
        let now = self.runtime.now();
        let record = &mut self.measured.lock().records[side];
        record.believed(kind, bytes.max(1), ns, now);
    }

    /// A side has not done a job. If the fault may be the store's own, the caller counts the
    /// trouble when another side has done the job.
    pub(crate) fn count_ended(&self, side: SideId, ended: &Ended) {
        let trouble = match ended {
            Ended::Cancelled => return,
            Ended::Rejected(_) => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                Trouble::Lie
            }
            Ended::Declined(reason) => {
                self.count_declined(side, reason);
                Trouble::Failure
            }
            Ended::Failed(_) | Ended::Hung => {
                if side != self.host() {
                    self.fallbacks.fetch_add(1, Ordering::Relaxed);
                }
                match ended {
                    Ended::Hung => Trouble::Silence,
                    _ => Trouble::Failure,
                }
            }
        };
        if side != self.host() && !ended.may_be_the_stores() {
            self.count_trouble(side, trouble);
        }
    }

    pub(crate) fn count_trouble(&self, side: SideId, trouble: Trouble) {
        let now = self.runtime.now();
        self.measured.lock().records[side].trouble(trouble, now);
    }

    fn count_declined(&self, side: SideId, reason: &str) {
        self.declined.fetch_add(1, Ordering::Relaxed);
        let reason = format!("{}: {reason}", self.executors[side].name());
        *self.measured.lock().declined.entry(reason).or_insert(0) += 1;
    }

    pub(crate) fn declined_count(&self) -> u64 {
        self.declined.load(Ordering::Relaxed)
    }

    pub(crate) fn rejected_count(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    pub(crate) fn fallback_count(&self) -> u64 {
        self.fallbacks.load(Ordering::Relaxed)
    }

    pub(crate) fn set_aside_count(&self) -> u64 {
        let measured = self.measured.lock();
        measured.records.iter().map(|r| r.suspended).sum()
    }

    pub(crate) fn stats(&self) -> Vec<SideStats> {
        let now = self.runtime.now();
        let measured = self.measured.lock();
        self.executors
            .iter()
            .zip(&measured.records)
            .map(|(executor, record)| {
                let all = record.speeds.iter().map(Speed::totals);
                let (bytes, ns) = all.fold((0, 0), |sum, job| (sum.0 + job.0, sum.1 + job.1));
                let left = record.suspended_until.unwrap_or(now).since(now);
                SideStats {
                    name: executor.name().to_string(),
                    side: executor.side().to_string(),
                    bytes_per_second: (ns > 0).then(|| bytes as f64 * 1e9 / ns as f64),
                    rejected_count: record.rejected,
                    set_aside_count: record.suspended,
                    set_aside_us: left.as_micros() as u64,
                }
            })
            .collect()
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
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (trouble, first, longest) in [(Trouble::Lie, 30, 3600), (Trouble::Failure, 1, 60)] {
            let mut record = Record::default();
            let mut now = Instant::default();
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now), "two in a row are borne");
            record.believed(JobKind::Flush, 1, 1, now);
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
            let rejected = if trouble == Trouble::Lie { 4 + 80 } else { 0 };
            assert_eq!((record.suspended, record.rejected), (40, rejected));
            record.believed(JobKind::Flush, 1, 1, now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now) && !record.is_on_trial());
        }
    }

    #[test]
    fn a_side_is_measured_by_kind_and_for_a_while() {
        let mut record = Record::default();
        let now = Instant::default();
        for n in 1..=10 {
            record.believed(JobKind::Compaction, 100, n * 100, now);
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
    }
}
