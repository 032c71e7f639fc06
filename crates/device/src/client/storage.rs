//! A folder of a device as a [`Storage`].
//!
//! Invariants: S1 to S5 of the trait. An append may return before the device has the bytes, so
//! [`Capabilities::pipelined`] is set. Appended bytes of a killed host may be lost, so
//! [`Capabilities::survives_kill`] is not set.
//!
//! Threading: shared.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone_storage::files::open_files_max;
use siltstone_storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, Result, SharedLease, Storage, StorageError,
    StorageErrorKind, WriteFile, copy_object,
};

use super::file::{FileShared, RemoteFile};
use super::names::Changed;
use super::object_name::ObjectName;
use super::read::{self, How};
use super::session::{LeaseRecord, Limit, Opening};
use super::{Client, Named};
use crate::wire::request::NamesChange;
use crate::wire::{Answer, Request};

/// The pause before an import from a session that the device has forgotten is tried again.
const IMPORT_PAUSE: Duration = Duration::from_millis(20);

/// The pause between two attempts to get a lease.
const LEASE_PAUSE: Duration = Duration::from_millis(500);

/// The maximum number of objects in a folder. A device that lists more is not trusted.
const OBJECTS_MAX: usize = 4 << 20;

/// See the module.
pub(crate) struct DeviceStorage {
    pub(crate) client: Arc<Client>,
}

/// A lease that the device granted.
struct RemoteLease {
    client: Arc<Client>,
    id: [u8; 16],
    epoch: Epoch,
    is_over: Arc<AtomicBool>,
}

impl RemoteLease {
    fn give_back(&self) -> Result<()> {
        let session = &self.client.session;
        let limit = session.limit();
        let asked = self.client.drain_all(&limit, "release").and_then(|()| {
            // If the device is restarted from now on, the session does not ask for this lease
            // again.
            session.forget_lease(self.id);
            let request = Request::Release { id: self.id };
            session.ask(&limit, "release", "", &request, &[]).map(drop)
        });
        match &asked {
            Ok(()) => self.client.forget_lease(self.id),
            // The keeper tries again.
            Err(_) => self.client.lease_is_over(&self.is_over),
        }
        asked
    }
}

impl Drop for RemoteLease {
    fn drop(&mut self) {
        // The keeper gives the lease back.
        self.client.lease_is_over(&self.is_over);
    }
}

impl Lease for RemoteLease {
    fn epoch(&self) -> Epoch {
        self.epoch
    }

    fn release(&self) -> Result<()> {
        self.give_back()
    }
}

impl SharedLease for RemoteLease {
    fn last_epoch(&self) -> Epoch {
        self.epoch
    }

    fn release(&self) -> Result<()> {
        self.give_back()
    }
}

impl DeviceStorage {
    pub(super) fn new(client: Arc<Client>) -> DeviceStorage {
        DeviceStorage { client }
    }

    fn take_lease(&self, name: &str, shared: bool) -> Result<RemoteLease> {
        let session = &self.client.session;
        let op = if shared { "lease_shared" } else { "lease" };
        let id = crate::server::random_id(&session.runtime);
        let limit = session.limit();
        // A lease that was dropped in this process is given back before another one is requested.
        self.client.sweep(&limit);
        let request = Request::Lease {
            id,
            name: name.to_string(),
            shared,
            again: None,
        };
        let until = session.runtime.now() + session.options.lease_wait;
        let state = || session.welcome().map(|welcome| welcome.state);
        let before = state();
        let epoch = loop {
            match session.ask(&limit, op, name, &request, &[]) {
                Ok((Answer::Leased { epoch }, _)) => break Epoch(epoch),
                Ok(_) => return Err(session.wrong_answer(op, name)),
                Err(e)
                    if e.kind == StorageErrorKind::LeaseHeld && session.runtime.now() < until =>
                {
                    session.runtime.sleep(LEASE_PAUSE);
                }
                Err(error) => {
                    // The lease may still be granted later, even after a refusal, because a request
                    // that was sent twice may still be under way. The keeper gives such a lease
                    // back.
                    self.client.add_lease(id, Arc::new(AtomicBool::new(true)));
                    self.client.drops.fetch_add(1, Ordering::AcqRel);
                    return Err(error);
                }
            }
        };
        let is_attaching = session.note_lease(LeaseRecord {
            id,
            name: name.to_string(),
            shared,
            epoch,
        });
        if is_attaching || state() != before {
            // The device was restarted meanwhile, and the session may have been attached again
            // before the lease was noted, or is being attached without it.
            let request = Request::Lease {
                id,
                name: name.to_string(),
                shared,
                again: Some(epoch.0),
            };
            if let Err(error) = session.ask(&limit, op, name, &request, &[]) {
                self.client.add_lease(id, Arc::new(AtomicBool::new(true)));
                self.client.drops.fetch_add(1, Ordering::AcqRel);
                return Err(error);
            }
        }
        let is_over = Arc::new(AtomicBool::new(false));
        self.client.add_lease(id, Arc::clone(&is_over));
        Ok(RemoteLease {
            client: Arc::clone(&self.client),
            id,
            epoch,
            is_over,
        })
    }

    /// Makes a change of names.
    fn change(
        &self,
        op: &'static str,
        epoch: Epoch,
        change: NamesChange,
        bulk: &[u8],
    ) -> Result<(Changed, u64)> {
        let limit = self.client.session.limit();
        self.change_within(&limit, op, epoch, change, bulk)
    }

    /// As [`DeviceStorage::change`], with a limit of the caller.
    fn change_within(
        &self,
        limit: &Limit,
        op: &'static str,
        epoch: Epoch,
        change: NamesChange,
        bulk: &[u8],
    ) -> Result<(Changed, u64)> {
        let client = &self.client;
        let names = &client.names;
        names.change(&client.session, op, epoch.0, change, bulk, limit)
    }

    /// Opens a file for writing by a change of names.
    fn open_file(
        &self,
        limit: &Limit,
        op: &'static str,
        epoch: Epoch,
        name: &str,
        change: NamesChange,
    ) -> Result<RemoteFile> {
        let client = &self.client;
        let (changed, id) = self.change_within(limit, op, epoch, change, &[])?;
        let Answer::Opened { len } = changed.answer else {
            return Err(client.session.wrong_answer(op, name));
        };
        let file = Arc::new(FileShared::new(
            &client.session,
            &client.drops,
            id,
            epoch,
            name,
            len,
            changed.state,
        ));
        client.files.lock().insert(id, Arc::clone(&file));
        Ok(RemoteFile(file))
    }

    /// As [`Storage::create`], for callers in this crate.
    pub(super) fn create_file(
        &self,
        limit: &Limit,
        epoch: Epoch,
        name: &str,
    ) -> Result<RemoteFile> {
        let change = NamesChange::Create {
            name: name.to_string(),
            file: self.client.session.new_object(),
            direct: false,
        };
        self.open_file(limit, "create", epoch, name, change)
    }

    /// As [`Storage::delete`], for callers in this crate.
    pub(super) fn delete_within(&self, limit: &Limit, epoch: Epoch, name: &str) -> Result<()> {
        let change = NamesChange::Delete {
            name: name.to_string(),
        };
        self.replace_name(limit, "delete", epoch, name, change, &[])
    }

    /// Imports an object from another folder of the same device.
    fn import_from(&self, epoch: Epoch, name: &str, other: &Client, from_name: &str) -> Result<()> {
        let session = &other.session;
        let limit = session.limit();
        loop {
            other.drain(from_name, &limit, "import")?;
            // The device must know the other session, and it may have forgotten it.
            session.ask(&limit, "import", from_name, &Request::KeepAlive, &[])?;
            let change = NamesChange::Import {
                name: name.to_string(),
                from: session.token(),
                from_name: from_name.to_string(),
            };
            match self.change("import", epoch, change, &[]) {
                Err(e) if e.kind == StorageErrorKind::Closed && !session.is_over(&limit) => {
                    session.runtime.sleep(IMPORT_PAUSE);
                }
                result => return result.map(drop),
            }
        }
    }

    /// Makes a change after which the name belongs to another object, or to none.
    fn replace_name(
        &self,
        limit: &Limit,
        op: &'static str,
        epoch: Epoch,
        name: &str,
        change: NamesChange,
        bulk: &[u8],
    ) -> Result<()> {
        // While it is not known whether the change took effect, a file of this name must not be
        // opened again, because the name may belong to another object.
        let objects = self.client.objects_named(name);
        let all = |f: fn(&mut ObjectName)| objects.iter().for_each(|o| o.with_name(f));
        all(ObjectName::may_be_lost);
        let result = self.change_within(limit, op, epoch, change, bulk).map(drop);
        match &result {
            Err(e) if e.kind != StorageErrorKind::Unreachable => all(ObjectName::is_kept),
            // A change that gave up may still take effect.
            _ => all(ObjectName::is_lost),
        }
        result
    }
}

impl Storage for DeviceStorage {
    fn describe(&self) -> String {
        self.client.session.describe()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // Finished objects can be mapped if the device passes descriptors, but callers need not
            // know that.
            maps: false,
            links: true,
            survives_kill: false,
            pipelined: true,
            has_path: false,
        }
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        Ok(Box::new(self.take_lease(name, false)?))
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        Ok(Box::new(self.take_lease(name, true)?))
    }

    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let limit = self.client.session.limit();
        Ok(Arc::new(self.create_file(&limit, epoch, name)?))
    }

    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let change = NamesChange::Create {
            name: name.to_string(),
            file: self.client.session.new_object(),
            direct: true,
        };
        let limit = self.client.session.limit();
        let file = self.open_file(&limit, "create", epoch, name, change)?;
        Ok(Arc::new(file))
    }

    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        let limit = self.client.session.limit();
        self.client.drain(old, &limit, "recycle")?;
        let change = NamesChange::Recycle {
            old: old.to_string(),
            new: new.to_string(),
            file: self.client.session.new_object(),
        };
        // Readers that have the object open can go on reading it. Its former writer must not write
        // to it any more.
        let before = self.client.objects_named(old);
        self.client.is_written_now(&before);
        let renamed = |o: &Named, name: &str| {
            o.with_name(|own| match o {
                Named::Written(_) => own.is_lost(),
                Named::Read(_) => own.becomes(name),
            });
        };
        before.iter().for_each(|o| match o {
            Named::Written(_) => o.with_name(ObjectName::may_be_lost),
            Named::Read(_) => o.with_name(|own| own.may_become(new)),
        });
        let limit = self.client.session.limit();
        let file = self.open_file(&limit, "recycle", epoch, new, change);
        match &file {
            Ok(_) => before.iter().for_each(|o| renamed(o, new)),
            // The recycling may still take effect, and then the writer has lost the object.
            Err(e) if e.kind == StorageErrorKind::Unreachable => {
                let writers = before.iter().filter(|o| matches!(o, Named::Written(_)));
                writers.for_each(|o| o.with_name(ObjectName::is_lost));
            }
            Err(_) => before.iter().for_each(|o| {
                o.with_name(ObjectName::is_kept);
                o.with_name(|own| own.becomes(old));
            }),
        }
        file.map(|file| Arc::new(file) as Arc<dyn WriteFile>)
    }

    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        let session = &self.client.session;
        let limit = session.limit();
        self.client.drain(name, &limit, "reopen")?;
        self.client.is_written_now(&self.client.objects_named(name));
        let id = session.new_object();
        let request = Request::Reopen {
            name: name.to_string(),
            file: id,
            epoch: epoch.0,
            position,
        };
        let mut opening = Opening::new(session, id);
        loop {
            let mut pipe = session.take(&limit, "reopen", name)?;
            match opening.exchange(&mut pipe, &request) {
                Ok((Answer::Opened { len }, _)) => {
                    let state = pipe.state;
                    session.give_back(pipe);
                    let drops = &self.client.drops;
                    let file = FileShared::new(session, drops, id, epoch, name, len, state);
                    file.begin_at(position);
                    let file = Arc::new(file);
                    self.client.files.lock().insert(id, Arc::clone(&file));
                    return Ok(Arc::new(RemoteFile(file)));
                }
                Ok((Answer::Ended, _)) => session.discard(pipe),
                Ok((Answer::Failed(error), _)) => {
                    session.give_back(pipe);
                    return Err(error);
                }
                Ok(_) => {
                    session.discard(pipe);
                    return Err(session.wrong_answer("reopen", name));
                }
                Err(error) => session.lost_in(&limit, pipe, &error),
            }
            if session.is_over(&limit) {
                return Err(session.unreachable("reopen", name));
            }
        }
    }

    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        let limit = self.client.session.limit();
        self.client.drain(name, &limit, "sync_object")?;
        let change = NamesChange::SyncObject {
            name: name.to_string(),
            rewrite: false,
        };
        self.change("sync_object", epoch, change, &[]).map(drop)
    }

    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        let limit = self.client.session.limit();
        self.client.drain(name, &limit, "rewrite_object")?;
        let change = NamesChange::SyncObject {
            name: name.to_string(),
            rewrite: true,
        };
        self.change("rewrite_object", epoch, change, &[]).map(drop)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        read::open(&self.client, name, How::Any)
    }

    fn open_finished(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        read::open(&self.client, name, How::Finished)
    }

    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        read::open(&self.client, name, How::Direct)
    }

    fn check_direct(&self) -> Result<()> {
        let session = &self.client.session;
        let name = session.describe();
        let request = Request::CheckDirect;
        let asked = session.ask(&session.limit(), "check_direct", &name, &request, &[]);
        asked.map(drop)
    }

    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let session = &self.client.session;
        let limit = session.limit();
        self.client.drain(name, &limit, "read")?;
        let request = Request::ReadSmall {
            name: name.to_string(),
        };
        match session.ask(&limit, "read", name, &request, &[])? {
            (Answer::Bytes, frame) => Ok(frame.bulk().to_vec()),
            _ => Err(session.wrong_answer("read", name)),
        }
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        let session = &self.client.session;
        let limit = session.limit();
        self.client.drain_all(&limit, "list")?;
        let mut all: Vec<ObjectMeta> = Vec::new();
        loop {
            let after = all
                .last()
                .map_or_else(String::new, |last| last.name.clone());
            let request = Request::List { after };
            match session.ask(&limit, "list", &session.describe(), &request, &[])? {
                (Answer::Objects { objects, more }, _) => {
                    // A device that repeats names, or whose list never ends, would fill this host's
                    // memory.
                    let names = all.last().into_iter().chain(&objects).map(|o| &o.name);
                    if !names.is_sorted_by(|a, b| a < b) || all.len() > OBJECTS_MAX {
                        return Err(session.wrong_answer("list", ""));
                    }
                    let is_end = !more || objects.is_empty();
                    all.extend(objects);
                    if is_end {
                        return Ok(all);
                    }
                }
                _ => return Err(session.wrong_answer("list", "")),
            }
        }
    }

    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.delete_within(&self.client.session.limit(), epoch, name)
    }

    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        let change = NamesChange::Rename {
            old: old.to_string(),
            new: new.to_string(),
        };
        let moved = self.client.objects_named(old);
        moved
            .iter()
            .for_each(|o| o.with_name(|name| name.may_become(new)));
        let result = match old == new {
            true => self.change("rename", epoch, change, &[]).map(drop),
            false => {
                let limit = self.client.session.limit();
                self.replace_name(&limit, "rename", epoch, new, change, &[])
            }
        };
        match &result {
            Ok(()) => moved
                .iter()
                .for_each(|o| o.with_name(|name| name.becomes(new))),
            Err(e) if e.kind == StorageErrorKind::Unreachable => {}
            Err(_) => moved
                .iter()
                .for_each(|o| o.with_name(|name| name.becomes(old))),
        }
        result
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        let base = from.base();
        let other = base.and_then(|base| base.downcast_ref::<DeviceStorage>());
        let device = |client: &Client| client.session.welcome().map(|w| w.device);
        if let Some(other) = other
            && device(&other.client) == device(&self.client)
        {
            return self.import_from(epoch, name, &other.client, from_name);
        }
        copy_object(self, epoch, name, from, from_name)
    }

    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        check_small("publish", name, bytes)?;
        let change = NamesChange::Publish {
            name: name.to_string(),
        };
        let limit = self.client.session.limit();
        self.replace_name(&limit, "publish", epoch, name, change, bytes)
    }

    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        let change = NamesChange::SyncDir;
        self.change("sync_dir", epoch, change, &[]).map(drop)
    }

    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        let change = NamesChange::SyncParents;
        self.change("sync_parents", epoch, change, &[]).map(drop)
    }

    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        check_small("replace", name, bytes)?;
        let change = NamesChange::Replace {
            name: name.to_string(),
        };
        let limit = self.client.session.limit();
        self.replace_name(&limit, "replace", epoch, name, change, bytes)
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.client.session.vital.traffic.counters()
    }

    fn free_bytes(&self) -> Option<u64> {
        let session = &self.client.session;
        let request = Request::FreeBytes;
        match session.ask(&session.limit(), "free_bytes", "", &request, &[]) {
            Ok((Answer::FreeBytes(bytes), _)) => bytes,
            _ => None,
        }
    }

    fn base(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn open_objects_max(&self) -> Option<u64> {
        let session = &self.client.session;
        let told = session.welcome().map(|w| w.open_objects_max);
        if !session.passes_descriptors.load(Ordering::Relaxed) {
            return told;
        }
        // Objects whose descriptor the device passes are open files of this process.
        let own = open_files_max().unwrap_or(u64::MAX);
        told.map(|told| told.min(own))
    }
}

/// Checks that a small object fits into a frame.
fn check_small(op: &'static str, name: &str, bytes: &[u8]) -> Result<()> {
    if bytes.len() <= crate::wire::frame::BULK_MAX {
        return Ok(());
    }
    let detail = format!("{} bytes do not fit into one request", bytes.len());
    let kind = StorageErrorKind::InvalidInput;
    Err(StorageError::new(kind, op, name, detail))
}
