//! One node of the memtable's tree, and the protocol by which one writer changes it beside readers
//! that take no lock.
//!
//! A node is a header and up to `N` slots in ascending key order. A slot has a *head* and the
//! offset of a record that holds the key. The head is the 8 key bytes after the node's *skip*, as a
//! big-endian number (missing bytes are zero). If heads are equal, full keys decide. All keys of a
//! node share its first `skip` bytes. If a key that is routed here need not share them (the node is
//! *checked*), a search compares that prefix first.
//!
//! Protocol: the version is even while the node does not change. The writer makes it odd, changes
//! words, and makes it even again. A reader takes an even version, reads, and trusts what it read
//! only if the version is still the same. Two changes need no version: a slot that is appended at
//! the end (the slot is stored before the count), and a slot's record that is replaced by a newer
//! record of the same key. Every word is atomic, so a torn view is wrong but never a data race. A
//! slot below a count that a reader has loaded was stored before that count, so its record offset
//! always names a finished record, even in a torn view. The reason for each ordering stands where
//! it is used; `tests/memtable_loom.rs` compiles this file against loom's atomics and fails if one
//! of them is weakened.
//!
//! Threading: any number of readers, one writer.

use std::cmp::Ordering as Order;
use std::sync::atomic::Ordering::{self, Acquire, Relaxed, Release};

/// The words of one node. They lie in an arena; a loom test has its own.
pub(crate) trait Words: Copy {
    /// Loads the 4 bytes at byte offset `at`.
    fn load32(self, at: usize, order: Ordering) -> u32;
    /// Stores the 4 bytes at byte offset `at`.
    fn store32(self, at: usize, value: u32, order: Ordering);
    /// Loads the 8 bytes at byte offset `at`.
    fn load64(self, at: usize, order: Ordering) -> u64;
    /// Stores the 8 bytes at byte offset `at`.
    fn store64(self, at: usize, value: u64, order: Ordering);
    /// A memory fence.
    fn fence(order: Ordering);
    /// Called by a reader that found the node changing, for the `round`-th time in a row.
    fn wait(round: u32);
}

/// The keys of published records.
pub(crate) trait Keys {
    /// The user key of the record at `record`, which a slot of a node named.
    fn key(&self, record: u32) -> &[u8];
}

/// The position of a key in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of slots whose keys are smaller.
    pub(crate) position: usize,
    /// The record in the slot at `position` if its key is equal; otherwise 0.
    pub(crate) record: u32,
}

/// A node with room for `N` slots and, in an inner node, `N + 1` children.
#[derive(Clone, Copy)]
pub(crate) struct Node<W, const N: usize> {
    words: W,
}

/// The ordering with which a slot's record is moved. The fence in `lock` has already ordered the
/// record's bytes. ThreadSanitizer does not know fences and would report a race; loom does know
/// them.
const MOVED: Ordering = if cfg!(tsan) { Release } else { Relaxed };

const VERSION: usize = 0;
const COUNT: usize = 4;
/// The skip, and the bit `CHECKED`.
const SKIP: usize = 8;
/// The record of the smallest key that may be routed here; 0 if there is no bound.
const LOW: usize = 12;
/// The record of the smallest key above that may not be routed here; 0 if there is no bound.
const HIGH: usize = 16;
/// The right neighbour of a leaf; 0 if there is none.
const NEXT: usize = 20;
/// The stamp: see [`Node::newest`].
const NEWEST: usize = 24;
const HEADS: usize = 32;
const CHECKED: u32 = 1 << 31;

/// The 8 bytes after `skip` as a number. Missing bytes count as zero.
#[inline(always)]
pub(crate) fn head(key: &[u8], skip: usize) -> u64 {
    // A torn skip may lie beyond the key. Any result will do, since the version check rejects it.
    let rest = key.get(skip..).unwrap_or(&[]);
    if let Some(first) = rest.first_chunk::<8>() {
        return u64::from_be_bytes(*first);
    }
    let mut bytes = [0; 8];
    bytes[..rest.len()].copy_from_slice(rest);
    u64::from_be_bytes(bytes)
}

/// The length of the longest common prefix.
pub(crate) fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let length = a.len().min(b.len());
    let mut at = 0;
    while at + 8 <= length {
        let left = u64::from_le_bytes(a[at..at + 8].try_into().unwrap_or_default());
        let right = u64::from_le_bytes(b[at..at + 8].try_into().unwrap_or_default());
        if left != right {
            return at + ((left ^ right).trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while at < length && a[at] == b[at] {
        at += 1;
    }
    at
}

impl<W: Words, const N: usize> Node<W, N> {
    const RECORDS: usize = HEADS + 8 * N;
    const CHILDREN: usize = HEADS + 12 * N;
    /// The size of a leaf, in whole cache lines.
    pub(crate) const LEAF_BYTES: usize = (HEADS + 12 * N).next_multiple_of(64);
    /// The size of an inner node, in whole cache lines.
    pub(crate) const INNER_BYTES: usize = (HEADS + 12 * N + 4 * (N + 1)).next_multiple_of(64);

    #[inline(always)]
    pub(crate) fn at(words: W) -> Self {
        Node { words }
    }

    // ---- for readers ----

    /// Waits until the node is not being changed, and returns its version.
    #[inline(always)]
    pub(crate) fn begin_read(self) -> u32 {
        let mut round = 0;
        loop {
            // Acquire: everything that led to this version is visible to the reads that follow.
            let version = self.words.load32(VERSION, Acquire);
            if version & 1 == 0 {
                return version;
            }
            W::wait(round);
            round = round.saturating_add(1);
        }
    }

    /// Whether everything read since `begin_read` returned `version` belongs to that version.
    #[inline(always)]
    pub(crate) fn validate(self, version: u32) -> bool {
        // If an earlier load saw a word that was stored after the release fence in `lock`, this
        // fence pairs with that one, and the load below sees the odd version or a later one.
        W::fence(Acquire);
        self.words.load32(VERSION, Relaxed) == version
    }

    /// The number of slots in use. Slots below it can be read safely.
    #[inline(always)]
    pub(crate) fn count(self) -> usize {
        // Acquire: an appended slot is stored before the count that covers it.
        (self.words.load32(COUNT, Acquire) as usize).min(N)
    }

    /// The record of a slot below the count.
    #[inline(always)]
    pub(crate) fn record(self, slot: usize) -> u32 {
        // Acquire: the record's bytes, which were written before its offset was stored, are read
        // next, before the version is validated.
        self.words.load32(Self::RECORDS + 4 * slot, Acquire)
    }

    /// The child left of separator `slot`; with the count as `slot`, the last child.
    #[inline(always)]
    pub(crate) fn child(self, slot: usize) -> u32 {
        // Acquire: the child's words were stored before its offset.
        self.words.load32(Self::CHILDREN + 4 * slot, Acquire)
    }

    /// The right neighbour of a leaf; 0 if there is none.
    #[inline(always)]
    pub(crate) fn next(self) -> u32 {
        self.words.load32(NEXT, Acquire)
    }

    /// The stamp: the largest sequence number that was inserted here or below since the memtable
    /// got its first range delete; 0 if there is none.
    #[inline(always)]
    pub(crate) fn newest(self) -> u64 {
        // Relaxed: a reader that has loaded a published number sees all stores that were made
        // before it was published, and needs no later ones.
        self.words.load64(NEWEST, Relaxed)
    }

    #[inline(always)]
    fn head_of(self, slot: usize) -> u64 {
        self.words.load64(HEADS + 8 * slot, Relaxed)
    }

    /// The number of slots among the first `count` whose heads are below `wanted`. No branch
    /// depends on keys: a mispredicted one costs more than all loads of the search.
    #[inline(always)]
    fn lower_bound(self, count: usize, wanted: u64) -> usize {
        let mut base = 0;
        let mut left = count;
        while left > 1 {
            let half = left / 2;
            let below = self.head_of(base + half - 1) < wanted;
            base = std::hint::select_unpredictable(below, base + half, base);
            left -= half;
        }
        if left == 1 {
            base += usize::from(self.head_of(base) < wanted);
        }
        base
    }

    /// The position of `key`. In a torn view the result is wrong, but its record is still one that
    /// was published.
    #[inline(always)]
    pub(crate) fn search(self, key: &[u8], keys: &impl Keys) -> Place {
        let count = self.count();
        let skip = self.words.load32(SKIP, Relaxed);
        if skip > CHECKED && count > 0 {
            let skip = (skip & !CHECKED) as usize;
            let first = keys.key(self.record(0));
            let prefix = first.get(..skip).unwrap_or(first);
            match key[..key.len().min(skip)].cmp(prefix) {
                Order::Less => {
                    return Place {
                        position: 0,
                        record: 0,
                    };
                }
                Order::Greater => {
                    return Place {
                        position: count,
                        record: 0,
                    };
                }
                Order::Equal => {}
            }
        }
        let wanted = head(key, (skip & !CHECKED) as usize);
        let position = self.lower_bound(count, wanted);
        if position == count || self.head_of(position) != wanted {
            return Place {
                position,
                record: 0,
            };
        }
        self.search_ties(position, count, wanted, key, keys)
    }

    /// Compares full keys in the slots from `low` on whose heads are `wanted`.
    #[inline(always)]
    fn search_ties(
        self,
        low: usize,
        count: usize,
        wanted: u64,
        key: &[u8],
        keys: &impl Keys,
    ) -> Place {
        if low + 1 == count || self.head_of(low + 1) != wanted {
            let record = self.record(low);
            return match keys.key(record).cmp(key) {
                Order::Less => Place {
                    position: low + 1,
                    record: 0,
                },
                Order::Equal => Place {
                    position: low,
                    record,
                },
                Order::Greater => Place {
                    position: low,
                    record: 0,
                },
            };
        }
        self.search_many_ties(low, count, wanted, key, keys)
    }

    #[inline(never)]
    fn search_many_ties(
        self,
        mut low: usize,
        count: usize,
        wanted: u64,
        key: &[u8],
        keys: &impl Keys,
    ) -> Place {
        let mut high = count;
        let mut end = low + 1;
        while end < high {
            let middle = (end + high) / 2;
            if self.head_of(middle) <= wanted {
                end = middle + 1;
            } else {
                high = middle;
            }
        }
        while low < high {
            let middle = (low + high) / 2;
            let record = self.record(middle);
            match keys.key(record).cmp(key) {
                Order::Less => low = middle + 1,
                Order::Equal => {
                    return Place {
                        position: middle,
                        record,
                    };
                }
                Order::Greater => high = middle,
            }
        }
        Place {
            position: low,
            record: 0,
        }
    }

    // ---- for the writer ----

    /// Makes an empty node, which nothing refers to yet.
    pub(crate) fn init(self, low: u32, high: u32, next: u32) {
        self.words.store32(VERSION, 0, Relaxed);
        self.words.store32(COUNT, 0, Relaxed);
        self.words.store32(SKIP, 0, Relaxed);
        self.words.store32(LOW, low, Relaxed);
        self.words.store32(HIGH, high, Relaxed);
        self.words.store32(NEXT, next, Relaxed);
        self.words.store64(NEWEST, 0, Relaxed);
    }

    /// Raises the stamp: an entry with this sequence number is here or below.
    #[inline(always)]
    pub(crate) fn raise_newest(self, seq: u64) {
        if self.newest() < seq {
            self.words.store64(NEWEST, seq, Relaxed);
        }
    }

    /// Makes readers wait or retry, until `unlock`.
    #[inline(always)]
    pub(crate) fn lock(self) {
        let version = self.words.load32(VERSION, Relaxed);
        debug_assert!(version & 1 == 0, "the writer locked a node twice");
        self.words
            .store32(VERSION, version.wrapping_add(1), Relaxed);
        // A reader that sees any of the following stores also sees the odd version (`validate`),
        // and the bytes of every record that they name, which were written before.
        W::fence(Release);
    }

    /// Lets readers continue.
    #[inline(always)]
    pub(crate) fn unlock(self) {
        let version = self.words.load32(VERSION, Relaxed);
        debug_assert!(
            version & 1 == 1,
            "the writer unlocked a node that was not locked"
        );
        self.words
            .store32(VERSION, version.wrapping_add(1), Release);
    }

    #[inline(always)]
    fn skip(self) -> usize {
        (self.words.load32(SKIP, Relaxed) & !CHECKED) as usize
    }

    #[inline(always)]
    fn set_slot(self, slot: usize, head: u64, record: u32) {
        self.words.store64(HEADS + 8 * slot, head, Relaxed);
        // Release: for an appended slot nothing else orders the record's bytes before its offset.
        // For other slots the fence in `lock` would do; on x86-64 both cost the same.
        self.words
            .store32(Self::RECORDS + 4 * slot, record, Release);
    }

    #[inline(always)]
    pub(crate) fn set_child(self, slot: usize, child: u32) {
        self.words
            .store32(Self::CHILDREN + 4 * slot, child, Release);
    }

    #[inline(always)]
    fn set_count(self, count: usize) {
        debug_assert!(count <= N);
        self.words.store32(COUNT, count as u32, Release);
    }

    /// The record of the lower bound, 0 if there is none.
    pub(crate) fn low(self) -> u32 {
        self.words.load32(LOW, Relaxed)
    }

    /// The record of the upper bound, 0 if there is none.
    pub(crate) fn high(self) -> u32 {
        self.words.load32(HIGH, Relaxed)
    }

    /// Sets the upper bound. The node must be locked.
    pub(crate) fn set_high(self, record: u32) {
        self.words.store32(HIGH, record, Relaxed);
    }

    /// Sets the right neighbour. The node must be locked.
    pub(crate) fn set_next(self, next: u32) {
        self.words.store32(NEXT, next, Release);
    }

    /// Stores a newer record of the same key in a slot.
    #[inline(always)]
    pub(crate) fn overwrite(self, slot: usize, record: u32) {
        self.words
            .store32(Self::RECORDS + 4 * slot, record, Release);
    }

    /// Whether `key`, which is routed here, shares the skipped prefix.
    #[inline(always)]
    fn shares_prefix(self, key: &[u8], keys: &impl Keys) -> bool {
        let skip = self.words.load32(SKIP, Relaxed);
        if skip <= CHECKED || self.count() == 0 {
            return true;
        }
        let skip = (skip & !CHECKED) as usize;
        key.len() >= skip && key[..skip] == keys.key(self.record(0))[..skip]
    }

    /// Adds a slot to a leaf, at the `position` that `search` returned. The leaf must be neither
    /// full nor locked.
    #[inline(always)]
    pub(crate) fn insert(self, position: usize, key: &[u8], record: u32, keys: &impl Keys) {
        let count = self.count();
        debug_assert!(count < N && position <= count);
        if !self.shares_prefix(key, keys) {
            self.lock();
            self.shorten_skip(key, keys);
            self.shift_in(position, count, head(key, self.skip()), record);
            self.unlock();
            return;
        }
        let head = head(key, self.skip());
        if position == count {
            self.set_slot(count, head, record);
            self.set_count(count + 1);
            return;
        }
        self.lock();
        self.shift_in(position, count, head, record);
        self.unlock();
    }

    #[inline(always)]
    fn shift_in(self, position: usize, count: usize, head: u64, record: u32) {
        let mut slot = count;
        while slot > position {
            let moved = self.words.load64(HEADS + 8 * (slot - 1), Relaxed);
            self.words.store64(HEADS + 8 * slot, moved, Relaxed);
            slot -= 1;
        }
        let mut slot = count;
        while slot > position {
            let moved = self.words.load32(Self::RECORDS + 4 * (slot - 1), Relaxed);
            self.words.store32(Self::RECORDS + 4 * slot, moved, MOVED);
            slot -= 1;
        }
        self.set_slot(position, head, record);
        self.set_count(count + 1);
    }

    /// Adds a separator at `position`, and the child to the right of it. The node must be locked or
    /// new.
    pub(crate) fn insert_child(
        self,
        position: usize,
        separator: u32,
        child: u32,
        keys: &impl Keys,
    ) {
        let count = self.count();
        debug_assert!(count < N && position <= count);
        let key = keys.key(separator);
        if !self.shares_prefix(key, keys) {
            self.shorten_skip(key, keys);
        }
        let mut slot = count + 1;
        while slot > position + 1 {
            self.set_child(slot, self.child(slot - 1));
            slot -= 1;
        }
        self.set_child(position + 1, child);
        self.shift_in(position, count, head(key, self.skip()), separator);
    }

    /// Moves the slots from `from` on into `right`, an empty new node. This node must be locked.
    pub(crate) fn move_slots(self, from: usize, right: Self) {
        let count = self.count();
        right
            .words
            .store32(SKIP, self.words.load32(SKIP, Relaxed), Relaxed);
        for slot in from..count {
            right.set_slot(slot - from, self.head_of(slot), self.record(slot));
        }
        right.set_count(count - from);
        self.set_count(from);
    }

    /// Moves the separators after `middle` and their children into `right`, removes the separator
    /// at `middle`, and returns its record, which moves up. This node must be locked.
    pub(crate) fn move_children(self, middle: usize, right: Self) -> u32 {
        let count = self.count();
        let up = self.record(middle);
        for slot in middle + 1..=count {
            right.set_child(slot - middle - 1, self.child(slot));
        }
        self.move_slots(middle + 1, right);
        self.set_count(middle);
        up
    }

    fn bounds_prefix(self, keys: &impl Keys) -> Option<usize> {
        let (low, high) = (self.low(), self.high());
        (low != 0 && high != 0).then(|| common_prefix(keys.key(low), keys.key(high)))
    }

    fn entries_prefix(self, keys: &impl Keys) -> usize {
        match self.count() {
            0 => 0,
            count => common_prefix(keys.key(self.record(0)), keys.key(self.record(count - 1))),
        }
    }

    fn has_ties(self) -> bool {
        (1..self.count()).any(|slot| self.head_of(slot - 1) == self.head_of(slot))
    }

    /// Chooses a new skip after slots or bounds have changed. A longer skip costs a visit to every
    /// record, so it is chosen only if that pays. The node must be locked or new.
    pub(crate) fn renew_skip(self, keys: &impl Keys) {
        let current = self.skip();
        let bounds = self.bounds_prefix(keys);
        // Every key that is routed here shares this prefix.
        let free = bounds.unwrap_or(0);
        let ties = self.has_ties();
        let mut chosen = current;
        if current <= free {
            if free - current >= 4 || ties {
                chosen = free;
            }
        } else if bounds.is_some() && current - free < 4 {
            chosen = free;
        }
        if chosen == current && ties {
            // This is longer than what the bounds guarantee, so searches will have to check it.
            chosen = self.entries_prefix(keys).max(current);
        }
        self.set_skip(chosen, free, keys);
    }

    /// Shortens the skip to the prefix that the entries share with `key`. The node must be locked.
    #[cold]
    fn shorten_skip(self, key: &[u8], keys: &impl Keys) {
        let shared = common_prefix(key, keys.key(self.record(0)));
        let free = self.bounds_prefix(keys).unwrap_or(0);
        self.set_skip(shared, free, keys);
    }

    fn set_skip(self, skip: usize, free: usize, keys: &impl Keys) {
        let changed = skip != self.skip();
        let checked = if skip > free { CHECKED } else { 0 };
        self.words.store32(SKIP, skip as u32 | checked, Relaxed);
        if changed {
            for slot in 0..self.count() {
                let head = head(keys.key(self.record(slot)), skip);
                self.words.store64(HEADS + 8 * slot, head, Relaxed);
            }
        }
    }
}
