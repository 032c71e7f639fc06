//! Stories of a store with a GPU (`docs/rfc/0014-gpu.md`), which is emulated: it dies, flips a bit,
//! has too little memory, or hangs. Nothing is lost, the host does the job, and the statistics say
//! what happened. `docs/stories.md` describes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Components, Compression, DirectIo, Keyspace, Options, SideStats, Stats, Store};
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions, Transfer};
use siltstone_sim::gpu::{Gpu, GpuPlan};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{FileStorage, MemoryStorage, Runtime, Storage};

fn options() -> Options {
    Options {
        memtable_bytes: 1 << 20,
        table_bytes: 64 << 10,
        level1_bytes: 8 << 20,
        log_segment_bytes: 256 << 10,
        block_bytes: 4 << 10,
        compression: Compression::None.into(),
        l0_trigger_count: 2,
        ..Options::default()
    }
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Two runs of level 0 that a compaction merges.
fn two_runs(keyspace: &Keyspace, model: &mut Model) {
    for number in 0..2u64 {
        for i in 0..400 {
            let key = format!("key{:06}", i * (number + 1)).into_bytes();
            let value = vec![(i + number) as u8; 500];
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        keyspace.flush().unwrap();
    }
}

fn check(keyspace: &Keyspace, model: &Model) {
    let entries = keyspace.iter().unwrap();
    let found: Model = entries
        .map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
        .collect();
    assert!(found == *model, "{} of {} keys", found.len(), model.len());
}

/// The state of a store after its compactions.
struct After {
    stats: Stats,
    /// The calls and copies of the device before the first job.
    begin: (u64, u64),
    /// And at the end.
    end: (u64, u64),
    took: Duration,
}

impl After {
    fn gpu(&self) -> &SideStats {
        &self.stats.sides[0]
    }

    fn host(&self) -> &SideStats {
        &self.stats.sides[1]
    }

    /// Checks that the host did all compactions, because the GPU declined its jobs.
    fn host_did_all(&self, declined_count: u64, text: &str) {
        let (gpu, host) = (self.gpu(), self.host());
        let counts = |side: &SideStats| (side.compaction_count, side.declined_count);
        assert_eq!(counts(gpu), (0, declined_count), "{gpu:?}");
        assert!(host.compaction_count >= declined_count, "{host:?}");
        let said = gpu.last_failure.as_deref().unwrap_or_default();
        assert!(said.contains(text), "{said}");
        let counted = ["job_declined_count", "job_failed_count"].map(|n| self.stats.counter(n));
        assert_eq!(counted, [declined_count, 0]);
    }
}

fn world(runtime: &Runtime, plan: GpuPlan) -> (Arc<MemoryStorage>, Arc<Gpu>, Store) {
    let storage = Arc::new(MemoryStorage::new(runtime));
    let gpu = Gpu::open(runtime, "gpu-0", plan).unwrap();
    let mut components = Components::on(storage.clone(), runtime.clone());
    components.executors.push(gpu.clone());
    let store = Store::open_with(components, options()).unwrap();
    (storage, gpu, store)
}

fn reopened(runtime: &Runtime, storage: &Arc<MemoryStorage>, models: &[Model]) {
    let components = Components::on(storage.clone(), runtime.clone());
    let store = Store::open_with(components, options()).unwrap();
    for (i, model) in models.iter().enumerate() {
        check(&store.keyspace(&format!("k{i}")).unwrap(), model);
    }
    let is_table = |name: &str| name.ends_with(".tbl");
    let names = storage.list().unwrap().into_iter().map(|o| o.name);
    let levels = store.stats().keyspaces.into_iter().flat_map(|k| k.levels);
    let named: u64 = levels.map(|level| level.table_count).sum();
    assert_eq!(names.filter(|name| is_table(name)).count() as u64, named);
    store.close().unwrap();
}

fn simulated<T: Send + 'static>(story: impl FnOnce(Runtime) -> T + Send + 'static) -> T {
    match run(SimConfig::new(7), story).result {
        Ok(value) => value,
        Err(failure) => panic!("{failure}"),
    }
}

/// Compacts this many keyspaces, one after the other, on a store with this GPU.
fn compact(plan: GpuPlan, count: usize) -> After {
    simulated(move |runtime| {
        let (storage, gpu, store) = world(&runtime, plan);
        let (calls, copies, _) = gpu.device_counts();
        let (begin, mut models) = (runtime.now(), Vec::new());
        for i in 0..count {
            let keyspace = store.create_keyspace(&format!("k{i}")).unwrap();
            let mut model = Model::new();
            two_runs(&keyspace, &mut model);
            store.wait_until_idle().unwrap();
            check(&keyspace, &model);
            models.push(model);
        }
        let took = runtime.now().since(begin);
        let stats = store.stats();
        let (end_calls, end_copies, _) = gpu.device_counts();
        store.close().unwrap();
        reopened(&runtime, &storage, &models);
        After {
            stats,
            begin: (calls, copies),
            end: (end_calls, end_copies),
            took,
        }
    })
}

/// The memory is small, so that a job takes several pieces.
fn plan() -> GpuPlan {
    GpuPlan {
        lane_bytes: 1 << 20,
        ..GpuPlan::default()
    }
}

fn with(faults: Faults) -> GpuPlan {
    GpuPlan { faults, ..plan() }
}

#[test]
fn a_gpu_compacts_in_pieces() {
    let after = compact(plan(), 2);
    let gpu = after.gpu();
    assert_eq!((&gpu.side[..], &gpu.state[..]), ("gpu", "ready"));
    assert_eq!((gpu.compaction_count, gpu.declined_count), (2, 0));
    assert!(
        after.stats.counter("gpu_pieces") > 2,
        "{:?}",
        after.stats.counters
    );
    assert_eq!(after.stats.counter("gpu_mismatches"), 0);
    assert_eq!(after.stats.counter("gpu_device_errors"), 0);
}

/// The store derives a share of the entries again, or all of them if the executor asks for that.
#[test]
fn all_entries_of_a_gpu_are_verified_if_that_is_asked_for() {
    let checked = |verifies_outcomes: bool| {
        let after = compact(
            GpuPlan {
                verifies_outcomes,
                ..plan()
            },
            1,
        );
        assert_eq!(after.gpu().compaction_count, 1);
        after.stats.counter("job_checked_bytes")
    };
    let (share, all) = (checked(false), checked(true));
    assert!(share > 0 && all > 5 * share, "{share} and {all} bytes");
}

/// A GPU compacts runs of which the first is in a snapshot, beside deletes and a range delete.
#[test]
fn a_gpu_keeps_what_a_snapshot_sees() {
    simulated(|runtime| {
        let (_, gpu, store) = world(&runtime, plan());
        let hooks = store.test_hooks();
        hooks.pause_compaction(true);
        let keyspace = store.create_keyspace("k0").unwrap();
        let mut old = Model::new();
        two_runs(&keyspace, &mut old);
        let snapshot = store.snapshot();
        let mut model = old.clone();
        for key in old.keys().step_by(3) {
            keyspace.put(key, b"new").unwrap();
            model.insert(key.clone(), b"new".to_vec());
        }
        for key in old.keys().skip(1).step_by(3) {
            keyspace.delete(key).unwrap();
            model.remove(key);
        }
        let (start, end) = (&b"key000100"[..], &b"key000200"[..]);
        keyspace.delete_range(start, end).unwrap();
        model.retain(|key, _| &key[..] < start || &key[..] >= end);
        keyspace.flush().unwrap();
        hooks.pause_compaction(false);
        store.wait_until_idle().unwrap();
        check(&keyspace, &model);
        let entries = keyspace.iter_at(&snapshot).unwrap();
        let seen: Model = entries
            .map(|entry| entry.map(|(k, v)| (k.to_vec(), v.to_vec())).unwrap())
            .collect();
        assert!(seen == old, "{} of {} keys", seen.len(), old.len());
        let side = store.stats().sides[0].clone();
        let ends = (
            side.compaction_count,
            side.rejected_count,
            side.declined_count,
        );
        assert_eq!(ends, (1, 0, 0), "{side:?}");
        assert!(gpu.count("gpu_pieces") > 1);
        drop((snapshot, keyspace));
        store.close().unwrap();
    });
}

/// At a call of its compaction the GPU fails, and at every call from then on.
#[test]
fn a_gpu_that_dies_in_a_compaction_loses_nothing() {
    let sound = compact(plan(), 1);
    let (begin, end) = (sound.begin.0, sound.end.0);
    for part in 0..12 {
        let faults = Faults {
            failing_call: begin + 1 + (end - begin) * part / 13,
            is_sticky: true,
            ..Faults::default()
        };
        let after = compact(with(faults), 2);
        after.host_did_all(1, "failed: an error that was asked for");
        assert!(after.gpu().state.starts_with("down: the GPU failed"));
        assert_eq!(after.gpu().slot_count, 0);
        assert_eq!(after.stats.counter("gpu_device_errors"), 1);
    }
}

/// A call fails, and later ones do not. The host does the one job, and the GPU the next.
#[test]
fn a_gpu_that_fails_once_goes_on() {
    let sound = compact(plan(), 1);
    let (begin, end) = (sound.begin.0, sound.end.0);
    for part in 0..12 {
        let faults = Faults {
            failing_call: begin + 1 + (end - begin) * part / 13,
            ..Faults::default()
        };
        let after = compact(with(faults), 2);
        let (gpu, host) = (after.gpu(), after.host());
        let counts = (gpu.declined_count, gpu.compaction_count);
        assert_eq!(counts, (1, 1), "part {part}: {gpu:?}");
        assert_eq!((host.compaction_count, &gpu.state[..]), (1, "ready"));
        assert_eq!(after.stats.counter("gpu_device_errors"), 1);
    }
}

/// A bit is flipped in a copy: of a block on its way in, of a value on its way out, or of one of
/// the arrays between. A wrong array may also lead a kernel out of bounds, which is an error of the
/// device.
#[test]
fn a_gpu_that_flips_a_bit_is_not_believed() {
    let sound = compact(plan(), 1);
    let (begin, end) = (sound.begin.1, sound.end.1);
    let (mut mismatch_count, mut block_count) = (0, 0);
    for copy in begin + 1..=end {
        let faults = Faults {
            flipped_copy: copy,
            flipped_bit: 12_345 * copy,
            ..Faults::default()
        };
        let after = compact(with(faults), 1);
        after.host_did_all(1, "");
        let counter = |name| after.stats.counter(name);
        let (mismatches, errors) = (counter("gpu_mismatches"), counter("gpu_device_errors"));
        assert_eq!(mismatches + errors, 1, "copy {copy}: {:?}", after.gpu());
        mismatch_count += mismatches;
        let said = after.gpu().last_failure.clone().unwrap_or_default();
        block_count += u64::from(said.contains("output block"));
    }
    assert!(mismatch_count * 2 > end - begin, "{mismatch_count}");
    assert!(block_count > 1, "{block_count} on the way out");
}

/// No table fits into the memory of the GPU. After three jobs it is suspended.
#[test]
fn a_gpu_without_memory_leaves_its_jobs_to_the_host() {
    let plan = GpuPlan {
        lane_bytes: 128 << 10,
        ..GpuPlan::default()
    };
    let after = compact(plan, 4);
    after.host_did_all(3, "does not fit into the GPU's memory");
    let gpu = after.gpu();
    assert_eq!((&gpu.state[..], gpu.suspended_count), ("ready", 1));
    assert!(gpu.suspended_us > 0);
    let names = ["gpu_pieces", "gpu_mismatches", "gpu_device_errors"];
    assert_eq!(names.map(|name| after.stats.counter(name)), [0, 0, 0]);
}

/// A kernel never ends. The job is given up, its slot is lost, and the host does the job.
#[test]
fn a_gpu_that_hangs_is_given_up() {
    let faults = Faults {
        hanging_kernel: 50,
        ..Faults::default()
    };
    // An even seed: a job has one part of the memory, and it is the one that is lost.
    let plan = GpuPlan {
        seed: 2,
        ..with(faults)
    };
    let after = compact(plan, 2);
    let (gpu, host) = (after.gpu(), after.host());
    assert_eq!((gpu.failed_count, gpu.compaction_count), (1, 0), "{gpu:?}");
    assert_eq!((gpu.slot_count, gpu.suspended_count), (0, 1), "{gpu:?}");
    assert_eq!(host.compaction_count, 2);
    let said = gpu.last_failure.as_deref().unwrap_or_default();
    assert!(said.contains("no sign of life"), "{said}");
    assert_eq!(after.stats.counter("job_fallback_count"), 1);
    assert_eq!(after.stats.counter("job_failed_count"), 0);
    let took = after.took;
    assert!((30..60).contains(&took.as_secs()), "{took:?}");
}

/// The store is closed while a kernel hangs. The close waits for the cancelled job only, and not
/// for the kernel.
#[test]
fn a_close_does_not_wait_for_a_kernel_that_hangs() {
    simulated(|runtime| {
        let faults = Faults {
            hanging_kernel: 50,
            ..Faults::default()
        };
        let (storage, gpu, store) = world(&runtime, with(faults));
        let keyspace = store.create_keyspace("k0").unwrap();
        let mut model = Model::new();
        two_runs(&keyspace, &mut model);
        runtime.sleep(Duration::from_secs(5));
        assert_eq!(store.stats().sides[0].running_job_count, 1);
        let begin = runtime.now();
        store.close().unwrap();
        let took = runtime.now().since(begin);
        assert!(took < Duration::from_secs(1), "{took:?}");
        drop((keyspace, gpu));
        reopened(&runtime, &storage, &[model]);
    });
}

/// A store in a folder with direct I/O, whose GPU reads and writes the files of tables by itself:
/// once believed, and once checked by the host. Where the file system of temporary files has no
/// direct I/O, the test says so and tries nothing.
#[test]
fn a_gpu_moves_tables_directly() {
    let folder = tempfile::tempdir().unwrap();
    if let Err(error) = FileStorage::open_or_create(folder.path())
        .unwrap()
        .check_direct()
    {
        eprintln!("skipped: {error}");
        return;
    }
    for is_checked in [false, true] {
        let path = folder.path().join(format!("store-{is_checked}"));
        let options = Options {
            direct_io: DirectIo::Compaction,
            ..options()
        };
        let runtime = Runtime::threads();
        let device = Arc::new(EmulatedDevice::new(&runtime, 32 << 20, 3));
        let of_gpu = GpuOptions {
            transfer: Transfer::Direct,
            memory_bytes_max: 32 << 20,
            pinned_bytes_max: 1 << 20,
            jobs: 1,
            verifies_all: is_checked,
            verified_first: 0,
            verified_share: 0,
            job_bytes_min: 0,
            ..GpuOptions::default()
        };
        let gpu = GpuExecutor::open("gpu0", device, &runtime, of_gpu).unwrap();
        let mut components = Components::for_path(&path, &options).unwrap();
        components.executors.push(Arc::new(gpu));
        let store = Store::open_with(components, options.clone()).unwrap();
        let (keyspace, mut model) = (store.create_keyspace("k").unwrap(), Model::new());
        for _ in 0..2 {
            two_runs(&keyspace, &mut model);
            store.wait_until_idle().unwrap();
        }
        check(&keyspace, &model);
        let stats = store.stats();
        let gpu = &stats.sides[0];
        assert!(gpu.compaction_count > 0, "{gpu:?}");
        assert_eq!((gpu.declined_count, gpu.rejected_count), (0, 0), "{gpu:?}");
        for name in ["gpu_direct_read_bytes", "gpu_direct_written_bytes"] {
            assert!(
                stats.counter(name) > 100_000,
                "{name}: {:?}",
                stats.counters
            );
        }
        for name in ["gpu_direct_refused_files", "gpu_direct_repeated_pieces"] {
            assert_eq!(stats.counter(name), 0);
        }
        store.close().unwrap();
        let store = Store::open(&path, options).unwrap();
        check(&store.keyspace("k").unwrap(), &model);
        store.close().unwrap();
    }
}
