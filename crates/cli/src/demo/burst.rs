//! `silt demo --policy NAME`: a burst of puts on a slow disk, under the policy `stop` and under
//! another one.
//!
//! Each policy gets the same burst in a store of its own: many memtables of values, as fast as one
//! writer can, while a reader reads what was written. The disk is a stand-in: files of this machine
//! behind a limit of written bytes a second, so that the burst is faster than the disk on every
//! machine. Afterwards the store does the work that was postponed, and every value is compared.
//!
//! Threading: for each policy a writer and a reader.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use siltstone::stall::StallCause;
use siltstone::storage::{FileStorage, RatedStorage, Rates, Runtime};
use siltstone::{Components, Keyspace, Options, StallPolicy, Stats, Store, SyncMode};

use super::{place, say, url, wrong};
use crate::args::DemoArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, count, duration, nanos, outln};
use crate::report::Place;
use crate::report::machine;
use crate::report::model::{Facts, Headline, PhaseKind, Report};
use crate::report::record::{Recorder, Sampler};

/// What the disk of the burst can do.
const RATES: Rates = Rates {
    write_bytes_per_s: 40_000_000,
    read_bytes_per_s: 0,
    queued_bytes_max: 4 << 20,
    sync_time: Duration::from_millis(1),
};

const MEMTABLE_BYTES: u64 = 2 << 20;

/// The length of a value.
const VALUE_BYTES: usize = 1024;

/// The width of the picture of throughput, in characters.
const WIDTH: usize = 60;

/// What one policy did with the burst.
struct Burst {
    policy: StallPolicy,
    /// How long the burst took, and how long the work after it.
    took: Duration,
    settled: Duration,
    /// The latency of each put in microseconds, in order.
    puts_us: Vec<u32>,
    /// When each put ended, in microseconds since the burst began.
    ends_us: Vec<u64>,
    /// The latency of each get during the burst in microseconds, in order of size.
    gets_us: Vec<u32>,
    /// As of the end of the burst.
    stats: Stats,
}

/// Runs the command.
pub fn run(args: &DemoArgs, policy: StallPolicy) -> Result<Outcome, Failure> {
    let path = place(args.store.as_deref())?;
    let file = match &args.report {
        Some(file) => Place::asked(file)?,
        None => Place::beside(&path)?,
    };
    let memtables = if args.quick { 24 } else { 64 };
    let puts = memtables * MEMTABLE_BYTES / (VALUE_BYTES as u64 + 8);
    say!(
        "siltstone demo: a burst of {} puts of {} bytes, {} memtables, on a stand-in for a disk \
         that takes {} a second, seed {}",
        count(puts),
        VALUE_BYTES,
        memtables,
        bytes(RATES.write_bytes_per_s),
        args.seed
    )?;
    say!("stores: {}", path.display())?;
    let mut policies = vec![StallPolicy::Stop];
    policies.extend((policy != StallPolicy::Stop).then_some(policy));
    let recorder = Arc::new(Recorder::new());
    let mut bursts = Vec::new();
    for policy in policies {
        let burst = one(&path, policy, puts, args.seed, &recorder)?;
        print(&burst)?;
        bursts.push(burst);
    }
    let verdict = verdict(&bursts);
    say!("\n{verdict}")?;
    let report = report(&bursts, verdict, &path, &recorder);
    let place = file.path().to_path_buf();
    file.write(&report)?;
    say!("\nThe report, second by second: {}", place.display())?;
    say!("  open it in a browser: {}", url(&place))?;
    say!(
        "The stores stay for you to look at and delete: {}",
        path.display()
    )?;
    Ok(Outcome::Fine)
}

fn options(policy: StallPolicy) -> Options {
    Options {
        error_if_exists: true,
        sync: SyncMode::Never,
        stall_policy: policy,
        memtable_bytes: MEMTABLE_BYTES,
        table_bytes: 2 << 20,
        level1_bytes: 8 << 20,
        l0_slowdown_count: 8,
        l0_stop_count: 12,
        log_segment_bytes: 4 << 20,
        ..Options::default()
    }
}

fn word(policy: StallPolicy) -> &'static str {
    match policy {
        StallPolicy::Stop => "stop",
        StallPolicy::Slowdown => "slowdown",
        StallPolicy::Adoc => "adoc",
        StallPolicy::Redirect => "redirect",
    }
}

/// The key of put `i`: all keys differ, and lie in no order.
fn key(i: u64) -> [u8; 8] {
    i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()
}

/// The value of put `i`: bytes that follow from the seed.
fn fill(value: &mut [u8], seed: u64, i: u64) {
    let mut state = seed.wrapping_mul(0xD129_0B26_8CF5_2B31) ^ i;
    for part in value.chunks_mut(8) {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word ^= word >> 27;
        part.copy_from_slice(&word.to_le_bytes()[..part.len()]);
    }
}

fn one(
    path: &Path,
    policy: StallPolicy,
    puts: u64,
    seed: u64,
    recorder: &Arc<Recorder>,
) -> Result<Burst, Failure> {
    let folder = path.join(word(policy));
    let files = FileStorage::open_or_create(&folder).map_err(siltstone::Error::from)?;
    let runtime = Runtime::threads();
    let disk = RatedStorage::new(Arc::new(files), &runtime, RATES);
    let store = Store::open_with(Components::on(Arc::new(disk), runtime), options(policy))?;
    let keyspace = store.default_keyspace()?;
    recorder.phase(
        PhaseKind::Write,
        format!("the burst, policy {}", word(policy)),
    );
    let sampler = Sampler::start(recorder, Some((recorder.opened(), store.clone())));
    let (written, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let start = Instant::now();
    let (puts_us, ends_us, gets_us) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&keyspace, seed, &written, &over, recorder));
        let done = write(&keyspace, puts, seed, &written, start);
        over.store(true, Ordering::Release);
        let gets = reader
            .join()
            .map_err(|_| wrong("the reader panicked", seed))??;
        let (puts, ends) = done?;
        Ok::<_, Failure>((puts, ends, gets))
    })?;
    let took = start.elapsed();
    let stats = store.stats();
    recorder.phase(
        PhaseKind::Rest,
        format!("after it, policy {}", word(policy)),
    );
    store.wait_until_idle()?;
    let settled = start.elapsed().saturating_sub(took);
    sampler.stop();
    recorder.phase(
        PhaseKind::Verify,
        format!("every value, policy {}", word(policy)),
    );
    for i in 0..puts {
        compare(&keyspace, seed, i)?;
        recorder.read(1);
    }
    store.close()?;
    Ok(Burst {
        policy,
        took,
        settled,
        puts_us,
        ends_us,
        gets_us,
        stats,
    })
}

fn write(
    keyspace: &Keyspace,
    puts: u64,
    seed: u64,
    written: &AtomicU64,
    start: Instant,
) -> Result<(Vec<u32>, Vec<u64>), Failure> {
    let (mut puts_us, mut ends_us) = (Vec::new(), Vec::new());
    let mut value = vec![0; VALUE_BYTES];
    let mut before = start.elapsed();
    for i in 0..puts {
        fill(&mut value, seed, i);
        let begin = start.elapsed();
        keyspace.put(&key(i), &value)?;
        before = start.elapsed().max(before);
        puts_us.push((before - begin).as_micros() as u32);
        ends_us.push(before.as_micros() as u64);
        written.store(i + 1, Ordering::Release);
    }
    Ok((puts_us, ends_us))
}

/// Reads random values of those that are written, and compares them. Returns the latencies.
fn read(
    keyspace: &Keyspace,
    seed: u64,
    written: &AtomicU64,
    over: &AtomicBool,
    recorder: &Recorder,
) -> Result<Vec<u32>, Failure> {
    let mut gets_us = Vec::new();
    let mut state = seed;
    while !over.load(Ordering::Acquire) {
        let all = written.load(Ordering::Acquire);
        if all == 0 {
            std::thread::yield_now();
            continue;
        }
        state = state
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        let begin = Instant::now();
        compare(keyspace, seed, (state >> 16) % all)?;
        gets_us.push(begin.elapsed().as_micros() as u32);
        recorder.read(1);
        // The reader leaves the core to the store most of the time.
        std::thread::sleep(Duration::from_micros(500));
    }
    gets_us.sort_unstable();
    Ok(gets_us)
}

fn compare(keyspace: &Keyspace, seed: u64, i: u64) -> Result<(), Failure> {
    let mut value = vec![0; VALUE_BYTES];
    fill(&mut value, seed, i);
    match keyspace.get(&key(i))? {
        Some(found) if found[..] == value[..] => Ok(()),
        Some(_) => Err(wrong(format_args!("put {i} has another value"), seed)),
        None => Err(wrong(format_args!("put {i} is not there"), seed)),
    }
}

impl Burst {
    fn longest_us(&self) -> u64 {
        self.puts_us.iter().copied().max().unwrap_or(0).into()
    }

    /// The time in puts that took longer than a millisecond.
    fn slow_us(&self) -> u64 {
        self.puts_us
            .iter()
            .map(|us| u64::from(*us))
            .filter(|us| *us > 1000)
            .sum()
    }

    /// For how long writers waited until a compaction was installed.
    fn for_compactions_us(&self) -> u64 {
        let totals = self.stats.delay_totals.iter();
        let of_compactions =
            |cause: &StallCause| matches!(cause, StallCause::L0Stop | StallCause::PendingStop);
        totals
            .filter(|(cause, _)| of_compactions(cause))
            .map(|(_, t)| t.total_us)
            .sum()
    }

    /// The puts of each of `WIDTH` equal spans of the burst.
    fn spans(&self) -> Vec<u64> {
        let span_us = (self.took.as_micros() as u64).div_ceil(WIDTH as u64).max(1);
        let mut spans = vec![0; WIDTH];
        for end in &self.ends_us {
            spans[((end / span_us) as usize).min(WIDTH - 1)] += 1;
        }
        spans
    }
}

/// One character for each span: a blank if there was no put, else a bar.
fn bars(spans: &[u64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = spans.iter().copied().max().unwrap_or(0).max(1);
    let bar = |puts: &u64| match puts {
        0 => ' ',
        puts => BARS[((puts * 8).div_ceil(most) as usize).clamp(1, 8) - 1],
    };
    spans.iter().map(bar).collect()
}

fn print(burst: &Burst) -> Result<(), Failure> {
    let mut out = Out::new();
    outln!(out, "\npolicy `{}`", word(burst.policy))?;
    let spans = burst.spans();
    outln!(out, "  puts over time      |{}|", bars(&spans))?;
    outln!(
        out,
        "  the burst took      {}; the work after it {}",
        duration(burst.took),
        duration(burst.settled)
    )?;
    outln!(
        out,
        "  the longest put     {}; {} in puts above 1 ms; no put at all in {} of {} spans",
        nanos(burst.longest_us() * 1000),
        nanos(burst.slow_us() * 1000),
        spans.iter().filter(|puts| **puts == 0).count(),
        WIDTH
    )?;
    let at = |share: f64| {
        let at = (burst.gets_us.len() as f64 * share) as usize;
        let us = burst
            .gets_us
            .get(at.min(burst.gets_us.len().saturating_sub(1)));
        nanos(us.map_or(0, |us| u64::from(*us)) * 1000)
    };
    outln!(
        out,
        "  gets meanwhile      {}: p50 {}, p99 {}",
        count(burst.gets_us.len() as u64),
        at(0.5),
        at(0.99)
    )?;
    let mut has_waited = false;
    for (cause, total) in burst.stats.delay_totals.iter().filter(|(_, t)| t.count > 0) {
        has_waited = true;
        outln!(
            out,
            "  {:<20}{} times, {} in all, the longest {}",
            cause.word(),
            count(total.count),
            nanos(total.total_us * 1000),
            nanos(total.max_us * 1000)
        )?;
    }
    if !has_waited {
        outln!(out, "  the writer never waited")?;
    }
    outln!(
        out,
        "  read back           {} of {} values, all right",
        count(burst.ends_us.len() as u64),
        count(burst.ends_us.len() as u64)
    )?;
    out.finish()
}

/// What the figures say, in a sentence for each policy.
fn verdict(bursts: &[Burst]) -> String {
    let sentence = |burst: &Burst| {
        let waited = match burst.for_compactions_us() {
            0 => "the writer waited for no compaction".to_string(),
            us => format!("the writer waited {} for compactions", nanos(us * 1000)),
        };
        format!(
            "Under `{}` {waited}, and the longest put took {}.",
            word(burst.policy),
            nanos(burst.longest_us() * 1000)
        )
    };
    bursts.iter().map(sentence).collect::<Vec<_>>().join(" ")
}

fn report(bursts: &[Burst], verdict: String, path: &Path, recorder: &Recorder) -> Report {
    let headlines = bursts.iter().flat_map(|burst| {
        let of = |what: &str, value: String, note: &str| Headline {
            label: format!("{what}, {}", word(burst.policy)),
            value,
            note: note.to_string(),
        };
        [
            of(
                "longest put",
                nanos(burst.longest_us() * 1000),
                "of all puts of the burst",
            ),
            of(
                "for compactions",
                nanos(burst.for_compactions_us() * 1000),
                "the time for which the writer waited until a compaction was installed",
            ),
            of(
                "burst",
                duration(burst.took),
                "from the first put to the last one",
            ),
        ]
    });
    let row = |name: &str, value: String| (name.to_string(), value);
    let mut real = vec![
        row(
            "processor, memory",
            "real: the cores of this machine".to_string(),
        ),
        row(
            "disk",
            format!(
                "shaped stand-in: files of this machine behind a limit of {} a second for written \
                 bytes, with {} more for each sync",
                bytes(RATES.write_bytes_per_s),
                duration(RATES.sync_time)
            ),
        ),
    ];
    if let Some(file_system) = machine::file_system(path) {
        real.push(row("files", format!("real: {file_system}")));
    }
    let facts = vec![
        machine::machine(),
        machine::program(),
        Facts {
            title: "What was real".to_string(),
            rows: real,
            text: String::new(),
        },
    ];
    let mut writes = Vec::new();
    for (opening, burst) in bursts.iter().enumerate() {
        let name = format!("policy {}", word(burst.policy));
        writes.push(recorder.writes(&name, opening..opening + 1));
    }
    let latencies = recorder.latencies(bursts.len() - 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Report {
        title: "siltstone demo: a burst".to_string(),
        verdict,
        made_unix_s: now.map_or(0, |since| since.as_secs()),
        headlines: headlines.collect(),
        timeline: recorder.finish(),
        latencies,
        writes,
        facts,
        ..Report::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_without_puts_are_blank() {
        assert_eq!(bars(&[0, 1, 8, 4, 0]), " ▁█▄ ");
        assert_eq!(bars(&[0, 0]), "  ");
    }

    #[test]
    fn keys_and_values_follow_from_the_number() {
        let (mut a, mut b) = ([0; 20], [0; 20]);
        fill(&mut a, 1, 7);
        fill(&mut b, 1, 7);
        assert_eq!(a, b);
        fill(&mut b, 1, 8);
        assert_ne!(a, b);
        assert_ne!(key(1), key(2));
    }
}
