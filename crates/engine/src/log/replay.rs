//! Reading a log back after a crash: the longest prefix that is whole, and a verdict on what follows it.
//!
//! Invariants: records are handed out in order, each verified whole before it is believed; reading ends at the first
//! bad place; if anything says that a later place was synced (the manifest, or any valid record behind the bad
//! place), that is corruption and not an end; otherwise all that follows is discarded and counted. No bytes make it
//! panic; memory is bounded by one window and one record, and a record's length is believed only when its header's
//! own check, written for exactly this place, holds.
//!
//! Threading: one task; it only reads.

use std::fmt;
use std::sync::Arc;

use siltstone_storage::{Access, ReadFile, Storage, StorageErrorKind};

use super::format::{
    BadHeader, BadRecord, ChainEnd, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, MAX_SEQUENCE, Plausible,
    RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordSeed,
    SEGMENT_HEADER_BYTES, SegmentHeader, chain, parse_segment_name, segment_name,
};
use super::position::Position;
use crate::batch::count_entries;
use crate::error::{Error, Result};
use crate::planted::{self, Bug};

/// Bytes read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// What the manifest says about the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// The store's id.
    pub store_id: u64,
    /// The segment at which history starts.
    pub start_segment: u32,
    /// The position that the manifest knows to be synced.
    pub synced: Position,
}

/// A record of the log, verified.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where it starts.
    pub position: Position,
    /// Where it ends.
    pub end: Position,
    /// What it is.
    pub kind: RecordKind,
    /// The number of its first entry; entry *i* has this number plus *i*.
    pub first_sequence: u64,
    /// How many sequence numbers it takes: its entries, or one for every kind but a group. An ingest may take more: how many is in its payload,
    /// which the log does not read.
    pub sequence_count: u64,
    /// Its payload; of a group, batch bodies that all decode (see [`crate::batch::Entries`]).
    pub payload: &'a [u8],
}

/// Why reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// There is no start segment.
    NoStartSegment,
    /// The start segment has no valid header.
    StartHeader(BadHeader),
    /// No valid record follows in the last segment read, and no segment goes on where its records end.
    Record {
        /// What was found instead of a record.
        found: BadRecord,
        /// A later segment of the chain that names this one but another end: this one has lost its tail, or that
        /// one was written before the loss.
        broken_link: Option<u32>,
    },
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopReason::NoStartSegment => write!(f, "no such segment"),
            StopReason::StartHeader(bad) => write!(f, "{bad}"),
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
                    "{found}, and segment {next} that continues another end of this one"
                )
            }
        }
    }
}

/// What lay behind the end of history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Discarded {
    /// Valid records of this chain.
    pub record_count: u64,
    /// Bytes of those records.
    pub record_bytes: u64,
    /// Later segments with a valid header, or with such records, of this chain.
    pub segment_count: u64,
}

/// What replay found.
#[derive(Clone, Debug)]
pub struct ReplayReport {
    /// Where history ends.
    pub end: Position,
    /// Records handed out.
    pub record_count: u64,
    /// Bytes of those records, headers and padding included.
    pub record_bytes: u64,
    /// Segments read.
    pub segment_count: u64,
    /// The last sequence number of the records handed out, if there was one.
    pub last_sequence: Option<u64>,
    /// The furthest position that the manifest or a record handed out knew to be synced.
    pub synced: Position,
    /// The highest number in any segment's name; 0 if there is none.
    pub highest_segment: u32,
    /// Why reading stopped.
    pub stop: StopReason,
    /// What was behind.
    pub discarded: Discarded,
}

/// Reads the log from `options.start_segment` on and hands every record to `apply`, in order.
///
/// A missing or damaged start segment is an empty history if nothing says that any of it was synced: a store that
/// lost power before its first sync. Segments below the start are not looked at.
///
/// # Errors
/// [`ErrorKind::Corruption`](crate::error::ErrorKind::Corruption) when a place that was synced is damaged, or when
/// a record with a good checksum makes no sense; [`ErrorKind::Unsupported`](crate::error::ErrorKind::Unsupported)
/// for a segment or a record of a later version; failed reads; whatever `apply` gives back.
pub fn replay(
    storage: &dyn Storage,
    options: &ReplayOptions,
    apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Result<ReplayReport> {
    let mut numbers: Vec<u32> = storage
        .list()?
        .iter()
        .filter_map(|object| parse_segment_name(&object.name))
        .collect();
    numbers.sort_unstable();
    let highest_segment = numbers.last().copied().unwrap_or(0);
    numbers.retain(|&number| number >= options.start_segment);
    Replay {
        storage,
        options,
        numbers,
        next_sequence: 0,
        report: ReplayReport {
            end: Position::new(options.start_segment, 0),
            record_count: 0,
            record_bytes: 0,
            segment_count: 0,
            last_sequence: None,
            synced: options.synced,
            highest_segment,
            stop: StopReason::NoStartSegment,
            discarded: Discarded::default(),
        },
    }
    .run(apply)
}

/// A segment being read, through one window.
struct Segment {
    number: u32,
    file: Arc<dyn ReadFile>,
    len: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl Segment {
    fn open(storage: &dyn Storage, number: u32) -> Result<Segment> {
        let file = storage.open(&segment_name(number))?;
        let len = file.len().min(MAX_SEGMENT_BYTES);
        file.advise(Access::Sequential, 0, len);
        Ok(Segment {
            number,
            file,
            len,
            window: Vec::new(),
            window_at: 0,
        })
    }

    /// `len` bytes from `at`. They must lie in the segment.
    #[inline]
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let inside =
            at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            self.fill(at, len)?;
        }
        let from = (at - self.window_at) as usize;
        Ok(&self.window[from..from + len])
    }

    #[cold]
    fn fill(&mut self, at: u64, len: usize) -> Result<()> {
        let want = (len.max(WINDOW_BYTES) as u64).min(self.len.saturating_sub(at)) as usize;
        if want < len {
            return Err(Error::corruption(
                segment_name(self.number),
                "the segment became shorter while it was read",
            )
            .at(at));
        }
        if self.window.capacity() > 4 * WINDOW_BYTES && want <= WINDOW_BYTES {
            // One large record must not pin its memory for the rest of the log.
            self.window = Vec::new();
        }
        self.window.resize(want, 0);
        self.window_at = at;
        self.file
            .read_at(at, &mut self.window)
            .inspect_err(|_| self.window.clear())?;
        Ok(())
    }

    fn header_bytes(&mut self) -> Result<Vec<u8>> {
        let len = self.len.min(MAX_HEADER_BYTES as u64) as usize;
        Ok(self.bytes(0, len)?.to_vec())
    }

    /// The header of a record at `at`.
    #[inline]
    fn plausible(
        &mut self,
        at: u64,
        seed: RecordSeed,
    ) -> Result<std::result::Result<Plausible, BadRecord>> {
        let len = self.len;
        if at + RECORD_HEADER_BYTES as u64 > len {
            return Ok(Err(BadRecord::SegmentFull));
        }
        let bytes: &[u8; RECORD_HEADER_BYTES] = self
            .bytes(at, RECORD_HEADER_BYTES)?
            .try_into()
            .expect("as long as asked for");
        Ok(RecordHeader::decode(bytes, seed, at as u32, len))
    }

    /// Verifies the rest of a record in pieces, without holding it whole.
    fn verify_in_pieces(&mut self, at: u64, record: &Plausible) -> Result<bool> {
        let mut at = at + RECORD_HEADER_BYTES as u64;
        let mut left = record.header.payload_bytes as usize;
        let mut checksum = record.partial;
        while left > 0 {
            let piece = left.min(WINDOW_BYTES);
            checksum = crc32c::crc32c_append(checksum, self.bytes(at, piece)?);
            at += piece as u64;
            left -= piece;
        }
        if record.verify_checksum(checksum).is_err() {
            return Ok(false);
        }
        let padding = (u64::from(record.end) - at) as usize;
        Ok(self.bytes(at, padding)?.iter().all(|&b| b == 0))
    }
}

/// Where the records of one segment end, and why.
struct SegmentEnd {
    end: ChainEnd,
    found: BadRecord,
}

struct Replay<'a> {
    storage: &'a dyn Storage,
    options: &'a ReplayOptions,
    /// Segments from the start on, ascending.
    numbers: Vec<u32>,
    next_sequence: u64,
    report: ReplayReport,
}

impl Replay<'_> {
    #[cold]
    fn another_store(&self, segment: u32, found: u64) -> Error {
        Error::corruption(
            segment_name(segment),
            "the log segment belongs to another store",
        )
        .at(16)
        .expected(format_args!("store id {:016x}", self.options.store_id))
        .found(format_args!("store id {found:016x}"))
        .advice("put the store's own log files back")
    }

    fn run(mut self, apply: &mut dyn FnMut(Record<'_>) -> Result<()>) -> Result<ReplayReport> {
        let start = self.options.start_segment;
        if self.numbers.first() != Some(&start) {
            let salts = self.salts_of_successors(start)?;
            return self.finish(StopReason::NoStartSegment, &salts);
        }
        let mut segment = Segment::open(self.storage, start)?;
        let bytes = segment.header_bytes()?;
        let (header, checksum) = match SegmentHeader::decode(&bytes, start) {
            Ok(found) => found,
            Err(BadHeader::Version(version)) => return Err(unsupported_version(start, version)),
            Err(BadHeader::Number(own)) if self.is_displaced(&bytes, own) => {
                return Err(displaced(start, own));
            }
            // A recycled file may still hold an old header of this store. No crash leaves another store's.
            Err(BadHeader::Number(_))
                if SegmentHeader::store_id_field(&bytes) != Some(self.options.store_id) =>
            {
                let found = SegmentHeader::store_id_field(&bytes).unwrap_or_default();
                return Err(self.another_store(start, found));
            }
            Err(bad) => {
                // Records that validate with what stands in the salt's place are real all the same.
                let mut salts = self.salts_of_successors(start)?;
                salts.extend(SegmentHeader::salt_field(&bytes));
                salts.dedup();
                return self.finish(StopReason::StartHeader(bad), &salts);
            }
        };
        if header.store_id != self.options.store_id {
            return Err(self.another_store(start, header.store_id));
        }
        let salt = header.salt;
        let mut chained = checksum;
        loop {
            self.report.segment_count += 1;
            let last = self.read_segment(&mut segment, salt, chained, apply)?;
            match self.successor(salt, last.end)? {
                Successor::Goes(next, checksum) => {
                    segment = next;
                    chained = checksum;
                }
                Successor::Ends(broken_link) => {
                    let stop = StopReason::Record {
                        found: last.found,
                        broken_link,
                    };
                    return self.finish(stop, &[salt]);
                }
            }
        }
    }

    /// Hands out the records of one segment up to the first bad place.
    fn read_segment(
        &mut self,
        segment: &mut Segment,
        salt: u64,
        mut chained: u32,
        apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        let number = segment.number;
        let seed = RecordSeed::new(salt, number);
        let mut at = SEGMENT_HEADER_BYTES as u64;
        loop {
            let position = Position::new(number, at as u32);
            self.report.end = position;
            let found = match segment.plausible(at, seed)? {
                Err(bad) => Err(bad),
                Ok(plausible) => {
                    let whole = segment.bytes(at, (u64::from(plausible.end) - at) as usize)?;
                    let rest = &whole[RECORD_HEADER_BYTES..];
                    plausible.verify(rest).map(|()| (plausible, rest))
                }
            };
            let (record, rest) = match found {
                Ok(found) => found,
                Err(found)
                    if planted::is(Bug::GoOnPastBadRecord) && found != BadRecord::SegmentFull =>
                {
                    at += RECORD_ALIGN_BYTES as u64;
                    continue;
                }
                Err(found) => {
                    let end = ChainEnd {
                        segment: number,
                        offset: at as u32,
                        checksum: chained,
                    };
                    return Ok(SegmentEnd { end, found });
                }
            };
            let payload = &rest[..record.header.payload_bytes as usize];
            let (kind, sequence_count) = self.understand(position, &record.header, payload)?;
            let end = Position::new(number, record.end);
            let first_sequence = record.header.first_sequence;
            apply(Record {
                position,
                end,
                kind,
                first_sequence,
                sequence_count,
                payload,
            })?;
            self.next_sequence = first_sequence + sequence_count;
            if sequence_count > 0 {
                self.report.last_sequence = Some(self.next_sequence - 1);
            }
            self.report.synced = self.report.synced.max(record.header.synced);
            self.report.record_count += 1;
            self.report.record_bytes += u64::from(record.end) - at;
            chained = chain(chained, record.stored);
            at = u64::from(record.end);
        }
    }

    /// Kind and number of sequence numbers of a record with a good checksum. What makes no sense here is no torn
    /// write: it is refused, not taken for the end.
    fn understand(
        &self,
        position: Position,
        header: &RecordHeader,
        payload: &[u8],
    ) -> Result<(RecordKind, u64)> {
        let file = || segment_name(position.segment);
        let at = u64::from(position.offset);
        let Some(kind) = RecordKind::from_number(header.kind) else {
            return Err(Error::unsupported(
                "a log record of a kind that this version does not know",
            )
            .in_file(file())
            .at(at)
            .expected("kinds 1 to 4")
            .found(header.kind)
            .advice("open the store with the version that wrote it"));
        };
        if header.synced > position {
            return Err(Error::corruption(
                file(),
                "a log record says that bytes after it were synced before it",
            )
            .at(at)
            .expected(format_args!("a position up to {position}"))
            .found(header.synced));
        }
        let sequence_count = match kind {
            RecordKind::Group => count_entries(payload).map_err(|bad| {
                bad.into_error("a log record's payload")
                    .in_file(file())
                    .at(at)
            })?,
            _ => 1,
        };
        let fits = header.first_sequence + sequence_count <= MAX_SEQUENCE + 1;
        if header.first_sequence < self.next_sequence && !planted::is(Bug::NumberIsNotChecked)
            || !fits
        {
            return Err(
                Error::corruption(file(), "a log record's sequence numbers do not ascend")
                    .at(at)
                    .expected(format_args!("{} to {MAX_SEQUENCE}", self.next_sequence))
                    .found(format_args!(
                        "{sequence_count} from {} on",
                        header.first_sequence
                    )),
            );
        }
        Ok((kind, sequence_count))
    }

    /// The segment that goes on where `end` is.
    fn successor(&self, salt: u64, end: ChainEnd) -> Result<Successor> {
        for &number in self.numbers.iter().filter(|&&n| n > end.segment) {
            let (segment, header) = self.header(number)?;
            let Some((header, checksum)) = header else {
                continue;
            };
            // A segment of another chain is an orphan of a recovery that did not finish.
            if header.salt != salt || header.previous.segment != end.segment {
                continue;
            }
            return Ok(
                if (header.previous == end || planted::is(Bug::GoOnPastBrokenChain))
                    && !planted::is(Bug::StopAtSegmentEnd)
                {
                    Successor::Goes(segment, checksum)
                } else {
                    Successor::Ends(Some(number))
                },
            );
        }
        Ok(Successor::Ends(None))
    }

    /// A later segment and its header, if that is valid and this store's.
    fn header(&self, number: u32) -> Result<(Segment, Option<(SegmentHeader, u32)>)> {
        let mut segment = Segment::open(self.storage, number)?;
        let bytes = segment.header_bytes()?;
        let header = match SegmentHeader::decode(&bytes, number) {
            Ok(found) => Some(found).filter(|(header, _)| header.store_id == self.options.store_id),
            Err(BadHeader::Version(version)) => return Err(unsupported_version(number, version)),
            Err(BadHeader::Number(own)) if self.is_displaced(&bytes, own) => {
                return Err(displaced(number, own));
            }
            Err(_) => None,
        };
        Ok((segment, header))
    }

    /// Whether a file holds a segment of this history under another segment's name. A file that a crash left between its recycling and its new
    /// header holds one from before the start: only those are recycled.
    fn is_displaced(&self, header: &[u8], own: u64) -> bool {
        SegmentHeader::store_id_field(header) == Some(self.options.store_id)
            && own >= u64::from(self.options.start_segment)
    }

    /// Salts of the chains that later segments continue from segment `start`, whose own header is not to be had.
    fn salts_of_successors(&self, start: u32) -> Result<Vec<u64>> {
        let mut salts = Vec::new();
        for &number in self.numbers.iter().filter(|&&n| n > start) {
            if let (_, Some((header, _))) = self.header(number)? {
                let continues = header.previous.segment >= start && header.previous.segment != 0;
                if continues && !salts.contains(&header.salt) {
                    salts.push(header.salt);
                }
            }
        }
        Ok(salts)
    }

    /// Reading stopped at `report.end`: is it the end of history, or damage?
    fn finish(mut self, stop: StopReason, salts: &[u64]) -> Result<ReplayReport> {
        let end = self.report.end;
        if self.report.synced > end {
            let synced = self.report.synced;
            return Err(corruption(end, &stop, synced, "the manifest"));
        }
        let numbers = std::mem::take(&mut self.numbers);
        for number in numbers.into_iter().filter(|&n| n >= end.segment) {
            let mut segment = match self.storage.open(&segment_name(number)) {
                Err(error) if error.kind == StorageErrorKind::NotFound => continue,
                Err(error) => return Err(error.into()),
                Ok(_) => Segment::open(self.storage, number)?,
            };
            let before = self.report.discarded.record_count;
            for &salt in salts {
                let from = if number == end.segment {
                    u64::from(end.offset)
                } else {
                    0
                };
                self.search(&mut segment, salt, from, &stop)?;
            }
            if number > end.segment {
                let (_, header) = self.header(number)?;
                let ours = header.is_some_and(|(header, _)| salts.contains(&header.salt));
                if ours || self.report.discarded.record_count > before {
                    self.report.discarded.segment_count += 1;
                }
            }
        }
        self.report.stop = stop;
        Ok(self.report)
    }

    /// Looks for valid records of the chain behind the end: one that knows of a later synced place makes the end a
    /// corruption, all others are counted.
    fn search(
        &mut self,
        segment: &mut Segment,
        salt: u64,
        from: u64,
        stop: &StopReason,
    ) -> Result<()> {
        let seed = RecordSeed::new(salt, segment.number);
        let mut at = from.max(SEGMENT_HEADER_BYTES as u64);
        while at + (RECORD_HEADER_BYTES as u64) <= segment.len {
            let step = match segment.plausible(at, seed)? {
                Err(_) => RECORD_ALIGN_BYTES as u64,
                Ok(record) if segment.verify_in_pieces(at, &record)? => {
                    if record.header.synced > self.report.end {
                        let by = format!(
                            "a valid record at {}",
                            Position::new(segment.number, at as u32)
                        );
                        return Err(corruption(self.report.end, stop, record.header.synced, &by));
                    }
                    let bytes = u64::from(record.end) - at;
                    self.report.discarded.record_count += 1;
                    self.report.discarded.record_bytes += bytes;
                    bytes
                }
                Ok(_) => RECORD_ALIGN_BYTES as u64,
            };
            at += step;
        }
        Ok(())
    }
}

/// Whether the log goes on behind a segment's end.
enum Successor {
    /// In this segment, whose header has this checksum.
    Goes(Segment, u32),
    /// No; a segment may name this one with another end.
    Ends(Option<u32>),
}

#[cold]
fn corruption(end: Position, stop: &StopReason, synced: Position, by: &str) -> Error {
    Error::corruption(segment_name(end.segment), "the log is damaged at a place that was synced")
        .at(u64::from(end.offset))
        .expected(format_args!("a valid record or segment header, because {by} says that the log was synced through {synced}"))
        .found(stop)
        .advice(
            "restore the log from a copy, or make a new store of what can be read with `silt repair`",
        )
}

#[cold]
fn displaced(number: u32, own: u64) -> Error {
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
fn unsupported_version(number: u32, version: u32) -> Error {
    Error::unsupported("a log segment of a format version that this build does not know")
        .in_file(segment_name(number))
        .at(8)
        .expected(format_args!("version {}", super::format::VERSION))
        .found(format_args!("version {version}"))
        .advice("open the store with the version that wrote it")
}
