//! A caller that waits until the store is idle sees what failed before that.

use std::time::Duration;

use siltstone::{ErrorKind, Options};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

use super::*;

pub const ALL: &[Story] = &[(
    "a_full_disk_is_reported_before_the_store_is_idle",
    200,
    a_full_disk_is_reported_before_the_store_is_idle,
)];

/// A flush fails once because the disk is full. Another worker repeats it and finishes before the
/// first one has recorded its failure. A caller that waited for the store to be idle found it in
/// bad health right afterwards.
fn a_full_disk_is_reported_before_the_store_is_idle(rt: Runtime, _: u64) {
    let disk = Disk::new(&rt);
    let store = disk.open_with(Options {
        background_tasks: 4,
        ..small()
    });
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"v").unwrap();
    let full = Rule::on(OpKind::Create, Fault::Fail(StorageErrorKind::NoSpace)).ending(".tbl");
    let rule = disk.faults.add(full);
    let flusher = {
        let ks = ks.clone();
        rt.spawn("flusher", move || ks.flush()).unwrap()
    };
    while disk.faults.fired_count(rule) == 0 {
        rt.yield_point();
    }
    for patience in 0.. {
        match store.wait_until_idle() {
            Ok(()) => break,
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}"),
        }
        assert!(patience < 1_000, "it never becomes idle");
        rt.sleep(Duration::from_millis(20));
    }
    for _ in 0..50 {
        assert_eq!(store.stats().health, "good");
        rt.yield_point();
    }
    let _ = flusher.join().unwrap();
    assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v");
}
