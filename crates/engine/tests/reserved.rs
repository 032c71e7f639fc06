//! The numbers of RFC 12, section 4, in the log, the manifest and the tables of a store: for each
//! of them, bytes that are made by hand are refused as `Unsupported`, with the name of the feature,
//! by opens, reads, `check`, compactions, `repair` and ingests, and nothing is changed. None of
//! them can be given to something else as long as this test is there. The parts of a table and of a
//! job are in `crates/table/tests/reserved.rs`.

#[path = "../../table/tests/common/patched.rs"]
mod patched;

use std::sync::Arc;

use patched::{Patched, TABLE_CASES, TableCase};
use siltstone::batch::BatchBody;
use siltstone::check::{CheckStorages, check};
use siltstone::log::format::{SEGMENT_HEADER_BYTES, segment_name};
use siltstone::log::{LogConfig, LogOptions, LogWriter, RecordKind};
use siltstone::manifest::{self, Manifest, Space};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::version::{Edit, LogPosition, StoreState, StoredOptions, TableMeta};
use siltstone::{
    Components, Error, ErrorKind, IngestMode, Options, Store, TableBuilder, TableFolder,
    TableOptions,
};
use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};

struct World {
    runtime: Runtime,
    memory: MemoryStorage,
}

fn key(i: u32) -> Vec<u8> {
    format!("key{i:03}").into_bytes()
}

impl World {
    /// A closed store with two runs, of which the newer one has a delete if it is `mixed`.
    fn new(mixed: bool) -> World {
        let runtime = Runtime::threads();
        let world = World {
            memory: MemoryStorage::new(&runtime),
            runtime,
        };
        let store = world.open().unwrap();
        let keyspace = store.open_keyspace("default").unwrap();
        for round in 0..2 {
            for i in 0..30 {
                match mixed && round == 1 && i == 1 {
                    true => keyspace.delete(key(i)).unwrap(),
                    false => keyspace.put(key(i), b"value").unwrap(),
                }
            }
            keyspace.flush().unwrap();
        }
        store.close().unwrap();
        world
    }

    fn components(&self) -> Components {
        Components::on(Arc::new(self.memory.clone()), self.runtime.clone())
    }

    fn open(&self) -> siltstone::Result<Store> {
        Store::open_with(self.components(), Options::default())
    }

    fn open_read_only(&self) -> siltstone::Result<Store> {
        Store::open_read_only_with(self.components(), Options::default())
    }

    /// What `check` says: its error, or the first problem that is no damage.
    fn check(&self) -> siltstone::Result<()> {
        let report = check(&CheckStorages::on(&self.memory), &mut |_| {})?;
        assert!(!report.is_sound(), "a check finds nothing");
        let is_unsupported = |e: &Error| e.kind() == ErrorKind::Unsupported;
        match report.problems.iter().find(|e| is_unsupported(e)) {
            Some(error) => Err(error.clone()),
            None => panic!("{:#?}", report.problems),
        }
    }

    fn repair(&self) -> siltstone::Result<()> {
        let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&self.runtime));
        let source = RepairSource::on(Arc::new(self.memory.clone()));
        let options = RepairOptions::default();
        repair(&source, &target, &self.runtime, &options, &mut |_| {}).map(|_| ())
    }

    fn state(&self) -> StoreState {
        manifest::recover(&self.memory).unwrap().unwrap().state
    }

    fn replace(&self, name: &str, bytes: &[u8]) {
        let lease = self.memory.lease("store").unwrap();
        self.memory.delete(lease.epoch(), name).unwrap();
        let file = self.memory.create(lease.epoch(), name).unwrap();
        file.append(&[bytes]).unwrap();
        file.sync().unwrap();
    }

    /// Writes a new manifest with a changed state.
    fn rewrite(&self, change: impl FnOnce(&mut Edit)) {
        let recovered = manifest::recover(&self.memory).unwrap().unwrap();
        let mut edit = recovered.state.to_edit();
        change(&mut edit);
        let state = StoreState::new().apply(&edit).unwrap();
        let lease = self.memory.lease("store").unwrap();
        let storage = Arc::new(self.memory.clone());
        let id = recovered.current.store_id;
        Manifest::create(storage, lease.epoch(), id, Arc::new(state), Space::Fresh).unwrap();
    }

    /// The tables of the store, oldest first.
    fn tables(&self) -> Vec<Arc<TableMeta>> {
        let state = self.state();
        let tables = state.keyspaces.values().flat_map(|k| k.version.tables());
        let mut tables: Vec<_> = tables.map(|(_, table)| table.clone()).collect();
        tables.sort_by_key(|table| table.id);
        tables
    }

    /// Changes the bytes of a table, and what the manifest says of it.
    fn patch(&self, name: &str, make: fn(Patched) -> Patched) {
        let patched = make(Patched(self.memory.read_small(name).unwrap()));
        self.replace(name, &patched.0);
        self.rewrite(|edit| {
            let added = edit.keyspaces.iter_mut().flat_map(|k| &mut k.add);
            for add in added.filter(|add| add.table.name == name) {
                let mut table = TableMeta::clone(&add.table);
                table.file_bytes = patched.0.len() as u64;
                table.digest = patched.digest().into();
                add.table = Arc::new(table);
            }
        });
    }

    /// A closed store whose log has one record of this kind.
    fn with_record(kind: u8, count: u64, body: &[u8]) -> World {
        let world = World::new(false);
        let recovered = manifest::recover(&world.memory).unwrap().unwrap();
        let storage: Arc<dyn Storage> = Arc::new(world.memory.clone());
        let lease = storage.lease("store").unwrap();
        let log = LogWriter::start(LogConfig {
            storage,
            epoch: lease.epoch(),
            runtime: world.runtime.clone(),
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
        let first = 1000;
        log.append(RecordKind::Group, first, count, &[body])
            .unwrap();
        log.sync(log.end()).unwrap();
        let (start, segment) = (log.chain_start(), segment_name(log.first_segment()));
        drop((log, lease));
        let mut bytes = world.memory.read_small(&segment).unwrap();
        set_kind(&mut bytes, kind, body);
        world.replace(&segment, &bytes);
        world.rewrite(|edit| {
            edit.log_start = Some(start);
            edit.log_synced = Some(LogPosition {
                segment: start.segment,
                offset: 0,
            });
            edit.closed = false;
        });
        world
    }
}

/// Changes the kind of the first record of a segment, as `docs/format/log.md` says.
fn set_kind(segment: &mut [u8], kind: u8, payload: &[u8]) {
    let at = SEGMENT_HEADER_BYTES;
    let has_position = segment[at + 8] & 0x80;
    assert_eq!(
        has_position, 0x80,
        "the first record has the synced position"
    );
    segment[at + 8] = kind | has_position;
    let salt_and_number = [&segment[32..40], &segment[24..32]].concat();
    let fields = [&segment[at + 4..at + 16], &segment[at + 20..at + 28]].concat();
    let covered = [&salt_and_number[..], &(at as u64).to_le_bytes(), &fields].concat();
    let check = crc32c::crc32c(&covered);
    let checksum = crc32c::crc32c_append(check, payload);
    assert_eq!(&segment[at + 28..at + 28 + payload.len()], payload);
    segment[at..at + 4].copy_from_slice(&checksum.to_le_bytes());
    segment[at + 16..at + 20].copy_from_slice(&check.to_le_bytes());
}

#[track_caller]
fn is_refused<T>(result: siltstone::Result<T>, what: &str, says: &str, place: &str) {
    let Err(error) = result else {
        panic!("{what}: {place} accepts it");
    };
    assert_eq!(
        error.kind(),
        ErrorKind::Unsupported,
        "{what}, {place}: {error}"
    );
    let said = error.to_string();
    assert!(said.contains(says), "{what}, {place}: {said}");
    assert!(
        said.contains("open "),
        "{what}, {place}, the advice: {said}"
    );
}

/// Opens, `check` and `repair` refuse what a closed store has, and change nothing.
#[track_caller]
fn is_refused_everywhere(world: &World, what: &str, says: &str) {
    let names = || -> Vec<_> { world.memory.list().unwrap() };
    let before = names();
    is_refused(world.open(), what, says, "open");
    is_refused(world.open_read_only(), what, says, "open for reading");
    is_refused(world.check(), what, says, "check");
    is_refused(world.repair(), what, says, "repair");
    is_refused(world.open(), what, says, "second open");
    assert_eq!(names(), before, "{what}: what is there stays");
}

/// Kinds 3 and 4, and bit 7 of any kind.
#[test]
fn entries_of_the_log() {
    let cases: &[(&[u8], &str)] = &[
        (b"\x03\x00\x01\x01kv", "merge operands"),
        (b"\x04\x00\x01\x14kaaaaaaaabbbbbbbbcccc", "value addresses"),
        (b"\x81\x00\x01\x01eeeeeeeekv", "expiry of entries"),
        (b"\x80\x00\x01eeeeeeeek", "expiry of entries"),
        (b"\x82\x00\x01\x01eeeeeeeekl", "expiry of entries"),
        (
            b"\x83\x00\x01\x01eeeeeeeekv",
            "merge operands, expiry of entries",
        ),
        (
            b"\x84\x00\x01\x01eeeeeeeekv",
            "value addresses, expiry of entries",
        ),
        (b"\x05", "entries of another kind"),
        (b"\x7f", "entries of another kind"),
    ];
    for (body, says) in cases {
        let what = format!("{body:02x?}");
        is_refused(BatchBody::from_bytes(body.to_vec()), &what, says, "batch");
        // A sound entry before it changes nothing.
        let both = [b"\x01\x00\x01\x01ab".as_slice(), body].concat();
        is_refused(
            BatchBody::from_bytes(both.clone()),
            &what,
            says,
            "batch of two",
        );
        is_refused_everywhere(&World::with_record(1, 2, &both), &what, says);
    }
}

/// Kinds from 5 on are neither skipped nor taken for the end of the log.
#[test]
fn records_of_the_log() {
    for kind in [5, 6, 64, 127] {
        let says = match kind {
            5 => "redirect markers".to_string(),
            kind => format!("log records of kind {kind}"),
        };
        let world = World::with_record(kind, 1, b"anything");
        is_refused_everywhere(&world, &format!("record of kind {kind}"), &says);
    }
    // A record that creates a keyspace with a merge operator.
    let body = [b"\x07\0\0\0name\xff".as_slice(), MERGE_OPERATOR].concat();
    let world = World::with_record(3, 1, &body);
    is_refused_everywhere(&world, "a create record with an operator", "merge operands");
}

/// An option of a keyspace: version 1 of the operator `add`.
const MERGE_OPERATOR: &[u8] = b"\x13\x80\x07\0\0\0\x01\0\0\0add";

#[test]
fn fields_of_the_manifest() {
    let refused = |bytes: &[u8], says| {
        is_refused(Edit::decode(bytes), &format!("{bytes:02x?}"), says, "edit");
    };
    let options = StoredOptions::decode(MERGE_OPERATOR);
    is_refused(options, "an option", "merge operands", "options");
    // A change of keyspace 1 that adds a run of another kind.
    let change = b"\x12\x80\x11\0\0\0\x01\x80\x04\0\0\0\x01\0\0\0\x08\x80\x01\0\0\0\x02";
    refused(change, "runs that are no tables");

    let world = World::new(false);
    assert!(world.tables().iter().all(|table| table.location == 0));
    for location in [2, u32::MAX] {
        let world = World::new(false);
        world.rewrite(|edit| {
            let add = &mut edit
                .keyspaces
                .iter_mut()
                .find(|k| !k.add.is_empty())
                .unwrap()
                .add[0];
            let mut table = TableMeta::clone(&add.table);
            table.location = location;
            add.table = Arc::new(table);
        });
        let what = format!("location {location}");
        is_refused_everywhere(&world, &what, "another location of tables");
        is_refused_everywhere(&world, &what, &what);
    }
    world.rewrite(|edit| edit.create[0].options.set(0x8013, b"\x01\0\0\0add"));
    is_refused_everywhere(&world, "a keyspace with an operator", "merge operands");
}

/// The text that the engine's own error has.
fn says(case: &TableCase) -> &'static str {
    match case.says {
        "newer than this program" => "version 3",
        says => says,
    }
}

#[test]
fn tables() {
    for case in TABLE_CASES {
        let what = case.what;
        let world = World::new(what.contains("column"));
        let tables = world.tables();
        let [oldest, newest] = &tables[..] else {
            panic!("{tables:?}");
        };
        world.patch(&newest.name, case.make);
        is_refused(world.check(), what, says(case), "check");
        is_refused(world.repair(), what, says(case), "repair");
        // The open looks at the oldest table only.
        let store = world.open().unwrap();
        let keyspace = store.open_keyspace("default").unwrap();
        is_refused(keyspace.get(key(0)), what, says(case), "get");
        let mut found = keyspace
            .iter()
            .and_then(|mut pairs| pairs.next().transpose());
        is_refused(found, what, says(case), "iterator");
        found = keyspace
            .iter()
            .and_then(|pairs| pairs.rev().last().transpose());
        is_refused(found, what, says(case), "iterator backwards");
        let report = store.verify(&mut |_| {}).unwrap();
        let problem = report.problems.into_iter().next().expect("it finds it");
        is_refused(Err::<(), _>(problem), what, says(case), "verify");
        is_refused(
            keyspace.compact_range(None, None),
            what,
            says(case),
            "compaction",
        );
        drop((keyspace, store));
        if case.at_open {
            let world = World::new(false);
            let oldest = &world.tables()[0];
            world.patch(&oldest.name, case.make);
            is_refused_everywhere(&world, what, says(case));
        }
        assert!(oldest.id < newest.id);
    }
}

#[test]
fn ingested_tables() {
    for case in TABLE_CASES {
        let world = World::new(false);
        let outside = MemoryStorage::new(&world.runtime);
        let folder = TableFolder::on(Arc::new(outside.clone()), Epoch::default());
        let mut builder = TableBuilder::new(&folder, "built", TableOptions::default()).unwrap();
        for i in 0..30 {
            match case.what.contains("column") && i % 3 == 1 {
                true => builder.delete(key(i)).unwrap(),
                false => builder.put(key(i), b"value").unwrap(),
            }
        }
        let file = builder.finish().unwrap().remove(0).file;
        let bytes = outside.read_small(file.name()).unwrap();
        let patched = (case.make)(Patched(bytes));
        outside.delete(Epoch::default(), file.name()).unwrap();
        let copy = outside.create(Epoch::default(), file.name()).unwrap();
        copy.append(&[&patched.0]).unwrap();
        copy.sync().unwrap();
        let store = world.open().unwrap();
        let keyspace = store.open_keyspace("default").unwrap();
        let ingested = store.ingest(&[(&keyspace, vec![file])], IngestMode::Copy);
        is_refused(ingested, case.what, says(case), "ingest");
        assert_eq!(
            keyspace.get(key(0)).unwrap().as_deref(),
            Some(&b"value"[..])
        );
        store.close().unwrap();
    }
}
