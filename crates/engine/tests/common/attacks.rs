//! Stories that were found by attacking the finished engine. `docs/stories.md` tells them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone::log::format::segment_name;
use siltstone::{Batch, ErrorKind, Keyspace, Options, SyncMode, WriteOptions};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, Storage, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    ("synced_survives_power_loss", 4, synced_survives_power_loss),
    (
        "a_drop_keeps_the_log_until_it_is_durable",
        6,
        a_drop_keeps_the_log_until_it_is_durable,
    ),
    (
        "a_late_leader_meets_a_closed_store",
        60,
        a_late_leader_meets_a_closed_store,
    ),
    (
        "a_failed_sync_of_the_folder_poisons_whoever_asked",
        4,
        a_failed_sync_of_the_folder_poisons_whoever_asked,
    ),
    (
        "a_missing_start_segment_is_damage",
        1,
        a_missing_start_segment_is_damage,
    ),
    ("a_full_disk_passes", 4, a_full_disk_passes),
    ("dropping_makes_room", 10, dropping_makes_room),
    ("a_pending_ingest_settles", 2, a_pending_ingest_settles),
    ("ingests_leave_no_holes", 2, ingests_leave_no_holes),
    (
        "spilled_ids_lie_above_ingested_ones",
        2,
        spilled_ids_lie_above_ingested_ones,
    ),
    (
        "a_dropped_keyspace_leaves_no_spilled_tables",
        2,
        a_dropped_keyspace_leaves_no_spilled_tables,
    ),
    (
        "a_failed_group_pins_nothing",
        2,
        a_failed_group_pins_nothing,
    ),
    (
        "an_ingest_of_a_dropped_keyspace_is_not_missed",
        2,
        an_ingest_of_a_dropped_keyspace_is_not_missed,
    ),
    (
        "a_drop_of_what_only_the_log_knows",
        4,
        a_drop_of_what_only_the_log_knows,
    ),
    (
        "a_refused_memtable_fails_its_own_batches",
        12,
        a_refused_memtable_fails_its_own_batches,
    ),
    (
        "a_drop_leaves_its_neighbours_ingest",
        4,
        a_drop_leaves_its_neighbours_ingest,
    ),
    (
        "runs_of_several_keyspaces_meet",
        2,
        runs_of_several_keyspaces_meet,
    ),
    ("full_disk_and_writers", 30, full_disk_and_writers),
    (
        "a_flush_beside_a_drop_keeps_its_promise",
        8,
        a_flush_beside_a_drop_keeps_its_promise,
    ),
    (
        "the_intervals_sync_waits_for_nobody",
        3,
        the_intervals_sync_waits_for_nobody,
    ),
    (
        "a_flush_of_nothing_is_a_promise_too",
        2,
        a_flush_of_nothing_is_a_promise_too,
    ),
    (
        "a_failed_sync_of_the_inherited_log_is_not_believed_later",
        2,
        a_failed_sync_of_the_inherited_log_is_not_believed_later,
    ),
];

/// The first promise of all: what was acknowledged as synced survives power loss.
fn synced_survives_power_loss(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    for i in 0..10 {
        put_synced(&ks, &key(i), b"v");
        assert_eq!(
            prefix_len(&disk.lose_power().open().default_keyspace().unwrap()),
            i + 1
        );
    }
}

/// While a drop's record is on its way to the disk, another keyspace's flush must not let the log go that the dropped one needs if
/// power fails now.
fn a_drop_keeps_the_log_until_it_is_durable(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    put_synced(&b, b"k", b"of the dropped one");
    // The log moves on, so that there is something to let go.
    for i in 0..100 {
        a.put(&key(i), &[7; 2000]).unwrap();
        hooks.delete_obsolete();
    }
    store.sync_log().unwrap();
    // Maintenance has made its next segment ready, so that the slow sync is the drop's.
    rt.sleep(Duration::from_secs(3));
    let before = hooks.state().log_start.segment;
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(2)))
            .named(LOG)
            .for_good(),
    );
    let dropper = {
        let store = store.clone();
        rt.spawn("dropper", move || store.drop_keyspace("b").unwrap())
            .unwrap()
    };
    while b.get(b"k").is_ok() {
        rt.sleep(Duration::from_millis(10));
    }
    // The flush's own call waits for the log, like the drop; its tables are installed before.
    let runs = |store: &Store| {
        let levels = stats_of(store, "a").levels;
        levels.iter().map(|l| l.run_count).sum::<u64>()
    };
    let runs_before = runs(&store);
    let flusher = {
        let a = a.clone();
        rt.spawn("flusher", move || a.flush().unwrap()).unwrap()
    };
    while runs(&store) == runs_before {
        rt.sleep(Duration::from_millis(10));
    }
    hooks.delete_obsolete();
    assert!(!dropper.is_finished(), "the drop was to wait for its sync");
    let after = disk.lose_power().open();
    let b = after.keyspace("b").expect("the drop was not durable");
    assert_eq!(
        b.get(b"k").unwrap().as_deref(),
        Some(&b"of the dropped one"[..]),
        "synced data is gone; the log began at {before}"
    );
    dropper.join().unwrap();
    flusher.join().unwrap();
    assert!(disk.lose_power().open().keyspace("b").is_err());
}

/// A leader is late: its append to the log takes seconds, and meanwhile the store is closed. What
/// each writer is told is true in the next life, even if the power is lost right after the close.
fn a_late_leader_meets_a_closed_store(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let late = Rule::on(OpKind::Append, Fault::Delay(Duration::from_secs(3)));
    let late = disk.faults.add(late.ending(".log").nth(seed));
    let tasks: Vec<_> = (0..3u64)
        .map(|w| {
            let ks = store.default_keyspace().unwrap();
            let write = move || {
                let mut told = Vec::new();
                for i in 0.. {
                    match ks.put(&key(w * 1000 + i), b"v") {
                        Ok(()) => told.push(key(w * 1000 + i)),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
                            break;
                        }
                    }
                }
                told
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    while disk.faults.fired_count(late) == 0 {
        rt.yield_point();
    }
    store.close().unwrap();
    let told: Vec<_> = tasks.into_iter().flat_map(|t| t.join().unwrap()).collect();
    for disk in [disk.lose_power(), disk] {
        let again = disk.open();
        let ks = again.default_keyspace().unwrap();
        for key in &told {
            assert!(
                ks.get(key).unwrap().is_some(),
                "{} was acknowledged and is not in the next life",
                String::from_utf8_lossy(key)
            );
        }
    }
}

/// A table's job gets the report of a lost folder: nobody's later sync of it may be believed.
fn a_failed_sync_of_the_folder_poisons_whoever_asked(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    // Maintenance has made its segment ready: the next sync of the folder is the flush's.
    rt.sleep(Duration::from_secs(3));
    put_synced(&ks, b"k", b"v");
    rt.sleep(Duration::from_secs(3));
    let rule = disk
        .faults
        .add(Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)));
    let _ = ks.flush();
    assert_eq!(
        disk.faults.fired_count(rule),
        1,
        "no sync of the folder failed"
    );
    let mut batch = Batch::new();
    batch.put(&ks, b"after", b"v").unwrap();
    assert_eq!(
        store.write(&batch, SYNC).unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v");
    let after = disk.lose_power().open();
    assert_eq!(
        after
            .default_keyspace()
            .unwrap()
            .get(b"k")
            .unwrap()
            .unwrap(),
        b"v"
    );
}

/// The log's first segment was durable before a manifest named it: missing, it is damage and no empty history.
fn a_missing_start_segment_is_damage(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"v").unwrap();
    let start = store.core_for_tests().state().log_start.segment;
    let after = disk.kill();
    let epoch = after.memory.lease("thief").unwrap().epoch();
    after
        .memory
        .delete(epoch, &segment_name(start as u32))
        .unwrap();
    let error = after
        .try_open(small())
        .expect_err("a store without the start of its log opened");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(error.file(), Some(&*segment_name(start as u32)));
}

/// The disk fills up: writes get `NoSpace`, reads go on, and writing resumes by itself when there is room. Nothing acknowledged is lost.
fn a_full_disk_passes(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    disk.memory
        .set_capacity(Some(disk.memory.used_bytes() + (seed + 3) * 100_000));
    let mut told = 0;
    let error = loop {
        match ks.put(&key(told), &[7; 900]) {
            Ok(()) => told += 1,
            Err(e) => break e,
        }
        assert!(told < 10_000, "the disk never filled");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    assert_eq!(prefix_len(&ks), told, "reads go on");
    assert_eq!(
        prefix_len(&disk.kill().unlimited().open().default_keyspace().unwrap()),
        told
    );
    disk.memory.set_capacity(None);
    // By itself: nothing is called, time passes.
    rt.sleep(Duration::from_secs(5));
    ks.put(&key(told), b"v").expect("writing resumes by itself");
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(prefix_len(&ks), told + 1);
    store.close().unwrap();
    assert_eq!(
        prefix_len(&disk.open().default_keyspace().unwrap()),
        told + 1
    );
}

impl Disk {
    /// The same disk, with room.
    pub fn unlimited(self) -> Disk {
        self.memory.set_capacity(None);
        self
    }
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
    store.core_for_tests().delete_obsolete();
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    let mut told = 0;
    // Small records, so that for some seeds the last segment has no room for the drop's.
    while a.put(&key(told), &vec![7; seed as usize * 8]).is_ok() {
        told += 1;
        assert!(told < 10_000, "the disk never filled");
    }
    store
        .drop_keyspace("b")
        .expect("a keyspace can be dropped on a full disk");
    let kept = disk.kill().unlimited().open();
    assert!(kept.keyspace("b").is_err(), "the drop was acknowledged");
    assert_eq!(prefix_len(&kept.keyspace("a").unwrap()), told);
    rt.sleep(Duration::from_secs(5));
    a.put(&key(told), b"v").expect("the drop made room");
    assert_eq!(prefix_len(&a), told + 1);
}

/// An ingest's edit finds no room and is committed later, by somebody else: its keyspace goes on as if nothing had been.
fn a_pending_ingest_settles(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        l0_trigger_count: 2,
        log_segment_bytes: 512 << 10,
        ..small()
    });
    let hooks = store.core_for_tests();
    let (a, _) = two(&store);
    // Each record and each edit holds its table's key four times. What was written for the manifest is soon used up, the log's segment is not.
    let long = |i: u8| vec![i; 7_000];
    let mut tables = Vec::new();
    for i in 0..8 {
        tables.push(table(&disk, &hooks, &[(&long(i), b"ingested")]));
    }
    hooks.pause_compaction(true);
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    for table in tables {
        hooks.ingest(&a, vec![table]).unwrap();
        if hooks.pending_edit_count() > 0 {
            break;
        }
    }
    let waits = (hooks.pending_edit_count(), hooks.unsettled_run_count(&a));
    assert_eq!(waits, (1, 1), "every edit found room");
    let count = a.iter().unwrap().count();
    disk.memory.set_capacity(None);
    rt.sleep(Duration::from_secs(5));
    let waits = (hooks.pending_edit_count(), hooks.unsettled_run_count(&a));
    assert_eq!(waits, (0, 0), "there is room, and it does not settle");
    hooks.pause_compaction(false);
    for i in 0..6 {
        a.put(&key(i), b"v").unwrap();
        a.flush().unwrap();
    }
    store.wait_until_idle().unwrap();
    assert_eq!(a.iter().unwrap().count(), count + 6);
    assert!(
        stats_of(&store, "a").levels[0].run_count <= 2,
        "the ingest holds everything up: {:?}",
        stats_of(&store, "a")
    );
    let back = disk.kill().open().keyspace("a").unwrap();
    assert_eq!(back.iter().unwrap().count(), count + 6);
}

/// Ingests over an empty memtable, between writes of others, behind a source that does not come down: their runs merge among themselves.
fn ingests_leave_no_holes(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    a.put(b"held", b"v").unwrap();
    hooks.seal_and_hold(&a).unwrap();
    for i in 0..12 {
        b.put(&key(i), b"v").unwrap();
        ingest(&disk, &hooks, &a, &[(&key(i), b"v")]);
    }
    store.wait_until_idle().unwrap();
    let runs = stats_of(&store, "a").levels[0].run_count;
    assert!(runs < 8, "{runs} runs that nothing can merge");
    hooks.release(&a);
    a.flush().unwrap();
    assert_eq!(a.iter().unwrap().count(), 13);
}

/// An ingest over two keyspaces waits for room in the manifest, and one of them is dropped. The run
/// of the other one stays, now and after a crash, whether the edit has found room by then or not.
fn a_drop_leaves_its_neighbours_ingest(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        log_segment_bytes: 512 << 10,
        ..small()
    });
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    store.sync_log().unwrap();
    // As in `a_pending_ingest_settles`: edits soon have no room, records do.
    let long = |i: u8| vec![i; 7_000];
    let mut tables = Vec::new();
    for i in 0..8 {
        let one = table(&disk, &hooks, &[(&long(i), b"ingested")]);
        tables.push((one, table(&disk, &hooks, &[(&long(i), b"ingested")])));
    }
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    let mut count = 0;
    for (of_a, of_b) in tables {
        hooks
            .ingest_all(vec![(&a, vec![vec![of_a]]), (&b, vec![vec![of_b]])])
            .unwrap();
        count += 1;
        if hooks.pending_edit_count() > 0 {
            break;
        }
    }
    assert_eq!(hooks.pending_edit_count(), 1, "every edit found room");
    let pinned = hooks.state().log_start.segment;
    store.drop_keyspace("b").unwrap();
    assert_eq!(a.iter().unwrap().count(), count);
    let crashed = disk.kill();
    if seed.is_multiple_of(2) {
        // The edit is to find room.
        disk.memory.set_capacity(None);
        rt.sleep(Duration::from_secs(5));
        assert_eq!(hooks.pending_edit_count(), 0);
        assert_eq!(hooks.unsettled_run_count(&a), 0);
        // Its pin is gone with it.
        for i in 0..600 {
            a.put(&key(i % 20), &[7; 2000]).unwrap();
        }
        a.flush().unwrap();
        assert!(
            hooks.state().log_start.segment > pinned,
            "something keeps the log"
        );
        assert_eq!(a.iter().unwrap().count(), count + 20);
    }
    let images = [crashed.unlimited(), disk.lose_power().unlimited()];
    for image in images {
        let after = image.open();
        assert!(after.keyspace("b").is_err(), "the drop was acknowledged");
        let a = after.keyspace("a").unwrap();
        let found = a.iter().unwrap().map(Result::unwrap);
        let ingested = found.filter(|(_, v)| v == b"ingested").count();
        assert_eq!(ingested, count, "an acknowledged ingest is lost");
    }
}

/// One record brings one run to `a` and three to `b`. The memtables that follow begin where the
/// slots end.
fn runs_of_several_keyspaces_meet(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    a.put(b"held", b"v").unwrap();
    hooks.seal_and_hold(&a).unwrap();
    for i in 0..6 {
        let tables: Vec<_> = (0..4)
            .map(|n| vec![table(&disk, &hooks, &[(b"k", &[i, n])])])
            .collect();
        let (of_a, of_b) = tables.split_at(1);
        hooks
            .ingest_all(vec![(&a, of_a.to_vec()), (&b, of_b.to_vec())])
            .unwrap();
        a.put(&key(i.into()), b"v").unwrap();
        a.flush().ok();
        assert_eq!(b.get(b"k").unwrap().unwrap(), [i, 3], "the last run wins");
        assert_eq!(a.get(b"k").unwrap().unwrap(), [i, 0]);
    }
    let slots = |ks: &Keyspace| -> Vec<_> {
        let version = hooks.version(ks).unwrap();
        version.runs().iter().map(|r| r.seqs).collect()
    };
    store.wait_until_idle().unwrap();
    for keyspace in [&a, &b] {
        let slots = slots(keyspace);
        assert!(slots.windows(2).all(|w| w[0].lo == w[1].hi), "{slots:?}");
    }
    hooks.release(&a);
    store.flush().unwrap();
    let back = disk.kill().open();
    assert_eq!(back.keyspace("a").unwrap().iter().unwrap().count(), 8);
    let b = back.keyspace("b").unwrap();
    assert_eq!(b.get(b"k").unwrap().unwrap(), [5, 3]);
}

/// Replay spills a memtable before it meets an ingest whose edit was lost: the ids that it gives collide with nobody's.
fn spilled_ids_lie_above_ingested_ones(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    store.sync_log().unwrap();
    a.put(b"k", b"old").unwrap();
    b.put(b"k", b"b").unwrap();
    hooks.pause_compaction(true);
    // One more id, so that tables' ids meet tables' and not runs'.
    hooks.new_table_id();
    let table = table(&disk, &hooks, &[(b"k", b"ingested")]);
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(60)))
            .named("MANIFEST")
            .for_good(),
    );
    let ingesting = {
        let a = a.clone();
        rt.spawn("ingest", move || hooks.ingest(&a, vec![table]).unwrap())
            .unwrap()
    };
    let mut killed = None;
    for _ in 0..1000 {
        rt.sleep(Duration::from_millis(1));
        if a.get(b"k").unwrap().unwrap() == b"ingested" {
            // Its record is in the log, its edit is on its way.
            store.sync_log().unwrap();
            killed = Some(disk.lose_power());
            break;
        }
    }
    let after = killed.expect("the ingest became visible").open();
    assert_eq!(
        after.keyspace("a").unwrap().get(b"k").unwrap().unwrap(),
        b"ingested"
    );
    assert_eq!(
        after.keyspace("b").unwrap().get(b"k").unwrap().unwrap(),
        b"b"
    );
    ingesting.join().unwrap();
}

/// Replay spills memtables of a keyspace before it meets the drop of it, whose edit was lost: no table of them stays behind.
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

/// A group for an idle keyspace fails for want of room: the keyspace does not keep the log from then on.
fn a_failed_group_pins_nothing(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    for i in 0..40 {
        a.put(&key(i), &[7; 900]).unwrap();
    }
    disk.memory.set_capacity(Some(disk.memory.used_bytes()));
    let big = vec![7; 200_000];
    assert_eq!(b.put(b"k", &big).unwrap_err().kind(), ErrorKind::NoSpace);
    disk.memory.set_capacity(None);
    rt.sleep(Duration::from_secs(5));
    let before = hooks.state().log_start.segment;
    for i in 0..400 {
        a.put(&key(i), &[7; 900]).unwrap();
    }
    a.flush().unwrap();
    assert!(
        hooks.state().log_start.segment > before + 2,
        "an empty keyspace keeps the log from {before} on"
    );
}

/// There is no memory for one keyspace's memtable: the batches that touch it fail, whole, and those that they share a group with do not.
fn a_refused_memtable_fails_its_own_batches(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    // A value that no ordinary memtable holds needs one of its own size.
    let big = vec![7; 400_000];
    hooks.refuse_arenas_from(400_000);
    let writers: Vec<_> = (0..6u64)
        .map(|w| {
            let (store, a, b, big) = (store.clone(), a.clone(), b.clone(), big.clone());
            let write = move || {
                for i in 0..20 {
                    let mut batch = Batch::new();
                    batch.put(&a, &key(w * 100 + i), b"small").unwrap();
                    // The last writer asks for what is refused; the one before touches the same keyspace, and has room there
                    // unless they share a group.
                    if w >= 4 {
                        let value = if w == 5 { &big[..] } else { b"small" };
                        batch.put(&b, &key(w * 100 + i), value).unwrap();
                    }
                    match (w, store.write(&batch, WriteOptions::default())) {
                        (0..=3, result) => result.expect("it touches no refused keyspace"),
                        (4, Ok(())) => {}
                        (_, result) => {
                            let error = result.expect_err("there is no memory for it");
                            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                        }
                    }
                }
            };
            rt.spawn("writer", write).unwrap()
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    let look = |a: &Keyspace, b: &Keyspace, when: &str| {
        for w in 0..6u64 {
            for i in 0..20 {
                let of_a = a.get(&key(w * 100 + i)).unwrap().is_some();
                let of_b = b.get(&key(w * 100 + i)).unwrap().is_some();
                match w {
                    0..=3 => assert!(of_a, "{when}: {w}, {i} was acknowledged"),
                    4 => assert_eq!(of_a, of_b, "{when}: half of a batch, {i}"),
                    _ => assert!(!of_a && !of_b, "{when}: {i} was refused"),
                }
            }
        }
    };
    look(&a, &b, "before a crash");
    hooks.refuse_arenas_from(usize::MAX);
    b.put(b"k", &big).unwrap();
    let after = disk.kill().open();
    let again = (after.keyspace("a").unwrap(), after.keyspace("b").unwrap());
    look(&again.0, &again.1, "after a crash");
    assert_eq!(again.1.get(b"k").unwrap().unwrap().len(), big.len());
}

/// An ingest into a keyspace that was dropped since: its files are gone, the log still has the record, and the store is healthy.
fn an_ingest_of_a_dropped_keyspace_is_not_missed(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.core_for_tests();
    let (a, b) = two(&store);
    a.put(b"pins", b"the log").unwrap();
    ingest(&disk, &hooks, &b, &[(b"k", b"ingested")]);
    store.drop_keyspace("b").unwrap();
    hooks.delete_obsolete();
    assert_eq!(disk.names(".tbl"), Vec::<String>::new());
    let after = disk.kill().open();
    assert_eq!(
        after.keyspace("a").unwrap().get(b"pins").unwrap().unwrap(),
        b"the log"
    );
    assert!(after.keyspace("b").is_err());
}

/// A full disk comes and passes under many writers: each is told that it worked, or `NoSpace`, and nothing else.
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
                    // Often, and on the grid of the store's own tries: some ask while the answer changes.
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

/// Keyspaces that only the log knows; the store is opened on a full disk; one of them is dropped. It stays dropped, and the other stays.
fn a_drop_of_what_only_the_log_knows(rt: Runtime, seed: u64) {
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

/// A flush of a keyspace whose memtable is empty synced nothing: what its caller had written to another keyspace was lost with the power, and so was
/// an ingest into this one that everybody saw already and whose own call was still on its way.
fn a_flush_of_nothing_is_a_promise_too(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        sync: SyncMode::Never,
        ..small()
    });
    let (a, b) = two(&store);
    let mut ingester = None;
    match seed {
        0 => b.put(b"k", b"v").unwrap(),
        _ => {
            let hooks = store.core_for_tests();
            let file = table(&disk, &hooks, &[(b"k", b"v")]);
            // Its record is written and seen; its call waits for the log's sync.
            disk.faults
                .add(Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(20))).named(LOG));
            let into = b.clone();
            let ingest = move || {
                hooks.ingest(&into, vec![file]).unwrap();
            };
            ingester = Some(rt.spawn("ingester", ingest).unwrap());
            while b.get(b"k").unwrap().is_none() {
                rt.sleep(Duration::from_millis(10));
            }
        }
    }
    let flushed = if seed == 0 { &a } else { &b };
    flushed.flush().unwrap();
    let back = disk.lose_power().open();
    let found = back.keyspace("b").unwrap().get(b"k").unwrap();
    assert_eq!(
        found.as_deref(),
        Some(&b"v"[..]),
        "seen before a flush, gone"
    );
    ingester.into_iter().for_each(|task| task.join().unwrap());
}

/// A flush whose keyspace was being dropped came back at once, though the drop was not durable: when power failed then, the keyspace was there again
/// without what had been flushed.
fn a_flush_beside_a_drop_keeps_its_promise(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let (_, b) = two(&store);
    b.put(b"k", b"flushed").unwrap();
    rt.sleep(Duration::from_secs(3));
    disk.faults.add(
        Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(2)))
            .named(LOG)
            .for_good(),
    );
    let flusher = {
        let b = b.clone();
        rt.spawn("flusher", move || b.flush()).unwrap()
    };
    while disk.faults.fired().is_empty() {
        rt.sleep(Duration::from_millis(10));
    }
    let dropper = {
        let store = store.clone();
        rt.spawn("dropper", move || store.drop_keyspace("b").unwrap())
            .unwrap()
    };
    let flushed = flusher.join().unwrap();
    let after = disk.lose_power().open();
    if let (Ok(()), Ok(b)) = (flushed, after.keyspace("b")) {
        assert_eq!(
            b.get(b"k").unwrap().as_deref(),
            Some(&b"flushed"[..]),
            "the drop was not durable, and what was flushed is gone"
        );
    }
    dropper.join().unwrap();
}

/// The interval's sync was one step of the task that does all maintenance: while that zeroed a segment, unlinked what was dropped or waited for the
/// manifest, nothing was synced, and power took what was acknowledged long before.
fn the_intervals_sync_waits_for_nobody(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        sync: SyncMode::Interval(Duration::from_millis(10)),
        memtable_bytes: 8 << 20,
        log_segment_bytes: 1 << 20,
        ..small()
    });
    let ks = store.keyspace("default").unwrap();
    let doomed = store.create_keyspace("doomed").unwrap();
    doomed.put(b"k", b"v").unwrap();
    store.flush().unwrap();
    rt.sleep(Duration::from_secs(3));
    let slow = Fault::Delay(Duration::from_secs(20));
    let mut count = 0;
    let mut put = || {
        ks.put(&key(count), &[1; 1000]).unwrap();
        count += 1;
        count
    };
    let mut flusher = None;
    match seed {
        0 => {
            disk.faults
                .add(Rule::on(OpKind::Reserve, slow).named(LOG).for_good());
            while disk.faults.fired().is_empty() {
                if put() % 50 == 0 {
                    rt.sleep(Duration::from_millis(1));
                }
            }
        }
        1 => {
            disk.faults.add(Rule::on(OpKind::Delete, slow).for_good());
            store.drop_keyspace("doomed").unwrap();
            drop(doomed);
            while disk.faults.fired().is_empty() {
                rt.sleep(Duration::from_millis(1));
            }
        }
        _ => {
            disk.faults
                .add(Rule::on(OpKind::Sync, slow).named("MANIFEST").for_good());
            put();
            let store = store.clone();
            let flush = move || {
                let _ = store.flush();
            };
            flusher = Some(rt.spawn("flusher", flush).unwrap());
            while disk.faults.fired().is_empty() {
                rt.sleep(Duration::from_millis(1));
            }
        }
    }
    rt.sleep(Duration::from_millis(500));
    let acknowledged = put();
    rt.sleep(Duration::from_millis(11));
    // Nothing is written any more: nothing is to be synced, and nobody wakes for it.
    let syncs = store.stats().log.sync_count;
    let back = disk.lose_power().open();
    rt.sleep(Duration::from_secs(1));
    assert_eq!(store.stats().log.sync_count, syncs, "synced for nothing");
    let found = prefix_len(&back.keyspace("default").unwrap());
    assert_eq!(
        found, acknowledged,
        "what was acknowledged longer ago than the interval is gone"
    );
    disk.faults.disarm();
    if let Some(flusher) = flusher {
        flusher.join().unwrap();
    }
}

/// An open on a full disk syncs the log that it inherited, because the manifest is about to name what was created in it. The sync fails, the open too;
/// the next open's sync found nothing left to write and succeeded, and power took the records before a create that the manifest had.
fn a_failed_sync_of_the_inherited_log_is_not_believed_later(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    rt.sleep(Duration::from_secs(3));
    let (a, b) = two(&store);
    let slow = Fault::Delay(Duration::from_secs(600));
    disk.faults
        .add(Rule::on(OpKind::Sync, slow).named(LOG).for_good());
    let count = 250;
    for i in 0..count {
        put_in_all(&store, &[&a, &b], &key(i), &[7; 900], NO_SYNC);
    }
    let creating = store.clone();
    let _creator = rt
        .spawn("creator", move || {
            let _ = creating.create_keyspace("c");
        })
        .unwrap();
    while store.keyspace("c").is_err() {
        rt.sleep(Duration::from_millis(10));
    }
    let full = disk.kill();
    disk.faults.disarm();
    full.memory.set_capacity(Some(full.memory.used_bytes()));
    for _ in 0..=seed {
        full.faults.clear();
        let fail = Fault::Fail(StorageErrorKind::Io);
        full.faults.add(Rule::on(OpKind::Sync, fail).named(LOG));
        let error = full.try_open(small()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        assert_eq!(full.faults.fired_count(0), 1);
    }
    let again = full.open();
    assert_ne!(again.stats().health, "good", "there was room");
    let dark = full.lose_power();
    dark.memory.set_capacity(None);
    let back = dark.open();
    assert!(back.keyspace("c").is_ok(), "the manifest had it");
    for name in ["a", "b"] {
        let found = prefix_len(&back.keyspace(name).unwrap());
        assert_eq!(found, count, "records before the create of `c`");
    }
}
