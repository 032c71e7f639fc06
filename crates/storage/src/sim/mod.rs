//! The simulated runtime: whole runs that can be replayed from a seed.
//!
//! [`run`] takes a closure and gives it a [`Runtime`] whose tasks, locks, waits, clock and random numbers belong to
//! one seeded scheduler. One task runs at a time. It may hand over only at these points: a storage call (or any
//! [`Runtime::yield_point`]), taking a runtime lock, waiting on a condition variable, sleeping, joining, its end.
//! Starting a task, notifying and giving back a lock are none. The seed draws, anew for each run, how likely a
//! hand-over is at a storage call and at a lock, how unequal the tasks are, whether that changes on the way, and
//! whether condition variables wake without a reason.
//!
//! - Simulated time stands while any task can run, then jumps to the next timer. Reading the clock does not move it.
//! - Nobody can run and there is no timer: [`Failure::Deadlock`], with what each task waits for and who holds it.
//! - The number of points is bounded: [`Failure::Steps`] (a livelock, or a bound too small).
//! - A task that blocks in the operating system (a std mutex held by another task, a channel) stops the run; a
//!   watchdog (the calling thread, in real time) then names the seed and the task and aborts the process.
//! - A panic in any task ends the run: [`Failure::Panic`].
//! - [`SimOutcome::digest`] sums up every decision. A program that decides anything by what the seed does not
//!   give (real time, addresses, randomly seeded maps) shows as two runs of one seed with different digests; see
//!   [`check_replay`]. The digest can be compared across processes.
//!
//! Two back ends make the same decisions: [`Backend::Coroutines`] (fast) and [`Backend::Threads`] (an OS thread a
//! task, for Miri and sanitizers).
//!
//! **Processes.** [`Runtime::spawn_process`] starts a task in a group of its own; what it spawns belongs to the same
//! group. [`Runtime::kill_group`] and [`Runtime::die`] are kill -9: from that point on none of the group's tasks
//! runs again. What happens to their stacks says [`Reclaim`].
//!
//! **Costs.** A task's stack is mapped with [`SimConfig::stack_bytes`] and a guard page and costs only the pages
//! that it touches (one or two for a small task); an overflow is a SIGSEGV. A leaked task costs these pages, two
//! kernel mappings of 65,530, and all that its frames own. Stacks of ended tasks are used again.
//!
//! Threading: [`run`] may be called from any thread, also from several at once. It starts an OS thread for the run.
//! Objects of a run may be used by its tasks and, once it is over, by whoever got them as its value (locks are
//! granted without a schedule then). Tasks must not keep a `thread_local!` borrowed across a point.

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

use self::core::{Core, Place};
use crate::runtime::Runtime;

/// How tasks are run. Both give the same trace for one seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Stackful coroutines on one OS thread.
    Coroutines,
    /// An OS thread a task, one of which runs at a time.
    Threads,
}

/// What happens to the stacks of tasks that will never run again.
///
/// Unwinding runs the destructors on them, at the place of the kill and before anything else runs. Runtime calls
/// made by these destructors do not hand over: locks are taken if free or if their holder was killed too (it is
/// then unwound first), a join unwinds the joined task first, sleeps and yields do nothing, tasks are not started.
/// A destructor that would have to wait for anything else ends the run with a clear failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reclaim {
    /// Leak them, and all that their frames own.
    Never,
    /// Unwind killed groups, and what is left when the first task returns; leak what a failed run leaves, whose
    /// invariants may be broken.
    Clean,
    /// Unwind also after failures.
    Always,
}

/// What a run is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Decides everything.
    pub seed: u64,
    /// How tasks are run.
    pub backend: Backend,
    /// The run fails after this many points.
    pub max_steps: u64,
    /// The process aborts when no point is passed for this long in real time. None: never.
    pub watchdog: Option<Duration>,
    /// Size of a coroutine's stack in bytes.
    pub stack_bytes: usize,
    /// What happens to the stacks of tasks that will never run again.
    pub reclaim: Reclaim,
    /// Keep every decision, not only their digest.
    pub record_trace: bool,
}

impl SimConfig {
    /// The usual configuration with this seed: coroutines (threads under Miri, or where the environment says
    /// `SILT_SIM_BACKEND=threads`, as sanitizers need it, which do not follow a change of stacks), a million points,
    /// 30 s of watchdog, 256 KiB of stack.
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

/// Runs `f` as the first task of a simulated run. The run ends when it returns, whatever other tasks do.
///
/// # Panics
/// When the operating system refuses a thread or memory for a stack.
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

/// The run's own OS thread.
fn drive<T, F>(core: &Arc<Core>, f: F) -> SimOutcome<T>
where
    T: Send + 'static,
    F: FnOnce(Runtime) -> T + Send + 'static,
{
    let handle = Handle::new(core.clone());
    let runtime = Runtime::simulated(handle.clone());
    core.attach();
    let (first, _) = handle
        .spawn_at("main", Place::FirstTask, move || f(runtime))
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
        // The run is over, so this takes the value without waiting.
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

/// Waits for the run's end; aborts the process when it passes no point for too long.
fn watch(core: &Core, done: &Mutex<bool>, bell: &Condvar, died: impl Fn() -> bool) {
    let mut over = done.lock().unwrap_or_else(|e| e.into_inner());
    let Some(limit) = core.config.watchdog else {
        // A driver that panics (no memory for a stack) rings no bell; the join that follows waits for its end.
        return;
    };
    // Four looks: a run is given up after between 1 and 1.25 times the limit.
    let look = (limit / 4).max(Duration::from_millis(1));
    let mut last = (core.progress(), Duration::ZERO);
    while !*over && !died() {
        let (guard, timeout) = bell
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
