//! A small run of each engine, and what its record says of processor time.

use bench_peers::drivers;
use siltstone_bench::engine::{Driver, NullDriver, SiltstoneDriver};
use siltstone_bench::record::{Context, Record};
use siltstone_bench::run::{Control, run};
use siltstone_bench::settings::{EngineSettings, Settings, Workload};

/// Fills a store that is small but flushes and compacts many times.
fn filled(driver: &dyn Driver) -> Record {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings {
        workload: Workload::FillRandom,
        records: 100_000,
        engine: EngineSettings {
            memtable_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            ..EngineSettings::default()
        },
        ..Settings::default()
    };
    // siltstone fills segments of its log with zeros ahead of the writers, and these bytes count.
    // Segments of the usual 64 MiB would be several times as large as all records of this store.
    settings
        .set("engine.own.siltstone.log_segment_bytes", "1048576")
        .unwrap();
    let found = run(
        driver,
        folder.path(),
        &settings,
        &Control::default(),
        &|_| {},
    )
    .unwrap();
    Record::of(driver, &settings.resolved(), &found, &Context::default())
}

/// Engines whose threads, or whose own account, tell flushes from compactions. fjall's workers do
/// both; LMDB and the sorted map do nothing in the background.
const WITH_A_SPLIT: [&str; 3] = ["leveldb", "rocksdb", "siltstone"];

#[test]
fn processor_time_is_split_as_far_as_the_engine_allows() {
    let mut all = drivers();
    all.push(Box::new(SiltstoneDriver));
    all.push(Box::new(NullDriver));
    for driver in all {
        let record = filled(&*driver);
        let (name, cpu) = (driver.name(), record.cpu);
        println!("{name}: {cpu:?}");
        let (all_s, foreground_s) = (cpu.process_s.unwrap(), cpu.foreground_s.unwrap());
        assert!(
            foreground_s > 0.0 && cpu.user_s.unwrap() > 0.0,
            "{name}: {cpu:?}"
        );
        let has_split = WITH_A_SPLIT.contains(&name);
        for part_s in [cpu.flush_s, cpu.compaction_s] {
            assert_eq!(part_s.is_some(), has_split, "{name}: {cpu:?}");
            assert!(part_s.is_none_or(|part_s| part_s > 0.0), "{name}: {cpu:?}");
        }
        let parts = [
            cpu.foreground_s,
            cpu.flush_s,
            cpu.compaction_s,
            cpu.other_background_s,
            cpu.sampler_s,
        ];
        // Clocks of threads and of the process differ by a little.
        let parts_s: f64 = parts.into_iter().flatten().sum();
        assert!(
            (parts_s - all_s).abs() < 0.05 + all_s / 20.0,
            "{name}: {cpu:?}"
        );
        if ["fjall", "siltstone"].contains(&name) {
            assert!(cpu.other_background_s.unwrap() > 0.0, "{name}: {cpu:?}");
        }
    }
}

/// Each put is in the log once and in a table at least once, with keys and values of their own.
#[test]
fn bytes_are_counted_with_the_log() {
    let mut all = drivers();
    all.push(Box::new(SiltstoneDriver));
    for driver in all {
        let record = filled(&*driver);
        let (name, bytes) = (driver.name(), &record.bytes);
        match name {
            "fjall" | "lmdb" => {
                assert_eq!(record.write_amplification, None, "{name}");
                // The kernel's account has to do.
                assert!(record.amplification.write_device.unwrap() > 0.0, "{name}");
            }
            _ => {
                let written = record.write_amplification.unwrap();
                assert!((1.4..40.0).contains(&written), "{name}: {written}");
                let log = bytes.log_bytes.unwrap() as f64 / bytes.user_written_bytes as f64;
                let (least, most) = match name {
                    // It gives its log in hundredths of a GB, which is much for this small store.
                    "rocksdb" => (0.4, 1.6),
                    // A segment is written with zeros first, unless it is an old one.
                    "siltstone" => (0.98, 2.4),
                    _ => (0.98, 1.6),
                };
                assert!((least..most).contains(&log), "{name}: {log}");
            }
        }
    }
}
