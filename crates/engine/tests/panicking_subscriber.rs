//! A subscriber of `tracing` panics while a failed flush is being ended: the flush runs again, and
//! nobody waits for it for ever. The test has a process of its own, because a subscriber is for the
//! whole process.
// A subscriber is the user's code, and real threads run here.
#![allow(clippy::disallowed_methods)]

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone::{Components, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, StorageErrorKind};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// How often [`Panics`] has panicked.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Panics once, when the store says that there is no space.
struct Panics;

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

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
        let mut message = Message(String::new());
        event.record(&mut message);
        if message.0.starts_with("no space") && PANICS.fetch_add(1, Ordering::Relaxed) == 0 {
            panic!("a subscriber panics");
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_flush_runs_again_after_a_panic_at_its_end() {
    tracing::subscriber::set_global_default(Panics).unwrap();
    let runtime = Runtime::threads();
    let faults = FaultStorage::new(Arc::new(MemoryStorage::new(&runtime)), &runtime);
    let components = Components::on(Arc::new(faults.clone()), runtime.clone());
    let store = Store::open_with(components, Options::default()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    keyspace.put(b"key", b"value").unwrap();
    // The first table finds no space.
    let full = Fault::Fail(StorageErrorKind::NoSpace);
    faults.add(Rule::on(OpKind::Sync, full).ending(".tbl"));
    let _ = store.flush();
    for _ in 0..1000 {
        let stats = store.stats();
        if stats.counter("flush_count") > 0 && stats.jobs.is_empty() {
            break;
        }
        runtime.sleep(Duration::from_millis(10));
    }
    assert!(PANICS.load(Ordering::Relaxed) > 0);
    let stats = store.stats();
    assert_eq!(
        stats.counter("flush_count"),
        1,
        "the flush did not run again"
    );
    assert!(stats.jobs.is_empty(), "{:?}", stats.jobs);
    keyspace.put(b"later", b"value").unwrap();
    store.flush().unwrap();
    store.close().unwrap();
}
