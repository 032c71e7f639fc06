//! Executors that a device asks before its own cores, in simulated runs: they decline before they
//! begin and after they have written tables, fail, panic, die, are slow, and hang. The tables are
//! those of the host's cores, or the attempt ends without an outcome and leaves nothing.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::address;
use common::folders::ChangedFolders;
use jobs::{Content, a_job, files, table_input};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, ExecutorReport, FolderWanted, MemoryFolders, Preferred,
    Server, ServerOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{
    Epoch, FaultStorage, JoinHandle, Lease, MemoryStorage, OpKind, Runtime, Storage, StorageError,
    StorageErrorKind,
};
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Handover, InputMap, Progress,
    Side,
};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

/// The entries of the job.
const ENTRIES: u64 = 2000;

/// The names of the tables that the jobs make begin with the epoch of their writer.
const OUTPUTS: &str = "00000003-";

/// What an executor does with a job that it was given, and with how many before this one.
type Behaviour = dyn Fn(&Job, &ExecContext, u64) -> Result<Outcome, ExecError> + Send + Sync;

/// An executor that does what a test says.
struct Fake {
    slots: usize,
    refusal: Option<&'static str>,
    is_down: AtomicBool,
    runs: AtomicU64,
    behaviour: Box<Behaviour>,
}

impl Fake {
    fn new(
        behaviour: impl Fn(&Job, &ExecContext, u64) -> Result<Outcome, ExecError>
        + Send
        + Sync
        + 'static,
    ) -> Fake {
        Fake {
            slots: 2,
            refusal: None,
            is_down: AtomicBool::new(false),
            runs: AtomicU64::new(0),
            behaviour: Box::new(behaviour),
        }
    }

    fn runs(&self) -> u64 {
        self.runs.load(Ordering::Relaxed)
    }
}

impl Executor for Fake {
    fn name(&self) -> &str {
        "fake"
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, _: &Job) -> Result<(), String> {
        self.refusal.map_or(Ok(()), |refusal| Err(refusal.into()))
    }

    fn slots(&self) -> usize {
        self.slots
    }

    fn state(&self) -> ExecutorState {
        match self.is_down.load(Ordering::Relaxed) {
            true => ExecutorState::Down("it fell off the bus".into()),
            false => ExecutorState::Ready,
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        vec![("fake_jobs".into(), self.runs())]
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        assert!(ctx.handover.is_none() && ctx.part_listener.is_none());
        (self.behaviour)(job, ctx, self.runs.fetch_add(1, Ordering::Relaxed))
    }
}

/// Makes all tables of a job, and deletes them again if it is asked to.
fn write_tables(job: &Job, ctx: &ExecContext, deletes: bool) {
    let made = CpuExecutor.run(job, ctx).expect("an outcome");
    assert!(made.tables.len() > 10);
    for table in made.tables.iter().filter(|_| deletes) {
        ctx.outputs
            .delete(ctx.epoch, &table.name)
            .expect("a deletion");
    }
}

/// A device, and a host that has its folder `db` with the inputs of a job.
struct World {
    runtime: Runtime,
    folders: Arc<MemoryFolders>,
    server: Server,
    device: Arc<Device>,
    lease: Box<dyn Lease>,
    executor: Arc<DeviceExecutor>,
    job: Job,
    inputs: Arc<InputMap>,
}

impl World {
    fn new(runtime: &Runtime, fake: &Arc<Fake>, rule: Option<fn() -> Rule>) -> World {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(LinkFaults {
            delay: Duration::from_micros(300),
            ..LinkFaults::default()
        });
        let folders = Arc::new(MemoryFolders::new(runtime));
        let of = runtime.clone();
        let faulty = move |storage: Arc<dyn Storage>| -> Arc<dyn Storage> {
            let storage = FaultStorage::new(storage, &of);
            if let Some(rule) = rule {
                storage.add(rule());
            }
            Arc::new(storage)
        };
        let changed = ChangedFolders::of(&folders).with_change(faulty);
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            preferred: Preferred(vec![Arc::clone(fake) as Arc<dyn Executor>]),
            ..ServerOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network);
        let server = Server::start(runtime, &link, &[address()], Arc::new(changed), options);
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let client = ClientOptions::default();
        let device = Device::connect(runtime, link, address(), folder, client).expect("a session");
        let own = folders.folder("db");
        (1..jobs::epoch().0).for_each(|_| drop(own.lease("store").expect("a lease")));
        let storage = device.storage();
        let lease = storage.lease("store").expect("a lease");
        assert_eq!(lease.epoch(), jobs::epoch());
        let (job, inputs) = the_job(&storage);
        World {
            runtime: runtime.clone(),
            folders,
            server: server.expect("a server"),
            executor: Arc::new(DeviceExecutor::new("device", &device)),
            device,
            lease,
            job,
            inputs,
        }
    }

    fn context(&self) -> ExecContext {
        ExecContext::new(
            self.runtime.clone(),
            Arc::clone(&self.inputs) as Arc<_>,
            self.device.storage(),
            self.lease.epoch(),
        )
    }

    /// Runs an attempt of the job, while a task looks whether its counts only rise.
    fn run(&self, attempt: u64, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let (runtime, progress) = (self.runtime.clone(), Arc::clone(&ctx.progress));
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let look = move || {
            let mut last = numbers(&progress);
            while !ended.load(Ordering::Relaxed) {
                let now = numbers(&progress);
                assert!(
                    last.iter().zip(now).all(|(a, b)| *a <= b),
                    "{last:?} {now:?}"
                );
                last = now;
                runtime.sleep(Duration::from_millis(5));
            }
        };
        let look = self.runtime.spawn("look", look).expect("a task");
        let result = self.executor.run(&self.attempt(attempt), ctx);
        has_ended.store(true, Ordering::Relaxed);
        look.join().expect("counts that only rise");
        result
    }

    fn attempt(&self, number: u64) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = number;
        job
    }

    /// Begins an attempt in a task of its own.
    fn begin(&self, number: u64, ctx: &ExecContext) -> JoinHandle<Result<Outcome, ExecError>> {
        let (executor, job) = (Arc::clone(&self.executor), self.attempt(number));
        let ctx = ctx.clone();
        let run = move || executor.run(&job, &ctx);
        self.runtime.spawn("attempt", run).expect("a task")
    }

    /// Waits until something has happened.
    fn until(&self, has_happened: impl Fn() -> bool) {
        let begun = self.runtime.now();
        while !has_happened() {
            let waited = self.runtime.now().since(begun);
            assert!(waited < Duration::from_secs(600), "it does not happen");
            self.runtime.sleep(Duration::from_millis(5));
        }
    }

    /// An outcome has the tables that the host's cores make, and nothing else was left.
    fn check(&self, outcome: &Outcome) {
        let folder = self.folders.folder("db");
        assert!(files(&folder, outcome) == expected(&self.runtime), "tables");
        assert_eq!(self.outputs(), outcome.tables.len());
        for table in &outcome.tables {
            let storage = self.device.storage();
            storage
                .delete(self.lease.epoch(), &table.name)
                .expect("a deletion");
        }
        assert_eq!(outcome.counters.entries_read, ENTRIES);
    }

    /// The number of tables of jobs in the folder.
    fn outputs(&self) -> usize {
        let all = self.folders.folder("db").list().expect("a list");
        let outputs = all.iter().filter(|meta| meta.name.starts_with(OUTPUTS));
        outputs.count()
    }

    /// What the fake executor and the cores have done.
    fn reports(&self) -> [ExecutorReport; 2] {
        let reports = self.server.executors();
        reports.try_into().expect("two executors")
    }

    fn end(self) {
        self.executor.close();
        self.lease.release().expect("a release");
        self.device.close();
        self.server.stop();
    }
}

fn numbers(progress: &Progress) -> [u64; 5] {
    [
        &progress.entries,
        &progress.bytes_in,
        &progress.bytes_out,
        &progress.tables,
        &progress.beats,
    ]
    .map(|count| count.load(Ordering::Relaxed))
}

/// A job with one input of about 220 kB, in tables of 4 kB.
fn the_job(storage: &Arc<impl Storage + ?Sized>) -> (Job, Arc<InputMap>) {
    let content = Content {
        entries: (0..ENTRIES as u16)
            .map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![n as u8; 100]))
            .collect(),
        ..Content::default()
    };
    let mut inputs = InputMap::new();
    let input = table_input(&mut inputs, storage, "in-0.tbl", &content);
    let job = Job {
        inputs: vec![input],
        ..a_job(9)
    };
    (job, Arc::new(inputs))
}

/// The tables that the host's cores make of it.
fn expected(runtime: &Runtime) -> Vec<Vec<u8>> {
    let own = Arc::new(MemoryStorage::new(runtime));
    let (job, inputs) = the_job(&own);
    let context = ExecContext::new(runtime.clone(), inputs, own.clone(), Epoch(3));
    let outcome = CpuExecutor.run(&job, &context).expect("an outcome");
    files(&*own, &outcome)
}

/// Runs a test in simulation, with a device that prefers this executor.
fn simulated(fake: Fake, test: impl FnOnce(&World, &Fake) + Send + 'static) {
    with_rule(fake, None, test);
}

fn with_rule(
    fake: Fake,
    rule: Option<fn() -> Rule>,
    test: impl FnOnce(&World, &Fake) + Send + 'static,
) {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(7)
    };
    let outcome = sim::run(config, move |runtime| {
        let fake = Arc::new(fake);
        let world = World::new(&runtime, &fake, rule);
        test(&world, &fake);
        world.end();
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

fn declined(result: &Result<Outcome, ExecError>) -> &str {
    match result {
        Err(ExecError::Declined { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_job_that_is_accepted_runs_there() {
    let works = |job: &Job, ctx: &ExecContext, _| CpuExecutor.run(job, ctx);
    simulated(Fake::new(works), |world, fake| {
        let ctx = world.context();
        world.check(&world.run(2, &ctx).expect("an outcome"));
        assert_eq!(ctx.progress.entries.load(Ordering::Relaxed), ENTRIES);
        let [of_fake, cores] = world.reports();
        assert_eq!((fake.runs(), of_fake.done_count), (1, 1));
        assert_eq!((of_fake.given_up_count, of_fake.passed_over_count), (0, 0));
        assert_eq!(of_fake.counters, [("fake_jobs".to_string(), 1)]);
        assert_eq!(
            (of_fake.name.as_str(), cores.name.as_str()),
            ("fake", "cpu")
        );
        assert_eq!((cores.done_count, cores.running_count), (0, 0));
    });
}

#[test]
fn what_cannot_take_a_job_is_passed_over() {
    let never = || Fake::new(|_, _, _| panic!("it was not to be asked"));
    let refuses = Fake {
        refusal: Some("the job is too small"),
        ..never()
    };
    let full = Fake {
        slots: 0,
        ..never()
    };
    let down = Fake {
        is_down: AtomicBool::new(true),
        ..never()
    };
    for (fake, reason) in [
        (refuses, "the job is too small"),
        (full, "it has no slots now"),
        (down, "it is down: it fell off the bus"),
    ] {
        simulated(fake, move |world, fake| {
            world.check(&world.run(2, &world.context()).expect("an outcome"));
            let [of_fake, cores] = world.reports();
            assert_eq!((fake.runs(), cores.done_count), (0, 1));
            assert_eq!((of_fake.given_up_count, of_fake.passed_over_count), (0, 1));
            assert_eq!(of_fake.last_passed_over.as_deref(), Some(reason));
        });
    }
}

/// The executor has read everything and has written all tables. It deletes them before it declines,
/// or leaves that to the device.
#[test]
fn the_cores_run_what_was_declined_after_it_began() {
    for deletes in [true, false] {
        let declines = move |job: &Job, ctx: &ExecContext, _| {
            write_tables(job, ctx, deletes);
            // The host sees how far this run has come.
            ctx.runtime.sleep(Duration::from_secs(1));
            Err(ExecError::declined("the GPU was wrong"))
        };
        simulated(Fake::new(declines), |world, fake| {
            let ctx = ExecContext {
                handover: Some(Arc::new(Handover::new(&world.runtime))),
                ..world.context()
            };
            let outcome = world.run(2, &ctx).expect("an outcome");
            let tables = outcome.tables.len() as u64;
            world.check(&outcome);
            // Nothing counts twice, and what the first run did is shown as signs of life.
            let [entries, bytes_in, _, made, beats] = numbers(&ctx.progress);
            assert_eq!((entries, made), (ENTRIES, tables));
            assert!(bytes_in < 400_000, "{bytes_in}");
            assert!(beats >= ENTRIES, "{beats}");
            let [of_fake, cores] = world.reports();
            assert_eq!((fake.runs(), of_fake.given_up_count), (1, 1));
            assert_eq!(of_fake.last_given_up.as_deref(), Some("the GPU was wrong"));
            assert_eq!((of_fake.done_count, cores.done_count), (0, 1));
            assert_eq!((of_fake.running_count, cores.running_count), (0, 0));
        });
    }
}

#[test]
fn an_object_that_cannot_be_deleted_ends_the_attempt() {
    let declines = |job: &Job, ctx: &ExecContext, _| {
        write_tables(job, ctx, false);
        Err(ExecError::declined("the GPU was wrong"))
    };
    let rule = || {
        let fault = Fault::Fail(StorageErrorKind::Io);
        Rule::on(OpKind::Delete, fault).named(OUTPUTS).for_good()
    };
    with_rule(Fake::new(declines), Some(rule), |world, _| {
        let result = world.run(2, &world.context());
        let reason = declined(&result);
        assert!(
            reason.starts_with("fake: the GPU was wrong; then "),
            "{reason}"
        );
        assert!(reason.contains("could not be deleted"), "{reason}");
        let [of_fake, cores] = world.reports();
        assert_eq!((of_fake.given_up_count, cores.done_count), (1, 0));
        // The next attempt has other names.
        assert!(world.outputs() > 0);
        let again = world.executor.run(&world.attempt(3), &world.context());
        assert!(declined(&again).contains("could not be deleted"));
    });
}

#[test]
fn a_failure_or_a_panic_ends_the_attempt() {
    let fails = |job: &Job, ctx: &ExecContext, number| match number {
        0 => {
            let kind = StorageErrorKind::Io;
            Err(StorageError::new(kind, "read", "in-0.tbl", "a bad sector").into())
        }
        1 => panic!("a planned panic"),
        2 => Err(ExecError::Cancelled),
        _ => CpuExecutor.run(job, ctx),
    };
    simulated(Fake::new(fails), |world, fake| {
        let texts = [
            "a bad sector",
            "the device's executor panicked",
            "ended the job",
        ];
        for (number, text) in texts.into_iter().enumerate() {
            let failed = world.run(2 + number as u64, &world.context());
            let error = failed.expect_err("a failure");
            assert!(matches!(error, ExecError::Failed(_)), "{error}");
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(world.outputs(), 0);
        }
        world.check(&world.run(9, &world.context()).expect("an outcome"));
        let [of_fake, cores] = world.reports();
        assert_eq!(fake.runs(), 4);
        assert_eq!((of_fake.done_count, of_fake.given_up_count), (1, 2));
        assert_eq!(of_fake.last_given_up.as_deref(), Some("it panicked"));
        assert_eq!(of_fake.running_count, 0);
        assert_eq!((cores.done_count, cores.given_up_count), (0, 0));
    });
}

#[test]
fn an_executor_that_died_is_not_asked_again() {
    let dies = |job: &Job, ctx: &ExecContext, _| {
        write_tables(job, ctx, true);
        Err(ExecError::declined("cuLaunchKernel failed"))
    };
    simulated(Fake::new(dies), |world, fake| {
        // After the first job the executor says that it is down, as after a sticky error.
        for attempt in 2..6 {
            world.check(&world.run(attempt, &world.context()).expect("an outcome"));
            fake.is_down.store(true, Ordering::Relaxed);
        }
        let [of_fake, cores] = world.reports();
        assert_eq!((fake.runs(), cores.done_count), (1, 4));
        assert_eq!((of_fake.given_up_count, of_fake.passed_over_count), (1, 3));
        let down = ExecutorState::Down("it fell off the bus".to_string());
        assert_eq!(of_fake.state, down);
    });
}

/// A slow executor is cancelled. It says so, or it declines the job at that moment. In both cases
/// the cores do not begin.
#[test]
fn a_cancel_ends_the_run_that_is_under_way() {
    for says_so in [true, false] {
        let slow = move |job: &Job, ctx: &ExecContext, _| {
            write_tables(job, ctx, true);
            while !ctx.cancel.is_cancelled() {
                ctx.progress.beat();
                ctx.runtime.sleep(Duration::from_millis(20));
            }
            Err(match says_so {
                true => ExecError::Cancelled,
                false => ExecError::declined("it gave up"),
            })
        };
        simulated(Fake::new(slow), move |world, fake| {
            let ctx = world.context();
            let task = world.begin(2, &ctx);
            world.until(|| fake.runs() == 1);
            // It is alive for longer than a job may be without progress.
            world.runtime.sleep(Duration::from_secs(60));
            assert!(!task.is_finished());
            ctx.cancel.cancel();
            let ended = task.join().expect("no panic");
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
            world.until(|| world.reports()[0].running_count == 0);
            let [of_fake, cores] = world.reports();
            assert_eq!((fake.runs(), world.outputs()), (1, 0));
            assert_eq!(of_fake.given_up_count, u64::from(!says_so));
            assert_eq!((cores.done_count, cores.running_count), (0, 0));
        });
    }
}

/// The device ends a run without progress, and the host hears of it. The cores run the next attempt
/// if the slot is not free.
#[test]
fn a_run_that_hangs_is_ended_by_the_device() {
    let hangs = |job: &Job, ctx: &ExecContext, number| {
        if number > 0 {
            return CpuExecutor.run(job, ctx);
        }
        while !ctx.cancel.is_cancelled() {
            ctx.runtime.sleep(Duration::from_millis(20));
        }
        Err(ExecError::Cancelled)
    };
    simulated(Fake::new(hangs), |world, fake| {
        let begun = world.runtime.now();
        let error = world.run(2, &world.context()).expect_err("a failure");
        let took = world.runtime.now().since(begun);
        assert!(error.to_string().contains("made no progress"), "{error}");
        assert!(took > Duration::from_secs(29), "{took:?}");
        assert!(took < Duration::from_secs(40), "{took:?}");
        assert_eq!(world.outputs(), 0);
        world.check(&world.run(3, &world.context()).expect("an outcome"));
        let [of_fake, cores] = world.reports();
        assert_eq!(
            (fake.runs(), of_fake.done_count, cores.done_count),
            (2, 1, 0)
        );
    });
}

/// The tables of an earlier attempt are taken over by the cores, because no preferred executor
/// does that.
#[test]
fn an_attempt_that_continues_runs_on_the_cores() {
    let works = |job: &Job, ctx: &ExecContext, _| CpuExecutor.run(job, ctx);
    let fake = Fake {
        is_down: AtomicBool::new(true),
        ..Fake::new(works)
    };
    let slow = || {
        let delay = Fault::Delay(Duration::from_millis(50));
        Rule::on(OpKind::Append, delay).named(OUTPUTS).for_good()
    };
    with_rule(fake, Some(slow), |world, fake| {
        let handover = Arc::new(Handover::new(&world.runtime));
        let context = || ExecContext {
            handover: Some(Arc::clone(&handover)),
            ..world.context()
        };
        let first = context();
        let task = world.begin(2, &first);
        world.until(|| first.progress.tables.load(Ordering::Relaxed) >= 3);
        first.cancel.cancel();
        let ended = task.join().expect("no panic");
        assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
        assert!(handover.left_count() >= 3);
        fake.is_down.store(false, Ordering::Relaxed);
        let outcome = world.run(3, &context()).expect("an outcome");
        assert!(handover.adopted_count() >= 3);
        world.check(&outcome);
        let [of_fake, cores] = world.reports();
        assert_eq!((fake.runs(), cores.done_count), (0, 1));
        let why = of_fake.last_passed_over.expect("a reason");
        assert_eq!(why, "the attempt continues after tables of an earlier one");
    });
}

#[test]
fn an_executor_that_gives_up_often_is_paused() {
    let declines = |job: &Job, ctx: &ExecContext, number| match number {
        0..4 => Err(ExecError::declined("no room")),
        _ => CpuExecutor.run(job, ctx),
    };
    simulated(Fake::new(declines), |world, fake| {
        let mut attempts = 2..;
        let mut run = || {
            let attempt = attempts.next().expect("a number");
            world.check(&world.run(attempt, &world.context()).expect("an outcome"));
            fake.runs()
        };
        let begun = [run(), run(), run(), run(), run()];
        assert_eq!(begun, [1, 2, 3, 3, 3]);
        let why = world.reports()[0].last_passed_over.clone();
        let paused = "it ended 3 jobs in a row without an outcome, and is asked again in 1 s";
        assert_eq!(why.as_deref(), Some(paused));
        // After the pause it gets one job. It fails, so the next pause is twice as long.
        world.runtime.sleep(Duration::from_secs(1));
        assert_eq!(run(), 4);
        world.runtime.sleep(Duration::from_millis(1500));
        assert_eq!(run(), 4);
        world.runtime.sleep(Duration::from_millis(500));
        // An outcome ends this.
        assert_eq!([run(), run(), run()], [5, 6, 7]);
        let [of_fake, cores] = world.reports();
        assert_eq!((of_fake.done_count, of_fake.given_up_count), (3, 4));
        assert_eq!((of_fake.passed_over_count, cores.done_count), (3, 7));
    });
}

#[test]
fn jobs_beyond_its_slots_run_on_the_cores() {
    let is_free = Arc::new(AtomicBool::new(false));
    let free = Arc::clone(&is_free);
    let waits = move |job: &Job, ctx: &ExecContext, _| {
        while !free.load(Ordering::Relaxed) {
            ctx.progress.beat();
            ctx.runtime.sleep(Duration::from_millis(5));
        }
        CpuExecutor.run(job, ctx)
    };
    let fake = Fake {
        slots: 1,
        ..Fake::new(waits)
    };
    simulated(fake, move |world, fake| {
        let task = world.begin(2, &world.context());
        world.until(|| fake.runs() == 1);
        let other = world.begin(3, &world.context());
        let other = other.join().expect("no panic").expect("an outcome");
        let [of_fake, cores] = world.reports();
        assert_eq!((of_fake.running_count, cores.done_count), (1, 1));
        let why = of_fake.last_passed_over.expect("a reason");
        assert_eq!(why, "it runs as many jobs as it has slots (1)");
        is_free.store(true, Ordering::Relaxed);
        let first = task.join().expect("no panic").expect("an outcome");
        let folder = world.folders.folder("db");
        assert!(files(&folder, &first) == files(&folder, &other));
        assert_eq!(world.reports()[0].done_count, 1);
    });
}
