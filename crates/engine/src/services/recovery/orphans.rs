//! The remains of earlier opens: names that must not be used again, and files that nothing refers
//! to.
//!
//! Invariant: a file is deleted only when the state that does not name it is durable. Only log
//! segments behind the end of the log go earlier, because no replay would read them.
//!
//! Threading: the opening task; after an open on a full disk, the maintenance task, while the store
//! is in use.

use std::collections::BTreeSet;
use std::ops::Range;

use siltstone_storage::planted;
use siltstone_storage::{Epoch, Storage, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::footer::Footer;
use siltstone_table::properties::Properties;

use crate::catalog::Catalog;
use crate::catalog::obsolete::delete_old_manifests;
use crate::formats::directories::{Missing, Storages, redirected_count};
use crate::formats::names::{DIRECTORIES, open_number_of};
use crate::formats::version::{MAX_OPEN_NUMBER, StoreState, TableMeta};
use crate::types::error::{Error, Result};

/// At most this many opens can have failed since the manifest was written. A table's name with a
/// number farther ahead was not given by an open.
const MAX_FAILED_OPENS: u64 = 1 << 32;

/// The number of this open. It is above that of the last open and that of every table at any
/// location, so that no name is used twice.
pub(super) fn next_open_number(storages: &Storages, old: &StoreState) -> Result<u64> {
    let plausible = old.open_number.saturating_add(MAX_FAILED_OPENS);
    let mut found = 0;
    for (_, tables) in storages.locations() {
        let numbers = tables.list()?;
        let numbers = numbers.iter().filter_map(|o| open_number_of(&o.name));
        found = numbers.filter(|n| *n <= plausible).fold(found, u64::max);
    }
    let next = old.open_number.max(found).saturating_add(1);
    if next > MAX_OPEN_NUMBER {
        return Err(
            Error::unsupported("the numbers of the store's opens are used up")
                .expected(format!("at most {MAX_OPEN_NUMBER}"))
                .advice("copy the data to a new store"),
        );
    }
    Ok(next)
}

/// The advice if a table is missing.
const MISSING_ADVICE: &str = "put the file back from a copy, or make a new store of what is left \
    with `silt repair`; commands that only read, such as `silt get` and `silt scan`, open the \
    store without it";

/// The advice if all tables are missing, and nothing says that they are in another folder.
const ELSEWHERE_ADVICE: &str = "none of the store's tables is in its folder: if they lay in \
    another folder or on a device, the file DIRECTORIES that says so is lost; put it back from a \
    copy, open the store once with the option table_dir, which tells the lines of the file, or \
    give the address of the folder on the device once, as in `silt load STORE - --tables URL < \
    /dev/null`; if the tables are lost, make a new store of what is left with `silt repair`";

/// Refuses a state that names tables which do not exist, at their locations. Either they were lost,
/// or the state is older than the folder, because the manifest has lost its last edits without a
/// trace. In that case the tables that replaced them look like orphans, which an open would delete.
pub(super) fn refuse_missing_tables(storages: &Storages, state: &StoreState) -> Result<()> {
    refuse_missing_location(storages, state)?;
    let mut there = BTreeSet::new();
    for (location, tables) in storages.locations() {
        let names = tables.list()?.into_iter().map(|object| object.name);
        there.extend(names.map(|name| (location, name)));
    }
    let is_there = |table: &TableMeta| there.contains(&(table.location, table.name.clone()));
    let mut named = state.keyspaces.values().flat_map(|k| k.version.tables());
    let lacks_all = !named.any(|(_, table)| is_there(table));
    let advice = match lacks_all && storages.folders().len() == 1 {
        true => ELSEWHERE_ADVICE,
        false => MISSING_ADVICE,
    };
    for keyspace in state.keyspaces.values() {
        for (_, table) in keyspace.version.tables() {
            if !is_there(table) {
                return Err(Error::corruption(
                    &table.name,
                    format!(
                        "a table of keyspace `{}` is missing: it was deleted, or the manifest has \
                         lost its last edits",
                        keyspace.name
                    ),
                )
                .expected("the table that the manifest names")
                .found(format!(
                    "no file of this name in {}",
                    storages.tables_at(table.location).describe()
                ))
                .advice(advice));
            }
        }
    }
    Ok(())
}

/// Refuses a state that names tables at the second location, if the store has none, or if its
/// folder cannot be used.
fn refuse_missing_location(storages: &Storages, state: &StoreState) -> Result<()> {
    let count = redirected_count(state);
    if count == 0 || storages.usable_redirect().is_some() {
        return Ok(());
    }
    Err(match &storages.redirect {
        Some(redirect) => {
            let why = Missing::why(&**redirect).unwrap_or_default();
            Error::not_found(format!(
                "{count} tables of the store {} lie in {}, its second location of tables, and that \
                 folder cannot be used: {why}",
                storages.manifest.describe(),
                redirect.location(),
            ))
            .advice(
                "mount its disk, or bring the folder back; if it was moved, write its new path \
                 into DIRECTORIES, with `crc32c edited` as the last line; commands that only read \
                 open the store without it, and `silt repair` makes a new store of what is left",
            )
        }
        None => Error::corruption(
            DIRECTORIES,
            format!(
                "the manifest names {count} tables at a second location, and nothing says which \
                 folder that is"
            ),
        )
        .expected("a line `redirect PATH`")
        .found("no such line")
        .advice(
            "put DIRECTORIES back from a copy; the folder has a file OWNER that names this store \
             and says `holds redirected-tables 1`",
        ),
    })
}

/// Refuses a store whose tables have another format version, another version of the layout rules,
/// or a feature that this build does not have. The manifest does not say what they have, but all
/// tables of a store have the same versions, so this looks at the oldest one. Without this check,
/// such a store would open and take writes, but every read and every compaction would fail.
///
/// # Errors
/// `Unsupported`, and that the storage cannot be reached. Anything else that is wrong with the
/// table is found when it is read.
pub(super) fn refuse_other_formats(storages: &Storages, state: &StoreState) -> Result<()> {
    let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
    let Some((_, oldest)) = tables.min_by_key(|(_, table)| table.id) else {
        return Ok(());
    };
    let opened = storages.tables_at(oldest.location).open(&oldest.name);
    let file = opened.map_err(TableError::from);
    let properties = file.and_then(|file| Properties::read(&*file, &Footer::read(&*file)?));
    match properties {
        Err(error) if error.is_unsupported() => {
            Err(Error::from(error).context("nothing was changed"))
        }
        Err(TableError::Storage(error)) if error.kind == StorageErrorKind::Unreachable => {
            Err(error.into())
        }
        _ => Ok(()),
    }
}

/// Deletes the log segments behind the end of the log: discarded records, and the segments of opens
/// that failed.
pub(super) fn delete_segments_behind(storages: &Storages, epoch: Epoch, last: u32) -> Result<()> {
    let mut deleted = false;
    for object in storages.log.list()? {
        if crate::formats::log::format::parse_segment_name(&object.name).is_some_and(|n| n > last) {
            storages.log.delete(epoch, &object.name)?;
            deleted = true;
        }
    }
    // Some storages free the space only when the deletion is durable.
    if deleted {
        Ok(storages.log.sync_dir(epoch)?)
    } else {
        Ok(())
    }
}

/// Makes the inherited log durable, oldest segment first. Each segment is written again before its
/// sync, because that sync may have failed at an earlier open. The kernel reports such an error
/// only once, and a second sync would succeed without writing anything.
pub(super) fn sync_inherited(
    storages: &Storages,
    epoch: Epoch,
    inherited: Range<u32>,
) -> Result<()> {
    for object in storages.log.list()? {
        let number = crate::formats::log::format::parse_segment_name(&object.name);
        if number.is_some_and(|n| inherited.contains(&n)) {
            storages.log.rewrite_object(epoch, &object.name)?;
        }
    }
    Ok(())
}

/// Deletes tables that earlier opens left and that `state`, that of this open, does not name. After
/// an open on a full disk, this runs while the store is in use. So it leaves tables of this open
/// alone, which may be outputs of running jobs that nothing names yet. It also leaves tables with a
/// handle alone: older views may hold them, and the sweep deletes them later.
pub(super) fn delete_orphans(catalog: &Catalog, state: &StoreState) -> Result<()> {
    let named: BTreeSet<&str> = state
        .keyspaces
        .values()
        .flat_map(|k| k.version.tables())
        .map(|(_, t)| t.name.as_str())
        .collect();
    for (location, tables) in catalog.env().storages().locations() {
        match delete_orphans_at(catalog, state, &named, (location, &**tables)) {
            // Nothing needs the room there, and the next open deletes them.
            Err(error) if location != 0 => {
                tracing::warn!(%error, "leftovers at a location of tables were not deleted");
            }
            deleted => deleted?,
        }
    }
    catalog.wal().obsolete(catalog.wal().first_segment())?;
    delete_old_manifests(catalog);
    Ok(())
}

/// Deletes the orphans of one location. No table of any location has one of the names in `named`.
fn delete_orphans_at(
    catalog: &Catalog,
    state: &StoreState,
    named: &BTreeSet<&str>,
    (location, tables): (u32, &dyn Storage),
) -> Result<()> {
    for object in tables.list()? {
        let inherited = open_number_of(&object.name)
            .is_some_and(|n| n < state.open_number || planted!(DeleteOutputsOfJobs));
        let is_in_use = named.contains(object.name.as_str())
            || catalog.tree().tables().is_registered(&object.name);
        if !inherited || is_in_use && !(location > 0 && planted!(RedirectedAreOrphans)) {
            continue;
        }
        match tables.delete(catalog.env().epoch(), &object.name) {
            Ok(()) => {
                catalog.env().metrics().deleted_file_count.add(1);
            }
            // The sweep has deleted it meanwhile.
            Err(e) if e.kind == StorageErrorKind::NotFound => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_numbers_of_names() {
        assert_eq!(open_number_of("0000000a-00000003-0000-00001.tbl"), Some(10));
        for foreign in [
            "2024-sales.tbl",
            "0000000A-00000003-0000-00001.tbl",
            "0000000a-00000003-0000-00001-x.tbl",
            "a-3-0-1.tbl",
        ] {
            assert_eq!(open_number_of(foreign), None, "{foreign}");
        }
        assert_eq!(open_number_of("000012.log"), None);
        assert_eq!(open_number_of("MANIFEST-000000000003"), None);
    }
}
