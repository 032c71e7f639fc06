//! The simulation compared with theory.

use siltstone_plasma::{Config, Simulation, Start, theory};
use std::f64::consts::TAU;

/// One wavelength of the fastest growing wave between cold beams.
fn cold_beams() -> Config {
    Config {
        particles: 8_192,
        cells: 64,
        length: theory::fastest_wavelength(1.0),
        beam_velocity: 1.0,
        thermal_spread: 0.0,
        dt: 0.1,
        perturbation: 1e-6,
        mode: 1,
        start: Start::Quiet,
        seed: 5,
    }
}

fn simulation(config: Config) -> Simulation {
    Simulation::new(config).expect("the configuration is valid")
}

/// The measured growth rate of the perturbed mode, from where it dominates to where it is not yet
/// large.
fn measured_rate(config: &Config) -> f64 {
    let mut plasma = simulation(config.clone());
    let first = plasma.mode_amplitude(config.mode);
    // Saturation begins where the wave's potential traps the beams: k phi of the order of k v0^2.
    let saturation = config.wave_number(config.mode) * config.beam_velocity.powi(2);
    let mut samples = Vec::new();
    for _ in 0..4_000 {
        plasma.step();
        let amplitude = plasma.mode_amplitude(config.mode);
        if amplitude > 0.02 * saturation {
            break;
        }
        if amplitude > 30.0 * first {
            samples.push((plasma.time(), amplitude));
        }
    }
    assert!(samples.len() >= 50, "only {} samples", samples.len());
    theory::fitted_growth_rate(&samples).expect("amplitudes are positive")
}

#[test]
fn cold_beams_grow_at_the_theoretical_rate() {
    let fastest = theory::fastest_wavelength(1.0);
    // Waves that are longer and shorter than the fastest, other velocities, and a finer grid.
    let cases = [
        (fastest, 1.0, 64),
        (fastest * 1.6, 1.0, 64),
        (fastest * 0.75, 1.0, 64),
        (fastest * 3.0, 3.0, 128),
        (fastest * 0.1, 0.1, 64),
    ];
    for (length, beam_velocity, cells) in cases {
        let config = Config {
            length,
            beam_velocity,
            cells,
            ..cold_beams()
        };
        let (measured, theory) = (measured_rate(&config), config.growth_rate(1));
        assert!(
            (measured / theory - 1.0).abs() < 0.01,
            "length {length}, v0 {beam_velocity}: measured {measured}, theory {theory}"
        );
    }
}

#[test]
fn slightly_warm_beams_grow_almost_as_fast() {
    // Both starts grow by more than a factor of ten before the fit begins, so that the other three
    // roots have vanished.
    for (start, perturbation, particles) in
        [(Start::Quiet, 1e-4, 16_384), (Start::Random, 2e-3, 262_144)]
    {
        let config = Config {
            thermal_spread: 0.03,
            start,
            perturbation,
            particles,
            dt: 0.2,
            ..cold_beams()
        };
        let mut plasma = simulation(config.clone());
        let mut samples = Vec::new();
        loop {
            plasma.step();
            let amplitude = plasma.mode_amplitude(1);
            if amplitude > 0.12 {
                break;
            }
            if amplitude > 0.02 {
                samples.push((plasma.time(), amplitude));
            }
            assert!(plasma.time() < 200.0, "{start:?}: never grew");
        }
        assert!(samples.len() > 20, "{start:?}: {} samples", samples.len());
        let measured = theory::fitted_growth_rate(&samples).expect("amplitudes are positive");
        let theory = config.growth_rate(1);
        assert!(
            (measured / theory - 1.0).abs() < 0.1,
            "{start:?}: measured {measured}, theory {theory}"
        );
    }
}

#[test]
fn short_waves_are_stable() {
    // k v0 = 1.5, so every mode of the domain is beyond the limit.
    let config = Config {
        length: TAU / 1.5,
        ..cold_beams()
    };
    assert_eq!(config.most_unstable_mode(), None);
    let mut plasma = simulation(config);
    let first = plasma.diagnostics().mode_amplitude;
    for _ in 0..500 {
        plasma.step();
        assert!(
            plasma.mode_amplitude(1) < 5.0 * first,
            "at {}",
            plasma.time()
        );
    }
}

#[test]
fn a_plasma_at_rest_oscillates_at_the_plasma_frequency() {
    let config = Config {
        beam_velocity: 0.0,
        length: TAU,
        dt: 0.05,
        perturbation: 0.01,
        ..cold_beams()
    };
    let k = config.wave_number(1);
    let mut plasma = simulation(config.clone());
    // Electrons displaced by d/k have a field of d/k, too.
    assert!((plasma.mode_amplitude(1) / (0.01 / k) - 1.0).abs() < 0.01);
    let kinetic = plasma.diagnostics().kinetic_energy;
    assert!(kinetic < 1e-12, "electrons start at rest, {kinetic}");

    // A standing wave -d/k sin(kx) cos(t). The field a quarter of a wavelength along is read, to
    // find its zeros.
    let probe = config.cells / 4;
    let mut zeros = Vec::new();
    let mut before = plasma.electric_field()[probe];
    while zeros.len() < 41 {
        plasma.step();
        let now = plasma.electric_field()[probe];
        if before.signum() != now.signum() {
            zeros.push(plasma.time() - config.dt * now / (now - before));
        }
        before = now;
        assert!(plasma.time() < 200.0, "no oscillation");
    }
    let period = (zeros[40] - zeros[0]) / 20.0;
    assert!((period / TAU - 1.0).abs() < 2e-3, "period {period}");
    // Energy oscillates between field and motion, and the amplitude does not decay.
    let largest = (0..140)
        .map(|_| {
            plasma.step();
            plasma.mode_amplitude(1)
        })
        .fold(0.0, f64::max);
    assert!((largest / (0.01 / k) - 1.0).abs() < 0.01, "{largest}");
}

#[test]
fn leapfrog_is_second_order() {
    // The error of the plasma period falls by a factor of four when the step is halved: omega dt =
    // 2 asin(dt / 2).
    let phase_error = |dt: f64| {
        let config = Config {
            beam_velocity: 0.0,
            length: TAU,
            dt,
            perturbation: 1e-3,
            cells: 256,
            ..cold_beams()
        };
        let mut plasma = simulation(config);
        let first = plasma.electric_field()[64];
        let steps = (6.0 / dt).round() as usize;
        for _ in 0..steps {
            plasma.step();
        }
        let exact = first * plasma.time().cos();
        ((plasma.electric_field()[64] - exact) / first).abs()
    };
    let (coarse, fine) = (phase_error(0.4), phase_error(0.2));
    let order = (coarse / fine).log2();
    assert!(
        (1.8..2.2).contains(&order),
        "order {order}: {coarse} {fine}"
    );
}

#[test]
fn energy_momentum_and_charge_are_conserved_through_saturation() {
    // 200 / omega_p are 32 plasma periods. The instability saturates after about four of them.
    for (start, thermal_spread) in [
        (Start::Quiet, 0.0),
        (Start::Quiet, 0.05),
        (Start::Random, 0.05),
    ] {
        let config = Config {
            thermal_spread,
            start,
            particles: 16_384,
            cells: 128,
            ..cold_beams()
        };
        let mut plasma = simulation(config);
        let first = plasma.diagnostics();
        let scale = first.kinetic_energy;
        let mut largest_field = 0.0f64;
        for _ in 0..2_000 {
            plasma.step();
            if !plasma.step_count().is_multiple_of(10) {
                continue;
            }
            let now = plasma.diagnostics();
            let drift = now.total_energy / first.total_energy - 1.0;
            assert!(
                drift.abs() < 2e-3,
                "{start:?} energy {drift:e} at {}",
                now.time
            );
            // The change of momentum relative to the momentum of one beam.
            let slip = (now.momentum - first.momentum) / (0.5 * plasma.config().length);
            assert!(
                slip.abs() < 1e-13,
                "{start:?} momentum {slip:e} at {}",
                now.time
            );
            assert!(
                now.net_charge.abs() < 1e-11,
                "{start:?} charge {:e}",
                now.net_charge
            );
            largest_field = largest_field.max(now.field_energy);
        }
        // It saturates: a good part of the beams' energy went into the field, but not more.
        let share = largest_field / scale;
        assert!((0.1..0.5).contains(&share), "{start:?} field share {share}");
        let late = plasma.diagnostics();
        assert!(late.field_energy < largest_field, "{start:?} still grows");
        assert!(late.mode_amplitude > 0.01);
    }
}

#[test]
fn a_stable_plasma_keeps_its_energy_closely() {
    let config = Config {
        beam_velocity: 0.0,
        thermal_spread: 1.0,
        length: 32.0,
        cells: 128,
        particles: 32_768,
        perturbation: 0.05,
        ..cold_beams()
    };
    let mut plasma = simulation(config);
    let first = plasma.diagnostics().total_energy;
    for _ in 0..1_000 {
        plasma.step();
    }
    let drift = plasma.diagnostics().total_energy / first - 1.0;
    assert!(drift.abs() < 5e-4, "{drift:e}");
}

#[test]
fn the_energy_distribution_becomes_that_of_a_trapped_plasma() {
    // After saturation, some electrons are far slower and some far faster than any was at the
    // start.
    let mut plasma = simulation(cold_beams());
    assert!((plasma.kinetic_energy_threshold(0.5) - 0.5).abs() < 1e-3);
    while plasma.time() < 60.0 {
        plasma.step();
    }
    assert!(plasma.kinetic_energy_threshold(0.01) > 1.0);
    assert!(plasma.kinetic_energy_threshold(0.8) < 0.25);
}

#[test]
fn phase_space_counts_every_particle_and_shows_both_beams() {
    let mut plasma = simulation(cold_beams());
    let counts = plasma.phase_space(16, 10);
    assert_eq!(counts.len(), 160);
    assert_eq!(counts.iter().sum::<u32>(), 8_192);
    // The edges are at 2.5 v0, so the beams are at 0.3 and 0.7 of the height: exactly at a row's
    // edge or just inside.
    let rows: Vec<u32> = counts.chunks(16).map(|row| row.iter().sum()).collect();
    assert_eq!(rows[2] + rows[3], 4_096, "{rows:?}");
    assert_eq!(rows[6] + rows[7], 4_096, "{rows:?}");
    let columns: Vec<u32> = (0..16)
        .map(|column| counts.iter().skip(column).step_by(16).sum())
        .collect();
    assert!(columns.iter().all(|c| c.abs_diff(512) < 8), "{columns:?}");
    assert!(plasma.phase_space(0, 5).is_empty());
    assert!(plasma.phase_space(5, 0).is_empty());
    assert_eq!(plasma.phase_space(1, 1), [8_192]);

    let text = plasma.phase_space_text(16, 10);
    assert_eq!(text.lines().count(), 10);
    assert!(text.lines().all(|line| line.len() == 16));
    assert_eq!(
        text.lines().filter(|line| line.contains('@')).count(),
        2,
        "\n{text}"
    );
    for _ in 0..600 {
        plasma.step();
    }
    let text = plasma.phase_space_text(16, 10);
    let filled = text.lines().filter(|line| !line.trim().is_empty()).count();
    assert!(filled >= 5, "the beams have not mixed:\n{text}");
}
