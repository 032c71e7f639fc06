//! A storage whose appends may return before it has taken them, as those of a client across a link.
//!
//! [`Pipelined`] keeps what was appended to a file in a tail, and gives it to the storage below at
//! some later append, and at the latest when the file is synced, reserved or cut. An append that
//! does not reach the storage below stays in the tail. Any other failure of it is the result of
//! every later call on the file. What is in a tail is lost when its file is dropped, and cannot be
//! read by name.
//!
//! Threading: the tail is under a runtime mutex, which is held over calls of the storage below.

use std::sync::{Arc, Mutex as StdMutex};

use siltstone_storage::storage::InjectedFault;
use siltstone_storage::{
    Capabilities, Epoch, Lease, Mutex, ObjectMeta, ReadFile, Result, Runtime, SharedLease, Storage,
    StorageError, StorageErrorKind, WriteFile,
};

use crate::rng::Rng;

/// The most bytes of a tail. An append without room for it is given to the storage below at once.
const TAIL_BYTES: usize = 64 << 10;

/// The storage; see the module.
pub struct Pipelined {
    inner: Arc<dyn Storage>,
    runtime: Runtime,
    rng: Arc<StdMutex<Rng>>,
}

impl Pipelined {
    /// Wraps `inner`. The seed decides which appends are kept.
    pub fn new(inner: Arc<dyn Storage>, runtime: &Runtime, rng: Rng) -> Pipelined {
        Pipelined {
            inner,
            runtime: runtime.clone(),
            rng: Arc::new(StdMutex::new(rng)),
        }
    }

    fn file(&self, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(File {
            inner,
            tail: self.runtime.mutex(Tail::default()),
            rng: self.rng.clone(),
        })
    }
}

impl Storage for Pipelined {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn location(&self) -> String {
        self.inner.location()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            survives_kill: false,
            pipelined: true,
            ..self.inner.capabilities()
        }
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.inner.lease(name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.inner.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(self.inner.create(epoch, name)?))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(self.inner.create_direct(epoch, name)?))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(self.inner.recycle(epoch, old, new)?))
    }
    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(self.inner.reopen(epoch, name, position)?))
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
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.inner.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
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
        self.inner.sync_dir(epoch)
    }
    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_parents(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.replace(epoch, name, bytes)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.inner.open_objects_max()
    }
}

/// What was appended to a file and not given to the storage below.
#[derive(Default)]
struct Tail {
    bytes: Vec<u8>,
    /// The error of every call, once one was not only unreachable.
    failed: Option<StorageError>,
}

struct File {
    inner: Arc<dyn WriteFile>,
    tail: Mutex<Tail>,
    rng: Arc<StdMutex<Rng>>,
}

impl File {
    /// Gives the tail to the storage below.
    fn give(&self, tail: &mut Tail) -> Result<()> {
        if let Some(error) = &tail.failed {
            return Err(error.clone());
        }
        if tail.bytes.is_empty() {
            return Ok(());
        }
        self.inner.append(&[&tail.bytes]).inspect_err(|error| {
            if error.kind != StorageErrorKind::Unreachable {
                tail.failed = Some(error.clone());
            }
        })?;
        tail.bytes.clear();
        Ok(())
    }

    fn is_kept(&self) -> bool {
        let mut rng = self.rng.lock().unwrap_or_else(|e| e.into_inner());
        rng.chance(70)
    }
}

impl WriteFile for File {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position() + self.tail.lock().bytes.len() as u64
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut tail = self.tail.lock();
        if let Some(error) = &tail.failed {
            return Err(error.clone());
        }
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if tail.bytes.len() + len > TAIL_BYTES {
            self.give(&mut tail)?;
            return self.inner.append(parts);
        }
        parts.iter().for_each(|part| tail.bytes.extend(*part));
        if self.is_kept() {
            return Ok(());
        }
        match self.give(&mut tail) {
            // It stays in the tail.
            Err(error) if error.kind == StorageErrorKind::Unreachable => Ok(()),
            given => given,
        }
    }
    fn reserve(&self, len: u64) -> Result<()> {
        let mut tail = self.tail.lock();
        self.give(&mut tail)?;
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len().max(self.position())
    }
    fn sync(&self) -> Result<()> {
        let mut tail = self.tail.lock();
        self.give(&mut tail)?;
        drop(tail);
        self.inner.sync()
    }
    fn buffer_bytes(&self) -> u64 {
        self.tail.lock().bytes.len() as u64
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        let mut tail = self.tail.lock();
        self.give(&mut tail)?;
        self.inner.truncate_to_position()
    }
    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        self.inner.inject(fault)
    }
}
