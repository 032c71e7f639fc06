//! Whole jobs through the calls of the driver: an executor that [`siltstone_gpu::open`] makes, on a
//! fake library of the driver that runs the kernels on the host (`tests/fake/cuda.c`). So the way
//! to a GPU is tried with all that a job needs of it, but for the GPU.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod fake;
mod generate;
mod same;
mod setting;

use std::sync::Arc;
use std::time::Duration;

use fake::{CHILD, Fake, Said};
use generate::{Random, World, a_small_world, a_world};
use setting::{Setting, is_declined};
use siltstone_gpu::{GpuOptions, Strategy, Transfer};
use siltstone_storage::{DirectStorage, FileStorage, MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{Executor, ExecutorState};

/// The code that makes all later calls fail.
const LOST: u32 = 700;

fn fake() -> Fake {
    let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/emulated.c");
    Fake::compiled(&["-DWITH_KERNELS", "-O2", kernels])
}

/// Nothing was used wrongly, and nothing is left.
fn is_sound(said: &Said) {
    for name in ["left", "alive", "wrong", "pushed"] {
        assert_eq!(said.count(name), 0, "{name}: {}\n{}", said.out, said.err);
    }
}

#[test]
fn jobs_make_the_tables_of_the_host() {
    let said = fake().run("jobs", &[]);
    assert_eq!(said.after("right: "), Some("30"), "{}", said.out);
    is_sound(&said);
}

/// The library of direct transfers is a fake one, too. Where the file system of temporary files has
/// no direct I/O, nothing is tried.
#[test]
fn direct_transfers_make_the_tables_of_the_host() {
    let said = fake()
        .with("cufile.c", "libcufile.so.0", &[])
        .run("direct", &[]);
    if let Some(why) = said.after("skipped: ") {
        eprintln!("skipped: {why}");
        return;
    }
    let moved: Vec<u64> = said
        .after("moved: ")
        .unwrap()
        .split(' ')
        .map(|n| n.parse().unwrap())
        .collect();
    assert!(moved.iter().all(|bytes| *bytes > 1 << 20), "{moved:?}");
    assert_eq!(said.count_of("cufile", "wrong"), 0, "{}", said.err);
    is_sound(&said);
}

/// Each of many calls of a job fails, once by itself and once with all later calls. The job is
/// declined or its tables are right, and so are those of a job after it, which a new context may
/// run.
#[test]
fn every_call_may_fail() {
    let fake = fake();
    let calls = fake.run("job", &[]).count("calls");
    assert!(calls > 1000, "{calls}");
    for code in [2, LOST] {
        let (mut down, mut declined) = (0, 0);
        for number in 0..40 {
            let call = 1 + (calls - 1) * number / 39;
            let variables = [("FAKE_FAIL_AT", call), ("FAKE_FAIL_WITH", code)];
            let said = fake.run("job", &variables);
            let about = format!("call {call}, code {code}: {}\n{}", said.out, said.err);
            assert!(said.after("ended").is_some(), "{about}");
            assert_eq!(said.count("wrong"), 0, "{about}");
            down += u32::from(said.after("down: ").is_some());
            declined += u32::from(said.after("declined: ").is_some());
        }
        assert!(declined > 20, "{down} and {declined}");
    }
}

// What follows runs in the children.

/// Waits until the GPU is open or cannot be used.
fn opened(runtime: &Runtime, options: GpuOptions) -> Arc<dyn Executor> {
    let gpu = siltstone_gpu::open(runtime, Some(0), options).unwrap();
    while matches!(gpu.state(), ExecutorState::Starting(_)) {
        runtime.sleep(Duration::from_millis(1));
    }
    gpu
}

fn options() -> GpuOptions {
    GpuOptions {
        memory_bytes_max: 32 << 20,
        pinned_bytes_max: 1 << 20,
        jobs: 1,
        job_bytes_min: 0,
        ..GpuOptions::default()
    }
}

fn setting(runtime: &Runtime, world: &World) -> Setting {
    let storage = Arc::new(MemoryStorage::new(runtime));
    let given = world.write(&storage);
    Setting::of(runtime.clone(), storage, given)
}

#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let runtime = Runtime::threads();
    match what.as_str() {
        "jobs" => {
            let strategies = [Strategy::Full, Strategy::Luda, Strategy::Cooperative];
            let mut right = 0;
            for (number, strategy) in strategies.into_iter().enumerate() {
                let gpu = opened(
                    &runtime,
                    GpuOptions {
                        strategy,
                        transfer: [Transfer::Pipeline, Transfer::Plain][number % 2],
                        ..options()
                    },
                );
                for seed in 0..10 {
                    let seed = 100 * number as u64 + seed;
                    let world = a_world(&mut Random::new(seed));
                    let result = setting(&runtime, &world).run(&*gpu);
                    assert!(result.is_ok(), "seed {seed}, {world}: {result:?}");
                    right += 1;
                }
            }
            println!("right: {right}");
        }
        "direct" => {
            let gpu = opened(
                &runtime,
                GpuOptions {
                    transfer: Transfer::Direct,
                    ..options()
                },
            );
            for seed in 0..10 {
                let folder = tempfile::tempdir().unwrap();
                let files = FileStorage::open_or_create(folder.path()).unwrap();
                if let Err(error) = files.check_direct() {
                    println!("skipped: {error}");
                    return;
                }
                let storage: Arc<dyn Storage> = Arc::new(DirectStorage::new(Arc::new(files)));
                let world = a_world(&mut Random::new(seed));
                let setting = Setting::of(runtime.clone(), storage.clone(), world.write(&storage));
                let result = setting.run(&*gpu);
                assert!(result.is_ok(), "seed {seed}, {world}: {result:?}");
            }
            let counters = gpu.counters();
            let count = |name: &str| counters.iter().find(|(of, _)| of == name).unwrap().1;
            println!(
                "moved: {} {}",
                count("gpu_direct_read_bytes"),
                count("gpu_direct_written_bytes")
            );
        }
        "job" => {
            let setting = setting(&runtime, &a_small_world(&mut Random::new(1)));
            // The open may be what fails.
            if let Ok(gpu) = siltstone_gpu::open(&runtime, Some(0), options()) {
                for _ in 0..2 {
                    while matches!(gpu.state(), ExecutorState::Starting(_)) {
                        runtime.sleep(Duration::from_millis(1));
                    }
                    let result = setting.run(&*gpu);
                    assert!(result.is_ok() || is_declined(&result), "{result:?}");
                    if let Err(error) = result {
                        println!("declined: {error}");
                    }
                }
                if let ExecutorState::Down(why) = gpu.state() {
                    println!("down: {why}");
                }
            }
            println!("ended");
        }
        what => panic!("{what}"),
    }
}
