//! Compares the log's bytes with `docs/format/log.md`, and with bytes made by hand.

mod log_common;

use std::collections::BTreeMap;

use log_common::*;
use siltstone::ErrorKind;
use siltstone::batch;
use siltstone::log::format::*;
use siltstone::log::{Position, RecordKind};

const DOC: &str = include_str!("../../../docs/format/log.md");

/// The rows of the first table that follows a line with this beginning.
fn table(after: &str) -> Vec<Vec<String>> {
    let mut lines = DOC.lines().skip_while(|line| !line.starts_with(after));
    assert!(
        lines.next().is_some(),
        "the page has no line that starts with {after:?}"
    );
    lines
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_string())
                .collect()
        })
        .collect()
}

/// Offset and length of each field, by the first words of its row.
fn fields(after: &str) -> BTreeMap<String, (usize, usize)> {
    table(after)
        .into_iter()
        .filter_map(|row| {
            let offset = row[0].parse().ok()?;
            Some((row[2].clone(), (offset, row[1].parse().unwrap_or(0))))
        })
        .collect()
}

fn place(fields: &BTreeMap<String, (usize, usize)>, name: &str) -> std::ops::Range<usize> {
    let (_, &(offset, bytes)) = fields
        .iter()
        .find(|(field, _)| field.starts_with(name))
        .unwrap_or_else(|| panic!("the page has no field {name}"));
    offset..offset + bytes
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, &b| n << 8 | u64::from(b))
}

#[test]
fn the_segment_header_is_as_documented() {
    let fields = fields("## Segments");
    let header = SegmentHeader {
        store_id: 0x0102_0304_0506_0708,
        number: 0x1112_1314,
        salt: 0x2122_2324_2526_2728,
        previous: ChainEnd {
            segment: 0x1112_1313,
            offset: 0x4142_4340,
            checksum: 0x5152_5354,
        },
    };
    let bytes = header.encode();
    assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES);
    assert_eq!(&bytes[place(&fields, "magic")], b"SILTLOG\0");
    let at = |name| number(&bytes[place(&fields, name)]);
    assert_eq!(at("version"), u64::from(VERSION));
    assert_eq!(at("length of this header"), SEGMENT_HEADER_BYTES as u64);
    assert_eq!(at("store id"), 0x0102_0304_0506_0708);
    assert_eq!(at("number, equal"), 0x1112_1314);
    assert_eq!(at("salt"), 0x2122_2324_2526_2728);
    assert_eq!(at("number of the segment before"), 0x1112_1313);
    assert_eq!(at("offset at which"), 0x4142_4340);
    assert_eq!(at("that one's chained"), 0x5152_5354);
    assert_eq!(
        at("crc32c of bytes 0..60"),
        u64::from(crc32c::crc32c(&bytes[..60]))
    );
    // The fields cover the header without gaps.
    let mut places: Vec<_> = fields.values().copied().collect();
    places.sort_unstable();
    let end = places.iter().fold(0, |end, &(offset, bytes)| {
        assert_eq!(offset, end);
        offset + bytes
    });
    assert_eq!(end, SEGMENT_HEADER_BYTES);
    assert_eq!(
        SegmentHeader::decode(&bytes, 0x1112_1314),
        Ok((header, crc32c::crc32c(&bytes[..60])))
    );
    assert_eq!(segment_name(7), "000000000007.log");
}

#[test]
fn a_written_log_is_byte_for_byte_as_documented() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    log.append(RecordKind::Group, 5, 1, &[batch(5, 3).body()])
        .unwrap();
    let synced = log.sync_all().unwrap();
    log.append(RecordKind::Ingest, 0x0605_0403_0201, 1, &[b"a", b"bcdefgh"])
        .unwrap();
    log.append(
        RecordKind::KeyspaceDrop,
        0x0605_0403_0202,
        1,
        &[b"\x01\x02\x03"],
    )
    .unwrap();
    let bytes = bytes_of(&storage, "000000000001.log");
    let salt = number(&bytes[32..40]);
    let fields = fields("## Records");
    let mut at = 64;
    let first: &[u8] = b"\x01\x01\x08\x03\0\0\0\0\0\0\0\x05\x9b\x9c\x9d";
    let mut chained = crc32c::crc32c(&bytes[..60]);
    for (payload, kind, sequence, synced) in [
        // The first record of the segment, one behind a sync, and one that repeats nothing.
        (first, 1, 5, Some(Position::new(1, 0))),
        (b"abcdefgh".as_slice(), 2, 0x0605_0403_0201, Some(synced)),
        (b"\x01\x02\x03".as_slice(), 4, 0x0605_0403_0202, None),
    ] {
        let header_bytes = match synced {
            Some(_) => LONG_RECORD_HEADER_BYTES,
            None => RECORD_HEADER_BYTES,
        };
        let header = &bytes[at..at + header_bytes];
        let mut covered = [
            salt.to_le_bytes(),
            1u64.to_le_bytes(),
            (at as u64).to_le_bytes(),
        ]
        .concat();
        covered.extend_from_slice(&header[4..16]);
        covered.extend_from_slice(&header[20..]);
        let h = crc32c::crc32c(&covered);
        let field = |name| number(&header[place(&fields, name)]);
        assert_eq!(
            field("checksum"),
            u64::from(crc32c::crc32c_append(h, payload))
        );
        assert_eq!(field("length of the payload"), payload.len() as u64);
        let bit = u64::from(synced.is_some()) << 7;
        assert_eq!(field("first sequence number"), sequence << 8 | bit | kind);
        assert_eq!(field("header check"), u64::from(h));
        if let Some(synced) = synced {
            assert_eq!(field("synced position: offset"), u64::from(synced.offset));
            assert_eq!(field("synced position: segment"), u64::from(synced.segment));
        }
        chained = crc32c::crc32c_append(chained, &header[..4]);
        let end = at + header_bytes + payload.len();
        assert_eq!(&bytes[at + header_bytes..end], payload);
        at = end.next_multiple_of(RECORD_ALIGN_BYTES);
        assert!(bytes[end..at].iter().all(|&b| b == 0));
    }
    // The fields cover the longer header without gaps, and the shorter one ends where a position
    // begins.
    let mut places: Vec<_> = fields.values().copied().collect();
    places.sort_unstable();
    let end = places.iter().fold(0, |end, &(offset, bytes)| {
        assert_eq!(offset, end);
        offset + bytes
    });
    assert_eq!(end, LONG_RECORD_HEADER_BYTES);
    assert_eq!(
        place(&fields, "synced position: segment").start,
        RECORD_HEADER_BYTES
    );
    assert_eq!(log.end(), Position::new(1, at as u32));
    // The next segment has this end and this chain.
    append(&log, u64::from(u32::MAX) << 16, 4000).unwrap();
    let next = bytes_of(&storage, "000000000002.log");
    let (header, _) = SegmentHeader::decode(&next, 2).unwrap();
    assert_eq!(
        header.previous,
        ChainEnd {
            segment: 1,
            offset: at as u32,
            checksum: chained
        }
    );
    assert_eq!((header.salt, header.store_id), (salt, STORE_ID));
}

#[test]
fn kinds_and_limits_are_as_documented() {
    for row in table("- W2.") {
        let kind: u8 = row[0].parse().unwrap();
        let expected = match &row[1][..] {
            "group of batches" => RecordKind::Group,
            "ingest" => RecordKind::Ingest,
            "keyspace create" => RecordKind::KeyspaceCreate,
            "keyspace drop" => RecordKind::KeyspaceDrop,
            other => panic!("kind {other}"),
        };
        assert_eq!(RecordKind::from_number(kind), Some(expected));
        assert_eq!(expected as u8, kind);
    }
    assert!(
        (5..=255)
            .chain([0])
            .all(|kind| RecordKind::from_number(kind).is_none())
    );
    let kinds = &table("## Batch bodies")[0];
    assert_eq!(
        kinds[1..],
        [
            batch::EntryKind::Put,
            batch::EntryKind::Delete,
            batch::EntryKind::RangeDelete
        ]
        .map(|kind| (kind as u8).to_string())
    );
    let limits = table("## Limits");
    assert_eq!(limits.len(), 8);
    for row in limits {
        let found: u64 = row[1].replace(',', "").parse().unwrap();
        let expected = match &row[0][..] {
            "segment number" => u64::from(MAX_SEGMENT_NUMBER),
            "segment bytes" => MAX_SEGMENT_BYTES,
            "smallest segment size in options" => MIN_SEGMENT_BYTES,
            "payload bytes" => MAX_PAYLOAD_BYTES,
            "key bytes" => batch::MAX_KEY_BYTES as u64,
            "value bytes" => batch::MAX_VALUE_BYTES as u64,
            "batch body bytes" => batch::MAX_BATCH_BYTES as u64,
            "sequence number" => MAX_SEQUENCE,
            other => panic!("limit {other}"),
        };
        assert_eq!(found, expected, "{}", row[0]);
    }
}

#[test]
fn names_are_exact() {
    assert_eq!(parse_segment_name("000000000007.log"), Some(7));
    assert_eq!(
        parse_segment_name(&segment_name(MAX_SEGMENT_NUMBER)),
        Some(MAX_SEGMENT_NUMBER)
    );
    for name in [
        "",
        ".log",
        "7.log",
        "0000000000007.log",
        "00000000007.log",
        "000000000000.log",
        "004294967295.log",
        "999999999999.log",
        "00000000000a.log",
        "+00000000007.log",
        "000000000007.LOG",
        "000000000007.log.old",
        "x000000000007.log",
    ] {
        assert_eq!(parse_segment_name(name), None, "{name}");
    }
}

/// A segment with this one record.
fn one_record(kind: u8, payload: &[u8], synced: Position, first_sequence: u64) -> Vec<u8> {
    let header = SegmentHeader {
        store_id: STORE_ID,
        number: 1,
        salt: 9,
        previous: ChainEnd::NONE,
    };
    let mut bytes = header.encode().to_vec();
    let record = RecordHeader {
        payload_bytes: payload.len() as u32,
        kind,
        synced: Some(synced),
        first_sequence,
    };
    let (header, _) = record.encode(RecordSeed::new(9, 1), 64, &[payload]);
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(payload);
    bytes.resize(bytes.len().next_multiple_of(RECORD_ALIGN_BYTES) + 512, 0);
    bytes
}

#[test]
fn records_with_good_checksums_and_bad_contents_are_refused() {
    let good = batch(3, 9);
    type Case<'a> = (u8, &'a [u8], Position, u64, ErrorKind, &'a str);
    let cases: [Case; 5] = [
        (
            5,
            b"",
            Position::ZERO,
            1,
            ErrorKind::Unsupported,
            "found kind 5",
        ),
        (
            127,
            b"",
            Position::ZERO,
            1,
            ErrorKind::Unsupported,
            "found kind 127",
        ),
        (
            1,
            b"\x07",
            Position::ZERO,
            1,
            ErrorKind::Unsupported,
            "kind 7",
        ),
        (
            1,
            b"\x01\x01\x09",
            Position::ZERO,
            1,
            ErrorKind::Corruption,
            "an entry that is cut off",
        ),
        (
            1,
            good.body(),
            Position::new(1, 72),
            1,
            ErrorKind::Corruption,
            "found 1:72",
        ),
    ];
    for (kind, payload, synced, first, expected, text) in cases {
        let runtime = siltstone_storage::Runtime::threads();
        let bytes = one_record(kind, payload, synced, first);
        let storage = storage_of(&runtime, &[(segment_name(1), bytes)]);
        let error = read(&storage, 1, Position::ZERO).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
        assert_eq!(
            (error.file(), error.offset()),
            (Some(&segment_name(1)[..]), Some(64))
        );
        assert!(error.to_string().contains(text), "{error}");
    }
    // Kind 0 is no record, with and without a synced position.
    for bytes in [
        one_record(0, b"abcd", Position::ZERO, 1),
        one_record(0x80, b"abcd", Position::ZERO, 1),
    ] {
        let runtime = siltstone_storage::Runtime::threads();
        assert_eq!(bytes[64 + 8], 0x80);
        let storage = storage_of(&runtime, &[(segment_name(1), bytes)]);
        let (found, report) = read(&storage, 1, Position::ZERO).unwrap();
        assert_eq!((found.numbers.len(), report.end.offset), (0, 64));
    }
}

#[test]
fn a_later_version_is_distinguished_from_damage() {
    let header = SegmentHeader {
        store_id: STORE_ID,
        number: 1,
        salt: 9,
        previous: ChainEnd::NONE,
    };
    for (version, len) in [(1u32, 64usize), (0, 64), (77, 128), (3, 4096)] {
        let mut bytes = vec![0; len.max(8192)];
        bytes[..64].copy_from_slice(&header.encode());
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        let damaged = bytes.clone();
        let checksum = crc32c::crc32c(&bytes[..len - 4]);
        bytes[len - 4..len].copy_from_slice(&checksum.to_le_bytes());
        let runtime = siltstone_storage::Runtime::threads();
        let storage = storage_of(&runtime, &[(segment_name(1), bytes)]);
        let error = read(&storage, 1, Position::ZERO).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains(&format!("found version {version}")), "{text}");
        let storage = storage_of(&runtime, &[(segment_name(1), damaged)]);
        let error = read(&storage, 1, Position::new(1, 64)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    }
}

#[test]
fn a_segment_of_another_store_is_refused() {
    let header = SegmentHeader {
        store_id: 1,
        number: 1,
        salt: 9,
        previous: ChainEnd::NONE,
    };
    let runtime = siltstone_storage::Runtime::threads();
    let storage = storage_of(&runtime, &[(segment_name(1), header.encode().to_vec())]);
    let error = read(&storage, 1, Position::ZERO).unwrap_err();
    assert!(error.to_string().contains("another store"), "{error}");
}

/// Fields that are never written, with a valid checksum.
#[test]
fn a_header_with_fields_that_are_never_written_is_refused() {
    let header = |previous: u32| SegmentHeader {
        store_id: STORE_ID,
        number: 5,
        salt: 9,
        previous: ChainEnd {
            segment: previous,
            offset: 64,
            checksum: 7,
        },
    };
    assert!(SegmentHeader::decode(&header(4).encode(), 5).is_ok());
    let sealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = header(4).encode().to_vec();
        change(&mut bytes);
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        SegmentHeader::decode(&bytes, 5).unwrap_err()
    };
    for (wrong, said) in [
        // The segment is its own predecessor.
        (sealed(&|b| b[40] = 5), "previous segment 5"),
        // Numbers and offsets have 32 bits.
        (sealed(&|b| b[44] = 1), "previous segment 4294967300"),
        (sealed(&|b| b[52] = 1), "previous end 4294967360"),
        // This version, with a header of another length.
        (
            sealed(&|b| {
                b[12] = 72;
                b.resize(72, 0);
            }),
            "a header of 72 bytes",
        ),
        (sealed(&|b| b[24] = 6), "the header of segment 6"),
    ] {
        assert!(wrong.to_string().contains(said), "{said}: {wrong}");
    }
}

/// Two records have valid checksums and the same numbers: entries of the second would replace those
/// of the first.
#[test]
fn records_whose_numbers_do_not_ascend_are_refused() {
    let body = batch(7, 9);
    let mut bytes = one_record(1, body.body(), Position::ZERO, 7);
    let at = 64 + record_bytes(LONG_RECORD_HEADER_BYTES, body.body().len() as u64) as usize;
    let record = RecordHeader {
        payload_bytes: body.body().len() as u32,
        kind: 1,
        synced: None,
        first_sequence: 7,
    };
    let (head, _) = record.encode(RecordSeed::new(9, 1), at as u32, &[body.body()]);
    bytes[at..at + head.len()].copy_from_slice(&head);
    let from = at + head.len();
    bytes[from..from + body.body().len()].copy_from_slice(body.body());
    let runtime = siltstone_storage::Runtime::threads();
    let storage = storage_of(&runtime, &[(segment_name(1), bytes)]);
    let error = read(&storage, 1, Position::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(
        (error.file(), error.offset()),
        (Some(&segment_name(1)[..]), Some(at as u64))
    );
    assert!(error.to_string().contains("do not ascend"), "{error}");
    assert!(error.found_value().is_some(), "{error}");
}

/// A later segment that a newer version wrote is not the end of the history, or its data would be
/// lost silently.
#[test]
fn a_later_segment_of_a_newer_version_is_refused() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    let mut number = 0;
    while log.end().segment < 2 {
        number += 1;
        append(&log, number, 300).unwrap();
    }
    log.sync_all().unwrap();
    let mut objects = objects_of(&storage);
    let (name, bytes) = &mut objects[1];
    assert_eq!(*name, segment_name(2));
    bytes[8] = 9;
    let checksum = crc32c::crc32c(&bytes[..60]);
    bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    let error = read(&storage_of(&runtime, &objects), 1, Position::ZERO).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert_eq!(error.file(), Some(&segment_name(2)[..]), "{error}");
    assert!(error.advice_text().is_some(), "{error}");
}
