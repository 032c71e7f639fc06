//! The memtable's node protocol under loom: all interleavings of one writer and a reader, with
//! every value that the memory model lets a relaxed load return.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p siltstone --test memtable_loom --release`
//!
//! The file under test is `memtable/node.rs` itself, on loom's atomics and with nodes of three
//! slots. Records are loom cells, so a reader that gets an offset before the record's bytes is
//! reported as a data race.
//!
//! Each of these changes to `node.rs` was tried by hand and makes a test fail: no fence in
//! `validate`, no fence in `lock`, no odd version in `lock`, a `validate` that always agrees, and
//! relaxed instead of acquire or release in `unlock`, `begin_read`, `count`, `record`, `set_count`
//! and `overwrite`. Only a relaxed store in `set_slot` is not noticed: it matters to a torn view
//! with a count from before a split, and these models did not reach that race.
#![cfg(loom)]
#![allow(dead_code, missing_docs)]

#[path = "../src/tree/memtable/node.rs"]
mod node;

use std::sync::atomic::Ordering;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::thread;
use node::{Keys, Node, Place, Words};

const SLOTS: usize = 3;
/// The byte offsets of the words, as `node.rs` lays them out for `SLOTS`. The first use of an
/// offset adds it.
struct Memory {
    words32: Vec<(usize, AtomicU32)>,
    words64: Vec<(usize, AtomicU64)>,
}

impl Memory {
    fn new() -> Memory {
        let heads = 32;
        let records = heads + 8 * SLOTS;
        let children = heads + 12 * SLOTS;
        let words32 = (0..24)
            .step_by(4)
            .chain((0..SLOTS).map(|slot| records + 4 * slot))
            .chain((0..=SLOTS).map(|slot| children + 4 * slot))
            .map(|at| (at, AtomicU32::new(0)))
            .collect();
        let newest = 24;
        let words64 = std::iter::once(newest)
            .chain((0..SLOTS).map(|slot| heads + 8 * slot))
            .map(|at| (at, AtomicU64::new(0)))
            .collect();
        Memory { words32, words64 }
    }
}

impl Words for &Memory {
    fn load32(self, at: usize, order: Ordering) -> u32 {
        self.words32
            .iter()
            .find(|word| word.0 == at)
            .expect("a word of the node")
            .1
            .load(order)
    }
    fn store32(self, at: usize, value: u32, order: Ordering) {
        self.words32
            .iter()
            .find(|word| word.0 == at)
            .expect("a word of the node")
            .1
            .store(value, order);
    }
    fn load64(self, at: usize, order: Ordering) -> u64 {
        self.words64
            .iter()
            .find(|word| word.0 == at)
            .expect("a word of the node")
            .1
            .load(order)
    }
    fn store64(self, at: usize, value: u64, order: Ordering) {
        self.words64
            .iter()
            .find(|word| word.0 == at)
            .expect("a word of the node")
            .1
            .store(value, order);
    }
    fn fence(order: Ordering) {
        fence(order);
    }
    fn wait(_round: u32) {
        thread::yield_now();
    }
}

/// Records by offset. The key of a record is one byte, so heads distinguish keys without a read of
/// the record; `search` still compares the record's key if the head is equal.
struct Records {
    keys: [UnsafeCell<[u8; 1]>; 6],
}

impl Records {
    fn new() -> Records {
        Records {
            keys: std::array::from_fn(|_| UnsafeCell::new([0])),
        }
    }
    fn write(&self, record: u32, key: u8) {
        self.keys[record as usize].with_mut(|place| unsafe { *place = [key] });
    }
}

impl Keys for Records {
    fn key(&self, record: u32) -> &[u8] {
        assert!(record != 0, "a slot below the count that was never stored");
        self.keys[record as usize].with(|place| unsafe { &*place })
    }
}

struct World {
    left: Memory,
    right: Memory,
    records: Records,
    /// The number of keys that the writer has published.
    published: AtomicU32,
}

fn node(memory: &Memory) -> Node<&Memory, SLOTS> {
    Node::at(memory)
}

fn insert(memory: &Memory, records: &Records, record: u32, key: u8) {
    records.write(record, key);
    let place = node(memory).search(&[key], records);
    assert_eq!(place.record, 0);
    node(memory).insert(place.position, &[key], record, records);
}

fn world() -> World {
    let world = World {
        left: Memory::new(),
        right: Memory::new(),
        records: Records::new(),
        published: AtomicU32::new(0),
    };
    node(&world.left).init(0, 0, 0);
    world
}

/// A validated search.
fn find(memory: &Memory, records: &Records, key: u8) -> Place {
    loop {
        let version = node(memory).begin_read();
        let place = node(memory).search(&[key], records);
        if node(memory).validate(version) {
            return place;
        }
        thread::yield_now();
    }
}

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Inserts before existing keys: slots are shifted while the version is odd.
#[test]
fn shifting_hides_nothing() {
    check(|| {
        let world = Arc::new(world());
        insert(&world.left, &world.records, 1, 20);
        insert(&world.left, &world.records, 2, 40);
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                insert(&world.left, &world.records, 3, 10);
                world.published.store(1, Ordering::Release);
            })
        };
        let published = world.published.load(Ordering::Acquire) == 1;
        assert_eq!(find(&world.left, &world.records, 20).record, 1);
        assert_eq!(find(&world.left, &world.records, 40).record, 2);
        let new = find(&world.left, &world.records, 10).record;
        assert!(new == 3 || (new == 0 && !published));
        writer.join().expect("writer");
    });
}

/// Appends, and a replacement of a slot's record, neither with a version.
#[test]
fn appends_and_overwrites_are_whole() {
    check(|| {
        let world = Arc::new(world());
        insert(&world.left, &world.records, 1, 20);
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                insert(&world.left, &world.records, 2, 30);
                world.published.store(1, Ordering::Release);
                world.records.write(3, 20);
                node(&world.left).overwrite(0, 3);
                world.published.store(2, Ordering::Release);
            })
        };
        let published = world.published.load(Ordering::Acquire);
        let appended = find(&world.left, &world.records, 30).record;
        assert!(appended == 2 || (appended == 0 && published == 0));
        let replaced = find(&world.left, &world.records, 20).record;
        assert!(replaced == 3 || (replaced == 1 && published < 2));
        writer.join().expect("writer");
    });
}

/// Splits: half of the slots move to a new right neighbour. A reader that looks for a key of the
/// upper half finds it in one of the two nodes, by the neighbour that the same validated read
/// returned.
#[test]
fn splits_lose_nothing() {
    check(|| {
        let world = Arc::new(world());
        for (record, key) in [(1, 10), (2, 20), (3, 30)] {
            insert(&world.left, &world.records, record, key);
        }
        let writer = {
            let world = world.clone();
            thread::spawn(move || {
                let (left, right) = (node(&world.left), node(&world.right));
                left.lock();
                right.init(2, 0, 0);
                left.move_slots(1, right);
                left.set_high(2);
                left.set_next(1);
                left.unlock();
                // There is no version change: a reader with the old count must not take the new
                // slot for an old one.
                world.records.write(4, 15);
                left.insert(1, &[15], 4, &world.records);
            })
        };
        let (place, next) = loop {
            let left = node(&world.left);
            let version = left.begin_read();
            // With the count of before the split, this may meet the slot that was appended after
            // it. The view is torn, but the record that it compares must be whole.
            left.search(&[15], &world.records);
            let place = left.search(&[30], &world.records);
            let next = left.next();
            if left.validate(version) {
                break (place, next);
            }
            thread::yield_now();
        };
        if next == 0 {
            assert_eq!(place.record, 3, "before the split it is on the left");
        } else {
            assert_eq!(place.record, 0);
            assert_eq!(
                find(&world.right, &world.records, 30).record,
                3,
                "after the split it is on the right"
            );
        }
        assert_eq!(find(&world.left, &world.records, 10).record, 1);
        writer.join().expect("writer");
    });
}
