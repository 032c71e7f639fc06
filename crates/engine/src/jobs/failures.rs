//! Jobs that fail: what those who wait for them are told, and when.
//!
//! Invariant: failures are counted under the schedule's lock, by whoever ends a job, so that a
//! store is never seen as idle with a failure that has passed.
//!
//! Threading: the schedule's mutex, then that of the last error.

use crate::jobs::Jobs;
use crate::types::error::Error;

/// Whoever begins to wait for jobs is told of failures from now on, not of those that may have
/// passed long ago.
pub(crate) fn forget_failures(jobs: &Jobs) {
    jobs.schedule.lock().failures_in_a_row = 0;
}

/// After this many failures in a row, waiting callers and `Stats::jobs_failing` report the error.
pub(crate) const FAILING_NOW: u32 = 3;

/// The last job's error, if jobs fail and nothing has succeeded since.
pub(crate) fn failing(jobs: &Jobs) -> Option<Error> {
    let failures = jobs.schedule.lock().failures_in_a_row;
    (failures >= FAILING_NOW)
        .then(|| jobs.env.last_job_error.lock().clone())
        .flatten()
}

/// Flushes or compactions that fail so often in a row do not only meet a passing fault: there is a
/// pause after each.
pub(crate) const LASTING_FAILURES: u32 = 10;

/// The last job's error, if [`FAILING_NOW`] or more flushes in a row have failed, or that many
/// compactions. For the statistics, which wait for nothing.
pub(crate) fn failing_now(jobs: &Jobs) -> Option<Error> {
    let now = |failures: &u32| *failures >= FAILING_NOW;
    let fails = jobs.schedule.lock().failed_in_a_row.iter().any(now);
    fails
        .then(|| jobs.env.last_job_error.lock().clone())
        .flatten()
}

/// What a writer is told that waits for jobs which fail again and again.
pub(crate) fn failing_for_good(jobs: &Jobs) -> Option<Error> {
    let lasting = |failures: &u32| *failures >= LASTING_FAILURES;
    if !jobs.schedule.lock().failed_in_a_row.iter().any(lasting) {
        return None;
    }
    let error = jobs.env.last_job_error.lock().clone()?;
    Some(error.context("writes wait for background jobs, and those fail"))
}
