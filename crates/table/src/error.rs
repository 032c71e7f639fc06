//! The error of this crate, and [`Damage`], the small part of it that block searches return.
//!
//! Bytes from disk never cause a panic: bad bytes become a [`TableError::Corruption`] that names
//! the file, the offset, the field, and what was expected and found.

use std::fmt;

use siltstone_storage::StorageError;

/// The result of a table operation.
pub type Result<T> = std::result::Result<T, TableError>;

/// A description of bad bytes, before it is known which file they came from. Offsets are relative
/// to the start of the bytes that were decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The field or the rule that is violated.
    pub what: &'static str,
    /// The byte offset in the bytes that were decoded.
    pub offset: u64,
    /// The expected value, or the bound that the value must keep.
    pub expected: u64,
    /// The value that was found.
    pub found: u64,
}

impl Damage {
    /// Describes a violated rule.
    #[cold]
    pub fn new(what: &'static str, offset: u64, expected: u64, found: u64) -> Damage {
        Damage {
            what,
            offset,
            expected,
            found,
        }
    }

    /// The same damage, `by` bytes further into an enclosing structure.
    pub fn shifted(mut self, by: u64) -> Damage {
        self.offset = self.offset.saturating_add(by);
        self
    }

    /// The error for this damage in `file`, where the decoded bytes start at `base`.
    #[cold]
    pub fn in_file(self, file: &str, base: u64) -> TableError {
        TableError::Corruption {
            file: file.to_string(),
            offset: base.saturating_add(self.offset),
            what: self.what,
            expected: self.expected,
            found: self.found,
        }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} at byte {}: expected {:#x}, found {:#x}",
            self.what, self.offset, self.expected, self.found
        )
    }
}

impl std::error::Error for Damage {}

/// A failed table operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The storage failed.
    #[error(transparent)]
    Storage(#[from] StorageError),

    /// The bytes of a table are not those that were written.
    #[error(
        "table {file} is damaged at byte {offset}: {what}: expected {expected:#x}, found \
         {found:#x}; restore the file from a copy; `silt check` tells how far the damage goes"
    )]
    Corruption {
        /// The file's name.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// The field or the rule that is violated.
        what: &'static str,
        /// The expected value, or the bound that the value must keep.
        expected: u64,
        /// The value that was found.
        found: u64,
    },

    /// The table has a format version that this program does not read.
    #[error(
        "table {file} has format version {found}, this program reads version {supported}; open \
         it with the version that wrote it"
    )]
    UnsupportedVersion {
        /// The file's name.
        file: String,
        /// The version of the table.
        found: u32,
        /// The version that this program reads.
        supported: u32,
    },

    /// The table has a property that must be understood and is unknown.
    #[error(
        "table {file} needs feature {tag:#06x}, which this program does not know; open it with a \
         newer version"
    )]
    UnsupportedFeature {
        /// The file's name.
        file: String,
        /// The property's tag.
        tag: u16,
    },

    /// A limit of the format was exceeded.
    #[error("{what} is {found}, but at most {limit} is possible")]
    Limit {
        /// What is too large, with its unit.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The value that was given.
        found: u64,
    },

    /// The caller violated a rule of the interface.
    #[error("{0}")]
    Misuse(&'static str),
}

impl TableError {
    /// Whether the bytes of a table are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, TableError::Corruption { .. })
    }
}
