//! Destroys a store: deletes all of its files, and nothing else.
//!
//! Under the writer's leases of all its folders, a store's own files (`names.rs`) are deleted.
//! Other files stay, and the report names them. Folders that are empty afterwards are removed. A
//! folder with files of another store is left, and if another copy of the store's folder was opened
//! since, all folders but this copy's own are left. So is the folder of the second location of
//! tables if its disk fails: the store must not stay because of a disk that is lost.
//!
//! Invariant: a crash at any call leaves the whole store or none. So the pointer is removed first:
//! while it exists, an open would find a store with whatever is left of it, and a log without its
//! last segments would open as a store with less data. The pointer is not deleted but *renamed* (to
//! `DESTROYED`), by one call that needs no room on a full disk. Once that is durable, the other
//! files may be deleted in any order; after a crash, opens report what happened, and destroying the
//! store again continues. `DIRECTORIES` is deleted last but one, because it leads to the other
//! folders; for the same reason those folders come first.
//!
//! Threading: one task, under the leases.

use std::path::Path;
use std::sync::Arc;

use siltstone_storage::files::{self, FileStorage};
use siltstone_storage::{Epoch, Lease, Storage, StorageErrorKind};

use crate::formats::directories::{Directories, Opened, Owner, Storages, exists, refuse_owned};
use crate::formats::log::format as log_format;
use crate::formats::manifest::{self, CURRENT_NAME, StoreId};
use crate::formats::names::{self, DESTROYED, DIRECTORIES, Kind, LEASE, OWNER, Parts};
use crate::types::error::{Error, ErrorKind, Result};

/// What happened to a store's folders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DestroyReport {
    /// The number of files that were deleted.
    pub deleted_file_count: u64,
    /// Bytes of these files. They stay on the disk if other files link to them, as checkpoints do.
    pub deleted_bytes: u64,
    /// Folders that were removed, because nothing was left in them.
    pub removed: Vec<String>,
    /// What is left, with the reason: files that do not belong to the store, and folders that could
    /// not be removed or belong to another store.
    pub left: Vec<(String, String)>,
}

const NOT_OURS: &str = "not a file of the store";

/// A folder of the store.
struct Place {
    storage: Arc<dyn Storage>,
    parts: Parts,
}

/// A folder whose lease is held.
struct Held<'a> {
    place: &'a Place,
    lease: Box<dyn Lease>,
}

/// Destroys the store in the folder `path`.
pub(crate) fn destroy(path: &Path) -> Result<DestroyReport> {
    let context = |e: siltstone_storage::StorageError| {
        Error::from(e).context(format!("destroying the store {}", path.display()))
    };
    let root = FileStorage::open_existing(path).map_err(context)?;
    // The folder is removed at the end, and not a link to it.
    let root_path = root.location();
    let directories = Directories::read(&root)?;
    let mut report = DestroyReport::default();
    let mut places = vec![Place {
        parts: own_parts(directories.as_ref()),
        storage: Arc::new(root),
    }];
    let mut paths = vec![root_path];
    for option in ["log_dir", "table_dir", "redirect_dir"] {
        let part = directories.as_ref().and_then(|d| d.part(option));
        let Some(dir) = part.map(str::to_string) else {
            continue;
        };
        let parts = Parts {
            manifest: false,
            log: option == "log_dir",
            tables: option == "table_dir",
            redirected: option == "redirect_dir",
        };
        if let Some(known) = paths.iter().position(|p| *p == dir) {
            places[known].parts.log |= parts.log;
            places[known].parts.tables |= parts.tables;
            places[known].parts.redirected |= parts.redirected;
            continue;
        }
        match FileStorage::open_existing(&dir) {
            Ok(storage) => {
                places.push(Place {
                    storage: Arc::new(storage),
                    parts,
                });
                paths.push(dir);
            }
            // The folder was removed, or emptied before a crash, or is not mounted. It is reported,
            // because in the last case it still has files.
            Err(e) if e.kind == StorageErrorKind::NotFound || parts.redirected => {
                report.left.push((
                    dir,
                    match e.kind {
                        StorageErrorKind::NotFound => "there is no such folder".to_string(),
                        _ => e.to_string(),
                    },
                ));
            }
            Err(e) => return Err(context(e)),
        }
    }
    let held = run(&places, &mut report)?;
    // The leases are held until the folders are removed.
    let done: Vec<bool> = places
        .iter()
        .map(|place| held.iter().any(|h| std::ptr::eq(h.place, place)))
        .collect();
    for (path, _) in paths.iter().zip(done).filter(|(_, done)| *done).rev() {
        remove_folder(Path::new(path), &mut report);
    }
    drop(held);
    if path.is_symlink() {
        let why = "a link to the store's folder".to_string();
        report.left.push((path.display().to_string(), why));
    }
    Ok(report)
}

/// Removes a folder in which only the lease's file is left. A failure does not matter for the call:
/// the store is gone.
fn remove_folder(path: &Path, report: &mut DestroyReport) {
    let shown = |name: &str| path.join(name).display().to_string();
    let entries = match files::folder_entries(path) {
        Ok(entries) => entries.unwrap_or_default(),
        Err(error) => {
            report.left.push((shown(""), error.to_string()));
            return;
        }
    };
    let foreign = entries.iter().filter(|name| !files::is_own_name(name));
    let foreign: Vec<_> = foreign
        .map(|name| (shown(name), NOT_OURS.to_string()))
        .collect();
    if !foreign.is_empty() {
        report.left.extend(foreign);
        return;
    }
    let place = path.display().to_string();
    match files::remove_folder(path) {
        Ok(()) => report.removed.push(place),
        // This happens if a disk is mounted at the folder, for example.
        Err(error) => report.left.push((place, error.to_string())),
    }
}

/// Destroys the store on these storages. Foreign objects stay, and the report names them.
pub(crate) fn destroy_on(storages: &Storages) -> Result<DestroyReport> {
    let own = [&storages.manifest, &storages.log, &storages.tables];
    let all: Vec<_> = own.into_iter().chain(&storages.redirect).collect();
    let places: Vec<Place> = storages
        .folders()
        .into_iter()
        .filter_map(|(folder, parts)| {
            let mut all = all.iter();
            let storage = all.find(|s| std::ptr::addr_eq(Arc::as_ptr(s), folder))?;
            Some(Place {
                storage: Arc::clone(storage),
                parts,
            })
        })
        .collect();
    let mut report = DestroyReport::default();
    for held in run(&places, &mut report)? {
        for object in held.place.storage.list()? {
            let place = format!("{}/{}", held.place.storage.describe(), object.name);
            report.left.push((place, NOT_OURS.to_string()));
        }
    }
    Ok(report)
}

fn own_parts(directories: Option<&Directories>) -> Parts {
    let whole = Parts {
        manifest: true,
        log: true,
        tables: true,
        redirected: false,
    };
    directories.map_or(whole, Directories::own_parts)
}

/// Whether a file begins with these bytes.
fn begins(storage: &dyn Storage, name: &str, magic: &[u8]) -> Result<bool> {
    let file = storage.open(name)?;
    let mut head = vec![0; magic.len()];
    if file.len() < magic.len() as u64 {
        return Ok(false);
    }
    file.read_at(0, &mut head)?;
    Ok(head == magic)
}

/// Whether a folder has a store, sound or damaged, or the remains of one. Names alone are not
/// enough, because other programs may use them too.
fn is_store(storage: &dyn Storage) -> Result<bool> {
    if current_id(storage)?.is_some()
        || exists(storage, DESTROYED)?
        || Directories::read(storage)?.is_some()
    {
        return Ok(true);
    }
    for object in storage.list()? {
        let is = match names::kind_of(&object.name) {
            Some(Kind::Manifest(_)) => begins(storage, &object.name, &manifest::format::MAGIC)?,
            Some(Kind::Segment) => begins(storage, &object.name, &log_format::MAGIC)?,
            // An unfinished checkpoint or repair has a marker and tables.
            Some(Kind::Table(_)) => exists(storage, crate::formats::names::PARTIAL)?,
            _ => false,
        };
        if is {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The id in the pointer; `None` if the pointer is damaged.
fn current_id(root: &dyn Storage) -> Result<Option<StoreId>> {
    match manifest::read_current(root) {
        Ok(current) => Ok(current.map(|c| c.store_id)),
        Err(e) if matches!(e.kind(), ErrorKind::Corruption | ErrorKind::Unsupported) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Deletes the store's files. Returns the leases of the folders that belonged to it.
fn run<'a>(places: &'a [Place], report: &mut DestroyReport) -> Result<Vec<Held<'a>>> {
    let root = &*places[0].storage;
    let shown = root.describe();
    let context = |e: Error| e.context(format!("destroying the store {shown}"));
    // This comes before the lease, which leaves a file: a folder without a store is not changed.
    let refuse_others = || {
        if is_store(root).map_err(context)? {
            return Ok(());
        }
        Err(Error::not_found(format!(
            "there is no siltstone store in {shown}, so nothing was deleted"
        ))
        .advice("check the path"))
    };
    refuse_others()?;
    let lease = |place: &'a Place| -> Result<Held<'a>> {
        let lease = place.storage.lease(LEASE).map_err(|e| context(e.into()))?;
        Ok(Held { place, lease })
    };
    let mut held = vec![lease(&places[0])?];
    // The store may have been destroyed meanwhile.
    refuse_others()?;
    let directories = Directories::read(root)?;
    // `DIRECTORIES` is deleted before the last trace of a store is.
    let says = directories.is_some() || current_id(root).map_err(context)?.is_some();
    if says && own_parts(directories.as_ref()) != places[0].parts {
        return Err(context(Error::invalid_argument(format!(
            "the parts of the store are not where {DIRECTORIES} says"
        ))));
    }
    let id = current_id(root)
        .map_err(context)?
        .or(directories.as_ref().map(|d| d.store_id));
    // Files of another store in the same folder could not be told from those of this one.
    refuse_owned(root, id).map_err(context)?;
    let leave = |place: &Place, why: String, report: &mut DestroyReport| {
        report.left.push((place.storage.describe(), why));
    };
    let mut owned = Vec::new();
    for place in &places[1..] {
        match why_left(place, id, root).map_err(context)? {
            Some(why) => leave(place, why, report),
            None => owned.push(place),
        }
    }
    // Another copy of the store's folder may be open and hold these leases, so its folders are left
    // before they are taken.
    if leave_newer(&owned, id, root, report).map_err(context)? {
        owned.clear();
    }
    for place in owned {
        let leased = match lease(place) {
            Err(error) if place.parts.redirected && error.kind() != ErrorKind::Locked => {
                leave(place, error.to_string(), report);
                continue;
            }
            leased => leased?,
        };
        match why_left(place, id, root).map_err(context)? {
            // It was given to another store meanwhile.
            Some(why) => leave(place, why, report),
            None => held.push(leased),
        }
    }
    // Under the leases of all of them nobody opens another copy any more.
    let owned: Vec<&Place> = held[1..].iter().map(|held| held.place).collect();
    if leave_newer(&owned, id, root, report).map_err(context)? {
        held.truncate(1);
    }
    delete_all(&held, report).map_err(context)?;
    // What could not be deleted is reported already.
    let is_left = |held: &Held<'_>| {
        let place = held.place.storage.describe();
        held.place.parts.redirected && report.left.iter().any(|(left, _)| *left == place)
    };
    held.retain(|held| !is_left(held));
    Ok(held)
}

/// Why a folder is left as it is; `None` if it belongs to the store `id` in `root`. A folder of
/// somebody else is not changed, not even by a lease file: the folder here may be a copy.
fn why_left(place: &Place, id: Option<StoreId>, root: &dyn Storage) -> Result<Option<String>> {
    match why_not_ours(place, id, root) {
        // Its disk fails.
        Err(error) if place.parts.redirected && error.storage().is_some() => {
            Ok(Some(error.to_string()))
        }
        why => why,
    }
}

/// As [`why_left`]. A failing disk is an error.
fn why_not_ours(place: &Place, id: Option<StoreId>, root: &dyn Storage) -> Result<Option<String>> {
    let storage = &*place.storage;
    let owner = match Owner::read(storage) {
        Err(error) if error.is_corruption() => return Ok(Some(error.to_string())),
        owner => owner?,
    };
    Ok(match owner {
        None => Some(format!(
            "it has no {OWNER}, so it holds nothing of this store"
        )),
        Some(owner) if !id.is_some_and(|id| owner.is(id, root)) => {
            Some(format!("it belongs to {}", owner.whose()))
        }
        // The tables and the log of the two stores could not be told apart.
        Some(_) if exists(storage, CURRENT_NAME)? => {
            Some("another store was made in it".to_string())
        }
        Some(_) => {
            // What it says is judged together with the other folders. It must be readable.
            let folder = (storage, place.parts);
            match id.map(|id| Opened::last_in(folder, root, id)) {
                Some(Err(error)) if error.storage().is_some() => return Err(error),
                _ => None,
            }
        }
    })
}

/// Leaves all of these folders if one of them knows an open of the store `id` that the folder
/// `root` does not know: this is an old copy of the store's folder then. Returns whether it is one.
fn leave_newer(
    places: &[&Place],
    id: Option<StoreId>,
    root: &dyn Storage,
    report: &mut DestroyReport,
) -> Result<bool> {
    let Some(id) = id else {
        return Ok(false);
    };
    let mut newer = None;
    for place in places {
        match Opened::last_in((&*place.storage, place.parts), root, id) {
            Err(error) if error.kind() == ErrorKind::InvalidArgument => newer = Some(error),
            // A damaged file does not show that there is another copy.
            Err(error) if !error.is_corruption() => return Err(error),
            _ => {}
        }
    }
    let Some(newer) = newer else {
        return Ok(false);
    };
    // An open of the other copy that was cut off, or found a full disk, has noted its number in
    // some of them only.
    let left = places.iter().map(|place| place.storage.describe());
    let left = left.map(|place| (place, newer.message().to_string()));
    report.left.extend(left);
    Ok(true)
}

fn delete_all(held: &[Held<'_>], report: &mut DestroyReport) -> Result<()> {
    let (root, epoch) = (&*held[0].place.storage, held[0].lease.epoch());
    let current = exists(root, CURRENT_NAME)?;
    if exists(root, DESTROYED)? {
        // The rename is visible, but its sync may have failed, which the kernel reports only once.
        // The name is changed again, so that this sync covers the rename.
        if !current {
            drop(root.create(epoch, CURRENT_NAME)?);
        }
        root.delete(epoch, CURRENT_NAME)?;
        root.sync_dir(epoch)?;
    } else if current {
        root.rename(epoch, CURRENT_NAME, DESTROYED)?;
        root.sync_dir(epoch)?;
    }
    for other in &held[1..] {
        let (storage, parts) = (&*other.place.storage, other.place.parts);
        let epoch = other.lease.epoch();
        // The owner file is deleted last: while it exists, destroying the store again reaches this
        // folder.
        let deleted = delete_where(storage, epoch, report, |kind, _| {
            parts.hold(kind) && kind != Kind::Owner
        })
        .and_then(|()| delete_where(storage, epoch, report, |kind, _| kind == Kind::Owner));
        match deleted {
            Err(error) if parts.redirected && error.storage().is_some() => {
                report.left.push((storage.describe(), error.to_string()));
            }
            deleted => deleted?,
        }
    }
    let parts = held[0].place.parts;
    let is_late = |name: &str| [DESTROYED, DIRECTORIES].contains(&name);
    let is_manifest = |kind: Kind| matches!(kind, Kind::Manifest(_));
    // Without a pointer, a store is recognised by its manifests.
    delete_where(root, epoch, report, |kind, name| {
        parts.hold(kind) && !is_manifest(kind) && !is_late(name)
    })?;
    delete_where(root, epoch, report, |kind, _| is_manifest(kind))?;
    for late in [DIRECTORIES, DESTROYED] {
        delete_where(root, epoch, report, |_, name| name == late)?;
    }
    Ok(())
}

/// Deletes those of the store's files in a folder for which `which` is true, durably.
fn delete_where(
    storage: &dyn Storage,
    epoch: Epoch,
    report: &mut DestroyReport,
    which: impl Fn(Kind, &str) -> bool,
) -> Result<()> {
    let mut deleted = false;
    for object in storage.list()? {
        if names::kind_of(&object.name).is_some_and(|kind| which(kind, &object.name)) {
            storage.delete(epoch, &object.name)?;
            deleted = true;
            report.deleted_file_count += 1;
            report.deleted_bytes += object.len;
        }
    }
    if deleted {
        storage.sync_dir(epoch)?;
    }
    Ok(())
}
