//! The report of a checkpoint.
//!
//! Threading: plain data.

/// What a checkpoint holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckpointReport {
    /// The sequence number of the checkpoint: it holds what a snapshot at that number would see.
    pub published: u64,
    /// The number of keyspaces.
    pub keyspace_count: u64,
    /// The number of tables of the store that were linked or copied.
    pub table_count: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// The number of tables that were written from data that was only in memory.
    pub written_table_count: u64,
    /// Bytes of their files.
    pub written_bytes: u64,
}
