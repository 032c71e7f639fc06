//! What an engine can do, as far as settings depend on it.

use serde::{Deserialize, Serialize};

/// What an acknowledged write without a sync survives. Only engines with the same promise are
/// compared; a weaker one is named in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    /// It may be lost if the process is killed.
    Memory,
    /// It survives the end of the process. A loss of power may damage the whole store, and older
    /// writes with it.
    Fragile,
    /// It survives the end of the process. A loss of power takes the latest writes only, and leaves
    /// the store as it was before them.
    Process,
    /// It survives a loss of power.
    Power,
}

/// What an engine can do beyond puts, gets, deletes and scans. A workload that needs more is
/// refused for the engine before the run begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    /// What an unsynced write survives.
    pub unsynced: Promise,
    /// Synced writes survive a loss of power.
    pub sync: bool,
    /// Iterators move backward.
    pub reverse: bool,
    /// Sorted tables can be ingested.
    pub ingest: bool,
    /// One call reads many keys.
    pub multi_get: bool,
    /// The whole store can be compacted on request.
    pub compact: bool,
    /// Several threads may write at once.
    pub threads: bool,
}

impl Abilities {
    /// Those of an engine that can do everything. An experiment is checked against them when its
    /// file is read, because the engine is chosen later.
    pub const ALL: Abilities = Abilities {
        unsynced: Promise::Power,
        sync: true,
        reverse: true,
        ingest: true,
        multi_get: true,
        compact: true,
        threads: true,
    };
}
