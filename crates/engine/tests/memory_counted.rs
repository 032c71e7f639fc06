//! The store reports as much memory of its tables and its block cache as they take from the heap,
//! and a memory budget returns it. The allocator of this process counts. Arenas of memtables are
//! maps, which `memory_bound.rs` compares with `RssAnon`.

// The test runs on real threads and waits for them.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use siltstone::{Batch, Compression, MemoryStats, Options, Store, WriteOptions};

/// The system's allocator, with a count of the bytes in use.
struct Counting;

static HELD_BYTES: AtomicI64 = AtomicI64::new(0);

fn count(bytes: usize, sign: i64) {
    HELD_BYTES.fetch_add(sign * bytes as i64, Relaxed);
}

// SAFETY: every call goes to the system's allocator with the arguments unchanged, and counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same there.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 1);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), -1);
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count(layout.size(), -1);
        count(new_size, 1);
        // SAFETY: as for `dealloc`; the caller keeps the contract on the new size.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const MIB: u64 = 1 << 20;
/// Threads, views, the manifest, histograms and the log's buffers, which no gauge counts.
const UNCOUNTED_BYTES: u64 = 2 * MIB;

fn held_bytes() -> u64 {
    HELD_BYTES.load(Relaxed).max(0) as u64
}

/// Compares the bytes taken from the heap since `before` with what the store reports.
fn compare(store: &Store, before: u64, when: &str) -> MemoryStats {
    let memory = store.stats().memory;
    let said = memory.table_bytes + memory.block_cache_bytes + memory.job_bytes;
    let found = held_bytes().saturating_sub(before);
    println!("{when}: {found} bytes of the heap, {said} said, {memory:?}");
    let close = said / 8 + UNCOUNTED_BYTES;
    assert!(
        found.abs_diff(said) <= close,
        "{when}: {found} bytes of the heap, {said} said; {memory:?}"
    );
    memory
}

#[test]
fn counted_memory_is_the_memory_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        memtable_bytes: 2 * MIB,
        table_bytes: MIB,
        level1_bytes: 8 * MIB,
        block_cache_bytes: 24 * MIB,
        // Compressed blocks go through the cache.
        compression: Compression::Lz4.into(),
        bloom_bits_per_key: 20.into(),
        ..Options::default()
    };
    let before = held_bytes();
    let store = Store::open(folder.path().join("store"), options).unwrap();
    let pairs = store.default_keyspace().unwrap();
    let key = |i: u32| format!("key-{:08}", i.wrapping_mul(2_654_435_761) % 1_000_003);
    let mut batch = Batch::new();
    for i in 0..300_000u32 {
        let value = format!("{:0100}", i);
        batch
            .put(&pairs, key(i).as_bytes(), value.as_bytes())
            .unwrap();
        if i % 200 == 199 {
            store.write(&batch, WriteOptions::default()).unwrap();
            batch.clear();
        }
    }
    drop(batch);
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    for i in (0..300_000).step_by(3) {
        assert!(pairs.get(key(i).as_bytes()).unwrap().is_some());
    }
    let full = compare(&store, before, "all read");
    assert!(full.block_cache_bytes > 12 * MIB, "{full:?}");
    assert!(full.table_bytes > 400_000, "{full:?}");

    // The test does not measure time; it waits up to a bound.
    let budget = 6 * MIB;
    store.set_option("memory_bytes_max", budget).unwrap();
    let start = Instant::now();
    while store.stats().memory.counted_bytes() > budget {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the budget is not kept: {:?}",
            store.stats().memory
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let small = compare(&store, before, "within the budget");
    assert!(small.block_cache_bytes <= budget, "{small:?}");
    for i in (0..300_000).step_by(30) {
        assert!(pairs.get(key(i).as_bytes()).unwrap().is_some());
    }
    assert!(store.stats().memory.counted_bytes() <= budget + MIB);
    compare(&store, before, "read again");
    store.close().unwrap();
}
