//! Histories with threads of the operating system, on a folder.
//!
//! Threading: as many threads as clients; their notes are put together when all have ended.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use siltstone::{Options, Store, SyncMode};
use siltstone_storage::Runtime;

use super::{Client, Clock, Notes, OPERATIONS, draw_options, verdict};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// Nanoseconds since the process first asked, of a clock that all cores share and that no thread waits for.
pub(super) fn machine_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// One seed with threads on a new store in the empty folder `folder`: a history of about a thousand operations, in two lives.
///
/// # Panics
/// If no order explains the history, with the operations in conflict; at an unexpected error.
pub fn linearizable_threads_trial(seed: u64, folder: &Path) -> Coverage {
    let mut coverage = Coverage::default();
    let told = |e: String| -> ! { panic!("seed {seed}, threads: {e}") };
    let mut rng = Rng::new(seed);
    let mut operations = Vec::new();
    for life in 0..2 {
        let options = draw_options(&mut rng);
        match one_life(folder, options, life, &mut rng, &mut coverage) {
            Ok(more) => operations.extend(more),
            Err(e) => told(e),
        }
    }
    if let Err(e) = verdict(operations, &mut coverage) {
        told(e);
    }
    coverage
}

fn one_life(
    folder: &Path,
    mut options: Options,
    life: u32,
    rng: &mut Rng,
    coverage: &mut Coverage,
) -> Result<Vec<crate::linear::Operation>, String> {
    // A synced write of every client takes longer than all the rest, and leaves little to overlap.
    if options.sync == SyncMode::Always && rng.chance(50) {
        options.sync = SyncMode::Never;
    }
    let runtime = Runtime::threads();
    let store = Store::open(folder, options).map_err(|e| format!("open: {e}"))?;
    let count = 4 + rng.index(5);
    let notes: Vec<Notes> = (0..count as u32)
        .map(|i| Notes::new(&Clock::Machine, 1 + life * 100 + i))
        .collect();
    let mut clients = Vec::new();
    for notes in &notes {
        clients.push(Client::new(&runtime, &store, notes, rng.draw())?);
    }
    clients[0].look()?;
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            std::thread::spawn(move || client.work(OPERATIONS / 2 / count).map(|()| client))
        })
        .collect();
    let mut last = None;
    for thread in threads {
        let client = thread.join().map_err(|_| "a client panicked".to_string())?;
        last = Some(client?);
    }
    if let Some(client) = &mut last {
        client.look()?;
    }
    drop(last);
    coverage.take_stats(&store.stats());
    store.close().map_err(|e| format!("close: {e}"))?;
    coverage.add("threads.life");
    Ok(notes
        .iter()
        .flat_map(|notes| notes.take(u64::MAX))
        .collect())
}
