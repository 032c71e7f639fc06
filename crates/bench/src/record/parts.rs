//! The objects inside of a record. `docs/bench-record.md` says how each figure is computed.
//!
//! Threading: plain data.

use serde::{Deserialize, Serialize};

use crate::measure::files::Sizes;

/// Facts of an open loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenLoop {
    /// Operations a second that were due.
    pub intended_ops_per_s: Option<f64>,
    /// Operations a second that were done.
    pub achieved_ops_per_s: Option<f64>,
    /// Operations that were due by the end.
    pub due_operations: u64,
    /// Operations that were due by the end and not done.
    pub backlog_operations: u64,
    /// Those of them whose waits are in the latencies. If there are any, quantiles are lower
    /// bounds.
    pub censored_operations: u64,
}

/// What an open of a store took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenTimes {
    /// From the start until the first read was answered, in seconds.
    pub until_first_read_s: f64,
    /// Raw bytes that were in the log only.
    pub log_bytes: u64,
}

/// What the engine wrote, kept and read for each byte of the user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amplification {
    /// Bytes written to tables, by the user's bytes that were written.
    pub write_tables: Option<f64>,
    /// Bytes that the host wrote to tables, by the user's bytes that were written.
    pub write_tables_by_host: Option<f64>,
    /// Bytes written to tables and log, by the user's bytes that were written.
    pub write_with_log: Option<f64>,
    /// Bytes passed to write calls, by the user's bytes that were written.
    pub write_calls: Option<f64>,
    /// Bytes of dirty pages, by the user's bytes that were written.
    pub write_device: Option<f64>,
    /// Bytes read from the device, by the user's bytes that were returned: the read amplification.
    pub read_device: Option<f64>,
    /// Bytes of all files of the closed store, by the raw bytes of all records.
    pub space: Option<f64>,
    /// The same without the log.
    pub space_without_log: Option<f64>,
}

/// Processor time until the engine was idle, in seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cpu {
    /// Of the process.
    pub process_s: Option<f64>,
    /// The part of it outside the kernel.
    pub user_s: Option<f64>,
    /// The part of it in the kernel.
    pub system_s: Option<f64>,
    /// Of the threads of the workload.
    pub foreground_s: Option<f64>,
    /// Of flushes.
    pub flush_s: Option<f64>,
    /// Of compactions.
    pub compaction_s: Option<f64>,
    /// Of everything else but the sampler.
    pub other_background_s: Option<f64>,
    /// Of the thread that samples.
    pub sampler_s: Option<f64>,
}

/// Resident memory of the process in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// All at the end.
    pub resident_bytes: Option<u64>,
    /// The anonymous part at the end.
    pub anonymous_bytes: Option<u64>,
    /// The part at the end that is mapped files.
    pub file_bytes: Option<u64>,
    /// The part at the end that is shared memory.
    pub shared_bytes: Option<u64>,
    /// The highest of all.
    pub peak_resident_bytes: Option<u64>,
    /// The highest anonymous part.
    pub peak_anonymous_bytes: Option<u64>,
}

/// Bytes by cause, from the start until the engine was idle.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bytes {
    /// Keys and values that all threads wrote.
    pub user_written_bytes: u64,
    /// Keys and values that all threads read.
    pub user_read_bytes: u64,
    /// Written to the log.
    pub log_bytes: Option<u64>,
    /// Written by flushes.
    pub flush_bytes: Option<u64>,
    /// Read by compactions.
    pub compaction_read_bytes: Option<u64>,
    /// Written by compactions.
    pub compaction_bytes: Option<u64>,
    /// Returned by read calls.
    pub read_call_bytes: Option<u64>,
    /// Passed to write calls.
    pub write_call_bytes: Option<u64>,
    /// Read from a device.
    pub device_read_bytes: Option<u64>,
    /// Pages that became dirty.
    pub device_write_bytes: Option<u64>,
}

/// The store's files at the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Disk {
    /// By purpose, when the engine was idle and the store was open.
    pub files: Sizes,
    /// By purpose, after the store was closed.
    pub files_closed: Sizes,
    /// Records of the store.
    pub records: Option<u64>,
    /// Raw bytes of the keys and values of all records.
    pub live_bytes: Option<u64>,
    /// The part of the files in the page cache before the first operation, from 0 to 1.
    pub cached_before: Option<f64>,
    /// The same at the end.
    pub cached_after: Option<f64>,
}

/// What the system did for the process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// Page faults that needed no device.
    pub minor_faults: Option<u64>,
    /// Page faults that read from a device.
    pub major_faults: Option<u64>,
    /// The same for each operation of all threads.
    pub major_faults_per_op: Option<f64>,
    /// Context switches of threads that waited.
    pub voluntary_switches: Option<u64>,
    /// Context switches of threads that lost their processor.
    pub involuntary_switches: Option<u64>,
}
