//! The report of a replay: where and why history ends, what was skipped and discarded, and the
//! errors with which a damaged log is refused.
//!
//! Threading: plain data.

use std::fmt;

use super::format::{BadHeader, BadRecord, SEGMENT_HEADER_BYTES, VERSION, segment_name};
use super::position::{LogStart, Position};
use crate::types::error::Error;

/// Why reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The start segment does not exist.
    NoStartSegment,
    /// The start segment has no valid header.
    StartHeader(BadHeader),
    /// The following bytes cannot be read, and are not needed. The text is the storage's error.
    Unreadable(String),
    /// No valid record follows in the last segment that was read, and no segment continues where
    /// its records end.
    Record {
        /// What was found instead of a record.
        found: BadRecord,
        /// A later segment of the chain that follows another end of this segment: this one has lost
        /// its last records, or that one was written before the loss.
        broken_link: Option<u32>,
    },
}

impl StopReason {
    /// Whether an incomplete record begins at the end.
    pub fn is_torn(&self) -> bool {
        matches!(self, StopReason::Record { found, .. } if found.is_torn())
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::NoStartSegment => write!(f, "no such segment"),
            StopReason::StartHeader(bad) => write!(f, "{bad}"),
            StopReason::Unreadable(why) => write!(f, "bytes that cannot be read: {why}"),
            StopReason::Record {
                found,
                broken_link: None,
            } => write!(f, "{found}"),
            StopReason::Record {
                found,
                broken_link: Some(next),
            } => {
                write!(
                    f,
                    "{found}, and segment {next}, which follows another end of this one"
                )
            }
        }
    }
}

/// Damage that was skipped, because nothing before the log's start is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedDamage {
    /// Where the damage was found.
    pub from: Position,
    /// The log's start, at which reading continued. The damage lies between both positions.
    pub through: Position,
    /// What was found instead of a record.
    pub found: StopReason,
    /// Whether the damage is known to end before the log's start. If it is not, the damage may
    /// reach further: in a store that was not closed, the last writes may be missing.
    pub is_bounded: bool,
    /// Whether the segment of the log's start exists and reaches it. If not, the damage is skipped
    /// only in a store that was closed.
    pub keeps_start: bool,
    /// The beginning of the next segment, if the log continued there. From this position on
    /// everything is sound.
    pub next: Option<LogStart>,
}

impl SkippedDamage {
    /// The name of the segment's file.
    pub fn file(&self) -> String {
        segment_name(self.from.segment)
    }

    /// The number of bytes from the damage to the log's start.
    pub fn bytes(&self) -> u64 {
        u64::from(self.through.offset.saturating_sub(self.from.offset))
    }

    /// The damage as an error, for a report. `closed` says whether the store was closed.
    pub fn to_error(&self, closed: bool) -> Error {
        let end = self.through.offset;
        let expected = match closed || self.is_bounded {
            true => {
                format!("records up to byte {end}; tables hold all of them, so nothing is lost")
            }
            false => format!(
                "records up to byte {end}; tables hold all of them, but the store was not closed: \
                 if the damage reaches further, writes that were not synced are missing"
            ),
        };
        let message = "the log is damaged in a part that is not needed";
        self.error(message, expected)
            .advice("open the store for writing once, which begins a new log")
    }

    /// The damage as an error, for a report that also has damaged or missing tables. The log may
    /// still have their data, and an open for writing, if it succeeds, deletes it.
    pub fn to_error_beside_damaged_tables(&self) -> Error {
        let end = self.through.offset;
        let message = "the log is damaged in a part that sound tables would make superfluous, but \
                       tables are damaged as well";
        self.error(
            message,
            format!("records up to byte {end}, or sound tables"),
        )
        .advice(
            "do not open the store for writing, which begins a new log: restore tables and log \
                 from a copy, or make a new store of what can be read with `silt repair`",
        )
    }

    fn error(&self, message: &'static str, expected: String) -> Error {
        Error::corruption(self.file(), message)
            .at(self.from.offset.into())
            .expected(expected)
            .found(&self.found)
    }
}

/// What followed the end of history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// The number of valid records of this chain.
    pub record_count: u64,
    /// Bytes of those records.
    pub record_bytes: u64,
    /// The number of later segments with a valid header, or with such records, of this chain.
    pub segment_count: u64,
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct ReplayReport {
    /// Where history ends.
    pub end: Position,
    /// The number of records that were passed on.
    pub record_count: u64,
    /// Bytes of those records, including headers and padding.
    pub record_bytes: u64,
    /// The number of segments that were read.
    pub segment_count: u64,
    /// The last sequence number of these records; `None` if there was none.
    pub last_sequence: Option<u64>,
    /// The last position that the manifest or one of these records knew to be synced.
    pub synced: Position,
    /// The highest number in the name of a segment; 0 if there is none.
    pub highest_segment: u32,
    /// Why reading stopped.
    pub stop: StopReason,
    /// What followed the end.
    pub discarded: Discarded,
    /// Damage before the log's start that was skipped.
    pub skipped: Option<SkippedDamage>,
}

impl ReplayReport {
    /// Whether the segment that the manifest names as the first is missing although it is needed.
    /// Its name was durable before a manifest named it, so a crash cannot have caused this.
    pub fn lacks_start(&self) -> bool {
        self.stop == StopReason::NoStartSegment && self.skipped.is_none()
    }
}

/// The error for a start segment of this store, with a valid header, that is not the one that the
/// manifest means: it was written after another open, perhaps in a copy of the store.
#[cold]
pub(crate) fn another_chain(segment: u32, expected: u64, found: u64) -> Error {
    Error::corruption(
        segment_name(segment),
        "the log segment is not the one that the manifest names, but one of another open or of a \
         copy of the store",
    )
    .at(32)
    .expected(format_args!("chain {expected:016x}"))
    .found(format_args!("chain {found:016x}"))
    .advice("put back the log files that belong to this manifest")
}

/// The error for the log of a closed store that ends too early.
#[cold]
pub(super) fn ends_before_close(end: Position, stop: &StopReason, closed: Position) -> Error {
    let found = match closed.segment > end.segment {
        true => format!("{stop}, and no segment that continues there"),
        false => stop.to_string(),
    };
    Error::corruption(
        segment_name(end.segment),
        "the log was damaged after the store was closed",
    )
    .at(u64::from(end.offset))
    .expected(format_args!(
        "records through {closed}: the store was closed with its log ending there"
    ))
    .found(found)
    .advice(RESTORE_THE_LOG)
}

/// The error for a chain with a record behind the log that the manifest describes. An open writes
/// the manifest that names its chain before any write, so there was a later manifest than this one.
#[cold]
pub(super) fn manifest_is_older(number: u32, end: Position) -> Error {
    Error::corruption(segment_name(number), "the manifest is older than the log")
        .at(SEGMENT_HEADER_BYTES as u64)
        .expected(format_args!(
            "nothing behind {end}, where the log of the manifest ends"
        ))
        .found("a record that was written after a later open of the store")
        .advice(
            "put back CURRENT and the manifest that belong to this log, or make a new store of \
             what can be read with `silt repair`",
        )
}

/// The error for damage that begins before the log's start and reaches behind it.
#[cold]
pub(super) fn reaches_further(skipped: &SkippedDamage) -> Error {
    let start = skipped.through;
    Error::corruption(
        skipped.file(),
        "the log is damaged, and whole records follow the damage",
    )
    .at(skipped.from.offset.into())
    .expected(format_args!(
        "damage that ends before {start}, where the needed part begins"
    ))
    .found(&skipped.found)
    .advice(RESTORE_THE_LOG)
}

/// What the user can do about a log that is damaged in a part that is needed.
const RESTORE_THE_LOG: &str =
    "restore the log from a copy, or make a new store of what can be read with `silt repair`";

#[cold]
pub(super) fn corruption(end: Position, stop: &StopReason, synced: Position, by: &str) -> Error {
    Error::corruption(
        segment_name(end.segment),
        "the log is damaged at a place that was synced",
    )
    .at(u64::from(end.offset))
    .expected(format_args!(
        "a valid record or segment header, because {by} says that the log was synced through \
             {synced}"
    ))
    .found(stop)
    .advice(RESTORE_THE_LOG)
}

#[cold]
pub(super) fn displaced(number: u32, own: u64) -> Error {
    Error::corruption(
        segment_name(number),
        "the log segment has another segment's name",
    )
    .at(24)
    .expected(format_args!("segment {number}"))
    .found(format_args!("segment {own}"))
    .advice("give the log's files their own names back")
}

#[cold]
pub(super) fn unsupported_version(number: u32, version: u32) -> Error {
    Error::unsupported("a log segment of a format version that this build does not know")
        .in_file(segment_name(number))
        .at(8)
        .expected(format_args!("version {}", VERSION))
        .found(format_args!("version {version}"))
        .advice("open the store with the version that wrote it")
}
