//! An embedded key-value store on a log-structured merge tree that keeps writers from waiting for compaction.

#![deny(unsafe_code)]

mod background;
pub mod batch;
mod cache;
pub mod check;
pub mod compaction;
mod core;
mod ddl;
pub mod error;
mod flush;
mod guard;
mod health;
mod iter;
pub mod log;
pub mod manifest;
#[allow(unsafe_code)] // An island: see the module for the argument.
pub mod memtable;
mod metrics;
mod options;
mod read;
mod recovery;
mod snapshot;
pub mod stall;
mod stats;
mod store;
mod tables;
#[doc(hidden)]
pub mod testing;
pub mod version;
mod view;
mod write;

pub use batch::Batch;
pub use compaction::place::SideStats;
pub use compaction::schedule::JobStats;
pub use error::{Error, ErrorKind, Result};
pub use iter::{Cursor, IterOptions, Range, prefix_end};
pub use metrics::{Histogram, LatencySummary};
pub use options::{Compression, Options, SyncMode, Verify};
pub use read::PinnedValue;
pub use snapshot::Snapshot;
pub use stats::{KeyspaceStats, LevelStats, MemoryStats, Stats};
pub use store::{Components, DEFAULT_KEYSPACE, Keyspace, Store};
pub use write::WriteOptions;
