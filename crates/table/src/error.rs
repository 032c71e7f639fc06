//! The error of this crate, and [`Damage`], the small part of it that block searches return.
//!
//! Bytes from disk never cause a panic: bad bytes become a [`TableError::Corruption`] that names
//! the file, the offset, the field, and what was expected and found.

use std::fmt;

use siltstone_storage::StorageError;

/// The result of a table operation.
pub type Result<T> = std::result::Result<T, TableError>;

/// A feature that has its place in the bytes and that this build does not have (RFC 12, section 4).
/// Bytes with it are not damaged: a build that has the feature reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Feature {
    /// Operands of a merge operator.
    MergeOperands,
    /// Addresses of values in a value log.
    ValueAddresses,
    /// Times at which entries expire.
    Expiries,
    /// A property that must be understood, with an unknown tag.
    Property(u16),
    /// A codec with an unknown number.
    Codec(u8),
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Feature::MergeOperands => f.write_str("merge operands"),
            Feature::ValueAddresses => f.write_str("value addresses"),
            Feature::Expiries => f.write_str("expiry of entries"),
            Feature::Property(tag) => write!(f, "property {tag:#06x}"),
            Feature::Codec(number) => write!(f, "codec {number}"),
        }
    }
}

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
    /// The feature that explains the bytes, if they are not damaged but need it.
    pub feature: Option<Feature>,
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
            feature: None,
        }
    }

    /// Describes bytes that need a feature which this build does not have.
    #[cold]
    pub fn unsupported(feature: Feature, offset: u64) -> Damage {
        Damage {
            what: "a feature that this build does not have",
            offset,
            expected: 0,
            found: 0,
            feature: Some(feature),
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
        if let Some(feature) = self.feature {
            return TableError::UnsupportedFeature {
                file: file.to_string(),
                offset: base.saturating_add(self.offset),
                feature,
            };
        }
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
        if let Some(feature) = self.feature {
            let offset = self.offset;
            return write!(
                f,
                "{feature} at byte {offset}, a feature that this build lacks"
            );
        }
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
         {found:#x}; restore the file from a copy; `silt check` shows how far the damage goes"
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

    /// The table needs a feature that this program does not have. It is not damaged.
    #[error(
        "table {file} needs a feature at byte {offset} that this program does not have: \
         {feature}; open it with a newer version"
    )]
    UnsupportedFeature {
        /// The file's name.
        file: String,
        /// Where the feature was found: the byte offset in the file.
        offset: u64,
        /// The feature.
        feature: Feature,
    },

    /// The table was made by another version of the layout rules. It is not damaged.
    #[error(
        "table {file} has version {found} of the layout rules, and this program reads only \
         version {supported}; {}",
        layout_advice(*found, *supported)
    )]
    UnsupportedLayout {
        /// The file's name.
        file: String,
        /// The version of the table.
        found: u64,
        /// The version that this program reads.
        supported: u64,
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

/// What to do with a table of another version of the layout rules.
pub fn layout_advice(found: u64, supported: u64) -> &'static str {
    match found < supported {
        true => {
            "it is older than this program: open it with the build that wrote it, and bring the \
             data over with `silt scan STORE` of that build and `silt load STORE - --format tsv \
             --escapes` of this one"
        }
        false => "it is newer than this program: open it with a newer version",
    }
}

impl TableError {
    /// Whether the bytes are not damaged, but of a version or with a feature that this program does
    /// not have.
    pub fn is_unsupported(&self) -> bool {
        matches!(
            self,
            TableError::UnsupportedVersion { .. }
                | TableError::UnsupportedFeature { .. }
                | TableError::UnsupportedLayout { .. }
        )
    }

    /// Whether the bytes of a table are damaged.
    pub fn is_corruption(&self) -> bool {
        matches!(self, TableError::Corruption { .. })
    }
}
