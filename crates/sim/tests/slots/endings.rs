//! Executors that end a job in ways that they should not: what the store makes of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone::{Components, Store};
use siltstone_sim::device::Plan;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{MemoryStorage, OpKind, Runtime, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::{check, due, options, simulated, two_slots};

/// What is wrong with an executor.
#[derive(Clone, Copy)]
enum Wrong {
    /// It fails at its second table, leaves the first one to the next attempt, and says that it was
    /// cancelled.
    SaysCancelled,
    /// It makes all tables, fails, and deletes nothing.
    LeavesOrphans,
    /// It reads more and more bytes, as it says, until it is cancelled.
    NeverEnds,
    /// It is sound.
    Nothing,
}

struct Bad {
    name: &'static str,
    runtime: Runtime,
    wrong: Wrong,
}

impl Executor for Bad {
    fn name(&self) -> &str {
        self.name
    }
    fn side(&self) -> Side {
        Side::Device
    }
    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let host = CpuExecutor::new();
        match self.wrong {
            Wrong::SaysCancelled => {
                let faults = FaultStorage::new(ctx.outputs.clone(), &self.runtime);
                faults.add(Rule::on(OpKind::Create, Fault::Fail(StorageErrorKind::Io)).nth(1));
                let fails = ExecContext {
                    outputs: Arc::new(faults),
                    ..ctx.clone()
                };
                let _ = host.run(job, &fails);
                Err(ExecError::Cancelled)
            }
            Wrong::LeavesOrphans => {
                let own = ExecContext {
                    handover: None,
                    ..ctx.clone()
                };
                host.run(job, &own)?;
                Err(TableError::Misuse("the device failed").into())
            }
            Wrong::NeverEnds => {
                while !ctx.cancel.is_cancelled() {
                    ctx.progress.bytes_in.fetch_add(1, Ordering::Relaxed);
                    self.runtime.sleep(Duration::from_secs(1));
                }
                Err(ExecError::Cancelled)
            }
            Wrong::Nothing => host.run(job, ctx),
        }
    }
}

/// An executor may take a reset of its device for a cancellation. That is a failure of it: the host
/// does the work, the executor is suspended, and the tables that it left are not believed unseen.
#[test]
fn an_executor_that_says_cancelled_has_failed() {
    simulated(|world| {
        let mut components = world.components(world.storage.clone(), &[]);
        components.executors.push(Arc::new(Bad {
            name: "reset",
            runtime: world.rt.clone(),
            wrong: Wrong::SaysCancelled,
        }));
        let store = Store::open_with(components, options()).unwrap();
        let made = due(&store, &["a", "b"]);
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        let stats = store.stats();
        assert!(stats.counter("side_suspended_count") > 0);
        assert!(stats.counter("job_fallback_count") >= 3);
        assert!(stats.counter("adopted_table_count") > 0, "the host resumes");
        for (keyspace, model) in &made {
            check(keyspace, model);
        }
        store.close().unwrap();
    });
}

/// A host that fails resumes behind the tables that it finished, although no other side had slots
/// when the work was placed, so that none was asked.
#[test]
fn the_host_resumes_beside_a_device_that_is_down() {
    simulated(|world| {
        let device = world.device(Plan {
            state: ExecutorState::Down("it is being updated".into()),
            ..two_slots()
        });
        let faults = FaultStorage::new(world.storage.clone(), &world.rt);
        let components = world.components(Arc::new(faults.clone()), &[&device]);
        let store = Store::open_with(components, options()).unwrap();
        let made = due(&store, &["a"]);
        let fails = Fault::Fail(StorageErrorKind::Io);
        faults.add(Rule::on(OpKind::Create, fails).ending(".tbl").nth(1));
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        let stats = store.stats();
        assert_eq!(stats.counter("job_failed_count"), 1);
        assert!(stats.counter("adopted_table_count") > 0);
        assert_eq!(device.ran().len(), 0);
        check(&made[0].0, &made[0].1);
        store.close().unwrap();
    });
}

/// Files that an executor should have deleted do not stay until the next open.
#[test]
fn orphans_of_an_executor_are_deleted() {
    simulated(|world| {
        let mut components = world.components(world.storage.clone(), &[]);
        components.executors.push(Arc::new(Bad {
            name: "litters",
            runtime: world.rt.clone(),
            wrong: Wrong::LeavesOrphans,
        }));
        let store = Store::open_with(components, options()).unwrap();
        let made = due(&store, &["a", "b"]);
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        // Maintenance deletes them.
        world.rt.sleep(Duration::from_secs(10));
        let kept = world.tables();
        assert!(store.stats().counter("job_fallback_count") > 0);
        for (keyspace, model) in &made {
            check(keyspace, model);
        }
        drop(made);
        store.close().unwrap();
        // An open deletes what nothing refers to, and finds nothing of the kind.
        let store = world.open(&[]);
        assert_eq!(world.tables(), kept);
        store.close().unwrap();
    });
}

/// A disk whose syncs take a minute is not the fault of the executor that waits for it.
#[test]
fn a_slow_disk_is_no_silence() {
    simulated(|world| {
        let slow = FaultStorage::new(world.storage.clone(), &world.rt);
        let components = world.components(Arc::new(slow.clone()), &[]);
        let mut components = components;
        components.executors.push(Arc::new(Bad {
            name: "waits",
            runtime: world.rt.clone(),
            wrong: Wrong::Nothing,
        }));
        let store = Store::open_with(components, options()).unwrap();
        let made = due(&store, &["a"]);
        let minute = Fault::Delay(Duration::from_secs(60));
        slow.add(Rule::on(OpKind::Sync, minute).ending(".tbl").for_good());
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        slow.clear();
        let stats = store.stats();
        assert_eq!(stats.counter("job_fallback_count"), 0);
        assert_eq!(stats.counter("side_suspended_count"), 0);
        check(&made[0].0, &made[0].1);
    });
}

/// An executor that always shows signs of life and never ends does not keep its tables for ever.
#[test]
fn an_attempt_that_never_ends_is_given_up() {
    simulated(|world| {
        let mut components = world.components(world.storage.clone(), &[]);
        components.executors.push(Arc::new(Bad {
            name: "busy",
            runtime: world.rt.clone(),
            wrong: Wrong::NeverEnds,
        }));
        let store = Store::open_with(components, options()).unwrap();
        let begin = world.rt.now();
        let made = due(&store, &["a"]);
        let flushed = world.rt.now().since(begin);
        assert!(flushed < Duration::from_secs(120), "flushes: {flushed:?}");
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        let passed = world.rt.now().since(begin);
        assert!(passed < Duration::from_secs(1200), "all: {passed:?}");
        let stats = store.stats();
        assert!(stats.counter("side_suspended_count") > 0);
        assert!(stats.counter("job_fallback_count") > 0);
        check(&made[0].0, &made[0].1);
        store.close().unwrap();
    });
}

/// Jobs elsewhere are given names of tasks. A name that no task can have does no harm.
#[test]
fn a_name_that_cannot_be_printed_does_no_harm() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut components = Components::on(storage, runtime.clone());
    components.executors.push(Arc::new(Bad {
        name: "zero\0\n",
        runtime,
        wrong: Wrong::Nothing,
    }));
    let store = Store::open_with(components, options()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    keyspace.put(b"key", b"value").unwrap();
    keyspace.flush().unwrap();
    assert_eq!(store.stats().sides[0].name, "zero??");
    store.close().unwrap();
}

/// Users know an executor by its name: in statistics, in events, and as the label of a metric.
#[test]
fn executors_of_one_name_get_numbers() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut components = Components::on(storage, runtime.clone());
    for name in ["gpu", "gpu", "cpu", "", "gpu", "gpu#2", "host"] {
        components.executors.push(Arc::new(Bad {
            name,
            runtime: runtime.clone(),
            wrong: Wrong::Nothing,
        }));
    }
    let store = Store::open_with(components, options()).unwrap();
    let stats = store.stats();
    let names: Vec<&str> = stats.sides.iter().map(|side| &side.name[..]).collect();
    // The store's own is the last. It keeps its name, whatever the others are called.
    let expected = [
        "gpu", "gpu#2", "cpu#2", "unnamed", "gpu#3", "gpu#2#2", "host#2", "cpu",
    ];
    assert_eq!(names, expected);
    store.close().unwrap();
}
