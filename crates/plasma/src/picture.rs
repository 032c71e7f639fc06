//! Phase space (position against velocity) as a histogram and as text, for terminals.
//!
//! The range of velocities depends only on the settings, so successive pictures have the same
//! scale. Nothing is written; there is no threading rule.

use crate::config::Config;
use crate::simulation::Simulation;
use std::f64::consts::TAU;

/// Characters from empty to full.
const SHADES: &[u8] = b" .:-=+*#%@";

impl Config {
    /// The velocity at the edges of phase-space pictures, a little beyond what the saturated wave
    /// can trap.
    #[must_use]
    pub fn picture_velocity(&self) -> f64 {
        // In a plasma at rest, electrons displaced by d/k oscillate with velocity d/k.
        let swing = self.perturbation / (TAU * self.mode as f64 / self.length);
        let extent = 2.5 * self.beam_velocity + 4.0 * self.thermal_spread + 1.25 * swing;
        if extent > 0.0 { extent } else { 1.0 }
    }
}

impl Simulation {
    /// Numbers of particles by position (column, left to right) and velocity along x (row, fastest
    /// first), row by row.
    ///
    /// Rows cover the velocities from `-`[`Config::picture_velocity`] to `+`. The outermost rows
    /// include all velocities beyond, so the sum is the number of particles. Empty if `columns` or
    /// `rows` is 0.
    #[must_use]
    pub fn phase_space(&self, columns: usize, rows: usize) -> Vec<u32> {
        let mut counts = vec![0u32; columns.saturating_mul(rows)];
        if counts.is_empty() {
            return counts;
        }
        let across = columns as f64 / self.config().length;
        let edge = self.config().picture_velocity();
        let down = rows as f64 / (2.0 * edge);
        for (x, velocity) in self.positions_and_velocities() {
            // Conversions to integers saturate, so values beyond the edges are counted at the
            // edges.
            let column = ((x * across) as usize).min(columns - 1);
            let row = (((edge - velocity) * down) as usize).min(rows - 1);
            counts[row * columns + column] += 1;
        }
        counts
    }

    /// As [`Simulation::phase_space`], as text with one line per row. Darker characters mean more
    /// particles.
    #[must_use]
    pub fn phase_space_text(&self, columns: usize, rows: usize) -> String {
        let counts = self.phase_space(columns, rows);
        let most = counts.iter().copied().max().unwrap_or(0).max(1);
        let mut text = String::with_capacity(counts.len() + rows);
        for row in counts.chunks(columns.max(1)) {
            for count in row {
                // The square root makes thin regions visible; any particle gives at least the
                // faintest dot.
                let share = (f64::from(*count) / f64::from(most)).sqrt();
                let shade = (share * (SHADES.len() - 1) as f64).ceil() as usize;
                text.push(char::from(SHADES[shade]));
            }
            text.push('\n');
        }
        text
    }
}
