//! An embedded key-value store on a log-structured merge tree that keeps writers from waiting for compaction.

pub mod batch;
pub mod compaction;
pub mod error;
pub mod log;
pub mod manifest;
pub mod memtable;
pub mod version;

pub use error::{Error, ErrorKind, Result};
