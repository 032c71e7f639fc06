//! Latencies of one kind of operation.
//!
//! They are kept in a histogram with a resolution of one nanosecond up to 2 us, and of three
//! significant digits above. Recording one takes a few nanoseconds and allocates only if it is the
//! longest so far by a factor of two.
//!
//! Invariants: the count, the mean, the shortest and the longest are exact. A quantile is at most
//! 0.1% above the true one, and never above the longest.
//!
//! Threading: plain data. Each thread has its own, and they are merged.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// Significant digits of the histogram.
const DIGITS: u8 = 3;

/// Points of the cumulative distribution in each factor of ten.
const POINTS_PER_DECADE: f64 = 20.0;

/// An operation that takes longer than this counts as slow, in nanoseconds.
const SLOW_NS: u64 = 1_000_000;

/// Latencies of one kind of operation.
#[derive(Debug, Clone)]
pub struct Latencies {
    /// Nanoseconds.
    counts: Histogram<u64>,
    sum_ns: u64,
    shortest_ns: u64,
    longest_ns: u64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies::new()
    }
}

impl Latencies {
    /// No latencies yet.
    ///
    /// # Panics
    /// Never: the histogram refuses only other numbers of digits.
    pub fn new() -> Latencies {
        Latencies {
            counts: Histogram::new(DIGITS).expect("three significant digits are allowed"),
            sum_ns: 0,
            shortest_ns: u64::MAX,
            longest_ns: 0,
        }
    }

    /// Adds one.
    pub fn record(&mut self, latency: Duration) {
        let seconds_ns = latency.as_secs().saturating_mul(1_000_000_000);
        self.record_ns(seconds_ns.saturating_add(u64::from(latency.subsec_nanos())));
    }

    /// Adds one, given in nanoseconds.
    pub fn record_ns(&mut self, ns: u64) {
        // A histogram that resizes itself takes every value on 64-bit machines.
        if self.counts.record(ns).is_err() {
            self.counts.saturating_record(ns);
        }
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.shortest_ns = self.shortest_ns.min(ns);
        self.longest_ns = self.longest_ns.max(ns);
    }

    /// Adds all latencies of `other`.
    pub fn merge(&mut self, other: &Latencies) {
        if other.is_empty() {
            return;
        }
        // As in `record_ns`, the histogram grows as far as it has to.
        let merged = self.counts.add(&other.counts);
        debug_assert!(merged.is_ok(), "{merged:?}");
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.shortest_ns = self.shortest_ns.min(other.shortest_ns);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Forgets all latencies, and keeps the memory.
    pub fn clear(&mut self) {
        if !self.is_empty() {
            self.counts.reset();
            self.sum_ns = 0;
            self.shortest_ns = u64::MAX;
            self.longest_ns = 0;
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.len()
    }

    /// The latency in microseconds that the given part of all operations does not exceed.
    pub fn quantile_us(&self, part: f64) -> Option<f64> {
        let found = self.counts.value_at_quantile(part).min(self.longest_ns);
        (!self.is_empty()).then(|| us(found.max(self.shortest_ns)))
    }

    /// The longest in microseconds.
    pub fn longest_us(&self) -> Option<f64> {
        (!self.is_empty()).then(|| us(self.longest_ns))
    }

    /// What the record says of them; `None` if there are none.
    pub fn summary(&self) -> Option<LatencySummary> {
        Some(LatencySummary {
            count: self.count(),
            mean_us: us(self.sum_ns) / self.count() as f64,
            min_us: us(self.shortest_ns),
            p50_us: self.quantile_us(0.5)?,
            p90_us: self.quantile_us(0.9)?,
            p99_us: self.quantile_us(0.99)?,
            p999_us: self.quantile_us(0.999)?,
            p9999_us: self.quantile_us(0.9999)?,
            max_us: self.longest_us()?,
            slow_s: self.slow_s(),
            cdf: self.distribution(),
        })
    }

    /// The sum of the latencies above one millisecond, in seconds.
    fn slow_s(&self) -> f64 {
        let slow = self
            .counts
            .iter_recorded()
            .filter(|step| step.value_iterated_to() > SLOW_NS);
        let sum_ns: f64 = slow
            .map(|step| {
                let middle_ns = self.counts.median_equivalent(step.value_iterated_to());
                middle_ns.min(self.longest_ns) as f64 * step.count_at_value() as f64
            })
            .sum();
        sum_ns / 1e9
    }

    /// The cumulative distribution: pairs of a latency in microseconds and the part of all
    /// operations that did not take longer, both ascending. The last pair is the longest and 1.
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let mut points: Vec<(f64, f64)> = Vec::new();
        let (mut seen, mut cell) = (0u64, i64::MIN);
        for step in self.counts.iter_recorded() {
            seen += step.count_at_value();
            let latency_us = us(step.value_iterated_to().min(self.longest_ns));
            let point = (latency_us, seen as f64 / self.count() as f64);
            let here = (latency_us.max(1e-3).log10() * POINTS_PER_DECADE).floor() as i64;
            match points.last_mut() {
                Some(last) if here == cell => *last = point,
                _ => points.push(point),
            }
            cell = here;
        }
        points
    }
}

/// Microseconds of nanoseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// What a record says of the latencies of one kind of operation. Quantiles are at most 0.1% too
/// large; the other figures are exact.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LatencySummary {
    /// How many calls were measured. A batch is one call.
    pub count: u64,
    /// The mean in microseconds.
    pub mean_us: f64,
    /// The shortest in microseconds.
    pub min_us: f64,
    /// The median in microseconds.
    pub p50_us: f64,
    /// What 90% did not exceed, in microseconds.
    pub p90_us: f64,
    /// What 99% did not exceed, in microseconds.
    pub p99_us: f64,
    /// What 99.9% did not exceed, in microseconds.
    pub p999_us: f64,
    /// What 99.99% did not exceed, in microseconds.
    pub p9999_us: f64,
    /// The longest in microseconds.
    pub max_us: f64,
    /// The sum of the latencies above one millisecond, in seconds of all threads together. It shows
    /// stalls of engines that do not count their stalls.
    pub slow_s: f64,
    /// The cumulative distribution for plots: pairs of a latency in microseconds and the part of
    /// all calls that did not take longer, both ascending, at most 20 pairs in each factor of ten.
    pub cdf: Vec<(f64, f64)>,
}
