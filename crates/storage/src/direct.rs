//! A wrapper that creates and opens all objects past the page cache.
//!
//! It is for parts that take a storage and do not choose how objects are opened (executors, and the
//! code that reads their output). All other calls are forwarded.
//!
//! Threading: as the wrapped storage.

use std::sync::Arc;

use crate::error::Result;
use crate::storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, WriteFile,
};

/// See the module.
pub struct DirectStorage(Arc<dyn Storage>);

impl DirectStorage {
    /// Wraps `storage`.
    pub fn new(storage: Arc<dyn Storage>) -> DirectStorage {
        DirectStorage(storage)
    }
}

impl Storage for DirectStorage {
    fn describe(&self) -> String {
        self.0.describe()
    }
    fn location(&self) -> String {
        self.0.location()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            maps: false,
            ..self.0.capabilities()
        }
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.0.lease(name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.0.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.0.create_direct(epoch, name)
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.0.create_direct(epoch, name)
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.0.recycle(epoch, old, new)
    }
    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        self.0.reopen(epoch, name, position)
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.0.sync_object(epoch, name)
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.0.rewrite_object(epoch, name)
    }
    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        self.0.sync_parents(epoch)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.0.open_direct(name)
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.0.open_direct(name)
    }
    fn check_direct(&self) -> Result<()> {
        self.0.check_direct()
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.0.read_small(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.0.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.0.delete(epoch, name)
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.0.rename(epoch, old, new)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        self.0.import(epoch, name, from, from_name)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.publish(epoch, name, bytes)
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.0.sync_dir(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.0.replace(epoch, name, bytes)
    }
    fn counters(&self) -> Vec<(String, u64)> {
        self.0.counters()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.0.free_bytes()
    }
    fn base(&self) -> Option<&dyn std::any::Any> {
        self.0.base()
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.0.open_objects_max()
    }
    fn inject_lost_names(&self) -> bool {
        self.0.inject_lost_names()
    }
    fn inject_lost_bytes(&self, name: &str) -> bool {
        self.0.inject_lost_bytes(name)
    }
}
