//! A background task panics: callers that wait for it get the error, it is repeated after a pause,
//! and a store whose jobs keep panicking is poisoned. What was acknowledged is there after the next
//! open. The test uses real threads, because a panic ends a simulated run.

// Real threads: no simulated run could be blocked by a foreign lock.
#![allow(clippy::disallowed_types)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::{Components, ErrorKind, Event, EventListener, Options, Store, SyncMode};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage};

/// The messages of failed jobs.
#[derive(Default)]
struct FailedJobs(Mutex<Vec<String>>);

impl EventListener for FailedJobs {
    fn on_event(&self, event: &Event) {
        if let Event::JobFailed { error, .. } = event {
            self.0.lock().unwrap().push(error.to_string());
        }
    }
}

struct Stage {
    runtime: Runtime,
    faults: FaultStorage,
    failed_jobs: Arc<FailedJobs>,
}

impl Stage {
    fn new() -> Stage {
        let runtime = Runtime::threads();
        let memory = MemoryStorage::new(&runtime);
        let faults = FaultStorage::new(Arc::new(memory), &runtime);
        Stage {
            runtime,
            faults,
            failed_jobs: Arc::default(),
        }
    }

    fn open(&self, options: Options) -> Store {
        let storage: Arc<dyn Storage> = Arc::new(self.faults.clone());
        let mut components = Components::on(storage, self.runtime.clone());
        components.listener = Some(self.failed_jobs.clone());
        Store::open_with(components, options).unwrap()
    }

    /// Waits for something that no call waits for.
    fn until(&self, happened: impl Fn() -> bool) {
        while !happened() {
            self.runtime.sleep(Duration::from_millis(5));
        }
    }

    /// Everything is there after another open, and the store works.
    fn reopen(&self, store: Store, keys: &[&[u8]]) {
        let _ = store.close();
        self.faults.clear();
        let store = self.open(Options::default());
        let ks = store.default_keyspace().unwrap();
        for key in keys {
            assert_eq!(ks.get(key).unwrap().unwrap(), b"v");
        }
        ks.put(b"afterwards", b"v").unwrap();
        store.flush().unwrap();
        store.close().unwrap();
    }
}

fn options(background_tasks: u32) -> Options {
    Options {
        background_tasks,
        ..Options::default()
    }
}

/// The tables of the first open.
const TABLE: &str = "00000001-";

#[test]
fn a_flush_that_panicked_runs_again() {
    for tasks in [1, 2] {
        let stage = Stage::new();
        let store = stage.open(options(tasks));
        let ks = store.default_keyspace().unwrap();
        let rule = stage
            .faults
            .add(Rule::on(OpKind::Sync, Fault::Panic).named(TABLE));
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        assert_eq!(stage.faults.fired_count(rule), 1);
        // The worker that panicked counts the failure, while another one runs the flush again.
        stage.until(|| store.stats().counter("job_failed_count") > 0);
        assert_eq!(store.stats().counter("job_failed_count"), 1);
        assert_eq!(store.stats().health, "good");
        stage.until(|| !stage.failed_jobs.0.lock().unwrap().is_empty());
        let failed_jobs = stage.failed_jobs.0.lock().unwrap().clone();
        assert!(
            failed_jobs[0].contains("a flush of keyspace `default` panicked: injected"),
            "{failed_jobs:?}"
        );
        ks.put(b"l", b"v").unwrap();
        store.flush().unwrap();
        store.wait_until_idle().unwrap();
        stage.reopen(store, &[b"k", b"l"]);
    }
}

#[test]
fn jobs_that_keep_panicking_poison() {
    for tasks in [1, 2] {
        let stage = Stage::new();
        let store = stage.open(options(tasks));
        let ks = store.default_keyspace().unwrap();
        ks.put(b"k", b"v").unwrap();
        stage
            .faults
            .add(Rule::on(OpKind::Sync, Fault::Panic).named(TABLE).for_good());
        // Waiting callers get the error long before the store gives up.
        let error = store.flush().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        let error = store.wait_until_idle().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        stage.until(|| store.stats().health != "good");
        let error = ks.put(b"l", b"v").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(error.to_string().contains("in a row"), "{error}");
        assert_eq!(ks.get(b"k").unwrap().unwrap(), b"v", "reads continue");
        drop(ks);
        stage.reopen(store, &[b"k"]);
    }
}

#[test]
fn a_compaction_that_panics_emits_an_event() {
    let stage = Stage::new();
    let store = stage.open(options(2));
    let ks = store.default_keyspace().unwrap();
    store.test_hooks().pause_compaction(true);
    for _ in 0..2 {
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
    }
    stage
        .faults
        .add(Rule::on(OpKind::Sync, Fault::Panic).named(TABLE).times(3));
    let error = ks.compact_range(None, None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("a compaction of keyspace `default` panicked"),
        "{error}"
    );
    assert_eq!(store.stats().health, "good");
    ks.compact_range(None, None).unwrap();
    drop(ks);
    stage.reopen(store, &[b"k"]);
}

#[test]
fn a_panic_in_the_manifest_poisons_at_once() {
    let stage = Stage::new();
    let store = stage.open(options(2));
    let ks = store.default_keyspace().unwrap();
    ks.put(b"k", b"v").unwrap();
    stage
        .faults
        .add(Rule::on(OpKind::Append, Fault::Panic).named("MANIFEST"));
    let error = store.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert!(
        error.to_string().contains("while it wrote the manifest"),
        "{error}"
    );
    drop(ks);
    stage.reopen(store, &[b"k"]);
}

#[test]
fn maintenance_that_panicked_runs_again() {
    let stage = Stage::new();
    let store = stage.open(options(2));
    let ks = store.default_keyspace().unwrap();
    let doomed = store.create_keyspace("doomed").unwrap();
    doomed.put(b"k", b"v").unwrap();
    ks.put(b"k", b"v").unwrap();
    store.flush().unwrap();
    let rule = stage
        .faults
        .add(Rule::on(OpKind::Delete, Fault::Panic).named(TABLE));
    store.drop_keyspace("doomed").unwrap();
    drop(doomed);
    stage.until(|| stage.faults.fired_count(rule) == 1);
    stage.until(|| store.stats().counter("job_failed_count") == 1);
    // The same rounds prepare segments and delete those that a flush made obsolete.
    ks.put(b"l", b"v").unwrap();
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(store.stats().health, "good");
    drop(ks);
    stage.reopen(store, &[b"k", b"l"]);
}

#[test]
fn a_panic_in_the_intervals_sync_poisons() {
    let stage = Stage::new();
    let store = stage.open(Options {
        sync: SyncMode::Interval(Duration::from_millis(1)),
        ..options(2)
    });
    let ks = store.default_keyspace().unwrap();
    stage.runtime.sleep(Duration::from_millis(20));
    stage
        .faults
        .add(Rule::on(OpKind::Sync, Fault::Panic).named("0000000"));
    ks.put(b"k", b"v").unwrap();
    stage.until(|| store.stats().health != "good");
    let error = ks.put(b"l", b"v").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert!(error.to_string().contains("panicked"), "{error}");
    drop(ks);
    stage.reopen(store, &[b"k"]);
}
