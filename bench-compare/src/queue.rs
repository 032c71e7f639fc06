//! The store as a queue: entries are put at the tail and deleted at the head, and the first one is
//! read. A reader of the head has to get past the tombstones of all entries that were deleted.
//!
//! Threading: one thread.

use std::time::{Duration, Instant};

use crate::child::{Task, report};
use crate::engines::{self, Engine, Result};
use crate::keys::{Values, present};

/// Entries that wait in the queue while it runs.
const WAITING: u64 = 1000;

/// A run stops after this time; `operations` says how many operations it made.
const LIMIT: Duration = Duration::from_secs(40);

/// Reads the first entry with a new iterator, and checks that it is the one with this number.
fn read_head(engine: &mut dyn Engine, number: u64, pair: &mut Vec<u8>) -> Result<()> {
    let (seen, _) = engine.scan(None, 1, pair)?;
    if seen == 1 && pair.starts_with(&present(number)) {
        Ok(())
    } else {
        Err(format!("the head of the queue is not entry {number}"))
    }
}

/// One operation puts an entry at the tail, deletes the one at the head and reads the new head.
pub fn queue(task: &Task<'_>) -> Result<()> {
    let values = Values::new(task.value_bytes);
    let mut engine = engines::open(task.engine, task.path)?;
    let mut pair = Vec::with_capacity(4096);
    for i in 0..WAITING {
        engine.put(&present(i), values.at(i))?;
    }
    let n = task.entries;
    let start = Instant::now();
    let mut ends = Vec::new();
    let mut done = 0;
    for i in 0..n {
        engine.put(&present(i + WAITING), values.at(i))?;
        engine.delete(&present(i))?;
        read_head(&mut *engine, i + 1, &mut pair)?;
        done = i + 1;
        if done % (n / 10).max(1) == 0 {
            ends.push(start.elapsed().as_secs_f64());
        }
        if done % 64 == 0 && start.elapsed() > LIMIT {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    report("operations", done as f64);
    report("seconds", seconds);
    report("kops", done as f64 / seconds / 1e3);
    if let [first, .., before, last] = ends[..]
        && done == n
    {
        report("kops_first_tenth", n as f64 / 1e4 / first);
        report("kops_last_tenth", n as f64 / 1e4 / (last - before));
    }
    if task.verbose {
        eprintln!("{} queue: {}", task.engine, engine.describe());
    }
    Ok(())
}

/// Puts all entries and deletes all but the last thousand, in order, without reading. Then it reads
/// the head twice, once more right after the store was closed and opened, and once after another
/// open, when the engine is idle.
pub fn deleted_head(task: &Task<'_>) -> Result<()> {
    let values = Values::new(task.value_bytes);
    let mut engine = engines::open(task.engine, task.path)?;
    let mut pair = Vec::with_capacity(4096);
    let n = task.entries.max(WAITING + 1);
    for i in 0..n {
        engine.put(&present(i), values.at(i))?;
    }
    for i in 0..n - WAITING {
        engine.delete(&present(i))?;
    }
    for name in ["first_seek_us", "second_seek_us"] {
        let start = Instant::now();
        read_head(&mut *engine, n - WAITING, &mut pair)?;
        report(name, start.elapsed().as_secs_f64() * 1e6);
    }
    drop(engine);
    let mut engine = engines::open(task.engine, task.path)?;
    let start = Instant::now();
    read_head(&mut *engine, n - WAITING, &mut pair)?;
    report("reopened_seek_us", start.elapsed().as_secs_f64() * 1e6);
    drop(engine);
    let mut engine = engines::open(task.engine, task.path)?;
    engine.wait_until_idle()?;
    let start = Instant::now();
    read_head(&mut *engine, n - WAITING, &mut pair)?;
    report("idle_seek_us", start.elapsed().as_secs_f64() * 1e6);
    report("operations", (2 * n - WAITING) as f64);
    if task.verbose {
        eprintln!("{} deletedhead: {}", task.engine, engine.describe());
    }
    Ok(())
}
