//! How a store takes its folders: the leases, and the files that say whose a folder is.
//!
//! Invariants:
//! - `DIRECTORIES` is durable before any `OWNER`, and each `OWNER` before the first `CURRENT`: a
//!   creation that crashed resumes with the id that `DIRECTORIES` gave it. Afterwards the store
//!   changes neither file. A `DIRECTORIES` that was lost is written again if an open is given the
//!   other folders, each `OWNER` names the store, its folder and the parts in question, and there
//!   is room.
//! - A folder whose `OWNER` does not name this store in this folder is not written, and what it
//!   holds is not trusted: each open deletes orphans, so a copy of a store's folder would delete
//!   the original's tables.
//! - A folder never belongs to two stores: a folder whose `OWNER` names another store is not used
//!   as a store's own folder, and a folder that has a `CURRENT` is not used for the log or the
//!   tables of another store. Otherwise each store would delete the other's tables as orphans.
//! - Each folder has a lease of its own; the store's lease is taken first. Each folder counts its
//!   own epochs (`env/guard.rs` translates them).
//!
//! Threading: calls of one task during an open.

use siltstone_storage::{Epoch, Lease, ObjectMeta, Runtime, SharedLease, Storage};

use super::refuse::{exists, refuse_owned};
use super::text::{Directories, Owner, replace_if_room};
use super::{Folder, Storages};
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{CURRENT_NAME, StoreId};
use crate::formats::names::{DIRECTORIES, LEASE, OWNER, Parts};
use crate::types::error::{Error, Result};

/// Draws the id of a new store.
pub(crate) fn random_id(runtime: &Runtime) -> StoreId {
    let high = u128::from(runtime.random_u64()) << 64;
    StoreId(high | u128::from(runtime.random_u64()))
}

/// The half of the store's id that the log has in its segments.
pub(crate) fn log_store_id(id: StoreId) -> u64 {
    id.0 as u64
}

/// The leases of a store: one for its own folder, one for each other folder.
struct Leases {
    others: Vec<Box<dyn Lease>>,
    own: Box<dyn Lease>,
}

impl Lease for Leases {
    fn epoch(&self) -> Epoch {
        self.own.epoch()
    }

    /// Gives back the store's own lease last, as it was taken first. The first failure counts.
    fn release(&self) -> siltstone_storage::Result<()> {
        let others = self.others.iter().map(|lease| lease.release());
        let failed = others
            .filter_map(std::result::Result::err)
            .reduce(|first, _| first);
        self.own.release().and(failed.map_or(Ok(()), Err))
    }
}

/// Takes the writer's lease of every folder, or of none.
pub(crate) fn lease(storages: &Storages) -> Result<Box<dyn Lease>> {
    let take = |storage: &dyn Storage| {
        storage.lease(LEASE).map_err(|e| {
            let place = storages.manifest.describe();
            Error::from(e).context(format!("opening the store {place}"))
        })
    };
    let own = take(&*storages.manifest)?;
    let folders = storages.folders();
    let others = folders.iter().skip(1).map(|(storage, _)| take(*storage));
    let others = others.collect::<Result<Vec<_>>>()?;
    Ok(if others.is_empty() {
        own
    } else {
        Box::new(Leases { others, own })
    })
}

/// Takes a shared lease of every folder. `what` is being done to the store, for messages.
pub(crate) fn lease_shared(
    folders: &[Folder<'_>],
    what: &str,
) -> Result<Vec<Box<dyn SharedLease>>> {
    let place = folders[0].0.describe();
    let share = |(storage, _): &Folder<'_>| {
        storage
            .lease_shared(LEASE)
            .map_err(|e| Error::from(e).context(format!("{what} the store {place}")))
    };
    folders.iter().map(share).collect()
}

/// The claim of a store to its folders, new or already made.
pub(crate) struct Claim {
    id: StoreId,
    /// Whether `DIRECTORIES` must be written, because the store is new or has lost it.
    lacks_directories: bool,
    /// Indices of the folders that still need an `OWNER`.
    unowned: Vec<usize>,
}

impl Claim {
    /// Checks whether these folders belong to the store `current` (the id in its `CURRENT`), or can
    /// be given to a new one. It changes nothing. The caller holds the leases.
    pub(crate) fn inspect(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
    ) -> Result<Claim> {
        Claim::of(folders, current, new_id, false)
    }

    /// As [`Claim::inspect`], for an open. It accepts a store that has lost its `DIRECTORIES`, if
    /// the other folders say that they belong to it; [`Claim::restore`] then writes the file again.
    pub(crate) fn for_open(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
    ) -> Result<Claim> {
        Claim::of(folders, current, new_id, true)
    }

    fn of(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
        is_open: bool,
    ) -> Result<Claim> {
        let (root, own) = folders[0];
        let recorded = Directories::read(root)?;
        let is_lost = recorded.is_none() && folders.len() > 1;
        let is_proven = match current {
            Some(id) if is_lost && is_open => are_owned(folders, id)?,
            _ => false,
        };
        match &recorded {
            Some(directories) => {
                if let Some(id) = current.filter(|id| *id != directories.store_id) {
                    return Err(Error::corruption(
                        DIRECTORIES,
                        "the file says where another store's parts lie",
                    )
                    .expected(format!("store {id}"))
                    .found(format!("store {}", directories.store_id))
                    .advice("put the store's own file back from a copy"));
                }
                directories.check_parts(own, &root.describe())?;
            }
            None if current.is_some() && is_lost && !is_proven => {
                return Err(Error::invalid_argument(format!(
                    "the log and the tables of the store {} are in its own folder",
                    root.describe()
                ))
                .expected("one folder for all of it")
                .found(format!(
                    "{} folders, and no file {DIRECTORIES}",
                    folders.len()
                ))
                .in_file(DIRECTORIES)
                .advice(
                    "leave out log_dir and table_dir, which are for new stores; or put the \
                         file back from a copy",
                ));
            }
            None => {}
        }
        let id = match (&recorded, current) {
            (_, Some(id)) => id,
            (Some(directories), None) => directories.store_id,
            (None, None) => new_id(),
        };
        let known = current.or(recorded.as_ref().map(|d| d.store_id));
        refuse_owned(root, known)?;
        let mut unowned = Vec::new();
        for (i, (storage, parts)) in folders.iter().enumerate().skip(1) {
            match Owner::read(*storage)? {
                Some(owner) => {
                    owner.check(id, root, *storage, *parts)?;
                    if exists(*storage, CURRENT_NAME)? {
                        return Err(holds_another_store(root, *storage, *parts));
                    }
                }
                None if current.is_some() => {
                    return Err(Error::corruption(
                        OWNER,
                        format!(
                            "{} is to hold the {parts} of the store {}, and does not say so",
                            storage.describe(),
                            root.describe()
                        ),
                    )
                    .expected(format!("a file {OWNER} that names the store"))
                    .found("no such file")
                    .advice(
                        "is its disk mounted? If this is the right folder, put the file back \
                             from a copy",
                    ));
                }
                // The folder belongs to another store, whatever we would put beside its files.
                None if exists(*storage, CURRENT_NAME)? => {
                    return Err(Error::invalid_argument(format!(
                        "{} is a store's own folder, and cannot hold another one's {parts}",
                        storage.describe()
                    ))
                    .advice("name another folder"));
                }
                None => unowned.push(i),
            }
        }
        Ok(Claim {
            id,
            lacks_directories: is_lost,
            unowned,
        })
    }

    /// The store's id.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Writes the files of a new store that the claim still needs: `DIRECTORIES` first, because it
    /// keeps the id that every `OWNER` names.
    pub(crate) fn write(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        let (root, _) = folders[0];
        if self.lacks_directories {
            let directories = Directories::of(folders, self.id)?;
            root.replace(epoch, DIRECTORIES, directories.encode().as_bytes())?;
        }
        for i in &self.unowned {
            let (storage, parts) = folders[*i];
            let owner = Owner::of(root, self.id, parts)?;
            storage.replace(epoch, OWNER, owner.encode().as_bytes())?;
        }
        Ok(())
    }

    /// Writes the `DIRECTORIES` that a store has lost, unless the disk is full: this open has its
    /// folders without it.
    pub(crate) fn restore(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        if self.lacks_directories {
            let (root, _) = folders[0];
            let directories = Directories::of(folders, self.id)?;
            replace_if_room(root, epoch, DIRECTORIES, &directories.encode())?;
        }
        Ok(())
    }
}

/// Whether the folders of the store `id` that are not its own say that they hold the parts that are
/// looked for in them, and its own folder has the log if that is looked for there.
pub(super) fn are_owned(folders: &[Folder<'_>], id: StoreId) -> Result<bool> {
    let (root, own) = folders[0];
    // Every store has a segment of its log.
    let is_segment = |object: &ObjectMeta| parse_segment_name(&object.name).is_some();
    if own.log && !root.list()?.iter().any(is_segment) {
        return Ok(false);
    }
    for (storage, parts) in folders.iter().skip(1) {
        let owner = Owner::read(*storage)?;
        if !owner.is_some_and(|owner| owner.says(id, root, *parts)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The error for a folder of the store in `root` that is another store's own folder as well.
#[cold]
fn holds_another_store(root: &dyn Storage, storage: &dyn Storage, parts: Parts) -> Error {
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
