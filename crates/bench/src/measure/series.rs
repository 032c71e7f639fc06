//! What a run did, second by second and in total.
//!
//! A [`Sampler`] has a thread of its own. It takes what the recorders send, and once a second it
//! reads the process and asks the engine for its counters. It also asks for the shape of the tree:
//! once a second while an answer takes less than 2 ms, and otherwise every ten seconds, because
//! some engines make a list of all their tables for it. The last sample always has the shape. Only
//! that thread waits if the engine answers slowly.
//!
//! Invariants:
//! - Every second from the start to the end is in the series. A second in which nothing was
//!   completed has zeros, so that stalls show.
//! - An operation is counted in the second in which it ended.
//! - What is sampled belongs to the second before the sample. If a sample is late by whole seconds,
//!   the seconds without one have `None`, and the next one has the sums of all.
//! - If the store was open at the start, the first second has the shape of the tree at its end. If
//!   the engine was not asked then, it has the shape at the start.
//!
//! Threading: one sampler for each [`Meter`]. The caller keeps the handle and finishes it after the
//! recorders were dropped.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};
use std::{io, panic};

use serde::{Deserialize, Serialize};

use super::latency::Latencies;
use super::process::{self, Reading};
use super::recorder::{Message, Meter};
use crate::engine::{Engine, Figures, Level};
use crate::settings::Kind;

mod collect;
mod gauges;

#[cfg(test)]
mod tests;

use collect::Collector;
use gauges::Gauges;

/// The shape of the tree is asked for every second while an answer takes less than this.
const QUICK: Duration = Duration::from_millis(2);

/// After how many seconds it is asked for again if the last answer took longer.
const SLOW_LEVELS_EVERY_S: u64 = 10;

/// What the sampler wants to know of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Its counters.
    Figures,
    /// Its counters and the shape of its tree.
    FiguresAndLevels,
}

/// What the engine answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Probe {
    /// Its counters since it was opened.
    pub figures: Figures,
    /// The shape of its tree, if it was asked for.
    pub levels: Option<Vec<Level>>,
    /// How long the engine took to give that shape.
    pub levels_took: Duration,
}

impl Probe {
    /// Asks an open engine.
    pub fn of(engine: &dyn Engine, ask: Ask) -> Probe {
        let figures = engine.figures();
        let begun = Instant::now();
        let levels = (ask == Ask::FiguresAndLevels).then(|| engine.levels());
        Probe {
            figures,
            levels,
            levels_took: begun.elapsed(),
        }
    }
}

/// What was counted of operations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations. An entry of a batch or of a whole scan is one.
    pub operations: u64,
    /// Bytes of keys and values that the engine was given to write.
    pub written_bytes: u64,
    /// Bytes of keys and values that the engine returned.
    pub read_bytes: u64,
}

/// One second of a run. Sampled figures are `None` if there was no sample or the engine does not
/// have them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Second {
    /// Its number, from 0. It counts from the start of the measurement; the last one is not whole.
    pub second: u64,
    /// Operations of the measured threads that ended in it.
    pub operations: u64,
    /// Operations of the threads beside them.
    pub beside_operations: u64,
    /// Bytes of keys and values that all threads gave the engine.
    pub written_bytes: u64,
    /// Bytes of keys and values that the engine returned to all threads.
    pub read_bytes: u64,
    /// Latencies of all threads by kind of operation.
    pub latency: BTreeMap<String, SecondLatency>,
    /// Seconds that writers waited, by cause.
    pub stall_s: Option<BTreeMap<String, f64>>,
    /// Bytes that the engine wrote to its log.
    pub log_bytes: Option<u64>,
    /// Bytes that flushes wrote.
    pub flush_bytes: Option<u64>,
    /// Bytes that compactions read.
    pub compaction_read_bytes: Option<u64>,
    /// Bytes that compactions wrote.
    pub compaction_bytes: Option<u64>,
    /// The time in which the GPU was busy, in seconds, as far as it is known by the end of the
    /// second. It may have been in the second before.
    pub gpu_busy_s: Option<f64>,
    /// Bytes that the process passed to write calls.
    pub write_call_bytes: Option<u64>,
    /// Bytes of pages that became dirty.
    pub device_write_bytes: Option<u64>,
    /// Bytes that the process read from a device.
    pub device_read_bytes: Option<u64>,
    /// Processor time of the process, in seconds.
    pub cpu_s: Option<f64>,
    /// Resident memory at its end, in bytes.
    pub resident_bytes: Option<u64>,
    /// The anonymous part of the resident memory at its end, in bytes.
    pub anonymous_bytes: Option<u64>,
    /// The shape of the tree at its end, if it was asked for then. In the first second it is the
    /// shape at the start otherwise.
    pub levels: Option<Vec<Level>>,
}

/// Latencies of one kind of operation in one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SecondLatency {
    /// Calls that ended in it.
    pub count: u64,
    /// The median in microseconds.
    pub p50_us: f64,
    /// What 99% did not exceed, in microseconds.
    pub p99_us: f64,
    /// The longest in microseconds.
    pub max_us: f64,
}

/// What a measurement found, from the start of the sampler until it was finished.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    /// When the clock was started; `None` if no recorder ever began.
    pub start: Option<Instant>,
    /// From the start to the end of the last operation of a measured thread.
    pub until_last: Duration,
    /// What the measured threads did.
    pub counts: Counts,
    /// What the threads beside them did.
    pub beside: Counts,
    /// Calls that failed, of all threads.
    pub errors: u64,
    /// Answers that were wrong, of all threads.
    pub wrong_answers: u64,
    /// Latencies of all operations of the measured threads, those included that were censored.
    pub all: Latencies,
    /// Operations of an open loop of the measured threads that were due and never begun: their
    /// latencies are lower bounds.
    pub censored_operations: u64,
    /// Latencies by kind, of all threads.
    pub latency: BTreeMap<Kind, Latencies>,
    /// Service times by kind, of all threads in an open loop.
    pub service: BTreeMap<Kind, Latencies>,
    /// Processor time of the threads of the workload while they recorded, in seconds.
    pub workload_cpu_s: Option<f64>,
    /// Processor time by name of the thread, in seconds, as far as it was sampled: what a thread
    /// did between the last sample and its end is missing. Empty on other systems than Linux.
    pub thread_cpu_s: BTreeMap<String, f64>,
    /// Processor time of the sampler, in seconds.
    pub sampler_cpu_s: Option<f64>,
    /// The process when the sampler was started.
    pub before: Reading,
    /// The process when it was finished.
    pub after: Reading,
    /// How much the engine's counters grew. If they began anew because the store was opened again,
    /// what was counted between the last sample and the close is missing.
    pub figures: Figures,
    /// The shape of the tree at the last sample.
    pub levels: Vec<Level>,
    /// The highest anonymous memory of all samples, in bytes.
    pub peak_anonymous_bytes: Option<u64>,
    /// The highest resident memory, in bytes. Between the samples as well if the system can do
    /// that.
    pub peak_resident_bytes: Option<u64>,
    /// The series.
    pub seconds: Vec<Second>,
}

/// The thread that collects and samples.
#[derive(Debug)]
pub struct Sampler<'scope> {
    meter: &'scope Meter,
    thread: ScopedJoinHandle<'scope, Measured>,
}

impl<'scope> Sampler<'scope> {
    /// Takes the first sample, and starts the thread. Its clock starts with the first recorder.
    /// `probe` asks the engine for what it is told; it returns `None` while the store is not open.
    ///
    /// # Errors
    /// If the thread cannot be started, or if the meter has a sampler already.
    pub fn start(
        scope: &'scope Scope<'scope, '_>,
        meter: &'scope Meter,
        probe: impl FnMut(Ask) -> Option<Probe> + Send + 'scope,
    ) -> io::Result<Sampler<'scope>> {
        let receiver = meter.take_receiver().ok_or_else(|| {
            io::Error::other("a meter can have one sampler only; make a meter for each workload")
        })?;
        let mut probe = probe;
        let gauges = Gauges::begin(probe(Ask::FiguresAndLevels));
        let collect = move || sample_until_stop(meter, &receiver, gauges, &mut probe);
        let thread = Builder::new()
            .name("bench-sampler".into())
            .spawn_scoped(scope, collect)?;
        Ok(Sampler { meter, thread })
    }

    /// Takes the last sample and ends the thread. All recorders have to be dropped before; what
    /// they send later is lost.
    ///
    /// # Panics
    /// If the probe panicked.
    pub fn finish(self) -> Measured {
        self.meter.send(Message::Stop);
        self.thread
            .join()
            .unwrap_or_else(|payload| panic::resume_unwind(payload))
    }
}

/// The work of the thread.
fn sample_until_stop(
    meter: &Meter,
    receiver: &Receiver<Message>,
    mut gauges: Gauges,
    probe: &mut dyn FnMut(Ask) -> Option<Probe>,
) -> Measured {
    let mut collector = Collector::default();
    let mut start = None;
    // The clock runs from the first message on.
    match receiver.recv() {
        Ok(Message::Stop) | Err(_) => {}
        Ok(message) => {
            collector.take(message);
            start = Some(meter.start());
            run(meter, receiver, &mut collector, &mut gauges, probe);
        }
    }
    let elapsed = start.map(|start| start.elapsed()).unwrap_or_default();
    gauges.sample(elapsed.as_secs(), probe(Ask::FiguresAndLevels));
    let mut measured = collector.finish();
    measured.start = start;
    gauges.finish(&mut measured);
    measured.sampler_cpu_s = process::thread_cpu_s();
    measured
}

/// Takes messages and samples at the end of each second, until it is stopped.
fn run(
    meter: &Meter,
    receiver: &Receiver<Message>,
    collector: &mut Collector,
    gauges: &mut Gauges,
    probe: &mut dyn FnMut(Ask) -> Option<Probe>,
) {
    let start = meter.start();
    let mut next = 1;
    loop {
        let due = start + Duration::from_secs(next);
        match receiver.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return,
            Ok(message) => collector.take(message),
            Err(RecvTimeoutError::Timeout) => {
                let now = start.elapsed().as_secs();
                let ask = gauges.ask(now);
                gauges.sample(now.saturating_sub(1), probe(ask));
                next = now + 1;
                let cpu_ns = process::thread_cpu_s().unwrap_or_default() * 1e9;
                meter.sampler_cpu_ns.store(cpu_ns as u64, Ordering::Relaxed);
            }
        }
    }
}
