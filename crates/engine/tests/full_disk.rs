//! A real, small file system fills up: writes fail with `NoSpace`, reads continue, dropping works,
//! and writing resumes by itself when there is room. Nothing that was acknowledged is lost. It runs
//! in a mount namespace of its own; where that is not available, the test says that it is skipped.

#![cfg(target_os = "linux")]

#[path = "../../storage/tests/common/tmpfs.rs"]
mod tmpfs;

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use siltstone::{Components, ErrorKind, Options, Store};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use tmpfs::on_tmpfs;

fn options() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    }
}

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn fill(dir: &Path) {
    let ballast = dir.join("ballast");
    std::fs::write(&ballast, vec![1u8; 2 << 20]).unwrap();
    let store = Store::open(dir.join("store"), options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    let other = store.create_keyspace("other").unwrap();
    for i in 0..200 {
        other.put(&key(i), &[3; 900]).unwrap();
    }
    store.flush().unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match ks.put(&key(acknowledged), &[7; 900]) {
            Ok(()) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100_000, "the disk never filled");
    };
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    for i in 0..acknowledged {
        assert_eq!(
            ks.get(&key(i)).unwrap().unwrap(),
            [7; 900],
            "reads continue"
        );
    }
    assert_eq!(ks.iter().unwrap().count(), acknowledged as usize);
    // Dropping a keyspace is how room is made, on a full disk too.
    store.drop_keyspace("other").unwrap();
    std::fs::remove_file(&ballast).unwrap();
    until_it_works(&store, || ks.put(&key(acknowledged), b"after"));
    store.flush().unwrap();
    store.close().unwrap();
    let store = Store::open(dir.join("store"), options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..acknowledged {
        assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [7; 900]);
    }
    assert_eq!(ks.get(&key(acknowledged)).unwrap().unwrap(), b"after");
    assert!(store.keyspace("other").is_err());
    println!("full disk survived with {acknowledged} puts");
}

/// Fills the rest of the file system.
fn take_all(ballast: &Path) {
    let mut file = std::fs::File::create(ballast).unwrap();
    for step in [1 << 20, 64 << 10, 4 << 10, 1] {
        while file.write_all(&vec![1u8; step]).is_ok() {}
    }
}

/// Repeats the call until it works, for five minutes at most. Nothing else is done.
fn until_it_works(store: &Store, mut call: impl FnMut() -> siltstone::Result<()>) {
    let runtime = siltstone_storage::Runtime::threads();
    for _ in 0..6000 {
        match call() {
            Ok(()) => return,
            Err(error) => assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}"),
        }
        runtime.sleep(Duration::from_millis(50));
    }
    panic!("writing did not resume: {}", store.stats().health);
}

/// The data of the log needs more room as tables, or as a new segment, than the reserves have, so
/// an open can install nothing.
fn open_without_room(dir: &Path) {
    const KEYS: u32 = 3000;
    let (path, ballast) = (dir.join("store"), dir.join("ballast"));
    let options = || Options {
        memtable_bytes: 8 << 20,
        log_segment_bytes: 1 << 20,
        log_bytes_max: 64 << 20,
        ..Options::default()
    };
    let store = Store::open(&path, options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..KEYS {
        ks.put(&key(i), &[7; 1000]).unwrap();
    }
    drop(ks);
    store.close().unwrap();
    take_all(&ballast);
    for round in 0..3 {
        let store = Store::open(&path, options()).unwrap();
        let ks = store.default_keyspace().unwrap();
        for i in 0..KEYS {
            assert_eq!(
                ks.get(&key(i)).unwrap().unwrap(),
                [7; 1000],
                "round {round}"
            );
        }
        assert_eq!(ks.iter().unwrap().count(), KEYS as usize);
        let error = ks.put(b"x", b"y").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "round {round}: {error}");
        let health = store.stats().health;
        assert!(health.starts_with("no space"), "round {round}: {health}");
        if round == 2 {
            std::fs::remove_file(&ballast).unwrap();
            until_it_works(&store, || ks.put(b"x", b"y"));
            store.flush().unwrap();
        }
        drop(ks);
        store.close().unwrap();
    }
    let store = Store::open(&path, options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    assert_eq!(ks.get(b"x").unwrap().unwrap(), b"y");
    assert_eq!(ks.iter().unwrap().count(), KEYS as usize + 1);
}

/// The space that is reserved for a manifest was measured when the store was opened, while it was
/// small. The store grew, its process was killed, and the disk was full: there was no room for a
/// manifest of the new size, and no open succeeded until something else made room.
fn grown_since_it_was_opened(dir: &Path) {
    let (path, ballast) = (dir.join("store"), dir.join("ballast"));
    let long = |i: u32| [&key(i)[..], &[b'x'; 60_000]].concat();
    let store = Store::open(&path, options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    // The bounds of each table are two long keys.
    for i in 0..12 {
        ks.put(&long(i), b"v").unwrap();
        ks.flush().unwrap();
    }
    // Maintenance runs by itself.
    let reserve = || std::fs::metadata(path.join("RESERVE")).map_or(0, |m| m.len());
    let grown = || match reserve() > 12 * 60_000 {
        true => Ok(()),
        false => Err(siltstone::Error::new(ErrorKind::NoSpace, "no reserve")),
    };
    until_it_works(&store, grown);
    drop(ks);
    store.close().unwrap();
    take_all(&ballast);
    let store = Store::open(&path, options()).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..12 {
        assert_eq!(ks.get(&long(i)).unwrap().unwrap(), b"v");
    }
}

#[test]
fn a_store_that_grew_opens_on_a_full_disk() {
    on_tmpfs(
        "a_store_that_grew_opens_on_a_full_disk",
        16,
        grown_since_it_was_opened,
    );
}

#[test]
fn a_full_disk_refuses_writes_until_there_is_room() {
    on_tmpfs("a_full_disk_refuses_writes_until_there_is_room", 8, fill);
}

#[test]
fn a_full_disk_at_open() {
    on_tmpfs("a_full_disk_at_open", 16, open_without_room);
}

/// The reserve for a full disk was deleted by an open whose options wanted a larger one, for which
/// there was no room. That open and every later one was refused.
#[test]
fn a_reserve_that_cannot_grow_is_kept() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let try_open = |memory: &MemoryStorage, memtable_bytes| {
        let options = Options {
            memtable_bytes,
            ..options()
        };
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        Store::open_with(Components::on(storage, runtime.clone()), options)
    };
    let store = try_open(&memory, 64 << 10).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..50 {
        ks.put(&key(i), &[7; 900]).unwrap();
    }
    drop(ks);
    store.close().unwrap();
    let full = memory.kill();
    full.set_capacity(Some(full.used_bytes()));
    for memtable_bytes in [64 << 10, 256 << 10, 8 << 20] {
        let store = try_open(&full, memtable_bytes)
            .unwrap_or_else(|e| panic!("memtables of {memtable_bytes} bytes: {e}"));
        let ks = store.default_keyspace().unwrap();
        for i in 0..50 {
            assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [7; 900]);
        }
        drop(ks);
        store.close().unwrap();
    }
}

/// A log of larger memtables than those of now, on a full disk: if its data does not fit into
/// memory, the error names the option that helps, and with it the open shows everything.
#[test]
fn a_log_that_fits_no_memory_names_the_option_that_helps() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let try_open = |memory: &MemoryStorage, options| {
        let storage: Arc<dyn Storage> = Arc::new(memory.clone());
        Store::open_with(Components::on(storage, runtime.clone()), options)
    };
    let large = Options {
        memtable_bytes: 8 << 20,
        log_bytes_max: 32 << 20,
        ..options()
    };
    let store = try_open(&memory, large).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    for i in 0..3000 {
        keyspace.put(&key(i), &[7; 1000]).unwrap();
    }
    let image = memory.kill();
    image.set_capacity(Some(image.used_bytes()));
    for _ in 0..2 {
        let error = try_open(&image, options()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let advice = error.advice_text().unwrap_or_default();
        assert!(advice.contains("replay_bytes_max"), "{error}");
        assert!(error.expected_value().is_some(), "{error}");
    }
    let more = Options {
        replay_bytes_max: 32 << 20,
        ..options()
    };
    let store = try_open(&image, more).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    for i in 0..3000 {
        let found = keyspace.get(&key(i)).unwrap();
        assert_eq!(found.as_deref(), Some(&[7; 1000][..]), "{i}");
    }
}
