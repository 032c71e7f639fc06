//! A client's session: its connections, and what the server knows about it.
//!
//! A caller takes a connection from the pool, makes requests, and gives it back. A caller that
//! connects and finds that the server has forgotten the session attaches it again: it asks for the
//! leases that the session had. Until then nobody else gets a connection.
//!
//! Invariants:
//! - Every pipe that is given out belongs to the server state that the session is attached to.
//! - Once the session is fenced or closed, it stays so.
//! - A call waits as long as the device shows signs of life, and for [`ClientOptions::time_limit`]
//!   after the last one. It makes no further attempt after ten times that limit.
//!
//! Threading: shared. A task that waits for a pipe holds no lock. The pool's lock is never held
//! during a call of a link.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::link::{Address, LinkErrorKind, Network};
use siltstone_storage::{
    Condvar, Epoch, Instant, Mutex, ReadPurpose, Runtime, StorageError, StorageErrorKind,
};
use siltstone_table::exec::CancelToken;

use super::ahead::AheadBudget;
use super::options::ClientOptions;
use super::pipe::{Pipe, Vital};
use super::purpose::{LinkPurpose, Traffic};
use crate::frames::{ConnectionError, receive_hello};
use crate::wire::hello::{ClientHello, FolderWanted, ServerHello, Welcome};
use crate::wire::{Answer, Frame, Request, WireError};

/// How long one attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);

/// The pauses between attempts to connect: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// A call makes no further attempt after this many times its limit, even if the device answers
/// other calls. Otherwise a request that ends every connection would be sent for ever.
const TRIES_MAX: u64 = 10;

/// The longest time between two checks of a call that waits for the pool.
const POOL_LOOK: Duration = Duration::from_millis(200);

/// A lease that the session has.
#[derive(Clone, Debug)]
pub(super) struct LeaseRecord {
    pub(super) id: [u8; 16],
    pub(super) name: String,
    pub(super) shared: bool,
    pub(super) epoch: Epoch,
}

#[derive(Default)]
struct Pool {
    idle: Vec<Pipe>,
    /// The number of pipes that exist, idle or given out.
    count: usize,
    attached: Option<Arc<Welcome>>,
    is_attaching: bool,
    leases: Vec<LeaseRecord>,
    /// Why every call fails from now on.
    ended: Option<StorageError>,
    /// Since when the device cannot be reached, and why.
    down: Option<(Instant, String)>,
}

/// See the module.
pub(super) struct Session {
    pub(super) runtime: Runtime,
    network: Arc<dyn Network>,
    address: Address,
    token: [u8; 16],
    folder: FolderWanted,
    pub(super) options: ClientOptions,
    pub(super) vital: Arc<Vital>,
    pool: Mutex<Pool>,
    changed: Condvar,
    next_object: AtomicU64,
    /// Objects that the device may have open although nobody uses them.
    left_open: Mutex<Vec<u64>>,
    pub(super) ahead: AheadBudget,
    /// Whether the connection that was made last can pass descriptors.
    pub(super) passes_descriptors: AtomicBool,
}

/// The object that a call opens. If the call ends while it is not known whether the object is open
/// on the device, the keeper closes it.
pub(super) struct Opening<'a> {
    session: &'a Session,
    object: u64,
    is_in_doubt: bool,
}

impl<'a> Opening<'a> {
    pub(super) fn new(session: &'a Session, object: u64) -> Opening<'a> {
        Opening {
            session,
            object,
            is_in_doubt: false,
        }
    }

    /// Makes a request that opens or closes the object.
    pub(super) fn exchange(
        &mut self,
        pipe: &mut Pipe,
        request: &Request,
    ) -> Result<(Answer, Frame), ConnectionError> {
        self.is_in_doubt = true;
        let answered = pipe.exchange(request, &[])?;
        self.is_in_doubt = !matches!(
            answered.0,
            Answer::Opened { .. } | Answer::Done | Answer::Failed(_) | Answer::Ended
        );
        Ok(answered)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        if self.is_in_doubt {
            self.session.leave_open(self.object);
        }
    }
}

/// How long a call may go on.
pub(super) struct Limit {
    begun: Instant,
    limit: Duration,
    /// How many connections the call may use beyond the maximum. The keeper may use one more,
    /// because it makes files give theirs back. The task that sends signs of life may use another
    /// one besides that, because it must not wait for a slow answer to somebody else.
    extra: usize,
    /// Makes the call give up when the job that it is for is cancelled.
    cancel: Option<CancelToken>,
    losses: Cell<Losses>,
}

impl Limit {
    /// The same limit for a call that also gives up as soon as a job is cancelled. It then fails as
    /// `Unreachable`, and the caller looks at the token.
    pub(super) fn until(self, cancel: &CancelToken) -> Limit {
        Limit {
            cancel: Some(cancel.clone()),
            ..self
        }
    }

    /// Whether the call must give up because its job was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(CancelToken::is_cancelled)
    }
}

/// The connections that one caller lost in a row, counting only those that began after its first
/// attempt. Without this count, a device that ends each connection because of a request would get
/// that request thousands of times per second. Connections that were lost because the device was
/// restarted began earlier.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Losses(u32);

impl Losses {
    /// Counts the loss of a connection. `since` is when the caller made its first try.
    pub(super) fn count(&mut self, connected: Instant, since: Instant) {
        self.0 = self.0.saturating_add(u32::from(connected >= since));
    }

    /// How long the caller waits before its next attempt.
    pub(super) fn pause(self) -> Duration {
        match self.0 {
            0 => Duration::ZERO,
            count => PAUSES
                .0
                .saturating_mul(1 << (count - 1).min(10))
                .min(PAUSES.1),
        }
    }
}

/// The result of one attempt.
pub(super) enum Tried<T> {
    /// The request was answered.
    Answered(T),
    /// The connection failed. The request may be tried again.
    Lost(ConnectionError),
    /// The request has failed for good.
    Failed(StorageError),
}

impl Session {
    pub(super) fn new(
        runtime: &Runtime,
        network: Arc<dyn Network>,
        address: Address,
        folder: FolderWanted,
        options: ClientOptions,
        traffic: Arc<Traffic>,
    ) -> Session {
        let vital = Arc::new(Vital {
            runtime: runtime.clone(),
            address: address.to_string(),
            silence: options.silence,
            last_heard_ns: AtomicU64::new(0),
            ends_ns: AtomicU64::new(u64::MAX),
            traffic,
            joined_count: AtomicU64::new(0),
            ahead_bytes: AtomicU64::new(0),
            passed_count: AtomicU64::new(0),
            rate: Default::default(),
        });
        Session {
            runtime: runtime.clone(),
            network,
            address,
            token: crate::server::random_id(runtime),
            folder,
            options,
            vital,
            pool: runtime.mutex(Pool::default()),
            changed: runtime.condvar(),
            next_object: AtomicU64::new(1),
            left_open: runtime.mutex(Vec::new()),
            ahead: AheadBudget::default(),
            passes_descriptors: AtomicBool::new(false),
        }
    }

    /// How the device names this host in its messages. In a simulated run the number of the process
    /// is left out: it has more digits in some runs than in others, and the run must not depend on
    /// that.
    fn host(&self) -> String {
        let name = self.runtime.host_name();
        match &self.options.host {
            host if !host.is_empty() => host.clone(),
            _ if self.runtime.is_simulated() => name,
            _ => format!("{name}, pid {}", std::process::id()),
        }
    }

    /// The session's address, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.folder {
            FolderWanted::Named { name, .. } => crate::url::url_of(&self.address, name),
            FolderWanted::Scratch => format!("a scratch folder of {}", self.address),
            FolderWanted::None => self.address.to_string(),
        }
    }

    /// The network, and the device's address.
    pub(super) fn link(&self) -> (Arc<dyn Network>, Address) {
        (Arc::clone(&self.network), self.address.clone())
    }

    /// The epoch of the exclusive lease that the session has.
    pub(super) fn writer_epoch(&self) -> Option<Epoch> {
        let pool = self.pool.lock();
        let mut leases = pool.leases.iter();
        leases.find(|lease| !lease.shared).map(|lease| lease.epoch)
    }

    /// The purpose of the bytes of an object with this name, if this session writes it.
    pub(super) fn purpose_of(&self, name: &str) -> LinkPurpose {
        match self.folder {
            FolderWanted::Scratch => LinkPurpose::Lent,
            _ => LinkPurpose::of_name(name),
        }
    }

    /// The purpose of the bytes of an object with this name, if this session reads it.
    pub(super) fn purpose_of_read(&self, name: &str, purpose: ReadPurpose) -> LinkPurpose {
        match self.folder {
            FolderWanted::Scratch => LinkPurpose::Lent,
            _ => LinkPurpose::of_read(name, purpose),
        }
    }

    /// Whether the session has no folder, so that only jobs use it.
    pub(super) fn is_for_jobs(&self) -> bool {
        self.folder == FolderWanted::None
    }

    /// Whether the session has a folder that remains after the session.
    pub(super) fn has_folder(&self) -> bool {
        matches!(self.folder, FolderWanted::Named { .. })
    }

    pub(super) fn token(&self) -> [u8; 16] {
        self.token
    }

    /// A new number for an object that is opened. Numbers are not reused.
    pub(super) fn new_object(&self) -> u64 {
        self.next_object.fetch_add(1, Ordering::Relaxed)
    }

    /// Has the keeper close this object, which nobody uses.
    pub(super) fn leave_open(&self, object: u64) {
        self.left_open.lock().push(object);
    }

    /// Closes the objects that nobody uses. Those that cannot be closed now stay noted.
    pub(super) fn close_left_open(&self, limit: &Limit) {
        let left = std::mem::take(&mut *self.left_open.lock());
        for (at, object) in left.iter().enumerate() {
            let request = Request::Close { file: *object };
            let asked = self.ask(limit, "close", "", &request, &[]);
            if matches!(asked, Err(e) if e.kind == StorageErrorKind::Unreachable) {
                self.left_open.lock().extend(&left[at..]);
                return;
            }
        }
    }

    pub(super) fn limit(&self) -> Limit {
        self.limit_of(self.options.time_limit)
    }

    pub(super) fn limit_of(&self, limit: Duration) -> Limit {
        Limit {
            begun: self.runtime.now(),
            limit,
            extra: 0,
            cancel: None,
            losses: Cell::default(),
        }
    }

    /// As [`Session::limit_of`], for the keeper.
    pub(super) fn keeper_limit(&self, limit: Duration) -> Limit {
        Limit {
            extra: 1,
            ..self.limit_of(limit)
        }
    }

    /// As [`Session::limit_of`], for the task that sends signs of life.
    pub(super) fn live_limit(&self, limit: Duration) -> Limit {
        Limit {
            extra: 2,
            ..self.limit_of(limit)
        }
    }

    /// Whether a call that needs a connection now would have to wait for one.
    pub(super) fn is_crowded(&self) -> bool {
        let pool = self.pool.lock();
        pool.idle.is_empty() && pool.count >= self.options.connections_max
    }

    /// Whether a call must give up instead of making another attempt.
    pub(super) fn is_over(&self, limit: &Limit) -> bool {
        if limit.is_cancelled() || self.runtime.now() >= self.vital.ends() {
            return true;
        }
        let heard = self.vital.last_heard_ns.load(Ordering::Relaxed);
        let begun = limit.begun.as_nanos();
        let now = self.runtime.now().as_nanos();
        let limit = limit.limit.as_nanos() as u64;
        let silent = now.saturating_sub(heard.max(begun));
        silent >= limit || now.saturating_sub(begun) >= limit.saturating_mul(TRIES_MAX)
    }

    /// The error for a call that gave up.
    pub(super) fn unreachable(&self, op: &'static str, name: &str) -> StorageError {
        let pool = self.pool.lock();
        let why = match &pool.down {
            Some((since, why)) => {
                let passed = self.runtime.now().since(*since).as_secs_f64();
                format!("it could not be reached for {passed:.0} s ({why})")
            }
            None => "it did not answer in time".to_string(),
        };
        let detail = format!(
            "the device at {}: {why}; is `silt device` running?",
            self.address
        );
        StorageError::new(StorageErrorKind::Unreachable, op, name, detail)
    }

    /// Why every call fails, if the session has ended.
    pub(super) fn ended(&self) -> Option<StorageError> {
        self.pool.lock().ended.clone()
    }

    /// The session ends within this time. After that, calls give up even if the device says that it
    /// is working.
    pub(super) fn end_within(&self, most: Duration) {
        let ends = (self.runtime.now() + most).as_nanos();
        self.vital.ends_ns.fetch_min(ends, Ordering::Relaxed);
    }

    /// Puts off the end of the session, if it is nearer than this.
    pub(super) fn end_after(&self, least: Duration) {
        let ends = (self.runtime.now() + least).as_nanos();
        self.vital.ends_ns.fetch_max(ends, Ordering::Relaxed);
    }

    /// Makes every later call fail with this error.
    pub(super) fn end(&self, error: StorageError) {
        let mut pool = self.pool.lock();
        pool.ended.get_or_insert(error);
        let idle = std::mem::take(&mut pool.idle);
        pool.count -= idle.len();
        self.changed.notify_all();
        drop(pool);
        idle.iter().for_each(Pipe::close);
    }

    /// Since when the device cannot be reached, and why. `None` if it can be reached, as far as is
    /// known.
    pub(super) fn down(&self) -> Option<(Instant, String)> {
        self.pool.lock().down.clone()
    }

    /// The device's last hello.
    pub(super) fn welcome(&self) -> Option<Arc<Welcome>> {
        self.pool.lock().attached.clone()
    }

    /// Notes a lease that was granted. Returns whether another task is attaching the session now.
    /// That task may ask for the other leases only.
    pub(super) fn note_lease(&self, lease: LeaseRecord) -> bool {
        let mut pool = self.pool.lock();
        pool.leases.push(lease);
        pool.is_attaching
    }

    /// Forgets a lease. Returns whether the session had it.
    pub(super) fn forget_lease(&self, id: [u8; 16]) -> bool {
        let leases = &mut self.pool.lock().leases;
        let before = leases.len();
        leases.retain(|lease| lease.id != id);
        leases.len() < before
    }

    /// Takes a pipe from the pool, or connects. The caller must hold no lock.
    pub(super) fn take(
        &self,
        limit: &Limit,
        op: &'static str,
        name: &str,
    ) -> Result<Pipe, StorageError> {
        let mut pause = PAUSES.0;
        loop {
            {
                let mut pool = self.pool.lock();
                if let Some(error) = &pool.ended {
                    return Err(error.clone());
                }
                if !pool.is_attaching {
                    if let Some(pipe) = pool.idle.pop() {
                        return Ok(pipe);
                    }
                    if pool.count < self.options.connections_max + limit.extra {
                        pool.count += 1;
                        drop(pool);
                        match self.connect() {
                            Tried::Answered(Some(pipe)) => return Ok(pipe),
                            // Another caller is attaching the session.
                            Tried::Answered(None) => {}
                            Tried::Failed(error) => return Err(error),
                            Tried::Lost(error) => self.note_down(&error),
                        }
                        pool = self.pool.lock();
                    }
                }
                let wait = if pool.down.is_some() {
                    pause
                } else {
                    POOL_LOOK
                };
                drop(self.changed.wait_timeout(pool, wait));
                pause = (pause * 2).min(PAUSES.1);
            }
            if self.is_over(limit) {
                return Err(self.unreachable(op, name));
            }
        }
    }

    /// Takes an idle pipe, or connects. Returns `None` instead of waiting if the device is known to
    /// be down, if the session is being attached, or if all connections are in use.
    pub(super) fn take_now(&self) -> Option<Pipe> {
        {
            let mut pool = self.pool.lock();
            if pool.down.is_some() || pool.is_attaching || pool.ended.is_some() {
                return None;
            }
            if let Some(pipe) = pool.idle.pop() {
                return Some(pipe);
            }
            if pool.count >= self.options.connections_max {
                return None;
            }
            pool.count += 1;
        }
        match self.connect() {
            Tried::Answered(pipe) => pipe,
            Tried::Lost(error) => {
                self.note_down(&error);
                None
            }
            // The next call that waits for the device gets this error.
            Tried::Failed(_) => None,
        }
    }

    /// Takes an idle pipe of this state of the server for reading ahead, unless other calls may
    /// need it. This makes no new connection, because a read must not wait for one only to read
    /// ahead. The caller that gives the pipe back reduces the count in [`Session::ahead`].
    pub(super) fn take_to_read_ahead(&self, state: [u8; 16]) -> Option<Pipe> {
        let most = self.options.connections_max / 4;
        let mut pool = self.pool.lock();
        let is_last = pool.count >= self.options.connections_max && pool.idle.len() < 2;
        if is_last || pool.ended.is_some() || pool.is_attaching {
            return None;
        }
        if self.ahead.pipes.load(Ordering::Acquire) >= most {
            return None;
        }
        let at = pool.idle.iter().rposition(|pipe| pipe.state == state)?;
        self.ahead.pipes.fetch_add(1, Ordering::AcqRel);
        Some(pool.idle.remove(at))
    }

    fn note_down(&self, error: &ConnectionError) {
        let mut pool = self.pool.lock();
        if pool.down.is_none() {
            tracing::warn!(address = %self.address, %error, "the device cannot be reached");
        }
        let now = self.runtime.now();
        // The reason may have changed since: a device that was down may come back in a release that
        // this side does not understand.
        let since = pool.down.as_ref().map_or(now, |(since, _)| *since);
        pool.down = Some((since, error.to_string()));
    }

    /// Gives a pipe back. All its requests must be answered.
    pub(super) fn give_back(&self, pipe: Pipe) {
        let mut pool = self.pool.lock();
        let heard = self.vital.last_heard_ns.load(Ordering::Relaxed);
        if matches!(&pool.down, Some((since, _)) if since.as_nanos() < heard) {
            // An attempt to connect failed while other connections worked.
            self.note_up(&mut pool);
        }
        let is_attached = pool
            .attached
            .as_ref()
            .is_some_and(|w| w.state == pipe.state);
        // A connection beyond the maximum is closed, because another call would take it.
        let is_extra = pool.count > self.options.connections_max;
        if is_attached && !is_extra && pool.ended.is_none() {
            pool.idle.push(pipe);
            self.changed.notify_one();
            return;
        }
        pool.count -= 1;
        self.changed.notify_one();
        drop(pool);
        pipe.close();
    }

    /// Closes a pipe whose connection failed, or whose answers nobody needs.
    pub(super) fn discard(&self, pipe: Pipe) {
        pipe.close();
        drop(pipe);
        let mut pool = self.pool.lock();
        pool.count -= 1;
        self.changed.notify_one();
    }

    /// Connects, and attaches the session if the server does not know it. The pool has already
    /// counted the pipe. `None` if another caller is attaching the session now.
    fn connect(&self) -> Tried<Option<Pipe>> {
        let result = self.try_connect();
        if !matches!(result, Tried::Answered(Some(_))) {
            let mut pool = self.pool.lock();
            pool.count -= 1;
            // While the device is down, callers that woke each other by their failures would try
            // again without a pause.
            if !matches!(result, Tried::Lost(_)) {
                self.changed.notify_one();
            }
        }
        result
    }

    fn try_connect(&self) -> Tried<Option<Pipe>> {
        let (pipe, welcome) = match self.greet() {
            Tried::Answered(greeted) => greeted,
            Tried::Lost(error) => return Tried::Lost(error),
            Tried::Failed(error) => return Tried::Failed(error),
        };
        let leases = {
            let mut pool = self.pool.lock();
            if let Some(error) = &pool.ended {
                return Tried::Failed(error.clone());
            }
            match &pool.attached {
                Some(known) if known.state == welcome.state => {
                    self.note_up(&mut pool);
                    return Tried::Answered(Some(pipe));
                }
                _ if pool.is_attaching => return Tried::Answered(None),
                _ => {}
            }
            pool.is_attaching = true;
            pool.leases.clone()
        };
        self.attach(pipe, welcome, &leases)
    }

    fn note_up(&self, pool: &mut Pool) {
        if let Some((since, _)) = pool.down.take() {
            let passed = self.runtime.now().since(since);
            tracing::info!(address = %self.address, ?passed, "the device can be reached again");
        }
    }

    /// Attaches the session to a state of the server that does not know it.
    fn attach(
        &self,
        mut pipe: Pipe,
        welcome: Welcome,
        leases: &[LeaseRecord],
    ) -> Tried<Option<Pipe>> {
        let asked = self.ask_for_leases(&mut pipe, leases);
        let mut pool = self.pool.lock();
        pool.is_attaching = false;
        self.changed.notify_all();
        match asked {
            Tried::Answered(()) => {
                pool.attached = Some(Arc::new(welcome));
                self.note_up(&mut pool);
                let stale = std::mem::take(&mut pool.idle);
                pool.count -= stale.len();
                drop(pool);
                stale.iter().for_each(Pipe::close);
                Tried::Answered(Some(pipe))
            }
            Tried::Lost(error) => {
                drop(pool);
                pipe.close();
                Tried::Lost(error)
            }
            Tried::Failed(error) => {
                tracing::error!(address = %self.address, %error, "the session has ended");
                drop(pool);
                self.end(error.clone());
                pipe.close();
                Tried::Failed(error)
            }
        }
    }

    fn ask_for_leases(&self, pipe: &mut Pipe, leases: &[LeaseRecord]) -> Tried<()> {
        for lease in leases {
            let request = Request::Lease {
                id: lease.id,
                name: lease.name.clone(),
                shared: lease.shared,
                again: Some(lease.epoch.0),
            };
            match pipe.exchange(&request, &[]) {
                Ok((Answer::Leased { .. }, _)) => {}
                Ok((Answer::Failed(error), _)) if error.kind == StorageErrorKind::Fenced => {
                    return Tried::Failed(error);
                }
                // Another session has the lease for a moment, or the device's disk is full.
                Ok((Answer::Failed(error), _)) => {
                    return Tried::Lost(ConnectionError::Refused(error));
                }
                Ok(_) => return Tried::Lost(WireError::Lane.into()),
                Err(error) => return Tried::Lost(error),
            }
        }
        Tried::Answered(())
    }

    /// Connects, and exchanges hellos.
    fn greet(&self) -> Tried<(Pipe, Welcome)> {
        let deadline = self.runtime.now() + CONNECT_LIMIT;
        let connection = match self.network.connect(&self.address, deadline) {
            Ok(connection) => connection,
            Err(error) if error.kind == LinkErrorKind::InvalidAddress && !self.was_attached() => {
                let kind = StorageErrorKind::InvalidInput;
                return Tried::Failed(StorageError::new(
                    kind,
                    "connect",
                    self.address.to_string(),
                    error.detail,
                ));
            }
            // Another attempt would end in the same way, unless the socket was left by a device
            // that has ended.
            Err(error) if error.kind == LinkErrorKind::PermissionDenied && !self.was_attached() => {
                let kind = StorageErrorKind::PermissionDenied;
                let name = self.address.to_string();
                return Tried::Failed(StorageError::new(kind, "connect", name, error.detail));
            }
            Err(error) => return Tried::Lost(error.into()),
        };
        let hello = ClientHello {
            token: self.token,
            folder: self.folder_wanted(),
            host: self.host(),
        };
        let hello = hello.encode();
        let traffic = &self.vital.traffic;
        traffic.sent(LinkPurpose::Session, hello.len());
        let greeted = connection
            .send(&[&hello], deadline)
            .map_err(ConnectionError::from)
            .and_then(|()| receive_hello(&*connection, deadline + CONNECT_LIMIT));
        let answer = greeted.and_then(|bytes| {
            traffic.received(LinkPurpose::Session, bytes.len());
            Ok(ServerHello::decode(&bytes)?)
        });
        match answer {
            Ok((_, ServerHello::Welcome(welcome))) => {
                self.vital.heard();
                let passes = connection.passes_descriptors();
                self.passes_descriptors.store(passes, Ordering::Relaxed);
                let pipe = Pipe::new(connection, &self.vital, welcome.state);
                Tried::Answered((pipe, welcome))
            }
            Ok((_, ServerHello::Refused(refusal))) => {
                connection.close();
                let name = self.describe();
                let error = StorageError::new(refusal.kind, "connect", name, refusal.reason);
                // A device that was restarted may not see its disk yet.
                match self.pool.lock().attached {
                    None => Tried::Failed(error),
                    Some(_) => Tried::Lost(ConnectionError::Refused(error)),
                }
            }
            // Another attempt would end in the same way until somebody starts another program. A
            // session that was attached before waits for that.
            Err(ConnectionError::Wire(error)) if !self.was_attached() => {
                connection.close();
                let kind = StorageErrorKind::Unsupported;
                let name = self.describe();
                Tried::Failed(StorageError::new(kind, "connect", name, error.to_string()))
            }
            // Another attempt would end in the same way until somebody changes a certificate. A
            // session that was attached before waits for that.
            Err(ConnectionError::Link(error))
                if error.kind == LinkErrorKind::PermissionDenied && !self.was_attached() =>
            {
                connection.close();
                let kind = StorageErrorKind::PermissionDenied;
                let name = self.describe();
                Tried::Failed(StorageError::new(kind, "connect", name, error.detail))
            }
            Err(error) => {
                connection.close();
                Tried::Lost(error)
            }
        }
    }

    fn was_attached(&self) -> bool {
        self.pool.lock().attached.is_some()
    }

    /// The folder to ask for. A session that was attached before had its folder already. If the
    /// folder is missing now, the device does not see its disk yet, and an empty folder must not
    /// take its place.
    fn folder_wanted(&self) -> FolderWanted {
        match &self.folder {
            FolderWanted::Named { name, create } => FolderWanted::Named {
                name: name.clone(),
                create: *create && !self.was_attached(),
            },
            other => other.clone(),
        }
    }

    /// Makes a request that may be executed twice, until it is answered or the limit has passed.
    pub(super) fn ask(
        &self,
        limit: &Limit,
        op: &'static str,
        name: &str,
        request: &Request,
        bulk: &[&[u8]],
    ) -> Result<(Answer, Frame), StorageError> {
        loop {
            let mut pipe = self.take(limit, op, name)?;
            match pipe.exchange(request, bulk) {
                Ok((Answer::Ended, _)) => self.discard(pipe),
                Ok((Answer::Failed(error), _)) => {
                    self.give_back(pipe);
                    return Err(error);
                }
                Ok(answered) => {
                    self.give_back(pipe);
                    return Ok(answered);
                }
                Err(error) => self.lost_in(limit, pipe, &error),
            }
            if self.is_over(limit) {
                return Err(self.unreachable(op, name));
            }
        }
    }

    /// As [`Session::lost`], for a call that makes another attempt. If the call has lost
    /// connections that were made after it had begun, this waits before the next attempt.
    pub(super) fn lost_in(&self, limit: &Limit, pipe: Pipe, error: &ConnectionError) {
        let mut losses = limit.losses.get();
        losses.count(pipe.connected, limit.begun);
        limit.losses.set(losses);
        self.lost(pipe, error);
        if !losses.pause().is_zero() {
            self.runtime.sleep(losses.pause());
        }
    }

    /// Drops a pipe whose connection failed before a request was answered.
    pub(super) fn lost(&self, pipe: Pipe, error: &ConnectionError) {
        tracing::debug!(address = %self.address, %error, "a connection was lost");
        self.discard(pipe);
    }

    /// The error for an answer whose kind does not fit the request.
    pub(super) fn wrong_answer(&self, op: &'static str, name: &str) -> StorageError {
        let detail = format!(
            "the answer of the device at {} does not fit the request; are both of one release?",
            self.address
        );
        StorageError::new(StorageErrorKind::Io, op, name, detail)
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::sim::{SimConfig, run};

    use super::*;

    #[test]
    fn only_connections_from_after_the_first_try_lead_to_pauses() {
        let report = run(SimConfig::new(1), |runtime: Runtime| {
            let before = runtime.now();
            runtime.sleep(Duration::from_secs(1));
            let since = runtime.now();
            let mut losses = Losses::default();
            // A device that was restarted has ended all of these.
            (0..32).for_each(|_| losses.count(before, since));
            assert_eq!(losses.pause(), Duration::ZERO);
            let pauses: Vec<u128> = (0..8)
                .map(|_| {
                    losses.count(runtime.now(), since);
                    losses.pause().as_millis()
                })
                .collect();
            assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500, 500]);
        });
        report.result.unwrap();
    }
}
