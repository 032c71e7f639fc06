//! The server: what a device runs (RFC 9).
//!
//! A task accepts connections at each address, and each connection has a task, which executes its
//! requests in their order (`connection.rs`). The clock task tells clients that wait for an answer
//! that the server works on it, ends jobs without progress, and ends the states of silent sessions.
//!
//! Invariants: those of `session.rs`, `leases.rs` and `jobs.rs`. The server has the lease of its
//! root folder, so two servers never have the same folders.
//!
//! Threading: [`Server`] is owned by whoever started it. Locks: `state`, then those of a session.

mod connection;
mod folders;
mod jobs;
mod leases;
mod names_kept;
mod notes;
mod rebuild;
mod requests;
mod session;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::link::{Address, Connection, LinkError, Listener, Network};
use siltstone_storage::{
    Condvar, Epoch, Instant, JoinHandle, Lease, Mutex, Result, Runtime, Storage, StorageError,
    StorageErrorKind,
};
use xxhash_rust::xxh3::Xxh3;

pub use folders::{DataFolder, Folders, MemoryFolders, NoFolders};
use jobs::Decides;
use session::{Folder, SessionState};

use crate::wire::Answer;
use crate::wire::hello::{ClientHello, FolderWanted, Refusal};

/// How a device serves.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The device's name, for messages.
    pub name: String,
    /// The number of jobs that run at once.
    pub slots: u32,
    /// The number of subjobs of a job that run at once.
    pub parallelism: u32,
    /// The folders of this machine in which hosts may have jobs run.
    pub shared: Vec<PathBuf>,
    /// The bytes that a session may keep in its scratch folder; 0 if there are no such folders.
    pub keep_bytes: u64,
    /// The number of objects that a session may have open.
    pub open_objects_max: u64,
    /// The number of sessions, and of connections of all of them.
    pub sessions_max: usize,
    /// The number of connections.
    pub connections_max: usize,
    /// How long a session must be silent before another one may take its lease.
    pub lease_silence: Duration,
    /// How long a session must be silent before its jobs end.
    pub job_silence: Duration,
    /// How long a session must be silent before its state ends although nobody asks for its lease.
    pub state_silence: Duration,
    /// How long after its start the server keeps leases for their last holders.
    pub restart_grace: Duration,
    /// How long a request for a lease waits for the end of the last holder's state.
    pub end_limit: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            name: "device".into(),
            slots: 1,
            parallelism: 1,
            shared: Vec::new(),
            keep_bytes: 0,
            open_objects_max: 4096,
            sessions_max: 64,
            connections_max: 512,
            lease_silence: Duration::from_secs(10),
            job_silence: Duration::from_secs(10),
            state_silence: Duration::from_secs(600),
            restart_grace: Duration::from_secs(10),
            end_limit: Duration::from_secs(30),
        }
    }
}

/// The interval of the clock task.
const TICK: Duration = Duration::from_secs(1);

/// If the clock task is this late, the server was paused, and nobody was silent.
const PAUSED: Duration = Duration::from_secs(3);

/// The number of events of sessions that are kept for [`Server::take_session_events`].
const EVENTS_MAX: usize = 1024;

/// How often the tasks that accept look whether the server ends.
const ACCEPT_LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    sessions: BTreeMap<[u8; 16], Arc<SessionState>>,
    connections: BTreeMap<u64, Arc<connection::Served>>,
    next_connection: u64,
    is_stopping: bool,
    /// The events of sessions that nobody has taken yet, the oldest first.
    events: VecDeque<SessionEvent>,
}

impl State {
    /// Notes that a session began or ended. If nobody takes the events, the oldest are forgotten.
    fn note(&mut self, session: &SessionState, has_ended: bool) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(SessionEvent {
            host: session.host.clone(),
            folder: session.folder.as_ref().map(|folder| folder.name.clone()),
            is_scratch: session.is_scratch,
            has_ended,
        });
    }

    /// Forgets the sessions whose state has ended.
    fn forget_ended(&mut self) {
        let mut ended = Vec::new();
        self.sessions.retain(|_, session| {
            let is_live = !session.is_ended();
            if !is_live {
                ended.push(Arc::clone(session));
            }
            is_live
        });
        ended.iter().for_each(|session| self.note(session, true));
    }
}

struct Inner {
    runtime: Runtime,
    options: ServerOptions,
    folders: Arc<dyn Folders>,
    root: Arc<dyn Storage>,
    root_epoch: Epoch,
    _root_lease: Box<dyn Lease>,
    device: [u8; 16],
    started: Instant,
    /// The number of jobs that run.
    busy_slots: AtomicUsize,
    /// As many jobs again may run of which the host decides what is kept: the host's slots must not
    /// be taken by its own workers.
    busy_rebuilds: AtomicUsize,
    state: Mutex<State>,
    /// Notified when the server stops.
    stopping: Condvar,
    open_folders: Mutex<BTreeMap<String, Arc<Folder>>>,
    /// The leases that were given since the start, by folder and name.
    given: Mutex<BTreeSet<(String, String)>>,
}

/// 16 random bytes.
pub(crate) fn random_id(runtime: &Runtime) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&runtime.random_u64().to_le_bytes());
    id[8..].copy_from_slice(&runtime.random_u64().to_le_bytes());
    id
}

/// The proof that somebody can read an object's bytes.
pub(crate) fn proof_of(bytes: &[u8], salt: &[u8; 16]) -> [u8; 16] {
    let mut hash = Xxh3::new();
    hash.update(salt);
    hash.update(bytes);
    hash.digest128().to_le_bytes()
}

impl Inner {
    /// The state of the session of this token.
    fn session(&self, token: &[u8; 16]) -> Option<Arc<SessionState>> {
        self.state.lock().sessions.get(token).cloned()
    }

    /// Finds the state of a session, or begins one.
    fn attach(&self, hello: &ClientHello) -> std::result::Result<Arc<SessionState>, Refusal> {
        let refused = |error: StorageError| Refusal {
            kind: error.kind,
            reason: error.to_string(),
        };
        let found = |session: &Arc<SessionState>| !session.is_ended();
        if let Some(session) = self.session(&hello.token).filter(found) {
            return Ok(session);
        }
        let id = random_id(&self.runtime);
        let is_scratch = hello.folder == FolderWanted::Scratch;
        let folder = match &hello.folder {
            FolderWanted::None => None,
            FolderWanted::Named { name, create } => {
                Some(self.open_folder(name, *create).map_err(refused)?)
            }
            FolderWanted::Scratch => Some(self.new_scratch(&id).map_err(refused)?),
        };
        let mut state = self.state.lock();
        state.forget_ended();
        if let Some(session) = state.sessions.get(&hello.token) {
            return Ok(Arc::clone(session));
        }
        if state.sessions.len() >= self.options.sessions_max {
            let reason = format!("the device has {} sessions already", state.sessions.len());
            let kind = StorageErrorKind::TooManyOpen;
            return Err(Refusal { kind, reason });
        }
        let session = Arc::new(SessionState::new(
            &self.runtime,
            id,
            hello.token,
            hello.host.clone(),
            folder,
            is_scratch,
            &self.folders,
        ));
        state.sessions.insert(hello.token, Arc::clone(&session));
        state.note(&session, false);
        tracing::info!(host = hello.host, folder = ?hello.folder, "a session began");
        Ok(session)
    }

    fn open_folder(&self, name: &str, create: bool) -> Result<Arc<Folder>> {
        let mut open = self.open_folders.lock();
        if let Some(folder) = open.get(name) {
            return Ok(Arc::clone(folder));
        }
        let folder = Arc::new(Folder {
            name: name.to_string(),
            storage: self.folders.open(name, create)?,
            grants: self.runtime.mutex(()),
        });
        open.insert(name.to_string(), Arc::clone(&folder));
        Ok(folder)
    }

    fn new_scratch(&self, id: &[u8; 16]) -> Result<Arc<Folder>> {
        if self.options.keep_bytes == 0 {
            let detail = "the device takes no tables for lent work; start it with --keep BYTES";
            let kind = StorageErrorKind::Unsupported;
            return Err(StorageError::new(kind, "open", "a scratch folder", detail));
        }
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("scratch-{hex}");
        Ok(Arc::new(Folder {
            storage: self.folders.open_scratch(&name)?,
            name,
            grants: self.runtime.mutex(()),
        }))
    }

    /// A folder of this machine that the device may share.
    fn shared_folder(&self, path: &str) -> Result<Arc<dyn Storage>> {
        let is_shared = |shared: &PathBuf| std::path::Path::new(path).starts_with(shared);
        if !self.options.shared.iter().any(is_shared) {
            let detail = "the device does not share this folder; start it with --share FOLDER";
            let kind = StorageErrorKind::PermissionDenied;
            return Err(StorageError::new(kind, "open", path, detail));
        }
        self.folders.open_shared(path)
    }

    /// Looks for an object in the shared folders, and proves that its bytes can be read.
    fn prove_folder(&self, name: &str, salt: &[u8; 16]) -> Result<Answer> {
        for shared in &self.options.shared {
            let path = shared.display().to_string();
            let Ok(storage) = self.folders.open_shared(&path) else {
                continue;
            };
            if let Ok(bytes) = storage.read_small(name) {
                return Ok(Answer::Proof(proof_of(&bytes, salt)));
            }
        }
        let detail = "no folder that the device shares has this object";
        let kind = StorageErrorKind::NotFound;
        Err(StorageError::new(kind, "open", name, detail))
    }

    /// Whether a lease was given since the server's start.
    fn was_given(&self, folder: &str, lease: &str) -> bool {
        let key = (folder.to_string(), lease.to_string());
        self.given.lock().contains(&key)
    }

    fn note_given(&self, folder: &str, lease: &str) {
        let key = (folder.to_string(), lease.to_string());
        self.given.lock().insert(key);
    }

    /// Takes one of the slots for jobs, if one is free.
    fn take_slot(&self, decides: Decides) -> bool {
        let slots = self.options.slots as usize;
        let take = |busy: usize| (busy < slots).then_some(busy + 1);
        let taken = self
            .slots_of(decides)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, take);
        taken.is_ok()
    }

    fn slots_of(&self, decides: Decides) -> &AtomicUsize {
        match decides {
            Decides::Device => &self.busy_slots,
            Decides::Host => &self.busy_rebuilds,
        }
    }

    fn give_slot_back(&self, decides: Decides) {
        self.slots_of(decides).fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes a lease or a share by `take`. If a session that is silent holds it, its state ends
    /// first.
    fn after_silent_holders<T>(
        &self,
        session: &Arc<SessionState>,
        folder: &Folder,
        name: &str,
        take: impl Fn() -> Result<T>,
    ) -> Result<T> {
        loop {
            let error = match take() {
                Err(e) if e.kind == StorageErrorKind::LeaseHeld => e,
                taken => return taken,
            };
            let holders = self.holders(session, folder, name);
            let mut described = Vec::new();
            let mut has_ended = false;
            for holder in holders {
                let silent = holder.silent_for();
                if holder.is_ended() || silent >= self.options.lease_silence {
                    if !holder.end(self.options.end_limit) {
                        let detail = format!(
                            "{} held it and is silent, but its last requests have not ended yet",
                            holder.host
                        );
                        return Err(StorageError::new(error.kind, error.op, name, detail));
                    }
                    has_ended = true;
                } else {
                    let silent = silent.as_secs_f64();
                    described.push(format!("{}, last heard {silent:.0} s ago", holder.host));
                }
            }
            if !has_ended {
                return Err(match described.is_empty() {
                    true => error,
                    false => {
                        let detail = format!("another host has it ({})", described.join("; "));
                        StorageError::new(error.kind, error.op, name, detail)
                    }
                });
            }
        }
    }

    /// The sessions that hold this lease, or a share of it.
    fn holders(
        &self,
        session: &Arc<SessionState>,
        folder: &Folder,
        name: &str,
    ) -> Vec<Arc<SessionState>> {
        let sessions: Vec<Arc<SessionState>> =
            self.state.lock().sessions.values().cloned().collect();
        let is_holder = |other: &Arc<SessionState>| {
            let is_here = other.folder.as_ref().is_some_and(|f| f.name == folder.name);
            let leases = other.leases.lock();
            let has = leases.held.values().any(|held| held.name == name);
            is_here && has && !Arc::ptr_eq(other, session)
        };
        sessions.into_iter().filter(is_holder).collect()
    }

    fn is_stopping(&self) -> bool {
        self.state.lock().is_stopping
    }
}

/// A running server. [`Server::stop`] ends it; dropping it does not.
pub struct Server {
    inner: Arc<Inner>,
    listeners: Vec<Arc<dyn Listener>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Why a server could not be started.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// Its root folder could not be used.
    #[error("the device's own folder cannot be used: {0}")]
    Root(#[from] StorageError),
    /// It could not listen.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// A task could not be started.
    #[error("a task could not be started: {0}")]
    Task(String),
}

impl Server {
    /// Starts a server that listens at these addresses.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(
        runtime: &Runtime,
        network: &Arc<dyn Network>,
        addresses: &[Address],
        folders: Arc<dyn Folders>,
        options: ServerOptions,
    ) -> std::result::Result<Server, StartError> {
        let root = folders.root();
        let root_lease = root.lease("device")?;
        let root_epoch = root_lease.epoch();
        let device = notes::device_id(&*root, root_epoch, random_id(runtime))?;
        folders.remove_scratch()?;
        let listeners = addresses
            .iter()
            .map(|address| network.listen(address))
            .collect::<std::result::Result<Vec<_>, LinkError>>()?;
        let inner = Arc::new(Inner {
            runtime: runtime.clone(),
            options,
            root,
            root_epoch,
            _root_lease: root_lease,
            device,
            started: runtime.now(),
            busy_slots: AtomicUsize::new(0),
            busy_rebuilds: AtomicUsize::new(0),
            folders,
            state: runtime.mutex(State::default()),
            stopping: runtime.condvar(),
            open_folders: runtime.mutex(BTreeMap::new()),
            given: runtime.mutex(BTreeSet::new()),
        });
        let mut server = Server {
            inner: Arc::clone(&inner),
            listeners,
            tasks: Vec::new(),
        };
        for listener in &server.listeners {
            let (inner, listener) = (Arc::clone(&inner), Arc::clone(listener));
            let accept = move || accept(&inner, &*listener);
            let task = runtime.spawn("accept", accept);
            server
                .tasks
                .push(task.map_err(|e| StartError::Task(e.to_string()))?);
        }
        let clock = runtime.spawn("device clock", move || tick(&inner));
        server
            .tasks
            .push(clock.map_err(|e| StartError::Task(e.to_string()))?);
        Ok(server)
    }

    /// The addresses at which it listens, with the ports that were chosen.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|l| l.address()).collect()
    }

    /// What the sessions of the server do now.
    pub fn sessions(&self) -> Vec<SessionReport> {
        let sessions: Vec<_> = self.inner.state.lock().sessions.values().cloned().collect();
        let live = sessions.iter().filter(|session| !session.is_ended());
        live.map(|session| SessionReport {
            host: session.host.clone(),
            folder: session.folder.as_ref().map(|folder| folder.name.clone()),
            silent_for: session.silent_for(),
            jobs: session.jobs.running(),
            open_objects: session.objects.lock().open.len(),
        })
        .collect()
    }

    /// The sessions that began or ended since the last call, in this order. At most 1024 events are
    /// kept.
    pub fn take_session_events(&self) -> Vec<SessionEvent> {
        let mut state = self.inner.state.lock();
        state.forget_ended();
        state.events.drain(..).collect()
    }

    /// Ends the server: it accepts nothing more, ends its jobs, closes its files and gives its
    /// leases back. Waits at most for the limit in the options for each session.
    pub fn stop(self) {
        for listener in &self.listeners {
            listener.close();
        }
        let (sessions, connections) = {
            let mut state = self.inner.state.lock();
            state.is_stopping = true;
            self.inner.stopping.notify_all();
            let connections = std::mem::take(&mut state.connections);
            (std::mem::take(&mut state.sessions), connections)
        };
        for session in sessions.values() {
            session.end(self.inner.options.end_limit);
        }
        for served in connections.values() {
            served.close();
        }
        for task in self.tasks {
            let _ = task.join();
        }
        for served in connections.into_values() {
            served.join();
        }
    }
}

/// A session that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// The host, as it described itself.
    pub host: String,
    /// Its folder.
    pub folder: Option<String>,
    /// Whether the folder was made for the tables of lent work.
    pub is_scratch: bool,
    /// Whether the session has ended; otherwise it began.
    pub has_ended: bool,
}

/// What one session of a server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionReport {
    /// The host, as it described itself.
    pub host: String,
    /// Its folder.
    pub folder: Option<String>,
    /// How long no byte of it has come.
    pub silent_for: Duration,
    /// The number of its jobs that run.
    pub jobs: usize,
    /// The number of objects that it has open.
    pub open_objects: usize,
}

/// Accepts connections until the server stops.
fn accept(inner: &Arc<Inner>, listener: &dyn Listener) {
    while !inner.is_stopping() {
        match listener.accept(inner.runtime.now() + ACCEPT_LOOK) {
            Ok(Some(connection)) => begin_connection(inner, connection),
            Ok(None) => {}
            Err(error) if inner.is_stopping() => {
                tracing::debug!(%error, "the listener ended");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                inner.runtime.sleep(ACCEPT_LOOK);
            }
        }
    }
}

fn begin_connection(inner: &Arc<Inner>, connection: Arc<dyn Connection>) {
    let served = {
        let mut state = inner.state.lock();
        if state.is_stopping || state.connections.len() >= inner.options.connections_max {
            connection.close();
            return;
        }
        let id = state.next_connection;
        state.next_connection += 1;
        let served = Arc::new(connection::Served::new(&inner.runtime, id, connection));
        state.connections.insert(id, Arc::clone(&served));
        served
    };
    connection::start(inner, &served);
}

/// The clock task.
fn tick(inner: &Arc<Inner>) {
    let mut last = inner.runtime.now();
    loop {
        let (sessions, connections) = {
            let mut state = inner.state.lock();
            let until = last + TICK;
            while !state.is_stopping && inner.runtime.now() < until {
                let left = until.since(inner.runtime.now());
                state = inner.stopping.wait_timeout(state, left).0;
            }
            if state.is_stopping {
                return;
            }
            let sessions: Vec<_> = state.sessions.values().cloned().collect();
            let connections: Vec<_> = state.connections.values().cloned().collect();
            (sessions, connections)
        };
        let now = inner.runtime.now();
        if now.since(last) >= PAUSED {
            sessions.iter().for_each(|session| session.heard_at(now));
        }
        last = now;
        for served in connections {
            served.tell_working(now);
        }
        for session in sessions {
            session.jobs.watch();
            let silent = session.silent_for();
            if silent >= inner.options.job_silence {
                session.jobs.cancel_all();
            }
            if silent >= inner.options.state_silence {
                session.end(Duration::ZERO);
            }
        }
        inner.state.lock().forget_ended();
    }
}
