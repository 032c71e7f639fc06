//! Failures of flushes and compactions: which error callers that wait for jobs get, and when.
//!
//! Invariant: whoever ends a job counts its failure before anybody can find that nothing runs any
//! more, so nobody finds the store idle while a failure is not counted yet. Jobs do both under the
//! lock of their schedule.
//!
//! Threading: one mutex, which is held over nothing else.

use siltstone_storage::{Mutex, Runtime};

use crate::types::error::Error;

/// After this many failures in a row, waiting callers and `Stats::jobs_failing` report the error.
const FAILING_NOW: u32 = 3;

/// After this many failed flushes, or compactions, in a row, the fault is taken for a lasting one.
/// There is a pause after each failure.
pub(crate) const LASTING_FAILURES: u32 = 10;

/// A kind of jobs. Its discriminant is the index into [`Counts::by_kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum JobKind {
    Flush,
    Compaction,
}

impl JobKind {
    /// The word for it in messages and events.
    pub(crate) fn word(self) -> &'static str {
        match self {
            JobKind::Flush => "flush",
            JobKind::Compaction => "compaction",
        }
    }
}

/// The number of kinds.
pub(crate) const JOB_KINDS: usize = 2;

/// The failures since the last success.
pub(crate) struct Failures {
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// The failures of all kinds since the last success, or since a caller began to wait.
    in_a_row: u32,
    /// By [`JobKind`], since the last success of that kind or since nothing of it was due.
    by_kind: [u32; JOB_KINDS],
    last: Option<Error>,
}

impl Failures {
    pub(crate) fn new(runtime: &Runtime) -> Failures {
        Failures {
            counts: runtime.mutex(Counts::default()),
        }
    }

    /// A job of this kind succeeded.
    pub(crate) fn succeeded(&self, kind: JobKind) {
        let mut counts = self.counts.lock();
        counts.in_a_row = 0;
        counts.by_kind[kind as usize] = 0;
    }

    /// A job of this kind failed.
    pub(crate) fn failed(&self, kind: JobKind) {
        let mut counts = self.counts.lock();
        counts.in_a_row = counts.in_a_row.saturating_add(1);
        let failed = &mut counts.by_kind[kind as usize];
        *failed = failed.saturating_add(1);
    }

    /// Keeps the error of a job or a task that failed, to be reported.
    pub(crate) fn set_last(&self, error: Error) {
        self.counts.lock().last = Some(error);
    }

    /// The error of the job that failed last.
    pub(crate) fn last(&self) -> Option<Error> {
        self.counts.lock().last.clone()
    }

    /// No job of this kind is due or runs. Failures that did not end with a success (because the
    /// keyspace was dropped, for example) do not concern later callers.
    pub(crate) fn forget_kind(&self, kind: JobKind) {
        self.counts.lock().by_kind[kind as usize] = 0;
    }

    /// No job of any kind is due or runs.
    pub(crate) fn forget_kinds(&self) {
        self.counts.lock().by_kind = [0; JOB_KINDS];
    }

    /// A caller begins to wait for jobs. It gets only the failures from now on.
    pub(crate) fn forget_earlier(&self) {
        self.counts.lock().in_a_row = 0;
    }

    /// The last error for callers that wait for jobs, if [`FAILING_NOW`] or more jobs in a row have
    /// failed.
    pub(crate) fn failing(&self) -> Option<Error> {
        let counts = self.counts.lock();
        let fails = counts.in_a_row >= FAILING_NOW;
        fails.then(|| counts.last.clone()).flatten()
    }

    /// The last error, if [`FAILING_NOW`] or more flushes in a row have failed, or that many
    /// compactions. For the statistics, which wait for nothing.
    pub(crate) fn failing_now(&self) -> Option<Error> {
        self.last_if_any_failed(&[JobKind::Flush, JobKind::Compaction], FAILING_NOW)
    }

    /// The error for a stalled writer, if [`LASTING_FAILURES`] or more flushes in a row have
    /// failed, or that many compactions. With `flushes_only`, failures of compactions do not count.
    pub(crate) fn failing_for_good(&self, flushes_only: bool) -> Option<Error> {
        let kinds = match flushes_only {
            true => &[JobKind::Flush][..],
            false => &[JobKind::Flush, JobKind::Compaction],
        };
        let error = self.last_if_any_failed(kinds, LASTING_FAILURES)?;
        Some(error.context("writes wait for background jobs, and those fail"))
    }

    fn last_if_any_failed(&self, kinds: &[JobKind], times: u32) -> Option<Error> {
        let counts = self.counts.lock();
        let has_failed = |kind: &JobKind| counts.by_kind[*kind as usize] >= times;
        let fails = kinds.iter().any(has_failed);
        fails.then(|| counts.last.clone()).flatten()
    }
}
