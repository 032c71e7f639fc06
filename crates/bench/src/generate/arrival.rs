//! The intended start times of the operations of an open loop.
//!
//! An operation of an open loop starts at its intended time even if earlier ones are late, and its
//! latency counts from that time, so stalls cannot hide. The times are a function of the rate, the
//! seed and the thread; what the store does has no influence.
//!
//! With [`Spacing::Even`], thread `t` of `T` takes every T-th arrival of one even sequence. With
//! [`Spacing::Poisson`], each thread has a Poisson process with a share of `1 / T` of the rate, and
//! together they are a Poisson process with the full rate. Gaps are added up as whole numbers of
//! 2^-64 arrivals, so neither rounding nor the length of a run makes the times drift.
//!
//! A time costs 10 to 40 nanoseconds.
//!
//! Threading: the arrivals of one thread belong to it.

use super::error::ParameterError;
use super::random::{Random, Stream};
use super::rate::{ONE, Rate, Schedule};

/// How arrivals are spaced at a constant rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// All gaps are equal.
    Even,
    /// The gaps are independent and exponential, as if many users act independently.
    Poisson,
}

/// The start times of one thread, in ascending order. It is an endless iterator over nanoseconds
/// since the start of the run.
#[derive(Debug, Clone)]
pub struct Arrivals {
    schedule: Schedule,
    gaps: Gaps,
    threads: u32,
}

#[derive(Debug, Clone)]
enum Gaps {
    /// The number of the thread's next arrival among those of all threads.
    Even { next: u64 },
    /// The sum of the gaps in units of 2^-64 arrivals.
    Poisson { sum: u128, random: Random },
}

impl Arrivals {
    /// The share of a thread. Even spacing does not draw from the stream.
    pub fn new(rate: &Rate, spacing: Spacing, stream: Stream) -> Result<Arrivals, ParameterError> {
        let gaps = match spacing {
            Spacing::Even => Gaps::Even {
                next: u64::from(stream.thread()),
            },
            Spacing::Poisson => Gaps::Poisson {
                sum: 0,
                random: stream.random(),
            },
        };
        Ok(Arrivals {
            schedule: Schedule::new(rate)?,
            gaps,
            threads: stream.threads(),
        })
    }

    /// The next intended start, in nanoseconds since the start of the run. It is `u64::MAX` when
    /// time ends, after 584 years.
    #[inline]
    pub fn next_nanoseconds(&mut self) -> u64 {
        let arrivals = match &mut self.gaps {
            Gaps::Even { next } => {
                let arrivals = u128::from(*next) << 64;
                *next = next.saturating_add(u64::from(self.threads));
                arrivals
            }
            Gaps::Poisson { sum, random } => {
                let gap = (random.exponential() * ONE) as u128 * u128::from(self.threads);
                *sum = sum.saturating_add(gap);
                *sum
            }
        };
        self.schedule.nanoseconds(arrivals)
    }
}

impl Iterator for Arrivals {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        Some(self.next_nanoseconds())
    }
}

#[cfg(test)]
mod tests {
    use super::super::rate::Phase;
    use super::*;

    fn arrivals(rate: &Rate, spacing: Spacing, thread: u32, threads: u32) -> Arrivals {
        Arrivals::new(rate, spacing, Stream::new(1, thread, threads).unwrap()).unwrap()
    }

    #[test]
    fn even_shares_are_the_whole_sequence() {
        let rate = Rate::Constant(7.0);
        let whole: Vec<u64> = arrivals(&rate, Spacing::Even, 0, 1).take(90).collect();
        let mut shares: Vec<u64> = (0..3)
            .flat_map(|t| arrivals(&rate, Spacing::Even, t, 3).take(30))
            .collect();
        shares.sort_unstable();
        assert_eq!(shares, whole);
        assert_eq!(whole[..3], [0, 142_857_142, 285_714_285]);
    }

    /// Ten hours at 100 operations a second: every time is where exact arithmetic puts it.
    #[test]
    fn even_times_do_not_drift_over_hours() {
        let mut sequence = arrivals(&Rate::Constant(99.0), Spacing::Even, 0, 1);
        for number in 0..36_000u64 * 99 {
            let exact = u128::from(number) * 1_000_000_000 / 99;
            let time = sequence.next_nanoseconds();
            assert!(u128::from(time).abs_diff(exact) <= 1, "{number}: {time}");
        }
    }

    #[test]
    fn the_count_of_poisson_arrivals_follows_the_rate() {
        let peak = Phase {
            seconds: 10.0,
            per_second: 900.0,
        };
        let valley = Phase {
            seconds: 20.0,
            per_second: 100.0,
        };
        let rate = Rate::Phases(vec![peak, valley]);
        let end = 30_000_000_000 * 20;
        let times: Vec<u64> = (0..4)
            .flat_map(|t| arrivals(&rate, Spacing::Poisson, t, 4).take_while(|&t| t < end))
            .collect();
        let in_peaks = times
            .iter()
            .filter(|&&t| t % 30_000_000_000 < 10_000_000_000)
            .count();
        // 20 cycles have 180,000 and 40,000 arrivals; their standard deviations are the roots.
        assert!(in_peaks.abs_diff(180_000) < 5 * 424, "{in_peaks}");
        assert!(
            (times.len() - in_peaks).abs_diff(40_000) < 5 * 200,
            "{}",
            times.len()
        );
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let mut sequence = arrivals(&Rate::Constant(1e6), Spacing::Poisson, 0, 1);
        let mut last = 0;
        let mut gaps: Vec<u64> = Vec::new();
        for _ in 0..100_000 {
            let time = sequence.next_nanoseconds();
            gaps.push(time - last);
            last = time;
        }
        for limit in [100u64, 693, 1000, 3000] {
            let share = gaps.iter().filter(|&&gap| gap > limit).count() as f64 / 1e5;
            let expected = (-(limit as f64) / 1000.0).exp();
            assert!(
                (share - expected).abs() < 0.008,
                "{limit}: {share}, {expected}"
            );
        }
    }

    #[test]
    fn a_seed_repeats_its_times_and_threads_differ() {
        let rate = Rate::Constant(1000.0);
        let take = |seed, thread| -> Vec<u64> {
            let stream = Stream::new(seed, thread, 2).unwrap();
            let arrivals = Arrivals::new(&rate, Spacing::Poisson, stream).unwrap();
            arrivals.take(100).collect()
        };
        assert_eq!(take(1, 0), take(1, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_ne!(take(1, 0), take(2, 0));
    }

    #[test]
    fn a_senseless_rate_is_refused() {
        let stream = Stream::new(1, 0, 1).unwrap();
        assert!(Arrivals::new(&Rate::Constant(0.0), Spacing::Even, stream).is_err());
    }
}
