//! Deletes files that nothing needs any more: tables, log segments, manifests, and files whose
//! deletion failed before.
//!
//! Threading: called by maintenance, an open and a close. Only the lock of the folder is held over
//! a deletion.

use crate::catalog::Catalog;
use crate::env::Env;
use crate::types::error::Result;
use crate::types::event::Event;

/// Deletes tables that no view and no manifest names, log segments below the log's start, and old
/// manifests.
pub(crate) fn delete_obsolete(catalog: &Catalog) {
    let mut deleted = catalog
        .tree
        .tables()
        .sweep(catalog.env.epoch(), || catalog.env.health().is_poisoned());
    deleted += delete_again(&catalog.env);
    catalog.env.metrics().deleted_file_count.add(deleted);
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

/// Tries failed deletions again, and returns how many files are gone now.
pub(crate) fn delete_again(env: &Env) -> u64 {
    // While the manifest is in doubt, it may name files that no handle holds.
    if env.health().is_poisoned() {
        return 0;
    }
    let gone = env.delete_again();
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
