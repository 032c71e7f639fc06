//! The settings of keyspaces: every change in its order, and the settings that may be found after a
//! crash.
//!
//! Settings are not in the log's history (except those of a create, which are in its record): a
//! change is an edit of the manifest, which is durable when its call returns. So after a crash a
//! keyspace has the settings of the last change that returned, or of one that had not returned.
//!
//! Invariant: changes are made one at a time (the world's turn), so their order is the store's.
//!
//! Threading: owned; a part of the history.

use std::collections::BTreeMap;

use siltstone::KeyspaceOptions;

/// The settings; see the module.
#[derive(Clone, Debug)]
pub struct SettingsModel {
    /// All changes that were begun, in order: the keyspace's id, and its settings after the change.
    changes: Vec<(u32, KeyspaceOptions)>,
    /// The number of changes that are known to be over: durable, or refused.
    settled: usize,
    /// The settings that a running create puts into its record.
    creating: KeyspaceOptions,
}

impl Default for SettingsModel {
    fn default() -> SettingsModel {
        SettingsModel {
            changes: vec![(1, KeyspaceOptions::default())],
            settled: 0,
            creating: KeyspaceOptions::default(),
        }
    }
}

impl SettingsModel {
    /// Announces the own settings of the next keyspace that is created.
    pub fn announce_create(&mut self, own: KeyspaceOptions) {
        self.creating = own;
    }

    /// Called when the record of a create is being written.
    pub(crate) fn created(&mut self, id: u32) {
        self.changes.push((id, self.creating.clone()));
    }

    /// Announces a change of a keyspace's settings.
    pub fn begin(&mut self, id: u32, own: KeyspaceOptions) {
        self.changes.push((id, own));
    }

    /// Removes the last change, which was refused and had no effect.
    pub fn withdraw(&mut self) {
        self.changes.pop();
    }

    /// Notes that all changes that were begun are durable. Returns their number, which only grows.
    pub fn settle(&mut self) -> usize {
        self.settled = self.changes.len();
        self.settled
    }

    /// The last result of `settle`.
    pub fn settled(&self) -> usize {
        self.settled
    }

    /// The settings that keyspace `id` may have if the first `settled` changes are over and any
    /// later one may have happened.
    pub fn allowed(&self, id: u32, settled: usize) -> Vec<KeyspaceOptions> {
        let (over, open) = self.changes.split_at(settled.min(self.changes.len()));
        let of_it = |change: &&(u32, KeyspaceOptions)| change.0 == id;
        let last = over.iter().rev().find(of_it);
        let mut all: Vec<KeyspaceOptions> = Vec::new();
        for (_, own) in last.into_iter().chain(open.iter().filter(of_it)) {
            if !all.contains(own) {
                all.push(own.clone());
            }
        }
        all
    }

    /// Continues after a crash of a store, of which only the first `settled` changes are known to
    /// be over.
    pub fn restart(&mut self, settled: usize) {
        let mut ids: Vec<u32> = self.changes.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        ids.dedup();
        let allowed = ids.into_iter().flat_map(|id| {
            let all = self.allowed(id, settled);
            all.into_iter().map(move |own| (id, own))
        });
        self.changes = allowed.collect();
        self.settled = 0;
    }

    /// Notes that an open requests these settings, by name, for the keyspaces `names`. The open may
    /// store them at any of its calls.
    pub fn wish(
        &mut self,
        names: &BTreeMap<u32, String>,
        wishes: &BTreeMap<String, KeyspaceOptions>,
    ) {
        for (id, name) in names {
            let Some(wish) = wishes.get(name) else {
                continue;
            };
            for mut own in self.allowed(*id, self.settled) {
                own.merge(wish);
                self.changes.push((*id, own));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(runs: u32) -> KeyspaceOptions {
        KeyspaceOptions {
            l0_trigger_count: Some(runs),
            ..KeyspaceOptions::default()
        }
    }

    #[test]
    fn what_may_be_found_after_a_crash() {
        let mut model = SettingsModel::default();
        model.announce_create(own(1));
        model.created(7);
        let created = model.settle();
        model.begin(7, own(2));
        assert_eq!(model.allowed(7, created), [own(1), own(2)]);
        let set = model.settle();
        assert_eq!(model.allowed(7, set), [own(2)]);
        model.begin(1, own(9));
        model.withdraw();
        assert_eq!(model.allowed(1, set), [KeyspaceOptions::default()]);
        model.restart(created);
        assert_eq!(model.allowed(7, model.settled()), [own(1), own(2)]);
        let wishes = BTreeMap::from([("x".to_string(), own(3))]);
        model.wish(&BTreeMap::from([(7, "x".to_string())]), &wishes);
        assert_eq!(model.allowed(7, model.settled()), [own(1), own(2), own(3)]);
    }
}
