//! A device and its clients in one process, over a network in memory.

#![allow(dead_code)]

pub mod folders;
pub mod jobs;
pub mod peer;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{
    ClientOptions, Device, FolderWanted, Folders, MemoryFolders, Server, ServerOptions,
};
use siltstone_storage::Runtime;
use siltstone_storage::link::{Address, MemoryNetwork, Network};
use siltstone_storage::sim::{self, SimConfig};

/// A device, and what is needed to connect to it.
pub struct Setup {
    pub runtime: Runtime,
    pub network: MemoryNetwork,
    pub folders: Arc<MemoryFolders>,
    pub options: ServerOptions,
    pub server: Option<Server>,
}

pub fn address() -> Address {
    "memory:device".parse().expect("an address")
}

impl Setup {
    pub fn new(runtime: &Runtime, options: ServerOptions) -> Setup {
        let mut setup = Setup {
            runtime: runtime.clone(),
            network: MemoryNetwork::new(runtime),
            folders: Arc::new(MemoryFolders::new(runtime)),
            options,
            server: None,
        };
        setup.start();
        setup
    }

    /// Starts the server.
    pub fn start(&mut self) {
        let network: Arc<dyn Network> = Arc::new(self.network.clone());
        let folders: Arc<dyn Folders> = self.folders.clone();
        let options = self.options.clone();
        let server = Server::start(&self.runtime, &network, &[address()], folders, options);
        self.server = Some(server.expect("a server"));
    }

    /// Stops the server in an orderly way.
    pub fn stop(&mut self) {
        self.server.take().expect("a server").stop();
    }

    /// A session on the folder of this name.
    pub fn connect(&self, folder: &str) -> Arc<Device> {
        self.connect_with(folder, ClientOptions::default())
    }

    pub fn connect_with(&self, folder: &str, options: ClientOptions) -> Arc<Device> {
        let folder = FolderWanted::Named {
            name: folder.to_string(),
            create: true,
        };
        let network: Arc<dyn Network> = Arc::new(self.network.clone());
        Device::connect(&self.runtime, network, address(), folder, options).expect("a session")
    }
}

/// The seeds of a test. There are `count` of them, unless the environment asks for others:
/// `SILT_SEED=K` for seed K, with `SILT_COUNT=N` for N seeds from K on, and `SILT_SEEDS=P` for P
/// percent of `count`.
pub fn seeds(count: u64) -> Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        let number: Option<u64> = text.parse().ok();
        Some(number.unwrap_or_else(|| panic!("{name}={text} is no number")))
    };
    match number("SILT_SEED") {
        Some(seed) => seed..seed + number("SILT_COUNT").unwrap_or(1),
        None => 0..(count * number("SILT_SEEDS").unwrap_or(100) / 100).max(1),
    }
}

/// Whether these seeds are all of the `count` seeds of a test, so that each of the cases that it
/// wants occurs.
pub fn are_all(seeds: &Range<u64>, count: u64) -> bool {
    seeds.start == 0 && seeds.end >= count
}

/// Options of a client that gives up early.
pub fn impatient(limit: Duration) -> ClientOptions {
    ClientOptions {
        time_limit: limit,
        ..ClientOptions::default()
    }
}

/// Runs a test with a device in simulation.
pub fn simulated(seed: u64, test: impl FnOnce(&mut Setup) + Send + 'static) {
    let config = SimConfig {
        max_steps: 5_000_000,
        ..SimConfig::new(seed)
    };
    let outcome = sim::run(config, move |runtime| {
        let mut setup = Setup::new(&runtime, ServerOptions::default());
        test(&mut setup);
        setup.stop();
    });
    if let Err(failure) = outcome.result {
        panic!("seed {seed}: {failure}");
    }
}
