//! Figures of several rounds, and the ratio of two engines with its interval.
//!
//! A ratio is that of two figures of one round, because the machine drifts from round to round, by
//! more than many differences that matter. The interval is Student's, on the logarithms of the
//! ratios, which give a ratio and its inverse equal weight. It has the right width for three to
//! five rounds, as far as the logarithms are normally distributed. Resampling (the bootstrap) of
//! so few values is far too narrow: it cannot leave the range of the ratios, and even the whole
//! range covers the true median in only 94% of the cases with five rounds, and in 75% with three.
//! With two rounds Student's interval is so wide that it decides next to nothing, and with one
//! there is none.
//!
//! Threading: pure functions.

/// The quantile 0.975 of Student's t distribution, for 1 to 30 degrees of freedom.
const STUDENT: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];
/// The quantile for more degrees of freedom, which is that of 31.
const STUDENT_MORE: f64 = 2.040;
/// Probes of one round that differ by more than this part of the lower one are named.
pub(super) const DRIFT: f64 = 0.2;

/// The middle and the ends of some figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median; of an even number of figures, the mean of the two in the middle.
    pub median: f64,
    /// The lowest.
    pub lowest: f64,
    /// The highest.
    pub highest: f64,
    /// How many there are.
    pub count: usize,
}

impl Spread {
    /// The spread of figures; `None` if there are none. What is not a number is left out.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut figures: Vec<f64> = figures.into_iter().filter(|f| f.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        let (lowest, highest) = (*figures.first()?, *figures.last()?);
        let half = figures.len() / 2;
        let median = match figures.len() % 2 {
            1 => figures[half],
            _ => (figures[half - 1] + figures[half]) / 2.0,
        };
        let count = figures.len();
        Some(Spread {
            median,
            lowest,
            highest,
            count,
        })
    }
}

/// Where the truth lies with a probability of 95%.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub from: f64,
    /// The upper end.
    pub to: f64,
}

impl Interval {
    /// The interval of one engine's figures, one of each round: Student's, as that of ratios, on
    /// the logarithms. `None` for a single round, and if figures differ and one of them is not
    /// above 0, because it has no logarithm. What is not a number is left out.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Interval> {
        let figures = figures.into_iter().filter(|figure| figure.is_finite());
        let figures: Vec<f64> = figures.collect();
        let first = *figures.first()?;
        // Equal figures need no logarithm, and rounding must not move them off themselves.
        if figures.len() > 1 && figures.iter().all(|figure| *figure == first) {
            return Some(Interval {
                from: first,
                to: first,
            });
        }
        let is_positive = figures.iter().all(|figure| *figure > 0.0);
        interval(&figures).filter(|_| is_positive)
    }
}

/// The ratios of two engines, one of each round.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounds {
    /// The ratios, in the order of the rounds.
    pub ratios: Vec<f64>,
    /// Their median, lowest and highest.
    pub spread: Spread,
    /// The interval of the ratio; `None` for a single round.
    pub interval: Option<Interval>,
}

impl Rounds {
    /// The ratios of the first figures to the second ones, a pair of each round. `None` if there is
    /// no round in which both are above 0.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Rounds> {
        let is_positive = |(a, b): &(f64, f64)| *a > 0.0 && *b > 0.0;
        let ratios = pairs.into_iter().filter(is_positive).map(|(a, b)| a / b);
        let ratios: Vec<f64> = ratios.filter(|ratio| ratio.is_finite()).collect();
        let spread = Spread::of(ratios.iter().copied())?;
        let interval = Interval::of(ratios.iter().copied());
        Some(Rounds {
            ratios,
            spread,
            interval,
        })
    }

    /// Whether the first one is better (true) or the other one (false); `None` if the interval does
    /// not decide it, or if there is none.
    pub fn is_better(&self) -> Option<bool> {
        let interval = self.interval?;
        match () {
            () if interval.from > 1.0 => Some(true),
            () if interval.to < 1.0 => Some(false),
            () => None,
        }
    }
}

/// Student's interval of the geometric mean.
fn interval(ratios: &[f64]) -> Option<Interval> {
    let freedom = ratios
        .len()
        .checked_sub(1)
        .filter(|freedom| *freedom >= 1)?;
    let count = ratios.len() as f64;
    let logarithms: Vec<f64> = ratios.iter().map(|ratio| ratio.ln()).collect();
    let mean = logarithms.iter().sum::<f64>() / count;
    let squares: f64 = logarithms.iter().map(|l| (l - mean) * (l - mean)).sum();
    let deviation = (squares / freedom as f64).sqrt();
    let student = STUDENT.get(freedom - 1).copied().unwrap_or(STUDENT_MORE);
    let half = student * deviation / count.sqrt();
    Some(Interval {
        from: (mean - half).exp(),
        to: (mean + half).exp(),
    })
}

/// The lowest and the highest probe of a round, if they differ too much.
pub(super) fn drift(probes: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let spread = Spread::of(probes)?;
    let has_drifted = spread.highest > spread.lowest * (1.0 + DRIFT);
    has_drifted.then_some((spread.lowest, spread.highest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < expected.abs() * 1e-3 + 1e-9
    }

    #[test]
    fn the_median_of_an_even_number_is_between_the_middle_two() {
        let spread = Spread::of([4.0, 1.0, 3.0, 2.0, f64::NAN]).unwrap();
        assert_eq!(
            (spread.median, spread.lowest, spread.highest, spread.count),
            (2.5, 1.0, 4.0, 4)
        );
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
    }

    /// Computed apart: the logarithms of 2, 2.2 and 1.9 have the mean 0.707819 and the deviation
    /// 0.0743949, and 4.302653 * 0.0743949 / sqrt(3) is 0.184807.
    #[test]
    fn the_interval_of_three_rounds_is_student_s() {
        let rounds = Rounds::of([(2.0, 1.0), (4.4, 2.0), (1.9, 1.0)]).unwrap();
        let interval = rounds.interval.unwrap();
        assert!(
            close(interval.from, (0.707_819f64 - 0.184_807).exp()),
            "{interval:?}"
        );
        assert!(
            close(interval.to, (0.707_819f64 + 0.184_807).exp()),
            "{interval:?}"
        );
        assert_eq!(rounds.spread.median, 2.0);
        assert_eq!(rounds.is_better(), Some(true));
    }

    #[test]
    fn an_inverse_ratio_has_the_inverse_interval() {
        let pairs = [(3.0, 2.0), (4.0, 2.0), (5.0, 3.0), (2.0, 1.5), (7.0, 4.0)];
        let there = Rounds::of(pairs).unwrap().interval.unwrap();
        let back = Rounds::of(pairs.map(|(a, b)| (b, a))).unwrap();
        assert!(close(back.interval.unwrap().from, 1.0 / there.to));
        assert!(close(back.interval.unwrap().to, 1.0 / there.from));
        assert_eq!(back.is_better(), Some(false));
    }

    #[test]
    fn one_round_decides_nothing_and_equal_engines_are_not_told_apart() {
        let one = Rounds::of([(9.0, 1.0)]).unwrap();
        assert_eq!((one.interval, one.is_better()), (None, None));
        let level = Rounds::of([(1.0, 1.1), (1.1, 1.0), (1.0, 1.02)]).unwrap();
        assert_eq!(level.is_better(), None);
        assert_eq!(Rounds::of([(0.0, 1.0), (1.0, 0.0)]), None);
    }

    /// Computed apart: the logarithms of 2, 2.2 and 1.9 are those of the test above.
    #[test]
    fn figures_of_one_engine_have_an_interval_of_their_own() {
        let some = Interval::of([2.0, f64::NAN, 2.2, 1.9]).unwrap();
        assert!(close(some.from, (0.707_819f64 - 0.184_807).exp()));
        assert!(close(some.to, (0.707_819f64 + 0.184_807).exp()));
        let point = |at| Some(Interval { from: at, to: at });
        assert_eq!(Interval::of([1.4; 3]), point(1.4));
        assert_eq!(Interval::of([0.0; 2]), point(0.0));
        for undecided in [&[1.4][..], &[], &[0.0, 1.0], &[-1.0, 1.0]] {
            assert_eq!(Interval::of(undecided.iter().copied()), None);
        }
    }

    /// Of many comparisons of equal engines with five rounds of normal noise, about 5% are decided.
    #[test]
    fn the_interval_of_five_rounds_covers_the_truth_in_95_of_100_cases() {
        let mut state = 7u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        };
        // The sum of twelve uniform numbers is nearly normal, with deviation 1.
        let mut normal = || (0..12).map(|_| uniform()).sum::<f64>() - 6.0;
        let cases = 4000;
        let missed = (0..cases)
            .filter(|_| {
                let pairs: Vec<(f64, f64)> =
                    (0..5).map(|_| ((0.1 * normal()).exp(), 1.0)).collect();
                Rounds::of(pairs).unwrap().is_better().is_some()
            })
            .count();
        let part = missed as f64 / f64::from(cases);
        assert!((0.035..0.065).contains(&part), "{part}");
    }

    #[test]
    fn only_probes_that_differ_by_a_fifth_are_named() {
        assert_eq!(drift([10.0, 11.9, 11.0]), None);
        assert_eq!(drift([10.0, 12.1]), Some((10.0, 12.1)));
        assert_eq!(drift([]), None);
    }
}
