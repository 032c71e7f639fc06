//! Opening for reading: nothing is written, and a reader sees exactly what an open for writing
//! would have kept.

mod common;
#[cfg(target_os = "linux")]
#[path = "../../storage/tests/common/tmpfs.rs"]
mod tmpfs;

use std::sync::Arc;

use common::{Dice, Disk, contents, key, live, small};
use siltstone::{
    Batch, Components, ErrorKind, IterOptions, KeyspaceOptions, Options, Store, WriteOptions,
};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

fn open_reader(disk: &Disk, options: Options) -> siltstone::Result<Store> {
    let storage: Arc<dyn Storage> = Arc::new(disk.faults.clone());
    Store::open_read_only_with(Components::on(storage, disk.rt.clone()), options)
}

#[test]
fn a_reader_sees_what_a_writer_would_have_kept() {
    let mut cut = 0;
    for seed in 0..400 {
        // A cut tail is rare, and which seeds have one changes with every change of the engine.
        if seed >= 40 && cut > 0 {
            break;
        }
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 6_000_000,
            ..SimConfig::new(seed)
        };
        let outcome = sim::run(config, move |rt| {
            let mut dice = Dice::new(seed);
            let disk = Disk::new(&rt);
            let store = disk.open();
            disk.memory.start_journal();
            live(&disk, &store, &mut dice);
            let mut replay = disk.memory.replay();
            let mut cut_tails = 0;
            let mut places: Vec<u64> = (0..12).map(|_| dice.below(replay.len() + 1)).collect();
            places.sort_unstable();
            for at in places {
                replay.advance_to(at);
                let image = match dice.below(3) {
                    0 => replay.kill_in(&rt),
                    1 => replay.crash(CrashPolicy::LoseUnsynced).0,
                    _ => replay.crash(CrashPolicy::Seeded(dice.below(1 << 30))).0,
                };
                cut_tails += u64::from(reader_against_writer(&rt, image));
            }
            drop(store);
            cut_tails
        });
        cut += outcome
            .result
            .unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
    assert!(cut > 0, "no image had a tail that recovery cut");
}

/// Opens the image twice for reading and once for writing. Returns whether recovery cut something
/// off.
fn reader_against_writer(rt: &Runtime, image: MemoryStorage) -> bool {
    let before: Vec<_> = image
        .list()
        .unwrap()
        .into_iter()
        .map(|o| (o.name.clone(), image.read_small(&o.name).unwrap()))
        .collect();
    let disk = Disk::on(rt, image);
    let (one, two) = (
        open_reader(&disk, small()).unwrap(),
        open_reader(&disk, small()).unwrap(),
    );
    assert!(one.is_read_only());
    let seen = contents(&one);
    assert_eq!(seen, contents(&two));
    assert_eq!(
        disk.faults.counts().changes(),
        0,
        "a reader called something that changes"
    );
    let after: Vec<_> = disk
        .memory
        .list()
        .unwrap()
        .into_iter()
        .map(|o| (o.name.clone(), disk.memory.read_small(&o.name).unwrap()))
        .collect();
    assert!(before == after);
    let cut = one.stats().counter("discarded_log_bytes") > 0;
    let copy = disk.kill();
    let writer = copy.open();
    assert_eq!(seen, contents(&writer), "a writer keeps something else");
    assert!(
        disk.try_open(small()).unwrap_err().kind() == ErrorKind::Locked,
        "readers keep a writer out"
    );
    let refused = disk.faults.counts().changes();
    assert_eq!(refused, 1, "the writer got no further than its lease");
    one.close().unwrap();
    two.close().unwrap();
    assert_eq!(
        disk.faults.counts().changes(),
        refused,
        "closing changes nothing"
    );
    assert_eq!(seen, contents(&disk.open()));
    cut
}

#[test]
fn a_reader_reads_and_changes_nothing() {
    let outcome = sim::run(SimConfig::new(1), |rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.create_keyspace("a").unwrap();
        for i in 0..500 {
            ks.put(&key(i), &i.to_le_bytes()).unwrap();
        }
        store.flush().unwrap();
        ks.put(&key(7), b"newer").unwrap();
        let error = open_reader(&disk, small()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Locked);
        assert!(error.to_string().contains("a writer holds it"), "{error}");
        store.close().unwrap();

        let store = open_reader(&disk, small()).unwrap();
        let ks = store.keyspace("a").unwrap();
        assert_eq!(ks.get(&key(7)).unwrap(), Some(b"newer".to_vec()));
        assert_eq!(ks.get(&key(8)).unwrap(), Some(8u64.to_le_bytes().to_vec()));
        assert_eq!(ks.get(b"none").unwrap(), None);
        let snapshot = store.snapshot();
        assert_eq!(
            ks.get_at(&snapshot, &key(7)).unwrap(),
            Some(b"newer".to_vec())
        );
        let mut cursor = ks.cursor(IterOptions::default()).unwrap();
        cursor.seek_to_last().unwrap();
        assert_eq!(cursor.key(), &key(499)[..]);
        assert_eq!(ks.iter().unwrap().rev().count(), 500);
        let stats = store.stats();
        assert_eq!(stats.health, "read only");
        let shown = stats.keyspaces.iter().find(|k| k.name == "a").unwrap();
        assert!(shown.levels[0].entry_count >= 500);
        store.wait_until_idle().unwrap();

        let mut batch = Batch::new();
        batch.put(&ks, b"x", b"y").unwrap();
        let refused: [(&str, siltstone::Result<()>); 12] = [
            ("set_option", store.set_option("log_bytes_max", "1 GiB")),
            (
                "set_options",
                ks.set_options(&KeyspaceOptions {
                    memtable_bytes: Some(1 << 20),
                    ..KeyspaceOptions::default()
                }),
            ),
            ("put", ks.put(b"x", b"y")),
            ("delete", ks.delete(b"x")),
            ("delete_range", ks.delete_range(b"x", b"y")),
            ("write", store.write(&batch, WriteOptions::default())),
            ("create", store.create_keyspace("b").map(drop)),
            ("drop", store.drop_keyspace("a")),
            ("flush", store.flush()),
            ("compact_range", ks.compact_range(None, None)),
            ("sync_log", store.sync_log()),
            (
                "ingest",
                store.test_hooks().ingest(&ks, Vec::new()).map(drop),
            ),
        ];
        for (call, result) in refused {
            let error = result.expect_err(call);
            assert_eq!(error.kind(), ErrorKind::ReadOnly, "{call}: {error}");
            assert!(error.to_string().contains("Store::open"), "{call}: {error}");
        }
        assert_eq!(ks.get(b"x").unwrap(), None);
        drop((ks, cursor, snapshot));
        drop(store);
        // The lease was released with the handle.
        disk.open().close().unwrap();
    });
    outcome.result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn data_that_does_not_fit_into_memory_is_refused_by_name() {
    let outcome = sim::run(SimConfig::new(1), |rt| {
        let disk = Disk::new(&rt);
        let large = Options {
            memtable_bytes: 8 << 20,
            ..small()
        };
        let store = disk.open_with(large.clone());
        let ks = store.default_keyspace().unwrap();
        for i in 0..60 {
            ks.put(&key(i), &[i as u8; 50_000]).unwrap();
        }
        store.close().unwrap();
        let tight = Options {
            memtable_bytes: 64 << 10,
            log_bytes_max: 128 << 10,
            ..small()
        };
        let error = open_reader(&disk, tight.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(
            error.to_string().contains("set replay_bytes_max to more"),
            "{error}"
        );
        let allowed = Options {
            replay_bytes_max: 16 << 20,
            ..tight.clone()
        };
        for options in [large.clone(), allowed] {
            let reader = open_reader(&disk, options).unwrap();
            let ks = reader.default_keyspace().unwrap();
            assert_eq!(ks.iter().unwrap().count(), 60);
        }
        // What a keyspace has set for itself counts.
        let store = disk.open_with(large);
        let own = KeyspaceOptions {
            memtable_bytes: Some(8 << 20),
            ..KeyspaceOptions::default()
        };
        let ks = store.create_keyspace_with("large", &own).unwrap();
        for i in 0..60 {
            ks.put(&key(i), &[i as u8; 50_000]).unwrap();
        }
        drop(ks);
        store.close().unwrap();
        let reader = open_reader(&disk, tight).unwrap();
        let ks = reader.keyspace("large").unwrap();
        assert_eq!(ks.iter().unwrap().count(), 60);
    });
    outcome.result.unwrap_or_else(|failure| panic!("{failure}"));
}

/// A reader returned options that it had made for itself: a tiny log, and no creation.
/// `Options::from_toml` refused their text.
#[test]
fn a_reader_has_the_options_that_were_passed() {
    let folder = tempfile::tempdir().unwrap();
    Store::open(folder.path(), Options::default()).unwrap();
    let creating = Options {
        create_if_missing: true,
        error_if_exists: true,
        ..Options::default()
    };
    for options in [Options::default(), small(), creating] {
        let store = Store::open_read_only(folder.path(), options.clone()).unwrap();
        assert_eq!(store.options(), options);
        let text = store.options().to_toml();
        assert_eq!(Options::from_toml(&text).unwrap(), options);
    }
}

#[test]
fn an_open_for_reading_creates_no_store() {
    let folder = tempfile::tempdir().unwrap();
    // The error advised an option that an open for reading ignores.
    let advises_to_create = |error: &siltstone::Error| {
        let advice = error.advice_text().unwrap_or_default();
        let right = advice.contains("Store::open") && !advice.contains("create_if_missing");
        assert!(right, "{error}");
    };
    let error = Store::open_read_only(folder.path().join("none"), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    advises_to_create(&error);
    assert!(!folder.path().join("none").exists());
    let error = Store::open_read_only(folder.path(), Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    advises_to_create(&error);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// On a real read-only mount, with and without the file of the lease. If mounting is not available,
/// the test says that it is skipped.
#[cfg(target_os = "linux")]
mod mounted {
    use std::path::Path;
    use std::process::Command;

    use super::*;
    use crate::tmpfs::on_tmpfs;

    fn remount(dir: &Path, how: &str) {
        let status = Command::new("mount")
            .args(["-o", &format!("remount,{how}")])
            .arg(dir)
            .status()
            .unwrap();
        assert!(status.success(), "remount,{how}");
    }

    #[test]
    fn a_store_on_a_read_only_mount_can_be_read() {
        on_tmpfs(
            "mounted::a_store_on_a_read_only_mount_can_be_read",
            16,
            |dir| {
                let path = dir.join("store");
                let store = Store::open(&path, small()).unwrap();
                let ks = store.default_keyspace().unwrap();
                for i in 0..300 {
                    ks.put(&key(i), &[1; 100]).unwrap();
                }
                store.flush().unwrap();
                ks.put(b"last", b"in the log").unwrap();
                store.close().unwrap();
                // The handle keeps the log's file open, and so the mount writable.
                drop(ks);
                for lease_file in [true, false] {
                    if !lease_file {
                        std::fs::remove_file(path.join("LOCK.store")).unwrap();
                    }
                    remount(dir, "ro");
                    let error = Store::open(&path, small()).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
                    let readers = [0, 1].map(|_| Store::open_read_only(&path, small()).unwrap());
                    for reader in &readers {
                        let ks = reader.default_keyspace().unwrap();
                        assert_eq!(ks.iter().unwrap().count(), 301);
                        assert_eq!(ks.get(b"last").unwrap(), Some(b"in the log".to_vec()));
                    }
                    drop(readers);
                    remount(dir, "rw");
                }
            },
        );
    }
}
