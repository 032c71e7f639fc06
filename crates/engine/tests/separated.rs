//! An executor in the place of the host's cores (`Components::separated`): what it declines and
//! what it fails with, the host's cores run; what it makes is verified as from outside; and the
//! option `schedule` decides whether it is asked at all. And what its switch `columns-first` does.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::{Disk, check, key, simulate, small};
use siltstone::storage::Runtime;
use siltstone::{Components, Options, ScheduleOptions, Store};
use siltstone_storage::Mutex;
use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

/// What the executor does with its jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// As the host's cores.
    Works,
    Declines,
    /// Declines when it has read a part.
    DeclinesLate,
    /// Declines when it has finished tables, which it leaves.
    DeclinesAfterTables,
    Fails,
    /// Fails when it has finished tables, which it leaves.
    FailsAfterTables,
    /// Fails when it has finished tables that lack the first input, and leaves them.
    FailsAfterLies,
    /// Declines in the same state.
    DeclinesAfterLies,
    /// Leaves the first input out.
    Lies,
    /// Ends as cancelled, although nobody asked for it.
    Stops,
}

struct Other {
    does: Does,
    jobs: AtomicU64,
    /// The identities of the jobs.
    seen: Mutex<Vec<u128>>,
}

impl Executor for Other {
    fn name(&self) -> &str {
        "other"
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        assert!(
            job.inputs.iter().all(|i| i.kind == InputKind::Table),
            "no flush is offered"
        );
        self.jobs.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().push(job.identity());
        ctx.remark("it is tried in another way");
        match self.does {
            Does::Works => CpuExecutor.run(job, ctx),
            Does::Declines => Err(ExecError::declined("whole: it gains nothing")),
            Does::DeclinesLate => {
                ctx.progress.bytes_in.fetch_add(1 << 40, Ordering::Relaxed);
                Err(ExecError::declined("whole: its device is busy"))
            }
            Does::Fails => Err(ExecError::Failed(TableError::Misuse("its link is down"))),
            Does::FailsAfterTables
            | Does::DeclinesAfterTables
            | Does::FailsAfterLies
            | Does::DeclinesAfterLies => {
                let mut made = job.clone();
                if matches!(self.does, Does::FailsAfterLies | Does::DeclinesAfterLies) {
                    made.inputs.remove(0);
                }
                let whole = CpuExecutor.run(&made, ctx)?;
                let mut parts: BTreeMap<u32, siltstone_table::exec::part::Part> = BTreeMap::new();
                for table in &whole.tables {
                    let new = siltstone_table::exec::part::Part::new(table.subjob);
                    parts
                        .entry(table.subjob)
                        .or_insert(new)
                        .tables
                        .push(table.clone());
                }
                // It says that each subjob is complete, with counts that are as good as any.
                for part in parts.values_mut() {
                    part.next = siltstone_table::exec::part::Point::End(whole.counters);
                }
                let handover = ctx.handover.as_ref().expect("a compaction has one");
                let left = handover.leave(job.identity(), parts.into_values().collect());
                assert!(left.is_empty());
                match self.does {
                    Does::DeclinesAfterTables | Does::DeclinesAfterLies => {
                        Err(ExecError::declined("whole: it is busy now"))
                    }
                    _ => Err(ExecError::Failed(TableError::Misuse("its link is down"))),
                }
            }
            Does::Lies => {
                let mut less = job.clone();
                less.inputs.remove(0);
                let mut outcome = CpuExecutor.run(&less, ctx)?;
                outcome.job = job.identity();
                Ok(outcome)
            }
            Does::Stops => Err(ExecError::Cancelled),
        }
    }
}

/// A store with this executor, and a schedule as text.
fn open(rt: &Runtime, does: Does, switched_on: bool) -> (Disk, Store, Arc<Other>) {
    let disk = Disk::new(rt);
    let other = Arc::new(Other {
        does,
        jobs: AtomicU64::new(0),
        seen: rt.mutex(Vec::new()),
    });
    let components = Components {
        separated: Some(other.clone()),
        ..Components::on(Arc::new(disk.faults.clone()), rt.clone())
    };
    let options = Options {
        schedule: ScheduleOptions {
            separated_transfer: switched_on,
            ..ScheduleOptions::default()
        },
        ..small()
    };
    let store = Store::open_with(components, options).unwrap();
    (disk, store, other)
}

/// Writes, flushes and compacts some rounds, and compares with what must be there.
fn work(store: &Store) {
    let keyspace = store.default_keyspace().unwrap();
    let mut model = BTreeMap::new();
    for round in 0..3u8 {
        for i in 0..150 {
            let value = vec![round; 200 + i as usize];
            keyspace.put(key(i), &value).unwrap();
            model.insert(key(i), value);
        }
        store.flush().unwrap();
        keyspace.compact_range(None, None).unwrap();
        check(&keyspace, &model, "after a compaction");
    }
}

#[test]
fn what_it_makes_is_verified_as_from_outside() {
    simulate(|rt| {
        let (_disk, store, other) = open(&rt, Does::Works, true);
        work(&store);
        let stats = store.stats();
        assert!(other.jobs.load(Ordering::Relaxed) > 0);
        assert!(stats.counter("job_checked_place_count") > 0);
        assert_eq!(stats.counter("job_fallback_count"), 0);
        assert_eq!(stats.sides.len(), 1, "it is no side of its own");
    });
}

#[test]
fn without_the_switch_it_is_not_asked() {
    simulate(|rt| {
        let (_disk, store, other) = open(&rt, Does::Fails, false);
        work(&store);
        assert_eq!(other.jobs.load(Ordering::Relaxed), 0);
        assert_eq!(store.stats().counter("job_checked_place_count"), 0);
    });
}

#[test]
fn what_it_declines_the_host_runs() {
    simulate(|rt| declined(&rt, Does::Declines));
    simulate(|rt| declined(&rt, Does::DeclinesLate));
    simulate(|rt| declined(&rt, Does::DeclinesAfterTables));
}

fn declined(rt: &Runtime, does: Does) {
    let (_disk, store, other) = open(rt, does, true);
    work(&store);
    let stats = store.stats();
    assert!(other.jobs.load(Ordering::Relaxed) > 0);
    for name in [
        "job_fallback_count",
        "job_failed_count",
        "job_declined_count",
    ] {
        assert_eq!(stats.counter(name), 0, "{name}");
    }
    // Only tables that it left are checked as foreign ones.
    for name in ["adopted_table_count", "job_checked_place_count"] {
        let is_counted = stats.counter(name) > 0;
        assert_eq!(
            is_counted,
            does == Does::DeclinesAfterTables,
            "{name}: {does:?}"
        );
    }
}

/// The host runs the work at once and whole: it is not offered again, and counts as no failure of a
/// job.
#[test]
fn what_it_fails_with_the_host_runs_whole() {
    simulate(|rt| failed(&rt, Does::Fails));
    simulate(|rt| failed(&rt, Does::FailsAfterTables));
    simulate(|rt| failed(&rt, Does::Lies));
    simulate(|rt| failed(&rt, Does::Stops));
}

fn failed(rt: &Runtime, does: Does) {
    let (disk, store, other) = open(rt, does, true);
    work(&store);
    let stats = store.stats();
    let jobs = other.jobs.load(Ordering::Relaxed);
    assert!(jobs > 0);
    match does {
        Does::Lies => assert_eq!(stats.sides[0].rejected_count, jobs, "{does:?}"),
        _ => assert_eq!(stats.sides[0].failed_count, jobs, "{does:?}"),
    }
    assert_eq!(stats.counter("job_fallback_count"), jobs, "{does:?}");
    assert_eq!(stats.counter("job_failed_count"), 0, "{does:?}");
    let adopted = stats.counter("adopted_table_count");
    assert_eq!(adopted > 0, does == Does::FailsAfterTables, "{does:?}");
    if adopted > 0 {
        assert!(
            stats.counter("job_checked_place_count") > 0,
            "they are foreign"
        );
    }
    let mut seen = other.seen.lock().clone();
    seen.dedup();
    assert_eq!(seen.len() as u64, jobs, "no work is offered twice");
    store.close().unwrap();
    // Nothing that it left stays.
    let store = disk.open();
    let tables: usize = disk.names(".tbl").len();
    let named: u64 = store.stats().keyspaces.iter().map(tables_of).sum();
    assert_eq!(tables as u64, named);
}

/// Wrong tables that an attempt left are no failure of the store, which makes them again.
#[test]
fn wrong_tables_that_it_left_are_no_failure_of_the_store() {
    simulate(|rt| lied(&rt, Does::FailsAfterLies));
    simulate(|rt| lied(&rt, Does::DeclinesAfterLies));
}

fn lied(rt: &Runtime, does: Does) {
    let (_disk, store, other) = open(rt, does, true);
    work(&store);
    let stats = store.stats();
    assert!(other.jobs.load(Ordering::Relaxed) > 0);
    assert!(stats.counter("adopted_table_count") > 0, "{does:?}");
    assert!(stats.counter("job_rejected_count") > 0, "{does:?}");
    assert_eq!(stats.counter("job_failed_count"), 0, "{does:?}");
    assert_eq!(stats.counter("side_suspended_count"), 0, "{does:?}");
    store.close().unwrap();
}

fn tables_of(keyspace: &siltstone::KeyspaceStats) -> u64 {
    keyspace.levels.iter().map(|level| level.table_count).sum()
}

/// The way in which a compaction runs is shown behind its placement.
#[test]
fn the_remark_is_shown() {
    simulate(|rt| {
        let heard = Arc::new(rt.mutex(Vec::new()));
        let disk = Disk::new(&rt);
        let components = Components {
            separated: Some(Arc::new(Other {
                does: Does::Works,
                jobs: AtomicU64::new(0),
                seen: rt.mutex(Vec::new()),
            })),
            listener: Some(Arc::new(Listener(heard.clone()))),
            ..Components::on(Arc::new(disk.faults.clone()), rt.clone())
        };
        let mut options = small();
        options.schedule.separated_transfer = true;
        let store = Store::open_with(components, options).unwrap();
        work(&store);
        store.close().unwrap();
        let heard = heard.lock();
        let is_shown = |placement: &&String| placement.contains("it is tried in another way");
        assert!(heard.iter().any(|p| is_shown(&p)), "{heard:?}");
    });
}

/// Keeps the placements of compactions.
struct Listener(Arc<Mutex<Vec<String>>>);

impl siltstone::EventListener for Listener {
    fn on_event(&self, event: &siltstone::Event) {
        if let siltstone::Event::Compacted { placement, .. } = event {
            self.0.lock().push(placement.clone());
        }
    }
}

/// With `columns-first`, a compaction on local tables does not read the values of dropped entries:
/// a damaged one does not keep it from going on. Otherwise every block is read, and the damage
/// found.
#[test]
fn columns_first_leaves_dropped_values_unread() {
    simulate(|rt| columns_first(&rt, true));
    simulate(|rt| columns_first(&rt, false));
}

fn columns_first(rt: &Runtime, switched_on: bool) {
    let disk = Disk::new(rt);
    let mut options = small();
    options.schedule.columns_first = switched_on;
    let store = disk.open_with(options);
    let hooks = store.test_hooks();
    hooks.pause_compaction(true);
    let keyspace = store.default_keyspace().unwrap();
    let put = |round: u8| {
        for i in 0..40 {
            keyspace.put(key(i), [round; 3000]).unwrap();
        }
        store.flush().unwrap();
    };
    put(1);
    let name = disk.names(".tbl").pop().expect("the flush made a table");
    put(2);
    let damaged = disk.memory.damage(&name, |bytes| {
        let value = bytes.windows(100).position(|w| w == [1; 100]);
        bytes[value.expect("a value of the first round") + 50] ^= 1;
    });
    damaged.unwrap();
    hooks.pause_compaction(false);
    let compacted = keyspace.compact_range(None, None);
    assert_eq!(compacted.is_ok(), switched_on, "{compacted:?}");
    for i in 0..40 {
        assert_eq!(keyspace.get(key(i)).unwrap().unwrap(), [2; 3000]);
    }
}
