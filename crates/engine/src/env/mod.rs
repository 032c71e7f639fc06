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
use siltstone_storage::{Epoch, Lease, Mutex, Runtime};

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
    pub(crate) session: SessionId,
    /// As the store was opened.
    pub(crate) options: Options,
    /// As they are now: those that change while the store is open are read here.
    pub(crate) live: ArcSwap<Options>,
    /// The file of options in the store's folder as the open found it; an open for reading ignores
    /// it.
    pub(crate) options_file: options_file::Read,
    pub(crate) runtime: Runtime,
    pub(crate) storages: Storages,
    /// The storages beneath those of an open for reading, and the log that it replayed.
    pub(crate) below: Option<Below>,
    pub(crate) guards: Guards,
    pub(crate) epoch: Epoch,
    pub(crate) lease: Mutex<Option<Box<dyn Lease>>>,
    pub(crate) health: Arc<Health>,
    pub(crate) events: Arc<Events>,
    pub(crate) metrics: Metrics,
    /// Ingests that bring files in; closing waits for them.
    pub(crate) ingests: IngestsInFlight,
    pub(crate) closing: AtomicBool,
    /// Failures of flushes and compactions.
    pub(crate) failures: Failures,
    /// A flush or a compaction may have become possible, or the store closes. Workers wait for it.
    pub(crate) work: Notify,
    /// A job ended, or a worker found nothing to do. Callers who wait for jobs wait for it.
    pub(crate) settled: Notify,
    /// The load of a keyspace may have fallen, or a writer that waits may go on. Stalled writers
    /// wait for it.
    pub(crate) pressure: Arc<Notify>,
    /// Something is to be prepared, deleted or tried again, or the store closes. The maintenance
    /// task waits for it.
    pub(crate) maintenance: Notify,
    /// The tasks are to end. Those that pause after a failure wait for it.
    pub(crate) ending: Notify,
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
            settled: Notify::new(&runtime),
            pressure: Arc::new(Notify::new(&runtime)),
            maintenance: Notify::new(&runtime),
            ending: Notify::new(&runtime),
            runtime,
        }
    }

    /// Refuses a call once the store is being closed.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            Err(closed())
        } else {
            Ok(())
        }
    }
}
