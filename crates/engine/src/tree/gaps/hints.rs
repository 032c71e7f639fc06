//! Hints: keys near recent deletes, so that gaps can be found before readers need them.
//!
//! Each time that [`EVERY_TIMES`] times as many keys were deleted as a gap needs hidden entries,
//! the leader adds the key of the last delete as a hint. The maintenance task places a cursor there
//! ([`crate::tree::iter::ahead`]) and lets it step over the hidden entries around it, in both
//! directions, so that it leaves a gap behind as any cursor does. If deletes are scattered, the
//! cursor meets a live entry at once. If they are adjacent, it soon comes to the gap of the last
//! hint, so it steps over every tombstone about once. So the first reader after many deletes steps
//! over few entries besides those deleted since the last hint. Gaps are lost at a close: the first
//! reader after an open steps over the entries that no compaction has dropped yet, and leaves the
//! gap behind.
//!
//! Threading: the leader adds hints and the maintenance task takes them, under a mutex that is held
//! for no wait.

use siltstone_storage::{Mutex, Runtime};

use crate::tree::atomics::{AtomicU64, Ordering};

/// The number of deletes between two hints, for each hidden entry that a gap needs.
const EVERY_TIMES: u64 = 128;

/// The maximum number of waiting hints. Further ones are dropped.
const HINTS_MAX: usize = 16;

/// Keys near which others were deleted. See the module.
pub(crate) struct Hints {
    /// The number of deletes since the store was opened. Only the leader changes it.
    deletes: AtomicU64,
    keys: Mutex<Vec<Vec<u8>>>,
}

impl Hints {
    pub(super) fn new(runtime: &Runtime) -> Hints {
        Hints {
            deletes: AtomicU64::new(0),
            keys: runtime.mutex(Vec::new()),
        }
    }

    pub(crate) fn add(&self, key: &[u8]) -> bool {
        let mut keys = self.keys.lock();
        let has_room = keys.len() < HINTS_MAX;
        if has_room {
            keys.push(key.to_vec());
        }
        has_room
    }

    pub(crate) fn take(&self) -> Option<Vec<u8>> {
        self.keys.lock().pop()
    }
}

impl super::Gaps {
    /// Counts `count` deletes, which the leader has published. `last` returns the key of the last
    /// one. `gap_min` is the number of hidden entries that make a gap. Returns true if the
    /// maintenance task has a new hint.
    #[inline]
    pub(crate) fn deleted<'k>(
        &self,
        gap_min: u64,
        count: u64,
        last: impl FnOnce() -> Option<&'k [u8]>,
    ) -> bool {
        let before = self.hints.deletes.load(Ordering::Relaxed);
        let now = before + count;
        self.hints.deletes.store(now, Ordering::Relaxed);
        let every = EVERY_TIMES * gap_min;
        before / every != now / every && last().is_some_and(|key| self.hints.add(key))
    }
}
