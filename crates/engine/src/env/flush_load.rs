//! Whether flushes are behind, how many of them the host executes, and whether that leaves a core
//! for compactions. The compactions of the store that pause for flushes ask this (RFC 13, section
//! 5).
//!
//! Threading: atomics.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::Instant;

/// See the module.
pub(crate) struct FlushLoad {
    /// The number of cores of the process.
    cores: usize,
    /// The number of keyspaces that are behind.
    behind: AtomicUsize,
    /// The number of flushes that the host executes.
    flushing: AtomicUsize,
    /// Bytes that these have reported since the store was opened.
    progressed_bytes: AtomicU64,
    /// Until when a flush waits for the end of a burst, in nanoseconds of the runtime's clock.
    deferring_until: AtomicU64,
}

impl FlushLoad {
    pub(crate) fn new(cores: usize) -> FlushLoad {
        FlushLoad {
            cores,
            behind: AtomicUsize::new(0),
            flushing: AtomicUsize::new(0),
            progressed_bytes: AtomicU64::new(0),
            deferring_until: AtomicU64::new(0),
        }
    }

    /// A keyspace is behind from now on, or is so no longer.
    pub(crate) fn set_behind(&self, begins: bool) {
        match begins {
            true => self.behind.fetch_add(1, Ordering::Relaxed),
            false => self.behind.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// Whether the host executes a flush.
    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.load(Ordering::Relaxed) > 0
    }

    /// Notes that flushes wait for the end of a burst, which comes at this time unless a memtable is
    /// sealed before.
    pub(crate) fn set_deferring(&self, until: Instant) {
        let until = until.as_nanos();
        self.deferring_until.store(until, Ordering::Relaxed);
    }

    /// Whether flushes wait for the end of a burst.
    pub(crate) fn is_deferring(&self, now: Instant) -> bool {
        !self.deferring_for(now).is_zero()
    }

    /// How long flushes still wait for the end of a burst, if nothing happens before.
    pub(crate) fn deferring_for(&self, now: Instant) -> Duration {
        let until = self.deferring_until.load(Ordering::Relaxed);
        Duration::from_nanos(until.saturating_sub(now.as_nanos()))
    }

    /// Whether memtables of a keyspace fill faster than they are flushed.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed) > 0
    }

    /// Whether the flushes that the host executes and one writer occupy all cores.
    pub(crate) fn leaves_no_core(&self) -> bool {
        self.flushing.load(Ordering::Relaxed).saturating_add(1) >= self.cores
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
