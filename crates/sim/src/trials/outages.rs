//! A storage that cannot be reached now and then, as one across a link.
//!
//! A seed draws outages, in which all calls or calls of some kinds fail as unreachable after their
//! time limit, with or without effect. In half of the seeds, appends return before the storage has
//! taken them ([`Pipelined`]). Clients work meanwhile: writes, syncs, flushes, compactions,
//! ingests, creates, drops, checkpoints. Calls of users may fail, with an error that says what is
//! known of a write, and nothing may be wrong or poisoned. When the storage can be reached again,
//! all work is done, and nothing is left over. The store's end is one of these: it is closed; it is
//! closed during an outage that does not end; power is lost during an outage; it is opened and
//! checked during outages. It then opens with everything that it promised.
//!
//! Threading: one task, its clients, and a task that makes the outages.

use std::sync::Arc;
use std::time::Duration;

use siltstone::check::{CheckStorages, check};
use siltstone::{ErrorKind, Options};
use siltstone_storage::fault::{Effect, Fault, FaultStorage, Rule};
use siltstone_storage::{
    CrashPolicy, Instant, JoinHandle, MemoryStorage, OpKind, Runtime, Storage,
};

use super::{OTHER_EXECUTORS_PERCENT, Run, STEPS, simulate_counted};
use crate::checker::{Check, check_now};
use crate::coverage::Coverage;
use crate::model::Op;
use crate::observe::lock;
use crate::pipelined::Pipelined;
use crate::rng::Rng;
use crate::workload::draw_options;
use crate::world::{Errors, World};

/// Draws the calls that an outage hits.
fn draw_calls(rng: &mut Rng, fault: Fault) -> Rule {
    match rng.below(12) {
        0..4 => Rule::on_any(fault),
        4 => Rule::on_changes(fault),
        5 => Rule::on_reads(fault),
        6 => Rule::on(OpKind::Sync, fault),
        7 => Rule::on(OpKind::Sync, fault).ending(".log"),
        8 => Rule::on(OpKind::Append, fault),
        9 => Rule::on(OpKind::SyncDir, fault),
        10 => Rule::on_changes(fault).ending(".tbl"),
        _ => Rule::on_changes(fault).named("MANIFEST"),
    }
}

/// Draws an outage.
fn draw(rng: &mut Rng) -> Rule {
    let limit = Duration::from_millis(*rng.pick(&[1, 50, 3000]));
    let effect = Effect::Drawn(rng.draw());
    draw_calls(rng, Fault::Unreachable { limit, effect }).for_good()
}

/// An outage of all calls that does not end.
fn for_good(rng: &mut Rng) -> Rule {
    let limit = Duration::from_millis(*rng.pick(&[1, 50, 3000]));
    let effect = Effect::Drawn(rng.draw());
    Rule::on_any(Fault::Unreachable { limit, effect }).for_good()
}

/// The state of one seed's run between its steps.
struct OutageRun {
    run: Run,
    rng: Rng,
    medium: MemoryStorage,
    faults: FaultStorage,
    options: Options,
    /// In a part of the seeds, appends return before the storage has taken them. These are the
    /// random numbers for that.
    pipelined: Option<Rng>,
}

impl OutageRun {
    /// Runs a first life without outages, so that there is something to open.
    fn new(runtime: &Runtime, seed: u64) -> Result<OutageRun, String> {
        let mut rng = Rng::new(seed ^ 0x007A_6E00);
        let mut run = Run::new(runtime, &mut rng);
        let medium = MemoryStorage::new(runtime);
        let options = draw_options(&mut rng);
        let world = run.must_open(&medium, &options, "first life")?;
        world.settings_after_open()?;
        run.work(&world, 1, 30, &mut rng)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);
        run.offer_other_executors(seed, OTHER_EXECUTORS_PERCENT);
        let faults = FaultStorage::new(Arc::new(medium.clone()), runtime);
        let mut pipelined = rng.clone().fork(11);
        Ok(OutageRun {
            run,
            rng,
            medium,
            faults,
            options,
            pipelined: pipelined.chance(50).then_some(pipelined),
        })
    }

    /// Adds the draws of the seed to an error.
    fn context(&self, e: String) -> String {
        format!("{:?}: {e}", self.options)
    }

    fn open(&mut self) -> siltstone::Result<Arc<World>> {
        let faults = Arc::new(self.faults.clone());
        let storage: Arc<dyn Storage> = match &mut self.pipelined {
            Some(rng) => {
                self.run.coverage.add("outage.pipelined");
                let rng = rng.fork(1);
                Arc::new(Pipelined::new(faults, &self.run.runtime, rng))
            }
            None => faults,
        };
        self.run
            .open(&self.medium, storage, &self.options, Errors::Outages)
    }

    /// Starts a task that makes outages one after the other. It returns whether the statistics of
    /// the store told of one.
    fn start_outages(&mut self, world: &World) -> Result<JoinHandle<bool>, String> {
        let (faults, store) = (self.faults.clone(), world.store.clone());
        let clock = self.run.runtime.clone();
        let mut rng = self.rng.fork(3);
        let task = self.run.runtime.spawn("link", move || {
            let mut was_told = false;
            for _ in 0..2 + rng.below(6) {
                clock.sleep(Duration::from_micros(rng.below(20_000)));
                let length = Duration::from_millis(*rng.pick(&[5, 500, 20_000]));
                let end: Instant = clock.now() + length;
                faults.add(draw(&mut rng).until(end));
                clock.sleep(length / 2);
                // This may take as long as the call that lists the files.
                was_told |= store.stats().unreachable_since_us.is_some();
                clock.sleep(end.since(clock.now()));
            }
            was_told
        });
        task.map_err(|e| e.to_string())
    }

    /// Lets clients work during outages. Afterwards nothing is poisoned, and all work is done.
    fn work(&mut self, world: &Arc<World>) -> Check {
        let link = self.start_outages(world)?;
        let (clients, count) = (1 + self.rng.below(3), 20 + self.rng.below(60));
        self.run.work(world, clients, count, &mut self.rng)?;
        let was_told = link.join().map_err(|_| "the link's task failed")?;
        let coverage = &mut self.run.coverage;
        coverage.add_count("outage.calls_failed", self.faults.fired().len() as u64);
        coverage.add_count("outage.told_by_statistics", was_told.into());
        self.faults.clear();
        is_good(world)?;
        check_now(
            &world.store,
            &self.run.history,
            &world.plan.keys,
            &mut self.rng,
        )?;
        // No error is allowed from here on.
        let repaired = world.repaired();
        self.run.check_all(&repaired, &mut self.rng)?;
        self.run.work_repaired(world, &mut self.rng)?;
        is_good(world)?;
        // Maintenance finds out at the latest in its next round that the storage answers.
        self.run.runtime.sleep(Duration::from_secs(3));
        let stats = world.store.stats();
        if let Some(since) = stats.unreachable_since_us {
            return Err(format!("it counts as unreachable since {since}"));
        }
        Ok(())
    }

    /// Closes the store while it can be reached. Returns the least number that must be there.
    fn close(&mut self, world: &World) -> Result<u64, String> {
        self.run.close(world).map_err(|e| format!("close: {e}"))?;
        self.run.coverage.add("outage.closed");
        Ok(lock(&self.run.history).acked)
    }

    /// Closes the store when an outage has just ended. A change may still wait for the answer to a
    /// call of the outage, and the close gives it up then.
    fn close_at_the_end(&mut self, world: &World, what: &str) -> Check {
        match self.run.close(world) {
            Err(e) if e.kind() == ErrorKind::Unreachable => {
                self.run.coverage.add("outage.closed_at_its_end");
                Ok(())
            }
            closed => closed.map_err(|e| format!("{what}: {e}")),
        }
    }

    /// Closes the store during an outage that does not end, beside clients. Returns what the folder
    /// holds then, and the least number that must be there.
    fn close_unreachable(&mut self, world: &Arc<World>) -> Result<(MemoryStorage, u64), String> {
        let clients = self.run.start(world, 2, 30, &mut self.rng)?;
        let runtime = self.run.runtime.clone();
        runtime.sleep(Duration::from_micros(self.rng.below(30_000)));
        let rule = for_good(&mut self.rng);
        self.faults.add(rule);
        runtime.sleep(Duration::from_micros(self.rng.below(9_000_000)));
        match self.run.close_beside_clients(world) {
            Ok(()) => return Err("a store was closed that could not be reached".into()),
            Err(e) if e.kind() == ErrorKind::Unreachable => {}
            Err(e) => return Err(format!("close of a store that cannot be reached: {e}")),
        }
        Run::join(clients)?;
        self.run.late_executors_change_nothing(world)?;
        self.run.coverage.add("outage.closed_unreachable");
        Ok(self.crash())
    }

    /// Loses power, or kills the process, during outages. Returns what the folder holds then, and
    /// the least number that must be there.
    fn lose_power(&mut self, world: &Arc<World>) -> Result<(MemoryStorage, u64), String> {
        if self.rng.chance(50) {
            return self.lose_power_in_doubt(world);
        }
        let clients = self.run.start(world, 2, 30, &mut self.rng)?;
        let link = self.start_outages(world)?;
        let wait = Duration::from_micros(self.rng.below(2_000_000));
        self.run.runtime.sleep(wait);
        let crashed = self.crash();
        Run::join(clients)?;
        link.join().map_err(|_| "the link's task failed")?;
        self.faults.clear();
        self.close_at_the_end(world, "close after a crash")?;
        self.run.coverage.add("outage.crashed");
        Ok(crashed)
    }

    /// Loses power right after writes whose syncs are in doubt and did not take effect.
    fn lose_power_in_doubt(&mut self, world: &Arc<World>) -> Result<(MemoryStorage, u64), String> {
        let fault = Fault::Unreachable {
            limit: Duration::from_millis(50),
            effect: Effect::None,
        };
        let rule = Rule::on(OpKind::Sync, fault).ending(".log");
        self.faults.add(rule.for_good());
        let names = world.store.keyspaces();
        for _ in 0..1 + self.rng.below(3) {
            let Some(name) = names.first() else {
                break;
            };
            let keyspace = world.store.keyspace(name).map_err(|e| e.to_string())?;
            let key = self.run.plan.key(&mut self.rng);
            let put = Op::Put(keyspace.id(), key, self.run.plan.value(&mut self.rng));
            world.write_batch(vec![put], true)?;
        }
        let image = self
            .medium
            .crash_in(&self.run.runtime, CrashPolicy::LoseUnsynced);
        let synced = lock(&self.run.history).synced;
        self.faults.clear();
        self.close_at_the_end(world, "close after a crash in doubt")?;
        self.run.coverage.add("outage.crashed_in_doubt");
        Ok((image.0, synced))
    }

    /// The folder after a kill or a loss of power now, and the least number that must be there.
    fn crash(&mut self) -> (MemoryStorage, u64) {
        let runtime = self.run.runtime.clone();
        let (acked, synced) = {
            let history = lock(&self.run.history);
            (history.acked, history.synced)
        };
        match self.rng.below(3) {
            0 => {
                // What was not synced may be in the memory of the process.
                let least = match self.pipelined {
                    Some(_) => synced,
                    None => acked,
                };
                (self.medium.kill_in(&runtime), least)
            }
            1 => {
                let policy = CrashPolicy::Seeded(self.rng.draw());
                (self.medium.crash_in(&runtime, policy).0, synced)
            }
            _ => {
                let policy = CrashPolicy::LoseUnsynced;
                (self.medium.crash_in(&runtime, policy).0, synced)
            }
        }
    }

    /// Opens and checks the closed store during outages, which find no damage and change nothing
    /// that a later open needs.
    fn open_unreachable(&mut self) -> Check {
        for _ in 0..3 + self.rng.below(4) {
            let nth = self.rng.below(60);
            let rule = match self.rng.chance(60) {
                true => for_good(&mut self.rng),
                false => draw(&mut self.rng),
            };
            self.faults.add(rule.nth(nth));
            if self.rng.chance(40) {
                let storage: &dyn Storage = &self.faults;
                match check(&CheckStorages::on(storage), &mut |_| {}) {
                    Ok(report) if report.is_sound() => {}
                    Ok(report) => return Err(format!("check: {:?}", report.problems)),
                    Err(e) if e.kind() == ErrorKind::Unreachable => {
                        self.run.coverage.add("outage.check_refused");
                    }
                    Err(e) => return Err(format!("check: {e}")),
                }
            }
            match self.open() {
                Ok(world) => {
                    self.faults.clear();
                    self.close_at_the_end(&world, "close after an open")?;
                }
                Err(e) if e.kind() == ErrorKind::Unreachable => {
                    self.run.coverage.add("outage.open_refused");
                }
                Err(e) => return Err(format!("open: {e}")),
            }
            self.faults.clear();
        }
        Ok(())
    }

    /// Opens the store of this folder, which must show everything up to `least`, then loses power
    /// and opens it again.
    fn reopen(&mut self, mut image: MemoryStorage, mut least: u64) -> Check {
        for round in 0..2 {
            let options = draw_options(&mut self.rng);
            let world = self.run.must_open(&image, &options, "reopened")?;
            self.run
                .settle(&world.store, least)
                .map_err(|e| format!("reopened, round {round}: {e}"))?;
            world.take_settings(false)?;
            self.run
                .work(&world, 1, 10, &mut self.rng)
                .map_err(|e| format!("reopened, round {round}: {e}"))?;
            least = lock(&self.run.history).synced;
            let runtime = self.run.runtime.clone();
            image = image.crash_in(&runtime, CrashPolicy::LoseUnsynced).0;
            self.run.coverage.add("outage.reopened");
        }
        Ok(())
    }

    fn play(&mut self) -> Check {
        let world = self.open().map_err(|e| format!("open: {e}"))?;
        world.take_settings(false)?;
        self.work(&world)?;
        let (image, least) = match self.rng.below(4) {
            0 => {
                let least = self.close(&world)?;
                (self.medium.clone(), least)
            }
            1 => self.close_unreachable(&world)?,
            2 => self.lose_power(&world)?,
            _ => {
                let least = self.close(&world)?;
                self.open_unreachable()?;
                (self.medium.clone(), least)
            }
        };
        drop(world);
        self.reopen(image, least)
    }
}

/// Requires that the store takes writes.
fn is_good(world: &World) -> Check {
    match world.store.stats().health {
        health if health == "good" => Ok(()),
        health => Err(format!("after outages: {health}")),
    }
}

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn outages_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut trial = OutageRun::new(&runtime, seed)?;
        let played = trial.play();
        played.map_err(|e| trial.context(e))?;
        Ok(trial.run.coverage)
    })
}
