//! The trials: thin users of workload, model and checker, each from one seed.
//!
//! What it is: [`options_trial`] (random operations under random option sets, reopened and killed in between), [`power_trial`] (power loss at random
//! calls, with random losses, and again during the recovery), [`scenario`] (a fixed story, crashed at every call), [`every_fault`] (the same, with every
//! call failing in turn), [`fault_trial`] (random storage calls that fail), [`failed_syncs_trial`] (syncs that fail), [`disk_full_trial`] (a disk
//! that fills up), [`cut_files_trial`] (files cut under an open store), [`flip_trial`] (bytes at rest that change), [`same_operations_trial`] (one list of operations under several
//! option sets). [`seeds`] runs many of them.
//!
//! Threading: a trial is a run of the simulated runtime of its own.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use siltstone::{Components, ErrorKind, Options, Storages, Store};
use siltstone_storage::sim::{Counters, Point, SimConfig, run};
use siltstone_storage::{JoinHandle, Mark, MemoryStorage, Replay, Runtime, Storage};

use crate::checker::{Check, check_now, find_prefix};
use crate::coverage::Coverage;
use crate::model::{Event, Model, Record};
use crate::observe::{History, Observed, SharedHistory, lock};
use crate::reduce::{InForce, as_test, reduce};
use crate::rng::Rng;
use crate::workload::{Client, Plan};
use crate::world::upkeep::Copy;
use crate::world::{Errors, World};
use siltstone_table::exec::Executor;

mod closing;
mod cut_files;
mod disk_full;
mod every_fault;
mod failed_syncs;
mod faults;
mod flips;
mod handles;
mod linearizable;
mod looks;
mod looks_fail;
mod media;
mod moments;
mod options;
mod picks;
mod power;
mod repair;
mod replay;
mod same_operations;
mod scenario;
mod stories;
mod takeover;

pub use cut_files::cut_files_trial;
pub use disk_full::disk_full_trial;
pub use every_fault::every_fault;
pub use failed_syncs::failed_syncs_trial;
pub use faults::fault_trial;
pub use flips::{FLIPS, flip_trial};
pub use handles::handles_trial;
pub use linearizable::linearizable_trial;
pub use linearizable::threads::{history_child, linearizable_threads_trial};
pub use looks_fail::{reader_at_every_call, repair_at_every_call};
pub use options::{options_trial, options_trial_long};
pub use picks::picks_trial;
pub use power::power_trial;
pub use repair::repair_trial;
pub use replay::{Trace, trace};
pub use same_operations::same_operations_trial;
pub use scenario::{Share, scenario};
pub use stories::Story;
pub use takeover::takeover_trial;

/// Runs `trial` as the first task of a simulated run of `seed`.
///
/// # Panics
/// With the run's failure, if it fails: a wrong answer, a panic, a deadlock, a livelock.
pub fn simulate<T: Send + 'static>(
    seed: u64,
    trial: impl FnOnce(Runtime) -> Result<T, String> + Send + 'static,
) -> T {
    simulate_long(seed, STEPS, trial).0
}

/// As [`simulate`], with at most so many points; says how often tasks could have handed over, by kind
/// of point, and gives the digest of the whole schedule.
fn simulate_long<T: Send + 'static>(
    seed: u64,
    max_steps: u64,
    trial: impl FnOnce(Runtime) -> Result<T, String> + Send + 'static,
) -> (T, Counters, u64) {
    let config = SimConfig {
        max_steps,
        ..SimConfig::new(seed)
    };
    let in_force = InForce::present();
    let outcome = run(config, |runtime| {
        in_force.take_along();
        trial(runtime).unwrap_or_else(|e| panic!("{e}"))
    });
    let (counters, digest) = (outcome.counters, outcome.digest);
    (outcome.unwrap(), counters, digest)
}

/// As [`simulate`], and counts the points at which tasks could have handed over. The sum of digests
/// is equal for two builds of the engine that do the same in the same order: a change of the code's
/// structure alone must leave it as it is.
fn simulate_counted(
    seed: u64,
    max_steps: u64,
    trial: impl FnOnce(Runtime) -> Result<Coverage, String> + Send + 'static,
) -> Coverage {
    let (mut coverage, counters, digest) = simulate_long(seed, max_steps, trial);
    let points = [
        ("point.storage_call", Point::Yield),
        ("point.lock", Point::Lock),
        ("point.lock_wait", Point::LockWait),
        ("point.condvar_wait", Point::CondvarWait),
        ("point.sleep", Point::Sleep),
        ("point.join", Point::Join),
    ];
    for (name, point) in points {
        coverage.add_count(name, counters.at(point));
    }
    coverage.add_count("point.switches", counters.switches);
    // A part of it, so that many of them can be added.
    coverage.add_count("schedule.digests", digest & 0xFFFF_FFFF);
    coverage
}

/// Points of a run that is no longer than usual.
const STEPS: u64 = 3_000_000;

/// Runs `trial` with `count` seeds from `first` on, on every core, or as the environment says: `SILT_SEED=K` only that one, `SILT_SEED=K` and
/// `SILT_COUNT=N` so many from that one on, both one after the other, `SILT_SEEDS=N` so many percent of `count`.
/// Prints each seed that fails with the command that repeats it. With `SILT_SEED=K` and `SILT_REDUCE=N` the seed is made small in at most N runs
/// ([`crate::reduce`]). With `SILT_STOP=N` it ends at the first seed that fails and prints how many that took, or when N seconds are over, and asks
/// for nothing of `wanted`: what `cargo xtask planted` wants to know.
///
/// # Panics
/// At the end, if a seed failed, or if something of `wanted` was never reached (not with a single seed, nor with fewer than `count`).
pub fn seeds(
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    seeds_on(cores, test, first, count, wanted, trial)
}

/// As [`seeds`], one seed after the other, for trials that share a folder or bring processes and threads of their own.
///
/// # Panics
/// As `seeds`.
pub fn seeds_in_turn(
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    seeds_on(1, test, first, count, wanted, trial)
}

fn seeds_on(
    cores: usize,
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    let number = |name: &str| {
        std::env::var(name).ok().map(|v| {
            v.parse::<u64>()
                .unwrap_or_else(|_| panic!("{name}={v} is no number"))
        })
    };
    let single = number("SILT_SEED");
    if let (Some(seed), Some(runs_max)) = (single, number("SILT_REDUCE")) {
        return reduced(test, seed, runs_max, trial);
    }
    let range = match single {
        Some(seed) => seed..seed + number("SILT_COUNT").unwrap_or(1).max(1),
        None => first..first + (count * number("SILT_SEEDS").unwrap_or(100) / 100).max(1),
    };
    let stop = number("SILT_STOP").map(Duration::from_secs);
    // Who asks for certain seeds, or for the first that fails, has the other cores at work already.
    let threads = match single.is_some() || stop.is_some() {
        true => 1,
        false => cores,
    };
    let start = Instant::now();
    let Tried {
        total,
        coverage,
        failed,
    } = try_seeds(test, range, threads, stop, &trial);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{test}: {total} seeds in {seconds:.1} s ({:.0} a second)\n{coverage}",
        total as f64 / seconds
    );
    assert!(
        failed.is_empty(),
        "{test}: {} of {total} seeds failed: {failed:?}",
        failed.len()
    );
    let missing = coverage.missing(wanted);
    assert!(
        single.is_some() || stop.is_some() || total < count || missing.is_empty(),
        "{test}: never reached: {missing:?}"
    );
    coverage
}

/// What a batch of seeds came to.
#[derive(Default)]
struct Tried {
    total: u64,
    coverage: Coverage,
    /// In ascending order.
    failed: Vec<u64>,
}

/// Tries the seeds of `range` on so many threads, each taking the next one that nobody has; with `stop`, until one fails or the time is over.
fn try_seeds<F: Fn(u64) -> Coverage + Sync>(
    test: &str,
    range: Range<u64>,
    threads: usize,
    stop: Option<Duration>,
    trial: &F,
) -> Tried {
    let start = Instant::now();
    let next = AtomicU64::new(range.start);
    let tried = Mutex::new(Tried::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end || stop.is_some_and(|stop| start.elapsed() > stop) {
                return;
            }
            let reached = catch_unwind(AssertUnwindSafe(|| trial(seed)));
            let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
            tried.total += 1;
            match reached {
                Ok(reached) => tried.coverage.merge(&reached),
                Err(_) => {
                    eprintln!(
                        "FAILED: {test}, seed {seed}; repeat: SILT_SEED={seed} cargo test -p siltstone-sim --test {} {test} -- --nocapture",
                        test_binary()
                    );
                    tried.failed.push(seed);
                    if stop.is_some() {
                        println!("CAUGHT: {test} after {} seeds", tried.total);
                        return;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // The test's own thread works in any case: one that cannot be started is missed by nobody.
            let _ = std::thread::Builder::new()
                .name(test.to_string())
                .spawn_scoped(scope, work);
        }
        work();
    });
    let mut tried = tried.into_inner().unwrap_or_else(PoisonError::into_inner);
    tried.failed.sort_unstable();
    tried
}

/// The file of tests that is running, as cargo's `--test` takes it.
fn test_binary() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('-') {
        Some((test, _)) => test.to_string(),
        None => name.into_owned(),
    }
}

/// Reduces a seed that fails and prints what is left of it as a test.
///
/// # Panics
/// With that test, if the seed fails.
fn reduced<F: Fn(u64) -> Coverage>(test: &str, seed: u64, runs_max: u64, trial: F) -> Coverage {
    let fails = || {
        let caught = catch_unwind(AssertUnwindSafe(|| trial(seed)));
        let payload = caught.err()?;
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
        Some(text.unwrap_or_else(|| "it panics".to_string()))
    };
    let Some((cut, how)) = reduce(runs_max, fails) else {
        println!("{test}: seed {seed} does not fail");
        return Coverage::default();
    };
    // A trial that is a function is called by its name; one made in the test is to be put in.
    let name = std::any::type_name::<F>();
    let name = match name.rsplit("::").next() {
        Some(function) if !name.contains("{{closure}}") => function,
        _ => test,
    };
    panic!("reduced:\n{}", as_test(name, seed, &cut, &how));
}

/// What is carried from one life of a store to the next.
pub(crate) struct Run {
    pub(crate) runtime: Runtime,
    pub(crate) history: SharedHistory,
    pub(crate) plan: Arc<Plan>,
    pub(crate) coverage: Coverage,
    next_name: Arc<AtomicU64>,
    /// Where tables lie that belong to no store.
    pub(crate) outside: MemoryStorage,
    /// As it is given to those who work with it.
    pub(crate) outside_seen: Arc<dyn Storage>,
    /// How often clients were let work.
    works: Arc<AtomicU32>,
    /// Checkpoints of all lives.
    pub(crate) copies: Arc<Mutex<Vec<Copy>>>,
}

impl Run {
    pub(crate) fn new(runtime: &Runtime, rng: &mut Rng) -> Run {
        let outside = MemoryStorage::new(runtime);
        Run {
            runtime: runtime.clone(),
            history: Arc::new(Mutex::new(History::default())),
            plan: Arc::new(Plan::draw(rng)),
            coverage: Coverage::default(),
            next_name: Arc::default(),
            outside_seen: Arc::new(outside.clone()),
            outside,
            works: Arc::default(),
            copies: Arc::default(),
        }
    }

    /// Another run that goes on from here by itself: a possible future.
    pub(crate) fn fork(&self) -> Run {
        let outside = self.outside.kill_in(&self.runtime);
        Run {
            runtime: self.runtime.clone(),
            history: Arc::new(Mutex::new(lock(&self.history).clone())),
            plan: self.plan.clone(),
            coverage: Coverage::default(),
            next_name: self.next_name.clone(),
            outside_seen: Arc::new(outside.clone()),
            outside,
            works: self.works.clone(),
            copies: Arc::default(),
        }
    }

    /// Opens the store on `storage`, which lies on `medium`.
    pub(crate) fn open(
        &self,
        medium: &MemoryStorage,
        storage: Arc<dyn Storage>,
        options: &Options,
        errors: Errors,
    ) -> siltstone::Result<Arc<World>> {
        self.open_on(medium, Storages::on(storage), Vec::new(), options, errors)
    }

    /// As `open`, where the log or the tables may lie on storages of their own, with executors that are offered jobs. `medium`: that of
    /// the manifest, in whose journal marks are made.
    pub(crate) fn open_on(
        &self,
        medium: &MemoryStorage,
        storages: Storages,
        executors: Vec<Arc<dyn Executor>>,
        options: &Options,
        errors: Errors,
    ) -> siltstone::Result<Arc<World>> {
        let log: Arc<dyn Storage> = Arc::new(Observed::new(
            storages.log.clone(),
            self.history.clone(),
            medium.clone(),
        ));
        // What lies with the log stays with it.
        let beside = |storage: &Arc<dyn Storage>| match Arc::ptr_eq(storage, &storages.log) {
            true => log.clone(),
            false => storage.clone(),
        };
        let seen = Storages {
            manifest: beside(&storages.manifest),
            tables: beside(&storages.tables),
            log,
        };
        let storage = seen.tables.clone();
        {
            let mut history = lock(&self.history);
            let names = history.model.all_keyspaces();
            history.settings.wish(&names, &options.keyspaces);
        }
        let has_strangers = !executors.is_empty();
        let components = Components {
            executors,
            ..Components::of(seen, self.runtime.clone())
        };
        let store = Store::open_with(components, options.clone())?;
        store.core_for_tests().set_subjob_min_bytes(64 << 10);
        // There are few keys here, so runs of hidden ones are short.
        store.core_for_tests().set_gap_min(2);
        Ok(Arc::new(World {
            runtime: self.runtime.clone(),
            store,
            medium: medium.clone(),
            storage,
            history: self.history.clone(),
            plan: self.plan.clone(),
            has_strangers,
            coverage: Mutex::default(),
            errors,
            was_faulty: false,
            damaged: Mutex::default(),
            synced_writes: options.sync == siltstone::SyncMode::Always,
            interval: match options.sync {
                siltstone::SyncMode::Interval(interval) => Some(interval),
                _ => None,
            },
            young: Mutex::default(),
            next_name: self.next_name.clone(),
            outside: self.outside_seen.clone(),
            wishes: options.keyspaces.clone(),
            copies: self.copies.clone(),
            begun: AtomicU64::new(0),
            turn: self.runtime.mutex(()),
            closing: AtomicBool::new(false),
            starved: Mutex::default(),
        }))
    }

    /// As `open`, where opening must succeed.
    pub(crate) fn must_open(
        &self,
        medium: &MemoryStorage,
        options: &Options,
        what: &str,
    ) -> Result<Arc<World>, String> {
        self.open(medium, Arc::new(medium.clone()), options, Errors::Fatal)
            .map_err(|e| format!("{what}: open: {e}"))
    }

    /// Lets `clients` work beside each other, `count` operations each.
    pub(crate) fn work(
        &self,
        world: &Arc<World>,
        clients: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Check {
        Run::join(self.start(world, clients, count, rng)?)
    }

    /// As [`Run::work`], and goes on beside them.
    pub(crate) fn start(
        &self,
        world: &Arc<World>,
        clients: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Result<Vec<JoinHandle<Check>>, String> {
        let work = self.works.fetch_add(1, Ordering::Relaxed);
        let start = |i| {
            let mut client = Client::new(world, rng.fork(i), (work, i as u32));
            let task = self
                .runtime
                .spawn(&format!("client-{i}"), move || client.work(count));
            task.map_err(|e| e.to_string())
        };
        (0..clients).map(start).collect()
    }

    /// Waits for clients.
    pub(crate) fn join(clients: Vec<JoinHandle<Check>>) -> Check {
        for (i, task) in clients.into_iter().enumerate() {
            task.join()
                .map_err(|_| format!("client {i} ended without an answer"))?
                .map_err(|e| format!("client {i}: {e}"))?;
        }
        Ok(())
    }

    /// Compares everything, after all work; then lets the background finish and compares again.
    pub(crate) fn check_all(&self, world: &Arc<World>, rng: &mut Rng) -> Check {
        check_now(&world.store, &self.history, &world.plan.keys, rng)?;
        if world.errors == Errors::Fatal {
            world.slots_meet()?;
        }
        let hooks = world.store.core_for_tests();
        hooks.pause_compaction(false);
        for name in world.store.keyspaces() {
            hooks.release(&world.store.keyspace(&name).map_err(|e| e.to_string())?);
        }
        // Jobs that failed are tried again after a while; until then their error is what a waiter gets.
        let mut patience = 0;
        while let Err(e) = world.store.wait_until_idle() {
            patience += 1;
            if world.errors == Errors::Fatal || patience > 20 {
                return Err(format!("waiting for the background: {e}"));
            }
            self.runtime.sleep(Duration::from_secs(1));
        }
        check_now(&world.store, &self.history, &world.plan.keys, rng)
            .map_err(|e| format!("when idle: {e}"))?;
        match world.errors {
            Errors::Fatal => {
                world.nothing_is_left_over()?;
                // Not always: it leaves nothing to the next life's replay.
                match rng.clone().fork(9).chance(40) {
                    true => world.nothing_is_owed(),
                    false => Ok(()),
                }
            }
            Errors::Expected => {
                world.nothing_is_owed()?;
                world.nothing_is_left_over()
            }
            Errors::Damaged => Ok(()),
        }
    }

    /// Works on a store whose storage was mended: it does everything, and refuses nothing.
    pub(crate) fn work_mended(&mut self, world: &World, rng: &mut Rng) -> Check {
        let mended = world.mended();
        let worked = self.work(&mended, 1 + rng.below(2), 25, rng);
        worked.map_err(|e| format!("on the mended storage: {e}"))?;
        self.coverage
            .merge(&mended.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        self.coverage.add("mended.worked");
        check_now(&world.store, &self.history, &world.plan.keys, rng)
    }

    /// Takes over what the store counted, closes it, and checks that nothing is left behind. No
    /// cursor and no snapshot may exist.
    pub(crate) fn close(&mut self, world: &World) -> siltstone::Result<()> {
        let leaves_nothing = world.leaves_nothing();
        self.close_beside_clients(world)?;
        if leaves_nothing {
            world
                .nothing_is_left_behind()
                .map_err(|told| siltstone::Error::new(ErrorKind::Corruption, told))?;
            self.coverage.add("folder.exact");
        }
        Ok(())
    }

    /// Takes over what the store counted, and closes it; clients may still be at work.
    pub(crate) fn close_beside_clients(&mut self, world: &World) -> siltstone::Result<()> {
        self.coverage.take_stats(&world.store.stats());
        self.coverage
            .merge(&world.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        let last = lock(&self.history).model.last();
        world.closing.store(true, Ordering::Relaxed);
        world.store.clone().close()?;
        // Everything is synced by a close.
        world.synced(last);
        Ok(())
    }

    /// Finds what a freshly opened store shows, a prefix that ends at `least` or later, and goes on from there. A drop without a record that failed
    /// may be part of it: the manifest poisons the store, so it is the last thing that happened.
    pub(crate) fn settle(&self, store: &Store, least: u64) -> Result<u64, String> {
        let found = find_prefix(store, &mut self.model(), least);
        let doubtful = lock(&self.history).doubtful_drop;
        let end = match (found, doubtful) {
            (Err(e), Some(id)) => {
                let mut dropped = self.model();
                if !dropped.keyspaces(dropped.last()).values().any(|i| *i == id) {
                    return Err(e);
                }
                dropped.push(Record {
                    first: 0,
                    event: Event::DropWithoutRecord(id),
                });
                let last = dropped.last();
                find_prefix(store, &mut dropped.clone(), last)
                    .map_err(|also| format!("{e}; keyspace {id} dropped: {also}"))?;
                lock(&self.history).model = dropped;
                last
            }
            (found, _) => found?,
        };
        self.settle_at(end);
        Ok(end)
    }

    /// The next life begins at `end`: what came after it never happened.
    pub(crate) fn settle_at(&self, end: u64) {
        let mut history = lock(&self.history);
        let mut next = history.clone();
        next.model.cut(end);
        (next.acked, next.synced) = (end, end);
        next.doubtful_drop = None;
        next.forget_announced();
        *history = next;
    }

    /// The next life begins where of the changes of settings only the first `settled` are known to be over.
    pub(crate) fn restart_settings(&self, settled: usize) {
        lock(&self.history).settings.restart(settled);
    }

    /// The next life may give no number up to this one.
    pub(crate) fn restart_numbers(&self, given: u64) {
        lock(&self.history).given = given;
    }

    /// Looks at all checkpoints again: whatever became of their source since, they are as they were.
    pub(crate) fn check_copies(&mut self) -> Check {
        let copies = self
            .copies
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        for copy in copies {
            copy.verify(&self.runtime)
                .map_err(|e| format!("looked at once more: {e}"))?;
            self.coverage.add("checkpoint.looked_at_again");
        }
        Ok(())
    }

    pub(crate) fn model(&self) -> Model {
        lock(&self.history).model.clone()
    }
}

/// What was promised when a journal had come to where `replay` stands.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Promised {
    /// Everything up to this number was acknowledged.
    pub(crate) acked: u64,
    /// Everything up to this number is to survive power loss.
    pub(crate) synced: u64,
    /// As many changes of settings are over.
    pub(crate) settings: usize,
    /// Numbers up to this one were given: no later life may give them again, whatever became of what had them.
    pub(crate) given: u64,
}

impl Promised {
    /// `before`: what was promised before the journal began.
    pub(crate) fn at(replay: &Replay, before: Promised) -> Promised {
        Promised::by(replay.marks_so_far(), before)
    }

    /// What these marks say.
    pub(crate) fn by(marks: &[Mark], before: Promised) -> Promised {
        let mut promised = before;
        for mark in marks {
            let (kind, number) = mark.label.split_at(1);
            let number: u64 = number.parse().expect("a mark of ours");
            match kind {
                "a" => promised.acked = promised.acked.max(number),
                "s" => {
                    promised.acked = promised.acked.max(number);
                    promised.synced = promised.synced.max(number);
                }
                "g" => promised.given = promised.given.max(number),
                "o" => promised.settings = promised.settings.max(number as usize),
                // Another storage's place.
                _ => {}
            }
        }
        promised
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Op;

    /// A run with two clients that fails if anybody deletes a range.
    fn fails() -> Option<String> {
        let run = || {
            simulate(3, |runtime| {
                let mut rng = Rng::new(3);
                let run = Run::new(&runtime, &mut rng);
                let medium = MemoryStorage::new(&runtime);
                let world = run.must_open(&medium, &Options::default(), "open")?;
                run.work(&world, 2, 40, &mut rng)?;
                let model = run.model();
                let deletes = |op: &Op| matches!(op, Op::DeleteRange(..));
                let has =
                    |event: &Event| matches!(event, Event::Group(ops) if ops.iter().any(deletes));
                match model.records().iter().any(|record| has(&record.event)) {
                    true => Err("somebody deleted a range".into()),
                    false => Ok(()),
                }
            })
        };
        let payload = catch_unwind(run).err()?;
        payload.downcast_ref::<String>().cloned()
    }

    #[test]
    fn a_simulated_run_is_made_small() {
        let (cut, how) = reduce(200, fails).expect("the whole run fails");
        assert!(how.contains("somebody deleted a range"), "{how}");
        let only = cut.only.clone().unwrap_or_default();
        assert_eq!(only.len(), 1, "{cut}");
        assert!(cut.during(fails).is_some(), "as it is printed, it fails");
        let nothing = crate::reduce::Cut::only(&[]);
        assert!(
            nothing.during(fails).is_none(),
            "what is left out is not done"
        );
        let text = as_test("a_trial", 3, &cut, &how);
        assert!(
            text.contains("// DeleteRange") || text.contains("// Batch"),
            "{text}"
        );
    }

    #[test]
    fn each_seed_is_tried_once_and_those_that_fail_are_told_in_order() {
        let trial = |seed: u64| {
            assert!(!seed.is_multiple_of(40), "one that fails");
            let mut reached = Coverage::default();
            reached.add(&format!("seed.{seed:03}"));
            reached
        };
        for threads in [1, 3] {
            let tried = try_seeds("none", 10..130, threads, None, &trial);
            assert_eq!((tried.total, &tried.failed[..]), (120, &[40, 80, 120][..]));
            for seed in 10..130 {
                let times = tried.coverage.of(&format!("seed.{seed:03}"));
                assert_eq!(times, u64::from(seed % 40 != 0), "seed {seed}");
            }
        }
        let first = try_seeds("none", 10..130, 1, Some(Duration::from_secs(60)), &trial);
        assert_eq!((first.total, &first.failed[..]), (31, &[40][..]));
    }
}
