//! The end of an open store: changes are refused, tasks end, the log's end is written, the lease is
//! given back.
//!
//! Invariants: the order of the steps, which [`Background::close`] and [`Background::end_tasks`]
//! state. Nobody who passed a check before goes on after the lease is gone.
//!
//! Threading: the closing thread. It holds no lock while it waits for the tasks.

use siltstone_storage::planted::{self, Bug};

use super::Background;
use crate::catalog::Catalog;
use crate::catalog::edits::may_wait;
use crate::catalog::obsolete::{delete_again, delete_obsolete_segments, delete_old_manifests};
use crate::commit::Commit;
use crate::jobs::schedule;
use crate::services::parts::Parts;
use crate::stats::published;
use crate::types::error::{Result, closed};

impl Background {
    /// Ends the tasks, syncs the log, writes where it ends, and gives the lease back.
    ///
    /// # Errors
    /// `Closed` if that was done before; what poisoned the store; what failed on the way. The store
    /// is closed after any of these.
    pub(crate) fn close(&self) -> Result<()> {
        let Parts {
            env, wal, catalog, ..
        } = &self.parts;
        // A poisoned store cannot promise what was not synced before, and never tries that sync
        // again: the caller gets the error.
        let poisoned = match env.health().is_poisoned() {
            true => env.health().check_manifest(),
            false => Ok(()),
        };
        if !refuse_changes(&self.parts.commit) {
            return Err(closed());
        }
        let mut result = poisoned.and_then(|()| match planted::is(Bug::CloseWithoutSync) {
            true => Ok(()),
            false => wal.sync_log_through(wal.log().end()),
        });
        self.end_tasks(|| {
            if result.is_ok() {
                // After the last task: no edit follows this one.
                result = write_log_end(catalog);
            }
            match &result {
                Ok(()) => tracing::info!(store = env.storages().manifest.describe(), "closed"),
                Err(error) => tracing::error!(%error, "closed after a failure"),
            }
            // What the last jobs made obsolete goes now rather than at the next open. A poisoned
            // store changes nothing any more.
            if result.is_ok() {
                published::withdraw(env, &self.own_file);
                let tables = &self.parts.tree.tables();
                tables.sweep(env.epoch(), || env.health().is_poisoned());
                delete_again(env);
                if let Err(error) = give_space_back(catalog) {
                    tracing::warn!(%error, "the closed store takes more space than it needs");
                }
            }
        });
        result
    }

    /// Ends the tasks and gives the lease back, unless that was done. Makes no storage call itself.
    pub(crate) fn stop(&self) {
        if refuse_changes(&self.parts.commit) {
            self.end_tasks(|| ());
        }
    }

    /// Ends the tasks, does `last` while the store still has the lease, and gives the lease back.
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
        wal.wake_interval_sync();
        env.pressure().notify();
        let handles = std::mem::take(&mut *self.handles.lock());
        for handle in handles {
            // A task that panicked beyond what `guarded` covers has said so on standard error. The
            // store's data is in the log and in tables.
            let _ = handle.join();
        }
        // Callers that bring files in see the close soon, and delete what they began to write.
        env.ingests().wait_until_none_left();
        last();
        tree.tables().set_closed();
        let_go(catalog);
        env.events().end();
        // The lease goes when no task can write any more.
        env.give_lease_back();
    }
}

/// Refuses all changes from here on, inside every role that changes storage. So nobody who passed a
/// check before goes on after the lease is gone: a late leader, a late edit and a late create all
/// find the store closed. Returns false if the store was being closed already.
fn refuse_changes(commit: &Commit) -> bool {
    if planted::is(Bug::CloseOutsideRoles) {
        return commit.env().begin_closing();
    }
    let _ddl = commit.catalog().changes();
    let lead = commit.lead();
    let role = commit.catalog().role();
    let first = commit.env().begin_closing();
    commit.env().health().close();
    drop(role);
    lead.finish();
    first
}

/// Lets go of what a closed store does not need any more and what its handles and cursors would
/// keep otherwise: the files of the log and the manifest, and the memtables that nobody reads.
fn let_go(catalog: &Catalog) {
    catalog.wal().log().release();
    catalog.role().manifest.release();
    for keyspace in catalog.keyspaces().by_id.values() {
        keyspace.close(catalog.tree().tables());
    }
    catalog.tree().arenas().release_kept();
}

/// Writes into the manifest where the log ends, so that a log which ends earlier is known to be
/// damaged. The log is synced through that end.
///
/// Without room for the edit the close succeeds all the same: everything is durable, and only
/// damage at the end of this log would look like writes that were never synced, as after a kill.
fn write_log_end(catalog: &Catalog) -> Result<()> {
    if planted::is(Bug::CloseWithoutEnd) {
        return Ok(());
    }
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

/// The last step of a close, after which a closed store is as large as its data and opens on a full
/// disk. Everything is synced before this step, and a crash within it changes only what no open
/// reads:
/// - the log segments below the log start of the last edit are deleted;
/// - the log gives back what it wrote ahead
///   ([`LogWriter::shrink`](crate::formats::log::LogWriter::shrink) says why no record can be lost
///   by that);
/// - then, because there is more room now, the space kept for a full disk is resized in place to
///   fit the manifest. Nothing refers to that space.
///
/// So a failure here loses nothing, and the close does not fail for it.
fn give_space_back(catalog: &Catalog) -> Result<()> {
    delete_old_manifests(catalog);
    // Segments that fit go to the pool, which `shrink` deletes.
    let deleted = match planted::is(Bug::ObsoleteStaysAtClose) {
        true => Ok(()),
        false => delete_obsolete_segments(catalog),
    };
    let shrunk = catalog
        .wal()
        .log()
        .shrink(crate::catalog::reserve::LOG_BYTES);
    crate::catalog::reserve::make(catalog)?;
    for (folder, _) in catalog.env().storages().folders() {
        folder.sync_dir(catalog.env().epoch())?;
    }
    deleted.and(shrunk)
}
