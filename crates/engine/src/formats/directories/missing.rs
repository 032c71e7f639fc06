//! The place of a location of tables whose folder cannot be used: it is gone, its disk is not
//! mounted, or it cannot be read.
//!
//! A store that has such a location is opened all the same if nothing needs what is there. The
//! missing storage stands for the folder, so whatever looks for a table there finds that it is
//! missing, and says where it should be.
//!
//! Whether a folder can be used is found out before its lease is taken ([`why_unusable`]), because
//! taking the lease creates a file: in a mount point without its disk nothing is created.
//!
//! Invariant: nothing is changed, and every call that needs an object fails as `NotFound`.
//!
//! Threading: a plain value, and calls of one task.

use std::any::Any;
use std::sync::Arc;

use siltstone_storage as storage;
use siltstone_storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, StorageError,
    StorageErrorKind, WriteFile,
};

use super::text::{Directories, Owner};
use crate::formats::manifest::read_current;
use crate::formats::names::OWNER;
use crate::types::error::Result;

/// Why the folder `redirect`, the second location of the tables of the store in `root`, cannot be
/// used; `None` if it can be used, or was found missing before. It is not changed.
///
/// It cannot be used if it cannot be listed, if its `OWNER` cannot be read, or if `DIRECTORIES`
/// names it and it has no `OWNER`, as a mount point without its disk. Only a store that is being
/// created may have written the one and not the other.
///
/// # Errors
/// The store's own folder cannot be read, so nothing is known about the other one.
pub(crate) fn why_unusable(root: &dyn Storage, redirect: &dyn Storage) -> Result<Option<String>> {
    if Missing::why(redirect).is_some() {
        return Ok(None);
    }
    // This is read first: a writer that adds the folder meanwhile writes OWNER before.
    let is_listed = match Directories::read(root) {
        Ok(directories) => directories.is_some_and(|d| d.part("redirect_dir").is_some()),
        Err(error) if error.storage().is_some() => return Err(error),
        // The store is refused.
        Err(_) => true,
    };
    if let Err(error) = redirect.list() {
        return Ok(Some(error.to_string()));
    }
    match Owner::read(redirect) {
        Err(error) if error.storage().is_some() => Ok(Some(error.to_string())),
        Ok(None) if is_listed => match read_current(root) {
            Ok(None) => Ok(None),
            Err(error) if error.storage().is_some() => Err(error),
            Ok(Some(_)) | Err(_) => Ok(Some(no_owner())),
        },
        _ => Ok(None),
    }
}

/// Why a folder without `OWNER` counts as missing.
pub(super) fn no_owner() -> String {
    format!("it has no file {OWNER}, so its disk may not be mounted")
}

/// See the module.
pub(crate) struct Missing {
    location: String,
    /// Why the folder cannot be used.
    why: String,
}

/// The lease of a folder that is not there.
struct NoLease;

impl Lease for NoLease {
    fn epoch(&self) -> Epoch {
        Epoch(0)
    }
}

impl SharedLease for NoLease {}

impl Missing {
    /// Stands for the folder `location`, which cannot be used because of `why`.
    pub(crate) fn storage(location: &str, why: &str) -> Arc<dyn Storage> {
        Arc::new(Missing {
            location: location.to_string(),
            why: why.to_string(),
        })
    }

    /// Why the folder cannot be used, if this storage, below all wrappers, stands for one.
    pub(crate) fn why(storage: &dyn Storage) -> Option<&str> {
        let missing = storage.base()?.downcast_ref::<Missing>()?;
        Some(&missing.why)
    }

    fn error(&self, op: &'static str, name: &str) -> StorageError {
        let detail = format!("the folder {} cannot be used: {}", self.location, self.why);
        StorageError::new(StorageErrorKind::NotFound, op, name, detail)
    }
}

impl Storage for Missing {
    fn describe(&self) -> String {
        self.location.clone()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn lease(&self, _name: &str) -> storage::Result<Box<dyn Lease>> {
        Ok(Box::new(NoLease))
    }
    fn lease_shared(&self, _name: &str) -> storage::Result<Box<dyn SharedLease>> {
        Ok(Box::new(NoLease))
    }
    fn create(&self, _epoch: Epoch, name: &str) -> storage::Result<Arc<dyn WriteFile>> {
        Err(self.error("create", name))
    }
    fn recycle(&self, _epoch: Epoch, old: &str, _new: &str) -> storage::Result<Arc<dyn WriteFile>> {
        Err(self.error("recycle", old))
    }
    fn sync_object(&self, _epoch: Epoch, name: &str) -> storage::Result<()> {
        Err(self.error("sync", name))
    }
    fn open(&self, name: &str) -> storage::Result<Arc<dyn ReadFile>> {
        Err(self.error("open", name))
    }
    fn list(&self) -> storage::Result<Vec<ObjectMeta>> {
        Ok(Vec::new())
    }
    fn delete(&self, _epoch: Epoch, name: &str) -> storage::Result<()> {
        Err(self.error("delete", name))
    }
    fn rename(&self, _epoch: Epoch, old: &str, _new: &str) -> storage::Result<()> {
        Err(self.error("rename", old))
    }
    fn publish(&self, _epoch: Epoch, name: &str, _bytes: &[u8]) -> storage::Result<()> {
        Err(self.error("publish", name))
    }
    fn sync_dir(&self, _epoch: Epoch) -> storage::Result<()> {
        // There is no name that could be lost.
        Ok(())
    }
    fn replace(&self, _epoch: Epoch, name: &str, _bytes: &[u8]) -> storage::Result<()> {
        Err(self.error("replace", name))
    }
    fn free_bytes(&self) -> Option<u64> {
        Some(0)
    }
    fn base(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_there_and_every_error_says_why() {
        let storage = Missing::storage("/second", "its disk is gone");
        assert_eq!(Missing::why(&*storage), Some("its disk is gone"));
        assert_eq!(storage.location(), "/second");
        assert!(storage.list().unwrap().is_empty());
        let error = storage.open("x.tbl").err().unwrap();
        assert_eq!(error.kind, StorageErrorKind::NotFound);
        assert!(error.to_string().contains("its disk is gone"), "{error}");
        assert!(error.to_string().contains("/second"), "{error}");
    }
}
