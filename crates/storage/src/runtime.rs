//! The runtime layer: mutex, condition variable, spawn, join, clock, randomness. In production these are std's; in
//! simulation they hand over to a seeded scheduler.
//!
//! (Interface with the production half; the storage crate's owner adds the simulated half behind it.)
//!
//! Rules for code above it (`table`, `engine`): every lock, wait, task, clock and random number comes from here; a
//! runtime lock may be held across a storage call, nothing else may; destructors make no storage calls.

use std::sync::{Condvar as StdCondvar, Mutex as StdMutex, MutexGuard as StdMutexGuard};
use std::time::Duration;

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
    /// Time from `earlier` to this, zero if it lies after.
    pub const fn since(self, earlier: Instant) -> Duration {
        Duration::from_nanos(self.nanos.saturating_sub(earlier.nanos))
    }
}

impl std::ops::Add<Duration> for Instant {
    type Output = Instant;
    fn add(self, d: Duration) -> Instant {
        Instant { nanos: self.nanos.saturating_add(d.as_nanos() as u64) }
    }
}

/// A cloneable handle on the runtime.
#[derive(Clone, Debug)]
pub struct Runtime {
    start: std::time::Instant,
}

impl Runtime {
    /// The production runtime: std's threads, locks and clock.
    pub fn threads() -> Runtime {
        Runtime { start: std::time::Instant::now() }
    }
    /// Whether this is the simulated runtime.
    pub fn is_simulated(&self) -> bool {
        false
    }
    /// Monotonic time.
    pub fn now(&self) -> Instant {
        Instant::from_nanos(self.start.elapsed().as_nanos() as u64)
    }
    /// Microseconds since 1970, for humans and properties; never for ordering.
    pub fn unix_micros(&self) -> u64 {
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64)
    }
    /// A random number (salts, store ids).
    pub fn random_u64(&self) -> u64 {
        use std::hash::{BuildHasher, Hasher};
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    }
    /// Waits for `duration`.
    pub fn sleep(&self, duration: Duration) {
        std::thread::sleep(duration)
    }
    /// A point where another task may run; nothing in production.
    #[inline]
    pub fn yield_point(&self) {}
    /// A new mutex of this runtime.
    pub fn mutex<T>(&self, value: T) -> Mutex<T> {
        Mutex { inner: StdMutex::new(value) }
    }
    /// A new condition variable of this runtime.
    pub fn condvar(&self) -> Condvar {
        Condvar { inner: StdCondvar::new() }
    }
    /// Starts a task. The name shows in debuggers and deadlock reports.
    ///
    /// # Errors
    /// When the operating system refuses a thread.
    pub fn spawn<T, F>(&self, name: &str, f: F) -> std::io::Result<JoinHandle<T>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        Ok(JoinHandle { inner: std::thread::Builder::new().name(name.into()).spawn(f)? })
    }
}

/// A task that can be joined.
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: std::thread::JoinHandle<T>,
}

impl<T> JoinHandle<T> {
    /// Waits for the task's end.
    ///
    /// # Errors
    /// The panic's payload, if the task panicked.
    pub fn join(self) -> std::thread::Result<T> {
        self.inner.join()
    }
}

/// A mutex of the runtime. A panic while it is held does not poison it for others: the state's owner poisons the
/// store by its own means.
#[derive(Debug)]
pub struct Mutex<T> {
    inner: StdMutex<T>,
}

/// Access to a locked value.
pub struct MutexGuard<'a, T> {
    inner: StdMutexGuard<'a, T>,
}

impl<T> Mutex<T> {
    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { inner: self.inner.lock().unwrap_or_else(|e| e.into_inner()) }
    }
    /// The lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(MutexGuard { inner }),
            Err(std::sync::TryLockError::Poisoned(e)) => Some(MutexGuard { inner: e.into_inner() }),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
    /// The value, without locking.
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

/// A condition variable of the runtime. It counts waiters: a notify without any is a load.
#[derive(Debug)]
pub struct Condvar {
    inner: StdCondvar,
}

impl Condvar {
    /// Releases the lock, waits for a notification, takes the lock again. May wake without one.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard { inner: self.inner.wait(guard.inner).unwrap_or_else(|e| e.into_inner()) }
    }
    /// As `wait`, at most `timeout`; the flag says whether the time ran out.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> (MutexGuard<'a, T>, bool) {
        let (inner, timed_out) = self.inner.wait_timeout(guard.inner, timeout).unwrap_or_else(|e| e.into_inner());
        (MutexGuard { inner }, timed_out.timed_out())
    }
    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.inner.notify_one()
    }
    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.inner.notify_all()
    }
}
