//! Disjoint key intervals with a sequence number each, as a value that is cheap to copy and change.
//!
//! A [`GapMap`] is a list of leaves, each a short sorted list of [`Gap`]s. A changed copy shares
//! every leaf that the change does not touch, so readers use an old map without a lock while the
//! next one is made.
//!
//! Invariants: the gaps are not empty, ascend, and neither overlap nor touch; leaves are not empty.
//!
//! Threading: a value.

use std::sync::Arc;

/// A leaf with more gaps than this is split.
pub(super) const LEAF_MAX: usize = 64;

/// The keys from `start` up to but not including `end`. None of them is alive (see the module
/// `gaps`).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
    /// The number of the read that found this gap.
    pub(crate) number: u64,
    /// About how many entries a reader skips with it.
    pub(crate) hidden: u64,
}

impl Gap {
    pub(super) fn key_bytes(&self) -> usize {
        self.start.len() + self.end.len()
    }
}

type Leaf = Vec<Arc<Gap>>;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct GapMap {
    pub(super) leaves: Vec<Arc<Leaf>>,
    len: usize,
    key_bytes: usize,
    hidden: u64,
}

/// A leaf and a position in it.
type Position = (usize, usize);

impl GapMap {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of all starts and ends.
    pub(crate) fn key_bytes(&self) -> usize {
        self.key_bytes
    }

    /// The sum of [`Gap::hidden`].
    pub(crate) fn hidden(&self) -> u64 {
        self.hidden
    }

    /// The gap that holds `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Arc<Gap>> {
        let leaf = self
            .leaves
            .partition_point(|leaf| leaf.first().is_some_and(|gap| &gap.start[..] <= key));
        let leaf = &self.leaves[leaf.checked_sub(1)?];
        let at = leaf.partition_point(|gap| &gap.start[..] <= key);
        leaf[..at].last().filter(|gap| key < &gap.end[..])
    }

    /// The first position whose gap is not `before`. The gaps must be partitioned by `before`.
    fn position(&self, before: impl Fn(&Gap) -> bool) -> Position {
        let leaf = self
            .leaves
            .partition_point(|leaf| leaf.last().is_some_and(|gap| before(gap)));
        let slot = self
            .leaves
            .get(leaf)
            .map_or(0, |leaf| leaf.partition_point(|gap| before(gap)));
        (leaf, slot)
    }

    /// The gaps from one position up to another.
    fn between(&self, from: Position, to: Position) -> impl Iterator<Item = &Arc<Gap>> {
        let last = to.0.min(self.leaves.len().saturating_sub(1));
        let leaves = self.leaves.iter().enumerate().take(last + 1).skip(from.0);
        leaves.flat_map(move |(i, leaf)| {
            let first = if i == from.0 { from.1 } else { 0 };
            let end = if i == to.0 { to.1 } else { leaf.len() };
            &leaf[first..end]
        })
    }

    /// Replaces the gaps between two positions by `new`.
    fn replace(&mut self, from: Position, to: Position, new: Vec<Arc<Gap>>) {
        let mut merged: Leaf = Vec::new();
        if let Some(leaf) = self.leaves.get(from.0) {
            merged.extend_from_slice(&leaf[..from.1]);
        }
        for gap in self.between(from, to).cloned().collect::<Vec<_>>() {
            self.len -= 1;
            self.key_bytes -= gap.key_bytes();
            self.hidden = self.hidden.saturating_sub(gap.hidden);
        }
        for gap in &new {
            self.len += 1;
            self.key_bytes += gap.key_bytes();
            self.hidden = self.hidden.saturating_add(gap.hidden);
        }
        merged.extend(new);
        if let Some(leaf) = self.leaves.get(to.0) {
            merged.extend_from_slice(&leaf[to.1..]);
        }
        let parts = merged.len().div_ceil(LEAF_MAX).max(1);
        let part = merged.len().div_ceil(parts).max(1);
        let leaves = merged.chunks(part).map(|part| Arc::new(part.to_vec()));
        let end = (to.0 + 1).min(self.leaves.len());
        self.leaves.splice(from.0.min(end)..end, leaves);
    }

    /// Adds a gap, joined with the gaps that it overlaps or touches. The joined gap has the newest
    /// of their numbers.
    pub(crate) fn join(&mut self, mut gap: Gap) {
        debug_assert!(gap.start < gap.end);
        let from = self.position(|other| other.end < gap.start);
        let to = self.position(|other| other.start <= gap.end);
        for other in self.between(from, to) {
            gap.number = gap.number.max(other.number);
            gap.hidden = gap.hidden.saturating_add(other.hidden);
            if other.start < gap.start {
                gap.start.clone_from(&other.start);
            }
            if other.end > gap.end {
                gap.end.clone_from(&other.end);
            }
        }
        self.replace(from, to, vec![Arc::new(gap)]);
    }

    /// Whether a gap contains one of the keys from `first` to `last`, both included.
    pub(crate) fn overlaps(&self, first: &[u8], last: &[u8]) -> bool {
        let (leaf, slot) = self.position(|gap| &gap.end[..] <= first);
        self.leaves
            .get(leaf)
            .and_then(|leaf| leaf.get(slot))
            .is_some_and(|gap| &gap.start[..] <= last)
    }

    /// Takes the keys from `first` to `last`, both included, out of all gaps. The number of hidden
    /// entries of a gap is divided evenly between its two remaining parts, because they were not
    /// counted separately.
    pub(crate) fn cut(&mut self, first: &[u8], last: &[u8]) {
        let from = self.position(|gap| &gap.end[..] <= first);
        let to = self.position(|gap| &gap.start[..] <= last);
        let after_last = after(last);
        let mut left = Vec::new();
        for gap in self.between(from, to) {
            let hidden = gap.hidden / 2;
            let number = gap.number;
            if &gap.start[..] < first {
                left.push(Arc::new(Gap {
                    start: gap.start.clone(),
                    end: first.to_vec(),
                    number,
                    hidden,
                }));
            }
            if after_last < gap.end {
                left.push(Arc::new(Gap {
                    start: after_last.clone(),
                    end: gap.end.clone(),
                    number,
                    hidden,
                }));
            }
        }
        self.replace(from, to, left);
    }

    /// Drops a quarter of the gaps and one more: the gaps with the lowest numbers, and among equal
    /// numbers those that hide the fewest entries. Equal numbers are common: one cursor finds all
    /// of its gaps at one number, and the parts of a gap that was cut have its number.
    pub(crate) fn drop_oldest(&mut self) {
        let rank = |gap: &Arc<Gap>| (gap.number, gap.hidden);
        let mut gaps: Vec<Arc<Gap>> = self.between((0, 0), self.end()).cloned().collect();
        let mut ranks: Vec<(u64, u64)> = gaps.iter().map(rank).collect();
        if ranks.is_empty() {
            return;
        }
        let quarter = ranks.len() / 4;
        let (lower, last, _) = ranks.select_nth_unstable(quarter);
        // The number of dropped gaps that have the same rank as the last dropped one.
        let mut equal = 1 + lower.iter().filter(|rank| *rank == last).count();
        let last = *last;
        gaps.retain(|gap| {
            let is_dropped = rank(gap) < last || rank(gap) == last && equal > 0;
            equal -= usize::from(is_dropped && rank(gap) == last);
            !is_dropped
        });
        *self = GapMap::default();
        self.replace((0, 0), (0, 0), gaps);
    }

    fn end(&self) -> Position {
        (self.leaves.len(), 0)
    }
}

/// The smallest key above `key`.
pub(crate) fn after(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}
