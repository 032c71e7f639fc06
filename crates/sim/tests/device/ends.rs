//! Jobs on a device that are cancelled in the middle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

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

/// A device in the process of its host, whose storage fails by rules.
struct World {
    runtime: Runtime,
    server: Server,
    folders: Arc<MemoryFolders>,
    faults: Faults,
    network: Arc<dyn Network>,
}

impl World {
    fn new(runtime: &Runtime) -> World {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(good_link());
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
            network,
        }
    }

    /// A session on the folder `db`.
    fn connect(&self) -> Arc<Device> {
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let options = ClientOptions::default();
        let network = Arc::clone(&self.network);
        let device = Device::connect(&self.runtime, network, address(), folder, options);
        device.expect("a session")
    }

    /// The number of jobs that run on the device.
    fn running(&self) -> usize {
        let sessions = self.server.sessions();
        sessions.iter().map(|session| session.jobs).sum()
    }

    /// The objects in the folder, as the device has them.
    fn names(&self) -> BTreeSet<String> {
        let listed = self.folders.folder("db").list().expect("a list");
        listed.into_iter().map(|object| object.name).collect()
    }

    /// From now on appends to tables take this long.
    fn slow_down(&self, append: Duration) {
        let rule = Rule::on(OpKind::Append, Fault::Delay(append)).ending(".tbl");
        add_rule(&self.faults, rule.for_good());
    }
}

/// A host that has the folder with the input of a job of about forty tables.
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

    /// The host's own cores do the job, going on after `adopted` tables, and make what they would
    /// have made alone.
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

    /// The input and the tables of the outcome are all there is.
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
/// ended on the device too, and only tables that the next attempt adopts are left.
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
            // At any moment between two questions of the host.
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
