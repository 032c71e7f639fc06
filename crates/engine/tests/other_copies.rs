//! Folders that belong to another store, or to another copy of the same store: nothing in them is
//! deleted.

mod common;

use std::fs;
use std::path::Path;

use common::folders::{Folders, LAYOUTS, Layout};
use common::{Dice, contents, key, small};
use siltstone::check::{CheckStorages, check};
use siltstone::{ErrorKind, Options, Storages, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, OpKind, Runtime, Storage, StorageErrorKind};

const THREE: Layout = Layout::of(1, 2);

fn in_simulation<T: Send + 'static>(seed: u64, f: impl FnOnce(Runtime) -> T + Send + 'static) -> T {
    let config = SimConfig {
        stack_bytes: 1 << 20,
        max_steps: 20_000_000,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, f);
    outcome
        .result
        .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

/// Puts, flushes, compactions and deletes.
fn live(store: &Store, dice: &mut Dice) {
    let keyspace = store.default_keyspace().unwrap();
    for step in 0..80u64 {
        match dice.below(12) {
            0 => keyspace.flush().unwrap(),
            1 => keyspace.compact_range(None, None).unwrap(),
            2 => keyspace.delete_range(&key(10), &key(20)).unwrap(),
            _ => {
                let value = vec![step as u8; dice.below(900) as usize];
                keyspace.put(&key(dice.below(50)), &value).unwrap();
            }
        }
    }
}

fn dirs(log: &Path, tables: &Path) -> Options {
    Options {
        log_dir: log.into(),
        table_dir: tables.into(),
        ..small()
    }
}

fn fill(path: &Path, options: Options) {
    let store = Store::open(path, options).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..500 {
        ks.put(&key(i), &[1; 100]).unwrap();
    }
    store.flush().unwrap();
    ks.put(b"last", b"in the log").unwrap();
    store.close().unwrap();
}

#[track_caller]
fn is_whole(path: &Path) {
    let store = Store::open(path, small()).unwrap();
    let ks = store.default_keyspace().unwrap();
    assert_eq!(ks.get(b"last").unwrap(), Some(b"in the log".to_vec()));
    assert_eq!(ks.iter().unwrap().count(), 501);
    store.close().unwrap();
}

/// The names of the files in a folder, without that of its lease.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("LOCK.")).collect();
    names.sort();
    names
}

/// A store in a folder of another one would delete the other one's files as orphans, and the other
/// one would delete its files.
#[test]
fn no_store_is_made_in_a_folder_of_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let owner = fs::canonicalize(folder.path()).unwrap().join("s");
    let refused = |place: &str| {
        let before = names_in(&at(place));
        let none = Options {
            create_if_missing: false,
            ..small()
        };
        let storages = Storages::find(at(place)).unwrap();
        for error in [
            Store::open(at(place), small()).unwrap_err(),
            Store::open(at(place), none).unwrap_err(),
            Store::open_read_only(at(place), small()).unwrap_err(),
            check(&CheckStorages::of(&storages), &mut |_| ()).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{place}: {error}");
            let text = error.to_string();
            let whose = format!("the store in {}", owner.display());
            assert!(text.contains(&whose), "{place}: {text}");
            assert!(text.contains(place), "{place}: {text}");
        }
        Store::destroy(at(place)).unwrap_err();
        assert_eq!(names_in(&at(place)), before, "{place}");
    };
    // At first there are no tables.
    let store = Store::open(at("s"), dirs(&at("log"), &at("tables"))).unwrap();
    store.close().unwrap();
    assert!(!names_in(&at("tables")).iter().any(|n| n.ends_with(".tbl")));
    for place in ["log", "tables"] {
        refused(place);
    }
    fill(&at("s"), small());
    assert!(names_in(&at("tables")).iter().any(|n| n.ends_with(".tbl")));
    for place in ["log", "tables"] {
        refused(place);
    }
    is_whole(&at("s"));
    // An earlier version made a store in the folder of the tables. Nothing is deleted.
    fill(&at("other"), small());
    for name in names_in(&at("other")) {
        if name == "CURRENT" || name.starts_with("MANIFEST-") {
            fs::copy(at("other").join(&name), at("tables").join(&name)).unwrap();
        }
    }
    refused("tables");
    let before = names_in(&at("tables"));
    let error = Store::open(at("s"), small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(error.file(), Some("CURRENT"), "{error}");
    assert!(
        error.to_string().contains("another store was made"),
        "{error}"
    );
    assert_eq!(names_in(&at("tables")), before);
    // Do what the message says.
    fs::remove_file(at("tables/CURRENT")).unwrap();
    is_whole(&at("s"));
    // To destroy the store leaves the folder in which files of both would be.
    fs::copy(at("other/CURRENT"), at("tables/CURRENT")).unwrap();
    let before = names_in(&at("tables"));
    let report = Store::destroy(at("s")).unwrap();
    assert_eq!(report.left.len(), 1, "{:?}", report.left);
    let (place, why) = &report.left[0];
    assert!(place.ends_with("tables"), "{place}");
    assert!(why.contains("another store was made"), "{why}");
    assert_eq!(names_in(&at("tables")), before);
    assert!(!at("s").exists() && !at("log").exists());
}

/// A copy of the store's own folder, which sees the same folders of log and tables.
fn copy_of(folders: &Folders, layout: Layout) -> Folders {
    let [own, second, third] = folders.memory.clone();
    assert!(layout.log > 0 || layout.tables > 0);
    Folders::on(&folders.rt, [own.kill(), second, third])
}

/// An old copy of a store's folder, at the same path on another machine or in a clone of this one,
/// passes the test of OWNER. Its open deleted the tables that were made since.
#[test]
fn an_old_copy_of_a_stores_folder_is_refused() {
    for layout in &LAYOUTS[1..] {
        let layout = *layout;
        in_simulation(8, move |rt| {
            let folders = Folders::new(&rt);
            let store = folders.open(layout);
            live(&store, &mut Dice::new(8));
            store.close().unwrap();
            let copy = copy_of(&folders, layout);
            let store = folders.open(layout);
            live(&store, &mut Dice::new(9));
            store.flush().unwrap();
            let wanted = contents(&store);
            store.close().unwrap();
            let before = folders.names();
            for error in [
                copy.try_open(layout, small()).unwrap_err(),
                copy.read(layout).unwrap_err(),
                copy.check(layout).unwrap_err(),
            ] {
                assert_eq!(
                    error.kind(),
                    ErrorKind::InvalidArgument,
                    "{layout:?}: {error}"
                );
                assert_eq!(error.file(), Some("OPENED"), "{layout:?}: {error}");
                assert!(
                    error.to_string().contains("old copy"),
                    "{layout:?}: {error}"
                );
            }
            // To destroy it leaves what the other copy uses.
            let report = Store::destroy_on(&copy.storages(layout)).unwrap();
            assert!(!report.left.is_empty(), "{layout:?}");
            let left = |why: &str| why.contains("old copy");
            assert!(
                report.left.iter().all(|(_, why)| left(why)),
                "{:?}",
                report.left
            );
            assert_eq!(folders.names(), before, "{layout:?}");
            let store = folders.open(layout);
            assert_eq!(contents(&store), wanted, "{layout:?}");
            store.close().unwrap();
            folders.assert_sound(layout);
        });
    }
}

/// The open of another copy that was cut off between its notes has only one of the folders. To
/// destroy the older copy leaves them all, and needs no lease that the other copy holds.
#[test]
fn folders_of_another_copy_are_left_together() {
    in_simulation(15, |rt| {
        let folders = Folders::new(&rt);
        let store = folders.open(THREE);
        live(&store, &mut Dice::new(15));
        store.flush().unwrap();
        let wanted = contents(&store);
        store.close().unwrap();
        let copies = [copy_of(&folders, THREE), copy_of(&folders, THREE)];
        let fail = Fault::Fail(StorageErrorKind::Io);
        folders.add(Rule::on(OpKind::Replace, fail).named("OPENED").nth(2));
        folders.try_open(THREE, small()).unwrap_err();
        assert_eq!(folders.fired(), 1);
        folders.clear();
        let before = folders.names();
        let destroy = |copy: &Folders| {
            let report = Store::destroy_on(&copy.storages(THREE)).unwrap();
            let left = report.left.iter();
            let left: Vec<_> = left.filter(|(_, why)| why.contains("old copy")).collect();
            assert_eq!(left.len(), 2, "{:?}", report.left);
            assert_eq!(report.left.len(), 2, "{:?}", report.left);
        };
        destroy(&copies[0]);
        assert_eq!(folders.names(), before);
        let store = folders.open(THREE);
        destroy(&copies[1]);
        assert_eq!(contents(&store), wanted);
        store.close().unwrap();
        folders.assert_sound(THREE);
    });
}

/// An incomplete clone is refused, and the store that was cloned is no old copy of it.
#[test]
fn a_clone_without_its_log_takes_no_folder() {
    in_simulation(16, |rt| {
        let layout = Layout::of(0, 1);
        let folders = Folders::new(&rt);
        let store = folders.open(layout);
        let ks = store.default_keyspace().unwrap();
        common::put_synced(&ks, b"k", b"v");
        drop(ks);
        // It is not closed: without its log, a closed store still opens.
        drop(store);
        let folders = folders.kill();
        let clone = copy_of(&folders, layout);
        let own = &clone.memory[0];
        let lease = own.lease("thief").unwrap();
        for object in own.list().unwrap() {
            if object.name.ends_with(".log") {
                own.delete(lease.epoch(), &object.name).unwrap();
            }
        }
        drop(lease);
        let before = folders.memory[1].read_small("OPENED").unwrap();
        let error = clone.try_open(layout, small()).unwrap_err();
        assert!(error.is_corruption(), "{error}");
        assert!(error.file().is_some_and(|f| f.ends_with(".log")), "{error}");
        assert_eq!(folders.memory[1].read_small("OPENED").unwrap(), before);
        let store = folders.open(layout);
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()));
        drop(ks);
        store.close().unwrap();
        folders.assert_sound(layout);
    });
}

/// Of two equal copies, the one that is opened first goes on.
#[test]
fn the_copy_that_is_opened_first_goes_on() {
    in_simulation(9, |rt| {
        // The tables are elsewhere, and nothing changes them here.
        let layout = Layout::of(0, 1);
        let folders = Folders::new(&rt);
        let store = folders.open(layout);
        common::put_synced(&store.default_keyspace().unwrap(), b"k", b"v");
        store.flush().unwrap();
        store.close().unwrap();
        let copy = copy_of(&folders, layout);
        for _ in 0..2 {
            copy.open(layout).close().unwrap();
        }
        let error = folders.try_open(layout, small()).unwrap_err();
        assert_eq!(error.file(), Some("OPENED"), "{error}");
        // The copy is lost. Do what the message says.
        let tables = &folders.memory[1];
        let file = format!("delete {}/OPENED", tables.describe());
        assert!(error.to_string().contains(&file), "{error}");
        let lease = tables.lease("user").unwrap();
        tables.delete(lease.epoch(), "OPENED").unwrap();
        drop(lease);
        let store = folders.open(layout);
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()));
        drop(ks);
        store.close().unwrap();
        folders.assert_sound(layout);
        // Now the copy is the old one.
        let error = copy.try_open(layout, small()).unwrap_err();
        assert_eq!(error.file(), Some("OPENED"), "{error}");
    });
}

/// A store is not taken for an old copy of itself, wherever an open was cut off.
#[test]
fn an_open_that_was_cut_off_is_followed_by_another_one() {
    for layout in [LAYOUTS[2], THREE] {
        in_simulation(10, move |rt| {
            let folders = Folders::new(&rt);
            let store = folders.open(layout);
            let ks = store.default_keyspace().unwrap();
            for i in 0..20 {
                common::put_synced(&ks, &key(i), &[1; 300]);
            }
            let wanted = contents(&store);
            drop(ks);
            // It is not closed, so that an open writes tables of its log.
            drop(store);
            let left = folders.kill();
            for nth in 0.. {
                let folders = left.kill();
                let fail = Fault::Fail(StorageErrorKind::Io);
                folders.add(Rule::on_any(fail).nth(nth).for_good());
                let opened = folders.try_open(layout, small());
                let is_last = folders.fired() == 0;
                drop(opened);
                for image in folders.images(nth) {
                    let when = format!("{layout:?}, cut at call {nth}");
                    let store = image
                        .try_open(layout, small())
                        .unwrap_or_else(|e| panic!("{when}: {e}"));
                    assert_eq!(contents(&store), wanted, "{when}");
                    store.close().unwrap();
                    image.assert_sound(layout);
                }
                if is_last {
                    break;
                }
            }
        });
    }
}

/// What is left if an open was killed while it noted its number in the folder of the tables. The
/// new file is visible there, and a loss of power brings the old one back.
fn killed_in_its_note(folders: &Folders, layout: Layout) -> Folders {
    let done = folders.kill();
    let after = Fault::FailAfter(StorageErrorKind::Io);
    done.add(Rule::on(OpKind::Replace, after).named("OPENED").nth(1));
    done.try_open(layout, small()).unwrap_err();
    assert_eq!(done.fired(), 1);
    let noted = done.memory[1].read_small("OPENED").unwrap();
    let [own, _, _] = done.memory;
    let [_, tables, third] = folders.kill().memory;
    let lease = tables.lease("kernel").unwrap();
    tables.publish(lease.epoch(), "OPENED", &noted).unwrap();
    drop(lease);
    Folders::on(&folders.rt, [own.kill(), tables, third])
}

/// If several opens in a row were killed before their notes were synced, a loss of power brings
/// back the note that was there before them. The store was taken for an old copy of itself.
#[test]
fn opens_that_were_killed_in_a_row_lock_nobody_out() {
    in_simulation(14, |rt| {
        let layout = Layout::of(0, 1);
        let folders = Folders::new(&rt);
        let store = folders.open(layout);
        live(&store, &mut Dice::new(14));
        let wanted = contents(&store);
        store.close().unwrap();
        let mut left = folders.kill();
        for count in 1..=8 {
            left = killed_in_its_note(&left, layout);
            for image in [
                left.kill(),
                left.crash(CrashPolicy::LoseUnsynced),
                left.crash(CrashPolicy::KeepUnsynced),
            ] {
                let copy = copy_of(&image, layout);
                let store = image
                    .try_open(layout, small())
                    .unwrap_or_else(|e| panic!("after {count} opens: {e}"));
                assert_eq!(contents(&store), wanted, "{count}");
                store.close().unwrap();
                image.assert_sound(layout);
                // Two equal copies are told apart as before.
                let error = copy.try_open(layout, small()).unwrap_err();
                assert_eq!(error.file(), Some("OPENED"), "{error}");
            }
        }
    });
}

/// On a full disk a store that knows its folders opens, and is not taken for a copy later.
#[test]
fn a_full_disk_does_not_keep_a_store_from_its_folders() {
    for layout in &LAYOUTS[1..] {
        let layout = *layout;
        in_simulation(11, move |rt| {
            let folders = Folders::new(&rt);
            let store = folders.open(layout);
            common::put_synced(&store.default_keyspace().unwrap(), b"k", b"v");
            store.flush().unwrap();
            store.close().unwrap();
            for full in [&[0][..], &[1, 2], &[0, 1, 2]] {
                for folder in full {
                    let memory = &folders.memory[*folder];
                    memory.set_capacity(Some(memory.used_bytes()));
                }
                let store = folders.open(layout);
                let ks = store.default_keyspace().unwrap();
                assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()));
                drop(ks);
                drop(store);
                let all = folders.memory.iter();
                all.for_each(|memory| memory.set_capacity(None));
                folders.open(layout).close().unwrap();
                folders.assert_sound(layout);
            }
        });
    }
}
