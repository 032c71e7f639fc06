//! The scheduler's state and decisions: tasks, locks, simulated time, the seed's numbers, and the
//! trace.
//!
//! This is plain data behind one std mutex (`Core::state`). It does not know how tasks are run, so
//! both back ends make the same decisions by construction. Every list is ordered by the events of
//! the run, never by addresses or hashes.

use std::panic::Location;

use xxhash_rust::xxh3::Xxh3;

use super::{Failure, GroupId, TaskReport};

/// The number of a task: its index in `State::tasks`.
pub(super) type TaskId = u32;

/// Stands for the OS thread that drives the run, where a task number is expected.
pub(super) const DRIVER: TaskId = u32::MAX;

/// The largest number of tasks in one run. The trace keeps 24 bits of a task's number.
pub(super) const MAX_TASKS: usize = 1 << 24;

/// Where another task may be scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Point {
    /// A storage call, or any other explicit yield.
    Yield = 1,
    /// Taking a runtime lock, or trying to.
    Lock = 2,
    /// Waiting for a lock that another task holds.
    LockWait = 3,
    /// Waiting on a condition variable.
    CondvarWait = 4,
    /// Sleeping.
    Sleep = 5,
    /// Waiting for the end of a task.
    Join = 6,
    /// The end of a task.
    Exit = 7,
    /// Not a point: a number that the program mixed into the trace.
    Note = 8,
    /// Not a point: simulated time advanced.
    Time = 9,
    /// Not a point: a group was killed.
    Kill = 10,
}

/// One decision of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceEvent {
    /// The task that ran.
    pub task: u32,
    /// The point that it reached.
    pub point: Point,
    /// The task that runs next. For a note the number, for a change of time the time (in ns), for a
    /// kill the group.
    pub value: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The task is in `State::runnable`.
    Runnable,
    /// The task waits for `Task::wait`.
    Blocked,
    /// The task returned, or was unwound to its end.
    Ended,
    /// The task was killed. Its stack still exists, and it never runs again, except to be unwound.
    Killed,
    /// The task was killed and is being unwound. Runtime calls in its destructors do not switch
    /// tasks.
    Unwinding,
    /// The task's stack is never reclaimed.
    Leaked,
}

/// What a blocked task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    Nothing,
    Lock {
        lock: u32,
        at: &'static Location<'static>,
    },
    Condvar {
        condvar: u32,
        made_at: &'static Location<'static>,
        at: &'static Location<'static>,
    },
    Sleep {
        at: &'static Location<'static>,
    },
    Join {
        task: TaskId,
        at: &'static Location<'static>,
    },
}

pub(super) struct Task {
    pub name: String,
    pub group: GroupId,
    pub phase: Phase,
    pub wait: Wait,
    /// The simulated time at which its wait ends.
    pub deadline_nanos: Option<u64>,
    /// Whether its last wait timed out.
    pub timed_out: bool,
    /// Whether it returned normally, so that its value was stored.
    pub returned: bool,
    weight: u32,
}

pub(super) struct Lock {
    pub holder: Option<TaskId>,
    pub made_at: &'static Location<'static>,
}

/// SplitMix64. It is small and good enough to choose tasks.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64, stream: u64) -> Rng {
        let mut rng = Rng(seed ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        rng.next();
        rng
    }
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// A number in `0..bound`, evenly distributed.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// What the seed draws once for each run. Runs differ in how often tasks alternate and in how
/// unequal they are: some races need a switch at nearly every point, others need one task to starve
/// for a thousand.
struct Rates {
    /// The probability of a scheduling decision at a storage call, in 1/2^32.
    at_yield: u64,
    /// The same for taking a lock.
    at_lock: u64,
    /// Task weights are 2^0 to 2^`weight_bits`.
    weight_bits: u64,
    /// The probability that a chosen task gets a new weight, in 1/2^32.
    reweigh: u64,
    /// The probability that a wait on a condition variable wakes spuriously, in 1/2^32. It is zero
    /// in most runs, because it also hides lost wake-ups.
    spurious: u64,
}

impl Rates {
    fn draw(rng: &mut Rng) -> Rates {
        /// A rate from 2^-7 to 1, evenly distributed over sixteenths of the exponent.
        fn rate(rng: &mut Rng) -> u64 {
            let exponent = rng.below(7 * 16 + 1) as f64 / 16.0;
            (2f64.powf(-exponent) * 4_294_967_296.0) as u64
        }
        Rates {
            at_yield: rate(rng),
            at_lock: rate(rng),
            weight_bits: [0, 0, 2, 4, 8, 12][rng.below(6) as usize],
            reweigh: [0, 1 << 32 >> 8, 1 << 32 >> 5][rng.below(3) as usize],
            spurious: if rng.below(4) == 0 { 1 << 32 >> 4 } else { 0 },
        }
    }
}

/// The counters of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Points that were passed: where another task could have been scheduled, was scheduled, or the
    /// task waited.
    pub steps: u64,
    /// The number of times that the running task changed.
    pub switches: u64,
    /// Tasks that were started, including the first one.
    pub tasks: u64,
    /// Tasks that were killed, or that had not ended when the first task returned.
    pub killed: u64,
    /// Tasks whose stacks were leaked, with everything that their frames own. Tasks that were left
    /// when a run failed count here or under `killed`, depending on [`super::Reclaim`].
    pub leaked: u64,
    /// The largest number of tasks alive at one time.
    pub peak_tasks: u64,
    by_point: [u64; Point::Kill as usize + 1],
}

impl Counters {
    /// The number of scheduling decisions at points of this kind.
    pub fn at(&self, point: Point) -> u64 {
        self.by_point[point as usize]
    }
}

pub(super) struct State {
    pub current: TaskId,
    pub tasks: Vec<Task>,
    /// Tasks that can run, in the order in which they became runnable.
    pub runnable: Vec<TaskId>,
    /// Tasks that wait. They have their own list because ended tasks stay in `tasks`.
    pub blocked: Vec<TaskId>,
    pub locks: Vec<Lock>,
    free_locks: Vec<u32>,
    /// Blocked tasks that wait for a lock. While it is 0, releasing a lock searches nothing.
    lock_waiters: u32,
    condvars: u32,
    pub groups: Vec<Group>,
    pub now_nanos: u64,
    pub unix_base_micros: u64,
    pub failure: Option<Failure>,
    /// The run has ended. Its remaining objects are used from outside.
    pub over: bool,
    pub counters: Counters,
    /// The tasks that continue when the task that is being unwound has ended, innermost last.
    pub unwinders: Vec<TaskId>,
    max_steps: u64,
    schedule: Rng,
    pub values: Rng,
    rates: Rates,
    trace: Trace,
}

pub(super) struct Group {
    pub alive: bool,
    /// Its first task. When that returns, the process exits.
    pub main: TaskId,
}

struct Trace {
    digest: Xxh3,
    pending: Vec<u8>,
    events: Option<Vec<TraceEvent>>,
}

impl Trace {
    fn push(&mut self, task: TaskId, point: Point, value: u64) {
        if self.pending.len() >= 1024 {
            self.digest.update(&self.pending);
            self.pending.clear();
        }
        let head = u32::from(point as u8) << 24 | (task & 0x00FF_FFFF);
        self.pending.extend_from_slice(&head.to_le_bytes());
        self.pending.extend_from_slice(&value.to_le_bytes());
        if let Some(events) = &mut self.events {
            events.push(TraceEvent { task, point, value });
        }
    }
}

impl State {
    pub(super) fn new(seed: u64, max_steps: u64, record: bool) -> State {
        let mut setup = Rng::new(seed, 1);
        State {
            current: DRIVER,
            tasks: Vec::new(),
            runnable: Vec::new(),
            blocked: Vec::new(),
            locks: Vec::new(),
            free_locks: Vec::new(),
            lock_waiters: 0,
            condvars: 0,
            groups: vec![Group {
                alive: true,
                main: 0,
            }],
            now_nanos: 0,
            // Some day between 2023 and 2033.
            unix_base_micros: 1_700_000_000_000_000 + setup.below(315_360_000_000_000),
            failure: None,
            over: false,
            counters: Counters::default(),
            unwinders: Vec::new(),
            max_steps,
            rates: Rates::draw(&mut setup),
            schedule: Rng::new(seed, 2),
            values: Rng::new(seed, 3),
            trace: Trace {
                digest: Xxh3::with_seed(seed),
                pending: Vec::new(),
                events: record.then(Vec::new),
            },
        }
    }

    pub(super) fn task(&mut self, id: TaskId) -> &mut Task {
        &mut self.tasks[id as usize]
    }

    pub(super) fn phase(&self, id: TaskId) -> Phase {
        self.tasks[id as usize].phase
    }

    /// Adds a runnable task.
    pub(super) fn add_task(&mut self, name: &str, group: GroupId) -> TaskId {
        assert!(
            self.tasks.len() < MAX_TASKS,
            "a simulated run started more than {MAX_TASKS} tasks"
        );
        let id = self.tasks.len() as TaskId;
        let weight = self.draw_weight();
        self.tasks.push(Task {
            name: name.into(),
            group,
            phase: Phase::Runnable,
            wait: Wait::Nothing,
            deadline_nanos: None,
            timed_out: false,
            returned: false,
            weight,
        });
        self.runnable.push(id);
        self.counters.tasks += 1;
        self.counters.peak_tasks = self
            .counters
            .peak_tasks
            .max((self.runnable.len() + self.blocked.len()) as u64);
        id
    }

    fn draw_weight(&mut self) -> u32 {
        1 << self.schedule.below(self.rates.weight_bits + 1)
    }

    pub(super) fn note(&mut self, task: TaskId, point: Point, value: u64) {
        self.counters.by_point[point as usize] += 1;
        self.trace.push(task, point, value);
    }

    pub(super) fn digest(&mut self) -> u64 {
        self.trace.digest.update(&self.trace.pending);
        self.trace.pending.clear();
        self.trace.digest.digest()
    }

    pub(super) fn take_events(&mut self) -> Option<Vec<TraceEvent>> {
        self.trace.events.take()
    }

    /// Counts a point. Returns false when the bound is exceeded.
    pub(super) fn step(&mut self) -> bool {
        self.counters.steps += 1;
        self.counters.steps <= self.max_steps
    }

    /// Decides which task runs after `me` reached a point at which it may continue.
    pub(super) fn decide(&mut self, me: TaskId, point: Point) -> TaskId {
        let rate = if point == Point::Yield {
            self.rates.at_yield
        } else {
            self.rates.at_lock
        };
        let next = if self.runnable.len() > 1 && self.chance(rate) {
            self.pick()
        } else {
            me
        };
        self.note(me, point, u64::from(next));
        next
    }

    /// Decides which task runs after `me` cannot continue, and advances time if necessary. `None`
    /// if no task will ever run.
    pub(super) fn decide_blocked(&mut self, me: TaskId, point: Point) -> Option<TaskId> {
        if self.runnable.is_empty() && !self.advance_time(me) {
            return None;
        }
        let next = self.pick();
        self.note(me, point, u64::from(next));
        Some(next)
    }

    fn chance(&mut self, rate: u64) -> bool {
        (self.schedule.next() >> 32) < rate
    }

    /// Draws one of the runnable tasks by weight.
    fn pick(&mut self) -> TaskId {
        let total: u64 = self
            .runnable
            .iter()
            .map(|&id| u64::from(self.tasks[id as usize].weight))
            .sum();
        let mut at = self.schedule.below(total);
        let mut chosen = self.runnable[0];
        for &id in &self.runnable {
            chosen = id;
            let weight = u64::from(self.tasks[id as usize].weight);
            if at < weight {
                break;
            }
            at -= weight;
        }
        if self.chance(self.rates.reweigh) {
            let weight = self.draw_weight();
            self.task(chosen).weight = weight;
        }
        chosen
    }

    /// Advances time to the next timer and wakes the tasks whose time has come. Returns false if
    /// there is no timer.
    fn advance_time(&mut self, me: TaskId) -> bool {
        let Some(next) = self
            .blocked
            .iter()
            .filter_map(|&id| self.tasks[id as usize].deadline_nanos)
            .min()
        else {
            return false;
        };
        self.now_nanos = self.now_nanos.max(next);
        let due: Vec<TaskId> = self
            .waiting(|task| task.deadline_nanos.is_some_and(|at| at <= next))
            .collect();
        self.note(me, Point::Time, self.now_nanos);
        for id in due {
            self.wake(id);
            self.task(id).timed_out = true;
        }
        true
    }

    /// Blocked tasks for which `test` holds, in the order in which they blocked.
    fn waiting(&self, test: impl Fn(&Task) -> bool) -> impl Iterator<Item = TaskId> {
        self.blocked
            .iter()
            .copied()
            .filter(move |&id| test(&self.tasks[id as usize]))
    }

    /// Removes `id` from the runnable tasks until its wait is over.
    pub(super) fn block(&mut self, id: TaskId, wait: Wait, deadline_nanos: Option<u64>) {
        self.runnable.retain(|&other| other != id);
        self.blocked.push(id);
        self.lock_waiters += u32::from(matches!(wait, Wait::Lock { .. }));
        let task = self.task(id);
        task.phase = Phase::Blocked;
        task.wait = wait;
        task.deadline_nanos = deadline_nanos;
        task.timed_out = false;
    }

    fn wake(&mut self, id: TaskId) {
        self.remove_blocked(id);
        self.task(id).phase = Phase::Runnable;
        self.runnable.push(id);
    }

    fn remove_blocked(&mut self, id: TaskId) {
        self.blocked.retain(|&other| other != id);
        let task = &mut self.tasks[id as usize];
        self.lock_waiters -= u32::from(matches!(task.wait, Wait::Lock { .. }));
        task.wait = Wait::Nothing;
        task.deadline_nanos = None;
    }

    fn wake_all(&mut self, test: impl Fn(&Task) -> bool) {
        let woken: Vec<TaskId> = self.waiting(test).collect();
        for id in woken {
            self.wake(id);
        }
    }

    /// Permanently removes a task from the schedule, with the phase `phase`, and wakes the tasks
    /// that join it.
    pub(super) fn retire(&mut self, id: TaskId, phase: Phase) {
        match self.phase(id) {
            Phase::Runnable => self.runnable.retain(|&other| other != id),
            Phase::Blocked => self.remove_blocked(id),
            Phase::Ended | Phase::Killed | Phase::Unwinding | Phase::Leaked => {}
        }
        self.task(id).phase = phase;
        if !self.blocked.is_empty() {
            self.wake_all(|task| matches!(task.wait, Wait::Join { task, .. } if task == id));
        }
    }

    /// Tasks that run or wait.
    pub(super) fn alive(&self) -> impl Iterator<Item = TaskId> {
        self.runnable.iter().chain(&self.blocked).copied()
    }

    pub(super) fn new_lock(&mut self, made_at: &'static Location<'static>) -> u32 {
        let lock = Lock {
            holder: None,
            made_at,
        };
        match self.free_locks.pop() {
            Some(id) => {
                self.locks[id as usize] = lock;
                id
            }
            None => {
                self.locks.push(lock);
                (self.locks.len() - 1) as u32
            }
        }
    }

    pub(super) fn free_lock(&mut self, lock: u32) {
        self.free_locks.push(lock);
    }

    pub(super) fn release_lock(&mut self, lock: u32) {
        self.locks[lock as usize].holder = None;
        if self.lock_waiters > 0 {
            self.wake_all(|task| matches!(task.wait, Wait::Lock { lock: l, .. } if l == lock));
        }
    }

    pub(super) fn new_condvar(&mut self) -> u32 {
        self.condvars += 1;
        self.condvars
    }

    /// Whether a wait that starts now wakes spuriously.
    pub(super) fn draw_spurious(&mut self) -> bool {
        self.rates.spurious != 0 && self.chance(self.rates.spurious)
    }

    pub(super) fn notify(&mut self, condvar: u32, all: bool) {
        if self.blocked.is_empty() {
            return;
        }
        let woken: Vec<TaskId> = self
            .waiting(|task| matches!(task.wait, Wait::Condvar { condvar: c, .. } if c == condvar))
            .collect();
        if all {
            for id in woken {
                self.wake(id);
            }
        } else if !woken.is_empty() {
            // std does not specify which waiter wakes either.
            let chosen = self.schedule.below(woken.len() as u64) as usize;
            self.wake(woken[chosen]);
        }
    }

    /// All unfinished tasks, for failure messages.
    pub(super) fn reports(&self) -> Vec<TaskReport> {
        let unfinished = |task: &&Task| task.phase != Phase::Ended;
        let report = |task: &Task| TaskReport {
            name: task.name.clone(),
            group: task.group,
            state: match task.phase {
                Phase::Runnable => "can run".into(),
                Phase::Blocked => self.describe(task),
                Phase::Ended => "has ended".into(),
                Phase::Killed | Phase::Unwinding | Phase::Leaked => "was killed".into(),
            },
        };
        self.tasks.iter().filter(unfinished).map(report).collect()
    }

    fn describe(&self, task: &Task) -> String {
        let until = match task.deadline_nanos {
            Some(nanos) => format!(" until {nanos} ns"),
            None => String::new(),
        };
        match task.wait {
            Wait::Nothing => "waits for nothing".into(),
            Wait::Lock { lock, at } => {
                let Lock { holder, made_at } = &self.locks[lock as usize];
                let holder = match holder {
                    Some(id) => {
                        let holder = &self.tasks[*id as usize];
                        let what = match holder.phase {
                            Phase::Runnable | Phase::Blocked => "",
                            Phase::Ended => ", which has ended",
                            Phase::Killed | Phase::Unwinding | Phase::Leaked => {
                                ", which was killed"
                            }
                        };
                        format!("held by task {id} `{}`{what}", holder.name)
                    }
                    None => "free".into(),
                };
                format!("at {at} waits for the mutex made at {made_at}, {holder}")
            }
            Wait::Condvar { made_at, at, .. } => {
                format!(
                    "at {at} waits for a notification of the condition variable made at \
                     {made_at}{until}"
                )
            }
            Wait::Sleep { at } => format!("at {at} sleeps{until}"),
            Wait::Join { task, at } => {
                format!(
                    "at {at} waits for the end of task {task} `{}`",
                    self.tasks[task as usize].name
                )
            }
        }
    }
}
