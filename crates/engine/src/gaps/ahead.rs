//! Gaps for readers that have not come yet: the maintenance task walks over what was deleted.
//!
//! What it is: after every [`EVERY_TIMES`] times as many deletes as a gap needs hidden entries,
//! the leader leaves the key of the last one behind as a hint. The maintenance task places a
//! cursor there and lets it run over the hidden entries around it, both ways, so that it leaves a
//! gap behind as any cursor does. Where deletes are scattered, it meets a live entry at once.
//! Where they follow each other, it comes to the gap of the last hint soon, so every tombstone is
//! walked over about once. So the first reader after many deletes steps over little more than were
//! made since the last hint. Nothing is remembered over an open: the first reader after it steps
//! over what no compaction has dropped yet, and leaves the gap behind.
//!
//! Threading: the leader adds hints, the maintenance task takes them; a mutex that is held for no
//! wait.

use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use super::map::after;
use super::state::Way;
use crate::atomics::{AtomicU64, Ordering};
use crate::core::Core;
use crate::error::Result;
use crate::iter::{Cursor, IterOptions};
use crate::view::KeyspaceCore;

/// Deletes from one hint to the next, for each hidden entry that a gap needs.
const EVERY_TIMES: u64 = 128;

/// Hints that wait; a further one is left out.
const HINTS_MAX: usize = 16;

/// Hidden entries that one round of maintenance walks over.
const STEPS_MAX: u64 = 1 << 16;

/// Where deletes were made. See the module.
pub(crate) struct Hints {
    /// Deletes in memtables since the store was opened; only the leader changes it.
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
    /// The leader made `count` deletes; `last` gives the key of the last one. True if the
    /// maintenance task is to look.
    #[inline]
    pub(crate) fn deleted<'k>(
        &self,
        core: &Core,
        count: u64,
        last: impl FnOnce() -> Option<&'k [u8]>,
    ) -> bool {
        let before = self.hints.deletes.load(Ordering::Relaxed);
        let now = before + count;
        self.hints.deletes.store(now, Ordering::Relaxed);
        let every = EVERY_TIMES * core.gap_min();
        before / every != now / every && last().is_some_and(|key| self.hints.add(key))
    }
}

/// A part of a round of maintenance: takes up hints, until all are taken or it has done enough for
/// one round; then it asks for another one. An error is the business of the next reader.
pub(crate) fn look(core: &Arc<Core>) {
    let keyspaces = core.keyspaces.load_full();
    for keyspace in keyspaces.by_id.values() {
        while let Some(hint) = keyspace.gaps.hints.take() {
            if let Ok(Some(rest)) = walk(core, keyspace, &hint) {
                if keyspace.gaps.hints.add(&rest) {
                    core.wake_tidy();
                }
                return;
            }
        }
    }
}

/// Walks over the hidden entries on both sides of `from`; where to go on if they are too many.
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
