//! Where the parts of a store are: in its folder, or with the log or the tables in folders of their
//! own.
//!
//! [`Storages`] has the three parts. [`Storages::find`] is the only function that finds them, for
//! opens and for tools. The store's folder is the one with the manifest, its pointer and the lease.
//! If log or tables are elsewhere, a file `DIRECTORIES` there says where, and a file `OWNER` in
//! each other folder names the store that it belongs to (`docs/format/directories.md`).
//!
//! Invariants:
//! - `DIRECTORIES` is durable before any `OWNER`, and each `OWNER` before the first `CURRENT`: a
//!   creation that crashed resumes with the id that `DIRECTORIES` gave it. Afterwards the store
//!   changes neither file.
//! - A folder whose `OWNER` does not name this store in this folder is not written, and what it
//!   holds is not trusted: each open deletes orphans, so a copy of a store's folder would delete
//!   the original's tables.
//! - Each folder has a lease of its own; the store's lease is taken first. Each folder counts its
//!   own epochs (`env/guard.rs` translates them).
//!
//! Threading: plain values, and calls of one task during an open.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone_storage::files::FileStorage;
use siltstone_storage::{Epoch, Lease, Runtime, SharedLease, Storage, StorageErrorKind};

use crate::formats::manifest::{self, CURRENT_NAME, StoreId};
use crate::formats::names::{DESTROYED, DIRECTORIES, LEASE, OWNER, PARTIAL, Parts};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::Options;
use crate::types::options::file::OPTIONS;

mod lost;
mod text;

pub(crate) use lost::nothing_here;
pub(crate) use text::{Directories, Owner};

/// The storages of a store. By default all three are one folder.
#[derive(Clone)]
pub struct Storages {
    /// The storage of the log.
    pub log: Arc<dyn Storage>,
    /// The storage of the manifest and the lease: the store's folder.
    pub manifest: Arc<dyn Storage>,
    /// The storage of the tables.
    pub tables: Arc<dyn Storage>,
}

/// A folder, and the parts of a store that it holds.
pub(crate) type Folder<'a> = (&'a dyn Storage, Parts);

/// The folders of a store, without duplicates, its own first.
pub(crate) fn folders<'a>(
    log: &'a dyn Storage,
    manifest: &'a dyn Storage,
    tables: &'a dyn Storage,
) -> Vec<Folder<'a>> {
    let parts = |of: &dyn Storage| Parts {
        manifest: std::ptr::addr_eq(of, manifest),
        log: std::ptr::addr_eq(of, log),
        tables: std::ptr::addr_eq(of, tables),
    };
    let mut all: Vec<Folder<'a>> = Vec::new();
    for storage in [manifest, log, tables] {
        if !all.iter().any(|(s, _)| std::ptr::addr_eq(*s, storage)) {
            all.push((storage, parts(storage)));
        }
    }
    all
}

impl Storages {
    /// All parts on one storage.
    pub fn on(storage: Arc<dyn Storage>) -> Storages {
        Storages {
            log: storage.clone(),
            manifest: storage.clone(),
            tables: storage,
        }
    }

    /// Finds the storages of the store in the folder `path`. It changes nothing, and does not check
    /// whether there is a store.
    ///
    /// # Errors
    /// `NotFound` if the folder does not exist, or if another folder of the store does not (its
    /// disk may not be mounted); `Corruption` if the file that says where they are is damaged; I/O.
    pub fn find(path: impl AsRef<Path>) -> Result<Storages> {
        let path = path.as_ref();
        let root = FileStorage::open_existing(path).map_err(|e| opening(path, e))?;
        find_from(root, None)
    }

    pub(crate) fn folders(&self) -> Vec<Folder<'_>> {
        folders(&*self.log, &*self.manifest, &*self.tables)
    }

    /// Applies `wrap` to each storage. Parts that share a storage share the result.
    pub(crate) fn map(
        &self,
        mut wrap: impl FnMut(&Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Storages {
        let log = wrap(&self.log);
        let manifest = if Arc::ptr_eq(&self.manifest, &self.log) {
            log.clone()
        } else {
            wrap(&self.manifest)
        };
        let tables = if Arc::ptr_eq(&self.tables, &self.log) {
            log.clone()
        } else if Arc::ptr_eq(&self.tables, &self.manifest) {
            manifest.clone()
        } else {
            wrap(&self.tables)
        };
        Storages {
            log,
            manifest,
            tables,
        }
    }
}

fn opening(path: &Path, error: siltstone_storage::StorageError) -> Error {
    Error::from(error).context(format!("opening the store {}", path.display()))
}

/// The advice if there is no store to open.
pub(crate) fn no_store_advice(read_only: bool) -> &'static str {
    match read_only {
        true => "check the path, or create the store first (Store::open does)",
        false => "check the path, or open with create_if_missing",
    }
}

/// Finds the parts of the store in the folder `path` for an open with these options, which may
/// create it.
pub(crate) fn for_open(path: &Path, options: &Options) -> Result<Storages> {
    open_root(path, options, false)
}

/// Finds the parts of the store in the folder `path` for an open for reading, which creates
/// nothing.
pub(crate) fn for_reading(path: &Path, options: &Options) -> Result<Storages> {
    let options = Options {
        create_if_missing: false,
        error_if_exists: false,
        ..options.clone()
    };
    open_root(path, &options, true)
}

fn open_root(path: &Path, options: &Options, read_only: bool) -> Result<Storages> {
    let opened = if options.create_if_missing {
        FileStorage::open_or_create(path)
    } else {
        FileStorage::open_existing(path)
    };
    let root = opened.map_err(|e| {
        let error = opening(path, e);
        match error.kind() {
            ErrorKind::NotFound => error.advice(no_store_advice(read_only)),
            _ => error,
        }
    })?;
    find_from(root, Some(options))
}

/// A folder that the options name, as a full path; `None` for the store's folder.
fn wanted(root: &Path, dir: &Path) -> Option<PathBuf> {
    if dir.as_os_str().is_empty() {
        return None;
    }
    let path = root.join(dir);
    // A folder that does not exist yet is created, and then has its final spelling.
    Some(std::fs::canonicalize(&path).unwrap_or(path))
}

fn find_from(root: FileStorage, options: Option<&Options>) -> Result<Storages> {
    let place = root.location();
    let is_store = match root.open(CURRENT_NAME) {
        Ok(_) => true,
        Err(e) if e.kind == StorageErrorKind::NotFound => false,
        Err(e) => return Err(e.into()),
    };
    let recorded = Directories::read(&root).map_err(|error| {
        // A damaged file is replaced by the same lines as a missing one.
        let lines = match error.is_corruption() {
            true => lost::refuse(&root, options).err(),
            false => None,
        };
        match lines.as_ref().and_then(Error::advice_text) {
            Some(advice) => error.advice(advice.to_string()),
            None => error,
        }
    })?;
    if recorded.is_none() {
        lost::refuse(&root, options)
            .map_err(|e| e.context(format!("finding the parts of the store {place}")))?;
    }
    let root_path = PathBuf::from(&place);
    let mut dirs = [None, None];
    if let Some(options) = options {
        for (dir, (name, wish)) in dirs.iter_mut().zip(options.directories()) {
            let Some(wish) = wanted(&root_path, wish) else {
                continue;
            };
            let is = match &recorded {
                Some(directories) => directories.part(name),
                None if is_store => None,
                None => {
                    *dir = Some(wish).filter(|w| *w != root_path);
                    continue;
                }
            };
            let is = is.map_or(root_path.clone(), PathBuf::from);
            if is_store && !is.exists() {
                // The error for a missing folder follows below. The option may be the one with
                // which the store was created: a relative path means another folder if the store
                // was moved.
                continue;
            }
            if wish != std::fs::canonicalize(&is).unwrap_or_else(|_| is.clone()) {
                return Err(moved_by_option(&root, name, &is, &wish));
            }
        }
    }
    if let Some(directories) = &recorded {
        dirs = ["log_dir", "table_dir"].map(|name| directories.part(name).map(PathBuf::from));
    }
    let create = options.is_some_and(|o| o.create_if_missing) && !is_store;
    let manifest: Arc<dyn Storage> = Arc::new(root);
    let mut found: Vec<(String, Arc<dyn Storage>)> = vec![(place.clone(), manifest.clone())];
    let mut open = |dir: Option<PathBuf>, what: &str| -> Result<Arc<dyn Storage>> {
        // If there is no store and none is to be created, nothing can be in other folders.
        let Some(dir) = dir.filter(|_| is_store || create || recorded.is_some()) else {
            return Ok(manifest.clone());
        };
        let opened = if create {
            FileStorage::open_or_create(&dir)
        } else {
            FileStorage::open_existing(&dir)
        };
        let storage = opened.map_err(|e| {
            let missing = e.kind == StorageErrorKind::NotFound;
            let error = Error::from(e).context(format!("opening the {what} of the store {place}"));
            if missing {
                let verb = if what == "log" { "lies" } else { "lie" };
                error.advice(format!(
                    "{DIRECTORIES} in the store's folder says that the {what} {verb} there: mount \
                     its disk, or bring the folder back; if it was moved, write its new path into \
                     {DIRECTORIES}, with `crc32c edited` as the last line"
                ))
            } else {
                error
            }
        })?;
        let location = storage.location();
        if let Some((_, same)) = found.iter().find(|(l, _)| *l == location) {
            return Ok(same.clone());
        }
        let storage: Arc<dyn Storage> = Arc::new(storage);
        found.push((location, storage.clone()));
        Ok(storage)
    };
    let [log, tables] = dirs;
    Ok(Storages {
        log: open(log, "log")?,
        tables: open(tables, "tables")?,
        manifest: manifest.clone(),
    })
}

/// Refuses to put `what`, a store of its own, into a folder that belongs to a store or is inside
/// one of its folders.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn refuse_within(storages: &Storages, folder: &Path, what: &str) -> Result<()> {
    // A folder that does not exist yet is created in its nearest ancestor that exists.
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let known = absolute.ancestors().find_map(|above| {
        let place = std::fs::canonicalize(above).ok()?;
        Some((place, above == absolute))
    });
    let Some((place, is_there)) = known else {
        return Ok(());
    };
    for (storage, parts) in storages.folders() {
        let location = PathBuf::from(storage.location());
        if !location.is_absolute() || !place.starts_with(&location) {
            continue;
        }
        let (folder, location) = (folder.display(), location.display());
        let message = match is_there && place == Path::new(&storage.location()) {
            true => format!("{folder} cannot take {what}: it is the folder of the store itself"),
            false => format!(
                "{folder} cannot take {what}: it lies in {location}, which holds the {parts} of \
                 the store itself"
            ),
        };
        return Err(Error::invalid_argument(message)
            .expected("a folder outside of the store, not there yet or empty")
            .advice("name another folder"));
    }
    Ok(())
}

#[cold]
fn moved_by_option(root: &dyn Storage, name: &str, is: &Path, wish: &Path) -> Error {
    let store = root.location();
    let part = match name {
        "log_dir" => "the log lies",
        _ => "the tables lie",
    };
    let file = crate::formats::options_file::read(root).ok().flatten();
    let in_file = file.is_some_and(|file| {
        let mut all = file.options.directories().into_iter();
        let dir = all.find_map(|(option, dir)| (option == name).then_some(dir));
        dir.and_then(|dir| wanted(Path::new(&store), dir))
            .as_deref()
            == Some(wish)
    });
    let error = Error::invalid_argument(format!(
        "option {name} names another folder than the one where {part}: only the creation of a \
         store follows it, and it moves no store"
    ))
    .expected(format!("{}, or no {name} at all", is.display()))
    .found(wish.display());
    let why = match is == Path::new(&store) {
        true => "the store keeps that part in its own folder".to_string(),
        false => format!("{DIRECTORIES} in the store's folder says where its parts lie"),
    };
    if in_file {
        error.in_file(OPTIONS).advice(format!(
            "remove the line `{name}` from {store}/{OPTIONS}; {why}"
        ))
    } else {
        error.advice(format!(
            "leave {name} out to open the store {store} as it is; {why}"
        ))
    }
}

/// The error if the file `OPTIONS.toml` names the folder `wish` for a part of the store in `root`,
/// and the part is in `part`. An open that uses the file fails then.
pub(crate) fn moved_by_file(
    root: &dyn Storage,
    part: &dyn Storage,
    name: &str,
    wish: &Path,
) -> Option<Error> {
    let (root_path, is) = (
        PathBuf::from(root.location()),
        PathBuf::from(part.location()),
    );
    // Storages that are not folders are chosen by the caller of the open.
    if !root_path.is_absolute() || !is.is_absolute() {
        return None;
    }
    let wish = wanted(&root_path, wish)?;
    let is = std::fs::canonicalize(&is).unwrap_or(is);
    (wish != is).then(|| moved_by_option(root, name, &is, &wish))
}

/// The leases of a store: one for its own folder, one for each other folder.
struct Leases {
    _others: Vec<Box<dyn Lease>>,
    own: Box<dyn Lease>,
}

impl Lease for Leases {
    fn epoch(&self) -> Epoch {
        self.own.epoch()
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
        Box::new(Leases {
            _others: others,
            own,
        })
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
    /// Whether `DIRECTORIES` must be written.
    is_new: bool,
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
        let (root, own) = folders[0];
        let recorded = Directories::read(root)?;
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
            None if current.is_some() && folders.len() > 1 => {
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
        let mut unowned = Vec::new();
        for (i, (storage, parts)) in folders.iter().enumerate().skip(1) {
            match Owner::read(*storage)? {
                Some(owner) => owner.check(id, root, *storage, *parts)?,
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
                None => {
                    // The folder belongs to another store, whatever we would put beside its files.
                    match storage.open(CURRENT_NAME) {
                        Err(e) if e.kind == StorageErrorKind::NotFound => unowned.push(i),
                        Err(e) => return Err(e.into()),
                        Ok(_) => {
                            return Err(Error::invalid_argument(format!(
                                "{} is a store's own folder, and cannot hold another one's {parts}",
                                storage.describe()
                            ))
                            .advice("name another folder"));
                        }
                    }
                }
            }
        }
        Ok(Claim {
            id,
            is_new: recorded.is_none() && folders.len() > 1,
            unowned,
        })
    }

    /// The store's id.
    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Writes the files that the claim still needs: `DIRECTORIES` first, because it keeps the id
    /// that every `OWNER` names.
    pub(crate) fn write(&self, folders: &[Folder<'_>], epoch: Epoch) -> Result<()> {
        let (root, _) = folders[0];
        if self.is_new {
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
}

/// Draws the id of a new store.
pub(crate) fn random_id(runtime: &Runtime) -> StoreId {
    let high = u128::from(runtime.random_u64()) << 64;
    StoreId(high | u128::from(runtime.random_u64()))
}

/// The half of the store's id that the log has in its segments.
pub(crate) fn log_store_id(id: StoreId) -> u64 {
    id.0 as u64
}

/// Refuses a folder that has data of a store but no `CURRENT`: the pointer was lost. Creating a
/// store there would delete the data.
pub(crate) fn refuse_headless_data(storages: &Storages) -> Result<()> {
    refuse_destroyed(&*storages.manifest)?;
    refuse_unfinished(&*storages.manifest)?;
    let refuse = |file: &str| {
        Err(Error::corruption(
            file,
            "the folder holds data of a store but no file CURRENT that names its manifest",
        )
        .advice(NO_CURRENT_ADVICE))
    };
    for object in storages.tables.list()? {
        if object.name.ends_with(".tbl") {
            return refuse(&object.name);
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

/// The advice if `CURRENT` is missing.
pub(crate) const NO_CURRENT_ADVICE: &str = "put CURRENT back from a copy, or make a new store of \
    what can be read with `silt repair`; do not create a new store over the old one's files";

/// Whether a manifest that no `CURRENT` names can be left over from an interrupted creation. Such a
/// manifest has the state of a new store and no edit, or is torn.
pub(crate) fn may_be_of_a_creation(storage: &dyn Storage, name: &str) -> Result<bool> {
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

pub(crate) fn exists(storage: &dyn Storage, name: &str) -> Result<bool> {
    match storage.open(name) {
        Ok(_) => Ok(true),
        Err(e) if e.kind == StorageErrorKind::NotFound => Ok(false),
        Err(e) => Err(e.into()),
    }
}
