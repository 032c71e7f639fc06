//! The atomics of the files whose schedules tests explore separately. In the store these are the
//! atomics of std. The tests that compile these files (`tests/pinning_loom.rs`,
//! `crates/sim/tests/schedules.rs`) have a module of this name with the atomics of loom, or with
//! atomics at which simulated tasks may switch.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
