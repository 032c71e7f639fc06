//! How many operations a second an open loop intends, as a function of time.
//!
//! A [`Rate`] is constant, or goes through phases again and again, or follows a sine. Peaks and
//! valleys are phases. SILK (Balmau et al., ATC 2019) measures bursts of writes that compaction
//! cannot follow, with calm times between: its `LongPeakTest` (`tools/db_bench_tool.cc` of
//! `theoanab/SILK-USENIXATC2019` at 35385f14) runs peaks of 50 seconds and valleys of 10 seconds
//! after 210 calm seconds, half of the operations being writes. Five threads sleep for 70
//! microseconds between two operations in a peak and for 700 in a valley, so a valley has at most a
//! tenth of the rate of a peak ([`SILK_PEAK`], [`SILK_VALLEY`]). The sine is that of mixgraph in
//! `db_bench`, which adjusts its rate in steps of some seconds; here it is smooth.
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
    /// `a * sin(b * t + c) + d` operations a second after `t` seconds.
    Sine {
        /// The amplitude in operations a second, at most `d`.
        a: f64,
        /// The angular frequency: 2 pi divided by the period in seconds.
        b: f64,
        /// The phase at the start, in radians.
        c: f64,
        /// The mean rate in operations a second.
        d: f64,
    },
}

const NANOSECONDS: f64 = 1e9;
/// One arrival, in the unit in which arrivals are counted.
pub(super) const ONE: f64 = 18_446_744_073_709_551_616.0;

impl Rate {
    /// Refuses rates that are negative, not finite or above 10^12 a second, phases without an
    /// arrival, and a sine that becomes negative.
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
            Rate::Sine { a, b, c, d } => check_sine(*a, *b, *c, *d),
        }
    }

    /// The intended operations a second at a time.
    pub fn at(&self, seconds: f64) -> f64 {
        match self {
            Rate::Constant(per_second) => *per_second,
            Rate::Phases(phases) => {
                let mut rest = seconds % phases.iter().map(|p| p.seconds).sum::<f64>();
                let mut in_phase = |phase: &&Phase| {
                    rest -= phase.seconds;
                    rest < 0.0
                };
                let phase = phases.iter().find(&mut in_phase).or(phases.last());
                phase.map_or(0.0, |phase| phase.per_second)
            }
            Rate::Sine { a, b, c, d } => a * (b * seconds + c).sin() + d,
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
            Rate::Sine { d, .. } => *d,
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

fn check_sine(a: f64, b: f64, c: f64, d: f64) -> Result<(), ParameterError> {
    require(
        (1e-6..=1e12).contains(&d),
        "rate",
        "sine_d",
        d,
        "from 10^-6 to 10^12",
    )?;
    require(
        a.abs() <= d,
        "rate",
        "sine_a",
        a,
        "at most sine_d, or the rate would be negative",
    )?;
    require(
        (1e-9..=1e3).contains(&b),
        "rate",
        "sine_b",
        b,
        "from 10^-9 to 1000",
    )?;
    require(c.abs() <= 1e3, "rate", "sine_c", c, "from -1000 to 1000")
}

/// Finds the times of arrivals in ascending order.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    shape: Shape,
    cycle_nanoseconds: f64,
    /// The arrivals of a cycle in units of 2^-64.
    cycle_arrivals: u128,
    cycle: u64,
    /// The arrivals before this cycle, `cycle * cycle_arrivals`.
    cycle_begin: u128,
}

#[derive(Debug, Clone)]
enum Shape {
    Phases(Vec<Segment>),
    Sine { wave: Wave, last_seconds: f64 },
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
            Rate::Sine { a, b, c, d } => Schedule::of_sine(*a, *b, *c, *d),
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
        let shape = Shape::Phases(busy.collect());
        Schedule::with_cycle(shape, nanoseconds, arrivals)
    }

    fn of_sine(a: f64, b: f64, c: f64, d: f64) -> Schedule {
        let seconds = std::f64::consts::TAU / b;
        let shape = Shape::Sine {
            wave: Wave {
                a,
                b,
                c,
                d,
                seconds,
            },
            last_seconds: 0.0,
        };
        Schedule::with_cycle(shape, seconds * NANOSECONDS, seconds * d)
    }

    fn with_cycle(shape: Shape, cycle_nanoseconds: f64, arrivals: f64) -> Schedule {
        Schedule {
            shape,
            cycle_nanoseconds,
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
            self.shape.restart();
        }
        let begin = self.cycle as f64 * self.cycle_nanoseconds;
        (begin + self.shape.nanoseconds(within as f64 / ONE)) as u64
    }
}

impl Shape {
    fn restart(&mut self) {
        if let Shape::Sine { last_seconds, .. } = self {
            *last_seconds = 0.0;
        }
    }

    /// The time within a cycle, from the arrivals within it.
    #[inline]
    fn nanoseconds(&mut self, arrivals: f64) -> f64 {
        match self {
            Shape::Phases(segments) => {
                let found = segments.partition_point(|s| s.arrivals_after <= arrivals);
                let segment = segments[found.min(segments.len() - 1)];
                let after = arrivals - segment.arrivals_before;
                segment.nanoseconds_before + after * segment.nanoseconds_per_arrival
            }
            Shape::Sine { wave, last_seconds } => {
                *last_seconds = wave.time_of(arrivals, *last_seconds);
                *last_seconds * NANOSECONDS
            }
        }
    }
}

/// One period of `a * sin(b * t + c) + d`.
#[derive(Debug, Clone, Copy)]
struct Wave {
    a: f64,
    b: f64,
    c: f64,
    d: f64,
    /// The period.
    seconds: f64,
}

impl Wave {
    /// The arrivals before a time: the integral of the rate.
    fn arrivals(&self, seconds: f64) -> f64 {
        let cosines = self.c.cos() - (self.b * seconds + self.c).cos();
        self.d * seconds + self.a / self.b * cosines
    }

    /// The time at which `arrivals` have arrived, not before `from`. Newton's method starts at the
    /// previous arrival, so that two steps suffice, and is kept within bounds, so that it converges
    /// where the rate is 0.
    fn time_of(&self, arrivals: f64, from: f64) -> f64 {
        let (mut low, mut high) = (from, self.seconds);
        let mut time = from;
        for _ in 0..100 {
            let missing = arrivals - self.arrivals(time);
            if missing > 0.0 {
                low = time;
            } else {
                high = time;
            }
            let rate = self.a * (self.b * time + self.c).sin() + self.d;
            let mut next = time + missing / rate;
            if !(low..=high).contains(&next) {
                next = (low + high) / 2.0;
            }
            let step = (next - time).abs();
            time = next;
            if step < 1e-10 {
                break;
            }
        }
        time
    }
}

#[cfg(test)]
mod tests;
