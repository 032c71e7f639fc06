//! Whole jobs on the emulated device, compared with the host's executor: the same files, byte by
//! byte, and the same counts.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;

use std::sync::Arc;
use std::time::Duration;

use common::cases::{Case, a_case, job_of};
use common::{epoch, files};
use generate::{Random, World, a_world};
use proptest::prelude::*;
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Inputs};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::{Counters, Outcome};

/// A device with this much memory, and an executor on it.
fn executor(runtime: &Runtime, memory_bytes: u64, seed: u64) -> GpuExecutor {
    executor_with(runtime, memory_bytes, seed, Faults::default())
}

fn executor_with(runtime: &Runtime, memory_bytes: u64, seed: u64, faults: Faults) -> GpuExecutor {
    let device = EmulatedDevice::with_faults(runtime, memory_bytes, seed, faults);
    let device = Arc::new(device);
    let options = GpuOptions {
        memory_bytes_max: memory_bytes,
        pinned_bytes_max: 256 << 10,
        jobs: 1,
        verifies_all: true,
        job_bytes_min: 0,
        rank_runs_max: if seed % 3 == 1 { 100 } else { 0 },
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
        ExecContext::new(runtime, inputs, storage.clone(), epoch())
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
    assert_eq!(without_time(&found), without_time(&want));
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

/// A kernel never ends. The job asks for it with few calls, and returns soon after it is cancelled.
/// Its lane is no slot any more, and the executor can be dropped.
#[test]
fn a_lane_whose_kernel_hangs_is_no_slot() {
    for hanging_kernel in [2, 20, 60] {
        let config = SimConfig {
            max_steps: 100_000,
            ..SimConfig::new(hanging_kernel)
        };
        let outcome = run(config, move |runtime| {
            let storage = Arc::new(MemoryStorage::new(&runtime));
            let (job, inputs) = a_world(&mut Random::new(1000)).write(&storage);
            let faults = Faults {
                hanging_kernel,
                ..Faults::default()
            };
            let gpu = Arc::new(executor_with(&runtime, 64 << 20, 5, faults));
            let ctx = ExecContext::new(runtime.clone(), inputs, storage.clone(), epoch());
            let before = storage.list().unwrap().len();
            assert_eq!(gpu.slots(), 1);
            let (own, given, task_ctx) = (gpu.clone(), job.clone(), ctx.clone());
            let task = runtime.spawn("job", move || own.run(&given, &task_ctx));
            let task = task.unwrap();
            runtime.sleep(Duration::from_secs(60));
            assert!(!task.is_finished());
            ctx.cancel.cancel();
            runtime.sleep(Duration::from_millis(100));
            assert!(task.is_finished());
            assert!(matches!(task.join(), Ok(Err(ExecError::Cancelled))));
            assert_eq!(gpu.slots(), 0);
            assert!(matches!(
                gpu.run(&job, &ctx),
                Err(ExecError::Declined { .. })
            ));
            assert_eq!(storage.list().unwrap().len(), before);
        });
        if let Err(failure) = outcome.result {
            panic!("kernel {hanging_kernel}: {failure}");
        }
    }
}

/// A call fails, at any place of a job, and later ones do not: the next job is done.
#[test]
fn a_job_after_one_that_failed_is_done() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = a_world(&mut Random::new(1000)).write(&storage);
    let mut failed_count = 0;
    for failing_call in (10..400).step_by(13) {
        let faults = Faults {
            failing_call,
            ..Faults::default()
        };
        let gpu = executor_with(&runtime, 64 << 20, 5, faults);
        let mut given = job.clone();
        given.output.attempt = 100 + failing_call;
        let ctx = ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
        if gpu.run(&given, &ctx).is_err() {
            failed_count += 1;
            // What the first job had started ends first.
            let is_free = (0..10_000).any(|_| gpu.slots() == 1);
            assert!(is_free, "call {failing_call}");
            given.output.attempt = 1000 + failing_call;
            let next = gpu.run(&given, &ctx);
            assert!(next.is_ok(), "call {failing_call}: {next:?}");
        }
        assert_eq!(count_of(&gpu, "gpu_mismatches"), 0);
    }
    assert!(failed_count > 10, "{failed_count}");
}
