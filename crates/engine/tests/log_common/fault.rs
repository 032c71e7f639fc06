//! A storage that calls a function before each call that may fail.

use std::sync::Arc;

use siltstone_storage::{
    Capabilities, Epoch, InjectedFault, Lease, ObjectMeta, ReadFile, Result, SharedLease, Storage,
    StorageError, StorageErrorKind, WriteFile,
};

/// Called with operation and name before each changing call. If it returns an error, the call
/// fails. A sync that fails loses what it should have made durable, as after a failed write-back of
/// the kernel.
pub type Hook = Arc<dyn Fn(&'static str, &str) -> Option<StorageErrorKind> + Send + Sync>;

pub struct Faulty<S> {
    pub inner: S,
    pub hook: Hook,
}

fn ask(hook: &Hook, op: &'static str, name: &str) -> Result<()> {
    match hook(op, name) {
        Some(kind) => Err(StorageError::new(kind, op, name, "injected")),
        None => Ok(()),
    }
}

impl<S: Storage> Faulty<S> {
    fn wrap(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(FaultyFile {
            inner: file,
            hook: self.hook.clone(),
        })
    }
}

impl<S: Storage> Storage for Faulty<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.inner.lease(name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.inner.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        ask(&self.hook, "create", name)?;
        Ok(self.wrap(self.inner.create(epoch, name)?))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        ask(&self.hook, "recycle", new)?;
        Ok(self.wrap(self.inner.recycle(epoch, old, new)?))
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        ask(&self.hook, "sync_object", name)?;
        self.inner.sync_object(epoch, name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        ask(&self.hook, "open", name)?;
        self.inner.open(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        ask(&self.hook, "list", "")?;
        self.inner.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        ask(&self.hook, "delete", name)?;
        self.inner.delete(epoch, name)
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.inner.rename(epoch, old, new)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        self.inner.import(epoch, name, from, from_name)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.publish(epoch, name, bytes)
    }
    fn base(&self) -> Option<&dyn std::any::Any> {
        self.inner.base()
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        ask(&self.hook, "sync_dir", "").inspect_err(|_| {
            assert!(self.inner.inject_lost_names());
        })?;
        self.inner.sync_dir(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.replace(epoch, name, bytes)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
}

struct FaultyFile {
    inner: Arc<dyn WriteFile>,
    hook: Hook,
}

impl WriteFile for FaultyFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        ask(&self.hook, "append", self.inner.name()).inspect_err(|_| {
            assert!(self.inner.inject(InjectedFault::ShortAppend {
                parts,
                keep_bytes: 20
            }));
        })?;
        self.inner.append(parts)
    }
    fn reserve(&self, len: u64) -> Result<()> {
        ask(&self.hook, "reserve", self.inner.name())?;
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        ask(&self.hook, "sync", self.inner.name()).inspect_err(|_| {
            assert!(self.inner.inject(InjectedFault::LoseUnsynced));
        })?;
        self.inner.sync()
    }
    fn truncate_to_position(&self) -> Result<()> {
        self.inner.truncate_to_position()
    }
}
