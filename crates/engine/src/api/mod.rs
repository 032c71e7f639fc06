//! The public interface: stores, keyspaces, batches, and what is asked of them.

pub(crate) mod approximate;
pub mod batch;
pub(crate) mod export;
pub(crate) mod ingest;
pub(crate) mod keyspace;
pub(crate) mod properties;
pub(crate) mod store;
#[doc(hidden)]
pub mod testing;
pub(crate) mod verify;
