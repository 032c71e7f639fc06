//! The server, which a device runs (RFC 9).
//!
//! One task for each address accepts connections. Each connection has a task, which executes its
//! requests in order (`connection.rs`). The clock task ends the sessions of silent hosts, and the
//! jobs that make no progress (`clock.rs`).
//!
//! Invariants: those of `session.rs`, `leases.rs` and `jobs.rs`. The server has the lease of its
//! root folder, so two servers never use the same folders.
//!
//! Threading: [`Server`] is owned by the task that started it. Locks are taken in this order:
//! `state`, then those of a session.

mod access;
mod bounded;
mod clock;
mod connection;
mod executors;
mod folders;
mod jobs;
mod leases;
mod measure;
mod missing;
mod names_kept;
mod notes;
mod options;
mod rebuild;
mod refused;
mod requests;
mod runs;
mod session;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use siltstone_storage::link::{Address, Connection, LinkError, Listener, Network};
use siltstone_storage::planted;
use siltstone_storage::{
    Condvar, Epoch, Instant, JoinHandle, Lease, Mutex, Result, Runtime, Storage, StorageError,
    StorageErrorKind,
};

use access::Peer;
pub use access::{Access, AccessError};
use bounded::{Bounded, InUse};
use executors::Executors;
pub use executors::{ExecutorReport, Preferred};
pub use folders::{DataFolder, Folders, MemoryFolders, NoFolders};
use jobs::Decides;
use missing::Missing;
pub use missing::MissingFolders;
pub use options::ServerOptions;
pub use refused::{RefusedPeer, RefusedPeers};
use session::{Folder, Owner, SessionState};
pub use session::{SessionEvent, SessionReport};
pub(crate) use shared::proof_of;

use crate::probe::Machine;
use crate::secret::token_hash;
use crate::wire::hello::{ClientHello, FolderWanted, Refusal};

/// If the clock task is this late, the server was paused, and no session counts as silent.
const PAUSED: Duration = Duration::from_secs(3);

/// How long a session must be silent before it may be ended to make room for another one. Its host
/// makes a request each second.
const IDLE: Duration = Duration::from_secs(3);

/// The maximum number of session events that are kept for [`Server::take_session_events`].
const EVENTS_MAX: usize = 1024;

/// The number of descriptors of the process that are reserved for jobs and for the device itself.
const OPEN_RESERVE: u64 = 64;

/// How often the tasks that accept connections check whether the server is stopping.
const ACCEPT_LOOK: Duration = Duration::from_millis(500);

#[derive(Default)]
struct State {
    /// The sessions by the hashes of their tokens.
    sessions: BTreeMap<u128, Arc<SessionState>>,
    /// States that have ended, while their last requests and jobs still run.
    ending: Vec<Arc<SessionState>>,
    connections: BTreeMap<u64, Arc<connection::Served>>,
    next_connection: u64,
    is_stopping: bool,
    /// The events of sessions that nobody has taken yet, the oldest first.
    events: VecDeque<SessionEvent>,
    /// The peers that were refused and that nobody has taken yet.
    refused: RefusedPeers,
    /// The folders that sessions ask for although they do not exist.
    missing: Missing,
}

impl State {
    /// Notes that a session began or ended. If nobody takes the events, the oldest ones are
    /// dropped.
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

    /// Forgets the sessions whose state has ended. Those whose end is not complete still hold
    /// leases.
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
        self.ending.extend(ended);
        self.ending.retain(|session| !session.end_is_complete());
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
    /// A random id of this start of the server.
    start: [u8; 16],
    started: Instant,
    executors: Executors,
    /// The number of jobs that are running.
    busy_slots: AtomicUsize,
    /// How many objects all sessions together have open.
    open_objects: InUse,
    /// The bytes of all scratch folders.
    kept_bytes: InUse,
    /// The number of running jobs for which the host decides what is kept. They have slots of their
    /// own, as many as other jobs have, so that the host's workers do not take the others' slots.
    busy_rebuilds: AtomicUsize,
    state: Mutex<State>,
    /// When the clock task last ran.
    ticked_ns: AtomicU64,
    /// Notified when the server stops, and when a connection of a stopping server has ended.
    stopping: Condvar,
    /// The folders that sessions use. If no session uses a folder any more, the next session opens
    /// it again, in case it was removed or replaced meanwhile.
    open_folders: Mutex<BTreeMap<String, Weak<Folder>>>,
    /// The rates of the storage, once they were measured.
    measured: Mutex<Option<Machine>>,
    /// Held while a merge is measured.
    measuring: Mutex<()>,
    /// The leases that were granted since the start, by folder and name, as long as leases are kept
    /// for their last holders.
    given: Mutex<BTreeSet<(String, String)>>,
    /// How many leases of each folder were granted for the first time since the start.
    new_leases: Mutex<BTreeMap<String, usize>>,
}

/// 16 random bytes.
pub(crate) fn random_id(runtime: &Runtime) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&runtime.random_u64().to_le_bytes());
    id[8..].copy_from_slice(&runtime.random_u64().to_le_bytes());
    id
}

impl Inner {
    /// The state of the session whose token has this hash.
    fn session(&self, token_hash: u128) -> Option<Arc<SessionState>> {
        self.state.lock().sessions.get(&token_hash).cloned()
    }

    /// An id of the present boot of the machine and of its file system. If the boot is not known,
    /// each start of the server counts as one.
    fn boot(&self) -> Vec<u8> {
        let boot = self.folders.boot();
        match boot.is_empty() {
            true => self.start.to_vec(),
            false => boot,
        }
    }

    /// Notes that a peer was refused. `host` is how it described itself, if it did.
    fn note_refused(&self, peer: String, host: Option<&str>, reason: String) {
        let host = host.map(str::to_string);
        let refused = RefusedPeer { peer, host, reason };
        self.state.lock().refused.add(refused);
    }

    /// Notes that a host asked for a folder that is not there.
    fn note_missing(&self, hello: &ClientHello) {
        if let FolderWanted::Named { name, .. } = &hello.folder {
            let (token_hash, now) = (token_hash(&hello.token), self.runtime.now());
            self.state.lock().missing.add(token_hash, name, now);
        }
    }

    /// Counts a connection whose peer said hello as one of the connections of that peer.
    fn admit(&self, served: &connection::Served, peer: &Peer) -> std::result::Result<(), Refusal> {
        let state = self.state.lock();
        let of_peer = |other: &&Arc<connection::Served>| {
            peer.certificate.is_some() && other.certificate() == peer.certificate
        };
        let count = state.connections.values().filter(of_peer).count();
        let max = self.options.certificate_connections_max;
        if count >= max {
            let reason = format!("the device lets a certificate have {max} connections at once");
            let kind = StorageErrorKind::TooManyOpen;
            return Err(Refusal { kind, reason });
        }
        served.greeted(peer.certificate);
        Ok(())
    }

    /// Finds the state of a session, or creates one.
    fn attach(
        &self,
        hello: &ClientHello,
        peer: &Peer,
    ) -> std::result::Result<Arc<SessionState>, Refusal> {
        let refused = |error: StorageError| Refusal {
            kind: error.kind,
            reason: error.to_string(),
        };
        let denied = |reason: String| Refusal {
            kind: StorageErrorKind::PermissionDenied,
            reason,
        };
        let own = |session: Arc<SessionState>| match session.peer.certificate == peer.certificate {
            true => Ok(session),
            false => Err(denied(
                "the session was begun with another certificate, and its token is good for that \
                 one only"
                    .into(),
            )),
        };
        if let Some(access) = &self.options.access {
            access.check_folder(peer, &hello.folder).map_err(denied)?;
        }
        let token_hash = token_hash(&hello.token);
        let found = |session: &Arc<SessionState>| !session.is_ended();
        if let Some(session) = self.session(token_hash).filter(found) {
            return own(session);
        }
        // If there is no room for another session, no folder is opened or created for it.
        self.check_room(&mut self.state.lock())?;
        let id = random_id(&self.runtime);
        let is_scratch = hello.folder == FolderWanted::Scratch;
        let folder = match &hello.folder {
            FolderWanted::None => None,
            FolderWanted::Named { name, create } => {
                Some(self.open_folder(name, *create).map_err(refused)?)
            }
            FolderWanted::Scratch => Some(self.new_scratch(&id).map_err(refused)?),
        };
        let owner = Owner {
            token_hash,
            peer: peer.clone(),
            host: hello.host.clone(),
        };
        let folders = &self.folders;
        let session = SessionState::new(&self.runtime, id, owner, folder, is_scratch, folders);
        let session = Arc::new(session);
        let known = {
            let mut state = self.state.lock();
            state.forget_ended();
            match state.sessions.get(&token_hash).cloned() {
                Some(known) => Ok(known),
                None => self.check_room(&mut state).map(|()| {
                    state.sessions.insert(token_hash, Arc::clone(&session));
                    state.missing.found(token_hash);
                    state.note(&session, false);
                    Arc::clone(&session)
                }),
            }
        };
        if known
            .as_ref()
            .is_ok_and(|known| Arc::ptr_eq(known, &session))
        {
            tracing::info!(host = hello.host, folder = ?hello.folder, "a session began");
        } else {
            // Another connection has begun this session meanwhile, or the last free place for a
            // session was taken, or the server is stopping.
            session.remove_scratch();
        }
        own(known?)
    }

    /// Checks that there may be one more session. If the maximum is reached, this may end another
    /// session, which loses nothing by it.
    fn check_room(&self, state: &mut State) -> std::result::Result<(), Refusal> {
        if state.is_stopping {
            let reason = "the device is being stopped".to_string();
            let kind = StorageErrorKind::Unreachable;
            return Err(Refusal { kind, reason });
        }
        state.forget_ended();
        if state.sessions.len() < self.options.sessions_max || self.make_room(state) {
            return Ok(());
        }
        let reason = format!("the device has {} sessions already", state.sessions.len());
        let kind = StorageErrorKind::TooManyOpen;
        Err(Refusal { kind, reason })
    }

    /// Among the sessions that would lose nothing, because they have no lease and no running job,
    /// ends the one that was silent for the longest time. Without this, strangers that only say
    /// hello would keep hosts out until the states of their sessions end. Returns whether there is
    /// room.
    fn make_room(&self, state: &mut State) -> bool {
        let sessions = state.sessions.values();
        let idle = sessions.filter(|session| {
            session.silent_for() >= IDLE
                && session.leases.lock().held.is_empty()
                && session.jobs.running() == 0
        });
        let Some(session) = idle.max_by_key(|session| session.silent_for()).cloned() else {
            return false;
        };
        session.end(Duration::ZERO);
        state.forget_ended();
        true
    }

    /// The folder of this name for a new session. Sessions keep a folder open that was moved away
    /// meanwhile, even for a moment after their end, but a new session does not find it.
    fn open_folder(&self, name: &str, create: bool) -> Result<Arc<Folder>> {
        let mut open = self.open_folders.lock();
        let known = open.get(name).and_then(Weak::upgrade);
        let storage = match (self.folders.open(name, false), known) {
            (Ok(_), Some(folder)) => return Ok(folder),
            (Ok(storage), None) => storage,
            (Err(error), _) if create && error.kind == StorageErrorKind::NotFound => {
                self.folders.open(name, true)?
            }
            (Err(error), _) => return Err(error),
        };
        let folder = Arc::new(Folder {
            name: name.to_string(),
            storage,
            grants: self.runtime.mutex(BTreeMap::new()),
        });
        open.retain(|_, folder| folder.strong_count() > 0);
        open.insert(name.to_string(), Arc::downgrade(&folder));
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
        let options = &self.options;
        let storage = Bounded::new(
            &self.runtime,
            self.folders.open_scratch(&name)?,
            options.keep_bytes,
            &self.kept_bytes,
            options.keep_all_bytes,
        );
        Ok(Arc::new(Folder {
            storage: Arc::new(storage),
            name,
            grants: self.runtime.mutex(BTreeMap::new()),
        }))
    }

    /// For how much longer leases are kept for the holders that they had before the server's start.
    fn grace_left(&self) -> Duration {
        let since = self.runtime.now().since(self.started);
        self.options.restart_grace.saturating_sub(since)
    }

    /// Whether this lease was granted since the server's start. This is known only while leases are
    /// kept for their last holders.
    fn was_given(&self, folder: &str, lease: &str) -> bool {
        let key = (folder.to_string(), lease.to_string());
        self.given.lock().contains(&key)
    }

    /// Notes that this lease was granted. `is_new` means that it was never granted before.
    fn note_given(&self, folder: &str, lease: &str, is_new: bool) {
        if is_new {
            let mut new_leases = self.new_leases.lock();
            *new_leases.entry(folder.to_string()).or_default() += 1;
        }
        if !self.grace_left().is_zero() {
            let key = (folder.to_string(), lease.to_string());
            self.given.lock().insert(key);
        }
    }

    /// How many leases of this folder were granted for the first time since the server's start.
    fn new_lease_count(&self, folder: &str) -> usize {
        self.new_leases.lock().get(folder).copied().unwrap_or(0)
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

    /// Takes a lease or a share with `take`. If a silent session holds it, the state of that
    /// session is ended first.
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
                let silent = match self.is_behind() {
                    true => Duration::ZERO,
                    false => holder.silent_for(),
                };
                let is_silent = silent >= self.options.lease_silence || planted!(LeaseOfTheLiving);
                if holder.is_ended() || is_silent {
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

    /// Whether the clock task has not run for so long that the server may have been paused. In that
    /// case no session counts as silent. The clock task will note that when it runs.
    fn is_behind(&self) -> bool {
        let ticked = Duration::from_nanos(self.ticked_ns.load(Ordering::Acquire));
        let now = Duration::from_nanos(self.runtime.now().as_nanos());
        now.saturating_sub(ticked) >= PAUSED
    }

    /// The other sessions that hold this lease, or a share of it.
    fn holders(
        &self,
        session: &Arc<SessionState>,
        folder: &Folder,
        name: &str,
    ) -> Vec<Arc<SessionState>> {
        let sessions: Vec<Arc<SessionState>> = {
            let state = self.state.lock();
            let all = state.sessions.values().chain(&state.ending);
            all.cloned().collect()
        };
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

    /// Waits until the tasks of all connections of a stopping server have ended. Returns false if
    /// they have not by this time.
    fn connections_end(&self, until: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.connections.is_empty() {
            let now = self.runtime.now();
            if now >= until {
                return false;
            }
            state = self.stopping.wait_timeout(state, until.since(now)).0;
        }
        true
    }

    /// Called by the task of a connection at its end.
    fn forget_connection(&self, id: u64) {
        let mut state = self.state.lock();
        state.connections.remove(&id);
        if state.is_stopping {
            self.stopping.notify_all();
        }
    }
}

/// A running server. [`Server::stop`] stops it. Dropping it does not.
pub struct Server {
    inner: Arc<Inner>,
    listeners: Vec<Arc<dyn Listener>>,
    tasks: Vec<JoinHandle<()>>,
}

/// Why a server could not be started.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StartError {
    /// The server's root folder could not be used.
    #[error("the device's own folder cannot be used: {0}")]
    Root(#[from] StorageError),
    /// The server could not listen.
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
        // At the first start of a device, this is its id, too.
        let start = random_id(runtime);
        let device = notes::device_id(&*root, root_epoch, start)?;
        folders.remove_scratch()?;
        let listeners = addresses
            .iter()
            .map(|address| network.listen(address))
            .collect::<std::result::Result<Vec<_>, LinkError>>()?;
        let mut options = options;
        // A job has one subjob at least.
        options.parallelism = options.parallelism.max(1);
        // Connections and the files of jobs need descriptors too.
        let others = options.connections_max as u64 + OPEN_RESERVE;
        if let Some(most) = root.open_objects_max() {
            let most = most.saturating_sub(others).max(OPEN_RESERVE);
            options.open_objects_all_max = options.open_objects_all_max.min(most);
        }
        let inner = Arc::new(Inner {
            runtime: runtime.clone(),
            executors: Executors::new(runtime, &options.preferred),
            options,
            root,
            root_epoch,
            _root_lease: root_lease,
            device,
            start,
            started: runtime.now(),
            busy_slots: AtomicUsize::new(0),
            open_objects: InUse::default(),
            kept_bytes: InUse::default(),
            busy_rebuilds: AtomicUsize::new(0),
            folders,
            state: runtime.mutex(State::default()),
            ticked_ns: AtomicU64::new(runtime.now().as_nanos()),
            stopping: runtime.condvar(),
            open_folders: runtime.mutex(BTreeMap::new()),
            given: runtime.mutex(BTreeSet::new()),
            new_leases: runtime.mutex(BTreeMap::new()),
            measured: runtime.mutex(None),
            measuring: runtime.mutex(()),
        });
        let mut server = Server {
            inner,
            listeners,
            tasks: Vec::new(),
        };
        match server.start_tasks() {
            Ok(()) => Ok(server),
            Err(error) => {
                // The tasks that were started would go on, and keep the lease of the root folder.
                server.stop();
                Err(StartError::Task(error.to_string()))
            }
        }
    }

    fn start_tasks(&mut self) -> std::io::Result<()> {
        let runtime = self.inner.runtime.clone();
        for listener in &self.listeners {
            let (inner, listener) = (Arc::clone(&self.inner), Arc::clone(listener));
            let accept = move || accept(&inner, &*listener);
            self.tasks.push(runtime.spawn("accept", accept)?);
        }
        let inner = Arc::clone(&self.inner);
        let clock = move || clock::tick(&inner);
        self.tasks.push(runtime.spawn("device clock", clock)?);
        Ok(())
    }

    /// The addresses at which the server listens. A port that the system chose is filled in.
    pub fn addresses(&self) -> Vec<Address> {
        self.listeners.iter().map(|l| l.address()).collect()
    }

    /// Describes the machine, in the same way as to hosts. The first call measures the storage: it
    /// writes and reads 8 MiB.
    pub fn machine(&self) -> Machine {
        self.inner.machine()
    }

    /// Reports what each executor of the server has done: the preferred ones in their order, then
    /// the cores of the machine.
    pub fn executors(&self) -> Vec<ExecutorReport> {
        self.inner.executors.report()
    }

    /// Reports what the sessions of the server are doing now.
    pub fn sessions(&self) -> Vec<SessionReport> {
        let sessions: Vec<_> = self.inner.state.lock().sessions.values().cloned().collect();
        let live = sessions.iter().filter(|session| !session.is_ended());
        live.map(|session| SessionReport {
            host: session.host.clone(),
            folder: session.folder.as_ref().map(|folder| folder.name.clone()),
            silent_for: session.silent_for(),
            connections: session.connection_count(),
            jobs: session.jobs.running(),
            open_objects: session.objects.lock().open.len(),
        })
        .collect()
    }

    /// The sessions that began or ended since the last call, in the order in which that happened.
    /// At most 1024 events are kept.
    pub fn take_session_events(&self) -> Vec<SessionEvent> {
        let mut state = self.inner.state.lock();
        state.forget_ended();
        state.events.drain(..).collect()
    }

    /// The peers that were refused since the last call, without those that asked for a folder that
    /// does not exist. At most 32 are kept. The further ones are only counted.
    pub fn take_refused(&self) -> RefusedPeers {
        std::mem::take(&mut self.inner.state.lock().refused)
    }

    /// The folders that sessions used before and that do not exist now. There is at most one such
    /// report per minute.
    pub fn take_missing_folders(&self) -> Option<MissingFolders> {
        let now = self.inner.runtime.now();
        self.inner.state.lock().missing.report(now)
    }

    /// Stops the server: it accepts nothing more, ends its jobs, closes its files and gives its
    /// leases back. For the ends of all sessions and of all requests together this waits at most as
    /// long as the option `end_limit` says. A request that has not ended by then, perhaps because
    /// a disk hangs, goes on in its own task. No new session begins.
    pub fn stop(self) {
        for listener in &self.listeners {
            listener.close();
        }
        let (sessions, connections) = {
            let mut state = self.inner.state.lock();
            state.is_stopping = true;
            self.inner.stopping.notify_all();
            let connections: Vec<_> = state.connections.values().cloned().collect();
            let ending = std::mem::take(&mut state.ending);
            let sessions = std::mem::take(&mut state.sessions);
            let sessions: Vec<_> = sessions.into_values().chain(ending).collect();
            (sessions, connections)
        };
        let until = self.inner.runtime.now() + self.inner.options.end_limit;
        end_all(&self.inner.runtime, &sessions, until);
        for served in &connections {
            served.close();
        }
        for task in self.tasks {
            let _ = task.join();
        }
        // The task of a connection whose request does not end would not end either. Each task that
        // ends takes its connection out of the map.
        if self.inner.connections_end(until) {
            for served in &connections {
                served.join();
            }
        }
    }
}

/// Ends the states of sessions. All of them begin to end before this waits for any of them, so
/// several that do not end take no longer than one.
fn end_all(runtime: &Runtime, sessions: &[Arc<SessionState>], until: Instant) {
    for session in sessions {
        session.end(Duration::ZERO);
    }
    for session in sessions {
        session.end(until.since(runtime.now()));
    }
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
    let mut cut_off = None;
    let served = {
        let mut state = inner.state.lock();
        let count = state.connections.len();
        let is_full = count >= inner.options.connections_max;
        if state.is_stopping || is_full {
            if is_full {
                state.refused.add(RefusedPeer {
                    peer: connection.peer(),
                    host: None,
                    reason: format!("the device has {count} connections already"),
                });
            }
            drop(state);
            connection.close();
            return;
        }
        let greeting = state
            .connections
            .values()
            .filter(|served| served.is_greeting());
        if greeting.clone().count() >= inner.options.greeting_max
            && let Some(oldest) = greeting.min_by_key(|served| served.id)
        {
            oldest.give_up();
            cut_off = Some(Arc::clone(oldest));
        }
        let id = state.next_connection;
        state.next_connection += 1;
        let served = Arc::new(connection::Served::new(&inner.runtime, id, connection));
        state.connections.insert(id, Arc::clone(&served));
        served
    };
    if let Some(oldest) = cut_off {
        oldest.close();
    }
    connection::start(inner, &served);
}
