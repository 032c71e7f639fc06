//! A sorted set of tables with disjoint bounds, and the search for the table that may hold a key.
//!
//! A [`Level`] holds the tables of level 1 or below, or those of one level-0 [`Run`]. Beside the
//! tables it has a flat array of the *heads* of their left bounds: the eight bytes that follow the
//! prefix common to all left bounds, as native integers. A search reads only this array, and full
//! keys where heads are equal.
//!
//! Invariants: the tables are in ascending order, and `tables[i].bounds` ends before
//! `tables[i + 1].bounds` starts.
//!
//! Threading: immutable values.

use std::ops::Range;
use std::sync::Arc;

use siltstone_table::job::outcome::OutputTable;

use super::meta::{KeyRange, SeqRange, TableMeta, metas_at};
use crate::types::error::{Error, ErrorKind, Result};

/// Tables with disjoint bounds, in ascending order.
#[derive(Clone, Debug, Default)]
pub struct Level {
    tables: Vec<Arc<TableMeta>>,
    /// The common prefix of all left bounds.
    prefix: Box<[u8]>,
    /// For each left bound the eight bytes after `prefix`, padded with zeros, as an integer that is
    /// ordered like the bytes.
    heads: Box<[u64]>,
    file_bytes: u64,
    raw_bytes: u64,
}

impl PartialEq for Level {
    fn eq(&self, other: &Level) -> bool {
        self.tables == other.tables
    }
}

impl Eq for Level {}

/// The first eight bytes of `key`, padded with zeros, as an integer that is ordered like the bytes.
#[inline]
fn head(key: &[u8]) -> u64 {
    if let Some(bytes) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    let mut bytes = [0u8; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_be_bytes(bytes)
}

/// The number of heads that are at most `wanted`. No branch depends on the data.
#[inline]
fn count_at_most(heads: &[u64], wanted: u64) -> usize {
    let mut base = 0;
    let mut size = heads.len();
    while size > 1 {
        let half = size / 2;
        base += if heads[base + half - 1] <= wanted {
            half
        } else {
            0
        };
        size -= half;
    }
    base + usize::from(size == 1 && heads[base] <= wanted)
}

impl Level {
    /// A level of these tables, which may be in any order.
    ///
    /// # Errors
    /// `Corruption` if the bounds of two tables overlap. The error names both.
    pub fn new(mut tables: Vec<Arc<TableMeta>>) -> Result<Level> {
        tables.sort_by(|a, b| a.bounds.start.cmp(&b.bounds.start));
        for pair in tables.windows(2) {
            if pair[0].bounds.end.reaches(&pair[1].bounds.start) {
                return Err(Error::new(
                    ErrorKind::Corruption,
                    "two tables of one sorted set overlap",
                )
                .expected("disjoint bounds")
                .found(format!(
                    "table {} {} and table {} {}",
                    pair[0].id, pair[0].bounds, pair[1].id, pair[1].bounds
                )));
            }
        }
        let prefix: Box<[u8]> = match (tables.first(), tables.last()) {
            (Some(first), Some(last)) => {
                let (a, b) = (&first.bounds.start, &last.bounds.start);
                a[..a.iter().zip(b.iter()).take_while(|(x, y)| x == y).count()].into()
            }
            _ => Box::default(),
        };
        let heads = tables
            .iter()
            .map(|t| head(&t.bounds.start[prefix.len()..]))
            .collect();
        let sum = |of: fn(&TableMeta) -> u64| {
            tables.iter().fold(0u64, |sum, t| sum.saturating_add(of(t)))
        };
        Ok(Level {
            prefix,
            heads,
            file_bytes: sum(|t| t.file_bytes),
            raw_bytes: sum(|t| t.raw_bytes),
            tables,
        })
    }

    /// The tables, in ascending order.
    pub fn tables(&self) -> &[Arc<TableMeta>] {
        &self.tables
    }

    /// The number of tables.
    pub fn len(&self) -> usize {
        self.tables.len()
    }

    /// Whether there are no tables.
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty()
    }

    /// The bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The raw bytes of all entries.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// The part of `key` behind the prefix; `None` if it begins with something else.
    ///
    /// A level whose first table starts at the empty key has an empty prefix, and nothing is
    /// compared then. A comparison of no bytes would call `memcmp` with the address of the empty
    /// prefix, which is not mapped. glibc's vector code loads from this address under a mask that
    /// is all zero. That is allowed, but it took 300 ns on an AMD EPYC in a virtual machine.
    #[inline]
    fn without_prefix<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        if self.prefix.is_empty() {
            return Some(key);
        }
        key.strip_prefix(&self.prefix[..])
    }

    /// The number of tables whose left bound is at most `key`.
    #[inline]
    fn starting_at_most(&self, key: &[u8]) -> usize {
        let Some(rest) = self.without_prefix(key) else {
            // The key does not have the common prefix, so it is less or greater than all left
            // bounds.
            return if key < &self.prefix[..] {
                0
            } else {
                self.tables.len()
            };
        };
        let wanted = head(rest);
        let mut count = count_at_most(&self.heads, wanted);
        // Full keys decide between equal heads, which are the last ones counted.
        if count > 0 && self.heads[count - 1] == wanted {
            let from = self.heads[..count].partition_point(|h| *h < wanted);
            count = from + self.tables[from..count].partition_point(|t| &t.bounds.start[..] <= key);
        }
        count
    }

    /// The index of the table whose bounds contain `key`.
    #[inline]
    pub fn find(&self, key: &[u8]) -> Option<usize> {
        // Most levels of a small store are empty.
        if self.tables.is_empty() {
            return None;
        }
        let i = self.starting_at_most(key).checked_sub(1)?;
        self.tables[i].bounds.end.reaches(key).then_some(i)
    }

    /// The index of the first table that contains `key` or lies after it; `len()` if there is none.
    pub fn seek(&self, key: &[u8]) -> usize {
        let count = self.starting_at_most(key);
        match count.checked_sub(1) {
            Some(i) if self.tables[i].bounds.end.reaches(key) => i,
            _ => count,
        }
    }

    /// The indices of the tables whose bounds overlap `range`.
    pub fn overlapping(&self, range: &KeyRange) -> Range<usize> {
        if range.is_empty() {
            return 0..0;
        }
        let from = self.seek(&range.start);
        let to = match range.end.key() {
            None => self.tables.len(),
            Some(_) => {
                from + self.tables[from..].partition_point(|t| range.end.reaches(&t.bounds.start))
            }
        };
        from..to
    }

    /// The tables whose bounds overlap `range`.
    pub fn overlapping_tables(&self, range: &KeyRange) -> &[Arc<TableMeta>] {
        &self.tables[self.overlapping(range)]
    }

    /// Whether a table's bounds overlap `range`.
    pub fn overlaps(&self, range: &KeyRange) -> bool {
        !self.overlapping(range).is_empty()
    }

    /// The smallest range that contains all tables; `None` if there are none.
    pub fn bounds(&self) -> Option<KeyRange> {
        let (first, last) = (self.tables.first()?, self.tables.last()?);
        Some(KeyRange {
            start: first.bounds.start.clone(),
            end: last.bounds.end.clone(),
        })
    }
}

/// A sorted run of level 0. It is one source; its sequence range is its slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its id within the keyspace, from the same counter as the ids of tables.
    pub id: u64,
    /// Its slot. The numbers of its entries lie in it, and no other source's range overlaps it.
    pub seqs: SeqRange,
    /// Its tables.
    pub tables: Level,
}

impl Run {
    /// The run that a flush made at a location, of a memtable with the slot `seqs`. The run gets
    /// the id `next_id`, and its tables get the following ones.
    ///
    /// # Errors
    /// Those of [`Level::new`].
    pub(crate) fn of_flush(
        location: u32,
        tables: Vec<OutputTable>,
        seqs: SeqRange,
        next_id: &mut u64,
    ) -> Result<Run> {
        let id = *next_id;
        *next_id += 1;
        let tables = Level::new(metas_at(location, tables, next_id))?;
        Ok(Run { id, seqs, tables })
    }
}
