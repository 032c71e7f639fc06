//! The path of a write: the queue of writers, its leader, and stalls.
//!
//! Nothing here knows jobs.

pub(crate) mod pace;
pub(crate) mod queue;
pub mod stalls;
pub(crate) mod write;
