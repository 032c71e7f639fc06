//! Gathers a run's [`Timeline`] during the run.
//!
//! [`Moment`] is one sample of a store: plain data, which a process that will be killed can also
//! send through a pipe. [`Recorder`] puts moments, phases and marks onto one clock. [`Sampler`] is
//! the thread that takes moments of a store of this process.
//!
//! Invariants: samples are in order of time. A delay is recorded once, with its last known length,
//! even if several moments contain it. Samples stay when the process that sent them dies.
//!
//! Threading: a [`Recorder`] is shared. It has one mutex, which is held only to append.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use siltstone::{LatencySummary, Stats, Store};

use super::model::{
    Counts, DelayTotal, Delayed, Latency, Mark, Phase, PhaseKind, Sample, Timeline, Writes,
};
use crate::output::bytes;

/// The number of delays that a timeline keeps. If there are more, the shortest are dropped.
const DELAYS_MAX: usize = 2_000;

/// A store at a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// The time since its opening.
    pub open_us: u64,
    /// Its counters.
    pub counts: Counts,
    /// Delays by cause.
    pub delay_totals: Vec<DelayTotal>,
    /// Latencies.
    pub latencies: Vec<Latency>,
}

/// A delay, in the time of its store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreDelay {
    /// Its beginning, relative to the opening.
    pub from_us: u64,
    /// Its length, or its length so far if it has not ended.
    pub length_us: u64,
    /// The name of its cause.
    pub cause: String,
    /// The keyspace that caused it.
    pub keyspace: String,
    /// The numbers behind it.
    pub why: String,
}

/// Delays by cause, of all openings together.
fn delay_totals(last: &[Moment]) -> Vec<DelayTotal> {
    let mut totals: BTreeMap<String, DelayTotal> = BTreeMap::new();
    for total in last.iter().flat_map(|m| &m.delay_totals) {
        let sum = totals.entry(total.cause.clone()).or_default();
        sum.cause = total.cause.clone();
        sum.count += total.count;
        sum.total_us += total.total_us;
        sum.max_us = sum.max_us.max(total.max_us);
    }
    totals.into_values().collect()
}

impl Moment {
    /// A sample from a store's statistics, `open_us` after its opening.
    pub fn of(stats: &Stats, open_us: u64) -> Moment {
        let mut level_bytes = Vec::new();
        for keyspace in &stats.keyspaces {
            for (number, level) in keyspace.levels.iter().enumerate() {
                if level_bytes.len() <= number {
                    level_bytes.resize(number + 1, 0);
                }
                level_bytes[number] += level.file_bytes;
            }
        }
        let totals = stats.delay_totals.iter().filter(|(_, t)| t.count > 0);
        Moment {
            open_us,
            counts: Counts {
                written_count: stats.counter("put_count"),
                user_bytes: stats.counter("user_bytes"),
                log_bytes: stats.counter("log_bytes"),
                flush_bytes: stats.counter("flush_out_bytes"),
                compaction_bytes: stats.counter("compaction_out_bytes"),
                compaction_read_bytes: stats.counter("compaction_in_bytes"),
                memtable_bytes: stats.keyspaces.iter().map(|k| k.memtable_bytes).sum(),
                level_bytes,
            },
            delay_totals: totals
                .map(|(cause, total)| DelayTotal {
                    cause: cause.word().to_string(),
                    count: total.count,
                    total_us: total.total_us,
                    max_us: total.max_us,
                })
                .collect(),
            latencies: LATENCIES
                .iter()
                .filter_map(|(name, what)| {
                    let summary = stats.latencies.get(*name).filter(|l| l.count > 0)?;
                    Some(latency(name, what, summary))
                })
                .collect(),
        }
    }
}

/// Latencies that stores keep, in the order of a report.
const LATENCIES: [(&str, &str); 6] = [
    ("get", "one call in sixteen is timed"),
    (
        "put",
        "a call that writes a batch; of puts one by one, one in sixteen is timed",
    ),
    (
        "commit",
        "a group of several batches, or a synced one, is written to the log and the memtable",
    ),
    ("flush", "a memtable becomes tables"),
    ("compaction", "tables are merged"),
    ("sync", "fdatasync of the log"),
];

fn latency(name: &str, what: &str, summary: &LatencySummary) -> Latency {
    Latency {
        name: name.to_string(),
        what: what.to_string(),
        count: summary.count,
        mean_ns: summary.mean_ns,
        max_ns: summary.max_ns,
        points: vec![
            (0.5, summary.p50_ns),
            (0.9, summary.p90_ns),
            (0.99, summary.p99_ns),
            (0.999, summary.p999_ns),
        ],
    }
}

/// The delays of a store that lasted within the time from `since_us` on.
pub fn delays_since(stats: &Stats, since_us: u64) -> Vec<StoreDelay> {
    let recent = stats
        .delays
        .iter()
        .filter(|d| d.waiting || d.start_us + d.duration_us >= since_us);
    recent
        .map(|d| StoreDelay {
            from_us: d.start_us,
            length_us: d.duration_us,
            cause: d.cause.word().to_string(),
            keyspace: d.keyspace.clone(),
            why: match d.cause.word() {
                "sealed_memtables" => format!(
                    "{} memtables waited for their flush, the limit is {}",
                    d.load.sealed_memtable_count, d.limit
                ),
                "memtable_slowdown" => format!(
                    "{} memtables waited for their flush and the active one was filling",
                    d.load.sealed_memtable_count
                ),
                "log_bytes" | "log_slowdown" => format!(
                    "{} of log were not flushed yet, the limit is {}",
                    bytes(d.load.log_bytes),
                    bytes(d.limit)
                ),
                "l0_slowdown" | "l0_stop" => format!(
                    "level 0 had {} runs over one key, the limit is {}",
                    d.load.l0_depth, d.limit
                ),
                "pending_slowdown" | "pending_stop" => format!(
                    "compactions had {} to read, the limit is {}",
                    bytes(d.load.pending_bytes),
                    bytes(d.limit)
                ),
                "space_slowdown" => format!(
                    "{} were free, and compactions need {}",
                    bytes(d.load.free_bytes.unwrap_or(0)),
                    bytes(d.limit)
                ),
                _ => d.cause.meaning().to_string(),
            },
        })
        .collect()
}

#[derive(Debug, Default)]
struct Inner {
    timeline: Timeline,
    /// Delays by opening, and then by beginning, cause and keyspace.
    delays: BTreeMap<(usize, u64, String, String), StoreDelay>,
    /// The last moment of each opening.
    last: Vec<Moment>,
    /// A phase that has begun.
    phase: Option<Phase>,
}

/// See the module.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    /// Pairs that were read.
    reads: AtomicU64,
    inner: Mutex<Inner>,
}

impl Recorder {
    /// The run begins now.
    pub fn new() -> Recorder {
        Recorder {
            start: Instant::now(),
            reads: AtomicU64::new(0),
            inner: Mutex::default(),
        }
    }

    // This is plain data that is complete at every moment, so a panic elsewhere does not harm it.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_s(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Counts pairs that were read.
    pub fn read(&self, pairs: u64) {
        self.reads.fetch_add(pairs, Ordering::Relaxed);
    }

    /// Records that a store was opened now. Returns the number under which its moments are added.
    pub fn opened(&self) -> usize {
        let now = self.now_s();
        let mut inner = self.lock();
        inner.timeline.opened_s.push(now);
        inner.last.push(Moment::default());
        inner.last.len() - 1
    }

    /// Adds a moment that was taken now.
    pub fn add(&self, opening: usize, moment: Moment) {
        let mut inner = self.lock();
        // This is done under the lock, so that samples are in order.
        let at_s = self.now_s();
        let counts = moment.counts.clone();
        // For another process, its own time of the opening is more exact than the time at which its
        // message arrived.
        let opened_s = at_s - moment.open_us as f64 / 1e6;
        if let (Some(last), Some(opened)) = (
            inner
                .last
                .get_mut(opening)
                .map(|last| std::mem::replace(last, moment)),
            inner.timeline.opened_s.get_mut(opening),
        ) {
            if last == Moment::default() {
                *opened = opened_s.max(0.0);
            }
            inner.timeline.samples.push(Sample {
                at_s,
                opening,
                counts,
            });
        }
    }

    /// Adds a delay, or updates its length.
    pub fn delay(&self, opening: usize, delay: StoreDelay) {
        let key = (
            opening,
            delay.from_us,
            delay.cause.clone(),
            delay.keyspace.clone(),
        );
        self.lock().delays.insert(key, delay);
    }

    fn add_reads(&self) {
        let mut inner = self.lock();
        let reads = (self.now_s(), self.reads.load(Ordering::Relaxed));
        inner.timeline.reads.push(reads);
    }

    /// Ends the present phase, and begins another.
    pub fn phase(&self, kind: PhaseKind, name: impl Into<String>) {
        let mut inner = self.lock();
        let now = self.now_s();
        inner.end_phase(now);
        inner.phase = Some(Phase {
            name: name.into(),
            kind,
            from_s: now,
            to_s: now,
        });
    }

    /// Marks an event that happens now.
    pub fn mark(&self, label: impl Into<String>, what: impl Into<String>) {
        let at_s = self.now_s();
        self.lock().timeline.marks.push(Mark {
            at_s,
            label: label.into(),
            what: what.into(),
        });
    }

    /// The sum of what these openings wrote.
    pub fn writes(&self, name: &str, openings: std::ops::Range<usize>) -> Writes {
        let inner = self.lock();
        let mut writes = Writes {
            name: name.to_string(),
            ..Writes::default()
        };
        for moment in inner.last.get(openings).unwrap_or_default() {
            writes.user_bytes += moment.counts.user_bytes;
            writes.log_bytes += moment.counts.log_bytes;
            writes.flush_bytes += moment.counts.flush_bytes;
            writes.compaction_bytes += moment.counts.compaction_bytes;
            writes.compaction_read_bytes += moment.counts.compaction_read_bytes;
        }
        writes
    }

    /// The last reported latencies of an opening.
    pub fn latencies(&self, opening: usize) -> Vec<Latency> {
        let inner = self.lock();
        inner
            .last
            .get(opening)
            .map(|m| m.latencies.clone())
            .unwrap_or_default()
    }

    /// The number of openings so far.
    pub fn openings(&self) -> usize {
        self.lock().last.len()
    }

    /// The delays of writers so far, by cause, of all openings together.
    pub fn delay_totals(&self) -> Vec<DelayTotal> {
        delay_totals(&self.lock().last)
    }

    /// Ends the run now.
    pub fn finish(&self) -> Timeline {
        self.add_reads();
        let mut inner = self.lock();
        let now = self.now_s();
        inner.end_phase(now);
        let inner = &mut *inner;
        let timeline = &mut inner.timeline;
        timeline.length_s = now;
        let mut delays: Vec<Delayed> = inner
            .delays
            .iter()
            .map(|((opening, ..), d)| Delayed {
                from_s: timeline.opened_s.get(*opening).unwrap_or(&0.0) + d.from_us as f64 / 1e6,
                length_us: d.length_us,
                cause: d.cause.clone(),
                keyspace: d.keyspace.clone(),
                why: d.why.clone(),
            })
            .collect();
        delays.sort_by_key(|d| std::cmp::Reverse(d.length_us));
        delays.truncate(DELAYS_MAX);
        delays.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        timeline.delays = delays;
        timeline.delay_totals = delay_totals(&inner.last);
        std::mem::take(timeline)
    }
}

impl Inner {
    fn end_phase(&mut self, now: f64) {
        if let Some(mut phase) = self.phase.take() {
            phase.to_s = now;
            self.timeline.phases.push(phase);
        }
    }
}

/// A thread that takes moments of a store until it is stopped.
#[derive(Debug)]
pub struct Sampler {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// The interval at which a sampler takes moments.
pub const EVERY: Duration = Duration::from_millis(100);

impl Sampler {
    /// Samples reads, and the store of this opening if there is one.
    pub fn start(recorder: &Arc<Recorder>, store: Option<(usize, Store)>) -> Sampler {
        let stop = Arc::new(AtomicBool::new(false));
        let (recorder, stopped) = (recorder.clone(), stop.clone());
        let thread = std::thread::spawn(move || {
            let begun = Instant::now();
            let mut since_us = 0;
            loop {
                let last = stopped.load(Ordering::Acquire);
                if let Some((opening, store)) = &store {
                    let stats = store.stats();
                    let open_us = begun.elapsed().as_micros() as u64;
                    recorder.add(*opening, Moment::of(&stats, open_us));
                    for delay in delays_since(&stats, since_us) {
                        recorder.delay(*opening, delay);
                    }
                    // It does no harm to add a delay twice.
                    since_us = open_us.saturating_sub(EVERY.as_micros() as u64);
                }
                recorder.add_reads();
                if last {
                    break;
                }
                std::thread::park_timeout(EVERY);
            }
        });
        Sampler {
            stop,
            thread: Some(thread),
        }
    }

    /// Takes a last moment, and ends. Dropping does the same.
    pub fn stop(self) {}
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread has no result, because its moments are in the recorder.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siltstone::Options;

    #[test]
    fn what_happens_to_a_store_is_in_its_timeline() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Arc::new(Recorder::new());
        recorder.phase(PhaseKind::Write, "writing");
        let store = Store::open(dir.path(), Options::default()).unwrap();
        let opening = recorder.opened();
        let sampler = Sampler::start(&recorder, Some((opening, store.clone())));
        let keyspace = store.default_keyspace().unwrap();
        (0..1000u32).for_each(|n| keyspace.put(&n.to_be_bytes(), b"0123456789").unwrap());
        store.flush().unwrap();
        recorder.read(77);
        sampler.stop();
        recorder.phase(PhaseKind::Read, "reading");
        recorder.mark("1", "a kill");
        store.close().unwrap();
        let writes = recorder.writes("it", 0..1);
        assert!(
            writes.user_bytes >= 14_000 && writes.flush_bytes > 0,
            "{writes:?}"
        );
        assert_eq!(recorder.writes("none", 1..7).user_bytes, 0);
        assert!(
            recorder
                .latencies(opening)
                .iter()
                .any(|l| l.name == "flush")
        );
        let timeline = recorder.finish();
        let last = timeline.samples.last().unwrap();
        assert_eq!((last.opening, last.counts.written_count), (0, 1000));
        assert_eq!(
            last.counts.level_bytes.iter().sum::<u64>(),
            writes.flush_bytes
        );
        assert!(timeline.samples.is_sorted_by(|a, b| a.at_s <= b.at_s));
        assert_eq!(timeline.reads.last().unwrap().1, 77);
        assert_eq!(timeline.phases.len(), 2);
        assert_eq!(timeline.phases[0].to_s, timeline.phases[1].from_s);
        assert_eq!(timeline.marks.len(), 1);
    }

    #[test]
    fn a_delay_is_reported_once_with_its_last_length_and_totals_are_of_all_openings() {
        let recorder = Recorder::new();
        let total = |count, max_us| DelayTotal {
            cause: "l0_stop".to_string(),
            count,
            total_us: 10 * count,
            max_us,
        };
        for (count, max_us) in [(3, 9), (4, 5)] {
            let opening = recorder.opened();
            for length_us in [5, 500] {
                recorder.delay(
                    opening,
                    StoreDelay {
                        from_us: 10,
                        length_us,
                        ..StoreDelay::default()
                    },
                );
                recorder.add(
                    opening,
                    Moment {
                        open_us: 0,
                        delay_totals: vec![total(count, max_us)],
                        ..Moment::default()
                    },
                );
            }
        }
        recorder.add(99, Moment::default());
        let timeline = recorder.finish();
        assert_eq!(
            timeline
                .delays
                .iter()
                .map(|d| d.length_us)
                .collect::<Vec<_>>(),
            [500, 500]
        );
        assert_eq!(
            timeline.delay_totals,
            [DelayTotal {
                total_us: 70,
                ..total(7, 9)
            }]
        );
        assert_eq!(timeline.samples.len(), 4);
    }

    #[test]
    fn moments_travel_as_json() {
        let moment = Moment {
            open_us: 5,
            counts: Counts {
                level_bytes: vec![1, u64::MAX],
                ..Counts::default()
            },
            delay_totals: vec![DelayTotal::default()],
            latencies: vec![latency(
                "get",
                "",
                &LatencySummary {
                    p50_ns: 7,
                    ..LatencySummary::default()
                },
            )],
        };
        let json = serde_json::to_string(&moment).unwrap();
        assert_eq!(serde_json::from_str::<Moment>(&json).unwrap(), moment);
    }
}
