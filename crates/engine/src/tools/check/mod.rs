//! Checking a store that nobody has open: every checksum and every invariant, without changing a byte of it.
//!
//! What it is: [`check`] reads pointer and manifest, every table that the manifest (or an ingest in the log) names, block by block,
//! and the whole log, and lists what is wrong by file and offset. What no file names is listed apart: orphans of a crash are deleted by
//! the next open and are no damage.
//!
//! Invariants: nothing is written (but that the lease's file is made where a store has none); a store that a writer has open is refused,
//! because its files change under the reader's eyes; one damaged file does not keep the others from being read; no bytes make it panic.
//!
//! Threading: one task.

use std::collections::BTreeSet;

use siltstone_storage::{ObjectMeta, Storage, StorageErrorKind};

use crate::formats::directories::{
    Claim, Folder, NO_CURRENT_ADVICE, Storages, folders, lease_shared,
};
use crate::formats::log::Position;
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{self, CURRENT_NAME, StoreId, manifest_name, parse_manifest_name};
use crate::formats::names::{self, Kind, Parts};
use crate::formats::version::StoreState;
use crate::types::error::{Error, Result};
use crate::types::options::KeyspaceOptions;

mod log;
mod tables;

use log::{Ingested, check_log};
pub(crate) use tables::{TableWalk, check_open_table, unreadable_table};

/// Where the parts of a store lie.
#[derive(Clone, Copy)]
pub struct CheckStorages<'a> {
    /// The log's storage.
    pub log: &'a dyn Storage,
    /// That of the manifest and the lease.
    pub manifest: &'a dyn Storage,
    /// That of the tables.
    pub tables: &'a dyn Storage,
}

impl<'a> CheckStorages<'a> {
    /// All on one storage.
    pub fn on(storage: &'a dyn Storage) -> CheckStorages<'a> {
        CheckStorages {
            log: storage,
            manifest: storage,
            tables: storage,
        }
    }

    /// Those of a store whose parts were found.
    pub fn of(storages: &'a Storages) -> CheckStorages<'a> {
        CheckStorages {
            log: &*storages.log,
            manifest: &*storages.manifest,
            tables: &*storages.tables,
        }
    }

    fn folders(&self) -> Vec<Folder<'a>> {
        folders(self.log, self.manifest, self.tables)
    }
}

/// What was found in one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceCheck {
    /// Its name.
    pub name: String,
    /// Tables that the manifest names, sound or not.
    pub table_count: u64,
    /// Bytes of their files, as the manifest says.
    pub file_bytes: u64,
    /// Sound entries, deletes and shadowed versions included.
    pub entry_count: u64,
    /// Problems of its tables.
    pub problem_count: u64,
}

/// What a check and a repair say of a log whose last record is not whole.
#[doc(hidden)]
pub const TORN_RECORD: &str = "there a record begins that is not whole: a write that was not \
    synced when the process or the power ended, or damage of the last record, which nobody can \
    tell apart; an open and a repair leave it out";

/// What was found in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCheck {
    /// Segments that hold history.
    pub segment_count: u64,
    /// Records.
    pub record_count: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// Entries of batches in these records.
    pub entry_count: u64,
    /// Where history ends, as segment and byte.
    pub end: Position,
    /// Why it ends there.
    pub stop: String,
    /// A record begins there and is not whole: a write that was under way when the process or the
    /// power ended, or damage of the last record, which nobody can tell apart. An open and a repair
    /// leave it out.
    pub is_torn: bool,
    /// The store was closed with its log ending there.
    pub closed: bool,
    /// Whole records behind the end, which an open would discard: a write that was never synced was torn.
    pub discarded_record_count: u64,
    /// Bytes of these.
    pub discarded_bytes: u64,
}

/// What a check found. Damage is in `problems`; the rest says how much was looked at.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The store's identity.
    pub store_id: StoreId,
    /// The current manifest's name.
    pub manifest: String,
    /// Its good records.
    pub manifest_record_count: u64,
    /// Bytes of an unacknowledged edit at its end, which an open drops.
    pub manifest_dropped_bytes: u64,
    /// By name.
    pub keyspaces: Vec<KeyspaceCheck>,
    /// Tables that were looked at.
    pub table_count: u64,
    /// Bytes of their files, as found.
    pub table_bytes: u64,
    /// Sound blocks.
    pub block_count: u64,
    /// Sound entries in them.
    pub entry_count: u64,
    /// Range-delete fragments.
    pub range_delete_count: u64,
    /// The log; `None` if its damage kept it from being read to an end.
    pub log: Option<LogCheck>,
    /// Files of a store that nothing names any more: what a crash left behind, or what became obsolete just before the store was
    /// closed. The next open deletes them. Names of files that do not lie in the store's folder have their folder before them.
    pub orphans: Vec<ObjectMeta>,
    /// Files that belong to no store, or not into this folder of it.
    pub foreign: Vec<ObjectMeta>,
    /// Everything that is wrong.
    pub problems: Vec<Error>,
}

impl CheckReport {
    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// Bytes of tables that are done.
    pub done_bytes: u64,
    /// Bytes of all tables.
    pub total_bytes: u64,
}

/// Checks a store. `progress` is told after every table.
///
/// # Errors
/// What keeps the store from being looked at: `NotFound` where there is no store, `Locked` while a writer has it, `Unsupported` for a
/// newer format, or I/O. Damage is no error of the call, it is in the report.
pub fn check(
    storages: &CheckStorages<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    // Looked at before the lease, which leaves a file: a folder that is no store is left as it is.
    let is_store = match manifest::read_current(storages.manifest) {
        Ok(Some(_)) => true,
        Ok(None) => {
            crate::formats::directories::refuse_destroyed(storages.manifest)?;
            crate::formats::directories::refuse_unfinished(storages.manifest)?;
            holds_data(storages)?
        }
        Err(error) if error.is_corruption() => true,
        Err(error) => return Err(error),
    };
    if !is_store {
        return Err(Error::not_found(format!(
            "there is no store in {}",
            storages.manifest.describe()
        ))
        .advice("check the path"));
    }
    let folders = storages.folders();
    let _leases = lease_shared(&folders, "checking")?;
    // Read again: a writer may have come and gone before the lease was ours.
    let recovered = match manifest::recover(storages.manifest) {
        Ok(Some(recovered)) => recovered,
        Ok(None) => {
            report.problems.push(
                Error::corruption(
                    CURRENT_NAME,
                    "the folder holds data of a store but no file CURRENT that names its manifest",
                )
                .advice(NO_CURRENT_ADVICE),
            );
            return Ok(report);
        }
        Err(error) if error.is_corruption() => {
            report.problems.push(error);
            return Ok(report);
        }
        Err(error) => return Err(error),
    };
    report.store_id = recovered.current.store_id;
    match Claim::inspect(&folders, Some(report.store_id), || report.store_id) {
        Ok(_) => {}
        Err(error) if error.is_corruption() => report.problems.push(error),
        // Other folders than the store's own: what they hold says nothing of it.
        Err(error) => return Err(error),
    }
    report.manifest = manifest_name(recovered.current.number);
    report.manifest_record_count = recovered.record_count;
    report.manifest_dropped_bytes = recovered.dropped_bytes;
    let state = recovered.state;
    if let Err(error) = state.check() {
        report.problems.push(error.in_file(report.manifest.clone()));
    }
    check_options(storages, &state, &mut report);
    let (ingested, passed) = check_log(storages.log, report.store_id, &state, &mut report)?;
    let log_problem_count = report.problems.len();
    tables::check_tables(storages.tables, &state, &ingested, &mut report, progress)?;
    if let Some(passed) = passed {
        let error = match report.keyspaces.iter().all(|k| k.problem_count == 0) {
            true => passed.to_error(state.closed),
            false => passed.to_error_beside_damaged_tables(),
        };
        report.problems.insert(log_problem_count, error);
    }
    list_unnamed(&folders, &state, &ingested, &mut report)?;
    Ok(report)
}

/// Reports what makes an open fail that follows `OPTIONS.toml`: a file that cannot be read, and
/// settings that do not fit the store. The file is no part of the data, and an open by a library
/// does not need it, but `silt` and every program that reads it fails.
fn check_options(storages: &CheckStorages<'_>, state: &StoreState, report: &mut CheckReport) {
    let file = match crate::formats::options_file::read(storages.manifest) {
        Ok(Some(file)) => file,
        Ok(None) => return,
        Err(error) => {
            // Something other than a file in its place is reported with the other names.
            if error.storage().is_none() {
                let error = crate::types::options::file_is_wrong(error)
                    .in_file(crate::types::options::file::OPTIONS);
                report.problems.push(error);
            }
            return;
        }
    };
    for (part, (name, wish)) in [storages.log, storages.tables]
        .into_iter()
        .zip(file.options.directories())
    {
        let moved = crate::formats::directories::moved_by_file(storages.manifest, part, name, wish);
        report.problems.extend(moved);
    }
    // An open for writing has the store keep what the file sets for its keyspaces.
    for keyspace in state.keyspaces.values() {
        let Some(wished) = file.options.keyspaces.get(&keyspace.name) else {
            continue;
        };
        let kept = KeyspaceOptions::from_stored(&keyspace.options);
        let merged = kept.and_then(|kept| {
            crate::types::options::keyspace::merged(&keyspace.name, &kept, wished, Some(wished))
        });
        report.problems.extend(merged.err());
    }
}

/// Whether the folder has tables, manifests or log segments.
fn holds_data(storages: &CheckStorages<'_>) -> Result<bool> {
    let tables = storages.tables.list()?.iter().any(|o| is_table(&o.name));
    let manifests = storages
        .manifest
        .list()?
        .iter()
        .any(|o| parse_manifest_name(&o.name).is_some());
    let segments = storages.log.list()?.iter().any(|o| is_segment(&o.name));
    Ok(tables || manifests || segments)
}

fn is_segment(name: &str) -> bool {
    parse_segment_name(name).is_some()
}

fn is_table(name: &str) -> bool {
    crate::formats::names::open_number_of(name).is_some()
}

/// Whether the error is that this process may not read a file. Nothing is known of the file then,
/// so this is no damage, and the check fails.
fn is_denied(error: &Error) -> bool {
    let source = error.storage();
    source.is_some_and(|e| e.kind == StorageErrorKind::PermissionDenied)
}

/// Lists the files that nothing names.
fn list_unnamed(
    folders: &[Folder<'_>],
    state: &StoreState,
    ingested: &Ingested,
    report: &mut CheckReport,
) -> Result<()> {
    let installed = state
        .keyspaces
        .values()
        .flat_map(|k| k.version.tables().map(|(_, t)| t));
    let named: BTreeSet<&str> = installed
        .chain(ingested.tables.iter().map(|(_, t)| t))
        .map(|t| t.name.as_str())
        .collect();
    for (i, (storage, parts)) in folders.iter().enumerate() {
        for object in storage.list()? {
            let kind = names::kind_of(&object.name).filter(|kind| parts.hold(*kind));
            let is_named = match kind {
                Some(Kind::Table(_)) => named.contains(object.name.as_str()),
                Some(Kind::Manifest(_)) => object.name == report.manifest,
                // Segments that hold no history are no orphans: they are prepared or wait to be used again.
                Some(_) => true,
                None => false,
            };
            let list = match kind {
                Some(_) => &mut report.orphans,
                None => &mut report.foreign,
            };
            if !is_named {
                list.push(ObjectMeta {
                    name: match i {
                        0 => object.name,
                        _ => format!("{}/{}", storage.describe(), object.name),
                    },
                    len: object.len,
                });
            }
        }
        check_fixed_names(*storage, *parts, report);
    }
    Ok(())
}

/// Something else than a file may have a name that the store needs; listings of files do not show it, and an open would fail on it.
fn check_fixed_names(storage: &dyn Storage, parts: Parts, report: &mut CheckReport) {
    for name in names::FIXED.iter().filter(|name| parts.own(name)) {
        match storage.open(name) {
            Ok(_) => {}
            Err(error) if error.kind == StorageErrorKind::NotFound => {}
            Err(error) => report.problems.push(error.into()),
        }
    }
}
