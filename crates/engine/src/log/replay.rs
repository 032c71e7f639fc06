//! Reading a log back after a crash: the longest prefix that is whole, and a verdict on what follows it.
//!
//! Invariants: records are handed out in order, each verified whole before it is believed; reading ends at the first
//! bad place; if anything says that a later place was synced (the manifest, or any valid record behind the bad
//! place), that is corruption and not an end; otherwise all that follows is discarded and counted. Damage before
//! the log's start, where nothing is needed, is passed over and reported (RFC 1, section 15). No bytes make it
//! panic; memory is bounded by one window and one record, and a record's length is believed only when its header's
//! own check, written for exactly this place, holds.
//!
//! Threading: one task; it only reads.

use std::fmt;
use std::sync::Arc;

use siltstone_storage::{Access, ReadFile, Storage, StorageErrorKind};

use super::format::{
    BadHeader, BadRecord, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, MAX_SEQUENCE, Plausible,
    RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader, RecordKind, RecordSeed,
    SEGMENT_HEADER_BYTES, SegmentHeader, chain, parse_segment_name, segment_name,
};
use super::position::Position;
use crate::batch::count_entries;
use crate::error::{Error, Result};
use crate::planted::{self, Bug};
use crate::version::{LogPosition, StoreState};

/// Bytes read at once.
const WINDOW_BYTES: usize = 1 << 20;

/// What the manifest says about the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// The store's id.
    pub store_id: u64,
    /// Where history starts. Reading begins with the segment, so that everything in it is checked;
    /// nothing before the offset is needed. At offset 0 the whole segment is needed.
    pub start: Position,
    /// The salt of the chain that the start lies in, for a segment that has lost its header. It is
    /// not used at offset 0.
    pub salt: u64,
    /// The position that the manifest knows to be synced.
    pub synced: Position,
    /// The store was closed, and its log ended exactly at `synced`.
    pub closed: bool,
}

impl ReplayOptions {
    /// What the manifest's state says. The state has passed its checks, so its positions fit.
    pub fn of(state: &StoreState, store_id: u64) -> ReplayOptions {
        let position = |at: LogPosition| Position::new(at.segment as u32, at.offset as u32);
        ReplayOptions {
            store_id,
            start: position(state.log_start.position()),
            salt: state.log_start.salt,
            synced: position(state.log_synced),
            closed: state.closed,
        }
    }

    /// A log of which nothing is known but that it starts with this segment.
    pub fn from_segment(segment: u32, store_id: u64) -> ReplayOptions {
        ReplayOptions {
            store_id,
            start: Position::new(segment, 0),
            salt: 0,
            synced: Position::ZERO,
            closed: false,
        }
    }
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

/// Damage that was passed over, because nothing before the log's start is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassedDamage {
    /// Where the damage was met.
    pub from: Position,
    /// The log's start, where reading went on. The damage lies between the two.
    pub through: Position,
    /// What was found instead of a record.
    pub found: StopReason,
    /// What follows shows that the damage ends before the log's start. Otherwise it may reach
    /// further: in a store that was not closed, the last writes may be missing.
    pub is_bounded: bool,
}

impl PassedDamage {
    /// The segment's file.
    pub fn file(&self) -> String {
        segment_name(self.from.segment)
    }

    /// Bytes from the place where it was met to the log's start.
    pub fn bytes(&self) -> u64 {
        u64::from(self.through.offset.saturating_sub(self.from.offset))
    }

    /// The damage as an error, for those who report all damage. `closed`: whether the store was.
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
        Error::corruption(
            self.file(),
            "the log is damaged in a part that is not needed",
        )
        .at(self.from.offset.into())
        .expected(expected)
        .found(&self.found)
        .advice("open the store for writing once, which begins a new log")
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
    /// Damage before the log's start.
    pub passed: Option<PassedDamage>,
}

impl ReplayReport {
    /// Whether the segment that the manifest names as the first is missing although it is needed.
    /// Its name was durable before a manifest named it, so this is no crash.
    pub fn lacks_start(&self) -> bool {
        self.stop == StopReason::NoStartSegment && self.passed.is_none()
    }
}

/// Reads the log from the segment of `options.start` on and hands every record to `apply`, in order.
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
    numbers.retain(|&number| number >= options.start.segment);
    Replay {
        storage,
        options,
        numbers,
        next_sequence: 0,
        report: ReplayReport {
            end: Position::new(options.start.segment, 0),
            record_count: 0,
            record_bytes: 0,
            segment_count: 0,
            last_sequence: None,
            synced: options.synced,
            highest_segment,
            stop: StopReason::NoStartSegment,
            discarded: Discarded::default(),
            passed: None,
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
    position: Position,
    /// The segment's chained checksum; `None` if not all of its records could be read.
    checksum: Option<u32>,
    stop: StopReason,
}

/// What became of the start segment.
enum Start {
    /// It was read to this end; its chain has this salt.
    Read(SegmentEnd, u64),
    /// It could not be; records behind it may have these salts.
    Bad(StopReason, Vec<u64>),
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
        let (mut last, salt) = match self.begin(apply)? {
            Start::Read(last, salt) => (last, salt),
            Start::Bad(stop, salts) => return self.finish(stop, &salts),
        };
        loop {
            match self.successor(salt, &last)? {
                Successor::Goes(mut segment, checksum) => {
                    self.report.segment_count += 1;
                    let at = SEGMENT_HEADER_BYTES as u64;
                    last = self.read_segment(&mut segment, salt, at, Some(checksum), apply)?;
                }
                Successor::Ends(link) => {
                    let mut stop = last.stop;
                    if let StopReason::Record { broken_link, .. } = &mut stop {
                        *broken_link = link;
                    }
                    return self.finish(stop, &[salt]);
                }
            }
        }
    }

    /// Reads the start segment.
    fn begin(&mut self, apply: &mut dyn FnMut(Record<'_>) -> Result<()>) -> Result<Start> {
        let start = self.options.start.segment;
        let beginning = Position::new(start, 0);
        if self.numbers.first() != Some(&start) {
            let stop = StopReason::NoStartSegment;
            return if self.may_pass(None, &stop) {
                self.pass(None, self.options.salt, beginning, stop, apply)
            } else {
                Ok(Start::Bad(stop, self.salts_of_successors(start)?))
            };
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
                let stop = StopReason::StartHeader(bad);
                if self.may_pass(Some(&segment), &stop) {
                    let salt = self.options.salt;
                    return self.pass(Some(segment), salt, beginning, stop, apply);
                }
                // Records that validate with what stands in the salt's place are real all the same.
                let mut salts = self.salts_of_successors(start)?;
                salts.extend(SegmentHeader::salt_field(&bytes));
                salts.dedup();
                return Ok(Start::Bad(stop, salts));
            }
        };
        if header.store_id != self.options.store_id {
            return Err(self.another_store(start, header.store_id));
        }
        self.report.segment_count += 1;
        let at = SEGMENT_HEADER_BYTES as u64;
        let last = self.read_segment(&mut segment, header.salt, at, Some(checksum), apply)?;
        if last.position < self.options.start && self.may_pass(Some(&segment), &last.stop) {
            return self.pass(Some(segment), header.salt, last.position, last.stop, apply);
        }
        Ok(Start::Read(last, header.salt))
    }

    /// Whether damage before the log's start may be passed over. In a store that was closed it
    /// always may: that the log ends where it ended at the close proves that nothing else is
    /// damaged. In one that was not closed, the file must be the right one and reach the start:
    /// a manifest that lost its last edits names a start segment that was deleted or recycled
    /// since, and a file that is cut before the start has lost what is behind it too.
    fn may_pass(&self, segment: Option<&Segment>, stop: &StopReason) -> bool {
        let start = self.options.start;
        let is_whole = match stop {
            StopReason::NoStartSegment | StopReason::StartHeader(BadHeader::Number(_)) => false,
            _ => segment.is_some_and(|segment| segment.len >= u64::from(start.offset)),
        };
        start.offset > 0 && (self.options.closed || is_whole || planted::is(Bug::ClosedIsNotAsked))
    }

    /// Goes on at the log's start, past damage that was met at `from`.
    fn pass(
        &mut self,
        segment: Option<Segment>,
        salt: u64,
        from: Position,
        found: StopReason,
        apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Start> {
        let start = self.options.start;
        let mut passed = PassedDamage {
            from,
            through: start,
            found: found.clone(),
            is_bounded: false,
        };
        self.report.end = start;
        let last = match segment {
            Some(mut segment) => {
                passed.is_bounded = ends_before(&mut segment, salt, from, start)?;
                self.read_segment(&mut segment, salt, start.offset.into(), None, apply)?
            }
            None => SegmentEnd {
                position: start,
                checksum: None,
                stop: found,
            },
        };
        self.report.passed = Some(passed);
        Ok(Start::Read(last, salt))
    }

    /// Hands out the records of one segment, from `at` up to the first bad place.
    fn read_segment(
        &mut self,
        segment: &mut Segment,
        salt: u64,
        mut at: u64,
        mut chained: Option<u32>,
        apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        let number = segment.number;
        let seed = RecordSeed::new(salt, number);
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
                    return Ok(SegmentEnd {
                        position,
                        checksum: chained,
                        stop: StopReason::Record {
                            found,
                            broken_link: None,
                        },
                    });
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
            chained = chained.map(|checksum| chain(checksum, record.stored));
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

    /// The segment that goes on where the records of the last one end.
    fn successor(&self, salt: u64, last: &SegmentEnd) -> Result<Successor> {
        let end = last.position;
        for &number in self.numbers.iter().filter(|&&n| n > end.segment) {
            let (segment, header) = self.header(number)?;
            let Some((header, checksum)) = header else {
                continue;
            };
            // A segment of another chain is an orphan of a recovery that did not finish.
            if header.salt != salt || header.previous.segment != end.segment {
                continue;
            }
            let goes_on = header.previous.offset == end.offset
                && last
                    .checksum
                    .is_none_or(|sum| sum == header.previous.checksum);
            return Ok(
                if (goes_on || planted::is(Bug::GoOnPastBrokenChain))
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
            && own >= u64::from(self.options.start.segment)
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
        let synced = self.report.synced;
        if synced > end && !(self.options.closed && planted::is(Bug::ClosedEndIsNotAsked)) {
            return Err(match self.options.closed {
                true => ends_before_close(end, &stop, synced),
                false => corruption(end, &stop, synced, "the manifest"),
            });
        }
        if let Some(passed) = &mut self.report.passed {
            passed.is_bounded |= end > passed.through;
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
        if let Some(passed) = &self.report.passed
            && !self.options.closed
            && !passed.is_bounded
            && self.report.discarded.record_count > 0
        {
            // Whole records that history does not reach, behind damage that nothing bounds.
            return Err(reaches_further(passed));
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

/// Whether damage that was met at `from` ends before `start`: a record ends exactly there.
fn ends_before(segment: &mut Segment, salt: u64, from: Position, start: Position) -> Result<bool> {
    let seed = RecordSeed::new(salt, segment.number);
    let mut at = u64::from(from.offset).max(SEGMENT_HEADER_BYTES as u64);
    while at < u64::from(start.offset) {
        if let Ok(record) = segment.plausible(at, seed)?
            && record.end == start.offset
            && segment.verify_in_pieces(at, &record)?
        {
            return Ok(true);
        }
        at += RECORD_ALIGN_BYTES as u64;
    }
    Ok(false)
}

/// The log of a store that was closed ends too early.
#[cold]
fn ends_before_close(end: Position, stop: &StopReason, closed: Position) -> Error {
    let found = match closed.segment > end.segment {
        true => format!("{stop}, and no segment that goes on there"),
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

/// Damage that begins before the log's start reaches behind it.
#[cold]
fn reaches_further(passed: &PassedDamage) -> Error {
    let start = passed.through;
    Error::corruption(
        passed.file(),
        "the log is damaged, and whole records lie behind the damage",
    )
    .at(passed.from.offset.into())
    .expected(format_args!(
        "damage that ends before {start}, where the part begins that is needed"
    ))
    .found(&passed.found)
    .advice(RESTORE_THE_LOG)
}

/// What the user can do about a log that is damaged where it is needed.
const RESTORE_THE_LOG: &str =
    "restore the log from a copy, or make a new store of what can be read with `silt repair`";

#[cold]
fn corruption(end: Position, stop: &StopReason, synced: Position, by: &str) -> Error {
    Error::corruption(segment_name(end.segment), "the log is damaged at a place that was synced")
        .at(u64::from(end.offset))
        .expected(format_args!("a valid record or segment header, because {by} says that the log was synced through {synced}"))
        .found(stop)
        .advice(RESTORE_THE_LOG)
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
