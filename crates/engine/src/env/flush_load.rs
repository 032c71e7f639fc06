//! Whether flushes are behind and which of them the host executes, as the compactions of the store
//! ask it that pause for them (RFC 13, section 5).
//!
//! Threading: atomics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// See the module.
#[derive(Default)]
pub(crate) struct FlushLoad {
    /// The number of keyspaces that are behind.
    behind: AtomicUsize,
    /// The number of flushes that the host executes.
    flushing: AtomicUsize,
    /// Bytes that these have reported since the store was opened.
    progressed_bytes: AtomicU64,
}

impl FlushLoad {
    /// A keyspace is behind from now on, or is so no longer.
    pub(crate) fn set_behind(&self, begins: bool) {
        match begins {
            true => self.behind.fetch_add(1, Ordering::Relaxed),
            false => self.behind.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether a keyspace is behind, and the host executes a flush.
    pub(crate) fn is_urgent(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0 && self.behind.load(Ordering::Relaxed) > 0
    }

    /// The host executes a flush until the result is dropped.
    pub(crate) fn flushing(&self) -> Flushing<'_> {
        self.flushing.fetch_add(1, Ordering::Relaxed);
        Flushing { load: self }
    }

    /// A flush has read and written these bytes.
    pub(crate) fn progressed(&self, bytes: u64) {
        self.progressed_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn progressed_bytes(&self) -> u64 {
        self.progressed_bytes.load(Ordering::Relaxed)
    }
}

/// See [`FlushLoad::flushing`].
pub(crate) struct Flushing<'a> {
    load: &'a FlushLoad,
}

impl Drop for Flushing<'_> {
    fn drop(&mut self) {
        self.load.flushing.fetch_sub(1, Ordering::Relaxed);
    }
}
