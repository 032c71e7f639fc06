//! `silt options`: the settings of a store: which values are in force, where each comes from, and
//! changes to them.
//!
//! Settings are kept in two places: in the file `OPTIONS.toml` in the store's folder, which is the
//! operator's, and, for a single keyspace, in the store itself, which takes over what the file sets
//! for the keyspace when it is opened for writing.
//!
//! Invariants: the file is replaced whole, and only by settings that can be. A change of a
//! keyspace's settings is made in both places, so that what `--unset` takes away is gone.

pub mod file;
mod show;

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use siltstone::{Error, ErrorKind, Keyspace, Store};

use super::opened::Opened;
use super::{OPTIONS_FILE, OptionsFile, keyspace_of};
use crate::args::OptionsArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, outln};
use file::Changes;
use show::InForce;

/// Runs the command.
pub fn run(args: &OptionsArgs) -> Result<Outcome, Failure> {
    // What is wrong in the file is refused before what is wrong in the arguments.
    let read = OptionsFile::read(&args.store)?;
    let changes = changes(args)?;
    let is_change = !args.set.is_empty() || !args.unset.is_empty();
    if !is_change && !args.write {
        if !args.store.is_dir() {
            return Err(Failure::Other(format!(
                "{}: there is no such folder; --write and --set create it",
                args.store.display()
            )));
        }
        let found = InForce::find(&args.store, &read, args.keyspace.as_deref())?;
        return print(|out| found.print(out, args.json));
    }
    let (options, text) = changes.apply(&read.text)?;
    let text = match args.write {
        true => options.to_toml(),
        false => text,
    };
    let changed = OptionsFile { options, text };
    // Before the file: what the store refuses must not stand there.
    let store = match &args.keyspace {
        Some(name) if is_change => Some(change_keyspace(args, name, &changed, &changes)?),
        _ => None,
    };
    write(&args.store, &changed.text)?;
    if let Some(store) = store {
        store.close()?;
    }
    if !is_change {
        return Ok(Outcome::Fine);
    }
    let mut names: Vec<&str> = changes.unset.clone();
    names.extend(changes.set.iter().map(|(name, _)| *name));
    let found = InForce::find(&args.store, &changed, args.keyspace.as_deref())?.only(&names);
    print(|out| found.print_brief(out, args.json))
}

fn print(lines: impl FnOnce(&mut Out) -> Result<(), Failure>) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    lines(&mut out)?;
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Settings that only a store's creation follows.
const DIRECTORIES: [&str; 2] = ["log_dir", "table_dir"];

/// What is wrong with a name or a value that was given on the command line.
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
/// A name is not that of a setting, or an argument of `--set` is no pair.
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
                "{name} is chosen when a store is created, and {} is there already",
                args.store.display()
            )));
        }
        set.push((name, value));
    }
    let unset: Vec<&str> = args.unset.iter().map(|name| name.trim()).collect();
    for name in &unset {
        siltstone::setting(name).map_err(usage)?;
    }
    Ok(Changes {
        keyspace: args.keyspace.as_deref(),
        set,
        unset,
    })
}

/// Opens the store, which takes over what the changed file sets for its keyspaces, and takes away
/// what it has stored of the settings to unset. The store is returned open, so that no other
/// process opens it before the changed file is in place.
fn change_keyspace(
    args: &OptionsArgs,
    name: &str,
    changed: &OptionsFile,
    changes: &Changes<'_>,
) -> Result<Opened, Failure> {
    let options = changed.small(false);
    let store = super::open(&args.store, options).map_err(|failure| match failure {
        Failure::Store(error) if error.kind() == ErrorKind::Locked => error
            .advice(
                "the store keeps its keyspaces' settings: close the store and give the command \
                 again, or change them in the program that has it open (Keyspace::set_options)",
            )
            .into(),
        Failure::Store(error) if error.kind() == ErrorKind::NotFound => error
            .advice(format!(
                "a keyspace has settings once it is there: `silt keyspace create {} -k {name}` \
                 creates it",
                args.store.display()
            ))
            .into(),
        failure => failure,
    })?;
    let keyspace = named(&store, name)?;
    keyspace.unset_options(&changes.unset)?;
    Ok(store)
}

/// Replaces the file; a crash leaves the old one or the new one. Where a link lies in its place,
/// the file that the link leads to is replaced, and the link stays.
fn write(store: &Path, text: &str) -> Result<(), Failure> {
    let mut file = store.join(OPTIONS_FILE);
    if file.is_symlink() {
        file = fs::canonicalize(&file)
            .map_err(|e| Failure::io(format!("{}, a link", file.display()), &e))?;
    }
    let folder = file.parent().unwrap_or(store);
    let new = folder.join(".OPTIONS.toml.tmp");
    let replaced = (|| {
        fs::create_dir_all(folder)?;
        let mut out = File::create(&new)?;
        out.write_all(text.as_bytes())?;
        out.sync_all()?;
        fs::rename(&new, &file)?;
        File::open(folder)?.sync_all()
    })();
    replaced.map_err(|e| Failure::file(&file, &e))
}
