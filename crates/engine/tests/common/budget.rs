//! The memory budget: what is given back first, what comes back, and that no call waits for it.

use std::time::Duration;

use siltstone::{Keyspace, MemoryStats, Options, Store};
use siltstone_storage::Runtime;

use super::*;

pub const ALL: &[Story] = &[
    ("memory_keeps_to_its_budget", 2, memory_keeps_to_its_budget),
    (
        "memory_beyond_the_budget_is_used_and_counted",
        2,
        memory_beyond_the_budget_is_used_and_counted,
    ),
];

const KEYS: u64 = 20_000;

/// How much memory above the budget may be in use after a round: other allocations, rounded.
const TOLERANCE: u64 = 64 << 10;

fn options() -> Options {
    Options {
        memtable_bytes: 1 << 20,
        block_cache_bytes: 2 << 20,
        map_tables: false,
        bloom_bits_per_key: 20.into(),
        level1_bytes: 128 << 10,
        ..small()
    }
}

/// A store with several levels of data, all of which was read.
fn filled(disk: &Disk) -> (Store, Keyspace) {
    let store = disk.open_with(options());
    let ks = store.default_keyspace().unwrap();
    for i in 0..KEYS {
        ks.put(&key(i * 7_919 % KEYS), &[i as u8; 150]).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    read_all(&ks);
    (store, ks)
}

fn read_all(ks: &Keyspace) {
    for i in 0..KEYS {
        assert!(ks.get(&key(i)).unwrap().is_some(), "{i}");
    }
}

/// The statistics after some rounds of maintenance.
fn later(disk: &Disk, store: &Store) -> MemoryStats {
    disk.rt.sleep(Duration::from_secs(4));
    store.stats().memory
}

fn memory_keeps_to_its_budget(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let counter = |name: &str| store.stats().counter(name);
    let free = store.stats().memory;
    assert_eq!((free.max_bytes, free.over_bytes()), (0, 0));
    assert!(free.block_cache_bytes > 1 << 20, "{free:?}");
    assert_eq!(free.job_bytes, 0, "nothing runs");
    assert_eq!(
        free.counted_bytes(),
        free.memtable_bytes + free.block_cache_bytes + free.table_bytes
    );

    // The cache shrinks first, by the excess, and grows again.
    let most = free.counted_bytes() - (512 << 10);
    let closed = counter("table_close_count");
    store.set_option("memory_bytes_max", most).unwrap();
    let now = later(&disk, &store);
    assert!(now.counted_bytes() <= most + TOLERANCE, "{now:?}");
    assert!(
        now.block_cache_bytes + (1 << 20) > free.block_cache_bytes,
        "{now:?}"
    );
    assert_eq!(counter("table_close_count"), closed, "tables stay open");
    read_all(&ks);
    let now = later(&disk, &store);
    assert!(now.counted_bytes() <= most + TOLERANCE, "{now:?}");
    assert_eq!(counter("memory_over_count"), 0);

    // Without the cache there is still too much, so tables of deep levels are closed.
    let upper_and_memtables = now.memtable_bytes + now.table_bytes - now.table_bytes / 4;
    store
        .set_option("memory_bytes_max", upper_and_memtables)
        .unwrap();
    let now = later(&disk, &store);
    assert_eq!(now.block_cache_bytes, 0, "{now:?}");
    assert!(counter("table_close_count") > closed);
    assert!(
        now.counted_bytes() <= upper_and_memtables + TOLERANCE,
        "{now:?}"
    );
    read_all(&ks);

    // Without a budget everything is as before.
    store.set_option("memory_bytes_max", 0u64).unwrap();
    let _ = later(&disk, &store);
    read_all(&ks);
    let now = later(&disk, &store);
    assert_eq!(now.block_cache_capacity_bytes, options().block_cache_bytes);
    assert!(now.block_cache_bytes > 1 << 20, "{now:?}");
    assert_eq!(counter("sealed_for_memory_count"), 0);
}

fn memory_beyond_the_budget_is_used_and_counted(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let (store, ks) = filled(&disk);
    let counter = |name: &str| store.stats().counter(name);
    let other = store.create_keyspace("other").unwrap();
    // This is far less than filters and memtables need.
    store.set_option("memory_bytes_max", 1000u64).unwrap();
    let flushed = counter("flush_count");
    for i in 0..2_000 {
        ks.put(&key(i), &[1; 150]).unwrap();
        if i % 20 == 0 {
            other.put(&key(i / 20), &[1; 100]).unwrap();
        }
    }
    let before = store.stats().memory;
    let now = later(&disk, &store);
    store.wait_until_idle().unwrap();
    assert!(counter("memory_over_count") > 0);
    // The larger memtable was flushed early, once or twice. The small one is not worth a run.
    let sealed = counter("sealed_for_memory_count");
    assert!((1..=2).contains(&sealed), "{sealed}");
    assert_eq!(counter("flush_count"), flushed + sealed);
    assert!(
        now.memtable_bytes + (200 << 10) < before.memtable_bytes,
        "{before:?} {now:?}"
    );
    assert!(stats_of(&store, "other").memtable_bytes > 0);
    let later = later(&disk, &store);
    assert_eq!(counter("sealed_for_memory_count"), sealed, "{later:?}");
    assert!(
        later.over_bytes() > 0 && later.block_cache_bytes == 0,
        "{later:?}"
    );
    // Reads, writes and compactions continue.
    read_all(&ks);
    ks.compact_range(None, None).unwrap();
    read_all(&ks);
    assert_eq!(other.iter().unwrap().count(), 100);
    drop((ks, other));
    store.close().unwrap();
    let store = disk.open_with(Options {
        memory_bytes_max: 1000,
        ..options()
    });
    read_all(&store.default_keyspace().unwrap());
}
