//! Folders on a disk that hangs.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{Folders, MemoryFolders};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{OpKind, Result, Runtime, Storage};

/// What hangs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Hangs {
    /// Opening a folder.
    Folder,
    /// Calls of this kind.
    Calls(OpKind),
}

/// See the module.
pub struct SlowFolders {
    pub inner: MemoryFolders,
    pub runtime: Runtime,
    pub hangs: Hangs,
    /// How long a call takes that hangs.
    pub delay: Duration,
}

impl Folders for SlowFolders {
    fn root(&self) -> Arc<dyn Storage> {
        self.inner.root()
    }

    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        let folder = FaultStorage::new(self.inner.open(name, create)?, &self.runtime);
        match self.hangs {
            Hangs::Folder => self.runtime.sleep(self.delay),
            Hangs::Calls(kind) => {
                folder.add(Rule::on(kind, Fault::Delay(self.delay)).for_good());
            }
        }
        Ok(Arc::new(folder))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        self.inner.open_scratch(name)
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.inner.remove_scratch_folder(name)
    }

    fn remove_scratch(&self) -> Result<()> {
        self.inner.remove_scratch()
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        self.inner.open_shared(path)
    }

    fn boot(&self) -> Vec<u8> {
        self.inner.boot()
    }
}
