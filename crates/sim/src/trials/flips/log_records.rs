//! The records of the log of a store, and what they know to be synced.
//!
//! Invariant: what a record knows is at least what was acknowledged as synced before the record was
//! appended.
//!
//! Threading: one task of a run.

use std::collections::BTreeMap;

use siltstone::inspect::{LogContent, LogFile, LogItem};
use siltstone::log::Position;
use siltstone::log::format::POSITION_UNIT_BYTES;
use siltstone_storage::{MemoryStorage, Storage};

use super::damage::FileKind;

/// A record of the log that a replay reads.
pub(super) struct LogRecord {
    pub(super) start: Position,
    pub(super) end: u64,
    /// The number before its first number.
    pub(super) before: u64,
    /// The log position that was known to be synced when this record was written: its own, or that
    /// of the last record before it that has one.
    pub(super) synced: Position,
    /// Whether the record itself has the position.
    pub(super) says_synced: bool,
}

/// The first byte of the unit in which this offset lies. The first record that begins in a unit has
/// the synced position.
pub(super) fn unit_start(offset: u64) -> u64 {
    offset / u64::from(POSITION_UNIT_BYTES) * u64::from(POSITION_UNIT_BYTES)
}

impl LogRecord {
    pub(super) fn end(&self) -> Position {
        Position::new(self.start.segment, self.end as u32)
    }
}

/// The records of the log from the manifest's start on, in order. The image is sound, so each
/// segment's records are a plain list.
pub(super) fn log_of(
    storage: &MemoryStorage,
    start: u32,
    synced_before: &BTreeMap<u64, u64>,
) -> Result<Vec<LogRecord>, String> {
    let text = |e: siltstone::Error| e.to_string();
    let mut records: Vec<LogRecord> = Vec::new();
    let mut salt = None;
    for object in storage.list().map_err(|e| e.to_string())? {
        if FileKind::of(&object.name) != FileKind::Log {
            continue;
        }
        let file = storage.open(&object.name).map_err(|e| e.to_string())?;
        let mut log = LogFile::open(&*file).map_err(text)?;
        let Ok((header, _)) = log.header() else {
            continue;
        };
        let (number, own_salt) = (header.number, header.salt);
        // Recycled files keep old headers, and other chains are orphans.
        if number < start
            || siltstone::log::format::parse_segment_name(&object.name) != Some(number)
            || (number > start && salt != Some(own_salt))
        {
            continue;
        }
        salt = Some(own_salt);
        while let Some(item) = log.next_item().map_err(text)? {
            let LogItem::Record(record) = item else {
                continue;
            };
            if let LogContent::Unknown(e) = &record.content {
                return Err(format!("a record that nobody knows: {e}"));
            }
            let last = records.last();
            let is_first_of_unit = last.is_none_or(|last| {
                let unit = unit_start(record.offset);
                last.start.segment != number || u64::from(last.start.offset) < unit
            });
            let says = record.header.synced;
            if is_first_of_unit && says.is_none() {
                return Err(format!(
                    "the record at {number}:{} begins first in its unit and has no synced position",
                    record.offset
                ));
            }
            records.push(LogRecord {
                start: Position::new(number, record.offset as u32),
                end: record.end,
                before: record.header.first_sequence - 1,
                synced: says.or(last.map(|last| last.synced)).unwrap_or_default(),
                says_synced: says.is_some(),
            });
        }
    }
    for (at, record) in records.iter().enumerate() {
        let acknowledged = synced_before.get(&(record.before + 1)).copied();
        let acknowledged = acknowledged.unwrap_or_default();
        // The last record that was acknowledged as synced before this one was appended.
        let synced = records[..at].iter().rfind(|r| r.before < acknowledged);
        if let Some(synced) = synced.filter(|synced| synced.end() > record.synced) {
            return Err(format!(
                "the record at {} knows that the log is synced through {}, but number \
                 {acknowledged}, which ends at {}, was acknowledged as synced before",
                record.start,
                record.synced,
                synced.end()
            ));
        }
    }
    Ok(records)
}
