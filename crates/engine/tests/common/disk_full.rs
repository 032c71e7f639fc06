//! Stories about a full disk: it fills up, it has room again, and keyspaces are dropped to make
//! room. `docs/stories.md` describes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone::ErrorKind;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime};

use super::*;

pub const ALL: &[Story] = &[
    ("a_full_disk_passes", 4, a_full_disk_passes),
    ("dropping_makes_room", 10, dropping_makes_room),
    ("full_disk_and_writers", 30, full_disk_and_writers),
    (
        "a_dropped_keyspace_that_only_the_log_knows_stays_dropped",
        4,
        a_dropped_keyspace_that_only_the_log_knows_stays_dropped,
    ),
    (
        "a_dropped_keyspace_leaves_no_spilled_tables",
        2,
        a_dropped_keyspace_leaves_no_spilled_tables,
    ),
];

impl Disk {
    /// The same disk, with room.
    pub fn unlimited(self) -> Disk {
        self.memory.set_capacity(None);
        self
    }
}

/// The disk fills up. Writes fail with `NoSpace`, reads go on, and writing resumes by itself when
/// there is room. Nothing acknowledged is lost.
fn a_full_disk_passes(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    disk.memory
        .set_capacity(Some(disk.memory.used_bytes() + (seed + 3) * 100_000));
    let mut acknowledged = 0;
    let error = loop {
        match ks.put(&key(acknowledged), &[7; 900]) {
            Ok(()) => acknowledged += 1,
            Err(e) => break e,
        }
        assert!(acknowledged < 10_000, "the disk never filled");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(prefix_len(&ks), acknowledged, "reads go on");
    assert_eq!(
        prefix_len(&disk.kill().unlimited().open().default_keyspace().unwrap()),
        acknowledged
    );
    disk.memory.set_capacity(None);
    // By itself: nothing is called, time passes.
    rt.sleep(Duration::from_secs(5));
    ks.put(&key(acknowledged), b"v")
        .expect("writing resumes by itself");
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(prefix_len(&ks), acknowledged + 1);
    store.close().unwrap();
    assert_eq!(
        prefix_len(&disk.open().default_keyspace().unwrap()),
        acknowledged + 1
    );
}

/// Dropping is how room is made: it works on a full disk, and what it frees lets writing go on.
fn dropping_makes_room(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for i in 0..600 {
        b.put(&key(i), &[7; 900]).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    store.test_hooks().delete_obsolete();
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    let mut acknowledged = 0;
    // Small records, so that for some seeds the last segment has no room for the drop's.
    while a
        .put(&key(acknowledged), &vec![7; seed as usize * 8])
        .is_ok()
    {
        acknowledged += 1;
        assert!(acknowledged < 10_000, "the disk never filled");
    }
    store
        .drop_keyspace("b")
        .expect("a keyspace can be dropped on a full disk");
    let kept = disk.kill().unlimited().open();
    assert!(kept.keyspace("b").is_err(), "the drop was acknowledged");
    assert_eq!(prefix_len(&kept.keyspace("a").unwrap()), acknowledged);
    rt.sleep(Duration::from_secs(5));
    a.put(&key(acknowledged), b"v").expect("the drop made room");
    assert_eq!(prefix_len(&a), acknowledged + 1);
}

/// A disk fills up and has room again while several tasks write: each write succeeds or fails with
/// `NoSpace`, and with no other error.
fn full_disk_and_writers(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..3u64)
        .map(|w| {
            let (ks, stop, clock) = (store.default_keyspace().unwrap(), stop.clone(), rt.clone());
            let write = move || {
                for i in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    if let Err(e) = ks.put(&key(w * 1000 + i % 200), &[7; 3000]) {
                        assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    }
                    // Often, and at multiples of the store's own pauses, so that some write while
                    // the state changes.
                    clock.sleep(Duration::from_millis(20));
                }
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    for _ in 0..6 {
        disk.memory
            .set_capacity(Some(disk.memory.used_bytes() + 20_000));
        rt.sleep(Duration::from_millis(800));
        disk.memory.set_capacity(None);
        rt.sleep(Duration::from_millis(1500));
    }
    stop.store(true, Ordering::Relaxed);
    writers.into_iter().for_each(|w| w.join().unwrap());
}

/// Keyspaces are known to the log only, and the store is opened on a full disk. One of them is
/// dropped: it stays dropped, and the other one stays.
fn a_dropped_keyspace_that_only_the_log_knows_stays_dropped(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    // Its reserves are made in the background.
    rt.sleep(Duration::from_secs(3));
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(60)))
            .named("MANIFEST")
            .for_good(),
    );
    let creator = {
        let store = store.clone();
        rt.spawn("creator", move || drop(two(&store))).unwrap()
    };
    let wait_for = |name: &str| {
        while store.keyspace(name).is_err() {
            rt.sleep(Duration::from_millis(10));
        }
        store.keyspace(name).unwrap()
    };
    put_synced(&wait_for("a"), b"k", b"a");
    if seed.is_multiple_of(2) {
        put_synced(&wait_for("b"), b"k", b"b");
    }
    let known: Vec<String> = store.keyspaces();
    let full = disk.lose_power();
    full.memory.set_capacity(Some(full.memory.used_bytes()));
    let again = full.open();
    assert_eq!(again.keyspaces(), known);
    again.drop_keyspace("a").unwrap();
    for after in [full.kill(), full.lose_power()] {
        let store = after.unlimited().open();
        assert!(
            store.keyspace("a").is_err(),
            "an acknowledged drop was undone"
        );
        if known.contains(&"b".to_string()) {
            assert_eq!(
                store.keyspace("b").unwrap().get(b"k").unwrap().unwrap(),
                b"b"
            );
        }
        let fresh = store.create_keyspace("c").unwrap();
        assert_eq!(fresh.iter().unwrap().count(), 0);
    }
    creator.join().unwrap();
}

/// Replay writes memtables of a keyspace to tables before it reaches the record of the keyspace's
/// drop, whose edit was lost. None of these tables stays behind.
fn a_dropped_keyspace_leaves_no_spilled_tables(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(siltstone::Options {
        memtable_bytes: 1 << 20,
        log_bytes_max: 16 << 20,
        ..small()
    });
    let (a, b) = two(&store);
    for i in 0..300 {
        a.put(&key(i), &[7; 900]).unwrap();
    }
    b.put(b"k", b"b").unwrap();
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(60)))
            .named("MANIFEST")
            .for_good(),
    );
    let dropping = {
        let store = store.clone();
        rt.spawn("drop", move || store.drop_keyspace("a").unwrap())
            .unwrap()
    };
    rt.sleep(Duration::from_secs(1));
    // Its record is in the log, its edit is on its way.
    let disk = disk.lose_power();
    let after = disk.open();
    assert!(after.keyspace("a").is_err(), "the drop was durable");
    let found = after.keyspace("b").unwrap().get(b"k").unwrap();
    assert_eq!(found.unwrap(), b"b");
    let stats = after.stats();
    let levels = stats.keyspaces.iter().flat_map(|k| &k.levels);
    let named: u64 = levels.map(|level| level.table_count).sum();
    let left = disk.names(".tbl");
    assert_eq!(left.len() as u64, named, "{left:?}");
    dropping.join().unwrap();
}
