//! Which records have the synced position, and what the records without it cost: nothing, if whole
//! sectors are lost in one place (RFC 12, section 2).

mod log_common;

use std::sync::Arc;

use log_common::*;
use siltstone::ErrorKind;
use siltstone::inspect::{LogFile, LogItem};
use siltstone::log::format::{
    LONG_RECORD_HEADER_BYTES, POSITION_UNIT_BYTES, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES,
    parse_segment_name, segment_name,
};
use siltstone::log::{LogWriter, Position};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

const SECTOR: usize = POSITION_UNIT_BYTES as usize;

/// A record that was written. In version 1 of the format it had the position `known`.
#[derive(Clone, Copy, Debug)]
struct Written {
    number: u64,
    start: Position,
    end: Position,
    known: Position,
}

/// A log with what its writer did.
struct Log {
    runtime: Runtime,
    storage: MemoryStorage,
    faults: FaultStorage,
    writer: LogWriter,
    written: Vec<Written>,
}

impl Log {
    fn start() -> Log {
        let (runtime, storage) = memory();
        let faults = FaultStorage::new(Arc::new(storage.clone()), &runtime);
        let writer = LogWriter::start(config(&runtime, Arc::new(faults.clone()), 4096));
        Log {
            runtime,
            storage,
            faults,
            writer: writer.unwrap(),
            written: Vec::new(),
        }
    }

    /// Appends a record, and notes what was known to be synced before.
    fn append(&mut self, value_bytes: usize) {
        let number = self.written.len() as u64 + 1;
        let known = self.writer.synced();
        let before = self.writer.end();
        let end = append(&self.writer, number, value_bytes).unwrap();
        let start = match end.segment == before.segment {
            true => before,
            false => Position::new(end.segment, SEGMENT_HEADER_BYTES as u32),
        };
        self.written.push(Written {
            number,
            start,
            end,
            known,
        });
    }

    /// Random records, some of them after a sync or after an append that had no effect.
    fn draw(rng: &mut Rng, count: u64, sync_percent: u64) -> Log {
        let mut log = Log::start();
        for _ in 0..count {
            if rng.below(100) < sync_percent {
                log.writer.sync_all().unwrap();
            }
            if rng.below(100) < 10 {
                let fails = Fault::Fail(StorageErrorKind::Unreachable);
                log.faults.add(Rule::on(OpKind::Append, fails));
                let number = log.written.len() as u64 + 1;
                let error = append(&log.writer, number, rng.below(50) as usize).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unreachable);
                log.faults.clear();
                // The next record lies at the same place, and the position may be another one.
                if rng.below(100) < 50 {
                    log.writer.sync_all().unwrap();
                }
            }
            let value_bytes = match rng.below(20) {
                0 => rng.below(2000),
                1..4 => rng.below(600),
                _ => rng.below(60),
            };
            log.append(value_bytes as usize);
        }
        log
    }
}

/// The place of each record in these segments, and its synced position if it has one.
fn positions(storage: &MemoryStorage) -> Vec<(Position, Option<Position>)> {
    let mut all = Vec::new();
    for object in storage.list().unwrap() {
        let Some(number) = parse_segment_name(&object.name) else {
            continue;
        };
        let file = storage.open(&object.name).unwrap();
        let mut log = LogFile::open(&*file).unwrap();
        if log.header().is_err() {
            continue;
        }
        while let Some(item) = log.next_item().unwrap() {
            if let LogItem::Record(record) = item {
                let header = record.header.len() as u64;
                assert!(
                    record.end - record.offset >= header + u64::from(record.header.payload_bytes)
                );
                all.push((
                    Position::new(number, record.offset as u32),
                    record.header.synced,
                ));
            }
        }
    }
    all.sort_unstable();
    all
}

#[test]
fn records_have_the_position_by_both_rules_and_no_other() {
    let mut short_count = 0;
    for seed in 0..60 {
        let mut rng = Rng(seed);
        let percent = [0, 3, 30, 100][seed as usize % 4];
        let log = Log::draw(&mut rng, 150, percent);
        let found = positions(&log.storage);
        assert_eq!(found.len(), log.written.len(), "seed {seed}");
        let mut given = Position::ZERO;
        let mut before: Option<Position> = None;
        for (written, (place, says)) in log.written.iter().zip(found) {
            assert_eq!(written.start, place, "seed {seed}");
            let unit = |at: Position| (at.segment, at.offset / POSITION_UNIT_BYTES);
            let is_first = before.is_none_or(|before| unit(before) != unit(place));
            let expected = (is_first || written.known != given).then_some(written.known);
            assert_eq!(says, expected, "seed {seed}, record at {place}");
            given = says.unwrap_or(given);
            before = Some(place);
            short_count += u64::from(says.is_none());
        }
    }
    assert!(short_count > 1000, "{short_count}");
}

/// A recycled segment has old records behind the new ones, and the rules begin anew in it.
#[test]
fn a_recycled_segment_begins_with_a_position() {
    let mut log = Log::start();
    while log.writer.end().segment < 9 {
        log.append(40);
        let end = log.writer.end();
        if end.segment > 3 {
            log.writer.sync_all().unwrap();
            log.writer.obsolete(end.segment - 1).unwrap();
        }
    }
    let stats = log.writer.stats();
    assert!(stats.recycled_segment_count > 0, "{stats:?}");
    let found = positions(&log.storage);
    let newest = log.written.last().unwrap().start.segment;
    for segment in newest - 1..=newest {
        let first = found.iter().find(|(place, _)| place.segment == segment);
        assert!(first.unwrap().1.is_some(), "segment {segment}");
    }
    let (got, _) = read(&log.storage, newest - 1, Position::ZERO).unwrap();
    let kept = log.written.iter().filter(|w| w.start.segment >= newest - 1);
    assert_eq!(got.numbers, kept.map(|w| w.number).collect::<Vec<_>>());
}

/// Every number of bytes that may be left in a segment, and every padding.
#[test]
fn a_record_fits_into_its_segment_with_either_header() {
    let mut lengths = [false; 2];
    for first in 0..120 {
        for last in [0, 1, 2, 3, 20] {
            let mut log = Log::start();
            while log.writer.end().offset < 3700 {
                log.append(60);
            }
            log.append(first);
            log.append(last);
            log.append(last);
            log.append(5000 + first);
            log.append(first);
            let found = positions(&log.storage);
            for (written, (place, says)) in log.written.iter().zip(&found) {
                assert_eq!(written.start, *place);
                let is_first = place.offset == SEGMENT_HEADER_BYTES as u32;
                assert!(
                    !is_first || says.is_some(),
                    "first {first}, last {last}: {place}"
                );
                lengths[usize::from(says.is_some())] = true;
            }
            // A segment has at most as many bytes as were reserved for it.
            for segment in 1..=log.writer.end().segment {
                let ends = log.written.iter().filter(|w| w.end.segment == segment);
                let end = ends.map(|w| w.end.offset).max().unwrap();
                let len = bytes_of(&log.storage, &segment_name(segment)).len();
                assert!(end as usize <= len, "{end} of {len} in segment {segment}");
            }
            let (got, report) = read(&log.storage, 1, log.writer.end()).unwrap();
            assert_eq!(
                got.numbers.len(),
                log.written.len(),
                "first {first}, last {last}"
            );
            assert_eq!(report.end, log.writer.end());
        }
    }
    assert_eq!(lengths, [true; 2]);
    assert_eq!((RECORD_HEADER_BYTES, LONG_RECORD_HEADER_BYTES), (20, 28));
}

/// What is left of a log whose bytes from sector `from` to sector `to` (of all segments, one after
/// the other) are lost, and the verdict of version 1, in which each record had the position.
struct Lost {
    objects: Vec<(String, Vec<u8>)>,
    /// Where the history ends.
    bad: Position,
    is_refused: bool,
    kept: usize,
}

fn lose(objects: &[(String, Vec<u8>)], log: &Log, from: usize, to: usize, fill: u8) -> Lost {
    let mut lost = objects.to_vec();
    let mut sectors = lost
        .iter_mut()
        .flat_map(|(_, bytes)| bytes.chunks_mut(SECTOR));
    sectors
        .by_ref()
        .skip(from)
        .take(to - from)
        .for_each(|sector| sector.fill(fill));
    let is_left = |from: Position, to: u32| {
        let range = from.offset as usize..to as usize;
        let segment = from.segment as usize - 1;
        objects[segment].1[range.clone()] == lost[segment].1[range]
    };
    // Without any header nobody knows the chain's salt, which makes records recognisable.
    let has_salt = (1..=objects.len() as u32)
        .any(|segment| is_left(Position::new(segment, 0), SEGMENT_HEADER_BYTES as u32));
    let mut bad = log.writer.end();
    let mut kept = log.written.len();
    for segment in 1..=objects.len() as u32 {
        // The records before this segment.
        let before = log.written.partition_point(|w| w.start.segment < segment);
        if !is_left(Position::new(segment, 0), SEGMENT_HEADER_BYTES as u32) {
            bad = match before.checked_sub(1) {
                Some(last) => log.written[last].end,
                None => Position::new(segment, 0),
            };
            kept = before;
            break;
        }
        let own = log.written[before..]
            .iter()
            .take_while(|w| w.start.segment == segment);
        if let Some(i) = own.clone().position(|w| !is_left(w.start, w.end.offset)) {
            bad = log.written[before + i].start;
            kept = before + i;
            break;
        }
    }
    let behind = log.written[kept..]
        .iter()
        .filter(|w| is_left(w.start, w.end.offset));
    let known = behind.map(|w| w.known).max();
    let is_refused = has_salt && known.is_some_and(|known| known > bad);
    Lost {
        objects: lost,
        bad,
        is_refused,
        kept,
    }
}

fn compare(log: &Log, lost: &Lost, context: &str) {
    let storage = storage_of(&log.runtime, &lost.objects);
    match read(&storage, 1, Position::ZERO) {
        Ok((found, report)) => {
            assert!(!lost.is_refused, "{context}: version 1 refuses it");
            assert_eq!(found.numbers.len(), lost.kept, "{context}");
            assert_eq!(report.end, lost.bad, "{context}");
        }
        Err(error) => {
            assert!(lost.is_refused, "{context}: version 1 takes it: {error}");
            assert_eq!(error.kind(), ErrorKind::Corruption, "{context}: {error}");
            assert_eq!(
                error.file(),
                Some(&segment_name(lost.bad.segment)[..]),
                "{context}"
            );
            assert_eq!(error.offset(), Some(lost.bad.offset.into()), "{context}");
        }
    }
}

#[test]
fn lost_sectors_get_the_verdict_of_version_1() {
    let mut refused = [0u64; 2];
    for seed in 0..80u64 {
        let mut rng = Rng(seed << 8);
        let percent = [0, 2, 10, 40, 100][seed as usize % 5];
        let count = 100 + rng.below(100);
        let log = Log::draw(&mut rng, count, percent);
        let objects = objects_of(&log.storage);
        // The salt of the first segment is found in the second one, if its own header is lost.
        assert!(objects.len() >= 2 && objects.len() == log.writer.end().segment as usize);
        let sectors = objects.iter().map(|(_, b)| b.len().div_ceil(SECTOR)).sum();
        // Each sector alone; and, in some logs, each sequence of sectors.
        for from in 0..sectors {
            let longest = if seed < 5 { sectors } else { from + 1 };
            for to in from + 1..=longest {
                for fill in [0, 0xa5] {
                    let lost = lose(&objects, &log, from, to, fill);
                    let context = format!("seed {seed}, sectors {from} to {to} are {fill}");
                    compare(&log, &lost, &context);
                    refused[usize::from(lost.is_refused)] += 1;
                }
            }
        }
    }
    assert!(refused[0] > 1000 && refused[1] > 1000, "{refused:?}");
}

/// An append without an effect has given nobody the position.
#[test]
fn a_position_that_failed_to_be_written_is_written_again() {
    let mut log = Log::start();
    log.append(10);
    log.append(10);
    log.writer.sync_all().unwrap();
    log.faults.add(Rule::on(
        OpKind::Append,
        Fault::Fail(StorageErrorKind::Unreachable),
    ));
    append(&log.writer, 3, 10).unwrap_err();
    log.faults.clear();
    log.append(10);
    log.append(10);
    let synced = log.written[1].end;
    let says: Vec<_> = positions(&log.storage)
        .into_iter()
        .map(|(_, says)| says)
        .collect();
    assert_eq!(says, [Some(Position::new(1, 0)), None, Some(synced), None]);
}
