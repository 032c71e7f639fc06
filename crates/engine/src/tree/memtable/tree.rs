//! The tree in an arena: how nodes refer to each other, and how readers walk down. `write` has the
//! changes.
//!
//! Invariants:
//! - Leaves are at level 0. `root` has the root's offset and its level in one word.
//! - A child's keys are at or above the separator to its left, and below the separator to its
//!   right. Keys are never removed, a node keeps its smallest keys when it splits, and a separator
//!   is the smallest key to its right. So a leaf with a lower bound contains that key, and no leaf
//!   is empty except the root of an empty tree.
//! - A split changes the nodes from some ancestor down to a leaf. The writer locks all of them, the
//!   topmost first. A reader therefore takes a child's version and *then* validates the parent: if
//!   the parent is unchanged, that version belongs to a child that the parent's separators
//!   describe.
//!
//! Threading: any number of readers, one writer.

use std::sync::atomic::Ordering::{self, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use siltstone_storage::prefetch_address;

use super::node::{Keys, Node, Place, Words};
use super::record::{GRANULE_BYTES, Records};

/// The number of slots of a node.
pub(super) const NODE_SLOTS: usize = 61;
/// More levels than the nodes of an arena can have: inner nodes have at least five children, and
/// most have over thirty.
pub(super) const MAX_LEVELS: usize = 12;

pub(super) type ArenaNode = Node<ArenaWords, NODE_SLOTS>;

/// The words of a node in an arena.
#[derive(Clone, Copy)]
pub(super) struct ArenaWords {
    start: *const u8,
}

/// Gives the processor to another thread. This is the only wait of the engine outside the runtime.
/// The writer is between two stores here, holds no lock and makes no call, so it needs only
/// processor time to continue. In a simulated runtime the writer never hands over at this point, so
/// no reader gets here.
#[allow(clippy::disallowed_methods)]
fn yield_to_the_writer() {
    std::thread::yield_now();
}

impl Words for ArenaWords {
    #[inline(always)]
    fn load32(self, at: usize, order: Ordering) -> u32 {
        // SAFETY: `start` is the start of a node in the arena (`Tree::node`), `at` is an aligned
        // offset within it, and all access to these bytes is atomic once another thread may know
        // them.
        unsafe { (*self.start.add(at).cast::<AtomicU32>()).load(order) }
    }

    #[inline(always)]
    fn store32(self, at: usize, value: u32, order: Ordering) {
        // SAFETY: as for `load32`.
        unsafe { (*self.start.add(at).cast::<AtomicU32>()).store(value, order) }
    }

    #[inline(always)]
    fn load64(self, at: usize, order: Ordering) -> u64 {
        // SAFETY: as for `load32`.
        unsafe { (*self.start.add(at).cast::<AtomicU64>()).load(order) }
    }

    #[inline(always)]
    fn store64(self, at: usize, value: u64, order: Ordering) {
        // SAFETY: as for `load32`.
        unsafe { (*self.start.add(at).cast::<AtomicU64>()).store(value, order) }
    }

    #[inline(always)]
    fn fence(order: Ordering) {
        fence(order);
    }

    #[cold]
    fn wait(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            yield_to_the_writer();
        }
    }
}

/// The nodes and records of one arena.
pub(super) struct Tree {
    base: *mut u8,
    pub(super) records: Records,
    /// The offset of the root in granules, and its level in the upper half.
    root: AtomicU64,
}

/// The target of a walk down.
#[derive(Clone, Copy)]
pub(super) enum Aim<'k> {
    /// The leaf that has or would have the key.
    At(&'k [u8]),
    /// The leaf with the largest key below this one, if there is one.
    Below(&'k [u8]),
    /// The first leaf.
    First,
    /// The last leaf.
    Last,
}

/// The result of [`super::Memtable::find_newer`]: where the memtable may have entries that are
/// newer than a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newer<'m> {
    /// There are none in this direction.
    Nowhere,
    /// There may be some near the key.
    Here,
    /// Forward: there are none below this key. Backward: there are none at this key or above it.
    Beyond(&'m [u8]),
}

/// The contents of a leaf at one moment.
pub(super) struct LeafCopy {
    pub(super) records: [u32; NODE_SLOTS],
    pub(super) count: usize,
    pub(super) next: u32,
}

impl LeafCopy {
    pub(super) const EMPTY: LeafCopy = LeafCopy {
        records: [0; NODE_SLOTS],
        count: 0,
        next: 0,
    };
}

impl Tree {
    /// A tree whose root is the empty leaf at offset `root`.
    ///
    /// # Safety
    /// `base` is the start of an arena that outlives the tree. `root` and all offsets that are ever
    /// stored in nodes lie in it, and only the tree's writer changes the bytes of these nodes and
    /// records.
    pub(super) unsafe fn new(base: *mut u8, root: u32) -> Tree {
        // SAFETY: by the caller's promise.
        let records = unsafe { Records::new(base) };
        let tree = Tree {
            base,
            records,
            root: AtomicU64::new(u64::from(root)),
        };
        tree.node(root).init(0, 0, 0);
        tree
    }

    #[inline(always)]
    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    #[inline(always)]
    fn address(&self, offset: u32) -> *const u8 {
        debug_assert!(offset != 0);
        // SAFETY: node offsets lie in the arena (`new`).
        unsafe { self.base.add(offset as usize * GRANULE_BYTES) }
    }

    #[inline(always)]
    pub(super) fn node(&self, offset: u32) -> ArenaNode {
        Node::at(ArenaWords {
            start: self.address(offset),
        })
    }

    /// Prefetches all cache lines of a node. Prefetching only some of them was measured to be
    /// slower.
    #[inline(always)]
    pub(super) fn prefetch_node(&self, offset: u32) {
        let start = self.address(offset);
        for line in (0..ArenaNode::LEAF_BYTES).step_by(64) {
            prefetch_address(start.wrapping_add(line));
        }
    }

    /// The offset and the level of the root.
    #[inline(always)]
    pub(super) fn root(&self) -> (u32, usize) {
        let root = self.root.load(Acquire);
        (root as u32, (root >> 32) as usize)
    }

    /// Sets the root. The writer has locked the old one.
    pub(super) fn set_root(&self, offset: u32, level: usize) {
        self.root
            .store(u64::from(offset) | (level as u64) << 32, Ordering::Release);
    }

    /// The index of the child of an inner node to which `key` belongs.
    #[inline(always)]
    pub(super) fn route(&self, node: ArenaNode, key: &[u8]) -> usize {
        let Place { position, record } = node.search(key, &self.records);
        position + usize::from(record != 0)
    }

    /// One attempt to walk down. `route` returns the index of the child to take. Returns a leaf and
    /// its version, or `None` if a split interfered.
    #[inline(always)]
    fn try_descend(&self, route: impl Fn(ArenaNode) -> usize) -> Option<(ArenaNode, u32)> {
        let root = self.root.load(Acquire);
        let (offset, level) = (root as u32, (root >> 32) as usize);
        let mut node = self.node(offset);
        let mut version = node.begin_read();
        // A new root is stored before the old one is unlocked. If that has happened, this version
        // came after it, and the load sees the new root.
        if self.root.load(Relaxed) != root {
            return None;
        }
        for _ in 0..level {
            let offset = node.child(route(node));
            self.prefetch_node(offset);
            let child = self.node(offset);
            let child_version = child.begin_read();
            if !node.validate(version) {
                return None;
            }
            (node, version) = (child, child_version);
        }
        Some((node, version))
    }

    /// Stamps the path to `key`, after an entry with this sequence number was inserted there. Only
    /// the writer calls this.
    pub(super) fn stamp(&self, key: &[u8], seq: u64) {
        let (mut offset, level) = self.root();
        for _ in 0..level {
            let node = self.node(offset);
            node.raise_newest(seq);
            offset = node.child(self.route(node, key));
        }
        self.node(offset).raise_newest(seq);
    }

    /// Where entries with numbers above `seq` may be, at `key` or beyond it: in the first leaf,
    /// from that of `key` on in this direction, whose stamp is above `seq`. `seq` must be at least
    /// `stamped_from`.
    ///
    /// The path is validated node by node, as for every reader. The stamps of the children are read
    /// before their parent is validated, so they belong to the separators that bound the result. A
    /// subtree with a stamp above `seq` may have its newer entries only on the near side of `key`;
    /// the walk then starts again behind that subtree.
    pub(super) fn find_newer(&self, key: &[u8], seq: u64, forward: bool) -> Newer<'_> {
        let mut beyond: Option<&[u8]> = None;
        'walk: loop {
            let root = self.root.load(Acquire);
            let mut node = self.node(root as u32);
            let mut version = node.begin_read();
            if self.root.load(Relaxed) != root {
                continue;
            }
            if node.newest() <= seq {
                return Newer::Nowhere;
            }
            for _ in 0..root >> 32 {
                // Backward, the walk continues below the separator, which is not included.
                let at = match beyond {
                    Some(bound) if !forward => node.search(bound, &self.records).position,
                    _ => self.route(node, beyond.unwrap_or(key)),
                };
                let is_newer = |&slot: &usize| self.node(node.child(slot)).newest() > seq;
                let chosen = match forward {
                    true => (at..=node.count()).find(is_newer),
                    false => (0..=at).rev().find(is_newer),
                };
                // This is the near bound of the child or, if none was chosen, of the node's
                // neighbour.
                let bound = match chosen {
                    Some(slot) if slot == at => None,
                    Some(slot) => Some(node.record(if forward { slot - 1 } else { slot })),
                    None if forward => Some(node.high()),
                    None => Some(node.low()),
                };
                let child = chosen.map(|slot| {
                    let child = self.node(node.child(slot));
                    (child, child.begin_read())
                });
                if !node.validate(version) {
                    continue 'walk;
                }
                match bound {
                    Some(0) => return Newer::Nowhere,
                    Some(record) => beyond = Some(self.key(record)),
                    None => {}
                }
                let Some(child) = child else {
                    continue 'walk;
                };
                (node, version) = child;
            }
            return beyond.map_or(Newer::Here, Newer::Beyond);
        }
    }

    /// The newest record of `key`; 0 if there is none.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8]) -> u32 {
        loop {
            if let Some((leaf, version)) = self.try_descend(|node| self.route(node, key)) {
                let place = leaf.search(key, &self.records);
                if leaf.validate(version) {
                    return place.record;
                }
            }
        }
    }

    /// Copies the leaf that `aim` means, and returns the position in it: for `At`, that of the
    /// first key at or above (the count if all are below); for `Below`, the number of keys below;
    /// for `First`, 0; for `Last`, the count.
    pub(super) fn copy_leaf(&self, aim: Aim<'_>, copy: &mut LeafCopy) -> usize {
        loop {
            let found = match aim {
                Aim::At(key) => self.try_descend(|node| self.route(node, key)),
                Aim::Below(key) => {
                    self.try_descend(|node| node.search(key, &self.records).position)
                }
                Aim::First => self.try_descend(|_| 0),
                Aim::Last => self.try_descend(|node| node.count()),
            };
            let Some((leaf, version)) = found else {
                continue;
            };
            self.read_leaf(leaf, copy);
            let position = match aim {
                Aim::At(key) | Aim::Below(key) => leaf.search(key, &self.records).position,
                Aim::First => 0,
                Aim::Last => copy.count,
            };
            // An append between the copy and the search may move the position beyond the copy. It
            // is still right, because all keys of the copy are below.
            if leaf.validate(version) {
                return position.min(copy.count);
            }
        }
    }

    /// Copies the leaf at `offset`, the neighbour in a leaf's copy.
    pub(super) fn copy_next(&self, offset: u32, copy: &mut LeafCopy) {
        let leaf = self.node(offset);
        loop {
            let version = leaf.begin_read();
            self.read_leaf(leaf, copy);
            if leaf.validate(version) {
                return;
            }
        }
    }

    #[inline(always)]
    fn read_leaf(&self, leaf: ArenaNode, copy: &mut LeafCopy) {
        copy.count = leaf.count();
        for (slot, record) in copy.records[..copy.count].iter_mut().enumerate() {
            *record = leaf.record(slot);
        }
        copy.next = leaf.next();
        if copy.next != 0 {
            self.prefetch_node(copy.next);
        }
    }

    /// The key of a published record.
    #[inline(always)]
    pub(super) fn key(&self, record: u32) -> &[u8] {
        self.records.key(record)
    }
}
