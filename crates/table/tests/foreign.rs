//! An executor outside the crate makes the tables of the host's executor, leaves no objects when it
//! fails, and continues attempts of the host's executor and lets it continue its own.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::cases::*;
use common::foreign::ForeignExecutor;
use common::*;
use proptest::prelude::*;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};
use siltstone_table::Codec;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::plan::JobPlan;
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap, JobOutput,
};
use siltstone_table::job::outcome::{Counters, Outcome, OutputTable};
use siltstone_table::job::verify::{Sample, TrustSyncs, verify_outcome, verify_tables};
use siltstone_table::job::{FormatOptions, Input, Job, KeyBounds, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::retain::RangeDelete;

/// The keys of a table and whether they are deleted, and a range delete.
type Ingested = (BTreeMap<u8, bool>, Option<(u8, u8)>);

/// Changes of a job of [`a_case`] that an executor must heed.
#[derive(Clone, Debug)]
struct Changes {
    /// Inputs are divided in two at these keys, or lose everything from there on.
    divided: Vec<(usize, u8, bool)>,
    /// Tables whose entries all get a number of their own.
    ingested: Vec<Ingested>,
    format: FormatOptions,
    block_log: u32,
    executor: ForeignExecutor,
}

fn changes() -> impl Strategy<Value = Changes> {
    let divided = prop::collection::vec((0usize..12, 0u8..40, any::<bool>()), 0..4);
    let range = prop::option::of((0u8..40, 0u8..40));
    let ingested = (
        prop::collection::btree_map(0u8..40, any::<bool>(), 1..10),
        range,
    );
    let format = prop_oneof![
        4 => Just((Codec::None, 0)),
        1 => Just((Codec::Lz4, *Codec::Lz4.levels().start())),
        1 => Just((Codec::Zstd, *Codec::Zstd.levels().start())),
    ];
    let bits = prop_oneof![3 => Just(10u8), 1 => Just(0u8), 1 => Just(20u8)];
    let cuts = prop::collection::btree_set((0u8..41).prop_map(|n| vec![b'k', n]), 0..4);
    let appends = prop::collection::vec(1usize..3000, 0..3);
    (
        divided,
        prop::collection::vec(ingested, 0..3),
        (format, bits, 9u32..14),
        (cuts, appends, any::<bool>()),
    )
        .prop_map(|(divided, ingested, format, executor)| {
            let ((codec, level), bits_per_key, block_log) = format;
            let (cuts, appends, gives_hashes) = executor;
            Changes {
                divided,
                ingested,
                format: FormatOptions {
                    codec,
                    level,
                    bits_per_key,
                    verify: true,
                },
                block_log,
                executor: ForeignExecutor {
                    cuts: cuts.into_iter().collect(),
                    appends,
                    gives_hashes,
                    begins_again: false,
                },
            }
        })
}

/// Applies the changes, and returns the context of the changed job.
fn change(w: &mut World, changes: &Changes) -> ExecContext {
    let mut inputs = (*w.inputs).clone();
    for (at, key, is_kept) in &changes.divided {
        let Some(input) = w.job.inputs.get_mut(*at) else {
            continue;
        };
        let key = vec![b'k', *key];
        let rest = KeyBounds {
            start: key.clone(),
            end: input.clip.end.clone(),
        };
        if input.clip.contains(&key) {
            input.clip.end = Some(key);
            let rest = Input {
                clip: rest,
                ..input.clone()
            };
            w.job.inputs.extend(is_kept.then_some(rest));
        }
    }
    for (i, (keys, range)) in changes.ingested.iter().enumerate() {
        w.job.published += 1;
        let seq = w.job.published;
        let mut content = Content::default();
        for (key, is_delete) in keys {
            let kind = if *is_delete { Kind::Delete } else { Kind::Put };
            let value = vec![*key; if *is_delete { 0 } else { 200 }];
            content
                .entries
                .push((vec![b'k', *key], trailer(0, kind), value));
        }
        content
            .range_deletes
            .extend(range.map(|(a, b)| RangeDelete {
                start: vec![b'k', a.min(b)],
                end: vec![b'k', a.max(b), 0],
                seq: 0,
            }));
        let input = table_input(
            &mut inputs,
            &w.storage,
            &format!("ingested-{i}.tbl"),
            &content,
        );
        w.job.inputs.push(Input {
            run: 20 + i as u32,
            seq_override: Some(seq),
            min_seq: seq,
            max_seq: seq,
            ..input
        });
    }
    w.job.format = changes.format.clone();
    w.job.limits.block_bytes = 1 << changes.block_log;
    let outputs = w.storage.clone();
    ExecContext::new(w.runtime.clone(), Arc::new(inputs), outputs, epoch())
}

/// The tables of an outcome without their names.
fn nameless(outcome: &Outcome) -> Vec<OutputTable> {
    let mut tables = outcome.tables.clone();
    tables.iter_mut().for_each(|t| t.name.clear());
    tables
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 600 } else { 10_000 },
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_foreign_executor_makes_the_same_tables(case in a_case(), changes in changes()) {
        let case = Case { inputs_as_streams: vec![false; 12], ..case };
        let mut w = common::cases::world(&case);
        let ctx = change(&mut w, &changes);
        let host = CpuExecutor::new().run(&w.job, &ctx).unwrap();
        let mut job = w.job.clone();
        job.output.attempt = 2;
        let foreign = changes.executor.run(&job, &ctx).unwrap();
        prop_assert!(files(&*w.storage, &foreign) == files(&*w.storage, &host));
        prop_assert_eq!(nameless(&foreign), nameless(&host));
        verify_outcome(&job, &foreign).unwrap();
        verify_tables(&job, &foreign, &*w.storage, &TrustSyncs, Sample::All).unwrap().unwrap();
        // Blocks at the bounds of pieces are read twice.
        let are_pieces = !changes.executor.cuts.is_empty();
        let counters = |outcome: &Outcome| Counters {
            cpu_ns: 0,
            bytes_read: if are_pieces { 0 } else { outcome.counters.bytes_read },
            ..outcome.counters
        };
        prop_assert_eq!(counters(&foreign), counters(&host));
        prop_assert_eq!((foreign.job, &foreign.output), (host.job, &job.output));
    }
}

/// A job of several subjobs with range deletes, and a storage that can fail.
struct Failing {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    faults: Arc<FaultStorage>,
    job: Job,
    files: Vec<Vec<u8>>,
}

fn failing() -> Failing {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let faults = Arc::new(FaultStorage::new(storage.clone(), &runtime));
    let mut job = a_job(2000);
    job.hard_cuts = vec![b"k0120".to_vec(), b"k0290".to_vec()];
    job.limits = OutputLimits::new(1 << 11, 512, false);
    // The last subjob has a range delete and no entry.
    job.older = vec![siltstone_table::job::KeyRange::everything()];
    for run in 0..2u64 {
        let entry = |i: u64| {
            let key = format!("k{:04}", i * 2 + run).into_bytes();
            (
                key,
                trailer(run * 600 + i + 1, Kind::Put),
                vec![i as u8; 60],
            )
        };
        let content = Content {
            entries: (0..140).map(entry).collect(),
            range_deletes: vec![RangeDelete {
                start: b"k0100".to_vec(),
                end: b"k0300".to_vec(),
                seq: run * 600 + 100,
            }],
        };
        let name = format!("in-{run}.tbl");
        let input = table_input(&mut InputMap::new(), &storage, &name, &content);
        job.inputs.push(Input {
            run: 1 - run as u32,
            ..input
        });
    }
    let mut w = Failing {
        runtime,
        storage,
        faults,
        job,
        files: Vec::new(),
    };
    let outcome = w.run(&CpuExecutor::new(), 1, None).unwrap();
    assert!(outcome.tables.len() > 5);
    assert_eq!(outcome.tables.last().map(|t| t.entries), Some(0));
    w.files = files(&*w.storage, &outcome);
    w.delete(&outcome);
    w
}

impl Failing {
    fn context(&self, handover: Option<&Arc<Handover>>) -> ExecContext {
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            let file = self.storage.open(&input.name).unwrap();
            inputs.add_table(input.location, &input.name, file);
        }
        let outputs = self.faults.clone();
        let mut ctx = ExecContext::new(self.runtime.clone(), Arc::new(inputs), outputs, epoch());
        ctx.handover = handover.cloned();
        ctx
    }

    fn run(
        &self,
        executor: &dyn Executor,
        attempt: u64,
        handover: Option<&Arc<Handover>>,
    ) -> Result<Outcome, ExecError> {
        let mut job = self.job.clone();
        job.output.attempt = attempt;
        executor.run(&job, &self.context(handover))
    }

    fn outputs(&self) -> Vec<String> {
        let names = self.storage.list().unwrap().into_iter().map(|o| o.name);
        names.filter(|n| !n.starts_with("in-")).collect()
    }

    fn delete(&self, outcome: &Outcome) {
        for table in &outcome.tables {
            self.storage.delete(epoch(), &table.name).unwrap();
        }
    }
}

const IO: Fault = Fault::Fail(StorageErrorKind::Io);

#[test]
fn after_any_failed_call_nothing_is_left() {
    let w = failing();
    let foreign = ForeignExecutor::default();
    let mut failures = 0;
    for n in 0.. {
        w.faults.clear();
        let rule = w.faults.add(Rule::on_changes(IO).nth(n));
        let result = w.run(&foreign, 2, None);
        let fired = w.faults.fired_count(rule) > 0;
        w.faults.clear();
        match result {
            Err(_) => {
                assert_eq!(w.outputs(), Vec::<String>::new(), "call {n}");
                failures += 1;
            }
            Ok(outcome) => {
                assert!(files(&*w.storage, &outcome) == w.files, "call {n}");
                w.delete(&outcome);
                if !fired {
                    break;
                }
            }
        }
    }
    assert!(failures > 15, "{failures}");
}

/// The host's executor continues what the foreign one left, and the other way round.
#[test]
fn the_next_attempt_continues_whoever_makes_it() {
    let w = failing();
    let foreign = ForeignExecutor::default();
    let cpu = CpuExecutor::new();
    let both: [(&dyn Executor, &dyn Executor); 3] =
        [(&foreign, &cpu), (&cpu, &foreign), (&foreign, &foreign)];
    for (first, second) in both {
        for k in 0..w.files.len() as u64 {
            let handover = Arc::new(Handover::new(&w.runtime));
            w.faults.clear();
            w.faults.add(Rule::on(OpKind::Create, IO).nth(k));
            w.run(first, 10, Some(&handover)).unwrap_err();
            w.faults.clear();
            assert_eq!(
                (handover.left_count() as u64, w.outputs().len() as u64),
                (k, k)
            );
            let outcome = w.run(second, 11, Some(&handover)).unwrap();
            assert_eq!(handover.adopted_count(), k);
            let when = format!("{} after {}, {k} tables", second.name(), first.name());
            assert!(files(&*w.storage, &outcome) == w.files, "{when}");
            assert_eq!(w.outputs().len(), w.files.len(), "{when}");
            w.delete(&outcome);
        }
        // After a failed sync, nothing may be adopted.
        for kind in [OpKind::Sync, OpKind::SyncDir] {
            let handover = Arc::new(Handover::new(&w.runtime));
            w.faults.add(Rule::on(kind, IO).nth(0));
            w.run(first, 10, Some(&handover)).unwrap_err();
            w.faults.clear();
            assert_eq!((handover.left_count(), w.outputs().len()), (0, 0));
        }
    }
}

/// An attempt that does not take over what was left does not replace it when it fails.
#[test]
fn an_attempt_that_adopts_nothing_leaves_nothing() {
    let w = failing();
    let handover = Arc::new(Handover::new(&w.runtime));
    w.faults.add(Rule::on(OpKind::Create, IO).nth(3));
    w.run(&CpuExecutor::new(), 10, Some(&handover)).unwrap_err();
    let left = w.outputs();
    let again = ForeignExecutor {
        begins_again: true,
        ..ForeignExecutor::default()
    };
    w.faults.clear();
    w.faults.add(Rule::on(OpKind::Create, IO).nth(2));
    w.run(&again, 11, Some(&handover)).unwrap_err();
    w.faults.clear();
    assert_eq!((handover.left_count(), w.outputs()), (3, left));
    let outcome = w.run(&CpuExecutor::new(), 12, Some(&handover)).unwrap();
    assert_eq!(handover.adopted_count(), 3);
    assert!(files(&*w.storage, &outcome) == w.files);
}

/// An output refuses to end with parts that are not all there, and deletes what it made.
#[test]
fn a_job_ends_with_all_of_its_subjobs() {
    fn is_shared<T: Send + Sync>(_: &T) {}
    let w = failing();
    let ctx = w.context(None);
    let plan = JobPlan::open(&w.job, &ctx).unwrap();
    let end = || Part {
        next: Point::End(Counters::default()),
        ..Part::new(0)
    };
    let wrong = [
        vec![],
        vec![end(), end(), end()],
        (0..3).map(Part::new).collect(),
    ];
    for parts in wrong {
        let output = JobOutput::new(&w.job, &ctx);
        is_shared(&output);
        // The table of the last subjob, which has no entry.
        let mut part = Part::new(2);
        let subjob = plan.subjob(&w.job, 2, &Point::Start).unwrap().unwrap();
        let mut tables = output.subjob(&subjob, &mut part);
        assert!(tables.table().is_none());
        assert_eq!((tables.bytes_written(), tables.buffer_bytes()), (0, 0));
        let (counters, bytes) = tables.finish(subjob.counters).unwrap();
        assert_eq!((counters.bytes_written, part.tables.len()), (bytes, 1));
        assert_eq!(part.next, Point::End(counters));
        assert_eq!(w.outputs().len(), 1);
        let error = output.finish(parts).unwrap_err();
        assert!(error.to_string().contains("a job ends"), "{error}");
        assert_eq!(w.outputs().len(), 0);
    }
    // A table that is not complete cannot be finished.
    let output = JobOutput::new(&w.job, &ctx);
    let mut part = Part::new(0);
    let mut subjob = plan.subjob(&w.job, 0, &Point::Start).unwrap().unwrap();
    let mut tables = output.subjob(&subjob, &mut part);
    let start = subjob.layout.start_key(b"k0000").unwrap();
    let state = subjob.layout.state(b"k0000");
    tables.start_table(start, state, subjob.counters).unwrap();
    tables.table().unwrap().append(b"no block").unwrap();
    tables.finish(subjob.counters).unwrap_err();
    assert_eq!(w.outputs().len(), 1);
    output.discard();
    assert_eq!(w.outputs().len(), 0);
}
