//! Flush: a sealed memtable becomes a level-0 run in its slot.
//!
//! What it is: [`run`] executes one flush job and installs it; [`flush`] is the user's call that seals and waits.
//!
//! Invariants: F1 the log is synced through the memtable's last record before the edit; V2 the run
//! takes the memtable's slot; flushes of one keyspace may run at once and install in any order.
//! Nothing is installed before a part of its tables (`flush_verify`) was read back and compared
//! with the memtable: until then the log holds what the memtable has.
//!
//! Threading: workers run flushes; the manifest role orders the edits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::planted::{self, Bug};
use siltstone_table::exec::{CancelToken, Progress};

use crate::catalog::Catalog;
use crate::catalog::edits::refresh_view;
use crate::env::Env;
use crate::formats::version::{Edit, KeyspaceEdit, SeqRange};
use crate::jobs::Jobs;
use crate::jobs::build::{FlushSpec, JobRunner};
use crate::jobs::install::{add_run, count_outcome};
use crate::tree::pick::targets;
use crate::tree::view::{KeyspaceCore, MemSource, Source};
use crate::types::error::{Error, Result};
use crate::types::event::Event;

/// A flush that was given to a worker.
pub(crate) struct FlushTask {
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) source: Arc<MemSource>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cancel: CancelToken,
}

/// Executes and installs one flush.
pub(crate) fn run(jobs: &Jobs, task: &FlushTask) -> Result<()> {
    let _span = tracing::debug_span!("flush", keyspace = &*task.keyspace.name).entered();
    let start = jobs.env.now();
    let source = &task.source;
    let (published, snapshots) = jobs.tree.snapshots().for_job();
    // Level-0 runs are cut where the base level is, so that a table of the run meets few of that level's.
    let version = task.keyspace.view().version.clone();
    let settings = task.keyspace.load_settings();
    let base = targets(&version, &settings.pick, &[]).base;
    let soft_cuts = base_cuts(&version, base, source);
    let spec = FlushSpec {
        keyspace: task.keyspace.id,
        settings: &settings.all,
        mem: &source.mem,
        published,
        snapshots,
        soft_cuts,
    };
    let outcome = match jobs.runner.flush(spec, &task.progress, &task.cancel) {
        Ok(outcome) => outcome,
        Err(failed) => {
            if failed.rejected {
                rejected(&jobs.env, task, &failed.error);
            }
            return Err(failed.error);
        }
    };
    // F1: another keyspace's half of a batch must not be lost when this half is in a table.
    if !planted::is(Bug::FlushWithoutLogSync) {
        let mut through = source.last_position();
        if planted::is(Bug::SyncShortOfFlush) {
            through.offset = 0;
        }
        jobs.wal.sync_log_through(through)?;
    }

    let tables = outcome.tables.clone();
    let installed = install(&jobs.catalog, task, outcome.tables);
    if installed.is_err() && (!jobs.env.health().is_poisoned() || planted::is(Bug::DiscardInDoubt))
    {
        // An edit whose sync failed may stand all the same when the store is opened again: it must find its tables.
        jobs.runner.discard(&tables);
    }
    installed?;
    count_outcome(&jobs.env, &outcome.counters);
    jobs.env
        .metrics()
        .flush_in_bytes
        .add(outcome.counters.raw_bytes_read);
    let out_bytes = tables.iter().map(|t| t.file_bytes).sum();
    let took = jobs.env.now().since(start);
    jobs.env.metrics().flush_out_bytes.add(out_bytes);
    jobs.env.metrics().flush_count.add(1);
    jobs.env.metrics().flush_time.record(took);
    tracing::debug!(
        in_bytes = outcome.counters.raw_bytes_read,
        out_bytes,
        table_count = tables.len(),
        duration_us = took.as_micros() as u64,
        "flushed"
    );
    jobs.env.events().emit(|| Event::Flushed {
        keyspace: task.keyspace.name.clone(),
        in_bytes: outcome.counters.raw_bytes_read,
        out_bytes,
        table_count: tables.len() as u64,
        duration_us: took.as_micros() as u64,
    });
    Ok(())
}

/// After this many rejected flushes of one memtable the store refuses writes.
const REJECTIONS_MAX: u32 = 3;

/// Counts a flush whose tables do not hold what the memtable holds. The flush runs again. One that
/// is rejected each time would be so for ever, while log and memory grow, so the store then refuses
/// writes. The log has everything that the memtable has, and reads go on.
fn rejected(env: &Env, task: &FlushTask, error: &Error) {
    let count = task.source.rejections.fetch_add(1, Ordering::AcqRel) + 1;
    if count >= REJECTIONS_MAX {
        let name = &task.keyspace.name;
        env.health().poison(&error.clone().context(format!(
            "keyspace `{name}` cannot be flushed: {count} times in a row its tables did not hold \
             what was written (the log keeps all of it)"
        )));
    }
}

fn base_cuts(
    version: &crate::formats::version::KeyspaceVersion,
    base: u8,
    source: &MemSource,
) -> Vec<Vec<u8>> {
    let (Some(first), Some(last)) = (source.mem.first_key(), source.mem.last_key()) else {
        return Vec::new();
    };
    let range = crate::formats::version::KeyRange::closed(first, last);
    let mut cuts: Vec<Vec<u8>> = crate::tree::pick::soft_cuts(version, base - 1, &range)
        .into_iter()
        .map(Vec::from)
        .collect();
    cuts.dedup();
    cuts
}

fn install(
    catalog: &Catalog,
    task: &FlushTask,
    tables: Vec<siltstone_table::job::outcome::OutputTable>,
) -> Result<()> {
    let source = &task.source;
    let mut role = catalog.role();
    task.keyspace.check()?;
    let ids = tables.len() as u64 + 1;
    let mut next_id = catalog.take_table_ids(ids);
    let run_id = next_id;
    next_id += 1;
    let mut seqs = source.seqs();
    if planted::is(Bug::CoveredOneTooFar) {
        seqs.hi += 1;
    }
    let metas = JobRunner::metas(tables, &mut next_id);
    let add = add_run(metas.clone(), run_id, seqs);
    // Whatever was given a number above an older unsettled slot is installed above it: counted, because tests must reach it.
    let out_of_order = older_unsettled(&task.keyspace, seqs);
    let edit = Edit {
        log_start: catalog.log_start_edit(role.manifest.state(), &[source.id]),
        keyspaces: vec![KeyspaceEdit {
            id: task.keyspace.id,
            covered: vec![seqs],
            add,
            ..KeyspaceEdit::default()
        }],
        ..Edit::default()
    };
    catalog.commit_edit(&mut role, edit)?;
    refresh_view(catalog.tree(), &role, &task.keyspace, &[source.id]);
    for table in &metas {
        catalog
            .env()
            .events()
            .emit(|| table.created(&task.keyspace.name, 0));
    }
    if out_of_order {
        catalog.env().metrics().out_of_order_install_count.add(1);
    }
    Ok(())
}

fn older_unsettled(keyspace: &KeyspaceCore, seqs: SeqRange) -> bool {
    keyspace
        .view()
        .unsettled()
        .iter()
        .any(|s| s.seqs().hi <= seqs.lo)
}

/// Seals the memtables of these keyspaces and waits until they are installed. Then it syncs the log
/// through everything written so far, because other keyspaces may hold the other half of a batch,
/// an ingest that is visible before its edit is durable, or data under a drop that may never become
/// durable.
pub(crate) fn flush(jobs: &Jobs, keyspaces: &[Arc<KeyspaceCore>]) -> Result<()> {
    jobs.env.health().check()?;
    jobs.commit.seal(keyspaces.iter().map(|k| &**k))?;
    let end = jobs.wal.log().end();
    let waiting: Vec<(&KeyspaceCore, Vec<u64>)> =
        keyspaces.iter().map(|k| (&**k, sealed_ids(k))).collect();
    jobs.wait_until(|| {
        let mut left = waiting
            .iter()
            .filter(|(keyspace, ids)| !keyspace.is_dropped() && has_any(keyspace, ids))
            .peekable();
        let is_done = left.peek().is_none();
        if left.any(|(keyspace, _)| !keyspace.is_created()) {
            // Its create edit waits for room, and its flush for that edit.
            jobs.env.health().check()?;
        }
        Ok(is_done)
    })?;
    jobs.wal.sync_log_through(end)
}

/// The sealed memtables that nobody holds back.
fn sealed_ids(keyspace: &KeyspaceCore) -> Vec<u64> {
    let view = keyspace.view();
    let sealed = view.sealed().filter(|m| !m.held.load(Ordering::Acquire));
    sealed.map(|m| m.id).collect()
}

/// Whether a memtable with one of these ids is not installed yet.
fn has_any(keyspace: &KeyspaceCore, ids: &[u64]) -> bool {
    let is_one = |s: &Source| matches!(s, Source::Memtable(m) if ids.contains(&m.id));
    keyspace.view().sources.iter().any(is_one)
}
