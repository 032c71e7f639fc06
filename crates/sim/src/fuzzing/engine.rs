//! Parsers of the crate `siltstone`: log, manifest, pointer, settings, statistics.

use siltstone::batch::{BatchBody, Entries, EntryKind, count_entries};
use siltstone::inspect::{LogFile, LogItem, ManifestFile, ManifestItem};
use siltstone::log::format::{
    ChainEnd, SEGMENT_HEADER_BYTES, SegmentHeader, parse_segment_name, segment_name,
};
use siltstone::log::{Position, ReplayOptions, ReplayReport, replay};
use siltstone::manifest::reader::parse_manifest;
use siltstone::manifest::{Current, manifest_name, parse_manifest_name};
use siltstone::version::{Edit, StoreState, StoredOptions};
use siltstone::{KeyspaceOptions, Options, Value, read_stats_file_from};
use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};

use super::fixup;
use super::table::Bytes;

/// A storage that holds one object.
fn storage_with(name: &str, bytes: &[u8]) -> MemoryStorage {
    let storage = MemoryStorage::new(&Runtime::threads());
    let lease = storage.lease("store").expect("a new storage");
    let file = storage.create(lease.epoch(), name).expect("a free name");
    file.append(&[bytes]).expect("memory");
    storage
}

pub(super) fn batch(bytes: &[u8]) {
    let count = count_entries(bytes);
    let mut again = BatchBody::new();
    let mut found = 0;
    let mut entries = Entries::new(bytes);
    let mut is_good = true;
    while let Some(entry) = entries.next() {
        assert!(entries.position() <= bytes.len());
        let Ok(entry) = entry else {
            is_good = false;
            break;
        };
        found += 1;
        let put = match entry.kind {
            EntryKind::Put => again.put(entry.keyspace, entry.key, entry.value),
            EntryKind::Delete => again.delete(entry.keyspace, entry.key),
            EntryKind::RangeDelete => again.delete_range(entry.keyspace, entry.key, entry.value),
        };
        put.expect("what decodes can be written");
    }
    assert_eq!(count.is_ok(), is_good);
    if is_good {
        assert_eq!(count.ok(), Some(found));
        assert_eq!(again.body(), bytes, "a batch has one spelling");
    }
    let whole = BatchBody::from_bytes(bytes.to_vec());
    assert!(whole.is_err() || is_good);
}

fn read_segment(bytes: &[u8], store_id: u64) {
    let name = "000000000001.log";
    let storage = storage_with(name, bytes);
    let options = ReplayOptions::from_segment(1, store_id);
    let (mut end, mut next, mut count) = (Position::new(1, 0), 0, 0u64);
    let report = replay(&storage, &options, &mut |record| {
        assert!(record.position >= end && record.end > record.position);
        assert!(record.first_sequence >= next);
        end = record.end;
        next = record.first_sequence + record.sequence_count;
        count += 1;
        if record.kind == siltstone::log::RecordKind::Group {
            let entries = Entries::new(record.payload);
            let entries = entries.map(|e| e.expect("a group's entries decode"));
            assert_eq!(entries.count() as u64, record.sequence_count);
        }
        Ok(())
    });
    if let Ok(report) = report {
        assert_eq!(report.record_count, count);
        assert!(report.end >= end);
    }
    let file = storage.open(name).expect("it was written");
    let mut log = LogFile::open(&*file).expect("damage is no error of an inspection");
    while let Some(item) = log
        .next_item()
        .expect("damage is no error of an inspection")
    {
        if let LogItem::Record(record) = item {
            record.entries().for_each(drop);
        }
    }
}

pub(super) fn log_segment(bytes: &[u8]) {
    let eight = |at: usize| {
        let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
        u64::from_le_bytes(eight.unwrap_or_default())
    };
    let store_id = eight(16);
    read_segment(bytes, store_id);
    let header = SegmentHeader {
        store_id,
        number: 1,
        salt: eight(32),
        previous: ChainEnd::NONE,
    };
    read_segment(&fixup::segment(bytes, &header), store_id);
}

/// The manifest that the first bytes of the input of [`log_chain`] describe, and the bytes after
/// them.
fn draw_manifest(bytes: &[u8]) -> Option<(ReplayOptions, &[u8])> {
    let ([flags, offset], mut rest) = bytes.split_first_chunk::<2>()?;
    let mut options = ReplayOptions {
        synced: Position::new(u32::from(flags % 4), u32::from(*offset) * 4),
        closed: flags & 4 != 0,
        ..ReplayOptions::from_segment(1, 7)
    };
    if flags & 64 != 0 {
        let (offset, behind) = rest.split_first()?;
        let offset = match u32::from(*offset) * 4 {
            offset if offset < SEGMENT_HEADER_BYTES as u32 => 0,
            offset => offset,
        };
        rest = behind;
        options.start = Position::new(1 + u32::from(flags >> 4 & 3), offset);
        options.salt = 1 + u64::from(flags >> 3 & 1);
        if offset > 0 {
            // Every valid state has this property.
            options.synced = options.synced.max(options.start);
        }
    }
    Some((options, rest))
}

/// Segments of one chain. The first two bytes describe the manifest: what is synced, whether the
/// store was closed, and whether there is a log start, whose offset is then the third byte. Then
/// come segments: a byte of flags, a length (u16), and bytes. Flag 1: the checksums are made right
/// and the segment is linked to the one before. Flag 2: it is the first segment of another chain.
/// Flag 4: it is missing.
pub(super) fn log_chain(bytes: &[u8]) {
    let Some((options, mut rest)) = draw_manifest(bytes) else {
        return;
    };
    let (start, synced) = (options.start, options.synced);
    let storage = MemoryStorage::new(&Runtime::threads());
    let (mut previous, mut salt) = (ChainEnd::NONE, 1);
    let mut before: Vec<(Position, u64)> = Vec::new();
    let mut whole = None;
    for number in 1..=4 {
        let Some(([how, low, high], behind)) = rest.split_first_chunk::<3>() else {
            break;
        };
        let len = usize::from(u16::from_le_bytes([*low, *high])).min(behind.len());
        let (piece, behind) = behind.split_at(len);
        rest = behind;
        if how & 2 != 0 {
            (previous, salt) = (ChainEnd::NONE, salt + 1);
        }
        let header = SegmentHeader {
            store_id: options.store_id,
            number,
            salt,
            previous,
        };
        let (fitting, end) = fixup::linked(piece, &header);
        let object = if how & 1 != 0 { &fitting[..] } else { piece };
        previous = end;
        if how & 4 == 0 {
            storage
                .replace(Epoch::default(), &segment_name(number), object)
                .expect("memory");
        }
        let (found, report) = replay_of(&storage, &options);
        // A group may be empty, and then has no number.
        assert!(found.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        // A later segment can change whether the end is corruption, and what follows it.
        assert!(found.starts_with(&before), "{before:?}, then {found:?}");
        whole = None;
        match report {
            Ok(report) => {
                assert_eq!(report.record_count, found.len() as u64);
                let last = found
                    .last()
                    .map_or(Position::new(start.segment, 0), |l| l.0);
                assert!(report.end >= last && report.end >= synced);
                if let Some(skipped) = &report.skipped {
                    assert!(skipped.from < start && skipped.through == start);
                    assert!(skipped.keeps_start || options.closed);
                }
                whole = Some(report.end);
            }
            Err(e) => assert!(e.file().is_some(), "an error that names no file: {e}"),
        }
        before = found;
    }
    if let Some(end) = whole {
        close_at(&storage, options, end, &before);
    }
}

/// The records that a replay returns, and its report.
fn replay_of(
    storage: &MemoryStorage,
    options: &ReplayOptions,
) -> (Vec<(Position, u64)>, siltstone::Result<ReplayReport>) {
    let mut found = Vec::new();
    let report = replay(storage, options, &mut |record| {
        found.push((record.end, record.first_sequence));
        Ok(())
    });
    (found, report)
}

/// Checks that a log that is valid up to `end` reads the same if the manifest says that it was
/// closed there. Without its last bytes it must be refused, unless nothing in it is needed.
fn close_at(
    storage: &MemoryStorage,
    options: ReplayOptions,
    end: Position,
    wanted: &[(Position, u64)],
) {
    let closed = ReplayOptions {
        synced: end,
        closed: true,
        ..options
    };
    let (found, report) = replay_of(storage, &closed);
    assert_eq!(found, wanted);
    assert_eq!(report.expect("it was read before").end, end);
    let last = segment_name(end.segment);
    if let Ok(bytes) = storage.read_small(&last)
        && bytes.len() >= end.offset as usize
        && end.offset >= SEGMENT_HEADER_BYTES as u32
    {
        let cut = &bytes[..end.offset as usize - 8];
        storage
            .replace(Epoch::default(), &last, cut)
            .expect("memory");
        let (_, report) = replay_of(storage, &closed);
        assert_eq!(report.is_err(), end > options.start, "cut before {end}");
    }
}

/// Checks that a log start within a segment is not beyond what is synced.
fn check_log_start(state: &StoreState) {
    let (start, synced) = (state.log_start, state.log_synced);
    assert!(start.offset == 0 || start.position() <= synced);
}

fn read_manifest(bytes: &[u8], current: &Current) {
    if let Ok(recovered) = parse_manifest(bytes, current) {
        assert!(recovered.end.offset <= bytes.len() as u64);
        assert!(recovered.end.offset + recovered.dropped_bytes <= bytes.len() as u64 + 24);
        check_log_start(&recovered.state);
        let whole = recovered.state.to_edit();
        let again = Edit::decode(&whole.encode()).expect("a state encodes").edit;
        assert_eq!(again, whole);
        let again = StoreState::default().apply(&again);
        assert_eq!(again.expect("a state can be read back"), recovered.state);
    }
    let file = Bytes {
        name: manifest_name(current.number),
        bytes: bytes.to_vec(),
    };
    let mut manifest = ManifestFile::open(&file).expect("damage is no error of an inspection");
    while let Some(item) = manifest.next_item() {
        if let ManifestItem::Damage { end, .. } = item {
            assert!(end <= bytes.len() as u64);
        }
    }
}

pub(super) fn manifest(bytes: &[u8]) {
    let current = fixup::current_of(bytes);
    read_manifest(bytes, &current);
    read_manifest(&fixup::manifest(bytes, &current), &current);
}

pub(super) fn edit(bytes: &[u8]) {
    let Ok(found) = Edit::decode(bytes) else {
        return;
    };
    let encoded = found.edit.encode();
    let again = Edit::decode(&encoded).expect("what decodes encodes");
    assert_eq!(again.edit, found.edit);
    assert_eq!(again.ignored_count, 0);
    assert_eq!(again.edit.encode(), encoded);
    let state = if found.edit.whole {
        StoreState::default()
    } else {
        StoreState::new()
    };
    if let Ok(state) = state.apply(&found.edit) {
        check_log_start(&state);
        assert_eq!(
            state.closed, found.edit.closed,
            "the mark of a close holds until the next edit"
        );
        let back = StoreState::default().apply(&state.to_edit());
        assert_eq!(back.expect("a state can be read back"), state);
    }
}

pub(super) fn pointer(bytes: &[u8]) {
    if let Ok(current) = Current::decode(bytes) {
        assert_eq!(current.encode(), bytes, "a pointer has one spelling");
    }
    // The bytes with a right checksum.
    let Some(at) = bytes.windows(8).rposition(|w| w == b"\ncrc32c ") else {
        return;
    };
    let mut fitting = bytes[..=at].to_vec();
    let crc = siltstone_table::checksum::crc32c(&fitting);
    fitting.extend_from_slice(format!("crc32c {crc:08x}\n").as_bytes());
    if let Ok(current) = Current::decode(&fitting) {
        assert_eq!(current.encode(), fitting, "a pointer has one spelling");
    }
}

pub(super) fn options(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(options) = Options::from_toml(text) {
        let again = options.to_toml();
        match Options::from_toml(&again) {
            Ok(back) => assert_eq!(back, options),
            Err(e) => panic!("{e}\n{again}"),
        }
    }
}

/// Lines of NAME=VALUE, each set alone: for the store, and for a keyspace. Values are numbers,
/// switches, strings, or lists with semicolons.
pub(super) fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let value_of = |text: &str| match text {
        "true" | "false" => Value::from(text == "true"),
        _ => match text.parse::<u64>() {
            Ok(number) => number.into(),
            Err(_) => text.into(),
        },
    };
    for line in text.lines().take(4) {
        let Some((name, value)) = line.split_once('=') else {
            continue;
        };
        let value = match value.contains(';') {
            true => Value::from(value.split(';').map(value_of).collect::<Vec<_>>()),
            false => value_of(value),
        };
        let mut options = Options::default();
        if options.set(name, &value).is_ok() {
            let got = options.get(name).expect("it was set");
            let mut again = Options::default();
            again.set(name, &got).expect("what is got can be set");
            assert_eq!(again, options, "{line}");
            if options.validate().is_ok() {
                let toml = options.to_toml();
                let back = Options::from_toml(&toml).expect("what is written is read");
                assert_eq!(back, options, "{line}");
            }
        }
        let mut own = KeyspaceOptions::default();
        if own.set(name, &value).is_ok() {
            let mut again = KeyspaceOptions::default();
            for (name, value) in own.values() {
                again.set(name, &value).expect("what is got can be set");
            }
            assert_eq!(again, own, "{line}");
            own.unset(name).expect("a setting of keyspaces");
            assert!(own.is_empty(), "{line}");
        }
    }
}

/// A file's name.
pub(super) fn names(bytes: &[u8]) {
    let Ok(name) = std::str::from_utf8(bytes) else {
        return;
    };
    let is_ours = siltstone::is_store_file(name);
    if let Some(number) = parse_segment_name(name) {
        assert_eq!(segment_name(number), name, "a segment has one name");
        assert!(is_ours);
    }
    if let Some(number) = parse_manifest_name(name) {
        assert_eq!(manifest_name(number), name, "a manifest has one name");
        assert!(is_ours);
    }
}

pub(super) fn stored_options(bytes: &[u8]) {
    let Ok(stored) = StoredOptions::decode(bytes) else {
        return;
    };
    let again = StoredOptions::decode(&stored.encode()).expect("what decodes encodes");
    assert_eq!(again, stored);
    siltstone::inspect::stored_options(&stored);
}

pub(super) fn stats(bytes: &[u8]) {
    let storage = storage_with("STATS.json", bytes);
    if let Ok(stats) = read_stats_file_from(&storage) {
        let _ = format!("{stats:?}");
    }
}
