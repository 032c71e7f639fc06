//! The log: every batch, ingest, keyspace create and drop, in order, before it is acknowledged.
//!
//! What it is: one log for all keyspaces, in numbered segments. [`LogWriter`] appends records and
//! syncs them, [`replay`] reads them back after a crash, and everything that reads a segment does so
//! through `reader.rs`. Formats are in [`mod@format`] and `docs/format/log.md`, the promises in
//! `docs/rfc/0001`.
//!
//! Invariants:
//! - A record lies whole in one segment; a record is valid only at the place for which it was written (its checksum
//!   covers salt, segment number and offset), so neither recycled bytes nor a recycled name can pass for history.
//! - A segment's header names its predecessor, the offset at which that one's records end, and the checksum chained
//!   over them; replay goes on only where all three hold. So what is read is a prefix of what was written.
//! - What was synced is a [`Position`], carried by later records and by the manifest. Damage before a position that
//!   anything claims was synced is corruption; anything else is the end of history.
//!
//! Threading: see [`LogWriter`]; `replay` runs in one task.

pub(crate) mod bodies;
pub mod format;
pub(crate) mod position;
pub(crate) mod reader;
pub(crate) mod replay;
mod report;
mod segments;
mod writer;

pub use format::RecordKind;
pub use position::Position;
pub use replay::{Record, ReplayOptions, replay};
pub(crate) use report::another_chain;
pub use report::{Discarded, PassedDamage, ReplayReport, StopReason};
pub use writer::{LogConfig, LogOptions, LogStats, LogWriter};
