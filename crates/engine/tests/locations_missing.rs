//! A second location of tables whose folder is missing, is not mounted or fails: what a store needs
//! it for, what an open says, and how tools go on.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::{Folders, Layout};
use common::locations::{
    Heard, ONE, TWO, components, flush_to_both, put_some, redirecting, table_names, taking_out,
    with_redirected,
};
use common::{contents, key, simulate};
use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{Components, ErrorKind, Event, Storages, Store};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

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
