//! Settings as flags of the Go program `pebble-bench` (`pebble/internal/settings`).
//!
//! Threading: pure functions.

use std::path::Path;

use siltstone_bench::settings::{
    Amount, Arrival, Cache, Compression, Distribution, Settings, ValueBytes, Workload,
};

/// The name of the engine.
pub const PEBBLE: &str = "pebble";

/// The own setting for the codecs that `engine.compression` does not have: snappy and minlz.
const COMPRESSION: &str = "Compression";

/// The workloads of the Go program.
const WORKLOADS: [Workload; 24] = [
    Workload::FillSeq,
    Workload::FillRandom,
    Workload::FillSync,
    Workload::FillBatch,
    Workload::Overwrite,
    Workload::ReadRandom,
    Workload::ReadMissing,
    Workload::ReadSeq,
    Workload::ReadReverse,
    Workload::SeekRandom,
    Workload::MultiReadRandom,
    Workload::ReadWhileWriting,
    Workload::SeekRandomWhileWriting,
    Workload::ReadRandomWriteRandom,
    Workload::DeleteRandom,
    Workload::Compact,
    Workload::Open,
    Workload::YcsbLoad,
    Workload::YcsbA,
    Workload::YcsbB,
    Workload::YcsbC,
    Workload::YcsbD,
    Workload::YcsbE,
    Workload::YcsbF,
];

/// The rates of an open loop that the Go program takes, in operations a second.
const RATE_LEAST: f64 = 1.0;
const RATE_MOST: f64 = 1e9;

/// The skew of YCSB, which is the only one that the Go program has.
const THETA: f64 = 0.99;

/// The arguments, or a sentence why the program cannot run this.
pub fn arguments(settings: &Settings, folder: &Path) -> Result<Vec<String>, String> {
    let settings = &settings.resolved();
    let workload = settings.workload;
    if !WORKLOADS.contains(&workload) {
        return Err(format!("its program has no `{workload}`"));
    }
    let ValueBytes::Fixed(value_bytes) = settings.value_bytes else {
        return Err(format!(
            "its program has no values of {}",
            settings.value_bytes
        ));
    };
    match settings.arrival {
        Arrival::Closed => {}
        Arrival::Constant(rate) if (RATE_LEAST..=RATE_MOST).contains(&rate) => {}
        ref other => return Err(format!("its program has no open loop of {other}")),
    }
    let engine = &settings.engine.for_engine(PEBBLE);
    if engine.compression == Compression::Lz4 {
        return Err("Pebble has no lz4".into());
    }
    if engine.mmap_reads.is_some() {
        return Err("Pebble does not read tables through maps".into());
    }
    let mut all = Vec::new();
    let mut flag = |name: &str, value: String| all.extend([format!("--{name}"), value]);
    flag("workload", workload.to_string());
    flag("folder", folder.display().to_string());
    flag("records", settings.records.to_string());
    flag("key-bytes", settings.key_bytes.to_string());
    flag("value-bytes", value_bytes.to_string());
    flag("compression-ratio", settings.compression_ratio.to_string());
    flag("threads", settings.threads.to_string());
    flag("batch", settings.batch.to_string());
    flag("nexts", settings.nexts.to_string());
    flag("read-ratio", settings.read_ratio.to_string());
    flag("seed", settings.seed.to_string());
    flag("operation-seed", settings.operation_seed.to_string());
    if let Some(per_second) = settings.write_rate {
        flag("write-rate", per_second.to_string());
    }
    if let Arrival::Constant(per_second) = settings.arrival {
        flag("arrival", format!("constant:{per_second}"));
    }
    flag("memtable-bytes", engine.memtable_bytes.to_string());
    flag("cache-bytes", engine.cache_bytes.to_string());
    flag("bloom-bits", engine.bloom_bits.to_string());
    let own = |name: &str| engine.own.get(name).cloned();
    let compression = own(COMPRESSION).unwrap_or_else(|| engine.compression.to_string());
    flag("compression", compression);
    flag("background-threads", engine.background_threads.to_string());
    for (name, value) in engine.own.iter().filter(|(name, _)| *name != COMPRESSION) {
        flag("own", format!("{name}={value}"));
    }
    match settings.distribution {
        None => {}
        Some(
            distribution @ (Distribution::Uniform
            | Distribution::Permutation
            | Distribution::Sequential
            | Distribution::Zipfian(THETA)
            | Distribution::Latest),
        ) => flag("distribution", distribution.to_string()),
        Some(other) => return Err(format!("its program does not draw records by {other}")),
    }
    match settings.amount() {
        Amount::Seconds(seconds) => flag("seconds", seconds.to_string()),
        Amount::Operations(count) => flag("operations", count.to_string()),
        Amount::EveryRecord => all.push("--every-record".into()),
    }
    if settings.sync {
        all.push("--sync".into());
    }
    match settings.cache {
        Cache::AsIs => {}
        Cache::Warm => all.push("--warm".into()),
        Cache::Cold => all.push("--cold".into()),
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(names: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let mut settings = Settings::default();
        for (name, text) in names {
            settings.set(name, text).unwrap();
        }
        arguments(&settings, Path::new("/data"))
    }

    #[test]
    fn settings_become_flags() {
        let all = with(&[
            ("workload", "readrandom"),
            ("amount", "2s"),
            ("cache", "warm"),
            ("engine.own.L0CompactionThreshold", "4"),
            ("engine.own.pebble.BlockSize", "32KiB"),
            ("engine.own.rocksdb.max_write_buffer_number", "4"),
            ("operation_seed", "7"),
        ])
        .unwrap()
        .join(" ");
        for part in [
            "--workload readrandom",
            "--folder /data",
            "--seconds 2",
            "--warm",
            "--own L0CompactionThreshold=4",
            "--own BlockSize=32KiB",
            "--operation-seed 7",
            "--distribution uniform",
            "--value-bytes 128",
        ] {
            assert!(all.contains(part), "{part} is not in {all}");
        }
        assert!(!all.contains("max_write_buffer_number"), "{all}");
        let all = with(&[("engine.own.pebble.Compression", "snappy")]).unwrap();
        let all = all.join(" ");
        assert!(all.contains("--compression snappy"), "{all}");
        assert!(!all.contains("--own"), "{all}");
        let all = with(&[("workload", "readwhilewriting"), ("write_rate", "20K")]).unwrap();
        assert!(all.join(" ").contains("--write-rate 20000"), "{all:?}");
        for (workload, distribution) in [("ycsb-a", "zipfian:0.99"), ("ycsb-d", "latest")] {
            let all = with(&[("workload", workload)]).unwrap().join(" ");
            assert!(all.contains(&format!("--workload {workload}")), "{all}");
            assert!(
                all.contains(&format!("--distribution {distribution}")),
                "{all}"
            );
            assert!(!all.contains("--arrival"), "{all}");
        }
        let all = with(&[("arrival", "constant:150000"), ("amount", "40s")]).unwrap();
        assert!(
            all.join(" ").contains("--arrival constant:150000"),
            "{all:?}"
        );
        let all = with(&[("workload", "fillseq")]).unwrap();
        assert!(all.contains(&"--every-record".into()), "{all:?}");
    }

    #[test]
    fn what_the_program_does_not_have_is_a_sentence() {
        for (name, text, expected) in [
            ("workload", "mixgraph", "`mixgraph`"),
            ("value_bytes", "uniform:1..9", "uniform:1..9"),
            ("arrival", "poisson:5", "open loop of poisson:5"),
            ("arrival", "constant:0.5", "open loop of constant:0.5"),
            ("engine.compression", "lz4", "lz4"),
            ("engine.mmap_reads", "true", "maps"),
            ("distribution", "zipfian:0.5", "zipfian:0.5"),
            ("distribution", "hotspot", "hotspot"),
        ] {
            let error = with(&[(name, text)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
