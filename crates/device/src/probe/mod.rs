//! Whether a device pays off: what a host can measure about it, and what follows from that.
//!
//! [`merge::measure`] merges tables in memory. The host and the device both call it. The client's
//! `probe.rs` measures the link. [`predict`](predict::predict) is a pure function that turns the
//! measurements into one prediction for each shape.
//!
//! Threading: plain values.

pub mod merge;
pub mod predict;

pub use crate::wire::machine::{Machine, MergeRate};
pub use merge::Format;
pub use predict::{
    Binds, JOB_BYTES, JOB_SUBJOBS_MAX, Link, Prediction, Shape, Side, Verdict, predict,
};
