//! Checks for leaks, which every row makes.
//!
//! [`World::nothing_is_left_over`] checks a store at rest, and [`World::nothing_is_left_behind`]
//! the folders of a store that was closed. Once all cursors and snapshots are dropped, no snapshot
//! is registered, no view holds a table that is no longer in a level, and the folders hold exactly
//! the one manifest and the tables that it names. This also holds after calls that failed, such as
//! a deletion, or a creation that took effect.
//!
//! Threading: as the world.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone::manifest::recover;
use siltstone::version::StoreState;
use siltstone_storage::Storage;

use super::World;
use super::outside::OWN_TABLES;
use crate::checker::Check;

/// The prefix of the names of manifests.
const MANIFEST: &str = "MANIFEST-";

/// The time in which every job ends or is abandoned: executors of the trials hang up to 300 s.
const JOBS_END: Duration = Duration::from_secs(400);

/// The names of all tables in the levels of a store.
fn named_tables(state: &StoreState) -> BTreeSet<String> {
    let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
    tables.map(|(_, table)| table.name.clone()).collect()
}

impl World {
    /// Checks that a store at rest holds no view or snapshot for readers, and that its folders hold
    /// exactly the tables of its levels and one manifest. No cursor and no snapshot may exist.
    ///
    /// # Errors
    /// A file or a registration is left over or missing; the error names it.
    pub fn nothing_is_left_over(&self) -> Check {
        let hooks = self.store.test_hooks();
        let mut difference = String::new();
        // Maintenance may still be deleting. A job of a dropped keyspace may still run, on an
        // executor that hangs longer than the rounds take. Its files are then not left over yet.
        let mut rounds_left = 3;
        let end = self.runtime.now() + JOBS_END;
        while rounds_left > 0 {
            hooks.delete_obsolete();
            let stats = self.store.stats();
            if stats.jobs.is_empty() || self.runtime.now() >= end {
                rounds_left -= 1;
            }
            let held = (stats.snapshot_count, stats.pinned_table_count);
            difference = match held {
                (0, 0) => match self.compare_folders(&hooks.state(), false)? {
                    None => {
                        self.reach("tables.counted");
                        return Ok(());
                    }
                    Some(difference) => difference,
                },
                (snapshots, tables) => format!(
                    "all handles are dropped, but {snapshots} snapshots are registered and \
                     {tables} tables held"
                ),
            };
            self.runtime.sleep(Duration::from_secs(2));
        }
        Err(format!("a store at rest: {difference}"))
    }

    /// Whether a close of the store must leave exactly the files that the manifest names, because
    /// no edit and no ingest is unfinished and no file was damaged.
    pub fn leaves_nothing(&self) -> bool {
        let hooks = self.store.test_hooks();
        let is_settled = |name: &String| {
            let keyspace = self.store.keyspace(name);
            keyspace.is_ok_and(|keyspace| hooks.unsettled_run_count(&keyspace) == 0)
        };
        self.errors != super::Errors::Damaged
            && self.store.stats().health == "good"
            && hooks.pending_edit_count() == 0
            && self.store.keyspaces().iter().all(is_settled)
    }

    /// Checks the folders of a store that was closed when no cursor and no snapshot of it existed.
    ///
    /// # Errors
    /// A file or a registration is left over or missing; the error names it.
    pub fn nothing_is_left_behind(&self) -> Check {
        let state = recover(&self.medium).map_err(|e| e.to_string())?;
        let Some(state) = state else {
            return Err("a store that was closed has no manifest".into());
        };
        match self.compare_folders(&state.state, true)? {
            None => {
                self.reach("folder.exact");
                Ok(())
            }
            Some(difference) => Err(format!("a store that was closed: {difference}")),
        }
    }

    /// The differences between the files in the folders and the files that the manifest names.
    fn compare_folders(
        &self,
        state: &StoreState,
        is_closed: bool,
    ) -> Result<Option<String>, String> {
        let named = named_tables(state);
        let list = |storage: &dyn Storage, is_meant: fn(&str) -> bool| {
            let objects = storage.list().map_err(|e| e.to_string())?;
            let names = objects.into_iter().map(|object| object.name);
            Ok::<BTreeSet<String>, String>(names.filter(|name| is_meant(name)).collect())
        };
        let mut tables = list(&*self.storage, |name| name.ends_with(".tbl"))?;
        if let Some(redirect) = &self.redirect {
            tables.append(&mut list(&**redirect, |name| name.ends_with(".tbl"))?);
        }
        if let Some(missing) = named.difference(&tables).next() {
            return Ok(Some(format!("table {missing} is missing")));
        }
        // The store does not own a table that the test wrote here to be ingested, if the ingest was
        // refused. Files that executors leave against their promise stay until the next open, and
        // so do files of attempts that were abandoned right before a close.
        let is_ours = |name: &&String| {
            !name.contains(OWN_TABLES) && !self.other_executors.may_leave(name, is_closed)
        };
        if let Some(left) = tables.difference(&named).find(is_ours) {
            return Ok(Some(format!(
                "table {left} is left over; the levels have {named:?}"
            )));
        }
        let manifests = list(&self.medium, |name| name.starts_with(MANIFEST))?;
        Ok((manifests.len() != 1).then(|| format!("the folder holds {manifests:?}")))
    }
}
