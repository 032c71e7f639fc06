//! Snapshots: published numbers that jobs must keep readable.
//!
//! Invariant V6 of RFC 1: a snapshot is registered under the lock under which a job takes the
//! published number and the list of snapshots. So a snapshot that a job does not know has a number
//! that is not below the job's published number. The job keeps everything above that number, and
//! the newest entry of each key at or below it.
//!
//! Threading: the registry has a mutex. A snapshot may be dropped on any thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{Mutex, Runtime};

use super::pinning::PublishedNumber;

/// The published number, and the number of snapshots at each number.
pub(crate) struct SnapshotRegistry {
    published: PublishedNumber,
    held: Mutex<BTreeMap<u64, usize>>,
}

impl SnapshotRegistry {
    pub(crate) fn new(runtime: &Runtime, published: u64) -> Arc<Self> {
        Arc::new(SnapshotRegistry {
            published: PublishedNumber::new(published),
            held: runtime.mutex(BTreeMap::new()),
        })
    }

    /// The newest number whose entries are all readable.
    #[inline]
    pub(crate) fn published(&self) -> u64 {
        self.published.number()
    }

    /// The published number itself, for a read that pins a view with it.
    #[inline]
    pub(crate) fn published_number(&self) -> &PublishedNumber {
        &self.published
    }

    /// Publishes everything up to `number`. Only the leader calls it, in rising order.
    #[inline]
    pub(crate) fn publish(&self, number: u64) {
        self.published.publish(number);
    }

    pub(crate) fn take(self: &Arc<Self>) -> Snapshot {
        let mut held = self.held.lock();
        let number = self.published();
        *held.entry(number).or_insert(0) += 1;
        Snapshot {
            number,
            registry: self.clone(),
        }
    }

    /// The published number and all snapshots, ascending, as one consistent cut (V6).
    pub(crate) fn for_job(&self) -> (u64, Vec<u64>) {
        let held = self.held.lock();
        (self.published(), held.keys().copied().collect())
    }

    pub(crate) fn count(&self) -> usize {
        self.held.lock().values().sum()
    }

    pub(crate) fn oldest(&self) -> Option<u64> {
        self.held.lock().keys().next().copied()
    }
}

/// The state of the store at one moment: reads with a snapshot see exactly the batches that were
/// published before it was taken, in all keyspaces. Old versions are kept while a snapshot needs
/// them, so drop it soon.
///
/// Taking a snapshot costs a lock and an entry in a map.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// let k = store.default_keyspace()?;
/// k.put(b"k", b"then")?;
/// let then = store.snapshot();
/// k.put(b"k", b"now")?;
/// assert_eq!(k.get_at(&then, b"k")?, Some(b"then".to_vec()));
/// # siltstone::Result::Ok(())
/// ```
pub struct Snapshot {
    number: u64,
    registry: Arc<SnapshotRegistry>,
}

impl Snapshot {
    /// The sequence number that the snapshot sees.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn belongs_to(&self, registry: &Arc<SnapshotRegistry>) -> bool {
        Arc::ptr_eq(&self.registry, registry)
    }
}

/// A clone is a snapshot of the same moment. Old versions are kept until the last clone is dropped.
impl Clone for Snapshot {
    fn clone(&self) -> Snapshot {
        // The number is registered as long as `self` lives, so no job can have passed it (V6).
        *self.registry.held.lock().entry(self.number).or_insert(0) += 1;
        Snapshot {
            number: self.number,
            registry: self.registry.clone(),
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let mut held = self.registry.held.lock();
        if let Some(count) = held.get_mut(&self.number) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.number);
            }
        }
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({})", self.number)
    }
}
