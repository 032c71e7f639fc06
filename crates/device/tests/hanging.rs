//! Hosts of a device whose disk hangs, in a simulated run.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::ChangedFolders;
use common::{address, impatient};
use siltstone_device::{
    ClientOptions, Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions,
};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{OpKind, Runtime, Storage, StorageErrorKind};

/// A device with such a disk, and a session of a host.
struct World {
    runtime: Runtime,
    folders: Arc<MemoryFolders>,
    server: Server,
    device: Arc<Device>,
}

/// Runs a test with a device on whose disk each call of this kind takes this long.
fn with_slow(
    (kind, delay): (OpKind, Duration),
    options: ClientOptions,
    test: impl FnOnce(&World) + Send + 'static,
) {
    let outcome = sim::run(SimConfig::new(5), move |runtime| {
        let link: Arc<dyn Network> = Arc::new(MemoryNetwork::new(&runtime));
        let folders = Arc::new(MemoryFolders::new(&runtime));
        let rt = runtime.clone();
        let slow = move |folder: Arc<dyn Storage>| -> Arc<dyn Storage> {
            let folder = FaultStorage::new(folder, &rt);
            folder.add(Rule::on(kind, Fault::Delay(delay)).for_good());
            Arc::new(folder)
        };
        let slow: Arc<dyn Folders> = Arc::new(ChangedFolders::of(&folders).with_change(slow));
        let served = ServerOptions::default();
        let server = Server::start(&runtime, &link, &[address()], slow, served);
        let folder = FolderWanted::Named {
            name: "db".into(),
            create: true,
        };
        let device = Device::connect(&runtime, link, address(), folder, options);
        let world = World {
            runtime,
            folders,
            server: server.expect("a server"),
            device: device.expect("a session"),
        };
        test(&world);
        world.device.close();
        world.server.stop();
        // The tasks of the server end with their requests.
        world.runtime.sleep(2 * delay);
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// All connections of a host wait for the disk, and more callers wait for a connection. The host
/// still gives signs of life, so nobody takes its lease.
#[test]
fn signs_of_life_go_on_while_all_connections_wait() {
    let options = ClientOptions {
        connections_max: 2,
        ..impatient(Duration::from_secs(20))
    };
    let slow = (OpKind::Read, Duration::from_secs(40));
    with_slow(slow, options, |world| {
        let storage = world.device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "object").unwrap();
        file.append(&[b"bytes"]).unwrap();
        file.sync().unwrap();
        let reader = storage.open("object").unwrap();
        let readers = (0..6).map(|n| {
            let reader = Arc::clone(&reader);
            let read = move || reader.read_at(0, &mut [0; 5]);
            world.runtime.spawn(&format!("reader-{n}"), read).unwrap()
        });
        let readers: Vec<_> = readers.collect();
        for _ in 0..30 {
            world.runtime.sleep(Duration::from_secs(1));
            let sessions = world.server.sessions();
            let silent = sessions[0].silent_for;
            assert!(silent < Duration::from_secs(4), "silent for {silent:?}");
        }
        for reader in readers {
            reader.join().unwrap().unwrap();
        }
        lease.release().unwrap();
    });
}

/// The device says that it is working as long as a call hangs. A close does not wait for that.
#[test]
fn a_close_does_not_wait_for_a_call_that_hangs() {
    let options = impatient(Duration::from_secs(20));
    let slow = (OpKind::Sync, Duration::from_secs(400));
    with_slow(slow, options, |world| {
        let storage = world.device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "log").unwrap();
        file.append(&[b"bytes"]).unwrap();
        let sync = move || file.sync();
        let sync = world.runtime.spawn("sync", sync).unwrap();
        world.runtime.sleep(Duration::from_secs(3));
        let begun = world.runtime.now();
        world.device.close();
        let took = world.runtime.now().since(begun);
        assert!(took < Duration::from_secs(80), "the close took {took:?}");
        let error = sync.join().unwrap().unwrap_err();
        let kinds = [StorageErrorKind::Unreachable, StorageErrorKind::Closed];
        assert!(kinds.contains(&error.kind), "{error}");
    });
}

/// A disk that is only slow gets everything that was appended. The second append is not sent before
/// the first one is answered.
#[test]
fn a_close_waits_for_a_slow_disk() {
    let options = impatient(Duration::from_secs(20));
    let delay = Duration::from_secs(10);
    with_slow((OpKind::Append, delay), options, move |world| {
        let storage = world.device.storage();
        let lease = storage.lease("store").unwrap();
        let file = storage.create(lease.epoch(), "log").unwrap();
        file.append(&[b"one, "]).unwrap();
        file.append(&[b"two"]).unwrap();
        let begun = world.runtime.now();
        world.device.close();
        let took = world.runtime.now().since(begun);
        assert!(took > delay, "the close took {took:?}");
        let folder = world.folders.folder("db");
        assert_eq!(folder.read_small("log").unwrap(), b"one, two");
    });
}
