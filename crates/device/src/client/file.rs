//! A file that a client writes: its tail, and the lane on which its changes are sent.
//!
//! What the caller appends goes into the *tail*, which keeps all changes since the last answered
//! sync. From there the changes are sent on a connection, in order. An append does not wait for its
//! answer. If the connection fails, the changes without an answer are sent again on another one. If
//! the server has forgotten the session, the whole tail is sent again and overwrites what is there
//! (RFC 9, section 6).
//!
//! Small appends are joined (`file/append.rs`), and sent with few calls of the link
//! (`file/sending.rs`).
//!
//! After [`ClientOptions::sync_bytes`](super::session::ClientOptions::sync_bytes) bytes a sync is
//! sent although nobody asked for one. Appends behind it are answered after it, so the bytes that
//! are answered and not durable stay below the limit of the tail, and a restart of the device loses
//! nothing. If the option is larger than that limit, or 0, a tail can become incomplete.
//!
//! Invariants:
//! - The tail takes an append whole or not at all, so an append that failed has had no effect.
//! - Changes are sent in the order of their numbers, which have no gaps within a state of the
//!   server.
//! - Nothing is sent behind a reserve before the reserve is answered, because a reserve that fails
//!   changes nothing.
//! - While the tail is incomplete, no sync is sent before everything in front of it is answered. If
//!   the sync were sent on a connection that had ended, its result would be unknown, and the file
//!   would fail.
//! - A change that was sent in this state of the server is sent again unchanged, so nothing is
//!   joined to it.
//! - `failed` is set once, and every later call returns that error.
//!
//! Threading: shared. `inner` is locked while something is sent, and unlocked while an answer is
//! awaited. A task that has much to send leaves the lock to other tasks between calls of the link.
//! One task at a time receives, and the others wait for it at `changed`. The name has a lock of its
//! own, because tasks that read another object look at the name. That lock is taken after `inner`.

mod append;
mod sending;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{
    Condvar, Epoch, Instant, Mutex, MutexGuard, Result, StorageError, StorageErrorKind, WriteFile,
};

use sending::{Sent, TURN};

use super::object_name::{Candidates, ObjectName};
use super::pipe::{Pipe, Receiver};
use super::purpose::LinkPurpose;
use super::session::{Limit, Losses, Session};
use crate::frames::ConnectionError;
use crate::wire::request::FileChange;
use crate::wire::{Answer, Request};

/// How often a task that waits for another task to receive checks its time limit.
const LOOK: Duration = Duration::from_millis(200);

/// The pause before another attempt to open the file in a new state of the server.
const PAUSE: Duration = Duration::from_millis(10);

/// The result of an attempt to open the file in a new state of the server.
enum Reopened {
    /// It is open.
    Open,
    /// It has failed.
    Failed,
    /// The object's name is not known now.
    Later,
}

/// A change in the tail.
struct Change {
    /// Its position among all changes of the file, counted from 1.
    serial: u64,
    kind: ChangeKind,
    /// Its number in the lane of the server's present state, or 0 if it was not sent in that state.
    number: u64,
    is_answered: bool,
}

impl Change {
    /// The bulk bytes of its request.
    fn bytes(&self) -> &[u8] {
        match &self.kind {
            ChangeKind::Append { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// Its request, for the file of this number.
    fn request(&self, file: u64) -> Request {
        Request::File {
            file,
            number: self.number,
            change: match &self.kind {
                ChangeKind::Append { position, .. } => FileChange::Append {
                    position: *position,
                },
                ChangeKind::Reserve(len) => FileChange::Reserve { len: *len },
                ChangeKind::Truncate => FileChange::Truncate,
                ChangeKind::Sync => FileChange::Sync,
            },
        }
    }
}

enum ChangeKind {
    Append { position: u64, bytes: Vec<u8> },
    Reserve(u64),
    Truncate,
    Sync,
}

impl ChangeKind {
    fn len(&self) -> usize {
        match self {
            ChangeKind::Append { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }
}

struct Inner {
    /// The server's state in which the file is open.
    state: [u8; 16],
    /// The boot of the device's machine in which the file was opened, or opened again.
    boot: Vec<u8>,
    pipe: Option<Pipe>,
    /// Counts pipes, so that a receiver notices that its pipe was replaced.
    pipe_count: u64,
    /// The connections that were lost since the last answer, the time at which the first of them
    /// was lost, and the time from which the next one may be used.
    losses: Losses,
    lost_since: Option<Instant>,
    next_try: Instant,
    is_receiving: bool,
    tail: VecDeque<Change>,
    /// The position in the file at which the tail begins.
    tail_start: u64,
    tail_bytes: usize,
    /// The bytes of appends since the last sync in the tail, whether the sync is answered or not,
    /// and whether somebody asked for it or not.
    unsynced_bytes: usize,
    /// Whether answered changes were dropped from the tail before a sync.
    is_incomplete: bool,
    /// The number of changes at the front of the tail that were sent in this state.
    sent: usize,
    /// How many of them are answered.
    answered: usize,
    unanswered_bytes: usize,
    /// When the answers that had arrived were last taken, and how many bytes were held back at that
    /// time.
    looked: (Instant, usize),
    /// The clock is read again when at least this many bytes are held back.
    clock_at: usize,
    /// Whether the link had no room for the bytes that are held back, when it was last asked.
    is_full: bool,
    next_number: u64,
    last_serial: u64,
    /// Every change up to this serial is durable.
    synced_serial: u64,
    position: u64,
    len: u64,
    /// Why the last reserve failed.
    reserve_failed: Option<StorageError>,
    failed: Option<StorageError>,
    is_closed: bool,
}

/// See the module.
pub(super) struct FileShared {
    session: Arc<Session>,
    pub(super) id: u64,
    epoch: Epoch,
    first_name: String,
    purpose: LinkPurpose,
    name: Mutex<ObjectName>,
    inner: Mutex<Inner>,
    /// The number of tasks that wait for the lock of `inner`.
    waiting: AtomicUsize,
    /// The number of tasks that wait for a change, and for the lock after that.
    resting: AtomicUsize,
    changed: Condvar,
    /// Set when nobody has the handle any more.
    pub(super) is_dropped: AtomicBool,
    pub(super) drops: Arc<AtomicU64>,
}

type Guard<'a> = MutexGuard<'a, Inner>;

/// What a task waits for.
#[derive(Clone, Copy)]
enum Goal {
    /// Everything up to this serial is answered.
    Answered(u64),
    /// There is room for this many bytes.
    Room(usize),
}

impl FileShared {
    /// A file that was opened for writing in a state of the server.
    pub(super) fn new(
        session: &Arc<Session>,
        drops: &Arc<AtomicU64>,
        id: u64,
        epoch: Epoch,
        name: &str,
        len: u64,
        state: [u8; 16],
    ) -> FileShared {
        let boot = session.welcome().map(|w| w.boot.clone());
        let inner = Inner {
            state,
            boot: boot.unwrap_or_default(),
            pipe: None,
            pipe_count: 0,
            losses: Losses::default(),
            lost_since: None,
            next_try: session.runtime.now(),
            is_receiving: false,
            tail: VecDeque::new(),
            tail_start: 0,
            tail_bytes: 0,
            unsynced_bytes: 0,
            is_incomplete: false,
            sent: 0,
            answered: 0,
            unanswered_bytes: 0,
            looked: (session.runtime.now(), 0),
            clock_at: 0,
            is_full: false,
            next_number: 1,
            last_serial: 0,
            synced_serial: 0,
            position: 0,
            len,
            reserve_failed: None,
            failed: None,
            is_closed: false,
        };
        FileShared {
            session: Arc::clone(session),
            id,
            epoch,
            first_name: name.to_string(),
            purpose: session.purpose_of(name),
            name: session.runtime.mutex(ObjectName::new(name)),
            inner: session.runtime.mutex(inner),
            waiting: AtomicUsize::new(0),
            resting: AtomicUsize::new(0),
            changed: session.runtime.condvar(),
            is_dropped: AtomicBool::new(false),
            drops: Arc::clone(drops),
        }
    }

    /// Writing begins at this position.
    pub(super) fn begin_at(&self, position: u64) {
        let mut inner = self.lock();
        (inner.position, inner.tail_start) = (position, position);
    }

    /// Calls a function with the object's name, which it may change.
    pub(super) fn with_name<T>(&self, f: impl FnOnce(&mut ObjectName) -> T) -> T {
        f(&mut self.name.lock())
    }

    /// The object's name, for messages.
    fn shown_name(&self) -> String {
        self.name.lock().text().to_string()
    }

    /// Whether a change has no answer yet.
    pub(super) fn is_unanswered(&self) -> bool {
        let inner = self.lock();
        inner.failed.is_none() && inner.answered < inner.tail.len()
    }

    /// Waits until everything that was appended so far is answered.
    pub(super) fn drain(&self, limit: &Limit, op: &'static str) -> Result<()> {
        let inner = self.lock();
        let goal = Goal::Answered(inner.last_serial);
        self.work_until(inner, goal, limit, op).map(drop)
    }

    /// Closes the file: its pipe goes back to the pool.
    pub(super) fn close(&self) {
        let mut inner = self.lock();
        inner.is_closed = true;
        self.drop_pipe(&mut inner);
    }

    /// Drops what was appended and not answered, because nobody needs the object any more. If some
    /// of it is under way, its connection ends. Every later call fails.
    pub(super) fn give_up(&self) {
        let mut inner = self.lock();
        let detail = "the object was given up";
        let kind = StorageErrorKind::Closed;
        let error = StorageError::new(kind, "append", self.shown_name(), detail);
        self.fail(&mut inner, error);
    }

    fn fail(&self, inner: &mut Inner, error: StorageError) {
        inner.failed.get_or_insert(error);
        self.drop_pipe(inner);
        inner.tail.clear();
        inner.tail_bytes = 0;
        (inner.sent, inner.answered, inner.unanswered_bytes) = (0, 0, 0);
        self.changed.notify_all();
    }

    /// Gives the pipe back if all its requests are answered, and closes it otherwise.
    fn drop_pipe(&self, inner: &mut Inner) {
        if let Some(pipe) = inner.pipe.take() {
            inner.pipe_count += 1;
            match inner.sent == inner.answered && pipe.receiver.is_some() {
                true => self.session.give_back(pipe),
                false => self.session.discard(pipe),
            }
        }
    }

    /// Gives the pipe back if the file has nothing to send and nothing to receive.
    fn release_pipe(&self, inner: &mut Inner) {
        let is_done = inner.answered == inner.tail.len() && !inner.is_receiving;
        if is_done && inner.pipe.as_ref().is_some_and(|p| p.receiver.is_some()) {
            self.drop_pipe(inner);
        }
    }

    fn lost(&self, inner: &mut Inner, error: &ConnectionError) {
        tracing::debug!(file = self.first_name, %error, "the connection of a file was lost");
        if let Some(pipe) = inner.pipe.take() {
            inner.pipe_count += 1;
            self.note_loss(inner, &pipe);
            self.session.discard(pipe);
        }
        // The changes without an answer are sent again, with the same numbers.
        inner.sent = inner.answered;
        self.changed.notify_all();
    }

    /// Notes a lost connection. The next attempt waits if several connections in a row were lost.
    fn note_loss(&self, inner: &mut Inner, pipe: &Pipe) {
        let now = self.session.runtime.now();
        let since = *inner.lost_since.get_or_insert(now);
        inner.losses.count(pipe.connected, since);
        inner.next_try = now + inner.losses.pause();
    }

    fn push(&self, inner: &mut Inner, kind: ChangeKind) -> u64 {
        inner.last_serial += 1;
        inner.tail_bytes += kind.len();
        inner.unanswered_bytes += kind.len();
        inner.unsynced_bytes = match kind {
            ChangeKind::Sync => 0,
            _ => inner.unsynced_bytes + kind.len(),
        };
        inner.tail.push_back(Change {
            serial: inner.last_serial,
            kind,
            number: 0,
            is_answered: false,
        });
        inner.last_serial
    }

    /// Takes the answer to the first change that has none.
    fn answered(&self, inner: &mut Inner, answer: Answer) {
        let at = inner.answered;
        let Some(change) = inner.tail.get_mut(at).filter(|_| at < inner.sent) else {
            let error = self.session.wrong_answer("append", &self.shown_name());
            return self.fail(inner, error);
        };
        (inner.losses, inner.lost_since) = (Losses::default(), None);
        match answer {
            Answer::Done => {}
            Answer::Failed(error) if matches!(change.kind, ChangeKind::Reserve(_)) => {
                inner.tail.remove(at);
                inner.sent -= 1;
                inner.reserve_failed = Some(error);
                return;
            }
            Answer::Failed(error) => return self.fail(inner, error),
            _ => {
                let error = self.session.wrong_answer("append", &self.shown_name());
                return self.fail(inner, error);
            }
        }
        change.is_answered = true;
        let is_sync = matches!(change.kind, ChangeKind::Sync);
        let serial = change.serial;
        inner.unanswered_bytes -= change.kind.len();
        inner.answered += 1;
        if is_sync {
            inner.synced_serial = serial;
            for _ in 0..inner.answered {
                self.drop_first(inner);
            }
            inner.is_incomplete = false;
        }
        let most = self.session.options.tail_bytes;
        while inner.tail_bytes - inner.unanswered_bytes > most && inner.answered > 0 {
            self.drop_first(inner);
            inner.is_incomplete = true;
        }
    }

    /// Drops the first change of the tail. It must be answered.
    fn drop_first(&self, inner: &mut Inner) {
        if let Some(change) = inner.tail.pop_front() {
            if let ChangeKind::Append { position, bytes } = &change.kind {
                inner.tail_start = position + bytes.len() as u64;
            }
            inner.tail_bytes -= change.kind.len();
            inner.sent -= 1;
            inner.answered -= 1;
        }
    }

    /// Whether the goal is reached. Returns an error if it cannot be reached any more.
    fn reached(&self, inner: &Inner, goal: Goal, op: &'static str) -> Result<bool> {
        if let Some(error) = &inner.failed {
            return Err(error.clone());
        }
        if inner.is_closed {
            let detail = "the file was closed";
            let kind = StorageErrorKind::Closed;
            return Err(StorageError::new(kind, op, self.shown_name(), detail));
        }
        Ok(match goal {
            Goal::Room(bytes) => {
                inner.unanswered_bytes == 0
                    || inner.unanswered_bytes + bytes <= self.session.options.unanswered_bytes
            }
            Goal::Answered(serial) => {
                let next = inner.tail.get(inner.answered);
                next.is_none_or(|change| change.serial > serial)
            }
        })
    }

    /// Sends and receives until the goal is reached or the time limit has passed.
    fn work_until<'a>(
        &'a self,
        mut inner: Guard<'a>,
        goal: Goal,
        limit: &Limit,
        op: &'static str,
    ) -> Result<Guard<'a>> {
        loop {
            if self.reached(&inner, goal, op)? {
                self.release_pipe(&mut inner);
                return Ok(inner);
            }
            if self.session.is_over(limit) {
                drop(inner);
                return Err(self.session.unreachable(op, &self.shown_name()));
            }
            if inner.pipe.is_none() {
                let now = self.session.runtime.now();
                if now < inner.next_try {
                    let pause = inner.next_try.since(now);
                    inner = self.wait(inner, pause);
                    continue;
                }
                drop(inner);
                let pipe = self.session.take(limit, op, &self.shown_name());
                inner = self.lock();
                self.adopt(&mut inner, pipe?);
                if inner.pipe.is_none() && inner.failed.is_none() {
                    // The object's name is in doubt, or the connection was lost.
                    inner = self.wait(inner, PAUSE);
                }
                continue;
            }
            inner = match self.send_some(&mut inner, limit) {
                Sent::All => self.receive_one(inner),
                Sent::Lost => inner,
                Sent::Turn => self.wait(inner, TURN),
            };
        }
    }

    /// Waits for one answer, or for another task that receives.
    fn receive_one<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        if inner.is_receiving {
            return self.wait(inner, LOOK);
        }
        let pipe = inner.pipe.as_mut();
        let Some(receiver) = pipe.and_then(|pipe| pipe.receiver.take()) else {
            return inner;
        };
        let pipe_count = inner.pipe_count;
        inner.is_receiving = true;
        drop(inner);
        let (receiver, received) = receive(receiver);
        inner = self.lock();
        inner.is_receiving = false;
        self.changed.notify_all();
        if inner.pipe_count != pipe_count {
            return inner;
        }
        match received {
            Ok(Answer::Ended) => self.lost(&mut inner, &ConnectionError::End),
            Ok(answer) => {
                if let Some(pipe) = &mut inner.pipe {
                    pipe.receiver = Some(receiver);
                }
                self.answered(&mut inner, answer);
            }
            Err(error) => self.lost(&mut inner, &error),
        }
        inner
    }

    /// Binds the file to a pipe. If the pipe belongs to a new state of the server, the file is
    /// opened there first.
    fn adopt(&self, inner: &mut Inner, mut pipe: Pipe) {
        if inner.pipe.is_some() || inner.failed.is_some() || inner.is_closed {
            return self.session.give_back(pipe);
        }
        if pipe.state != inner.state {
            match self.reopen(inner, &mut pipe) {
                Ok(Reopened::Open) => {}
                Ok(Reopened::Failed | Reopened::Later) => return self.session.give_back(pipe),
                Err(error) => {
                    self.note_loss(inner, &pipe);
                    return self.session.lost(pipe, &error);
                }
            }
        }
        pipe.object = self.purpose;
        inner.sent = inner.answered;
        inner.pipe = Some(pipe);
    }

    /// Opens the file in a new state of the server.
    fn reopen(
        &self,
        inner: &mut Inner,
        pipe: &mut Pipe,
    ) -> std::result::Result<Reopened, ConnectionError> {
        let welcome = self.session.welcome();
        let boot = welcome.filter(|w| w.state == pipe.state);
        let Some(boot) = boot.map(|w| w.boot.clone()) else {
            // Yet another state of the server has begun meanwhile.
            return Err(ConnectionError::End);
        };
        // Until the answer arrives, nobody may request a change of the name, because the device
        // could execute that change first.
        let name = self.name.lock();
        let names = match name.candidates() {
            Candidates::Names(names) => names,
            Candidates::InDoubt => return Ok(Reopened::Later),
            Candidates::Lost => {
                let detail = "the device was started again after the object was deleted or \
                              replaced";
                let kind = StorageErrorKind::Closed;
                let error = StorageError::new(kind, "append", name.text(), detail);
                self.fail(inner, error);
                return Ok(Reopened::Failed);
            }
        };
        let syncs = inner.tail.iter().any(|change| {
            matches!(change.kind, ChangeKind::Sync) && change.number > 0 && !change.is_answered
        });
        if inner.is_incomplete && (boot != inner.boot || syncs) && !planted!(IncompleteTailGoesOn) {
            let detail = "the device was started again, and bytes that were not synced are lost";
            let kind = StorageErrorKind::Io;
            let error = StorageError::new(kind, "sync", name.text(), detail);
            self.fail(inner, error);
            return Ok(Reopened::Failed);
        }
        let mut answer = None;
        for candidate in names {
            let request = Request::Reopen {
                name: candidate,
                file: self.id,
                epoch: self.epoch.0,
                position: inner.tail_start,
            };
            match pipe.exchange(&request, &[])?.0 {
                Answer::Failed(error) if error.kind == StorageErrorKind::NotFound => {
                    answer.get_or_insert(Answer::Failed(error));
                }
                other => {
                    answer = Some(other);
                    break;
                }
            }
        }
        match answer {
            Some(Answer::Opened { .. }) => {}
            Some(Answer::Ended) => return Err(ConnectionError::End),
            Some(Answer::Failed(mut error)) => {
                if error.kind == StorageErrorKind::NotFound {
                    error.kind = StorageErrorKind::Closed;
                }
                self.fail(inner, error);
                return Ok(Reopened::Failed);
            }
            _ => {
                let error = self.session.wrong_answer("reopen", name.text());
                self.fail(inner, error);
                return Ok(Reopened::Failed);
            }
        }
        (inner.state, inner.boot) = (pipe.state, boot);
        (inner.sent, inner.answered, inner.next_number) = (0, 0, 1);
        inner.unanswered_bytes = inner.tail_bytes;
        for change in &mut inner.tail {
            change.number = 0;
            change.is_answered = false;
        }
        Ok(Reopened::Open)
    }

    /// Adds a change and waits for its answer.
    fn change_now(&self, kind: ChangeKind, op: &'static str) -> Result<Guard<'_>> {
        let limit = self.session.limit();
        let mut inner = self.lock();
        if let Some(error) = &inner.failed {
            return Err(error.clone());
        }
        let serial = self.push(&mut inner, kind);
        self.work_until(inner, Goal::Answered(serial), &limit, op)
    }
}

/// Receives one answer.
fn receive(mut receiver: Receiver) -> (Receiver, std::result::Result<Answer, ConnectionError>) {
    let received = receiver.receive().map(|(answer, _)| answer);
    if received.is_err() {
        // This also ends a send on a link that is stuck.
        receiver.close();
    }
    (receiver, received)
}

/// The handle of a file that is open for writing.
pub(super) struct RemoteFile(pub(super) Arc<FileShared>);

impl Drop for RemoteFile {
    fn drop(&mut self) {
        // The keeper closes the file.
        self.0.is_dropped.store(true, Ordering::Release);
        self.0.drops.fetch_add(1, Ordering::AcqRel);
    }
}

impl WriteFile for RemoteFile {
    fn name(&self) -> &str {
        &self.0.first_name
    }

    fn position(&self) -> u64 {
        self.0.lock().position
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.0.append(parts)
    }

    fn reserve(&self, len: u64) -> Result<()> {
        {
            let mut inner = self.0.lock();
            if len <= inner.len {
                return inner.failed.clone().map_or(Ok(()), Err);
            }
            inner.reserve_failed = None;
        }
        let mut inner = self.0.change_now(ChangeKind::Reserve(len), "reserve")?;
        match inner.reserve_failed.take() {
            Some(error) => Err(error),
            None => {
                inner.len = inner.len.max(len);
                Ok(())
            }
        }
    }

    fn len(&self) -> u64 {
        self.0.lock().len
    }

    fn sync(&self) -> Result<()> {
        self.0.change_now(ChangeKind::Sync, "sync").map(drop)
    }

    fn buffer_bytes(&self) -> u64 {
        self.0.lock().tail_bytes as u64
    }

    fn truncate_to_position(&self) -> Result<()> {
        let mut inner = self.0.change_now(ChangeKind::Truncate, "truncate")?;
        inner.len = inner.position;
        Ok(())
    }
}
