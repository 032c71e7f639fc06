//! A storage in memory that can lose power.
//!
//! For each object it knows which 4 KiB pages were written and which of them are durable, and it
//! knows which changes of the directory are durable. From that it makes images:
//! [`MemoryStorage::kill`] (the process died: everything is there, and unsynced data is still
//! unsynced) and [`MemoryStorage::crash`] (the power failed: any part of the unsynced data is gone,
//! see [`CrashPolicy`]). With a journal it makes such images for every prefix of one recorded run.
//!
//! Rules:
//! - S1 to S5 of [`crate::storage`] hold, and no stronger promises: a sync covers the bytes that
//!   were appended before it was called, and `replace` makes only its own name durable.
//! - An image shares no mutable state with the storage it came from. Leases are not part of an
//!   image.
//! - A map shows the object as it was when it was first mapped through its handle, and keeps that
//!   memory alive. Bytes that [`MemoryStorage::cut`] or [`MemoryStorage::set_unreadable`] removes
//!   turn to zeros in the map, and the map is marked as failed.
//! - A kill keeps written but unsynced bytes, except those of objects that were created to be
//!   written past the page cache.
//! - With [`MemoryStorage::set_leases_expire`], a lease may be taken over while its holder lives.
//!   The holder's changing calls then fail with `Fenced`.
//!
//! Threading: one mutex protects everything. It is never held across [`Runtime::yield_point`],
//! which every call passes first. A sync passes it a second time, between determining what it must
//! cover and making that durable.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::map::LosableBytes;
use crate::name::{check_lease_name, check_object_name};
use crate::op::{CallCounts, OpKind};
use crate::runtime::Runtime;
use crate::storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, WriteFile,
    check_position, copy_object,
};

mod crash;
mod handle;
mod inode;
mod journal;
mod state;

#[cfg(test)]
mod tests;

pub use crash::{CrashPolicy, CrashReport};
pub use journal::{JournalReplay, Mark};

use handle::{MemoryReader, MemoryWriter};
use inode::{PAGE_BYTES, pages_for};
use journal::{Change, Journal};
use state::{Effect, State};

/// A [`Storage`] in memory. A clone is another handle to the same storage.
#[derive(Clone)]
pub struct MemoryStorage {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    name: String,
    core: Mutex<Core>,
}

struct Core {
    state: State,
    journal: Option<Journal>,
    counts: CallCounts,
    capacity: Option<u64>,
    leases_expire: bool,
    refuses_direct: bool,
    has_path: bool,
    /// By lease name: the newest epoch, and whether its holder still holds it.
    leases: BTreeMap<String, (u64, Arc<AtomicBool>)>,
    /// By epoch: the lease that it was given for.
    epochs: BTreeMap<u64, String>,
    /// By lease name: a counter with one reference more than there are readers.
    readers: BTreeMap<String, Arc<()>>,
    /// The maps of objects, by inode number, while anybody holds them.
    maps: Vec<(u64, Weak<LosableBytes>)>,
    /// Byte ranges of objects that cannot be read.
    unreadable: Vec<(u64, Range<u64>)>,
    /// `(calls, free_bytes)`: after this many calls, the capacity is set to the bytes then in use
    /// plus `free_bytes`.
    full_at: Option<(u64, u64)>,
    /// `(reported, available)`: the limit on open objects that `open_objects_max` returns, and the
    /// one that is enforced.
    open_max: Option<(u64, u64)>,
    /// A counter with one reference more than there are open objects.
    open: Arc<()>,
}

impl Core {
    fn change(&mut self, kind: OpKind, effect: Effect) {
        self.state.apply(&effect);
        if let Some(journal) = &mut self.journal {
            journal.changes.push(Change { kind, effect });
        }
    }

    /// S3: refuses a changing call of a writer whose lease another writer has taken over.
    fn check_epoch(&self, kind: OpKind, name: &str, epoch: Epoch) -> Result<()> {
        let newer = self
            .epochs
            .get(&epoch.0)
            .and_then(|lease| self.leases.get(lease))
            .map(|(newest, _)| *newest);
        match newer {
            Some(newest) if newest > epoch.0 => Err(StorageError::new(
                StorageErrorKind::Fenced,
                kind.name(),
                name,
                format!(
                    "epoch {} is over: another writer holds the lease with epoch {newest}",
                    epoch.0
                ),
            )),
            _ => Ok(()),
        }
    }

    /// The first unreadable byte of the object in `from..to`.
    fn unreadable_within(&self, ino: u64, from: u64, to: u64) -> Option<u64> {
        let hit = |(of, bad): &(u64, Range<u64>)| {
            (*of == ino && bad.start < to && from < bad.end).then_some(bad.start.max(from))
        };
        self.unreadable.iter().filter_map(hit).min()
    }

    /// Turns these bytes to zeros in all maps of the object.
    fn lose_mapped(&mut self, ino: u64, from: u64, to: u64) {
        for (of, map) in &self.maps {
            if let Some(map) = map.upgrade().filter(|_| *of == ino) {
                map.lose(from, to);
            }
        }
    }

    /// The number of free pages.
    fn free_pages(&self) -> u64 {
        match self.capacity {
            None => u64::MAX,
            Some(capacity) => {
                (capacity / PAGE_BYTES as u64).saturating_sub(self.state.used_pages())
            }
        }
    }

    /// Checks that one more object may be opened.
    fn check_handles(&self, op: OpKind, name: &str) -> Result<()> {
        let open = Arc::strong_count(&self.open) as u64 - 1;
        if let Some((_, available)) = self.open_max.filter(|(_, available)| open >= *available) {
            let detail = format!("{available} objects are open, and no more may be");
            let kind = StorageErrorKind::TooManyOpen;
            return Err(StorageError::new(kind, op.name(), name, detail));
        }
        Ok(())
    }

    fn no_space(&self, kind: OpKind, name: &str) -> StorageError {
        let detail = format!(
            "no space left: the capacity is {} bytes",
            self.capacity.unwrap_or(u64::MAX)
        );
        StorageError::new(StorageErrorKind::NoSpace, kind.name(), name, detail)
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Begins a call: lets other tasks run first, then counts the call.
    fn enter(&self, kind: OpKind) -> MutexGuard<'_, Core> {
        // The kind goes into the simulation's trace, so that the traces of runs with different
        // calls differ from the first such call on.
        self.runtime.yield_point_at(kind as u64);
        let mut core = self.lock();
        core.counts.add(kind);
        if let Some((calls, free_bytes)) = core.full_at
            && core.counts.total() > calls
        {
            core.full_at = None;
            core.capacity = Some(core.state.used_pages() * PAGE_BYTES as u64 + free_bytes);
        }
        core
    }
}

struct MemoryLease {
    epoch: Epoch,
    held: Arc<AtomicBool>,
}

impl Lease for MemoryLease {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Drop for MemoryLease {
    fn drop(&mut self) {
        self.held.store(false, Ordering::Release);
    }
}

struct MemorySharedLease {
    _share: Arc<()>,
    last_epoch: Epoch,
}

impl SharedLease for MemorySharedLease {
    fn last_epoch(&self) -> Epoch {
        self.last_epoch
    }
}

fn not_found(kind: OpKind, name: &str) -> StorageError {
    StorageError::new(
        StorageErrorKind::NotFound,
        kind.name(),
        name,
        "there is no such object",
    )
}

fn exists(kind: OpKind, name: &str) -> StorageError {
    StorageError::new(
        StorageErrorKind::AlreadyExists,
        kind.name(),
        name,
        "the name is taken",
    )
}

impl MemoryStorage {
    /// An empty storage. Its calls are yield points of `runtime`.
    pub fn new(runtime: &Runtime) -> MemoryStorage {
        MemoryStorage::named(runtime, "memory")
    }

    /// An empty storage with its own name, which distinguishes it from others as paths distinguish
    /// folders. Its images have the same name.
    pub fn named(runtime: &Runtime, name: &str) -> MemoryStorage {
        MemoryStorage::from_state(runtime, name, State::default(), None)
    }

    fn from_state(
        runtime: &Runtime,
        name: &str,
        state: State,
        capacity: Option<u64>,
    ) -> MemoryStorage {
        let core = Core {
            state,
            journal: None,
            counts: CallCounts::default(),
            capacity,
            leases_expire: false,
            refuses_direct: false,
            has_path: false,
            leases: BTreeMap::new(),
            epochs: BTreeMap::new(),
            readers: BTreeMap::new(),
            maps: Vec::new(),
            unreadable: Vec::new(),
            full_at: None,
            open_max: None,
            open: Arc::default(),
        };
        MemoryStorage {
            inner: Arc::new(Inner {
                runtime: runtime.clone(),
                name: name.to_owned(),
                core: Mutex::new(core),
            }),
        }
    }

    /// The image that a power loss now leaves. The storage itself is not affected.
    pub fn crash(&self, policy: CrashPolicy) -> MemoryStorage {
        self.crash_in(&self.inner.runtime, policy).0
    }

    /// As [`crash`](Self::crash), for the runtime of the next simulated life. Also reports what was
    /// lost.
    pub fn crash_in(&self, runtime: &Runtime, policy: CrashPolicy) -> (MemoryStorage, CrashReport) {
        let core = self.inner.lock();
        let (state, report) = crash::crash(&core.state, policy);
        (
            MemoryStorage::from_state(runtime, &self.inner.name, state, core.capacity),
            report,
        )
    }

    /// The image that a kill of the process now leaves: everything is there, and unsynced data is
    /// still unsynced.
    pub fn kill(&self) -> MemoryStorage {
        self.kill_in(&self.inner.runtime)
    }

    /// As [`kill`](Self::kill), for another runtime.
    pub fn kill_in(&self, runtime: &Runtime) -> MemoryStorage {
        let core = self.inner.lock();
        let state = core.state.killed();
        MemoryStorage::from_state(runtime, &self.inner.name, state, core.capacity)
    }

    /// Starts recording changes, beginning with the present state. An older journal is discarded.
    pub fn start_journal(&self) {
        let mut core = self.inner.lock();
        core.journal = Some(Journal {
            base: core.state.image(),
            changes: Vec::new(),
            marks: Vec::new(),
        });
    }

    /// The number of recorded changes; 0 without a journal.
    pub fn journal_len(&self) -> u64 {
        self.inner
            .lock()
            .journal
            .as_ref()
            .map_or(0, |j| j.changes.len() as u64)
    }

    /// Records `label` at the present position of the journal, for example when a batch was
    /// acknowledged. Returns the position: the number of changes before it.
    pub fn mark(&self, label: impl Into<String>) -> u64 {
        let mut core = self.inner.lock();
        let Some(journal) = &mut core.journal else {
            return 0;
        };
        let at = journal.changes.len() as u64;
        journal.marks.push(Mark {
            at,
            label: label.into(),
        });
        at
    }

    /// A replay of the journal, positioned at its start. It is empty without a journal.
    pub fn replay(&self) -> JournalReplay {
        let core = self.inner.lock();
        let (state, changes, marks) = match &core.journal {
            Some(j) => (j.base.image(), j.changes.as_slice().into(), j.marks.clone()),
            None => (core.state.image(), Arc::from([]), Vec::new()),
        };
        JournalReplay {
            state,
            changes,
            marks,
            at: 0,
            runtime: self.inner.runtime.clone(),
            name: self.inner.name.clone(),
            capacity: core.capacity,
        }
    }

    /// The image that a power loss after the first `n` recorded changes leaves. For many values of
    /// `n`, use [`replay`](Self::replay).
    pub fn crash_at(&self, n: u64, policy: CrashPolicy) -> MemoryStorage {
        let mut replay = self.replay();
        replay.advance_to(n);
        replay.crash(policy).0
    }

    /// The number of calls so far, by kind.
    pub fn counts(&self) -> CallCounts {
        self.inner.lock().counts
    }

    /// Limits the total bytes of all objects, in whole pages. Existing objects stay.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        let mut core = self.inner.lock();
        core.capacity = bytes;
        core.full_at = None;
    }

    /// Makes the disk full after `calls` more calls: from then on, `free_bytes` more than the bytes
    /// then in use can be stored, until [`set_capacity`](Self::set_capacity) changes the limit.
    pub fn fill_after(&self, calls: u64, free_bytes: u64) {
        let mut core = self.inner.lock();
        core.full_at = Some((core.counts.total() + calls, free_bytes));
    }

    /// The present limit in bytes.
    pub fn capacity(&self) -> Option<u64> {
        self.inner.lock().capacity
    }

    /// Truncates an object to `len` bytes, as another process might while the object is open. The
    /// bytes beyond are lost for good. In maps they turn to zeros, and the maps are marked as
    /// failed. Returns false if there is no such object, or if it is not longer than `len`.
    pub fn cut(&self, name: &str, len: u64) -> bool {
        let mut core = self.inner.lock();
        let Some((ino, inode)) = core.state.inode(name) else {
            return false;
        };
        if inode.len <= len {
            return false;
        }
        core.change(OpKind::Truncate, Effect::Cut { ino, len });
        core.lose_mapped(ino, len, u64::MAX);
        true
    }

    /// Makes the pages that contain these bytes unreadable: reads fail with `Io`, and in maps the
    /// pages turn to zeros and the maps are marked as failed. Writes succeed. Images are readable,
    /// as if the medium had been replaced. Returns false if there is no such object.
    pub fn set_unreadable(&self, name: &str, bytes: Range<u64>) -> bool {
        let mut core = self.inner.lock();
        let Some((ino, _)) = core.state.inode(name) else {
            return false;
        };
        let page = PAGE_BYTES as u64;
        let (from, to) = (bytes.start / page * page, bytes.end.next_multiple_of(page));
        core.unreadable.push((ino, from..to));
        core.lose_mapped(ino, from, to);
        true
    }

    /// Makes everything readable again. Maps that are marked as failed stay so.
    pub fn set_readable(&self) {
        self.inner.lock().unreadable.clear();
    }

    /// Bytes of all objects that have a name or are open, in whole pages.
    pub fn used_bytes(&self) -> u64 {
        self.inner.lock().state.used_pages() * PAGE_BYTES as u64
    }

    /// Sets whether a lease may be taken over while its holder lives, as leases across a link can
    /// be when they expire.
    pub fn set_leases_expire(&self, expire: bool) {
        self.inner.lock().leases_expire = expire;
    }

    /// Sets whether the storage plays a folder that other processes of its machine find by its name
    /// ([`Capabilities::has_path`]).
    pub fn set_has_path(&self, has_path: bool) {
        self.inner.lock().has_path = has_path;
    }

    /// Makes [`Storage::check_direct`] fail, as it does on file systems without direct I/O.
    pub fn set_refuses_direct(&self, refuses: bool) {
        self.inner.lock().refuses_direct = refuses;
    }

    /// Limits the number of objects that may be open at once, for reading or for writing.
    /// [`Storage::open_objects_max`] returns `reported`; only `available` of them can be used, as
    /// if the program around the store used the rest.
    pub fn set_open_max(&self, reported: u64, available: u64) {
        self.inner.lock().open_max = Some((reported, available));
    }

    fn create_as(&self, epoch: Epoch, name: &str, direct: bool) -> Result<Arc<dyn WriteFile>> {
        check_object_name("create", name)?;
        let mut core = self.inner.enter(OpKind::Create);
        core.check_epoch(OpKind::Create, name, epoch)?;
        if core.state.names.contains_key(name) {
            return Err(exists(OpKind::Create, name));
        }
        core.check_handles(OpKind::Create, name)?;
        let ino = core.state.next_ino;
        core.change(
            OpKind::Create,
            Effect::Create {
                name: name.to_owned(),
                direct,
            },
        );
        Ok(self.writer(&core, ino, name, epoch))
    }

    /// Changes the bytes of an object without its users knowing, as a decaying medium does. The new
    /// bytes are durable at once, and open handles read them too, but existing maps keep their
    /// bytes and an open reader keeps the length that it found. This is not a storage call: it is
    /// no yield point, and it is neither counted nor journaled. Images made before keep their
    /// bytes. Copies the whole object.
    ///
    /// # Errors
    /// `NotFound` if there is no such object.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut core = self.inner.lock();
        let Some((ino, inode)) = core.state.inode(name) else {
            return Err(not_found(OpKind::Append, name));
        };
        let mut bytes = vec![0; inode.len as usize];
        inode.read(0, &mut bytes);
        change(&mut bytes);
        let damaged = inode.rotten(&bytes);
        core.state.inodes.insert(ino, damaged);
        Ok(())
    }

    fn writer(&self, core: &Core, ino: u64, name: &str, epoch: Epoch) -> Arc<dyn WriteFile> {
        self.writer_at(core, ino, name, epoch, 0)
    }

    fn writer_at(
        &self,
        core: &Core,
        ino: u64,
        name: &str,
        epoch: Epoch,
        position: u64,
    ) -> Arc<dyn WriteFile> {
        let handles = core
            .state
            .inodes
            .get(&ino)
            .map(|i| Arc::clone(&i.handles))
            .unwrap_or_default();
        Arc::new(MemoryWriter::new(
            Arc::clone(&self.inner),
            ino,
            name,
            epoch,
            position,
            (handles, Arc::clone(&core.open)),
        ))
    }
}

impl std::fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let core = self.inner.lock();
        f.debug_struct("MemoryStorage")
            .field("names", &core.state.names)
            .finish_non_exhaustive()
    }
}

impl Storage for MemoryStorage {
    fn describe(&self) -> String {
        self.inner.name.clone()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            maps: true,
            links: true,
            survives_kill: true,
            pipelined: false,
            has_path: self.inner.lock().has_path,
        }
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        check_lease_name(name)?;
        let mut core = self.inner.enter(OpKind::Lease);
        if let Some((epoch, held)) = core.leases.get(name)
            && held.load(Ordering::Acquire)
            && !core.leases_expire
        {
            return Err(StorageError::new(
                StorageErrorKind::LeaseHeld,
                "lease",
                name,
                format!("another writer holds it (epoch {epoch} in this process)"),
            ));
        }
        let readers = core
            .readers
            .get(name)
            .map_or(0, |r| Arc::strong_count(r) - 1);
        if readers > 0 && !core.leases_expire {
            return Err(StorageError::new(
                StorageErrorKind::LeaseHeld,
                "lease",
                name,
                format!("{readers} reader(s) of this process hold it"),
            ));
        }
        core.change(OpKind::Lease, Effect::Epoch);
        let epoch = core.state.epoch;
        let held = Arc::new(AtomicBool::new(true));
        core.leases
            .insert(name.to_owned(), (epoch, Arc::clone(&held)));
        core.epochs.insert(epoch, name.to_owned());
        Ok(Box::new(MemoryLease {
            epoch: Epoch(epoch),
            held,
        }))
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        check_lease_name(name)?;
        let mut core = self.inner.enter(OpKind::LeaseShared);
        if let Some((epoch, held)) = core.leases.get(name)
            && held.load(Ordering::Acquire)
        {
            return Err(StorageError::new(
                StorageErrorKind::LeaseHeld,
                "lease_shared",
                name,
                format!("a writer holds it (epoch {epoch} in this process)"),
            ));
        }
        let last_epoch = core.leases.get(name).map_or(0, |(epoch, _)| *epoch);
        let share = Arc::clone(core.readers.entry(name.to_owned()).or_default());
        Ok(Box::new(MemorySharedLease {
            _share: share,
            last_epoch: Epoch(last_epoch),
        }))
    }

    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.create_as(epoch, name, false)
    }

    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.create_as(epoch, name, true)
    }

    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("recycle", old)?;
        check_object_name("recycle", new)?;
        let mut core = self.inner.enter(OpKind::Recycle);
        core.check_epoch(OpKind::Recycle, old, epoch)?;
        let Some(&ino) = core.state.names.get(old) else {
            return Err(not_found(OpKind::Recycle, old));
        };
        if core.state.names.contains_key(new) {
            return Err(exists(OpKind::Recycle, new));
        }
        core.check_handles(OpKind::Recycle, old)?;
        core.change(
            OpKind::Recycle,
            Effect::Rename {
                old: old.to_owned(),
                new: new.to_owned(),
            },
        );
        Ok(self.writer(&core, ino, new, epoch))
    }

    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        check_object_name("reopen", name)?;
        let core = self.inner.enter(OpKind::Open);
        core.check_epoch(OpKind::Open, name, epoch)?;
        let Some(&ino) = core.state.names.get(name) else {
            return Err(not_found(OpKind::Open, name));
        };
        core.check_handles(OpKind::Open, name)?;
        let len = core.state.inodes.get(&ino).map_or(0, |inode| inode.len);
        check_position(name, position, len)?;
        Ok(self.writer_at(&core, ino, name, epoch, position))
    }

    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("sync_object", name)?;
        let file = {
            let core = self.inner.enter(OpKind::Open);
            let Some(&ino) = core.state.names.get(name) else {
                return Err(not_found(OpKind::Open, name));
            };
            self.writer(&core, ino, name, epoch)
        };
        file.sync()
    }

    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("rewrite_object", name)?;
        let bytes = self.read_small(name)?;
        let file = {
            let core = self.inner.enter(OpKind::Open);
            let Some(&ino) = core.state.names.get(name) else {
                return Err(not_found(OpKind::Open, name));
            };
            self.writer(&core, ino, name, epoch)
        };
        file.append(&[&bytes])?;
        file.sync()
    }

    fn check_direct(&self) -> Result<()> {
        if self.inner.lock().refuses_direct {
            let detail = "direct I/O is switched off for this storage";
            return Err(StorageError::new(
                StorageErrorKind::Unsupported,
                "check_direct",
                "memory",
                detail,
            ));
        }
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        check_object_name("open", name)?;
        let core = self.inner.enter(OpKind::Open);
        let Some((ino, inode)) = core.state.inode(name) else {
            return Err(not_found(OpKind::Open, name));
        };
        core.check_handles(OpKind::Open, name)?;
        let handles = (Arc::clone(&inode.handles), Arc::clone(&core.open));
        Ok(Arc::new(MemoryReader::new(
            Arc::clone(&self.inner),
            ino,
            name,
            inode.len,
            handles,
        )))
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        let core = self.inner.enter(OpKind::List);
        let len = |ino: &u64| core.state.inodes.get(ino).map_or(0, |i| i.len);
        Ok(core
            .state
            .names
            .iter()
            .map(|(name, ino)| ObjectMeta {
                name: name.clone(),
                len: len(ino),
            })
            .collect())
    }

    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("delete", name)?;
        let mut core = self.inner.enter(OpKind::Delete);
        core.check_epoch(OpKind::Delete, name, epoch)?;
        if !core.state.names.contains_key(name) {
            return Err(not_found(OpKind::Delete, name));
        }
        core.change(
            OpKind::Delete,
            Effect::Delete {
                name: name.to_owned(),
            },
        );
        Ok(())
    }

    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        check_object_name("rename", old)?;
        check_object_name("rename", new)?;
        let mut core = self.inner.enter(OpKind::Rename);
        core.check_epoch(OpKind::Rename, old, epoch)?;
        let Some(&ino) = core.state.names.get(old) else {
            return Err(not_found(OpKind::Rename, old));
        };
        // Both names refer to the same object. POSIX says that nothing happens then.
        if core.state.names.get(new) != Some(&ino) {
            core.change(
                OpKind::Rename,
                Effect::Rename {
                    old: old.to_owned(),
                    new: new.to_owned(),
                },
            );
        }
        Ok(())
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        const KIND: OpKind = OpKind::Import;
        check_object_name("import", name)?;
        check_object_name("import", from_name)?;
        let base = from.base().and_then(|base| base.downcast_ref::<Self>());
        let Some(other) = base else {
            return copy_object(self, epoch, name, from, from_name);
        };
        let mut core = self.inner.enter(KIND);
        core.check_epoch(KIND, name, epoch)?;
        let own = Arc::ptr_eq(&self.inner, &other.inner);
        let object = if own {
            core.state
                .inode(from_name)
                .map(|(_, inode)| Arc::new(inode.shared()))
        } else {
            // Only one of the two locks is held at a time, because two storages may import from
            // each other.
            drop(core);
            let object = other
                .inner
                .lock()
                .state
                .inode(from_name)
                .map(|(_, inode)| Arc::new(inode.shared()));
            core = self.inner.lock();
            object
        };
        let Some(object) = object else {
            return Err(not_found(KIND, from_name));
        };
        if core.state.names.contains_key(name) {
            return Err(exists(KIND, name));
        }
        let (new, old) = (name.to_owned(), from_name.to_owned());
        let effect = if own {
            Effect::Link { old, new }
        } else if object.pages.len() as u64 > core.free_pages() {
            return Err(core.no_space(KIND, name));
        } else {
            Effect::Import { name: new, object }
        };
        core.change(KIND, effect);
        Ok(())
    }

    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        const KIND: OpKind = OpKind::Publish;
        check_object_name("publish", name)?;
        let mut core = self.inner.enter(KIND);
        core.check_epoch(KIND, name, epoch)?;
        core.check_handles(KIND, name)?;
        if pages_for(bytes.len() as u64) as u64 > core.free_pages() {
            return Err(core.no_space(KIND, name));
        }
        let effect = Effect::Publish {
            name: name.to_owned(),
            bytes: bytes.into(),
        };
        core.change(KIND, effect);
        Ok(())
    }

    fn open_objects_max(&self) -> Option<u64> {
        self.inner.lock().open_max.map(|(reported, _)| reported)
    }

    fn base(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        let core = self.inner.enter(OpKind::SyncDir);
        core.check_epoch(OpKind::SyncDir, "directory", epoch)?;
        // The sync covers only the changes before the call.
        let through = core.state.next_op;
        drop(core);
        self.inner.runtime.yield_point();
        let mut core = self.inner.lock();
        core.check_epoch(OpKind::SyncDir, "directory", epoch)?;
        core.change(OpKind::SyncDir, Effect::SyncDir { through });
        Ok(())
    }

    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        check_object_name("replace", name)?;
        let mut core = self.inner.enter(OpKind::Replace);
        core.check_epoch(OpKind::Replace, name, epoch)?;
        core.check_handles(OpKind::Replace, name)?;
        if pages_for(bytes.len() as u64) as u64 > core.free_pages() {
            return Err(core.no_space(OpKind::Replace, name));
        }
        core.change(
            OpKind::Replace,
            Effect::Replace {
                name: name.to_owned(),
                bytes: bytes.into(),
            },
        );
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        let core = self.inner.enter(OpKind::FreeBytes);
        core.capacity?;
        Some(core.free_pages() * PAGE_BYTES as u64)
    }

    fn inject_lost_names(&self) -> bool {
        self.inner.lock().change(OpKind::SyncDir, Effect::LoseNames);
        true
    }

    fn inject_lost_bytes(&self, name: &str) -> bool {
        let mut core = self.inner.lock();
        let Some(&ino) = core.state.names.get(name) else {
            return false;
        };
        core.change(OpKind::Sync, Effect::LoseUnsynced { ino });
        true
    }
}
