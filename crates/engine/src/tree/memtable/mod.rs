//! The memtable: the newest entries of a keyspace, in memory, in order.
//!
//! It is a B+-tree of unique user keys in an arena of its own ([`ArenaPool`]); the versions of a
//! key form a chain, newest first. One writer at a time changes it ([`MemtableWriter`]); any number
//! of readers read it without locks, concurrently with the writer. Nothing is ever removed, so a
//! reader's data stays valid as long as the memtable lives.
//!
//! - `node`: one node and the protocol between the writer and readers
//! - `tree`: how readers walk; `write`: how the writer inserts, splits and takes groups
//! - `record`: versions and their chains; `filter`: says "no" at the cost of one cache line
//! - `range`: range deletes, beside the tree; `iter`: cursors; `arena`: memory
//! - `in_log`: memtables whose large values are in the log
//!
//! Stamps: after the first range delete, each insert raises the stamp of every node on its path to
//! its sequence number. So a cursor under a range delete finds the newer entries without stepping
//! over the older ones.
//!
//! Invariants: user keys in the tree are distinct and ascending. The sequence numbers of a key's
//! inserts rise. A record is immutable once its offset is in a node. `used_bytes` is exact.
//!
//! Visibility: an entry whose insert was complete before a sequence number was published (release)
//! is visible to every reader that has read that number (acquire). Entries with higher numbers may
//! exist; a reader passes its number and does not see them.

mod arena;
mod filter;
pub(crate) mod in_log;
mod iter;
mod node;
mod range;
mod record;
mod tree;
mod write;

#[cfg(test)]
mod tests;

pub use arena::{Arena, ArenaError, ArenaPool, MAX_ARENA_BYTES, MIN_ARENA_BYTES};
pub use iter::MemtableIter;
pub use range::{RangeDelete, RangeDeletesIter};
pub use tree::Newer;
pub use write::{LookAhead, MemtableWriter};

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use filter::Filter;
use in_log::LogBacked;
use range::RangeDeletes;
use record::{GRANULE_BYTES, RECORD_OVERHEAD_BYTES};
use tree::{ArenaNode, MAX_LEVELS, Tree};
use write::WriterState;

use siltstone_storage::planted;

/// The longest user key, in bytes.
pub const MAX_KEY_BYTES: usize = 64 << 10;
/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;
/// The largest sequence number: 56 bits.
pub const MAX_SEQ: u64 = (1 << 56) - 1;
/// The raw bytes of an entry beyond its key and value.
const ENTRY_RAW_BYTES: usize = 12;
/// One byte in this many of the arena belongs to the filter: about 8 bits for each key if an entry
/// takes 64 bytes.
const FILTER_SHARE: usize = 64;

/// The size of a page of the filter, in bytes.
const FILTER_PAGE_BYTES: u64 = 4096;
/// Offset 0 means "none", so the first bytes of an arena are not used.
const FIRST_RECORD_BYTES: usize = 64;
const LINE_BYTES: usize = 64;

/// An entry to insert.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The user key; may be empty.
    pub user_key: &'a [u8],
    /// The sequence number. It must be above that of every earlier entry of the same key.
    pub seq: u64,
    /// The kind, as its number.
    pub kind: u8,
    /// The value; may be empty.
    pub value: &'a [u8],
}

/// The version that a read found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'m> {
    /// The sequence number.
    pub seq: u64,
    /// The kind, as its number.
    pub kind: u8,
    /// The value, in the memtable's memory. (Of a put whose value is in the log, its address:
    /// `in_log`.)
    pub value: &'m [u8],
}

/// Why an entry was not inserted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The arena has no room, so the next memtable is needed.
    #[error("the memtable is full")]
    Full,
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key of {bytes} bytes is longer than the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// The length of the key.
        bytes: usize,
    },
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("a value of {bytes} bytes is longer than the limit of {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// The length of the value.
        bytes: usize,
    },
    /// The sequence number does not fit into 56 bits.
    #[error("sequence number {given} is above the limit of {MAX_SEQ}")]
    SequenceTooLarge {
        /// The number.
        given: u64,
    },
    /// The key (or, for a range delete, the memtable) already has this sequence number or a higher
    /// one.
    #[error(
        "sequence number {given} is not above {newest}, which the memtable already has for this \
         key"
    )]
    SequenceNotRising {
        /// The highest number that exists.
        newest: u64,
        /// The number that was to be inserted.
        given: u64,
    },
}

/// The newest entries of a keyspace.
pub struct Memtable {
    tree: Tree,
    filter: Filter,
    range_deletes: RangeDeletes,
    state: WriterState,
    filter_bytes: usize,
    first_leaf: u32,
    /// `None` if the memtable has all of its values in memory.
    log_backed: Option<LogBacked>,
    arena: Arena,
}

// SAFETY: the raw pointers point into the arena, which moves together with the memtable.
unsafe impl Send for Memtable {}
// SAFETY: what readers share with the writer is atomic, or immutable once published (`node`,
// `record`, `filter`, `range`), and there is one writer at a time (`writer`).
unsafe impl Sync for Memtable {}

impl Memtable {
    /// An empty memtable in `arena`.
    pub fn new(arena: Arena) -> Memtable {
        let base = arena.start();
        let filter_bytes = (arena.bytes() / FILTER_SHARE).next_multiple_of(LINE_BYTES);
        let filter_start = arena.bytes() - filter_bytes;
        let leaf_start = filter_start - ArenaNode::LEAF_BYTES;
        let leaf = (leaf_start / GRANULE_BYTES) as u32;
        // SAFETY: the filter lies at the end of the arena and consists of whole words, which are
        // aligned since the arena's size is. Nothing else uses the arena, so it may be cleared. The
        // tree's first leaf lies before the filter. The arena outlives all three, and nothing but
        // the filter and the writer changes its memory.
        let (filter, tree) = unsafe {
            let words = base.add(filter_start);
            if arena.is_used() {
                words.write_bytes(0, filter_bytes);
            }
            (
                Filter::new(words.cast::<AtomicU64>(), filter_bytes / 8),
                Tree::new(base, leaf),
            )
        };
        Memtable {
            tree,
            filter,
            range_deletes: RangeDeletes::new(),
            state: WriterState::new(FIRST_RECORD_BYTES, leaf_start, leaf),
            filter_bytes,
            first_leaf: leaf,
            log_backed: None,
            arena,
        }
    }

    /// The size of an arena for this number of entries, whose keys and values have these sums; for
    /// [`ArenaPool::take`].
    pub fn arena_bytes_for(entries: usize, key_bytes: usize, value_bytes: usize) -> usize {
        let mut nodes = [0; MAX_LEVELS];
        nodes[0] = 1;
        let bytes = write::bytes_bound(&nodes, entries, key_bytes, value_bytes)
            .saturating_add(FIRST_RECORD_BYTES + ArenaNode::LEAF_BYTES + 2 * LINE_BYTES);
        bytes.saturating_add(bytes / (FILTER_SHARE - 1) + LINE_BYTES)
    }

    /// Whether this number of entries certainly fits, with keys and values of these sums. A range
    /// delete counts as an entry with its end as the value. The estimate is a little too high, so
    /// this may be `false` shortly before `Full`.
    pub fn room_for(&self, entries: usize, key_bytes: usize, value_bytes: usize) -> bool {
        let free = self.state.nodes_start.load(Relaxed) - self.state.records_end.load(Relaxed);
        // An entry splits one node of each level at most. This is enough for nearly all writes.
        let most = (RECORD_OVERHEAD_BYTES + MAX_LEVELS * ArenaNode::INNER_BYTES)
            .saturating_mul(entries)
            .saturating_add(key_bytes)
            .saturating_add(value_bytes);
        most as u64 <= free
            || self.state.bytes_bound(entries, key_bytes, value_bytes) as u64 <= free
    }

    /// The newest version of `user_key` with a number of at most `seq`.
    /// [`Memtable::newest_range_delete_covering`] finds range deletes.
    #[inline]
    pub fn get(&self, user_key: &[u8], seq: u64) -> Option<Found<'_>> {
        if !self.filter.may_contain(Filter::hash(user_key)) {
            return None;
        }
        let newest = self.tree.find(user_key);
        if newest == 0 {
            return None;
        }
        let records = &self.tree.records;
        let record = records.visible(newest, seq);
        (record != 0).then(|| Found {
            seq: records.seq(record),
            kind: records.kind(record),
            value: records.value(record),
        })
    }

    /// The number of the newest range delete that covers `user_key`, among those with numbers of at
    /// most `seq`. It costs one load if there are none.
    #[inline]
    pub fn newest_range_delete_covering(&self, user_key: &[u8], seq: u64) -> Option<u64> {
        if self.range_deletes.is_empty() {
            return None;
        }
        self.range_delete_covering(user_key, seq)
            .map(|delete| delete.seq)
    }

    /// The newest range delete that covers `user_key`, among those with numbers of at most `seq`.
    pub fn range_delete_covering(&self, user_key: &[u8], seq: u64) -> Option<RangeDelete<'_>> {
        self.range_deletes
            .newest_covering(user_key, seq, &self.tree.records)
    }

    /// Where a reader may find entries with numbers above `seq`, in this direction from `key`.
    /// `seq` is the number of a range delete that the reader sees, in this memtable or in another
    /// source. A reader that has read a published number misses no entry up to that number.
    pub fn find_newer(&self, key: &[u8], seq: u64, forward: bool) -> Newer<'_> {
        if self.state.max_seq.load(Relaxed) <= seq || planted!(JumpIgnoresStamps) {
            // The range delete is in a newer source, or nothing was inserted after it.
            return Newer::Nowhere;
        }
        if seq < self.state.stamped_from.load(Relaxed) {
            return Newer::Here;
        }
        self.tree.find_newer(key, seq, forward)
    }

    /// The range deletes, in the order of their numbers.
    pub fn range_deletes(&self) -> RangeDeletesIter<'_> {
        self.range_deletes.iter(&self.tree.records)
    }

    /// The number of range deletes.
    pub fn range_delete_count(&self) -> usize {
        self.range_deletes.count()
    }

    /// The bytes that range deletes occupy outside the arena.
    pub fn range_delete_held_bytes(&self) -> u64 {
        self.range_deletes.held_bytes()
    }

    /// The number of entries: all versions, without range deletes.
    pub fn entry_count(&self) -> u64 {
        self.state.entries.load(Relaxed)
    }

    /// Whether there is neither an entry nor a range delete.
    pub fn is_empty(&self) -> bool {
        self.entry_count() == 0 && self.range_deletes.is_empty()
    }

    /// Bytes in use: records, nodes, the filter, and the memory of range deletes outside the arena.
    pub fn used_bytes(&self) -> u64 {
        let records = self.state.records_end.load(Relaxed);
        let nodes =
            (self.arena.bytes() - self.filter_bytes) as u64 - self.state.nodes_start.load(Relaxed);
        records + nodes + self.filter_bytes as u64 + self.range_deletes.held_bytes()
    }

    /// Bytes in memory that [`ArenaPool::whole_bytes`] does not count: the written part of an arena
    /// whose pages come in as they are written, and the memory of range deletes outside the arena.
    pub fn beside_whole_arenas_bytes(&self) -> u64 {
        match self.arena.is_sparse() {
            true => {
                // The pages of the filter come in one by one: at most one for each entry.
                let filter = self.filter_bytes as u64;
                let touched = filter.min(self.entry_count() * FILTER_PAGE_BYTES);
                self.used_bytes() - filter + touched
            }
            false => self.range_delete_held_bytes(),
        }
    }

    /// The size of the arena, in bytes.
    pub fn arena_bytes(&self) -> usize {
        self.arena.bytes()
    }

    /// Keys, values and 12 bytes for each entry. A range delete counts with both of its keys.
    pub fn raw_bytes(&self) -> u64 {
        self.state.raw_bytes.load(Relaxed)
    }

    fn set_raw_bytes(&mut self, bytes: u64) {
        self.state.raw_bytes.store(bytes, Relaxed);
    }

    /// The smallest sequence number, including those of range deletes.
    pub fn min_seq(&self) -> Option<u64> {
        let seq = self.state.min_seq.load(Relaxed);
        (seq != u64::MAX).then_some(seq)
    }

    /// The largest sequence number, including those of range deletes.
    pub fn max_seq(&self) -> Option<u64> {
        self.min_seq().map(|_| self.state.max_seq.load(Relaxed))
    }

    /// The smallest user key that has an entry.
    pub fn first_key(&self) -> Option<&[u8]> {
        let leaf = self.tree.node(self.first_leaf);
        // The first leaf stays the first, and its first slot always names a record that is, or just
        // was, the first.
        (leaf.count() > 0).then(|| self.tree.key(leaf.record(0)))
    }

    /// The largest user key that has an entry.
    pub fn last_key(&self) -> Option<&[u8]> {
        let record = self.state.last_record.load(Acquire);
        (record != 0).then(|| self.tree.key(record))
    }
}
