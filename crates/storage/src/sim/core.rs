//! The scheduler, which carries out the calls of the simulated runtime for both back ends.
//!
//! Invariants:
//! - Only the task in `State::current` runs. It changes `current` and then calls `switch`, which
//!   returns when `current` is this task again.
//! - No std lock of this module is held while a task's own code runs.
//! - No task is switched out while its OS thread unwinds: std counts panics per OS thread, so
//!   another coroutine would appear to be panicking. Calls in destructors therefore either need no
//!   wait, or end the run.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex, MutexGuard as StdMutexGuard, Once};
use std::thread::panicking;
use std::time::Duration;

use super::state::{DRIVER, Phase, Point, State, TaskId, Wait};
use super::threads::Baton;
use super::{Backend, Failure, GroupId, Killed, Reclaim, SimConfig, coroutine};
use crate::runtime::saturating_nanos;

/// The payload that unwinds a killed task from the point where it was killed.
struct Abandoned;

#[derive(Clone, Copy)]
struct CurrentRun {
    /// The number of the run whose task this OS thread runs, or 0 if there is none.
    run: u64,
    seed: u64,
}

/// What the panic hook saw. A panic's payload does not contain its location.
#[derive(Clone)]
struct PanicNote {
    message: String,
    location: Option<String>,
    backtrace: Option<String>,
}

thread_local! {
    static CURRENT_RUN: Cell<CurrentRun> = const { Cell::new(CurrentRun { run: 0, seed: 0 }) };
    static LAST_PANIC: RefCell<Option<PanicNote>> = const { RefCell::new(None) };
}

/// The number of the next run in this process.
static RUNS: AtomicU64 = AtomicU64::new(1);

type Guard<'a> = StdMutexGuard<'a, State>;

/// One run.
pub(super) struct Core {
    run: u64,
    pub(super) config: SimConfig,
    state: StdMutex<State>,
    baton: Baton,
    /// The number of points so far, for the watchdog, which must not take the state's lock.
    progress: AtomicU64,
}

impl Core {
    pub(super) fn new(config: SimConfig) -> Arc<Core> {
        install_panic_hook();
        Arc::new(Core {
            run: RUNS.fetch_add(1, Ordering::Relaxed),
            state: StdMutex::new(State::new(
                config.seed,
                config.max_steps,
                config.record_trace,
            )),
            baton: Baton::default(),
            progress: AtomicU64::new(0),
            config,
        })
    }

    pub(super) fn state(&self) -> Guard<'_> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// The state and the calling task. There is no task if the run is over and its objects are used
    /// from outside.
    pub(super) fn enter(&self) -> (Guard<'_>, Option<TaskId>) {
        let state = self.state();
        if state.over {
            return (state, None);
        }
        if CURRENT_RUN.get().run != self.run {
            drop(state);
            panic!(
                "the simulated runtime of seed {} is used from an OS thread that is not a task of \
                 its run; start tasks with Runtime::spawn",
                self.config.seed
            );
        }
        let me = (state.current != DRIVER).then_some(state.current);
        (state, me)
    }

    /// As `enter`, for calls that only a task can make.
    fn enter_task(&self, what: &str) -> (Guard<'_>, TaskId) {
        let (state, me) = self.enter();
        match me {
            Some(me) => (state, me),
            None => {
                drop(state);
                panic!(
                    "{what} after the end of the simulated run of seed {}",
                    self.config.seed
                )
            }
        }
    }

    /// Lets the task `State::current` run, and returns when that is `me` again.
    fn switch<'a>(&'a self, state: Guard<'a>, me: TaskId) -> Guard<'a> {
        match self.config.backend {
            Backend::Coroutines => {
                drop(state);
                coroutine::suspend(me);
                self.state()
            }
            Backend::Threads => {
                self.baton.pass(&state);
                self.baton.wait(state, me)
            }
        }
    }

    /// Lets `next` run. Unwinds this task if it was killed meanwhile.
    fn yield_to<'a>(&'a self, mut state: Guard<'a>, me: TaskId, next: TaskId) -> Guard<'a> {
        if next == me {
            return state;
        }
        state.current = next;
        state.counters.switches += 1;
        let state = self.switch(state, me);
        if state.phase(me) == Phase::Unwinding {
            drop(state);
            raise();
        }
        state
    }

    /// Ends the run with `failure`. The calling task never continues, except to be unwound.
    fn fail<'a>(&'a self, mut state: Guard<'a>, me: TaskId, failure: Failure) -> ! {
        state.failure.get_or_insert(failure);
        if panicking() {
            // This task is already unwinding, and can neither continue nor be unwound again.
            state.retire(me, Phase::Leaked);
        }
        state.current = DRIVER;
        drop(self.switch(state, me));
        raise()
    }

    /// Ends the run because a destructor would have to wait while its OS thread unwinds.
    #[cold]
    fn fail_in_destructor<'a>(&'a self, state: Guard<'a>, me: TaskId, what: String) -> ! {
        let task = state.tasks[me as usize].name.clone();
        let failure = match LAST_PANIC.take() {
            Some(note) if state.phase(me) != Phase::Unwinding => panic_failure(task, note),
            _ => Failure::Panic {
                message: format!(
                    "a destructor of the killed task `{task}` {what}, which cannot be granted \
                     while it is unwound; make destructors wait for nothing, or run with \
                     Reclaim::Never"
                ),
                task,
                location: None,
                backtrace: None,
            },
        };
        self.fail(state, me, failure)
    }

    fn count_step<'a>(&'a self, mut state: Guard<'a>, me: TaskId) -> Guard<'a> {
        let within = state.step();
        self.progress.store(state.counters.steps, Ordering::Relaxed);
        if !within {
            let failure = Failure::Steps {
                limit: self.config.max_steps,
                tasks: state.reports(),
            };
            self.fail(state, me, failure);
        }
        state
    }

    /// A point at which `me` may continue or another task may run.
    fn point<'a>(&'a self, state: Guard<'a>, me: TaskId, point: Point) -> Guard<'a> {
        if panicking() {
            return state;
        }
        if state.phase(me) == Phase::Unwinding {
            // The task caught the unwinding that was to end it.
            drop(state);
            raise();
        }
        let mut state = self.count_step(state, me);
        let next = state.decide(me, point);
        self.yield_to(state, me, next)
    }

    /// A point at which `me` cannot continue before `wait` is over.
    fn block<'a>(
        &'a self,
        state: Guard<'a>,
        me: TaskId,
        point: Point,
        wait: Wait,
        deadline_nanos: Option<u64>,
    ) -> Guard<'a> {
        let mut state = self.count_step(state, me);
        state.block(me, wait, deadline_nanos);
        match state.decide_blocked(me, point) {
            Some(next) => self.yield_to(state, me, next),
            None => {
                let failure = Failure::Deadlock {
                    tasks: state.reports(),
                };
                self.fail(state, me, failure)
            }
        }
    }

    pub(super) fn yield_point(&self) {
        if let (state, Some(me)) = self.enter() {
            drop(self.point(state, me, Point::Yield));
        }
    }

    pub(super) fn note(&self, value: u64) {
        if let (mut state, Some(me)) = self.enter() {
            state.note(me, Point::Note, value);
        }
    }

    pub(super) fn sleep(&self, duration: Duration, at: &'static Location<'static>) {
        let (state, me) = self.enter_task("a sleep");
        if panicking() {
            return;
        }
        if duration.is_zero() {
            drop(self.point(state, me, Point::Yield));
            return;
        }
        if state.phase(me) == Phase::Unwinding {
            drop(state);
            raise();
        }
        let deadline = state.now_nanos.saturating_add(saturating_nanos(duration));
        drop(self.block(state, me, Point::Sleep, Wait::Sleep { at }, Some(deadline)));
    }

    pub(super) fn acquire(&self, lock: u32, at: &'static Location<'static>) {
        let (mut state, me) = self.enter();
        let Some(me) = me else {
            assert!(
                state.locks[lock as usize].holder.is_none(),
                "a lock that a task of the simulated run of seed {} held at its end",
                self.config.seed
            );
            return;
        };
        state = self.point(state, me, Point::Lock);
        loop {
            let Some(holder) = state.locks[lock as usize].holder else {
                state.locks[lock as usize].holder = Some(me);
                return;
            };
            if panicking() || state.phase(me) == Phase::Unwinding {
                state = if state.phase(holder) == Phase::Killed
                    && state.phase(me) == Phase::Unwinding
                {
                    self.unwind(state, me, holder)
                } else {
                    self.fail_in_destructor(state, me, format!("asks for a held lock at {at}"))
                };
                continue;
            }
            state = self.block(state, me, Point::LockWait, Wait::Lock { lock, at }, None);
        }
    }

    pub(super) fn try_acquire(&self, lock: u32) -> bool {
        let (mut state, me) = self.enter();
        let Some(me) = me else {
            return state.locks[lock as usize].holder.is_none();
        };
        state = self.point(state, me, Point::Lock);
        let free = state.locks[lock as usize].holder.is_none();
        if free {
            state.locks[lock as usize].holder = Some(me);
        }
        free
    }

    pub(super) fn wait(
        &self,
        condvar: u32,
        made_at: &'static Location<'static>,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> bool {
        let (mut state, me) = self.enter_task("a wait");
        if panicking() {
            self.fail_in_destructor(state, me, format!("waits at {at}"));
        }
        if state.phase(me) == Phase::Unwinding {
            drop(state);
            raise();
        }
        if timeout.is_some_and(|t| t.is_zero()) {
            drop(self.point(state, me, Point::CondvarWait));
            return true;
        }
        if state.draw_spurious() {
            drop(self.point(state, me, Point::CondvarWait));
            return false;
        }
        let deadline = timeout.map(|t| state.now_nanos.saturating_add(saturating_nanos(t)));
        state = self.block(
            state,
            me,
            Point::CondvarWait,
            Wait::Condvar {
                condvar,
                made_at,
                at,
            },
            deadline,
        );
        state.tasks[me as usize].timed_out
    }

    /// Waits for the end of `target`. Returns false if it was killed.
    pub(super) fn join(&self, target: TaskId, at: &'static Location<'static>) -> bool {
        let (mut state, me) = self.enter();
        loop {
            match state.phase(target) {
                Phase::Ended => return state.tasks[target as usize].returned,
                Phase::Runnable | Phase::Blocked => {}
                Phase::Killed if me.is_some_and(|me| state.phase(me) == Phase::Unwinding) => {
                    // Code after the join may rely on the task's end, in destructors too.
                    state = self.unwind(state, me.unwrap_or(DRIVER), target);
                    continue;
                }
                Phase::Killed | Phase::Unwinding | Phase::Leaked => return false,
            }
            let Some(me) = me else { return false };
            if panicking() {
                self.fail_in_destructor(state, me, format!("joins a running task at {at}"));
            }
            if state.phase(me) == Phase::Unwinding {
                drop(state);
                raise();
            }
            state = self.block(
                state,
                me,
                Point::Join,
                Wait::Join { task: target, at },
                None,
            );
        }
    }

    /// Starts a task in the group that `spawn_group` says.
    pub(super) fn spawn(
        self: &Arc<Self>,
        name: &str,
        spawn_group: SpawnGroup,
        entry: Box<dyn FnOnce() + Send>,
    ) -> std::io::Result<(TaskId, GroupId)> {
        let (mut state, me) = self.enter();
        let starts_run = spawn_group == SpawnGroup::FirstTask;
        if !starts_run && (me.is_none_or(|me| state.phase(me) == Phase::Unwinding) || panicking()) {
            return Err(std::io::Error::other(
                "a task that is being unwound, or a run that is over, starts no task",
            ));
        }
        let group = match (spawn_group, me) {
            (SpawnGroup::SameGroup, Some(me)) => state.tasks[me as usize].group,
            (SpawnGroup::NewGroup, _) => GroupId(state.groups.len() as u32),
            (SpawnGroup::FirstTask, _) | (SpawnGroup::SameGroup, None) => GroupId(0),
        };
        let id = state.tasks.len() as TaskId;
        let core = self.clone();
        match self.config.backend {
            Backend::Coroutines => {
                let stack_bytes = self.config.stack_bytes;
                coroutine::create(id, stack_bytes, Box::new(move || core.task_main(id, entry)))?;
            }
            Backend::Threads => {
                let body = move || {
                    CURRENT_RUN.set(CurrentRun {
                        run: core.run,
                        seed: core.config.seed,
                    });
                    drop(core.baton.wait(core.state(), id));
                    core.task_main(id, entry);
                };
                self.baton.create(id, name, Box::new(body))?;
            }
        }
        if spawn_group == SpawnGroup::NewGroup {
            state.groups.push(super::state::Group {
                alive: true,
                main: id,
            });
        }
        let added = state.add_task(name, group);
        debug_assert_eq!(added, id);
        Ok((id, group))
    }

    /// The whole life of a task, on its own stack.
    fn task_main(&self, me: TaskId, entry: Box<dyn FnOnce() + Send>) {
        let killed_before_start = self.state().phase(me) == Phase::Unwinding;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if killed_before_start {
                drop(entry)
            } else {
                entry()
            }
        }));
        let mut state = self.state();
        if state.phase(me) == Phase::Unwinding {
            // It was killed. Its process is dead, so it does not matter whether destructors
            // panicked or the task caught the unwinding and returned.
            state.retire(me, Phase::Ended);
            if state.unwinders.is_empty() {
                // It killed its own process and was unwound first, because the destructors of the
                // other tasks may join it.
                let group = state.tasks[me as usize].group;
                state = self.unwind_members(state, me, group);
            }
            return match state.unwinders.pop() {
                Some(unwinder) => {
                    state.current = unwinder;
                    self.leave(state);
                }
                None => self.leave_to_next(state, me),
            };
        }
        if let Err(payload) = outcome {
            let failure = panic_failure(
                state.tasks[me as usize].name.clone(),
                note_of(payload.as_ref()),
            );
            state.failure.get_or_insert(failure);
            state.retire(me, Phase::Ended);
            state.current = DRIVER;
            drop(state);
            // A payload whose destructor panics must not end the run.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(payload)));
            return self.leave(self.state());
        }
        state.tasks[me as usize].returned = true;
        state.retire(me, Phase::Ended);
        let group = state.tasks[me as usize].group;
        let process = &state.groups[group.0 as usize];
        if group != GroupId(0) && process.main == me && process.alive {
            // The first task of a process returned, which ends the process.
            self.kill_members(&mut state, me, group);
            state = self.unwind_members(state, me, group);
        }
        if me == 0 {
            state.current = DRIVER;
            return self.leave(state);
        }
        self.leave_to_next(state, me);
    }

    fn leave_to_next(&self, mut state: Guard<'_>, me: TaskId) {
        state.counters.steps += 1;
        state.counters.switches += 1;
        state.current = match state.decide_blocked(me, Point::Exit) {
            Some(next) => next,
            None => {
                let failure = Failure::Deadlock {
                    tasks: state.reports(),
                };
                state.failure.get_or_insert(failure);
                DRIVER
            }
        };
        self.leave(state);
    }

    /// The last action of a task. A coroutine just returns to whatever resumed it.
    fn leave(&self, state: Guard<'_>) {
        if self.config.backend == Backend::Threads {
            self.baton.pass(&state);
        }
    }

    pub(super) fn group_of_caller(&self) -> GroupId {
        match self.enter() {
            (state, Some(me)) => state.tasks[me as usize].group,
            (_, None) => GroupId(0),
        }
    }

    pub(super) fn is_group_alive(&self, group: GroupId) -> bool {
        self.enter().0.groups[group.0 as usize].alive
    }

    /// Kills a group. If it is the caller's own group, this does not return.
    pub(super) fn kill(&self, group: GroupId) {
        let (mut state, me) = self.enter_task("a kill");
        assert!(
            group != GroupId(0),
            "the group of the run's first task cannot be killed; end the run instead"
        );
        if !state.groups[group.0 as usize].alive {
            return;
        }
        let own = state.tasks[me as usize].group == group;
        self.kill_members(&mut state, me, group);
        if !own || state.phase(me) == Phase::Unwinding {
            drop(self.unwind_members(state, me, group));
            return;
        }
        state.counters.killed += 1;
        if panicking() {
            state.retire(me, Phase::Leaked);
        } else if self.config.reclaim == Reclaim::Never {
            state.retire(me, Phase::Killed);
        } else {
            state.retire(me, Phase::Unwinding);
            drop(state);
            raise();
        }
        match state.decide_blocked(me, Point::Exit) {
            Some(next) => drop(self.yield_to(state, me, next)),
            None => {
                let failure = Failure::Deadlock {
                    tasks: state.reports(),
                };
                self.fail(state, me, failure)
            }
        }
        unreachable!("a killed task is never scheduled");
    }

    /// Permanently removes all tasks of `group` except `me` from the schedule.
    fn kill_members(&self, state: &mut State, me: TaskId, group: GroupId) {
        state.groups[group.0 as usize].alive = false;
        state.note(me, Point::Kill, u64::from(group.0));
        let mut members: Vec<TaskId> = state
            .alive()
            .filter(|&id| id != me && state.tasks[id as usize].group == group)
            .collect();
        members.sort_unstable();
        for id in members {
            state.retire(id, Phase::Killed);
            state.counters.killed += 1;
        }
    }

    /// Reclaims the stacks of a killed group, if the configuration says so.
    fn unwind_members<'a>(&'a self, mut state: Guard<'a>, me: TaskId, group: GroupId) -> Guard<'a> {
        if self.config.reclaim != Reclaim::Never && !panicking() {
            for id in 0..state.tasks.len() as TaskId {
                if state.tasks[id as usize].group == group {
                    state = self.unwind(state, me, id);
                }
            }
        }
        state
    }

    /// Unwinds a killed task to its end, on its own stack, while `me` waits.
    fn unwind<'a>(&'a self, mut state: Guard<'a>, me: TaskId, victim: TaskId) -> Guard<'a> {
        if state.phase(victim) != Phase::Killed {
            return state;
        }
        state.task(victim).phase = Phase::Unwinding;
        state.unwinders.push(me);
        state.current = victim;
        state = match self.config.backend {
            Backend::Coroutines => {
                drop(state);
                coroutine::resume(victim);
                self.state()
            }
            Backend::Threads => {
                self.baton.pass(&state);
                // After a failure the driver keeps the baton permanently.
                self.baton.wait(state, me)
            }
        };
        if state.current != me {
            // The unwinding failed and ended the run. Control returns to the driver through all
            // nested unwindings.
            state.task(me).phase = Phase::Leaked;
            drop(self.switch(state, me));
            unreachable!("after a failed unwinding every other task stays where it is");
        }
        state
    }

    pub(super) fn has_ended(&self, task: TaskId) -> bool {
        !matches!(self.enter().0.phase(task), Phase::Runnable | Phase::Blocked)
    }

    /// Prints what the watchdog knows, and aborts the process.
    pub(super) fn abort(&self, limit: Duration) -> ! {
        // A task that blocks outside the runtime does not hold the state. If the state is locked
        // nevertheless, the seed matters more than the task's name.
        let who = match self.state.try_lock() {
            Ok(state) => match state.tasks.get(state.current as usize) {
                Some(task) => format!("task {} `{}`", state.current, task.name),
                None => "the driver".into(),
            },
            Err(_) => "a task".into(),
        };
        eprintln!(
            "simulation seed {}: {who} has reached no point for {limit:?} after {} points: it \
             blocks outside the runtime (a foreign lock held across a point, a channel, a thread) \
             or computes without end; aborting",
            self.config.seed,
            self.progress()
        );
        std::process::abort()
    }

    /// Makes the calling OS thread the run's driver.
    pub(super) fn attach(&self) {
        CURRENT_RUN.set(CurrentRun {
            run: self.run,
            seed: self.config.seed,
        });
    }

    /// Runs the tasks until the first one returns or the run fails. The calling OS thread is the
    /// driver.
    pub(super) fn drive(&self) {
        let mut state = self.state();
        state.current = 0;
        state.note(0, Point::Exit, 0);
        match self.config.backend {
            Backend::Coroutines => {
                while state.current != DRIVER {
                    let next = state.current;
                    drop(state);
                    coroutine::resume(next);
                    state = self.state();
                }
            }
            Backend::Threads => {
                self.baton.pass(&state);
                state = self.baton.wait(state, DRIVER);
            }
        }
        drop(state);
    }

    /// Ends the remaining tasks and the run. Called after `drive`.
    pub(super) fn reclaim(&self) {
        let mut state = self.state();
        let mut unfinished: Vec<TaskId> = state.alive().collect();
        unfinished.sort_unstable();
        for &id in &unfinished {
            state.retire(id, Phase::Killed);
            state.counters.killed += 1;
        }
        // A task that is stuck in the middle of unwinding keeps std's count of panics on this OS
        // thread raised, and others may be nested in it. Nothing more is unwound then.
        let stuck = state
            .tasks
            .iter()
            .any(|task| matches!(task.phase, Phase::Leaked | Phase::Unwinding));
        let wanted = match self.config.reclaim {
            Reclaim::Never => false,
            Reclaim::Clean => state.failure.is_none(),
            Reclaim::Always => true,
        };
        if wanted && !stuck {
            for id in 0..state.tasks.len() as TaskId {
                state = self.unwind_from_driver(state, id);
                if state.failure.is_some()
                    && state.phase(id) != Phase::Ended
                    && state.phase(id) != Phase::Killed
                {
                    break;
                }
            }
        }
        state.counters.leaked = state
            .tasks
            .iter()
            .filter(|task| task.phase != Phase::Ended)
            .count() as u64;
        state.over = true;
        let ended: Vec<bool> = state
            .tasks
            .iter()
            .map(|task| task.phase == Phase::Ended)
            .collect();
        drop(state);
        match self.config.backend {
            Backend::Coroutines => coroutine::forget_all(),
            Backend::Threads => self.baton.join(&ended),
        }
        CURRENT_RUN.set(CurrentRun { run: 0, seed: 0 });
    }

    fn unwind_from_driver<'a>(&'a self, state: Guard<'a>, victim: TaskId) -> Guard<'a> {
        // The driver always gets control back, even after a failure, which makes it `current`.
        self.unwind(state, DRIVER, victim)
    }
}

/// The group in which a new task runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpawnGroup {
    FirstTask,
    SameGroup,
    NewGroup,
}

/// Unwinds the running task, which was killed.
fn raise() -> ! {
    resume_unwind(Box::new(Abandoned))
}

/// The payload that a join returns for a killed task.
pub(super) fn killed_payload() -> Box<dyn Any + Send> {
    Box::new(Killed)
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    let borrowed = payload.downcast_ref::<&str>().map(|s| (*s).to_string());
    let text = borrowed.or_else(|| payload.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "(the payload is not text)".into())
}

fn note_of(payload: &(dyn Any + Send)) -> PanicNote {
    let message = text_of(payload);
    match LAST_PANIC.take() {
        Some(note) if note.message == message => note,
        // Another panic was caught earlier. This one did not run the hook (`resume_unwind`).
        _ => PanicNote {
            message,
            location: None,
            backtrace: None,
        },
    }
}

fn panic_failure(task: String, note: PanicNote) -> Failure {
    Failure::Panic {
        task,
        message: note.message,
        location: note.location,
        backtrace: note.backtrace,
    }
}

/// Installs a panic hook in front of the present one. On threads of a run, it records message and
/// location and prints one line with the seed, which is the only trace if a destructor's panic
/// aborts the process.
fn install_panic_hook() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let current = CURRENT_RUN.get();
            if current.run == 0 {
                previous(info)
            } else {
                note_panic(info, current.seed)
            }
        }));
    });
}

fn note_panic(info: &PanicHookInfo<'_>, seed: u64) {
    use std::backtrace::{Backtrace, BacktraceStatus};
    let message = text_of(info.payload());
    let location = info.location().map(ToString::to_string);
    eprintln!(
        "simulation seed {seed}: panic at {}: {message}",
        location.as_deref().unwrap_or("an unknown location")
    );
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    LAST_PANIC.set(Some(PanicNote {
        message,
        location,
        backtrace,
    }));
}
