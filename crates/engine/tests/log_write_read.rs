//! The log from append to replay, without faults.

mod log_common;

use log_common::*;
use siltstone::ErrorKind;
use siltstone::batch::BatchBody;
use siltstone::log::format::{MAX_SEQUENCE, segment_name};
use siltstone::log::{Discarded, Position, RecordKind, ReplayOptions, replay};
use siltstone_storage::Storage;

#[test]
fn what_is_appended_is_read_back_across_segments() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    assert_eq!(log.first_segment(), 1);
    let mut rng = Rng(1);
    let mut ends = Vec::new();
    for number in 1..=300 {
        if log.needs_prepare(1) && rng.below(2) == 0 {
            log.prepare(1).unwrap();
        }
        ends.push(append(&log, number, rng.below(200) as usize).unwrap());
    }
    assert!(ends.windows(2).all(|w| w[0] < w[1]));
    assert_eq!(log.end(), *ends.last().unwrap());
    assert_eq!(log.synced(), Position::new(1, 0));
    let (found, report) = read(&storage, 1, Position::ZERO).unwrap();
    assert_eq!(found.numbers, (1..=300).collect::<Vec<_>>());
    assert_eq!(found.places.iter().map(|p| p.1).collect::<Vec<_>>(), ends);
    assert_eq!((report.end, report.last_sequence), (log.end(), Some(300)));
    assert_eq!(
        (report.record_count, report.discarded),
        (300, Discarded::default())
    );
    assert!(report.segment_count > 5, "{report:?}");
    let stats = log.stats();
    assert_eq!(stats.appended_record_count, 300);
    assert_eq!(stats.appended_bytes, report.record_bytes);
    assert_eq!(stats.live_segment_count as u64, report.segment_count);
    assert_eq!(
        stats.live_bytes,
        report.record_bytes + 64 * report.segment_count
    );
}

#[test]
fn a_group_is_one_record_and_parts_need_no_joining() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 1 << 20);
    let batches: Vec<BatchBody> = (0..200).map(|n| batch(n, 3)).collect();
    for count in [0usize, 1, 2, 63, 64, 65, 200] {
        let parts: Vec<&[u8]> = batches[..count].iter().map(|b| b.body()).collect();
        log.append(RecordKind::Group, count as u64 * 1000, count as u64, &parts)
            .unwrap();
    }
    log.append(RecordKind::Ingest, MAX_SEQUENCE - 2, 1, &[b"in", b"gest"])
        .unwrap();
    log.append(RecordKind::KeyspaceCreate, MAX_SEQUENCE - 1, 1, &[])
        .unwrap();
    log.append(RecordKind::KeyspaceDrop, MAX_SEQUENCE, 1, &[&[9]])
        .unwrap();
    let mut seen = Vec::new();
    let options = ReplayOptions::from_segment(1, STORE_ID);
    let report = replay(&storage, &options, &mut |r| {
        seen.push((
            r.kind,
            r.first_sequence,
            r.sequence_count,
            r.payload.to_vec(),
        ));
        Ok(())
    })
    .unwrap();
    assert_eq!(report.last_sequence, Some(MAX_SEQUENCE));
    for (record, count) in seen.iter().zip([0usize, 1, 2, 63, 64, 65, 200]) {
        let joined: Vec<u8> = batches[..count]
            .iter()
            .flat_map(|b| b.body().to_vec())
            .collect();
        assert_eq!(
            *record,
            (RecordKind::Group, count as u64 * 1000, count as u64, joined)
        );
    }
    assert_eq!(
        seen[7],
        (RecordKind::Ingest, MAX_SEQUENCE - 2, 1, b"ingest".to_vec())
    );
    assert_eq!(
        seen[8],
        (RecordKind::KeyspaceCreate, MAX_SEQUENCE - 1, 1, Vec::new())
    );
    assert_eq!(
        seen[9],
        (RecordKind::KeyspaceDrop, MAX_SEQUENCE, 1, vec![9])
    );
}

#[test]
fn impossible_records_are_refused_and_leave_the_log_usable() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    append(&log, 10, 5).unwrap();
    let end = log.end();
    for (first, count) in [
        (10, 1),
        (0, 1),
        (MAX_SEQUENCE, 2),
        (MAX_SEQUENCE + 1, 1),
        (u64::MAX, 1),
    ] {
        let error = log
            .append(RecordKind::Group, first, count, &[b"x"])
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
    let large = vec![0u8; 1 << 20];
    let parts: Vec<&[u8]> = (0..2049).map(|_| &large[..]).collect();
    let error = log.append(RecordKind::Group, 11, 1, &parts).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(
        log.sync(Position::new(9, 9)).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(log.end(), end);
    append(&log, 12, 5).unwrap();
    assert_eq!(
        read(&storage, 1, Position::ZERO).unwrap().0.numbers,
        [10, 12]
    );
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    append(&log, 1, 100).unwrap();
    log.prepare(1).unwrap();
    let end = append(&log, 2, 3 << 20).unwrap();
    assert_eq!(end.segment, 2);
    append(&log, 3, 100).unwrap();
    log.sync_all().unwrap();
    let after = storage.crash(siltstone_storage::CrashPolicy::LoseUnsynced);
    let (found, report) = read(&after, 1, log.synced()).unwrap();
    assert_eq!(found.numbers, [1, 2, 3]);
    assert_eq!(report.end, log.end());
    let sizes: Vec<u64> = after.list().unwrap().iter().map(|o| o.len).collect();
    assert!(
        sizes[0] == 4096 && sizes[1] > 3 << 20 && sizes[2] == 4096,
        "{sizes:?}"
    );
    // It is not worth keeping for reuse.
    assert_eq!(log.obsolete(3).unwrap(), 3);
    assert_eq!(log.stats().pooled_segment_count, 1);
    assert_eq!(
        storage
            .list()
            .unwrap()
            .iter()
            .filter(|o| o.name == segment_name(2))
            .count(),
        0
    );
}

#[test]
fn a_new_writer_starts_a_chain_above_every_name_found() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    for number in 1..=100 {
        append(&log, number, 100).unwrap();
    }
    log.prepare(1).unwrap();
    let old_end = log.sync_all().unwrap();
    drop(log);
    let before = objects_of(&storage);
    let next = start(&runtime, &storage, 4096);
    assert_eq!(
        next.first_segment(),
        old_end.segment + 2,
        "a prepared segment's name counts"
    );
    next.sync_all().unwrap();
    // Until the manifest names it, the new chain has no record and is an orphan.
    let (found, report) = read(&storage, 1, old_end).unwrap();
    assert_eq!(found.numbers, (1..=100).collect::<Vec<_>>());
    assert_eq!(
        (report.end, report.discarded),
        (old_end, Discarded::default())
    );
    assert_eq!(report.highest_segment, next.first_segment());
    append(&next, 101, 100).unwrap();
    next.sync_all().unwrap();
    let after = objects_of(&storage);
    assert_eq!(
        &after[..before.len()],
        &before[..],
        "an inherited log is not touched"
    );
    append(&next, 102, 100).unwrap();
    let error = read(&storage, 1, old_end).expect_err("the manifest is an older one");
    assert!(error.is_corruption(), "{error}");
    let (found, _) = read(&storage, next.first_segment(), next.synced()).unwrap();
    assert_eq!(found.numbers, [101, 102]);
    // All inherited segments can be deleted.
    assert_eq!(next.oldest_segment(), 1);
    assert_eq!(
        next.obsolete(next.first_segment()).unwrap(),
        next.first_segment()
    );
    assert_eq!(next.stats().pooled_segment_count, 2);
    assert_eq!(storage.list().unwrap().len(), 3);
}

#[test]
fn a_recycled_segment_never_shows_its_old_records() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    let mut expected = Vec::new();
    for number in 1..=2000u64 {
        let before = log.end().segment;
        let end = append(&log, number, 150).unwrap();
        if end.segment != before {
            log.sync_all().unwrap();
            log.obsolete(end.segment.saturating_sub(1)).unwrap();
            expected.retain(|&(segment, _): &(u32, u64)| segment + 1 >= end.segment);
        }
        expected.push((end.segment, number));
        let stats = log.stats();
        assert!(stats.live_segment_count <= 3 && stats.pooled_segment_count <= 2);
        if number % 7 == 0 {
            let oldest = log.oldest_segment();
            let (found, report) = read(&storage, oldest, log.synced()).unwrap();
            let numbers: Vec<u64> = expected.iter().map(|e| e.1).collect();
            assert_eq!(found.numbers, numbers);
            assert_eq!(
                (report.end, report.discarded),
                (log.end(), Discarded::default())
            );
        }
    }
    let stats = log.stats();
    assert!(stats.recycled_segment_count > 50, "{stats:?}");
    assert!(stats.created_segment_count < 8, "{stats:?}");
    // A recycled segment is not filled with zeros again.
    assert_eq!(stats.zeroed_bytes, stats.created_segment_count * 4096);
}

#[test]
fn local_files_give_the_same_as_memory() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = siltstone_storage::Runtime::threads();
    let storage =
        std::sync::Arc::new(siltstone_storage::FileStorage::open_or_create(folder.path()).unwrap());
    let config = || config(&runtime, storage.clone(), 4096);
    let log = siltstone::log::LogWriter::start(config()).unwrap();
    for number in 1..=200 {
        let before = log.end().segment;
        let end = append(&log, number, 250).unwrap();
        if number % 10 == 0 {
            log.sync_all().unwrap();
        }
        if end.segment != before && end.segment > 5 {
            log.sync_all().unwrap();
            log.obsolete(end.segment - 2).unwrap();
        }
    }
    assert!(log.stats().recycled_segment_count > 3);
    let oldest = log.oldest_segment();
    let (synced, end) = (log.synced(), log.end());
    drop(log);
    let (found, report) = read(&*storage, oldest, synced).unwrap();
    assert_eq!(found.numbers.last(), Some(&200));
    assert!(found.numbers.windows(2).all(|w| w[1] == w[0] + 1));
    assert_eq!((report.end, report.discarded), (end, Discarded::default()));
    let next = siltstone::log::LogWriter::start(config()).unwrap();
    assert!(next.first_segment() > end.segment);
}

/// The first segments are small, so that a small log is a small file. Each is twice as large as the
/// one before, up to the size in the options.
#[test]
fn segments_begin_small_and_grow() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 1 << 20);
    let mut number = 0;
    while log.end().segment < 5 {
        number += 1;
        append(&log, number, 10_000).unwrap();
    }
    let lens: Vec<u64> = storage.list().unwrap().iter().map(|o| o.len).collect();
    assert_eq!(
        lens,
        [256 << 10, 512 << 10, 1 << 20, 1 << 20, 1 << 20],
        "bytes"
    );
}

/// Reserved space is given back: the prepared segment, the pool, and the space behind the records.
#[test]
fn a_closed_log_is_cut_behind_its_records() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 64 << 10);
    for number in 1..=300 {
        append(&log, number, 1000).unwrap();
    }
    log.sync_all().unwrap();
    log.obsolete(log.end().segment).unwrap();
    log.prepare(1).unwrap();
    let before = log.stats();
    assert!(before.pooled_segment_count > 0 && before.prepared_segment_count > 0);
    log.shrink(8 << 10).unwrap();
    let end = log.end();
    let left = storage.list().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    let kept = u64::from(end.offset).next_multiple_of(4 << 10).max(8 << 10);
    assert_eq!(left[0].len, kept, "{left:?}");
    // The log can still be used: another record goes into a new segment.
    let more = append(&log, 301, 1000).unwrap();
    assert!(more.segment > end.segment);
}
