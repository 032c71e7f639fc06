//! Direct I/O: all modes give the same results on real files, and a storage without it is refused
//! by name.
//!
//! If the file system of the tests' folder does not support direct I/O, only its refusal can be
//! tested.
// Real threads, clock and files: nothing here runs simulated.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::{
    Components, Compression, DirectIo, ErrorKind, IngestMode, IterOptions, Keyspace, Options,
    Store, TableFile, TableFolder,
};
use siltstone_storage::{FileStorage, MemoryStorage, Runtime};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn options(direct_io: DirectIo, compression: Compression) -> Options {
    Options {
        direct_io,
        compression: compression.into(),
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 128 << 10,
        level_factor: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        block_bytes: 1 << 10,
        l0_trigger_count: 2,
        ..Options::default()
    }
}

/// The store; `None` if the file system does not support direct I/O.
fn open(path: &Path, options: Options) -> Option<Store> {
    match Store::open(path, options) {
        Ok(store) => Some(store),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains("direct_io"), "{error}");
            eprintln!("skipped: {error}");
            None
        }
    }
}

fn key(i: u64) -> Vec<u8> {
    format!("key{:06}", i.wrapping_mul(7919) % 8000).into_bytes()
}

fn fill(ks: &Keyspace, model: &mut Model, round: u64) {
    for i in 0..5000 {
        let value = format!("{round} {i} ")
            .repeat((i % 9) as usize)
            .into_bytes();
        ks.put(&key(i * (round + 1)), &value).unwrap();
        model.insert(key(i * (round + 1)), value);
        if i % 7 == round {
            ks.delete(&key(i / 2)).unwrap();
            model.remove(&key(i / 2));
        }
    }
    ks.delete_range(b"key001000", b"key001400").unwrap();
    model.retain(|k, _| !(&b"key001000"[..]..b"key001400").contains(&&k[..]));
}

fn compare(ks: &Keyspace, model: &Model, when: &str) {
    for i in 0..8000 {
        assert_eq!(
            ks.get(&key(i)).unwrap().as_ref(),
            model.get(&key(i)),
            "{when}: {i}"
        );
    }
    let all: Model = ks.iter().unwrap().map(Result::unwrap).collect();
    assert!(all == *model, "{when}: forward");
    let back: Vec<_> = ks.iter().unwrap().rev().map(|e| e.unwrap().0).collect();
    assert!(back.iter().eq(model.keys().rev()), "{when}: backward");
}

#[test]
fn all_modes_give_the_same_answers() {
    for (mode, compression) in [
        (DirectIo::None, Compression::Lz4),
        (DirectIo::Compaction, Compression::None),
        (DirectIo::All, Compression::None),
        (DirectIo::All, Compression::Lz4),
    ] {
        let when = format!("{mode:?} {compression:?}");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let Some(store) = open(&path, options(mode, compression)) else {
            continue;
        };
        let ks = store.default_keyspace().unwrap();
        let mut model = Model::new();
        for round in 0..4 {
            fill(&ks, &mut model, round);
            compare(&ks, &model, &when);
        }
        store.flush().unwrap();
        ks.compact_range(None, None).unwrap();
        compare(&ks, &model, &when);
        let stats = store.stats();
        assert!(stats.counter("compaction_count") > 0, "{when}");
        if mode == DirectIo::All {
            assert!(
                stats.memory.block_cache_bytes > 0,
                "{when}: nothing in the cache"
            );
        }

        // Exports, and ingests of what was exported, in all ways.
        let folder = TableFolder::create(dir.path().join("out")).unwrap();
        for (how, name) in [
            (IngestMode::Link, "linked"),
            (IngestMode::Copy, "copied"),
            (IngestMode::Move, "moved"),
        ] {
            let built = ks.export(IterOptions::default(), &folder, name).unwrap();
            let other = store.create_keyspace(name).unwrap();
            let files: Vec<TableFile> = built.into_iter().map(|t| t.file).collect();
            store.ingest(&[(&other, files)], how).unwrap();
            compare(&other, &model, &format!("{when} {name}"));
            other.compact_range(None, None).unwrap();
            compare(&other, &model, &format!("{when} {name}, compacted"));
        }

        // A checkpoint can be opened in any mode.
        let copy = dir.path().join("checkpoint");
        store.checkpoint(&copy).unwrap();
        store.close().unwrap();
        for mode in [DirectIo::None, DirectIo::All] {
            let store = open(&copy, options(mode, compression)).unwrap();
            compare(&store.default_keyspace().unwrap(), &model, "checkpoint");
            compare(&store.keyspace("moved").unwrap(), &model, "checkpoint");
            store.close().unwrap();
        }

        // A store that was written in one mode can be opened in each, for reading too.
        for mode in [DirectIo::All, DirectIo::None, DirectIo::Compaction] {
            let store = open(&path, options(mode, compression)).unwrap();
            let ks = store.default_keyspace().unwrap();
            compare(&ks, &model, &when);
            fill(&ks, &mut model, 2);
            ks.compact_range(None, None).unwrap();
            store.close().unwrap();
            let store = Store::open_read_only(&path, options(mode, compression)).unwrap();
            compare(&store.default_keyspace().unwrap(), &model, &when);
            store.close().unwrap();
        }
        let storage = FileStorage::open_existing(&path).unwrap();
        let report = check(&CheckStorages::on(&storage), &mut |_| {}).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        assert!(report.table_count > 3);
    }
}

#[test]
fn a_storage_without_it_is_refused_by_name() {
    let runtime = Runtime::threads();
    let storage = MemoryStorage::new(&runtime);
    let parts = || Components::on(Arc::new(storage.clone()), runtime.clone());
    // Memory has no page cache, so there is nothing to bypass.
    for mode in [DirectIo::All, DirectIo::Compaction, DirectIo::None] {
        let store = Store::open_with(parts(), options(mode, Compression::None)).unwrap();
        store.close().unwrap();
    }
    storage.set_refuses_direct(true);
    for mode in [DirectIo::All, DirectIo::Compaction] {
        let error = Store::open_with(parts(), options(mode, Compression::None)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("direct_io"), "{error}");
        assert!(error.advice_text().unwrap().contains("none"), "{error}");
    }
    let store = Store::open_with(parts(), options(DirectIo::None, Compression::None)).unwrap();
    let name = "direct_io";
    let error = store.set_option(name, "all").unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
}
