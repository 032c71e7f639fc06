//! Reads the log of a damaged store: every record with valid checksums, also behind damage, and the
//! holes between them.
//!
//! If nothing is lost, sequence numbers meet: the first number of a record follows the last one of
//! the record before. So a break in the structure of the log (a header, a link) between two records
//! whose numbers meet lost no entry. Any other break is a *hole*, and whatever it contained has
//! numbers below those of the next record.
//!
//! Invariants: a record is used only at the position for which it was written (its checksum covers
//! salt, segment and offset). One kind of damage cannot be detected in any format: that of the last
//! records, if nothing behind them, and not the manifest, shows that they existed. The report names
//! such an end: a last record that is not complete ([`LogFound::is_torn`]), or bytes that are not a
//! record ([`LogFound::end_is_clear`]).
//!
//! Threading: one task, which only reads. Memory: one segment.

use std::collections::BTreeSet;

use litemap::LiteMap;
use siltstone_storage::Storage;

use super::report::{LogFound, LogHole};
use crate::formats::batch::count_entries;
use crate::formats::log::format::{
    BadHeader, BadRecord, ChainEnd, MAX_HEADER_BYTES, MAX_SEGMENT_BYTES, Plausible,
    READY_SEGMENTS_MAX, RECORD_ALIGN_BYTES, RecordKind, RecordSeed, SEGMENT_HEADER_BYTES,
    SegmentHeader, chain, parse_segment_name, segment_name, unknown_record,
};
use crate::formats::log::position::LogStart;
use crate::formats::log::reader::{SegmentHead, SegmentReader, UnreadablePart};
use crate::formats::log::{Position, Record, another_chain};
use crate::types::error::{Error, ErrorKind, Result};

/// A segment in memory.
struct Segment {
    number: u32,
    reader: SegmentReader,
    head: SegmentHead,
    /// The parts that could not be read, for which the reader has zeros.
    unreadable: Vec<UnreadablePart>,
}

/// The offset of the first record of a segment.
const FIRST_RECORD: u64 = SEGMENT_HEADER_BYTES as u64;

/// Where the last record that was found ends.
struct Last {
    /// The end in the segment that is being searched; `None` between two segments of a chain.
    end: ChainEnd,
    salt: u64,
    /// The first sequence number that the next record may have.
    next_sequence: u64,
}

/// What the manifest knows about the log, as far as it can be read.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// Where the log starts. What is lost before this position is not needed.
    pub(super) start: Option<LogStart>,
    pub(super) store_id: Option<u64>,
    pub(super) synced: Position,
    /// Whether the store was closed with its log ending at `synced`.
    pub(super) closed: bool,
}

/// Reads the log from its start on (if that is not known, all of its newest chain) and passes every
/// good record to `apply`, in order.
pub(super) fn read(
    storage: &dyn Storage,
    known: Known,
    damage: &mut Vec<Error>,
    apply: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Result<LogFound> {
    let Known {
        store_id, synced, ..
    } = known;
    let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let files = Files::list(storage)?;
    let mut salts = BTreeSet::new();
    let needed = match known.start {
        Some(start) => {
            if start.offset > 0 {
                salts.insert(start.salt);
            }
            Position::new(narrow(start.segment), narrow(start.offset))
        }
        None => Position::new(files.newest_chain(storage)?, 0),
    };
    let start = needed.segment;
    let mut numbers = Vec::new();
    for (number, name) in files.by_number.iter().filter(|(n, _)| **n >= start) {
        let segment = Segment::open(storage, *number, name, MAX_HEADER_BYTES as u64)?;
        if parse_segment_name(name) != Some(*number) {
            damage.push(
                Error::corruption(name.clone(), "a log segment has the name of another one")
                    .found(segment_name(*number)),
            );
        }
        match (&segment.head.header, store_id) {
            (Ok((header, _)), Some(id)) if header.store_id != id => {
                damage.push(
                    Error::corruption(name.clone(), "the log segment belongs to another store")
                        .at(16)
                        .expected(format_args!("store id {id:016x}"))
                        .found(format_args!("store id {:016x}", header.store_id)),
                );
            }
            (Err(BadHeader::Version(version)), _) => {
                return Err(Error::unsupported(
                    "a log segment of a format version that this build does not know",
                )
                .in_file(name.clone())
                .found(format_args!("version {version}"))
                .advice("repair the store with the version that wrote it"));
            }
            (Ok((header, _)), _) if is_of_another_chain(known.start, *number, header) => {
                let salt = known.start.map_or(0, |start| start.salt);
                damage.push(another_chain(*number, salt, header.salt));
            }
            _ => {
                salts.extend(segment.head.salt);
                numbers.push(*number);
            }
        }
    }
    let mut reading = Reading {
        found: LogFound {
            is_there: !files.by_number.is_empty(),
            closed_end: known.closed.then_some(synced),
            ..LogFound::default()
        },
        last: None,
        needed,
        salt: known.start.map_or(0, |start| start.salt),
        synced,
        closed: known.closed,
        damage,
        apply,
        end_is_certain: true,
        lost_tail: false,
        torn: None,
        unreadable_count: 0,
        empty_start: None,
        reached_synced: false,
    };
    if numbers.first() != Some(&start) {
        reading.damage.push(Error::corruption(
            segment_name(start),
            "the log's first segment is missing",
        ));
        reading.found.first_is_missing = true;
    }
    for number in &numbers {
        let name = &files.by_number[number];
        let mut segment = Segment::open(storage, *number, name, MAX_SEGMENT_BYTES)?;
        reading.damage.extend(segment.unreadable());
        reading.segment(&mut segment, &salts)?;
    }
    reading.finish()
}

/// Whether this segment has the number of the log's start, but comes from a copy of the store: its
/// contents are not history of this store.
fn is_of_another_chain(start: Option<LogStart>, number: u32, header: &SegmentHeader) -> bool {
    start.is_some_and(|start| {
        start.offset > 0 && start.segment == u64::from(number) && start.salt != header.salt
    })
}

/// The segments by the number that they really have, because names may have been swapped.
struct Files {
    by_number: LiteMap<u32, String>,
}

impl Files {
    fn list(storage: &dyn Storage) -> Result<Files> {
        let mut by_number = LiteMap::new();
        let mut renamed = Vec::new();
        for object in storage.list()? {
            let Some(number) = parse_segment_name(&object.name) else {
                continue;
            };
            let segment = Segment::open(storage, number, &object.name, MAX_HEADER_BYTES as u64)?;
            match segment.head.header {
                // This may also be a segment that was recycled and did not get its new header. Its
                // old records are history if they are not flushed.
                Err(BadHeader::Number(own)) => renamed.push((own, number, object.name)),
                _ => {
                    by_number.insert(number, object.name);
                }
            }
        }
        for (own, number, name) in renamed {
            let own = u32::try_from(own).unwrap_or(number);
            let free = !by_number.contains_key(&own);
            by_number
                .entry(if free { own } else { number })
                .or_insert(name);
        }
        Ok(Files { by_number })
    }

    /// The first segment of the newest chain that has records.
    fn newest_chain(&self, storage: &dyn Storage) -> Result<u32> {
        let mut best: Option<(u64, u32)> = None;
        for (number, name) in self.by_number.iter().rev() {
            let mut segment = Segment::open(storage, *number, name, MAX_SEGMENT_BYTES)?;
            let Some(salt) = segment.head.salt else {
                continue;
            };
            match &mut best {
                Some((chain, first)) if *chain == salt => *first = *number,
                // The open that began this chain has read the older ones.
                Some(_) => break,
                None if segment
                    .next(FIRST_RECORD, &BTreeSet::from([salt]))?
                    .is_some() =>
                {
                    best = Some((salt, *number));
                }
                None => {}
            }
        }
        Ok(best.map_or(1, |(_, first)| first))
    }
}

impl Segment {
    /// Opens the file `name` as segment `number`, and reads at most `most` bytes of it.
    fn open(storage: &dyn Storage, number: u32, name: &str, most: u64) -> Result<Segment> {
        let (mut reader, unreadable) = SegmentReader::open_whole(storage, name, most)?;
        let head = reader.head(number)?;
        Ok(Segment {
            number,
            reader,
            head,
            unreadable,
        })
    }

    /// An error for each part that could not be read.
    fn unreadable(&self) -> impl Iterator<Item = Error> {
        self.unreadable.iter().map(|part| {
            let what = "a part of the log segment cannot be read";
            Error::corruption(self.reader.name(), what)
                .over(part.bytes.start, part.bytes.end)
                .found(&part.why)
        })
    }

    /// The offset and the salt of the next record from `from` on that has one of these salts.
    fn next(&mut self, from: u64, salts: &BTreeSet<u64>) -> Result<Option<(u64, u64)>> {
        let salts: Vec<u64> = salts.iter().copied().collect();
        let seeds = salts.iter().map(|salt| RecordSeed::new(*salt, self.number));
        let seeds: Vec<RecordSeed> = seeds.collect();
        let found = self.reader.next(from, &seeds)?;
        Ok(found.map(|found| (found.at, salts[found.seed])))
    }
}

struct Reading<'a> {
    found: LogFound,
    last: Option<Last>,
    /// What is lost before this position is not needed.
    needed: Position,
    /// The salt of the chain in which that position lies.
    salt: u64,
    synced: Position,
    closed: bool,
    damage: &'a mut Vec<Error>,
    apply: &'a mut dyn FnMut(Record<'_>) -> Result<()>,
    /// Whether it is certain that what follows the last record is not a damaged one.
    end_is_certain: bool,
    /// Whether a later segment shows that there was a record behind the last one.
    lost_tail: bool,
    /// An incomplete record behind the last one. It is the end of the log if nothing of the log
    /// follows it, and damage otherwise.
    torn: Option<Error>,
    /// The number of segments without a header behind the last record.
    unreadable_count: u64,
    /// The damaged header of the segment with which the log starts, if that has no record. Nothing
    /// was lost unless something shows that there were records; an open and a check judge it in the
    /// same way. A process or a power that failed before the first sync leaves such a segment.
    empty_start: Option<Error>,
    /// Whether the records that were read reach the position where the log ended when the store was
    /// closed.
    reached_synced: bool,
}

impl Reading<'_> {
    /// Reads one segment.
    fn segment(&mut self, segment: &mut Segment, salts: &BTreeSet<u64>) -> Result<()> {
        let mut salt = segment.head.salt;
        let mut chained = 0;
        let mut at = FIRST_RECORD;
        // Whether nothing can be missing between the last record and this offset.
        let mut joined = match (&segment.head.header, &self.last) {
            (Ok((header, checksum)), last) => {
                chained = *checksum;
                // Nothing that is needed is lost before a segment that continues where the log
                // starts.
                let previous = Position::new(header.previous.segment, header.previous.offset);
                let goes_on_at_start = header.salt == self.salt && previous == self.needed;
                match last {
                    Some(last) if header.salt == last.salt => {
                        header.previous == last.end || goes_on_at_start
                    }
                    // This is the first segment that is read, or the one after it.
                    None if self.found.first_is_missing => goes_on_at_start,
                    None => true,
                    Some(_) => false,
                }
            }
            (Err(bad), last) => {
                let why = bad.to_string();
                let error = Error::corruption(
                    segment_name(segment.number),
                    "the header of a log segment is damaged",
                )
                .at(0)
                .found(bad);
                let of_ours = segment.next(at, salts)?;
                match of_ours {
                    // This is the segment with which the log starts: see `empty_start`.
                    None if last.is_none()
                        && segment.number == self.needed.segment
                        && !self.closed =>
                    {
                        self.found.end = Position::new(segment.number, 0);
                        self.found.stop = why;
                        self.found.first_is_missing = true;
                        self.empty_start = Some(error);
                        return Ok(());
                    }
                    None if last.is_some() => {}
                    _ => self.damage.push(error),
                }
                match of_ours {
                    // Nothing in it is history: the segment was made ready, or all of its records
                    // are lost.
                    None => {
                        self.unreadable_count += 1;
                        self.found.first_is_missing |= last.is_none();
                        return Ok(());
                    }
                    Some((place, found)) => {
                        salt = Some(found);
                        last.is_none() && place == at && !self.found.first_is_missing
                    }
                }
            }
        };
        let Some(mut salt) = salt else { return Ok(()) };
        let mut count = 0;
        if let (Ok((header, _)), Some(last)) = (&segment.head.header, &self.last)
            && header.salt == last.salt
        {
            if joined {
                // The log continued here, and not with the incomplete record.
                self.torn = None;
            } else {
                // The segment before this one had more records, or one between them is missing.
                self.end_is_certain = true;
                self.lost_tail = true;
            }
        }
        loop {
            let seed = RecordSeed::new(salt, segment.number);
            match segment.reader.record(at, seed)? {
                Ok((record, payload)) => {
                    let position = Position::new(segment.number, at as u32);
                    self.record(position, &record, payload, joined, count == 0)?;
                    count += 1;
                    chained = chain(chained, record.stored);
                    at = u64::from(record.end);
                    joined = true;
                    self.last = Some(Last {
                        end: ChainEnd {
                            segment: segment.number,
                            offset: record.end,
                            checksum: chained,
                        },
                        salt,
                        next_sequence: self.last.as_ref().map_or(0, |l| l.next_sequence),
                    });
                }
                Err(bad) => {
                    let behind = at + RECORD_ALIGN_BYTES as u64;
                    let Some((next, found)) = segment.next(behind, salts)? else {
                        self.segment_ends(segment, at, &bad, salt, count, chained);
                        break;
                    };
                    self.damage.push(
                        Error::corruption(
                            segment_name(segment.number),
                            "a record of the log is damaged, and good ones follow it",
                        )
                        .at(at)
                        .found(&bad),
                    );
                    (at, salt, joined) = (next, found, false);
                }
            }
        }
        if count > 0 {
            self.found.segment_count += 1;
        }
        Ok(())
    }

    /// Handles the end of the records in this segment. `at` is the offset at which none was found.
    fn segment_ends(
        &mut self,
        segment: &Segment,
        at: u64,
        bad: &BadRecord,
        salt: u64,
        count: u64,
        chained: u32,
    ) {
        let of_chain = self.last.as_ref().is_none_or(|last| last.salt == salt);
        if segment.head.header.is_ok() && count == 0 && (of_chain || self.last.is_none()) {
            // It has no record yet: its first one would begin here.
            let next_sequence = self.last.as_ref().map_or(0, |l| l.next_sequence);
            self.last = Some(Last {
                end: ChainEnd {
                    segment: segment.number,
                    offset: at as u32,
                    checksum: chained,
                },
                salt,
                next_sequence,
            });
        } else if count == 0 {
            return;
        }
        let position = Position::new(segment.number, at as u32);
        self.found.end = position;
        self.reached_synced |= position == self.synced;
        self.found.stop = bad.to_string();
        self.end_is_certain = matches!(bad, BadRecord::Nothing | BadRecord::SegmentFull);
        let error = Error::corruption(
            segment_name(segment.number),
            "the last record of the log's segment is torn or damaged",
        )
        .at(at)
        .found(bad);
        if self.lost_tail {
            self.damage.push(error);
        } else if position >= self.needed && bad.is_torn() {
            // The header was written for exactly this position, so there was a record.
            self.torn = Some(error);
        }
    }

    fn record(
        &mut self,
        position: Position,
        record: &Plausible,
        payload: &[u8],
        joined: bool,
        at_link: bool,
    ) -> Result<()> {
        let first = record.header.first_sequence;
        let at = u64::from(position.offset);
        let name = || segment_name(position.segment);
        let Some(kind) = RecordKind::from_number(record.header.kind) else {
            return Err(unknown_record(record.header.kind).in_file(name()).at(at));
        };
        let count = match kind {
            RecordKind::Group => match count_entries(payload) {
                Ok(count) => count,
                Err(bad) => {
                    let error = bad.into_error("a log record's payload");
                    let error = error.in_file(name()).at(at);
                    // What this build does not have is not damaged, and must not be dropped.
                    if error.kind() == ErrorKind::Unsupported {
                        return Err(error);
                    }
                    self.damage.push(error);
                    return Ok(());
                }
            },
            RecordKind::Ingest => crate::formats::log::bodies::decode_ingest(payload, first)
                .map_or(1, |ingest| ingest.last.saturating_sub(first) + 1),
            _ => 1,
        };
        let after = self.last.as_ref().map_or(0, |l| l.next_sequence);
        let begins = self.last.is_none() && self.found.record_count == 0;
        if !joined && (begins || first != after) && position > self.needed {
            self.found.is_broken |= at_link;
            self.found.holes.push(LogHole {
                before: position,
                after_number: after.saturating_sub(1),
                before_number: Some(first),
            });
        }
        self.lost_tail = false;
        self.damage.extend(self.empty_start.take());
        self.damage.extend(self.torn.take());
        self.unreadable_count = 0;
        self.end_is_certain = true;
        (self.apply)(Record {
            position,
            end: Position::new(position.segment, record.end),
            kind,
            first_sequence: first,
            sequence_count: count,
            payload,
        })?;
        self.synced = self.synced.max(record.header.synced.unwrap_or_default());
        self.found.record_count += 1;
        self.found.record_bytes += u64::from(record.end) - at;
        self.found.last_number = self.found.last_number.max(first + count.max(1) - 1);
        let end = Position::new(position.segment, record.end);
        self.found.end = end;
        self.reached_synced |= end == self.synced;
        let next_sequence = after.max(first.saturating_add(count));
        match &mut self.last {
            Some(last) => last.next_sequence = next_sequence,
            None => {
                self.last = Some(Last {
                    end: ChainEnd::NONE,
                    salt: 0,
                    next_sequence,
                });
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<LogFound> {
        let end = self.found.end;
        // Nothing before the log's start is needed, whatever could be read there.
        let reached = end.max(self.needed);
        let known = match self.closed {
            // A later segment may lie there, which was not there when the store was closed.
            true => self.synced > self.needed && !self.reached_synced,
            false => self.synced > reached && self.synced.segment >= end.segment,
        };
        // A close says how far the log went. Otherwise a missing start shows that there was more,
        // and so do more segments without a header than are made ready and entered.
        let nothing = self.found.first_is_missing
            && self.found.record_count == 0
            && self.empty_start.is_none()
            && !self.closed;
        let most = READY_SEGMENTS_MAX as u64 + 1;
        let known = known || self.unreadable_count > most && !self.closed;
        self.found.is_broken |= known || nothing;
        self.end_is_certain |= self.closed;
        if self.lost_tail || known || nothing {
            self.damage.extend(self.empty_start.take());
            self.damage.extend(self.torn.take());
            self.found.holes.push(LogHole {
                before: end,
                after_number: self.found.last_number,
                before_number: None,
            });
        }
        // It is unknown whether the record was ever synced, so it is judged as an open and a check
        // judge it. In a store that was closed, no log follows its end.
        self.found.is_torn = self.torn.is_some() && !self.closed;
        self.found.end_is_clear = self.end_is_certain;
        Ok(self.found)
    }
}
