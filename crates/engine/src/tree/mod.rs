//! The data of a keyspace: memtables, tables and the views over them, point reads, cursors, and the
//! choice of what to merge next.
//!
//! Nothing here writes the log or the manifest, and nothing here knows who calls.

pub(crate) mod atomics;
pub(crate) mod cache;
pub(crate) mod gaps;
pub(crate) mod iter;
#[allow(unsafe_code)] // An island: see the module for the argument.
pub mod memtable;
pub mod pick;
pub(crate) mod pinning;
pub(crate) mod read;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod tables;
pub(crate) mod view;
