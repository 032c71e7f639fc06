//! What the store knows about a table without opening it, and the two kinds of range that everything is told in.
//!
//! Invariants: a [`TableMeta`] never changes once it is installed, it is shared by reference count between all
//! versions that name it. Its bounds hold every point key *and* every range delete of the table, so whoever asks
//! "may this table say something about this key" asks [`TableMeta::bounds`] and nothing else.
//!
//! Threading: immutable values.

use std::cmp::Ordering;
use std::fmt;

use siltstone_table::check::Found;
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::retain::RangeEnd;

use crate::types::error::{Error, Result};
use crate::types::event::Event;
use crate::types::show::ShowKey;

/// A user key. Keys are ordered bytewise.
pub type Key = Box<[u8]>;

/// A range of sequence numbers, `(lo, hi]`: numbers greater than `lo` and at most `hi`. Ranges of neighbouring
/// sources meet: `hi` of one is `lo` of the next newer one.
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

    /// Whether no number lies in it.
    pub const fn is_empty(self) -> bool {
        self.hi <= self.lo
    }

    /// Whether `sequence` lies in it.
    pub const fn contains(self, sequence: u64) -> bool {
        self.lo < sequence && sequence <= self.hi
    }

    /// Whether all of `other` lies in it. An empty range lies in every one.
    pub const fn includes(self, other: SeqRange) -> bool {
        other.is_empty() || (self.lo <= other.lo && other.hi <= self.hi)
    }

    /// Whether a number lies in both.
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

    /// The smallest range that holds both.
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

/// A set of sequence numbers: disjoint ranges, ascending, those that meet joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeqSet {
    ranges: Vec<SeqRange>,
}

impl SeqSet {
    /// The empty set.
    pub fn new() -> SeqSet {
        SeqSet::default()
    }

    /// Its ranges, ascending; no two of them meet.
    pub fn ranges(&self) -> &[SeqRange] {
        &self.ranges
    }

    /// Whether `sequence` is in it.
    pub fn contains(&self, sequence: u64) -> bool {
        let i = self.ranges.partition_point(|r| r.hi < sequence);
        self.ranges.get(i).is_some_and(|r| r.contains(sequence))
    }

    /// Whether every number of `range` is in it.
    pub fn includes(&self, range: SeqRange) -> bool {
        if range.is_empty() {
            return true;
        }
        let i = self.ranges.partition_point(|r| r.hi < range.hi);
        self.ranges.get(i).is_some_and(|r| r.includes(range))
    }

    /// Whether some number of `range` is in it.
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

/// Where a range of keys ends.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum End {
    /// With this key, which belongs to it (a largest point key).
    Included(Key),
    /// Before this key (the end of a range delete, the left bound of a neighbour).
    Excluded(Key),
    /// Nowhere.
    Unbounded,
}

impl End {
    /// Whether `key` does not lie beyond this end.
    pub fn reaches(&self, key: &[u8]) -> bool {
        match self {
            End::Included(end) => key <= &end[..],
            End::Excluded(end) => key < &end[..],
            End::Unbounded => true,
        }
    }

    /// Whether no key before `other` lies beyond this end. Not quite the order of ends: with a key, and before the key right after it, is the
    /// same place told in two ways (a range delete that was trimmed ends in the second).
    pub fn covers(&self, other: &End) -> bool {
        let same_place = match (self, other) {
            (End::Included(a), End::Excluded(b)) => b.strip_suffix(&[0]) == Some(&a[..]),
            _ => false,
        };
        same_place || self >= other
    }

    /// The end's key, if it has one.
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

/// A range of user keys: from `start`, which belongs to it, to `end`. The empty key is the smallest one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The smallest key of the range.
    pub start: Key,
    /// Where it ends.
    pub end: End,
}

impl KeyRange {
    /// Both ends belong to it.
    pub fn closed(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange {
            start: start.into(),
            end: End::Included(end.into()),
        }
    }

    /// `end` does not belong to it.
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

    /// Whether no key lies in it.
    pub fn is_empty(&self) -> bool {
        !self.end.reaches(&self.start)
    }

    /// Whether `key` lies in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        &self.start[..] <= key && self.end.reaches(key)
    }

    /// Whether a key lies in both.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        // The larger start must be reached by both ends.
        let start = if self.start >= other.start {
            &self.start
        } else {
            &other.start
        };
        self.end.reaches(start) && other.end.reaches(start)
    }

    /// Whether all of `other` lies in it.
    pub fn includes(&self, other: &KeyRange) -> bool {
        other.is_empty() || (self.start <= other.start && self.end.covers(&other.end))
    }

    /// The smallest range that holds both.
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

    /// What lies in both, or `None`.
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

/// Flag of a table: it must pass through a merge and is never moved as it is (an old layout, foreign options).
pub const TABLE_NEEDS_REWRITE: u32 = 1;

/// All flags that this build knows.
pub const TABLE_FLAGS: u32 = TABLE_NEEDS_REWRITE;

/// What the manifest says about a table. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableMeta {
    /// Its identity, never given twice in the life of a store.
    pub id: u64,
    /// Which of the store's storages holds it; 0 is the default one.
    pub location: u32,
    /// The object's name in that storage.
    pub name: String,
    /// The smallest sequence number in it, range deletes included.
    pub min_seq: u64,
    /// The largest sequence number in it.
    pub max_seq: u64,
    /// Raw bytes: user key + value + 12, summed over its entries.
    pub raw_bytes: u64,
    /// Length of the object.
    pub file_bytes: u64,
    /// Point entries, deletes included.
    pub entries: u64,
    /// Point deletes among them.
    pub deletes: u64,
    /// Range-delete fragments.
    pub range_deletes: u64,
    /// Digest of the block checksums.
    pub digest: u128,
    /// Smallest and largest user key of its point entries; `None` without point entries.
    pub points: Option<(Key, Key)>,
    /// Everything that it may speak about: point keys and range deletes, from its left bound. Without range deletes
    /// this should be exactly the point keys, because overlaps are counted with it.
    pub bounds: KeyRange,
    /// The one number that all its entries have (ingested tables), instead of those in the file.
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

    /// Whether `key` may be answered by this table.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.bounds.contains(key)
    }

    /// Smallest and largest sequence number that a reader sees in it.
    pub fn visible_seqs(&self) -> (u64, u64) {
        match self.sequence_override {
            Some(sequence) => (sequence, sequence),
            None => (self.min_seq, self.max_seq),
        }
    }

    /// Checks what must hold for a table by itself.
    ///
    /// # Errors
    /// `Corruption` that names the table and what does not hold.
    pub fn check(&self) -> Result<()> {
        let bad = |what: &str| {
            Err(Error::new(
                crate::types::error::ErrorKind::Corruption,
                format!(
                    "table {} ({}) cannot be as described: {what}",
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

/// The error for damage in a table, with the block and the keys that are lost with it.
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

/// What the manifest says about an output table.
pub(crate) fn meta_of(t: OutputTable, id: u64) -> TableMeta {
    TableMeta {
        id,
        location: 0,
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
