//! Compactions of the host that leave values on the device: what crosses the link, and how the
//! compactions end if something fails. `executor.rs` tests that they make the host's tables.

#[path = "../../table/tests/common/mod.rs"]
mod jobs;

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{address, are_all, seeds};
use jobs::{Content, a_job, files, table_input};
use siltstone_device::{
    ClientOptions, Device, DeviceExecutor, FolderWanted, Folders, MemoryFolders, SeparatedExecutor,
    Server, ServerOptions,
};
use siltstone_storage::link::{LinkFaults, MemoryNetwork, Network};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::{Epoch, Lease, MemoryStorage, Runtime, Storage, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap};
use siltstone_table::job::{Input, Job, OutputLimits};

/// A folder on a device with the inputs of a job, and a session.
struct Held {
    runtime: Runtime,
    network: MemoryNetwork,
    folders: Arc<MemoryFolders>,
    device: Arc<Device>,
    storage: Arc<dyn Storage>,
    lease: Box<dyn Lease>,
    job: Job,
}

/// Starts the device as a process that can be killed.
fn start(runtime: &Runtime, network: &MemoryNetwork, folders: &Arc<MemoryFolders>) -> Process<()> {
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

/// Two runs with `keys` keys each, and values of `value_bytes`. The second run is shadowed.
fn contents(keys: u32, value_bytes: usize) -> Vec<Content> {
    let content = |seq: u64| Content {
        entries: (0..keys)
            .map(|key| {
                let mut value = vec![seq as u8; value_bytes];
                value[..4].copy_from_slice(&key.to_le_bytes());
                (format!("key-{key:012}").into_bytes(), seq << 8 | 1, value)
            })
            .collect(),
        ..Content::default()
    };
    vec![content(9), content(5)]
}

/// Writes the inputs of a job.
fn inputs_of(storage: &Arc<MemoryStorage>, contents: &[Content]) -> (InputMap, Vec<Input>) {
    let mut map = InputMap::new();
    let mut inputs = Vec::new();
    for (run, content) in contents.iter().enumerate() {
        let name = format!("in-{run}.tbl");
        let input = table_input(&mut map, storage, &name, content);
        inputs.push(Input {
            run: run as u32,
            ..input
        });
    }
    (map, inputs)
}

impl Held {
    /// Starts a device. It runs until the simulated run ends.
    fn new(runtime: &Runtime, contents: &[Content], cuts: &[u32]) -> (Held, Process<()>) {
        let network = MemoryNetwork::new(runtime);
        let folders = Arc::new(MemoryFolders::new(runtime));
        let (_, inputs) = inputs_of(&Arc::new(folders.folder("db")), contents);
        let process = start(runtime, &network, &folders);
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let options = ClientOptions {
            time_limit: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let device = Device::connect(runtime, link, address(), folder, options).unwrap();
        let storage = device.storage();
        let lease = storage.lease("store").unwrap();
        let job = Job {
            inputs,
            hard_cuts: cuts
                .iter()
                .map(|cut| format!("key-{cut:012}").into_bytes())
                .collect(),
            limits: OutputLimits::new(256 << 10, 4096, false),
            ..a_job(9)
        };
        let held = Held {
            runtime: runtime.clone(),
            network,
            folders,
            device,
            storage,
            lease,
            job,
        };
        (held, process)
    }

    fn context(&self) -> ExecContext {
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            let file = self.storage.open(&input.name).unwrap();
            inputs.add_table(0, &input.name, file);
        }
        let runtime = self.runtime.clone();
        let (storage, epoch) = (self.storage.clone(), self.lease.epoch());
        ExecContext {
            max_parallel: 2,
            ..ExecContext::new(runtime, Arc::new(inputs), storage, epoch)
        }
    }

    /// The job with an output prefix of its own.
    fn attempt(&self, attempt: u64) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = attempt;
        job
    }

    /// The tables that the host's cores make from the job, in a storage of their own.
    fn expected(&self, contents: &[Content]) -> Vec<Vec<u8>> {
        let own = Arc::new(MemoryStorage::new(&self.runtime));
        let (inputs, _) = inputs_of(&own, contents);
        let runtime = self.runtime.clone();
        let context = ExecContext::new(runtime, Arc::new(inputs), own.clone(), Epoch(3));
        let outcome = CpuExecutor.run(&self.job, &context).unwrap();
        files(&*own, &outcome)
    }

    /// The names of the tables that are not inputs.
    fn outputs(&self) -> Vec<String> {
        let names = self.storage.list().unwrap().into_iter().map(|o| o.name);
        let is_output = |name: &String| name.ends_with(".tbl") && !name.starts_with("in-");
        names.filter(is_output).collect()
    }

    fn crossed(&self) -> u64 {
        let report = self.device.report();
        report.sent_bytes + report.received_bytes
    }

    fn end(self) {
        self.lease.release().unwrap();
        self.device.close();
    }
}

/// Runs a test in simulation. A failure prints the seed.
fn simulated(seed: u64, test: impl FnOnce(Runtime) + Send + 'static) {
    let config = SimConfig {
        max_steps: 20_000_000,
        stack_bytes: 1 << 20,
        ..SimConfig::new(seed)
    };
    if let Err(failure) = sim::run(config, test).result {
        panic!("seed {seed}: {failure}");
    }
}

/// With values of 4 KiB, less than 15% of the bytes cross the link, and the columns cross it once.
#[test]
fn values_do_not_cross_the_link() {
    simulated(1, |runtime| {
        let contents = contents(2000, 4096);
        let (held, _process) = Held::new(&runtime, &contents, &[700, 1300]);
        let separated = SeparatedExecutor::new(&held.device);
        let before = held.crossed();
        let context = held.context();
        let outcome = separated.run(&held.attempt(1), &context).unwrap();
        let crossed = held.crossed() - before;
        let expected = held.expected(&contents);
        assert_eq!(files(&*held.storage, &outcome), expected);

        let before = held.crossed();
        let context = held.context();
        let whole = CpuExecutor.run(&held.attempt(2), &context).unwrap();
        let crossed_whole = held.crossed() - before;
        assert_eq!(whole.tables.len(), outcome.tables.len());
        let share = crossed as f64 / crossed_whole as f64;
        println!(
            "separated {crossed} bytes, whole {crossed_whole}: {:.1}%",
            share * 100.0
        );
        assert!(share < 0.15, "{crossed} of {crossed_whole} bytes");
        // The whole job moved two inputs and an output.
        assert!(crossed_whole > 3 * 2000 * 4096, "{crossed_whole}");

        let stats = separated.stats();
        assert_eq!((stats.job_count, stats.failed_count), (1, 0), "{stats:?}");
        assert!(stats.columns_bytes > 4000 * 16, "{stats:?}");
        assert!(stats.survivor_bytes > 2000, "{stats:?}");
        let left = stats.columns_bytes + stats.survivor_bytes;
        assert!(left < crossed, "{stats:?} and {crossed} crossed");
        assert!(stats.saved_bytes > 3 * 2000 * 4096 - left, "{stats:?}");
        held.end();
    });
}

/// Small values are moved in whole blocks, and the executor says why.
#[test]
fn a_job_that_gains_nothing_is_declined() {
    simulated(2, |runtime| {
        let (held, _process) = Held::new(&runtime, &contents(500, 8), &[]);
        let separated = SeparatedExecutor::new(&held.device);
        match separated.run(&held.job, &held.context()).unwrap_err() {
            ExecError::Declined { reason } => {
                assert!(reason.starts_with("whole: columns are"), "{reason}");
            }
            other => panic!("{other}"),
        }
        // If the tables lie elsewhere, or an attempt has left some tables, it declines as well.
        let own = Arc::new(MemoryStorage::new(&runtime));
        let elsewhere = ExecContext {
            outputs: own,
            ..held.context()
        };
        let error = separated.run(&held.job, &elsewhere).unwrap_err();
        assert!(
            error.to_string().contains("do not lie on this device"),
            "{error}"
        );
        assert_eq!(separated.stats().declined_count, 2);
        assert_eq!(held.outputs(), Vec::<String>::new());
        held.end();
    });
}

/// The host finds a damaged column, and the device finds a damaged value. Both fail the job, and
/// leave no table of the attempt except those that the next attempt adopts.
#[test]
fn damage_is_named_whichever_half_finds_it() {
    for (seed, what) in [(3u64, b"key-0000000005"), (4, b"valuevalueval!")] {
        simulated(seed, move |runtime| {
            let mut contents = contents(1200, 1000);
            // This is the value that is damaged.
            contents[0].entries[900].2[500..514].copy_from_slice(b"valuevalueval!");
            let (held, _process) = Held::new(&runtime, &contents, &[600]);
            let folder = held.folders.folder("db");
            let damaged = folder.damage("in-0.tbl", |bytes| {
                let at = bytes.windows(what.len()).position(|found| found == what);
                bytes[at.expect("the bytes are in the table") + 3] ^= 1;
            });
            damaged.unwrap();
            let handover = Arc::new(Handover::new(&runtime));
            let context = ExecContext {
                handover: Some(handover.clone()),
                ..held.context()
            };
            let separated = SeparatedExecutor::new(&held.device).always();
            let error = separated.run(&held.attempt(1), &context).unwrap_err();
            assert!(error.to_string().contains("in-0.tbl"), "{error}");
            assert_eq!(held.outputs().len(), handover.left_count());
            assert_eq!(separated.stats().failed_count, 1);
            // If there are tables to continue after, the next attempt is not separated.
            if handover.left_count() > 0 {
                let declined = separated.run(&held.attempt(2), &context).unwrap_err();
                assert!(
                    declined.to_string().contains("earlier attempt"),
                    "{declined}"
                );
            }
            held.end();
        });
    }
}

/// A job that is cancelled ends within two seconds on both sides, and leaves nothing.
#[test]
fn a_cancelled_job_ends_on_both_sides() {
    for seed in 0..8 {
        simulated(100 + seed, move |runtime| {
            let contents = contents(3000, 500);
            let (held, _process) = Held::new(&runtime, &contents, &[1500]);
            held.network.set_faults(slow());
            let context = held.context();
            let cancel = context.cancel.clone();
            let separated = SeparatedExecutor::new(&held.device)
                .always()
                .cut_into(5, 64);
            let job = held.attempt(1);
            let task = runtime.spawn("job", move || separated.run(&job, &context).map(drop));
            runtime.sleep(Duration::from_millis(5 * (seed + 1)));
            let begun = runtime.now();
            cancel.cancel();
            let ended = task.unwrap().join().unwrap();
            assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
            let took = runtime.now().since(begun);
            assert!(took < Duration::from_secs(2), "{took:?}");
            // The device has ended the attempt, or will end it soon.
            runtime.sleep(Duration::from_secs(2));
            assert_eq!(held.outputs(), Vec::<String>::new());
            held.end();
        });
    }
}

/// A device has as many slots for rebuilds as for whole jobs. Further rebuilds are declined at
/// once, and whole jobs still find all the slots that the device has reported.
#[test]
fn rebuilds_take_no_slot_of_whole_jobs() {
    simulated(5, |runtime| {
        let contents = contents(1500, 500);
        let (held, _process) = Held::new(&runtime, &contents, &[]);
        let expected = held.expected(&contents);
        held.network.set_faults(slow());
        let held = Arc::new(held);
        let separated = Arc::new(
            SeparatedExecutor::new(&held.device)
                .always()
                .cut_into(5, 64),
        );
        let run = |attempt: u64, executor: Arc<dyn Executor>| {
            let (job, context) = (held.attempt(attempt), held.context());
            let run = move || executor.run(&job, &context);
            runtime.spawn(&format!("job-{attempt}"), run).unwrap()
        };
        let separated_jobs: Vec<_> = (1..4).map(|n| run(n, separated.clone())).collect();
        let device = Arc::new(DeviceExecutor::new("device", &held.device));
        let whole_jobs: Vec<_> = (4..6).map(|n| run(n, device.clone())).collect();
        let mut declined = 0;
        for task in separated_jobs {
            match task.join().unwrap() {
                Ok(outcome) => assert_eq!(files(&*held.storage, &outcome), expected),
                Err(ExecError::Declined { reason }) => {
                    assert!(reason.contains("busy"), "{reason}");
                    declined += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(declined, 1);
        for task in whole_jobs {
            let outcome = task.join().unwrap().unwrap();
            assert_eq!(files(&*held.storage, &outcome), expected);
        }
        held.lease.release().unwrap();
        held.device.close();
    });
}

fn slow() -> LinkFaults {
    LinkFaults {
        delay: Duration::from_micros(100),
        jitter: Duration::from_micros(200),
        ..LinkFaults::default()
    }
}

/// Links are cut and freeze while a job runs, and the device is killed and restarted. The job makes
/// the right tables, or fails like a job of a lost device. Then the host's cores continue after
/// what was left.
#[test]
fn faults_give_right_tables_or_a_failure() {
    let (mut done, mut failed, mut adopted) = (0, 0, 0u64);
    let seeds = seeds(40);
    let are_all = are_all(&seeds, 40);
    for seed in seeds {
        let counts = Arc::new(std::sync::atomic::AtomicU64::new(0));
        let seen = counts.clone();
        simulated(seed, move |runtime| {
            let contents = contents(600 + (seed as u32 * 71) % 900, 700);
            let (held, process) = Held::new(&runtime, &contents, &[250, 500]);
            let expected = held.expected(&contents);
            held.network.set_faults(LinkFaults {
                cut: if seed % 4 == 1 { 0 } else { 60 },
                freeze: if seed % 4 == 2 { 40 } else { 0 },
                stall_chance: 60,
                stall: Duration::from_millis(700),
                ..slow()
            });
            let handover = Arc::new(Handover::new(&runtime));
            let context = ExecContext {
                handover: Some(handover.clone()),
                max_parallel: 1 + seed as usize % 3,
                ..held.context()
            };
            let separated = SeparatedExecutor::new(&held.device)
                .always()
                .cut_into(20, 100);
            let job = held.attempt(1);
            let of_task = context.clone();
            let task = runtime
                .spawn("job", move || separated.run(&job, &of_task))
                .unwrap();
            let mut killed = None;
            if seed % 4 != 0 {
                runtime.sleep(Duration::from_millis(1 + runtime.random_u64() % 400));
                runtime.kill_group(process.group());
                let of = runtime.clone();
                let folders = held.folders.after(false, |storage| storage.kill_in(&of));
                runtime.sleep(Duration::from_millis(runtime.random_u64() % 500));
                killed = Some(start(&runtime, &held.network, &Arc::new(folders)));
            }
            let result = task.join().unwrap();
            held.network.set_faults(LinkFaults::default());
            let outcome = match result {
                Ok(outcome) => {
                    seen.fetch_add(1, Ordering::Relaxed);
                    outcome
                }
                Err(ExecError::Failed(TableError::Storage(error))) => {
                    let lost = [
                        StorageErrorKind::Unreachable,
                        StorageErrorKind::NotFound,
                        StorageErrorKind::Closed,
                        StorageErrorKind::Io,
                    ];
                    assert!(lost.contains(&error.kind), "{error}");
                    seen.fetch_add(1 << 16, Ordering::Relaxed);
                    let again = ExecContext {
                        inputs: held.context().inputs,
                        progress: Arc::default(),
                        ..context
                    };
                    match CpuExecutor.run(&held.attempt(2), &again) {
                        Ok(outcome) => outcome,
                        // A real store would be poisoned, and would be opened again.
                        Err(error) if error.to_string().contains("during a sync of names") => {
                            return;
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                Err(other) => panic!("{other}"),
            };
            seen.fetch_add(handover.adopted_count() << 32, Ordering::Relaxed);
            assert_eq!(files(&*held.storage, &outcome), expected);
            drop(killed);
            held.end();
        });
        let seen = counts.load(Ordering::Relaxed);
        done += seen & 0xffff;
        failed += seen >> 16 & 0xffff;
        adopted += seen >> 32;
    }
    println!("{done} jobs were done, {failed} failed, {adopted} tables were adopted");
    if are_all {
        assert!(
            done > 5 && failed > 5 && adopted > 0,
            "{done} {failed} {adopted}"
        );
    }
}

/// A host is killed: the device ends the attempt, and nothing of it is left.
#[test]
fn a_host_that_is_gone_leaves_nothing() {
    for seed in 0..6 {
        simulated(200 + seed, move |runtime| {
            let network = MemoryNetwork::new(&runtime);
            let folders = Arc::new(MemoryFolders::new(&runtime));
            let contents = contents(2000, 600);
            let (_, inputs) = inputs_of(&Arc::new(folders.folder("db")), &contents);
            let _device = start(&runtime, &network, &folders);
            network.set_faults(slow());
            let link = network.clone();
            let host = move |runtime: Runtime| {
                let link: Arc<dyn Network> = Arc::new(link);
                let folder = FolderWanted::Named {
                    name: "db".into(),
                    create: true,
                };
                let options = ClientOptions::default();
                let device = Device::connect(&runtime, link, address(), folder, options).unwrap();
                let storage = device.storage();
                let lease = storage.lease("store").unwrap();
                let mut map = InputMap::new();
                for input in &inputs {
                    map.add_table(0, &input.name, storage.open(&input.name).unwrap());
                }
                let job = Job {
                    inputs,
                    limits: OutputLimits::new(64 << 10, 4096, false),
                    ..a_job(9)
                };
                let epoch = lease.epoch();
                let context = ExecContext::new(runtime.clone(), Arc::new(map), storage, epoch);
                let separated = SeparatedExecutor::new(&device).always().cut_into(3, 50);
                let _ = separated.run(&job, &context);
                // The host is killed before it gets here, or its job is complete.
                loop {
                    runtime.sleep(Duration::from_secs(3600));
                }
            };
            let host = runtime.spawn_process("host", host).unwrap();
            runtime.sleep(Duration::from_millis(20 + 20 * seed));
            runtime.kill_group(host.group());
            // Ten seconds of silence end the job, and ten minutes end the state of the session.
            runtime.sleep(Duration::from_secs(700));
            let names = folders.folder("db").list().unwrap();
            let outputs = names.iter().filter(|o| o.name.ends_with(".tbl"));
            let outputs: Vec<_> = outputs.filter(|o| !o.name.starts_with("in-")).collect();
            assert!(outputs.is_empty(), "{outputs:?}");
        });
    }
}
