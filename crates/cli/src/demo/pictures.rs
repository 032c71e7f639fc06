//! Draws the plasma from the store: every dump is scanned, decoded and drawn into phase space.
//!
//! Only the scale comes from the simulation: the length of the domain, the range of velocities, and
//! the times of dumps.

use std::time::Instant;

use siltstone::{IterOptions, Keyspace};
use siltstone_plasma::decode;

use super::particles::Particles;
use super::plan::Plan;
use super::say;
use crate::failure::Failure;
use crate::output::{count, duration};
use crate::report::model::{Dump, Plasma};
use crate::report::record::Recorder;

/// The mean number of particles in a cell of a picture. Most cells are empty, so the others hold
/// enough particles to show more than noise.
const CELL_PARTICLES: u64 = 3;

/// Scans the store and makes the pictures.
pub fn run(
    plan: &Plan,
    keyspace: &Keyspace,
    particles: &Particles,
    recorder: &Recorder,
) -> Result<Plasma, Failure> {
    let start = Instant::now();
    let config = plan.simulation();
    // Pictures are twice as wide as high.
    let cells = particles.particle_count() / CELL_PARTICLES;
    let rows = ((cells / 2).isqrt() as usize).clamp(48, 320);
    let columns = 2 * rows;
    let mut plasma = Plasma {
        particle_count: particles.particle_count(),
        length: config.length,
        velocity: config.picture_velocity(),
        ..Plasma::default()
    };
    for number in 0..particles.dump_count() {
        let mut dump = Dump {
            time: particles.time(number),
            columns,
            counts: vec![0; columns * rows],
            ..Dump::default()
        };
        // The mean field of each cell of the simulation's grid, and its number of particles.
        let mut fields = vec![(0.0, 0u32); config.cells];
        let (mut energy, mut found) = (0.0, 0u64);
        for pair in keyspace.range(IterOptions::prefix(&number.to_be_bytes()))? {
            let (key, value) = pair?;
            let record = decode(&key, &value).map_err(|e| Failure::Other(e.to_string()))?;
            let (x, v) = (f64::from(record.x) / config.length, f64::from(record.vx));
            // Conversions saturate, so particles beyond the range are at the edge.
            let column = ((x * columns as f64) as usize).min(columns - 1);
            let down = 0.5 - 0.5 * v / plasma.velocity;
            let row = ((down * rows as f64) as usize).min(rows - 1);
            dump.counts[row * columns + column] += 1;
            let cell = ((x * config.cells as f64) as usize).min(config.cells - 1);
            fields[cell].0 += f64::from(record.electric_field);
            fields[cell].1 += 1;
            energy += f64::from(record.kinetic_energy);
            dump.speed_max = dump.speed_max.max(v.abs());
            found += 1;
            recorder.read(1);
        }
        dump.kinetic_energy = energy / found.max(1) as f64;
        let squares: f64 = fields
            .iter()
            .map(|(sum, n)| (sum / f64::from((*n).max(1))).powi(2))
            .sum();
        dump.field_energy = 0.5 * squares * config.length / config.cells as f64;
        plasma.pair_count += found;
        plasma.dumps.push(dump);
    }
    plasma.reading_us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    if let [first, .., last] = &plasma.dumps[..] {
        say!(
            "   the physics:  {} pairs decoded in {}: mean kinetic energy {:.4} at first and {:.4} \
            at last (the wave took the difference); fastest {:.2}, then {:.2}",
            count(plasma.pair_count),
            duration(start.elapsed()),
            first.kinetic_energy,
            last.kinetic_energy,
            first.speed_max,
            last.speed_max
        )?;
    }
    Ok(plasma)
}
