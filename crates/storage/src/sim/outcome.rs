//! The outcome of a run: its value or failure, trace and counters; and a check that a seed replays.

use std::fmt;
use std::time::Duration;

use super::{Backend, Counters, GroupId, SimConfig, TraceEvent, run};
use crate::runtime::Runtime;

/// An unfinished task, in a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// The name that it was spawned with.
    pub name: String,
    /// The process that it belongs to.
    pub group: GroupId,
    /// What it waits for, where, and who holds that.
    pub state: String,
}

impl fmt::Display for TaskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task `{}` of {} {}", self.name, self.group, self.state)
    }
}

/// Why a run ended before its first task returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A task panicked.
    Panic {
        /// The task's name.
        task: String,
        /// The payload, if it was text.
        message: String,
        /// The file, line and column.
        location: Option<String>,
        /// The stack, if `RUST_BACKTRACE` is set.
        backtrace: Option<String>,
    },
    /// No task could run, and there was no timer.
    Deadlock {
        /// All unfinished tasks.
        tasks: Vec<TaskReport>,
    },
    /// The run passed too many points.
    Steps {
        /// The maximum number of points.
        limit: u64,
        /// All unfinished tasks.
        tasks: Vec<TaskReport>,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, tasks: &[TaskReport]| {
            tasks.iter().try_for_each(|task| write!(f, "\n  {task}"))
        };
        match self {
            Failure::Panic {
                task,
                message,
                location,
                backtrace,
            } => {
                write!(f, "task `{task}` panicked")?;
                if let Some(location) = location {
                    write!(f, " at {location}")?;
                }
                write!(f, ": {message}")?;
                match backtrace {
                    Some(backtrace) => write!(f, "\n{backtrace}"),
                    None => Ok(()),
                }
            }
            Failure::Deadlock { tasks } => {
                write!(f, "deadlock: no task can run and there is no timer")?;
                list(f, tasks)
            }
            Failure::Steps { limit, tasks } => {
                write!(
                    f,
                    "the run did not end within {limit} points: a livelock, or the bound is too \
                     small"
                )?;
                list(f, tasks)
            }
        }
    }
}

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct SimOutcome<T> {
    /// The run's seed.
    pub seed: u64,
    /// The back end that ran its tasks.
    pub backend: Backend,
    /// The first task's value, or the failure.
    pub result: Result<T, Failure>,
    /// The xxh3 hash of every decision. It is equal for equal seeds and programs, across back ends
    /// and processes.
    pub digest: u64,
    /// The run's counters.
    pub counters: Counters,
    /// The simulated time at the end.
    pub simulated_time: Duration,
    /// Every decision, if [`SimConfig::record_trace`] is set.
    pub trace: Option<Vec<TraceEvent>>,
}

impl<T> SimOutcome<T> {
    /// The first task's value.
    ///
    /// # Panics
    /// If the run failed. The message has the seed and the failure.
    #[track_caller]
    pub fn unwrap(self) -> T {
        match self.result {
            Ok(value) => value,
            Err(failure) => panic!("simulation seed {}: {failure}", self.seed),
        }
    }
}

/// Two runs of one seed differed, so something decided by a value that the seed does not determine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// The seed.
    pub seed: u64,
    /// The number of equal decisions before.
    pub alike_count: usize,
    /// The first different decision in the first run. `None` if that run had ended.
    pub first: Option<TraceEvent>,
    /// The first different decision in the second run. `None` if that run had ended.
    pub second: Option<TraceEvent>,
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "two simulated runs of seed {} differ after {} decisions: {:?} against {:?}; something \
             depends on a clock, an address, a randomly seeded map or a foreign thread",
            self.seed, self.alike_count, self.first, self.second
        )
    }
}

impl std::error::Error for Divergence {}

/// Runs `f` twice with one seed and compares all decisions.
///
/// # Errors
/// The first decision that differs.
pub fn check_replay<T, F>(config: SimConfig, f: F) -> Result<SimOutcome<T>, Divergence>
where
    T: Send + 'static,
    F: Fn(Runtime) -> T + Clone + Send + 'static,
{
    let config = SimConfig {
        record_trace: true,
        ..config
    };
    let first = run(config.clone(), f.clone());
    let second = run(config, f);
    let events = |outcome: &SimOutcome<T>| outcome.trace.clone().unwrap_or_default();
    let (a, b) = (events(&first), events(&second));
    if a == b && first.digest == second.digest {
        return Ok(second);
    }
    let alike_count = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    Err(Divergence {
        seed: first.seed,
        alike_count,
        first: a.get(alike_count).copied(),
        second: b.get(alike_count).copied(),
    })
}
