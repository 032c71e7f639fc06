//! The project's own engine with a device: it holds the files, shares their folder, or is lent
//! work.
//!
//! Invariant: the sessions with the device end after the store that uses them.
//!
//! Threading: as [`super::SiltstoneDriver`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::storage::{FileStorage, Runtime, Storage};
use siltstone::{Components, Event, EventListener, Options, Store};
use siltstone_device::{ClientOptions, Device, DeviceExecutor, FolderWanted};
use siltstone_storage::link::{Network, SocketNetwork};

use super::siltstone::{Beside, Siltstone, SiltstoneDriver, failed, options_of};
use super::{Abilities, Driver, Engine, EngineError, Result, ThreadClass};
use crate::settings::{EngineSettings, Files, Topology};
use crate::topology::{LimitedNetwork, Placed, bytes_of, cpu_us_of, nice_threads};

/// What the names of the engine's workers begin with.
const WORKERS: &str = "silt-";
/// How long an open waits for the lease of a process that was killed.
const LEASE_WAIT: Duration = Duration::from_secs(12);

/// Opens stores whose topology is this one.
#[derive(Debug, Clone)]
pub struct PlacedDriver {
    topology: Topology,
    placed: Placed,
}

impl PlacedDriver {
    /// A driver for the stores of runs on what stands.
    pub fn new(topology: &Topology, placed: &Placed) -> PlacedDriver {
        PlacedDriver {
            topology: topology.clone(),
            placed: placed.clone(),
        }
    }

    /// Connects to the device.
    fn connect(&self, folder: FolderWanted) -> Result<Arc<Device>> {
        let runtime = Runtime::threads();
        let wrong = |what: &str| EngineError::new("connect to the device", what);
        let address = self
            .placed
            .address
            .as_ref()
            .ok_or_else(|| wrong("it has no address"))?;
        let address = address.parse().map_err(|_| wrong("its address is none"))?;
        let sockets: Arc<dyn Network> = Arc::new(SocketNetwork::new(&runtime));
        let network = match self.placed.limit_bytes_per_s {
            None => sockets,
            Some(rate) => Arc::new(LimitedNetwork::new(&runtime, sockets, rate)),
        };
        let options = ClientOptions {
            lease_wait: LEASE_WAIT,
            ..ClientOptions::default()
        };
        Device::connect(&runtime, network, address, folder, options)
            .map_err(|error| EngineError::new("connect to the device", error))
    }

    /// The parts of a store, and its session with the device.
    fn components(&self, folder: &Path, options: &Options) -> Result<(Components, Sessions)> {
        let named = |folder: &Path| FolderWanted::Named {
            name: folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            create: options.create_if_missing,
        };
        let storage = |error| EngineError::new("open", error);
        let (mut components, device) = match self.topology.files {
            Files::Local => {
                let own = Components::for_path(folder, options).map_err(failed("open"))?;
                (own, None)
            }
            Files::Held => {
                let device = self.connect(named(folder))?;
                (
                    Components::on(device.storage(), Runtime::threads()),
                    Some(device),
                )
            }
            Files::HeldLocalLog => {
                let device = self.connect(named(&tables_of(folder)))?;
                let root = FileStorage::open_or_create(folder).map_err(storage)?;
                let root: Arc<dyn Storage> = Arc::new(root);
                let mut components = Components::on(root, Runtime::threads());
                components.tables = device.storage();
                (components, Some(device))
            }
            Files::Shared | Files::Lent => {
                let device = self.connect(FolderWanted::None)?;
                let own = Components::for_path(folder, options).map_err(failed("open"))?;
                (own, Some(device))
            }
        };
        let executor = device
            .as_ref()
            .map(|device| Arc::new(DeviceExecutor::new("device", device)));
        if let Some(executor) = &executor {
            components.executors.push(executor.clone());
        }
        let seen = Arc::new(Seen::default());
        components.listener = Some(seen.clone());
        let sessions = Sessions {
            device,
            executor,
            seen,
            placed: self.placed.clone(),
        };
        Ok((components, sessions))
    }
}

/// The folder of the tables of a store whose log is local, as the device sees it.
fn tables_of(folder: &Path) -> PathBuf {
    let mut name = folder.file_name().unwrap_or_default().to_os_string();
    name.push("-tables");
    folder.with_file_name(name)
}

impl Driver for PlacedDriver {
    fn name(&self) -> &str {
        SiltstoneDriver.name()
    }

    fn version(&self) -> String {
        SiltstoneDriver.version()
    }

    fn abilities(&self) -> Abilities {
        SiltstoneDriver.abilities()
    }

    fn settings(&self, settings: &EngineSettings) -> BTreeMap<String, String> {
        SiltstoneDriver.settings(settings)
    }

    fn thread_class(&self, name: &str) -> ThreadClass {
        SiltstoneDriver.thread_class(name)
    }

    fn folders(&self, folder: &Path) -> Vec<PathBuf> {
        match self.topology.files {
            Files::HeldLocalLog => vec![folder.to_path_buf(), tables_of(folder)],
            _ => vec![folder.to_path_buf()],
        }
    }

    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let options = options_of(settings)?;
        let (components, sessions) = self.components(folder, &options)?;
        let store = Store::open_with(components, options).map_err(failed("open"))?;
        if !self.topology.has_device() && self.topology.nice > 0 {
            nice_threads(WORKERS, self.topology.nice)
                .map_err(|error| EngineError::new("give the workers a nice value", error))?;
        }
        Ok(Box::new(Siltstone::of(
            store,
            folder,
            Some(Box::new(sessions)),
        )?))
    }
}

/// What is done by each side, from events.
#[derive(Debug, Default)]
struct Seen {
    host: Done,
    device: Done,
    both: Done,
}

#[derive(Debug, Default)]
struct Done {
    count: AtomicU64,
    in_bytes: AtomicU64,
    flush_count: AtomicU64,
}

impl EventListener for Seen {
    fn on_event(&self, event: &Event) {
        match event {
            // A compaction that writes nothing only moved tables.
            Event::Compacted {
                executor,
                in_bytes,
                out_bytes,
                ..
            } if *out_bytes > 0 => {
                let done = self.of(executor);
                done.count.fetch_add(1, Ordering::Relaxed);
                done.in_bytes.fetch_add(*in_bytes, Ordering::Relaxed);
            }
            Event::Flushed { executor, .. } => {
                self.of(executor)
                    .flush_count
                    .fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Seen {
    fn of(&self, executor: &str) -> &Done {
        match executor {
            "device" => &self.device,
            "cpu" => &self.host,
            _ => &self.both,
        }
    }
}

/// The session with the device, and what is counted of it.
struct Sessions {
    device: Option<Arc<Device>>,
    executor: Option<Arc<DeviceExecutor>>,
    seen: Arc<Seen>,
    placed: Placed,
}

fn counted(counters: &[(&str, u64)]) -> Vec<(String, u64)> {
    let counters = counters.iter();
    counters
        .map(|(name, count)| (name.to_string(), *count))
        .collect()
}

impl Beside for Sessions {
    fn counters(&self) -> Vec<(String, u64)> {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Seen { host, device, both } = &*self.seen;
        let mut all = counted(&[
            ("host_compaction_count", get(&host.count)),
            ("host_compaction_in_bytes", get(&host.in_bytes)),
            ("host_flush_count", get(&host.flush_count)),
            ("device_compaction_count", get(&device.count)),
            ("device_compaction_in_bytes", get(&device.in_bytes)),
            ("device_flush_count", get(&device.flush_count)),
            ("divided_compaction_count", get(&both.count)),
            ("divided_compaction_in_bytes", get(&both.in_bytes)),
        ]);
        if let Some(device) = &self.device {
            let report = device.report();
            all.extend(counted(&[
                ("link_sent_bytes", report.sent_bytes),
                ("link_received_bytes", report.received_bytes),
            ]));
            let both = report.purposes.iter();
            all.extend(both.map(|bytes| {
                let name = format!("link_purpose_{}_bytes", bytes.purpose);
                (name, bytes.sent + bytes.received)
            }));
        }
        if let Some(executor) = &self.executor {
            all.extend(counted(&[(
                "link_lent_table_bytes",
                executor.sent_table_bytes(),
            )]));
        }
        if let Some(us) = self.placed.device_pid.and_then(cpu_us_of) {
            all.extend(counted(&[("device_cpu_us", us)]));
        }
        if let Some((sent, received)) = self.placed.interface.as_deref().and_then(bytes_of) {
            all.extend(counted(&[
                ("wire_sent_bytes", sent),
                ("wire_received_bytes", received),
            ]));
        }
        all
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        if let Some(executor) = &self.executor {
            executor.close();
        }
        if let Some(device) = &self.device {
            device.close();
        }
    }
}
