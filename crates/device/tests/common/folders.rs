//! The folders of a device in memory, of which a test changes something.

use std::path::PathBuf;
use std::sync::Arc;

use siltstone_device::{DataFolder, Folders, MemoryFolders};
use siltstone_storage::{Result, Storage};

/// What a test makes of a folder that was opened.
type Change = Box<dyn Fn(Arc<dyn Storage>) -> Arc<dyn Storage> + Send + Sync>;

/// See the module.
pub struct ChangedFolders {
    memory: Arc<MemoryFolders>,
    root: Option<Arc<dyn Storage>>,
    local: Option<DataFolder>,
    change: Change,
    boot: Option<Vec<u8>>,
}

impl ChangedFolders {
    /// These folders, without a change.
    pub fn of(memory: &Arc<MemoryFolders>) -> ChangedFolders {
        ChangedFolders {
            memory: Arc::clone(memory),
            root: None,
            local: None,
            change: Box::new(|folder| folder),
            boot: None,
        }
    }

    /// The device's own folder is this one.
    pub fn with_root(self, root: Arc<dyn Storage>) -> ChangedFolders {
        let root = Some(root);
        ChangedFolders { root, ..self }
    }

    /// Shared folders are those of this machine.
    pub fn with_shared(self, local: Option<DataFolder>) -> ChangedFolders {
        ChangedFolders { local, ..self }
    }

    /// Sessions use what `change` makes of each folder that they open.
    pub fn with_change(
        self,
        change: impl Fn(Arc<dyn Storage>) -> Arc<dyn Storage> + Send + Sync + 'static,
    ) -> ChangedFolders {
        let change = Box::new(change);
        ChangedFolders { change, ..self }
    }

    /// This is the id of the present boot.
    pub fn with_boot(self, boot: Vec<u8>) -> ChangedFolders {
        let boot = Some(boot);
        ChangedFolders { boot, ..self }
    }
}

impl Folders for ChangedFolders {
    fn root(&self) -> Arc<dyn Storage> {
        self.root.clone().unwrap_or_else(|| self.memory.root())
    }

    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        Ok((self.change)(self.memory.open(name, create)?))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        Ok((self.change)(self.memory.open_scratch(name)?))
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.memory.remove_scratch_folder(name)
    }

    fn remove_scratch(&self) -> Result<()> {
        self.memory.remove_scratch()
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        let (folder, path) = match &self.local {
            Some(local) => local.open_shared(path)?,
            None => self.memory.open_shared(path)?,
        };
        Ok(((self.change)(folder), path))
    }

    fn boot(&self) -> Vec<u8> {
        self.boot.clone().unwrap_or_else(|| self.memory.boot())
    }
}
