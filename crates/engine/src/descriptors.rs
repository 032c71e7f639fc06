//! The descriptors that the files of tables hold, and how they are given back.
//!
//! What it is: [`Descriptors`] bounds how many files of tables have a descriptor of the system at a
//! time. A call that opens any file and finds that the process has no descriptor left takes back
//! those of the tables, half of them at a time, and is made again ([`Descriptors::retry`]). When
//! only reads of other threads still have some, it waits a few milliseconds for them to end. So
//! nothing is refused that could be served by closing the file of a table, whether the call opens a
//! table, begins a log segment or a manifest, or creates the output of a job.
//!
//! All folders of a store are asked through [`Descriptors::wrap`], and so are folders that it
//! writes a checkpoint or an export to. A call that fails for want of a descriptor has changed
//! nothing (`StorageErrorKind::TooManyOpen`), so repeating it is safe.
//!
//! Invariants: one of these for each open store. Tables of another store in the same process are
//! not closed: each store keeps to half of the limit by itself.
//!
//! Threading: closing files takes the clock's lock, over no storage call; waiting takes no lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use siltstone_storage::{
    Capabilities, Epoch, Instant, Lease, Mutex, ObjectMeta, ReadFile, Result, Runtime, SharedLease,
    Storage, StorageErrorKind, WriteFile,
};

use crate::planted::{self, Bug};
use crate::table_files::TableFile;

/// The bound on the descriptors of tables never falls below this.
const LEAST: usize = 4;

/// How often a call that found no descriptor waits for reads, when nothing else has one of a table.
const WAITS_MAX: u32 = 20;

/// How long it waits each time.
const WAIT: Duration = Duration::from_millis(2);

/// How often a call is made again at most, however many descriptors others take meanwhile.
const RETRIES_MAX: u32 = 100;

/// A bound that was lowered doubles when nothing lacked a descriptor for this long.
const RECOVERY: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Descriptors {
    runtime: Runtime,
    /// The most that tables have, while the process has enough.
    most: usize,
    clock: Mutex<Clock>,
    /// How many tables have, those included whose descriptor goes with a read that is under way.
    held: AtomicUsize,
    /// How many descriptors were taken back from tables.
    closed_count: AtomicU64,
    /// How many calls found no descriptor and were made again.
    retried_count: AtomicU64,
}

struct Clock {
    /// The files with a descriptor, in the order in which the clock's hand passes them.
    files: VecDeque<Weak<TableFile>>,
    /// When there are this many, those that are gone are taken out.
    prune_at: usize,
    /// The most that have a descriptor now: less than `most` after the process ran out of them.
    open_max: usize,
    /// When `open_max` was changed last.
    changed: Instant,
}

impl Clock {
    fn prune(&mut self) {
        self.files.retain(|next| next.strong_count() > 0);
        self.prune_at = 2 * self.files.len() + 64;
    }
}

impl Descriptors {
    /// For a process that may have `open_objects_max` files open.
    pub(crate) fn new(runtime: &Runtime, open_objects_max: Option<u64>) -> Arc<Descriptors> {
        // The other half is for the log, the manifest, the outputs of jobs, and the program around
        // the store.
        let most = open_objects_max.map_or(u64::MAX, |max| max / 2);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        Arc::new(Descriptors {
            runtime: runtime.clone(),
            most,
            clock: runtime.mutex(Clock {
                files: VecDeque::new(),
                prune_at: 0,
                open_max: most,
                changed: runtime.now(),
            }),
            held: AtomicUsize::new(0),
            closed_count: AtomicU64::new(0),
            retried_count: AtomicU64::new(0),
        })
    }

    /// How many descriptors of tables were closed, because too many were open at a time.
    pub(crate) fn closed_count(&self) -> u64 {
        self.closed_count.load(Ordering::Relaxed)
    }

    /// How many calls were made again because the process had no descriptor left.
    pub(crate) fn retried_count(&self) -> u64 {
        self.retried_count.load(Ordering::Relaxed)
    }

    /// Makes a call that opens a file. Where the process has no descriptor left, tables give theirs
    /// back and the call is made again.
    ///
    /// # Errors
    /// Those of the call: `TooManyOpen` only when no table had a descriptor to give back, and no
    /// read that was under way gave one back in time.
    pub(crate) fn retry<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let mut waits = 0;
        for _ in 0..RETRIES_MAX {
            match call() {
                Err(error)
                    if error.kind == StorageErrorKind::TooManyOpen
                        && !planted::is(Bug::HandlesRunOut) =>
                {
                    if !self.give_back() {
                        let is_held = self.held.load(Ordering::Acquire) > 0;
                        if waits == WAITS_MAX || !is_held {
                            return Err(error);
                        }
                        waits += 1;
                        self.runtime.sleep(WAIT);
                    }
                    self.retried_count.fetch_add(1, Ordering::Relaxed);
                }
                result => return result,
            }
        }
        call()
    }

    /// As [`Descriptors::retry`], for calls that create a file or write one whole.
    fn retry_creation<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        if planted::is(Bug::CreationsGiveUp) {
            return call();
        }
        self.retry(call)
    }

    /// A file has a descriptor now: others lose theirs if there are too many.
    pub(crate) fn entered(&self, file: &Weak<TableFile>) {
        let now = self.runtime.now();
        let mut clock = self.clock.lock();
        if clock.open_max < self.most && now.since(clock.changed) >= RECOVERY {
            clock.open_max = clock.open_max.saturating_mul(2).min(self.most);
            clock.changed = now;
        }
        clock.files.push_back(file.clone());
        if clock.files.len() >= clock.prune_at {
            clock.prune();
        }
        let open_max = clock.open_max;
        // Twice around: the first time those are spared that were used since the last time.
        for _ in 0..2 * clock.files.len() {
            if clock.files.len() <= open_max {
                return;
            }
            let Some(next) = clock.files.pop_front() else {
                return;
            };
            let Some(file) = next.upgrade() else {
                continue;
            };
            if file.take_used() {
                clock.files.push_back(next);
            } else {
                self.close(&file);
            }
        }
    }

    /// Closes half of the open files of tables, at least one, and lets no more than the other half
    /// be open for a while; false if none is open.
    pub(crate) fn give_back(&self) -> bool {
        let now = self.runtime.now();
        let mut clock = self.clock.lock();
        clock.prune();
        let keep = clock.files.len() / 2;
        clock.open_max = clock.open_max.min(keep.max(LEAST));
        clock.changed = now;
        let excess = clock.files.len() - keep;
        for file in clock.files.drain(..excess) {
            if let Some(file) = file.upgrade() {
                self.close(&file);
            }
        }
        excess > 0
    }

    /// A table has one more descriptor, until what this returns is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held(self.clone())
    }

    fn close(&self, file: &TableFile) {
        file.close();
        self.closed_count.fetch_add(1, Ordering::Relaxed);
    }

    /// `storage`, each of whose calls that open a file is made through [`Descriptors::retry`].
    pub(crate) fn wrap(self: &Arc<Self>, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(Retrying {
            inner: storage,
            descriptors: self.clone(),
        })
    }
}

/// A descriptor of a table, in [`Descriptors`]' count.
pub(crate) struct Held(Arc<Descriptors>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See [`Descriptors::wrap`].
struct Retrying {
    inner: Arc<dyn Storage>,
    descriptors: Arc<Descriptors>,
}

impl Storage for Retrying {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.descriptors.retry(|| self.inner.lease(name))
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.descriptors.retry(|| self.inner.lease_shared(name))
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.descriptors
            .retry_creation(|| self.inner.create(epoch, name))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.descriptors
            .retry_creation(|| self.inner.create_direct(epoch, name))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.descriptors
            .retry_creation(|| self.inner.recycle(epoch, old, new))
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.descriptors
            .retry(|| self.inner.sync_object(epoch, name))
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.descriptors
            .retry(|| self.inner.rewrite_object(epoch, name))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.descriptors.retry(|| self.inner.open(name))
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.descriptors.retry(|| self.inner.open_direct(name))
    }
    fn check_direct(&self) -> Result<()> {
        self.descriptors.retry(|| self.inner.check_direct())
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.descriptors.retry(|| self.inner.read_small(name))
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.descriptors.retry(|| self.inner.list())
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.delete(epoch, name)
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.inner.rename(epoch, old, new)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        self.descriptors
            .retry_creation(|| self.inner.import(epoch, name, from, from_name))
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.descriptors
            .retry_creation(|| self.inner.publish(epoch, name, bytes))
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_dir(epoch)
    }
    fn sync_place(&self, epoch: Epoch) -> Result<()> {
        self.descriptors.retry(|| self.inner.sync_place(epoch))
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.descriptors
            .retry_creation(|| self.inner.replace(epoch, name, bytes))
    }
    fn base(&self) -> Option<&dyn std::any::Any> {
        self.inner.base()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.inner.open_objects_max()
    }
}
