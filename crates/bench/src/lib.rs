//! Workloads, drivers, measurements and reports of `silt bench`.
//!
//! The design is `docs/rfc/0008-bench.md`. The layers, lower to higher: [`generate`] (numbers,
//! keys, values, distributions), [`settings`] (what a run does), [`engine`] (the traits of engines,
//! and the drivers that every build has), [`measure`] (latencies, a series by second, readings of
//! the machine), [`record`] (what a run found), [`topology`] (host and device as processes of their
//! own), [`run`] (workloads and threads), [`experiment`] (files with the runs of a paper's figure),
//! [`compare`] (several engines in interleaved rounds), [`draw`] (axes, plots and HTML, which know
//! nothing of the others), [`page`] (a page with charts), [`command`] (the command line) and
//! [`gpu_check`] (the program that measures the executor of a GPU).

pub mod command;
pub mod compare;
pub mod draw;
pub mod engine;
pub mod experiment;
pub mod generate;
pub mod gpu_check;
pub mod measure;
pub mod page;
pub mod record;
pub mod run;
pub mod settings;
pub mod topology;
