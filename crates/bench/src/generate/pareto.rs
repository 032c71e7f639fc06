//! The generalised Pareto distribution, as mixgraph of RocksDB's `db_bench` draws sizes of values
//! and lengths of scans from it.
//!
//! A number is above `x` with the probability `(1 + k * (x - theta) / sigma) ^ (-1 / k)`, or
//! `exp(-(x - theta) / sigma)` if `k` is 0.

use super::error::{ParameterError, require};

/// A generalised Pareto distribution.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pareto {
    /// The location: the smallest number.
    pub theta: f64,
    /// The shape: larger is a heavier tail.
    pub k: f64,
    /// The scale, above 0.
    pub sigma: f64,
}

impl Pareto {
    /// Refuses parameters that are not finite, a negative `theta` and a scale that is not positive.
    pub fn check(&self, generator: &'static str) -> Result<(), ParameterError> {
        let theta_fits = self.theta.is_finite() && self.theta >= 0.0;
        require(
            theta_fits,
            generator,
            "theta",
            self.theta,
            "a finite number from 0",
        )?;
        require(
            self.k.is_finite(),
            generator,
            "k",
            self.k,
            "a finite number",
        )?;
        let sigma_fits = self.sigma.is_finite() && self.sigma > 0.0;
        require(
            sigma_fits,
            generator,
            "sigma",
            self.sigma,
            "a finite number above 0",
        )
    }

    /// The number that is exceeded with the probability `survival`, which is in (0, 1].
    #[inline]
    pub fn quantile(&self, survival: f64) -> f64 {
        let log = survival.ln();
        let spread = match self.k {
            0.0 => -log,
            k => (-k * log).exp_m1() / k,
        };
        self.theta + self.sigma * spread
    }

    /// The probability that a number is above `x`.
    pub fn survival(&self, x: f64) -> f64 {
        let scaled = (x - self.theta) / self.sigma;
        if scaled <= 0.0 {
            return 1.0;
        }
        match self.k {
            0.0 => (-scaled).exp(),
            // `ln_1p` keeps the precision of small `k`.
            k => (-(k * scaled).max(-1.0).ln_1p() / k).exp(),
        }
    }

    /// The mean of the numbers rounded up and then limited to `min..=max`. It is exact up to
    /// rounding: a whole number `size` is above `j` with the probability `survival(j)`, and the
    /// mean is the sum of these. From the first 65,536 terms on the sum is an integral, whose
    /// relative error is below 10^-6 there.
    pub fn mean_of_sizes(&self, min: u64, max: u64) -> f64 {
        let summed_to = max.min(min.saturating_add(1 << 16));
        let sum: f64 = (min..summed_to)
            .map(|size| self.survival(size as f64))
            .sum();
        min as f64 + sum + self.integral(summed_to as f64 - 0.5, max as f64 - 0.5)
    }

    /// The integral of `survival` between two numbers, by the midpoint rule on steps that grow with
    /// their position, so that it needs no case for each shape.
    fn integral(&self, from: f64, to: f64) -> f64 {
        let mut sum = 0.0;
        let mut x = from;
        while x < to {
            let step = (x / 4096.0).min(to - x);
            sum += step * self.survival(x + step / 2.0);
            x += step;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The distribution of values of the published mixgraph settings.
    const VALUES: Pareto = Pareto {
        theta: 0.0,
        k: 0.2615,
        sigma: 25.45,
    };

    #[test]
    fn quantiles_are_those_of_the_published_formula() {
        // `db_bench` computes theta + sigma * (u^-k - 1) / k.
        for u in [1e-9, 0.001, 0.25, 0.5, 0.999, 1.0] {
            let published = 25.45 * (f64::powf(u, -0.2615) - 1.0) / 0.2615;
            assert!((VALUES.quantile(u) - published).abs() <= 1e-9 * (1.0 + published));
        }
        let exponential = Pareto { k: 0.0, ..VALUES };
        assert!((exponential.quantile(0.5) - 25.45 * 2f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn the_mean_is_about_35_bytes_with_the_published_settings() {
        // The mean without limits and without rounding up is sigma / (1 - k) = 34.46.
        let mean = VALUES.mean_of_sizes(0, 1 << 20);
        assert!((mean - 34.96).abs() < 0.02, "{mean}");
    }

    #[test]
    fn a_long_sum_equals_its_integral() {
        for k in [-0.3, 0.0, 0.2615, 1.0, 2.517] {
            let pareto = Pareto {
                theta: 3.0,
                k,
                sigma: 2000.0,
            };
            let max = 400_000;
            let sum: f64 = (10..max).map(|j| pareto.survival(j as f64)).sum::<f64>() + 10.0;
            let mean = pareto.mean_of_sizes(10, max);
            assert!((mean - sum).abs() < 1e-5 * sum, "k {k}: {mean}, {sum}");
        }
    }

    #[test]
    fn senseless_parameters_are_refused() {
        for bad in [
            Pareto {
                theta: -1.0,
                ..VALUES
            },
            Pareto {
                theta: f64::NAN,
                ..VALUES
            },
            Pareto {
                k: f64::INFINITY,
                ..VALUES
            },
            Pareto {
                sigma: 0.0,
                ..VALUES
            },
            Pareto {
                sigma: f64::NAN,
                ..VALUES
            },
        ] {
            assert!(bad.check("sizes").is_err(), "{bad:?}");
        }
        assert!(VALUES.check("sizes").is_ok());
    }

    proptest! {
        #[test]
        fn survival_inverts_quantile(
            u in 0.001f64..1.0, k in -1.0f64..3.0, sigma in 0.1f64..1e5, theta in 0.0f64..1e3,
        ) {
            let pareto = Pareto { theta, k, sigma };
            prop_assert!((pareto.survival(pareto.quantile(u)) - u).abs() < 1e-6);
        }
    }
}
