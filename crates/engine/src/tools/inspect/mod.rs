//! Inspects single files of a store: log segments, manifests, the pointer, tables.
//!
//! [`recognise`] determines what a file is, first by its contents. [`LogFile`], [`ManifestFile`]
//! and [`TableFile`] read a file with the offset of everything in it, as far as possible and also
//! behind damage. `silt dump` prints the result. Nothing is interpreted beyond the file:
//! [`crate::tools::check`] decides whether a record is history or a table is part of the store.
//!
//! Invariants: files are only read, without a lease. The store may be open for writing, and what is
//! written meanwhile looks like damage at the end. Every byte is checked before it is used, and no
//! bytes cause a panic. Damage is an item of the result and not its end. Memory: one record, block
//! or section; the whole of a manifest; the whole file of a table without an index.
//!
//! Threading: each reader belongs to one task.

mod log;
mod manifest;
mod table;

use siltstone_storage::{ReadFile, StorageErrorKind};

pub use log::{LogContent, LogEnd, LogEntry, LogFile, LogItem, LogRecord, Rest};
pub use manifest::{ManifestEnd, ManifestFile, ManifestItem, ManifestRecord};
pub use table::{BlockInfo, TableFile};

use crate::formats::directories::{Directories, Opened, Owner};
use crate::formats::log::format as log_format;
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::format as manifest_format;
use crate::formats::manifest::format::CURRENT_WORD;
use crate::formats::manifest::{CURRENT_NAME, parse_manifest_name};
use crate::formats::names::BUILT_TABLE_SUFFIX;
use crate::formats::names::PARTIAL;
use crate::formats::names::{DIRECTORIES, OPENED, OWNER};
use crate::types::error::{Error, Result};
use crate::types::options::KeyspaceOptions;
use crate::types::options::stored::StoredOptions;

/// The kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A segment of the log.
    Log,
    /// A manifest.
    Manifest,
    /// A table: one of the store, or one that was built or exported.
    Table,
    /// The pointer to the manifest.
    Pointer,
}

impl FileKind {
    /// The name of the kind.
    pub fn word(self) -> &'static str {
        match self {
            FileKind::Log => "log segment",
            FileKind::Manifest => "manifest",
            FileKind::Table => "table",
            FileKind::Pointer => "pointer",
        }
    }
}

/// What a file was recognised as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// The kind.
    pub kind: FileKind,
    /// Whether its contents show the kind. If not, only its name does.
    pub by_content: bool,
}

/// The kind of this file: by the magic number at its start or end, otherwise by its name; `None` if
/// neither shows one.
///
/// # Errors
/// Those of the storage.
pub fn recognise(file: &dyn ReadFile) -> Result<Option<Recognised>> {
    let by_content = |kind| {
        Some(Recognised {
            kind,
            by_content: true,
        })
    };
    let mut head = [0; 8];
    if file.len() >= head.len() as u64 {
        file.read_at(0, &mut head)?;
        match head {
            log_format::MAGIC => return Ok(by_content(FileKind::Log)),
            manifest_format::MAGIC => return Ok(by_content(FileKind::Manifest)),
            // DIRECTORIES, OWNER and OPENED begin with the same eight bytes, so the pointer is
            // recognised by its whole first word.
            _ if CURRENT_WORD.as_bytes().starts_with(&head) => {
                let mut word = [0; CURRENT_WORD.len()];
                if file.len() >= word.len() as u64 {
                    file.read_at(0, &mut word)?;
                }
                if word == *CURRENT_WORD.as_bytes() {
                    return Ok(by_content(FileKind::Pointer));
                }
            }
            _ => {}
        }
        file.read_at(file.len() - head.len() as u64, &mut head)?;
        if head == siltstone_table::footer::MAGIC {
            return Ok(by_content(FileKind::Table));
        }
    }
    let name = file.name();
    let kind = if parse_segment_name(name).is_some() {
        FileKind::Log
    } else if parse_manifest_name(name).is_some() {
        FileKind::Manifest
    } else if name == CURRENT_NAME {
        FileKind::Pointer
    } else if name.ends_with(".tbl") || name.ends_with(BUILT_TABLE_SUFFIX) {
        FileKind::Table
    } else {
        return Ok(None);
    };
    Ok(Some(Recognised {
        kind,
        by_content: false,
    }))
}

/// The purpose of a small file in a store's folder that has no [`FileKind`], by its name; `None`
/// for a name that no store uses.
pub fn purpose(name: &str) -> Option<&'static str> {
    Some(match name {
        "OPTIONS.toml" => "the user's settings, which `silt` uses",
        "STATS.json" => "statistics of the process that has, or had, the store open for writing",
        "DIRECTORIES" => "the folders of log and tables that are not in this folder",
        "OWNER" => "the store whose log or tables are in this folder",
        "OPENED" => "the opens by which the folders of the store know each other",
        PARTIAL => "the mark of a checkpoint or a repair that is not finished",
        crate::formats::names::MANIFEST_RESERVE
        | crate::formats::names::MANIFEST_RESERVE_RESIZING
        | crate::formats::names::LOG_RESERVE
        | crate::formats::names::CURRENT_RESERVE => {
            "space that is reserved for opening the store on a full disk"
        }
        _ if name.starts_with("LOCK.") => "the lock of the process that has the store open",
        _ => return None,
    })
}

/// Checks the contents of a small file that has a [`purpose`]: `DIRECTORIES`, `OWNER` or `OPENED`.
/// Other files have no contents that an open depends on, or contents that others can check.
///
/// # Errors
/// `Corruption` if the file is not what its name says; `Unsupported` if a later version wrote it.
pub fn check_small(name: &str, bytes: &[u8]) -> Result<()> {
    match name {
        DIRECTORIES => Directories::check_bytes(bytes),
        OWNER => Owner::check_bytes(bytes),
        OPENED => Opened::check_bytes(bytes),
        _ => Ok(()),
    }
}

/// The options that were set for a keyspace, as names and values. An option that this version does
/// not know has its tag as its name, and hexadecimal digits as its value.
pub fn stored_options(stored: &StoredOptions) -> Vec<(String, String)> {
    match KeyspaceOptions::from_stored(stored) {
        Ok(options) => options
            .values()
            .into_iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect(),
        Err(_) => stored
            .iter()
            .map(|(tag, value)| {
                let digits: String = value.iter().map(|b| format!("{b:02x}")).collect();
                (format!("tag {tag:#06x}"), digits)
            })
            .collect(),
    }
}

/// Adds advice to the error of a read if the file became shorter meanwhile.
fn shrank(error: Error) -> Error {
    let source = error.storage();
    if source.is_some_and(|e| e.kind == StorageErrorKind::UnexpectedEof) {
        error.advice("the file became shorter while it was read: read it again")
    } else {
        error
    }
}
