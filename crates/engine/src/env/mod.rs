//! What surrounds an open store: its storages and open files, its health, and later its clock, its
//! events and its notifiers.
//!
//! Nothing here knows keyspaces, tables or the log.

pub(crate) mod descriptors;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod session;
pub(crate) mod table_files;
pub(crate) mod wrapped_storage;
