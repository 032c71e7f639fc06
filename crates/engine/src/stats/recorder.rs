//! Statistics for the recorder of the `metrics` crate (feature `metrics`).
//!
//! [`feed`] passes the figures of [`Stats`] on, under the same names. The maintenance task calls it
//! once a second, whether `STATS.json` is written or not. If no recorder is installed, it has no
//! effect.
//!
//! Names, all with the label `store` (the place of the manifest):
//! - a counter `x` of the statistics is the counter `siltstone_x`;
//! - `siltstone_latency_ns` is a gauge with the labels `call` and `quantile` (0.5, 0.9, 0.99,
//!   0.999, 1), and `siltstone_latency_count` a counter with the label `call`;
//! - `siltstone_delay_count` and `siltstone_delay_us` are counters with the label `cause`;
//! - `siltstone_level_*` are gauges with the labels `keyspace` and `level`;
//! - `siltstone_side_*` are gauges with the labels `executor` and `side`, and counters where they
//!   are sums since the open (of bytes, compactions, failures and times);
//! - `siltstone_memory_bytes` is a gauge with the label `use`.
//!
//! Threading: the maintenance task. It holds no lock, so a recorder may take its time.

use metrics::{counter, gauge};

use crate::jobs::Jobs;
use crate::stats::Stats;
use crate::stats::space::SpaceStats;
use crate::types::job_stats::QueueStats;

/// Passes the present figures to the installed recorder.
pub(crate) fn feed(jobs: &Jobs) {
    // The recorder gets no figures of `space`, because they need a listing of the folders.
    let stats = crate::stats::collect(jobs, SpaceStats::default());
    record(&jobs.env().storages().manifest.describe(), &stats);
}

fn record(store: &str, stats: &Stats) {
    let label = || ("store", store.to_string());
    for (name, n) in &stats.counters {
        // This one is a gauge, because the log's length also falls.
        if name == "log_live_bytes" {
            gauge!("siltstone_log_live_bytes", &[label()]).set(*n as f64);
        } else {
            counter!(format!("siltstone_{name}"), &[label()]).absolute(*n);
        }
    }
    for (call, latency) in &stats.latencies {
        let labels = [label(), ("call", call.to_string())];
        counter!("siltstone_latency_count", &labels).absolute(latency.count);
        for (quantile, ns) in [
            ("0.5", latency.p50_ns),
            ("0.9", latency.p90_ns),
            ("0.99", latency.p99_ns),
            ("0.999", latency.p999_ns),
            ("1", latency.max_ns),
        ] {
            let labels = [
                label(),
                ("call", call.to_string()),
                ("quantile", quantile.to_string()),
            ];
            gauge!("siltstone_latency_ns", &labels).set(ns as f64);
        }
    }
    for (cause, total) in &stats.delay_totals {
        let labels = [label(), ("cause", cause.word().to_string())];
        counter!("siltstone_delay_count", &labels).absolute(total.count);
        counter!("siltstone_delay_us", &labels).absolute(total.total_us);
    }
    gauge!("siltstone_waiting_writer_count", &[label()]).set(stats.waiting_writer_count as f64);
    gauge!("siltstone_running_job_count", &[label()]).set(stats.jobs.len() as f64);
    for figures in &stats.sides {
        let labels = [
            label(),
            ("executor", figures.name.clone()),
            ("side", figures.side.clone()),
        ];
        for (name, n) in [
            ("slot_count", figures.slot_count),
            ("lost_slot_count", figures.lost_slot_count),
            ("running_job_count", figures.running_job_count),
            ("running_in_bytes", figures.running_in_bytes),
            ("running_read_bytes", figures.running_read_bytes),
            ("running_out_bytes", figures.running_out_bytes),
            // A gauge keeps its number, so there is one for a side without jobs, too.
            ("running_left_us", figures.running_left_us.unwrap_or(0)),
            ("waiting_job_count", figures.waiting_job_count),
            ("suspended_us", figures.suspended_us),
        ] {
            gauge!(format!("siltstone_side_{name}"), &labels).set(n as f64);
        }
        for (name, n) in [
            ("compaction_count", figures.compaction_count),
            ("compaction_in_bytes", figures.compaction_in_bytes),
            ("compaction_out_bytes", figures.compaction_out_bytes),
            ("compaction_us", figures.compaction_us),
            ("compaction_busy_us", figures.compaction_busy_us),
            ("compaction_cpu_us", figures.compaction_cpu_us),
            ("host_cpu_us", figures.host_cpu_us),
            ("failed_count", figures.failed_count),
            ("declined_count", figures.declined_count),
            ("rejected_count", figures.rejected_count),
            ("suspended_count", figures.suspended_count),
        ] {
            counter!(format!("siltstone_side_{name}"), &labels).absolute(n);
        }
        if let Some(bytes) = figures.link_bytes {
            counter!("siltstone_side_link_bytes", &labels).absolute(bytes);
        }
        if let Some(bytes) = figures.saved_link_bytes {
            counter!("siltstone_side_saved_link_bytes", &labels).absolute(bytes);
        }
        if let Some(us) = figures.saved_cpu_us {
            gauge!("siltstone_side_saved_cpu_us", &labels).set(us as f64);
        }
        // What was measured once stays measured.
        for (name, speed) in [
            ("flush_bytes_per_s", figures.flush_bytes_per_s),
            ("compaction_bytes_per_s", figures.compaction_bytes_per_s),
            ("compaction_ns_per_byte", figures.compaction_ns_per_byte),
        ] {
            if let Some(speed) = speed {
                gauge!(format!("siltstone_side_{name}"), &labels).set(speed);
            }
        }
        if !figures.queue_end.is_empty() {
            let has_small_end = figures.queue_end == "small";
            gauge!("siltstone_side_has_small_end", &labels).set(f64::from(u8::from(has_small_end)));
        }
    }
    gauge!("siltstone_writable", &[label()]).set(f64::from(u8::from(stats.health == "good")));
    for (what, bytes) in [
        ("arenas", stats.memory.arena_bytes),
        ("range_deletes", stats.memory.range_delete_bytes),
        ("block_cache", stats.memory.block_cache_bytes),
        ("tables", stats.memory.table_bytes),
        ("jobs", stats.memory.job_bytes),
    ] {
        let labels = [label(), ("use", what.to_string())];
        gauge!("siltstone_memory_bytes", &labels).set(bytes as f64);
    }
    // A gauge keeps its number, so there is one before the first flush, too.
    let rate = stats.flush_bytes_per_s.unwrap_or(0);
    gauge!("siltstone_flush_bytes_per_s", &[label()]).set(rate as f64);
    for keyspace in &stats.keyspaces {
        let own = [label(), ("keyspace", keyspace.name.clone())];
        let pressure = &keyspace.pressure;
        for (name, holds) in [
            ("siltstone_behind", pressure.is_behind),
            ("siltstone_stall_ahead", pressure.stall_ahead.is_some()),
        ] {
            gauge!(name, &own).set(f64::from(u8::from(holds)));
        }
        for limit in &pressure.limits {
            let [label, keyspace] = own.clone();
            let labels = [label, keyspace, ("limit", limit.limit.word().to_string())];
            gauge!("siltstone_limit_load", &labels).set(limit.load as f64);
            gauge!("siltstone_limit_bound", &labels).set(limit.bound as f64);
        }
        for (level, figures) in keyspace.levels.iter().enumerate() {
            let labels = [
                label(),
                ("keyspace", keyspace.name.clone()),
                ("level", level.to_string()),
            ];
            gauge!("siltstone_level_run_count", &labels).set(figures.run_count as f64);
            gauge!("siltstone_level_table_count", &labels).set(figures.table_count as f64);
            gauge!("siltstone_level_file_bytes", &labels).set(figures.file_bytes as f64);
            if let Some(score) = keyspace.level_scores.get(level) {
                gauge!("siltstone_level_score", &labels).set(*score);
            }
            // A queue that is empty is not listed, but its figures are.
            let is_its = |queue: &&QueueStats| {
                queue.keyspace == keyspace.name && usize::from(queue.level) == level
            };
            let queue = stats.queues.iter().find(is_its);
            let (count, bytes) = queue.map_or((0, 0), |queue| (queue.work_count, queue.bytes));
            gauge!("siltstone_level_waiting_job_count", &labels).set(count as f64);
            let running = stats.jobs.iter().filter(|job| {
                let is_of_level = job.from_level.map(usize::from) == Some(level);
                is_of_level && job.keyspace == keyspace.name && job.is_under_way()
            });
            gauge!("siltstone_level_running_job_count", &labels).set(running.count() as f64);
            gauge!("siltstone_level_waiting_bytes", &labels).set(bytes as f64);
        }
    }
}
