//! Cuts a timeline into equal spans for charts: the rates of counters, and the bytes that were
//! held.
//!
//! Invariant: for any position of the samples in the spans, the sum of a rate over all spans is the
//! total of the samples.

use super::model::{Counts, Timeline};
use siltstone_bench::draw::axis::round_step;

/// Equal spans that cover a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bins {
    /// The length of each span.
    pub width_s: f64,
    /// The number of spans.
    pub count: usize,
}

impl Bins {
    /// The spans for a run of this length: of a second each, but not fewer than about sixty, and
    /// never more than a thousand.
    pub fn of(length_s: f64) -> Bins {
        let length_s = if length_s.is_finite() {
            length_s.max(0.0)
        } else {
            0.0
        };
        let width_s = if length_s < 120.0 {
            round_step((length_s / 150.0).max(0.01)).clamp(0.05, 1.0)
        } else {
            round_step(length_s / 1000.0).max(1.0)
        };
        Bins {
            width_s,
            count: (length_s / width_s).ceil().clamp(1.0, 1000.0) as usize,
        }
    }

    fn index(&self, at_s: f64) -> usize {
        // The conversion saturates, and gives 0 for NaN.
        ((at_s / self.width_s) as usize).min(self.count - 1)
    }

    /// The beginning of a span.
    pub fn start_s(&self, bin: usize) -> f64 {
        bin as f64 * self.width_s
    }

    /// Spreads `amount` evenly over the time from `from_s` to `to_s`.
    fn spread(&self, sums: &mut [f64], from_s: f64, to_s: f64, amount: f64) {
        let (first, last) = (self.index(from_s), self.index(to_s));
        if first == last || to_s.partial_cmp(&from_s) != Some(std::cmp::Ordering::Greater) {
            sums[last] += amount;
            return;
        }
        for (bin, sum) in sums.iter_mut().enumerate().take(last + 1).skip(first) {
            let begin = if bin == first {
                from_s
            } else {
                self.start_s(bin)
            };
            let end = if bin == last {
                to_s
            } else {
                self.start_s(bin + 1)
            };
            *sum += amount * (end - begin) / (to_s - from_s);
        }
    }

    /// The growth of a counter, per second.
    pub fn rate(&self, timeline: &Timeline, count: impl Fn(&Counts) -> u64) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        let mut last: Vec<(f64, u64)> = timeline.opened_s.iter().map(|at| (*at, 0)).collect();
        for sample in &timeline.samples {
            let Some(last) = last.get_mut(sample.opening) else {
                continue;
            };
            let now = count(&sample.counts);
            self.spread(
                &mut sums,
                last.0,
                sample.at_s,
                now.saturating_sub(last.1) as f64,
            );
            *last = (sample.at_s, now.max(last.1));
        }
        self.per_second(sums)
    }

    /// The pairs that were read, per second.
    pub fn reads(&self, timeline: &Timeline) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        let mut last = (0.0, 0);
        for now in &timeline.reads {
            self.spread(
                &mut sums,
                last.0,
                now.0,
                now.1.saturating_sub(last.1) as f64,
            );
            last = *now;
        }
        self.per_second(sums)
    }

    fn per_second(&self, mut sums: Vec<f64>) -> Vec<f64> {
        sums.iter_mut().for_each(|sum| *sum /= self.width_s);
        sums
    }

    /// The bytes that the store held at the end of each span, by its last sample. (The openings of
    /// a store follow each other.)
    pub fn held(&self, timeline: &Timeline, value: impl Fn(&Counts) -> u64) -> Vec<f64> {
        let mut values = vec![None; self.count];
        for sample in &timeline.samples {
            values[self.index(sample.at_s)] = Some(value(&sample.counts) as f64);
        }
        let mut last = 0.0;
        values
            .into_iter()
            .map(|value| {
                last = value.unwrap_or(last);
                last
            })
            .collect()
    }

    /// The time that writers waited in each span, in seconds.
    pub fn delayed_s(&self, timeline: &Timeline) -> Vec<f64> {
        let mut sums = vec![0.0; self.count];
        for delay in &timeline.delays {
            let length_s = delay.length_us as f64 / 1e6;
            self.spread(&mut sums, delay.from_s, delay.from_s + length_s, length_s);
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::{Delayed, Sample};

    fn sample(at_s: f64, opening: usize, user_bytes: u64) -> Sample {
        Sample {
            at_s,
            opening,
            counts: Counts {
                user_bytes,
                memtable_bytes: user_bytes,
                ..Counts::default()
            },
        }
    }

    #[test]
    fn spans_fit_the_run() {
        for (length, width, count) in [
            (0.0, 0.05, 1),
            (3.0, 0.05, 60),
            (20.0, 0.2, 100),
            (100.0, 1.0, 100),
            (600.0, 1.0, 600),
            (7200.0, 10.0, 720),
        ] {
            let bins = Bins::of(length);
            assert!(
                (bins.width_s - width).abs() < 1e-9 && bins.count == count,
                "{length}: {bins:?}"
            );
        }
        assert_eq!(Bins::of(f64::NAN).count, 1);
        assert_eq!(Bins::of(1e300).count, 1000);
    }

    #[test]
    fn rates_sum_up_to_what_was_counted() {
        let timeline = Timeline {
            length_s: 10.0,
            opened_s: vec![0.3, 5.0],
            samples: vec![
                sample(1.7, 0, 100),
                sample(1.7, 0, 150),
                sample(4.9, 0, 400),
                sample(5.1, 1, 30),
                sample(9.99, 1, 1_000),
                sample(50.0, 7, 9),
            ],
            reads: vec![(1.0, 10), (20.0, 500)],
            delays: vec![Delayed {
                from_s: 2.0,
                length_us: 1_500_000,
                ..Delayed::default()
            }],
            ..Timeline::default()
        };
        let bins = Bins::of(timeline.length_s);
        let rate = bins.rate(&timeline, |c| c.user_bytes);
        let sum = |rates: &[f64]| rates.iter().sum::<f64>() * bins.width_s;
        assert!((sum(&rate) - 1_400.0).abs() < 1e-6, "{rate:?}");
        assert!((sum(&bins.reads(&timeline)) - 500.0).abs() < 1e-6);
        assert!((bins.delayed_s(&timeline).iter().sum::<f64>() - 1.5).abs() < 1e-9);
        let held = bins.held(&timeline, |c| c.memtable_bytes);
        assert_eq!(
            (held[0], held[bins.index(3.0)], held[bins.index(5.5)]),
            (0.0, 150.0, 30.0)
        );
    }

    #[test]
    fn nothing_is_nothing() {
        let bins = Bins::of(0.0);
        let empty = Timeline::default();
        assert_eq!(bins.rate(&empty, |c| c.user_bytes), [0.0]);
        assert_eq!(bins.held(&empty, |c| c.user_bytes), [0.0]);
        assert_eq!(bins.reads(&empty), [0.0]);
    }
}
