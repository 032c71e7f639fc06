//! The encoding of storage errors: kind u8, operation, name, offset, details.
//!
//! Invariants: texts are cut at `TEXT_MAX` bytes, so an error fits into a frame. A kind that this
//! version does not know is decoded as [`StorageErrorKind::Io`].
//!
//! Threading: pure functions.

use siltstone_storage::{StorageError, StorageErrorKind};
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

/// The maximum number of bytes of a text in an error.
const TEXT_MAX: usize = 2048;

/// The kinds in the order of their codes, which begin at 1.
const KINDS: [StorageErrorKind; 16] = [
    StorageErrorKind::NotFound,
    StorageErrorKind::AlreadyExists,
    StorageErrorKind::NoSpace,
    StorageErrorKind::FileTooLarge,
    StorageErrorKind::LeaseHeld,
    StorageErrorKind::Fenced,
    StorageErrorKind::UnexpectedEof,
    StorageErrorKind::TooManyOpen,
    StorageErrorKind::PermissionDenied,
    StorageErrorKind::Unsupported,
    StorageErrorKind::InvalidInput,
    StorageErrorKind::MapFailed,
    StorageErrorKind::Closed,
    StorageErrorKind::Unreachable,
    StorageErrorKind::Removed,
    StorageErrorKind::Io,
];

/// The operations that an error may name. All others are decoded as [`OTHER_OPERATION`].
const OPERATIONS: [&str; 34] = [
    "lease",
    "lease_shared",
    "create",
    "recycle",
    "reopen",
    "sync_object",
    "rewrite_object",
    "open",
    "read",
    "read_at",
    "list",
    "delete",
    "rename",
    "import",
    "publish",
    "sync_dir",
    "sync_parents",
    "replace",
    "append",
    "reserve",
    "sync",
    "truncate",
    "check_direct",
    "resolve input",
    "free_bytes",
    "run a job",
    "release",
    "measure",
    "echo",
    "change",
    "truncate_to_position",
    "map",
    "open_directory",
    "create_directory",
];

/// The name of an unknown operation.
const OTHER_OPERATION: &str = "call the device";

/// The code of a kind.
pub fn code_of(kind: StorageErrorKind) -> u8 {
    let at = KINDS.iter().position(|known| *known == kind);
    at.unwrap_or(KINDS.len() - 1) as u8 + 1
}

/// The kind for a code.
pub fn kind_of(code: u8) -> StorageErrorKind {
    let at = usize::from(code).wrapping_sub(1);
    KINDS.get(at).copied().unwrap_or(StorageErrorKind::Io)
}

/// Appends a text. It is cut at the boundary of a character if it is too long.
pub fn put_text(out: &mut FieldWriter, text: &str) {
    let mut end = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.bytes(&text.as_bytes()[..end]);
}

/// Appends an error.
pub fn put_error(out: &mut FieldWriter, error: &StorageError) {
    out.u8(code_of(error.kind));
    put_text(out, error.op);
    put_text(out, &error.name);
    out.flag(error.offset.is_some());
    out.u64(error.offset.unwrap_or(0));
    put_text(out, &error.detail);
}

/// Reads an error.
///
/// # Errors
/// If the bytes are not well formed.
pub fn get_error(i: &mut FieldReader<'_>) -> Decoded<StorageError> {
    let kind = kind_of(i.u8("class of an error")?);
    let op = i.text("operation")?;
    let op = OPERATIONS.into_iter().find(|known| *known == op);
    let name = i.text("name in an error")?;
    let has_offset = i.flag("whether an error has an offset")?;
    let offset = i.u64("offset of an error")?;
    let detail = i.text("details of an error")?;
    let error = StorageError::new(kind, op.unwrap_or(OTHER_OPERATION), name, detail);
    Ok(match has_offset {
        true => error.at(offset),
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use siltstone_storage::{FileStorage, OpKind};

    use super::*;

    /// A host shows the operation that failed on the device.
    #[test]
    fn the_operations_of_storages_are_known() {
        for kind in OpKind::ALL {
            // These report no errors.
            let is_advice = matches!(kind, OpKind::StartWriteback | OpKind::Advise);
            let name = kind.name();
            assert!(is_advice || OPERATIONS.contains(&name), "{name}");
        }
        let errors = [
            FileStorage::open_existing("/dev/null/folder").map(drop),
            FileStorage::open_or_create("/dev/null/folder").map(drop),
        ];
        for error in errors {
            let op = error.unwrap_err().op;
            assert!(OPERATIONS.contains(&op), "{op}");
        }
    }

    #[test]
    fn errors_are_read_as_they_are_written() {
        for (n, kind) in KINDS.into_iter().enumerate() {
            assert_eq!(kind_of(code_of(kind)), kind);
            let error = StorageError::new(kind, OPERATIONS[n], "000001.log", "it is full");
            for error in [error.clone(), error.at(77)] {
                let mut out = FieldWriter::new();
                put_error(&mut out, &error);
                let bytes = out.into_bytes();
                let got = get_error(&mut FieldReader::new(&bytes)).unwrap();
                assert_eq!(got.to_string(), error.to_string());
                assert_eq!((got.kind, got.offset), (error.kind, error.offset));
            }
        }
        assert_eq!(kind_of(200), StorageErrorKind::Io);
        assert_eq!(kind_of(0), StorageErrorKind::Io);
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let error = StorageError::new(StorageErrorKind::Io, "fly", "x", "ä".repeat(5000));
        let mut out = FieldWriter::new();
        put_error(&mut out, &error);
        let got = get_error(&mut FieldReader::new(&out.into_bytes())).unwrap();
        assert_eq!(got.op, OTHER_OPERATION);
        assert_eq!(got.detail, "ä".repeat(TEXT_MAX / 2));
    }
}
