//! The leases of a store's folders: those of the one writer, and those of readers and tools.
//!
//! Invariants:
//! - Each folder has a lease of its own. The store's lease is taken first and given back last.
//! - Each folder counts its own epochs (`env/guard.rs` translates them).
//! - A call that fails keeps no lease. It does not fail if only the folder of the second location
//!   of tables cannot be used.
//!
//! Threading: calls of one task that opens or inspects a store. The leases that they return may be
//! given back by another task.

use siltstone_storage::{Epoch, Lease, SharedLease, StorageError, StorageErrorKind};

use super::Storages;
use super::text::Folder;
use crate::formats::names::LEASE;
use crate::types::error::{Error, Result};

/// The leases of a store: one for its own folder, one for each other folder.
struct Leases {
    others: Vec<Box<dyn Lease>>,
    own: Box<dyn Lease>,
}

impl Lease for Leases {
    fn epoch(&self) -> Epoch {
        self.own.epoch()
    }

    /// Gives back the store's own lease last, as it was taken first. The first failure counts.
    fn release(&self) -> siltstone_storage::Result<()> {
        let others = self.others.iter().map(|lease| lease.release());
        let failed = others
            .filter_map(std::result::Result::err)
            .reduce(|first, _| first);
        self.own.release().and(failed.map_or(Ok(()), Err))
    }
}

/// Takes the writer's lease of every folder, or of none. If that of the second location of tables
/// cannot be taken for another reason than that somebody has it, the folder cannot be used, and the
/// error is returned beside the lease of the others.
pub(crate) fn lease(storages: &Storages) -> Result<(Box<dyn Lease>, Option<StorageError>)> {
    let place = storages.manifest.describe();
    let failed = |e| Error::from(e).context(format!("opening the store {place}"));
    let own = storages.manifest.lease(LEASE).map_err(failed)?;
    let (mut others, mut lost) = (Vec::new(), None);
    for (storage, parts) in storages.folders().into_iter().skip(1) {
        match storage.lease(LEASE) {
            Ok(lease) => others.push(lease),
            Err(error) if parts.redirected && error.kind != StorageErrorKind::LeaseHeld => {
                lost = Some(error);
            }
            Err(error) => return Err(failed(error)),
        }
    }
    Ok(match others.is_empty() {
        true => (own, lost),
        false => (Box::new(Leases { others, own }), lost),
    })
}

/// Shared leases of the folders of a store.
type SharedLeases = Vec<Box<dyn SharedLease>>;

/// Takes a shared lease of every folder. `what` is being done to the store, for messages. The lease
/// of the second location of tables is treated as by [`lease`].
pub(crate) fn lease_shared(
    folders: &[Folder<'_>],
    what: &str,
) -> Result<(SharedLeases, Option<StorageError>)> {
    let place = folders[0].0.describe();
    let (mut leases, mut lost) = (Vec::new(), None);
    for (storage, parts) in folders {
        match storage.lease_shared(LEASE) {
            Ok(lease) => leases.push(lease),
            Err(error) if parts.redirected && error.kind != StorageErrorKind::LeaseHeld => {
                lost = Some(error);
            }
            Err(error) => {
                return Err(Error::from(error).context(format!("{what} the store {place}")));
            }
        }
    }
    Ok((leases, lost))
}
