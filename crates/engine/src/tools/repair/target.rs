//! The store that a repair makes: tables first, then an empty log and a manifest, and the pointer last.
//!
//! Invariants: a marker stands in the folder from before the first byte until the store is complete, so whatever a crash leaves is known to be
//! a repair's and can be made again; a folder that holds anything else is refused. The pointer comes last, so nothing opens a half-made store.
//!
//! Threading: one task.

use std::sync::Arc;

use siltstone_storage::{Epoch, Runtime, Storage, StorageErrorKind};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap, StreamSource};
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, LAYOUT_VERSION, OutputLimits,
    OutputPrefix,
};

use super::RepairOptions;
use crate::formats::log::{LogConfig, LogOptions, LogWriter};
use crate::formats::manifest::format::parse_manifest_name;
use crate::formats::manifest::{CURRENT_NAME, Manifest, Space, StoreId, read_current};
use crate::formats::names::MARKER_TEXT;
use crate::formats::version::meta::meta_of;
use crate::formats::version::{StoreState, TableMeta};
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;

/// Stands in the folder while it is being made.
pub(super) const MARKER: &str = crate::formats::names::PARTIAL;

/// The open number in the names of the tables, and of the first manifest.
pub(super) const OPEN_NUMBER: u64 = 1;

/// Bytes of the log's segment, which stays empty: the first open begins one of its own.
const SEGMENT_BYTES: u64 = 4096;

/// A store being made.
pub(super) struct Target {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    runtime: Runtime,
    pub(super) id: StoreId,
}

impl Target {
    /// Begins: an empty folder, or one in which an earlier repair did not come to its end.
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
                .advice("name a folder that is not there yet"));
            }
            // The pointer goes first, and the marker stays.
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
        let high = u128::from(runtime.random_u64()) << 64;
        let id = StoreId(high | u128::from(runtime.random_u64()));
        let text = format!("{MARKER_TEXT}\nstore {id}\n");
        storage.replace(epoch, MARKER, text.as_bytes())?;
        Ok(Target {
            storage,
            epoch,
            runtime: runtime.clone(),
            id,
        })
    }

    /// The present, in microseconds since 1970.
    pub(super) fn now_us(&self) -> u64 {
        self.runtime.unix_micros()
    }

    /// Writes a keyspace's entries as tables, synced, of ids from `next_id` on.
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
            keyspace,
            layout_version: LAYOUT_VERSION,
            inputs: vec![Input {
                kind: InputKind::Stream,
                location: 0,
                name: NAME.to_string(),
                run: 0,
                len_bytes: 0,
                digest: 0,
                min_seq: 0,
                max_seq: largest,
                clip: KeyBounds::everything(),
                seq_override: None,
            }],
            bounds: KeyBounds::everything(),
            hard_cuts: Vec::new(),
            soft_cuts: Vec::new(),
            published: largest,
            snapshots: Vec::new(),
            rules: DropRules::ALL,
            now_us: self.runtime.unix_micros(),
            older: Vec::new(),
            limits: OutputLimits::new(options.table_bytes, options.block_bytes, false),
            format: FormatOptions {
                codec: Codec::None,
                level: 0,
                bits_per_key: options.bloom_bits_per_key,
                verify: true,
            },
            extensions: Vec::new(),
            output: OutputPrefix {
                epoch: OPEN_NUMBER,
                attempt: u64::from(keyspace) + 1,
            },
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
        let metas = outcome.tables.into_iter().map(|table| {
            let id = *next_id;
            *next_id += 1;
            Arc::new(meta_of(table, id))
        });
        Ok(metas.collect())
    }

    /// Makes the store complete. `state` lacks the log's start.
    pub(super) fn finish(self, state: StoreState) -> Result<()> {
        let log = LogWriter::start(LogConfig {
            storage: self.storage.clone(),
            epoch: self.epoch,
            runtime: self.runtime.clone(),
            store_id: crate::formats::directories::log_store_id(self.id),
            options: LogOptions {
                segment_bytes: SEGMENT_BYTES,
                recycle_count: 0,
            },
            reserve: None,
            last_known_segment: 0,
            on_poison: Box::new(|_| {}),
        })?;
        let synced = log.sync_all()?;
        let state = StoreState {
            log_start: log.chain_start(),
            ..state
        }
        .closed_at(synced);
        state.check()?;
        self.storage.sync_dir(self.epoch)?;
        // The folder may be one that somebody has just made.
        self.storage.sync_place(self.epoch)?;
        Manifest::create(
            self.storage.clone(),
            self.epoch,
            self.id,
            Arc::new(state),
            Space::Fresh,
        )
        .map_err(Error::from)?;
        self.storage.delete(self.epoch, MARKER)?;
        Ok(self.storage.sync_dir(self.epoch)?)
    }

    /// Gives back what an attempt that failed has taken, as far as the storage lets us; the marker stays.
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

/// Whether the folder holds what a repair left that did not come to its end: its marker, and no store that was opened since.
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
    // An open writes a manifest of its own before it does anything else.
    Ok(ours && current.number == 1 && manifests <= 1)
}
