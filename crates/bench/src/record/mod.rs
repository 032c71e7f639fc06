//! What a run found: the record, its JSON, and the short table for people.
//!
//! `docs/bench-record.md` describes every key. A test compares it with a record that is written.
//!
//! Invariants:
//! - A figure that is not known is `null`, and never 0. All numbers are finite.
//! - Keys are added, and unknown keys are ignored by a reader. If the meaning of a key changes,
//!   [`SCHEMA_VERSION`] is raised.
//!
//! Threading: plain data.

mod build;
mod parts;
mod text;
mod warned;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::engine::Level;
use crate::measure::machine::{Build, DiskRequests, Machine, Speed};
use crate::measure::{LatencySummary, Second};
use crate::settings::{Abilities, Promise, Settings};

pub use build::{Context, Found, OpenFound, OpenLoopFound, date};
pub use parts::{Amplification, Bytes, Cpu, Disk, Memory, OpenLoop, OpenTimes, System};
pub use text::table;
pub(crate) use text::{number, row};
pub(crate) use warned::merged;

/// The version of the record's keys.
pub const SCHEMA_VERSION: u32 = 1;

/// What one run found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The workload's name.
    pub workload: String,
    /// The engine's name.
    pub engine: String,
    /// Operations a second until the last one ended.
    pub ops_per_s: Option<f64>,
    /// The median latency in microseconds. This one and the next ones are those of all calls of the
    /// measured threads; an open loop counts from the intended start.
    pub p50_us: Option<f64>,
    /// The latency that 99% did not exceed, in microseconds.
    pub p99_us: Option<f64>,
    /// The latency that 99.9% did not exceed, in microseconds.
    pub p999_us: Option<f64>,
    /// The longest latency in microseconds.
    pub max_us: Option<f64>,
    /// Bytes that the engine wrote to tables and log, by the user's bytes.
    pub write_amplification: Option<f64>,
    /// Bytes of all files, by the raw bytes of all records.
    pub space_amplification: Option<f64>,
    /// Processor time of the process until the engine was idle, in seconds.
    pub cpu_s: Option<f64>,
    /// The highest anonymous resident memory in bytes.
    pub rss_bytes: Option<u64>,
    /// What writers waited by the engine's own account, in seconds of all threads together.
    pub stall_s: Option<f64>,

    /// Processor time of the host's process by the time until idle: the cores that it used.
    pub host_cpu: Option<f64>,
    /// Processor time of the device until idle, in seconds.
    pub device_cpu_s: Option<f64>,
    /// The same by the time until idle: the cores that the device used.
    pub device_cpu: Option<f64>,
    /// Processor time of the host's process for each GiB that was written, in seconds.
    pub cpu_s_per_gib: Option<f64>,
    /// Input bytes of the compactions that the host ran, divided by the time in which at least one
    /// of them was running. `None` if it ran none.
    pub host_compaction_bytes_per_s: Option<f64>,
    /// The same of those that the device ran.
    pub device_compaction_bytes_per_s: Option<f64>,
    /// Input bytes of the compactions that the GPU ran, or the host if the run has no GPU, divided
    /// by the time in which at least one of them was running. `None` if there was none.
    pub compaction_bytes_per_s: Option<f64>,
    /// The part of the time until idle in which the GPU was busy; `None` unless it was measured.
    pub gpu_utilisation: Option<f64>,
    /// The largest part of a whole second in which it was.
    pub gpu_utilisation_peak: Option<f64>,
    /// Bytes that crossed the link between host and device, both ways.
    pub link_bytes: Option<u64>,
    /// The same by the user's bytes that were written.
    pub link_amplification: Option<f64>,

    /// The version of the engine's library.
    pub engine_version: String,
    /// What the engine can do.
    pub abilities: Option<Abilities>,
    /// What an acknowledged write of this run survives.
    pub promise: Option<Promise>,
    /// Operations of the measured threads.
    pub operations: u64,
    /// Operations of the threads beside them.
    pub beside_operations: u64,
    /// Those operations a second until the last operation of a measured thread.
    pub beside_ops_per_s: Option<f64>,
    /// From the start to the end of the last operation of a measured thread, in seconds.
    pub until_last_s: f64,
    /// From the start until the engine was idle, in seconds.
    pub until_idle_s: f64,
    /// Operations a second until the engine was idle.
    pub ops_per_s_until_idle: Option<f64>,
    /// Bytes of keys and values that the measured threads wrote and read, a second until the last
    /// operation ended.
    pub bytes_per_s: Option<f64>,
    /// The same, a second until the engine was idle.
    pub bytes_per_s_until_idle: Option<f64>,
    /// The mean latency in microseconds.
    pub mean_us: Option<f64>,
    /// The latency that 90% did not exceed, in microseconds.
    pub p90_us: Option<f64>,
    /// The latency that 99.99% did not exceed, in microseconds.
    pub p9999_us: Option<f64>,
    /// Calls that failed.
    pub errors: u64,
    /// Answers that were wrong.
    pub verification_failures: u64,
    /// Latencies by kind of operation, of all threads.
    pub latency: BTreeMap<String, LatencySummary>,
    /// In an open loop, the same from the real start of each call; otherwise empty.
    pub service_time: BTreeMap<String, LatencySummary>,
    /// Facts of an open loop.
    pub open_loop: Option<OpenLoop>,
    /// What the open of the workload `open` took.
    pub open: Option<OpenTimes>,
    /// What a reader of the figures has to know beforehand, in sentences.
    pub warnings: Vec<String>,
    /// What writers waited by cause, in seconds.
    pub stall_s_by_cause: Option<BTreeMap<String, f64>>,
    /// The sum of the latencies above one millisecond, in seconds of the measured threads together.
    pub slow_s: Option<f64>,
    /// Whole seconds before the last operation in which no operation of a measured thread ended.
    pub silent_seconds: u64,
    /// Amplifications of all kinds.
    pub amplification: Amplification,
    /// Processor time by who used it.
    pub cpu: Cpu,
    /// Resident memory by kind.
    pub memory: Memory,
    /// Bytes by cause.
    pub bytes: Bytes,
    /// The files at the end.
    pub disk: Disk,
    /// Page faults and context switches.
    pub system: System,
    /// The shape of the tree at the end.
    pub levels: Vec<Level>,
    /// How much the engine's other counters grew, by its own names.
    pub engine_counters: BTreeMap<String, u64>,
    /// What was done second by second.
    pub series: Vec<Second>,
    /// The settings of the run, under the names of experiment files.
    pub settings: serde_json::Value,
    /// The settings of the engine by its own names.
    pub engine_settings: BTreeMap<String, String>,
    /// The machine.
    pub machine: Machine,
    /// What probes of the machine took before and after the run. Empty unless the run is one of an
    /// experiment.
    pub machine_speed: Vec<Speed>,
    /// What the disk did during the run, for other programs as well. `None` if that is not known,
    /// or if the run is not one of an experiment.
    pub machine_disk: Option<DiskRequests>,
    /// Whether the run was carried out twice, because the machine was slow the first time.
    pub is_repeated: bool,
    /// How the program was built, and from which commit.
    pub build: Build,
    /// When the run ended, in UTC, in the form of RFC 3339.
    pub date: String,
    /// The program and its arguments.
    pub command_line: Vec<String>,
    /// Which hardware of the original experiment something else stood in for, in sentences.
    pub stand_ins: Vec<String>,
}

/// Why a record cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is not JSON, or a known key has a value of another type.
    #[error("this is no record of a run: {0}; write one with `silt bench --json`")]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error(
        "the record has schema version {found}, and this program reads version {expected}; \
         compare records of one version of silt"
    )]
    Version {
        /// What the record says.
        found: u32,
        /// What this program reads.
        expected: u32,
    },
}

impl Record {
    /// The record as one line of JSON.
    ///
    /// # Errors
    /// None that is known: every part of a record has a form in JSON.
    pub fn to_json(&self) -> Result<String, RecordError> {
        Ok(serde_json::to_string(self)?)
    }

    /// Reads a record. Unknown keys are ignored.
    ///
    /// # Errors
    /// See [`RecordError`].
    pub fn from_json(text: &str) -> Result<Record, RecordError> {
        let record: Record = serde_json::from_str(text)?;
        if record.schema_version != SCHEMA_VERSION {
            return Err(RecordError::Version {
                found: record.schema_version,
                expected: SCHEMA_VERSION,
            });
        }
        Ok(record)
    }

    /// The settings of the run.
    ///
    /// # Errors
    /// If the record is of a program with other settings.
    pub fn run_settings(&self) -> Result<Settings, RecordError> {
        Ok(serde_json::from_value(self.settings.clone())?)
    }
}
