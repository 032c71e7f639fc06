//! Plain values that every layer knows: errors, options, events as data, counters, and the policy
//! of stalls.
//!
//! This is the lowest layer. Nothing here opens a file, holds a lock over a call, or knows a table.

pub mod adoc;
pub(crate) mod allocator;
pub(crate) mod checkpoint;
pub mod detect;
pub mod error;
pub(crate) mod event;
pub(crate) mod fields;
pub(crate) mod job_stats;
pub(crate) mod limits;
pub(crate) mod metrics;
pub(crate) mod options;
pub mod pressure;
pub(crate) mod show;
pub(crate) mod striped;
