//! A device with a GPU, which is emulated. Calls of the GPU fail, and copies flip bits. The tables
//! are those of the host's cores, nothing is left behind, and the counts say who ran what.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::Setup;
use jobs::{Content, a_job, files, table_input};
use siltstone::check::{CheckStorages, check};
use siltstone::{Components, Options, Store};
use siltstone_device::{DeviceExecutor, ExecutorReport, Preferred, ServerOptions};
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_storage::link::LinkFaults;
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, InputMap,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Input, Job};

const MEMORY_BYTES: u64 = 4 << 20;

/// An executor on an emulated GPU with these faults, or why it could not be opened.
fn a_gpu(
    runtime: &Runtime,
    seed: u64,
    memory_bytes: u64,
    faults: Faults,
) -> Result<(Arc<EmulatedDevice>, Arc<dyn Executor>), String> {
    let device = EmulatedDevice::with_faults(runtime, memory_bytes, seed, faults);
    let device = Arc::new(device);
    let options = GpuOptions {
        memory_bytes_max: memory_bytes,
        pinned_bytes_max: 512 << 10,
        jobs: 1,
        verifies_all: true,
        job_bytes_min: 0,
        ..GpuOptions::default()
    };
    let executor = GpuExecutor::open("gpu0", device.clone(), runtime, options)?;
    Ok((device, Arc::new(executor)))
}

/// Three runs, of which the newest one shadows some entries. They are about 150 kB, and the tables
/// of the job have 4 kB.
fn the_job(storage: &Arc<impl Storage + ?Sized>) -> (Job, Arc<InputMap>) {
    let mut inputs = InputMap::new();
    let mut job = a_job(9);
    for (run, step) in [3u32, 2, 1].into_iter().enumerate() {
        let seq = 3 - run as u64;
        let entries = (0..900u32).filter(|n| n.is_multiple_of(step));
        let content = Content {
            entries: entries
                .map(|n| (n.to_be_bytes().to_vec(), seq << 8 | 1, vec![run as u8; 80]))
                .collect(),
            ..Content::default()
        };
        let name = format!("in-{run}.tbl");
        let input = table_input(&mut inputs, storage, &name, &content);
        let run = run as u32;
        job.inputs.push(Input { run, ..input });
    }
    (job, Arc::new(inputs))
}

/// What the host's cores make of the job.
fn expected(runtime: &Runtime) -> (Vec<Vec<u8>>, Outcome) {
    let own = Arc::new(MemoryStorage::new(runtime));
    let (job, inputs) = the_job(&own);
    let context = ExecContext::new(runtime.clone(), inputs, own.clone(), jobs::epoch());
    let outcome = CpuExecutor.run(&job, &context).expect("an outcome");
    (files(&*own, &outcome), outcome)
}

fn counter(report: &ExecutorReport, name: &str) -> u64 {
    let found = report.counters.iter().find(|(of, _)| of == name);
    found.unwrap_or_else(|| panic!("{name}: {report:?}")).1
}

/// Runs the job twice on a device with this executor. Both outcomes have the expected tables, and
/// nothing else is in the folder. Returns what the executor and the cores have done.
fn run_twice(
    runtime: &Runtime,
    gpu: Arc<dyn Executor>,
    expected: &(Vec<Vec<u8>>, Outcome),
) -> [ExecutorReport; 2] {
    // With one slot, the second job begins only because the slot of the first one is free again.
    let options = ServerOptions {
        preferred: Preferred(vec![gpu]),
        ..ServerOptions::default()
    };
    let mut setup = Setup::new(runtime, options);
    let folder = setup.folders.folder("db");
    (1..jobs::epoch().0).for_each(|_| drop(folder.lease("store").expect("a lease")));
    let device = setup.connect("db");
    let storage = device.storage();
    let lease = storage.lease("store").expect("a lease");
    let executor = DeviceExecutor::new("device", &device);
    let (mut job, inputs) = the_job(&storage);
    for attempt in [2, 3] {
        job.output.attempt = attempt;
        let inputs = Arc::clone(&inputs) as Arc<_>;
        let context = ExecContext {
            max_parallel: 2,
            ..ExecContext::new(runtime.clone(), inputs, storage.clone(), lease.epoch())
        };
        let outcome = executor.run(&job, &context).expect("an outcome");
        assert!(files(&folder, &outcome) == expected.0, "wrong tables");
        let (found, wanted) = (&outcome.counters, &expected.1.counters);
        assert_eq!(
            (found.entries_read, found.shadowed),
            (wanted.entries_read, wanted.shadowed)
        );
        for table in &outcome.tables {
            let deleted = storage.delete(lease.epoch(), &table.name);
            deleted.expect("a deletion");
        }
        let all = folder.list().expect("a list");
        let left = all.iter().filter(|meta| meta.name.starts_with("00000003-"));
        assert_eq!(left.count(), 0, "left behind: {all:?}");
    }
    let server = setup.server.as_ref().expect("a server");
    let reports = server.executors().try_into().expect("two executors");
    executor.close();
    lease.release().expect("a release");
    device.close();
    setup.stop();
    reports
}

#[test]
fn jobs_run_on_the_gpu() {
    let runtime = Runtime::threads();
    let (_, gpu) = a_gpu(&runtime, 1, MEMORY_BYTES, Faults::default()).unwrap();
    let [gpu, cores] = run_twice(&runtime, gpu, &expected(&runtime));
    assert_eq!((gpu.name.as_str(), gpu.done_count), ("gpu0", 2));
    assert_eq!((gpu.given_up_count, cores.done_count), (0, 0));
    assert_eq!(counter(&gpu, "gpu_jobs"), 2);
    assert!(counter(&gpu, "gpu_pieces") >= 2);
    assert_eq!(counter(&gpu, "gpu_mismatches"), 0);
    assert_eq!(counter(&gpu, "gpu_device_errors"), 0);
}

#[test]
fn an_error_at_a_call_of_the_gpu_costs_no_job() {
    let runtime = Runtime::threads();
    let expected = expected(&runtime);
    let (device, gpu) = a_gpu(&runtime, 1, MEMORY_BYTES, Faults::default()).unwrap();
    run_twice(&runtime, gpu, &expected);
    let calls = device.counts().0 / 2;
    let (mut by_gpu, mut by_cores, mut died) = (0, 0, 0);
    for call in (1..=calls).step_by(23) {
        let faults = Faults {
            failing_call: call,
            is_sticky: call % 2 == 0,
            ..Faults::default()
        };
        // Without its memory, a GPU is not opened.
        let Ok((_, gpu)) = a_gpu(&runtime, call, MEMORY_BYTES, faults) else {
            continue;
        };
        let [gpu, cores] = run_twice(&runtime, gpu, &expected);
        assert_eq!(gpu.done_count + cores.done_count, 2, "call {call}");
        assert_eq!(cores.done_count, gpu.given_up_count + gpu.passed_over_count);
        assert_eq!(counter(&gpu, "gpu_device_errors"), gpu.given_up_count);
        if gpu.given_up_count > 0 {
            let reason = gpu.last_given_up.as_deref().unwrap_or_default();
            assert!(reason.contains("an error that was asked for"), "{reason}");
        }
        let is_down = matches!(gpu.state, ExecutorState::Down(_));
        assert_eq!(is_down, faults.is_sticky && gpu.given_up_count > 0);
        // A job is not given to a GPU that is down.
        assert!(gpu.given_up_count <= 1);
        by_gpu += gpu.done_count;
        by_cores += cores.done_count;
        died += u64::from(is_down);
    }
    assert!(
        by_gpu > 4 && by_cores > 10 && died > 4,
        "{by_gpu} {by_cores} {died}"
    );
}

#[test]
fn a_gpu_that_is_wrong_is_believed_by_nobody() {
    let runtime = Runtime::threads();
    let expected = expected(&runtime);
    let (device, gpu) = a_gpu(&runtime, 0, MEMORY_BYTES, Faults::default()).unwrap();
    run_twice(&runtime, gpu, &expected);
    let copies = device.counts().1 / 2;
    let mut mismatches = 0;
    for copy in (1..=copies).step_by(2) {
        let faults = Faults {
            flipped_copy: copy,
            flipped_bit: copy * 0x9e37_79b9,
            ..Faults::default()
        };
        let (_, gpu) = a_gpu(&runtime, 0, MEMORY_BYTES, faults).unwrap();
        let [gpu, cores] = run_twice(&runtime, gpu, &expected);
        assert_eq!(cores.done_count, gpu.given_up_count);
        mismatches += counter(&gpu, "gpu_mismatches");
    }
    assert!(mismatches > copies / 6, "{mismatches} of {copies}");
}

/// A store whose device's GPU dies: a user notices nothing. A side that was not measured for ten
/// minutes gets the next job, whatever the other one would take for it, so some compactions go to
/// the device.
#[test]
fn a_store_survives_the_death_of_its_devices_gpu() {
    let config = SimConfig {
        max_steps: 50_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(5)
    };
    let outcome = sim::run(config, |runtime| {
        let faults = Faults {
            failing_call: 3000,
            is_sticky: true,
            ..Faults::default()
        };
        let (_, gpu) = a_gpu(&runtime, 3, 16 << 20, faults).unwrap();
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            preferred: Preferred(vec![gpu]),
            ..ServerOptions::default()
        };
        let mut setup = Setup::new(&runtime, options);
        setup.network.set_faults(LinkFaults {
            delay: Duration::from_millis(2),
            ..LinkFaults::default()
        });
        let device = setup.connect("db");
        let executor = Arc::new(DeviceExecutor::new("device", &device));
        let mut components = Components::on(device.storage(), runtime.clone());
        components.executors.push(executor.clone());
        let small = || Options {
            memtable_bytes: 64 << 10,
            table_bytes: 64 << 10,
            level1_bytes: 64 << 10,
            level_factor: 2,
            l0_trigger_count: 2,
            ..Options::default()
        };
        let store = Store::open_with(components, small()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        let mut model = BTreeMap::new();
        for n in 0..6000u32 {
            let key = (n.wrapping_mul(2_654_435_761) % 4000).to_be_bytes();
            let value = n.to_be_bytes().repeat(24);
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
            if n % 500 == 499 {
                store.flush().unwrap();
                store.wait_until_idle().unwrap();
                runtime.sleep(Duration::from_secs(601));
            }
        }
        let stats = store.stats();
        let side = stats.sides.iter().find(|side| side.side == "device");
        let side = side.expect("the device");
        let wrong = (side.failed_count, side.declined_count, side.rejected_count);
        assert_eq!(wrong, (0, 0, 0), "{side:?}");
        let server = setup.server.as_ref().expect("a server");
        let [gpu, cores]: [ExecutorReport; 2] = server.executors().try_into().unwrap();
        assert!(
            gpu.done_count > 1 && cores.done_count > 1,
            "{gpu:?} {cores:?}"
        );
        assert_eq!(
            (gpu.given_up_count, counter(&gpu, "gpu_device_errors")),
            (1, 1)
        );
        assert!(matches!(gpu.state, ExecutorState::Down(_)), "{gpu:?}");
        drop(keyspace);
        store.close().unwrap();
        executor.close();
        device.close();
        setup.stop();
        // The folder is a local store now. It is sound, and no file is left over.
        let folder = setup.folders.folder("db");
        let storages = CheckStorages {
            log: &folder,
            manifest: &folder,
            tables: &folder,
            redirect: None,
        };
        let report = check(&storages, &mut |_| {}).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{report:?}");
        let components = Components::on(Arc::new(folder), runtime.clone());
        let store = Store::open_with(components, small()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for (key, value) in &model {
            let found = keyspace.get(key).unwrap();
            assert_eq!(found.as_deref(), Some(&value[..]), "{key:?}");
        }
        assert_eq!(keyspace.iter().unwrap().count(), model.len());
        drop(keyspace);
        store.close().unwrap();
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// A cancelled job on the GPU ends like any other.
#[test]
fn a_job_on_the_gpu_can_be_cancelled() {
    let runtime = Runtime::threads();
    let faults = Faults {
        hanging_kernel: 5,
        ..Faults::default()
    };
    let (_, gpu) = a_gpu(&runtime, 1, MEMORY_BYTES, faults).unwrap();
    let options = ServerOptions {
        preferred: Preferred(vec![gpu]),
        ..ServerOptions::default()
    };
    let mut setup = Setup::new(&runtime, options);
    let folder = setup.folders.folder("db");
    (1..jobs::epoch().0).for_each(|_| drop(folder.lease("store").expect("a lease")));
    let device = setup.connect("db");
    let storage = device.storage();
    let lease = storage.lease("store").expect("a lease");
    let executor = Arc::new(DeviceExecutor::new("device", &device));
    let (job, inputs) = the_job(&storage);
    let context = ExecContext::new(runtime.clone(), inputs, storage.clone(), lease.epoch());
    let task = {
        let (executor, context) = (Arc::clone(&executor), context.clone());
        runtime
            .spawn("attempt", move || executor.run(&job, &context))
            .expect("a task")
    };
    let server = setup.server.as_ref().expect("a server");
    while server.executors()[0].running_count == 0 {
        runtime.sleep(Duration::from_millis(5));
    }
    context.cancel.cancel();
    let ended = task.join().expect("no panic");
    assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
    while server.executors()[0].running_count > 0 {
        runtime.sleep(Duration::from_millis(5));
    }
    let [gpu, cores]: [ExecutorReport; 2] = server.executors().try_into().expect("two");
    assert_eq!((gpu.done_count, gpu.given_up_count), (0, 0));
    assert_eq!((cores.done_count, cores.running_count), (0, 0));
    let left = folder.list().expect("a list");
    assert!(!left.iter().any(|meta| meta.name.starts_with("00000003-")));
    executor.close();
    lease.release().expect("a release");
    device.close();
    setup.stop();
}
