//! What is sampled once a second: the process, the engine's counters, and the shape of its tree.
//!
//! Invariant: the growth of a counter is counted once, whatever the number of samples. A counter
//! that fell began anew, so its growth is its value.
//!
//! Threading: belongs to the sampler.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ask, Measured, Probe, QUICK, SLOW_LEVELS_EVERY_S, Second};
use crate::engine::{Figures, Level};
use crate::measure::process::{self, Reading};

/// All samples so far.
#[derive(Debug)]
pub(super) struct Gauges {
    /// Whether the system forgot the highest resident memory at the beginning.
    is_peak_new: bool,
    first: Reading,
    last: Reading,
    figures: Figures,
    /// How much the counters grew since the beginning.
    growth: Figures,
    /// The shape of the tree at the beginning, if the store was open.
    first_levels: Option<Vec<Level>>,
    levels: Vec<Level>,
    /// How long the engine took to give the last shape.
    levels_took: Duration,
    /// When that was, in whole seconds since the start.
    levels_at_s: u64,
    peak_anonymous_bytes: Option<u64>,
    peak_resident_bytes: Option<u64>,
    /// The processor time of each thread at the last sample, by number and name.
    threads: BTreeMap<(i32, String), f64>,
    /// How much it grew since the beginning, by name.
    thread_cpu_s: BTreeMap<String, f64>,
    /// What was sampled, by second; the figures of operations are empty.
    seconds: BTreeMap<u64, Second>,
}

impl Gauges {
    /// Takes the first sample.
    pub(super) fn begin(probe: Option<Probe>) -> Gauges {
        let is_peak_new = process::reset_peak();
        let reading = Reading::now();
        let probe = probe.unwrap_or_default();
        Gauges {
            is_peak_new,
            first: reading,
            last: reading,
            growth: Figures::default(),
            figures: probe.figures,
            levels: probe.levels.clone().unwrap_or_default(),
            first_levels: probe.levels,
            levels_took: probe.levels_took,
            levels_at_s: 0,
            peak_anonymous_bytes: reading.anonymous_bytes,
            peak_resident_bytes: reading.resident_bytes,
            threads: thread_times(),
            thread_cpu_s: BTreeMap::new(),
            seconds: BTreeMap::new(),
        }
    }

    /// What the engine is asked for when this number of seconds has passed.
    pub(super) fn ask(&self, now_s: u64) -> Ask {
        let every_s = match self.levels_took < QUICK {
            true => 1,
            false => SLOW_LEVELS_EVERY_S,
        };
        match now_s >= self.levels_at_s + every_s {
            true => Ask::FiguresAndLevels,
            false => Ask::Figures,
        }
    }

    /// Takes a sample at the end of this second.
    pub(super) fn sample(&mut self, second: u64, probe: Option<Probe>) {
        let (before, now) = (self.last, Reading::now());
        self.last = now;
        self.peak_anonymous_bytes = self.peak_anonymous_bytes.max(now.anonymous_bytes);
        self.peak_resident_bytes = self.peak_resident_bytes.max(now.resident_bytes);
        let growth = |of: fn(&Reading) -> Option<u64>| growth(of(&before), of(&now));
        let mut row = Second {
            second,
            write_call_bytes: growth(|reading| reading.write_call_bytes),
            device_write_bytes: growth(|reading| reading.device_write_bytes),
            device_read_bytes: growth(|reading| reading.device_read_bytes),
            cpu_s: growth_s(before.cpu_s, now.cpu_s),
            resident_bytes: now.resident_bytes,
            anonymous_bytes: now.anonymous_bytes,
            ..Second::default()
        };
        if let Some(probe) = probe {
            self.take_probe(probe, &mut row);
        }
        self.take_threads(thread_times());
        self.seconds.insert(second, row);
    }

    fn take_probe(&mut self, probe: Probe, row: &mut Second) {
        let grown = growth_of(&self.figures, &probe.figures);
        add(&mut self.growth, &grown);
        row.log_bytes = grown.log_bytes;
        row.flush_bytes = grown.flush_bytes;
        row.compaction_read_bytes = grown.compaction_read_bytes;
        row.compaction_bytes = grown.compaction_bytes;
        let busy_us = grown.others.get("gpu_busy_us");
        row.gpu_busy_s = busy_us.map(|busy_us| *busy_us as f64 / 1e6);
        row.stall_s = (!grown.stall_s.is_empty()).then_some(grown.stall_s);
        self.figures = probe.figures;
        if let Some(levels) = probe.levels {
            self.levels.clone_from(&levels);
            self.levels_took = probe.levels_took;
            self.levels_at_s = row.second + 1;
            row.levels = Some(levels);
        }
    }

    fn take_threads(&mut self, now: BTreeMap<(i32, String), f64>) {
        for (thread, cpu_s) in &now {
            let before_s = self.threads.get(thread).copied();
            let grown_s = growth_s(before_s, Some(*cpu_s)).unwrap_or(0.0);
            *self.thread_cpu_s.entry(thread.1.clone()).or_insert(0.0) += grown_s;
        }
        self.threads = now;
    }

    /// Adds everything to what the recorders had, and makes the series whole.
    pub(super) fn finish(mut self, measured: &mut Measured) {
        measured.before = self.first;
        measured.after = self.last;
        measured.figures = self.growth;
        measured.levels = self.levels;
        measured.thread_cpu_s = self.thread_cpu_s;
        measured.peak_anonymous_bytes = self.peak_anonymous_bytes;
        let known_peak = self.last.peak_bytes.filter(|_| self.is_peak_new);
        measured.peak_resident_bytes = self.peak_resident_bytes.max(known_peak);
        let recorded = std::mem::take(&mut measured.seconds);
        let mut recorded: BTreeMap<u64, Second> =
            recorded.into_iter().map(|row| (row.second, row)).collect();
        let last = [recorded.keys().last(), self.seconds.keys().last()];
        let last = last.into_iter().flatten().max().copied().unwrap_or(0);
        let row = |second| {
            let sampled = self.seconds.remove(&second);
            whole(second, sampled, recorded.remove(&second))
        };
        measured.seconds = (0..=last).map(row).collect();
        if let Some(first) = measured.seconds.first_mut()
            && first.levels.is_none()
        {
            first.levels = self.first_levels;
        }
    }
}

/// The processor time of each thread so far.
fn thread_times() -> BTreeMap<(i32, String), f64> {
    let threads = process::threads().unwrap_or_default();
    let time = |thread: process::Thread| ((thread.id, thread.name), thread.cpu_s);
    threads.into_iter().map(time).collect()
}

/// One row of the series.
fn whole(second: u64, sampled: Option<Second>, recorded: Option<Second>) -> Second {
    let recorded = recorded.unwrap_or_default();
    Second {
        second,
        operations: recorded.operations,
        beside_operations: recorded.beside_operations,
        written_bytes: recorded.written_bytes,
        read_bytes: recorded.read_bytes,
        latency: recorded.latency,
        ..sampled.unwrap_or_default()
    }
}

/// How much a counter grew.
fn growth(before: Option<u64>, now: Option<u64>) -> Option<u64> {
    let now = now?;
    Some(now.checked_sub(before.unwrap_or(0)).unwrap_or(now))
}

/// How much a time grew, in seconds. A time that is not a finite number is not known.
fn growth_s(before: Option<f64>, now: Option<f64>) -> Option<f64> {
    let now = now.filter(|now| now.is_finite())?;
    let before = before.filter(|before| before.is_finite()).unwrap_or(0.0);
    Some(if now < before { now } else { now - before })
}

/// How much all counters grew.
fn growth_of(before: &Figures, now: &Figures) -> Figures {
    let stall = |(cause, total_s): (&String, &f64)| {
        let grown = growth_s(before.stall_s.get(cause).copied(), Some(*total_s))?;
        Some((cause.clone(), grown))
    };
    let other = |(name, count): (&String, &u64)| {
        let grown = growth(before.others.get(name).copied(), Some(*count))?;
        Some((name.clone(), grown))
    };
    Figures {
        user_bytes: growth(before.user_bytes, now.user_bytes),
        log_bytes: growth(before.log_bytes, now.log_bytes),
        flush_bytes: growth(before.flush_bytes, now.flush_bytes),
        compaction_read_bytes: growth(before.compaction_read_bytes, now.compaction_read_bytes),
        compaction_bytes: growth(before.compaction_bytes, now.compaction_bytes),
        flush_cpu_s: growth_s(before.flush_cpu_s, now.flush_cpu_s),
        compaction_cpu_s: growth_s(before.compaction_cpu_s, now.compaction_cpu_s),
        stall_s: now.stall_s.iter().filter_map(stall).collect(),
        others: now.others.iter().filter_map(other).collect(),
    }
}

/// Adds `more` to `total`. What only one of them knows is taken from that one.
fn add(total: &mut Figures, more: &Figures) {
    fn sum<T: std::ops::Add<Output = T>>(total: &mut Option<T>, more: Option<T>) {
        *total = match (total.take(), more) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }
    sum(&mut total.user_bytes, more.user_bytes);
    sum(&mut total.log_bytes, more.log_bytes);
    sum(&mut total.flush_bytes, more.flush_bytes);
    sum(&mut total.compaction_read_bytes, more.compaction_read_bytes);
    sum(&mut total.compaction_bytes, more.compaction_bytes);
    sum(&mut total.flush_cpu_s, more.flush_cpu_s);
    sum(&mut total.compaction_cpu_s, more.compaction_cpu_s);
    for (cause, seconds) in &more.stall_s {
        *total.stall_s.entry(cause.clone()).or_insert(0.0) += seconds;
    }
    for (name, count) in &more.others {
        *total.others.entry(name.clone()).or_insert(0) += count;
    }
}
