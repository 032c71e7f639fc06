//! A condition with a count, so that a task that waits on it misses no notification.
//!
//! A task reads the count, then checks for what it waits for, and if that is not there it waits
//! until the count has changed. A notification between the check and the wait is not lost, because
//! the wait then returns at once. So no lock needs to be held over the check, and a notifier may
//! hold any lock: the mutex here is the last in the order of locks, and nothing is called under it.
//!
//! Threading: any task.

use std::time::Duration;

use siltstone_storage::{Condvar, Mutex, Runtime};

/// See the module.
pub(crate) struct Notify {
    count: Mutex<u64>,
    changed: Condvar,
}

impl Notify {
    pub(crate) fn new(runtime: &Runtime) -> Notify {
        Notify {
            count: runtime.mutex(0),
            changed: runtime.condvar(),
        }
    }

    /// Wakes all tasks that wait.
    pub(crate) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// The number of notifications so far. A task reads it before it checks for what it waits for.
    pub(crate) fn count(&self) -> u64 {
        *self.count.lock()
    }

    /// Waits until there were more than `seen` notifications, but not longer than `at_most`.
    /// Returns false if that time has passed. As with any condition variable, the wait may end
    /// without a reason, so true only means that it is worth checking again.
    pub(crate) fn wait_past(&self, seen: u64, at_most: Duration) -> bool {
        let count = self.count.lock();
        if *count != seen {
            return true;
        }
        let (count, timed_out) = self.changed.wait_timeout(count, at_most);
        !timed_out || *count != seen
    }
}
