//! A cursor over all versions of a memtable, in internal key order: user keys ascending, sequence
//! numbers descending.
//!
//! It copies the record offsets of a leaf and walks the copy, so that between leaves it reads
//! nothing that changes. Forward it follows the neighbour in the copy: whatever a split moved since
//! the copy was made is in the copy. Backward it walks down again, to the largest key below the
//! first one of the copy. So an entry that existed when the cursor was placed is never skipped;
//! later ones may or may not be found.

use std::sync::Arc;

use super::Memtable;
use super::in_log::{LogCopy, PUT, VALUE_ADDRESS};
use super::tree::{Aim, LeafCopy};
use crate::formats::log::values::ValueAddress;
use crate::types::error::Result;

/// The number of records that are prefetched ahead of the cursor.
const AHEAD: usize = 8;

/// A cursor over a memtable. It is on an entry or on none (`is_valid`), and keeps the memtable
/// alive.
pub struct MemtableIter {
    memtable: Arc<Memtable>,
    leaf: LeafCopy,
    slot: usize,
    /// The entry that the cursor is on, 0 if none.
    record: u32,
}

impl Memtable {
    /// A cursor over all versions. It is on no entry until it is placed.
    pub fn iter(self: &Arc<Self>) -> MemtableIter {
        MemtableIter {
            memtable: self.clone(),
            leaf: LeafCopy::EMPTY,
            slot: 0,
            record: 0,
        }
    }
}

impl MemtableIter {
    /// Whether the cursor is on an entry.
    #[inline]
    pub fn is_valid(&self) -> bool {
        self.record != 0
    }

    #[inline]
    fn standing(&self) -> u32 {
        assert!(
            self.record != 0,
            "a memtable cursor that is on no entry was asked for one"
        );
        self.record
    }

    /// The user key. Panics if the cursor is on no entry, as do `seq`, `kind` and `value`.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.memtable.tree.key(self.standing())
    }

    /// The sequence number.
    #[inline]
    pub fn seq(&self) -> u64 {
        self.memtable.tree.records.seq(self.standing())
    }

    /// The kind, as its number. A put whose value is in the log is a put.
    #[inline]
    pub fn kind(&self) -> u8 {
        match self.memtable.tree.records.kind(self.standing()) {
            VALUE_ADDRESS => PUT,
            kind => kind,
        }
    }

    /// Appends the value to `out`.
    ///
    /// # Errors
    /// The value is in the log, and cannot be read there.
    #[inline]
    pub fn append_value(&self, out: &mut Vec<u8>) -> Result<()> {
        let records = &self.memtable.tree.records;
        let kind = records.kind(self.standing());
        self.memtable.read_value(kind, self.own_value(), out)
    }

    /// The value, if this copy of the memtable's part of the log has it.
    #[inline]
    pub(crate) fn value_in<'a>(&'a self, log: &'a LogCopy) -> Option<&'a [u8]> {
        let kind = self.memtable.tree.records.kind(self.standing());
        log.value(kind, self.own_value())
    }

    /// The value, of a memtable whose values are all in memory.
    #[inline]
    pub fn value(&self) -> &[u8] {
        debug_assert!(!self.memtable.is_log_backed());
        self.own_value()
    }

    /// The length of the value, in bytes.
    #[inline]
    pub fn value_len(&self) -> usize {
        let value = self.own_value();
        match self.memtable.tree.records.kind(self.standing()) {
            VALUE_ADDRESS => ValueAddress::decode(value).map_or(0, |a| a.len as usize),
            _ => value.len(),
        }
    }

    /// What stands in the memtable: the value or its address.
    #[inline]
    pub(super) fn own_value(&self) -> &[u8] {
        self.memtable.tree.records.value(self.standing())
    }

    /// The record that the cursor is on.
    #[inline]
    pub(super) fn record(&self) -> u32 {
        self.standing()
    }

    /// The memtable that the cursor reads.
    pub fn memtable(&self) -> &Arc<Memtable> {
        &self.memtable
    }

    /// Moves to the newest version of the key in the current slot, or to the right if there are no
    /// more slots.
    #[inline]
    fn stand_forward(&mut self) {
        let tree = &self.memtable.tree;
        while self.slot >= self.leaf.count {
            if self.leaf.next == 0 {
                self.record = 0;
                return;
            }
            tree.copy_next(self.leaf.next, &mut self.leaf);
            self.slot = 0;
            for &record in &self.leaf.records[..self.leaf.count.min(AHEAD)] {
                tree.records.prefetch(record);
            }
        }
        self.record = self.leaf.records[self.slot];
        if let Some(&ahead) = self.leaf.records[..self.leaf.count].get(self.slot + AHEAD) {
            tree.records.prefetch(ahead);
        }
    }

    /// Moves to the oldest version of the key left of the current slot.
    fn stand_backward(&mut self) {
        let tree = &self.memtable.tree;
        if self.slot == 0 {
            if self.leaf.count == 0 {
                self.record = 0;
                return;
            }
            // The bound is the key of a record, which does not move while the copy is replaced.
            let first = tree.key(self.leaf.records[0]);
            self.slot = tree.copy_leaf(Aim::Below(first), &mut self.leaf);
            if self.slot == 0 {
                self.record = 0;
                return;
            }
        }
        self.slot -= 1;
        self.record = tree.records.oldest(self.leaf.records[self.slot]);
    }

    /// Moves to the first entry.
    pub fn seek_to_first(&mut self) {
        self.slot = self.memtable.tree.copy_leaf(Aim::First, &mut self.leaf);
        self.stand_forward();
    }

    /// Moves to the last entry: the oldest version of the largest key.
    pub fn seek_to_last(&mut self) {
        self.slot = self.memtable.tree.copy_leaf(Aim::Last, &mut self.leaf);
        self.stand_backward();
    }

    /// Moves to the first entry at or after (`user_key`, `seq`): the key's newest version with a
    /// number of at most `seq`, or else the newest version of the next key.
    pub fn seek(&mut self, user_key: &[u8], seq: u64) {
        self.slot = self
            .memtable
            .tree
            .copy_leaf(Aim::At(user_key), &mut self.leaf);
        self.stand_forward();
        if self.record != 0 && self.key() == user_key {
            self.record = self.memtable.tree.records.visible(self.record, seq);
            if self.record == 0 {
                self.slot += 1;
                self.stand_forward();
            }
        }
    }

    /// Moves to the last entry at or before (`user_key`, `seq`): the key's oldest version with a
    /// number of at least `seq`, or else the oldest version of the key before.
    pub fn seek_for_prev(&mut self, user_key: &[u8], seq: u64) {
        let tree = &self.memtable.tree;
        self.slot = tree.copy_leaf(Aim::At(user_key), &mut self.leaf);
        if self.slot < self.leaf.count && tree.key(self.leaf.records[self.slot]) == user_key {
            let newest = self.leaf.records[self.slot];
            if tree.records.seq(newest) >= seq {
                // This is the version just above the newest one below `seq`.
                self.record = match seq
                    .checked_sub(1)
                    .map_or(0, |below| tree.records.visible(newest, below))
                {
                    0 => tree.records.oldest(newest),
                    below => tree.records.newer(newest, below),
                };
                return;
            }
        }
        if self.slot == 0 && self.leaf.count == 0 {
            self.record = 0;
            return;
        }
        self.stand_backward();
    }

    /// Moves to the next entry. From the last entry or from none it moves to none.
    #[inline]
    pub fn next(&mut self) {
        if self.record == 0 {
            return;
        }
        let older = self.memtable.tree.records.older(self.record);
        if older != 0 {
            self.record = older;
            return;
        }
        self.slot += 1;
        self.stand_forward();
    }

    /// Moves to the previous entry. From the first entry or from none it moves to none.
    pub fn prev(&mut self) {
        if self.record == 0 {
            return;
        }
        let newer = self
            .memtable
            .tree
            .records
            .newer(self.leaf.records[self.slot], self.record);
        if newer != 0 {
            self.record = newer;
            return;
        }
        self.stand_backward();
    }
}
