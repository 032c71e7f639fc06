//! The last section: a store under load, with the GPU's executor and without it.
//!
//! Both stores have one worker, so the host has one core for flushes and compactions.
//!
//! Threading: eight threads write; each counts for itself.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siltstone::{Components, Keyspace, Options, Store, WriteOptions};
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_table::exec::Executor;

use super::report::{Report, StoreRow};
use super::setup::{Limit, Setup};
use super::world::mix;
use crate::measure::process::cpu_s;
use crate::measure::{Latencies, ratio};

/// The threads that write.
const THREADS: usize = 8;

/// The bytes of a value.
const VALUE_BYTES: usize = 64;

/// What the threads do.
#[derive(Clone, Copy)]
struct Workload {
    name: &'static str,
    /// The percentage of operations that are writes.
    writes: u64,
}

/// A fill, then mixes of writes and gets of what was written, then gets alone: the paper mixes 50
/// to 99% of writes, and reads after a load.
const WORKLOADS: [Workload; 5] = [
    Workload {
        name: "fillrandom, values of 64 bytes",
        writes: 100,
    },
    Workload {
        name: "99% writes, 1% gets, values of 64 bytes",
        writes: 99,
    },
    Workload {
        name: "70% writes, 30% gets, values of 64 bytes",
        writes: 70,
    },
    Workload {
        name: "50% writes, 50% gets, values of 64 bytes",
        writes: 50,
    },
    Workload {
        name: "gets, values of 64 bytes",
        writes: 0,
    },
];

/// The stores that are measured. The time in which the GPU is busy is measured in one of its own,
/// because that costs time; it is only filled.
const SIDES: [&str; 3] = ["gpu", "host", PROFILED];

const PROFILED: &str = "gpu, busy time measured";

/// What a thread found.
#[derive(Default)]
struct Found {
    writes: Latencies,
    reads: Latencies,
}

fn options(setup: &Setup) -> Options {
    Options {
        background_tasks: 1,
        subjobs_max: 1,
        memtable_bytes: setup.sized(32 << 20, 64 << 10),
        table_bytes: setup.sized(64 << 20, 64 << 10),
        level1_bytes: setup.sized(256 << 20, 256 << 10),
        ..Options::default()
    }
}

/// Measures both sides. Returns whether the time was cut.
///
/// # Errors
/// What kept a store from being measured.
pub fn measure(setup: &Setup, limit: Limit, report: &mut Report) -> Result<bool, String> {
    // Two sides and a fill, and time to close.
    let runs = 2 * WORKLOADS.len() + 1;
    let seconds = match setup.is_small || setup.is_emulated {
        true => 0.3,
        false => (limit.left_s() / runs as f64 - 2.0).clamp(3.0, 30.0),
    };
    for side in SIDES {
        if limit.is_over() {
            return Ok(true);
        }
        let folder = tempfile::Builder::new()
            .prefix("siltstone-gpu-check-")
            .tempdir_in(&setup.memory)
            .map_err(|e| e.to_string())?;
        let gpu = match side {
            "gpu" | PROFILED => {
                let options = GpuOptions {
                    jobs: 2,
                    profiles: side == PROFILED,
                    verified_first: GpuOptions::default().verified_first,
                    verified_share: GpuOptions::default().verified_share,
                    job_bytes_min: setup.sized(GpuOptions::default().job_bytes_min, 0),
                    ..setup.options()
                };
                Some(Arc::new(setup.executor(&setup.device()?, options)?))
            }
            _ => None,
        };
        let store = open(setup, folder.path(), gpu.clone()).map_err(|e| e.to_string())?;
        let workloads = match side {
            PROFILED => &WORKLOADS[..1],
            _ => &WORKLOADS[..],
        };
        for workload in workloads.iter().copied() {
            let row = run(setup, &store, workload, seconds, gpu.as_deref(), side);
            report.store.push(row.map_err(|e| e.to_string())?);
        }
        store.close().map_err(|e| e.to_string())?;
    }
    Ok(false)
}

fn open(setup: &Setup, folder: &Path, gpu: Option<Arc<GpuExecutor>>) -> siltstone::Result<Store> {
    let options = options(setup);
    let mut components = Components::for_path(folder, &options)?;
    let executors = gpu.into_iter().map(|gpu| gpu as Arc<dyn Executor>);
    components.executors.extend(executors);
    Store::open_with(components, options)
}

/// A count of the executor, if it has it.
fn count_of(gpu: Option<&GpuExecutor>, name: &str) -> Option<u64> {
    let counters = gpu.map(|gpu| gpu.counters()).unwrap_or_default();
    let found = counters.iter().find(|(of, _)| of == name);
    found.map(|(_, count)| *count)
}

fn jobs_of(gpu: Option<&GpuExecutor>) -> u64 {
    count_of(gpu, "gpu_jobs").unwrap_or(0)
}

fn run(
    setup: &Setup,
    store: &Store,
    workload: Workload,
    seconds: f64,
    gpu: Option<&GpuExecutor>,
    side: &'static str,
) -> siltstone::Result<StoreRow> {
    let keyspace = store.default_keyspace()?;
    let keys = setup.sized(200_000_000, 20_000);
    let (done, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let compactions = || store.stats().counter("compaction_count");
    let (jobs_before, compactions_before) = (jobs_of(gpu), compactions());
    let busy_us = || count_of(gpu, "gpu_busy_us");
    let busy_before = busy_us();
    let (began, used_s) = (Instant::now(), cpu_s().unwrap_or(0.0));
    let mut by_second = Vec::new();
    let found: Vec<siltstone::Result<Found>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS as u64)
            .map(|thread| {
                let (keyspace, done, is_over) = (&keyspace, &done, &is_over);
                scope.spawn(move || load(keyspace, workload, (thread, keys), done, is_over))
            })
            .collect();
        let mut last = 0;
        while began.elapsed().as_secs_f64() < seconds {
            let left = seconds - began.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_secs_f64(left.clamp(0.0, 1.0)));
            let now = done.load(Ordering::Relaxed);
            by_second.push(now - last);
            last = now;
        }
        is_over.store(true, Ordering::Relaxed);
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let found = threads.into_iter().filter_map(|thread| join(thread).ok());
        found.collect()
    });
    let wall_s = began.elapsed().as_secs_f64();
    let used_s = cpu_s().unwrap_or(0.0) - used_s;
    let mut all = Found::default();
    for found in found {
        let found = found?;
        all.writes.merge(&found.writes);
        all.reads.merge(&found.reads);
    }
    let row = StoreRow {
        workload: workload.name.to_string(),
        side,
        threads: THREADS,
        by_second,
        per_s: ratio(done.load(Ordering::Relaxed) as f64, wall_s).unwrap_or(0.0),
        writes: all.writes.summary(),
        reads: all.reads.summary(),
        cpu_s: used_s,
        compactions: compactions().saturating_sub(compactions_before),
        gpu_jobs: jobs_of(gpu) - jobs_before,
        gpu_busy: busy_us()
            .zip(busy_before)
            .and_then(|(after, before)| ratio(after.saturating_sub(before) as f64 / 1e6, wall_s)),
        label: setup.label(),
    };
    let tail = row.writes.as_ref().map_or(String::new(), |writes| {
        format!(", p99.9 of writes {:.0} us", writes.p999_us)
    });
    println!(
        "  {}, {side}: {:.0} operations a second{tail}, {} jobs of the GPU",
        row.workload, row.per_s, row.gpu_jobs
    );
    Ok(row)
}

/// The work of a thread.
fn load(
    keyspace: &Keyspace,
    workload: Workload,
    (thread, keys): (u64, u64),
    done: &AtomicU64,
    is_over: &AtomicBool,
) -> siltstone::Result<Found> {
    let mut found = Found::default();
    let (mut random, mut value) = (thread << 40, [0u8; VALUE_BYTES]);
    let mut read = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        random += 1;
        let draw = mix(random);
        let number = draw % keys;
        let key = [number.to_be_bytes(), mix(number).to_be_bytes()].concat();
        let began = Instant::now();
        if mix(draw) % 100 < workload.writes {
            value[..8].copy_from_slice(&draw.to_le_bytes());
            keyspace.put_with(&key, value, WriteOptions::default())?;
            found.writes.record(began.elapsed());
        } else {
            keyspace.get_into(&key, &mut read)?;
            found.reads.record(began.elapsed());
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(found)
}
