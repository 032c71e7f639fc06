//! Measures the memtable alone, on one thread, in nanoseconds of processor time for each operation,
//! so that other programs on the same cores disturb it only through the caches. Keys are random and
//! have 16 bytes, the arena is faulted in before, and the best of three rounds counts.
//!
//! `cargo run --release -p siltstone --example memtable_bench [entries] [value bytes]`
// A measurement needs the real machine.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::hint::black_box;
use std::sync::Arc;

use siltstone::memtable::{ArenaPool, Entry, MAX_SEQ, Memtable};

fn mixed(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed(number).to_be_bytes());
    key[8..].copy_from_slice(&mixed(number ^ 0x5555).to_be_bytes());
    key
}

/// The processor time that this program has used, in nanoseconds.
fn processor_ns() -> f64 {
    let line = std::fs::read_to_string("/proc/self/schedstat").expect("Linux's /proc");
    line.split(' ')
        .next()
        .and_then(|field| field.parse().ok())
        .expect("nanoseconds first")
}

fn best(
    names: &mut Vec<(&'static str, f64)>,
    name: &'static str,
    count: usize,
    work: impl FnOnce(),
) {
    let start = processor_ns();
    work();
    let ns = (processor_ns() - start) / count as f64;
    match names.iter_mut().find(|entry| entry.0 == name) {
        Some(entry) => entry.1 = entry.1.min(ns),
        None => names.push((name, ns)),
    }
}

fn fill(memtable: &Memtable, keys: &[[u8; 16]], value: &[u8], group: usize) {
    let mut writer = memtable.writer();
    let mut seq = 0;
    let mut entries = Vec::with_capacity(group);
    for chunk in keys.chunks(group) {
        if group == 1 {
            seq += 1;
            writer.insert(&chunk[0], seq, 1, value).expect("room");
            continue;
        }
        entries.clear();
        for user_key in chunk {
            seq += 1;
            entries.push(Entry {
                user_key,
                seq,
                kind: 1,
                value,
            });
        }
        writer.insert_group(&entries).expect("room");
    }
}

fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .filter_map(|argument| argument.parse::<usize>().ok());
    let count = arguments.next().unwrap_or(1_000_000);
    let sizes = arguments.next().map_or(vec![32, 128], |bytes| vec![bytes]);
    let keys: Vec<[u8; 16]> = (0..count as u64).map(key).collect();
    let others: Vec<[u8; 16]> = (0..count as u64)
        .map(|number| key(number + (1 << 40)))
        .collect();
    let shuffled: Vec<[u8; 16]> = (0..count as u64)
        .map(|n| keys[(mixed(n + 99) % count as u64) as usize])
        .collect();
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    for value_bytes in sizes {
        let value = vec![7; value_bytes];
        let bytes = Memtable::arena_bytes_for(count, 16 * count, value_bytes * count);
        let pool = ArenaPool::new(bytes, 1, true);
        drop(pool.take(0).expect("memory"));
        let fresh = || Arc::new(Memtable::new(pool.take(0).expect("memory")));
        let mut results = Vec::new();
        let mut overhead = 0.0;
        for _ in 0..3 {
            for (name, keys, group) in [
                ("insert in order", &sorted, 1),
                ("insert in order, groups of 64", &sorted, 64),
                ("insert, groups of 64", &keys, 64),
                ("insert, alone", &keys, 1),
            ] {
                let memtable = fresh();
                best(&mut results, name, count, || {
                    fill(&memtable, keys, &value, group)
                });
                if name == "insert, alone" {
                    overhead =
                        memtable.used_bytes() as f64 / count as f64 - (16 + value_bytes) as f64;
                    best(&mut results, "get, hit", count, || {
                        for key in &shuffled {
                            black_box(memtable.get(key, MAX_SEQ).map(|found| found.value.first()));
                        }
                    });
                    best(&mut results, "get, miss", count, || {
                        for key in &others {
                            black_box(memtable.get(key, MAX_SEQ).is_some());
                        }
                    });
                    best(&mut results, "scan, an entry", count, || {
                        let mut iter = memtable.iter();
                        let mut sum = 0;
                        iter.seek_to_first();
                        while iter.is_valid() {
                            sum += u64::from(iter.key()[0]) + u64::from(iter.value()[0]);
                            iter.next();
                        }
                        black_box(sum);
                    });
                    best(&mut results, "scan backward, an entry", count, || {
                        let mut iter = memtable.iter();
                        let mut sum = 0;
                        iter.seek_to_last();
                        while iter.is_valid() {
                            sum += u64::from(iter.key()[0]);
                            iter.prev();
                        }
                        black_box(sum);
                    });
                    best(&mut results, "seek and next", count, || {
                        let mut iter = memtable.iter();
                        for key in &shuffled {
                            iter.seek(key, MAX_SEQ);
                            iter.next();
                            black_box(iter.is_valid());
                        }
                    });
                }
            }
        }
        println!(
            "{count} entries, 16-byte keys, {value_bytes}-byte values; \
             overhead {overhead:.1} bytes an entry"
        );
        for (name, ns) in results {
            println!("  {name:32} {ns:7.1} ns");
        }
    }
}
