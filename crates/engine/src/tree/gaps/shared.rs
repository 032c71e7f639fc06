//! The gaps of one keyspace, as leaders and readers share them: a [`State`] behind a mutex, the map
//! that readers see without it, and the flag that a put reads first.
//!
//! The argument for exactness is at the head of the module `gaps`. This file, `state.rs` and
//! `map.rs` use nothing of the store, so that `crates/sim/tests/schedules_gaps.rs` can compile them
//! and explore their schedules.
//!
//! Threading: any thread.

use std::sync::Arc;

use arc_swap::ArcSwap;
use siltstone_storage::planted;
use siltstone_storage::{Mutex, Runtime};

use super::super::atomics::{AtomicU64, Ordering};
use super::map::{Gap, GapMap};
use super::state::{Invalidated, State, Way};

/// See the module.
pub(crate) struct SharedGaps {
    /// Whether leaders invalidate the keys that come to life: 0 or 1.
    armed: AtomicU64,
    /// Whether a gap was used since a leader last invalidated keys: 0 or 1.
    used: AtomicU64,
    /// The state's map, for readers.
    shown: ArcSwap<GapMap>,
    state: Mutex<State>,
}

impl SharedGaps {
    pub(crate) fn new(runtime: &Runtime) -> SharedGaps {
        SharedGaps {
            armed: AtomicU64::new(0),
            used: AtomicU64::new(0),
            shown: ArcSwap::default(),
            state: runtime.mutex(State::default()),
        }
    }

    /// Whether a leader must [`SharedGaps::invalidate`] the keys that come to life.
    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed) != 0
    }

    /// A gap that holds `key` and may be used by a read at `number`. The reader must have read this
    /// number before the call (G1).
    pub(crate) fn at(&self, key: &[u8], number: u64) -> Option<Arc<Gap>> {
        if !self.is_armed() {
            return None;
        }
        let map = self.shown.load();
        let gap = map.find(key)?;
        if gap.number > number && !planted!(GapServesOldReads) {
            return None;
        }
        if self.used.load(Ordering::Relaxed) == 0 {
            self.used.store(1, Ordering::Relaxed);
        }
        Some(gap.clone())
    }

    /// Makes leaders invalidate the keys that come to life, unless all of them do so already.
    /// `with_quiet` calls its argument while nobody can begin to lead, with the published number if
    /// nobody leads now.
    pub(crate) fn arm(&self, with_quiet: impl FnOnce(&mut dyn FnMut(Option<u64>))) {
        if self.is_armed() && self.state.lock().is_complete() {
            return;
        }
        with_quiet(&mut |quiet| {
            let mut state = self.state.lock();
            state.arm(quiet);
            self.armed.store(1, Ordering::Relaxed);
        });
    }

    /// Takes the keys of these closed ranges out of the gaps. The leader calls this, if
    /// [`SharedGaps::is_armed`], for the keys that its group brings to life, before it publishes
    /// `last`, the last number of the group. `gap_min` is the number of hidden entries that make a
    /// gap.
    #[cold]
    pub(crate) fn invalidate<'k>(
        &self,
        alive: impl Iterator<Item = (&'k [u8], &'k [u8])>,
        last: u64,
        gap_min: u64,
    ) {
        let used = self.used.load(Ordering::Relaxed) != 0;
        let mut state = self.state.lock();
        let done = state.invalidate(alive, last, used, gap_min);
        if done != Invalidated::Nothing {
            self.shown.store(state.map().clone());
        }
        if done == Invalidated::Disarmed {
            self.armed.store(0, Ordering::Relaxed);
        }
        drop(state);
        if used {
            self.used.store(0, Ordering::Relaxed);
        }
    }

    /// See [`State::watch`].
    pub(crate) fn watch(&self, number: u64, way: Way, anchor: &[u8]) -> Option<u64> {
        self.state.lock().watch(number, way, anchor)
    }

    /// See [`State::finish`].
    pub(crate) fn finish(&self, id: u64, number: u64, far: &[u8], hidden: u64) -> bool {
        let mut state = self.state.lock();
        let found = state.finish(id, number, far, hidden);
        if found {
            self.shown.store(state.map().clone());
        }
        found
    }

    /// See [`State::abandon`].
    pub(crate) fn abandon(&self, id: u64) {
        self.state.lock().abandon(id);
    }

    /// The number of gaps in the map.
    pub(crate) fn count(&self) -> usize {
        self.shown.load().len()
    }
}
