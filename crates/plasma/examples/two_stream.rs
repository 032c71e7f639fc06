//! Runs the two-stream instability and shows it:
//! `cargo run --release -p siltstone-plasma --example two_stream [particles]`.

use siltstone_plasma::{CellOrder, Config, ConfigError, Simulation};
use std::hint::black_box;
use std::time::Instant;

fn main() -> Result<(), ConfigError> {
    let mut config = Config::default();
    if let Some(text) = std::env::args().nth(1) {
        match text.parse() {
            Ok(particles) => config.particles = particles,
            Err(error) => {
                eprintln!("`{text}` is not a number of particles: {error}");
                std::process::exit(2);
            }
        }
    }
    let start = Instant::now();
    let mut simulation = Simulation::new(config)?;
    let count = simulation.particle_count() as f64;
    let loaded = start.elapsed().as_secs_f64();
    println!("load: {:.1} ns per particle", loaded * 1e9 / count);
    for _ in 0..8 {
        let start = Instant::now();
        for _ in 0..50 {
            simulation.step();
        }
        let step = start.elapsed().as_secs_f64() / 50.0;
        print!("{}", simulation.phase_space_text(100, 20));
        let now = simulation.diagnostics();
        println!(
            "t {:5.1}  field {:.5}  kinetic {:.5}  total {:.7}  momentum {:+.1e}  mode {:.2e}  \
             step {:.2} ms, {:.1} ns per particle",
            now.time,
            now.field_energy,
            now.kinetic_energy,
            now.total_energy,
            now.momentum,
            now.mode_amplitude,
            step * 1e3,
            step * 1e9 / count,
        );
    }
    let mut order = CellOrder::new();
    for dump in 0..2 {
        let start = Instant::now();
        simulation.for_each_record(dump, |key, value| {
            black_box((key, value));
        });
        let by_id = start.elapsed().as_secs_f64();
        let start = Instant::now();
        simulation.order_by_cell(&mut order);
        let sort = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for record in simulation.records(dump, order.ids()) {
            black_box(&record);
        }
        let by_cell = start.elapsed().as_secs_f64();
        println!(
            "records: {:.1} ns each by id, {:.1} by cell, and {:.1} to sort",
            by_id * 1e9 / count,
            by_cell * 1e9 / count,
            sort * 1e9 / count
        );
    }
    Ok(())
}
