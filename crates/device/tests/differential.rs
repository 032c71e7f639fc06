//! A device's folder behaves like the storage that the device keeps it in: random operations give
//! equal answers, equal kinds of errors and equal contents.

mod common;
#[path = "../../storage/tests/common/operations.rs"]
mod operations;

use std::sync::Arc;

use common::Setup;
use operations::{Op, Side, op};
use proptest::prelude::*;
use siltstone_device::ServerOptions;
use siltstone_storage::{MemoryStorage, Runtime, Storage};

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_device_and_memory_agree(ops in prop::collection::vec(op(), 1..80)) {
        let runtime = Runtime::threads();
        let mut setup = Setup::new(&runtime, ServerOptions::default());
        let (device, other_device) = (setup.connect("db"), setup.connect("other"));
        let memory = MemoryStorage::new(&runtime);
        let other = MemoryStorage::new(&runtime);
        let mut remote = Side::new(device.storage(), other_device.storage());
        let mut local = Side::new(Arc::new(memory), Arc::new(other));
        // An object that shares its bytes with an imported one must not be written, and random
        // operations do not respect that.
        let ops = ops.iter().filter(|op| !matches!(op, Op::Import(_, true, _)));
        for (i, op) in ops.enumerate() {
            let (a, b) = (remote.apply(op), local.apply(op));
            prop_assert_eq!(a, b, "operation {}: {:?}", i, op);
        }
        let contents = remote.contents();
        prop_assert_eq!(&contents, &local.contents());
        drop(remote);
        device.close();
        other_device.close();
        setup.stop();
        // Everything that the client has sent is on the device.
        let folder = setup.folders.folder("db");
        let kept: Vec<_> = folder.list().unwrap().into_iter().map(|o| {
            let bytes = folder.read_small(&o.name).unwrap();
            (o.name, o.len, bytes)
        }).collect();
        prop_assert_eq!(&contents, &kept);
    }
}
