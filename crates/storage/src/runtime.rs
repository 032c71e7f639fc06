//! The runtime layer: mutexes, condition variables, tasks, clock and randomness. In production
//! these are those of std; in simulation ([`crate::sim`]) they yield to a seeded scheduler.
//!
//! Rules for the code above it (`table`, `engine`): every lock, wait, task, clock and random number
//! comes from here. A runtime lock may be held across a storage call; nothing else may. Destructors
//! make no storage calls.
//!
//! How it is built: a [`Mutex`] always contains a std mutex. A simulated one has a second part that
//! decides, before the std mutex is touched, which task may take it. So production pays one
//! predictable branch for each lock and none for dereferencing a guard, and simulation needs no
//! `unsafe` for the data. A simulated task never blocks in the operating system on a runtime lock,
//! because it takes the std mutex only when the scheduler says that it is free.
//!
//! Threading: everything here may be shared between tasks of one runtime. In simulation, a call
//! from an OS thread that is not a task of the run panics and names the seed.

use std::panic::Location;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar as StdCondvar, Mutex as StdMutex, MutexGuard as StdMutexGuard};
use std::time::Duration;

use crate::sim;

/// A point in time: nanoseconds since the runtime began. Monotonic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// From nanoseconds since the runtime began.
    pub const fn from_nanos(nanos: u64) -> Self {
        Instant { nanos }
    }
    /// Nanoseconds since the runtime began.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }
    /// Time from `earlier` until this instant, or zero if `earlier` is later.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant {
            nanos: self.nanos.saturating_add(saturating_nanos(d)),
        }
    }
}

/// A duration in nanoseconds. Longer durations than fit (584 years) give the maximum.
pub(crate) fn saturating_nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// A handle to the runtime. It can be cloned.
#[derive(Clone, Debug)]
pub struct Runtime {
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Threads { start: std::time::Instant },
    Sim(sim::Handle),
}

impl Runtime {
    /// The production runtime: std's threads, locks and clock.
    pub fn threads() -> Runtime {
        Runtime {
            kind: Kind::Threads {
                start: std::time::Instant::now(),
            },
        }
    }

    /// The handle that a simulated task is given.
    pub(crate) fn simulated(handle: sim::Handle) -> Runtime {
        Runtime {
            kind: Kind::Sim(handle),
        }
    }

    /// The simulator's handle, if this is the simulated runtime.
    pub(crate) fn sim(&self) -> Option<&sim::Handle> {
        match &self.kind {
            Kind::Threads { .. } => None,
            Kind::Sim(handle) => Some(handle),
        }
    }

    /// Whether this is the simulated runtime.
    pub fn is_simulated(&self) -> bool {
        self.sim().is_some()
    }

    /// Monotonic time. In simulation it advances only when no task can run.
    pub fn now(&self) -> Instant {
        match &self.kind {
            Kind::Threads { start } => Instant::from_nanos(saturating_nanos(start.elapsed())),
            Kind::Sim(sim) => sim.now(),
        }
    }

    /// Microseconds since 1970, for people and for table properties. Never used for ordering.
    pub fn unix_micros(&self) -> u64 {
        match &self.kind {
            Kind::Threads { .. } => std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX)),
            Kind::Sim(sim) => sim.unix_micros(),
        }
    }

    /// The processor time that the calling task has used so far, in nanoseconds. It is 0 in
    /// simulation, where tasks share a thread and a run must not depend on the machine.
    pub fn task_cpu_ns(&self) -> u64 {
        match &self.kind {
            Kind::Threads { .. } => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
            }
            Kind::Sim(_) => 0,
        }
    }

    /// The processor time that this process has used so far, in nanoseconds. `None` in simulation,
    /// where a run must not depend on the machine.
    pub fn process_cpu_ns(&self) -> Option<u64> {
        match &self.kind {
            Kind::Threads { .. } => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0))
            }
            Kind::Sim(_) => None,
        }
    }

    /// The number of cores that this process may use, 1 in simulation.
    pub fn cores(&self) -> usize {
        match &self.kind {
            Kind::Threads { .. } => std::thread::available_parallelism().map_or(1, usize::from),
            Kind::Sim(_) => 1,
        }
    }

    /// The memory of this machine in bytes, if it is known; 8 GiB in simulation.
    pub fn memory_bytes(&self) -> Option<u64> {
        match &self.kind {
            Kind::Threads { .. } => {
                let all = std::fs::read_to_string("/proc/meminfo").ok()?;
                let line = all
                    .lines()
                    .find_map(|line| line.strip_prefix("MemTotal:"))?;
                let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
                Some(kib << 10)
            }
            Kind::Sim(_) => Some(8 << 30),
        }
    }

    /// The name of this machine, for messages. In simulation it does not depend on the machine.
    pub fn host_name(&self) -> String {
        let name = match &self.kind {
            Kind::Threads { .. } => std::fs::read_to_string("/proc/sys/kernel/hostname"),
            Kind::Sim(_) => Ok("simulated".to_string()),
        };
        match name.unwrap_or_default().trim() {
            "" => "unnamed".to_string(),
            name => name.to_string(),
        }
    }

    /// A random number, for salts and store ids. In simulation it comes from the seed.
    pub fn random_u64(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        match &self.kind {
            Kind::Threads { .. } => std::collections::hash_map::RandomState::new()
                .build_hasher()
                .finish(),
            Kind::Sim(sim) => sim.random_u64(),
        }
    }

    /// Waits for `duration`.
    #[track_caller]
    pub fn sleep(&self, duration: Duration) {
        match &self.kind {
            Kind::Threads { .. } => std::thread::sleep(duration),
            Kind::Sim(sim) => sim.sleep(duration, Location::caller()),
        }
    }

    /// A point where another task may run. Does nothing in production. Every storage call is one.
    #[inline]
    pub fn yield_point(&self) {
        if let Kind::Sim(sim) = &self.kind {
            sim.yield_point();
        }
    }

    /// As [`Runtime::yield_point`], and mixes `detail` into the trace's digest. `detail` is a
    /// number that identifies the call (from the operation, a hash of the object's name, an offset;
    /// never from an address). Two runs of one seed whose storage calls come in different orders
    /// then have different digests, even if the tasks alternate in the same way.
    #[inline]
    pub fn yield_point_at(&self, detail: u64) {
        if let Kind::Sim(sim) = &self.kind {
            sim.note(detail);
            sim.yield_point();
        }
    }

    /// A new mutex of this runtime. Deadlock reports name the source location of this call.
    #[track_caller]
    pub fn mutex<T>(&self, value: T) -> Mutex<T> {
        let made_at = Location::caller();
        let sim = self.sim().map(|sim| sim.lock(made_at));
        Mutex {
            inner: StdMutex::new(value),
            sim,
        }
    }

    /// A new condition variable of this runtime. Deadlock reports name the source location of this
    /// call.
    #[track_caller]
    pub fn condvar(&self) -> Condvar {
        let made_at = Location::caller();
        let sim = self.sim().map(|sim| sim.condvar(made_at));
        Condvar {
            inner: StdCondvar::new(),
            waiters: AtomicUsize::new(0),
            sim,
        }
    }

    /// Starts a task. The name appears in debuggers and deadlock reports.
    ///
    /// # Errors
    /// If the operating system refuses to create a thread (in simulation: to give memory for a
    /// stack).
    pub fn spawn<T, F>(&self, name: &str, f: F) -> std::io::Result<JoinHandle<T>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let kind = match &self.kind {
            Kind::Threads { .. } => {
                JoinKind::Std(std::thread::Builder::new().name(name.into()).spawn(f)?)
            }
            Kind::Sim(sim) => JoinKind::Sim(sim.spawn(name, f)?),
        };
        Ok(JoinHandle { kind })
    }

    /// Whether tasks have priorities of their own, so that [`Runtime::lower_priority`] has an
    /// effect.
    pub fn has_priorities(&self) -> bool {
        !self.is_simulated() && cfg!(target_os = "linux")
    }

    /// Lets the calling task, and the tasks that it starts from now on, yield to other tasks: its
    /// nice value is raised by `by`. It still gets all processor time that no other task wants. If
    /// it competes for a core with a task whose priority was not lowered, it gets half of that
    /// task's time if `by` is 3, and a tenth if `by` is 10.
    ///
    /// This does nothing in simulation, and outside Linux, where a task has no nice value of its
    /// own. A system that refuses is ignored.
    pub fn lower_priority(&self, by: i32) {
        if !self.has_priorities() {
            return;
        }
        // On Linux these calls without a process mean the calling thread.
        if let Ok(nice) = rustix::process::getpriority_process(None) {
            let _ =
                rustix::process::setpriority_process(None, nice.saturating_add(by).clamp(-20, 19));
        }
    }
}

/// A task that can be joined.
#[derive(Debug)]
pub struct JoinHandle<T> {
    kind: JoinKind<T>,
}

#[derive(Debug)]
enum JoinKind<T> {
    Std(std::thread::JoinHandle<T>),
    Sim(sim::TaskHandle<T>),
}

impl<T> JoinHandle<T> {
    /// Waits until the task ends.
    ///
    /// # Errors
    /// The panic's payload, if the task panicked. In simulation a panic ends the whole run, so the
    /// only payload is [`sim::Killed`], for a task whose process was killed.
    #[track_caller]
    pub fn join(self) -> std::thread::Result<T> {
        match self.kind {
            JoinKind::Std(handle) => handle.join(),
            JoinKind::Sim(handle) => handle.join(Location::caller()),
        }
    }

    /// Whether the task has ended, without waiting.
    pub fn is_finished(&self) -> bool {
        match &self.kind {
            JoinKind::Std(handle) => handle.is_finished(),
            JoinKind::Sim(handle) => handle.is_finished(),
        }
    }
}

/// A mutex of the runtime. A panic while it is held does not poison it for others. The store marks
/// itself as poisoned instead.
#[derive(Debug)]
pub struct Mutex<T> {
    inner: StdMutex<T>,
    /// In simulation, decides which task may take `inner`.
    sim: Option<sim::SimLock>,
}

/// Access to a locked value.
///
/// The fields are dropped in this order: the std mutex is free before the scheduler is notified.
pub struct MutexGuard<'a, T> {
    inner: StdMutexGuard<'a, T>,
    hold: Hold<'a, T>,
}

/// The simulated part of a guard: the mutex to return to the scheduler. `None` in production.
struct Hold<'a, T>(Option<&'a Mutex<T>>);

impl<T> Drop for Hold<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(Mutex { sim: Some(sim), .. }) = self.0 {
            sim.release();
        }
    }
}

impl<T: std::fmt::Debug> std::fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.inner.fmt(f)
    }
}

impl<T> Mutex<T> {
    /// Waits for the lock and takes it.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        if let Some(sim) = &self.sim {
            return self.lock_simulated(sim);
        }
        MutexGuard {
            inner: self.inner.lock().unwrap_or_else(|e| e.into_inner()),
            hold: Hold(None),
        }
    }

    #[cold]
    #[track_caller]
    fn lock_simulated(&self, sim: &sim::SimLock) -> MutexGuard<'_, T> {
        sim.acquire(Location::caller());
        self.take_granted(sim)
    }

    /// The guard for a lock that the scheduler has just granted to this task.
    fn take_granted(&self, sim: &sim::SimLock) -> MutexGuard<'_, T> {
        match self.inner.try_lock() {
            Ok(inner) => MutexGuard {
                inner,
                hold: Hold(Some(self)),
            },
            Err(std::sync::TryLockError::Poisoned(e)) => MutexGuard {
                inner: e.into_inner(),
                hold: Hold(Some(self)),
            },
            // Only this module locks `inner`, in simulation only after the scheduler granted it.
            Err(std::sync::TryLockError::WouldBlock) => sim.granted_but_held(),
        }
    }

    /// Takes the lock if it is free.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if let Some(sim) = &self.sim {
            return sim.try_acquire().then(|| self.take_granted(sim));
        }
        match self.inner.try_lock() {
            Ok(inner) => Some(MutexGuard {
                inner,
                hold: Hold(None),
            }),
            Err(std::sync::TryLockError::Poisoned(e)) => Some(MutexGuard {
                inner: e.into_inner(),
                hold: Hold(None),
            }),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value. The exclusive borrow makes locking unnecessary.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(|e| e.into_inner())
    }
}

impl<T> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// A condition variable of the runtime. It counts its waiters, so that a notification without any
/// costs only a load.
///
/// As with std's, the condition that a waiter waits for must change under the mutex that it waits
/// with, or a wake-up can be lost.
#[derive(Debug)]
pub struct Condvar {
    inner: StdCondvar,
    /// Tasks inside `wait`, in production only. It is raised while the mutex is held, so a task
    /// that changes the condition under that mutex after the waiter looked at it also sees the
    /// raised count.
    waiters: AtomicUsize,
    sim: Option<sim::SimCondvar>,
}

impl Condvar {
    /// Releases the lock, waits for a notification, and takes the lock again. May return without
    /// one.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        if let Some(sim) = &self.sim {
            return self.wait_simulated(sim, guard, None, Location::caller()).0;
        }
        let MutexGuard { inner, hold } = guard;
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let inner = self.inner.wait(inner).unwrap_or_else(|e| e.into_inner());
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        MutexGuard { inner, hold }
    }

    /// As `wait`, for at most `timeout`. The flag says whether the time ran out.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        if let Some(sim) = &self.sim {
            return self.wait_simulated(sim, guard, Some(timeout), Location::caller());
        }
        let MutexGuard { inner, hold } = guard;
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let (inner, timed_out) = self
            .inner
            .wait_timeout(inner, timeout)
            .unwrap_or_else(|e| e.into_inner());
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        (MutexGuard { inner, hold }, timed_out.timed_out())
    }

    #[cold]
    fn wait_simulated<'a, T>(
        &self,
        sim: &sim::SimCondvar,
        guard: MutexGuard<'a, T>,
        timeout: Option<Duration>,
        at: &'static Location<'static>,
    ) -> (MutexGuard<'a, T>, bool) {
        let Some(
            mutex @ Mutex {
                sim: Some(lock), ..
            },
        ) = guard.hold.0
        else {
            panic!(
                "a simulated condition variable waits with a mutex of the production runtime, \
                 at {at}"
            );
        };
        // No other task runs between this and the wait below, because releasing a lock does not
        // yield.
        drop(guard);
        let timed_out = sim.wait(timeout, at);
        lock.acquire(at);
        (mutex.take_granted(lock), timed_out)
    }

    /// Wakes one waiter.
    #[inline]
    pub fn notify_one(&self) {
        match &self.sim {
            Some(sim) => sim.notify_one(),
            None if self.waiters.load(Ordering::SeqCst) != 0 => self.inner.notify_one(),
            None => {}
        }
    }

    /// Wakes all waiters.
    #[inline]
    pub fn notify_all(&self) {
        match &self.sim {
            Some(sim) => sim.notify_all(),
            None if self.waiters.load(Ordering::SeqCst) != 0 => self.inner.notify_all(),
            None => {}
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)] // real threads
mod tests {
    use super::*;

    fn nice() -> i32 {
        rustix::process::getpriority_process(None).unwrap()
    }

    /// Only the calling task and those that it starts get a lower priority, and simulated tasks,
    /// which are threads as well, keep theirs.
    #[test]
    fn a_lower_priority_is_inherited_and_of_one_task_only() {
        let (runtime, before) = (Runtime::threads(), nice());
        let lowered = {
            let runtime = runtime.clone();
            move || {
                runtime.lower_priority(3);
                runtime.lower_priority(4);
                let child = runtime.spawn("child", nice).unwrap();
                (nice(), child.join().unwrap())
            }
        };
        let lowered = runtime.spawn("lowered", lowered).unwrap().join().unwrap();
        let expected = (before + 7).min(19);
        assert_eq!((lowered, nice()), ((expected, expected), before));
        let simulated = |runtime: Runtime| {
            runtime.lower_priority(5);
            nice()
        };
        let config = crate::sim::SimConfig::new(1);
        assert_eq!(crate::sim::run(config, simulated).unwrap(), before);
    }
}
