//! Simulated processes: groups of tasks that can be killed at any point, as with kill -9, while
//! other tasks continue.

use std::fmt;
use std::panic::Location;

use super::core::SpawnGroup;
use super::{Handle, TaskHandle};
use crate::runtime::Runtime;

/// A group of tasks: a simulated process. The run's first task is in group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub(super) u32);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.0)
    }
}

/// The task, or its process, was killed before it returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

impl fmt::Display for Killed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the simulated process was killed before it returned")
    }
}

impl std::error::Error for Killed {}

/// A simulated process that can be killed or joined. Dropping it does neither.
#[derive(Debug)]
pub struct Process<T> {
    runtime: Runtime,
    group: GroupId,
    main: TaskHandle<T>,
}

impl<T> Process<T> {
    /// The group of its tasks.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Kills it: none of its tasks runs again. Does nothing if it has ended. See
    /// [`Runtime::kill_group`].
    pub fn kill(&self) {
        self.runtime.kill_group(self.group);
    }

    /// Whether it has neither ended nor been killed.
    pub fn is_alive(&self) -> bool {
        self.runtime.is_group_alive(self.group)
    }

    /// Waits for its end and returns its first task's value.
    ///
    /// # Errors
    /// If it was killed.
    #[track_caller]
    pub fn join(self) -> Result<T, Killed> {
        self.main.join(Location::caller()).map_err(|_| Killed)
    }
}

/// Simulated processes. All of these functions panic on the production runtime.
impl Runtime {
    /// Starts `f` as the first task of a new simulated process. A task that is spawned belongs to
    /// the process of the task that spawns it, whichever handle is used. When `f` returns, the
    /// remaining tasks of the process are killed, as when `main` returns.
    ///
    /// # Errors
    /// If there is no memory for a stack.
    pub fn spawn_process<T, F>(&self, name: &str, f: F) -> std::io::Result<Process<T>>
    where
        T: Send + 'static,
        F: FnOnce(Runtime) -> T + Send + 'static,
    {
        let runtime = self.clone();
        let (main, group) = self
            .simulation()
            .spawn_at(name, SpawnGroup::NewGroup, move || f(runtime))?;
        Ok(Process {
            runtime: self.clone(),
            group,
            main,
        })
    }

    /// The process of the calling task.
    pub fn group(&self) -> GroupId {
        self.simulation().core().group_of_caller()
    }

    /// Whether a process has neither ended nor been killed.
    pub fn is_group_alive(&self, group: GroupId) -> bool {
        self.simulation().core().is_group_alive(group)
    }

    /// Kills a process, as kill -9 does: none of its tasks passes another point. Its locks are
    /// abandoned: other processes that wait for one get it only if [`super::Reclaim`] unwinds the
    /// holder. Joins of its tasks fail. Does not return if the caller belongs to the process.
    ///
    /// # Panics
    /// If it is the process of the run's first task, which cannot be killed.
    pub fn kill_group(&self, group: GroupId) {
        self.simulation().core().kill(group);
    }

    /// Kills the process of the calling task immediately. Used by storages that let a process die
    /// at its n-th call.
    pub fn die(&self) -> ! {
        let core = self.simulation().core();
        core.kill(core.group_of_caller());
        unreachable!("a task of a killed process goes on");
    }

    fn simulation(&self) -> &Handle {
        self.sim()
            .expect("simulated processes exist only in simulation; this is the production runtime")
    }
}
