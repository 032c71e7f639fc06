//! A storage around another one.
//!
//! [`Wrapped`] forwards each call to the storage below through a [`Wrapper`], which may do
//! something before and after it: remember what failed, repeat a call, refuse it, or write down
//! that it was made. So calls are forwarded in one place, and a new call of [`Storage`] is given
//! its [`Call`] here.
//!
//! Threading: as the wrapper.

use std::any::Any;
use std::sync::Arc;

use crate::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, Result, SharedLease, Storage, WriteFile,
};

/// What a call does, as far as wrappers distinguish it.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    /// It opens a file or a folder that exists, perhaps only for the duration of the call.
    Open,
    /// It opens a new file, which gets this name.
    Create(&'a str),
    /// It replaces the file of this name by a new one, atomically and durably.
    Replace(&'a str),
    /// It gives this name to a file that exists.
    Rename(&'a str),
    /// It deletes the file of this name.
    Delete(&'a str),
    /// It makes the names of the folder durable.
    SyncDir,
}

/// What is done around the calls to a storage.
pub trait Wrapper: Send + Sync + 'static {
    /// The storage below.
    fn inner(&self) -> &dyn Storage;

    /// Makes a call to the storage below, which is `run`.
    ///
    /// # Errors
    /// Those of the call, and those of the wrapper.
    fn make<T>(&self, call: Call<'_>, run: impl FnMut() -> Result<T>) -> Result<T>;

    /// Makes a call to the storage below that removes a name.
    ///
    /// # Errors
    /// Those of the call, and those of the wrapper.
    fn remove(&self, call: Call<'_>, run: impl FnMut() -> Result<()>) -> Result<()> {
        self.make(call, run)
    }

    /// The epoch with which a call of this epoch is forwarded.
    fn epoch(&self, epoch: Epoch) -> Epoch {
        epoch
    }

    /// Called after a lease with this epoch was taken.
    fn leased(&self, _epoch: Epoch) {}

    /// Gives a lease that was taken, as the caller gets it.
    fn given(&self, lease: Box<dyn Lease>) -> Box<dyn Lease> {
        lease
    }

    /// Gives the file that a call opened for writing, as the caller gets it.
    fn opened(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        file
    }

    /// A finished object that the wrapper opens itself.
    fn finished(&self, _name: &str) -> Option<Result<Arc<dyn ReadFile>>> {
        None
    }

    /// Gives the file that a call with this epoch opened for writing, as the caller gets it.
    fn opened_under(&self, _epoch: Epoch, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        self.opened(file)
    }

    /// Gives the file that a call opened for reading, as the caller gets it.
    fn opened_to_read(&self, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        file
    }
}

/// A storage whose calls go through a wrapper.
pub struct Wrapped<W>(
    /// The wrapper.
    pub W,
);

impl<W: Wrapper> Wrapped<W> {
    /// Forwards a call that opens what exists and changes nothing.
    fn open_with<T>(&self, run: impl Fn(&dyn Storage) -> Result<T>) -> Result<T> {
        self.0.make(Call::Open, || run(self.0.inner()))
    }

    /// Forwards a call that carries an epoch.
    fn change<T>(
        &self,
        call: Call<'_>,
        epoch: Epoch,
        run: impl Fn(&dyn Storage, Epoch) -> Result<T>,
    ) -> Result<T> {
        let epoch = self.0.epoch(epoch);
        self.0.make(call, || run(self.0.inner(), epoch))
    }
}

impl<W: Wrapper> Storage for Wrapped<W> {
    fn describe(&self) -> String {
        self.0.inner().describe()
    }
    fn location(&self) -> String {
        self.0.inner().location()
    }
    fn capabilities(&self) -> Capabilities {
        self.0.inner().capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        let lease = self.0.given(self.open_with(|s| s.lease(name))?);
        self.0.leased(lease.epoch());
        Ok(lease)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.open_with(|s| s.lease_shared(name))
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.change(Call::Create(name), epoch, |s, e| s.create(e, name))?;
        Ok(self.0.opened_under(epoch, file))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.change(Call::Create(name), epoch, |s, e| s.create_direct(e, name))?;
        Ok(self.0.opened_under(epoch, file))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.change(Call::Create(new), epoch, |s, e| s.recycle(e, old, new))?;
        Ok(self.0.opened_under(epoch, file))
    }
    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        let file = self.change(Call::Open, epoch, |s, e| s.reopen(e, name, position))?;
        Ok(self.0.opened_under(epoch, file))
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.change(Call::Open, epoch, |s, e| s.sync_object(e, name))
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.change(Call::Open, epoch, |s, e| s.rewrite_object(e, name))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        let file = self.open_with(|s| s.open(name))?;
        Ok(self.0.opened_to_read(file))
    }
    fn open_finished(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        if let Some(opened) = self.0.finished(name) {
            return opened;
        }
        let file = self.open_with(|s| s.open_finished(name))?;
        Ok(self.0.opened_to_read(file))
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        let file = self.open_with(|s| s.open_direct(name))?;
        Ok(self.0.opened_to_read(file))
    }
    fn check_direct(&self) -> Result<()> {
        self.open_with(|s| s.check_direct())
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.open_with(|s| s.read_small(name))
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.open_with(|s| s.list())
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        let (inner, epoch) = (self.0.inner(), self.0.epoch(epoch));
        self.0
            .remove(Call::Delete(name), || inner.delete(epoch, name))
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        let (inner, epoch) = (self.0.inner(), self.0.epoch(epoch));
        self.0
            .remove(Call::Rename(new), || inner.rename(epoch, old, new))
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        let run = |s: &dyn Storage, e| s.import(e, name, from, from_name);
        self.change(Call::Create(name), epoch, run)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.change(Call::Create(name), epoch, |s, e| s.publish(e, name, bytes))
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.change(Call::SyncDir, epoch, |s, e| s.sync_dir(e))
    }
    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        self.change(Call::Open, epoch, |s, e| s.sync_parents(e))
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.change(Call::Replace(name), epoch, |s, e| s.replace(e, name, bytes))
    }
    fn base(&self) -> Option<&dyn Any> {
        self.0.inner().base()
    }
    fn counters(&self) -> Vec<(String, u64)> {
        self.0.inner().counters()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.0.inner().free_bytes()
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.0.inner().open_objects_max()
    }
}
