//! One owner for the syncs of a folder, and for the deletions in it that fail.
//!
//! A folder is shared by log, manifest and tables, and the kernel reports a lost directory
//! operation to one caller only. If a table's job got that report, the log's own sync of the folder
//! would succeed and acknowledge a segment whose name is lost (found by attacking RFC 1). So all
//! syncs of a folder, and atomic replacements, pass through one lock. The first failure is sticky
//! and poisons the store before any other caller gets a result. Only the folder of the second
//! location of tables has failures of its own ([`Locations`]).
//!
//! A storage that cannot be reached is no such failure: a call that did not get its answer in time
//! may be made again, and its client sees to it that no failed sync is lost meanwhile (RFC 9).
//!
//! Each folder counts its own epochs, but a store has only the epoch of its own folder. So calls to
//! another folder are forwarded with the epoch of the lease that was taken there.
//!
//! If a deletion fails (of an obsolete table, an output of a failed job, an old manifest), the file
//! must not stay until the next open. So the guard remembers the name, and maintenance repeats the
//! deletion ([`Guards::delete_again`]) until it succeeds or another file gets the name.
//!
//! Invariant: a file that was created after its name was remembered is not deleted by this. The
//! lock on the remembered names is held over each repeated deletion, and a call that creates a file
//! removes its name under that lock first.
//!
//! Threading: a runtime lock is held over a sync, and over a repeated deletion.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{Epoch, Mutex, Result, Runtime, Storage, StorageError, StorageErrorKind};

use crate::env::health::Health;
use crate::env::locations::Locations;
use crate::formats::directories::Storages;
use crate::types::error::Error;
use siltstone_storage::planted;

struct Guard {
    /// The location of tables that the folder is; 0 for all folders except the second location.
    location: u32,
    inner: Arc<dyn Storage>,
    /// The epoch of the lease taken here; 0 before.
    own_epoch: AtomicU64,
    failed: Mutex<Option<StorageError>>,
    /// Files whose deletion failed.
    undeleted: Mutex<BTreeSet<String>>,
    /// Whether any deletion has failed.
    has_undeleted: AtomicBool,
    /// Who learns that a sync failed.
    judge: Judge,
}

/// What a failed sync of a folder means.
#[derive(Clone)]
enum Judge {
    /// The store is poisoned.
    Store(Arc<Health>),
    /// Nothing is written to the second location of tables any more. No edit of the manifest was
    /// made that relies on the names that are lost.
    Location(Arc<Locations>),
}

impl Judge {
    /// A sync of the folder `place` has failed.
    fn sync_failed(&self, place: &dyn Storage, error: &StorageError) {
        match self {
            Judge::Store(health) => {
                let cause = Error::from(error.clone()).context("syncing the store's folder");
                health.poison(&cause);
            }
            Judge::Location(locations) => {
                let cause = Error::from(error.clone()).context("syncing the folder");
                locations.set_lost(place.location(), cause);
            }
        }
    }
}

/// The guards of a store's folders.
pub(crate) struct Guards(Vec<Arc<Wrapped<Guard>>>);

impl Guards {
    /// Repeats the deletions that failed: those at this location of tables, or, for location 0, in
    /// all other folders. Returns the names of the files that are gone now.
    pub(crate) fn delete_again(&self, location: u32, epoch: Epoch) -> Vec<String> {
        let is_there = |guard: &&Arc<Wrapped<Guard>>| guard.0.location == location;
        let again = |guard: &Arc<Wrapped<Guard>>| guard.0.delete_again(epoch);
        self.0.iter().filter(is_there).flat_map(again).collect()
    }
}

/// Guards the folders of log, manifest and tables. A failed sync of a folder that has only tables
/// poisons the store too, because only one of several jobs gets the error. That of the second
/// location of tables is not written any more.
pub(crate) fn guard(
    storages: &Storages,
    runtime: &Runtime,
    health: &Arc<Health>,
    locations: &Arc<Locations>,
) -> (Storages, Guards) {
    let mut guards = Vec::new();
    let guarded = storages.map_with(|location, inner| {
        let judge = match location {
            0 => Judge::Store(health.clone()),
            _ => Judge::Location(locations.clone()),
        };
        let guard = Guard {
            location,
            ..Guard::new(inner.clone(), runtime, judge)
        };
        let guard = Arc::new(Wrapped(guard));
        guards.push(guard.clone());
        guard
    });
    (guarded, Guards(guards))
}

/// Whether a deletion that failed with this error is repeated: not if the file is gone, and not
/// without the lease, because then nothing in the folder belongs to this store any more.
fn is_to_be_repeated(error: &StorageError) -> bool {
    !matches!(
        error.kind,
        StorageErrorKind::NotFound | StorageErrorKind::Fenced
    )
}

/// Whether the storage could not be reached, so that the call may be made again.
fn is_unreachable(error: &StorageError) -> bool {
    error.kind == StorageErrorKind::Unreachable && !planted!(OutageFailsNames)
}

impl Guard {
    fn new(inner: Arc<dyn Storage>, runtime: &Runtime, judge: Judge) -> Guard {
        Guard {
            location: 0,
            inner,
            own_epoch: AtomicU64::new(0),
            failed: runtime.mutex(None),
            undeleted: runtime.mutex(BTreeSet::new()),
            has_undeleted: AtomicBool::new(false),
            judge,
        }
    }

    fn delete_again(&self, epoch: Epoch) -> Vec<String> {
        let names = self.undeleted.lock().clone();
        let mut is_away = false;
        let is_gone = |name: &String| {
            // Each further call would wait for its own time limit.
            if is_away {
                return false;
            }
            let mut undeleted = self.undeleted.lock();
            if !undeleted.remove(name) {
                // A new file has the name.
                return false;
            }
            let Err(error) = self.inner.delete(self.epoch(epoch), name) else {
                return true;
            };
            if is_to_be_repeated(&error) {
                undeleted.insert(name.clone());
            }
            is_away = error.kind == StorageErrorKind::Unreachable;
            error.kind == StorageErrorKind::NotFound
        };
        names.into_iter().filter(is_gone).collect()
    }

    /// Makes a call, unless an earlier one has failed. `is_harmless` says whether this failure of
    /// the call changed nothing, so that it may be repeated.
    fn once<T>(
        &self,
        is_harmless: impl Fn(&StorageError) -> bool,
        mut call: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut failed = self.failed.lock();
        if let Some(error) = &*failed {
            return Err(error.clone());
        }
        call().inspect_err(|error| {
            if !is_harmless(error) {
                *failed = Some(error.clone());
                self.judge.sync_failed(&*self.inner, error);
            }
        })
    }
}

impl Wrapper for Guard {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn epoch(&self, epoch: Epoch) -> Epoch {
        match self.own_epoch.load(Ordering::Acquire) {
            0 => epoch,
            own => Epoch(own),
        }
    }

    fn leased(&self, epoch: Epoch) {
        self.own_epoch.store(epoch.0, Ordering::Release);
    }

    fn make<T>(&self, call: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        if let Call::Create(name) | Call::Replace(name) | Call::Rename(name) = call {
            // The new file is not the one whose deletion failed.
            self.undeleted.lock().remove(name);
        }
        match call {
            // A file system that allocates blocks late reports only now that there were none. The
            // names are as lost as with any other error.
            Call::SyncDir => self.once(is_unreachable, run),
            // Without room or a descriptor the new bytes were not written, and the old file is
            // still there.
            Call::Replace(_) => self.once(|e| e.changed_nothing() || is_unreachable(e), run),
            Call::Delete(name) => match run() {
                Ok(done) => {
                    // An earlier try of the same call may have failed.
                    if self.has_undeleted.load(Ordering::Acquire) {
                        self.undeleted.lock().remove(name);
                    }
                    Ok(done)
                }
                Err(error) => {
                    if is_to_be_repeated(&error) && !planted!(FailedDeletionIsForgotten) {
                        self.undeleted.lock().insert(name.to_string());
                        self.has_undeleted.store(true, Ordering::Release);
                    }
                    Err(error)
                }
            },
            Call::Open | Call::Create(_) | Call::Rename(_) => run(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use siltstone_storage::fault::{Fault, FaultStorage, Rule};
    use siltstone_storage::sim::{self, SimConfig};
    use siltstone_storage::{MemoryStorage, OpKind};

    use super::*;
    use crate::types::event::Events;

    const EPOCH: Epoch = Epoch(0);

    /// A deletion fails after it has removed the file, and is repeated while a new file gets the
    /// name. The new file must stay.
    #[test]
    fn a_new_file_is_not_deleted_for_the_old_one() {
        let play = |rt: Runtime| {
            let memory = MemoryStorage::new(&rt);
            let faults = FaultStorage::new(Arc::new(memory.clone()), &rt);
            let events = Events::start(&rt, None).unwrap();
            let health = Arc::new(Health::new(&rt, events));
            let guard = Guard::new(Arc::new(faults.clone()), &rt, Judge::Store(health));
            let guard = Arc::new(Wrapped(guard));
            guard.create(EPOCH, "RESERVE").unwrap();
            faults.add(Rule::on(OpKind::Delete, Fault::Fail(StorageErrorKind::Io)));
            guard.delete(EPOCH, "RESERVE").unwrap_err();
            memory.delete(EPOCH, "RESERVE").unwrap();

            let delay = Fault::Delay(Duration::from_secs(1));
            faults.add(Rule::on(OpKind::Delete, delay));
            let again = {
                let guard = guard.clone();
                rt.spawn("again", move || guard.0.delete_again(EPOCH))
                    .unwrap()
            };
            rt.sleep(Duration::from_millis(100));
            guard.create(EPOCH, "RESERVE").unwrap();
            assert_eq!(again.join().unwrap(), ["RESERVE"]);
            let names: Vec<_> = memory.list().unwrap().into_iter().map(|o| o.name).collect();
            assert_eq!(names, ["RESERVE"]);
            assert!(guard.0.delete_again(EPOCH).is_empty());
        };
        for seed in 0..4 {
            if let Err(failure) = sim::run(SimConfig::new(seed), play).result {
                panic!("seed {seed}: {failure}");
            }
        }
    }
}
