//! Edits of the manifest: how an edit is committed, after the pending ones, and how the ceiling of
//! sequence numbers is raised.
//!
//! Invariants: an edit is committed under the manifest role. Pending edits, which were acknowledged
//! already, are committed before it, unless there is no room for them and the edit frees space. If
//! a task panics while it writes an edit, the store is poisoned.
//!
//! Threading: the manifest role is a mutex that no read takes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::catalog::{Catalog, ManifestRole};
use crate::formats::version::{Edit, KeyspaceVersion, LogPosition};
use crate::tree::Tree;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::error::{Error, ErrorKind, Result};

/// How far the ceiling of sequence numbers is raised at once.
pub(crate) const CEILING_STEP: u64 = 1 << 28;

impl Catalog {
    /// Makes sure that numbers up to `last` may be given. This is usually one load, because the
    /// maintenance task raises the ceiling when half of a step is left.
    #[inline]
    pub(crate) fn reserve_numbers(&self, last: u64) -> Result<()> {
        let ceiling = self.ceiling();
        if last + CEILING_STEP / 2 > ceiling {
            self.env.maintenance().notify();
            if last > ceiling {
                return self.raise_ceiling(last);
            }
        }
        Ok(())
    }

    /// Raises the ceiling to at least a step above `beyond`.
    #[cold]
    pub(crate) fn raise_ceiling(&self, beyond: u64) -> Result<()> {
        let mut role = self.role();
        let wanted = beyond
            .saturating_add(CEILING_STEP)
            .min(crate::formats::log::format::MAX_SEQUENCE);
        if wanted <= self.ceiling() {
            return if beyond <= wanted {
                Ok(())
            } else {
                Err(numbers_exhausted())
            };
        }
        if beyond > wanted {
            return Err(numbers_exhausted());
        }
        let edit = Edit {
            sequence_ceiling: Some(wanted),
            ..Edit::default()
        };
        self.commit_edit(&mut role, edit)?;
        self.ceiling.store(wanted, Ordering::Release);
        Ok(())
    }

    /// Commits the pending edits and then this one: appends it to the manifest, makes it durable,
    /// and applies it to the state. The caller replaces the views of the keyspaces concerned while
    /// it still has the role.
    pub(crate) fn commit_edit(&self, role: &mut ManifestRole, edit: Edit) -> Result<()> {
        self.env.health().check_manifest()?;
        if let Err(error) = self.commit_pending(role) {
            // An edit that frees space may overtake the pending ones, because they do not change
            // its keyspaces any more.
            if !may_wait(&error) || !edit.gives_space_back() {
                return Err(error);
            }
        }
        self.commit_one(role, edit)
    }

    /// Commits the pending edits.
    pub(crate) fn commit_pending(&self, role: &mut ManifestRole) -> Result<()> {
        while let Some(first) = role.pending.first() {
            let edit = first.edit.clone();
            if let Err(error) = self.commit_one(role, edit) {
                if !may_wait(&error) {
                    // It was acknowledged, and every later edit would have to wait for it.
                    self.env.health().poison(&error);
                }
                return Err(error);
            }
            let done = role.pending.remove(0);
            for keyspace in &done.keyspaces {
                settle(&self.tree, role, keyspace);
            }
            self.release_log(done.hold);
        }
        Ok(())
    }

    fn commit_one(&self, role: &mut ManifestRole, mut edit: Edit) -> Result<()> {
        let state = role.manifest.state();
        let synced = self.wal.synced();
        // A position in the chain of segments of this open means nothing to a replay that begins
        // before that chain. While replayed data waits for room, the log is the chain that the open
        // found, and a synced position beyond its end would look like damage.
        let replay_from = edit.log_start.unwrap_or(state.log_start).segment;
        edit.log_synced = Some(LogPosition {
            segment: synced.segment.into(),
            offset: u64::from(synced.offset),
        })
        .filter(|p| *p > state.log_synced && replay_from >= self.wal.first_segment().into());
        if edit.closed && edit.log_synced.is_none() {
            // The edit of a close always has the log's end. One reason is that an edit must not be
            // as short as a seal.
            edit.log_synced = Some(state.log_synced);
        }
        edit.next_table_id = Some(self.next_table_id()).filter(|id| *id > state.next_table_id);
        self.check_whole(role)?;
        crate::catalog::reserve::before_edit(&self.env, role, &edit);
        role.writing = true;
        let committed = role.manifest.commit(&edit);
        role.writing = false;
        match committed {
            Ok(_) => {
                // The edit is durable, but a new manifest that was to replace this one is in doubt,
                // so nothing more may be written.
                if let Some(error) = role.manifest.writer().failed() {
                    self.env.health().poison(error);
                }
                Ok(())
            }
            Err(error) => {
                // The writer knows whether bytes are in doubt. Otherwise nothing was written: there
                // was no room, the space could not be reserved for another reason, or the state
                // refused the edit.
                if role.manifest.writer().failed().is_some() {
                    self.env.health().poison(&error);
                } else if error.kind() == ErrorKind::NoSpace {
                    self.env.health().set_no_space(&error);
                }
                Err(error)
            }
        }
    }

    /// Poisons the store if a task has panicked while it wrote an edit, because the bytes that it
    /// wrote are not known.
    fn check_whole(&self, role: &ManifestRole) -> Result<()> {
        if !role.writing {
            return Ok(());
        }
        let error = Error::new(
            ErrorKind::Poisoned,
            "a task panicked while it wrote the manifest",
        )
        .advice("this is a bug: report it; reopen the store");
        self.env.health().poison(&error);
        Err(error)
    }

    /// Called after a panic. Poisons the store if the panic came while an edit was being written.
    pub(crate) fn check_manifest_is_whole(&self) {
        let _ = self.check_whole(&self.role());
    }

    /// The last edit of a close: where the log starts, where it ends, and that the store was closed
    /// there (RFC 1, section 15). The caller has refused all changes and ended all tasks, so
    /// nothing is appended to the log or the manifest any more, and has synced the log through its
    /// end.
    ///
    /// While replayed data waits for room, the log that a replay reads is the inherited one. The
    /// manifest knows its end since the open, and `commit_one` leaves it as it is.
    pub(crate) fn commit_close(&self) -> Result<()> {
        let mut role = self.role();
        let waits_for_room = self.waits_for_room();
        let edit = Edit {
            log_start: match waits_for_room {
                true => None,
                false => self.log_start_edit(role.manifest.state(), &[]),
            },
            closed: true,
            ..Edit::default()
        };
        self.commit_one(&mut role, edit)?;
        role.manifest.record_end().inspect_err(|error| {
            if role.manifest.writer().failed().is_some() {
                self.env.health().poison(error);
            }
        })
    }
}

/// Whether an edit that failed with this error may be committed later: the manifest could not grow,
/// so nothing was written, and the state does not refuse the edit.
pub(crate) fn may_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io)
}

#[cold]
fn numbers_exhausted() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the store has given its last sequence number",
    )
    .expected("numbers below 2^56")
    .advice("copy the data to a new store")
}

/// Makes the result of a committed edit visible in a keyspace. The view of a dropped keyspace keeps
/// its tables until now, because the manifest names them until the edit is durable.
pub(crate) fn settle(tree: &Tree, role: &ManifestRole, keyspace: &KeyspaceCore) {
    if keyspace.is_dropped() {
        keyspace.replace_view(|view| {
            let active = Source::Memtable(view.active().clone());
            KeyspaceView::build(
                vec![active],
                Arc::new(KeyspaceVersion::new(keyspace.id)),
                tree.tables(),
                None,
            )
        });
    } else {
        keyspace.set_created();
        refresh_view(tree, role, keyspace, &[]);
        tree.env().work().notify();
    }
}

/// Replaces the view by one of the keyspace's new version, without the memtables in `done` and
/// without the unsettled runs of ingests that the version has now. The caller has the manifest
/// role, so views change in the order of edits.
pub(crate) fn refresh_view(
    tree: &Tree,
    role: &ManifestRole,
    keyspace: &KeyspaceCore,
    done: &[u64],
) {
    let Some(state) = role.manifest.state().keyspace(keyspace.id) else {
        return;
    };
    let version = state.version.clone();
    keyspace.replace_view(|view| {
        let unsettled = view
            .unsettled()
            .into_iter()
            .filter(|s| match s {
                Source::Memtable(m) => !done.contains(&m.id),
                Source::Run(r) => !version.covered().includes(r.seqs),
            })
            .collect();
        KeyspaceView::build(unsettled, version, tree.tables(), Some(view))
    });
    tree.env().pressure().notify();
}
