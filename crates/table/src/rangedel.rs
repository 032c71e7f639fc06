//! Range deletes: fragments, their block in a table, and which range delete covers a key.
//!
//! Range deletes `[start, end)` at a sequence number may overlap. [`fragment`] cuts them at each other's bounds into
//! fragments that do not, each with all of its sequence numbers, newest first; neighbours that touch and have the same
//! numbers are joined, so that the fragments are a function of what is deleted, not of how it was said.
//!
//! Invariants (checked when a stored block is opened): fragments ascend, do not overlap, are not empty, and have
//! sequence numbers that descend.
//!
//! Threading: immutable once built, and shared.

use std::collections::BTreeMap;

use crate::coding::{Cursor, partition_point};
use crate::error::Damage;
use crate::key::MAX_SEQ;
use crate::limits::MAX_KEY_BYTES;
use siltstone_storage::planted::{self, Bug};

/// A range of user keys and the sequence numbers at which all of it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// The first user key.
    pub start: Vec<u8>,
    /// The first user key after the range.
    pub end: Vec<u8>,
    /// Sequence numbers, newest first, at least one.
    pub seqs: Vec<u64>,
}

/// Fragments of any range deletes (start, end, sequence number), in any order. Empty ranges vanish.
pub fn fragment<I>(deletes: I) -> Vec<Fragment>
where
    I: IntoIterator<Item = (Vec<u8>, Vec<u8>, u64)>,
{
    // At each bound, which numbers begin and which end.
    let mut bounds: BTreeMap<Vec<u8>, Vec<(u64, bool)>> = BTreeMap::new();
    for (start, end, seq) in deletes {
        if start < end {
            bounds.entry(start).or_default().push((seq, true));
            bounds.entry(end).or_default().push((seq, false));
        }
    }
    let mut active: BTreeMap<u64, usize> = BTreeMap::new();
    let mut fragments: Vec<Fragment> = Vec::new();
    let mut from: Vec<u8> = Vec::new();
    for (bound, changes) in bounds {
        if !active.is_empty() {
            let seqs: Vec<u64> = active.keys().rev().copied().collect();
            match fragments.last_mut() {
                Some(last) if last.end == from && last.seqs == seqs => last.end.clone_from(&bound),
                _ => fragments.push(Fragment {
                    start: from,
                    end: bound.clone(),
                    seqs,
                }),
            }
        }
        for (seq, _) in changes.iter().filter(|c| c.1) {
            *active.entry(*seq).or_default() += 1;
        }
        for (seq, _) in changes.iter().filter(|c| !c.1) {
            if let Some(count) = active.get_mut(seq) {
                *count -= 1;
                if *count == 0 {
                    active.remove(seq);
                }
            }
        }
        from = bound;
    }
    fragments
}

/// The range deletes of a table, searchable.
#[derive(Clone, Debug, Default)]
pub struct RangeDeletes {
    fragments: Vec<Fragment>,
}

impl RangeDeletes {
    /// From fragments, as [`fragment`] makes them.
    pub fn new(fragments: Vec<Fragment>) -> Result<RangeDeletes, Damage> {
        let mut previous_end: &[u8] = &[];
        for (i, f) in fragments.iter().enumerate() {
            let ordered = f.start < f.end && (i == 0 || previous_end <= f.start.as_slice());
            let seqs = !f.seqs.is_empty()
                && f.seqs.windows(2).all(|w| w[0] > w[1])
                && f.seqs[0] <= MAX_SEQ;
            if !ordered || !seqs || f.start.len() > MAX_KEY_BYTES || f.end.len() > MAX_KEY_BYTES {
                return Err(Damage::new(
                    "order of range delete fragments",
                    0,
                    fragments.len() as u64,
                    i as u64,
                ));
            }
            previous_end = &f.end;
        }
        Ok(RangeDeletes { fragments })
    }

    /// Opens the stored form, without its checksum.
    pub fn decode(bytes: &[u8]) -> Result<RangeDeletes, Damage> {
        let mut c = Cursor::new(bytes);
        let n = c.u32("range delete count")? as usize;
        let seq_count = c.u32("range delete sequence number count")? as usize;
        let key_bytes = c.u32("range delete key bytes")? as usize;
        let zero = c.u32("range delete reserved bytes")?;
        if zero != 0 {
            return Err(Damage::new(
                "range delete reserved bytes",
                12,
                0,
                zero as u64,
            ));
        }
        let start_ends = c.u32s("range delete start ends", n)?;
        let end_ends = c.u32s("range delete end ends", n)?;
        let seq_ends = c.u32s("range delete sequence number ends", n)?;
        let seqs = c.u64s("range delete sequence numbers", seq_count)?;
        let keys = c.take("range delete keys", key_bytes)?;
        c.finish("range delete length")?;
        let mut fragments = Vec::with_capacity(n);
        let (mut key, mut seq) = (0, 0);
        for i in 0..n {
            let (s, e, q) = (
                start_ends[i] as usize,
                end_ends[i] as usize,
                seq_ends[i] as usize,
            );
            if key > s || s > e || e > keys.len() || seq > q || q > seqs.len() {
                return Err(Damage::new(
                    "range delete ends",
                    (16 + 4 * i) as u64,
                    key_bytes as u64,
                    e as u64,
                ));
            }
            fragments.push(Fragment {
                start: keys[key..s].into(),
                end: keys[s..e].into(),
                seqs: seqs[seq..q].into(),
            });
            (key, seq) = (e, q);
        }
        if key != keys.len() || seq != seqs.len() {
            return Err(Damage::new(
                "range delete ends",
                16,
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
        for x in [
            self.fragments.len(),
            self.seq_count() as usize,
            key_bytes,
            0,
        ] {
            out.extend_from_slice(&(x as u32).to_le_bytes());
        }
        let mut column = |size: &dyn Fn(&Fragment) -> (usize, usize)| {
            let mut at = 0;
            for f in &self.fragments {
                let (here, all) = size(f);
                out.extend_from_slice(&((at + here) as u32).to_le_bytes());
                at += all;
            }
        };
        column(&|f| (f.start.len(), f.start.len() + f.end.len()));
        column(&|f| (f.start.len() + f.end.len(), f.start.len() + f.end.len()));
        column(&|f| (f.seqs.len(), f.seqs.len()));
        for f in &self.fragments {
            f.seqs
                .iter()
                .for_each(|s| out.extend_from_slice(&s.to_le_bytes()));
        }
        for f in &self.fragments {
            out.extend_from_slice(&f.start);
            out.extend_from_slice(&f.end);
        }
    }

    /// The fragments, ascending.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// How many sequence numbers all fragments have together.
    pub fn seq_count(&self) -> u64 {
        self.fragments.iter().map(|f| f.seqs.len() as u64).sum()
    }

    /// Smallest and largest sequence number.
    pub fn seq_range(&self) -> Option<(u64, u64)> {
        let smallest = self.fragments.iter().filter_map(|f| f.seqs.last()).min()?;
        let largest = self.fragments.iter().filter_map(|f| f.seqs.first()).max()?;
        Some((*smallest, *largest))
    }

    /// The newest range delete of `user_key` whose sequence number is at most `seq_limit`.
    #[inline]
    pub fn covering_seq(&self, user_key: &[u8], seq_limit: u64) -> Option<u64> {
        if self.fragments.is_empty() {
            return None;
        }
        let after = partition_point(self.fragments.len(), |i| {
            self.fragments[i].start.as_slice() <= user_key
        });
        let f = self.fragments[..after].last().filter(|f| {
            let is_end = user_key == f.end.as_slice();
            user_key < f.end.as_slice() || is_end && planted::is(Bug::RangeDeleteTakesItsEnd)
        })?;
        f.seqs
            .get(partition_point(f.seqs.len(), |i| f.seqs[i] > seq_limit))
            .copied()
    }

    /// Heap bytes.
    pub fn memory_bytes(&self) -> usize {
        let one = |f: &Fragment| {
            std::mem::size_of::<Fragment>() + f.start.len() + f.end.len() + 8 * f.seqs.len()
        };
        self.fragments.iter().map(one).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
            let fragments = fragment(deletes.clone());
            // Said in another way, the same.
            let again = fragments.iter().rev();
            let again = again.flat_map(|f| f.seqs.iter().map(|s| (f.start.clone(), f.end.clone(), *s)));
            prop_assert_eq!(&fragment(again), &fragments);
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
