//! The rules of jobs on other sides, whose absence is a planted fault
//! (`crates/storage/src/planted.rs`, from 180 on): each of these tests fails with one of them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::{Components, Options, Store};
use siltstone_sim::device::{Ending, Plan};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{
    ObjectMeta, OpKind, ReadFile, Result as StorageResult, Storage, StorageError, StorageErrorKind,
};
use siltstone_table::checksum::crc32c;
use siltstone_table::error::TableError;
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, Inputs, Side, StreamSource,
};
use siltstone_table::footer::Footer;
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use super::{World, check, due, key, options, simulated, simulated_with, two_slots};

const HOUR: Duration = Duration::from_secs(3600);

type First = dyn FnOnce(&Job, &ExecContext) -> Result<Outcome, ExecError> + Send;

/// An executor with one slot that takes no flushes. A closure decides what it does with its first
/// job. It executes the others as the host does.
struct Other {
    first: Mutex<Option<Box<First>>>,
}

impl Executor for Other {
    fn name(&self) -> &str {
        "other"
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        match job.inputs.iter().any(|i| i.kind == InputKind::Stream) {
            true => Err("it takes no flushes".into()),
            false => CpuExecutor::new().accepts(job),
        }
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let first = self.first.lock().unwrap().take();
        match first {
            Some(first) => first(job, ctx),
            None => CpuExecutor::new().run(job, ctx),
        }
    }
}

fn open_with(
    world: &World,
    storage: Arc<dyn Storage>,
    executor: Arc<dyn Executor>,
    background_tasks: u32,
) -> Store {
    let mut components = Components::on(storage, world.rt.clone());
    components.executors.push(executor);
    let options = Options {
        background_tasks,
        ..options()
    };
    Store::open_with(components, options).unwrap()
}

/// A store with [`Other`] as executor.
fn open_with_other(
    world: &World,
    first: impl FnOnce(&Job, &ExecContext) -> Result<Outcome, ExecError> + Send + 'static,
) -> Store {
    let first: Box<First> = Box::new(first);
    let first = Mutex::new(Some(first));
    open_with(world, world.storage.clone(), Arc::new(Other { first }), 2)
}

fn tables(storage: &dyn Storage) -> Vec<ObjectMeta> {
    let mut files = storage.list().unwrap();
    files.retain(|file| file.name.ends_with(".tbl"));
    files
}

/// Workers and the placing task look for work at the same moment, and the device is not measured,
/// so it is the first choice of all of them. It is given one job.
#[test]
fn no_slot_is_given_twice() {
    for seed in 0..4 {
        simulated_with(seed, |world| {
            let device = world.device(Plan {
                slots: 1,
                ..two_slots()
            });
            let store = open_with(&world, world.storage.clone(), device.clone(), 4);
            let made = due(&store, &["a", "b", "c"]);
            let other = store.create_keyspace("other").unwrap();
            world.rt.sleep(Duration::from_secs(60));
            store.test_hooks().pause_compaction(false);
            // A flush wakes all that look for work.
            other.put(b"k", b"v").unwrap();
            other.flush().unwrap();
            store.wait_until_idle().unwrap();
            assert_eq!(device.most_running(), 1);
            for (keyspace, model) in &made {
                check(keyspace, model);
            }
        });
    }
}

/// An executor finishes a compaction and keeps it for an hour. The host has done the same work when
/// the outcome comes, which changes nothing.
#[test]
fn the_outcome_of_an_abandoned_job_is_not_installed() {
    simulated(|world| {
        let has_returned = Arc::new(AtomicBool::new(false));
        let returned = has_returned.clone();
        let store = open_with_other(&world, move |job, ctx| {
            let own = ExecContext {
                handover: None,
                ..ctx.clone()
            };
            let outcome = CpuExecutor::new().run(job, &own);
            ctx.runtime.sleep(HOUR);
            returned.store(true, Ordering::Relaxed);
            outcome
        });
        let made = due(&store, &["a"]);
        let (keyspace, model) = &made[0];
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        assert!(!has_returned.load(Ordering::Relaxed));
        world.rt.sleep(Duration::from_secs(10));
        let jobs = || {
            let names = ["compaction_count", "job_failed_count", "job_rejected_count"];
            names.map(|name| store.stats().counter(name))
        };
        let before = (jobs(), tables(&*world.storage));
        assert_eq!(before.0, [1, 0, 0]);
        world.rt.sleep(2 * HOUR);
        assert!(has_returned.load(Ordering::Relaxed));
        assert_eq!((jobs(), tables(&*world.storage)), before);
        check(keyspace, model);
        store.close().unwrap();
        check(&world.open(&[]).keyspace("a").unwrap(), model);
    });
}

/// What a job reserves stays reserved when it is abandoned: no other worker begins the same work,
/// under any schedule.
#[test]
fn an_abandoned_job_stays_reserved() {
    for seed in 0..16 {
        simulated_with(seed, |world| {
            let device = world.device(Plan {
                endings: [Ending::Hang(HOUR)].into(),
                ..two_slots()
            });
            let store = open_with(&world, world.storage.clone(), device, 4);
            let made = due(&store, &["a"]);
            store.test_hooks().pause_compaction(false);
            store.wait_until_idle().unwrap();
            assert_eq!(store.stats().counter("compaction_count"), 1);
            assert_eq!(store.stats().counter("job_failed_count"), 0);
            check(&made[0].0, &made[0].1);
        });
    }
}

/// A device with one slot keeps a job for an hour. Meanwhile it has no slot, and after that one.
#[test]
fn a_lost_slot_is_given_to_no_job() {
    simulated(|world| {
        let device = world.device(Plan {
            slots: 1,
            endings: [Ending::Hang(HOUR)].into(),
            ..two_slots()
        });
        let store = world.open(&[&device]);
        let compact = |name| {
            let made = due(&store, &[name]);
            store.test_hooks().pause_compaction(false);
            store.wait_until_idle().unwrap();
            check(&made[0].0, &made[0].1);
            // After that the device is not suspended any more.
            world.rt.sleep(Duration::from_secs(120));
            (device.ran().len(), device.running())
        };
        assert_eq!([compact("a"), compact("b")], [(1, 1); 2]);
        world.rt.sleep(HOUR);
        assert_eq!(compact("c"), (2, 0));
    });
}

/// An executor fails and leaves tables that delete a key too much. They are sound in themselves, so
/// the host adopts them; but they are verified as an outcome from outside.
#[test]
fn tables_that_another_side_left_are_verified() {
    simulated(|world| {
        let store = open_with_other(&world, |job, ctx| {
            let fails = FaultStorage::new(ctx.outputs.clone(), &ctx.runtime);
            let fault = Fault::Fail(StorageErrorKind::Io);
            fails.add(Rule::on(OpKind::Create, fault).nth(2));
            let forged = ExecContext {
                inputs: Arc::new(Forged(ctx.inputs.clone())),
                outputs: Arc::new(fails),
                ..ctx.clone()
            };
            CpuExecutor::new().run(job, &forged)
        });
        let mut made = due(&store, &["a"]);
        let (keyspace, model) = &mut made[0];
        // The snapshot keeps what the range delete hides, and so the range delete.
        let snapshot = store.snapshot();
        keyspace.delete_range(key(100), key(110)).unwrap();
        let all = model.clone();
        model.retain(|k, _| !(key(100)..key(110)).contains(k));
        keyspace.flush().unwrap();
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        check(keyspace, model);
        let stats = store.stats();
        assert_eq!(stats.counter("adopted_table_count"), 2);
        assert_eq!(stats.counter("job_rejected_count"), 1);
        // It is the fault of the side that left them, although the host has adopted them, and no
        // failure of the store.
        assert_eq!(stats.counter("job_failed_count"), 0);
        for (key, value) in all {
            let found = keyspace.get_at(&snapshot, &key).unwrap();
            assert_eq!(found.as_deref(), Some(&value[..]));
        }
    });
}

/// A device makes wrong tables of its part of a divided compaction. The host's own part is
/// believed, and the part of the device is not.
#[test]
fn the_part_of_another_side_is_verified() {
    simulated(|world| {
        let first: Box<First> = Box::new(|job, ctx| {
            let forged = ExecContext {
                inputs: Arc::new(Forged(ctx.inputs.clone())),
                ..ctx.clone()
            };
            CpuExecutor::new().run(job, &forged)
        });
        let first = Mutex::new(Some(first));
        let mut components = Components::on(world.storage.clone(), world.rt.clone());
        components.executors.push(Arc::new(Other { first }));
        let divided = Options {
            schedule: super::policies::policy("sync-split"),
            ..options()
        };
        let store = Store::open_with(components, divided).unwrap();
        store.test_hooks().set_subjob_min_bytes(10_000);
        let mut made = due(&store, &["a"]);
        let (keyspace, model) = &mut made[0];
        // The snapshot keeps the range delete, which lies in the second part, that of the device.
        let snapshot = store.snapshot();
        keyspace.delete_range(key(700), key(710)).unwrap();
        let all = model.clone();
        model.retain(|k, _| !(key(700)..key(710)).contains(k));
        keyspace.flush().unwrap();
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        check(keyspace, model);
        let stats = store.stats();
        assert_eq!(stats.counter("job_rejected_count"), 1);
        assert_eq!(stats.counter("job_failed_count"), 0);
        for (key, value) in all {
            let found = keyspace.get_at(&snapshot, &key).unwrap();
            assert_eq!(found.as_deref(), Some(&value[..]));
        }
    });
}

/// A device is writing a table when the store closes, and the storage takes half a minute for it.
/// When the close has returned, nothing changes any more.
#[test]
fn a_close_waits_for_calls_in_progress() {
    simulated(|world| {
        let device = world.device(Plan {
            job_time: Duration::ZERO,
            ..two_slots()
        });
        let storage = Arc::new(FaultStorage::new(world.storage.clone(), &world.rt));
        let store = open_with(&world, storage.clone(), device.clone(), 2);
        let made = due(&store, &["a"]);
        let slow = Fault::Delay(Duration::from_secs(30));
        let rule = Rule::on(OpKind::Append, slow).ending(".tbl").times(1);
        let rule = storage.add(rule);
        store.test_hooks().pause_compaction(false);
        while storage.fired_count(rule) == 0 {
            world.rt.sleep(Duration::from_millis(100));
        }
        assert_eq!(device.running(), 1);
        let begin = world.rt.now();
        store.close().unwrap();
        let took = world.rt.now().since(begin);
        assert!(took >= Duration::from_secs(29), "{took:?}");
        let before = tables(&*storage);
        world.rt.sleep(Duration::from_secs(200));
        assert_eq!((device.running(), tables(&*storage)), (0, before));
        check(&world.open(&[]).keyspace("a").unwrap(), &made[0].1);
    });
}

/// Each input table as the store has it, but the last range delete of the table ends one key later.
/// All checksums hold, and length and digest are those that the job names. So tables that are made
/// from these inputs are sound in themselves: only a comparison of their range deletes with those
/// of the true inputs shows the lie.
struct Forged(Arc<dyn Inputs>);

impl Inputs for Forged {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        let file = self.0.table(location, name)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(0, &mut bytes)?;
        lengthen_last_range_delete(&Footer::read(&*file)?, &mut bytes);
        let name = name.to_string();
        Ok(Arc::new(Bytes { name, bytes }))
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        self.0.stream(location, name)
    }
}

/// The section of range deletes ends with the end key of the last one and a checksum.
fn lengthen_last_range_delete(footer: &Footer, bytes: &mut [u8]) {
    let sections = footer.sections().map(|len| len as usize);
    let begin: usize = sections[..3].iter().sum();
    let section = &mut bytes[begin..begin + sections[3]];
    let Some(checksum) = section.len().checked_sub(4) else {
        return;
    };
    section[checksum - 1] += 1;
    let computed = crc32c(&section[..checksum]);
    section[checksum..].copy_from_slice(&computed.to_le_bytes());
}

/// A file in memory.
struct Bytes {
    name: String,
    bytes: Vec<u8>,
}

impl ReadFile for Bytes {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> StorageResult<()> {
        let begin = offset as usize;
        let Some(bytes) = self.bytes.get(begin..begin + buf.len()) else {
            let (kind, detail) = (StorageErrorKind::Io, "a read beyond the end");
            return Err(StorageError::new(kind, "read", &self.name, detail));
        };
        buf.copy_from_slice(bytes);
        Ok(())
    }
}
