//! The storages and the log that an open for reading reads.
//!
//! Threading: plain data.

use std::ops::RangeInclusive;

use crate::formats::directories::Storages;

/// The storages of the folders that an open for reading reads (its own new files are in memory),
/// and the log segments that it replayed.
pub(crate) struct Below {
    pub(crate) storages: Storages,
    pub(crate) live: RangeInclusive<u32>,
}
