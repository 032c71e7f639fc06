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

use std::collections::{BTreeMap, BTreeSet};

use siltstone_storage::{ObjectMeta, Storage, StorageErrorKind};
use siltstone_table::reader::{ReaderOptions, TableReader, Verify};

use crate::formats::directories::{
    Claim, Folder, NO_CURRENT_ADVICE, Storages, folders, lease_shared,
};
use crate::formats::log::Position;
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{self, CURRENT_NAME, StoreId, manifest_name, parse_manifest_name};
use crate::formats::names::{self, Kind, Parts};
use crate::formats::version::meta::in_block;
use crate::formats::version::{End, KeyRange, StoreState, TableMeta};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::KeyspaceOptions;

mod log;

use log::{Ingested, check_log};

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
    check_tables(storages.tables, &state, &ingested, &mut report, progress)?;
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

fn check_tables(
    storage: &dyn Storage,
    state: &StoreState,
    ingested: &Ingested,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<()> {
    let named = |id: KeyspaceId| {
        let installed = state
            .keyspace(id)
            .into_iter()
            .flat_map(|k| k.version.tables().map(|(_, t)| t));
        installed.chain(
            ingested
                .tables
                .iter()
                .filter(move |(k, _)| *k == id)
                .map(|(_, t)| t),
        )
    };
    let installed = state.keyspaces.iter().map(|(id, k)| (*id, &k.name));
    let all = || {
        installed
            .clone()
            .chain(ingested.keyspaces.iter().map(|(id, name)| (*id, name)))
    };
    let total_bytes = all()
        .flat_map(|(id, _)| named(id))
        .map(|t| t.file_bytes)
        .sum();
    let mut done_bytes = 0;
    let lengths: BTreeMap<String, u64> = storage
        .list()?
        .into_iter()
        .map(|o| (o.name, o.len))
        .collect();
    for (id, name) in all() {
        let mut found = KeyspaceCheck {
            name: name.clone(),
            ..KeyspaceCheck::default()
        };
        for meta in named(id) {
            found.table_count += 1;
            found.file_bytes += meta.file_bytes;
            let before = (report.entry_count, report.problems.len());
            if let Err(error) = check_table(storage, &lengths, meta, report) {
                // A table that cannot be opened is lost with all of its keys.
                let error = error.in_file(meta.name.clone()).keys(&meta.bounds);
                if is_denied(&error) {
                    return Err(error);
                }
                report.problems.push(error);
            }
            found.entry_count += report.entry_count - before.0;
            found.problem_count += (report.problems.len() - before.1) as u64;
            done_bytes += meta.file_bytes;
            progress(CheckProgress {
                done_bytes,
                total_bytes,
            });
        }
        report.keyspaces.push(found);
    }
    report.keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

/// Whether the error is that this process may not read a file. Nothing is known of the file then,
/// so this is no damage, and the check fails.
fn is_denied(error: &Error) -> bool {
    let source = error.storage();
    source.is_some_and(|e| e.kind == StorageErrorKind::PermissionDenied)
}

/// Checks one table; an error is one more problem of it.
fn check_table(
    storage: &dyn Storage,
    lengths: &BTreeMap<String, u64>,
    meta: &TableMeta,
    report: &mut CheckReport,
) -> Result<()> {
    report.table_count += 1;
    let Some(len) = lengths.get(&meta.name) else {
        return Err(match storage.open(&meta.name) {
            Err(error) if error.kind != StorageErrorKind::NotFound => {
                // Something else lies in its place, which a listing of files does not show.
                Error::from(error).with_kind(ErrorKind::Corruption)
            }
            _ => Error::corruption(
                meta.name.clone(),
                "a table is missing that the manifest names, or an ingest in the log",
            )
            .expected(format!("a file of {} bytes", meta.file_bytes))
            .found("no such file")
            .advice(
                "restore the file from a copy, or make a new store of what can be read with `silt \
                 repair`; if tables lay in a folder of their own, put DIRECTORIES back first",
            ),
        });
    };
    report.table_bytes += len;
    check_file(storage, meta, *len, report)
}

/// As [`check_table`], for a table that nobody deletes meanwhile.
pub(crate) fn check_open_table(
    storage: &dyn Storage,
    meta: &TableMeta,
    report: &mut CheckReport,
) -> Result<()> {
    report.table_count += 1;
    report.table_bytes += meta.file_bytes;
    check_file(storage, meta, meta.file_bytes, report)
}

/// Compares a table's file, of `len` bytes, with what the manifest says, and checks all of it.
fn check_file(
    storage: &dyn Storage,
    meta: &TableMeta,
    len: u64,
    report: &mut CheckReport,
) -> Result<()> {
    let mut differences = Vec::new();
    differs(
        &mut differences,
        "length",
        format!("{} bytes", meta.file_bytes),
        format!("{len} bytes"),
    );
    let file = storage.open(&meta.name).map_err(|error| match error.kind {
        StorageErrorKind::NotFound => Error::from(error).with_kind(ErrorKind::Corruption),
        _ => error.into(),
    })?;
    let options = ReaderOptions {
        verify: Verify::Always,
        map: false,
        ..ReaderOptions::default()
    };
    let opened = TableReader::open(file, options);
    if let Ok(table) = &opened {
        compare(table, meta, &mut differences);
    }
    report.problems.extend(different(meta, len, &differences));
    let table = opened?;
    let found = siltstone_table::check::check(&table)?;
    report.block_count += found.blocks;
    report.entry_count += found.entries;
    report.range_delete_count += table.range_deletes().fragments().len() as u64;
    report
        .problems
        .extend(found.damage.into_iter().map(in_block));
    Ok(())
}

/// A property of a table that differs: its name, what the manifest says, and what was found.
type Difference = (&'static str, String, String);

fn differs(all: &mut Vec<Difference>, what: &'static str, expected: String, found: String) {
    if expected != found {
        all.push((what, expected, found));
    }
}

/// Makes one problem of all differences of a table, because they have one cause.
fn different(meta: &TableMeta, len: u64, differences: &[Difference]) -> Option<Error> {
    let list = |value: for<'a> fn(&'a Difference) -> &'a String| {
        let all = differences.iter();
        let all = all.map(|difference| format!("{} {}", difference.0, value(difference)));
        all.collect::<Vec<_>>().join(", ")
    };
    match differences {
        [] => None,
        [("length", expected, found)] => Some(
            Error::corruption(
                meta.name.clone(),
                "a table has another length than the manifest says",
            )
            .at(len.min(meta.file_bytes))
            .expected(expected)
            .found(found),
        ),
        [(what, expected, found)] => Some(
            Error::corruption(
                meta.name.clone(),
                format!("a table's {what} differs from what the manifest says"),
            )
            .expected(expected)
            .found(found),
        ),
        _ => Some(
            Error::corruption(
                meta.name.clone(),
                "the file is another table than the one that the manifest names: it was \
                 replaced, or changed places with another file",
            )
            .expected(list(|d| &d.1))
            .found(list(|d| &d.2)),
        ),
    }
}

/// What the table says of itself against what the manifest says of it.
fn compare(table: &TableReader, meta: &TableMeta, differences: &mut Vec<Difference>) {
    let own = table.properties();
    let mut differs = |what, expected, found| differs(differences, what, expected, found);
    let hex = |digest: u128| format!("{digest:#018x}");
    differs(
        "digest",
        hex(meta.digest),
        hex(table.footer().digest.into()),
    );
    differs(
        "entry count",
        meta.entries.to_string(),
        own.entries.to_string(),
    );
    differs(
        "delete count",
        meta.deletes.to_string(),
        own.deletes.to_string(),
    );
    differs(
        "raw size",
        meta.raw_bytes.to_string(),
        own.raw_bytes().to_string(),
    );
    if meta.sequence_override.is_none() {
        let seqs = |lo: u64, hi: u64| format!("{lo} to {hi}");
        differs(
            "sequence range",
            seqs(meta.min_seq, meta.max_seq),
            seqs(own.smallest_seq, own.largest_seq),
        );
    }
    let keys = |points: Option<(&[u8], &[u8])>| match points {
        Some((first, last)) => KeyRange::closed(first, last).to_string(),
        None => "no keys".to_string(),
    };
    let own_points = own.smallest_key.as_deref().zip(own.largest_key.as_deref());
    let meta_points = meta.points.as_ref().map(|(a, b)| (&a[..], &b[..]));
    if own_points != meta_points {
        differs(
            "smallest and largest key",
            keys(meta_points),
            keys(own_points),
        );
    }
    for fragment in table.range_deletes().fragments() {
        let range = KeyRange {
            start: fragment.start.clone().into(),
            end: End::Excluded(fragment.end.clone().into()),
        };
        if !meta.bounds.includes(&range) {
            differs(
                "range deletes (bounds)",
                meta.bounds.to_string(),
                range.to_string(),
            );
        }
    }
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
