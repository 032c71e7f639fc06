//! Opens a GPU as an executor, in the background.
//!
//! What is known at once is checked at once: the driver, its version, the GPU, its capability, and
//! the options. To make a context, to have the driver compile the kernels and to take memory takes
//! seconds. A task of the runtime does that, and the executor says [`ExecutorState::Starting`]
//! meanwhile. If it does not succeed, the executor stays [`ExecutorState::Down`] with the reason.
//!
//! Invariants:
//!
//! - **O1 (jobs)** The executor has slots only while the GPU is open, and declines every job
//!   otherwise. Which jobs it accepts does not depend on this, so an answer that a store remembers
//!   stays right.
//! - **O2 (end)** The task ends before the executor does: dropping the executor waits for it, at
//!   most for as long as the driver takes for the call that it is in. A task that panics leaves the
//!   executor down.
//!
//! Threading: shared. One lock guards what the task has achieved, and is held for moments.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{JoinHandle, Mutex, Runtime};
use siltstone_table::exec::{ExecContext, ExecError, Executor, ExecutorState, LinkUse, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use crate::PTX;
use crate::device::cuda::{self, CudaDevice};
use crate::device::{Device, Unavailable};
use crate::executor::{GpuExecutor, GpuOptions, accepts, drops_into};

/// What the executor says until the GPU is open.
const STARTING: &str = "the driver compiles the kernels";

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

/// Opens the GPU with this number, or the first one that can be used, as an executor with the name
/// `gpu0` (or another number). See the module for what happens when.
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
    let make = move || match CudaDevice::open(facts.index, PTX) {
        Ok(device) => Ok(Arc::new(device) as Arc<dyn Device>),
        Err(why) => Err(why.to_string()),
    };
    let name = format!("gpu{}", facts.index);
    Ok(Arc::new(OpeningExecutor::start(
        &name, runtime, options, make,
    )?))
}

/// What the task has achieved.
enum Phase {
    Starting,
    Open(Arc<GpuExecutor>),
    Failed(String),
}

/// What the task and the executor share.
struct Shared {
    phase: Mutex<Phase>,
    /// The executor is being dropped, so there is no need to go on.
    is_dropped: AtomicBool,
}

/// An executor whose device is opened by a task. See the module.
pub struct OpeningExecutor {
    name: String,
    runtime: Runtime,
    options: GpuOptions,
    shared: Arc<Shared>,
    task: Option<JoinHandle<()>>,
}

/// Leaves the executor down if the task ends in another way.
struct Unless(Arc<Shared>);

impl Drop for Unless {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        if matches!(*phase, Phase::Starting) {
            *phase = Phase::Failed("the task that opened the GPU panicked".to_string());
        }
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
        make: impl FnOnce() -> Result<Arc<dyn Device>, String> + Send + 'static,
    ) -> io::Result<OpeningExecutor> {
        let shared = Arc::new(Shared {
            phase: runtime.mutex(Phase::Starting),
            is_dropped: AtomicBool::new(false),
        });
        let (of_task, task_name, task_runtime) =
            (Arc::clone(&shared), name.to_string(), runtime.clone());
        let task = runtime.spawn(&format!("open-{name}"), move || {
            let unless = Unless(of_task);
            let shared = &unless.0;
            let goes_on = || match shared.is_dropped.load(Ordering::Acquire) {
                true => Err("the executor was dropped".to_string()),
                false => Ok(()),
            };
            let opened = goes_on()
                .and_then(|()| make())
                .and_then(|device| goes_on().map(|()| device))
                .and_then(|device| GpuExecutor::open(&task_name, device, &task_runtime, options));
            *shared.phase.lock() = match opened {
                Ok(executor) => Phase::Open(Arc::new(executor)),
                Err(why) => Phase::Failed(why),
            };
        })?;
        Ok(OpeningExecutor {
            name: name.to_string(),
            runtime: runtime.clone(),
            options,
            shared,
            task: Some(task),
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
}

impl Executor for OpeningExecutor {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        accepts(job, &self.options)
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
        drops_into(depth, &self.options)
    }

    fn first_share(&self) -> Option<f64> {
        self.opened().ok()?.first_share()
    }

    fn state(&self) -> ExecutorState {
        match self.opened() {
            Ok(executor) => executor.state(),
            Err(state) => state,
        }
    }

    fn link_use(&self) -> Option<LinkUse> {
        self.opened().ok()?.link_use()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.opened()
            .map_or_else(|_| Vec::new(), |executor| executor.counters())
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
        if self.runtime.is_simulated() && std::thread::panicking() {
            return;
        }
        self.shared.is_dropped.store(true, Ordering::Release);
        if let Some(task) = self.task.take() {
            // An error is a panic, after which nothing is left to wait for.
            let _ = task.join();
        }
    }
}
