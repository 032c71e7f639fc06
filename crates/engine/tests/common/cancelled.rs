//! Jobs that are cancelled in the middle: by a close, by the drop of the last handle, or by the
//! drop of their keyspace, at every storage call of the job in turn. Nothing is installed in part,
//! nothing is left behind, and the store continues.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone::manifest::recover;
use siltstone::{Keyspace, Options, Store};
use siltstone_storage::Runtime;
use siltstone_storage::fault::{Fault, Rule};

use super::*;

pub const ALL: &[Story] = &[
    ("a_close_in_a_job", 2, a_close_in_a_job),
    ("the_last_handle_in_a_job", 2, the_last_handle_in_a_job),
    ("a_drop_in_a_job", 2, a_drop_in_a_job),
];

/// How long the storage call takes during which the job is cancelled.
pub(super) const IN_THE_CALL: Duration = Duration::from_secs(20);

/// A job makes at least this number of calls.
const CALLS_MIN: u64 = 20;

fn options(seed: u64) -> Options {
    Options {
        // With other tasks of the same job, or alone.
        subjobs_max: 1 + seed as u32 % 2 * 3,
        l0_trigger_count: 2,
        ..small()
    }
}

/// A store with three runs in keyspace `a` and one sealed memtable that may be flushed, and its
/// contents. Nothing runs.
fn at_rest(disk: &Disk, seed: u64) -> (Store, Keyspace, BTreeMap<Vec<u8>, Vec<u8>>) {
    let store = disk.open_with(options(seed));
    let hooks = store.test_hooks();
    hooks.pause_compaction(true);
    let (a, b) = two(&store);
    b.put(b"beside", b"it").unwrap();
    let mut model = BTreeMap::new();
    for run in 0..3u64 {
        for i in 0..40 {
            let (key, value) = (key(i * 3 % 100 + run), vec![run as u8; 900]);
            a.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        a.flush().unwrap();
    }
    store.sync_log().unwrap();
    // Segments and reserves are ready, and obsolete files are deleted, so the next calls are those
    // of the job.
    disk.rt.sleep(Duration::from_secs(3));
    (store, a, model)
}

/// The names of the store's tables, according to the manifest on the disk.
pub(super) fn named(disk: &Disk) -> BTreeSet<String> {
    let state = recover(&disk.memory).unwrap().unwrap().state;
    let names = |id| {
        let tables = state.keyspace(id).into_iter();
        tables.flat_map(|k| k.version.tables().map(|(_, t)| t.name.clone()))
    };
    (0..8).flat_map(names).collect()
}

pub(super) fn found(disk: &Disk) -> BTreeSet<String> {
    disk.names(".tbl").into_iter().collect()
}

/// Starts a compaction whose `call`-th storage call takes long. Returns false if it has fewer
/// calls.
fn start_slow_compaction(disk: &Disk, hooks: &TestHooks, call: u64) -> bool {
    let rule = disk
        .faults
        .add(Rule::on_any(Fault::Delay(IN_THE_CALL)).nth(call));
    hooks.pause_compaction(false);
    disk.rt.sleep(Duration::from_millis(500));
    disk.faults.fired_count(rule) == 1
}

/// The store is opened again, has everything, and merges what was not merged.
fn goes_on(disk: &Disk, seed: u64, model: &BTreeMap<Vec<u8>, Vec<u8>>, when: &str) {
    let store = disk.open_with(options(seed));
    let a = store.keyspace("a").unwrap();
    check(&a, model, when);
    a.put(b"after", b"it").unwrap();
    a.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(a.iter().unwrap().count(), model.len() + 1, "{when}");
    store.test_hooks().delete_obsolete();
    // Maintenance may be deleting the same files, to which nothing else refers any more.
    disk.rt.sleep(Duration::from_secs(3));
    assert_eq!(named(disk), found(disk), "{when}");
    store.close().unwrap();
}

/// Cancels the job in each of its calls until there are no more. `end` ends the store.
fn in_every_call(rt: &Runtime, seed: u64, end: impl Fn(Store, Keyspace, &str)) {
    let (mut cancelled, mut installed) = (0, 0);
    for call in 0.. {
        let disk = Disk::new(rt);
        let (store, a, model) = at_rest(&disk, seed);
        let when = format!("cancelled in call {call}");
        let before = (named(&disk), found(&disk));
        assert_eq!(before.0, before.1);
        if !start_slow_compaction(&disk, &store.test_hooks(), call) {
            assert!(call >= CALLS_MIN, "the job has {call} calls");
            break;
        }
        end(store, a, &when);
        disk.faults.clear();
        let after = (named(&disk), found(&disk));
        if after.0 == before.0 {
            cancelled += 1;
            assert_eq!(after.1, before.1, "{when}: something is left behind");
        } else {
            installed += 1;
            let new = |tables: &BTreeSet<String>| tables.difference(&before.1).cloned().collect();
            let (named, found): (Vec<_>, Vec<_>) = (new(&after.0), new(&after.1));
            assert_eq!(found, named, "{when}");
        }
        goes_on(&disk, seed, &model, &when);
    }
    assert!(
        cancelled > 10 && installed > 0,
        "{cancelled} cancelled, {installed} installed"
    );
}

fn a_close_in_a_job(rt: Runtime, seed: u64) {
    in_every_call(&rt, seed, |store, a, when| {
        drop(a);
        store.clone().close().unwrap();
        let failed = store.stats().counter("job_failed_count");
        assert_eq!(failed, 0, "{when}: a cancelled job has not failed");
    });
}

fn the_last_handle_in_a_job(rt: Runtime, seed: u64) {
    in_every_call(&rt, seed, |store, a, _| drop((a, store)));
}

fn a_drop_in_a_job(rt: Runtime, seed: u64) {
    let mut met = 0;
    for call in 0.. {
        let disk = Disk::new(&rt);
        let (store, a, _) = at_rest(&disk, seed);
        let hooks = store.test_hooks();
        let when = format!("dropped in call {call}");
        if !start_slow_compaction(&disk, &hooks, call) {
            break;
        }
        met += 1;
        store.drop_keyspace("a").unwrap();
        drop(a);
        disk.faults.clear();
        let b = store.keyspace("b").unwrap();
        for i in 0..40 {
            b.put(&key(i), &[9; 900]).unwrap();
        }
        b.flush().unwrap();
        store.wait_until_idle().unwrap();
        // The slow call may be a deletion by maintenance.
        rt.sleep(2 * IN_THE_CALL);
        hooks.delete_obsolete();
        assert_eq!(named(&disk), found(&disk), "{when}");
        assert_eq!(b.iter().unwrap().count(), 41);
        drop(b);
        drop(store);
        let again = disk.open();
        assert_eq!(again.keyspaces(), ["b", "default"], "{when}");
        assert_eq!(again.keyspace("b").unwrap().iter().unwrap().count(), 41);
    }
    assert!(met >= CALLS_MIN, "the job has {met} calls");
}
