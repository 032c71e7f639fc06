//! A leader seals the active memtable of a keyspace and makes a new one, between two groups.
//!
//! Invariants: only the leader replaces an active memtable, so no writer is in the old one when it
//! is sealed. The new one begins at the number after the last one of the old.
//!
//! Threading: the leader.

use std::sync::Arc;

use crate::commit::Commit;
use crate::commit::detector::Happened;
use crate::commit::write::{Lead, LeaderState};
use crate::tree::settings::{Settings, first_memtable, next_memtable};
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::error::Result;
use crate::types::pressure::StallCause;

impl LeaderState {
    /// Seals the active memtable and makes a new one with an arena of at least `min_bytes`, which
    /// it returns.
    pub(super) fn rotate(
        &mut self,
        commit: &Commit,
        keyspace: &KeyspaceCore,
        min_bytes: usize,
    ) -> Result<Arc<MemSource>> {
        self.latest = None;
        let last = keyspace.view().active().clone();
        let settings = keyspace.settings();
        let arenas = keyspace.arenas();
        let start = (!arenas.has_kept()).then(|| commit.env().now());
        let mem = next_memtable(&settings, &arenas, &last.mem, min_bytes)?;
        if let Some(start) = start {
            commit.stalls().count_turn(StallCause::Arena, start);
        }
        drop(settings);
        if !last.mem.is_empty() {
            commit.stalls().sealed(keyspace.id, last.mem.used_bytes());
        }
        let before = self.next_seq - 1;
        let fresh = MemSource::new(self.next_source_id, mem, before);
        self.next_source_id += 1;
        keyspace.replace_view(|view| {
            let mut unsettled = view.unsettled();
            if view.active().mem.is_empty() {
                // The old one never had an entry, so the new one takes its slot, from the same
                // number on.
                unsettled.remove(0);
                let lo = view.active().lo;
                let widened = MemSource::new(fresh.id, fresh.mem.clone(), lo);
                unsettled.push(Source::Memtable(widened));
            } else {
                view.active().seal(before);
                unsettled.push(Source::Memtable(fresh.clone()));
            }
            let version = view.version.clone();
            KeyspaceView::build(unsettled, version, commit.tree().tables(), Some(view))
        });
        if !last.mem.is_empty() {
            commit.observe(keyspace, Happened::Sealed(last.mem.used_bytes()));
        }
        commit.env().work().notify();
        commit.env().supplies().notify();
        Ok(keyspace.view().active().clone())
    }
}

impl Lead<'_> {
    /// Seals the keyspace's active memtable, unless it is empty. Returns whether it did.
    pub(crate) fn rotate(&mut self, commit: &Commit, keyspace: &KeyspaceCore) -> Result<bool> {
        if keyspace.view().active().mem.is_empty() {
            return Ok(false);
        }
        LeaderState::rotate(self, commit, keyspace, 0)?;
        Ok(true)
    }

    /// Seals the active memtables of these keyspaces. Returns how many of them were not empty.
    pub(crate) fn seal<'k>(
        &mut self,
        commit: &Commit,
        keyspaces: impl IntoIterator<Item = &'k KeyspaceCore>,
    ) -> Result<usize> {
        let mut count = 0;
        for keyspace in keyspaces {
            count += usize::from(self.rotate(commit, keyspace)?);
        }
        Ok(count)
    }

    /// A new active memtable, for a new keyspace or above an ingest. Its memory is allocated as it
    /// is written.
    pub(crate) fn fresh_source(&mut self, settings: &Settings, lo: u64) -> Result<Arc<MemSource>> {
        self.latest = None;
        let mem = first_memtable(settings)?;
        self.next_source_id += 1;
        Ok(MemSource::new(self.next_source_id - 1, mem, lo))
    }
}
