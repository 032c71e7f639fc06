//! The machine of a device in a simulated run.
//!
//! Invariants: there is one process of the device at a time. A restarted process finds what the
//! storages contain after the kill, or after the power loss. A power loss keeps what was synced;
//! the caller decides what happens to the rest.
//!
//! Threading: owned by the task that watches over the device.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{Folders, MemoryFolders, Preferred, Server, ServerOptions};
use siltstone_storage::link::Network;
use siltstone_storage::sim::Process;
use siltstone_storage::{CrashPolicy, CrashReport, MemoryStorage, Runtime, Storage};
use siltstone_table::exec::Executor;

use super::{Tap, Watch, WatchedFolders, address};
use crate::rng::Rng;

/// Wraps the storage of each folder, between the storage and the watch.
pub type Below = Arc<dyn Fn(Arc<dyn Storage>) -> Arc<dyn Storage> + Send + Sync>;

/// Makes the executors that a device asks before its cores. Each process of the device has its own.
pub type MakePreferred = Arc<dyn Fn(&Runtime) -> Vec<Arc<dyn Executor>> + Send + Sync>;

/// The options of a machine.
#[derive(Clone)]
pub struct MachineOptions {
    /// The options of the machine's server.
    pub server: ServerOptions,
    /// Wraps the storage of each folder, below the watch.
    pub below: Below,
    /// Makes the executors that the device asks before its cores.
    pub preferred: MakePreferred,
    /// The folder that the device shares with a host on the same machine. A kill of the device
    /// leaves it as it is.
    pub shared: Option<&'static str>,
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
            preferred: Arc::new(|_| Vec::new()),
            shared: None,
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

    /// The folders that the device has for lent work now, with their names.
    pub fn scratch_folders(&self) -> Vec<(String, MemoryStorage)> {
        let all = self.folders.all().into_iter();
        all.filter(|(name, _)| name.starts_with("scratch-"))
            .collect()
    }

    /// The watch over the folders.
    pub fn watch(&self) -> &Arc<Watch> {
        &self.watch
    }

    /// Whether the device's process is alive.
    pub fn is_alive(&self) -> bool {
        self.runtime.is_group_alive(self.process.group())
    }

    /// Kills the device's process, if it is alive.
    pub fn kill(&mut self) {
        self.end_process();
        let folders = self
            .folders
            .after(false, |storage| storage.kill_in(&self.runtime));
        if let Some(name) = self.options.shared {
            folders.set_folder(name, self.folders.folder(name));
        }
        self.folders = Arc::new(folders);
    }

    /// Cuts the power of the machine. A host that shares a folder with the device is on the same
    /// machine, so the caller has to kill it first. The policy says what happens to data that was
    /// not synced. If a seed decides this, each folder has losses of its own. Reports the losses of
    /// all folders.
    pub fn lose_power(&mut self, policy: CrashPolicy) -> CrashReport {
        self.end_process();
        let count = Cell::new(0);
        let losses = Cell::new(CrashReport::default());
        let image = |storage: &MemoryStorage| {
            let number: u64 = count.replace(count.get() + 1);
            let policy = match policy {
                CrashPolicy::Seeded(seed) => CrashPolicy::Seeded(seed ^ number << 32),
                policy => policy,
            };
            let (image, report) = storage.crash_in(&self.runtime, policy);
            let mut sum = losses.get();
            sum.merge(&report);
            losses.set(sum);
            image
        };
        let folders = self.folders.after(true, image);
        self.folders = Arc::new(folders);
        losses.get()
    }

    fn end_process(&self) {
        if self.is_alive() {
            self.runtime.kill_group(self.process.group());
        }
        self.watch.killed();
    }

    /// Starts the device again after [`Machine::kill`] or [`Machine::lose_power`].
    pub fn start_again(&mut self) {
        let (runtime, tap) = (&self.runtime, &self.tap);
        self.process = start(runtime, tap, &self.folders, &self.watch, &self.options);
    }
}

/// Draws what a loss of power does to data that was not synced: all of it is lost, or all of it is
/// kept, or parts of it are lost, torn and reordered.
pub fn draw_losses(rng: &mut Rng) -> CrashPolicy {
    match rng.below(8) {
        0 | 1 => CrashPolicy::LoseUnsynced,
        2 => CrashPolicy::KeepUnsynced,
        _ => CrashPolicy::Seeded(rng.draw()),
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
    let (mut options, preferred) = (options.server.clone(), Arc::clone(&options.preferred));
    let device = move |runtime: Runtime| {
        options.preferred = Preferred(preferred(&runtime));
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
