//! Runs a workload on a store and finds out what it costs.

pub mod error;
pub mod population;

mod operations;

use crate::settings::Kind;

pub use error::RunError;
