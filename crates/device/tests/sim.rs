//! Random operations on a device's folder, in simulated runs: connections are slow, are cut and
//! freeze, and the device's process is killed at any point and started again. Its machine stays up,
//! so the host must not notice: every answer is the one of a local storage.
//!
//! What cannot hide a kill ends the run: a sync of names whose result is not known, and an import
//! that was under way.

mod common;
#[path = "../../storage/tests/common/operations.rs"]
mod operations;

use std::sync::Arc;
use std::time::Duration;

use common::address;
use operations::{Answer, Op, Side, op};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use siltstone_device::{
    ClientOptions, Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions,
};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::{MemoryStorage, Runtime, StorageErrorKind};

/// What happens in a run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    faults: LinkFaults,
    /// The device is killed every so many milliseconds, about; 0 for never.
    kill_ms: u64,
    operations: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    operations: usize,
    kills: usize,
    unsettled: usize,
}

fn operations(seed: u64, count: usize) -> Vec<Op> {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    let one = op();
    let mut new = || one.new_tree(&mut runner).expect("an operation").current();
    (0..count).map(|_| new()).collect()
}

/// Starts the device as a process of the run.
fn start(runtime: &Runtime, network: &MemoryNetwork, folders: &Arc<MemoryFolders>) -> Process<()> {
    let network: Arc<dyn Network> = Arc::new(network.clone());
    let folders: Arc<dyn Folders> = folders.clone();
    let device = move |runtime: Runtime| {
        let options = ServerOptions::default();
        let server = Server::start(&runtime, &network, &[address()], folders, options);
        let _server = server.expect("a server");
        loop {
            runtime.sleep(Duration::from_secs(3600));
        }
    };
    runtime.spawn_process("device", device).expect("a process")
}

/// Kills the device and starts it again, from time to time.
fn killer(
    runtime: &Runtime,
    network: &MemoryNetwork,
    folders: Arc<MemoryFolders>,
    kill_ms: u64,
    is_over: &siltstone_storage::Mutex<bool>,
) -> usize {
    let mut folders = folders;
    let mut process = start(runtime, network, &folders);
    let mut kills = 0;
    loop {
        let pause = 1 + runtime.random_u64() % (2 * kill_ms.max(1));
        let next = runtime.now() + Duration::from_millis(pause);
        while runtime.now() < next || kill_ms == 0 {
            if *is_over.lock() {
                return kills;
            }
            runtime.sleep(Duration::from_millis(5));
        }
        runtime.kill_group(process.group());
        kills += 1;
        let runtime_of = runtime.clone();
        folders = Arc::new(folders.after(false, move |storage| storage.kill_in(&runtime_of)));
        let pause = runtime.random_u64() % 200;
        runtime.sleep(Duration::from_millis(pause));
        process = start(runtime, network, &folders);
    }
}

/// A run. Returns what was seen, or what was wrong.
fn run(plan: Plan) -> Result<Seen, String> {
    let config = SimConfig {
        max_steps: 3_000_000,
        ..SimConfig::new(plan.seed)
    };
    let outcome = sim::run(config, move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(plan.faults);
        let folders = Arc::new(MemoryFolders::new(&runtime));
        let is_over = Arc::new(runtime.mutex(false));
        let devil = {
            let (rt, network, folders) = (runtime.clone(), network.clone(), folders.clone());
            let is_over = is_over.clone();
            let run = move || killer(&rt, &network, folders, plan.kill_ms, &is_over);
            runtime.spawn("killer", run).expect("a task")
        };
        let connect = |folder: &str| {
            let folder = FolderWanted::Named {
                name: folder.to_string(),
                create: true,
            };
            let network: Arc<dyn Network> = Arc::new(network.clone());
            let options = ClientOptions {
                time_limit: Duration::from_secs(120),
                lease_wait: Duration::from_secs(30),
                ..ClientOptions::default()
            };
            Device::connect(&runtime, network, address(), folder, options)
        };
        let (device, other) = (connect("db").unwrap(), connect("other").unwrap());
        let mut remote = Side::new(device.storage(), other.storage());
        let memory = || Arc::new(MemoryStorage::new(&runtime));
        let mut local = Side::new(memory(), memory());
        let mut seen = Seen::default();
        let mut wrong = None;
        for (i, op) in operations(plan.seed, plan.operations).iter().enumerate() {
            // A lease that is taken at the moment of a kill may be kept for its last holder. An
            // object that shares its bytes with an imported one must not be written.
            let is_kept = plan.kill_ms > 0 && matches!(op, Op::Lease(_));
            if is_kept || matches!(op, Op::Import(_, true, _)) {
                continue;
            }
            let (a, b) = (remote.apply(op), local.apply(op));
            seen.operations += 1;
            if std::env::var("SILT_TRACE").is_ok() {
                println!("{:?} {i} {op:?} -> {a:?}", runtime.now());
            }
            let is_unsettled = matches!(a, Answer::Failed(StorageErrorKind::Io, _))
                && matches!(op, Op::SyncDir | Op::Replace(..) | Op::Import(..));
            if plan.kill_ms > 0 && is_unsettled {
                seen.unsettled += 1;
                break;
            }
            let is_of_handle = matches!(
                op,
                Op::Append(..)
                    | Op::Reserve(..)
                    | Op::Truncate(_)
                    | Op::Sync(_)
                    | Op::Read(..)
                    | Op::Map(_)
            );
            // The object has lost its name, so a device that was started again does not find it.
            let is_lost = matches!(
                a,
                Answer::Failed(
                    StorageErrorKind::Closed | StorageErrorKind::UnexpectedEof,
                    _
                )
            );
            if plan.kill_ms > 0 && is_of_handle && is_lost && a != b {
                remote.close_all();
                local.close_all();
                continue;
            }
            // Whether a deletion found its object is not known after a restart.
            let is_deleted = matches!(op, Op::Delete(_))
                && a == Answer::Done
                && b == Answer::Failed(StorageErrorKind::NotFound, None);
            if a != b && !(plan.kill_ms > 0 && is_deleted) {
                let text = format!("{op:?}: {a:?} instead of {b:?}");
                let text: String = text.chars().take(2000).collect();
                wrong = Some(format!("operation {i}, {text}"));
                break;
            }
        }
        if wrong.is_none() && seen.unsettled == 0 {
            let (a, b) = (remote.contents(), local.contents());
            if a != b {
                let short = |all: &[(String, u64, Vec<u8>)]| {
                    let one = |(name, len, bytes): &(String, u64, Vec<u8>)| {
                        format!("{name} {len} {:?}", &bytes[..bytes.len().min(40)])
                    };
                    all.iter().map(one).collect::<Vec<_>>().join("\n")
                };
                wrong = Some(format!(
                    "at the end:\n{}\ninstead of\n{}",
                    short(&a),
                    short(&b)
                ));
            }
        }
        drop(remote);
        device.close();
        other.close();
        *is_over.lock() = true;
        seen.kills = devil.join().unwrap();
        wrong.map_or(Ok(seen), Err)
    });
    match outcome.result {
        Ok(result) => result,
        Err(failure) => Err(format!("{failure}")),
    }
}

fn check(plans: impl Iterator<Item = Plan>) -> Seen {
    let mut total = Seen::default();
    for plan in plans {
        match run(plan) {
            Ok(seen) => {
                total.operations += seen.operations;
                total.kills += seen.kills;
                total.unsettled += seen.unsettled;
            }
            Err(wrong) => panic!("{plan:?}: {wrong}"),
        }
    }
    println!("{total:?}");
    total
}

/// The first seed and the number of seeds of a test.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    match number("SILT_SEED") {
        Some(seed) => seed..seed + number("SILT_COUNT").unwrap_or(1),
        None => 0..count,
    }
}

#[test]
fn a_good_link_is_not_noticed() {
    let plan = |seed| Plan {
        seed,
        faults: LinkFaults {
            delay: Duration::from_micros(200),
            jitter: Duration::from_micros(300),
            ..LinkFaults::default()
        },
        kill_ms: 0,
        operations: 60,
    };
    assert!(check(seeds(20).map(plan)).operations > 0);
}

#[test]
fn cuts_and_frozen_connections_are_not_noticed() {
    let plan = |seed| Plan {
        seed,
        faults: LinkFaults {
            delay: Duration::from_micros(500),
            jitter: Duration::from_millis(2),
            cut: 2000,
            freeze: 300,
            stall_chance: 300,
            stall: Duration::from_secs(2),
            ..LinkFaults::default()
        },
        kill_ms: 0,
        operations: 60,
    };
    assert!(check(seeds(30).map(plan)).operations > 0);
}

#[test]
fn kills_of_the_device_are_not_noticed() {
    let plan = |seed| Plan {
        seed,
        faults: LinkFaults {
            delay: Duration::from_micros(300),
            jitter: Duration::from_micros(500),
            cut: if seed % 2 == 0 { 0 } else { 500 },
            ..LinkFaults::default()
        },
        kill_ms: 20 + seed % 100,
        operations: 80,
    };
    let seen = check(seeds(40).map(plan));
    assert!(seen.kills > 0, "{seen:?}");
}

/// Several callers wait for a device that is down: they pause between their tries, and do not wake
/// each other by their failures.
#[test]
fn callers_that_wait_for_a_device_do_not_spin() {
    let config = SimConfig {
        max_steps: 20_000,
        ..SimConfig::new(1)
    };
    let outcome = sim::run(config, |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let folders = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &folders);
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let options = ClientOptions {
            time_limit: Duration::from_secs(10),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network);
        let session = Device::connect(&runtime, link, address(), folder, options).unwrap();
        runtime.kill_group(device.group());
        let tasks = (0..5).map(|i| {
            let storage = session.storage();
            let open = move || storage.open("x").map(drop).unwrap_err();
            runtime.spawn(&format!("caller-{i}"), open).unwrap()
        });
        for task in tasks.collect::<Vec<_>>() {
            let error = task.join().unwrap();
            assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        }
        session.close();
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}
