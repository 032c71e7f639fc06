//! `silt stats`: a store's shape, and what it counts.

use siltstone::{KeyspaceStats, LevelStats, Stats};

use super::open_existing;
use crate::args::StatsArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, nanos, outln};

/// Runs the command.
pub fn run(args: &StatsArgs) -> Result<Outcome, Failure> {
    let store = open_existing(&args.store)?;
    if let Some(name) = &args.keyspace {
        store.keyspace(name)?;
    }
    let stats = store.stats();
    let mut out = Out::new();
    print(&mut out, &stats, args.keyspace.as_deref())?;
    out.finish()?;
    store.close()?;
    Ok(Outcome::Fine)
}

/// Prints a store's statistics; of one keyspace only if one is named.
pub fn print(out: &mut Out, stats: &Stats, only: Option<&str>) -> Result<(), Failure> {
    outln!(out, "health     {}", stats.health)?;
    outln!(out, "published  sequence number {}", stats.published)?;
    for keyspace in stats
        .keyspaces
        .iter()
        .filter(|k| only.is_none_or(|name| name == k.name))
    {
        outln!(out)?;
        levels(out, keyspace)?;
    }
    if only.is_some() {
        return Ok(());
    }
    outln!(out)?;
    outln!(
        out,
        "memory     memtables {}, cached blocks {}, filters and indexes {}",
        bytes(stats.memory.arena_bytes + stats.memory.range_delete_bytes),
        bytes(stats.memory.block_cache_bytes),
        bytes(stats.memory.table_bytes)
    )?;
    if stats.snapshot_count > 0 {
        outln!(
            out,
            "snapshots  {}, the oldest at {}",
            stats.snapshot_count,
            stats.oldest_snapshot.unwrap_or(0)
        )?;
    }
    if stats.pinned_table_count > 0 {
        outln!(
            out,
            "pinned     {} obsolete tables ({}) that readers still hold",
            count(stats.pinned_table_count),
            bytes(stats.pinned_table_bytes)
        )?;
    }
    for job in &stats.jobs {
        outln!(
            out,
            "job        {} of {}: {} in, {} out",
            job.what,
            job.keyspace,
            bytes(job.bytes_in),
            bytes(job.bytes_out)
        )?;
    }
    for side in &stats.sides {
        let speed = side
            .bytes_per_second
            .map_or("not measured yet".to_string(), |s| {
                format!("{}/s", bytes(s as u64))
            });
        let aside = if side.set_aside_us > 0 {
            let seconds = side.set_aside_us.div_ceil(1_000_000);
            format!(
                "; set aside for {seconds} s, {} of its outcomes were rejected",
                side.rejected_count
            )
        } else {
            String::new()
        };
        outln!(
            out,
            "side       {} ({}): {speed}{aside}",
            side.name,
            side.side
        )?;
    }
    if let Some(error) = &stats.last_job_error {
        outln!(out, "last job   failed: {error}")?;
    }
    counters(out, stats)?;
    latencies(out, stats)?;
    delays(out, stats)
}

/// Prints the levels of a keyspace.
pub fn levels(out: &mut Out, keyspace: &KeyspaceStats) -> Result<(), Failure> {
    outln!(
        out,
        "keyspace `{}`: memtables {}, {} waiting for their flush",
        keyspace.name,
        bytes(keyspace.memtable_bytes),
        keyspace.sealed_memtable_count
    )?;
    let row = |out: &mut Out, name: &str, cells: [String; 6]| {
        let [runs, tables, file, raw, entries, deletes] = cells;
        outln!(
            out,
            "  {name:>5}{runs:>8}{tables:>9}{file:>13}{raw:>13}{entries:>16}{deletes:>15}"
        )
    };
    row(
        out,
        "level",
        [
            "runs",
            "tables",
            "file bytes",
            "raw bytes",
            "entries",
            "range deletes",
        ]
        .map(String::from),
    )?;
    let cells = |level: &LevelStats| {
        [
            count(level.run_count),
            count(level.table_count),
            bytes(level.file_bytes),
            bytes(level.raw_bytes),
            count(level.entry_count),
            count(level.range_delete_count),
        ]
    };
    let mut total = LevelStats::default();
    for (number, level) in keyspace.levels.iter().enumerate() {
        total.run_count += level.run_count;
        total.table_count += level.table_count;
        total.file_bytes += level.file_bytes;
        total.raw_bytes += level.raw_bytes;
        total.entry_count += level.entry_count;
        total.range_delete_count += level.range_delete_count;
        if level.table_count > 0 {
            row(out, &number.to_string(), cells(level))?;
        }
    }
    row(out, "all", cells(&total))
}

/// Prints the counters that are not zero.
fn counters(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    outln!(out)?;
    outln!(
        out,
        "counters since it was opened (those that are zero are left out)"
    )?;
    for (name, value) in stats.counters.iter().filter(|(_, value)| **value > 0) {
        outln!(out, "  {name:<28}{:>18}", count(*value))?;
    }
    outln!(
        out,
        "  {:<28}{:>18.2}",
        "write_amplification",
        stats.write_amplification()
    )
}

/// Prints latencies that were observed.
pub fn latencies(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    let observed: Vec<_> = stats
        .latencies
        .iter()
        .filter(|(_, l)| l.count > 0)
        .collect();
    if observed.is_empty() {
        return Ok(());
    }
    outln!(out)?;
    outln!(
        out,
        "  {:<12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>11}",
        "latency",
        "observed",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max"
    )?;
    for (name, l) in observed {
        outln!(
            out,
            "  {name:<12}{:>12}{:>11}{:>11}{:>11}{:>11}{:>11}",
            count(l.count),
            nanos(l.p50_ns),
            nanos(l.p90_ns),
            nanos(l.p99_ns),
            nanos(l.p999_ns),
            nanos(l.max_ns)
        )?;
    }
    Ok(())
}

/// Prints delays of writers, by cause.
pub fn delays(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    outln!(out)?;
    if stats.delay_totals.iter().all(|(_, total)| total.count == 0) {
        return outln!(out, "delays of writers: none");
    }
    outln!(
        out,
        "  {:<20}{:>10}{:>12}{:>12}",
        "delays by cause",
        "count",
        "in all",
        "longest"
    )?;
    for (cause, total) in stats
        .delay_totals
        .iter()
        .filter(|(_, total)| total.count > 0)
    {
        outln!(
            out,
            "  {:<20}{:>10}{:>12}{:>12}",
            cause.word(),
            count(total.count),
            nanos(total.total_us * 1000),
            nanos(total.max_us * 1000)
        )?;
    }
    Ok(())
}
