//! `silt stats` and `silt levels`: print a store's levels and statistics, once or as a live screen.

pub mod jobs;
mod rates;
mod source;

use std::time::{Duration, Instant, UNIX_EPOCH};

use siltstone::stall::StallCause;
use siltstone::{ErrorKind, KeyspaceStats, LevelStats, Limit, Space, Stats};

use super::{is_own, no_keyspace, place};
use crate::args::{FiguresArgs, LevelsArgs, StatsArgs};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, nanos, on_terminal, one_line, outln, plural};
use rates::Rates;
use source::Sample;

/// Runs `silt stats`.
pub fn run(args: &StatsArgs) -> Result<Outcome, Failure> {
    show(&args.figures, &|out, sample, rates| {
        if args.figures.json {
            return outln!(out, "{}", json(sample));
        }
        outln!(out, "figures    {}", sample.source.line())?;
        if let Some(rates) = rates {
            rates.print(out)?;
        }
        print(out, &sample.stats, args.figures.keyspace.is_some())
    })
}

/// Runs `silt levels`.
pub fn run_levels(args: &LevelsArgs) -> Result<Outcome, Failure> {
    show(&args.figures, &|out, sample, _| {
        if args.figures.json {
            let all = json(sample);
            if args.figures.watch.is_none() {
                return outln!(out, "{}", all["keyspaces"]);
            }
            // What is going on between the levels, too.
            let shown = [
                "source",
                "keyspaces",
                "jobs",
                "queues",
                "waiting_jobs",
                "sides",
                "locations",
            ];
            // A store without a second location has no list of them.
            let shown = shown.into_iter().filter(|name| !all[*name].is_null());
            let shown = shown.map(|name| (name.to_string(), all[name].clone()));
            return outln!(out, "{}", serde_json::Value::from_iter(shown));
        }
        outln!(out, "{}", sample.source.line())?;
        for keyspace in &sample.stats.keyspaces {
            outln!(out)?;
            levels(out, &sample.stats, keyspace)?;
        }
        locations(out, &sample.stats)?;
        if args.figures.watch.is_some() {
            // What is going on between the levels.
            outln!(out)?;
            jobs::print(out, &sample.stats)?;
            jobs::print_link(out, &sample.stats)?;
        }
        Ok(())
    })
}

/// A sample as JSON: the store's own object, and the origin of the sample.
fn json(sample: &Sample) -> serde_json::Value {
    let mut json: serde_json::Value =
        serde_json::from_str(&sample.stats.to_json()).expect("it is JSON");
    json["source"] = sample.source.to_json();
    json
}

/// A function that prints one sample.
type Print<'a> = &'a dyn Fn(&mut Out, &Sample, Option<&Rates>) -> Result<(), Failure>;

/// How long `--watch` waits for a store that does not exist yet, and how often it looks for it.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
const STORE_LOOK: Duration = Duration::from_millis(100);

/// Shows figures once, or repeatedly.
fn show(args: &FiguresArgs, print: Print<'_>) -> Result<Outcome, Failure> {
    let patience = args.watch.map_or(Duration::ZERO, |_| STORE_PATIENCE);
    let mut last = first_figures(args, patience)?;
    let Some(every) = args.watch else {
        let mut out = Out::new();
        print(&mut out, &last, None)?;
        out.finish()?;
        return Ok(Outcome::Fine);
    };
    let screen = on_terminal() && !args.json;
    let mut rates = None;
    let mut failed: Option<Failure> = None;
    let mut next = Instant::now();
    loop {
        let mut out = if screen { Out::screen() } else { Out::new() };
        if screen {
            outln!(
                out,
                "{}  (every {}; end with Ctrl-C)\n",
                args.store.display(),
                duration(every)
            )?;
        }
        match &failed {
            None => print(&mut out, &last, rates.as_ref())?,
            Some(failure) if screen => outln!(out, "{failure}")?,
            Some(failure) => eprintln!("silt: {failure}"),
        }
        // A look that failed did not hold the store.
        let held = failed.as_ref().map_or(last.held, |_| Duration::ZERO);
        let pause = pause_after(held, every);
        if pause > every {
            let said = format!(
                "the last look took {}, in which no writer could open the store: the next one \
                 follows in {}",
                duration(held),
                duration(pause)
            );
            match args.json {
                true => eprintln!("silt: {said}"),
                false => outln!(out, "{said}")?,
            }
        }
        if !screen && !args.json {
            outln!(out)?;
        }
        out.finish()?;
        next = match pause > every {
            true => Instant::now() + pause,
            false => next + every,
        };
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        // After a pause (a stopped process, a suspended machine) missed samples are not made up
        // for.
        next = next.max(Instant::now() - every);
        match figures(args) {
            Ok(sample) => {
                // If the writer has not written a new sample yet, the old one keeps its rates.
                if !sample.is_same_as(&last) {
                    rates = Rates::between(&last, &sample);
                }
                last = sample;
                failed = None;
            }
            Err(failure) => failed = Some(failure),
        }
    }
}

/// A look at a store that no process has open reads its log and excludes writers meanwhile. The
/// pause after it is at least this many times as long as the look, so that writers can open the
/// store most of the time.
const PAUSE_PER_LOOK: u32 = 20;

/// How long to wait after a look that held the store for this time, if a look is wanted every
/// `every`.
fn pause_after(held: Duration, every: Duration) -> Duration {
    every.max(held.saturating_mul(PAUSE_PER_LOOK))
}

/// The first figures of a store. Here an error ends the command, while a later one may be
/// temporary. If the store does not exist yet, the command waits for it, because `--watch` is often
/// started before the program that creates the store.
fn first_figures(args: &FiguresArgs, patience: Duration) -> Result<Sample, Failure> {
    let start = Instant::now();
    let is_there = || place::has_store(&args.store);
    let mut is_said = false;
    loop {
        // Without patience nothing depends on it, and a device need not be asked.
        let was_there = patience.is_zero() || is_there();
        match figures(args) {
            Err(Failure::Store(error))
                if error.kind() == ErrorKind::NotFound
                    && !was_there
                    && start.elapsed() < patience =>
            {
                if !is_said {
                    eprintln!(
                        "silt: {}: there is no store yet; waiting up to {} s for it (end with \
                         Ctrl-C)",
                        args.store.display(),
                        patience.as_secs()
                    );
                    is_said = true;
                }
            }
            found => return found,
        }
        while !is_there() && start.elapsed() < patience {
            std::thread::sleep(STORE_LOOK);
        }
    }
}

/// The figures of a store: of the given keyspace, or of all keyspaces except those that tools keep
/// for themselves.
fn figures(args: &FiguresArgs) -> Result<Sample, Failure> {
    let mut sample = Sample::take(&args.store)?;
    let all = std::mem::take(&mut sample.stats.keyspaces);
    let names: Vec<String> = all.iter().map(|k| k.name.clone()).collect();
    sample.stats.keyspaces = match &args.keyspace {
        Some(name) => all.into_iter().filter(|k| k.name == *name).collect(),
        None => all.into_iter().filter(|k| !is_own(&k.name)).collect(),
    };
    if let (Some(name), []) = (&args.keyspace, &sample.stats.keyspaces[..]) {
        return Err(no_keyspace(name, &names).into());
    }
    Ok(sample)
}

/// Prints a store's statistics, or only those of its keyspaces.
fn print(out: &mut Out, stats: &Stats, shape_only: bool) -> Result<(), Failure> {
    outln!(out, "health     {}", stats.health)?;
    if let Some(since_us) = stats.unreachable_since_us {
        let since = UNIX_EPOCH + Duration::from_micros(since_us);
        let lasted = since.elapsed().unwrap_or_default();
        outln!(out, "storage    has not answered for {}", duration(lasted))?;
    }
    outln!(out, "published  sequence number {}", stats.published)?;
    for keyspace in &stats.keyspaces {
        outln!(out)?;
        levels(out, stats, keyspace)?;
    }
    if shape_only {
        return Ok(());
    }
    locations(out, stats)?;
    outln!(out)?;
    outln!(
        out,
        "memory     memtables {}, cached blocks {}, filters and indexes {}, jobs {}{}",
        bytes(stats.memory.memtable_bytes),
        bytes(stats.memory.block_cache_bytes),
        bytes(stats.memory.table_bytes),
        bytes(stats.memory.job_bytes),
        match stats.memory.max_bytes {
            0 => String::new(),
            max => format!(
                "; {} of {} allowed",
                bytes(stats.memory.counted_bytes()),
                bytes(max)
            ),
        }
    )?;
    space(out, stats)?;
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
    jobs::print(out, stats)?;
    jobs::print_link(out, stats)?;
    if let Some(error) = &stats.jobs_failing {
        outln!(out, "jobs       fail again and again: {error}")?;
    } else if let Some(error) = &stats.last_job_error {
        outln!(out, "last job   failed: {error}")?;
    }
    for difference in &stats.option_differences {
        outln!(out, "options    {difference}")?;
    }
    if let Some(error) = &stats.options_file_error {
        outln!(out, "options    the file cannot be read: {error}")?;
    }
    for keyspace in &stats.options_of_no_keyspace {
        outln!(
            out,
            "options    OPTIONS.toml sets options of `{}`: there is no keyspace of this name yet",
            keyspace.escape_default()
        )?;
    }
    latencies(out, stats)?;
    delays(out, stats)?;
    counters(out, stats)
}

/// Prints the space that the store's files take on disk.
fn space(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    let total = stats.space.total();
    if total.file_count == 0 {
        // The figures are from a writer that does not count the files.
        return Ok(());
    }
    let size = |s: Space| {
        format!(
            "{} in {}",
            bytes(s.file_bytes),
            plural(s.file_count, "file")
        )
    };
    outln!(out, "on disk    {}", size(total))?;
    for (name, part) in stats.space.parts() {
        if part.file_count > 0 {
            outln!(out, "           {name:<14}{}", size(part))?;
        }
    }
    Ok(())
}

/// Prints the levels of a keyspace.
pub fn levels(out: &mut Out, stats: &Stats, keyspace: &KeyspaceStats) -> Result<(), Failure> {
    let in_log = match keyspace.log_backed_memtable_count {
        0 => String::new(),
        count => format!(
            " ({count} of them left their values, {}, in the log)",
            bytes(keyspace.log_backed_bytes)
        ),
    };
    outln!(
        out,
        "keyspace `{}`: memtables {}, {} waiting for their flush{in_log}",
        one_line(&keyspace.name),
        bytes(keyspace.memtable_bytes),
        keyspace.sealed_memtable_count
    )?;
    let row = |out: &mut Out, name: &str, cells: [String; 7]| {
        let [runs, tables, file, raw, entries, deletes, score] = cells;
        let line = format!(
            "  {name:>5}{runs:>8}{tables:>9}{file:>13}{raw:>13}{entries:>16}{deletes:>15}{score:>8}"
        );
        outln!(out, "{}", line.trim_end())
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
            "score",
        ]
        .map(String::from),
    )?;
    let cells = |level: &LevelStats, score: Option<&f64>| {
        [
            count(level.run_count),
            count(level.table_count),
            bytes(level.file_bytes),
            bytes(level.raw_bytes),
            count(level.entry_count),
            count(level.range_delete_count),
            score.map_or(String::new(), |score| format!("{score:.2}")),
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
            let score = keyspace.level_scores.get(number);
            row(out, &number.to_string(), cells(level, score))?;
        }
    }
    row(out, "all", cells(&total, None))?;
    pressure(out, keyspace, stats.open_us)
}

/// Prints the locations of tables, if the store has a second one.
fn locations(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    if stats.locations.is_empty() {
        return Ok(());
    }
    outln!(out)?;
    outln!(out, "locations of tables")?;
    for location in &stats.locations {
        let state = match (location.is_lost, location.is_suspended) {
            (true, _) => ", not used until the store is opened again",
            (false, true) => ", suspended because flushes there failed",
            (false, false) => "",
        };
        let free = location.free_bytes;
        let free = free.map_or(String::new(), |free| format!(", {} free", bytes(free)));
        let rate = location.flush_bytes_per_s;
        let rate = rate.map_or(String::new(), |rate| format!(", {} a second", bytes(rate)));
        outln!(
            out,
            "  {}  {}: {} in {}{free}{rate}{state}",
            location.location,
            location.path,
            plural(location.table_count, "table"),
            bytes(location.table_bytes)
        )?;
        if location.location > 0 {
            outln!(
                out,
                "     {} flushed there, {} brought back",
                bytes(location.flushed_bytes),
                bytes(location.returned_bytes)
            )?;
        }
    }
    Ok(())
}

/// How long something has lasted that began at `since_us` and goes on at `now_us`.
fn lasts(since_us: Option<u64>, now_us: u64) -> String {
    match since_us {
        Some(since) => {
            let lasted = Duration::from_micros(now_us.saturating_sub(since));
            format!(" for {}", duration(lasted))
        }
        None => String::new(),
    }
}

/// Prints how near the writers of a keyspace are to waiting, in a store that has been open for
/// `open_us` microseconds.
fn pressure(out: &mut Out, keyspace: &KeyspaceStats, open_us: u64) -> Result<(), Failure> {
    let pressure = &keyspace.pressure;
    for limit in &pressure.limits {
        let (name, value): (&str, fn(u64) -> String) = match limit.limit {
            Limit::Memory => ("memory of memtables", bytes),
            Limit::L0Depth => ("depth of level 0", count),
            Limit::PendingBytes => ("to compact", bytes),
            Limit::LogBytes => ("log", bytes),
            Limit::Space => ("free space", bytes),
        };
        if limit.limit == Limit::Space && limit.left_us.is_none() {
            continue;
        }
        let left = match limit.left_us {
            None => String::new(),
            Some(0) => ", reached: writers wait or are slowed down".to_string(),
            Some(us) => format!(", reached in {}", duration(Duration::from_micros(us))),
        };
        let of = match limit.limit {
            Limit::Space => "above",
            _ => "of",
        };
        let (load, bound) = (value(limit.load), value(limit.bound));
        outln!(out, "  {name:<20}{load:>12} {of} {bound}{left}")?;
    }
    if pressure.is_behind {
        outln!(
            out,
            "  flushes have been behind{}: {} a second are written and {} flushed",
            lasts(pressure.behind_since_us, open_us),
            bytes(pressure.written_bytes_per_s),
            bytes(pressure.flushed_bytes_per_s)
        )?;
    }
    if let Some(limit) = pressure.stall_ahead {
        let lasts = lasts(pressure.stall_ahead_since_us, open_us);
        outln!(out, "  a stall has been ahead{lasts}: {}", limit.word())?;
    }
    Ok(())
}

/// Prints the counters that are not zero.
fn counters(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    outln!(out)?;
    outln!(
        out,
        "counters since the store was opened (without those that are zero)"
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

/// Prints latencies.
fn latencies(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    outln!(out)?;
    let row = |out: &mut Out, name: &str, cells: [String; 6]| {
        let [observed, p50, p90, p99, p999, max] = cells;
        outln!(
            out,
            "  {name:<12}{observed:>14}{p50:>11}{p90:>11}{p99:>11}{p999:>11}{max:>11}"
        )
    };
    let head = ["observed", "p50", "p90", "p99", "p99.9", "max"];
    row(out, "latency", head.map(String::from))?;
    for (name, l) in &stats.latencies {
        let figures = [l.p50_ns, l.p90_ns, l.p99_ns, l.p999_ns, l.max_ns];
        let [p50, p90, p99, p999, max] = figures.map(|ns| match l.count {
            0 => "-".to_string(),
            _ => nanos(ns),
        });
        row(out, name, [count(l.count), p50, p90, p99, p999, max])?;
    }
    Ok(())
}

/// The number of delays that are shown one by one.
const DELAYS_SHOWN: usize = 5;

/// Prints delays of writers: totals by cause, with the meaning of each; those of writers that wait
/// now; and the latest ones.
fn delays(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    outln!(out)?;
    if stats.delay_totals.iter().all(|(_, total)| total.count == 0) {
        return outln!(out, "delays of writers: none");
    }
    outln!(
        out,
        "  {:<20}{:>10}{:>12}{:>12}",
        "delays by cause",
        "count",
        "total",
        "longest"
    )?;
    for (cause, total) in &stats.delay_totals {
        if total.count == 0 {
            continue;
        }
        outln!(
            out,
            "  {:<20}{:>10}{:>12}{:>12}  {}",
            cause.word(),
            count(total.count),
            nanos(total.total_us.saturating_mul(1000)),
            nanos(total.max_us.saturating_mul(1000)),
            cause.meaning()
        )?;
    }
    let (waiting, past): (Vec<_>, Vec<_>) = stats.delays.iter().partition(|d| d.waiting);
    if stats.waiting_writer_count > 0 {
        outln!(
            out,
            "  writers that wait now: {}",
            count(stats.waiting_writer_count)
        )?;
    }
    let past = &past[past.len().saturating_sub(DELAYS_SHOWN)..];
    let (turns, past): (Vec<_>, Vec<_>) = past.iter().copied().partition(|d| d.keyspace.is_empty());
    for delay in turns {
        outln!(
            out,
            "  all writers waited {}: {}",
            nanos(delay.duration_us.saturating_mul(1000)),
            delay.cause.word()
        )?;
    }
    for (what, delay) in waiting
        .iter()
        .map(|d| ("waits for", d))
        .chain(past.iter().map(|d| ("waited", d)))
    {
        outln!(
            out,
            "  `{}` {what} {}: {} with {} sealed memtables, depth {} in level 0, {} to compact, {} \
             of log (limit {})",
            delay.keyspace,
            nanos(delay.duration_us.saturating_mul(1000)),
            delay.cause.word(),
            count(delay.load.sealed_memtable_count),
            count(delay.load.l0_depth),
            bytes(delay.load.pending_bytes),
            bytes(delay.load.log_bytes),
            match delay.cause {
                StallCause::SealedMemtables | StallCause::L0Slowdown | StallCause::L0Stop => {
                    count(delay.limit)
                }
                StallCause::MemtableSlowdown if delay.limit < 1000 => count(delay.limit),
                _ => bytes(delay.limit),
            }
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_a_look_takes_the_rarer_it_is() {
        let every = Duration::from_secs(1);
        let look = Duration::from_millis;
        assert_eq!(pause_after(look(0), every), every);
        assert_eq!(pause_after(look(50), every), every);
        assert_eq!(pause_after(look(700), every), Duration::from_secs(14));
    }
}
