//! Limits: counts of what is in use, and a folder whose bytes are bounded.
//!
//! A scratch folder has the tables that one session sends and makes, and its host is told how many
//! bytes it may keep there. [`Bounded`] enforces this limit, and another one for all sessions
//! together: a call that would exceed one of them fails as `NoSpace`, as on a full disk.
//!
//! Invariants: a [`Taken`] is counted until it is dropped. The bytes of a [`Bounded`] are those of
//! its objects, reserved space included. They are given back when objects are deleted and when the
//! folder is dropped. A count is raised before bytes are written. An object that could not be
//! published or replaced counts as it is then.
//!
//! Threading: shared. There is one runtime mutex, and it is not held during a call of the storage.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{
    Capabilities, Epoch, Lease, Mutex, ObjectMeta, ReadFile, Result, Runtime, SharedLease, Storage,
    StorageError, StorageErrorKind, WriteByDescriptor, WriteFile,
};

/// A count of things or bytes that are in use.
#[derive(Clone, Default)]
pub(super) struct InUse(Arc<AtomicU64>);

/// A share of such a count. It is given back when this value is dropped.
pub(super) struct Taken {
    of: InUse,
    count: u64,
}

impl InUse {
    pub(super) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the count, unless it would then be above `max`. Returns whether it did so.
    fn add(&self, count: u64, max: u64) -> bool {
        let add = |used: u64| used.checked_add(count).filter(|sum| *sum <= max);
        let added = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        added.is_ok()
    }

    fn sub(&self, count: u64) {
        self.0.fetch_sub(count, Ordering::AcqRel);
    }

    /// Adds one to the count, if it is below `max`.
    pub(super) fn take(&self, max: u64) -> Option<Taken> {
        self.add(1, max).then(|| Taken {
            of: self.clone(),
            count: 1,
        })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.sub(self.count);
    }
}

/// The bytes of a folder.
struct Bytes {
    objects: Mutex<BTreeMap<String, u64>>,
    own: InUse,
    own_max: u64,
    all: InUse,
    all_max: u64,
}

impl Bytes {
    /// Notes that an object has at least this length. Returns how many of its bytes were counted
    /// before.
    fn grow(&self, op: &'static str, name: &str, len: u64) -> Result<u64> {
        let mut objects = self.objects.lock();
        let counted = objects.get(name).copied().unwrap_or(0);
        let more = len.saturating_sub(counted);
        let full = |whose: &str, max: u64| {
            let detail = format!("{whose} may keep {max} bytes of tables that hosts send");
            StorageError::new(StorageErrorKind::NoSpace, op, name, detail)
        };
        if !self.own.add(more, self.own_max) {
            return Err(full("a session with this device", self.own_max));
        }
        if !self.all.add(more, self.all_max) {
            self.own.sub(more);
            return Err(full("all sessions with this device together", self.all_max));
        }
        objects.insert(name.to_string(), counted + more);
        Ok(counted)
    }

    /// Notes that an object has this length now, or that it is gone.
    fn shrink(&self, name: &str, len: u64) {
        let mut objects = self.objects.lock();
        let Some(counted) = objects.remove(name) else {
            return;
        };
        let rest = len.min(counted);
        if rest > 0 {
            objects.insert(name.to_string(), rest);
        }
        self.own.sub(counted - rest);
        self.all.sub(counted - rest);
    }

    fn rename(&self, old: &str, new: &str) {
        let mut objects = self.objects.lock();
        if let Some(bytes) = objects.remove(old)
            && let Some(replaced) = objects.insert(new.to_string(), bytes)
        {
            self.own.sub(replaced);
            self.all.sub(replaced);
        }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        self.all.sub(self.own.count());
    }
}

/// See the module.
pub(super) struct Bounded {
    inner: Arc<dyn Storage>,
    bytes: Arc<Bytes>,
}

impl Bounded {
    /// An empty folder that may have `own_max` bytes. All folders with the count `all` may have
    /// `all_max`.
    pub(super) fn new(
        runtime: &Runtime,
        inner: Arc<dyn Storage>,
        own_max: u64,
        all: &InUse,
        all_max: u64,
    ) -> Bounded {
        let bytes = Bytes {
            objects: runtime.mutex(BTreeMap::new()),
            own: InUse::default(),
            own_max,
            all: all.clone(),
            all_max,
        };
        Bounded {
            inner,
            bytes: Arc::new(bytes),
        }
    }

    fn written(&self, name: &str, inner: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(BoundedFile {
            name: name.to_string(),
            inner,
            bytes: Arc::clone(&self.bytes),
        })
    }

    /// Makes a call that gives an object new contents, which have `len` bytes.
    fn set(
        &self,
        op: &'static str,
        name: &str,
        len: u64,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = self.bytes.grow(op, name, len)?;
        let result = call();
        if result.is_err() {
            let left = match self.inner.open(name) {
                Ok(object) => object.len(),
                Err(error) => match error.kind {
                    StorageErrorKind::NotFound | StorageErrorKind::InvalidInput => 0,
                    // It may be there with its new contents.
                    _ => len,
                },
            };
            self.bytes.shrink(name, left.max(before));
        }
        result
    }
}

/// A file of such a folder. Its bytes are counted under the name with which it was opened. If it is
/// renamed while it is open, the next append counts its whole length a second time, under the old
/// name, until the folder is dropped.
struct BoundedFile {
    name: String,
    inner: Arc<dyn WriteFile>,
    bytes: Arc<Bytes>,
}

impl WriteFile for BoundedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
        let end = self.inner.position().saturating_add(len);
        self.bytes.grow("append", &self.name, end)?;
        self.inner.append(parts)
    }
    fn append_by_descriptor(&self, len: u64, write: &mut WriteByDescriptor<'_>) -> Result<bool> {
        let end = self.inner.position().saturating_add(len);
        self.bytes.grow("append", &self.name, end)?;
        self.inner.append_by_descriptor(len, write)
    }
    fn reserve(&self, len: u64) -> Result<()> {
        self.bytes.grow("reserve", &self.name, len)?;
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn buffer_bytes(&self) -> u64 {
        self.inner.buffer_bytes()
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        self.inner.truncate_to_position()?;
        self.bytes.shrink(&self.name, self.inner.position());
        Ok(())
    }
}

impl Storage for Bounded {
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
        self.inner.lease(name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.inner.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.create(epoch, name)?;
        Ok(self.written(name, file))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.create_direct(epoch, name)?;
        Ok(self.written(name, file))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.recycle(epoch, old, new)?;
        self.bytes.rename(old, new);
        Ok(self.written(new, file))
    }
    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        let file = self.inner.reopen(epoch, name, position)?;
        Ok(self.written(name, file))
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
        self.inner.delete(epoch, name)?;
        self.bytes.shrink(name, 0);
        Ok(())
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.inner.rename(epoch, old, new)?;
        self.bytes.rename(old, new);
        Ok(())
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        let call = || self.inner.publish(epoch, name, bytes);
        self.set("publish", name, bytes.len() as u64, call)
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_dir(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        let call = || self.inner.replace(epoch, name, bytes);
        self.set("replace", name, bytes.len() as u64, call)
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

#[cfg(test)]
mod tests {
    use siltstone_storage::MemoryStorage;

    use super::*;

    #[test]
    fn the_bytes_of_a_folder_and_of_all_are_bounded() {
        let runtime = Runtime::threads();
        let all = InUse::default();
        let folder = || {
            let inner = Arc::new(MemoryStorage::new(&runtime));
            Bounded::new(&runtime, inner, 100, &all, 150)
        };
        let (a, b) = (folder(), folder());
        let epoch = a.lease("scratch").unwrap().epoch();
        let other = b.lease("scratch").unwrap().epoch();
        let file = a.create(epoch, "x").unwrap();
        file.append(&[&[1; 60]]).unwrap();
        file.reserve(80).unwrap();
        file.append(&[&[1; 20]]).unwrap();
        let error = file.append(&[&[1; 21]]).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        assert_eq!((file.position(), all.count()), (80, 80));
        let theirs = b.create(other, "y").unwrap();
        theirs.append(&[&[1; 70]]).unwrap();
        assert!(theirs.append(&[&[1; 1]]).unwrap_err().is_no_space());
        // What is deleted makes room for everybody, and what is renamed is still counted.
        a.rename(epoch, "x", "z").unwrap();
        a.delete(epoch, "x").unwrap_err();
        a.delete(epoch, "z").unwrap();
        theirs.append(&[&[1; 30]]).unwrap();
        assert_eq!(all.count(), 100);
        let error = b.publish(other, "p", &[0; 1]).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        // An object that another one replaces makes room, too.
        for name in ["p", "r"] {
            a.publish(epoch, name, &[0; 25]).unwrap();
        }
        a.rename(epoch, "r", "p").unwrap();
        assert_eq!(all.count(), 125);
        a.publish(epoch, "s", &[0; 25]).unwrap();
        assert!(b.replace(other, "q", &[0; 1]).is_err());
        drop((file, a));
        assert_eq!(all.count(), 100);
        drop((theirs, b));
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn what_could_not_be_written_is_not_counted() {
        let runtime = Runtime::threads();
        let all = InUse::default();
        let inner = Arc::new(MemoryStorage::new(&runtime));
        let folder = Bounded::new(&runtime, inner.clone(), 100, &all, 150);
        let epoch = folder.lease("scratch").unwrap().epoch();
        for name in [".a", "b/c", ""] {
            folder.publish(epoch, name, &[0; 40]).unwrap_err();
            folder.replace(epoch, name, &[]).unwrap_err();
        }
        assert_eq!(all.count(), 0);
        assert!(folder.bytes.objects.lock().is_empty());
        // An object that keeps its contents still counts as before.
        folder.publish(epoch, "x", &[0; 30]).unwrap();
        inner.set_capacity(Some(inner.used_bytes()));
        for name in ["x", "y"] {
            let error = folder.replace(epoch, name, &[0; 50]).unwrap_err();
            assert!(error.is_no_space(), "{error}");
        }
        assert_eq!(all.count(), 30);
        folder.delete(epoch, "x").unwrap();
        assert_eq!(all.count(), 0);
        assert!(folder.bytes.objects.lock().is_empty());
    }

    #[test]
    fn what_was_taken_is_given_back() {
        let used = InUse::default();
        let taken: Vec<_> = (0..3).map(|_| used.take(3).unwrap()).collect();
        assert!(used.take(3).is_none() && used.count() == 3);
        drop(taken);
        assert!(used.take(1).is_some());
    }
}
