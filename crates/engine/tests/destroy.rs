//! Destroying a store: all of it or nothing, and nothing else.

mod common;

use std::fs;

use common::folders::{Folders, LAYOUTS, Layout};
use common::{Contents, contents, key, small};
use siltstone::{ErrorKind, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{MemoryStorage, Runtime, Storage, StorageErrorKind};

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

fn open_only() -> Options {
    Options {
        create_if_missing: false,
        ..small()
    }
}

/// A closed store with tables, several log segments and two keyspaces, and its contents.
fn filled(rt: &Runtime, layout: Layout) -> (Folders, Contents) {
    let folders = Folders::new(rt);
    let store = folders.open(layout);
    let (a, b) = common::two(&store);
    for i in 0..60 {
        a.put(&key(i), &[1; 300]).unwrap();
    }
    store.flush().unwrap();
    for i in 0..700 {
        b.put(&key(i), &[2; 200]).unwrap();
    }
    let all = contents(&store);
    store.close().unwrap();
    folders.assert_sound(layout);
    (folders, all)
}

fn put_beside(memory: &MemoryStorage, name: &str) {
    let lease = memory.lease("user").unwrap();
    memory.create(lease.epoch(), name).unwrap();
    memory.sync_dir(lease.epoch()).unwrap();
}

/// Either the whole store is there or none: never one that opens with less data. Returns whether it
/// is whole.
fn whole_or_none(image: &Folders, layout: Layout, wanted: &Contents, when: &str) -> bool {
    match image.try_open(layout, open_only()) {
        Ok(store) => {
            assert_eq!(&contents(&store), wanted, "{when}");
            return true;
        }
        Err(error) => assert!(
            error.kind() == ErrorKind::NotFound || error.is_corruption(),
            "{when}: {error}"
        ),
    }
    // An open that creates a missing store does not create one over what is left, either.
    let left = image.names();
    let data = |n: &String| n.ends_with(".tbl") || n == "DESTROYED";
    if left.iter().flatten().any(data) {
        let error = image.try_open(layout, small()).unwrap_err();
        assert!(
            error.to_string().contains("destroy") || error.is_corruption(),
            "{when}: {error}"
        );
    }
    false
}

#[test]
fn a_crash_at_any_call_leaves_the_whole_store_or_none() {
    for layout in LAYOUTS {
        let outcomes = in_simulation(1, move |rt| {
            let (source, wanted) = filled(&rt, layout);
            let mut outcomes = [0; 2];
            for nth in 0.. {
                let folders = source.kill();
                // From this call on nothing reaches the disks.
                let dead = Fault::Fail(StorageErrorKind::Io);
                folders.add(Rule::on_any(dead).nth(nth).for_good());
                let result = Store::destroy_on(&folders.storages(layout));
                let is_last = folders.fired() == 0;
                assert_eq!(result.is_ok(), is_last);
                for image in folders.images(nth) {
                    let when = format!("{layout:?}, cut at call {nth}");
                    let whole = whole_or_none(&image.kill(), layout, &wanted, &when);
                    outcomes[usize::from(!whole)] += 1;
                    assert!(!(whole && is_last), "{when}: it is still there");
                    // Destroying it again continues.
                    match Store::destroy_on(&image.storages(layout)) {
                        // A folder that is finished does not say any more that it belonged to the
                        // store.
                        Ok(report) => assert!(
                            report
                                .left
                                .iter()
                                .all(|(_, why)| why.contains("nothing of this store")),
                            "{when}: {:?}",
                            report.left
                        ),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{when}"),
                    }
                    assert_eq!(image.names(), [const { Vec::<String>::new() }; 3], "{when}");
                    // A new store begins empty.
                    let again = image.open(layout);
                    assert_eq!(contents(&again).len(), 1, "{when}");
                    drop(again);
                }
                if is_last {
                    break;
                }
            }
            outcomes
        });
        assert!(outcomes.iter().all(|n| *n > 8), "{layout:?}: {outcomes:?}");
    }
}

#[test]
fn an_error_at_any_call_leaves_the_whole_store_or_none() {
    for layout in LAYOUTS {
        in_simulation(2, move |rt| {
            let (source, wanted) = filled(&rt, layout);
            for fault in [
                Fault::Fail(StorageErrorKind::Io),
                Fault::FailAfter(StorageErrorKind::Io),
                Fault::Fail(StorageErrorKind::NoSpace),
            ] {
                for nth in 0.. {
                    let folders = source.kill();
                    // A file that is not found is reported as such, whatever follows.
                    let rule = match fault {
                        Fault::FailAfter(_) => Rule::on_changes(fault),
                        _ => Rule::on_any(fault),
                    };
                    folders.add(rule.nth(nth));
                    let failed = Store::destroy_on(&folders.storages(layout)).is_err();
                    if folders.fired() == 0 {
                        break;
                    }
                    assert!(failed, "{fault:?} at call {nth} was not reported");
                    folders.clear();
                    let when = format!("{layout:?}, {fault:?} at call {nth}");
                    for image in folders.images(nth) {
                        whole_or_none(&image, layout, &wanted, &when);
                    }
                    // Names that a failed sync lost stay lost: a second destroy that succeeds must
                    // be final all the same.
                    match Store::destroy_on(&folders.storages(layout)) {
                        Ok(_) => {}
                        Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{when}"),
                    }
                    for image in folders.images(nth) {
                        let opened = image.try_open(layout, open_only());
                        assert!(opened.is_err(), "{when}: the power went, and it is back");
                    }
                }
            }
        });
    }
}

#[test]
fn other_files_stay_and_are_named() {
    for layout in LAYOUTS {
        in_simulation(3, move |rt| {
            let (folders, _) = filled(&rt, layout);
            let foreign = ["letter.txt", "2024-sales.tbl", "MANIFEST", "notes.log"];
            for memory in &folders.memory {
                foreign.iter().for_each(|name| put_beside(memory, name));
            }
            let elsewhere = "00000001-00000001-0000-00000.tbl";
            if layout.tables != 0 {
                // The name of a table, in a folder in which the store has no tables.
                put_beside(&folders.memory[0], elsewhere);
            }
            let report = Store::destroy_on(&folders.storages(layout)).unwrap();
            assert!(report.deleted_file_count > 5 && report.deleted_bytes > 0);
            for (i, names) in folders.names().into_iter().enumerate() {
                let mut wanted: Vec<String> = foreign.map(str::to_string).into();
                wanted.extend((i == 0 && layout.tables != 0).then(|| elsewhere.to_string()));
                wanted.sort();
                assert_eq!(names, wanted, "{layout:?}, folder {i}");
            }
            let used = [0, layout.log, layout.tables];
            for (i, place) in ["/store", "/fast", "/large"].into_iter().enumerate() {
                let named = |name: &str| {
                    let path = format!("{place}/{name}");
                    report.left.iter().any(|(p, _)| *p == path)
                };
                assert_eq!(
                    foreign.iter().all(|name| named(name)),
                    used.contains(&i),
                    "{layout:?}: {:?}",
                    report.left
                );
            }
        });
    }
}

#[test]
fn folders_that_are_in_use_or_have_no_store_are_refused() {
    in_simulation(4, |rt| {
        let layout = Layout::of(1, 2);
        let folders = Folders::new(&rt);
        // Names alone do not make a store.
        for name in [
            "000000000001.log",
            "MANIFEST-000000000001",
            "RESERVE",
            "OPTIONS.toml",
        ] {
            put_beside(&folders.memory[0], name);
        }
        let before = folders.names();
        let error = Store::destroy_on(&folders.storages(LAYOUTS[0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("no siltstone store"), "{error}");
        assert_eq!(folders.names(), before);

        let (folders, wanted) = filled(&rt, layout);
        let destroy = || Store::destroy_on(&folders.storages(layout));
        let writer = folders.open(layout);
        assert_eq!(destroy().unwrap_err().kind(), ErrorKind::Locked);
        writer.close().unwrap();
        let reader = folders.read(layout).unwrap();
        assert_eq!(destroy().unwrap_err().kind(), ErrorKind::Locked);
        assert_eq!(contents(&reader), wanted);
        drop(reader);
        // A tool reads one of its folders.
        let tool = folders.memory[2].lease_shared("store").unwrap();
        assert_eq!(destroy().unwrap_err().kind(), ErrorKind::Locked);
        drop(tool);
        assert_eq!(contents(&folders.open(layout)), wanted);
        // These storages are not those of the store.
        let error = Store::destroy_on(&folders.storages(LAYOUTS[0])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        destroy().unwrap();
        assert_eq!(destroy().unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn damaged_and_full_stores_are_destroyed_too() {
    for layout in LAYOUTS {
        in_simulation(5, move |rt| {
            for damage in ["CURRENT", "MANIFEST", "both", "full"] {
                let (folders, _) = filled(&rt, layout);
                let root = &folders.memory[0];
                let lease = root.lease("damage").unwrap();
                let manifests: Vec<String> =
                    root.list().unwrap().into_iter().map(|o| o.name).collect();
                for name in manifests {
                    let hit = match damage {
                        "both" => name == "CURRENT",
                        "full" => false,
                        prefix => name.starts_with(prefix),
                    };
                    if hit && damage != "MANIFEST" {
                        root.delete(lease.epoch(), &name).unwrap();
                        root.sync_dir(lease.epoch()).unwrap();
                    } else if hit {
                        root.replace(lease.epoch(), &name, b"nothing").unwrap();
                    }
                }
                drop(lease);
                if damage == "full" {
                    let full = |m: &MemoryStorage| m.set_capacity(Some(m.used_bytes()));
                    folders.memory.iter().for_each(full);
                }
                let report = Store::destroy_on(&folders.storages(layout)).unwrap();
                assert!(report.left.is_empty(), "{damage}: {:?}", report.left);
                assert_eq!(
                    folders.names(),
                    [const { Vec::<String>::new() }; 3],
                    "{damage}"
                );
            }
        });
    }
}

#[test]
fn folders_are_removed_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let options = Options {
        log_dir: at("fast/log"),
        table_dir: "tables".into(),
        ..small()
    };
    let make = || {
        let store = Store::open(at("s"), options.clone()).unwrap();
        let ks = store.default_keyspace().unwrap();
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        store.close().unwrap();
        fs::write(at("s").join("OPTIONS.toml"), options.to_toml()).unwrap();
    };
    make();
    let report = Store::destroy(at("s")).unwrap();
    assert!(report.left.is_empty(), "{:?}", report.left);
    assert_eq!(report.removed.len(), 3, "{:?}", report.removed);
    assert!(!at("s").exists() && !at("fast/log").exists() && at("fast").exists());
    assert_eq!(
        Store::destroy(at("s")).unwrap_err().kind(),
        ErrorKind::NotFound
    );

    // A folder with foreign files stays, whether they are folders or have odd names; so does one
    // that was named by a link.
    make();
    fs::create_dir(at("s").join("mine")).unwrap();
    fs::write(at("fast/log").join("a letter.txt"), "dear").unwrap();
    std::os::unix::fs::symlink(at("s"), at("link")).unwrap();
    let report = Store::destroy(at("link")).unwrap();
    let named = |path: &std::path::Path| report.left.iter().any(|(p, _)| path.ends_with(p));
    assert!(named(&at("s/mine")) && named(&at("fast/log/a letter.txt")));
    assert!(named(&at("link")), "{:?}", report.left);
    assert!(at("s/mine").exists() && at("fast/log/a letter.txt").exists());
    assert_eq!(report.removed.len(), 1, "{:?}", report.removed);
    let left = fs::read_dir(at("s")).unwrap().count();
    assert_eq!(left, 2, "the lease's file and the user's folder");
    // The folder can be used again.
    make();
    Store::open(at("s"), small()).unwrap().close().unwrap();

    // A folder without a store's files is not a store.
    fs::create_dir(at("home")).unwrap();
    fs::write(at("home/letter.txt"), "dear").unwrap();
    let error = Store::destroy(at("home")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(fs::read_dir(at("home")).unwrap().count(), 1);
}
