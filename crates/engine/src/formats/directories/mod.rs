//! Where the parts of a store are: in its folder, or with the log or the tables in folders of their
//! own.
//!
//! [`Storages`] has the three parts, and the second location of tables if there is one.
//! [`Storages::find`] is the only function that finds them, for opens and for tools. The store's
//! folder is the one with the manifest, its pointer and the lease. If log or tables are elsewhere,
//! a file `DIRECTORIES` there says where, and a file `OWNER` in each other folder names the store
//! that it belongs to. By their files `OPENED` the folders know whether they belong to the same
//! copy of the store (`docs/format/directories.md`).
//!
//! [`Claim`] and [`lease`] are how a store takes its folders. The functions in `refuse_part.rs`
//! refuse folders that cannot hold its parts, and [`refuse_headless_data`] and its like refuse
//! folders that must not be opened or written.
//!
//! Threading: plain values, and calls of one task during an open.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use siltstone_storage::files::FileStorage;
use siltstone_storage::{Storage, StorageErrorKind};

use crate::formats::manifest::{CURRENT_NAME, read_current};
use crate::formats::names::{DIRECTORIES, Parts};
use crate::formats::version::StoreState;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::file::OPTIONS;
use crate::types::options::{Options, RedirectDir};

mod claim;
mod leases;
mod lost;
mod missing;
mod opened;
mod refuse;
mod refuse_part;
mod text;

pub(crate) use claim::{Claim, Redirect, Wish, log_store_id, random_id};
pub(crate) use leases::{lease, lease_shared};
pub(crate) use lost::nothing_here;
pub(crate) use missing::{Missing, why_unusable};
pub(crate) use opened::Opened;
pub(crate) use refuse::{
    NO_CURRENT_ADVICE, redirected_count, refuse_destroyed, refuse_headless_data, refuse_taking_out,
    refuse_unfinished,
};
pub(crate) use refuse_part::{exists, refuse_owned};
use text::is_on_device;
pub(crate) use text::{Directories, Folder, Owner};

/// The number of the location to which flushes can be redirected. The tables' own folder is
/// location 0, and no store has any other.
pub(crate) const REDIRECT: u32 = 1;

/// The storages of a store. By default the first three are one folder.
#[derive(Clone)]
pub struct Storages {
    /// The storage of the log.
    pub log: Arc<dyn Storage>,
    /// The storage of the manifest and the lease: the store's folder.
    pub manifest: Arc<dyn Storage>,
    /// The storage of the tables.
    pub tables: Arc<dyn Storage>,
    /// The storage of the second location of tables ([`Options::redirect_dir`]), if the store has
    /// one. It is never one of the others.
    pub redirect: Option<Arc<dyn Storage>>,
}

/// The folders of a store, without duplicates, its own first and that of the second location of
/// tables last.
pub(crate) fn folders<'a>(
    log: &'a dyn Storage,
    manifest: &'a dyn Storage,
    tables: &'a dyn Storage,
    redirect: Option<&'a dyn Storage>,
) -> Vec<Folder<'a>> {
    let parts = |of: &dyn Storage| Parts {
        manifest: std::ptr::addr_eq(of, manifest),
        log: std::ptr::addr_eq(of, log),
        tables: std::ptr::addr_eq(of, tables),
        redirected: redirect.is_some_and(|redirect| std::ptr::addr_eq(of, redirect)),
    };
    let mut all: Vec<Folder<'a>> = Vec::new();
    for storage in [manifest, log, tables].into_iter().chain(redirect) {
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
            redirect: None,
        }
    }

    /// Stands for the folder `location` of the second location of tables, which cannot be used
    /// because of `why`. A store whose `DIRECTORIES` names the folder is then opened without it, if
    /// no table is there.
    pub fn missing(location: &str, why: &str) -> Arc<dyn Storage> {
        Missing::storage(location, why)
    }

    /// The storage of the tables at a location. If the store has no such location, nothing is
    /// there.
    pub(crate) fn tables_at(&self, location: u32) -> Arc<dyn Storage> {
        match (location, &self.redirect) {
            (0, _) => self.tables.clone(),
            (REDIRECT, Some(redirect)) => redirect.clone(),
            _ => Missing::storage(
                &format!("of location {location}"),
                "the file DIRECTORIES in the store's folder does not name it",
            ),
        }
    }

    /// The locations of tables, with their numbers.
    pub(crate) fn locations(&self) -> impl Iterator<Item = (u32, &Arc<dyn Storage>)> {
        let redirect = self.redirect.iter().map(|storage| (REDIRECT, storage));
        [(0, &self.tables)].into_iter().chain(redirect)
    }

    /// Refuses a second location of tables that is another folder of the store.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub(crate) fn refuse_same(&self) -> Result<()> {
        refuse_part::refuse_same(&self.folders())
    }

    /// The storage of the second location, if its folder can be used.
    pub(crate) fn usable_redirect(&self) -> Option<&Arc<dyn Storage>> {
        let redirect = self.redirect.as_ref();
        redirect.filter(|storage| Missing::why(&***storage).is_none())
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
        find_from(root, None, false)
    }

    /// The address of the device on which the tables of the store in the folder `path` lie, if they
    /// lie on one. Such a store is opened with `siltstone_device::open`.
    ///
    /// # Errors
    /// As [`Storages::find`]. A folder that does not exist has no such tables.
    pub fn device_of(path: impl AsRef<Path>) -> Result<Option<String>> {
        let path = path.as_ref();
        let root = match FileStorage::open_existing(path) {
            Err(e) if e.kind == StorageErrorKind::NotFound => return Ok(None),
            root => root.map_err(|e| opening(path, e))?,
        };
        // A damaged file is reported by whoever opens the store.
        let recorded = Directories::read(&root).ok().flatten();
        let tables = recorded.and_then(|d| d.part("table_dir").map(str::to_string));
        Ok(tables.filter(|location| is_on_device(location)))
    }

    /// Whether the tables of the store in the folder `path` lie in the folder `tables`, and the
    /// store has lost the file that says so. The file `OWNER` in the folder of the tables shows
    /// this. An open for writing of the store with this folder writes the lost file again.
    ///
    /// # Errors
    /// As [`Storages::find`]; `Corruption` if a file is damaged.
    pub fn has_lost_tables(path: impl AsRef<Path>, tables: &dyn Storage) -> Result<bool> {
        let path = path.as_ref();
        let storage = FileStorage::open_existing(path).map_err(|e| opening(path, e))?;
        let root: &dyn Storage = &storage;
        if Directories::read(root)?.is_some() {
            return Ok(false);
        }
        let Some(current) = read_current(root)? else {
            return Ok(false);
        };
        let own = Parts {
            manifest: true,
            log: true,
            ..Parts::default()
        };
        let others = Parts {
            tables: true,
            ..Parts::default()
        };
        claim::are_owned(&[(root, own), (tables, others)], current.store_id)
    }

    pub(crate) fn folders(&self) -> Vec<Folder<'_>> {
        let redirect = self.redirect.as_deref();
        folders(&*self.log, &*self.manifest, &*self.tables, redirect)
    }

    /// Applies `wrap` to each storage. Parts that share a storage share the result.
    pub(crate) fn map(
        &self,
        mut wrap: impl FnMut(&Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Storages {
        self.map_with(|_, storage| wrap(storage))
    }

    /// As [`Storages::map`]. `wrap` gets the number of the location too, which is 0 for all but the
    /// second location of tables.
    pub(crate) fn map_with(
        &self,
        mut wrap: impl FnMut(u32, &Arc<dyn Storage>) -> Arc<dyn Storage>,
    ) -> Storages {
        let redirect = self
            .redirect
            .as_ref()
            .map(|storage| wrap(REDIRECT, storage));
        let mut wrap = |storage| wrap(0, storage);
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
            redirect,
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
    find_from(root, Some(options), !read_only)
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

/// Finds the parts of the store in `root`. `may_add` says whether an open for writing follows,
/// which may add a second location of tables.
fn find_from(root: FileStorage, options: Option<&Options>, may_add: bool) -> Result<Storages> {
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
    for name in ["log_dir", "table_dir", "redirect_dir"] {
        let part = recorded.as_ref().and_then(|d| d.part(name));
        if let Some(location) = part.filter(|location| is_on_device(location)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("a part of the store {place} lies on a device, {location}"),
            )
            .advice("open it with siltstone_device::open, or with the commands of `silt`"));
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
    let mut storages = Storages {
        log: open(log, "log")?,
        tables: open(tables, "tables")?,
        manifest: manifest.clone(),
        redirect: None,
    };
    if is_store || create || recorded.is_some() {
        let recorded = recorded.as_ref().and_then(|d| d.part("redirect_dir"));
        storages.redirect = find_redirect(&root_path, recorded, options, may_add)?;
        storages.refuse_same()?;
    }
    Ok(storages)
}

/// Finds the folder of the second location of tables: the one that `DIRECTORIES` names, or the one
/// that the options name, if the open may add it.
fn find_redirect(
    root_path: &Path,
    recorded: Option<&str>,
    options: Option<&Options>,
    may_add: bool,
) -> Result<Option<Arc<dyn Storage>>> {
    let wish = options.and_then(|options| options.redirect_dir.path());
    let wish = wish.and_then(|dir| wanted(root_path, dir));
    let Some(recorded) = recorded else {
        let Some(wish) = wish.filter(|_| may_add) else {
            return Ok(None);
        };
        let storage = FileStorage::open_or_create(&wish).map_err(|e| {
            Error::from(e)
                .context(format!(
                    "adding a second location of tables, {}",
                    wish.display()
                ))
                .advice("mount its disk, name another folder, or leave redirect_dir out")
        })?;
        return Ok(Some(Arc::new(storage)));
    };
    if let Some(error) = wish
        .filter(|_| may_add)
        .and_then(|w| other_wish(recorded, &w))
    {
        return Err(error);
    }
    Ok(Some(match FileStorage::open_existing(recorded) {
        Ok(storage) => Arc::new(storage) as Arc<dyn Storage>,
        // Whoever opens the store finds out whether something there is needed.
        Err(error) => Missing::storage(recorded, &error.to_string()),
    }))
}

/// The error if an option names the folder `wish` for the second location of tables, and the store
/// has `recorded`. It does not matter whether that folder is there: whoever replaces a disk must
/// not believe that the new one is used.
fn other_wish(recorded: &str, wish: &Path) -> Option<Error> {
    if spelled(wish) == spelled(Path::new(recorded)) {
        return None;
    }
    Some(
        Error::invalid_argument(
            "option redirect_dir names another folder than the second location of tables that the \
             store has",
        )
        .expected(format!("{recorded}, or no redirect_dir at all"))
        .found(wish.display())
        .advice(format!(
            "take the present one out first: open the store with redirect_dir = \"none\", as soon \
             as no table is there; if the folder was moved, write its new path into {DIRECTORIES}, \
             with `crc32c edited` as the last line"
        )),
    )
}

/// A path with its links resolved, as far as it exists.
fn spelled(path: &Path) -> PathBuf {
    let resolved = path.ancestors().find_map(|above| {
        let known = std::fs::canonicalize(above).ok()?;
        let below = path.strip_prefix(above).ok()?;
        Some(match below.as_os_str().is_empty() {
            true => known,
            false => known.join(below),
        })
    });
    resolved.unwrap_or_else(|| path.to_path_buf())
}

/// The error if the option redirect_dir in the file `OPTIONS.toml` is `wish`, and an open for
/// writing of the store in these folders that uses the file fails because of it. The first folder
/// is the store's own; `state` is the state in its manifest.
pub(crate) fn redirect_by_file(
    folders: &[Folder<'_>],
    wish: &RedirectDir,
    state: &StoreState,
) -> Option<Error> {
    let (root, _) = folders[0];
    let root_path = PathBuf::from(root.location());
    let recorded = Directories::read(root).ok().flatten();
    let recorded = recorded.as_ref().and_then(|d| d.part("redirect_dir"));
    let refused = match wish {
        RedirectDir::Unset => None,
        RedirectDir::None => recorded.and_then(|_| refuse_taking_out(state).err()),
        // Storages that are not folders are chosen by the caller of the open.
        RedirectDir::Path(_) if !root_path.is_absolute() => None,
        RedirectDir::Path(dir) => {
            let wish = wanted(&root_path, dir)?;
            let is_own = |(storage, parts): &&Folder<'_>| {
                !parts.redirected && Path::new(&storage.location()) == spelled(&wish)
            };
            match (recorded, folders.iter().find(is_own)) {
                (Some(recorded), _) => other_wish(recorded, &wish),
                (None, Some((_, parts))) => {
                    Some(refuse_part::is_own_folder(&wish.display(), *parts))
                }
                (None, None) => None,
            }
        }
    };
    refused.map(|error| error.in_file(OPTIONS))
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
