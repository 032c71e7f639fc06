//! The server's state of one session: its lane of names, its leases, its open objects and its jobs.
//!
//! Invariants (RFC 9, sections 5 and 6):
//! - D1: a lane executes each number once, under its lock.
//! - D2: a task that holds a lane's lock checks, under this lock, that the state has not ended.
//! - D3: the leases are dropped only when no request changes anything any more, and
//!   [`SessionState::end`] returns true only after that.
//! - A state that has ended stays so.
//!
//! Threading: shared. Locks are taken in this order: lane of names, objects, lane of a file,
//! leases, failed syncs, name of a file. The locks of lanes are held during calls of the storage.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::{
    Condvar, Epoch, Instant, Mutex, ReadFile, Runtime, Storage, StorageError, StorageErrorKind,
    WriteFile,
};

use super::access::Peer;
use super::bounded::Taken;
use super::folders::Folders;
use super::jobs::Jobs;
use crate::wire::Answer;

/// A folder that sessions use.
pub(super) struct Folder {
    /// The folder's name. The name of a scratch folder begins with `scratch-`.
    pub(super) name: String,
    pub(super) storage: Arc<dyn Storage>,
    /// Serialises the grants of the folder's leases. For each lease that was to be granted again,
    /// it has the last epoch of the folder's own lease that was taken and could not be noted.
    pub(super) grants: Mutex<BTreeMap<String, u64>>,
}

/// A lease that the session has.
pub(super) struct Held {
    pub(super) name: String,
    /// The epoch that the host has.
    pub(super) granted: Epoch,
    /// The epoch of the folder's own lease. `None` for a share.
    pub(super) local: Option<Epoch>,
    /// The lease or the share of the folder's storage, which keeps others out until it is dropped.
    pub(super) _lock: Box<dyn Send + Sync>,
}

/// The leases of a session.
#[derive(Default)]
pub(super) struct Leases {
    pub(super) held: BTreeMap<[u8; 16], Held>,
    /// The ids of leases that were given back. They are not granted again.
    pub(super) released: Vec<[u8; 16]>,
}

/// A lane: the last number that was taken, and the answer to it.
#[derive(Default)]
pub(super) struct Lane {
    taken: u64,
    answer: Option<(u32, Answer)>,
}

/// What a lane does with a request.
pub(super) enum Turn {
    /// The request is executed now.
    Execute,
    /// The request was executed before, and this is its answer.
    Answered(Answer),
    /// The host broke the protocol.
    Broken,
}

impl Lane {
    /// Says what to do with the request of this number and this checksum.
    pub(super) fn turn(&self, number: u64, crc: u32) -> Turn {
        if number == self.taken + 1 || number == self.taken && planted!(LaneTakesTwice) {
            return Turn::Execute;
        }
        match &self.answer {
            Some((taken_crc, answer)) if number == self.taken && *taken_crc == crc => {
                Turn::Answered(answer.clone())
            }
            // This is an old request that was under way for a long time. The host already has its
            // answer.
            _ if number < self.taken && number > 0 => Turn::Answered(Answer::Done),
            _ => Turn::Broken,
        }
    }

    /// Notes that the request of this number was executed.
    pub(super) fn taken(&mut self, number: u64, crc: u32, answer: &Answer) {
        self.taken = number;
        self.answer = Some((crc, answer.clone()));
    }
}

/// The lane of a file that is open for writing.
#[derive(Default)]
pub(super) struct FileLane {
    /// The last number that was taken.
    pub(super) taken: u64,
    /// The error of that request, if it failed.
    pub(super) last: Option<StorageError>,
    /// The first failure after which no more requests for this file are executed.
    pub(super) failed: Option<StorageError>,
    pub(super) is_closed: bool,
}

/// A file that the host has open for writing.
pub(super) struct Written {
    pub(super) file: Arc<dyn WriteFile>,
    /// The object's name now. It may have been renamed since it was opened.
    pub(super) name: Mutex<String>,
    pub(super) lane: Mutex<FileLane>,
    /// The file's slot among the open objects of all sessions.
    pub(super) _room: Taken,
}

/// An object that the host has open for reading.
pub(super) struct Reading {
    pub(super) file: Arc<dyn ReadFile>,
    /// The object's slot among the open objects of all sessions.
    pub(super) _room: Taken,
}

/// An open object.
#[derive(Clone)]
pub(super) enum Object {
    Written(Arc<Written>),
    Read(Arc<Reading>),
}

/// The objects that a session has open.
#[derive(Default)]
pub(super) struct Objects {
    pub(super) open: BTreeMap<u64, Object>,
    /// Objects that were closed. A request to open one of them is an old one.
    closed: BTreeSet<u64>,
    /// The same objects in the order in which they were closed. If there are too many, those that
    /// were closed first are forgotten.
    closed_in_order: VecDeque<u64>,
}

impl Objects {
    /// Whether the object was closed.
    pub(super) fn was_closed(&self, file: u64) -> bool {
        self.closed.contains(&file)
    }

    /// Closes an object, and remembers that.
    pub(super) fn close(&mut self, file: u64) -> Option<Object> {
        if self.closed.insert(file) {
            self.closed_in_order.push_back(file);
        }
        if self.closed_in_order.len() > CLOSED_MAX
            && let Some(first) = self.closed_in_order.pop_front()
        {
            self.closed.remove(&first);
        }
        self.open.remove(&file)
    }

    /// The objects of this name that are open for writing.
    pub(super) fn written_as(&self, name: &str) -> Vec<Arc<Written>> {
        let written = self.open.values().filter_map(|object| match object {
            Object::Written(written) if *written.name.lock() == name => Some(Arc::clone(written)),
            _ => None,
        });
        written.collect()
    }
}

/// How many closed objects are remembered.
const CLOSED_MAX: usize = 4096;

/// The syncs that failed. If such a sync were tried again, it could succeed although bytes or names
/// are lost, because the system reports a failure only once.
#[derive(Default)]
pub(super) struct FailedSyncs {
    pub(super) names: Option<StorageError>,
    pub(super) objects: BTreeMap<String, StorageError>,
}

/// A session that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEvent {
    /// The host, as it described itself.
    pub host: String,
    /// The session's folder.
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
    /// The session's folder.
    pub folder: Option<String>,
    /// For how long no byte has arrived from the host. A live host is silent for at most a second.
    pub silent_for: Duration,
    /// The number of open connections of the session.
    pub connections: usize,
    /// The number of the session's jobs that are running.
    pub jobs: usize,
    /// The number of objects that the session has open.
    pub open_objects: usize,
}

/// See the module.
pub(super) struct SessionState {
    runtime: Runtime,
    pub(super) id: [u8; 16],
    /// The hash of the session's token. The token itself is a secret of the host.
    pub(super) token_hash: u128,
    /// The peer that began the session. No other peer can use its token.
    pub(super) peer: Peer,
    /// A description of the host, for messages.
    pub(super) host: String,
    pub(super) folder: Option<Arc<Folder>>,
    pub(super) is_scratch: bool,
    /// Used to remove the folder, if it is a scratch folder.
    folders: Arc<dyn Folders>,
    is_ended: AtomicBool,
    /// Whether the end is complete.
    end_is_done: Mutex<bool>,
    end_changed: Condvar,
    last_heard_ns: AtomicU64,
    /// The number of open connections of the session.
    connections: AtomicUsize,
    pub(super) names: Mutex<Lane>,
    pub(super) failed: Mutex<FailedSyncs>,
    pub(super) objects: Mutex<Objects>,
    pub(super) leases: Mutex<Leases>,
    pub(super) jobs: Jobs,
}

/// A connection of a session.
pub(super) struct Connected(Arc<SessionState>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The owner of a new session.
pub(super) struct Owner {
    pub(super) token_hash: u128,
    pub(super) peer: Peer,
    pub(super) host: String,
}

impl SessionState {
    pub(super) fn new(
        runtime: &Runtime,
        id: [u8; 16],
        owner: Owner,
        folder: Option<Arc<Folder>>,
        is_scratch: bool,
        folders: &Arc<dyn Folders>,
    ) -> SessionState {
        SessionState {
            runtime: runtime.clone(),
            id,
            token_hash: owner.token_hash,
            peer: owner.peer,
            host: owner.host,
            folder,
            is_scratch,
            folders: Arc::clone(folders),
            is_ended: AtomicBool::new(false),
            end_is_done: runtime.mutex(false),
            end_changed: runtime.condvar(),
            last_heard_ns: AtomicU64::new(runtime.now().as_nanos()),
            connections: AtomicUsize::new(0),
            names: runtime.mutex(Lane::default()),
            failed: runtime.mutex(FailedSyncs::default()),
            objects: runtime.mutex(Objects::default()),
            leases: runtime.mutex(Leases::default()),
            jobs: Jobs::new(runtime),
        }
    }

    /// A file that is open for writing.
    pub(super) fn new_written(&self, file: Arc<dyn WriteFile>, room: Taken) -> Arc<Written> {
        Arc::new(Written {
            name: self.runtime.mutex(file.name().to_string()),
            file,
            lane: self.runtime.mutex(FileLane::default()),
            _room: room,
        })
    }

    /// Counts a connection of the session until the value is dropped.
    pub(super) fn connected(self: &Arc<Self>) -> Connected {
        self.connections.fetch_add(1, Ordering::SeqCst);
        Connected(Arc::clone(self))
    }

    /// The number of open connections of the session.
    pub(super) fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Notes that a byte from the host has arrived.
    pub(super) fn heard(&self) {
        self.heard_at(self.runtime.now());
    }

    pub(super) fn heard_at(&self, now: Instant) {
        self.last_heard_ns
            .fetch_max(now.as_nanos(), Ordering::Relaxed);
    }

    /// For how long no byte has arrived from the host.
    pub(super) fn silent_for(&self) -> Duration {
        let last = self.last_heard_ns.load(Ordering::Relaxed);
        Duration::from_nanos(self.runtime.now().as_nanos().saturating_sub(last))
    }

    /// Whether the end is complete, so that the state holds no lease and changes nothing any more.
    pub(super) fn end_is_complete(&self) -> bool {
        *self.end_is_done.lock()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.is_ended.load(Ordering::SeqCst)
    }

    /// Translates the epoch in a host's request into the epoch of the folder's own lease. Fails as
    /// `Fenced` if the session does not have this lease.
    pub(super) fn local_epoch(&self, op: &'static str, epoch: u64) -> Result<Epoch, StorageError> {
        let leases = self.leases.lock();
        let mut held = leases.held.values();
        let found = held.find_map(|held| held.local.filter(|_| held.granted.0 == epoch));
        found.ok_or_else(|| {
            let name = self.folder.as_ref().map_or("", |folder| &folder.name);
            let detail = format!("this host does not have the lease of epoch {epoch} any more");
            StorageError::new(StorageErrorKind::Fenced, op, name, detail)
        })
    }

    /// Ends everything that writes: jobs and open files. Returns when none of them can change the
    /// folder any more.
    pub(super) fn end_writers(&self) {
        self.jobs.end_all();
        let written: Vec<Arc<Written>> = {
            let mut objects = self.objects.lock();
            let written = objects.open.values().filter_map(|object| match object {
                Object::Written(written) => Some(Arc::clone(written)),
                Object::Read(_) => None,
            });
            let written = written.collect();
            objects
                .open
                .retain(|_, object| matches!(object, Object::Read(_)));
            written
        };
        for written in written {
            // A task that executes a request for the file holds this lock.
            written.lane.lock().is_closed = true;
        }
    }

    /// Removes the folder with the tables that were sent. If that fails, the next start of the
    /// device removes it.
    pub(super) fn remove_scratch(&self) {
        if let Some(folder) = self.folder.as_ref().filter(|_| self.is_scratch)
            && let Err(error) = self.folders.remove_scratch_folder(&folder.name)
        {
            tracing::warn!(%error, folder = folder.name, "a scratch folder could not be removed");
        }
    }

    /// Ends the state (D3). Waits at most for `limit`, and returns whether the end is complete. If
    /// it is not, the end still goes on.
    pub(super) fn end(self: &Arc<Self>, limit: Duration) -> bool {
        if !self.is_ended.swap(true, Ordering::SeqCst) {
            let state = Arc::clone(self);
            let end = move || {
                // Requests that are executed now have this lock, and later ones see the mark.
                drop(state.names.lock());
                state.end_writers();
                state.objects.lock().open.clear();
                state.leases.lock().held.clear();
                state.remove_scratch();
                *state.end_is_done.lock() = true;
                state.end_changed.notify_all();
            };
            let end = Arc::new(end);
            let run = Arc::clone(&end);
            // If no task can be started, the caller does it, no matter how long it takes.
            if self
                .runtime
                .spawn("end of a session", move || run())
                .is_err()
            {
                end();
            }
        }
        let until = self.runtime.now() + limit;
        let mut is_done = self.end_is_done.lock();
        while !*is_done {
            let now = self.runtime.now();
            if now >= until {
                return false;
            }
            is_done = self.end_changed.wait_timeout(is_done, until.since(now)).0;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_that_were_closed_last_are_remembered() {
        let mut objects = Objects::default();
        for file in 2..2 + CLOSED_MAX as u64 {
            objects.close(file);
        }
        // An object that was open for long has a small number.
        for _ in 0..2 {
            objects.close(1);
            assert!(objects.was_closed(1) && objects.was_closed(3));
            assert!(!objects.was_closed(2), "the first one is forgotten");
        }
    }

    #[test]
    fn a_lane_takes_each_number_once() {
        let mut lane = Lane::default();
        assert!(matches!(lane.turn(1, 5), Turn::Execute));
        assert!(matches!(lane.turn(0, 5), Turn::Broken));
        assert!(matches!(lane.turn(2, 5), Turn::Broken));
        lane.taken(1, 5, &Answer::Opened { len: 9 });
        let Turn::Answered(Answer::Opened { len: 9 }) = lane.turn(1, 5) else {
            panic!("the answer is kept");
        };
        // Another request with a number that was already taken is not a repetition.
        assert!(matches!(lane.turn(1, 6), Turn::Broken));
        assert!(matches!(lane.turn(2, 6), Turn::Execute));
        lane.taken(2, 6, &Answer::Done);
        assert!(matches!(lane.turn(1, 5), Turn::Answered(Answer::Done)));
    }
}
