//! Checkpoints: the whole store at one moment, written as an independent store (RFC 3, section 4).
//!
//! In one leader's turn, the memtables of all keyspaces are rotated and the views are pinned. This
//! is the *moment* of the checkpoint: no batch is in it only in part. Writers go on from then on.
//! Then the views' tables are imported into the target (by links, if the file system has them),
//! their memtables are written as tables by flush jobs of the checkpoint, and a manifest with a
//! store id of its own is written, which names these tables and an empty log.
//!
//! Invariants:
//! - The pinned views hold their tables, so nothing that the source store does meanwhile deletes
//!   them.
//! - The target has no `CURRENT` before everything else in it is durable. Until then, an open
//!   refuses it as unfinished.
//! - Nothing that both stores share is written again: tables are immutable, and log segments, which
//!   are recycled, are never linked.
//! - The source's log is synced through the moment of the checkpoint, so a loss of power cannot
//!   leave the source older than its checkpoint.
//!
//! Threading: the caller's task. It holds the leader's role and the lock of keyspace changes only
//! while it pins the views.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::files::{self, FileStorage};
use siltstone_storage::{Epoch, Storage};

use crate::commit::Commit;
use crate::env::Env;
use crate::formats::directories::{random_id, refuse_within};
use crate::formats::manifest;
use crate::formats::names::{LEASE, PARTIAL};
use crate::formats::new_store;
use crate::formats::version::{
    CreateKeyspace, Edit, KeyspaceEdit, KeyspaceState, Run, StoreState, TableMeta,
};
use crate::jobs::Jobs;
use crate::tree::view::{KeyspaceCore, KeyspaceView, Source};
use crate::types::checkpoint::CheckpointReport;
use crate::types::error::{Error, Result, closed};
use crate::types::event::Event;
use crate::types::limits::KeyspaceId;

/// The store at one moment.
struct Moment {
    published: u64,
    /// Where the log ended.
    end: crate::formats::log::Position,
    /// The manifest's state just before.
    state: Arc<StoreState>,
    /// Creates whose edits waited for room.
    creates: LiteMap<KeyspaceId, CreateKeyspace>,
    keyspaces: Vec<(Arc<KeyspaceCore>, Arc<KeyspaceView>)>,
}

/// Pins the views of all keyspaces between two groups of writes. Everything written so far is then
/// in sealed memtables or in tables.
fn pin_moment(commit: &Commit) -> Result<Moment> {
    // Nobody creates, drops or ingests between reading the state and pinning the views.
    let _changes = commit.catalog().changes();
    // This is checked under the lock: a create whose sync failed has poisoned the store, and has
    // left a keyspace that the state does not know.
    commit.env().health().check_manifest()?;
    let (state, creates) = {
        let role = commit.catalog().role();
        let pending = role.pending_creates();
        (
            role.state().clone(),
            pending.map(|c| (c.id, c.clone())).collect(),
        )
    };
    let mut lead = commit.lead();
    // This is checked again, because the previous leader may have poisoned the store with its work
    // half done.
    if let Err(error) = commit.env().health().check_manifest() {
        lead.finish();
        return Err(error);
    }
    let map = commit.catalog().keyspaces();
    let sealed = lead.seal(commit, map.by_id.values().map(|keyspace| &**keyspace));
    // A simulated run may switch to another task here. The leader's role alone must make this one
    // moment.
    commit.env().runtime().yield_point();
    let keyspaces = map.by_id.values().map(|k| (k.clone(), k.pin())).collect();
    let (published, end) = (commit.tree().snapshots().published(), commit.wal().end());
    commit.finish(lead);
    sealed?;
    Ok(Moment {
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
    let target = &jobs
        .tree()
        .tables()
        .readers()
        .descriptors()
        .wrap(target.clone());
    let lease = target
        .lease(LEASE)
        .map_err(|e| Error::from(e).context("writing a checkpoint"))?;
    let epoch = lease.epoch();
    prepare(&**target, epoch)?;
    let report = fill(jobs, target, epoch).inspect_err(|_| {
        // The marker stays, so nothing takes the target for a store. This frees the space.
        let _ = clear(&**target, epoch);
    })?;
    // An open ignores a marker that stays.
    let _ = target
        .delete(epoch, PARTIAL)
        .and_then(|()| target.sync_dir(epoch));
    emit_written(jobs.env(), target.describe(), report);
    Ok(report)
}

fn emit_written(env: &Env, folder: String, report: CheckpointReport) {
    tracing::info!(
        published = report.published,
        table_count = report.table_count,
        written_table_count = report.written_table_count,
        "checkpoint written"
    );
    env.events().emit(|| Event::Checkpointed { folder, report });
}

/// Checks that the target is empty or an unfinished checkpoint, marks it as unfinished, and empties
/// it.
fn prepare(target: &dyn Storage, epoch: Epoch) -> Result<()> {
    let names: Vec<String> = target.list()?.into_iter().map(|o| o.name).collect();
    let is_partial =
        names.iter().any(|n| n == PARTIAL) && !names.iter().any(|n| n == manifest::CURRENT_NAME);
    if !names.is_empty() && !is_partial {
        return Err(not_empty(&target.describe()));
    }
    if !is_partial {
        target.create(epoch, PARTIAL)?;
        // The marker is durable before the files that it marks.
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
    // The pointer is deleted first: without it, no open needs the other files.
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
    let moment = pin_moment(jobs.commit())?;
    jobs.wal().sync_log_before_change(moment.end)?;
    let mut report = CheckpointReport {
        published: moment.published,
        keyspace_count: moment.keyspaces.len() as u64,
        ..CheckpointReport::default()
    };
    let open_number = jobs.runner().open_number + 1;
    let runner = jobs.runner().onto(target, epoch, open_number);
    let mut next_id = jobs
        .catalog()
        .next_table_id()
        .max(moment.state.next_table_id);
    let mut state = StoreState {
        next_table_id: next_id,
        sequence_ceiling: jobs.catalog().ceiling().max(moment.state.sequence_ceiling),
        open_number,
        created_us: jobs.env().runtime().unix_micros(),
        next_keyspace_id: moment.state.next_keyspace_id,
        ..StoreState::new()
    };
    let mut edit = Edit::default();
    for (keyspace, view) in &moment.keyspaces {
        state.next_keyspace_id = state.next_keyspace_id.max(keyspace.id + 1);
        state
            .keyspaces
            .insert(keyspace.id, Arc::new(moment.describe(keyspace, view)?));
        for (_, level) in view.level_views() {
            for table in level.level.tables() {
                check_going_on(jobs.env())?;
                import(jobs.env(), &**target, epoch, table)?;
                report.table_count += 1;
                report.table_bytes += table.file_bytes;
            }
        }
        let mut runs = Vec::new();
        // The rotation made the first source, a memtable whose entries are not in the checkpoint.
        for source in view.sources.iter().skip(1).rev() {
            let run = match source {
                Source::Run(run) if !run.pending => continue,
                Source::Run(run) => {
                    let id = next_id;
                    next_id += 1;
                    Run {
                        id,
                        seqs: run.seqs,
                        tables: run.tables.level.clone(),
                    }
                }
                Source::Memtable(mem) => {
                    check_going_on(jobs.env())?;
                    let (_, written) = runner.flush_for_recovery(
                        keyspace.id,
                        &keyspace.load_settings().all,
                        &mem.mem,
                        moment.published,
                    )?;
                    report.written_table_count += written.len() as u64;
                    report.written_bytes += written.iter().map(|t| t.file_bytes).sum::<u64>();
                    if written.is_empty() {
                        continue;
                    }
                    Run::of_flush(0, written, mem.seqs(), &mut next_id)?
                }
            };
            runs.push(run);
        }
        edit.keyspaces.push(KeyspaceEdit::adding_through(
            keyspace.id,
            &runs,
            moment.published,
        ));
    }
    edit.next_table_id = Some(next_id);
    check_going_on(jobs.env())?;
    let runtime = jobs.env().runtime();
    let id = random_id(runtime);
    new_store::create(target, epoch, runtime, id, state.apply(&edit)?)?;
    Ok(report)
}

impl Moment {
    /// The state of a keyspace for the new manifest, without what is unsettled in its view.
    fn describe(&self, keyspace: &KeyspaceCore, view: &KeyspaceView) -> Result<KeyspaceState> {
        let (created_sequence, options) = match self.state.keyspace(keyspace.id) {
            Some(known) => (known.created_sequence, known.options.clone()),
            None => match self.creates.get(&keyspace.id) {
                Some(create) => (create.sequence, create.options.clone()),
                // A keyspace in the map has its record in the log, and its edit follows at once or
                // waits for room. So one of the two knows it.
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
            // All tables come into one folder.
            version: Arc::new(view.version.at_one_location()?),
        })
    }
}

/// Refuses to go on if the store is being closed: once its lease is released, another process may
/// delete what the views name.
fn check_going_on(env: &Env) -> Result<()> {
    if env.is_closing() {
        return Err(closed());
    }
    env.health().check_manifest()
}

fn import(env: &Env, target: &dyn Storage, epoch: Epoch, table: &TableMeta) -> Result<()> {
    let (name, from) = (&*table.name, env.storages().tables_at(table.location));
    target
        .import(epoch, name, &*from, name)
        .map_err(|e| Error::from(e).context(format!("taking {name} into a checkpoint")))
}

/// Writes a checkpoint into the folder `folder`, which must not exist, or be empty. It is built in
/// `folder.partial`, which is renamed when the checkpoint is complete.
pub(crate) fn write_folder(jobs: &Jobs, folder: &Path) -> Result<CheckpointReport> {
    let _span = tracing::info_span!("checkpoint", folder = %folder.display()).entered();
    jobs.env().health().check_manifest()?;
    let with_context = |e: siltstone_storage::StorageError| {
        Error::from(e).context(format!("writing a checkpoint to {}", folder.display()))
    };
    if files::folder_entries(folder)
        .map_err(with_context)?
        .is_some_and(|names| !names.is_empty())
    {
        return Err(not_empty(&folder.display().to_string()));
    }
    refuse_within(jobs.env().storages(), folder, "a checkpoint")?;
    let partial = partial_path(folder)?;
    let no_checkpoint = |found: String| {
        Error::invalid_argument(format!(
            "{} is where the checkpoint would be built, and it is no unfinished checkpoint",
            partial.display()
        ))
        .expected(format!("an empty folder, or one with the file {PARTIAL}"))
        .found(found)
        .advice("move it away, or choose another folder")
    };
    let descriptors = jobs.tree().tables().readers().descriptors();
    let storage = descriptors
        .retry(|| FileStorage::open_or_create(&partial))
        .map_err(with_context)?;
    let storage = descriptors.wrap(Arc::new(storage));
    let lease = storage.lease(LEASE).map_err(with_context)?;
    // This is checked under the lease: another checkpoint to the same name may have ended
    // meanwhile, and its folder may have been renamed.
    let names = descriptors
        .retry(|| files::folder_entries(&partial))
        .map_err(with_context)?
        .ok_or_else(|| {
            no_checkpoint("nothing: another checkpoint has just taken it".to_string())
        })?;
    let listed: Vec<String> = storage
        .list()
        .map_err(with_context)?
        .into_iter()
        .map(|o| o.name)
        .collect();
    let foreign = names
        .iter()
        .find(|n| !listed.contains(n) && !files::is_own_name(n));
    if let Some(foreign) = foreign {
        return Err(no_checkpoint(format!("`{foreign}`")));
    }
    if !listed.is_empty() && !listed.iter().any(|n| n == PARTIAL) {
        return Err(no_checkpoint(format!("`{}`", listed[0])));
    }
    if listed.iter().any(|n| n == manifest::CURRENT_NAME) {
        // An earlier checkpoint was complete, but not renamed. Its moment has passed.
        storage
            .delete(lease.epoch(), manifest::CURRENT_NAME)
            .and_then(|()| storage.sync_dir(lease.epoch()))
            .map_err(with_context)?;
    }
    let target = storage;
    let epoch = lease.epoch();
    let written = prepare(&*target, epoch)
        .and_then(|()| fill(jobs, &target, epoch))
        .and_then(|report| {
            descriptors
                .retry(|| files::rename_folder(&partial, folder))
                .map_err(with_context)?;
            Ok(report)
        });
    match written {
        Ok(report) => {
            let _ = target
                .delete(epoch, PARTIAL)
                .and_then(|()| target.sync_dir(epoch));
            emit_written(jobs.env(), folder.display().to_string(), report);
            Ok(report)
        }
        Err(error) => {
            remove_failed(&*target, epoch, &partial, folder);
            Err(error)
        }
    }
}

/// Deletes what a failed checkpoint wrote, and its folder, as far as the system lets it. If only
/// the sync of the renaming failed, the folder has its new name.
fn remove_failed(target: &dyn Storage, epoch: Epoch, partial: &Path, folder: &Path) {
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
            remove_failed(&target, lease.epoch(), &partial, &folder);
            let left = files::folder_entries(at.path()).unwrap().unwrap();
            assert_eq!(left, Vec::<String>::new(), "renamed: {renamed}");
        }
    }
}
