//! Stories about what was promised: what is acknowledged as synced or flushed survives the loss of
//! power, whatever fails or goes on beside it. `docs/stories.md` describes them.

use std::time::Duration;

use siltstone::log::format::segment_name;
use siltstone::{Batch, ErrorKind, Options, SyncMode};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[
    ("synced_survives_power_loss", 4, synced_survives_power_loss),
    (
        "a_drop_keeps_the_log_until_it_is_durable",
        6,
        a_drop_keeps_the_log_until_it_is_durable,
    ),
    (
        "a_drop_keeps_the_log_until_its_edit_is_durable",
        6,
        a_drop_keeps_the_log_until_its_edit_is_durable,
    ),
    (
        "a_flush_of_an_empty_memtable_syncs_what_came_before",
        2,
        a_flush_of_an_empty_memtable_syncs_what_came_before,
    ),
    (
        "a_flush_beside_a_drop_keeps_its_promise",
        8,
        a_flush_beside_a_drop_keeps_its_promise,
    ),
    (
        "the_sync_of_the_interval_waits_for_no_other_task",
        3,
        the_sync_of_the_interval_waits_for_no_other_task,
    ),
    (
        "a_failed_sync_of_the_folder_poisons_the_store",
        4,
        a_failed_sync_of_the_folder_poisons_the_store,
    ),
    (
        "a_failed_sync_of_the_inherited_log_is_not_believed_later",
        2,
        a_failed_sync_of_the_inherited_log_is_not_believed_later,
    ),
    (
        "a_missing_start_segment_is_damage",
        1,
        a_missing_start_segment_is_damage,
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

/// While the record of a drop is being synced, another keyspace's flush must not delete the log
/// that the dropped keyspace needs if power fails now.
fn a_drop_keeps_the_log_until_it_is_durable(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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

/// The record of a drop is synced, and its edit waits for a slow manifest. Edits of flushes become
/// durable before it. They must not let the log go that the dropped keyspace needs until the
/// manifest has the drop.
fn a_drop_keeps_the_log_until_its_edit_is_durable(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        background_tasks: 4,
        ..small()
    });
    let (a, b) = two(&store);
    let others = ["c", "d", "e"].map(|name| store.create_keyspace(name).unwrap());
    put_synced(&b, b"k", b"of the dropped one");
    a.put(b"k", b"v").unwrap();
    let slow = Fault::Delay(Duration::from_secs(2));
    let rule = Rule::on(OpKind::Sync, slow).named("MANIFEST").for_good();
    let rule = disk.faults.add(rule);
    let flush = |keyspace: &Keyspace| {
        let keyspace = keyspace.clone();
        rt.spawn("flusher", move || keyspace.flush().unwrap())
            .unwrap()
    };
    let mut tasks = vec![flush(&a)];
    while disk.faults.fired_count(rule) == 0 {
        rt.sleep(Duration::from_millis(10));
    }
    let dropper = {
        let store = store.clone();
        rt.spawn("dropper", move || store.drop_keyspace("b").unwrap())
            .unwrap()
    };
    rt.sleep(Duration::from_millis(100));
    // The log goes on to other segments, so that the drop's record can go.
    for (i, keyspace) in others.iter().enumerate() {
        for i in 0..100 >> (3 * i) {
            keyspace.put(&key(i), &[7; 1000]).unwrap();
        }
        tasks.push(flush(keyspace));
    }
    while !dropper.is_finished() {
        rt.sleep(Duration::from_millis(500));
        let after = disk.lose_power().open();
        if let Ok(b) = after.keyspace("b") {
            let found = b.get(b"k").unwrap();
            assert_eq!(found.as_deref(), Some(&b"of the dropped one"[..]));
        }
    }
    tasks.push(dropper);
    for task in tasks {
        task.join().unwrap();
    }
    assert!(disk.lose_power().open().keyspace("b").is_err());
}

/// A flush of a keyspace whose memtable is empty synced nothing. What its caller had written to
/// another keyspace was lost with the power, and so was an ingest into this keyspace that readers
/// saw already and whose own call had not returned yet.
fn a_flush_of_an_empty_memtable_syncs_what_came_before(rt: Runtime, seed: u64) {
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
            let hooks = store.test_hooks();
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

/// A flush whose keyspace was being dropped returned at once, although the drop was not durable. If
/// power failed then, the keyspace was there again without what had been flushed.
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

/// The interval's sync was one step of the task that does all maintenance. While that task zeroed a
/// segment, deleted dropped files or waited for the manifest, nothing was synced, and a power loss
/// took what was acknowledged long before.
fn the_sync_of_the_interval_waits_for_no_other_task(rt: Runtime, seed: u64) {
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

/// A table's job gets the report of a lost folder: nobody's later sync of it may be believed.
fn a_failed_sync_of_the_folder_poisons_the_store(rt: Runtime, _seed: u64) {
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

/// An open on a full disk syncs the log that it inherited, because the manifest is about to name
/// what was created in it. The sync fails, and so does the open. The sync of the next open found
/// nothing left to write and succeeded, and a power loss took the records before a create that the
/// manifest had.
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

/// The log's first segment was durable before a manifest named it. If it is missing, that is damage
/// and not an empty history.
fn a_missing_start_segment_is_damage(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"v").unwrap();
    let start = store.test_hooks().state().log_start.segment;
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
