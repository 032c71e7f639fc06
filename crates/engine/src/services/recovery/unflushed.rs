//! Replayed data that waits for room after an open on a full disk. It can be read, and it is still
//! in the inherited log.
//!
//! Invariant: one edit installs all of the data together with the log's new start. Before that
//! edit, a replay reads the inherited log.
//!
//! Threading: the maintenance task calls [`install_unflushed`]. A lock guards the data.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use litemap::LiteMap;
use siltstone_storage::Mutex;
use siltstone_table::job::outcome::OutputTable;

use super::orphans::delete_orphans;
use crate::catalog::{Catalog, reserve};
use crate::env::Env;
use crate::formats::log::Position;
use crate::formats::version::{Edit, KeyspaceEdit, Run, SeqRange, StoreState};
use crate::jobs::Jobs;
use crate::tree::memtable::Memtable;
use crate::tree::tables::TableSet;
use crate::tree::view::{MemSource, RunView, Source};
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;

/// Replayed data that is in the inherited log and not in the manifest.
pub(super) struct UnflushedData {
    pub(super) cause: Error,
    pub(super) published: u64,
    pub(super) keyspaces: LiteMap<KeyspaceId, Vec<ReplayedSource>>,
    /// The id of the hold on the inherited log.
    pub(super) hold: u64,
}

/// The replayed data that waits for room, if there is any.
pub(crate) struct Unflushed {
    data: Mutex<Option<UnflushedData>>,
}

impl Unflushed {
    pub(super) fn new(env: &Env, data: Option<UnflushedData>) -> Unflushed {
        Unflushed {
            data: env.runtime().mutex(data),
        }
    }

    /// Holds the log from the start that `state` says, and puts the store into `NoSpace`. Returns
    /// false if no data waits.
    pub(super) fn hold_log(&self, catalog: &Catalog, state: &StoreState) -> bool {
        let mut data = self.data.lock();
        let Some(data) = &mut *data else {
            return false;
        };
        let start = state.log_start;
        data.hold = catalog.hold_log(Position::new(start.segment as u32, start.offset as u32));
        catalog.env().health().set_no_space(&data.cause);
        true
    }
}

/// A source that was replayed: a run of tables, or a memtable for which there was no room.
#[derive(Clone)]
pub(super) enum ReplayedSource {
    Run(Run),
    Memtable { mem: Arc<Memtable>, seqs: SeqRange },
}

impl UnflushedData {
    pub(super) fn of(&self, id: KeyspaceId) -> &[ReplayedSource] {
        self.keyspaces.get(&id).map_or(&[], Vec::as_slice)
    }
}

impl ReplayedSource {
    /// The source in a view. No flush takes it, and no compaction merges across it.
    pub(super) fn in_view(&self, id: u64, tables: &TableSet) -> Source {
        match self {
            ReplayedSource::Run(run) => Source::Run(RunView::new(run, tables, true)),
            ReplayedSource::Memtable { mem, seqs } => {
                let source = MemSource::new(id, mem.clone(), seqs.lo);
                source.held.store(true, Ordering::Release);
                source.seal(seqs.hi);
                Source::Memtable(source)
            }
        }
    }
}

/// Tries again to install the data: all of it, by one edit, with the log's new start.
pub(crate) fn install_unflushed(jobs: &Jobs, unflushed: &Unflushed) -> Result<()> {
    let mut slot = unflushed.data.lock();
    let Some(data) = &*slot else { return Ok(()) };
    let mut written = Vec::new();
    if let Err(error) = write_unflushed(jobs, data, &mut written) {
        for (_, location, tables) in &written {
            jobs.discard_unless_in_doubt(*location, tables);
        }
        return Err(error);
    }
    let hold = data.hold;
    *slot = None;
    drop(slot);
    jobs.catalog().release_log(hold);
    jobs.catalog().stop_waiting_for_room();
    let state = jobs.catalog().role().state().clone();
    delete_orphans(jobs.catalog(), &state)?;
    reserve::make(jobs.catalog())
}

/// Flushes the memtables of the data, and installs everything. `written` gets the tables that are
/// written, with their keyspace and their location.
fn write_unflushed(
    jobs: &Jobs,
    data: &UnflushedData,
    written: &mut Vec<(KeyspaceId, u32, Vec<OutputTable>)>,
) -> Result<()> {
    let mut edit = Edit {
        log_start: Some(jobs.wal().chain_start()),
        ..Edit::default()
    };
    let mut changed = Vec::new();
    for (id, sources) in &data.keyspaces {
        // The keyspace may have been dropped meanwhile, to make room.
        let Ok(keyspace) = jobs.catalog().keyspace_by_id(*id) else {
            continue;
        };
        let mut runs = Vec::new();
        for source in sources {
            match source {
                ReplayedSource::Run(run) => runs.push(run.clone()),
                ReplayedSource::Memtable { mem, seqs } => {
                    let (location, tables) = jobs.runner().flush_for_recovery(
                        *id,
                        &keyspace.load_settings().all,
                        mem,
                        data.published,
                    )?;
                    written.push((*id, location, tables.clone()));
                    runs.push(jobs.run_of_flush(location, tables, *seqs)?);
                }
            }
        }
        edit.keyspaces
            .push(KeyspaceEdit::adding_through(*id, &runs, data.published));
        changed.push(keyspace);
    }
    let mut role = jobs.catalog().role();
    edit.keyspaces
        .retain(|k| role.state().keyspace(k.id).is_some());
    jobs.catalog().commit_edit(&mut role, edit)?;
    let state = role.state().clone();
    for keyspace in changed {
        let held: Vec<u64> = keyspace
            .view()
            .sealed()
            .filter(|m| m.held.load(Ordering::Acquire))
            .map(|m| m.id)
            .collect();
        crate::catalog::edits::refresh_view(jobs.tree(), &role, &keyspace, &held);
    }
    drop(role);
    // The edit does not name the tables of a keyspace that was dropped while they were written.
    for (id, location, tables) in written.iter() {
        if state.keyspace(*id).is_none() {
            jobs.runner().discard(*location, tables);
        }
    }
    Ok(())
}
