//! An embedded key-value store on a log-structured merge tree that keeps writers from waiting for
//! compaction.
//!
//! A [`Store`] is a folder with one log. It holds [`Keyspace`]s, which are ordered maps of bytes. A
//! write is a single call, or a [`Batch`] over any keyspaces, which is applied whole or not at all.
//! Reads are gets, [`Cursor`]s and iterators, which see the newest data or that of a [`Snapshot`].
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
//! store.write(&batch, WriteOptions::SYNC)?;
//!
//! assert_eq!(birds.get(b"wren")?, None);
//! assert_eq!(birds.get_at(&before, b"wren")?, Some(b"9 g".to_vec()));
//! let keys: Result<Vec<_>, _> = birds.iter()?.map(|pair| pair.map(|(key, _)| key)).collect();
//! assert_eq!(keys?, [b"robin".to_vec()]);
//! store.close()?;
//! # siltstone::Result::Ok(())
//! ```
//!
//! **What survives.** If the process is killed, nothing that was acknowledged is lost (on local
//! files). If power is lost, nothing that was synced is lost; of the writes that were not synced,
//! the newest may be lost: see [`SyncMode`] and [`WriteOptions::sync`]. **Errors** say what failed,
//! where, and what to do; match on [`ErrorKind`]. **Delays and jobs** are listed by
//! [`Store::stats`], each with its reason.
//!
//! The [guide] goes on from here: keyspaces, batches and snapshots, bulk data, durability, tuning,
//! and a table of calls for those who know RocksDB.
//!
//! [`Store::open_with`] takes [`Components`]: other storages, a simulated runtime, executors for
//! compactions. The modules below are public for tools and trials; only what is re-exported here is
//! meant to stay as it is. `ARCHITECTURE.md` at the root of the repository is the map of the code.

#![deny(unsafe_code)]

mod api;
mod background;
mod catalog;
mod commit;
mod env;
mod formats;
pub mod guide;
mod jobs;
#[cfg(doctest)]
mod must_not_compile;
mod services;
mod stats;
pub mod storage;
mod tools;
mod tree;
mod types;
mod wal;

#[cfg(feature = "planted")]
#[doc(hidden)]
pub use siltstone_storage::planted;

pub use crate::formats::names::BUILT_TABLE_SUFFIX;
pub use crate::services::budget::MemoryStats;
pub use crate::types::checkpoint::CheckpointReport;
pub use crate::types::limits::DEFAULT_KEYSPACE;
pub use api::approximate::{ApproximateSize, Estimate};
pub use api::batch::{self, Batch};
pub use api::keyspace::Keyspace;
pub use api::properties::KeyspaceProperties;
pub use api::store::{Components, Store};
#[doc(hidden)]
pub use api::testing;
pub use api::verify::VerifyReport;
pub use commit::stalls as stall;
pub use commit::write::WriteOptions;
pub use formats::directories::Storages;
pub use formats::names::is_store_file;
pub use formats::{log, manifest, version};
pub use services::ingest::{IngestMode, IngestReport};
pub use services::table_builder::{BuiltTable, TableBuilder, TableFile, TableFolder, TableOptions};
pub use stats::space::{Space, SpaceStats};
pub use stats::stats_file::{StatsFile, read_stats_file, read_stats_file_from};
pub use stats::{KeyspaceStats, LevelStats, LimitStats, PressureStats, Stats};
pub use tools::destroy::DestroyReport;
pub use tools::{check, inspect, repair};
pub use tree::iter::{Cursor, IterOptions, Range, prefix_end};
pub use tree::memtable;
pub use tree::read::PinnedValue;
pub use tree::snapshot::Snapshot;
pub use types::detect::Limit;
pub use types::error::{self, Error, ErrorKind, Result};
pub use types::event::{Event, EventListener};
pub use types::job_stats::{JobStats, LocationStats, QueueStats, SideStats};
pub use types::metrics::{Histogram, LatencySummary};
pub use types::options::difference::OptionDifference;
pub use types::options::{
    ByLevel, Change, Compression, DirectIo, FlushVerify, KeyspaceOptions, KeyspaceSettings,
    LevelTargets, Limits, Options, RedirectDir, ScheduleOptions, Scope, Setting, StallPolicy,
    SyncMode, ThirdScore, Value, Verify, setting, settings,
};

/// What to merge next.
pub mod compaction {
    pub use crate::tree::pick;
}
