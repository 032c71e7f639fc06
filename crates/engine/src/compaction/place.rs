//! Which side runs a job.
//!
//! What it is: `Sides` holds the executors, the host's own last. A job is offered to the side that is expected to finish it first (measured seconds a byte
//! over its last five jobs, priority 3 of spec/prockstore); who declines or fails is counted with the reason and the host's cores run
//! the job. Nothing is lost by an executor that says no.
//!
//! Threading: shared; one mutex for the measurements, not held while a job runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{Mutex, Runtime};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Job, OutputPrefix};

use crate::error::{Error, ErrorKind, Result};
use crate::planted::{self, Bug};

/// Jobs that a side's speed is measured over.
const MEASURED_JOBS: usize = 5;

#[derive(Default)]
struct Measured {
    /// Bytes and nanoseconds of the last jobs of each executor.
    recent: Vec<VecDeque<(u64, u64)>>,
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
#[derive(Clone, Debug, PartialEq)]
pub struct SideStats {
    /// The executor's name.
    pub name: String,
    /// Where it computes.
    pub side: String,
    /// Bytes of input a second over its last jobs, if it has run any.
    pub bytes_per_second: Option<f64>,
}

impl Sides {
    pub(crate) fn new(runtime: &Runtime, mut executors: Vec<Arc<dyn Executor>>) -> Sides {
        executors.push(Arc::new(CpuExecutor::new()));
        let recent = executors.iter().map(|_| VecDeque::new()).collect();
        Sides {
            measured: runtime.mutex(Measured {
                recent,
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
    /// host's own stands at its measured place, and once more at the end, where it takes what all others refused.
    fn order(&self) -> Vec<usize> {
        let measured = self.measured.lock();
        let speed = |i: &usize| {
            let (bytes, ns) = measured.recent[*i]
                .iter()
                .fold((0u64, 0u64), |s, j| (s.0 + j.0, s.1 + j.1));
            if bytes == 0 {
                0.0
            } else {
                ns as f64 / bytes as f64
            }
        };
        let mut order: Vec<usize> = (0..self.executors.len()).collect();
        order.sort_by(|a, b| speed(a).total_cmp(&speed(b)));
        order
    }

    /// Runs the job somewhere and gives an outcome that `accept` believes. Whoever fails, or is not believed, is followed by the next, at last by
    /// the host's own cores. Each gets an attempt of its own from `attempt`: one that was given up and wakes late writes under names
    /// that nobody else has.
    pub(crate) fn run(
        &self,
        job: &Job,
        context: &ExecContext,
        attempt: &dyn Fn() -> OutputPrefix,
        accept: &dyn Fn(&Job, &Outcome, Side) -> std::result::Result<(), String>,
    ) -> Result<Outcome> {
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
                    if let Err(reason) = accept(job, &outcome, executor.side()) {
                        self.rejected.fetch_add(1, Ordering::Relaxed);
                        for table in &outcome.tables {
                            // Orphans; whatever cannot be deleted now is deleted at the next open. An outcome that lies about names must not
                            // make us delete what is not its own.
                            if table.name.starts_with(&job.output.text()) {
                                let _ = context.outputs.delete(context.epoch, &table.name);
                            }
                        }
                        let error = Error::new(
                            ErrorKind::Io,
                            format!("the outcome of a job was rejected: {reason} (executor {})", executor.name()),
                        )
                        .advice("nothing was installed and the job runs again; if it happens again, report it");
                        if i == host {
                            return Err(error);
                        }
                        last = Some(error);
                        continue;
                    }
                    let ns = self.runtime.now().since(start).as_nanos() as u64;
                    let mut measured = self.measured.lock();
                    let recent = &mut measured.recent[i];
                    if recent.len() == MEASURED_JOBS {
                        recent.pop_front();
                    }
                    recent.push_back((outcome.counters.raw_bytes_read.max(1), ns));
                    return Ok(outcome);
                }
                Err(ExecError::Cancelled) => return Err(cancelled()),
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
                        return Err(error);
                    }
                    self.fallbacks.fetch_add(1, Ordering::Relaxed);
                    last = Some(error);
                }
            }
        }
        Err(last.expect("the host's executor is always there"))
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

    pub(crate) fn stats(&self) -> Vec<SideStats> {
        let measured = self.measured.lock();
        self.executors
            .iter()
            .zip(&measured.recent)
            .map(|(executor, recent)| {
                let (bytes, ns) = recent
                    .iter()
                    .fold((0u64, 0u64), |s, j| (s.0 + j.0, s.1 + j.1));
                SideStats {
                    name: executor.name().to_string(),
                    side: executor.side().to_string(),
                    bytes_per_second: (ns > 0).then(|| bytes as f64 * 1e9 / ns as f64),
                }
            })
            .collect()
    }
}

/// The answer of a job that was asked to stop.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the job was cancelled")
}
