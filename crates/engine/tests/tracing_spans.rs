//! `tracing`: what an open store does has spans and events; reads and writes have none. The test
//! has a process of its own, because a subscriber is for the whole process.
// A subscriber is the user's code, and real threads run here.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use common::{key, small};
use siltstone::{IngestMode, IterOptions, Store, TableFolder};
use siltstone_storage::Storage;
use siltstone_storage::files::FileStorage;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps a line for each span and event of siltstone.
#[derive(Clone, Default)]
struct Lines {
    lines: Arc<Mutex<Vec<String>>>,
    next: Arc<AtomicU64>,
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {}={value:?}", field.name());
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("siltstone")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(format!("span {}", span.metadata().name()));
        span.record(&mut text);
        self.lines.lock().unwrap().push(text.0);
        Id::from_u64(1 + self.next.fetch_add(1, Ordering::Relaxed))
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.lines.lock().unwrap().push(text.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lines.lock().unwrap())
    }
}

#[track_caller]
fn has(lines: &[String], parts: &[&str]) {
    assert!(
        lines
            .iter()
            .any(|line| parts.iter().all(|p| line.contains(p))),
        "no line with {parts:?} in {lines:#?}"
    );
}

#[test]
fn work_of_a_store_has_spans_and_events() {
    let lines = Lines::default();
    tracing::subscriber::set_global_default(lines.clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let store = Store::open(&path, small()).unwrap();
    let said = lines.take();
    has(&said, &["span open", "store="]);
    has(&said, &["INFO", "opened"]);
    let ks = store.default_keyspace().unwrap();
    for i in 0..500 {
        ks.put(&key(i), &[1; 100]).unwrap();
        ks.get(&key(i)).unwrap();
    }
    assert_eq!(ks.iter().unwrap().count(), 500);
    let said = lines.take();
    assert!(
        said.is_empty(),
        "reading and writing is not traced: {said:#?}"
    );
    store.flush().unwrap();
    ks.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    let said = lines.take();
    has(&said, &["span flush", "keyspace=\"default\""]);
    has(&said, &["DEBUG", "flushed", "out_bytes="]);
    has(
        &said,
        &["span compaction", "keyspace=\"default\"", "reason="],
    );
    has(&said, &["DEBUG", "compacted"]);

    std::fs::create_dir(folder.path().join("out")).unwrap();
    let outside = TableFolder::open(folder.path().join("out")).unwrap();
    let built = ks.export(IterOptions::default(), &outside, "x").unwrap();
    let other = store.create_keyspace("b").unwrap();
    let files = built.iter().map(|t| t.file.clone()).collect();
    store.ingest(&[(&other, files)], IngestMode::Copy).unwrap();
    store.checkpoint(folder.path().join("c")).unwrap();
    store.drop_keyspace("b").unwrap();
    store.close().unwrap();
    let said = lines.take();
    has(&said, &["span ingest"]);
    has(&said, &["INFO", "ingested", "table_count=1"]);
    has(&said, &["span checkpoint", "folder="]);
    has(&said, &["INFO", "checkpoint written"]);
    has(&said, &["INFO", "keyspace created", "name=\"b\""]);
    has(&said, &["INFO", "keyspace dropped", "name=\"b\""]);
    has(&said, &["INFO", "closed"]);

    let rt = siltstone_storage::Runtime::threads();
    let source: Arc<dyn Storage> = Arc::new(FileStorage::open_existing(&path).unwrap());
    let target: Arc<dyn Storage> =
        Arc::new(FileStorage::open_or_create(folder.path().join("r")).unwrap());
    let source = siltstone::repair::RepairSource::on(source);
    let options = siltstone::repair::RepairOptions::default();
    siltstone::repair::repair(&source, &target, &rt, &options, &mut |_| ()).unwrap();
    let said = lines.take();
    has(&said, &["span repair", "target="]);
    has(&said, &["INFO", "repaired"]);
}
