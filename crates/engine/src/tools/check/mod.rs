//! Checks a store that is not open: every checksum and every invariant, without changing a byte of
//! it.
//!
//! [`check`] reads the pointer and the manifest, every table that the manifest (or an ingest in the
//! log) names, block by block, and the whole log, and lists what is wrong by file and offset. Files
//! that nothing names are listed separately: orphans of a crash are deleted by the next open and
//! are not damage.
//!
//! Invariants: nothing is written (except that the lease's file is created if a store has none). A
//! store that is open for writing is refused, because its files change during the check. A damaged
//! file does not keep the others from being read. No bytes cause a panic.
//!
//! Threading: one task.

use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone_storage::{ObjectMeta, Storage, StorageErrorKind};

use crate::formats::directories::{
    Claim, Folder, Missing, NO_CURRENT_ADVICE, Opened, Storages, folders, lease_shared,
    why_unusable,
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

/// The storages of a store.
#[derive(Clone, Copy)]
pub struct CheckStorages<'a> {
    /// The storage of the log.
    pub log: &'a dyn Storage,
    /// The storage of the manifest and the lease.
    pub manifest: &'a dyn Storage,
    /// The storage of the tables.
    pub tables: &'a dyn Storage,
    /// The storage of the second location of tables, if the store has one.
    pub redirect: Option<&'a dyn Storage>,
}

impl<'a> CheckStorages<'a> {
    /// All parts on one storage.
    pub fn on(storage: &'a dyn Storage) -> CheckStorages<'a> {
        CheckStorages {
            log: storage,
            manifest: storage,
            tables: storage,
            redirect: None,
        }
    }

    /// The storages that [`Storages::find`] found.
    pub fn of(storages: &'a Storages) -> CheckStorages<'a> {
        CheckStorages {
            log: &*storages.log,
            manifest: &*storages.manifest,
            tables: &*storages.tables,
            redirect: storages.redirect.as_deref(),
        }
    }

    fn folders(&self) -> Vec<Folder<'a>> {
        folders(self.log, self.manifest, self.tables, self.redirect)
    }

    /// Stands for the second location of tables, whose folder cannot be used because of `why`.
    fn missing_redirect(&self, why: Option<String>) -> Option<Arc<dyn Storage>> {
        Some(Missing::storage(&self.redirect?.location(), &why?))
    }
}

/// What a check found in one keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceCheck {
    /// The keyspace's name.
    pub name: String,
    /// The number of tables that the manifest names, sound or not.
    pub table_count: u64,
    /// Bytes of their files, according to the manifest.
    pub file_bytes: u64,
    /// The number of sound entries, including deletes and shadowed versions.
    pub entry_count: u64,
    /// The number of problems in its tables.
    pub problem_count: u64,
}

/// How a check and a repair describe a log whose last record is not complete.
#[doc(hidden)]
pub const TORN_RECORD: &str = "the record that begins there is not complete: either a write was \
    not synced when the process or the power failed, or the last record is damaged, which cannot \
    be told apart; an open and a repair leave it out";

/// What a check found in the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogCheck {
    /// The number of segments that hold records.
    pub segment_count: u64,
    /// The number of records.
    pub record_count: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// Entries of batches in these records.
    pub entry_count: u64,
    /// Where the records end, as segment and byte offset.
    pub end: Position,
    /// Why they end there.
    pub stop: String,
    /// Whether an incomplete record begins there. Either a write was in progress when the process
    /// or the power failed, or the last record is damaged, which cannot be told apart. An open and
    /// a repair leave it out.
    pub is_torn: bool,
    /// Whether the store was closed with its log ending there.
    pub closed: bool,
    /// The number of whole records behind the end, which an open would discard: a write before them
    /// was never synced and is torn.
    pub discarded_record_count: u64,
    /// Bytes of these records.
    pub discarded_bytes: u64,
}

/// What a check found. Damage is in `problems`; the other fields say how much was checked.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// The store's id.
    pub store_id: StoreId,
    /// The name of the current manifest.
    pub manifest: String,
    /// The number of good records in it.
    pub manifest_record_count: u64,
    /// Bytes of an unacknowledged edit at its end, which an open drops.
    pub manifest_dropped_bytes: u64,
    /// The keyspaces, in the order of their names.
    pub keyspaces: Vec<KeyspaceCheck>,
    /// The number of tables that were checked.
    pub table_count: u64,
    /// Bytes of their files, as found.
    pub table_bytes: u64,
    /// The number of sound blocks.
    pub block_count: u64,
    /// The number of sound entries in them.
    pub entry_count: u64,
    /// The number of range-delete fragments.
    pub range_delete_count: u64,
    /// The log; `None` if it could not be read to its end because of damage.
    pub log: Option<LogCheck>,
    /// Files of a store that nothing names any more: left behind by a crash, or obsolete just
    /// before the store was closed. The next open deletes them. A file in another folder than the
    /// store's own has the path of its folder in front.
    pub orphans: Vec<ObjectMeta>,
    /// Files that do not belong to a store, or not into this folder of it.
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

/// The progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// Bytes of the tables that are done.
    pub done_bytes: u64,
    /// Bytes of all tables.
    pub total_bytes: u64,
}

/// Checks a store. `progress` is called after every table.
///
/// # Errors
/// The reason why the store cannot be checked: `NotFound` if there is no store, `Locked` while it
/// is open for writing, `Unsupported` for a newer format, `Unreachable`, or I/O. Damage is not an
/// error of the call; the report has it.
pub fn check(
    storages: &CheckStorages<'_>,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport> {
    let mut report = CheckReport::default();
    // What is in a second location of tables that cannot be used is missing, and the others are
    // checked all the same.
    let redirect = storages.redirect;
    let why = match redirect {
        Some(redirect) => why_unusable(storages.manifest, redirect)?,
        None => None,
    };
    let missing = storages.missing_redirect(why);
    let storages = &CheckStorages {
        redirect: missing.as_deref().or(redirect),
        ..*storages
    };
    // This comes before the lease, which leaves a file: a folder without a store is not changed.
    let is_store = match manifest::read_current(storages.manifest) {
        Ok(Some(_)) => true,
        Ok(None) => {
            crate::formats::directories::refuse_destroyed(storages.manifest)?;
            crate::formats::directories::refuse_unfinished(storages.manifest)?;
            // What it holds is checked with the store that it belongs to.
            match crate::formats::directories::refuse_owned(storages.manifest, None) {
                Err(error) if error.is_corruption() => {}
                owned => owned?,
            }
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
    let (_leases, lost) = lease_shared(&storages.folders(), "checking")?;
    let missing = storages.missing_redirect(lost.map(|error| error.to_string()));
    let storages = &CheckStorages {
        redirect: missing.as_deref().or(storages.redirect),
        ..*storages
    };
    let folders = storages.folders();
    // It is read again, because a writer may have changed it before the lease was taken.
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
    let claimed = Claim::inspect(&folders, Some(report.store_id), || report.store_id);
    match claimed.and_then(|_| Opened::check(&folders, report.store_id)) {
        Ok(_) => {}
        Err(error) if error.is_corruption() => report.problems.push(error),
        // These are other folders than the store's own, so their contents say nothing about it.
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
    let (ingested, skipped) = check_log(storages.log, report.store_id, &state, &mut report)?;
    let log_problem_count = report.problems.len();
    tables::check_tables(storages, &state, &ingested, &mut report, progress)?;
    if let Some(skipped) = skipped {
        let error = match report.keyspaces.iter().all(|k| k.problem_count == 0) {
            true => skipped.to_error(state.closed),
            false => skipped.to_error_beside_damaged_tables(),
        };
        report.problems.insert(log_problem_count, error);
    }
    list_unnamed(&folders, &state, &ingested, &mut report)?;
    Ok(report)
}

/// Reports why an open that uses `OPTIONS.toml` would fail: the file cannot be read, or its
/// settings do not fit the store. The file is not part of the data, and an open does not need it,
/// but `silt` and every program that loads the file fails.
fn check_options(storages: &CheckStorages<'_>, state: &StoreState, report: &mut CheckReport) {
    let file = match crate::formats::options_file::read(storages.manifest) {
        Ok(Some(file)) => file,
        Ok(None) => return,
        Err(error) => {
            // A directory in its place, for example, is reported together with the other names.
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
    let wish = &file.options.redirect_dir;
    let refused = crate::formats::directories::redirect_by_file(&storages.folders(), wish, state);
    report.problems.extend(refused);
    // An open for writing stores the options that the file sets for its keyspaces.
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

/// Whether the folders have tables, manifests or log segments.
fn holds_data(storages: &CheckStorages<'_>) -> Result<bool> {
    let mut tables = storages.tables.list()?.iter().any(|o| is_table(&o.name));
    if let Some(redirect) = storages.redirect {
        tables |= redirect.list()?.iter().any(|o| is_table(&o.name));
    }
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

/// Whether the error is that this process may not read a file, or cannot reach the storage. Nothing
/// is known of the file then, so this is no damage, and the check fails.
pub(crate) fn is_no_damage(error: &Error) -> bool {
    let kind = error.storage().map(|error| error.kind);
    matches!(
        kind,
        Some(StorageErrorKind::PermissionDenied | StorageErrorKind::Unreachable)
    )
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
        let listed = match storage.list() {
            Err(error) if parts.redirected => {
                let place = storage.describe();
                report.problems.push(Error::from(error).context(place));
                continue;
            }
            listed => listed?,
        };
        for object in listed {
            let kind = names::kind_of(&object.name).filter(|kind| parts.hold(*kind));
            let is_named = match kind {
                Some(Kind::Table(_)) => named.contains(object.name.as_str()),
                Some(Kind::Manifest(_)) => object.name == report.manifest,
                // Segments without records are not orphans: they are prepared, or wait to be
                // recycled.
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
        check_fixed_names(*storage, *parts, report)?;
    }
    Ok(())
}

/// A directory, for example, may have a name that the store needs. A listing of files does not show
/// it, but an open would fail.
///
/// # Errors
/// That the storage cannot be reached.
fn check_fixed_names(storage: &dyn Storage, parts: Parts, report: &mut CheckReport) -> Result<()> {
    for name in names::FIXED.iter().filter(|name| parts.own(name)) {
        match storage.open(name) {
            Ok(_) => {}
            Err(error) if error.kind == StorageErrorKind::NotFound => {}
            Err(error) if error.kind == StorageErrorKind::Unreachable && !parts.redirected => {
                return Err(error.into());
            }
            Err(error) => {
                let error = Error::from(error);
                report.problems.push(match parts.redirected {
                    false => error,
                    true => error.in_file(format!("{}/{name}", storage.describe())),
                });
            }
        }
    }
    Ok(())
}
