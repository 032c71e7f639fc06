//! The library's calls as a newcomer uses them: kinds of keys and ranges, writes with options,
//! reads at a snapshot, settings, and which handles keep a store open.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // real threads and a real clock

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use siltstone::{
    Compression, ErrorKind, IterOptions, Keyspace, KeyspaceOptions, Options, Range, Result, Store,
    TableFolder, Value, WriteOptions,
};

const SYNC: WriteOptions = WriteOptions::SYNC;

struct Birds {
    store: Store,
    keyspace: Keyspace,
    /// The store is in this folder, so it must live as long as the handles.
    folder: tempfile::TempDir,
}

/// A store with some birds, the first three of them in a table.
fn birds() -> Birds {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path().join("store"), Options::default()).unwrap();
    let keyspace = store.open_keyspace("birds").unwrap();
    for (n, name) in ["heron", "kite", "raven", "robin", "wren"]
        .iter()
        .enumerate()
    {
        if n == 3 {
            keyspace.flush().unwrap();
        }
        keyspace.put(name, name.to_uppercase()).unwrap();
    }
    Birds {
        store,
        keyspace,
        folder,
    }
}

fn names(range: Result<Range>) -> Vec<String> {
    let name = |pair: Result<(Vec<u8>, Vec<u8>)>| String::from_utf8(pair.unwrap().0).unwrap();
    range.unwrap().map(name).collect()
}

#[test]
fn keys_and_values_are_anything_that_is_bytes() {
    let Birds {
        keyspace,
        folder: _folder,
        ..
    } = birds();
    let owned = "owl".to_string();
    keyspace.put(&owned, owned.len().to_be_bytes()).unwrap();
    keyspace.put(b"owl", vec![1, 2]).unwrap();
    keyspace.put([7u8; 3], *b"sevens").unwrap();
    keyspace.put(Arc::<[u8]>::from(&b"shared"[..]), "").unwrap();
    assert_eq!(keyspace.get("owl").unwrap().unwrap(), [1, 2]);
    assert_eq!(keyspace.get([7; 3]).unwrap().unwrap(), b"sevens");
    assert!(keyspace.contains_key(owned.as_bytes()).unwrap());
    assert!(keyspace.contains_key("heron").unwrap() && !keyspace.contains_key("he").unwrap());
    let pinned = keyspace.get_pinned("heron").unwrap().unwrap();
    keyspace
        .put(&pinned, "a pinned value is bytes too")
        .unwrap();
    assert!(keyspace.contains_key("HERON").unwrap());
    keyspace.delete(owned).unwrap();
    assert!(!keyspace.contains_key("owl").unwrap());

    keyspace.delete_range("a", vec![b'z']).unwrap();
    assert_eq!(keyspace.iter().unwrap().count(), 2); // HERON and the sevens
}

/// `delete_range` and `take` had no variant with options.
#[test]
fn each_write_can_be_synced() {
    let Birds {
        store,
        keyspace,
        folder: _folder,
    } = birds();
    let syncs = || store.stats().counter("log_sync_count");
    let writes: [(&str, &dyn Fn() -> Result<()>); 4] = [
        ("put", &|| keyspace.put_with("owl", "OWL", SYNC)),
        ("delete", &|| keyspace.delete_with("kite", SYNC)),
        ("delete_range", &|| {
            keyspace.delete_range_with("raven", "robin", SYNC)
        }),
        ("take", &|| {
            let taken = keyspace.take_with("owl", SYNC)?;
            assert_eq!(taken, Some(b"OWL".to_vec()));
            Ok(())
        }),
    ];
    for (call, write) in writes {
        let before = syncs();
        write().unwrap();
        assert!(syncs() > before, "{call}");
    }
    assert_eq!(names(keyspace.iter()), ["heron", "robin", "wren"]);
    // Without a value there is nothing to write and nothing to sync.
    let (before, number) = (syncs(), store.stats().published);
    assert_eq!(keyspace.take_with("owl", SYNC).unwrap(), None);
    assert_eq!((syncs(), store.stats().published), (before, number));
}

#[test]
fn ranges_of_all_kinds() {
    let Birds {
        keyspace,
        folder: _folder,
        ..
    } = birds();
    let all = names(keyspace.range(..));
    assert_eq!(all, ["heron", "kite", "raven", "robin", "wren"]);
    assert_eq!(names(keyspace.iter()), all);
    assert_eq!(names(keyspace.range("kite".."robin")), all[1..3]);
    assert_eq!(names(keyspace.range("kite"..="robin")), all[1..4]);
    assert_eq!(names(keyspace.range(b"kite".to_vec()..)), all[1..]);
    assert_eq!(names(keyspace.range(..b"kite")), all[..1]);
    assert_eq!(names(keyspace.range(..=b"kite")), all[..2]);
    let after = (Bound::Excluded("kite"), Bound::Unbounded);
    assert_eq!(names(keyspace.range(after)), all[2..]);
    let options = IterOptions {
        values: false,
        ..("raven"..).into()
    };
    assert_eq!(names(keyspace.range(&options)), all[2..]);
    assert_eq!(names(keyspace.prefix("r")), all[2..4]);
    assert_eq!(names(keyspace.range("kite".."kite")), [] as [&str; 0]);

    let mut cursor = keyspace.cursor("k"..).unwrap();
    cursor.seek("l").unwrap();
    assert_eq!(cursor.key(), b"raven");
    cursor.seek_for_prev(String::from("zebra")).unwrap();
    assert_eq!(cursor.key(), b"wren");
    let count = keyspace.approximate_count("heron".."kite").unwrap();
    assert_eq!(
        count,
        keyspace.approximate_size(..="heron").unwrap().entry_count
    );

    assert_eq!(keyspace.first().unwrap().unwrap().1, b"HERON");
    assert_eq!(keyspace.last().unwrap().unwrap().1, b"WREN");
    assert!(!keyspace.is_empty().unwrap());
    let mut found = Vec::new();
    for pair in &keyspace {
        found.push(String::from_utf8(pair.unwrap().0).unwrap());
    }
    assert_eq!(found, all);

    keyspace.delete_range("a", "z").unwrap();
    assert_eq!(keyspace.first().unwrap(), None);
    assert_eq!(keyspace.last().unwrap(), None);
    assert!(keyspace.is_empty().unwrap());
}

/// Iterators treated such a range as empty, while `delete_range` and `compact_range` refused it.
#[test]
fn a_range_that_ends_before_it_starts_is_refused_everywhere() {
    let Birds {
        store,
        keyspace,
        folder,
    } = birds();
    let snapshot = store.snapshot();
    let out = TableFolder::create(folder.path().join("out")).unwrap();
    let reversed = || "wren".."heron";
    let mut batch = siltstone::Batch::new();
    let results: Vec<(&str, Result<()>)> = vec![
        ("range", keyspace.range(reversed()).map(drop)),
        ("range, inclusive", keyspace.range("b"..="a").map(drop)),
        (
            "range_at",
            keyspace.range_at(&snapshot, reversed()).map(drop),
        ),
        ("cursor", keyspace.cursor(reversed()).map(drop)),
        (
            "cursor_at",
            keyspace.cursor_at(&snapshot, reversed()).map(drop),
        ),
        ("delete_range", keyspace.delete_range("wren", "heron")),
        (
            "Batch::delete_range",
            batch.delete_range(&keyspace, "wren", "heron"),
        ),
        (
            "compact_range",
            keyspace.compact_range(Some(b"wren"), Some(b"heron")),
        ),
        (
            "approximate_size",
            keyspace.approximate_size(reversed()).map(drop),
        ),
        (
            "approximate_count",
            keyspace.approximate_count(reversed()).map(drop),
        ),
        ("export", keyspace.export(reversed(), &out, "t").map(drop)),
        (
            "export_at",
            keyspace
                .export_at(&snapshot, reversed(), &out, "t")
                .map(drop),
        ),
    ];
    for (call, result) in results {
        let error = result.expect_err(call);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{call}: {error}");
        let text = error.to_string();
        let says = ["ends before it starts", "swap the two keys"];
        assert!(says.iter().all(|s| text.contains(s)), "{call}: {text}");
        assert!(
            call.contains("inclusive") || text.contains("`wren`"),
            "{call}: {text}"
        );
    }
    assert!(batch.is_empty());
    // A range that ends where it starts is empty.
    assert_eq!(keyspace.range("b".."b").unwrap().count(), 0);
    assert_eq!(keyspace.approximate_count("b".."b").unwrap().value, 0);
    keyspace.delete_range("kite", "kite").unwrap();
    assert!(keyspace.contains_key("kite").unwrap());
}

#[test]
fn reads_at_a_snapshot_and_its_clones() {
    let Birds {
        store,
        keyspace,
        folder: _folder,
    } = birds();
    let snapshot = store.snapshot();
    let second = snapshot.clone();
    assert_eq!(store.stats().snapshot_count, 2);
    keyspace.delete_range("a", "z").unwrap();
    keyspace.put("owl", "OWL").unwrap();
    drop(snapshot);
    // A compaction keeps what the clone sees.
    keyspace.compact_range(None, None).unwrap();
    assert_eq!(names(keyspace.iter()), ["owl"]);
    assert_eq!(names(keyspace.iter_at(&second)).len(), 5);
    assert_eq!(names(keyspace.prefix_at(&second, "r")), ["raven", "robin"]);
    assert_eq!(
        names(keyspace.range_at(&second, ..="kite")),
        ["heron", "kite"]
    );
    // Both ends read at the snapshot, even if it is dropped before the back end is used.
    let mut range = keyspace.range_at(&second, "i"..).unwrap();
    drop(second);
    assert_eq!(range.next_back().unwrap().unwrap().0, b"wren");
    assert_eq!(range.next().unwrap().unwrap().0, b"kite");
    assert_eq!(range.count(), 2);
    assert_eq!(store.stats().snapshot_count, 0);
}

/// An iterator that cannot be opened returns the error, and ends.
#[test]
fn a_for_loop_over_a_dropped_keyspace_gets_the_error() {
    let Birds {
        store,
        keyspace,
        folder: _folder,
    } = birds();
    store.drop_keyspace("birds").unwrap();
    let items: Vec<_> = keyspace.into_iter().collect();
    assert_eq!(items.len(), 1);
    let error = items[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceDropped, "{error}");
}

#[test]
fn an_option_takes_any_integer() {
    let Birds {
        store,
        folder: _folder,
        ..
    } = birds();
    let bytes = |store: &Store| store.options().log_bytes_max;
    store.set_option("log_bytes_max", 1 << 30).unwrap(); // an i32
    assert_eq!(bytes(&store), 1 << 30);
    store.set_option("log_bytes_max", 3usize << 29).unwrap();
    store.set_option("log_bytes_max", 3u64 << 29).unwrap();
    store.set_option("log_bytes_max", 3i64 << 29).unwrap();
    assert_eq!(bytes(&store), 3 << 29);
    for number in [
        Value::from(-5),
        Value::from(u128::MAX),
        Value::from(i64::MIN),
    ] {
        let shown = number.to_string();
        let error = store.set_option("log_bytes_max", number).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(
            error.to_string().contains(shown.trim_matches('"')),
            "{error}"
        );
    }
    assert_eq!(bytes(&store), 3 << 29);
    assert_eq!(Value::from(7u8), Value::from(7i128));
}

/// The text of a variant is its name in lower case. A level follows a colon.
#[test]
fn compressions_are_written_as_they_are_named() {
    for (compression, text) in [
        (Compression::None, "none"),
        (Compression::Lz4, "lz4"),
        (Compression::Zstd(9), "zstd:9"),
        (Compression::ZSTD, "zstd:3"),
    ] {
        let options = Options {
            compression: compression.into(),
            ..Options::default()
        };
        let toml = options.to_toml();
        assert!(
            toml.contains(&format!("compression = \"{text}\"")),
            "{toml}"
        );
        let again = Options::from_toml(&toml).unwrap();
        assert_eq!(again.compression, compression.into(), "{text}");
    }
    let short = Options::from_toml("compression = \"zstd\"").unwrap();
    assert_eq!(short.compression, Compression::Zstd(3).into());
    let Birds {
        store,
        folder: _folder,
        ..
    } = birds();
    let own = KeyspaceOptions {
        compression: Some(Compression::Zstd(5).into()),
        ..KeyspaceOptions::default()
    };
    let packed = store.create_keyspace_with("packed", &own).unwrap();
    assert_eq!(packed.options().compression, Compression::Zstd(5).into());
}

fn opens(path: &Path) -> bool {
    match Store::open(path, Options::default()) {
        Ok(_) => true,
        Err(e) if e.kind() == ErrorKind::Locked => false,
        Err(e) => panic!("{e}"),
    }
}

/// The values that keep a store open, as the documentation of `Store` lists them.
#[test]
fn what_keeps_a_store_open() {
    let Birds {
        store,
        keyspace,
        folder,
    } = birds();
    let path = folder.path().join("store");
    let second = store.clone();
    drop(store);
    assert!(!opens(&path), "a clone is a handle");
    let mut cursor = keyspace.cursor(..).unwrap();
    let snapshot = second.snapshot();
    let pinned = keyspace.get_pinned("heron").unwrap().unwrap();
    let mut batch = siltstone::Batch::new();
    batch.put(&keyspace, "k", "v").unwrap();
    drop(second);
    assert!(!opens(&path), "a keyspace is a handle");
    let mut read_from_the_back = keyspace.range("k"..).unwrap();
    let mut ended = keyspace.iter().unwrap();
    drop(keyspace);
    assert!(!opens(&path), "a range is a handle");
    assert_eq!(ended.by_ref().count(), 5);
    assert!(!opens(&path), "the other range still is one");
    read_from_the_back.next_back().unwrap().unwrap();
    assert!(opens(&path), "no handle is left");

    // The other values can still be used.
    cursor.seek_to_first().unwrap();
    assert_eq!((cursor.key(), &pinned[..]), (&b"heron"[..], &b"HERON"[..]));
    assert_eq!(read_from_the_back.count(), 3);
    drop((snapshot, batch, ended));
}

/// The two programs of each item of `must_not_compile.rs` differ in one line, so that line is the
/// reason why the second one does not compile.
#[test]
fn programs_that_must_not_compile_differ_in_one_line() {
    let text = include_str!("../src/must_not_compile.rs");
    let items = text.split("\nmod ").count() - 1;
    let mut pairs = 0;
    for item in text.split("\nmod ").take(items) {
        let blocks: Vec<&str> = item.split("/// ```").collect();
        let [_, good, _, bad, ..] = &blocks[..] else {
            panic!("an item without two programs: {item}");
        };
        let (fence, bad) = bad.split_once('\n').unwrap();
        assert!(fence.starts_with("compile_fail,E0"), "{fence}");
        let (good, bad): (Vec<_>, Vec<_>) =
            (good.trim_start().lines().collect(), bad.lines().collect());
        assert_eq!(good.len(), bad.len(), "{item}");
        let differ = good.iter().zip(&bad).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 1, "{item}");
        pairs += 1;
    }
    assert!(pairs >= 8, "only {pairs} pairs");
}
