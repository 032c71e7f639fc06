//! The store that a repair makes: tables first, then an empty log and a manifest, and the pointer
//! last.
//!
//! Invariants: a marker is in the folder from before the first byte until the store is complete, so
//! files that a crash leaves are recognised and can be made anew. A folder that holds anything else
//! is refused. The pointer comes last, so nothing opens an incomplete store.
//!
//! Threading: one task.

use std::sync::Arc;

use siltstone_storage::{Epoch, Runtime, Storage, StorageErrorKind};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap, StreamSource};
use siltstone_table::job::{FormatOptions, Input, Job, OutputLimits, OutputPrefix};

use super::RepairOptions;
use crate::formats::directories::random_id;
use crate::formats::manifest::{CURRENT_NAME, StoreId, parse_manifest_name, read_current};
use crate::formats::names::MARKER_TEXT;
use crate::formats::new_store;
use crate::formats::version::meta::metas_of;
use crate::formats::version::{StoreState, TableMeta};
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;

/// The file that marks the folder while the store is being made.
pub(super) const MARKER: &str = crate::formats::names::PARTIAL;

/// The open number in the names of the tables, and the number of the first manifest.
pub(super) const OPEN_NUMBER: u64 = 1;

/// A store being made.
pub(super) struct Target {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    runtime: Runtime,
    pub(super) id: StoreId,
}

impl Target {
    /// Begins in an empty folder, or in one with an unfinished repair.
    pub(super) fn begin(
        storage: Arc<dyn Storage>,
        epoch: Epoch,
        runtime: &Runtime,
    ) -> Result<Target> {
        let objects = storage.list()?;
        if !objects.is_empty() {
            if !is_unfinished(&*storage)? {
                return Err(Error::invalid_argument(format!(
                    "the folder for the repaired store, {}, is not empty",
                    storage.describe()
                ))
                .found(&objects[0].name)
                .advice("name a folder that does not exist yet"));
            }
            // The pointer is deleted first, and the marker stays.
            let (pointer, others): (Vec<_>, Vec<_>) = objects
                .into_iter()
                .filter(|o| o.name != MARKER)
                .partition(|o| o.name == CURRENT_NAME);
            for object in pointer {
                storage.delete(epoch, &object.name)?;
                storage.sync_dir(epoch)?;
            }
            for object in others {
                storage.delete(epoch, &object.name)?;
            }
            storage.sync_dir(epoch)?;
        }
        let id = random_id(runtime);
        let text = format!("{MARKER_TEXT}\nstore {id}\n");
        storage.replace(epoch, MARKER, text.as_bytes())?;
        Ok(Target {
            storage,
            epoch,
            runtime: runtime.clone(),
            id,
        })
    }

    /// The present time, in microseconds since 1970.
    pub(super) fn now_us(&self) -> u64 {
        self.runtime.unix_micros()
    }

    /// Writes a keyspace's entries as synced tables, with ids from `next_id` on.
    pub(super) fn write_tables(
        &self,
        keyspace: KeyspaceId,
        largest: u64,
        source: Arc<dyn StreamSource>,
        options: &RepairOptions,
        next_id: &mut u64,
    ) -> Result<Vec<Arc<TableMeta>>> {
        const NAME: &str = "salvaged";
        let job = Job {
            now_us: self.runtime.unix_micros(),
            // The stream is all that the keyspace will hold.
            older: Vec::new(),
            ..Job::of_stream(
                keyspace,
                Input::of_stream(NAME, 0..=largest),
                OutputLimits::new(options.table_bytes, options.block_bytes, false),
                FormatOptions {
                    codec: Codec::None,
                    level: 0,
                    bits_per_key: options.bloom_bits_per_key,
                    verify: true,
                },
                OutputPrefix {
                    epoch: OPEN_NUMBER,
                    attempt: u64::from(keyspace) + 1,
                },
            )
        };
        let mut inputs = InputMap::new();
        inputs.add_stream(0, NAME, source);
        let context = ExecContext::new(
            self.runtime.clone(),
            Arc::new(inputs),
            self.storage.clone(),
            self.epoch,
        );
        let outcome = CpuExecutor::new().run(&job, &context)?;
        Ok(metas_of(outcome.tables, next_id))
    }

    /// Completes the store. `state` does not have the log's start yet.
    pub(super) fn finish(self, state: StoreState) -> Result<()> {
        new_store::create(&self.storage, self.epoch, &self.runtime, self.id, state)?;
        self.storage.delete(self.epoch, MARKER)?;
        Ok(self.storage.sync_dir(self.epoch)?)
    }

    /// Deletes what a failed attempt has written, as far as the storage allows. The marker stays.
    pub(super) fn give_up(storage: &dyn Storage, epoch: Epoch) {
        if !is_unfinished(storage).unwrap_or(false) {
            return;
        }
        for object in storage.list().unwrap_or_default() {
            if object.name != MARKER && object.name != CURRENT_NAME {
                let _ = storage.delete(epoch, &object.name);
            }
        }
        let _ = storage.sync_dir(epoch);
    }
}

/// Whether the folder has an unfinished repair: its marker, and no store that was opened since.
fn is_unfinished(storage: &dyn Storage) -> Result<bool> {
    let marker = match storage.read_small(MARKER) {
        Ok(marker) => marker,
        Err(error) if error.kind == StorageErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    let current = match read_current(storage) {
        Ok(current) => current,
        Err(error) if error.is_corruption() => return Ok(false),
        Err(error) => return Err(error),
    };
    let Some(current) = current else {
        return Ok(true);
    };
    let ours = String::from_utf8_lossy(&marker).contains(&format!("store {}\n", current.store_id));
    let manifests = storage
        .list()?
        .iter()
        .filter(|o| parse_manifest_name(&o.name).is_some())
        .count();
    // Every open writes a manifest of its own before anything else.
    Ok(ours && current.number == 1 && manifests <= 1)
}
