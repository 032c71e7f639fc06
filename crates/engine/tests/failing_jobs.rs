//! Jobs that fail behind the back of writers and readers: who gets an error, for how long, and who
//! does not.

mod common;

use std::time::Duration;

use common::Disk;
use siltstone::{ErrorKind, KeyspaceOptions, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, OpKind, Runtime, StorageErrorKind};

/// A store with real threads, on a storage in memory that can fail.
fn on_memory() -> (FaultStorage, Store) {
    let disk = Disk::new(&Runtime::threads());
    let store = disk.open();
    (disk.faults, store)
}

/// A writer that waits for a flush that fails again and again gets an error, and can write when the
/// flush succeeds again. It waited for ever.
#[test]
fn writers_do_not_wait_for_jobs_that_fail() {
    let (faults, store) = on_memory();
    let ks = store.default_keyspace().unwrap();
    faults.add(
        Rule::on(OpKind::Create, Fault::Fail(StorageErrorKind::TooManyOpen))
            .named("00000001-")
            .for_good(),
    );
    let put = |n: u32| ks.put(&n.to_be_bytes(), &[7; 900]);
    let (count, error) = (0..100_000)
        .find_map(|n| put(n).err().map(|e| (n, e)))
        .unwrap();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("background jobs") && text.contains(".tbl") && text.contains("ulimit -n"),
        "{text}"
    );
    put(count).unwrap_err();
    faults.clear();
    store.flush().unwrap();
    put(count).unwrap();
    assert_eq!(ks.iter().unwrap().count() as u32, count + 1);
}

/// Compactions failed again and again, and their keyspace was dropped, so nobody waits for them any
/// more. A writer that later waited for a flush, for a moment, was refused with their old error.
#[test]
fn writers_do_not_get_errors_of_jobs_that_are_over() {
    let (faults, store) = on_memory();
    let ks = store.default_keyspace().unwrap();
    let (hooks, runtime) = (store.test_hooks(), Runtime::threads());
    let other = store.create_keyspace("other").unwrap();
    hooks.pause_compaction(true);
    for n in 0..8u32 {
        other.put(&n.to_be_bytes(), b"v").unwrap();
        other.put(b"same", b"v").unwrap();
        other.flush().unwrap();
    }
    faults.add(
        Rule::on(OpKind::Create, Fault::Fail(StorageErrorKind::TooManyOpen))
            .named("00000001-")
            .for_good(),
    );
    hooks.pause_compaction(false);
    while store.stats().counter("job_failed_count") < 12 {
        runtime.sleep(Duration::from_millis(20));
    }
    store.drop_keyspace("other").unwrap();
    faults.clear();
    store.wait_until_idle().unwrap();
    // A memtable that nobody flushes for a while: writers wait.
    let one = KeyspaceOptions {
        sealed_memtables_max: Some(1),
        ..KeyspaceOptions::default()
    };
    ks.set_options(&one).unwrap();
    ks.put(b"held", b"v").unwrap();
    assert!(hooks.seal_and_hold(&ks).unwrap());
    let writer = {
        let ks = ks.clone();
        let puts = move || (0..4_000u32).try_for_each(|n| ks.put(&n.to_be_bytes(), &[7; 900]));
        runtime.spawn("writer", puts).unwrap()
    };
    runtime.sleep(Duration::from_millis(300));
    hooks.release(&ks);
    writer.join().unwrap().unwrap();
    assert_eq!(ks.iter().unwrap().count(), 4_001);
}

/// A keyspace is dropped while its flush waits to be installed. Nobody wants that work any more,
/// and nothing has failed. On a full disk, writers of other keyspaces got it as the last thing that
/// had gone wrong.
#[test]
fn work_for_a_dropped_keyspace_has_not_failed() {
    let (faults, store) = on_memory();
    let ks = store.default_keyspace().unwrap();
    let runtime = Runtime::threads();
    let other = store.create_keyspace("other").unwrap();
    other.put(b"k", b"v").unwrap();
    ks.put(b"k", b"v").unwrap();
    // Another flush holds the manifest for a while.
    let slow = Rule::on(OpKind::Sync, Fault::Delay(Duration::from_millis(800)));
    let rule = faults.add(slow.named("MANIFEST-"));
    let holder = {
        let ks = ks.clone();
        runtime.spawn("holder", move || ks.flush()).unwrap()
    };
    while faults.fired_count(rule) == 0 {
        runtime.sleep(Duration::from_millis(1));
    }
    let flusher = {
        let other = other.clone();
        runtime.spawn("flusher", move || other.flush()).unwrap()
    };
    runtime.sleep(Duration::from_millis(300));
    store.drop_keyspace("other").unwrap();
    holder.join().unwrap().unwrap();
    flusher.join().unwrap().unwrap();
    store.wait_until_idle().unwrap();
    ks.put(b"k", b"v").unwrap();
    assert_eq!(store.stats().counter("job_failed_count"), 0);
    assert_eq!(store.stats().health, "good");
}

/// There is no address space, or the file system has no maps: tables are read all the same, and
/// that is counted.
#[test]
fn tables_that_cannot_be_mapped_are_read() {
    let (faults, store) = on_memory();
    let ks = store.default_keyspace().unwrap();
    faults.add(Rule::on(OpKind::Map, Fault::Fail(StorageErrorKind::Io)).for_good());
    for n in 0..1_000u32 {
        ks.put(&n.to_be_bytes(), &n.to_le_bytes()).unwrap();
    }
    store.flush().unwrap();
    for n in 0..1_000u32 {
        assert_eq!(ks.get(&n.to_be_bytes()).unwrap().unwrap(), n.to_le_bytes());
    }
    assert_eq!(ks.iter().unwrap().count(), 1_000);
    assert!(store.stats().counter("map_failed_count") > 0);
}
