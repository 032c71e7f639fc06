//! The sync that [`SyncMode::Interval`](crate::SyncMode::Interval) promises: a task of its own, because the promise is about time.
//!
//! What it is: whoever appends to the log tells [`IntervalSync::written`]; the task syncs the log an interval after the first record that is not
//! synced. It takes the log's sync role and nothing else, so that no slow deletion, zeroing of a segment or sync of a manifest comes between.
//!
//! Invariants:
//! - While the store is not poisoned, what was appended at a time `t` is synced at `t` + interval + two syncs of the log: the task's own, and the
//!   one that was on its way before.
//! - Without unsynced records the task sleeps without a bound. No record is overlooked: both sides swap `asleep`, so either the task's swap comes
//!   after the writer's, and it sees the log's new end, or the writer's comes after the task's, and it wakes it.
//!
//! Threading: `written` is for leaders, one swap a group; [`run`] is the task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone_storage::planted::{self, Bug};
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
        let interval = interval.filter(|_| !planted::is(Bug::IntervalNeverSyncs));
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

    /// Something was appended to the log.
    #[inline]
    pub(crate) fn written(&self) {
        if self.interval.is_some() && self.asleep.swap(false, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Has the task look again: also whether the store closes.
    #[cold]
    pub(crate) fn wake(&self) {
        let _lock = self.lock.lock();
        self.wake.notify_all();
    }
}

/// The task's life, until the store closes or is poisoned (whoever writes next is told; what was not synced then is never tried again).
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
            // Its first record is as old as the interval allows in an interval, whenever the last sync was.
            last = None;
            lock = sync.wake.wait(lock);
        }
        sync.asleep.store(false, Ordering::Release);
        // What came in during the last sync may be as old as that sync.
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
        let _ = wal.sync_log_through(wal.log.end());
        if wal.env.health().is_poisoned() {
            return;
        }
    }
}
