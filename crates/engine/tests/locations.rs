//! A second location of tables: how it is added and taken out, and which folders are refused.

mod common;

use std::sync::Arc;

use common::folders::{Folders, LAYOUTS, Layout};
use common::locations::{
    ONE, TWO, flush_to_both, put_some, redirecting, table_names, taking_out, with_redirected,
};
use common::{contents, simulate, small};
use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{Components, ErrorKind, Options, RedirectDir, Storages, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

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
