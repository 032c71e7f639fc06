//! Numbers on the disk that no store can reach: in a manifest with valid checksums, in a log
//! record, in the names of files. An open refuses them, naming the file and the field, or leaves
//! the file alone. Nothing overflows, and nothing panics.

use std::sync::Arc;

use siltstone::manifest::{self, Manifest, Space};
use siltstone::version::{
    AddTable, CreateKeyspace, Edit, KeyRange, KeyspaceEdit, MAX_OPEN_NUMBER, MAX_TABLE_ID, RunSlot,
    SeqRange, StoreState, TableMeta,
};
use siltstone::{Components, Error, ErrorKind, Options, Result, Store};
use siltstone_storage::{MemoryStorage, Runtime, Storage};

const MAX_SEQUENCE: u64 = (1 << 56) - 1;

struct Disk {
    runtime: Runtime,
    storage: Arc<dyn Storage>,
}

impl Disk {
    /// A closed store with one pair.
    fn with_store() -> Disk {
        let runtime = Runtime::threads();
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
        let disk = Disk { runtime, storage };
        let store = disk.open().unwrap();
        store.default_keyspace().unwrap().put(b"k", b"v").unwrap();
        store.flush().unwrap();
        store.close().unwrap();
        disk
    }

    fn open(&self) -> Result<Store> {
        let components = Components::on(self.storage.clone(), self.runtime.clone());
        Store::open_with(components, Options::default())
    }

    /// Opens the store, reads what was there, writes, and closes it.
    fn work(&self) -> Result<()> {
        let store = self.open()?;
        let ks = store.default_keyspace()?;
        assert_eq!(ks.get(b"k")?.as_deref(), Some(&b"v"[..]));
        ks.put(b"x", b"y")?;
        store.flush()?;
        assert_eq!(ks.get(b"x")?.as_deref(), Some(&b"y"[..]));
        drop(ks);
        store.close()
    }

    /// Writes a changed state into a new manifest, with valid checksums.
    fn change_state(&self, change: impl FnOnce(&mut StoreState)) {
        let recovered = manifest::recover(&*self.storage).unwrap().unwrap();
        let mut state = recovered.state.clone();
        change(&mut state);
        let lease = self.storage.lease("store").unwrap();
        Manifest::create(
            self.storage.clone(),
            lease.epoch(),
            recovered.current.store_id,
            Arc::new(state),
            Space::Fresh,
        )
        .unwrap();
    }
}

fn is_damage(error: &Error, file: &str, field: &str) {
    assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
    assert!(error.to_string().contains(field), "{field}: {error}");
    assert!(error.to_string().contains(file), "{file}: {error}");
}

/// A ceiling near 2^64 made an open panic, or overflow and give numbers from 0 on. A log position
/// of 2^32 + n was taken for n.
#[test]
fn a_manifest_with_absurd_numbers_is_damage() {
    type Change = fn(&mut StoreState);
    let changes: &[(&str, Change)] = &[
        ("the sequence ceiling", |s| {
            s.sequence_ceiling = u64::MAX - 5
        }),
        ("the sequence ceiling", |s| {
            s.sequence_ceiling = MAX_SEQUENCE + 1;
        }),
        ("the open number", |s| s.open_number = u64::MAX),
        ("the log's start", |s| s.log_start.segment += 1 << 32),
        ("the offset of the log's start", |s| {
            s.log_start.offset += 1 << 32;
        }),
        ("the segment of the log's synced", |s| {
            s.log_synced.segment += 1 << 32;
        }),
        ("the offset of the log's synced", |s| {
            s.log_synced.offset += 1 << 32;
        }),
        ("the next table id", |s| s.next_table_id = u64::MAX),
    ];
    for (field, change) in changes {
        let disk = Disk::with_store();
        disk.change_state(*change);
        for _ in 0..2 {
            is_damage(&disk.work().unwrap_err(), "MANIFEST-", field);
        }
    }
}

/// The last numbers are used up: a call that needs one more fails, and the data can be read.
#[test]
fn the_last_numbers_are_used_up_and_not_passed() {
    let disk = Disk::with_store();
    disk.change_state(|s| s.sequence_ceiling = MAX_SEQUENCE);
    let store = disk.open().unwrap();
    let ks = store.default_keyspace().unwrap();
    for _ in 0..2 {
        let error = ks.put(b"x", b"y").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(
            error.to_string().contains("last sequence number"),
            "{error}"
        );
    }
    assert_eq!(ks.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert_eq!(ks.get(b"x").unwrap(), None);
    drop(ks);
    store.close().unwrap();

    let disk = Disk::with_store();
    disk.change_state(|s| s.open_number = MAX_OPEN_NUMBER);
    let error = disk.work().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");

    let disk = Disk::with_store();
    disk.change_state(|s| s.next_keyspace_id = u32::MAX);
    disk.work().unwrap();
    let error = disk.open().unwrap().create_keyspace("c").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// A single stray file with the largest open number in its name made every open panic. One with the
/// largest manifest number made a store that could not be opened.
#[test]
fn files_with_absurd_numbers_in_their_names_are_left_alone() {
    for name in [
        "ffffffffffffffff-00000001-0000-00000.tbl",
        "ffffffffffff-00000001-0000-00000.tbl",
        "MANIFEST-18446744073709551615",
        "MANIFEST-999999999999999",
        "004294967294.log",
    ] {
        let disk = Disk::with_store();
        let lease = disk.storage.lease("store").unwrap();
        drop(disk.storage.create(lease.epoch(), name).unwrap());
        drop(lease);
        for _ in 0..3 {
            disk.work().unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
}

/// The limits of what an edit says about tables and keyspaces.
#[test]
fn an_edit_with_absurd_numbers_is_refused() {
    let create = Edit {
        next_table_id: Some(10),
        create: vec![CreateKeyspace {
            id: 1,
            name: "a".into(),
            sequence: 0,
            options: Default::default(),
        }],
        ..Edit::default()
    };
    let state = StoreState::new().apply(&create).unwrap();
    let table = || TableMeta {
        id: 2,
        location: 0,
        name: "t".into(),
        min_seq: 1,
        max_seq: 1,
        raw_bytes: 1,
        file_bytes: 1,
        entries: 1,
        deletes: 0,
        range_deletes: 0,
        digest: 0,
        points: Some((b"a"[..].into(), b"b"[..].into())),
        bounds: KeyRange::closed(b"a", b"b"),
        sequence_override: None,
        flags: 0,
    };
    let edit = |change: &dyn Fn(&mut KeyspaceEdit, &mut RunSlot, &mut TableMeta)| {
        let mut keyspace = KeyspaceEdit {
            covered: vec![SeqRange::new(0, 1)],
            ..KeyspaceEdit::new(1)
        };
        let mut slot = RunSlot {
            id: 3,
            seqs: SeqRange::new(0, 1),
        };
        let mut table = table();
        change(&mut keyspace, &mut slot, &mut table);
        keyspace.add.push(AddTable {
            level: 0,
            run: Some(slot),
            table: Arc::new(table),
        });
        Edit {
            keyspaces: vec![keyspace],
            ..Edit::default()
        }
    };
    state.apply(&edit(&|_, _, _| ())).unwrap();
    type Change = fn(&mut KeyspaceEdit, &mut RunSlot, &mut TableMeta);
    let changes: &[(&str, Change)] = &[
        ("covered range", |k, _, _| {
            k.covered = vec![SeqRange::new(0, MAX_SEQUENCE + 1)];
        }),
        ("covered floor", |k, _, _| k.covered_floor = Some(u64::MAX)),
        ("moved-through", |k, _, _| k.moved_through = Some(u64::MAX)),
        ("run's id", |_, slot, _| slot.id = MAX_TABLE_ID + 1),
        ("run's last number", |_, slot, _| slot.seqs.hi = u64::MAX),
        ("table's id", |_, _, t| t.id = u64::MAX),
        ("largest sequence number", |_, _, t| t.max_seq = u64::MAX),
        ("override", |_, _, t| t.sequence_override = Some(u64::MAX)),
        ("length", |_, _, t| t.file_bytes = u64::MAX),
        ("raw length", |_, _, t| t.raw_bytes = u64::MAX),
        ("count of entries", |_, _, t| t.entries = u64::MAX),
        ("count of range deletes", |_, _, t| {
            t.range_deletes = 1 << 50
        }),
    ];
    for (field, change) in changes {
        let error = state.apply(&edit(change)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corruption, "{error}");
        assert!(error.to_string().contains(field), "{field}: {error}");
    }
}
