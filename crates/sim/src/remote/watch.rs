//! Folders of a device, with a watch over their changes.
//!
//! Local files check no epoch, so only the device keeps a late request from changing a folder that
//! another host has. [`Watch`] counts the leases of each folder, and notes every change that is
//! made under a lease that is not held any more. A correct device makes no such change (D2 and D3
//! of RFC 9).
//!
//! A lock file that is written on a full disk may not keep its epoch, so epochs may be given again
//! after a power loss. [`Watch::forget_epochs`] simulates this: the epochs of the folders' own
//! leases begin again.
//!
//! Threading: shared. A std mutex is not held during any call.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use siltstone_device::{Folders, MemoryFolders};
use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{Epoch, Lease, Result, Storage, WriteFile};

use super::lock;
use super::machine::Below;

/// What is known about the leases during one life of the device.
#[derive(Default)]
struct Held {
    /// The epochs that are held, each with its folder.
    epochs: Vec<(String, u64)>,
    wrong: Vec<String>,
}

/// See the module.
#[derive(Default)]
pub struct Watch {
    held: Mutex<Held>,
    /// The number that is subtracted from the epochs of the storages.
    base: AtomicU64,
    newest: AtomicU64,
    changes: AtomicU64,
}

impl Watch {
    /// A watch that has seen nothing.
    pub fn new() -> Arc<Watch> {
        Arc::new(Watch::default())
    }

    /// The wrong changes that were seen.
    pub fn wrong(&self) -> Vec<String> {
        lock(&self.held).wrong.clone()
    }

    /// The number of changes that were seen.
    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Relaxed)
    }

    /// Notes that the process that had the folders was killed, so that it holds no leases any more.
    pub fn killed(&self) {
        lock(&self.held).epochs.clear();
    }

    /// Makes the next lease of a folder have an epoch as if it were the first one.
    pub fn forget_epochs(&self) {
        let newest = self.newest.load(Ordering::Relaxed);
        self.base.store(newest, Ordering::Relaxed);
    }

    fn changed(&self, folder: &str, epoch: Epoch, what: &str) {
        self.changes.fetch_add(1, Ordering::Relaxed);
        let mut held = lock(&self.held);
        let is_held = |(f, e): &(String, u64)| f == folder && *e == epoch.0;
        if !held.epochs.iter().any(is_held) {
            let now: Vec<u64> = held.epochs.iter().map(|(_, epoch)| *epoch).collect();
            let epoch = epoch.0;
            held.wrong.push(format!(
                "{what} in folder {folder} under epoch {epoch}; held are {now:?}"
            ));
        }
    }
}

/// The wrapper of one folder's storage.
struct Watched {
    inner: Arc<dyn Storage>,
    name: String,
    watch: Arc<Watch>,
}

impl Watched {
    fn outer(&self, epoch: Epoch) -> Epoch {
        let base = self.watch.base.load(Ordering::Relaxed);
        Epoch(epoch.0.saturating_sub(base))
    }
}

impl Wrapper for Watched {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, _: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        run()
    }

    fn epoch(&self, epoch: Epoch) -> Epoch {
        self.watch.changed(&self.name, epoch, "a change");
        Epoch(epoch.0 + self.watch.base.load(Ordering::Relaxed))
    }

    fn given(&self, lease: Box<dyn Lease>) -> Box<dyn Lease> {
        let newest = lease.epoch().0;
        self.watch.newest.fetch_max(newest, Ordering::Relaxed);
        let epoch = self.outer(lease.epoch());
        let held = (self.name.clone(), epoch.0);
        lock(&self.watch.held).epochs.push(held);
        Box::new(WatchedLease {
            inner: lease,
            epoch,
            folder: self.name.clone(),
            watch: Arc::clone(&self.watch),
        })
    }

    fn opened_under(&self, epoch: Epoch, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(WatchedFile {
            inner: file,
            epoch,
            folder: self.name.clone(),
            watch: Arc::clone(&self.watch),
        })
    }
}

struct WatchedLease {
    inner: Box<dyn Lease>,
    epoch: Epoch,
    folder: String,
    watch: Arc<Watch>,
}

impl WatchedLease {
    fn gone(&self) {
        let is_this = |(f, e): &(String, u64)| *f == self.folder && *e == self.epoch.0;
        let mut held = lock(&self.watch.held);
        if let Some(at) = held.epochs.iter().position(is_this) {
            held.epochs.remove(at);
        }
    }
}

impl Lease for WatchedLease {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
    fn release(&self) -> Result<()> {
        self.gone();
        self.inner.release()
    }
}

impl Drop for WatchedLease {
    fn drop(&mut self) {
        self.gone();
    }
}

struct WatchedFile {
    inner: Arc<dyn WriteFile>,
    epoch: Epoch,
    folder: String,
    watch: Arc<Watch>,
}

impl WatchedFile {
    fn changed(&self, what: &str) {
        let what = format!("{what} {}", self.inner.name());
        self.watch.changed(&self.folder, self.epoch, &what);
    }
}

impl WriteFile for WatchedFile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.changed("append to");
        self.inner.append(parts)
    }
    fn reserve(&self, len: u64) -> Result<()> {
        self.changed("reserve");
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        self.changed("sync");
        self.inner.sync()
    }
    fn buffer_bytes(&self) -> u64 {
        self.inner.buffer_bytes()
    }
    fn truncate_to_position(&self) -> Result<()> {
        self.changed("truncate");
        self.inner.truncate_to_position()
    }
}

/// The folders of a device, with a watch over them.
pub struct WatchedFolders {
    inner: Arc<MemoryFolders>,
    watch: Arc<Watch>,
    /// Wraps the storage of each folder, below the watch.
    below: Below,
}

impl WatchedFolders {
    /// Adds the watch to these folders.
    pub fn new(inner: Arc<MemoryFolders>, watch: Arc<Watch>, below: Below) -> WatchedFolders {
        WatchedFolders {
            inner,
            watch,
            below,
        }
    }

    fn watched(&self, name: &str, inner: Arc<dyn Storage>) -> Arc<dyn Storage> {
        Arc::new(Wrapped(Watched {
            inner: (self.below)(inner),
            name: name.to_string(),
            watch: Arc::clone(&self.watch),
        }))
    }
}

/// A shared folder, as the process of the device sees it. Files that two processes of one machine
/// open check no epoch.
struct Unfenced(Arc<dyn Storage>);

impl Wrapper for Unfenced {
    fn inner(&self) -> &dyn Storage {
        &*self.0
    }

    fn make<T>(&self, _: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        run()
    }

    /// An epoch that no lease was given, so that it is never too old.
    fn epoch(&self, _: Epoch) -> Epoch {
        Epoch(0)
    }
}

impl Folders for WatchedFolders {
    fn root(&self) -> Arc<dyn Storage> {
        self.inner.root()
    }
    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        let folder = self.inner.open(name, create)?;
        Ok(self.watched(name, folder))
    }
    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        let folder = self.inner.open_scratch(name)?;
        Ok(self.watched(name, folder))
    }
    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.inner.remove_scratch_folder(name)
    }
    fn remove_scratch(&self) -> Result<()> {
        self.inner.remove_scratch()
    }
    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        let (folder, path) = self.inner.open_shared(path)?;
        Ok((Arc::new(Wrapped(Unfenced(folder))), path))
    }
    fn boot(&self) -> Vec<u8> {
        self.inner.boot()
    }
}
