//! Refuses folders that a store cannot have for its parts: a second location of tables that is one
//! of its other folders or not the recorded one, and folders that belong to somebody else or do not
//! say whose they are. `refuse.rs` refuses folders that must not be opened or written at all.
//!
//! Invariant: nothing is changed.
//!
//! Threading: calls of one task.

use std::fmt;

use siltstone_storage::{ObjectMeta, Storage, StorageErrorKind};

use super::text::{Folder, Owner};
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{CURRENT_NAME, StoreId};
use crate::formats::names::{DIRECTORIES, OWNER, Parts};
use crate::types::error::{Error, Result};

/// Refuses a second location of tables that is another folder of the store.
///
/// # Errors
/// `InvalidArgument`.
pub(super) fn refuse_same(folders: &[Folder<'_>]) -> Result<()> {
    let Some((redirect, parts)) = folders.iter().find(|(_, parts)| parts.redirected) else {
        return Ok(());
    };
    let location = redirect.location();
    let is_other = |(_, parts): &&Folder<'_>| !parts.redirected;
    let mut others = folders.iter().filter(is_other);
    let same = others.find(|(storage, _)| storage.location() == location);
    let own = Parts {
        redirected: false,
        ..*parts
    };
    let held = match same {
        Some((_, parts)) => *parts,
        None if own == Parts::default() => return Ok(()),
        None => own,
    };
    Err(is_own_folder(&location, held))
}

/// The error for a second location of tables that is the folder with the parts `held` of the store.
#[cold]
pub(super) fn is_own_folder(location: &dyn fmt::Display, held: Parts) -> Error {
    Error::invalid_argument(format!(
        "the second location of tables, {location}, is the folder that holds the {held} of the \
         store itself"
    ))
    .expected("a folder of its own")
    .found(location)
    .advice(
        "name a folder on another disk (redirect_dir): in the same one, the store would delete the \
         tables of one location as leftovers of the other",
    )
}

/// Refuses a folder that holds the log or the tables of another store than `id`. A store of its own
/// in such a folder would delete them as orphans. `id` is `None` if no store is there.
pub(crate) fn refuse_owned(root: &dyn Storage, id: Option<StoreId>) -> Result<()> {
    match Owner::read(root) {
        Ok(Some(owner)) if !id.is_some_and(|id| owner.names(id)) => {
            Err(owner.refusal(root, id.is_some()))
        }
        Ok(_) => Ok(()),
        // The store that is there may have been made beside a file of somebody else.
        Err(error) if error.is_corruption() && id.is_some() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Refuses a folder that is the own folder of a store.
pub(super) fn refuse_own_folder(storage: &dyn Storage, parts: Parts) -> Result<()> {
    if !exists(storage, CURRENT_NAME)? {
        return Ok(());
    }
    // The folder belongs to another store, whatever we would put beside its files.
    Err(Error::invalid_argument(format!(
        "{} is a store's own folder, and cannot hold another one's {parts}",
        storage.describe()
    ))
    .advice("name another folder"))
}

/// Refuses a folder without an owner that holds tables or a log: they would be deleted.
pub(super) fn refuse_used(storage: &dyn Storage) -> Result<()> {
    let is_part =
        |o: &ObjectMeta| o.name.ends_with(".tbl") || parse_segment_name(&o.name).is_some();
    let Some(found) = storage.list()?.into_iter().find(is_part) else {
        return Ok(());
    };
    Err(Error::invalid_argument(format!(
        "the folder {} holds a part of a store, and cannot become the second location of another \
         one's tables",
        storage.describe()
    ))
    .in_file(found.name.clone())
    .expected("a folder without tables and without a log")
    .found(found.name)
    .advice("name another folder, or move these files away if nothing needs them"))
}

/// The error if the second location of tables is not the one that `DIRECTORIES` names.
#[cold]
pub(super) fn other_redirect(
    root: &dyn Storage,
    named: Option<&str>,
    given: Option<&dyn Storage>,
) -> Error {
    let none = || "no second location of tables".to_string();
    Error::invalid_argument(format!(
        "the second location of the tables of the store {} is not the one that {DIRECTORIES} names",
        root.describe()
    ))
    .in_file(DIRECTORIES)
    .expected(named.map_or_else(none, String::from))
    .found(given.map_or_else(none, |storage| storage.location()))
    .advice(
        "open the store by its path, which follows that file, or pass the storages that it names",
    )
}

/// The error for a folder of a store that does not say whose it is.
#[cold]
pub(super) fn no_owner(root: &dyn Storage, storage: &dyn Storage, parts: Parts) -> Error {
    Error::corruption(
        OWNER,
        format!(
            "{} is to hold the {parts} of the store {}, and does not say so",
            storage.describe(),
            root.describe()
        ),
    )
    .expected(format!("a file {OWNER} that names the store"))
    .found("no such file")
    .advice("is its disk mounted? If this is the right folder, put the file back from a copy")
}

/// The error for a folder that cannot become a second location of tables, because of `why`.
#[cold]
pub(super) fn no_new_location(root: &dyn Storage, storage: &dyn Storage, why: &str) -> Error {
    Error::not_found(format!(
        "the folder {} cannot become the second location of the tables of the store {}: {why}",
        storage.describe(),
        root.describe()
    ))
}

/// The error for a folder of the store in `root` that is another store's own folder as well.
#[cold]
pub(super) fn holds_another_store(
    root: &dyn Storage,
    storage: &dyn Storage,
    parts: Parts,
) -> Error {
    Error::invalid_argument(format!(
        "{} holds the {parts} of the store {}, and another store was made in it",
        storage.describe(),
        root.describe()
    ))
    .in_file(CURRENT_NAME)
    .expected("no such file")
    .advice(
        "each of the two stores would delete the other one's files: copy the folder, delete OWNER \
         in the copy, which is the other store then, and delete CURRENT here",
    )
}

/// Whether the folder has a file with this name.
pub(crate) fn exists(storage: &dyn Storage, name: &str) -> Result<bool> {
    match storage.open(name) {
        Ok(_) => Ok(true),
        Err(e) if e.kind == StorageErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}
