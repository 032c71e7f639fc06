//! The model of leases and epochs (`crates/storage/tests/fence_model.rs`), played by hosts of a
//! device. A paused holder is a host whose link carries nothing. Its lease expires when the device
//! has heard nothing from it for ten seconds. Each seed plays one interleaving.

use std::sync::Arc;
use std::time::Duration;

use siltstone_device::{ClientOptions, Device, FolderWanted};
use siltstone_sim::coverage::Coverage;
use siltstone_sim::remote::{Machine, MachineOptions, Tap, address};
use siltstone_sim::rng::Rng;
use siltstone_storage::link::{MemoryNetwork, Network};
use siltstone_storage::{Lease, Result, Runtime, Storage};

use super::fence_model::{
    Contents, KEEPER, Place, RECYCLER, SHORT, Seen, Step, WRITER, contents, play,
};
use super::{good_link, simulated};

/// Longer than the silence after which a device gives a lease to another host.
const SILENCE: Duration = Duration::from_secs(12);

struct Hosts {
    runtime: Runtime,
    machine: Machine,
    taps: Vec<Tap>,
    devices: Vec<Arc<Device>>,
}

impl Place for Hosts {
    fn storage(&self, holder: usize) -> Arc<dyn Storage> {
        self.devices[holder].storage()
    }

    fn lease(&self, holder: usize, expires: bool) -> Result<Box<dyn Lease>> {
        let others = || {
            let taps = self.taps.iter().enumerate();
            taps.filter(|(host, _)| expires && *host != holder)
        };
        others().for_each(|(_, tap)| tap.hold());
        if expires {
            self.runtime.sleep(SILENCE);
        }
        let lease = self.devices[holder].storage().lease("store");
        others().for_each(|(_, tap)| tap.let_go());
        lease
    }

    fn contents(&self) -> Contents {
        contents(&self.machine.folders().folder("db"))
    }
}

pub fn trial(seed: u64) -> Coverage {
    simulated(seed, 2_000_000, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xFE4C);
        let (programs, expire): (Vec<&[Step]>, bool) = match rng.below(6) {
            0 => (vec![WRITER, WRITER], true),
            1 => (vec![WRITER, KEEPER], true),
            2 => (vec![KEEPER, RECYCLER], true),
            3 => (SHORT.to_vec(), true),
            4 => (vec![WRITER, KEEPER], false),
            _ => (vec![KEEPER, RECYCLER], false),
        };
        let mut left: Vec<usize> = programs.iter().map(|program| program.len()).collect();
        let mut order = Vec::new();
        while left.iter().any(|count| *count > 0) {
            let next = rng.index(left.len());
            if left[next] > 0 {
                left[next] -= 1;
                order.push(next);
            }
        }
        let network = MemoryNetwork::new(&runtime);
        network.set_faults(good_link());
        let tap = |n: u64| Tap::new(&runtime, &network, seed ^ n, &[]);
        let machine = Machine::start(&runtime, &tap(99), MachineOptions::default());
        let taps: Vec<Tap> = (0..programs.len() as u64).map(tap).collect();
        let connect = |tap: &Tap| {
            let folder = FolderWanted::Named {
                name: "db".into(),
                create: true,
            };
            let network: Arc<dyn Network> = Arc::new(tap.clone());
            let options = ClientOptions::default();
            Device::connect(&runtime, network, address(), folder, options).expect("a session")
        };
        let hosts = Hosts {
            devices: taps.iter().map(connect).collect(),
            runtime: runtime.clone(),
            machine,
            taps,
        };
        let mut seen = Seen::default();
        let played = play(&hosts, &programs, &order, expire, None, &mut seen);
        played.unwrap_or_else(|wrong| panic!("{wrong}"));
        hosts.devices.iter().for_each(|device| device.close());
        assert_eq!(hosts.machine.watch().wrong(), Vec::<String>::new());
        let mut coverage = Coverage::default();
        coverage.add_count("fences.fenced", seen.fenced);
        coverage.add_count("fences.taken_over", seen.taken_over);
        coverage.add_count("fences.refused", seen.refused);
        coverage
    })
}
