//! The tools for a store that is not open: check, repair, inspect, destroy.
//!
//! The tools read the formats themselves and never run an engine, so damage that keeps a store from
//! being opened does not keep them from reading it. Only the public interface may import them.

pub mod check;
pub(crate) mod destroy;
pub mod inspect;
pub mod repair;
