//! Workloads, drivers, measurements and reports of `silt bench`.
//!
//! The design is `docs/rfc/0008-bench.md`. The layers, lower to higher: [`generate`], [`settings`],
//! [`engine`].

pub mod engine;
pub mod experiment;
pub mod generate;
pub mod measure;
pub mod page;
pub mod record;
pub mod run;
pub mod settings;
