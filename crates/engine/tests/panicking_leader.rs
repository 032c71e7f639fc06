//! A leader panics in the log: its group and the writers behind it get errors, the store takes no
//! more writes, and what was acknowledged is there after the next open. The test uses real threads,
//! because a panic ends a simulated run.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{
    Batch, Components, ErrorKind, IngestMode, Options, Store, TableBuilder, TableFolder,
    TableOptions, WriteOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage};

const WRITERS: usize = 6;

fn open(storage: &Arc<dyn Storage>, runtime: &Runtime) -> Store {
    let components = Components::on(storage.clone(), runtime.clone());
    Store::open_with(components, Options::default()).unwrap()
}

/// `call` is the leader's call that panics.
fn panics_in(call: OpKind) {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
    let storage: Arc<dyn Storage> = Arc::new(faults.clone());
    let store = open(&storage, &runtime);
    let ks = store.default_keyspace().unwrap();
    ks.put(b"before", b"it").unwrap();
    let hooks = store.test_hooks();

    // All writers are in the queue before one leads. A group takes one mebibyte beside the leader's
    // own batch, which is two more batches, so the last ones stay behind.
    let held = hooks.hold_writes();
    let writers: Vec<_> = (0..WRITERS)
        .map(|i| {
            let store = store.clone();
            let write = move || {
                let mut batch = Batch::new();
                let ks = store.default_keyspace().unwrap();
                batch.put(&ks, &[i as u8], &vec![7; 400 << 10]).unwrap();
                store.write(&batch, WriteOptions::SYNC)
            };
            runtime.spawn("writer", write).unwrap()
        })
        .collect();
    while hooks.queued_writer_count() < WRITERS {
        runtime.sleep(Duration::from_millis(1));
    }
    // The rule names only segments: their names are numbers.
    let rule = faults.add(Rule::on(call, Fault::Panic).named("0"));
    drop(held);

    let mut panicked = 0;
    for writer in writers {
        match writer.join() {
            Err(_) => panicked += 1,
            Ok(result) => {
                let error = result.expect_err("acknowledged beside a panic");
                assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
                assert!(error.to_string().contains("panicked"), "{error}");
            }
        }
    }
    assert_eq!((panicked, faults.fired_count(rule)), (1, 1));
    // Later calls get an error as well, those of writers and those that need the lead for something
    // else. Reads continue.
    assert_eq!(ks.put(b"k", b"v").unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(store.flush().unwrap_err().kind(), ErrorKind::Poisoned);
    let create = store.create_keyspace("new").unwrap_err();
    assert_eq!(create.kind(), ErrorKind::Poisoned, "{create}");
    let health = store.stats().health;
    assert!(health.contains("panicked"), "{health}");
    assert_eq!(ks.get(b"before").unwrap().unwrap(), b"it");
    let in_memory = ks.iter().unwrap().count();
    assert_eq!(
        in_memory, 1,
        "of a group that was not acknowledged nothing is read"
    );
    assert_eq!(
        store.clone().close().unwrap_err().kind(),
        ErrorKind::Poisoned
    );
    drop((hooks, ks, store));

    // The group was one record, so it is there as a whole or not at all.
    let store = open(&storage, &runtime);
    let ks = store.default_keyspace().unwrap();
    assert_eq!(ks.get(b"before").unwrap().unwrap(), b"it");
    let found = ks.iter().unwrap().count();
    assert!(found == 1 || found == 4, "{found}");
    ks.put(b"k", b"v").unwrap();
    store.close().unwrap();
}

#[test]
fn a_leader_may_panic_in_its_append() {
    panics_in(OpKind::Append);
}

#[test]
fn a_leader_may_panic_in_its_sync() {
    panics_in(OpKind::Sync);
}

/// A leader panics while another call, which had checked the store's health before it joined the
/// queue, waits to lead.
fn panics_before_others(call: OpKind) {
    type Work = fn(&Store) -> siltstone::Result<()>;
    let works: [(&str, Work); 4] = [
        ("create", |store| store.create_keyspace("new").map(drop)),
        ("drop", |store| store.drop_keyspace("old")),
        ("ingest", |store| {
            let ks = store.default_keyspace()?;
            let folder = tempfile::tempdir().unwrap();
            let built = TableFolder::create(folder.path())?;
            let mut builder = TableBuilder::new(&built, "t", TableOptions::default())?;
            builder.put(b"ingested", b"x")?;
            let files = builder.finish()?.into_iter().map(|t| t.file).collect();
            store.ingest(&[(&ks, files)], IngestMode::Copy).map(drop)
        }),
        ("checkpoint", |store| {
            let folder = tempfile::tempdir().unwrap();
            store.checkpoint(folder.path().join("copy")).map(drop)
        }),
    ];
    for (name, work) in works {
        let runtime = Runtime::threads();
        let memory = MemoryStorage::new(&runtime);
        let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
        let storage: Arc<dyn Storage> = Arc::new(faults.clone());
        let store = open(&storage, &runtime);
        let ks = store.default_keyspace().unwrap();
        store.create_keyspace("old").unwrap();
        ks.put(b"before", b"it").unwrap();
        let hooks = store.test_hooks();
        let held = hooks.hold_writes();
        let queue_up = |waiting: usize, task: Box<dyn FnOnce() -> siltstone::Result<()> + Send>| {
            let task = runtime.spawn("task", task).unwrap();
            while hooks.queued_writer_count() < waiting {
                runtime.sleep(Duration::from_millis(1));
            }
            task
        };
        let put = ks.clone();
        let sync = WriteOptions::SYNC;
        let writer = queue_up(1, Box::new(move || put.put_with(b"k", b"v", sync)));
        let of_work = store.clone();
        let other = queue_up(2, Box::new(move || work(&of_work)));
        faults.add(Rule::on(call, Fault::Panic).named("0"));
        drop(held);
        assert!(writer.join().is_err(), "{name}: the leader panics");
        let error = other.join().unwrap().expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{name}: {error}");
        assert!(ks.get(b"k").unwrap().is_none(), "{name}: half a group");
        assert_eq!(ks.get(b"before").unwrap().unwrap(), b"it");
        drop((hooks, ks, store));

        let store = open(&storage, &runtime);
        assert!(store.keyspace("old").is_ok(), "{name}");
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.get(b"before").unwrap().unwrap(), b"it");
        store.close().unwrap();
    }
}

#[test]
fn others_that_wait_for_the_lead_find_the_poison_after_an_append() {
    panics_before_others(OpKind::Append);
}

#[test]
fn others_that_wait_for_the_lead_find_the_poison_after_a_sync() {
    panics_before_others(OpKind::Sync);
}
