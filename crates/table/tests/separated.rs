//! A subjob in two halves, one of which decides what is kept and the other one makes the tables,
//! compared with the host's executor over random jobs. What the second half is given may be wrong.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::cases::*;
use common::*;
use proptest::prelude::*;
use siltstone_storage::{
    MemoryStorage, Mutex, ReadFile, ReadRange, Runtime, Storage, StorageError,
};
use siltstone_table::error::TableError;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::planner::{Planner, Plans};
use siltstone_table::exec::separated::{RebuildExecutor, SurvivorSource, SurvivorStream};
use siltstone_table::exec::survivors::{EXTENTS_MAX, Extent, Survivors};
use siltstone_table::exec::{
    CancelToken, CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap, Inputs,
    PartListener, Progress, StreamSource, Throttle,
};
use siltstone_table::job::outcome::{Counters, Outcome, OutputTable};
use siltstone_table::job::{Input, Job, OutputLimits};
use siltstone_table::key::{Kind, trailer};

/// The other side of a link: it plans with its own inputs, and sends chunks as bytes. `change` may
/// change each before it is sent.
struct Elsewhere<F> {
    plans: Plans,
    ctx: ExecContext,
    change: F,
    chunk_extents: usize,
    sent_bytes: AtomicU64,
}

struct Sent<'a, F> {
    planner: Planner<'a>,
    job: u128,
    of: &'a Elsewhere<F>,
}

impl<F: Fn(&mut Survivors) + Send + Sync> Elsewhere<F> {
    fn new(job: &Job, ctx: &ExecContext, change: F) -> Arc<Elsewhere<F>> {
        Arc::new(Elsewhere::plan(job, ctx, change))
    }

    fn plan(job: &Job, ctx: &ExecContext, change: F) -> Elsewhere<F> {
        Elsewhere {
            plans: Plans::open(job, ctx).unwrap(),
            ctx: ExecContext {
                progress: Arc::default(),
                ..ctx.clone()
            },
            change,
            chunk_extents: EXTENTS_MAX,
            sent_bytes: AtomicU64::new(0),
        }
    }
}

impl<F: Fn(&mut Survivors) + Send + Sync> SurvivorSource for Elsewhere<F> {
    fn open<'a>(
        &'a self,
        job: &'a Job,
        subjob: u32,
        next: &Point,
        _: &'a ExecContext,
    ) -> Result<Box<dyn SurvivorStream + 'a>, ExecError> {
        let mut planner = self.plans.subjob(job, subjob, next, &self.ctx)?;
        planner.set_chunk_extents(self.chunk_extents);
        Ok(Box::new(Sent {
            planner,
            job: job.identity(),
            of: self,
        }))
    }
}

impl<F: Fn(&mut Survivors) + Send + Sync> SurvivorStream for Sent<'_, F> {
    fn next_chunk(&mut self) -> Result<Option<Survivors>, ExecError> {
        let Some(mut chunk) = self.planner.next_chunk()? else {
            return Ok(None);
        };
        (self.of.change)(&mut chunk);
        let bytes = chunk.encode(self.job);
        self.of
            .sent_bytes
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (job, received) = Survivors::decode(&bytes).unwrap();
        assert_eq!((job, &received), (self.job, &chunk));
        Ok(Some(received))
    }
}

fn nameless(outcome: &Outcome) -> Vec<OutputTable> {
    let mut tables = outcome.tables.clone();
    tables.iter_mut().for_each(|t| t.name.clear());
    tables
}

/// The counters without time and without what is read, which differs: columns may be read twice,
/// and blocks without survivors once.
fn counted(outcome: &Outcome) -> Counters {
    Counters {
        cpu_ns: 0,
        bytes_read: 0,
        ..outcome.counters
    }
}

fn named(job: &Job, attempt: u64) -> Job {
    let mut job = job.clone();
    job.output.attempt = attempt;
    job
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(debug_assertions) { 300 } else { 5000 },
        ..ProptestConfig::default()
    })]

    /// All three ways to run a job give the same bytes and the same counts.
    #[test]
    fn both_halves_together_make_the_same_tables(
        case in a_case(),
        codec in 0u8..3,
        chunk_extents in 1usize..20,
    ) {
        let mut case = case;
        case.inputs_as_streams = vec![false; 12];
        let mut w = world(&case);
        w.job.format.codec = siltstone_table::Codec::from_u8(codec).unwrap();
        w.job.format.level = *w.job.format.codec.levels().start();
        let whole = CpuExecutor::new().run(&w.job, &w.context()).unwrap();
        let bytes = files(&*w.storage, &whole);
        for (attempt, parallel) in [(20, 1), (21, 3)] {
            let job = named(&w.job, attempt);
            let ctx = ExecContext {
                columns_first: true,
                max_parallel: parallel,
                ..w.context()
            };
            let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
            prop_assert_eq!(&files(&*w.storage, &outcome), &bytes);
            prop_assert_eq!(counted(&outcome), counted(&whole));
            prop_assert_eq!(nameless(&outcome), nameless(&whole));

            let job = named(&w.job, attempt + 10);
            let ctx = ExecContext { max_parallel: parallel, ..w.context() };
            let source = Elsewhere {
                chunk_extents,
                ..Elsewhere::plan(&job, &ctx, |_| ())
            };
            let outcome = RebuildExecutor::new(Arc::new(source)).run(&job, &ctx).unwrap();
            prop_assert_eq!(&files(&*w.storage, &outcome), &bytes);
            prop_assert_eq!(counted(&outcome), counted(&whole));
            prop_assert_eq!(nameless(&outcome), nameless(&whole));
        }
    }

    /// With streams among the inputs, columns cannot be read first, and the job is run as ever.
    #[test]
    fn jobs_with_streams_are_run_whole(case in a_case()) {
        let w = world(&case);
        let has_streams = w.job.inputs.iter().any(|i| i.len_bytes == 0);
        prop_assume!(has_streams);
        let whole = CpuExecutor::new().run(&w.job, &w.context()).unwrap();
        let ctx = ExecContext { columns_first: true, ..w.context() };
        let outcome = CpuExecutor::new().run(&named(&w.job, 5), &ctx).unwrap();
        prop_assert_eq!(files(&*w.storage, &outcome), files(&*w.storage, &whole));
        let refused = Plans::open(&w.job, &ctx).map(|_| ());
        prop_assert!(matches!(refused, Err(ExecError::Declined { .. })), "{refused:?}");
    }

    /// Whatever is changed in what the second half is given, it fails or makes tables, and never
    /// panics. Tables that it makes hold only entries of the inputs, and each once.
    #[test]
    fn wrong_survivors_never_lead_astray(
        case in a_case(),
        at in any::<prop::sample::Index>(),
        how in 0u8..9,
        to in any::<u32>(),
        fine in 0u32..6,
    ) {
        let mut case = case;
        case.inputs_as_streams = vec![false; 12];
        let w = world(&case);
        let to = if fine < 4 { fine } else { to };
        let changed = Arc::new(AtomicBool::new(false));
        let note = changed.clone();
        let change = move |chunk: &mut Survivors| {
            let n = chunk.extents.len();
            if n == 0 {
                return;
            }
            let i = at.index(n);
            note.store(true, Ordering::Relaxed);
            match how {
                0 => chunk.extents[i].input = to,
                1 => chunk.extents[i].block = to,
                2 => chunk.extents[i].first = to,
                3 => chunk.extents[i].count = to,
                4 => chunk.extents.swap(i, n / 2),
                5 => drop(chunk.extents.remove(i)),
                6 => chunk.extents.insert(i, chunk.extents[n / 2]),
                7 => drop(chunk.tables.pop()),
                _ => chunk.tables.push((to, Counters::default())),
            }
        };
        let ctx = w.context();
        let source = Elsewhere::new(&w.job, &ctx, change);
        let Ok(outcome) = RebuildExecutor::new(source).run(&w.job, &ctx) else {
            return Ok(());
        };
        // Where tables begin, the second half knows itself.
        prop_assert!(how < 7 || !changed.load(Ordering::Relaxed));
        let keys = |t: &OutputTable| t.keys.clone().map(|(first, last)| (t.subjob, first, last));
        let keys: Vec<_> = outcome.tables.iter().filter_map(keys).collect();
        for (subjob, first, last) in &keys {
            let bounds = w.job.subjob_bounds(*subjob as usize);
            prop_assert!(bounds.contains(first) && bounds.contains(last), "{keys:?}");
        }
        prop_assert!(keys.windows(2).all(|pair| pair[0].2 < pair[1].1), "{keys:?}");
        let mut known: BTreeMap<(Vec<u8>, u64), Vec<u8>> = BTreeMap::new();
        for (key, t, value) in case.runs.iter().flat_map(|r| &r.entries) {
            known.insert((key.clone(), *t), value.clone());
        }
        for (key, t, value) in read_all(&*w.storage, &outcome).entries {
            prop_assert_eq!(known.remove(&(key, t)), Some(value));
        }
    }

    #[test]
    fn damaged_survivors_are_refused(
        extents in prop::collection::vec(any::<(u32, u32, u32, u32)>(), 0..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        fix in any::<bool>(),
        has_end in any::<bool>(),
    ) {
        let extent = |(input, block, first, count)| Extent { input, block, first, count };
        let survivors = Survivors {
            subjob: 3,
            chunk: 9,
            extents: extents.into_iter().map(extent).collect(),
            tables: vec![(4, Counters::default()), (9, Counters::default())],
            end: has_end.then(Counters::default),
        };
        let whole = survivors.encode(77);
        prop_assert_eq!(Survivors::decode(&whole).unwrap(), (77, survivors));
        let mut bytes = whole.clone();
        for (at, byte) in &flips {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        if fix {
            let end = bytes.len() - 4;
            let crc = siltstone_table::checksum::crc32c(&bytes[..end]);
            bytes[end..].copy_from_slice(&crc.to_le_bytes());
            if let Ok((job, survivors)) = Survivors::decode(&bytes) {
                let _ = survivors.check(&a_job(10));
                let again = Survivors::decode(&survivors.encode(job)).unwrap();
                prop_assert_eq!(again, (job, survivors));
            }
        } else if bytes != whole {
            prop_assert!(Survivors::decode(&bytes).is_err());
        }
    }
}

/// Offset and length of each read.
type Reads = Arc<Mutex<Vec<(u64, u64)>>>;

/// Notes what is read of the inputs.
struct Watched {
    inner: InputMap,
    reads: Reads,
}

struct WatchedFile(Arc<dyn ReadFile>, Reads);

impl Inputs for Watched {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        let file = self.inner.table(location, name)?;
        Ok(Arc::new(WatchedFile(file, self.reads.clone())))
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        self.inner.stream(location, name)
    }
}

impl ReadFile for WatchedFile {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), StorageError> {
        self.1.lock().push((offset, buf.len() as u64));
        self.0.read_at(offset, buf)
    }
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<(), StorageError> {
        let mut reads = self.1.lock();
        reads.extend(ranges.iter().map(|r| (r.offset, r.buf.len() as u64)));
        drop(reads);
        self.0.read_ranges(ranges)
    }
}

struct Large {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    inputs: InputMap,
    job: Job,
}

/// Two runs over the same keys with values of 2000 bytes, so that half of all entries are dropped
/// and each block has one entry, and keys that only the second one has.
fn large() -> Large {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut job = a_job(100_000);
    job.limits = OutputLimits::new(1 << 18, 512, false);
    job.hard_cuts = vec![b"k00700".to_vec()];
    for run in 0..2u64 {
        let mut content = Content::default();
        for i in 0..1000u64 {
            let key = format!("k{i:05}").into_bytes();
            let seq = run * 50_000 + i + 1;
            let value = vec![(i + run) as u8; 2000];
            content.entries.push((key, trailer(seq, Kind::Put), value));
        }
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        let run = run as u32;
        job.inputs.push(Input { run, ..input });
    }
    Large {
        runtime,
        storage,
        inputs,
        job,
    }
}

impl Large {
    fn context(&self) -> ExecContext {
        ExecContext::new(
            self.runtime.clone(),
            Arc::new(self.inputs.clone()),
            self.storage.clone(),
            epoch(),
        )
    }

    fn watched(&self) -> (Arc<Watched>, Reads) {
        let reads = Arc::new(self.runtime.mutex(Vec::new()));
        let watched = Watched {
            inner: self.inputs.clone(),
            reads: reads.clone(),
        };
        (Arc::new(watched), reads)
    }
}

/// Values of dropped entries are not read. The half that decides reads no values at all, and what
/// it sends is small.
#[test]
fn values_of_dropped_entries_are_not_read() {
    let l = large();
    let (inputs, reads) = l.watched();
    let sum = |reads: &Reads| -> u64 {
        let reads = std::mem::take(&mut *reads.lock());
        reads.iter().map(|(_, len)| len).sum()
    };
    let ctx = |inputs: &Arc<Watched>| ExecContext {
        inputs: inputs.clone(),
        ..l.context()
    };
    let whole = CpuExecutor::new()
        .run(&named(&l.job, 1), &ctx(&inputs))
        .unwrap();
    let read_whole = sum(&reads);
    assert_eq!(whole.counters.shadowed, 1000);
    assert!(whole.counters.bytes_read > 4_000_000);
    let first = ExecContext {
        columns_first: true,
        ..ctx(&inputs)
    };
    let outcome = CpuExecutor::new().run(&named(&l.job, 2), &first).unwrap();
    let read_first = sum(&reads);
    assert_eq!(nameless(&outcome), nameless(&whole));
    // Half of the values, and the columns of all blocks.
    assert!(
        read_first < read_whole * 6 / 10,
        "{read_first} of {read_whole}"
    );
    let counted = outcome.counters.bytes_read;
    assert!((2_000_000..read_first).contains(&counted), "{counted}");
    let plans = Plans::open(&l.job, &l.context()).unwrap();
    let (all, columns) = plans.bytes(&l.job);
    // The block in which the cut lies is read by both subjobs.
    let read = whole.counters.bytes_read;
    assert!((all..all + 10_000).contains(&read), "{all} of {read}");
    assert!(columns < all / 20, "{columns} of {all}");
    // The half that decides, alone.
    let (host_inputs, host_reads) = l.watched();
    let job = named(&l.job, 3);
    let source = Elsewhere::new(&job, &ctx(&host_inputs), |_| ());
    let rebuild = RebuildExecutor::new(source.clone());
    let outcome = rebuild.run(&job, &l.context()).unwrap();
    assert_eq!(nameless(&outcome), nameless(&whole));
    let read_host = sum(&host_reads);
    assert!(read_host < read_whole / 20, "{read_host} of {read_whole}");
    let sent = source.sent_bytes.load(Ordering::Relaxed);
    assert!(sent < 8 * 1000 + 1000, "{sent} bytes of survivors");
}

/// Neither half has all survivors in memory: they come in chunks.
#[test]
fn survivors_come_in_bounded_chunks() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut job = a_job(1_000_000);
    job.limits = OutputLimits::new(1 << 17, 512, false);
    // The runs alternate, so each entry is an extent of its own.
    const KEYS: u64 = 40_000;
    for run in 0..2u64 {
        let mut content = Content::default();
        for i in 0..KEYS / 2 {
            let key = format!("{:07}", i * 2 + run).into_bytes();
            let seq = run * 500_000 + i + 1;
            content
                .entries
                .push((key, trailer(seq, Kind::Put), vec![7]));
        }
        let input = table_input(&mut inputs, &storage, &format!("in-{run}.tbl"), &content);
        let run = run as u32;
        job.inputs.push(Input { run, ..input });
    }
    let ctx = ExecContext::new(runtime, Arc::new(inputs), storage.clone(), epoch());
    let plans = Plans::open(&job, &ctx).unwrap();
    let mut planner = plans.subjob(&job, 0, &Point::Start, &ctx).unwrap();
    let (mut chunks, mut entries, mut tables) = (0, 0, 0);
    let mut planner_bytes = 0;
    while let Some(chunk) = planner.next_chunk().unwrap() {
        assert!(chunk.extents.len() <= EXTENTS_MAX);
        planner_bytes = planner_bytes.max(planner.buffer_bytes());
        assert_eq!(chunk.chunk, chunks);
        chunk.check(&job).unwrap();
        chunks += 1;
        tables += chunk.tables.len();
        entries += chunk
            .extents
            .iter()
            .map(|e| u64::from(e.count))
            .sum::<u64>();
    }
    assert!(chunks > 2, "{chunks}");
    assert!((1..4 << 20).contains(&planner_bytes), "{planner_bytes}");
    assert_eq!(entries, KEYS);
    assert!(planner.next_chunk().unwrap().is_none());
    let whole = CpuExecutor::new().run(&job, &ctx).unwrap();
    assert_eq!(tables, whole.tables.len());
    let source = Elsewhere::new(&job, &ctx, |_| ());
    let most = |executor: &dyn Executor, attempt: u64, columns_first: bool| {
        let progress = Arc::new(Progress::default());
        let most = Arc::new(MostMemory(progress.clone(), AtomicU64::new(0)));
        let ctx = ExecContext {
            progress,
            throttle: Some(most.clone()),
            columns_first,
            ..ctx.clone()
        };
        let outcome = executor.run(&named(&job, attempt), &ctx).unwrap();
        assert!(files(&*storage, &outcome) == files(&*storage, &whole));
        most.1.load(Ordering::Relaxed)
    };
    let rebuilt = most(&RebuildExecutor::new(source), 2, false);
    // If both halves are on the host, the memory of both counts.
    let both = most(&CpuExecutor::new(), 3, true);
    assert!(both > rebuilt, "{both}, {rebuilt}");
}

/// The most memory that a job had when it reported bytes.
struct MostMemory(Arc<Progress>, AtomicU64);

impl Throttle for MostMemory {
    fn spent(&self, _: u64, _: &dyn Fn() -> bool) {
        let bytes = self.0.buffer_bytes.load(Ordering::Relaxed);
        self.1.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// Cancels the job after a number of calls.
struct CancelAfter(AtomicU64, CancelToken);

impl Throttle for CancelAfter {
    fn spent(&self, _: u64, _: &dyn Fn() -> bool) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.1.cancel();
        }
    }
}

/// The parts that a listener received.
struct Kept(Mutex<Vec<Part>>);

impl PartListener for Kept {
    fn finished(&self, part: &Part) {
        self.0.lock().push(part.clone());
    }
}

/// An attempt of any kind goes on after what an attempt of any other kind has finished, and all
/// report the same points to go on.
#[test]
fn attempts_of_all_kinds_go_on_after_each_other() {
    let l = large();
    let whole = CpuExecutor::new()
        .run(&named(&l.job, 1), &l.context())
        .unwrap();
    let bytes = files(&*l.storage, &whole);
    let attempt = |kind: u64, number: u64, ctx: &ExecContext| {
        let job = named(&l.job, number);
        let ctx = ExecContext {
            columns_first: kind == 1,
            ..ctx.clone()
        };
        match kind {
            2 => RebuildExecutor::new(Elsewhere::new(&job, &l.context(), |_| ())).run(&job, &ctx),
            _ => CpuExecutor::new().run(&job, &ctx),
        }
    };
    let mut number = 10;
    let mut reported: Vec<Vec<Part>> = Vec::new();
    for kind in 0..3 {
        let kept = Arc::new(Kept(l.runtime.mutex(Vec::new())));
        let ctx = ExecContext {
            part_listener: Some(kept.clone()),
            ..l.context()
        };
        number += 1;
        attempt(kind, number, &ctx).unwrap();
        let mut parts = std::mem::take(&mut *kept.0.lock());
        for part in &mut parts {
            part.check(&l.job).unwrap();
            part.tables.iter_mut().for_each(|t| t.name.clear());
            match &mut part.next {
                Point::Table { counters, .. } | Point::End(counters) => counters.bytes_read = 0,
                Point::Start => {}
            }
        }
        reported.push(parts);
    }
    assert!(reported[0].len() > 4);
    assert!(reported.iter().all(|parts| *parts == reported[0]));
    for first in 0..3 {
        for second in 0..3 {
            let handover = Arc::new(Handover::new(&l.runtime));
            let ctx = ExecContext {
                handover: Some(handover.clone()),
                ..l.context()
            };
            let cancelled = ExecContext {
                cancel: CancelToken::new(),
                ..ctx.clone()
            };
            let calls = AtomicU64::new(if first == 0 { 900 } else { 6 });
            let throttle = CancelAfter(calls, cancelled.cancel.clone());
            let cancelled = ExecContext {
                throttle: Some(Arc::new(throttle)),
                ..cancelled
            };
            number += 2;
            let ended = attempt(first, number, &cancelled);
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{first}");
            let left = handover.left_count();
            assert!(left > 0, "{first} left nothing");
            let outcome = attempt(second, number + 1, &ctx).unwrap();
            assert_eq!(handover.adopted_count(), left as u64, "{first} {second}");
            assert_eq!(nameless(&outcome), nameless(&whole), "{first} {second}");
            assert!(files(&*l.storage, &outcome) == bytes, "{first} {second}");
            assert_eq!(
                Counters {
                    raw_bytes_read: 0,
                    ..counted(&outcome)
                },
                Counters {
                    raw_bytes_read: 0,
                    ..counted(&whole)
                },
                "{first} {second}"
            );
        }
    }
}

/// A source that ends early, repeats a chunk, or sends chunks of another subjob.
#[test]
fn chunks_out_of_order_are_refused() {
    let l = large();
    let job = &l.job;
    let lies: [fn(&mut Survivors); 4] = [
        |chunk| chunk.chunk += 1,
        |chunk| chunk.subjob ^= 1,
        |chunk| chunk.end = None,
        |chunk| {
            if let Some(end) = &mut chunk.end {
                end.shadowed = u64::MAX;
            }
        },
    ];
    for (i, lie) in lies.into_iter().enumerate() {
        let source = Elsewhere::new(job, &l.context(), lie);
        let job = named(job, 30 + i as u64);
        let failed = RebuildExecutor::new(source).run(&job, &l.context());
        assert!(
            matches!(failed, Err(ExecError::Failed(_))),
            "lie {i}: {failed:?}"
        );
        let names = l.storage.list().unwrap().into_iter().map(|o| o.name);
        let left: Vec<String> = names.filter(|n| !n.starts_with("in-")).collect();
        assert!(left.is_empty(), "lie {i} left {left:?}");
    }
}

/// A damaged value of an entry that is kept is found by the half that reads values, and damaged
/// columns by the other one.
#[test]
fn damage_is_found_by_the_half_that_reads_it() {
    let l = large();
    let bytes = l.storage.read_small("in-1.tbl").unwrap();
    let table =
        siltstone_table::merge::table::InputTable::open(l.storage.open("in-1.tbl").unwrap());
    let place = table.unwrap().place(500);
    for (at, is_value) in [(place.start + 9, true), (place.anchor + 40, false)] {
        let mut damaged = bytes.clone();
        damaged[at as usize] ^= 1;
        l.storage.replace(epoch(), "in-1.tbl", &damaged).unwrap();
        let mut inputs = l.inputs.clone();
        inputs.add_table(0, "in-1.tbl", l.storage.open("in-1.tbl").unwrap());
        let ctx = ExecContext {
            inputs: Arc::new(inputs),
            ..l.context()
        };
        let plans = Plans::open(&l.job, &ctx).unwrap();
        let mut planned = Ok(());
        for subjob in 0..2 {
            let mut planner = plans.subjob(&l.job, subjob, &Point::Start, &ctx).unwrap();
            while planned.is_ok() {
                match planner.next_chunk() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(error) => planned = Err(error),
                }
            }
        }
        assert_eq!(planned.is_ok(), is_value, "{planned:?}");
        let ctx = ExecContext {
            columns_first: true,
            ..ctx
        };
        let failed = CpuExecutor::new()
            .run(&named(&l.job, 40), &ctx)
            .unwrap_err();
        let what = if is_value { "values" } else { "columns" };
        assert!(failed.to_string().contains(what), "{failed}");
    }
}

/// Entries out of order, and entries of the next subjob, are refused for what they are, also where
/// a new table begins between them.
#[test]
fn what_the_second_half_refuses_it_names() {
    let l = large();
    type Change = fn(&mut Survivors);
    let changes: [(Change, &str); 5] = [
        (|c| c.extents.swap(3, 9), "order of survivors"),
        (
            |c| {
                // The first entry of the second table comes again, at the end of the first one.
                let at = c.tables[1].0 as usize;
                let again = c.extents[at];
                c.extents.insert(at, again);
                c.tables.truncate(1);
            },
            "begin of a table",
        ),
        (
            |c| {
                let last = c.extents.last_mut().unwrap();
                last.block += 1;
            },
            "bounds of an extent",
        ),
        (|c| c.extents[5].block = 5000, "block of an extent"),
        (|c| c.extents[5].count = 2, "entries of an extent"),
    ];
    for (i, (change, what)) in changes.into_iter().enumerate() {
        // Only of the first subjob, whose range has an end.
        let only_first = move |chunk: &mut Survivors| {
            if chunk.subjob == 0 {
                change(chunk);
            }
        };
        let source = Elsewhere::new(&l.job, &l.context(), only_first);
        let job = named(&l.job, 50 + i as u64);
        let failed = RebuildExecutor::new(source).run(&job, &l.context());
        let failed = failed.expect_err(what).to_string();
        assert!(failed.contains(what), "{what}: {failed}");
    }
}
