//! Whether the store may still be written, and why not.
//!
//! A store is *poisoned* if a sync of the log or the manifest failed, or if it is not known whether
//! bytes were written to the log. The first cause stays until the store is opened again. A store
//! has *no space* if the last attempt to get room failed, until an attempt succeeds.
//!
//! Invariant: poison is set before any caller that waits for the failed call is answered (RFC 1,
//! section 4), so nobody is acknowledged by a later sync that falsely succeeds.
//!
//! Threading: atomic state, and a mutex over the cause. `check` is one load while nothing is wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use siltstone_storage::planted;
use siltstone_storage::{Mutex, Runtime};

use crate::types::error::{Error, ErrorKind, Result, closed};
use crate::types::event::{Event, Events};

const GOOD: u8 = 0;
const NO_SPACE: u8 = 1;
const POISONED: u8 = 2;
const CLOSED: u8 = 3;
const READ_ONLY: u8 = 4;

/// See the module.
pub(crate) struct Health {
    state: AtomicU8,
    cause: Mutex<Option<Error>>,
    events: Arc<Events>,
    /// [`Event::NoSpace`] was emitted, and [`Event::SpaceAvailable`] was not emitted since.
    no_space_emitted: AtomicBool,
    /// How often there was no space.
    no_space_count: AtomicU64,
}

impl Health {
    pub(crate) fn new(runtime: &Runtime, events: Arc<Events>) -> Health {
        Health {
            state: AtomicU8::new(GOOD),
            cause: runtime.mutex(None),
            events,
            no_space_emitted: AtomicBool::new(false),
            no_space_count: AtomicU64::new(0),
        }
    }

    /// An error if writes are refused.
    #[inline]
    pub(crate) fn check(&self) -> Result<()> {
        // Acquire: a task that sees the poison also sees its cause.
        let state = self.state.load(Ordering::Acquire);
        if state == GOOD {
            Ok(())
        } else {
            self.verdict(GOOD)
        }
    }

    /// As `check`, but a full disk is no error, because edits that give space back must get
    /// through.
    pub(crate) fn check_manifest(&self) -> Result<()> {
        let state = self.state.load(Ordering::Acquire);
        if state <= NO_SPACE {
            Ok(())
        } else {
            self.verdict(NO_SPACE)
        }
    }

    /// Reads state and cause under the lock, because they change together: since the caller read
    /// the state, there may be space again, or the store may be poisoned.
    #[cold]
    fn verdict(&self, allowed: u8) -> Result<()> {
        let cause = self.cause.lock();
        let state = self.state.load(Ordering::Acquire);
        match (state, &*cause) {
            (state, _) if state <= allowed => Ok(()),
            (POISONED, Some(cause)) => Err(Error::poisoned(cause)),
            (NO_SPACE, Some(cause)) => Err(cause.clone()),
            (READ_ONLY, _) => Err(read_only()),
            _ => Err(closed()),
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.state.load(Ordering::Acquire) == POISONED
    }

    pub(crate) fn is_no_space(&self) -> bool {
        self.state.load(Ordering::Acquire) == NO_SPACE
    }

    /// Poisons the store, unless it is poisoned already: the first cause stays.
    pub(crate) fn poison(&self, cause: &Error) {
        let mut slot = self.cause.lock();
        if self.state.load(Ordering::Acquire) >= POISONED || planted!(PoisonIsForgotten) {
            return;
        }
        *slot = Some(cause.clone());
        self.state.store(POISONED, Ordering::Release);
        self.events.emit(|| Event::Poisoned {
            error: cause.clone(),
        });
        // A subscriber of traces is foreign code, so it runs under no lock of the store.
        drop(slot);
        tracing::error!(%cause, "the store takes no writes until it is opened again");
    }

    pub(crate) fn set_no_space(&self, cause: &Error) {
        let mut slot = self.cause.lock();
        if self.state.load(Ordering::Acquire) > NO_SPACE {
            return;
        }
        *slot = Some(cause.clone());
        self.state.store(NO_SPACE, Ordering::Release);
        self.no_space_count.fetch_add(1, Ordering::AcqRel);
        if !self.no_space_emitted.swap(true, Ordering::AcqRel) {
            self.events.emit(|| Event::NoSpace {
                error: cause.clone(),
            });
            drop(slot);
            tracing::warn!(%cause, "no space: writes are refused until there is space again");
        }
    }

    /// There is space. Returns true if there was none before.
    pub(crate) fn clear_no_space(&self) -> bool {
        let mut slot = self.cause.lock();
        if self.state.load(Ordering::Acquire) != NO_SPACE {
            return false;
        }
        *slot = None;
        self.state.store(GOOD, Ordering::Release);
        true
    }

    /// `Some` if [`Health::emit_space_available`] is to be called as soon as this number has stayed
    /// the same for a while. On a disk with a little room, one write finds room and the next one
    /// does not, many times a second, and a listener must not get an event for each.
    pub(crate) fn pending_space_available(&self) -> Option<u64> {
        let owes = self.no_space_emitted.load(Ordering::Acquire) && !self.is_no_space();
        owes.then(|| self.no_space_count.load(Ordering::Acquire))
    }

    /// Emits that there is space again, if that is still so.
    pub(crate) fn emit_space_available(&self) {
        let slot = self.cause.lock();
        if self.state.load(Ordering::Acquire) != GOOD
            || !self.no_space_emitted.swap(false, Ordering::AcqRel)
        {
            return;
        }
        self.events.emit(|| Event::SpaceAvailable);
        drop(slot);
        tracing::info!("there is space again");
    }

    /// The store is open for reading only, so it never takes a change.
    pub(crate) fn set_read_only(&self) {
        self.state.store(READ_ONLY, Ordering::Release);
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.state.load(Ordering::Acquire) == READ_ONLY
    }

    pub(crate) fn close(&self) {
        let _slot = self.cause.lock();
        if self.state.load(Ordering::Acquire) < POISONED {
            self.state.store(CLOSED, Ordering::Release);
        }
    }

    /// The state as a text for `stats`.
    pub(crate) fn describe(&self) -> String {
        let state = self.state.load(Ordering::Acquire);
        match state {
            GOOD => "good".into(),
            NO_SPACE => self
                .verdict(GOOD)
                .map_or_else(|e| format!("no space: {e}"), |()| "good".into()),
            POISONED => self
                .verdict(GOOD)
                .map_or_else(|e| e.to_string(), |()| "good".into()),
            READ_ONLY => "read only".into(),
            _ => "closed".into(),
        }
    }
}

/// The error of a change to a store that is open for reading only.
fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "the store is open for reading only")
        .advice("open it with Store::open to change it")
}
