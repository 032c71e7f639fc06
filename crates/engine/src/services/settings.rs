//! Settings that change while the store is open. Those of the store change in memory; those of a
//! keyspace are also written to the manifest.
//!
//! Threading: one change at a time, under the lock of keyspace changes.

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::env::Env;
use crate::formats::version::{Edit, KeyspaceEdit};
use crate::jobs::Jobs;
use crate::tree::settings::Settings;
use crate::tree::view::KeyspaceCore;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::event::Event;
use crate::types::options::keyspace::merged;
use crate::types::options::stored::StoredOptions;
use crate::types::options::{Change, KeyspaceOptions, Options, Value, setting};

/// The options of this open as they are now, with the own options of each keyspace.
pub(crate) fn present(catalog: &Catalog) -> Options {
    let mut options = Options::clone(&catalog.env().live());
    options.keyspaces = catalog
        .keyspaces()
        .by_id
        .values()
        .map(|k| (k.name.clone(), k.settings().own.clone()))
        .filter(|(_, own)| !own.is_empty())
        .collect();
    options
}

/// Changes one option of the store until it is closed.
pub(crate) fn set_store(jobs: &Jobs, name: &str, value: &Value) -> Result<()> {
    if jobs.env().health().is_read_only() {
        return jobs.env().health().check();
    }
    let setting = setting(name)?;
    if let Change::AtOpen(why) = setting.change {
        return Err(Error::invalid_argument(format!(
            "option {name} cannot change while the store is open: {why}"
        ))
        .advice(format!("close the store and open it with another {name}")));
    }
    let _changes = jobs.catalog().changes();
    jobs.env().check_open()?;
    let old = jobs.env().live();
    let mut options = Options::clone(&old);
    options.set(name, value)?;
    options.validate()?;
    jobs.runner().set_subjobs_max(options.subjobs_max as usize);
    jobs.runner().set_flush_verify(options.flush_verify);
    jobs.runner().rate.set(options.background_bytes_per_s);
    jobs.runner().set_carry_over_bytes(options.carry_over_bytes);
    let options = Arc::new(options);
    jobs.env().set_live(options.clone());
    for keyspace in jobs.catalog().keyspaces().by_id.values() {
        let own = keyspace.load_settings().own.clone();
        keyspace.set_settings(Settings::new(own, &options, jobs.tree().arenas()));
    }
    let value = options.get(name)?;
    if value != old.get(name)? {
        jobs.env().events().emit(|| Event::OptionChanged {
            keyspace: None,
            name: setting.name,
            value: Some(value),
        });
    }
    notify_all(jobs.env());
    Ok(())
}

/// Changes the own options of a keyspace, and stores them in the manifest.
pub(crate) fn set_keyspace(
    catalog: &Catalog,
    keyspace: &KeyspaceCore,
    change: impl FnOnce(&mut KeyspaceOptions) -> Result<()>,
) -> Result<()> {
    let _changes = catalog.changes();
    catalog.env().check_open()?;
    catalog.env().health().check_manifest()?;
    keyspace.check()?;
    let mut own = keyspace.load_settings().own.clone();
    change(&mut own)?;
    own.validate()?;
    if own == keyspace.load_settings().own {
        return Ok(());
    }
    {
        let mut role = catalog.role();
        // If the create of the keyspace waits for room, its options are in the edit that waits.
        // Stored options that this build does not know stay as they are.
        catalog.commit_pending(&mut role)?;
        let state = role.state().clone();
        let mut stored = match state.keyspace(keyspace.id) {
            Some(known) => known.options.clone(),
            None => StoredOptions::new(),
        };
        own.store_into(&mut stored);
        let edit = Edit {
            keyspaces: vec![KeyspaceEdit {
                id: keyspace.id,
                options: Some(stored),
                ..KeyspaceEdit::default()
            }],
            ..Edit::default()
        };
        catalog.commit_edit(&mut role, edit)?;
    }
    let old = keyspace.load_settings();
    for (name, value) in own.changes_from(&old.own) {
        catalog.env().events().emit(|| Event::OptionChanged {
            keyspace: Some(keyspace.name.clone()),
            name,
            value,
        });
    }
    keyspace.set_settings(Settings::new(
        own,
        &catalog.env().live(),
        catalog.tree().arenas(),
    ));
    notify_all(catalog.env());
    Ok(())
}

/// Stores the options that this open was given for single keyspaces. If there is no room for that,
/// they are in force only until the store is closed.
pub(crate) fn store_options_of_keyspaces(catalog: &Catalog) -> Result<()> {
    for (name, own) in &catalog.env().live().keyspaces {
        let map = catalog.keyspaces();
        let Some(keyspace) = map.by_name.get(name).and_then(|id| map.by_id.get(id)) else {
            continue;
        };
        let file = catalog
            .env()
            .options_file()
            .as_ref()
            .ok()
            .and_then(Option::as_ref);
        let in_file = file.and_then(|file| file.options.keyspaces.get(name));
        let stored = set_keyspace(catalog, keyspace, |stored| {
            *stored = merged(name, stored, own, in_file)?;
            Ok(())
        });
        match stored {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                let merged = merged(name, &keyspace.load_settings().own, own, in_file)?;
                keyspace.set_settings(Settings::new(
                    merged,
                    &catalog.env().live(),
                    catalog.tree().arenas(),
                ));
            }
            result => result.map_err(|e| e.context(format!("the options of keyspace `{name}`")))?,
        }
    }
    Ok(())
}

/// Wakes all tasks that wait for something that a setting may have changed.
fn notify_all(env: &Env) {
    env.pressure().notify();
    env.work().notify();
    env.maintenance().notify();
}
