//! The atomics of files whose schedules are explored. Here they are std's; the tests that compile those files (`tests/pinning_loom.rs`,
//! `crates/sim/tests/schedules.rs`) have a module of this name with loom's, or with atomics at which simulated tasks hand over.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
