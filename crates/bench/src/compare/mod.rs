//! Comparisons: several engines do the same work on one machine, in interleaved rounds.
//!
//! [`Plan`] is a TOML file: which engines, which stores, and which rows the table has. From it
//! follow the processes in their order, the stores that each of them needs, and an estimate of time
//! and disk ([`Forecast`]). [`Results`] is a folder with a record of each finished process, so that
//! a comparison that was interrupted goes on; it can be packed into one file. [`Rounds`] are the
//! figures of two engines, round by round, with their ratio and its interval. [`page`] writes the
//! table for `docs/performance.md`.
//!
//! Nothing here starts a process or knows an engine: the program `bench-compare` does. Its README
//! describes the file of a plan.
//!
//! Invariants: the order of processes follows from the plan alone. A ratio is that of two figures
//! of one round. A process that failed or was skipped stands on the page with its reason. Equal
//! results give equal pages.
//!
//! Threading: plain data; [`Results`] belongs to one thread of one process.

mod archive;
mod conditions;
mod forecast;
mod markdown;
mod order;
mod parse;
mod plan;
mod results;
mod statistics;

#[cfg(test)]
mod tests;

pub use conditions::{Conditions, PAUSE_MAX_S, longest_pause_s};
pub use forecast::{Forecast, RowForecast};
pub use markdown::page;
pub use order::{History, Process, Step};
pub use plan::{Contender, Plan, Row, Store};
pub use results::{Manifest, Outcome, Results, ResultsError, Verdict};
pub use statistics::{Interval, Rounds, Spread};

pub use crate::experiment::ExperimentError as PlanFileError;
