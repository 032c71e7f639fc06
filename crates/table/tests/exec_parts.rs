//! What the subjobs of a job share, in which order they run, and what a listener receives: with the
//! parts that it received, another attempt goes on as if it were the same one.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::*;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{
    FaultStorage, MemoryStorage, Mutex, OpKind, ReadFile, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::error::TableError;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, Executor, Handover, InputMap, Inputs, PartListener, StreamSource,
    SubjobOrder,
};
use siltstone_table::job::outcome::{Counters, Outcome, OutputTable};
use siltstone_table::job::{Input, Job, OutputLimits, OutputPrefix};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::retain::RangeDelete;

struct World {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    inputs: InputMap,
    job: Job,
}

/// Three runs and four subjobs of very different sizes.
fn world() -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut job = a_job(2000);
    job.hard_cuts = ["k0050", "k0600", "k0650"].map(|k| k.into()).to_vec();
    job.limits = OutputLimits::new(1 << 13, 512, false);
    job.snapshots = vec![700];
    for run in 0..3u64 {
        let mut content = Content::default();
        for i in 0..500u64 {
            let kind = match (i + run) % 9 {
                0 => Kind::Delete,
                _ => Kind::Put,
            };
            let value = vec![i as u8; if kind == Kind::Put { 60 } else { 0 }];
            let key = format!("k{:04}", (i * 2 + run) % 1000).into_bytes();
            let seq = run * 600 + i + 1;
            content.entries.push((key, trailer(seq, kind), value));
        }
        content.range_deletes.push(RangeDelete {
            start: b"k0580".to_vec(),
            end: b"k0700".to_vec(),
            seq: run * 600 + 300,
        });
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        let run = run as u32;
        job.inputs.push(Input { run, ..input });
    }
    World {
        runtime,
        storage,
        inputs,
        job,
    }
}

impl World {
    fn context(&self, outputs: &Arc<impl Storage>) -> ExecContext {
        ExecContext::new(
            self.runtime.clone(),
            Arc::new(self.inputs.clone()),
            outputs.clone(),
            epoch(),
        )
    }

    fn named(&self, attempt: u64) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = attempt;
        job
    }

    fn run(&self, attempt: u64, change: impl FnOnce(&mut ExecContext)) -> Outcome {
        let mut ctx = self.context(&self.storage);
        change(&mut ctx);
        CpuExecutor::new().run(&self.named(attempt), &ctx).unwrap()
    }
}

/// The tables of an outcome without their names.
fn nameless(outcome: &Outcome) -> Vec<OutputTable> {
    let mut tables = outcome.tables.clone();
    tables.iter_mut().for_each(|t| t.name.clear());
    tables
}

fn without_time(outcome: &Outcome) -> Counters {
    Counters {
        cpu_ns: 0,
        ..outcome.counters
    }
}

/// Counts how often each input is resolved.
struct Counted {
    inner: InputMap,
    resolved: Mutex<BTreeMap<String, usize>>,
}

impl Inputs for Counted {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        *self.resolved.lock().entry(name.to_string()).or_default() += 1;
        self.inner.table(location, name)
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        self.inner.stream(location, name)
    }
}

#[test]
fn an_input_is_opened_once_however_many_subjobs_read_it() {
    let w = world();
    for parallel in [1, 3] {
        let counted = Arc::new(Counted {
            inner: w.inputs.clone(),
            resolved: w.runtime.mutex(BTreeMap::new()),
        });
        let inputs = counted.clone();
        w.run(10 + parallel as u64, |ctx| {
            ctx.inputs = inputs;
            ctx.max_parallel = parallel;
        });
        let resolved = counted.resolved.lock().clone();
        assert_eq!(resolved.len(), 3);
        assert!(resolved.values().all(|n| *n == 1), "{resolved:?}");
    }
}

#[test]
fn the_order_of_subjobs_changes_nothing_of_the_outcome() {
    let w = world();
    let alone = w.run(1, |_| ());
    let bytes = files(&*w.storage, &alone);
    assert!(alone.tables.len() > 6, "{}", alone.tables.len());
    let mut attempt = 10;
    for order in [SubjobOrder::Keys, SubjobOrder::Sizes] {
        for parallel in 1..=5 {
            attempt += 1;
            let outcome = w.run(attempt, |ctx| {
                ctx.subjob_order = order;
                ctx.max_parallel = parallel;
            });
            assert_eq!(nameless(&outcome), nameless(&alone), "{order:?} {parallel}");
            assert_eq!(without_time(&outcome), without_time(&alone));
            assert!(files(&*w.storage, &outcome) == bytes);
        }
    }
}

#[test]
fn an_outcome_has_the_processor_time_of_all_tasks() {
    let w = world();
    for parallel in [1, 3] {
        let ctx = ExecContext {
            max_parallel: parallel,
            ..w.context(&w.storage)
        };
        let job = w.named(20 + parallel as u64);
        let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
        let helpers_ns = ctx.progress.helpers_cpu_ns.load(Ordering::Relaxed);
        assert_eq!(helpers_ns > 0, parallel > 1);
        assert!(outcome.counters.cpu_ns > helpers_ns, "{outcome:?}");
    }
}

/// Keeps what it receives.
struct Kept {
    parts: Mutex<Vec<Part>>,
    failed_syncs: Mutex<u32>,
}

impl Kept {
    fn new(runtime: &Runtime) -> Arc<Kept> {
        Arc::new(Kept {
            parts: runtime.mutex(Vec::new()),
            failed_syncs: runtime.mutex(0),
        })
    }
}

impl PartListener for Kept {
    fn finished(&self, part: &Part) {
        self.parts.lock().push(part.clone());
    }

    fn sync_failed(&self) {
        *self.failed_syncs.lock() += 1;
    }
}

/// For each call of the listener, an attempt on a storage that has just the tables which were
/// finished then goes on after them, and gives the same tables.
#[test]
fn another_attempt_goes_on_after_any_part_that_was_received() {
    let w = world();
    let kept = Kept::new(&w.runtime);
    let listener = kept.clone();
    let whole = w.run(1, |ctx| ctx.part_listener = Some(listener));
    let parts = kept.parts.lock().clone();
    let finished = whole.tables.len();
    assert!(parts.len() >= finished, "{} of {finished}", parts.len());
    let ends = parts.iter().filter(|p| matches!(p.next, Point::End(_)));
    assert_eq!(ends.count(), w.job.subjobs());
    let bytes = files(&*w.storage, &whole);
    for (n, _) in parts.iter().enumerate() {
        // The newest part of each subjob, as a peer would have sent it.
        let newest: BTreeMap<u32, &Part> = parts[..=n].iter().map(|p| (p.subjob, p)).collect();
        let identity = w.job.identity();
        let mut left = Vec::new();
        let elsewhere = Arc::new(MemoryStorage::new(&w.runtime));
        let mut tables = 0;
        for part in newest.into_values() {
            let (job, part) = Part::decode(&part.encode(identity)).unwrap();
            assert_eq!(job, identity);
            part.check(&w.job).unwrap();
            part.check_names(&w.job.output).unwrap();
            for table in &part.tables {
                let bytes = w.storage.read_small(&table.name).unwrap();
                elsewhere.replace(epoch(), &table.name, &bytes).unwrap();
                tables += 1;
            }
            left.push(part);
        }
        let handover = Arc::new(Handover::with_parts(&w.runtime, identity, left));
        assert_eq!(handover.left_count(), tables);
        let again = Kept::new(&w.runtime);
        let ctx = ExecContext {
            handover: Some(handover.clone()),
            part_listener: Some(again.clone()),
            ..w.context(&elsewhere)
        };
        let outcome = CpuExecutor::new().run(&w.named(2), &ctx).unwrap();
        assert_eq!(handover.adopted_count(), tables as u64, "part {n}");
        assert_eq!(nameless(&outcome), nameless(&whole), "part {n}");
        assert!(files(&*elsewhere, &outcome) == bytes, "part {n}");
        // The listener received the adopted tables under their new names, too.
        let last: BTreeMap<u32, Part> = again
            .parts
            .lock()
            .drain(..)
            .map(|p| (p.subjob, p))
            .collect();
        let received: Vec<OutputTable> = last.into_values().flat_map(|p| p.tables).collect();
        assert_eq!(received, outcome.tables, "part {n}");
    }
}

#[test]
fn a_failed_sync_is_reported() {
    let w = world();
    let fail = Fault::Fail(StorageErrorKind::Io);
    for rule in [
        Rule::on(OpKind::Sync, fail).nth(3),
        Rule::on(OpKind::SyncDir, fail),
    ] {
        let faults = Arc::new(FaultStorage::new(w.storage.clone(), &w.runtime));
        let rule = faults.add(rule);
        let kept = Kept::new(&w.runtime);
        let ctx = ExecContext {
            part_listener: Some(kept.clone()),
            ..w.context(&faults)
        };
        CpuExecutor::new().run(&w.named(3), &ctx).unwrap_err();
        assert_eq!(faults.fired_count(rule), 1);
        assert_eq!(*kept.failed_syncs.lock(), 1);
    }
}

/// A change of a part.
type Lie = (&'static str, fn(&mut Part));

#[test]
fn parts_that_a_job_cannot_have_are_refused() {
    let w = world();
    let kept = Kept::new(&w.runtime);
    let listener = kept.clone();
    let whole = w.run(1, |ctx| ctx.part_listener = Some(listener));
    let parts = kept.parts.lock().clone();
    let goes_on = |p: &&Part| p.tables.len() == 2 && matches!(p.next, Point::Table { .. });
    let part = parts.iter().find(goes_on).unwrap();
    part.check(&w.job).unwrap();
    fn point(part: &mut Part) -> (&mut Vec<u8>, &mut u32, &mut Vec<u8>, &mut Counters) {
        match &mut part.next {
            Point::Table {
                layout,
                left_bound,
                counters,
            } => (
                &mut layout.first_key,
                &mut layout.table,
                left_bound,
                counters,
            ),
            _ => panic!("a point within the subjob"),
        }
    }
    let lies: &[Lie] = &[
        ("another subjob", |p| p.subjob = 9),
        ("a table of another subjob", |p| p.tables[0].subjob += 1),
        ("tables swapped", |p| p.tables.swap(0, 1)),
        ("a table left out", |p| drop(p.tables.remove(0))),
        ("the last table left out", |p| drop(p.tables.pop())),
        ("it begins again", |p| p.next = Point::Start),
        ("it is complete", |p| {
            p.next = Point::End(Counters::default())
        }),
        ("another table number", |p| *point(p).1 += 1),
        ("the largest table number", |p| *point(p).1 = u32::MAX),
        ("a key of the table before", |p| {
            let last = p.tables[1].keys.clone().unwrap().1;
            *point(p).0 = last;
        }),
        ("a key of the next subjob", |p| {
            *point(p).0 = b"k9999".to_vec()
        }),
        ("another left bound", |p| point(p).2.push(0)),
        ("counts that overflow", |p| point(p).3.shadowed = u64::MAX),
    ];
    for (what, lie) in lies {
        let mut part = part.clone();
        lie(&mut part);
        assert!(part.check(&w.job).is_err(), "accepted: {what}");
        // An attempt that finds it in its handover does not go on after it.
        let elsewhere = Arc::new(MemoryStorage::new(&w.runtime));
        for table in &whole.tables {
            let bytes = w.storage.read_small(&table.name).unwrap();
            elsewhere.replace(epoch(), &table.name, &bytes).unwrap();
        }
        let handover = Handover::with_parts(&w.runtime, w.job.identity(), vec![part]);
        let ctx = ExecContext {
            handover: Some(Arc::new(handover)),
            ..w.context(&elsewhere)
        };
        let outcome = CpuExecutor::new().run(&w.named(5), &ctx).unwrap();
        assert_eq!(ctx.handover.unwrap().adopted_count(), 0, "{what}");
        assert_eq!(nameless(&outcome), nameless(&whole), "{what}");
    }
    let other = OutputPrefix {
        attempt: 8,
        ..w.job.output.clone()
    };
    part.check_names(&w.job.output).unwrap();
    part.check_names(&other).unwrap_err();
    let mut named = part.clone();
    named.tables[1].name = "in-0.tbl".into();
    named.check_names(&w.job.output).unwrap_err();
}
