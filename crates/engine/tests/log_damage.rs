//! Damaged logs: torn tails, flipped bits, lost tails, broken chains, recycled names, arbitrary
//! bytes.

mod log_common;

use log_common::*;
use proptest::prelude::*;
use siltstone::log::format::{SEGMENT_HEADER_BYTES, segment_name};
use siltstone::log::{Position, ReplayReport, StopReason};
use siltstone::{ErrorKind, Result};
use siltstone_storage::Runtime;

type Objects = Vec<(String, Vec<u8>)>;

/// A log of several segments of 4 KiB with a few records each, synced through the end of record
/// `synced_count` (0 for no sync), and the position of each record.
fn small_log(records: u64, value_bytes: usize, synced_count: u64) -> (Objects, Found, Position) {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    for number in 1..=records {
        append(&log, number, value_bytes).unwrap();
        if number == synced_count {
            log.sync_all().unwrap();
        }
    }
    let (found, _) = read(&storage, 1, Position::ZERO).unwrap();
    (objects_of(&storage), found, log.synced())
}

fn read_objects(objects: &Objects, synced: Position) -> Result<(Found, ReplayReport)> {
    let runtime = Runtime::threads();
    read(&storage_of(&runtime, objects), 1, synced)
}

#[test]
fn a_torn_tail_ends_history_before_it() {
    let (objects, found, synced) = small_log(6, 37, 4);
    let (place, end) = found.places[5];
    for at in place.offset..end.offset {
        for old in [0, 0xa5] {
            let mut torn = objects.clone();
            let before = torn[0].1.clone();
            torn[0].1[at as usize..end.offset as usize].fill(old);
            if torn[0].1 == before {
                continue;
            }
            let (found, report) = read_objects(&torn, synced).unwrap();
            assert_eq!(found.numbers, [1, 2, 3, 4, 5], "torn at {at}");
            assert_eq!((report.end, report.discarded.record_count), (place, 0));
        }
        // The file ends there.
        let mut cut = objects.clone();
        cut[0].1.truncate(at as usize);
        let (found, report) = read_objects(&cut, synced).unwrap();
        assert_eq!((found.numbers, report.end), (vec![1, 2, 3, 4, 5], place));
    }
}

#[test]
fn a_flipped_bit_is_corruption_where_it_was_synced_and_the_end_elsewhere() {
    // Records 1 to 5 are synced, and records from 7 on say so.
    let (objects, found, synced) = small_log(60, 50, 5);
    assert!(objects.len() >= 2);
    let last = found.places.len() - 1;
    for (index, (name, bytes)) in objects.iter().enumerate() {
        let number = index as u32 + 1;
        for at in 0..bytes.len() {
            let place = Position::new(number, at as u32);
            let record = found
                .places
                .iter()
                .position(|(s, e)| *s <= place && place < *e);
            let mask = 1u8 << (at % 8);
            let mut flipped = objects.clone();
            flipped[index].1[at] ^= mask;
            for manifest in [Position::ZERO, synced] {
                let context = format!("{name} byte {at}, manifest {manifest}");
                let result = read_objects(&flipped, manifest);
                let in_synced = place < synced;
                match result {
                    Ok((got, report)) => {
                        assert!(!in_synced, "{context}: accepted, {report:?}");
                        // What follows the last record is not read.
                        let kept = match record {
                            Some(record) => record,
                            None if at < SEGMENT_HEADER_BYTES => {
                                found.places.iter().filter(|p| p.0.segment < number).count()
                            }
                            None => last + 1,
                        };
                        assert_eq!(got.numbers, found.numbers[..kept], "{context}");
                        if kept <= last {
                            assert!(
                                report.discarded.record_count >= (last - kept) as u64,
                                "{context}"
                            );
                        }
                    }
                    Err(error) => {
                        assert!(in_synced, "{context}: {error}");
                        assert_eq!(error.kind(), ErrorKind::Corruption, "{context}");
                        assert_eq!(error.file(), Some(&name[..]), "{context}: {error}");
                        let expected = match record {
                            Some(record) => found.places[record].0.offset,
                            None => 0,
                        };
                        assert_eq!(error.offset(), Some(u64::from(expected)), "{context}");
                        assert!(error.to_string().contains("silt repair"), "{error}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_end_of_a_segment_is_not_a_bad_record() {
    let (mut objects, found, _) = small_log(80, 100, 80);
    let end = found.places[79].1;
    assert!(end.segment >= 3);
    // Old bytes follow the records of every segment but the last, and of the last one too.
    for (index, (_, bytes)) in objects.iter_mut().enumerate() {
        let number = index as u32 + 1;
        let used = found
            .places
            .iter()
            .filter(|p| p.0.segment == number)
            .map(|p| p.1.offset)
            .max();
        bytes[used.unwrap() as usize..].fill(0x5a);
    }
    let (again, report) = read_objects(&objects, end).unwrap();
    assert_eq!((again, report.end), (found, end));
}

#[test]
fn replay_never_continues_behind_a_lost_tail() {
    // Segment 2 is whole, and the last record of segment 1 is lost.
    for synced_count in [0, 3] {
        let (objects, found, synced) = small_log(40, 100, synced_count);
        let in_first = found.places.iter().filter(|p| p.0.segment == 1).count();
        let (start, end) = found.places[in_first - 1];
        let mut lost = objects.clone();
        lost[0].1[start.offset as usize..end.offset as usize].fill(0);
        let (got, report) = read_objects(&lost, synced).unwrap();
        assert_eq!(got.numbers, found.numbers[..in_first - 1]);
        assert_eq!(report.discarded.record_count, 40 - in_first as u64);
        assert_eq!(report.discarded.segment_count, objects.len() as u64 - 1);
        let StopReason::Record {
            broken_link: Some(2),
            ..
        } = report.stop
        else {
            panic!("{:?}", report.stop);
        };
    }
    // The same, but the manifest says that the record was synced.
    let (objects, found, synced) = small_log(40, 100, 39);
    let in_first = found.places.iter().filter(|p| p.0.segment == 1).count();
    let (start, end) = found.places[in_first - 1];
    let mut lost = objects.clone();
    lost[0].1[start.offset as usize..end.offset as usize].fill(0);
    for manifest in [Position::ZERO, synced] {
        let error = read_objects(&lost, manifest).unwrap_err();
        assert_eq!(
            (error.kind(), error.offset()),
            (ErrorKind::Corruption, Some(u64::from(start.offset)))
        );
    }
    // The header of segment 2 is lost and its records are there; then whole segments are missing.
    for synced_count in [0, 39] {
        let (objects, found, synced) = small_log(40, 100, synced_count);
        let in_first = found.places.iter().filter(|p| p.0.segment == 1).count();
        for missing in [false, true] {
            let mut lost = objects.clone();
            if missing {
                lost.remove(1);
            } else {
                lost[1].1[..64].fill(0);
            }
            for manifest in [Position::ZERO, synced] {
                let result = read_objects(&lost, manifest);
                if synced_count > 0 && (manifest == synced || objects.len() > 2 || !missing) {
                    let error = result.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
                } else {
                    let (got, _) = result.unwrap();
                    assert_eq!(got.numbers, found.numbers[..in_first]);
                }
            }
        }
    }
}

#[test]
fn a_recycled_name_does_not_revive_its_records() {
    let (objects, _, _) = small_log(20, 50, 20);
    // The bytes of segment 1 have the name of segment 12: the rename is durable, and the new header
    // is not.
    let renamed = vec![(segment_name(12), objects[0].1.clone())];
    let runtime = Runtime::threads();
    let storage = storage_of(&runtime, &renamed);
    let (found, report) = read(&storage, 12, Position::new(12, 0)).unwrap();
    assert!(found.numbers.is_empty(), "{found:?}");
    assert!(
        matches!(report.stop, StopReason::StartHeader(_)),
        "{report:?}"
    );
    assert_eq!(report.discarded.record_count, 0);
    // The same with a new header before the old records, and the same salt.
    let mut bytes = objects[0].1.clone();
    let (header, _) = siltstone::log::format::SegmentHeader::decode(&bytes, 1).unwrap();
    let header = siltstone::log::format::SegmentHeader {
        number: 12,
        ..header
    };
    bytes[..64].copy_from_slice(&header.encode());
    let storage = storage_of(&runtime, &[(segment_name(12), bytes)]);
    let (found, report) = read(&storage, 12, Position::new(12, 64)).unwrap();
    assert!(
        found.numbers.is_empty() && report.discarded.record_count == 0,
        "{report:?}"
    );
}

/// Valid segments with each other's names are not a torn tail, although nothing in them was synced:
/// only segments from before the start are recycled, so no crash leaves this.
#[test]
fn segments_under_other_names_are_refused() {
    let (objects, ..) = small_log(120, 100, 0);
    assert!(objects.len() >= 4);
    for first in 0..objects.len() {
        for second in first + 1..objects.len() {
            let mut exchanged = objects.clone();
            let bytes = exchanged[first].1.clone();
            exchanged[first].1 = std::mem::replace(&mut exchanged[second].1, bytes);
            let error = read_objects(&exchanged, Position::ZERO).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
            assert_eq!(error.file(), Some(&objects[first].0[..]), "{error}");
            let found = format!("segment {}", second + 1);
            assert_eq!(error.found_value(), Some(&found[..]), "{error}");
        }
    }
    // One segment is copied over the next.
    let mut copied = objects.clone();
    copied[2].1 = copied[1].1.clone();
    let error = read_objects(&copied, Position::ZERO).err().unwrap();
    assert_eq!(error.found_value(), Some("segment 2"), "{error}");
}

#[test]
fn a_torn_tail_behind_the_synced_position_is_the_end() {
    // Number 100 was used by something else, and 101 is torn. The synced position is the one after
    // 99.
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    for number in [97, 98, 99] {
        append(&log, number, 20).unwrap();
    }
    let synced = log.sync_all().unwrap();
    append(&log, 101, 20).unwrap();
    let mut objects = objects_of(&storage);
    objects[0].1[synced.offset as usize + 30] ^= 1;
    let (found, report) = read_objects(&objects, synced).unwrap();
    assert_eq!(
        (found.numbers, report.end, report.last_sequence),
        (vec![97, 98, 99], synced, Some(99))
    );
}

#[test]
fn a_missing_or_damaged_start_is_empty_only_if_nothing_was_synced() {
    let runtime = Runtime::threads();
    let nothing = storage_of(&runtime, &[]);
    let (found, report) = read(&nothing, 3, Position::new(3, 0)).unwrap();
    assert!(found.numbers.is_empty() && report.stop == StopReason::NoStartSegment);
    assert_eq!(
        read(&nothing, 3, Position::new(3, 64)).unwrap_err().kind(),
        ErrorKind::Corruption
    );
    let (objects, _, synced) = small_log(60, 50, 0);
    for at in 0..64 {
        let mut damaged = objects.clone();
        damaged[0].1[at] ^= 0x10;
        let (found, report) = read_objects(&damaged, synced).unwrap();
        assert!(found.numbers.is_empty());
        assert!(report.discarded.record_count > 0, "{report:?}");
        assert_eq!(
            read_objects(&damaged, Position::new(1, 64))
                .unwrap_err()
                .kind(),
            ErrorKind::Corruption
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_damage_gives_a_prefix_or_an_error(
        seed in any::<u64>(),
        synced_count in 0u64..40,
        edits in prop::collection::vec((any::<u64>(), any::<u8>(), 1usize..200), 1..6),
    ) {
        let (mut objects, found, synced) = small_log(40, (seed % 300) as usize, synced_count);
        for (place, byte, len) in edits {
            let total = objects.len() as u64;
            let bytes = &mut objects[(place % total) as usize].1;
            let at = (place / total) as usize % bytes.len();
            let end = (at + len).min(bytes.len());
            match byte % 4 {
                0 => bytes[at..end].fill(0),
                1 => bytes[at] ^= byte | 1,
                2 => {
 let to = 64.min(bytes.len() - (end - at));
 bytes.copy_within(at..end, to);
}
                _ => bytes.truncate(at.max(1)),
            }
        }
        match read_objects(&objects, synced) {
            Ok((got, _)) => {
                prop_assert!(got.numbers.len() as u64 >= synced_count);
                prop_assert_eq!(&got.numbers[..], &found.numbers[..got.numbers.len()]);
            }
            Err(error) => prop_assert_eq!(error.kind(), ErrorKind::Corruption),
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..600),
        keep in any::<bool>(),
    ) {
        let (objects, _, _) = small_log(3, 10, 2);
        if keep && bytes.len() >= 64 {
            bytes[..64].copy_from_slice(&objects[0].1[..64]);
        }
        let damaged = vec![(segment_name(1), bytes)];
        if let Ok((found, _)) = read_objects(&damaged, Position::ZERO) {
            prop_assert!(found.numbers.is_empty());
        }
    }
}
