//! A device as an executor: what is sent to it, what it declines, how its jobs end, and what they
//! leave. `shapes.rs` tests that it makes the tables that the host's cores make.

mod common;
#[path = "../../table/tests/common/mod.rs"]
mod jobs;
#[path = "../../table/tests/common/patched.rs"]
mod patched;

use std::sync::Arc;
use std::time::Duration;

use common::address;
use jobs::{Content, a_job, files, table_input};
use patched::{Patched, TABLE_CASES};
use siltstone_device::{
    ClientOptions, DataFolder, Device, DeviceExecutor, FolderWanted, Folders, SeparatedExecutor,
    Server, ServerOptions,
};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{
    Epoch, FileStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};
use siltstone_table::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap};
use siltstone_table::job::{Input, Job};

/// A device with real folders, and its network.
struct World {
    runtime: Runtime,
    network: Arc<dyn Network>,
    dir: tempfile::TempDir,
    server: Option<Server>,
}

impl World {
    fn new() -> World {
        World::with(|options| options)
    }

    fn with(change: impl FnOnce(ServerOptions) -> ServerOptions) -> World {
        let runtime = Runtime::threads();
        let network: Arc<dyn Network> = Arc::new(MemoryNetwork::new(&runtime));
        let dir = tempfile::tempdir().unwrap();
        let folders: Arc<dyn Folders> =
            Arc::new(DataFolder::open(dir.path().join("data")).unwrap());
        let options = ServerOptions {
            slots: 2,
            parallelism: 2,
            keep_bytes: 1 << 20,
            shared: vec![
                dir.path()
                    .join("shared")
                    .canonicalize()
                    .unwrap_or_else(|_| {
                        std::fs::create_dir(dir.path().join("shared")).unwrap();
                        dir.path().join("shared").canonicalize().unwrap()
                    }),
            ],
            ..ServerOptions::default()
        };
        let options = change(options);
        let server = Server::start(&runtime, &network, &[address()], folders, options).unwrap();
        World {
            runtime,
            network,
            dir,
            server: Some(server),
        }
    }

    fn connect(&self, folder: FolderWanted) -> Arc<Device> {
        let options = ClientOptions {
            time_limit: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        let network = self.network.clone();
        Device::connect(&self.runtime, network, address(), folder, options).unwrap()
    }

    /// An executor of a session without a folder.
    fn executor(&self) -> (Arc<Device>, DeviceExecutor) {
        let device = self.connect(FolderWanted::None);
        let executor = DeviceExecutor::new("device", &device);
        (device, executor)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

/// Writes the runs of a job into a folder, a table for each, and makes the job.
fn prepare(runs: &[Content], storage: &Arc<impl Storage>) -> (Job, InputMap) {
    let mut inputs = InputMap::new();
    let mut listed: Vec<Input> = Vec::new();
    for (run, content) in runs.iter().enumerate() {
        let name = format!("in-{run}.tbl");
        let input = table_input(&mut inputs, storage, &name, content);
        listed.push(Input {
            run: run as u32,
            ..input
        });
    }
    let published = listed.iter().map(|input| input.max_seq).max().unwrap_or(0);
    let job = Job {
        inputs: listed,
        ..a_job(published)
    };
    (job, inputs)
}

/// Two runs with the same keys. All entries of the second one are shadowed.
fn two_runs() -> Vec<Content> {
    let content = |seq: u64| {
        let entries = (0..200u16).map(|key| {
            let key = key.to_be_bytes().to_vec();
            (key, seq << 8 | 1, vec![seq as u8; 100])
        });
        Content {
            entries: entries.collect(),
            ..Content::default()
        }
    };
    vec![content(9), content(5)]
}

/// The second job that reads a table does not send it again, and a table that the device made is
/// not sent either.
#[test]
fn lent_tables_are_sent_once() {
    let world = World::new();
    let (device, executor) = world.executor();
    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let (job, inputs) = prepare(&two_runs(), &own);
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        own.clone(),
        Epoch(3),
    );
    let first = executor.run(&job, &context).unwrap();
    // This is the same job again, and then a job that reads what the first one made.
    let mut again = job.clone();
    again.output.attempt = 2;
    let second = executor.run(&again, &context).unwrap();
    assert_eq!(files(&*own, &first), files(&*own, &second));
    let mut inputs = InputMap::new();
    let mut third = job.clone();
    third.output.attempt = 3;
    third.inputs = Vec::new();
    for table in &first.tables {
        inputs.add_table(0, &table.name, own.open(&table.name).unwrap());
        third.inputs.push(Input {
            name: table.name.clone(),
            len_bytes: table.file_bytes,
            digest: table.digest,
            min_seq: table.min_seq,
            max_seq: table.max_seq,
            ..job.inputs[0].clone()
        });
    }
    let sent = executor.sent_table_bytes();
    let inputs = Arc::new(inputs);
    let context = ExecContext::new(world.runtime.clone(), inputs, own.clone(), Epoch(3));
    let outcome = executor.run(&third, &context).unwrap();
    assert!(!outcome.tables.is_empty());
    assert_eq!(executor.sent_table_bytes(), sent, "nothing was sent again");
    let inputs: u64 = job.inputs.iter().map(|input| input.len_bytes).sum();
    assert_eq!(sent, inputs, "each input was sent once");
    device.close();
}

/// If the host cannot read a table that it sends, the attempt has that error, although errors of
/// these kinds could also come from the device. The tables that the device has are used again.
#[test]
fn an_error_of_the_hosts_storage_is_not_one_of_the_device() {
    let world = World::new();
    let (device, executor) = world.executor();
    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let own = Arc::new(FaultStorage::new(own, &world.runtime));
    let (job, inputs) = prepare(&two_runs(), &own);
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        own.clone(),
        Epoch(3),
    );
    let attempt = |number: u64| {
        let mut job = job.clone();
        job.output.attempt = number;
        executor.run(&job, &context)
    };
    let first = job.inputs[0].len_bytes;
    for (number, kind) in [
        (1, StorageErrorKind::Fenced),
        (2, StorageErrorKind::Unreachable),
    ] {
        let rule = Rule::on(OpKind::Read, Fault::Fail(kind));
        own.add(rule.named("in-1.tbl").for_good());
        match attempt(number).map(drop) {
            Err(ExecError::Failed(TableError::Storage(error))) => {
                assert_eq!(error.kind, kind, "{error}");
            }
            other => panic!("{other:?}"),
        }
        own.clear();
        assert_eq!(executor.sent_table_bytes(), first, "{kind:?}");
    }
    let outcome = attempt(3).unwrap();
    let inputs: u64 = job.inputs.iter().map(|input| input.len_bytes).sum();
    assert_eq!(executor.sent_table_bytes(), inputs, "each was sent once");
    let mut here = job.clone();
    here.output.attempt = 4;
    let expected = CpuExecutor.run(&here, &context).unwrap();
    assert_eq!(files(&*own, &outcome), files(&*own, &expected));
    device.close();
}

/// Of several jobs that begin at once, one sends a table that they have in common. The others do
/// not send it a second time, and are declined if it has not arrived yet.
#[test]
fn lent_jobs_with_a_table_in_common_do_not_disturb_each_other() {
    let world = World::with(|options| ServerOptions {
        slots: 8,
        ..options
    });
    let (device, executor) = world.executor();
    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let (job, inputs) = prepare(&two_runs(), &own);
    let inputs = Arc::new(inputs);
    let executor = Arc::new(executor);
    let run = {
        let (runtime, own, executor) = (world.runtime.clone(), own.clone(), executor.clone());
        let job = job.clone();
        move |attempt: u64| {
            let mut job = job.clone();
            job.output.attempt = attempt;
            let inputs = Arc::clone(&inputs) as Arc<_>;
            let context = ExecContext::new(runtime.clone(), inputs, own.clone(), Epoch(3));
            executor.run(&job, &context)
        }
    };
    let tasks = (2..10).map(|attempt| {
        let run = run.clone();
        let task = move || run(attempt);
        world.runtime.spawn("lent job", task).unwrap()
    });
    let tasks: Vec<_> = tasks.collect();
    let outcomes: Vec<_> = tasks.into_iter().map(|task| task.join().unwrap()).collect();
    let expected = files(&*own, &run(1).unwrap());
    let mut count = 0;
    for outcome in outcomes {
        match outcome {
            Ok(outcome) => {
                count += 1;
                assert_eq!(files(&*own, &outcome), expected);
            }
            Err(ExecError::Declined { reason }) => {
                assert!(reason.contains("another job is sending"), "{reason}");
            }
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(count > 0, "one of them sends the tables");
    let inputs: u64 = job.inputs.iter().map(|input| input.len_bytes).sum();
    assert_eq!(
        executor.sent_table_bytes(),
        inputs,
        "each table was sent once"
    );
    executor.close();
    device.close();
}

/// A device keeps no more bytes of sent tables than it may keep for all sessions together. A job
/// that does not fit is declined, so the host runs it.
#[test]
fn lent_tables_of_all_sessions_are_bounded() {
    let world = World::with(|options| ServerOptions {
        keep_all_bytes: 100_000,
        ..options
    });
    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let (job, inputs) = prepare(&two_runs(), &own);
    let bytes: u64 = job.inputs.iter().map(|input| input.len_bytes).sum();
    assert!(bytes < 50_000, "{bytes}");
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        own.clone(),
        Epoch(3),
    );
    let hosts: Vec<_> = (0..3).map(|_| world.executor()).collect();
    let run = |host: usize, attempt: u64| {
        let mut job = job.clone();
        job.output.attempt = attempt;
        hosts[host].1.run(&job, &context)
    };
    run(0, 1).unwrap();
    match run(1, 2).and_then(|_| run(2, 3)) {
        Err(ExecError::Declined { reason }) => {
            assert!(reason.contains("all sessions"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    // A session that ends makes room.
    hosts[0].1.close();
    hosts[1].1.close();
    run(2, 4).unwrap();
    for (device, executor) in hosts {
        executor.close();
        device.close();
    }
}

/// A device has only the folder of a job. It is not sent a job that has an input elsewhere, because
/// it would take a table of the same name for that input. Lent work is declined too, because no
/// build knows another location.
#[test]
fn a_job_with_an_input_elsewhere_is_declined() {
    let world = World::new();
    let (device, executor) = world.executor();
    // Moves the second input of a job to another location, where only this host finds it.
    let elsewhere = |storage: &Arc<dyn Storage>, job: &Job| {
        let mut job = job.clone();
        job.inputs[1].location = 7;
        let mut inputs = InputMap::new();
        for input in &job.inputs {
            let file = storage.open(&input.name).unwrap();
            inputs.add_table(input.location, &input.name, file);
        }
        (job, Arc::new(inputs))
    };
    let is_declined = |executor: &dyn Executor, job: &Job, context: &ExecContext| {
        let count = context.outputs.list().unwrap().len();
        match executor.run(job, context) {
            Err(ExecError::Declined { reason }) => {
                let said = "the input in-1.tbl is at location 7, and a device has only location 0";
                assert!(reason.contains(said), "{reason}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(context.outputs.list().unwrap().len(), count);
    };
    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, _) = prepare(&two_runs(), &shared);
    let shared: Arc<dyn Storage> = shared;
    let (job, inputs) = elsewhere(&shared, &job);
    let context = ExecContext::new(world.runtime.clone(), inputs, shared, Epoch(3));
    is_declined(&executor, &job, &context);

    let path = world.dir.path().join("data/db");
    let (job, _) = prepare(
        &two_runs(),
        &Arc::new(FileStorage::open_or_create(path).unwrap()),
    );
    let session = world.connect(FolderWanted::Named {
        name: "db".into(),
        create: false,
    });
    let storage = session.storage();
    let lease = storage.lease("store").unwrap();
    let (job, inputs) = elsewhere(&storage, &job);
    let context = ExecContext::new(world.runtime.clone(), inputs, storage, lease.epoch());
    is_declined(&executor, &job, &context);
    let separated = SeparatedExecutor::new(&session).always();
    assert!(
        separated
            .accepts(&job)
            .unwrap_err()
            .starts_with("whole: the input in-1.tbl")
    );
    is_declined(&separated, &job, &context);
    lease.release().unwrap();
    session.close();

    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let (job, _) = prepare(&two_runs(), &own);
    let own: Arc<dyn Storage> = own;
    let (job, inputs) = elsewhere(&own, &job);
    let context = ExecContext::new(world.runtime.clone(), inputs, own.clone(), Epoch(3));
    is_declined(&executor, &job, &context);
    // The host's own executor takes an input of each location that its context resolves.
    let outcome = CpuExecutor.run(&job, &context).unwrap();
    assert_eq!(outcome.counters.entries_written, 200);
    executor.close();
    device.close();
}

/// A job that cannot succeed says why, and leaves no table.
#[test]
fn a_damaged_input_is_named() {
    let world = World::new();
    let (device, executor) = world.executor();
    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, inputs) = prepare(&two_runs(), &shared);
    let path = world.dir.path().join("shared/in-0.tbl");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        shared.clone(),
        Epoch(3),
    );
    let error = executor.run(&job, &context).unwrap_err();
    assert!(error.to_string().contains("in-0.tbl"), "{error}");
    assert_eq!(shared.list().unwrap().len(), 2, "only the inputs are there");
    device.close();
}

/// A table with a number of RFC 12, section 4, is not damaged: the device declines the job, and
/// names the feature. The tables are made in `crates/table/tests/common/patched.rs`.
#[test]
fn a_job_with_a_table_of_a_later_build_is_declined() {
    let world = World::new();
    let (device, executor) = world.executor();
    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, _) = prepare(&two_runs()[..1], &shared);
    let path = world.dir.path().join("shared/in-0.tbl");
    let sound = std::fs::read(&path).unwrap();
    let shared: Arc<dyn Storage> = shared;
    for (at, case) in TABLE_CASES.iter().enumerate() {
        if case.what.contains("column") {
            continue;
        }
        let patched = (case.make)(Patched(sound.clone()));
        std::fs::write(&path, &patched.0).unwrap();
        let mut job = job.clone();
        job.output.attempt = at as u64 + 10;
        (job.inputs[0].len_bytes, job.inputs[0].digest) =
            (patched.0.len() as u64, patched.digest());
        let mut inputs = InputMap::new();
        inputs.add_table(0, "in-0.tbl", shared.open("in-0.tbl").unwrap());
        let inputs = Arc::new(inputs);
        let context = ExecContext::new(world.runtime.clone(), inputs, shared.clone(), Epoch(3));
        match executor.run(&job, &context) {
            Err(ExecError::Declined { reason }) => {
                assert!(reason.contains(case.says), "{}: {reason}", case.what);
                assert!(reason.contains("in-0.tbl"), "{}: {reason}", case.what);
            }
            other => panic!("{}: {other:?}", case.what),
        }
        assert_eq!(shared.list().unwrap().len(), 1, "{}", case.what);
    }
    executor.close();
    device.close();
}

/// The reason why the device cannot use a folder is the device's own.
#[test]
fn a_folder_that_the_device_does_not_see_is_explained() {
    let world = World::with(|options| ServerOptions {
        keep_bytes: 0,
        ..options
    });
    let (device, executor) = world.executor();
    let outside = world.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let outside = Arc::new(FileStorage::open_existing(outside).unwrap());
    let (job, inputs) = prepare(&two_runs(), &outside);
    let runtime = world.runtime.clone();
    let context = ExecContext::new(runtime, Arc::new(inputs), outside.clone(), Epoch(3));
    // The second answer is the one that was kept.
    for _ in 0..2 {
        match executor.run(&job, &context) {
            Err(ExecError::Declined { reason }) => {
                assert!(reason.contains("does not share this folder"), "{reason}");
                assert!(reason.contains("--share FOLDER"), "{reason}");
                assert!(reason.contains("--keep BYTES"), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    device.close();
}

/// A device that fails in the middle of a job leaves its finished tables, and the host continues
/// after them.
#[test]
fn the_host_goes_on_after_the_tables_of_a_device() {
    let world = World::new();
    let (device, executor) = world.executor();
    let runs = [Content {
        entries: (0..2000u16)
            .map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![n as u8; 100]))
            .collect(),
        ..Content::default()
    }];
    let own = Arc::new(MemoryStorage::new(&world.runtime));
    let (job, inputs) = prepare(&runs, &own);
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        own.clone(),
        Epoch(3),
    );
    let expected = CpuExecutor.run(&job, &context).unwrap();
    let expected_files = files(&*own, &expected);

    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, _) = prepare(&runs, &shared);
    let path = world.dir.path().join("shared/in-0.tbl");
    let sound = std::fs::read(&path).unwrap();
    let mut damaged = sound.clone();
    damaged[sound.len() * 3 / 4] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let inputs = || {
        let mut inputs = InputMap::new();
        inputs.add_table(0, "in-0.tbl", shared.open("in-0.tbl").unwrap());
        Arc::new(inputs)
    };
    let handover = Arc::new(Handover::new(&world.runtime));
    let context = || ExecContext {
        handover: Some(handover.clone()),
        ..ExecContext::new(world.runtime.clone(), inputs(), shared.clone(), Epoch(3))
    };
    let error = executor.run(&job, &context()).unwrap_err();
    assert!(error.to_string().contains("in-0.tbl"), "{error}");
    let left = handover.left_count();
    assert!(left > 10 && left < expected.tables.len(), "{left}");
    // Only the input and what was left are there.
    assert_eq!(shared.list().unwrap().len(), 1 + left);

    std::fs::write(&path, sound).unwrap();
    let mut second = job.clone();
    second.output.attempt = 2;
    let outcome = CpuExecutor.run(&second, &context()).unwrap();
    assert_eq!(handover.adopted_count() as usize, left);
    assert_eq!(files(&*shared, &outcome), expected_files);
    assert_eq!(shared.list().unwrap().len(), 1 + outcome.tables.len());
    device.close();
}

/// A subjob with so many tables that its part fits into no answer ends like any other. (The host
/// once asked for such a part again and again, and the job never ended.)
#[test]
fn a_subjob_may_have_more_tables_than_an_answer_holds() {
    let world = World::new();
    let (device, executor) = world.executor();
    let entries = (0..20_000u16).map(|n| (n.to_be_bytes().to_vec(), 9 << 8 | 1, vec![1; 100]));
    let content = Content {
        entries: entries.collect(),
        ..Content::default()
    };
    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, inputs) = prepare(&[content], &shared);
    let handover = Arc::new(Handover::new(&world.runtime));
    let context = ExecContext {
        handover: Some(handover),
        ..ExecContext::new(
            world.runtime.clone(),
            Arc::new(inputs),
            shared.clone(),
            Epoch(3),
        )
    };
    let outcome = executor.run(&job, &context).unwrap();
    assert!(outcome.tables.len() > 400, "{}", outcome.tables.len());
    let mut again = job.clone();
    again.output.attempt = 2;
    let expected = CpuExecutor.run(&again, &context).unwrap();
    assert_eq!(files(&*shared, &outcome), files(&*shared, &expected));
    device.close();
}

/// A job that was cancelled before it begins ends, and leaves no table.
#[test]
fn a_cancelled_job_ends_and_leaves_nothing() {
    let world = World::new();
    let (device, executor) = world.executor();
    let shared = FileStorage::open_existing(world.dir.path().join("shared")).unwrap();
    let shared = Arc::new(shared);
    let (job, inputs) = prepare(&two_runs(), &shared);
    let context = ExecContext::new(
        world.runtime.clone(),
        Arc::new(inputs),
        shared.clone(),
        Epoch(3),
    );
    context.cancel.cancel();
    let ended = executor.run(&job, &context).map(drop);
    assert!(matches!(ended, Err(ExecError::Cancelled)), "{ended:?}");
    assert_eq!(shared.list().unwrap().len(), 2, "only the inputs are there");
    device.close();
}

/// Without the device an attempt fails as unreachable, and the executor reports that it is down.
#[test]
fn a_device_that_is_gone_is_down() {
    let mut world = World::new();
    let (device, executor) = world.executor();
    assert_eq!(executor.state().to_string(), "ready");
    let own = MemoryStorage::new(&world.runtime);
    let own = Arc::new(own);
    let (job, inputs) = prepare(&two_runs(), &own);
    world.server.take().unwrap().stop();
    let context = ExecContext::new(world.runtime.clone(), Arc::new(inputs), own, Epoch(3));
    match executor.run(&job, &context).unwrap_err() {
        ExecError::Failed(TableError::Storage(error)) => {
            assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
            assert!(
                error.to_string().contains("is `silt device` running?"),
                "{error}"
            );
        }
        other => panic!("{other}"),
    }
    assert!(executor.state().to_string().starts_with("down: "));
    device.close();
}
