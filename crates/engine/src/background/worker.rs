//! Workers: they wait until the schedule has work, and run it.
//!
//! A failed job is retried after a pause. A worker ends when the store closes.
//!
//! Threading: each worker is a runtime task.

use std::time::Duration;

use siltstone_storage::planted::{self, Bug};

use super::panics::{failed, guarded, panicked};
use crate::jobs::Jobs;
use crate::jobs::schedule::{self, Task};
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

/// Waits for one task and runs it. Returns false if the store is being closed.
fn work(jobs: &Jobs, flush_only: bool) -> bool {
    let task = loop {
        let seen = jobs.env().work().count();
        if jobs.env().is_closing() {
            schedule::end_unfinished(jobs);
            return false;
        }
        if let Some(task) = schedule::next(jobs, flush_only) {
            break task;
        }
        jobs.env().job_ended().notify();
        jobs.env().work().wait_past(seen, LOOK_AGAIN);
    };
    run(jobs, task);
    true
}

fn run(jobs: &Jobs, mut task: Task) {
    let what = task.what();
    let guarded = guarded(
        jobs.env(),
        || what,
        || match &mut task {
            Task::Flush(flush) => crate::jobs::flush::run(jobs, flush),
            Task::Compaction(compaction) => crate::jobs::install::run(jobs, compaction),
        },
    );
    let result = guarded.unwrap_or_else(|error| {
        panicked(jobs.catalog(), &error, schedule::count_panic(jobs, &task));
        Err(error)
    });
    // This comes before `finish`: a caller that finds no job running must see the full disk.
    if let Err(error) = &result
        && error.kind() == ErrorKind::NoSpace
    {
        jobs.env().health().set_no_space(error);
    }
    schedule::finish(jobs, task, &result);
    // A job of a dropped keyspace has not failed: its result is no longer wanted.
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
