//! Stores whose log and tables are in folders of their own.

mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::folders::{Folders, LAYOUTS, Layout};
use common::{Dice, contents, key, small};
use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::{ErrorKind, Options, Storages, Store, WriteOptions};
use siltstone_storage::fault::{Fault, FaultStorage, PLACE, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

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

/// Batches over two keyspaces, flushes, compactions and deletes. Every fifth write is synced.
fn live(store: &Store, dice: &mut Dice) {
    let (a, b) = (
        store.open_keyspace("a").unwrap(),
        store.open_keyspace("b").unwrap(),
    );
    for step in 0..80u64 {
        match dice.below(12) {
            0 => a.flush().unwrap(),
            1 => b.compact_range(None, None).unwrap(),
            2 => a.delete_range(&key(10), &key(20)).unwrap(),
            _ => {
                let value = vec![step as u8; dice.below(900) as usize];
                let options = WriteOptions {
                    sync: step % 5 == 0,
                    ..WriteOptions::default()
                };
                common::put_in_all(store, &[&a, &b], &key(dice.below(50)), &value, options);
            }
        }
    }
}

#[test]
fn each_part_is_in_its_folder() {
    for layout in LAYOUTS {
        in_simulation(1, move |rt| {
            let folders = Folders::new(&rt);
            let store = folders.open(layout);
            live(&store, &mut Dice::new(1));
            store.flush().unwrap();
            let wanted = contents(&store);
            store.close().unwrap();
            folders.assert_sound(layout);
            let is_elsewhere = layout != LAYOUTS[0];
            for (i, names) in folders.names().into_iter().enumerate() {
                let has = |what: &str| names.iter().any(|n| n.ends_with(what));
                assert_eq!(has(".tbl"), layout.tables == i, "{layout:?} {i}: {names:?}");
                assert_eq!(has(".log"), layout.log == i, "{layout:?} {i}: {names:?}");
                assert_eq!(has("CURRENT"), i == 0, "{layout:?} {i}: {names:?}");
                assert_eq!(has("DIRECTORIES"), i == 0 && is_elsewhere);
                let used = i > 0 && (layout.log == i || layout.tables == i);
                assert_eq!(has("OWNER"), used, "{layout:?} {i}: {names:?}");
            }
            let reader = folders.read(layout).unwrap();
            assert_eq!(contents(&reader), wanted);
            drop(reader);
            let store = folders.open(layout);
            assert_eq!(contents(&store), wanted);
            // A checkpoint is a whole store in one folder.
            let target = MemoryStorage::new(&rt);
            store.checkpoint_to(Arc::new(target.clone())).unwrap();
            store.close().unwrap();
            let report = check(&CheckStorages::on(&target), &mut |_| ()).unwrap();
            assert!(report.is_sound() && report.foreign.is_empty());
            assert_eq!(contents(&common::Disk::on(&rt, target).open()), wanted);
            // So is a repaired store.
            let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&rt));
            let source = RepairSource::of(folders.storages(layout));
            let report = repair(
                &source,
                &target,
                &rt,
                &RepairOptions::default(),
                &mut |_| (),
            )
            .unwrap();
            assert!(
                report.lost.is_empty() && report.damage.is_empty(),
                "{report:?}"
            );
            let components = siltstone::Components::on(target, rt.clone());
            let repaired = Store::open_with(components, small()).unwrap();
            assert_eq!(contents(&repaired), wanted);
        });
    }
}

#[test]
fn an_interrupted_creation_resumes_at_the_next_open() {
    for layout in LAYOUTS {
        in_simulation(2, move |rt| {
            for nth in 0.. {
                let folders = Folders::new(&rt);
                folders.add(
                    Rule::on_any(Fault::Fail(StorageErrorKind::Io))
                        .nth(nth)
                        .for_good(),
                );
                let opened = folders.try_open(layout, small());
                let is_last = folders.fired() == 0;
                // Some calls may fail without harm: those about statistics.
                assert!(opened.is_ok() || !is_last, "call {nth}");
                drop(opened);
                for image in folders.images(nth) {
                    let when = format!("{layout:?}, cut at call {nth}");
                    let store = image
                        .try_open(layout, small())
                        .unwrap_or_else(|e| panic!("{when}: {e}"));
                    store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
                    store.close().unwrap();
                    image.assert_sound(layout);
                    // It is durable.
                    let store = image.crash(CrashPolicy::KeepUnsynced).open(layout);
                    let ks = store.default_keyspace().unwrap();
                    assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()), "{when}");
                }
                if is_last {
                    break;
                }
            }
        });
    }
}

#[test]
fn an_error_at_any_call_of_a_creation_is_reported_and_can_be_repeated() {
    in_simulation(3, |rt| {
        for fault in [
            Fault::Fail(StorageErrorKind::Io),
            Fault::Fail(StorageErrorKind::NoSpace),
            Fault::FailAfter(StorageErrorKind::Io),
        ] {
            for nth in 0.. {
                let folders = Folders::new(&rt);
                folders.add(Rule::on_changes(fault).nth(nth));
                let opened = folders.try_open(THREE, small());
                let fired = folders.fired() > 0;
                folders.clear();
                drop(opened);
                let store = folders.open(THREE);
                store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
                store.close().unwrap();
                folders.assert_sound(THREE);
                if !fired {
                    break;
                }
            }
        }
    });
}

/// What was synced survives, and of the rest a suffix is lost, whichever folder loses what.
#[test]
fn a_power_loss_of_all_folders_leaves_a_prefix() {
    for seed in 0..40 {
        in_simulation(seed, move |rt| {
            let mut dice = Dice::new(seed);
            let layout = LAYOUTS[1 + seed as usize % 4];
            let mut folders = Folders::new(&rt);
            let mut known = 0;
            for life in 0..4u64 {
                let store = folders.open(layout);
                let all = store.open_keyspace("a").unwrap();
                let other = store.open_keyspace("b").unwrap();
                let first = common::prefix_len(&all);
                assert!(
                    first >= known,
                    "{layout:?}: {first} of {known} synced writes"
                );
                assert_eq!(first, common::prefix_len(&other), "half a batch");
                // From some call on nothing reaches the disks.
                folders.add(
                    Rule::on_changes(Fault::Fail(StorageErrorKind::Io))
                        .nth(dice.below(400))
                        .for_good(),
                );
                let mut next = first;
                known = first;
                loop {
                    let sync = dice.below(6) == 0;
                    let mut batch = siltstone::Batch::new();
                    for ks in [&all, &other] {
                        batch.put(ks, &key(next), &[life as u8; 700]).unwrap();
                    }
                    if store
                        .write(
                            &batch,
                            WriteOptions {
                                sync,
                                ..WriteOptions::default()
                            },
                        )
                        .is_err()
                    {
                        break;
                    }
                    next += 1;
                    if sync {
                        known = next;
                    }
                    if dice.below(15) == 0 {
                        let _ = all.flush();
                    }
                    if next > first + 400 {
                        break;
                    }
                }
                drop((all, other));
                drop(store);
                folders = folders.crash(CrashPolicy::Seeded(seed << 8 | life));
            }
            folders.open(layout).close().unwrap();
            folders.assert_sound(layout);
        });
    }
}

/// The file DIRECTORIES is lost. The error for a store that seems to be in one folder names this
/// file. An open that is given the right folders writes it again.
#[test]
fn a_lost_file_of_directories_is_named_and_written_again() {
    in_simulation(7, |rt| {
        let folders = Folders::new(&rt);
        let store = folders.open(THREE);
        common::put_synced(&store.default_keyspace().unwrap(), b"k", b"v");
        store.flush().unwrap();
        store.close().unwrap();
        let root = &folders.memory[0];
        let file = root.read_small("DIRECTORIES").unwrap();
        let epoch = root.lease("thief").unwrap().epoch();
        root.delete(epoch, "DIRECTORIES").unwrap();
        root.sync_dir(epoch).unwrap();
        let exchanged = Layout::of(2, 1);
        let only_tables = Layout::of(0, 2);
        for error in [
            folders.try_open(exchanged, small()).expect_err("it opened"),
            folders
                .try_open(only_tables, small())
                .expect_err("it opened"),
            folders.check(THREE).expect_err("it was checked"),
        ] {
            assert_eq!(error.file(), Some("DIRECTORIES"), "{error}");
        }
        // Without the other folders, the tables seem to be lost.
        let error = folders.try_open(LAYOUTS[0], small()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("DIRECTORIES"), "{text}");
        assert!(text.contains("on a device"), "{text}");
        assert!(root.read_small("DIRECTORIES").is_err());
        folders.read(THREE).unwrap().close().unwrap();
        assert!(root.read_small("DIRECTORIES").is_err());
        let store = folders.open(THREE);
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()));
        drop(ks);
        store.close().unwrap();
        assert_eq!(root.read_small("DIRECTORIES").unwrap(), file);
        folders.crash(CrashPolicy::LoseUnsynced).assert_sound(THREE);
    });
}

/// On a full disk a store that has lost the file opens with the folders that it is given. The file
/// is written again once there is room.
#[test]
fn a_lost_file_of_directories_waits_for_room() {
    in_simulation(12, |rt| {
        let folders = Folders::new(&rt);
        let store = folders.open(THREE);
        common::put_synced(&store.default_keyspace().unwrap(), b"k", b"v");
        store.flush().unwrap();
        store.close().unwrap();
        let root = &folders.memory[0];
        let file = root.read_small("DIRECTORIES").unwrap();
        let lease = root.lease("thief").unwrap();
        root.delete(lease.epoch(), "DIRECTORIES").unwrap();
        root.sync_dir(lease.epoch()).unwrap();
        drop(lease);
        root.set_capacity(Some(root.used_bytes()));
        let store = folders.open(THREE);
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"k").unwrap(), Some(b"v".to_vec()));
        drop(ks);
        drop(store);
        assert!(root.read_small("DIRECTORIES").is_err());
        root.set_capacity(None);
        folders.open(THREE).close().unwrap();
        assert_eq!(root.read_small("DIRECTORIES").unwrap(), file);
        folders.assert_sound(THREE);
    });
}

/// A failed sync of the log's folder or of the tables' folder poisons the store, because only one
/// of several jobs gets the error.
#[test]
fn a_failed_sync_of_any_folder_poisons() {
    in_simulation(5, |rt| {
        for folder in [1, 2] {
            let folders = Folders::new(&rt);
            let failing = FaultStorage::new(Arc::new(folders.memory[folder].clone()), &rt);
            let mut storages = folders.storages(THREE);
            match folder {
                1 => storages.log = Arc::new(failing.clone()),
                _ => storages.tables = Arc::new(failing.clone()),
            }
            let components = siltstone::Components::of(storages, rt.clone());
            let store = Store::open_with(components, small()).unwrap();
            let (a, b) = common::two(&store);
            common::put_synced(&a, &key(0), b"v");
            failing.add(Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)));
            let failed = (1..1000).find_map(|i| {
                let done = b.put(&key(i), &[1; 1000]).and_then(|()| match folder {
                    1 => store.sync_log(),
                    _ => store.flush(),
                });
                done.err()
            });
            assert!(failed.is_some(), "folder {folder}");
            assert_eq!(failing.fired_count(0), 1);
            // Later calls do not succeed either.
            for error in [a.put(b"k", b"w"), store.flush()] {
                let error = error.unwrap_err();
                assert_eq!(
                    error.kind(),
                    ErrorKind::Poisoned,
                    "folder {folder}: {error}"
                );
            }
            drop((a, b));
            drop(store);
            let folders = folders.crash(CrashPolicy::LoseUnsynced);
            let store = folders.open(THREE);
            let a = store.keyspace("a").unwrap();
            assert_eq!(a.get(&key(0)).unwrap(), Some(b"v".to_vec()));
        }
    });
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

#[test]
fn options_place_a_new_store_and_never_move_an_old_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fill(&at("s"), dirs(&at("fast/log"), Path::new("../tables")));
    assert!(at("tables/OWNER").exists() && at("fast/log/OWNER").exists());
    is_whole(&at("s"));
    // The same options again, with other paths for the same folders, and only one of the two.
    for same in [
        dirs(&at("fast/log"), &at("tables")),
        dirs(&at("s/../fast/log"), Path::new("")),
    ] {
        Store::open(at("s"), same).unwrap().close().unwrap();
    }
    let opens: [(&str, Options); 3] = [
        ("log_dir", dirs(&at("other"), &at("tables"))),
        ("table_dir", dirs(Path::new(""), &at("s"))),
        ("log_dir", dirs(&at("s"), Path::new(""))),
    ];
    for (name, options) in opens {
        let error = Store::open(at("s"), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let text = error.to_string();
        assert!(text.contains(name) && text.contains("leave"), "{text}");
    }
    assert!(!at("other").exists(), "a refused open creates nothing");
    // A store in one folder stays in one folder.
    fill(&at("one"), small());
    let error = Store::open(at("one"), dirs(&at("other"), Path::new(""))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(!at("other").exists() && !at("one/DIRECTORIES").exists());
    is_whole(&at("one"));
    // The store's own folder, given by its path, is not another folder.
    fill(&at("two"), dirs(&at("two"), Path::new(".")));
    assert!(!at("two/DIRECTORIES").exists());
    // The folders cannot change while the store is open.
    let store = Store::open(at("two"), small()).unwrap();
    let error = store.set_option("log_dir", "/elsewhere").unwrap_err();
    assert!(error.to_string().contains("created"), "{error}");
    store.close().unwrap();
    // The file of options can hold them.
    let options = dirs(&at("a b"), Path::new("t"));
    assert_eq!(Options::from_toml(&options.to_toml()).unwrap(), options);
    let error = dirs(Path::new("a\nb"), Path::new(""))
        .validate()
        .unwrap_err();
    assert!(error.to_string().contains("log_dir"), "{error}");
}

/// A copy of a store's folder names the log and the tables of the original; it is refused.
#[test]
fn copies_and_other_stores_are_refused_and_moves_can_be_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fill(&at("s"), dirs(&at("log"), &at("tables")));
    let tables = || {
        let mut names: Vec<_> = fs::read_dir(at("tables"))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    let before = tables();
    let copy = |to: &Path| {
        fs::create_dir(to).unwrap();
        for entry in fs::read_dir(at("s")).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&at("copy"));
    let storages = Storages::find(at("copy")).unwrap();
    let errors = [
        Store::open(at("copy"), small()).unwrap_err(),
        Store::open_read_only(at("copy"), small()).unwrap_err(),
        check(&CheckStorages::of(&storages), &mut |_| ()).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let text = error.to_string();
        assert!(text.contains("copy of that store's folder"), "{text}");
        assert!(
            text.contains("OWNER") && text.contains("silt checkpoint"),
            "{text}"
        );
    }
    assert_eq!(tables(), before);
    // Destroying the copy leaves the files of the original.
    let report = Store::destroy(at("copy")).unwrap();
    assert_eq!(report.left.len(), 2, "{:?}", report.left);
    assert!(
        report
            .left
            .iter()
            .all(|(_, why)| why.contains("belongs to"))
    );
    assert!(!at("copy").exists());
    assert_eq!(tables(), before);
    is_whole(&at("s"));
    // Another store cannot share the folders.
    for options in [
        dirs(&at("log"), Path::new("")),
        dirs(Path::new(""), &at("tables")),
        dirs(&at("s"), Path::new("")),
    ] {
        let error = Store::open(at("new"), options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(!at("new/DIRECTORIES").exists(), "{error}");
        assert!(!at("new/CURRENT").exists(), "{error}");
    }
    // The store's folder is moved, and the files are edited; then the folder of the log is moved.
    fs::rename(at("s"), at("moved")).unwrap();
    assert!(Store::open(at("moved"), small()).is_err());
    for other in ["log/OWNER", "tables/OWNER"] {
        let text = fs::read_to_string(at(other)).unwrap();
        let old = fs::canonicalize(folder.path()).unwrap().join("s");
        let new = fs::canonicalize(at("moved")).unwrap();
        let text = text.replace(old.to_str().unwrap(), new.to_str().unwrap());
        fs::write(at(other), text).unwrap();
    }
    is_whole(&at("moved"));
    fs::rename(at("log"), at("log2")).unwrap();
    let error = Store::open(at("moved"), small()).unwrap_err();
    assert!(error.to_string().contains("mount its disk"), "{error}");
    assert!(
        !at("log").exists(),
        "an old store's folders are not created"
    );
    let file = at("moved/DIRECTORIES");
    let text = fs::read_to_string(&file).unwrap();
    let lines: Vec<String> = text
        .lines()
        .map(|line| match line.split_once(' ').unwrap() {
            ("log", path) => format!("log {path}2"),
            ("crc32c", _) => "crc32c edited".to_string(),
            _ => line.to_string(),
        })
        .collect();
    fs::write(&file, lines[..4].join("\n") + "\ncrc32c 00000000\n").unwrap();
    let error = Store::open(at("moved"), small()).unwrap_err();
    assert!(error.is_corruption(), "{error}");
    assert!(error.to_string().contains("crc32c edited"), "{error}");
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    is_whole(&at("moved"));
    // An empty folder is in the place of the tables: their disk is not mounted.
    fs::rename(at("tables"), at("unmounted")).unwrap();
    fs::create_dir(at("tables")).unwrap();
    let error = Store::open(at("moved"), small()).unwrap_err();
    assert!(error.to_string().contains("is its disk mounted"), "{error}");
    assert_eq!(
        fs::read_dir(at("tables"))
            .unwrap()
            .filter(|e| {
                !e.as_ref()
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with("LOCK.")
            })
            .count(),
        0
    );
    fs::remove_dir_all(at("tables")).unwrap();
    fs::rename(at("unmounted"), at("tables")).unwrap();
    is_whole(&at("moved"));
}

#[test]
fn every_folder_has_a_lease_and_orphans_are_deleted_only_in_their_own_folder() {
    in_simulation(7, |rt| {
        let folders = Folders::new(&rt);
        let store = folders.open(THREE);
        assert_eq!(
            folders.try_open(THREE, small()).unwrap_err().kind(),
            ErrorKind::Locked
        );
        assert_eq!(folders.read(THREE).unwrap_err().kind(), ErrorKind::Locked);
        for memory in &folders.memory {
            assert!(memory.lease_shared("store").is_err());
        }
        let ks = store.default_keyspace().unwrap();
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        drop(ks);
        store.close().unwrap();
        // If one folder is in use, no writer gets any, and the other leases are free.
        let share = folders.memory[2].lease_shared("store").unwrap();
        assert_eq!(
            folders.try_open(THREE, small()).unwrap_err().kind(),
            ErrorKind::Locked
        );
        drop(folders.memory[1].lease("store").unwrap());
        folders.read(THREE).unwrap().close().unwrap();
        drop(share);
        // Files with the names of orphans, in every folder.
        let names = [
            "00000001-00000009-0000-00000.tbl",
            "2024-sales.tbl",
            "letter",
        ];
        for memory in &folders.memory {
            let lease = memory.lease("user").unwrap();
            for name in names {
                memory.create(lease.epoch(), name).unwrap();
            }
        }
        let report = folders.check(THREE).unwrap();
        let of = |list: &[siltstone_storage::ObjectMeta]| -> Vec<String> {
            list.iter().map(|o| o.name.clone()).collect()
        };
        assert_eq!(of(&report.orphans), [format!("/large/{}", names[0])]);
        assert_eq!(report.foreign.len(), 8, "{:?}", report.foreign);
        folders.open(THREE).close().unwrap();
        for (i, all) in folders.names().into_iter().enumerate() {
            let has = |name: &str| all.iter().any(|n| n == name);
            assert_eq!(has(names[0]), i != 2, "folder {i}: {all:?}");
            assert!(has(names[1]) && has(names[2]), "folder {i}: {all:?}");
        }
    });
}

/// An open found a folder that a killed open, or a user, had made, and made the files in it
/// durable, but never its name. A power loss took the whole store with everything that was
/// acknowledged.
#[test]
fn a_creation_syncs_the_names_of_its_folders() {
    in_simulation(1, |rt| {
        let folders = Folders::new(&rt);
        for failing in 0..3 {
            folders.clear();
            let fail = Fault::Fail(StorageErrorKind::Io);
            let rule = Rule::on(OpKind::SyncDir, fail).named(PLACE);
            folders.add(rule.nth(failing));
            let error = folders.try_open(THREE, small()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{error}");
            assert_eq!(folders.fired(), 1);
            // Nothing may be acknowledged, because there is no store yet.
            assert!(folders.memory[0].read_small("CURRENT").is_err());
        }
        folders.clear();
        let never = Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)).named(PLACE);
        let store = folders.try_open(THREE, small()).unwrap();
        live(&store, &mut Dice::new(1));
        store.close().unwrap();
        // Now they are durable.
        folders.add(never.for_good());
        let store = folders.try_open(THREE, small()).unwrap();
        assert_eq!(folders.fired(), 0);
        let lonely = || {
            let target = MemoryStorage::new(&rt);
            FaultStorage::new(Arc::new(target), &rt)
        };
        // A checkpoint and a repair sync the name as well.
        let target = lonely();
        target.add(Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)).named(PLACE));
        let error = store.checkpoint_to(Arc::new(target.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        store.checkpoint_to(Arc::new(target.clone())).unwrap();
        assert_eq!(target.fired_count(0), 1);
        store.close().unwrap();
        let target = lonely();
        target.add(Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)).named(PLACE));
        let made: Arc<dyn Storage> = Arc::new(target.clone());
        let again = || {
            let source = RepairSource::of(folders.storages(THREE));
            repair(&source, &made, &rt, &RepairOptions::default(), &mut |_| ())
        };
        assert_eq!(again().unwrap_err().kind(), ErrorKind::Io);
        again().unwrap();
        assert_eq!(target.fired_count(0), 1);
    });
}
