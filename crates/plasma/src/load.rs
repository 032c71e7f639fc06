//! Where the particles are and how fast they move at the start.
//!
//! Particles have *places*, 0 to `particles`: even ones belong to the beam along +x, odd ones to the other, and
//! places of a beam lie in order along x. Ids are places shuffled, so neither neighbours nor beams can be seen
//! in them. Pure functions; no threading rule.

use crate::config::{Config, Start};
use crate::maths::{normal_quantile, sin_cos_turns};
use crate::rng::{Shuffle, Stream, radical_inverse, random, unit};
use std::f64::consts::TAU;

/// A particle at the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Initial {
    /// Position as a fraction of the domain; may lie a little outside of 0 to 1.
    pub(crate) place: f64,
    /// The three velocity components.
    pub(crate) velocity: [f64; 3],
}

/// Gives the particles of a configuration by id.
#[derive(Clone, Debug)]
pub(crate) struct Loader<'a> {
    config: &'a Config,
    shuffle: Shuffle,
    /// Shifts of the three low-discrepancy sequences, for each beam.
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
        let place = self.shuffle.at(id);
        let (beam, index) = ((place & 1) as usize, place >> 1);
        let beam_size = (config.particles / 2) as f64;
        let (even, thermal) = match config.start {
            // The sequences' bases are different primes, so position and the three components
            // fill their four-dimensional space evenly, too.
            Start::Quiet => (
                (index as f64 + 0.5) / beam_size,
                [
                    radical_inverse::<2>(index),
                    radical_inverse::<3>(index),
                    radical_inverse::<5>(index),
                ],
            ),
            Start::Random => (
                unit(random(config.seed, Stream::Positions, place)),
                [0, 1, 2].map(|i| random(config.seed, Stream::Velocities, 3 * place + i)),
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
            place: even - config.perturbation / (TAU * mode) * sin,
            velocity,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and standard deviation.
    fn moments(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let square = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>();
        (mean, (square / values.len() as f64).sqrt())
    }

    #[test]
    fn both_starts_have_the_moments_asked_for() {
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
            let places: Vec<_> = all.iter().map(|p| p.place).collect();
            let (mean, spread) = moments(&places);
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
    fn cold_beams_have_no_spread_and_rest_is_rest() {
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
