//! The first section: a simulation writes its dumps into the store.
//!
//! Threading: two writers share a dump's particles, the simulation rests meanwhile; a third thread watches.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use siltstone::batch::Batch;
use siltstone::{Keyspace, Store, WriteOptions};
use siltstone_plasma::{CellOrder, KEY_BYTES, Simulation, VALUE_BYTES};

use super::live::{self, Progress};
use super::particles::Particles;
use super::plan::Plan;
use super::say;
use crate::failure::Failure;
use crate::output::{bytes, count, duration, plural, rate};

/// Pairs in a batch.
const BATCH_PAIRS: usize = 500;
/// Threads that write.
const WRITERS: usize = 2;
/// Characters and lines of a picture of phase space.
const PICTURE: (usize, usize) = (46, 12);

/// What was measured.
pub struct Written {
    /// Pairs.
    pub pairs: u64,
    /// Bytes of keys and values.
    pub pair_bytes: u64,
    /// Time in which the writers were at work.
    pub writing: Duration,
}

/// Runs the section.
pub fn run(plan: &Plan, store: &Store) -> Result<(Particles, Written), Failure> {
    say!("\n1  a plasma simulation writes its particles")?;
    say!(
        "   Two beams of electrons stream through each other; a slight wave grows until it traps them."
    )?;
    say!(
        "   Every particle of every dump is a pair: 16 bytes of key (dump, id), 32 of value, in the order of the grid's cells."
    )?;
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
    let mut work = || -> Result<(), Failure> {
        for (dump, steps) in plan.dump_steps.iter().enumerate() {
            progress.dump.store(dump as u64, Ordering::Relaxed);
            progress.computing.store(true, Ordering::Relaxed);
            while simulation.step_count() < *steps {
                simulation.step();
            }
            simulation.order_by_cell(&mut order);
            progress.computing.store(false, Ordering::Relaxed);
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
    };
    say!(
        "   {} pairs ({}) in {} of writing: {} pairs a second",
        count(pairs),
        bytes(written.pair_bytes),
        duration(writing),
        rate(pairs, writing)
    )?;
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
                        batch.put(keyspace.id(), key, value)?;
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
        for writer in writers {
            writer
                .join()
                .map_err(|_| Failure::Other("a writer thread failed".to_string()))??;
        }
        Ok(())
    })
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
