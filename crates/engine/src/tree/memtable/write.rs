//! The memtable's writer: records, slots, splits and groups.
//!
//! Records grow up from the arena's start, and nodes down from its end. Nothing is freed singly,
//! and the memtable is full when a record or a split would make them meet. A change that does not
//! fit is refused before anything is changed.
//!
//! Threading: one writer at a time, which a flag checks (a second one panics). Its state is in
//! relaxed atomics only so that readers can load the counts.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use super::filter::Filter;
use super::node::Place;
use super::record::{GRANULE_BYTES, RECORD_OVERHEAD_BYTES, record_bytes, write_record};
use super::tree::{ArenaNode, MAX_LEVELS, NODE_SLOTS, Tree};
use super::{
    ENTRY_RAW_BYTES, Entry, InsertError, MAX_KEY_BYTES, MAX_SEQ, MAX_VALUE_BYTES, Memtable,
};

/// The number of keys of a group that walk down together: enough to keep the memory busy, few
/// enough to stay in the first cache.
const CHUNK: usize = 16;

/// The state that only the writer changes. It has cache lines of its own, so that readers do not
/// lose theirs at every insert.
#[repr(align(128))]
pub(super) struct WriterState {
    busy: AtomicBool,
    /// The end of the records, in bytes from the arena's start.
    pub(super) records_end: AtomicU64,
    /// The start of the nodes, in bytes from the arena's start.
    pub(super) nodes_start: AtomicU64,
    /// The rightmost leaf.
    last_leaf: AtomicU32,
    /// A record of the largest key; 0 if there is none.
    pub(super) last_record: AtomicU32,
    pub(super) entries: AtomicU64,
    pub(super) raw_bytes: AtomicU64,
    pub(super) min_seq: AtomicU64,
    pub(super) max_seq: AtomicU64,
    /// The stamps of the nodes cover all entries with larger numbers than this. Stamping begins
    /// with the first range delete.
    pub(super) stamped_from: AtomicU64,
    nodes: [AtomicU32; MAX_LEVELS],
}

impl WriterState {
    pub(super) fn new(records_end: usize, nodes_start: usize, leaf: u32) -> WriterState {
        let state = WriterState {
            busy: AtomicBool::new(false),
            records_end: AtomicU64::new(records_end as u64),
            nodes_start: AtomicU64::new(nodes_start as u64),
            last_leaf: AtomicU32::new(leaf),
            last_record: AtomicU32::new(0),
            entries: AtomicU64::new(0),
            raw_bytes: AtomicU64::new(0),
            min_seq: AtomicU64::new(u64::MAX),
            max_seq: AtomicU64::new(0),
            stamped_from: AtomicU64::new(u64::MAX),
            nodes: [const { AtomicU32::new(0) }; MAX_LEVELS],
        };
        state.nodes[0].store(1, Relaxed);
        state
    }

    /// The maximum number of bytes that `entries` inserts can take. See the function `bytes_bound`.
    pub(super) fn bytes_bound(
        &self,
        entries: usize,
        key_bytes: usize,
        value_bytes: usize,
    ) -> usize {
        let nodes: [usize; MAX_LEVELS] =
            std::array::from_fn(|level| self.nodes[level].load(Relaxed) as usize);
        bytes_bound(&nodes, entries, key_bytes, value_bytes)
    }
}

/// The maximum number of bytes that `entries` inserts can take in a tree with these numbers of
/// nodes by level.
///
/// Records: header and padding at most. Nodes: an insert splits at most one node a level. There are
/// two bounds on the splits s of a level with n nodes into which m slots go. One is m. The other: a
/// split in the middle leaves two nodes at most half full. Give each node as credit the share by
/// which its second half is filled; a full node has 1, an insert adds at most 1/30, a split in the
/// middle takes at least 28/30; so there are at most (n + m/30) * 30/28 of these. A split at the
/// end happens only in the rightmost node and takes no credit, but leaves a rightmost node with at
/// most 5 slots, or one that was halved, so the next one is at least 30 inserts away: at most 1 +
/// m/30. The sum is below n + n/14 + m/14 + 2. What splits on one level is inserted on the next;
/// above the root each level gets one node more.
pub(super) fn bytes_bound(
    nodes: &[usize; MAX_LEVELS],
    entries: usize,
    key_bytes: usize,
    value_bytes: usize,
) -> usize {
    let records = entries
        .saturating_mul(RECORD_OVERHEAD_BYTES)
        .saturating_add(key_bytes)
        .saturating_add(value_bytes);
    let mut total = records;
    let mut inserts = entries;
    for (level, &count) in nodes.iter().enumerate() {
        if inserts == 0 {
            break;
        }
        let splits = inserts.min(count + count / 14 + inserts / 14 + 2);
        // A level that does not exist yet needs one node more: the new root.
        let new_nodes = if count == 0 { inserts / 14 + 3 } else { splits };
        let size = if level == 0 {
            ArenaNode::LEAF_BYTES
        } else {
            ArenaNode::INNER_BYTES
        };
        total = total.saturating_add(new_nodes.saturating_mul(size));
        if count == 0 && inserts < NODE_SLOTS {
            // All of them fit into the new root.
            break;
        }
        inserts = if count == 0 { new_nodes } else { splits };
    }
    total
}

/// The only handle that can change a memtable. Dropping it allows the next one.
pub struct MemtableWriter<'m> {
    memtable: &'m Memtable,
    /// The writer must not be shared between threads.
    _alone: PhantomData<Cell<()>>,
}

impl Memtable {
    /// Becomes the writer. Panics if there is one already: callers must make sure by other means
    /// that there is only one, because two writers would destroy the tree.
    pub fn writer(&self) -> MemtableWriter<'_> {
        // Acquire: the state that the last writer left comes before.
        let busy = self.state.busy.swap(true, Acquire);
        assert!(!busy, "a memtable was given two writers at the same time");
        MemtableWriter {
            memtable: self,
            _alone: PhantomData,
        }
    }
}

/// Where a key will be inserted. See [`Memtable::look_ahead`].
#[derive(Clone, Copy, Debug)]
pub struct LookAhead {
    hash: u64,
    leaf: u32,
    /// The number of entries that the memtable had. After another insert the key may belong to
    /// another leaf.
    entries: u64,
}

impl Memtable {
    /// Looks for the leaf to which `key` belongs and prefetches what an insert will need, so that
    /// the memory is there after the caller has done something else. Returns `None` if the key is
    /// above all others: its insert needs no search.
    ///
    /// The caller is the next one to write, and nobody writes now. Otherwise the result is useless,
    /// and the insert searches again.
    pub fn look_ahead(&self, key: &[u8]) -> Option<LookAhead> {
        let (tree, state) = (&self.tree, &self.state);
        debug_assert!(!state.busy.load(Relaxed), "somebody writes");
        let last = state.last_record.load(Relaxed);
        if last == 0 || tree.key(last) < key {
            return None;
        }
        let hash = Filter::hash(key);
        self.filter.prefetch(hash);
        Some(LookAhead {
            hash,
            leaf: leaf_of(tree, key),
            entries: state.entries.load(Relaxed),
        })
    }
}

/// The leaf to which `key` belongs. Only the writer calls this.
#[inline(always)]
fn leaf_of(tree: &Tree, key: &[u8]) -> u32 {
    let (mut offset, level) = tree.root();
    for _ in 0..level {
        let node = tree.node(offset);
        offset = node.child(tree.route(node, key));
        tree.prefetch_node(offset);
    }
    offset
}

impl Drop for MemtableWriter<'_> {
    fn drop(&mut self) {
        self.memtable.state.busy.store(false, Release);
    }
}

impl MemtableWriter<'_> {
    /// The memtable that is written.
    pub fn memtable(&self) -> &Memtable {
        self.memtable
    }

    /// Adds one entry. It is visible at once, but readers do not look for its sequence number
    /// before it is published. If the call fails, nothing was added.
    pub fn insert(
        &mut self,
        user_key: &[u8],
        seq: u64,
        kind: u8,
        value: &[u8],
    ) -> Result<(), InsertError> {
        let entry = Entry {
            user_key,
            seq,
            kind,
            value,
        };
        self.insert_ahead(&entry, None)
    }

    /// As [`MemtableWriter::insert`], for an entry whose key was looked for before.
    pub fn insert_ahead(
        &mut self,
        entry: &Entry<'_>,
        ahead: Option<LookAhead>,
    ) -> Result<(), InsertError> {
        check(entry)?;
        if !self.append(entry)? {
            let entries = self.memtable.state.entries.load(Relaxed);
            debug_assert!(
                ahead.is_none_or(|ahead| ahead.hash == Filter::hash(entry.user_key)),
                "another key was looked for"
            );
            let (hash, leaf) = match ahead {
                Some(ahead) if ahead.entries == entries => (ahead.hash, ahead.leaf),
                _ => (Filter::hash(entry.user_key), self.leaf_of(entry.user_key)),
            };
            self.memtable.filter.add(hash);
            self.insert_at(leaf, entry)?;
        }
        self.count(std::slice::from_ref(entry));
        Ok(())
    }

    /// Adds entries in this order. They need not be sorted, and keys may repeat with rising
    /// numbers. This is faster than one by one, because the walks to the leaves wait for memory
    /// together. After an error the entries before the failed one are added, and no others. A group
    /// for which `room_for` was true never fails with `Full`.
    pub fn insert_group(&mut self, entries: &[Entry<'_>]) -> Result<(), InsertError> {
        let mut rest = entries;
        while let Some(first) = rest.first() {
            check(first)?;
            let (done, outcome) = if self.append(first)? {
                (1, Ok(()))
            } else {
                self.insert_chunk(&rest[..rest.len().min(CHUNK)])
            };
            self.count(&rest[..done]);
            outcome?;
            rest = &rest[done..];
        }
        Ok(())
    }

    /// Adds up to `CHUNK` entries, and returns how many were added.
    fn insert_chunk(&mut self, entries: &[Entry<'_>]) -> (usize, Result<(), InsertError>) {
        let tree = &self.memtable.tree;
        let filter = &self.memtable.filter;
        let mut hashes = [0; CHUNK];
        for (hash, entry) in hashes.iter_mut().zip(entries) {
            *hash = Filter::hash(entry.user_key);
            filter.prefetch(*hash);
        }
        let (root, level) = tree.root();
        let mut nodes = [root; CHUNK];
        for _ in 0..level {
            for (offset, entry) in nodes.iter_mut().zip(entries) {
                let node = tree.node(*offset);
                *offset = node.child(tree.route(node, entry.user_key));
                tree.prefetch_node(*offset);
            }
        }
        for (done, entry) in entries.iter().enumerate() {
            filter.add(hashes[done]);
            let leaf = nodes[done];
            match check(entry).and_then(|()| self.insert_at(leaf, entry)) {
                Err(error) => return (done, Err(error)),
                Ok(false) => {}
                Ok(true) => {
                    // Keys that were on their way to this leaf may now belong to its new neighbour.
                    for later in done + 1..entries.len() {
                        if nodes[later] == leaf {
                            nodes[later] = self.leaf_of(entries[later].user_key);
                        }
                    }
                }
            }
        }
        (entries.len(), Ok(()))
    }

    #[inline(always)]
    fn leaf_of(&self, key: &[u8]) -> u32 {
        leaf_of(&self.memtable.tree, key)
    }

    /// Adds an entry without a search if its key is above all others; otherwise returns `false`.
    #[inline(always)]
    fn append(&mut self, entry: &Entry<'_>) -> Result<bool, InsertError> {
        let (tree, state) = (&self.memtable.tree, &self.memtable.state);
        let last = state.last_record.load(Relaxed);
        if last == 0 || tree.key(last) >= entry.user_key {
            return Ok(false);
        }
        self.memtable.filter.add(Filter::hash(entry.user_key));
        let leaf = tree.node(state.last_leaf.load(Relaxed));
        let count = leaf.count();
        if count == NODE_SLOTS {
            self.split(entry, true)?;
            return Ok(true);
        }
        let record = self.write(entry, None)?;
        leaf.insert(count, entry.user_key, record, &tree.records);
        state.last_record.store(record, Release);
        Ok(true)
    }

    /// Adds an entry to the leaf at `offset`, to which its key belongs. Returns whether that leaf
    /// was split.
    #[inline(always)]
    fn insert_at(&mut self, mut offset: u32, entry: &Entry<'_>) -> Result<bool, InsertError> {
        let (tree, state) = (&self.memtable.tree, &self.memtable.state);
        let mut leaf = tree.node(offset);
        let Place {
            mut position,
            record: newest,
        } = leaf.search(entry.user_key, &tree.records);
        if newest != 0 {
            let newest_seq = tree.records.seq(newest);
            if entry.seq <= newest_seq {
                return Err(InsertError::SequenceNotRising {
                    newest: newest_seq,
                    given: entry.seq,
                });
            }
            let record = self.write(entry, Some(newest))?;
            leaf.overwrite(position, record);
            return Ok(false);
        }
        let mut count = leaf.count();
        let split = count == NODE_SLOTS;
        if split {
            let at_end = position == count && offset == state.last_leaf.load(Relaxed);
            self.split(entry, at_end)?;
            if at_end {
                return Ok(true);
            }
            offset = self.leaf_of(entry.user_key);
            leaf = tree.node(offset);
            position = leaf.search(entry.user_key, &tree.records).position;
            count = leaf.count();
        }
        let record = self.write(entry, None)?;
        leaf.insert(position, entry.user_key, record, &tree.records);
        if position == count && offset == state.last_leaf.load(Relaxed) {
            state.last_record.store(record, Release);
        }
        Ok(split)
    }

    /// The bytes between records and nodes.
    #[inline(always)]
    fn free_bytes(&self) -> usize {
        let state = &self.memtable.state;
        (state.nodes_start.load(Relaxed) - state.records_end.load(Relaxed)) as usize
    }

    /// Writes a record to which nothing refers yet.
    #[inline(always)]
    fn write(&mut self, entry: &Entry<'_>, onto: Option<u32>) -> Result<u32, InsertError> {
        let bytes = record_bytes(entry.user_key.len(), entry.value.len(), onto.is_some());
        if bytes > self.free_bytes() {
            return Err(InsertError::Full);
        }
        let (tree, state) = (&self.memtable.tree, &self.memtable.state);
        let chain = onto.map(|newest| tree.records.chain_onto(newest));
        let start = state.records_end.load(Relaxed) as usize;
        // SAFETY: the bytes lie in the arena between the records and the nodes, where nothing else
        // reads, and start at a multiple of 8 since the size of every record is one.
        unsafe {
            write_record(
                tree.base().add(start),
                entry.user_key,
                entry.seq,
                entry.kind,
                entry.value,
                chain,
            )
        };
        state.records_end.store((start + bytes) as u64, Relaxed);
        Ok((start / GRANULE_BYTES) as u32)
    }

    /// Takes room for a node. The caller has checked that there is some.
    fn new_node(&mut self, level: usize) -> u32 {
        let state = &self.memtable.state;
        let bytes = if level == 0 {
            ArenaNode::LEAF_BYTES
        } else {
            ArenaNode::INNER_BYTES
        };
        let start = state.nodes_start.load(Relaxed) - bytes as u64;
        debug_assert!(start >= state.records_end.load(Relaxed));
        state.nodes_start.store(start, Relaxed);
        state.nodes[level].store(state.nodes[level].load(Relaxed) + 1, Relaxed);
        (start / GRANULE_BYTES as u64) as u32
    }

    /// Splits the full leaf to which the entry belongs, and full nodes above it. With `at_end`, the
    /// entry's key is above all others, and the entry becomes the first one of a new last leaf:
    /// keys in order leave full leaves behind.
    #[inline(never)]
    fn split(&mut self, entry: &Entry<'_>, at_end: bool) -> Result<(), InsertError> {
        let tree = &self.memtable.tree;
        let (root, height) = tree.root();
        // For each level the node on the path, and the index of its child on the path.
        let mut path = [(0, 0); MAX_LEVELS];
        let mut leaf_offset = root;
        for level in (1..=height).rev() {
            let node = tree.node(leaf_offset);
            let child = tree.route(node, entry.user_key);
            path[level] = (leaf_offset, child);
            leaf_offset = node.child(child);
        }
        let full = (1..=height)
            .take_while(|&level| tree.node(path[level].0).count() == NODE_SLOTS)
            .count();
        let grows = full == height;
        let node_bytes =
            ArenaNode::LEAF_BYTES + (full + usize::from(grows)) * ArenaNode::INNER_BYTES;
        // The record is counted too, so that a refusal comes before any change.
        let bytes = node_bytes + record_bytes(entry.user_key.len(), entry.value.len(), false);
        if bytes > self.free_bytes() || height + 1 == MAX_LEVELS {
            return Err(InsertError::Full);
        }

        let top = if grows { height } else { full + 1 };
        for level in (1..=top).rev() {
            tree.node(path[level].0).lock();
        }
        let leaf = tree.node(leaf_offset);
        leaf.lock();
        let (separator, right) = self.split_leaf(leaf, entry, at_end);
        self.link(separator, right, height, &path, root);
        leaf.unlock();
        for &(offset, _) in &path[1..=top] {
            tree.node(offset).unlock();
        }
        Ok(())
    }

    /// Gives the locked leaf a right neighbour. Returns the separator's record and the neighbour.
    fn split_leaf(&mut self, leaf: ArenaNode, entry: &Entry<'_>, at_end: bool) -> (u32, u32) {
        let (tree, state) = (&self.memtable.tree, &self.memtable.state);
        let records = &tree.records;
        let right_offset = self.new_node(0);
        let right = tree.node(right_offset);
        let separator = if at_end {
            // There is room: `split` has counted the record.
            let Ok(record) = self.write(entry, None) else {
                unreachable!("a split was begun without room for its record")
            };
            right.init(record, 0, 0);
            right.insert(0, entry.user_key, record, records);
            state.last_record.store(record, Release);
            record
        } else {
            let separator = leaf.record(NODE_SLOTS / 2);
            right.init(separator, leaf.high(), leaf.next());
            right.raise_newest(leaf.newest());
            leaf.move_slots(NODE_SLOTS / 2, right);
            separator
        };
        if leaf.next() == 0 {
            state.last_leaf.store(right_offset, Relaxed);
        }
        leaf.set_high(separator);
        leaf.set_next(right_offset);
        leaf.renew_skip(records);
        right.renew_skip(records);
        (separator, right_offset)
    }

    /// Inserts a separator and the child to its right into the locked nodes of `path`, from level 1
    /// up.
    fn link(
        &mut self,
        mut separator: u32,
        mut child: u32,
        height: usize,
        path: &[(u32, usize); MAX_LEVELS],
        root: u32,
    ) {
        let tree = &self.memtable.tree;
        let records = &tree.records;
        for (level, &(offset, position)) in path.iter().enumerate().take(height + 1).skip(1) {
            let node = tree.node(offset);
            if node.count() < NODE_SLOTS {
                node.insert_child(position, separator, child, records);
                return;
            }
            // At the end, the left node is left nearly full: keys in order will not come back to
            // it.
            let middle = if position == NODE_SLOTS {
                NODE_SLOTS - 4
            } else {
                NODE_SLOTS / 2
            };
            let right_offset = self.new_node(level);
            let right = tree.node(right_offset);
            let up = node.record(middle);
            right.init(up, node.high(), 0);
            right.raise_newest(node.newest());
            node.move_children(middle, right);
            node.set_high(up);
            node.renew_skip(records);
            right.renew_skip(records);
            if position <= middle {
                node.insert_child(position, separator, child, records);
            } else {
                right.insert_child(position - middle - 1, separator, child, records);
            }
            (separator, child) = (up, right_offset);
        }
        let new_root = self.new_node(height + 1);
        let node = tree.node(new_root);
        node.init(0, 0, 0);
        node.raise_newest(tree.node(root).newest());
        node.set_child(0, root);
        node.insert_child(0, separator, child, records);
        tree.set_root(new_root, height + 1);
    }

    /// Counts entries that were added.
    #[inline(always)]
    fn count(&mut self, entries: &[Entry<'_>]) {
        let state = &self.memtable.state;
        let mut raw_bytes = 0;
        let mut min_seq = state.min_seq.load(Relaxed);
        let mut max_seq = state.max_seq.load(Relaxed);
        let stamps = !self.memtable.range_deletes.is_empty();
        for entry in entries {
            if stamps {
                self.memtable.tree.stamp(entry.user_key, entry.seq);
            }
            raw_bytes += (entry.user_key.len() + entry.value.len() + ENTRY_RAW_BYTES) as u64;
            min_seq = min_seq.min(entry.seq);
            max_seq = max_seq.max(entry.seq);
        }
        state
            .entries
            .store(state.entries.load(Relaxed) + entries.len() as u64, Relaxed);
        state
            .raw_bytes
            .store(state.raw_bytes.load(Relaxed) + raw_bytes, Relaxed);
        state.min_seq.store(min_seq, Relaxed);
        state.max_seq.store(max_seq, Relaxed);
    }

    /// Deletes the keys from `start` up to but not including `end`, as of `seq`. The sequence
    /// numbers of range deletes must rise. An empty range is accepted and does nothing. If the call
    /// fails, nothing was added.
    pub fn add_range_delete(
        &mut self,
        start: &[u8],
        end: &[u8],
        seq: u64,
    ) -> Result<(), InsertError> {
        for key in [start, end] {
            check(&Entry {
                user_key: key,
                seq,
                kind: 0,
                value: &[],
            })?;
        }
        if start >= end {
            return Ok(());
        }
        let (memtable, state) = (self.memtable, &self.memtable.state);
        if let Some(newest) = memtable.range_deletes.newest_seq(&memtable.tree.records)
            && seq <= newest
        {
            return Err(InsertError::SequenceNotRising { newest, given: seq });
        }
        let bytes = record_bytes(start.len(), end.len(), false);
        if bytes > self.free_bytes() {
            return Err(InsertError::Full);
        }
        // It is a record like any other: its key is the start, and its value is the end.
        let record = self.write(
            &Entry {
                user_key: start,
                seq,
                kind: RANGE_DELETE_KIND,
                value: end,
            },
            None,
        )?;
        if memtable.range_deletes.is_empty() {
            // From now on inserts stamp their paths. Earlier entries have smaller numbers.
            let stamped_from = seq.max(state.max_seq.load(Relaxed));
            state.stamped_from.store(stamped_from, Relaxed);
        }
        memtable.range_deletes.add(record, &memtable.tree.records);
        state.raw_bytes.store(
            state.raw_bytes.load(Relaxed) + (start.len() + end.len() + ENTRY_RAW_BYTES) as u64,
            Relaxed,
        );
        state
            .min_seq
            .store(state.min_seq.load(Relaxed).min(seq), Relaxed);
        state
            .max_seq
            .store(state.max_seq.load(Relaxed).max(seq), Relaxed);
        Ok(())
    }
}

const RANGE_DELETE_KIND: u8 = 2;

#[inline(always)]
fn check(entry: &Entry<'_>) -> Result<(), InsertError> {
    if entry.user_key.len() > MAX_KEY_BYTES {
        return Err(InsertError::KeyTooLong {
            bytes: entry.user_key.len(),
        });
    }
    if entry.value.len() > MAX_VALUE_BYTES {
        return Err(InsertError::ValueTooLong {
            bytes: entry.value.len(),
        });
    }
    if entry.seq > MAX_SEQ {
        return Err(InsertError::SequenceTooLarge { given: entry.seq });
    }
    Ok(())
}
