//! The figures of a run that a paper has values for, under the names of the JSON record.

use std::fmt;

/// A figure of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Operations a second.
    OpsPerS,
    /// Bytes of keys and values a second.
    BytesPerS,
    /// The lowest operations a second of all whole seconds.
    MinOpsPerS,
    /// The time from the first operation until the engine is idle, in seconds.
    SettledS,
    /// Mean latency in microseconds.
    MeanUs,
    /// Median latency in microseconds.
    P50Us,
    /// 90th percentile of latency in microseconds.
    P90Us,
    /// 99th percentile of latency in microseconds.
    P99Us,
    /// 99.9th percentile of latency in microseconds.
    P999Us,
    /// 99.99th percentile of latency in microseconds.
    P9999Us,
    /// Highest latency in microseconds.
    MaxUs,
    /// Bytes written by the engine for each byte that was put.
    WriteAmplification,
    /// Bytes on disk for each byte of the records.
    SpaceAmplification,
    /// Processor time in seconds.
    CpuS,
    /// Resident memory in bytes.
    RssBytes,
    /// Time that writers waited, in seconds.
    StallS,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 16] = [
        Metric::OpsPerS,
        Metric::BytesPerS,
        Metric::MinOpsPerS,
        Metric::SettledS,
        Metric::MeanUs,
        Metric::P50Us,
        Metric::P90Us,
        Metric::P99Us,
        Metric::P999Us,
        Metric::P9999Us,
        Metric::MaxUs,
        Metric::WriteAmplification,
        Metric::SpaceAmplification,
        Metric::CpuS,
        Metric::RssBytes,
        Metric::StallS,
    ];

    /// The name in experiments and in the record.
    pub fn name(self) -> &'static str {
        match self {
            Metric::OpsPerS => "ops_per_s",
            Metric::BytesPerS => "bytes_per_s",
            Metric::MinOpsPerS => "min_ops_per_s",
            Metric::SettledS => "settled_s",
            Metric::MeanUs => "mean_us",
            Metric::P50Us => "p50_us",
            Metric::P90Us => "p90_us",
            Metric::P99Us => "p99_us",
            Metric::P999Us => "p999_us",
            Metric::P9999Us => "p9999_us",
            Metric::MaxUs => "max_us",
            Metric::WriteAmplification => "write_amplification",
            Metric::SpaceAmplification => "space_amplification",
            Metric::CpuS => "cpu_s",
            Metric::RssBytes => "rss_bytes",
            Metric::StallS => "stall_s",
        }
    }

    /// The metric of this name.
    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Whether a larger figure is better.
    pub fn more_is_better(self) -> bool {
        matches!(
            self,
            Metric::OpsPerS | Metric::BytesPerS | Metric::MinOpsPerS
        )
    }

    /// Whether the figure exists for each kind of operation. The others belong to the whole run.
    pub fn is_by_operation(self) -> bool {
        self.name().ends_with("_us") || self == Metric::OpsPerS
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
