//! What one run of the benchmark does: the settings of a workload and of the engine.
//!
//! The same names stand in the TOML files of experiments, in the options of `silt bench` and in the
//! JSON record, and so do the texts of their values ([`Setting`]). Sizes are given as `64MiB`,
//! times as `10s`, rates as operations in a second. serde writes plain numbers as numbers and
//! everything else as its text.
//!
//! Invariant: [`Settings::check`] accepts only settings that a run can carry out to its end.
//!
//! Threading: plain data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

mod abilities;
mod check;
mod facts;
mod gpu;
mod kind;
mod nearest;
mod own;
mod registry;
mod text;
mod topology;
mod workload;

pub use abilities::{Abilities, Promise};
pub use check::{RECORDS_MAX, Refusal, VALUE_BYTES_MAX};
pub use gpu::GpuSettings;
pub use kind::Kind;
pub use nearest::nearest;
pub use own::{ENGINES, differing};
pub use registry::{OWN_PREFIX, Setting, SettingError, all as all_settings};
pub use text::{
    TextError, parse_count, parse_number, parse_rate, parse_seconds, parse_size, seconds_text,
    size_text,
};
pub use topology::{Cores, Files, Link, Topology};
pub use workload::Workload;

/// How an engine is opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineSettings {
    /// Bytes of the memtable (RocksDB: write buffer).
    #[serde(deserialize_with = "text::size")]
    pub memtable_bytes: u64,
    /// Bytes of the block cache.
    #[serde(deserialize_with = "text::size")]
    pub cache_bytes: u64,
    /// Bits of the Bloom filter for each key; 0 means no filter.
    #[serde(deserialize_with = "text::count")]
    pub bloom_bits: u32,
    /// How blocks are compressed.
    pub compression: Compression,
    /// Threads for flushes and compactions.
    #[serde(deserialize_with = "text::count")]
    pub background_threads: u32,
    /// Whether tables are read through memory maps, where the engine offers a choice. `None` leaves
    /// the engine's default.
    pub mmap_reads: Option<bool>,
    /// Settings of the engine's own, by its own names. siltstone takes the names of `silt options`.
    /// A name `ENGINE.NAME` is for that engine only.
    #[serde(deserialize_with = "own::deserialize")]
    pub own: BTreeMap<String, String>,
}

impl Default for EngineSettings {
    fn default() -> EngineSettings {
        EngineSettings {
            memtable_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            bloom_bits: 10,
            compression: Compression::None,
            background_threads: 2,
            mmap_reads: None,
            own: BTreeMap::new(),
        }
    }
}

/// A codec of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Blocks are stored as they are.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard, level 1 where the engine offers levels.
    Zstd,
}

/// How much a workload does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Amount {
    /// This number of operations, over all threads. An entry of a batch is an operation.
    Operations(u64),
    /// Until this number of seconds has passed.
    Seconds(f64),
    /// Every record once: what a fill does if it is given nothing else. `readrandom` reads as many
    /// records as the setting says. If the store lacks some of them, as after a random fill, it
    /// reads others twice.
    EveryRecord,
}

/// When operations start.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrival {
    /// Closed loop: the next operation of a thread starts when the last one has ended.
    Closed,
    /// Open loop with this number of operations a second over all threads, evenly spaced. Latency
    /// counts from the intended start.
    Constant(f64),
    /// Open loop with exponentially distributed gaps.
    Poisson(f64),
    /// Open loop that repeats these phases: seconds, and operations a second.
    Phases(Vec<(f64, f64)>),
}

/// How records are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// All records in the order of their numbers, again and again.
    Sequential,
    /// Every record once in random order, then once more in another order, and so on.
    Permutation,
    /// Every record is as likely as any other.
    Uniform,
    /// Zipf's law over scrambled record numbers, as YCSB; the exponent is 0.99 there.
    Zipfian(f64),
    /// Zipf's law by distance from the newest record, as YCSB D.
    Latest,
    /// Key ranges of different heat, as `mixgraph` of db_bench.
    Mixgraph,
    /// This fraction of the records gets this fraction of the operations.
    Hotspot(f64, f64),
}

/// Bytes of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ValueBytes {
    /// All of the same size.
    Fixed(u32),
    /// Evenly distributed from the first to the second, both included.
    Uniform(u32, u32),
    /// Generalised Pareto distribution of `mixgraph`, with at most this number of bytes.
    Pareto(u32),
}

/// Whether the data is in the page cache when a workload begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cache {
    /// As the last workload left it.
    AsIs,
    /// All files are read once before.
    Warm,
    /// The store is closed, its files are dropped from the page cache, and it is opened again. The
    /// workload `open` drops those of the copy that it opens.
    Cold,
}

/// One run: one workload on one store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// What is done.
    pub workload: Workload,
    /// How the engine is opened.
    pub engine: EngineSettings,
    /// Where host and device are.
    #[serde(skip_serializing_if = "Topology::is_plain")]
    pub topology: Topology,
    /// Which GPU runs compactions.
    #[serde(skip_serializing_if = "GpuSettings::is_default")]
    pub gpu: GpuSettings,
    /// Records of the store.
    #[serde(deserialize_with = "text::count")]
    pub records: u64,
    /// Bytes of a key.
    #[serde(deserialize_with = "text::size")]
    pub key_bytes: u32,
    /// Bytes of values.
    pub value_bytes: ValueBytes,
    /// The part of its size to which a value compresses; 1 does not compress.
    pub compression_ratio: f64,
    /// How records are drawn; `None` takes the workload's own.
    pub distribution: Option<Distribution>,
    /// How much is done; `None` takes the workload's own.
    pub amount: Option<Amount>,
    /// When operations start.
    pub arrival: Arrival,
    /// Threads of the workload. Workloads that read while one thread writes have one more.
    #[serde(deserialize_with = "text::count")]
    pub threads: u32,
    /// Entries of a batch, for workloads that write batches; keys of a call of multireadrandom.
    #[serde(deserialize_with = "text::count")]
    pub batch: u32,
    /// Entries that a scan reads after its seek.
    #[serde(deserialize_with = "text::count")]
    pub nexts: u32,
    /// The part of reads among the operations of readrandomwriterandom and peaks, from 0 to 1.
    pub read_ratio: f64,
    /// Whether each write waits until it is durable. `fillsync` waits whatever this says.
    pub sync: bool,
    /// Operations a second of the thread that writes beside the measured ones; `None` lets it write
    /// as fast as it can.
    #[serde(deserialize_with = "text::optional_rate")]
    pub write_rate: Option<f64>,
    /// Whether the data is in the page cache at the start.
    pub cache: Cache,
    /// The seed of keys and values. A store can only be used with the seed that filled it.
    #[serde(deserialize_with = "text::count")]
    pub seed: u64,
    /// The seed of what a workload draws: records, operations and times. Equal seeds give equal
    /// operations, and two workloads never draw the same ones.
    #[serde(deserialize_with = "text::count")]
    pub operation_seed: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            workload: Workload::FillRandom,
            engine: EngineSettings::default(),
            topology: Topology::default(),
            gpu: GpuSettings::default(),
            records: 1_000_000,
            key_bytes: 16,
            value_bytes: ValueBytes::Fixed(128),
            compression_ratio: 1.0,
            distribution: None,
            amount: None,
            arrival: Arrival::Closed,
            threads: 1,
            batch: 1000,
            nexts: 10,
            read_ratio: 0.9,
            sync: false,
            write_rate: None,
            cache: Cache::AsIs,
            seed: 1,
            operation_seed: 1,
        }
    }
}

#[cfg(test)]
mod tests;
