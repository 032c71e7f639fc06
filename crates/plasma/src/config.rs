//! The settings of a simulation, and the checks that refuse settings that cannot work.
//!
//! Invariant: a [`Config`] that [`Config::validate`] accepts never makes the simulation overflow,
//! divide by zero, leave its grid or become unstable. It is plain data; there is no threading rule.

use std::error::Error;
use std::f64::consts::TAU;
use std::fmt;

use crate::theory;

/// The largest number of particles of a simulation (24 bytes each).
pub const MAX_PARTICLES: usize = 1 << 31;
/// The largest number of cells of a grid.
pub const MAX_CELLS: usize = 1 << 20;

/// A larger velocity, squared, could exceed the range of the records' 32-bit floats.
const MAX_MAGNITUDE: f64 = 1e12;
/// A smaller length or velocity could become zero in the records' 32-bit floats.
const MIN_MAGNITUDE: f64 = 1e-12;

/// How particles are placed at the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Even distances and low-discrepancy velocities: there is almost no noise, and only the
    /// perturbation grows.
    #[default]
    Quiet,
    /// Random positions and velocities: the instability grows out of shot noise, as in nature.
    Random,
}

/// The settings of a simulation, in the units of the [crate's documentation](crate).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The number of simulated particles in both beams together. It is even, from 2 to
    /// [`MAX_PARTICLES`].
    pub particles: usize,
    /// The number of cells of the grid, 4 to [`MAX_CELLS`].
    pub cells: usize,
    /// The length of the periodic domain.
    pub length: f64,
    /// The speed of each beam, of which one moves along +x and one along -x. 0 for a plasma at
    /// rest.
    pub beam_velocity: f64,
    /// The standard deviation of each of the three thermal velocity components. 0 for cold beams.
    pub thermal_spread: f64,
    /// The time step in `1 / omega_p`, above 0 and at most 1.
    pub dt: f64,
    /// The relative density perturbation at the start, from 0 to below 1.
    pub perturbation: f64,
    /// The number of wavelengths of the perturbation in the domain, 1 to `cells / 2`.
    pub mode: usize,
    /// How particles are placed.
    pub start: Start,
    /// The seed of all random numbers: velocities, and which particle has which id.
    pub seed: u64,
}

impl Default for Config {
    /// A quarter of a million warm particles, and four wavelengths of the fastest growing wave.
    fn default() -> Self {
        let beam_velocity = 1.0;
        let mode = 4;
        Config {
            particles: 1 << 18,
            cells: 512,
            length: theory::fastest_wavelength(beam_velocity) * mode as f64,
            beam_velocity,
            thermal_spread: 0.05,
            dt: 0.1,
            perturbation: 1e-3,
            mode,
            start: Start::Quiet,
            seed: 1,
        }
    }
}

impl Config {
    /// Checks every setting. The error is about the first one that cannot work.
    ///
    /// # Errors
    ///
    /// It names the setting, its value, what would be accepted, and what to do.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |good: bool, setting, found: &dyn fmt::Display, expected: &str, advice| {
            if good {
                Ok(())
            } else {
                Err(ConfigError {
                    setting,
                    found: found.to_string(),
                    expected: expected.to_owned(),
                    advice,
                })
            }
        };
        let magnitude = MIN_MAGNITUDE..=MAX_MAGNITUDE;
        let or_zero = |x: f64| x == 0.0 || magnitude.contains(&x);
        check(
            (2..=MAX_PARTICLES).contains(&self.particles) && self.particles.is_multiple_of(2),
            "particles",
            &self.particles,
            &format!("an even number from 2 to {MAX_PARTICLES}"),
            "both beams need the same number of particles, or the plasma drifts",
        )?;
        check(
            (4..=MAX_CELLS).contains(&self.cells),
            "cells",
            &self.cells,
            &format!("4 to {MAX_CELLS}"),
            "32 or more cells per wavelength resolve it well",
        )?;
        check(
            magnitude.contains(&self.length),
            "length",
            &self.length,
            &format!("a finite number from {MIN_MAGNITUDE:e} to {MAX_MAGNITUDE:e}"),
            "theory::fastest_wavelength gives the length of the fastest growing wave",
        )?;
        check(
            or_zero(self.beam_velocity),
            "beam_velocity",
            &self.beam_velocity,
            &format!("0, or a finite number from {MIN_MAGNITUDE:e} to {MAX_MAGNITUDE:e}"),
            "give the speed; one beam moves in each direction",
        )?;
        check(
            or_zero(self.thermal_spread),
            "thermal_spread",
            &self.thermal_spread,
            &format!("0, or a finite number from {MIN_MAGNITUDE:e} to {MAX_MAGNITUDE:e}"),
            "a twentieth of beam_velocity makes warm beams that are still unstable",
        )?;
        check(
            self.dt > 0.0 && self.dt <= 1.0,
            "dt",
            &self.dt,
            "a number above 0 and at most 1",
            "the unit is 1/omega_p, and the scheme is unstable from 2 on; 0.05 to 0.2 is usual",
        )?;
        check(
            (0.0..1.0).contains(&self.perturbation),
            "perturbation",
            &self.perturbation,
            "a number from 0 to below 1",
            "it is relative to the density, which cannot fall below 0; 0.001 is usual",
        )?;
        check(
            (1..=self.cells / 2).contains(&self.mode),
            "mode",
            &self.mode,
            &format!("1 to {} (half of cells = {})", self.cells / 2, self.cells),
            "the grid cannot represent shorter waves; use more cells or a lower mode",
        )?;
        // Eight standard deviations are the tail that 2^52 equally likely quantiles can reach.
        let stride = (self.beam_velocity + 8.0 * self.thermal_spread) * self.dt;
        check(
            stride <= self.length / 2.0,
            "dt",
            &self.dt,
            &format!(
                "at most {} with this length, beam_velocity and thermal_spread",
                self.length / 2.0 * self.dt / stride
            ),
            "particles may not cross half of the domain in a step; use a smaller dt or a longer \
             domain",
        )
    }

    /// The wave number `k` of the given mode (wavelengths in the domain).
    #[must_use]
    pub fn wave_number(&self, mode: usize) -> f64 {
        TAU * mode as f64 / self.length
    }

    /// The theoretical growth rate (in `omega_p`) of the mode in cold beams, or 0 if it is stable.
    ///
    /// See [`theory::growth_rate`]. Thermal spread and the grid lower it somewhat.
    #[must_use]
    pub fn growth_rate(&self, mode: usize) -> f64 {
        theory::growth_rate(self.beam_velocity, self.wave_number(mode))
    }

    /// The mode that grows fastest in cold beams, and its growth rate. `None` if the domain is too
    /// short for any unstable wave, or if the beams are at rest.
    #[must_use]
    pub fn most_unstable_mode(&self) -> Option<(usize, f64)> {
        // The rate has a single maximum over wave numbers, so one of its two neighbouring modes is
        // best.
        let ideal = self.length / theory::fastest_wavelength(self.beam_velocity);
        let below = ideal.clamp(1.0, (self.cells / 2) as f64) as usize;
        [below, below + 1]
            .into_iter()
            .filter(|mode| *mode <= self.cells / 2)
            .map(|mode| (mode, self.growth_rate(mode)))
            .filter(|(_, rate)| *rate > 0.0)
            .max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

/// A setting that cannot work: its name, its value, what is expected, and advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub(crate) setting: &'static str,
    pub(crate) found: String,
    pub(crate) expected: String,
    pub(crate) advice: &'static str,
}

impl ConfigError {
    /// The name of the field of [`Config`] that was refused.
    #[must_use]
    pub fn setting(&self) -> &'static str {
        self.setting
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "plasma setting `{}` is {}, expected {}: {}",
            self.setting, self.found, self.expected, self.advice
        )
    }
}

impl Error for ConfigError {}
