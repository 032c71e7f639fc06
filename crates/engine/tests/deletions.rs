//! Files that the store does not need do not stay in its folder until the next open: a deletion
//! that fails is repeated.

mod common;

use std::time::Duration;

use common::{Disk, key, simulate};
use siltstone::Store;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, Runtime, StorageErrorKind};

const FAIL: Fault = Fault::Fail(StorageErrorKind::Io);

fn fill(store: &Store) {
    let keyspace = store.default_keyspace().unwrap();
    for i in 0..100 {
        keyspace.put(&key(i), &[i as u8; 300]).unwrap();
    }
}

/// Lets a round of maintenance pass.
fn settle(rt: &Runtime) {
    rt.sleep(Duration::from_secs(3));
}

#[test]
fn files_of_a_failed_flush_are_deleted_again() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        fill(&store);
        disk.faults.add(Rule::on(OpKind::Sync, FAIL).ending(".tbl"));
        let deletion = disk
            .faults
            .add(Rule::on(OpKind::Delete, FAIL).ending(".tbl"));
        store.flush().unwrap();
        assert_eq!(disk.faults.fired_count(deletion), 1);
        settle(&rt);
        assert_eq!(disk.names(".tbl").len(), 1, "{:?}", disk.names(".tbl"));
        store.close().unwrap();
    });
}

#[test]
fn an_old_manifest_is_deleted_again() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let hooks = store.test_hooks();
        let rule = Rule::on(OpKind::Delete, FAIL).named("MANIFEST-").times(2);
        let deletion = disk.faults.add(rule);
        hooks.roll_manifest_from(1);
        while hooks.manifest_roll_count() == 0 {
            fill(&store);
            store.flush().unwrap();
        }
        hooks.roll_manifest_from(u64::MAX);
        settle(&rt);
        assert!(disk.faults.fired_count(deletion) > 0);
        let manifests = || -> Vec<String> {
            let mut all = disk.names("");
            all.retain(|name| name.starts_with("MANIFEST-"));
            all
        };
        assert_eq!(manifests().len(), 1, "{:?}", manifests());
        drop(hooks);
        store.close().unwrap();
    });
}

/// A close deletes, too, what could not be deleted before.
#[test]
fn a_close_deletes_again() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        for _ in 0..2 {
            fill(&store);
            store.flush().unwrap();
        }
        disk.faults
            .add(Rule::on(OpKind::Delete, FAIL).ending(".tbl").times(2));
        let keyspace = store.default_keyspace().unwrap();
        keyspace.compact_range(None, None).unwrap();
        drop(keyspace);
        store.close().unwrap();
        assert_eq!(disk.names(".tbl").len(), 1, "{:?}", disk.names(".tbl"));
    });
}

/// An open without room kept the data of two keyspaces in memory. One was dropped while the other
/// was flushed. No edit named its table, and the next open deleted it.
#[test]
fn the_table_of_a_keyspace_that_is_dropped_before_its_edit_is_deleted() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        for name in ["first", "second"] {
            let keyspace = store.create_keyspace(name).unwrap();
            keyspace.put(b"key", b"value").unwrap();
        }
        store.close().unwrap();
        let create = |fault| Rule::on(OpKind::Create, fault).ending(".tbl");
        disk.faults
            .add(create(Fault::Fail(StorageErrorKind::NoSpace)));
        let slow = Fault::Delay(Duration::from_secs(10));
        disk.faults.add(create(slow).nth(2));
        let store = disk.open();
        assert!(store.stats().health.starts_with("no space"));
        // The table of the first keyspace is written, and that of the second takes long.
        settle(&rt);
        assert_eq!(disk.names(".tbl").len(), 1, "{:?}", disk.names(".tbl"));
        store.drop_keyspace("first").unwrap();
        rt.sleep(Duration::from_secs(15));
        assert_eq!(store.stats().health, "good");
        assert_eq!(disk.names(".tbl").len(), 1, "{:?}", disk.names(".tbl"));
        let second = store.keyspace("second").unwrap();
        assert_eq!(second.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        drop(second);
        store.close().unwrap();
    });
}
