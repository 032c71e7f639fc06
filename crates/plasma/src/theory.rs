//! Linear theory of two cold beams, to compare the simulation with.
//!
//! Two beams, each of half the density, at `+v0` and `-v0`, obey
//! `1 = (1/2) [ (w - k v0)^-2 + (w + k v0)^-2 ]` with frequencies in `omega_p`. With `s = (k v0)^2`
//! this is a quadratic equation in `w^2`. Its smaller root is negative, which means a growing wave,
//! exactly when `0 < s < 1`. These are pure functions; there is no threading rule.

use std::f64::consts::TAU;

use crate::maths::ln;

/// The largest growth rate of any wave, in `omega_p`: `1 / sqrt(8)`.
pub const MAX_GROWTH_RATE: f64 = 0.353_553_390_593_273_8;
/// `k v0` of the fastest growing wave, in `omega_p`: `sqrt(3 / 8)`.
pub const FASTEST_WAVE_NUMBER: f64 = 0.612_372_435_695_794_5;

/// The growth rate, in `omega_p`, of the wave with wave number `k` between cold beams at `+v0` and
/// `-v0`, or 0 for a stable wave. The signs of the arguments do not matter.
#[must_use]
pub fn growth_rate(v0: f64, k: f64) -> f64 {
    let s = (k * v0) * (k * v0);
    if s > 0.0 && s < 1.0 {
        // (sqrt(8 s + 1) - (2 s + 1)) / 2, in a form without cancellation at small s.
        (2.0 * s * (1.0 - s) / ((8.0 * s + 1.0).sqrt() + 2.0 * s + 1.0)).sqrt()
    } else {
        0.0
    }
}

/// The wavelength that grows fastest between cold beams at `+v0` and `-v0`, in units of length.
#[must_use]
pub fn fastest_wavelength(v0: f64) -> f64 {
    TAU * v0.abs() / FASTEST_WAVE_NUMBER
}

/// The exponential growth rate that best fits samples of (time, amplitude), by least squares of the
/// logarithm. `None` with fewer than two different times, or with an amplitude that is not positive
/// and finite.
#[must_use]
pub fn fitted_growth_rate(samples: &[(f64, f64)]) -> Option<f64> {
    if samples.iter().any(|s| !(s.1 > 0.0 && s.1.is_finite())) {
        return None;
    }
    let count = samples.len() as f64;
    let mean_time = samples.iter().map(|s| s.0).sum::<f64>() / count;
    let mean_log = samples.iter().map(|s| ln(s.1)).sum::<f64>() / count;
    let (mut slope, mut spread) = (0.0, 0.0);
    for (time, amplitude) in samples {
        slope += (time - mean_time) * (ln(*amplitude) - mean_log);
        spread += (time - mean_time) * (time - mean_time);
    }
    (spread > 0.0).then(|| slope / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dispersion relation at `w = i rate`, where it is real. It is 0 at a root.
    fn residual(rate: f64, a: f64) -> f64 {
        // (i g - a)^-2 + (i g + a)^-2 = 2 (a^2 - g^2) / (a^2 + g^2)^2
        let (g2, a2) = (rate * rate, a * a);
        1.0 - (a2 - g2) / ((a2 + g2) * (a2 + g2))
    }

    #[test]
    fn rates_solve_the_dispersion_relation() {
        for step in 1..100 {
            let a = f64::from(step) / 100.0;
            let rate = growth_rate(2.0, a / 2.0);
            assert!(rate > 0.0 && rate <= MAX_GROWTH_RATE * (1.0 + 1e-15));
            let residual = residual(rate, a);
            assert!(residual.abs() < 1e-9, "k v0 = {a}: {residual}");
        }
        assert_eq!(growth_rate(1.0, 1.0), 0.0);
        assert_eq!(growth_rate(1.0, 1.5), 0.0);
        assert_eq!(growth_rate(0.0, 1.5), 0.0);
        assert_eq!(growth_rate(1.0, 0.0), 0.0);
    }

    #[test]
    fn the_fastest_wave_is_the_fastest() {
        let top = growth_rate(1.0, FASTEST_WAVE_NUMBER);
        assert!((top - MAX_GROWTH_RATE).abs() < 1e-15);
        assert!(growth_rate(1.0, FASTEST_WAVE_NUMBER * 1.01) < top);
        assert!(growth_rate(1.0, FASTEST_WAVE_NUMBER * 0.99) < top);
        let k = TAU / fastest_wavelength(3.0);
        assert!((growth_rate(3.0, k) - top).abs() < 1e-15);
    }

    #[test]
    fn a_fit_finds_an_exponential() {
        let samples: Vec<_> = (0..20)
            .map(|i| (f64::from(i) * 0.3, 2.0 * (0.25 * f64::from(i) * 0.3).exp()))
            .collect();
        let rate = fitted_growth_rate(&samples).expect("samples are good");
        assert!((rate - 0.25).abs() < 1e-12, "{rate}");
        assert_eq!(fitted_growth_rate(&samples[..1]), None);
        assert_eq!(fitted_growth_rate(&[]), None);
        assert_eq!(fitted_growth_rate(&[(0.0, 1.0), (1.0, 0.0)]), None);
        assert_eq!(fitted_growth_rate(&[(0.0, 1.0), (1.0, f64::NAN)]), None);
    }
}
