//! Gaps that are found ahead of readers: the maintenance task walks over what was deleted.
//!
//! Each time that [`EVERY_TIMES`] times as many keys were deleted as a gap needs hidden entries,
//! the leader adds the key of the last delete as a hint. The maintenance task places a cursor there
//! and lets it step over the hidden entries around it, in both directions, so that it leaves a gap
//! behind as any cursor does. Where deletes are scattered, the cursor meets a live entry at once.
//! Where they follow each other, it soon comes to the gap of the last hint, so it steps over every
//! tombstone about once. So the first reader after many deletes steps over little more than what
//! was deleted since the last hint. Gaps do not outlive a close: the first reader after an open
//! steps over what no compaction has dropped yet, and leaves the gap behind.
//!
//! Threading: the leader adds hints and the maintenance task takes them, under a mutex that is held
//! for no wait.

use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use super::map::after;
use super::state::Way;
use crate::services::core::Core;
use crate::tree::Tree;
use crate::tree::atomics::{AtomicU64, Ordering};
use crate::tree::iter::{Cursor, IterOptions};
use crate::tree::view::KeyspaceCore;
use crate::types::error::Result;

/// The number of deletes between two hints, for each hidden entry that a gap needs.
const EVERY_TIMES: u64 = 128;

/// The most hints that wait. Further ones are dropped.
const HINTS_MAX: usize = 16;

/// The most hidden entries that one round of maintenance steps over.
const STEPS_MAX: u64 = 1 << 16;

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

    fn add(&self, key: &[u8]) -> bool {
        let mut keys = self.keys.lock();
        let has_room = keys.len() < HINTS_MAX;
        if has_room {
            keys.push(key.to_vec());
        }
        has_room
    }

    fn take(&self) -> Option<Vec<u8>> {
        self.keys.lock().pop()
    }
}

impl super::Gaps {
    /// Counts `count` deletes, which the leader has published. `last` returns the key of the last
    /// one. True if the maintenance task has a new hint.
    #[inline]
    pub(crate) fn deleted<'k>(
        &self,
        tree: &Tree,
        count: u64,
        last: impl FnOnce() -> Option<&'k [u8]>,
    ) -> bool {
        let before = self.hints.deletes.load(Ordering::Relaxed);
        let now = before + count;
        self.hints.deletes.store(now, Ordering::Relaxed);
        let every = EVERY_TIMES * tree.gap_min();
        before / every != now / every && last().is_some_and(|key| self.hints.add(key))
    }
}

/// A part of a round of maintenance: follows hints until there are none, or until it has done
/// enough for one round and another one is due. An error is dropped, because the next reader meets
/// it too.
pub(crate) fn look(core: &Arc<Core>) {
    let keyspaces = core.catalog.keyspaces.load_full();
    for keyspace in keyspaces.by_id.values() {
        while let Some(hint) = keyspace.gaps.hints.take() {
            if let Ok(Some(rest)) = walk(core, keyspace, &hint) {
                if keyspace.gaps.hints.add(&rest) {
                    core.env.maintenance.notify();
                }
                return;
            }
        }
    }
}

/// Steps over the hidden entries on both sides of `from`. Returns where to go on if they are too
/// many.
fn walk(core: &Arc<Core>, keyspace: &Arc<KeyspaceCore>, from: &[u8]) -> Result<Option<Vec<u8>>> {
    let options = IterOptions {
        values: false,
        fill_cache: false,
        ..IterOptions::default()
    };
    let mut cursor = Cursor::unlisted(core, keyspace, None, options)?;
    for way in [Way::Forward, Way::Backward] {
        cursor.set_hidden_limit(STEPS_MAX);
        match way {
            Way::Forward => cursor.seek(from)?,
            Way::Backward => cursor.seek_for_prev(&after(from))?,
        }
        if let Some(far) = cursor.gave_up() {
            return Ok(Some(far.to_vec()));
        }
    }
    Ok(None)
}
