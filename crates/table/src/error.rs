//! The error of this crate, and [`Damage`], its small part that block searches return.
//!
//! Bytes from disk never cause a panic: whatever is wrong with them becomes a [`TableError::Corruption`] that names
//! the file, the offset, what was looked at, what was expected and what was found.

use std::fmt;

use siltstone_storage::StorageError;

/// Result of a table operation.
pub type Result<T> = std::result::Result<T, TableError>;

/// What is wrong with some bytes, before it is known which file they came from. Offsets are relative to whatever
/// was being decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The field or the rule that is broken.
    pub what: &'static str,
    /// Byte offset within the thing decoded.
    pub offset: u64,
    /// What the field should hold, or the bound that it should keep.
    pub expected: u64,
    /// What it holds.
    pub found: u64,
}

impl Damage {
    /// A broken rule.
    #[cold]
    pub fn new(what: &'static str, offset: u64, expected: u64, found: u64) -> Damage {
        Damage {
            what,
            offset,
            expected,
            found,
        }
    }

    /// The same, `by` bytes further into an enclosing thing.
    pub fn shifted(mut self, by: u64) -> Damage {
        self.offset = self.offset.saturating_add(by);
        self
    }

    /// The error for this damage in `file`, whose decoded thing starts at `base`.
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

    /// A table's bytes are not what was written.
    #[error(
        "table {file} is damaged at byte {offset}: {what}: expected {expected:#x}, found {found:#x}; \
         restore the file from a copy; `silt check` tells how far the damage goes"
    )]
    Corruption {
        /// The file's name.
        file: String,
        /// Byte offset in the file.
        offset: u64,
        /// The field or the rule that is broken.
        what: &'static str,
        /// What the field should hold, or the bound that it should keep.
        expected: u64,
        /// What it holds.
        found: u64,
    },

    /// A table of a format that this version does not read.
    #[error(
        "table {file} has format version {found}, this program reads version {supported}; open it with the version \
         that wrote it"
    )]
    UnsupportedVersion {
        /// The file's name.
        file: String,
        /// Its version.
        found: u32,
        /// The version that is read here.
        supported: u32,
    },

    /// A table with a property that must be understood and is not.
    #[error(
        "table {file} needs feature {tag:#06x}, which this program does not know; open it with a newer version"
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
        /// What was asked for.
        found: u64,
    },

    /// A caller broke a rule of the interface.
    #[error("{0}")]
    Misuse(&'static str),
}

impl TableError {
    /// Whether the bytes of a table are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, TableError::Corruption { .. })
    }
}
