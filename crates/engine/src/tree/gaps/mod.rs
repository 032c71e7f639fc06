//! Gaps: remembered intervals of keys without live keys, over which cursors jump.
//!
//! A store that is used as a queue puts keys at the tail and deletes them at the head. Until a
//! compaction drops them, the deleted entries and their tombstones lie where every reader of the
//! head begins, and each reader would step over all of them. So a cursor that steps over many
//! hidden entries in a row leaves the interval behind as a [`map::Gap`], and later cursors that
//! come to a gap seek to its end. [`hints`] let the maintenance task walk over recent deletes, so
//! that the first reader finds a gap too.
//!
//! A gap with the number `s` says that no key of the interval `start..end` is alive at `s`, nor at
//! any later number as long as the gap is in the map. A read at any number sees the same as without
//! gaps. The rules:
//!
//! - **G1** A gap is used only at numbers not below its own, and only by reads that loaded the map
//!   after they had their number.
//! - **G2** Before a number is published at which a key comes to life (by a put or an ingested
//!   table), its leader *invalidates* the key ([`shared::SharedGaps::invalidate`]): the key is cut
//!   out of all gaps, and it bounds the watches. Leaders need not do so while the keyspace is not
//!   *armed*.
//! - **G3** A cursor that is to leave a gap behind registers a watch *before* it has found the
//!   gap's far end. It gets a watch only if no key was invalidated with a number above its own.
//! - **G4** Each of these changes is made under the mutex of [`state::State`], and the map that
//!   readers see is replaced under it too.
//!
//! Why this is exact. Let a read at number `n` use a gap of number `s`, so `s <= n` (G1), and
//! suppose that a key of the gap is alive at `n`. Its newest entry at `n` is a put with a number
//! `m <= n`. The cursor that found the gap read at `s` and saw no live key in the interval, so
//! `m > s`. The leader of `m` invalidated the key before it published `m` (G2). If it did so before
//! the watch was registered, then a key was invalidated with a number above `s`, and there was no
//! watch (G3). If it did so between the watch and the gap, then the watch was bounded, and the gap
//! does not have the key. If it did so after that, then it cut the key out of the map and showed
//! the new map before it published `m`; the read loaded the map after it had read a published
//! number not below `m`, so it saw that map or a later one. Gaps that are joined have the newest of
//! their numbers, and no gap gets keys in any other way. Other changes of a view do not matter:
//! rotations, flushes, compactions and deletes bring no key to life, and the live keys at a number
//! do not depend on the view.
//!
//! Why every leader does so (G2). The flag `armed` is one relaxed load on the put path. It is set
//! under the mutex of the writers' queue. If nobody leads at that moment, all given numbers are
//! published, and every later leader takes that mutex after the flag was set, so it sees the flag.
//! If somebody leads, then that leader may have read the flag already. In this case no watch is
//! given until a leader has invalidated keys: that leader saw the flag, so all later leaders see
//! it. Only a leader clears the flag. The state then has no gaps, and is as it was before the first
//! cursor armed it.
//!
//! What it costs. A put into a keyspace without gaps: the one load. With gaps: a short mutex and a
//! search of the map, and gaps that nobody uses are forgotten. A cursor: nothing, until it has
//! stepped over [`LOOK_EVERY`] hidden entries in a row. Readers take the mutex only to leave a gap.
//!
//! Threading: any thread. The mutex is held for no wait and no storage call; it is the last in the
//! order of locks but for the events.

pub(crate) mod hints;
pub(crate) mod map;
#[cfg(test)]
mod map_tests;
pub(crate) mod run;
pub(crate) mod shared;
pub(crate) mod state;
#[cfg(test)]
mod state_tests;

use siltstone_storage::Runtime;

use shared::SharedGaps;

/// In a run of hidden entries, a cursor looks for a gap each time it has stepped over this many
/// more entries, or sooner if fewer make a gap.
pub(crate) const LOOK_EVERY: u64 = 4;

/// A cursor leaves a gap behind when it has stepped over this many hidden entries in a row.
pub(crate) const HIDDEN_MIN: u64 = 16;

/// The queue of writers, as far as gaps need it.
pub(crate) trait LeaderWatch: Send + Sync {
    /// Calls `f` while nobody can begin to lead. Its argument says whether anybody leads now.
    fn with_led(&self, f: &mut dyn FnMut(bool));
}

/// The gaps of a keyspace, and hints where more may be found.
pub(crate) struct Gaps {
    shared: SharedGaps,
    hints: hints::Hints,
}

impl Gaps {
    pub(crate) fn new(runtime: &Runtime) -> Gaps {
        Gaps {
            shared: SharedGaps::new(runtime),
            hints: hints::Hints::new(runtime),
        }
    }

    /// The hints of recent deletes.
    pub(crate) fn hints(&self) -> &hints::Hints {
        &self.hints
    }
}

impl std::ops::Deref for Gaps {
    type Target = SharedGaps;
    fn deref(&self) -> &SharedGaps {
        &self.shared
    }
}
