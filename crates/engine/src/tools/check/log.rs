//! The part of a check that reads the log's records as recovery would, without applying them.
//!
//! Threading: one task.

use std::collections::BTreeSet;
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::Storage;

use super::{CheckReport, LogCheck};
use crate::formats::batch::Entries;
use crate::formats::log::format::segment_name;
use crate::formats::log::{Record, RecordKind, ReplayOptions, ReplayReport, SkippedDamage};
use crate::formats::manifest::StoreId;
use crate::formats::version::{StoreState, TableMeta};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// Tables and keyspaces that the log has and the manifest does not have yet.
#[derive(Default)]
pub(super) struct Ingested {
    /// The tables of ingests.
    pub(super) tables: Vec<(KeyspaceId, Arc<TableMeta>)>,
    /// Keyspaces of such tables that only the log has, with their names.
    pub(super) keyspaces: LiteMap<KeyspaceId, String>,
}

/// Reads the log. Damage that an open skips is reported later, when the state of the tables is
/// known.
pub(super) fn check_log(
    storage: &dyn Storage,
    store_id: StoreId,
    state: &StoreState,
    report: &mut CheckReport,
) -> Result<(Ingested, Option<SkippedDamage>)> {
    let options = ReplayOptions::of(state, crate::formats::directories::log_store_id(store_id));
    let mut reading = LogReading::new(state);
    let replayed = crate::formats::log::replay(storage, &options, &mut |record| {
        reading.record(&record);
        Ok(())
    });
    report.problems.append(&mut reading.problems);
    let mut skipped = None;
    match replayed {
        Ok(replayed) if replayed.lacks_start() => {
            let start = options.start.segment;
            report
                .problems
                .push(crate::formats::log::replay::no_first_segment(start));
        }
        Ok(replayed) => {
            report.log = Some(log_check(&replayed, reading.entry_count, state.closed));
            skipped = replayed.skipped;
        }
        Err(error) if error.kind() == ErrorKind::Unsupported || super::is_no_damage(&error) => {
            return Err(error);
        }
        Err(error) => report.problems.push(error),
    }
    Ok((reading.ingested, skipped))
}

fn log_check(replayed: &ReplayReport, entry_count: u64, closed: bool) -> LogCheck {
    LogCheck {
        segment_count: replayed.segment_count,
        record_count: replayed.record_count,
        record_bytes: replayed.record_bytes,
        entry_count,
        end: replayed.end,
        stop: replayed.stop.to_string(),
        is_torn: !closed && replayed.stop.is_torn(),
        closed,
        discarded_record_count: replayed.discarded.record_count,
        discarded_bytes: replayed.discarded.record_bytes,
    }
}

/// Reads the log's records as recovery would, without applying them.
struct LogReading<'a> {
    state: &'a StoreState,
    /// Every keyspace with an id below this one was created at some time, by the manifest or a
    /// record.
    next_keyspace_id: KeyspaceId,
    created: LiteMap<KeyspaceId, String>,
    dropped: BTreeSet<KeyspaceId>,
    entry_count: u64,
    ingested: Ingested,
    problems: Vec<Error>,
}

impl<'a> LogReading<'a> {
    fn new(state: &'a StoreState) -> LogReading<'a> {
        LogReading {
            state,
            next_keyspace_id: state.next_keyspace_id,
            created: LiteMap::new(),
            dropped: BTreeSet::new(),
            entry_count: 0,
            ingested: Ingested::default(),
            problems: Vec::new(),
        }
    }

    fn record(&mut self, record: &Record<'_>) {
        if let Err(error) = self.understand(record) {
            let at = record.position;
            self.problems
                .push(error.in_file(segment_name(at.segment)).at(at.offset.into()));
        }
    }

    /// Refuses sequence numbers above the manifest's ceiling.
    fn check_ceiling(&self, last: u64) -> Result<()> {
        if last <= self.state.sequence_ceiling {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corruption,
            "a log record has sequence numbers that were never given",
        )
        .expected(format!(
            "at most {}, the manifest's ceiling",
            self.state.sequence_ceiling
        ))
        .found(last))
    }

    fn understand(&mut self, record: &Record<'_>) -> Result<()> {
        let last = record.first_sequence + record.sequence_count.saturating_sub(1);
        self.check_ceiling(last)?;
        match record.kind {
            RecordKind::Group => {
                for entry in Entries::new(record.payload) {
                    let entry = entry.map_err(|bad| bad.into_error("a log record"))?;
                    self.entry_count += 1;
                    if entry.keyspace >= self.next_keyspace_id {
                        return Err(Error::new(
                            ErrorKind::Corruption,
                            format!(
                                "a log record names keyspace {}, which was never created",
                                entry.keyspace
                            ),
                        ));
                    }
                }
            }
            RecordKind::KeyspaceCreate => {
                let (id, name, _) = crate::formats::log::bodies::decode_create(record.payload)?;
                // The manifest knows a keyspace with a lower id, or knows that it was dropped.
                if id >= self.state.next_keyspace_id {
                    self.created.insert(id, name.to_string());
                }
                self.next_keyspace_id = self.next_keyspace_id.max(id.saturating_add(1));
            }
            RecordKind::KeyspaceDrop => {
                let id = crate::formats::log::bodies::decode_drop(record.payload)?;
                self.dropped.insert(id);
                self.created.remove(&id);
                self.ingested.tables.retain(|(keyspace, _)| *keyspace != id);
                self.ingested.keyspaces.remove(&id);
            }
            RecordKind::Ingest => {
                let ingest = crate::formats::log::bodies::decode_ingest(
                    record.payload,
                    record.first_sequence,
                )?;
                self.check_ceiling(ingest.last)?;
                for (id, runs) in ingest.parts {
                    let created = self.created.get(&id);
                    let installed = match self.state.keyspace(id) {
                        Some(k) => k.version.covered().contains(record.first_sequence),
                        None => created.is_none(),
                    };
                    if installed || self.dropped.contains(&id) {
                        continue;
                    }
                    if let Some(name) = created {
                        self.ingested.keyspaces.insert(id, name.clone());
                    }
                    let tables = runs.iter().flat_map(|run| run.tables.tables());
                    let tables = tables.map(|t| (id, t.clone()));
                    self.ingested.tables.extend(tables);
                }
            }
        }
        Ok(())
    }
}
