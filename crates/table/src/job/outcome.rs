//! An outcome: what an executor says that it made of a job. Plain data, believed only after
//! `verify_outcome`.
//!
//! Threading: plain data.

use super::OutputPrefix;
use crate::retain::{KeyRange, RangeEnd};

/// One output table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputTable {
    /// The object's name.
    pub name: String,
    /// The subjob that wrote it.
    pub subjob: u32,
    /// User keys, values and 12 bytes an entry.
    pub raw_bytes: u64,
    /// Length of the object.
    pub file_bytes: u64,
    /// Entries, without range deletes.
    pub entries: u64,
    /// Puts among them.
    pub puts: u64,
    /// Deletes among them.
    pub deletes: u64,
    /// Numbers of range-delete fragments.
    pub fragments: u64,
    /// First and last user key of its entries; `None` if it has none.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// Where the range that it answers for begins: range deletes reach down to here.
    pub left_bound: Vec<u8>,
    /// Where it ends: the next table's left bound, or the subjob's end.
    pub right_bound: Option<Vec<u8>>,
    /// The smallest range that holds all its entries and range deletes.
    pub bounds: KeyRange,
    /// The smallest sequence number of its entries and range deletes.
    pub min_seq: u64,
    /// The largest sequence number of its entries and range deletes.
    pub max_seq: u64,
    /// Digest of its blocks' checksums.
    pub digest: u64,
}

impl OutputTable {
    /// The range over first and last key and the range deletes from `first` to before `last`.
    pub fn bounds_of(
        keys: Option<&(Vec<u8>, Vec<u8>)>,
        deletes: Option<(&[u8], &[u8])>,
    ) -> Option<KeyRange> {
        let keys = keys.map(|(first, last)| KeyRange::inclusive(first, last));
        let deletes = deletes.map(|(start, end)| KeyRange::before(start, end));
        match (keys, deletes) {
            (Some(a), Some(b)) => {
                let end = if a.end.at_least(&b.end) { a.end } else { b.end };
                Some(KeyRange {
                    start: a.start.min(b.start),
                    end,
                })
            }
            (a, b) => a.or(b),
        }
    }

    /// Where [`OutputTable::bounds`] end.
    pub fn upper(&self) -> &RangeEnd {
        &self.bounds.end
    }
}

/// What a job, or one of its subjobs, read, dropped and wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Entries read, without range deletes.
    pub entries_read: u64,
    /// Entries dropped: a newer version of the same stripe hid them.
    pub shadowed: u64,
    /// Entries dropped: deletes with nothing to hide.
    pub tombstones: u64,
    /// Entries dropped: a range delete of the same stripe hid them.
    pub covered: u64,
    /// Range deletes read.
    pub range_deletes_read: u64,
    /// Numbers of fragments dropped: nothing to hide.
    pub fragments_dropped: u64,
    /// Entries written.
    pub entries_written: u64,
    /// Raw bytes of the entries read.
    pub raw_bytes_read: u64,
    /// Bytes read from tables, as stored.
    pub bytes_read: u64,
    /// Bytes of the tables written.
    pub bytes_written: u64,
    /// Processor time, if known, in nanoseconds.
    pub cpu_ns: u64,
}

impl Counters {
    /// Adds another subjob's.
    pub fn add(&mut self, other: &Counters) {
        self.entries_read += other.entries_read;
        self.shadowed += other.shadowed;
        self.tombstones += other.tombstones;
        self.covered += other.covered;
        self.range_deletes_read += other.range_deletes_read;
        self.fragments_dropped += other.fragments_dropped;
        self.entries_written += other.entries_written;
        self.raw_bytes_read += other.raw_bytes_read;
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.cpu_ns += other.cpu_ns;
    }

    /// Entries dropped by any rule; saturates, since it may come from elsewhere.
    pub fn dropped(&self) -> u64 {
        self.shadowed
            .saturating_add(self.tombstones)
            .saturating_add(self.covered)
    }
}

/// What an executor made of a job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// Identity of the job that was run.
    pub job: u128,
    /// Echo of the job's output prefix.
    pub output: OutputPrefix,
    /// The tables, in order of keys.
    pub tables: Vec<OutputTable>,
    /// What was read, dropped and written.
    pub counters: Counters,
    /// Bytes per value log that no output refers to any more: (log, bytes), ascending. Always empty so far.
    pub dropped_value_bytes: Vec<(u64, u64)>,
}
