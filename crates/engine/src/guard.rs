//! One owner for the syncs of a folder, and for the deletions in it that fail.
//!
//! What it is: a folder is shared by log, manifest and tables, and the kernel reports a lost
//! directory operation to one caller only. If a table's job got that report, the log's own sync of
//! the folder would succeed and acknowledge a segment whose name is lost (found by attacking RFC
//! 1). So all syncs of a folder, and atomic replacements, pass through one lock; the first failure
//! is sticky and poisons the store before anybody else is answered.
//!
//! Folders count epochs for themselves, while a store has one, that of its own folder: calls to
//! another folder carry the epoch of the lease that was taken there.
//!
//! A deletion that fails (of an obsolete table, an output of a failed job, an old manifest) must
//! not leave the file until the next open. So the guard remembers the name, whoever asked for the
//! deletion, and maintenance deletes it again ([`Guards::delete_again`]) until that succeeds or
//! another file gets the name.
//!
//! Invariant: a file that was made after its name was remembered is never deleted again. The lock
//! on the remembered names is held over each deletion that is made again, and whoever makes a file
//! takes its name out under that lock first.
//!
//! Threading: a runtime lock is held over the sync, and over a deletion that is made again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{
    Capabilities, Epoch, Lease, Mutex, ObjectMeta, ReadFile, Result, Runtime, SharedLease, Storage,
    StorageError, StorageErrorKind, WriteFile,
};

use crate::core::Storages;
use crate::error::Error;
use crate::health::Health;
use crate::planted::{self, Bug};

struct GuardedStorage {
    inner: Arc<dyn Storage>,
    /// Of the lease taken here; 0 before.
    own_epoch: AtomicU64,
    failed: Mutex<Option<StorageError>>,
    /// Files whose deletion failed.
    undeleted: Mutex<BTreeSet<String>>,
    health: Arc<Health>,
}

/// The guards of a store's folders.
pub(crate) struct Guards(Vec<Arc<GuardedStorage>>);

impl Guards {
    /// Deletes the files again whose deletion failed. Returns the names of those that are gone now.
    pub(crate) fn delete_again(&self, epoch: Epoch) -> Vec<String> {
        self.0.iter().flat_map(|g| g.delete_again(epoch)).collect()
    }
}

/// Guards the folders of log, manifest and tables. A failed sync of a folder that has only tables
/// poisons the store too, because only one of several jobs gets the error.
pub(crate) fn guard(
    storages: &Storages,
    runtime: &Runtime,
    health: &Arc<Health>,
) -> (Storages, Guards) {
    let mut guards = Vec::new();
    let guarded = storages.map(|inner| {
        let guard = Arc::new(GuardedStorage {
            inner: inner.clone(),
            own_epoch: AtomicU64::new(0),
            failed: runtime.mutex(None),
            undeleted: runtime.mutex(BTreeSet::new()),
            health: health.clone(),
        });
        guards.push(guard.clone());
        guard
    });
    (guarded, Guards(guards))
}

/// Whether a deletion that failed with this error is made again: not if the file is gone, and not
/// without the lease, because then nothing in the folder is this store's any more.
fn is_to_be_repeated(error: &StorageError) -> bool {
    !matches!(
        error.kind,
        StorageErrorKind::NotFound | StorageErrorKind::Fenced
    )
}

impl GuardedStorage {
    /// The epoch that a call here carries.
    fn own(&self, epoch: Epoch) -> Epoch {
        match self.own_epoch.load(Ordering::Acquire) {
            0 => epoch,
            own => Epoch(own),
        }
    }

    fn delete_again(&self, epoch: Epoch) -> Vec<String> {
        let names = self.undeleted.lock().clone();
        let is_gone = |name: &String| {
            let mut undeleted = self.undeleted.lock();
            if !undeleted.remove(name) {
                // A new file has the name.
                return false;
            }
            let Err(error) = self.inner.delete(self.own(epoch), name) else {
                return true;
            };
            if is_to_be_repeated(&error) {
                undeleted.insert(name.clone());
            }
            error.kind == StorageErrorKind::NotFound
        };
        names.into_iter().filter(is_gone).collect()
    }

    /// A file of this name is about to be made: it is not the one whose deletion failed.
    fn taken(&self, name: &str) {
        self.undeleted.lock().remove(name);
    }

    /// `is_harmless`: whether this failure of the call changed nothing, so that it may be made again.
    fn once(
        &self,
        is_harmless: impl Fn(&StorageError) -> bool,
        call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if planted::is(Bug::FolderSyncIsHarmless) {
            return call();
        }
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        call().inspect_err(|error| {
            if !is_harmless(error) {
                *failed = Some(error.clone());
                self.health
                    .poison(&Error::from(error.clone()).context("syncing the store's folder"));
            }
        })
    }
}

impl Storage for GuardedStorage {
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
        let lease = self.inner.lease(name)?;
        if !planted::is(Bug::IgnoreLostLease) {
            self.own_epoch.store(lease.epoch().0, Ordering::Release);
        }
        Ok(lease)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.inner.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.taken(name);
        self.inner.create(self.own(epoch), name)
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.taken(name);
        self.inner.create_direct(self.own(epoch), name)
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open_direct(name)
    }
    fn check_direct(&self) -> Result<()> {
        self.inner.check_direct()
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.taken(new);
        self.inner.recycle(self.own(epoch), old, new)
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.sync_object(self.own(epoch), name)
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.rewrite_object(self.own(epoch), name)
    }
    fn sync_place(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_place(self.own(epoch))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open(name)
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.inner.read_small(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.inner.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner
            .delete(self.own(epoch), name)
            .inspect_err(|error| {
                if is_to_be_repeated(error) && !planted::is(Bug::FailedDeletionIsForgotten) {
                    self.undeleted.lock().insert(name.to_string());
                }
            })
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.taken(new);
        self.inner.rename(self.own(epoch), old, new)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        self.taken(name);
        self.inner.import(self.own(epoch), name, from, from_name)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.taken(name);
        self.inner.publish(self.own(epoch), name, bytes)
    }
    fn base(&self) -> Option<&dyn std::any::Any> {
        self.inner.base()
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        // A file system that allocates blocks late reports only now that there were none. The names
        // are as lost as with any other error.
        self.once(|_| false, || self.inner.sync_dir(self.own(epoch)))
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.taken(name);
        // Without room or a descriptor the new bytes were not written, and the old ones stand.
        self.once(StorageError::changed_nothing, || {
            self.inner.replace(self.own(epoch), name, bytes)
        })
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
    use std::time::Duration;

    use siltstone_storage::fault::{Fault, FaultStorage, Rule};
    use siltstone_storage::sim::{self, SimConfig};
    use siltstone_storage::{MemoryStorage, OpKind};

    use super::*;
    use crate::event::Events;

    const EPOCH: Epoch = Epoch(0);

    /// A deletion fails after it has removed the file, and is made again while a new file gets the
    /// name. The new file must stay.
    #[test]
    fn a_new_file_is_not_deleted_for_the_old_one() {
        let play = |rt: Runtime| {
            let memory = MemoryStorage::new(&rt);
            let faults = FaultStorage::new(Arc::new(memory.clone()), &rt);
            let events = Events::start(&rt, None).unwrap();
            let guard = Arc::new(GuardedStorage {
                inner: Arc::new(faults.clone()),
                own_epoch: AtomicU64::new(0),
                failed: rt.mutex(None),
                undeleted: rt.mutex(BTreeSet::new()),
                health: Arc::new(Health::new(&rt, events)),
            });
            guard.create(EPOCH, "RESERVE").unwrap();
            faults.add(Rule::on(OpKind::Delete, Fault::Fail(StorageErrorKind::Io)));
            guard.delete(EPOCH, "RESERVE").unwrap_err();
            memory.delete(EPOCH, "RESERVE").unwrap();

            let delay = Fault::Delay(Duration::from_secs(1));
            faults.add(Rule::on(OpKind::Delete, delay));
            let again = {
                let guard = guard.clone();
                rt.spawn("again", move || guard.delete_again(EPOCH))
                    .unwrap()
            };
            rt.sleep(Duration::from_millis(100));
            guard.create(EPOCH, "RESERVE").unwrap();
            assert_eq!(again.join().unwrap(), ["RESERVE"]);
            let names: Vec<_> = memory.list().unwrap().into_iter().map(|o| o.name).collect();
            assert_eq!(names, ["RESERVE"]);
            assert!(guard.delete_again(EPOCH).is_empty());
        };
        for seed in 0..4 {
            if let Err(failure) = sim::run(SimConfig::new(seed), play).result {
                panic!("seed {seed}: {failure}");
            }
        }
    }
}
