//! A subscriber of `tracing` panics at every warning while a failed flush is being ended: the flush
//! runs again, and nobody waits for it for ever. The test has a process of its own, because a
//! subscriber is for the whole process.
// A subscriber is the user's code, and real threads run here.
#![allow(clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use siltstone::{Components, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, StorageErrorKind};
use siltstone_table::exec::{ExecContext, ExecError, Executor, Side};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Panics at each message of the store that is a warning or worse, while [`PANICS`] is set.
struct Panics;

static PANICS: AtomicBool = AtomicBool::new(false);

/// How often it has panicked.
static COUNT: AtomicU64 = AtomicU64::new(0);

impl Subscriber for Panics {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("siltstone")
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if *event.metadata().level() <= Level::WARN && PANICS.load(Ordering::Relaxed) {
            COUNT.fetch_add(1, Ordering::Relaxed);
            panic!("a subscriber panics");
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// An executor that returns only when it is let go.
struct Hangs(Arc<AtomicBool>, Runtime);

impl Executor for Hangs {
    fn name(&self) -> &str {
        "hangs"
    }
    fn side(&self) -> Side {
        Side::Device
    }
    fn run(&self, _: &Job, _: &ExecContext) -> Result<Outcome, ExecError> {
        while !self.0.load(Ordering::Relaxed) {
            self.1.sleep(Duration::from_millis(10));
        }
        Err(ExecError::Cancelled)
    }
}

/// Calls `flush` in a thread of its own, and fails if it does not return within a minute.
fn flush_returns(store: &Store, runtime: &Runtime) -> siltstone::Result<()> {
    let (there, done) = (store.clone(), Arc::new(AtomicBool::new(false)));
    let flush = {
        let done = done.clone();
        move || {
            let result = there.flush();
            done.store(true, Ordering::Release);
            result
        }
    };
    let task = runtime.spawn("flush", flush).unwrap();
    for _ in 0..6000 {
        if done.load(Ordering::Acquire) {
            return task.join().unwrap();
        }
        runtime.sleep(Duration::from_millis(10));
    }
    panic!("a flush waits for ever: {:?}", store.stats().jobs);
}

#[test]
fn a_flush_runs_again_after_a_panic_at_its_end() {
    tracing::subscriber::set_global_default(Panics).unwrap();
    let runtime = Runtime::threads();
    let faults = FaultStorage::new(Arc::new(MemoryStorage::new(&runtime)), &runtime);
    // The only worker panics at the message that there is no space, and at the one that a flush
    // failed.
    let components = Components::on(Arc::new(faults.clone()), runtime.clone());
    let options = Options {
        background_tasks: 1,
        ..Options::default()
    };
    let store = Store::open_with(components, options.clone()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    keyspace.put(b"key", b"value").unwrap();
    let full = Fault::Fail(StorageErrorKind::NoSpace);
    faults.add(Rule::on(OpKind::Sync, full).ending(".tbl"));
    PANICS.store(true, Ordering::Relaxed);
    let _ = flush_returns(&store, &runtime);
    // On a busy machine the call may still meet the failure, and the store goes on by itself.
    let mut tries = 0;
    while let Err(error) = flush_returns(&store, &runtime) {
        assert!(error.is_no_space() && tries < 50, "{error}");
        tries += 1;
        runtime.sleep(Duration::from_millis(100));
    }
    PANICS.store(false, Ordering::Relaxed);
    assert!(COUNT.swap(0, Ordering::Relaxed) > 0);
    let stats = store.stats();
    assert_eq!(stats.counter("flush_count"), 1);
    assert!(stats.jobs.is_empty(), "{:?}", stats.jobs);
    store.wait_until_idle().unwrap();
    keyspace.put(b"later", b"value").unwrap();
    store.flush().unwrap();
    store.close().unwrap();

    // The task that gives up the attempt of a hung executor panics at the message that the
    // executor is suspended.
    let mut components = Components::on(Arc::new(faults.clone()), runtime.clone());
    let let_go = Arc::new(AtomicBool::new(false));
    let hangs = Hangs(let_go.clone(), runtime.clone());
    components.executors.push(Arc::new(hangs));
    let store = Store::open_with(components, options).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    keyspace.put(b"hung", b"value").unwrap();
    PANICS.store(true, Ordering::Relaxed);
    let _ = flush_returns(&store, &runtime);
    flush_returns(&store, &runtime).unwrap();
    PANICS.store(false, Ordering::Relaxed);
    assert!(COUNT.load(Ordering::Relaxed) > 0);
    assert_eq!(store.stats().counter("flush_count"), 1);
    store.close().unwrap();
    let_go.store(true, Ordering::Relaxed);
}
