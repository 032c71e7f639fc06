//! Checks for leaks, which every row makes.
//!
//! [`World::nothing_is_left_over`] checks a store at rest, and [`World::nothing_is_left_behind`]
//! the folders of a store that was closed. Once all cursors and snapshots are dropped, no snapshot
//! is registered, no view holds a table that is no longer in a level, and the folders hold exactly
//! the one manifest and the tables that it names, each at the location that it names. This also
//! holds after calls that failed, such as a deletion, or a creation that took effect.
//!
//! Threading: as the world.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use siltstone::manifest::recover;
use siltstone::version::{StoreState, TableMeta};
use siltstone_storage::Storage;

use super::World;
use super::outside::OWN_TABLES;
use crate::checker::Check;

/// The prefix of the names of manifests.
const MANIFEST: &str = "MANIFEST-";

/// The time in which every job ends or is abandoned: executors of the trials hang up to 300 s.
const JOBS_END: Duration = Duration::from_secs(400);

/// A table's location and name.
type Place = (u32, String);

/// All tables in the levels of a store.
fn named_tables(state: &StoreState) -> BTreeSet<Place> {
    let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
    let place = |table: &TableMeta| (table.location, table.name.clone());
    tables.map(|(_, table)| place(table)).collect()
}

/// The number of tables in the levels of a store that are at the second location.
pub(crate) fn redirected_count(state: &StoreState) -> usize {
    let tables = named_tables(state);
    let redirected = tables.iter().filter(|(location, _)| *location != 0);
    redirected.count()
}

fn names(storage: &dyn Storage) -> Result<impl Iterator<Item = String>, String> {
    let objects = storage.list().map_err(|e| e.to_string())?;
    Ok(objects.into_iter().map(|object| object.name))
}

/// The first difference between the tables in the levels of a store and the files at its locations,
/// the first one first. Files of which `is_ours` says that they are not the store's may be there.
///
/// # Errors
/// A folder cannot be listed.
pub(crate) fn difference_of_tables<'a>(
    state: &StoreState,
    locations: impl Iterator<Item = &'a Arc<dyn Storage>>,
    is_ours: impl Fn(&str) -> bool,
) -> Result<Option<String>, String> {
    let named = named_tables(state);
    let mut found = BTreeSet::new();
    for (location, storage) in (0..).zip(locations) {
        let tables = names(&**storage)?.filter(|name| name.ends_with(".tbl"));
        found.extend(tables.map(|name| (location, name)));
    }
    if let Some((location, missing)) = named.difference(&found).next() {
        return Ok(Some(format!(
            "table {missing} is missing at location {location}"
        )));
    }
    let mut left = found.difference(&named).filter(|(_, name)| is_ours(name));
    Ok(left.next().map(|(location, left)| {
        format!("table {left} is left over at location {location}; the levels have {named:?}")
    }))
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

    /// Waits until compactions have brought all tables of the second location back, and checks that
    /// nothing is left over at either location. No cursor and no snapshot may exist.
    ///
    /// # Errors
    /// A job fails, a table is still at the second location, or something is left over.
    pub fn all_tables_come_back(&self) -> Check {
        let idle = self.store.wait_until_idle();
        idle.map_err(|e| format!("waiting for the tables to come back: {e}"))?;
        match self.redirected_count() {
            0 => self.nothing_is_left_over(),
            count => Err(format!("{count} tables stay at the second location")),
        }
    }

    /// The number of tables in the levels that are at the second location.
    pub fn redirected_count(&self) -> usize {
        redirected_count(&self.store.test_hooks().state())
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
        // The store does not own a table that the test wrote here to be ingested, if the ingest was
        // refused. Files that executors leave against their promise stay until the next open, and
        // so do files of attempts that were abandoned right before a close.
        let is_ours = |name: &str| {
            !name.contains(OWN_TABLES) && !self.other_executors.may_leave(name, is_closed)
        };
        let locations = [&self.storage].into_iter().chain(&self.redirect);
        let difference = difference_of_tables(state, locations, is_ours)?;
        if difference.is_some() {
            return Ok(difference);
        }
        let manifests = names(&self.medium)?;
        let manifests = manifests.filter(|name| name.starts_with(MANIFEST));
        let manifests: BTreeSet<String> = manifests.collect();
        Ok((manifests.len() != 1).then(|| format!("the folder holds {manifests:?}")))
    }
}
