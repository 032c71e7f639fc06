//! What the detector has seen of a keyspace and says of it ([`crate::types::detect`]).
//!
//! Threading: one mutex for each keyspace, which is held over nothing else.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Mutex, Runtime, planted};

use crate::types::detect::{Bounds, Forecast, Limit, Sample, WINDOW, forecast};

/// The number of samples that are kept. They are taken when a memtable is sealed or a job is
/// installed, so this many are more than a window has, unless memtables are tiny.
const SAMPLES_MAX: usize = 64;

/// A burst is not over before the first time without a memtable that is sealed, and is after the
/// second.
const BURST_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

/// See the module.
pub(crate) struct Watch {
    seen: Mutex<Seen>,
    /// One more than the time since which memtables fill faster than they are flushed, in
    /// microseconds since the store was opened; 0 if they do not.
    behind: AtomicU64,
    /// When a memtable was sealed last, in microseconds since the store was opened, and how long
    /// after the one before.
    last_sealed_us: AtomicU64,
    sealed_after_us: AtomicU64,
    /// Bytes of the memtables that were sealed.
    pub(crate) sealed_bytes: AtomicU64,
    /// Bytes of the memtables that were flushed.
    pub(crate) flushed_bytes: AtomicU64,
}

#[derive(Default)]
struct Seen {
    samples: VecDeque<Sample>,
    last: Forecast,
    since_us: u64,
}

/// A change of what the detector says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing has changed.
    None,
    /// A stall is ahead because of this limit.
    Began(Limit),
    /// No stall is ahead any more; one was for this time, in microseconds.
    Ended(u64),
}

impl Watch {
    pub(crate) fn new(runtime: &Runtime) -> Watch {
        Watch {
            seen: runtime.mutex(Seen::default()),
            behind: AtomicU64::new(0),
            last_sealed_us: AtomicU64::new(0),
            sealed_after_us: AtomicU64::new(0),
            sealed_bytes: AtomicU64::new(0),
            flushed_bytes: AtomicU64::new(0),
        }
    }

    /// Adds a sample, and asks the detector. A flush of a memtable takes `flush`.
    pub(crate) fn observe(&self, sample: Sample, bounds: &Bounds, flush: Duration) -> Change {
        let mut seen = self.seen.lock();
        let window_us = WINDOW.as_micros() as u64;
        // Of the samples before the window, the newest one is needed.
        let is_old = |s: &Sample| s.at_us.saturating_add(window_us) < sample.at_us;
        while seen.samples.len() >= SAMPLES_MAX || seen.samples.get(1).is_some_and(is_old) {
            seen.samples.pop_front();
        }
        seen.samples.push_back(sample);
        let before = seen.last.stall_ahead;
        let samples = seen.samples.make_contiguous();
        let now = forecast(samples, bounds, before, flush);
        seen.last = now;
        match (before, now.stall_ahead) {
            (None, Some(limit)) => {
                seen.since_us = sample.at_us;
                Change::Began(limit)
            }
            (Some(_), None) => Change::Ended(sample.at_us.saturating_sub(seen.since_us)),
            _ => Change::None,
        }
    }

    /// What the detector would say of this sample, and since when a stall is ahead, in microseconds
    /// since the store was opened. Nothing is kept: a reader of statistics changes nothing.
    pub(crate) fn forecast(
        &self,
        sample: Sample,
        bounds: &Bounds,
        flush: Duration,
    ) -> (Forecast, Option<u64>) {
        let seen = self.seen.lock();
        let mut samples: Vec<Sample> = seen.samples.iter().copied().collect();
        samples.push(sample);
        let ahead = seen.last.stall_ahead;
        let mut now = forecast(&samples, bounds, ahead, flush);
        // Only an observation begins or ends a stall that is ahead.
        now.stall_ahead = ahead;
        (now, ahead.map(|_| seen.since_us))
    }

    /// Ends a stall that is ahead. Returns for how long it was, in microseconds.
    pub(crate) fn end(&self, now_us: u64) -> Option<u64> {
        let mut seen = self.seen.lock();
        let ahead = seen.last.stall_ahead.take();
        ahead.map(|_| now_us.saturating_sub(seen.since_us))
    }

    /// A memtable was sealed at this time since the store was opened.
    pub(crate) fn set_last_sealed(&self, at: Duration) {
        let us = at.as_micros() as u64;
        let before = self.last_sealed_us.swap(us, Ordering::Relaxed);
        let after = us.saturating_sub(before);
        self.sealed_after_us.store(after, Ordering::Relaxed);
    }

    /// When the burst is over that fills memtables, as time since the store was opened, if none is
    /// sealed before that: twice as long after the last one as that was after the one before.
    pub(crate) fn burst_ends(&self) -> Duration {
        let us = |of: &AtomicU64| Duration::from_micros(of.load(Ordering::Relaxed));
        let (shortest, longest) = BURST_PAUSE;
        us(&self.last_sealed_us) + (us(&self.sealed_after_us) * 2).clamp(shortest, longest)
    }

    /// Whether memtables fill faster than they are flushed.
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::Relaxed) != 0
    }

    /// Since when memtables fill faster than they are flushed, in microseconds since the store was
    /// opened.
    pub(crate) fn behind_since_us(&self) -> Option<u64> {
        self.behind.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets [`Watch::is_behind`], which holds from now on if it did not. Returns whether this is a
    /// change.
    pub(crate) fn set_behind(&self, behind: bool, now_us: u64) -> bool {
        let since = match behind {
            true => self.behind_since_us().unwrap_or(now_us).saturating_add(1),
            false => 0,
        };
        let before = self.behind.swap(since, Ordering::Relaxed);
        (before == 0) != (since == 0)
    }

    /// Whether the detector must be asked again although nothing happens: only that ends a stall
    /// that is ahead after the last job was installed.
    pub(crate) fn needs_look(&self) -> bool {
        let stall_ahead = self.seen.lock().last.stall_ahead.is_some();
        (self.is_behind() || stall_ahead) && !planted!(StallStaysAhead)
    }
}
