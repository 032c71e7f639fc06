//! Outages: what an open store does while its storage cannot be reached.
//!
//! A storage across a link fails a call that gets no answer within its time limit as
//! [`StorageErrorKind::Unreachable`]. Nothing is damaged then. What happens next depends on the
//! caller (RFC 9, section 7). A read or a write of a user fails as that one call. Everything that
//! changes the manifest, names or tables is repeated until the storage answers, through
//! [`Outage::repeat`]: by the storage of [`crate::env::repeating`], and by callers that need a sync
//! of the log. So no edit of the manifest is in doubt while the store is open.
//!
//! A close ends these waits at once ([`Outage::end_waits`]). The first change that would have
//! waited is given up, and every later call fails with its error without being made, so the store
//! changes nothing more and the close is bounded. A read that would have waited fails alone,
//! because a close needs none. Before the open is complete, nothing waits either.
//!
//! A writer that is stalled waits for work that waits here. It gives up after [`STALL_LIMIT`]
//! ([`Outage::stalled_too_long`]). What counts for that is a call that waits now, not the last
//! call that was noted: a store may have parts on storages that answer, whose calls succeed
//! meanwhile.
//!
//! Invariants:
//! - **U1** A call is repeated only if it failed as unreachable.
//! - **U2** Once a change was given up, no call that goes through here is made.
//!
//! Threading: any task. A call that succeeds costs one atomic load. A wait holds no lock of this
//! module; its caller may hold runtime locks over it, as over the storage call that it belongs to.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use siltstone_storage::{Instant, Mutex, Runtime, StorageError, StorageErrorKind};
use siltstone_table::TableError;

use crate::env::notify::Notify;
use crate::types::error::Error;
use crate::types::metrics::Counter;

/// The store is being opened: nothing waits.
const OPENING: u8 = 0;
/// The store is open: calls are repeated.
const OPEN: u8 = 1;
/// The store is being closed: nothing waits.
const CLOSING: u8 = 2;
/// A change was given up while the store was being closed: no call is made any more.
const GIVEN_UP: u8 = 3;

/// The pause before a call is made again. The storage's time limit is the longer part of a wait.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a stalled writer waits for work that itself waits for the storage. It is the default
/// time limit of a call of a storage across a link. A wait begins when a call has failed after that
/// limit, so a writer gets its error after about two limits without an answer.
pub(crate) const STALL_LIMIT: Duration = Duration::from_secs(30);

/// What a call is, as far as an outage distinguishes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CallKind {
    /// It is made again until the storage can be reached.
    pub(super) waits: bool,
    /// It changes something, so a close that gives it up changes nothing more.
    pub(super) is_change: bool,
}

/// An error that may have a storage's error as its cause.
pub(crate) trait CallError: From<StorageError> {
    /// The storage's error.
    fn cause(&self) -> Option<&StorageError>;
}

impl CallError for StorageError {
    fn cause(&self) -> Option<&StorageError> {
        Some(self)
    }
}

impl CallError for Error {
    fn cause(&self) -> Option<&StorageError> {
        self.storage()
    }
}

impl CallError for TableError {
    fn cause(&self) -> Option<&StorageError> {
        match self {
            TableError::Storage(error) => Some(error),
            _ => None,
        }
    }
}

/// The cause of this error, if it is that the storage cannot be reached.
fn unreachable(error: &impl CallError) -> Option<&StorageError> {
    let cause = error.cause();
    cause.filter(|cause| cause.kind == StorageErrorKind::Unreachable)
}

/// A call that waits until the storage can be reached.
struct Wait {
    id: u64,
    /// When it began: on the runtime's clock, and in microseconds since 1970.
    began: (Instant, u64),
    /// Why its first try failed.
    cause: StorageError,
}

/// The calls that wait, oldest first.
#[derive(Default)]
struct Waits {
    next: u64,
    present: Vec<Wait>,
}

/// A wait in [`Waits`], until it is dropped.
struct Waiting<'a> {
    outage: &'a Outage,
    id: u64,
    /// Up to when the wait is in the counter.
    counted: Instant,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut waits = self.outage.waits.lock();
        waits.present.retain(|wait| wait.id != self.id);
    }
}

/// See the module.
pub(crate) struct Outage {
    runtime: Runtime,
    state: AtomicU8,
    /// The error of the call that was given up.
    given_up: Mutex<Option<StorageError>>,
    /// Whether the last call failed as unreachable.
    is_unreachable: AtomicBool,
    /// Since when, if so: on the runtime's clock, and in microseconds since 1970. Changes together
    /// with `is_unreachable`.
    since: Mutex<Option<(Instant, u64)>>,
    waits: Mutex<Waits>,
    /// Notified when the waits must end.
    ended: Notify,
    /// How many times the storage became unreachable.
    pub(crate) count: Counter,
    /// How many times a call began to wait until the storage can be reached.
    pub(crate) wait_count: Counter,
    /// How long calls have waited, with all their tries.
    pub(crate) wait_us: Counter,
}

impl Outage {
    pub(crate) fn new(runtime: &Runtime) -> Outage {
        Outage {
            runtime: runtime.clone(),
            state: AtomicU8::new(OPENING),
            given_up: runtime.mutex(None),
            is_unreachable: AtomicBool::new(false),
            since: runtime.mutex(None),
            waits: runtime.mutex(Waits::default()),
            ended: Notify::new(runtime),
            count: Counter::default(),
            wait_count: Counter::default(),
            wait_us: Counter::default(),
        }
    }

    /// The open is complete: from now on, calls wait.
    pub(crate) fn begin_waits(&self) {
        self.state.store(OPEN, Ordering::Release);
    }

    /// The store is being closed: all waits end now, and none begins.
    pub(crate) fn end_waits(&self) {
        let open = |state| (state <= OPEN).then_some(CLOSING);
        let _ = self
            .state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, open);
        self.ended.notify();
    }

    /// The store is being closed and cannot make durable what it has to: no call is made any more.
    pub(crate) fn give_up(&self, error: &impl CallError) {
        let Some(cause) = unreachable(error) else {
            return;
        };
        let mut given_up = self.given_up.lock();
        given_up.get_or_insert_with(|| cause.clone());
        self.state.store(GIVEN_UP, Ordering::Release);
    }

    /// The error of all calls, once one was given up.
    #[cold]
    fn given_up(&self) -> Option<StorageError> {
        self.given_up.lock().clone()
    }

    /// Makes a change, and makes it again after a pause for as long as the storage cannot be
    /// reached, unless the store is being closed.
    ///
    /// # Errors
    /// Those of the call. It failed as unreachable only if the store is not open.
    pub(crate) fn repeat<T, E: CallError>(
        &self,
        call: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let kind = CallKind {
            waits: true,
            is_change: true,
        };
        self.make(kind, call)
    }

    /// As [`Outage::repeat`], for any call.
    pub(super) fn make<T, E: CallError>(
        &self,
        kind: CallKind,
        mut call: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            if self.state.load(Ordering::Acquire) == GIVEN_UP
                && let Some(error) = self.given_up()
            {
                return Err(error.into());
            }
            let result = call();
            if let Some(waiting) = &mut waiting {
                let now = self.runtime.now();
                let took = now.since(waiting.counted);
                self.wait_us.add(took.as_micros() as u64);
                waiting.counted = now;
            }
            let Some(cause) = result.as_ref().err().and_then(unreachable) else {
                self.count_success();
                return result;
            };
            self.note(cause);
            // This is read before the state, so that no end of the waits is missed.
            let seen = self.ended.count();
            match self.state.load(Ordering::Acquire) {
                OPEN if kind.waits => {}
                CLOSING if kind.is_change => {
                    self.give_up(cause);
                    return result;
                }
                _ => return result,
            }
            if waiting.is_none() {
                waiting = Some(self.begin_wait(cause));
            }
            self.ended.wait_past(seen, PAUSE);
        }
    }

    #[cold]
    fn begin_wait(&self, cause: &StorageError) -> Waiting<'_> {
        self.wait_count.add(1);
        let began = (self.runtime.now(), self.runtime.unix_micros());
        let mut waits = self.waits.lock();
        let id = waits.next;
        waits.next += 1;
        let cause = cause.clone();
        waits.present.push(Wait { id, began, cause });
        Waiting {
            outage: self,
            id,
            counted: began.0,
        }
    }

    /// The error of a writer that is stalled since `stalled`, if it has waited for [`STALL_LIMIT`]
    /// while a call of the background waits for the storage.
    pub(crate) fn stalled_too_long(&self, stalled: Instant) -> Option<Error> {
        let (cause, away_s) = self.waited_too_long(stalled)?;
        Some(Error::from(cause).context(format!(
            "nothing was written: writes wait for background work, and that has waited for more \
             than {away_s} s for a storage"
        )))
    }

    /// The error of a caller that has waited for a flush or a compaction since `began`, in the same
    /// case. The work goes on.
    pub(crate) fn caller_waited_too_long(&self, began: Instant) -> Option<Error> {
        let (cause, away_s) = self.waited_too_long(began)?;
        Some(Error::from(cause).context(format!(
            "the call does not wait any longer: the work goes on in the background, and has \
             waited for more than {away_s} s for a storage"
        )))
    }

    /// Why a call of the background waits for the storage, and for how many seconds, if both it and
    /// a caller since `began` have waited for [`STALL_LIMIT`].
    fn waited_too_long(&self, began: Instant) -> Option<(StorageError, u64)> {
        let waits = self.waits.lock();
        let oldest = waits.present.first()?;
        let now = self.runtime.now();
        let away = now.since(oldest.began.0);
        let is_over = away.min(now.since(began)) >= STALL_LIMIT;
        is_over.then(|| (oldest.cause.clone(), away.as_secs()))
    }

    /// Notes the failure of a call that is not repeated here, if it is that the storage cannot be
    /// reached.
    pub(crate) fn count_failure(&self, error: &impl CallError) {
        if let Some(cause) = unreachable(error) {
            self.note(cause);
        }
    }

    /// Notes that a call got an answer.
    #[inline]
    pub(crate) fn count_success(&self) {
        if self.is_unreachable() {
            self.end();
        }
    }

    /// Whether the last call that was noted failed because the storage cannot be reached.
    #[inline]
    pub(crate) fn is_unreachable(&self) -> bool {
        self.is_unreachable.load(Ordering::Acquire)
    }

    /// Since when the storage cannot be reached, in microseconds since 1970; `None` if it can. If
    /// some call waits, then since it does, whatever calls of other storages have succeeded.
    pub(crate) fn since_unix_us(&self) -> Option<u64> {
        if let Some(oldest) = self.waits.lock().present.first() {
            return Some(oldest.began.1);
        }
        let since = *self.since.lock();
        since.map(|(_, unix_us)| unix_us)
    }

    #[cold]
    fn note(&self, cause: &StorageError) {
        let mut since = self.since.lock();
        if since.is_some() {
            return;
        }
        *since = Some((self.runtime.now(), self.runtime.unix_micros()));
        self.is_unreachable.store(true, Ordering::Release);
        self.count.add(1);
        // A subscriber of traces is foreign code, so it runs under no lock of the store.
        drop(since);
        tracing::warn!(error = %cause, "the storage cannot be reached");
    }

    #[cold]
    fn end(&self) {
        let mut since = self.since.lock();
        let Some((began, _)) = since.take() else {
            return;
        };
        self.is_unreachable.store(false, Ordering::Release);
        drop(since);
        let took_us = self.runtime.now().since(began).as_micros() as u64;
        tracing::info!(took_us, "the storage answers again");
    }
}

#[cfg(test)]
mod tests;
