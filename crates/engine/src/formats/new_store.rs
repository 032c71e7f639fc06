//! Makes a new store of finished tables: the last step of a checkpoint or a repair.
//!
//! Invariant: the pointer to the manifest is written last, when everything else is durable. So
//! before that nothing opens the store, and after it the store is complete and closed.
//!
//! Threading: one task.

use std::sync::Arc;

use siltstone_storage::{Epoch, Runtime, Storage};

use crate::formats::directories::log_store_id;
use crate::formats::log::format::MIN_SEGMENT_BYTES;
use crate::formats::log::{LogConfig, LogOptions, LogWriter};
use crate::formats::manifest::{Manifest, Space, StoreId};
use crate::formats::version::StoreState;
use crate::types::error::Result;

/// Makes a store of the tables that `state` names, which are written and synced: an empty log, and
/// a manifest with this state, to which the log's start is added.
pub(crate) fn create(
    storage: &Arc<dyn Storage>,
    epoch: Epoch,
    runtime: &Runtime,
    id: StoreId,
    state: StoreState,
) -> Result<()> {
    let log = LogWriter::start(LogConfig {
        storage: storage.clone(),
        epoch,
        runtime: runtime.clone(),
        store_id: log_store_id(id),
        options: LogOptions {
            // It stays empty: the first open begins a segment of its own.
            segment_bytes: MIN_SEGMENT_BYTES,
            recycle_count: 0,
        },
        reserve: None,
        last_known_segment: 0,
        on_poison: Box::new(|_| ()),
    })?;
    let synced = log.sync_all()?;
    let state = StoreState {
        log_start: log.chain_start(),
        ..state
    };
    let state = Arc::new(state.closed_at(synced));
    state.check()?;
    // This makes the names of the tables and of the segment durable.
    storage.sync_dir(epoch)?;
    // The folder may have been made just now.
    storage.sync_parents(epoch)?;
    // This syncs the manifest and its name, and writes the pointer.
    Manifest::create(storage.clone(), epoch, id, state, Space::Fresh)?;
    Ok(())
}
