//! Sends the changes in the tail of a file, and shares the file's lock while there are many.
//!
//! On a slow link, a call of the link takes as long as the link needs for the bytes. The lock is
//! held during the call. So few bytes are sent with each call, and a task that has more to send
//! leaves the lock after each call to the tasks that wait for it. Otherwise all of them would wait
//! until everything was sent, and the cancel of a job would not be noticed for as long.
//!
//! A task that waits for a change, for example because another one receives, needs the lock at the
//! end of its wait, and nobody knows when that will be. So a task that sends leaves the lock to
//! such tasks once in [`TURN_AFTER`]. It does not do so after each call: that would cost a pause
//! each time, although these tasks mostly have nothing to do.
//!
//! Invariants: those of the parent module.
//!
//! Threading: as the parent module.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{ChangeKind, FileShared, Guard, Inner};
use crate::client::pipe::Pipe;
use crate::client::session::Limit;
use crate::wire::Request;

/// The maximum number of requests of one file without an answer.
const UNANSWERED_MAX: usize = 64;

/// The maximum number of bytes of several requests that are sent with one call of the link.
const SENT_AT_ONCE: usize = 256 << 10;

/// For how long a task that has more to send leaves the lock to those that wait for it. Without
/// this time they would find it taken again.
pub(super) const TURN: Duration = Duration::from_millis(1);

/// How long a task may go on sending while others wait for a change.
const TURN_AFTER: Duration = Duration::from_millis(50);

/// The result of [`FileShared::send_some`].
pub(super) enum Sent {
    /// Everything that may be sent now was sent.
    All,
    /// There is no pipe, or the call must give up.
    Lost,
    /// There is more to send, and other tasks wait.
    Turn,
}

impl FileShared {
    /// Takes the lock of the file.
    pub(super) fn lock(&self) -> Guard<'_> {
        if let Some(inner) = self.inner.try_lock() {
            return inner;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let inner = self.inner.lock();
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        inner
    }

    /// Leaves the lock until something has changed, for this long at most.
    pub(super) fn wait<'a>(&self, inner: Guard<'a>, timeout: Duration) -> Guard<'a> {
        self.resting.fetch_add(1, Ordering::AcqRel);
        let inner = self.changed.wait_timeout(inner, timeout).0;
        self.resting.fetch_sub(1, Ordering::AcqRel);
        inner
    }

    /// Gives numbers to the changes that are sent together next, and returns the index behind the
    /// last of them. They have at most `most` bytes, unless a single change has more.
    fn number_some(&self, inner: &mut Inner, most: usize) -> usize {
        let (mut end, mut bytes) = (inner.sent, 0);
        while end < inner.tail.len() && end - inner.answered < UNANSWERED_MAX {
            let is_behind_reserve =
                end > inner.answered && matches!(inner.tail[end - 1].kind, ChangeKind::Reserve(_));
            // See the invariants. The result of this sync must not become unknown without need.
            let is_sync_too_soon = inner.is_incomplete
                && end > inner.answered
                && matches!(inner.tail[end].kind, ChangeKind::Sync);
            bytes += inner.tail[end].kind.len();
            if is_behind_reserve || is_sync_too_soon || (end > inner.sent && bytes > most) {
                break;
            }
            if inner.tail[end].number == 0 {
                inner.tail[end].number = inner.next_number;
                inner.next_number += 1;
            }
            end += 1;
        }
        end
    }

    /// Sends what may be sent. Ends early after a call of the link if another task needs the lock,
    /// and at once if a call with this limit must give up.
    pub(super) fn send_some(&self, inner: &mut Inner, limit: &Limit) -> Sent {
        let before = inner.sent;
        let is_first = Cell::new(true);
        let runtime = &self.session.runtime;
        let begun = runtime.now();
        let is_wanted = || {
            self.waiting.load(Ordering::Acquire) > 0
                || self.resting.load(Ordering::Acquire) > 0
                    && runtime.now().since(begun) >= TURN_AFTER
        };
        let has_pipe = self.send_while(inner, SENT_AT_ONCE, |_| {
            (is_first.replace(false) || !is_wanted()) && !limit.is_cancelled()
        });
        let has_more = inner.sent > before && inner.sent < inner.tail.len();
        match has_pipe && !limit.is_cancelled() {
            true if has_more && is_wanted() => Sent::Turn,
            true => Sent::All,
            false => Sent::Lost,
        }
    }

    /// Sends what may be sent, with at most `most` bytes for each call of the link. Ends before a
    /// call for which `goes_on` returns false. Returns false if there is no pipe.
    pub(super) fn send_while(
        &self,
        inner: &mut Inner,
        most: usize,
        goes_on: impl Fn(&Pipe) -> bool,
    ) -> bool {
        let Some(mut pipe) = inner.pipe.take() else {
            return false;
        };
        let mut lost = None;
        while goes_on(&pipe) {
            let end = self.number_some(inner, most);
            if end == inner.sent {
                break;
            }
            let changes: Vec<_> = inner.tail.range(inner.sent..end).collect();
            let bulk: Vec<[&[u8]; 1]> = changes.iter().map(|change| [change.bytes()]).collect();
            let requests: Vec<Request> = changes.iter().map(|c| c.request(self.id)).collect();
            let bulk = bulk.iter().map(|bulk| &bulk[..]);
            let frames: Vec<_> = requests.iter().zip(bulk).collect();
            if let Err(error) = pipe.send_all(&frames) {
                lost = Some(error);
                break;
            }
            inner.sent = end;
        }
        inner.pipe = Some(pipe);
        if let Some(error) = lost {
            self.lost(inner, &error);
            return false;
        }
        true
    }
}
