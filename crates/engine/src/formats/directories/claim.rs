//! How a store takes its folders: the files that say whose a folder is.
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
//! - The second location of tables is never one of the other folders, whoever gives it: otherwise
//!   the tables of one location would be orphans of the other one. It is added to a store that
//!   exists only when the open has found the store whole: first its `OWNER` is written, and then
//!   `DIRECTORIES`. It is taken out in the order tables, `DIRECTORIES`, `OPENED`, `OWNER`, so that
//!   a folder that `DIRECTORIES` names always has its `OWNER`; and only when a manifest is durable
//!   that names no table there. The inherited manifest that was read may have an edit that a loss
//!   of power takes back, and before that edit there may be tables.
//!
//! Threading: calls of one task during an open.

use std::path::Path;

use siltstone_storage::{Epoch, ObjectMeta, Runtime, Storage, StorageError, StorageErrorKind};

use super::missing::{self, Missing};
use super::refuse_part::{
    exists, holds_another_store, no_new_location, no_owner, other_redirect, refuse_own_folder,
    refuse_owned, refuse_same, refuse_used,
};
use super::text::{Directories, Folder, Owner, replace_if_room};
use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{CURRENT_NAME, StoreId};
use crate::formats::names::{DIRECTORIES, OPENED, OWNER, open_number_of};
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

/// What is wanted of the second location of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    /// An open for writing keeps it, and adds one that is given.
    Keep,
    /// An open for writing takes it out.
    TakeOut,
    /// An open for reading, which changes nothing.
    Read,
    /// A tool looks at the store.
    Inspect,
}

/// What becomes of the second location of tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// There is none.
    None,
    /// It stays.
    Kept,
    /// It is there from this open on.
    Added,
    /// It stays, and its folder cannot be used, for this reason.
    Missing(String),
    /// It is taken out. If its folder can be used, the store's files there are deleted.
    TakenOut { is_there: bool },
    /// The caller has given one that the store does not have, and wants none.
    Unused,
}

impl Redirect {
    /// Whether the store's folders are compared with this one.
    fn is_there(&self) -> bool {
        match self {
            Redirect::None | Redirect::Missing(_) | Redirect::Unused => false,
            Redirect::Kept | Redirect::Added => true,
            Redirect::TakenOut { is_there } => *is_there,
        }
    }
}

/// The claim of a store to its folders, new or already made.
pub(crate) struct Claim {
    id: StoreId,
    /// The text of `DIRECTORIES`, if it must be written: the store is new or has lost it, or its
    /// second location of tables changes.
    wanted: Option<Directories>,
    /// Indices of the folders that still need an `OWNER`.
    unowned: Vec<usize>,
    redirect: Redirect,
}

impl Claim {
    /// Checks whether these folders belong to the store `current` (the id in its `CURRENT`), or can
    /// be given to a new one. It changes nothing. The caller holds the leases.
    pub(crate) fn inspect(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
    ) -> Result<Claim> {
        Claim::of(folders, current, new_id, Wish::Inspect)
    }

    /// As [`Claim::inspect`], for an open. It accepts a store that has lost its `DIRECTORIES`, if
    /// the other folders say that they belong to it, and a change of the second location of tables;
    /// [`Claim::restore`] then writes the file.
    pub(crate) fn for_open(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
        wish: Wish,
    ) -> Result<Claim> {
        Claim::of(folders, current, new_id, wish)
    }

    fn of(
        folders: &[Folder<'_>],
        current: Option<StoreId>,
        new_id: impl FnOnce() -> StoreId,
        wish: Wish,
    ) -> Result<Claim> {
        refuse_same(folders)?;
        let (root, own) = folders[0];
        let recorded = Directories::read(root)?;
        let parts = folders.iter().filter(|(_, parts)| !parts.redirected);
        let parts: Vec<Folder<'_>> = parts.copied().collect();
        let is_lost = recorded.is_none() && parts.len() > 1;
        let is_proven = match current {
            Some(id) if is_lost && wish != Wish::Inspect => are_owned(&parts, id)?,
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
        let mut claim = Claim {
            id,
            wanted: None,
            unowned: Vec::new(),
            redirect: Redirect::None,
        };
        for (i, (storage, parts)) in folders.iter().enumerate().skip(1) {
            if parts.redirected {
                continue;
            }
            match Owner::read(*storage)? {
                Some(owner) => {
                    owner.check(id, root, *storage, *parts)?;
                    if exists(*storage, CURRENT_NAME)? {
                        return Err(holds_another_store(root, *storage, *parts));
                    }
                }
                None if current.is_some() => return Err(no_owner(root, *storage, *parts)),
                None => {
                    refuse_own_folder(*storage, *parts)?;
                    claim.unowned.push(i);
                }
            }
        }
        claim.look_at_redirect(folders, recorded.as_ref(), current, (wish, is_lost))?;
        let without = |directories: &Directories| directories.clone().without_redirect();
        let redirect = folders.iter().find(|(_, parts)| parts.redirected);
        claim.wanted = match (&recorded, &claim.redirect) {
            (Some(recorded), Redirect::TakenOut { .. }) => Some(without(recorded)),
            (Some(recorded), Redirect::Added) => match redirect {
                Some((storage, _)) => Some(recorded.clone().with_redirect(*storage)?),
                None => None,
            },
            (Some(_), _) => None,
            (None, Redirect::Unused) if parts.len() > 1 => Some(Directories::of(&parts, id)?),
            (None, Redirect::Unused) => None,
            (None, _) if folders.len() > 1 => Some(Directories::of(folders, id)?),
            (None, _) => None,
        };
        Ok(claim)
    }

    /// Decides what becomes of the second location of tables, and checks its folder. `is_lost` says
    /// that the store has other folders and has lost the file that names them.
    fn look_at_redirect(
        &mut self,
        folders: &[Folder<'_>],
        recorded: Option<&Directories>,
        current: Option<StoreId>,
        (wish, is_lost): (Wish, bool),
    ) -> Result<()> {
        let (root, _) = folders[0];
        let named = recorded.and_then(|d| d.part("redirect_dir"));
        let at = folders.iter().position(|(_, parts)| parts.redirected);
        let Some(at) = at else {
            return match named {
                None => Ok(()),
                Some(path) => Err(other_redirect(root, Some(path), None)),
            };
        };
        let (storage, parts) = folders[at];
        let why = Missing::why(storage).map(String::from);
        let Some(named) = named else {
            let owner = match why {
                None => Owner::read(storage)?,
                Some(_) => None,
            };
            let is_its = owner
                .as_ref()
                .is_some_and(|owner| owner.says(self.id, root, parts));
            match wish {
                Wish::TakeOut => {
                    self.redirect = Redirect::Unused;
                    return Ok(());
                }
                // The store has lost the file that names the folder.
                Wish::Read if recorded.is_none() && is_its => {
                    self.redirect = Redirect::Kept;
                    return Ok(());
                }
                Wish::Read | Wish::Inspect => {
                    return Err(other_redirect(root, None, Some(storage)));
                }
                Wish::Keep => {}
            }
            if let Some(why) = why {
                return Err(no_new_location(root, storage, &why)
                    .advice("mount its disk, name another folder, or leave redirect_dir out"));
            }
            match owner {
                Some(owner) => owner.check(self.id, root, storage, parts)?,
                None if is_lost && current.is_some() => {
                    return Err(Error::corruption(
                        DIRECTORIES,
                        "a second location of tables cannot be added while the file that says \
                         where the other parts of the store lie is missing",
                    )
                    .expected("the file, or a folder that the store has used before")
                    .found(storage.describe())
                    .advice("open the store once without redirect_dir: that writes the file"));
                }
                None => {
                    refuse_used(storage)?;
                    self.unowned.push(at);
                }
            }
            refuse_own_folder(storage, parts)?;
            self.redirect = Redirect::Added;
            return Ok(());
        };
        if !is_at(storage, named) {
            return Err(other_redirect(root, Some(named), Some(storage)));
        }
        let taken_out = |is_there| Redirect::TakenOut { is_there };
        self.redirect = match (why, wish) {
            (Some(_), Wish::TakeOut) => taken_out(false),
            (Some(why), _) => Redirect::Missing(why),
            (None, _) => match (Owner::read(storage), wish) {
                // A folder that cannot be read is as good as none.
                (Err(error), Wish::TakeOut) if error.storage().is_some() => taken_out(false),
                (Err(error), _) if error.storage().is_some() => {
                    Redirect::Missing(error.to_string())
                }
                (Err(error), _) => return Err(error),
                (Ok(Some(owner)), _) => {
                    owner.check(self.id, root, storage, parts)?;
                    if exists(storage, CURRENT_NAME)? {
                        return Err(holds_another_store(root, storage, parts));
                    }
                    match wish {
                        Wish::TakeOut => taken_out(true),
                        _ => Redirect::Kept,
                    }
                }
                (Ok(None), Wish::TakeOut) => taken_out(false),
                (Ok(None), _) if current.is_some() => Redirect::Missing(missing::no_owner()),
                (Ok(None), _) => {
                    refuse_own_folder(storage, parts)?;
                    self.unowned.push(at);
                    Redirect::Kept
                }
            },
        };
        // The creation of the store was cut off. It goes on when all of its folders are there.
        match &self.redirect {
            Redirect::Missing(why) if current.is_none() => Err(no_new_location(root, storage, why)
                .advice(
                    "mount its disk, or create the store without that location: open it with \
                     redirect_dir = \"none\"",
                )),
            _ => Ok(()),
        }
    }

    /// The folder of the second location cannot be used, because of `why`: its files cannot be
    /// read. The store goes on without it.
    pub(crate) fn lose_redirect(&mut self, why: &str) {
        match self.redirect {
            Redirect::Kept => self.redirect = Redirect::Missing(why.to_string()),
            Redirect::TakenOut { .. } => self.redirect = Redirect::TakenOut { is_there: false },
            Redirect::None | Redirect::Added | Redirect::Missing(_) | Redirect::Unused => {}
        }
    }

    /// The store's id.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// What becomes of the second location of tables.
    pub(crate) fn redirect(&self) -> &Redirect {
        &self.redirect
    }

    /// The folders whose files say by which opens they know each other.
    pub(crate) fn compared<'a>(&self, folders: &[Folder<'a>]) -> Vec<Folder<'a>> {
        let folders = folders.iter().copied();
        let is_compared = |(_, parts): &Folder<'a>| !parts.redirected || self.redirect.is_there();
        folders.filter(is_compared).collect()
    }

    /// Writes the files of a new store that the claim still needs: `DIRECTORIES` first, because it
    /// keeps the id that every `OWNER` names.
    pub(crate) fn write(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        let (root, _) = folders[0];
        if let Some(directories) = &self.wanted {
            root.replace(epoch, DIRECTORIES, directories.encode().as_bytes())?;
        }
        for i in &self.unowned {
            let (storage, parts) = folders[*i];
            let owner = Owner::of(root, self.id, parts)?;
            storage.replace(epoch, OWNER, owner.encode().as_bytes())?;
        }
        self.leave(folders, epoch);
        Ok(())
    }

    /// Writes the `DIRECTORIES` that a store has lost, unless the disk is full: this open has its
    /// folders without it. Adds the second location of tables to a store. The caller has found the
    /// store whole. What is taken out stays until [`Claim::take_out`].
    pub(crate) fn restore(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        let Some(directories) = self.wanted.as_ref().filter(|_| !self.takes_out()) else {
            return Ok(());
        };
        let (root, _) = folders[0];
        let text = directories.encode();
        let redirect = folders.iter().find(|(_, parts)| parts.redirected);
        match (&self.redirect, redirect) {
            (Redirect::Added, Some((storage, parts))) => {
                let context = |e: StorageError| {
                    let place = storage.describe();
                    Error::from(e).context(format!("adding the second location of tables {place}"))
                };
                // Whoever made the folder, its name is durable before a table is there.
                storage.sync_parents(epoch).map_err(context)?;
                if !self.unowned.is_empty() {
                    let owner = Owner::of(root, self.id, *parts)?.encode();
                    let written = storage.replace(epoch, OWNER, owner.as_bytes());
                    written.map_err(context)?;
                }
                let written = root.replace(epoch, DIRECTORIES, text.as_bytes());
                written.map_err(context)
            }
            _ => replace_if_room(root, epoch, DIRECTORIES, &text).map(drop),
        }
    }

    /// Whether the store loses its second location of tables, by [`Claim::take_out`].
    pub(crate) fn takes_out(&self) -> bool {
        matches!(self.redirect, Redirect::TakenOut { .. } | Redirect::Unused)
    }

    /// Takes the second location of tables out, if that is wished. The caller has made a manifest
    /// durable that names no table there.
    ///
    /// # Errors
    /// Those of the store's own folder. A failure in the folder that is taken out is none: it then
    /// keeps a file that says whose it was, and can be added again.
    pub(crate) fn take_out(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        let Some(directories) = self.wanted.as_ref().filter(|_| self.takes_out()) else {
            return Ok(());
        };
        let (root, _) = folders[0];
        let text = directories.encode();
        if self.redirect == Redirect::Unused {
            // The store has lost the file.
            return replace_if_room(root, epoch, DIRECTORIES, &text).map(drop);
        }
        let redirect = folders.iter().find(|(_, parts)| parts.redirected);
        let place = redirect.map_or_else(String::new, |(storage, _)| storage.describe());
        let is_empty = match (&self.redirect, redirect) {
            (Redirect::TakenOut { is_there: true }, Some((storage, _))) => {
                delete_tables(*storage, epoch)
            }
            _ => false,
        };
        root.replace(epoch, DIRECTORIES, text.as_bytes())
            .map_err(|e| {
                Error::from(e)
                    .context(format!("taking out the second location of tables {place}"))
                    .advice(
                        "open the store again; without redirect_dir = \"none\" it opens with this \
                         location",
                    )
            })?;
        if is_empty {
            self.leave(folders, epoch);
        }
        Ok(())
    }

    /// Gives back the folder of a location that was taken out. If this fails, the folder keeps a
    /// file that says whose it was, and can be added again.
    fn leave(&self, folders: &[Folder<'_>], epoch: Epoch) {
        let redirect = folders.iter().find(|(_, parts)| parts.redirected);
        let (Redirect::TakenOut { is_there: true }, Some((storage, _))) =
            (&self.redirect, redirect)
        else {
            return;
        };
        for name in [OPENED, OWNER] {
            let left = match storage.delete(epoch, name) {
                Err(error) if error.kind == StorageErrorKind::NotFound => Ok(()),
                left => left,
            };
            if let Err(error) = left.and_then(|()| storage.sync_dir(epoch)) {
                let place = storage.describe();
                tracing::warn!(%error, place, "a folder that was taken out keeps files");
                return;
            }
        }
    }
}

/// Deletes the store's tables in a folder that is taken out. No manifest that a loss of power can
/// leave names any of them. Returns whether none is left.
fn delete_tables(storage: &dyn Storage, epoch: Epoch) -> bool {
    let objects = match storage.list() {
        Ok(objects) => objects,
        Err(error) => {
            let place = storage.describe();
            tracing::warn!(%error, place, "a folder that is taken out cannot be listed");
            return false;
        }
    };
    let mut is_empty = true;
    let own = |object: &ObjectMeta| open_number_of(&object.name).is_some();
    for object in objects.into_iter().filter(own) {
        if let Err(error) = storage.delete(epoch, &object.name) {
            tracing::warn!(%error, "a table in a folder that is taken out cannot be deleted");
            is_empty = false;
        }
    }
    is_empty
}

/// Whether a storage is the folder with this path, which may be a link to it.
fn is_at(storage: &dyn Storage, path: &str) -> bool {
    let location = storage.location();
    let is_link = || {
        let path = Path::new(path);
        let real = path.is_absolute().then(|| std::fs::canonicalize(path));
        real.and_then(std::result::Result::ok)
            .is_some_and(|real| real == Path::new(&location))
    };
    location == path || is_link()
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
