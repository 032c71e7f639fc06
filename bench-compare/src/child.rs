//! One workload on one engine in a process of its own. Its figures go to standard output, one line
//! `name value` for each.

use std::path::Path;
use std::time::Instant;

use crate::engines::{self, Engine, Result};
use crate::keys::{Shuffle, Values, missing, mix, present};
use crate::os;

/// What a child is asked to do.
pub struct Task<'a> {
    pub engine: &'a str,
    pub workload: &'a str,
    pub path: &'a Path,
    /// Entries of the store.
    pub entries: u64,
    pub value_bytes: usize,
    pub round: u64,
    pub verbose: bool,
}

/// Entries that fit into one memtable of every engine and one log of 64 MiB.
const LOG_ENTRIES_BYTES: u64 = 54 << 20;

/// Prints a figure.
pub fn report(name: &str, value: f64) {
    println!("{name} {value}");
}

/// Runs it.
pub fn run(task: &Task<'_>) -> Result<()> {
    report("memcpy_gb_per_second", os::memcpy_gb_per_second());
    let n = task.entries;
    match task.workload {
        "fillseq" => fill(task, |i| i),
        "fillrandom" => {
            let order = Shuffle::new(n, 1);
            fill(task, |i| order.at(i))
        }
        "overwrite" => fill(task, |i| mix(i ^ (task.round + 1) << 40) % n),
        "settle" => settle(task),
        "readrandom" => read(task, 2_000_000, |engine, i, buffer| {
            let found = engine.get(&present(mix(i) % n), buffer)?;
            if found {
                Ok(1)
            } else {
                Err("a key that was written is not there".into())
            }
        }),
        "readmissing" => read(task, 2_000_000, |engine, i, buffer| {
            let found = engine.get(&missing(mix(i) % n), buffer)?;
            if found {
                Err("a key that was never written is there".into())
            } else {
                Ok(1)
            }
        }),
        "seek10" => read(task, 400_000, |engine, i, buffer| {
            seek(engine, mix(i) % n, 10, n, buffer)
        }),
        "seek100" => read(task, 150_000, |engine, i, buffer| {
            seek(engine, mix(i) % n, 100, n, buffer)
        }),
        "readseq" => {
            let mut pairs = 0;
            read(task, 3, |engine, _, buffer| {
                let (count, bytes) = engine.scan(None, u64::MAX, buffer)?;
                if count != n || bytes != n * (16 + task.value_bytes as u64) {
                    return Err(format!(
                        "the scan saw {count} pairs of {bytes} bytes, expected {n} pairs"
                    ));
                }
                pairs += count;
                Ok(count)
            })
        }
        "logfill" => log_fill(task),
        "reopen" => reopen(task),
        "queue" => crate::queue::queue(task),
        "deletedhead" => crate::queue::deleted_head(task),
        other => Err(format!("there is no workload `{other}`")),
    }
}

fn seek(
    engine: &mut dyn Engine,
    from: u64,
    count: u64,
    n: u64,
    buffer: &mut Vec<u8>,
) -> Result<u64> {
    let expected = count.min(n - from);
    let (seen, _) = engine.scan(Some(&present(from)), count, buffer)?;
    if seen == expected {
        Ok(1)
    } else {
        Err(format!("a scan saw {seen} pairs, expected {expected}"))
    }
}

/// Latencies in nanoseconds, exact.
struct Latencies(Vec<u32>);

impl Latencies {
    fn report(mut self) {
        self.0.sort_unstable();
        let n = self.0.len();
        let at = |q: f64| f64::from(self.0[((n as f64 * q) as usize).min(n - 1)]) / 1000.0;
        report("p50_us", at(0.5));
        report("p99_us", at(0.99));
        report("p999_us", at(0.999));
        report("max_us", at(1.0));
        let over: u64 = self
            .0
            .iter()
            .filter(|l| **l > 1_000_000)
            .map(|l| u64::from(*l))
            .sum();
        report("over_1ms_s", over as f64 / 1e9);
    }
}

/// Puts all entries, in the order `number` gives, then waits until the engine is idle.
fn fill(task: &Task<'_>, number: impl Fn(u64) -> u64) -> Result<()> {
    let values = Values::new(task.value_bytes);
    let mut engine = engines::open(task.engine, task.path)?;
    engine.wait_until_idle()?;
    let n = task.entries;
    // Touched before: its page faults are none of the engine's.
    let mut latencies = Latencies(vec![1; n as usize]);
    let own_bytes = os::anonymous_bytes();
    let mut anonymous = 0;
    let (tables, written, cpu) = (
        engine.table_bytes_written(),
        os::written_bytes(),
        os::cpu_seconds(),
    );
    let thread_cpu = os::thread_cpu_seconds();
    let start = Instant::now();
    let mut last = start;
    for i in 0..n {
        let number = number(i);
        engine.put(&present(number), values.at(i))?;
        // One reading of the clock a put: the time from answer to answer.
        let now = Instant::now();
        latencies.0[i as usize] = (now - last).as_nanos().min(u128::from(u32::MAX)) as u32;
        last = now;
        if i % (1 << 18) == 0 {
            anonymous = anonymous.max(os::anonymous_bytes());
        }
    }
    let put_seconds = start.elapsed().as_secs_f64();
    report(
        "caller_cpu_us",
        (os::thread_cpu_seconds() - thread_cpu) * 1e6 / n as f64,
    );
    engine.wait_until_idle()?;
    let quiet = if task.engine == "siltstone" {
        0.0
    } else {
        os::QUIET.as_secs_f64()
    };
    let idle_seconds = (start.elapsed().as_secs_f64() - quiet).max(put_seconds);
    let raw = (n * (16 + task.value_bytes as u64)) as f64;
    report("kops", n as f64 / put_seconds / 1e3);
    report("kops_idle", n as f64 / idle_seconds / 1e3);
    report("cpu_s", os::cpu_seconds() - cpu);
    report(
        "write_amplification",
        (engine.table_bytes_written() - tables) as f64 / raw,
    );
    report(
        "written_bytes_ratio",
        (os::written_bytes() - written) as f64 / raw,
    );
    report(
        "anonymous_mb",
        anonymous.saturating_sub(own_bytes) as f64 / 1e6,
    );
    latencies.report();
    if task.verbose {
        eprintln!("{} {}: {}", task.engine, task.workload, engine.describe());
    }
    Ok(())
}

/// Opens the store, which replays the log, and waits until it is idle.
fn settle(task: &Task<'_>) -> Result<()> {
    let mut engine = engines::open(task.engine, task.path)?;
    engine.wait_until_idle()?;
    if task.verbose {
        eprintln!("{} settled: {}", task.engine, engine.describe());
    }
    Ok(())
}

/// Warms the store by a scan and by the workload itself, then measures the workload.
fn read(
    task: &Task<'_>,
    count: u64,
    mut one: impl FnMut(&mut dyn Engine, u64, &mut Vec<u8>) -> Result<u64>,
) -> Result<()> {
    let mut engine = engines::open(task.engine, task.path)?;
    engine.wait_until_idle()?;
    let mut buffer = Vec::with_capacity(4096);
    engine.scan(None, u64::MAX, &mut buffer)?;
    for i in 0..(count / 4).max(1) {
        one(&mut *engine, mix(i ^ 1 << 50), &mut buffer)?;
    }
    let (cpu, thread_cpu) = (os::cpu_seconds(), os::thread_cpu_seconds());
    let start = Instant::now();
    let mut done = 0;
    for i in 0..count {
        done += one(&mut *engine, mix(i ^ task.round << 44), &mut buffer)?;
    }
    let seconds = start.elapsed().as_secs_f64();
    report("kops", done as f64 / seconds / 1e3);
    report(
        "caller_cpu_us",
        (os::thread_cpu_seconds() - thread_cpu) * 1e6 / done as f64,
    );
    report("cpu_s", os::cpu_seconds() - cpu);
    report("anonymous_mb", os::anonymous_bytes() as f64 / 1e6);
    if task.verbose {
        eprintln!("{} {}: {}", task.engine, task.workload, engine.describe());
    }
    Ok(())
}

/// Fills most of one memtable, then dies.
fn log_fill(task: &Task<'_>) -> Result<()> {
    let values = Values::new(task.value_bytes);
    let mut engine = engines::open(task.engine, task.path)?;
    engine.wait_until_idle()?;
    let n = log_entries(task);
    let order = Shuffle::new(n, 3);
    for i in 0..n {
        engine.put(&present(order.at(i)), values.at(i))?;
    }
    os::kill_myself()
}

fn log_entries(task: &Task<'_>) -> u64 {
    LOG_ENTRIES_BYTES / (16 + task.value_bytes as u64)
}

/// Opens what `logfill` left behind; the time until the first get is answered.
fn reopen(task: &Task<'_>) -> Result<()> {
    let n = log_entries(task);
    let cpu = os::cpu_seconds();
    let start = Instant::now();
    let mut engine = engines::open(task.engine, task.path)?;
    let mut buffer = Vec::new();
    engine.get(&present(n / 2), &mut buffer)?;
    report("seconds", start.elapsed().as_secs_f64());
    report("cpu_s", os::cpu_seconds() - cpu);
    for i in 0..n {
        if !engine.get(&present(i), &mut buffer)? || buffer.len() != task.value_bytes {
            return Err(format!("entry {i} of {n} did not survive the kill"));
        }
    }
    Ok(())
}
