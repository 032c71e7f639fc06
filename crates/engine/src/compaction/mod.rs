//! Compaction: which tables to merge next, and what the jobs that do it need to know.

pub mod pick;
