//! The demo's report: combines the results of its sections.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use siltstone::{Options, Stats};

use super::crash::Crashed;
use super::device::Seen;
use super::plan::Plan;
use super::reads::Read;
use super::simulate::Written;
use super::{Latencies, script};
use crate::failure::Failure;
use crate::output::count;
use crate::report::machine;
use crate::report::model::{DelayTotal, Facts, Headline, Latency, Report};
use crate::report::number::{bytes, nanos};
use crate::report::record::Recorder;
use siltstone_bench::draw::number::Unit;

/// The shares at which the demo's own latencies are drawn; they are enough for a smooth line.
const SHARES: [f64; 13] = [
    0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999, 0.9995, 0.9999,
];

/// The input of the report.
pub struct Results<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The path of the store.
    pub path: &'a Path,
    /// The store's statistics before the kills.
    pub stats: &'a Stats,
    /// The jobs that were seen on the device, if there is one.
    pub moved: Option<&'a Seen>,
    /// Delays of writers by cause, over the whole run.
    pub delay_totals: Vec<DelayTotal>,
    /// The first section's results,
    pub written: &'a Written,
    /// the second's,
    pub read: Read,
    /// and the third's.
    pub crashed: Crashed,
}

/// Makes the report.
pub fn of(results: Results<'_>, recorder: &Recorder) -> Result<Report, Failure> {
    let headlines = headlines(&results);
    let facts = facts(&results)?;
    let Results {
        written,
        read,
        crashed,
        ..
    } = results;
    let kills = crashed.kills.len() as u64;
    let timeline = recorder.finish();
    let compared = timeline.reads.last().map_or(0, |r| r.1);
    let verdict = format!(
        "No difference was found: {} pairs were read back and compared, byte by byte, with the \
        simulation and the scripts.{}",
        count(compared),
        match kills {
            0 => String::new(),
            n => format!(
                " A writer process was killed {} in the middle of its work; all of its {} \
                acknowledged batches were there afterwards, whole.",
                times(n),
                count(crashed.acknowledged)
            ),
        }
    );
    let mut writes = vec![recorder.writes("the plasma and later changes", 0..1)];
    let openings = recorder.openings();
    if openings > 1 {
        let name = format!("the writers that were killed ({kills})");
        writes.push(recorder.writes(&name, 1..openings));
    }
    let mut plasma = read.plasma;
    plasma.field_energy.clone_from(&written.field_energy);
    plasma.growth = written.growth;
    let mut latencies = vec![
        latency(
            "get, found",
            "a random key that exists; every call was timed, from outside",
            &read.hits,
        ),
        latency(
            "get, absent",
            "a key that was never written, between two that were; every call was timed, from \
            outside",
            &read.misses,
        ),
    ];
    // The store's own latencies of gets agree, for both kinds together and within an eighth.
    let own = recorder.latencies(0);
    latencies.extend(own.into_iter().filter(|l| l.name != "get"));
    Ok(Report {
        title: "siltstone demo".to_string(),
        verdict,
        made_unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
        headlines,
        timeline,
        latencies,
        writes,
        kills: crashed.kills,
        plasma: Some(plasma),
        facts,
    })
}

fn times(n: u64) -> String {
    match n {
        1 => "once".to_string(),
        n => format!("{} times", count(n)),
    }
}

fn latency(name: &str, what: &str, latencies: &Latencies) -> Latency {
    let ns = &latencies.ns;
    let mean = latencies.total.as_nanos() / ns.len().max(1) as u128;
    Latency {
        name: name.to_string(),
        what: what.to_string(),
        count: ns.len() as u64,
        mean_ns: u64::try_from(mean).unwrap_or(u64::MAX),
        max_ns: latencies.at(1.0),
        points: SHARES.iter().map(|q| (*q, latencies.at(*q))).collect(),
    }
}

fn duration(d: Duration) -> String {
    Unit::Seconds.show(d.as_secs_f64())
}

fn per_second(n: u64, time: Duration) -> String {
    Unit::PerSecond.show(n as f64 / time.as_secs_f64().max(1e-9))
}

fn headlines(results: &Results<'_>) -> Vec<Headline> {
    let headline = |label: &str, value: String, note: String| Headline {
        label: label.to_string(),
        value,
        note,
    };
    let (written, read, stats) = (results.written, &results.read, results.stats);
    let delays = results.delay_totals.iter();
    let (delays, waited) = delays.fold((0, 0), |(n, us), t| (n + t.count, us + t.total_us));
    let mut headlines = vec![
        headline(
            "written",
            per_second(written.pairs, written.writing),
            format!(
                "{} pairs, {}, in {} of writing",
                count(written.pairs),
                bytes(written.pair_bytes),
                duration(written.writing)
            ),
        ),
        headline(
            "scanned",
            per_second(read.scanned, read.scanning),
            format!("{} pairs, each compared", count(read.scanned)),
        ),
        headline(
            "get",
            nanos(read.hits.at(0.5)),
            format!(
                "the median; p99 {}, longest {}",
                nanos(read.hits.at(0.99)),
                nanos(read.hits.at(1.0))
            ),
        ),
        headline(
            "write amplification",
            format!("{:.2}", stats.write_amplification()),
            "bytes written to tables for each byte given; the log is not included".to_string(),
        ),
        headline(
            "writers delayed",
            match delays {
                0 => "never".to_string(),
                n => times(n),
            },
            match delays {
                0 => "over the whole run, the killed writers included".to_string(),
                _ => format!(
                    "{} in all, over the whole run, the killed writers included",
                    nanos(waited * 1000)
                ),
            },
        ),
    ];
    if let (Some(side), Some(_)) = (super::device::side(stats), results.moved) {
        let all: u64 = stats.sides.iter().map(|side| side.compaction_count).sum();
        headlines.push(headline(
            "compactions on the device",
            format!("{} of {}", count(side.compaction_count), count(all)),
            format!(
                "{} of tables merged in another process",
                bytes(side.compaction_in_bytes)
            ),
        ));
    }
    if !results.crashed.kills.is_empty() {
        headlines.push(headline(
            "kill \u{2212}9 survived",
            times(results.crashed.kills.len() as u64),
            format!(
                "opened again in {} at most",
                duration(results.crashed.slowest_open)
            ),
        ));
    }
    headlines
}

fn facts(results: &Results<'_>) -> Result<Vec<Facts>, Failure> {
    let (plan, options) = (results.plan, results.plan.options());
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut real = vec![row(
        "processor, memory",
        "real: everything ran on the cores of this machine".to_string(),
    )];
    if let Some(file_system) = machine::file_system(results.path) {
        real.push(row("files", format!("real: {file_system}")));
    }
    for side in &results.stats.sides {
        let speed = |speed: Option<f64>, kind: &str| {
            speed.map_or(String::new(), |speed| {
                format!(", {}/s at {kind}", bytes(speed as u64))
            })
        };
        real.push(row(
            "jobs were executed by",
            format!(
                "{} ({}){}{}",
                side.name,
                side.side,
                speed(side.flush_bytes_per_s, "flushes"),
                speed(side.compaction_bytes_per_s, "compactions")
            ),
        ));
    }
    real.extend([
        row(
            "GPU",
            "none: this version has no executor for one".to_string(),
        ),
        row(
            "device",
            match results.moved {
                Some(_) => "real: another process, over a Unix socket, in the store's folder",
                None => "none in this run; `silt demo --device` starts one",
            }
            .to_string(),
        ),
        row("kills", "real: SIGKILL to a process of its own".to_string()),
        row(
            "power loss",
            "not tested here; the sync mode is “never”, which waits for no drive".to_string(),
        ),
        row(
            "plasma",
            "computed: a simulation of particles made the records".to_string(),
        ),
    ]);
    let run = vec![
        row("seed", plan.seed.to_string()),
        row(
            "particles",
            format!("{}, {} dumps", count(plan.particles), plan.dump_steps.len()),
        ),
        row(
            "pair",
            "16 bytes of key (dump, particle), 32 of value".to_string(),
        ),
        row("point reads", count(plan.reads)),
        row("short scans", count(plan.scans)),
        row("kills", plan.kills.to_string()),
        row(
            "keyspaces",
            format!("default, {}", script::KEYSPACES.join(", ")),
        ),
        row(
            "store",
            std::path::absolute(results.path)
                .unwrap_or_else(|_| results.path.to_path_buf())
                .display()
                .to_string(),
        ),
    ];
    let facts = |title: &str, rows: Vec<(String, String)>, text: String| Facts {
        title: title.to_string(),
        rows,
        text,
    };
    let writer = Plan::writer_options();
    let device = results
        .moved
        .and_then(|moved| device_rows(results.stats, moved));
    let device = device.map(|rows| facts("Jobs that moved to the device", rows, String::new()));
    let mut all = vec![
        machine::machine(),
        machine::program(),
        facts("What was real", real, String::new()),
        facts("Run", run, String::new()),
    ];
    all.extend(device);
    all.extend([
        facts(
            "Settings that are not the defaults",
            changed(&options)?,
            String::new(),
        ),
        facts(
            "Settings of the writers that were killed",
            changed(&writer)?,
            String::new(),
        ),
        facts("All settings of the store", Vec::new(), options.to_toml()),
    ]);
    Ok(all)
}

/// What the device did, and its first jobs.
fn device_rows(stats: &Stats, moved: &Seen) -> Option<Vec<(String, String)>> {
    let side = super::device::side(stats)?;
    let all: u64 = stats.sides.iter().map(|side| side.compaction_count).sum();
    let us = |us: u64| nanos(us.saturating_mul(1000));
    let mut rows = vec![(
        "in all".to_string(),
        format!(
            "{} of {} compactions, {} in, {} out; processor time {} there and {} of the host",
            count(side.compaction_count),
            count(all),
            bytes(side.compaction_in_bytes),
            bytes(side.compaction_out_bytes),
            us(side.compaction_cpu_us),
            us(side.host_cpu_us)
        ),
    )];
    if let Some(saved) = side.saved_cpu_us.filter(|saved| *saved > 0) {
        let saved = format!("about {}", us(saved.unsigned_abs()));
        rows.push(("processor time that the host saved".to_string(), saved));
    }
    rows.extend(moved.first.iter().map(|(at_s, what, why)| {
        let why = match why.is_empty() {
            true => String::new(),
            false => format!(" ({why})"),
        };
        (format!("at {at_s:.2} s"), format!("{what}{why}"))
    }));
    Some(rows)
}

/// The settings that differ from the defaults, each followed by its default.
fn changed(options: &Options) -> Result<Vec<(String, String)>, Failure> {
    let table = |options: &Options| {
        options
            .to_toml()
            .parse::<toml::Table>()
            .map_err(|e| Failure::Other(format!("the settings as TOML: {e}")))
    };
    let (present, default) = (table(options)?, table(&Options::default())?);
    let differs = present
        .iter()
        .filter(|(name, value)| default.get(*name) != Some(*value));
    Ok(differs
        .map(|(name, value)| {
            let usual = default.get(name);
            let plain = |value: &toml::Value| match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            let usual = usual.map_or("not set".to_string(), plain);
            (name.clone(), format!("{} (default {usual})", plain(value)))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_differ_are_shown_with_their_default() {
        assert_eq!(changed(&Options::default()).unwrap(), []);
        let rows = changed(&Plan::writer_options()).unwrap();
        let memtable = rows.iter().find(|(name, _)| name == "memtable_bytes");
        let shown = &memtable.unwrap().1;
        assert!(shown.contains("default"), "{shown}");
        assert!(!rows.iter().any(|(name, _)| name == "block_cache_bytes"));
    }

    #[test]
    fn latencies_have_all_their_points() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|n| latencies.add(std::time::Duration::from_nanos(n)));
        let shown = latency("a", "b", &latencies.finish());
        assert_eq!(
            (shown.count, shown.mean_ns, shown.max_ns),
            (1000, 500, 1000)
        );
        assert_eq!(shown.at(0.5), Some(500));
        assert_eq!(shown.at(0.99), Some(990));
        assert_eq!(latency("", "", &Latencies::default()).max_ns, 0);
    }
}
