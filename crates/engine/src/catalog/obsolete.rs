//! Files that nothing needs any more: tables, log segments, manifests, and what could not be deleted
//! before.
//!
//! Threading: maintenance, an open and a close; no lock is held over a deletion but that of the
//! folder.

use siltstone_storage::planted::{self, Bug};

use crate::catalog::Catalog;
use crate::env::Env;
use crate::types::error::Result;
use crate::types::event::Event;

/// Deletes tables that no view and no manifest names, log segments below the log's start, and old manifests.
pub(crate) fn delete_obsolete(core: &Catalog) {
    let mut deleted = core.tables.sweep(core.epoch, || core.health.is_poisoned());
    deleted += delete_again(core);
    core.metrics.deleted_file_count.add(deleted);
    if deleted > 0 && core.health.is_no_space() {
        // Some storages give space back only with the durable deletion.
        let _ = core.storages.tables.sync_dir(core.epoch);
    }
    // Failed deletions are tried again with the next round.
    let _ = delete_obsolete_segments(core);
    delete_old_manifests(core);
}

/// Retires the log segments below the manifest's log start.
pub(crate) fn delete_obsolete_segments(core: &Catalog) -> Result<()> {
    let start = core.manifest.lock().manifest.state().log_start.segment;
    core.log.obsolete(start as u32).map(drop)
}

/// Tries failed deletions again, and returns how many files are gone now.
pub(crate) fn delete_again(core: &Env) -> u64 {
    // While the manifest is in doubt, it may name files that no handle holds.
    if core.health.is_poisoned() {
        return 0;
    }
    let gone = core.guards.delete_again(core.epoch);
    let count = gone.len() as u64;
    for name in gone.into_iter().filter(|name| name.ends_with(".tbl")) {
        core.events.tell(|| Event::TableDeleted { name });
    }
    count
}

pub(crate) fn delete_old_manifests(core: &Catalog) {
    let old = core.manifest.lock().manifest.take_obsolete();
    for name in old {
        if planted::is(Bug::OldManifestStays) {
            continue;
        }
        let _ = core.storages.manifest.delete(core.epoch, &name);
    }
}
