//! Stories about ingests: their edits, their runs, the ids of their tables, and drops beside them.
//! `docs/stories.md` describes them.

use std::time::Duration;

use siltstone::{Keyspace, Options};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_pending_ingest_is_installed_when_there_is_room",
        2,
        a_pending_ingest_is_installed_when_there_is_room,
    ),
    ("ingests_leave_no_holes", 2, ingests_leave_no_holes),
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
    (
        "spilled_ids_lie_above_ingested_ones",
        2,
        spilled_ids_lie_above_ingested_ones,
    ),
    (
        "an_ingest_of_a_dropped_keyspace_is_not_missed",
        2,
        an_ingest_of_a_dropped_keyspace_is_not_missed,
    ),
];

/// An ingest's edit finds no room and is committed later by maintenance. Its keyspace works on as
/// usual.
fn a_pending_ingest_is_installed_when_there_is_room(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        l0_trigger_count: 2,
        log_segment_bytes: 512 << 10,
        ..small()
    });
    let hooks = store.test_hooks();
    let (a, _) = two(&store);
    // Each record and each edit holds its table's key four times. The space that was written ahead
    // for the manifest is soon used up, and that of the log's segment is not.
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

/// Ingests over an empty memtable, between writes to another keyspace, behind a memtable that is
/// not flushed: their runs are merged among themselves.
fn ingests_leave_no_holes(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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
    let hooks = store.test_hooks();
    let (a, b) = two(&store);
    store.sync_log().unwrap();
    // As in `a_pending_ingest_is_installed_when_there_is_room`: edits soon have no room, but
    // records do.
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
    let hooks = store.test_hooks();
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

/// Replay writes a memtable to tables before it reaches an ingest whose edit was lost. The ids that
/// replay gives must differ from those of the ingest.
fn spilled_ids_lie_above_ingested_ones(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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

/// An ingest into a keyspace that was dropped since: its files are gone, the log still has the
/// record, and the store is sound.
fn an_ingest_of_a_dropped_keyspace_is_not_missed(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open();
    let hooks = store.test_hooks();
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
