//! Jobs that are lent to a device: the tables lie on the host, a job's inputs are sent, and its
//! outputs are fetched. The device is killed or loses power at any message, its storage or that of
//! the host fails, a name of an output is taken, the link is slow, is cut, freezes and carries
//! requests twice, the host is cut off, and jobs are cancelled.
//!
//! Whatever happens, an outcome has the tables of the host's cores, and they are durable when it is
//! returned. An attempt that failed leaves nothing on the host, and deletes no file that it did not
//! make. At no time does the device keep more bytes than it allows, and half a minute after the end
//! of the session it keeps nothing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{ClientOptions, Device, DeviceExecutor, FolderWanted, ServerOptions};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Act, Ghost, Machine, MachineOptions, Tap, address, draw_losses};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::{
    CrashPolicy, JoinHandle, Lease, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::TableError;
use siltstone_table::exec::{
    CancelToken, CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap,
};
use siltstone_table::job::outcome::Outcome;

use super::jobs::{Faults, MOMENTS, Rules, Work, add_rule, faulty_later, work};
use super::rebuilds::expected;
use super::tables::files;
use super::{bad_link, good_link, simulated};

/// The requests at which the device is killed.
const REQUESTS: [&str; 12] = [
    "hello",
    "lease",
    "create",
    "append",
    "open",
    "begin_job",
    "wait_job",
    "read_outcome",
    "read",
    "rename",
    "forget_job",
    "close",
];

/// The location of the inputs, as `table_input` describes them.
const LOCATION: u32 = 0;

/// After this time without the device, an attempt has failed. The rule says ten seconds, and an
/// attempt to connect that is under way takes a few more.
const GIVEN_UP: Duration = Duration::from_secs(25);

/// A job, and the tables that the host's cores make of it.
struct Ordered {
    work: Work,
    expected: Vec<Vec<u8>>,
}

impl Ordered {
    fn new(runtime: &Runtime, entries: u16, input: &str) -> Ordered {
        let mut work = work(runtime, entries);
        let expected = expected(runtime, &work);
        work.job.inputs[0].name = input.to_string();
        Ordered { work, expected }
    }

    fn input(&self) -> &str {
        &self.work.job.inputs[0].name
    }

    fn input_bytes(&self) -> u64 {
        self.work.input.len() as u64
    }

    fn output_bytes(&self) -> u64 {
        self.expected.iter().map(|table| table.len() as u64).sum()
    }
}

/// How many bytes of tables the device keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    /// Too few for the larger job.
    TooLittle,
    /// Enough for the larger job and a third of another one, so that tables are dropped to make
    /// room.
    OneJob,
    /// Enough for all jobs.
    Plenty,
}

impl Keep {
    fn draw(rng: &mut Rng) -> Keep {
        match rng.below(10) {
            0 => Keep::TooLittle,
            1..=4 => Keep::OneJob,
            _ => Keep::Plenty,
        }
    }

    fn bytes(self, larger: &Ordered) -> u64 {
        match self {
            Keep::TooLittle => 2 * larger.input_bytes() - 1,
            Keep::OneJob => (larger.input_bytes() + larger.output_bytes()) * 4 / 3,
            Keep::Plenty => 64 << 20,
        }
    }
}

/// An attempt that runs.
type Attempt = JoinHandle<Result<Outcome, ExecError>>;

struct Setup {
    runtime: Runtime,
    network: MemoryNetwork,
    tap: Tap,
    machine: Machine,
    /// The storages of the device's folders, and the rules for folders that it opens later.
    faults: Faults,
    rules: Rules,
    keep: Keep,
    keep_bytes: u64,
    device: Arc<Device>,
    executor: Arc<DeviceExecutor>,
    /// The host's folder, and the same folder with faults, as attempts see it.
    own: MemoryStorage,
    own_faults: FaultStorage,
    lease: Box<dyn Lease>,
    /// A job, and a smaller one.
    ordered: [Ordered; 2],
    attempts: u64,
    /// The names of the tables of all outcomes.
    made: BTreeSet<String>,
    coverage: Coverage,
}

impl Setup {
    fn new(runtime: &Runtime, seed: u64, acts: &[Act], rng: &mut Rng) -> Setup {
        let entries = 300 + rng.below(1500) as u16;
        let ordered = [
            Ordered::new(runtime, entries, "large"),
            Ordered::new(runtime, entries / 2, "small"),
        ];
        let keep = Keep::draw(rng);
        let keep_bytes = keep.bytes(&ordered[0]);
        let network = MemoryNetwork::new(runtime);
        network.set_faults(good_link());
        let tap = Tap::new(runtime, &network, seed, acts);
        let (faults, rules) = (Faults::default(), Rules::default());
        let options = faulty_later(runtime, &faults, &rules);
        let options = MachineOptions {
            server: ServerOptions {
                keep_bytes,
                ..options.server
            },
            ..options
        };
        let machine = Machine::start(runtime, &tap, options);
        let client = ClientOptions {
            time_limit: Duration::from_secs(60),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(tap.clone());
        let device = Device::connect(runtime, link, address(), FolderWanted::None, client);
        let device = device.expect("a session");
        let own = MemoryStorage::named(runtime, "host");
        let lease = own.lease("store").expect("free");
        for one in &ordered {
            let file = own.create(lease.epoch(), one.input()).expect("free");
            file.append(&[&one.work.input]).expect("room");
            file.sync().expect("sound");
        }
        own.sync_dir(lease.epoch()).expect("sound");
        Setup {
            executor: Arc::new(DeviceExecutor::new("device", &device)),
            own_faults: FaultStorage::new(Arc::new(own.clone()), runtime),
            runtime: runtime.clone(),
            network,
            tap,
            machine,
            faults,
            rules,
            keep,
            keep_bytes,
            device,
            own,
            lease,
            ordered,
            attempts: 0,
            made: BTreeSet::new(),
            coverage: Coverage::default(),
        }
    }

    /// Adds a rule to the device's storage, for folders that it opens later, too.
    fn add_rule(&self, rule: Rule) {
        add_rule(&self.faults, rule.clone());
        self.rules
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .push(rule);
    }

    /// Makes the device slow, so that something can happen in the middle of a job.
    fn slow_down(&self) {
        let delay = Fault::Delay(Duration::from_millis(30));
        self.add_rule(Rule::on(OpKind::Append, delay).ending(".tbl").for_good());
    }

    /// The context of an attempt.
    fn context(&self) -> ExecContext {
        let storage: Arc<dyn Storage> = Arc::new(self.own_faults.clone());
        let mut inputs = InputMap::new();
        for one in &self.ordered {
            let table = storage.open(one.input()).expect("the input");
            inputs.add_table(LOCATION, one.input(), table);
        }
        let (runtime, epoch) = (self.runtime.clone(), self.lease.epoch());
        ExecContext::new(runtime, Arc::new(inputs), storage, epoch)
    }

    /// Starts the next attempt of one of the jobs.
    fn start(&mut self, which: usize, cancel: &CancelToken) -> Attempt {
        self.attempts += 1;
        let mut job = self.ordered[which].work.job.clone();
        job.output.attempt = self.attempts;
        let handover = Arc::new(Handover::new(&self.runtime));
        let context = ExecContext {
            cancel: cancel.clone(),
            handover: Some(Arc::clone(&handover)),
            ..self.context()
        };
        let executor = Arc::clone(&self.executor);
        let attempt = move || {
            let ended = executor.run(&job, &context);
            let left = handover.left_count();
            assert_eq!(left, 0, "an attempt of lent work leaves nothing to others");
            ended
        };
        self.runtime.spawn("attempt", attempt).expect("a task")
    }

    /// Waits for this time, or for the end of the attempt.
    fn watch(&self, attempt: &Attempt, time: Duration) {
        let until = self.runtime.now() + time;
        while !attempt.is_finished() && self.runtime.now() < until {
            self.check_kept();
            self.runtime.sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end of an attempt.
    fn end_of(&self, attempt: Attempt) -> Result<Outcome, ExecError> {
        self.watch(&attempt, Duration::from_secs(600));
        assert!(
            attempt.is_finished(),
            "an attempt takes more than ten minutes"
        );
        attempt.join().expect("the attempt's task")
    }

    /// Runs the next attempt of one of the jobs.
    fn run(&mut self, which: usize) -> Result<Outcome, ExecError> {
        let attempt = self.start(which, &CancelToken::new());
        self.end_of(attempt)
    }

    /// The bytes of tables that were sent so far.
    fn sent_bytes(&self) -> u64 {
        self.executor.sent_table_bytes()
    }

    /// Whether the device declined a job because other tables take its room.
    fn lacks_room(&self, error: &ExecError) -> bool {
        let lacks = |reason: &str| reason.contains("no room for the tables");
        self.keep == Keep::OneJob
            && matches!(error, ExecError::Declined { reason } if lacks(reason))
    }

    /// Checks that the device keeps no more bytes than it allows.
    fn check_kept(&self) {
        for (name, folder) in self.machine.scratch_folders() {
            let objects = folder.list().expect("a list");
            let bytes: u64 = objects.iter().map(|object| object.len).sum();
            let most = self.keep_bytes;
            assert!(
                bytes <= most,
                "{name} has {bytes} bytes, and may have {most}"
            );
        }
    }

    /// Checks that the device keeps inputs and outputs under names of their own, and nothing that
    /// an attempt left.
    fn keeps_only_tables(&self) {
        self.keeps_only_tables_and(|_| false);
    }

    /// The same, but objects with some names may be left.
    fn keeps_only_tables_and(&self, may_be_left: impl Fn(&str) -> bool) {
        self.check_kept();
        for (folder_name, folder) in self.machine.scratch_folders() {
            for object in folder.list().expect("a list") {
                let name = &object.name;
                if may_be_left(name) {
                    continue;
                }
                assert!(name.starts_with("t-"), "{name} is left in {folder_name}");
                let bytes = folder.read_small(name).expect("its bytes");
                let is_of =
                    |one: &Ordered| one.work.input == bytes || one.expected.contains(&bytes);
                assert!(self.ordered.iter().any(is_of), "{name} in {folder_name}");
            }
        }
    }

    /// Checks that the host's folder has the inputs and the tables of all outcomes, and nothing
    /// else.
    fn nothing_is_left(&self, when: &str) {
        let listed = self.own.list().expect("a list").into_iter();
        let listed: BTreeSet<String> = listed.map(|object| object.name).collect();
        let inputs = self.ordered.iter().map(|one| one.input().to_string());
        let wanted: BTreeSet<String> = inputs.chain(self.made.iter().cloned()).collect();
        assert_eq!(listed, wanted, "{when}");
    }

    /// Checks that an outcome has the tables of the host's cores, now and after a loss of power.
    fn is_as_expected(&mut self, which: usize, outcome: &Outcome) {
        let expected = &self.ordered[which].expected;
        assert!(files(&self.own, outcome) == *expected, "other tables");
        let durable = self.own.crash(CrashPolicy::LoseUnsynced);
        assert!(files(&durable, outcome) == *expected, "not durable");
        let names = outcome.tables.iter().map(|table| table.name.clone());
        self.made.extend(names);
    }

    /// Checks an outcome, and that nothing else is left.
    fn holds(&mut self, which: usize, outcome: &Outcome) {
        self.is_as_expected(which, outcome);
        self.nothing_is_left("after an outcome");
    }

    /// Runs a job on the host.
    fn finish_here(&mut self, which: usize) {
        self.attempts += 1;
        let mut job = self.ordered[which].work.job.clone();
        job.output.attempt = self.attempts;
        let outcome = CpuExecutor.run(&job, &self.context());
        self.holds(which, &outcome.expect("a sound job"));
    }

    /// Runs a job on the device until it is done. The host may learn only from a failed attempt
    /// that the device was started again and has forgotten what was sent.
    fn again(&mut self, which: usize) {
        let mut failed = Vec::new();
        for _ in 0..4 {
            match self.run(which) {
                Ok(outcome) => {
                    self.coverage.add("lent.done_again");
                    return self.holds(which, &outcome);
                }
                Err(error) if self.lacks_room(&error) => return self.finish_here(which),
                Err(error) => {
                    assert!(!is_fenced(&error), "{error}");
                    failed.push(error.to_string());
                }
            }
            self.nothing_is_left("after another attempt");
            self.runtime.sleep(Duration::from_secs(5));
        }
        panic!("the device runs no lent jobs any more: {failed:?}");
    }

    /// Ends the session. After half a minute without a word the device removes what a session has
    /// left that it could not hear the end of.
    fn end(&mut self) {
        self.tap.end();
        self.network.set_faults(good_link());
        self.executor.close();
        self.device.close();
        self.runtime.sleep(Duration::from_secs(60));
        let left: Vec<String> = self
            .machine
            .scratch_folders()
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        assert!(left.is_empty(), "{left:?} are left on the device");
        self.nothing_is_left("after the session");
        assert_eq!(self.machine.watch().wrong(), Vec::<String>::new());
        self.coverage.merge(&self.tap.coverage());
    }
}

/// Whether an attempt failed as if another host had the store. In these trials none has.
fn is_fenced(error: &ExecError) -> bool {
    matches!(
        error,
        ExecError::Failed(TableError::Storage(error)) if error.kind == StorageErrorKind::Fenced
    )
}

/// Whether an attempt failed because the device could not be reached.
fn is_unreachable(error: &ExecError) -> bool {
    matches!(
        error,
        ExecError::Failed(TableError::Storage(error))
            if error.kind == StorageErrorKind::Unreachable
    )
}

pub fn trial(seed: u64) -> Coverage {
    simulated(seed, 10_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x1E57);
        let case = rng.below(10);
        let acts: &[Act] = match case {
            0 => &[Act::Cut, Act::CutWithin, Act::Double],
            _ => &[],
        };
        let mut setup = Setup::new(&runtime, seed, acts, &mut rng);
        match case {
            _ if setup.keep == Keep::TooLittle => job_is_too_large(&mut setup),
            0 => link_has_faults(&mut setup, seed, &mut rng),
            1 => jobs_are_done(&mut setup),
            2 => name_is_taken(&mut setup, &mut rng),
            3 => sync_fails(&mut setup, &mut rng),
            4 => job_is_cancelled(&mut setup, &mut rng),
            5 => host_is_cut_off(&mut setup, &mut rng),
            6 => two_run_at_once(&mut setup, &mut rng),
            _ => device_is_killed(&mut setup, &mut rng),
        }
        setup.end();
        setup.coverage
    })
}

/// A job that does not fit is declined before anything is sent. A smaller one is done.
fn job_is_too_large(setup: &mut Setup) {
    setup.tap.end();
    match setup.run(0) {
        Err(ExecError::Declined { reason }) => {
            assert!(reason.contains("the device keeps"), "{reason}");
        }
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("a job that does not fit was done"),
    }
    setup.coverage.add("lent.declined");
    assert_eq!(setup.sent_bytes(), 0, "nothing was sent");
    setup.nothing_is_left("after a job was declined");
    setup.finish_here(0);
    let outcome = setup.run(1).expect("a job that fits");
    setup.holds(1, &outcome);
}

/// Tables that were sent or made are found by their digest, as long as there is room for them.
fn jobs_are_done(setup: &mut Setup) {
    let input = setup.ordered[0].input_bytes();
    let outcome = setup.run(0).expect("a sound job");
    setup.coverage.add("lent.done");
    setup.holds(0, &outcome);
    assert_eq!(setup.sent_bytes(), input);
    if setup.keep == Keep::Plenty {
        let outcome = setup.run(0).expect("a sound job");
        setup.holds(0, &outcome);
        assert_eq!(setup.sent_bytes(), input, "the input was sent again");
        setup.coverage.add("lent.found_again");
    }
    let before = input + setup.ordered[1].input_bytes();
    match setup.run(1) {
        Ok(outcome) => setup.holds(1, &outcome),
        Err(error) => assert!(setup.lacks_room(&error), "{error}"),
    }
    assert_eq!(setup.sent_bytes(), before, "only its own input was sent");
    match setup.run(0) {
        Ok(outcome) => setup.holds(0, &outcome),
        Err(error) => assert!(setup.lacks_room(&error), "{error}"),
    }
    match setup.keep {
        Keep::Plenty => assert_eq!(setup.sent_bytes(), before, "all of it was there"),
        _ if setup.sent_bytes() > before => setup.coverage.add("lent.sent_again"),
        _ => {}
    }
    setup.runtime.sleep(Duration::from_secs(5));
    setup.keeps_only_tables();
    setup.nothing_is_left("after all jobs");
}

/// The name of an output is already taken on the host, which can happen after the number of an
/// attempt was used twice.
fn name_is_taken(setup: &mut Setup, rng: &mut Rng) {
    let ordered = &setup.ordered[0];
    let mut job = ordered.work.job.clone();
    job.output.attempt = setup.attempts + 1;
    let name = job.table_name(0, rng.index(ordered.expected.len()) as u32);
    let epoch = setup.lease.epoch();
    let file = setup.own.create(epoch, &name).expect("free");
    file.append(&[b"somebody else's"]).expect("room");
    file.sync().expect("sound");
    setup.made.insert(name.clone());
    let error = setup.run(0).map(drop).expect_err("a name is taken");
    assert!(error.to_string().contains(&name), "{error}");
    setup.coverage.add("lent.name_was_taken");
    setup.nothing_is_left("after a name was taken");
    let bytes = setup.own.read_small(&name).expect("its bytes");
    assert_eq!(bytes, b"somebody else's", "{name}");
    drop(file);
    setup.own.delete(epoch, &name).expect("it is there");
    setup.made.remove(&name);
    setup.again(0);
}

/// A sync of a table fails, on the device or on the host.
fn sync_fails(setup: &mut Setup, rng: &mut Rng) {
    let nth = rng.below(setup.ordered[0].expected.len() as u64);
    let fault = Fault::Fail(StorageErrorKind::Io);
    let rule = Rule::on(OpKind::Sync, fault).ending(".tbl").nth(nth);
    if rng.chance(50) {
        setup.add_rule(rule);
        setup.coverage.add("lent.device_sync_failed");
    } else {
        setup.own_faults.add(rule);
        setup.coverage.add("lent.host_sync_failed");
    }
    let error = setup.run(0).map(drop).expect_err("a sync failed");
    assert!(matches!(error, ExecError::Failed(_)), "{error}");
    setup.nothing_is_left("after a failed sync");
    setup.runtime.sleep(Duration::from_secs(5));
    setup.keeps_only_tables();
    setup.again(0);
}

/// The device is killed, or its machine loses power, in the middle of a job. Then it is started
/// again.
fn device_is_killed(setup: &mut Setup, rng: &mut Rng) {
    setup.slow_down();
    let mut time = Duration::from_millis(rng.below(1500));
    if rng.chance(70) {
        let (moment, name) = (*rng.pick(&MOMENTS), *rng.pick(&REQUESTS));
        setup
            .tap
            .aim(Act::KillDevice, moment, name, 1 + rng.below(6));
        time = Duration::from_secs(600);
    }
    let attempt = setup.start(0, &CancelToken::new());
    let until = setup.runtime.now() + time;
    while setup.machine.is_alive() && !attempt.is_finished() && setup.runtime.now() < until {
        setup.check_kept();
        setup.runtime.sleep(Duration::from_millis(5));
    }
    setup.tap.end();
    if rng.chance(50) {
        let report = setup.machine.lose_power(draw_losses(rng));
        setup.coverage.take_crash(&report);
        setup.coverage.add("lent.power_lost");
    } else {
        setup.machine.kill();
    }
    let pause = Duration::from_millis(rng.below(300));
    setup.runtime.sleep(pause);
    setup.machine.start_again();
    match setup.end_of(attempt) {
        Ok(outcome) => setup.holds(0, &outcome),
        Err(error) => {
            assert!(matches!(error, ExecError::Failed(_)), "{error}");
            assert!(!is_fenced(&error), "{error}");
            setup.coverage.add("lent.killed");
            setup.nothing_is_left("after the device was killed");
        }
    }
    setup.again(0);
}

/// The job is cancelled in the middle.
fn job_is_cancelled(setup: &mut Setup, rng: &mut Rng) {
    setup.slow_down();
    let cancel = CancelToken::new();
    let attempt = setup.start(0, &cancel);
    setup.watch(&attempt, Duration::from_millis(rng.below(1500)));
    cancel.cancel();
    let begun = setup.runtime.now();
    let ended = setup.end_of(attempt);
    let took = setup.runtime.now().since(begun);
    assert!(took <= Duration::from_secs(2), "a cancel took {took:?}");
    match ended {
        Ok(outcome) => setup.holds(0, &outcome),
        Err(ExecError::Cancelled) => {
            setup.coverage.add("lent.cancelled");
            setup.nothing_is_left("after a cancel");
        }
        Err(error) => panic!("{error}"),
    }
    setup.runtime.sleep(Duration::from_secs(10));
    // A cancel does not wait for deletions. What is left counts as kept, and goes when its room is
    // needed.
    let mut job = setup.ordered[0].work.job.clone();
    job.output.attempt = setup.attempts;
    setup.keeps_only_tables_and(|name| (0..100).any(|number| job.table_name(0, number) == name));
    setup.again(0);
}

/// The link is slow, is cut, freezes, or carries requests twice or late. Only a link that freezes
/// may make an attempt fail.
fn link_has_faults(setup: &mut Setup, seed: u64, rng: &mut Rng) {
    if rng.chance(50) {
        setup.slow_down();
    }
    let mut faults = good_link();
    match rng.below(3) {
        0 => {}
        1 => {
            faults.bytes_per_s = 200_000;
            setup.coverage.add("lent.slow_link");
        }
        _ => {
            faults = bad_link(rng);
            faults.cut /= 8;
            faults.freeze /= 6;
            faults.stall_chance /= 6;
            setup.coverage.add("lent.bad_link");
        }
    }
    setup.network.set_faults(faults);
    let is_over = Arc::new(setup.runtime.mutex(false));
    let ghost = rng.chance(50).then(|| {
        let (rt, is_over) = (setup.runtime.clone(), is_over.clone());
        let mut ghost = Ghost::new(&setup.runtime, &setup.tap, seed);
        let haunt = move || {
            while !*is_over.lock() {
                ghost.haunt(20);
                rt.sleep(Duration::from_millis(20));
            }
            ghost.into_coverage()
        };
        setup.runtime.spawn("ghost", haunt).expect("a task")
    });
    for which in [0, 1, 0] {
        match setup.run(which) {
            Ok(outcome) => setup.holds(which, &outcome),
            Err(error) => {
                // While the device still runs such an attempt, it may be too busy for another one.
                let may_fail = faults.freeze > 0;
                assert!(may_fail || setup.lacks_room(&error), "{error}");
                setup.nothing_is_left("after a failure of the link");
            }
        }
    }
    setup.coverage.add("lent.link_faults");
    *is_over.lock() = true;
    if let Some(ghost) = ghost {
        let reached = ghost.join().expect("the ghost's task");
        setup.coverage.merge(&reached);
    }
    setup.tap.end();
    setup.network.set_faults(LinkFaults::default());
    setup.again(1);
}

/// The host is cut off for a while, and what it sent meanwhile arrives later. If that takes a few
/// seconds, the attempt goes on. If it takes longer, the attempt fails.
fn host_is_cut_off(setup: &mut Setup, rng: &mut Rng) {
    setup.slow_down();
    let attempt = setup.start(0, &CancelToken::new());
    setup.watch(&attempt, Duration::from_millis(rng.below(700)));
    let is_finished = attempt.is_finished();
    setup.tap.hold();
    let is_short = rng.chance(40);
    let time = match is_short {
        true => Duration::from_millis(200 + rng.below(3800)),
        false => GIVEN_UP + Duration::from_millis(rng.below(20_000)),
    };
    let begun = setup.runtime.now();
    setup.watch(&attempt, time.min(GIVEN_UP));
    let has_ended = attempt.is_finished();
    assert!(
        is_short || has_ended,
        "an attempt goes on without its device"
    );
    let passed = setup.runtime.now().since(begun);
    setup.runtime.sleep(time.saturating_sub(passed));
    setup.tap.let_go();
    setup.coverage.add("lent.cut_off");
    match setup.end_of(attempt) {
        Ok(outcome) => setup.holds(0, &outcome),
        Err(error) => {
            assert!(
                !is_short && !is_finished && is_unreachable(&error),
                "{error}"
            );
            setup.coverage.add("lent.gave_up");
            setup.nothing_is_left("after the host was cut off");
        }
    }
    setup.again(0);
}

/// Two attempts run at the same time. If both need one table, only one of them sends it.
fn two_run_at_once(setup: &mut Setup, rng: &mut Rng) {
    setup.slow_down();
    let jobs = [0, rng.index(2)];
    let attempts = jobs.map(|which| setup.start(which, &CancelToken::new()));
    let mut done = 0;
    let ended = attempts.map(|attempt| setup.end_of(attempt));
    for (which, ended) in jobs.into_iter().zip(ended) {
        match ended {
            Ok(outcome) => {
                done += 1;
                setup.is_as_expected(which, &outcome);
            }
            Err(ExecError::Declined { reason }) if reason.contains("another job is sending") => {
                setup.coverage.add("lent.was_busy");
            }
            Err(error) => assert!(setup.lacks_room(&error), "{error}"),
        }
    }
    assert!(done > 0 || setup.keep == Keep::OneJob, "both were declined");
    setup.nothing_is_left("after two attempts at once");
    if setup.keep == Keep::Plenty {
        let inputs: BTreeSet<usize> = jobs.into_iter().collect();
        let inputs = inputs
            .into_iter()
            .map(|which| setup.ordered[which].input_bytes());
        assert_eq!(
            setup.sent_bytes(),
            inputs.sum::<u64>(),
            "each input is sent once"
        );
    }
    setup.coverage.add("lent.two_at_once");
    setup.runtime.sleep(Duration::from_secs(5));
    setup.keeps_only_tables();
    setup.again(0);
}
