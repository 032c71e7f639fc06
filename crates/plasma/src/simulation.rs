//! The particles, their step in time, and the quantities that can be read.
//!
//! Invariants: positions are in cells, from 0 to below the number of cells. Velocities along x
//! belong to the moment half a step before the positions. Grid and positions belong to the same
//! moment. A particle's id is its index. Reading takes `&self`; only [`Simulation::step`] writes.

use crate::config::{Config, ConfigError};
use crate::grid::{Grid, Linear};
use crate::load::Loader;
use crate::order::CellOrder;
use crate::record::{KEY_BYTES, Record, VALUE_BYTES, encode_key, encode_value};

/// A plasma at one moment.
#[derive(Clone, Debug)]
pub struct Simulation {
    config: Config,
    /// The number of electrons per unit area that a particle stands for.
    weight: f64,
    steps: u64,
    positions: Vec<f64>,
    velocities: Vec<f64>,
    /// The components y and z, which never change, in the precision of records.
    transverse: Vec<[f32; 2]>,
    /// The kinetic energy of the components y and z of all particles.
    transverse_energy: f64,
    grid: Grid,
}

/// Sums over the plasma at one moment, per unit area.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Diagnostics {
    /// Time since the start, in `1 / omega_p`.
    pub time: f64,
    /// Energy of the electric field.
    pub field_energy: f64,
    /// Kinetic energy of the electrons, all three components.
    pub kinetic_energy: f64,
    /// Their sum, which should not change.
    pub total_energy: f64,
    /// Momentum along x, which should not change.
    pub momentum: f64,
    /// Charge of electrons and background together, which should be zero.
    pub net_charge: f64,
    /// Amplitude of the electric field of the perturbed mode ([`Config::mode`]).
    pub mode_amplitude: f64,
}

/// Interpolates a quantity at a distance (in cells) from the left node of its cell.
#[inline(always)]
fn interpolate(at: Linear, offset: f64) -> f64 {
    at[0] + offset * at[1]
}

/// The cell of a position (in cells) in the domain.
#[inline(always)]
fn cell_of(at: f64) -> usize {
    // Converted through 32 bits, which are enough for every cell: the saturating conversion to 64
    // bits makes a step half as long again.
    at as u32 as usize
}

/// Wraps a position (in cells) into the domain.
#[cold]
fn wrapped(at: f64, cells: f64) -> f64 {
    let inside = at - cells * (at / cells).floor();
    // A tiny negative position rounds up to the far end, which is the same point as the near end.
    if inside < cells { inside } else { 0.0 }
}

impl Simulation {
    /// Places the particles and computes their first field.
    ///
    /// # Errors
    ///
    /// A setting that [`Config::validate`] refuses, or too little memory for the particles.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let count = config.particles;
        let mut positions = Vec::new();
        let mut velocities = Vec::new();
        let mut transverse = Vec::new();
        positions
            .try_reserve_exact(count)
            .and_then(|()| velocities.try_reserve_exact(count))
            .and_then(|()| transverse.try_reserve_exact(count))
            .map_err(|_| ConfigError {
                setting: "particles",
                found: count.to_string(),
                expected: format!(
                    "a number that {} bytes of memory are free for",
                    24 * count as u64
                ),
                advice: "each particle takes 24 bytes; use fewer",
            })?;

        let cells = config.cells as f64;
        let loader = Loader::new(&config);
        let mut transverse_energy = 0.0;
        for id in 0..count as u64 {
            let initial = loader.particle(id);
            let mut at = initial.position * cells;
            if !(0.0..cells).contains(&at) {
                at = wrapped(at, cells);
            }
            positions.push(at);
            velocities.push(initial.velocity[0]);
            let [y, z] = [initial.velocity[1] as f32, initial.velocity[2] as f32];
            transverse.push([y, z]);
            transverse_energy += f64::from(y) * f64::from(y) + f64::from(z) * f64::from(z);
        }
        let weight = config.length / count as f64;
        let mut simulation = Simulation {
            weight,
            steps: 0,
            grid: Grid::new(config.cells, config.length),
            positions,
            velocities,
            transverse,
            transverse_energy: 0.5 * weight * transverse_energy,
            config,
        };
        for at in &simulation.positions {
            let cell = cell_of(*at);
            let share = &mut simulation.grid.shares[cell];
            share[0] += 1.0;
            share[1] += at - cell as f64;
        }
        simulation.grid.solve(weight);
        // Leapfrog: velocities belong to the moment half a step before, when the force (the field
        // times the charge, -1) has not yet acted.
        let half = 0.5 * simulation.config.dt;
        for (velocity, at) in simulation.velocities.iter_mut().zip(&simulation.positions) {
            let cell = cell_of(*at);
            *velocity += half * interpolate(simulation.grid.electric[cell], at - cell as f64);
        }
        Ok(simulation)
    }

    /// Advances the plasma by `dt`.
    pub fn step(&mut self) {
        let cells = self.config.cells as f64;
        let kick = -self.config.dt;
        let drift = self.config.dt / self.grid.spacing;
        self.grid.clear();
        let electric = self.grid.electric.as_slice();
        let shares = self.grid.shares.as_mut_slice();
        for (position, velocity) in self.positions.iter_mut().zip(&mut self.velocities) {
            let cell = cell_of(*position);
            let field = interpolate(electric[cell], *position - cell as f64);
            *velocity += kick * field;
            let mut at = *position + drift * *velocity;
            if !(0.0..cells).contains(&at) {
                at = wrapped(at, cells);
            }
            *position = at;
            let cell = cell_of(at);
            let share = &mut shares[cell];
            share[0] += 1.0;
            share[1] += at - cell as f64;
        }
        self.grid.solve(self.weight);
        self.steps += 1;
    }

    /// The settings of the simulation.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The number of particles. Ids run from 0 to below it.
    #[must_use]
    pub fn particle_count(&self) -> u64 {
        self.positions.len() as u64
    }

    /// The number of steps since the start.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.steps
    }

    /// Time since the start, in `1 / omega_p`.
    #[must_use]
    pub fn time(&self) -> f64 {
        self.steps as f64 * self.config.dt
    }

    /// The position (in cells) of a particle, its velocity along x at the same moment, and its
    /// cell.
    #[inline(always)]
    fn particle(&self, id: usize) -> (f64, f64, usize) {
        let at = self.positions[id];
        let cell = cell_of(at);
        let field = interpolate(self.grid.electric[cell], at - cell as f64);
        (at, self.velocities[id] - 0.5 * self.config.dt * field, cell)
    }

    /// The position in units of length and the velocity along x of each particle, in order of ids.
    pub fn positions_and_velocities(&self) -> impl ExactSizeIterator<Item = (f64, f64)> + '_ {
        (0..self.positions.len()).map(|id| {
            let (at, velocity, _) = self.particle(id);
            (at * self.grid.spacing, velocity)
        })
    }

    /// Energies, momentum, charge and the amplitude of the perturbed mode. Takes one pass over the
    /// particles.
    #[must_use]
    pub fn diagnostics(&self) -> Diagnostics {
        let (mut sum, mut squares) = (0.0, 0.0);
        for id in 0..self.positions.len() {
            let (_, velocity, _) = self.particle(id);
            sum += velocity;
            squares += velocity * velocity;
        }
        let field_energy = self.grid.energy();
        let kinetic_energy = 0.5 * self.weight * squares + self.transverse_energy;
        Diagnostics {
            time: self.time(),
            field_energy,
            kinetic_energy,
            total_energy: field_energy + kinetic_energy,
            momentum: self.weight * sum,
            net_charge: self.grid.net_charge(),
            mode_amplitude: self.mode_amplitude(self.config.mode),
        }
    }

    /// The amplitude of the electric field's component with `mode` wavelengths in the domain. Takes
    /// one pass over the grid.
    #[must_use]
    pub fn mode_amplitude(&self, mode: usize) -> f64 {
        self.grid.amplitude(mode)
    }

    /// Charge density at the nodes of the grid, including the background.
    #[must_use]
    pub fn charge_density(&self) -> &[f64] {
        self.grid.charge()
    }

    /// Electric field at the faces of the grid. Face `i` is half a cell to the right of node `i`.
    #[must_use]
    pub fn electric_field(&self) -> &[f64] {
        self.grid.face()
    }

    /// The record of a particle at this moment. `None` if there is no such id. `dump` is only
    /// stored in the record.
    #[must_use]
    pub fn record(&self, dump: u64, id: u64) -> Option<Record> {
        (id < self.particle_count()).then(|| self.record_at(dump, id))
    }

    #[inline(always)]
    fn record_at(&self, dump: u64, id: u64) -> Record {
        let (at, velocity, cell) = self.particle(id as usize);
        let offset = at - cell as f64;
        let [vy, vz] = self.transverse[id as usize];
        let (x, vx) = ((at * self.grid.spacing) as f32, velocity as f32);
        Record {
            dump,
            id,
            // Rounded to 32 bits, a position may reach the far end, which is the same point as the
            // near end.
            x: if x < self.config.length as f32 {
                x
            } else {
                0.0
            },
            vx,
            vy,
            vz,
            weight: self.weight as f32,
            electric_field: interpolate(self.grid.electric[cell], offset) as f32,
            potential: interpolate(self.grid.potential[cell], offset) as f32,
            kinetic_energy: 0.5 * (vx * vx + vy * vy + vz * vz),
        }
    }

    /// Keys and values of the given particles at this moment, in the given order: a range of ids
    /// for one writer's share, or [`CellOrder::ids`] for a dump as real codes write it. Allocates
    /// nothing.
    ///
    /// # Panics
    ///
    /// If an id is not below [`Simulation::particle_count`].
    pub fn records<'a, I>(
        &'a self,
        dump: u64,
        ids: I,
    ) -> impl Iterator<Item = ([u8; KEY_BYTES], [u8; VALUE_BYTES])> + use<'a, I>
    where
        I: IntoIterator<Item = u64>,
    {
        ids.into_iter().map(move |id| {
            let record = self.record_at(dump, id);
            (encode_key(dump, id), encode_value(&record))
        })
    }

    /// Calls `visit` with the key and value of every particle at this moment, in order of ids and
    /// so of keys.
    pub fn for_each_record(
        &self,
        dump: u64,
        mut visit: impl FnMut(&[u8; KEY_BYTES], &[u8; VALUE_BYTES]),
    ) {
        for (key, value) in self.records(dump, 0..self.particle_count()) {
            visit(&key, &value);
        }
    }

    /// As [`Simulation::for_each_record`], for the given ids in the given order, until `visit`
    /// fails.
    ///
    /// # Errors
    ///
    /// The first error of `visit`.
    ///
    /// # Panics
    ///
    /// If an id is not below [`Simulation::particle_count`].
    pub fn try_for_each_record<E>(
        &self,
        dump: u64,
        ids: impl IntoIterator<Item = u64>,
        mut visit: impl FnMut(&[u8; KEY_BYTES], &[u8; VALUE_BYTES]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.records(dump, ids)
            .try_for_each(|(key, value)| visit(&key, &value))
    }

    /// Fills `order` with the ids, sorted by the cells that the particles are in now. Allocates
    /// only if `order` has never been as large.
    pub fn order_by_cell(&self, order: &mut CellOrder) {
        let cells = self.positions.iter().map(|at| cell_of(*at));
        order.fill(self.config.cells, cells);
    }

    /// The kinetic energy that the given fraction (0 to 1) of all records exceed now, for queries
    /// of a chosen selectivity. Exactly `floor(fraction * particles)` records exceed it, less those
    /// that equal it.
    #[must_use]
    pub fn kinetic_energy_threshold(&self, fraction: f64) -> f32 {
        let mut energies: Vec<f32> = (0..self.particle_count())
            .map(|id| self.record_at(0, id).kinetic_energy)
            .collect();
        let above = (fraction.clamp(0.0, 1.0) * energies.len() as f64) as usize;
        // The largest `above` energies exceed the threshold. All energies exceed -1, because none
        // is negative.
        match energies.len().checked_sub(above + 1) {
            Some(rank) => *energies.select_nth_unstable_by(rank, f32::total_cmp).1,
            None => -1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Start;

    #[test]
    fn positions_wrap_into_the_domain() {
        for (at, inside) in [
            (-0.25, 7.75),
            (8.0, 0.0),
            (8.5, 0.5),
            (-8.0, 0.0),
            (-1e-30, 0.0),
            (25.0, 1.0),
            (-17.0, 7.0),
        ] {
            assert_eq!(wrapped(at, 8.0), inside, "{at}");
        }
    }

    #[test]
    fn the_scheme_is_reversible() {
        for start in [Start::Quiet, Start::Random] {
            let config = Config {
                particles: 4_000,
                cells: 64,
                perturbation: 0.01,
                start,
                ..Config::default()
            };
            let first = Simulation::new(config).expect("the configuration is valid");
            let mut plasma = first.clone();
            for _ in 0..100 {
                plasma.step();
            }
            // With reversed velocities, the one half a step ahead becomes the one half a step
            // behind.
            for id in 0..plasma.positions.len() {
                let (_, velocity, _) = plasma.particle(id);
                plasma.velocities[id] -= 2.0 * velocity;
            }
            for _ in 0..100 {
                plasma.step();
            }
            let cells = first.config.cells as f64;
            for id in 0..plasma.positions.len() {
                let ((a, v, _), (b, w, _)) = (first.particle(id), plasma.particle(id));
                let apart = (a - b).abs();
                let apart = apart.min(cells - apart);
                assert!(apart < 1e-9, "{start:?} id {id}: {apart} cells apart");
                assert!((v + w).abs() < 1e-9, "{start:?} id {id}: {v} and {w}");
            }
        }
    }
}
