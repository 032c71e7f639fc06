//! How a run gets its GPU.
//!
//! Invariant: a run that should use a GPU either gets an executor that is ready, or does not begin.
//! What is measured never has the time in which the driver compiles the kernels.
//!
//! Threading: one thread opens; the executor is shared.

use std::sync::Arc;
use std::time::Duration;

use siltstone_gpu::device::cuda;
use siltstone_gpu::{GpuOptions, OpenError};
use siltstone_storage::Runtime;
use siltstone_table::exec::{Executor, ExecutorState};

use crate::run::RunError;
use crate::settings::GpuSettings;

/// How often it is asked whether the GPU is open.
const LOOK: Duration = Duration::from_millis(20);

/// What opens the GPU of a run.
pub trait Gpus: Sync {
    /// Begins to open a GPU.
    ///
    /// # Errors
    /// Why there is none, in one line.
    fn open(&self, options: GpuOptions) -> Result<Arc<dyn Executor>, String>;

    /// What the GPU calls itself; `None` if that is not known.
    fn name(&self) -> Option<String> {
        None
    }

    /// What stands in for a GPU, in a sentence; `None` if it is a real one.
    fn stand_in(&self) -> Option<String> {
        None
    }
}

/// The first GPU of the machine that can be used.
#[derive(Debug, Clone, Copy, Default)]
pub struct FirstGpu;

impl Gpus for FirstGpu {
    fn open(&self, options: GpuOptions) -> Result<Arc<dyn Executor>, String> {
        siltstone_gpu::open(&Runtime::threads(), None, options).map_err(|error| match error {
            // `silt gpu` prints this line.
            OpenError::Unavailable(why) => format!("no GPU can be used: {why}"),
            other => other.to_string(),
        })
    }

    fn name(&self) -> Option<String> {
        Some(cuda::find(None).ok()?.name)
    }
}

/// The executor of a run with these settings, after the GPU was opened.
///
/// # Errors
/// [`RunError::NotRun`] with the reason, or [`RunError::Interrupted`].
pub(crate) fn opened(
    gpus: &dyn Gpus,
    settings: &GpuSettings,
    stopped: &dyn Fn() -> bool,
) -> Result<Arc<dyn Executor>, RunError> {
    let options = GpuOptions {
        strategy: settings.strategy,
        transfer: settings.transfer,
        profiles: settings.profiles,
        ..GpuOptions::default()
    };
    let executor = gpus.open(options).map_err(RunError::NotRun)?;
    loop {
        match executor.state() {
            ExecutorState::Ready => return Ok(executor),
            ExecutorState::Down(why) => return Err(RunError::NotRun(why)),
            ExecutorState::Starting(_) if stopped() => return Err(RunError::Interrupted),
            ExecutorState::Starting(_) => std::thread::sleep(LOOK),
        }
    }
}

/// What the executor of a run is, for its record.
pub(crate) fn words(gpus: &dyn Gpus, executor: &dyn Executor, settings: &GpuSettings) -> String {
    let GpuSettings {
        strategy, transfer, ..
    } = settings;
    let model = gpus.name().map(|model| format!(" ({model})"));
    let (name, model) = (executor.name(), model.unwrap_or_default());
    format!("{name}{model}: strategy {strategy}, transfer {transfer}")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use siltstone_gpu::{Strategy, Transfer};
    use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Side};
    use siltstone_table::job::Job;
    use siltstone_table::job::outcome::Outcome;

    use super::*;

    /// An executor that is asked for its state a few times.
    struct Slow {
        asked: AtomicU32,
        end: ExecutorState,
    }

    impl Executor for Slow {
        fn name(&self) -> &str {
            "gpu7"
        }

        fn side(&self) -> Side {
            Side::Gpu
        }

        fn accepts(&self, job: &Job) -> Result<(), String> {
            CpuExecutor::new().accepts(job)
        }

        fn state(&self) -> ExecutorState {
            match self.asked.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => ExecutorState::Starting("soon".into()),
                _ => self.end.clone(),
            }
        }

        fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
            CpuExecutor::new().run(job, ctx)
        }
    }

    struct Gives(ExecutorState);

    impl Gpus for Gives {
        fn open(&self, options: GpuOptions) -> Result<Arc<dyn Executor>, String> {
            assert_eq!(
                (options.strategy, options.transfer, options.profiles),
                (Strategy::Luda, Transfer::Plain, true)
            );
            let (asked, end) = (AtomicU32::new(0), self.0.clone());
            Ok(Arc::new(Slow { asked, end }))
        }

        fn name(&self) -> Option<String> {
            Some("a model".into())
        }
    }

    struct Refuses;

    impl Gpus for Refuses {
        fn open(&self, _options: GpuOptions) -> Result<Arc<dyn Executor>, String> {
            Err("the transfer `direct` is not built".into())
        }
    }

    #[test]
    fn a_run_waits_for_its_gpu_and_a_refusal_is_the_reason() {
        let settings = GpuSettings {
            strategy: Strategy::Luda,
            transfer: Transfer::Plain,
            profiles: true,
        };
        let ready = Gives(ExecutorState::Ready);
        let executor = opened(&ready, &settings, &|| false).unwrap();
        assert_eq!(
            words(&ready, &*executor, &settings),
            "gpu7 (a model): strategy luda, transfer plain"
        );
        let down = Gives(ExecutorState::Down("no memory".into()));
        let error = opened(&down, &settings, &|| false).err().unwrap();
        assert_eq!(error.to_string(), "not run: no memory");
        let error = opened(&Refuses, &settings, &|| false).err().unwrap();
        assert_eq!(
            error.to_string(),
            "not run: the transfer `direct` is not built"
        );
        let stopped = opened(&Gives(ExecutorState::Ready), &settings, &|| true);
        assert!(matches!(stopped, Err(RunError::Interrupted)));
    }
}
