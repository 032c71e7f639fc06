//! The range deletes of a memtable, outside the tree.
//!
//! They are kept in the order of their sequence numbers, as records in the arena. *Steps* summarise
//! them: level 0 has a step for every 64 deletes, and each further level one for every 8 steps of
//! the level below. For any key, a step knows the newest of its deletes that covers the key: it has
//! a sorted list of bounds and, for the piece from each bound to the next, the newest delete or
//! none. That is at most two bounds for each delete however they overlap; fragments with all their
//! sequence numbers would be quadratic. A reader takes the deletes up to its sequence number as a
//! few whole steps and at most 63 single deletes, and searches them from the newest on. The first
//! that covers the key is the result. An old snapshot is no slower than a new one.
//!
//! Elements are only added, and published by a count, so readers need no lock, and no memory is
//! reclaimed before the memtable is dropped. Each insert merges a small part of the steps of higher
//! levels, so no insert waits for a large merge; until a step is finished, readers use those below
//! it. 100,000 deletes with distinct bounds take about 13 MB.
//!
//! Threading: any number of readers, one writer (the memtable's).

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize};

use super::node::{Keys, common_prefix, head};
use super::record::Records;

/// The number of deletes in a step of level 0.
const BASE: usize = 64;
/// The number of steps in a step of the next level.
const FAN: usize = 8;
/// The number of levels. The highest has a step for every 16 million deletes.
const LEVELS: usize = 7;
/// The number of bounds that each insert merges on each level. Two would be enough to finish in
/// time.
const MERGED_AT_ONCE: usize = 8;
const NONE: u32 = u32::MAX;

/// A range delete: the user keys from `start` up to but not including `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeDelete<'m> {
    /// The first key that is deleted.
    pub start: &'m [u8],
    /// The first key after `start` that is not deleted.
    pub end: &'m [u8],
    /// The sequence number.
    pub seq: u64,
}

/// A list to which one writer adds, and which all may read. Its elements never move.
struct Grows<T> {
    /// Segment i has room for `FIRST_SEGMENT << i` elements.
    segments: [AtomicPtr<MaybeUninit<T>>; SEGMENTS],
    count: AtomicUsize,
}

const FIRST_SEGMENT: usize = 16;
const SEGMENTS: usize = 28;

impl<T> Grows<T> {
    fn new() -> Grows<T> {
        Grows {
            segments: [const { AtomicPtr::new(std::ptr::null_mut()) }; SEGMENTS],
            count: AtomicUsize::new(0),
        }
    }

    fn place(index: usize) -> (usize, usize) {
        let shifted = index / FIRST_SEGMENT + 1;
        let segment = shifted.ilog2() as usize;
        (
            segment,
            index - ((FIRST_SEGMENT << segment) - FIRST_SEGMENT),
        )
    }

    #[inline]
    fn count(&self) -> usize {
        // Acquire: the elements below the count were written before it.
        self.count.load(Acquire)
    }

    #[inline]
    fn get(&self, index: usize) -> Option<&T> {
        if index >= self.count() {
            return None;
        }
        let (segment, at) = Self::place(index);
        // SAFETY: elements below the count are written, in a segment that was stored before, and
        // are neither moved nor changed until `self` is dropped.
        Some(unsafe { (*self.segments[segment].load(Acquire).add(at)).assume_init_ref() })
    }

    /// # Safety
    /// Only one thread at a time may push.
    unsafe fn push(&self, value: T) {
        let index = self.count.load(Relaxed);
        let (segment, at) = Self::place(index);
        let mut start = self.segments[segment].load(Relaxed);
        if start.is_null() {
            let fresh: Box<[MaybeUninit<T>]> = Box::new_uninit_slice(FIRST_SEGMENT << segment);
            start = Box::into_raw(fresh).cast();
            self.segments[segment].store(start, Release);
        }
        // SAFETY: the element lies in the segment, and no reader reads it before the count covers
        // it.
        unsafe { (*start.add(at)).write(value) };
        self.count.store(index + 1, Release);
    }
}

impl<T> Drop for Grows<T> {
    fn drop(&mut self) {
        let count = *self.count.get_mut();
        for (segment, start) in self.segments.iter_mut().enumerate() {
            let start = *start.get_mut();
            if start.is_null() {
                continue;
            }
            let first = (FIRST_SEGMENT << segment) - FIRST_SEGMENT;
            let length = FIRST_SEGMENT << segment;
            for at in 0..length.min(count.saturating_sub(first)) {
                // SAFETY: the element is below the count, so it is written. It is dropped once,
                // here.
                unsafe { (*start.add(at)).assume_init_drop() };
            }
            // SAFETY: `push` made it from a box of this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, length)) });
        }
    }
}

/// A bound of a delete: twice its index for the start, one more for the end.
#[derive(Clone, Copy)]
struct Bound(u32);

/// For each key, the newest of some consecutive deletes that covers it.
struct Step {
    /// The length of the prefix that all bounds share.
    skip: usize,
    heads: Vec<u64>,
    /// The bounds in ascending order, each with the delete that covers the keys up to the next
    /// bound, or `NONE`.
    pieces: Vec<(Bound, u32)>,
}

/// A step of a higher level that is being made.
struct Merge {
    /// The index of the first of its `FAN` parts on the level below.
    first: usize,
    /// The index of the next bound in each part.
    at: [usize; FAN],
    /// The delete of each part that covers the keys after the last bound that was taken.
    covering: [u32; FAN],
    pieces: Vec<(Bound, u32)>,
}

/// The range deletes of a memtable.
pub(super) struct RangeDeletes {
    /// The records of the deletes: the key is the start, and the value is the end.
    deletes: Grows<u32>,
    steps: [Grows<Step>; LEVELS],
    /// For each level the step that is being merged. Only the writer uses them.
    merges: UnsafeCell<[Option<Merge>; LEVELS]>,
    held_bytes: AtomicU64,
}

/// Iterates over range deletes in the order of their sequence numbers.
pub struct RangeDeletesIter<'m> {
    deletes: &'m RangeDeletes,
    records: &'m Records,
    at: usize,
    end: usize,
}

impl<'m> Iterator for RangeDeletesIter<'m> {
    type Item = RangeDelete<'m>;

    fn next(&mut self) -> Option<RangeDelete<'m>> {
        if self.at >= self.end {
            return None;
        }
        self.at += 1;
        Some(self.deletes.delete(self.at - 1, self.records))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.at, Some(self.end - self.at))
    }
}

impl ExactSizeIterator for RangeDeletesIter<'_> {}

impl RangeDeletes {
    pub(super) fn new() -> RangeDeletes {
        RangeDeletes {
            deletes: Grows::new(),
            steps: [const {}; LEVELS].map(|()| Grows::new()),
            merges: UnsafeCell::new([const { None }; LEVELS]),
            held_bytes: AtomicU64::new(0),
        }
    }

    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.deletes.count() == 0
    }

    pub(super) fn count(&self) -> usize {
        self.deletes.count()
    }

    /// Memory outside the arena, in bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Relaxed)
    }

    pub(super) fn iter<'m>(&'m self, records: &'m Records) -> RangeDeletesIter<'m> {
        RangeDeletesIter {
            deletes: self,
            records,
            at: 0,
            end: self.count(),
        }
    }

    fn record(&self, delete: usize) -> u32 {
        self.deletes.get(delete).copied().unwrap_or(0)
    }

    fn delete<'m>(&self, delete: usize, records: &'m Records) -> RangeDelete<'m> {
        let record = self.record(delete);
        RangeDelete {
            start: records.key(record),
            end: records.value(record),
            seq: records.seq(record),
        }
    }

    pub(super) fn newest_seq(&self, records: &Records) -> Option<u64> {
        let count = self.count();
        (count > 0).then(|| records.seq(self.record(count - 1)))
    }

    /// The newest delete that covers `key`, among those with numbers of at most `seq`.
    #[inline(never)]
    pub(super) fn newest_covering<'m>(
        &self,
        key: &[u8],
        seq: u64,
        records: &'m Records,
    ) -> Option<RangeDelete<'m>> {
        let delete = self.find(key, self.count_up_to(seq, records), records)?;
        Some(self.delete(delete, records))
    }

    /// The number of deletes with sequence numbers of at most `seq`.
    fn count_up_to(&self, seq: u64, records: &Records) -> usize {
        let mut high = self.count();
        if high == 0 || records.seq(self.record(high - 1)) <= seq {
            return high;
        }
        let mut low = 0;
        while low < high {
            let middle = (low + high) / 2;
            if records.seq(self.record(middle)) <= seq {
                low = middle + 1
            } else {
                high = middle
            }
        }
        low
    }

    /// The index of the newest of the first `end` deletes that covers `key`.
    fn find(&self, key: &[u8], mut end: usize, records: &Records) -> Option<usize> {
        while end > 0 {
            // Use the largest finished step that ends here, or else a single delete.
            let mut found = None;
            let mut width = BASE;
            for steps in &self.steps {
                if !end.is_multiple_of(width) {
                    break;
                }
                match steps.get(end / width - 1) {
                    Some(step) => found = Some((step, width)),
                    None => break,
                }
                width *= FAN;
            }
            match found {
                Some((step, width)) => {
                    let delete = step.covering(key, self, records);
                    if delete != NONE {
                        return Some(delete as usize);
                    }
                    end -= width;
                }
                None => {
                    end -= 1;
                    let record = self.record(end);
                    if records.key(record) <= key && key < records.value(record) {
                        return Some(end);
                    }
                }
            }
        }
        None
    }

    fn bound<'m>(&self, bound: Bound, records: &'m Records) -> &'m [u8] {
        let record = self.record(bound.0 as usize / 2);
        if bound.0.is_multiple_of(2) {
            records.key(record)
        } else {
            records.value(record)
        }
    }

    /// Adds a delete whose record was written. Only the memtable's writer calls this.
    pub(super) fn add(&self, record: u32, records: &Records) {
        // SAFETY: the memtable has only one writer.
        unsafe { self.deletes.push(record) };
        let count = self.count();
        self.held_bytes.fetch_add(4, Relaxed);
        if count.is_multiple_of(BASE) {
            self.push_step(0, self.first_level(count - BASE, records), records);
        }
        // SAFETY: only the memtable's writer uses the merges, there is only one, and none of the
        // calls below returns here.
        let merges = unsafe { &mut *self.merges.get() };
        for (level, slot) in merges.iter_mut().enumerate().skip(1) {
            let next = self.steps[level].count();
            if slot.is_none() && self.steps[level - 1].count() >= (next + 1) * FAN {
                *slot = Some(self.begin_merge(level, next * FAN));
            }
            if let Some(merge) = slot
                && self.merge_some(level, merge, records)
                && let Some(done) = slot.take()
            {
                self.push_step(level, done.pieces, records);
            }
        }
    }

    /// Publishes a step.
    fn push_step(&self, level: usize, mut pieces: Vec<(Bound, u32)>, records: &Records) {
        if pieces.len() < pieces.capacity() / 4 * 3 {
            pieces.shrink_to_fit();
        }
        let skip = match (pieces.first(), pieces.last()) {
            (Some(first), Some(last)) => {
                common_prefix(self.bound(first.0, records), self.bound(last.0, records))
            }
            _ => 0,
        };
        let heads: Vec<u64> = pieces
            .iter()
            .map(|piece| head(self.bound(piece.0, records), skip))
            .collect();
        let held = heads.capacity() * 8 + pieces.capacity() * 8 + size_of::<Step>();
        self.held_bytes.fetch_add(held as u64, Relaxed);
        // SAFETY: the memtable has only one writer.
        unsafe {
            self.steps[level].push(Step {
                skip,
                heads,
                pieces,
            })
        };
    }

    /// The pieces of the `BASE` deletes from `first` on.
    fn first_level(&self, first: usize, records: &Records) -> Vec<(Bound, u32)> {
        let mut bounds: Vec<(&[u8], Bound)> = Vec::with_capacity(2 * BASE);
        for delete in first..first + BASE {
            for bound in [Bound(2 * delete as u32), Bound(2 * delete as u32 + 1)] {
                bounds.push((self.bound(bound, records), bound));
            }
        }
        bounds.sort_by_key(|bound| bound.0);
        bounds.dedup_by_key(|bound| bound.0);
        let mut covering = vec![NONE; bounds.len()];
        for delete in first..first + BASE {
            let record = self.record(delete);
            let start = bounds.partition_point(|bound| bound.0 < records.key(record));
            let end = bounds.partition_point(|bound| bound.0 < records.value(record));
            covering[start..end].fill(delete as u32);
        }
        let mut pieces = Vec::with_capacity(bounds.len());
        let mut before = NONE;
        for (&(_, bound), &delete) in bounds.iter().zip(&covering) {
            if delete != before {
                pieces.push((bound, delete));
                before = delete;
            }
        }
        pieces
    }

    fn begin_merge(&self, level: usize, first: usize) -> Merge {
        let parts = first..first + FAN;
        let room = parts
            .filter_map(|part| self.steps[level - 1].get(part))
            .map(|step| step.pieces.len())
            .sum();
        Merge {
            first,
            at: [0; FAN],
            covering: [NONE; FAN],
            pieces: Vec::with_capacity(room),
        }
    }

    /// Merges some more bounds. Returns whether none are left.
    fn merge_some(&self, level: usize, merge: &mut Merge, records: &Records) -> bool {
        for _ in 0..MERGED_AT_ONCE {
            let mut least: Option<(&[u8], Bound)> = None;
            for part in 0..FAN {
                if let Some(&(bound, _)) = self.piece(level - 1, merge.first + part, merge.at[part])
                {
                    let key = self.bound(bound, records);
                    if least.is_none_or(|(least, _)| key < least) {
                        least = Some((key, bound));
                    }
                }
            }
            let Some((key, bound)) = least else {
                return true;
            };
            for part in 0..FAN {
                if let Some(&(bound, delete)) =
                    self.piece(level - 1, merge.first + part, merge.at[part])
                    && self.bound(bound, records) == key
                {
                    merge.covering[part] = delete;
                    merge.at[part] += 1;
                }
            }
            // Later parts are newer.
            let newest = merge
                .covering
                .iter()
                .rev()
                .copied()
                .find(|&delete| delete != NONE)
                .unwrap_or(NONE);
            if merge.pieces.last().map_or(NONE, |piece| piece.1) != newest {
                merge.pieces.push((bound, newest));
            }
        }
        false
    }

    fn piece(&self, level: usize, step: usize, piece: usize) -> Option<&(Bound, u32)> {
        self.steps[level].get(step)?.pieces.get(piece)
    }
}

impl Step {
    /// The delete that covers `key`, or `NONE`.
    fn covering(&self, key: &[u8], deletes: &RangeDeletes, records: &Records) -> u32 {
        let Some(&(first, _)) = self.pieces.first() else {
            return NONE;
        };
        if self.skip > 0 {
            // A key without the shared prefix lies before the first bound or after the last one,
            // and nothing covers it.
            let prefix = &deletes.bound(first, records)[..self.skip];
            if key.len() < self.skip || key[..self.skip] != *prefix {
                return NONE;
            }
        }
        let wanted = head(key, self.skip);
        let mut low = self.heads.partition_point(|&head| head < wanted);
        let high = low + self.heads[low..].partition_point(|&head| head == wanted);
        low +=
            self.pieces[low..high].partition_point(|piece| deletes.bound(piece.0, records) <= key);
        low.checked_sub(1)
            .map_or(NONE, |piece| self.pieces[piece].1)
    }
}
