//! The engine's only error type: a class for programs, and everything that a person needs to act.
//!
//! [`Error`] has a class ([`ErrorKind`]), a clear sentence, and as much context as was known where
//! the call failed: the file, the byte offset, what was expected, what was found, what the user can
//! do, and the storage's own error.
//!
//! Invariants: callers decide by [`Error::kind`], never by the text. A corruption names its file.
//! Cloning is cheap (a reference count), because one failed sync is the answer to a whole group of
//! waiting writers.
//!
//! Threading: an error is immutable once built, `Send` and `Sync`.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use siltstone_storage::{StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::error::layout_advice;

use crate::types::show::ShowKey;

/// The advice if something removed files of an open store.
pub(crate) const REMOVED_ADVICE: &str = "something else removed files of the store: stop what does \
    that, close the store, and put the files back from a copy or a checkpoint";

/// The result of a call of the engine.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of a failure. Programs decide by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or an option that is never accepted, such as a key that is too long, an unknown
    /// name, or bounds in the wrong order.
    InvalidArgument,
    /// The thing that was named does not exist.
    NotFound,
    /// Another process or another handle has the store open for writing.
    Locked,
    /// Bytes that must be there are missing or wrong.
    Corruption,
    /// A format version, a field or a capability that this build or this storage does not have.
    Unsupported,
    /// There is no room. Nothing was lost, and the store continues by itself once there is room.
    NoSpace,
    /// A failed sync or a lost lease: the store cannot promise durability any more. It is read-only
    /// until it is opened again.
    Poisoned,
    /// The keyspace was dropped.
    KeyspaceDropped,
    /// The store is closing or closed, or the work was cancelled on request.
    Closed,
    /// The store was opened for reading, and the call would change it.
    ReadOnly,
    /// The storage is on another machine or in another process, which did not answer in time.
    /// Nothing is damaged. The call changed nothing that can be read, and may be repeated; a write
    /// that failed with this is not in the store. A close that failed with this could not record
    /// what it had to: the next open recovers the store as after a kill.
    Unreachable,
    /// The storage did not answer a sync of the log in time. The write was made: it is in the log
    /// and can be read, but it is not known to be durable, and must not be repeated to be there.
    /// The next sync of the log that succeeds, of whichever write, makes it durable.
    Unsynced,
    /// The call would have had to wait longer than its caller allows. Nothing was written; the
    /// message says what it would have waited for.
    Busy,
    /// Any other I/O error. The call may succeed when it is repeated.
    Io,
}

impl ErrorKind {
    /// The class as a lower-case word, for metrics and logs.
    pub fn word(self) -> &'static str {
        match self {
            ErrorKind::InvalidArgument => "invalid_argument",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Locked => "locked",
            ErrorKind::Corruption => "corruption",
            ErrorKind::Unsupported => "unsupported",
            ErrorKind::NoSpace => "no_space",
            ErrorKind::Poisoned => "poisoned",
            ErrorKind::KeyspaceDropped => "keyspace_dropped",
            ErrorKind::Closed => "closed",
            ErrorKind::ReadOnly => "read_only",
            ErrorKind::Unreachable => "unreachable",
            ErrorKind::Unsynced => "unsynced",
            ErrorKind::Busy => "busy",
            ErrorKind::Io => "io",
        }
    }

    /// What a user can do, for errors without an advice of their own.
    fn default_advice(self) -> Option<&'static str> {
        match self {
            ErrorKind::Corruption => Some(
                "run `silt check` to see how far the damage goes, and restore the file from a copy",
            ),
            ErrorKind::NoSpace => Some("free some space; the store goes on by itself"),
            ErrorKind::Poisoned => {
                Some("close the store and open it again; reads still work until then")
            }
            ErrorKind::Locked => Some("close the other process or handle that has the store open"),
            ErrorKind::Unreachable => Some(
                "check the link to the storage and the process at its other end; nothing is \
                 damaged, and the call may be repeated",
            ),
            ErrorKind::Unsynced => Some(
                "the writes are in the store and can be read; sync the log when the storage \
                 answers again, to know that they are durable",
            ),
            ErrorKind::Busy => Some(
                "write less for a while, or allow a longer wait; `silt levels` shows what writers \
                 wait for",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A failed call: its class, a message, and what the user can do.
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    file: Option<String>,
    offset: Option<u64>,
    range: Option<(u64, u64)>,
    keys: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    advice: Option<Cow<'static, str>>,
    source: Option<StorageError>,
}

impl Error {
    /// An error of `kind`; `message` is one clause without a full stop that says what failed.
    #[cold]
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Error {
        Error {
            inner: Arc::new(Inner {
                kind,
                message: message.into(),
                file: None,
                offset: None,
                range: None,
                keys: None,
                expected: None,
                found: None,
                advice: None,
                source: None,
            }),
        }
    }

    /// An [`ErrorKind::InvalidArgument`].
    #[cold]
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// An [`ErrorKind::NotFound`].
    #[cold]
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::NotFound, message)
    }

    /// An [`ErrorKind::Corruption`] of `file`.
    #[cold]
    pub fn corruption(file: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Corruption, message).in_file(file)
    }

    /// An [`ErrorKind::Unsupported`].
    #[cold]
    pub fn unsupported(message: impl Into<Cow<'static, str>>) -> Error {
        Error::new(ErrorKind::Unsupported, message)
    }

    /// An [`ErrorKind::Poisoned`] that says what poisoned the store.
    #[cold]
    pub fn poisoned(cause: &Error) -> Error {
        let mut error = Error::new(
            ErrorKind::Poisoned,
            format!(
                "the store takes no writes because of an earlier failure: {}",
                cause.headline()
            ),
        );
        let inner = Arc::make_mut(&mut error.inner);
        inner.file = cause.inner.file.clone();
        inner.offset = cause.inner.offset;
        inner.source = cause.inner.source.clone();
        error
    }

    /// The same error, with the file `file`.
    pub fn in_file(mut self, file: impl Into<String>) -> Error {
        Arc::make_mut(&mut self.inner).file = Some(file.into());
        self
    }

    /// The same error, with a byte offset in its file.
    pub fn at(mut self, offset: u64) -> Error {
        Arc::make_mut(&mut self.inner).offset = Some(offset);
        self
    }

    /// The same error, with the bytes of its file that are lost: from `start` up to but not
    /// including `end`.
    pub fn over(mut self, start: u64, end: u64) -> Error {
        Arc::make_mut(&mut self.inner).range = Some((start, end));
        self
    }

    /// The same error, with the range of keys that may be lost, in readable form.
    pub fn keys(mut self, keys: impl fmt::Display) -> Error {
        Arc::make_mut(&mut self.inner).keys = Some(keys.to_string());
        self
    }

    /// The same error, with what should have been there.
    pub fn expected(mut self, expected: impl fmt::Display) -> Error {
        Arc::make_mut(&mut self.inner).expected = Some(expected.to_string());
        self
    }

    /// The same error, with what was there.
    pub fn found(mut self, found: impl fmt::Display) -> Error {
        Arc::make_mut(&mut self.inner).found = Some(found.to_string());
        self
    }

    /// The same error, with what the user can do: one clause without a full stop.
    pub fn advice(mut self, advice: impl Into<Cow<'static, str>>) -> Error {
        Arc::make_mut(&mut self.inner).advice = Some(advice.into());
        self
    }

    /// The same error with another class. The caller knows what the failure means: a missing file
    /// that the manifest names is corruption, and a failed sync of the log poisons the store.
    pub fn with_kind(mut self, kind: ErrorKind) -> Error {
        Arc::make_mut(&mut self.inner).kind = kind;
        self
    }

    /// The same error, with what was attempted in front: "`context`: message".
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        let inner = Arc::make_mut(&mut self.inner);
        inner.message = format!("{context}: {}", inner.message).into();
        self
    }

    /// The same error with another message. [`Error::storage`] still has the storage's own message.
    pub(crate) fn with_message(mut self, message: impl Into<Cow<'static, str>>) -> Error {
        Arc::make_mut(&mut self.inner).message = message.into();
        self
    }

    /// The class, by which programs decide.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// What failed, without the file, the values and the advice that [`fmt::Display`] adds.
    pub fn message(&self) -> &str {
        &self.inner.message
    }

    /// The file concerned, if there is one.
    pub fn file(&self) -> Option<&str> {
        self.inner.file.as_deref()
    }

    /// The byte offset in the file, if it is known.
    pub fn offset(&self) -> Option<u64> {
        self.inner.offset
    }

    /// The start and the end of the bytes of the file that are lost, if they are known. Nothing can
    /// be read of a damaged block.
    pub fn byte_range(&self) -> Option<(u64, u64)> {
        self.inner.range
    }

    /// The range of keys that may be lost, in readable form, if it is known.
    pub fn key_range(&self) -> Option<&str> {
        self.inner.keys.as_deref()
    }

    /// What should have been there, if the error says so.
    pub fn expected_value(&self) -> Option<&str> {
        self.inner.expected.as_deref()
    }

    /// What was there, if the error says so.
    pub fn found_value(&self) -> Option<&str> {
        self.inner.found.as_deref()
    }

    /// What the user can do, if anything.
    pub fn advice_text(&self) -> Option<&str> {
        self.inner
            .advice
            .as_deref()
            .or_else(|| self.inner.kind.default_advice())
    }

    /// The storage's own error, if one was the cause.
    pub fn storage(&self) -> Option<&StorageError> {
        self.inner.source.as_ref()
    }

    /// Whether there was no room. Nothing was lost, and the call may be repeated when there is
    /// room.
    pub fn is_no_space(&self) -> bool {
        self.inner.kind == ErrorKind::NoSpace
    }

    /// Whether the failure is that the storage did not answer in time.
    pub(crate) fn is_unreachable(&self) -> bool {
        let source = self.inner.source.as_ref();
        source.is_some_and(|error| error.kind == StorageErrorKind::Unreachable)
    }

    /// Whether bytes were missing or wrong.
    pub fn is_corruption(&self) -> bool {
        self.inner.kind == ErrorKind::Corruption
    }

    /// The message, the place and the values, without the advice.
    fn headline(&self) -> String {
        let inner = &*self.inner;
        let offset = inner.offset.map(|offset| format!("byte {offset}"));
        let range = inner
            .range
            .map(|(start, end)| format!("of bytes {start} to {end}"));
        let at = [offset, range]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ");
        let keys = inner.keys.as_ref().map(|keys| format!("keys {keys}"));
        let parts = [
            inner.file.clone(),
            Some(at).filter(|at| !at.is_empty()),
            keys,
        ];
        let place = parts.into_iter().flatten().collect::<Vec<_>>().join(", ");
        let place = match place.is_empty() {
            true => place,
            false => format!(" ({place})"),
        };
        let values = match (&inner.expected, &inner.found) {
            (Some(expected), Some(found)) => format!(": expected {expected}, found {found}"),
            (Some(expected), None) => format!(": expected {expected}"),
            (None, Some(found)) => format!(": found {found}"),
            (None, None) => String::new(),
        };
        format!("{}{place}{values}", inner.message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.headline())?;
        match self.advice_text() {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {self}", self.inner.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|e| e as _)
    }
}

impl From<StorageError> for Error {
    #[cold]
    fn from(error: StorageError) -> Error {
        let (kind, advice) = match error.kind {
            StorageErrorKind::NotFound => (ErrorKind::NotFound, None),
            StorageErrorKind::NoSpace => (ErrorKind::NoSpace, None),
            StorageErrorKind::FileTooLarge => (
                ErrorKind::NoSpace,
                Some(
                    "raise the process's limit of file sizes (`ulimit -f`); the store goes on by \
                     itself",
                ),
            ),
            StorageErrorKind::LeaseHeld => (ErrorKind::Locked, None),
            StorageErrorKind::Fenced => (
                ErrorKind::Poisoned,
                Some(
                    "another writer has taken over the store; close this handle before opening it \
                     again",
                ),
            ),
            // An object that is shorter than its owner says has lost bytes.
            StorageErrorKind::UnexpectedEof => (ErrorKind::Corruption, None),
            StorageErrorKind::Removed => (ErrorKind::Corruption, Some(REMOVED_ADVICE)),
            StorageErrorKind::PermissionDenied => (
                ErrorKind::Io,
                Some(
                    "check the owner and the permissions of the file and its folder, and how it is \
                     mounted",
                ),
            ),
            StorageErrorKind::TooManyOpen => (
                ErrorKind::Io,
                Some("raise the process's limit of open files (`ulimit -n`), or close other files"),
            ),
            StorageErrorKind::Closed => (
                ErrorKind::Closed,
                Some("open the store again, and read through the new handle"),
            ),
            StorageErrorKind::Unsupported => (ErrorKind::Unsupported, None),
            StorageErrorKind::Unreachable => (ErrorKind::Unreachable, None),
            StorageErrorKind::InvalidInput => (ErrorKind::InvalidArgument, None),
            _ => (ErrorKind::Io, None),
        };
        Error {
            inner: Arc::new(Inner {
                kind,
                message: format!("{} failed: {}", error.op, error.detail).into(),
                file: Some(error.name.clone()),
                offset: error.offset,
                range: None,
                keys: None,
                expected: None,
                found: None,
                advice: advice.map(Cow::Borrowed),
                source: Some(error),
            }),
        }
    }
}

impl From<TableError> for Error {
    #[cold]
    fn from(error: TableError) -> Error {
        match error {
            TableError::Storage(error) => error.into(),
            TableError::Corruption {
                file,
                offset,
                what,
                expected,
                found,
            } => Error::corruption(file, format!("a table is damaged: {what}"))
                .at(offset)
                .expected(format!("{expected:#x}"))
                .found(format!("{found:#x}")),
            TableError::UnsupportedVersion {
                file,
                found,
                supported,
            } => Error::unsupported("a table has an unknown format version")
                .in_file(file)
                .expected(supported)
                .found(found)
                .advice("open the store with the version of siltstone that wrote it"),
            TableError::UnsupportedFeature {
                file,
                offset,
                feature,
            } => Error::unsupported(format!(
                "a table needs a feature that this build does not have: {feature}"
            ))
            .in_file(file)
            .at(offset)
            .advice("open the store with a newer version of siltstone"),
            TableError::UnsupportedLayout {
                file,
                found,
                supported,
            } => Error::unsupported("a table was made by another version of the layout rules")
                .in_file(file)
                .expected(format_args!(
                    "version {supported}, the only one of this build"
                ))
                .found(format_args!("version {found}"))
                .advice(layout_advice(found, supported)),
            other => Error::new(ErrorKind::InvalidArgument, other.to_string()),
        }
    }
}

/// The error for a range of keys whose start lies after its end. `what` names the range. Every call
/// that takes a range refuses such a range with this error. A range whose start equals its end is
/// empty.
#[cold]
pub(crate) fn reversed_range(what: &str, start: &[u8], end: &[u8]) -> Error {
    Error::invalid_argument(format!("{what} ends before it starts"))
        .expected(format_args!("an end at or after `{}`", ShowKey(start)))
        .found(format_args!("the end `{}`", ShowKey(end)))
        .advice("swap the two keys")
}

/// The error of calls on a closed store.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the store is closed").advice("open it again")
}

/// The error of calls on a keyspace that was dropped.
#[cold]
pub(crate) fn dropped_keyspace(name: &str) -> Error {
    Error::new(
        ErrorKind::KeyspaceDropped,
        format!("keyspace {name} was dropped"),
    )
    .advice("create it again, or use another one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_the_file_the_values_and_the_advice() {
        let error = Error::corruption(
            "MANIFEST-000000000007",
            "the header's checksum does not match",
        )
        .at(24)
        .expected("0x1234")
        .found("0x5678");
        assert_eq!(
            error.to_string(),
            "the header's checksum does not match (MANIFEST-000000000007, byte 24): \
             expected 0x1234, found 0x5678; \
             run `silt check` to see how far the damage goes, and restore the file from a copy"
        );
        assert_eq!(error.kind(), ErrorKind::Corruption);
        assert_eq!(
            (error.file(), error.offset()),
            (Some("MANIFEST-000000000007"), Some(24))
        );
        let other = Error::invalid_argument("the key is too long")
            .expected("at most 65535 bytes")
            .found("70000");
        assert_eq!(
            other.to_string(),
            "the key is too long: expected at most 65535 bytes, found 70000"
        );
    }

    #[test]
    fn storage_errors_keep_their_class_file_and_source() {
        let storage = StorageError::new(
            StorageErrorKind::NoSpace,
            "append",
            "LOG-1",
            "no space left",
        )
        .at(4096);
        let error = Error::from(storage);
        assert!(error.is_no_space());
        assert_eq!((error.file(), error.offset()), (Some("LOG-1"), Some(4096)));
        assert_eq!(
            error.to_string(),
            "append failed: no space left (LOG-1, byte 4096); free some space; the store goes on \
             by itself"
        );
        assert!(std::error::Error::source(&error).is_some());
        let poisoned = Error::poisoned(&error);
        assert_eq!(poisoned.kind(), ErrorKind::Poisoned);
        assert!(poisoned.to_string().contains("no space left"), "{poisoned}");
    }

    #[test]
    fn table_errors_keep_their_file_and_values() {
        let table = TableError::Corruption {
            file: "000000000007.table".into(),
            offset: 512,
            what: "block checksum",
            expected: 1,
            found: 2,
        };
        let error = Error::from(table);
        assert!(error.is_corruption());
        assert_eq!(
            (error.file(), error.offset()),
            (Some("000000000007.table"), Some(512))
        );
        assert!(error.to_string().contains("block checksum"), "{error}");
        assert_eq!(
            Error::from(TableError::Misuse("keys out of order")).kind(),
            ErrorKind::InvalidArgument
        );
    }

    #[test]
    fn a_change_of_an_error_leaves_its_clones_as_they_are() {
        let first = Error::not_found("no such keyspace");
        let second = first
            .clone()
            .context("open")
            .with_kind(ErrorKind::KeyspaceDropped);
        assert_eq!(first.to_string(), "no such keyspace");
        assert_eq!(second.to_string(), "open: no such keyspace");
        assert_eq!(second.kind(), ErrorKind::KeyspaceDropped);
    }
}
