//! The tables' part of a check: each is read whole and compared with what the manifest says of it.
//!
//! The walk over the tables of all keyspaces is the same for the check of a closed store and for
//! [`Store::verify`](crate::Store::verify) of an open one.
//!
//! Invariant: a damaged table is a problem in the report, and the others are read all the same.
//!
//! Threading: one task.

use std::collections::BTreeMap;

use siltstone_storage::{Storage, StorageErrorKind};
use siltstone_table::reader::{ReaderOptions, TableReader, Verify};

use super::log::Ingested;
use super::{CheckProgress, CheckReport, CheckStorages, KeyspaceCheck, is_no_damage};
use crate::formats::directories::{Missing, REDIRECT};
use crate::formats::version::meta::in_block;
use crate::formats::version::{End, KeyRange, StoreState, TableMeta};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// A walk over the tables of all keyspaces, one keyspace after the other, and its counts.
pub(crate) struct TableWalk<'a> {
    report: &'a mut CheckReport,
    progress: &'a mut dyn FnMut(CheckProgress),
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a> TableWalk<'a> {
    /// A walk over tables whose files have this many bytes.
    pub(crate) fn new(
        report: &'a mut CheckReport,
        progress: &'a mut dyn FnMut(CheckProgress),
        total_bytes: u64,
    ) -> TableWalk<'a> {
        TableWalk {
            report,
            progress,
            done_bytes: 0,
            total_bytes,
        }
    }

    /// Checks the tables of one keyspace by `check`, which reports what is wrong with one.
    ///
    /// # Errors
    /// Those of `check`, which end the walk.
    pub(crate) fn keyspace<'t>(
        &mut self,
        name: &str,
        tables: impl Iterator<Item = &'t TableMeta>,
        mut check: impl FnMut(&TableMeta, &mut CheckReport) -> Result<()>,
    ) -> Result<()> {
        let before = (self.report.entry_count, self.report.problems.len());
        let mut found = KeyspaceCheck {
            name: name.to_string(),
            ..KeyspaceCheck::default()
        };
        for meta in tables {
            check(meta, self.report)?;
            found.table_count += 1;
            found.file_bytes += meta.file_bytes;
            self.done_bytes += meta.file_bytes;
            (self.progress)(CheckProgress {
                done_bytes: self.done_bytes,
                total_bytes: self.total_bytes,
            });
        }
        found.entry_count = self.report.entry_count - before.0;
        found.problem_count = (self.report.problems.len() - before.1) as u64;
        self.report.keyspaces.push(found);
        Ok(())
    }

    /// Ends the walk: keyspaces are reported by name.
    pub(crate) fn finish(self) {
        self.report.keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

/// The lengths of the files, by location and name.
type Lengths = BTreeMap<(u32, String), u64>;

/// The problem of a table that cannot be opened: it is lost with all of its keys.
pub(crate) fn unreadable_table(meta: &TableMeta, error: Error) -> Error {
    error.in_file(meta.name.clone()).keys(&meta.bounds)
}

/// Checks the tables that the manifest names, and those of ingests that are in the log only.
pub(super) fn check_tables(
    storages: &CheckStorages<'_>,
    state: &StoreState,
    ingested: &Ingested,
    report: &mut CheckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<()> {
    let named = |id: KeyspaceId| {
        let installed = state.keyspace(id).into_iter();
        let installed = installed.flat_map(|k| k.version.tables().map(|(_, t)| t));
        let own = ingested.tables.iter().filter(move |(k, _)| *k == id);
        installed.chain(own.map(|(_, t)| t)).map(|t| &**t)
    };
    let installed = state.keyspaces.iter().map(|(id, k)| (*id, &k.name));
    let in_log = ingested.keyspaces.iter().map(|(id, name)| (*id, name));
    let all = || installed.clone().chain(in_log.clone());
    let total_bytes = all()
        .flat_map(|(id, _)| named(id))
        .map(|t| t.file_bytes)
        .sum();
    let mut lengths = Lengths::new();
    for (location, storage) in (0..).zip([Some(storages.tables), storages.redirect]) {
        let listed = match storage.map_or(Ok(Vec::new()), Storage::list) {
            // Its tables are missing.
            Err(_) if location == REDIRECT => Vec::new(),
            listed => listed?,
        };
        for object in listed {
            lengths.insert((location, object.name), object.len);
        }
    }
    // What is at a location that the store does not have is missing.
    let nowhere = Missing::storage(
        "of the second location of tables",
        "the file DIRECTORIES in the store's folder does not name it",
    );
    let mut walk = TableWalk::new(report, progress, total_bytes);
    for (id, name) in all() {
        walk.keyspace(name, named(id), |meta, report| {
            let storage = match (meta.location, storages.redirect) {
                (0, _) => storages.tables,
                (REDIRECT, Some(redirect)) => redirect,
                _ => &*nowhere,
            };
            let checked = check_table(storage, &lengths, meta, report);
            let is_there = lengths.contains_key(&(meta.location, meta.name.clone()));
            let checked = checked.map_err(|error| {
                let error = unreadable_table(meta, error);
                match meta.location == 0 || is_there {
                    true => error,
                    // Nothing else shows in which folder it was.
                    false => error.in_file(format!("{}/{}", storage.describe(), meta.name)),
                }
            });
            match checked {
                Err(error) if meta.location == 0 && is_no_damage(&error) => return Err(error),
                checked => report.problems.extend(checked.err()),
            }
            Ok(())
        })?;
    }
    walk.finish();
    Ok(())
}

/// Checks one table; an error is one more problem of it.
fn check_table(
    storage: &dyn Storage,
    lengths: &Lengths,
    meta: &TableMeta,
    report: &mut CheckReport,
) -> Result<()> {
    report.table_count += 1;
    let Some(len) = lengths.get(&(meta.location, meta.name.clone())) else {
        return Err(match storage.open(&meta.name) {
            Err(error) if Missing::why(storage).is_some() => Error::corruption(
                meta.name.clone(),
                "a table is missing that the manifest names: the folder of its location cannot be \
                 used",
            )
            .expected(format!("a file of {} bytes", meta.file_bytes))
            .found(error)
            .advice(
                "mount the folder's disk, or bring the folder back; if it is lost for good, make a \
                 new store of what can be read with `silt repair`",
            ),
            Err(error) if error.kind == StorageErrorKind::Unreachable => error.into(),
            Err(error) if error.kind != StorageErrorKind::NotFound => {
                // Something else lies in its place, which a listing of files does not show.
                Error::from(error).with_kind(ErrorKind::Corruption)
            }
            _ => Error::corruption(
                meta.name.clone(),
                "a table is missing that the manifest names, or an ingest in the log",
            )
            .expected(format!("a file of {} bytes", meta.file_bytes))
            .found(format!("no such file in {}", storage.describe()))
            .advice(
                "restore the file from a copy, or make a new store of what can be read with `silt \
                 repair`; if tables lay in a folder of their own or on a device, put DIRECTORIES \
                 back first",
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

/// Compares the properties in the table with those in the manifest.
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
