//! How long a comparison takes and how much disk it needs, before it begins.
//!
//! The times come from the rates that the plan expects; what it does not say is slow. The disk is
//! estimated high, so that a comparison which begins does not fail in the middle.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;

use super::{History, Plan, Process, Row, Step};
use crate::settings::{Amount, Compression, Distribution, Settings};

/// Operations a second of an engine for which the plan expects nothing.
const ASSUMED_OPS_PER_S: f64 = 100_000.0;
/// What every process takes beside its workload: start, open, close, the probes of the memory, and
/// the wait until the disk and the engine are idle. It was 1.5 s in a quick comparison.
const PROCESS_S: f64 = 1.6;
/// What a fill takes until its dirty pages are written, for each byte of its records.
const WRITE_BACK_S_PER_BYTE: f64 = 1.0 / 800e6;
/// The space of a store while compactions run, for each byte of its records.
const SPACE_FACTOR: f64 = 1.6;
/// Log, memtables that are flushed and metadata of a store.
const SPACE_BESIDE_TABLES: u64 = 768 << 20;
/// A process that takes so many times longer than expected is ended.
const DEADLINE_FACTOR: f64 = 8.0;
/// No process is ended earlier than this.
const DEADLINE_LEAST_S: f64 = 300.0;

/// What is expected of the processes of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowForecast {
    /// The index of the row in [`Plan::rows`].
    pub row: usize,
    /// The number of its processes.
    pub processes: usize,
    /// The time of its processes and of the fills that they need, in seconds.
    pub seconds: f64,
    /// The most bytes of disk that its stores take at once.
    pub disk_bytes: u64,
}

/// What is expected of a comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    /// The rows that have processes left, in the order in which they are carried out.
    pub rows: Vec<RowForecast>,
    /// The time of all of them in seconds.
    pub seconds: f64,
    /// The most bytes of disk that all stores take at once.
    pub disk_bytes: u64,
}

impl Plan {
    /// What is expected of these processes, which are in their order. `history` says what has been
    /// done to the store that a process needs; `None` means that it has to be filled.
    pub fn forecast(
        &self,
        processes: &[Process],
        mut history: impl FnMut(Process) -> Option<History>,
    ) -> Forecast {
        // The histories of kept stores, by store and engine.
        let mut histories: BTreeMap<(usize, usize), Option<History>> = BTreeMap::new();
        let mut sizes: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut rows: Vec<RowForecast> = Vec::new();
        for (index, process) in processes.iter().enumerate() {
            let row = &self.rows[process.row];
            let key = (row.store, self.owner(process.engine));
            let is_kept = self.leaves(*process).is_some();
            let mut seconds = self.seconds(*process);
            let own_bytes = store_bytes(&self.settings(row, process.engine));
            let mut disk_bytes = sizes.values().sum::<u64>();
            if let Some(needed) = self.needs(*process) {
                let known = histories.entry(key).or_insert_with(|| history(*process));
                let done = known.as_deref().map_or(0, |known| done_of(known, &needed));
                seconds += self.preparation_s(*process, &needed[done..]);
            }
            if is_kept {
                let store = &self.stores[row.store];
                let fill = store_bytes(&self.fill_settings(store, key.1)).max(own_bytes);
                let before = sizes.insert(key, fill).unwrap_or(0);
                disk_bytes = disk_bytes - before + fill;
                histories.insert(key, self.leaves(*process));
            } else {
                disk_bytes += own_bytes;
            }
            if self.is_last_use(*process, &processes[index + 1..]) && is_kept {
                sizes.remove(&key);
            }
            match rows.last_mut().filter(|last| last.row == process.row) {
                Some(last) => {
                    last.processes += 1;
                    last.seconds += seconds;
                    last.disk_bytes = last.disk_bytes.max(disk_bytes);
                }
                None => rows.push(RowForecast {
                    row: process.row,
                    processes: 1,
                    seconds,
                    disk_bytes,
                }),
            }
        }
        Forecast {
            seconds: rows.iter().map(|row| row.seconds).sum(),
            disk_bytes: rows.iter().map(|row| row.disk_bytes).max().unwrap_or(0),
            rows,
        }
    }

    /// How long a process is expected to take, in seconds, without the fill of its store.
    pub fn seconds(&self, process: Process) -> f64 {
        let row = &self.rows[process.row];
        let settings = self.settings(row, process.engine);
        workload_s(&settings, self.expected(row, process.engine))
    }

    /// How long it takes to do these steps to the store of a process, in seconds.
    pub fn preparation_s(&self, process: Process, steps: &[Step]) -> f64 {
        let owner = self.owner(process.engine);
        let store = &self.stores[self.rows[process.row].store];
        let step = |step: &Step| match step {
            Step::Fill => {
                let name = &self.engines[owner].name;
                let row = self.fill_row(self.rows[process.row].store);
                let of_row = row.and_then(|row| row.expected.get(name));
                let expected = store.expected.get(name).or(of_row).copied();
                let settings = self.fill_settings(store, owner);
                workload_s(&settings, expected.unwrap_or(ASSUMED_OPS_PER_S))
            }
            Step::Row(row) => self.seconds(Process {
                row: *row,
                engine: owner,
                round: 1,
            }),
        };
        steps.iter().map(step).sum()
    }

    /// After this time a process is ended, because it hangs.
    pub fn deadline_s(expected_s: f64) -> f64 {
        (expected_s * DEADLINE_FACTOR).max(DEADLINE_LEAST_S)
    }

    fn expected(&self, row: &Row, engine: usize) -> f64 {
        let contender = &self.engines[engine];
        let own = row.expected.get(&contender.name);
        let shared = contender.shares.map(|shared| &self.engines[shared].name);
        let shared = || row.expected.get(shared?);
        let fill = || self.stores[row.store].expected.get(&contender.name);
        let fill = || fill().filter(|_| self.fills_the_store(row));
        own.or_else(shared)
            .or_else(fill)
            .copied()
            .unwrap_or(ASSUMED_OPS_PER_S)
    }
}

/// How many of the needed steps need not be done. A store to which something else was done is
/// filled again.
fn done_of(known: &[Step], needed: &[Step]) -> usize {
    match needed.starts_with(known) {
        true => known.len(),
        false => 0,
    }
}

fn workload_s(settings: &Settings, ops_per_s: f64) -> f64 {
    let work = match (settings.amount(), settings.operations()) {
        (Amount::Seconds(seconds), _) => seconds,
        (_, operations) => operations.unwrap_or(0) as f64 / ops_per_s,
    };
    let written = match settings.workload.makes_store() {
        true => settings.records as f64 * settings.entry_bytes(),
        false => 0.0,
    };
    PROCESS_S + work + written * WRITE_BACK_S_PER_BYTE
}

/// The part of the records that are there after a fill at random with replacement, 1 - 1/e.
const DISTINCT: f64 = 0.632;

/// The bytes of a store with the space that compactions need.
fn store_bytes(settings: &Settings) -> u64 {
    let is_drawn = settings.distribution() == Distribution::Uniform;
    let distinct = match is_drawn && settings.workload.makes_store() {
        true => DISTINCT,
        false => 1.0,
    };
    let stored = match settings.engine.compression {
        Compression::None => 1.0,
        Compression::Lz4 | Compression::Zstd => settings.compression_ratio,
    };
    let entries = match settings.workload.makes_store() {
        true => settings.operations().unwrap_or(settings.records),
        false => 0,
    };
    let raw = entries as f64 * settings.entry_bytes() * distinct * stored;
    ((raw * SPACE_FACTOR) as u64).saturating_add(SPACE_BESIDE_TABLES)
}
