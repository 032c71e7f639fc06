//! What all sections need: the machine's folders, a device, executors, and one run of a job.
//!
//! Threading: one thread.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone_gpu::device::Device;
use siltstone_gpu::{GpuExecutor, GpuOptions};
use siltstone_storage::{Runtime, Storage};
use siltstone_table::exec::{ExecContext, Executor};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::world::{EPOCH, Shape, World};
use crate::measure::process::cpu_s;

/// What figures of an emulated device are called.
pub const NOT_A_SPEED: &str = "emulated: not a speed";

/// How the program was started, and what it found.
pub struct Setup {
    /// Tasks, clock.
    pub runtime: Runtime,
    /// Whether the host computes what a GPU should.
    pub is_emulated: bool,
    /// Whether sizes are tiny.
    pub is_small: bool,
    /// Jobs run here: a folder in memory, if there is one.
    pub memory: PathBuf,
    /// The folder of the results, on a disk.
    pub disk: PathBuf,
    /// The number of the GPU.
    pub index: u32,
    /// All memory of the GPU, if it is known.
    pub gpu_memory_bytes: Option<u64>,
    /// The program that merges with RocksDB, if one was named.
    pub rocksdb: Option<PathBuf>,
}

/// When a section has to end.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    end: Instant,
}

impl Limit {
    /// So long from now on.
    pub fn after(seconds: f64) -> Limit {
        Limit {
            end: Instant::now() + Duration::from_secs_f64(seconds.max(0.0)),
        }
    }

    /// Whether the time is over.
    pub fn is_over(&self) -> bool {
        self.left_s() <= 0.0
    }

    /// The seconds that are left.
    pub fn left_s(&self) -> f64 {
        let left = self.end.saturating_duration_since(Instant::now());
        left.as_secs_f64()
    }
}

/// A job that was run.
pub struct Ran {
    /// What it made.
    pub outcome: Outcome,
    /// How long it took.
    pub wall_s: f64,
    /// The processor time of this process meanwhile, all tasks and the driver's threads included.
    pub cpu_s: f64,
}

impl Setup {
    /// Opens the device. What it has taken is given back when it is dropped.
    ///
    /// # Errors
    /// Why there is none, in one line.
    pub fn device(&self) -> Result<Arc<dyn Device>, String> {
        if !self.is_emulated {
            let device =
                siltstone_gpu::device::cuda::CudaDevice::open(self.index, siltstone_gpu::PTX);
            return match device {
                Ok(device) => Ok(Arc::new(device)),
                Err(error) => Err(error.to_string()),
            };
        }
        #[cfg(feature = "emulate")]
        {
            use siltstone_gpu::device::emulated::EmulatedDevice;
            Ok(Arc::new(EmulatedDevice::new(&self.runtime, 1 << 30, 0)))
        }
        #[cfg(not(feature = "emulate"))]
        Err("this program was built without the feature `emulate`".into())
    }

    /// The options of an executor for one job at once, whose checks by the host are off, because
    /// they are measured apart. What is not said here is said by the caller.
    pub fn options(&self) -> GpuOptions {
        // A section has up to sixteen executors at once.
        let share = self.gpu_memory_bytes.map_or(u64::MAX, |all| all / 20);
        GpuOptions {
            memory_bytes_max: self.sized(share.min(4 << 30), 24 << 20),
            pinned_bytes_max: self.sized(64 << 20, 1 << 20),
            jobs: 1,
            verified_first: 0,
            verified_share: 0,
            job_bytes_min: 0,
            ..GpuOptions::default()
        }
    }

    /// A size, or the one for small runs.
    pub fn sized(&self, usual: u64, small: u64) -> u64 {
        match self.is_small || self.is_emulated {
            true => small,
            false => usual,
        }
    }

    /// What stands beside each figure.
    pub fn label(&self) -> Option<&'static str> {
        self.is_emulated.then_some(NOT_A_SPEED)
    }

    /// Opens an executor on a device.
    ///
    /// # Errors
    /// What could not be taken.
    pub fn executor(
        &self,
        device: &Arc<dyn Device>,
        options: GpuOptions,
    ) -> Result<GpuExecutor, String> {
        GpuExecutor::open("gpu0", Arc::clone(device), &self.runtime, options)
    }

    /// A world on the disk of the results, whose files are read and written past the page cache.
    ///
    /// # Errors
    /// The disk does not allow it, or what could not be written.
    pub fn direct_world(&self, shape: Shape, bytes: u64, seed: u64) -> Result<World, String> {
        let room = free_bytes(&self.disk).map_or(bytes, |free| free / 5);
        World::write(&self.disk, shape, bytes.min(room), seed)?.with_direct_io()
    }

    /// As [`Setup::executor`], for a transfer that not every machine has: the executor has to run a
    /// small job, too, whose files are moved in this way.
    ///
    /// # Errors
    /// Why the transfer cannot be used, in one line.
    pub fn tried(
        &self,
        device: &Arc<dyn Device>,
        options: GpuOptions,
    ) -> Result<GpuExecutor, String> {
        let gpu = self.executor(device, options)?;
        let world = self.direct_world(Shape::plain(64, 2), 256 << 10, 0)?;
        let ran = self.run(&world, &world.job(), &gpu, gpu.tasks(), &world.storage)?;
        delete(&world.storage, &ran.outcome);
        let counters = gpu.counters();
        let count_of = |name: &str| {
            let found = counters.iter().find(|(of, _)| of == name);
            found.map_or(0, |(_, count)| *count)
        };
        for name in ["gpu_direct_read_bytes", "gpu_direct_written_bytes"] {
            if count_of(name) == 0 {
                return Err(format!("a job moved nothing directly ({name} is 0)"));
            }
        }
        Ok(gpu)
    }

    /// A world in memory. It is smaller than asked for if inputs and outputs would not fit.
    ///
    /// # Errors
    /// What could not be written.
    pub fn world(&self, shape: Shape, bytes: u64, seed: u64) -> Result<World, String> {
        let room = free_bytes(&self.memory).map_or(bytes, |free| free / 5);
        World::write(&self.memory, shape, bytes.min(room), seed)
    }

    /// Runs a job of a world.
    ///
    /// # Errors
    /// The executor's, as text.
    pub fn run(
        &self,
        world: &World,
        job: &Job,
        executor: &dyn Executor,
        tasks: usize,
        outputs: &Arc<dyn Storage>,
    ) -> Result<Ran, String> {
        let (runtime, inputs) = (self.runtime.clone(), Arc::clone(&world.inputs));
        let ctx = ExecContext {
            max_parallel: tasks,
            ..ExecContext::new(runtime, inputs, Arc::clone(outputs), EPOCH)
        };
        let (began, used_s) = (Instant::now(), cpu_s().unwrap_or(0.0));
        let outcome = executor.run(job, &ctx).map_err(|e| e.to_string())?;
        Ok(Ran {
            outcome,
            wall_s: began.elapsed().as_secs_f64(),
            cpu_s: cpu_s().unwrap_or(0.0) - used_s,
        })
    }
}

/// Deletes the tables of an outcome.
pub fn delete(storage: &Arc<dyn Storage>, outcome: &Outcome) {
    for table in &outcome.tables {
        // What is left is deleted with its folder.
        let _ = storage.delete(EPOCH, &table.name);
    }
}

/// The bytes that are free in a folder, if that is known.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    let found = rustix::fs::statvfs(folder).ok()?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

/// The folder in which jobs run: the first one with room, or else the one that has the most.
pub fn memory_folder(is_small: bool) -> PathBuf {
    let wanted = if is_small { 64 << 20 } else { 8 << 30 };
    let all = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let free = |folder: &PathBuf| free_bytes(folder).unwrap_or(0);
    let roomy = all.iter().find(|folder| free(folder) >= wanted);
    let most = || all.iter().max_by_key(|folder| free(folder));
    roomy.or_else(most).cloned().unwrap_or_default()
}
