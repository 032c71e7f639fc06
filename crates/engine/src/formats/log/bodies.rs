//! The bodies of all records but those of batches: a keyspace is created or dropped, tables are
//! ingested.
//!
//! Each kind has an encoder and a decoder. `docs/format/log.md` describes the bytes.
//!
//! Invariant: a body that no encoder makes is refused with an error. It never causes a panic.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::formats::log::format::MAX_SEQUENCE;
use crate::formats::version::{
    Edit, KeyspaceEdit, Level, MAX_KEYSPACE_NAME_BYTES, Run, RunSlot, SeqRange, TableMeta,
};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::stored::StoredOptions;

/// The body of a create record. It contains the options, because the record is what was
/// acknowledged and the edit may be lost.
pub(crate) fn encode_create(id: KeyspaceId, name: &str, options: &StoredOptions) -> Vec<u8> {
    let mut body = id.to_le_bytes().to_vec();
    body.extend_from_slice(name.as_bytes());
    let options = options.encode();
    if !options.is_empty() {
        body.push(NAME_END);
        body.extend_from_slice(&options);
    }
    body
}

/// Inverse of [`encode_create`].
pub(crate) fn decode_create(body: &[u8]) -> Result<(KeyspaceId, &str, StoredOptions)> {
    let bad = || {
        Error::new(
            ErrorKind::Corruption,
            "a create record of the log is malformed",
        )
    };
    let (id, rest) = body.split_first_chunk::<4>().ok_or_else(bad)?;
    let mut parts = rest.splitn(2, |byte| *byte == NAME_END);
    let name = std::str::from_utf8(parts.next().unwrap_or_default()).map_err(|_| bad())?;
    if !(1..=MAX_KEYSPACE_NAME_BYTES).contains(&name.len()) {
        return Err(bad());
    }
    let options = StoredOptions::decode(parts.next().unwrap_or_default())?;
    Ok((u32::from_le_bytes(*id), name, options))
}

/// Decodes the body of a drop record.
pub(crate) fn decode_drop(body: &[u8]) -> Result<KeyspaceId> {
    let id = body.try_into().map_err(|_| {
        Error::new(
            ErrorKind::Corruption,
            "a drop record of the log is malformed",
        )
    })?;
    Ok(u32::from_le_bytes(id))
}

/// The body of an ingest record: the edit that adds its runs. Their ranges are counted from the
/// record's first number, so the range of a single run is 0 to 1.
pub(crate) fn encode_ingest(parts: &[NumberedPart]) -> Vec<u8> {
    let last = parts.iter().map(|(_, runs)| runs.len()).max().unwrap_or(0) as u64;
    let keyspaces = parts.iter().map(|(id, runs)| {
        let mut edit = KeyspaceEdit::new(*id);
        for (i, (run_id, tables)) in (0u64..).zip(runs) {
            let hi = if i + 1 == runs.len() as u64 {
                last
            } else {
                i + 1
            };
            let slot = RunSlot {
                id: *run_id,
                seqs: SeqRange::new(i, hi),
            };
            edit.add_run(slot, tables);
        }
        edit
    });
    Edit {
        keyspaces: keyspaces.collect(),
        ..Edit::default()
    }
    .encode()
}

/// Decodes the body of an ingest record whose first number is `first`.
///
/// # Errors
/// `Corruption` for anything that [`encode_ingest`] does not make.
pub(crate) fn decode_ingest(body: &[u8], first: u64) -> Result<Ingest> {
    let bad = |what: &str| {
        Error::new(
            ErrorKind::Corruption,
            format!("an ingest record of the log is malformed: {what}"),
        )
    };
    let edit = Edit::decode(body)?.edit;
    edit.check_limits()?;
    let mut parts: Vec<(KeyspaceId, Vec<Run>)> = Vec::new();
    let mut ends = Vec::new();
    for keyspace in &edit.keyspaces {
        if parts.iter().any(|(id, _)| *id == keyspace.id) {
            return Err(bad("a keyspace occurs twice"));
        }
        let mut slots: BTreeMap<u64, (RunSlot, Vec<Arc<TableMeta>>)> = BTreeMap::new();
        for add in &keyspace.add {
            let slot = add
                .run
                .filter(|_| add.level == 0)
                .ok_or_else(|| bad("a table without a run"))?;
            let (known, tables) = slots
                .entry(slot.seqs.lo)
                .or_insert_with(|| (slot, Vec::new()));
            if *known != slot {
                return Err(bad("two runs begin at one number"));
            }
            if add.table.location != 0 {
                return Err(bad("a table at another location than the first one"));
            }
            tables.push(add.table.clone());
        }
        let count = slots.len() as u64;
        let mut runs = Vec::new();
        for (i, (slot, tables)) in (0u64..).zip(slots.into_values()) {
            let is_last = i + 1 == count;
            if slot.seqs.lo != i || slot.seqs.hi <= i || (!is_last && slot.seqs.hi != i + 1) {
                return Err(bad("the numbers of its runs do not meet"));
            }
            // Numbers begin at 1, so there is a number before the first one.
            let before = first.checked_sub(1).ok_or_else(|| bad("number 0"))?;
            let hi = before
                .checked_add(slot.seqs.hi)
                .filter(|hi| *hi <= MAX_SEQUENCE)
                .ok_or_else(|| bad("numbers beyond the last one"))?;
            let number = first + i;
            let tables = tables
                .iter()
                .map(|table| {
                    Arc::new(TableMeta {
                        sequence_override: Some(number),
                        ..(**table).clone()
                    })
                })
                .collect();
            runs.push(Run {
                id: slot.id,
                seqs: SeqRange::new(before + i, hi),
                tables: Level::new(tables)?,
            });
            if is_last {
                ends.push(hi);
            }
        }
        if runs.is_empty() {
            return Err(bad("a keyspace without tables"));
        }
        parts.push((keyspace.id, runs));
    }
    let last = ends.iter().copied().max();
    match last {
        Some(last) if ends.iter().all(|end| *end == last) => Ok(Ingest { last, parts }),
        Some(_) => Err(bad("its keyspaces end at different numbers")),
        None => Err(bad("no keyspace")),
    }
}

/// The contents of an ingest record.
#[derive(Debug)]
pub(crate) struct Ingest {
    /// The last number that it takes.
    pub(crate) last: u64,
    /// For each keyspace its runs, oldest first. Every table has the number of its run.
    pub(crate) parts: Vec<(KeyspaceId, Vec<Run>)>,
}

impl Ingest {
    /// The tables of all runs.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &Arc<TableMeta>> {
        self.parts
            .iter()
            .flat_map(|(_, runs)| runs)
            .flat_map(|run| run.tables.tables())
    }

    /// The largest id of its tables and runs, plus one.
    pub(crate) fn next_table_id(&self) -> u64 {
        let runs = self.parts.iter().flat_map(|(_, runs)| runs).map(|r| r.id);
        let greatest = self.tables().map(|t| t.id).chain(runs).max();
        greatest.map_or(0, |id| id.saturating_add(1))
    }
}

/// A part of the record: a keyspace, and its runs with their ids.
pub(crate) type NumberedPart = (KeyspaceId, Vec<(u64, Vec<Arc<TableMeta>>)>);

/// Separates the name from the options in a create record. This byte never occurs in UTF-8.
pub(crate) const NAME_END: u8 = 0xff;

#[cfg(test)]
pub(crate) mod tests;
