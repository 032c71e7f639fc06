//! Leases on a local folder: a lock on a file, exclusive for the writer, shared among readers.
//!
//! The lock belongs to the open file description, so two handles in one process exclude each other
//! as two processes do, and the lock ends with the process however that dies. If the lock file is
//! deleted, two holders could lock two files of the same name; so after locking a file, the holder
//! checks that it still has its name, and tries again otherwise. The file's text (epoch and pid) is
//! only for messages and for the next epoch; the lock itself decides. Readers open the file for
//! reading and write nothing into it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::storage::{Epoch, Lease, SharedLease};

/// A locked file. Dropping it releases the lock.
///
/// The lock is released explicitly, because closing the file releases it only if no other
/// descriptor refers to the same open file description. A child process that another thread starts
/// at this moment has such a descriptor until its `exec`, and a store that was just closed could
/// then not be reopened.
struct Locked {
    file: File,
    /// The process that locked the file. A child of a `fork` shares the lock and must not release
    /// it.
    pid: u32,
}

impl Locked {
    fn new(file: File) -> Locked {
        let pid = std::process::id();
        Locked { file, pid }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            // If this fails, the lock ends when the last descriptor is closed.
            let _ = set_lock(&self.file, Lock::None);
        }
    }
}

/// A held lock.
pub(super) struct FileLease {
    epoch: Epoch,
    locked: Locked,
}

impl FileLease {
    /// The locked file.
    pub(super) fn file(&self) -> &File {
        &self.locked.file
    }
}

impl Lease for FileLease {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// A held share of the lock.
pub(super) struct FileSharedLease {
    locked: Option<Locked>,
}

impl FileSharedLease {
    /// The locked file, if there is one.
    pub(super) fn file(&self) -> Option<&File> {
        self.locked.as_ref().map(|locked| &locked.file)
    }
}

impl SharedLease for FileSharedLease {
    fn is_held(&self) -> bool {
        self.locked.is_some()
    }

    fn last_epoch(&self) -> Epoch {
        let text = self.file().map(read_text).unwrap_or_default();
        Epoch(parse_epoch(&text).unwrap_or(0))
    }
}

/// The text has a fixed length, so that overwriting an older text needs no space on a full disk.
const TEXT_BYTES: usize = 48;

fn text(epoch: u64) -> String {
    let line = format!("epoch {epoch:020} pid {}", std::process::id());
    format!("{line:<width$}\n", width = TEXT_BYTES - 1)
}

fn read_text(file: &File) -> String {
    let mut buf = [0u8; TEXT_BYTES];
    let mut len = 0;
    while len < buf.len() {
        match file.read_at(&mut buf[len..], len as u64) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&buf[..len]).trim().to_owned()
}

fn parse_epoch(text: &str) -> Option<u64> {
    text.strip_prefix("epoch ")?.split(' ').next()?.parse().ok()
}

/// Locks `file` (opened for reading and writing). The lease's epoch is one above the last one in
/// the file's text, so that names that contain an epoch differ from open to open.
pub(super) fn take(file: File, shown: &str) -> Result<FileLease> {
    match set_lock(&file, Lock::Exclusive) {
        Ok(()) => {}
        Err(e) if is_refusal(&e) => {
            // If a shared lock can be had, the current holders are readers.
            let detail = if set_lock(&file, Lock::Shared).is_ok() {
                let readers = processes_with(&file);
                drop(Locked::new(file));
                format!("readers have it open ({readers})")
            } else {
                format!("another writer holds it ({})", holder(&file))
            };
            return Err(StorageError::new(
                StorageErrorKind::LeaseHeld,
                "lease",
                shown,
                detail,
            ));
        }
        Err(e) => return Err(StorageError::from_io("lease", shown, &e)),
    }
    let locked = Locked::new(file);
    let file = &locked.file;
    let epoch = parse_epoch(&read_text(file)).unwrap_or(0).saturating_add(1);
    // An open that may be about to free space must not fail on a full disk, where only the text is
    // missing.
    match file
        .write_all_at(text(epoch).as_bytes(), 0)
        .and_then(|()| file.sync_data())
    {
        Ok(()) => {}
        Err(e) if StorageError::from_io("lease", shown, &e).is_no_space() => {}
        Err(e) => return Err(StorageError::from_io("lease", shown, &e)),
    }
    Ok(FileLease {
        epoch: Epoch(epoch),
        locked,
    })
}

/// Takes a share of the lock of `file`, which is opened for reading. `None` if there is no lock
/// file and nobody can write.
pub(super) fn share(file: Option<File>, shown: &str) -> Result<FileSharedLease> {
    if let Some(file) = &file {
        match set_lock(file, Lock::Shared) {
            Ok(()) => {}
            Err(e) if is_refusal(&e) => {
                let detail = format!("a writer holds it ({})", holder(file));
                return Err(StorageError::new(
                    StorageErrorKind::LeaseHeld,
                    "lease_shared",
                    shown,
                    detail,
                ));
            }
            Err(e) => return Err(StorageError::from_io("lease_shared", shown, &e)),
        }
    }
    Ok(FileSharedLease {
        locked: file.map(Locked::new),
    })
}

/// Whether a lock was refused because somebody else has it.
fn is_refusal(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(libc::EACCES)
}

/// The process that wrote the file's text.
fn holder(file: &File) -> String {
    let text = read_text(file);
    if text.is_empty() {
        "an unknown process".to_owned()
    } else {
        text
    }
}

/// The processes that have the file open, as far as the system reports them, for a message. This
/// process is included if it has the file open twice.
fn processes_with(file: &File) -> String {
    use std::os::fd::AsRawFd;
    let own_fd = file.as_raw_fd().to_string();
    let own_pid = std::process::id().to_string();
    let entries = |path: &std::path::Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let mut pids = Vec::new();
    if let Ok(wanted) = std::fs::read_link(format!("/proc/self/fd/{own_fd}")) {
        for process in entries(std::path::Path::new("/proc")) {
            let pid = process.file_name().to_string_lossy().into_owned();
            if !pid.bytes().all(|b| b.is_ascii_digit()) {
                continue;
            }
            let has_it = entries(&process.path().join("fd"))
                .filter(|fd| pid != own_pid || fd.file_name() != own_fd.as_str())
                .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|link| link == wanted));
            if has_it {
                pids.push(pid);
            }
        }
    }
    match &pids[..] {
        [] => "unknown processes".to_owned(),
        pids => format!("pid {}", pids.join(", ")),
    }
}

#[derive(Clone, Copy)]
enum Lock {
    Exclusive,
    Shared,
    None,
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code)]
fn set_lock(file: &File, wanted: Lock) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: an all-zero flock is a valid value; the fields that matter are set below.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match wanted {
        Lock::Exclusive => libc::F_WRLCK as _,
        Lock::Shared => libc::F_RDLCK as _,
        Lock::None => libc::F_UNLCK as _,
    };
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = 0;
    lock.l_len = 0; // to the end, whatever that is
    loop {
        // SAFETY: the descriptor and the flock are valid, and `l_pid` is 0, as
        // open-file-description locks require.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn set_lock(file: &File, wanted: Lock) -> io::Result<()> {
    use rustix::fs::FlockOperation;
    let operation = match wanted {
        Lock::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Lock::Shared => FlockOperation::NonBlockingLockShared,
        Lock::None => FlockOperation::Unlock,
    };
    // The lock of `flock` belongs to the open file description, too.
    rustix::fs::flock(file, operation).map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A child process that another thread starts has the descriptors of this one until its `exec`.
    /// A lock whose descriptor it had used to outlive its holder.
    #[test]
    fn a_lock_ends_even_if_another_descriptor_refers_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("LOCK");
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(&path).unwrap()
        };
        let lease = take(open(), "LOCK").unwrap();
        let inherited = lease.file().try_clone().unwrap();
        assert!(take(open(), "LOCK").is_err());
        drop(lease);
        let shared = share(Some(open()), "LOCK").unwrap();
        let also_inherited = shared.file().unwrap().try_clone().unwrap();
        // A refused exclusive lock does not leave a shared one behind.
        let refused = open();
        let refused_clone = refused.try_clone().unwrap();
        assert!(take(refused, "LOCK").is_err());
        drop(shared);
        drop(take(open(), "LOCK").unwrap());
        // The lock of a parent process, which a child of a `fork` shares, stays.
        let mut lease = take(open(), "LOCK").unwrap();
        let parents = lease.file().try_clone().unwrap();
        lease.locked.pid = lease.locked.pid.wrapping_add(1);
        drop(lease);
        assert!(take(open(), "LOCK").is_err());
        drop((inherited, also_inherited, refused_clone, parents));
        drop(take(open(), "LOCK").unwrap());
    }

    #[test]
    fn text_is_fixed_and_parses() {
        for epoch in [0, 1, 77, u64::MAX] {
            assert_eq!(text(epoch).len(), TEXT_BYTES);
            assert_eq!(parse_epoch(text(epoch).trim()), Some(epoch));
        }
        assert_eq!(parse_epoch(""), None);
        assert_eq!(parse_epoch("epoch x pid 3"), None);
    }
}
