//! The task that leaves the values of sealed memtables in the log (`jobs/log_backed.rs`), and wakes
//! the workers when a burst is over.
//!
//! Threading: one runtime task. It has no other work, because writers may wait for the memory that
//! it frees.

use std::time::Duration;

use super::panics::repeat;
use super::worker::{FLUSH_NICE, yield_cores};
use crate::jobs::log_backed::leave_values;
use crate::services::parts::Parts;

/// The longest time between two looks.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Leaves values in the log until the store closes.
pub(super) fn serve(parts: &Parts) {
    let env = &parts.env;
    yield_cores(env, FLUSH_NICE);
    let mut seen = 0;
    repeat(&parts.catalog, "the task of values in the log", || {
        let deferring = env.flush_load().deferring_for(env.now());
        let wait = match deferring.is_zero() {
            true => LOOK_AGAIN,
            false => deferring.min(LOOK_AGAIN),
        };
        if !env.work().wait_past(seen, wait) && !deferring.is_zero() {
            // The burst is over, so flushes that were deferred may begin.
            env.work().notify();
        }
        seen = env.work().count();
        if env.is_closing() {
            return false;
        }
        while leave_values(&parts.jobs) {}
        true
    });
}
