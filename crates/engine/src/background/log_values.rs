//! The task that leaves the values of sealed memtables in the log (`jobs/log_backed.rs`).
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
        env.work().wait_past(seen, LOOK_AGAIN);
        seen = env.work().count();
        if env.is_closing() {
            return false;
        }
        while leave_values(&parts.jobs) {}
        true
    });
}
