//! `silt stats` and `silt levels`: a store's shape, and what it counts.

mod json;

use std::time::Duration;

use siltstone::{KeyspaceStats, LevelStats, Stats};

use super::open_to_read;
use crate::args::{FiguresArgs, LevelsArgs, StatsArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, nanos, on_terminal, outln};

/// Runs `silt stats`.
pub fn run(args: &StatsArgs) -> Result<Outcome, Failure> {
    let only = args.figures.keyspace.as_deref();
    show(&args.figures, &|out, stats| {
        if args.figures.json {
            return outln!(out, "{}", json::stats(stats, only));
        }
        print(out, stats, only)
    })
}

/// Runs `silt levels`.
pub fn run_levels(args: &LevelsArgs) -> Result<Outcome, Failure> {
    let only = args.figures.keyspace.as_deref();
    show(&args.figures, &|out, stats| {
        if args.figures.json {
            return outln!(out, "{}", json::keyspaces(stats, only));
        }
        for (i, keyspace) in chosen(stats, only).enumerate() {
            if i > 0 {
                outln!(out)?;
            }
            levels(out, keyspace)?;
        }
        Ok(())
    })
}

/// The keyspaces that were asked for.
fn chosen<'a>(stats: &'a Stats, only: Option<&str>) -> impl Iterator<Item = &'a KeyspaceStats> {
    stats
        .keyspaces
        .iter()
        .filter(move |k| only.is_none_or(|name| name == k.name))
}

/// Shows figures once, or again and again.
fn show(
    args: &FiguresArgs,
    print: &dyn Fn(&mut Out, &Stats) -> Result<(), Failure>,
) -> Result<Outcome, Failure> {
    if !args.watch {
        let mut out = Out::new();
        print(&mut out, &figures(args)?)?;
        out.finish()?;
        return Ok(Outcome::Fine);
    }
    // What cannot be the first time is an error; later it may pass.
    let mut next = Ok(figures(args)?);
    loop {
        let mut out = Out::new();
        let screen = on_terminal() && !args.json;
        if screen {
            // Home, and clear.
            out.raw(b"\x1b[H\x1b[2J")?;
            outln!(
                out,
                "{}  (every second; end with Ctrl-C)\n",
                args.store.display()
            )?;
        }
        match &next {
            Ok(stats) => print(&mut out, stats)?,
            Err(failure) => {
                if screen {
                    outln!(out, "{failure}")?;
                } else {
                    eprintln!("silt: {failure}");
                }
            }
        }
        if !screen && !args.json {
            outln!(out)?;
        }
        out.finish()?;
        std::thread::sleep(Duration::from_secs(1));
        next = figures(args);
    }
}

/// The figures of a store.
fn figures(args: &FiguresArgs) -> Result<Stats, Failure> {
    let store = open_to_read(&args.store)?;
    if let Some(name) = &args.keyspace {
        store.keyspace(name)?;
    }
    let stats = store.stats();
    store.close()?;
    Ok(stats)
}

/// Prints a store's statistics; of one keyspace only if one is named.
pub fn print(out: &mut Out, stats: &Stats, only: Option<&str>) -> Result<(), Failure> {
    outln!(out, "health     {}", stats.health)?;
    outln!(out, "published  sequence number {}", stats.published)?;
    for keyspace in chosen(stats, only) {
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
