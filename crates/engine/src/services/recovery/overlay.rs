//! A storage over another one that keeps all changes in memory, for stores that are opened for
//! reading.
//!
//! Recovery writes: a new manifest, tables with what the log holds, a new log segment. An open for
//! reading runs the same recovery on an [`Overlay`], so it sees exactly what an open for writing
//! would recover. New objects are kept in memory, deleted objects are hidden, and no changing call
//! reaches the storage below. The lease is a shared one, which excludes a writer.
//!
//! Invariants: of the storage below, only `lease_shared`, `open`, `list` and reads are called.
//! Renaming or writing to objects below is refused. The objects in memory stay within a budget; a
//! call that would exceed it fails.
//!
//! Threading: like any storage. A runtime mutex guards the list of hidden names; it is not held
//! over a call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{
    Capabilities, Epoch, Lease, MemoryStorage, Mutex, ObjectMeta, ReadFile, Result, Runtime,
    SharedLease, Storage, StorageError, StorageErrorKind, WriteFile,
};

use crate::formats::directories::Storages;
use crate::formats::names;
use crate::services::recovery::ReplayBudget;

/// The objects in memory, and the budget for them.
#[derive(Clone)]
struct Kept {
    memory: MemoryStorage,
    budget: ReplayBudget,
}

impl Kept {
    fn check_room(&self, op: &'static str, name: &str, more_bytes: u64) -> Result<()> {
        let bytes_max = self.budget.bytes();
        if self.memory.used_bytes().saturating_add(more_bytes) <= bytes_max {
            return Ok(());
        }
        let detail = format!(
            "what the log holds does not fit in memory: a reader keeps at most {bytes_max} bytes; \
             set replay_bytes_max to more, or open the store for writing once, which makes tables \
             of it"
        );
        Err(StorageError::new(StorageErrorKind::Io, op, name, detail))
    }
}

/// See the module.
struct Overlay {
    below: Arc<dyn Storage>,
    kept: Kept,
    /// The names of objects below that were deleted or replaced.
    hidden: Mutex<BTreeSet<String>>,
    /// Whether a shared lease excludes writers.
    is_leased: Arc<AtomicBool>,
}

/// Makes an overlay over each storage; equal storages get the same overlay. Each overlay has the
/// budget to itself.
pub(crate) fn over(storages: &Storages, runtime: &Runtime, budget: &ReplayBudget) -> Storages {
    let is_leased = Arc::new(AtomicBool::new(true));
    storages.map(|below| {
        Arc::new(Overlay {
            below: below.clone(),
            kept: Kept {
                memory: MemoryStorage::new(runtime),
                budget: budget.clone(),
            },
            hidden: runtime.mutex(BTreeSet::new()),
            is_leased: is_leased.clone(),
        })
    })
}

/// The shared lease of the storage below, and the epoch of the objects in memory.
struct OverlayLease {
    memory: Box<dyn Lease>,
    below: Box<dyn SharedLease>,
}

impl Lease for OverlayLease {
    fn epoch(&self) -> Epoch {
        self.memory.epoch()
    }

    fn release(&self) -> siltstone_storage::Result<()> {
        self.below.release()
    }
}

impl Overlay {
    fn memory(&self) -> &MemoryStorage {
        &self.kept.memory
    }

    fn is_kept(&self, name: &str) -> Result<bool> {
        Ok(self.memory().list()?.iter().any(|o| o.name == name))
    }

    fn is_below(&self, name: &str) -> Result<bool> {
        let hidden = self.hidden.lock().contains(name);
        Ok(!hidden && self.below.list()?.iter().any(|o| o.name == name))
    }

    fn hide(&self, name: &str) {
        self.hidden.lock().insert(name.to_string());
    }

    fn file(&self, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(OverlayFile {
            inner,
            kept: self.kept.clone(),
        })
    }

    fn error(&self, kind: StorageErrorKind, op: &'static str, name: &str) -> StorageError {
        let detail = match kind {
            StorageErrorKind::AlreadyExists => "the name is taken",
            StorageErrorKind::NotFound => "there is no such object",
            _ => "the store is open for reading only",
        };
        StorageError::new(kind, op, name, detail)
    }

    /// Refuses to change an object of the storage below; only objects in memory are changed.
    fn check_kept(&self, op: &'static str, name: &str) -> Result<()> {
        if self.is_kept(name)? {
            Ok(())
        } else {
            Err(self.error(StorageErrorKind::PermissionDenied, op, name))
        }
    }

    /// Opens an object in memory or below, by the call `open`.
    fn open_as(
        &self,
        name: &str,
        open: impl Fn(&dyn Storage) -> Result<Arc<dyn ReadFile>>,
    ) -> Result<Arc<dyn ReadFile>> {
        if self.is_kept(name)? {
            return open(self.memory());
        }
        if self.hidden.lock().contains(name) {
            return Err(self.error(StorageErrorKind::NotFound, "open", name));
        }
        open(&*self.below).map_err(|error| {
            // A writer never deletes these, so they did not exist before either.
            let stays = [names::DIRECTORIES, names::OWNER, names::OPENED].contains(&name);
            if error.kind != StorageErrorKind::NotFound
                || self.is_leased.load(Ordering::Acquire)
                || stays
            {
                return error;
            }
            let detail = "it is gone, and the store was opened without a lease, because the folder \
                          is mounted read-only and has none: a writer on another mount may have \
                          deleted it; open the store again";
            StorageError::new(StorageErrorKind::Io, "open", name, detail)
        })
    }
}

impl Storage for Overlay {
    fn describe(&self) -> String {
        self.below.describe()
    }

    fn location(&self) -> String {
        self.below.location()
    }

    fn capabilities(&self) -> Capabilities {
        self.below.capabilities()
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        let share = self.below.lease_shared(name)?;
        if !share.is_held() {
            self.is_leased.store(false, Ordering::Release);
        }
        Ok(Box::new(OverlayLease {
            memory: self.memory().lease(name)?,
            below: share,
        }))
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.below.lease_shared(name)
    }

    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        if self.is_below(name)? {
            return Err(self.error(StorageErrorKind::AlreadyExists, "create", name));
        }
        Ok(self.file(self.memory().create(epoch, name)?))
    }

    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.check_kept("recycle", old)?;
        if self.is_below(new)? {
            return Err(self.error(StorageErrorKind::AlreadyExists, "recycle", new));
        }
        Ok(self.file(self.memory().recycle(epoch, old, new)?))
    }

    fn sync_object(&self, _epoch: Epoch, _name: &str) -> Result<()> {
        // A reader makes nothing durable.
        Ok(())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.open_as(name, |storage| storage.open(name))
    }

    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.open_as(name, |storage| storage.open_direct(name))
    }

    fn check_direct(&self) -> Result<()> {
        self.below.check_direct()
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        let below = self.below.list()?;
        let mut all: BTreeMap<String, u64> = {
            let hidden = self.hidden.lock();
            let shown = below.into_iter().filter(|o| !hidden.contains(&o.name));
            shown.map(|o| (o.name, o.len)).collect()
        };
        all.extend(self.memory().list()?.into_iter().map(|o| (o.name, o.len)));
        let object = |(name, len)| ObjectMeta { name, len };
        Ok(all.into_iter().map(object).collect())
    }

    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        let below = self.is_below(name)?;
        self.hide(name);
        match self.memory().delete(epoch, name) {
            Err(error) if error.kind == StorageErrorKind::NotFound && below => Ok(()),
            result => result,
        }
    }

    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.check_kept("rename", old)?;
        self.hide(new);
        self.memory().rename(epoch, old, new)
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        if self.is_below(name)? {
            return Err(self.error(StorageErrorKind::AlreadyExists, "import", name));
        }
        siltstone_storage::copy_object(self, epoch, name, from, from_name)
    }

    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.memory().sync_dir(epoch)
    }

    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.kept.check_room("replace", name, bytes.len() as u64)?;
        self.memory().replace(epoch, name, bytes)?;
        self.hide(name);
        Ok(())
    }

    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.replace(epoch, name, bytes)
    }

    fn base(&self) -> Option<&dyn std::any::Any> {
        self.below.base()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        self.below.counters()
    }

    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

/// An object in memory, whose growth is checked against the budget.
struct OverlayFile {
    inner: Arc<dyn WriteFile>,
    kept: Kept,
}

impl WriteFile for OverlayFile {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn position(&self) -> u64 {
        self.inner.position()
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let bytes = parts.iter().map(|p| p.len() as u64).sum();
        self.kept.check_room("append", self.inner.name(), bytes)?;
        self.inner.append(parts)
    }

    fn reserve(&self, len: u64) -> Result<()> {
        let more = len.saturating_sub(self.inner.len());
        self.kept.check_room("reserve", self.inner.name(), more)?;
        self.inner.reserve(len)
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }

    fn truncate_to_position(&self) -> Result<()> {
        self.inner.truncate_to_position()
    }
}

#[cfg(test)]
mod tests;
