//! Tables at two locations: where flushes go, how tables come back, and what failures, full disks
//! and crashes on the way do.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::{Folders, Layout};
use common::locations::{
    Heard, ONE, TWO, components, flush_to_both, put_some, redirecting, table_names, tables,
    with_redirected,
};
use common::{contents, key, simulate, small};
use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{Components, ErrorKind, Event, Options, Storages, Store};
use siltstone_storage::fault::{Effect, Fault, FaultStorage, Rule};
use siltstone_storage::{
    CrashPolicy, MemoryStorage, OpKind, RatedStorage, Rates, Runtime, Storage, StorageErrorKind,
};

/// The layouts with a second location.
const SECOND: [Layout; 4] = [
    TWO,
    Layout::of(1, 0).and(2),
    Layout::of(0, 1).and(2),
    Layout::of(1, 1).and(2),
];

#[test]
fn tables_at_both_locations_are_read_checked_copied_repaired_and_destroyed() {
    simulate(|rt| {
        for layout in SECOND {
            let folders = Folders::new(&rt);
            let store = with_redirected(&folders, layout);
            let wanted = contents(&store);
            assert!(store.verify(&mut |_| ()).unwrap().is_sound());
            let redirect = layout.redirect.unwrap();
            let names = table_names(&folders);
            assert!(!names[redirect].is_empty() && !names[layout.tables].is_empty());
            let stats = store.stats();
            assert_eq!(stats.locations.len(), 2);
            assert_eq!(stats.locations[1].table_count, tables(&store)[1]);
            assert_eq!(stats.counter("redirected_flush_count"), 2);
            let on_disk: usize = names.iter().map(Vec::len).sum();
            assert_eq!(stats.space.tables.file_count, on_disk as u64);
            // A checkpoint and a repair are whole stores in one folder.
            let target = MemoryStorage::new(&rt);
            store.checkpoint_to(Arc::new(target.clone())).unwrap();
            store.close().unwrap();
            folders.assert_sound(layout);
            let copy = common::Disk::on(&rt, target.clone()).open();
            assert_eq!((contents(&copy), tables(&copy)[1]), (wanted.clone(), 0));
            copy.close().unwrap();
            let report = check(&CheckStorages::on(&target), &mut |_| ()).unwrap();
            assert!(report.is_sound() && report.foreign.is_empty());
            let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&rt));
            let source = RepairSource::of(folders.storages(layout));
            let options = RepairOptions::default();
            let report = repair(&source, &target, &rt, &options, &mut |_| ()).unwrap();
            assert!(
                report.lost.is_empty() && report.damage.is_empty(),
                "{report:?}"
            );
            let repaired = Store::open_with(Components::on(target, rt.clone()), small()).unwrap();
            assert_eq!(
                (contents(&repaired), tables(&repaired)[1]),
                (wanted.clone(), 0)
            );
            repaired.close().unwrap();
            // It opens for reading and for writing, and the tables come back under any policy.
            let reader = folders.read(layout).unwrap();
            assert_eq!(contents(&reader), wanted);
            drop(reader);
            for options in [small(), redirecting()] {
                let store = folders.try_open(layout, options).unwrap();
                assert_eq!(contents(&store), wanted);
                store.wait_until_idle().unwrap();
                assert_eq!(tables(&store)[1], 0);
                assert_eq!(contents(&store), wanted);
                assert!(table_names(&folders)[redirect].is_empty());
                store.close().unwrap();
                folders.assert_sound(layout);
            }
            let report = Store::destroy_on(&folders.storages(layout)).unwrap();
            assert!(report.left.is_empty(), "{:?}", report.left);
            assert!(folders.names().iter().all(Vec::is_empty));
        }
    });
}

#[test]
fn a_store_that_is_destroyed_loses_its_tables_at_both_locations() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        with_redirected(&folders, TWO).close().unwrap();
        let report = Store::destroy_on(&folders.storages(TWO)).unwrap();
        assert!(report.left.is_empty(), "{:?}", report.left);
        assert!(folders.names().iter().all(Vec::is_empty));
    });
}

/// A store whose disks take bytes slowly, so that its memtables fill faster than they are flushed.
struct Pressed {
    store: Store,
    heard: Arc<Heard>,
    folders: Folders,
    /// The second location, whose calls can fail.
    second: FaultStorage,
}

impl Pressed {
    fn new(rt: &Runtime, second_bytes_per_s: u64) -> Pressed {
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
        let heard = Arc::new(Heard::default());
        let options = Options {
            memtable_bytes: 64 << 10,
            ..redirecting()
        };
        let store = Store::open_with(components(storages, rt, &heard), options).unwrap();
        Pressed {
            store,
            heard,
            folders,
            second,
        }
    }

    fn fill(&self, count: u64) {
        let keyspace = self.store.default_keyspace().unwrap();
        for i in 0..count {
            keyspace
                .put(&key(i * 7919 % 500), &[i as u8; 1000])
                .unwrap();
        }
    }

    fn is_whole(&self, count: u64) {
        let keyspace = self.store.default_keyspace().unwrap();
        for i in count.saturating_sub(500)..count {
            let value = keyspace.get(&key(i * 7919 % 500)).unwrap();
            assert_eq!(value, Some(vec![i as u8; 1000]));
        }
    }
}

#[test]
fn flushes_that_fall_behind_are_redirected_and_the_tables_come_back() {
    simulate(|rt| {
        let pressed = Pressed::new(&rt, 2 << 20);
        pressed.fill(3000);
        pressed.is_whole(3000);
        let stats = pressed.store.stats();
        assert!(
            stats.counter("redirected_flush_count") > 3,
            "{:?}",
            stats.locations
        );
        assert!(stats.locations[1].flush_bytes_per_s.is_some());
        pressed.store.wait_until_idle().unwrap();
        assert_eq!(tables(&pressed.store)[1], 0);
        let stats = pressed.store.stats();
        assert!(stats.counter("returned_table_bytes") > 0);
        pressed.is_whole(3000);
        rt.sleep(Duration::from_secs(3));
        let began = |e: &Event| matches!(e, Event::RedirectBegan { place, .. } if place == "/fast");
        let ended = |e: &Event| match e {
            Event::RedirectEnded { flushed_bytes, .. } => *flushed_bytes > 0,
            _ => false,
        };
        assert!(pressed.heard.count(began) > 0);
        assert_eq!(pressed.heard.count(began), pressed.heard.count(ended));
        pressed.store.close().unwrap();
    });
}

#[test]
fn only_redirect_sends_flushes_there() {
    simulate(|rt| {
        let pressed = Pressed::new(&rt, 2 << 20);
        pressed
            .store
            .set_option("stall_policy", "slowdown")
            .unwrap();
        pressed.fill(1500);
        assert_eq!(pressed.store.stats().counter("redirected_flush_count"), 0);
        pressed.store.close().unwrap();
    });
}

/// The second location fails in each way; the store goes on without it, and loses nothing.
#[test]
fn a_failing_location_is_no_failure_of_the_store() {
    simulate(|rt| {
        let io = StorageErrorKind::Io;
        let away = Fault::Unreachable {
            limit: Duration::from_millis(50),
            effect: Effect::None,
        };
        for (what, rule) in [
            ("create", Rule::on(OpKind::Create, Fault::Fail(io))),
            ("sync", Rule::on(OpKind::Sync, Fault::Fail(io))),
            ("append", Rule::on(OpKind::Append, Fault::Fail(io))),
            (
                "full",
                Rule::on(OpKind::Append, Fault::Fail(StorageErrorKind::NoSpace)),
            ),
            ("folder", Rule::on(OpKind::SyncDir, Fault::Fail(io))),
            ("read back", Rule::on(OpKind::Read, Fault::Fail(io))),
            ("away", Rule::on_changes(away)),
            (
                "hanging",
                Rule::on(OpKind::Append, Fault::Delay(Duration::from_secs(2))).nth(3),
            ),
        ] {
            let pressed = Pressed::new(&rt, 4 << 20);
            let rule = match what {
                // A failed sync of a folder is believed once.
                "folder" | "hanging" => rule,
                _ => rule.for_good(),
            };
            pressed.second.add(rule);
            pressed.fill(2500);
            assert!(pressed.second.fired_count(0) > 0, "{what}");
            pressed.is_whole(2500);
            let stats = pressed.store.stats();
            assert_eq!(stats.health, "good", "{what}");
            if what != "read back" {
                assert_eq!(stats.jobs_failing, None, "{what}");
            }
            let second = &stats.locations[1];
            assert_eq!(second.is_lost, what == "folder", "{what}");
            let suspended = |e: &Event| matches!(e, Event::LocationSuspended { .. });
            if !matches!(what, "full" | "hanging") {
                assert!(pressed.heard.count(suspended) > 0, "{what}");
            }
            pressed.second.clear();
            pressed.store.flush().unwrap();
            pressed.store.wait_until_idle().unwrap();
            pressed.is_whole(2500);
            pressed.store.close().unwrap();
            pressed.folders.assert_sound(Layout::of(0, 2).and(1));
        }
    });
}

/// A table at the second location cannot be read. Reads of its keys fail, and everything else goes
/// on; when it can be read again, it comes back.
#[test]
fn a_table_that_cannot_be_read_stays_where_it_is() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), &rt);
        let storages = Storages {
            redirect: Some(Arc::new(second.clone())),
            ..folders.storages(ONE)
        };
        let components = Components::of(storages, rt.clone());
        let store = Store::open_with(components, redirecting()).unwrap();
        flush_to_both(&store);
        let wanted = contents(&store);
        let hooks = store.test_hooks();
        hooks.close_tables();
        second.add(Rule::on(OpKind::Open, Fault::Fail(StorageErrorKind::Io)).for_good());
        hooks.pause_compaction(false);
        let keyspace = store.default_keyspace().unwrap();
        let error = keyspace.get(&key(1)).unwrap_err();
        assert!(error.to_string().contains("/fast"), "{error}");
        // Other keys are written, flushed and merged, and nobody waits for the table.
        for round in 0..12 {
            put_some(&keyspace, 5000 + 300 * round, 900, round as u8);
            store.flush().unwrap();
        }
        store.wait_until_idle().unwrap();
        assert!(tables(&store)[1] > 0);
        assert_eq!(store.stats().health, "good");
        // The caller of a compaction gets the error with which it fails.
        let error = keyspace.compact_range(None, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        second.clear();
        rt.sleep(Duration::from_secs(600));
        store.wait_until_idle().unwrap();
        assert_eq!(tables(&store)[1], 0);
        let now = contents(&store);
        let old = |all: &common::Contents| -> Vec<_> {
            let pairs = all["default"].iter();
            pairs.filter(|(k, _)| *k < key(5000)).cloned().collect()
        };
        assert_eq!(old(&now), old(&wanted));
        drop(keyspace);
        store.close().unwrap();
        folders.assert_sound(TWO);
    });
}

/// Location 0 is full, and the log and the manifest have room elsewhere: writes go on, also after
/// an open.
#[test]
fn writes_go_on_while_only_the_first_location_is_full() {
    simulate(|rt| {
        let layout = Layout::of(0, 1).and(2);
        let folders = Folders::new(&rt);
        let store = folders.try_open(layout, redirecting()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        put_some(&keyspace, 0, 500, 1);
        store.flush().unwrap();
        let home = &folders.memory[1];
        home.set_capacity(Some(home.used_bytes()));
        for round in 0..5 {
            put_some(&keyspace, 0, 1000, round);
            store.flush().unwrap();
        }
        assert!(tables(&store)[1] > 0);
        assert_eq!(store.stats().health, "good");
        put_some(&keyspace, 0, 700, 77);
        let wanted = contents(&store);
        drop(keyspace);
        store.close().unwrap();
        // A replay finds room at the second location.
        let store = folders.try_open(layout, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        assert_eq!(store.stats().health, "good");
        put_some(&store.default_keyspace().unwrap(), 0, 1, 78);
        store.close().unwrap();
        home.set_capacity(None);
        let store = folders.try_open(layout, redirecting()).unwrap();
        store.wait_until_idle().unwrap();
        assert_eq!(tables(&store)[1], 0);
        store.close().unwrap();
        folders.assert_sound(layout);
    });
}

/// The process is killed, or power is lost, at each call of a redirected flush and of the way back.
#[test]
fn a_redirected_flush_and_the_way_back_survive_a_kill_at_any_call() {
    simulate(|rt| {
        for back in [false, true] {
            for nth in 0.. {
                let folders = Folders::new(&rt);
                let store = with_redirected(&folders, TWO);
                let hooks = store.test_hooks();
                let keyspace = store.default_keyspace().unwrap();
                put_some(&keyspace, 20, 60, 9);
                common::put_synced(&keyspace, b"last", b"synced");
                let wanted = contents(&store);
                let rule = Rule::on_changes(Fault::Fail(StorageErrorKind::Io));
                folders.add(rule.nth(nth).for_good());
                if back {
                    hooks.pause_compaction(false);
                    let _ = store.wait_until_idle();
                } else {
                    hooks.force_location(Some(1));
                    let _ = store.flush();
                }
                let is_last = folders.fired() == 0;
                drop(keyspace);
                drop(store);
                for image in folders.images(nth) {
                    let when = format!("back: {back}, cut at call {nth}");
                    let store = image.try_open(TWO, redirecting());
                    let store = store.unwrap_or_else(|e| panic!("{when}: {e}"));
                    assert_eq!(contents(&store), wanted, "{when}");
                    store.wait_until_idle().unwrap();
                    assert_eq!(contents(&store), wanted, "{when}");
                    assert_eq!(tables(&store)[1], 0, "{when}");
                    store.close().unwrap();
                    image.assert_sound(TWO);
                    assert!(table_names(&image)[1].is_empty(), "{when}");
                }
                if is_last {
                    break;
                }
            }
        }
    });
}

/// What lies at either location and nothing names is deleted by the next open, and nothing else.
#[test]
fn leftovers_at_both_locations_are_deleted() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = with_redirected(&folders, TWO);
        let wanted = contents(&store);
        store.close().unwrap();
        let orphan = "00000001-0000ffff-0000-00000.tbl";
        for memory in &folders.memory[..2] {
            let lease = memory.lease("user").unwrap();
            memory.create(lease.epoch(), orphan).unwrap();
            memory.create(lease.epoch(), "mine.tbl").unwrap();
        }
        let report = folders.check(TWO).unwrap();
        let mut names: Vec<_> = report.orphans.iter().map(|o| o.name.clone()).collect();
        names.sort();
        assert_eq!(names, [format!("/fast/{orphan}"), orphan.to_string()]);
        let options = Options {
            l0_trigger_count: 10,
            ..redirecting()
        };
        let store = folders.try_open(TWO, options).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        for names in &folders.names()[..2] {
            assert!(!names.iter().any(|name| name == orphan), "{names:?}");
            assert!(names.iter().any(|name| name == "mine.tbl"), "{names:?}");
        }
    });
}

/// A power loss at random moments, with flushes to both locations.
#[test]
fn a_power_loss_of_all_disks_leaves_a_prefix() {
    common::with_seeds(12, |rt, seed| {
        let mut dice = common::Dice::new(seed);
        let layout = SECOND[seed as usize % SECOND.len()];
        let mut folders = Folders::new(&rt);
        let mut known = 0;
        for life in 0..4u64 {
            let store = folders.try_open(layout, redirecting()).unwrap();
            let keyspace = store.open_keyspace("a").unwrap();
            let first = common::prefix_len(&keyspace);
            assert!(
                first >= known,
                "{layout:?}: {first} of {known} synced writes"
            );
            let rule = Rule::on_changes(Fault::Fail(StorageErrorKind::Io));
            folders.add(rule.nth(dice.below(400)).for_good());
            known = first;
            for next in first..first + 400 {
                let sync = dice.below(6) == 0;
                let options = siltstone::WriteOptions {
                    sync,
                    ..siltstone::WriteOptions::default()
                };
                let mut batch = siltstone::Batch::new();
                batch
                    .put(&keyspace, &key(next), &[life as u8; 700])
                    .unwrap();
                if store.write(&batch, options).is_err() {
                    break;
                }
                if sync {
                    known = next + 1;
                }
                if dice.below(15) == 0 {
                    let location = dice.below(2) as u32;
                    store.test_hooks().force_location(Some(location));
                    let _ = keyspace.flush();
                }
            }
            drop(keyspace);
            drop(store);
            folders = folders.crash(CrashPolicy::Seeded(seed << 8 | life));
        }
        let store = folders.try_open(layout, redirecting()).unwrap();
        assert!(common::prefix_len(&store.keyspace("a").unwrap()) >= known);
        store.close().unwrap();
        folders.assert_sound(layout);
    });
}
