//! The writer's lease on a local directory: an exclusive lock of a file that is never deleted.
//!
//! The lock belongs to the open file description, so two handles of one process exclude each other as two processes
//! do, and it ends with the process whatever way that dies. Deleting the lock file would let two holders lock two
//! files of one name; it stays. Its text (epoch and pid) is for messages and for the next epoch only; the lock
//! itself decides.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::storage::{Epoch, Lease};

/// A held lock; dropping it closes the file, which ends the lock.
pub(super) struct FileLease {
    epoch: Epoch,
    _file: File,
}

impl Lease for FileLease {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

/// The text has a fixed length, so that writing it over an older one needs no space on a full disk.
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

/// Locks `file` (opened for reading and writing) and gives the lease its epoch: one above the last one written
/// there, so that names which hold an epoch differ from open to open.
pub(super) fn take(file: File, shown: &str) -> Result<FileLease> {
    match try_lock(&file) {
        Ok(()) => {}
        Err(e)
            if e.kind() == io::ErrorKind::WouldBlock || e.raw_os_error() == Some(libc::EACCES) =>
        {
            let holder = read_text(&file);
            let holder = if holder.is_empty() {
                "an unknown process".to_owned()
            } else {
                holder
            };
            return Err(StorageError::new(
                StorageErrorKind::LeaseHeld,
                "lease",
                shown,
                format!("another writer holds it ({holder}); close that one first"),
            ));
        }
        Err(e) => return Err(StorageError::from_io("lease", shown, &e)),
    }
    let epoch = parse_epoch(&read_text(&file))
        .unwrap_or(0)
        .saturating_add(1);
    // A full disk must not forbid an open that may be about to free space: the text is then missing, no more.
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
        _file: file,
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
#[allow(unsafe_code)]
fn try_lock(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: an all-zero flock is a valid value; the fields that matter are set below.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as _;
    lock.l_whence = libc::SEEK_SET as _;
    lock.l_start = 0;
    lock.l_len = 0; // to the end, whatever that is
    loop {
        // SAFETY: a valid descriptor and a valid flock with l_pid 0, as open-file-description locks ask for.
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
fn try_lock(file: &File) -> io::Result<()> {
    // flock belongs to the open file description, too.
    rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;

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
