//! An executor whose device is opened in the background, on the emulated device and in simulated
//! time.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use common::epoch;
use generate::{Random, a_small_world};
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::device::{Device, DeviceFacts};
use siltstone_gpu::{GpuExecutor, GpuOptions, OpeningExecutor, Strategy, Transfer};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{MemoryStorage, Runtime};
use siltstone_table::exec::{ExecContext, Executor, ExecutorState, Side};

/// How long the device of a test takes to open.
const OPENING: Duration = Duration::from_secs(3);

fn simulated(story: impl FnOnce(Runtime) + Send + 'static) {
    run(SimConfig::new(3), story).result.unwrap();
}

fn options() -> GpuOptions {
    GpuOptions {
        memory_bytes_max: 8 << 20,
        pinned_bytes_max: 256 << 10,
        ..GpuOptions::default()
    }
}

/// Begins to open a device with this much memory.
fn start(runtime: &Runtime, memory_bytes: u64, opened: &Arc<AtomicU32>) -> OpeningExecutor {
    let (rt, opened) = (runtime.clone(), Arc::clone(opened));
    let make = move || {
        rt.sleep(OPENING);
        opened.fetch_add(1, Ordering::Relaxed);
        match memory_bytes {
            0 => Err("there is no memory".to_string()),
            bytes => Ok(Arc::new(EmulatedDevice::new(&rt, bytes, 1)) as Arc<dyn Device>),
        }
    };
    OpeningExecutor::start("gpu3", runtime, options(), make).unwrap()
}

#[test]
fn jobs_come_when_the_device_is_open() {
    simulated(|runtime| {
        let gpu = start(&runtime, 16 << 20, &Arc::default());
        assert_eq!((gpu.name(), gpu.side()), ("gpu3", Side::Gpu));
        let starting = "starting: the driver compiles the kernels";
        for _ in 0..2 {
            assert_eq!((gpu.state().to_string(), gpu.slots()), (starting.into(), 0));
            assert!(gpu.counters().is_empty());
            runtime.sleep(OPENING / 3);
        }
        runtime.sleep(OPENING);
        assert_eq!((gpu.state(), gpu.slots()), (ExecutorState::Ready, 2));
        assert!(!gpu.counters().is_empty());
    });
}

#[test]
fn what_went_wrong_is_the_state() {
    simulated(|runtime| {
        for (memory_bytes, why) in [(0, "there is no memory"), (1 << 20, "alloc failed")] {
            let gpu = start(&runtime, memory_bytes, &Arc::default());
            runtime.sleep(OPENING * 2);
            let state = gpu.state();
            assert!(
                matches!(&state, ExecutorState::Down(said) if said.contains(why)),
                "{state}"
            );
            assert_eq!(gpu.slots(), 0);
        }
    });
}

/// Half of what is free is taken. If that is too little for any job, all jobs would be accepted and
/// then declined.
#[test]
fn too_little_free_memory_is_the_state() {
    let runtime = Runtime::threads();
    let open = |memory_bytes| {
        let device = Arc::new(EmulatedDevice::new(&runtime, memory_bytes, 0));
        let options = GpuOptions {
            memory_bytes_max: 0,
            ..options()
        };
        let opened = GpuExecutor::open("gpu0", device, &runtime, options);
        opened.map(|gpu| gpu.slots())
    };
    assert_eq!(open(64 << 20), Ok(2));
    let why = open(63 << 20).unwrap_err();
    assert_eq!(
        why,
        "66060288 bytes of the memory of GPU 0 (emulated) are free, and half of it is less than \
         the 33554432 bytes that 2 jobs at once need at least; end other programs that use the \
         GPU (see `nvidia-smi`), or say how much memory to take"
    );
}

#[test]
fn a_panic_is_the_state() {
    let runtime = Runtime::threads();
    let make = || -> Result<Arc<dyn Device>, String> { panic!("as the test wants") };
    let gpu = OpeningExecutor::start("gpu0", &runtime, options(), make).unwrap();
    while matches!(gpu.state(), ExecutorState::Starting(_)) {
        runtime.sleep(Duration::from_millis(1));
    }
    let said = "down: the task that opened the GPU panicked";
    assert_eq!(gpu.state().to_string(), said);
}

#[test]
fn a_drop_waits_for_the_task() {
    simulated(|runtime| {
        let opened = Arc::default();
        let gpu = start(&runtime, 16 << 20, &opened);
        runtime.sleep(OPENING / 2);
        let begun = runtime.now();
        drop(gpu);
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        assert_eq!(runtime.now().since(begun), OPENING / 2);
        // One that has not begun does not begin.
        drop(start(&runtime, 16 << 20, &opened));
        assert!(opened.load(Ordering::Relaxed) <= 2);
    });
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let facts = DeviceFacts {
        index: 1,
        name: "Fake 1".to_string(),
        memory_bytes: 1 << 30,
        memory_free_bytes: None,
        capability: (9, 0),
        driver_version: (12, 4),
        pci_bus_id: "0000:01:00.0".to_string(),
        multiprocessor_count: 132,
        is_emulated: false,
    };
    let good = GpuOptions::default();
    assert_eq!(
        (good.strategy, good.transfer),
        (Strategy::Full, Transfer::Pipeline)
    );
    assert_eq!(good.check(&facts), Ok(()));
    let all = GpuOptions {
        memory_bytes_max: 1 << 30,
        ..good
    };
    assert_eq!(all.check(&facts), Ok(()));
    let refused = |options: GpuOptions| options.check(&facts).unwrap_err();
    for jobs in [0, 65] {
        let said = refused(GpuOptions { jobs, ..good });
        assert_eq!(said, format!("{jobs} jobs at once; 1 to 64 are possible"));
    }
    let said = refused(GpuOptions {
        memory_bytes_max: (1 << 30) + 1,
        ..good
    });
    assert_eq!(
        said,
        "1073741825 bytes of memory were asked for, and the GPU 1 (Fake 1) has 1073741824; take \
         less, or 0 for half of what is free"
    );
    let said = refused(GpuOptions {
        memory_bytes_max: 1,
        ..good
    });
    assert!(
        said.contains("too few for 2 jobs at once; 33554432 are the least"),
        "{said}"
    );
    let said = refused(GpuOptions {
        pinned_bytes_max: 1 << 20,
        ..good
    });
    assert!(
        said.contains("pinned memory are too few for 2 jobs at once; 2097152"),
        "{said}"
    );
}

/// A device that fails is opened once more, and its counts go on. When it fails again, the executor
/// stays down.
#[test]
fn a_device_that_failed_is_opened_once_more() {
    simulated(|runtime| {
        let storage = Arc::new(MemoryStorage::new(&runtime));
        let (job, inputs) = a_small_world(&mut Random::new(1)).write(&storage);
        let opened = Arc::new(AtomicU32::new(0));
        let (rt, count) = (runtime.clone(), Arc::clone(&opened));
        let make = move || {
            rt.sleep(OPENING);
            let number = count.fetch_add(1, Ordering::Relaxed);
            // The second device takes longer to fail.
            let faults = Faults {
                failing_call: [150, 2000][number as usize],
                is_sticky: true,
                ..Faults::default()
            };
            let device = EmulatedDevice::with_faults(&rt, 16 << 20, 1, faults);
            Ok(Arc::new(device) as Arc<dyn Device>)
        };
        let options = GpuOptions {
            job_bytes_min: 0,
            ..options()
        };
        let gpu = OpeningExecutor::start("gpu0", &runtime, options, make).unwrap();
        let count_of = |name: &str| {
            let counters = gpu.counters();
            let found = counters.iter().find(|(of, _)| of == name);
            found.map_or(0, |(_, count)| *count)
        };
        let run = |attempt: u64| {
            let mut job = job.clone();
            job.output.attempt = attempt;
            let (runtime, inputs) = (runtime.clone(), Arc::clone(&inputs));
            let ctx = ExecContext::new(runtime, inputs, storage.clone(), epoch());
            gpu.run(&job, &ctx)
        };
        runtime.sleep(OPENING * 2);
        assert_eq!(gpu.state(), ExecutorState::Ready);
        assert!(run(1).is_err());
        assert_eq!(
            (count_of("gpu_device_errors"), count_of("gpu_reopened")),
            (1, 0)
        );
        assert!(matches!(gpu.state(), ExecutorState::Starting(_)));
        assert_eq!((gpu.slots(), count_of("gpu_device_errors")), (0, 1));
        runtime.sleep(OPENING * 2);
        assert_eq!((gpu.state(), gpu.slots()), (ExecutorState::Ready, 2));
        run(2).unwrap();
        assert_eq!((count_of("gpu_jobs"), count_of("gpu_reopened")), (2, 1));
        let mut attempts = 3..100;
        while gpu.state() == ExecutorState::Ready {
            let _ = run(attempts.next().unwrap());
        }
        let state = gpu.state();
        assert!(
            matches!(&state, ExecutorState::Down(why) if why.contains("failed")),
            "{state}"
        );
        runtime.sleep(OPENING * 2);
        assert!(matches!(gpu.state(), ExecutorState::Down(_)));
        assert_eq!(
            (
                opened.load(Ordering::Relaxed),
                count_of("gpu_device_errors")
            ),
            (2, 2)
        );
    });
}
