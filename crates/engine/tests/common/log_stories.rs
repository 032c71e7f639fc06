//! Stories 1 to 13: log and recovery.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone::log::format::{SegmentHeader, segment_name};
use siltstone::log::{Position, ReplayOptions, replay};
use siltstone::{Batch, ErrorKind, Options};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    ("story_01_half_a_batch", 4, story_01_half_a_batch),
    ("story_02_half_a_recovery", 2, story_02_half_a_recovery),
    (
        "story_03_replay_over_a_newer_table",
        4,
        story_03_replay_over_a_newer_table,
    ),
    (
        "story_04_the_end_of_a_segment",
        40,
        story_04_the_end_of_a_segment,
    ),
    ("story_05_a_recycled_name", 1, story_05_a_recycled_name),
    (
        "story_06_the_first_record_is_lost",
        24,
        story_06_the_first_record_is_lost,
    ),
    (
        "story_07_number_against_position",
        12,
        story_07_number_against_position,
    ),
    (
        "story_08_a_number_used_twice",
        2,
        story_08_a_number_used_twice,
    ),
    (
        "story_09_edits_that_overtake_the_log",
        3,
        story_09_edits_that_overtake_the_log,
    ),
    (
        "story_09_a_snapshot_beside_an_ingest",
        6,
        story_09_a_snapshot_beside_an_ingest,
    ),
    (
        "story_10_a_sync_error_reported_once",
        20,
        story_10_a_sync_error_reported_once,
    ),
    (
        "story_11_a_full_disk_at_open",
        1,
        story_11_a_full_disk_at_open,
    ),
    (
        "story_12_crash_during_recovery",
        2,
        story_12_crash_during_recovery,
    ),
    (
        "story_13_a_table_sync_that_fails",
        2,
        story_13_a_table_sync_that_fails,
    ),
    (
        "story_13_a_manifest_sync_that_fails",
        4,
        story_13_a_manifest_sync_that_fails,
    ),
];

/// A batch writes A and B; A is flushed and installed; the log was never synced; power fails. Both have it or neither.
fn story_01_half_a_batch(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for i in 0..10 {
        put_in_all(&store, &[&a, &b], &key(i), b"v", NO_SYNC);
    }
    // By a worker alone: who calls `flush` has the log synced at the end.
    let hooks = store.core_for_tests();
    assert!(hooks.seal_and_hold(&a).unwrap());
    hooks.release(&a);
    store.wait_until_idle().unwrap();
    let after = disk.lose_power().open();
    let (a, b) = (after.keyspace("a").unwrap(), after.keyspace("b").unwrap());
    assert_eq!(
        (prefix_len(&a), prefix_len(&b)),
        (10, 10),
        "a flushed batch is whole"
    );
}

/// What kill -9 left in the page cache is replayed; power fails at any call of that recovery, with any loss. The keyspaces stand at one
/// place, and what was synced is there.
fn story_02_half_a_recovery(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for i in 0..100 {
        put_in_all(
            &store,
            &[&a, &b],
            &key(i),
            b"v",
            if i == 59 { SYNC } else { NO_SYNC },
        );
    }
    let killed = disk.kill();
    killed.memory.start_journal();
    killed.open().close().unwrap();
    let calls = killed.memory.journal_len();
    for n in 0..=calls {
        let policy = [
            CrashPolicy::LoseUnsynced,
            CrashPolicy::Seeded(seed << 32 | n),
        ][(n % 2) as usize];
        let again = Disk::on(&killed.rt, killed.memory.crash_at(n, policy)).open();
        let (a, b) = (again.keyspace("a").unwrap(), again.keyspace("b").unwrap());
        let (a, b) = (prefix_len(&a), prefix_len(&b));
        assert!(
            a == b && a >= 60,
            "power lost after call {n} of {calls} of the recovery: a {a}, b {b}"
        );
    }
}

/// k@95 is flushed, an ingest installs k@100, the segment with k@95 is kept by another keyspace; crash. The new value is there, and nothing is
/// there twice.
fn story_03_replay_over_a_newer_table(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    b.put(b"pins", b"the segment").unwrap();
    a.put(b"k", b"95").unwrap();
    a.flush().unwrap();
    ingest(&disk, &hooks, &a, &[(b"k", b"100")]);
    a.put(b"later", b"1").unwrap();
    if seed.is_multiple_of(2) {
        a.flush().unwrap();
    } else {
        put_synced(&b, b"b", b"1");
    }
    for after in [disk.kill(), disk.lose_power()] {
        let store = after.open();
        let (a, b) = (store.keyspace("a").unwrap(), store.keyspace("b").unwrap());
        assert_eq!(a.get(b"k").unwrap().unwrap(), b"100");
        assert_eq!(a.get(b"later").unwrap().unwrap(), b"1");
        assert_eq!(b.get(b"pins").unwrap().unwrap(), b"the segment");
        assert_eq!(
            table_entries(&store, "a"),
            3,
            "entries in tables came back a second time"
        );
        assert!(
            store.stats().counter("replayed_record_count") > 0,
            "the log was not read again: the story was not told"
        );
    }
}

/// Records over several segments, synced at a random place; any loss. What is left is a prefix, with everything synced in it.
fn story_04_the_end_of_a_segment(rt: Runtime, seed: u64) {
    a_prefix_is_left(rt, seed, CrashPolicy::Seeded(seed));
}

/// The first record of a new segment is lost and the second survives; the next segment is synced while the last page of the one before
/// is not.
fn story_06_the_first_record_is_lost(rt: Runtime, seed: u64) {
    let policy = if seed.is_multiple_of(2) {
        CrashPolicy::LoseUnsynced
    } else {
        CrashPolicy::Seeded(seed ^ 0x5555)
    };
    a_prefix_is_left(rt, seed, policy);
}

fn a_prefix_is_left(rt: Runtime, seed: u64, policy: CrashPolicy) {
    let mut dice = Dice::new(seed);
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        memtable_bytes: 2 << 20,
        ..small()
    });
    let ks = store.default_keyspace().unwrap();
    let count = 150 + dice.below(150);
    let synced = dice.below(count + 1);
    for i in 0..count {
        let value = vec![i as u8; 200 + dice.below(1500) as usize];
        put_in_all(
            &store,
            &[&ks],
            &key(i),
            &value,
            if i + 1 == synced { SYNC } else { NO_SYNC },
        );
    }
    assert!(
        store.stats().log.live_segment_count > 2,
        "the story needs several segments"
    );
    let after = disk.crash(policy).open();
    let left = prefix_len(&after.default_keyspace().unwrap());
    assert!(
        left >= synced,
        "{synced} of {count} were synced, {left} are left"
    );
}

/// Segment 1 is recycled as 12: the rename is durable, the new header is not. Its old records are no records of 12.
fn story_05_a_recycled_name(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    for i in 0..20 {
        ks.put(&key(i), b"v").unwrap();
    }
    store.sync_log().unwrap();
    let bytes = disk.memory.read_small(&segment_name(1)).unwrap();
    let (header, _) = SegmentHeader::decode(&bytes, 1).unwrap();
    let renamed = MemoryStorage::new(&rt);
    let epoch = renamed.lease("writer").unwrap().epoch();
    renamed
        .create(epoch, &segment_name(12))
        .unwrap()
        .append(&[&bytes])
        .unwrap();
    let options = ReplayOptions {
        synced: Position::new(12, 0),
        ..ReplayOptions::from_segment(12, header.store_id)
    };
    let mut found = 0;
    let report = replay(&renamed, &options, &mut |_| {
        found += 1;
        Ok(())
    });
    assert_eq!(
        (found, report.unwrap().discarded.record_count),
        (0, 0),
        "records of segment 1 passed for those of 12"
    );
}

/// Numbers that only the manifest knows, then a torn, unsynced record: a healthy store, which opens.
fn story_07_number_against_position(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"flushed", b"1").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    // A new chain: numbers up to the old ceiling are in the manifest only.
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"unsynced", &vec![7; 9000]).unwrap();
    for policy in [
        CrashPolicy::LoseUnsynced,
        CrashPolicy::Seeded(seed),
        CrashPolicy::KeepUnsynced,
    ] {
        let store = disk.crash(policy).open();
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"flushed").unwrap().unwrap(), b"1");
        assert!(
            ks.get(b"unsynced")
                .unwrap()
                .is_none_or(|v| v == vec![7; 9000])
        );
    }
}

/// Power loss drops 200 numbers that somebody may have seen: no later open gives one of them again.
fn story_08_a_number_used_twice(rt: Runtime, _seed: u64) {
    let mut disk = Disk::new(&rt);
    let mut highest = 0;
    for life in 0..4 {
        let store = disk.open();
        let ks = store.default_keyspace().unwrap();
        ks.put(b"first", b"1").unwrap();
        let mut cursor = ks.cursor(..).unwrap();
        cursor.seek(b"first").unwrap();
        assert!(
            cursor.number() > highest,
            "life {life}: number {} again, {highest} was seen",
            cursor.number()
        );
        for i in 0..200 {
            ks.put(&key(i), b"v").unwrap();
        }
        highest = store.snapshot().number();
        disk = disk.lose_power();
    }
}

/// a@100 is not synced; B is created, dropped, or takes an ingest, acknowledged and in the manifest; power fails. No effect without what
/// came before it.
fn story_09_edits_that_overtake_the_log(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    store.sync_log().unwrap();
    a.put(b"before", b"1").unwrap();
    match seed {
        0 => drop(store.create_keyspace("c").unwrap()),
        1 => store.drop_keyspace("b").unwrap(),
        _ => drop(ingest(&disk, &hooks, &b, &[(b"k", b"ingested")])),
    }
    let after = disk.lose_power().open();
    let effect = match seed {
        0 => after.keyspace("c").is_ok(),
        1 => after.keyspace("b").is_err(),
        _ => after.keyspace("b").unwrap().get(b"k").unwrap().is_some(),
    };
    let before = after
        .keyspace("a")
        .unwrap()
        .get(b"before")
        .unwrap()
        .is_some();
    assert!(
        before || !effect,
        "the effect is there, what came before it is not"
    );
    assert!(effect, "the edit was acknowledged as durable");
}

/// While an ingest's edit is on its way a later number is published: a snapshot there sees the ingest, then and for ever.
fn story_09_a_snapshot_beside_an_ingest(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    b.put(b"k", b"old").unwrap();
    store.flush().unwrap();
    let table = table(&disk, &hooks, &[(b"k", b"ingested")]);
    let before = store.stats().published;
    disk.faults
        .add(Rule::on(OpKind::Sync, Fault::Delay(Duration::from_millis(50))).for_good());
    let ingesting = {
        let b = b.clone();
        rt.spawn("ingest", move || hooks.ingest(&b, vec![table]).unwrap())
            .unwrap()
    };
    while store.stats().published == before {
        rt.sleep(Duration::from_millis(1));
    }
    a.put(b"later", b"1").unwrap();
    let snapshot = store.snapshot();
    let then = b.get_at(&snapshot, b"k").unwrap();
    let number = ingesting.join().unwrap();
    assert!(snapshot.number() > number);
    assert_eq!(
        then.as_deref(),
        Some(&b"ingested"[..]),
        "published, but not seen"
    );
    assert_eq!(b.get_at(&snapshot, b"k").unwrap(), then);
}

/// One log sync fails, and its pages are lost; others sync after it. Whoever was told "synced" finds his data after a power loss.
fn story_10_a_sync_error_reported_once(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    // Of the segment in use: one that is being prepared may fail to sync and loses nothing.
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io))
            .named(format!("{LOG}001"))
            .nth(seed % 5),
    );
    let writers: Vec<_> = (0..3u64)
        .map(|w| {
            let ks = ks.clone();
            let write = move || {
                let mut told = BTreeSet::new();
                for i in 0..6 {
                    let mut batch = Batch::new();
                    batch.put(&ks, &key(w * 100 + i), b"v").unwrap();
                    match ks.store().write(&batch, SYNC) {
                        Ok(()) => drop(told.insert(key(w * 100 + i))),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}"),
                    }
                }
                told
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    let flushed = store.flush();
    let told: Vec<_> = writers
        .into_iter()
        .flat_map(|w| w.join().unwrap())
        .collect();
    assert_eq!(
        disk.faults.fired_count(0),
        1,
        "no sync failed: the story was not told"
    );
    assert_eq!(ks.put(b"x", b"y").unwrap_err().kind(), ErrorKind::Poisoned);
    drop(flushed);
    let after = disk.lose_power().open();
    let ks = after.default_keyspace().unwrap();
    for key in told {
        assert!(
            ks.get(&key).unwrap().is_some(),
            "{} was told synced",
            String::from_utf8_lossy(&key)
        );
    }
}

/// The disk is full at open, by any amount: nothing is lost, and once there is room the store is there.
fn story_11_a_full_disk_at_open(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for i in 0..100 {
        put_in_all(&store, &[&a, &b], &key(i), &[7; 1500], NO_SYNC);
    }
    store.sync_log().unwrap();
    let mut held_back = 0;
    for room in (0..500u64).step_by(20) {
        let full = disk.kill();
        full.memory
            .set_capacity(Some(full.memory.used_bytes() + room * 1024));
        let store = full
            .try_open(small())
            .unwrap_or_else(|e| panic!("{room} KiB free: {e}"));
        let (a, b) = (store.keyspace("a").unwrap(), store.keyspace("b").unwrap());
        assert_eq!(
            (prefix_len(&a), prefix_len(&b)),
            (100, 100),
            "{room} KiB are free"
        );
        let drops = room % 40 == 0;
        let mut written = 0;
        if store.stats().health != "good" {
            held_back += 1;
            assert_eq!(
                a.put(&key(100), b"v").unwrap_err().kind(),
                ErrorKind::NoSpace
            );
            if drops {
                store
                    .drop_keyspace("b")
                    .unwrap_or_else(|e| panic!("dropping is how room is made: {e}"));
            }
            let image = [full.kill(), full.lose_power()];
            for disk in image {
                let store = disk.unlimited().open();
                assert_eq!(
                    prefix_len(&store.keyspace("a").unwrap()),
                    100,
                    "{room} KiB were free"
                );
                assert_eq!(
                    store.keyspace("b").is_err(),
                    drops,
                    "a drop was acknowledged: {drops}"
                );
            }
            full.memory.set_capacity(None);
            // What a job of this open has written by then is named by nothing yet, and no orphan.
            let hooks = store.core_for_tests();
            let output = format!("{:08x}-00ffffff-0000-00000.tbl", hooks.open_number());
            full.memory.create(hooks.epoch(), &output).unwrap();
            rt.sleep(Duration::from_secs(5));
            a.put(&key(100), b"v")
                .unwrap_or_else(|e| panic!("writing resumes by itself: {e}"));
            full.memory
                .open(&output)
                .unwrap_or_else(|e| panic!("the output of a running job is deleted: {e}"));
            store.sync_log().unwrap();
            written = 1;
        }
        full.memory.set_capacity(None);
        for disk in [full.kill(), full.lose_power()] {
            assert_eq!(
                prefix_len(&disk.unlimited().open().keyspace("a").unwrap()),
                100 + written,
                "{room} KiB were free"
            );
        }
    }
    assert!(held_back > 3, "the disk was never full");
}

/// Crash during the recovery from a crash, at every storage call, and during the recovery from that.
fn story_12_crash_during_recovery(rt: Runtime, seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    put_in_all(&store, &[&a, &b], &key(0), &[7; 300], NO_SYNC);
    a.flush().unwrap();
    for i in 1..60 {
        put_in_all(
            &store,
            &[&a, &b],
            &key(i),
            &[7; 300],
            if i == 40 { SYNC } else { NO_SYNC },
        );
    }
    let first = disk.crash(CrashPolicy::Seeded(seed));
    first.memory.start_journal();
    let left = recovered(&first, 41, "first recovery");
    let calls = first.memory.journal_len();
    for n in 0..=calls {
        let policy = if n.is_multiple_of(2) {
            CrashPolicy::LoseUnsynced
        } else {
            CrashPolicy::Seeded(dice.below(1 << 40))
        };
        let second = Disk::on(&rt, first.memory.crash_at(n, policy));
        second.memory.start_journal();
        let when = format!("after call {n} of {calls}");
        assert_eq!(recovered(&second, 41, &when), left, "{when}");
        // A second crash at a few calls of the second recovery.
        for _ in 0..3 {
            let m = dice.below(second.memory.journal_len() + 1);
            let third = Disk::on(
                &rt,
                second
                    .memory
                    .crash_at(m, CrashPolicy::Seeded(dice.below(1 << 40))),
            );
            let when = format!("after calls {n} and {m}");
            assert_eq!(recovered(&third, 41, &when), left, "{when}");
        }
    }
}

/// Opens and closes; how many keys both keyspaces have.
fn recovered(disk: &Disk, synced: u64, when: &str) -> u64 {
    let store = disk
        .try_open(small())
        .unwrap_or_else(|e| panic!("{when}: {e}"));
    let (a, b) = (
        prefix_len(&store.keyspace("a").unwrap()),
        prefix_len(&store.keyspace("b").unwrap()),
    );
    assert!(a == b && a >= synced, "{when}: a {a}, b {b}");
    store.close().unwrap();
    a
}

/// The sync of a table that nothing refers to fails: the job fails, is counted, and runs again into a new file; no poison, no loss.
fn story_13_a_table_sync_that_fails(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    for i in 0..50 {
        ks.put(&key(i), &[7; 100]).unwrap();
    }
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io))
            .named("00000001-")
            .times(2),
    );
    ks.flush().unwrap();
    assert_eq!(disk.faults.fired_count(0), 2);
    assert_eq!(store.stats().counter("job_failed_count"), 2);
    ks.put(&key(50), b"v").unwrap();
    store.sync_log().unwrap();
    assert_eq!(
        disk.names(".tbl").len(),
        1,
        "the failed attempts' files are gone"
    );
    assert_eq!(
        prefix_len(&disk.lose_power().open().default_keyspace().unwrap()),
        51
    );
}

/// The manifest's sync fails and its pages are lost: poisoned, read-only, and it says so. A reopen recovers, also when the power fails
/// after it.
fn story_13_a_manifest_sync_that_fails(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    for i in 0..50 {
        ks.put(&key(i), &[7; 100]).unwrap();
    }
    store.sync_log().unwrap();
    disk.faults
        .add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named("MANIFEST"));
    let error = ks.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert_eq!(ks.put(b"x", b"y").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(prefix_len(&ks), 50, "reads go on");
    // The process restarts; the lost pages still show.
    let restarted = disk.kill();
    let store = restarted.open();
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), 50);
    for policy in [CrashPolicy::LoseUnsynced, CrashPolicy::Seeded(seed)] {
        assert_eq!(
            prefix_len(&restarted.crash(policy).open().default_keyspace().unwrap()),
            50
        );
    }
}
