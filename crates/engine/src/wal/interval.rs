//! The sync of [`SyncMode::Interval`](crate::SyncMode::Interval). It has a task of its own, because
//! it promises a time.
//!
//! After each append without a sync, the leader calls [`IntervalSync::written`]. The task syncs the
//! log one interval after the first record that is not synced. It takes the log's sync role and
//! nothing else, so that no slow deletion, zeroing of a segment or sync of a manifest delays it.
//!
//! Invariants:
//! - While the store is not poisoned, a record that was appended at the time `t` is synced at the
//!   latest at `t` + interval + the duration of two syncs of the log: the task's own, and one that
//!   was already running.
//!   While the storage cannot be reached, the task tries again until it can.
//! - Without unsynced records the task sleeps without a time limit. No record is overlooked,
//!   because both sides swap `asleep`: if the task's swap comes after the writer's, the task sees
//!   the new end of the log; if the writer's swap comes after the task's, the writer wakes the
//!   task.
//!
//! Threading: leaders call `written`, which costs one swap for each group. [`run`] is the task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone_storage::{Condvar, Instant, Mutex, Runtime};

use crate::wal::Wal;

/// See the module.
pub(crate) struct IntervalSync {
    interval: Option<Duration>,
    asleep: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl IntervalSync {
    pub(crate) fn new(runtime: &Runtime, interval: Option<Duration>) -> IntervalSync {
        IntervalSync {
            interval,
            asleep: AtomicBool::new(false),
            lock: runtime.mutex(()),
            wake: runtime.condvar(),
        }
    }

    pub(crate) fn interval(&self) -> Option<Duration> {
        self.interval
    }

    /// Records were appended to the log.
    #[inline]
    pub(crate) fn written(&self) {
        if self.interval.is_some() && self.asleep.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Wakes the task, so that it looks at the log's end and at whether the store closes.
    #[cold]
    pub(crate) fn wake(&self) {
        let _lock = self.lock.lock();
        self.wake.notify_all();
    }
}

/// The task. It ends when the store closes or is poisoned. A poisoned store refuses the next write,
/// and the sync that failed is never tried again.
pub(crate) fn run(wal: &Wal, interval: Duration) {
    let sync = &wal.interval_sync;
    let mut last: Option<Instant> = None;
    loop {
        let mut lock = sync.lock.lock();
        while !wal.env.is_closing() {
            sync.asleep.swap(true, Ordering::AcqRel);
            if wal.log.end() > wal.log.synced() {
                break;
            }
            // All records are synced, so the next one may wait for a whole interval, whenever the
            // last sync was.
            last = None;
            lock = sync.wake.wait(lock);
        }
        sync.asleep.store(false, Ordering::Release);
        // A record that came during the last sync may be as old as that sync.
        let due = last.unwrap_or_else(|| wal.env.now()) + interval;
        loop {
            if wal.env.is_closing() {
                return;
            }
            let left = due.since(wal.env.now());
            if left.is_zero() {
                break;
            }
            lock = sync.wake.wait_timeout(lock, left).0;
        }
        drop(lock);
        last = Some(wal.env.now());
        let _ = wal.sync_log_for_background(wal.log.end());
        if wal.env.health().is_poisoned() {
            return;
        }
    }
}
