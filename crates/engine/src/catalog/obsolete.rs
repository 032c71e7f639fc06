//! Deletes files that nothing needs any more: tables, log segments, manifests, and files whose
//! deletion failed before.
//!
//! Threading: called by maintenance, an open and a close; for the second location of tables by a
//! task of its own, because a call there may hang. Only the lock of the folder is held over a
//! deletion.

use std::time::Duration;

use crate::catalog::Catalog;
use crate::env::Env;
use crate::formats::directories::REDIRECT;
use crate::types::error::Result;
use crate::types::event::Event;

/// How long somebody who waits until nothing is left to do waits for deletions at the second
/// location of tables.
const SECOND_LOCATION_TAKES: Duration = Duration::from_secs(1);

/// Deletes tables at this location that no view and no manifest names, and repeats deletions that
/// failed. Returns how many files are gone now.
pub(crate) fn delete_tables(catalog: &Catalog, location: u32) -> u64 {
    let env = &catalog.env;
    let tables = catalog.tree.tables();
    let deleted = tables.sweep(location, env.epoch(), || env.health().is_poisoned());
    let deleted = deleted + delete_again(env, location);
    env.metrics().deleted_file_count.add(deleted);
    deleted
}

/// Deletes obsolete tables at the second location.
pub(crate) fn delete_at_second_location(catalog: &Catalog) {
    delete_tables(catalog, REDIRECT);
}

/// Deletes everything that is obsolete, for a caller that waits for it. If the second location
/// hangs, what is there is deleted later.
pub(crate) fn delete_all_obsolete(catalog: &Catalog) {
    delete_obsolete(catalog);
    let (env, limit) = (&catalog.env, SECOND_LOCATION_TAKES);
    env.locations().wait_for_round(env.runtime(), limit);
}

/// Deletes tables at location 0 that no view and no manifest names, log segments below the log's
/// start, and old manifests. Lets those tables be deleted that are at the second location.
pub(crate) fn delete_obsolete(catalog: &Catalog) {
    if catalog.env.locations().exists() {
        catalog.env.locations().requests().notify();
    }
    let deleted = delete_tables(catalog, 0);
    if deleted > 0 && catalog.env.health().is_no_space() {
        // Some storages give space back only when the deletion is durable.
        let _ = catalog.env.storages().tables.sync_dir(catalog.env.epoch());
    }
    // The next round tries failed deletions again.
    let _ = delete_obsolete_segments(catalog);
    delete_old_manifests(catalog);
}

/// Retires the log segments below the manifest's log start.
pub(crate) fn delete_obsolete_segments(catalog: &Catalog) -> Result<()> {
    let start = catalog.role().manifest.state().log_start.segment;
    catalog.wal.obsolete(start as u32)
}

/// Tries failed deletions at the second location, or in all other folders, again. Returns how many
/// files are gone now.
fn delete_again(env: &Env, location: u32) -> u64 {
    // While the manifest is in doubt, it may name files that no handle holds.
    if env.health().is_poisoned() {
        return 0;
    }
    let gone = env.delete_again(location);
    let count = gone.len() as u64;
    for name in gone.into_iter().filter(|name| name.ends_with(".tbl")) {
        env.events().emit(|| Event::TableDeleted { name });
    }
    count
}

pub(crate) fn delete_old_manifests(catalog: &Catalog) {
    let old = catalog.role().manifest.take_obsolete();
    for name in old {
        let _ = catalog
            .env
            .storages()
            .manifest
            .delete(catalog.env.epoch(), &name);
    }
}
