use super::*;
use crate::rng::{Stream, random, unit};
use std::f64::consts::TAU;

/// A grid with `count` particles at the positions `position` (0 to 1).
fn filled(cells: usize, length: f64, count: usize, position: impl Fn(usize) -> f64) -> Grid {
    let mut grid = Grid::new(cells, length);
    for i in 0..count {
        let at = position(i) * cells as f64;
        let cell = at as usize;
        grid.shares[cell][0] += 1.0;
        grid.shares[cell][1] += at - cell as f64;
    }
    grid.solve(length / count as f64);
    grid
}

#[test]
fn the_solution_solves_both_difference_equations() {
    for (cells, seed) in [(4, 1), (5, 2), (64, 3), (257, 4)] {
        let length = 7.0;
        let grid = filled(cells, length, 1000, |i| {
            unit(random(seed, Stream::Positions, i as u64))
        });
        let scale = grid.charge.iter().fold(1.0f64, |m, c| m.max(c.abs()));
        for i in 0..cells {
            let left = grid.face[(i + cells - 1) % cells];
            let gauss = (grid.face[i] - left) / grid.spacing - grid.charge[i];
            assert!(gauss.abs() < 1e-11 * scale, "seed {seed} node {i}: {gauss}");
            let right = grid.potential[(i + 1) % cells][0];
            let slope = (right - grid.potential[i][0]) / grid.spacing + grid.face[i];
            assert!(slope.abs() < 1e-11 * scale, "seed {seed} face {i}: {slope}");
            assert!((grid.potential[i][0] + grid.potential[i][1] - right).abs() < 1e-12 * scale);
            let next = grid.electric[(i + 1) % cells][0];
            assert!((grid.electric[i][0] + grid.electric[i][1] - next).abs() < 1e-12 * scale);
        }
        let mean = grid.face.iter().sum::<f64>() / cells as f64;
        assert!(mean.abs() < 1e-13 * scale, "seed {seed}: {mean}");
        assert!(grid.net_charge().abs() < 1e-12 * scale);
    }
}

#[test]
fn field_energy_equals_that_of_charges_in_their_potential() {
    let grid = filled(96, 3.0, 500, |i| {
        unit(random(9, Stream::Positions, i as u64))
    });
    let other: f64 = grid
        .charge
        .iter()
        .zip(&grid.potential)
        .map(|(charge, potential)| 0.5 * grid.spacing * charge * potential[0])
        .sum();
    assert!((grid.energy() / other - 1.0).abs() < 1e-12);
}

#[test]
fn the_plasma_exerts_no_force_on_itself() {
    let grid = filled(50, 3.0, 500, |i| {
        unit(random(10, Stream::Positions, i as u64))
    });
    let force: f64 = grid
        .charge
        .iter()
        .zip(&grid.electric)
        .map(|(charge, electric)| charge * electric[0])
        .sum();
    assert!(force.abs() < 1e-11, "{force}");
}

#[test]
fn a_bunched_plasma_has_the_theoretical_field() {
    // Electrons displaced by -(d/k) sin(kx) have the density 1 + d cos(kx), so dE/dx = -d cos(kx).
    let (cells, length, mode, d) = (256, 10.0, 3, 1e-3);
    let k = TAU * mode as f64 / length;
    let count = cells * 64;
    let grid = filled(cells, length, count, |i| {
        let x = (i as f64 + 0.5) / count as f64 * length;
        ((x - d / k * (k * x).sin()) / length).rem_euclid(1.0)
    });
    for i in 0..cells {
        let x = i as f64 * grid.spacing;
        let (e, phi) = (-d / k * (k * x).sin(), -d / (k * k) * (k * x).cos());
        assert!((grid.electric[i][0] - e).abs() < 4e-3 * d / k, "node {i}");
        assert!(
            (grid.potential[i][0] - phi).abs() < 4e-3 * d / (k * k),
            "node {i}"
        );
    }
    assert!((grid.amplitude(mode) / (d / k) - 1.0).abs() < 4e-3);
    for other in [0, 1, 2, 4, 5] {
        assert!(grid.amplitude(other) < 1e-3 * d / k, "mode {other}");
    }
    let energy = 0.25 * length * (d / k) * (d / k);
    assert!((grid.energy() / energy - 1.0).abs() < 8e-3);
}
