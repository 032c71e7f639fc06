//! The simulated runtime's handle, locks, condition variables and tasks.

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use super::GroupId;
use super::core::{Core, SpawnGroup, killed_payload};
use super::state::TaskId;
use crate::runtime::Instant;

/// A handle to one simulated run. It is opaque and used through [`crate::Runtime`].
#[derive(Clone)]
pub struct Handle {
    core: Arc<Core>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the simulated runtime of seed {}", self.core.config.seed)
    }
}

impl Handle {
    pub(super) fn new(core: Arc<Core>) -> Handle {
        Handle { core }
    }
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }
    pub(crate) fn now(&self) -> Instant {
        Instant::from_nanos(self.core.enter().0.now_nanos)
    }
    pub(crate) fn unix_micros(&self) -> u64 {
        let (state, _) = self.core.enter();
        state
            .unix_base_micros
            .saturating_add(state.now_nanos / 1000)
    }
    pub(crate) fn random_u64(&self) -> u64 {
        self.core.enter().0.values.next()
    }
    pub(crate) fn sleep(&self, duration: Duration, at: &'static Location<'static>) {
        self.core.sleep(duration, at);
    }
    pub(crate) fn yield_point(&self) {
        self.core.yield_point();
    }
    pub(crate) fn note(&self, value: u64) {
        self.core.note(value);
    }
    pub(crate) fn lock(&self, made_at: &'static Location<'static>) -> SimLock {
        SimLock {
            id: self.core.enter().0.new_lock(made_at),
            core: self.core.clone(),
        }
    }
    pub(crate) fn condvar(&self, made_at: &'static Location<'static>) -> SimCondvar {
        SimCondvar {
            id: self.core.enter().0.new_condvar(),
            made_at,
            core: self.core.clone(),
        }
    }
    pub(crate) fn spawn<T, F>(&self, name: &str, f: F) -> std::io::Result<TaskHandle<T>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        Ok(self.spawn_at(name, SpawnGroup::SameGroup, f)?.0)
    }
    pub(super) fn spawn_at<T, F>(
        &self,
        name: &str,
        spawn_group: SpawnGroup,
        f: F,
    ) -> std::io::Result<(TaskHandle<T>, GroupId)>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let value = Arc::new(StdMutex::new(None));
        let slot = value.clone();
        let entry = move || {
            let result = f();
            *slot.lock().unwrap_or_else(|e| e.into_inner()) = Some(result);
        };
        let (id, group) = self.core.spawn(name, spawn_group, Box::new(entry))?;
        Ok((
            TaskHandle {
                core: self.core.clone(),
                id,
                value,
            },
            group,
        ))
    }
}

/// A simulated mutex. The scheduler knows its holder and its waiters.
pub(crate) struct SimLock {
    core: Arc<Core>,
    id: u32,
}

impl SimLock {
    pub(crate) fn acquire(&self, at: &'static Location<'static>) {
        self.core.acquire(self.id, at);
    }
    pub(crate) fn try_acquire(&self) -> bool {
        self.core.try_acquire(self.id)
    }
    /// Releases the lock and lets its waiters compete for it. This is not a point.
    pub(crate) fn release(&self) {
        let (mut state, _) = self.core.enter();
        state.release_lock(self.id);
    }
    /// Reports that the scheduler granted a lock whose std mutex is held, which is a bug of this
    /// crate.
    #[cold]
    pub(crate) fn granted_but_held(&self) -> ! {
        panic!(
            "simulation seed {}: a free runtime lock is held by the operating system",
            self.core.config.seed
        )
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.core.state().free_lock(self.id);
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated lock {}", self.id)
    }
}

/// A simulated condition variable. Waiting tasks refer to its number.
pub(crate) struct SimCondvar {
    core: Arc<Core>,
    id: u32,
    made_at: &'static Location<'static>,
}

impl SimCondvar {
    /// Waits. Returns true if the time ran out. The caller has released its lock, and has passed no
    /// point since.
    pub(crate) fn wait(&self, timeout: Option<Duration>, at: &'static Location<'static>) -> bool {
        self.core.wait(self.id, self.made_at, timeout, at)
    }
    pub(crate) fn notify_one(&self) {
        self.core.enter().0.notify(self.id, false);
    }
    pub(crate) fn notify_all(&self) {
        self.core.enter().0.notify(self.id, true);
    }
}

impl fmt::Debug for SimCondvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "simulated condition variable {} made at {}",
            self.id, self.made_at
        )
    }
}

/// A simulated task that can be joined.
pub(crate) struct TaskHandle<T> {
    core: Arc<Core>,
    id: TaskId,
    value: Arc<StdMutex<Option<T>>>,
}

impl<T> TaskHandle<T> {
    pub(crate) fn join(self, at: &'static Location<'static>) -> std::thread::Result<T> {
        if !self.core.join(self.id, at) {
            return Err(killed_payload());
        }
        let value = self.value.lock().unwrap_or_else(|e| e.into_inner()).take();
        value.ok_or_else(killed_payload)
    }
    /// The value of a task that has returned, once the run is over.
    pub(super) fn into_value(self) -> Option<T> {
        self.value.lock().unwrap_or_else(|e| e.into_inner()).take()
    }
    pub(crate) fn is_finished(&self) -> bool {
        self.core.has_ended(self.id)
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated task {}", self.id)
    }
}
