//! `silt options`: the settings of a store, as the file `OPTIONS.toml` in its folder has them.
//!
//! Invariant: the file is replaced whole, and only by settings that can be.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use siltstone::Options;

use super::OPTIONS_FILE;
use crate::args::OptionsArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// Runs the command.
pub fn run(args: &OptionsArgs) -> Result<Outcome, Failure> {
    let file = args.store.join(OPTIONS_FILE);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Failure::file(&file, &error)),
    };
    let read =
        |text: &str| Options::from_toml(text).map_err(|e| Failure::from(e.context(file.display())));
    let changes = !args.set.is_empty() || !args.unset.is_empty();
    let options = if changes {
        // Refused for what is wrong in the file before what is wrong in the arguments.
        read(&text)?;
        changed(&text, args)?
    } else {
        read(&text)?
    };
    if changes || args.write {
        write(&args.store, &options)?;
        return Ok(Outcome::Fine);
    }
    if !args.store.is_dir() {
        return Err(Failure::Other(format!(
            "{}: there is no such folder; --write and --set create it",
            args.store.display()
        )));
    }
    let mut out = Out::new();
    match &args.keyspace {
        None => out.raw(options.to_toml().as_bytes())?,
        Some(name) => {
            let own = options.keyspaces.get(name);
            out.raw(own.map(|o| o.to_toml()).unwrap_or_default().as_bytes())?;
        }
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// The settings of a file's text, with the changes that the arguments ask for.
///
/// # Errors
/// What cannot be.
pub fn changed(text: &str, args: &OptionsArgs) -> Result<Options, Failure> {
    let mut table: toml::Table = text
        .parse()
        .map_err(|e| Failure::Other(format!("{}: {e}", args.store.join(OPTIONS_FILE).display())))?;
    change(&mut table, args)?;
    Ok(Options::from_toml(&table.to_string())?)
}

/// Settings that only a store's creation follows.
const DIRECTORIES: [&str; 2] = ["log_dir", "table_dir"];

/// Changes what the arguments ask for.
fn change(table: &mut toml::Table, args: &OptionsArgs) -> Result<(), Failure> {
    let section = match &args.keyspace {
        None => table,
        Some(name) => {
            let mut section = table;
            for name in ["keyspaces", name] {
                section = section
                    .entry(name)
                    .or_insert_with(|| toml::Table::new().into())
                    .as_table_mut()
                    .ok_or_else(|| Failure::Usage(format!("`{name}` is no table")))?;
            }
            section
        }
    };
    for name in &args.unset {
        siltstone::setting(name)?;
        section.remove(name);
    }
    for pair in &args.set {
        let is_chosen = args.store.join("CURRENT").exists();
        if let Some(name) = DIRECTORIES
            .iter()
            .find(|d| is_chosen && pair.trim_start().starts_with(**d))
        {
            return Err(Failure::Usage(format!(
                "{name} is chosen when a store is created, and {} is there already",
                args.store.display()
            )));
        }
        let (name, value) = pair.split_once('=').ok_or_else(|| {
            Failure::Usage(format!(
                "`--set {pair}` lacks its value: expected NAME=VALUE"
            ))
        })?;
        let (name, value) = (name.trim(), value.trim());
        siltstone::setting(name)?;
        // What is no TOML is a word.
        let line: Option<toml::Table> = format!("value = {value}").parse().ok();
        let value = line
            .and_then(|mut line| line.remove("value"))
            .unwrap_or_else(|| value.into());
        section.insert(name.to_string(), value);
    }
    Ok(())
}

/// Replaces the file; a crash leaves the old one or the new one.
fn write(store: &Path, options: &Options) -> Result<(), Failure> {
    let file = store.join(OPTIONS_FILE);
    let new = store.join(".OPTIONS.toml.tmp");
    let replaced = (|| {
        fs::create_dir_all(store)?;
        let mut out = File::create(&new)?;
        out.write_all(options.to_toml().as_bytes())?;
        out.sync_all()?;
        fs::rename(&new, &file)?;
        File::open(store)?.sync_all()
    })();
    replaced.map_err(|e| Failure::file(&file, &e))
}
