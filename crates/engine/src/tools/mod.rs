//! What is done to a store that nobody has open: check, repair, inspect, destroy.
//!
//! The tools read formats themselves and never run an engine, so that damage which keeps a store
//! closed does not keep them from reading it. Only the public interface may import them.

pub mod check;
pub(crate) mod destroy;
pub mod inspect;
pub mod repair;
