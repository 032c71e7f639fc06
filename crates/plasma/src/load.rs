//! The positions and velocities of the particles at the start.
//!
//! Particles have *slots*, 0 to `particles`: even slots belong to the beam along +x, odd ones to
//! the other, and the slots of a beam are in order along x. Ids are shuffled slots, so they show
//! neither neighbours nor beams. These are pure functions; there is no threading rule.

use crate::config::{Config, Start};
use crate::maths::{normal_quantile, sin_cos_turns};
use crate::rng::{Shuffle, Stream, radical_inverse, random, unit};
use std::f64::consts::TAU;

/// A particle at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initial {
    /// The position as a fraction of the domain. It may be slightly outside of 0 to 1.
    pub(crate) position: f64,
    /// The three velocity components.
    pub(crate) velocity: [f64; 3],
}

/// Computes the particles of a configuration by id.
#[derive(Clone, Debug)]
pub(crate) struct Loader<'a> {
    config: &'a Config,
    shuffle: Shuffle,
    /// The shifts of the three low-discrepancy sequences, for each beam.
    shifts: [[u64; 3]; 2],
}

impl<'a> Loader<'a> {
    pub(crate) fn new(config: &'a Config) -> Self {
        let shift =
            |beam: u64, component: u64| random(config.seed, Stream::Shifts, 3 * beam + component);
        Loader {
            config,
            shuffle: Shuffle::new(config.particles as u64, config.seed),
            shifts: [0, 1].map(|beam| [0, 1, 2].map(|component| shift(beam, component))),
        }
    }

    pub(crate) fn particle(&self, id: u64) -> Initial {
        let config = self.config;
        let slot = self.shuffle.at(id);
        let (beam, index) = ((slot & 1) as usize, slot >> 1);
        let beam_size = (config.particles / 2) as f64;
        let (even, thermal) = match config.start {
            // The bases of the sequences are different primes, so position and the three components
            // together fill their four-dimensional space evenly.
            Start::Quiet => (
                (index as f64 + 0.5) / beam_size,
                [
                    radical_inverse::<2>(index),
                    radical_inverse::<3>(index),
                    radical_inverse::<5>(index),
                ],
            ),
            Start::Random => (
                unit(random(config.seed, Stream::Positions, slot)),
                [0, 1, 2].map(|i| random(config.seed, Stream::Velocities, 3 * slot + i)),
            ),
        };
        // A displacement by -(d/k) sin(kx) makes the density 1 + d cos(kx).
        let mode = config.mode as f64;
        let (sin, _) = sin_cos_turns(even * mode);
        let mut velocity = [0.0; 3];
        for (i, velocity) in velocity.iter_mut().enumerate() {
            let bits = match config.start {
                Start::Quiet => thermal[i].wrapping_add(self.shifts[beam][i]),
                Start::Random => thermal[i],
            };
            *velocity = config.thermal_spread * normal_quantile(unit(bits));
        }
        velocity[0] += if beam == 0 { 1.0 } else { -1.0 } * config.beam_velocity;
        Initial {
            position: even - config.perturbation / (TAU * mode) * sin,
            velocity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The mean and the standard deviation.
    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        (mean, (square / values.len() as f64).sqrt())
    }

    #[test]
    fn both_starts_have_the_configured_moments() {
        for (start, tolerance) in [(Start::Quiet, 2e-3), (Start::Random, 3e-2)] {
            let config = Config {
                particles: 20_000,
                thermal_spread: 0.1,
                perturbation: 0.0,
                start,
                ..Config::default()
            };
            let loader = Loader::new(&config);
            let all: Vec<_> = (0..20_000).map(|id| loader.particle(id)).collect();
            let positions: Vec<_> = all.iter().map(|p| p.position).collect();
            let (mean, spread) = moments(&positions);
            assert!((mean - 0.5).abs() < tolerance, "{start:?} {mean}");
            assert!(
                (spread - (1.0f64 / 12.0).sqrt()).abs() < tolerance,
                "{start:?} {spread}"
            );
            for component in 0..3 {
                for sign in [1.0, -1.0] {
                    let beam: Vec<_> = all
                        .iter()
                        .filter(|p| p.velocity[0] * sign > 0.0)
                        .map(|p| p.velocity[component])
                        .collect();
                    assert_eq!(beam.len(), 10_000);
                    let (mean, spread) = moments(&beam);
                    let drift = if component == 0 { sign } else { 0.0 };
                    assert!((mean - drift).abs() < tolerance * 0.1, "{start:?} {mean}");
                    assert!((spread / 0.1 - 1.0).abs() < tolerance, "{start:?} {spread}");
                }
            }
        }
    }

    #[test]
    fn cold_beams_at_rest_do_not_move() {
        let config = Config {
            particles: 100,
            thermal_spread: 0.0,
            beam_velocity: 0.0,
            ..Config::default()
        };
        let loader = Loader::new(&config);
        for id in 0..100 {
            assert_eq!(loader.particle(id).velocity, [0.0; 3]);
        }
    }
}
