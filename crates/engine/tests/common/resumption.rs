//! Compactions that fail and resume behind the tables that they finished: the result is that of an
//! undisturbed one, nothing happens in between, and nothing is left behind, whatever ends them.

use std::collections::BTreeMap;
use std::time::Duration;

use siltstone::{Keyspace, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

use super::cancelled::{IN_THE_CALL, found, named};
use super::*;

pub const ALL: &[Story] = &[
    (
        "a_failed_compaction_resumes",
        2,
        a_failed_compaction_resumes,
    ),
    (
        "nothing_is_adopted_after_a_failed_sync",
        2,
        nothing_is_adopted_after_a_failed_sync,
    ),
    (
        "a_compaction_that_ends_between_attempts_leaves_nothing",
        2,
        a_compaction_that_ends_between_attempts_leaves_nothing,
    ),
    (
        "nothing_gets_between_two_attempts",
        2,
        nothing_gets_between_two_attempts,
    ),
    (
        "power_is_lost_in_a_second_attempt",
        2,
        power_is_lost_in_a_second_attempt,
    ),
];

const IO: Fault = Fault::Fail(StorageErrorKind::Io);

/// A time between a failed attempt and the next one, which comes after 100 ms. The job itself takes
/// no simulated time.
const BETWEEN: Duration = Duration::from_millis(50);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> Options {
    Options {
        subjobs_max: 1,
        l0_trigger_count: 2,
        background_tasks: 2,
        ..small()
    }
}

/// A store with four runs of a dozen tables altogether, and range deletes, in keyspace `a`. Nothing
/// was compacted yet.
fn at_rest(disk: &Disk) -> (Store, Keyspace, Model) {
    let store = disk.open_with(options());
    store.test_hooks().pause_compaction(true);
    let (a, b) = two(&store);
    b.put(b"beside", b"it").unwrap();
    let mut model = Model::new();
    for run in 0..4u64 {
        for i in 0..240 {
            let (key, value) = (
                key((i * 3 + run * 7) % 800),
                vec![(run * 50 + i % 50) as u8; 800],
            );
            a.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        let (start, end) = (key(run * 150 + 20), key(run * 150 + 35));
        a.delete_range(&start, &end).unwrap();
        model.retain(|k, _| *k < start || *k >= end);
        a.flush().unwrap();
    }
    store.sync_log().unwrap();
    // Segments and reserves are ready, and obsolete files are deleted, so the next calls are those
    // of the job.
    disk.rt.sleep(Duration::from_secs(3));
    (store, a, model)
}

/// Starts the compaction, which fails when it creates its `k`-th table. The store is then between
/// two attempts.
fn fail_at(disk: &Disk, store: &Store, k: u64) {
    let rule = disk.faults.add(Rule::on(OpKind::Create, IO).nth(k));
    store.test_hooks().pause_compaction(false);
    disk.rt.sleep(BETWEEN);
    assert_eq!(disk.faults.fired_count(rule), 1, "{k}");
    assert!(disk.faults.fired()[0].name.ends_with(".tbl"));
    disk.faults.clear();
}

fn counted(store: &Store) -> [u64; 3] {
    let stats = store.stats();
    [
        "job_failed_count",
        "resumed_job_count",
        "adopted_table_count",
    ]
    .map(|c| stats.counter(c))
}

/// The contents of the tables of level 1 and deeper, without their names.
fn tables(store: &Store, keyspace: &Keyspace) -> Vec<(u64, u128, Vec<u8>)> {
    let version = store.test_hooks().version(keyspace).unwrap();
    let tables = version.tables().map(|(_, t)| t);
    tables
        .map(|t| (t.entries, t.digest, t.bounds.start.to_vec()))
        .collect()
}

/// The files agree with the manifest, now and after the store is opened again, which has
/// everything.
fn ends_well(disk: &Disk, store: Store, model: &Model, when: &str) {
    // The task that ended the job lets go of its inputs.
    disk.rt.sleep(Duration::from_secs(1));
    store.test_hooks().delete_obsolete();
    // Maintenance may be deleting the same files, to which nothing else refers any more.
    disk.rt.sleep(Duration::from_secs(3));
    assert_eq!(named(disk), found(disk), "{when}");
    store.close().unwrap();
    let store = disk.open_with(options());
    check(&store.keyspace("a").unwrap(), model, when);
    store.wait_until_idle().unwrap();
    store.test_hooks().delete_obsolete();
    assert_eq!(named(disk), found(disk), "{when}: the next life");
    store.close().unwrap();
}

fn a_failed_compaction_resumes(rt: Runtime, _: u64) {
    let undisturbed = {
        let disk = Disk::new(&rt);
        let (store, a, _) = at_rest(&disk);
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        assert_eq!(counted(&store), [0, 0, 0]);
        tables(&store, &a)
    };
    let mut most = 0;
    for k in 0..20 {
        let disk = Disk::new(&rt);
        let (store, a, model) = at_rest(&disk);
        let rule = disk.faults.add(Rule::on(OpKind::Create, IO).nth(k));
        store.test_hooks().pause_compaction(false);
        rt.sleep(BETWEEN);
        let when = format!("{k} tables");
        if disk.faults.fired_count(rule) == 0 || counted(&store)[0] == 0 {
            break;
        }
        disk.faults.clear();
        // Reads and snapshots see everything in between.
        check(&a, &model, &when);
        store.wait_until_idle().unwrap();
        let [failed, resumed, adopted] = counted(&store);
        assert_eq!((failed, resumed), (1, u64::from(adopted > 0)), "{when}");
        if adopted == k {
            most = k;
        } else {
            // The job that failed was not the first that ran.
            assert!(adopted < k, "{when}: {adopted}");
        }
        assert_eq!(tables(&store, &a), undisturbed, "{when}");
        check(&a, &model, &when);
        drop(a);
        ends_well(&disk, store, &model, &when);
    }
    assert!(most >= 5, "{most}");
}

fn nothing_is_adopted_after_a_failed_sync(rt: Runtime, _: u64) {
    let mut met = 0;
    for (kind, n) in [(OpKind::Sync, 3), (OpKind::Sync, 1)] {
        let disk = Disk::new(&rt);
        let (store, a, model) = at_rest(&disk);
        let rule = disk.faults.add(Rule::on(kind, IO).nth(n));
        store.test_hooks().pause_compaction(false);
        rt.sleep(BETWEEN);
        assert_eq!(disk.faults.fired_count(rule), 1);
        let fired = disk.faults.fired()[0].name.clone();
        disk.faults.clear();
        assert!(fired.ends_with(".tbl"), "{fired}");
        store.test_hooks().delete_obsolete();
        assert_eq!(
            named(&disk),
            found(&disk),
            "nothing is kept for another attempt"
        );
        store.wait_until_idle().unwrap();
        assert_eq!(counted(&store), [1, 0, 0]);
        met += 1;
        drop(a);
        ends_well(&disk, store, &model, "after a failed sync");
    }
    assert_eq!(met, 2);
}

fn a_compaction_that_ends_between_attempts_leaves_nothing(rt: Runtime, _: u64) {
    for end in ["drop", "close", "last handle", "pause"] {
        let disk = Disk::new(&rt);
        let (store, a, model) = at_rest(&disk);
        fail_at(&disk, &store, 4);
        let left = found(&disk).len() - named(&disk).len();
        assert_eq!(
            left, 4,
            "{end}: its finished tables are kept for the next attempt"
        );
        assert_eq!(store.stats().jobs.len(), 1, "{end}: and its reservation");
        let disk = disk.clone();
        match end {
            "drop" => {
                store.drop_keyspace("a").unwrap();
                drop(a);
                store.wait_until_idle().unwrap();
                store.test_hooks().delete_obsolete();
                assert_eq!(named(&disk), found(&disk), "{end}");
                assert_eq!(counted(&store), [1, 0, 0]);
                assert_eq!(store.keyspace("b").unwrap().iter().unwrap().count(), 1);
                store.close().unwrap();
                let store = disk.open_with(options());
                assert_eq!(store.keyspaces(), ["b", "default"]);
                continue;
            }
            "close" => {
                store.clone().close().unwrap();
                drop((a, store));
            }
            "last handle" => drop((a, store)),
            _ => {
                store.test_hooks().pause_compaction(true);
                rt.sleep(Duration::from_secs(2));
                assert_eq!(named(&disk), found(&disk), "{end}");
                assert_eq!(store.stats().jobs.len(), 0);
                store.test_hooks().pause_compaction(false);
                store.wait_until_idle().unwrap();
                assert_eq!(counted(&store), [1, 0, 0], "it began anew");
                drop(a);
                ends_well(&disk, store, &model, end);
                continue;
            }
        }
        assert_eq!(named(&disk), found(&disk), "{end}");
        let store = disk.open_with(options());
        store.wait_until_idle().unwrap();
        ends_well(&disk, store, &model, end);
    }
}

fn nothing_gets_between_two_attempts(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let (store, a, mut model) = at_rest(&disk);
    let old = store.snapshot();
    let before = model.clone();
    fail_at(&disk, &store, 3 + seed);
    // Between the attempts: newer data in the same range, a range delete over it, a snapshot, a
    // flush, and a caller that asks for a compaction of everything.
    for i in 0..100 {
        a.put(&key(i * 5), b"newer").unwrap();
        model.insert(key(i * 5), b"newer".to_vec());
    }
    a.delete_range(&key(300), &key(340)).unwrap();
    model.retain(|k, _| *k < key(300) || *k >= key(340));
    let new = store.snapshot();
    let at_new = model.clone();
    a.flush().unwrap();
    let asks = {
        let a = a.clone();
        rt.spawn("asks", move || a.compact_range(None, None).unwrap())
            .unwrap()
    };
    for i in 0..50 {
        a.delete(&key(i * 10)).unwrap();
        model.remove(&key(i * 10));
    }
    asks.join().unwrap();
    store.wait_until_idle().unwrap();
    let [failed, resumed, adopted] = counted(&store);
    assert_eq!((failed, resumed, adopted), (1, 1, 3 + seed));
    check(&a, &model, "after the compaction");
    for (snapshot, model) in [(&old, &before), (&new, &at_new)] {
        for i in 0..800 {
            let found = a.get_at(snapshot, &key(i)).unwrap();
            assert_eq!(found.as_ref(), model.get(&key(i)), "{i}");
        }
    }
    drop((old, new, a));
    ends_well(&disk, store, &model, "between");
}

fn power_is_lost_in_a_second_attempt(rt: Runtime, seed: u64) {
    let mut met = 0;
    for call in 0.. {
        let disk = Disk::new(&rt);
        let (store, a, model) = at_rest(&disk);
        fail_at(&disk, &store, 5);
        // Only every third call, to keep the story short. The seeds take different ones.
        let rule = Rule::on_any(Fault::Delay(IN_THE_CALL)).nth(call * 3 + seed);
        let rule = disk.faults.add(rule);
        rt.sleep(Duration::from_secs(1));
        if disk.faults.fired_count(rule) == 0 {
            break;
        }
        met += 1;
        let when = format!("call {call}, {:?}", disk.faults.fired()[0]);
        for after in [disk.lose_power(), disk.kill()] {
            let store = after.open_with(options());
            check(&store.keyspace("a").unwrap(), &model, &when);
            store.wait_until_idle().unwrap();
            ends_well(&after, store, &model, &when);
        }
        disk.faults.clear();
        drop((a, store));
    }
    assert!(met >= 10, "{met}");
}
