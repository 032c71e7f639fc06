//! The processes of a comparison in their order, and what has been done to a store before each.
//!
//! The rows of a store follow each other like this: fills with stores of their own, the fill whose
//! store is kept, rows that read, and rows that write, each in the order of the file. All rounds of
//! a row follow each other, so that the figures that are compared are close in time. In each round
//! the engine that is compared with the others stands in the middle, and the others around it move
//! on from round to round. So each of them is next to it about equally often, and each
//! stands before it about as often as behind it: a machine that slows down favours nobody.
//!
//! Threading: pure functions.

use super::{Plan, Row};

/// One process: a workload of a row, on one engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Process {
    /// The index of the row in [`Plan::rows`].
    pub row: usize,
    /// The index of the engine in [`Plan::engines`].
    pub engine: usize,
    /// The round, from 1.
    pub round: u32,
}

/// Something that changes a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The fill of the store.
    Fill,
    /// The workload of the row with this index.
    Row(usize),
}

/// What was done to a store since it was empty, in order. Two engines whose stores have equal
/// histories have the same records.
pub type History = Vec<Step>;

/// Where a row stands among the rows of its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    FillsAnother,
    FillsTheStore,
    Reads,
    Writes,
}

/// The engines of a row in the order of this round. The first one is compared with the others.
fn round_of(engines: &[usize], round: u32) -> Vec<usize> {
    let Some((first, others)) = engines.split_first() else {
        return Vec::new();
    };
    let count = others.len().max(1);
    let (turn, place) = ((round as usize - 1) / count, (round as usize - 1) % count);
    // By two places, because two of the others are next to the first engine. With an even number of
    // others that would only ever reach every second place.
    let by = match count % 2 {
        0 => 2 * place + 2 * place / count,
        _ => 2 * place,
    };
    let mut order = others.to_vec();
    order.rotate_left(by % count);
    // An odd number of others cannot be halved: the larger part is behind the first engine until
    // each of the others has had each place, and then before it.
    order.insert((others.len() + turn % 2) / 2, *first);
    order
}

impl Plan {
    fn class(&self, row: &Row) -> Class {
        let workload = row.settings.workload;
        match () {
            () if self.fills_the_store(row) => Class::FillsTheStore,
            () if workload.makes_store() => Class::FillsAnother,
            () if row.changes_its_store() => Class::Writes,
            () => Class::Reads,
        }
    }

    /// The indices of all rows, in the order in which they are carried out.
    pub fn rows_in_order(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = (0..self.rows.len()).collect();
        rows.sort_by_key(|row| (self.rows[*row].store, self.class(&self.rows[*row])));
        rows
    }

    /// All processes, in the order in which they are carried out.
    pub fn processes(&self) -> Vec<Process> {
        let mut processes = Vec::new();
        for row in self.rows_in_order() {
            for round in 1..=self.rows[row].pairs {
                let engines = round_of(&self.rows[row].engines, round);
                let process = |engine| Process { row, engine, round };
                processes.extend(engines.into_iter().map(process));
            }
        }
        processes
    }

    /// The name of a process, which is its own: `128.readrandom.rocksdb.2`.
    pub fn id(&self, process: Process) -> String {
        let row = &self.rows[process.row];
        let store = &self.stores[row.store].name;
        let engine = &self.engines[process.engine].name;
        format!("{store}.{}.{engine}.{}", row.name, process.round)
    }

    /// What must have been done to its store before a process; `None` if it makes its own.
    pub fn needs(&self, process: Process) -> Option<History> {
        let row = &self.rows[process.row];
        if row.settings.workload.makes_store() {
            return None;
        }
        let mut history = vec![Step::Fill];
        for earlier in self.rows_in_order() {
            if earlier == process.row {
                break;
            }
            let other = &self.rows[earlier];
            // Also an engine that took no part in the row has its writes done, so that all engines
            // find the same records.
            if other.store == row.store && self.class(other) == Class::Writes {
                let times = if other.starts_anew() { 1 } else { other.pairs };
                history.extend((0..times).map(|_| Step::Row(earlier)));
            }
        }
        if self.class(row) == Class::Writes && !row.starts_anew() {
            history.extend((1..process.round).map(|_| Step::Row(process.row)));
        }
        Some(history)
    }

    /// What has been done to the store after a process; `None` if the store is not kept.
    pub fn leaves(&self, process: Process) -> Option<History> {
        let row = &self.rows[process.row];
        match (self.needs(process), self.class(row)) {
            (None, Class::FillsTheStore) => Some(vec![Step::Fill]),
            (None, _) => None,
            (Some(mut history), Class::Writes) => {
                history.push(Step::Row(process.row));
                Some(history)
            }
            (Some(history), _) => Some(history),
        }
    }

    /// A history in words, for a file and for messages: `fill, overwrite, overwrite`.
    pub fn history_text(&self, history: &[Step]) -> String {
        let name = |step: &Step| match step {
            Step::Fill => "fill",
            Step::Row(row) => &self.rows[*row].name,
        };
        history.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// The name of the process's store: that of the plan, or its own if it makes another one. It
    /// is a folder with a folder for each engine.
    pub fn store_name(&self, process: Process) -> String {
        let row = &self.rows[process.row];
        let store = &self.stores[row.store].name;
        match self.class(row) {
            Class::FillsAnother => format!("{store}.{}", row.name),
            _ => store.clone(),
        }
    }

    /// Whether none of `later` uses the store that this process used.
    pub fn is_last_use(&self, process: Process, later: &[Process]) -> bool {
        if self.class(&self.rows[process.row]) == Class::FillsAnother {
            return true;
        }
        let store = self.rows[process.row].store;
        let owner = self.owner(process.engine);
        !later.iter().any(|other| {
            let row = &self.rows[other.row];
            let is_kept = self.class(row) != Class::FillsAnother;
            is_kept && row.store == store && self.owner(other.engine) == owner
        })
    }
}

impl Row {
    /// Whether the store has other records or values after the workload. An open and a compaction
    /// change how the store lies on the disk, so a later row would not find what others find.
    fn changes_its_store(&self) -> bool {
        use crate::settings::Workload;
        let workload = self.settings.workload;
        workload.writes() || matches!(workload, Workload::Compact | Workload::Open)
    }

    /// Whether each round needs the store that the first one found. A second compaction of the same
    /// store would find nothing to do, so the store is filled again before it.
    fn starts_anew(&self) -> bool {
        self.settings.workload == crate::settings::Workload::Compact
    }
}
