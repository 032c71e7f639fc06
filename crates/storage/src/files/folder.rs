//! An opened folder, and the system calls on the names in it.
//!
//! [`Folder`] opens, lists, renames, links, replaces and deletes the files in one folder. Its
//! errors name the path of the file.
//!
//! Invariants: names are resolved relative to the opened folder, never by its path, and no symbolic
//! link is followed. An open never waits for the other end of a pipe.
//!
//! Threading: everything may be called from any thread.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::direct;
use super::own_name::{is_own_name, temp_name};
use super::place::dangling_link;
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::name::LEASE_PREFIX;

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

/// A folder that is held open.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    dir: File,
}

impl Folder {
    /// Opens the folder `path`. Writes nothing.
    pub(super) fn open(path: &Path) -> Result<Folder> {
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
        Ok(Folder {
            path: path.to_path_buf(),
            dir: File::from(dir),
        })
    }

    /// The folder's path as it was given.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the opened folder without symbolic links.
    pub(super) fn real_path(&self) -> Result<PathBuf> {
        let found = match cfg!(target_os = "linux") {
            true => std::fs::read_link(format!("/proc/self/fd/{}", self.dir.as_raw_fd())),
            false => self.path.canonicalize(),
        };
        let shown = self.path.display().to_string();
        found.map_err(|e| StorageError::from_io("open_directory", shown, &e))
    }

    /// The path of the file `name`, for messages.
    pub(super) fn shown(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }

    fn error(&self, op: &'static str, name: &str, error: Errno) -> StorageError {
        StorageError::from_io(op, self.shown(name), &io::Error::from(error))
    }

    /// Opens the regular file `name`. Anything else of that name is an error that says what it is.
    pub(super) fn open_at(&self, op: &'static str, name: &str, flags: OFlags) -> Result<File> {
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::ROTH;
        // If a pipe has the file's name, an open without NONBLOCK waits for the pipe's other end.
        // The flag has no effect on regular files.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = retry(|| rustix::fs::openat(&self.dir, name, flags, mode))
            .map_err(|e| self.open_error(op, name, flags, e))?;
        let file = File::from(fd);
        let kind = file
            .metadata()
            .map_err(|e| StorageError::from_io(op, self.shown(name), &e))?
            .file_type();
        match kind {
            kind if kind.is_file() => Ok(file),
            kind if kind.is_dir() => Err(self.no_file(op, name, "a directory")),
            _ => Err(self.no_file(op, name, "a pipe or a device")),
        }
    }

    /// Why `name` could not be opened.
    fn open_error(&self, op: &'static str, name: &str, flags: OFlags, e: Errno) -> StorageError {
        match e {
            Errno::ISDIR => self.no_file(op, name, "a directory"),
            Errno::LOOP => self.no_file(op, name, "a symbolic link"),
            Errno::NXIO => self.no_file(op, name, "a socket, a pipe or a device"),
            // The error has no other meaning for the flags that are used here.
            #[cfg(any(target_os = "linux", target_os = "android"))]
            Errno::INVAL if flags.contains(OFlags::DIRECT) => self.not_direct(op, name),
            // A call that creates a file does not need the file, so the folder is missing.
            Errno::NOENT if flags.contains(OFlags::CREATE) => StorageError::new(
                StorageErrorKind::Removed,
                op,
                self.shown(name),
                format!("the folder {} was removed", self.path.display()),
            ),
            // The name is taken. The kind of the file that has it decides what the user can do
            // about it.
            Errno::EXIST => match self.kind_of(name) {
                Some(FileType::Directory) => self.no_file(op, name, "a directory"),
                Some(FileType::Symlink) => self.no_file(op, name, "a symbolic link"),
                Some(FileType::RegularFile) | None => self.error(op, name, e),
                Some(_) => self.no_file(op, name, "a socket, a pipe or a device"),
            },
            e => self.error(op, name, e),
        }
    }

    /// The error for something that has the name of a file of the store and is of another kind.
    fn no_file(&self, op: &'static str, name: &str, kind: &str) -> StorageError {
        let detail = format!(
            "{kind} lies where a file of the store belongs; move it away, and put the file back \
             from a copy"
        );
        StorageError::new(StorageErrorKind::Io, op, self.shown(name), detail)
    }

    /// Opens a file past the page cache. Returns it with the alignment that it requires.
    pub(super) fn open_direct_at(
        &self,
        op: &'static str,
        name: &str,
        flags: OFlags,
    ) -> Result<(File, usize)> {
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

    /// The kind of the file that has the name. `None` if there is none or it cannot be examined.
    fn kind_of(&self, name: &str) -> Option<FileType> {
        let stat = retry(|| rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)).ok()?;
        Some(FileType::from_raw_mode(stat.st_mode))
    }

    /// Whether the lease file `file`, which was opened by this name, still has it. A lock on a file
    /// that was deleted keeps nobody out.
    pub(super) fn has_name(&self, file: &File, name: &str) -> Result<bool> {
        let own = rustix::fs::fstat(file).map_err(|e| self.error("lease", name, e))?;
        match retry(|| rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW)) {
            Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(self.error("lease", name, e)),
        }
    }

    /// Makes creations, renames and deletions in the folder durable.
    pub(super) fn sync(&self, op: &'static str) -> Result<()> {
        self.dir
            .sync_all()
            .map_err(|e| StorageError::from_io(op, self.path.display().to_string(), &e))
    }

    /// Deletes a file.
    pub(super) fn delete(&self, name: &str) -> Result<()> {
        self.unlink(name).map_err(|e| self.error("delete", name, e))
    }

    /// Deletes a temporary file, if that is possible. A file that stays does no harm.
    pub(super) fn delete_temp(&self, temp: &str) {
        let _ = self.unlink(temp);
    }

    fn unlink(&self, name: &str) -> std::result::Result<(), Errno> {
        retry(|| rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()))
    }

    /// Renames a file. A file that has the new name is replaced.
    pub(super) fn rename(&self, op: &'static str, old: &str, new: &str) -> Result<()> {
        self.rename_at(old, new).map_err(|e| self.error(op, old, e))
    }

    fn rename_at(&self, old: &str, new: &str) -> std::result::Result<(), Errno> {
        retry(|| rustix::fs::renameat(&self.dir, old, &self.dir, new))
    }

    /// Renames a file without replacing another one.
    pub(super) fn rename_to_free_name(&self, op: &'static str, old: &str, new: &str) -> Result<()> {
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
            // This file system or kernel does not have the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            Err(Errno::EXIST) => return Err(self.error(op, new, Errno::EXIST)),
            Err(e) => return Err(self.error(op, old, e)),
        }
        // The caller holds the writer's lease, so nobody else takes the name between the look and
        // the rename.
        match retry(|| rustix::fs::statat(&self.dir, new, AtFlags::SYMLINK_NOFOLLOW)) {
            Err(Errno::NOENT) => {}
            Ok(_) => return Err(self.error(op, new, Errno::EXIST)),
            Err(e) => return Err(self.error(op, new, e)),
        }
        self.rename(op, old, new)
    }

    /// Gives the file `from_name` of the folder `from` a second name here: `name`, which must be
    /// free. Returns false if the two folders cannot share this file.
    pub(super) fn link(
        &self,
        op: &'static str,
        name: &str,
        from: &Folder,
        from_name: &str,
    ) -> Result<bool> {
        let linked =
            retry(|| rustix::fs::linkat(&from.dir, from_name, &self.dir, name, AtFlags::empty()));
        match linked {
            Ok(()) => Ok(true),
            // The folders are on two file systems, the file system has no links, the file has too
            // many already, or it belongs to another user.
            Err(
                Errno::XDEV
                | Errno::PERM
                | Errno::MLINK
                | Errno::OPNOTSUPP
                | Errno::NOSYS
                | Errno::ACCESS,
            ) => Ok(false),
            Err(Errno::NOENT) => Err(from.error(op, from_name, Errno::NOENT)),
            Err(e) => Err(self.error(op, name, e)),
        }
    }

    /// Sets the contents of the file `name` atomically, through a temporary file. `sync` says
    /// whether the bytes are made durable before they get the name.
    pub(super) fn set(&self, op: &'static str, name: &str, bytes: &[u8], sync: bool) -> Result<()> {
        let temp = temp_name(name);
        let file = self.open_at(op, &temp, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC)?;
        let written = file
            .write_all_at(bytes, 0)
            .and_then(|()| if sync { file.sync_all() } else { Ok(()) })
            .map_err(|e| StorageError::from_io(op, self.shown(name), &e))
            .and_then(|()| {
                self.rename_at(&temp, name)
                    .map_err(|e| self.error(op, name, e))
            });
        if written.is_err() {
            self.delete_temp(&temp);
        }
        written
    }

    /// Calls `f` with the name and the length of every regular file.
    pub(super) fn for_each_file(&self, mut f: impl FnMut(&str, u64)) -> Result<()> {
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
                // It was deleted in the meantime, or it is not a regular file.
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(self.error("list", name, e)),
            }
        }
        Ok(())
    }

    /// Deletes the temporary files that a crash in the middle of [`Folder::set`] left behind. A
    /// deletion that fails does no harm: the next `set` of that name overwrites the file.
    pub(super) fn delete_temps(&self) -> Result<()> {
        let mut temps = Vec::new();
        self.for_each_file(|name, _| {
            if is_own_name(name) && !name.starts_with(LEASE_PREFIX) {
                temps.push(name.to_owned());
            }
        })?;
        for temp in temps {
            self.delete_temp(&temp);
        }
        Ok(())
    }

    /// Whether the folder's file system is mounted read-only.
    pub(super) fn is_mounted_read_only(&self) -> bool {
        rustix::fs::fstatvfs(&self.dir)
            .is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
    }

    /// The free bytes of the folder's file system, if it says how many.
    pub(super) fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir).ok()?;
        Some(stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}
