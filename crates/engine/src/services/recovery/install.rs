//! Installing what was replayed: at once with the new manifest, or later, when there is room.
//!
//! What it is: the manifest that an open writes anew, out of kept space if there is no other; and, after an open on a full disk, the replayed
//! data that waits ([`Rest`]) until one edit installs all of it together with the log's new start.
//!
//! Invariant: data and the log's start come by the same edit; before it the inherited log is what a replay reads.
//!
//! Threading: [`install_rest`] is maintenance's; the lock on `rest` keeps others out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::Epoch;
use siltstone_table::job::outcome::OutputTable;

use super::orphans::delete_orphans;
use crate::catalog::reserve;
use crate::formats::directories::Storages;
use crate::formats::manifest::{Manifest, Space, StoreId};
use crate::formats::version::{
    AddTable, Edit, KeyspaceEdit, Level, Run, RunSlot, SeqRange, StoreState,
};
use crate::jobs::Jobs;
use crate::jobs::build::JobRunner;
use crate::services::core::Core;
use crate::tree::memtable::Memtable;
use crate::tree::tables::TableSet;
use crate::tree::view::{MemSource, RunView, Source};
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;

/// Writes the whole state to a new manifest, and makes it the current one.
pub(super) fn write_manifest(
    storages: &Storages,
    epoch: Epoch,
    store_id: StoreId,
    state: Arc<StoreState>,
) -> Result<Manifest> {
    // Tables' names, and the log's first segment's, before the manifest that names them.
    storages.tables.sync_dir(epoch)?;
    storages.log.sync_dir(epoch)?;
    let create = |space| {
        Manifest::create(
            storages.manifest.clone(),
            epoch,
            store_id,
            state.clone(),
            space,
        )
        .map_err(Error::from)
    };
    match create(Space::Fresh) {
        Err(error) if error.is_no_space() => {
            // The pointer's replacement is a new object for a moment: its room is given up first, whatever the manifest is made of.
            let freed = reserve::find(&*storages.manifest, crate::formats::names::CURRENT_RESERVE)?
                .is_some();
            if freed {
                storages
                    .manifest
                    .delete(epoch, crate::formats::names::CURRENT_RESERVE)?;
                storages.manifest.sync_dir(epoch)?;
            }
            match reserve::find_manifest(&*storages.manifest)? {
                Some(name) => create(Space::Recycle(name)),
                // An open before this one has used it up, and had no room for another.
                None if freed => create(Space::Fresh),
                None => Err(error),
            }
        }
        result => result,
    }
}

/// Replayed data that waits for room: readable, in the inherited log, and not in the manifest.
pub(crate) struct Rest {
    pub(super) cause: Error,
    pub(super) published: u64,
    pub(super) keyspaces: BTreeMap<KeyspaceId, Vec<Waiting>>,
    /// Keeps the inherited log.
    pub(super) pin: u64,
}

#[derive(Clone)]
pub(super) enum Waiting {
    Run(Run),
    Held { mem: Arc<Memtable>, seqs: SeqRange },
}

impl Rest {
    pub(super) fn of(&self, id: KeyspaceId) -> &[Waiting] {
        self.keyspaces.get(&id).map_or(&[], Vec::as_slice)
    }
}

impl Waiting {
    /// As a source of a view: no flush takes it, no compaction passes it.
    pub(super) fn source(&self, id: u64, tables: &TableSet) -> Source {
        match self {
            Waiting::Run(run) => Source::Run(RunView::new(run, tables, true)),
            Waiting::Held { mem, seqs } => {
                let source = MemSource::new(id, mem.clone(), seqs.lo);
                source.held.store(true, Ordering::Release);
                source.seal(seqs.hi);
                Source::Memtable(source)
            }
        }
    }
}

/// Tries again to install what waits for room: everything, by one edit, with the log's new start.
pub(crate) fn install_rest(core: &Core) -> Result<()> {
    let mut slot = core.rest.lock();
    let Some(rest) = &*slot else { return Ok(()) };
    let mut written = Vec::new();
    if let Err(error) = write_rest(&core.jobs, rest, &mut written) {
        if !core.env.health.is_poisoned() {
            // See `flush`: an edit in doubt keeps its tables.
            for (_, tables) in &written {
                core.jobs.runner.discard(tables);
            }
        }
        return Err(error);
    }
    let pin = rest.pin;
    *slot = None;
    drop(slot);
    core.catalog.unpin_log(pin);
    core.catalog.waits_for_room.store(false, Ordering::Release);
    let state = core.catalog.manifest.lock().manifest.state().clone();
    delete_orphans(&core.jobs, &state)?;
    reserve::make(&core.catalog)
}

/// Flushes what waits, and installs it. `written` gets the tables that it writes, by keyspace.
fn write_rest(
    jobs: &Jobs,
    rest: &Rest,
    written: &mut Vec<(KeyspaceId, Vec<OutputTable>)>,
) -> Result<()> {
    let mut edit = Edit {
        log_start: Some(jobs.wal.log.chain_start()),
        ..Edit::default()
    };
    let mut changed = Vec::new();
    for (id, waiting) in &rest.keyspaces {
        // Dropped meanwhile: that is one way to make room.
        let Ok(keyspace) = jobs.catalog.keyspace_by_id(*id) else {
            continue;
        };
        let mut runs = Vec::new();
        for waiting in waiting {
            match waiting {
                Waiting::Run(run) => runs.push(run.clone()),
                Waiting::Held { mem, seqs } => {
                    let tables = jobs.runner.flush_for_recovery(
                        *id,
                        &keyspace.pin_settings().all,
                        mem,
                        rest.published,
                    )?;
                    written.push((*id, tables.clone()));
                    let ids = tables.len() as u64 + 1;
                    let mut next_id = jobs.catalog.next_table_id.fetch_add(ids, Ordering::AcqRel);
                    let run_id = next_id;
                    next_id += 1;
                    let tables = Level::new(JobRunner::metas(tables, &mut next_id))?;
                    runs.push(Run {
                        id: run_id,
                        seqs: *seqs,
                        tables,
                    });
                }
            }
        }
        edit.keyspaces
            .push(keyspace_edit(*id, &runs, rest.published));
        changed.push(keyspace);
    }
    let mut role = jobs.catalog.manifest.lock();
    edit.keyspaces
        .retain(|k| role.manifest.state().keyspace(k.id).is_some());
    jobs.catalog.commit_edit(&mut role, edit)?;
    let state = role.manifest.state().clone();
    for keyspace in changed {
        let held: Vec<u64> = keyspace
            .view()
            .sealed()
            .filter(|m| m.held.load(Ordering::Acquire))
            .map(|m| m.id)
            .collect();
        crate::catalog::edits::refresh_view(&jobs.tree, &role, &keyspace, &held);
    }
    drop(role);
    // The edit does not name the tables of a keyspace that was dropped while they were written.
    for (id, tables) in written.iter() {
        if state.keyspace(*id).is_none() {
            jobs.runner.discard(tables);
        }
    }
    Ok(())
}

/// The edit that installs replayed runs of one keyspace; everything up to `published` is then covered.
pub(crate) fn keyspace_edit(id: KeyspaceId, runs: &[Run], published: u64) -> KeyspaceEdit {
    let add = runs.iter().flat_map(|run| {
        let slot = RunSlot {
            id: run.id,
            seqs: run.seqs,
        };
        run.tables.tables().iter().map(move |t| AddTable {
            level: 0,
            run: Some(slot),
            table: t.clone(),
        })
    });
    KeyspaceEdit {
        id,
        covered: runs.iter().map(|r| r.seqs).collect(),
        covered_floor: Some(published),
        add: add.collect(),
        ..KeyspaceEdit::default()
    }
}
