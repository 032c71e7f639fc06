//! Flushes and compactions: what is reserved for them, who runs them, how they are built, run and
//! installed, and how a caller waits for them.
//!
//! Nothing here knows the calls of users.

pub(crate) mod build;
pub(crate) mod flush;
pub(crate) mod install;
pub(crate) mod manual;
pub(crate) mod rate;
pub mod schedule;
pub mod sides;
