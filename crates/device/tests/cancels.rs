//! A cancel reaches a job within a second, in every shape of a device and in every phase of a job,
//! and its caller has the answer by then. The runs are simulated: the second is one of simulated
//! time, so a slow machine does not matter.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::address;
use common::folders::ChangedFolders;
use jobs::{Content, a_job, files, table_input};
use siltstone_device::{
    ClientOptions, DataFolder, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders,
    SeparatedExecutor, Server, ServerOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::link::{
    Address, Connection, LinkFaults, LinkResult, Listener, MemoryNetwork, Network, Received,
};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{
    Epoch, FaultStorage, FileStorage, Instant, JoinHandle, Lease, MemoryStorage, Mutex, OpKind,
    Runtime, Storage,
};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, InputMap};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Input, Job, OutputLimits};

/// How long a cancel may take.
const SECOND: Duration = Duration::from_secs(1);

/// The bytes per second of each direction of a connection on a slow link.
const SLOW_BYTES_PER_S: u64 = 1 << 20;

/// The names of the tables that the jobs make begin with the epoch of their writer.
const OUTPUTS: &str = "00000003-";

/// A network whose connections say that they have no room until what was sent before has arrived at
/// the rate of a slow link. Sockets say this, and the network in memory does not.
struct Narrow {
    runtime: Runtime,
    inner: MemoryNetwork,
}

struct NarrowConnection {
    runtime: Runtime,
    inner: Arc<dyn Connection>,
    has_room_at: Mutex<Instant>,
}

impl Network for Narrow {
    fn connect(&self, address: &Address, deadline: Instant) -> LinkResult<Arc<dyn Connection>> {
        Ok(Arc::new(NarrowConnection {
            runtime: self.runtime.clone(),
            inner: self.inner.connect(address, deadline)?,
            has_room_at: self.runtime.mutex(self.runtime.now()),
        }))
    }

    fn listen(&self, address: &Address) -> LinkResult<Arc<dyn Listener>> {
        self.inner.listen(address)
    }
}

impl Connection for NarrowConnection {
    fn peer(&self) -> String {
        self.inner.peer()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn send(&self, parts: &[&[u8]], deadline: Instant) -> LinkResult<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let takes = Duration::from_secs_f64(bytes as f64 / SLOW_BYTES_PER_S as f64);
        {
            let mut has_room_at = self.has_room_at.lock();
            *has_room_at = (*has_room_at).max(self.runtime.now()) + takes;
        }
        self.inner.send(parts, deadline)
    }

    fn has_room(&self) -> bool {
        *self.has_room_at.lock() <= self.runtime.now()
    }

    fn receive(&self, buf: &mut [u8], deadline: Instant) -> LinkResult<Received> {
        self.inner.receive(buf, deadline)
    }

    fn close(&self) {
        self.inner.close();
    }
}

/// How a device is set up.
#[derive(Default)]
struct Setting {
    /// How long an append to a table of a job takes.
    append: Duration,
    keep_bytes: u64,
    /// A folder of this machine, whose folder `shared` the device shares.
    dir: Option<PathBuf>,
}

/// A device in the process of its host.
struct World {
    runtime: Runtime,
    network: MemoryNetwork,
    folders: Arc<MemoryFolders>,
    server: Server,
}

/// A job that runs in a task of its own.
struct Attempt {
    task: JoinHandle<Result<Outcome, ExecError>>,
    context: ExecContext,
}

/// A link without faults, which takes some time.
fn good() -> LinkFaults {
    LinkFaults {
        delay: Duration::from_micros(300),
        jitter: Duration::from_micros(300),
        ..LinkFaults::default()
    }
}

impl World {
    fn new(runtime: &Runtime, setting: Setting) -> World {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(good());
        let folders = Arc::new(MemoryFolders::new(runtime));
        let local = |dir: &PathBuf| DataFolder::open(dir.join("own")).expect("a folder");
        // An append to a table of a job takes some time.
        let (rt, append) = (runtime.clone(), setting.append);
        let slow = move |storage: Arc<dyn Storage>| -> Arc<dyn Storage> {
            let storage = FaultStorage::new(storage, &rt);
            let rule = Rule::on(OpKind::Append, Fault::Delay(append));
            storage.add(rule.named(OUTPUTS).for_good());
            Arc::new(storage)
        };
        let slow: Arc<dyn Folders> = Arc::new(
            ChangedFolders::of(&folders)
                .with_shared(setting.dir.as_ref().map(local))
                .with_change(slow),
        );
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            keep_bytes: setting.keep_bytes,
            shared: setting.dir.iter().map(|dir| dir.join("shared")).collect(),
            ..ServerOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let server = Server::start(runtime, &link, &[address()], slow, options);
        World {
            runtime: runtime.clone(),
            network,
            folders,
            server: server.expect("a server"),
        }
    }

    fn connect(&self, folder: FolderWanted, is_narrow: bool) -> Arc<Device> {
        let inner = self.network.clone();
        let link: Arc<dyn Network> = match is_narrow {
            true => Arc::new(Narrow {
                runtime: self.runtime.clone(),
                inner,
            }),
            false => Arc::new(inner),
        };
        let options = ClientOptions::default();
        Device::connect(&self.runtime, link, address(), folder, options).expect("a session")
    }

    /// Makes the link slow.
    fn slow_down(&self, bytes_per_s: u64) {
        self.network.set_faults(LinkFaults {
            bytes_per_s,
            ..good()
        });
    }

    fn begin(
        &self,
        executor: &Arc<impl Executor + 'static>,
        job: &Job,
        ctx: &ExecContext,
    ) -> Attempt {
        let (executor, job, context) = (Arc::clone(executor), job.clone(), ctx.clone());
        let run = move || executor.run(&job, &context);
        Attempt {
            task: self.runtime.spawn("attempt", run).expect("a task"),
            context: ctx.clone(),
        }
    }

    /// Waits until something has happened during an attempt.
    fn until(&self, attempt: &Attempt, has_happened: impl Fn() -> bool) {
        while !has_happened() {
            assert!(!attempt.task.is_finished(), "it ended too early");
            self.runtime.sleep(Duration::from_millis(5));
        }
    }

    /// Waits until an attempt has made this many tables on the device.
    fn until_tables(&self, attempt: &Attempt, count: u64) {
        let progress = &attempt.context.progress;
        self.until(attempt, || progress.tables.load(Ordering::Relaxed) >= count);
    }

    /// The number of jobs that are running on the device.
    fn running(&self) -> usize {
        let sessions = self.server.sessions();
        sessions.iter().map(|session| session.jobs).sum()
    }

    /// The names of the tables in the folder that the device has for the tables of a host.
    fn lent_names(&self) -> Vec<String> {
        let sessions = self.server.sessions();
        let mut folders = sessions.into_iter().filter_map(|session| session.folder);
        let name = folders.find(|name| name.starts_with("scratch-"));
        names(&self.folders.folder(&name.expect("a session for lent work")))
    }

    /// Cancels an attempt in the middle. Within a second it has ended on both sides.
    fn cancel(&self, attempt: Attempt) {
        assert!(
            !attempt.task.is_finished(),
            "it has ended before the cancel"
        );
        let begun = self.runtime.now();
        attempt.context.cancel.cancel();
        while self.running() > 0 {
            let passed = self.runtime.now().since(begun);
            assert!(passed <= SECOND, "the device goes on after {passed:?}");
            self.runtime.sleep(Duration::from_millis(5));
        }
        let ended = attempt.task.join().expect("no panic").map(drop);
        let took = self.runtime.now().since(begun);
        assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
        assert!(took <= SECOND, "the answer took {took:?}");
    }
}

/// A session that has the folder `db`.
struct Host {
    device: Arc<Device>,
    storage: Arc<dyn Storage>,
    lease: Box<dyn Lease>,
}

impl Host {
    fn new(world: &World, is_narrow: bool) -> Host {
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let device = world.connect(folder, is_narrow);
        let storage = device.storage();
        let lease = storage.lease("store").expect("a free lease");
        Host {
            device,
            storage,
            lease,
        }
    }

    fn context(&self, world: &World, job: &Job) -> ExecContext {
        context(&world.runtime, job, &self.storage, self.lease.epoch())
    }

    fn end(self, world: World) {
        self.lease.release().expect("a release");
        self.device.close();
        world.server.stop();
    }
}

/// Runs with the same keys. All entries but those of the first run are shadowed.
fn runs(count: u64, keys: u64, value_bytes: usize) -> Vec<Content> {
    let content = |seq: u64| {
        let entry = |n: u64| {
            // Neighbouring keys have no long common prefix, so that the columns are not short.
            let key = format!("{:016x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            (key.into_bytes(), seq << 8 | 1, vec![seq as u8; value_bytes])
        };
        Content {
            entries: (0..keys).map(entry).collect(),
            ..Content::default()
        }
    };
    (1..=count).rev().map(content).collect()
}

/// Writes runs into a storage, a table for each, and makes the job with tables of this size.
fn job_over(storage: &Arc<impl Storage>, runs: &[Content], table_bytes: u64) -> Job {
    let mut job = a_job(runs.len() as u64);
    job.limits = OutputLimits::new(table_bytes, 512, false);
    for (run, content) in runs.iter().enumerate() {
        let name = format!("in-{run}.tbl");
        let input = table_input(&mut InputMap::new(), storage, &name, content);
        job.inputs.push(Input {
            run: run as u32,
            ..input
        });
    }
    job
}

fn context(runtime: &Runtime, job: &Job, storage: &Arc<dyn Storage>, epoch: Epoch) -> ExecContext {
    let mut inputs = InputMap::new();
    for input in &job.inputs {
        let file = storage.open(&input.name).expect("an input");
        inputs.add_table(input.location, &input.name, file);
    }
    ExecContext::new(
        runtime.clone(),
        Arc::new(inputs),
        Arc::clone(storage),
        epoch,
    )
}

fn attempt(job: &Job, number: u64) -> Job {
    let mut job = job.clone();
    job.output.attempt = number;
    job
}

fn names(storage: &dyn Storage) -> Vec<String> {
    let objects = storage.list().expect("a list");
    objects.into_iter().map(|object| object.name).collect()
}

/// The tables of jobs in a folder.
fn outputs(storage: &dyn Storage) -> Vec<String> {
    let mut names = names(storage);
    names.retain(|name| name.starts_with(OUTPUTS));
    names
}

fn simulated(seed: u64, test: impl FnOnce(&Runtime) + Send + 'static) {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, move |runtime| test(&runtime));
    if let Err(failure) = outcome.result {
        panic!("seed {seed}: {failure}");
    }
}

/// A device on which a merge of these runs takes some seconds.
fn merges_slowly() -> (Setting, Vec<Content>) {
    let setting = Setting {
        append: Duration::from_millis(30),
        keep_bytes: 8 << 20,
        ..Setting::default()
    };
    (setting, runs(2, 3000, 100))
}

#[test]
fn a_job_on_tables_that_the_device_holds() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let (setting, runs) = merges_slowly();
            let world = World::new(runtime, setting);
            let job = job_over(&Arc::new(world.folders.folder("db")), &runs, 4096);
            let host = Host::new(&world, false);
            let executor = Arc::new(DeviceExecutor::new("device", &host.device));
            let running = world.begin(&executor, &job, &host.context(&world, &job));
            world.until_tables(&running, 2);
            runtime.sleep(Duration::from_millis(60 * seed));
            world.cancel(running);
            assert_eq!(outputs(&*host.storage), Vec::<String>::new());
            host.end(world);
        });
    }
}

#[test]
fn a_job_in_a_shared_folder() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let dir = tempfile::tempdir().expect("a folder");
            let path = dir.path().canonicalize().expect("its path");
            std::fs::create_dir(path.join("shared")).expect("a folder");
            let (setting, runs) = merges_slowly();
            let setting = Setting {
                dir: Some(path.clone()),
                ..setting
            };
            let world = World::new(runtime, setting);
            let shared = FileStorage::open_existing(path.join("shared")).expect("the folder");
            let shared = Arc::new(shared);
            let job = job_over(&shared, &runs, 4096);
            let shared: Arc<dyn Storage> = shared;
            let device = world.connect(FolderWanted::None, false);
            let executor = Arc::new(DeviceExecutor::new("device", &device));
            let here = context(runtime, &job, &shared, Epoch(3));
            let running = world.begin(&executor, &job, &here);
            world.until_tables(&running, 2);
            runtime.sleep(Duration::from_millis(60 * seed));
            world.cancel(running);
            assert_eq!(executor.sent_table_bytes(), 0, "the folder is shared");
            assert_eq!(outputs(&*shared), Vec::<String>::new());
            device.close();
            world.server.stop();
        });
    }
}

#[test]
fn lent_work_while_the_device_merges() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let (setting, runs) = merges_slowly();
            let world = World::new(runtime, setting);
            let own = Arc::new(MemoryStorage::new(runtime));
            let job = job_over(&own, &runs, 4096);
            let own: Arc<dyn Storage> = own;
            let device = world.connect(FolderWanted::None, false);
            let executor = Arc::new(DeviceExecutor::new("device", &device));
            let here = context(runtime, &job, &own, Epoch(3));
            let running = world.begin(&executor, &job, &here);
            world.until_tables(&running, 2);
            runtime.sleep(Duration::from_millis(60 * seed));
            world.cancel(running);
            assert_eq!(outputs(&*own), Vec::<String>::new());
            // Only the tables that were sent are left there.
            let kept = world.lent_names();
            let are_sent = kept.iter().all(|name| name.starts_with("t-"));
            assert!(kept.len() == 2 && are_sent, "{kept:?}");
            executor.close();
            device.close();
            world.server.stop();
        });
    }
}

/// The bytes that were not sent yet are not sent any more, and nothing of the table is left on the
/// device or counted there.
#[test]
fn lent_work_while_tables_are_sent() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let own = Arc::new(MemoryStorage::new(runtime));
            let job = job_over(&own, &runs(1, 4200, 1000), 1 << 20);
            let own: Arc<dyn Storage> = own;
            let len = job.inputs[0].len_bytes;
            let setting = Setting {
                keep_bytes: len / 2 * 5,
                ..Setting::default()
            };
            let world = World::new(runtime, setting);
            let device = world.connect(FolderWanted::None, seed % 2 == 1);
            let executor = Arc::new(DeviceExecutor::new("device", &device));
            world.slow_down(SLOW_BYTES_PER_S);
            let begun = world.network.sent_bytes();
            let sent = || world.network.sent_bytes() - begun;
            let here = context(runtime, &job, &own, Epoch(3));
            let running = world.begin(&executor, &job, &here);
            world.until(&running, || sent() > 300 << 10);
            runtime.sleep(Duration::from_millis(150 * seed));
            assert!(sent() < len, "it has not sent everything");
            world.cancel(running);
            let before = sent();
            assert_eq!(world.lent_names(), Vec::<String>::new());
            runtime.sleep(Duration::from_secs(3));
            let later = sent() - before;
            assert!(later < 16 << 10, "{later} bytes were sent after the cancel");
            assert_eq!(executor.sent_table_bytes(), 0);
            // Another table, and what is made of it, have room.
            world.network.set_faults(good());
            let other = Arc::new(MemoryStorage::new(runtime));
            let job = job_over(&other, &runs(1, 4200, 999), 1 << 20);
            let other: Arc<dyn Storage> = other;
            let here = context(runtime, &job, &other, Epoch(3));
            let outcome = executor.run(&attempt(&job, 2), &here).expect("room");
            let expected = CpuExecutor
                .run(&attempt(&job, 3), &here)
                .expect("an outcome");
            assert!(files(&*other, &outcome) == files(&*other, &expected));
            executor.close();
            device.close();
            world.server.stop();
        });
    }
}

/// If the device has gone, nothing can be deleted there, and a cancel does not wait for that.
#[test]
fn lent_work_that_is_sent_to_a_device_that_has_gone() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let own = Arc::new(MemoryStorage::new(runtime));
            let job = job_over(&own, &runs(1, 4200, 1000), 1 << 20);
            let own: Arc<dyn Storage> = own;
            let setting = Setting {
                keep_bytes: 3 * job.inputs[0].len_bytes,
                ..Setting::default()
            };
            let world = World::new(runtime, setting);
            let device = world.connect(FolderWanted::None, false);
            let executor = Arc::new(DeviceExecutor::new("device", &device));
            world.slow_down(SLOW_BYTES_PER_S);
            let begun = world.network.sent_bytes();
            let here = context(runtime, &job, &own, Epoch(3));
            let running = world.begin(&executor, &job, &here);
            world.until(&running, || world.network.sent_bytes() - begun > 300 << 10);
            world.server.stop();
            runtime.sleep(Duration::from_millis(200 * seed));
            assert!(!running.task.is_finished(), "it has given up already");
            let begun = runtime.now();
            running.context.cancel.cancel();
            let ended = running.task.join().expect("no panic").map(drop);
            let took = runtime.now().since(begun);
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
            assert!(took < 4 * SECOND, "the answer took {took:?}");
            executor.close();
            device.close();
            // The session for the tables ends by itself.
            runtime.sleep(10 * SECOND);
        });
    }
}

/// The tables that were not fetched are deleted on the device when it needs their room.
#[test]
fn lent_work_while_tables_are_fetched() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let own = Arc::new(MemoryStorage::new(runtime));
            let job = job_over(&own, &runs(1, 4200, 1000), 1 << 20);
            let own: Arc<dyn Storage> = own;
            let len = job.inputs[0].len_bytes;
            let setting = Setting {
                append: Duration::from_millis(50),
                keep_bytes: len * 3 - len / 8,
                ..Setting::default()
            };
            let world = World::new(runtime, setting);
            let device = world.connect(FolderWanted::None, seed % 2 == 1);
            let executor = Arc::new(DeviceExecutor::new("device", &device));
            let here = context(runtime, &job, &own, Epoch(3));
            let running = world.begin(&executor, &job, &here);
            world.until_tables(&running, 1);
            world.slow_down(SLOW_BYTES_PER_S);
            world.until(&running, || !outputs(&*own).is_empty());
            runtime.sleep(Duration::from_millis(150 * seed));
            assert_eq!(world.running(), 0, "the merge is done");
            world.cancel(running);
            assert_eq!(outputs(&*own), Vec::<String>::new());
            world.network.set_faults(good());
            let here = context(runtime, &job, &own, Epoch(3));
            let outcome = executor.run(&attempt(&job, 2), &here).expect("an outcome");
            assert_eq!(executor.sent_table_bytes(), len, "the table was sent once");
            let expected = CpuExecutor
                .run(&attempt(&job, 3), &here)
                .expect("an outcome");
            assert!(files(&*own, &outcome) == files(&*own, &expected));
            executor.close();
            device.close();
            world.server.stop();
        });
    }
}

/// Runs a separated job on a device until `until` returns, and cancels it.
fn separated(
    seed: u64,
    (setting, runs): (Setting, Vec<Content>),
    sizes: Option<(usize, usize)>,
    until: impl FnOnce(&World, &Attempt) + Send + 'static,
) {
    simulated(seed, move |runtime| {
        let world = World::new(runtime, setting);
        let job = job_over(&Arc::new(world.folders.folder("db")), &runs, 4096);
        drop(runs);
        let host = Host::new(&world, false);
        let executor = SeparatedExecutor::new(&host.device).always();
        let executor = Arc::new(match sizes {
            Some((extents, bytes)) => executor.cut_into(extents, bytes),
            None => executor,
        });
        let running = world.begin(&executor, &job, &host.context(&world, &job));
        until(&world, &running);
        world.cancel(running);
        assert_eq!(outputs(&*host.storage), Vec::<String>::new());
        host.end(world);
    });
}

#[test]
fn separated_while_columns_are_read() {
    for seed in 0..3 {
        let made = (Setting::default(), runs(2, 60_000, 20));
        separated(seed, made, None, move |world, running| {
            world.slow_down(SLOW_BYTES_PER_S);
            world.until(running, || world.running() == 1);
            world.runtime.sleep(Duration::from_millis(50 + 100 * seed));
        });
    }
}

#[test]
fn separated_while_survivors_are_sent() {
    for seed in 0..8 {
        separated(
            seed,
            merges_slowly(),
            Some((5, 64)),
            move |world, running| {
                world.until_tables(running, 2);
                world.runtime.sleep(Duration::from_millis(60 * seed));
            },
        );
    }
}

#[test]
fn separated_while_tables_are_rebuilt() {
    for seed in 0..8 {
        separated(seed, merges_slowly(), None, move |world, running| {
            world.until_tables(running, 2);
            world.runtime.sleep(Duration::from_millis(60 * seed));
        });
    }
}

/// A job begins when the device has all that its session wrote to the job's inputs, which takes
/// some seconds here.
#[test]
fn a_job_that_waits_for_what_its_session_wrote() {
    for seed in 0..8 {
        simulated(seed, move |runtime| {
            let world = World::new(runtime, Setting::default());
            let db = Arc::new(world.folders.folder("db"));
            let job = job_over(&db, &runs(1, 300, 100), 4096);
            let host = Host::new(&world, true);
            let here = host.context(&world, &job);
            let name = "written";
            let written = host.storage.create(host.lease.epoch(), name);
            let written = written.expect("a free name");
            let mut waits = job.clone();
            waits.inputs[0].name = name.to_string();
            world.slow_down(SLOW_BYTES_PER_S);
            for _ in 0..64 {
                written.append(&[&[7; 64 << 10]]).expect("room in the tail");
            }
            let executor = Arc::new(DeviceExecutor::new("device", &host.device));
            let running = world.begin(&executor, &waits, &here);
            runtime.sleep(Duration::from_millis(100 + 150 * seed));
            assert_eq!(world.running(), 0, "it has not begun");
            world.cancel(running);
            // A job that reads other objects does not wait.
            let begun = runtime.now();
            let again = host.context(&world, &job);
            let outcome = executor.run(&job, &again).expect("an outcome");
            let took = runtime.now().since(begun);
            assert!(took < SECOND, "it took {took:?}");
            world.network.set_faults(good());
            for table in &outcome.tables {
                let deleted = host.storage.delete(host.lease.epoch(), &table.name);
                deleted.expect("a table");
            }
            // The bytes that were written are not given up.
            written.sync().expect("a sync");
            let there = db.open(name).expect("the object");
            assert_eq!(there.len(), 4 << 20);
            drop(written);
            host.end(world);
        });
    }
}

/// A job that was cancelled before it begins is not sent.
#[test]
fn a_job_that_has_not_begun() {
    simulated(1, |runtime| {
        let (setting, runs) = merges_slowly();
        let world = World::new(runtime, setting);
        let job = job_over(&Arc::new(world.folders.folder("db")), &runs, 4096);
        let host = Host::new(&world, false);
        let here = host.context(&world, &job);
        here.cancel.cancel();
        let executors: [Arc<dyn Executor>; 2] = [
            Arc::new(DeviceExecutor::new("device", &host.device)),
            Arc::new(SeparatedExecutor::new(&host.device).always()),
        ];
        for executor in executors {
            let before = host.device.report().sent_bytes;
            let ended = executor.run(&job, &here).map(drop);
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
            // A sign of life may have been sent meanwhile.
            let sent = host.device.report().sent_bytes - before;
            assert!(sent < 300, "{sent} bytes were sent");
        }
        host.end(world);
    });
}
