//! Workloads, drivers, measurements and reports of `silt bench`.
//!
//! The design is `docs/rfc/0008-bench.md`. The layers, lower to higher: [`generate`].

pub mod generate;
