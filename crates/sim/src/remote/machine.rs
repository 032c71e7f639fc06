//! The machine of a device in a simulated run.
//!
//! Invariants: there is one process of the device at a time. A restarted process finds what the
//! storages contain after the kill, or after the power loss.
//!
//! Threading: owned by the task that watches over the device.

use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{Folders, MemoryFolders, Server, ServerOptions};
use siltstone_storage::link::Network;
use siltstone_storage::sim::Process;
use siltstone_storage::{CrashPolicy, Runtime, Storage};

use super::{Tap, Watch, WatchedFolders, address};

/// Wraps the storage of each folder, between the storage and the watch.
pub type Below = Arc<dyn Fn(Arc<dyn Storage>) -> Arc<dyn Storage> + Send + Sync>;

/// The options of a machine.
#[derive(Clone)]
pub struct MachineOptions {
    /// The options of the machine's server.
    pub server: ServerOptions,
    /// Wraps the storage of each folder, below the watch.
    pub below: Below,
}

impl Default for MachineOptions {
    fn default() -> Self {
        MachineOptions {
            server: ServerOptions {
                slots: 2,
                parallelism: 2,
                ..ServerOptions::default()
            },
            below: Arc::new(|storage| storage),
        }
    }
}

/// See the module.
pub struct Machine {
    runtime: Runtime,
    tap: Tap,
    options: MachineOptions,
    folders: Arc<MemoryFolders>,
    watch: Arc<Watch>,
    process: Process<()>,
}

impl Machine {
    /// A machine with empty folders, whose device has started.
    pub fn start(runtime: &Runtime, tap: &Tap, options: MachineOptions) -> Machine {
        let folders = Arc::new(MemoryFolders::new(runtime));
        let watch = Watch::new();
        let process = start(runtime, tap, &folders, &watch, &options);
        Machine {
            runtime: runtime.clone(),
            tap: tap.clone(),
            options,
            folders,
            watch,
            process,
        }
    }

    /// The machine's folders as they are now.
    pub fn folders(&self) -> &Arc<MemoryFolders> {
        &self.folders
    }

    /// The watch over the folders.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Whether the device's process is alive.
    pub fn is_alive(&self) -> bool {
        self.runtime.is_group_alive(self.process.group())
    }

    /// Kills the device's process, if it is alive. If `is_power`, the machine loses power, and
    /// everything that was not synced is lost.
    pub fn kill(&mut self, is_power: bool) {
        if self.is_alive() {
            self.runtime.kill_group(self.process.group());
        }
        self.watch.killed();
        let of = self.runtime.clone();
        let folders = self.folders.after(is_power, move |storage| match is_power {
            true => storage.crash_in(&of, CrashPolicy::LoseUnsynced).0,
            false => storage.kill_in(&of),
        });
        self.folders = Arc::new(folders);
    }

    /// Starts the device again after [`Machine::kill`].
    pub fn start_again(&mut self) {
        let (runtime, tap) = (&self.runtime, &self.tap);
        self.process = start(runtime, tap, &self.folders, &self.watch, &self.options);
    }
}

fn start(
    runtime: &Runtime,
    tap: &Tap,
    folders: &Arc<MemoryFolders>,
    watch: &Arc<Watch>,
    options: &MachineOptions,
) -> Process<()> {
    let network: Arc<dyn Network> = Arc::new(tap.clone());
    let (watch, below) = (Arc::clone(watch), Arc::clone(&options.below));
    let folders: Arc<dyn Folders> = Arc::new(WatchedFolders::new(folders.clone(), watch, below));
    let options = options.server.clone();
    let device = move |runtime: Runtime| {
        let server = Server::start(&runtime, &network, &[address()], folders, options);
        let _server = server.expect("a server");
        loop {
            runtime.sleep(Duration::from_secs(3600));
        }
    };
    let process = runtime
        .spawn_process("device", device)
        .expect("memory for a stack");
    tap.set_device(process.group());
    process
}
