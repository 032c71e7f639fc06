//! How many operations a second an open loop intends, as a function of time.
//!
//! A [`Rate`] is constant, or goes through phases again and again. Peaks and valleys are phases.
//! SILK (Balmau et al., ATC 2019) measures bursts of writes that compaction cannot follow, with
//! calm times between: its `LongPeakTest` (`tools/db_bench_tool.cc` of
//! `theoanab/SILK-USENIXATC2019` at 35385f14) runs peaks of 50 seconds and valleys of 10 seconds
//! after 210 calm seconds, half of the operations being writes. Five threads sleep for 70
//! microseconds between two operations in a peak and for 700 in a valley, so a valley has at most a
//! tenth of the rate of a peak ([`SILK_PEAK`], [`SILK_VALLEY`]).
//!
//! All rates repeat after a cycle. The number of arrivals before a cycle is an exact product in
//! units of 2^-64, so times do not drift, however long a run is.
//!
//! Threading: a rate is shared by reference, and a schedule belongs to one thread.

use super::error::{ParameterError, require};

/// The peak of SILK's `LongPeakTest`: the rate that its sleeps allow at most.
pub const SILK_PEAK: Phase = Phase {
    seconds: 50.0,
    per_second: 5.0 / 70e-6,
};

/// The valley of SILK's `LongPeakTest`.
pub const SILK_VALLEY: Phase = Phase {
    seconds: 10.0,
    per_second: 5.0 / 700e-6,
};

/// A time with a constant rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Phase {
    /// How long the phase takes, in seconds.
    pub seconds: f64,
    /// The operations of all threads in a second. It may be 0.
    pub per_second: f64,
}

/// The intended operations a second, of all threads together.
#[derive(Debug, Clone, PartialEq)]
pub enum Rate {
    /// The same rate all the time, in operations a second.
    Constant(f64),
    /// These phases in order, repeated.
    Phases(Vec<Phase>),
}

const NANOSECONDS: f64 = 1e9;
/// One arrival, in the unit in which arrivals are counted.
pub(super) const ONE: f64 = 18_446_744_073_709_551_616.0;

impl Rate {
    /// Refuses rates that are negative, not finite or above 10^12 a second, and phases without an
    /// arrival.
    pub fn check(&self) -> Result<(), ParameterError> {
        match self {
            Rate::Constant(per_second) => {
                let accepted = (1e-6..=1e12).contains(per_second);
                require(
                    accepted,
                    "rate",
                    "per_second",
                    per_second,
                    "from 10^-6 to 10^12",
                )
            }
            Rate::Phases(phases) => check_phases(phases),
        }
    }

    /// The mean of the intended operations a second over a cycle.
    pub fn mean_per_second(&self) -> f64 {
        match self {
            Rate::Constant(per_second) => *per_second,
            Rate::Phases(phases) => {
                let seconds: f64 = phases.iter().map(|p| p.seconds).sum();
                phases.iter().map(|p| p.seconds * p.per_second).sum::<f64>() / seconds
            }
        }
    }
}

fn check_phases(phases: &[Phase]) -> Result<(), ParameterError> {
    require(
        !phases.is_empty(),
        "rate",
        "phases",
        "empty",
        "at least one phase",
    )?;
    for phase in phases {
        let accepted = (1e-3..=1e9).contains(&phase.seconds);
        require(
            accepted,
            "rate",
            "seconds",
            phase.seconds,
            "from 10^-3 to 10^9",
        )?;
        let accepted = (0.0..=1e12).contains(&phase.per_second);
        require(
            accepted,
            "rate",
            "per_second",
            phase.per_second,
            "from 0 to 10^12",
        )?;
    }
    let arrivals: f64 = phases.iter().map(|p| p.seconds * p.per_second).sum();
    let expected = "such that the phases have at least 10^-6 operations";
    require(arrivals >= 1e-6, "rate", "per_second", arrivals, expected)
}

/// Finds the times of arrivals in ascending order.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    /// The phases in which something arrives.
    segments: Vec<Segment>,
    cycle_nanoseconds: f64,
    /// The arrivals of a cycle in units of 2^-64.
    cycle_arrivals: u128,
    cycle: u64,
    /// The arrivals before this cycle, `cycle * cycle_arrivals`.
    cycle_begin: u128,
}

/// A phase as a line from arrivals to time.
#[derive(Debug, Clone, Copy)]
struct Segment {
    arrivals_before: f64,
    arrivals_after: f64,
    nanoseconds_before: f64,
    nanoseconds_per_arrival: f64,
}

impl Schedule {
    /// The schedule of a rate that `check` accepts.
    pub(super) fn new(rate: &Rate) -> Result<Schedule, ParameterError> {
        rate.check()?;
        Ok(match rate {
            Rate::Constant(per_second) => Schedule::of_phases(&[Phase {
                seconds: 1.0,
                per_second: *per_second,
            }]),
            Rate::Phases(phases) => Schedule::of_phases(phases),
        })
    }

    fn of_phases(phases: &[Phase]) -> Schedule {
        let (mut arrivals, mut nanoseconds) = (0.0, 0.0);
        let segments = phases.iter().map(|phase| {
            let duration = (phase.seconds * NANOSECONDS).round();
            let (arrivals_before, nanoseconds_before) = (arrivals, nanoseconds);
            arrivals += duration / NANOSECONDS * phase.per_second;
            nanoseconds += duration;
            Segment {
                arrivals_before,
                arrivals_after: arrivals,
                nanoseconds_before,
                nanoseconds_per_arrival: NANOSECONDS / phase.per_second,
            }
        });
        // Phases with a rate of 0 are only gaps between the others.
        let busy = segments.filter(|s| s.arrivals_after > s.arrivals_before);
        let segments = busy.collect();
        Schedule {
            segments,
            cycle_nanoseconds: nanoseconds,
            cycle_arrivals: ((arrivals * ONE) as u128).max(1),
            cycle: 0,
            cycle_begin: 0,
        }
    }

    /// The time in nanoseconds at which `arrivals` (in units of 2^-64) have arrived. Calls ask for
    /// more and more arrivals.
    #[inline]
    pub(super) fn nanoseconds(&mut self, arrivals: u128) -> u64 {
        let mut within = arrivals.saturating_sub(self.cycle_begin);
        if within >= self.cycle_arrivals {
            let cycles = within / self.cycle_arrivals;
            within %= self.cycle_arrivals;
            self.cycle = self
                .cycle
                .saturating_add(u64::try_from(cycles).unwrap_or(u64::MAX));
            self.cycle_begin = arrivals - within;
        }
        let begin = self.cycle as f64 * self.cycle_nanoseconds;
        (begin + self.nanoseconds_within(within as f64 / ONE)) as u64
    }

    /// The time within a cycle, from the arrivals within it.
    #[inline]
    fn nanoseconds_within(&self, arrivals: f64) -> f64 {
        let segments = &self.segments;
        let found = segments.partition_point(|s| s.arrivals_after <= arrivals);
        let segment = segments[found.min(segments.len() - 1)];
        let after = arrivals - segment.arrivals_before;
        segment.nanoseconds_before + after * segment.nanoseconds_per_arrival
    }
}

#[cfg(test)]
mod tests;
