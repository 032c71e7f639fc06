//! Shows the progress of the demo: a line that is redrawn on a terminal, and a line each second
//! elsewhere.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::{JobStats, Stats, Store};

use super::{device, say};
use crate::commands::stats::jobs::name_of;
use crate::failure::Failure;
use crate::output::{count, nanos, rate};

/// The progress, shared by the threads that work and the thread that shows it.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of pairs that were written.
    pub pairs: AtomicU64,
    /// The dump that is being written or computed, from 0.
    pub dump: AtomicU64,
    /// Whether the simulation is computing, and the writers are not writing.
    pub computing: AtomicBool,
    /// Set at the end.
    pub done: AtomicBool,
}

/// Shows the progress until the work is done.
pub fn watch(progress: &Progress, store: &Store, pairs: u64, dumps: usize) -> Result<(), Failure> {
    let bar = io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::with_draw_target(Some(pairs), ProgressDrawTarget::stderr_with_hz(8));
        let style = ProgressStyle::with_template("  {bar:24} {percent:>3}% {prefix}\n  {wide_msg}");
        bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
    });
    let every = Duration::from_millis(if bar.is_some() { 200 } else { 1000 });
    let start = Instant::now();
    let (mut last, mut last_pairs) = (start, 0);
    while !progress.done.load(Ordering::Acquire) {
        // Sleep for short times, so that the end is noticed soon.
        std::thread::sleep(Duration::from_millis(20));
        let now = Instant::now();
        if now - last < every {
            continue;
        }
        let written = progress.pairs.load(Ordering::Relaxed);
        let doing = if progress.computing.load(Ordering::Relaxed) {
            "computing".to_string()
        } else {
            format!("{} pairs/s", rate(written - last_pairs, now - last))
        };
        let dump = progress.dump.load(Ordering::Relaxed) + 1;
        let work = format!("dump {dump}/{dumps}: {} pairs, {doing}", count(written));
        let state = summary(&store.stats());
        (last, last_pairs) = (now, written);
        match &bar {
            Some(bar) => {
                bar.set_position(written);
                bar.set_prefix(work);
                bar.set_message(state);
            }
            None => say!("  {:5.1} s  {work}; {state}", (now - start).as_secs_f64())?,
        }
    }
    if let Some(bar) = bar {
        bar.finish_and_clear();
    }
    Ok(())
}

/// Levels, jobs and delays in one line.
pub fn summary(stats: &Stats) -> String {
    let mut levels = Vec::new();
    for keyspace in &stats.keyspaces {
        for (number, level) in keyspace
            .levels
            .iter()
            .enumerate()
            .filter(|(_, l)| l.table_count > 0)
        {
            if levels.len() <= number {
                levels.resize(number + 1, 0);
            }
            levels[number] += level.table_count;
        }
    }
    let levels: Vec<String> = levels
        .iter()
        .enumerate()
        .filter(|(_, n)| **n > 0)
        .map(|(i, n)| format!("L{i} {n}"))
        .collect();
    let levels = if levels.is_empty() {
        "no tables".to_string()
    } else {
        format!("tables {}", levels.join(" "))
    };
    let jobs = match &stats.jobs[..] {
        [] => "no job".to_string(),
        [job] => format!("job: {}", placed(job)),
        jobs => format!(
            "jobs: {}",
            jobs.iter().map(placed).collect::<Vec<_>>().join(", ")
        ),
    };
    let (delays, us) = stats
        .delay_totals
        .iter()
        .fold((0, 0), |(n, us), (_, t)| (n + t.count, us + t.total_us));
    let delays = match delays {
        0 => "no delays".to_string(),
        n => format!("{} delays ({})", count(n), nanos(us * 1000)),
    };
    let shares = device::shares(stats).map_or(String::new(), |shares| format!("; {shares}"));
    format!("{levels}; {jobs}{shares}; {delays}")
}

/// A job, and where it runs if that is not the host.
fn placed(job: &JobStats) -> String {
    match job.side == "device" {
        true => format!("{} on the device", name_of(job)),
        false => name_of(job),
    }
}
