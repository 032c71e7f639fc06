//! Anonymous memory stays below what the store reports (memtables, caches, filters, indexes) plus
//! 64 MiB, during a load, a full scan, and 100,000 range deletes. A job over many range deletes may
//! take 400 bytes more for each while it runs. The test runs in a process of its own, which
//! measures itself. (glibc's heap keeps the peak of a job over 100,000 range deletes, here about
//! 100 MiB altogether, unless it is asked to return it: `src/types/allocator.rs`.)

#![cfg(target_os = "linux")]

use siltstone::{Batch, IterOptions, Options, Store, WriteOptions};

const ALLOWANCE_BYTES: u64 = 64 << 20;

/// The anonymous bytes of this process that are in memory.
fn anonymous_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|l| l.starts_with("RssAnon:"))
        .expect("Linux 4.5 and later");
    line.split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024
}

/// The range deletes of the test, and the memory that a running job may take for each.
const RANGE_DELETES: u64 = 100_000;
const RANGE_DELETE_BYTES: u64 = 400;

fn check(store: &Store, options: &Options, when: &str) {
    check_beside(0, store, options, when);
}

/// As [`check`], while a job may run that takes `job_bytes` beyond the allowance.
fn check_beside(job_bytes: u64, store: &Store, options: &Options, when: &str) {
    let memory = store.stats().memory;
    let said = memory.arena_bytes
        + memory.range_delete_bytes
        + memory.block_cache_bytes
        + memory.table_bytes;
    let found = anonymous_bytes();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!(
        "{when:34} anonymous {:7.1} MiB, said {:7.1} MiB {memory:?}",
        mib(found),
        mib(said)
    );
    assert!(
        found <= said + ALLOWANCE_BYTES + job_bytes,
        "{when}: {:.1} MiB of anonymous memory, {:.1} MiB are accounted for",
        mib(found),
        mib(said)
    );
    // The options bound what it reports: the memtables in use and the arenas kept for the next
    // ones, the cache, and readers.
    let arenas =
        (options.memtable_bytes + (1 << 20)) * u64::from(options.sealed_memtables_max + 2 + 3);
    assert!(
        memory.arena_bytes <= arenas,
        "{when}: {:.1} MiB of arenas, {:.1} expected at most",
        mib(memory.arena_bytes),
        mib(arenas)
    );
    assert!(
        memory.block_cache_bytes <= options.block_cache_bytes + (1 << 20),
        "{when}: {memory:?}"
    );
}

fn key(i: u64) -> [u8; 16] {
    let mut key = *b"key-000000000000";
    for (at, byte) in key[4..].iter_mut().rev().enumerate() {
        *byte = b'0' + (i / 10u64.pow(at as u32) % 10) as u8;
    }
    key
}

const ROLE: &str = "SILT_MEMORY_BOUND";

#[test]
fn anonymous_memory_is_bounded() {
    in_own_process(
        "anonymous_memory_is_bounded",
        "after a scan over them",
        measure,
    );
}

/// Stores often have a thousand keyspaces with little data in each. Each took two huge pages, 4
/// MiB.
#[test]
fn small_keyspaces_take_little_memory() {
    in_own_process(
        "small_keyspaces_take_little_memory",
        "after another open",
        measure_keyspaces,
    );
}

/// Runs `measure` in a process that does nothing else and prints `last` at the end.
fn in_own_process(test: &str, last: &str, measure: fn()) {
    if std::env::var_os(ROLE).is_some() {
        measure();
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .env(ROLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains(last), "see above");
}

fn measure_keyspaces() {
    const COUNT: u64 = 200;
    /// Two pages each of records, nodes and filter, page tables for both ends of the arena, and the
    /// keyspace itself.
    const EACH_BYTES: u64 = 48 << 10;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let open = || Store::open(&path, Options::default()).unwrap();
    let store = open();
    // What the first write and the first flush take.
    let all = store.default_keyspace().unwrap();
    all.put(b"key", b"value").unwrap();
    store.flush().unwrap();
    let before = anonymous_bytes();
    let check = |when: &str| {
        let each = anonymous_bytes().saturating_sub(before) / COUNT;
        println!("{when:34} {each} bytes a keyspace");
        assert!(each <= EACH_BYTES, "{when}: {each} bytes a keyspace");
    };
    let keyspaces: Vec<_> = (0..COUNT)
        .map(|i| store.create_keyspace(&format!("keyspace-{i}")).unwrap())
        .collect();
    check("after their creation");
    let write = |round: u64| {
        for keyspace in &keyspaces {
            keyspace.put(b"key", &round.to_le_bytes()).unwrap();
        }
    };
    write(1);
    check("after one write each");
    store.flush().unwrap();
    write(2);
    check("after a flush and another write");
    drop(keyspaces);
    drop(all);
    store.close().unwrap();
    let store = open();
    check("after another open");
    for i in 0..COUNT {
        let keyspace = store.keyspace(&format!("keyspace-{i}")).unwrap();
        let found = keyspace.get(b"key").unwrap().unwrap();
        assert_eq!(found, 2u64.to_le_bytes());
        keyspace.put(b"another", b"").unwrap();
    }
    check("after writes to what was opened");
    store.close().unwrap();
}

fn measure() {
    const PAIRS: u64 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        memtable_bytes: 8 << 20,
        table_bytes: 8 << 20,
        level1_bytes: 32 << 20,
        block_cache_bytes: 8 << 20,
        // Tables are read through the cache, and not through maps, whose pages belong to the
        // kernel.
        map_tables: false,
        ..Options::default()
    };
    let store = Store::open(dir.path().join("s"), options.clone()).unwrap();
    let ks = store.default_keyspace().unwrap();
    let mut batch = Batch::new();
    for i in 0..PAIRS {
        // The keys are scattered, so compactions must merge.
        let k = i * 7_919 % PAIRS;
        batch.put(&ks, &key(k), &[k as u8; 64]).unwrap();
        if batch.len() == 500 {
            store.write(&batch, WriteOptions::default()).unwrap();
            batch.clear();
        }
        if i % 100_000 == 99_999 {
            check(&store, &options, "while it is loaded");
        }
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    check(&store, &options, "after the load");

    let mut cursor = ks.cursor(IterOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    let mut count = 0u64;
    while cursor.valid() {
        assert_eq!(
            (cursor.key(), cursor.value()),
            (&key(count)[..], &[count as u8; 64][..])
        );
        count += 1;
        if count.is_multiple_of(250_000) {
            check(&store, &options, "in a full scan");
        }
        cursor.next().unwrap();
    }
    assert_eq!(count, PAIRS);
    drop(cursor);

    // A hundred thousand range deletes over every tenth group of five keys: half of them in
    // memtables, then in tables, then at the bottom.
    for i in 0..RANGE_DELETES {
        ks.delete_range(&key(i * 10), &key(i * 10 + 5)).unwrap();
        if i % 25_000 == 24_999 {
            check(&store, &options, "range deletes in memtables");
        }
    }
    assert_eq!(ks.get(&key(3)).unwrap(), None);
    assert_eq!(ks.get(&key(7)).unwrap().unwrap(), [7; 64]);
    check(&store, &options, "after 100,000 range deletes");
    store.flush().unwrap();
    // The flush makes a compaction due, which may be running by now.
    let job_bytes = RANGE_DELETES * RANGE_DELETE_BYTES;
    check_beside(job_bytes, &store, &options, "after their flush");
    store.wait_until_idle().unwrap();
    check(&store, &options, "after their compaction");
    let left = ks.iter().unwrap().map(Result::unwrap).count() as u64;
    assert_eq!(left, PAIRS / 2);
    check(&store, &options, "after a scan over them");
}

/// A memtable that was made larger for a large value is freed when it is flushed. After a wait for
/// that, its memory is no longer counted.
#[test]
fn oversized_memtables_are_given_back() {
    const MEMTABLE_BYTES: u64 = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        memtable_bytes: MEMTABLE_BYTES,
        ..Options::default()
    };
    let store = Store::open(dir.path().join("s"), options).unwrap();
    let ks = store.default_keyspace().unwrap();
    let value = vec![7; 16 << 20];
    for _ in 0..4 {
        for key in 0..4u8 {
            ks.put([key], &value).unwrap();
        }
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        let memory = store.stats().memory;
        // The active one, and three that are kept for reuse.
        assert!(memory.arena_bytes <= 5 * MEMTABLE_BYTES, "{memory:?}");
    }
    store.close().unwrap();
}
