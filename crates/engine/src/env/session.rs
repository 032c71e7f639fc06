//! Which open of a store a handle or a batch belongs to.
//!
//! Threading: one atomic counter for the process.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies one open of a store within this process: no two opens have the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionId(u64);

impl SessionId {
    /// A new id. Nothing depends on its value, so simulated runs replay whatever it is.
    pub(crate) fn new() -> SessionId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        SessionId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}
