//! `silt options`: prints the settings in force with the origin of each, and changes them.
//!
//! Settings are kept in two places: in the file `OPTIONS.toml` in the store's folder, which belongs
//! to the operator, and, for a single keyspace, in the store itself. When the store is opened for
//! writing, it adopts what the file sets for a keyspace.
//!
//! Invariants: the file is replaced as a whole, and only by valid settings. A change of a
//! keyspace's settings is made in both places, so that `--unset` removes a setting completely.

pub mod file;
mod show;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use siltstone::{Error, ErrorKind, Keyspace, Options, Store};

use super::opened::Opened;
use super::{OPTIONS_FILE, OptionsFile, keyspace_of, place};
use crate::args::OptionsArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, one_line, outln};
use file::Changes;
use show::InForce;

/// Runs the command.
pub fn run(args: &OptionsArgs) -> Result<Outcome, Failure> {
    // Errors in the file are reported before errors in the arguments.
    let read = OptionsFile::read(&args.store)?;
    let changes = changes(args)?;
    let is_change = !args.set.is_empty() || !args.unset.is_empty();
    if !is_change && !args.write {
        if !place::has_folder(&args.store)? {
            return Err(no_folder(&args.store));
        }
        let found = InForce::find(&args.store, &read, args.keyspace.as_deref())?;
        return print(|out| found.print(out, args.json));
    }
    if place::url(&args.store)?.is_some() {
        return Err(Failure::Usage(format!(
            "the settings of {} are in the file {OPTIONS_FILE} in its folder on the device: change \
             them there, with `silt options` on the device's machine",
            args.store.display()
        )));
    }
    let (options, text) = changes.apply(&read.text)?;
    let text = match args.write {
        true => options.to_toml(),
        false => text,
    };
    let changed = OptionsFile { options, text };
    let find = || InForce::find(&args.store, &changed, args.keyspace.as_deref());
    if !is_change {
        Staged::new(&args.store, &changed.text)?.put_in_place()?;
        return Ok(Outcome::Fine);
    }
    let found = match &args.keyspace {
        // If the store cannot be read with the changed file, this is reported before the file is
        // changed.
        None => {
            let found = find()?;
            Staged::new(&args.store, &changed.text)?.put_in_place()?;
            found
        }
        Some(name) => {
            change_keyspace(args, name, &changed, &changes)?;
            find().map_err(|failure| is_made(&failure))?
        }
    };
    let mut names: Vec<&str> = changes.unset.clone();
    names.extend(changes.set.iter().map(|(name, _)| *name));
    let found = found.only(&names);
    print(|out| found.print_brief(out, args.json))
}

fn no_folder(path: &Path) -> Failure {
    let path = path.display();
    Failure::Other(format!(
        "{path}: there is no such folder; --write and --set create it"
    ))
}

fn print(lines: impl FnOnce(&mut Out) -> Result<(), Failure>) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    lines(&mut out)?;
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Settings that are used only when a store is created.
const DIRECTORIES: [&str; 2] = ["log_dir", "table_dir"];

/// The error for a wrong name or value on the command line.
fn usage(error: Error) -> Failure {
    Failure::Usage(error.to_string())
}

/// The keyspace that the arguments name.
fn named(store: &Store, name: &str) -> Result<Keyspace, Failure> {
    keyspace_of(store, name).map_err(|failure| match failure {
        Failure::Store(error) if error.kind() == ErrorKind::NotFound => usage(error),
        failure => failure,
    })
}

/// The changes that the arguments ask for.
///
/// # Errors
/// A name is not that of a setting, or an argument of `--set` is not a pair.
pub fn changes(args: &OptionsArgs) -> Result<Changes<'_>, Failure> {
    let is_chosen = args.store.join("CURRENT").exists();
    let mut set = Vec::new();
    for pair in &args.set {
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Failure::Usage(format!(
                "`--set {pair}` lacks its value: expected NAME=VALUE"
            ))
        })?;
        let (name, value) = (name.trim(), value.trim());
        siltstone::setting(name).map_err(usage)?;
        if is_chosen && DIRECTORIES.contains(&name) {
            return Err(Failure::Usage(format!(
                "{name} is chosen when a store is created, and {} exists already",
                args.store.display()
            )));
        }
        set.push((name, value));
    }
    let unset: Vec<&str> = args.unset.iter().map(|name| name.trim()).collect();
    for name in &unset {
        siltstone::setting(name).map_err(usage)?;
    }
    if let Some((name, _)) = set.iter().find(|(name, _)| unset.contains(name)) {
        return Err(Failure::Usage(format!(
            "{name} cannot be both set and unset: leave out `--set {name}=...` or `--unset {name}`"
        )));
    }
    Ok(Changes {
        keyspace: args.keyspace.as_deref(),
        set,
        unset,
    })
}

/// Changes the settings of a keyspace in the store, in one step, and in the file.
fn change_keyspace(
    args: &OptionsArgs,
    name: &str,
    changed: &OptionsFile,
    changes: &Changes<'_>,
) -> Result<(), Failure> {
    let mut options = changed.small(false);
    // The open would apply them before the other settings are unset, which they may contradict.
    let wished = options.keyspaces.remove(name).unwrap_or_default();
    // The store stays open, so that no other process opens it before the file is replaced.
    let store = open_to_change(args, name, options)?;
    let keyspace = named(&store, name)?;
    // A setting that the store refuses must not be written to the file, and if the file cannot be
    // written, the store must not have the change. (The open would delete a staged file.)
    let staged = Staged::new(&args.store, &changed.text)?;
    keyspace.change_options(&wished, &changes.unset)?;
    staged.put_in_place().map_err(|failure| {
        Failure::Other(format!(
            "{failure}; the store has the change of the keyspace `{}` already, but the file may \
            lack it: give the command again",
            one_line(name)
        ))
    })?;
    store.close().map_err(|error| is_made(&error.into()))
}

/// The failure of a step after the change.
fn is_made(failure: &Failure) -> Failure {
    Failure::Other(format!(
        "the change is made, in the store and in {OPTIONS_FILE}, but a step after it failed: \
         {failure}"
    ))
}

/// Opens the store to change what it keeps for a keyspace.
fn open_to_change(args: &OptionsArgs, name: &str, options: Options) -> Result<Opened, Failure> {
    super::open(&args.store, options).map_err(|failure| match failure {
        Failure::Store(error) if error.kind() == ErrorKind::Locked => error
            .advice(
                "the store keeps its keyspaces' settings: close the store and give the command \
                 again, or change them in the program that has it open (Keyspace::set_options)",
            )
            .into(),
        Failure::Store(error) if error.kind() == ErrorKind::NotFound => error
            .advice(format!(
                "a keyspace must exist before it can have settings: `silt keyspace create {} -k \
                {name}` creates it",
                args.store.display()
            ))
            .into(),
        failure => failure,
    })
}

/// The changed file, written and synced beside the old one. It is deleted if it is dropped before
/// it replaces the old file.
struct Staged {
    new: PathBuf,
    file: PathBuf,
}

impl Staged {
    /// Writes the file. If the path is a link, the target of the link will be replaced, and the
    /// link stays.
    fn new(store: &Path, text: &str) -> Result<Staged, Failure> {
        let mut file = store.join(OPTIONS_FILE);
        if file.is_symlink() {
            file = fs::canonicalize(&file)
                .map_err(|e| Failure::io(format!("{}, a link", file.display()), &e))?;
        }
        let folder = file.parent().unwrap_or(store);
        let staged = Staged {
            new: folder.join(".OPTIONS.toml.tmp"),
            file: file.clone(),
        };
        let written = (|| {
            fs::create_dir_all(folder)?;
            let mut out = File::create(&staged.new)?;
            out.write_all(text.as_bytes())?;
            out.sync_all()
        })();
        match written {
            Ok(()) => Ok(staged),
            Err(error) => Err(Failure::Other(format!(
                "{}: {error}; nothing was changed",
                staged.new.display()
            ))),
        }
    }

    /// Replaces the old file. A crash leaves the old one or the new one.
    fn put_in_place(self) -> Result<(), Failure> {
        let replaced = fs::rename(&self.new, &self.file).and_then(|()| {
            let folder = self.file.parent().unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()
        });
        replaced.map_err(|e| Failure::file(&self.file, &e))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // After the replacement it has another name. If it cannot be deleted, the next change
        // overwrites it.
        let _ = fs::remove_file(&self.new);
    }
}
