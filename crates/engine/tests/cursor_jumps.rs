//! Cursors jump over what range deletes cover and over many versions of a key. The tests count the
//! moves of their sources instead of time, and compare what they show with a model.

mod common;

use common::history::{Change, Workload, World, both_ways, simulate};
use common::{Disk, key, small};
use siltstone::{Cursor, IterOptions, Keyspace, Options, Store};
use siltstone_storage::Runtime;

/// Entries under a range delete.
const COUNT: u64 = 5000;

/// A seek or a scan over a range delete takes fewer moves than this, in a handful of sources.
const FEW: u64 = 100;

fn put(keyspace: &Keyspace, i: u64) {
    keyspace.put(&key(i), b"value").unwrap();
}

/// A store that compacts nothing by itself.
fn empty() -> (Disk, Store, Keyspace) {
    let disk = Disk::new(&Runtime::threads());
    let store = disk.open_with(Options {
        memtable_bytes: 8 << 20,
        ..small()
    });
    store.test_hooks().pause_compaction(true);
    let keyspace = store.default_keyspace().unwrap();
    (disk, store, keyspace)
}

/// Such a store with `COUNT` keys.
fn filled() -> (Disk, Store, Keyspace) {
    let (disk, store, keyspace) = empty();
    (0..COUNT).for_each(|i| put(&keyspace, i));
    (disk, store, keyspace)
}

/// Asserts that a cursor shows these keys in both directions, with few moves.
#[track_caller]
fn assert_keys(cursor: &mut Cursor, keys: &[u64], when: &str) {
    let wanted: Vec<Vec<u8>> = keys.iter().map(|i| key(*i)).collect();
    for ((found, moves), way) in both_ways(cursor).into_iter().zip(["forward", "backward"]) {
        assert_eq!(found, wanted, "{way}, {when}");
        assert!(moves < FEW, "{moves} moves {way}, {when}");
    }
}

#[test]
fn a_scan_takes_few_moves_over_a_range_delete_wherever_that_is() {
    let all: Vec<u64> = (0..COUNT).collect();
    let ends = [0, COUNT - 1];
    let delete = |keyspace: &Keyspace| {
        keyspace.delete_range(&key(1), &key(COUNT - 1)).unwrap();
    };
    for flushes in 0..4 {
        let (_disk, store, keyspace) = filled();
        let before = store.snapshot();
        if flushes & 1 != 0 {
            keyspace.flush().unwrap();
        }
        delete(&keyspace);
        if flushes & 2 != 0 {
            keyspace.flush().unwrap();
        }
        let when = format!("flushes {flushes:#b}");
        let mut cursor = keyspace.cursor(..).unwrap();
        assert_keys(&mut cursor, &ends, &when);
        // A seek into the middle.
        let moves = cursor.moves_for_tests();
        cursor.seek(&key(COUNT / 2)).unwrap();
        assert_eq!(cursor.key(), key(COUNT - 1));
        cursor.seek_for_prev(&key(COUNT / 2)).unwrap();
        assert_eq!(cursor.key(), key(0));
        cursor.next().unwrap();
        assert_eq!(cursor.key(), key(COUNT - 1));
        assert!(cursor.moves_for_tests() - moves < FEW, "{when}");
        // Bounds within the range.
        let bounds = IterOptions::range(key(10)..key(COUNT - 10));
        assert_keys(&mut keyspace.cursor(bounds).unwrap(), &[], &when);
        // A reader that is older than the delete does not jump.
        let mut old = keyspace.cursor_at(&before, ..).unwrap();
        let wanted: Vec<_> = all.iter().map(|i| key(*i)).collect();
        assert_eq!(
            both_ways(&mut old).map(|(keys, _)| keys),
            [wanted.clone(), wanted]
        );
    }
}

#[test]
fn what_is_newer_than_the_range_delete_is_found_on_the_way() {
    let news = [1, 7, 2500, 2501, 4998];
    let wanted = [0, 1, 7, 2500, 2501, 4998, COUNT - 1];
    for flushes in 0..8 {
        let (_disk, store, keyspace) = filled();
        let _before = store.snapshot();
        if flushes & 1 != 0 {
            keyspace.flush().unwrap();
        }
        keyspace.delete_range(&key(1), &key(COUNT - 1)).unwrap();
        if flushes & 2 != 0 {
            keyspace.flush().unwrap();
        }
        news.iter().for_each(|i| put(&keyspace, *i));
        if flushes & 4 != 0 {
            keyspace.flush().unwrap();
        }
        let when = format!("flushes {flushes:#b}");
        let mut cursor = keyspace.cursor(..).unwrap();
        let found = both_ways(&mut cursor);
        let keys: Vec<_> = wanted.iter().map(|i| key(*i)).collect();
        for ((found, moves), way) in found.into_iter().zip(["forward", "backward"]) {
            assert_eq!(found, keys, "{way}, {when}");
            // In a memtable, a cursor steps through each leaf with something new. It steps through
            // all of a table that has old and new entries, because a snapshot needs the old ones.
            let limit = match flushes {
                0 | 2 => 600,
                4 => u64::MAX,
                _ => 2 * FEW,
            };
            assert!(moves < limit, "{moves} moves {way}, {when}");
        }
    }
}

#[test]
fn range_deletes_that_meet_are_jumped_over_one_after_the_other() {
    let (_disk, _store, keyspace) = filled();
    keyspace.flush().unwrap();
    for i in 0..10 {
        let (start, end) = (COUNT * i / 10, COUNT * (i + 1) / 10);
        keyspace.delete_range(&key(start), &key(end)).unwrap();
    }
    let mut cursor = keyspace.cursor(..).unwrap();
    assert_keys(&mut cursor, &[], "ten that meet");
}

/// Versions of one key.
const VERSIONS: u64 = 2000;

#[test]
fn many_versions_of_a_key_take_few_moves() {
    let (_disk, store, keyspace) = empty();
    put(&keyspace, 1);
    put(&keyspace, 3);
    let mut snapshots = Vec::new();
    for i in 0..VERSIONS {
        keyspace.put(&key(2), &i.to_be_bytes()).unwrap();
        snapshots.push(store.snapshot());
    }
    for flushed in [false, true] {
        if flushed {
            keyspace.flush().unwrap();
        }
        let mut readers: Vec<_> = [0, 1, VERSIONS / 2, VERSIONS - 1]
            .iter()
            .map(|i| (*i, &snapshots[*i as usize]))
            .map(|(i, at)| (i, keyspace.cursor_at(at, ..).unwrap()))
            .collect();
        readers.push((VERSIONS - 1, keyspace.cursor(..).unwrap()));
        for (version, cursor) in &mut readers {
            for (place, steps) in [(1, 1), (3, -1), (2, 0)] {
                let moves = cursor.moves_for_tests();
                match steps {
                    0 => cursor.seek_for_prev(&key(place)).unwrap(),
                    _ => cursor.seek(&key(place)).unwrap(),
                }
                match steps {
                    1 => cursor.next().unwrap(),
                    -1 => cursor.prev().unwrap(),
                    _ => {}
                }
                assert_eq!(
                    (cursor.key(), cursor.value()),
                    (&key(2)[..], &version.to_be_bytes()[..])
                );
                let moves = cursor.moves_for_tests() - moves;
                assert!(
                    moves < FEW,
                    "{moves} moves to version {version}, flushed: {flushed}"
                );
            }
        }
    }
}

#[test]
fn versions_that_are_all_too_new_take_few_moves() {
    let (_disk, store, keyspace) = empty();
    put(&keyspace, 1);
    put(&keyspace, 3);
    let before = store.snapshot();
    (0..VERSIONS).for_each(|_| put(&keyspace, 2));
    let mut cursor = keyspace.cursor_at(&before, ..).unwrap();
    assert_keys(&mut cursor, &[1, 3], "too new");
}

const CHANGES: &[(u64, Change)] = &[
    (130, Change::Put),
    (15, Change::Delete),
    (15, Change::DeleteRange),
    (10, Change::PutRun),
    (4, Change::Versions),
    (8, Change::Flush),
    (3, Change::Compact),
    (3, Change::Ingest),
    (6, Change::Snapshot),
    (6, Change::DropSnapshot),
];

#[test]
fn scans_both_ways_show_what_the_model_does() {
    simulate(40, |rt, seed| {
        let workload = Workload {
            // Dense, so that range deletes cover many of them.
            keys: (0..400).map(key).collect(),
            options: |dice| Options {
                memtable_bytes: [64 << 10, 256 << 10][dice.below(2) as usize],
                map_tables: dice.below(2) == 0,
                ..small()
            },
            gap_mins: &[16],
            changes: CHANGES,
            run_max: 60,
        };
        let mut world = World::new(&rt, seed, workload);
        for _ in 0..12 {
            for _ in 0..60 {
                world.change();
            }
            let mut readers = world.old_readers();
            readers.push(world.reader(IterOptions::default()));
            for reader in &mut readers {
                reader.scan();
                world.walk(reader, 20);
            }
        }
    });
}
