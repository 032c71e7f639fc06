//! The kinds of operations, each of which has latencies of its own.

use serde::{Deserialize, Serialize};

/// What a latency is that of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One put.
    Put,
    /// One batch of puts.
    Batch,
    /// One delete.
    Delete,
    /// A read of a record that the store has.
    Get,
    /// A read of a key that the store does not have.
    GetMissing,
    /// One call that reads many keys.
    MultiGet,
    /// A seek with a new iterator, and the entries that are read after it.
    Seek,
    /// Up to 1024 entries of a scan of the whole store.
    Scan,
    /// An insert of a new record (YCSB).
    Insert,
    /// An overwrite of a record (YCSB).
    Update,
    /// A read of a record and an overwrite of it (YCSB).
    ReadModifyWrite,
    /// An open of the store.
    Open,
    /// A compaction of the whole store.
    Compact,
    /// Adding all records as tables.
    Ingest,
}

impl Kind {
    /// All kinds, in the order in which reports list them.
    pub const ALL: [Kind; 14] = [
        Kind::Put,
        Kind::Batch,
        Kind::Delete,
        Kind::Get,
        Kind::GetMissing,
        Kind::MultiGet,
        Kind::Seek,
        Kind::Scan,
        Kind::Insert,
        Kind::Update,
        Kind::ReadModifyWrite,
        Kind::Open,
        Kind::Compact,
        Kind::Ingest,
    ];

    /// The name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Put => "put",
            Kind::Batch => "batch",
            Kind::Delete => "delete",
            Kind::Get => "get",
            Kind::GetMissing => "get_missing",
            Kind::MultiGet => "multi_get",
            Kind::Seek => "seek",
            Kind::Scan => "scan",
            Kind::Insert => "insert",
            Kind::Update => "update",
            Kind::ReadModifyWrite => "read_modify_write",
            Kind::Open => "open",
            Kind::Compact => "compact",
            Kind::Ingest => "ingest",
        }
    }
}
