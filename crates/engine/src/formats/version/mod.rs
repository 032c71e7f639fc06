//! The store's installed state: keyspaces, levels, runs and tables, and the edits that change them.
//!
//! [`StoreState`] is the contents of the manifest, as a persistent value. An [`Edit`] makes the
//! next state, which shares everything that did not change. The manifest on disk is one whole-state
//! edit followed by further edits.
//!
//! Invariants (which [`StoreState::apply`] checks; if one is violated, the call fails and the old
//! state stays): counters and log positions never go back. Ids of keyspaces are given once, in
//! ascending order, so an id below [`StoreState::next_keyspace_id`] that does not exist was
//! dropped. Names of keyspaces are unique. Ids of tables and runs lie below
//! [`StoreState::next_table_id`]. No number is so large that counting on from it overflows
//! ([`Edit::check_limits`]). K1 to K6 of [`keyspace_version`] hold in every keyspace.
//!
//! Threading: immutable values. The holder of the manifest role owns the current one (RFC 1,
//! section 9).

pub(crate) mod codec;
pub mod edit;
pub mod keyspace_version;
pub mod level;
pub mod meta;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use crate::types::limits::{BOTTOM_LEVEL, KeyspaceId, LEVEL_COUNT};
pub use crate::types::options::stored::StoredOptions;
pub use edit::{
    AddTable, CreateKeyspace, Decoded, Edit, KeyspaceEdit, MAX_KEYSPACE_NAME_BYTES,
    MAX_OPEN_NUMBER, MAX_TABLE_ID, RemoveTable, RunSlot,
};
pub use keyspace_version::KeyspaceVersion;
pub use level::{Level, Run};
pub use meta::{End, Key, KeyRange, SeqRange, SeqSet, TABLE_NEEDS_REWRITE, TableMeta};

use crate::formats::log::position::Position;
pub use crate::formats::log::position::{LogPosition, LogStart};
use crate::types::error::{Error, ErrorKind, Result};

/// A keyspace as the manifest describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceState {
    /// Its name.
    pub name: String,
    /// The sequence number of its creation. An older snapshot does not see the keyspace.
    pub created_sequence: u64,
    /// Its options.
    pub options: StoredOptions,
    /// Its tables.
    pub version: Arc<KeyspaceVersion>,
}

/// The contents of the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    /// Every id of a table or run is less than this.
    pub next_table_id: u64,
    /// No sequence number above this was ever given.
    pub sequence_ceiling: u64,
    /// How often the store was opened for writing.
    pub open_number: u64,
    /// Where the log starts: nothing before this position is needed.
    pub log_start: LogStart,
    /// The position through which the log is known to be synced.
    pub log_synced: LogPosition,
    /// Whether the last edit was that of a close: the log ends exactly at the synced position.
    pub closed: bool,
    /// When the store was created, in microseconds since 1970.
    pub created_us: u64,
    /// Every id of a keyspace is less than this.
    pub next_keyspace_id: KeyspaceId,
    /// The live keyspaces.
    pub keyspaces: BTreeMap<KeyspaceId, Arc<KeyspaceState>>,
}

#[cold]
fn refused(what: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("the store's state cannot take the edit: {}", what.into()),
    )
}

/// Raises a counter, which must not go back.
fn raise<T: Copy + Ord + std::fmt::Display>(
    what: &str,
    counter: &mut T,
    to: Option<T>,
) -> Result<()> {
    match to {
        Some(to) if to < *counter => Err(refused(format!("{what} goes back"))
            .expected(format!("at least {counter}"))
            .found(to)),
        Some(to) => {
            *counter = to;
            Ok(())
        }
        None => Ok(()),
    }
}

impl StoreState {
    /// The state of a store without keyspaces.
    pub fn new() -> StoreState {
        StoreState::default()
    }

    /// This state, for a store whose log is synced, ends at `end`, and contains nothing that is
    /// needed.
    pub(crate) fn closed_at(self, end: Position) -> StoreState {
        let end = LogPosition::from(end);
        StoreState {
            log_start: LogStart {
                segment: end.segment,
                offset: end.offset,
                ..self.log_start
            },
            log_synced: end,
            closed: true,
            ..self
        }
    }

    /// The keyspace with this id, unless it was dropped.
    pub fn keyspace(&self, id: KeyspaceId) -> Option<&Arc<KeyspaceState>> {
        self.keyspaces.get(&id)
    }

    /// The keyspace with this name, unless it was dropped. The cost is linear in the number of
    /// keyspaces.
    pub fn keyspace_by_name(&self, name: &str) -> Option<(KeyspaceId, &Arc<KeyspaceState>)> {
        self.keyspaces
            .iter()
            .find(|(_, k)| k.name == name)
            .map(|(id, k)| (*id, k))
    }

    /// Whether a keyspace with this `id` existed and was dropped. Replay skips its records.
    pub fn was_dropped(&self, id: KeyspaceId) -> bool {
        id < self.next_keyspace_id && !self.keyspaces.contains_key(&id)
    }

    /// The state after `edit`.
    ///
    /// # Errors
    /// `Corruption` that says which of the module's invariants is violated.
    pub fn apply(&self, edit: &Edit) -> Result<StoreState> {
        if edit.whole && *self != StoreState::default() {
            return Err(refused(
                "a whole-state edit applies only to the empty state",
            ));
        }
        edit.check_limits()?;
        let mut next = self.clone();
        raise(
            "the next table id",
            &mut next.next_table_id,
            edit.next_table_id,
        )?;
        raise(
            "the sequence ceiling",
            &mut next.sequence_ceiling,
            edit.sequence_ceiling,
        )?;
        raise("the open number", &mut next.open_number, edit.open_number)?;
        raise("the log's start", &mut next.log_start, edit.log_start)?;
        raise(
            "the log's synced position",
            &mut next.log_synced,
            edit.log_synced,
        )?;
        let (start, synced) = (next.log_start, next.log_synced);
        if start.offset > 0 && start.position() > synced {
            return Err(
                refused("the log starts behind the position through which it is synced")
                    .expected(format!("at most {synced}"))
                    .found(start),
            );
        }
        next.closed = edit.closed;
        if let Some(created_us) = edit.created_us {
            next.created_us = created_us;
        }
        for id in &edit.drop {
            if next.keyspaces.remove(id).is_none() {
                return Err(refused(format!(
                    "keyspace {id} is to be dropped and does not exist"
                )));
            }
        }
        for create in &edit.create {
            next.create(create)?;
        }
        raise(
            "the next keyspace id",
            &mut next.next_keyspace_id,
            edit.next_keyspace_id,
        )?;
        let mut changed = BTreeSet::new();
        for change in &edit.keyspaces {
            if !changed.insert(change.id) {
                return Err(refused(format!("keyspace {} is changed twice", change.id)));
            }
            let Some(old) = next.keyspaces.get(&change.id) else {
                return Err(refused(format!(
                    "keyspace {} is changed and does not exist",
                    change.id
                )));
            };
            let greatest = change
                .add
                .iter()
                .flat_map(|a| [Some(a.table.id), a.run.map(|r| r.id)])
                .flatten()
                .max();
            if let Some(id) = greatest.filter(|id| *id >= next.next_table_id) {
                return Err(
                    refused(format!("table or run {id} is not below the next table id"))
                        .expected(format!("less than {}", next.next_table_id))
                        .found(id),
                );
            }
            let state = KeyspaceState {
                name: old.name.clone(),
                created_sequence: old.created_sequence,
                options: change
                    .options
                    .clone()
                    .unwrap_or_else(|| old.options.clone()),
                version: Arc::new(old.version.apply(change)?),
            };
            next.keyspaces.insert(change.id, Arc::new(state));
        }
        Ok(next)
    }

    fn create(&mut self, create: &CreateKeyspace) -> Result<()> {
        let id = create.id;
        if id < self.next_keyspace_id || id == KeyspaceId::MAX {
            return Err(refused(format!("keyspace id {id} was given before"))
                .expected(format!("at least {}", self.next_keyspace_id))
                .found(id));
        }
        if create.name.is_empty() || create.name.len() > MAX_KEYSPACE_NAME_BYTES {
            return Err(
                refused(format!("a keyspace's name has {} bytes", create.name.len()))
                    .expected(format!("1 to {MAX_KEYSPACE_NAME_BYTES}")),
            );
        }
        if let Some((other, _)) = self.keyspace_by_name(&create.name) {
            return Err(refused(format!(
                "keyspace {other} has the name `{}` already",
                create.name
            )));
        }
        // Numbers before the creation cannot belong to it.
        let floor = KeyspaceEdit {
            covered_floor: Some(create.sequence),
            ..KeyspaceEdit::new(id)
        };
        let state = KeyspaceState {
            name: create.name.clone(),
            created_sequence: create.sequence,
            options: create.options.clone(),
            version: Arc::new(KeyspaceVersion::new(id).apply(&floor)?),
        };
        self.keyspaces.insert(id, Arc::new(state));
        self.next_keyspace_id = id + 1;
        Ok(())
    }

    /// The edit that makes this state from the empty one.
    pub fn to_edit(&self) -> Edit {
        let mut edit = Edit {
            whole: true,
            next_table_id: Some(self.next_table_id),
            sequence_ceiling: Some(self.sequence_ceiling),
            open_number: Some(self.open_number),
            log_start: Some(self.log_start),
            log_synced: Some(self.log_synced),
            closed: self.closed,
            created_us: Some(self.created_us),
            next_keyspace_id: Some(self.next_keyspace_id),
            ..Edit::default()
        };
        for (id, keyspace) in &self.keyspaces {
            edit.create.push(CreateKeyspace {
                id: *id,
                name: keyspace.name.clone(),
                sequence: keyspace.created_sequence,
                options: keyspace.options.clone(),
            });
            let mut change = keyspace.version.to_edit();
            // A creation covers the numbers below it, so only what later edits covered is left.
            change.covered = change
                .covered
                .iter()
                .map(|r| SeqRange::new(r.lo.max(keyspace.created_sequence), r.hi))
                .filter(|r| !r.is_empty())
                .collect();
            edit.keyspaces.push(change);
        }
        edit
    }

    /// Checks the invariants of the module and of every keyspace, and that no two tables of the
    /// store have the same id, from the contents alone.
    ///
    /// # Errors
    /// `Corruption` with the first violation.
    pub fn check(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        let mut tables = BTreeSet::new();
        for (id, keyspace) in &self.keyspaces {
            keyspace.version.check()?;
            if keyspace.version.id() != *id {
                return Err(refused(format!(
                    "keyspace {id} holds the version of {}",
                    keyspace.version.id()
                )));
            }
            if !names.insert(&keyspace.name) {
                return Err(refused(format!(
                    "two keyspaces have the name `{}`",
                    keyspace.name
                )));
            }
            if let Some((_, table)) = keyspace
                .version
                .tables()
                .find(|(_, t)| !tables.insert(t.id))
            {
                return Err(refused(format!("table {} is there twice", table.id)));
            }
            let mut tables = keyspace.version.tables();
            let is_misplaced =
                |(level, table): &(u8, &Arc<TableMeta>)| *level > 0 && table.location > 0;
            if let Some((level, table)) = tables.find(is_misplaced) {
                return Err(refused(format!(
                    "table {} is on level {level} and not at the first location of tables",
                    table.id
                ))
                .expected("only tables of level 0 at another location")
                .found(format!("location {}", table.location)));
            }
        }
        let again = StoreState::default().apply(&self.to_edit())?;
        if again != *self {
            return Err(refused(
                "the state differs from what its own whole-state edit makes",
            ));
        }
        Ok(())
    }
}
