//! A local directory as a storage.
//!
//! Invariants: nothing is written before a lease is taken (creating the directory itself aside); all names are
//! resolved relative to the directory opened at the start, so a renamed directory stays the same storage; temporary
//! files (`.<name>.tmp`) and lease files (`LOCK.<name>`) are never listed; a lease file is deleted only by [`remove_folder`], as the
//! last thing that its holder does there, and a lease counts only while its file has its name.
//! A sync is `fdatasync` (on macOS `F_FULLFSYNC`), of the directory `fsync`.
//!
//! Only the file system's own errors are reported; the epoch is not checked here, because a lock on an open file
//! cannot expire while its holder lives.
//!
//! Threading: everything may be called from any thread.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::name::{LEASE_PREFIX, check_lease_name, check_object_name, is_object_name};
use crate::planted::{self, Bug};
use crate::storage::{
    Capabilities, Epoch, Lease, ObjectMeta, ReadFile, SharedLease, Storage, WriteFile, copy_object,
};

mod direct;
mod lease;
mod mapping;
mod read;
mod write;

pub use write::ignore_file_size_signal;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod write_map;

#[cfg(test)]
mod tests;

/// A file of any name, wherever it lies, to be read: for tools that look at single files. Nothing is locked.
///
/// # Errors
/// When it cannot be opened, or is no regular file.
pub fn open_file(path: impl AsRef<Path>) -> Result<Arc<dyn ReadFile>> {
    let path = path.as_ref();
    let shown = path.display().to_string();
    let failed = |e: io::Error| StorageError::from_io("open", &shown, &e);
    // A pipe would make the open itself wait for its other end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(StorageError::new(
            StorageErrorKind::InvalidInput,
            "open",
            shown,
            "this is no regular file",
        ));
    }
    let file = File::open(path).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Arc::new(read::FileReader::new(&name, shown.clone(), file)?))
}

const TEMP_SUFFIX: &str = ".tmp";

/// How much is written over itself at once, in bytes.
const REWRITE_BYTES: usize = 1 << 20;

/// A directory of the local file system as a [`Storage`].
#[derive(Debug)]
pub struct FileStorage {
    path: PathBuf,
    dir: File,
}

impl FileStorage {
    /// Opens the directory `path`; creates it (durably) if it is not there.
    ///
    /// # Errors
    /// When the directory cannot be created or opened, or is a file.
    pub fn open_or_create(path: impl AsRef<Path>) -> Result<FileStorage> {
        let path = path.as_ref();
        create_dir_durably(path)?;
        FileStorage::open_existing(path)
    }

    /// Opens the directory `path`. Writes nothing.
    ///
    /// # Errors
    /// `NotFound` when there is no such directory; others when it cannot be opened.
    pub fn open_existing(path: impl AsRef<Path>) -> Result<FileStorage> {
        let path = path.as_ref();
        let shown = path.display().to_string();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = match retry(|| rustix::fs::openat(rustix::fs::CWD, path, flags, Mode::empty())) {
            Ok(dir) => dir,
            Err(Errno::NOENT) => {
                if let Some(error) = dangling_link("open_directory", path) {
                    return Err(error);
                }
                let detail = "there is no such directory";
                return Err(StorageError::new(
                    StorageErrorKind::NotFound,
                    "open_directory",
                    shown,
                    detail,
                ));
            }
            Err(Errno::NOTDIR) => {
                let detail = "this is not a directory; a store is a directory of its own";
                return Err(StorageError::new(
                    StorageErrorKind::InvalidInput,
                    "open_directory",
                    shown,
                    detail,
                ));
            }
            Err(e) => return Err(StorageError::from_io("open_directory", shown, &e.into())),
        };
        Ok(FileStorage {
            path: path.to_path_buf(),
            dir: File::from(dir),
        })
    }

    /// The directory's path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn error(&self, op: &'static str, name: &str, error: Errno) -> StorageError {
        StorageError::from_io(op, self.shown(name), &io::Error::from(error))
    }

    fn open_at(&self, op: &'static str, name: &str, flags: OFlags) -> Result<File> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        // Without NONBLOCK the open of a pipe that lies in a file's place waits for its other end; for files it means nothing.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let other_kind = |kind: &str| {
            let detail = format!(
                "{kind} lies where a file of the store belongs; move it away, and put the file back from a copy"
            );
            StorageError::new(StorageErrorKind::Io, op, self.shown(name), detail)
        };
        let fd =
            retry(|| rustix::fs::openat(&self.dir, name, flags, mode)).map_err(|e| match e {
                Errno::ISDIR => other_kind("a directory"),
                Errno::LOOP => other_kind("a symbolic link"),
                Errno::NXIO => other_kind("a socket, a pipe or a device"),
                // It has no other meaning for the flags that we use.
                #[cfg(any(target_os = "linux", target_os = "android"))]
                Errno::INVAL if flags.contains(OFlags::DIRECT) => self.not_direct(op, name),
                // A call that creates a file does not need the file, so the folder is missing.
                Errno::NOENT if flags.contains(OFlags::CREATE) => StorageError::new(
                    StorageErrorKind::Removed,
                    op,
                    self.shown(name),
                    format!("the folder {} was removed", self.path.display()),
                ),
                // The name is taken; by what decides what can be done about it.
                Errno::EXIST => match self.kind_of(name) {
                    Some(FileType::Directory) => other_kind("a directory"),
                    Some(FileType::Symlink) => other_kind("a symbolic link"),
                    Some(FileType::RegularFile) | None => self.error(op, name, e),
                    Some(_) => other_kind("a socket, a pipe or a device"),
                },
                e => self.error(op, name, e),
            })?;
        let file = File::from(fd);
        let kind = file
            .metadata()
            .map_err(|e| StorageError::from_io(op, self.shown(name), &e))?
            .file_type();
        match kind {
            kind if kind.is_file() => Ok(file),
            kind if kind.is_dir() => Err(other_kind("a directory")),
            _ => Err(other_kind("a pipe or a device")),
        }
    }

    /// Opens a file past the page cache, with the alignment that it wants.
    fn open_direct_at(&self, op: &'static str, name: &str, flags: OFlags) -> Result<(File, usize)> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let flags = flags | OFlags::DIRECT;
        let file = self.open_at(op, name, flags)?;
        match direct::alignment_of(&file) {
            Some(alignment) => Ok((file, alignment)),
            None => Err(self.not_direct(op, name)),
        }
    }

    fn not_direct(&self, op: &'static str, name: &str) -> StorageError {
        let detail = "its file system cannot read and write past the page cache (O_DIRECT)";
        StorageError::new(StorageErrorKind::Unsupported, op, self.shown(name), detail)
    }

    /// What has the name; `None` for nothing, or what cannot be looked at.
    fn kind_of(&self, name: &str) -> Option<FileType> {
        let stat = retry(|| rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// Whether `file`, opened by this name, still has it: a lease of a file that was deleted keeps nobody out.
    fn has_name(&self, file: &File, name: &str) -> Result<bool> {
        let own = rustix::fs::fstat(file).map_err(|e| self.error("lease", name, e))?;
        match retry(|| rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(self.error("lease", name, e)),
        }
    }

    fn fsync_dir(&self, op: &'static str) -> Result<()> {
        self.dir
            .sync_all()
            .map_err(|e| StorageError::from_io(op, self.path.display().to_string(), &e))
    }

    /// Renames without replacing.
    fn rename_to_free_name(&self, op: &'static str, old: &str, new: &str) -> Result<()> {
        #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
        match retry(|| {
            rustix::fs::renameat_with(
                &self.dir,
                old,
                &self.dir,
                new,
                rustix::fs::RenameFlags::NOREPLACE,
            )
        }) {
            Ok(()) => return Ok(()),
            // A file system or kernel without the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(Errno::EXIST) => return Err(self.error(op, new, Errno::EXIST)),
            Err(e) => return Err(self.error(op, old, e)),
        }
        // Under the one writer's lease nobody else takes the name between look and rename.
        match retry(|| rustix::fs::statat(&self.dir, new, AtFlags::SYMLINK_NOFOLLOW)) {
            Err(Errno::NOENT) => {}
            Ok(_) => return Err(self.error(op, new, Errno::EXIST)),
            Err(e) => return Err(self.error(op, new, e)),
        }
        retry(|| rustix::fs::renameat(&self.dir, old, &self.dir, new))
            .map_err(|e| self.error(op, old, e))
    }

    /// Sets the object `name` through a temporary file; whether its bytes are durable before it gets the name is the caller's choice.
    fn set_object(&self, op: &'static str, name: &str, bytes: &[u8], sync: bool) -> Result<()> {
        check_object_name(op, name)?;
        let temp = format!(".{name}{TEMP_SUFFIX}");
        let file = self.open_at(op, &temp, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        let written = file
            .write_all_at(bytes, 0)
            .and_then(|()| if sync { file.sync_all() } else { Ok(()) })
            .map_err(|e| StorageError::from_io(op, self.shown(name), &e))
            .and_then(|()| {
                retry(|| rustix::fs::renameat(&self.dir, temp.as_str(), &self.dir, name))
                    .map_err(|e| self.error(op, name, e))
            });
        if written.is_err() {
            let _ = retry(|| rustix::fs::unlinkat(&self.dir, temp.as_str(), AtFlags::empty()));
        }
        written
    }

    fn is_mounted_read_only(&self) -> bool {
        rustix::fs::fstatvfs(&self.dir)
            .is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// Calls `f` with the name of every regular file and its length.
    fn for_each_file(&self, mut f: impl FnMut(&str, u64)) -> Result<()> {
        let fail =
            |e: Errno| StorageError::from_io("list", self.path.display().to_string(), &e.into());
        for entry in rustix::fs::Dir::read_from(&self.dir).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            match retry(|| {
                rustix::fs::statat(&self.dir, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)
            }) {
                Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => {
                    f(name, u64::try_from(stat.st_size).unwrap_or(0));
                }
                // Deleted since, or no regular file.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.error("list", name, e)),
            }
        }
        Ok(())
    }

    /// Deletes what a crash in the middle of `replace` left behind. Failing is harmless: the next `replace` of that
    /// name overwrites it.
    fn clean_temps(&self) -> Result<()> {
        let mut temps = Vec::new();
        self.for_each_file(|name, _| {
            if is_own_name(name) && !name.starts_with(LEASE_PREFIX) {
                temps.push(name.to_owned());
            }
        })?;
        for temp in temps {
            let _ = retry(|| rustix::fs::unlinkat(&self.dir, temp.as_str(), AtFlags::empty()));
        }
        Ok(())
    }
}

/// The names of everything in the folder `path`, sorted; `None` if there is none. Names that are no UTF-8 are shown as well as they can be.
///
/// # Errors
/// `InvalidInput` if it is something else than a folder; others when it cannot be read.
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

/// Whether a storage makes such files for itself: leases, and what a crash leaves of an atomic replacement.
pub fn is_own_name(name: &str) -> bool {
    let temporary = name
        .strip_prefix('.')
        .and_then(|n| n.strip_suffix(TEMP_SUFFIX));
    temporary.is_some_and(is_object_name) || name.starts_with(LEASE_PREFIX)
}

/// Gives the folder `old` the name `new`, which must be free or an empty folder, durably. Open storages follow it.
///
/// # Errors
/// When the system refuses; the folder then has its old name, or, if only the last sync failed, may
/// have either. Without file handles (`TooManyOpen`) it has its old name.
pub fn rename_folder(old: &Path, new: &Path) -> Result<()> {
    let parents = [Parent::open(new)?, Parent::open(old)?];
    std::fs::rename(old, new)
        .map_err(|e| StorageError::from_io("rename_folder", new.display().to_string(), &e))?;
    parents.iter().try_for_each(Parent::sync)
}

/// Deletes the folder `path` if nothing is in it but files of [`is_own_name`]. The caller holds its leases.
///
/// # Errors
/// When something else is in it, or the system refuses.
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

/// Makes the names durable that lead to the folder `path`: its own, those of the folders above it as far as its file system goes, and that of a link
/// by which it was named. What lies above a mounted file system was there when it was mounted.
fn sync_names_of(path: &Path) -> Result<()> {
    let fail = |e: io::Error| StorageError::from_io("sync_place", path.display().to_string(), &e);
    let tolerant = |folder: &Path| match File::open(folder).and_then(|f| f.sync_all()) {
        // Where we may not look we have made no name; where nothing can be written there is none to lose.
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
            Err(StorageError::from_io("sync_place", shown, &e))
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

/// The folder that another folder or file lies in.
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

/// Says of a path that leads nowhere that it is a link, if it is one.
fn dangling_link(op: &'static str, path: &Path) -> Option<StorageError> {
    let target = std::fs::read_link(path).ok()?;
    let detail = format!(
        "this is a symbolic link to {}, which is not there; create that folder (is its disk mounted?), or remove the link",
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

/// Repeats a system call that a signal interrupted.
fn retry<T>(
    mut call: impl FnMut() -> std::result::Result<T, Errno>,
) -> std::result::Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Creates `path` and what is missing above it, and makes each new entry durable in its parent.
fn create_dir_durably(path: &Path) -> Result<()> {
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
                    // Somebody else was faster.
                    None => continue,
                }
            }
            Err(e) => return Err(fail(dir, &e)),
        }
        if let Err(error) = sync_parent(dir) {
            // The failure is told once: whoever tries again makes it anew.
            let _ = std::fs::remove_dir(dir);
            return Err(error);
        }
    }
    Ok(())
}

impl Storage for FileStorage {
    fn describe(&self) -> String {
        self.path.display().to_string()
    }

    fn location(&self) -> String {
        // Where the path cannot be followed any more, it is at least not relative.
        let path = std::fs::canonicalize(&self.path)
            .or_else(|_| std::path::absolute(&self.path))
            .unwrap_or_else(|_| self.path.clone());
        path.display().to_string()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            maps: true,
            links: true,
            survives_kill: true,
        }
    }

    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        check_lease_name(name)?;
        let file_name = format!("{LEASE_PREFIX}{name}");
        loop {
            let file = self.open_at("lease", &file_name, OFlags::RDWR | OFlags::CREATE)?;
            let lease = lease::take(file, &self.shown(&file_name))?;
            if self.has_name(lease.file(), &file_name)? {
                self.clean_temps()?;
                return Ok(Box::new(lease));
            }
        }
    }

    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        check_lease_name(name)?;
        let file_name = format!("{LEASE_PREFIX}{name}");
        let shown = self.shown(&file_name);
        let file = match self.open_at("lease_shared", &file_name, OFlags::RDONLY) {
            // A folder that was copied without it. Readers need it to keep a writer out ...
            Err(e) if e.kind == StorageErrorKind::NotFound => {
                match self.open_at("lease_shared", &file_name, OFlags::RDONLY | OFlags::CREATE) {
                    // ... except where nobody can write.
                    Err(_) if self.is_mounted_read_only() => None,
                    file => Some(file?),
                }
            }
            file => Some(file?),
        };
        let lease = lease::share(file, &shown)?;
        match lease.file() {
            Some(file) if !self.has_name(file, &file_name)? => self.lease_shared(name),
            _ => Ok(Box::new(lease)),
        }
    }

    fn create(&self, _epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("create", name)?;
        let file = self.open_at("create", name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        Ok(Arc::new(write::FileWriter::new(
            name,
            self.shown(name),
            file,
            0,
        )))
    }

    fn create_direct(&self, _epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("create", name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let (file, alignment) = self.open_direct_at("create", name, flags)?;
        let shown = self.shown(name);
        Ok(Arc::new(direct::DirectWriter::new(
            name, shown, file, alignment,
        )))
    }

    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        check_object_name("open", name)?;
        let (file, alignment) = self.open_direct_at("open", name, OFlags::RDONLY)?;
        let shown = self.shown(name);
        Ok(Arc::new(direct::DirectReader::new(
            name, shown, file, alignment,
        )?))
    }

    fn check_direct(&self) -> Result<()> {
        // An object that is there shows it; only in an empty folder something must be made for it.
        if let Some(object) = self.list()?.first() {
            self.open_direct_at("open", &object.name, OFlags::RDONLY)?;
            return Ok(());
        }
        let temp = format!(".direct{TEMP_SUFFIX}");
        let flags = OFlags::RDWR | OFlags::CREATE;
        let opened = self.open_direct_at("create", &temp, flags);
        // Where the flag is refused the file is there all the same.
        let _ = retry(|| rustix::fs::unlinkat(&self.dir, temp.as_str(), AtFlags::empty()));
        opened.map(drop)
    }

    fn recycle(&self, _epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        check_object_name("recycle", old)?;
        check_object_name("recycle", new)?;
        // Opened first: after the rename nothing can fail any more.
        let file = self.open_at("recycle", old, OFlags::RDWR)?;
        let len = file
            .metadata()
            .map_err(|e| StorageError::from_io("recycle", self.shown(old), &e))?
            .len();
        self.rename_to_free_name("recycle", old, new)?;
        Ok(Arc::new(write::FileWriter::new(
            new,
            self.shown(new),
            file,
            len,
        )))
    }

    fn sync_object(&self, _epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("sync_object", name)?;
        let file = self.open_at("sync_object", name, OFlags::RDONLY)?;
        file.sync_all()
            .map_err(|e| StorageError::from_io("sync_object", self.shown(name), &e))
    }

    fn rewrite_object(&self, _epoch: Epoch, name: &str) -> Result<()> {
        const OP: &str = "rewrite_object";
        check_object_name(OP, name)?;
        let file = self.open_at(OP, name, OFlags::RDWR)?;
        let failed = |e: io::Error| StorageError::from_io(OP, self.shown(name), &e);
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
                // A file system that never writes in place wants room for this; without any, what is still waiting to be written is all that
                // can be made durable.
                Err(e) if e.kind() == io::ErrorKind::StorageFull => break,
                Err(e) => return Err(failed(e)),
            }
        }
        file.sync_all().map_err(failed)
    }

    fn sync_place(&self, _epoch: Epoch) -> Result<()> {
        sync_names_of(&self.path)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        check_object_name("open", name)?;
        let file = self.open_at("open", name, OFlags::RDONLY)?;
        Ok(Arc::new(read::FileReader::new(
            name,
            self.shown(name),
            file,
        )?))
    }

    fn list(&self) -> Result<Vec<ObjectMeta>> {
        let mut objects = Vec::new();
        self.for_each_file(|name, len| {
            if is_object_name(name) {
                objects.push(ObjectMeta {
                    name: name.to_owned(),
                    len,
                });
            }
        })?;
        objects.sort_unstable();
        if planted::is(Bug::FolderListIsShort)
            && let Some(last) = objects.iter().rposition(|o| o.name.ends_with(".log"))
        {
            objects.remove(last);
        }
        Ok(objects)
    }

    fn delete(&self, _epoch: Epoch, name: &str) -> Result<()> {
        check_object_name("delete", name)?;
        retry(|| rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()))
            .map_err(|e| self.error("delete", name, e))
    }

    fn rename(&self, _epoch: Epoch, old: &str, new: &str) -> Result<()> {
        check_object_name("rename", old)?;
        check_object_name("rename", new)?;
        retry(|| rustix::fs::renameat(&self.dir, old, &self.dir, new))
            .map_err(|e| self.error("rename", old, e))
    }

    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        check_object_name("import", name)?;
        check_object_name("import", from_name)?;
        if let Some(other) = from.base().and_then(|base| base.downcast_ref::<Self>()) {
            let linked = retry(|| {
                rustix::fs::linkat(&other.dir, from_name, &self.dir, name, AtFlags::empty())
            });
            match linked {
                Ok(()) => return Ok(()),
                // Another file system, one without links, one link too many, or a file of somebody else's.
                Err(
                    Errno::XDEV
                    | Errno::PERM
                    | Errno::MLINK
                    | Errno::OPNOTSUPP
                    | Errno::NOSYS
                    | Errno::ACCESS,
                ) => {}
                Err(Errno::NOENT) => return Err(other.error("import", from_name, Errno::NOENT)),
                Err(e) => return Err(self.error("import", name, e)),
            }
        }
        copy_object(self, epoch, name, from, from_name)
    }

    fn publish(&self, _epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.set_object("publish", name, bytes, false)
    }

    fn base(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }

    fn sync_dir(&self, _epoch: Epoch) -> Result<()> {
        self.fsync_dir("sync_dir")
    }

    fn replace(&self, _epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.set_object("replace", name, bytes, true)?;
        self.fsync_dir("replace")
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn open_objects_max(&self) -> Option<u64> {
        rustix::process::getrlimit(rustix::process::Resource::Nofile).current
    }
}
