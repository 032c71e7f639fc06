//! An outcome: what an executor says that it made of a job. It is plain data, and trusted only
//! after `verify_outcome`.
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
    /// The raw bytes: user keys, values and 12 bytes per entry.
    pub raw_bytes: u64,
    /// The length of the object.
    pub file_bytes: u64,
    /// The number of entries, without range deletes.
    pub entries: u64,
    /// The number of puts among the entries.
    pub puts: u64,
    /// The number of deletes among the entries.
    pub deletes: u64,
    /// The number of range-delete fragments.
    pub fragments: u64,
    /// The first and the last user key of its entries, or `None` if it has none.
    pub keys: Option<(Vec<u8>, Vec<u8>)>,
    /// The start of the range that it is responsible for. Range deletes extend down to it.
    pub left_bound: Vec<u8>,
    /// The end of that range: the next table's left bound, or the subjob's end.
    pub right_bound: Option<Vec<u8>>,
    /// The smallest range that contains all its entries and range deletes.
    pub bounds: KeyRange,
    /// The smallest sequence number of its entries and range deletes.
    pub min_seq: u64,
    /// The largest sequence number of its entries and range deletes.
    pub max_seq: u64,
    /// The digest of its blocks' checksums.
    pub digest: u64,
}

impl OutputTable {
    /// The smallest range that contains the first and last key, and the range deletes (from
    /// `deletes.0` to before `deletes.1`).
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

    /// The end of [`OutputTable::bounds`].
    pub fn upper(&self) -> &RangeEnd {
        &self.bounds.end
    }
}

/// Counts of what a job, or one of its subjobs, read, dropped and wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// The number of entries read, without range deletes.
    pub entries_read: u64,
    /// The number of entries dropped because a newer version of the same stripe hid them.
    pub shadowed: u64,
    /// The number of deletes dropped because they hid nothing.
    pub tombstones: u64,
    /// The number of entries dropped because a range delete of the same stripe hid them.
    pub covered: u64,
    /// The number of range deletes read.
    pub range_deletes_read: u64,
    /// The number of fragments dropped because they hid nothing.
    pub fragments_dropped: u64,
    /// The number of entries written.
    pub entries_written: u64,
    /// The raw bytes of the entries read.
    pub raw_bytes_read: u64,
    /// The bytes read from tables, as stored.
    pub bytes_read: u64,
    /// The bytes of the tables written.
    pub bytes_written: u64,
    /// The processor time of the attempt that made the outcome, in nanoseconds, on the machine that
    /// ran it. 0 if it is not known, and in simulated runs. A subjob's counters do not have it.
    pub cpu_ns: u64,
}

impl Counters {
    /// Adds the counters of another subjob.
    pub fn add(&mut self, other: &Counters) {
        for (own, other) in self.all_mut().into_iter().zip(other.all()) {
            // They may come from another machine and have any size.
            *own = own.saturating_add(other);
        }
    }

    /// All counts.
    pub fn all(&self) -> [u64; 11] {
        let mut copy = *self;
        copy.all_mut().map(|count| *count)
    }

    fn all_mut(&mut self) -> [&mut u64; 11] {
        [
            &mut self.entries_read,
            &mut self.shadowed,
            &mut self.tombstones,
            &mut self.covered,
            &mut self.range_deletes_read,
            &mut self.fragments_dropped,
            &mut self.entries_written,
            &mut self.raw_bytes_read,
            &mut self.bytes_read,
            &mut self.bytes_written,
            &mut self.cpu_ns,
        ]
    }

    /// The largest of all counts, except the processor time.
    pub fn largest(&self) -> u64 {
        let counts = [
            self.entries_read,
            self.shadowed,
            self.tombstones,
            self.covered,
            self.range_deletes_read,
            self.fragments_dropped,
            self.entries_written,
            self.raw_bytes_read,
            self.bytes_read,
            self.bytes_written,
        ];
        counts.into_iter().fold(0, u64::max)
    }

    /// The number of entries dropped by any rule. It saturates, because the counters may come from
    /// elsewhere.
    pub fn dropped(&self) -> u64 {
        self.shadowed
            .saturating_add(self.tombstones)
            .saturating_add(self.covered)
    }
}

/// The result that an executor returns for a job.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The identity of the job that was run.
    pub job: u128,
    /// The output prefix of the job.
    pub output: OutputPrefix,
    /// The tables, in order of keys.
    pub tables: Vec<OutputTable>,
    /// Counts of what was read, dropped and written.
    pub counters: Counters,
    /// For each value log, the bytes that no output refers to any more: (log, bytes), ascending.
    /// Always empty so far.
    pub dropped_value_bytes: Vec<(u64, u64)>,
}

impl Outcome {
    /// Those names of its tables that begin with the prefix of the attempt. An outcome that was not
    /// verified may name any file, and a caller that deletes its tables must not delete other
    /// files.
    pub fn names_of(&self, output: &OutputPrefix) -> impl Iterator<Item = &str> {
        let prefix = output.text() + "-";
        let names = self.tables.iter().map(|table| table.name.as_str());
        names.filter(move |name| name.starts_with(&prefix))
    }
}
