//! Ingests that are bringing files in. They change the store's folders while they hold neither the
//! lead nor the manifest role, so a close waits for them.
//!
//! Invariant: an ingest either sees that the store is being closed, or the close sees the ingest
//! and waits for it.
//!
//! Threading: a mutex over the count, which is held over nothing else.

use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{Condvar, Mutex, Runtime};

use crate::env::Env;
use crate::types::error::Result;

/// The ingests of a store that are bringing files in.
pub(crate) struct IngestsInFlight {
    count: Mutex<usize>,
    none_left: Condvar,
    /// A table that an ingest linked could not be synced. From then on tables are copied.
    links_fail: AtomicBool,
}

impl IngestsInFlight {
    pub(crate) fn new(runtime: &Runtime) -> IngestsInFlight {
        IngestsInFlight {
            count: runtime.mutex(0),
            none_left: runtime.condvar(),
            links_fail: AtomicBool::new(false),
        }
    }

    /// Whether tables must be copied, because one that was linked could not be synced.
    pub(crate) fn links_fail(&self) -> bool {
        self.links_fail.load(Ordering::Acquire)
    }

    /// From now on tables are copied.
    pub(crate) fn set_links_fail(&self) {
        self.links_fail.store(true, Ordering::Release);
    }

    /// Waits until no ingest is left. The caller has called `Env::begin_closing` before, so no new
    /// one begins.
    pub(crate) fn wait_until_none_left(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            count = self.none_left.wait(count);
        }
    }
}

/// One ingest that is bringing files in; it ends when this is dropped.
pub(crate) struct IngestInFlight<'a>(&'a IngestsInFlight);

impl<'a> IngestInFlight<'a> {
    /// Begins one, unless the store is being closed.
    pub(crate) fn begin(env: &'a Env) -> Result<IngestInFlight<'a>> {
        let mut count = env.ingests.count.lock();
        // Under the lock: a close that begins later finds this ingest in the count.
        env.check_open()?;
        *count += 1;
        Ok(IngestInFlight(&env.ingests))
    }
}

impl Drop for IngestInFlight<'_> {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none_left.notify_all();
        }
    }
}
