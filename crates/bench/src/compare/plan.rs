//! What a comparison consists of: engines, stores and rows.
//!
//! Threading: plain data.

use std::collections::BTreeMap;

use crate::experiment::Metric;
use crate::settings::{Settings, Workload};

/// The name of the engine that is an earlier siltstone.
pub(super) const BEFORE: &str = "before";
/// The engine of this project.
pub(super) const SILTSTONE: &str = "siltstone";

/// A comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The name of the file without its ending, for example `standard`.
    pub name: String,
    /// What is compared, in a few words.
    pub title: String,
    /// What a reader of the table has to know, in sentences.
    pub notes: Vec<String>,
    /// The engines. The first one is compared with all others.
    pub engines: Vec<Contender>,
    /// The stores, in the order in which they are used.
    pub stores: Vec<Store>,
    /// The rows, in the order of the file.
    pub rows: Vec<Row>,
    /// The text of the file.
    pub text: String,
}

/// One engine with settings of its own: a column of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// The name of the column.
    pub name: String,
    /// The name of the engine's driver.
    pub driver: String,
    /// The engine whose stores it reads; `None` if it fills its own.
    pub shares: Option<usize>,
    /// What a reader has to know of it, in a sentence.
    pub note: Option<String>,
    /// Names and texts of the settings that differ from those of the row.
    pub settings: Vec<(String, String)>,
}

/// A store that each engine fills once and the rows read.
#[derive(Debug, Clone, PartialEq)]
pub struct Store {
    /// The name, for example `128`.
    pub name: String,
    /// The heading of its tables.
    pub title: String,
    /// The settings of its fill.
    pub fill: Settings,
    /// Operations a second that each engine is expected to reach in its fill.
    pub expected: BTreeMap<String, f64>,
}

/// One row of a table: a workload that each engine carries out as often as there are rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The store.
    pub store: usize,
    /// The name, which is its own among the rows of the store.
    pub name: String,
    /// The settings, without those of single engines.
    pub settings: Settings,
    /// The engines that take part, in the order of [`Plan::engines`].
    pub engines: Vec<usize>,
    /// The number of rounds.
    pub pairs: u32,
    /// The row's figure.
    pub metric: Metric,
    /// Further figures of the same processes, each of which is judged too.
    pub also: Vec<Metric>,
    /// The limit of memory of its processes in bytes, page cache included.
    pub memory_limit: Option<u64>,
    /// Whether the page shows how the figure changes from tenth to tenth of the run.
    pub tenths: bool,
    /// Operations a second that each engine is expected to reach, for the estimate of the time.
    pub expected: BTreeMap<String, f64>,
}

impl Plan {
    /// The settings of an engine in a row.
    pub fn settings(&self, row: &Row, engine: usize) -> Settings {
        self.with_own(&row.settings, engine).resolved()
    }

    /// The settings with which an engine fills a store.
    pub fn fill_settings(&self, store: &Store, engine: usize) -> Settings {
        self.with_own(&store.fill, engine).resolved()
    }

    /// Settings with those of an engine.
    pub(super) fn with_own(&self, settings: &Settings, engine: usize) -> Settings {
        let mut settings = settings.clone();
        for (name, text) in &self.engines[engine].settings {
            // They were accepted when the file was read.
            let _ = settings.set(name, text);
        }
        settings
    }

    /// The engine of this name.
    pub fn engine_named(&self, name: &str) -> Option<usize> {
        self.engines.iter().position(|engine| engine.name == name)
    }

    /// The engine whose stores this engine uses.
    pub fn owner(&self, engine: usize) -> usize {
        self.engines[engine].shares.unwrap_or(engine)
    }

    /// Whether the row fills the store that later rows use. Another fill has a store of its own,
    /// which is deleted after each process.
    pub fn fills_the_store(&self, row: &Row) -> bool {
        let fill = &self.stores[row.store].fill;
        row.settings.workload.makes_store() && row.settings.resolved() == fill.resolved()
    }

    /// The row that fills the store, if its fill is measured.
    pub(super) fn fill_row(&self, store: usize) -> Option<&Row> {
        let mut rows = self.rows.iter();
        rows.find(|row| row.store == store && self.fills_the_store(row))
    }

    /// Adds an earlier siltstone as the engine `before`, which takes part wherever siltstone does.
    /// Returns false if the plan has no siltstone, or has `before` already.
    pub fn add_before(&mut self) -> bool {
        let Some(siltstone) = self.engine_named(SILTSTONE) else {
            return false;
        };
        if self.engine_named(BEFORE).is_some() {
            return false;
        }
        let before = self.engines.len();
        self.engines.push(Contender {
            name: BEFORE.into(),
            note: Some("An earlier commit of siltstone.".into()),
            ..self.engines[siltstone].clone()
        });
        let like = |expected: &mut BTreeMap<String, f64>| {
            if let Some(rate) = expected.get(SILTSTONE).copied() {
                expected.insert(BEFORE.into(), rate);
            }
        };
        for row in &mut self.rows {
            if row.engines.contains(&siltstone) {
                row.engines.push(before);
                like(&mut row.expected);
            }
        }
        for store in &mut self.stores {
            like(&mut store.expected);
        }
        true
    }
}

impl Workload {
    /// The figure by which a comparison judges the workload. A fill that leaves compactions behind
    /// is not done, so writes count until the engine is idle.
    pub(super) fn compared_metric(self) -> Metric {
        let is_write = self.makes_store()
            || matches!(
                self,
                Workload::Overwrite | Workload::DeleteRandom | Workload::Compact
            );
        match self {
            Workload::Open => Metric::MeanUs,
            _ if is_write => Metric::OpsPerSUntilIdle,
            _ => Metric::OpsPerS,
        }
    }
}
