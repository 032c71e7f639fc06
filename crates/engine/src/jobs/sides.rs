//! Which side runs a job.
//!
//! What it is: `Sides` holds the executors, the host's own last. A job is offered to the side that
//! is expected to finish it first, by the seconds a byte that its last five jobs took. If that side
//! declines or fails, the reason is counted and the host's cores run the job, so nothing is lost.
//!
//! An executor whose outcomes are rejected time after time costs a run of each job and of its verification, and would be offered every next
//! job first, because it never becomes measured. So after `REJECTED_IN_A_ROW` rejections in a row it is *set aside*: no job is offered to it for
//! a while, then one to try it; each further rejection doubles the while, a believed outcome ends the matter. The host's own is never set
//! aside: somebody must run the jobs, and its rejection is a failure of the job that is reported as such.
//!
//! Threading: shared; one mutex for the measurements, not held while a job runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::planted::{self, Bug};
use siltstone_storage::{Instant, Mutex, Runtime};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Job, OutputPrefix};

use crate::types::error::{Error, ErrorKind, Result};

/// Jobs that a side's speed is measured over.
const MEASURED_JOBS: usize = 5;

/// Rejected outcomes in a row after which an executor is set aside.
const REJECTED_IN_A_ROW: u32 = 3;

/// For how long it is set aside at first; each further rejection doubles it.
const FIRST_PAUSE: Duration = Duration::from_secs(30);

/// For how long it is set aside at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What one executor has done.
#[derive(Default)]
struct Record {
    /// Bytes and nanoseconds of its last jobs.
    recent: VecDeque<(u64, u64)>,
    /// Outcomes of it that were rejected.
    rejected: u64,
    /// Rejected outcomes since the last one that was believed; those that came back while it was set aside are left out.
    rejected_in_a_row: u32,
    /// How often it was set aside.
    set_aside: u64,
    /// It is offered nothing before this.
    aside_until: Option<Instant>,
}

impl Record {
    /// Whether no job is to be offered to it now.
    fn is_aside(&self, now: Instant) -> bool {
        self.aside_until.is_some_and(|until| now < until)
    }

    /// Nanoseconds a byte; 0 before it was measured.
    fn speed(&self) -> f64 {
        let (bytes, ns) = self.totals();
        if bytes == 0 {
            0.0
        } else {
            ns as f64 / bytes as f64
        }
    }

    fn totals(&self) -> (u64, u64) {
        self.recent
            .iter()
            .fold((0u64, 0u64), |s, j| (s.0 + j.0, s.1 + j.1))
    }

    fn believed(&mut self, bytes: u64, ns: u64) {
        if self.recent.len() == MEASURED_JOBS {
            self.recent.pop_front();
        }
        self.recent.push_back((bytes, ns));
        self.rejected_in_a_row = 0;
        self.aside_until = None;
    }

    fn rejected(&mut self, now: Instant) {
        self.rejected += 1;
        // Jobs that it had before it was set aside may still come back; they do not lengthen the pause.
        if self.is_aside(now) {
            return;
        }
        self.rejected_in_a_row = self.rejected_in_a_row.saturating_add(1);
        let Some(before) = self.rejected_in_a_row.checked_sub(REJECTED_IN_A_ROW) else {
            return;
        };
        let pause = FIRST_PAUSE.saturating_mul(1 << before.min(16));
        self.set_aside += 1;
        self.aside_until = Some(now + pause.min(LONGEST_PAUSE));
    }
}

#[derive(Default)]
struct Measured {
    /// Of each executor, in their order.
    records: Vec<Record>,
    /// Why executors declined, and how often.
    declined: BTreeMap<String, u64>,
}

/// Whether an outcome may be installed, or why not.
pub(crate) type Accepted = std::result::Result<(), String>;

/// Why a job was not done.
pub(crate) struct JobError {
    /// What failed.
    pub(crate) error: Error,
    /// The host's own executor ran the job to its end, and what it made was rejected: its tables
    /// are not what they must be.
    pub(crate) rejected: bool,
}

impl From<Error> for JobError {
    fn from(error: Error) -> JobError {
        JobError {
            error,
            rejected: false,
        }
    }
}

impl From<JobError> for Error {
    fn from(failed: JobError) -> Error {
        failed.error
    }
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
    /// How often it was set aside because its outcomes were rejected several times in a row.
    pub set_aside_count: u64,
    /// For how long it will be offered no job, in microseconds; 0 if it is not set aside.
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

    /// Executors in the order in which a job is offered: unmeasured ones first (so that they become measured), then the fastest. The
    /// host's own stands at its measured place; who is set aside does not stand there at all.
    fn order(&self) -> Vec<usize> {
        let now = self.runtime.now();
        let host = self.executors.len() - 1;
        let measured = self.measured.lock();
        let records = &measured.records;
        let mut order: Vec<usize> = (0..records.len())
            .filter(|i| *i == host || planted::is(Bug::OfferToLiars) || !records[*i].is_aside(now))
            .collect();
        order.sort_by(|a, b| records[*a].speed().total_cmp(&records[*b].speed()));
        order
    }

    /// Runs the job on one of the executors and returns an outcome that `accept` accepts. If an
    /// executor fails, or its outcome is rejected or cannot be verified, the next one runs the job,
    /// and the host's own runs it last. Each has its own attempt number from `attempt`, so that an
    /// executor that was given up and wakes late writes under names that no other uses.
    pub(crate) fn run(
        &self,
        job: &Job,
        context: &ExecContext,
        attempt: &dyn Fn() -> OutputPrefix,
        accept: &dyn Fn(&Job, &Outcome, Side) -> Result<Accepted>,
    ) -> std::result::Result<Outcome, JobError> {
        let host = self.executors.len() - 1;
        let mut last = None;
        let mut own: Option<Job> = None;
        for i in self.order() {
            let executor = &self.executors[i];
            if last.is_some() && !planted::is(Bug::OneAttemptForAll) {
                own = Some(Job {
                    output: attempt(),
                    ..job.clone()
                });
            }
            let job = own.as_ref().unwrap_or(job);
            let start = self.runtime.now();
            match executor.run(job, context) {
                Ok(outcome) => {
                    let accepted = accept(job, &outcome, executor.side());
                    if !matches!(accepted, Ok(Ok(()))) {
                        for table in &outcome.tables {
                            // Orphans; whatever cannot be deleted now is deleted at the next open. An outcome that lies about names must not
                            // make us delete what is not its own.
                            if table.name.starts_with(&job.output.text()) {
                                let _ = context.outputs.delete(context.epoch, &table.name);
                            }
                        }
                    }
                    let (error, rejected) = match accepted {
                        Ok(Ok(())) => {
                            let ns = self.runtime.now().since(start).as_nanos() as u64;
                            let bytes = outcome.counters.raw_bytes_read.max(1);
                            self.measured.lock().records[i].believed(bytes, ns);
                            return Ok(outcome);
                        }
                        Ok(Err(reason)) => {
                            self.rejected.fetch_add(1, Ordering::Relaxed);
                            if i != host {
                                let now = self.runtime.now();
                                self.measured.lock().records[i].rejected(now);
                            }
                            (rejection(&reason, executor.name()), true)
                        }
                        Err(error) => (error, false),
                    };
                    if i == host || context.cancel.is_cancelled() {
                        let rejected = rejected && i == host;
                        return Err(JobError { error, rejected });
                    }
                    if !rejected {
                        self.fallbacks.fetch_add(1, Ordering::Relaxed);
                    }
                    last = Some(error);
                }
                Err(ExecError::Cancelled) => return Err(cancelled().into()),
                Err(ExecError::Declined { reason }) => {
                    self.declined.fetch_add(1, Ordering::Relaxed);
                    *self
                        .measured
                        .lock()
                        .declined
                        .entry(format!("{}: {reason}", executor.name()))
                        .or_insert(0) += 1;
                    last = Some(
                        Error::new(ErrorKind::Unsupported, format!("every executor declined a job, the last: {reason}"))
                            .advice("the store holds data of a kind that this build cannot compact; use a newer one"),
                    );
                }
                Err(ExecError::Failed(error)) => {
                    let error = Error::from(error);
                    if i == host || context.cancel.is_cancelled() {
                        return Err(error.into());
                    }
                    self.fallbacks.fetch_add(1, Ordering::Relaxed);
                    last = Some(error);
                }
            }
        }
        Err(last.expect("the host's executor is always there").into())
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
        measured.records.iter().map(|r| r.set_aside).sum()
    }

    pub(crate) fn stats(&self) -> Vec<SideStats> {
        let now = self.runtime.now();
        let measured = self.measured.lock();
        self.executors
            .iter()
            .zip(&measured.records)
            .map(|(executor, record)| {
                let (bytes, ns) = record.totals();
                let aside = record.aside_until.unwrap_or(now).since(now);
                SideStats {
                    name: executor.name().to_string(),
                    side: executor.side().to_string(),
                    bytes_per_second: (ns > 0).then(|| bytes as f64 * 1e9 / ns as f64),
                    rejected_count: record.rejected,
                    set_aside_count: record.set_aside,
                    set_aside_us: aside.as_micros() as u64,
                }
            })
            .collect()
    }
}

/// An outcome was not accepted.
fn rejection(reason: &str, executor: &str) -> Error {
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
    fn pauses_double_up_to_an_hour() {
        let mut record = Record::default();
        let mut now = Instant::default();
        record.rejected(now);
        record.rejected(now);
        assert!(!record.is_aside(now), "two in a row are borne");
        record.believed(1, 1);
        record.rejected(now);
        record.rejected(now);
        assert!(!record.is_aside(now), "a believed one between ends the row");
        for trial in 0..40u32 {
            record.rejected(now);
            // What comes back late changes nothing.
            record.rejected(now);
            let pause = Duration::from_secs(30 << trial.min(7)).min(LONGEST_PAUSE);
            assert!(record.is_aside(now + (pause - Duration::from_nanos(1))));
            now = now + pause;
            assert!(!record.is_aside(now), "{trial}");
        }
        assert_eq!((record.set_aside, record.rejected), (40, 4 + 80));
        record.believed(1, 1);
        record.rejected(now);
        assert!(!record.is_aside(now));
    }
}
