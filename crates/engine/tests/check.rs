//! The check of a closed store: it finds every damaged byte that an open would rely on, and nothing
//! in a sound store, whatever happened to it.

use std::sync::Arc;

use siltstone::check::{CheckReport, CheckStorages, TORN_RECORD, check};
use siltstone::log::Position;
use siltstone::log::format::segment_name;
use siltstone::manifest::recover;
use siltstone::repair::{RepairOptions, RepairReport, RepairSource, repair};
use siltstone::{
    Batch, Components, ErrorKind, IngestMode, Options, Store, TableBuilder, TableFolder,
    TableOptions, WriteOptions,
};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::memory::{CrashPolicy, MemoryStorage};
use siltstone_storage::{Epoch, OpKind, Runtime, Storage, StorageErrorKind};

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 128 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        block_bytes: 1 << 10,
        ..Options::default()
    }
}

fn open(runtime: &Runtime, storage: &Arc<MemoryStorage>) -> Store {
    let storage: Arc<dyn Storage> = storage.clone();
    Store::open_with(Components::on(storage, runtime.clone()), options()).unwrap()
}

fn checked(storage: &MemoryStorage) -> CheckReport {
    let mut last = None;
    let report = check(&CheckStorages::on(storage), &mut |p| {
        assert!(p.done_bytes <= p.total_bytes);
        last = Some(p);
    })
    .unwrap();
    if report.is_sound() && report.table_count > 0 {
        let last = last.unwrap();
        assert_eq!(
            (last.done_bytes, last.total_bytes),
            (report.table_bytes, report.table_bytes)
        );
    }
    report
}

#[track_caller]
fn sound(storage: &MemoryStorage) -> CheckReport {
    let report = checked(storage);
    assert!(report.is_sound(), "{:#?}", report.problems);
    report
}

fn key(n: u64) -> Vec<u8> {
    format!("key{:06}", n.wrapping_mul(7919) % 5_000).into_bytes()
}

/// Puts, deletes and range deletes over two keyspaces, with unflushed data at the end.
fn fill(store: &Store, rounds: std::ops::Range<u64>) {
    let keyspaces = ["default", "other"].map(|name| store.open_keyspace(name).unwrap());
    let mut batch = Batch::new();
    for n in rounds {
        batch.clear();
        for i in 0..10 {
            let keyspace = &keyspaces[(i % 2) as usize];
            let key = key(n * 10 + i);
            match (n + i) % 11 {
                0 => batch.delete(keyspace, &key).unwrap(),
                _ => batch
                    .put(
                        keyspace,
                        &key,
                        format!("value {n}.{i}").repeat(4).as_bytes(),
                    )
                    .unwrap(),
            }
        }
        if n % 100 == 99 {
            batch
                .delete_range(&keyspaces[0], &key(n), &[&key(n)[..], b"~"].concat())
                .unwrap();
            batch
                .delete_range(&keyspaces[1], b"key000100", b"key000200")
                .unwrap();
        }
        store
            .write(
                &batch,
                WriteOptions {
                    sync: n % 97 == 0,
                    ..WriteOptions::default()
                },
            )
            .unwrap();
    }
}

/// A closed store with several levels, range deletes, and records in its log.
fn closed_store() -> (Runtime, Arc<MemoryStorage>) {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let store = open(&runtime, &storage);
    fill(&store, 0..1_500);
    store.wait_until_idle().unwrap();
    // One more run with a range delete, which no compaction removes, and then some records for the
    // log.
    store.test_hooks().pause_compaction(true);
    store
        .default_keyspace()
        .unwrap()
        .delete_range(b"key001000", b"key001100")
        .unwrap();
    store.flush().unwrap();
    fill(&store, 1_500..1_510);
    store.close().unwrap();
    (runtime, storage)
}

#[test]
fn a_sound_store_is_sound_after_everything_that_happens_to_it() {
    let (runtime, storage) = closed_store();
    let report = sound(&storage);
    assert!(
        report.table_count > 3 && report.block_count > 50 && report.range_delete_count > 0,
        "{report:#?}"
    );
    let log = report.log.as_ref().unwrap();
    assert!(log.record_count >= 10 && log.entry_count >= 100, "{log:?}");
    assert_eq!(
        report
            .keyspaces
            .iter()
            .map(|k| &k.name[..])
            .collect::<Vec<_>>(),
        ["default", "other"]
    );
    assert_eq!(
        report.keyspaces.iter().map(|k| k.entry_count).sum::<u64>(),
        report.entry_count
    );
    assert!(report.foreign.is_empty(), "{:?}", report.foreign);

    // The check changed nothing: it gives the same report again, and an open finds everything.
    let again = sound(&storage);
    assert_eq!(format!("{report:?}"), format!("{again:?}"));
    let store = open(&runtime, &storage);
    store.drop_keyspace("other").unwrap();
    store
        .create_keyspace("third")
        .unwrap()
        .put(b"a", b"b")
        .unwrap();
    store.close().unwrap();
    let report = sound(&storage);
    assert_eq!(
        report
            .keyspaces
            .iter()
            .map(|k| &k.name[..])
            .collect::<Vec<_>>(),
        ["default", "third"]
    );
    let store = open(&runtime, &storage);
    store
        .default_keyspace()
        .unwrap()
        .compact_range(None, None)
        .unwrap();
    store.close().unwrap();
    sound(&storage);
}

#[test]
fn crashed_stores_are_sound() {
    for seed in 0..12 {
        let runtime = Runtime::threads();
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let store = open(&runtime, &storage);
        fill(&store, 0..100 + seed * 60);
        // A kill keeps everything; a power loss keeps what was synced and some of the rest.
        let images = [
            storage.kill(),
            storage.crash(CrashPolicy::LoseUnsynced),
            storage.crash(CrashPolicy::Seeded(seed)),
        ];
        for (i, image) in images.into_iter().enumerate() {
            let report = checked(&image);
            assert!(
                report.is_sound(),
                "seed {seed}, image {i}: {:#?}",
                report.problems
            );
            let image = Arc::new(image);
            open(&runtime, &image).close().unwrap();
            let report = checked(&image);
            assert!(
                report.is_sound(),
                "seed {seed}, image {i}, reopened: {:#?}",
                report.problems
            );
        }
        store.close().unwrap();
    }
}

#[test]
fn an_open_store_and_no_store_are_refused() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let error = check(&CheckStorages::on(&*storage), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let store = open(&runtime, &storage);
    let error = check(&CheckStorages::on(&*storage), &mut |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    store.close().unwrap();
    sound(&storage);
}

/// Replaces an object by other bytes.
fn replace(storage: &MemoryStorage, name: &str, bytes: &[u8]) {
    let lease = storage.lease("damage").unwrap();
    storage.delete(lease.epoch(), name).unwrap();
    storage
        .create(lease.epoch(), name)
        .unwrap()
        .append(&[bytes])
        .unwrap();
}

#[test]
fn every_bit_of_tables_manifest_and_pointer_counts() {
    let (_, storage) = closed_store();
    let report = sound(&storage);
    let state = recover(&*storage).unwrap().unwrap().state;
    let mut seed = 5u64;
    let mut below = |n: usize| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    for object in storage.list().unwrap() {
        let name = object.name;
        let good = storage.read_small(&name).unwrap();
        // Reserved space follows the manifest's records.
        let used = good.iter().rposition(|b| *b != 0).unwrap_or(0) + 1;
        let rounds = match &name {
            // What damage to a log means depends on what was synced. Reserved space has no data.
            name if name.ends_with(".log") || name.starts_with("RESERVE") => 0,
            name if name.ends_with(".tbl") => 12,
            _ => 40,
        };
        for _ in 0..rounds {
            let at = below(used);
            let mut bad = good.clone();
            bad[at] ^= 1 << below(8);
            replace(&storage, &name, &bad);
            // A pointer of another version is refused; all other damage is listed.
            match check(&CheckStorages::on(&*storage), &mut |_| {}) {
                Ok(found) => {
                    let named = found
                        .problems
                        .iter()
                        .any(|p| p.is_corruption() && p.file() == Some(&name));
                    // A seal says nothing new if the record after it exists.
                    let is_unharmed = name == report.manifest
                        && recover(&*storage).is_ok_and(|r| r.is_some_and(|r| r.state == state));
                    assert!(
                        named || is_unharmed,
                        "{name}, byte {at} of {used}: {:#?}",
                        found.problems
                    );
                }
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::Unsupported,
                        "{name}, byte {at}: {error}"
                    );
                }
            }
        }
        replace(&storage, &name, &good);
    }
    sound(&storage);
}

#[test]
fn missing_exchanged_and_left_over_files_are_reported() {
    let (_, storage) = closed_store();
    let tables: Vec<String> = storage
        .list()
        .unwrap()
        .into_iter()
        .map(|o| o.name)
        .filter(|n| n.ends_with(".tbl"))
        .collect();
    let [first, second] = [&tables[0], &tables[1]].map(|name| storage.read_small(name).unwrap());
    // A sound table takes the place of another one.
    replace(&storage, &tables[0], &second);
    let report = checked(&storage);
    assert!(
        report
            .problems
            .iter()
            .any(|p| p.to_string().contains("digest") && p.file() == Some(&tables[0]))
    );
    let lease = storage.lease("damage").unwrap();
    storage.delete(lease.epoch(), &tables[0]).unwrap();
    let report = checked(&storage);
    assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
    assert!(
        report.problems[0].to_string().contains("missing"),
        "{}",
        report.problems[0]
    );
    let keyspace = report
        .keyspaces
        .iter()
        .find(|k| k.problem_count > 0)
        .unwrap();
    assert_eq!(keyspace.problem_count, 1);
    storage
        .create(lease.epoch(), &tables[0])
        .unwrap()
        .append(&[&first])
        .unwrap();
    // Files that nothing names are not damage.
    for name in ["0000ffff-00000001-0000-00000.tbl", "notes.txt"] {
        storage
            .create(lease.epoch(), name)
            .unwrap()
            .append(&[b"?"])
            .unwrap();
    }
    let report = sound(&storage);
    assert!(
        report
            .orphans
            .iter()
            .any(|o| o.name.starts_with("0000ffff")),
        "{:?}",
        report.orphans
    );
    assert_eq!(
        report
            .foreign
            .iter()
            .map(|o| &o.name[..])
            .collect::<Vec<_>>(),
        ["notes.txt"]
    );
    storage.delete(lease.epoch(), "CURRENT").unwrap();
    let report = checked(&storage);
    assert!(report.problems[0].file() == Some("CURRENT") && report.problems[0].is_corruption());
}

/// Damages the last byte of the value of the last record that ends at this position. Padding
/// follows the value.
fn damage_last_record(storage: &MemoryStorage, end: Position) {
    let damage = |bytes: &mut Vec<u8>| {
        let end = end.offset as usize;
        let last = bytes[..end].iter().rposition(|b| *b != 0).unwrap();
        bytes[last] ^= 1;
    };
    let name = segment_name(end.segment);
    storage.damage(&name, damage).unwrap();
}

/// The report of a repair of the store on this storage.
fn repaired(runtime: &Runtime, storage: &MemoryStorage) -> RepairReport {
    let source = RepairSource::on(Arc::new(storage.clone()));
    let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(runtime));
    repair(
        &source,
        &target,
        runtime,
        &RepairOptions::default(),
        &mut |_| {},
    )
    .unwrap()
}

/// The last record in the log of a killed store is not complete. No format can tell an interrupted
/// write from damage, so the store is sound, and a check and a repair describe the record in the
/// same words. A repair once counted it as lost data. In a store that was closed it is damage.
#[test]
fn a_torn_last_record_is_mentioned() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let store = open(&runtime, &storage);
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..10 {
        keyspace.put(key(n), [7; 100]).unwrap();
    }
    let killed = storage.kill();
    let log = sound(&killed).log.expect("a log");
    assert!(!log.is_torn && log.record_count == 10, "{log:?}");
    damage_last_record(&killed, log.end);
    let torn = sound(&killed).log.expect("a log");
    assert!(torn.is_torn && torn.record_count == 9, "{torn:?}");
    assert_eq!(torn.discarded_record_count, 0);
    let report = repaired(&runtime, &killed);
    assert!(report.log.is_torn && report.lost_nothing(), "{report}");
    assert!(report.damage.is_empty() && report.suspects.is_empty());
    assert_eq!(report.keyspaces[0].key_count, 9);
    assert!(report.to_string().contains(TORN_RECORD), "{report}");
    assert!(report.to_json().contains("\"is_torn\":true"));

    drop(keyspace);
    store.close().unwrap();
    let closed = sound(&storage).log.expect("a log");
    assert!(closed.closed && !closed.is_torn, "{closed:?}");
    damage_last_record(&storage, closed.end);
    assert!(!checked(&storage).is_sound());
    let report = repaired(&runtime, &storage);
    assert!(!report.log.is_torn && !report.lost_nothing(), "{report}");
    assert_eq!((report.log.holes.len(), report.damage.len()), (1, 1));
}

/// The log of a closed store is missing, and nothing needs it while the tables are sound. If a
/// table is missing too, a check must not say so, nor advise to open the store for writing.
#[test]
fn a_missing_log_beside_a_missing_table_is_not_called_needless() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let store = open(&runtime, &storage);
    store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    let delete = |ending: &str| {
        let lease = storage.lease("damage").unwrap();
        for object in storage.list().unwrap() {
            if object.name.ends_with(ending) {
                storage.delete(lease.epoch(), &object.name).unwrap();
            }
        }
    };
    delete(".log");
    let report = checked(&storage);
    let said = report.problems[0].to_string();
    assert_eq!(report.problems.len(), 1, "{report:?}");
    assert!(said.contains("nothing is lost") && said.contains("open the store for writing once"));

    delete(".tbl");
    let report = checked(&storage);
    let said = report.problems[0].to_string();
    assert_eq!(report.problems.len(), 2, "{report:?}");
    assert!(
        said.contains(".log") && said.contains("silt repair"),
        "{said}"
    );
    assert!(said.contains("do not open the store for writing"), "{said}");
    assert!(
        !said.contains("nothing is lost") && !said.contains("not needed"),
        "{said}"
    );
    assert!(report.problems[1].to_string().contains(".tbl"));
}

/// A check must not call a store sound that an open refuses: the manifest has lost its end, the log
/// has a keyspace and an ingest into it, and the ingested table is missing.
#[test]
fn an_ingest_that_only_the_log_knows_is_checked() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let store = open(&runtime, &storage);
    let number = recover(&*storage).unwrap().unwrap().current.number;
    let manifest = siltstone::manifest::manifest_name(number);
    let before = storage.read_small(&manifest).unwrap();
    let pointer = storage.read_small("CURRENT").unwrap();
    let keyspace = store.create_keyspace("fresh").unwrap();
    let folder = TableFolder::on(Arc::new(MemoryStorage::new(&runtime)), Epoch::default());
    let mut builder = TableBuilder::new(&folder, "outside", TableOptions::default()).unwrap();
    builder.put(b"k", b"v").unwrap();
    let built = builder.finish().unwrap();
    let files: Vec<_> = built.into_iter().map(|t| t.file).collect();
    store
        .ingest(&[(&keyspace, files)], IngestMode::Copy)
        .unwrap();
    store.close().unwrap();
    replace(&storage, &manifest, &before);
    replace(&storage, "CURRENT", &pointer);
    let report = sound(&storage);
    let fresh = report.keyspaces.iter().find(|k| k.name == "fresh");
    assert_eq!(fresh.map(|k| k.table_count), Some(1), "{report:?}");
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);

    let mut names = storage.list().unwrap().into_iter().map(|o| o.name);
    let table = names.rfind(|n| n.ends_with(".tbl")).unwrap();
    let lease = storage.lease("damage").unwrap();
    storage.delete(lease.epoch(), &table).unwrap();
    drop(lease);
    let report = checked(&storage);
    let reported: Vec<_> = report.problems.iter().map(|p| p.file()).collect();
    assert_eq!(reported, [Some(&table[..])], "{:?}", report.problems);
    let components = Components::on(storage.clone(), runtime.clone());
    let error = Store::open_with(components, options()).expect_err("a table is missing");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(
        error.file() == Some(&table[..]) && error.to_string().contains("missing"),
        "{error}"
    );
}

/// A check must not call a store sound that an open refuses: the first segment of the log is
/// missing, or belongs to another store.
#[test]
fn the_first_log_segment_is_missing_or_of_another_store() {
    let segments = |storage: &MemoryStorage| -> Vec<String> {
        let names = storage.list().unwrap().into_iter().map(|o| o.name);
        names.filter(|n| n.ends_with(".log")).collect()
    };
    let (_, other) = closed_store();
    let foreign: Vec<Vec<u8>> = segments(&other)
        .iter()
        .map(|name| other.read_small(name).unwrap())
        .filter(|bytes| bytes.starts_with(b"SILTLOG"))
        .collect();
    assert!(!foreign.is_empty());

    let (runtime, storage) = closed_store();
    let refused = |what: &str, name: &str| {
        let report = checked(&storage);
        assert!(
            report
                .problems
                .iter()
                .any(|p| p.is_corruption() && p.to_string().contains(what)),
            "{what}: {:#?}",
            report.problems
        );
        let on: Arc<dyn Storage> = storage.clone();
        let error = Store::open_with(Components::on(on, runtime.clone()), options())
            .err()
            .unwrap();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(error.file(), Some(name));
    };
    let log = sound(&storage).log.unwrap();
    let start = log.end.segment + 1 - u32::try_from(log.segment_count).unwrap();
    let first = format!("{start:012}.log");
    assert!(segments(&storage).contains(&first), "{first}");
    for bytes in &foreign {
        // The segment has a valid checksum and belongs to another store, whether its number fits or
        // not.
        replace(&storage, &first, bytes);
        refused("another store", &first);
    }

    // Nothing of this log was ever synced. Only its name was, which alone shows that it existed.
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let store = open(&runtime, &storage);
    store
        .default_keyspace()
        .unwrap()
        .put(b"never", b"synced")
        .unwrap();
    let image = Arc::new(storage.kill());
    store.close().unwrap();
    let log = sound(&image).log.unwrap();
    assert_eq!(log.record_count, 1);
    let lease = image.lease("damage").unwrap();
    let first = format!("{:012}.log", log.end.segment);
    image.delete(lease.epoch(), &first).unwrap();
    drop(lease);
    let report = checked(&image);
    assert_eq!(report.problems.len(), 1, "{:#?}", report.problems);
    let on: Arc<dyn Storage> = image.clone();
    let refused = Store::open_with(Components::on(on, runtime), options())
        .err()
        .unwrap();
    for error in [&report.problems[0], &refused] {
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert_eq!(error.file(), Some(&first[..]));
        assert!(
            error.to_string().contains("first segment is missing"),
            "{error}"
        );
    }
}

/// A file that this process may not read may be sound.
#[test]
fn a_file_that_may_not_be_read_is_no_damage() {
    let (runtime, storage) = closed_store();
    for suffix in [".tbl", ".log"] {
        let faulty = FaultStorage::new(storage.clone(), &runtime);
        let denied = Fault::Fail(StorageErrorKind::PermissionDenied);
        faulty.add(Rule::on(OpKind::Open, denied).ending(suffix).for_good());
        faulty.arm();
        let error = check(&CheckStorages::on(&faulty), &mut |_| {}).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        let said = error.to_string();
        assert!(
            said.contains(suffix) && said.contains("permissions of the file"),
            "{said}"
        );
    }
    sound(&storage);
}

/// A store was killed before anything was written to its new log: the log is as empty without its
/// header as with it. An open, a check and a repair agree about it.
#[test]
fn an_empty_log_loses_nothing_with_its_header() {
    for cut in [false, true] {
        let (runtime, storage) = closed_store();
        let _store = open(&runtime, &storage);
        let storage = storage.kill();
        let start = sound(&storage).log.unwrap().end.segment;
        let name = segment_name(start);
        let mut bytes = storage.read_small(&name).unwrap();
        match cut {
            true => bytes.clear(),
            false => bytes[20] ^= 1,
        }
        replace(&storage, &name, &bytes);
        let log = sound(&storage).log.unwrap();
        assert_eq!((log.record_count, log.closed), (0, false));
        let report = repaired(&runtime, &storage);
        assert!(report.lost_nothing(), "{report}");
        assert!(report.damage.is_empty(), "{report}");
    }
}
