//! The first section: a simulation writes its dumps into the store.
//!
//! Threading: two writers share a dump's particles while the simulation pauses; a third thread
//! shows the progress.

use std::sync::atomic::Ordering;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use siltstone::batch::Batch;
use siltstone::{Keyspace, Store, WriteOptions};
use siltstone_plasma::{CellOrder, KEY_BYTES, Simulation, VALUE_BYTES, theory};

use super::live::{self, Progress};
use super::particles::Particles;
use super::plan::Plan;
use super::say;
use crate::failure::Failure;
use crate::output::{bytes, count, duration, plural, rate};
use crate::report::model::{Growth, PhaseKind};
use crate::report::record::Recorder;

/// The number of pairs in a batch.
const BATCH_PAIRS: usize = 500;
/// The number of writer threads.
const WRITERS: usize = 2;
/// The width in characters and the height in lines of a picture of phase space.
const PICTURE: (usize, usize) = (46, 12);

/// The results of the section.
pub struct Written {
    /// The number of pairs.
    pub pairs: u64,
    /// Bytes of keys and values.
    pub pair_bytes: u64,
    /// The time in which the writers were writing.
    pub writing: Duration,
    /// Time and energy of the electric field, at every step.
    pub field_energy: Vec<(f64, f64)>,
    /// The growth rate of the wave.
    pub growth: Option<Growth>,
}

/// The wave, step by step.
#[derive(Default)]
struct Wave {
    /// Time and energy of the field.
    energies: Vec<(f64, f64)>,
    /// Time and amplitude of the initial wave.
    amplitudes: Vec<(f64, f64)>,
}

impl Wave {
    fn look(&mut self, simulation: &Simulation) {
        let (time, field) = (simulation.time(), simulation.electric_field());
        let spacing = simulation.config().length / field.len().max(1) as f64;
        let energy = 0.5 * spacing * field.iter().map(|e| e * e).sum::<f64>();
        self.energies.push((time, energy));
        let amplitude = simulation.mode_amplitude(simulation.config().mode);
        self.amplitudes.push((time, amplitude));
    }

    /// Fits an exponential to the part of the growth where the growing wave dominates and is not
    /// yet large: from ten times the first amplitude to a fifth of the amplitude at which the
    /// wave's potential stops the beams.
    fn growth(&self, simulation: &Simulation) -> Option<Growth> {
        let config = simulation.config();
        let number = config.wave_number(config.mode);
        let first = self.amplitudes.first()?.1;
        let (low, high) = (10.0 * first, 0.2 * number * config.beam_velocity.powi(2));
        let grown = self.amplitudes.iter().skip_while(|a| a.1 <= low);
        let samples: Vec<(f64, f64)> = grown.take_while(|a| a.1 < high).copied().collect();
        let theory = theory::growth_rate(config.beam_velocity, number);
        if theory <= 0.0 {
            return None;
        }
        Some(Growth {
            from: samples.first()?.0,
            to: samples.last()?.0,
            measured: theory::fitted_growth_rate(&samples)?,
            theory,
        })
    }
}

/// Runs the section.
pub fn run(
    plan: &Plan,
    store: &Store,
    recorder: &Recorder,
) -> Result<(Particles, Written), Failure> {
    say!("\n1  a plasma simulation writes its particles")?;
    say!(
        "   Two beams of electrons stream through each other; a slight wave grows until it traps \
        them."
    )?;
    say!(
        "   Every particle of every dump is a pair: 16 bytes of key (dump, id), 32 of value, in \
        the order of the grid's cells."
    )?;
    recorder.phase(PhaseKind::Rest, "placing the particles");
    let mut simulation =
        Simulation::new(plan.simulation()).map_err(|e| Failure::Other(e.to_string()))?;
    let keyspace = store.default_keyspace()?;
    let progress = Progress::default();
    let dumps = plan.dump_steps.len();
    let pairs = plan.particles * dumps as u64;
    let mut kept = Vec::new();
    let mut pictures = Vec::new();
    let mut writing = Duration::ZERO;
    let mut order = CellOrder::new();
    let mut wave = Wave::default();
    wave.look(&simulation);
    let mut work = || -> Result<(), Failure> {
        for (dump, steps) in plan.dump_steps.iter().enumerate() {
            progress.dump.store(dump as u64, Ordering::Relaxed);
            progress.computing.store(true, Ordering::Relaxed);
            recorder.phase(PhaseKind::Rest, format!("computing up to dump {dump}"));
            while simulation.step_count() < *steps {
                simulation.step();
                wave.look(&simulation);
            }
            simulation.order_by_cell(&mut order);
            progress.computing.store(false, Ordering::Relaxed);
            recorder.phase(PhaseKind::Write, format!("dump {dump}"));
            let ids: Vec<u64> = order.ids().collect();
            let start = Instant::now();
            write_dump(store, &keyspace, &simulation, dump as u64, &ids, &progress)?;
            writing += start.elapsed();
            if dump == 0 || dump + 1 == dumps {
                pictures.push((
                    simulation.time(),
                    simulation.phase_space_text(PICTURE.0, PICTURE.1),
                ));
            }
            kept.push(simulation.clone());
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| live::watch(&progress, store, pairs, dumps));
        let worked = work();
        progress.done.store(true, Ordering::Release);
        let watched = watcher
            .join()
            .unwrap_or_else(|_| Err(Failure::Other("the watching thread failed".to_string())));
        worked.and(watched)
    })?;
    print_pictures(&pictures)?;
    let written = Written {
        pairs,
        pair_bytes: pairs * (KEY_BYTES + VALUE_BYTES) as u64,
        writing,
        growth: wave.growth(&simulation),
        field_energy: wave.energies,
    };
    say!(
        "   {} pairs ({}) in {} of writing: {} pairs a second",
        count(pairs),
        bytes(written.pair_bytes),
        duration(writing),
        rate(pairs, writing)
    )?;
    recorder.phase(PhaseKind::Rest, "waiting for flushes and compactions");
    let start = Instant::now();
    store.wait_until_idle()?;
    let stats = store.stats();
    say!(
        "   {} more until flush and compaction were done: {} and {}, {}",
        duration(start.elapsed()),
        plural(stats.counter("flush_count"), "flush").replace("flushs", "flushes"),
        plural(stats.counter("compaction_count"), "compaction"),
        live::summary(&stats)
    )?;
    Ok((Particles::new(kept), written))
}

/// Writes the particles of a dump, with all writers.
fn write_dump(
    store: &Store,
    keyspace: &Keyspace,
    simulation: &Simulation,
    dump: u64,
    ids: &[u64],
    progress: &Progress,
) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let shares = ids.chunks(ids.len().div_ceil(WRITERS).max(1));
        let writers: Vec<_> = shares
            .map(|share| {
                scope.spawn(move || -> Result<(), siltstone::Error> {
                    let mut batch =
                        Batch::with_capacity(BATCH_PAIRS * (KEY_BYTES + VALUE_BYTES + 8));
                    let write = |batch: &mut Batch| {
                        store.write(batch, WriteOptions::default())?;
                        progress
                            .pairs
                            .fetch_add(batch.len() as u64, Ordering::Relaxed);
                        batch.clear();
                        Ok(())
                    };
                    simulation.try_for_each_record(dump, share.iter().copied(), |key, value| {
                        batch.put(keyspace, key, value)?;
                        if batch.len() == BATCH_PAIRS {
                            write(&mut batch)
                        } else {
                            Ok(())
                        }
                    })?;
                    write(&mut batch)
                })
            })
            .collect();
        writers.into_iter().try_for_each(joined)
    })
}

type Writer<'scope> = ScopedJoinHandle<'scope, Result<(), siltstone::Error>>;

fn joined(writer: Writer<'_>) -> Result<(), Failure> {
    match writer.join() {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::Other("a writer thread failed".to_string())),
    }
}

/// Prints pictures side by side.
fn print_pictures(pictures: &[(f64, String)]) -> Result<(), Failure> {
    say!("   phase space: position to the right, velocity upwards")?;
    let (width, rows) = PICTURE;
    let title: String = pictures
        .iter()
        .map(|(time, _)| format!("   {:<width$}", format!("time {time:.0}")))
        .collect();
    say!("{}", title.trim_end())?;
    let lines: Vec<Vec<&str>> = pictures
        .iter()
        .map(|(_, text)| text.lines().collect())
        .collect();
    for row in 0..rows {
        let line: String = lines
            .iter()
            .map(|picture| format!("  |{:<width$}", picture.get(row).copied().unwrap_or("")))
            .collect();
        say!("{line}|")?;
    }
    Ok(())
}
