//! A segment is the same however it is read: through a window, whole, or from a borrowed file.

use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, Runtime};

use super::*;
use crate::formats::log::Position;
use crate::formats::log::format::{ChainEnd, SEGMENT_HEADER_BYTES, padding_bytes};

const NUMBER: u32 = 7;
const SALT: u64 = 99;
const FIRST: u64 = SEGMENT_HEADER_BYTES as u64;

/// A header, and a record for each of the lengths; and where each record begins.
fn segment(payload_lengths: &[usize]) -> (Vec<u8>, Vec<u64>) {
    let header = SegmentHeader {
        store_id: 1,
        number: NUMBER,
        salt: SALT,
        previous: ChainEnd::NONE,
    };
    let mut bytes = header.encode().to_vec();
    let mut places = Vec::new();
    for &len in payload_lengths {
        let at = bytes.len();
        let payload = vec![at as u8 | 1; len];
        let header = RecordHeader {
            payload_bytes: len as u32,
            kind: 1,
            // Every second record has a header of 28 bytes.
            synced: (places.len() % 2 == 1).then_some(Position::ZERO),
            first_sequence: places.len() as u64 + 1,
        };
        let (head, _) = header.encode(RecordSeed::new(SALT, NUMBER), at as u32, &[&payload]);
        places.push(at as u64);
        bytes.extend_from_slice(&head);
        bytes.extend(payload);
        bytes.extend(vec![0; padding_bytes(len as u64)]);
    }
    bytes.extend(vec![0; 100]);
    (bytes, places)
}

/// A storage with the segment.
fn stored(bytes: &[u8]) -> FaultStorage {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let lease = memory.lease("test").unwrap();
    let file = memory.create(lease.epoch(), &segment_name(NUMBER));
    let file = file.unwrap();
    file.append(&[bytes]).unwrap();
    FaultStorage::new(Arc::new(memory), &runtime)
}

/// Every good record that a search finds, one after the other: its place and its first number.
fn found<F: Deref<Target: ReadFile>>(reader: &mut SegmentReader<F>) -> Vec<(u64, u64)> {
    // The seed is the second of two.
    let seeds = [5, SALT].map(|salt| RecordSeed::new(salt, NUMBER));
    let (mut all, mut at) = (Vec::new(), FIRST);
    while let Some(found) = reader.next(at, &seeds).unwrap() {
        assert_eq!(found.seed, 1);
        let (record, payload) = reader.record(found.at, seeds[1]).unwrap().unwrap();
        assert_eq!(record.end, found.record.end);
        assert!(payload.iter().all(|byte| *byte == found.at as u8 | 1));
        all.push((found.at, record.header.first_sequence));
        at = u64::from(record.end);
    }
    all
}

#[test]
fn every_way_of_reading_finds_the_same_records() {
    // One record is longer than a window, and another one crosses the end of one.
    let (bytes, places) = segment(&[0, 5, 3 * WINDOW_BYTES + 1, 1, WINDOW_BYTES, 4096]);
    // In the payload, in the padding, in the last header.
    let damage = [places[1] + 30, places[1] + 33, places[5] + 3];
    for spoiled in [None].into_iter().chain(damage.map(Some)) {
        let mut bytes = bytes.clone();
        if let Some(at) = spoiled {
            bytes[at as usize] ^= 4;
        }
        let storage = stored(&bytes);
        let file = storage.open(&segment_name(NUMBER)).unwrap();
        let mut windowed = SegmentReader::open(&storage, NUMBER).unwrap();
        let (mut whole, unreadable) =
            SegmentReader::open_whole(&storage, &segment_name(NUMBER), u64::MAX).unwrap();
        let mut borrowed = SegmentReader::of(&*file);
        assert_eq!(unreadable, []);
        let lost = |place: u64| {
            let end = places.iter().find(|p| **p > place).copied();
            spoiled.is_some_and(|at| place <= at && at < end.unwrap_or(u64::MAX))
        };
        let numbers = (1..).zip(&places).filter(|(_, place)| !lost(**place));
        let expected: Vec<(u64, u64)> = numbers.map(|(n, place)| (*place, n)).collect();
        for found in [
            found(&mut windowed),
            found(&mut whole),
            found(&mut borrowed),
        ] {
            assert_eq!(found, expected, "{spoiled:?}");
        }
        for head in [
            windowed.head(NUMBER),
            whole.head(NUMBER),
            borrowed.head(NUMBER),
        ] {
            let head = head.unwrap();
            assert_eq!(head.header.unwrap().0.salt, SALT);
            assert_eq!((head.salt, head.store_id), (Some(SALT), Some(1)));
        }
    }
}

#[test]
fn a_place_without_a_record_says_why() {
    let (mut bytes, places) = segment(&[5, 6, 7]);
    bytes[places[0] as usize + 22] ^= 1;
    bytes[places[1] as usize + 35] ^= 1;
    let end = bytes.len() as u64;
    let mut reader = SegmentReader::open(&stored(&bytes), NUMBER).unwrap();
    let seed = RecordSeed::new(SALT, NUMBER);
    let mut why = |at, seed| reader.record(at, seed).unwrap().unwrap_err();
    assert!(matches!(why(places[0], seed), BadRecord::Checksum { .. }));
    assert_eq!(why(places[1], seed), BadRecord::Padding);
    assert_eq!(why(places[2] + 4, seed), BadRecord::Header);
    assert_eq!(why(end - 100, seed), BadRecord::Nothing);
    assert_eq!(why(end - 20, seed), BadRecord::Nothing);
    assert_eq!(why(end - 19, seed), BadRecord::SegmentFull);
    assert_eq!(why(end + 8, seed), BadRecord::SegmentFull);
    // A record is good at its own place, in its own segment and chain only.
    let other = RecordSeed::new(SALT, NUMBER + 1);
    assert_eq!(why(places[2], other), BadRecord::Header);
}

#[test]
fn sectors_that_nobody_asks_for_may_be_unreadable() {
    let (bytes, places) = segment(&[100, 9000, 100]);
    let storage = stored(&bytes);
    // Two sectors in the middle of the second record's payload.
    let fault = Fault::Unreadable {
        start: 5120,
        end: 6144,
    };
    storage.add(Rule::on_reads(fault).for_good());
    let seed = RecordSeed::new(SALT, NUMBER);
    let mut windowed = SegmentReader::open(&storage, NUMBER).unwrap();
    assert_eq!(windowed.head(NUMBER).unwrap().salt, Some(SALT));
    for at in [places[0], places[2]] {
        windowed.record(at, seed).unwrap().unwrap();
    }
    let error = windowed.record(places[1], seed).unwrap_err();
    assert!(is_unreadable(&error), "{error}");
    // Read whole, these sectors are zeros, and the record with them is damaged.
    let (mut whole, unreadable) =
        SegmentReader::open_whole(&storage, &segment_name(NUMBER), u64::MAX).unwrap();
    let [part] = &unreadable[..] else {
        panic!("{unreadable:?}")
    };
    assert_eq!(part.bytes, 5120..6144);
    assert_eq!(found(&mut whole), [(places[0], 1), (places[2], 3)]);
    let bad = whole.record(places[1], seed).unwrap().unwrap_err();
    assert!(matches!(bad, BadRecord::Checksum { .. }));
    // Only the start of the file is read, where that is all that is asked for.
    let (head, unreadable) =
        SegmentReader::open_whole(&storage, &segment_name(NUMBER), 512).unwrap();
    assert_eq!((head.len(), unreadable), (512, Vec::new()));
}

/// Headers of two lengths at the end of a segment.
#[test]
fn a_header_that_the_segment_does_not_hold_is_no_record() {
    let seed = RecordSeed::new(SALT, NUMBER);
    let at = FIRST as u32;
    for (synced, bytes) in [(None, 20), (Some(Position::new(NUMBER, 64)), 28)] {
        let header = RecordHeader {
            payload_bytes: 0,
            kind: 4,
            synced,
            first_sequence: 1,
        };
        let (head, _) = header.encode(seed, at, &[]);
        assert_eq!((head.len(), header.len()), (bytes, bytes));
        for left in 0..=bytes {
            let segment = [&[0; FIRST as usize][..], &head[..left]].concat();
            let mut reader = SegmentReader::open(&stored(&segment), NUMBER).unwrap();
            let found = reader
                .record(FIRST, seed)
                .unwrap()
                .map(|(record, _)| record);
            match left {
                ..20 => assert_eq!(found.unwrap_err(), BadRecord::SegmentFull),
                left if left < bytes => assert_eq!(found.unwrap_err(), BadRecord::Header),
                _ => assert_eq!(found.unwrap().header, header),
            }
            let next = reader.next(FIRST, &[seed]).unwrap();
            assert_eq!(next.map(|found| found.at), (left == bytes).then_some(FIRST));
        }
    }
}

/// A header of 20 bytes that ends with its sector needs no byte of the next sector.
#[test]
fn a_short_header_is_read_alone() {
    let (bytes, places) = segment(&[512 - 64 - 20 - 24, 0, 4]);
    assert_eq!(places[2] - places[1], 28);
    // The record of 24 bytes is put at the end of the first sector.
    let mut bytes = bytes[..places[1] as usize].to_vec();
    assert_eq!(bytes.len(), 512 - 24);
    let seed = RecordSeed::new(SALT, NUMBER);
    let header = RecordHeader {
        payload_bytes: 4,
        kind: 4,
        synced: None,
        first_sequence: 9,
    };
    let (head, _) = header.encode(seed, 512 - 24, &[&[1; 4]]);
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(&[1; 4]);
    bytes.resize(2048, 0);
    let storage = stored(&bytes);
    let fault = Fault::Unreadable {
        start: 512,
        end: 1024,
    };
    storage.add(Rule::on_reads(fault).for_good());
    let mut reader = SegmentReader::open(&storage, NUMBER).unwrap();
    let (record, payload) = reader.record(512 - 24, seed).unwrap().unwrap();
    assert_eq!((record.header, payload), (header, &[1; 4][..]));
    assert!(is_unreadable(&reader.record(512, seed).unwrap_err()));
}
