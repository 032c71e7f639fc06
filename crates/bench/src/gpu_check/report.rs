//! What was found, as it is written to `gpu-check.json`.
//!
//! Invariant: each figure of an emulated device has the label [`super::setup::NOT_A_SPEED`].
//!
//! Threading: plain data.

use serde::Serialize;
use siltstone_gpu::device::DirectMode;

use crate::compare::Spread;
use crate::measure::LatencySummary;
use crate::measure::machine::{Build, Machine};

/// What a figure is if it is not a speed.
pub type Label = Option<&'static str>;

/// All results.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// `gpu-check`.
    pub program: &'static str,
    /// When it began, in UTC.
    pub began: String,
    /// The build.
    pub build: Build,
    /// The machine.
    pub machine: Machine,
    /// Whether no GPU was used, and all figures are those of the emulation.
    pub is_emulated: bool,
    /// What that means, or nothing.
    pub label: Label,
    /// What was real, and what a stand-in, in sentences.
    pub hardware: Vec<String>,
    /// How long the first open of the GPU took, in seconds: the driver compiles the kernels then,
    /// unless its cache has them.
    pub first_open_s: f64,
    /// The sections in their order.
    pub sections: Vec<SectionState>,
    /// The GPU.
    pub device: Option<DeviceReport>,
    /// Comparisons with the host's executor.
    pub equality: Vec<EqualityRow>,
    /// Why codecs were left out.
    pub declined_codecs: Vec<String>,
    /// The version of RocksDB that merged beside the executors, or why it did not.
    pub rocksdb: Option<String>,
    /// Speeds of merges.
    pub speed: Vec<SpeedRow>,
    /// Times of kernels.
    pub kernels: Vec<KernelRow>,
    /// Two ways to merge runs.
    pub rank: Vec<RankRow>,
    /// One job with different sizes of the GPU's memory.
    pub memory: Vec<MemoryRow>,
    /// Stores.
    pub store: Vec<StoreRow>,
}

impl Report {
    /// Says once how direct transfers are made.
    pub fn with_direct(&mut self, mode: &DirectMode) {
        let said = format!("Transfer `direct`: {mode}.");
        if !self.hardware.contains(&said) {
            println!("  {said}");
            self.hardware.push(said);
        }
    }

    /// Says once that the transfer `direct` is left out, and why.
    pub fn without_direct(&mut self, why: &str) {
        let said = format!("The transfer `direct` was not run: {why}.");
        if !self.hardware.contains(&said) {
            println!("  `direct` is left out: {why}");
            self.hardware.push(said);
        }
    }
}

/// How a section ended.
#[derive(Clone, Debug, Serialize)]
pub struct SectionState {
    /// Its name.
    pub name: &'static str,
    /// `running`, `done`, or `failed`.
    pub state: &'static str,
    /// Whether its time ended before its work.
    pub is_cut: bool,
    /// Why it failed.
    pub error: Option<String>,
    /// How long it took.
    pub seconds: f64,
}

/// The GPU and its link.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What was free of it.
    pub memory_free_bytes: Option<u64>,
    /// Its compute capability.
    pub capability: String,
    /// The version of CUDA that the driver supports.
    pub driver_version: String,
    /// Its address.
    pub pci_bus_id: String,
    /// Its multiprocessors.
    pub multiprocessor_count: u32,
    /// How long it took to open it again and to load the kernels, in seconds.
    pub open_s: f64,
    /// Copies through pinned memory.
    pub copies: Vec<CopyRow>,
    /// From the launch of a small kernel until the host knows that it is done, in microseconds.
    pub launch_and_wait_us: Option<SpreadRow>,
    /// The time of a launch if a thousand follow each other, in microseconds.
    pub launch_us: Option<f64>,
    /// See [`Report::label`].
    pub label: Label,
}

/// Copies of one size.
#[derive(Clone, Debug, Serialize)]
pub struct CopyRow {
    /// The bytes of a copy.
    pub bytes: u64,
    /// `in`, `out`, or `both` at once.
    pub direction: &'static str,
    /// GB (10^9 bytes) a second, of both directions together.
    pub gb_per_s: f64,
    /// See [`Report::label`].
    pub label: Label,
}

/// Some figures.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpreadRow {
    /// The median.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
    /// How many there were.
    pub count: usize,
}

impl SpreadRow {
    /// The spread of figures, if there are any.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<SpreadRow> {
        Spread::of(figures).map(|spread| SpreadRow {
            median: spread.median,
            lowest: spread.lowest,
            highest: spread.highest,
            count: spread.count,
        })
    }
}

/// A comparison.
#[derive(Clone, Debug, Serialize)]
pub struct EqualityRow {
    /// The shape of the job.
    pub shape: String,
    /// The seed of the job.
    pub seed: u64,
    /// The bytes of its inputs.
    pub input_bytes: u64,
    /// How the GPU's executor was opened.
    pub executor: String,
    /// The number of tables, if both executors made the same.
    pub tables: usize,
    /// `bytes` if files were compared, `contents` if decoded blocks were (compressed tables).
    pub compared: &'static str,
    /// Whether files and counters were equal.
    pub is_equal: bool,
    /// What differed, or why there was no outcome.
    pub difference: Option<String>,
}

/// The speed of one way to merge.
#[derive(Clone, Debug, Serialize)]
pub struct SpeedRow {
    /// `memory`, `disk` or `direct I/O`.
    pub place: &'static str,
    /// The bytes of values.
    pub value_bytes: usize,
    /// The number of runs.
    pub runs: usize,
    /// The codec.
    pub codec: &'static str,
    /// The strategy, `cpu`, or `rocksdb`.
    pub side: String,
    /// The transfer, or the number of tasks of the host or of threads of RocksDB.
    pub transfer: String,
    /// The bytes of the inputs of the executors; RocksDB's tables of the same entries have others.
    pub input_bytes: u64,
    /// The bytes of the outputs.
    pub output_bytes: u64,
    /// MB (10^6 bytes) of inputs a second.
    pub mb_per_s: SpreadRow,
    /// Processor time of the host for a GB of inputs, in seconds.
    pub cpu_s_per_gb: SpreadRow,
    /// The speed as a multiple of that of the host with one task.
    pub over_one_task: Option<f64>,
    /// See [`Report::label`].
    pub label: Label,
}

/// The time of a kernel in one job.
#[derive(Clone, Debug, Serialize)]
pub struct KernelRow {
    /// The job.
    pub job: String,
    /// The name of the kernel, or `copy in`, `copy out`, `fill`.
    pub kernel: &'static str,
    /// How often it was started.
    pub launches: u64,
    /// The number of items.
    pub items: u64,
    /// Its time on the device, in seconds.
    pub seconds: f64,
    /// Its part of the time of all kernels.
    pub share: f64,
    /// The bytes that it has to read and write at least, if that is known.
    pub necessary_bytes: Option<u64>,
    /// These bytes over its time, in GB a second.
    pub gb_per_s: Option<f64>,
    /// See [`Report::label`].
    pub label: Label,
}

/// Two ways to merge the runs of a job.
#[derive(Clone, Debug, Serialize)]
pub struct RankRow {
    /// The number of runs.
    pub runs: usize,
    /// The bytes of a key.
    pub key_bytes: usize,
    /// The entries.
    pub entries: u64,
    /// The time of `merge_pairs`, in seconds.
    pub merge_pairs_s: f64,
    /// The time of `rank_items`, in seconds.
    pub rank_s: f64,
    /// See [`Report::label`].
    pub label: Label,
}

/// A job with a part of the GPU's memory.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    /// The memory of the executor.
    pub memory_bytes: u64,
    /// The number of pieces of the job.
    pub pieces: u64,
    /// MB of inputs a second.
    pub mb_per_s: SpreadRow,
    /// See [`Report::label`].
    pub label: Label,
}

/// A store under load.
#[derive(Clone, Debug, Serialize)]
pub struct StoreRow {
    /// What the writers do.
    pub workload: String,
    /// `host` or `gpu`, or that of a store in which the GPU's busy time was measured.
    pub side: &'static str,
    /// The number of threads.
    pub threads: usize,
    /// The operations by second.
    pub by_second: Vec<u64>,
    /// Operations a second.
    pub per_s: f64,
    /// The latencies of writes.
    pub writes: Option<LatencySummary>,
    /// The latencies of reads.
    pub reads: Option<LatencySummary>,
    /// Processor time of the process, in seconds.
    pub cpu_s: f64,
    /// Compactions that ended meanwhile.
    pub compactions: u64,
    /// Jobs that the GPU ran.
    pub gpu_jobs: u64,
    /// The share of the time in which at least one kernel, copy or fill ran on the GPU, if it was
    /// measured.
    pub gpu_busy: Option<f64>,
    /// See [`Report::label`].
    pub label: Label,
}
