//! The log: every batch, ingest, and create or drop of a keyspace, in order, before it is
//! acknowledged.
//!
//! There is one log for all keyspaces, in numbered segments. [`LogWriter`] appends records and
//! syncs them; [`replay`] reads them back after a crash. The formats are in [`mod@format`] and
//! `docs/format/log.md`, the promises in `docs/rfc/0001-log-order-recovery.md`.
//!
//! Invariants:
//! - A record lies in one segment. It is valid only at the position for which it was written (its
//!   checksum covers salt, segment number and offset), so neither recycled bytes nor a recycled
//!   name can pass for history.
//! - A segment's header names its predecessor, the offset at which the records of that segment end,
//!   and the checksum chained over them. Replay continues only if all three match, so what is read
//!   is a prefix of what was written.
//! - What was synced is a [`Position`], which later records and the manifest contain. Damage before
//!   a position that is known to be synced is corruption; other damage is the end of history.
//!
//! Threading: see [`LogWriter`]. `replay` runs in one task.

pub(crate) mod bodies;
pub mod format;
pub(crate) mod position;
pub(crate) mod reader;
pub(crate) mod replay;
mod report;
mod segments;
pub(crate) mod values;
mod writer;

pub use format::RecordKind;
pub use position::Position;
pub use replay::{Record, ReplayOptions, replay};
pub(crate) use report::another_chain;
pub use report::{Discarded, ReplayReport, SkippedDamage, StopReason};
pub use values::SegmentPart;
pub use writer::{LogConfig, LogOptions, LogStats, LogWriter};
