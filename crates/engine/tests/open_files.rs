//! A process that may open few files: a store with many more tables than that is read, written and compacted all the same.
//!
//! The limit holds for a whole process, so the test starts itself again under `ulimit -n`.

use std::process::Command;

use siltstone::{Options, Store};

const CHILD: &str = "SILTSTONE_FEW_FILES";

fn key(n: u32) -> [u8; 4] {
    n.wrapping_mul(2_654_435_761).to_be_bytes()
}

#[test]
fn few_files_are_enough() {
    // No job over all tables can hold its inputs open.
    with_limit(48, "few_files_are_enough", with_few_files);
}

/// Where there are too few for a store, every call comes back, with an error that names the limit, and loses nothing.
#[test]
fn too_few_files_are_told() {
    for limit in [10, 18] {
        with_limit(limit, "too_few_files_are_told", with_too_few_files);
    }
}

fn with_limit(limit: u32, test: &str, run: fn(&std::path::Path)) {
    if let Ok(folder) = std::env::var(CHILD) {
        return run(std::path::Path::new(&folder));
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
    let said = [child.stdout, child.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(child.status.success(), "limit {limit}: {said}");
}

fn with_too_few_files(folder: &std::path::Path) {
    let options = Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    };
    let told = |error: siltstone::Error| {
        println!("{error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    };
    let store = match Store::open(folder, options) {
        Ok(store) => store,
        Err(error) => return told(error),
    };
    let all = store.default_keyspace().unwrap();
    let put = |n: u32| all.put(&key(n), &[n as u8; 400]);
    let acknowledged = (0..8_000)
        .find(|n| put(*n).map_err(told).is_err())
        .unwrap_or(8_000);
    for result in [store.flush(), all.compact_range(None, None)] {
        let _ = result.map_err(told);
    }
    for n in 0..acknowledged {
        match all.get(&key(n)) {
            Ok(found) => assert_eq!(found.unwrap(), [n as u8; 400], "{n}"),
            Err(error) => told(error),
        }
    }
    let _ = store.close().map_err(told);
}

fn with_few_files(folder: &std::path::Path) {
    const KEYS: u32 = 15_000;
    let options = Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    };
    let store = Store::open(folder, options).unwrap();
    let all = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        all.put(&key(n), &[n as u8; 400]).unwrap();
    }
    let read = || {
        for n in 0..KEYS {
            assert_eq!(all.get(&key(n)).unwrap().unwrap(), [n as u8; 400], "{n}");
        }
    };
    store.flush().unwrap();
    let tables: u64 = store.stats().keyspaces[0]
        .levels
        .iter()
        .map(|l| l.table_count)
        .sum();
    assert!(tables > 48, "{tables} tables are too few to try anything");
    read();
    // The tables that reads have left open do not keep jobs from their inputs and outputs.
    all.compact_range(None, None).unwrap();
    read();
    all.put(b"more", b"of it").unwrap();
    store.flush().unwrap();
    assert_eq!(all.iter().unwrap().count(), KEYS as usize + 1);
    assert_eq!(store.stats().last_job_error, None);
    store.close().unwrap();
}

/// Readers that cursors hold counted for nothing: with enough cursors, flushes, gets and writes
/// found no file handle left, until the cursors went.
#[test]
fn cursors_do_not_take_the_files_from_others() {
    with_limit(
        256,
        "cursors_do_not_take_the_files_from_others",
        with_many_cursors,
    );
}

fn with_many_cursors(folder: &std::path::Path) {
    const KEYS: u32 = 60_000;
    let options = Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    };
    for map_tables in [true, false] {
        let options = Options {
            map_tables,
            // What is not mapped is read from files, and not from a cache.
            block_cache_bytes: 0,
            ..options.clone()
        };
        let _ = std::fs::remove_dir_all(folder);
        let store = Store::open(folder, options).unwrap();
        let all = store.default_keyspace().unwrap();
        let ordered = |n: u32| n.to_be_bytes();
        for n in 0..KEYS {
            all.put(&ordered(n), &[n as u8; 500]).unwrap();
        }
        all.compact_range(None, None).unwrap();
        let tables: u64 = store.stats().keyspaces[0]
            .levels
            .iter()
            .map(|l| l.table_count)
            .sum();
        assert!(tables > 430, "{tables} tables are too few to try anything");
        // A cursor in each of them.
        let mut cursors: Vec<_> = (0..KEYS)
            .step_by(100)
            .map(|n| {
                let mut cursor = all.cursor(siltstone::IterOptions::default()).unwrap();
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

/// A flush, a segment of the log, a checkpoint and an export each want a descriptor for what they
/// write. They were refused while tables held half of all that the process may have.
#[test]
fn what_writes_files_takes_descriptors_back_from_tables() {
    with_limit(
        128,
        "what_writes_files_takes_descriptors_back_from_tables",
        with_a_program_that_takes_the_rest,
    );
}

fn with_a_program_that_takes_the_rest(folder: &std::path::Path) {
    const KEYS: u32 = 15_000;
    let options = Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        map_tables: false,
        block_cache_bytes: 0,
        ..Options::default()
    };
    let store = Store::open(folder, options).unwrap();
    let all = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        all.put(&key(n), &[n as u8; 400]).unwrap();
    }
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
        for n in 0..KEYS {
            assert_eq!(all.get(&key(n)).unwrap().unwrap(), [n as u8; 400], "{n}");
        }
        // The program around the store takes every descriptor that is left.
        let taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        assert!(!taken.is_empty());
        call().unwrap_or_else(|error| panic!("{what}: {error}"));
        let stats = store.stats();
        assert_eq!(stats.last_job_error, None, "{what}");
        assert_eq!(stats.health, "good", "{what}");
    }
    // Not at each call: what is closed in the background leaves a descriptor now and then.
    let retry_count = store.stats().counter("descriptor_retry_count");
    assert!(retry_count > 0, "the limit was never met");
    store.close().unwrap();
}

/// More threads read at a time than there are descriptors: whoever finds none waits for the reads
/// of others to end. Some reads were refused.
#[test]
fn more_threads_than_files_can_read() {
    with_limit(40, "more_threads_than_files_can_read", with_many_threads);
}

#[allow(clippy::disallowed_methods)] // real threads: the limit is one of the process
fn with_many_threads(folder: &std::path::Path) {
    const KEYS: u32 = 15_000;
    let options = Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 256 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        map_tables: false,
        block_cache_bytes: 0,
        ..Options::default()
    };
    let store = Store::open(folder, options).unwrap();
    let all = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        all.put(&key(n), &[n as u8; 400]).unwrap();
    }
    std::thread::scope(|scope| {
        for thread in 0..80 {
            let all = &all;
            scope.spawn(move || {
                for n in (0..KEYS).skip(thread).step_by(37) {
                    assert_eq!(all.get(&key(n)).unwrap().unwrap(), [n as u8; 400], "{n}");
                }
            });
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
