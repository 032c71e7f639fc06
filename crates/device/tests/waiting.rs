//! Callers that wait for a device that is down, in a simulated run.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::folders::ChangedFolders;
use common::{Setup, address, simulated};
use siltstone_device::wire::hello::{HELLO_HEAD_BYTES, ServerHello, VERSIONS, Welcome, hello_len};
use siltstone_device::{
    ClientOptions, Device, FolderWanted, Folders, MemoryFolders, MissingFolders, Server,
    ServerOptions,
};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network, Received};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

fn start<F: Folders + 'static>(
    runtime: &Runtime,
    network: &MemoryNetwork,
    folders: &Arc<F>,
) -> Process<()> {
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

/// The folder that hosts ask for.
fn db() -> FolderWanted {
    FolderWanted::Named {
        name: "db".into(),
        create: true,
    }
}

/// Several callers wait for a device that is down. They pause between their attempts, and do not
/// wake each other by their failures.
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
        let options = ClientOptions {
            time_limit: Duration::from_secs(10),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network);
        let session = Device::connect(&runtime, link, address(), db(), options).unwrap();
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

/// The end of a session that is only for compactions does not wait for a device that is known to be
/// unreachable. If the session has a folder, it does wait, because a lease should be given back.
#[test]
fn the_end_of_a_session_for_jobs_does_not_wait() {
    let outcome = sim::run(SimConfig::new(1), |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let folders = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &folders);
        let sessions = [db(), FolderWanted::None].map(|folder| {
            let link: Arc<dyn Network> = Arc::new(network.clone());
            let options = ClientOptions::default();
            Device::connect(&runtime, link, address(), folder, options).unwrap()
        });
        runtime.kill_group(device.group());
        // The keepers notice that the device is down.
        runtime.sleep(Duration::from_secs(10));
        let took = sessions.map(|session| {
            let begin = runtime.now();
            session.close();
            runtime.now().since(begin)
        });
        assert!(took[0] >= Duration::from_secs(5), "{took:?}");
        assert!(took[0] < Duration::from_secs(10), "{took:?}");
        assert!(took[1] < Duration::from_secs(1), "{took:?}");
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// A device that was started before its disk was mounted has none of its folders. A session that
/// had one of them waits, and no empty folder takes its place.
#[test]
fn a_session_waits_for_the_disk_of_its_folder() {
    let outcome = sim::run(SimConfig::new(1), |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let disk = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &disk);
        let options = ClientOptions {
            time_limit: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let session = Device::connect(&runtime, link, address(), db(), options).unwrap();
        let storage = session.storage();
        let lease = storage.lease("store").unwrap();
        storage.replace(lease.epoch(), "x", b"old").unwrap();
        runtime.kill_group(device.group());
        let disk = Arc::new(disk.after(false, |storage| storage.kill_in(&runtime)));
        // This is the empty folder at which the disk is to be mounted.
        let bare = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &bare);
        let error = storage.list().unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        let missing = bare.open("db", false).map(drop).unwrap_err();
        assert_eq!(missing.kind, StorageErrorKind::NotFound, "{missing}");
        runtime.kill_group(device.group());
        let device = start(&runtime, &network, &disk);
        assert_eq!(storage.read_small("x").unwrap(), b"old");
        // The session still has its lease.
        storage.replace(lease.epoch(), "x", b"new").unwrap();
        assert_eq!(storage.read_small("x").unwrap(), b"new");
        lease.release().unwrap();
        session.close();
        runtime.kill_group(device.group());
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// A device that was started again cannot note at first that it granted a lease again. The session
/// gets its lease as soon as the device can.
#[test]
fn a_lease_that_cannot_be_noted_at_first_is_granted_later() {
    let outcome = sim::run(SimConfig::new(1), |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let disk = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &disk);
        let options = ClientOptions::default();
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let session = Device::connect(&runtime, link, address(), db(), options).unwrap();
        let storage = session.storage();
        let lease = storage.lease("store").unwrap();
        storage.replace(lease.epoch(), "x", b"old").unwrap();
        runtime.kill_group(device.group());
        let memory = disk.after(false, |storage| storage.kill_in(&runtime));
        let root = FaultStorage::new(memory.root(), &runtime);
        let rule = Rule::on(OpKind::Append, Fault::Fail(StorageErrorKind::Io));
        let rule = root.add(rule.named("grant-").times(3));
        let memory = Arc::new(memory);
        let faulty = ChangedFolders::of(&memory).with_root(Arc::new(root.clone()));
        let faulty = Arc::new(faulty);
        let device = start(&runtime, &network, &faulty);
        // The session is attached again by a read, because a change of names that is under way when
        // the device ends may have taken effect or not.
        assert_eq!(storage.read_small("x").unwrap(), b"old");
        storage.replace(lease.epoch(), "x", b"new").unwrap();
        assert_eq!(storage.read_small("x").unwrap(), b"new");
        assert_eq!(root.fired_count(rule), 3);
        lease.release().unwrap();
        session.close();
        runtime.kill_group(device.group());
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// A program that is not a device that the hosts understand. It answers each host with these bytes.
fn start_stranger(runtime: &Runtime, network: &MemoryNetwork, answer: Vec<u8>) -> Process<()> {
    let network = network.clone();
    let program = move |runtime: Runtime| {
        let listener = network.listen(&address()).expect("a listener");
        loop {
            let deadline = runtime.now() + Duration::from_secs(60);
            let Ok(Some(connection)) = listener.accept(deadline) else {
                return;
            };
            // The host may end the connection at any time.
            let _ = connection.receive(&mut [0; 4096], deadline);
            let _ = connection.send(&[&answer], deadline);
            runtime.sleep(Duration::from_millis(20));
            connection.close();
        }
    };
    let started = runtime.spawn_process("stranger", program);
    started.expect("a process")
}

/// For a while, something at the device's address gives this answer. A host that connects for the
/// first time is told at once. A session that was attached before waits, and goes on when its
/// device is back. `said` is part of the reason.
fn wait_while_a_stranger_answers(answer: Vec<u8>, said: &'static str) {
    let outcome = sim::run(SimConfig::new(1), move |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let disk = Arc::new(MemoryFolders::new(&runtime));
        let device = start(&runtime, &network, &disk);
        let options = ClientOptions {
            time_limit: Duration::from_secs(5),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let connect = || {
            let (link, options) = (Arc::clone(&link), options.clone());
            Device::connect(&runtime, link, address(), db(), options)
        };
        let session = connect().unwrap();
        let storage = session.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "log").unwrap();
        file.append(&[b"before, "]).unwrap();
        file.sync().unwrap();
        storage.sync_dir(lease.epoch()).unwrap();
        runtime.kill_group(device.group());
        let disk = Arc::new(disk.after(false, |storage| storage.kill_in(&runtime)));
        let stranger = start_stranger(&runtime, &network, answer);
        let begun = runtime.now();
        let refused = connect().map(drop).unwrap_err();
        assert_eq!(refused.kind, StorageErrorKind::Unsupported, "{refused}");
        assert!(refused.to_string().contains(said), "{refused}");
        assert!(runtime.now().since(begun) < Duration::from_secs(2));
        file.append(&[b"meanwhile"]).unwrap();
        let errors = [
            file.sync().unwrap_err(),
            storage.sync_dir(lease.epoch()).unwrap_err(),
            storage.open("log").map(drop).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
            assert!(error.to_string().contains(said), "{error}");
        }
        // These calls begin while the stranger is still there, and succeed.
        let (syncing, naming) = (Arc::clone(&file), Arc::clone(&storage));
        let epoch = lease.epoch();
        let sync = move || syncing.sync().and_then(|()| naming.sync_dir(epoch));
        let sync = runtime.spawn("sync", sync).unwrap();
        runtime.sleep(Duration::from_secs(2));
        runtime.kill_group(stranger.group());
        let device = start(&runtime, &network, &disk);
        sync.join().unwrap().unwrap();
        drop(file);
        assert_eq!(storage.read_small("log").unwrap(), b"before, meanwhile");
        storage.replace(lease.epoch(), "x", b"after").unwrap();
        lease.release().unwrap();
        session.close();
        runtime.kill_group(device.group());
    });
    if let Err(failure) = outcome.result {
        panic!("{said}: {failure}");
    }
}

#[test]
fn a_session_waits_while_another_program_answers() {
    let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    wait_while_a_stranger_answers(answer, "no siltstone device");
}

#[test]
fn a_session_waits_while_the_device_speaks_tls_only() {
    let mut alert = vec![0x15, 3, 3, 0, 2, 2, 40];
    alert.resize(HELLO_HEAD_BYTES, 0);
    wait_while_a_stranger_answers(alert, "speaks TLS only");
}

#[test]
fn a_session_waits_while_the_device_is_of_another_release() {
    let other = welcome().encode(VERSIONS.1 + 1);
    wait_while_a_stranger_answers(other, "bring both to the same release");
}

/// The folders that the server reports as missing.
fn reported(setup: &Setup) -> Option<MissingFolders> {
    let server = setup.server.as_ref().expect("a server");
    server.take_missing_folders()
}

/// The operator of a device learns which folders sessions wait for, and not which folders hosts
/// asked for once.
#[test]
fn folders_that_sessions_wait_for_are_reported() {
    simulated(1, |setup| {
        let sessions = ["birds", "eggs"].map(|name| setup.connect(name));
        setup.stop();
        setup.folders = Arc::new(MemoryFolders::new(&setup.runtime));
        setup.start();
        let other = FolderWanted::Named {
            name: "other".into(),
            create: false,
        };
        let link: Arc<dyn Network> = Arc::new(setup.network.clone());
        let options = ClientOptions::default();
        let asked = Device::connect(&setup.runtime, link, address(), other, options);
        let error = asked.map(drop).expect_err("there is none");
        assert_eq!(error.kind, StorageErrorKind::NotFound, "{error}");
        assert_eq!(reported(setup), None);
        let expected = MissingFolders {
            session_count: 2,
            names: vec!["birds".into(), "eggs".into()],
        };
        setup.runtime.sleep(Duration::from_secs(10));
        assert_eq!(reported(setup), Some(expected.clone()));
        setup.runtime.sleep(Duration::from_secs(10));
        assert_eq!(reported(setup), None);
        setup.runtime.sleep(Duration::from_secs(60));
        assert_eq!(reported(setup), Some(expected));
        for session in sessions {
            session.close();
        }
        setup.runtime.sleep(Duration::from_secs(120));
        assert_eq!(reported(setup), None);
    });
}

/// The hello of a device that welcomes a host.
fn welcome() -> ServerHello {
    ServerHello::Welcome(Welcome {
        state: [1; 16],
        boot: vec![1],
        device: [2; 16],
        name: "rude".into(),
        slots: (1, 1),
        open_objects_max: 100,
        keep_bytes: 0,
        capabilities: 0,
    })
}

/// A device that welcomes every host, and ends the connection at the first request.
fn start_rude(runtime: &Runtime, network: &MemoryNetwork, greeted: &Arc<AtomicU64>) {
    let listener = network.listen(&address()).unwrap();
    let (greeted, at) = (greeted.clone(), runtime.clone());
    let serve = move || {
        loop {
            let deadline = at.now() + Duration::from_secs(60);
            let Ok(Some(connection)) = listener.accept(deadline) else {
                return;
            };
            let mut hello = vec![0; HELLO_HEAD_BYTES];
            let receive = |from: usize, hello: &mut Vec<u8>| {
                let mut at = from;
                while at < hello.len() {
                    match connection.receive(&mut hello[at..], deadline) {
                        Ok(Received::Bytes(count)) => at += count,
                        _ => return false,
                    }
                }
                true
            };
            if !receive(0, &mut hello) {
                continue;
            }
            let len = hello_len(hello[..].try_into().unwrap()).unwrap();
            hello.resize(len, 0);
            receive(HELLO_HEAD_BYTES, &mut hello);
            connection.send(&[&welcome().encode(1)], deadline).unwrap();
            greeted.fetch_add(1, Ordering::Relaxed);
            let mut request = [0; 1];
            let _ = connection.receive(&mut request, deadline);
            connection.close();
        }
    };
    runtime.spawn("rude", serve).unwrap();
}

/// A request that ends each connection is not made thousands of times per second.
#[test]
fn a_request_that_ends_its_connection_is_repeated_after_pauses() {
    let config = SimConfig {
        max_steps: 20_000,
        ..SimConfig::new(1)
    };
    let outcome = sim::run(config, |runtime| {
        let network = MemoryNetwork::new(&runtime);
        let greeted = Arc::new(AtomicU64::new(0));
        start_rude(&runtime, &network, &greeted);
        let options = ClientOptions {
            time_limit: Duration::from_secs(2),
            ..ClientOptions::default()
        };
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let session = Device::connect(&runtime, link, address(), db(), options).unwrap();
        let error = session.storage().open("x").map(drop).unwrap_err();
        assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        // A call makes no further attempt after ten times its limit, and the longest pause is half
        // a second. The task that sends signs of life makes calls too.
        let count = greeted.load(Ordering::Relaxed);
        assert!((5..120).contains(&count), "{count} connections");
        session.close();
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}
