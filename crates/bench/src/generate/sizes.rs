//! The sizes of values.
//!
//! A size is a function of a hash, so that whoever knows the record and its version knows the size
//! of the value.

use super::error::{ParameterError, require};
use super::hash::scale;
use super::pareto::Pareto;

/// The largest size of a value in bytes.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// How sizes of values are distributed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Sizes {
    /// All values have the same size in bytes.
    Fixed(usize),
    /// Every size from `min` to `max` bytes has the same probability.
    Uniform {
        /// The smallest size in bytes.
        min: usize,
        /// The largest size in bytes.
        max: usize,
    },
    /// Sizes of the generalised Pareto distribution, rounded up to whole bytes. Smaller sizes than
    /// `min` become `min`, larger ones than `max` become `max`. (`db_bench` takes those that are
    /// too large modulo the maximum. With its default settings this affects one value in 10,000.)
    Pareto {
        /// The distribution in bytes.
        distribution: Pareto,
        /// The smallest size in bytes, 10 in `db_bench`.
        min: usize,
        /// The largest size in bytes, 1024 in `db_bench`.
        max: usize,
    },
}

impl Sizes {
    /// Refuses sizes above 2^30 bytes, minima above maxima, and a Pareto distribution that makes no
    /// sense.
    pub fn check(&self) -> Result<(), ParameterError> {
        let (min, max) = (self.min_bytes(), self.max_bytes());
        require(
            max <= MAX_VALUE_BYTES,
            "value sizes",
            "max",
            max,
            "at most 2^30 bytes",
        )?;
        if min > max {
            let expected = format!("at most the maximum of {max} bytes");
            return Err(ParameterError::new("value sizes", "min", min, expected));
        }
        match self {
            Sizes::Pareto { distribution, .. } => distribution.check("value sizes"),
            Sizes::Fixed(_) | Sizes::Uniform { .. } => Ok(()),
        }
    }

    /// The smallest size in bytes.
    pub fn min_bytes(&self) -> usize {
        match *self {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Uniform { min, .. } | Sizes::Pareto { min, .. } => min,
        }
    }

    /// The largest size in bytes.
    pub fn max_bytes(&self) -> usize {
        match *self {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Uniform { max, .. } | Sizes::Pareto { max, .. } => max,
        }
    }

    /// The mean size in bytes. It is the mean of the distribution after rounding and limiting, not
    /// of a sample. For Pareto sizes this takes up to a millisecond.
    pub fn mean_bytes(&self) -> f64 {
        match *self {
            Sizes::Fixed(bytes) => bytes as f64,
            Sizes::Uniform { min, max } => (min as f64 + max as f64) / 2.0,
            Sizes::Pareto {
                distribution,
                min,
                max,
            } => distribution.mean_of_sizes(min as u64, max as u64),
        }
    }

    /// The size in bytes that belongs to a hash of 64 random bits.
    #[inline]
    pub(super) fn of_hash(&self, hash: u64) -> usize {
        match *self {
            Sizes::Fixed(bytes) => bytes,
            Sizes::Uniform { min, max } => min + scale(hash, (max - min) as u64 + 1) as usize,
            Sizes::Pareto {
                distribution,
                min,
                max,
            } => {
                // In (0, 1], so that the quantile is finite unless the tail is extremely heavy.
                let survival = ((hash >> 11) + 1) as f64 / (1u64 << 53) as f64;
                (distribution.quantile(survival).ceil() as usize).clamp(min, max)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;
    use proptest::prelude::*;

    const PARETO: Sizes = Sizes::Pareto {
        distribution: Pareto {
            theta: 0.0,
            k: 0.2615,
            sigma: 25.45,
        },
        min: 10,
        max: 1024,
    };

    fn mean_of_draws(sizes: Sizes) -> f64 {
        let mut random = Random::new(5, 0);
        (0..200_000)
            .map(|_| sizes.of_hash(random.bits()) as f64)
            .sum::<f64>()
            / 2e5
    }

    #[test]
    fn the_reported_mean_is_the_mean_of_draws() {
        let heavy = Sizes::Pareto {
            distribution: Pareto {
                theta: 0.0,
                k: 1.5,
                sigma: 100.0,
            },
            min: 1,
            max: 100_000,
        };
        for (sizes, tolerance) in [
            (Sizes::Fixed(100), 0.0),
            (Sizes::Uniform { min: 0, max: 999 }, 2.6),
            (PARETO, 0.5),
            (heavy, 130.0),
        ] {
            let difference = mean_of_draws(sizes) - sizes.mean_bytes();
            assert!(difference.abs() <= tolerance, "{sizes:?}: {difference}");
        }
    }

    #[test]
    fn uniform_sizes_are_equally_frequent_and_include_both_ends() {
        let mut random = Random::new(8, 0);
        let mut counts = [0u32; 4];
        let sizes = Sizes::Uniform { min: 5, max: 8 };
        (0..40_000).for_each(|_| counts[sizes.of_hash(random.bits()) - 5] += 1);
        assert!(
            counts.iter().all(|c| c.abs_diff(10_000) < 500),
            "{counts:?}"
        );
    }

    #[test]
    fn pareto_sizes_have_the_shape_of_their_distribution() {
        let mut random = Random::new(6, 0);
        let draws: Vec<usize> = (0..100_000)
            .map(|_| PARETO.of_hash(random.bits()))
            .collect();
        let Sizes::Pareto { distribution, .. } = PARETO else {
            unreachable!()
        };
        for limit in [12usize, 25, 50, 100, 200] {
            let above = draws.iter().filter(|&&size| size > limit).count() as f64 / 1e5;
            let expected = distribution.survival(limit as f64);
            // Four standard deviations of a proportion of 100,000 draws.
            assert!(
                (above - expected).abs() < 0.0064,
                "above {limit}: {above}, {expected}"
            );
        }
    }

    #[test]
    fn senseless_sizes_are_refused() {
        assert!(Sizes::Uniform { min: 2, max: 1 }.check().is_err());
        assert!(Sizes::Fixed(MAX_VALUE_BYTES + 1).check().is_err());
        let distribution = Pareto {
            theta: 0.0,
            k: f64::NAN,
            sigma: 1.0,
        };
        assert!(
            Sizes::Pareto {
                distribution,
                min: 1,
                max: 2
            }
            .check()
            .is_err()
        );
        assert!(Sizes::Uniform { min: 1, max: 1 }.check().is_ok());
        assert!(PARETO.check().is_ok());
    }

    proptest! {
        #[test]
        fn sizes_keep_their_bounds(
            hash: u64, min in 0usize..1000, span in 0usize..100_000, k in -2.0f64..300.0,
        ) {
            let max = min + span;
            let distribution = Pareto { theta: 5.0, k, sigma: 30.0 };
            for sizes in [Sizes::Uniform { min, max }, Sizes::Pareto { distribution, min, max }] {
                prop_assert!((min..=max).contains(&sizes.of_hash(hash)));
                prop_assert!((min..=max).contains(&sizes.of_hash(0)));
                prop_assert!((min..=max).contains(&sizes.of_hash(u64::MAX)));
                let mean = sizes.mean_bytes();
                prop_assert!(min as f64 <= mean && mean <= max as f64 + 1e-6);
            }
        }
    }
}
