//! Repairs that are interrupted, fail or find no room, and repairs of real files. `crates/sim`
//! (`repairs`) tries repairs of random damage.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::repair::{LostWhat, RepairOptions, RepairReport, RepairSource, SuspectWhy, repair};
use siltstone::{Batch, Components, ErrorKind, Options, Store, WriteOptions};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{
    CrashPolicy, FileStorage, MemoryStorage, Runtime, Storage, StorageErrorKind,
};

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        level1_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        background_tasks: 1,
        ..Options::default()
    }
}

fn repair_options() -> RepairOptions {
    RepairOptions {
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        ..RepairOptions::default()
    }
}

type Pairs = BTreeMap<(String, Vec<u8>), Vec<u8>>;
type Folder = BTreeMap<String, Vec<u8>>;

fn folder(storage: &dyn Storage) -> Folder {
    let objects = storage.list().unwrap();
    objects
        .into_iter()
        .map(|o| {
            let bytes = storage.read_small(&o.name).unwrap();
            (o.name, bytes)
        })
        .collect()
}

/// Fills two keyspaces, in tables and in the log, with overwrites, deletes and a range delete.
/// Returns their contents.
fn fill(store: &Store) -> Pairs {
    let mut pairs = Pairs::new();
    let names = ["default", "other"];
    for name in names {
        store.open_keyspace(name).unwrap();
    }
    for round in 0..3 {
        for i in 0..120u32 {
            let mut batch = Batch::new();
            for name in names {
                let keyspace = store.keyspace(name).unwrap();
                let key = format!("key{:03}", i * 7 % 100).into_bytes();
                if i % 11 == round {
                    batch.delete(&keyspace, &key).unwrap();
                    pairs.remove(&(name.to_string(), key));
                } else {
                    let value = format!("{name} {round} {i} ").repeat(9).into_bytes();
                    batch.put(&keyspace, &key, &value).unwrap();
                    pairs.insert((name.to_string(), key), value);
                }
            }
            store.write(&batch, WriteOptions::default()).unwrap();
        }
        if round == 1 {
            let mut batch = Batch::new();
            let keyspace = store.keyspace("other").unwrap();
            batch.delete_range(&keyspace, b"key020", b"key030").unwrap();
            store.write(&batch, WriteOptions::default()).unwrap();
            pairs.retain(|(name, key), _| {
                name != "other" || !(&b"key020"[..]..&b"key030"[..]).contains(&&key[..])
            });
        }
        if round < 2 {
            store.flush().unwrap();
        }
    }
    pairs
}

fn contents(store: &Store) -> Pairs {
    let mut pairs = Pairs::new();
    for name in store.keyspaces() {
        for pair in store.keyspace(&name).unwrap().iter().unwrap() {
            let (key, value) = pair.unwrap();
            pairs.insert((name.clone(), key), value);
        }
    }
    pairs
}

fn made(runtime: &Runtime, target: &MemoryStorage) -> Pairs {
    let checked = check(&CheckStorages::on(target), &mut |_| {}).unwrap();
    assert!(checked.is_sound(), "{:?}", checked.problems);
    let storage: Arc<dyn Storage> = Arc::new(target.clone());
    let components = Components::on(storage, runtime.clone());
    let store = Store::open_with(components, options()).unwrap();
    let pairs = contents(&store);
    store.close().unwrap();
    pairs
}

/// A store with a damaged block, its contents, and the name of the table.
fn damaged(runtime: &Runtime) -> (MemoryStorage, Pairs) {
    let medium = MemoryStorage::new(runtime);
    let storage: Arc<dyn Storage> = Arc::new(medium.clone());
    let store = Store::open_with(Components::on(storage, runtime.clone()), options()).unwrap();
    let pairs = fill(&store);
    let image = medium.kill();
    drop(store);
    let mut all = folder(&image);
    let table = all.keys().find(|n| n.ends_with(".tbl")).unwrap().clone();
    all.get_mut(&table).unwrap()[40] ^= 1;
    let source = MemoryStorage::new(runtime);
    let lease = source.lease("store").unwrap();
    for (name, bytes) in &all {
        let file = source.create(lease.epoch(), name).unwrap();
        file.append(&[bytes]).unwrap();
        file.sync().unwrap();
    }
    source.sync_dir(lease.epoch()).unwrap();
    (source.clone(), pairs)
}

fn run(
    runtime: &Runtime,
    source: Arc<dyn Storage>,
    target: Arc<dyn Storage>,
) -> siltstone::Result<RepairReport> {
    repair(
        &RepairSource::on(source),
        &target,
        runtime,
        &repair_options(),
        &mut |_| {},
    )
}

/// What a repair of the damaged store must have found.
fn verify(report: &RepairReport, pairs: &Pairs, found: &Pairs) {
    assert!(report.lost.iter().any(|l| l.what == LostWhat::Blocks));
    assert!(report.suspects.iter().all(|s| s.why == SuspectWhy::Lost));
    let id = |name: &str| report.keyspaces.iter().find(|k| k.name == name).unwrap().id;
    let keys = pairs.keys().chain(found.keys());
    for (name, key) in keys {
        let place = (name.clone(), key.clone());
        if pairs.get(&place) != found.get(&place) {
            assert!(
                report
                    .suspects
                    .iter()
                    .any(|s| s.keyspace == id(name) && s.range.contains(key))
            );
        }
    }
    let counted: u64 = report.keyspaces.iter().map(|k| k.key_count).sum();
    assert_eq!(counted, found.len() as u64);
}

#[test]
fn a_repair_may_crash_at_every_call() {
    let runtime = Runtime::threads();
    let (source, pairs) = damaged(&runtime);
    let before = folder(&source);
    let target = MemoryStorage::new(&runtime);
    target.start_journal();
    let from: Arc<dyn Storage> = Arc::new(source.clone());
    let report = run(&runtime, from.clone(), Arc::new(target.clone())).unwrap();
    let wanted = {
        let image = target.kill();
        made(&runtime, &image)
    };
    verify(&report, &pairs, &wanted);
    let mut replay = target.replay();
    let mut again_count = 0;
    for n in 0..=replay.len() {
        replay.advance_to(n);
        let policies = [
            CrashPolicy::LoseUnsynced,
            CrashPolicy::KeepUnsynced,
            CrashPolicy::Seeded(n),
        ];
        for policy in policies {
            let (image, _) = replay.crash_in(&runtime, policy);
            let was = folder(&image);
            match run(&runtime, from.clone(), Arc::new(image.clone())) {
                Ok(report) => {
                    again_count += 1;
                    let found = made(&runtime, &image);
                    assert_eq!(found, wanted, "call {n}, {policy:?}");
                    verify(&report, &pairs, &found);
                }
                Err(error) => {
                    // This is only allowed if the store is complete.
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                    assert!(was.contains_key("CURRENT") && !was.contains_key("PARTIAL"));
                    assert_eq!(made(&runtime, &image), wanted, "call {n}, {policy:?}");
                }
            }
            assert!(!folder(&image).contains_key("PARTIAL"));
        }
    }
    assert!(again_count > 30, "{again_count}");
    assert_eq!(folder(&source), before);
}

#[test]
fn a_repair_without_room_fails_and_can_be_repeated() {
    let runtime = Runtime::threads();
    let (source, _) = damaged(&runtime);
    let before = folder(&source);
    let from: Arc<dyn Storage> = Arc::new(source.clone());
    let target = MemoryStorage::new(&runtime);
    run(&runtime, from.clone(), Arc::new(target.clone())).unwrap();
    let needed = target.used_bytes();
    let wanted = made(&runtime, &target);
    let target = MemoryStorage::new(&runtime);
    let mut refused = 0;
    for part in 0..20 {
        target.set_capacity(Some(needed * part / 20));
        match run(&runtime, from.clone(), Arc::new(target.clone())) {
            Ok(_) => panic!("{part} of 20 parts of the space are enough"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        refused += 1;
        // The space is given back, except for the marker.
        let left = folder(&target);
        assert!(left.keys().all(|n| n == "PARTIAL"), "{:?}", left.keys());
    }
    assert_eq!(refused, 20);
    target.set_capacity(None);
    run(&runtime, from, Arc::new(target.clone())).unwrap();
    assert_eq!(made(&runtime, &target), wanted);
    assert_eq!(folder(&source), before);
}

#[test]
fn every_call_of_a_repair_may_fail() {
    let runtime = Runtime::threads();
    let (source, _) = damaged(&runtime);
    let before = folder(&source);
    let from: Arc<dyn Storage> = Arc::new(source.clone());
    let whole = MemoryStorage::new(&runtime);
    run(&runtime, from.clone(), Arc::new(whole.clone())).unwrap();
    let wanted = made(&runtime, &whole);
    for reads in [false, true] {
        let mut n = 0;
        loop {
            let target = MemoryStorage::new(&runtime);
            let fault = Fault::Fail(StorageErrorKind::Io);
            let rule = if reads {
                Rule::on_reads(fault)
            } else {
                Rule::on_changes(fault)
            };
            let below: Arc<dyn Storage> = if reads {
                from.clone()
            } else {
                Arc::new(target.clone())
            };
            let faulty = FaultStorage::new(below, &runtime);
            faulty.add(rule.nth(n));
            let outcome = if reads {
                run(&runtime, Arc::new(faulty.clone()), Arc::new(target.clone()))
            } else {
                run(&runtime, from.clone(), Arc::new(faulty.clone()))
            };
            let fired = !faulty.fired().is_empty();
            match outcome {
                // Parts of the log that cannot be read are read once more, by sectors.
                Ok(_) if reads => assert!(
                    faulty
                        .fired()
                        .iter()
                        .all(|call| call.name.ends_with(".log")),
                    "call {n} failed and nobody said so"
                ),
                Ok(_) => assert!(!fired, "call {n} failed and nobody said so"),
                Err(error) => {
                    assert!(fired, "{error}");
                    assert!(
                        matches!(error.kind(), ErrorKind::Io | ErrorKind::Poisoned),
                        "{error}"
                    );
                    let left = folder(&target);
                    if !left.contains_key("CURRENT") || left.contains_key("PARTIAL") {
                        run(&runtime, from.clone(), Arc::new(target.clone())).unwrap();
                    }
                }
            }
            assert_eq!(made(&runtime, &target), wanted, "call {n}, reads: {reads}");
            if !fired {
                assert!(n > 10, "only {n} calls");
                break;
            }
            n += if reads { 7 } else { 1 };
        }
    }
    assert_eq!(folder(&source), before);
}

#[test]
fn files_are_repaired_into_another_folder() {
    let runtime = Runtime::threads();
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let store = Store::open(&from, options()).unwrap();
    let pairs = fill(&store);
    let source = || -> Arc<dyn Storage> { Arc::new(FileStorage::open_existing(&from).unwrap()) };
    let target = || -> Arc<dyn Storage> { Arc::new(FileStorage::open_or_create(&to).unwrap()) };
    let refused = run(&runtime, source(), target()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Locked, "{refused}");
    store.close().unwrap();

    // The pointer is missing, and a log record that no table has is damaged.
    let state = siltstone::manifest::recover(&*source())
        .unwrap()
        .unwrap()
        .state;
    let needed = state.log_start;
    std::fs::remove_file(from.join("CURRENT")).unwrap();
    let log = from.join(siltstone::log::format::segment_name(needed.segment as u32));
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[needed.offset as usize + 40] ^= 0x20;
    std::fs::write(&log, &bytes).unwrap();
    assert_eq!(
        Store::open(&from, options()).unwrap_err().kind(),
        ErrorKind::Corruption
    );
    let report = run(&runtime, source(), target()).unwrap();
    assert!(!report.lost_nothing() && report.manifest.is_some());
    assert_eq!(report.log.holes.len(), 1, "{report}");
    let hole = report.log.holes[0].before_number.unwrap();
    assert!(
        report.suspects.iter().all(|s| s.below == Some(hole)),
        "{report}"
    );
    assert!(
        std::fs::read(&log).unwrap() == bytes,
        "the source was changed"
    );
    let store = Store::open(&to, options()).unwrap();
    let found = contents(&store);
    store.close().unwrap();
    // One record with two entries is lost, so at most two keys differ.
    let differ = pairs
        .iter()
        .filter(|(place, value)| found.get(*place) != Some(*value));
    assert!(differ.count() <= 2);
    assert!(found.keys().all(|place| pairs.contains_key(place)));

    let refused = run(&runtime, source(), target()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
    let json = report.to_json();
    assert!(
        json.starts_with("{\"source\":\"") && json.ends_with("}\n"),
        "{json}"
    );
    assert!(
        json.contains(&format!("\"before_number\":{hole}")),
        "{json}"
    );
    let text = report.to_string();
    assert!(
        text.contains("HOLE before ") && text.contains("CURRENT"),
        "{text}"
    );
}

#[test]
fn a_folder_without_a_store_is_not_repaired() {
    let runtime = Runtime::threads();
    let source = MemoryStorage::new(&runtime);
    let target = MemoryStorage::new(&runtime);
    let error = run(&runtime, Arc::new(source), Arc::new(target.clone())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(folder(&target).is_empty());
}
