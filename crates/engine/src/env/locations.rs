//! The second location of tables, as an open store knows it: whether it can be used, and how much
//! room it has.
//!
//! A failure there is no failure of the store, because the log keeps all entries until a table is
//! installed. So its calls have an outage of their own and do not wait, and a failed sync of its
//! folder does not poison the store.
//!
//! Invariant: after a failed sync of the folder, nothing is written there until the next open. The
//! kernel reports a lost name once, so a later sync could succeed falsely. An event says so,
//! whoever made the call: an open, a flush or a deletion.
//!
//! Its calls may hang, so only tasks that are there for it make them. Others ask for a *round* of
//! the task that deletes tables there, and wait for its end for a limited time.
//!
//! Threading: atomic values, notifiers, and a mutex under which no other call is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Mutex, Runtime, Storage};

use crate::env::notify::Notify;
use crate::env::outage::Outage;
use crate::formats::directories::{Missing, Storages};
use crate::types::error::Error;
use crate::types::event::{Event, Events};

/// Free bytes that are not known.
const UNKNOWN: u64 = u64::MAX;

/// See the module.
pub(crate) struct Locations {
    /// The state of the second location's calls, for its own storage.
    outage: Arc<Outage>,
    /// The store has a second location.
    exists: AtomicBool,
    /// Its folder cannot be used: it is missing, or a sync of it failed.
    is_lost: AtomicBool,
    events: Arc<Events>,
    /// The failure of a sync that the open has not reported yet: it does not know yet whether the
    /// store keeps the location.
    unreported: Mutex<Option<Error>>,
    /// Its disk is also that of the log or of the manifest.
    shares_disk: AtomicBool,
    free_bytes: AtomicU64,
    /// Notified for each round that is asked for.
    requests: Notify,
    /// The number of requests that are answered.
    served: AtomicU64,
    /// Notified at the end of each round.
    rounds: Notify,
    /// No further round follows.
    is_ended: AtomicBool,
}

impl Locations {
    pub(crate) fn new(runtime: &Runtime, events: Arc<Events>) -> Arc<Locations> {
        Arc::new(Locations {
            outage: Arc::new(Outage::new(runtime)),
            exists: AtomicBool::new(false),
            is_lost: AtomicBool::new(false),
            events,
            unreported: runtime.mutex(None),
            shares_disk: AtomicBool::new(false),
            free_bytes: AtomicU64::new(UNKNOWN),
            requests: Notify::new(runtime),
            served: AtomicU64::new(0),
            rounds: Notify::new(runtime),
            is_ended: AtomicBool::new(false),
        })
    }

    /// Notes what the open has found.
    pub(crate) fn set_found(&self, storages: &Storages) {
        let Some(redirect) = &storages.redirect else {
            return;
        };
        let is_shared = |other: &Arc<dyn Storage>| is_on_one_disk(&**redirect, &**other);
        let shares = is_shared(&storages.log) || is_shared(&storages.manifest);
        self.shares_disk.store(shares, Ordering::Release);
        self.set_free_bytes(redirect.free_bytes());
        self.exists.store(true, Ordering::Release);
        let failed = self.unreported.lock().take();
        if Missing::why(&**redirect).is_some() {
            // Another event says that it is missing.
            self.is_lost.store(true, Ordering::Release);
        } else if let Some(error) = failed {
            self.report_lost(redirect.location(), error);
        }
    }

    pub(crate) fn outage(&self) -> &Arc<Outage> {
        &self.outage
    }

    /// Whether the store has a second location.
    #[inline]
    pub(crate) fn exists(&self) -> bool {
        self.exists.load(Ordering::Acquire)
    }

    /// From now on, nothing is written to the second location, in the folder `place`, because this
    /// sync failed.
    pub(crate) fn set_lost(&self, place: String, error: Error) {
        if self.is_lost.swap(true, Ordering::AcqRel) {
            return;
        }
        match self.exists() {
            true => self.report_lost(place, error),
            false => *self.unreported.lock() = Some(error),
        }
    }

    fn report_lost(&self, place: String, error: Error) {
        tracing::warn!(%error, place, "no flush goes to the second location of tables any more");
        self.events.emit(|| Event::LocationSuspended {
            place,
            error,
            for_us: None,
        });
    }

    /// Whether its folder cannot be used until the next open.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Whether its disk is also that of the log or of the manifest.
    pub(crate) fn shares_disk(&self) -> bool {
        self.shares_disk.load(Ordering::Acquire)
    }

    /// Asks for a round. The task of the second location waits for requests.
    pub(crate) fn requests(&self) -> &Notify {
        &self.requests
    }

    /// A round has answered this many requests.
    pub(crate) fn set_served(&self, count: u64) {
        self.served.store(count, Ordering::Release);
        self.rounds.notify();
    }

    /// Ends the rounds.
    pub(crate) fn end_rounds(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.requests.notify();
        self.rounds.notify();
    }

    /// Whether no further round follows.
    pub(crate) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::Acquire)
    }

    /// Asks for a round that begins now, and waits for its end. Returns false if it takes longer
    /// than `limit`. Without a second location there is nothing to wait for.
    pub(crate) fn wait_for_round(&self, runtime: &Runtime, limit: Duration) -> bool {
        if !self.exists() {
            return true;
        }
        self.requests.notify();
        let wanted = self.requests.count();
        let until = runtime.now() + limit;
        loop {
            let seen = self.rounds.count();
            if self.served.load(Ordering::Acquire) >= wanted {
                return true;
            }
            let left = until.since(runtime.now());
            if left.is_zero() || self.is_ended() {
                return false;
            }
            self.rounds.wait_past(seen, left);
        }
    }

    pub(crate) fn set_free_bytes(&self, free: Option<u64>) {
        self.free_bytes
            .store(free.unwrap_or(UNKNOWN), Ordering::Release);
    }

    /// Its free bytes, if they are known.
    pub(crate) fn free_bytes(&self) -> Option<u64> {
        let free = self.free_bytes.load(Ordering::Acquire);
        Some(free).filter(|free| *free != UNKNOWN)
    }
}

/// Whether two folders are on one file system, as far as that can be found out.
fn is_on_one_disk(one: &dyn Storage, other: &dyn Storage) -> bool {
    let device = |storage: &dyn Storage| -> Option<u64> {
        use std::os::unix::fs::MetadataExt;
        let has_path = storage.capabilities().has_path;
        let path = has_path.then(|| storage.location())?;
        std::fs::metadata(path).ok().map(|found| found.dev())
    };
    device(one).is_some_and(|device_of_one| device(other) == Some(device_of_one))
}
