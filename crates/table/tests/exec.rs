//! The CPU executor compared with a naive model, on storage in memory: what every reader sees
//! before and after.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::cases::*;
use common::*;
use proptest::prelude::*;
use siltstone_storage::Storage;
use siltstone_storage::{MemoryStorage, Runtime};
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap, SplitExecutor};
use siltstone_table::job::outcome::{Counters, Outcome};
use siltstone_table::job::{DropRules, FormatOptions, Job, KeyRange, OutputLimits, OutputPrefix};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::limits::MAX_KEY_BYTES;
use siltstone_table::rangedel::RangeDeletes;
use siltstone_table::retain::{RangeDelete, RangeEnd, Retain, Stripes, fragment};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 400 } else { 6000 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_reader_sees_a_difference(case in a_case()) {
        let w = world(&case);
        let ctx = w.context();
        let outcome = CpuExecutor::new().run(&w.job, &ctx).unwrap();
        let output = read_all(&*w.storage, &outcome);
        let mut before = case.older.clone();
        case.runs.iter().for_each(|r| before.extend(r));
        let mut after = case.older.clone();
        after.extend(&output);
        let keys: BTreeSet<Vec<u8>> = before.keys().into_iter()
            .chain((0..41).map(|n| vec![b'k', n]))
            .chain((0..41).map(|n| vec![b'k', n, 1]))
            .collect();
        let mut readers = case.snapshots.clone();
        readers.push(case.published);
        for at in readers {
            for key in &keys {
                prop_assert_eq!(before.get(key, at), after.get(key, at), "key {:?} at {}", key, at);
            }
        }
        // The honest outcome is accepted.
        use siltstone_table::job::verify::{Sample, TrustSyncs, verify_outcome, verify_tables};
        verify_outcome(&w.job, &outcome).unwrap();
        verify_tables(&w.job, &outcome, &*w.storage, &TrustSyncs, Sample::All).unwrap().unwrap();
        // The counters are right.
        let c = &outcome.counters;
        let read: u64 = case.runs.iter().map(|r| r.entries.len() as u64).sum();
        prop_assert_eq!(c.entries_read, read);
        prop_assert_eq!(c.entries_written, output.entries.len() as u64);
        prop_assert_eq!(c.entries_read, c.entries_written + c.dropped());
        if case.rules == DropRules::QUICK {
            prop_assert_eq!(c.dropped(), 0);
        }
        // Nothing is left that the rules allow to drop: there is at most one version per stripe.
        if case.rules == DropRules::ALL {
            let mut seen = BTreeSet::new();
            for (key, t, _) in &output.entries {
                let older = case.snapshots.iter().filter(|s| **s < t >> 8);
                let stripe = older.collect::<BTreeSet<_>>().len();
                prop_assert!(seen.insert((key.clone(), stripe)));
                let oldest = stripe == 0;
                let holds = case.declare_everything || case.older.keys().contains(key)
                    || case.older.range_deletes.iter().any(|r| r.start <= *key && *key < r.end);
                let is_delete = *t as u8 == Kind::Delete as u8;
                prop_assert!(
                    !(oldest && !holds && is_delete),
                    "a tombstone that hides nothing was kept"
                );
            }
            // Fragments of one stripe do not overlap. A fragment that all readers see extends, in
            // one piece, from the first key that older data can hold to the last. Tables cut it
            // only at their own bounds.
            let deletes = output.range_deletes.iter();
            let deletes = deletes.map(|r| (r.start.clone(), r.end.clone(), r.seq));
            let joined = siltstone_table::rangedel::joined(deletes);
            let older = exact_ranges(&case.older);
            let stripes = Stripes::new(&case.snapshots, case.published);
            let mut by_stripe: Vec<_> = joined.iter().map(|f| (stripes.of(f.seq), f)).collect();
            by_stripe.sort_by_key(|(stripe, f)| (*stripe, f.start.clone()));
            for pair in by_stripe.windows(2) {
                let overlap = pair[0].0 == pair[1].0 && pair[1].1.start < pair[0].1.end;
                prop_assert!(!overlap, "{:?} and {:?} are of one stripe", pair[0], pair[1]);
            }
            if !case.declare_everything {
                for f in joined.iter().filter(|f| stripes.of(f.seq) == 0) {
                    let begins = older.iter().any(|h| h.contains(&f.start));
                    prop_assert!(begins, "{:?} begins before older data", f);
                    let end = RangeEnd::Before(f.end.clone());
                    let ends = older
                        .iter()
                        .any(|h| h.overlaps(&f.start, &f.end) && h.end.at_least(&end));
                    prop_assert!(ends, "{:?} extends past older data", f);
                }
            }
        }

        // Running the job again gives the same bytes, also in parallel.
        let bytes = files(&*w.storage, &outcome);
        for (attempt, parallel) in [(77, 1), (78, 3)] {
            let mut job = w.job.clone();
            job.output.attempt = attempt;
            prop_assert_eq!(job.identity(), w.job.identity());
            let ctx = ExecContext { max_parallel: parallel, ..w.context() };
            let again = CpuExecutor::new().run(&job, &ctx).unwrap();
            prop_assert_eq!(&files(&*w.storage, &again), &bytes);
            prop_assert_eq!(without_time(&again), without_time(&outcome));
        }
        // So does dividing it between two executors, and nothing else is left behind.
        let cpu = || Arc::new(CpuExecutor::new()) as Arc<dyn Executor>;
        let split = SplitExecutor::new(&w.context().runtime, "split", cpu(), cpu());
        let mut job = w.job.clone();
        job.output.attempt = 79;
        let count = w.storage.list().unwrap().len();
        let again = split.run(&job, &w.context()).unwrap();
        prop_assert_eq!(&files(&*w.storage, &again), &bytes);
        prop_assert_eq!(without_time(&again), without_time(&outcome));
        prop_assert_eq!(w.storage.list().unwrap().len(), count + again.tables.len());
        let places = |outcome: &Outcome| -> Vec<(u32, Vec<u8>)> {
            let tables = outcome.tables.iter();
            tables.map(|t| (t.subjob, t.left_bound.clone())).collect()
        };
        prop_assert_eq!(places(&again), places(&outcome));
    }
}

/// The counters of an outcome without the processor time, which differs from run to run.
fn without_time(outcome: &Outcome) -> Counters {
    Counters {
        cpu_ns: 0,
        ..outcome.counters
    }
}

/// What remains of range deletes over `[b, y)` if older data has these ranges.
fn surviving(seqs: &[u64], snapshots: &[u64], older: &[KeyRange]) -> (Vec<RangeDelete>, u64) {
    let deletes: Vec<RangeDelete> = seqs
        .iter()
        .map(|seq| RangeDelete {
            start: b"b".to_vec(),
            end: b"y".to_vec(),
            seq: *seq,
        })
        .collect();
    let stripes = Stripes::new(snapshots, 100);
    let fragments = fragment(&deletes, &stripes, b"", None);
    let retain = Retain::new(DropRules::ALL, stripes, older, fragments);
    retain.surviving_fragments()
}

/// A job of one stream keeps deletes, because older data may hold their keys, until its maker says
/// that there is none. It keeps one version of each key.
#[test]
fn a_job_of_a_stream_keeps_what_older_data_may_need() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let content = Content {
        entries: vec![
            (b"a".to_vec(), trailer(4, Kind::Put), b"old".to_vec()),
            (b"a".to_vec(), trailer(6, Kind::Put), b"new".to_vec()),
            (b"b".to_vec(), trailer(5, Kind::Delete), Vec::new()),
        ],
        range_deletes: Vec::new(),
    };
    let mut inputs = InputMap::new();
    let input = stream_input(&mut inputs, "entries", &content);
    let output = OutputPrefix {
        epoch: epoch().0,
        attempt: 1,
    };
    let limits = OutputLimits::new(1 << 12, 512, false);
    let job = Job::of_stream(1, input, limits, FormatOptions::default(), output);
    assert_eq!((job.check(), job.published), (Ok(()), 6));
    let context = ExecContext::new(runtime, Arc::new(inputs), storage.clone(), epoch());
    let keys_after = |job: &Job| {
        let outcome = CpuExecutor::new().run(job, &context).unwrap();
        let left = read_all(&*storage, &outcome).entries;
        let left = left.into_iter().map(|(key, trailer, _)| (key, trailer));
        left.collect::<Vec<_>>()
    };
    let newest = (b"a".to_vec(), trailer(6, Kind::Put));
    let delete = (b"b".to_vec(), trailer(5, Kind::Delete));
    assert_eq!(keys_after(&job), [newest.clone(), delete]);
    // The progress of a job that reads no table is counted in raw bytes.
    let read = context.progress.bytes_in.load(Ordering::Relaxed);
    assert_eq!(read, (1 + 3 + 12) + (1 + 3 + 12) + (1 + 12));
    let alone = Job {
        older: Vec::new(),
        output: OutputPrefix {
            attempt: 2,
            ..job.output.clone()
        },
        ..job
    };
    assert_eq!(keys_after(&alone), [newest]);
}

/// At most twice as many fragments survive as there are range deletes, however these overlap and
/// whatever the snapshots are.
#[test]
fn there_are_no_more_fragments_than_range_deletes() {
    const COUNT: u64 = 3000;
    let key = |i: u64| format!("{i:06}").into_bytes();
    let deletes: Vec<RangeDelete> = (0..COUNT)
        .map(|i| RangeDelete {
            start: key(i),
            end: key(COUNT + i),
            seq: 2 * i + 1,
        })
        .collect();
    let snapshots: Vec<u64> = (0..COUNT).map(|i| 2 * i + 2).collect();
    let each = fragment(&deletes, &Stripes::new(&snapshots, 2 * COUNT), b"", None);
    assert_eq!(each, deletes);
    let everything = [KeyRange::everything()];
    let retain = Retain::new(
        DropRules::ALL,
        Stripes::new(&snapshots, 2 * COUNT),
        &everything,
        each,
    );
    assert_eq!(retain.surviving_fragments(), (deletes.clone(), 0));
    // With a snapshot after every hundredth range delete, each range delete leaves one fragment.
    // The fragments are stored and searched.
    let few: Vec<u64> = snapshots.iter().copied().step_by(100).collect();
    let fragments = fragment(&deletes, &Stripes::new(&few, 2 * COUNT), b"", None);
    assert_eq!(fragments.len() as u64, COUNT);
    let mut bytes = Vec::new();
    let stored = RangeDeletes::new(fragments).unwrap();
    stored.encode(&mut bytes);
    assert_eq!(bytes.len() as u64, 8 + COUNT * (4 + 4 + 8 + 6 + 6));
    for i in (0..2 * COUNT).step_by(37) {
        for seq in [2 * COUNT].iter().chain(&few) {
            let covers = |d: &&RangeDelete| d.start <= key(i) && key(i) < d.end && d.seq <= *seq;
            let newest = deletes.iter().rev().find(covers).map(|d| d.seq);
            assert_eq!(stored.covering_seq(&key(i), *seq), newest, "{i} at {seq}");
        }
    }
}

#[test]
fn a_range_delete_is_trimmed_to_what_older_data_can_hold() {
    let part = |start: &[u8], end: &[u8], seq: u64| RangeDelete {
        start: start.to_vec(),
        end: end.to_vec(),
        seq,
    };
    let kept = |start: &[u8], end: &[u8]| vec![part(start, end, 9)];
    let one = |older: &[KeyRange]| surviving(&[9], &[], older);
    let whole = (kept(b"b", b"y"), 0);
    assert_eq!(one(&[KeyRange::everything()]), whole);
    assert_eq!(one(&[KeyRange::inclusive(b"a", b"z")]), whole);
    assert_eq!(one(&[]), (vec![], 1));
    // Ranges that only touch it, and an empty range within it, need no part of it.
    let touching = [
        KeyRange::before(b"a", b"b"),
        KeyRange::inclusive(b"y", b"z"),
        KeyRange::before(b"g", b"g"),
    ];
    assert_eq!(one(&touching), (vec![], 1));
    // Both ends are removed. The gap between the ranges stays covered.
    let two = [
        KeyRange::before(b"c", b"c"),
        KeyRange::before(b"d", b"e"),
        KeyRange::inclusive(b"m", b"n"),
        KeyRange::before(b"y", b"z"),
    ];
    assert_eq!(one(&two), (kept(b"d", b"n\0"), 0));
    assert_eq!(
        one(&[KeyRange::inclusive(b"a", b"c")]),
        (kept(b"b", b"c\0"), 0)
    );
    assert_eq!(one(&[KeyRange::before(b"w", b"z")]), (kept(b"w", b"y"), 0));
    // There is no key directly after the longest possible one, so that end stays.
    let longest = [b"m".to_vec(), vec![b'm'; MAX_KEY_BYTES - 1]].concat();
    assert_eq!(
        one(&[KeyRange::inclusive(&longest, &longest)]),
        (kept(&longest, b"y"), 0)
    );
    // A range delete that the snapshot does not see does not cut one that it sees.
    assert_eq!(
        surviving(&[9, 50], &[20], &two),
        (vec![part(b"b", b"y", 50), part(b"d", b"n\0", 9)], 0)
    );
    assert_eq!(
        surviving(&[9, 50], &[20], &touching),
        (vec![part(b"b", b"y", 50)], 1)
    );
}
