//! Refuses folders that must not be opened or written: those that lost their `CURRENT`, those of an
//! unfinished checkpoint or repair, those of a store that was being destroyed, and a second
//! location of tables that is to be taken out with tables in it.
//!
//! Invariant: nothing is changed.
//!
//! Threading: calls of one task.

use siltstone_storage::{Storage, StorageErrorKind};

use super::Storages;
use super::refuse_part::{exists, refuse_owned};
use crate::formats::manifest;
use crate::formats::names::{DESTROYED, PARTIAL};
use crate::formats::version::StoreState;
use crate::types::error::{Error, Result};

/// Refuses a folder that has data of a store but no `CURRENT`: the pointer was lost. Creating a
/// store there would delete the data.
pub(crate) fn refuse_headless_data(storages: &Storages) -> Result<()> {
    refuse_destroyed(&*storages.manifest)?;
    refuse_unfinished(&*storages.manifest)?;
    refuse_owned(&*storages.manifest, None)?;
    let refuse = |file: &str| {
        Err(Error::corruption(
            file,
            "the folder holds data of a store but no file CURRENT that names its manifest",
        )
        .advice(NO_CURRENT_ADVICE))
    };
    for (_, tables) in storages.locations() {
        for object in tables.list()? {
            if object.name.ends_with(".tbl") {
                return refuse(&object.name);
            }
        }
    }
    for object in storages
        .log
        .list()?
        .iter()
        .filter(|o| o.name.ends_with(".log") && o.len >= 96)
    {
        let mut head = [0u8; 32];
        storages.log.open(&object.name)?.read_at(64, &mut head)?;
        if head != [0; 32] {
            return refuse(&object.name);
        }
    }
    for object in storages.manifest.list()? {
        if manifest::parse_manifest_name(&object.name).is_some()
            && !may_be_of_a_creation(&*storages.manifest, &object.name)?
        {
            return refuse(&object.name);
        }
    }
    Ok(())
}

/// Refuses a folder in which a checkpoint or a repair was not finished. Both leave the same marker
/// file; its text says if it was a repair.
pub(crate) fn refuse_unfinished(root: &dyn Storage) -> Result<()> {
    let marker = match root.open(PARTIAL) {
        Ok(marker) => marker,
        Err(error) if error.kind == StorageErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let of_repair = crate::formats::names::MARKER_TEXT.as_bytes();
    let mut head = vec![0; of_repair.len()];
    if marker.len() >= head.len() as u64 {
        marker.read_at(0, &mut head)?;
    }
    let (what, advice) = match head == of_repair {
        true => (
            "repair",
            "run the same `silt repair` again: it starts from the beginning",
        ),
        false => (
            "checkpoint",
            "write the checkpoint again, or delete the folder",
        ),
    };
    Err(Error::not_found(format!(
        "{} holds an unfinished {what}, not a store",
        root.describe()
    ))
    .in_file(PARTIAL)
    .advice(advice))
}

/// Refuses a folder whose store was being destroyed.
pub(crate) fn refuse_destroyed(root: &dyn Storage) -> Result<()> {
    if !exists(root, DESTROYED)? {
        return Ok(());
    }
    let place = root.describe();
    Err(Error::not_found(format!(
        "the store in {place} was being destroyed, and that was interrupted"
    ))
    .in_file(DESTROYED)
    .advice("destroy it again to delete what is left of it"))
}

/// The number of tables at other locations than the first one that a state names.
pub(crate) fn redirected_count(state: &StoreState) -> usize {
    let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
    tables.filter(|(_, table)| table.location != 0).count()
}

/// Refuses to take out the second location of tables while the state names tables there.
pub(crate) fn refuse_taking_out(state: &StoreState) -> Result<()> {
    let count = redirected_count(state);
    if count == 0 {
        return Ok(());
    }
    Err(Error::invalid_argument(format!(
        "the second location of tables cannot be taken out: {count} tables are there"
    ))
    .expected("no table there")
    .found(format!("{count} tables"))
    .advice(
        "open the store without redirect_dir = \"none\" and let it work until compactions have \
         brought them back (`silt compact`, or Store::wait_until_idle), then try again",
    ))
}

/// The advice if `CURRENT` is missing.
pub(crate) const NO_CURRENT_ADVICE: &str = "put CURRENT back from a copy, or make a new store of \
    what can be read with `silt repair`; do not create a new store over the old one's files";

/// Whether a manifest that no `CURRENT` names can be left over from an interrupted creation. Such a
/// manifest has the state of a new store and no edit, or is torn.
fn may_be_of_a_creation(storage: &dyn Storage, name: &str) -> Result<bool> {
    let file = storage.open(name)?;
    let mut head = [0; manifest::format::HEADER_BYTES];
    if file.len() < head.len() as u64 {
        return Ok(true);
    }
    file.read_at(0, &mut head)?;
    let read = manifest::format::decode_header(&head, name)
        .and_then(|current| manifest::read_manifest(storage, &current));
    match read {
        Ok(read) => {
            let state = &read.state;
            let has_tables = state
                .keyspaces
                .values()
                .any(|k| k.version.tables().next().is_some());
            Ok(read.record_count <= 1 && state.keyspaces.len() <= 1 && !has_tables)
        }
        Err(error) if error.is_corruption() => Ok(true),
        Err(error) => Err(error),
    }
}
