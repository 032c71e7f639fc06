//! Files of a store on a real file system are cut by something else while the store is open: tables
//! under gets, scans and compactions (the system reports this by SIGBUS), the log under appends,
//! the manifest. Every call returns either what is right or an error that names the file, and the
//! process continues. The trial `cut_files` does the same on the simulated storage, with everything
//! else that can happen.

#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

use siltstone::{ErrorKind, Keyspace, Options, Store, SyncMode, WriteOptions};

const KEYS: u32 = 2000;

fn options() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        block_bytes: 1 << 10,
        log_segment_bytes: 2 << 20,
        log_bytes_max: 8 << 20,
        ..Options::default()
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn value(i: u32) -> Vec<u8> {
    (0..300u32).map(|at| (i * 31 + at) as u8 | 1).collect()
}

/// A store with several tables, all of them mapped, with some of their blocks verified.
fn filled(dir: &Path, options: Options) -> (Store, Keyspace) {
    let store = Store::open(dir, options).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..KEYS {
        ks.put(&key(i), &value(i)).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    for i in (0..KEYS).step_by(3) {
        assert_eq!(ks.get(&key(i)).unwrap().unwrap(), value(i));
    }
    (store, ks)
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut all: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
    all.retain(|path| path.to_string_lossy().ends_with(ending));
    all.sort();
    all
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

fn cut(path: &Path, len: u64) {
    let file: File = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

/// Reads everything by gets, by `multi_get` and by a scan: each is right, or an error that names
/// the file. Returns how many gets failed.
#[track_caller]
fn read_all(ks: &Keyspace, file: &str) -> usize {
    let names = |error: &siltstone::Error| {
        let kinds = [ErrorKind::Io, ErrorKind::Corruption];
        assert!(
            kinds.contains(&error.kind()) && error.to_string().contains(file),
            "{file}: {error}"
        );
    };
    let mut failed = 0;
    for i in 0..KEYS {
        match ks.get(&key(i)) {
            Ok(found) => assert_eq!(found.as_deref(), Some(&value(i)[..]), "{i}"),
            Err(error) => {
                names(&error);
                failed += 1;
            }
        }
    }
    for from in (0..KEYS).step_by(100) {
        let keys: Vec<_> = (from..from + 100).map(key).collect();
        match ks.multi_get(&keys) {
            Ok(found) => {
                for (i, found) in (from..).zip(found) {
                    assert_eq!(found.as_deref(), Some(&value(i)[..]), "{i}");
                }
            }
            Err(error) => names(&error),
        }
    }
    let mut next = 0;
    match ks.iter() {
        Ok(pairs) => {
            for pair in pairs {
                match pair {
                    Ok((k, v)) => {
                        assert_eq!((&k[..], &v[..]), (&key(next)[..], &value(next)[..]));
                        next += 1;
                    }
                    Err(error) => {
                        names(&error);
                        next = KEYS;
                        break;
                    }
                }
            }
            assert_eq!(next, KEYS, "a scan that ends early and says nothing");
        }
        Err(error) => names(&error),
    }
    failed
}

#[test]
fn a_table_cut_under_gets_scans_and_compactions_is_reported() {
    for (round, map_tables) in [true, true, true, false].into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = Options {
            map_tables,
            // Without maps, blocks in the cache are still right.
            block_cache_bytes: if map_tables { 64 << 20 } else { 0 },
            ..options()
        };
        let (store, ks) = filled(&path, options.clone());
        let tables = files(&path, ".tbl");
        let table = &tables[tables.len() / 2];
        let len = std::fs::metadata(table).unwrap().len();
        cut(table, [0, len / 2 / 4096 * 4096, len - 1, len / 3][round]);
        let file = name(table);
        let failed = read_all(&ks, &file);
        assert!(failed > 0 || round == 2, "round {round}: nobody noticed");
        // A compaction of everything reads it too, fails, and changes nothing.
        if let Err(error) = ks.compact_range(None, None) {
            assert!(error.to_string().contains(&file), "{error}");
        }
        read_all(&ks, &file);
        // Everything that does not need the file works.
        ks.put(b"other", b"value").unwrap();
        assert_eq!(ks.get(b"other").unwrap().unwrap(), b"value");
        ks.delete(b"other").unwrap();
        let report = store.verify(&mut |_| {}).unwrap();
        assert!(
            report
                .problems
                .iter()
                .any(|p| p.to_string().contains(&file)),
            "{:?}",
            report.problems
        );
        drop(ks);
        if let Err(error) = store.close() {
            assert!(error.to_string().contains(&file), "{error}");
        }
        match Store::open(&path, options) {
            Ok(store) => {
                read_all(&store.default_keyspace().unwrap(), &file);
            }
            Err(error) => assert!(error.to_string().contains(&file), "{error}"),
        }
    }
}

/// The segment that is written is cut below the position of the next append. Appends go through a
/// map (many small unsynced ones) or through calls (synced ones).
#[test]
fn a_log_cut_under_appends_is_reported() {
    for synced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let options = Options {
            sync: SyncMode::Never,
            memtable_bytes: 16 << 20,
            ..options()
        };
        let store = Store::open(&path, options.clone()).unwrap();
        let ks = store.default_keyspace().unwrap();
        let write = |i: u32| {
            let mut batch = siltstone::Batch::new();
            batch.put(&ks, &key(i), &value(i)).unwrap();
            store.write(
                &batch,
                WriteOptions {
                    sync: synced,
                    ..WriteOptions::default()
                },
            )
        };
        // The first segments are small. Only larger ones are written through a map. Segments are
        // prepared ahead, so the one that is being written has to be large.
        let is_large = || {
            let newest = path.join(format!("{:012}.log", store.stats().log.newest_segment));
            std::fs::metadata(newest).unwrap().len() >= 2 << 20
        };
        let mut filled = 0;
        while !is_large() {
            (filled..filled + 200).for_each(|i| write(i).unwrap());
            filled += 200;
        }
        let segments = files(&path, ".log");
        for segment in &segments {
            cut(segment, 8192);
        }
        let mut refused = None;
        let mut acked = filled;
        for i in filled..filled + 1300 {
            match write(i) {
                Ok(()) => acked = i + 1,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = &refused {
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Poisoned, "{text}");
            assert!(segments.iter().any(|s| text.contains(&name(s))), "{text}");
        }
        assert_eq!(
            refused.is_some(),
            !synced,
            "a store into a map of what is gone fails"
        );
        for i in 0..acked {
            assert_eq!(
                ks.get(&key(i)).unwrap().unwrap(),
                value(i),
                "reads continue"
            );
        }
        drop((ks, store.close()));
        // What was cut off is lost: either a prefix of the history is left, or an open is refused
        // and names the segment.
        match Store::open(&path, options) {
            Ok(store) => {
                let ks = store.default_keyspace().unwrap();
                let count = ks.iter().unwrap().count() as u32;
                for i in 0..count {
                    assert_eq!(ks.get(&key(i)).unwrap().unwrap(), value(i));
                }
                assert!(!synced, "synced records are gone and nobody says so");
            }
            Err(error) => {
                let text = error.to_string();
                assert_eq!(error.kind(), ErrorKind::Corruption, "{text}");
                assert!(text.contains(".log"), "{text}");
            }
        }
    }
}

#[test]
fn a_manifest_cut_under_edits_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (store, ks) = filled(&path, options());
    let manifests: Vec<PathBuf> = std::fs::read_dir(&path)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| name(p).starts_with("MANIFEST"))
        .collect();
    for manifest in &manifests {
        cut(manifest, 20);
    }
    read_all(&ks, "MANIFEST");
    ks.put(&key(0), &value(0)).unwrap();
    if let Err(error) = store.flush() {
        assert!(error.to_string().contains("MANIFEST"), "{error}");
    }
    read_all(&ks, "MANIFEST");
    drop((ks, store.close()));
    let error = Store::open(&path, options()).map(|_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains("MANIFEST"), "{error}");
}
