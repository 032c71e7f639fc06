//! The edits of creates, drops and ingests. Each edit follows its record in the log, and is pending
//! while the manifest cannot grow.
//!
//! Invariants: edits are committed in the order of their records, because one change is made at a
//! time. The log is held from before the record on until the edit is durable. If the manifest
//! refuses an edit whose record is in the log, the store is poisoned, because log, memory and
//! manifest would disagree from then on.
//!
//! Threading: the manifest role guards the pending edits.

use std::sync::Arc;

use crate::catalog::edits::{may_wait, settle};
use crate::catalog::{Catalog, DROPPED_NAMES_MAX, ManifestRole};
use crate::formats::log::Position;
use crate::formats::version::Edit;
use crate::tree::view::KeyspaceCore;
use crate::types::error::Result;
use crate::types::event::Event;
use crate::types::limits::KeyspaceId;

/// A change of keyspaces whose record is in the log, and whose edit is not durable.
pub(crate) struct Announced {
    /// Where the record ends.
    pub(crate) end: Position,
    /// The hold of the log from before the record on.
    pub(crate) hold: u64,
}

/// An edit of a create, drop or ingest that waits for room.
pub(crate) struct PendingEdit {
    pub(crate) edit: Edit,
    /// The keyspaces for which it was made. Some may have been dropped since.
    pub(crate) keyspaces: Vec<Arc<KeyspaceCore>>,
    /// Its hold of the log.
    pub(crate) hold: u64,
}

impl Catalog {
    /// Syncs the log through the record, commits the edit, and releases the log. If the manifest
    /// cannot grow, the edit becomes pending. The call succeeds even then, because the record is in
    /// the log, which is held until the edit is committed.
    pub(crate) fn complete(
        &self,
        announced: Announced,
        edit: Edit,
        keyspaces: Vec<Arc<KeyspaceCore>>,
    ) -> Result<()> {
        let Announced { end, hold } = announced;
        let result = (|| {
            self.wal.sync_log_for_background(end)?;
            let mut role = self.role();
            let mut edit = edit;
            // Pending edits for a keyspace that is dropped now are not needed any more. If the
            // create of the keyspace is among them, the manifest does not have the keyspace, and no
            // edit has to drop it.
            edit.drop
                .retain(|id| !self.remove_from_pending(&mut role, *id));
            let committed = if edit == Edit::default() {
                self.env.maintenance().notify();
                Ok(())
            } else {
                self.commit_edit(&mut role, edit.clone())
            };
            match committed {
                Ok(()) => {
                    keyspaces.iter().for_each(|k| settle(&self.tree, &role, k));
                    self.release_log(hold);
                    Ok(())
                }
                Err(error) if may_wait(&error) => {
                    role.pending.push(PendingEdit {
                        edit,
                        keyspaces,
                        hold,
                    });
                    self.env.maintenance().notify();
                    Ok(())
                }
                Err(error) => Err(error),
            }
        })();
        result.inspect_err(|error| {
            // The record is in the log and the change is visible, but the manifest cannot get it.
            self.env.health().poison(error);
        })
    }

    /// Drops a keyspace without a record in the log. The caller leads the writers, so nothing is
    /// written to the keyspace meanwhile.
    pub(crate) fn drop_by_edit(&self, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
        let mut role = self.role();
        if role.manifest.state().keyspace(keyspace.id).is_none() {
            // Its create is pending. A drop would give no space back, and the manifest cannot drop
            // a keyspace that it does not have.
            self.commit_pending(&mut role).map_err(|error| {
                error.context(
                    "the keyspace is newer than what the manifest had room for, so its drop needs \
                     room too",
                )
            })?;
        }
        let edit = Edit {
            drop: vec![keyspace.id],
            ..Edit::default()
        };
        self.commit_edit(&mut role, edit)?;
        self.leave_map(keyspace);
        // Pending edits for this keyspace would be refused later.
        self.remove_from_pending(&mut role, keyspace.id);
        settle(&self.tree, &role, keyspace);
        Ok(())
    }

    /// Removes a keyspace that is being dropped from the map, so that no later call finds it.
    pub(crate) fn leave_map(&self, keyspace: &KeyspaceCore) {
        self.env.events().emit(|| Event::KeyspaceDropped {
            name: keyspace.name.clone(),
            id: keyspace.id,
        });
        keyspace.set_dropped();
        self.change_keyspaces(|map| {
            map.by_name.remove(&keyspace.name);
            map.by_id.remove(&keyspace.id);
            map.dropped.insert(keyspace.id, keyspace.name.clone());
            if map.dropped.len() > DROPPED_NAMES_MAX {
                let oldest = map.dropped.first().map_or(keyspace.id, |(id, _)| *id);
                map.dropped.remove(&oldest);
            }
        });
    }

    /// Removes a dropped keyspace from the pending edits. Their changes to other keyspaces stay,
    /// and so does their hold of the log, because an ingest was acknowledged for all of its
    /// keyspaces. Returns whether the keyspace's create was among the edits. The next keyspace id
    /// of that create is kept. Until an edit contains it, the log is held from the create's record
    /// on. Once an edit contains it, a replay skips the records that name the keyspace.
    fn remove_from_pending(&self, role: &mut ManifestRole, id: KeyspaceId) -> bool {
        let mut created_here = false;
        for mut pending in std::mem::take(&mut role.pending) {
            let edit = &mut pending.edit;
            edit.keyspaces.retain(|change| change.id != id);
            edit.create.retain(|create| {
                created_here |= create.id == id;
                create.id != id
            });
            let is_empty =
                edit.keyspaces.is_empty() && edit.create.is_empty() && edit.drop.is_empty();
            let next_id = edit.next_keyspace_id.filter(|_| is_empty);
            match (next_id, role.pending.last_mut()) {
                // The preceding edit can carry the id too, and it holds the log from an older
                // position on.
                (Some(next_id), Some(before)) => {
                    let said = &mut before.edit.next_keyspace_id;
                    *said = (*said).max(Some(next_id));
                    self.release_log(pending.hold);
                }
                (Some(_), None) => role.pending.push(pending),
                (None, _) if is_empty => self.release_log(pending.hold),
                (None, _) => role.pending.push(pending),
            }
        }
        created_here
    }
}
