//! The environment of an open store: its options, runtime, storages and open files, its health, its
//! events and metrics, and the notifiers on which its tasks wait.
//!
//! Nothing here knows keyspaces or the log. Of tables it knows only that they are files.

pub(crate) mod below;
pub(crate) mod descriptors;
pub(crate) mod failures;
pub(crate) mod flush_load;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod ingests;
pub(crate) mod locations;
pub(crate) mod notify;
pub(crate) mod outage;
pub(crate) mod reading_for;
pub(crate) mod repeating;
pub(crate) mod segment_pins;
pub(crate) mod session;
pub(crate) mod table_files;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use siltstone_storage::{Epoch, Instant, Lease, Mutex, Runtime};

use crate::env::below::Below;
use crate::env::failures::Failures;
use crate::env::flush_load::FlushLoad;
use crate::env::guard::Guards;
use crate::env::health::Health;
use crate::env::ingests::IngestsInFlight;
use crate::env::locations::Locations;
use crate::env::notify::Notify;
use crate::env::outage::Outage;
use crate::env::segment_pins::SegmentPins;
use crate::env::session::SessionId;
use crate::formats::directories::Storages;
use crate::formats::options_file;
use crate::types::error::{Result, closed};
use crate::types::event::Events;
use crate::types::metrics::Metrics;
use crate::types::options::Options;

/// The environment of an open store, which all of its parts share.
pub(crate) struct Env {
    /// Identifies this open of the store. Batches belong to it.
    session: SessionId,
    /// The options with which the store was opened.
    options: Options,
    /// The options now. Those that may change while the store is open are read here.
    live: ArcSwap<Options>,
    /// The file of options in the store's folder, as the open found it. An open for reading ignores
    /// it.
    options_file: options_file::Read,
    runtime: Runtime,
    /// The storages whose calls wait until the storage can be reached, and those below them, whose
    /// calls fail instead.
    storages: Storages,
    storages_at_once: Storages,
    outage: Arc<Outage>,
    /// The second location of tables.
    locations: Arc<Locations>,
    /// Of an open for reading only: the storages below those that keep new files in memory, and the
    /// log that it replayed.
    below: Option<Below>,
    guards: Guards,
    epoch: Epoch,
    lease: Mutex<Option<Box<dyn Lease>>>,
    health: Arc<Health>,
    events: Arc<Events>,
    metrics: Metrics,
    /// Ingests that are bringing files in, for which a close waits.
    ingests: IngestsInFlight,
    closing: AtomicBool,
    /// Free bytes where tables are written, as maintenance found last; the maximum if they are not
    /// known.
    free_bytes: AtomicU64,
    /// The free bytes that count for writers, in the same way.
    free_for_writers: AtomicU64,
    /// Failures of flushes and compactions.
    failures: Failures,
    flush_load: Arc<FlushLoad>,
    segment_pins: SegmentPins,
    /// Notified if a flush or a compaction may have become possible, and if the store closes.
    /// Workers wait for it.
    work: Notify,
    /// Notified if a job ended, and if a worker found nothing to do. Callers that wait for jobs
    /// wait for it.
    job_ended: Notify,
    /// Notified if the load of a keyspace may have fallen, and if the next stalled writer may go
    /// on. Stalled writers wait for it.
    pressure: Arc<Notify>,
    /// Notified if something must be prepared, deleted or tried again, and if the store closes. The
    /// maintenance task waits for it.
    maintenance: Notify,
    /// Notified if a log segment or an arena will be needed soon, and if the store closes. The task
    /// of supplies waits for it.
    supplies: Notify,
    /// Notified if the tasks must end. Tasks that pause after a failure wait for it.
    ending: Notify,
}

/// What an [`Env`] is made of.
pub(crate) struct Surroundings {
    pub(crate) options: Options,
    pub(crate) options_file: options_file::Read,
    pub(crate) runtime: Runtime,
    pub(crate) storages: Storages,
    pub(crate) storages_at_once: Storages,
    pub(crate) outage: Arc<Outage>,
    pub(crate) locations: Arc<Locations>,
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
            storages_at_once: of.storages_at_once,
            outage: of.outage,
            locations: of.locations,
            below: of.below,
            guards: of.guards,
            epoch: of.epoch,
            lease: runtime.mutex(Some(of.lease)),
            health: of.health,
            events: of.events,
            metrics: of.metrics,
            ingests: IngestsInFlight::new(&runtime),
            segment_pins: SegmentPins::new(&runtime),
            closing: AtomicBool::new(false),
            free_bytes: AtomicU64::new(u64::MAX),
            free_for_writers: AtomicU64::new(u64::MAX),
            failures: Failures::new(&runtime),
            work: Notify::new(&runtime),
            flush_load: Arc::new(FlushLoad::new(runtime.cores())),
            job_ended: Notify::new(&runtime),
            pressure: Arc::new(Notify::new(&runtime)),
            maintenance: Notify::new(&runtime),
            supplies: Notify::new(&runtime),
            ending: Notify::new(&runtime),
            runtime,
        }
    }

    /// The options that the store was opened with.
    #[inline]
    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The options now.
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

    /// The storages for what changes the manifest, names or tables: while they cannot be reached,
    /// their calls wait.
    #[inline]
    pub(crate) fn storages(&self) -> &Storages {
        &self.storages
    }

    /// The storages for reads of users, whose calls fail if they cannot be reached.
    #[inline]
    pub(crate) fn storages_at_once(&self) -> &Storages {
        &self.storages_at_once
    }

    #[inline]
    pub(crate) fn outage(&self) -> &Arc<Outage> {
        &self.outage
    }

    #[inline]
    pub(crate) fn locations(&self) -> &Arc<Locations> {
        &self.locations
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
    pub(crate) fn segment_pins(&self) -> &SegmentPins {
        &self.segment_pins
    }

    #[inline]
    pub(crate) fn flush_load(&self) -> &Arc<FlushLoad> {
        &self.flush_load
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
    pub(crate) fn supplies(&self) -> &Notify {
        &self.supplies
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

    /// Repeats the deletions that failed, at the second location of tables or in all other folders
    /// (location 0). Returns the names of the files that are gone now.
    pub(crate) fn delete_again(&self, location: u32) -> Vec<String> {
        self.guards.delete_again(location, self.epoch)
    }

    /// Free bytes where tables are written, if they are known, as of the last second.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let free = self.free_bytes.load(Ordering::Relaxed);
        Some(free).filter(|free| *free != u64::MAX)
    }

    /// Notes the free bytes where tables are written, and those that count for writers.
    pub(crate) fn set_free_bytes(&self, free: Option<u64>, for_writers: Option<u64>) {
        let set = |at: &AtomicU64, free: Option<u64>| {
            at.store(free.unwrap_or(u64::MAX), Ordering::Relaxed);
        };
        set(&self.free_bytes, free);
        set(&self.free_for_writers, for_writers);
    }

    /// The free bytes that count for writers, if they are known: those at location 0, or, while
    /// that has hardly any and flushes go to the second location, those there.
    pub(crate) fn free_for_writers(&self) -> Option<u64> {
        let free = self.free_for_writers.load(Ordering::Relaxed);
        Some(free).filter(|free| *free != u64::MAX)
    }

    /// Whether the store is being closed.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Marks the store as being closed. Returns false if it was marked already.
    pub(crate) fn begin_closing(&self) -> bool {
        !self.closing.swap(true, Ordering::AcqRel)
    }

    /// Drops the lease, so that another process may open the store. This makes no storage call.
    pub(crate) fn drop_lease(&self) {
        let lease = self.lease.lock().take();
        drop(lease);
    }

    /// Gives the lease back, and returns when another process may open the store.
    pub(crate) fn release_lease(&self) {
        let lease = self.lease.lock().take();
        if let Some(Err(error)) = lease.map(|lease| lease.release()) {
            tracing::warn!(%error, "the lease of the closed store could not be given back");
        }
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
