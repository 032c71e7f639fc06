//! Experiments: TOML files with the runs of a paper's figure and the paper's values.
//!
//! [`Experiment::parse`] reads a file, [`Experiment::named`] one of those that are part of the
//! program, and [`Experiment::plan`] says which runs are carried out in which order on which
//! stores. `crates/bench/experiments/README.md` describes the format.
//!
//! Invariants: every run of an experiment passes `Settings::check`, its store is filled by an
//! earlier run with the same keys and values, and its label is its own. Every value and ratio
//! belongs to a run that exists. A run without a value of the paper says why.
//!
//! Threading: plain data.

mod embedded;
pub(crate) mod error;
mod metric;
mod parse;
mod plan;
pub(crate) mod product;
pub(crate) mod section;
pub(crate) mod stores;

#[cfg(test)]
mod tests;

use std::fmt;

use crate::settings::{Kind, Settings};

pub use embedded::{NoExperiment, embedded_names, known_names, other_names};
pub use error::ExperimentError;
pub use metric::Metric;
pub use plan::{ASSUMED_BYTES_PER_S, Estimate, Plan, PlanError, PlannedRun, Shrunk, StoreUse};

/// The runs of one figure of a paper, with the paper's values.
#[derive(Debug, Clone, PartialEq)]
pub struct Experiment {
    /// The name of the file without its ending, for example `prockstore-fig9`.
    pub name: String,
    /// What is measured, in a few words.
    pub title: String,
    /// What is compared with what, in sentences.
    pub compares: String,
    /// The paper.
    pub paper: Paper,
    /// The hardware of the paper, and what stands in for it.
    pub hardware: Hardware,
    /// What a reader of the results has to know.
    pub notes: Vec<String>,
    /// The scale that is used if none is asked for; 1 is the size of the paper.
    pub scale: f64,
    /// The scale of a quick look at several experiments; without one, it is `scale`.
    pub quick_scale: Option<f64>,
    /// How often all runs are carried out.
    pub rounds: u32,
    /// Whether memtables, tables, levels and caches are scaled like the records.
    pub scale_engine: bool,
    /// The runs in their order.
    pub runs: Vec<Run>,
    /// Ratios between two runs, with those of the paper.
    pub ratios: Vec<Ratio>,
    /// What the paper says of mechanisms that the runs do not have. Nothing is measured for them.
    pub claims: Vec<Claim>,
}

/// A paper and the figure in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paper {
    /// The name of the paper's system.
    pub system: String,
    /// The paper's title.
    pub title: String,
    /// The journal or conference, or that the text does not name it.
    pub venue: String,
    /// The year, if it is known.
    pub year: Option<u32>,
    /// The figure, table or section with the values.
    pub figure: String,
}

/// Hardware, in sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// What the paper used.
    pub paper: String,
    /// What stands in for it here.
    pub here: String,
}

/// One run of an experiment.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The name, which is its own.
    pub label: String,
    /// All settings, at the size of the paper.
    pub settings: Settings,
    /// The run before this one whose store is used; `None` if the run makes a store of its own.
    pub store: Option<usize>,
    /// The paper's values.
    pub values: Vec<Value>,
    /// Why the paper has no value for this run.
    pub without_values: Option<String>,
}

/// A value of the paper.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// What it is.
    pub metric: Metric,
    /// The operations to which it belongs; `None` is all of them.
    pub operation: Option<Kind>,
    /// The value.
    pub paper: Number,
    /// The system that was measured in the paper, for example `LevelDB 1.23`.
    pub system: String,
    /// The figure, table or section.
    pub source: String,
}

/// A ratio between two runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// The index of the run whose figure is divided.
    pub of: usize,
    /// The index of the run by whose figure it is divided.
    pub to: usize,
    /// Which figure.
    pub metric: Metric,
    /// The operations to which it belongs; `None` is all of them.
    pub operation: Option<Kind>,
    /// The ratio of the paper.
    pub paper: Number,
    /// The paper's figure of the run by which it is divided, if it can be known. Where ours is
    /// better than this, our ratio is smaller for a good reason.
    pub baseline: Option<f64>,
    /// What is compared, in words.
    pub what: Option<String>,
    /// The system that was measured in the paper.
    pub system: String,
    /// The figure, table or section.
    pub source: String,
}

/// What a paper says of a mechanism that the runs do not have.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// What is claimed, in a sentence.
    pub what: String,
    /// The number, in the unit that the sentence names.
    pub paper: Number,
    /// What has to be built before it can be measured.
    pub needs: String,
    /// The figure, table or section.
    pub source: String,
}

/// A number of a paper, or the two ends of a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    /// One number.
    Exact(f64),
    /// From the first to the second.
    Range(f64, f64),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::Exact(number) => f.pad(&number.to_string()),
            Number::Range(from, to) => f.pad(&format!("{from} to {to}")),
        }
    }
}

impl Experiment {
    /// The run with this label.
    pub fn run(&self, label: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.label == label)
    }
}
