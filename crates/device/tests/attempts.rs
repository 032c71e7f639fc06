//! Attempts of jobs on a device, in simulated runs. They keep to the host's limit, and continue
//! after the tables of earlier attempts. Names that a device lost with its power do not count.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::address;
use jobs::{Content, a_job, files, table_input};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders, Server,
    ServerOptions,
};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::token_bucket::TokenBucket;
use siltstone_storage::{
    CrashPolicy, Epoch, Lease, MemoryStorage, Mutex, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::TableError;
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap, Throttle,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Input, Job};

/// A device as a process of a simulated run, and a host's session on its folder `db`.
struct World {
    runtime: Runtime,
    network: MemoryNetwork,
    folders: Arc<MemoryFolders>,
    options: ServerOptions,
    process: Option<Process<()>>,
}

struct Host {
    device: Arc<Device>,
    storage: Arc<dyn Storage>,
    lease: Box<dyn Lease>,
    executor: Arc<DeviceExecutor>,
}

fn options() -> ServerOptions {
    ServerOptions {
        slots: 2,
        parallelism: 2,
        keep_bytes: 4 << 20,
        ..ServerOptions::default()
    }
}

impl World {
    fn new(runtime: &Runtime, options: ServerOptions) -> World {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(LinkFaults {
            delay: Duration::from_micros(500),
            ..LinkFaults::default()
        });
        let mut world = World {
            runtime: runtime.clone(),
            network,
            folders: Arc::new(MemoryFolders::new(runtime)),
            options,
            process: None,
        };
        world.start();
        world
    }

    fn start(&mut self) {
        let network: Arc<dyn Network> = Arc::new(self.network.clone());
        let folders: Arc<dyn Folders> = self.folders.clone();
        let options = self.options.clone();
        let device = move |runtime: Runtime| {
            let server = Server::start(&runtime, &network, &[address()], folders, options);
            let _server = server.expect("a server");
            loop {
                runtime.sleep(Duration::from_secs(3600));
            }
        };
        let process = self.runtime.spawn_process("device", device);
        self.process = Some(process.expect("a process"));
    }

    /// Kills the device, or cuts the power of its machine.
    fn lose(&mut self, is_power: bool) {
        let process = self.process.take().expect("it runs");
        self.runtime.kill_group(process.group());
        let of = self.runtime.clone();
        let image = move |storage: &MemoryStorage| match is_power {
            true => storage.crash_in(&of, CrashPolicy::LoseUnsynced).0,
            false => storage.kill_in(&of),
        };
        self.folders = Arc::new(self.folders.after(is_power, image));
    }

    fn connect(&self, folder: FolderWanted) -> Arc<Device> {
        let network: Arc<dyn Network> = Arc::new(self.network.clone());
        let options = ClientOptions {
            time_limit: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        Device::connect(&self.runtime, network, address(), folder, options).expect("a session")
    }

    /// A host that has the folder `db`, with the epoch of the jobs in these tests.
    fn host(&self) -> Host {
        let folder = self.folders.folder("db");
        (1..jobs::epoch().0).for_each(|_| drop(folder.lease("store").expect("a lease")));
        let device = self.connect(FolderWanted::Named {
            name: "db".into(),
            create: true,
        });
        let storage = device.storage();
        let lease = storage.lease("store").expect("a lease");
        assert_eq!(lease.epoch(), jobs::epoch());
        let executor = Arc::new(DeviceExecutor::new("device", &device));
        Host {
            device,
            storage,
            lease,
            executor,
        }
    }
}

impl Host {
    fn close(self) {
        self.executor.close();
        self.lease.release().expect("a release");
        self.device.close();
    }

    fn context(&self, world: &World, inputs: &Arc<InputMap>) -> ExecContext {
        ExecContext {
            // The engine opens the inputs again for each attempt. These stay open.
            ..ExecContext::new(
                world.runtime.clone(),
                Arc::clone(inputs) as Arc<_>,
                Arc::clone(&self.storage),
                self.lease.epoch(),
            )
        }
    }
}

/// A job with one input of about 220 kB, in tables of 4 kB.
fn a_large_job(storage: &Arc<impl Storage + ?Sized>) -> (Job, Arc<InputMap>) {
    let content = Content {
        entries: (0..2000u16)
            .map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![n as u8; 100]))
            .collect(),
        ..Content::default()
    };
    let mut inputs = InputMap::new();
    let input: Input = table_input(&mut inputs, storage, "in-0.tbl", &content);
    storage.sync_dir(jobs::epoch()).expect("a sync");
    let job = Job {
        inputs: vec![input],
        ..a_job(9)
    };
    (job, Arc::new(inputs))
}

fn attempt(job: &Job, number: u64) -> Job {
    let mut job = job.clone();
    job.output.attempt = number;
    job
}

/// The tables that the host's cores make from the job.
fn expected(runtime: &Runtime) -> (Outcome, Vec<Vec<u8>>) {
    let own = Arc::new(MemoryStorage::new(runtime));
    let (job, inputs) = a_large_job(&own);
    let context = ExecContext::new(runtime.clone(), inputs, own.clone(), Epoch(3));
    let outcome = CpuExecutor.run(&job, &context).expect("an outcome");
    let files = files(&*own, &outcome);
    (outcome, files)
}

/// The rate limit of a host: one bucket for all of its jobs.
struct Shared {
    runtime: Runtime,
    rate: AtomicU64,
    spent: AtomicU64,
    bucket: Mutex<TokenBucket>,
}

impl Shared {
    fn new(runtime: &Runtime, rate: u64) -> Arc<Shared> {
        let burst = Duration::from_millis(100);
        Arc::new(Shared {
            runtime: runtime.clone(),
            rate: AtomicU64::new(rate),
            spent: AtomicU64::new(0),
            bucket: runtime.mutex(TokenBucket::new(runtime.now(), burst)),
        })
    }
}

impl Throttle for Shared {
    fn spent(&self, bytes: u64, stop: &dyn Fn() -> bool) {
        self.spent.fetch_add(bytes, Ordering::Relaxed);
        self.bucket.lock().spend(bytes);
        while !stop() {
            {
                let mut bucket = self.bucket.lock();
                bucket.fill(self.runtime.now(), self.bytes_per_s());
                if !bucket.is_in_debt() {
                    return;
                }
            }
            self.runtime.sleep(Duration::from_millis(10));
        }
    }

    fn bytes_per_s(&self) -> u64 {
        self.rate.load(Ordering::Relaxed)
    }
}

fn simulated<T: Send + 'static>(seed: u64, test: impl FnOnce(&Runtime) -> T + Send + 'static) -> T {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, move |runtime| test(&runtime));
    match outcome.result {
        Ok(result) => result,
        Err(failure) => panic!("seed {seed}: {failure}"),
    }
}

/// Two jobs of a device and one job of the host share a limit. In simulated time they read and
/// write no more than it allows, although each of them alone could.
#[test]
fn jobs_of_both_sides_keep_to_one_limit() {
    simulated(1, |runtime| {
        const RATE: u64 = 100_000;
        let world = World::new(runtime, options());
        let host = world.host();
        let (job, inputs) = a_large_job(&host.storage);
        let limit = Shared::new(runtime, RATE);
        let limited = || ExecContext {
            throttle: Some(Arc::clone(&limit) as Arc<dyn Throttle>),
            ..host.context(&world, &inputs)
        };
        let begun = runtime.now();
        let executor = Arc::clone(&host.executor);
        let device_jobs: Vec<_> = [2, 3]
            .map(|number| {
                let (executor, job, context) = (executor.clone(), attempt(&job, number), limited());
                let run = move || executor.run(&job, &context).map(|o| o.tables.len());
                runtime.spawn("job", run).expect("a task")
            })
            .into();
        let own = limited();
        CpuExecutor
            .run(&attempt(&job, 4), &own)
            .expect("an outcome");
        for job in device_jobs {
            assert!(job.join().expect("no panic").expect("an outcome") > 10);
        }
        let took = runtime.now().since(begun).as_secs_f64();
        let spent = limit.spent.load(Ordering::Relaxed) as f64;
        // Each of three jobs read its input of 220 kB and wrote as much.
        assert!(spent > 3.0 * 400_000.0, "{spent}");
        assert!(
            took >= spent / RATE as f64 - 0.2,
            "{took} s for {spent} bytes"
        );
        // The limit is also used.
        assert!(
            took < spent / RATE as f64 * 1.5,
            "{took} s for {spent} bytes"
        );
    });
}

/// The device alone keeps to the present limit, and a change of the limit reaches a running job.
#[test]
fn a_limit_that_changes_reaches_a_running_job() {
    simulated(2, |runtime| {
        let world = World::new(runtime, options());
        let host = world.host();
        let (job, inputs) = a_large_job(&host.storage);
        let limit = Shared::new(runtime, 10_000);
        let context = ExecContext {
            throttle: Some(Arc::clone(&limit) as Arc<dyn Throttle>),
            ..host.context(&world, &inputs)
        };
        let read = Arc::clone(&context.progress);
        let begun = runtime.now();
        let (of, rate_of) = (runtime.clone(), Arc::clone(&limit));
        let change = move || {
            of.sleep(Duration::from_secs(10));
            // The input was read at once, and is not paid for after this time.
            let bytes = read.bytes_out.load(Ordering::Relaxed);
            assert!(bytes <= 10_000, "{bytes}");
            rate_of.rate.store(10_000_000, Ordering::Relaxed);
        };
        let change = runtime.spawn("change", change).expect("a task");
        host.executor
            .run(&attempt(&job, 2), &context)
            .expect("an outcome");
        change.join().expect("no panic");
        let took = runtime.now().since(begun).as_secs_f64();
        assert!((10.0..16.0).contains(&took), "{took}");
        host.close();
    });
}

/// Runs an attempt with a limit, and does something when it has finished some tables.
fn interrupted(
    world: &mut World,
    host: Arc<Host>,
    job: Job,
    inputs: &Arc<InputMap>,
    handover: &Arc<Handover>,
    tables: u64,
    interrupt: impl FnOnce(&mut World, &ExecContext),
) -> Result<Outcome, ExecError> {
    let context = ExecContext {
        throttle: Some(Shared::new(&world.runtime, 50_000) as Arc<dyn Throttle>),
        handover: Some(Arc::clone(handover)),
        ..host.context(world, inputs)
    };
    let of = context.clone();
    let run = move || host.executor.run(&job, &of);
    let running = world.runtime.spawn("attempt", run).expect("a task");
    let finished = || context.progress.tables.load(Ordering::Relaxed);
    while finished() < tables && !running.is_finished() {
        world.runtime.sleep(Duration::from_millis(10));
    }
    interrupt(world, &context);
    running.join().expect("no panic")
}

#[test]
fn a_device_goes_on_after_the_tables_of_earlier_attempts() {
    simulated(3, |runtime| {
        let mut world = World::new(runtime, options());
        let host = Arc::new(world.host());
        let (whole, expected) = expected(runtime);
        let (job, inputs) = a_large_job(&host.storage);
        let handover = Arc::new(Handover::new(runtime));
        let count = || world_count(&host);
        // The first attempt is cancelled, and the second one loses its device.
        let ended = interrupted(
            &mut world,
            host.clone(),
            attempt(&job, 1),
            &inputs,
            &handover,
            5,
            |_, ctx| {
                ctx.cancel.cancel();
            },
        );
        assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
        let first = handover.left_count();
        assert!(first >= 5 && first < whole.tables.len(), "{first}");
        assert_eq!(count(), 1 + first);
        let ended = interrupted(
            &mut world,
            host.clone(),
            attempt(&job, 2),
            &inputs,
            &handover,
            first as u64 + 5,
            |world, _| {
                world.lose(false);
                world.start();
            },
        );
        assert!(matches!(ended, Err(ExecError::Failed(_))), "{ended:?}");
        let second = handover.left_count();
        assert!(
            second >= first + 5 && second < whole.tables.len(),
            "{second}"
        );
        assert_eq!(handover.adopted_count(), first as u64);
        // The third attempt does the rest.
        let context = ExecContext {
            handover: Some(Arc::clone(&handover)),
            ..host.context(&world, &inputs)
        };
        let outcome = host
            .executor
            .run(&attempt(&job, 3), &context)
            .expect("an outcome");
        assert_eq!(files(&*host.storage, &outcome), expected);
        assert_eq!(handover.adopted_count(), (first + second) as u64);
        let read = context.progress.entries.load(Ordering::Relaxed);
        assert!(read < 2000 && read > 0, "{read}");
        // Only the table is left that the device was writing when it was killed.
        let is_of = |name: &str| outcome.tables.iter().any(|table| table.name == name);
        let objects = host.storage.list().expect("a list").into_iter();
        let tables = objects.filter(|o| o.name.ends_with(".tbl") && o.name != "in-0.tbl");
        let others: Vec<_> = tables.filter(|o| !is_of(&o.name)).collect();
        let killed = attempt(&job, 2).output.text();
        assert!(others.len() <= 1, "{others:?}");
        assert!(
            others.iter().all(|o| o.name.starts_with(&killed)),
            "{others:?}"
        );
        // A device also continues after tables that the host's cores left.
        let handover = Arc::new(Handover::new(runtime));
        let own = ExecContext {
            throttle: Some(Shared::new(runtime, 50_000) as Arc<dyn Throttle>),
            handover: Some(Arc::clone(&handover)),
            ..host.context(&world, &inputs)
        };
        let (cancel, of) = (own.cancel.clone(), runtime.clone());
        let stop = runtime.spawn("cancel", move || {
            of.sleep(Duration::from_secs(8));
            cancel.cancel();
        });
        let ended = CpuExecutor.run(&attempt(&job, 4), &own);
        assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
        stop.expect("a task").join().expect("no panic");
        let left = handover.left_count();
        assert!(left > 5, "{left}");
        let context = ExecContext {
            handover: Some(Arc::clone(&handover)),
            ..host.context(&world, &inputs)
        };
        let outcome = host
            .executor
            .run(&attempt(&job, 5), &context)
            .expect("an outcome");
        assert_eq!(files(&*host.storage, &outcome), expected);
        assert_eq!(handover.adopted_count(), left as u64);
    });
}

fn world_count(host: &Host) -> usize {
    let objects = host.storage.list().expect("a list");
    objects.iter().filter(|o| o.name.ends_with(".tbl")).count()
}

/// A device that does not take the job leaves the tables to the next attempt. A device that lost
/// the tables with its power begins again.
#[test]
fn tables_that_no_attempt_took_over_are_left_or_made_again() {
    simulated(4, |runtime| {
        let mut world = World::new(runtime, options());
        let host = Arc::new(world.host());
        let (_, expected) = expected(runtime);
        let (job, inputs) = a_large_job(&host.storage);
        let handover = Arc::new(Handover::new(runtime));
        let ended = interrupted(
            &mut world,
            host.clone(),
            attempt(&job, 1),
            &inputs,
            &handover,
            5,
            |_, ctx| {
                ctx.cancel.cancel();
            },
        );
        assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
        let left = handover.left_count();
        assert!(left >= 5, "{left}");
        world.lose(false);
        world.options.slots = 0;
        world.start();
        let context = || ExecContext {
            handover: Some(Arc::clone(&handover)),
            ..host.context(&world, &inputs)
        };
        // The first attempt may still find a connection to the device that was killed.
        let _ = host.executor.run(&attempt(&job, 2), &context());
        assert_eq!(handover.left_count(), left);
        match host.executor.run(&attempt(&job, 2), &context()) {
            Err(ExecError::Declined { reason }) => assert!(reason.contains("busy"), "{reason}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(handover.left_count(), left);
        // The power loss takes the names of the tables, which nobody has synced.
        world.lose(true);
        world.options.slots = 2;
        world.start();
        runtime.sleep(Duration::from_secs(3));
        let context = ExecContext {
            handover: Some(Arc::clone(&handover)),
            ..host.context(&world, &inputs)
        };
        let outcome = host
            .executor
            .run(&attempt(&job, 3), &context)
            .expect("an outcome");
        assert_eq!(files(&*host.storage, &outcome), expected);
        assert_eq!(world_count(&host), 1 + outcome.tables.len());
    });
}

/// The outcome of a run with a power loss around the end of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The outcome counts.
    Done,
    /// The names were lost between the end of the job and the sync of names.
    NamesLost,
    /// The job was lost.
    Failed,
}

/// Runs a job whose device loses power `after` some time.
fn powerless(seed: u64, after: Duration) -> Seen {
    simulated(seed, move |runtime| {
        let mut world = World::new(runtime, options());
        let host = Arc::new(world.host());
        let (job, inputs) = a_large_job(&host.storage);
        let context = host.context(&world, &inputs);
        let of = Arc::clone(&host);
        let run = move || of.executor.run(&attempt(&job, 1), &context);
        let running = runtime.spawn("attempt", run).expect("a task");
        runtime.sleep(after);
        world.lose(true);
        world.start();
        let ended = running.join().expect("no panic");
        // The keeper notices that the device was restarted.
        runtime.sleep(Duration::from_secs(3));
        let is_during_sync = |text: &str| text.contains("during a sync of names");
        // The store can still sync names, because nobody used the names of the job, unless the
        // power was lost during a sync of names.
        if let Err(error) = host.storage.sync_dir(host.lease.epoch()) {
            let text = error.to_string();
            assert!(ended.is_err() && is_during_sync(&text), "{text}");
        }
        match ended {
            Ok(outcome) => {
                // An outcome is durable when it is returned.
                world.lose(true);
                world.start();
                let names: BTreeSet<_> = outcome.tables.iter().map(|t| t.name.clone()).collect();
                let objects = host.storage.list().expect("a list");
                let found = objects.into_iter().filter(|o| names.contains(&o.name));
                assert_eq!(found.count(), names.len(), "tables of an outcome are lost");
                Seen::Done
            }
            Err(ExecError::Failed(TableError::Storage(error))) => {
                assert_ne!(error.kind, StorageErrorKind::Fenced, "{error}");
                match error.to_string().contains("were durable") {
                    true => Seen::NamesLost,
                    false => Seen::Failed,
                }
            }
            Err(error) => panic!("{error}"),
        }
    })
}

#[test]
fn names_of_a_job_that_a_power_loss_takes_do_not_count() {
    // Times around the end of the job, which takes equally long in each run, and long after it.
    let about = (10..60u64).map(|n| Duration::from_micros(100 * n));
    let times = about.chain([Duration::from_secs(1)]);
    let seen: Vec<Seen> = times
        .enumerate()
        .map(|(n, after)| powerless(n as u64, after))
        .collect();
    for wanted in [Seen::Done, Seen::NamesLost, Seen::Failed] {
        assert!(seen.contains(&wanted), "{wanted:?}: {seen:?}");
    }
}

/// A host is killed while a job with tables that the host sent runs on the device. The job ends,
/// and half a minute later nothing of it is left there.
#[test]
fn nothing_is_left_of_a_host_that_is_killed_with_lent_work() {
    for seed in 0..12u64 {
        simulated(seed, move |runtime| {
            let network = MemoryNetwork::new(runtime);
            network.set_faults(LinkFaults {
                delay: Duration::from_micros(500),
                ..LinkFaults::default()
            });
            let folders = Arc::new(MemoryFolders::new(runtime));
            let server_options = ServerOptions {
                slots: 1,
                keep_all_bytes: 1 << 20,
                ..options()
            };
            let link: Arc<dyn Network> = Arc::new(network.clone());
            let of: Arc<dyn Folders> = folders.clone();
            let server = Server::start(runtime, &link, &[address()], of, server_options);
            let server = server.expect("a server");
            let life = move |link: Arc<dyn Network>| {
                move |runtime: Runtime| {
                    let none = FolderWanted::None;
                    let client = ClientOptions::default();
                    let device = Device::connect(&runtime, link, address(), none, client);
                    let device = device.expect("a session");
                    let executor = DeviceExecutor::new("device", &device);
                    let own = Arc::new(MemoryStorage::new(&runtime));
                    let (job, inputs) = a_large_job(&own);
                    let context = ExecContext::new(runtime.clone(), inputs, own, Epoch(3));
                    for number in 1..1000 {
                        let outcome = executor.run(&attempt(&job, number), &context);
                        outcome.expect("an outcome");
                    }
                }
            };
            let host = runtime
                .spawn_process("host", life(link.clone()))
                .expect("a process");
            // This is somewhere in the first jobs.
            runtime.sleep(Duration::from_micros(3000 + 1700 * seed));
            assert!(!server.sessions().is_empty(), "it has begun");
            runtime.kill_group(host.group());
            runtime.sleep(Duration::from_secs(13));
            let jobs: usize = server.sessions().iter().map(|session| session.jobs).sum();
            assert_eq!(
                jobs, 0,
                "its jobs end when it has been silent for ten seconds"
            );
            runtime.sleep(Duration::from_secs(20));
            assert_eq!(server.sessions(), Vec::new());
            // The killed host's slot and bytes are free for another host, which needs nearly all of
            // the bytes.
            let none = FolderWanted::None;
            let client = ClientOptions::default();
            let device = Device::connect(runtime, link, address(), none, client);
            let device = device.expect("a session");
            let executor = DeviceExecutor::new("device", &device);
            let own = Arc::new(MemoryStorage::new(runtime));
            let (job, inputs) = a_large_job(&own);
            let context = ExecContext::new(runtime.clone(), inputs, own, Epoch(3));
            executor.run(&job, &context).expect("an outcome");
            executor.close();
            device.close();
            server.stop();
        });
    }
}

/// How an attempt of lent work ends if its device is killed `after` some time, and how long that
/// takes. `None` if the attempt was done before.
fn killed_lent(after: Duration) -> Option<(String, Duration)> {
    simulated(1, move |runtime| {
        let mut world = World::new(runtime, options());
        let device = world.connect(FolderWanted::None);
        let executor = Arc::new(DeviceExecutor::new("device", &device));
        let own = Arc::new(MemoryStorage::new(runtime));
        let (job, inputs) = a_large_job(&own);
        let context = ExecContext::new(runtime.clone(), inputs, own, Epoch(3));
        let of = Arc::clone(&executor);
        let run = move || of.run(&job, &context).map(drop);
        let running = runtime.spawn("attempt", run).expect("a task");
        runtime.sleep(after);
        let begun = runtime.now();
        world.lose(false);
        let ended = running.join().expect("no panic");
        let took = runtime.now().since(begun);
        executor.close();
        device.close();
        match ended {
            Ok(()) => None,
            Err(ExecError::Failed(TableError::Storage(error))) => {
                assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
                Some((error.op.to_string(), took))
            }
            Err(error) => panic!("{error}"),
        }
    })
}

/// The host runs a job when the link to its device has been down for ten seconds, even if the
/// device is lost while tables are sent or fetched. (Such an attempt once waited for the time limit
/// of other calls, and then each deletion of a table on the device waited again.)
#[test]
fn lent_work_of_a_device_that_is_gone_fails_in_ten_seconds() {
    let ends = (1..).map(|n| killed_lent(Duration::from_micros(700 * n)));
    let ends: Vec<(String, Duration)> = ends.map_while(|end| end).collect();
    for (op, took) in &ends {
        let limit = Duration::from_secs(9)..Duration::from_secs(13);
        assert!(limit.contains(took), "{op} took {took:?}");
    }
    let ops: BTreeSet<&str> = ends.iter().map(|(op, _)| &op[..]).collect();
    assert!(ops.contains("run a job") && ops.len() > 2, "{ops:?}");
}
