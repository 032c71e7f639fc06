//! Reads and writes in the same thread.

use super::read::{Range, scan};
use super::{Operation, Result, Tools};
use crate::generate::mixgraph::{MixgraphOperation, MixgraphOperations};
use crate::generate::pick::Pick;
use crate::measure::Done;
use crate::settings::Kind;

/// Reads and overwrites random records in a given ratio.
pub(in crate::run) struct ReadsAndWrites {
    pub pick: Pick,
    pub records: u64,
    pub left: u64,
    /// The part of reads, from 0 to 1.
    pub read_ratio: f64,
}

impl Operation for ReadsAndWrites {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if tools.random.chance(self.read_ratio)
            && let Some(record) = tools.draw_present(&mut self.pick, self.records)
        {
            return tools.get(record, Kind::Get).map(Some);
        }
        let record = self.pick.next(self.records);
        tools.put(record, Kind::Put).map(Some)
    }
}

/// Gets, puts and scans with the skew of `mixgraph`.
pub(in crate::run) struct Mixgraph {
    pub operations: MixgraphOperations,
    pub pick: Pick,
    pub records: u64,
    pub left: u64,
}

impl Operation for Mixgraph {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        match self.operations.next(&mut tools.random) {
            MixgraphOperation::Get => match tools.draw_present(&mut self.pick, self.records) {
                Some(record) => tools.get(record, Kind::Get).map(Some),
                None => Ok(None),
            },
            MixgraphOperation::Put => {
                let record = self.pick.next(self.records);
                tools.put(record, Kind::Put).map(Some)
            }
            MixgraphOperation::Seek { records } => {
                let range = Range {
                    from: Some(self.pick.next(self.records)),
                    limit: records.max(1),
                    records: self.records,
                    others_write: true,
                    reverse: false,
                };
                scan(tools, range).map(|scanned| Some(scanned.last))
            }
        }
    }
}
