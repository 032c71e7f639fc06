//! Checkpoints: the whole store at one moment, as a store of its own.
//!
//! What it is (RFC 3, section 4): in the leader's turn the memtables are rotated and the views of all keyspaces pinned: one state, batches
//! over keyspaces included. From then on writers go on. Then the views' tables get a second name in the target (links, where the file system
//! has them), their memtables are written as tables by flush jobs of the checkpoint's own, and a manifest with a store id of its own names it
//! all, together with an empty log.
//!
//! Invariants:
//! - The pinned views hold their tables: nothing that the source does meanwhile takes them away.
//! - The target has no `CURRENT` before everything else in it is durable: until then an open refuses it as unfinished.
//! - Nothing shared is ever written again: tables are immutable, log segments (which are recycled) are never linked.
//! - The source's log is synced through the cut, so that no power loss leaves the source older than its checkpoint.
//!
//! Threading: the caller's task; the leader's role and `Catalog::changes` are held for the cut only.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone_storage::files::{self, FileStorage};
use siltstone_storage::planted::{self, Bug};
use siltstone_storage::{Epoch, Storage};

use crate::commit::Commit;
use crate::env::Env;
use crate::formats::directories::{random_id, refuse_within};
use crate::formats::manifest;
use crate::formats::names::{LEASE, PARTIAL};
use crate::formats::new_store;
use crate::formats::version::{CreateKeyspace, Edit, KeyspaceState, Level, Run, StoreState};
use crate::jobs::Jobs;
use crate::jobs::build::JobRunner;
use crate::services::recovery::unflushed::keyspace_edit;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::error::{Error, Result, closed};
use crate::types::event::{CheckpointReport, Event};
use crate::types::limits::KeyspaceId;

/// One moment of the store.
struct Cut {
    published: u64,
    end: crate::formats::log::Position,
    /// What the manifest knew just before.
    state: Arc<StoreState>,
    /// Creates that wait for room.
    creates: BTreeMap<KeyspaceId, CreateKeyspace>,
    keyspaces: Vec<(Arc<KeyspaceCore>, Arc<KeyspaceView>)>,
}

/// Takes the views of all keyspaces between two groups of writes, with everything written so far in sealed memtables or below.
fn cut(commit: &Commit) -> Result<Cut> {
    // Nobody creates, drops or ingests between the state and the views.
    let _ddl = commit.catalog().changes();
    // Under the lock: a create that met a failed sync has poisoned the store, and left a keyspace that the state does not know.
    commit.env().health().check_manifest()?;
    let (state, creates) = {
        let role = commit.catalog().role();
        let pending = role.pending.iter().flat_map(|p| &p.edit.create);
        (
            role.manifest.state().clone(),
            pending.map(|c| (c.id, c.clone())).collect(),
        )
    };
    let mut lead = commit.lead();
    // Asked again: the leader before may have poisoned the store with its work half done.
    if let Err(error) = commit.env().health().check_manifest() {
        lead.finish();
        return Err(error);
    }
    let map = commit.catalog().keyspaces();
    let rotated: Result<Vec<bool>> = map
        .by_id
        .values()
        .map(|keyspace| lead.rotate(commit, keyspace))
        .collect();
    let mut lead = Some(lead);
    if planted::is(Bug::CutPinsLate)
        && let Some(lead) = lead.take()
    {
        lead.finish();
    }
    // In a simulated run others get their chance right here: what is a moment must be one because of the role, not by luck.
    commit.env().runtime().yield_point();
    let keyspaces = map.by_id.values().map(|k| (k.clone(), k.pin())).collect();
    let (published, end) = (
        commit.tree().snapshots().published(),
        commit.wal().log().end(),
    );
    if let Some(lead) = lead {
        lead.finish();
    }
    rotated?;
    Ok(Cut {
        published,
        end,
        state,
        creates,
        keyspaces,
    })
}

/// Writes a checkpoint into an empty storage, or over an unfinished one.
pub(crate) fn write(jobs: &Jobs, target: &Arc<dyn Storage>) -> Result<CheckpointReport> {
    let _span = tracing::info_span!("checkpoint", folder = target.describe()).entered();
    jobs.env().health().check_manifest()?;
    let target = &jobs.tree().tables().descriptors.wrap(target.clone());
    let lease = target
        .lease(LEASE)
        .map_err(|e| Error::from(e).context("writing a checkpoint"))?;
    let epoch = lease.epoch();
    prepare(&**target, epoch)?;
    let report = fill(jobs, target, epoch).inspect_err(|_| {
        // What is left over is marked as unfinished; its space is worth more to others.
        let _ = clear(&**target, epoch);
    })?;
    // An open ignores a marker that stays.
    let _ = target
        .delete(epoch, PARTIAL)
        .and_then(|()| target.sync_dir(epoch));
    emit(jobs.env(), target.describe(), report);
    Ok(report)
}

fn emit(env: &Env, folder: String, report: CheckpointReport) {
    tracing::info!(
        published = report.published,
        table_count = report.table_count,
        written_table_count = report.written_table_count,
        "checkpoint written"
    );
    env.events().emit(|| Event::Checkpointed { folder, report });
}

/// Makes sure that the target is empty or an unfinished checkpoint, and marks it.
fn prepare(target: &dyn Storage, epoch: Epoch) -> Result<()> {
    let names: Vec<String> = target.list()?.into_iter().map(|o| o.name).collect();
    let is_partial =
        names.iter().any(|n| n == PARTIAL) && !names.iter().any(|n| n == manifest::CURRENT_NAME);
    if !names.is_empty() && !is_partial {
        return Err(not_empty(&target.describe()));
    }
    if !is_partial {
        target.create(epoch, PARTIAL)?;
        // The marker is durable before anything that it speaks of.
        target.sync_dir(epoch)?;
    }
    clear(target, epoch)
}

fn not_empty(place: &str) -> Error {
    Error::invalid_argument(format!("a checkpoint cannot be written to {place}"))
        .expected("a folder that does not exist or is empty")
        .found("a folder with something in it")
        .advice("choose another folder, or empty this one")
}

/// Deletes everything but the marker.
fn clear(target: &dyn Storage, epoch: Epoch) -> Result<()> {
    let objects = target.list()?;
    // The pointer first: without it nothing of the rest is missed.
    for object in objects.iter().filter(|o| o.name == manifest::CURRENT_NAME) {
        target.delete(epoch, &object.name)?;
        target.sync_dir(epoch)?;
    }
    for object in &objects {
        if object.name != PARTIAL && object.name != manifest::CURRENT_NAME {
            target.delete(epoch, &object.name)?;
        }
    }
    Ok(())
}

fn fill(jobs: &Jobs, target: &Arc<dyn Storage>, epoch: Epoch) -> Result<CheckpointReport> {
    let cut = cut(jobs.commit())?;
    if !planted::is(Bug::CheckpointAheadOfLog) {
        jobs.wal().sync_log_through(cut.end)?;
    }
    let mut report = CheckpointReport {
        published: cut.published,
        keyspace_count: cut.keyspaces.len() as u64,
        ..CheckpointReport::default()
    };
    let open_number = jobs.runner().open_number + 1;
    let runner = jobs.runner().onto(target, epoch, open_number);
    let mut next_id = jobs.catalog().next_table_id().max(cut.state.next_table_id);
    let mut state = StoreState {
        next_table_id: next_id,
        sequence_ceiling: jobs.catalog().ceiling().max(cut.state.sequence_ceiling),
        open_number,
        created_us: jobs.env().runtime().unix_micros(),
        next_keyspace_id: cut.state.next_keyspace_id,
        ..StoreState::new()
    };
    let mut edit = Edit::default();
    for (keyspace, view) in &cut.keyspaces {
        state.next_keyspace_id = state.next_keyspace_id.max(keyspace.id + 1);
        state
            .keyspaces
            .insert(keyspace.id, Arc::new(cut.describe(keyspace, view)?));
        for (_, level) in view.level_views() {
            for table in level.level.tables() {
                check_going_on(jobs.env())?;
                import(jobs.env(), &**target, epoch, &table.name)?;
                report.table_count += 1;
                report.table_bytes += table.file_bytes;
            }
        }
        let mut runs = Vec::new();
        // The first source is the memtable that was made for the cut: what is written to it is not in the checkpoint.
        for source in view.sources.iter().skip(1).rev() {
            let (seqs, tables) = match source {
                Source::Run(run) if !run.pending => continue,
                Source::Run(run) => (run.seqs, run.tables.level.clone()),
                Source::Memtable(_) if planted::is(Bug::CheckpointWithoutMemtables) => continue,
                Source::Memtable(mem) => {
                    check_going_on(jobs.env())?;
                    let written = runner.flush_for_recovery(
                        keyspace.id,
                        &keyspace.load_settings().all,
                        &mem.mem,
                        cut.published,
                    )?;
                    report.written_table_count += written.len() as u64;
                    report.written_bytes += written.iter().map(|t| t.file_bytes).sum::<u64>();
                    if written.is_empty() {
                        continue;
                    }
                    let metas = JobRunner::metas(written, &mut next_id);
                    (mem.seqs(), Level::new(metas)?)
                }
            };
            runs.push(Run {
                id: next_id,
                seqs,
                tables,
            });
            next_id += 1;
        }
        edit.keyspaces
            .push(keyspace_edit(keyspace.id, &runs, cut.published));
    }
    edit.next_table_id = Some(next_id);
    check_going_on(jobs.env())?;
    let runtime = jobs.env().runtime();
    let id = random_id(runtime);
    new_store::create(target, epoch, runtime, id, state.apply(&edit)?)?;
    Ok(report)
}

impl Cut {
    /// What a manifest says of a keyspace, before what is unsettled in its view.
    fn describe(&self, keyspace: &KeyspaceCore, view: &KeyspaceView) -> Result<KeyspaceState> {
        let (created_sequence, options) = match self.state.keyspace(keyspace.id) {
            Some(known) => (known.created_sequence, known.options.clone()),
            None => match self.creates.get(&keyspace.id) {
                Some(create) => (create.sequence, create.options.clone()),
                // The map has it, so its record is in the log, and its edit follows at once or waits for room.
                None => {
                    return Err(Error::not_found(format!(
                        "keyspace `{}` is in neither the manifest nor what it waits for",
                        keyspace.name
                    ))
                    .advice("this is a bug: report it"));
                }
            },
        };
        Ok(KeyspaceState {
            name: keyspace.name.clone(),
            created_sequence,
            options,
            version: view.version.clone(),
        })
    }
}

/// A checkpoint ends with the store: after its lease is gone others may delete what the views name.
fn check_going_on(env: &Env) -> Result<()> {
    if env.is_closing() {
        return Err(closed());
    }
    env.health().check_manifest()
}

fn import(env: &Env, target: &dyn Storage, epoch: Epoch, name: &str) -> Result<()> {
    target
        .import(epoch, name, &*env.storages().tables, name)
        .map_err(|e| Error::from(e).context(format!("taking {name} into a checkpoint")))
}

/// Writes a checkpoint into the folder `folder`, which must not exist or be empty. It is built in `folder.partial`, and renamed when whole.
pub(crate) fn write_folder(jobs: &Jobs, folder: &Path) -> Result<CheckpointReport> {
    let _span = tracing::info_span!("checkpoint", folder = %folder.display()).entered();
    jobs.env().health().check_manifest()?;
    let told = |e: siltstone_storage::StorageError| {
        Error::from(e).context(format!("writing a checkpoint to {}", folder.display()))
    };
    if files::folder_entries(folder)
        .map_err(told)?
        .is_some_and(|names| !names.is_empty())
    {
        return Err(not_empty(&folder.display().to_string()));
    }
    refuse_within(jobs.env().storages(), folder, "a checkpoint")?;
    let partial = partial_path(folder)?;
    let strange = |found: String| {
        Error::invalid_argument(format!(
            "{} is where the checkpoint would be built, and it is no unfinished checkpoint",
            partial.display()
        ))
        .expected(format!("an empty folder, or one with the file {PARTIAL}"))
        .found(found)
        .advice("move it away, or choose another folder")
    };
    let descriptors = &jobs.tree().tables().descriptors;
    let storage = descriptors
        .retry(|| FileStorage::open_or_create(&partial))
        .map_err(told)?;
    let storage = descriptors.wrap(Arc::new(storage));
    let lease = storage.lease(LEASE).map_err(told)?;
    // Looked at under the lease: another checkpoint to this name may have come to its end meanwhile, and its folder have moved.
    let names = descriptors
        .retry(|| files::folder_entries(&partial))
        .map_err(told)?
        .ok_or_else(|| strange("nothing: another checkpoint has just taken it".to_string()))?;
    let listed: Vec<String> = storage
        .list()
        .map_err(told)?
        .into_iter()
        .map(|o| o.name)
        .collect();
    let foreign = names
        .iter()
        .find(|n| !listed.contains(n) && !files::is_own_name(n));
    if let Some(foreign) = foreign {
        return Err(strange(format!("`{foreign}`")));
    }
    if !listed.is_empty() && !listed.iter().any(|n| n == PARTIAL) {
        return Err(strange(format!("`{}`", listed[0])));
    }
    if listed.iter().any(|n| n == manifest::CURRENT_NAME) {
        // It was whole but for the renaming; its moment has passed.
        storage
            .delete(lease.epoch(), manifest::CURRENT_NAME)
            .and_then(|()| storage.sync_dir(lease.epoch()))
            .map_err(told)?;
    }
    let target = storage;
    let epoch = lease.epoch();
    let written = prepare(&*target, epoch)
        .and_then(|()| fill(jobs, &target, epoch))
        .and_then(|report| {
            descriptors
                .retry(|| files::rename_folder(&partial, folder))
                .map_err(told)?;
            Ok(report)
        });
    match written {
        Ok(report) => {
            let _ = target
                .delete(epoch, PARTIAL)
                .and_then(|()| target.sync_dir(epoch));
            emit(jobs.env(), folder.display().to_string(), report);
            Ok(report)
        }
        Err(error) => {
            take_back(&*target, epoch, &partial, folder);
            Err(error)
        }
    }
}

/// After a failure: deletes what was written, and the folder, as far as the system lets us. The renaming may have happened all the same, when
/// only its sync failed.
fn take_back(target: &dyn Storage, epoch: Epoch, partial: &Path, folder: &Path) {
    let renamed = matches!(files::folder_entries(partial), Ok(None));
    let _ = clear(target, epoch);
    let _ = target.delete(epoch, PARTIAL);
    let _ = files::remove_folder(if renamed { folder } else { partial });
}

fn partial_path(folder: &Path) -> Result<PathBuf> {
    let Some(name) = folder.file_name() else {
        return Err(Error::invalid_argument(format!(
            "{} is no name for a checkpoint's folder",
            folder.display()
        ))
        .expected("a path that ends with a name"));
    };
    let mut partial = OsString::from(name);
    partial.push(".partial");
    Ok(folder.with_file_name(partial))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_whose_renaming_was_not_synced_leaves_nothing() {
        for renamed in [false, true] {
            let at = tempfile::tempdir().unwrap();
            let (partial, folder) = (at.path().join("c.partial"), at.path().join("c"));
            let target = FileStorage::open_or_create(&partial).unwrap();
            let lease = target.lease(LEASE).unwrap();
            prepare(&target, lease.epoch()).unwrap();
            drop(target.create(lease.epoch(), "1.tbl").unwrap());
            if renamed {
                std::fs::rename(&partial, &folder).unwrap();
            }
            take_back(&target, lease.epoch(), &partial, &folder);
            let left = files::folder_entries(at.path()).unwrap().unwrap();
            assert_eq!(left, Vec::<String>::new(), "renamed: {renamed}");
        }
    }
}
