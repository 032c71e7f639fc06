//! A server that is stopped while requests of its sessions do not end.

mod common;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use common::{address, impatient};
use siltstone_device::{Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{OpKind, Result, Runtime, Storage};

/// How long a sync of names takes.
const SLOW: Duration = Duration::from_secs(200);

/// Folders on a disk that hangs.
struct SlowFolders {
    inner: MemoryFolders,
    runtime: Runtime,
}

impl Folders for SlowFolders {
    fn root(&self) -> Arc<dyn Storage> {
        self.inner.root()
    }

    fn open(&self, name: &str, create: bool) -> Result<Arc<dyn Storage>> {
        let folder = FaultStorage::new(self.inner.open(name, create)?, &self.runtime);
        folder.add(Rule::on(OpKind::SyncDir, Fault::Delay(SLOW)).for_good());
        Ok(Arc::new(folder))
    }

    fn open_scratch(&self, name: &str) -> Result<Arc<dyn Storage>> {
        self.inner.open_scratch(name)
    }

    fn remove_scratch_folder(&self, name: &str) -> Result<()> {
        self.inner.remove_scratch_folder(name)
    }

    fn remove_scratch(&self) -> Result<()> {
        self.inner.remove_scratch()
    }

    fn open_shared(&self, path: &str) -> Result<(Arc<dyn Storage>, PathBuf)> {
        self.inner.open_shared(path)
    }

    fn boot(&self) -> Vec<u8> {
        self.inner.boot()
    }
}

#[test]
fn the_sessions_of_a_server_that_is_stopped_end_side_by_side() {
    let outcome = sim::run(SimConfig::new(3), |runtime| {
        let link: Arc<dyn Network> = Arc::new(MemoryNetwork::new(&runtime));
        let folders: Arc<dyn Folders> = Arc::new(SlowFolders {
            inner: MemoryFolders::new(&runtime),
            runtime: runtime.clone(),
        });
        let options = ServerOptions::default();
        let limit = options.end_limit;
        let server = Server::start(&runtime, &link, &[address()], folders, options);
        let server = server.expect("a server");
        let hosts = (0..4).map(|n| {
            let folder = FolderWanted::Named {
                name: format!("db-{n}"),
                create: true,
            };
            let options = impatient(Duration::from_secs(20));
            let device = Device::connect(&runtime, link.clone(), address(), folder, options);
            let device = device.expect("a session");
            let sync = move || {
                let storage = device.storage();
                let lease = storage.lease("store").expect("the lease");
                // The answer does not come before the server has stopped.
                let synced = storage.sync_dir(lease.epoch());
                drop(lease);
                device.close();
                synced.is_ok()
            };
            runtime.spawn("host", sync).expect("a task")
        });
        let hosts: Vec<_> = hosts.collect();
        runtime.sleep(Duration::from_secs(5));
        let begun = runtime.now();
        server.stop();
        let took = runtime.now().since(begun);
        assert!(took >= limit, "nothing was in the way of the end: {took:?}");
        assert!(took < 2 * limit, "the sessions ended in turn: {took:?}");
        for host in hosts {
            assert!(!host.join().expect("no panic"));
        }
        // The tasks of the server end with their requests.
        runtime.sleep(2 * SLOW);
    });
    if let Err(failure) = outcome.result {
        panic!("{failure}");
    }
}
