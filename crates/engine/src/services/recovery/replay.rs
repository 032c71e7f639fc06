//! Replay of the log: its records become memtables, and these become runs.
//!
//! Entries are inserted into memtables. A memtable that is full, or that reaches a covered range,
//! is flushed to tables that nothing refers to yet. If there is no room for tables, memtables are
//! kept in memory, up to a budget. The result is the one edit of recovery.
//!
//! Invariant: entries that an installed source covers are skipped. A replayed source lies in one
//! gap between covered ranges, so its range overlaps none of them.
//!
//! Threading: one task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use litemap::LiteMap;
use siltstone_storage::planted;
use siltstone_storage::{Storage, StorageErrorKind};
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::reader::{ReaderOptions, TableReader};

use super::claim::Opening;
use super::unflushed::{ReplayedSource, UnflushedData};
use crate::formats::batch::{Entries, EntryKind};
use crate::formats::log::{Position, Record, RecordKind, SkippedDamage};
use crate::formats::version::{
    CreateKeyspace, Edit, KeyspaceEdit, Run, SeqRange, SeqSet, StoreState, TableMeta,
};
use crate::jobs::runner::JobRunner;
use crate::tree::memtable::Memtable;
use crate::tree::settings::{Arenas, Settings};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::stored::StoredOptions;
use crate::types::options::{KeyspaceOptions, Options};

/// The number of full memtables for which the replay always has a budget.
const HELD_MEMTABLES: u64 = 8;

/// How many bytes a replay may keep in memory. It grows with the memtables of the keyspaces in the
/// store. The storages of an open for reading (`overlay`) keep to it too.
#[derive(Clone)]
pub(crate) struct ReplayBudget(Arc<AtomicU64>);

impl ReplayBudget {
    /// The budget that the options give, before any keyspace is known.
    pub(crate) fn of(options: &Options) -> ReplayBudget {
        let memtables = options.memtable_bytes.saturating_mul(HELD_MEMTABLES);
        let log = options.log_bytes_max.max(options.replay_bytes_max);
        ReplayBudget::fixed(log.max(memtables))
    }

    /// A budget of this many bytes.
    pub(crate) fn fixed(bytes: u64) -> ReplayBudget {
        ReplayBudget(Arc::new(AtomicU64::new(bytes)))
    }

    /// Makes room for memtables of this size.
    fn allow_memtables_of(&self, bytes: u64) {
        let least = bytes.saturating_mul(HELD_MEMTABLES);
        self.0.fetch_max(least, Ordering::AcqRel);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The log as replay found it.
pub(super) struct History {
    /// Where it ends; for a new store, the position zero.
    pub(super) end: Position,
    /// Damage that replay passed over, because nothing needs that part of the log.
    pub(super) skipped: Option<SkippedDamage>,
}

/// A keyspace's replayed data so far.
struct Replayed {
    settings: Arc<Settings>,
    /// The ranges of installed sources and of finished replayed ones.
    covered: SeqSet,
    /// The memtable that is being filled, and the sequence number before the first that it can
    /// hold.
    filling: Option<(Arc<Memtable>, u64)>,
    last_seq: u64,
    /// The replayed sources, oldest first. They get ids at the end, above every id in the log.
    runs: Vec<(SeqRange, Sealed)>,
}

/// A replayed source: tables that nothing refers to yet, or its memtable if there was no room.
enum Sealed {
    /// The location and the tables there.
    Tables(u32, Vec<OutputTable>),
    Held(Arc<Memtable>),
}

/// Applies log records to memtables, and writes these as runs.
pub(super) struct Replay<'a> {
    jobs: &'a JobRunner,
    options: &'a Options,
    arenas: &'a Arenas,
    keyspaces: BTreeMap<KeyspaceId, Replayed>,
    dropped: BTreeSet<KeyspaceId>,
    next_keyspace_id: KeyspaceId,
    next_table_id: u64,
    edit: Edit,
    ingested: Vec<(KeyspaceId, Run)>,
    last_seq: u64,
    /// Set once there was no room for a table. From then on memtables are kept, up to the budget.
    no_space: Option<Error>,
    held_bytes: u64,
    budget: ReplayBudget,
}

impl<'a> Replay<'a> {
    pub(super) fn new(opening: &'a Opening) -> Result<Self> {
        let state = &opening.old;
        let mut replay = Replay {
            jobs: &opening.runner,
            options: &opening.options,
            arenas: &opening.arenas,
            keyspaces: BTreeMap::new(),
            dropped: BTreeSet::new(),
            next_keyspace_id: state.next_keyspace_id,
            next_table_id: state.next_table_id,
            edit: Edit::default(),
            ingested: Vec::new(),
            last_seq: 0,
            no_space: None,
            held_bytes: 0,
            budget: opening.budget.clone(),
        };
        for (id, keyspace) in &state.keyspaces {
            let covered = keyspace.version.covered().clone();
            replay
                .begin(*id, covered, &keyspace.options)
                .map_err(|e| e.context(format!("keyspace `{}`", keyspace.name)))?;
        }
        Ok(replay)
    }

    /// Adds a keyspace to which records may apply.
    fn begin(&mut self, id: KeyspaceId, covered: SeqSet, stored: &StoredOptions) -> Result<()> {
        let own = KeyspaceOptions::from_stored(stored)?;
        let settings = Settings::new(own, self.options, self.arenas);
        self.budget
            .allow_memtables_of(settings.arenas.arena_bytes() as u64);
        self.keyspaces.insert(id, Replayed::new(covered, settings));
        Ok(())
    }

    pub(super) fn apply(&mut self, record: &Record<'_>) -> Result<()> {
        let first = record.first_sequence;
        match record.kind {
            RecordKind::Group => self.apply_group(first, record),
            RecordKind::KeyspaceCreate => {
                let (id, name, options) =
                    crate::formats::log::bodies::decode_create(record.payload)
                        .map_err(|e| located(e, record))?;
                self.last_seq = self.last_seq.max(first);
                if id < self.next_keyspace_id {
                    // The manifest knows the keyspace, or has dropped it again.
                    return Ok(());
                }
                self.next_keyspace_id = id.checked_add(1).ok_or_else(|| {
                    let what = format!("a create record gives keyspace `{name}` the id {id}");
                    Error::corruption(file_of(record), what)
                        .at(record.position.offset.into())
                        .expected(format!("less than {id}"))
                })?;
                let mut covered = SeqSet::new();
                covered.insert(SeqRange::new(0, first));
                self.begin(id, covered, &options)
                    .map_err(|e| located(e.context(format!("keyspace `{name}`")), record))?;
                self.edit.create.push(CreateKeyspace {
                    id,
                    name: name.to_string(),
                    sequence: first,
                    options,
                });
                Ok(())
            }
            RecordKind::KeyspaceDrop => {
                let id = crate::formats::log::bodies::decode_drop(record.payload)
                    .map_err(|e| located(e, record))?;
                self.last_seq = self.last_seq.max(first);
                if let Some(replayed) = self.keyspaces.remove(&id) {
                    // These tables have names of this open, so the search for orphans of earlier
                    // opens would not find them.
                    for (_, sealed) in &replayed.runs {
                        if let Sealed::Tables(location, tables) = sealed {
                            self.jobs.discard(*location, tables);
                        }
                    }
                    self.dropped.insert(id);
                    self.ingested.retain(|(keyspace, _)| *keyspace != id);
                    let created = self.edit.create.len();
                    self.edit.create.retain(|c| c.id != id);
                    if self.edit.create.len() == created {
                        self.edit.drop.push(id);
                    }
                }
                Ok(())
            }
            RecordKind::Ingest => {
                let ingest = crate::formats::log::bodies::decode_ingest(record.payload, first)
                    .map_err(|e| located(e, record))?;
                self.last_seq = self.last_seq.max(ingest.last);
                self.next_table_id = self.next_table_id.max(ingest.next_table_id());
                for (id, runs) in ingest.parts {
                    // Parts for dropped keyspaces are skipped. One edit installs all other parts,
                    // so either all of them are covered or none.
                    let Some(replayed) = self.keyspaces.get(&id) else {
                        continue;
                    };
                    if replayed.covered.contains(first) {
                        continue;
                    }
                    self.seal(id)?;
                    let replayed = self.keyspaces.get_mut(&id).expect("looked at it");
                    for run in runs {
                        replayed.covered.insert(run.seqs);
                        self.ingested.push((id, run));
                    }
                }
                Ok(())
            }
        }
    }

    fn apply_group(&mut self, first: u64, record: &Record<'_>) -> Result<()> {
        for (seq, entry) in (first..).zip(Entries::new(record.payload)) {
            let entry = entry.map_err(|bad| {
                bad.into_error("a log record")
                    .in_file(file_of(record))
                    .at(record.position.offset.into())
            })?;
            self.last_seq = self.last_seq.max(seq);
            let id = entry.keyspace;
            match self.keyspaces.get(&id) {
                None if id < self.next_keyspace_id => {}
                None => {
                    return Err(Error::corruption(
                        file_of(record),
                        format!("a log record names keyspace {id}, which was never created"),
                    )
                    .at(record.position.offset.into()));
                }
                Some(replayed)
                    if replayed.covered.contains(seq) && !planted!(ReplayIgnoresCovered) =>
                {
                    if replayed.filling.is_some() {
                        self.seal(id)?;
                    }
                }
                Some(_) => self.insert(id, seq, &entry).map_err(|e| match e.file() {
                    None if e.is_corruption() => located(e, record),
                    _ => e,
                })?,
            }
        }
        Ok(())
    }

    fn insert(
        &mut self,
        id: KeyspaceId,
        seq: u64,
        entry: &crate::formats::batch::Entry<'_>,
    ) -> Result<()> {
        let replayed = &self.keyspaces[&id];
        let (gap_lo, _) = gap(&replayed.covered, seq);
        let full = match &replayed.filling {
            Some((mem, lo)) => {
                *lo < gap_lo && !planted!(GapNotAsked)
                    || !mem.room_for(1, entry.key.len(), entry.value.len())
            }
            None => false,
        };
        if full {
            self.seal(id)?;
        }
        let replayed = self.keyspaces.get_mut(&id).expect("looked at it");
        if replayed.filling.is_none() {
            let min_bytes = Memtable::arena_bytes_for(1, entry.key.len(), entry.value.len());
            // The log may hold a single entry for each of a thousand keyspaces, so the first
            // memtable of a keyspace takes its memory lazily.
            let arenas = &replayed.settings.arenas;
            let arena = if replayed.runs.is_empty() {
                arenas.take_lazily(min_bytes)
            } else {
                arenas.take(min_bytes)
            };
            let arena = arena.map_err(|e| {
                Error::new(ErrorKind::NoSpace, format!("no memory for replay: {e}"))
            })?;
            let (lo, _) = gap(&replayed.covered, seq);
            replayed.filling = Some((Arc::new(Memtable::new(arena)), lo));
        }
        let (mem, _) = replayed.filling.as_ref().expect("made above");
        let mut writer = mem.writer();
        let inserted = match entry.kind {
            EntryKind::RangeDelete => writer.add_range_delete(entry.key, entry.value, seq),
            kind => writer.insert(entry.key, seq, kind as u8, entry.value),
        };
        replayed.last_seq = seq;
        inserted.map_err(|e| {
            Error::new(
                ErrorKind::Corruption,
                format!("a log record's entry cannot be applied: {e}"),
            )
        })
    }

    /// Turns the keyspace's memtable into a run of tables that nothing refers to yet.
    fn seal(&mut self, id: KeyspaceId) -> Result<()> {
        let replayed = self
            .keyspaces
            .get_mut(&id)
            .expect("a keyspace that is replayed");
        let Some((mem, lo)) = replayed.filling.take() else {
            return Ok(());
        };
        let seqs = SeqRange::new(lo, replayed.last_seq);
        let published = self.last_seq.max(replayed.last_seq);
        let tables = match &self.no_space {
            Some(_) => None,
            None => match self
                .jobs
                .flush_for_recovery(id, &replayed.settings.all, &mem, published)
            {
                Ok(tables) => Some(tables),
                Err(error) if error.is_no_space() => {
                    self.no_space = Some(error);
                    None
                }
                Err(error) => return Err(error),
            },
        };
        replayed.covered.insert(seqs);
        match tables {
            Some((_, tables)) if tables.is_empty() => {}
            Some((location, tables)) => {
                replayed.runs.push((seqs, Sealed::Tables(location, tables)));
            }
            None => {
                self.held_bytes += mem.used_bytes();
                if self.held_bytes > self.budget.bytes() {
                    let cause = self.no_space.clone().expect("set above");
                    return Err(cause
                        .context(
                            "the log holds more than fits in memory, and there is no room for \
                             tables",
                        )
                        .expected(format!(
                            "at most {} bytes of replayed data without room (replay_bytes_max)",
                            self.budget.bytes()
                        ))
                        .advice(
                            "free some space, or set replay_bytes_max to more and open again",
                        ));
                }
                replayed.runs.push((seqs, Sealed::Held(mem)));
            }
        }
        Ok(())
    }

    /// Ends the replay: the last memtables become tables too, if there is room.
    pub(super) fn finish(mut self, old: &StoreState) -> Result<Finished> {
        let ids: Vec<_> = self.keyspaces.keys().copied().collect();
        for id in ids {
            self.seal(id)?;
        }
        // Every number up to the ceiling may have been used.
        let given = old.sequence_ceiling;
        let published = given.max(self.last_seq);
        let mut edit = self.edit;
        let mut ingested = self.ingested;
        for (_, run) in &ingested {
            for table in run.tables.tables() {
                check_ingested(self.jobs.outputs(), table)?;
            }
        }
        let mut keyspaces: LiteMap<KeyspaceId, Vec<ReplayedSource>> = LiteMap::new();
        for (id, replayed) in self.keyspaces {
            let sources = keyspaces.entry(id).or_default();
            for (seqs, sealed) in replayed.runs {
                sources.push(match sealed {
                    Sealed::Held(mem) => ReplayedSource::Memtable { mem, seqs },
                    Sealed::Tables(location, tables) => {
                        let next_id = &mut self.next_table_id;
                        ReplayedSource::Run(Run::of_flush(location, tables, seqs, next_id)?)
                    }
                });
            }
            let mut i = 0;
            while i < ingested.len() {
                if ingested[i].0 == id {
                    sources.push(ReplayedSource::Run(ingested.swap_remove(i).1));
                } else {
                    i += 1;
                }
            }
        }
        edit.next_keyspace_id = Some(self.next_keyspace_id);
        edit.next_table_id = Some(self.next_table_id);
        Ok(Finished {
            edit,
            published,
            keyspaces,
            no_space: self.no_space,
        })
    }
}

/// The result of a replay.
pub(super) struct Finished {
    /// Creates, drops and counters.
    edit: Edit,
    /// The last number that counts as published.
    pub(super) published: u64,
    /// The replayed sources of each keyspace, oldest first.
    keyspaces: LiteMap<KeyspaceId, Vec<ReplayedSource>>,
    /// The error if there was no room for all tables.
    pub(super) no_space: Option<Error>,
}

impl Finished {
    /// The edit that installs everything, for which all sources must be tables.
    pub(super) fn whole_edit(&self) -> Edit {
        let mut edit = self.edit.clone();
        for (id, sources) in &self.keyspaces {
            let runs: Vec<Run> = sources
                .iter()
                .filter_map(|source| match source {
                    ReplayedSource::Run(run) => Some(run.clone()),
                    ReplayedSource::Memtable { .. } => None,
                })
                .collect();
            edit.keyspaces
                .push(KeyspaceEdit::adding_through(*id, &runs, self.published));
        }
        edit
    }

    /// The edit if the data waits for room. It has only creates, drops and counters, because the
    /// data must come together with the log's new start.
    pub(super) fn edit_without_data(&self) -> Edit {
        self.edit.clone()
    }

    /// The data that waits for room.
    pub(super) fn into_unflushed(self, cause: Error) -> UnflushedData {
        UnflushedData {
            cause,
            published: self.published,
            keyspaces: self.keyspaces,
            hold: 0,
        }
    }
}

impl Replayed {
    fn new(covered: SeqSet, settings: Arc<Settings>) -> Replayed {
        Replayed {
            settings,
            covered,
            filling: None,
            last_seq: 0,
            runs: Vec::new(),
        }
    }
}

/// Adds the file and the offset of a record to an error.
fn located(error: Error, record: &Record<'_>) -> Error {
    error
        .in_file(file_of(record))
        .at(record.position.offset.into())
}

fn file_of(record: &Record<'_>) -> String {
    crate::formats::log::format::segment_name(record.position.segment)
}

/// The gap between covered ranges that `seq` lies in: the number before the gap, and its last
/// number.
fn gap(covered: &SeqSet, seq: u64) -> (u64, u64) {
    let ranges = covered.ranges();
    let i = ranges.partition_point(|r| r.hi < seq);
    let lo = i.checked_sub(1).map_or(0, |i| ranges[i].hi);
    let hi = ranges.get(i).map_or(u64::MAX, |r| r.lo);
    (lo, hi)
}

/// Checks a table of an ingest whose edit is not durable. Its file was synced before the record was
/// written, so it must exist and be whole.
fn check_ingested(storage: &Arc<dyn Storage>, table: &TableMeta) -> Result<()> {
    let file = storage.open(&table.name).map_err(|e| match e.kind {
        StorageErrorKind::NotFound => Error::corruption(
            &table.name,
            "a table of an ingest in the log is missing: it was deleted, or the manifest has lost \
             its last edits",
        )
        .expected("the table that the log names")
        .found("no file of this name")
        .advice(
            "put the file back from a copy, or make a new store of what is left with `silt repair`",
        ),
        _ => Error::from(e).with_kind(ErrorKind::Corruption),
    })?;
    let reader = TableReader::open(
        file,
        ReaderOptions {
            map: false,
            ..ReaderOptions::default()
        },
    )?;
    let found = (reader.file().len(), u128::from(reader.footer().digest));
    if found == (table.file_bytes, table.digest) {
        return Ok(());
    }
    Err(Error::corruption(
        table.name.clone(),
        "an ingested table is not the one that the log names",
    )
    .expected(format!(
        "{} bytes, digest {:016x}",
        table.file_bytes, table.digest
    ))
    .found(format!("{} bytes, digest {:016x}", found.0, found.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_lie_between_covered_ranges() {
        let mut covered = SeqSet::new();
        assert_eq!(gap(&covered, 5), (0, u64::MAX));
        covered.insert(SeqRange::new(3, 7));
        covered.insert(SeqRange::new(10, 12));
        assert_eq!(gap(&covered, 2), (0, 3));
        assert_eq!(gap(&covered, 3), (0, 3));
        assert_eq!(gap(&covered, 8), (7, 10));
        assert_eq!(gap(&covered, 10), (7, 10));
        assert_eq!(gap(&covered, 13), (12, u64::MAX));
    }
}
