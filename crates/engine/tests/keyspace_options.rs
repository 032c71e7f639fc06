//! Settings of single keyspaces, and changes while the store is open: they survive power loss, are
//! refused by name, and apply to what is done afterwards.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Disk, SYNC, key, put_in_all, small};
use siltstone::{
    ByLevel, Compression, ErrorKind, KeyspaceOptions, Options, Store, Value, settings,
};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, Runtime, Storage};
use siltstone_table::{Codec, ReaderOptions, TableReader};

fn play(story: impl FnOnce(Runtime) + Clone + Send + 'static) {
    for seed in 0..4 {
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 3_000_000,
            ..SimConfig::new(seed)
        };
        if let Err(failure) = sim::run(config, story.clone()).result {
            panic!("seed {seed}: {failure}");
        }
    }
}

fn own() -> KeyspaceOptions {
    KeyspaceOptions {
        memtable_bytes: Some(128 << 10),
        l0_stop_count: Some(3),
        compression: ByLevel::of(&[Compression::None, Compression::ZSTD]),
        ..KeyspaceOptions::default()
    }
}

/// A create is acknowledged as synced, and its edit is lost in a power loss. Recovery creates the
/// keyspace again, with its options.
#[test]
fn the_create_record_has_the_options() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let a = store.create_keyspace("a").unwrap();
        disk.memory.start_journal();
        let b = store.create_keyspace_with("b", &own()).unwrap();
        assert_eq!(b.own_options(), own());
        put_in_all(&store, &[&a, &b], b"k", b"v", SYNC);
        b.set_options(&KeyspaceOptions {
            l0_stop_count: Some(5),
            ..KeyspaceOptions::default()
        })
        .unwrap();
        disk.memory.mark("set");
        drop((a, b, store));
        // The power is lost after each call.
        let mut replay = disk.memory.replay();
        let (mut seen, mut before_edit, mut set) = (0, 0, false);
        for at in 0..=replay.len() {
            replay.advance_to(at);
            set |= replay.marks_so_far().iter().any(|m| m.label == "set");
            let crashed = Disk::on(&rt, replay.crash_in(&rt, CrashPolicy::LoseUnsynced).0);
            let in_manifest = siltstone::manifest::recover(&crashed.memory)
                .unwrap()
                .is_some_and(|r| r.state.keyspace_by_name("b").is_some());
            let store = crashed.open();
            let Ok(b) = store.keyspace("b") else {
                assert!(!set && !in_manifest, "a create that was synced is lost");
                continue;
            };
            seen += 1;
            before_edit += usize::from(!in_manifest);
            let found = b.own_options();
            let changed = KeyspaceOptions {
                l0_stop_count: Some(5),
                ..own()
            };
            assert!(found == changed || found == own() && !set, "{found:?}");
            assert_eq!(
                b.options().l0_trigger_count,
                found.l0_stop_count.unwrap().min(4)
            );
        }
        assert!(
            seen > before_edit && before_edit > 0,
            "{seen} {before_edit}"
        );
    });
}

/// A change of options wakes waiting writers, and limits that contradict each other are made
/// consistent.
#[test]
fn a_change_wakes_writers_that_wait() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.create_keyspace("a").unwrap();
        let hooks = store.test_hooks();
        hooks.pause_compaction(true);
        let stop = |runs| KeyspaceOptions {
            l0_stop_count: Some(runs),
            ..KeyspaceOptions::default()
        };
        ks.set_options(&stop(2)).unwrap();
        assert_eq!(
            (
                ks.options().l0_trigger_count,
                ks.options().l0_slowdown_count
            ),
            (2, 2),
            "writers would wait for a compaction that nobody picks"
        );
        for _ in 0..2 {
            // Runs over one key: level 0 is as deep as it has runs.
            ks.put(&key(0), b"v").unwrap();
            ks.flush().unwrap();
        }
        let through = Arc::new(AtomicBool::new(false));
        let writer = {
            let (ks, through) = (ks.clone(), through.clone());
            rt.spawn("writer", move || {
                ks.put(&key(9), b"v").unwrap();
                through.store(true, Ordering::Release);
            })
            .unwrap()
        };
        while store.stats().waiting_writer_count == 0 {
            rt.sleep(std::time::Duration::from_millis(1));
        }
        assert!(!through.load(Ordering::Acquire));
        ks.set_options(&stop(30)).unwrap();
        writer.join().unwrap();
        assert!(through.load(Ordering::Acquire));
        hooks.pause_compaction(false);
        store.close().unwrap();
    });
}

#[test]
fn changes_are_kept_and_taken_back() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.options(), store.options().keyspace_defaults());
        ks.set_options(&own()).unwrap();
        ks.set_options(&KeyspaceOptions {
            level_factor: Some(7),
            ..KeyspaceOptions::default()
        })
        .unwrap();
        // Values that are not valid, also together with those that were set before, change nothing.
        for (bad, name) in [
            (
                KeyspaceOptions {
                    level_factor: Some(1),
                    ..KeyspaceOptions::default()
                },
                "level_factor",
            ),
            (
                KeyspaceOptions {
                    l0_trigger_count: Some(4),
                    ..KeyspaceOptions::default()
                },
                "l0_stop_count",
            ),
        ] {
            let error = ks.set_options(&bad).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.message().contains(name), "{error}");
        }
        let all = KeyspaceOptions {
            level_factor: Some(7),
            ..own()
        };
        assert_eq!(ks.own_options(), all);
        drop((ks, store));
        // What was acknowledged survives a power loss. The other options of the store are those of
        // the open.
        let disk = disk.lose_power();
        let store = disk.open_with(Options {
            block_bytes: 4 << 10,
            ..small()
        });
        let ks = store.default_keyspace().unwrap();
        assert_eq!(ks.own_options(), all);
        assert_eq!(ks.options().block_bytes, 4 << 10);
        assert_eq!(ks.options().level_factor, 7);
        ks.unset_options(&["level_factor", "memtable_bytes"])
            .unwrap();
        assert_eq!(ks.options().level_factor, small().level_factor);
        for (name, expected) in [
            ("level_facto", "level_factor"),
            ("map_tables", "an option of the store"),
        ] {
            let error = ks.unset_options(&[name]).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
        // A keyspace that is dropped and created again has none of its old options.
        store.drop_keyspace("default").unwrap();
        assert_eq!(
            ks.set_options(&own()).unwrap_err().kind(),
            ErrorKind::KeyspaceDropped
        );
        let again = store.create_keyspace("default").unwrap();
        assert!(again.own_options().is_empty());
        store.close().unwrap();
    });
}

#[test]
fn options_of_keyspaces_that_an_open_passes_are_kept() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let mut options = small();
        options.keyspaces.insert("default".into(), own());
        options.keyspaces.insert("later".into(), own());
        let store = disk.open_with(options);
        assert_eq!(store.default_keyspace().unwrap().own_options(), own());
        let later = store
            .create_keyspace_with(
                "later",
                &KeyspaceOptions {
                    l0_stop_count: Some(9),
                    ..KeyspaceOptions::default()
                },
            )
            .unwrap();
        assert_eq!(later.options().l0_stop_count, 9);
        assert_eq!(later.options().memtable_bytes, 128 << 10);
        // The options that the store returns open it in the same way again.
        let options = store.options();
        assert_eq!(Options::from_toml(&options.to_toml()).unwrap(), options);
        assert_eq!(options.keyspaces.len(), 2);
        drop((later, store));
        let store = disk.lose_power().open();
        assert_eq!(store.options(), options);
        store.close().unwrap();
    });
}

#[test]
fn options_of_the_store_change_by_name_or_are_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), small()).unwrap();
    let (a, b) = (
        store.default_keyspace().unwrap(),
        store.create_keyspace_with("b", &own()).unwrap(),
    );
    let mut changed = 0;
    for setting in settings() {
        let value = setting.value(&store.options());
        match (setting.change, store.set_option(setting.name, value)) {
            (siltstone::Change::WhileOpen, result) => {
                result.unwrap();
                changed += 1;
            }
            (siltstone::Change::AtOpen(why), result) => {
                let error = result.expect_err(setting.name);
                assert_eq!(error.kind(), ErrorKind::InvalidArgument);
                assert!(error.message().contains(why) && error.message().contains(setting.name));
            }
        }
    }
    assert!(changed > 10);
    store.set_option("log_bytes_max", "4 MiB").unwrap();
    assert_eq!(store.options().log_bytes_max, 4 << 20);
    // A keyspace's setting in the store is the default for keyspaces that have not set it.
    store.set_option("memtable_bytes", 1u64 << 20).unwrap();
    assert_eq!(a.options().memtable_bytes, 1 << 20);
    assert_eq!(b.options().memtable_bytes, 128 << 10);
    for (name, value, expected) in [
        ("memtable_byte", Value::from(1u64 << 20), "memtable_bytes"),
        ("memtable_bytes", Value::from(true), "64 KiB to 4 GiB"),
        ("memtable_bytes", Value::from(3u64), "64 KiB to 4 GiB"),
        ("log_bytes_max", Value::from("64 KiB"), "log_bytes_max"),
        ("l0_stop_count", Value::from(1u64), "l0_slowdown_count"),
    ] {
        let before = store.options();
        let error = store.set_option(name, value).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(store.options(), before);
    }
    // A memtable of the new size has room for what did not fit into the old one.
    for i in 0..5000u64 {
        a.put(&key(i), &[7; 100]).unwrap();
        b.put(&key(i), &[7; 100]).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    for i in 0..5000u64 {
        assert_eq!(a.get(&key(i)).unwrap().unwrap(), [7; 100]);
        assert_eq!(b.get(&key(i)).unwrap().unwrap(), [7; 100]);
    }
    store.close().unwrap();
}

/// The codec and the filter bits of the tables, by level.
fn tables(disk: &Disk, store: &Store, name: &str) -> Vec<(u8, Codec, u8)> {
    let hooks = store.test_hooks();
    let keyspace = store.keyspace(name).unwrap();
    hooks
        .version(&keyspace)
        .unwrap()
        .tables()
        .map(|(level, table)| {
            let file = disk.memory.open(&table.name).unwrap();
            let reader = TableReader::open(file, ReaderOptions::default()).unwrap();
            let p = reader.properties();
            (level, p.codec, p.bits_per_key)
        })
        .collect()
}

#[test]
fn codecs_and_filters_go_by_level() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let options = KeyspaceOptions {
            compression: ByLevel::of(&[Compression::None, Compression::Lz4, Compression::Zstd(1)]),
            bloom_bits_per_key: ByLevel::of(&[16, 10, 4]),
            memtable_bytes: Some(64 << 10),
            ..KeyspaceOptions::default()
        };
        let ks = store.create_keyspace_with("a", &options).unwrap();
        let of = |level: u8| match level {
            0 => (0, Codec::None, 16),
            1 => (1, Codec::Lz4, 10),
            level => (level, Codec::Zstd, 4),
        };
        // The keys ascend, so only their codec keeps tables from being moved unchanged.
        for i in 0..3000u64 {
            ks.put(&key(i), &[i as u8; 200]).unwrap();
        }
        ks.flush().unwrap();
        store.wait_until_idle().unwrap();
        let found = tables(&disk, &store, "a");
        assert!(found.iter().any(|t| t.0 >= 2), "{found:?}");
        for table in found {
            assert_eq!(table, of(table.0));
        }
        // A change applies to tables that are written afterwards.
        ks.set_options(&KeyspaceOptions {
            compression: Some(Compression::Lz4.into()),
            ..KeyspaceOptions::default()
        })
        .unwrap();
        ks.compact_range(None, None).unwrap();
        let found = tables(&disk, &store, "a");
        assert!(found.iter().all(|t| t.1 == Codec::Lz4), "{found:?}");
        for i in 0..3000u64 {
            assert_eq!(ks.get(&key(i)).unwrap().unwrap(), [i as u8; 200]);
        }
        store.close().unwrap();
    });
}
