//! The project's own engine with a device. The device holds the files, shares their folder, or is
//! lent work.
//!
//! Invariant: the sessions with the device end after the store that uses them.
//!
//! Threading: as [`SiltstoneDriver`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use siltstone::Stats;
use siltstone_device::url::url_of;
use siltstone_device::{ClientOptions, Placement};
use siltstone_storage::link::Address;

use super::{Placed, bytes_of, cpu_us_of, nice_threads};
use crate::engine::siltstone::{Beside, Opened, Siltstone, failed, options_of};
use crate::engine::{
    Abilities, Driver, Engine, EngineError, Promise, Result, SiltstoneDriver, ThreadClass,
};
use crate::settings::{EngineSettings, Files, Topology};

/// The prefix of the names of the engine's tasks.
const WORKERS: &str = "silt-";
/// How long an open waits for the lease of a process that was killed.
const LEASE_WAIT: Duration = Duration::from_secs(12);

/// Opens stores on one topology.
#[derive(Debug, Clone)]
pub struct PlacedDriver {
    topology: Topology,
    placed: Placed,
}

impl PlacedDriver {
    /// A driver for the stores of runs on this topology, with the device and the link of `placed`.
    pub fn new(topology: &Topology, placed: &Placed) -> PlacedDriver {
        PlacedDriver {
            topology: topology.clone(),
            placed: placed.clone(),
        }
    }

    /// The address of a store, and which of its parts are on the device.
    fn place(&self, folder: &Path) -> Result<(String, Placement)> {
        let wrong = |what: &str| EngineError::new("open", what);
        let address = self
            .placed
            .address
            .as_ref()
            .ok_or_else(|| wrong("there is no device"))?;
        let address: Address = address.parse().map_err(|_| wrong("the address is none"))?;
        let name = |folder: &Path| {
            let name = folder.file_name().unwrap_or_default();
            url_of(&address, &name.to_string_lossy())
        };
        let mut placement = Placement {
            client: ClientOptions {
                lease_wait: LEASE_WAIT,
                link_bytes_per_s: self.placed.limit_bytes_per_s,
                ..ClientOptions::default()
            },
            ..Placement::default()
        };
        let local = || folder.to_str().map(String::from);
        let local = || local().ok_or_else(|| wrong("the path of the folder is not Unicode"));
        let place = match self.topology.files {
            Files::Held => name(folder),
            Files::HeldLocalLog => {
                placement.tables = Some(name(&tables_of(folder)));
                local()?
            }
            Files::Local | Files::Shared | Files::Lent => {
                placement.devices.push(address.clone());
                local()?
            }
        };
        Ok((place, placement))
    }

    fn open_store(&self, folder: &Path, settings: &EngineSettings) -> Result<Opened> {
        let options = options_of(settings)?;
        if !self.topology.has_device() {
            let store = siltstone::Store::open(folder, options).map_err(failed("open"))?;
            return Ok(Opened::Local(store));
        }
        let (place, placement) = self.place(folder)?;
        let store = siltstone_device::open(&place, options, &placement).map_err(failed("open"))?;
        Ok(Opened::Placed(Box::new(store)))
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

    /// If the log is local, an unsynced write survives a kill of the host's process, because it is
    /// in the page cache. If the log is on the device, the process may be killed before the write
    /// has crossed the link.
    fn abilities(&self) -> Abilities {
        let abilities = SiltstoneDriver.abilities();
        let unsynced = match self.topology.files {
            Files::Held => Promise::Memory,
            Files::Local | Files::HeldLocalLog | Files::Shared | Files::Lent => abilities.unsynced,
        };
        Abilities {
            unsynced,
            ..abilities
        }
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
        let store = self.open_store(folder, settings)?;
        if self.topology.nice > 0 {
            nice_threads(WORKERS, self.topology.nice)
                .map_err(|error| EngineError::new("give the workers a nice value", error))?;
        }
        let sides = Sides {
            placed: self.placed.clone(),
        };
        Ok(Box::new(Siltstone::of(
            store,
            folder,
            Some(Box::new(sides)),
        )?))
    }
}

/// Counts what host, device and link do.
struct Sides {
    placed: Placed,
}

/// The kinds of sides, under which compactions are counted.
const KINDS: [&str; 2] = ["host", "device"];

/// The kind of an executor: the host's own, or a device. An executor that divides its jobs has only
/// the device's parts in its counts. The host's parts are in the counts of the host's own executor.
fn kind_of(name: &str) -> &'static str {
    match name {
        "cpu" => KINDS[0],
        _ => KINDS[1],
    }
}

impl Beside for Sides {
    fn counters(&self, store: &Opened, stats: &Stats) -> Vec<(String, u64)> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let mut add = |name: String, count: u64| *all.entry(name).or_default() += count;
        for kind in KINDS {
            add(format!("{kind}_compaction_count"), 0);
            add(format!("{kind}_compaction_in_bytes"), 0);
            add(format!("{kind}_compaction_busy_us"), 0);
        }
        for side in &stats.sides {
            let kind = kind_of(&side.name);
            add(format!("{kind}_compaction_count"), side.compaction_count);
            add(
                format!("{kind}_compaction_in_bytes"),
                side.compaction_in_bytes,
            );
            add(
                format!("{kind}_compaction_busy_us"),
                side.compaction_busy_us,
            );
        }
        if let Opened::Placed(store) = store {
            for report in store.devices().iter().map(|device| device.report()) {
                add("link_sent_bytes".into(), report.sent_bytes);
                add("link_received_bytes".into(), report.received_bytes);
                for bytes in &report.purposes {
                    let name = format!("link_purpose_{}_bytes", bytes.purpose);
                    add(name, bytes.sent + bytes.received);
                }
            }
        }
        if let Some(us) = self.placed.device_pid.and_then(cpu_us_of) {
            add("device_cpu_us".into(), us);
        }
        if let Some((sent, received)) = self.placed.interface.as_deref().and_then(bytes_of) {
            add("wire_sent_bytes".into(), sent);
            add("wire_received_bytes".into(), received);
        }
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_on_the_device_promises_less_than_a_local_one() {
        for (files, unsynced) in [
            (Files::Held, Promise::Memory),
            (Files::HeldLocalLog, Promise::Process),
            (Files::Shared, Promise::Process),
            (Files::Lent, Promise::Process),
            (Files::Local, Promise::Process),
        ] {
            let topology = Topology {
                files,
                ..Topology::default()
            };
            let driver = PlacedDriver::new(&topology, &Placed::default());
            let abilities = driver.abilities();
            assert_eq!(
                (abilities.unsynced, abilities.sync),
                (unsynced, true),
                "{files}"
            );
        }
    }
}
