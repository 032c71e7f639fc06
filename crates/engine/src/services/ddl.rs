//! Create and drop of keyspaces.
//!
//! Each is announced by a record in the log ([`crate::commit::announce`]) and becomes visible with
//! that record. Then its manifest edit is committed outside of the write queue
//! ([`crate::catalog::pending`]), like that of an ingest ([`crate::services::ingest`]). RFC 1,
//! section 7, has the reasons.
//!
//! Invariants: one change is made at a time, so edits come in the order of their numbers. Ids are
//! never reused. The edit of a create precedes the edits that build on it, because
//! [`Catalog::commit_edit`] puts pending edits first.
//!
//! Threading: any thread, which waits for its turn like a writer, and then for a sync of the log.

use std::sync::Arc;

use crate::catalog::pending::Announced;
use crate::commit::Commit;
use crate::commit::announce::{Announcement, PreparedChange};
use crate::commit::write::Lead;
use crate::formats::log::RecordKind;
use crate::formats::log::bodies::encode_create;
use crate::formats::version::{CreateKeyspace, Edit, KeyspaceVersion, MAX_KEYSPACE_NAME_BYTES};
use crate::jobs::Jobs;
use crate::jobs::schedule::cancel_keyspace;
use crate::tree::settings::Settings;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::error::{Error, Result};
use crate::types::event::Event;
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

/// Creates a keyspace with options of its own: those that the store was opened with for this name,
/// overridden by `options`.
pub(crate) fn create(
    commit: &Commit,
    name: &str,
    options: &KeyspaceOptions,
) -> Result<Arc<KeyspaceCore>> {
    check_name(name)?;
    let (env, catalog, tree) = (commit.env(), commit.catalog(), commit.tree());
    let _changes = catalog.changes();
    let live = env.live();
    let mut own = live.keyspaces.get(name).cloned().unwrap_or_default();
    own.merge(options);
    own.validate()?;
    let mut stored = StoredOptions::new();
    own.store_into(&mut stored);
    let settings = Settings::new(own, &live, tree.arenas());
    // This is checked under the lock: if the edit of an earlier create is in doubt, the store is
    // poisoned, and the manifest's state does not know the id that was given away.
    env.health().check()?;
    if catalog.keyspaces().by_name.contains_key(name) {
        return Err(
            Error::invalid_argument(format!("there is a keyspace `{name}` already"))
                .advice("open it, or use another name"),
        );
    }
    // The manifest's state may not have the latest id: an id is given away by the record of its
    // create, before an edit says so.
    let id = catalog.next_keyspace_id();
    let Some(next_id) = id.checked_add(1) else {
        return Err(
            Error::unsupported("the store has used its last keyspace id")
                .advice("copy the data to a new store"),
        );
    };
    let record = Announcement {
        kind: RecordKind::KeyspaceCreate,
        count: 1,
        body: &encode_create(id, name, &stored),
    };
    let prepare = |lead: &mut Lead<'_>, number| {
        let source = lead.fresh_source(&settings, number)?;
        Ok(PreparedChange::new((source, number)))
    };
    let show = |(source, number)| {
        catalog.raise_next_keyspace_id(next_id);
        let version = Arc::new(KeyspaceVersion::new(id));
        let sources = vec![Source::Memtable(source)];
        let view = KeyspaceView::build(sources, version, tree.tables(), None);
        let keyspace = KeyspaceCore::new(env.runtime(), id, name, view, settings.clone());
        catalog.change_keyspaces(|map| {
            map.by_name.insert(name.to_string(), id);
            map.by_id.insert(id, keyspace.clone());
        });
        (keyspace, number)
    };
    let ((keyspace, number), announced) = commit
        .announce(record, || env.health().check(), prepare, show)
        .map_err(|failed| failed.error)?;
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
    env.events().emit(|| Event::KeyspaceCreated {
        name: name.to_string(),
        id,
    });
    catalog.complete(announced, edit, vec![keyspace.clone()])?;
    Ok(keyspace)
}

/// Drops a keyspace. A full disk does not prevent a drop, because a drop makes room.
pub(crate) fn drop(jobs: &Jobs, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
    let (env, catalog, commit) = (jobs.env(), jobs.catalog(), jobs.commit());
    let _changes = catalog.changes();
    env.health().check_manifest()?;
    keyspace.check()?;
    let dropped = match catalog.waits_for_room() {
        // Replayed data waits for room, and the next open replays the inherited log and not the one
        // that is written now. So only the manifest can take the drop, as if there were no room.
        true => drop_without_record(commit, keyspace),
        false => match announce_drop(commit, keyspace) {
            Ok(announced) => Ok(Some(announced)),
            // There is no room for the record, but the reserved bytes of the manifest have room for
            // the edit.
            Err(error) if error.is_no_space() => drop_without_record(commit, keyspace),
            Err(error) => Err(error),
        },
    };
    let announced = dropped?;
    cancel_keyspace(jobs, keyspace.id);
    commit.forget(keyspace);
    if let Some(announced) = announced {
        let edit = Edit {
            drop: vec![keyspace.id],
            ..Edit::default()
        };
        catalog.complete(announced, edit, vec![keyspace.clone()])?;
    }
    env.maintenance().notify();
    Ok(())
}

/// Announces a drop in the log. Until the drop is durable, the keyspace may come back after a loss
/// of power, with everything that was synced. So this holds the log from the keyspace's oldest
/// unflushed record on: [`Catalog::log_start_without`] sees only keyspaces in the map, and this one
/// is about to leave it.
fn announce_drop(commit: &Commit, keyspace: &Arc<KeyspaceCore>) -> Result<Announced> {
    let record = Announcement {
        kind: RecordKind::KeyspaceDrop,
        count: 1,
        body: &keyspace.id.to_le_bytes(),
    };
    let prepare = |_: &mut Lead<'_>, _| {
        let view = keyspace.pin();
        let oldest = view.sources.iter().filter_map(|s| match s {
            Source::Memtable(m) => m.first_position(),
            Source::Run(_) => None,
        });
        Ok(PreparedChange {
            change: (),
            oldest: oldest.min(),
        })
    };
    let check = || commit.env().health().check_manifest();
    let show = |()| commit.catalog().leave_map(keyspace);
    let announced = commit.announce(record, check, prepare, show);
    let ((), announced) = announced.map_err(|failed| failed.error)?;
    Ok(announced)
}

/// Drops a keyspace without a record in the log, so nothing changes before the edit is durable. The
/// log is synced first: what is durable is then still a prefix of what was written, and a failed
/// sync leaves the keyspace unchanged.
fn drop_without_record(commit: &Commit, keyspace: &Arc<KeyspaceCore>) -> Result<Option<Announced>> {
    let lead = commit.lead();
    let dropped = (|| {
        commit.env().health().check_manifest()?;
        commit.wal().sync_log_before_change(commit.wal().end())?;
        commit.catalog().drop_by_edit(keyspace)
    })();
    commit.finish(lead);
    dropped.map(|()| None)
}
