//! What a close leaves: a store that is as large as its data, can be opened on a full disk, and has
//! lost nothing, wherever the close was interrupted. And what a kill leaves instead.

use std::sync::Arc;

use siltstone::log::format::parse_segment_name;
use siltstone::{Components, ErrorKind, Keyspace, Options, Store, SyncMode};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{CrashPolicy, MemoryStorage, ObjectMeta, Runtime, Storage};

fn open_on(memory: &MemoryStorage, options: Options) -> siltstone::Result<Store> {
    let storage: Arc<dyn Storage> = Arc::new(memory.clone());
    Store::open_with(Components::on(storage, Runtime::threads()), options)
}

fn small() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        ..Options::default()
    }
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Two of these are in the manifest for each table.
fn long_key(n: u32) -> Vec<u8> {
    [&key(n)[..], &[b'x'; 60_000]].concat()
}

/// The number of keys of `long_key` that the store has, which must be the first ones.
fn long_keys(keyspace: &Keyspace) -> u32 {
    let mut count = 0;
    for pair in keyspace.iter().unwrap() {
        let (found, _) = pair.unwrap();
        assert_eq!(found, long_key(count));
        count += 1;
    }
    count
}

fn list(memory: &MemoryStorage) -> Vec<ObjectMeta> {
    memory.list().unwrap()
}

fn fill_up(memory: &MemoryStorage) {
    memory.set_capacity(Some(memory.used_bytes()));
}

/// The space that is reserved for a manifest was adjusted in the background, one edit late. A
/// process that was killed in between, or that closed the store, left a store that could not be
/// opened once the disk was full.
#[test]
fn a_store_killed_at_any_call_opens_on_a_full_disk() {
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let store = open_on(&memory, small()).unwrap();
    memory.start_journal();
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..6 {
        keyspace.put(&long_key(n), b"v").unwrap();
        keyspace.flush().unwrap();
        memory.mark(n.to_string());
    }
    drop(keyspace);
    store.close().unwrap();
    let mut replay = memory.replay();
    for at in 0..=replay.len() {
        replay.advance_to(at);
        let kind = at.checked_sub(1).and_then(|n| replay.kind(n));
        let flushed = replay.marks_so_far().len() as u32;
        let image = replay.kill_in(&runtime);
        fill_up(&image);
        let store = open_on(&image, small())
            .unwrap_or_else(|e| panic!("killed after call {at} ({kind:?}): {e}"));
        let found = long_keys(&store.default_keyspace().unwrap());
        assert!(found >= flushed, "{found} of {flushed} after call {at}");
    }
}

/// The same with a clean close that follows the last edit at once.
#[test]
fn a_closed_store_opens_on_a_full_disk() {
    for count in 1..8 {
        let memory = MemoryStorage::new(&Runtime::threads());
        let store = open_on(&memory, small()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for n in 0..count {
            keyspace.put(&long_key(n), b"v").unwrap();
            keyspace.flush().unwrap();
        }
        drop(keyspace);
        store.close().unwrap();
        fill_up(&memory);
        let store = open_on(&memory, small()).unwrap();
        assert_eq!(long_keys(&store.default_keyspace().unwrap()), count);
    }
}

/// Each open on a full disk uses up the reserve, and makes a new one in the space of the files that
/// it deletes.
#[test]
fn opens_on_a_full_disk_can_be_repeated() {
    for first_is_closed in [true, false] {
        let runtime = Runtime::threads();
        let mut memory = MemoryStorage::new(&runtime);
        let store = open_on(&memory, small()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for n in 0..200 {
            keyspace.put(&key(n), &[7; 900]).unwrap();
        }
        keyspace.flush().unwrap();
        drop(keyspace);
        if first_is_closed {
            store.close().unwrap();
        }
        memory = memory.kill();
        fill_up(&memory);
        for round in 0..8 {
            let store = open_on(&memory, small())
                .unwrap_or_else(|e| panic!("round {round}, closed {first_is_closed}: {e}"));
            let keyspace = store.default_keyspace().unwrap();
            assert_eq!(keyspace.iter().unwrap().count(), 200, "round {round}");
            drop(keyspace);
            if round % 3 != 1 {
                store.close().unwrap();
            }
            memory = memory.kill();
        }
    }
}

/// Data that was replayed into tables but finds no room in the manifest must wait, as it does if
/// there is no room for the tables. Such an open was refused.
#[test]
fn an_open_waits_when_the_manifest_finds_no_room_for_what_was_replayed() {
    const KEYS: u32 = 12;
    let runtime = Runtime::threads();
    let (main, manifest) = (MemoryStorage::new(&runtime), MemoryStorage::new(&runtime));
    let open = |options| {
        let mut components = Components::on(Arc::new(main.clone()), Runtime::threads());
        components.manifest = Arc::new(manifest.clone());
        Store::open_with(components, options)
    };
    let large = Options {
        memtable_bytes: 8 << 20,
        log_segment_bytes: 1 << 20,
        log_bytes_max: 16 << 20,
        ..Options::default()
    };
    let store = open(large).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        keyspace.put(&long_key(n), b"v").unwrap();
    }
    drop(keyspace);
    store.close().unwrap();
    fill_up(&manifest);
    for round in 0..3 {
        // The memtables are small, so the log becomes many tables, each with two long keys.
        let store = open(small()).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let keyspace = store.default_keyspace().unwrap();
        assert_eq!(long_keys(&keyspace), KEYS);
        let health = store.stats().health;
        assert!(health.starts_with("no space"), "round {round}: {health}");
        let error = keyspace.put(b"x", b"y").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "round {round}: {error}");
        if round == 2 {
            manifest.set_capacity(None);
            for _ in 0..6000 {
                if store.stats().health == "good" {
                    break;
                }
                Runtime::threads().sleep(std::time::Duration::from_millis(10));
            }
            keyspace.put(&long_key(KEYS), b"v").unwrap();
            keyspace.flush().unwrap();
        }
        drop(keyspace);
        store.close().unwrap();
    }
    let store = open(small()).unwrap();
    assert_eq!(long_keys(&store.default_keyspace().unwrap()), KEYS + 1);
    assert_eq!(store.stats().health, "good");
}

/// The log of an empty store took 64 MiB, and the segments that it kept ready took more.
#[test]
fn a_closed_store_is_as_large_as_its_data() {
    for pairs in [0, 1000, 20_000] {
        let memory = MemoryStorage::new(&Runtime::threads());
        let store = open_on(&memory, Options::default()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for n in 0..pairs {
            keyspace.put(&key(n), &[7; 100]).unwrap();
        }
        let log = store.stats().log;
        drop(keyspace);
        store.close().unwrap();
        let objects = list(&memory);
        let segments: Vec<_> = objects
            .iter()
            .filter(|o| parse_segment_name(&o.name).is_some())
            .collect();
        assert_eq!(segments.len(), log.live_segment_count, "{objects:?}");
        let data = u64::from(pairs) * 104;
        // Records have headers, and a segment ends before a record for which it has no room.
        let log_bytes: u64 = segments.iter().map(|o| o.len).sum();
        assert!(log_bytes <= (16 << 10) + data + data / 2, "{objects:?}");
        let all: u64 = objects.iter().map(|o| o.len).sum();
        assert!(all <= (192 << 10) + data + data / 2, "{objects:?}");
        let store = open_on(&memory, Options::default()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        assert_eq!(keyspace.iter().unwrap().count(), pairs as usize);
    }
}

/// A close deletes obsolete segments that wait to be recycled, and the prepared one. If a close was
/// interrupted, the next one deletes what is left of them.
#[test]
fn a_close_deletes_what_the_log_kept_ready() {
    let memory = MemoryStorage::new(&Runtime::threads());
    for _ in 0..2 {
        let store = open_on(&memory, small()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        for round in 0..8 {
            for n in 0..150 {
                keyspace.put(&key(n), &[round; 900]).unwrap();
            }
            keyspace.flush().unwrap();
        }
        store.wait_until_idle().unwrap();
        assert!(store.stats().log.pooled_segment_count > 0);
        drop(keyspace);
        store.close().unwrap();
        let objects = list(&memory);
        let segments: Vec<_> = objects
            .iter()
            .filter_map(|o| parse_segment_name(&o.name).map(|_| o.len))
            .collect();
        assert_eq!(segments.len(), 1, "{objects:?}");
        assert!(segments[0] <= 64 << 10, "{objects:?}");
    }
}

/// A kill or a power loss at any call of a close. After a kill every acknowledged write is there.
/// After a power loss a prefix of them is there, and all of them once the log was synced. Both
/// stores can be opened on a full disk too, and a store that was closed stays whole if the power is
/// lost right after.
#[test]
fn a_close_cut_off_at_any_call_loses_nothing() {
    const KEYS: u32 = 300;
    let runtime = Runtime::threads();
    let memory = MemoryStorage::new(&runtime);
    let options = || Options {
        sync: SyncMode::Never,
        ..small()
    };
    let store = open_on(&memory, options()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    for n in 0..KEYS {
        keyspace.put(&key(n), &[7; 900]).unwrap();
        if n == KEYS / 2 {
            keyspace.flush().unwrap();
        }
    }
    store.wait_until_idle().unwrap();
    drop(keyspace);
    memory.start_journal();
    store.close().unwrap();
    let mut replay = memory.replay();
    assert!(replay.len() > 5, "a close makes several calls");
    let count = |image: &MemoryStorage, what: &str| {
        let store = open_on(image, options()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let mut count = 0;
        for pair in store.default_keyspace().unwrap().iter().unwrap() {
            let (found, value) = pair.unwrap();
            assert_eq!(found, key(count), "{what}");
            assert_eq!(value, [7; 900], "{what}");
            count += 1;
        }
        count
    };
    let mut least = KEYS / 2;
    for at in 0..=replay.len() {
        replay.advance_to(at);
        let kind = at.checked_sub(1).and_then(|n| replay.kind(n));
        let what = format!("after call {at} ({kind:?})");
        for is_full in [false, true] {
            let image = replay.kill_in(&runtime);
            if is_full {
                fill_up(&image);
            }
            assert_eq!(count(&image, &what), KEYS, "killed {what}");
        }
        let lost = count(&replay.crash(CrashPolicy::LoseUnsynced).0, &what);
        assert!(lost >= least, "{lost} of {least}, without power {what}");
        least = lost;
        for seed in 0..8 {
            let found = count(&replay.crash(CrashPolicy::Seeded(seed)).0, &what);
            assert!(found >= least, "{found} of {least}, seed {seed} {what}");
        }
    }
    assert_eq!(least, KEYS, "a closed store is durable");
}

/// A cursor that outlives its store continues to read what it holds open. When it reaches a table
/// that a later open has deleted, its error says that its store was closed. It used to report
/// damage, and advised to restore the file from a copy.
#[test]
fn readers_that_outlive_their_store_report_no_damage() {
    for map_tables in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let options = || Options {
            map_tables,
            block_cache_bytes: 0,
            ..small()
        };
        let store = Store::open(folder.path(), options()).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        let dropped = store.create_keyspace("dropped").unwrap();
        for ks in [&keyspace, &dropped] {
            for n in 0..1000 {
                ks.put(&key(n), &[7; 900]).unwrap();
            }
            ks.compact_range(None, None).unwrap();
        }
        let snapshot = store.snapshot();
        let mut cursors = Vec::new();
        for ks in [&keyspace, &dropped] {
            let mut cursor = ks.cursor(siltstone::IterOptions::default()).unwrap();
            cursor.seek_to_first().unwrap();
            cursors.push(cursor);
            cursors.push(
                ks.cursor_at(&snapshot, siltstone::IterOptions::default())
                    .unwrap(),
            );
        }
        // A cursor that has opened nothing yet.
        let range = keyspace.iter().unwrap();
        let pinned = keyspace.get_pinned(&key(3)).unwrap().unwrap();
        store.drop_keyspace("dropped").unwrap();
        store.close().unwrap();

        let store = Store::open(folder.path(), options()).unwrap();
        let again = store.default_keyspace().unwrap();
        for n in 0..1000 {
            again.put(&key(n), &[8; 900]).unwrap();
        }
        again.compact_range(None, None).unwrap();
        assert!(store.keyspace("dropped").is_err());
        store.wait_until_idle().unwrap();

        let closed = |error: siltstone::Error, what: &str| {
            assert_eq!(error.kind(), ErrorKind::Closed, "{what}: {error}");
            let advice = error.advice_text().unwrap_or_default();
            assert!(!advice.contains("copy"), "{what}: {error}");
        };
        for (i, cursor) in cursors.iter_mut().enumerate() {
            let what = format!("cursor {i}, mapped {map_tables}");
            let mut shown = 0;
            let error = loop {
                if !cursor.valid()
                    && let Err(error) = cursor.seek(&key(shown))
                {
                    break error;
                }
                assert_eq!(cursor.key(), key(shown), "{what}");
                assert_eq!(cursor.value(), [7; 900], "{what}");
                shown += 1;
                if let Err(error) = cursor.next() {
                    break error;
                }
            };
            // It showed the tables that it had open, to their end.
            assert!(shown > 0 || i % 2 == 1, "{what}");
            closed(error, &what);
            closed(cursor.seek_to_last().unwrap_err(), &what);
            closed(cursor.refresh().unwrap_err(), &what);
        }
        let error = range.last().unwrap().unwrap_err();
        closed(error, "an iterator");
        assert_eq!(&pinned[..], [7; 900]);
        for result in [
            keyspace.get(&key(3)),
            keyspace.get_at(&snapshot, &key(999)),
            dropped.get(&key(3)),
        ] {
            match result {
                Ok(found) => assert_eq!(found.unwrap(), [7; 900]),
                Err(error) if error.kind() == ErrorKind::KeyspaceDropped => {}
                Err(error) => closed(error, "a get"),
            }
        }
    }
}

/// The files in `folder` that this process has open.
#[cfg(target_os = "linux")]
fn open_files(folder: &std::path::Path) -> Vec<String> {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = descriptors.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
    let inside = targets.filter_map(|target| Some(target.strip_prefix(folder).ok()?.to_owned()));
    let names = inside.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| !name.is_empty()).collect()
}

/// Handles and cursors that outlived a close kept the files of the log and the manifest open, and
/// all memtables in memory.
#[test]
fn a_closed_store_releases_memtables_and_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let store = Store::open(&path, Options::default()).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let empty = store.create_keyspace("empty").unwrap();
    let held = |keyspace: &Keyspace| {
        let stats = keyspace.store().stats();
        let bytes = stats.keyspaces.iter().map(|k| k.memtable_bytes);
        bytes.sum::<u64>()
    };
    let empty_bytes = held(&keyspace);
    for n in 0..1000 {
        keyspace.put(key(n), [7; 900]).unwrap();
    }
    let snapshot = store.snapshot();
    keyspace.delete_range(key(0), key(900)).unwrap();
    let options = siltstone::IterOptions::default;
    let mut cursor = keyspace.cursor_at(&snapshot, options()).unwrap();
    assert!(held(&keyspace) > empty_bytes + 900_000);
    #[cfg(target_os = "linux")]
    assert!(open_files(&path).len() >= 3, "log, manifest and lease");
    store.close().unwrap();
    assert_eq!(held(&keyspace), empty_bytes);
    #[cfg(target_os = "linux")]
    assert_eq!(open_files(&path), [] as [String; 0]);

    // The cursor continues to read in its own view.
    for n in 0..1000 {
        cursor.seek(key(n)).unwrap();
        assert!(cursor.valid() && cursor.key() == key(n) && cursor.value() == [7; 900]);
    }
    // All other calls fail with `Closed`; none finds an empty keyspace.
    let closed = |error: siltstone::Error| assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    closed(cursor.refresh().unwrap_err());
    for keyspace in [&keyspace, &empty] {
        closed(keyspace.get(key(999)).unwrap_err());
        closed(keyspace.put("k", "v").unwrap_err());
        closed(keyspace.flush().unwrap_err());
        closed(keyspace.properties().unwrap_err());
        closed(keyspace.store().sync_log().unwrap_err());
        closed(keyspace.iter().map(drop).unwrap_err());
    }
    let again = Store::open(&path, Options::default()).unwrap();
    let again = again.default_keyspace().unwrap();
    assert_eq!(again.get(key(999)).unwrap(), Some(vec![7; 900]));
    assert_eq!(again.get(key(0)).unwrap(), None);
}

/// The maintenance task read the count of notifications when it began to run. If the store was
/// closed before that, the task missed the notification and slept for a second, and the close
/// waited for it. The clock is the simulated one, which moves on while all tasks sleep.
#[test]
fn a_store_that_is_closed_at_once_does_not_wait_for_a_sleeping_task() {
    for seed in 0..100 {
        let report = run(SimConfig::new(seed), move |runtime| {
            let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&runtime));
            let components = Components::on(storage, runtime.clone());
            let store = Store::open_with(components, small()).unwrap();
            let begin = runtime.now();
            store.close().unwrap();
            let slept = runtime.now().since(begin);
            assert!(slept.as_millis() < 500, "seed {seed}: {slept:?}");
        });
        report.result.unwrap();
    }
}
