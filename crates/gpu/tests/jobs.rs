//! Whole jobs on the emulated device, compared with the host's executor: the same counts, and the
//! same files byte by byte, or with lz4 the same files but for compressed bytes.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;
mod same;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::cases::{Case, a_case, job_of};
use common::{Content, a_job, epoch, files, table_input};
use generate::{Random, World, a_world};
use proptest::prelude::*;
use siltstone_gpu::device::emulated::EmulatedDevice;
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_gpu::{Strategy, Transfer};
use siltstone_storage::{MemoryStorage, Runtime};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{
    CpuExecutor, ExecContext, Executor, InputMap, Inputs, Progress, Throttle,
};
use siltstone_table::job::outcome::{Counters, Outcome};
use siltstone_table::job::{Job, OutputLimits};
use siltstone_table::key::{Kind, trailer};

/// A device with this much memory, and an executor on it.
fn executor(runtime: &Runtime, memory_bytes: u64, seed: u64) -> GpuExecutor {
    let device = Arc::new(EmulatedDevice::new(runtime, memory_bytes, seed));
    let options = GpuOptions {
        memory_bytes_max: memory_bytes,
        pinned_bytes_max: 256 << 10,
        strategy: match seed % 5 {
            3 => Strategy::Luda,
            4 => Strategy::Hierarchical,
            _ => Strategy::Full,
        },
        transfer: match seed % 7 {
            0 => Transfer::Plain,
            _ => Transfer::Pipeline,
        },
        jobs: 1,
        lanes: 1 + (seed % 2) as usize,
        verifies_all: true,
        job_bytes_min: 0,
        rank_runs_max: if seed % 3 == 1 { 100 } else { 0 },
        ..GpuOptions::default()
    };
    GpuExecutor::open("gpu0", device, runtime, options).unwrap()
}

/// A count of the executor.
fn count_of(gpu: &GpuExecutor, name: &str) -> u64 {
    let counters = gpu.counters();
    counters
        .iter()
        .find(|(of, _)| of == name)
        .map_or(0, |(_, count)| *count)
}

/// The counters without the processor time, which differs from run to run.
fn without_time(outcome: &Outcome) -> Counters {
    Counters {
        cpu_ns: 0,
        ..outcome.counters
    }
}

/// Runs a job on both sides, and compares.
fn compare(
    runtime: &Runtime,
    storage: &Arc<MemoryStorage>,
    inputs: &Arc<dyn Inputs>,
    job: &Job,
    gpu: &GpuExecutor,
) -> Outcome {
    let ctx = || {
        let (runtime, inputs) = (runtime.clone(), Arc::clone(inputs));
        ExecContext {
            max_parallel: gpu.tasks(),
            ..ExecContext::new(runtime, inputs, storage.clone(), epoch())
        }
    };
    let want = CpuExecutor::new().run(job, &ctx()).unwrap();
    let mut again = job.clone();
    again.output.attempt += 1;
    let found = gpu.run(&again, &ctx()).unwrap();
    let names = |outcome: &Outcome| -> Vec<_> {
        let tables = outcome.tables.iter();
        tables
            .map(|t| (t.subjob, t.left_bound.clone(), t.raw_bytes))
            .collect()
    };
    assert_eq!(names(&found), names(&want));
    let mut counters = without_time(&found);
    if job.format.codec != Codec::None {
        let tables = found.tables.iter().zip(&want.tables);
        tables.for_each(|(found, want)| same::assert_same(&**storage, &found.name, &want.name));
        // Compressed bytes may differ, but there are not many more.
        let (bytes, host_bytes) = (counters.bytes_written, want.counters.bytes_written);
        let most = host_bytes + host_bytes / 20 + 100;
        assert!(bytes <= most, "{bytes} bytes, {host_bytes} on the host");
        counters.bytes_written = host_bytes;
        assert_eq!(counters, without_time(&want));
        return found;
    }
    assert_eq!(counters, without_time(&want));
    let (a, b) = (files(&**storage, &found), files(&**storage, &want));
    for (number, (a, b)) in a.iter().zip(&b).enumerate() {
        if a != b {
            let at = a.iter().zip(b).position(|(x, y)| x != y);
            panic!(
                "table {number} differs at {at:?}: {} and {} bytes",
                a.len(),
                b.len()
            );
        }
    }
    assert_eq!(a.len(), b.len());
    found
}

fn compare_case(case: &Case, memory_bytes: u64, seed: u64) {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = job_of(case, &storage, |_| false);
    let gpu = executor(&runtime, memory_bytes, seed);
    let inputs: Arc<dyn Inputs> = Arc::new(inputs);
    compare(&runtime, &storage, &inputs, &job, &gpu);
}

fn compare_world(world: &World, memory_bytes: u64, seed: u64) -> Outcome {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = world.write(&storage);
    let gpu = executor(&runtime, memory_bytes, seed);
    compare(&runtime, &storage, &inputs, &job, &gpu)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn small_jobs_make_the_same_tables(case in a_case(), seed in 0u64..1000) {
        compare_case(&case, 4 << 20, seed);
    }
}

#[test]
fn large_jobs_make_the_same_tables() {
    for seed in 0..60 {
        let world = a_world(&mut Random::new(seed));
        eprintln!("seed {seed}: {world}");
        compare_world(&world, 256 << 20, seed);
    }
}

#[test]
fn pieces_make_the_same_tables() {
    let (mut most_pieces, mut several) = (0, 0);
    for seed in 0..30 {
        let world = a_world(&mut Random::new(1000 + seed));
        eprintln!("seed {seed}: {world}");
        let runtime = Runtime::threads();
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let (job, inputs) = world.write(&storage);
        // The least memory with which the job is not declined, or a little more.
        let mut memory_bytes = 1 << 20;
        loop {
            let gpu = executor(&runtime, memory_bytes, seed);
            let ctx = ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
            let mut trial = job.clone();
            trial.output.attempt = 50 + memory_bytes / (1 << 20);
            if gpu.run(&trial, &ctx).is_ok() {
                compare(&runtime, &storage, &inputs, &job, &gpu);
                let subjobs = 2 * job.subjobs() as u64;
                let pieces = count_of(&gpu, "gpu_pieces") / subjobs;
                most_pieces = most_pieces.max(pieces);
                several += u64::from(pieces > 1);
                break;
            }
            memory_bytes += memory_bytes / 2;
        }
    }
    // Most of the jobs took several pieces.
    assert!(most_pieces > 3 && several > 10, "{most_pieces} {several}");
}

/// Blocks of some KiB, and now and then one of 3 MiB, which is more than the first pieces that are
/// tried: those have no whole table, and twice as many bytes end at the same block. The lane has
/// room for a piece with a large block and one small block after it.
#[test]
fn a_piece_ends_after_a_block_that_is_larger_than_the_pieces_before() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut content = Content::default();
    for i in 0..100u64 {
        let len = if i % 20 == 19 { 3 << 20 } else { 400 };
        let key = format!("key{i:05}").into_bytes();
        let row = (key, trailer(i + 1, Kind::Put), vec![i as u8; len]);
        content.entries.push(row);
    }
    let mut inputs = InputMap::new();
    let mut job = a_job(100);
    let input = table_input(&mut inputs, &storage, "in.tbl", &content);
    job.inputs.push(input);
    job.limits = OutputLimits::new(1 << 20, 4096, false);
    let inputs: Arc<dyn Inputs> = Arc::new(inputs);
    let gpu = executor(&runtime, 12 << 20, 0);
    let outcome = compare(&runtime, &storage, &inputs, &job, &gpu);
    assert_eq!((outcome.tables.len(), count_of(&gpu, "gpu_pieces")), (5, 5));
}

/// Notes the memory of a job whenever it reports bytes.
struct Notes {
    progress: Arc<Progress>,
    most: AtomicU64,
}

impl Throttle for Notes {
    fn spent(&self, _bytes: u64, _stop: &dyn Fn() -> bool) {
        let bytes = self.progress.buffer_bytes.load(Ordering::Relaxed);
        self.most.fetch_max(bytes, Ordering::Relaxed);
    }
}

#[test]
fn the_memory_of_a_job_is_in_its_progress() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = a_world(&mut Random::new(5)).write(&storage);
    for seed in 0..5 {
        let gpu = executor(&runtime, 256 << 20, seed);
        let mut ctx = ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
        let notes = Arc::new(Notes {
            progress: ctx.progress.clone(),
            most: AtomicU64::new(0),
        });
        ctx.throttle = Some(notes.clone());
        ctx.max_parallel = 1 + (seed % 2) as usize;
        let mut job = job.clone();
        job.output.attempt = 10 + seed;
        let outcome = gpu.run(&job, &ctx).unwrap();
        // At least what the index says of the blocks of a table.
        assert!(outcome.counters.entries_written > 100);
        assert!(notes.most.load(Ordering::Relaxed) > 1000);
        assert_eq!(ctx.progress.buffer_bytes.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn jobs_that_write_zstd_are_declined() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (mut job, _) = a_world(&mut Random::new(1)).write(&storage);
    let gpu = executor(&runtime, 4 << 20, 0);
    gpu.accepts(&job).unwrap();
    job.format.codec = Codec::Zstd;
    job.format.level = 1;
    assert!(gpu.accepts(&job).unwrap_err().contains("zstd"));
}

#[test]
fn a_profile_counts_each_launch() {
    let runtime = Runtime::threads();
    let world = a_world(&mut Random::new(3));
    let profile_of = |profiles, seed| {
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let (mut job, inputs) = world.write(&storage);
        job.format.codec = Codec::None;
        let device = Arc::new(EmulatedDevice::new(&runtime, 64 << 20, seed));
        let options = GpuOptions {
            memory_bytes_max: 64 << 20,
            pinned_bytes_max: 256 << 10,
            jobs: 1,
            job_bytes_min: 0,
            profiles,
            ..GpuOptions::default()
        };
        let gpu = GpuExecutor::open("gpu0", device, &runtime, options).unwrap();
        compare(&runtime, &storage, &inputs, &job, &gpu);
        gpu.profile()
    };
    for seed in [0, 1] {
        let profile = profile_of(true, seed);
        let found = |name: &str| profile.iter().find(|(of, _)| *of == name).unwrap().1;
        let launches = found("judge").launches;
        assert!(launches > 0, "{profile:?}");
        assert_eq!(found("pack_values").launches, launches, "{profile:?}");
        // Bytes of the inputs' blocks.
        assert!(found("copy in").items > 4096, "{profile:?}");
        assert!(found("copy out").items > 4096, "{profile:?}");
    }
    assert_eq!(profile_of(false, 0), []);
}
