//! A process that may open only few files reads, writes and compacts a store with many more tables.
//!
//! The limit applies to a whole process, so each test starts itself again under `ulimit -n`.

use std::path::Path;
use std::process::Command;

use siltstone::{Keyspace, Options, Store};

const CHILD: &str = "SILTSTONE_FEW_FILES";

/// Pairs of a store that has many more tables than files may be open.
const KEYS: u32 = 15_000;

fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

/// Options with which few pairs make many tables.
fn small_tables() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    }
}

/// Options with which every read needs an open file.
fn read_from_files() -> Options {
    Options {
        map_tables: false,
        block_cache_bytes: 0,
        ..small_tables()
    }
}

/// A store with `KEYS` pairs.
fn filled(folder: &Path, options: Options) -> (Store, Keyspace) {
    let store = Store::open(folder, options).unwrap();
    let all = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        all.put(key(n), [n as u8; 400]).unwrap();
    }
    (store, all)
}

/// Reads some of the pairs of [`filled`], one by one.
fn read(all: &Keyspace, which: impl Iterator<Item = u32>) {
    for n in which {
        assert_eq!(all.get(key(n)).unwrap().unwrap(), [n as u8; 400], "{n}");
    }
}

fn table_count(store: &Store) -> u64 {
    let levels = &store.stats().keyspaces[0].levels;
    levels.iter().map(|level| level.table_count).sum()
}

#[test]
fn few_files_are_enough() {
    // These are too few for a job that opens all tables at once.
    with_limit(48, "few_files_are_enough", with_few_files);
}

/// If there are too few files for a store, every call returns with an error that names the limit,
/// and nothing is lost.
#[test]
fn too_few_files_are_an_error() {
    for limit in [10, 18] {
        with_limit(limit, "too_few_files_are_an_error", with_too_few_files);
    }
}

fn with_limit(limit: u32, test: &str, run: fn(&Path)) {
    if let Ok(folder) = std::env::var(CHILD) {
        return run(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "ulimit -n {limit} && exec \"$0\" --exact {test} --nocapture"
        ))
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, folder.path().join("store"))
        .output()
        .unwrap();
    let output = [child.stdout, child.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(child.status.success(), "limit {limit}: {output}");
}

fn with_too_few_files(folder: &Path) {
    let options = Options {
        level1_bytes: Options::default().level1_bytes,
        ..small_tables()
    };
    let names_the_limit = |error: siltstone::Error| {
        println!("{error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    };
    let store = match Store::open(folder, options) {
        Ok(store) => store,
        Err(error) => return names_the_limit(error),
    };
    let all = store.default_keyspace().unwrap();
    let put = |n: u32| all.put(&key(n), &[n as u8; 400]);
    let acknowledged = (0..8_000)
        .find(|n| put(*n).map_err(names_the_limit).is_err())
        .unwrap_or(8_000);
    for result in [store.flush(), all.compact_range(None, None)] {
        let _ = result.map_err(names_the_limit);
    }
    for n in 0..acknowledged {
        match all.get(&key(n)) {
            Ok(found) => assert_eq!(found.unwrap(), [n as u8; 400], "{n}"),
            Err(error) => names_the_limit(error),
        }
    }
    let _ = store.close().map_err(names_the_limit);
}

fn with_few_files(folder: &Path) {
    let (store, all) = filled(folder, small_tables());
    store.flush().unwrap();
    let tables = table_count(&store);
    assert!(tables > 48, "{tables} tables are too few to try anything");
    read(&all, 0..KEYS);
    // Jobs can open their inputs and outputs although reads have left tables open.
    all.compact_range(None, None).unwrap();
    read(&all, 0..KEYS);
    all.put(b"more", b"of it").unwrap();
    store.flush().unwrap();
    assert_eq!(all.iter().unwrap().count(), KEYS as usize + 1);
    assert_eq!(store.stats().last_job_error, None);
    store.close().unwrap();
}

/// Readers that cursors hold did not count: with enough cursors, flushes, gets and writes found no
/// descriptor left until the cursors were dropped.
#[test]
fn cursors_do_not_take_the_files_from_others() {
    with_limit(
        256,
        "cursors_do_not_take_the_files_from_others",
        with_many_cursors,
    );
}

fn with_many_cursors(folder: &Path) {
    const KEYS: u32 = 60_000;
    for map_tables in [true, false] {
        let options = Options {
            map_tables,
            ..read_from_files()
        };
        let _ = std::fs::remove_dir_all(folder);
        let store = Store::open(folder, options).unwrap();
        let all = store.default_keyspace().unwrap();
        let ordered = |n: u32| n.to_be_bytes();
        for n in 0..KEYS {
            all.put(&ordered(n), &[n as u8; 500]).unwrap();
        }
        all.compact_range(None, None).unwrap();
        let tables = table_count(&store);
        assert!(tables > 430, "{tables} tables are too few to try anything");
        // A cursor in each of them.
        let mut cursors: Vec<_> = (0..KEYS)
            .step_by(100)
            .map(|n| {
                let mut cursor = all.cursor(..).unwrap();
                cursor.seek(&ordered(n)).unwrap();
                (n, cursor)
            })
            .collect();
        for n in 0..10_000 {
            all.put(&ordered(KEYS + n), &[n as u8; 500]).unwrap();
        }
        store.flush().unwrap();
        for n in (0..KEYS).step_by(77) {
            assert_eq!(all.get(&ordered(n)).unwrap().unwrap(), [n as u8; 500]);
        }
        all.compact_range(None, None).unwrap();
        for (start, cursor) in &mut cursors {
            for n in *start..*start + 100 {
                assert_eq!(cursor.key(), ordered(n));
                assert_eq!(cursor.value(), [n as u8; 500]);
                cursor.next().unwrap();
            }
        }
        assert_eq!(store.stats().last_job_error, None);
        drop((cursors, all));
        store.close().unwrap();
    }
}

/// A flush, a segment of the log, a checkpoint and an export each need a descriptor for the files
/// that they write. They were refused while tables held half of what the process may have.
#[test]
fn calls_that_write_files_take_descriptors_back_from_tables() {
    with_limit(
        128,
        "calls_that_write_files_take_descriptors_back_from_tables",
        with_a_program_that_takes_the_rest,
    );
}

fn with_a_program_that_takes_the_rest(folder: &Path) {
    let (store, all) = filled(folder, read_from_files());
    all.compact_range(None, None).unwrap();
    let outside = folder.with_extension("tables");
    let export = siltstone::TableFolder::create(&outside).unwrap();
    type Call<'a> = (&'a str, &'a dyn Fn() -> siltstone::Result<()>);
    let calls: &[Call<'_>] = &[
        ("a flush", &|| {
            all.put(b"one", b"more").and_then(|()| store.flush())
        }),
        ("segments", &|| {
            (0..400).try_for_each(|n: u32| all.put(&key(KEYS + n), &[0; 400]))
        }),
        ("a checkpoint", &|| {
            store.checkpoint(folder.with_extension("copy")).map(drop)
        }),
        ("an export", &|| all.export(.., &export, "export").map(drop)),
        ("a compaction", &|| all.compact_range(None, None)),
    ];
    for (what, call) in calls {
        read(&all, 0..KEYS);
        // The program around the store takes every descriptor that is left.
        let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(!taken.is_empty());
        call().unwrap_or_else(|error| panic!("{what}: {error}"));
        let stats = store.stats();
        assert_eq!(stats.last_job_error, None, "{what}");
        assert_eq!(stats.health, "good", "{what}");
    }
    // Not every call meets the limit: files that are closed in the background free descriptors.
    let retry_count = store.stats().counter("descriptor_retry_count");
    assert!(retry_count > 0, "the limit was never met");
    store.close().unwrap();
}

/// If more threads read at a time than there are descriptors, a thread that finds none waits for
/// other reads to end. Some reads were refused.
#[test]
fn more_threads_than_files_can_read() {
    with_limit(40, "more_threads_than_files_can_read", with_many_threads);
}

#[allow(clippy::disallowed_methods)] // real threads: the limit is one of the process
fn with_many_threads(folder: &Path) {
    let (store, all) = filled(folder, read_from_files());
    std::thread::scope(|scope| {
        for thread in 0..80 {
            let all = &all;
            scope.spawn(move || read(all, (0..KEYS).skip(thread).step_by(37)));
        }
        for n in 0..3_000 {
            all.put(&key(KEYS + n), &[n as u8; 400]).unwrap();
        }
        store.flush().unwrap();
    });
    all.compact_range(None, None).unwrap();
    assert_eq!(store.stats().last_job_error, None);
    store.close().unwrap();
}
