//! Stores whose folder is on a device: the host is killed, the device is killed, its machine loses
//! power, and the link between them is slow, is cut and freezes, all at any message. What was not
//! synced when the power is lost is then lost, kept, torn or reordered.
//!
//! The oracle: each key has a counter. A read may not return a value below the last one whose write
//! was acknowledged as synced, nor above the last one that was tried. An outage alone never poisons
//! a store. At the end, without faults, a new open finds everything, the store is sound, and no
//! file is left over. In some runs the host decides what is kept and the device makes the tables.
//! In others, a job that the device has failed with is never given to the host. In some lives
//! nothing is synced for a long time, and some hosts keep so little of what was not synced that
//! they cannot write it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::check::{CheckStorages, check};
use siltstone::{Batch, Components, ErrorKind, Options, Store, Value, WriteOptions};
use siltstone_device::{ClientOptions, Device, DeviceExecutor, FolderWanted, SeparatedExecutor};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Act, Ghost, Machine, MachineOptions, Tap, address, draw_losses};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::{Mutex, OpKind, Runtime, Storage, StorageErrorKind};

use super::{bad_link, good_link, simulated};

/// The schedule in which the host runs all compactions, and leaves the values on the device.
const SEPARATED: &str = "host-only, separated-transfer=on";

/// The policy that `silt` sets for stores on devices.
const NEAR_DATA: &str = "near-data";

const SCHEDULES: [&str; 6] = [
    "default",
    "default, fallback=off",
    SEPARATED,
    NEAR_DATA,
    NEAR_DATA,
    "near-data, fallback=off",
];

/// What happens in a run.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    faults: LinkFaults,
    acts: Vec<Act>,
    /// The percentage of the device's kills in which its machine loses power.
    power_percent: u64,
    /// Whether the device's storage fails syncs of tables.
    failing_syncs: bool,
    /// How many bytes of a file the client keeps.
    tail_bytes: usize,
    /// After how many bytes a file is synced although nobody asked for it; 0 means never.
    sync_bytes: usize,
    has_ghost: bool,
    /// The number of lives of the host, and the number of its operations in each life.
    lives: (usize, usize),
    /// The schedule of the store, as text.
    schedule: &'static str,
}

impl Plan {
    fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x5708);
        let mut acts = Vec::new();
        let mut power_percent = 0;
        let mut faults = good_link();
        match rng.below(6) {
            0 => acts.push(Act::KillHost),
            1 => acts.push(Act::KillDevice),
            2 | 3 => {
                acts.push(Act::KillDevice);
                power_percent = *rng.pick(&[40, 100]);
            }
            4 => {
                acts.extend([Act::KillHost, Act::KillDevice, Act::Cut, Act::Double]);
                power_percent = 30;
            }
            _ => {
                acts.extend([Act::Cut, Act::CutWithin, Act::Double]);
                faults = bad_link(&mut rng);
                faults.cut /= 8;
                faults.freeze /= 6;
                faults.stall_chance /= 6;
            }
        }
        Plan {
            seed,
            faults,
            acts,
            power_percent,
            failing_syncs: rng.chance(20),
            tail_bytes: *rng.pick(&[4 << 10, 4 << 10, 32 << 20]),
            // This uses random numbers of its own, so that earlier seeds do the same as before.
            sync_bytes: *Rng::new(seed ^ 0x5A11).pick(&[0, 1 << 10, 8 << 20]),
            has_ghost: rng.chance(40),
            lives: (3, 150),
            // This uses random numbers of its own, so that earlier seeds do the same as before.
            schedule: SCHEDULES[Rng::new(seed ^ 0x5CED).below(6) as usize],
        }
    }

    /// Whether the host may leave values on the device.
    fn may_separate(&self) -> bool {
        self.schedule == SEPARATED || self.is_near_data()
    }

    fn is_near_data(&self) -> bool {
        self.schedule.starts_with(NEAR_DATA)
    }

    fn has_fallback(&self) -> bool {
        !self.schedule.ends_with("fallback=off")
    }

    fn kills_device(&self) -> bool {
        self.acts.contains(&Act::KillDevice)
    }

    /// If the host may leave values on the device, the first kill of most runs is at a request that
    /// only such jobs make, because these are rare among all requests.
    fn aim(&self, tap: &Tap) {
        let mut rng = Rng::new(self.seed ^ 0x5EBA);
        let is_kill = |act: &&Act| matches!(act, Act::KillHost | Act::KillDevice);
        let kills: Vec<Act> = self.acts.iter().filter(is_kill).copied().collect();
        if kills.is_empty() || !self.may_separate() || !rng.chance(90) {
            return;
        }
        let act = *rng.pick(&kills);
        let moment = *rng.pick(&super::jobs::MOMENTS);
        match rng.chance(35) {
            true => tap.aim(act, moment, "begin_rebuild", 1 + rng.below(3)),
            false => tap.aim(act, moment, "survivors", 1 + rng.below(10)),
        }
    }
}

/// What the oracle knows.
#[derive(Default)]
struct Known {
    /// For each key, the last value that was tried.
    tried: BTreeMap<u32, u64>,
    /// For each key, the last value that was acknowledged as synced.
    synced: BTreeMap<u32, u64>,
    writes: u64,
    coverage: Coverage,
}

type Shared = Arc<Mutex<Known>>;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

fn options(schedule: &str) -> Options {
    let mut options = Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        l0_trigger_count: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 8 << 20,
        block_bytes: 1 << 10,
        block_cache_bytes: 1 << 20,
        ..Options::default()
    };
    let value = Value::from(schedule);
    options.set("schedule", &value).expect("a schedule");
    options
}

type Opened = (Arc<Device>, Store, Arc<SeparatedExecutor>);

/// Opens the store on the device, or says why it cannot be opened now.
fn open(runtime: &Runtime, tap: &Tap, plan: &Plan) -> Result<Opened, String> {
    let folder = FolderWanted::Named {
        name: "db".into(),
        create: true,
    };
    let network: Arc<dyn Network> = Arc::new(tap.clone());
    let client = ClientOptions {
        time_limit: Duration::from_secs(20),
        lease_wait: Duration::from_secs(40),
        tail_bytes: plan.tail_bytes,
        sync_bytes: plan.sync_bytes,
        ..ClientOptions::default()
    };
    let device = Device::connect(runtime, network, address(), folder, client);
    let device = device.map_err(|e| e.to_string())?;
    let mut components = Components::on(device.storage(), runtime.clone());
    let executor = DeviceExecutor::new("device", &device);
    components.executors.push(Arc::new(executor));
    let separated = SeparatedExecutor::new(&device).always().cut_into(10, 64);
    let separated = Arc::new(separated);
    if plan.may_separate() {
        components.separated = Some(separated.clone());
    }
    match Store::open_with(components, options(plan.schedule)) {
        Ok(store) => Ok((device, store, separated)),
        Err(error) => {
            device.close();
            match error.kind() {
                // `Closed`: a file that the open had created is gone because of a power loss.
                ErrorKind::Unreachable
                | ErrorKind::Locked
                | ErrorKind::Poisoned
                | ErrorKind::Closed
                | ErrorKind::Io => Err(error.to_string()),
                // A file that the open had listed is gone, because the power was lost in between.
                ErrorKind::NotFound if plan.power_percent > 0 => Err(error.to_string()),
                kind => panic!("the open found {kind:?}: {error}"),
            }
        }
    }
}

/// Compares a value with what the oracle knows.
fn check_value(known: &Known, n: u32, value: Option<&[u8]>, when: &str) {
    let synced = known.synced.get(&n).copied().unwrap_or(0);
    let tried = known.tried.get(&n).copied().unwrap_or(0);
    let found = value.map_or(0, |value| {
        u64::from_le_bytes(value[..8].try_into().expect("eight bytes at least"))
    });
    assert!(
        (synced..=tried).contains(&found),
        "{when}: key {n} has {found}, {synced} was acknowledged, {tried} was tried"
    );
}

/// One life of the host: it opens the store, works, and closes it.
fn live(runtime: &Runtime, tap: &Tap, shared: &Shared, plan: &Plan, life: u64) {
    let Ok((device, store, separated)) = open(runtime, tap, plan) else {
        return;
    };
    let mut rng = Rng::new(plan.seed ^ 0x11FE ^ life << 32);
    let reach = |name: &str| shared.lock().coverage.add(name);
    let keyspace = store.default_keyspace().expect("the default keyspace");
    let is_quiet = rng.chance(40);
    if is_quiet {
        reach("stores.quiet_life");
    }
    let unsynced_percent = if is_quiet { 97 } else { 33 };
    for _ in 0..plan.lives.1 {
        let n = rng.below(60) as u32;
        let result = match rng.below(20) {
            0..=12 => {
                let value = {
                    let mut known = shared.lock();
                    known.writes += 1;
                    let value = known.writes;
                    known.tried.insert(n, value);
                    value
                };
                let mut bytes = value.to_le_bytes().to_vec();
                bytes.resize(900, n as u8);
                let mut batch = Batch::new();
                batch.put(&keyspace, &key(n), &bytes).expect("a small put");
                let sync = !rng.chance(unsynced_percent);
                let written = store.write(&batch, WriteOptions { sync });
                if sync && written.is_ok() {
                    let mut known = shared.lock();
                    let synced = known.synced.entry(n).or_default();
                    *synced = (*synced).max(value);
                }
                written.map(drop)
            }
            13..=17 => match keyspace.get(&key(n)) {
                Ok(value) => {
                    check_value(&shared.lock(), n, value.as_deref(), "a read");
                    Ok(())
                }
                Err(error) => Err(error),
            },
            18 if !is_quiet => store.flush(),
            _ => {
                runtime.sleep(Duration::from_millis(rng.below(50)));
                Ok(())
            }
        };
        match result.map_err(|error| (error.kind(), error.to_string())) {
            Ok(()) => {}
            Err((ErrorKind::Unreachable | ErrorKind::Unsynced, _)) => reach("stores.outage"),
            Err((ErrorKind::Poisoned | ErrorKind::Io | ErrorKind::Closed, text)) => {
                // The device lost something that it cannot get back, so the store is opened again.
                assert!(!text.contains("damaged"), "{text}");
                assert!(
                    plan.kills_device(),
                    "an outage has poisoned the store: {text}"
                );
                reach("stores.poisoned");
                break;
            }
            Err((_, text)) => panic!("{text}"),
        }
    }
    let stats = store.stats();
    let jobs = stats.sides.iter().filter(|side| side.side == "device");
    let done = jobs.filter(|side| side.compaction_bytes_per_s.is_some());
    let (done, adopted) = (done.count() as u64, stats.counter("adopted_table_count"));
    {
        let coverage = &mut shared.lock().coverage;
        coverage.add_count("stores.job_done", done);
        coverage.add_count("stores.adopted", adopted);
        if !plan.has_fallback() {
            coverage.add_count("stores.job_without_fallback", done);
        }
        if plan.is_near_data() {
            coverage.add_count("stores.near_data_job", done);
        }
        coverage.add_count("stores.separated_job", separated.stats().job_count);
        coverage.add_count("stores.separated_failed", separated.stats().failed_count);
    }
    drop(keyspace);
    let _ = store.close();
    device.close();
}

/// The options of a machine on which syncs of tables fail, if the plan says so.
fn machine_options(runtime: &Runtime, plan: &Plan) -> MachineOptions {
    let (runtime, fails) = (runtime.clone(), plan.failing_syncs);
    let below = move |storage: Arc<dyn Storage>| -> Arc<dyn Storage> {
        if !fails {
            return storage;
        }
        let faults = FaultStorage::new(storage, &runtime);
        let fault = Fault::Fail(StorageErrorKind::Io);
        faults.add(Rule::on(OpKind::Sync, fault).ending(".tbl").nth(7));
        Arc::new(faults)
    };
    MachineOptions {
        below: Arc::new(below),
        ..MachineOptions::default()
    }
}

/// Runs the lives of the host. The device is restarted when it was killed.
fn lives(
    runtime: &Runtime,
    tap: &Tap,
    machine: &mut Machine,
    shared: &Shared,
    plan: &Plan,
    rng: &mut Rng,
) {
    // These random numbers are separate, so that everything else in a seed stays as it was.
    let mut losses = Rng::new(plan.seed ^ 0x105E);
    for life in 0..plan.lives.0 {
        let (tap_of, shared_of, plan_of) = (tap.clone(), shared.clone(), plan.clone());
        let host = move |rt: Runtime| live(&rt, &tap_of, &shared_of, &plan_of, life as u64);
        let host = runtime.spawn_process("host", host).expect("a process");
        tap.set_host(host.group());
        let begun = runtime.now();
        while runtime.is_group_alive(host.group()) {
            runtime.sleep(Duration::from_millis(5));
            assert!(
                runtime.now().since(begun) < Duration::from_secs(3600),
                "the host did not come to an end within an hour"
            );
            if !machine.is_alive() {
                let is_power = rng.chance(plan.power_percent);
                if is_power {
                    let report = machine.lose_power(draw_losses(&mut losses));
                    let coverage = &mut shared.lock().coverage;
                    coverage.add("stores.power_lost");
                    coverage.take_crash(&report);
                } else {
                    machine.kill();
                    shared.lock().coverage.add("stores.device_killed");
                }
                runtime.sleep(Duration::from_millis(1 + rng.below(200)));
                machine.start_again();
            }
        }
        if host.join().is_err() {
            shared.lock().coverage.add("stores.host_killed");
        }
    }
}

pub fn trial(seed: u64) -> Coverage {
    let plan = Plan::draw(seed);
    simulated(seed, 20_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x0D0);
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(plan.faults);
        let tap = Tap::new(&runtime, &network, seed, &plan.acts);
        plan.aim(&tap);
        let mut machine = Machine::start(&runtime, &tap, machine_options(&runtime, &plan));
        let shared: Shared = Arc::new(runtime.mutex(Known::default()));
        let is_over = Arc::new(runtime.mutex(false));
        let ghost = plan.has_ghost.then(|| {
            let (rt, is_over) = (runtime.clone(), is_over.clone());
            let mut ghost = Ghost::new(&runtime, &tap, seed);
            let haunt = move || {
                while !*is_over.lock() {
                    ghost.haunt(20);
                    rt.sleep(Duration::from_millis(20));
                }
                ghost.into_coverage()
            };
            runtime.spawn("ghost", haunt).expect("a task")
        });
        lives(&runtime, &tap, &mut machine, &shared, &plan, &mut rng);
        *is_over.lock() = true;
        // Without faults, everything is there.
        tap.end();
        network.set_faults(LinkFaults::default());
        if !machine.is_alive() {
            machine.kill();
            machine.start_again();
        }
        at_the_end(&runtime, &tap, &shared, &plan);
        let mut coverage = std::mem::take(&mut shared.lock().coverage);
        if plan.faults.freeze > 0 {
            coverage.add("stores.bad_link");
        }
        if let Some(ghost) = ghost {
            coverage.merge(&ghost.join().expect("the ghost's task"));
        }
        coverage.merge(&tap.coverage());
        assert_eq!(machine.watch().wrong(), Vec::<String>::new());
        coverage
    })
}

/// Opens the store once more, and checks everything.
fn at_the_end(runtime: &Runtime, tap: &Tap, shared: &Shared, plan: &Plan) {
    let mut tries = 0;
    let (session, store, _) = loop {
        match open(runtime, tap, plan) {
            Ok(opened) => break opened,
            Err(error) => {
                tries += 1;
                assert!(tries < 5, "the last open: {error}");
            }
        }
    };
    let keyspace = store.default_keyspace().expect("the default keyspace");
    for n in 0..60 {
        let value = keyspace.get(&key(n)).expect("a read");
        check_value(&shared.lock(), n, value.as_deref(), "at the end");
    }
    store.wait_until_idle().expect("the work that is left");
    drop(keyspace);
    store.close().expect("a close");
    let storage: Arc<dyn Storage> = session.storage();
    let report = check(&CheckStorages::on(&*storage), &mut |_| {}).expect("a check");
    assert!(report.is_sound(), "{report:?}");
    assert!(report.orphans.is_empty(), "{:?}", report.orphans);
    shared.lock().coverage.add("stores.no_orphans");
    session.close();
}
