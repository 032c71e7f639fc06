//! Whether a device pays: what a host can measure of it, and what follows.
//!
//! [`merge::measure`] merges tables in memory; host and device both call it. The client's
//! `probe.rs` measures the link. [`predict`](predict::predict) turns the figures into one answer
//! for each shape, and is a pure function.
//!
//! Threading: plain values.

pub mod merge;
pub mod predict;

pub use crate::wire::machine::{Machine, MergeRate};
pub use merge::Format;
pub use predict::{Binds, Link, Prediction, Shape, Side, Verdict, predict};
