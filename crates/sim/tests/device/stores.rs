//! Stores that use a device: the host is killed, the device is killed, the machine of either loses
//! power, and the link between them is slow, is cut and freezes, all at any message. What was not
//! synced when the power is lost is then lost, kept, torn or reordered. The device holds the whole
//! store, or only its tables, or it holds nothing and compactions are lent to it, or it works in
//! the folder of a store on its own machine (`store_plan.rs`).
//!
//! The oracle: each key has a counter. A read may not return a value below the last one whose write
//! was acknowledged as synced, nor above the last one that was tried. If the log lies on the host,
//! a kill loses no write that was acknowledged at all. An outage alone never poisons a store, and a
//! store that lies on the host notices nothing of its device. At the end, without faults, a new
//! open finds everything, the store is sound, and no file is left over on either side. At no time
//! does the device keep more bytes of lent tables than it allows.
//!
//! In some runs the host decides what is kept and the device makes the tables, or both make parts
//! of each compaction. In others, a job that the device has failed with is never given to the host.
//! Some devices have a GPU, which may fail at any call, flip a bit or hang. Their cores do what it
//! gives up.
//! In some lives nothing is synced for a long time, and some hosts keep so little of what was not
//! synced that they cannot write it again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use siltstone::check::{CheckStorages, check};
use siltstone::{Batch, Components, ErrorKind, Keyspace, Stats, Store, WriteOptions};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, SeparatedExecutor, SeparatedStats,
    ServerOptions,
};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::gpu::Gpu;
use siltstone_sim::remote::{Ghost, Machine, MachineOptions, Tap, address, draw_losses};
use siltstone_sim::rng::Rng;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::GroupId;
use siltstone_storage::{
    CrashPolicy, CrashReport, MemoryStorage, Mutex, OpKind, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::exec::Executor;

use super::simulated;
use super::store_plan::{Arrangement, Plan};

/// The number of keys.
const KEYS: u32 = 60;

/// The folder that a host and a device on one machine share.
const SHARED: &str = "shared";

/// What the oracle knows.
#[derive(Default)]
struct Known {
    /// For each key, the last value that was tried.
    tried: BTreeMap<u32, u64>,
    /// For each key, the last value that was acknowledged as synced.
    synced: BTreeMap<u32, u64>,
    /// For each key, the last value that was acknowledged without a sync, if the log lies on the
    /// host and the host's machine has not lost power since.
    acked: BTreeMap<u32, u64>,
    writes: u64,
    coverage: Coverage,
}

type Shared = Arc<Mutex<Known>>;

/// The GPUs that the processes of the device have opened so far.
type Gpus = Arc<Mutex<Vec<Arc<Gpu>>>>;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

/// Compares a value with what the oracle knows.
fn check_value(known: &Known, n: u32, value: Option<&[u8]>, when: &str) {
    let of = |values: &BTreeMap<u32, u64>| values.get(&n).copied().unwrap_or(0);
    let (least, tried) = (of(&known.synced).max(of(&known.acked)), of(&known.tried));
    let found = value.map_or(0, |value| {
        u64::from_le_bytes(value[..8].try_into().expect("eight bytes at least"))
    });
    assert!(
        (least..=tried).contains(&found),
        "{when}: key {n} has {found}, {least} was acknowledged, {tried} was tried"
    );
}

/// An open store, and what it uses of the device.
struct Opened {
    store: Store,
    device: Arc<Device>,
    executor: Arc<DeviceExecutor>,
    separated: Arc<SeparatedExecutor>,
}

/// The host, in all of its lives.
#[derive(Clone)]
struct Host {
    tap: Tap,
    plan: Plan,
    /// The host's own folder, for the parts of the store that lie there.
    own: MemoryStorage,
    shared: Shared,
}

impl Host {
    fn reach(&self, name: &str) {
        self.shared.lock().coverage.add(name);
    }

    /// The storages of log and manifest, and of the tables.
    fn storages(&self, device: &Arc<Device>) -> (Arc<dyn Storage>, Arc<dyn Storage>) {
        let own: Arc<dyn Storage> = Arc::new(self.own.clone());
        match self.plan.arrangement {
            Arrangement::Held => {
                let held = device.storage();
                (Arc::clone(&held), held)
            }
            Arrangement::Tables => (own, device.storage()),
            Arrangement::Lent | Arrangement::Shared => (Arc::clone(&own), own),
        }
    }

    /// Opens the store, or says why it cannot be opened now.
    fn open(&self, runtime: &Runtime) -> Result<Opened, String> {
        let plan = &self.plan;
        let folder = match plan.arrangement {
            Arrangement::Held | Arrangement::Tables => FolderWanted::Named {
                name: "db".into(),
                create: true,
            },
            Arrangement::Lent | Arrangement::Shared => FolderWanted::None,
        };
        let network: Arc<dyn Network> = Arc::new(self.tap.clone());
        let client = ClientOptions {
            time_limit: Duration::from_secs(20),
            lease_wait: Duration::from_secs(40),
            tail_bytes: plan.tail_bytes,
            sync_bytes: plan.sync_bytes,
            ..ClientOptions::default()
        };
        let device = Device::connect(runtime, network, address(), folder, client);
        let device = device.map_err(|e| e.to_string())?;
        let (root, tables) = self.storages(&device);
        let mut components = Components::on(root, runtime.clone());
        components.tables = tables;
        let executor = Arc::new(DeviceExecutor::new("device", &device));
        components.executors.push(executor.clone());
        let separated = SeparatedExecutor::new(&device).always().cut_into(10, 64);
        let separated = Arc::new(separated);
        if plan.may_separate() {
            components.separated = Some(separated.clone());
        }
        match Store::open_with(components, plan.options()) {
            Ok(store) => Ok(Opened {
                store,
                device,
                executor,
                separated,
            }),
            Err(error) => {
                device.close();
                assert!(
                    !plan.arrangement.is_local(),
                    "the open of a store on the host failed: {error}"
                );
                match error.kind() {
                    // `Closed`: a file that the open had created is gone because of a power loss.
                    ErrorKind::Unreachable
                    | ErrorKind::Locked
                    | ErrorKind::Poisoned
                    | ErrorKind::Closed
                    | ErrorKind::Io => Err(error.to_string()),
                    // A file that the open had listed is gone, because the power was lost in
                    // between.
                    ErrorKind::NotFound if plan.power_percent > 0 => Err(error.to_string()),
                    kind => panic!("the open found {kind:?}: {error}"),
                }
            }
        }
    }

    /// Writes the next value of a key.
    fn write(
        &self,
        store: &Store,
        keyspace: &Keyspace,
        n: u32,
        sync: bool,
    ) -> siltstone::Result<()> {
        let value = {
            let mut known = self.shared.lock();
            known.writes += 1;
            let value = known.writes;
            known.tried.insert(n, value);
            value
        };
        let mut bytes = value.to_le_bytes().to_vec();
        bytes.resize(900, n as u8);
        let mut batch = Batch::new();
        batch.put(keyspace, &key(n), &bytes).expect("a small put");
        store.write(
            &batch,
            WriteOptions {
                sync,
                ..WriteOptions::default()
            },
        )?;
        if sync || self.plan.arrangement.has_local_log() {
            let mut known = self.shared.lock();
            let known = &mut *known;
            let values = match sync {
                true => &mut known.synced,
                false => &mut known.acked,
            };
            let least = values.entry(n).or_default();
            *least = (*least).max(value);
        }
        Ok(())
    }

    /// Whether the host goes on after a call with this result. Otherwise the store is opened again.
    fn goes_on(&self, result: siltstone::Result<()>) -> bool {
        let Err(error) = result else {
            return true;
        };
        let (plan, text) = (&self.plan, error.to_string());
        assert!(
            !plan.arrangement.is_local(),
            "a store on the host failed: {text}"
        );
        match error.kind() {
            ErrorKind::Unreachable | ErrorKind::Unsynced => {
                self.reach("stores.outage");
                true
            }
            ErrorKind::Poisoned | ErrorKind::Io | ErrorKind::Closed => {
                // The device lost something that it cannot get back, so the store is opened again.
                assert!(!text.contains("damaged"), "{text}");
                assert!(
                    plan.kills_device(),
                    "an outage has poisoned the store: {text}"
                );
                self.reach("stores.poisoned");
                false
            }
            _ => panic!("{text}"),
        }
    }

    /// One life of the host: it opens the store, works, and closes it.
    fn live(&self, runtime: &Runtime, life: u64) {
        let Ok(opened) = self.open(runtime) else {
            return;
        };
        let Opened {
            store,
            device,
            executor,
            separated,
        } = opened;
        let plan = &self.plan;
        let mut rng = Rng::new(plan.seed ^ 0x11FE ^ life << 32);
        // These random numbers are separate, so that the others are the same in each arrangement.
        let mut pauses = Rng::new(plan.seed ^ 0x9A05 ^ life << 32);
        if plan.divides() {
            store.test_hooks().set_subjob_min_bytes(10_000);
        }
        let keyspace = store.default_keyspace().expect("the default keyspace");
        let is_quiet = rng.chance(40);
        if is_quiet {
            self.reach("stores.quiet_life");
        }
        let unsynced_percent = if is_quiet { 97 } else { 33 };
        let mut goes_on = true;
        for _ in 0..plan.lives.1 {
            if plan.pause_ms > 0 {
                runtime.sleep(Duration::from_millis(pauses.below(plan.pause_ms)));
            }
            let n = rng.below(KEYS.into()) as u32;
            let result = match rng.below(20) {
                0..=12 => {
                    let sync = !rng.chance(unsynced_percent);
                    self.write(&store, &keyspace, n, sync)
                }
                13..=17 => keyspace.get(&key(n)).map(|value| {
                    check_value(&self.shared.lock(), n, value.as_deref(), "a read");
                }),
                18 if !is_quiet => store.flush(),
                _ => {
                    runtime.sleep(Duration::from_millis(rng.below(50)));
                    Ok(())
                }
            };
            goes_on = self.goes_on(result);
            if !goes_on {
                break;
            }
        }
        // The device has more time for jobs.
        if goes_on && plan.pause_ms > 0 && pauses.chance(50) {
            self.goes_on(store.wait_until_idle());
        }
        self.note(&store.stats(), &separated.stats());
        drop(keyspace);
        let closed = store.close();
        if plan.arrangement.is_local() {
            closed.expect("a store on the host");
            executor.close();
        }
        device.close();
    }

    /// Counts what the sides have done in a life.
    fn note(&self, stats: &Stats, separated: &SeparatedStats) {
        let plan = &self.plan;
        let name = plan.arrangement.name();
        let sides = stats.sides.iter().filter(|side| side.side == "device");
        let done = sides
            .clone()
            .filter(|side| side.compaction_bytes_per_s.is_some());
        let (done, adopted) = (done.count() as u64, stats.counter("adopted_table_count"));
        let failed: u64 = sides.map(|side| side.failed_count).sum();
        let coverage = &mut self.shared.lock().coverage;
        coverage.add_count("stores.job_done", done);
        coverage.add_count(&format!("stores.{name}.job_done"), done);
        coverage.add_count(&format!("stores.{name}.job_failed"), failed);
        coverage.add_count("stores.adopted", adopted);
        if !plan.has_fallback() {
            coverage.add_count("stores.job_without_fallback", done);
            coverage.add_count(&format!("stores.{name}.job_without_fallback"), done);
        }
        if plan.is_near_data() {
            coverage.add_count("stores.near_data_job", done);
        }
        if plan.divides() {
            coverage.add_count("stores.divided_job", done);
        }
        if plan.reads_columns_first() {
            coverage.add("stores.columns_first");
        }
        coverage.add_count("stores.separated_job", separated.job_count);
        coverage.add_count("stores.separated_failed", separated.failed_count);
    }
}

/// The options of a machine on which syncs of tables fail, if the plan says so, and whose device
/// has a GPU, if it says so.
fn machine_options(runtime: &Runtime, plan: &Plan, gpus: &Gpus) -> MachineOptions {
    let (gpu, gpus) = (plan.gpu, Arc::clone(gpus));
    let preferred = move |runtime: &Runtime| -> Vec<Arc<dyn Executor>> {
        // A GPU that fails while it is opened is not used.
        let opened = gpu.and_then(|plan| Gpu::open(runtime, "gpu-0", plan).ok());
        let opened = opened.inspect(|gpu| gpus.lock().push(Arc::clone(gpu)));
        opened
            .into_iter()
            .map(|gpu| gpu as Arc<dyn Executor>)
            .collect()
    };
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
    let is_shared = plan.arrangement == Arrangement::Shared;
    MachineOptions {
        server: ServerOptions {
            keep_bytes: plan.keep_bytes,
            shared: is_shared.then(|| SHARED.into()).into_iter().collect(),
            ..MachineOptions::default().server
        },
        below: Arc::new(below),
        preferred: Arc::new(preferred),
        shared: is_shared.then_some(SHARED),
    }
}

/// A run.
struct World {
    runtime: Runtime,
    machine: Machine,
    host: Host,
    /// Decides which kills are losses of power, and what is lost then. The second one has separate
    /// random numbers, so that the first one decides as before.
    rng: Rng,
    losses: Rng,
    /// Whether the machine of a host that shares a folder with the device lost power in this life.
    has_lost_power: bool,
}

impl World {
    /// Runs the lives of the host. The device is restarted when it was killed.
    fn lives(&mut self) {
        for life in 0..self.host.plan.lives.0 {
            let host = self.host.clone();
            let live = move |rt: Runtime| host.live(&rt, life as u64);
            let process = self.runtime.spawn_process("host", live);
            let process = process.expect("a process");
            self.host.tap.set_host(process.group());
            let begun = self.runtime.now();
            while self.runtime.is_group_alive(process.group()) {
                self.runtime.sleep(Duration::from_millis(5));
                assert!(
                    self.runtime.now().since(begun) < Duration::from_secs(3600),
                    "the host did not come to an end within an hour"
                );
                self.check_kept();
                if !self.machine.is_alive() {
                    self.restart_device(process.group());
                }
            }
            self.end_life(process.join().is_err());
        }
    }

    /// Starts the device again, after a kill or a loss of power.
    fn restart_device(&mut self, host: GroupId) {
        let plan = &self.host.plan;
        let is_power = self.rng.chance(plan.power_percent);
        let mut reached = Coverage::default();
        let what = if is_power {
            let policy = plan.losses(&mut self.losses);
            reached.take_crash(&match plan.arrangement {
                Arrangement::Shared => {
                    self.runtime.kill_group(host);
                    self.lose_power_of_both(policy)
                }
                _ => self.machine.lose_power(policy),
            });
            "power_lost"
        } else {
            self.machine.kill();
            "device_killed"
        };
        let name = self.host.plan.arrangement.name();
        reached.add(&format!("stores.{what}"));
        reached.add(&format!("stores.{name}.{what}"));
        self.host.shared.lock().coverage.merge(&reached);
        let pause = Duration::from_millis(1 + self.rng.below(200));
        self.runtime.sleep(pause);
        self.machine.start_again();
    }

    /// Cuts the power of a machine with the device and a host that share a folder. Both are dead
    /// afterwards.
    fn lose_power_of_both(&mut self, policy: CrashPolicy) -> CrashReport {
        let report = self.machine.lose_power(policy);
        self.host.own = shared_folder(&self.machine);
        self.has_lost_power = true;
        // Only what was synced was promised.
        self.host.shared.lock().acked.clear();
        report
    }

    /// What the host's own folder has after a life: all of it, or what a loss of power leaves.
    fn end_life(&mut self, is_killed: bool) {
        let arrangement = self.host.plan.arrangement;
        if is_killed {
            let name = arrangement.name();
            let coverage = &mut self.host.shared.lock().coverage;
            coverage.add("stores.host_killed");
            coverage.add(&format!("stores.{name}.host_killed"));
        }
        if !arrangement.has_local_log() {
            return;
        }
        let percent = self.host.plan.host_power_percent;
        if arrangement == Arrangement::Shared {
            // After a kill of the host alone, the device goes on in the same folder.
            let has_lost_power = std::mem::take(&mut self.has_lost_power);
            if is_killed && !has_lost_power && self.losses.chance(percent) {
                let policy = draw_losses(&mut self.losses);
                let report = self.lose_power_of_both(policy);
                self.has_lost_power = false;
                self.machine.start_again();
                let coverage = &mut self.host.shared.lock().coverage;
                coverage.take_crash(&report);
                coverage.add("stores.host_power_lost");
            }
            return;
        }
        if !is_killed || !self.losses.chance(percent) {
            // The leases of the process are not part of the image.
            self.host.own = self.host.own.kill_in(&self.runtime);
            return;
        }
        let policy = draw_losses(&mut self.losses);
        let (image, report) = self.host.own.crash_in(&self.runtime, policy);
        self.host.own = image;
        let mut known = self.host.shared.lock();
        // Only what was synced was promised.
        known.acked.clear();
        known.coverage.take_crash(&report);
        known.coverage.add("stores.host_power_lost");
    }

    /// Checks that the device keeps no more bytes of lent tables than it allows.
    fn check_kept(&self) {
        let most = self.host.plan.keep_bytes;
        if most == 0 {
            return;
        }
        for (name, folder) in self.machine.scratch_folders() {
            let objects = folder.list().expect("a list");
            let bytes: u64 = objects.iter().map(|object| object.len).sum();
            assert!(
                bytes <= most,
                "{name} has {bytes} bytes, and may have {most}"
            );
        }
    }

    /// Opens the store once more, and checks everything.
    fn at_the_end(&self) {
        let (host, runtime) = (&self.host, &self.runtime);
        if host.plan.arrangement == Arrangement::Shared {
            // A worker that serves a dead host could still make a table, which the next open of
            // the store deletes. It ends when its host has been silent for a while.
            runtime.sleep(Duration::from_secs(60));
        }
        let mut tries = 0;
        let opened = loop {
            match host.open(runtime) {
                Ok(opened) => break opened,
                Err(error) => {
                    tries += 1;
                    assert!(tries < 5, "the last open: {error}");
                }
            }
        };
        let Opened {
            store,
            device,
            executor,
            ..
        } = opened;
        let keyspace = store.default_keyspace().expect("the default keyspace");
        for n in 0..KEYS {
            let value = keyspace.get(&key(n)).expect("a read");
            check_value(&host.shared.lock(), n, value.as_deref(), "at the end");
        }
        store.wait_until_idle().expect("the work that is left");
        drop(keyspace);
        store.close().expect("a close");
        let (root, tables) = host.storages(&device);
        let storages = CheckStorages {
            log: &*root,
            manifest: &*root,
            tables: &*tables,
            redirect: None,
        };
        let report = check(&storages, &mut |_| {}).expect("a check");
        assert!(report.is_sound(), "{report:?}");
        assert!(report.orphans.is_empty(), "{:?}", report.orphans);
        host.reach("stores.no_orphans");
        if host.plan.arrangement.is_local() {
            executor.close();
        }
        device.close();
    }

    /// Checks that the device keeps nothing of lent work. It removes what hosts have left that were
    /// killed when it has heard nothing of them for half a minute.
    fn nothing_is_kept(&self) {
        if self.host.plan.keep_bytes == 0 {
            return;
        }
        self.runtime.sleep(Duration::from_secs(60));
        let left = self.machine.scratch_folders().into_iter();
        let left: Vec<String> = left.map(|(name, _)| name).collect();
        assert!(left.is_empty(), "{left:?} are left on the device");
        self.host.reach("stores.nothing_kept");
    }
}

/// The folder that the machine's device shares with the host.
fn shared_folder(machine: &Machine) -> MemoryStorage {
    let folder = machine.folders().folder(SHARED);
    folder.set_has_path(true);
    // No two hosts are alive at once here, and a dead one leaves its lease.
    folder.set_leases_expire(true);
    folder
}

pub fn trial(seed: u64) -> Coverage {
    run(Plan::draw(seed))
}

/// Runs a plan. A seed that failed can be kept with the plan that it had then.
fn run(plan: Plan) -> Coverage {
    let seed = plan.seed;
    simulated(seed, 20_000_000, move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(plan.faults);
        let tap = Tap::new(&runtime, &network, seed, &plan.acts);
        plan.aim(&tap);
        let gpus: Gpus = Arc::new(runtime.mutex(Vec::new()));
        let options = machine_options(&runtime, &plan, &gpus);
        let machine = Machine::start(&runtime, &tap, options);
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
        let own = match plan.arrangement {
            Arrangement::Shared => shared_folder(&machine),
            _ => MemoryStorage::named(&runtime, "host"),
        };
        let mut world = World {
            machine,
            host: Host {
                tap: tap.clone(),
                plan: plan.clone(),
                own,
                shared: Arc::clone(&shared),
            },
            rng: Rng::new(seed ^ 0x0D0),
            losses: Rng::new(seed ^ 0x105E),
            has_lost_power: false,
            runtime: runtime.clone(),
        };
        world.lives();
        *is_over.lock() = true;
        // Without faults, everything is there.
        tap.end();
        network.set_faults(LinkFaults::default());
        if !world.machine.is_alive() {
            world.machine.kill();
            world.machine.start_again();
        }
        world.at_the_end();
        let mut coverage = Coverage::default();
        if let Some(ghost) = ghost {
            coverage.merge(&ghost.join().expect("the ghost's task"));
        }
        world.nothing_is_kept();
        coverage.merge(&shared.lock().coverage);
        for gpu in &*gpus.lock() {
            coverage.merge(&gpu.take_reached());
        }
        let name = plan.arrangement.name();
        coverage.add(&format!("stores.{name}"));
        coverage.add(&format!("stores.policy.{}", plan.policy()));
        if plan.faults.freeze > 0 {
            coverage.add("stores.bad_link");
            coverage.add(&format!("stores.{name}.bad_link"));
        }
        coverage.merge(&tap.coverage());
        assert_eq!(world.machine.watch().wrong(), Vec::<String>::new());
        coverage
    })
}
