//! Stories about the log and about recovery. `docs/stories.md` describes them.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone::log::format::{SegmentHeader, segment_name};
use siltstone::log::{Position, ReplayOptions, replay};
use siltstone::{Batch, ErrorKind, Options};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_flushed_batch_is_whole_after_power_loss",
        4,
        a_flushed_batch_is_whole_after_power_loss,
    ),
    (
        "a_recovery_that_loses_power_keeps_keyspaces_together",
        2,
        a_recovery_that_loses_power_keeps_keyspaces_together,
    ),
    (
        "replay_hides_no_newer_table",
        4,
        replay_hides_no_newer_table,
    ),
    (
        "a_crash_leaves_a_prefix_over_several_segments",
        40,
        a_crash_leaves_a_prefix_over_several_segments,
    ),
    (
        "a_recycled_segment_shows_no_old_records",
        1,
        a_recycled_segment_shows_no_old_records,
    ),
    (
        "nothing_is_replayed_behind_a_lost_record",
        24,
        nothing_is_replayed_behind_a_lost_record,
    ),
    (
        "gaps_in_numbers_refuse_no_open",
        12,
        gaps_in_numbers_refuse_no_open,
    ),
    (
        "no_sequence_number_is_given_twice",
        2,
        no_sequence_number_is_given_twice,
    ),
    (
        "no_edit_survives_without_the_log_before_it",
        3,
        no_edit_survives_without_the_log_before_it,
    ),
    (
        "a_snapshot_beside_an_ingest_does_not_change",
        6,
        a_snapshot_beside_an_ingest_does_not_change,
    ),
    (
        "no_write_is_acknowledged_after_a_failed_log_sync",
        20,
        no_write_is_acknowledged_after_a_failed_log_sync,
    ),
    (
        "an_open_on_a_full_disk_loses_nothing",
        1,
        an_open_on_a_full_disk_loses_nothing,
    ),
    (
        "a_crash_at_any_call_of_a_recovery_loses_nothing",
        2,
        a_crash_at_any_call_of_a_recovery_loses_nothing,
    ),
    (
        "a_failed_table_sync_only_repeats_the_job",
        2,
        a_failed_table_sync_only_repeats_the_job,
    ),
    (
        "a_failed_manifest_sync_poisons_until_reopened",
        4,
        a_failed_manifest_sync_poisons_until_reopened,
    ),
];

/// A batch writes to A and B. A is flushed and installed, and then power fails before any sync of
/// the log. Both keyspaces have the batch, or neither has it.
fn a_flushed_batch_is_whole_after_power_loss(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    for i in 0..10 {
        put_in_all(&store, &[&a, &b], &key(i), b"v", NO_SYNC);
    }
    // A worker flushes A by itself, because a call of `flush` would sync the log at its end.
    let hooks = store.test_hooks();
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

/// An open replays what `kill -9` left in the page cache. Power fails at any call of that recovery,
/// with any loss. Both keyspaces end at the same write, and everything synced is there.
fn a_recovery_that_loses_power_keeps_keyspaces_together(rt: Runtime, seed: u64) {
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

/// k@95 is flushed and an ingest installs k@100, while another keyspace still needs the segment
/// with k@95. After a crash the new value is read, and no entry is in the tables twice.
fn replay_hides_no_newer_table(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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
            "the log was not read again, so the test shows nothing"
        );
    }
}

/// Records fill several segments and are synced up to a random one; then power fails with any loss.
/// What is left is a prefix that contains everything synced.
fn a_crash_leaves_a_prefix_over_several_segments(rt: Runtime, seed: u64) {
    a_prefix_is_left(rt, seed, CrashPolicy::Seeded(seed));
}

/// The first record of a new segment is lost while the second survives, or the next segment is
/// synced while the last page of the one before it is not.
fn nothing_is_replayed_behind_a_lost_record(rt: Runtime, seed: u64) {
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
        "the test needs several segments"
    );
    let after = disk.crash(policy).open();
    let left = prefix_len(&after.default_keyspace().unwrap());
    assert!(
        left >= synced,
        "{synced} of {count} were synced, {left} are left"
    );
}

/// Segment 1 is recycled as segment 12. The rename is durable and the new header is not. The old
/// records are not taken for records of segment 12.
fn a_recycled_segment_shows_no_old_records(rt: Runtime, _seed: u64) {
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

/// Some sequence numbers are known only to the manifest, and a torn, unsynced record follows. The
/// store is sound and opens.
fn gaps_in_numbers_refuse_no_open(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"flushed", b"1").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    // A new chain of segments begins; only the manifest knows the numbers up to the old ceiling.
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

/// A power loss drops 200 numbers that a reader may have seen. No later open gives one of them to
/// another entry.
fn no_sequence_number_is_given_twice(rt: Runtime, _seed: u64) {
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

/// a@100 is not synced. Then a keyspace is created, is dropped, or takes an ingest; that is in the
/// manifest and acknowledged. After a power loss no such effect is there without a@100.
fn no_edit_survives_without_the_log_before_it(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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
        "the effect is there, but what came before it is not"
    );
    assert!(effect, "the edit was acknowledged as durable");
}

/// A later number is published while an ingest's edit is being synced. A snapshot at that number
/// sees the ingest at once and ever after.
fn a_snapshot_beside_an_ingest_does_not_change(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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

/// One sync of the log fails and its pages are lost; others sync after it. Every write that was
/// acknowledged as synced is there after a power loss.
fn no_write_is_acknowledged_after_a_failed_log_sync(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    // The rule names the segment in use: a segment that is being prepared loses nothing by a
    // failed sync.
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io))
            .named(format!("{LOG}001"))
            .nth(seed % 5),
    );
    let writers: Vec<_> = (0..3u64)
        .map(|w| {
            let ks = ks.clone();
            let write = move || {
                let mut acknowledged = BTreeSet::new();
                for i in 0..6 {
                    let mut batch = Batch::new();
                    batch.put(&ks, &key(w * 100 + i), b"v").unwrap();
                    match ks.store().write(&batch, SYNC) {
                        Ok(()) => drop(acknowledged.insert(key(w * 100 + i))),
                        Err(e) => assert_eq!(e.kind(), ErrorKind::Poisoned, "{e}"),
                    }
                }
                acknowledged
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    let flushed = store.flush();
    let acknowledged: Vec<_> = writers
        .into_iter()
        .flat_map(|w| w.join().unwrap())
        .collect();
    assert_eq!(
        disk.faults.fired_count(0),
        1,
        "no sync failed, so the test shows nothing"
    );
    assert_eq!(ks.put(b"x", b"y").unwrap_err().kind(), ErrorKind::Poisoned);
    drop(flushed);
    let after = disk.lose_power().open();
    let ks = after.default_keyspace().unwrap();
    for key in acknowledged {
        assert!(
            ks.get(&key).unwrap().is_some(),
            "{} was acknowledged as synced",
            String::from_utf8_lossy(&key)
        );
    }
}

/// The disk has any amount of room at open, down to none. Nothing is lost, and the store takes
/// writes again once there is room.
fn an_open_on_a_full_disk_loses_nothing(rt: Runtime, _seed: u64) {
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
            // Nothing refers yet to what a job of this open has written, but it is no orphan.
            let hooks = store.test_hooks();
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

/// A crash at every storage call of a recovery, and another one during the recovery from that.
fn a_crash_at_any_call_of_a_recovery_loses_nothing(rt: Runtime, seed: u64) {
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
        // Another crash at a few calls of the second recovery.
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

/// Opens and closes the store; returns how many keys each of the two keyspaces has.
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

/// The sync of a table that nothing refers to fails. The job fails, is counted, and is run again
/// into a new file; the store is not poisoned, and nothing is lost.
fn a_failed_table_sync_only_repeats_the_job(rt: Runtime, _seed: u64) {
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

/// The sync of the manifest fails and its pages are lost. The store is poisoned: it refuses writes
/// with that error and still answers reads. A reopen recovers, also if power fails after it.
fn a_failed_manifest_sync_poisons_until_reopened(rt: Runtime, seed: u64) {
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
    assert_eq!(prefix_len(&ks), 50, "reads continue");
    // The process restarts while the page cache still shows the lost pages.
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
