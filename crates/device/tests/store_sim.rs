//! Stores whose folder is on a device, in simulated runs: the host is killed, the device is killed,
//! its machine loses power, and the link between them is slow, is cut and freezes.
//!
//! The oracle: each key has a counter. A read may not give a value below the last one whose write
//! was acknowledged as synced, nor above the last one that was tried. An outage alone never poisons
//! a store, and at the end, without faults, a new open finds everything and the store is sound.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::address;
use siltstone::check::{CheckStorages, check};
use siltstone::{Batch, Components, ErrorKind, Options, ScheduleOptions, Store, WriteOptions};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders, SeparatedExecutor,
    Server, ServerOptions,
};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::{CrashPolicy, Mutex, Runtime, Storage};

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    faults: LinkFaults,
    /// The device is killed after about this time again and again; 0 for never.
    kill_device_ms: u64,
    /// Every how many kills of the device its machine loses power; 0 for never.
    power: u64,
    /// The host is killed after about this time; 0 for never.
    kill_host_ms: u64,
    /// The number of lives of the host, and of its operations in each.
    lives: (usize, usize),
    /// The host runs all compactions, and leaves the values on the device.
    separated: bool,
}

impl Plan {
    /// The bytes of a file that the client keeps: with some seeds so few that tails are incomplete.
    fn tail_bytes(&self) -> usize {
        match self.seed % 3 {
            0 => 4 << 10,
            _ => 32 << 20,
        }
    }
}

/// What the oracle knows.
#[derive(Default)]
struct Known {
    /// For each key the last value that was tried.
    tried: BTreeMap<u32, u64>,
    /// For each key the last value that was acknowledged as synced.
    synced: BTreeMap<u32, u64>,
    writes: u64,
    poisoned: usize,
    outages: usize,
    device_jobs: u64,
    separated_jobs: u64,
    fallbacks: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    writes: u64,
    kills: usize,
    poisoned: usize,
    outages: usize,
    device_jobs: u64,
    separated_jobs: u64,
    fallbacks: u64,
}

type Shared = Arc<Mutex<Known>>;

fn key(n: u32) -> Vec<u8> {
    format!("key-{n:04}").into_bytes()
}

fn options(plan: Plan) -> Options {
    let mut schedule = ScheduleOptions::default();
    if plan.separated {
        schedule = ScheduleOptions::policy("host-only").expect("a policy");
        schedule.separated_transfer = true;
    }
    Options {
        schedule,
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 8 << 20,
        block_bytes: 1 << 10,
        block_cache_bytes: 1 << 20,
        ..Options::default()
    }
}

fn start_device(
    runtime: &Runtime,
    network: &MemoryNetwork,
    folders: &Arc<MemoryFolders>,
) -> Process<()> {
    let network: Arc<dyn Network> = Arc::new(network.clone());
    let folders: Arc<dyn Folders> = folders.clone();
    let device = move |runtime: Runtime| {
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            ..ServerOptions::default()
        };
        let server = Server::start(&runtime, &network, &[address()], folders, options);
        let _server = server.expect("a server");
        loop {
            runtime.sleep(Duration::from_secs(3600));
        }
    };
    runtime.spawn_process("device", device).expect("a process")
}

/// Opens the store on the device, or says why it cannot be opened now.
fn open(
    runtime: &Runtime,
    network: &MemoryNetwork,
    plan: Plan,
) -> Result<(Arc<Device>, Store, Arc<SeparatedExecutor>), String> {
    let folder = FolderWanted::Named {
        name: "db".into(),
        create: true,
    };
    let network: Arc<dyn Network> = Arc::new(network.clone());
    let client = ClientOptions {
        time_limit: Duration::from_secs(20),
        lease_wait: Duration::from_secs(40),
        tail_bytes: plan.tail_bytes(),
        ..ClientOptions::default()
    };
    let device = Device::connect(runtime, network, address(), folder, client);
    let device = device.map_err(|e| e.to_string())?;
    let mut components = Components::on(device.storage(), runtime.clone());
    let executor = DeviceExecutor::new("device", &device);
    components.executors.push(Arc::new(executor));
    let separated = SeparatedExecutor::new(&device).always().cut_into(10, 64);
    let separated = Arc::new(separated);
    if plan.separated {
        components.separated = Some(separated.clone());
    }
    match Store::open_with(components, options(plan)) {
        Ok(store) => Ok((device, store, separated)),
        Err(error) => {
            device.close();
            match error.kind() {
                // `Closed`, `NotFound`: a file that the open had made is gone, because the power was
                // lost. If the store had lost it, the last open would not find it either.
                ErrorKind::Unreachable
                | ErrorKind::Locked
                | ErrorKind::Poisoned
                | ErrorKind::Closed
                | ErrorKind::NotFound
                | ErrorKind::Io => Err(error.to_string()),
                _ => panic!("the open found {error}"),
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
fn live(runtime: &Runtime, network: &MemoryNetwork, shared: &Shared, plan: Plan) {
    let Ok((device, store, separated)) = open(runtime, network, plan) else {
        return;
    };
    let keyspace = store.default_keyspace().expect("the default keyspace");
    for _ in 0..plan.lives.1 {
        let n = (runtime.random_u64() % 60) as u32;
        let result = match runtime.random_u64() % 20 {
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
                let sync = !runtime.random_u64().is_multiple_of(3);
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
            18 => store.flush(),
            _ => {
                runtime.sleep(Duration::from_millis(runtime.random_u64() % 50));
                Ok(())
            }
        };
        match result.map_err(|error| (error.kind(), error.to_string())) {
            Ok(()) => {}
            Err((ErrorKind::Unreachable | ErrorKind::Unsynced, _)) => shared.lock().outages += 1,
            Err((ErrorKind::Poisoned | ErrorKind::Io | ErrorKind::Closed, text)) => {
                // The device lost what it cannot get back: the store is opened again.
                assert!(!text.contains("damaged"), "{text}");
                shared.lock().poisoned += 1;
                break;
            }
            Err((_, text)) => panic!("{text}"),
        }
    }
    let stats = store.stats();
    let jobs = stats.sides.iter().filter(|side| side.side == "device");
    let done = jobs.filter(|side| side.compaction_bytes_per_s.is_some());
    {
        let mut known = shared.lock();
        known.device_jobs += done.count() as u64;
        known.separated_jobs += separated.stats().job_count;
        known.fallbacks += stats.counter("job_fallback_count");
    }
    drop(keyspace);
    let _ = store.close();
    device.close();
}

/// A run. Returns what was seen.
fn run(plan: Plan) -> Result<Seen, String> {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(plan.seed)
    };
    let outcome = sim::run(config, move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(plan.faults);
        let mut folders = Arc::new(MemoryFolders::new(&runtime));
        let mut device = start_device(&runtime, &network, &folders);
        let shared: Shared = Arc::new(runtime.mutex(Known::default()));
        let mut seen = Seen::default();
        let draw =
            |about: u64| Duration::from_millis(1 + runtime.random_u64() % (2 * about.max(1)));
        for _ in 0..plan.lives.0 {
            let (network_of, shared_of) = (network.clone(), shared.clone());
            let host = move |rt: Runtime| live(&rt, &network_of, &shared_of, plan);
            let host = runtime.spawn_process("host", host).expect("a process");
            let begun = runtime.now();
            let host_ends = begun + draw(plan.kill_host_ms);
            let mut device_ends = begun + draw(plan.kill_device_ms);
            while runtime.is_group_alive(host.group()) {
                runtime.sleep(Duration::from_millis(5));
                let now = runtime.now();
                assert!(
                    now.since(begun) < Duration::from_secs(3600),
                    "the host did not come to an end within an hour"
                );
                if plan.kill_host_ms > 0 && now >= host_ends {
                    runtime.kill_group(host.group());
                    seen.kills += 1;
                }
                if plan.kill_device_ms > 0 && now >= device_ends {
                    runtime.kill_group(device.group());
                    seen.kills += 1;
                    let is_power = plan.power > 0 && (seen.kills as u64).is_multiple_of(plan.power);
                    let of = runtime.clone();
                    folders = Arc::new(folders.after(is_power, move |storage| match is_power {
                        true => storage.crash_in(&of, CrashPolicy::LoseUnsynced).0,
                        false => storage.kill_in(&of),
                    }));
                    runtime.sleep(draw(100));
                    device = start_device(&runtime, &network, &folders);
                    device_ends = runtime.now() + draw(plan.kill_device_ms);
                }
            }
        }
        // Without faults everything is there.
        network.set_faults(LinkFaults::default());
        let mut tries = 0;
        let (session, store, _) = loop {
            match open(&runtime, &network, plan) {
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
        session.close();
        let known = shared.lock();
        seen.writes = known.writes;
        seen.poisoned = known.poisoned;
        seen.outages = known.outages;
        seen.device_jobs = known.device_jobs;
        seen.separated_jobs = known.separated_jobs;
        seen.fallbacks = known.fallbacks;
        seen
    });
    outcome.result.map_err(|failure| format!("{failure}"))
}

fn check_all(name: &str, plans: impl Iterator<Item = Plan>) -> Seen {
    let mut total = Seen::default();
    for plan in plans {
        match run(plan) {
            Ok(seen) => {
                total.writes += seen.writes;
                total.kills += seen.kills;
                total.poisoned += seen.poisoned;
                total.outages += seen.outages;
                total.device_jobs += seen.device_jobs;
                total.separated_jobs += seen.separated_jobs;
                total.fallbacks += seen.fallbacks;
            }
            Err(wrong) => panic!("{plan:?}: {wrong}"),
        }
    }
    println!("{name}: {total:?}");
    total
}

/// The seeds of a test.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SILT_SEED") {
        Some(seed) => seed..seed + number("SILT_COUNT").unwrap_or(1),
        None => 0..count,
    }
}

fn slow() -> LinkFaults {
    LinkFaults {
        delay: Duration::from_micros(100),
        jitter: Duration::from_micros(200),
        ..LinkFaults::default()
    }
}

#[test]
fn a_host_that_is_killed_loses_no_synced_write() {
    let plan = |seed| Plan {
        seed,
        faults: slow(),
        kill_device_ms: 0,
        power: 0,
        kill_host_ms: 200 + seed * 13 % 800,
        lives: (4, 150),
        separated: false,
    };
    let seen = check_all("killed hosts", seeds(10).map(plan));
    assert_eq!(seen.poisoned, 0, "{seen:?}");
}

#[test]
fn an_outage_poisons_nothing() {
    let plan = |seed| Plan {
        seed,
        faults: LinkFaults {
            cut: 300,
            freeze: 60,
            stall_chance: 60,
            stall: Duration::from_secs(3),
            ..slow()
        },
        kill_device_ms: 0,
        power: 0,
        kill_host_ms: 0,
        lives: (2, 150),
        separated: false,
    };
    let seen = check_all("outages", seeds(10).map(plan));
    assert_eq!(seen.poisoned, 0, "{seen:?}");
}

#[test]
fn a_device_that_is_killed_loses_no_synced_write() {
    let plan = |seed| Plan {
        seed,
        faults: slow(),
        kill_device_ms: 150 + seed * 29 % 1500,
        power: 0,
        kill_host_ms: 0,
        lives: (3, 150),
        separated: false,
    };
    check_all("killed devices", seeds(15).map(plan));
}

#[test]
fn a_device_that_loses_power_loses_no_synced_write() {
    let plan = |seed| Plan {
        seed,
        faults: slow(),
        kill_device_ms: 150 + seed * 29 % 1500,
        power: 1 + seed % 2,
        kill_host_ms: if seed % 3 == 0 { 700 } else { 0 },
        lives: (4, 120),
        separated: false,
    };
    check_all("power losses", seeds(15).map(plan));
}

/// The host runs all compactions, and the device makes their tables. The device is killed, links
/// are cut and freeze; what fails runs whole.
#[test]
fn separated_compactions_lose_nothing() {
    let plan = |seed: u64| Plan {
        seed,
        faults: match seed % 3 {
            0 => LinkFaults {
                delay: Duration::from_millis(2),
                ..slow()
            },
            _ => LinkFaults {
                cut: 300,
                freeze: 60,
                stall_chance: 60,
                stall: Duration::from_secs(3),
                ..slow()
            },
        },
        kill_device_ms: if seed.is_multiple_of(2) {
            40 + seed * 29 % 300
        } else {
            0
        },
        power: if seed % 4 == 2 { 2 } else { 0 },
        kill_host_ms: if seed % 5 == 4 { 700 } else { 0 },
        lives: (3, 150),
        separated: true,
    };
    let seen = check_all("separated", seeds(20).map(plan));
    assert!(
        seen.separated_jobs > 0 && seen.fallbacks > 0 || std::env::var_os("SILT_SEED").is_some(),
        "{seen:?}"
    );
}
