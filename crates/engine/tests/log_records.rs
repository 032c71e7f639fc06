//! Records of the log that are whole, with valid checksums, and make no sense for the store that
//! they belong to: an open refuses them, names the segment and the offset of the record, and
//! changes nothing.

use std::sync::Arc;

use siltstone::batch::BatchBody;
use siltstone::log::format::SEGMENT_HEADER_BYTES;
use siltstone::log::{LogConfig, LogOptions, LogWriter, RecordKind};
use siltstone::manifest::{self, Manifest, Space};
use siltstone::version::{Edit, LogPosition};
use siltstone::{
    Components, Error, ErrorKind, IngestMode, Options, Store, TableBuilder, TableFolder,
    TableOptions,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{
    Epoch, FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind,
};

fn open(storage: &MemoryStorage, runtime: &Runtime) -> siltstone::Result<Store> {
    let components = Components::on(Arc::new(storage.clone()), runtime.clone());
    Store::open_with(components, Options::default())
}

/// A closed store whose log has one record, and the name of its segment.
fn store_with_record(
    kind: RecordKind,
    count: u64,
    body: &[u8],
) -> (MemoryStorage, Runtime, String) {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    open(&memory, &runtime).unwrap().close().unwrap();
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    let recovered = manifest::recover(&*storage).unwrap().unwrap();
    let lease = storage.lease("store").unwrap();
    let log = LogWriter::start(LogConfig {
        storage: storage.clone(),
        epoch: lease.epoch(),
        runtime: runtime.clone(),
        store_id: recovered.current.store_id.0 as u64,
        options: LogOptions {
            segment_bytes: 64 << 10,
            recycle_count: 0,
        },
        reserve: None,
        last_known_segment: 0,
        on_poison: Box::new(|_| ()),
    })
    .unwrap();
    log.append(kind, recovered.state.sequence_ceiling + 1, count, &[body])
        .unwrap();
    log.sync(log.end()).unwrap();
    let mut state = recovered.state;
    state.log_start = log.chain_start();
    state.log_synced = LogPosition {
        segment: state.log_start.segment,
        offset: 0,
    };
    Manifest::create(
        storage,
        lease.epoch(),
        recovered.current.store_id,
        Arc::new(state),
        Space::Fresh,
    )
    .unwrap();
    let segment = siltstone::log::format::segment_name(log.first_segment());
    drop((log, lease));
    (memory, runtime, segment)
}

/// The error of opens of such a store, for writing and for reading, more than once. The refusals
/// change nothing.
fn refusal(kind: RecordKind, count: u64, body: &[u8]) -> Error {
    let (memory, runtime, segment) = store_with_record(kind, count, body);
    let before = memory.list().unwrap();
    let mut last = None;
    for _ in 0..2 {
        let error = open(&memory, &runtime).expect_err("it makes no sense");
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert_eq!(error.file(), Some(&segment[..]), "{error}");
        assert_eq!(
            error.offset(),
            Some(SEGMENT_HEADER_BYTES as u64),
            "where the record begins: {error}"
        );
        last = Some(error);
    }
    assert_eq!(memory.list().unwrap(), before, "what is there stays");
    last.expect("it was refused twice")
}

/// The next id overflowed.
#[test]
fn a_create_record_with_the_last_id_is_damage() {
    let mut body = u32::MAX.to_le_bytes().to_vec();
    body.extend_from_slice(b"last");
    let error = refusal(RecordKind::KeyspaceCreate, 1, &body);
    assert!(error.to_string().contains("4294967295"), "{error}");
}

#[test]
fn a_create_record_is_an_id_a_name_and_options() {
    let named = |name: &[u8]| [&77u32.to_le_bytes()[..], name].concat();
    for body in [
        b"\x4d\0\0".to_vec(),
        named(b""),
        named(&[b'x'; 300]),
        named(b"\xff\xfe"),
        // A name, its end, and options that are cut off.
        named(b"events\xff\x01"),
    ] {
        let error = refusal(RecordKind::KeyspaceCreate, 1, &body);
        assert!(!error.message().is_empty(), "{body:?}");
    }
}

#[test]
fn a_drop_record_is_an_id() {
    for body in [&b""[..], b"\x01\0\0", b"\x01\0\0\0\0"] {
        let error = refusal(RecordKind::KeyspaceDrop, 1, body);
        assert!(error.message().contains("drop record"), "{error}");
    }
}

/// The data would be lost silently.
#[test]
fn entries_of_a_keyspace_that_was_never_created_are_damage() {
    let mut batch = BatchBody::new();
    batch.put(1, b"k", b"v").unwrap();
    batch.put(4711, b"k", b"v").unwrap();
    let error = refusal(RecordKind::Group, 2, batch.body());
    assert!(error.message().contains("keyspace 4711"), "{error}");
}

#[test]
fn an_ingest_record_without_runs_is_damage() {
    let mut edit = Edit::new();
    edit.next_table_id = Some(1 << 60);
    for body in [b"\x01\x02".to_vec(), edit.encode()] {
        let (memory, runtime, segment) = store_with_record(RecordKind::Ingest, 1, &body);
        match open(&memory, &runtime) {
            Err(error) => assert_eq!(error.file(), Some(&segment[..]), "{error}"),
            // An ingest of nothing changes nothing.
            Ok(store) => {
                store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
                store.flush().unwrap();
                store.close().unwrap();
                drop(open(&memory, &runtime).unwrap());
            }
        }
    }
}

/// The record of an ingest is durable, and its edit is not. Replay adds its table, if it is the one
/// that the record names.
#[test]
fn replay_checks_an_ingested_table_before_it_is_added() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let faults = FaultStorage::new(Arc::new(memory.clone()), &runtime);
    let components = Components::on(Arc::new(faults.clone()), runtime.clone());
    let store = Store::open_with(components, Options::default()).unwrap();
    let outside = MemoryStorage::new(&runtime);
    let folder = TableFolder::on(Arc::new(outside.clone()), Epoch::default());
    let build = |prefix: &str, value: &[u8]| {
        let mut builder = TableBuilder::new(&folder, prefix, TableOptions::default()).unwrap();
        builder.put(b"k", value).unwrap();
        let built = builder.finish().unwrap();
        built.into_iter().map(|t| t.file).collect::<Vec<_>>()
    };
    let keyspace = store.default_keyspace().unwrap();
    faults.add(
        Rule::on(OpKind::Append, Fault::Fail(StorageErrorKind::Io))
            .named("MANIFEST")
            .for_good(),
    );
    let result = store.ingest(&[(&keyspace, build("a", b"right"))], IngestMode::Copy);
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Poisoned);
    let image = memory.kill();
    let mut names = image.list().unwrap().into_iter().map(|o| o.name);
    let table = names.rfind(|name| name.ends_with(".tbl"));
    let table = table.expect("the ingested table was copied before its record was written");

    let whole = open(&image.kill(), &runtime).unwrap();
    let got = whole.default_keyspace().unwrap().get(b"k").unwrap();
    assert_eq!(got.as_deref(), Some(&b"right"[..]));
    drop(whole);

    // Another table has its name, which would give wrong results silently.
    build("b", b"wrong, and longer");
    let other = outside.read_small("b-00000.table").unwrap();
    let swapped = image.kill();
    swapped.replace(Epoch::default(), &table, &other).unwrap();
    let error = open(&swapped, &runtime).expect_err("another table");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(error.file(), Some(&table[..]), "{error}");
    assert!(
        error.expected_value().is_some() && error.found_value().is_some(),
        "{error}"
    );

    let missing = image.kill();
    missing.delete(Epoch::default(), &table).unwrap();
    let error = open(&missing, &runtime).expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert_eq!(error.file(), Some(&table[..]), "{error}");
}
