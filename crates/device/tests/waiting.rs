//! Callers that wait for a device that is down, in a simulated run.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::address;
use siltstone_device::{
    ClientOptions, Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions,
};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::sim::{self, Process, SimConfig};
use siltstone_storage::{Runtime, StorageErrorKind};

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
