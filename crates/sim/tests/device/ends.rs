//! Jobs on a device that end too early, or do not end: one is cancelled in the middle, and another
//! hangs in a call of the device's storage.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone::check::{CheckStorages, check};
use siltstone::{Components, Options, Store};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders, Server,
    ServerOptions,
};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Watch, WatchedFolders, address};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Epoch, Lease, MemoryStorage, OpKind, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Handover};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::jobs::{Faults, INPUT, Work, add_rule, context, faulty, work, write_input};
use super::tables::files;
use super::{good_link, simulated};

/// A device in the process of its host. The device's storage fails as the rules say.
pub struct World {
    runtime: Runtime,
    pub server: Server,
    folders: Arc<MemoryFolders>,
    pub faults: Faults,
    links: MemoryNetwork,
    network: Arc<dyn Network>,
}

impl World {
    pub fn new(runtime: &Runtime) -> World {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(good_link());
        let links = network.clone();
        let network: Arc<dyn Network> = Arc::new(network);
        let folders = Arc::new(MemoryFolders::new(runtime));
        let faults = Faults::default();
        let below = faulty(runtime, &faults).below;
        let watched = WatchedFolders::new(folders.clone(), Watch::new(), below);
        let watched: Arc<dyn Folders> = Arc::new(watched);
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            ..ServerOptions::default()
        };
        let server = Server::start(runtime, &network, &[address()], watched, options);
        World {
            runtime: runtime.clone(),
            server: server.expect("a server"),
            folders,
            faults,
            links,
            network,
        }
    }

    /// A session on the folder `db`.
    pub fn connect(&self) -> Arc<Device> {
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let options = ClientOptions::default();
        let network = Arc::clone(&self.network);
        let device = Device::connect(&self.runtime, network, address(), folder, options);
        device.expect("a session")
    }

    /// The number of jobs that are running on the device.
    fn running(&self) -> usize {
        let sessions = self.server.sessions();
        sessions.iter().map(|session| session.jobs).sum()
    }

    /// The names of the objects in the folder on the device.
    fn names(&self) -> BTreeSet<String> {
        let listed = self.folders.folder("db").list().expect("a list");
        listed.into_iter().map(|object| object.name).collect()
    }

    /// Makes appends to tables take this long from now on.
    fn slow_down(&self, append: Duration) {
        let rule = Rule::on(OpKind::Append, Fault::Delay(append)).ending(".tbl");
        add_rule(&self.faults, rule.for_good());
    }

    /// Makes an append to a table hang for this long, after this many other appends.
    fn hang(&self, nth: u64, hangs: Duration) {
        let rule = Rule::on(OpKind::Append, Fault::Delay(hangs)).ending(".tbl");
        add_rule(&self.faults, rule.nth(nth));
    }
}

/// A host that has the folder with the input of a job that makes about forty tables.
struct Host {
    device: Arc<Device>,
    executor: Arc<DeviceExecutor>,
    storage: Arc<dyn Storage>,
    lease: Box<dyn Lease>,
    work: Work,
    handover: Arc<Handover>,
}

impl Host {
    fn new(world: &World) -> Host {
        let device = world.connect();
        let storage = device.storage();
        let lease = storage.lease("store").expect("free");
        let work = work(&world.runtime, 1500);
        write_input(&*storage, lease.epoch(), &work).expect("sound");
        Host {
            executor: Arc::new(DeviceExecutor::new("device", &device)),
            device,
            storage,
            lease,
            work,
            handover: Arc::new(Handover::new(&world.runtime)),
        }
    }

    fn job(&self, attempt: u64) -> Job {
        let mut job = self.work.job.clone();
        job.output.attempt = attempt;
        job
    }

    fn context(&self, world: &World) -> ExecContext {
        let context = context(&world.runtime, &self.storage, self.lease.epoch());
        ExecContext {
            handover: Some(Arc::clone(&self.handover)),
            ..context.expect("the input is there")
        }
    }

    /// Runs the job on the host's own cores, which continue after `adopted` tables and make the
    /// tables that they would have made alone.
    fn finish_here(&self, world: &World, adopted: usize) -> Outcome {
        let own = Arc::new(MemoryStorage::new(&world.runtime));
        let input = own.create(Epoch(3), INPUT).expect("free");
        input.append(&[&self.work.input]).expect("room");
        let of: Arc<dyn Storage> = own.clone();
        let here = context(&world.runtime, &of, Epoch(3)).expect("the input");
        let expected = CpuExecutor.run(&self.work.job, &here);
        let expected = files(&*own, &expected.expect("a sound job"));
        let outcome = CpuExecutor.run(&self.job(9), &self.context(world));
        let outcome = outcome.expect("a sound job");
        assert_eq!(files(&*self.storage, &outcome), expected);
        assert_eq!(self.handover.adopted_count() as usize, adopted);
        outcome
    }

    /// Checks that the folder contains only the input and the tables of the outcome.
    fn is_all(&self, world: &World, outcome: &Outcome) {
        let tables = outcome.tables.iter().map(|table| table.name.clone());
        let all: BTreeSet<String> = tables.chain([INPUT.to_string()]).collect();
        assert_eq!(world.names(), all);
    }

    fn end(self, world: World) -> Coverage {
        self.lease.release().expect("a release");
        self.device.close();
        world.server.stop();
        Coverage::default()
    }
}

/// A job that is cancelled in the middle returns within a second of simulated time. By then it has
/// also ended on the device, and only tables that the next attempt adopts are left.
#[test]
fn a_cancel_in_the_middle_of_a_job_arrives_within_a_second() {
    for seed in 0..20 {
        simulated(seed, 2_000_000, move |runtime| {
            let world = World::new(&runtime);
            let host = Host::new(&world);
            world.slow_down(Duration::from_millis(30));
            let (executor, job, ctx) = (host.executor.clone(), host.job(1), host.context(&world));
            let (cancel, progress) = (ctx.cancel.clone(), Arc::clone(&ctx.progress));
            let attempt = move || executor.run(&job, &ctx).map(drop);
            let attempt = runtime.spawn("attempt", attempt).expect("a task");
            while progress.tables.load(Ordering::Relaxed) < 2 {
                assert!(!attempt.is_finished(), "it has hardly begun");
                runtime.sleep(Duration::from_millis(5));
            }
            // This may be at any time between two questions of the host.
            runtime.sleep(Duration::from_millis(23 * seed));
            assert_eq!((attempt.is_finished(), world.running()), (false, 1));
            cancel.cancel();
            let begun = runtime.now();
            let ended = attempt.join().expect("the attempt's task");
            let took = runtime.now().since(begun);
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
            assert!(took <= Duration::from_secs(1), "a cancel took {took:?}");
            assert_eq!(world.running(), 0, "it goes on at the device");
            let left = host.handover.left_count();
            assert!(left >= 2, "{left}");
            assert_eq!(world.names().len(), 1 + left);
            let outcome = host.finish_here(&world, left);
            host.is_all(&world, &outcome);
            host.end(world)
        });
    }
}

/// A call of the device's storage hangs in the middle of a job, for longer than the host waits for
/// a job that makes no progress although the device answers. The attempt fails, and the host does
/// the work. When the call returns, the job ends on the device, and nothing of it is left.
#[test]
fn a_job_that_hangs_longer_than_the_host_waits_is_given_up() {
    for seed in 0..5 {
        simulated(seed, 2_000_000, move |runtime| {
            let world = World::new(&runtime);
            let host = Host::new(&world);
            let hangs = Duration::from_secs(200);
            world.hang(20 + seed, hangs);
            let begun = runtime.now();
            let error = host.executor.run(&host.job(1), &host.context(&world));
            let error = error.map(drop).expect_err("it hangs");
            let took = runtime.now().since(begun);
            let text = error.to_string();
            assert!(
                text.contains("it made no progress for 120 s") && text.contains("attempt 1"),
                "{text}"
            );
            let limit = Duration::from_secs(120)..Duration::from_secs(125);
            assert!(limit.contains(&took), "{took:?}");
            // The attempt may still make tables, so none of its tables is adopted.
            assert_eq!((world.running(), host.handover.left_count()), (1, 0));
            let outcome = host.finish_here(&world, 0);
            assert_eq!(world.running(), 1, "the call hangs");
            runtime.sleep(hangs);
            assert_eq!(world.running(), 0, "the call has returned");
            host.is_all(&world, &outcome);
            // The slot is free, too.
            let again = host.executor.run(&host.job(10), &host.context(&world));
            let again = again.expect("a sound job");
            assert_eq!(
                files(&*host.storage, &again),
                files(&*host.storage, &outcome)
            );
            host.end(world)
        });
    }
}

/// A job ends on the device while the host cannot reach it, and the host has given it up by then.
/// The tables, which the host never heard of, are deleted as soon as it reaches the device again,
/// while its session goes on.
#[test]
fn the_tables_of_a_job_that_was_given_up_are_deleted() {
    for seed in 0..5 {
        simulated(seed, 2_000_000, move |runtime| {
            let world = World::new(&runtime);
            let host = Host::new(&world);
            world.slow_down(Duration::from_millis(30));
            let (executor, job, ctx) = (host.executor.clone(), host.job(1), host.context(&world));
            let progress = Arc::clone(&ctx.progress);
            let attempt = move || executor.run(&job, &ctx).map(drop);
            let attempt = runtime.spawn("attempt", attempt).expect("a task");
            while progress.tables.load(Ordering::Relaxed) < 2 {
                assert!(!attempt.is_finished(), "it has hardly begun");
                runtime.sleep(Duration::from_millis(5));
            }
            world.links.set_silent(true);
            world.links.freeze_all();
            let ended = attempt.join().expect("the attempt's task");
            assert!(matches!(ended, Err(ExecError::Failed(_))), "{ended:?}");
            assert_eq!(world.running(), 0, "it is done by now");
            assert!(world.names().len() > 20, "{:?}", world.names());
            assert_eq!(host.handover.left_count(), 0);
            world.links.set_silent(false);
            world.links.cut_all();
            runtime.sleep(Duration::from_secs(10));
            assert_eq!(world.names(), BTreeSet::from([INPUT.to_string()]));
            let outcome = host.finish_here(&world, 0);
            host.is_all(&world, &outcome);
            host.end(world)
        });
    }
}

/// A call hangs for longer than a job may make no progress, but not as long as the host waits. The
/// device ends the job when the call returns, and the host continues after its tables.
#[test]
fn a_job_whose_call_returned_late_has_ended() {
    simulated(1, 2_000_000, |runtime| {
        let world = World::new(&runtime);
        let host = Host::new(&world);
        world.hang(40, Duration::from_secs(60));
        let begun = runtime.now();
        let error = host.executor.run(&host.job(1), &host.context(&world));
        let error = error.map(drop).expect_err("it made no progress");
        let took = runtime.now().since(begun);
        let text = error.to_string();
        assert!(text.contains("the device ended the job"), "{text}");
        let limit = Duration::from_secs(60)..Duration::from_secs(65);
        assert!(limit.contains(&took), "{took:?}");
        let left = host.handover.left_count();
        assert!(left > 0, "tables were finished before it hung");
        assert_eq!((world.running(), world.names().len()), (0, 1 + left));
        let outcome = host.finish_here(&world, left);
        host.is_all(&world, &outcome);
        host.end(world)
    });
}

fn small() -> Options {
    Options {
        memtable_bytes: 1 << 20,
        table_bytes: 64 << 10,
        log_segment_bytes: 256 << 10,
        log_bytes_max: 8 << 20,
        block_bytes: 1 << 10,
        block_cache_bytes: 1 << 20,
        l0_trigger_count: 2,
        ..Options::default()
    }
}

/// The same in a store: the compaction is taken from the device that hangs, and the host runs it.
/// The device keeps its slot, because it has returned from the job. One failure of the side is
/// counted, and nothing else. When the call returns, no job and no file of the job is left.
#[test]
fn a_store_does_the_work_of_a_device_that_hangs() {
    simulated(1, 4_000_000, |runtime| {
        let world = World::new(&runtime);
        let device = world.connect();
        let mut components = Components::on(device.storage(), runtime.clone());
        let executor = Arc::new(DeviceExecutor::new("device", &device));
        components.executors.push(executor.clone());
        let store = Store::open_with(components, small()).expect("a store");
        store.test_hooks().pause_compaction(true);
        let keyspace = store.default_keyspace().expect("a keyspace");
        let key = |n: u32| n.to_be_bytes();
        for round in 0..2u8 {
            for n in 0..500 {
                keyspace.put(key(n), [round; 400]).expect("a put");
            }
            keyspace.flush().expect("a flush");
        }
        let hangs = Duration::from_secs(600);
        world.hang(3, hangs);
        let begun = runtime.now();
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().expect("the compaction");
        let took = runtime.now().since(begun);
        assert!(took < Duration::from_secs(60), "{took:?}");
        assert_eq!(world.running(), 1, "the call hangs");
        let stats = store.stats();
        let [side, host] = &stats.sides[..] else {
            panic!("{:?}", stats.sides);
        };
        assert_eq!(
            (side.failed_count, side.lost_slot_count),
            (1, 0),
            "{side:?}"
        );
        assert!(side.last_failure.is_some(), "{side:?}");
        assert_eq!((side.compaction_count, host.compaction_count), (0, 1));
        assert_eq!(stats.counter("job_fallback_count"), 1);
        assert_eq!(stats.counter("job_failed_count"), 0);
        for n in 0..500 {
            let value = keyspace.get(key(n)).expect("a read");
            assert_eq!(value.as_deref(), Some(&[1; 400][..]));
        }
        runtime.sleep(hangs);
        assert_eq!(world.running(), 0, "the call has returned");
        drop(keyspace);
        store.close().expect("a close");
        executor.close();
        device.close();
        world.server.stop();
        let folder = world.folders.folder("db");
        let report = check(&CheckStorages::on(&folder), &mut |_| {}).expect("a check");
        assert!(report.is_sound(), "{report:?}");
        assert!(report.orphans.is_empty(), "{:?}", report.orphans);
        Coverage::default()
    });
}
