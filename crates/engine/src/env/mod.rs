//! What surrounds an open store: its storages and open files, its health, and later its clock, its
//! events and its notifiers.
//!
//! Nothing here knows keyspaces, tables or the log.

pub(crate) mod descriptors;
pub(crate) mod failures;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod ingests;
pub(crate) mod notify;
pub(crate) mod session;
pub(crate) mod table_files;
pub(crate) mod wrapped_storage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use siltstone_storage::{Epoch, Instant, Lease, Mutex, Runtime};

use crate::env::failures::Failures;
use crate::env::guard::Guards;
use crate::env::health::Health;
use crate::env::ingests::IngestsInFlight;
use crate::env::notify::Notify;
use crate::env::session::SessionId;
use crate::env::wrapped_storage::Below;
use crate::formats::directories::Storages;
use crate::formats::options_file;
use crate::types::error::{Result, closed};
use crate::types::event::Events;
use crate::types::metrics::Metrics;
use crate::types::options::Options;

/// What surrounds an open store.
pub(crate) struct Env {
    /// Identifies this open of the store, to which its batches belong.
    session: SessionId,
    /// As the store was opened.
    options: Options,
    /// As they are now: those that change while the store is open are read here.
    live: ArcSwap<Options>,
    /// The file of options in the store's folder as the open found it; an open for reading ignores
    /// it.
    options_file: options_file::Read,
    runtime: Runtime,
    storages: Storages,
    /// The storages beneath those of an open for reading, and the log that it replayed.
    below: Option<Below>,
    guards: Guards,
    epoch: Epoch,
    lease: Mutex<Option<Box<dyn Lease>>>,
    health: Arc<Health>,
    events: Arc<Events>,
    metrics: Metrics,
    /// Ingests that bring files in; closing waits for them.
    ingests: IngestsInFlight,
    closing: AtomicBool,
    /// Failures of flushes and compactions.
    failures: Failures,
    /// A flush or a compaction may have become possible, or the store closes. Workers wait for it.
    work: Notify,
    /// A job ended, or a worker found nothing to do. Callers who wait for jobs wait for it.
    job_ended: Notify,
    /// The load of a keyspace may have fallen, or a writer that waits may go on. Stalled writers
    /// wait for it.
    pressure: Arc<Notify>,
    /// Something is to be prepared, deleted or tried again, or the store closes. The maintenance
    /// task waits for it.
    maintenance: Notify,
    /// The tasks are to end. Those that pause after a failure wait for it.
    ending: Notify,
}

/// What an [`Env`] is made of.
pub(crate) struct Surroundings {
    pub(crate) options: Options,
    pub(crate) options_file: options_file::Read,
    pub(crate) runtime: Runtime,
    pub(crate) storages: Storages,
    pub(crate) below: Option<Below>,
    pub(crate) guards: Guards,
    pub(crate) epoch: Epoch,
    pub(crate) lease: Box<dyn Lease>,
    pub(crate) health: Arc<Health>,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Metrics,
}

impl Env {
    pub(crate) fn new(of: Surroundings) -> Env {
        let runtime = of.runtime;
        Env {
            session: SessionId::new(),
            live: ArcSwap::from_pointee(of.options.clone()),
            options: of.options,
            options_file: of.options_file,
            storages: of.storages,
            below: of.below,
            guards: of.guards,
            epoch: of.epoch,
            lease: runtime.mutex(Some(of.lease)),
            health: of.health,
            events: of.events,
            metrics: of.metrics,
            ingests: IngestsInFlight::new(&runtime),
            closing: AtomicBool::new(false),
            failures: Failures::new(&runtime),
            work: Notify::new(&runtime),
            job_ended: Notify::new(&runtime),
            pressure: Arc::new(Notify::new(&runtime)),
            maintenance: Notify::new(&runtime),
            ending: Notify::new(&runtime),
            runtime,
        }
    }

    /// The options that the store was opened with.
    #[inline]
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The options as they are now.
    pub(crate) fn live(&self) -> Arc<Options> {
        self.live.load_full()
    }

    pub(crate) fn set_live(&self, options: Arc<Options>) {
        self.live.store(options);
    }

    pub(crate) fn session(&self) -> SessionId {
        self.session
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    #[inline]
    pub(crate) fn options_file(&self) -> &options_file::Read {
        &self.options_file
    }

    #[inline]
    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    #[inline]
    pub(crate) fn storages(&self) -> &Storages {
        &self.storages
    }

    pub(crate) fn below(&self) -> Option<&Below> {
        self.below.as_ref()
    }

    #[inline]
    pub(crate) fn health(&self) -> &Arc<Health> {
        &self.health
    }

    #[inline]
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    #[inline]
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    #[inline]
    pub(crate) fn ingests(&self) -> &IngestsInFlight {
        &self.ingests
    }

    #[inline]
    pub(crate) fn failures(&self) -> &Failures {
        &self.failures
    }

    #[inline]
    pub(crate) fn work(&self) -> &Notify {
        &self.work
    }

    #[inline]
    pub(crate) fn job_ended(&self) -> &Notify {
        &self.job_ended
    }

    #[inline]
    pub(crate) fn pressure(&self) -> &Arc<Notify> {
        &self.pressure
    }

    #[inline]
    pub(crate) fn maintenance(&self) -> &Notify {
        &self.maintenance
    }

    #[inline]
    pub(crate) fn ending(&self) -> &Notify {
        &self.ending
    }

    /// The time now.
    #[inline]
    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Repeats the deletions that failed. Returns the names of the files that are gone now.
    pub(crate) fn delete_again(&self) -> Vec<String> {
        self.guards.delete_again(self.epoch)
    }

    /// Whether the store is being closed.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// From now on the store is being closed. Returns false if it was already.
    pub(crate) fn begin_closing(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    /// Lets another process open the store.
    pub(crate) fn give_lease_back(&self) {
        let lease = self.lease.lock().take();
        drop(lease);
    }

    /// Refuses a call once the store is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closing() {
            Err(closed())
        } else {
            Ok(())
        }
    }
}
