//! What surrounds an open store: its storages and open files, its health, and later its clock, its
//! events and its notifiers.
//!
//! Nothing here knows keyspaces, tables or the log.

pub(crate) mod descriptors;
pub(crate) mod guard;
pub(crate) mod health;
pub(crate) mod ingests;
pub(crate) mod session;
pub(crate) mod table_files;
pub(crate) mod wrapped_storage;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use siltstone_storage::{Condvar, Epoch, Lease, Mutex, Runtime};

use crate::env::guard::Guards;
use crate::env::health::Health;
use crate::env::ingests::IngestsInFlight;
use crate::env::session::SessionId;
use crate::env::wrapped_storage::Below;
use crate::formats::directories::Storages;
use crate::formats::options_file;
use crate::types::error::{Error, Result, closed};
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
    /// Something may have become possible: a flush, a compaction, an end.
    pub(crate) work: Condvar,
    /// A job ended or nothing is left to do.
    pub(crate) settled: Condvar,
    /// Space is wanted: the background tries to leave `NoSpace`.
    pub(crate) tidy: Mutex<Tidy>,
    pub(crate) tidy_wake: Condvar,
    /// Workers that pause after a failed job wait here.
    pub(crate) tidy_pause: Condvar,
    pub(crate) last_job_error: Mutex<Option<Error>>,
}

/// What the maintenance task is asked for.
#[derive(Default)]
pub(crate) struct Tidy {
    pub(crate) wanted: bool,
    pub(crate) closing: bool,
}

impl Env {
    /// Wakes the maintenance task.
    pub(crate) fn wake_tidy(&self) {
        let mut tidy = self.tidy.lock();
        if !tidy.wanted {
            tidy.wanted = true;
            self.tidy_wake.notify_all();
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
