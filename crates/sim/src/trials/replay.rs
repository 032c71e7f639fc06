//! One seed, one trace: a run with clients, jobs and stalls, summarised so that two runs can be
//! compared.

use std::sync::Arc;

use siltstone::{Compression, FlushVerify, Options, Storages, SyncMode};
use siltstone_storage::fault::FaultStorage;
use siltstone_storage::sim::{Backend, SimConfig, run};
use siltstone_storage::{MemoryStorage, Runtime};

use super::Run;
use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::gpu::{Gpu, GpuPlan};
use crate::rng::Rng;
use crate::world::Errors;

/// The summary of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The digest of every decision of the scheduler.
    pub schedule: u64,
    /// The digest of every storage call, with its bytes and its outcome.
    pub storage: u64,
    /// The coverage.
    pub coverage: Coverage,
}

/// Runs four clients on a store that is small enough to stall. The first task calls `meddle` before
/// they begin, so that a test can cause a difference that must be detected.
///
/// # Panics
/// If the run fails.
pub fn trace(seed: u64, backend: Backend, meddle: fn(&Runtime)) -> Trace {
    traced(seed, backend, false, meddle)
}

/// Like [`trace`], for a store without compression that has a GPU.
///
/// # Panics
/// If the run fails.
pub fn trace_with_gpu(seed: u64, backend: Backend) -> Trace {
    traced(seed, backend, true, |_| {})
}

fn traced(seed: u64, backend: Backend, has_gpu: bool, meddle: fn(&Runtime)) -> Trace {
    let config = SimConfig {
        max_steps: 3_000_000,
        backend,
        ..SimConfig::new(seed)
    };
    let outcome = run(config, move |runtime| {
        let mut rng = Rng::new(seed);
        let mut run = Run::new(&runtime, &mut rng);
        let medium = MemoryStorage::new(&runtime);
        let traced = FaultStorage::new(Arc::new(medium.clone()), &runtime);
        traced.start_trace(false);
        let mut options = Options {
            sync: SyncMode::Never,
            flush_verify: FlushVerify::All,
            memtable_bytes: 64 << 10,
            sealed_memtables_max: 1,
            table_bytes: 64 << 10,
            level1_bytes: 64 << 10,
            level_factor: 2,
            l0_trigger_count: 1,
            l0_slowdown_count: 1,
            l0_stop_count: 2,
            log_segment_bytes: 64 << 10,
            log_bytes_max: 128 << 10,
            ..Options::default()
        };
        let mut gpu = None;
        if has_gpu {
            options.compression = Compression::None.into();
            let plan = GpuPlan::draw(&mut rng.clone().fork(12));
            gpu = Gpu::open(&runtime, "gpu-0", plan).ok();
        }
        let (storages, executors) = (
            Storages::on(Arc::new(traced.clone())),
            OtherExecutors::only(gpu),
        );
        let world = run
            .open_on(&medium, storages, executors, &options, Errors::Fatal)
            .unwrap_or_else(|e| panic!("{e}"));
        meddle(&runtime);
        run.work(&world, 4, 60, &mut rng)
            .unwrap_or_else(|e| panic!("{e}"));
        run.check_all(&world, &mut rng)
            .unwrap_or_else(|e| panic!("{e}"));
        run.close(&world).unwrap_or_else(|e| panic!("{e}"));
        (traced.trace_digest().unwrap_or(0), run.coverage)
    });
    let schedule = outcome.digest;
    let (storage, coverage) = outcome.unwrap();
    Trace {
        schedule,
        storage,
        coverage,
    }
}
