//! Operations on a whole store: checkpoints, settings, verification.
//!
//! Threading: as the world.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::{Components, ErrorKind, Keyspace, KeyspaceOptions, Options, Setting, Store, Value};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

use super::{Errors, Promise, World};
use crate::checker::{Check, check_contents};
use crate::model::{Event, Pairs, Record};
use crate::observe::lock;

/// A checkpoint, and its expected contents.
#[derive(Clone)]
pub struct Copy {
    /// Its storage.
    pub medium: MemoryStorage,
    /// The number that it shows.
    pub published: u64,
    /// The id, the pairs and the allowed settings of each keyspace, by name. If no settings are
    /// listed, any are allowed.
    pub keyspaces: BTreeMap<String, (u32, Pairs, Vec<KeyspaceOptions>)>,
}

/// Options with which any store can be opened for comparison: with enough memory for all of its
/// log, and without requested settings.
pub fn reading_options() -> Options {
    Options {
        create_if_missing: false,
        memtable_bytes: 4 << 20,
        ..Options::default()
    }
}

impl Copy {
    /// Compares the checkpoint with its expected contents, both directly and after a loss of power.
    ///
    /// # Errors
    /// The first difference.
    pub fn verify(&self, runtime: &Runtime) -> Check {
        let images = [
            ("", self.medium.kill_in(runtime)),
            (
                " after a loss of power",
                self.medium.crash_in(runtime, CrashPolicy::LoseUnsynced).0,
            ),
        ];
        for (how, image) in images {
            self.verify_image(runtime, &image)
                .map_err(|e| format!("checkpoint at {}{how}: {e}", self.published))?;
        }
        Ok(())
    }

    fn verify_image(&self, runtime: &Runtime, image: &MemoryStorage) -> Check {
        let text = |e: siltstone::Error| e.to_string();
        let report = check(&CheckStorages::on(image), &mut |_| {}).map_err(text)?;
        if !report.is_sound() || !report.orphans.is_empty() {
            return Err(format!("{:?} {:?}", report.problems, report.orphans));
        }
        let storage: Arc<dyn Storage> = Arc::new(image.clone());
        let components = Components::on(storage, runtime.clone());
        let store = Store::open_read_only_with(components, reading_options()).map_err(text)?;
        let wanted = self
            .keyspaces
            .iter()
            .map(|(name, (id, pairs, _))| (name.clone(), (*id, pairs.clone())));
        check_contents(&store, &wanted.collect())?;
        for (name, (.., allowed)) in &self.keyspaces {
            let own = store.keyspace(name).map_err(text)?.own_options();
            if !allowed.is_empty() && !allowed.contains(&own) {
                return Err(format!(
                    "{own:?} is set for {name}, expected one of {allowed:?}"
                ));
            }
        }
        store.close().map_err(text)
    }
}

impl World {
    /// Writes a checkpoint to `target`, compares it with the model, and returns it. Returns `None`
    /// if it could not be written.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn checkpoint_to(
        &self,
        target: Arc<dyn Storage>,
        medium: &MemoryStorage,
    ) -> Result<Option<Copy>, String> {
        let published = self.store.snapshot().number();
        let (before, settled) = {
            let history = lock(&self.history);
            let before = history.model.end_at(published);
            (before, history.settings.settled())
        };
        let _begun = self.begin(Promise::Checkpoint);
        let report = match self.store.checkpoint_to(target) {
            Ok(report) => report,
            Err(e) => return self.allow(&e, &[], "checkpoint").map(|()| None),
        };
        if report.published < before {
            return Err(format!(
                "a checkpoint shows {}, and {before} was published before it",
                report.published
            ));
        }
        // The log was synced through the moment that the checkpoint shows.
        self.synced(report.published);
        let copy = {
            let history = lock(&self.history);
            let keyspaces = history.model.keyspaces(report.published).into_iter();
            Copy {
                medium: medium.clone(),
                published: report.published,
                keyspaces: keyspaces
                    .map(|(name, id)| {
                        let pairs = history.model.state(id, report.published);
                        let allowed = match self.errors {
                            Errors::Fatal if !self.was_faulty => {
                                history.settings.allowed(id, settled)
                            }
                            // A setting that found no space is in force without being stored.
                            _ => Vec::new(),
                        };
                        (name, (id, pairs, allowed))
                    })
                    .collect(),
            }
        };
        let silent = |record: &Record| matches!(record.event, Event::DropWithoutRecord(_));
        let was_faulty = self.was_faulty || self.errors != Errors::Fatal;
        if was_faulty && lock(&self.history).model.records().iter().any(silent) {
            // A drop on a full disk has no number of its own, so it is not known whether it
            // precedes the checkpoint.
            self.reach("checkpoint.beside_a_drop_without_a_number");
            return Ok(None);
        }
        if report.keyspace_count != copy.keyspaces.len() as u64 {
            return Err(format!(
                "a checkpoint of {} keyspaces, expected {:?}",
                report.keyspace_count,
                copy.keyspaces.keys()
            ));
        }
        self.reach("checkpoint.done");
        if self.other_executors.hung() > 0 {
            self.reach("elsewhere.checkpoint_beside_a_hung_job");
        }
        if report.table_count > 0 {
            self.reach("checkpoint.tables_linked");
        }
        if report.written_table_count > 0 {
            self.reach("checkpoint.tables_written");
        }
        if self.store.snapshot().number() > report.published {
            self.reach("checkpoint.while_written");
        }
        Ok(Some(copy))
    }

    /// Writes a checkpoint, compares it now, and keeps it for a later comparison.
    ///
    /// # Errors
    /// As [`World::checkpoint_to`].
    pub fn checkpoint(&self) -> Check {
        let medium = MemoryStorage::new(&self.runtime);
        let Some(copy) = self.checkpoint_to(Arc::new(medium.clone()), &medium)? else {
            return Ok(());
        };
        if let Err(e) = copy.verify(&self.runtime) {
            // A checkpoint of a damaged file has the damage.
            return self.excuse(e);
        }
        let mut copies = self.copies.lock().unwrap_or_else(|e| e.into_inner());
        if copies.len() < 3 {
            copies.push(copy);
        }
        Ok(())
    }

    /// Verifies all tables of the open store.
    ///
    /// # Errors
    /// Damage, or an error that is not allowed.
    pub fn verify(&self) -> Check {
        match self.store.verify(&mut |_| {}) {
            Ok(report) => {
                for problem in &report.problems {
                    self.excuse(format!("verify: {problem}"))?;
                }
                if report.table_count > 0 {
                    self.reach("verify.tables");
                }
                Ok(())
            }
            Err(e) => self.allow(&e, &[], "verify"),
        }
    }

    /// Sets an option of the store by name.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn set_option(&self, setting: &Setting, value: Value) -> Check {
        let _turn = self.turn.lock();
        let name = setting.name;
        let before = self.store.options();
        let result = self.store.set_option(name, value.clone());
        let after = self.store.options();
        match (result, setting.change) {
            (Ok(()), siltstone::Change::AtOpen(_)) => {
                Err(format!("{name} was set, which cannot change while open"))
            }
            (Ok(()), siltstone::Change::WhileOpen) => {
                let mut wanted = before;
                wanted.set(name, &value).map_err(|e| e.to_string())?;
                // Keyspaces may be created and dropped meanwhile.
                wanted.keyspaces = after.keyspaces.clone();
                if after != wanted {
                    return Err(format!("{name} = {value}: {after:?}, expected {wanted:?}"));
                }
                self.reach("settings.store");
                Ok(())
            }
            (Err(e), _) => self.allow(&e, &[ErrorKind::InvalidArgument], name),
        }
    }

    /// Sets options of a keyspace, and unsets all of `unset`.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn set_keyspace(
        &self,
        keyspace: &Keyspace,
        own: &KeyspaceOptions,
        unset: &[&str],
    ) -> Check {
        let _turn = self.turn.lock();
        let mut wanted = keyspace.own_options();
        if unset.is_empty() {
            wanted.merge(own);
        }
        for name in unset {
            wanted.unset(name).map_err(|e| e.to_string())?;
        }
        lock(&self.history)
            .settings
            .begin(keyspace.id(), wanted.clone());
        let _begun = self.begin(Promise::Settings);
        let result = match unset {
            [] => keyspace.set_options(own),
            names => keyspace.unset_options(names),
        };
        match result {
            Ok(()) => {
                self.settled();
                if keyspace.own_options() != wanted {
                    return Err(format!(
                        "{:?} is set for {}, expected {wanted:?}",
                        keyspace.own_options(),
                        keyspace.name()
                    ));
                }
                self.reach(match unset {
                    [] => "settings.keyspace",
                    _ => "settings.unset",
                });
                Ok(())
            }
            Err(e) => {
                let in_doubt = [ErrorKind::Poisoned, ErrorKind::Io, ErrorKind::Unreachable];
                if !in_doubt.contains(&e.kind()) {
                    lock(&self.history).settings.withdraw();
                }
                let also = [ErrorKind::InvalidArgument, ErrorKind::KeyspaceDropped];
                self.allow(&e, &also, "set_options")
            }
        }
    }

    /// Compares the settings of all keyspaces right after an open with the allowed ones, and
    /// continues from there. If errors are allowed nothing is compared, because a setting that an
    /// open requests and finds no space for is in force without being stored.
    ///
    /// # Errors
    /// The first difference.
    pub fn settings_after_open(&self) -> Check {
        self.take_settings(self.errors == Errors::Fatal)
    }

    /// Continues from the settings of all keyspaces right after an open. Compares them with the
    /// allowed ones, if these are known.
    ///
    /// # Errors
    /// The first difference.
    pub fn take_settings(&self, is_known: bool) -> Check {
        let _turn = self.turn.lock();
        for name in self.store.keyspaces() {
            let keyspace = self.store.keyspace(&name).map_err(|e| e.to_string())?;
            let (id, own) = (keyspace.id(), keyspace.own_options());
            let mut history = lock(&self.history);
            let settled = history.settings.settled();
            let mut allowed = history.settings.allowed(id, settled);
            if let Some(wish) = self.wishes.get(&name) {
                allowed.iter_mut().for_each(|own| own.merge(wish));
            }
            if is_known && !allowed.contains(&own) {
                return Err(format!(
                    "{own:?} is set for {name} ({id}), expected one of {allowed:?}"
                ));
            }
            history.settings.begin(id, own);
        }
        self.settled();
        Ok(())
    }
}
