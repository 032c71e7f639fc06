//! The descriptors that the files of tables hold, and how they are given back.
//!
//! [`Descriptors`] bounds the number of files of tables that have a descriptor of the system at a
//! time. If a call opens any file and the process has no descriptor left, half of the tables' files
//! are closed and the call is repeated ([`Descriptors::retry`]). If only reads of other threads
//! still have descriptors of tables, or others take each descriptor that is given back, the call
//! waits and tries again, as long as descriptors of tables come free. So no call is refused that
//! would succeed after a table's file is closed, whether it opens a table, begins a log segment or
//! a manifest, or creates the output of a job.
//!
//! All calls to a store's folders go through [`Descriptors::wrap`], and so do those to a folder of
//! a checkpoint or an export. A call that fails for want of a descriptor has changed nothing
//! (`StorageErrorKind::TooManyOpen`), so it is safe to repeat it.
//!
//! Each open store has its own [`Descriptors`] and keeps to half of the limit. It does not close
//! tables of another store in the same process.
//!
//! Threading: closing files takes the clock's lock, over no storage call; waiting takes no lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{Instant, Mutex, Result, Runtime, Storage, StorageErrorKind};

use crate::env::table_files::TableFile;

/// The bound on the descriptors of tables never falls below this.
const LEAST: usize = 4;

/// How often a call closes files and is repeated at once. Then it waits before each repetition,
/// because other threads take the descriptors that it frees.
const HASTY_RETRIES_MAX: u32 = 8;

/// How long it waits each time.
const WAIT: Duration = Duration::from_millis(2);

/// A call fails if no table has given a descriptor back for this long.
const STUCK_AFTER: Duration = Duration::from_secs(1);

/// A call fails if other calls have taken every descriptor that came free for this long.
const STARVED_AFTER: Duration = Duration::from_secs(5);

/// A lowered bound is doubled when no call has lacked a descriptor for this long.
const RECOVERY: Duration = Duration::from_secs(60);

/// See the module.
pub(crate) struct Descriptors {
    runtime: Runtime,
    /// The most descriptors that tables have while the process has enough.
    most: usize,
    clock: Mutex<Clock>,
    /// The number of descriptors that tables have, including those that are closed when a read
    /// ends.
    held: AtomicUsize,
    /// How many descriptors of tables were closed, whatever the reason.
    released_count: AtomicU64,
    /// Calls that open a file and are under way: they may have a descriptor that is not counted in
    /// `held` yet.
    opening: AtomicUsize,
    /// How many of these calls opened a file.
    opened_count: AtomicU64,
    closed_count: AtomicU64,
    retried_count: AtomicU64,
}

struct Clock {
    /// The files with a descriptor, in the order in which the clock's hand passes them.
    files: VecDeque<Weak<TableFile>>,
    /// When there are this many, those that were dropped are removed.
    prune_at: usize,
    /// The most files with a descriptor now: fewer than `most` after the process ran out of them.
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
    /// The descriptors of one store, in a process that may have `open_objects_max` files open.
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
            released_count: AtomicU64::new(0),
            opening: AtomicUsize::new(0),
            opened_count: AtomicU64::new(0),
            closed_count: AtomicU64::new(0),
            retried_count: AtomicU64::new(0),
        })
    }

    /// How many descriptors of tables were closed because too many were open.
    pub(crate) fn closed_count(&self) -> u64 {
        self.closed_count.load(Ordering::Relaxed)
    }

    /// How often a call was repeated because the process had no descriptor left.
    pub(crate) fn retried_count(&self) -> u64 {
        self.retried_count.load(Ordering::Relaxed)
    }

    /// Makes a call that opens a file. If the process has no descriptor left, files of tables are
    /// closed and the call is repeated.
    ///
    /// # Errors
    /// Those of the call. It is `TooManyOpen` only if no table had a descriptor during the call, if
    /// tables gave none back for [`STUCK_AFTER`], or if other calls took all of them for
    /// [`STARVED_AFTER`].
    pub(crate) fn retry<T>(&self, mut call: impl FnMut() -> Result<T>) -> Result<T> {
        let began = self.runtime.now();
        let mut last_change = began;
        let mut retries = 0;
        loop {
            let seen = self.change_count();
            let error = match self.attempt(&mut call) {
                Err(error) if error.kind == StorageErrorKind::TooManyOpen => error,
                result => return result,
            };
            let now = self.runtime.now();
            let has_changed = self.change_count() != seen;
            if has_changed {
                last_change = now;
            }
            let is_stuck = now.since(last_change) >= STUCK_AFTER;
            let is_starved = now.since(began) >= STARVED_AFTER;
            // A descriptor that came free during the call serves the next call.
            let may_come_free = has_changed
                || self.held.load(Ordering::Acquire) > 0
                || self.opening.load(Ordering::Acquire) > 0;
            if is_stuck || is_starved || !may_come_free {
                return Err(error);
            }
            let is_hasty = retries < HASTY_RETRIES_MAX;
            if !is_hasty {
                self.runtime.sleep(WAIT);
            }
            // This comes right before the call, so a thread that begins a call has no better
            // chance.
            let gave_back = self.give_back();
            if is_hasty && !gave_back {
                self.runtime.sleep(WAIT);
            }
            retries += 1;
            self.retried_count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes a call that opens a file, and counts it.
    fn attempt<T>(&self, call: &mut impl FnMut() -> Result<T>) -> Result<T> {
        let _opening = Opening::new(&self.opening);
        let result = call();
        if result.is_ok() {
            self.opened_count.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// Changes whenever a call has opened a file, or a table has given a descriptor back.
    fn change_count(&self) -> u64 {
        let opened = self.opened_count.load(Ordering::Acquire);
        opened.wrapping_add(self.released_count.load(Ordering::Acquire))
    }

    /// Adds a file that has a descriptor now, and closes others if there are too many.
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
        // Twice around: the first time spares files that were used since the hand passed them.
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

    /// Closes half of the open files of tables, at least one, and lowers the bound to the other
    /// half for a while. False if none is open.
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

    /// Counts a descriptor of a table until the returned value is dropped.
    pub(crate) fn hold(self: &Arc<Self>) -> Held {
        self.held.fetch_add(1, Ordering::AcqRel);
        Held(self.clone())
    }

    fn close(&self, file: &TableFile) {
        file.close();
        self.closed_count.fetch_add(1, Ordering::Relaxed);
    }

    /// `storage`, with each call that opens a file made through [`Descriptors::retry`].
    pub(crate) fn wrap(self: &Arc<Self>, storage: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(Wrapped(Retrying {
            inner: storage,
            descriptors: self.clone(),
        }))
    }
}

/// A descriptor of a table that [`Descriptors`] counts.
pub(crate) struct Held(Arc<Descriptors>);

impl Drop for Held {
    fn drop(&mut self) {
        // This comes first, so that a thread that finds no descriptor held sees that one was
        // released.
        self.0.released_count.fetch_add(1, Ordering::AcqRel);
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Counts a call that opens a file, even if it panics.
struct Opening<'a>(&'a AtomicUsize);

impl Opening<'_> {
    fn new(count: &AtomicUsize) -> Opening<'_> {
        count.fetch_add(1, Ordering::AcqRel);
        Opening(count)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// See [`Descriptors::wrap`].
struct Retrying {
    inner: Arc<dyn Storage>,
    descriptors: Arc<Descriptors>,
}

impl Wrapper for Retrying {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, call: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        match call {
            Call::Open | Call::Create(_) | Call::Replace(_) => self.descriptors.retry(run),
            // These open nothing.
            Call::Rename(_) | Call::Delete(_) | Call::SyncDir => run(),
        }
    }
}
