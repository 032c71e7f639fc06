//! The machine, its limits, and the build: what figures depend on beside the engine.
//!
//! Threading: pure functions. The probe of the memory takes about a tenth of a second and 64 MiB;
//! it must not run while something is measured.

use std::path::Path;
use std::time::Instant;

use serde::{Deserialize, Serialize};

mod build;
mod cgroup;
mod disk;
mod mount;
mod speed;

pub use build::{Build, UNKNOWN};
pub use cgroup::{Cgroup, cgroup};
pub use disk::DiskRequests;
pub use mount::{Mount, mount_of};
pub use speed::{Speed, usable_cores};

/// The machine that a run used. Facts that cannot be found out are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The model of the processor.
    pub cpu: Option<String>,
    /// The logical cores that this process may use.
    pub cores: Option<u64>,
    /// Bytes of main memory.
    pub memory_bytes: Option<u64>,
    /// Whether a hypervisor runs the machine, so that times include its own.
    pub is_virtual: Option<bool>,
    /// The kernel, for example `Linux 6.1.0, x86_64`.
    pub kernel: Option<String>,
    /// The distribution.
    pub distribution: Option<String>,
    /// The file system of the store's folder, for example `ext4`.
    pub file_system: Option<String>,
    /// What is mounted there, for example `/dev/sda1`.
    pub device: Option<String>,
    /// The limits of the control groups of this process.
    pub cgroup: Option<Cgroup>,
    /// Threads that wanted to run in the minute before, on average.
    pub load: Option<f64>,
    /// What copying 32 MiB of memory reached, in GB (10^9 bytes) a second: the best of five.
    /// Machines that are shared drift, and this shows it.
    pub memcpy_gb_per_s: Option<f64>,
}

impl Machine {
    /// Finds out about this machine and about the file system of `folder`, and probes its memory.
    pub fn of(folder: &Path) -> Machine {
        let mount = mount_of(folder);
        let mut machine = Machine {
            cores: cores(),
            file_system: mount.as_ref().map(|mount| mount.file_system.clone()),
            device: mount.and_then(|mount| mount.device),
            cgroup: cgroup(),
            memcpy_gb_per_s: memcpy_gb_per_s(),
            ..Machine::default()
        };
        machine.take_proc();
        machine
    }

    #[cfg(target_os = "linux")]
    fn take_proc(&mut self) {
        use procfs::{CpuInfo, Current, LoadAverage, Meminfo};
        if let Ok(cpu) = CpuInfo::current() {
            self.cpu = cpu.model_name(0).map(str::to_string);
            let flags = cpu.get_field(0, "flags");
            self.is_virtual = flags.map(|all| all.split(' ').any(|flag| flag == "hypervisor"));
        }
        self.memory_bytes = Meminfo::current().ok().map(|memory| memory.mem_total);
        self.load = LoadAverage::current().ok().map(|load| f64::from(load.one));
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
        self.kernel =
            release.map(|text| format!("Linux {}, {}", text.trim(), std::env::consts::ARCH));
        let text = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        self.distribution = text
            .lines()
            .find_map(|line| line.strip_prefix("PRETTY_NAME="))
            .map(|name| name.trim_matches('"').to_string());
    }

    #[cfg(not(target_os = "linux"))]
    fn take_proc(&mut self) {
        self.kernel = Some(format!(
            "{}, {}",
            std::env::consts::OS,
            std::env::consts::ARCH
        ));
    }
}

fn cores() -> Option<u64> {
    let cores = std::thread::available_parallelism().ok()?;
    u64::try_from(cores.get()).ok()
}

/// Copies 32 MiB out of the processor's cache five times. The best is returned in GB a second.
pub fn memcpy_gb_per_s() -> Option<f64> {
    let from = vec![1u8; 32 << 20];
    let mut to = vec![2u8; 32 << 20];
    let mut copy = || {
        let start = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&to);
        start.elapsed().as_secs_f64()
    };
    let best_s = (0..5).map(|_| copy()).fold(f64::INFINITY, f64::min);
    super::ratio(from.len() as f64 / 1e9, best_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_is_known() {
        let machine = Machine::of(&std::env::temp_dir());
        assert!(machine.cores.unwrap() >= 1);
        assert!(machine.memory_bytes.unwrap() > 1 << 20);
        assert!(machine.kernel.unwrap().starts_with("Linux "));
        assert!(machine.file_system.is_some());
        assert!(machine.load.unwrap() >= 0.0);
        assert!(machine.memcpy_gb_per_s.unwrap() > 0.0);
    }

    #[test]
    fn a_machine_is_read_back() {
        let machine = Machine {
            cpu: Some("a \"model\"".into()),
            cgroup: Some(Cgroup::default()),
            ..Machine::default()
        };
        let text = serde_json::to_string(&machine).unwrap();
        assert!(text.contains("\"memory_bytes\":null"), "{text}");
        assert_eq!(serde_json::from_str::<Machine>(&text).unwrap(), machine);
        let newer: Machine = serde_json::from_str("{\"cores\": 3, \"gpu\": \"x\"}").unwrap();
        assert_eq!(newer.cores, Some(3));
    }
}
