//! A paused host: the holder of an expiring lease stops at some storage call, another host opens
//! the store, and then the first continues.
//!
//! The trial checks that the second holder sees everything that the first one acknowledged. Once
//! the second has the lease, the first can neither change the store, whatever its tasks were about
//! to do, nor acknowledge anything. So all writes of both, and all reads of the newest holder, have
//! one order ([`crate::linear`]). Reads of the paused holder may be old, because it does not know
//! that it lost the lease.
//!
//! Threading: one simulated run for each unit.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{Components, Store};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::sim::{Reclaim, SimConfig, run};
use siltstone_storage::{JoinHandle, MemoryStorage, OpKind, Runtime, Storage};

use super::linearizable::{Client, Clock, Notes, draw_options, verdict};
use crate::coverage::Coverage;
use crate::linear::{End, Operation};
use crate::rng::Rng;

/// How long a paused host sleeps, which is longer than any other operation takes.
const PAUSE: Duration = Duration::from_secs(30);

/// The number of writers of one holder.
const CLIENTS: u32 = 3;

/// Runs one seed's scenario, in which the first holder is paused at its `call`-th storage call
/// (from 0). Returns `None` if it makes fewer calls.
///
/// # Panics
/// If a write is lost, a fenced write is visible, or no order explains the answers.
pub fn takeover_trial(seed: u64, call: u64) -> Option<Coverage> {
    let config = SimConfig {
        max_steps: 3_000_000,
        reclaim: Reclaim::Never,
        ..SimConfig::new(seed)
    };
    let outcome = run(config, move |runtime| {
        scenario(&runtime, seed, call).unwrap_or_else(|e| panic!("{e}"))
    });
    let (operations, mut coverage) = outcome.unwrap()?;
    if operations.is_empty() {
        return Some(coverage);
    }
    if let Err(why) = verdict(operations, &mut coverage) {
        panic!("seed {seed}, paused at call {call}: {why}");
    }
    Some(coverage)
}

fn open(storage: &FaultStorage, runtime: &Runtime, seed: u64) -> siltstone::Result<Store> {
    let storage: Arc<dyn Storage> = Arc::new(storage.clone());
    let options = draw_options(&mut Rng::new(seed));
    Store::open_with(Components::on(storage, runtime.clone()), options)
}

type Work = JoinHandle<Result<(), String>>;

/// Lets clients work on the store until they are done or fail.
fn start(
    runtime: &Runtime,
    store: &Store,
    notes: &[Notes],
    count: usize,
    rng: &mut Rng,
) -> Result<Vec<Work>, String> {
    let mut tasks = Vec::new();
    for notes in notes {
        let mut client = Client::new(runtime, store, notes, rng.draw())?;
        let name = format!("client-{}", notes.client());
        let task = runtime.spawn(&name, move || client.work(count));
        tasks.push(task.map_err(|e| e.to_string())?);
    }
    Ok(tasks)
}

fn join(tasks: Vec<Work>) -> Vec<Result<(), String>> {
    tasks
        .into_iter()
        .map(|task| task.join().unwrap_or_else(|_| Err("it was killed".into())))
        .collect()
}

type Outcome = Option<(Vec<Operation>, Coverage)>;

fn scenario(runtime: &Runtime, seed: u64, call: u64) -> Result<Outcome, String> {
    let mut rng = Rng::new(seed);
    let mut coverage = Coverage::default();
    let medium = MemoryStorage::new(runtime);
    medium.set_leases_expire(true);
    let clock = Clock::ticks();
    let notes_of = |first: u32| -> Vec<Notes> {
        (0..CLIENTS)
            .map(|i| Notes::new(&clock, first + i))
            .collect()
    };
    let storage_of = || FaultStorage::new(Arc::new(medium.clone()), runtime);

    let paused = storage_of();
    paused.add(Rule::on_any(Fault::Delay(PAUSE)).nth(call).for_good());
    let first_notes = notes_of(1);
    let first: Work = {
        let (paused, notes, runtime) = (paused.clone(), first_notes.clone(), runtime.clone());
        let mut rng = rng.fork(1);
        let body = {
            let runtime = runtime.clone();
            move || {
                let store = open(&paused, &runtime, seed).map_err(|e| format!("open: {e}"))?;
                let tasks = start(&runtime, &store, &notes, 60, &mut rng)?;
                let ends = join(tasks);
                drop(store);
                ends.into_iter().collect()
            }
        };
        runtime.spawn("first", body).map_err(|e| e.to_string())?
    };
    while paused.fired_count(0) == 0 {
        if first.is_finished() {
            first.join().map_err(|_| "the first ended")??;
            return Ok(None);
        }
        runtime.sleep(Duration::from_millis(1));
    }
    let noticed = runtime.now();
    if medium.counts().of(OpKind::Lease) == 0 {
        // The host has no lease yet. It will take one over itself, like the second holder here.
        coverage.add("paused.before_its_lease");
        return Ok(Some((Vec::new(), coverage)));
    }

    let unpaused = storage_of();
    let second = open(&unpaused, runtime, seed ^ 1).map_err(|e| format!("take over: {e}"))?;
    let taken_over = clock.now();
    let second_notes = notes_of(1 + CLIENTS);
    let mut looker = Client::new(runtime, &second, &second_notes[0], rng.draw())?;
    looker.look()?;
    for end in join(start(runtime, &second, &second_notes, 15, &mut rng)?) {
        end.map_err(|e| format!("second: {e}"))?;
    }
    // Delayed calls finish at their time, and after that nothing is slow. Clients of the second
    // holder that pause at times run concurrently with the first.
    paused.clear();
    let left = PAUSE.saturating_sub(runtime.now().since(noticed));
    runtime.sleep(left.saturating_sub(Duration::from_millis(1)));
    let third_notes = notes_of(1 + 2 * CLIENTS);
    let beside = start(runtime, &second, &third_notes, 30, &mut rng)?;
    let end_of_first = first.join().map_err(|_| "the first was killed")?;
    coverage.add(match end_of_first {
        Ok(()) => "first.noticed_nothing",
        Err(_) => "first.was_refused",
    });
    for end in join(beside) {
        end.map_err(|e| format!("second, beside the first: {e}"))?;
    }
    looker.look()?;
    drop(looker);
    second.close().map_err(|e| format!("close: {e}"))?;
    let last = open(&unpaused, runtime, seed ^ 2).map_err(|e| format!("open again: {e}"))?;
    let last_notes = Notes::new(&clock, 1 + 3 * CLIENTS);
    Client::new(runtime, &last, &last_notes, rng.draw())?.look()?;
    last.close().map_err(|e| format!("close again: {e}"))?;

    let mut operations: Vec<Operation> = Vec::new();
    for notes in &first_notes {
        for operation in notes.take(taken_over) {
            let late = operation.end.time() > taken_over;
            if late && operation.action.is_write() && matches!(operation.end, End::Returned(_)) {
                coverage.add("first.acknowledged_late");
            }
            // Operations without an end count as cut off by the takeover. A read that ended later
            // may be old, so it is left out.
            if !late || operation.action.is_write() {
                operations.push(operation);
            }
        }
    }
    let newer = second_notes.iter().chain(&third_notes).chain([&last_notes]);
    operations.extend(newer.flat_map(|notes| notes.take(u64::MAX)));
    Ok(Some((operations, coverage)))
}
