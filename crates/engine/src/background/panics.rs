//! Tasks that fail or panic: what is reported, and how long the task pauses.
//!
//! Threading: the task itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::catalog::Catalog;
use crate::env::Env;
use crate::env::failures::LASTING_FAILURES;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Event;

/// After this many panics in a row of one task, or of the flushes or the compactions of one
/// keyspace, the store refuses writes, because that work is never done.
const PANICS_MAX: u32 = LASTING_FAILURES;

/// Runs `work` and turns a panic in it into an error. In a simulated run a panic ends the run, and
/// a simulated kill unwinds the stacks of all tasks, so panics are not caught there.
///
/// The locks that `work` held are released. So what a lock guards must be consistent between any
/// two calls that may panic, or record that it is not, as the manifest
/// ([`Catalog::check_manifest_is_whole`]) and the leader's role do.
pub(super) fn guarded<T>(
    env: &Env,
    what: impl FnOnce() -> String,
    work: impl FnOnce() -> T,
) -> Result<T> {
    if env.runtime().is_simulated() {
        return Ok(work());
    }
    catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let said = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(|s| &**s))
            .unwrap_or("no message");
        Error::new(ErrorKind::Io, format!("{} panicked: {said}", what())).advice(
            "this is a bug: report it, with what stands on standard error; nothing that was \
             acknowledged is lost",
        )
    })
}

/// Runs a task that must not end while the store is open: calls `turn` until it returns false. If
/// `turn` panics, the panic is counted and reported, and `turn` is called again.
pub(super) fn repeat(catalog: &Catalog, task: &str, mut turn: impl FnMut() -> bool) {
    let env = catalog.env();
    let mut panics = 0;
    loop {
        match guarded(env, || task.into(), &mut turn) {
            Ok(true) => panics = 0,
            Ok(false) => return,
            Err(error) => {
                panics += 1;
                panicked(catalog, &error, panics);
                if env.is_closing() {
                    return;
                }
                failed(env, error);
            }
        }
    }
}

/// Handles a panic of a task, the `count`-th in a row. Panic number [`PANICS_MAX`] poisons the
/// store.
pub(super) fn panicked(catalog: &Catalog, error: &Error, count: u32) {
    catalog.check_manifest_is_whole();
    if count >= PANICS_MAX {
        let again = format!("{count} times in a row, and what it does stays undone");
        let cause = error.clone().with_kind(ErrorKind::Poisoned).context(again);
        let env = catalog.env();
        log(env, || env.health().poison(&cause));
    }
}

/// Calls `write`, which traces to a subscriber of the program that uses the store. If the
/// subscriber panics, even at every message, this must not end the task.
fn log(env: &Env, write: impl FnOnce()) {
    let _ = guarded(env, String::new, write);
}

/// Counts and reports the failure of a task, then pauses. A failed job is due again at once, so
/// without the pause a job that always fails would make the worker spin.
pub(super) fn failed(env: &Env, error: Error) {
    env.metrics().job_failed_count.add(1);
    log(
        env,
        || tracing::warn!(%error, "a flush or compaction failed, it runs again"),
    );
    env.events().emit(|| Event::JobFailed {
        error: error.clone(),
    });
    env.failures().set_last(error);
    pause(env, Duration::from_millis(100));
}

/// Sleeps until `duration` has passed or the store is being closed.
fn pause(env: &Env, duration: Duration) {
    let end = env.now() + duration;
    // `ending` is notified only once, when the store is being closed. A wait may end without a
    // reason.
    while env.ending().count() == 0 {
        let left = end.since(env.now());
        if left.is_zero() {
            return;
        }
        env.ending().wait_past(0, left);
    }
}
