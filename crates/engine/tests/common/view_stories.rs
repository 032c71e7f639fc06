//! Stories about views, compactions and the runtime. `docs/stories.md` describes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone::{ErrorKind, IterOptions, Options};
use siltstone_storage::Runtime;
use siltstone_storage::sim::check_replay;

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_tombstone_waits_for_older_memtables",
        4,
        a_tombstone_waits_for_older_memtables,
    ),
    (
        "a_run_installed_late_lies_below_newer_runs",
        4,
        a_run_installed_late_lies_below_newer_runs,
    ),
    (
        "levels_do_not_order_numbers",
        4,
        levels_do_not_order_numbers,
    ),
    (
        "a_snapshot_beside_jobs_does_not_change",
        60,
        a_snapshot_beside_jobs_does_not_change,
    ),
    (
        "a_key_is_found_while_jobs_drop_old_versions",
        60,
        a_key_is_found_while_jobs_drop_old_versions,
    ),
    (
        "a_stalled_keyspace_stalls_no_other",
        8,
        a_stalled_keyspace_stalls_no_other,
    ),
    (
        "a_keyspace_dropped_while_used_keeps_its_files",
        12,
        a_keyspace_dropped_while_used_keeps_its_files,
    ),
    (
        "a_read_beside_a_drop_never_says_not_found",
        60,
        a_read_beside_a_drop_never_says_not_found,
    ),
    (
        "a_new_keyspace_has_no_records_of_its_namesake",
        4,
        a_new_keyspace_has_no_records_of_its_namesake,
    ),
    (
        "range_deletes_hide_exactly_what_is_older",
        8,
        range_deletes_hide_exactly_what_is_older,
    ),
    (
        "a_pinned_view_holds_space_and_returns_it",
        4,
        a_pinned_view_holds_space_and_returns_it,
    ),
    (
        "one_seed_gives_one_trace_of_calls",
        1,
        one_seed_gives_one_trace_of_calls,
    ),
];

fn eager() -> Options {
    Options {
        l0_trigger_count: 1,
        ..small()
    }
}

/// The flush of memtable M1 (put k) is slow. M2 (delete k) is installed first and could go to the
/// bottom, where its tombstone has nothing to hide; then M1 is installed. k stays deleted.
fn a_tombstone_waits_for_older_memtables(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let hooks = store.test_hooks();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"old").unwrap();
    ks.put(b"stays", b"1").unwrap();
    assert!(hooks.seal_and_hold(&ks).unwrap());
    ks.delete(b"k").unwrap();
    ks.put(b"other", b"1").unwrap();
    ks.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(ks.get(b"k").unwrap(), None);
    hooks.release(&ks);
    ks.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(ks.get(b"k").unwrap(), None, "a deleted key lives");
    ks.compact_range(None, None).unwrap();
    let model = BTreeMap::from([
        (b"other".to_vec(), b"1".to_vec()),
        (b"stays".to_vec(), b"1".to_vec()),
    ]);
    check(&ks, &model, "at the end");
    assert!(
        store.stats().counter("out_of_order_install_count") > 0,
        "no run was installed out of order, so the test shows nothing"
    );
}

/// A run with older numbers is installed while newer level-0 runs exist. Every get, cursor and
/// snapshot equals the model before and after.
fn a_run_installed_late_lies_below_newer_runs(rt: Runtime, seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        l0_trigger_count: 2,
        ..small()
    });
    let hooks = store.test_hooks();
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    let mut seen = Vec::new();
    for round in 0..8u64 {
        for _ in 0..20 {
            let (k, v) = (
                key(dice.below(30)),
                format!("{round}-{}", dice.below(1000)).into_bytes(),
            );
            if dice.below(4) == 0 {
                ks.delete(&k).unwrap();
                model.remove(&k);
            } else {
                ks.put(&k, &v).unwrap();
                model.insert(k, v);
            }
        }
        seen.push((store.snapshot(), model.clone()));
        if round == 2 || round == 4 {
            hooks.seal_and_hold(&ks).unwrap();
        } else {
            ks.flush().unwrap();
            store.wait_until_idle().unwrap();
        }
        check(&ks, &model, "while a run is held back");
        if round == 6 {
            hooks.release(&ks);
            ks.flush().unwrap();
            store.wait_until_idle().unwrap();
            check(&ks, &model, "after it came in below");
        }
        for (snapshot, then) in &seen {
            for i in 0..30 {
                assert_eq!(
                    ks.get_at(snapshot, &key(i)).unwrap(),
                    then.get(&key(i)).cloned(),
                    "round {round}, key {i}, {snapshot:?}"
                );
            }
            let mut cursor = ks.cursor_at(snapshot, IterOptions::default()).unwrap();
            cursor.seek_to_first().unwrap();
            for (k, v) in then {
                assert_eq!(
                    (cursor.key(), cursor.value()),
                    (&k[..], &v[..]),
                    "round {round}, {snapshot:?}"
                );
                cursor.next().unwrap();
            }
            assert!(!cursor.valid());
        }
    }
    drop(seen);
    ks.compact_range(None, None).unwrap();
    check(&ks, &model, "at the bottom");
    assert!(
        store.stats().counter("out_of_order_install_count") > 0,
        "no run was installed out of order, so the test shows nothing"
    );
}

/// Deeper levels hold newer numbers of other keys. What a level may drop is decided by keys.
fn levels_do_not_order_numbers(rt: Runtime, seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for round in 0..14u64 {
        let share = if round == 0 { 300 } else { 40 };
        for i in 0..share {
            let (k, v) = (
                key(if round == 0 { i } else { dice.below(300) }),
                vec![round as u8; 900],
            );
            if round > 0 && dice.below(2) == 0 {
                ks.delete(&k).unwrap();
                model.remove(&k);
            } else {
                ks.put(&k, &v).unwrap();
                model.insert(k, v);
            }
        }
        ks.flush().unwrap();
        store.wait_until_idle().unwrap();
        check(&ks, &model, "after a round");
    }
    let deep = stats_of(&store, "default").levels[2..]
        .iter()
        .filter(|l| l.table_count > 0)
        .count();
    assert!(deep > 0, "the test needs levels below 1");
}

/// A snapshot taken at any time, also while jobs run, always reads the same.
fn a_snapshot_beside_jobs_does_not_change(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let ks = store.default_keyspace().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (clock, ks, stop) = (rt.clone(), ks.clone(), stop.clone());
        let write = move || {
            for i in 0..60u64 {
                ks.put(b"k", format!("{i}").as_bytes()).unwrap();
                ks.put(&key(i), b"v").unwrap();
                // Time moves only while all tasks wait: without this there would be one snapshot
                // before all writes, and none beside the jobs.
                clock.sleep(Duration::from_micros(50));
                if i % 6 == 5 {
                    ks.flush().unwrap();
                }
            }
            ks.store().wait_until_idle().unwrap();
            stop.store(true, Ordering::Relaxed);
        };
        rt.spawn("writer", write).unwrap()
    };
    ks.put(b"k", b"first").unwrap();
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let snapshot = store.snapshot();
        let then = ks.get_at(&snapshot, b"k").unwrap();
        seen.push((snapshot, then));
        for (snapshot, then) in &seen {
            assert_eq!(ks.get_at(snapshot, b"k").unwrap(), *then, "{snapshot:?}");
        }
        if seen.len() > 6 {
            seen.remove(0);
        }
        rt.sleep(Duration::from_micros(200));
    }
    writer.join().unwrap();
    assert!(
        store.stats().counter("compaction_count") > 0,
        "no compaction ran, so the test shows nothing"
    );
}

/// A read that takes its number before its view may find that a job dropped what it needs. A key
/// that always has a value must always be found.
fn a_key_is_found_while_jobs_drop_old_versions(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"first").unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writer = {
        let (ks, stop) = (ks.clone(), stop.clone());
        let write = move || {
            for i in 0..12u64 {
                ks.put(b"k", format!("{i}").as_bytes()).unwrap();
                ks.put(b"k", format!("{i}!").as_bytes()).unwrap();
                ks.flush().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
        };
        rt.spawn("writer", write).unwrap()
    };
    while !stop.load(Ordering::Relaxed) {
        assert!(
            ks.get(b"k").unwrap().is_some(),
            "a key that always has a value was not found"
        );
        assert_eq!(ks.iter().unwrap().count(), 1, "nor by an iterator");
        // Time moves only while this task sleeps, and some waits of the store are bounded by time.
        rt.sleep(Duration::from_nanos(100));
    }
    writer.join().unwrap();
}

/// The writers of A must wait, and those of B do not.
fn a_stalled_keyspace_stalls_no_other(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        sealed_memtables_max: 1,
        ..small()
    });
    let hooks = store.test_hooks();
    let (a, b) = two(&store);
    a.put(b"k", b"1").unwrap();
    hooks.seal_and_hold(&a).unwrap();
    let stalled = {
        let a = a.clone();
        rt.spawn("stalled", move || a.put(b"k", b"2").unwrap())
            .unwrap()
    };
    while store.stats().waiting_writer_count == 0 {
        rt.sleep(Duration::from_millis(1));
    }
    for i in 0..20 {
        let start = rt.now();
        b.put(&key(i), b"v").unwrap();
        assert!(
            rt.now().since(start) < Duration::from_millis(50),
            "B waits for A"
        );
    }
    assert!(!stalled.is_finished(), "A's writer was to wait");
    assert_eq!(a.get(b"k").unwrap().unwrap(), b"1", "reads do not wait");
    hooks.release(&a);
    stalled.join().unwrap();
    assert_eq!(a.get(b"k").unwrap().unwrap(), b"2");
}

/// A keyspace is dropped under a cursor, a snapshot, a queued flush and running jobs, and a
/// keyspace of the same name is created at once.
fn a_keyspace_dropped_while_used_keeps_its_files(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let hooks = store.test_hooks();
    let (a, _) = two(&store);
    for i in 0..200 {
        a.put(&key(i), &[7; 700]).unwrap();
    }
    a.flush().unwrap();
    a.put(b"key000000", b"in a memtable that waits for its flush")
        .unwrap();
    hooks.seal_and_hold(&a).unwrap();
    a.put(b"key000001", b"active").unwrap();
    let snapshot = store.snapshot();
    let mut cursor = a.cursor(IterOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let files = disk.names(".tbl");
    store.drop_keyspace("a").unwrap();
    let again = store.create_keyspace("a").unwrap();
    hooks.delete_obsolete();
    assert_eq!(again.get(b"key000002").unwrap(), None);
    assert_eq!(
        a.get(b"key000002").unwrap_err().kind(),
        ErrorKind::KeyspaceDropped
    );
    assert_eq!(
        a.get_at(&snapshot, b"key000002").unwrap_err().kind(),
        ErrorKind::KeyspaceDropped
    );
    assert_eq!(
        a.put(b"x", b"y").unwrap_err().kind(),
        ErrorKind::KeyspaceDropped
    );
    again.put(b"key000000", b"new").unwrap();
    let left = disk.names(".tbl");
    let held = files.iter().filter(|f| left.contains(f)).count();
    assert!(
        held > 0 && store.stats().pinned_table_count > 0,
        "the iterator's tables are deleted under it: {files:?} {left:?}"
    );
    let mut count = 0;
    while cursor.valid() {
        assert_eq!(cursor.key(), key(count));
        count += 1;
        cursor.next().unwrap();
    }
    assert_eq!(count, 200);
    drop((cursor, snapshot));
    store.wait_until_idle().unwrap();
    hooks.delete_obsolete();
    // The maintenance task may be in the middle of deleting them.
    for _ in 0..100 {
        if disk.names(".tbl").is_empty() {
            break;
        }
        rt.sleep(std::time::Duration::from_millis(100));
    }
    assert_eq!(
        disk.names(".tbl"),
        Vec::<String>::new(),
        "the dropped keyspace's space is given back"
    );
    assert_eq!(again.get(b"key000000").unwrap().unwrap(), b"new");
    store.close().unwrap();
    let store = disk.open();
    assert_eq!(prefix_len(&store.keyspace("a").unwrap()), 1);
}

/// A keyspace is dropped after a read has checked that it exists. The read returns the value or the
/// error that the keyspace was dropped, and never that the key is not there.
fn a_read_beside_a_drop_never_says_not_found(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, _) = two(&store);
    a.put(b"k", b"v").unwrap();
    a.flush().unwrap();
    let snapshot = store.snapshot();
    let dropper = {
        let store = store.clone();
        rt.spawn("dropper", move || store.drop_keyspace("a").unwrap())
            .unwrap()
    };
    loop {
        let answers = [
            a.get(b"k"),
            a.get_at(&snapshot, b"k"),
            a.get_pinned(b"k").map(|v| v.map(|v| v.to_vec())),
        ];
        let mut dropped = false;
        for answer in answers {
            match answer {
                Ok(found) => assert_eq!(
                    found.as_deref(),
                    Some(&b"v"[..]),
                    "a key that was never deleted"
                ),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::KeyspaceDropped, "{e}");
                    dropped = true;
                }
            }
        }
        if dropped {
            break;
        }
        rt.sleep(Duration::from_nanos(100));
    }
    dropper.join().unwrap();
}

/// A keyspace is dropped, one of the same name is created at once, and the process is killed.
/// Replay does not give the old keyspace's records to the new one.
fn a_new_keyspace_has_no_records_of_its_namesake(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (a, b) = two(&store);
    a.put(b"pins", b"the log").unwrap();
    b.put(b"k", b"of the old one").unwrap();
    store.drop_keyspace("b").unwrap();
    let again = store.create_keyspace("b").unwrap();
    assert_ne!(again.id(), b.id(), "ids are never reused");
    again.put(b"other", b"1").unwrap();
    let store = disk.kill().open();
    let b = store.keyspace("b").unwrap();
    assert_eq!(b.get(b"k").unwrap(), None);
    assert_eq!(b.get(b"other").unwrap().unwrap(), b"1");
    assert_eq!(
        store.keyspace("a").unwrap().get(b"pins").unwrap().unwrap(),
        b"the log"
    );
}

/// Range deletes over cuts of tables, without any point entry, above newer ingested keys, where a
/// filter says that a key is not there, and in every level.
fn range_deletes_hide_exactly_what_is_older(rt: Runtime, seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        l0_trigger_count: 3,
        ..small()
    });
    let hooks = store.test_hooks();
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for i in 0..300 {
        ks.put(&key(i), &[1; 700]).unwrap();
        model.insert(key(i), vec![1; 700]);
    }
    ks.compact_range(None, None).unwrap();
    assert!(
        disk.names(".tbl").len() > 2,
        "the test needs several tables"
    );
    for round in 0..10u8 {
        let from = dice.below(300);
        let to = from + 1 + dice.below(120);
        ks.delete_range(&key(from), &key(to)).unwrap();
        model.retain(|k, _| *k < key(from) || *k >= key(to));
        check(&ks, &model, "with a range delete in the memtable");
        match round % 3 {
            // A run of nothing but a range delete.
            0 => ks.flush().unwrap(),
            // An ingested key that is newer than the range delete in the memtable above it. A
            // later round deletes a range over both.
            1 => {
                ingest(&disk, &hooks, &ks, &[(&key(from), b"ingested")]);
                model.insert(key(from), b"ingested".to_vec());
                check(&ks, &model, "with an ingested key above the range delete");
            }
            _ => {
                ks.put(&key(from), b"again").unwrap();
                model.insert(key(from), b"again".to_vec());
                ks.flush().unwrap();
            }
        }
        check(&ks, &model, "after a flush");
        for i in 0..300 {
            assert_eq!(
                ks.get(&key(i)).unwrap(),
                model.get(&key(i)).cloned(),
                "key {i} after a flush"
            );
            assert_eq!(
                ks.get_pinned(&key(i)).unwrap().as_deref(),
                model.get(&key(i)).map(|v| &v[..]),
                "key {i}, pinned"
            );
        }
        if round % 4 == 3 {
            store.wait_until_idle().unwrap();
            check(&ks, &model, "after compaction");
        }
        let back = disk.kill().open();
        check(&back.default_keyspace().unwrap(), &model, "after a kill");
    }
    ks.compact_range(None, None).unwrap();
    check(&ks, &model, "at the bottom");
    // Very many fragments, before and after a flush. The memtable's unit tests have a hundred
    // thousand.
    for i in 0..1000 {
        ks.delete_range(&key(i * 3 % 997), &key(i * 3 % 997 + 2))
            .unwrap();
    }
    model.clear();
    check(&ks, &model, "a thousand in the memtable");
    ks.flush().unwrap();
    check(&ks, &model, "a thousand in a table");
}

/// Cursors pin a view for an hour while everything is compacted and dropped. The space is held, the
/// statistics say so, and it is returned.
fn a_pinned_view_holds_space_and_returns_it(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(eager());
    let hooks = store.test_hooks();
    let (a, b) = two(&store);
    for i in 0..150 {
        put_in_all(&store, &[&a, &b], &key(i), &[7; 700], NO_SYNC);
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    let files = disk.names(".tbl");
    let (mut of_a, mut of_b) = (
        a.cursor(IterOptions::default()).unwrap(),
        b.cursor(IterOptions::default()).unwrap(),
    );
    of_a.seek_to_first().unwrap();
    of_b.seek_to_first().unwrap();
    a.delete_range(b"", b"z").unwrap();
    store.flush().unwrap();
    a.compact_range(None, None).unwrap();
    store.drop_keyspace("b").unwrap();
    for _ in 0..4 {
        rt.sleep(Duration::from_secs(900));
        hooks.delete_obsolete();
    }
    let stats = store.stats();
    let left = disk.names(".tbl");
    assert!(
        files.iter().all(|f| left.contains(f)),
        "files that a view holds are gone: {files:?} {left:?}"
    );
    assert_eq!(
        stats.pinned_table_count,
        files.len() as u64,
        "and the statistics say so"
    );
    assert!(stats.pinned_table_bytes > 150 * 700);
    for cursor in [&mut of_a, &mut of_b] {
        let mut count = 0;
        while cursor.valid() {
            assert_eq!((cursor.key(), cursor.value().len()), (&key(count)[..], 700));
            count += 1;
            cursor.next().unwrap();
        }
        assert_eq!(count, 150);
    }
    drop((of_a, of_b));
    hooks.delete_obsolete();
    assert_eq!(
        disk.names(".tbl"),
        Vec::<String>::new(),
        "the space is returned"
    );
    let stats = store.stats();
    assert_eq!((stats.pinned_table_count, stats.pinned_table_bytes), (0, 0));
}

/// Two runs of one seed make the same storage calls: writers, flushes, compactions, a drop and a
/// reopen.
fn one_seed_gives_one_trace_of_calls(_rt: Runtime, _seed: u64) {
    // A run within a run has its own scheduler and its own thread.
    for seed in 0..4 {
        let outcome = check_replay(super::config(seed), |rt: Runtime| {
            let disk = Disk::new(&rt);
            let store = disk.open_with(eager());
            let (a, b) = two(&store);
            let tasks: Vec<_> = [a, b]
                .into_iter()
                .map(|ks| {
                    let write = move || {
                        for i in 0..40 {
                            ks.put(&key(i), &[7; 200]).unwrap();
                            if i % 20 == 19 {
                                ks.flush().unwrap();
                            }
                        }
                    };
                    rt.spawn("writer", write).unwrap()
                })
                .collect();
            tasks.into_iter().for_each(|t| t.join().unwrap());
            store.drop_keyspace("b").unwrap();
            store.wait_until_idle().unwrap();
            store.close().unwrap();
            prefix_len(&disk.open().keyspace("a").unwrap())
        });
        let outcome = outcome.unwrap_or_else(|divergence| panic!("{divergence}"));
        assert_eq!(outcome.unwrap(), 40);
    }
}
