//! Runs of deleted keys: how many entries a seek steps over, and that gaps never change what
//! readers see.

mod common;

use std::time::Duration;

use common::history::{Change, Workload, World, both_ways, simulate};
use common::{Disk, key, small};
use siltstone::{Cursor, IterOptions, Keyspace, Options, Snapshot, Store, WriteOptions};
use siltstone_storage::Runtime;

fn open(rt: &Runtime) -> (Disk, Store, Keyspace) {
    let disk = Disk::new(rt);
    let store = disk.open_with(small());
    let keyspace = store.default_keyspace().unwrap();
    (disk, store, keyspace)
}

/// The number of entries that cursors stepped over without showing them.
fn hidden(store: &Store) -> u64 {
    store.stats().counter("hidden_count")
}

fn first(keyspace: &Keyspace) -> Option<Vec<u8>> {
    keyspace.first().unwrap().map(|(key, _)| key)
}

fn last(keyspace: &Keyspace) -> Option<Vec<u8>> {
    keyspace.last().unwrap().map(|(key, _)| key)
}

/// All keys, which must be the same in both directions.
fn all(mut cursor: Cursor) -> Vec<Vec<u8>> {
    let [(forward, _), (backward, _)] = both_ways(&mut cursor);
    assert_eq!(forward, backward);
    forward
}

fn now(keyspace: &Keyspace) -> Vec<Vec<u8>> {
    all(keyspace.cursor(..).unwrap())
}

/// A seek at the head of a queue steps over at most this many entries, however many were deleted.
const STEPS_A_SEEK: u64 = 24;

#[test]
fn the_head_of_a_queue_is_found_in_a_few_steps() {
    simulate(1, |rt, _| {
        let (_disk, store, queue) = open(&rt);
        let (waiting, count) = (10, 20_000);
        for i in 0..waiting {
            queue.put(&key(i), b"job").unwrap();
        }
        for i in 0..count {
            queue.put(&key(i + waiting), b"job").unwrap();
            queue.delete(&key(i)).unwrap();
            let before = hidden(&store);
            assert_eq!(first(&queue), Some(key(i + 1)));
            let steps = hidden(&store) - before;
            assert!(steps <= STEPS_A_SEEK, "{steps} steps after {i} deletes");
        }
        let gaps = store.test_hooks().gap_count(&queue);
        assert!((1..=8).contains(&gaps), "{gaps} gaps");
    });
}

#[test]
fn the_top_of_a_stack_is_found_in_a_few_steps() {
    simulate(1, |rt, _| {
        let (_disk, store, stack) = open(&rt);
        for i in 0..6_000 {
            stack.put(&key(i), b"job").unwrap();
        }
        for i in (1..6_000).rev() {
            stack.delete(&key(i)).unwrap();
            let before = hidden(&store);
            assert_eq!(last(&stack), Some(key(i - 1)));
            let steps = hidden(&store) - before;
            assert!(steps <= STEPS_A_SEEK, "{steps} steps at {i}");
        }
    });
}

/// Many queues side by side, each with a prefix, whose readers seek within bounds, and refresh
/// their cursors.
#[test]
fn each_of_many_queues_has_a_gap() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace) = open(&rt);
        store.test_hooks().pause_compaction(true);
        let queues = 200u64;
        let name = |queue: u64, i: u64| [&key(queue)[..], b"/", &key(i)].concat();
        for i in 0..100 {
            for queue in 0..queues {
                keyspace.put(&name(queue, i), b"job").unwrap();
                if i == 0 {
                    continue;
                }
                keyspace.delete(&name(queue, i - 1)).unwrap();
                let options = IterOptions::prefix(&[&key(queue)[..], b"/"].concat());
                let mut cursor = keyspace.cursor(options).unwrap();
                let before = hidden(&store);
                cursor.seek_to_first().unwrap();
                assert_eq!(cursor.key(), name(queue, i));
                cursor.refresh().unwrap();
                assert_eq!(cursor.key(), name(queue, i));
                let steps = hidden(&store) - before;
                assert!(steps <= STEPS_A_SEEK, "{steps} steps in queue {queue}");
            }
        }
        let gaps = store.test_hooks().gap_count(&keyspace);
        assert_eq!(gaps as u64, queues);
    });
}

/// The maintenance task finds the gap before the first reader comes.
#[test]
fn the_first_seek_after_many_deletes_finds_a_gap() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace) = open(&rt);
        store.test_hooks().pause_compaction(true);
        let count = 30_000;
        for i in 0..count {
            keyspace.put(&key(i), b"job").unwrap();
        }
        for i in 0..count - 5 {
            keyspace.delete(&key(i)).unwrap();
        }
        rt.sleep(Duration::from_secs(3));
        let (before, seeks) = (hidden(&store), store.stats().counter("seek_count"));
        assert_eq!(seeks, 0, "the store's own cursors are not counted");
        assert_eq!(first(&keyspace), Some(key(count - 5)));
        let steps = hidden(&store) - before;
        assert!(steps <= 2_048 + STEPS_A_SEEK, "{steps} steps");
        // And backward, from the end of the deleted keys.
        let mut cursor = keyspace.cursor(..).unwrap();
        let before = hidden(&store);
        cursor.seek_for_prev(&key(count - 6)).unwrap();
        assert!(!cursor.valid());
        drop(cursor);
        let steps = hidden(&store) - before;
        assert!(steps <= STEPS_A_SEEK, "{steps} steps back");
    });
}

/// Twenty keys. The middle ones are deleted, and there is a gap over them.
fn with_gap(rt: &Runtime) -> (Disk, Store, Keyspace, Snapshot) {
    let (disk, store, keyspace) = open(rt);
    store.test_hooks().set_gap_min(4);
    for i in 0..20 {
        keyspace.put(&key(i), b"then").unwrap();
    }
    let then = store.snapshot();
    for i in 2..18 {
        keyspace.delete(&key(i)).unwrap();
    }
    assert_eq!(now(&keyspace).len(), 4);
    assert_eq!(store.test_hooks().gap_count(&keyspace), 1);
    (disk, store, keyspace, then)
}

fn keys(which: impl IntoIterator<Item = u64>) -> Vec<Vec<u8>> {
    which.into_iter().map(key).collect()
}

#[test]
fn a_put_into_a_gap_is_seen() {
    simulate(1, |rt, _| {
        for i in 2..18 {
            let (_disk, store, keyspace, _then) = with_gap(&rt);
            keyspace.put(&key(i), b"again").unwrap();
            assert_eq!(now(&keyspace), keys([0, 1, i, 18, 19]));
            // The parts of the gap are used, and joined again when the key is deleted.
            keyspace.delete(&key(i)).unwrap();
            assert_eq!(now(&keyspace), keys([0, 1, 18, 19]));
            let jumps = store.stats().counter("gap_jump_count");
            assert!(jumps > 0);
        }
    });
}

#[test]
fn a_batch_into_a_gap_is_seen() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace, _then) = with_gap(&rt);
        let mut batch = siltstone::Batch::new();
        for i in [4, 5, 11, 17] {
            batch.put(&keyspace, &key(i), b"again").unwrap();
        }
        batch.delete(&keyspace, &key(5)).unwrap();
        store.write(&batch, WriteOptions::default()).unwrap();
        assert_eq!(now(&keyspace), keys([0, 1, 4, 11, 17, 18, 19]));
    });
}

#[test]
fn a_snapshot_from_before_the_deletes_sees_through_a_gap() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace, then) = with_gap(&rt);
        let old = keyspace.cursor_at(&then, ..).unwrap();
        assert_eq!(all(old), keys(0..20));
        // So do snapshots that were taken between the deletes of a second run.
        for i in 0..20 {
            keyspace.put(&key(100 + i), b"x").unwrap();
        }
        let mut among = Vec::new();
        for i in 0..20 {
            keyspace.delete(&key(100 + i)).unwrap();
            among.push(store.snapshot());
        }
        assert_eq!(now(&keyspace), keys([0, 1, 18, 19]));
        for (i, snapshot) in (0..).zip(&among) {
            let cursor = keyspace.cursor_at(snapshot, ..);
            let left = keys([0, 1, 18, 19].into_iter().chain(101 + i..120));
            assert_eq!(all(cursor.unwrap()), left, "after delete {i}");
        }
    });
}

#[test]
fn an_ingest_into_a_gap_is_seen() {
    simulate(1, |rt, _| {
        for (from, to) in [(4, 6), (0, 3), (16, 30), (2, 18), (17, 18)] {
            let (disk, store, keyspace, then) = with_gap(&rt);
            let pairs: Vec<Vec<u8>> = keys([from, to]);
            let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|k| (&k[..], &b"in"[..])).collect();
            common::ingest(&disk, &store.test_hooks(), &keyspace, &pairs);
            let mut wanted = keys([0, 1, 18, 19, from, to]);
            wanted.sort();
            wanted.dedup();
            assert_eq!(now(&keyspace), wanted);
            let old = keyspace.cursor_at(&then, ..).unwrap();
            assert_eq!(all(old), keys(0..20));
        }
    });
}

/// A cursor whose number is older than a put must not leave a gap over it.
#[test]
fn a_late_cursor_leaves_no_gap_over_an_earlier_put() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace, _then) = with_gap(&rt);
        for i in 30..50 {
            keyspace.put(&key(i), b"x").unwrap();
            keyspace.delete(&key(i)).unwrap();
        }
        let mut late = keyspace.cursor(..).unwrap();
        let snapshot = store.snapshot();
        keyspace.put(&key(40), b"alive").unwrap();
        late.seek(&key(30)).unwrap();
        assert!(!late.valid(), "the put came after its number");
        let old = keyspace.cursor_at(&snapshot, ..);
        assert_eq!(all(old.unwrap()), keys([0, 1, 18, 19]));
        assert_eq!(now(&keyspace), keys([0, 1, 18, 19, 40]));
    });
}

/// A put in the middle makes two gaps of one, so puts alone can exceed the bound.
#[test]
fn puts_into_a_gap_keep_to_the_bound() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace) = open(&rt);
        store.test_hooks().pause_compaction(true);
        let count = 10_000;
        for i in 0..count {
            keyspace.put(&key(i), b"job").unwrap();
        }
        for i in 0..count {
            keyspace.delete(&key(i)).unwrap();
        }
        assert_eq!(first(&keyspace), None);
        for i in (0..count).step_by(2) {
            keyspace.put(&key(i), b"again").unwrap();
        }
        let gaps = store.test_hooks().gap_count(&keyspace);
        assert!((1..=4096).contains(&gaps), "{gaps} gaps");
        assert_eq!(now(&keyspace), keys((0..count).step_by(2)));
    });
}

/// After many puts without a use of a gap, leaders stop invalidating. Later gaps are found again.
#[test]
fn gaps_that_nobody_uses_are_forgotten() {
    simulate(1, |rt, _| {
        let (_disk, store, keyspace, _then) = with_gap(&rt);
        let hooks = store.test_hooks();
        for i in 0..10_000 {
            keyspace.put(&key(1000 + i), b"x").unwrap();
        }
        assert_eq!(hooks.gap_count(&keyspace), 0);
        for i in 0..10_000 {
            keyspace.delete(&key(1000 + i)).unwrap();
        }
        assert_eq!(now(&keyspace), keys([0, 1, 18, 19]));
        assert!(hooks.gap_count(&keyspace) > 0);
        keyspace.put(&key(5), b"again").unwrap();
        assert_eq!(now(&keyspace), keys([0, 1, 5, 18, 19]));
    });
}

const CHANGES: &[(u64, Change)] = &[
    (12, Change::Put),
    (4, Change::Delete),
    (2, Change::PutRun),
    (6, Change::DeleteRun),
    (2, Change::DeleteRange),
    (1, Change::Flush),
    (1, Change::Compact),
    (2, Change::Ingest),
    (3, Change::Snapshot),
    (2, Change::KeepReader),
    (1, Change::Reopen),
];

/// Puts, deletes, range deletes, ingests, flushes, compactions, opens, snapshots, and cursors that
/// outlive all of these, with gaps of all sizes: reads see what the model has.
#[test]
fn gaps_never_change_what_is_seen() {
    simulate(60, |rt, seed| {
        let workload = Workload {
            keys: (0..400).map(key).collect(),
            options: |dice| Options {
                map_tables: dice.below(2) == 0,
                ..small()
            },
            gap_mins: &[1, 2, 5, 16],
            changes: CHANGES,
            run_max: 60,
        };
        let mut world = World::new(&rt, seed, workload);
        for _ in 0..150 {
            for _ in 0..world.dice.below(6) {
                world.change();
            }
            world.read();
        }
        world.count();
        assert!(world.gaps > 0 && world.jumps > 0, "no gap was used");
    });
}
