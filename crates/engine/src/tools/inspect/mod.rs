//! Looking into single files of a store: log segments, manifests, the pointer, tables.
//!
//! What it is: [`recognise`] says what a file is, by its content first; [`LogFile`], [`ManifestFile`] and [`TableFile`] read one with the offset of
//! everything in it, as far as it holds, behind damage too. `silt dump` prints what they say. Nothing is interpreted beyond the file: whether a
//! record is history, a table part of the store, is for [`crate::tools::check`].
//!
//! Invariants: files are only read, without a lease: a writer may have the store open, and what it writes meanwhile looks like damage at the end.
//! Every byte is checked before it is believed; no bytes cause a panic; damage is an item of what is read, not the end of it. Memory: one
//! record, block or section, the whole of a manifest, and of a table without an index the whole file.
//!
//! Threading: each reader belongs to one task.

mod log;
mod manifest;
mod table;

use siltstone_storage::{ReadFile, StorageErrorKind};

pub use log::{LogContent, LogEnd, LogEntry, LogFile, LogItem, LogRecord, Rest};
pub use manifest::{ManifestEnd, ManifestFile, ManifestItem, ManifestRecord};
pub use table::{BlockInfo, TableFile};

use crate::formats::directories::{Directories, Owner};
use crate::formats::log::format as log_format;
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::format as manifest_format;
use crate::formats::manifest::format::CURRENT_WORD;
use crate::formats::manifest::{CURRENT_NAME, parse_manifest_name};
use crate::formats::names::BUILT_TABLE_SUFFIX;
use crate::formats::names::PARTIAL;
use crate::formats::names::{DIRECTORIES, OWNER};
use crate::types::error::{Error, Result};
use crate::types::options::KeyspaceOptions;
use crate::types::options::stored::StoredOptions;

/// What kind of file one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// A segment of the log.
    Log,
    /// A manifest.
    Manifest,
    /// A table, a store's own or one built or exported.
    Table,
    /// The pointer to the manifest.
    Pointer,
}

impl FileKind {
    /// The kind in a word or two.
    pub fn word(self) -> &'static str {
        match self {
            FileKind::Log => "log segment",
            FileKind::Manifest => "manifest",
            FileKind::Table => "table",
            FileKind::Pointer => "pointer",
        }
    }
}

/// What a file was taken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recognised {
    /// The kind.
    pub kind: FileKind,
    /// Whether the file's own bytes say so; else only its name does.
    pub by_content: bool,
}

/// What kind of file this is: by the magic number at its start or end, else by its name; `None` if neither tells.
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
            // DIRECTORIES and OWNER begin with the same eight bytes: its whole first word tells the pointer from them.
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

/// What a small file of a store's folder is for that is no [`FileKind`], by its name; `None` for names that no store has.
pub fn purpose(name: &str) -> Option<&'static str> {
    Some(match name {
        "OPTIONS.toml" => "the user's settings, which `silt` follows",
        "STATS.json" => "statistics of the process that has the store open for writing, or had",
        "DIRECTORIES" => "where log and tables lie that are not in this folder",
        "OWNER" => "whose log or tables lie in this folder",
        PARTIAL => "the mark of a checkpoint or a repair that is not finished",
        crate::formats::names::MANIFEST_RESERVE
        | crate::formats::names::MANIFEST_RESERVE_RESIZING
        | crate::formats::names::LOG_RESERVE
        | crate::formats::names::CURRENT_RESERVE => {
            "space that is kept for opening the store on a full disk"
        }
        _ if name.starts_with("LOCK.") => "what the process locks that has the store open",
        _ => return None,
    })
}

/// Checks the contents of a small file that has a [`purpose`]: `DIRECTORIES` or `OWNER`. Files of
/// other names have no contents that an open depends on, or contents that others can check.
///
/// # Errors
/// `Corruption` if the file is not what its name says; `Unsupported` if a later version wrote it.
pub fn check_small(name: &str, bytes: &[u8]) -> Result<()> {
    match name {
        DIRECTORIES => Directories::check_bytes(bytes),
        OWNER => Owner::check_bytes(bytes),
        _ => Ok(()),
    }
}

/// What was set for a keyspace, as names and values, what is not known here as its tag and hexadecimal digits.
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

/// An error of a read, with advice where the file became shorter meanwhile.
fn shrank(error: Error) -> Error {
    let source = error.storage();
    if source.is_some_and(|e| e.kind == StorageErrorKind::UnexpectedEof) {
        error.advice("the file became shorter while it was read: look again")
    } else {
        error
    }
}
