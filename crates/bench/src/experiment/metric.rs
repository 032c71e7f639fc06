//! The figures of a run that a paper has values for, under the names of the JSON record.

use std::fmt;

use serde_json::Value as Json;

use crate::record::Record;
use crate::settings::Kind;

/// A figure of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Metric {
    /// Operations a second until the last operation.
    OpsPerS,
    /// Operations a second until the engine is idle.
    OpsPerSUntilIdle,
    /// Bytes of keys and values a second until the last operation.
    BytesPerS,
    /// Bytes of keys and values a second until the engine is idle.
    BytesPerSUntilIdle,
    /// The time until the engine is idle, in seconds.
    UntilIdleS,
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
    /// Bytes written to tables for each byte that was put.
    TableWriteAmplification,
    /// Bytes of tables that the host wrote for each byte that was put.
    HostWriteAmplification,
    /// Cores that the host used.
    HostCpu,
    /// Cores that the device used.
    DeviceCpu,
    /// Processor time of the host for each GiB written, in seconds.
    CpuSPerGib,
    /// Input bytes of the compactions that the host ran, divided by the seconds in which at least
    /// one of them was running.
    HostCompactionBytesPerS,
    /// Bytes over the link for each byte that was put.
    LinkAmplification,
    /// Input bytes of compactions for each second of processor time of the whole process.
    CompactionBytesPerCpuS,
    /// Input bytes of the compactions that the GPU ran, or the host in a run without a GPU, divided
    /// by the seconds in which at least one of them was running.
    CompactionBytesPerS,
    /// The part of the time until idle in which the GPU was busy.
    GpuUtilisation,
    /// The largest part of a second in which the GPU was busy.
    GpuUtilisationPeak,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 28] = [
        Metric::OpsPerS,
        Metric::OpsPerSUntilIdle,
        Metric::BytesPerS,
        Metric::BytesPerSUntilIdle,
        Metric::UntilIdleS,
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
        Metric::TableWriteAmplification,
        Metric::HostWriteAmplification,
        Metric::HostCpu,
        Metric::DeviceCpu,
        Metric::CpuSPerGib,
        Metric::HostCompactionBytesPerS,
        Metric::LinkAmplification,
        Metric::CompactionBytesPerCpuS,
        Metric::CompactionBytesPerS,
        Metric::GpuUtilisation,
        Metric::GpuUtilisationPeak,
    ];

    /// The name in experiments and in the record.
    pub fn name(self) -> &'static str {
        match self {
            Metric::OpsPerS => "ops_per_s",
            Metric::OpsPerSUntilIdle => "ops_per_s_until_idle",
            Metric::BytesPerS => "bytes_per_s",
            Metric::BytesPerSUntilIdle => "bytes_per_s_until_idle",
            Metric::UntilIdleS => "until_idle_s",
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
            Metric::TableWriteAmplification => "table_write_amplification",
            Metric::HostWriteAmplification => "host_write_amplification",
            Metric::HostCpu => "host_cpu",
            Metric::DeviceCpu => "device_cpu",
            Metric::CpuSPerGib => "cpu_s_per_gib",
            Metric::HostCompactionBytesPerS => "host_compaction_bytes_per_s",
            Metric::LinkAmplification => "link_amplification",
            Metric::CompactionBytesPerCpuS => "compaction_bytes_per_cpu_s",
            Metric::CompactionBytesPerS => "compaction_bytes_per_s",
            Metric::GpuUtilisation => "gpu_utilisation",
            Metric::GpuUtilisationPeak => "gpu_utilisation_peak",
        }
    }

    /// The metric of this name.
    pub fn named(name: &str) -> Option<Metric> {
        Metric::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// Whether a larger figure is better.
    pub fn more_is_better(self) -> bool {
        self.name().contains("_per_s") || self == Metric::CompactionBytesPerCpuS
    }

    /// Whether the figure depends on how fast the machine is.
    pub fn is_of_machine(self) -> bool {
        matches!(
            self,
            Metric::OpsPerS
                | Metric::OpsPerSUntilIdle
                | Metric::BytesPerS
                | Metric::BytesPerSUntilIdle
                | Metric::UntilIdleS
                | Metric::MeanUs
                | Metric::P50Us
                | Metric::P90Us
                | Metric::P99Us
                | Metric::P999Us
                | Metric::P9999Us
                | Metric::MaxUs
                | Metric::CpuS
                | Metric::StallS
                | Metric::CpuSPerGib
                | Metric::HostCompactionBytesPerS
                | Metric::CompactionBytesPerCpuS
                | Metric::CompactionBytesPerS
                | Metric::GpuUtilisation
                | Metric::GpuUtilisationPeak
        )
    }

    /// Whether the record has the figure for each kind of operation. The others belong to the whole
    /// run.
    pub fn is_by_operation(self) -> bool {
        self.name().ends_with("_us")
    }

    /// The figure of a whole run; `None` if the run has none.
    pub fn of_record(self, record: &Record) -> Option<f64> {
        let bytes = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64);
        match self {
            Metric::OpsPerS => record.ops_per_s,
            Metric::OpsPerSUntilIdle => record.ops_per_s_until_idle,
            Metric::BytesPerS => record.bytes_per_s,
            Metric::BytesPerSUntilIdle => record.bytes_per_s_until_idle,
            Metric::UntilIdleS => Some(record.until_idle_s),
            Metric::MeanUs => record.mean_us,
            Metric::P50Us => record.p50_us,
            Metric::P90Us => record.p90_us,
            Metric::P99Us => record.p99_us,
            Metric::P999Us => record.p999_us,
            Metric::P9999Us => record.p9999_us,
            Metric::MaxUs => record.max_us,
            Metric::WriteAmplification => record.write_amplification,
            Metric::SpaceAmplification => record.space_amplification,
            Metric::CpuS => record.cpu_s,
            Metric::RssBytes => bytes(record.rss_bytes),
            Metric::StallS => record.stall_s,
            Metric::TableWriteAmplification => record.amplification.write_tables,
            Metric::HostWriteAmplification => record.amplification.write_tables_by_host,
            Metric::HostCpu => record.host_cpu,
            Metric::DeviceCpu => record.device_cpu,
            Metric::CpuSPerGib => record.cpu_s_per_gib,
            Metric::HostCompactionBytesPerS => record.host_compaction_bytes_per_s,
            Metric::LinkAmplification => record.link_amplification,
            Metric::CompactionBytesPerS => record.compaction_bytes_per_s,
            Metric::GpuUtilisation => record.gpu_utilisation,
            Metric::GpuUtilisationPeak => record.gpu_utilisation_peak,
            Metric::CompactionBytesPerCpuS => {
                quotient(bytes(record.bytes.compaction_read_bytes)?, record.cpu_s?)
            }
        }
    }

    /// The figure in the JSON of a record, of all operations or of one kind; `None` if the run has
    /// none.
    pub fn of(self, record: &Json, operation: Option<Kind>) -> Option<f64> {
        let found = match operation {
            None if self == Metric::TableWriteAmplification => {
                record.pointer("/amplification/write_tables")
            }
            None if self == Metric::HostWriteAmplification => {
                record.pointer("/amplification/write_tables_by_host")
            }
            None if self == Metric::CompactionBytesPerCpuS => {
                let read = record.pointer("/bytes/compaction_read_bytes")?.as_f64()?;
                return quotient(read, record.get("cpu_s")?.as_f64()?);
            }
            None => record.get(self.name()),
            Some(kind) => record.get("latency")?.get(kind.name())?.get(self.name()),
        };
        found?.as_f64()
    }
}

/// A rate; `None` if nothing was done.
fn quotient(of: f64, by: f64) -> Option<f64> {
    (of > 0.0 && by > 0.0).then_some(of / by)
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_has_every_metric() {
        let record = serde_json::to_value(Record::default()).unwrap();
        for metric in Metric::ALL {
            let is_nested = metric.name().ends_with("_write_amplification");
            let is_computed = metric == Metric::CompactionBytesPerCpuS;
            assert!(
                is_nested || is_computed || record.get(metric.name()).is_some(),
                "{metric}"
            );
            assert_eq!(Metric::named(metric.name()), Some(metric));
        }
        assert!(record.get("latency").is_some());
    }

    #[test]
    fn the_figure_of_a_record_is_that_of_its_json() {
        let record = Record {
            ops_per_s: Some(1.0),
            ops_per_s_until_idle: Some(2.0),
            bytes_per_s: Some(3.0),
            bytes_per_s_until_idle: Some(4.0),
            until_idle_s: 5.0,
            mean_us: Some(6.0),
            p50_us: Some(7.0),
            p90_us: Some(8.0),
            p99_us: Some(9.0),
            p999_us: Some(10.0),
            p9999_us: Some(11.0),
            max_us: Some(12.0),
            write_amplification: Some(13.0),
            space_amplification: Some(14.0),
            cpu_s: Some(15.0),
            rss_bytes: Some(16),
            stall_s: Some(17.0),
            amplification: crate::record::Amplification {
                write_tables: Some(3.5),
                write_tables_by_host: Some(1.5),
                ..Default::default()
            },
            host_cpu: Some(0.5),
            device_cpu: Some(0.25),
            cpu_s_per_gib: Some(18.0),
            host_compaction_bytes_per_s: Some(19.0),
            compaction_bytes_per_s: Some(20.0),
            gpu_utilisation: Some(0.1),
            gpu_utilisation_peak: Some(0.2),
            link_amplification: Some(2.5),
            bytes: crate::record::Bytes {
                compaction_read_bytes: Some(300),
                ..Default::default()
            },
            ..Record::default()
        };
        let json = serde_json::to_value(&record).unwrap();
        for metric in Metric::ALL {
            assert!(metric.of_record(&record).is_some(), "{metric}");
            assert_eq!(
                metric.of_record(&record),
                metric.of(&json, None),
                "{metric}"
            );
        }
    }

    #[test]
    fn rates_and_times_depend_on_the_machine() {
        for metric in Metric::ALL {
            let units = ["_s", "_us", "_s_until_idle", "_s_per_gib"];
            let has_time = units.iter().any(|unit| metric.name().ends_with(unit));
            let is_part_of_time = metric.name().contains("_utilisation");
            assert_eq!(
                metric.is_of_machine(),
                has_time || is_part_of_time,
                "{metric}"
            );
        }
    }

    #[test]
    fn a_figure_is_found_for_all_operations_and_for_one_kind() {
        let record = serde_json::json!({
            "p99_us": 7.5, "stall_s": null, "latency": { "get": { "p99_us": 2 } },
        });
        assert_eq!(Metric::P99Us.of(&record, None), Some(7.5));
        assert_eq!(Metric::P99Us.of(&record, Some(Kind::Get)), Some(2.0));
        assert_eq!(Metric::P99Us.of(&record, Some(Kind::Put)), None);
        assert_eq!(Metric::StallS.of(&record, None), None);
    }
}
