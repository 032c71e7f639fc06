//! The open log: when it is synced.
//!
//! Nothing here knows keyspaces.

pub(crate) mod interval;
