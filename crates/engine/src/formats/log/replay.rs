//! Reads a log back after a crash: the longest prefix that is whole, and a verdict on what follows
//! it.
//!
//! Invariants: records are passed on in order, each completely verified before. Reading ends at the
//! first bad record. If the manifest, or any valid record behind the bad one, says that a later
//! position was synced, that is corruption and not an end. Otherwise everything that follows is
//! discarded and counted. Damage before the log's start, where nothing is needed, is skipped and
//! reported (RFC 1, section 15), and so are bytes there that cannot be read. No bytes cause a
//! panic. Memory is limited to one window and one record, and the length of a record is trusted
//! only if the check of its header passes, which was written for exactly this position.
//!
//! Threading: one task, which only reads.

use siltstone_storage::planted;
use siltstone_storage::{Storage, StorageErrorKind};

use super::format::{
    BadHeader, MAX_SEQUENCE, RECORD_ALIGN_BYTES, RecordHeader, RecordKind, RecordSeed,
    SEGMENT_HEADER_BYTES, SegmentHeader, chain, parse_segment_name, segment_name, unknown_record,
};
use super::position::{LogPosition, LogStart, Position};
use super::reader::{SECTOR_BYTES, SegmentHead, SegmentReader, is_unreadable};
use super::report::{
    Discarded, ReplayReport, SkippedDamage, StopReason, another_chain, corruption, displaced,
    ends_before_close, manifest_is_older, reaches_further, unsupported_version,
};
use crate::formats::batch::count_entries;
use crate::formats::version::StoreState;
use crate::types::error::{Error, Result};

/// The number of unreadable sectors after which [`ends_before`] gives up: a disk may take seconds
/// for each.
const UNREADABLE_SECTORS_MAX: u32 = 256;

/// What the manifest knows about the log.
#[derive(Clone, Copy, Debug)]
pub struct ReplayOptions {
    /// The store's id.
    pub store_id: u64,
    /// Where history starts. Reading begins with the segment of this position, so that everything
    /// in it is checked. Nothing before the offset is needed; at offset 0 the whole segment is.
    pub start: Position,
    /// The salt of the chain in which the start lies, for a segment whose header is lost. It is not
    /// used at offset 0.
    pub salt: u64,
    /// The position through which the manifest knows the log to be synced.
    pub synced: Position,
    /// Whether the store was closed with its log ending exactly at `synced`.
    pub closed: bool,
}

impl ReplayOptions {
    /// The options for a state of the manifest. The state has passed its checks, so its positions
    /// fit.
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

    /// The options for a log of which nothing is known except that it starts with this segment.
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

/// A verified record of the log.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The position at which it starts.
    pub position: Position,
    /// The position at which it ends.
    pub end: Position,
    /// The kind of the record.
    pub kind: RecordKind,
    /// The sequence number of its first entry. Entry *i* has this number plus *i*.
    pub first_sequence: u64,
    /// The number of sequence numbers that it takes: one for each entry of a group, and one for
    /// other records. An ingest may take more, but only its payload says so, which the log does not
    /// decode.
    pub sequence_count: u64,
    /// The payload. That of a group consists of batch bodies, which all decode (see
    /// [`crate::formats::batch::Entries`]).
    pub payload: &'a [u8],
}

/// Reads the log from the segment of `options.start` on, and passes every record to `apply`, in
/// order.
///
/// A missing or damaged start segment is an empty history if nothing says that any of it was
/// synced: the store lost power before its first sync. Segments below the start are not read.
///
/// # Errors
/// [`ErrorKind::Corruption`](crate::types::error::ErrorKind::Corruption) if the log is damaged at a
/// position that was synced, or if a record with a good checksum makes no sense;
/// [`ErrorKind::Unsupported`](crate::types::error::ErrorKind::Unsupported) for a segment or a
/// record of a later version; failed reads; the errors of `apply`.
pub fn replay(
    storage: &dyn Storage,
    options: &ReplayOptions,
    apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Result<ReplayReport> {
    log_replay(storage, options)?.run(apply)
}

/// Refuses a log whose first segment is missing although it is needed, with the error that a
/// [`replay`] and [`check_start`] give. Unless it is missing, this only lists the storage.
///
/// # Errors
/// As [`replay`].
pub(crate) fn refuse_missing_start(storage: &dyn Storage, options: &ReplayOptions) -> Result<()> {
    let log = log_replay(storage, options)?;
    let start = options.start.segment;
    if log.numbers.first() == Some(&start) || log.may_pass(None, &StopReason::NoStartSegment) {
        return Ok(());
    }
    // What else is there may say more. No record is passed on.
    check_start(&log.run(&mut |_| Ok(()))?, start)
}

/// Refuses a log that a replay took for empty because its first segment, `start`, is missing.
///
/// # Errors
/// `Corruption`.
pub(crate) fn check_start(report: &ReplayReport, start: u32) -> Result<()> {
    if report.lacks_start() && !planted!(MissingStartIsEmpty) {
        return Err(no_first_segment(start));
    }
    Ok(())
}

/// A replay that has listed the segments and read nothing.
fn log_replay<'a>(storage: &'a dyn Storage, options: &'a ReplayOptions) -> Result<LogReplay<'a>> {
    let mut numbers: Vec<u32> = storage
        .list()?
        .iter()
        .filter_map(|object| parse_segment_name(&object.name))
        .collect();
    numbers.sort_unstable();
    let highest_segment = numbers.last().copied().unwrap_or(0);
    numbers.retain(|&number| number >= options.start.segment);
    Ok(LogReplay {
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
            skipped: None,
        },
    })
}

/// Where the records of a segment end, and why.
struct SegmentEnd {
    position: Position,
    /// The chained checksum of the segment; `None` if not all of its records could be read.
    checksum: Option<u32>,
    stop: StopReason,
}

/// The result of reading the start segment.
enum Start {
    /// It was read to this end. Its chain has this salt.
    Read(SegmentEnd, u64),
    /// It could not be read. Records behind it may have these salts.
    Bad(StopReason, Vec<u64>),
}

struct LogReplay<'a> {
    storage: &'a dyn Storage,
    options: &'a ReplayOptions,
    /// The numbers of the segments from the start on, in ascending order.
    numbers: Vec<u32>,
    next_sequence: u64,
    report: ReplayReport,
}

impl LogReplay<'_> {
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
                Successor::Goes(number, mut segment, checksum) => {
                    self.report.segment_count += 1;
                    let first = Position::new(number, SEGMENT_HEADER_BYTES as u32);
                    if let Some(skipped) = &mut self.report.skipped {
                        skipped.next.get_or_insert(LogStart {
                            segment: number.into(),
                            offset: first.offset.into(),
                            salt,
                        });
                    }
                    last = self.read_segment(&mut segment, salt, first, Some(checksum), apply)?;
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
        let opened = SegmentReader::open(self.storage, start)
            .and_then(|mut segment| segment.head(start).map(|head| (segment, head)));
        let (mut segment, head) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                // The header cannot be read, and perhaps the file cannot even be opened.
                let segment = SegmentReader::open(self.storage, start).ok();
                // If the file cannot be opened, the next attempt may succeed. So this is not damage
                // while anything in the file is needed.
                let is_readable = segment.is_some() || !self.needs(self.options.start);
                return match unreadable(&error) {
                    Some(stop) if is_readable && self.may_pass(segment.as_ref(), &stop) => {
                        self.pass(segment, self.options.salt, beginning, stop, apply)
                    }
                    _ => Err(error),
                };
            }
        };
        let (header, checksum) = match head.header {
            Ok(found) => found,
            Err(BadHeader::Version(version)) => return Err(unsupported_version(start, version)),
            Err(BadHeader::Number(own)) if self.is_displaced(head.store_id, own) => {
                return Err(displaced(start, own));
            }
            // A recycled file may still have an old header of this store. No crash leaves one of
            // another store.
            Err(BadHeader::Number(_)) if head.store_id != Some(self.options.store_id) => {
                return Err(self.another_store(start, head.store_id.unwrap_or_default()));
            }
            Err(bad) => {
                let stop = StopReason::StartHeader(bad);
                if self.may_pass(Some(&segment), &stop) {
                    let salt = self.options.salt;
                    return self.pass(Some(segment), salt, beginning, stop, apply);
                }
                let mut salts = self.salts_of_successors(start)?;
                salts.extend(head.salt);
                salts.dedup();
                return Ok(Start::Bad(stop, salts));
            }
        };
        if header.store_id != self.options.store_id {
            return Err(self.another_store(start, header.store_id));
        }
        let is_of_chain = self.options.start.offset == 0 || header.salt == self.options.salt;
        if !is_of_chain && !planted!(OtherChainIsBelieved) {
            return Err(another_chain(start, self.options.salt, header.salt));
        }
        self.report.segment_count += 1;
        let first = Position::new(start, SEGMENT_HEADER_BYTES as u32);
        let last = self.read_segment(&mut segment, header.salt, first, Some(checksum), apply)?;
        if last.position < self.options.start && self.may_pass(Some(&segment), &last.stop) {
            return self.pass(Some(segment), header.salt, last.position, last.stop, apply);
        }
        Ok(Start::Read(last, header.salt))
    }

    /// Whether damage before the log's start may be skipped. In a store that was closed it always
    /// may: the log still ends where it ended at the close, so nothing else is damaged. In one that
    /// was not closed, the file must be the right one and reach the start: a manifest that lost its
    /// last edits names a start segment that was deleted or recycled later, and a file that is cut
    /// before the start has also lost what followed.
    fn may_pass(&self, segment: Option<&SegmentReader>, stop: &StopReason) -> bool {
        let keeps_start = self.keeps_start(segment, stop);
        self.options.start.offset > 0
            && (self.options.closed || keeps_start || planted!(ClosedIsNotAsked))
    }

    /// Whether the start segment is the right one and reaches the log's start.
    fn keeps_start(&self, segment: Option<&SegmentReader>, stop: &StopReason) -> bool {
        match stop {
            StopReason::NoStartSegment | StopReason::StartHeader(BadHeader::Number(_)) => false,
            _ => segment.is_some_and(|s| s.len() >= u64::from(self.options.start.offset)),
        }
    }

    /// Skips damage at `from`, and continues at the log's start.
    fn pass(
        &mut self,
        segment: Option<SegmentReader>,
        salt: u64,
        from: Position,
        found: StopReason,
        apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<Start> {
        let start = self.options.start;
        let mut skipped = SkippedDamage {
            from,
            through: start,
            found: found.clone(),
            is_bounded: false,
            keeps_start: self.keeps_start(segment.as_ref(), &found),
            next: None,
        };
        self.report.end = start;
        let last = match segment {
            Some(mut segment) => {
                let last = self.read_segment(&mut segment, salt, start, None, apply)?;
                skipped.is_bounded = ends_before(&mut segment, salt, from, start);
                last
            }
            None => SegmentEnd {
                position: start,
                checksum: None,
                stop: found,
            },
        };
        self.report.skipped = Some(skipped);
        Ok(Start::Read(last, salt))
    }

    /// Passes on the records of one segment, from `from` up to the first bad one.
    fn read_segment(
        &mut self,
        segment: &mut SegmentReader,
        salt: u64,
        from: Position,
        mut chained: Option<u32>,
        apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
    ) -> Result<SegmentEnd> {
        let number = from.segment;
        let seed = RecordSeed::new(salt, number);
        let mut at = u64::from(from.offset);
        loop {
            let position = Position::new(number, at as u32);
            self.report.end = position;
            let end_with = |stop| SegmentEnd {
                position,
                checksum: chained,
                stop,
            };
            let found = match segment.record(at, seed) {
                Ok(found) => found,
                Err(error) => match unreadable(&error) {
                    Some(stop) if !self.needs(position) => return Ok(end_with(stop)),
                    _ => return Err(error),
                },
            };
            let (record, payload) = match found {
                Ok(found) => found,
                Err(found) => {
                    return Ok(end_with(StopReason::Record {
                        found,
                        broken_link: None,
                    }));
                }
            };
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
            let synced = record.header.synced.unwrap_or_default();
            self.report.synced = self.report.synced.max(synced);
            self.report.record_count += 1;
            self.report.record_bytes += u64::from(record.end) - at;
            chained = chained.map(|checksum| chain(checksum, record.stored));
            at = u64::from(record.end);
        }
    }

    /// Whether a record at this position would be needed: it is not before the log's start, and no
    /// close says that the log ends before it.
    fn needs(&self, position: Position) -> bool {
        let is_behind = self.options.closed && position >= self.options.synced;
        !is_behind && position >= self.options.start || planted!(UnreadableIsNeeded)
    }

    /// The kind of a record with a good checksum, and the number of sequence numbers that it takes.
    /// A record that makes no sense here is not a torn write, so it is refused and not taken for
    /// the end.
    fn understand(
        &self,
        position: Position,
        header: &RecordHeader,
        payload: &[u8],
    ) -> Result<(RecordKind, u64)> {
        let file = || segment_name(position.segment);
        let at = u64::from(position.offset);
        let Some(kind) = RecordKind::from_number(header.kind) else {
            return Err(unknown_record(header.kind).in_file(file()).at(at));
        };
        if let Some(synced) = header.synced.filter(|synced| *synced > position) {
            return Err(Error::corruption(
                file(),
                "a log record says that bytes after it were synced before it",
            )
            .at(at)
            .expected(format_args!("a position up to {position}"))
            .found(synced));
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
        if header.first_sequence < self.next_sequence || !fits {
            return Err(
                Error::corruption(file(), "a log record's sequence numbers do not ascend")
                    .at(at)
                    .expected(format_args!("{} to {MAX_SEQUENCE}", self.next_sequence))
                    .found(format_args!(
                        "{sequence_count} numbers from {} on",
                        header.first_sequence
                    )),
            );
        }
        Ok((kind, sequence_count))
    }

    /// The segment that continues where the records of the last one end.
    fn successor(&self, salt: u64, last: &SegmentEnd) -> Result<Successor> {
        let end = last.position;
        for &number in self.numbers.iter().filter(|&&n| n > end.segment) {
            let (segment, header) = match self.header(number) {
                Err(error) if is_unreadable(&error) && !self.needs(end) => continue,
                found => found?,
            };
            let Some((header, checksum)) = header else {
                continue;
            };
            // A segment of another chain is an orphan of a recovery that was not finished.
            if header.salt != salt || header.previous.segment != end.segment {
                continue;
            }
            let goes_on = header.previous.offset == end.offset
                && last
                    .checksum
                    .is_none_or(|sum| sum == header.previous.checksum);
            return Ok(if goes_on || planted!(GoOnPastBrokenChain) {
                Successor::Goes(number, segment, checksum)
            } else {
                Successor::Ends(Some(number))
            });
        }
        Ok(Successor::Ends(None))
    }

    /// A later segment, and its header if that is valid and belongs to this store.
    fn header(&self, number: u32) -> Result<(SegmentReader, Option<(SegmentHeader, u32)>)> {
        let mut segment = SegmentReader::open(self.storage, number)?;
        let SegmentHead {
            header, store_id, ..
        } = segment.head(number)?;
        let header = match header {
            Ok(found) => Some(found).filter(|(header, _)| header.store_id == self.options.store_id),
            Err(BadHeader::Version(version)) => return Err(unsupported_version(number, version)),
            Err(BadHeader::Number(own)) if self.is_displaced(store_id, own) => {
                return Err(displaced(number, own));
            }
            Err(_) => None,
        };
        Ok((segment, header))
    }

    /// Whether a file contains a segment of this history with another number than its name. A crash
    /// between the recycling of a file and its new header leaves a segment from before the start,
    /// because only those are recycled.
    fn is_displaced(&self, store_id: Option<u64>, own: u64) -> bool {
        store_id == Some(self.options.store_id) && own >= u64::from(self.options.start.segment)
    }

    /// The salts of the chains that later segments continue from segment `start`, whose own header
    /// cannot be read.
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

    /// Decides whether `report.end`, where reading stopped, is the end of history or damage.
    fn finish(mut self, stop: StopReason, salts: &[u64]) -> Result<ReplayReport> {
        let end = self.report.end;
        let synced = self.report.synced;
        if synced > end && !(self.options.closed && planted!(ClosedEndIsNotAsked)) {
            return Err(match self.options.closed {
                true => ends_before_close(end, &stop, synced),
                false => corruption(end, &stop, synced, "the manifest"),
            });
        }
        if let Some(skipped) = &mut self.report.skipped {
            skipped.is_bounded |= end > skipped.through;
        }
        for number in std::mem::take(&mut self.numbers) {
            if number < end.segment {
                continue;
            }
            match self.look_behind(number, salts, &stop) {
                Err(error) if is_unreadable(&error) && !self.needs(end) => {}
                looked => looked?,
            }
        }
        if let Some(skipped) = &self.report.skipped
            && !self.options.closed
            && !skipped.is_bounded
            && self.report.discarded.record_count > 0
        {
            // There are whole records that history does not reach, behind damage whose end is
            // unknown.
            return Err(reaches_further(skipped));
        }
        self.report.stop = stop;
        Ok(self.report)
    }

    /// Reads what follows the end of history in segment `number`.
    fn look_behind(&mut self, number: u32, salts: &[u64], stop: &StopReason) -> Result<()> {
        let end = self.report.end;
        let mut segment = match self.storage.open(&segment_name(number)) {
            Err(error) if error.kind == StorageErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.into()),
            Ok(_) => SegmentReader::open(self.storage, number)?,
        };
        let before = self.report.discarded.record_count;
        for &salt in salts {
            let from = end.max(Position::new(number, 0));
            self.search(&mut segment, salt, from, stop)?;
        }
        if number == end.segment {
            return Ok(());
        }
        let (mut segment, header) = self.header(number)?;
        let salt = header.map(|(header, _)| header.salt);
        let ours = salt.is_some_and(|salt| salts.contains(&salt));
        if ours || self.report.discarded.record_count > before {
            self.report.discarded.segment_count += 1;
        }
        if let Some(salt) = salt.filter(|_| !ours && !planted!(OlderManifestIsBelieved)) {
            let seed = RecordSeed::new(salt, number);
            if segment.record(SEGMENT_HEADER_BYTES as u64, seed)?.is_ok() {
                return Err(manifest_is_older(number, end));
            }
        }
        Ok(())
    }

    /// Searches for valid records of the chain from `from` on, which is behind the end. A record
    /// that says that a later position was synced makes the end a corruption; all others are
    /// counted.
    fn search(
        &mut self,
        segment: &mut SegmentReader,
        salt: u64,
        from: Position,
        stop: &StopReason,
    ) -> Result<()> {
        let seeds = [RecordSeed::new(salt, from.segment)];
        let mut at = u64::from(from.offset).max(SEGMENT_HEADER_BYTES as u64);
        while let Some(found) = segment.next(at, &seeds)? {
            if let Some(synced) = found.record.header.synced
                && synced > self.report.end
            {
                let position = Position::new(from.segment, found.at as u32);
                let by = format!("a valid record at {position}");
                return Err(corruption(self.report.end, stop, synced, &by));
            }
            at = u64::from(found.record.end);
            self.report.discarded.record_count += 1;
            self.report.discarded.record_bytes += at - found.at;
        }
        Ok(())
    }
}

/// Whether the log continues behind the end of a segment.
enum Successor {
    /// It continues in the segment with this number, whose header has this checksum.
    Goes(u32, SegmentReader, u32),
    /// It does not. If there is a number, that segment follows another end of this one.
    Ends(Option<u32>),
}

/// The reason to stop if this error says that bytes cannot be read.
fn unreadable(error: &Error) -> Option<StopReason> {
    let said = error.storage().filter(|_| is_unreadable(error))?;
    Some(StopReason::Unreadable(said.detail.clone()))
}

/// Whether damage at `from` ends before `start`, because a record ends exactly there. Sectors that
/// cannot be read are skipped.
fn ends_before(segment: &mut SegmentReader, salt: u64, from: Position, start: Position) -> bool {
    let seed = RecordSeed::new(salt, from.segment);
    let mut at = u64::from(from.offset).max(SEGMENT_HEADER_BYTES as u64);
    let mut unreadable_count = 0;
    while at < u64::from(start.offset) {
        let found = match segment.plausible(at, seed) {
            Ok(Ok(record)) if record.end == start.offset => segment.verify(at, &record),
            found => found.map(|_| false),
        };
        match found {
            Ok(true) => return true,
            Ok(false) => at += RECORD_ALIGN_BYTES as u64,
            Err(_) if unreadable_count == UNREADABLE_SECTORS_MAX => return false,
            Err(_) => {
                unreadable_count += 1;
                at = (at + 1).next_multiple_of(SECTOR_BYTES);
            }
        }
    }
    false
}

/// The error if the segment at which the log starts, according to the manifest, does not exist.
pub(crate) fn no_first_segment(number: u32) -> Error {
    Error::corruption(
        crate::formats::log::format::segment_name(number),
        "the log's first segment is missing",
    )
    .expected("the segment that the manifest names")
    .found("no file of this name")
    .advice(
        "put the file back from a copy, or make a new store of what can be read with `silt \
         repair`; if the log was in a folder of its own (log_dir), put DIRECTORIES back first",
    )
}
