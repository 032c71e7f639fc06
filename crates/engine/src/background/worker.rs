//! Workers: they wait until the schedule has work, and run it.
//!
//! A failed job is retried after a pause. A worker ends when the store closes.
//!
//! Threading: each worker is a runtime task.

use std::time::Duration;

use siltstone_storage::planted::{self, Bug};

use super::panics::{failed, guarded, panicked};
use crate::jobs::Jobs;
use crate::jobs::schedule;
use crate::jobs::work::Work;
use crate::types::error::ErrorKind;

/// The longest time that a worker waits before it looks for work again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The life of a worker. With `flush_only` it takes no compactions.
pub(super) fn worker(jobs: &Jobs, flush_only: bool) {
    let mut panics = 0;
    loop {
        match guarded(jobs.env(), || "a worker".into(), || work(jobs, flush_only)) {
            Ok(true) => panics = 0,
            Ok(false) => return,
            Err(error) => {
                panics += 1;
                panicked(jobs.catalog(), &error, panics);
                if jobs.env().is_closing() {
                    return;
                }
                failed(jobs.env(), error);
            }
        }
    }
}

/// Waits for work and does it. False: the store closes.
fn work(jobs: &Jobs, flush_only: bool) -> bool {
    let work = loop {
        let seen = jobs.env().work().count();
        if jobs.env().is_closing() {
            schedule::end_unfinished(jobs);
            return false;
        }
        if let Some(work) = schedule::next(jobs, flush_only) {
            break work;
        }
        jobs.env().job_ended().notify();
        jobs.env().work().wait_past(seen, LOOK_AGAIN);
    };
    run(jobs, work);
    true
}

fn run(jobs: &Jobs, mut work: Work) {
    let what = work.describe();
    let guarded = guarded(jobs.env(), || what, || jobs.run(&mut work));
    let result = guarded.unwrap_or_else(|error| {
        panicked(jobs.catalog(), &error, schedule::count_panic(jobs, &work));
        Err(error)
    });
    // This comes before `finish`: a caller that finds no job running must see the full disk.
    if let Err(error) = &result
        && error.kind() == ErrorKind::NoSpace
    {
        jobs.env().health().set_no_space(error);
    }
    schedule::finish(jobs, work, &result);
    // Work for a keyspace that is gone has not failed: it is not wanted any more.
    if let Err(error) = result
        && !matches!(error.kind(), ErrorKind::Closed | ErrorKind::KeyspaceDropped)
    {
        if planted::is(Bug::TableSyncPoisons) {
            jobs.env().health().poison(&error);
        }
        failed(jobs.env(), error);
    }
    jobs.env().pressure().notify();
    jobs.env().maintenance().notify();
}
