//! Appends to a file that a client writes. Small appends are joined.
//!
//! While a request is under way, small appends are held back and joined into one request, because
//! each request costs two system calls and wakes a task of the device. The joined append is sent by
//! a call that waits for an answer or reads the object, by an append that finds no request under
//! way, or by the append that makes it large. If there is no such call, the keeper sends it. An
//! append that finds no request under way is sent at once, unless the link has no room. So a writer
//! waits for a busy device only when the limit of bytes without an answer is reached, or when the
//! file needs a connection and a new one has to be made.
//!
//! Invariants: those of the parent module. Nothing is joined to a change that has a number, because
//! that change is sent again unchanged. Nothing is joined either when a sync is due. An append that
//! fails as `Unreachable` has had no effect.
//!
//! Threading: as the parent module.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::{Result, StorageErrorKind};

use super::{ChangeKind, FileShared, Goal, Guard, Inner};
use crate::client::session::Limit;
use crate::frames::ConnectionError;
use crate::wire::Answer;
use crate::wire::frame::BULK_MAX;

/// While at least this many requests of one file are under way, small appends are held back and
/// joined.
const HELD_AT: usize = 1;

/// The maximum number of bytes of appends that are joined into one request.
const JOINED_MAX: usize = 64 << 10;

/// While appends are held back, the answers that have arrived are taken each time that this many
/// bytes were added, or that this much time has passed. Each look is a system call.
const LOOK_AFTER: (usize, Duration) = (32 << 10, Duration::from_millis(1));

/// While appends are held back, the clock is read each time that this many bytes were added. Most
/// appends to a log are records of about a hundred bytes, and reading the clock takes longer than
/// copying one.
const CLOCK_AFTER: usize = 2 << 10;

impl FileShared {
    /// As [`WriteFile::append`](siltstone_storage::WriteFile::append).
    pub(super) fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        let mut inner = self.lock();
        if waits_quietly(&inner, total)
            && self.reached(&inner, Goal::Room(total), "append")?
            && self.join(&mut inner, parts, total)
        {
            return Ok(());
        }
        self.append_to(inner, parts, total, &self.session.limit())
    }

    /// As [`FileShared::append`], with a limit of the caller.
    pub(in crate::client) fn append_within(&self, parts: &[&[u8]], limit: &Limit) -> Result<()> {
        let total = parts.iter().map(|part| part.len()).sum();
        self.append_to(self.lock(), parts, total, limit)
    }

    /// Appends parts with `total` bytes to the tail as soon as it has room for them.
    fn append_to<'a>(
        &'a self,
        inner: Guard<'a>,
        parts: &[&[u8]],
        total: usize,
        limit: &Limit,
    ) -> Result<()> {
        let mut inner = self.work_until(inner, Goal::Room(total), limit, "append")?;
        if total == 0 {
            return Ok(());
        }
        if self.join(&mut inner, parts, total) {
            return self.appended(inner, limit);
        }
        let mut position = inner.position;
        let mut bytes = Vec::with_capacity(total.min(BULK_MAX));
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                let take = part.len().min(BULK_MAX - bytes.len());
                bytes.extend_from_slice(&part[..take]);
                part = &part[take..];
                if bytes.len() == BULK_MAX {
                    position = self.push_append(&mut inner, position, std::mem::take(&mut bytes));
                }
            }
        }
        if !bytes.is_empty() {
            position = self.push_append(&mut inner, position, bytes);
        }
        inner.position = position;
        inner.len = inner.len.max(position);
        self.appended(inner, limit)
    }

    /// Adds an append to the tail, behind a sync if one is due. Returns the position at which it
    /// ends.
    fn push_append(&self, inner: &mut Inner, position: u64, bytes: Vec<u8>) -> u64 {
        if self.is_sync_due(inner) {
            self.push(inner, ChangeKind::Sync);
        }
        let end = position + bytes.len() as u64;
        self.push(inner, ChangeKind::Append { position, bytes });
        end
    }

    /// Whether so many bytes were appended since the last sync that the next append must follow a
    /// new sync.
    fn is_sync_due(&self, inner: &Inner) -> bool {
        let after = self.session.options.sync_bytes;
        after > 0 && inner.unsynced_bytes >= after
    }

    /// Adds the bytes to the last append of the tail, if that append was not sent yet and they fit.
    fn join(&self, inner: &mut Inner, parts: &[&[u8]], total: usize) -> bool {
        if self.is_sync_due(inner) {
            return false;
        }
        let position = inner.position;
        let Some(last) = inner.tail.back_mut().filter(|last| last.number == 0) else {
            return false;
        };
        let ChangeKind::Append {
            position: begin,
            bytes,
        } = &mut last.kind
        else {
            return false;
        };
        if *begin + bytes.len() as u64 != position || bytes.len() + total > JOINED_MAX {
            return false;
        }
        parts.iter().for_each(|part| bytes.extend_from_slice(part));
        inner.tail_bytes += total;
        inner.unanswered_bytes += total;
        inner.unsynced_bytes += total;
        inner.position += total as u64;
        inner.len = inner.len.max(inner.position);
        self.session
            .vital
            .joined_count
            .fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Sends what was appended, if that needs no wait for the device. Otherwise a later call or the
    /// keeper sends it.
    fn appended<'a>(&'a self, mut inner: Guard<'a>, limit: &Limit) -> Result<()> {
        if inner.pipe.is_none() {
            let rests = self.session.runtime.now() < inner.next_try;
            drop(inner);
            let Some(pipe) = (!rests).then(|| self.session.take_now()).flatten() else {
                return Ok(());
            };
            inner = self.lock();
            self.adopt(&mut inner, pipe);
        }
        if is_held(&inner) && self.looks_again(&mut inner) {
            self.take_answers(&mut inner);
        }
        if !is_held(&inner) {
            let is_full = Cell::new(false);
            self.send_while(&mut inner, JOINED_MAX, |pipe| {
                is_full.set(!pipe.has_room());
                !is_full.get() && !limit.is_cancelled()
            });
            inner.is_full = is_full.get() && held_bytes(&inner) > 0;
            if inner.is_full {
                inner.looked = (self.session.runtime.now(), held_bytes(&inner));
            }
        }
        if self.session.is_crowded() {
            // Other files wait for a connection, so this file does not keep one.
            let goal = Goal::Answered(inner.last_serial);
            match self.work_until(inner, goal, limit, "append") {
                // The bytes were taken and stay in the tail. If this returned `Unreachable`, the
                // caller could assume that the append had no effect, and repeat it.
                Err(error) if error.kind == StorageErrorKind::Unreachable => {}
                waited => drop(waited?),
            }
        }
        Ok(())
    }

    /// Whether it is time to take the answers that have arrived.
    fn looks_again(&self, inner: &mut Inner) -> bool {
        let (now, held) = (self.session.runtime.now(), held_bytes(inner));
        inner.clock_at = held + CLOCK_AFTER;
        let (then, held_then) = inner.looked;
        // If fewer bytes are held back than before, those were sent meanwhile, and these are new
        // ones.
        let is_due =
            held < held_then || held - held_then >= LOOK_AFTER.0 || now.since(then) >= LOOK_AFTER.1;
        if is_due {
            inner.looked = (now, held);
            inner.is_full = false;
        }
        is_due
    }

    /// Takes the answers that have already arrived.
    fn take_answers(&self, inner: &mut Inner) {
        while inner.sent > inner.answered {
            let receiver = inner.pipe.as_mut().and_then(|pipe| pipe.receiver.as_mut());
            let Some(receiver) = receiver else {
                return;
            };
            match receiver.receive_now() {
                Ok(None) => return,
                Ok(Some((Answer::Ended, _))) => self.lost(inner, &ConnectionError::End),
                Ok(Some((answer, _))) => self.answered(inner, answer),
                Err(error) => self.lost(inner, &error),
            }
        }
    }
}

/// The bytes that were not sent yet.
fn held_bytes(inner: &Inner) -> usize {
    let waiting = inner.tail.range(inner.sent..);
    waiting.map(|change| change.kind.len()).sum()
}

/// Whether an append of `more` bytes can be added to what is held back without reading the clock.
fn waits_quietly(inner: &Inner, more: usize) -> bool {
    let held = held_bytes(inner);
    is_held(inner) && held >= inner.looked.1 && held + more < inner.clock_at
}

/// Whether the bytes that were not sent yet are held back, so that more can be joined to them.
fn is_held(inner: &Inner) -> bool {
    inner.is_full
        || inner.sent - inner.answered >= HELD_AT && held_bytes(inner) < JOINED_MAX / 4 * 3
}
