//! Axes: map values to positions, with ticks at 1, 2 and 5 times powers of ten.
//!
//! Invariant: whatever the values (none, all the same, infinite, not a number), a position is a
//! finite number from 0 to 1 and an axis has a tick.
//!
//! Threading: pure functions.

use super::number::{Unit, grouped, with_unit};

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    low: f64,
    high: f64,
    scale: Scale,
    /// Its ticks, in order.
    pub ticks: Vec<Tick>,
}

/// How an axis maps values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Linear,
    Log,
    /// Parts of a whole by their distance from 1, see [`Axis::nines`].
    Nines,
}

/// A tick of an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// The position: 0 is the axis' beginning, 1 its end.
    pub at: f64,
    /// The value with its unit.
    pub label: String,
    /// Whether the label may be omitted if there is little space.
    pub minor: bool,
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
pub fn round_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0]
        .into_iter()
        .map(|n| n * power)
        .find(|step| *step >= least * (1.0 - 1e-9));
    step.unwrap_or(10.0 * power)
}

/// The largest value of an axis, which is 1 if `max` is not a number above 0, and the distance of
/// its ticks, which divides it into about `count` parts.
fn max_and_step(max: f64, count: usize, unit: Unit) -> (f64, f64) {
    let is_usable = max.is_finite() && max > 0.0;
    let max = if is_usable { max } else { 1.0 };
    let size = unit.step(max).0;
    (max, round_step(max / size / count.max(1) as f64) * size)
}

/// The number of decimals that distinguish multiples of a step.
fn decimals(step: f64) -> usize {
    (-step.log10().floor()).clamp(0.0, 6.0) as usize
}

impl Axis {
    /// An axis from 0 to a tick at or above `max`, with about `count` ticks beyond 0.
    pub fn from_zero(max: f64, count: usize, unit: Unit) -> Axis {
        let (max, step) = max_and_step(max, count, unit);
        Axis::linear(0.0, (max / step - 1e-9).ceil().max(1.0) * step, step, unit)
    }

    /// An axis from 0 to exactly `max`, with about `count` ticks.
    pub fn span(max: f64, count: usize, unit: Unit) -> Axis {
        let (max, step) = max_and_step(max, count, unit);
        Axis::linear(0.0, max, step, unit)
    }

    fn linear(low: f64, high: f64, step: f64, unit: Unit) -> Axis {
        let (size, name) = unit.step(high);
        let decimals = decimals(step / size);
        let last = ((high - low) / step + 1e-9).floor() as usize;
        let ticks = (0..=last.min(100))
            .map(|n| {
                let value = low + n as f64 * step;
                let label = match n {
                    0 if low == 0.0 => "0".to_string(),
                    _ => with_unit(&grouped(value / size, decimals), name),
                };
                Tick {
                    at: ((value - low) / (high - low)).clamp(0.0, 1.0),
                    label,
                    minor: n % 2 == 1,
                }
            })
            .collect();
        Axis {
            low,
            high,
            scale: Scale::Linear,
            ticks,
        }
    }

    /// A logarithmic axis over all values above 0. It has ticks at powers of ten, and at 2 and 5
    /// times them if there are few powers.
    pub fn log(values: impl Iterator<Item = f64>, unit: Option<Unit>) -> Axis {
        let (mut low, mut high) = (f64::INFINITY, 0f64);
        for value in values.filter(|v| v.is_finite() && *v > 0.0) {
            (low, high) = (low.min(value), high.max(value));
        }
        if high <= 0.0 {
            (low, high) = (1.0, 10.0);
        }
        let (first, last) = (low.log10(), high.log10());
        let fine = last - first < 2.5;
        // Extend the range down and up to the nearest tick.
        let steps: &[f64] = if fine { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let (from, to) = (first.floor() as i32 - 1, last.ceil() as i32 + 1);
        let all: Vec<(i32, f64)> = (from..=to)
            .flat_map(|power| steps.iter().map(move |n| (power, n * 10f64.powi(power))))
            .collect();
        let low = all
            .iter()
            .map(|t| t.1)
            .rfind(|t| *t <= low * (1.0 + 1e-9))
            .unwrap_or(low);
        let high = all
            .iter()
            .map(|t| t.1)
            .find(|t| *t >= high * (1.0 - 1e-9) && *t > low)
            .unwrap_or(high);
        let mut axis = Axis {
            low,
            high,
            scale: Scale::Log,
            ticks: Vec::new(),
        };
        let every = if fine {
            1
        } else {
            ((last - first) / 9.0).ceil().max(1.0) as i32
        };
        axis.ticks = all
            .into_iter()
            .filter(|(power, t)| {
                (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(t)
                    && power.rem_euclid(every) == 0
            })
            .map(|(power, t)| Tick {
                at: axis.place(t),
                label: match unit {
                    Some(unit) => {
                        let (size, name) = unit.step(t * (1.0 + 1e-9));
                        with_unit(&grouped(t / size, decimals(t / size)), name)
                    }
                    None => power_label(power, t),
                },
                minor: power.rem_euclid(2) == 1,
            })
            .collect();
        axis
    }

    /// An axis of parts of `count` things, from 0 to 1, that shows the last ones best: 90%, 99%,
    /// 99.9% and so on are equally far from each other. Its end is 1, the slowest of the things.
    pub fn nines(count: u64) -> Axis {
        let high = ((count.max(1) as f64).log10() + 0.3).clamp(4.5, 8.5);
        let mut axis = Axis {
            low: 0.0,
            high,
            scale: Scale::Nines,
            ticks: Vec::new(),
        };
        let parts = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999];
        let ticks = parts.into_iter().filter(|part| nines(*part) < high - 0.4);
        axis.ticks = ticks.map(|part| axis.part_tick(part)).collect();
        axis.ticks.push(Tick {
            at: 1.0,
            label: "max".to_string(),
            minor: false,
        });
        axis
    }

    fn part_tick(&self, part: f64) -> Tick {
        let decimals = (nines(part).round() - 2.0).max(0.0) as usize;
        Tick {
            at: self.place(part),
            label: format!("{:.decimals$}%", part * 100.0),
            minor: false,
        }
    }

    /// The position of a value: 0 is the axis' beginning, 1 its end. Values beyond the axis, or
    /// NaN, are at an end.
    pub fn place(&self, value: f64) -> f64 {
        let at = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Nines => nines(value) / self.high,
            Scale::Log => {
                let (low, high) = (self.low.ln(), self.high.ln());
                (value.max(f64::MIN_POSITIVE).ln() - low) / (high - low)
            }
        };
        if at.is_nan() { 0.0 } else { at.clamp(0.0, 1.0) }
    }
}

/// How many nines a part of a whole has: 0.99 has two.
fn nines(part: f64) -> f64 {
    -(1.0 - part.clamp(0.0, 1.0)).log10()
}

/// A power of ten, or a multiple of it, without a unit.
fn power_label(power: i32, value: f64) -> String {
    if (-2..=3).contains(&power) {
        return grouped(value, decimals(value));
    }
    let digits: String = power
        .to_string()
        .chars()
        .map(|c| match c {
            '-' => '⁻',
            '1' => '¹',
            '2' => '²',
            '3' => '³',
            c => char::from_u32('⁰' as u32 + c.to_digit(10).unwrap_or(0)).unwrap_or(c),
        })
        .collect();
    match (value / 10f64.powi(power)).round() {
        1.0 => format!("10{digits}"),
        n => format!("{n}·10{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<String> {
        axis.ticks
            .iter()
            .map(|t| t.label.replace('\u{a0}', " "))
            .collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(
            labels(&Axis::from_zero(1.1e6, 4, Unit::PerSecond)),
            ["0", "0.5 M/s", "1.0 M/s", "1.5 M/s"]
        );
        assert_eq!(
            labels(&Axis::from_zero(7.0 * 1048576.0, 4, Unit::Bytes)),
            ["0", "2 MiB", "4 MiB", "6 MiB", "8 MiB"]
        );
        assert_eq!(
            labels(&Axis::span(3.3, 5, Unit::Seconds)),
            ["0", "1 s", "2 s", "3 s"]
        );
        assert_eq!(
            labels(&Axis::log(
                [900.0, 2e6].into_iter(),
                Some(Unit::Nanoseconds)
            )),
            ["100 ns", "1 µs", "10 µs", "100 µs", "1 ms", "10 ms"]
        );
        assert_eq!(
            labels(&Axis::log([0.3, 4.0].into_iter(), None)),
            ["0.2", "0.5", "1", "2", "5"]
        );
        assert_eq!(
            labels(&Axis::log([1e-6, 1.0].into_iter(), None)),
            ["10⁻⁶", "10⁻⁵", "10⁻⁴", "10⁻³", "0.01", "0.1", "1"]
        );
    }

    #[test]
    fn each_nine_of_a_distribution_gets_the_same_space() {
        let axis = Axis::nines(1_000_000);
        assert_eq!(
            labels(&axis),
            ["50%", "90%", "99%", "99.9%", "99.99%", "99.999%", "max"]
        );
        let space = |low, high| axis.place(high) - axis.place(low);
        assert!((space(0.9, 0.99) - space(0.99, 0.999)).abs() < 1e-9);
        assert_eq!((axis.place(0.0), axis.place(1.0)), (0.0, 1.0));
        assert_eq!(axis.place(f64::NAN), 0.0);
        assert_eq!(labels(&Axis::nines(0)).last().unwrap(), "max");
    }

    #[test]
    fn whatever_the_values_places_are_within() {
        let strange = [
            0.0,
            -1.0,
            1.0,
            1e300,
            1e-300,
            f64::MAX,
            f64::NAN,
            f64::INFINITY,
            u64::MAX as f64,
        ];
        for max in strange {
            for unit in [Unit::Bytes, Unit::Seconds, Unit::PerSecond, Unit::Plain] {
                for axis in [
                    Axis::from_zero(max, 5, unit),
                    Axis::span(max, 5, unit),
                    Axis::log([max].into_iter(), Some(unit)),
                    Axis::log([max, 1.0].into_iter(), None),
                ] {
                    assert!(!axis.ticks.is_empty(), "{max} {unit:?}");
                    assert!(axis.ticks.len() < 110, "{max} {unit:?}");
                    for value in strange {
                        let at = axis.place(value);
                        assert!((0.0..=1.0).contains(&at), "{value} at {at} of {axis:?}");
                    }
                }
            }
        }
        assert_eq!(Axis::log(std::iter::empty(), None).ticks.len(), 4);
    }
}
