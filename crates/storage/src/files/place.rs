//! Operations on the path of a folder: creating, renaming, listing and deleting whole folders,
//! durably.
//!
//! Invariants: a call that creates or renames a folder returns only when its name is durable in the
//! folder above it.
//!
//! Threading: everything may be called from any thread.

use std::fs::File;
use std::io;
use std::path::Path;

use super::own_name::is_own_name;
use crate::error::{Result, StorageError, StorageErrorKind};

/// The names of everything in the folder `path`, sorted. `None` if there is no such folder. In a
/// name that is not UTF-8, what cannot be decoded is replaced.
///
/// # Errors
/// `InvalidInput` if `path` is not a folder. Other kinds if it cannot be read.
pub fn folder_entries(path: &Path) -> Result<Option<Vec<String>>> {
    let fail = |e: &io::Error| StorageError::from_io("list", path.display().to_string(), e);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            return Err(StorageError::new(
                StorageErrorKind::InvalidInput,
                "list",
                path.display().to_string(),
                "this is not a directory",
            ));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(fail(&e)),
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| fail(&e))? {
        let name = entry.map_err(|e| fail(&e))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(Some(names))
}

/// Renames the folder `old` to `new`, durably. `new` must be free or an empty folder. Storages that
/// are open in the folder follow it.
///
/// # Errors
/// If the system refuses the rename, the folder keeps its old name. If only the last sync fails, it
/// may have either name. If there are no file handles left (`TooManyOpen`), it keeps its old name.
pub fn rename_folder(old: &Path, new: &Path) -> Result<()> {
    let parents = [Parent::open(new)?, Parent::open(old)?];
    std::fs::rename(old, new)
        .map_err(|e| StorageError::from_io("rename_folder", new.display().to_string(), &e))?;
    parents.iter().try_for_each(Parent::sync)
}

/// Deletes the folder `path` if it contains only files that a storage makes for itself
/// ([`is_own_name`]). The caller holds its leases.
///
/// # Errors
/// If the folder contains anything else, or if the system refuses.
pub fn remove_folder(path: &Path) -> Result<()> {
    let fail = |e: &io::Error| StorageError::from_io("remove", path.display().to_string(), e);
    for name in folder_entries(path)?.unwrap_or_default() {
        if is_own_name(&name) {
            std::fs::remove_file(path.join(name)).map_err(|e| fail(&e))?;
        }
    }
    std::fs::remove_dir(path).map_err(|e| fail(&e))?;
    sync_parent(path)
}

/// Creates the folder `path` and the missing folders above it. Makes the name of each new folder
/// durable in the folder above it.
pub(super) fn create_dir_durably(path: &Path) -> Result<()> {
    let fail = |p: &Path, e: &io::Error| {
        StorageError::from_io("create_directory", p.display().to_string(), e)
    };
    let mut missing = Vec::new();
    let mut at = path;
    while !at.as_os_str().is_empty() {
        match std::fs::metadata(at) {
            Ok(_) => break,
            Err(e) if e.kind() == io::ErrorKind::NotFound => missing.push(at),
            Err(e) => return Err(fail(at, &e)),
        }
        match at.parent() {
            Some(parent) => at = parent,
            None => break,
        }
    }
    for dir in missing.iter().rev() {
        match std::fs::create_dir(dir) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                match dangling_link("create_directory", dir) {
                    Some(error) => return Err(error),
                    // Another process created it first.
                    None => continue,
                }
            }
            Err(e) => return Err(fail(dir, &e)),
        }
        if let Err(error) = sync_parent(dir) {
            // The system reports a failed sync once, so the folder must not stay: the next attempt
            // creates it again.
            let _ = std::fs::remove_dir(dir);
            return Err(error);
        }
    }
    Ok(())
}

/// Makes the names durable that lead to the folder `path`: its own name, the names of the folders
/// above it on the same file system, and the name of a link in `path`. The folders above a mount
/// point existed when the file system was mounted.
pub(super) fn sync_names_of(path: &Path) -> Result<()> {
    let fail = |e: io::Error| StorageError::from_io("sync_parents", path.display().to_string(), &e);
    let tolerant = |folder: &Path| match File::open(folder).and_then(|f| f.sync_all()) {
        // A folder that may not be opened has no name that this process made. A folder that cannot
        // be written has no name to lose.
        Err(e)
            if !matches!(
                e.kind(),
                io::ErrorKind::PermissionDenied
                    | io::ErrorKind::ReadOnlyFilesystem
                    | io::ErrorKind::InvalidInput
                    | io::ErrorKind::Unsupported
            ) =>
        {
            let shown = folder.display().to_string();
            Err(StorageError::from_io("sync_parents", shown, &e))
        }
        _ => Ok(()),
    };
    let full = std::fs::canonicalize(path).map_err(fail)?;
    let named = std::path::absolute(path).map_err(fail)?;
    if named != full
        && let Some(parent) = named.parent()
    {
        tolerant(parent)?;
    }
    let device = |folder: &Path| rustix::fs::stat(folder).map(|s| s.st_dev).ok();
    let own = device(&full);
    for folder in full.ancestors().skip(1) {
        tolerant(folder)?;
        if device(folder) != own {
            break;
        }
    }
    Ok(())
}

/// The folder that contains another folder.
struct Parent<'a> {
    path: &'a Path,
    folder: File,
}

impl<'a> Parent<'a> {
    fn open(path: &'a Path) -> Result<Parent<'a>> {
        let path = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let folder = File::open(path).map_err(|e| Parent::error(path, &e))?;
        Ok(Parent { path, folder })
    }

    fn sync(&self) -> Result<()> {
        self.folder
            .sync_all()
            .map_err(|e| Parent::error(self.path, &e))
    }

    fn error(path: &Path, error: &io::Error) -> StorageError {
        StorageError::from_io("sync_dir", path.display().to_string(), error)
    }
}

fn sync_parent(path: &Path) -> Result<()> {
    Parent::open(path)?.sync()
}

/// The error for a path that does not exist because it is a link to something that does not exist.
/// `None` if it is not a link.
pub(super) fn dangling_link(op: &'static str, path: &Path) -> Option<StorageError> {
    let target = std::fs::read_link(path).ok()?;
    let detail = format!(
        "this is a symbolic link to {}, which is not there; create that folder (is its disk \
         mounted?), or remove the link",
        target.display()
    );
    let shown = path.display().to_string();
    Some(StorageError::new(
        StorageErrorKind::InvalidInput,
        op,
        shown,
        detail,
    ))
}
