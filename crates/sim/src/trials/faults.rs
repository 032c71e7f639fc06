//! Storage calls that fail, once or always.
//!
//! A seed draws a few rules by which storage calls fail or take long, and clients work meanwhile.
//! In a part of the seeds the store has a second location of tables, whose calls count with the
//! others.
//!
//! No answer may be wrong while calls fail. Afterwards the store either works completely again or
//! says that it is poisoned, and it opens again with everything that it promised.
//!
//! Threading: one task, its clients, and a task that removes the rules after a while.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{ErrorKind, Options, Storages};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};

use super::media::Media;
use super::{OTHER_EXECUTORS_PERCENT, Run, STEPS, simulate_counted};
use crate::checker::{Check, check_now};
use crate::coverage::Coverage;
use crate::model::{Bytes, Op};
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::{Errors, World};

/// Draws a rule by which calls fail. Returns it with a description.
fn draw_rule(rng: &mut Rng) -> (Rule, String) {
    let kind = *rng.pick(&[
        StorageErrorKind::Io,
        StorageErrorKind::Io,
        StorageErrorKind::NoSpace,
    ]);
    let fault = match rng.below(8) {
        0 => Fault::FailAfter(kind),
        1 => Fault::ShortAppend {
            per_mille: rng.below(1001) as u32,
            kind,
        },
        _ => Fault::Fail(kind),
    };
    let mut rule = match rng.below(10) {
        0..4 => Rule::on_changes(fault),
        4 => Rule::on_reads(fault),
        5 => Rule::on(OpKind::Sync, fault),
        6 => Rule::on(OpKind::Append, fault),
        7 => Rule::on(OpKind::SyncDir, fault),
        8 => Rule::on(OpKind::Create, fault),
        _ => Rule::on(OpKind::Reserve, fault),
    };
    let most = *rng.pick(&[5, 30, 100, 400]);
    rule = rule.nth(rng.below(most));
    rule = match rng.below(3) {
        0 => rule.for_good(),
        1 => rule.times(1 + rng.below(8)),
        _ => rule,
    };
    let text = format!("{rule:?}");
    (rule, text)
}

/// Draws a rule by which one or more calls take long.
fn draw_delay(rng: &mut Rng) -> Rule {
    let delay = *rng.pick(&[1, 30, 900]);
    let fault = Fault::Delay(Duration::from_millis(delay));
    let rule = match rng.below(4) {
        0 => Rule::on_changes(fault),
        1 => Rule::on_reads(fault),
        _ => Rule::on(OpKind::Sync, fault),
    };
    let most = *rng.pick(&[5, 30, 100]);
    rule.nth(rng.below(most)).times(1 + rng.below(20))
}

/// Draws a rule by which a few calls on tables fail in the middle of a job. The next attempt reuses
/// the tables that the failed one had finished.
fn draw_rule_on_tables(rng: &mut Rng) -> Rule {
    let fault = match rng.below(4) {
        0 => Fault::FailAfter(StorageErrorKind::Io),
        _ => Fault::Fail(StorageErrorKind::Io),
    };
    let (kind, most) = *rng.pick(&[(OpKind::Create, 5), (OpKind::Append, 20)]);
    let rule = Rule::on(kind, fault).ending(".tbl");
    rule.nth(1 + rng.below(most)).times(1 + rng.below(2))
}

/// Draws a rule by which a few deletions fail.
fn draw_rule_on_deletions(rng: &mut Rng) -> Rule {
    let fault = match rng.chance(30) {
        true => Fault::FailAfter(StorageErrorKind::Io),
        false => Fault::Fail(StorageErrorKind::Io),
    };
    let rule = Rule::on(OpKind::Delete, fault);
    rule.nth(rng.below(6)).times(1 + rng.below(3))
}

/// Compacts everything by jobs of several tables while some of their attempts fail. Each attempt
/// resumes after the tables that the one before it finished, and the jobs succeed in the end.
fn compact_with_failing_attempts(
    run: &Run,
    world: &World,
    faulty: &FaultStorage,
    rng: &mut Rng,
) -> Check {
    let Some(name) = world.store.keyspaces().pop() else {
        return Ok(());
    };
    let keyspace = world.store.keyspace(&name).map_err(|e| e.to_string())?;
    for _ in 0..2 + rng.below(3) {
        let put = |key: &Bytes| Op::Put(keyspace.id(), key.clone(), run.plan.value(rng));
        let all: Vec<Op> = run.plan.keys.iter().map(put).collect();
        for some in all.chunks(20) {
            world.write_batch(some.to_vec(), false)?;
        }
        faulty.add(draw_rule_on_tables(rng));
        if let Err(e) = keyspace.compact_range(None, None) {
            world.allow(&e, &[ErrorKind::KeyspaceDropped], "compact_range")?;
        }
        // A failed attempt is retried after a pause.
        run.runtime.sleep(Duration::from_millis(rng.below(3000)));
    }
    Ok(())
}

/// A storage that fails, and the rules that a seed drew for it.
struct Faults {
    storage: FaultStorage,
    /// The rules by which calls fail, by their numbers in the storage.
    failing: Vec<usize>,
    /// The rules by which calls take long.
    delays: Vec<usize>,
    /// The rules by which deletions fail.
    deletions: Vec<usize>,
    /// The rules in words, for messages.
    text: String,
}

impl Faults {
    /// Draws one rule by which calls fail.
    fn draw(storage: FaultStorage, rng: &mut Rng) -> Faults {
        let (rule, text) = draw_rule(rng);
        Faults {
            failing: vec![storage.add(rule)],
            storage,
            delays: Vec::new(),
            deletions: Vec::new(),
            text,
        }
    }

    /// Draws the rules that are used only in a part of the seeds.
    fn draw_more(&mut self, rng: &mut Rng) {
        if rng.chance(35) {
            let (second, text) = draw_rule(rng);
            self.text = format!("{}, and {text}", self.text);
            self.failing.push(self.storage.add(second));
        }
        if rng.chance(35) {
            let delay = draw_delay(rng);
            self.text = format!("{}, and {delay:?}", self.text);
            self.delays.push(self.storage.add(delay));
        }
        // This store must repeat a deletion that fails now. It must not leave the file to the next
        // open.
        let mut deletions = rng.clone().fork(6);
        if deletions.chance(35) {
            let rule = draw_rule_on_deletions(&mut deletions);
            self.text = format!("{}, and {rule:?}", self.text);
            self.deletions.push(self.storage.add(rule));
        }
    }

    /// Starts a task that removes the rules after a while, as if the disk were replaced. Without
    /// it, a permanent fault would stall the writers permanently.
    fn disarm_later(&self, runtime: &Runtime) -> Check {
        let storage = self.storage.clone();
        let clock = runtime.clone();
        let task = runtime.spawn("repair", move || {
            clock.sleep(Duration::from_secs(5));
            storage.disarm();
        });
        task.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Counts which rules met a call. Returns how often calls failed, without deletions.
    fn count_fired(&self, coverage: &mut Coverage) -> u64 {
        let fired_count = |rule: &usize| self.storage.fired_count(*rule);
        let count = |rules: &[usize]| rules.iter().map(fired_count).sum();
        let fired = count(&self.failing);
        coverage.add_count("fault.fired", fired);
        coverage.add_count("fault.slow", count(&self.delays));
        coverage.add_count("fault.deletion", count(&self.deletions));
        if self.failing.len() > 1 && self.failing.iter().all(|rule| fired_count(rule) > 0) {
            coverage.add("fault.two");
        }
        fired
    }
}

/// Whether an open may be refused with this error because a call has failed. An open for writing
/// needs the second location of tables only if tables are there.
pub(super) fn is_refused_by_fault(error: &siltstone::Error) -> bool {
    match error.kind() {
        ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned => true,
        ErrorKind::NotFound => error.to_string().contains("injected"),
        _ => false,
    }
}

/// The state of one seed's run between its steps.
struct FaultRun {
    run: Run,
    rng: Rng,
    /// The random numbers for parts of this trial that were added later, so that kept seeds keep
    /// their runs.
    late: Rng,
    /// The random numbers for the second location of tables.
    second: Rng,
    media: Media,
    options: Options,
    faults: Faults,
    /// In a part of the seeds, compactions of many tables fail as well. These are the random
    /// numbers for them.
    attempts: Option<Rng>,
    /// The draws of the seed, for messages.
    what: String,
}

impl FaultRun {
    /// Runs a first life without faults, so that there is something to open, and draws the faults.
    fn new(runtime: &Runtime, seed: u64) -> Result<FaultRun, String> {
        let mut rng = Rng::new(seed ^ 0xFA17);
        let mut run = Run::new(runtime, &mut rng);
        let mut second = rng.clone().fork(5);
        let mut media = Media::one(MemoryStorage::named(runtime, "/store"));
        if second.chance(20) {
            media.add_redirect(runtime);
            run.coverage.add("fault.second_location");
        }
        let options = draw_options(&mut rng);
        let world = run.must_open_on(&media, &options, "first life")?;
        world.settings_after_open()?;
        world.choose_location(&mut second);
        let mut more = rng.clone().fork(1);
        let attempts = more.chance(10).then_some(more);
        if attempts.is_some() {
            // Large values make levels of many tables.
            run.plan = Arc::new(Plan::clone(&run.plan).with_large_values());
        }
        run.work(&world, 1, 30, &mut rng)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);

        let storage = FaultStorage::new(Arc::new(media.main().clone()), runtime);
        let mut faults = Faults::draw(storage, &mut rng);
        let mut late = rng.clone().fork(3);
        faults.draw_more(&mut late);
        let what = format!("{options:?}; {}", faults.text);
        Ok(FaultRun {
            run,
            rng,
            late,
            second,
            media,
            options,
            faults,
            attempts,
            what,
        })
    }

    /// Adds the draws of the seed to an error.
    fn context(&self, e: String) -> String {
        format!("{}: {e}", self.what)
    }

    fn open_once(&self) -> siltstone::Result<Arc<World>> {
        let faults = &self.faults.storage;
        let redirect = self.media.storages().redirect;
        let storages = Storages {
            redirect: redirect.map(|inner| -> Arc<dyn Storage> { Arc::new(faults.beside(inner)) }),
            ..Storages::on(Arc::new(faults.clone()))
        };
        let other_executors = self.run.other_executors();
        let (medium, options) = (self.media.main(), &self.options);
        self.run
            .open_on(medium, storages, other_executors, options, Errors::Expected)
    }

    /// Opens the store, which may be refused once if a call of the open fails.
    fn open(&mut self) -> Result<Arc<World>, String> {
        if self.rng.chance(70) {
            self.faults.storage.disarm();
        }
        let world = match self.open_once() {
            Ok(world) => world,
            Err(error) => {
                self.run.coverage.add("fault.open_refused");
                if !is_refused_by_fault(&error) {
                    return Err(self.context(format!("open: {error}")));
                }
                self.faults.storage.disarm();
                self.open_once()
                    .map_err(|e| self.context(format!("open after a refused open: {e}")))?
            }
        };
        world.settings_after_open()?;
        world.choose_location(&mut self.second);
        Ok(world)
    }

    /// Lets clients work while calls fail, and checks the store when the rules have been removed.
    /// Returns how often calls failed.
    fn work_with_faults(&mut self, world: &Arc<World>) -> Result<u64, String> {
        self.faults.storage.arm();
        self.faults.disarm_later(&self.run.runtime)?;
        let (clients, count) = (1 + self.rng.below(3), 20 + self.rng.below(60));
        self.run
            .work(world, clients, count, &mut self.rng)
            .map_err(|e| self.context(e))?;
        if let Some(attempts) = &mut self.attempts {
            compact_with_failing_attempts(&self.run, world, &self.faults.storage, attempts)
                .map_err(|e| self.context(e))?;
        }
        self.faults.storage.disarm();
        let fired = self.faults.count_fired(&mut self.run.coverage);
        let keys = &world.plan.keys;
        check_now(&world.store, &self.run.history, keys, &mut self.rng)
            .map_err(|e| self.context(format!("after the fault: {e}")))?;
        Ok(fired)
    }

    /// Writes a pair into a keyspace, if there is one.
    fn put_after(&self, world: &World) -> Result<siltstone::Result<()>, String> {
        let names = world.store.keyspaces();
        let Some(name) = names.first() else {
            return Ok(Ok(()));
        };
        let keyspace = world.store.keyspace(name).map_err(|e| e.to_string())?;
        let op = Op::Put(
            keyspace.id(),
            b"after".as_slice().into(),
            b"all".as_slice().into(),
        );
        lock(&self.run.history).announce(vec![op.clone()]);
        let put = keyspace.put(b"after", b"all");
        Ok(put.inspect_err(|_| lock(&self.run.history).withdraw(&[op])))
    }

    /// Writes until a write succeeds or the store says that it is poisoned. A poisoned store stays
    /// poisoned; any other error must pass by itself. Returns whether the store is poisoned, which
    /// is allowed only if calls failed.
    fn write_after_faults(&mut self, world: &World, fired: u64) -> Result<bool, String> {
        let mut last = None;
        for _ in 0..100 {
            last = self.put_after(world)?.err();
            if last
                .as_ref()
                .is_none_or(|e| e.kind() == ErrorKind::Poisoned)
            {
                break;
            }
            self.run.runtime.sleep(Duration::from_millis(500));
        }
        let poisoned = match last {
            None => false,
            Some(e) if e.kind() == ErrorKind::Poisoned => {
                if fired == 0 {
                    return Err(self.context(format!("poisoned without a fault: {e}")));
                }
                true
            }
            Some(e) => return Err(self.context(format!("writes do not resume: {e}"))),
        };
        self.run.coverage.add(if poisoned {
            "fault.poisoned"
        } else {
            "fault.passed"
        });
        Ok(poisoned)
    }

    /// Checks everything, and works on a store that is not poisoned while its storage no longer
    /// fails. Returns whether the store is poisoned. A call that met its fault before the rules
    /// were removed may report it only now.
    fn work_without_faults(&mut self, world: &Arc<World>) -> Result<bool, String> {
        if let Err(e) = self.run.check_all(world, &mut self.rng) {
            if e.contains("injected") && world.store.stats().health != "good" {
                return Ok(true);
            }
            return Err(self.context(format!("after it passed: {e}")));
        }
        self.run
            .work_repaired(world, &mut self.late)
            .map_err(|e| self.context(e))?;
        Ok(false)
    }

    /// Opens the state that a kill or a loss of power leaves, twice, with a loss of power between
    /// the two opens.
    fn reopen(&mut self) -> Check {
        let runtime = self.run.runtime.clone();
        let (acked, synced) = {
            let history = lock(&self.run.history);
            (history.acked, history.synced)
        };
        let (mut lost, mut least) = (None, acked);
        if self.rng.chance(50) {
            lost = Some(CrashPolicy::Seeded(self.rng.draw()));
            least = synced;
        }
        let mut image = self.media.end_now(&runtime, lost);
        for round in 0..2 {
            let options = draw_options(&mut self.rng);
            let world = self.run.must_open_on(&image, &options, &self.what)?;
            self.run
                .settle(&world.store, least)
                .map_err(|e| self.context(format!("reopened, round {round}: {e}")))?;
            world.take_settings(false)?;
            self.run
                .work(&world, 1, 10, &mut self.rng)
                .map_err(|e| self.context(format!("reopened, round {round}: {e}")))?;
            least = lock(&self.run.history).synced;
            image = image.end_now(&runtime, Some(CrashPolicy::LoseUnsynced));
            self.run.coverage.add("fault.reopened");
        }
        Ok(())
    }
}

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn fault_trial(seed: u64) -> Coverage {
    faults(seed, OTHER_EXECUTORS_PERCENT)
}

/// Runs one seed without executors besides the host's own.
///
/// # Panics
/// In the same cases as [`fault_trial`].
pub fn fault_trial_alone(seed: u64) -> Coverage {
    faults(seed, 0)
}

fn faults(seed: u64, other_executors_percent: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut trial = FaultRun::new(&runtime, seed)?;
        trial
            .run
            .offer_other_executors(seed, other_executors_percent);
        let world = trial.open()?;
        let fired = trial.work_with_faults(&world)?;
        let poisoned =
            trial.write_after_faults(&world, fired)? || trial.work_without_faults(&world)?;
        let closed = trial.run.close(&world);
        if let Err(e) = &closed
            && !poisoned
        {
            return Err(trial.context(format!("close: {e}")));
        }
        drop(world);
        trial.reopen()?;
        Ok(trial.run.coverage)
    })
}
