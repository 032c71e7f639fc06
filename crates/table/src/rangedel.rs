//! Range deletes: their section in a table, and the search for those that cover a key.
//!
//! Range deletes `[start, end)` at a sequence number may overlap in any way. A table stores
//! *fragments* of them: the parts that remain after the drop rules and the cuts between tables.
//! Fragments of one number neither overlap nor touch (parts that were cut are joined again, see
//! [`joined`]), so they depend only on what is deleted, and not on how many range deletes did it.
//! Fragments of different numbers may overlap. There are as many fragments as surviving range
//! deletes, however these overlap.
//!
//! Lookups: if no two fragments overlap (always, if a job had no snapshot), a binary search over
//! their starts finds the only candidate. Otherwise a segment tree (`Overlaps`) is built over their
//! bounds when the section is opened: every fragment is in the lists of O(log n) nodes, and a
//! lookup searches each of the O(log n) nodes above its key for the newest fragment up to a number.
//!
//! Invariants (checked when a stored section is opened): fragments are not empty; their starts
//! ascend, and at one start their numbers descend; fragments of one number do not overlap.
//!
//! Threading: immutable once built, and shared.

use std::cmp::Reverse;

use crate::coding::{Cursor, partition_point};
use crate::error::Damage;
use crate::key::MAX_SEQ;
use crate::limits::MAX_KEY_BYTES;

/// A range delete, or a fragment of one: the user keys in `[start, end)` have no value from
/// sequence number `seq` on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeDelete {
    /// The first user key.
    pub start: Vec<u8>,
    /// The first user key after the range.
    pub end: Vec<u8>,
    /// It hides entries with smaller sequence numbers.
    pub seq: u64,
}

/// Sorts fragments into the order of the format.
pub fn sort(fragments: &mut [RangeDelete]) {
    fragments.sort_unstable_by(|a, b| a.start.cmp(&b.start).then(b.seq.cmp(&a.seq)));
}

/// The fragments of range deletes (start, end, sequence number), which may be given in any order.
/// Those of one number that overlap or touch are joined, and empty ranges are left out.
pub fn joined<I>(deletes: I) -> Vec<RangeDelete>
where
    I: IntoIterator<Item = (Vec<u8>, Vec<u8>, u64)>,
{
    let mut all: Vec<_> = deletes.into_iter().filter(|d| d.0 < d.1).collect();
    all.sort_unstable_by(|a, b| (a.2, &a.0).cmp(&(b.2, &b.0)));
    let mut fragments: Vec<RangeDelete> = Vec::with_capacity(all.len());
    for (start, end, seq) in all {
        match fragments.last_mut() {
            Some(last) if last.seq == seq && start <= last.end => {
                if end > last.end {
                    last.end = end;
                }
            }
            _ => fragments.push(RangeDelete { start, end, seq }),
        }
    }
    sort(&mut fragments);
    fragments
}

/// The sum of the key bytes of fragments; `None` if the stored form has no room for so large a sum.
pub(crate) fn stored_key_bytes(mut lens: impl Iterator<Item = usize>) -> Option<u32> {
    lens.try_fold(0u32, |sum, len| sum.checked_add(u32::try_from(len).ok()?))
}

/// A segment tree over fragments that overlap.
#[derive(Clone, Debug)]
struct Overlaps {
    /// All distinct starts and ends, ascending. A bound is twice the index of its fragment, and one
    /// more if it is the fragment's end.
    bounds: Vec<u32>,
    /// The indexes of the fragments, newest first. A fragment's *rank* is its position in this
    /// list.
    newest_first: Vec<u32>,
    /// Where each node's list in `ranks` begins, and where the last one ends. Node 1 is the root,
    /// the children of node i are 2 i and 2 i + 1, and node (number of leaves + i) is the leaf of
    /// the keys from bound i to the next one.
    lists: Vec<usize>,
    /// For each node, the ranks of the fragments that cover all of its keys, but not all of its
    /// parent's. They ascend, so the newest fragment comes first.
    ranks: Vec<u32>,
}

impl Overlaps {
    fn new(fragments: &[RangeDelete], newest_first: Vec<u32>) -> Overlaps {
        let mut bounds: Vec<u32> = (0..2 * fragments.len() as u32).collect();
        bounds.sort_unstable_by_key(|bound| Self::bound(fragments, *bound));
        bounds.dedup_by_key(|bound| Self::bound(fragments, *bound));
        let leaves = bounds.len() - 1;
        let leaf =
            |key: &[u8]| leaves + bounds.partition_point(|b| Self::bound(fragments, *b) < key);
        // Calls `found` with each node and rank, from the newest fragment to the oldest.
        let each = |found: &mut dyn FnMut(usize, u32)| {
            for (rank, index) in newest_first.iter().enumerate() {
                let fragment = &fragments[*index as usize];
                let (mut from, mut to) = (leaf(&fragment.start), leaf(&fragment.end));
                while from < to {
                    if from % 2 == 1 {
                        found(from, rank as u32);
                        from += 1;
                    }
                    if to % 2 == 1 {
                        to -= 1;
                        found(to, rank as u32);
                    }
                    (from, to) = (from / 2, to / 2);
                }
            }
        };
        let mut lists = vec![0; 2 * leaves + 1];
        each(&mut |node, _| lists[node + 1] += 1);
        for node in 1..lists.len() {
            lists[node] += lists[node - 1];
        }
        let mut ranks = vec![0; lists[2 * leaves]];
        let mut filled = lists.clone();
        each(&mut |node, rank| {
            ranks[filled[node]] = rank;
            filled[node] += 1;
        });
        Overlaps {
            bounds,
            newest_first,
            lists,
            ranks,
        }
    }

    fn bound(fragments: &[RangeDelete], bound: u32) -> &[u8] {
        let fragment = &fragments[bound as usize / 2];
        match bound % 2 {
            0 => &fragment.start,
            _ => &fragment.end,
        }
    }

    /// The index of the newest fragment that covers `key`, among those with numbers up to `limit`.
    fn covering(&self, fragments: &[RangeDelete], key: &[u8], limit: u64) -> Option<usize> {
        let leaves = self.bounds.len() - 1;
        let after = partition_point(self.bounds.len(), |i| {
            Self::bound(fragments, self.bounds[i]) <= key
        });
        let leaf = after.checked_sub(1).filter(|leaf| *leaf < leaves)?;
        let first = partition_point(self.newest_first.len(), |rank| {
            fragments[self.newest_first[rank] as usize].seq > limit
        }) as u32;
        let mut newest: Option<u32> = None;
        let mut node = leaves + leaf;
        while node > 0 {
            let list = &self.ranks[self.lists[node]..self.lists[node + 1]];
            if let Some(rank) = list.get(list.partition_point(|rank| *rank < first))
                && newest.is_none_or(|newest| *rank < newest)
            {
                newest = Some(*rank);
            }
            node /= 2;
        }
        newest.map(|rank| self.newest_first[rank as usize] as usize)
    }

    fn memory_bytes(&self) -> usize {
        4 * (self.bounds.len() + self.newest_first.len() + self.ranks.len())
            + size_of::<usize>() * self.lists.len()
    }
}

/// The range deletes of a table, searchable.
#[derive(Clone, Debug, Default)]
pub struct RangeDeletes {
    fragments: Vec<RangeDelete>,
    /// `None` if no two of them overlap.
    overlaps: Option<Overlaps>,
}

impl RangeDeletes {
    /// Makes them from fragments in the order of the format.
    pub fn new(fragments: Vec<RangeDelete>) -> Result<RangeDeletes, Damage> {
        let count = fragments.len() as u64;
        let disorder = |index: usize| Damage::new("order of range deletes", 0, count, index as u64);
        if count >= 1 << 30 {
            return Err(Damage::new("number of range deletes", 0, 1 << 30, count));
        }
        let mut overlapping = false;
        let mut largest_end: &[u8] = &[];
        for (i, f) in fragments.iter().enumerate() {
            let ordered = i == 0 || {
                let before = &fragments[i - 1];
                (&before.start, Reverse(before.seq)) < (&f.start, Reverse(f.seq))
            };
            let is_key = f.start.len() <= MAX_KEY_BYTES && f.end.len() <= MAX_KEY_BYTES;
            if !ordered || f.start >= f.end || f.seq > MAX_SEQ || !is_key {
                return Err(disorder(i));
            }
            overlapping |= f.start.as_slice() < largest_end;
            largest_end = largest_end.max(&f.end);
        }
        let overlaps = if overlapping {
            let mut newest_first: Vec<u32> = (0..fragments.len() as u32).collect();
            newest_first.sort_by_key(|index| Reverse(fragments[*index as usize].seq));
            // The sort is stable, so the starts of fragments of one number still ascend.
            for pair in newest_first.windows(2) {
                let (a, b) = (&fragments[pair[0] as usize], &fragments[pair[1] as usize]);
                if a.seq == b.seq && b.start < a.end {
                    return Err(disorder(pair[1] as usize));
                }
            }
            Some(Overlaps::new(&fragments, newest_first))
        } else {
            None
        };
        Ok(RangeDeletes {
            fragments,
            overlaps,
        })
    }

    /// Opens the stored form, without its checksum.
    pub fn decode(bytes: &[u8]) -> Result<RangeDeletes, Damage> {
        let mut c = Cursor::new(bytes);
        let n = c.u32("range delete count")? as usize;
        let key_bytes = c.u32("range delete key bytes")? as usize;
        let start_ends = c.u32s("range delete start ends", n)?;
        let end_ends = c.u32s("range delete end ends", n)?;
        let seqs = c.u64s("range delete sequence numbers", n)?;
        let keys = c.take("range delete keys", key_bytes)?;
        c.finish("range delete length")?;
        let mut fragments = Vec::with_capacity(n);
        let mut key = 0;
        for i in 0..n {
            let (s, e) = (start_ends[i] as usize, end_ends[i] as usize);
            if key > s || s > e || e > keys.len() {
                return Err(Damage::new(
                    "range delete ends",
                    (8 + 4 * i) as u64,
                    key_bytes as u64,
                    e as u64,
                ));
            }
            fragments.push(RangeDelete {
                start: keys[key..s].into(),
                end: keys[s..e].into(),
                seq: seqs[i],
            });
            key = e;
        }
        if key != keys.len() {
            return Err(Damage::new(
                "range delete ends",
                8,
                key_bytes as u64,
                key as u64,
            ));
        }
        RangeDeletes::new(fragments)
    }

    /// Appends the stored form, without its checksum.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let key_bytes: usize = self
            .fragments
            .iter()
            .map(|f| f.start.len() + f.end.len())
            .sum();
        for x in [self.fragments.len(), key_bytes] {
            out.extend_from_slice(&(x as u32).to_le_bytes());
        }
        let mut column = |here: fn(&RangeDelete) -> usize| {
            let mut at = 0;
            for f in &self.fragments {
                out.extend_from_slice(&((at + here(f)) as u32).to_le_bytes());
                at += f.start.len() + f.end.len();
            }
        };
        column(|f| f.start.len());
        column(|f| f.start.len() + f.end.len());
        for f in &self.fragments {
            out.extend_from_slice(&f.seq.to_le_bytes());
        }
        for f in &self.fragments {
            out.extend_from_slice(&f.start);
            out.extend_from_slice(&f.end);
        }
    }

    /// The fragments, in the order of the format.
    pub fn fragments(&self) -> &[RangeDelete] {
        &self.fragments
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The smallest start and the largest end.
    pub fn range(&self) -> Option<(&[u8], &[u8])> {
        let first = self.fragments.first()?;
        let end = self.fragments.iter().map(|f| f.end.as_slice()).max()?;
        Some((&first.start, end))
    }

    /// The smallest and the largest sequence number.
    pub fn seq_range(&self) -> Option<(u64, u64)> {
        let smallest = self.fragments.iter().map(|f| f.seq).min()?;
        let largest = self.fragments.iter().map(|f| f.seq).max()?;
        Some((smallest, largest))
    }

    /// The newest range delete of `user_key` whose sequence number is at most `seq_limit`.
    #[inline]
    pub fn covering(&self, user_key: &[u8], seq_limit: u64) -> Option<&RangeDelete> {
        if self.fragments.is_empty() {
            return None;
        }
        if let Some(overlaps) = &self.overlaps {
            let index = overlaps.covering(&self.fragments, user_key, seq_limit)?;
            return Some(&self.fragments[index]);
        }
        let after = partition_point(self.fragments.len(), |i| {
            self.fragments[i].start.as_slice() <= user_key
        });
        self.fragments[..after]
            .last()
            .filter(|f| user_key < f.end.as_slice() && f.seq <= seq_limit)
    }

    /// The number of [`RangeDeletes::covering`].
    #[inline]
    pub fn covering_seq(&self, user_key: &[u8], seq_limit: u64) -> Option<u64> {
        self.covering(user_key, seq_limit).map(|f| f.seq)
    }

    /// Heap memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        let one = |f: &RangeDelete| size_of::<RangeDelete>() + f.start.len() + f.end.len();
        self.fragments.iter().map(one).sum::<usize>()
            + self.overlaps.as_ref().map_or(0, Overlaps::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The ends of keys are stored in 32 bits. A larger end used to be truncated, which made a
    /// table that could not be read.
    #[test]
    fn more_key_bytes_than_the_format_can_store_are_refused() {
        let longest = 2 * MAX_KEY_BYTES;
        let fit = u32::MAX as usize / longest;
        let exactly = u32::MAX as usize - fit * longest;
        let lens = || std::iter::repeat_n(longest, fit);
        assert_eq!(stored_key_bytes(lens().chain([exactly])), Some(u32::MAX));
        assert_eq!(stored_key_bytes(lens().chain([exactly + 1])), None);
    }

    fn small_key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..4, 0..3)
    }

    proptest! {
        #[test]
        fn fragments_cover_what_the_deletes_cover(
            deletes in prop::collection::vec((small_key(), small_key(), 0u64..30), 0..20),
            probes in prop::collection::vec((small_key(), 0u64..32), 1..40),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let fragments = joined(deletes.clone());
            // The same deletes, each cut in two, give the same fragments.
            let again = fragments.iter().rev().flat_map(|f| {
                let middle = [&f.start[..], &[0]].concat().min(f.end.clone());
                [(middle.clone(), f.end.clone(), f.seq), (f.start.clone(), middle, f.seq)]
            });
            prop_assert_eq!(&joined(again), &fragments);
            let mut bytes = Vec::new();
            RangeDeletes::new(fragments.clone()).unwrap().encode(&mut bytes);
            let stored = RangeDeletes::decode(&bytes).unwrap();
            prop_assert_eq!(stored.fragments(), &fragments[..]);
            for (key, limit) in probes {
                let covers = |d: &&(Vec<u8>, Vec<u8>, u64)| d.0 <= key && key < d.1 && d.2 <= limit;
                let want = deletes.iter().filter(covers).map(|d| d.2).max();
                prop_assert_eq!(stored.covering_seq(&key, limit), want);
            }
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            if let Ok(hostile) = RangeDeletes::decode(&bytes) {
                hostile.covering_seq(b"\x01", 9);
            }
        }
    }
}
