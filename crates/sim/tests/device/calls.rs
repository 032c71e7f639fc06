//! Random operations on a device's folder, each compared with the same operation on a local
//! storage.
//!
//! While only the device's process is killed, or only the link has faults, the host must not
//! notice: every answer is that of a local storage. A run ends when a kill cannot be hidden. This
//! is the case for a sync of names whose result is not known, which must then have failed, and for
//! an import that was under way. If the machine loses power, everything that was synced is there,
//! and a file that lost anything else reports this at its next sync at the latest.

use std::sync::Arc;
use std::time::Duration;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use siltstone_device::{ClientOptions, Device, FolderWanted};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{
    Act, Ghost, Machine, MachineOptions, Moment, Tap, address, draw_losses,
};
use siltstone_sim::rng::Rng;
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::{
    CrashPolicy, MemoryStorage, Runtime, Storage, StorageErrorKind, WriteFile,
};

use super::operations::{Answer, NAMES, Op, Side, op};
use super::{bad_link, good_link, simulated};

/// What happens in a run.
struct Plan {
    seed: u64,
    faults: LinkFaults,
    acts: Vec<Act>,
    has_ghost: bool,
    operations: usize,
}

impl Plan {
    fn kills(&self) -> bool {
        self.acts.contains(&Act::KillDevice)
    }
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

/// The operations with many reads between them, because reads are rare otherwise.
fn with_reads(operations: Vec<Op>, seed: u64) -> Vec<Op> {
    let mut rng = Rng::new(seed ^ 0x4EAD);
    let mut all = Vec::new();
    for op in operations {
        all.push(op);
        if rng.chance(40) {
            let name = rng.index(NAMES.len());
            all.extend([Op::Open(name), Op::Read(rng.index(4), 0, 64)]);
        }
    }
    all
}

/// Starts a session on a folder.
fn connect(
    runtime: &Runtime,
    tap: &Tap,
    folder: &str,
    (tail_bytes, sync_bytes): (usize, usize),
) -> Arc<Device> {
    let folder = FolderWanted::Named {
        name: folder.to_string(),
        create: true,
    };
    let network: Arc<dyn Network> = Arc::new(tap.clone());
    let options = ClientOptions {
        time_limit: Duration::from_secs(120),
        lease_wait: Duration::from_secs(30),
        tail_bytes,
        sync_bytes,
        ..ClientOptions::default()
    };
    Device::connect(runtime, network, address(), folder, options).expect("a session")
}

/// The task that restarts a killed device. It ends when `is_over` is set.
fn revive(
    runtime: &Runtime,
    mut machine: Machine,
    is_over: &siltstone_storage::Mutex<bool>,
    seed: u64,
) -> (Machine, u64) {
    let mut rng = Rng::new(seed ^ 0x5E5E);
    let mut kills = 0;
    while !*is_over.lock() {
        if !machine.is_alive() {
            kills += 1;
            machine.kill();
            runtime.sleep(Duration::from_millis(rng.below(200)));
            machine.start_again();
        }
        runtime.sleep(Duration::from_millis(5));
    }
    (machine, kills)
}

pub fn killed_trial(seed: u64) -> Coverage {
    let mut rng = Rng::new(seed ^ 0xCA11);
    run(Plan {
        seed,
        faults: match rng.chance(50) {
            true => good_link(),
            false => LinkFaults {
                cut: 500,
                ..good_link()
            },
        },
        acts: match rng.chance(50) {
            true => vec![Act::KillDevice],
            false => vec![Act::KillDevice, Act::Cut, Act::Double],
        },
        has_ghost: rng.chance(30),
        operations: 80,
    })
}

pub fn links_trial(seed: u64) -> Coverage {
    let mut rng = Rng::new(seed ^ 0x1144);
    run(Plan {
        seed,
        faults: match rng.chance(50) {
            true => bad_link(&mut rng),
            false => good_link(),
        },
        acts: vec![Act::Cut, Act::CutWithin, Act::Double],
        has_ghost: rng.chance(50),
        operations: 80,
    })
}

/// Whether the device was killed during a sync of names, so that the result of the sync cannot be
/// known.
fn unknown_sync(last: Option<(Moment, &str, Act)>) -> bool {
    let Some((moment, name, Act::KillDevice)) = last else {
        return false;
    };
    moment != Moment::AfterAnswer && matches!(name, "sync_dir" | "replace")
}

fn run(plan: Plan) -> Coverage {
    simulated(plan.seed, 8_000_000, move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(plan.faults);
        let tap = Tap::new(&runtime, &network, plan.seed, &plan.acts);
        let machine = Machine::start(&runtime, &tap, MachineOptions::default());
        let is_over = Arc::new(runtime.mutex(false));
        let reviver = {
            let (rt, is_over) = (runtime.clone(), is_over.clone());
            let revive = move || revive(&rt, machine, &is_over, plan.seed);
            runtime.spawn("reviver", revive).expect("a task")
        };
        let (device, other) = (
            connect(&runtime, &tap, "db", (32 << 20, 8 << 20)),
            connect(&runtime, &tap, "other", (32 << 20, 8 << 20)),
        );
        let ghost = plan.has_ghost.then(|| {
            let (rt, is_over) = (runtime.clone(), is_over.clone());
            let mut ghost = Ghost::new(&runtime, &tap, plan.seed);
            let haunt = move || {
                while !*is_over.lock() {
                    ghost.haunt(20);
                    rt.sleep(Duration::from_millis(3));
                }
                ghost.into_coverage()
            };
            runtime.spawn("ghost", haunt).expect("a task")
        });
        let mut coverage = compare(&runtime, &tap, &plan, [&device, &other]);
        device.close();
        other.close();
        *is_over.lock() = true;
        if plan.faults.cut > 0 || plan.faults.freeze > 0 {
            coverage.add("calls.bad_link");
        }
        if let Some(ghost) = ghost {
            coverage.merge(&ghost.join().expect("the ghost's task"));
        }
        let (machine, kills) = reviver.join().expect("the reviver's task");
        coverage.add_count("calls.device_killed", kills);
        coverage.merge(&tap.coverage());
        assert_eq!(machine.watch().wrong(), Vec::<String>::new());
        coverage
    })
}

/// Makes random calls on both sides.
fn compare(runtime: &Runtime, tap: &Tap, plan: &Plan, devices: [&Arc<Device>; 2]) -> Coverage {
    let mut coverage = Coverage::default();
    let kills = plan.kills();
    let mut remote = Side::new(devices[0].storage(), devices[1].storage());
    let memory = || Arc::new(MemoryStorage::new(runtime));
    let mut local = Side::new(memory(), memory());
    let mut all = operations(plan.seed, plan.operations);
    if kills && plan.seed.is_multiple_of(2) {
        all = with_reads(all, plan.seed);
    }
    for (i, op) in all.iter().enumerate() {
        // A lease that is taken at the time of a kill may be kept for its last holder. An object
        // that shares its bytes with an imported one must not be written.
        let is_kept = kills && matches!(op, Op::Lease(_));
        if is_kept || matches!(op, Op::Import(_, true, _)) {
            continue;
        }
        tap.take_last();
        let a = remote.apply(op);
        let last = tap.take_last();
        let b = local.apply(op);
        coverage.add("calls.compared");
        let is_unsettled = matches!(a, Answer::Failed(StorageErrorKind::Io, _))
            && matches!(op, Op::SyncDir | Op::Replace(..) | Op::Import(..));
        if kills && is_unsettled {
            coverage.add("calls.unsettled");
            return coverage;
        }
        let is_answered = a == Answer::Done && matches!(op, Op::SyncDir | Op::Replace(..));
        assert!(
            !(is_answered && unknown_sync(last)),
            "operation {i}, {op:?}: the device was killed before its answer ({last:?}), and it was \
             believed all the same"
        );
        let is_of_handle = matches!(
            op,
            Op::Append(..)
                | Op::Reserve(..)
                | Op::Truncate(_)
                | Op::Sync(_)
                | Op::Read(..)
                | Op::Map(_)
        );
        // The object has lost its name, so a restarted device does not find it.
        let is_lost = matches!(
            a,
            Answer::Failed(
                StorageErrorKind::Closed | StorageErrorKind::UnexpectedEof,
                _
            )
        );
        // The client takes an append to such a file before it knows that the object is lost, so a
        // read of the object does not show the append.
        let is_lost =
            is_lost || matches!(op, Op::Read(..) | Op::Map(_)) && remote.has_lost_writer();
        if kills && is_of_handle && is_lost && a != b {
            remote.close_all();
            local.close_all();
            continue;
        }
        // After a restart it is not known whether a deletion found its object.
        let is_deleted = matches!(op, Op::Delete(_))
            && a == Answer::Done
            && b == Answer::Failed(StorageErrorKind::NotFound, None);
        if a != b && !(kills && is_deleted) {
            let text = format!("operation {i}, {op:?}: {a:?} instead of {b:?}");
            panic!("{}", text.chars().take(1000).collect::<String>());
        }
    }
    tap.end();
    let short = |all: Vec<(String, u64, Vec<u8>)>| -> Vec<String> {
        let one = |(name, len, bytes): &(String, u64, Vec<u8>)| {
            let crc = siltstone_table::checksum::crc32c(bytes);
            format!("{name} {len} {crc:08x} {:?}", &bytes[..bytes.len().min(20)])
        };
        all.iter().map(one).collect()
    };
    assert_eq!(
        short(remote.contents()),
        short(local.contents()),
        "at the end"
    );
    coverage
}

/// What is known about a file whose device loses power.
struct Written {
    file: Arc<dyn WriteFile>,
    name: String,
    bytes: Vec<u8>,
    synced: usize,
}

/// Appends and syncs of a few files, with long periods without a sync, on a machine that loses
/// power. What was not synced is then lost, kept, torn or reordered. In half of the runs the client
/// keeps only 4 KiB of a file. A sync that succeeds covers every append before it.
pub fn power_trial(seed: u64) -> Coverage {
    // These random numbers are separate, so that everything else in a seed stays as it was.
    let mut rng = Rng::new(seed ^ 0x105E);
    power(seed, move || draw_losses(&mut rng))
}

/// As [`power_trial`], but each loss of power loses everything that was not synced.
pub fn whole_power_trial(seed: u64) -> Coverage {
    power(seed, || CrashPolicy::LoseUnsynced)
}

fn power(seed: u64, mut losses: impl FnMut() -> CrashPolicy + Send + 'static) -> Coverage {
    simulated(seed, 4_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x0FF);
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(good_link());
        let tap = Tap::new(&runtime, &network, seed, &[]);
        let mut machine = Machine::start(&runtime, &tap, MachineOptions::default());
        let tail_bytes = *rng.pick(&[4 << 10, 32 << 20]);
        // This uses random numbers of its own, so that earlier seeds do the same as before.
        let sync_bytes = *Rng::new(seed ^ 0x5A11).pick(&[0, 1 << 10]);
        let device = connect(&runtime, &tap, "db", (tail_bytes, sync_bytes));
        let storage = device.storage();
        let lease = storage.lease("store").expect("free");
        let epoch = lease.epoch();
        let mut coverage = Coverage::default();
        let mut files = Vec::new();
        for n in 0..3 {
            let name = format!("file-{n}");
            let file = storage.create(epoch, &name).expect("free");
            if n > 0 {
                // The log and the manifest do this too. Then the length does not show what was
                // lost.
                file.reserve(300_000).expect("room");
                file.sync().expect("sound");
            }
            files.push(Written {
                file,
                name,
                bytes: Vec::new(),
                synced: 0,
            });
        }
        storage.sync_dir(epoch).expect("sound");
        let mut next = 0u8;
        for _ in 0..4 {
            for _ in 0..rng.below(60) {
                next = next.wrapping_add(1);
                let at = rng.index(files.len());
                let written = &mut files[at];
                let bytes = vec![next; 1 + rng.index(900)];
                if written.file.append(&[&bytes]).is_ok() {
                    written.bytes.extend(&bytes);
                }
                if rng.chance(4) && written.file.sync().is_ok() {
                    written.synced = written.bytes.len();
                }
            }
            if rng.chance(50) {
                // Then every append is answered.
                runtime.sleep(Duration::from_secs(2));
            }
            let is_power = rng.chance(70);
            if is_power {
                coverage.take_crash(&machine.lose_power(losses()));
                coverage.add("calls.power");
            } else {
                machine.kill();
                coverage.add("calls.kill");
            }
            machine.start_again();
            files.retain_mut(|written| {
                let appended = written.file.append(&[b"after the restart"]);
                if appended.is_ok() {
                    written.bytes.extend(b"after the restart");
                }
                match written.file.sync() {
                    Ok(()) => {
                        written.synced = written.bytes.len();
                        coverage.add("calls.tail_rewritten");
                        let folder = machine.folders().folder("db");
                        check(&folder, written);
                        true
                    }
                    Err(error) => {
                        assert_eq!(error.kind, StorageErrorKind::Io, "{error}");
                        assert!(
                            tail_bytes == 4 << 10 && sync_bytes == 0,
                            "{}: {error}, but all of it could be written again",
                            written.name
                        );
                        coverage.add("calls.incomplete_tail_failed");
                        let folder = machine.folders().folder("db");
                        check(&folder, written);
                        false
                    }
                }
            });
            if files.is_empty() {
                break;
            }
        }
        device.close();
        assert_eq!(machine.watch().wrong(), Vec::<String>::new());
        coverage
    })
}

/// Checks that a file has at least what was synced, and nothing else up to there, also after a
/// power loss.
fn check(folder: &MemoryStorage, written: &Written) {
    let after = folder.crash(CrashPolicy::LoseUnsynced);
    let found = after.read_small(&written.name).expect("its bytes");
    let wrong = found.iter().zip(&written.bytes[..written.synced]);
    let wrong = wrong.take_while(|(a, b)| a == b).count();
    assert!(
        wrong == written.synced,
        "{}: {} bytes were acknowledged as synced, and {wrong} are there",
        written.name,
        written.synced
    );
}
