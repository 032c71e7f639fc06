//! Makes every call that the guide names in its table for users of RocksDB.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // real threads and a real clock

use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairSource, repair};
use siltstone::storage::{FileStorage, MemoryStorage, Runtime, Storage};
use siltstone::{
    Batch, Event, EventListener, IngestMode, IterOptions, Keyspace, KeyspaceOptions, Options,
    Stats, Store, SyncMode, TableBuilder, TableFolder, TableOptions, WriteOptions,
};

const TABLE: &str = include_str!("../src/guide/moving_from_rocksdb.md");

/// The items that the guide links to: `Keyspace::put`, `Batch`.
fn named() -> BTreeSet<&'static str> {
    let links = TABLE.split("crate::").skip(1);
    links.map(|l| l.split(')').next().unwrap()).collect()
}

struct Ignore;

impl EventListener for Ignore {
    fn on_event(&self, _: &Event) {}
}

/// Makes each call, and checks that it is one of the item that the guide names.
macro_rules! calls {
    ($made:ident: $($name:literal => $call:expr;)+) => {$(
        let last = $name.rsplit("::").next().unwrap();
        let code = stringify!($call).replace(char::is_whitespace, "");
        assert!(code.contains(last), "{code} is not a call of {}", $name);
        let _ = $call;
        assert!($made.insert($name), "{} is called twice", $name);
    )+};
}

#[test]
fn every_call_that_the_guide_names_exists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut made = BTreeSet::new();
    calls! { made: "Store::open" => Store::open(&path, Options::default()).unwrap(); }
    let store = Store::open(&path, Options::default()).unwrap();
    let ks: Keyspace = store.create_keyspace("birds").unwrap();
    let mut batch = Batch::new();
    let sync = WriteOptions::SYNC;
    let then = store.snapshot();
    let out = TableFolder::create(folder.path().join("tables")).unwrap();
    let mut buffer = Vec::new();
    calls! { made:
        "Batch" => Batch::new();
        "WriteOptions" => WriteOptions::SYNC;
        "SyncMode" => SyncMode::Always;
        "Keyspace" => Keyspace::name(&ks);
        "Store::create_keyspace" => store.create_keyspace("gone").unwrap();
        "Store::drop_keyspace" => store.drop_keyspace("gone").unwrap();
        "Store::keyspaces" => assert_eq!(store.keyspaces(), ["birds", "default"]);
        "Keyspace::put" => ks.put("kite", "1").unwrap();
        "Keyspace::put_with" => ks.put_with("kite", "2", sync).unwrap();
        "Keyspace::get" => assert_eq!(ks.get("kite").unwrap().unwrap(), b"2");
        "Keyspace::get_at" => assert_eq!(ks.get_at(&then, "kite").unwrap(), None);
        "Keyspace::get_into" => assert!(ks.get_into("kite", &mut buffer).unwrap());
        "Keyspace::get_pinned" => assert_eq!(&ks.get_pinned("kite").unwrap().unwrap()[..], b"2");
        "Keyspace::multi_get" => assert_eq!(ks.multi_get(&["a", "kite"]).unwrap().len(), 2);
        "Keyspace::contains_key" => assert!(ks.contains_key("kite").unwrap());
        "Keyspace::take" => assert!(ks.take("kite").unwrap().is_some());
        "Keyspace::delete" => ks.delete("kite").unwrap();
        "Keyspace::delete_with" => ks.delete_with("kite", sync).unwrap();
        "Keyspace::delete_range" => ks.delete_range("a", "z").unwrap();
        "Keyspace::delete_range_with" => ks.delete_range_with("a", "z", sync).unwrap();
        "Keyspace::take_with" => assert!(ks.take_with("kite", sync).unwrap().is_none());
    }
    batch.put(&ks, "robin", "3").unwrap();
    calls! { made:
        "Store::write" => store.write(&batch, sync).unwrap();
        "Store::sync_log" => store.sync_log().unwrap();
        "Store::snapshot" => store.snapshot();
        "Keyspace::range_at" => assert_eq!(ks.range_at(&then, ..).unwrap().count(), 0);
        "Keyspace::range" => assert_eq!(ks.range("a".."z").unwrap().count(), 1);
        "Keyspace::prefix" => assert_eq!(ks.prefix("r").unwrap().count(), 1);
        "Keyspace::first" => assert!(ks.first().unwrap().is_some());
        "Keyspace::last" => assert!(ks.last().unwrap().is_some());
        "IterOptions" => IterOptions::default();
        "IterOptions::prefix" => IterOptions::prefix("r");
        "Keyspace::cursor" => ks.cursor(..).unwrap();
    }
    let mut cursor = ks.cursor(IterOptions::default()).unwrap();
    cursor.seek_to_first().unwrap();
    cursor.seek("r").unwrap();
    calls! { made: "Cursor::refresh" => cursor.refresh().unwrap(); }
    cursor.seek_for_prev("z").unwrap();
    cursor.next().unwrap();
    cursor.seek_to_last().unwrap();
    cursor.prev().unwrap();

    let built = {
        let own = TableOptions::default;
        calls! { made: "TableBuilder" => TableBuilder::new(&out, "other", own()); }
        let mut builder = TableBuilder::new(&out, "built", own()).unwrap();
        builder.put("stork", "4").unwrap();
        builder.finish().unwrap()
    };
    let files: Vec<_> = built.into_iter().map(|table| table.file).collect();
    let parts = [(&ks, files)];
    calls! { made:
        "IngestMode" => IngestMode::Copy;
        "Store::ingest" => store.ingest(&parts, IngestMode::Copy).unwrap();
        "Keyspace::export" => ks.export(.., &out, "exported").unwrap();
        "Store::flush" => store.flush().unwrap();
        "Keyspace::compact_range" => ks.compact_range(None, None).unwrap();
        "Store::wait_until_idle" => store.wait_until_idle().unwrap();
        "Keyspace::approximate_size" => ks.approximate_size("a".."z").unwrap();
        "Keyspace::approximate_count" => ks.approximate_count(..).unwrap();
        "Keyspace::properties" => ks.properties().unwrap();
        "Keyspace::set_options" => ks.set_options(&KeyspaceOptions::default()).unwrap();
        "Store::set_option" => store.set_option("log_bytes_max", 1 << 30).unwrap();
        "Store::verify" => assert!(store.verify(&mut |_| ()).unwrap().is_sound());
        "Store::stats" => store.stats();
        "Stats" => Stats::write_amplification(&store.stats());
        "Store::checkpoint" => store.checkpoint(folder.path().join("copy")).unwrap();
        "Options::to_toml" => store.options().to_toml();
        "Options::from_toml" => Options::from_toml("").unwrap();
    }
    calls! { made: "Store::close" => store.close().unwrap(); }
    calls! { made: "Options::load" => Options::load(&path).unwrap(); }
    let runtime = Runtime::threads();
    let files: Arc<dyn Storage> = Arc::new(FileStorage::open_existing(&path).unwrap());
    let mended: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
    let (of, source) = (CheckStorages::on(&*files), RepairSource::on(files.clone()));
    let options = RepairOptions::default();
    calls! { made:
        "Store::open_read_only" => Store::open_read_only(&path, Options::default()).unwrap();
        "check" => check(&of, &mut |_| ()).unwrap();
        "repair::repair" => repair(&source, &mended, &runtime, &options, &mut |_| ()).unwrap();
    }
    calls! { made:
        "EventListener" => EventListener::on_event(&Ignore, &Event::SpaceAvailable);
        "Store::open_with_listener" =>
            Store::open_with_listener(&path, Options::default(), Arc::new(Ignore)).unwrap();
        "Store::destroy" => Store::destroy(&path).unwrap();
    }
    assert_eq!(
        made,
        named(),
        "what is called here, and what the guide names"
    );
}
