//! Attacks on cursors that jump over gaps and range deletes (`docs/rfc/0005-gaps.md`, section
//! "Attacks"): histories with hostile keys are compared with a model, and readers run beside
//! writers.

mod common;

use std::collections::BTreeSet;

use common::history::{Change, Workload, World, simulate};
use common::{Dice, Disk, small};
use siltstone::{
    Batch, Compression, Cursor, IterOptions, Keyspace, Options, Snapshot, Store, WriteOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

/// The longest key.
const KEY_MAX: usize = 65_535;

/// Keys that are prefixes of one another, that differ in zero bytes at the end, or that end near
/// multiples of eight bytes.
fn near_keys() -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    for stem in ["", "a", "1234567", "12345678", "0123456789abcdef", "\u{7f}"] {
        for end in [
            &b""[..],
            b"\0",
            b"\0\0",
            b"\0\x01",
            b"\x01",
            b"\xff",
            b"\xff\0",
            b"\xff\xff",
        ] {
            keys.insert([stem.as_bytes(), end].concat());
        }
    }
    keys
}

/// Keys of the largest length and one byte less, which differ at their ends only.
fn longest_keys() -> BTreeSet<Vec<u8>> {
    let mut keys = BTreeSet::new();
    for fill in [0, b'a', 0xff] {
        for last in [0, 0xff] {
            for len in [KEY_MAX - 1, KEY_MAX] {
                let mut key = vec![fill; len];
                key[len - 1] = last;
                keys.insert(key);
            }
        }
    }
    keys
}

/// The keys of a seed.
fn hostile_keys(seed: u64) -> Vec<Vec<u8>> {
    let numbered = |count: u64| (0..count).map(common::key);
    let mut keys = match seed % 4 {
        0 => near_keys(),
        1 => near_keys().into_iter().chain(numbered(200)).collect(),
        2 => longest_keys().into_iter().chain(numbered(20)).collect(),
        _ => numbered(24).collect(),
    };
    if seed.is_multiple_of(3) {
        keys.insert(Vec::new());
    }
    keys.into_iter().collect()
}

fn options(dice: &mut Dice) -> Options {
    Options {
        map_tables: dice.below(2) == 0,
        memtable_bytes: [256 << 10, 1 << 20][dice.below(2) as usize],
        compression: [Compression::None, Compression::Lz4][dice.below(2) as usize].into(),
        block_cache_bytes: [0, 64 << 10, 1 << 20][dice.below(3) as usize],
        bloom_bits_per_key: [0, 10][dice.below(2) as usize].into(),
        ..small()
    }
}

/// Most keys are deleted, and everything that changes a view happens often.
const CHANGES: &[(u64, Change)] = &[
    (10, Change::Put),
    (8, Change::Delete),
    (4, Change::PutRun),
    (10, Change::DeleteRun),
    (8, Change::DeleteRange),
    (8, Change::Batch),
    (1, Change::Versions),
    (3, Change::Flush),
    (2, Change::Compact),
    (4, Change::Ingest),
    (4, Change::Snapshot),
    (1, Change::DropSnapshot),
    (4, Change::KeepReader),
    (1, Change::DropReader),
    (1, Change::Hold),
    (1, Change::Release),
    (1, Change::Reopen),
    (1, Change::Recreate),
];

#[test]
fn hostile_histories_are_read_as_the_model_says() {
    simulate(24, |rt, seed| {
        let workload = Workload {
            keys: hostile_keys(seed),
            options,
            gap_mins: &[1, 2, 3, 5, 16],
            changes: CHANGES,
            run_max: 30,
        };
        let mut world = World::new(&rt, seed, workload);
        for _ in 0..40 {
            for _ in 0..world.dice.below(12) {
                world.change();
            }
            world.read();
        }
        world.count();
        assert!(world.gaps > 0 && world.jumps > 0, "no gap was used");
    });
}

/// The parts that writers and readers of one run share.
#[derive(Clone)]
struct Shared {
    disk: Disk,
    store: Store,
    keyspace: Keyspace,
    other: Keyspace,
}

const KEYS: u64 = 24;
const WRITERS: u64 = 3;

impl Shared {
    fn seek(&self, key: &[u8]) -> Cursor {
        let mut cursor = self.keyspace.cursor(..).unwrap();
        cursor.seek(key).unwrap();
        cursor
    }

    /// Writes keys that no other writer has, and checks that it sees each write at once.
    fn write(&self, writer: u64, mut dice: Dice) {
        let some_key = |dice: &mut Dice| {
            let own = WRITERS * dice.below(KEYS / WRITERS) + writer;
            common::key(own)
        };
        for _ in 0..40 {
            let mut batch = Batch::new();
            let mut wanted = std::collections::BTreeMap::new();
            for _ in 0..1 + dice.below(3) {
                let key = some_key(&mut dice);
                let put = dice.below(3) == 0;
                match (put, dice.below(3)) {
                    (true, _) => batch.put(&self.keyspace, &key, b"x").unwrap(),
                    (false, 0) => {
                        let end = [&key[..], &[0]].concat();
                        batch.delete_range(&self.keyspace, &key, &end).unwrap();
                    }
                    (false, _) => batch.delete(&self.keyspace, &key).unwrap(),
                }
                if dice.below(4) == 0 {
                    batch.put(&self.other, &key, b"x").unwrap();
                }
                wanted.insert(key, put);
            }
            self.store.write(&batch, WriteOptions::default()).unwrap();
            for (key, put) in wanted {
                let cursor = self.seek(&key);
                assert_eq!(cursor.valid() && cursor.key() == key, put, "its own write");
            }
        }
    }

    /// Flushes, compacts and ingests.
    fn rearrange(&self, mut dice: Dice) {
        let hooks = self.store.test_hooks();
        // The writers do not write these keys.
        let own = |i: u64| [&common::key(i)[..], b"+"].concat();
        for i in 0..12 {
            match dice.below(4) {
                0 => self.keyspace.flush().unwrap(),
                1 => self.keyspace.compact_range(None, None).unwrap(),
                _ => {
                    let (a, b) = (own(dice.below(KEYS)), own(KEYS + i));
                    common::ingest(
                        &self.disk,
                        &hooks,
                        &self.keyspace,
                        &[(&a, b"x"), (&b, b"x")],
                    );
                    let cursor = self.seek(&a);
                    assert_eq!(cursor.key(), a, "what was ingested");
                    for key in [a, b] {
                        self.keyspace.delete(&key).unwrap();
                        assert!(self.seek(&key).key() != key, "a delete");
                    }
                }
            }
        }
    }

    /// The keys of a snapshot, read one by one: gets know nothing of gaps.
    fn alive(&self, snapshot: &Snapshot) -> Vec<Vec<u8>> {
        let plain = (0..KEYS).map(common::key);
        let ingested = (0..2 * KEYS).map(|i| [&common::key(i)[..], b"+"].concat());
        let keys: BTreeSet<Vec<u8>> = plain.chain(ingested).collect();
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let values = self.keyspace.multi_get_at(snapshot, &keys).unwrap();
        let pairs = keys.into_iter().zip(values);
        pairs.filter_map(|(k, v)| v.map(|_| k)).collect()
    }

    fn read(&self, mut dice: Dice) {
        let mut old: Vec<(Snapshot, Vec<Vec<u8>>)> = Vec::new();
        for _ in 0..12 {
            let snapshot = self.store.snapshot();
            // A cursor without a snapshot is checked as well, if it has the same number.
            let now = self.keyspace.cursor(..).unwrap();
            let at = self.keyspace.cursor_at(&snapshot, ..).unwrap();
            let alive = self.alive(&snapshot);
            if now.number() == snapshot.number() {
                agree(now, &alive, &mut dice);
            }
            agree(at, &alive, &mut dice);
            if dice.below(3) == 0 {
                old.push((snapshot, alive));
            }
            if !old.is_empty() {
                let (snapshot, alive) = &old[dice.below(old.len() as u64) as usize];
                let cursor = self.keyspace.cursor_at(snapshot, ..).unwrap();
                agree(cursor, alive, &mut dice);
            }
        }
    }
}

/// Asserts that a cursor shows these keys, forward from a random key or backward from the last one.
fn agree(mut cursor: Cursor, alive: &[Vec<u8>], dice: &mut Dice) {
    let from = match dice.below(3) {
        0 => dice.below(KEYS),
        _ => 0,
    };
    let from = common::key(from);
    let at = alive.partition_point(|key| key < &from);
    if dice.below(2) == 0 {
        let mut shown = Vec::new();
        cursor.seek(&from).unwrap();
        while cursor.valid() {
            shown.push(cursor.key().to_vec());
            cursor.next().unwrap();
        }
        assert_eq!(shown, alive[at..], "forward at {}", cursor.number());
    } else {
        let mut shown = Vec::new();
        cursor.seek_to_last().unwrap();
        while cursor.valid() {
            shown.push(cursor.key().to_vec());
            cursor.prev().unwrap();
        }
        shown.reverse();
        assert_eq!(shown, alive, "backward at {}", cursor.number());
    }
}

/// Writers, which see each of their own writes at once, ingests, flushes and compactions run beside
/// readers whose cursors leave gaps behind, at present and old numbers.
#[test]
fn readers_beside_writers_miss_nothing() {
    simulate(60, |rt: Runtime, seed| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(small());
        let mut dice = Dice::new(seed);
        store.test_hooks().set_gap_min(1 + dice.below(3));
        let (keyspace, other) = common::two(&store);
        let shared = Shared {
            disk,
            store,
            keyspace,
            other,
        };
        let mut tasks = Vec::new();
        for writer in 0..WRITERS {
            let (shared, dice) = (shared.clone(), Dice::new(100 * seed + writer));
            let write = move || shared.write(writer, dice);
            tasks.push(rt.spawn("writer", write).unwrap());
        }
        for reader in 0..3 {
            let (shared, dice) = (shared.clone(), Dice::new(100 * seed + 50 + reader));
            let read = move || shared.read(dice);
            tasks.push(rt.spawn("reader", read).unwrap());
        }
        shared.rearrange(dice);
        for task in tasks {
            task.join().unwrap();
        }
        assert!(shared.store.stats().counter("gap_count") > 0);
    });
}

/// The ends of a gap beside keys of the longest length are longer than any key.
#[test]
fn a_gap_may_end_behind_the_longest_key() {
    simulate(1, |rt, _| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        store.test_hooks().set_gap_min(2);
        let keyspace = store.default_keyspace().unwrap();
        let longest: Vec<Vec<u8>> = longest_keys().into_iter().collect();
        for flush in [false, true] {
            for key in &longest {
                keyspace.put(key, b"x").unwrap();
                keyspace.delete(key).unwrap();
            }
            if flush {
                keyspace.flush().unwrap();
            }
            for alive in &longest {
                keyspace.put(alive, b"y").unwrap();
                for _ in 0..2 {
                    let mut cursor = keyspace.cursor(IterOptions::default()).unwrap();
                    cursor.seek_to_first().unwrap();
                    assert!(cursor.valid() && cursor.key() == alive);
                    cursor.next().unwrap();
                    assert!(!cursor.valid());
                    cursor.seek_to_last().unwrap();
                    assert!(cursor.valid() && cursor.key() == alive);
                    cursor.prev().unwrap();
                    assert!(!cursor.valid());
                }
                keyspace.delete(alive).unwrap();
            }
            assert!(keyspace.is_empty().unwrap());
        }
    });
}

/// Cursors that failed in the middle of a run, and are kept, do not keep others from getting a
/// watch.
#[test]
fn cursors_that_failed_let_others_leave_gaps_behind() {
    simulate(1, |rt, _| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(Options {
            map_tables: false,
            block_cache_bytes: 0,
            ..small()
        });
        store.test_hooks().pause_compaction(true);
        let keyspace = store.default_keyspace().unwrap();
        for deletes in [false, true] {
            for i in 0..200 {
                match deletes {
                    false => keyspace.put(common::key(i), [0; 200]).unwrap(),
                    true => keyspace.delete(common::key(i)).unwrap(),
                }
            }
            if !deletes {
                keyspace.flush().unwrap();
            }
        }
        let mut failed = Vec::new();
        for _ in 0..40 {
            let mut cursor = keyspace.cursor(..).unwrap();
            let fault = Fault::Fail(StorageErrorKind::Io);
            // This read comes after those of the table's footer, index and first blocks.
            let rule = Rule::on(OpKind::Read, fault).ending(".tbl").nth(20);
            disk.faults.add(rule);
            cursor.seek_to_first().unwrap_err();
            disk.faults.clear();
            failed.push(cursor);
        }
        let gaps = || store.test_hooks().gap_count(&keyspace);
        assert_eq!(gaps(), 0);
        assert!(keyspace.is_empty().unwrap());
        assert_eq!(gaps(), 1);
    });
}

/// Appends and syncs that fail while there are gaps: a refused write is not seen, and a later write
/// is.
#[test]
fn writes_that_fail_leave_gaps_exact() {
    simulate(20, |rt, seed| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(small());
        store.test_hooks().set_gap_min(2);
        let keyspace = store.default_keyspace().unwrap();
        let mut dice = Dice::new(seed);
        for deletes in [false, true] {
            for i in 0..20 {
                match deletes {
                    false => keyspace.put(common::key(i), b"x").unwrap(),
                    true => keyspace.delete(common::key(i)).unwrap(),
                }
            }
        }
        let mut alive = BTreeSet::new();
        let shown = || -> BTreeSet<Vec<u8>> {
            let pairs = keyspace.iter().unwrap().map(|pair| pair.unwrap().0);
            pairs.collect()
        };
        assert!(shown().is_empty());
        let kinds = [StorageErrorKind::NoSpace, StorageErrorKind::Io];
        for _ in 0..60 {
            let key = common::key(dice.below(20));
            let fails = dice.below(3) == 0;
            if fails {
                let fault = Fault::Fail(kinds[dice.below(2) as usize]);
                let kind = [OpKind::Append, OpKind::Sync][dice.below(2) as usize];
                disk.faults.add(Rule::on(kind, fault).named(common::LOG));
            }
            let sync = WriteOptions {
                sync: dice.below(2) == 0,
                ..WriteOptions::default()
            };
            let put = dice.below(3) > 0;
            let written = match put {
                true => keyspace.put_with(&key, b"x", sync),
                false => keyspace.delete_with(&key, sync),
            };
            disk.faults.clear();
            match (written, put) {
                (Ok(()), true) => drop(alive.insert(key)),
                (Ok(()), false) => drop(alive.remove(&key)),
                (Err(_), _) => {}
            }
            assert_eq!(shown(), alive);
        }
    });
}
