//! The options of an open store, compared with the file `OPTIONS.toml` in its folder.
//!
//! An operator sets options in that file with `silt options`, and every command of `silt` uses it.
//! A program uses it only if it passes [`Options::load`] to [`crate::Store::open`]. If it passes
//! other options, those of the operator are not in force. That is no error, because it may be
//! intended, but it must be visible: an open for writing reads the file, and what contradicts it is
//! traced, emitted as [`Event::OptionsDiffer`], and part of [`crate::Stats`]. A keyspace in the
//! file that the store does not have is reported in the same ways: its name may be a mistake, or
//! the keyspace may be created later, with these options.
//!
//! Invariants: only options that the file sets can differ. The file never prevents an open: if it
//! cannot be read, that is reported in the same three ways. The error begins with the path of the
//! file.
//!
//! Threading: the open reads the file once; comparing takes no lock.

use crate::catalog::Catalog;
use crate::env::Env;
use crate::types::error::Error;
use crate::types::event::Event;
use crate::types::options::difference::OptionDifference;
use crate::types::options::file::OPTIONS;
use crate::types::options::{Options, OptionsFile, Scope, Setting, Value, settings};

/// Whether an option says something only about one open, and nothing about the store.
fn is_of_one_open(setting: &Setting) -> bool {
    ["create_if_missing", "error_if_exists"].contains(&setting.name)
}

/// The options in force that contradict the file.
pub(crate) fn differences(catalog: &Catalog) -> Vec<OptionDifference> {
    let Ok(Some(file)) = &catalog.env().options_file() else {
        return Vec::new();
    };
    let mut all = of_store(&catalog.env().live(), file);
    let map = catalog.keyspaces();
    for (name, in_file) in &file.options.keyspaces {
        let Some(keyspace) = map.by_name.get(name).and_then(|id| map.by_id.get(id)) else {
            continue;
        };
        let in_force = keyspace.settings().all.all_set();
        for setting in settings() {
            let pair = (
                setting.keyspace_value(&in_force),
                setting.keyspace_value(in_file),
            );
            if let (Some(value), Some(file_value)) = pair {
                all.extend(difference(Some(name), setting, &value, &file_value));
            }
        }
    }
    all
}

/// The keyspaces that the file has options for but the store does not have.
pub(crate) fn of_no_keyspace(catalog: &Catalog) -> Vec<String> {
    let Ok(Some(file)) = &catalog.env().options_file() else {
        return Vec::new();
    };
    let map = catalog.keyspaces();
    let names = file.options.keyspaces.keys();
    names
        .filter(|name| !map.by_name.contains_key(name.as_str()))
        .cloned()
        .collect()
}

fn of_store(in_force: &Options, file: &OptionsFile) -> Vec<OptionDifference> {
    let set = |setting: &&Setting| file.names.contains(setting.name) && !is_of_one_open(setting);
    let compare = |setting: &Setting| {
        let value = setting.value(in_force);
        // An empty folder means the one that was chosen when the store was created.
        let is_not_given = setting.unit == "folder" && value == Value::Text(String::new());
        (!is_not_given).then(|| difference(None, setting, &value, &setting.value(&file.options)))?
    };
    settings().iter().filter(set).filter_map(compare).collect()
}

fn difference(
    keyspace: Option<&str>,
    setting: &Setting,
    value: &Value,
    file_value: &Value,
) -> Option<OptionDifference> {
    debug_assert!(keyspace.is_none() || setting.scope == Scope::Keyspace);
    (value != file_value).then(|| OptionDifference {
        keyspace: keyspace.map(String::from),
        name: setting.name.to_string(),
        value: setting.show(value),
        file_value: setting.show(file_value),
    })
}

/// Why the file could not be read, if it could not.
pub(crate) fn failure(env: &Env) -> Option<&Error> {
    env.options_file().as_ref().err()
}

/// Traces and emits what contradicts the file. Called once the store is open for writing.
pub(crate) fn report(catalog: &Catalog) {
    if let Some(error) = failure(catalog.env()) {
        tracing::warn!(%error, "the file {OPTIONS} in the store's folder cannot be read");
        let error = error.clone();
        catalog
            .env()
            .events()
            .emit(|| Event::OptionsUnreadable { error });
    }
    let differences = differences(catalog);
    for difference in &differences {
        tracing::warn!(
            keyspace = difference.keyspace,
            name = difference.name,
            value = difference.value,
            file_value = difference.file_value,
            "an option contradicts the file {OPTIONS} in the store's folder"
        );
    }
    if !differences.is_empty() {
        catalog
            .env()
            .events()
            .emit(|| Event::OptionsDiffer { differences });
    }
    let keyspaces = of_no_keyspace(catalog);
    for keyspace in &keyspaces {
        tracing::warn!(
            keyspace,
            "the file {OPTIONS} in the store's folder has options for a keyspace, and there is no \
             keyspace of this name yet"
        );
    }
    if !keyspaces.is_empty() {
        catalog
            .env()
            .events()
            .emit(|| Event::OptionsOfNoKeyspace { keyspaces });
    }
}
