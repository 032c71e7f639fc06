//! A flush is compared with the stream that it was made from. The comparison finds every entry that
//! is missing, changed, or not from the stream.

mod common;

use std::sync::Arc;

use common::*;
use siltstone_storage::fault::FaultStorage;
use siltstone_storage::{MemoryStorage, OpKind, Runtime, Storage};
use siltstone_table::exec::{CancelToken, CpuExecutor, ExecContext, ExecError, Executor, InputMap};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::verify::{Sample, TrustSyncs, verify_stream, verify_tables};
use siltstone_table::job::{Job, KeyRange, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::retain::RangeDelete;

/// Versions, deletes and range deletes over 300 keys.
fn content() -> Content {
    let mut content = Content::default();
    for i in 0..900u64 {
        let key = format!("k{:04}", i * 7 % 300).into_bytes();
        let kind = if i % 11 == 0 { Kind::Delete } else { Kind::Put };
        let value = match kind {
            Kind::Put => vec![i as u8; 40 + (i % 17) as usize],
            _ => Vec::new(),
        };
        content.entries.push((key, trailer(i + 1, kind), value));
    }
    for (start, end, seq) in [("k0100", "k0120", 950), ("k0110", "k0190", 400)] {
        content.range_deletes.push(RangeDelete {
            start: start.into(),
            end: end.into(),
            seq,
        });
    }
    content
}

struct Flush {
    storage: FaultStorage,
    job: Job,
    outcome: Outcome,
}

/// A flush of the content into several tables with several blocks, for readers at 500 and 1000.
fn flush(content: &Content) -> Flush {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let storage = FaultStorage::new(Arc::new(memory), &runtime);
    let mut inputs = InputMap::new();
    let mut job = a_job(1000);
    job.snapshots = vec![500];
    job.soft_cuts = vec![b"k0090".to_vec(), b"k0115".to_vec(), b"k0200".to_vec()];
    job.limits = OutputLimits::new(1 << 13, 512, true);
    job.older = vec![KeyRange::everything()];
    job.inputs
        .push(stream_input(&mut inputs, "memtable", content));
    let outputs: Arc<dyn Storage> = Arc::new(storage.clone());
    let ctx = ExecContext::new(runtime, Arc::new(inputs), outputs, epoch());
    let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
    assert!(outcome.tables.len() >= 3, "{}", outcome.tables.len());
    Flush {
        storage,
        job,
        outcome,
    }
}

impl Flush {
    /// The reason why a comparison with this content rejects the flush. `None` if it accepts it.
    fn compare(&self, content: &Content, sample: Sample) -> Option<String> {
        let stream = Stream(Arc::new((content.sorted(), content.range_deletes.clone())));
        let cancel = CancelToken::new();
        let (job, outcome) = (&self.job, &self.outcome);
        verify_stream(job, outcome, &stream, &self.storage, sample, &cancel)
            .unwrap()
            .err()
            .map(|rejected| rejected.reason)
    }
}

fn drawn(blocks: usize, seed: u64) -> Sample {
    Sample::Drawn { blocks, seed }
}

#[test]
fn an_honest_flush_is_accepted_by_every_sample() {
    let content = content();
    let flush = flush(&content);
    let mut samples = vec![Sample::None, Sample::Blocks(1), Sample::All];
    samples.extend((0..40).map(|seed| drawn(1 + seed as usize % 9, seed)));
    for sample in samples {
        assert_eq!(flush.compare(&content, sample), None, "{sample:?}");
    }
}

#[test]
fn every_difference_is_found_and_named() {
    let content = content();
    let flush = flush(&content);
    // The newest version of a key that no range delete covers, so that it is in a table.
    let at = |key: &str| {
        let of_key = |i: &usize| content.entries[*i].0 == key.as_bytes();
        (0..content.entries.len()).rev().find(of_key).unwrap()
    };
    let (some, last) = (at("k0050"), at("k0299"));
    let first = content
        .entries
        .iter()
        .enumerate()
        .min_by(|a, b| siltstone_table::key::compare_internal(&a.1.0, a.1.1, &b.1.0, b.1.1))
        .map(|(i, _)| i)
        .unwrap();
    type Change = fn(&mut Content, usize);
    let changes: &[(&str, Change, &str)] = &[
        (
            "a byte of a value",
            |c, i| c.entries[i].2[0] ^= 1,
            "differs from",
        ),
        (
            "a shorter value",
            |c, i| c.entries[i].2.truncate(1),
            "differs from",
        ),
        ("a delete for a put", |c, i| c.entries[i].1 ^= 3, ""),
        ("another number", |c, i| c.entries[i].1 -= 1 << 8, ""),
        ("another key", |c, i| c.entries[i].0.push(b'x'), ""),
        (
            "an entry less",
            |c, i| drop(c.entries.remove(i)),
            "never written",
        ),
        (
            "an entry more",
            |c, i| {
                let (mut key, t, value) = c.entries[i].clone();
                key.push(b'x');
                c.entries.push((key, t, value));
            },
            "",
        ),
    ];
    for (what, change, says) in changes {
        for (which, i) in [("first", first), ("some", some), ("last", last)] {
            let mut other = content.clone();
            change(&mut other, i);
            let said = flush.compare(&other, Sample::All);
            let said = said.unwrap_or_else(|| panic!("{what}, {which}: not found"));
            assert!(said.contains(says), "{what}, {which}: {said}");
            // The first and the last block of each table are always read.
            if which != "some" {
                for seed in 0..10 {
                    let found = flush.compare(&other, drawn(2, seed));
                    assert!(found.is_some(), "{what}, {which}: a sample of two blocks");
                }
            }
        }
    }
    // Entries that the drop rules drop are not compared.
    let mut other = content.clone();
    let old = (0..content.entries.len())
        .find(|i| content.entries[*i].0 == b"k0050")
        .unwrap();
    other.entries[old].2 = b"shadowed in its stripe".to_vec();
    assert_eq!(flush.compare(&other, Sample::All), None);
}

#[test]
fn every_sample_compares_all_range_deletes() {
    let content = content();
    let flush = flush(&content);
    let changes: &[fn(&mut Content)] = &[
        |c| drop(c.range_deletes.pop()),
        |c| drop(c.range_deletes.remove(0)),
        |c| c.range_deletes[0].seq += 1,
        |c| c.range_deletes[0].end.push(b'x'),
        |c| c.range_deletes[1].start.push(b'x'),
        |c| {
            c.range_deletes.push(RangeDelete {
                start: b"x".to_vec(),
                end: b"y".to_vec(),
                seq: 960,
            })
        },
    ];
    for (i, change) in changes.iter().enumerate() {
        let mut other = content.clone();
        change(&mut other);
        for sample in [drawn(1, 3), Sample::All] {
            let said = flush.compare(&other, sample);
            let said = said.unwrap_or_else(|| panic!("change {i}: {sample:?}: not found"));
            assert!(
                said.contains("range delete") || said.contains("written"),
                "{said}"
            );
        }
    }
}

/// An executor made no table for a flush that has only range deletes. Every count was right, and
/// the range deletes were lost.
#[test]
fn range_deletes_without_a_table_are_missed() {
    let content = Content {
        range_deletes: content().range_deletes,
        ..Content::default()
    };
    let mut inputs = InputMap::new();
    let mut job = a_job(1000);
    job.older = vec![KeyRange::everything()];
    job.inputs
        .push(stream_input(&mut inputs, "memtable", &content));
    let outcome = Outcome {
        output: job.output.clone(),
        job: job.identity(),
        ..Outcome::default()
    };
    siltstone_table::job::verify::verify_outcome(&job, &outcome).unwrap();
    let memory = MemoryStorage::new(&Runtime::threads());
    let stream = Stream(Arc::new((content.sorted(), content.range_deletes.clone())));
    for sample in [drawn(1, 3), Sample::All] {
        let cancel = CancelToken::new();
        let said = verify_stream(&job, &outcome, &stream, &memory, sample, &cancel).unwrap();
        let reason = said.unwrap_err().reason;
        assert!(reason.contains("no table has the range delete"), "{reason}");
    }
}

/// The values of two entries are swapped in the table, with correct checksums, counts and lengths.
/// No check of the table alone can find that.
#[test]
fn only_the_comparison_finds_swapped_values() {
    let content = content();
    let mut swapped = content.clone();
    let (a, b) = (879, 896);
    assert_eq!(content.entries[a].2.len(), content.entries[b].2.len());
    let value = std::mem::replace(&mut swapped.entries[a].2, content.entries[b].2.clone());
    swapped.entries[b].2 = value;
    let flush = flush(&swapped);
    verify_tables(
        &flush.job,
        &flush.outcome,
        &flush.storage,
        &TrustSyncs,
        Sample::All,
    )
    .unwrap()
    .unwrap();
    let said = flush.compare(&content, Sample::All).unwrap();
    assert!(said.contains("differs from"), "{said}");
}

#[test]
fn a_sample_reads_a_bounded_number_of_blocks() {
    let content = content();
    let flush = flush(&content);
    let reads = || flush.storage.counts().of(OpKind::Read);
    let reads_of = |sample| {
        let before = reads();
        assert_eq!(flush.compare(&content, sample), None);
        reads() - before
    };
    let opening = reads_of(Sample::None);
    let tables = flush.outcome.tables.len() as u64;
    for blocks in 1..6 {
        let read = reads_of(drawn(blocks as usize, 7)) - opening;
        assert!(read <= blocks * tables, "{read} blocks of {tables} tables");
    }
    assert!(reads_of(Sample::All) > opening + 6 * tables);
}

#[test]
fn a_comparison_can_be_cancelled() {
    let content = content();
    let flush = flush(&content);
    let cancel = CancelToken::new();
    cancel.cancel();
    let stream = Stream(Arc::new((content.sorted(), content.range_deletes.clone())));
    let (job, outcome) = (&flush.job, &flush.outcome);
    let ended = verify_stream(job, outcome, &stream, &flush.storage, Sample::All, &cancel);
    assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
}
