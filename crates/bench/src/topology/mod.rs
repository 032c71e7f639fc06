//! Runs the host and the device of a benchmark as processes of their own, with a link between them.
//!
//! [`Standing`] starts what a [`Topology`] asks for: two network namespaces with a shaped link, and
//! a device. Each run is then carried out by a child process of this program ([`Standing::run`]).
//! The child gets a [`Task`] and answers with an [`Outcome`]. The engine in it opens its store on
//! the device (`placed.rs`).
//!
//! Invariants: a child ends before [`Standing::run`] returns. When [`Standing`] is dropped, first
//! the device ends, and then the namespaces are deleted. If namespaces cannot be made, a rate
//! limiter in the client is used instead, and the record says so.
//!
//! Threading: one thread starts everything and runs the children. The output of a child is read by
//! a thread of its own.

mod awake;
mod device;
mod namespaces;
mod placed;
mod process;
mod task;

use std::path::{Path, PathBuf};

use crate::settings::{Settings, Topology};

pub use awake::Awake;
pub use device::DeviceProcess;
pub use namespaces::{Namespaces, NoNamespaces, bytes_of};
pub use placed::PlacedDriver;
pub use process::{WithinArgs, cpu_us_of, has_cores, keep_to, nice_threads, within};
pub use task::{Outcome, Placed, Task, carry_out};

/// Why a topology could not be started, or why a run on it failed.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// The device did not start, or has ended.
    #[error("the device `{command}`: {what}")]
    Device {
        /// The command that was started.
        command: String,
        /// What happened.
        what: String,
    },
    /// The process with the workload failed.
    #[error("the process with the workload: {0}")]
    Child(String),
    /// The user has ended the run.
    #[error("the run was interrupted")]
    Interrupted,
    /// The system refused something that the topology needs.
    #[error("{0}")]
    System(String),
}

/// How the link of a run was shaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shaped {
    /// The link was not shaped.
    No,
    /// By the kernel, between two network namespaces.
    Namespaces,
    /// By a limiter in the client.
    Limiter,
}

/// The device and the namespaces that were started for the runs of one topology.
#[derive(Debug)]
pub struct Standing {
    topology: Topology,
    program: PathBuf,
    // Dropped in this order.
    device: Option<DeviceProcess>,
    namespaces: Option<Namespaces>,
    /// Why namespaces could not be made.
    refused: Option<NoNamespaces>,
    /// The socket and the notes of the device.
    _own: Option<tempfile::TempDir>,
}

impl Standing {
    /// Starts what the settings ask for. The stores of the runs lie below `folder`. `program` is
    /// the file of this program.
    ///
    /// # Errors
    /// If the device does not start, or if this process cannot use the cores of the topology.
    pub fn start(
        program: &Path,
        settings: &Settings,
        folder: &Path,
    ) -> Result<Standing, TopologyError> {
        let topology = settings.topology.clone();
        let mut standing = Standing {
            program: program.to_path_buf(),
            device: None,
            namespaces: None,
            refused: None,
            _own: None,
            topology,
        };
        for cores in [
            &standing.topology.host_cores,
            &standing.topology.device_cores,
        ] {
            has_cores(cores).map_err(|error| TopologyError::System(error.to_string()))?;
        }
        if !standing.topology.has_device() {
            return Ok(standing);
        }
        if let Some(bytes_per_s) = standing.topology.link_bytes_per_s() {
            match Namespaces::make(bytes_per_s.saturating_mul(8)) {
                Ok(made) => standing.namespaces = Some(made),
                Err(refused) => standing.refused = Some(refused),
            }
        }
        let own = tempfile::Builder::new()
            .prefix("silt-bench-device-")
            .tempdir();
        let own = own.map_err(|error| TopologyError::System(error.to_string()))?;
        standing.device = Some(DeviceProcess::start(
            program,
            &standing.topology,
            folder,
            own.path(),
            standing.namespaces.as_ref(),
        )?);
        standing._own = Some(own);
        Ok(standing)
    }

    /// How the link is shaped.
    pub fn shaped(&self) -> Shaped {
        match (&self.namespaces, self.topology.link_bytes_per_s()) {
            (Some(_), _) => Shaped::Namespaces,
            (None, Some(_)) if self.topology.has_device() => Shaped::Limiter,
            _ => Shaped::No,
        }
    }

    /// Says in sentences what is used in place of two machines.
    pub fn stand_ins(&self) -> Vec<String> {
        let topology = &self.topology;
        let mut all = Vec::new();
        if topology.has_device() {
            all.push(format!(
                "The device is a process of the same machine (files: {}; cores of the host: {}, \
                 of the device: {}).",
                topology.files, topology.host_cores, topology.device_cores
            ));
        }
        match self.shaped() {
            Shaped::No => {}
            Shaped::Namespaces => all.push(format!(
                "The link is a pair of virtual Ethernet interfaces between two network \
                 namespaces, which `tc` shapes to {} in each direction.",
                topology.link
            )),
            Shaped::Limiter => {
                let why = self.refused.as_ref();
                let why = why.map_or_else(String::new, |why| format!(" ({why})"));
                all.push(format!(
                    "The link is a Unix socket, and a limiter in the client stands in for its \
                     {} in each direction: network namespaces could not be made{why}.",
                    topology.link
                ));
            }
        }
        all
    }

    /// Where the process with the workload finds the device and the link.
    fn placed(&self) -> Placed {
        Placed {
            address: self
                .device
                .as_ref()
                .map(|device| device.address().to_string()),
            device_pid: self.device.as_ref().map(DeviceProcess::pid),
            interface: self
                .namespaces
                .as_ref()
                .map(|made| made.interface().to_string()),
            limit_bytes_per_s: match self.shaped() {
                Shaped::Limiter => self.topology.link_bytes_per_s(),
                _ => None,
            },
        }
    }
}
