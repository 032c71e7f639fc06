//! Checkpoints: the whole store at one moment, as a store of its own, whatever happens to either of
//! them.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Dice, Disk, contents, ingest, key, live, put_in_all, small};
use siltstone::check::{CheckStorages, check};
use siltstone::{ErrorKind, Options, Store, WriteOptions};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage, StorageErrorKind};

fn in_simulation<T: Send + 'static>(seed: u64, f: impl FnOnce(Runtime) -> T + Send + 'static) -> T {
    let config = SimConfig {
        stack_bytes: 1 << 20,
        max_steps: 10_000_000,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, f);
    outcome
        .result
        .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"))
}

fn assert_sound(storage: &dyn Storage) {
    let report = check(&CheckStorages::on(storage), &mut |_| ()).unwrap();
    assert!(report.is_sound(), "{:?}", report.problems);
    assert!(report.foreign.is_empty(), "{:?}", report.foreign);
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);
}

/// Every object with its bytes.
fn bytes_of(storage: &MemoryStorage) -> BTreeMap<String, Vec<u8>> {
    let objects = storage.list().unwrap().into_iter();
    objects
        .map(|o| (o.name.clone(), storage.read_small(&o.name).unwrap()))
        .collect()
}

#[test]
fn batches_and_keyspaces_are_whole_under_concurrent_writers() {
    let mut met_drop = [0; 2];
    for seed in 0..60 {
        let found = in_simulation(seed, move |rt| {
            let mut dice = Dice::new(seed);
            let disk = Disk::new(&rt);
            let store = disk.open();
            let names = ["a", "b", "c"];
            for name in names {
                store.create_keyspace(name).unwrap();
            }
            let gone = store.create_keyspace("gone").unwrap();
            for i in 0..20 {
                gone.put(&key(i), b"here").unwrap();
            }
            let writers: Vec<_> = (0..3u64)
                .map(|writer| {
                    let store = store.clone();
                    rt.spawn("writer", move || {
                        let all = names.map(|n| store.keyspace(n).unwrap());
                        for i in 0..60u64 {
                            let key = key(writer * 1000 + i);
                            let value = vec![i as u8; 40 * (i as usize % 60)];
                            put_in_all(
                                &store,
                                &[&all[0], &all[1], &all[2]],
                                &key,
                                &value,
                                WriteOptions {
                                    sync: i % 7 == 0,
                                    ..WriteOptions::default()
                                },
                            );
                        }
                    })
                    .unwrap()
                })
                .collect();
            let other = store.clone();
            let dropper = rt
                .spawn("dropper", move || {
                    other.keyspace("a").unwrap().flush().unwrap();
                    other.drop_keyspace("gone").unwrap();
                })
                .unwrap();
            let mut there = [0; 2];
            for _ in 0..1 + dice.below(3) {
                let target = MemoryStorage::new(&rt);
                let acknowledged = store.snapshot().number();
                let report = store.checkpoint_to(Arc::new(target.clone())).unwrap();
                assert!(report.published >= acknowledged);
                assert_sound(&target);
                let checkpoint = Disk::on(&rt, target).open();
                let all = contents(&checkpoint);
                assert_eq!(all["a"], all["b"], "half a batch");
                assert_eq!(all["a"], all["c"], "half a batch");
                for writer in 0..3u64 {
                    let own = all["a"]
                        .iter()
                        .map(|(k, _)| k)
                        .filter(|k| (key(writer * 1000)..key(writer * 1000 + 999)).contains(k));
                    let wanted = (0..).map(|i| key(writer * 1000 + i));
                    assert!(own.zip(wanted).all(|(a, b)| *a == b), "a hole in a history");
                }
                match all.get("gone") {
                    Some(pairs) => {
                        assert_eq!(pairs.len(), 20);
                        there[0] += 1;
                    }
                    None => there[1] += 1,
                }
            }
            for writer in writers {
                writer.join().unwrap();
            }
            dropper.join().unwrap();
            assert_eq!(contents(&store)["c"].len(), 180);
            there
        });
        met_drop = [met_drop[0] + found[0], met_drop[1] + found[1]];
    }
    assert!(
        met_drop.iter().all(|n| *n > 0),
        "the drop came before or after all checkpoints: {met_drop:?}"
    );
}

#[test]
fn a_checkpoint_does_not_change_while_its_source_is_written() {
    for seed in 0..25 {
        in_simulation(seed, move |rt| {
            let mut dice = Dice::new(seed);
            let disk = Disk::new(&rt);
            let store = disk.open();
            live(&disk, &store, &mut dice);
            let target = MemoryStorage::new(&rt);
            let report = store.checkpoint_to(Arc::new(target.clone())).unwrap();
            let wanted = contents(&store);
            assert_eq!(report.keyspace_count, wanted.len() as u64);
            let bytes = bytes_of(&target);
            live(&disk, &store, &mut dice);
            for name in store.keyspaces() {
                let keyspace = store.keyspace(&name).unwrap();
                keyspace.compact_range(None, None).unwrap();
            }
            store.wait_until_idle().unwrap();
            assert!(
                bytes == bytes_of(&target),
                "the source changed its checkpoint"
            );
            assert_sound(&target);
            // It does not need its source. It takes writes, and checkpoints can be made of it.
            drop(store);
            let copy = Disk::on(&rt, target);
            let checkpoint = copy.open();
            assert_eq!(contents(&checkpoint), wanted);
            live(&copy, &checkpoint, &mut dice);
            let wanted = contents(&checkpoint);
            let second = MemoryStorage::new(&rt);
            checkpoint.checkpoint_to(Arc::new(second.clone())).unwrap();
            checkpoint.close().unwrap();
            assert_eq!(contents(&Disk::on(&rt, second).open()), wanted);
            assert_eq!(contents(&copy.open()), wanted);
        });
    }
}

#[test]
fn checkpoints_of_empty_and_of_held_memtables_are_whole() {
    in_simulation(3, |rt| {
        let copy = |store: &Store| {
            let target = MemoryStorage::new(&rt);
            let report = store.checkpoint_to(Arc::new(target.clone())).unwrap();
            assert_sound(&target);
            (report, contents(&Disk::on(&rt, target).open()))
        };
        let disk = Disk::new(&rt);
        let store = disk.open();
        let (report, all) = copy(&store);
        assert_eq!((report.table_count, report.written_table_count), (0, 0));
        assert_eq!(all, contents(&store));

        let ks = store.default_keyspace().unwrap();
        for i in 0..100 {
            ks.put(&key(i), b"in memory").unwrap();
        }
        let (report, all) = copy(&store);
        assert_eq!(report.table_count, 0);
        assert!(report.written_table_count > 0);
        assert_eq!(all, contents(&store));

        // A memtable that is kept from being flushed lies below newer ones.
        let hooks = store.test_hooks();
        hooks.seal_and_hold(&ks).unwrap();
        ingest(&disk, &hooks, &ks, &[(&key(5), b"ingested")]);
        ks.put(&key(6), b"above").unwrap();
        ks.flush().unwrap();
        ks.delete_range(&key(10), &key(20)).unwrap();
        let (_, all) = copy(&store);
        assert_eq!(all, contents(&store));
        assert_eq!(all["default"].len(), 90);
    });
}

#[test]
fn data_that_waits_for_room_is_in_a_checkpoint() {
    for creates in [true, false] {
        in_simulation(3, move |rt| {
            let disk = Disk::new(&rt);
            let store = disk.open_with(Options {
                log_segment_bytes: 512 << 10,
                ..small()
            });
            let hooks = store.test_hooks();
            let (a, b) = common::two(&store);
            b.put(&key(1), b"in memory").unwrap();
            let long = |i: u8| vec![i; 7_000];
            let tables: Vec<_> = (0..8)
                .map(|i| common::table(&disk, &hooks, &[(&long(i), b"ingested")]))
                .collect();
            hooks.pause_compaction(true);
            disk.memory.set_capacity(Some(disk.memory.used_bytes()));
            if creates {
                for i in 0.. {
                    let name = format!("{i:0250}");
                    store.create_keyspace(&name).unwrap();
                    if hooks.pending_edit_count() > 0 {
                        break;
                    }
                }
            } else {
                for table in tables {
                    hooks.ingest(&a, vec![table]).unwrap();
                    if hooks.pending_edit_count() > 0 {
                        break;
                    }
                }
                assert_eq!(hooks.unsettled_run_count(&a), 1);
            }
            assert_eq!(hooks.pending_edit_count(), 1);
            let target = MemoryStorage::new(&rt);
            store.checkpoint_to(Arc::new(target.clone())).unwrap();
            assert_eq!(hooks.pending_edit_count(), 1, "it was installed meanwhile");
            assert_sound(&target);
            let checkpoint = Disk::on(&rt, target).open();
            assert_eq!(contents(&checkpoint), contents(&store));
            // Numbers and ids continue above those of the source.
            checkpoint.create_keyspace("new").unwrap();
            let ks = checkpoint.keyspace("a").unwrap();
            ks.put(&key(1), b"changed").unwrap();
            assert_eq!(ks.get(&key(1)).unwrap(), Some(b"changed".to_vec()));
            checkpoint.close().unwrap();
        });
    }
}

/// A store with some of every kind of data.
fn mixed(rt: &Runtime, seed: u64) -> (Disk, Store) {
    let disk = Disk::new(rt);
    let store = disk.open();
    live(&disk, &store, &mut Dice::new(seed));
    store
        .open_keyspace("last")
        .unwrap()
        .put(b"k", b"in memory")
        .unwrap();
    (disk, store)
}

#[test]
fn a_crash_at_any_call_leaves_a_whole_checkpoint_or_none() {
    let mut outcomes = [0; 2];
    for seed in 0..4 {
        let found = in_simulation(seed, move |rt| {
            let (disk, store) = mixed(&rt, seed);
            let wanted = contents(&store);
            let target = MemoryStorage::new(&rt);
            target.start_journal();
            store.checkpoint_to(Arc::new(target.clone())).unwrap();
            let mut replay = target.replay();
            let mut outcomes = [0; 2];
            for at in 0..=replay.len() {
                replay.advance_to(at);
                let images = [
                    replay.kill_in(&rt),
                    replay.crash(CrashPolicy::LoseUnsynced).0,
                    replay.crash(CrashPolicy::KeepUnsynced).0,
                    replay.crash(CrashPolicy::Seeded(seed << 20 | at)).0,
                ];
                for image in images {
                    let disk = Disk::on(&rt, image.clone());
                    match disk.try_open(Options {
                        create_if_missing: false,
                        ..small()
                    }) {
                        Ok(opened) => {
                            assert_eq!(contents(&opened), wanted, "cut at call {at}");
                            outcomes[0] += 1;
                        }
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                            outcomes[1] += 1;
                            let made = disk.try_open(small());
                            if let Err(error) = &made {
                                assert!(
                                    error.to_string().contains("unfinished checkpoint"),
                                    "cut at call {at} of {}: {error}: {:?}",
                                    replay.len(),
                                    image.list()
                                );
                                // The next attempt replaces it.
                                store.checkpoint_to(Arc::new(image.clone())).unwrap();
                                assert_sound(&image);
                                assert_eq!(contents(&disk.open()), wanted);
                            }
                        }
                    }
                }
            }
            assert_eq!(contents(&store), wanted);
            assert_eq!(contents(&disk.kill().open()), wanted);
            outcomes
        });
        outcomes = [outcomes[0] + found[0], outcomes[1] + found[1]];
    }
    assert!(outcomes.iter().all(|n| *n > 20), "{outcomes:?}");
}

#[test]
fn a_failure_at_any_call_leaves_the_source_as_it_was() {
    let tried = in_simulation(5, |rt| {
        let (_disk, store) = mixed(&rt, 5);
        let wanted = contents(&store);
        for nth in 0.. {
            for kind in [StorageErrorKind::Io, StorageErrorKind::NoSpace] {
                let target = Disk::new(&rt);
                target
                    .faults
                    .add(Rule::on_changes(Fault::Fail(kind)).nth(nth));
                let result = store.checkpoint_to(Arc::new(target.faults.clone()));
                if target.faults.fired_count(0) == 0 {
                    result.unwrap();
                    return nth;
                }
                let failed = result.is_err();
                target.faults.clear();
                let opened = target.try_open(Options {
                    create_if_missing: false,
                    ..small()
                });
                match opened {
                    Ok(checkpoint) => assert_eq!(contents(&checkpoint), wanted),
                    Err(error) => {
                        assert!(failed, "call {nth}: {error}");
                        assert_eq!(error.kind(), ErrorKind::NotFound, "call {nth}: {error}");
                        store
                            .checkpoint_to(Arc::new(target.memory.clone()))
                            .unwrap();
                        assert_sound(&target.memory);
                    }
                }
                assert_eq!(store.stats().health, "good");
            }
        }
        unreachable!()
    });
    assert!(tried > 15, "only {tried} calls");
}

#[test]
fn full_targets_and_targets_in_use_are_refused() {
    in_simulation(7, |rt| {
        let (_disk, store) = mixed(&rt, 7);
        // Range deletes give space back over time, which would make later checkpoints smaller.
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        let last = store.keyspace("last").unwrap();
        last.put(b"k", b"in memory again").unwrap();
        let target = MemoryStorage::new(&rt);
        store.checkpoint_to(Arc::new(target.clone())).unwrap();
        let needed = target.used_bytes();
        let error = store
            .checkpoint_to(Arc::new(target.clone()))
            .expect_err("there is one already");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_sound(&target);
        for part in 0..8 {
            let target = MemoryStorage::new(&rt);
            target.set_capacity(Some(needed * part / 8));
            let error = store
                .checkpoint_to(Arc::new(target.clone()))
                .expect_err("it is full");
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            assert!(target.used_bytes() <= 4096, "space was not given back");
            target.set_capacity(None);
            store.checkpoint_to(Arc::new(target.clone())).unwrap();
            assert_sound(&target);
        }
        let foreign = MemoryStorage::new(&rt);
        let epoch = foreign.lease("x").unwrap().epoch();
        foreign.replace(epoch, "letter.txt", b"dear").unwrap();
        let error = store.checkpoint_to(Arc::new(foreign.clone())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(foreign.list().unwrap().len(), 1);
        let ks = store.open_keyspace("still").unwrap();
        ks.put(b"k", b"v").unwrap();
        store.close().unwrap();
    });
}

#[test]
fn a_checkpoint_in_a_folder_outlives_its_store() {
    use std::os::unix::fs::MetadataExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, target) = (folder.path().join("store"), folder.path().join("copy"));
    let partial = folder.path().join("copy.partial");
    let store = Store::open(&path, small()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..2000 {
        ks.put(&key(i), &[1; 100]).unwrap();
    }
    store.flush().unwrap();
    ks.put(b"last", b"in memory").unwrap();

    // An interrupted checkpoint is replaced. A file of somebody else is not, and neither is a
    // target that has something in it.
    std::fs::create_dir(&partial).unwrap();
    std::fs::write(partial.join("letter.txt"), "dear").unwrap();
    let error = store.checkpoint(&target).unwrap_err();
    assert!(error.to_string().contains("letter.txt"), "{error}");
    std::fs::rename(partial.join("letter.txt"), partial.join("00000001-x.tbl")).unwrap();
    assert_eq!(
        store.checkpoint(&target).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    for name in ["PARTIAL", "CURRENT", ".CURRENT.tmp"] {
        std::fs::write(partial.join(name), "").unwrap();
    }
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("letter.txt"), "dear").unwrap();
    let error = store.checkpoint(&target).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    std::fs::remove_file(target.join("letter.txt")).unwrap();
    let report = store.checkpoint(&target).unwrap();
    assert!(report.table_count > 0 && report.written_table_count == 1);
    assert!(!partial.exists() && !target.join("PARTIAL").exists());
    let links = std::fs::read_dir(&target)
        .unwrap()
        .map(|e| e.unwrap().metadata().unwrap().nlink())
        .filter(|n| *n == 2)
        .count();
    assert_eq!(links as u64, report.table_count);

    // The source is emptied, and its checkpoint does not change.
    ks.delete_range(b"", b"z").unwrap();
    ks.compact_range(None, None).unwrap();
    store.close().unwrap();
    drop(ks);
    std::fs::remove_dir_all(&path).unwrap();
    let storage = siltstone_storage::FileStorage::open_existing(&target).unwrap();
    assert_sound(&storage);
    let reader = Store::open_read_only(&target, small()).unwrap();
    let ks = reader.default_keyspace().unwrap();
    assert_eq!(ks.iter().unwrap().count(), 2001);
    assert_eq!(ks.get(b"last").unwrap(), Some(b"in memory".to_vec()));
    reader.close().unwrap();
    let store = Store::open(&target, small()).unwrap();
    store
        .default_keyspace()
        .unwrap()
        .put(b"more", b"written")
        .unwrap();
    store.close().unwrap();
}
