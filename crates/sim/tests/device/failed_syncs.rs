//! Syncs that failed on a device. The system reports such a failure only once, so the device
//! remembers it, and it belongs to the object whatever the object's name is.

use std::time::Duration;

use siltstone_sim::coverage::Coverage;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, StorageErrorKind};

use super::ends::World;
use super::jobs::add_rule;
use super::simulated;

#[test]
fn a_failed_sync_belongs_to_its_object() {
    simulated(41, 2_000_000, |runtime| {
        let world = World::new(&runtime);
        let device = world.connect();
        let storage = device.storage();
        let lease = storage.lease("store").expect("free");
        let epoch = lease.epoch();
        let create = |name: &str| {
            let file = storage.create(epoch, name).expect("room");
            file.append(&[b"bytes"]).expect("room");
            file
        };
        let fail_next_sync = |name: &str| {
            let fault = Fault::Fail(StorageErrorKind::Io);
            add_rule(&world.faults, Rule::on(OpKind::Sync, fault).named(name));
        };
        let is_synced = |name: &str| storage.sync_object(epoch, name).is_ok();

        // The object is renamed after its sync has failed.
        fail_next_sync("a.tmp");
        create("a.tmp").sync().expect_err("the sync fails");
        storage.rename(epoch, "a.tmp", "a").expect("renamed");
        assert!(!is_synced("a"));
        // Another object gets the old name.
        storage.publish(epoch, "a.tmp", b"other").expect("room");
        assert!(is_synced("a.tmp"));
        // The bytes of the first one are written again.
        storage.rewrite_object(epoch, "a").expect("written again");
        assert!(is_synced("a"));

        // The object is renamed before its sync fails.
        let file = create("b.tmp");
        file.sync().expect("synced");
        storage.rename(epoch, "b.tmp", "b").expect("renamed");
        fail_next_sync("b");
        file.append(&[b"more"]).expect("room");
        file.sync().expect_err("the sync fails");
        assert!(!is_synced("b"));

        // The object is deleted, and another one gets its name.
        drop(file);
        storage.delete(epoch, "b").expect("deleted");
        storage.publish(epoch, "b", b"other").expect("room");
        runtime.sleep(Duration::from_secs(3));
        assert!(is_synced("b"));

        lease.release().expect("released");
        device.close();
        world.server.stop();
        Coverage::default()
    });
}
