//! The folders of a device.
//!
//! Threading: shared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone_storage::name::is_object_name;
use siltstone_storage::{
    FileStorage, MemoryStorage, Mutex, Result, Runtime, Storage, StorageError, StorageErrorKind,
};

/// The name of the server's own folder within its data. It begins with a dot, so it is not a name
/// that a host can ask for.
const ROOT: &str = ".device";

/// The name of the folder that contains the scratch folders.
const SCRATCH: &str = ".scratch";

/// The file with the kernel's boot id.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Gives a device its folders.
pub trait Folders: Send + Sync {
    /// The server's own folder, for notes.
    fn root(&self) -> Arc<dyn Storage>;

    /// Opens the folder of this name. If there is none and `create` is set, it is created.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidInput` if the name is not valid, and those of the
    /// storage.
    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>>;

    /// Creates a new, empty folder for one session.
    ///
    /// # Errors
    /// Those of the storage.
    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>>;

    /// Removes the scratch folder of a session that has ended.
    ///
    /// # Errors
    /// Those of the storage.
    fn remove_scratch_folder(&self, name: &str) -> Result<()>;

    /// Removes all scratch folders. They were left by earlier processes.
    ///
    /// # Errors
    /// Those of the storage.
    fn remove_scratch(&self) -> Result<()>;

    /// Opens a folder of this machine by its path. Also returns the path of the folder that was
    /// opened, without symbolic links.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder, and those of the storage.
    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)>;

    /// An id of the present boot of the machine and of its file system. It changes when the machine
    /// is restarted. It is empty if the boot is not known.
    fn boot(&self) -> Vec<u8>;
}

/// The folders in one folder of local files.
pub struct DataFolder {
    path: PathBuf,
    root: Arc<dyn Storage>,
}

impl DataFolder {
    /// The folders in `path`, which is created if it does not exist.
    ///
    /// # Errors
    /// If it cannot be created or opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<DataFolder> {
        let path = path.into();
        let root = Arc::new(FileStorage::open_or_create(path.join(ROOT))?);
        Ok(DataFolder { path, root })
    }
}

fn check_name(name: &str) -> Result<()> {
    if is_object_name(name) {
        return Ok(());
    }
    let detail = "a folder's name has letters, digits, dots, `_` and `-`, does not begin with a \
                  dot, and has at most 100 characters";
    let kind = StorageErrorKind::InvalidInput;
    Err(StorageError::new(kind, "open", name, detail))
}

impl Folders for DataFolder {
    fn root(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.root)
    }

    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        check_name(name)?;
        let path = self.path.join(name);
        Ok(Arc::new(match create {
            true => FileStorage::open_or_create(path)?,
            false => FileStorage::open_existing(path)?,
        }))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        check_name(name)?;
        let path = self.path.join(SCRATCH).join(name);
        Ok(Arc::new(FileStorage::open_or_create(path)?))
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        check_name(name)?;
        remove_all(&self.path.join(SCRATCH).join(name))
    }

    fn remove_scratch(&self) -> Result<()> {
        remove_all(&self.path.join(SCRATCH))
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        let storage = FileStorage::open_existing(path)?;
        let real_path = storage.real_path()?;
        Ok((Arc::new(storage), real_path))
    }

    fn boot(&self) -> Vec<u8> {
        boot_of(Path::new(BOOT_ID), &self.path)
    }
}

/// Removes a folder with everything in it, if it exists.
fn remove_all(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(StorageError::from_io(
            "delete",
            path.display().to_string(),
            &e,
        )),
        _ => Ok(()),
    }
}

/// The kernel's boot id and the file system's device number, or nothing if there is no boot id. The
/// device number alone stays the same when the machine loses power.
fn boot_of(boot_id: &Path, path: &Path) -> Vec<u8> {
    use std::os::unix::fs::MetadataExt;
    let mut boot = std::fs::read(boot_id).unwrap_or_default();
    if boot.is_empty() {
        return boot;
    }
    let device = std::fs::metadata(path).map(|metadata| metadata.dev());
    boot.extend(device.unwrap_or(0).to_le_bytes());
    boot
}

/// The folders of a device on which no store can have a folder. The device's notes are in its own
/// folder, and it finds shared folders and scratch folders as [`DataFolder`] does.
pub struct NoFolders(DataFolder);

impl NoFolders {
    /// A device whose own folder is `path`.
    ///
    /// # Errors
    /// If it cannot be created or opened.
    pub fn open(path: impl Into<PathBuf>) -> Result<NoFolders> {
        DataFolder::open(path).map(NoFolders)
    }
}

impl Folders for NoFolders {
    fn root(&self) -> Arc<dyn Storage> {
        self.0.root()
    }

    fn open(&self, name: &str, _: bool) -> Result<Arc<dyn Storage>> {
        let detail = "the device holds no folders; start it with --data DIR";
        let kind = StorageErrorKind::Unsupported;
        Err(StorageError::new(kind, "open", name, detail))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        self.0.open_scratch(name)
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.0.remove_scratch_folder(name)
    }

    fn remove_scratch(&self) -> Result<()> {
        self.0.remove_scratch()
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        self.0.open_shared(path)
    }

    fn boot(&self) -> Vec<u8> {
        self.0.boot()
    }
}

/// Folders in memory, for tests and simulated runs.
pub struct MemoryFolders {
    runtime: Runtime,
    root: MemoryStorage,
    folders: Mutex<BTreeMap<String, MemoryStorage>>,
    boot: u64,
}

impl MemoryFolders {
    /// Creates an empty set of folders.
    pub fn new(runtime: &Runtime) -> MemoryFolders {
        MemoryFolders {
            root: MemoryStorage::named(runtime, "device-root"),
            folders: runtime.mutex(BTreeMap::new()),
            runtime: runtime.clone(),
            boot: 1,
        }
    }

    /// The folders as they are after an event, such as a kill of the process or a power loss.
    /// `image` applies the effect of the event to each folder. `is_reboot` says whether the machine
    /// was restarted.
    pub fn after(
        &self,
        is_reboot: bool,
        image: impl Fn(&MemoryStorage) -> MemoryStorage,
    ) -> MemoryFolders {
        let folders = self.folders.lock();
        let folders = folders
            .iter()
            .map(|(name, storage)| (name.clone(), image(storage)))
            .collect();
        MemoryFolders {
            runtime: self.runtime.clone(),
            root: image(&self.root),
            folders: self.runtime.mutex(folders),
            boot: self.boot + u64::from(is_reboot),
        }
    }

    /// The folder of this name, which is created if there is none.
    pub fn folder(&self, name: &str) -> MemoryStorage {
        let mut folders = self.folders.lock();
        let new = || MemoryStorage::named(&self.runtime, name);
        folders.entry(name.to_string()).or_insert_with(new).clone()
    }

    /// From now on the folder of this name is this one.
    pub fn set_folder(&self, name: &str, folder: MemoryStorage) {
        self.folders.lock().insert(name.to_string(), folder);
    }

    /// The folders that exist now, with their names. Folders for lent work are among them.
    pub fn all(&self) -> Vec<(String, MemoryStorage)> {
        let folders = self.folders.lock();
        let all = folders.iter();
        all.map(|(name, storage)| (name.clone(), storage.clone()))
            .collect()
    }
}

impl Folders for MemoryFolders {
    fn root(&self) -> Arc<dyn Storage> {
        Arc::new(self.root.clone())
    }

    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        check_name(name)?;
        if !create && !self.folders.lock().contains_key(name) {
            let kind = StorageErrorKind::NotFound;
            let detail = "there is no such folder";
            return Err(StorageError::new(kind, "open", name, detail));
        }
        Ok(Arc::new(self.folder(name)))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        self.open(name, true)
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.folders.lock().remove(name);
        Ok(())
    }

    fn remove_scratch(&self) -> Result<()> {
        let mut folders = self.folders.lock();
        folders.retain(|name, _| !name.starts_with("scratch-"));
        Ok(())
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        Ok((self.open(path, false)?, path.into()))
    }

    fn boot(&self) -> Vec<u8> {
        self.boot.to_le_bytes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_without_an_id_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        let boot_id = dir.path().join("boot_id");
        assert!(boot_of(&boot_id, dir.path()).is_empty());
        std::fs::write(&boot_id, b"").unwrap();
        assert!(boot_of(&boot_id, dir.path()).is_empty());
        std::fs::write(&boot_id, b"a boot").unwrap();
        let boot = boot_of(&boot_id, dir.path());
        assert!(boot.starts_with(b"a boot"), "{boot:?}");
        assert_eq!(boot.len(), 14);
    }
}
