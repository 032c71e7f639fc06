//! Bytes and what they mean: the log, the manifest, the versions that it describes, batches, the
//! names of files and the folders that they lie in.
//!
//! Nothing here depends on an open store, so the tools that read a closed or damaged store use it
//! as well.

pub(crate) mod batch;
pub(crate) mod directories;
pub(crate) mod file_bytes;
pub mod log;
pub mod manifest;
pub(crate) mod names;
pub(crate) mod new_store;
pub(crate) mod options_file;
pub mod version;
