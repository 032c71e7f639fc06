//! A store that has lost its file `DIRECTORIES`: how an open detects this, and the lines from which
//! the file can be written again.
//!
//! Without the file a store looks as if all of it lay in its own folder, and everything in its
//! other folders seems to be lost. The options that the store was created with still name those
//! folders, and each of them has a file `OWNER` that names the store.
//!
//! Invariants: no folder is opened on a guess. A store without `DIRECTORIES` is refused if it seems
//! to need one, and the error contains the lines to write.
//!
//! Threading: one task calls this during an open.

use std::path::PathBuf;

use siltstone_storage::Storage;
use siltstone_storage::files::FileStorage;

use super::text::Directories;
use super::{Folder, Owner, wanted};
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{StoreId, parse_manifest_name, read_current};
use crate::formats::names::{DESTROYED, DIRECTORIES, OPENED, open_number_of};
use crate::types::error::{Error, Result};
use crate::types::options::Options;
use crate::types::options::file::OPTIONS;

/// The advice if nothing says which folders the store had.
const PUT_IT_BACK: &str = "if the store was created with log_dir or table_dir, or with its tables \
    on a device, put the file back first: those folders have a file OWNER that names this store";

/// Refuses the store in the folder `root`, which has no `DIRECTORIES`, if the options of the open
/// or the file `OPTIONS.toml` name folders that hold parts of it.
///
/// # Errors
/// `Corruption` of `DIRECTORIES`; those of the storage.
pub(super) fn refuse(root: &FileStorage, options: Option<&Options>) -> Result<()> {
    let mut id = match read_current(root) {
        Ok(Some(current)) => Some(current.store_id),
        // The pointer is lost as well. Each OWNER has the id that it contained.
        Ok(None) if holds_files_of_a_store(root)? => None,
        // There is no store. A damaged pointer is reported by the code that reads it next.
        _ => return Ok(()),
    };
    let root_path = PathBuf::from(root.location());
    let file = crate::formats::options_file::read(root).ok().flatten();
    let from_file = file.as_ref().map(|file| file.options.directories());
    let given = options.map(Options::directories);
    let has_log = root
        .list()?
        .iter()
        .any(|o| parse_segment_name(&o.name).is_some());
    let mut parts = [None, None, None];
    let mut owned = Vec::new();
    let mut lacks_log = None;
    for (i, part) in parts.iter_mut().enumerate().take(2) {
        let wishes = [given, from_file].into_iter().flatten();
        let wish = wishes
            .map(|all| all[i])
            .find_map(|(name, dir)| Some((name, wanted(&root_path, dir)?)));
        let Some((name, dir)) = wish else {
            continue;
        };
        let shown = dir.display();
        let file_dir = from_file.and_then(|all| wanted(&root_path, all[i].1));
        let option = match file_dir.as_ref() == Some(&dir) {
            true => format!("{name} in {OPTIONS}"),
            false => format!("option {name}"),
        };
        match FileStorage::open_existing(&dir) {
            Ok(_) if dir == root_path => continue,
            Ok(storage) if is_owned(&storage, &mut id, root) => {
                owned.push(format!("{shown} ({option})"));
            }
            // The log cannot be in the store's folder, so it must be somewhere else.
            _ if i == 0 && !has_log => {
                lacks_log = Some(format!(
                    "no such file, no log in the store's folder, and {shown} ({option})"
                ));
            }
            _ => continue,
        }
        *part = Some(shown.to_string());
    }
    let redirects = [options, file.as_ref().map(|file| &file.options)];
    let mut redirects = redirects.into_iter().flatten();
    let redirect = redirects.find_map(|options| wanted(&root_path, options.redirect_dir.path()?));
    if let Some(dir) = redirect.filter(|dir| *dir != root_path)
        && let Ok(storage) = FileStorage::open_existing(&dir)
        && was_used(&storage)
        && is_owned(&storage, &mut id, root)
    {
        owned.push(format!("{} (option redirect_dir)", dir.display()));
        parts[2] = Some(storage.location());
    }
    let found = match owned.is_empty() {
        true => lacks_log,
        false => Some(format!(
            "no such file, and an OWNER that names this store in {}",
            owned.join(" and in ")
        )),
    };
    match (id, found) {
        (Some(id), Some(found)) => Err(missing(id, &root.location(), parts, found)),
        _ => Ok(()),
    }
}

/// Whether the folder has files that only a store's own folder has, and the store was not being
/// destroyed.
fn holds_files_of_a_store(root: &FileStorage) -> Result<bool> {
    let all = root.list()?;
    let is_destroyed = all.iter().any(|o| o.name == DESTROYED);
    Ok(!is_destroyed && all.iter().any(|o| parse_manifest_name(&o.name).is_some()))
}

/// Whether the store has used a folder as a second location of tables. One that was only being
/// added, or taken out, when the process was killed has an owner and nothing else.
fn was_used(storage: &FileStorage) -> bool {
    let objects = storage.list().unwrap_or_default();
    let is_use = |name: &str| name == OPENED || open_number_of(name).is_some();
    objects.iter().any(|object| is_use(&object.name))
}

/// Whether the folder says that it belongs to the store `id`. If the id is not known, whether it
/// names a store in the folder `root`; its id is then set.
fn is_owned(storage: &FileStorage, id: &mut Option<StoreId>, root: &FileStorage) -> bool {
    let Ok(Some(owner)) = Owner::read(storage) else {
        return false;
    };
    match id {
        Some(id) => owner.names(*id),
        None => {
            *id = owner.id_of_store_in(root);
            id.is_some()
        }
    }
}

#[cold]
fn missing(id: StoreId, place: &str, parts: [Option<String>; 3], found: String) -> Error {
    let (what, verb) = match &parts {
        [Some(_), Some(_), _] => ("log and tables", "lie"),
        [None, Some(_), _] => ("tables", "lie"),
        [None, None, Some(_)] => ("second location of tables", "lies"),
        _ => ("log", "lies"),
    };
    let lines = Directories::new(id, parts).edited();
    let lines: Vec<String> = lines.lines().map(|line| format!("`{line}`")).collect();
    Error::corruption(
        DIRECTORIES,
        format!("the file that says where the {what} of the store {place} {verb} is missing"),
    )
    .expected(format!("a file {DIRECTORIES} in the store's folder"))
    .found(found)
    .advice(format!(
        "put the file back from a copy, or write it with these {} lines: {}; if what lay in the \
         other folder is lost for good, remove its line from {OPTIONS} and run `silt repair`",
        lines.len(),
        lines.join(", ")
    ))
}

/// The error of a repair if a store in one folder has no log, or none of its tables: they may be in
/// other folders.
pub(crate) fn nothing_here(folders: &[Folder<'_>], log: bool, tables: bool) -> Option<Error> {
    let what = match (log, tables) {
        (true, true) => "neither a log nor any table of the store",
        (true, false) => "no log",
        (false, true) => "none of the store's tables",
        (false, false) => return None,
    };
    (folders.len() == 1).then(|| {
        Error::corruption(
            DIRECTORIES,
            format!(
                "the store's folder holds {what}, and no file {DIRECTORIES} that names another \
                 folder for them"
            ),
        )
        .advice(PUT_IT_BACK)
    })
}
