//! The commands, one file each; and what they share: opening a store, keys and bounds.

pub mod bench;
pub mod check;
pub mod checkpoint;
pub mod compact;
pub mod completions;
pub mod count;
pub mod del;
pub mod destroy;
pub mod device;
pub mod dump;
pub mod export;
pub mod get;
pub mod gpu;
pub mod ingest;
pub mod keyspace;
pub mod load;
pub mod opened;
pub mod options;
pub mod pages;
pub mod place;
pub mod probe;
pub mod put;
pub mod repair;
pub mod scan;
pub mod stats;
mod unfinished;

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone::{Components, Error, ErrorKind, IterOptions, Keyspace, Options, Store};
use siltstone_device::Placement;
use siltstone_table::exec::Executor;

use self::opened::Opened;
use crate::args::{RangeArgs, StoreArgs};
use crate::failure::Failure;
use crate::form::Form;
use crate::output::{Out, bytes, one_line, outln};

/// The user's settings, in the store's folder.
const OPTIONS_FILE: &str = "OPTIONS.toml";

/// How long an open waits for a store that another process has open.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);

/// The interval at which it tries again.
const LOCK_LOOK: Duration = Duration::from_millis(20);

/// The prefix of the names of keyspaces that tools keep for themselves.
pub const OWN_PREFIX: &str = "silt.";

/// Refuses the name of a new keyspace if it is one of those that tools keep for themselves: the
/// keyspace would not be shown.
///
/// # Errors
/// Wrong usage.
fn refuse_own_name(name: &str) -> Result<(), Failure> {
    match is_own(name) {
        false => Ok(()),
        true => Err(Failure::Usage(format!(
            "`{}` cannot be created: keyspaces whose names begin with `{OWN_PREFIX}` are kept by \
             tools for themselves and are not shown; choose another name",
            one_line(name)
        ))),
    }
}

/// The file `OPTIONS.toml` of a store.
pub struct OptionsFile {
    /// The options; what the file does not set has its default.
    pub options: Options,
    /// The text; empty if there is no file.
    pub text: String,
}

impl OptionsFile {
    /// Reads the file in a store's folder. The file of a store on a device is in the folder there,
    /// so all hosts follow the same settings; it is read through the device.
    ///
    /// # Errors
    /// The file cannot be read, or has an impossible setting; the device does not answer.
    pub fn read(path: &Path) -> Result<OptionsFile, Failure> {
        if let Some(url) = place::url(path)? {
            return OptionsFile::read_from_device(url);
        }
        let file = path.join(OPTIONS_FILE);
        let text = match fs::read(&file) {
            Ok(text) => text,
            // There is no store, or no file. The open reports errors.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(OptionsFile {
                    options: Options::default(),
                    text: String::new(),
                });
            }
            Err(error) => return Err(Failure::file(&file, &error)),
        };
        let options = Options::load(&file)?;
        // Text that is not UTF-8 was refused.
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(OptionsFile { options, text })
    }

    /// Reads the file in a folder on a device.
    fn read_from_device(url: &str) -> Result<OptionsFile, Failure> {
        let bytes = place::read_file(url, OPTIONS_FILE)?.unwrap_or_default();
        let text = String::from_utf8(bytes).map_err(|_| {
            Failure::Other(format!("{url}: the file {OPTIONS_FILE} there is not UTF-8"))
        })?;
        let options = Options::from_toml(&text);
        let options =
            options.map_err(|error| error.context(format!("reading {OPTIONS_FILE} of {url}")))?;
        Ok(OptionsFile { options, text })
    }

    /// The store's settings that the file sets.
    pub fn names(&self) -> Vec<&'static str> {
        let document = self.text.parse::<toml_edit::DocumentMut>();
        let document = document.unwrap_or_default();
        let names = siltstone::settings().iter().map(|s| s.name);
        names.filter(|name| document.contains_key(name)).collect()
    }

    /// Options for a few changes: little memory and a small log, so that data can be removed from a
    /// store on a disk that is nearly full. Settings in the file stay in force.
    pub fn small(&self, create: bool) -> Options {
        let mut options = Options {
            create_if_missing: create,
            error_if_exists: false,
            ..self.options.clone()
        };
        let names = self.names();
        let free = |name: &str| !names.contains(&name);
        if free("memtable_bytes") {
            options.memtable_bytes = 16 << 20;
        }
        if free("log_segment_bytes") {
            options.log_segment_bytes = 256 << 10;
        }
        options
    }
}

/// The options in a store's `OPTIONS.toml`; the defaults if there is none.
///
/// # Errors
/// As [`OptionsFile::read`].
fn options_of(path: &Path) -> Result<Options, Failure> {
    Ok(OptionsFile::read(path)?.options)
}

/// Whether a keyspace is one that tools keep for themselves: it is shown only if a command names
/// it.
pub fn is_own(name: &str) -> bool {
    name.starts_with(OWN_PREFIX)
}

/// A keyspace that must exist.
fn keyspace_of(store: &Store, name: &str) -> Result<Keyspace, Failure> {
    store.keyspace(name).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_keyspace(name, &store.keyspaces()).into(),
        _ => error.into(),
    })
}

/// A keyspace, which is created if it does not exist. The output says so, because the name may be
/// mistyped.
fn keyspace_or_new(store: &Store, name: &str, json: bool) -> Result<Keyspace, Failure> {
    match store.keyspace(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        found => return Ok(found?),
    }
    refuse_own_name(name)?;
    let keyspace = store.open_keyspace(name)?;
    if !json {
        let mut out = Out::new();
        outln!(out, "created keyspace `{}`", one_line(name))?;
        out.finish()?;
    }
    Ok(keyspace)
}

/// The error for a keyspace that does not exist.
fn no_keyspace(name: &str, all: &[String]) -> Error {
    let names = all.iter().filter(|name| !is_own(name));
    let names: Vec<_> = names.map(|name| one_line(name)).collect();
    Error::not_found(format!("there is no keyspace `{name}`"))
        .expected(format!("one of: {}", names.join(", ")))
        .advice("create it first, or check the name")
}

/// Opens a store that must exist, to read it. Nothing in it is changed, and other processes may
/// read it too.
///
/// # Errors
/// As [`Store::open_read_only`].
fn open_to_read(path: &Path) -> Result<Opened, Failure> {
    open_to_read_with(path, &options_of(path)?)
}

/// As [`open_to_read`], with other options than those of the store's file.
fn open_to_read_with(path: &Path, options: &Options) -> Result<Opened, Failure> {
    if is_local(path)? {
        return explained(patiently(&|| {
            Store::open_read_only(path, options.clone()).map(Opened::from)
        }));
    }
    let (text, placement) = (text_of(path)?, place::placement()?);
    place::reach_devices(path, &placement)?;
    explained(siltstone_device::open_read_only(text, options.clone(), &placement).map(Opened::from))
}

/// Whether all of a store is in folders of this machine, as far as its path and its folder say.
fn is_local(path: &Path) -> Result<bool, Failure> {
    Ok(place::url(path)?.is_none() && place::tables_on_device(path).is_none())
}

/// The path of a store that devices have a part in.
fn text_of(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| {
        Failure::Usage(format!(
            "{}: the path of a store with parts on a device must be UTF-8",
            path.display()
        ))
    })
}

/// Opens a store that must exist, for a few changes.
///
/// # Errors
/// As [`Store::open`].
fn open_existing(path: &Path) -> Result<Opened, Failure> {
    open(path, OptionsFile::read(path)?.small(false))
}

/// Opens a store, or creates it if it does not exist, for a few changes.
///
/// # Errors
/// As [`Store::open`]; the folder contains other files and no store.
fn open_or_create(path: &Path) -> Result<Opened, Failure> {
    open(path, OptionsFile::read(path)?.small(true))
}

/// Opens a store, or creates it if it does not exist, for a command that creates these keyspaces if
/// they do not exist.
///
/// # Errors
/// As [`open_or_create`]; wrong usage if there is no store and a keyspace has a name that is
/// refused.
fn open_for(path: &Path, keyspaces: &[&str]) -> Result<Opened, Failure> {
    if keyspaces.iter().any(|name| is_own(name)) && !place::has_store(path) {
        keyspaces
            .iter()
            .try_for_each(|name| refuse_own_name(name))?;
    }
    open_or_create(path)
}

/// Opens a store for a command. It reports what the open discarded, and creates no store in a
/// folder with other files.
///
/// # Errors
/// As [`Store::open`]; the folder contains other files and no store.
fn open(path: &Path, options: Options) -> Result<Opened, Failure> {
    open_placed(path, options, &place::placement()?)
}

/// As [`open`], for a store whose parts may be on these devices. If a device has a part in it, and
/// its `OPTIONS.toml` sets no schedule, the policy is `near-data`.
///
/// # Errors
/// As [`open`], and [`siltstone_device::open`].
fn open_placed(path: &Path, options: Options, placed: &Placement) -> Result<Opened, Failure> {
    // The device refuses names that are not those of folders for stores.
    if options.create_if_missing && place::url(path)?.is_none() {
        refuse_foreign_folder(path)?;
    }
    if placed.tables.is_none() && placed.devices.is_empty() && is_local(path)? {
        return explained(patiently(&|| {
            open_local(path, &options, &placed.executors).map(Opened::from)
        }));
    }
    let text = text_of(path)?;
    let sets_schedule = OptionsFile::read(path)?.names().contains(&"schedule");
    let options = match sets_schedule {
        true => options,
        false => place::near_data(options),
    };
    place::reach_devices(path, placed)?;
    explained(siltstone_device::open(text, options, placed).map(Opened::from))
}

/// Opens a store in a folder of this machine, whose jobs these executors run beside the host.
///
/// # Errors
/// As [`Store::open`].
pub fn open_local(
    path: &Path,
    options: &Options,
    executors: &[Arc<dyn Executor>],
) -> siltstone::Result<Store> {
    if executors.is_empty() {
        return Store::open(path, options.clone());
    }
    let mut components = Components::for_path(path, options)?;
    components.executors.extend_from_slice(executors);
    Store::open_with(components, options.clone())
}

/// Opens a store. If another process has it open, waits a moment, because a process that was just
/// killed keeps its locks until its memory is freed. (A store on a device is waited for by the
/// client of the device.)
fn patiently(open: &dyn Fn() -> siltstone::Result<Opened>) -> siltstone::Result<Opened> {
    let start = Instant::now();
    loop {
        match open() {
            Err(error) if error.kind() == ErrorKind::Locked && start.elapsed() < LOCK_PATIENCE => {
                std::thread::sleep(LOCK_LOOK);
            }
            opened => return opened,
        }
    }
}

/// The result of an open, with advice and warnings for users of the command line.
fn explained(opened: siltstone::Result<Opened>) -> Result<Opened, Failure> {
    match opened {
        Ok(store) => {
            warn_of_discarded(&store);
            warn_of_skipped(&store);
            Ok(store)
        }
        // Only if there is no store. If a file of a store is missing, the error has its own advice.
        Err(error) if error.kind() == ErrorKind::NotFound && is_about_the_path(&error) => {
            Err(error
                .advice("check the path; `silt put` and `silt load` create a store")
                .into())
        }
        Err(error) => Err(error.into()),
    }
}

fn is_about_the_path(error: &Error) -> bool {
    let advice = error.advice_text();
    advice.is_none_or(|advice| {
        advice.starts_with("check the path") || advice.starts_with("there is no such folder on")
    })
}

/// Refuses a folder that contains other files and no store. The library accepts any folder, but on
/// a command line the last part of a path is easily forgotten, and the store's files would lie
/// among the others.
fn refuse_foreign_folder(path: &Path) -> Result<(), Failure> {
    // If the folder cannot be listed, the open reports this.
    let Ok(entries) = std::fs::read_dir(path) else {
        return Ok(());
    };
    let mut foreign = None;
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if siltstone::is_store_file(&name) || name == "LOCK.store" {
            return Ok(());
        }
        // Every new file system has one of these; hidden files are a desktop's or a mount's.
        if name != "lost+found" && !name.starts_with('.') {
            foreign.get_or_insert(name.into_owned());
        }
    }
    match foreign {
        Some(name) => Err(Failure::Other(format!(
            "{}: the folder holds other files (`{name}`) and no store; give the store a folder of \
            its own, for example {}",
            path.display(),
            path.join("store").display()
        ))),
        None => Ok(()),
    }
}

/// Warns if the open discarded log records behind a torn one. A power loss does this to records
/// that were never synced, and damage looks the same; users should not learn it only from missing
/// data.
fn warn_of_discarded(store: &Store) {
    let discarded = store.stats().counter("discarded_log_bytes");
    if discarded > 0 {
        eprintln!(
            "silt: the log had a torn or damaged record that was never synced; {} behind it were \
            discarded",
            bytes(discarded)
        );
    }
}

/// Warns of damage in a part of the log that is not needed. Such damage does not keep a store from
/// opening.
fn warn_of_skipped(store: &Store) {
    if store.stats().counter("skipped_log_damage_count") > 0 {
        eprintln!(
            "silt: the log is damaged in a part that is not needed, because its entries are in \
            tables; `silt check` shows where, and the next write begins a new log"
        );
    }
}

/// Opens a store and a keyspace that must exist, to read them.
fn open_keyspace(args: &StoreArgs) -> Result<(Opened, Keyspace), Failure> {
    let store = open_to_read(&args.store)?;
    let keyspace = keyspace_of(&store, &args.keyspace)?;
    Ok((store, keyspace))
}

/// A key of the command line.
fn key_of(text: &str, form: &Form, partial: bool) -> Result<Vec<u8>, Failure> {
    form.parse(text, partial)
        .map_err(|why| Failure::Usage(format!("the key `{text}` cannot be read: {why}")))
}

/// The bounds of a scan.
///
/// # Errors
/// A bound is not a key of this form; bounds in the wrong order.
pub fn bounds(args: &RangeArgs, form: &Form, values: bool) -> Result<IterOptions, Failure> {
    let key = |text: &Option<String>| {
        text.as_deref()
            .map(|text| key_of(text, form, true))
            .transpose()
    };
    let (from, to) = (key(&args.from)?, key(&args.to)?);
    if let (Some(lower), Some(upper)) = (&from, &to)
        && lower > upper
    {
        return Err(Failure::Usage(
            "--to is smaller than --from; this order is right for a reverse scan too".to_string(),
        ));
    }
    let range = match key(&args.prefix)? {
        Some(prefix) => IterOptions::prefix(&prefix),
        None => IterOptions {
            lower: from,
            upper: to,
            ..IterOptions::default()
        },
    };
    Ok(IterOptions { values, ..range })
}
