//! A second location of tables: how it is added and taken out, where flushes go, how tables come
//! back, and what its failures do.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::{Folders, LAYOUTS, Layout};
use common::{contents, key, simulate, small};
use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{
    Components, ErrorKind, Event, EventListener, Keyspace, Options, RedirectDir, StallPolicy,
    Storages, Store,
};
use siltstone_storage::fault::{Effect, Fault, FaultStorage, Rule};
use siltstone_storage::{
    CrashPolicy, MemoryStorage, OpKind, RatedStorage, Rates, Runtime, Storage, StorageErrorKind,
};

/// A store in one folder, and the same with a second location of tables.
const ONE: Layout = Layout::of(0, 0);
const TWO: Layout = ONE.and(1);

/// The layouts with a second location.
const SECOND: [Layout; 4] = [
    TWO,
    Layout::of(1, 0).and(2),
    Layout::of(0, 1).and(2),
    Layout::of(1, 1).and(2),
];

fn redirecting() -> Options {
    Options {
        stall_policy: StallPolicy::Redirect,
        // Reads of tables are calls, and can fail.
        map_tables: false,
        ..small()
    }
}

fn taking_out() -> Options {
    Options {
        redirect_dir: RedirectDir::None,
        ..redirecting()
    }
}

fn put_some(keyspace: &Keyspace, from: u64, count: u64, byte: u8) {
    for i in from..from + count {
        keyspace.put(&key(i), &[byte; 200]).unwrap();
    }
}

/// The tables at each location.
fn tables(store: &Store) -> [u64; 2] {
    let state = store.test_hooks().state();
    let mut count = [0; 2];
    for keyspace in state.keyspaces.values() {
        for (_, table) in keyspace.version.tables() {
            count[table.location as usize] += 1;
        }
    }
    count
}

/// Opens the store, writes, and flushes twice to location 1 and once to location 0, without
/// compactions.
fn with_redirected(folders: &Folders, layout: Layout) -> Store {
    let store = folders.try_open(layout, redirecting()).unwrap();
    flush_to_both(&store);
    store
}

fn flush_to_both(store: &Store) {
    let hooks = store.test_hooks();
    hooks.pause_compaction(true);
    let keyspace = store.default_keyspace().unwrap();
    for (round, location) in [1, 0, 1].into_iter().enumerate() {
        hooks.force_location(Some(location));
        put_some(&keyspace, round as u64 * 40, 100, round as u8);
        keyspace.delete_range(&key(7), &key(9)).unwrap();
        store.flush().unwrap();
    }
    hooks.force_location(None);
    let [home, second] = tables(store);
    assert!(home > 0 && second > 1, "{home} and {second}");
}

/// The names of the tables in each folder.
fn table_names(folders: &Folders) -> [Vec<String>; 3] {
    folders
        .names()
        .map(|names| names.into_iter().filter(|n| n.ends_with(".tbl")).collect())
}

/// No storage call is made while its lock is held.
#[derive(Default)]
#[allow(clippy::disallowed_types)]
struct Heard(std::sync::Mutex<Vec<Event>>);

impl EventListener for Heard {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Heard {
    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|e| is(e)).count()
    }
}

fn components(storages: Storages, rt: &Runtime, heard: &Arc<Heard>) -> Components {
    Components {
        listener: Some(heard.clone()),
        ..Components::of(storages, rt.clone())
    }
}

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

/// The process is killed, or a call fails, at each call of an open that adds the second location to
/// a store, flushes there, brings the tables back, and takes it out.
#[test]
fn a_location_is_added_and_taken_out_whatever_is_cut_off() {
    simulate(|rt| {
        for taking in [false, true] {
            for nth in 0.. {
                let folders = Folders::new(&rt);
                let before = if taking { TWO } else { ONE };
                let store = folders.try_open(before, redirecting()).unwrap();
                put_some(&store.default_keyspace().unwrap(), 0, 100, 7);
                store.flush().unwrap();
                let wanted = contents(&store);
                store.close().unwrap();
                let rule = Rule::on_changes(Fault::Fail(StorageErrorKind::Io));
                folders.add(rule.nth(nth).for_good());
                let options = if taking { taking_out() } else { redirecting() };
                let opened = folders.try_open(TWO, options.clone());
                let is_last = folders.fired() == 0;
                folders.clear();
                drop(opened);
                for image in folders.images(nth) {
                    let when = format!("taking out: {taking}, cut at call {nth}");
                    let store = match image.try_open(TWO, options.clone()) {
                        Ok(store) => store,
                        Err(e) => panic!("{when}: {e}"),
                    };
                    assert_eq!(contents(&store), wanted, "{when}");
                    store.close().unwrap();
                    let after = if taking { ONE } else { TWO };
                    // What was taken out leaves nothing there.
                    if taking {
                        let left = &image.names()[1];
                        let own = |name: &&String| name.ends_with(".tbl");
                        assert_eq!(left.iter().filter(own).count(), 0, "{when}: {left:?}");
                    }
                    image.assert_sound(after);
                    let store = image.try_open(after, redirecting()).unwrap();
                    assert_eq!(contents(&store), wanted, "{when}");
                    store.close().unwrap();
                    // It can be added again, and used.
                    let store = image.try_open(TWO, redirecting());
                    let store = store.unwrap_or_else(|e| panic!("{when}, again: {e}"));
                    flush_to_both(&store);
                    store.close().unwrap();
                    image.assert_sound(TWO);
                }
                if is_last {
                    break;
                }
            }
        }
    });
}

/// Adding and taking out twenty times, so that the numbers of earlier opens are forgotten.
#[test]
fn a_location_can_be_added_and_taken_out_again_and_again() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        folders
            .try_open(ONE, redirecting())
            .unwrap()
            .close()
            .unwrap();
        for round in 0..20 {
            let store = with_redirected(&folders, TWO);
            store.test_hooks().pause_compaction(false);
            store.wait_until_idle().unwrap();
            store.close().unwrap();
            folders
                .try_open(TWO, taking_out())
                .unwrap()
                .close()
                .unwrap();
            let left = folders.names()[1].clone();
            assert!(left.is_empty(), "round {round}: {left:?}");
            folders.assert_sound(ONE);
            folders
                .try_open(ONE, redirecting())
                .unwrap()
                .close()
                .unwrap();
        }
    });
}

#[test]
fn a_location_with_tables_is_not_taken_out() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = with_redirected(&folders, TWO);
        let wanted = contents(&store);
        store.close().unwrap();
        let names = folders.names();
        let error = folders.try_open(TWO, taking_out()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("tables are there"), "{error}");
        assert_eq!(folders.names(), names);
        let store = folders.try_open(TWO, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.wait_until_idle().unwrap();
        store.close().unwrap();
        let store = folders.try_open(TWO, taking_out()).unwrap();
        assert_eq!(contents(&store), wanted);
        assert!(store.stats().locations.is_empty());
        store.close().unwrap();
        folders.assert_sound(ONE);
    });
}

/// The edit that brings the last tables back is not durable: its sync fails, the process is killed,
/// and the next open takes the location out. Power is lost at each call of that open.
#[test]
fn taking_out_deletes_nothing_that_the_durable_manifest_names() {
    simulate(|rt| {
        for nth in 0.. {
            let folders = Folders::new(&rt);
            let store = with_redirected(&folders, TWO);
            let wanted = contents(&store);
            let rule = Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io));
            folders.add(rule.named("MANIFEST").for_good());
            store.test_hooks().pause_compaction(false);
            store.wait_until_idle().unwrap_err();
            drop(store);
            let folders = folders.kill();
            let rule = Rule::on_changes(Fault::Fail(StorageErrorKind::Io));
            folders.add(rule.nth(nth).for_good());
            let opened = folders.try_open(TWO, taking_out());
            let is_last = folders.fired() == 0;
            folders.clear();
            if is_last {
                assert_eq!(contents(opened.as_ref().unwrap()), wanted);
            }
            drop(opened);
            for image in folders.images(nth) {
                let when = format!("cut at call {nth}");
                let store = image.try_open(TWO, redirecting());
                let store = store.unwrap_or_else(|e| panic!("{when}: {e}"));
                assert_eq!(contents(&store), wanted, "{when}");
                store.close().unwrap();
                image.assert_sound(TWO);
            }
            if is_last {
                break;
            }
        }
    });
}

/// A table in the folder that is taken out cannot be deleted: the folder keeps its owner, so that
/// the store can have it again.
#[test]
fn a_folder_that_keeps_tables_can_be_added_again() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = folders.try_open(TWO, redirecting()).unwrap();
        put_some(&store.default_keyspace().unwrap(), 0, 100, 1);
        let wanted = contents(&store);
        store.close().unwrap();
        let orphan = "00000001-0000ffff-0000-00000.tbl";
        let lease = folders.memory[1].lease("user").unwrap();
        folders.memory[1].create(lease.epoch(), orphan).unwrap();
        drop(lease);
        let rule = Rule::on(OpKind::Delete, Fault::Fail(StorageErrorKind::Io));
        folders.add(rule.named(orphan).for_good());
        let store = folders.try_open(TWO, taking_out()).unwrap();
        assert!(folders.fired() > 0);
        assert!(store.stats().locations.is_empty());
        store.close().unwrap();
        folders.clear();
        let left = &folders.names()[1];
        assert!(left.iter().any(|name| name == "OWNER"), "{left:?}");
        folders.assert_sound(ONE);
        let store = folders.try_open(TWO, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        folders.assert_sound(TWO);
        assert!(table_names(&folders)[1].is_empty());
    });
}

#[test]
fn other_folders_are_refused_by_name() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        // The store's own folder, that of the log, and that of the tables.
        for (layout, same) in [
            (ONE.and(0), "manifest log tables"),
            (Layout::of(1, 0).and(1), "log"),
            (Layout::of(0, 1).and(1), "tables"),
        ] {
            let error = folders.try_open(layout, redirecting()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            let text = error.to_string();
            assert!(text.contains(&format!("holds the {same} of")), "{text}");
        }
        with_redirected(&folders, TWO).close().unwrap();
        // Such a layout is refused for a store that exists, too, by an open and by a check.
        let error = folders.try_open(ONE.and(0), redirecting()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let error = folders.check(ONE.and(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // Another location than the one that DIRECTORIES names, and none.
        for layout in [ONE, ONE.and(2)] {
            for error in [
                folders.try_open(layout, redirecting()).unwrap_err(),
                folders.read(layout).unwrap_err(),
                folders.check(layout).unwrap_err(),
            ] {
                assert_eq!(
                    error.kind(),
                    ErrorKind::InvalidArgument,
                    "{layout:?}: {error}"
                );
                assert_eq!(error.file(), Some("DIRECTORIES"), "{error}");
            }
        }
        // The location of another store.
        let other = Folders::new(&rt);
        other.try_open(ONE, redirecting()).unwrap().close().unwrap();
        let mut storages = other.storages(ONE);
        storages.redirect = folders.storages(TWO).redirect;
        let components = Components::of(storages, rt.clone());
        let error = Store::open_with(components, redirecting()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // A folder with tables in it.
        let fresh = Folders::new(&rt);
        fresh.try_open(ONE, redirecting()).unwrap().close().unwrap();
        let lease = fresh.memory[1].lease("user").unwrap();
        fresh.memory[1]
            .create(lease.epoch(), "00000001-00000009-0000-00000.tbl")
            .unwrap();
        drop(lease);
        let error = fresh.try_open(TWO, redirecting()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.to_string().contains("without tables"), "{error}");
        fresh.try_open(ONE, redirecting()).unwrap().close().unwrap();
    });
}

/// Two disks changed places, or one of them is not mounted.
#[test]
fn swapped_and_unmounted_folders_are_refused() {
    simulate(|rt| {
        let layout = Layout::of(0, 1).and(2);
        let folders = Folders::new(&rt);
        with_redirected(&folders, layout).close().unwrap();
        let [root, tables, second] = &folders.memory;
        let swap = |tables: &MemoryStorage, second: &MemoryStorage| Storages {
            tables: Arc::new(tables.clone()),
            redirect: Some(Arc::new(second.clone())),
            ..Storages::on(Arc::new(root.clone()))
        };
        let open = |storages| {
            let components = Components::of(storages, rt.clone());
            Store::open_with(components, redirecting())
        };
        let error = open(swap(second, tables)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // An empty folder in its place has no owner, so it is missing, and tables are needed there.
        let empty = MemoryStorage::named(&rt, "/large");
        let error = open(swap(tables, &empty)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("may not be mounted"), "{error}");
        assert!(empty.list().unwrap().is_empty());
        open(swap(tables, second)).unwrap().close().unwrap();
    });
}

/// The folder of a location is there and has no `OWNER`, as a mount point without its disk. This is
/// the same as no folder: nothing is created in it, and the store needs it only for its tables.
#[test]
fn a_mount_point_without_its_disk_counts_as_missing() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = folders.try_open(TWO, redirecting()).unwrap();
        put_some(&store.default_keyspace().unwrap(), 0, 100, 1);
        let wanted = contents(&store);
        store.close().unwrap();
        let empty = MemoryStorage::named(&rt, "/fast");
        let storages = || Storages {
            redirect: Some(Arc::new(empty.clone())),
            ..folders.storages(ONE)
        };
        let heard = Arc::new(Heard::default());
        let store = Store::open_with(components(storages(), &rt, &heard), redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        assert!(store.stats().locations[1].is_lost);
        store.test_hooks().force_location(Some(1));
        put_some(&store.default_keyspace().unwrap(), 50, 100, 2);
        let wanted = contents(&store);
        store.close().unwrap();
        rt.sleep(Duration::from_millis(1));
        let why = "may not be mounted";
        let missing = |e: &Event| match e {
            Event::LocationMissing { why: found, .. } => found.contains(why),
            _ => false,
        };
        assert_eq!(heard.count(missing), 1);
        let of = |storages| Components::of(storages, rt.clone());
        let reader = Store::open_read_only_with(of(storages()), redirecting()).unwrap();
        assert_eq!(contents(&reader), wanted);
        drop(reader);
        let report = check(&CheckStorages::of(&storages()), &mut |_| ()).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        assert!(empty.list().unwrap().is_empty());
        // The disk is back.
        let store = folders.try_open(TWO, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        flush_to_both(&store);
        let wanted = contents(&store);
        store.close().unwrap();
        // Now tables are needed there.
        for options in [redirecting(), taking_out()] {
            Store::open_with(of(storages()), options).unwrap_err();
        }
        let report = check(&CheckStorages::of(&storages()), &mut |_| ()).unwrap();
        let named = report
            .problems
            .iter()
            .filter(|e| e.to_string().contains(why));
        assert_eq!(named.count(), report.problems.len());
        assert!(!report.is_sound());
        assert!(empty.list().unwrap().is_empty());
        let store = folders.try_open(TWO, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.wait_until_idle().unwrap();
        store.close().unwrap();
        // It is taken out without a trace in that folder.
        let store = Store::open_with(of(storages()), taking_out()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        assert!(empty.list().unwrap().is_empty());
        folders.assert_sound(ONE);
    });
}

/// The creation of a store is cut off after `DIRECTORIES`, and the second disk is gone at the next
/// open: the store is created when the disk is back, or without the location.
#[test]
fn a_creation_that_was_cut_off_goes_on_when_the_location_is_back() {
    simulate(|rt| {
        for without in [false, true] {
            let folders = Folders::new(&rt);
            let rule = Rule::on(OpKind::Replace, Fault::Fail(StorageErrorKind::Io));
            folders.add(rule.named("OWNER").for_good());
            folders.try_open(TWO, redirecting()).unwrap_err();
            assert!(folders.fired() > 0);
            let folders = folders.kill();
            let missing = Storages {
                redirect: Some(Storages::missing("/fast", "its disk is gone")),
                ..folders.storages(ONE)
            };
            let of = |storages| Components::of(storages, rt.clone());
            let error = Store::open_with(of(missing.clone()), redirecting()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("/fast") && text.contains("its disk is gone"),
                "{text}"
            );
            if without {
                Store::open_with(of(missing), taking_out())
                    .unwrap()
                    .close()
                    .unwrap();
                folders.assert_sound(ONE);
                continue;
            }
            let store = folders.try_open(TWO, redirecting()).unwrap();
            flush_to_both(&store);
            let wanted = contents(&store);
            store.close().unwrap();
            let store = folders.try_open(TWO, redirecting()).unwrap();
            assert_eq!(contents(&store), wanted);
            store.close().unwrap();
            folders.assert_sound(TWO);
        }
    });
}

/// The location is away for more opens than the store's folder has numbers for. The tables that an
/// earlier open left there are no obstacle.
#[test]
fn a_location_that_was_missing_for_many_opens_comes_back() {
    simulate(|rt| {
        let without = Layout::of(2, 0);
        let layout = without.and(1);
        let folders = Folders::new(&rt);
        let store = with_redirected(&folders, layout);
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        let wanted = contents(&store);
        store.close().unwrap();
        let missing = || Storages {
            redirect: Some(Storages::missing("/fast", "its disk is gone")),
            ..folders.storages(without)
        };
        let of = |storages| Components::of(storages, rt.clone());
        for _ in 0..40 {
            let store = Store::open_with(of(missing()), redirecting()).unwrap();
            store.close().unwrap();
        }
        let store = folders.try_open(layout, redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        folders.assert_sound(layout);
        // An older copy of the store's folder is refused all the same, by the location alone.
        let old: Arc<dyn Storage> = Arc::new(folders.memory[0].kill());
        for _ in 0..20 {
            let store = folders.try_open(layout, redirecting()).unwrap();
            store.close().unwrap();
        }
        let old = Storages {
            manifest: old.clone(),
            tables: old,
            ..folders.storages(layout)
        };
        let error = Store::open_with(of(old), redirecting()).unwrap_err();
        assert!(error.to_string().contains("old copy"), "{error}");
    });
}

/// A folder is taken out while it is missing, or while its disk takes no deletions, and is added
/// again after many opens.
#[test]
fn a_folder_that_was_taken_out_while_missing_can_be_added_again() {
    simulate(|rt| {
        let without = Layout::of(2, 0);
        let layout = without.and(1);
        for is_missing in [false, true] {
            let folders = Folders::new(&rt);
            let store = folders.try_open(layout, redirecting()).unwrap();
            store.close().unwrap();
            if is_missing {
                let missing = Storages {
                    redirect: Some(Storages::missing("/fast", "its disk is gone")),
                    ..folders.storages(without)
                };
                let components = Components::of(missing, rt.clone());
                let store = Store::open_with(components, taking_out()).unwrap();
                store.close().unwrap();
            } else {
                let rule = Rule::on(OpKind::Delete, Fault::Fail(StorageErrorKind::Io));
                folders.add(rule.named("OPENED").for_good());
                let store = folders.try_open(layout, taking_out()).unwrap();
                store.close().unwrap();
                assert!(folders.fired() > 0);
                folders.clear();
            }
            for _ in 0..20 {
                let store = folders.try_open(without, redirecting()).unwrap();
                store.close().unwrap();
            }
            let store = folders.try_open(layout, redirecting()).unwrap();
            flush_to_both(&store);
            let wanted = contents(&store);
            store.close().unwrap();
            let store = folders.try_open(layout, redirecting()).unwrap();
            assert_eq!(contents(&store), wanted);
            store.close().unwrap();
            folders.assert_sound(layout);
        }
    });
}

/// A store with tables at both locations, whose second one fails.
fn failing(rt: &Runtime, rule: Rule) -> (Folders, Storages) {
    let folders = Folders::new(rt);
    let store = with_redirected(&folders, TWO);
    store.close().unwrap();
    let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), rt);
    second.add(rule.for_good());
    let storages = Storages {
        redirect: Some(Arc::new(second)),
        ..folders.storages(ONE)
    };
    (folders, storages)
}

/// The second location fails in one way: reads, check and repair go on, and say what they miss.
fn tools_go_on(rt: &Runtime, rule: Rule, is_needed: bool) {
    let (_folders, storages) = failing(rt, rule);
    let components = Components::of(storages.clone(), rt.clone());
    drop(Store::open_read_only_with(components, redirecting()).unwrap());
    let report = check(&CheckStorages::of(&storages), &mut |_| ()).unwrap();
    let is_named = |e: &siltstone::Error| e.to_string().contains("/fast");
    if is_needed {
        assert!(!report.is_sound());
    }
    let problems = &report.problems;
    assert!(problems.iter().all(is_named), "{problems:?}");
    let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(rt));
    let source = RepairSource::of(storages.clone());
    let options = RepairOptions::default();
    let report = repair(&source, &target, rt, &options, &mut |_| ()).unwrap();
    assert_eq!(!report.lost.is_empty(), is_needed);
    assert_eq!(report.damage.iter().any(is_named), is_needed);
    // Destroying the store leaves that folder, and says why.
    let report = Store::destroy_on(&storages).unwrap();
    let left: Vec<_> = report
        .left
        .iter()
        .map(|(place, _)| place.as_str())
        .collect();
    assert_eq!(left, ["/fast"]);
    assert!(storages.manifest.list().unwrap().is_empty());
}

#[test]
fn tools_go_on_if_a_location_cannot_be_listed() {
    simulate(|rt| {
        let fault = Fault::Fail(StorageErrorKind::Io);
        tools_go_on(&rt, Rule::on(OpKind::List, fault), true);
    });
}

#[test]
fn tools_go_on_if_an_owner_cannot_be_read() {
    simulate(|rt| {
        let fault = Fault::Fail(StorageErrorKind::PermissionDenied);
        tools_go_on(&rt, Rule::on(OpKind::Open, fault).named("OWNER"), true);
    });
}

#[test]
fn tools_go_on_if_the_opens_of_a_location_cannot_be_read() {
    simulate(|rt| {
        let fault = Fault::Fail(StorageErrorKind::Io);
        tools_go_on(&rt, Rule::on(OpKind::Open, fault).named("OPENED"), false);
    });
}

#[test]
fn tools_go_on_if_every_call_at_a_location_fails() {
    simulate(|rt| {
        let fault = Fault::Fail(StorageErrorKind::Io);
        tools_go_on(&rt, Rule::on_any(fault), true);
    });
}

/// A table at the second location may not be read: it is a problem, and the others are checked.
#[test]
fn a_check_goes_on_if_a_table_at_a_location_may_not_be_read() {
    simulate(|rt| {
        let fault = Fault::Fail(StorageErrorKind::PermissionDenied);
        let (folders, storages) = failing(&rt, Rule::on(OpKind::Open, fault).named("0"));
        let report = check(&CheckStorages::of(&storages), &mut |_| ()).unwrap();
        let wanted = folders.check(TWO).unwrap();
        let problems = &report.problems;
        assert_eq!(
            problems.len(),
            table_names(&folders)[1].len(),
            "{problems:?}"
        );
        assert_eq!(report.table_count, wanted.table_count);
        assert!(report.entry_count > 0);
    });
}

/// An open that cannot compare the numbers of opens does not use the folder, and an open that
/// cannot write its number there sends no flush there. Both say so.
#[test]
fn a_location_that_takes_no_number_is_reported() {
    simulate(|rt| {
        let io = || Fault::Fail(StorageErrorKind::Io);
        for (is_read, rule) in [
            (true, Rule::on(OpKind::Open, io())),
            (false, Rule::on(OpKind::Replace, io())),
        ] {
            let folders = Folders::new(&rt);
            let store = folders.try_open(TWO, redirecting()).unwrap();
            put_some(&store.default_keyspace().unwrap(), 0, 100, 1);
            let wanted = contents(&store);
            store.close().unwrap();
            let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), &rt);
            second.add(rule.named("OPENED").for_good());
            let storages = Storages {
                redirect: Some(Arc::new(second.clone())),
                ..folders.storages(ONE)
            };
            let heard = Arc::new(Heard::default());
            let open = |options| {
                let components = components(storages.clone(), &rt, &heard);
                Store::open_with(components, options).unwrap()
            };
            let store = open(redirecting());
            assert!(store.stats().locations[1].is_lost);
            assert_eq!(contents(&store), wanted);
            store.close().unwrap();
            rt.sleep(Duration::from_millis(1));
            let said = |e: &Event| match e {
                Event::LocationMissing { place, .. } => is_read && place == "/fast",
                Event::LocationSuspended { place, for_us, .. } => {
                    !is_read && place == "/fast" && for_us.is_none()
                }
                _ => false,
            };
            assert_eq!(heard.count(said), 1);
            // The location can be taken out all the same.
            let store = open(taking_out());
            assert!(store.stats().locations.is_empty());
            assert_eq!(contents(&store), wanted);
            store.close().unwrap();
            folders.assert_sound(ONE);
        }
    });
}

/// Nobody flushes there: the sync after a deletion fails, and an event says that no flush will go
/// there.
#[test]
fn a_location_that_is_lost_without_a_flush_is_reported() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let second = FaultStorage::new(Arc::new(folders.memory[1].clone()), &rt);
        let storages = Storages {
            redirect: Some(Arc::new(second.clone())),
            ..folders.storages(ONE)
        };
        let heard = Arc::new(Heard::default());
        let store = Store::open_with(components(storages, &rt, &heard), redirecting()).unwrap();
        flush_to_both(&store);
        second.add(Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)));
        store.test_hooks().force_location(Some(1));
        put_some(&store.default_keyspace().unwrap(), 0, 100, 1);
        store.flush().unwrap();
        rt.sleep(Duration::from_secs(1));
        assert!(store.stats().locations[1].is_lost);
        let said = |e: &Event| matches!(e, Event::LocationSuspended { for_us: None, .. });
        assert_eq!(heard.count(said), 1);
        assert_eq!(store.stats().health, "good");
        store.close().unwrap();
    });
}

/// The folder has lost direct I/O. That matters only if the location stays.
#[test]
fn direct_io_is_asked_only_of_a_location_that_stays() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = folders.try_open(TWO, redirecting()).unwrap();
        put_some(&store.default_keyspace().unwrap(), 0, 100, 1);
        let wanted = contents(&store);
        store.close().unwrap();
        let direct = |options: Options| Options {
            direct_io: siltstone::DirectIo::All,
            ..options
        };
        folders.memory[1].set_refuses_direct(true);
        let error = folders.try_open(TWO, direct(redirecting())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().contains("/fast"), "{error}");
        let store = folders.try_open(TWO, direct(taking_out())).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        folders.assert_sound(ONE);
        assert!(folders.names()[1].is_empty());
        // Adding it is refused, and leaves nothing there but its lease.
        let error = folders.try_open(TWO, direct(redirecting())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        folders.assert_sound(ONE);
        assert!(folders.names()[1].is_empty());
    });
}

#[test]
fn a_missing_location_is_only_needed_for_its_tables() {
    simulate(|rt| {
        let folders = Folders::new(&rt);
        let store = with_redirected(&folders, TWO);
        let wanted = contents(&store);
        store.close().unwrap();
        let missing = || Storages {
            redirect: Some(Storages::missing("/fast", "its disk is gone")),
            ..folders.storages(ONE)
        };
        let of = |storages| Components::of(storages, rt.clone());
        let error = Store::open_with(of(missing()), redirecting()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("/fast") && text.contains("its disk is gone"),
            "{text}"
        );
        assert!(text.contains("tables of the store"), "{text}");
        let error = Store::open_with(of(missing()), taking_out()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        // What only reads goes on, and names what is missing.
        let reader = Store::open_read_only_with(of(missing()), redirecting()).unwrap();
        let keyspace = reader.default_keyspace().unwrap();
        let error = keyspace.get(&key(1)).unwrap_err();
        assert!(error.to_string().contains("missing"), "{error}");
        drop(keyspace);
        drop(reader);
        let report = check(&CheckStorages::of(&missing()), &mut |_| ()).unwrap();
        assert!(!report.is_sound());
        assert!(
            report
                .problems
                .iter()
                .all(|e| e.to_string().contains("/fast"))
        );
        let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&rt));
        let source = RepairSource::of(missing());
        let report = repair(
            &source,
            &target,
            &rt,
            &RepairOptions::default(),
            &mut |_| (),
        );
        assert!(!report.unwrap().lost.is_empty());
        // Without a table there, the store opens and works without it, and it is taken out.
        let store = folders.try_open(TWO, redirecting()).unwrap();
        store.wait_until_idle().unwrap();
        store.close().unwrap();
        let heard = Arc::new(Heard::default());
        let store = Store::open_with(components(missing(), &rt, &heard), redirecting()).unwrap();
        assert_eq!(contents(&store), wanted);
        assert!(store.stats().locations[1].is_lost);
        put_some(&store.default_keyspace().unwrap(), 0, 2000, 9);
        let wanted = contents(&store);
        store.flush().unwrap();
        store.close().unwrap();
        rt.sleep(Duration::from_millis(1));
        assert_eq!(
            heard.count(|e| matches!(e, Event::LocationMissing { .. })),
            1
        );
        let store = Store::open_with(of(missing()), taking_out()).unwrap();
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        folders.assert_sound(ONE);
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
        // Who asks for a compaction learns why it fails.
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

/// `DIRECTORIES` is lost. An open that is given the location writes it again.
#[test]
fn a_lost_file_of_directories_is_written_again_with_the_location() {
    simulate(|rt| {
        for layout in [TWO, Layout::of(1, 0).and(2)] {
            let folders = Folders::new(&rt);
            let store = with_redirected(&folders, layout);
            let wanted = contents(&store);
            store.close().unwrap();
            let root = &folders.memory[0];
            let file = root.read_small("DIRECTORIES").unwrap();
            let lease = root.lease("thief").unwrap();
            root.delete(lease.epoch(), "DIRECTORIES").unwrap();
            root.sync_dir(lease.epoch()).unwrap();
            drop(lease);
            // Without the location its tables seem to be lost.
            let without = Layout {
                redirect: None,
                ..layout
            };
            let error = folders.try_open(without, redirecting()).unwrap_err();
            assert!(error.to_string().contains("DIRECTORIES"), "{error}");
            let reader = folders.read(layout).unwrap();
            assert_eq!(contents(&reader), wanted);
            drop(reader);
            let store = folders.try_open(layout, redirecting()).unwrap();
            assert_eq!(contents(&store), wanted);
            store.close().unwrap();
            assert_eq!(root.read_small("DIRECTORIES").unwrap(), file);
            folders.assert_sound(layout);
        }
    });
}

/// The folder is added by the option, in files of the operating system.
#[test]
fn the_option_adds_the_folder_and_takes_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let with = |dir: RedirectDir| Options {
        redirect_dir: dir,
        ..redirecting()
    };
    let second = || RedirectDir::Path("../second".into());
    Store::open(at("s"), small()).unwrap().close().unwrap();
    // An open for reading ignores the wish.
    Store::open_read_only(at("s"), with(second())).unwrap();
    assert!(!at("second").exists() && !at("s/DIRECTORIES").exists());
    let error = Store::open(at("s"), with(RedirectDir::Path(".".into()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(!at("s/DIRECTORIES").exists());
    let store = Store::open(at("s"), with(second())).unwrap();
    flush_to_both(&store);
    let wanted = contents(&store);
    // Another store cannot take the folder.
    let error = Store::open(at("t"), with(RedirectDir::Path(at("second")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    store.close().unwrap();
    let error = Store::open(at("t"), with(RedirectDir::Path(at("second")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    let text = std::fs::read_to_string(at("s/DIRECTORIES")).unwrap();
    assert!(text.starts_with("siltstone-directories 2\n"), "{text}");
    let text = std::fs::read_to_string(at("second/OWNER")).unwrap();
    assert!(text.ends_with("holds redirected-tables 1\n"), "{text}");
    // Every open finds it, and another folder is refused.
    let reader = Store::open_read_only(at("s"), small()).unwrap();
    assert_eq!(contents(&reader), wanted);
    drop(reader);
    let error = Store::open(at("s"), with(RedirectDir::Path(at("third")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(!at("third").exists());
    let storages = Storages::find(at("s")).unwrap();
    assert!(
        check(&CheckStorages::of(&storages), &mut |_| ())
            .unwrap()
            .is_sound()
    );
    drop(storages);
    // The folder is gone: reads go on.
    std::fs::rename(at("second"), at("away")).unwrap();
    let error = Store::open(at("s"), small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    Store::open_read_only(at("s"), small()).unwrap();
    // The option may name it while it is gone, and no other folder in its place.
    let error = Store::open(at("s"), with(second())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = Store::open(at("s"), with(RedirectDir::Path(at("third")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("third"), "{error}");
    assert!(!at("third").exists());
    // A mount point in its place stays empty, whatever is tried.
    std::fs::create_dir(at("second")).unwrap();
    for dir in [RedirectDir::Unset, second(), RedirectDir::None] {
        Store::open(at("s"), with(dir)).unwrap_err();
    }
    Store::open_read_only(at("s"), small()).unwrap();
    let storages = Storages::find(at("s")).unwrap();
    let report = check(&CheckStorages::of(&storages), &mut |_| ()).unwrap();
    assert!(!report.is_sound());
    let target = MemoryStorage::new(&Runtime::threads());
    let target: Arc<dyn Storage> = Arc::new(target);
    let (source, options) = (RepairSource::of(storages), RepairOptions::default());
    repair(&source, &target, &Runtime::threads(), &options, &mut |_| ()).unwrap();
    assert_eq!(std::fs::read_dir(at("second")).unwrap().count(), 0);
    std::fs::remove_dir(at("second")).unwrap();
    std::fs::rename(at("away"), at("second")).unwrap();
    let store = Store::open(at("s"), small()).unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(contents(&store), wanted);
    store.close().unwrap();
    Store::open(at("s"), with(RedirectDir::None))
        .unwrap()
        .close()
        .unwrap();
    let text = std::fs::read_to_string(at("s/DIRECTORIES")).unwrap();
    assert!(text.starts_with("siltstone-directories 1\n"), "{text}");
    assert!(!at("second/OWNER").exists() && !at("second/OPENED").exists());
    Store::open(at("s"), with(second()))
        .unwrap()
        .close()
        .unwrap();
    let report = Store::destroy(at("s")).unwrap();
    assert!(report.left.is_empty(), "{:?}", report.left);
    assert!(!at("s").exists() && !at("second").exists());
    // A new store begins with it.
    let store = Store::open(at("new"), with(second())).unwrap();
    flush_to_both(&store);
    store.close().unwrap();
    let store = Store::open(at("new"), small()).unwrap();
    assert_eq!(contents(&store), wanted);
    store.close().unwrap();
}

/// A check reports an `OPTIONS.toml` with which every open for writing fails because of the
/// location.
#[test]
fn a_check_reports_options_that_do_not_fit_the_location() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let options = Options {
        redirect_dir: RedirectDir::Path("../second".into()),
        ..redirecting()
    };
    let store = Store::open(at("s"), options).unwrap();
    flush_to_both(&store);
    store.close().unwrap();
    let problems = |text: &str| -> Vec<String> {
        std::fs::write(at("s/OPTIONS.toml"), format!("{text}\n")).unwrap();
        let storages = Storages::find(at("s")).unwrap();
        let report = check(&CheckStorages::of(&storages), &mut |_| ()).unwrap();
        report.problems.iter().map(ToString::to_string).collect()
    };
    assert!(problems("redirect_dir = \"../second\"").is_empty());
    assert!(problems("").is_empty());
    for (text, says) in [
        ("redirect_dir = \"../third\"", "names another folder"),
        ("redirect_dir = \"none\"", "tables are there"),
    ] {
        let found = problems(text);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(says), "{found:?}");
        assert!(found[0].contains("OPTIONS.toml"), "{found:?}");
    }
    // A store without a second location gets the one that the file names, unless it is its own.
    Store::open(at("t"), small()).unwrap().close().unwrap();
    let problems = |text: &str| -> usize {
        std::fs::write(at("t/OPTIONS.toml"), format!("{text}\n")).unwrap();
        let storages = Storages::find(at("t")).unwrap();
        let report = check(&CheckStorages::of(&storages), &mut |_| ()).unwrap();
        report.problems.len()
    };
    assert_eq!(problems("redirect_dir = \"../third\""), 0);
    assert_eq!(problems("redirect_dir = \"none\""), 0);
    assert_eq!(problems("redirect_dir = \"../t\""), 1);
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

/// All layouts without a second location are as before.
#[test]
fn a_store_without_a_second_location_has_no_trace_of_it() {
    simulate(|rt| {
        for layout in LAYOUTS {
            let folders = Folders::new(&rt);
            let store = folders.try_open(layout, taking_out()).unwrap();
            put_some(&store.default_keyspace().unwrap(), 0, 10, 1);
            assert!(store.stats().locations.is_empty());
            store.close().unwrap();
            if let Ok(file) = folders.memory[0].read_small("DIRECTORIES") {
                assert!(file.starts_with(b"siltstone-directories 1\n"));
            }
            folders.assert_sound(layout);
        }
    });
}
