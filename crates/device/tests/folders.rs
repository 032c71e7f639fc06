//! The folders of a device with local files. Others on its machine may remove or replace them.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::address;
use siltstone_device::{
    ClientOptions, DataFolder, Device, FolderWanted, Folders, Server, ServerOptions,
};
use siltstone_storage::Runtime;
use siltstone_storage::link::{MemoryNetwork, Network};

/// A device with folders in a temporary directory.
struct World {
    dir: tempfile::TempDir,
    runtime: Runtime,
    network: MemoryNetwork,
    server: Server,
}

impl World {
    fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::threads();
        let network = MemoryNetwork::new(&runtime);
        let link: Arc<dyn Network> = Arc::new(network.clone());
        let folders: Arc<dyn Folders> =
            Arc::new(DataFolder::open(dir.path().join("data")).unwrap());
        let options = ServerOptions::default();
        let server = Server::start(&runtime, &link, &[address()], folders, options).unwrap();
        World {
            dir,
            runtime,
            network,
            server,
        }
    }

    fn connect(&self, name: &str) -> Arc<Device> {
        let folder = FolderWanted::Named {
            name: name.into(),
            create: true,
        };
        let network: Arc<dyn Network> = Arc::new(self.network.clone());
        let options = ClientOptions::default();
        Device::connect(&self.runtime, network, address(), folder, options).unwrap()
    }

    /// Waits until no session and no connection is left.
    fn until_unused(&self) {
        let begun = self.runtime.now();
        while !self.server.sessions().is_empty() || self.network.connection_count() > 0 {
            let waited = self.runtime.now().since(begun);
            assert!(waited < Duration::from_secs(60), "a session stays");
            self.runtime.sleep(Duration::from_millis(20));
        }
    }
}

/// Creates an object, and returns the names of all objects.
fn make(device: &Arc<Device>, name: &str) -> Vec<String> {
    let storage = device.storage();
    let lease = storage.lease("store").unwrap();
    storage.create(lease.epoch(), name).unwrap().sync().unwrap();
    storage.sync_dir(lease.epoch()).unwrap();
    let objects = storage.list().unwrap();
    lease.release().unwrap();
    objects.into_iter().map(|object| object.name).collect()
}

#[test]
fn a_folder_that_was_replaced_is_found_again() {
    let world = World::new();
    let folder = world.dir.path().join("data/db");
    let device = world.connect("db");
    assert_eq!(make(&device, "old"), ["old"]);
    device.close();
    world.until_unused();
    // Somebody on the device's machine removes the store.
    std::fs::remove_dir_all(&folder).unwrap();
    let device = world.connect("db");
    assert_eq!(make(&device, "new"), ["new"]);
    device.close();
    world.until_unused();
    // Or somebody puts another folder in its place.
    let other = world.dir.path().join("data/other");
    std::fs::create_dir(&other).unwrap();
    std::fs::write(other.join("found"), b"").unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::rename(&other, &folder).unwrap();
    let device = world.connect("db");
    assert_eq!(make(&device, "newer"), ["found", "newer"]);
    device.close();
    world.server.stop();
}
