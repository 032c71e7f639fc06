//! Closing a store: changes are refused, the tasks end, the manifest records the end of the log,
//! and the lease is released.
//!
//! Invariants: the steps are taken in the order of [`Background::close`] and
//! [`Background::end_tasks`]. A task that passed a check before the close makes no change after the
//! lease is released. Waits for a storage that cannot be reached end first, and a close whose
//! storage cannot be reached makes at most a few calls, each with the time limit of the storage.
//!
//! Threading: the closing thread. It holds no lock while it waits for the tasks.

use std::time::Duration;

use siltstone_storage::JoinHandle;

use super::Background;
use crate::catalog::Catalog;
use crate::catalog::edits::may_wait;
use crate::catalog::obsolete::{delete_obsolete_segments, delete_old_manifests, delete_tables};
use crate::commit::Commit;
use crate::jobs::{Jobs, schedule};
use crate::services::parts::Parts;
use crate::stats::stats_file;
use crate::types::error::{ErrorKind, Result, closed};

impl Background {
    /// Syncs the log, ends the tasks, records the log's end in the manifest, and releases the
    /// lease.
    ///
    /// # Errors
    /// `Closed` if the store was closed before; the error that had poisoned it; the error of a
    /// step. `Unreachable` if the storage did not answer: nothing was changed after that, and the
    /// next open recovers the store. The store is closed in any case.
    pub(crate) fn close(&self) -> Result<()> {
        let Parts {
            env, wal, catalog, ..
        } = &self.parts;
        if !refuse_changes(&self.parts.commit) {
            return Err(closed());
        }
        // A failed sync is never tried again, so a poisoned store cannot promise what was not
        // synced before. The caller gets the error.
        let poisoned = match env.health().is_poisoned() {
            true => env.health().check_manifest(),
            false => Ok(()),
        };
        let mut result = poisoned.and_then(|()| wal.sync_log_through(wal.end()));
        if let Err(error) = &result
            && error.is_unreachable()
        {
            env.outage().give_up(error);
        }
        self.end_tasks(|| {
            if result.is_ok() {
                // The tasks have ended, so no edit follows this one.
                result = write_log_end(catalog);
            }
            match &result {
                Ok(()) => tracing::info!(store = env.storages().manifest.describe(), "closed"),
                Err(error) => tracing::error!(%error, "closed after a failure"),
            }
            // The files that the last jobs made obsolete are deleted now rather than at the next
            // open. A poisoned store makes no more changes.
            if result.is_ok() {
                stats_file::delete_own(env, &self.own_file);
                delete_tables(catalog, 0);
                self.end_second_location();
                if let Err(error) = give_space_back(catalog) {
                    tracing::warn!(%error, "the closed store takes more space than it needs");
                }
            }
        });
        // Only now can no task write any more.
        env.release_lease();
        result.map_err(|error| match error.is_unreachable() {
            true => error
                .with_kind(ErrorKind::Unreachable)
                .context("closing the store")
                .advice("check the link to the storage; the next open recovers the store"),
            false => error,
        })
    }

    /// Ends the tasks and releases the lease, unless the store was closed before. This makes no
    /// storage call of its own.
    pub(crate) fn stop(&self) {
        if refuse_changes(&self.parts.commit) {
            self.end_tasks(|| ());
            self.parts.env.drop_lease();
        }
    }

    /// Ends the tasks, and calls `last`. The caller gives the lease back afterwards.
    fn end_tasks(&self, last: impl FnOnce()) {
        let Parts {
            env,
            tree,
            wal,
            catalog,
            jobs,
            ..
        } = &self.parts;
        schedule::cancel_all(jobs);
        env.ending().notify();
        env.work().notify();
        env.maintenance().notify();
        env.supplies().notify();
        wal.wake_interval_sync();
        env.pressure().notify();
        let handles = std::mem::take(&mut *self.handles.lock());
        for handle in without_hanging(jobs, handles) {
            // A task that panicked outside of `guarded` has reported that on standard error. The
            // store's data is in the log and in tables.
            let _ = handle.join();
        }
        if let Some(slots) = &self.slots {
            slots.end();
        }
        // Ingests in flight notice the close soon, and delete the files that they began to write.
        env.ingests().wait_until_none_left();
        last();
        self.leave_second_location();
        tree.tables().readers().set_closed();
        release(catalog);
        env.events().end();
    }
}

impl Background {
    /// Gives the task of the second location its last round.
    fn end_second_location(&self) {
        let env = &self.parts.env;
        let has_task = self.second_location.lock().is_some();
        let limit = SECOND_LOCATION_TAKES;
        if has_task && !env.locations().wait_for_round(env.runtime(), limit) {
            tracing::warn!(
                "the second location of tables does not answer; the next open cleans up"
            );
        }
    }

    /// Ends the task of the second location. If a call there hangs, nobody waits for it.
    fn leave_second_location(&self) {
        self.parts.env.locations().end_rounds();
        let Some(task) = self.second_location.lock().take() else {
            return;
        };
        let until = self.parts.env.now() + SECOND_LOCATION_ENDS;
        while !task.is_finished() {
            if self.parts.env.now() >= until {
                return;
            }
            self.parts.env.runtime().sleep(LOOK_AGAIN);
        }
        let _ = task.join();
    }
}

/// How long a close waits for the last deletions at the second location of tables.
const SECOND_LOCATION_TAKES: Duration = Duration::from_secs(5);

/// How long it waits for the end of the task that makes them.
const SECOND_LOCATION_ENDS: Duration = Duration::from_secs(1);

/// The interval at which a close looks whether tasks have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The tasks that have ended, or will. A task that hangs at the second location is left alone: its
/// work is cancelled, so it installs nothing, and it deletes what it made, if the lease still lets
/// it.
fn without_hanging(jobs: &Jobs, mut handles: Vec<JoinHandle<()>>) -> Vec<JoinHandle<()>> {
    if !jobs.env().locations().exists() {
        return handles;
    }
    loop {
        let left = handles.iter().filter(|task| !task.is_finished()).count();
        if left <= jobs.hanging_count() {
            break;
        }
        jobs.abandon_hanging();
        jobs.env().runtime().sleep(LOOK_AGAIN);
    }
    let all = handles.len();
    handles.retain(JoinHandle::is_finished);
    if handles.len() < all {
        tracing::warn!(
            "a task hangs at the second location of tables; the store closes without it"
        );
    }
    handles
}

/// Refuses all changes from here on. It holds every role that changes storage meanwhile, so a
/// leader, an edit or a create that comes later finds the store closed, even if it passed a check
/// before. Returns false if the store was being closed already.
fn refuse_changes(commit: &Commit) -> bool {
    // Whoever waits for the storage may have one of these roles.
    commit.env().outage().end_waits();
    let _changes = commit.catalog().changes();
    let lead = commit.lead();
    let role = commit.catalog().role();
    let first = commit.env().begin_closing();
    commit.env().health().close();
    drop(role);
    lead.finish();
    first
}

/// Releases the files and the memory that handles and cursors would keep although a closed store
/// does not need them: the files of the log and the manifest, and the memtables that nobody reads.
fn release(catalog: &Catalog) {
    catalog.wal().release();
    catalog.role().release();
    for keyspace in catalog.keyspaces().by_id.values() {
        keyspace.close(catalog.tree().tables());
    }
    catalog.tree().arenas().release_kept();
}

/// Records in the manifest where the log ends, so that a log that ends earlier is known to be
/// damaged. The log is synced through that end.
///
/// If there is no room for the edit, the close still succeeds. Everything is durable; only damage
/// at the end of this log would look like writes that were never synced, as after a kill.
fn write_log_end(catalog: &Catalog) -> Result<()> {
    if catalog.env().health().is_poisoned() {
        return catalog.env().health().check_manifest();
    }
    match catalog.commit_close() {
        Err(error) if may_wait(&error) => {
            tracing::warn!(%error, "closed without a record of where the log ends");
            Ok(())
        }
        result => result,
    }
}

/// The last step of a close. After it, the store is as large as its data and can be opened on a
/// full disk.
///
/// Everything is synced before this step, and it changes only what no open reads:
/// - the log segments below the log start of the last edit are deleted;
/// - the log gives back the space that it reserved in advance
///   ([`LogWriter::shrink`](crate::formats::log::LogWriter::shrink) says why this loses no record);
/// - then, because there is more room now, the space that is reserved for an open on a full disk is
///   resized in place to fit the manifest. Nothing refers to that space.
///
/// So a crash or a failure here loses nothing, and a failure does not make the close fail.
fn give_space_back(catalog: &Catalog) -> Result<()> {
    delete_old_manifests(catalog);
    // Segments that fit go to the pool, which `shrink` deletes.
    let deleted = delete_obsolete_segments(catalog);
    let shrunk = catalog.wal().shrink(crate::catalog::reserve::LOG_BYTES);
    crate::catalog::reserve::make(catalog)?;
    // A deletion at the second location that is lost is repeated by the next open.
    for (folder, parts) in catalog.env().storages().folders() {
        if !parts.redirected {
            folder.sync_dir(catalog.env().epoch())?;
        }
    }
    deleted.and(shrunk)
}
