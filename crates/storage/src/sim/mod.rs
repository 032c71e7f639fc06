//! The simulated runtime: whole runs that can be replayed from a seed.
//!
//! [`run`] takes a closure and gives it a [`Runtime`] whose tasks, locks, waits, clock and random
//! numbers belong to one seeded scheduler. One task runs at a time. Another task may be scheduled
//! only at these *points*: a storage call (or any [`Runtime::yield_point`]), taking a runtime lock,
//! waiting on a condition variable, sleeping, joining, and the end of a task. Starting a task,
//! notifying and releasing a lock are not points. For each run the seed draws how likely a switch
//! is at a storage call and at a lock, how unequal the weights of the tasks are, whether they
//! change during the run, and whether condition variables wake spuriously.
//!
//! - Simulated time stands still while any task can run, and then jumps to the next timer. Reading
//!   the clock does not advance it.
//! - If no task can run and there is no timer, the run fails with [`Failure::Deadlock`], which says
//!   what each task waits for and who holds it.
//! - The number of points is bounded: [`Failure::Steps`] means a livelock, or a bound that is too
//!   small.
//! - A task that blocks in the operating system (on a std mutex that another task holds, or on a
//!   channel) stops the run. A watchdog (the calling thread, in real time) then prints the seed and
//!   the task, and aborts the process.
//! - A panic in any task ends the run with [`Failure::Panic`].
//! - [`SimOutcome::digest`] covers every decision. If a program decides anything by something that
//!   the seed does not determine (real time, addresses, randomly seeded maps), two runs of one seed
//!   have different digests; see [`check_replay`]. Digests can be compared across processes.
//!
//! Two back ends make the same decisions: [`Backend::Coroutines`] (fast) and [`Backend::Threads`]
//! (one OS thread for each task, for Miri and sanitizers).
//!
//! **Processes.** [`Runtime::spawn_process`] starts a task in a new group, and the tasks that it
//! spawns belong to the same group. [`Runtime::kill_group`] and [`Runtime::die`] act like kill -9:
//! from that point on, no task of the group runs again. [`Reclaim`] says what happens to their
//! stacks.
//!
//! **Costs.** A task's stack is mapped with [`SimConfig::stack_bytes`] and a guard page. It costs
//! only the pages that it touches (one or two for a small task), and an overflow is a SIGSEGV. A
//! leaked task costs these pages, two of the 65,530 mappings that the kernel allows, and everything
//! that its frames own. Stacks of ended tasks are reused.
//!
//! Threading: [`run`] may be called from any thread, also concurrently. It starts an OS thread for
//! the run. Objects of a run may be used by its tasks and, after the run, by the caller of [`run`]
//! if it got them in the run's value (locks are then granted without scheduling). Tasks must not
//! keep a `thread_local!` borrowed across a point.

mod core;
mod coroutine;
mod outcome;
mod process;
mod state;
mod sync;
mod threads;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

pub use outcome::{Divergence, Failure, SimOutcome, TaskReport, check_replay};
pub use process::{GroupId, Killed, Process};
pub use state::{Counters, Point, TraceEvent};
pub use sync::Handle;
pub(crate) use sync::{SimCondvar, SimLock, TaskHandle};

use self::core::{Core, SpawnGroup};
use crate::runtime::Runtime;

/// How tasks are run. Both back ends give the same trace for one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Stackful coroutines on one OS thread.
    Coroutines,
    /// An OS thread for each task, of which only one runs at a time.
    Threads,
}

/// What happens to the stacks of tasks that will never run again.
///
/// Unwinding runs the destructors on these stacks immediately, at the point where the task was
/// killed, before anything else runs. Runtime calls in such destructors do not switch tasks: a lock
/// is taken if it is free or if its holder was killed too (the holder is then unwound first), a
/// join unwinds the joined task first, sleeps and yields do nothing, and tasks cannot be started. A
/// destructor that would have to wait for anything else ends the run with a failure that says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reclaim {
    /// Leak them, and everything that their frames own.
    Never,
    /// Unwind killed groups, and the remaining tasks when the first task returns. After a failed
    /// run leak the stacks, because its invariants may be broken.
    Clean,
    /// Unwind them, even after a failed run.
    Always,
}

/// The parameters of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The seed, which decides everything.
    pub seed: u64,
    /// How tasks are run.
    pub backend: Backend,
    /// The number of points after which the run fails.
    pub max_steps: u64,
    /// The process aborts if the run passes no point for this long in real time. With `None`, it
    /// never aborts.
    pub watchdog: Option<Duration>,
    /// Size of a coroutine's stack in bytes.
    pub stack_bytes: usize,
    /// What happens to the stacks of tasks that will never run again.
    pub reclaim: Reclaim,
    /// Whether every decision is recorded, or only their digest.
    pub record_trace: bool,
}

impl SimConfig {
    /// The default configuration with this seed: coroutines, a million points, a watchdog of 30 s,
    /// and stacks of 256 KiB. It uses threads under Miri, and if the environment has
    /// `SILT_SIM_BACKEND=threads`, for sanitizers, which cannot follow a switch of stacks.
    pub fn new(seed: u64) -> SimConfig {
        let miri = cfg!(miri);
        let threads = miri || std::env::var_os("SILT_SIM_BACKEND").is_some_and(|b| b == "threads");
        SimConfig {
            seed,
            backend: if threads {
                Backend::Threads
            } else {
                Backend::Coroutines
            },
            max_steps: 1_000_000,
            watchdog: (!miri).then_some(Duration::from_secs(30)),
            stack_bytes: 256 << 10,
            reclaim: Reclaim::Clean,
            record_trace: false,
        }
    }
}

/// Runs `f` as the first task of a simulated run. The run ends when `f` returns, even if other
/// tasks still run.
///
/// # Panics
/// If the operating system refuses to create a thread, or to give memory for a stack.
pub fn run<T, F>(config: SimConfig, f: F) -> SimOutcome<T>
where
    T: Send + 'static,
    F: FnOnce(Runtime) -> T + Send + 'static,
{
    let core = Core::new(config);
    let done = Arc::new((Mutex::new(false), Condvar::new()));
    let driver = {
        let core = core.clone();
        let done = done.clone();
        move || {
            let outcome = drive(&core, f);
            *done.0.lock().unwrap_or_else(|e| e.into_inner()) = true;
            done.1.notify_one();
            outcome
        }
    };
    let seed = core.config.seed;
    let thread = std::thread::Builder::new()
        .name(format!("sim {seed}"))
        .spawn(driver)
        .unwrap_or_else(|e| panic!("no thread for the simulated run of seed {seed}: {e}"));
    watch(&core, &done.0, &done.1, || thread.is_finished());
    match thread.join() {
        Ok(outcome) => outcome,
        Err(payload) => std::panic::resume_unwind(payload),
    }
}

/// Runs the tasks; the body of the run's own OS thread.
fn drive<T, F>(core: &Arc<Core>, f: F) -> SimOutcome<T>
where
    T: Send + 'static,
    F: FnOnce(Runtime) -> T + Send + 'static,
{
    let handle = Handle::new(core.clone());
    let runtime = Runtime::simulated(handle.clone());
    core.attach();
    let (first, _) = handle
        .spawn_at("main", SpawnGroup::FirstTask, move || f(runtime))
        .unwrap_or_else(|e| {
            panic!(
                "no stack for the simulated run of seed {}: {e}",
                core.config.seed
            )
        });
    core.drive();
    let digest = core.state().digest();
    core.reclaim();
    let (failure, counters, time_nanos, trace) = {
        let mut state = core.state();
        (
            state.failure.take(),
            state.counters,
            state.now_nanos,
            state.take_events(),
        )
    };
    let result = match failure {
        Some(failure) => Err(failure),
        // The run is over, so this returns the value without waiting.
        None => Ok(first
            .into_value()
            .expect("a run without a failure ends when its first task has returned")),
    };
    SimOutcome {
        seed: core.config.seed,
        backend: core.config.backend,
        result,
        digest,
        counters,
        simulated_time: Duration::from_nanos(time_nanos),
        trace,
    }
}

/// Waits for the run's end. Aborts the process if the run passes no point for too long.
fn watch(core: &Core, done: &Mutex<bool>, ended: &Condvar, died: impl Fn() -> bool) {
    let mut over = done.lock().unwrap_or_else(|e| e.into_inner());
    let Some(limit) = core.config.watchdog else {
        // A driver that panics (no memory for a stack) does not notify `ended`; the caller's join
        // waits for its end.
        return;
    };
    // With four checks per limit, a run is aborted after 1 to 1.25 times the limit.
    let look = (limit / 4).max(Duration::from_millis(1));
    let mut last = (core.progress(), Duration::ZERO);
    while !*over && !died() {
        let (guard, timeout) = ended
            .wait_timeout(over, look)
            .unwrap_or_else(|e| e.into_inner());
        over = guard;
        if *over || !timeout.timed_out() {
            continue;
        }
        let progress = core.progress();
        last = if progress == last.0 {
            (progress, last.1 + look)
        } else {
            (progress, Duration::ZERO)
        };
        if last.1 >= limit {
            core.abort(limit);
        }
    }
}
