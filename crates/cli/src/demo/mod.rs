//! `silt demo`: shows the whole store at work on data from a simulation, and verifies every claim.
//!
//! The demo has four sections. [`simulate`] writes a plasma into a new store. [`reads`] reads it
//! back and compares every byte with the simulation. [`crash`] repeatedly kills a writer process
//! with SIGKILL in the middle of its work, and compares everything that was acknowledged. The end
//! prints what was measured and what to try next. With `--policy` it shows a [`burst`] instead. A
//! recorder keeps what happens in all sections, for the HTML [`report`].
//!
//! Invariants: nothing is claimed that was not compared; the first difference ends the demo with
//! the seed that shows it again; an existing folder with anything in it is never touched.

mod burst;
mod crash;
mod device;
mod live;
mod particles;
mod pictures;
mod plan;
mod reads;
mod report;
mod script;
mod simulate;
pub mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone::{Options, Store};

use crate::args::DemoArgs;
use crate::commands::opened::Opened;
use crate::commands::place::refuse_url_for;
use crate::commands::stats::jobs::work_lines;
use crate::commands::{gpu, open_local};
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, nanos, outln};
use crate::report::Place;
use crate::report::record::{Recorder, Sampler};
use device::{DemoDevice, Moves, Seen};
use plan::Plan;

/// Prints a line without buffering, so that users see it at once.
fn say_line(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = Out::new();
    outln!(out, "{text}")?;
    out.finish()
}

macro_rules! say {
    ($($arg:tt)*) => { $crate::demo::say_line(format_args!($($arg)*)) };
}
use say;

/// A difference between what the store returned and what it should return.
fn wrong(what: impl fmt::Display, seed: u64) -> Failure {
    Failure::Other(format!(
        "the demo found a difference: {what}; seed {seed} shows it again"
    ))
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let plan = Plan::of(args);
    if let Some(store) = &args.store {
        refuse_url_for(store, "`silt demo` makes its store in a local folder")?;
    }
    if let Some(policy) = args.policy {
        return burst::run(args, policy);
    }
    let path = place(args.store.as_deref())?;
    let file = match &args.report {
        Some(file) => Place::asked(file)?,
        None => Place::beside(&path)?,
    };
    say!(
        "siltstone demo: {} particles, {} dumps of them, seed {}",
        count(plan.particles),
        plan.dump_steps.len(),
        plan.seed
    )?;
    say!("store: {}", path.display())?;

    let options = Options {
        error_if_exists: true,
        ..plan.options()
    };
    let recorder = Arc::new(Recorder::new());
    let device = start_device(args, &path)?;
    let executors = gpu::executors(&args.gpu)?;
    for executor in &executors {
        say!(
            "gpu: {}, which may run compactions once the driver has compiled the kernels",
            executor.name()
        )?;
    }
    let store = match &device {
        Some(device) => Opened::from(device.open(&path, options, executors)?),
        None => Opened::from(open_local(&path, &options, &executors)?),
    };
    let sampler = Sampler::start(&recorder, Some((recorder.opened(), Store::clone(&store))));
    let moves = device.as_ref();
    let moves = moves.map(|_| Moves::start(Store::clone(&store), &recorder));
    let (particles, written) = simulate::run(&plan, &store, &recorder)?;
    let read = reads::run(&plan, &store, particles, &recorder)?;
    sampler.stop();
    let moved = moves.map(Moves::stop);
    let stats = store.stats();
    store.close()?;
    drop(device);
    let crashed = crash::run(&plan, &path, &read.particles, &recorder)?;

    say!("\n4  what was measured")?;
    let mut out = Out::new();
    let row =
        |out: &mut Out, name: &str, value: fmt::Arguments<'_>| outln!(out, "  {name:<22}{value}");
    row(
        &mut out,
        "written",
        format_args!(
            "{} pairs ({}) in {}: {} pairs a second while writing",
            count(written.pairs),
            bytes(written.pair_bytes),
            duration(written.writing),
            crate::output::rate(written.pairs, written.writing)
        ),
    )?;
    row(
        &mut out,
        "write amplification",
        format_args!(
            "{:.2} (flush and compaction; the log adds {:.2})",
            stats.write_amplification(),
            stats.counter("log_bytes") as f64 / stats.counter("user_bytes").max(1) as f64
        ),
    )?;
    row(&mut out, "point reads", format_args!("{}", read.hits))?;
    row(&mut out, "absent keys", format_args!("{}", read.misses))?;
    row(
        &mut out,
        "range scans",
        format_args!(
            "{} pairs in {}: {} pairs a second",
            count(read.scanned),
            duration(read.scanning),
            crate::output::rate(read.scanned, read.scanning)
        ),
    )?;
    if let Some(put) = stats.latencies.get("put").filter(|l| l.count > 0) {
        row(
            &mut out,
            "batches written",
            format_args!(
                "p50 {}, p99 {}, p99.9 {}, max {}",
                nanos(put.p50_ns),
                nanos(put.p99_ns),
                nanos(put.p999_ns),
                nanos(put.max_ns)
            ),
        )?;
    }
    device_rows(&mut out, &stats, moved.as_ref())?;
    gpu_rows(&mut out, &stats)?;
    // These figures include the killed writers, as in the report.
    let delay_totals = recorder.delay_totals();
    for total in &delay_totals {
        row(
            &mut out,
            "writers delayed",
            format_args!(
                "{} times by {}: {} in all, the longest {}",
                count(total.count),
                total.cause,
                nanos(total.total_us * 1000),
                nanos(total.max_us * 1000)
            ),
        )?;
    }
    if delay_totals.is_empty() {
        row(&mut out, "writers delayed", format_args!("never"))?;
    }
    row(
        &mut out,
        "killed",
        format_args!(
            "{} times; {} acknowledged batches, all there; opened again in {} at most",
            crashed.kills.len(),
            count(crashed.acknowledged),
            duration(crashed.slowest_open)
        ),
    )?;
    row(
        &mut out,
        "the demo took",
        format_args!("{}", duration(start.elapsed())),
    )?;
    outln!(out)?;
    try_next(&mut out, &path)?;
    out.finish()?;
    let results = report::Results {
        plan: &plan,
        path: &path,
        stats: &stats,
        moved: moved.as_ref(),
        delay_totals,
        written: &written,
        read,
        crashed,
    };
    let report = report::of(results, &recorder)?;
    let place = file.path().to_path_buf();
    file.write(&report)?;
    say!(
        "\nThe report, with charts of all this and pictures of the plasma: {}",
        place.display()
    )?;
    say!("  open it in a browser: {}", url(&place))?;
    Ok(Outcome::Fine)
}

/// Starts the device, if one is asked for.
fn start_device(args: &DemoArgs, path: &Path) -> Result<Option<DemoDevice>, Failure> {
    if !args.device {
        return Ok(None);
    }
    // A device shares only a folder that exists.
    std::fs::create_dir_all(path).map_err(|e| Failure::file(path, &e))?;
    let device = DemoDevice::start(path)?;
    say!(
        "device: process {}, which shares the store's folder and runs compactions in it",
        device.pid()
    )?;
    Ok(Some(device))
}

/// Prints what the device did. That its tables are right was compared by the sections.
fn device_rows(
    out: &mut Out,
    stats: &siltstone::Stats,
    moved: Option<&Seen>,
) -> Result<(), Failure> {
    let (Some(side), Some(moved)) = (device::side(stats), moved) else {
        return Ok(());
    };
    let all: u64 = stats.sides.iter().map(|side| side.compaction_count).sum();
    outln!(
        out,
        "  {:<22}{} of {}: {} in, {} out, processor time {} there and {} here; {} seen running",
        "compactions on device",
        count(side.compaction_count),
        count(all),
        bytes(side.compaction_in_bytes),
        bytes(side.compaction_out_bytes),
        duration(Duration::from_micros(side.compaction_cpu_us)),
        duration(Duration::from_micros(side.host_cpu_us)),
        count(moved.count)
    )?;
    if side.compaction_count == 0 {
        outln!(
            out,
            "  {:<22}its compactions had ended sooner on the host each time",
            ""
        )?;
    }
    Ok(())
}

/// Prints what a GPU did, or why it did nothing.
fn gpu_rows(out: &mut Out, stats: &siltstone::Stats) -> Result<(), Failure> {
    for side in stats.sides.iter().filter(|side| side.side == "gpu") {
        let mut title = format!("compactions on {}", side.name);
        for line in work_lines(side) {
            outln!(out, "  {title:<22}{line}")?;
            title.clear();
        }
    }
    Ok(())
}

fn try_next(out: &mut Out, path: &Path) -> Result<(), Failure> {
    let store = path.display();
    outln!(
        out,
        "The store stays for you to look at and delete: {store}"
    )?;
    outln!(out, "  silt stats {store}")?;
    outln!(out, "  silt check {store}")?;
    outln!(
        out,
        "  silt scan {store} -k {} --limit 5",
        script::KEYSPACES[0]
    )?;
    outln!(
        out,
        "  silt scan {store} --hex --prefix 0000000000000001 --limit 3    (dump 1, the first \
        particles)"
    )?;
    outln!(
        out,
        "  silt load words.silt /usr/share/dict/words && silt scan words.silt --prefix ze"
    )
}

/// A file's address for a browser.
fn url(path: &Path) -> String {
    use std::fmt::Write;
    use std::os::unix::ffi::OsStrExt;
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let mut url = "file://".to_string();
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(*byte));
            }
            // Writing to a string cannot fail.
            _ => write!(url, "%{byte:02X}").unwrap_or_default(),
        }
    }
    url
}

/// The folder for the store: the given one, if it is empty, or a new one.
fn place(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(path) = asked else {
        let base = std::env::temp_dir();
        let pid = std::process::id();
        for attempt in 0..1000 {
            let path = base.join(format!("silt-demo-{pid}-{attempt}"));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::file(&path, &e)),
            }
        }
        return Err(Failure::Other(format!(
            "{}: no free name for the demo's folder; give one with --store",
            base.display()
        )));
    };
    match std::fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(path.to_path_buf()),
            Some(_) => Err(Failure::Other(format!(
                "{} is not empty; the demo needs an empty folder or one that does not exist yet, \
                so that it harms nothing",
                path.display()
            ))),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(path.to_path_buf()),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => Err(Failure::Other(format!(
            "{}: it is not a folder; the demo needs an empty folder or one that does not exist yet",
            path.display()
        ))),
        Err(e) => Err(Failure::file(path, &e)),
    }
}

/// Latencies of calls, each measured.
#[derive(Debug, Default)]
struct Latencies {
    ns: Vec<u64>,
    total: Duration,
}

impl Latencies {
    fn add(&mut self, time: Duration) {
        self.total += time;
        self.ns
            .push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }

    fn finish(mut self) -> Self {
        self.ns.sort_unstable();
        self
    }

    /// The time in nanoseconds that a share of the calls took at most. Call this after the
    /// measurement has ended.
    fn at(&self, share: f64) -> u64 {
        let rank = (self.ns.len() as f64 * share).ceil() as usize;
        self.ns.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |share: f64| nanos(self.at(share));
        write!(
            f,
            "{} in {}: p50 {}, p99 {}, p99.9 {}, max {}",
            count(self.ns.len() as u64),
            duration(self.total),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        )
    }
}

/// A small generator for choices that a seed repeats (splitmix64).
#[derive(Clone, Debug)]
struct Draw(u64);

impl Draw {
    fn new(parts: &[u64]) -> Draw {
        let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
        for part in parts {
            draw.0 ^= *part;
            draw.0 = draw.next();
        }
        draw
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, which is not 0.
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles() {
        let mut latencies = Latencies::default();
        (1..=1000)
            .rev()
            .for_each(|ns| latencies.add(Duration::from_nanos(ns)));
        let text = latencies.finish().to_string();
        assert_eq!(
            text,
            "1,000 in 500.5 us: p50 500 ns, p99 990 ns, p99.9 999 ns, max 1.0 us"
        );
        assert!(
            Latencies::default()
                .finish()
                .to_string()
                .starts_with("0 in")
        );
    }

    #[test]
    fn addresses_of_files() {
        assert_eq!(
            url(Path::new("/tmp/a b/ü#.html")),
            "file:///tmp/a%20b/%C3%BC%23.html"
        );
    }

    #[test]
    fn draws_are_even_and_repeat() {
        let mut counts = [0u32; 7];
        let mut draw = Draw::new(&[1, 2, 3]);
        (0..70_000).for_each(|_| counts[draw.below(7) as usize] += 1);
        assert!(
            counts.iter().all(|c| (9_500..10_500).contains(c)),
            "{counts:?}"
        );
        assert_eq!(Draw::new(&[5, 6]).next(), Draw::new(&[5, 6]).next());
        assert_ne!(Draw::new(&[5, 6]).next(), Draw::new(&[6, 5]).next());
    }
}
