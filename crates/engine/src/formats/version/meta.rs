//! What the store knows about a table without opening it; ranges of sequence numbers and ranges of
//! keys.
//!
//! Invariants: a [`TableMeta`] never changes once it is installed; all versions that name it share
//! it by reference count. Its bounds contain every point key *and* every range delete of the table,
//! so [`TableMeta::bounds`] alone decides whether a table may have an entry for a key.
//!
//! Threading: immutable values.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use siltstone_table::check::Found;
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::retain::RangeEnd;

use crate::types::error::{Error, Result};
use crate::types::event::Event;
use crate::types::show::ShowKey;

/// A user key. Keys are ordered bytewise.
pub type Key = Box<[u8]>;

/// A range of sequence numbers, `(lo, hi]`: numbers greater than `lo` and at most `hi`. The ranges
/// of neighbouring sources meet: the `hi` of one is the `lo` of the next newer one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqRange {
    /// The number before the first one.
    pub lo: u64,
    /// The last number.
    pub hi: u64,
}

impl SeqRange {
    /// The range `(lo, hi]`; empty if `hi <= lo`.
    pub const fn new(lo: u64, hi: u64) -> SeqRange {
        SeqRange { lo, hi }
    }

    /// Whether it contains no number.
    pub const fn is_empty(self) -> bool {
        self.hi <= self.lo
    }

    /// Whether it contains `sequence`.
    pub const fn contains(self, sequence: u64) -> bool {
        self.lo < sequence && sequence <= self.hi
    }

    /// Whether it contains all of `other`. Every range contains an empty one.
    pub const fn includes(self, other: SeqRange) -> bool {
        other.is_empty() || (self.lo <= other.lo && other.hi <= self.hi)
    }

    /// Whether a number lies in both ranges.
    pub const fn overlaps(self, other: SeqRange) -> bool {
        let lo = if self.lo > other.lo {
            self.lo
        } else {
            other.lo
        };
        let hi = if self.hi < other.hi {
            self.hi
        } else {
            other.hi
        };
        lo < hi
    }

    /// The smallest range that contains both.
    pub fn joint(self, other: SeqRange) -> SeqRange {
        SeqRange {
            lo: self.lo.min(other.lo),
            hi: self.hi.max(other.hi),
        }
    }
}

impl fmt::Debug for SeqRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}]", self.lo, self.hi)
    }
}

impl fmt::Display for SeqRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A set of sequence numbers: disjoint ranges in ascending order. Ranges that meet are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqSet {
    ranges: Vec<SeqRange>,
}

impl SeqSet {
    /// The empty set.
    pub fn new() -> SeqSet {
        SeqSet::default()
    }

    /// The ranges, in ascending order; no two of them meet.
    pub fn ranges(&self) -> &[SeqRange] {
        &self.ranges
    }

    /// Whether it contains `sequence`.
    pub fn contains(&self, sequence: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.hi < sequence);
        self.ranges.get(i).is_some_and(|r| r.contains(sequence))
    }

    /// Whether it contains every number of `range`.
    pub fn includes(&self, range: SeqRange) -> bool {
        if range.is_empty() {
            return true;
        }
        let i = self.ranges.partition_point(|r| r.hi < range.hi);
        self.ranges.get(i).is_some_and(|r| r.includes(range))
    }

    /// Whether it contains a number of `range`.
    pub fn overlaps(&self, range: SeqRange) -> bool {
        let i = self.ranges.partition_point(|r| r.hi <= range.lo);
        self.ranges.get(i).is_some_and(|r| r.overlaps(range))
    }

    /// Adds all numbers of `range`.
    pub fn insert(&mut self, range: SeqRange) {
        if range.is_empty() {
            return;
        }
        // All ranges that overlap or meet the new one are replaced by their union.
        let from = self.ranges.partition_point(|r| r.hi < range.lo);
        let to = from + self.ranges[from..].partition_point(|r| r.lo <= range.hi);
        let union = self.ranges[from..to].iter().fold(range, |a, b| a.joint(*b));
        self.ranges.splice(from..to, [union]);
    }
}

/// The end of a range of keys.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// The range ends with this key, which belongs to it (a largest point key).
    Included(Key),
    /// The range ends before this key (the end of a range delete, the left bound of a neighbour).
    Excluded(Key),
    /// The range has no end.
    Unbounded,
}

impl End {
    /// Whether `key` is not beyond this end.
    pub fn reaches(&self, key: &[u8]) -> bool {
        match self {
            End::Included(end) => key <= &end[..],
            End::Excluded(end) => key < &end[..],
            End::Unbounded => true,
        }
    }

    /// Whether no key before `other` is beyond this end. This is not quite the order of ends: to
    /// end with a key, and to end before the key right after it, is the same (a range delete that
    /// was trimmed ends in the second way).
    pub fn covers(&self, other: &End) -> bool {
        let same_place = match (self, other) {
            (End::Included(a), End::Excluded(b)) => b.strip_suffix(&[0]) == Some(&a[..]),
            _ => false,
        };
        same_place || self >= other
    }

    /// The key of the end, if it has one.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            End::Included(key) | End::Excluded(key) => Some(key),
            End::Unbounded => None,
        }
    }
}

impl PartialOrd for End {
    fn partial_cmp(&self, other: &End) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for End {
    fn cmp(&self, other: &End) -> Ordering {
        let side = |end: &End| matches!(end, End::Included(_));
        match (self.key(), other.key()) {
            (None, None) => Ordering::Equal,
            (None, _) => Ordering::Greater,
            (_, None) => Ordering::Less,
            (Some(a), Some(b)) => a.cmp(b).then(side(self).cmp(&side(other))),
        }
    }
}

/// A range of user keys, from `start`, which belongs to it, to `end`. The empty key is the smallest
/// key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The smallest key of the range.
    pub start: Key,
    /// The end of the range.
    pub end: End,
}

impl KeyRange {
    /// A range to which both ends belong.
    pub fn closed(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange {
            start: start.into(),
            end: End::Included(end.into()),
        }
    }

    /// A range to which `end` does not belong.
    pub fn half_open(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange {
            start: start.into(),
            end: End::Excluded(end.into()),
        }
    }

    /// All keys.
    pub fn all() -> KeyRange {
        KeyRange {
            start: Key::default(),
            end: End::Unbounded,
        }
    }

    /// Whether it contains no key.
    pub fn is_empty(&self) -> bool {
        !self.end.reaches(&self.start)
    }

    /// Whether it contains `key`.
    pub fn contains(&self, key: &[u8]) -> bool {
        &self.start[..] <= key && self.end.reaches(key)
    }

    /// Whether a key lies in both ranges.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        // Both ends must reach the larger start.
        let start = if self.start >= other.start {
            &self.start
        } else {
            &other.start
        };
        self.end.reaches(start) && other.end.reaches(start)
    }

    /// Whether it contains all of `other`.
    pub fn includes(&self, other: &KeyRange) -> bool {
        other.is_empty() || (self.start <= other.start && self.end.covers(&other.end))
    }

    /// The smallest range that contains both.
    pub fn joint(&self, other: &KeyRange) -> KeyRange {
        KeyRange {
            start: if self.start <= other.start {
                self.start.clone()
            } else {
                other.start.clone()
            },
            end: if self.end >= other.end {
                self.end.clone()
            } else {
                other.end.clone()
            },
        }
    }

    /// The keys that lie in both ranges; `None` if there are none.
    pub fn common(&self, other: &KeyRange) -> Option<KeyRange> {
        let range = KeyRange {
            start: if self.start >= other.start {
                self.start.clone()
            } else {
                other.start.clone()
            },
            end: if self.end <= other.end {
                self.end.clone()
            } else {
                other.end.clone()
            },
        };
        (!range.is_empty()).then_some(range)
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}..", ShowKey(&self.start))?;
        match &self.end {
            End::Included(key) => write!(f, "{}]", ShowKey(key)),
            End::Excluded(key) => write!(f, "{})", ShowKey(key)),
            End::Unbounded => f.write_str("end)"),
        }
    }
}

impl fmt::Debug for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Included(key) => write!(f, "Included({})", ShowKey(key)),
            End::Excluded(key) => write!(f, "Excluded({})", ShowKey(key)),
            End::Unbounded => f.write_str("Unbounded"),
        }
    }
}

/// The greatest number of a location of tables.
pub(crate) const LOCATION_MAX: u32 = 1;

/// The flag of a table that must be merged and may not be moved as it is (an old layout, foreign
/// options).
pub const TABLE_NEEDS_REWRITE: u32 = 1;

/// All flags that this build knows.
pub const TABLE_FLAGS: u32 = TABLE_NEEDS_REWRITE;

/// The manifest's entry for a table. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Its id. A store never gives an id twice.
    pub id: u64,
    /// The number of the location that holds it: 0 is the folder of the tables, 1 the one to which
    /// flushes can be redirected.
    pub location: u32,
    /// The name of its file in that storage.
    pub name: String,
    /// The smallest sequence number in it, including those of range deletes.
    pub min_seq: u64,
    /// The largest sequence number in it.
    pub max_seq: u64,
    /// Raw bytes: user key + value + 12, summed over its entries.
    pub raw_bytes: u64,
    /// The length of the file.
    pub file_bytes: u64,
    /// The number of point entries, including deletes.
    pub entries: u64,
    /// The number of point deletes among them.
    pub deletes: u64,
    /// The number of range-delete fragments.
    pub range_deletes: u64,
    /// The digest of the block checksums.
    pub digest: u128,
    /// The smallest and the largest user key of its point entries; `None` if it has none.
    pub points: Option<(Key, Key)>,
    /// The keys for which it may have an entry: point keys and range deletes, from its left bound
    /// on. Without range deletes these are exactly the point keys, because overlaps are counted
    /// with these bounds.
    pub bounds: KeyRange,
    /// The sequence number that all its entries have instead of those in the file, for an ingested
    /// table.
    pub sequence_override: Option<u64>,
    /// `TABLE_*` flags.
    pub flags: u32,
}

impl TableMeta {
    /// The event that this table was added to a level of a keyspace.
    pub(crate) fn created(&self, keyspace: &str, level: u8) -> Event {
        Event::TableCreated {
            keyspace: keyspace.to_string(),
            name: self.name.clone(),
            level,
            file_bytes: self.file_bytes,
            entry_count: self.entries,
        }
    }

    /// Whether this table may have an entry for `key`.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.bounds.contains(key)
    }

    /// The smallest and the largest sequence number that a reader sees in it.
    pub fn visible_seqs(&self) -> (u64, u64) {
        match self.sequence_override {
            Some(sequence) => (sequence, sequence),
            None => (self.min_seq, self.max_seq),
        }
    }

    /// Checks the rules that a table must fulfil by itself.
    ///
    /// # Errors
    /// `Corruption` that names the table and says what is wrong.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| {
            Err(Error::new(
                crate::types::error::ErrorKind::Corruption,
                format!(
                    "table {} ({}) is described wrongly: {what}",
                    self.id, self.name
                ),
            ))
        };
        if self.name.is_empty() {
            return bad("it has no name");
        }
        if self.bounds.is_empty() {
            return bad("its bounds hold no key");
        }
        match &self.points {
            Some((smallest, largest)) => {
                if smallest > largest {
                    return bad("its smallest key is above its largest");
                }
                if !self.bounds.contains(smallest) || !self.bounds.contains(largest) {
                    return bad("its point keys lie outside its bounds");
                }
                if self.entries == 0 {
                    return bad("it has point keys and no entries");
                }
            }
            None if self.entries != 0 => return bad("it has entries and no point keys"),
            None if self.range_deletes == 0 => return bad("it is empty"),
            None => {}
        }
        if self.deletes > self.entries {
            return bad("it has more deletes than entries");
        }
        if self.min_seq > self.max_seq {
            return bad("its smallest sequence number is above its largest");
        }
        if self.flags & !TABLE_FLAGS != 0 {
            return bad("it has unknown flags");
        }
        Ok(())
    }
}

/// The error for damage in a table. If it is in a block, the error has the bytes and the keys that
/// are lost.
pub(crate) fn in_block(found: Found) -> Error {
    let error = Error::from(found.error);
    let Some(block) = found.block else {
        return error;
    };
    let keys = KeyRange {
        start: block.lower.into(),
        end: match block.upper_included {
            true => End::Included(block.upper.into()),
            false => End::Excluded(block.upper.into()),
        },
    };
    error.over(block.start, block.end).keys(keys)
}

/// The manifest's entries for the tables that a job made at location 0, with ids from `next_id` on.
pub(crate) fn metas_of(tables: Vec<OutputTable>, next_id: &mut u64) -> Vec<Arc<TableMeta>> {
    metas_at(0, tables, next_id)
}

/// As [`metas_of`], at any location.
pub(crate) fn metas_at(
    location: u32,
    tables: Vec<OutputTable>,
    next_id: &mut u64,
) -> Vec<Arc<TableMeta>> {
    let with_id = |table| {
        let id = *next_id;
        *next_id += 1;
        Arc::new(meta_of(location, table, id))
    };
    tables.into_iter().map(with_id).collect()
}

fn meta_of(location: u32, t: OutputTable, id: u64) -> TableMeta {
    TableMeta {
        id,
        location,
        name: t.name,
        min_seq: t.min_seq,
        max_seq: t.max_seq,
        raw_bytes: t.raw_bytes,
        file_bytes: t.file_bytes,
        entries: t.entries,
        deletes: t.deletes,
        range_deletes: t.fragments,
        digest: t.digest.into(),
        points: t.keys.map(|(first, last)| (first.into(), last.into())),
        bounds: KeyRange {
            start: t.bounds.start.into(),
            end: match t.bounds.end {
                RangeEnd::With(key) => End::Included(key.into()),
                RangeEnd::Before(key) => End::Excluded(key.into()),
                RangeEnd::Unbounded => End::Unbounded,
            },
        },
        sequence_override: None,
        flags: 0,
    }
}
