//! Compares `multi_get` with a loop of `get`.
//!
//! `cargo run --release -p siltstone --example multi_get_bench -- [FOLDER] [MiB]`
//!
//! The store has 16-byte keys and 128-byte values, written in random order, flushed, and in the
//! page cache. (It is kept in FOLDER, if one is given.) Keys are random over all or over a narrow
//! range, batches have several sizes, and blocks are mapped, or read from the file past a small
//! cache. Both ways take turns. The output is the median of the processor time of the calling
//! thread, which other programs disturb least.
// This program runs outside the simulation.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::error::Error;
use std::path::Path;

use siltstone::{Keyspace, Options, Store};

const ROUNDS: usize = 7;

/// The processor time of this thread so far, in nanoseconds.
fn thread_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.expect("Linux counts each thread's time in /proc/thread-self/schedstat")
}

/// A permutation of 64 bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn key(i: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&i.to_be_bytes());
    key
}

fn open(folder: &Path, map_tables: bool) -> siltstone::Result<Store> {
    let options = Options {
        map_tables,
        block_cache_bytes: 8 << 20,
        ..Options::default()
    };
    Store::open(folder, options)
}

fn fill(folder: &Path, entries: u64) -> siltstone::Result<()> {
    let store = open(folder, true)?;
    let keyspace = store.default_keyspace()?;
    if keyspace.get(&key(entries - 1))?.is_none() {
        let odd = mix(entries) | 1;
        for i in 0..entries.next_power_of_two() {
            let i = i.wrapping_mul(odd) & (entries.next_power_of_two() - 1);
            if i < entries {
                keyspace.put(&key(i), &[i as u8; 128])?;
            }
        }
        keyspace.flush()?;
    }
    store.wait_until_idle()?;
    store.close()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Nanoseconds for each key: with a loop of gets, and with batches.
fn measure(keyspace: &Keyspace, keys: &[[u8; 16]], batch: usize) -> siltstone::Result<(f64, f64)> {
    let (mut single, mut many) = (Vec::new(), Vec::new());
    // The first round only fills the caches.
    for round in 0..=ROUNDS {
        let start = thread_ns();
        for chunk in keys.chunks(batch) {
            let values: Vec<_> = chunk
                .iter()
                .map(|key| keyspace.get(key))
                .collect::<siltstone::Result<_>>()?;
            assert!(values.iter().all(Option::is_some));
        }
        let middle = thread_ns();
        for chunk in keys.chunks(batch) {
            let values = keyspace.multi_get(chunk)?;
            assert!(values.iter().all(Option::is_some));
        }
        if round > 0 {
            single.push((middle - start) as f64 / keys.len() as f64);
            many.push((thread_ns() - middle) as f64 / keys.len() as f64);
        }
    }
    Ok((median(&mut single), median(&mut many)))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next();
    let mib: u64 = arguments.next().map_or(Ok(256), |word| word.parse())?;
    let temporary = std::env::temp_dir().join(format!("multi-get-bench-{}", std::process::id()));
    let path = folder.as_ref().map_or(&*temporary, Path::new);
    let entries = (mib << 20) / 144;
    fill(path, entries)?;
    println!("blocks  keys     batch   get ns/key  multi_get ns/key  ratio");
    for map_tables in [true, false] {
        let store = open(path, map_tables)?;
        let keyspace = store.default_keyspace()?;
        for (spread, range) in [("random", entries), ("near", 4000)] {
            for batch in [1, 10, 100, 1000] {
                let count = if map_tables { 200_000 } else { 40_000 };
                let keys: Vec<_> = (0..count)
                    .map(|i| {
                        let near = mix(i / batch as u64) % (entries - range + 1);
                        key(near + mix(i ^ 1 << 40) % range)
                    })
                    .collect();
                let (single, many) = measure(&keyspace, &keys, batch)?;
                println!(
                    "{:7} {spread:7} {batch:6} {single:12.0} {many:17.0} {:6.2}",
                    if map_tables { "mapped" } else { "read" },
                    single / many
                );
            }
        }
        store.close()?;
    }
    if folder.is_none() {
        std::fs::remove_dir_all(temporary)?;
    }
    Ok(())
}
