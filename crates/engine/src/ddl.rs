//! Create and drop of keyspaces, and ingest of tables: log records whose manifest edits follow outside the write queue.
//!
//! What it is (RFC 1, section 7): each takes the leader's turn, one number and one record; becomes visible with it; then syncs the log
//! through the record and commits an edit. The log from the record on is pinned until that edit is durable; an edit that fails for
//! want of room waits in the manifest role, before all later edits.
//!
//! Invariants: one at a time (`ddl` lock), so edits come in the order of their numbers; ids are never reused; a keyspace's edit precedes
//! edits that build on it (flushes wait in the same queue: `commit_edit` puts pending edits first).
//!
//! Threading: any thread; waits for its turn like a writer, and for the log's sync.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::core::{Core, KeyspaceMap, ManifestRole, PendingEdit};
use crate::error::{Error, ErrorKind, Result};
use crate::log::RecordKind;
use crate::options::KeyspaceOptions;
use crate::planted::{self, Bug};
use crate::settings::Settings;
use crate::version::{
    AddTable, CreateKeyspace, Edit, KeyspaceEdit, KeyspaceId, KeyspaceVersion, Level,
    MAX_KEYSPACE_NAME_BYTES, Run, RunSlot, SeqRange, StoredOptions, TableMeta,
};
use crate::view::{KeyspaceCore, KeyspaceView, RunView, Source};

/// Ends a create record's name where options follow: a byte that is never part of UTF-8.
const NAME_END: u8 = 0xff;

/// Body of a create record: the options are in it, because the edit may be lost and the record is what was acknowledged.
pub(crate) fn encode_create(id: KeyspaceId, name: &str, options: &StoredOptions) -> Vec<u8> {
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(name.as_bytes());
    let options = options.encode();
    if !options.is_empty() {
        body.push(NAME_END);
        body.extend_from_slice(&options);
    }
    body
}

/// Inverse of [`encode_create`].
pub(crate) fn decode_create(body: &[u8]) -> Result<(KeyspaceId, &str, StoredOptions)> {
    let bad = || {
        Error::new(
            ErrorKind::Corruption,
            "a create record of the log is malformed",
        )
    };
    let (id, rest) = body.split_first_chunk::<4>().ok_or_else(bad)?;
    let mut parts = rest.splitn(2, |byte| *byte == NAME_END);
    let name = std::str::from_utf8(parts.next().unwrap_or_default()).map_err(|_| bad())?;
    if !(1..=MAX_KEYSPACE_NAME_BYTES).contains(&name.len()) {
        return Err(bad());
    }
    let options = StoredOptions::decode(parts.next().unwrap_or_default())?;
    Ok((u32::from_le_bytes(*id), name, options))
}

/// Inverse of a drop record's body.
pub(crate) fn decode_drop(body: &[u8]) -> Result<KeyspaceId> {
    let id = body.try_into().map_err(|_| {
        Error::new(
            ErrorKind::Corruption,
            "a drop record of the log is malformed",
        )
    })?;
    Ok(u32::from_le_bytes(id))
}

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
    core: &Core,
    name: &str,
    options: &KeyspaceOptions,
) -> Result<Arc<KeyspaceCore>> {
    check_name(name)?;
    let _ddl = core.ddl.lock();
    let live = core.live.load_full();
    let mut own = live.keyspaces.get(name).cloned().unwrap_or_default();
    own.merge(options);
    own.validate()?;
    let mut stored = StoredOptions::new();
    own.store_into(&mut stored);
    let settings = Settings::new(own, &live, &core.arenas);
    // Under the lock: one whose edit is in doubt has given an id away that the state does not know.
    core.health.check()?;
    if core.keyspaces.load().by_name.contains_key(name) {
        return Err(
            Error::invalid_argument(format!("there is a keyspace `{name}` already"))
                .advice("open it, or use another name"),
        );
    }
    let id = {
        let role = core.manifest.lock();
        let pending = role
            .pending
            .iter()
            .flat_map(|p| &p.edit.create)
            .map(|c| c.id + 1)
            .max()
            .unwrap_or(0);
        if planted::is(Bug::ReuseKeyspaceIds) {
            (1..)
                .find(|id| !core.keyspaces.load().by_id.contains_key(id))
                .unwrap_or(1)
        } else {
            role.manifest.state().next_keyspace_id.max(pending)
        }
    };
    let mut lead = core.queue.lead();
    let number = lead.next_seq;
    let prepared = core
        .reserve_numbers(number)
        .and_then(|()| lead.fresh_source(&settings, number));
    let source = match prepared {
        Ok(source) => source,
        Err(error) => {
            lead.finish();
            return Err(error);
        }
    };
    let pin = core.pin_log(core.log.end().segment);
    let appended = crate::write::append(
        core,
        RecordKind::KeyspaceCreate,
        number,
        1,
        &[&encode_create(id, name, &stored)],
        core.sync_every_write,
    );
    let end = match appended {
        Ok(end) => end,
        Err(error) => {
            lead.finish();
            core.unpin_log(pin);
            return Err(error);
        }
    };
    let version = Arc::new(KeyspaceVersion::new(id));
    let view = KeyspaceView::build(vec![Source::Memtable(source)], version, &core.tables, None);
    let keyspace = KeyspaceCore::new(&core.runtime, id, name, view, settings);
    change_map(core, |map| {
        map.by_name.insert(name.to_string(), id);
        map.by_id.insert(id, keyspace.clone());
    });
    lead.next_seq = number + 1;
    core.snapshots.publish(number);
    lead.finish();
    let edit = Edit {
        create: vec![CreateKeyspace {
            id,
            name: name.to_string(),
            sequence: number,
            options: stored,
        }],
        next_keyspace_id: Some(id + 1),
        ..Edit::default()
    };
    complete(core, end, edit, pin, &keyspace)?;
    Ok(keyspace)
}

/// Drops a keyspace.
pub(crate) fn drop(core: &Core, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
    // A full disk does not keep anybody from dropping: this is how room is made.
    let _ddl = core.ddl.lock();
    core.health.check_manifest()?;
    keyspace.check()?;
    let mut lead = core.queue.lead();
    let number = lead.next_seq;
    // Until the drop is durable the keyspace may come back after power loss, with everything that was synced: the log is kept from its
    // oldest unflushed record on, because its sources are about to leave the map that `log_start_without` looks at.
    let view = keyspace.pin();
    let oldest = view.sources.iter().filter_map(|s| match s {
        _ if planted::is(Bug::DropDoesNotPin) => None,
        Source::Memtable(m) => Some(m.first_segment()),
        Source::Run(_) => None,
    });
    let pin = core.pin_log(oldest.min().unwrap_or(u32::MAX).min(core.log.end().segment));
    let body = keyspace.id.to_le_bytes();
    let appended = if core.waits_for_room.load(Ordering::Acquire) {
        // The log that is replayed is not the one being written: the manifest alone takes the drop, as without room.
        Err(Error::new(
            ErrorKind::NoSpace,
            "the store was opened on a full disk",
        ))
    } else {
        core.reserve_numbers(number).and_then(|()| {
            crate::write::append(
                core,
                RecordKind::KeyspaceDrop,
                number,
                1,
                &[&body],
                core.sync_every_write,
            )
        })
    };
    let (end, used) = match appended {
        Ok(end) => (end, 1),
        // No room for the record, and dropping is how room is made: the manifest's reserved bytes take it alone. The log is synced before
        // anything changes, so what is durable stays a prefix, and a sync that fails leaves the keyspace as it was.
        Err(error) if error.is_no_space() && !planted::is(Bug::DropNeedsRoom) => {
            let end = core.log.end();
            if let Err(error) = core.sync_log_through(end) {
                lead.finish();
                core.unpin_log(pin);
                return Err(error);
            }
            (end, 0)
        }
        Err(error) => {
            lead.finish();
            core.unpin_log(pin);
            return Err(error);
        }
    };
    if used == 0 {
        // The edit is all that says so: nothing changes before it is durable.
        let done = drop_by_edit(core, keyspace);
        lead.finish();
        core.unpin_log(pin);
        done?;
        crate::compaction::schedule::cancel_keyspace(core, keyspace.id);
        core.stalls.relieve();
        core.wake_tidy();
        return Ok(());
    }
    leave_map(core, keyspace);
    lead.next_seq = number + used;
    core.snapshots.publish(number + used - 1);
    lead.finish();
    crate::compaction::schedule::cancel_keyspace(core, keyspace.id);
    core.stalls.relieve();
    let edit = Edit {
        drop: vec![keyspace.id],
        ..Edit::default()
    };
    complete(core, end, edit, pin, keyspace)?;
    core.wake_tidy();
    Ok(())
}

/// Drops a keyspace without a record. The caller has the lead, so nothing is written to it meanwhile.
fn drop_by_edit(core: &Core, keyspace: &Arc<KeyspaceCore>) -> Result<()> {
    let mut role = core.manifest.lock();
    let edit = Edit {
        drop: vec![keyspace.id],
        ..Edit::default()
    };
    core.commit_edit(&mut role, edit)?;
    leave_map(core, keyspace);
    // What waits for room on behalf of a keyspace that is gone would be refused.
    let (gone, left) = std::mem::take(&mut role.pending)
        .into_iter()
        .partition(|p| p.keyspace.id == keyspace.id);
    role.pending = left;
    let gone: Vec<PendingEdit> = gone;
    gone.iter().for_each(|p| core.unpin_log(p.pin));
    settle(core, &role, keyspace);
    Ok(())
}

fn leave_map(core: &Core, keyspace: &KeyspaceCore) {
    keyspace.set_dropped();
    change_map(core, |map| {
        map.by_name.remove(&keyspace.name);
        map.by_id.remove(&keyspace.id);
    });
}

fn change_map(core: &Core, f: impl FnOnce(&mut KeyspaceMap)) {
    let mut map = KeyspaceMap::clone(&core.keyspaces.load());
    f(&mut map);
    core.keyspaces.store(Arc::new(map));
}

/// Syncs the log through the record, commits the edit, and lets the log go. For want of room the edit stays pending: the
/// record is in the log, so the call has succeeded, and the log stays pinned until an edit gets through.
fn complete(
    core: &Core,
    end: crate::log::Position,
    edit: Edit,
    pin: u64,
    keyspace: &Arc<KeyspaceCore>,
) -> Result<()> {
    if !planted::is(Bug::EditBeforeLogSync) {
        core.sync_log_through(end)?;
    }
    let mut role = core.manifest.lock();
    if keyspace.is_dropped() {
        // What waits for room on behalf of a keyspace that is going is not worth waiting for.
        role.pending
            .retain(|p| p.keyspace.id != keyspace.id || !p.edit.create.is_empty());
    }
    match core.commit_edit(&mut role, edit.clone()) {
        Ok(()) => {
            settle(core, &role, keyspace);
            std::mem::drop(role);
            core.unpin_log(pin);
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            role.pending.push(PendingEdit {
                edit,
                keyspace: keyspace.clone(),
                pin,
            });
            core.wake_tidy();
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Shows what a committed edit made of a keyspace. A dropped one's tables are only now let go: before its edit is durable the
/// manifest names them.
pub(crate) fn settle(core: &Core, role: &ManifestRole, keyspace: &KeyspaceCore) {
    if keyspace.is_dropped() {
        keyspace.replace_view(|view| {
            let active = Source::Memtable(view.active().clone());
            KeyspaceView::build(
                vec![active],
                Arc::new(KeyspaceVersion::new(keyspace.id)),
                &core.tables,
                None,
            )
        });
    } else {
        keyspace.set_created();
        crate::compaction::install::refresh_view(core, role, keyspace, &[]);
        core.wake_background();
    }
}

/// Body of an ingest record: keyspace, then per table its description as the manifest would hold it.
pub(crate) fn encode_ingest(
    keyspace: KeyspaceId,
    run_id: u64,
    tables: &[Arc<TableMeta>],
) -> Vec<u8> {
    // The tables travel as an edit; its sequence range is the record's own number, filled in by whoever reads it.
    let edit = KeyspaceEdit {
        id: keyspace,
        add: tables
            .iter()
            .map(|t| AddTable {
                level: 0,
                run: Some(RunSlot {
                    id: run_id,
                    seqs: SeqRange::new(0, 1),
                }),
                table: t.clone(),
            })
            .collect(),
        ..KeyspaceEdit::default()
    };
    Edit {
        keyspaces: vec![edit],
        ..Edit::default()
    }
    .encode()
}

/// Inverse of [`encode_ingest`]; the tables get `number` as the number of all their entries.
pub(crate) fn decode_ingest(body: &[u8], number: u64) -> Result<(KeyspaceId, Run)> {
    let bad = || {
        Error::new(
            ErrorKind::Corruption,
            "an ingest record of the log is malformed",
        )
    };
    let mut edit = Edit::decode(body)?.edit;
    let keyspace = edit
        .keyspaces
        .pop()
        .filter(|_| edit.keyspaces.is_empty())
        .ok_or_else(bad)?;
    let id = keyspace.add.first().and_then(|a| a.run).ok_or_else(bad)?.id;
    let tables = keyspace
        .add
        .iter()
        .map(|a| {
            Arc::new(TableMeta {
                sequence_override: Some(number),
                ..(*a.table).clone()
            })
        })
        .collect();
    Ok((
        keyspace.id,
        Run {
            id,
            seqs: SeqRange::new(number - 1, number),
            tables: Level::new(tables)?,
        },
    ))
}

/// Takes finished, synced tables of the store's table storage into a keyspace, above everything that is in it. Every entry
/// must have sequence number 0 in the file and appear once; all get the one number of the ingest. (The public form comes later.)
pub(crate) fn ingest(
    core: &Core,
    keyspace: &Arc<KeyspaceCore>,
    tables: Vec<Arc<TableMeta>>,
) -> Result<u64> {
    crate::write::wait_for_keyspace(core, keyspace)?;
    let _ddl = core.ddl.lock();
    core.health.check()?;
    keyspace.check()?;
    let run_id = core.next_table_id.fetch_add(1, Ordering::AcqRel);
    let mut lead = core.queue.lead();
    let done = (|| -> Result<_> {
        lead.rotate(core, keyspace)?;
        let number = lead.next_seq;
        core.reserve_numbers(number)?;
        let body = encode_ingest(keyspace.id, run_id, &tables);
        let (_, mut run) = decode_ingest(&body, number)?;
        // The active memtable is empty: its slot is joined to the ingest's, so that neighbouring ranges still meet.
        if !planted::is(Bug::IngestLeavesHole) {
            run.seqs.lo = keyspace.view().active().lo;
        }
        let fresh = lead.fresh_source(&keyspace.pin_settings(), number)?;
        let pin = core.pin_log(core.log.end().segment);
        let end = crate::write::append(
            core,
            RecordKind::Ingest,
            number,
            1,
            &[&body],
            core.sync_every_write,
        )
        .inspect_err(|_| core.unpin_log(pin))?;
        keyspace.replace_view(|view| {
            let mut unsettled = view.unsettled();
            // The active memtable is empty (it was rotated): its slot ends before the ingest, a new one starts after it.
            unsettled.remove(0);
            unsettled.push(Source::Memtable(fresh.clone()));
            if !planted::is(Bug::IngestVisibleAfterEdit) {
                unsettled.push(Source::Run(RunView::new(&run, &core.tables, true)));
            }
            KeyspaceView::build(unsettled, view.version.clone(), &core.tables, Some(view))
        });
        lead.next_seq = number + 1;
        core.snapshots.publish(number);
        Ok((run, end, pin))
    })();
    lead.finish();
    let (run, end, pin) = done?;
    let number = run.seqs.hi;
    let edit = Edit {
        keyspaces: vec![KeyspaceEdit {
            id: keyspace.id,
            covered: vec![run.seqs],
            add: run
                .tables
                .tables()
                .iter()
                .map(|t| AddTable {
                    level: 0,
                    run: Some(RunSlot {
                        id: run.id,
                        seqs: run.seqs,
                    }),
                    table: t.clone(),
                })
                .collect(),
            ..KeyspaceEdit::default()
        }],
        ..Edit::default()
    };
    complete(core, end, edit, pin, keyspace)?;
    Ok(number)
}
