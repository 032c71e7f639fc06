//! The core workloads of YCSB, A to F (Cooper et al., SoCC 2010; brianfrankcooper/YCSB,
//! `workloads/workload[a-f]` and `core/src/main/java/site/ycsb/workloads/CoreWorkload.java`).
//!
//! YCSB's records have ten fields of 100 bytes, and an update changes one of them. A key-value
//! store has no fields: a record is one value, and an update overwrites it without a read. YCSB's
//! binding for RocksDB (`RocksDBClient.update`) reads the record, changes the field, and then puts
//! the whole record, so an update there costs one more read. Here only the read-modify-writes of
//! workload F read before they write.
//!
//! With the distribution `uniform`, records that were inserted in the run are drawn like all
//! others. YCSB's `uniform` draws only from the records that were loaded before the run.

use super::read::{Range, scan};
use super::{Operation, Result, Tools};
use crate::generate::acknowledged::Acknowledged;
use crate::generate::pick::Pick;
use crate::measure::Done;
use crate::settings::Kind;

/// The most entries of a scan of workload E.
const SCAN_MAX: u64 = 100;

/// A core workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::run) enum Letter {
    A,
    B,
    C,
    D,
    E,
    F,
}

/// What a thread of a workload does next.
enum Next {
    Read,
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
}

impl Letter {
    /// Draws an operation: the proportions of the workload's file.
    fn next(self, unit: f64) -> Next {
        match self {
            Letter::A if unit < 0.5 => Next::Read,
            Letter::B if unit < 0.95 => Next::Read,
            Letter::A | Letter::B => Next::Update,
            Letter::C => Next::Read,
            Letter::D if unit < 0.95 => Next::Read,
            Letter::E if unit < 0.95 => Next::Scan,
            Letter::D | Letter::E => Next::Insert,
            Letter::F if unit < 0.5 => Next::Read,
            Letter::F => Next::ReadModifyWrite,
        }
    }
}

/// What all threads of a run share.
#[derive(Debug)]
pub(in crate::run) struct Shared {
    /// The records that exist.
    pub records: Acknowledged,
}

/// One thread of a core workload.
pub(in crate::run) struct Ycsb<'a> {
    pub letter: Letter,
    pub shared: &'a Shared,
    pub pick: Pick,
    pub left: u64,
}

impl Operation for Ycsb<'_> {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let count = self.shared.records.count();
        match self.letter.next(tools.random.unit()) {
            Next::Insert => {
                let insert = self.shared.records.begin();
                let done = tools.put(insert.number(), Kind::Insert)?;
                insert.acknowledge();
                Ok(Some(done))
            }
            Next::Scan => {
                let range = Range {
                    from: Some(self.pick.next(count)),
                    limit: 1 + tools.random.below(SCAN_MAX),
                    records: u64::MAX,
                    others_write: true,
                    reverse: false,
                };
                scan(tools, range).map(|scanned| Some(scanned.last))
            }
            other => match tools.draw_present(&mut self.pick, count) {
                None => Ok(None),
                Some(record) => match other {
                    Next::Read => tools.get(record, Kind::Get).map(Some),
                    Next::Update => tools.put(record, Kind::Update).map(Some),
                    _ => {
                        let read = tools.get(record, Kind::ReadModifyWrite)?;
                        let written = tools.put(record, Kind::ReadModifyWrite)?;
                        Ok(Some(Done {
                            read_bytes: read.read_bytes,
                            ..written
                        }))
                    }
                },
            },
        }
    }
}
