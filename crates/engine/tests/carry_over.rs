//! What a compaction by another executor leaves of what was in memory of its inputs
//! (`carry_over_bytes`).

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Disk, key, simulate, small};
use siltstone::{Components, Keyspace, Options, Store};
use siltstone_storage::{OpKind, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::InputKind;
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

/// An executor that the engine takes for one on another machine. It runs compactions only.
struct Elsewhere {
    jobs: Arc<AtomicU64>,
    lies: bool,
}

impl Executor for Elsewhere {
    fn name(&self) -> &str {
        "elsewhere"
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        if job
            .inputs
            .iter()
            .any(|input| input.kind == InputKind::Stream)
        {
            return Err(ExecError::declined("no flushes"));
        }
        self.jobs.fetch_add(1, Ordering::Relaxed);
        let mut outcome = CpuExecutor::new().run(job, ctx)?;
        if self.lies
            && let Some(table) = outcome.tables.first_mut()
        {
            table.digest ^= 1;
        }
        Ok(outcome)
    }
}

const PAIRS: u64 = 400;

fn value(i: u64, round: u8) -> Vec<u8> {
    vec![i as u8 ^ round; 300]
}

struct Run {
    disk: Disk,
    store: Store,
    jobs: Arc<AtomicU64>,
}

impl Run {
    /// A store whose inputs of a compaction are cached: all, or only the first keys.
    fn new(rt: &Runtime, options: Options, cached: u64, lies: bool) -> Run {
        let disk = Disk::new(rt);
        let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
        let mut components = Components::on(storage, disk.rt.clone());
        let jobs = Arc::new(AtomicU64::new(0));
        components.executors.push(Arc::new(Elsewhere {
            jobs: jobs.clone(),
            lies,
        }));
        let store = Store::open_with(components, options).unwrap();
        let run = Run { disk, store, jobs };
        let keyspace = run.keyspace();
        for round in 0..2 {
            for i in 0..PAIRS {
                keyspace.put(&key(i), &value(i, round)).unwrap();
            }
            run.store.flush().unwrap();
        }
        run.check(cached);
        run
    }

    fn keyspace(&self) -> Keyspace {
        self.store.default_keyspace().unwrap()
    }

    fn check(&self, pairs: u64) {
        let keyspace = self.keyspace();
        for i in 0..pairs {
            assert_eq!(keyspace.get(&key(i)).unwrap(), Some(value(i, 1)), "{i}");
        }
    }

    fn compact(&self) {
        self.keyspace().compact_range(None, None).unwrap();
    }

    /// The reads of the storage that a part makes.
    fn reads(&self, part: impl FnOnce()) -> u64 {
        let before = self.disk.faults.counts().of(OpKind::Read);
        part();
        self.disk.faults.counts().of(OpKind::Read) - before
    }

    fn counter(&self, name: &str) -> u64 {
        self.store.stats().counter(name)
    }
}

fn options(carry_over_bytes: u64) -> Options {
    Options {
        map_tables: false,
        carry_over_bytes,
        ..small()
    }
}

#[test]
fn what_was_cached_of_the_inputs_is_cached_of_the_outputs() {
    simulate(|rt| {
        let run = Run::new(&rt, options(8 << 20), PAIRS, false);
        run.compact();
        assert!(run.jobs.load(Ordering::Relaxed) > 0);
        assert_eq!(run.counter("job_rejected_count"), 0);
        assert!(run.counter("carried_over_table_count") > 0);
        let (blocks, bytes) = (
            run.counter("carried_over_block_count"),
            run.counter("carried_over_bytes"),
        );
        assert!(
            blocks > 50 && bytes > PAIRS * 300,
            "{blocks} blocks, {bytes} bytes"
        );
        // Neither blocks nor sections have to be read.
        assert_eq!(run.reads(|| run.check(PAIRS)), 0);
        let absent = run.reads(|| {
            for i in 0..50 {
                let key = [&key(i)[..], b"-absent"].concat();
                assert_eq!(run.keyspace().get(&key).unwrap(), None);
            }
        });
        assert!(absent < 10, "the filters are there: {absent} reads");
        run.store.close().unwrap();
    });
}

#[test]
fn nothing_is_read_that_was_not_cached() {
    simulate(|rt| {
        let run = Run::new(&rt, options(8 << 20), 40, false);
        run.compact();
        let blocks = run.counter("carried_over_block_count");
        assert!((1..60).contains(&blocks), "{blocks} blocks");
        assert_eq!(run.reads(|| run.check(40)), 0);
        assert!(run.reads(|| run.check(PAIRS)) > 50);
        run.store.close().unwrap();
    });
}

#[test]
fn the_budget_bounds_what_is_read() {
    simulate(|rt| {
        let run = Run::new(&rt, options(0), PAIRS, false);
        run.compact();
        assert!(run.jobs.load(Ordering::Relaxed) > 0);
        assert_eq!(run.counter("carried_over_block_count"), 0);
        assert!(run.counter("carried_over_table_count") > 0);
        let without = run.reads(|| run.check(PAIRS));
        assert!(without > 100, "{without} reads");

        // It can be changed while the store is open.
        run.store.set_option("carry_over_bytes", "10KiB").unwrap();
        for i in 0..PAIRS {
            run.keyspace().put(&key(i), &value(i, 1)).unwrap();
        }
        run.store.flush().unwrap();
        run.check(PAIRS);
        run.compact();
        let bytes = run.counter("carried_over_bytes");
        let most = run.jobs.load(Ordering::Relaxed) * (10 << 10);
        assert!((1..=most).contains(&bytes), "{bytes} bytes of {most}");
        run.check(PAIRS);
        run.store.close().unwrap();
    });
}

#[test]
fn nothing_is_carried_over_of_an_outcome_that_is_not_believed() {
    simulate(|rt| {
        let run = Run::new(&rt, options(8 << 20), PAIRS, true);
        run.compact();
        assert!(run.counter("job_rejected_count") > 0);
        assert_eq!(run.counter("carried_over_table_count"), 0);
        run.check(PAIRS);
        run.store.close().unwrap();
    });
}

/// Each section of a table is read once for its verification and its reader together.
#[test]
fn verification_reads_sections_once() {
    simulate(|rt| {
        let run = Run::new(&rt, options(0), 0, false);
        let opened = |run: &Run| run.disk.faults.counts().of(OpKind::Open);
        let before = opened(&run);
        run.compact();
        let tables = run.counter("carried_over_table_count");
        assert!(tables > 0);
        // The host opens each output once, and the executor opens each input once.
        let inputs = opened(&run) - before - tables;
        assert!(
            inputs <= 2 * tables + 10,
            "{inputs} opens beside {tables} outputs"
        );
        run.store.close().unwrap();
    });
}
