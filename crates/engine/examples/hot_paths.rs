//! Carries out one operation of the store many times, so that its instructions can be counted.
//!
//! `cargo xtask instructions` runs this program under callgrind, once for each operation, and
//! writes the counts to `docs/instructions.md`. Callgrind counts while a certain function runs, and
//! the program prints by how many operations the count is to be divided. The counts show
//! differences that no clock shows on a noisy machine. They do not show what waits for memory.
//!
//! `hot_paths OPERATION`; without an operation, it lists them.
// This program runs outside the simulation.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;

use siltstone::{Batch, Keyspace, Options, Store, WriteOptions};

/// Records of a store that is read. They fit into one memtable.
const RECORDS: u64 = 150_000;
/// Operations that are counted. Callgrind is about fifty times slower than the processor.
const OPERATIONS: u64 = 50_000;
const VALUE: [u8; 1024] = [7; 1024];
const VALUE_BYTES: usize = 128;

/// Callgrind counts while this function runs, in the thread that calls it.
const MEASURED: &str = "hot_paths::measured";
/// Callgrind counts while this function runs: it executes a flush or compaction, in a worker.
const JOB: &str = "siltstone_table::exec::subjob::run";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// An operation: its name, what is counted, and the function that carries it out and returns how
/// often it did so.
type Operation = (
    &'static str,
    &'static str,
    fn(&Store, &Keyspace) -> Result<u64>,
);

const ALL: [Operation; 12] = [
    ("put", MEASURED, |_, k| put(k, record, VALUE_BYTES)),
    ("put, keys in order", MEASURED, |_, k| {
        put(k, |i| i, VALUE_BYTES)
    }),
    ("put, 1024 bytes", MEASURED, |_, k| put(k, record, 1024)),
    ("put, in batches of 1000", MEASURED, put_batches),
    ("get, from the memtable", MEASURED, |_, k| get(k, false, 0)),
    ("get, from a table", MEASURED, |_, k| get(k, true, 0)),
    ("get, missing", MEASURED, |_, k| get(k, true, 1)),
    ("get, missing in two tables", MEASURED, get_missing_in_two),
    ("seek and 10 entries", MEASURED, |_, k| {
        scan(k, OPERATIONS / 10, 10)
    }),
    ("next", MEASURED, |_, k| scan(k, 1, RECORDS)),
    ("flush, each entry", JOB, flush),
    ("merge, each input entry", JOB, merge),
];

/// Callgrind counts what happens in here.
#[inline(never)]
fn measured<R>(f: impl FnOnce() -> R) -> R {
    black_box(f())
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

/// A random record. Records have even numbers.
fn record(i: u64) -> u64 {
    mix(i) % RECORDS * 2
}

fn put(keyspace: &Keyspace, number: fn(u64) -> u64, bytes: usize) -> Result<u64> {
    let puts = |from: u64, count: u64| {
        (from..from + count).try_for_each(|i| keyspace.put(key(number(i)), &VALUE[..bytes]))
    };
    // All of them fit into one memtable.
    let operations = OPERATIONS * VALUE_BYTES as u64 / bytes as u64;
    puts(0, operations / 2)?;
    measured(|| puts(operations / 2, operations))?;
    Ok(operations)
}

fn put_batches(store: &Store, keyspace: &Keyspace) -> Result<u64> {
    let mut batches = Vec::new();
    for first in (0..OPERATIONS).step_by(1000) {
        let mut batch = Batch::new();
        for i in first..first + 1000 {
            batch.put(keyspace, key(record(i)), &VALUE[..VALUE_BYTES])?;
        }
        batches.push(batch);
    }
    measured(|| {
        let mut batches = batches.iter();
        batches.try_for_each(|batch| store.write(batch, WriteOptions::default()))
    })?;
    Ok(OPERATIONS)
}

/// Puts all records that `wanted` selects.
fn fill(keyspace: &Keyspace, wanted: impl Fn(u64) -> bool) -> Result<()> {
    let mut records = (0..RECORDS).filter(|i| wanted(*i)).map(|i| i * 2);
    records.try_for_each(|record| keyspace.put(key(record), &VALUE[..VALUE_BYTES]))?;
    Ok(())
}

/// Gets random records, or keys that are `missing` beside them.
fn count_gets(keyspace: &Keyspace, missing: u64) -> Result<u64> {
    let mut value = Vec::new();
    // The first reads open tables and verify blocks.
    for i in 0..RECORDS {
        keyspace.get_into(key(i * 2), &mut value)?;
    }
    let found = measured(|| {
        (0..OPERATIONS).try_fold(0, |found, i| {
            let is_found = keyspace.get_into(key(record(i) + missing), &mut value)?;
            siltstone::Result::Ok(found + u64::from(is_found))
        })
    })?;
    let expected = if missing == 0 { OPERATIONS } else { 0 };
    assert_eq!(found, expected, "records that were found");
    Ok(OPERATIONS)
}

fn get(keyspace: &Keyspace, flushed: bool, missing: u64) -> Result<u64> {
    fill(keyspace, |_| true)?;
    if flushed {
        keyspace.flush()?;
    }
    count_gets(keyspace, missing)
}

fn get_missing_in_two(_: &Store, keyspace: &Keyspace) -> Result<u64> {
    for part in 0..2 {
        fill(keyspace, |i| i % 2 == part)?;
        keyspace.flush()?;
    }
    count_gets(keyspace, 1)
}

/// Seeks and reads `nexts` entries each time. An operation is a seek, or an entry if there is one
/// seek only.
fn scan(keyspace: &Keyspace, seeks: u64, nexts: u64) -> Result<u64> {
    fill(keyspace, |_| true)?;
    keyspace.flush()?;
    let bytes = |from: u64, nexts: u64| {
        let mut bytes = 0;
        let mut cursor = keyspace.cursor(..)?;
        cursor.seek(key(from))?;
        for _ in 0..nexts {
            if !cursor.valid() {
                break;
            }
            bytes += cursor.key().len() + black_box(cursor.value()).len();
            cursor.next()?;
        }
        siltstone::Result::Ok(bytes as u64)
    };
    let expected = RECORDS * (16 + VALUE_BYTES as u64);
    assert_eq!(bytes(0, RECORDS)?, expected, "bytes of the store");
    let read = measured(|| {
        (0..seeks).try_fold(0, |read, i| {
            let from = if seeks == 1 { 0 } else { record(i) };
            siltstone::Result::Ok(read + bytes(from, nexts)?)
        })
    })?;
    assert!(read > 0, "the scans read nothing");
    Ok(if seeks == 1 { nexts } else { seeks })
}

fn flush(_: &Store, keyspace: &Keyspace) -> Result<u64> {
    fill(keyspace, |_| true)?;
    keyspace.flush()?;
    Ok(RECORDS)
}

/// Merges two tables whose keys alternate.
fn merge(_: &Store, keyspace: &Keyspace) -> Result<u64> {
    keyspace.compact_range(None, None)?;
    Ok(RECORDS)
}

/// What a store has before its operation.
fn prepare(name: &str, keyspace: &Keyspace) -> Result<()> {
    if name.starts_with("merge") {
        for part in 0..2 {
            fill(keyspace, |i| i % 2 == part)?;
            keyspace.flush()?;
        }
    }
    Ok(())
}

fn open(folder: &Path) -> Result<(Store, Keyspace)> {
    let options = Options {
        subjobs_max: 1,
        ..Options::default()
    };
    let store = Store::open(folder, options)?;
    let keyspace = store.default_keyspace()?;
    Ok((store, keyspace))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(wanted) = arguments.first() else {
        ALL.iter()
            .for_each(|(name, counted, _)| println!("{name}\t{counted}"));
        return Ok(());
    };
    let known = ALL.iter().find(|(name, ..)| name == wanted);
    let (name, _, operation) = known.ok_or_else(|| format!("there is no operation `{wanted}`"))?;
    if let Some(folder) = arguments.get(1) {
        let (store, keyspace) = open(Path::new(folder))?;
        prepare(name, &keyspace)?;
        return Ok(store.close()?);
    }
    let folder = tempfile::tempdir()?;
    // In a process of its own, in which callgrind counts nothing.
    let prepared = Command::new(std::env::current_exe()?)
        .arg(name)
        .arg(folder.path())
        .status()?;
    if !prepared.success() {
        return Err("the store could not be prepared".into());
    }
    let (store, keyspace) = open(folder.path())?;
    println!("operations\t{}", operation(&store, &keyspace)?);
    store.close()?;
    Ok(())
}
