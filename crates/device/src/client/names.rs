//! A client's lane of names: the requests that change names. At most one of them has no answer.
//!
//! Invariants (RFC 9, section 6):
//! - A request has one number in each state of the server. The next number is used only after the
//!   request was answered.
//! - A request whose caller gave up is settled before the next one is sent. A caller that makes the
//!   same call again, while nobody changed its names in between, takes over the request or its
//!   answer. So a call that is repeated until it succeeds takes effect once.
//! - A sync covers what was done before the call. So nobody takes over a sync whose caller gave up,
//!   nor its answer: it may cover less. Only its failure counts for later syncs.
//! - If a sync of names failed, or its result is not known, all later ones fail.
//! - Names that a job made are synced, or known to be lost, before the job's outcome counts.
//!
//! Threading: a caller takes the lane ([`NamesLane::turn`]) and puts it back. No lock is held
//! during a request.

use std::collections::BTreeSet;
use std::time::Duration;

use siltstone_storage::{Condvar, Mutex, Result, StorageError, StorageErrorKind};

use super::pipe::Pipe;
use super::session::{Limit, Opening, Session};
use super::unclaimed::{Answered, Unclaimed, is_same, names_of, object_of};
use crate::frames::ConnectionError;
use crate::wire::request::NamesChange;
use crate::wire::{Answer, Request};

/// A request that may have been sent.
struct Pending {
    change: NamesChange,
    epoch: u64,
    bulk: Vec<u8>,
    /// The server's state in which it was sent, and its number there.
    sent: Option<([u8; 16], u64)>,
    /// Whether the object existed before the request was sent for the first time. This is the
    /// object that a creation or an import makes, or that a rename or a recycling takes. After a
    /// restart of the server, this flag shows whether the request was refused or executed.
    was_there: Option<bool>,
}

/// What the lane knows.
#[derive(Default)]
pub(super) struct Names {
    state: [u8; 16],
    boot: Vec<u8>,
    next: u64,
    pending: Option<Pending>,
    unclaimed: Unclaimed,
    /// Names that were made since the last answered sync of names, and are still there.
    unsynced: BTreeSet<String>,
    /// Names that jobs made since then. They belong to tables that nothing refers to yet.
    made: BTreeSet<String>,
    /// Names from `made` that the machine may have lost.
    lost: BTreeSet<String>,
    /// Why no sync of names can succeed any more.
    failed: Option<StorageError>,
}

/// The lane. One task at a time has it.
pub(super) struct NamesLane {
    names: Mutex<Option<Names>>,
    changed: Condvar,
}

/// Who makes a change, and how long the call may take.
struct Call<'a> {
    session: &'a Session,
    op: &'static str,
    limit: &'a Limit,
    /// The object's name, for messages.
    shown: &'a str,
}

impl Call<'_> {
    fn is_over(&self) -> bool {
        self.session.is_over(self.limit)
    }

    fn unreachable(&self) -> StorageError {
        self.session.unreachable(self.op, self.shown)
    }
}

/// The answer to a change of names, and where it was given.
pub(super) struct Changed {
    pub(super) answer: Answer,
    /// The server's state in which it was answered.
    pub(super) state: [u8; 16],
    /// The boot of the server's machine at that time.
    pub(super) boot: Vec<u8>,
}

impl NamesLane {
    pub(super) fn new(session: &Session) -> NamesLane {
        NamesLane {
            names: session.runtime.mutex(Some(Names::default())),
            changed: session.runtime.condvar(),
        }
    }

    /// Makes a change. Returns its answer, and the number of the object that it opened.
    pub(super) fn change(
        &self,
        session: &Session,
        op: &'static str,
        epoch: u64,
        change: NamesChange,
        bulk: &[u8],
        limit: &Limit,
    ) -> Result<(Changed, u64)> {
        let shown = names_of(&change)
            .first()
            .map_or("", |name| name)
            .to_string();
        let call = Call {
            session,
            op,
            limit,
            shown: &shown,
        };
        let mut names = self.turn(&call)?;
        let result = names.change(&call, epoch, change, bulk);
        *self.names.lock() = Some(names);
        self.changed.notify_one();
        result
    }

    /// Notes names that a job made in this boot of the device's machine. They count as unsynced
    /// until the next sync of names. Returns false if the machine was restarted since then, so that
    /// the names may be lost.
    pub(super) fn note_made(
        &self,
        session: &Session,
        made: &BTreeSet<String>,
        boot: &[u8],
        limit: &Limit,
    ) -> Result<bool> {
        self.with(session, limit, |names| {
            let is_same = names.boot == boot;
            if is_same {
                names.made.extend(made.iter().cloned());
            }
            is_same
        })
    }

    /// Forgets names that a job made. Returns true if none of them may have been lost before a sync
    /// of names.
    pub(super) fn made_are_there(
        &self,
        session: &Session,
        made: &BTreeSet<String>,
        limit: &Limit,
    ) -> Result<bool> {
        self.with(session, limit, |names| {
            let before = names.lost.len();
            names.lost.retain(|name| !made.contains(name));
            names.made.retain(|name| !made.contains(name));
            names.lost.len() == before
        })
    }

    /// Calls a function with what the lane knows, as soon as no other task has the lane.
    fn with<T>(
        &self,
        session: &Session,
        limit: &Limit,
        f: impl FnOnce(&mut Names) -> T,
    ) -> Result<T> {
        let call = Call {
            session,
            op: "run a job",
            limit,
            shown: "",
        };
        let mut names = self.turn(&call)?;
        let result = f(&mut names);
        *self.names.lock() = Some(names);
        self.changed.notify_one();
        Ok(result)
    }

    /// Has the session close the objects that were opened by calls which gave up, if nobody has
    /// claimed them for a while. A caller that claims one later opens it again. Does nothing while
    /// another task has the lane.
    pub(super) fn leave_unclaimed(&self, session: &Session) {
        let objects = match self.names.lock().as_mut() {
            Some(names) => names.unclaimed.take_open(session.runtime.now()),
            None => return,
        };
        objects
            .into_iter()
            .for_each(|object| session.leave_open(object));
    }

    /// Whether a job that gave up may still begin.
    pub(super) fn has_pending_job(&self) -> bool {
        let names = self.names.lock();
        let pending = names.as_ref().map(|names| names.pending.as_ref());
        match pending {
            // Another task has the lane.
            None => true,
            Some(pending) => pending.is_some_and(|p| is_job(&p.change)),
        }
    }

    /// Waits for the lane.
    fn turn(&self, call: &Call<'_>) -> Result<Names> {
        let mut names = self.names.lock();
        loop {
            if let Some(names) = names.take() {
                return Ok(names);
            }
            let look = Duration::from_millis(200);
            names = self.changed.wait_timeout(names, look).0;
            if names.is_none() && call.is_over() {
                drop(names);
                return Err(call.unreachable());
            }
        }
    }
}

impl Names {
    fn change(
        &mut self,
        call: &Call<'_>,
        epoch: u64,
        change: NamesChange,
        bulk: &[u8],
    ) -> Result<(Changed, u64)> {
        // A request whose caller gave up comes first, whoever made it.
        if let Some(pending) = &self.pending
            && (syncs(&pending.change)
                || !is_same(&pending.change, &change)
                || pending.epoch != epoch
                || pending.bulk != bulk)
        {
            let changed = self.finish(call)?;
            if let Some((pending, changed)) = changed {
                if syncs(&pending.change) {
                    let _ = self.answered(&pending.change, changed, 0);
                } else if !is_job(&pending.change) {
                    let now = call.session.runtime.now();
                    self.unclaimed.push(
                        pending.change,
                        (pending.epoch, pending.bulk),
                        changed,
                        now,
                    );
                }
            }
        }
        if self.pending.is_none() {
            if let Some(old) = self.unclaimed.find(&change, bulk, epoch) {
                return self.claim(call, old, epoch, &change);
            }
            self.unclaimed.touch(&change);
            self.pending = Some(Pending {
                change,
                epoch,
                bulk: bulk.to_vec(),
                sent: None,
                was_there: None,
            });
        }
        let (pending, changed) = match self.finish(call) {
            Ok(Some(done)) => done,
            Ok(None) => unreachable!("there is a pending request"),
            Err(error) => {
                // A request that was never sent has had no effect.
                if self.pending.as_ref().is_some_and(|p| p.sent.is_none()) {
                    self.pending = None;
                }
                return Err(error);
            }
        };
        let object = object_of(&pending.change).unwrap_or(0);
        self.answered(&pending.change, changed, object)
    }

    /// Gives a caller the answer to its earlier call, which gave up. If the object is not open any
    /// more, it is opened again from its beginning, because nobody has written to it.
    fn claim(
        &mut self,
        call: &Call<'_>,
        old: Answered,
        epoch: u64,
        wanted: &NamesChange,
    ) -> Result<(Changed, u64)> {
        let (answer, object) = match old.must_open_again(self.state) {
            true => {
                let object = object_of(wanted).unwrap_or(0);
                let opened = self.open_again(call, wanted, object, epoch);
                match opened {
                    // The object is there, and the next call can try to open it again.
                    Ok(Answer::Failed(error)) if error.kind != StorageErrorKind::NotFound => {
                        self.unclaimed.put_back(old);
                        return Err(error);
                    }
                    Ok(answer) => (answer, object),
                    Err(error) => {
                        self.unclaimed.put_back(old);
                        return Err(error);
                    }
                }
            }
            false => (old.answer, object_of(&old.change).unwrap_or(0)),
        };
        let changed = Changed {
            answer,
            state: self.state,
            boot: self.boot.clone(),
        };
        self.answered(&old.change, changed, object)
    }

    /// Opens the object of a creation or a recycling that has taken effect.
    fn open_again(
        &mut self,
        call: &Call<'_>,
        change: &NamesChange,
        object: u64,
        epoch: u64,
    ) -> Result<Answer> {
        let name = match change {
            NamesChange::Recycle { new, .. } => new.as_str(),
            other => names_of(other).first().copied().unwrap_or_default(),
        };
        let session = call.session;
        let request = reopen_request(name, object, epoch);
        let mut opening = Opening::new(session, object);
        loop {
            let mut pipe = session.take(call.limit, call.op, call.shown)?;
            let opened = self
                .enter(session, &pipe)
                .and_then(|()| opening.exchange(&mut pipe, &request));
            match opened {
                Ok((Answer::Ended, _)) => {
                    session.lost_in(call.limit, pipe, &ConnectionError::End);
                }
                Ok((answer, _)) => {
                    session.give_back(pipe);
                    return Ok(answer);
                }
                Err(error) => session.lost_in(call.limit, pipe, &error),
            }
            if call.is_over() {
                return Err(call.unreachable());
            }
        }
    }

    /// Turns the answer to a change into a result. Notes the failure of a sync.
    fn answered(
        &mut self,
        change: &NamesChange,
        changed: Changed,
        object: u64,
    ) -> Result<(Changed, u64)> {
        match &changed.answer {
            Answer::Failed(error) => {
                let is_sync = match change {
                    NamesChange::SyncDir => true,
                    NamesChange::Replace { .. } => !error.changed_nothing(),
                    _ => false,
                };
                let is_refusal = matches!(
                    error.kind,
                    StorageErrorKind::Fenced | StorageErrorKind::InvalidInput
                );
                if is_sync && !is_refusal {
                    self.failed.get_or_insert(error.clone());
                }
                Err(error.clone())
            }
            _ => Ok((changed, object)),
        }
    }

    fn note_names(&mut self, change: &NamesChange) {
        match change {
            NamesChange::Create { name, .. } | NamesChange::Import { name, .. } => {
                self.unsynced.insert(name.clone());
            }
            NamesChange::Recycle { old, new, .. } | NamesChange::Rename { old, new } => {
                self.unsynced.remove(old);
                self.made.remove(old);
                self.unsynced.insert(new.clone());
            }
            NamesChange::Delete { name } => {
                self.unsynced.remove(name);
                self.made.remove(name);
            }
            NamesChange::SyncDir | NamesChange::Replace { .. } => {
                self.unsynced.clear();
                self.made.clear();
            }
            _ => {}
        }
    }

    /// Gets the answer to the pending request.
    fn finish(&mut self, call: &Call<'_>) -> Result<Option<(Pending, Changed)>> {
        let session = call.session;
        while let Some(mut pending) = self.pending.take() {
            let pipe = session.take(call.limit, call.op, call.shown);
            let mut pipe = match pipe {
                Ok(pipe) => pipe,
                Err(error) => {
                    self.pending = Some(pending);
                    return Err(error);
                }
            };
            if let Err(error) = self.enter(session, &pipe) {
                self.pending = Some(pending);
                session.lost_in(call.limit, pipe, &error);
                if call.is_over() {
                    return Err(call.unreachable());
                }
                continue;
            }
            match self.try_once(&mut pending, &mut pipe, session) {
                Ok(answer) => {
                    let state = pipe.state;
                    session.give_back(pipe);
                    if !matches!(answer, Answer::Failed(_)) {
                        self.note_names(&pending.change);
                    }
                    let changed = Changed {
                        answer,
                        state,
                        boot: self.boot.clone(),
                    };
                    return Ok(Some((pending, changed)));
                }
                Err(error) => {
                    self.pending = Some(pending);
                    session.lost_in(call.limit, pipe, &error);
                }
            }
            if call.is_over() {
                return Err(call.unreachable());
            }
        }
        Ok(None)
    }

    /// Starts the lane's numbers again if the pipe belongs to a new state of the server.
    fn enter(
        &mut self,
        session: &Session,
        pipe: &Pipe,
    ) -> std::result::Result<(), ConnectionError> {
        if pipe.state == self.state {
            return Ok(());
        }
        let welcome = session.welcome().filter(|w| w.state == pipe.state);
        let Some(welcome) = welcome else {
            return Err(ConnectionError::End);
        };
        if !self.boot.is_empty() && self.boot != welcome.boot && !self.unsynced.is_empty() {
            let detail = format!(
                "the device's machine was started again, and {} names that were not synced may be \
                 lost",
                self.unsynced.len()
            );
            let kind = StorageErrorKind::Io;
            let name = session.describe();
            let error = StorageError::new(kind, "sync_dir", name, detail);
            self.failed.get_or_insert(error);
        }
        if self.boot != welcome.boot {
            // Only the jobs that made these tables fail, because nobody uses the tables yet.
            let made = std::mem::take(&mut self.made);
            self.lost.extend(made);
        }
        self.state = pipe.state;
        self.boot = welcome.boot.clone();
        self.next = 1;
        Ok(())
    }

    /// Sends the request. If it was sent in an earlier state, first finds out whether it took
    /// effect.
    fn try_once(
        &mut self,
        pending: &mut Pending,
        pipe: &mut Pipe,
        session: &Session,
    ) -> std::result::Result<Answer, ConnectionError> {
        if pending.sent.is_some_and(|(state, _)| state != self.state) {
            match self.settle(pending, pipe, session)? {
                Settled::Answer(answer) => return Ok(answer),
                Settled::NotOpen(error) => {
                    // The name was made. If the caller repeats its call, the object is opened.
                    self.note_names(&pending.change);
                    let made = Changed {
                        answer: Answer::Opened { len: 0 },
                        state: [0; 16],
                        boot: self.boot.clone(),
                    };
                    let call = (pending.epoch, pending.bulk.clone());
                    let now = session.runtime.now();
                    self.unclaimed.push(pending.change.clone(), call, made, now);
                    return Ok(Answer::Failed(error));
                }
                Settled::SendAgain => {}
            }
        }
        let is_sync = matches!(
            pending.change,
            NamesChange::SyncDir | NamesChange::Replace { .. }
        );
        if let Some(error) = self.failed.as_ref().filter(|_| is_sync) {
            return Ok(Answer::Failed(error.clone()));
        }
        if pending.was_there.is_none()
            && let NamesChange::Create { name, .. }
            | NamesChange::Import { name, .. }
            | NamesChange::Rename { old: name, .. }
            | NamesChange::Recycle { old: name, .. } = &pending.change
        {
            let looked = look_at(session, pipe, name)?;
            pending.was_there = Some(matches!(looked, Looked::There(_)));
        }
        let number = match pending.sent {
            Some((state, number)) if state == self.state => number,
            _ => self.next,
        };
        pending.sent = Some((self.state, number));
        let request = Request::Names {
            number,
            epoch: pending.epoch,
            change: pending.change.clone(),
        };
        let (answer, _) = pipe.exchange(&request, &[&pending.bulk])?;
        if matches!(answer, Answer::Ended) {
            return Err(ConnectionError::End);
        }
        self.next = number + 1;
        Ok(answer)
    }

    /// Finds out whether a request that was sent in an earlier state of the server took effect.
    fn settle(
        &mut self,
        pending: &mut Pending,
        pipe: &mut Pipe,
        session: &Session,
    ) -> std::result::Result<Settled, ConnectionError> {
        let (epoch, was_there) = (pending.epoch, pending.was_there);
        let lost = |kind, op, name: &str, detail: &str| {
            Settled::Answer(Answer::Failed(StorageError::new(kind, op, name, detail)))
        };
        let mut look = |name: &str| look_at(session, pipe, name);
        let is_done = match &mut pending.change {
            NamesChange::Create { name, file, .. } => match look(name)? {
                // The name was free before, and nobody else creates names here.
                Looked::There(_) if was_there == Some(false) => {
                    return reopen(pipe, name, *file, epoch);
                }
                Looked::There(_) => {
                    let kind = StorageErrorKind::AlreadyExists;
                    return Ok(lost(kind, "create", name, "the name is taken"));
                }
                Looked::Missing | Looked::Failed => false,
            },
            NamesChange::Recycle { old, new, file } => match look(old)? {
                Looked::Missing if was_there == Some(true) => {
                    return reopen(pipe, new, *file, epoch);
                }
                _ => false,
            },
            NamesChange::Rename { old, new } => {
                was_there == Some(true)
                    && look(old)? == Looked::Missing
                    && matches!(look(new)?, Looked::There(_))
            }
            NamesChange::Delete { name } => look(name)? == Looked::Missing,
            NamesChange::SyncObject { rewrite, .. } => {
                *rewrite = true;
                false
            }
            NamesChange::SyncDir | NamesChange::Replace { .. } => {
                let detail = "the device was started again during a sync of names, whose result \
                              is not known";
                let kind = StorageErrorKind::Io;
                let error = StorageError::new(kind, "sync_dir", session.describe(), detail);
                self.failed.get_or_insert(error.clone());
                return Ok(Settled::Answer(Answer::Failed(error)));
            }
            NamesChange::Import { name, .. } => {
                // A copy may be incomplete.
                if was_there == Some(false) && matches!(look(name)?, Looked::There(_)) {
                    let detail =
                        "the device was started again during the import; delete the object";
                    return Ok(lost(StorageErrorKind::Io, "import", name, detail));
                }
                false
            }
            NamesChange::BeginJob(order) | NamesChange::BeginRebuild(order) => {
                let detail = "the device was started again when the job began";
                let name = format!("attempt {}", order.attempt);
                let kind = StorageErrorKind::Unreachable;
                return Ok(lost(kind, "run a job", &name, detail));
            }
            NamesChange::Publish { .. } | NamesChange::SyncParents => false,
        };
        Ok(match is_done {
            true => Settled::Answer(Answer::Done),
            false => Settled::SendAgain,
        })
    }
}

/// Whether a change makes durable what was done before it.
fn syncs(change: &NamesChange) -> bool {
    matches!(
        change,
        NamesChange::SyncDir
            | NamesChange::SyncParents
            | NamesChange::SyncObject { .. }
            | NamesChange::Replace { .. }
    )
}

/// Whether a change begins an attempt. Each attempt has its own number, so nobody makes the call
/// again.
fn is_job(change: &NamesChange) -> bool {
    matches!(
        change,
        NamesChange::BeginJob(_) | NamesChange::BeginRebuild(_)
    )
}

/// What to do with a request that was sent in an earlier state of the server.
enum Settled {
    /// This is its answer.
    Answer(Answer),
    /// It took effect, and the object that it made could not be opened again.
    NotOpen(StorageError),
    /// It had no effect, or it does no harm if it takes effect twice.
    SendAgain,
}

/// The result of looking up an object's name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    /// An object of this length.
    There(u64),
    /// There is no such object.
    Missing,
    /// The object cannot be opened, for example because the name is not valid. The request will
    /// fail too.
    Failed,
}

/// Looks up whether there is an object of this name.
fn look_at(
    session: &Session,
    pipe: &mut Pipe,
    name: &str,
) -> std::result::Result<Looked, ConnectionError> {
    let file = session.new_object();
    let request = Request::Open {
        name: name.to_string(),
        file,
        direct: false,
    };
    let mut opening = Opening::new(session, file);
    Ok(match opening.exchange(pipe, &request)?.0 {
        Answer::Opened { len } => {
            opening.exchange(pipe, &Request::Close { file })?;
            Looked::There(len)
        }
        Answer::Failed(error) if error.kind == StorageErrorKind::NotFound => Looked::Missing,
        Answer::Failed(_) => Looked::Failed,
        _ => return Err(ConnectionError::End),
    })
}

/// Opens the object of a creation or a recycling that took effect.
fn reopen(
    pipe: &mut Pipe,
    name: &str,
    file: u64,
    epoch: u64,
) -> std::result::Result<Settled, ConnectionError> {
    match pipe.exchange(&reopen_request(name, file, epoch), &[])?.0 {
        Answer::Ended => Err(ConnectionError::End),
        Answer::Failed(error) => Ok(Settled::NotOpen(error)),
        answer => Ok(Settled::Answer(answer)),
    }
}

/// The request to open an object for writing from its beginning.
fn reopen_request(name: &str, file: u64, epoch: u64) -> Request {
    Request::Reopen {
        name: name.to_string(),
        file,
        epoch,
        position: 0,
    }
}
