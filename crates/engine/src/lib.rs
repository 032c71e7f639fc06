//! An embedded key-value store on a log-structured merge tree that keeps writers from waiting for compaction.
//!
//! A [`Store`] is a folder with one log. It holds [`Keyspace`]s, ordered maps of bytes. Writes are single calls or a [`Batch`] over any
//! keyspaces, all of it or nothing; reads are gets, [`Cursor`]s and iterators at the present or at a [`Snapshot`].
//!
//! ```
//! use siltstone::{Batch, Options, Store, WriteOptions};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("a.store");
//! let store = Store::open(&path, Options::default())?;
//! let birds = store.open_keyspace("birds")?;
//! birds.put(b"wren", b"9 g")?;
//!
//! let before = store.snapshot();
//! let mut batch = Batch::new();
//! batch.put(&birds, b"robin", b"18 g")?;
//! batch.delete(&birds, b"wren")?;
//! store.write(&batch, WriteOptions { sync: true })?;
//!
//! assert_eq!(birds.get(b"wren")?, None);
//! assert_eq!(birds.get_at(&before, b"wren")?, Some(b"9 g".to_vec()));
//! let keys: Result<Vec<_>, _> = birds.iter()?.map(|pair| pair.map(|(key, _)| key)).collect();
//! assert_eq!(keys?, [b"robin".to_vec()]);
//! store.close()?;
//! # siltstone::Result::Ok(())
//! ```
//!
//! **What survives.** A kill of the process loses nothing that was acknowledged (local files). Power loss loses nothing that was synced, and of
//! the rest a suffix: see [`SyncMode`] and [`WriteOptions::sync`]. **Errors** say what failed, where and what to do; [`ErrorKind`] is what to
//! match on. **Delays and jobs** are in [`Store::stats`], each with its reason.
//!
//! The [guide] goes on from here: keyspaces, batches and snapshots, bulk data, durability, tuning, and a table of calls for those who come from
//! RocksDB.
//!
//! [`Store::open_with`] takes [`Components`]: other storages, a simulated runtime, executors for compactions. The modules below are the store's
//! parts, public for tools, trials and whoever wants to look; only what is re-exported here is meant to stay as it is.
//! `ARCHITECTURE.md` at the root of the repository is the map.

#![deny(unsafe_code)]

mod allocator;
mod approximate;
mod atomics;
mod background;
pub mod batch;
mod budget;
mod build;
mod cache;
pub mod check;
mod checkpoint;
pub mod compaction;
mod core;
mod ddl;
mod descriptors;
mod destroy;
mod directories;
pub mod error;
mod event;
mod export;
#[cfg(feature = "metrics")]
mod facade;
mod flush;
mod gaps;
mod guard;
pub mod guide;
mod health;
mod ingest;
mod ingest_check;
pub mod inspect;
mod interval;
mod iter;
mod keyspace;
pub mod log;
pub mod manifest;
#[allow(unsafe_code)] // An island: see the module for the argument.
pub mod memtable;
mod metrics;
#[cfg(doctest)]
mod must_not_compile;
mod names;
mod options;
mod options_differ;
mod overlay;
mod pinning;
mod properties;
mod published;
mod read;
mod recovery;
pub mod repair;
mod reserve;
mod seal;
mod settings;
mod snapshot;
mod space;
pub mod stall;
mod stats;
pub mod storage;
mod store;
mod table_files;
mod tables;
#[doc(hidden)]
pub mod testing;
mod verify;
pub mod version;
mod view;
mod wrapped_storage;
mod write;

#[cfg(feature = "planted")]
#[doc(hidden)]
pub use siltstone_storage::planted;
#[cfg(not(feature = "planted"))]
use siltstone_storage::planted;

pub use approximate::{ApproximateSize, Estimate};
pub use batch::Batch;
pub use build::{
    BUILT_TABLE_SUFFIX, BuiltTable, TableBuilder, TableFile, TableFolder, TableOptions,
};
pub use checkpoint::CheckpointReport;
pub use compaction::place::SideStats;
pub use compaction::schedule::JobStats;
pub use destroy::DestroyReport;
pub use directories::Storages;
pub use error::{Error, ErrorKind, Result};
pub use event::{Event, EventListener};
pub use ingest::{IngestMode, IngestReport};
pub use iter::{Cursor, IterOptions, Range, prefix_end};
pub use keyspace::Keyspace;
pub use metrics::{Histogram, LatencySummary};
pub use names::is_store_file;
pub use options::{
    ByLevel, Change, Compression, DirectIo, FlushVerify, KeyspaceOptions, KeyspaceSettings,
    LevelTargets, Limits, Options, Scope, Setting, StallPolicy, SyncMode, Value, Verify, setting,
    settings,
};
pub use options_differ::OptionDifference;
pub use properties::KeyspaceProperties;
pub use published::{PublishedStats, read_published_stats, read_published_stats_from};
pub use read::PinnedValue;
pub use snapshot::Snapshot;
pub use space::{Space, SpaceStats};
pub use stats::{KeyspaceStats, LevelStats, MemoryStats, Stats};
pub use store::{Components, DEFAULT_KEYSPACE, Store};
pub use verify::VerifyReport;
pub use write::WriteOptions;
