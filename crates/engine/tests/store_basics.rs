//! The store end to end on memory and on local files: what a first user does.
// Real threads and a real clock: nothing here runs simulated.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::sync::Arc;
use std::time::Duration;

use siltstone::stall::StallCause;
use siltstone::{
    Batch, Components, ErrorKind, IterOptions, Options, Store, SyncMode, WriteOptions,
};
use siltstone_storage::memory::MemoryStorage;
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Runtime, Storage};

fn small() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        block_bytes: 1 << 10,
        ..Options::default()
    }
}

fn memory() -> (Runtime, Arc<dyn Storage>) {
    let runtime = Runtime::threads();
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
    (runtime, storage)
}

fn open(runtime: &Runtime, storage: &Arc<dyn Storage>, options: Options) -> Store {
    Store::open_with(Components::on(storage.clone(), runtime.clone()), options).unwrap()
}

fn key(i: u64) -> Vec<u8> {
    format!("key{:08}", i.wrapping_mul(7919) % 100_000).into_bytes()
}

#[test]
fn data_is_read_back_after_flush_compaction_and_reopen() {
    let (runtime, storage) = memory();
    let store = open(&runtime, &storage, small());
    let ks = store.default_keyspace().unwrap();
    let mut model = std::collections::BTreeMap::new();
    for i in 0..20_000u64 {
        let value = format!("value {i}")
            .repeat(1 + (i % 5) as usize)
            .into_bytes();
        ks.put(&key(i), &value).unwrap();
        model.insert(key(i), value);
        if i % 7 == 0 {
            ks.delete(&key(i / 2)).unwrap();
            model.remove(&key(i / 2));
        }
        if i % 5000 == 4999 {
            ks.delete_range(b"key00010000", b"key00012000").unwrap();
            let gone: Vec<_> = model
                .range(b"key00010000".to_vec()..b"key00012000".to_vec())
                .map(|(k, _)| k.clone())
                .collect();
            gone.iter().for_each(|k| {
                model.remove(k);
            });
        }
    }
    let check = |ks: &siltstone::Keyspace, when: &str| {
        for i in 0..20_000u64 {
            assert_eq!(
                ks.get(&key(i)).unwrap(),
                model.get(&key(i)).cloned(),
                "{when}: key {i}"
            );
        }
        let all: Vec<_> = ks.iter().unwrap().map(Result::unwrap).collect();
        assert!(
            all.iter().map(|(k, v)| (k, v)).eq(model.iter()),
            "{when}: forward scan"
        );
        let back: Vec<_> = ks.iter().unwrap().rev().map(Result::unwrap).collect();
        assert!(
            back.iter().map(|(k, v)| (k, v)).eq(model.iter().rev()),
            "{when}: backward scan"
        );
    };
    check(&ks, "while writing");
    store.flush().unwrap();
    check(&ks, "after flush");
    store.wait_until_idle().unwrap();
    check(&ks, "after compaction");
    ks.compact_range(None, None).unwrap();
    check(&ks, "after compact_range");
    let stats = store.stats();
    assert!(stats.counter("flush_count") > 3, "{stats:?}");
    assert!(stats.counter("compaction_count") > 0, "{stats:?}");
    ks.put(b"last", b"word").unwrap();
    store.close().unwrap();
    assert_eq!(ks.put(b"x", b"y").unwrap_err().kind(), ErrorKind::Closed);

    let store = open(&runtime, &storage, small());
    let ks = store.default_keyspace().unwrap();
    assert_eq!(ks.get(b"last").unwrap().as_deref(), Some(&b"word"[..]));
    ks.delete(b"last").unwrap();
    check(&ks, "after reopen");
}

#[test]
fn batches_span_keyspaces_and_snapshots_hold() {
    let (runtime, storage) = memory();
    let store = open(&runtime, &storage, small());
    let a = store.create_keyspace("a").unwrap();
    let b = store.create_keyspace("b").unwrap();
    let mut batch = Batch::new();
    for i in 0..100u64 {
        batch.put(&a, &key(i), b"old").unwrap();
        batch.put(&b, &key(i), b"old").unwrap();
    }
    store.write(&batch, WriteOptions::SYNC).unwrap();
    let snapshot = store.snapshot();
    for round in 0..300u64 {
        batch.clear();
        for i in 0..100u64 {
            batch
                .put(&a, &key(i), format!("new {round}").as_bytes())
                .unwrap();
            batch.delete(&b, &key(i)).unwrap();
        }
        store.write(&batch, WriteOptions::default()).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    for i in 0..100u64 {
        assert_eq!(a.get(&key(i)).unwrap().unwrap(), b"new 299");
        assert_eq!(b.get(&key(i)).unwrap(), None);
        assert_eq!(a.get_at(&snapshot, &key(i)).unwrap().unwrap(), b"old");
        assert_eq!(b.get_at(&snapshot, &key(i)).unwrap().unwrap(), b"old");
    }
    let mut cursor = b.cursor_at(&snapshot, IterOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let mut count = 0;
    while cursor.valid() {
        assert_eq!(cursor.value(), b"old");
        count += 1;
        cursor.next().unwrap();
    }
    assert_eq!(count, 100);
    drop(snapshot);
    store.drop_keyspace("b").unwrap();
    assert_eq!(b.get(b"x").unwrap_err().kind(), ErrorKind::KeyspaceDropped);
    assert_eq!(store.keyspaces(), ["a", "default"]);
    store.close().unwrap();
    let store = open(&runtime, &storage, small());
    assert_eq!(store.keyspaces(), ["a", "default"]);
    assert_eq!(
        store.keyspace("a").unwrap().get(&key(1)).unwrap().unwrap(),
        b"new 299"
    );
}

#[test]
fn local_files_and_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = Store::open(
        &path,
        Options {
            sync: SyncMode::Always,
            ..small()
        },
    )
    .unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..2000u64 {
        ks.put(&key(i), &[i as u8; 100]).unwrap();
    }
    let error = Store::open(&path, small()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Locked, "{error}");
    // Dropping every handle closes the store as well.
    drop((ks, store));
    let store = Store::open(
        &path,
        Options {
            create_if_missing: false,
            ..small()
        },
    )
    .unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..2000u64 {
        assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [i as u8; 100]);
    }
    assert_eq!(
        ks.prefix(b"key0000").unwrap().count(),
        ks.iter()
            .unwrap()
            .filter(|r| r.as_ref().unwrap().0.starts_with(b"key0000"))
            .count()
    );
}

#[test]
fn concurrent_writers_share_groups() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), small()).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let ks = store.default_keyspace().unwrap();
            scope.spawn(move || {
                for i in 0..3000u64 {
                    ks.put(format!("{t}-{i:06}").as_bytes(), &i.to_le_bytes())
                        .unwrap();
                }
            });
        }
        let ks = store.default_keyspace().unwrap();
        scope.spawn(move || {
            for _ in 0..20 {
                let seen = ks.iter().unwrap().map(Result::unwrap).count();
                assert!(seen <= 12_000);
            }
        });
    });
    assert_eq!(
        store.default_keyspace().unwrap().iter().unwrap().count(),
        12_000
    );
    let stats = store.stats();
    assert_eq!(stats.counter("put_count"), 12_000);
}

/// A store whose tables have another format version could be opened and written, but not read or
/// compacted.
#[test]
fn a_store_with_tables_of_another_format_is_refused_and_left_as_it_is() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let on = |memory: &MemoryStorage| {
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        Components::on(storage, runtime.clone())
    };
    let store = Store::open_with(on(&memory), Options::default()).unwrap();
    store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
    let names = || {
        let objects = memory.list().unwrap().into_iter();
        objects.map(|o| (o.name, o.len)).collect::<Vec<_>>()
    };
    let (table, _) = names()
        .into_iter()
        .find(|(name, _)| name.ends_with(".tbl"))
        .unwrap();
    // Version 1, with the footer's checksum corrected.
    let mut bytes = memory.read_small(&table).unwrap();
    let footer = bytes.len() - siltstone_table::footer::FOOTER_BYTES;
    bytes[footer + 48] = 1;
    let crc = crc32c::crc32c(&bytes[footer..footer + 52]);
    bytes[footer + 52..footer + 56].copy_from_slice(&crc.to_le_bytes());
    let lease = memory.lease("forger").unwrap();
    memory.replace(lease.epoch(), &table, &bytes).unwrap();
    drop(lease);
    let before = names();
    let opens = [Store::open_with, Store::open_read_only_with];
    for open in opens {
        let error = open(on(&memory), Options::default()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        for part in [
            &*table,
            "format version",
            "expected 2",
            "found 1",
            "nothing was changed",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert_eq!(names(), before);
    }
}

/// Fills a store, flushes and compacts it, and returns the microseconds of the processor that its
/// flushes and compactions took by its own count.
fn processor_time(runtime: &Runtime) -> (u64, u64) {
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(runtime));
    let store = open(runtime, &storage, small());
    let ks = store.default_keyspace().unwrap();
    for i in 0..20_000u64 {
        ks.put(&key(i), &[7; 100]).unwrap();
    }
    store.flush().unwrap();
    ks.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    let stats = store.stats();
    let counter = |name| stats.counter(name);
    assert!(counter("flush_count") > 0 && counter("compaction_count") > 0);
    let times = (counter("flush_cpu_us"), counter("compaction_cpu_us"));
    // The host is the only side, so its sums are those of the store. A compaction that only moves
    // tables has no job.
    let host = stats.sides.last().unwrap();
    assert_eq!(host.compaction_count, counter("compaction_count"));
    assert_eq!(host.compaction_in_bytes, counter("compaction_in_bytes"));
    assert_eq!(host.compaction_out_bytes, counter("compaction_out_bytes"));
    assert!(host.host_cpu_us >= times.1, "{host:?}");
    assert!(host.host_cpu_us >= host.compaction_cpu_us, "{host:?}");
    assert_eq!((host.saved_cpu_us, host.link_bytes), (None, None));
    store.close().unwrap();
    times
}

#[test]
fn processor_time_of_flushes_and_compactions_is_counted() {
    let (flush_us, compaction_us) = processor_time(&Runtime::threads());
    assert!(
        flush_us > 0 && compaction_us > 0,
        "{flush_us} {compaction_us}"
    );
}

#[test]
fn simulated_work_takes_no_processor_time() {
    let outcome = sim::run(SimConfig::new(1), |runtime| processor_time(&runtime));
    assert_eq!(outcome.unwrap(), (0, 0));
}

/// A write that is only slowed down wakes no background task. Each of them would look through all
/// work that is due, at every write.
#[test]
fn a_slowed_write_wakes_nobody() {
    let story = |runtime: Runtime| {
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
        let options = Options {
            l0_slowdown_count: 4,
            ..small()
        };
        let store = open(&runtime, &storage, options);
        store.test_hooks().pause_compaction(true);
        let ks = store.default_keyspace().unwrap();
        for i in 0..4 {
            // So slowly that the writes below have to wait: they may be as fast as these at first.
            ks.put(&key(0), &[i as u8; 2000]).unwrap();
            runtime.sleep(Duration::from_millis(10));
            store.flush().unwrap();
        }
        runtime.sleep(Duration::from_secs(3));
        let woken = store.test_hooks().woken_count();
        for i in 0..50 {
            ks.put(&key(i), &[1; 1000]).unwrap();
        }
        let delays = store.stats().delay_totals;
        let slowed = delays[StallCause::L0Slowdown as usize].1;
        assert!(slowed.count > 0, "{delays:?}");
        assert_eq!(store.test_hooks().woken_count(), woken);
        store.close().unwrap();
    };
    sim::run(SimConfig::new(1), story).result.unwrap();
}
