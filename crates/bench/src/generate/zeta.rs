//! The sum of `1 / i^theta` for `i` from 1 to `n`, which scales a zipfian distribution.
//!
//! YCSB adds up all terms, which takes minutes for a billion items, and adds the missing ones when
//! the number of items grows. Here the first 1024 terms are added up, and the others come from the
//! Euler-Maclaurin formula, whose error is below 10^-12 there. So any `n` costs one logarithm and
//! one exponential, a growing one too.

/// How many terms are added up.
const SUMMED: u64 = 1024;

/// The sums for one `theta`, which is between 0 and 1.
#[derive(Debug, Clone)]
pub(super) struct Zeta {
    theta: f64,
    /// `sums[n]` for `n` up to 1024.
    sums: Box<[f64]>,
    /// `1024^(1 - theta)`.
    edge_power: f64,
}

/// What is needed for `n` items.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sum {
    /// The sum of the first `n` terms.
    pub(super) zeta: f64,
    /// `n^(1 - theta)`.
    pub(super) power: f64,
}

impl Zeta {
    pub(super) fn new(theta: f64) -> Zeta {
        let term = |i: u64| (i as f64).powf(-theta);
        let mut sum = 0.0;
        let sums = (0..=SUMMED).map(|i| {
            sum += if i == 0 { 0.0 } else { term(i) };
            sum
        });
        Zeta {
            theta,
            sums: sums.collect(),
            edge_power: (SUMMED as f64).powf(1.0 - theta),
        }
    }

    #[inline]
    pub(super) fn of(&self, n: u64) -> Sum {
        let rest = 1.0 - self.theta;
        if n <= SUMMED {
            return Sum {
                zeta: self.sums[n as usize],
                power: (n as f64).powf(rest),
            };
        }
        let (n, edge) = (n as f64, SUMMED as f64);
        // `exp_m1` keeps the precision of a `theta` near 1.
        let growth = (rest * (n / edge).ln()).exp_m1();
        let power = self.edge_power * (1.0 + growth);
        let integral = self.edge_power * growth / rest;
        let (term, edge_term) = (power / n, self.edge_power / edge);
        let slopes = self.theta / 12.0 * (edge_term / edge - term / n);
        let zeta = self.sums[SUMMED as usize] + integral + (term - edge_term) / 2.0 + slopes;
        Sum { zeta, power }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds from the small terms to the large ones, for precision.
    fn direct(n: u64, theta: f64) -> f64 {
        (1..=n).rev().map(|i| (i as f64).powf(-theta)).sum()
    }

    #[test]
    fn sums_equal_direct_sums() {
        for theta in [0.01, 0.5, 0.75, 0.99, 0.9999, 1.0 - 1e-9] {
            let zeta = Zeta::new(theta);
            for n in [1, 2, 3, 1023, 1024, 1025, 1026, 5000, 1_000_000] {
                let (found, expected) = (zeta.of(n), direct(n, theta));
                assert!(
                    (found.zeta / expected - 1.0).abs() < 1e-11,
                    "{theta} {n}: {found:?}"
                );
                let power = (n as f64).powf(1.0 - theta);
                assert!(
                    (found.power / power - 1.0).abs() < 1e-12,
                    "{theta} {n}: {found:?}"
                );
            }
        }
    }

    #[test]
    fn the_sum_of_ten_billion_terms_is_the_constant_of_ycsb() {
        let zeta = Zeta::new(0.99).of(10_000_000_000).zeta;
        // YCSB's constant is a sum of 10^10 rounded terms.
        assert!((zeta - 26.469_028_201_783_02).abs() < 1e-6, "{zeta}");
    }
}
