//! A power loss or a kill at every storage call of a run: what is left is a prefix that contains
//! everything synced.

mod log_common;

use log_common::*;
use siltstone::log::format::parse_segment_name;
use siltstone::log::{LogWriter, Position};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

/// One run: its storage with a journal, and the position of each record.
struct Run {
    runtime: Runtime,
    storage: MemoryStorage,
    ends: Vec<Position>,
}

/// What is known at a point of the journal.
#[derive(Default, Clone, Copy, Debug)]
struct Known {
    /// The number of acknowledged records.
    appended: usize,
    /// The number of records that were acknowledged as synced.
    synced: usize,
    /// What a manifest would have: the log's start and the synced position.
    start: u32,
    manifest: Position,
}

fn parse(label: &str, known: &mut Known) {
    let numbers: Vec<u64> = label[1..].split(' ').map(|n| n.parse().unwrap()).collect();
    match &label[..1] {
        "a" => known.appended = numbers[0] as usize,
        "s" => known.synced = numbers[0] as usize,
        "m" => {
            known.start = numbers[0] as u32;
            known.manifest = Position::from_u64(numbers[1]);
        }
        _ => panic!("{label}"),
    }
}

fn run(seed: u64, records: u64) -> Run {
    let mut rng = Rng(seed);
    let (runtime, storage) = memory();
    storage.start_journal();
    let log = start(&runtime, &storage, 4096);
    storage.mark(format!(
        "m{} {}",
        log.first_segment(),
        log.synced().to_u64()
    ));
    let mut ends: Vec<Position> = Vec::new();
    let synced = |storage: &MemoryStorage, log: &LogWriter, ends: &[Position]| {
        log.sync_all().unwrap();
        storage.mark(format!("s{}", ends.len()));
    };
    for number in 1..=records {
        let value_bytes = if rng.below(40) == 0 {
            9000
        } else {
            rng.below(400) as usize
        };
        ends.push(append(&log, number, value_bytes).unwrap());
        storage.mark(format!("a{number}"));
        if rng.below(6) == 0 {
            synced(&storage, &log, &ends);
        }
        if log.needs_prepare(1) && rng.below(3) == 0 {
            log.prepare(1).unwrap();
        }
        if rng.below(25) == 0 {
            // A flush of everything: a sync through its last record, an edit of the manifest, and
            // segments are deleted.
            synced(&storage, &log, &ends);
            let start = log.end().segment;
            storage.mark(format!("m{start} {}", log.synced().to_u64()));
            log.obsolete(start).unwrap();
        }
    }
    Run {
        runtime,
        storage,
        ends,
    }
}

#[track_caller]
fn verify(run: &Run, image: &MemoryStorage, known: &Known, context: &str) -> Position {
    let first = run
        .ends
        .iter()
        .position(|end| end.segment >= known.start)
        .unwrap_or(run.ends.len());
    let (found, report) = read(image, known.start, known.manifest)
        .unwrap_or_else(|error| panic!("{context}: {known:?}: {error}"));
    let expected: Vec<u64> = (first as u64 + 1..).take(found.numbers.len()).collect();
    assert_eq!(found.numbers, expected, "{context}: no prefix");
    let last = first + found.numbers.len();
    assert!(
        last >= known.synced,
        "{context}: {last} of {} synced records",
        known.synced
    );
    assert!(
        last <= known.appended + 1,
        "{context}: a record that was never appended"
    );
    report.end
}

#[test]
fn power_loss_at_every_call_leaves_a_prefix_with_everything_synced() {
    let base: u64 = std::env::var("SILT_SEED").map_or(1, |s| s.parse().unwrap());
    let (mut shorter, mut recycled) = (0, false);
    for seed in base..base + 6 {
        let run = run(seed, 120);
        let mut replay = run.storage.replay();
        assert!(replay.len() > 150);
        for n in 0..=replay.len() {
            replay.advance_to(n);
            let mut known = Known::default();
            replay
                .marks_so_far()
                .iter()
                .for_each(|mark| parse(&mark.label, &mut known));
            if known.start == 0 {
                continue;
            }
            let context = format!("seed {seed}, {n} calls");
            let killed = replay.kill_in(&run.runtime);
            verify(
                &run,
                &killed,
                &Known {
                    synced: known.appended,
                    ..known
                },
                &format!("{context}, killed"),
            );
            let policies = [CrashPolicy::LoseUnsynced, CrashPolicy::KeepUnsynced];
            let drawn = (0..5).map(|i| CrashPolicy::Seeded(seed << 32 | n << 8 | i));
            for policy in policies.into_iter().chain(drawn) {
                let image = replay.crash(policy).0;
                let context = format!("{context}, {policy:?}");
                let end = verify(&run, &image, &known, &context);
                let count = run.ends.iter().filter(|e| **e <= end).count();
                shorter += usize::from(count > known.synced && count < known.appended);
                if n % 13 == 0 {
                    // A recovery begins a new chain and loses power before its edit.
                    let next = start(&run.runtime, &image, 4096);
                    let again = image.crash(CrashPolicy::Seeded(n));
                    assert_eq!(
                        verify(&run, &again, &known, &format!("{context}, twice")),
                        end
                    );
                    // Writes are taken after that edit, which names the new chain.
                    append(&next, 100_000, 50).unwrap();
                    next.sync_all().unwrap();
                    append(&next, 100_001, 50).unwrap();
                    let again = image.crash(CrashPolicy::Seeded(n));
                    let (found, _) = read(&again, next.first_segment(), next.synced()).unwrap();
                    assert_eq!(found.numbers[0], 100_000, "{context}");
                }
            }
        }
        let highest = run
            .storage
            .list()
            .unwrap()
            .iter()
            .filter_map(|o| parse_segment_name(&o.name))
            .max();
        recycled |= highest > Some(6);
    }
    assert!(
        shorter > 100,
        "the seeds hardly lose anything in the middle: {shorter}"
    );
    assert!(recycled, "the seeds never recycle");
}
