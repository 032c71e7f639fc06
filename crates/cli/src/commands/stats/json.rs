//! Statistics as JSON: the names are those of [`Stats`], with their units.

use serde_json::{Map, Value, json};
use siltstone::{KeyspaceStats, Stats};

use super::chosen;

/// The shapes of keyspaces.
pub fn keyspaces(stats: &Stats, only: Option<&str>) -> Value {
    chosen(stats, only).map(keyspace).collect()
}

fn keyspace(keyspace: &KeyspaceStats) -> Value {
    let levels: Value = keyspace
        .levels
        .iter()
        .enumerate()
        .map(|(number, level)| {
            json!({
                "level": number,
                "run_count": level.run_count,
                "table_count": level.table_count,
                "file_bytes": level.file_bytes,
                "raw_bytes": level.raw_bytes,
                "entry_count": level.entry_count,
                "range_delete_count": level.range_delete_count,
            })
        })
        .collect();
    json!({
        "name": keyspace.name,
        "memtable_bytes": keyspace.memtable_bytes,
        "sealed_memtable_count": keyspace.sealed_memtable_count,
        "levels": levels,
    })
}

/// All of it.
pub fn stats(stats: &Stats, only: Option<&str>) -> Value {
    let named = |pairs: Vec<(&str, Value)>| -> Value {
        let pairs = pairs.into_iter().map(|(name, v)| (name.to_string(), v));
        Value::Object(pairs.collect::<Map<_, _>>())
    };
    let counters = stats.counters.iter().map(|(name, n)| (*name, json!(n)));
    let latencies = stats.latencies.iter().map(|(name, l)| {
        let figures = json!({
            "count": l.count,
            "mean_ns": l.mean_ns,
            "p50_ns": l.p50_ns,
            "p90_ns": l.p90_ns,
            "p99_ns": l.p99_ns,
            "p999_ns": l.p999_ns,
            "max_ns": l.max_ns,
        });
        (*name, figures)
    });
    let delays = stats.delay_totals.iter().map(|(cause, total)| {
        let figures = json!({
            "count": total.count,
            "total_us": total.total_us,
            "max_us": total.max_us,
        });
        (cause.word(), figures)
    });
    let jobs: Value = stats
        .jobs
        .iter()
        .map(|job| {
            json!({
                "keyspace": job.keyspace,
                "what": job.what,
                "entry_count": job.entries,
                "in_bytes": job.bytes_in,
                "out_bytes": job.bytes_out,
            })
        })
        .collect();
    let sides: Value = stats
        .sides
        .iter()
        .map(|side| {
            json!({
                "name": side.name,
                "side": side.side,
                "bytes_per_second": side.bytes_per_second,
            })
        })
        .collect();
    json!({
        "health": stats.health,
        "published": stats.published,
        "snapshot_count": stats.snapshot_count,
        "oldest_snapshot": stats.oldest_snapshot,
        "keyspaces": keyspaces(stats, only),
        "counters": named(counters.collect()),
        "write_amplification": stats.write_amplification(),
        "latencies": named(latencies.collect()),
        "delays": named(delays.collect()),
        "waiting_writer_count": stats.waiting_writer_count,
        "jobs": jobs,
        "sides": sides,
        "memory": {
            "arena_bytes": stats.memory.arena_bytes,
            "range_delete_bytes": stats.memory.range_delete_bytes,
            "block_cache_bytes": stats.memory.block_cache_bytes,
            "table_bytes": stats.memory.table_bytes,
        },
        "pinned_table_count": stats.pinned_table_count,
        "pinned_table_bytes": stats.pinned_table_bytes,
        "last_job_error": stats.last_job_error,
    })
}
