//! What a host asks a device for a probe, in a simulated run: the answers are complete, nothing is
//! left behind, and excessive requests are refused.

mod common;

use common::Setup;
use siltstone_device::probe::Format;
use siltstone_device::{FolderWanted, ServerOptions};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{Runtime, StorageErrorKind};
use siltstone_table::Codec;

fn with_device(test: impl FnOnce(&mut Setup) + Send + 'static) {
    let report = run(SimConfig::new(7), move |runtime: Runtime| {
        let options = ServerOptions {
            cores: 3,
            memory_bytes: 1 << 30,
            ..ServerOptions::default()
        };
        let mut setup = Setup::new(&runtime, options);
        test(&mut setup);
        setup.stop();
    });
    report.result.unwrap();
}

#[test]
fn a_device_describes_its_machine_and_nothing_stays() {
    with_device(|setup| {
        let device = setup.connect("db");
        let machine = device.describe().unwrap();
        assert_eq!((machine.cores, machine.memory_bytes), (3, 1 << 30));
        // The rates are measured once.
        assert_eq!(device.describe().unwrap(), machine);
        device.close();
        let server = setup.server.as_ref().unwrap();
        assert_eq!(server.machine(), machine);
        let folders: &dyn siltstone_device::Folders = &*setup.folders;
        let left = folders.root().list().unwrap();
        assert!(left.iter().all(|object| object.name != "probe"), "{left:?}");
    });
}

#[test]
fn the_link_is_measured_without_a_folder() {
    with_device(|setup| {
        let network = std::sync::Arc::new(setup.network.clone());
        let options = siltstone_device::ClientOptions::default();
        let (runtime, folder) = (setup.runtime.clone(), FolderWanted::None);
        let device = siltstone_device::Device::connect(
            &runtime,
            network,
            common::address(),
            folder,
            options,
        );
        let device = device.unwrap();
        let link = device.measure_link().unwrap();
        assert!(
            link.up_bytes_per_s > 0.0 && link.down_bytes_per_s > 0.0,
            "{link:?}"
        );
        let report = device.report();
        assert!(
            report.sent_bytes >= 1 << 20 && report.received_bytes >= 1 << 20,
            "{report:?}"
        );
        device.close();
    });
}

#[test]
fn a_merge_is_the_same_there_and_here() {
    with_device(|setup| {
        let device = setup.connect("db");
        let format = |codec, level, value_bytes| Format {
            codec,
            level,
            value_bytes,
        };
        let lz4 = format(Codec::Lz4, 0, 1024);
        let there = device.measure_merge(lz4).unwrap();
        let here = siltstone_device::probe::merge::measure(&setup.runtime, lz4).unwrap();
        assert_eq!(
            (there.in_bytes, there.out_bytes),
            (here.in_bytes, here.out_bytes)
        );
        assert!(there.out_bytes > 0 && there.out_bytes < there.in_bytes);
        for wrong in [format(Codec::Zstd, 77, 32), format(Codec::None, 0, 1 << 30)] {
            let error = device.measure_merge(wrong).unwrap_err();
            assert_eq!(error.kind, StorageErrorKind::InvalidInput, "{error}");
        }
        device.close();
    });
}
