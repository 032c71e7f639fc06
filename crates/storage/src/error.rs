//! The error of storages: the failed call, the object, the offset, and the class of the failure.

use std::fmt;
use std::io;

/// Result of a storage call.
pub type Result<T> = std::result::Result<T, StorageError>;

/// The class of a failure. Callers decide by it, never by the text of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageErrorKind {
    /// The named object does not exist.
    NotFound,
    /// The name for an exclusive create is taken.
    AlreadyExists,
    /// No free space (ENOSPC, EDQUOT). The call can be retried after space has been freed.
    NoSpace,
    /// The file would be larger than the process (`ulimit -f`) or the file system allows (EFBIG).
    /// It is treated as a full disk.
    FileTooLarge,
    /// The lease is held by another writer.
    LeaseHeld,
    /// The caller's epoch is older than the current lease: it is no longer the writer.
    Fenced,
    /// A read past the object's end.
    UnexpectedEof,
    /// No file handle is free (EMFILE, ENFILE). The call opened nothing and changed nothing; it may
    /// be repeated after other files have been closed.
    TooManyOpen,
    /// Permissions are missing, or the file system is read-only.
    PermissionDenied,
    /// The storage lacks this capability.
    Unsupported,
    /// A name or an argument that no storage accepts.
    InvalidInput,
    /// A mapped page could not be read (SIGBUS was caught, and the map is marked as failed).
    MapFailed,
    /// The owner of the object was closed, and the object has been deleted since.
    Closed,
    /// The storage is on another machine or in another process, which did not answer within the
    /// time limit of the call. Nothing is damaged. A failed append had no effect, and a failed sync
    /// loses nothing. Of other calls it is not known whether they took effect; the same call, made
    /// again, takes over what the first one did.
    Unreachable,
    /// Somebody else removed an object, or the folder itself, while it was in use.
    Removed,
    /// Any other I/O error.
    Io,
}

/// A failed storage call: operation, object, offset, class and the operating system's own error.
#[derive(Debug, Clone)]
pub struct StorageError {
    /// The class of the failure.
    pub kind: StorageErrorKind,
    /// The operation, for example `append` or `sync_dir`.
    pub op: &'static str,
    /// The object's name or path as the user knows it.
    pub name: String,
    /// Byte offset in the object, where there is one.
    pub offset: Option<u64>,
    /// Details, for example the operating system's message.
    pub detail: String,
}

/// Whether the process or the system has no free file handle. std has no error kind for it.
pub(crate) fn is_too_many_open(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error
        .raw_os_error()
        .is_some_and(|raw| [Errno::MFILE, Errno::NFILE].contains(&Errno::from_raw_os_error(raw)))
}

impl StorageError {
    /// Creates an error of class `kind` for the operation `op` on `name`.
    pub fn new(
        kind: StorageErrorKind,
        op: &'static str,
        name: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        StorageError {
            kind,
            op,
            name: name.into(),
            offset: None,
            detail: detail.into(),
        }
    }

    /// The same error with a byte offset.
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Classifies an error of the operating system.
    pub fn from_io(op: &'static str, name: impl Into<String>, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => StorageErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => StorageErrorKind::AlreadyExists,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => StorageErrorKind::NoSpace,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                StorageErrorKind::PermissionDenied
            }
            io::ErrorKind::UnexpectedEof => StorageErrorKind::UnexpectedEof,
            io::ErrorKind::FileTooLarge => StorageErrorKind::FileTooLarge,
            _ if is_too_many_open(error) => StorageErrorKind::TooManyOpen,
            _ => StorageErrorKind::Io,
        };
        StorageError::new(kind, op, name, error.to_string())
    }

    /// Whether a failed replacement of an object changed nothing, because there was no space for
    /// the new bytes or no file handle to write them with.
    pub fn changed_nothing(&self) -> bool {
        self.is_no_space() || self.kind == StorageErrorKind::TooManyOpen
    }

    /// Whether there is no space, on the disk or in the file.
    pub fn is_no_space(&self) -> bool {
        matches!(
            self.kind,
            StorageErrorKind::NoSpace | StorageErrorKind::FileTooLarge
        )
    }
}

impl fmt::Display for StorageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.op, self.name)?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {offset}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

impl std::error::Error for StorageError {}
