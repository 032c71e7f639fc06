//! Compaction: what to merge next, where it runs, and how its outcome is installed.

pub(crate) mod install;
pub(crate) mod manual;
pub mod pick;
pub mod place;
pub(crate) mod rate;
pub(crate) mod run;
pub mod schedule;
