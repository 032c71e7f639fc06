//! The public interface: stores, keyspaces, batches, and the calls on them.

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
