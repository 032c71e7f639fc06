//! What one thread of a workload does, one operation after the other.
//!
//! An [`Operation`] draws a record, calls the engine and checks the answer. It does not measure:
//! the loop in `run/worker.rs` reads the clock around [`Operation::step`].
//!
//! Invariants: every read is checked for found or missing against the population, and every byte of
//! a value that is read is compared with what was written. A wrong answer ends the run.
//!
//! Threading: an operation and its tools belong to one thread; the population is shared.

mod fill;
mod mixed;
mod read;
mod ycsb;

use std::sync::atomic::AtomicBool;

use crate::engine::{EngineError, Session};
use crate::generate::keys::{KeyBuffer, Keys};
use crate::generate::pick::Pick;
use crate::generate::random::Random;
use crate::generate::values::{VERSIONS, Values};

use super::population::Population;
use crate::measure::{Done, Recorder};
use crate::settings::Kind;

pub(super) use fill::{Batches, Deletes, Fill, Queue};
pub(super) use mixed::{Mixgraph, ReadsAndWrites};
pub(super) use read::{MultiRead, Read, ReadAll, Seek};
pub(super) use ycsb::{Letter, Shared, Ycsb};

/// Why an operation ended the run.
#[derive(Debug)]
pub(super) enum Failure {
    /// The engine failed.
    Engine(EngineError),
    /// The engine gave a wrong answer.
    Wrong(String),
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Failure {
        Failure::Engine(error)
    }
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

/// What one thread does.
pub(super) trait Operation {
    /// Does the next operation; `None` if all is done. A long scan records its progress itself,
    /// and returns what is left.
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>>;

    /// The kind of all its operations; `None` if it draws them.
    fn kind(&self) -> Option<Kind> {
        None
    }
}

/// The versions of the values that one thread writes.
///
/// Invariant: two workloads one after the other, and 16 in all, write different versions of a
/// record. So a value that is overwritten differs from the one before in every run but its own, and
/// there unless 65536 writes of the thread lie between the two.
pub(super) struct Versions {
    run: u64,
    next: u64,
}

/// Bits of a version that count in a run. The four bits above them are the run's.
const VERSION_BITS: u32 = 16;

impl Versions {
    /// Those of a thread in the run that is the `generation`th one to write to its store.
    pub fn new(generation: u64, thread: u32) -> Versions {
        Versions {
            run: (generation << VERSION_BITS) % VERSIONS,
            next: u64::from(thread) << 12,
        }
    }

    /// The version of the next value.
    pub fn next(&mut self) -> u64 {
        let version = self.run | (self.next % (1 << VERSION_BITS));
        self.next += 1;
        version
    }
}

/// What the operations of one thread work with.
pub(super) struct Tools<'a> {
    pub session: Box<dyn Session + 'a>,
    pub keys: &'a Keys,
    pub values: &'a Values,
    pub population: &'a Population,
    /// Decides what is done next. Records are drawn from other lanes.
    pub random: Random,
    /// Whether writes are synced.
    pub sync: bool,
    pub versions: Versions,
    pub recorder: Recorder<'a>,
    /// Set when the run's time is over.
    pub stop: &'a AtomicBool,
    pub key: Box<KeyBuffer>,
    pub value: Vec<u8>,
    /// A buffer for what a scan must find.
    pub before: Vec<u64>,
}

/// How often a record that the store has is drawn before the next one in order is taken: a store
/// from which nearly everything was deleted must not make a run hang.
const DRAWS_MAX: usize = 64;

impl Tools<'_> {
    /// Writes the value of a record into `self.value`.
    fn make_value(&mut self, record: u64) {
        let version = self.versions.next();
        self.values.write(record, version, &mut self.value);
    }

    /// Puts a record with a new value.
    fn put(&mut self, record: u64, kind: Kind) -> Result<Done> {
        self.population.prefetch(record);
        self.make_value(record);
        let key = self.keys.present(record, &mut self.key);
        self.session.put(key, &self.value, self.sync)?;
        self.population.add(record);
        Ok(Done {
            kind,
            operations: 1,
            written_bytes: (key.len() + self.value.len()) as u64,
            read_bytes: 0,
        })
    }

    /// Deletes a record.
    fn delete(&mut self, record: u64) -> Result<Done> {
        self.population.remove(record);
        let key = self.keys.present(record, &mut self.key);
        self.session.delete(key, self.sync)?;
        Ok(Done {
            kind: Kind::Delete,
            operations: 1,
            written_bytes: key.len() as u64,
            read_bytes: 0,
        })
    }

    /// Reads a record that must be there.
    fn get(&mut self, record: u64, kind: Kind) -> Result<Done> {
        let key = self.keys.present(record, &mut self.key);
        let values = self.values;
        let mut found = Ok(0);
        let is_found = self.session.get(key, &mut |value| {
            found = values
                .verify(record, None, value)
                .map(|()| value.len() as u64)
                .map_err(|mismatch| mismatch.to_string());
        })?;
        if !is_found {
            return Err(Failure::Wrong(missing(record, key)));
        }
        Ok(Done {
            kind,
            operations: 1,
            written_bytes: 0,
            read_bytes: key.len() as u64 + found.map_err(Failure::Wrong)?,
        })
    }

    /// Reads a key that no record has.
    fn get_absent(&mut self, record: u64) -> Result<Done> {
        let key = self.keys.absent(record, &mut self.key);
        let mut found = 0;
        if self.session.get(key, &mut |value| found = value.len())? {
            let key = String::from_utf8_lossy(key);
            return Err(Failure::Wrong(format!(
                "the key `{key}` was never written, and a read found {found} bytes"
            )));
        }
        Ok(Done {
            kind: Kind::GetMissing,
            operations: 1,
            written_bytes: 0,
            read_bytes: 0,
        })
    }

    /// Draws a record that the store has; `None` if it has none.
    fn draw_present(&self, pick: &mut Pick, records: u64) -> Option<u64> {
        self.draw_present_from(pick, None, records)
    }

    /// As [`Tools::draw_present`]. `first` is drawn already.
    fn draw_present_from(
        &self,
        pick: &mut Pick,
        mut first: Option<u64>,
        records: u64,
    ) -> Option<u64> {
        for _ in 0..DRAWS_MAX {
            let record = first.take().unwrap_or_else(|| pick.next(records));
            if self.population.contains(record) {
                return Some(record);
            }
        }
        let from = pick.next(records);
        let after = self.population.next_from(from, records);
        after.or_else(|| self.population.next_from(0, records))
    }
}

/// The text of a wrong answer: a record that must be there was not found.
fn missing(record: u64, key: &[u8]) -> String {
    let key = String::from_utf8_lossy(key);
    format!("record {record} (key `{key}`) was written, and a read did not find it")
}
