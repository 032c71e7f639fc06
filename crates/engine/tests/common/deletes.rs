//! Deletion gives space back by itself, does no work twice, and takes nothing from a reader.

use std::time::Duration;

use siltstone::{Batch, Keyspace, Options, Store, WriteOptions};
use siltstone_storage::Runtime;

use super::*;

pub const ALL: &[Story] = &[
    ("deletes_give_space_back", 2, deletes_give_space_back),
    (
        "a_range_delete_gives_space_back",
        3,
        a_range_delete_gives_space_back,
    ),
    (
        "a_range_delete_alone_gives_space_back",
        2,
        a_range_delete_alone_gives_space_back,
    ),
    (
        "a_range_delete_under_a_snapshot",
        2,
        a_range_delete_under_a_snapshot,
    ),
    (
        "dropped_keyspaces_free_their_files",
        1,
        dropped_keyspaces_free_their_files,
    ),
    (
        "obsolete_files_never_pile_up",
        3,
        obsolete_files_never_pile_up,
    ),
    (
        "deletes_of_few_or_absent_keys_cost_little",
        1,
        deletes_of_few_or_absent_keys_cost_little,
    ),
    (
        "a_put_into_a_gap_is_seen_at_once",
        4,
        a_put_into_a_gap_is_seen_at_once,
    ),
];

const KEYS: u64 = 6_000;

fn options() -> Options {
    Options {
        level1_bytes: 256 << 10,
        ..small()
    }
}

/// Bytes of the tables on the disk.
fn table_bytes(disk: &Disk) -> u64 {
    let all = disk.memory.list().unwrap();
    all.iter()
        .filter(|o| o.name.ends_with(".tbl"))
        .map(|o| o.len)
        .sum()
}

/// The value of key `i`: bytes that no codec makes smaller.
fn value(i: u64) -> Vec<u8> {
    let mut dice = Dice::new(i);
    (0..120).map(|_| dice.below(256) as u8).collect()
}

/// A store with several levels of data, in which nothing is due.
fn filled(disk: &Disk) -> (Store, Keyspace) {
    let store = disk.open_with(options());
    let ks = store.default_keyspace().unwrap();
    for i in 0..KEYS {
        let i = i * 7_919 % KEYS;
        ks.put(&key(i), &value(i)).unwrap();
    }
    settle(disk, &store);
    (store, ks)
}

/// Flushes, and waits until nothing is due any more.
fn settle(disk: &Disk, store: &Store) {
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    let done = work(store);
    disk.rt.sleep(Duration::from_secs(20));
    assert_eq!(done, work(store), "an idle store begins new work");
}

/// The number of jobs so far, of any kind.
fn work(store: &Store) -> u64 {
    let stats = store.stats();
    let names = [
        "compaction_count",
        "trivial_move_count",
        "dropped_table_count",
        "job_failed_count",
    ];
    names.iter().map(|name| stats.counter(name)).sum()
}

/// Nothing is flushed, and nothing or little is written afterwards.
fn a_range_delete_alone_gives_space_back(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let before = table_bytes(&disk);
    let sealed = |store: &Store| store.stats().counter("sealed_for_deletes_count");
    // A range delete that covers little waits until its memtable is full.
    ks.delete_range(&key(0), &key(20)).unwrap();
    rt.sleep(Duration::from_secs(120));
    assert_eq!((sealed(&store), table_bytes(&disk)), (0, before));
    ks.delete_range(&key(1000), &key(KEYS)).unwrap();
    if seed == 0 {
        rt.sleep(Duration::from_secs(4));
        assert_eq!(sealed(&store), 0, "more may be written");
        rt.sleep(Duration::from_secs(6));
    } else {
        for second in 0..70 {
            ks.put(&key(second), b"now and then").unwrap();
            rt.sleep(Duration::from_secs(1));
        }
    }
    assert_eq!(sealed(&store), 1);
    store.wait_until_idle().unwrap();
    rt.sleep(Duration::from_secs(3));
    let after = table_bytes(&disk);
    assert!(after * 4 < before, "{after} of {before} bytes");
    // Only once: a range delete that has nothing left to cover is left alone.
    let done = work(&store);
    rt.sleep(Duration::from_secs(300));
    assert_eq!((sealed(&store), work(&store)), (1, done));
    let kept = if seed == 0 { 980 } else { 1000 };
    assert_eq!(ks.iter().unwrap().count(), kept);
    store.close().unwrap();
    let store = disk.open_with(options());
    assert_eq!(
        store.default_keyspace().unwrap().iter().unwrap().count(),
        kept
    );
}

fn deletes_give_space_back(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let before = table_bytes(&disk);
    // Nine of ten keys are deleted: scattered, or in one piece.
    let is_deleted = |i: u64| match seed {
        0 => !i.is_multiple_of(10),
        _ => i >= KEYS / 10,
    };
    for i in (0..KEYS).filter(|i| is_deleted(*i)) {
        ks.delete(&key(i)).unwrap();
    }
    settle(&disk, &store);
    let after = table_bytes(&disk);
    assert!(
        after < before / 5,
        "a tenth of the pairs is left, and {after} bytes of {before}"
    );
    let stats = stats_of(&store, "default");
    let deletes: u64 = stats.levels.iter().map(|l| l.entry_count).sum();
    assert!(
        deletes < KEYS / 5,
        "{deletes} entries for {} pairs: {stats:?}",
        KEYS / 10
    );
    let model = (0..KEYS).filter(|i| !is_deleted(*i));
    check(
        &ks,
        &model.map(|i| (key(i), value(i))).collect(),
        "what was not deleted",
    );
}

fn a_range_delete_gives_space_back(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let before = table_bytes(&disk);
    let (from, to) = match seed {
        // Everything, nine of ten keys, or a piece in the middle.
        0 => (0, KEYS),
        1 => (KEYS / 10, KEYS),
        _ => (KEYS / 4, KEYS * 3 / 4),
    };
    let left = KEYS - (to - from);
    ks.delete_range(&key(from), &key(to)).unwrap();
    let read_before = store.stats().counter("compaction_in_bytes");
    settle(&disk, &store);
    let after = table_bytes(&disk);
    assert!(
        after <= before * (left + KEYS / 8) / KEYS,
        "{left} of {KEYS} pairs are left, and {after} bytes of {before}"
    );
    let stats = store.stats();
    assert!(stats.counter("dropped_table_count") > 0);
    let read = stats.counter("compaction_in_bytes") - read_before;
    assert!(
        read < before * 3 / 4,
        "{read} bytes of {before} were read to delete tables whole"
    );
    let model = (0..KEYS).filter(|i| !(from..to).contains(i));
    check(
        &ks,
        &model.map(|i| (key(i), value(i))).collect(),
        "what was not deleted",
    );
    // The same after a power loss.
    store.sync_log().unwrap();
    let disk = disk.lose_power();
    let store = disk.open_with(options());
    let model = (0..KEYS).filter(|i| !(from..to).contains(i));
    check(
        &store.default_keyspace().unwrap(),
        &model.map(|i| (key(i), value(i))).collect(),
        "after a loss of power",
    );
}

fn a_range_delete_under_a_snapshot(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let before = table_bytes(&disk);
    let snapshot = store.snapshot();
    if seed == 0 {
        ks.delete_range(&key(0), &key(KEYS)).unwrap();
    } else {
        for i in 0..KEYS {
            ks.delete(&key(i)).unwrap();
        }
    }
    // Nothing is due, and compactions that the snapshot makes useless are not repeated.
    settle(&disk, &store);
    for i in (0..KEYS).step_by(17) {
        assert_eq!(
            ks.get_at(&snapshot, &key(i)).unwrap(),
            Some(value(i)),
            "key {i}, read by a snapshot from before it was deleted"
        );
    }
    assert_eq!(ks.iter().unwrap().count(), 0);
    drop(snapshot);
    settle(&disk, &store);
    let after = table_bytes(&disk);
    assert!(
        after < before / 20,
        "nothing is left, and {after} bytes of {before}"
    );
}

fn dropped_keyspaces_free_their_files(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    for i in 0..KEYS / 4 {
        for ks in [&a, &b] {
            ks.put(&key(i), &value(i)).unwrap();
        }
    }
    settle(&disk, &store);
    let both = table_bytes(&disk);
    store.drop_keyspace("a").unwrap();
    drop(a);
    disk.rt.sleep(Duration::from_secs(3));
    let one = table_bytes(&disk);
    assert!(
        one <= both * 6 / 10,
        "{one} bytes of {both} without one of two keyspaces"
    );
    drop(b);
    store.drop_keyspace("b").unwrap();
    disk.rt.sleep(Duration::from_secs(3));
    assert_eq!(disk.names(".tbl"), Vec::<String>::new());
}

fn obsolete_files_never_pile_up(rt: Runtime, seed: u64) {
    /// Outputs of running jobs, and files that the next round of maintenance deletes.
    const EXTRA_TABLES: usize = 60;
    /// Segments that are in use, prepared or kept for reuse, and the reserve.
    const EXTRA_LOGS: usize = 12;
    let disk = Disk::new(&rt);
    let options = Options {
        log_bytes_max: 1 << 20,
        memtable_bytes: 64 << 10,
        ..small()
    };
    let logs_max = (options.log_bytes_max / options.log_segment_bytes) as usize + EXTRA_LOGS;
    let store = disk.open_with(options);
    let hooks = store.test_hooks();
    let mut dice = Dice::new(seed);
    let mut snapshots = Vec::new();
    let (mut most, mut deleted) = (0, 0);
    for round in 0..60u64 {
        let names = ["a", "b", "c"];
        let name = names[dice.below(3) as usize];
        let ks = match store.keyspace(name) {
            Ok(ks) => ks,
            Err(_) => store.create_keyspace(name).unwrap(),
        };
        let at = dice.below(3_000);
        for i in 0..400 {
            ks.put(&key(at + i * (1 + dice.below(3))), &value(i))
                .unwrap();
        }
        match dice.below(8) {
            0 => ks
                .delete_range(&key(at), &key(at + dice.below(3_000)))
                .unwrap(),
            1 => (0..400).for_each(|i| ks.delete(&key(at + i)).unwrap()),
            2 => ks.flush().unwrap(),
            3 if dice.below(3) == 0 => store.drop_keyspace(name).unwrap(),
            4 => snapshots.push(store.snapshot()),
            5 => drop(snapshots.pop()),
            6 => store.wait_until_idle().unwrap(),
            _ => {}
        }
        let stats = store.stats();
        let named: usize = hooks
            .state()
            .keyspaces
            .values()
            .map(|k| k.version.tables().count())
            .sum();
        let found = disk.names(".tbl").len();
        let pinned = stats.pinned_table_count as usize;
        let extra = found.saturating_sub(named + pinned);
        most = most.max(extra);
        deleted = stats.counter("deleted_file_count");
        assert!(
            extra <= EXTRA_TABLES,
            "round {round}: {found} tables on the disk, {named} named, {pinned} pinned"
        );
        let logs = disk
            .memory
            .list()
            .unwrap()
            .iter()
            .filter(|o| o.name.ends_with(".log"))
            .count();
        assert!(logs <= logs_max, "round {round}: {logs} log segments");
        let manifests = disk
            .memory
            .list()
            .unwrap()
            .iter()
            .filter(|o| o.name.starts_with("MANIFEST"))
            .count();
        assert!(manifests <= 3, "round {round}: {manifests} manifests");
    }
    println!("seed {seed}: at most {most} tables beyond those in use, {deleted} deleted");
    assert!(deleted > 50, "{deleted} files were deleted");
    drop(snapshots);
    settle(&disk, &store);
    let named: usize = hooks
        .state()
        .keyspaces
        .values()
        .map(|k| k.version.tables().count())
        .sum();
    assert_eq!(disk.names(".tbl").len(), named, "when nothing is due");
}

fn deletes_of_few_or_absent_keys_cost_little(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let written = |store: &Store| store.stats().counter("compaction_out_bytes");
    let before = written(&store);
    // A few deletes are not worth a merge. Many deletes of keys that never existed are dropped
    // after they have moved down once.
    for i in 0..KEYS / 100 {
        ks.delete(&key(i * 100)).unwrap();
    }
    store.flush().unwrap();
    settle(&disk, &store);
    assert_eq!(written(&store), before, "a hundredth is not worth it");
    for i in 0..KEYS {
        ks.delete(&[&key(i)[..], b"?"].concat()).unwrap();
    }
    settle(&disk, &store);
    let cost = written(&store) - before;
    let bytes = table_bytes(&disk);
    assert!(
        cost < 8 * bytes,
        "{cost} bytes written for deletes of nothing in {bytes}"
    );
    let entries = table_entries(&store, "default");
    assert!(
        entries <= KEYS * 9 / 8,
        "{entries} entries are left of {KEYS}"
    );
}

/// Cursors remember a gap in two keyspaces, and a writer puts a key into both gaps by one batch,
/// again and again. A cursor at a snapshot shows the key whenever a get at that snapshot finds it.
fn a_put_into_a_gap_is_seen_at_once(rt: Runtime, _seed: u64) {
    const DELETED: u64 = 20;
    let disk = Disk::new(&rt);
    let store = disk.open_with(small());
    let hooks = store.test_hooks();
    hooks.set_gap_min(1);
    hooks.pause_compaction(true);
    let (a, b) = two(&store);
    for keyspace in [&a, &b] {
        for i in 0..DELETED {
            keyspace.put(&key(i), b"v").unwrap();
            keyspace.delete(&key(i)).unwrap();
        }
    }
    let inside = key(DELETED / 2);
    let writer = {
        let (clock, store, a, b) = (rt.clone(), store.clone(), a.clone(), b.clone());
        let inside = inside.clone();
        let write = move || {
            for _ in 0..40 {
                let mut batch = Batch::new();
                batch.put(&a, &inside, b"v").unwrap();
                batch.put(&b, &inside, b"v").unwrap();
                store.write(&batch, WriteOptions::default()).unwrap();
                let mut batch = Batch::new();
                batch.delete(&a, &inside).unwrap();
                batch.delete(&b, &inside).unwrap();
                store.write(&batch, WriteOptions::default()).unwrap();
                // Until then cursors remember the gap again.
                clock.sleep(Duration::from_micros(2));
            }
        };
        rt.spawn("writer", write).unwrap()
    };
    let mut gaps = 0;
    while !writer.is_finished() {
        let snapshot = store.snapshot();
        for keyspace in [&a, &b] {
            let found = keyspace.get_at(&snapshot, &inside).unwrap();
            let mut cursor = keyspace.cursor_at(&snapshot, ..).unwrap();
            cursor.seek_to_first().unwrap();
            assert_eq!(cursor.valid(), found.is_some(), "at {snapshot:?}");
            gaps += hooks.gap_count(keyspace);
        }
        rt.sleep(Duration::from_micros(1));
    }
    writer.join().unwrap();
    assert!(gaps > 0, "no gap was remembered, so the test shows nothing");
}
