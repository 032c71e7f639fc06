//! A key of an ingested table that equals the separator of its block is found by gets and pinned
//! gets, also after a compaction.

use std::sync::Arc;

use siltstone::version::{KeyRange, TableMeta};
use siltstone::{Components, Options, Store};
use siltstone_storage::memory::MemoryStorage;
use siltstone_storage::{Runtime, Storage};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::writer::{TableWriter, WriterOptions};

#[test]
fn a_key_that_is_its_blocks_separator_is_found() {
    let runtime = Runtime::threads();
    let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
    let store =
        Store::open_with(Components::on(storage.clone(), runtime), Options::default()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let hooks = store.test_hooks();
    let name = "00000001-99999999-0000-00000.tbl";
    let file = storage.create(hooks.epoch(), name).unwrap();
    let mut writer = TableWriter::new(file.clone(), WriterOptions::default()).unwrap();
    let keys: Vec<[u8; 1]> = (b'a'..=b'z').map(|b| [b]).collect();
    for key in &keys {
        // Each key has a block of its own, so every key but the first is a separator.
        writer.end_block().unwrap();
        writer.add(key, trailer(0, Kind::Put), key).unwrap();
    }
    let summary = writer.finish().unwrap();
    file.sync().unwrap();
    storage.sync_dir(hooks.epoch()).unwrap();
    let meta = TableMeta {
        id: hooks.new_table_id(),
        location: 0,
        name: name.into(),
        min_seq: 0,
        max_seq: 0,
        raw_bytes: summary.raw_bytes,
        file_bytes: summary.file_bytes,
        entries: summary.properties.entries,
        deletes: 0,
        range_deletes: 0,
        digest: summary.digest.into(),
        points: Some((b"a"[..].into(), b"z"[..].into())),
        bounds: KeyRange::closed(b"a", b"z"),
        sequence_override: None,
        flags: 0,
    };
    hooks.ingest(&keyspace, vec![meta]).unwrap();
    let check = || {
        for key in &keys {
            assert_eq!(keyspace.get(key).unwrap().as_deref(), Some(&key[..]));
            assert_eq!(keyspace.get_pinned(key).unwrap().as_deref(), Some(&key[..]));
        }
    };
    check();
    keyspace.put(b"b", b"b").unwrap();
    keyspace.compact_range(None, None).unwrap();
    check();
}
