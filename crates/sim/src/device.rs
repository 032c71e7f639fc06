//! An executor with slots whose jobs take time, for tests of how a side is chosen.
//!
//! [`Device`] runs jobs as the host does, after it has slept for the time that its plan says. A
//! test decides its slots, its state, the jobs that it accepts, its speed and how each of its next
//! jobs ends ([`Ending`]), and may change all of these while jobs run. In the random trials a
//! device has a [`Behaviour`] and decides most of them by itself, from its own random numbers. It
//! records the jobs that it ran and the coverage that it reached.
//!
//! Threading: shared; one mutex of std, which is never held where tasks can be switched.

mod behaviour;
mod endings;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use siltstone_storage::{Instant, Runtime};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Handover, Side,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use crate::coverage::Coverage;
pub use behaviour::Behaviour;
use endings::Given;
pub use endings::{Ending, Hang, Late, WrongField};

/// The settings of a device.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of jobs that the device runs at once.
    pub slots: usize,
    /// The number of subjobs of a job that the device runs at once.
    pub parallelism: usize,
    /// Whether the device can be given jobs.
    pub state: ExecutorState,
    /// The minimum time of each job.
    pub job_time: Duration,
    /// The additional time of a job for each byte of its input tables.
    pub ns_per_byte: u64,
    /// Whether the device's reads and writes count against the host's rate
    /// (`background_bytes_per_s`). They do not if its tables are on the device's side.
    pub is_rate_limited: bool,
    /// Whether the device accepts flushes.
    pub takes_flushes: bool,
    /// The maximum bytes of input tables of a job that the device accepts.
    pub bytes_max: u64,
    /// The endings of the next jobs, in order. Later jobs succeed.
    pub endings: VecDeque<Ending>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            slots: 1,
            parallelism: 1,
            state: ExecutorState::Ready,
            job_time: Duration::ZERO,
            ns_per_byte: 0,
            is_rate_limited: true,
            takes_flushes: true,
            bytes_max: u64::MAX,
            endings: VecDeque::new(),
        }
    }
}

/// The course of one job on a device.
#[derive(Clone, Debug)]
struct Fate {
    time: Duration,
    ending: Ending,
    /// The number of subjobs at once. `None` for the number in the job's context.
    tasks: Option<usize>,
    /// Whether the device uses the tables that attempts on other machines left, and leaves tables
    /// to them.
    adopts: bool,
}

/// A job that a device was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Whether the job was a flush.
    pub is_flush: bool,
    /// Bytes of input tables.
    pub bytes: u64,
    /// The number of parts between hard cuts.
    pub subjob_count: usize,
    /// When the device was given the job.
    pub begin: Instant,
    /// When the job returned, if it has.
    pub end: Option<Instant>,
    /// The keyspace whose job it was.
    pub keyspace: u32,
    /// The prefix of the names of its tables.
    pub prefix: String,
    /// Whether the job may leave tables that no outcome names.
    pub may_leave_orphans: bool,
    /// Whether the job was made to hang, or to ignore that it is cancelled.
    pub may_be_abandoned: bool,
}

struct State {
    plan: Plan,
    /// The behaviour of a device that decides by itself.
    behaviour: Option<Behaviour>,
    ran: Vec<Ran>,
    /// How many times the device was asked whether it accepts a job.
    asked_count: u64,
    running: usize,
    most_running: usize,
    /// Jobs, and tasks that jobs left behind, that hang or ignore that they are cancelled.
    hung: usize,
    reached: Coverage,
    /// Handovers in which the device left tables, with the number of tables adopted from them
    /// before.
    left: Vec<(Arc<Handover>, u64)>,
    /// The number of jobs in a row that failed.
    troubles: u32,
}

/// See the module.
#[derive(Clone)]
pub struct Device {
    name: String,
    runtime: Runtime,
    state: Arc<Mutex<State>>,
}

/// Bytes of a job's input tables.
fn table_bytes(job: &Job) -> u64 {
    job.inputs.iter().map(|input| input.len_bytes).sum()
}

fn is_flush(job: &Job) -> bool {
    job.inputs.iter().any(|i| i.kind == InputKind::Stream)
}

impl Device {
    /// A device with a name for statistics.
    pub fn new(runtime: &Runtime, name: &str, plan: Plan) -> Arc<Device> {
        Arc::new(Device::with(runtime, name, plan, None))
    }

    /// A device that decides by itself how each of its jobs ends.
    pub fn with_behaviour(
        runtime: &Runtime,
        name: &str,
        plan: Plan,
        behaviour: Behaviour,
    ) -> Arc<Device> {
        Arc::new(Device::with(runtime, name, plan, Some(behaviour)))
    }

    fn with(runtime: &Runtime, name: &str, plan: Plan, behaviour: Option<Behaviour>) -> Device {
        Device {
            name: name.to_string(),
            runtime: runtime.clone(),
            state: Arc::new(Mutex::new(State {
                plan,
                behaviour,
                ran: Vec::new(),
                asked_count: 0,
                running: 0,
                most_running: 0,
                hung: 0,
                reached: Coverage::default(),
                left: Vec::new(),
                troubles: 0,
            })),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the device's plan for later jobs.
    pub fn change(&self, change: impl FnOnce(&mut Plan)) {
        change(&mut self.lock().plan);
    }

    /// The jobs that the device was given, in order.
    pub fn ran(&self) -> Vec<Ran> {
        self.lock().ran.clone()
    }

    /// How many times the device was asked whether it accepts a job.
    pub fn asked_count(&self) -> u64 {
        self.lock().asked_count
    }

    /// The number of jobs that the device has now.
    pub fn running(&self) -> usize {
        self.lock().running
    }

    /// The maximum number of jobs that the device had at once.
    pub fn most_running(&self) -> usize {
        self.lock().most_running
    }

    /// The number of present jobs that hang or ignore that they are cancelled, and of tasks that
    /// jobs left behind.
    pub fn hung(&self) -> usize {
        self.lock().hung
    }

    /// The coverage since the last call.
    pub fn take_reached(&self) -> Coverage {
        let mut state = self.lock();
        let (left, mut reached) = (
            std::mem::take(&mut state.left),
            std::mem::take(&mut state.reached),
        );
        drop(state);
        let is_adopted =
            |(handover, before): &(Arc<Handover>, u64)| handover.adopted_count() > *before;
        let count = left.iter().filter(|left| is_adopted(left)).count();
        if count > 0 {
            reached.add_count("elsewhere.handover_adopted", count as u64);
        }
        reached
    }
}

impl Executor for Device {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        let mut state = self.lock();
        state.asked_count += 1;
        if is_flush(job) && !state.plan.takes_flushes {
            return Err("the device takes no flushes".into());
        }
        if table_bytes(job) > state.plan.bytes_max {
            return Err(format!("the job is larger than {}", state.plan.bytes_max));
        }
        if state.behaviour.as_mut().is_some_and(Behaviour::refuses) {
            state.reached.add("elsewhere.not_accepted");
            return Err("the device has no mind to".into());
        }
        CpuExecutor::new().accepts(job)
    }

    fn slots(&self) -> usize {
        self.lock().plan.slots
    }

    fn parallelism(&self) -> usize {
        self.lock().plan.parallelism
    }

    fn state(&self) -> ExecutorState {
        let (now, mut state) = (self.runtime.now(), self.lock());
        let State {
            plan,
            behaviour,
            reached,
            ..
        } = &mut *state;
        if let Some(changed) = behaviour
            .as_mut()
            .and_then(|behaviour| behaviour.state(now))
        {
            plan.state = changed;
            reached.add(match &plan.state {
                ExecutorState::Ready => "elsewhere.ready_again",
                ExecutorState::Starting(_) => "elsewhere.starting",
                ExecutorState::Down(_) => "elsewhere.down",
            });
        }
        plan.state.clone()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let (at, fate) = self.begin(job);
        let is_rate_limited = self.lock().plan.is_rate_limited;
        let ctx = &ExecContext {
            throttle: ctx.throttle.clone().filter(|_| is_rate_limited),
            ..ctx.clone()
        };
        let given = Given {
            device: self,
            job,
            ctx,
        };
        let result = given.run(&fate);
        let mut state = self.lock();
        state.running -= 1;
        state.ran[at].end = Some(self.runtime.now());
        state.note(fate.ending, &result);
        result
    }
}

impl Device {
    /// Counts a job that the device was given. Returns its number and its course.
    fn begin(&self, job: &Job) -> (usize, Fate) {
        let mut state = self.lock();
        state.running += 1;
        state.most_running = state.most_running.max(state.running);
        let State {
            plan, behaviour, ..
        } = &mut *state;
        // The slot of an abandoned job must not be given out again.
        let slots = plan.slots;
        let fate = match behaviour {
            Some(behaviour) => behaviour.fate(),
            None => {
                let ns = table_bytes(job).saturating_mul(plan.ns_per_byte);
                Fate {
                    time: plan.job_time + Duration::from_nanos(ns),
                    ending: plan.endings.pop_front().unwrap_or(Ending::Done),
                    tasks: None,
                    adopts: false,
                }
            }
        };
        if state.behaviour.is_some() {
            assert!(
                state.running <= slots,
                "{} has {slots} slots and {} jobs",
                self.name,
                state.running
            );
            if state.hung > 0 {
                state.reached.add("elsewhere.given_beside_a_hung_job");
            }
            if state.troubles >= 3 {
                state.reached.add("elsewhere.given_again_after_troubles");
            }
        }
        state.ran.push(Ran {
            is_flush: is_flush(job),
            bytes: table_bytes(job),
            subjob_count: job.subjobs(),
            begin: self.runtime.now(),
            end: None,
            keyspace: job.keyspace,
            prefix: format!("{}-", job.output.text()),
            may_leave_orphans: fate.ending.may_leave_orphans(),
            may_be_abandoned: fate.ending.may_be_abandoned(),
        });
        (state.ran.len() - 1, fate)
    }
}

#[cfg(test)]
mod tests;
