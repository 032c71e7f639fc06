//! Failing storage calls of the log: which of them poison it, and which calls get the error.

#[path = "log_common/fault.rs"]
mod fault;
mod log_common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fault::{Faulty, Hook};
use log_common::*;
use siltstone::ErrorKind;
use siltstone::log::format::{MAX_SEGMENT_NUMBER, segment_name};
use siltstone::log::{LogWriter, Position};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{
    CrashPolicy, Epoch, FaultStorage, MemoryStorage, Mutex, OpKind, Runtime, Storage,
    StorageErrorKind,
};

fn faulty(runtime: &Runtime, storage: &MemoryStorage, hook: Hook) -> siltstone::Result<LogWriter> {
    LogWriter::start(config(
        runtime,
        Arc::new(Faulty {
            inner: storage.clone(),
            hook,
        }),
        4096,
    ))
}

#[test]
fn a_full_disk_does_not_poison_and_passes() {
    let (runtime, storage) = memory();
    storage.set_capacity(Some(4096));
    let log = start(&runtime, &storage, 4096);
    let mut number = 1;
    let refused = loop {
        match append(&log, number, 200) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(refused.is_no_space() && number > 5, "{refused}");
    assert!(log.prepare(1).unwrap_err().is_no_space());
    // The segment still takes what fits, what was appended can be synced, and nothing is left
    // behind.
    append(&log, number, 0).unwrap();
    log.sync_all().unwrap();
    assert!(log.needs_prepare(1) && log.poison_cause().is_none());
    assert_eq!(storage.list().unwrap().len(), 1);
    storage.set_capacity(Some(8192));
    log.prepare(1).unwrap();
    append(&log, number + 1, 200).unwrap();
    // A batch that needs more than the prepared segment is refused, and the next one fits.
    assert!(append(&log, number + 2, 50_000).unwrap_err().is_no_space());
    append(&log, number + 2, 10).unwrap();
    let synced = log.sync_all().unwrap();
    assert_eq!(synced.segment, 2);
    let (found, _) = read(&storage.crash(CrashPolicy::LoseUnsynced), 1, synced).unwrap();
    assert_eq!(found.numbers, (1..=number + 2).collect::<Vec<_>>());
}

#[test]
fn a_full_disk_at_open_leaves_nothing_behind() {
    let (runtime, storage) = memory();
    storage.set_capacity(Some(0));
    let error = LogWriter::start(config(&runtime, Arc::new(storage.clone()), 4096))
        .err()
        .unwrap();
    assert!(error.is_no_space(), "{error}");
    assert!(storage.list().unwrap().is_empty());
    storage.set_capacity(None);
    append(&start(&runtime, &storage, 4096), 1, 10).unwrap();
}

/// Every call of a run fails once: the log either continues or is poisoned, as the rules say. In
/// both cases everything that was acknowledged as synced survives a power loss.
#[test]
fn every_single_failure_either_passes_or_poisons() {
    let (mut poisoned_runs, mut clean_runs) = (0, 0);
    for fail_at in 0.. {
        let (runtime, storage) = memory();
        let calls = Arc::new(AtomicU64::new(0));
        let failed = Arc::new(runtime.mutex(None::<(&'static str, String)>));
        let hook: Hook = {
            let (calls, failed) = (calls.clone(), failed.clone());
            Arc::new(move |op, name| {
                (calls.fetch_add(1, Ordering::Relaxed) == fail_at).then(|| {
                    *failed.lock() = Some((op, name.to_string()));
                    StorageErrorKind::Io
                })
            })
        };
        let reported = Arc::new(AtomicU64::new(0));
        let config = {
            let reported = reported.clone();
            let storage = Arc::new(Faulty {
                inner: storage.clone(),
                hook,
            });
            siltstone::log::LogConfig {
                reserve: None,
                on_poison: Box::new(move |_| {
                    reported.fetch_add(1, Ordering::Relaxed);
                }),
                ..config(&runtime, storage, 4096)
            }
        };
        let Ok(log) = LogWriter::start(config) else {
            assert!(fail_at < 10);
            continue;
        };
        let (mut appended, mut synced) = (Vec::new(), 0);
        for number in 1..=60 {
            match append(&log, number, 150) {
                Ok(_) => appended.push(number),
                Err(_) if log.poison_cause().is_some() => break,
                Err(_) => {
                    append(&log, number, 150).unwrap();
                    appended.push(number);
                }
            }
            if number % 4 == 0 && log.sync_all().is_ok() {
                synced = appended.len();
            }
            if number % 3 == 0 && log.needs_prepare(1) {
                let _ = log.prepare(1);
            }
            if number % 20 == 0 {
                let _ = log.obsolete(1);
            }
        }
        let cause = log.poison_cause();
        let Some((op, name)) = failed.lock().clone() else {
            assert!(cause.is_none());
            break;
        };
        let context = format!("call {fail_at}, {op} {name}");
        match &cause {
            Some(cause) => {
                poisoned_runs += 1;
                assert!(matches!(op, "append" | "sync" | "sync_dir"), "{context}");
                assert_eq!(
                    (cause.kind(), reported.load(Ordering::Relaxed)),
                    (ErrorKind::Poisoned, 1)
                );
                for error in [
                    append(&log, 1000, 1).unwrap_err(),
                    log.prepare(1).unwrap_err(),
                    log.obsolete(1).unwrap_err(),
                ] {
                    assert_eq!(error.kind(), ErrorKind::Poisoned, "{context}");
                }
                if log.synced() < log.end() {
                    assert_eq!(log.sync_all().unwrap_err().kind(), ErrorKind::Poisoned);
                }
            }
            None => {
                clean_runs += 1;
                assert_eq!(reported.load(Ordering::Relaxed), 0);
                assert_eq!(appended.len(), 60, "{context}");
                assert!(
                    !matches!(op, "append" | "sync_dir"),
                    "{context} should poison"
                );
                let (found, _) = read(&storage, 1, Position::ZERO).unwrap();
                assert_eq!(found.numbers, appended, "{context}");
            }
        }
        for policy in [
            CrashPolicy::LoseUnsynced,
            CrashPolicy::KeepUnsynced,
            CrashPolicy::Seeded(fail_at),
        ] {
            let (found, _) = read(&storage.crash(policy), 1, log.synced())
                .unwrap_or_else(|error| panic!("{context}, {policy:?}: {error}"));
            assert!(
                found.numbers.len() >= synced,
                "{context}: {} of {synced}",
                found.numbers.len()
            );
            assert_eq!(
                found.numbers[..],
                (1..=60).take(found.numbers.len()).collect::<Vec<_>>()[..]
            );
        }
    }
    assert!(
        poisoned_runs > 50 && clean_runs > 5,
        "{poisoned_runs} {clean_runs}"
    );
}

#[test]
fn a_sync_error_reported_once_reaches_everyone_who_waits() {
    for round in 0..30 {
        let (runtime, storage) = memory();
        let armed = Arc::new(AtomicBool::new(false));
        let syncs = Arc::new(AtomicU64::new(0));
        let hook: Hook = {
            let (armed, syncs, runtime) = (armed.clone(), syncs.clone(), runtime.clone());
            Arc::new(move |op, _| {
                if op == "sync" && armed.load(Ordering::SeqCst) {
                    // The first sync fails late, when the others already wait for the role. Any
                    // later one would succeed.
                    let first = syncs.fetch_add(1, Ordering::SeqCst) == 0;
                    if first {
                        runtime.sleep(std::time::Duration::from_millis(2));
                        return Some(StorageErrorKind::Io);
                    }
                }
                None
            })
        };
        let log = Arc::new(faulty(&runtime, &storage, hook).unwrap());
        append(&log, 1, 100).unwrap();
        let safe = log.sync_all().unwrap();
        let end = append(&log, 2, 100).unwrap();
        armed.store(true, Ordering::SeqCst);
        let answers: Vec<_> = (0..4)
            .map(|_| {
                let log = log.clone();
                runtime.spawn("sync", move || log.sync(end)).unwrap()
            })
            .collect::<Vec<_>>()
            .into_iter()
            .map(|task| task.join().unwrap())
            .collect();
        for answer in answers {
            assert_eq!(
                answer.unwrap_err().kind(),
                ErrorKind::Poisoned,
                "round {round}"
            );
        }
        assert_eq!(
            syncs.load(Ordering::SeqCst),
            1,
            "a failed sync was repeated"
        );
        // What was synced before is still durable.
        assert_eq!(log.sync(safe).unwrap(), safe);
        assert_eq!(log.synced(), safe);
        let (found, _) = read(&storage.crash(CrashPolicy::KeepUnsynced), 1, safe).unwrap();
        assert_eq!(found.numbers[..1], [1]);
    }
}

#[test]
fn appends_wait_for_no_sync_and_a_sync_covers_what_was_complete_when_it_began() {
    let (runtime, storage) = memory();
    let appended: Arc<Mutex<Option<Arc<LogWriter>>>> = Arc::new(runtime.mutex(None));
    let hook: Hook = {
        let appended = appended.clone();
        Arc::new(move |op, _| {
            // The leader appends in the middle of the sync. If both shared a lock, this would hang.
            if op == "sync"
                && let Some(log) = appended.lock().take()
            {
                append(&log, 2, 100).unwrap();
            }
            None
        })
    };
    let log = Arc::new(faulty(&runtime, &storage, hook).unwrap());
    let first = append(&log, 1, 100).unwrap();
    *appended.lock() = Some(log.clone());
    assert_eq!(log.sync(first).unwrap(), first);
    assert!(
        log.end() > first,
        "the second record was appended during the sync"
    );
    assert_eq!(log.synced(), first);
    assert_eq!(log.sync_all().unwrap(), log.end());
}

#[test]
fn segments_are_synced_oldest_first() {
    let (runtime, storage) = memory();
    let synced = Arc::new(runtime.mutex(Vec::new()));
    let hook: Hook = {
        let synced = synced.clone();
        Arc::new(move |op, name| {
            if op == "sync" || op == "sync_dir" {
                synced.lock().push(name.to_string());
            }
            None
        })
    };
    let log = faulty(&runtime, &storage, hook).unwrap();
    for number in 1..=50 {
        append(&log, number, 150).unwrap();
    }
    let last = log.end().segment;
    assert!(last >= 3);
    let before = std::mem::take(&mut *synced.lock());
    // Each segment was made ready before it was used: its zeros, then its name.
    let made: Vec<String> = (1..=last)
        .flat_map(|n| [segment_name(n), String::new()])
        .collect();
    assert_eq!(before, made);
    log.sync_all().unwrap();
    let order = std::mem::take(&mut *synced.lock());
    assert_eq!(order, (1..=last).map(segment_name).collect::<Vec<_>>());
    append(&log, 51, 1).unwrap();
    log.sync_all().unwrap();
    assert_eq!(*synced.lock(), [segment_name(last)]);
}

#[test]
fn a_failed_deletion_is_reported_and_repeated() {
    let (runtime, storage) = memory();
    let failing = Arc::new(AtomicBool::new(true));
    let hook: Hook = {
        let failing = failing.clone();
        Arc::new(move |op, _| {
            (op == "delete" && failing.load(Ordering::SeqCst)).then_some(StorageErrorKind::Io)
        })
    };
    let log = faulty(&runtime, &storage, hook).unwrap();
    for number in 1..=120 {
        append(&log, number, 150).unwrap();
    }
    let last = log.end().segment;
    // Nothing is synced, so nothing may be deleted.
    assert_eq!(log.obsolete(last).unwrap(), 1);
    log.sync_all().unwrap();
    log.obsolete(last).unwrap_err();
    assert_eq!(storage.list().unwrap().len(), last as usize);
    assert_eq!(
        (log.oldest_segment(), log.stats().pooled_segment_count),
        (last, 2)
    );
    failing.store(false, Ordering::SeqCst);
    assert_eq!(log.obsolete(last).unwrap(), last);
    assert_eq!(storage.list().unwrap().len(), 3);
    assert!(log.poison_cause().is_none());
}

/// The folder has the segments that the log counts as live or pooled, and no other file.
#[track_caller]
fn assert_folder_holds_what_the_log_knows(log: &LogWriter, storage: &MemoryStorage) {
    let (stats, files) = (log.stats(), storage.list().unwrap());
    let known = stats.live_segment_count + stats.pooled_segment_count;
    assert_eq!(files.len(), known, "{files:?}, {stats:?}");
}

/// A segment got its new name, and the call that gave it failed. That name was not remembered, and
/// the file stayed until the next open.
#[test]
fn a_failed_recycling_leaves_no_file_behind() {
    let (runtime, storage) = memory();
    let faults = FaultStorage::new(Arc::new(storage.clone()), &runtime);
    let log = LogWriter::start(config(&runtime, Arc::new(faults.clone()), 4096)).unwrap();
    let mut number = 0;
    for fault in [
        Fault::FailAfter(StorageErrorKind::Io),
        Fault::Fail(StorageErrorKind::Io),
    ] {
        faults.add(Rule::on(OpKind::Recycle, fault).nth(3));
        let before = faults.fired().len();
        for _ in 0..300 {
            number += 1;
            let segment = log.end().segment;
            append(&log, number, 150).unwrap();
            if log.end().segment != segment {
                log.sync_all().unwrap();
                log.obsolete(log.end().segment).unwrap();
            }
        }
        assert_eq!(faults.fired().len(), before + 1, "{fault:?}");
    }
    let last = log.end().segment;
    log.obsolete(last).unwrap();
    assert_folder_holds_what_the_log_knows(&log, &storage);
    assert!(log.poison_cause().is_none());
    let (found, _) = read(&storage, last, log.synced()).unwrap();
    assert_eq!(found.numbers.last(), Some(&number));
}

/// A segment was created, and the call that created it failed. The file stayed until the next open.
#[test]
fn a_failed_creation_leaves_no_file_behind() {
    let (runtime, storage) = memory();
    let faults = FaultStorage::new(Arc::new(storage.clone()), &runtime);
    let log = LogWriter::start(config(&runtime, Arc::new(faults.clone()), 4096)).unwrap();
    let mut number = 0;
    for fault in [
        Fault::FailAfter(StorageErrorKind::Io),
        Fault::FailAfter(StorageErrorKind::NoSpace),
        Fault::Fail(StorageErrorKind::Io),
    ] {
        faults.add(Rule::on(OpKind::Create, fault));
        let before = faults.fired().len();
        while faults.fired().len() == before {
            if append(&log, number + 1, 150).is_ok() {
                number += 1;
            }
            assert!(number < 200, "{fault:?}: no segment was created");
        }
        log.sync_all().unwrap();
        log.obsolete(0).unwrap();
        assert_folder_holds_what_the_log_knows(&log, &storage);
    }
    assert!(log.poison_cause().is_none());
    let (found, _) = read(&storage, 1, log.synced()).unwrap();
    assert_eq!(found.numbers, (1..=number).collect::<Vec<_>>());
}

/// The numbers of segments are used up: a call that needs one more fails, nothing is poisoned, and
/// what was appended is there.
#[test]
fn segment_numbers_are_used_up_and_nothing_is_lost() {
    let (runtime, storage) = memory();
    let before_last = segment_name(MAX_SEGMENT_NUMBER - 1);
    drop(storage.create(Epoch(0), &before_last).unwrap());
    let log = start(&runtime, &storage, 4096);
    assert_eq!(log.first_segment(), MAX_SEGMENT_NUMBER);
    let mut number = 1;
    let refused = loop {
        match append(&log, number, 200) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(number > 5, "{refused}");
    for error in [refused, log.prepare(1).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let advice = error.advice_text().unwrap_or_default();
        assert!(advice.contains("a new store"), "{error}");
    }
    assert!(log.poison_cause().is_none());
    append(&log, number, 0).unwrap();
    let synced = log.sync_all().unwrap();
    let image = storage.crash(CrashPolicy::LoseUnsynced);
    let (found, _) = read(&image, MAX_SEGMENT_NUMBER, synced).unwrap();
    assert_eq!(found.numbers, (1..=number).collect::<Vec<_>>());
}

/// Somebody has put a file where the next segment would be created. It is not changed, and the log
/// uses the next number.
#[test]
fn a_name_that_exists_is_skipped() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    let foreign = storage.create(Epoch(0), &segment_name(2)).unwrap();
    foreign.append(&[b"not a segment"]).unwrap();
    let mut number = 0;
    while log.end().segment == 1 {
        number += 1;
        append(&log, number, 200).unwrap();
    }
    assert_eq!(log.end().segment, 3);
    let synced = log.sync_all().unwrap();
    let (found, _) = read(&storage.kill(), 1, synced).unwrap();
    assert_eq!(found.numbers, (1..=number).collect::<Vec<_>>());
    assert_eq!(
        storage.read_small(&segment_name(2)).unwrap(),
        b"not a segment"
    );
}

/// A sync beyond the log's end is a mistake of the caller and not of the disk.
#[test]
fn a_sync_beyond_the_end_is_refused_and_poisons_nothing() {
    let (runtime, storage) = memory();
    let log = start(&runtime, &storage, 4096);
    let end = append(&log, 1, 10).unwrap();
    let beyond = Position::new(end.segment, end.offset + 8);
    let error = log.sync(beyond).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert_eq!(log.sync(end).unwrap(), end);
    append(&log, 2, 10).unwrap();
}

/// The disk is full, and the space that is reserved for the first segment cannot be used for a
/// moment: the open fails with that error, and the space is there for the next one, which first
/// deletes the segments that nothing names.
#[test]
fn a_reserve_that_fails_once_is_there_for_the_next_open() {
    for failing in ["sync", "sync_dir", "recycle"] {
        let (runtime, storage) = memory();
        let kept = storage.create(Epoch(0), "KEPT").unwrap();
        kept.reserve(4096).unwrap();
        kept.sync().unwrap();
        drop(kept);
        storage.sync_dir(Epoch(0)).unwrap();
        storage.set_capacity(Some(storage.used_bytes()));
        let armed = Arc::new(AtomicBool::new(true));
        let hook: Hook = {
            let armed = armed.clone();
            Arc::new(move |op, _| {
                (op == failing && armed.load(Ordering::SeqCst)).then_some(StorageErrorKind::Io)
            })
        };
        let with_reserve = || {
            let inner = storage.clone();
            let hook = hook.clone();
            siltstone::log::LogConfig {
                reserve: Some("KEPT".to_string()),
                ..config(&runtime, Arc::new(Faulty { inner, hook }), 4096)
            }
        };
        let error = LogWriter::start(with_reserve()).err().expect(failing);
        assert!(
            matches!(error.kind(), ErrorKind::Io | ErrorKind::NoSpace),
            "{failing}: {error}"
        );
        armed.store(false, Ordering::SeqCst);
        for object in storage.list().unwrap() {
            if object.name.ends_with(".log") {
                storage.delete(Epoch(0), &object.name).unwrap();
            }
        }
        storage.sync_dir(Epoch(0)).unwrap();
        let log = LogWriter::start(with_reserve()).expect(failing);
        append(&log, 1, 100).unwrap();
        log.sync_all().unwrap();
    }
}

/// Segment sizes that are not possible are refused before anything is made.
#[test]
fn an_impossible_segment_size_is_refused() {
    let (runtime, storage) = memory();
    for bytes in [0, 4095, 1 << 32] {
        let error = LogWriter::start(config(&runtime, Arc::new(storage.clone()), bytes))
            .err()
            .expect("a size out of range");
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error.expected_value().is_some() && error.found_value().is_some(),
            "{error}"
        );
    }
    assert!(storage.list().unwrap().is_empty());
}
