//! Opens a GPU as an executor, in the background.
//!
//! The call checks what can be checked in moments: the driver, its version, the GPU, its
//! capability, and the options. Making a context, compiling the kernels and taking memory take the
//! driver seconds. A task of the runtime does that, and the executor is [`ExecutorState::Starting`]
//! meanwhile. If the task does not succeed, the executor stays [`ExecutorState::Down`] with the
//! reason.
//!
//! Invariants:
//!
//! - **O1 (jobs)** The executor has slots only while the GPU is open, and declines every job
//!   otherwise. Which jobs it accepts does not depend on this, so an answer that a store remembers
//!   stays right.
//! - **O2 (end)** The task ends before the executor does: dropping the executor waits for it, at
//!   most until the driver's present call returns. A task that panics leaves the executor down.
//! - **O3 (again)** After an error with which all later calls of the device fail, the device is
//!   opened once more, by another task, in a context of its own. If that fails, or the new one
//!   fails in the same way, the executor stays down: often only another process can use the GPU
//!   then (`silt device --gpu` has one). Jobs that have not returned keep the old device with its
//!   memory, so nothing that they may read is freed.
//!
//! Threading: shared. One lock guards the task, and another one what the task has achieved; the
//! lock of the task is taken first. Both are held for moments.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{JoinHandle, Mutex, Runtime};
use siltstone_table::exec::{
    Costs, ExecContext, ExecError, Executor, ExecutorState, LinkUse, Side,
};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use crate::PTX;
use crate::device::cuda::{self, CudaDevice};
use crate::device::{Device, Unavailable};
use crate::executor::{COSTS, GpuExecutor, GpuOptions, accepts, drops_into};

/// What the executor says until the GPU is open.
const STARTING: &str = "the driver compiles the kernels";

/// How often a device that failed is opened again.
const REOPENS_MAX: u64 = 1;

/// The variable with the folder of the kernels to compile, for those who develop them.
const SOURCE: &str = "SILT_GPU_SOURCE";

/// Why no executor was opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No GPU can be used.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// There is a GPU, and the options do not fit it.
    #[error("the options of the GPU: {0}")]
    Options(String),
    /// The task that opens the GPU could not be started.
    #[error("the task that opens the GPU could not be started: {0}")]
    Task(#[from] io::Error),
}

/// Opens the GPU with this number, or the first one of [`cuda::list`], as an executor with the name
/// `gpu0` (or another number). See the module for what happens when. A store runs jobs on it if it
/// is in `Components::executors` of the crate `siltstone`.
///
/// If the variable SILT_GPU_SOURCE names a folder, the kernels in it are compiled with libnvrtc and
/// take the place of those that the crate has: this is for those who develop kernels. The executor
/// has the name `gpu0-source` then, and everything that it makes is verified.
///
/// # Errors
/// [`OpenError`], from checks that take moments.
pub fn open(
    runtime: &Runtime,
    index: Option<u32>,
    options: GpuOptions,
) -> Result<Arc<dyn Executor>, OpenError> {
    let facts = cuda::find(index)?;
    options.check(&facts).map_err(OpenError::Options)?;
    let folder = std::env::var_os(SOURCE).filter(|folder| !folder.is_empty());
    let is_own = folder.is_some();
    let options = GpuOptions {
        verifies_all: options.verifies_all || is_own,
        verifies_outcomes: options.verifies_outcomes || is_own,
        ..options
    };
    let make = move || {
        let compiled = folder
            .as_ref()
            .map(|folder| cuda::compile(Path::new(folder)));
        let compiled = compiled.transpose();
        let compiled = compiled.map_err(|why| format!("{SOURCE} is set, and {why}"))?;
        match CudaDevice::open(facts.index, compiled.as_deref().unwrap_or(PTX)) {
            Ok(device) => Ok(Arc::new(device) as Arc<dyn Device>),
            Err(why) => Err(why.to_string()),
        }
    };
    let name = format!("gpu{}{}", facts.index, if is_own { "-source" } else { "" });
    Ok(Arc::new(OpeningExecutor::start(
        &name, runtime, options, make,
    )?))
}

/// Opens the device: the first time, and once more after it failed.
type Make = dyn Fn() -> Result<Arc<dyn Device>, String> + Send + Sync;

/// What the task has achieved.
enum Phase {
    Starting,
    Open(Arc<GpuExecutor>),
    Failed(String),
}

/// What the task and the executor share.
struct Shared {
    name: String,
    runtime: Runtime,
    options: GpuOptions,
    make: Box<Make>,
    phase: Mutex<Phase>,
    /// The executor is being dropped, so there is no need to go on.
    is_dropped: AtomicBool,
}

/// An executor whose device is opened by a task. See the module.
pub struct OpeningExecutor {
    shared: Arc<Shared>,
    again: Mutex<Again>,
}

/// The task, and what is known of an executor whose device failed.
struct Again {
    task: Option<JoinHandle<()>>,
    /// How often the device was opened again.
    count: u64,
    /// The counts of the executor before.
    counters: Vec<(String, u64)>,
}

/// Leaves the executor down if the task panics.
struct Unless(Arc<Shared>);

impl Drop for Unless {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        if matches!(*phase, Phase::Starting) {
            *phase = Phase::Failed("the task that opened the GPU panicked".to_string());
        }
    }
}

impl Shared {
    /// Starts the task that opens the device. The task also drops what there was before, which may
    /// take a while.
    fn start(self: &Arc<Shared>, before: Option<Phase>) -> io::Result<JoinHandle<()>> {
        let of_task = Arc::clone(self);
        self.runtime.spawn(&format!("open-{}", self.name), move || {
            let unless = Unless(of_task);
            drop(before);
            let shared = &unless.0;
            let goes_on = || match shared.is_dropped.load(Ordering::Acquire) {
                true => Err("the executor was dropped".to_string()),
                false => Ok(()),
            };
            let (name, runtime, options) = (&shared.name, &shared.runtime, shared.options);
            let opened = goes_on()
                .and_then(|()| (shared.make)())
                .and_then(|device| goes_on().map(|()| device))
                .and_then(|device| GpuExecutor::open(name, device, runtime, options));
            *shared.phase.lock() = match opened {
                Ok(executor) => Phase::Open(Arc::new(executor)),
                Err(why) => Phase::Failed(why),
            };
        })
    }
}

impl OpeningExecutor {
    /// An executor on the device that `make` opens, in a task.
    ///
    /// # Errors
    /// The task cannot be started.
    pub fn start(
        name: &str,
        runtime: &Runtime,
        options: GpuOptions,
        make: impl Fn() -> Result<Arc<dyn Device>, String> + Send + Sync + 'static,
    ) -> io::Result<OpeningExecutor> {
        let shared = Arc::new(Shared {
            name: name.to_string(),
            runtime: runtime.clone(),
            options,
            make: Box::new(make),
            phase: runtime.mutex(Phase::Starting),
            is_dropped: AtomicBool::new(false),
        });
        let task = shared.start(None)?;
        Ok(OpeningExecutor {
            again: runtime.mutex(Again {
                task: Some(task),
                count: 0,
                counters: Vec::new(),
            }),
            shared,
        })
    }

    /// The executor, once its device is open.
    fn opened(&self) -> Result<Arc<GpuExecutor>, ExecutorState> {
        match &*self.shared.phase.lock() {
            Phase::Open(executor) => Ok(Arc::clone(executor)),
            Phase::Starting => Err(ExecutorState::Starting(STARTING.to_string())),
            Phase::Failed(why) => Err(ExecutorState::Down(why.clone())),
        }
    }

    /// Opens the device a second time, if it failed for the first time (O3).
    fn reopen(&self, broken: &Arc<GpuExecutor>) {
        let mut again = self.again.lock();
        let is_current = |phase: &Phase| match phase {
            Phase::Open(executor) => Arc::ptr_eq(executor, broken),
            Phase::Starting | Phase::Failed(_) => false,
        };
        let mut phase = self.shared.phase.lock();
        if again.count >= REOPENS_MAX || !is_current(&phase) {
            return;
        }
        let before = std::mem::replace(&mut *phase, Phase::Starting);
        drop(phase);
        again.count += 1;
        again.counters = broken.counters();
        // The first task has ended, because it has opened the device.
        match self.shared.start(Some(before)) {
            Ok(task) => again.task = Some(task),
            Err(error) => {
                let why = format!("the GPU failed, and no task could open it again: {error}");
                *self.shared.phase.lock() = Phase::Failed(why);
            }
        }
    }
}

impl Executor for OpeningExecutor {
    fn name(&self) -> &str {
        &self.shared.name
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        accepts(job, &self.shared.options)
    }

    fn slots(&self) -> usize {
        self.opened().map_or(0, |executor| executor.slots())
    }

    fn parallelism(&self) -> usize {
        self.opened().map_or(1, |executor| executor.parallelism())
    }

    fn tasks(&self) -> usize {
        self.opened().map_or(1, |executor| executor.tasks())
    }

    fn held_bytes(&self) -> u64 {
        self.opened().map_or(0, |executor| executor.held_bytes())
    }

    fn drops_into(&self, depth: u32) -> bool {
        drops_into(depth, &self.shared.options)
    }

    fn is_verified_whole(&self) -> bool {
        self.shared.options.verifies_outcomes
    }

    fn costs(&self) -> Costs {
        COSTS
    }

    fn first_share(&self) -> Option<f64> {
        self.opened().ok()?.first_share()
    }

    fn state(&self) -> ExecutorState {
        match self.opened() {
            Ok(executor) if executor.is_broken() => {
                self.reopen(&executor);
                match self.opened() {
                    Ok(executor) => executor.state(),
                    Err(state) => state,
                }
            }
            Ok(executor) => executor.state(),
            Err(state) => state,
        }
    }

    fn link_use(&self) -> Option<LinkUse> {
        self.opened().ok()?.link_use()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let again = self.again.lock();
        let executor = self.opened();
        let mut counters = executor.map_or_else(|_| Vec::new(), |e| e.counters());
        if again.count > 0 {
            for (name, before) in &again.counters {
                match counters.iter_mut().find(|(of, _)| of == name) {
                    Some((_, count)) => *count += before,
                    None => counters.push((name.clone(), *before)),
                }
            }
            counters.push(("gpu_reopened".to_string(), again.count));
        }
        counters
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        match self.opened() {
            Ok(executor) => executor.run(job, ctx),
            Err(state) => Err(ExecError::declined(format!("the GPU is {state}"))),
        }
    }
}

impl Drop for OpeningExecutor {
    fn drop(&mut self) {
        // A simulated run ends with its first panic, and its tasks are unwound then.
        if self.shared.runtime.is_simulated() && std::thread::panicking() {
            return;
        }
        self.shared.is_dropped.store(true, Ordering::Release);
        let task = self.again.lock().task.take();
        if let Some(task) = task {
            // An error is a panic, after which nothing is left to wait for.
            let _ = task.join();
        }
    }
}
