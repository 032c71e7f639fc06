//! The periodic grid: computes field and potential from the charge.
//!
//! Node `i` is at `i * spacing`, and face `i` is half a cell to its right. Charge and potential are
//! at nodes, and the solved field is at faces; particles see its average at nodes. With `h` for
//! faces, the solution obeys `(h[i] - h[i-1]) / spacing = charge[i]` (Gauss) and
//! `h[i] = -(phi[i+1] - phi[i]) / spacing`, and both means are zero.
//!
//! Invariants: every array has one element per cell, and none is allocated after construction. All
//! sums run in index order, so results are the same everywhere. A grid has one owner at a time and
//! no locks.

use crate::maths::sin_cos_turns;

/// What the particles in a cell contribute: their number, and the sum of their distances from the
/// cell's left node in cells. With linear weights, the right node's share is that sum, and the left
/// node's share is the remainder.
pub(crate) type Share = [f64; 2];

/// A quantity at a cell's left node, and its difference to the right node.
pub(crate) type Linear = [f64; 2];

/// The fields and the charge at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    /// Width of a cell.
    pub(crate) spacing: f64,
    /// The shares of each cell. The pass over the particles fills them, and [`Grid::solve`] reads
    /// them.
    pub(crate) shares: Vec<Share>,
    /// Charge density at nodes, including the background.
    charge: Vec<f64>,
    /// Electric field at faces.
    face: Vec<f64>,
    /// Electric field, linear between nodes.
    pub(crate) electric: Vec<Linear>,
    /// Potential, linear between nodes.
    pub(crate) potential: Vec<Linear>,
}

impl Grid {
    pub(crate) fn new(cells: usize, length: f64) -> Self {
        Grid {
            spacing: length / cells as f64,
            shares: vec![[0.0; 2]; cells],
            charge: vec![0.0; cells],
            face: vec![0.0; cells],
            electric: vec![[0.0; 2]; cells],
            potential: vec![[0.0; 2]; cells],
        }
    }

    fn cells(&self) -> usize {
        self.charge.len()
    }

    /// Resets all shares.
    pub(crate) fn clear(&mut self) {
        self.shares.fill([0.0; 2]);
    }

    /// Computes charge, field and potential from the shares. `weight` is the number of electrons
    /// that a particle stands for.
    pub(crate) fn solve(&mut self, weight: f64) {
        let cells = self.cells();
        let mut carried = self.shares[cells - 1][1];
        let mut total = 0.0;
        for (charge, [count, offsets]) in self.charge.iter_mut().zip(&self.shares) {
            // Electrons are negative, the background is +1.
            *charge = 1.0 - (count - offsets + carried) * weight / self.spacing;
            carried = *offsets;
            total += *charge;
        }
        // Zero up to rounding. The remainder would tilt the periodic field.
        let excess = total / cells as f64;

        let (mut field, mut sum) = (0.0, 0.0);
        for (face, charge) in self.face.iter_mut().zip(&self.charge) {
            field += (charge - excess) * self.spacing;
            *face = field;
            sum += field;
        }
        let mean = sum / cells as f64;
        self.face.iter_mut().for_each(|face| *face -= mean);

        let mut left = self.face[cells - 1];
        for (electric, face) in self.electric.iter_mut().zip(&self.face) {
            electric[0] = 0.5 * (left + face);
            left = *face;
        }
        let (mut potential, mut sum) = (0.0, 0.0);
        for (node, face) in self.potential.iter_mut().zip(&self.face) {
            node[0] = potential;
            sum += potential;
            potential -= face * self.spacing;
        }
        let mean = sum / cells as f64;
        self.potential.iter_mut().for_each(|node| node[0] -= mean);
        for values in [&mut self.electric, &mut self.potential] {
            let first = values[0][0];
            for i in 0..cells - 1 {
                values[i][1] = values[i + 1][0] - values[i][0];
            }
            values[cells - 1][1] = first - values[cells - 1][0];
        }
    }

    /// The energy of the field per unit area: half the integral of its square over faces, which
    /// equals half the sum of charge times potential.
    pub(crate) fn energy(&self) -> f64 {
        0.5 * self.spacing * self.face.iter().fold(0.0, |sum, e| sum + e * e)
    }

    /// The charge of the whole domain, per unit area.
    pub(crate) fn net_charge(&self) -> f64 {
        self.spacing * self.charge.iter().fold(0.0, |sum, charge| sum + charge)
    }

    /// Charge density at nodes.
    pub(crate) fn charge(&self) -> &[f64] {
        &self.charge
    }

    /// Electric field at faces.
    pub(crate) fn face(&self) -> &[f64] {
        &self.face
    }

    /// The amplitude of the field's Fourier component with `mode` wavelengths in the domain.
    pub(crate) fn amplitude(&self, mode: usize) -> f64 {
        let cells = self.cells();
        let (mut real, mut imaginary) = (0.0, 0.0);
        let mut phase = 0;
        for electric in &self.electric {
            // The phase is counted in whole cells and wrapped, so the angle stays exact for any
            // mode.
            let (sin, cos) = sin_cos_turns(phase as f64 / cells as f64);
            real += electric[0] * cos;
            imaginary += electric[0] * sin;
            phase = (phase + mode) % cells;
        }
        let alone = (2 * mode).is_multiple_of(cells);
        let scale = if alone { 1.0 } else { 2.0 } / cells as f64;
        (real * real + imaginary * imaginary).sqrt() * scale
    }
}

#[cfg(test)]
mod tests;
