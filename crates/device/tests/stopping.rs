//! A server that is stopped while requests of its sessions do not end.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::folders::ChangedFolders;
use common::{address, impatient};
use siltstone_device::{Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{OpKind, Result, Storage, StorageErrorKind};

/// How long a call takes that hangs.
const SLOW: Duration = Duration::from_secs(200);

/// What hangs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hangs {
    /// Opening a folder.
    Folder,
    /// Calls of this kind.
    Calls(OpKind),
}

/// Does something on each of several folders of a device whose disk hangs, and stops the server
/// meanwhile. All of it fails, and the stop takes as long as it may, and not longer.
fn stop_while(hangs: Hangs, folders: usize, work: fn(&dyn Storage) -> Result<()>) {
    let outcome = sim::run(SimConfig::new(3), move |runtime| {
        let link: Arc<dyn Network> = Arc::new(MemoryNetwork::new(&runtime));
        let rt = runtime.clone();
        let slow = move |folder: Arc<dyn Storage>| -> Arc<dyn Storage> {
            let folder = FaultStorage::new(folder, &rt);
            match hangs {
                Hangs::Folder => rt.sleep(SLOW),
                Hangs::Calls(kind) => {
                    folder.add(Rule::on(kind, Fault::Delay(SLOW)).for_good());
                }
            }
            Arc::new(folder)
        };
        let memory = Arc::new(MemoryFolders::new(&runtime));
        let slow: Arc<dyn Folders> = Arc::new(ChangedFolders::of(&memory).with_change(slow));
        let options = ServerOptions::default();
        let limit = options.end_limit;
        let server = Server::start(&runtime, &link, &[address()], slow, options);
        let server = server.expect("a server");
        let hosts = (0..folders).map(|n| {
            let (rt, link) = (runtime.clone(), link.clone());
            let host = move || {
                let folder = FolderWanted::Named {
                    name: format!("db-{n}"),
                    create: true,
                };
                let options = impatient(Duration::from_secs(20));
                // The answer does not come before the server has stopped.
                let device = Device::connect(&rt, link, address(), folder, options)?;
                let worked = work(&*device.storage());
                device.close();
                worked
            };
            runtime.spawn("host", host).expect("a task")
        });
        let hosts: Vec<_> = hosts.collect();
        runtime.sleep(Duration::from_secs(5));
        let begun = runtime.now();
        server.stop();
        let took = runtime.now().since(begun);
        assert!(took >= limit, "nothing was in the way of the end: {took:?}");
        assert!(took < 2 * limit, "the stop waited for what hangs: {took:?}");
        for host in hosts {
            let ended = host.join().expect("no panic");
            let error = ended.expect_err("it hangs");
            assert_eq!(error.kind, StorageErrorKind::Unreachable, "{error}");
        }
        // The tasks of the server end with their requests.
        runtime.sleep(2 * SLOW);
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}

/// The sessions end side by side.
#[test]
fn syncs_of_names_that_hang() {
    stop_while(Hangs::Calls(OpKind::SyncDir), 4, |storage| {
        let lease = storage.lease("store")?;
        storage.sync_dir(lease.epoch())
    });
}

/// A read is no obstacle to the end of its session, but the task of its connection does not end.
#[test]
fn reads_that_hang() {
    stop_while(Hangs::Calls(OpKind::Read), 4, |storage| {
        let lease = storage.lease("store")?;
        let file = storage.create(lease.epoch(), "object")?;
        file.append(&[b"bytes"])?;
        file.sync()?;
        storage.open("object")?.read_at(0, &mut [0; 5])
    });
}

/// The session has not begun, and it does not begin later.
#[test]
fn a_folder_whose_open_hangs() {
    stop_while(Hangs::Folder, 1, |_| Ok(()));
}
