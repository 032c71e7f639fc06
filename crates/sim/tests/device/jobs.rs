//! Jobs on a device whose storage fails, where names of outputs are taken, that is killed in the
//! middle of a job, or that is asked to stop. In some runs the host decides what is kept and the
//! device only makes the tables. Whatever happens, in the end the job's tables are those of the
//! host, and no orphans are left. The device holds the tables; `lent_jobs.rs` has the runs in which
//! the host has them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone_device::{ClientOptions, Device, DeviceExecutor, FolderWanted, SeparatedExecutor};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Act, Machine, MachineOptions, Moment, Tap, address};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Epoch, Lease, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};
use siltstone_table::exec::{
    CancelToken, CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap,
};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::tables::{Content, a_job, files, table_input};
use super::{good_link, lent_jobs, simulated};

/// The storage of the device's folder, with rules for failures.
pub type Faults = Arc<Mutex<Vec<FaultStorage>>>;

/// Rules for the folders that the device opens from now on.
pub type Rules = Arc<Mutex<Vec<Rule>>>;

/// The options of a machine whose folders fail by rules. The rules are added to the last of
/// `faults`.
pub fn faulty(runtime: &Runtime, faults: &Faults) -> MachineOptions {
    faulty_later(runtime, faults, &Rules::default())
}

/// As [`faulty`]. A folder that is opened later fails by `rules`.
pub fn faulty_later(runtime: &Runtime, faults: &Faults, rules: &Rules) -> MachineOptions {
    let (runtime, faults, rules) = (runtime.clone(), Arc::clone(faults), Arc::clone(rules));
    let below = move |storage: Arc<dyn Storage>| -> Arc<dyn Storage> {
        let storage = FaultStorage::new(storage, &runtime);
        let rules = rules.lock().unwrap_or_else(|e| e.into_inner());
        for rule in rules.iter() {
            storage.add(rule.clone());
        }
        let mut faults = faults.lock().unwrap_or_else(|e| e.into_inner());
        faults.push(storage.clone());
        Arc::new(storage)
    };
    MachineOptions {
        below: Arc::new(below),
        ..MachineOptions::default()
    }
}

/// Adds a rule to the storage of the device that is running now.
pub fn add_rule(faults: &Faults, rule: Rule) {
    let faults = faults.lock().unwrap_or_else(|e| e.into_inner());
    for storage in faults.iter() {
        storage.add(rule.clone());
    }
}

/// A job with one input, whose table is among `inputs`.
pub struct Work {
    pub job: Job,
    pub input: Vec<u8>,
}

/// The name of the input.
pub const INPUT: &str = "input";

/// Draws a random job whose input has this many entries.
pub fn work(runtime: &Runtime, entries: u16) -> Work {
    let scratch = Arc::new(MemoryStorage::new(runtime));
    let content = Content {
        entries: (0..entries)
            .map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![n as u8; 100]))
            .collect(),
        ..Content::default()
    };
    let input = table_input(&mut InputMap::new(), &scratch, INPUT, &content);
    Work {
        job: Job {
            inputs: vec![input],
            ..a_job(9)
        },
        input: scratch.read_small(INPUT).expect("the table"),
    }
}

/// Writes the input into a folder.
pub fn write_input(
    storage: &dyn Storage,
    epoch: Epoch,
    work: &Work,
) -> siltstone_storage::Result<()> {
    let file = storage.create(epoch, INPUT)?;
    file.append(&[&work.input])?;
    file.sync()?;
    storage.sync_dir(epoch)
}

/// The context of an attempt in a folder that has the input.
pub fn context(
    runtime: &Runtime,
    storage: &Arc<dyn Storage>,
    epoch: Epoch,
) -> siltstone_storage::Result<ExecContext> {
    let mut inputs = InputMap::new();
    inputs.add_table(0, INPUT, storage.open(INPUT)?);
    Ok(ExecContext::new(
        runtime.clone(),
        Arc::new(inputs),
        Arc::clone(storage),
        epoch,
    ))
}

/// The moments at which the device is killed.
pub const MOMENTS: [Moment; 4] = [
    Moment::BeforeRequest,
    Moment::AfterRequest,
    Moment::BeforeAnswer,
    Moment::AfterAnswer,
];

struct Setup {
    runtime: Runtime,
    tap: Tap,
    machine: Machine,
    faults: Faults,
    device: Arc<Device>,
    executor: DeviceExecutor,
    storage: Arc<dyn Storage>,
    lease: Box<dyn Lease>,
    work: Work,
    expected: Vec<Vec<u8>>,
    handover: Arc<Handover>,
    coverage: Coverage,
}

impl Setup {
    fn new(runtime: &Runtime, seed: u64, rng: &mut Rng) -> Setup {
        let network = MemoryNetwork::new(runtime);
        network.set_faults(good_link());
        let tap = Tap::new(runtime, &network, seed, &[]);
        let faults = Faults::default();
        let machine = Machine::start(runtime, &tap, faulty(runtime, &faults));
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let network: Arc<dyn Network> = Arc::new(tap.clone());
        let options = ClientOptions {
            time_limit: Duration::from_secs(60),
            ..ClientOptions::default()
        };
        let device = Device::connect(runtime, network, address(), folder, options);
        let device = device.expect("a session");
        let storage: Arc<dyn Storage> = device.storage();
        let lease = storage.lease("store").expect("free");
        let work = work(runtime, 300 + rng.below(1500) as u16);
        write_input(&*storage, lease.epoch(), &work).expect("sound");
        let own = Arc::new(MemoryStorage::new(runtime));
        let input = own.create(Epoch(3), INPUT).expect("free");
        input.append(&[&work.input]).expect("room");
        let of: Arc<dyn Storage> = own.clone();
        let here = context(runtime, &of, Epoch(3)).expect("the input");
        let expected = CpuExecutor.run(&work.job, &here).expect("a sound job");
        Setup {
            executor: DeviceExecutor::new("device", &device),
            expected: files(&*own, &expected),
            runtime: runtime.clone(),
            tap,
            machine,
            faults,
            device,
            storage,
            lease,
            work,
            handover: Arc::new(Handover::new(runtime)),
            coverage: Coverage::default(),
        }
    }

    /// The context of the next attempt.
    fn context(&self) -> ExecContext {
        let context = context(&self.runtime, &self.storage, self.lease.epoch());
        ExecContext {
            handover: Some(Arc::clone(&self.handover)),
            ..context.expect("the input is there")
        }
    }

    fn run(&self, attempt: u64, context: &ExecContext) -> Result<Outcome, ExecError> {
        let mut job = self.work.job.clone();
        job.output.attempt = attempt;
        self.executor.run(&job, context)
    }

    /// The names of the objects in the folder on the device.
    fn names(&self) -> BTreeSet<String> {
        let listed = self.machine.folders().folder("db").list();
        let listed = listed.expect("a list").into_iter();
        listed.map(|object| object.name).collect()
    }

    /// Runs the job on the host, which may continue after what an attempt on the device left.
    fn finish_here(&mut self, killed: bool) {
        let context = self.context();
        let left = self.handover.left_count();
        let mut job = self.work.job.clone();
        job.output.attempt = 9;
        let outcome = CpuExecutor.run(&job, &context).expect("a sound job");
        let adopted = self.handover.adopted_count() as usize;
        assert_eq!(adopted, left, "what was left was adopted");
        if adopted > 0 {
            self.coverage.add("jobs.went_on");
        }
        self.holds(&outcome, killed);
    }

    /// Checks that the outcome is that of the host's cores, that it stays, and that nothing else is
    /// there. A device that was killed may have left tables that nobody knows, which an open of the
    /// store would delete.
    fn holds(&mut self, outcome: &Outcome, killed: bool) {
        assert_eq!(files(&*self.storage, outcome), self.expected);
        self.runtime.sleep(Duration::from_secs(5));
        let of_outcome = outcome.tables.iter().map(|table| table.name.clone());
        let of_outcome: BTreeSet<String> = of_outcome.chain([INPUT.to_string()]).collect();
        let check = |names: BTreeSet<String>, when: &str| {
            let missing: Vec<_> = of_outcome.difference(&names).collect();
            assert!(missing.is_empty(), "{when}: {missing:?} are missing");
            let more: Vec<_> = names.difference(&of_outcome).collect();
            assert!(more.is_empty() || killed, "{when}: {more:?} are left");
        };
        check(self.names(), "after the job");
        self.device.close();
        self.runtime.sleep(Duration::from_secs(5));
        check(self.names(), "after the session");
        let folder = self.machine.folders().folder("db");
        assert_eq!(files(&folder, outcome), self.expected);
    }
}

pub fn trial(seed: u64) -> Coverage {
    // These random numbers are separate, so that a seed of a held job does the same as before.
    match Rng::new(seed ^ 0x1E47).chance(45) {
        true => lent_jobs::trial(seed),
        false => held(seed),
    }
}

/// A job in a folder that the device holds.
fn held(seed: u64) -> Coverage {
    simulated(seed, 6_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x10B5);
        let mut setup = Setup::new(&runtime, seed, &mut rng);
        // This uses random numbers of its own, so that earlier seeds do the same as before.
        let is_rebuilt = Rng::new(seed ^ 0x5EBA).chance(25);
        match rng.below(5) {
            _ if is_rebuilt => rebuild_is_killed(&runtime, &mut setup, &mut rng),
            0 => {
                let outcome = setup.run(1, &setup.context()).expect("a sound job");
                setup.coverage.add("jobs.done");
                setup.holds(&outcome, false);
            }
            1 => name_is_taken(&mut setup, &mut rng),
            2 => sync_fails(&mut setup, &mut rng),
            3 => device_is_killed(&runtime, &mut setup, &mut rng),
            _ => job_is_cancelled(&runtime, &mut setup, &mut rng),
        }
        assert_eq!(setup.machine.watch().wrong(), Vec::<String>::new());
        setup.coverage.merge(&setup.tap.coverage());
        setup.coverage
    })
}

/// The name of an output is already taken, which can happen after the number of an attempt was used
/// twice.
fn name_is_taken(setup: &mut Setup, rng: &mut Rng) {
    let mut job = setup.work.job.clone();
    job.output.attempt = 1;
    let name = job.table_name(0, rng.below(setup.expected.len() as u64) as u32);
    let file = setup.storage.create(setup.lease.epoch(), &name);
    let file = file.expect("free");
    file.append(&[b"somebody else's"]).expect("room");
    file.sync().expect("sound");
    let error = setup.run(1, &setup.context());
    let error = error.map(drop).expect_err("a name is taken");
    assert!(error.to_string().contains(&name), "{error}");
    setup.coverage.add("jobs.name_was_taken");
    setup.runtime.sleep(Duration::from_secs(3));
    let folder = setup.machine.folders().folder("db");
    let bytes = folder.read_small(&name);
    assert_eq!(
        bytes.ok().as_deref(),
        Some(&b"somebody else's"[..]),
        "{name}"
    );
    drop(file);
    let deleted = setup.storage.delete(setup.lease.epoch(), &name);
    deleted.expect("it is there");
    setup.finish_here(false);
}

/// A sync of a table fails. Nothing of the attempt is adopted.
fn sync_fails(setup: &mut Setup, rng: &mut Rng) {
    let fault = Fault::Fail(StorageErrorKind::Io);
    let nth = rng.below(setup.expected.len() as u64);
    let rule = Rule::on(OpKind::Sync, fault).ending(".tbl").nth(nth);
    add_rule(&setup.faults, rule);
    let error = setup.run(1, &setup.context());
    let error = error.map(drop).expect_err("a sync failed");
    setup.coverage.add("jobs.sync_failed");
    let left = setup.handover.left_count();
    assert_eq!(
        left, 0,
        "after {error}, tables are left to the next attempt"
    );
    setup.finish_here(false);
}

/// Makes the device slow, so that something can happen in the middle of a job.
fn slow_down(setup: &Setup) {
    let delay = Fault::Delay(Duration::from_millis(30));
    let rule = Rule::on(OpKind::Append, delay).ending(".tbl").for_good();
    add_rule(&setup.faults, rule);
}

/// The device is killed in the middle of a job, and is restarted.
fn device_is_killed(runtime: &Runtime, setup: &mut Setup, rng: &mut Rng) {
    let executor = DeviceExecutor::new("device", &setup.device);
    let names = [
        "begin_job",
        "wait_job",
        "read_outcome",
        "forget_job",
        "sync_dir",
    ];
    killed(runtime, setup, rng, Arc::new(executor), &names);
}

/// The same while this host decides what the tables keep, and the device makes them.
fn rebuild_is_killed(runtime: &Runtime, setup: &mut Setup, rng: &mut Rng) {
    let executor = SeparatedExecutor::new(&setup.device).always();
    let executor = Arc::new(executor.cut_into(3, 8));
    let names = [
        "begin_rebuild",
        "survivors",
        "survivors",
        "wait_job",
        "read_outcome",
        "forget_job",
    ];
    killed(runtime, setup, rng, executor.clone(), &names);
    let stats = executor.stats();
    assert_eq!(stats.declined_count, 0, "{stats:?}");
    setup.coverage.add_count("jobs.rebuilt", stats.job_count);
    let failed = stats.failed_count;
    setup.coverage.add_count("jobs.rebuild_killed", failed);
}

/// Kills the device at a request of one of these names, or at a random time.
fn killed(
    runtime: &Runtime,
    setup: &mut Setup,
    rng: &mut Rng,
    executor: Arc<dyn Executor>,
    names: &[&'static str],
) {
    slow_down(setup);
    let context = setup.context();
    let mut job = setup.work.job.clone();
    job.output.attempt = 1;
    let after = Duration::from_millis(rng.below(1500));
    let is_aimed = rng.chance(60);
    if is_aimed {
        let moment = *rng.pick(&MOMENTS);
        let name = *rng.pick(names);
        let nth = match name {
            "wait_job" | "survivors" => 1 + rng.below(8),
            _ => 1,
        };
        setup.tap.aim(Act::KillDevice, moment, name, nth);
    }
    let attempt = move || executor.run(&job, &context);
    let attempt = runtime.spawn("attempt", attempt).expect("a task");
    if is_aimed {
        while setup.machine.is_alive() && !attempt.is_finished() {
            runtime.sleep(Duration::from_millis(5));
        }
    } else {
        runtime.sleep(after);
    }
    setup.tap.end();
    setup.machine.kill();
    runtime.sleep(Duration::from_millis(rng.below(300)));
    setup.machine.start_again();
    match attempt.join().expect("the attempt's task") {
        Ok(outcome) => setup.holds(&outcome, true),
        Err(_) => {
            setup.coverage.add("jobs.killed");
            // A sync of names was under way, so all later ones of this session fail until the store
            // is opened again.
            let synced = setup.storage.sync_dir(setup.lease.epoch());
            if let Err(error) = synced {
                assert_eq!(error.kind, StorageErrorKind::Io, "{error}");
                assert!(error.detail.contains("is not known"), "{error}");
                setup.coverage.add("jobs.sync_of_names_unknown");
                return setup.device.close();
            }
            if setup.handover.left_count() > 0 {
                setup.coverage.add("jobs.left_tables");
            }
            setup.finish_here(true);
        }
    }
}

/// The job is cancelled in the middle.
fn job_is_cancelled(runtime: &Runtime, setup: &mut Setup, rng: &mut Rng) {
    slow_down(setup);
    let cancel = CancelToken::new();
    let context = ExecContext {
        cancel: cancel.clone(),
        ..setup.context()
    };
    let mut job = setup.work.job.clone();
    job.output.attempt = 1;
    let after = Duration::from_millis(rng.below(1500));
    let executor = DeviceExecutor::new("device", &setup.device);
    let attempt = move || executor.run(&job, &context);
    let attempt = runtime.spawn("attempt", attempt).expect("a task");
    runtime.sleep(after);
    cancel.cancel();
    let begun = runtime.now();
    let ended = attempt.join().expect("the attempt's task");
    let took = runtime.now().since(begun);
    assert!(took <= Duration::from_secs(2), "a cancel took {took:?}");
    match ended {
        Ok(outcome) => setup.holds(&outcome, false),
        Err(ExecError::Cancelled) => {
            setup.coverage.add("jobs.cancelled");
            runtime.sleep(Duration::from_secs(10));
            setup.finish_here(false);
        }
        Err(error) => panic!("{error}"),
    }
}
