//! The storage's calls on a folder of the local file system.
//!
//! [`FileStorage`] checks names, opens files as the readers and writers of the modules beside this
//! one, and takes leases.
//!
//! Invariants: see the parent module.
//!
//! Threading: everything may be called from any thread.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use super::folder::Folder;
use super::own_name::temp_name;
use super::place::{create_dir_durably, sync_names_of};
use super::{direct, lease, read, write};
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::name::{LEASE_PREFIX, check_lease_name, check_object_name, is_object_name};
use crate::storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, WriteFile,
    check_position, copy_object,
};

/// The number of bytes that [`FileStorage`] rewrites in place at once.
pub(super) const REWRITE_BYTES: usize = 1 << 20;

/// The number of files that this process may have open at once. `None` if there is no limit.
pub fn open_files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// A folder of the local file system as a [`Storage`].
#[derive(Debug)]
pub struct FileStorage {
    folder: Folder,
}

impl FileStorage {
    /// Opens the folder `path`. Creates it durably if it does not exist.
    ///
    /// # Errors
    /// If the folder cannot be created or opened, or if `path` is a file.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<FileStorage> {
        let path = path.as_ref();
        create_dir_durably(path)?;
        FileStorage::open_existing(path)
    }

    /// Opens the folder `path`. Writes nothing.
    ///
    /// # Errors
    /// `NotFound` if there is no such folder. Other kinds if it cannot be opened.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<FileStorage> {
        let folder = Folder::open(path.as_ref())?;
        Ok(FileStorage { folder })
    }

    /// The folder's path as it was given.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The path of the opened folder without symbolic links.
    ///
    /// # Errors
    /// If the system does not tell it.
    pub fn real_path(&self) -> Result<PathBuf> {
        self.folder.real_path()
    }
}

impl Storage for FileStorage {
    fn describe(&self) -> String {
        self.path().display().to_string()
    }

    fn location(&self) -> String {
        // If the path can no longer be followed, the answer is at least not relative.
        let path = std::fs::canonicalize(self.path())
            .or_else(|_| std::path::absolute(self.path()))
            .unwrap_or_else(|_| self.path().to_path_buf());
        path.display().to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            maps: true,
            links: true,
            survives_kill: true,
            pipelined: false,
            has_path: true,
        }
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        check_lease_name(name)?;
        let file_name = format!("{LEASE_PREFIX}{name}");
        let flags = OFlags::RDWR | OFlags::CREATE;
        loop {
            let file = self.folder.open_at("lease", &file_name, flags)?;
            let lease = lease::take(file, &self.folder.shown(&file_name))?;
            if self.folder.has_name(lease.file(), &file_name)? {
                self.folder.delete_temps()?;
                return Ok(Box::new(lease));
            }
        }
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        check_lease_name(name)?;
        let file_name = format!("{LEASE_PREFIX}{name}");
        let shown = self.folder.shown(&file_name);
        let open = |flags| self.folder.open_at("lease_shared", &file_name, flags);
        let file = match open(OFlags::RDONLY) {
            // The folder was copied without the lease file. Readers need the file to keep a writer
            // out, except where nobody can write.
            Err(e) if e.kind == StorageErrorKind::NotFound => {
                match open(OFlags::RDONLY | OFlags::CREATE) {
                    Err(_) if self.folder.is_mounted_read_only() => None,
                    file => Some(file?),
                }
            }
            file => Some(file?),
        };
        let lease = lease::share(file, &shown)?;
        match lease.file() {
            Some(file) if !self.folder.has_name(file, &file_name)? => self.lease_shared(name),
            _ => Ok(Box::new(lease)),
        }
    }

    fn create(&self, _epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("create", name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.folder.open_at("create", name, flags)?;
        let shown = self.folder.shown(name);
        Ok(Arc::new(write::FileWriter::new(name, shown, file, 0)))
    }

    fn create_direct(&self, _epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("create", name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let (file, alignment) = self.folder.open_direct_at("create", name, flags)?;
        let shown = self.folder.shown(name);
        Ok(Arc::new(direct::DirectWriter::new(
            name, shown, file, alignment,
        )))
    }

    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        check_object_name("open", name)?;
        let (file, alignment) = self.folder.open_direct_at("open", name, OFlags::RDONLY)?;
        let shown = self.folder.shown(name);
        Ok(Arc::new(direct::DirectReader::new(
            name, shown, file, alignment,
        )?))
    }

    fn check_direct(&self) -> Result<()> {
        // Any object shows whether this works. Only an empty folder needs a temporary file for it.
        if let Some(object) = self.list()?.first() {
            self.folder
                .open_direct_at("open", &object.name, OFlags::RDONLY)?;
            return Ok(());
        }
        let temp = temp_name("direct");
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = self.folder.open_direct_at("create", &temp, flags);
        // The file may have been created even if the flag was refused.
        self.folder.delete_temp(&temp);
        opened.map(drop)
    }

    fn recycle(&self, _epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("recycle", old)?;
        check_object_name("recycle", new)?;
        // The file is opened first, so that nothing can fail after the rename.
        let file = self.folder.open_at("recycle", old, OFlags::RDWR)?;
        let len = file
            .metadata()
            .map_err(|e| StorageError::from_io("recycle", self.folder.shown(old), &e))?
            .len();
        self.folder.rename_to_free_name("recycle", old, new)?;
        Ok(Arc::new(write::FileWriter::new(
            new,
            self.folder.shown(new),
            file,
            len,
        )))
    }

    fn reopen(&self, _epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        check_object_name("reopen", name)?;
        let file = self.folder.open_at("reopen", name, OFlags::RDWR)?;
        let shown = self.folder.shown(name);
        let metadata = file.metadata();
        let len = metadata
            .map_err(|e| StorageError::from_io("reopen", &shown, &e))?
            .len();
        check_position(&shown, position, len)?;
        let file = write::FileWriter::new(name, shown, file, len);
        Ok(Arc::new(file.at_position(position)))
    }

    fn sync_object(&self, _epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("sync_object", name)?;
        let file = self.folder.open_at("sync_object", name, OFlags::RDONLY)?;
        file.sync_all()
            .map_err(|e| StorageError::from_io("sync_object", self.folder.shown(name), &e))
    }

    fn rewrite_object(&self, _epoch: Epoch, name: &str) -> Result<()> {
        const OP: &str = "rewrite_object";
        check_object_name(OP, name)?;
        let file = self.folder.open_at(OP, name, OFlags::RDWR)?;
        let failed = |e: io::Error| StorageError::from_io(OP, self.folder.shown(name), &e);
        let len = file.metadata().map_err(failed)?.len();
        let mut buf = vec![0; REWRITE_BYTES.min(len as usize)];
        let mut at = 0;
        while at < len {
            let bytes = (len - at).min(REWRITE_BYTES as u64) as usize;
            let written = file
                .read_exact_at(&mut buf[..bytes], at)
                .and_then(|()| file.write_all_at(&buf[..bytes], at));
            match written {
                Ok(()) => at += bytes as u64,
                // A file system that never writes in place needs free space for this. Without any,
                // only the bytes that are still waiting to be written can be made durable.
                Err(e) if e.kind() == io::ErrorKind::StorageFull => break,
                Err(e) => return Err(failed(e)),
            }
        }
        file.sync_all().map_err(failed)
    }

    fn sync_parents(&self, _epoch: Epoch) -> Result<()> {
        sync_names_of(self.path())
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        check_object_name("open", name)?;
        let file = self.folder.open_at("open", name, OFlags::RDONLY)?;
        Ok(Arc::new(read::FileReader::new(
            name,
            self.folder.shown(name),
            file,
        )?))
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        let mut objects = Vec::new();
        self.folder.for_each_file(|name, len| {
            if is_object_name(name) {
                objects.push(ObjectMeta {
                    name: name.to_owned(),
                    len,
                });
            }
        })?;
        objects.sort_unstable();
        Ok(objects)
    }

    fn delete(&self, _epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("delete", name)?;
        self.folder.delete(name)
    }

    fn rename(&self, _epoch: Epoch, old: &str, new: &str) -> Result<()> {
        check_object_name("rename", old)?;
        check_object_name("rename", new)?;
        self.folder.rename("rename", old, new)
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        check_object_name("import", name)?;
        check_object_name("import", from_name)?;
        if let Some(other) = from.base().and_then(|base| base.downcast_ref::<Self>())
            && self.folder.link("import", name, &other.folder, from_name)?
        {
            return Ok(());
        }
        copy_object(self, epoch, name, from, from_name)
    }

    fn publish(&self, _epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        check_object_name("publish", name)?;
        self.folder.set("publish", name, bytes, false)
    }

    fn base(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn sync_dir(&self, _epoch: Epoch) -> Result<()> {
        self.folder.sync("sync_dir")
    }

    fn replace(&self, _epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        check_object_name("replace", name)?;
        self.folder.set("replace", name, bytes, true)?;
        self.folder.sync("replace")
    }

    fn free_bytes(&self) -> Option<u64> {
        self.folder.free_bytes()
    }

    fn open_objects_max(&self) -> Option<u64> {
        open_files_max()
    }
}
