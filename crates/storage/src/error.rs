//! The one error of storages: which call failed, on which object, at which offset, and of what class.

use std::fmt;
use std::io;

/// Result of a storage call.
pub type Result<T> = std::result::Result<T, StorageError>;

/// What class of failure a storage call met; callers decide by this, never by a message's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorageErrorKind {
    /// The named object does not exist.
    NotFound,
    /// An exclusive create found the name taken.
    AlreadyExists,
    /// No room (ENOSPC, EDQUOT). Retrying after space was freed is sound.
    NoSpace,
    /// The file would be larger than the process (`ulimit -f`) or the file system allows (EFBIG). A kind of full disk.
    FileTooLarge,
    /// The lease is held by another writer.
    LeaseHeld,
    /// The caller's epoch is older than the current lease: it is no longer the writer.
    Fenced,
    /// A read past the object's end.
    UnexpectedEof,
    /// No free file handle (EMFILE, ENFILE). Nothing was opened, so the call has changed nothing;
    /// it may be made again after other files were closed.
    TooManyOpen,
    /// Missing permissions or a read-only file system.
    PermissionDenied,
    /// The storage lacks this capability.
    Unsupported,
    /// A name or an argument that no storage accepts.
    InvalidInput,
    /// A mapped page could not be read (SIGBUS was caught; the map is marked failed).
    MapFailed,
    /// The object's owner was closed, and the object has been deleted since.
    Closed,
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

/// The standard library has no name for these.
fn is_too_many_open(error: &io::Error) -> bool {
    use rustix::io::Errno;
    error
        .raw_os_error()
        .is_some_and(|raw| [Errno::MFILE, Errno::NFILE].contains(&Errno::from_raw_os_error(raw)))
}

impl StorageError {
    /// An error of `kind` for `op` on `name`.
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

    /// Classifies an operating system error.
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

    /// Whether a failed replacement of an object has changed nothing, because there was no room for
    /// the new bytes or no file handle to write them with.
    pub fn changed_nothing(&self) -> bool {
        self.is_no_space() || self.kind == StorageErrorKind::TooManyOpen
    }

    /// Whether there is no room: on the disk, or in the file.
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
