//! Stories about executors that are late or return false outcomes, and about a writer that was
//! paused. `docs/stories.md` describes them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone::{Batch, Components, ErrorKind, Store};
use siltstone_storage::{Mutex, Runtime, Storage, WriteFile};
use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{DropRules, InputKind, Job};
use siltstone_table::{NoCache, ReaderOptions, TableReader, TableWriter, WriterOptions};

use super::*;

pub const ALL: &[Story] = &[
    (
        "a_late_executor_changes_no_installed_table",
        4,
        a_late_executor_changes_no_installed_table,
    ),
    (
        "a_paused_writer_changes_nothing_after_a_takeover",
        8,
        a_paused_writer_changes_nothing_after_a_takeover,
    ),
    (
        "false_outcomes_are_not_installed",
        6,
        false_outcomes_are_not_installed,
    ),
    (
        "an_executor_that_lies_is_suspended",
        4,
        an_executor_that_lies_is_suspended,
    ),
    (
        "a_compaction_of_other_contents_is_not_installed",
        4,
        a_compaction_of_other_contents_is_not_installed,
    ),
    (
        "what_quick_compactions_keep_is_dropped_below",
        4,
        what_quick_compactions_keep_is_dropped_below,
    ),
];

/// An executor whose jobs drop nothing in the first two levels below level 0.
struct QuickExecutor {
    /// The number of jobs that dropped nothing.
    quick: Arc<AtomicU64>,
}

impl Executor for QuickExecutor {
    fn name(&self) -> &str {
        "quick"
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn drops_into(&self, depth: u32) -> bool {
        depth > 2
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        if job.rules == DropRules::QUICK {
            self.quick.fetch_add(1, Ordering::Relaxed);
        }
        CpuExecutor::new().run(job, ctx)
    }
}

/// Several versions of a key, deletes and range deletes lie in one level. Reads see the newest
/// ones, and a compaction of everything drops the others.
fn what_quick_compactions_keep_is_dropped_below(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
    let mut components = Components::on(storage, disk.rt.clone());
    let quick = Arc::new(AtomicU64::new(0));
    components.executors.push(Arc::new(QuickExecutor {
        quick: Arc::clone(&quick),
    }));
    let store = Store::open_with(components, small()).unwrap();
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for round in 0..40u8 {
        for i in 0..200u64 {
            let number = (i * 37 + u64::from(round) * 11) % 3000;
            if (i + u64::from(round)).is_multiple_of(9) {
                ks.delete(&key(number)).unwrap();
                model.remove(&key(number));
            } else {
                ks.put(&key(number), &[round; 300]).unwrap();
                model.insert(key(number), vec![round; 300]);
            }
        }
        if round % 8 == 7 {
            ks.delete_range(&key(10), &key(14)).unwrap();
            (10..14).for_each(|i| {
                model.remove(&key(i));
            });
        }
        ks.flush().unwrap();
        check(&ks, &model, "between quick compactions");
    }
    store.wait_until_idle().unwrap();
    check(&ks, &model, "after quick compactions");
    assert!(quick.load(Ordering::Relaxed) > 0, "no compaction was quick");
    ks.compact_range(None, None).unwrap();
    check(&ks, &model, "after a compaction of everything");
    store.close().unwrap();
    let store = disk.open();
    check(&store.default_keyspace().unwrap(), &model, "after a reopen");
}

type Behaviour = dyn Fn(&Job, &ExecContext) -> Result<Outcome, ExecError> + Send + Sync;

/// An executor that the engine takes for one on another machine.
struct OtherExecutor {
    behave: Box<Behaviour>,
}

impl Executor for OtherExecutor {
    fn name(&self) -> &str {
        "stranger"
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        (self.behave)(job, ctx)
    }
}

fn open_with_executor(
    disk: &Disk,
    behave: impl Fn(&Job, &ExecContext) -> Result<Outcome, ExecError> + Send + Sync + 'static,
) -> Store {
    let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
    let mut components = Components::on(storage, disk.rt.clone());
    components.executors.push(Arc::new(OtherExecutor {
        behave: Box::new(behave),
    }));
    Store::open_with(components, small()).unwrap()
}

/// The engine gives up on a slow executor, and the host runs the job. Then the executor wakes and
/// writes files with the names that it was given. No installed table changes.
fn a_late_executor_changes_no_installed_table(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let half_written: Arc<Mutex<Vec<Arc<dyn WriteFile>>>> = Arc::new(rt.mutex(Vec::new()));
    let files = half_written.clone();
    let store = open_with_executor(&disk, move |job, ctx| {
        let file = ctx.outputs.create(ctx.epoch, &job.table_name(0, 0))?;
        file.append(&[b"half a table"])?;
        files.lock().push(file);
        Err(ExecError::Failed(TableError::Misuse(
            "it did not answer in time",
        )))
    });
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for round in 0..3u8 {
        for i in 0..40 {
            ks.put(&key(i), &[round; 300]).unwrap();
            model.insert(key(i), vec![round; 300]);
        }
        ks.flush().unwrap();
        for file in half_written.lock().iter() {
            let _ = file.append(&[&[0xee; 5000]]);
        }
        check(&ks, &model, "beside a late worker");
    }
    assert!(half_written.lock().len() >= 3, "the executor was not asked");
    assert!(store.stats().counter("job_fallback_count") >= 3);
    assert_eq!(
        store.stats().counter("job_failed_count"),
        0,
        "the host's attempt has names of its own"
    );
    store.close().unwrap();
    let store = disk.open();
    check(&store.default_keyspace().unwrap(), &model, "after a reopen");
    assert!(
        disk.names(".tbl").len() <= 3,
        "the late worker's files are orphans and are deleted"
    );
}

/// A writer is paused and another one takes the lease. When the first one wakes, it changes
/// nothing, and its calls say that it is poisoned.
fn a_paused_writer_changes_nothing_after_a_takeover(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    disk.memory.set_leases_expire(true);
    let old = disk.open();
    let old_ks = old.default_keyspace().unwrap();
    put_synced(&old_ks, &key(0), b"old");
    let new = disk.open();
    let ks = new.default_keyspace().unwrap();
    put_synced(&ks, &key(1), b"new");
    new.flush().unwrap();
    put_synced(&ks, &key(2), b"new");
    let mut batch = Batch::new();
    batch.put(&old_ks, &key(9), b"late").unwrap();
    let results = match seed % 3 {
        0 => vec![old.write(&batch, SYNC)],
        1 => vec![old.flush(), old.write(&batch, SYNC)],
        _ => vec![
            old.create_keyspace("late").map(|_| ()),
            old.write(&batch, SYNC),
        ],
    };
    let last = results.last().unwrap().as_ref().unwrap_err();
    assert_eq!(last.kind(), ErrorKind::Poisoned, "{last}");
    drop((old_ks, old));
    put_synced(&ks, &key(3), b"new");
    new.close().unwrap();
    let store = disk.open();
    assert_eq!(prefix_len(&store.default_keyspace().unwrap()), 4);
    assert_eq!(store.keyspaces(), ["default"]);
}

/// An executor returns a false outcome, a different one for each seed. Nothing of it is installed,
/// the host runs the job, and the rejection is counted.
fn false_outcomes_are_not_installed(rt: Runtime, seed: u64) {
    let disk = Disk::new(&rt);
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let store = open_with_executor(&disk, move |job, ctx| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut outcome = CpuExecutor::new().run(job, ctx)?;
        let table = &mut outcome.tables[0];
        match seed {
            0 => table.entries += 1,
            1 => table.digest ^= 1,
            2 => table.keys = Some((b"a".to_vec(), b"b".to_vec())),
            3 => ctx.outputs.delete(ctx.epoch, &table.name)?,
            4 => table.max_seq += 1_000_000,
            _ => drop(outcome.tables.pop()),
        }
        Ok(outcome)
    });
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for round in 0..3u8 {
        for i in 0..40 {
            ks.put(&key(i * u64::from(round + 1)), &[round; 300])
                .unwrap();
            model.insert(key(i * u64::from(round + 1)), vec![round; 300]);
        }
        ks.flush().unwrap();
        check(&ks, &model, "beside a liar");
    }
    let stats = store.stats();
    assert!(
        asked.load(Ordering::Relaxed) >= 3,
        "the executor was not asked"
    );
    assert!(
        stats.counter("job_rejected_count") >= 3,
        "{:?}",
        stats.counters
    );
    assert_eq!(
        stats.counter("job_failed_count"),
        0,
        "the host ran the jobs: {:?}",
        stats.last_job_error
    );
    ks.compact_range(None, None).unwrap();
    check(&ks, &model, "after a compaction beside a liar");
    store.close().unwrap();
    check(
        &disk.open().default_keyspace().unwrap(),
        &model,
        "after a reopen",
    );
}

/// An executor that returns false outcomes for every job is offered fewer and fewer jobs. When it
/// begins to return true ones, it is offered jobs as before.
fn an_executor_that_lies_is_suspended(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let asked = Arc::new(AtomicU64::new(0));
    let honest = Arc::new(AtomicBool::new(false));
    let (count, truth) = (asked.clone(), honest.clone());
    let store = open_with_executor(&disk, move |job, ctx| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut outcome = CpuExecutor::new().run(job, ctx)?;
        if !truth.load(Ordering::Relaxed) {
            outcome.tables[0].digest ^= 1;
        }
        Ok(outcome)
    });
    store.test_hooks().pause_compaction(true);
    let ks = store.default_keyspace().unwrap();
    let flush = || {
        ks.put(b"k", b"v").unwrap();
        ks.flush().unwrap();
        asked.load(Ordering::Relaxed)
    };
    let flushes = |n: u32| {
        for _ in 1..n {
            flush();
        }
        flush()
    };
    let other_side = || store.stats().sides[0].clone();
    assert_eq!(flushes(3), 3);
    let side = other_side();
    assert_eq!((side.rejected_count, side.suspended_count), (3, 1));
    assert!(
        (29_000_000..=30_000_000).contains(&side.suspended_us),
        "{side:?}"
    );
    assert_eq!(flushes(5), 3, "it was offered a job while it was suspended");
    // Each time it gets one job. After its next false outcome it is suspended for twice as long.
    let mut pause = Duration::from_secs(30);
    for trial in 1..=3 {
        rt.sleep(pause);
        assert_eq!(flush(), 3 + trial);
        assert_eq!(flush(), 3 + trial, "one job as a trial");
        pause *= 2;
        let left = u128::from(other_side().suspended_us);
        assert!(
            left <= pause.as_micros() && left > pause.as_micros() - 1_000_000,
            "{left} of {pause:?}"
        );
    }
    assert_eq!(store.stats().counter("side_suspended_count"), 4);
    honest.store(true, Ordering::Relaxed);
    assert_eq!(flush(), 6, "it is offered no job too early");
    rt.sleep(pause);
    assert_eq!(flush(), 7);
    let side = other_side();
    assert_eq!((side.rejected_count, side.suspended_us), (6, 0));
    assert_eq!(flushes(3), 10, "it is trusted and offered jobs as before");
    // Earlier outcomes are forgotten: it may return as many false ones as at first, and the pause
    // is short again.
    honest.store(false, Ordering::Relaxed);
    assert_eq!(flushes(8), 13, "three false outcomes, and no more");
    let side = other_side();
    assert_eq!((side.rejected_count, side.suspended_count), (9, 5));
    assert!(side.suspended_us <= 30_000_000, "{side:?}");
    assert_eq!(store.stats().counter("job_failed_count"), 0);
    assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v");
    store.close().unwrap();
}

/// Replaces a table of an outcome by one with other entries. Names, counts, checksums and bounds
/// agree with the outcome.
fn forge(job: &Job, ctx: &ExecContext, outcome: &mut Outcome, change: impl Fn(usize, &mut [u8])) {
    let record = &mut outcome.tables[0];
    let file = ctx.outputs.open(&record.name).unwrap();
    let table = TableReader::open(file, ReaderOptions::default()).unwrap();
    ctx.outputs.delete(ctx.epoch, &record.name).unwrap();
    let file = ctx.outputs.create(ctx.epoch, &record.name).unwrap();
    let options = WriterOptions {
        block_size_bytes: job.limits.block_bytes,
        codec: job.format.codec,
        level: job.format.level,
        bits_per_key: job.format.bits_per_key,
        keyspace: Some(job.keyspace),
        ..WriterOptions::default()
    };
    let mut writer = TableWriter::new(file.clone(), options).unwrap();
    writer.set_left_bound(&record.left_bound);
    let mut iter = table.iter(Arc::new(NoCache));
    iter.seek_to_first().unwrap();
    let mut number = 0;
    while iter.valid() {
        let mut value = iter.value().unwrap().to_vec();
        change(number, &mut value);
        writer.add(iter.key(), iter.trailer(), &value).unwrap();
        number += 1;
        iter.next().unwrap();
    }
    let fragments = table.range_deletes().fragments().to_vec();
    writer.set_range_deletes(fragments).unwrap();
    let summary = writer.finish().unwrap();
    file.sync().unwrap();
    outcome.counters.bytes_written -= record.file_bytes;
    outcome.counters.bytes_written += summary.file_bytes;
    (record.digest, record.file_bytes) = (summary.digest, summary.file_bytes);
}

/// An executor makes consistent tables of wrong values: first of many, then of one. The places that
/// are compared with the inputs show the first lie, and after it the next outcome is compared
/// whole. Then it is honest, and believed.
fn a_compaction_of_other_contents_is_not_installed(rt: Runtime, _seed: u64) {
    let disk = Disk::new(&rt);
    let asked = Arc::new(AtomicU64::new(0));
    let count = asked.clone();
    let store = open_with_executor(&disk, move |job, ctx| {
        let mut outcome = CpuExecutor::new().run(job, ctx)?;
        if job
            .inputs
            .iter()
            .all(|input| input.kind == InputKind::Table)
        {
            match count.fetch_add(1, Ordering::Relaxed) {
                0 => forge(job, ctx, &mut outcome, |_, value| {
                    value.iter_mut().for_each(|b| *b ^= 1);
                }),
                1 => forge(job, ctx, &mut outcome, |number, value| {
                    if number == 31 {
                        value[17] ^= 1;
                    }
                }),
                _ => {}
            }
        }
        Ok(outcome)
    });
    store.test_hooks().pause_compaction(true);
    let ks = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    let mut counts = Vec::new();
    for round in 0..3u8 {
        for i in 0..400 {
            ks.put(&key(i), &[round; 300]).unwrap();
            model.insert(key(i), vec![round; 300]);
        }
        ks.flush().unwrap();
        ks.compact_range(None, None).unwrap();
        check(&ks, &model, "after a compaction");
        let stats = store.stats();
        assert_eq!(stats.counter("job_failed_count"), 0);
        let names = ["job_rejected_count", "job_checked_place_count"];
        let [rejected, places] = names.map(|name| stats.counter(name));
        counts.push((asked.load(Ordering::Relaxed), rejected, places > 0));
    }
    // A rejected compaction is due again at once, and the side is not suspended yet.
    assert_eq!(counts, [(3, 2, true), (4, 2, true), (5, 2, true)]);
    store.close().unwrap();
    let store = disk.open();
    check(&store.default_keyspace().unwrap(), &model, "after a reopen");
}
