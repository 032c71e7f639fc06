//! The client: a folder of a device as a [`Storage`], and the device as an executor of jobs.
//!
//! ```text
//! storage.rs, read.rs, file.rs, names.rs   calls of a storage as requests
//! unclaimed.rs, object_name.rs             what names.rs and the open objects remember
//! ahead.rs                                 what is read before it is needed
//! session.rs                               connections, and what the server knows of the session
//! pipe.rs                                  one connection
//! limited.rs                               a slow link, simulated
//! executor.rs, jobs.rs                     jobs that run on the device
//! lent.rs                                  jobs whose tables are sent and fetched
//! separated.rs, transfer_cost.rs           jobs for which only columns cross the link
//! link_rate.rs, probe.rs                   measurements of the link and of the device
//! purpose.rs                               what the bytes of the link are for
//! ```
//!
//! Threading: [`Device`] is shared by everything that uses the session. One task sends a sign of
//! life each second. The keeper task sends what files could not send while the link was down, and
//! closes objects whose handles were dropped.

mod ahead;
mod executor;
mod file;
mod jobs;
mod lent;
mod limited;
mod link_rate;
mod names;
mod object_name;
mod options;
mod pipe;
mod probe;
mod purpose;
mod read;
mod separated;
mod session;
mod storage;
pub mod transfer_cost;
mod unclaimed;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::link::{Address, Network};
use siltstone_storage::{
    Condvar, JoinHandle, Mutex, Result, Runtime, Storage, StorageError, StorageErrorKind,
};

pub use executor::DeviceExecutor;
use file::FileShared;
use jobs::DOWN_LIMIT;
pub(crate) use limited::LimitedNetwork;
use names::NamesLane;
use object_name::ObjectName;
pub use options::ClientOptions;
use purpose::Traffic;
pub use purpose::{LinkBytes, LinkPurpose};
use read::ReadShared;
pub use separated::{SeparatedExecutor, SeparatedStats};
use session::{Limit, Session};
use storage::DeviceStorage;

use crate::wire::Request;
use crate::wire::hello::{FolderWanted, Welcome};

/// The interval between signs of life, and between the rounds of the keeper.
const KEEPER_INTERVAL: Duration = Duration::from_secs(1);

/// One round of the keeper, or one sign of life, gives up when the device has been silent for this
/// long.
const KEEPER_LIMIT: Duration = Duration::from_secs(2);

/// How long a close waits for a device that is silent.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How long a close waits for a device that says that it is working.
const CLOSE_MAX: Duration = Duration::from_secs(60);

/// What the handles of one session share.
pub(crate) struct Client {
    session: Arc<Session>,
    names: NamesLane,
    /// The files that are open for writing.
    files: Mutex<BTreeMap<u64, Arc<FileShared>>>,
    /// The objects that are open for reading.
    readers: Mutex<BTreeMap<u64, Arc<ReadShared>>>,
    /// The leases that the session has or may get, and whether their handles were dropped.
    leases: Mutex<BTreeMap<[u8; 16], Arc<AtomicBool>>>,
    /// Counts the handles that were dropped.
    drops: Arc<AtomicU64>,
    /// How many attempts were given a number.
    attempts: AtomicU64,
    /// Attempts that the keeper has to end.
    left_attempts: Mutex<BTreeSet<u64>>,
    is_ending: AtomicBool,
    ending: Mutex<()>,
    ended: Condvar,
}

/// A session with a device.
pub struct Device {
    client: Arc<Client>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

/// The state of the link to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkReport {
    /// The device's name.
    pub device: String,
    /// How long the device could not be reached, and why. `None` if it can be reached.
    pub down: Option<(Duration, String)>,
    /// The bytes that were sent, including those of sessions for lent work.
    pub sent_bytes: u64,
    /// The bytes that were received, including those of sessions for lent work.
    pub received_bytes: u64,
    /// The same bytes, by purpose.
    pub purposes: Vec<LinkBytes>,
    /// Appends that were joined to earlier ones, and therefore needed no request of their own.
    pub joined_count: u64,
    /// Bytes that were requested before they were needed. They are part of `received_bytes`.
    pub ahead_bytes: u64,
    /// Objects that are read through a descriptor that the device passed, without the link.
    pub passed_count: u64,
}

impl Device {
    /// Connects to a device, to use a folder on it. Starts the tasks of the session.
    ///
    /// # Errors
    /// `Unreachable` if it does not answer within the time limit; the device's reason if it refuses
    /// the folder.
    pub fn connect(
        runtime: &Runtime,
        network: Arc<dyn Network>,
        address: Address,
        folder: FolderWanted,
        options: ClientOptions,
    ) -> Result<Arc<Device>> {
        let traffic = Arc::default();
        Device::connect_counting(runtime, network, address, folder, options, traffic)
    }

    /// As [`Device::connect`]. The bytes of the session are added to `traffic`.
    fn connect_counting(
        runtime: &Runtime,
        network: Arc<dyn Network>,
        address: Address,
        folder: FolderWanted,
        options: ClientOptions,
        traffic: Arc<Traffic>,
    ) -> Result<Arc<Device>> {
        let session = Session::new(runtime, network, address, folder, options, traffic);
        let session = Arc::new(session);
        let client = Arc::new(Client {
            names: NamesLane::new(&session),
            files: runtime.mutex(BTreeMap::new()),
            readers: runtime.mutex(BTreeMap::new()),
            leases: runtime.mutex(BTreeMap::new()),
            drops: Arc::default(),
            attempts: AtomicU64::new(0),
            left_attempts: runtime.mutex(BTreeSet::new()),
            is_ending: AtomicBool::new(false),
            ending: runtime.mutex(()),
            ended: runtime.condvar(),
            session,
        });
        let limit = client.session.limit();
        let name = client.session.describe();
        let pipe = client.session.take(&limit, "connect", &name)?;
        client.session.give_back(pipe);
        let mut tasks = Vec::new();
        for (what, is_keeper) in [("signs of life", false), ("keeper of a device", true)] {
            let of_task = Arc::clone(&client);
            let task = move || match is_keeper {
                true => keep(&of_task),
                false => live(&of_task),
            };
            match runtime.spawn(what, task) {
                Ok(task) => tasks.push(task),
                Err(e) => {
                    client.is_ending.store(true, Ordering::Release);
                    return Err(StorageError::from_io("connect", name, &e));
                }
            }
        }
        Ok(Arc::new(Device {
            client,
            tasks: runtime.mutex(tasks),
        }))
    }

    /// Opens another session with the same device, for jobs. Its bytes count as bytes of this
    /// session. Its calls give up as early as those that wait for a job, and its files need not be
    /// durable.
    fn reconnect(&self, folder: FolderWanted) -> Result<Arc<Device>> {
        let session = &self.client.session;
        let (network, address) = session.link();
        let options = ClientOptions {
            time_limit: session.options.time_limit.min(DOWN_LIMIT),
            sync_bytes: 0,
            ..session.options.clone()
        };
        let traffic = Arc::clone(&session.vital.traffic);
        Device::connect_counting(&session.runtime, network, address, folder, options, traffic)
    }

    /// The folder as a storage.
    pub fn storage(self: &Arc<Self>) -> Arc<dyn Storage> {
        Arc::new(DeviceStorage::new(Arc::clone(&self.client)))
    }

    /// The address of the device, with the folder on it if the session has one.
    pub fn address(&self) -> String {
        self.client.session.describe()
    }

    /// Whether the session has no folder, so that only compactions use it.
    pub fn is_for_jobs(&self) -> bool {
        self.client.session.is_for_jobs()
    }

    /// The address of the device, without the folder.
    pub(crate) fn link_address(&self) -> Address {
        self.client.session.link().1
    }

    /// What the device said about itself and about its limits, once the session is attached.
    pub fn welcome(&self) -> Option<Arc<Welcome>> {
        self.client.session.welcome()
    }

    /// The state of the link.
    pub fn report(&self) -> LinkReport {
        let session = &self.client.session;
        let now = session.runtime.now();
        let purposes = session.vital.traffic.report();
        LinkReport {
            device: session
                .welcome()
                .map_or_else(String::new, |w| w.name.clone()),
            down: session.down().map(|(since, why)| (now.since(since), why)),
            sent_bytes: purposes.iter().map(|bytes| bytes.sent).sum(),
            received_bytes: purposes.iter().map(|bytes| bytes.received).sum(),
            purposes,
            joined_count: session.vital.joined_count.load(Ordering::Relaxed),
            ahead_bytes: session.vital.ahead_bytes.load(Ordering::Relaxed),
            passed_count: session.vital.passed_count.load(Ordering::Relaxed),
        }
    }

    /// Ends the session: sends what files have not sent yet, and gives leases back. Every later
    /// call fails. This waits for the device, and gives up when it has been silent for five
    /// seconds, or when it has been working for a minute, for example because its disk hangs. It
    /// also waits for the end of an attempt to connect that is under way. If the device cannot be
    /// reached and the session is for compactions only, this waits only for such an attempt.
    pub fn close(&self) {
        self.begin_close();
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            let _ = task.join();
        }
    }
}

impl Device {
    /// Begins [`Device::close`], without waiting for its end.
    pub(crate) fn begin_close(&self) {
        let client = &self.client;
        client.session.end_within(CLOSE_MAX);
        let _ending = client.ending.lock();
        client.is_ending.store(true, Ordering::Release);
        client.ended.notify_all();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // The tasks of the session notice this when they next check. A caller that wants to wait
        // for them calls `close`.
        self.client.session.end_within(CLOSE_MAX);
        self.client.is_ending.store(true, Ordering::Release);
    }
}

impl Client {
    /// Waits until all appends to the object of this name are answered.
    fn drain(&self, name: &str, limit: &Limit, op: &'static str) -> Result<()> {
        self.drain_these(|own| own.may_be(name), limit, op)
    }

    /// As [`Client::drain`], for all files.
    fn drain_all(&self, limit: &Limit, op: &'static str) -> Result<()> {
        self.drain_these(|_| true, limit, op)
    }

    /// As [`Client::drain`], for the objects whose names are selected.
    fn drain_these(
        &self,
        is_meant: impl Fn(&ObjectName) -> bool,
        limit: &Limit,
        op: &'static str,
    ) -> Result<()> {
        // Files that have lost their name are included, because somebody may still read that
        // object.
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        for file in files
            .iter()
            .filter(|file| file.with_name(|own| is_meant(own)))
        {
            // A file that has failed has no bytes that could still arrive.
            match file.drain(limit, op) {
                Err(e) if e.kind == StorageErrorKind::Unreachable => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// Called before these objects are opened for writing. Nothing is read ahead of them from then
    /// on.
    fn is_written_now(&self, objects: &[Named]) {
        for object in objects {
            if let Named::Read(reader) = object {
                reader.ahead.turn_off(&self.session);
            }
        }
    }

    /// Closes the files of this name whose handles were dropped, which the keeper would do later.
    fn close_dropped(&self, name: &str, limit: &Limit) -> Result<()> {
        for file in self.files_named(name) {
            if !file.is_dropped.load(Ordering::Acquire) {
                continue;
            }
            match file.drain(limit, "close") {
                Err(e) if e.kind == StorageErrorKind::Unreachable => return Err(e),
                _ => {}
            }
            file.close();
            let request = Request::Close { file: file.id };
            self.session.ask(limit, "close", name, &request, &[])?;
            self.files.lock().remove(&file.id);
        }
        Ok(())
    }

    fn files_named(&self, name: &str) -> Vec<Arc<FileShared>> {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        let is_named = |file: &Arc<FileShared>| file.with_name(|own| own.is(name));
        files.into_iter().filter(is_named).collect()
    }

    /// The open objects of this name.
    fn objects_named(&self, name: &str) -> Vec<Named> {
        let files = self.files_named(name).into_iter().map(Named::Written);
        let mut named: Vec<Named> = files.collect();
        let readers: Vec<_> = self.readers.lock().values().cloned().collect();
        let is_named = |reader: &Arc<ReadShared>| reader.with_name(|own| own.is(name));
        let readers = readers.into_iter().filter(is_named);
        named.extend(readers.map(Named::Read));
        named
    }

    /// Closes the objects and gives back the leases whose handles were dropped. Returns false if
    /// some of them are left, because the device could not be reached.
    fn sweep(&self, limit: &Limit) -> bool {
        let dropped: Vec<_> = {
            let files = self.files.lock();
            let all = files.values();
            let is_dropped = |file: &&Arc<FileShared>| file.is_dropped.load(Ordering::Acquire);
            all.filter(is_dropped).cloned().collect()
        };
        for file in dropped {
            match file.drain(limit, "close") {
                Err(e) if e.kind == StorageErrorKind::Unreachable => return false,
                _ => {}
            }
            file.close();
            if !self.tell(&Request::Close { file: file.id }, limit) {
                return false;
            }
            self.files.lock().remove(&file.id);
        }
        let dropped: Vec<_> = {
            let readers = self.readers.lock();
            let all = readers.values();
            let is_dropped = |reader: &&Arc<ReadShared>| reader.is_dropped.load(Ordering::Acquire);
            all.filter(is_dropped).cloned().collect()
        };
        for reader in dropped {
            reader.ahead.close(&self.session);
            let id = reader.id;
            if !self.tell(&Request::Close { file: id }, limit) {
                return false;
            }
            self.readers.lock().remove(&id);
        }
        let dropped: Vec<[u8; 16]> = {
            let leases = self.leases.lock();
            let all = leases.iter();
            let dropped = all.filter(|(_, is_over)| is_over.load(Ordering::Acquire));
            dropped.map(|(id, _)| *id).collect()
        };
        for id in dropped {
            self.session.forget_lease(id);
            if !self.tell(&Request::Release { id }, limit) {
                return false;
            }
            self.forget_lease(id);
        }
        true
    }

    /// Waits for the next round of a periodic task. Returns false when the client ends.
    fn goes_on(&self) -> bool {
        let ending = self.ending.lock();
        if !self.is_ending.load(Ordering::Acquire) {
            drop(self.ended.wait_timeout(ending, KEEPER_INTERVAL));
        }
        !self.is_ending.load(Ordering::Acquire)
    }

    fn add_lease(&self, id: [u8; 16], is_over: Arc<AtomicBool>) {
        self.leases.lock().insert(id, is_over);
    }

    fn forget_lease(&self, id: [u8; 16]) {
        self.leases.lock().remove(&id);
    }

    /// Notes that the handle of a lease was dropped. The keeper gives the lease back.
    fn lease_is_over(&self, is_over: &AtomicBool) {
        is_over.store(true, Ordering::Release);
        self.drops.fetch_add(1, Ordering::AcqRel);
    }

    /// Makes a request whose answer does not matter. Returns false if the device could not be
    /// reached.
    fn tell(&self, request: &Request, limit: &Limit) -> bool {
        let asked = self.session.ask(limit, "close", "", request, &[]);
        !matches!(asked, Err(e) if e.kind == StorageErrorKind::Unreachable)
    }
}

/// An open object, to look at or change its name.
enum Named {
    Written(Arc<FileShared>),
    Read(Arc<ReadShared>),
}

impl Named {
    fn with_name(&self, f: impl FnOnce(&mut ObjectName)) {
        match self {
            Named::Written(file) => file.with_name(f),
            Named::Read(reader) => reader.with_name(f),
        }
    }
}

/// The task that sends signs of life. It does nothing else, because anything else may have to wait
/// for a slow answer. If the device receives nothing from a host for a while, it may give the
/// host's lease to another one.
fn live(client: &Arc<Client>) {
    let session = &client.session;
    while client.goes_on() {
        if session.ended().is_none() {
            let limit = session.live_limit(KEEPER_LIMIT);
            let _ = session.ask(&limit, "connect", "", &Request::KeepAlive, &[]);
        }
    }
}

/// The keeper task.
fn keep(client: &Arc<Client>) {
    let session = &client.session;
    let mut swept = 0;
    while client.goes_on() {
        if session.ended().is_some() {
            continue;
        }
        if session.down().is_some() {
            continue;
        }
        let limit = session.keeper_limit(KEEPER_LIMIT);
        let files: Vec<_> = client.files.lock().values().cloned().collect();
        for file in files.iter().filter(|file| file.is_unanswered()) {
            let _ = file.drain(&limit, "append");
        }
        client.names.leave_unclaimed(session);
        session.close_left_open(&limit);
        let readers: Vec<_> = client.readers.lock().values().cloned().collect();
        readers
            .iter()
            .for_each(|reader| reader.ahead.close_idle(session));
        let drops = client.drops.load(Ordering::Acquire);
        if drops != swept {
            let is_swept = client.sweep(&limit);
            if client.end_left_attempts(&limit) && is_swept {
                swept = drops;
            }
        }
    }
    let has_unsent = || {
        let files = client.files.lock();
        files.values().any(|file| file.is_unanswered())
    };
    // A device that cannot be reached notices the end of the session by its silence. This still
    // tries to give a lease back, because otherwise the next host has to wait for it.
    if session.down().is_none() || session.has_folder() || has_unsent() {
        let limit = session.keeper_limit(CLOSE_LIMIT);
        let _ = client.drain_all(&limit, "close");
        // If a call of a file hangs, the time is used up.
        session.end_after(CLOSE_LIMIT);
        let _ = session.ask(&limit, "close", "", &Request::Goodbye, &[]);
    }
    let name = session.describe();
    let kind = StorageErrorKind::Closed;
    let detail = "the session with the device was closed";
    session.end(StorageError::new(kind, "call the device", name, detail));
}
