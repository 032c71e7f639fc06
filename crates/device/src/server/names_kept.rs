//! The storage in which a job writes its tables. It syncs no names, and it deletes only objects
//! that the job created or that were handed over to the job.
//!
//! The system reports a failed sync of names only once, to the first task that asks. The host has
//! to learn of that failure, so only the host syncs names (RFC 9, D8). If the name of an output is
//! taken, that object belongs to somebody else, and the job must not delete it (D5).
//!
//! Invariants: `sync_dir` does nothing. `delete`, `rename` and `recycle` change only objects that
//! were handed over to the job, or that the job created here. A renamed object stays one of these.
//! One that was deleted is none of them any more.
//!
//! Threading: shared. There is one runtime mutex, and it is not held during a call of the storage.

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_storage::{
    Capabilities, Epoch, Lease, Mutex, ObjectMeta, ReadFile, Result, Runtime, SharedLease, Storage,
    StorageError, StorageErrorKind, WriteFile,
};

/// See the module.
pub(super) struct NamesKept {
    inner: Arc<dyn Storage>,
    created: Mutex<BTreeSet<String>>,
}

/// Whether an object is not there any more after a call that should delete it.
fn is_gone(deleted: &Result<()>) -> bool {
    match deleted {
        Ok(()) => true,
        Err(error) => error.kind == StorageErrorKind::NotFound,
    }
}

impl NamesKept {
    /// The storage that a job gets. `handed_over` has the names of the tables that earlier attempts
    /// left, which the host passes on to this one.
    pub(super) fn new(
        runtime: &Runtime,
        inner: Arc<dyn Storage>,
        handed_over: BTreeSet<String>,
    ) -> NamesKept {
        NamesKept {
            inner,
            created: runtime.mutex(handed_over),
        }
    }

    /// Deletes the objects that the job created and that are still there. Returns the name of one
    /// that could not be deleted. No task may work on them any more.
    pub(super) fn delete_created(&self, epoch: Epoch) -> Option<String> {
        let left: Vec<String> = self.created.lock().iter().cloned().collect();
        left.into_iter()
            .find(|name| !is_gone(&self.delete(epoch, name)))
    }

    fn created(&self, name: &str, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        self.created.lock().insert(name.to_string());
        file
    }

    fn refused<T>(&self, op: &'static str, name: &str) -> Result<T> {
        let detail = "a job on a device only writes tables";
        let kind = StorageErrorKind::Unsupported;
        Err(StorageError::new(kind, op, name, detail))
    }

    fn check_own(&self, op: &'static str, name: &str) -> Result<()> {
        let is_own = self.created.lock().contains(name) || planted!(TakenNameIsDeleted);
        match is_own {
            true => Ok(()),
            false => self.refused(op, name),
        }
    }
}

impl Storage for NamesKept {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.refused("lease", name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.refused("lease_shared", name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.create(epoch, name)?;
        Ok(self.created(name, file))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.create_direct(epoch, name)?;
        Ok(self.created(name, file))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.check_own("recycle", old)?;
        let file = self.inner.recycle(epoch, old, new)?;
        self.created.lock().remove(old);
        Ok(self.created(new, file))
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.sync_object(epoch, name)
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.rewrite_object(epoch, name)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open(name)
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open_direct(name)
    }
    fn check_direct(&self) -> Result<()> {
        self.inner.check_direct()
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.inner.read_small(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.inner.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.check_own("delete", name)?;
        let deleted = self.inner.delete(epoch, name);
        if is_gone(&deleted) {
            self.created.lock().remove(name);
        }
        deleted
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.check_own("rename", old)?;
        self.inner.rename(epoch, old, new)?;
        let mut created = self.created.lock();
        created.remove(old);
        created.insert(new.to_string());
        Ok(())
    }
    fn publish(&self, _: Epoch, name: &str, _: &[u8]) -> Result<()> {
        self.refused("publish", name)
    }
    fn sync_dir(&self, _: Epoch) -> Result<()> {
        Ok(())
    }
    fn replace(&self, _: Epoch, name: &str, _: &[u8]) -> Result<()> {
        self.refused("replace", name)
    }
    fn base(&self) -> Option<&dyn Any> {
        self.inner.base()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.inner.open_objects_max()
    }
}
