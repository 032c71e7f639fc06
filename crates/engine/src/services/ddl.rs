//! Create and drop of keyspaces: log records whose manifest edits follow outside the write queue,
//! as those of ingests do ([`crate::services::ingest`]).
//!
//! What it is (RFC 1, section 7): each takes the leader's turn, one number and one record; becomes visible with it; then syncs the log
//! through the record and commits an edit. The log from the record on is pinned until that edit is durable; an edit for which the
//! manifest could not grow waits in the manifest role, before all later edits.
//!
//! Invariants: one at a time (`ddl` lock), so edits come in the order of their numbers; ids are never reused; a keyspace's edit precedes
//! edits that build on it (flushes wait in the same queue: `commit_edit` puts pending edits first). What the manifest refuses after its
//! record is in the log poisons the store: log, memory and manifest would say different things from then on.
//!
//! Threading: any thread; waits for its turn like a writer, and for the log's sync.

use std::sync::Arc;

use siltstone_storage::planted::{self, Bug};

use crate::catalog::edits::{may_wait, settle};
use crate::catalog::{Catalog, DROPPED_NAMES_MAX, ManifestRole, PendingEdit};
use crate::commit::Commit;
use crate::formats::log::RecordKind;
use crate::formats::log::bodies::encode_create;
use crate::formats::version::{CreateKeyspace, Edit, KeyspaceVersion, MAX_KEYSPACE_NAME_BYTES};
use crate::jobs::Jobs;
use crate::tree::settings::Settings;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Event;
use crate::types::limits::KeyspaceId;
use crate::types::options::KeyspaceOptions;
use crate::types::options::stored::StoredOptions;

pub(crate) fn check_name(name: &str) -> Result<()> {
    if (1..=MAX_KEYSPACE_NAME_BYTES).contains(&name.len()) {
        return Ok(());
    }
    Err(
        Error::invalid_argument("the keyspace's name cannot be used")
            .expected(format!("1 to {MAX_KEYSPACE_NAME_BYTES} bytes"))
            .found(format!("{} bytes", name.len())),
    )
}

/// Creates a keyspace, with options of its own: those that the store was opened with for this name, and `options` above them.
pub(crate) fn create(
    commit: &Commit,
    name: &str,
    options: &KeyspaceOptions,
) -> Result<Arc<KeyspaceCore>> {
    check_name(name)?;
    let _ddl = commit.catalog().changes();
    let live = commit.env().live();
    let mut own = live.keyspaces.get(name).cloned().unwrap_or_default();
    own.merge(options);
    own.validate()?;
    let mut stored = StoredOptions::new();
    own.store_into(&mut stored);
    let settings = Settings::new(own, &live, commit.tree().arenas());
    // Under the lock: one whose edit is in doubt has given an id away that the state does not know.
    commit.env().health().check()?;
    if commit.catalog().keyspaces().by_name.contains_key(name) {
        return Err(
            Error::invalid_argument(format!("there is a keyspace `{name}` already"))
                .advice("open it, or use another name"),
        );
    }
    // Not from the manifest's state: an id is given away by its record, long before an edit says so.
    let id = if planted::is(Bug::ReuseKeyspaceIds) {
        (1..)
            .find(|id| !commit.catalog().keyspaces().by_id.contains_key(id))
            .unwrap_or(1)
    } else {
        commit.catalog().next_keyspace_id()
    };
    let Some(next_id) = id.checked_add(1) else {
        return Err(
            Error::unsupported("the store has given its last keyspace id")
                .advice("copy the data to a new store"),
        );
    };
    let mut lead = commit.lead();
    let number = lead.next_seq;
    // Checked again: the previous leader may have poisoned the store, and its numbers must not be
    // published with this one.
    let prepared = commit
        .env()
        .health()
        .check()
        .and_then(|()| commit.catalog().reserve_numbers(number))
        .and_then(|()| lead.fresh_source(&settings, number));
    let source = match prepared {
        Ok(source) => source,
        Err(error) => {
            lead.finish();
            return Err(error);
        }
    };
    let pin = commit.catalog().pin_log(commit.wal().log().end());
    let appended = commit.wal().append(
        RecordKind::KeyspaceCreate,
        number,
        1,
        &[&encode_create(id, name, &stored)],
        commit.wal().sync_every_write(),
    );
    let end = match appended {
        Ok(end) => end,
        Err(error) => {
            lead.finish();
            commit.catalog().unpin_log(pin);
            return Err(error);
        }
    };
    commit.catalog().raise_next_keyspace_id(next_id);
    let version = Arc::new(KeyspaceVersion::new(id));
    let view = KeyspaceView::build(
        vec![Source::Memtable(source)],
        version,
        commit.tree().tables(),
        None,
    );
    let keyspace = KeyspaceCore::new(commit.env().runtime(), id, name, view, settings);
    commit.catalog().change_keyspaces(|map| {
        map.by_name.insert(name.to_string(), id);
        map.by_id.insert(id, keyspace.clone());
    });
    lead.next_seq = number + 1;
    commit.tree().snapshots().publish(number);
    lead.finish();
    let edit = Edit {
        create: vec![CreateKeyspace {
            id,
            name: name.to_string(),
            sequence: number,
            options: stored,
        }],
        next_keyspace_id: Some(next_id),
        ..Edit::default()
    };
    commit.env().events().tell(|| Event::KeyspaceCreated {
        name: name.to_string(),
        id,
    });
    complete(commit.catalog(), end, edit, pin, vec![keyspace.clone()])?;
    Ok(keyspace)
}

/// Drops a keyspace.
pub(crate) fn drop(jobs: &Jobs, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
    // A full disk does not keep anybody from dropping: this is how room is made.
    let _ddl = jobs.catalog().changes();
    jobs.env().health().check_manifest()?;
    keyspace.check()?;
    let mut lead = jobs.commit().lead();
    // Checked again, as in `create`.
    if let Err(error) = jobs.env().health().check_manifest() {
        lead.finish();
        return Err(error);
    }
    let number = lead.next_seq;
    // Until the drop is durable the keyspace may come back after power loss, with everything that was synced: the log is kept from its
    // oldest unflushed record on, because its sources are about to leave the map that `log_start_without` looks at.
    let view = keyspace.pin();
    let oldest = view.sources.iter().filter_map(|s| match s {
        _ if planted::is(Bug::DropDoesNotPin) => None,
        Source::Memtable(m) => m.first_position(),
        Source::Run(_) => None,
    });
    let end = jobs.wal().log().end();
    let pin = jobs
        .catalog()
        .pin_log(oldest.min().map_or(end, |oldest| oldest.min(end)));
    let body = keyspace.id.to_le_bytes();
    let appended = if jobs.catalog().waits_for_room() {
        // The log that is replayed is not the one being written: the manifest alone takes the drop, as without room.
        Err(Error::new(
            ErrorKind::NoSpace,
            "the store was opened on a full disk",
        ))
    } else {
        jobs.catalog().reserve_numbers(number).and_then(|()| {
            jobs.wal().append(
                RecordKind::KeyspaceDrop,
                number,
                1,
                &[&body],
                jobs.wal().sync_every_write(),
            )
        })
    };
    let (end, used) = match appended {
        Ok(end) => (end, 1),
        // No room for the record, and dropping is how room is made: the manifest's reserved bytes take it alone. The log is synced before
        // anything changes, so what is durable stays a prefix, and a sync that fails leaves the keyspace as it was.
        Err(error) if error.is_no_space() && !planted::is(Bug::DropNeedsRoom) => {
            let end = jobs.wal().log().end();
            if let Err(error) = jobs.wal().sync_log_through(end) {
                lead.finish();
                jobs.catalog().unpin_log(pin);
                return Err(error);
            }
            (end, 0)
        }
        Err(error) => {
            lead.finish();
            jobs.catalog().unpin_log(pin);
            return Err(error);
        }
    };
    if used == 0 {
        // The edit is all that says so: nothing changes before it is durable.
        let done = drop_by_edit(jobs.catalog(), keyspace);
        lead.finish();
        jobs.catalog().unpin_log(pin);
        done?;
        crate::jobs::schedule::cancel_keyspace(jobs, keyspace.id);
        jobs.commit().stalls().forget(keyspace.id);
        jobs.env().maintenance().notify();
        return Ok(());
    }
    leave_map(jobs.catalog(), keyspace);
    lead.next_seq = number + used;
    jobs.tree().snapshots().publish(number + used - 1);
    lead.finish();
    crate::jobs::schedule::cancel_keyspace(jobs, keyspace.id);
    jobs.commit().stalls().forget(keyspace.id);
    let edit = Edit {
        drop: vec![keyspace.id],
        ..Edit::default()
    };
    complete(jobs.catalog(), end, edit, pin, vec![keyspace.clone()])?;
    jobs.env().maintenance().notify();
    Ok(())
}

/// Drops a keyspace without a record. The caller has the lead, so nothing is written to it meanwhile.
pub(crate) fn drop_by_edit(catalog: &Catalog, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
    let mut role = catalog.role();
    if role.manifest.state().keyspace(keyspace.id).is_none() {
        // Its create waits for room: there is nothing in the manifest that a drop would give back, and what the manifest does not know it
        // cannot forget.
        catalog.commit_pending(&mut role).map_err(|error| {
            error.context("the keyspace is newer than what the manifest had room for, so its drop needs room too")
        })?;
    }
    let edit = Edit {
        drop: vec![keyspace.id],
        ..Edit::default()
    };
    catalog.commit_edit(&mut role, edit)?;
    leave_map(catalog, keyspace);
    // What waits for room on behalf of a keyspace that is gone would be refused.
    take_out(catalog, &mut role, keyspace.id);
    settle(catalog.tree(), &role, keyspace);
    Ok(())
}

/// Takes a dropped keyspace out of the edits that wait for room. What they say of other keyspaces stays, and so does the log that it is in: an
/// ingest is acknowledged for all its keyspaces. Gives whether the keyspace's create was among them. Of that one remains that its id was
/// given: until an edit says so the log is kept from its record on, and from that edit on a replay skips whatever names it.
fn take_out(catalog: &Catalog, role: &mut ManifestRole, id: KeyspaceId) -> bool {
    let mut created_here = false;
    for mut pending in std::mem::take(&mut role.pending) {
        let edit = &mut pending.edit;
        edit.keyspaces.retain(|change| change.id != id);
        edit.create.retain(|create| {
            created_here |= create.id == id;
            create.id != id
        });
        let is_empty = edit.keyspaces.is_empty() && edit.create.is_empty() && edit.drop.is_empty();
        let next_id = edit.next_keyspace_id.filter(|_| is_empty);
        match (next_id, role.pending.last_mut()) {
            // The edit before it can say so as well; it pins the log from an older place.
            (Some(next_id), Some(before)) => {
                let said = &mut before.edit.next_keyspace_id;
                *said = (*said).max(Some(next_id));
                catalog.unpin_log(pending.pin);
            }
            (Some(_), None) => role.pending.push(pending),
            (None, _)
                if is_empty || planted::is(Bug::DropTakesIngestAlong) && pending.concerns(id) =>
            {
                catalog.unpin_log(pending.pin);
            }
            (None, _) => role.pending.push(pending),
        }
    }
    created_here
}

fn leave_map(catalog: &Catalog, keyspace: &KeyspaceCore) {
    catalog.env().events().tell(|| Event::KeyspaceDropped {
        name: keyspace.name.clone(),
        id: keyspace.id,
    });
    keyspace.set_dropped();
    catalog.change_keyspaces(|map| {
        map.by_name.remove(&keyspace.name);
        map.by_id.remove(&keyspace.id);
        map.dropped.insert(keyspace.id, keyspace.name.clone());
        if map.dropped.len() > DROPPED_NAMES_MAX {
            map.dropped.pop_first();
        }
    });
}

/// Syncs the log through the record, commits the edit, and lets the log go. If the manifest cannot grow the edit stays pending: the
/// record is in the log, so the call has succeeded, and the log stays pinned until an edit gets through.
pub(crate) fn complete(
    catalog: &Catalog,
    end: crate::formats::log::Position,
    edit: Edit,
    pin: u64,
    keyspaces: Vec<Arc<KeyspaceCore>>,
) -> Result<()> {
    let result = (|| {
        if !planted::is(Bug::EditBeforeLogSync) {
            catalog.wal().sync_log_through(end)?;
        }
        if planted::is(Bug::UnpinnedOnceSynced) {
            catalog.unpin_log(pin);
        }
        let mut role = catalog.role();
        let mut edit = edit;
        // What waits for room on behalf of a keyspace that is going is not worth waiting for; one whose create is among that is not in the
        // manifest, and has no edit of its own to follow.
        edit.drop.retain(|id| !take_out(catalog, &mut role, *id));
        let committed = if edit == Edit::default() {
            catalog.env().maintenance().notify();
            Ok(())
        } else {
            catalog.commit_edit(&mut role, edit.clone())
        };
        match committed {
            Ok(()) => {
                keyspaces
                    .iter()
                    .for_each(|k| settle(catalog.tree(), &role, k));
                catalog.unpin_log(pin);
                Ok(())
            }
            Err(error) if may_wait(&error) => {
                role.pending.push(PendingEdit {
                    edit,
                    keyspaces,
                    pin,
                });
                catalog.env().maintenance().notify();
                Ok(())
            }
            Err(error) => Err(error),
        }
    })();
    result.inspect_err(|error| {
        // The record is in the log and what it says is shown, but the manifest will never say so: they have parted.
        catalog.env().health().poison(error);
    })
}
