//! Workloads of one operation: compact and ingest. `open` is in `run/open.rs`.

use super::operations::{Operation, Result, Tools};
use crate::engine::Engine;
use crate::measure::Done;
use crate::settings::Kind;

/// Compacts the whole store.
pub(super) struct Compact<'a> {
    pub engine: &'a dyn Engine,
    pub is_done: bool,
}

impl Operation for Compact<'_> {
    fn step(&mut self, _tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.is_done {
            return Ok(None);
        }
        self.is_done = true;
        self.engine.compact()?;
        Ok(Some(once(Kind::Compact, 1, 0)))
    }
}

pub(super) fn once(kind: Kind, operations: u64, written_bytes: u64) -> Done {
    Done {
        kind,
        operations,
        written_bytes,
        read_bytes: 0,
    }
}

/// Adds all records as sorted tables. The records are made on the way, so the time contains it.
pub(super) struct Ingest<'a> {
    pub engine: &'a dyn Engine,
    pub records: u64,
    pub is_done: bool,
}

impl Operation for Ingest<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.is_done {
            return Ok(None);
        }
        self.is_done = true;
        let (mut record, mut bytes) = (0, 0);
        self.engine.ingest(&mut |key, value| {
            if record == self.records {
                return false;
            }
            key.clear();
            key.extend_from_slice(tools.keys.present(record, &mut tools.key));
            tools.values.write(record, 0, value);
            bytes += (key.len() + value.len()) as u64;
            record += 1;
            true
        })?;
        (0..self.records).for_each(|record| tools.population.add(record));
        Ok(Some(once(Kind::Ingest, self.records, bytes)))
    }
}
