//! Every option with a value that is not valid, one by one, is refused by name, with its limits and
//! the value found, before anything is changed.

use std::time::Duration;

use siltstone::{ErrorKind, Options, Store, SyncMode};

/// The options, and the words by which the message must name what is wrong.
fn invalid() -> Vec<(&'static str, Options)> {
    let base = Options::default;
    vec![
        (
            "memtable_bytes",
            Options {
                memtable_bytes: 1000,
                ..base()
            },
        ),
        (
            "memtable_bytes",
            Options {
                memtable_bytes: (4 << 30) + 1,
                ..base()
            },
        ),
        (
            "sealed_memtables_max",
            Options {
                sealed_memtables_max: 0,
                ..base()
            },
        ),
        (
            "sealed_memtables_max",
            Options {
                sealed_memtables_max: 65,
                ..base()
            },
        ),
        (
            "table_bytes",
            Options {
                table_bytes: 32 << 10,
                ..base()
            },
        ),
        (
            "table_bytes",
            Options {
                table_bytes: 100_000,
                ..base()
            },
        ),
        (
            "table_bytes",
            Options {
                table_bytes: 2 << 30,
                ..base()
            },
        ),
        (
            "block_bytes",
            Options {
                block_bytes: 512,
                ..base()
            },
        ),
        (
            "block_bytes",
            Options {
                block_bytes: 5000,
                ..base()
            },
        ),
        (
            "block_bytes",
            Options {
                block_bytes: 64 << 10,
                ..base()
            },
        ),
        (
            "l0_trigger_count",
            Options {
                l0_trigger_count: 0,
                ..base()
            },
        ),
        (
            "l0_slowdown_count",
            Options {
                l0_slowdown_count: 3,
                ..base()
            },
        ),
        (
            "l0_stop_count",
            Options {
                l0_stop_count: 19,
                ..base()
            },
        ),
        (
            "level1_bytes",
            Options {
                level1_bytes: 1 << 20,
                ..base()
            },
        ),
        (
            "level_factor",
            Options {
                level_factor: 1,
                ..base()
            },
        ),
        (
            "level_factor",
            Options {
                level_factor: 101,
                ..base()
            },
        ),
        (
            "bloom_bits_per_key",
            Options {
                bloom_bits_per_key: 21.into(),
                ..base()
            },
        ),
        (
            "log_segment_bytes",
            Options {
                log_segment_bytes: 4096,
                ..base()
            },
        ),
        (
            "log_segment_bytes",
            Options {
                log_segment_bytes: (2 << 30) + 1,
                ..base()
            },
        ),
        (
            "log_bytes_max",
            Options {
                log_bytes_max: 100 << 20,
                ..base()
            },
        ),
        (
            "block_cache_bytes",
            Options {
                block_cache_bytes: u64::MAX,
                ..base()
            },
        ),
        (
            "open_tables_max",
            Options {
                open_tables_max: 15,
                ..base()
            },
        ),
        (
            "background_tasks",
            Options {
                background_tasks: 0,
                ..base()
            },
        ),
        (
            "background_tasks",
            Options {
                background_tasks: 65,
                ..base()
            },
        ),
        (
            "subjobs_max",
            Options {
                subjobs_max: 0,
                ..base()
            },
        ),
        (
            "option sync",
            Options {
                sync: SyncMode::Interval(Duration::from_micros(10)),
                ..base()
            },
        ),
        (
            "option sync",
            Options {
                sync: SyncMode::Interval(Duration::from_secs(36_000)),
                ..base()
            },
        ),
        // Microseconds that do not fit into 64 bits. They must not be taken for the second that
        // would be left of them.
        (
            "option sync",
            Options {
                sync: SyncMode::Interval(Duration::from_micros(u64::MAX) + Duration::from_secs(1)),
                ..base()
            },
        ),
        (
            "error_if_exists",
            Options {
                error_if_exists: true,
                create_if_missing: false,
                ..base()
            },
        ),
    ]
}

#[test]
fn every_invalid_option_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    for (i, (name, options)) in invalid().into_iter().enumerate() {
        let path = dir.path().join(i.to_string());
        let error = Store::open(&path, options).expect_err(name);
        println!("{:18} | {error}", error.kind().word());
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains(name), "{name}: {error}");
        assert!(error.advice_text().is_some(), "{name}: {error}");
        if name != "error_if_exists" {
            assert!(
                error.expected_value().is_some() && error.found_value().is_some(),
                "{name}: {error}"
            );
        }
        assert!(!path.exists(), "{name}: a refused open made a folder");
    }
}

#[test]
fn the_limits_themselves_are_valid() {
    let small = Options {
        memtable_bytes: 64 << 10,
        sealed_memtables_max: 1,
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        l0_trigger_count: 1,
        l0_slowdown_count: 1,
        l0_stop_count: 1,
        level1_bytes: 64 << 10,
        level_factor: 2,
        bloom_bits_per_key: 0.into(),
        log_segment_bytes: 64 << 10,
        log_bytes_max: 128 << 10,
        block_cache_bytes: 0,
        open_tables_max: 16,
        background_tasks: 1,
        subjobs_max: 1,
        ..Options::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("s"), small).unwrap();
    let ks = store.default_keyspace().unwrap();
    for i in 0..3000u32 {
        ks.put(&i.to_be_bytes(), &[i as u8; 100]).unwrap();
    }
    store.flush().unwrap();
    store.wait_until_idle().unwrap();
    for i in 0..3000u32 {
        assert_eq!(ks.get(&i.to_be_bytes()).unwrap().unwrap(), [i as u8; 100]);
    }
    assert_eq!(ks.iter().unwrap().count(), 3000);
}
