//! Reads what the manifests of a damaged store still contain: the longest good prefix of one of
//! them, and the good edits behind damage.
//!
//! Why a prefix is enough: any earlier state, with all of *its* tables and an unbroken log from
//! *its* log start, gives all of the data. So a lost tail of the manifest only shows in tables that
//! are missing, or in a log that does not join; the readers of tables and log check for both.
//! Damage in the middle is different: edits behind it are applied as far as they make sense, and
//! the result is not called whole.
//!
//! Threading: one task, which only reads.

use std::collections::BTreeSet;
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::{Storage, StorageErrorKind};

use super::history::Known;
use crate::formats::file_bytes;
use crate::formats::log::Position;
use crate::formats::manifest::format::{
    ALIGN_BYTES, Bad, Current, HEADER_BYTES, MAX_MANIFEST_BYTES, StoreId, check_header,
    decode_header, manifest_name, parse_manifest_name,
};
use crate::formats::manifest::records::{self, Records};
use crate::formats::manifest::{CURRENT_NAME, read_current};
use crate::formats::version::{
    Edit, KeyspaceEdit, LogStart, SeqRange, SeqSet, StoreState, TableMeta,
};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::stored::StoredOptions;

/// A keyspace about which something is known.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownKeyspace {
    pub(super) name: String,
    pub(super) created: u64,
    pub(super) options: StoredOptions,
    pub(super) covered: SeqSet,
}

/// A table that a manifest or the log names.
#[derive(Clone, Debug)]
pub(super) struct KnownTable {
    pub(super) keyspace: KeyspaceId,
    pub(super) meta: Arc<TableMeta>,
}

/// What is known before tables and log are read.
#[derive(Clone, Debug, Default)]
pub(super) struct Survey {
    pub(super) store_id: Option<StoreId>,
    /// Whether there is a pointer or a manifest, whatever is left of it.
    pub(super) is_store: bool,
    /// The manifest that was read.
    pub(super) manifest: Option<String>,
    pub(super) record_count: u64,
    /// The number of bytes behind the last good record that are not a record: an edit that was
    /// never acknowledged, or a damaged last one.
    pub(super) dropped_bytes: u64,
    /// Whether every edit up to the last good one is there.
    pub(super) is_whole: bool,
    pub(super) keyspaces: LiteMap<KeyspaceId, KnownKeyspace>,
    pub(super) next_keyspace_id: KeyspaceId,
    pub(super) dropped: BTreeSet<KeyspaceId>,
    pub(super) tables: Vec<KnownTable>,
    /// The names of tables that a good edit removed.
    pub(super) deleted: BTreeSet<String>,
    pub(super) sequence_ceiling: u64,
    pub(super) log_start: Option<LogStart>,
    pub(super) log_synced: Position,
    /// Whether the manifest is whole and says that the store was closed with its log ending at
    /// `log_synced`.
    pub(super) closed: bool,
    pub(super) damage: Vec<Error>,
}

/// The bytes of a manifest, and what was found in them.
struct Candidate {
    number: u64,
    bytes: Vec<u8>,
    header: Result<()>,
    /// The offset through which its records must be good, according to `CURRENT`; 0 if it is not
    /// known.
    end: u64,
}

impl Survey {
    /// Reads `CURRENT` and the manifests.
    ///
    /// # Errors
    /// Those of the storage, and `Unsupported` for a store of a later version. Damage is part of
    /// the result.
    pub(super) fn read(storage: &dyn Storage) -> Result<Survey> {
        let mut survey = Survey::default();
        let current = match read_current(storage) {
            Ok(Some(current)) => Some(current),
            Ok(None) => {
                survey.damage.push(Error::corruption(
                    CURRENT_NAME,
                    "the file that names the manifest is missing",
                ));
                None
            }
            Err(error) if error.is_corruption() => {
                survey.damage.push(error);
                None
            }
            Err(error) => return Err(error),
        };
        survey.store_id = current.map(|c| c.store_id);
        survey.is_store = current.is_some();
        let mut numbers: Vec<u64> = storage
            .list()?
            .iter()
            .filter_map(|o| parse_manifest_name(&o.name))
            .collect();
        survey.is_store |= !numbers.is_empty();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(current) = current {
            if numbers.contains(&current.number) {
                numbers.retain(|n| *n != current.number);
                numbers.insert(0, current.number);
            } else {
                survey.damage.push(Error::corruption(
                    manifest_name(current.number),
                    "the manifest that CURRENT names is missing",
                ));
            }
        }
        let mut fallback = None;
        for number in numbers {
            let end = current.filter(|c| c.number == number).map_or(0, |c| c.end);
            let candidate = Candidate::read(storage, number, survey.store_id, end)?;
            if survey.take_prefix(&candidate)? {
                return Ok(survey);
            }
            if fallback.is_none() && candidate.records(HEADER_BYTES).next().is_some() {
                fallback = Some(candidate);
            }
        }
        if let Some(candidate) = fallback {
            survey.take_what_is_good(&candidate, HEADER_BYTES)?;
        }
        Ok(survey)
    }

    /// Takes the state of a manifest if its first record is good. Returns whether it is.
    fn take_prefix(&mut self, candidate: &Candidate) -> Result<bool> {
        let name = manifest_name(candidate.number);
        if let Err(error) = &candidate.header {
            if error.kind() == ErrorKind::Unsupported {
                return Err(error.clone());
            }
            self.damage.push(error.clone());
        }
        let mut state: Option<StoreState> = None;
        let mut records = Records::new(&candidate.bytes, candidate.number);
        let mut count = 0;
        let (at, bad) = loop {
            let (at, payload) = match records.next() {
                Ok(record) => record,
                Err(bad) => break (records.at(), Some(bad)),
            };
            let decoded = match Edit::decode(payload) {
                Ok(decoded) => decoded,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Err(error.in_file(name).at(at as u64));
                }
                Err(error) => {
                    self.damage.push(error.in_file(name.clone()).at(at as u64));
                    break (at, None);
                }
            };
            let next = match &state {
                None if !decoded.edit.whole => break (at, Some(Bad::Payload)),
                None => StoreState::default().apply(&decoded.edit),
                Some(state) => state.apply(&decoded.edit),
            };
            match next {
                Ok(next) => state = Some(next),
                Err(error) => {
                    self.damage.push(error.in_file(name.clone()).at(at as u64));
                    break (at, None);
                }
            }
            self.note_removed(&decoded.edit);
            count += 1;
        };
        let Some(state) = state else {
            let what = bad.map_or("an edit that makes no sense", Bad::describe);
            self.damage.push(
                Error::corruption(name, "the manifest's first record is damaged")
                    .at(at as u64)
                    .found(what),
            );
            self.deleted.clear();
            return Ok(false);
        };
        self.record_count = count;
        self.manifest = Some(name.clone());
        if let Ok(id) = candidate.store_id() {
            self.store_id.get_or_insert(id);
        }
        self.take_state(&state);
        // What follows the prefix: nothing, an edit that was being written, or more edits.
        self.dropped_bytes = records::used_bytes(&candidate.bytes, at);
        let is_followed = bad.is_none() || candidate.records(at + ALIGN_BYTES).next().is_some();
        let is_short = (at as u64) < candidate.end;
        self.is_whole = !is_followed && !is_short;
        if is_followed {
            let found = bad.map_or("an edit that makes no sense", Bad::describe);
            self.damage.push(
                Error::corruption(
                    name,
                    "a record of the manifest is damaged, and good ones follow it",
                )
                .at(at as u64)
                .found(found),
            );
            self.take_what_is_good(candidate, at + ALIGN_BYTES)?;
        } else if is_short {
            self.damage.push(
                Error::corruption(name, "the manifest lost its last records")
                    .at(at as u64)
                    .expected(format!(
                        "good records through byte {}, as {CURRENT_NAME} says",
                        candidate.end
                    ))
                    .found(bad.map_or("an edit that makes no sense", Bad::describe)),
            );
        }
        Ok(true)
    }

    /// What the manifest knows about the log.
    pub(super) fn known_log(&self) -> Known {
        Known {
            start: self.log_start,
            store_id: self.store_id.map(crate::formats::directories::log_store_id),
            synced: self.log_synced,
            closed: self.closed,
        }
    }

    fn take_state(&mut self, state: &StoreState) {
        for (id, keyspace) in &state.keyspaces {
            self.keyspaces.insert(
                *id,
                KnownKeyspace {
                    name: keyspace.name.clone(),
                    created: keyspace.created_sequence,
                    options: keyspace.options.clone(),
                    covered: keyspace.version.covered().clone(),
                },
            );
            self.tables
                .extend(keyspace.version.tables().map(|(_, meta)| KnownTable {
                    keyspace: *id,
                    meta: meta.clone(),
                }));
        }
        for table in &self.tables {
            // An edit that moves a table from level to level removes and adds it.
            self.deleted.remove(&table.meta.name);
        }
        self.next_keyspace_id = state.next_keyspace_id;
        self.sequence_ceiling = state.sequence_ceiling;
        self.log_start = Some(state.log_start);
        self.closed = state.closed;
        self.log_synced = Position::new(
            u32::try_from(state.log_synced.segment).unwrap_or(u32::MAX),
            u32::try_from(state.log_synced.offset).unwrap_or(u32::MAX),
        );
    }

    fn note_removed(&mut self, edit: &Edit) {
        // Tables are deleted by name, because a file has no id. The names are those of the tables
        // that are known so far.
        for change in &edit.keyspaces {
            for removed in &change.remove {
                let named = self.tables.iter().find(|t| t.meta.id == removed.id);
                if let Some(table) = named {
                    self.deleted.insert(table.meta.name.clone());
                }
            }
            for added in &change.add {
                self.deleted.remove(&added.table.name);
            }
        }
    }

    /// Applies every good record from `from` on, as far as it makes sense.
    fn take_what_is_good(&mut self, candidate: &Candidate, from: usize) -> Result<()> {
        self.is_whole = false;
        self.manifest
            .get_or_insert_with(|| manifest_name(candidate.number));
        if let Ok(id) = candidate.store_id() {
            self.store_id.get_or_insert(id);
        }
        for payload in candidate.records(from) {
            let decoded = match Edit::decode(payload) {
                Ok(decoded) => decoded,
                Err(error) if error.kind() == ErrorKind::Unsupported => {
                    return Err(error.in_file(manifest_name(candidate.number)));
                }
                Err(_) => continue,
            };
            if decoded.edit.check_limits().is_err() {
                continue;
            }
            self.record_count += 1;
            self.apply(&decoded.edit);
        }
        Ok(())
    }

    fn apply(&mut self, edit: &Edit) {
        self.next_keyspace_id = self
            .next_keyspace_id
            .max(edit.next_keyspace_id.unwrap_or(0));
        self.sequence_ceiling = self
            .sequence_ceiling
            .max(edit.sequence_ceiling.unwrap_or(0));
        self.log_start = self.log_start.max(edit.log_start);
        if let Some(synced) = edit.log_synced {
            self.log_synced = self.log_synced.max(Position::new(
                u32::try_from(synced.segment).unwrap_or(u32::MAX),
                u32::try_from(synced.offset).unwrap_or(u32::MAX),
            ));
        }
        for id in &edit.drop {
            self.keyspaces.remove(id);
            self.dropped.insert(*id);
            self.tables.retain(|t| t.keyspace != *id);
        }
        for create in &edit.create {
            self.keyspaces.entry(create.id).or_insert(KnownKeyspace {
                name: create.name.clone(),
                created: create.sequence,
                options: create.options.clone(),
                covered: SeqSet::new(),
            });
            self.next_keyspace_id = self.next_keyspace_id.max(create.id.saturating_add(1));
        }
        self.note_removed(edit);
        for change in &edit.keyspaces {
            self.change(change);
        }
    }

    fn change(&mut self, change: &KeyspaceEdit) {
        let keyspace = self.keyspaces.entry(change.id).or_default();
        for range in &change.covered {
            keyspace.covered.insert(*range);
        }
        if let Some(floor) = change.covered_floor {
            keyspace.covered.insert(SeqRange::new(0, floor));
        }
        if let Some(options) = &change.options {
            keyspace.options = options.clone();
        }
        let gone: BTreeSet<u64> = change.remove.iter().map(|r| r.id).collect();
        let added: BTreeSet<u64> = change.add.iter().map(|a| a.table.id).collect();
        self.tables.retain(|t| {
            t.keyspace != change.id || !(gone.contains(&t.meta.id) || added.contains(&t.meta.id))
        });
        self.tables.extend(change.add.iter().map(|a| KnownTable {
            keyspace: change.id,
            meta: a.table.clone(),
        }));
    }
}

impl Candidate {
    fn read(
        storage: &dyn Storage,
        number: u64,
        store_id: Option<StoreId>,
        end: u64,
    ) -> Result<Candidate> {
        let name = manifest_name(number);
        let file = match storage.open(&name) {
            Ok(file) => file,
            Err(error) if error.kind == StorageErrorKind::NotFound => {
                return Ok(Candidate {
                    number,
                    bytes: Vec::new(),
                    header: Err(Error::corruption(name, "the manifest went away")),
                    end,
                });
            }
            Err(error) => return Err(error.into()),
        };
        let len = file.len().min(MAX_MANIFEST_BYTES);
        let bytes = file_bytes::read(&*file, 0, len)?;
        let mut candidate = Candidate {
            number,
            bytes,
            header: Ok(()),
            end,
        };
        let store_id = match store_id {
            Some(id) => Ok(id),
            None => candidate.store_id(),
        };
        candidate.header = store_id.and_then(|store_id| {
            check_header(
                &candidate.bytes,
                &Current {
                    number,
                    store_id,
                    end,
                },
            )
        });
        Ok(candidate)
    }

    /// The id in the header. It is used only if the header's checksum is valid.
    fn store_id(&self) -> Result<StoreId> {
        let found = decode_header(&self.bytes, &manifest_name(self.number))?;
        let current = Current {
            number: self.number,
            ..found
        };
        check_header(&self.bytes, &current).map(|()| found.store_id)
    }

    /// The payloads of good records from `from` on. The search tries every offset at which one may
    /// begin.
    fn records(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        let mut at = from;
        std::iter::from_fn(move || {
            let (_, payload, end) = records::find(&self.bytes, self.number, at)?;
            at = end;
            Some(payload)
        })
    }
}
