//! A second location of tables that is slow, or whose calls hang: nothing of the store waits for
//! it.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::{Folders, Layout};
use common::locations::{Heard, ONE, components, flush_to_both, put_some, redirecting, tables};
use common::{contents, key, simulate};
use siltstone::stall::StallCause;
use siltstone::{Event, Options, Storages, Store};
use siltstone_storage::fault::{Effect, Fault, FaultStorage, Rule};
use siltstone_storage::{OpKind, RatedStorage, Rates, Runtime, Storage, StorageErrorKind};

/// Longer than any test runs.
const HANG: Duration = Duration::from_secs(3600);

/// A store with a second location, whose calls can hang.
struct Hanging {
    store: Store,
    heard: Arc<Heard>,
    second: FaultStorage,
    folders: Folders,
}

impl Hanging {
    fn new(rt: &Runtime, options: Options) -> Hanging {
        let folders = Folders::new(rt);
        let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), rt);
        let storages = Storages {
            redirect: Some(Arc::new(second.clone())),
            ..folders.storages(ONE)
        };
        let heard = Arc::new(Heard::default());
        let store = Store::open_with(components(storages, rt, &heard), options).unwrap();
        Hanging {
            store,
            heard,
            second,
            folders,
        }
    }

    /// A store whose first location takes 2 MiB a second, and whose second one takes these.
    fn pressed(rt: &Runtime, second_bytes_per_s: u64, tasks: u32) -> Hanging {
        let folders = Folders::new(rt);
        let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), rt);
        let slow = |inner: Arc<dyn Storage>, bytes_per_s| -> Arc<dyn Storage> {
            let rates = Rates {
                write_bytes_per_s: bytes_per_s,
                read_bytes_per_s: 0,
                queued_bytes_max: 16 << 10,
                sync_time: Duration::from_micros(100),
            };
            Arc::new(RatedStorage::new(inner, rt, rates))
        };
        let storages = Storages {
            tables: slow(Arc::new(folders.memory[2].clone()), 2 << 20),
            redirect: Some(slow(Arc::new(second.clone()), second_bytes_per_s)),
            ..folders.storages(ONE)
        };
        let options = Options {
            memtable_bytes: 64 << 10,
            background_tasks: tasks,
            ..redirecting()
        };
        let heard = Arc::new(Heard::default());
        let store = Store::open_with(components(storages, rt, &heard), options).unwrap();
        Hanging {
            store,
            heard,
            second,
            folders,
        }
    }

    fn fill(&self, from: u64, count: u64) {
        let keyspace = self.store.default_keyspace().unwrap();
        for i in from..from + count {
            let value = [i as u8; 1000];
            keyspace.put(&key(i * 7919 % 500), &value).unwrap();
        }
    }

    fn redirected(&self) -> u64 {
        self.store.stats().counter("redirected_flush_count")
    }
}

/// The second location, which is much faster, hangs for a minute.
#[test]
fn a_fast_location_that_hangs_leaves_a_flush_for_the_first_one() {
    simulate(|rt| {
        for tasks in [1, 2, 4] {
            let hanging = Hanging::pressed(&rt, 16 << 20, tasks);
            hanging.fill(0, 1500);
            assert!(hanging.redirected() > 0, "{tasks} tasks");
            let begun = rt.now();
            let minute = Duration::from_secs(60);
            let rule = Rule::on(OpKind::Append, Fault::Delay(minute));
            hanging.second.add(rule.until(begun + minute));
            hanging.fill(1500, 2500);
            let took = rt.now().since(begun);
            assert!(hanging.second.fired_count(0) > 0, "{tasks} tasks");
            assert!(took < Duration::from_secs(20), "{tasks} tasks: {took:?}");
        }
    });
}

/// One slow sync at a location that is as fast as the first one otherwise.
#[test]
fn one_slow_flush_does_not_end_the_redirection_for_good() {
    simulate(|rt| {
        let hanging = Hanging::pressed(&rt, 2 << 20, 2);
        let rule = Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(1)));
        hanging.second.add(rule.nth(0));
        hanging.fill(0, 9000);
        assert_eq!(hanging.second.fired_count(0), 1);
        let before = hanging.redirected();
        hanging.store.wait_until_idle().unwrap();
        hanging.fill(9000, 6000);
        let after = hanging.redirected();
        assert!(after > before + 3, "{before} and {after}");
    });
}

/// The times of small flushes are those of their syncs.
#[test]
fn small_flushes_do_not_measure_a_location() {
    simulate(|rt| {
        let hanging = Hanging::pressed(&rt, 4 << 20, 2);
        let hooks = hanging.store.test_hooks();
        let keyspace = hanging.store.default_keyspace().unwrap();
        for location in [1, 0] {
            hooks.force_location(Some(location));
            for i in 0..8 {
                keyspace.put(&key(i), b"x").unwrap();
                hanging.store.flush().unwrap();
            }
        }
        hooks.force_location(None);
        for location in hanging.store.stats().locations {
            assert_eq!(location.flush_bytes_per_s, None);
        }
        let before = hanging.redirected();
        hanging.fill(0, 6000);
        let after = hanging.redirected();
        assert!(after > before + 3, "{before} and {after}");
    });
}

/// Lets each such call at the second location hang.
fn hang(kind: OpKind) -> Rule {
    Rule::on(kind, Fault::Delay(HANG)).for_good()
}

/// One flush at the second location hangs. Its memtable is flushed again at the first one, so it
/// holds neither the log nor level 0, and what the late flush makes is never installed.
#[test]
fn a_flush_that_hangs_is_abandoned() {
    common::with_seeds(8, |rt, seed| {
        let kinds = [OpKind::Create, OpKind::Append, OpKind::Sync, OpKind::Read];
        let tasks = if seed % 8 < 4 { 1 } else { 4 };
        abandon(&rt, kinds[seed as usize % 4], tasks);
    });
}

fn abandon(rt: &Runtime, kind: OpKind, tasks: u32) {
    let hang = Duration::from_secs(120);
    let options = Options {
        log_bytes_max: 1 << 20,
        background_tasks: tasks,
        ..redirecting()
    };
    let hanging = Hanging::new(rt, options);
    let store = &hanging.store;
    let keyspace = store.default_keyspace().unwrap();
    let hooks = store.test_hooks();
    hooks.force_location(Some(1));
    hanging
        .second
        .add(Rule::on(kind, Fault::Delay(hang)).nth(0));
    put_some(&keyspace, 0, 1500, 0);
    rt.sleep(Duration::from_secs(1));
    assert_eq!(hanging.second.fired_count(0), 1, "{kind:?}");
    hooks.force_location(None);
    let begun = rt.now();
    for round in 0..20 {
        put_some(&keyspace, 0, 1000, round);
    }
    let wanted = contents(store);
    // Others go on as if nothing hung.
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    let took = rt.now().since(begun);
    assert!(took < hang / 2, "{kind:?}: {took:?}");
    let stats = store.stats();
    assert_eq!(stats.counter("abandoned_flush_count"), 1, "{kind:?}");
    assert_eq!(stats.jobs_failing, None, "{kind:?}");
    assert_eq!(tables(&hanging.store)[1], 0, "{kind:?}");
    // The late flush ends, and leaves nothing.
    rt.sleep(hang);
    assert_eq!(contents(store), wanted, "{kind:?}");
    assert_eq!(tables(&hanging.store)[1], 0, "{kind:?}");
    let left = hanging.folders.names()[1].clone();
    assert!(
        !left.iter().any(|name| name.ends_with(".tbl")),
        "{kind:?}: {left:?}"
    );
    let stats = store.stats();
    assert_eq!(stats.health, "good", "{kind:?}");
    assert_eq!(stats.jobs_failing, None, "{kind:?}");
    // The location is used again.
    let before = hanging.redirected();
    hooks.force_location(Some(1));
    put_some(&keyspace, 0, 100, 99);
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(hanging.redirected(), before + 1, "{kind:?}");
    hooks.force_location(None);
    let wanted = contents(store);
    drop(keyspace);
    hanging.store.close().unwrap();
    let store = hanging.folders.try_open(ONE.and(1), redirecting());
    assert_eq!(contents(&store.unwrap()), wanted, "{kind:?}");
}

/// A store is closed while a flush hangs at the second location. The close does not wait for it.
#[test]
fn a_close_does_not_wait_for_a_flush_that_hangs() {
    simulate(|rt| {
        let hanging = Hanging::new(&rt, redirecting());
        let keyspace = hanging.store.default_keyspace().unwrap();
        hanging.store.test_hooks().force_location(Some(1));
        hanging.second.add(hang(OpKind::Append));
        put_some(&keyspace, 0, 1500, 0);
        rt.sleep(Duration::from_millis(10));
        assert!(hanging.second.fired_count(0) > 0);
        let wanted = contents(&hanging.store);
        let begun = rt.now();
        drop(keyspace);
        hanging.store.close().unwrap();
        let took = rt.now().since(begun);
        assert!(took < Duration::from_secs(30), "{took:?}");
        let store = hanging.folders.try_open(ONE.and(1), redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        // The call of the store that was closed returns, and changes nothing.
        rt.sleep(HANG);
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        hanging.folders.assert_sound(ONE.and(1));
    });
}

/// Deletions at the second location hang. Those at the first one go on, and so does everything else
/// that maintenance does.
#[test]
fn deletions_that_hang_keep_nothing_else() {
    simulate(|rt| {
        let hanging = Hanging::new(&rt, redirecting());
        let store = &hanging.store;
        flush_to_both(&hanging.store);
        hanging.second.add(hang(OpKind::Delete));
        store.test_hooks().pause_compaction(false);
        rt.sleep(Duration::from_secs(5));
        assert_eq!(tables(&hanging.store)[1], 0);
        assert!(hanging.second.fired_count(0) > 0);
        let keyspace = store.default_keyspace().unwrap();
        for round in 0..20 {
            put_some(&keyspace, 0, 1000, round);
            store.flush().unwrap();
        }
        store.wait_until_idle().unwrap();
        let names = hanging.folders.names();
        let on_disk = names[0].iter().filter(|n| n.ends_with(".tbl")).count();
        assert_eq!(on_disk as u64, tables(&hanging.store)[0]);
        let wanted = contents(store);
        let begun = rt.now();
        drop(keyspace);
        hanging.store.close().unwrap();
        let took = rt.now().since(begun);
        assert!(took < Duration::from_secs(30), "{took:?}");
        // What is left there is deleted by the next open.
        let store = hanging.folders.try_open(ONE.and(1), redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        let left = hanging.folders.names()[1].clone();
        assert!(!left.iter().any(|name| name.ends_with(".tbl")), "{left:?}");
    });
}

/// The question for free bytes hangs. The log is still bounded, which maintenance does.
#[test]
fn free_bytes_that_hang_keep_nothing_else() {
    simulate(|rt| {
        let options = Options {
            log_bytes_max: 256 << 10,
            ..redirecting()
        };
        let hanging = Hanging::new(&rt, options);
        hanging.second.add(hang(OpKind::FreeBytes));
        rt.sleep(Duration::from_secs(3));
        assert!(hanging.second.fired_count(0) > 0);
        let store = &hanging.store;
        let idle = store.open_keyspace("idle").unwrap();
        idle.put(b"a", b"b").unwrap();
        let keyspace = store.default_keyspace().unwrap();
        let begun = rt.now();
        for round in 0..10 {
            put_some(&keyspace, 0, 1000, round);
        }
        let took = rt.now().since(begun);
        assert!(took < Duration::from_secs(20), "{took:?}");
        drop((keyspace, idle));
        let begun = rt.now();
        hanging.store.close().unwrap();
        assert!(rt.now().since(begun) < Duration::from_secs(30));
    });
}

/// A compaction hangs because it reads a table at the second location. Other compactions and
/// flushes go on, and a close does not wait for it.
#[test]
fn a_compaction_that_hangs_keeps_no_task() {
    simulate(|rt| {
        let hanging = Hanging::new(&rt, redirecting());
        let store = &hanging.store;
        flush_to_both(&hanging.store);
        store.test_hooks().close_tables();
        hanging.second.add(hang(OpKind::Read));
        store.test_hooks().pause_compaction(false);
        rt.sleep(Duration::from_secs(10));
        assert!(hanging.second.fired_count(0) > 0);
        let before = store.stats().counter("compaction_count");
        let other = store.open_keyspace("other").unwrap();
        for round in 0..20 {
            put_some(&other, 0, 1000, round);
            other.flush().unwrap();
        }
        rt.sleep(Duration::from_secs(5));
        let after = store.stats().counter("compaction_count");
        assert!(after > before, "{before} and {after}");
        assert_eq!(other.get(&key(1)).unwrap(), Some(vec![19; 200]));
        drop(other);
        let begun = rt.now();
        hanging.store.close().unwrap();
        let took = rt.now().since(begun);
        assert!(took < Duration::from_secs(30), "{took:?}");
    });
}

#[test]
fn a_full_first_location_does_not_slow_writers_to_a_trickle() {
    simulate(|rt| {
        let layout = Layout::of(0, 1).and(2);
        let folders = Folders::new(&rt);
        let store = folders.try_open(layout, redirecting()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        put_some(&keyspace, 0, 3000, 1);
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        let first = &folders.memory[1];
        first.set_capacity(Some(first.used_bytes()));
        rt.sleep(Duration::from_secs(2));
        let begun = rt.now();
        for round in 0..5 {
            put_some(&keyspace, 0, 1000, round);
        }
        let took = rt.now().since(begun);
        assert!(took < Duration::from_secs(10), "{took:?}");
        assert!(store.stats().counter("redirected_flush_count") > 0);
        assert_eq!(store.stats().health, "good");
        // With its log on a full disk, writers are slowed down, however much room is elsewhere.
        let slowed = || store.stats().delay_totals[StallCause::SpaceSlowdown as usize].1;
        let root = &folders.memory[0];
        root.set_capacity(Some(root.used_bytes() + (64 << 10)));
        let before = slowed().count;
        rt.sleep(Duration::from_secs(2));
        put_some(&keyspace, 0, 200, 6);
        assert!(slowed().count > before, "{:?}", slowed());
    });
}

/// Each suspension is reported, with its own length, and the end of the last one.
#[test]
fn each_suspension_is_reported() {
    simulate(|rt| {
        let hanging = Hanging::new(&rt, redirecting());
        let keyspace = hanging.store.default_keyspace().unwrap();
        hanging.store.test_hooks().force_location(Some(1));
        let io = Fault::Fail(StorageErrorKind::Io);
        hanging.second.add(Rule::on(OpKind::Create, io).for_good());
        for round in 0..5 {
            put_some(&keyspace, 0, 100, round);
            hanging.store.flush().unwrap();
        }
        hanging.second.clear();
        put_some(&keyspace, 0, 100, 9);
        hanging.store.flush().unwrap();
        let count = hanging.store.stats().counter("location_suspended_count");
        hanging.store.close().unwrap();
        let heard = hanging.heard.0.lock().unwrap();
        let times = heard.iter().filter_map(|event| match event {
            Event::LocationSuspended { for_us, .. } => *for_us,
            _ => None,
        });
        assert_eq!(
            times.collect::<Vec<_>>(),
            [10_000_000, 20_000_000, 40_000_000]
        );
        assert_eq!(count, 3);
        let again = |e: &&Event| matches!(e, Event::LocationUsedAgain { .. });
        assert_eq!(heard.iter().filter(again).count(), 1);
    });
}

/// Tables with range deletes at a location that cannot be reached: nobody waits for them.
#[test]
fn range_deletes_of_an_unreachable_table_keep_nothing_else() {
    simulate(|rt| {
        let hanging = Hanging::new(&rt, redirecting());
        let store = &hanging.store;
        flush_to_both(&hanging.store);
        store.test_hooks().close_tables();
        let away = Fault::Unreachable {
            limit: Duration::from_secs(30),
            effect: Effect::None,
        };
        hanging.second.add(Rule::on_any(away).for_good());
        let other = store.open_keyspace("other").unwrap();
        put_some(&other, 0, 1000, 1);
        other.flush().unwrap();
        other.delete_range(&key(0), &key(900)).unwrap();
        other.flush().unwrap();
        store.test_hooks().pause_compaction(false);
        let begun = rt.now();
        rt.sleep(Duration::from_secs(300));
        store.wait_until_idle().unwrap();
        assert!(rt.now().since(begun) < Duration::from_secs(600));
        // The compaction for deletes of the other keyspace was done.
        assert_eq!(other.get(&key(950)).unwrap(), Some(vec![1; 200]));
        let entries = |store: &Store| {
            let state = store.test_hooks().state();
            let versions = state.keyspaces.values().map(|k| &k.version);
            let tables = versions.flat_map(|version| version.tables());
            let there = tables.filter(|(_, table)| table.location == 0);
            there.map(|(_, table)| table.range_deletes).sum::<u64>()
        };
        assert!(entries(store) <= 1);
        hanging.second.clear();
    });
}
