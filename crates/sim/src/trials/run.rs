//! A run of one seed through the lives of a store, from one open to the next.
//!
//! [`Run`] holds the state that the lives share: the history of all writes, the plan, the coverage,
//! and the checkpoints. It opens stores as a [`World`], lets clients work on them, checks them,
//! closes them, and finds the prefix of the history that a reopened store shows.
//!
//! Invariants: a life continues from the history that [`Run::settle`] left. A store is compared
//! only with the history of its own run.
//!
//! Threading: belongs to the trial's first task. Clients are tasks of the same simulated run.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::{Components, ErrorKind, Options, Storages, Store, ThirdScore};
use siltstone_storage::{JoinHandle, MemoryStorage, Runtime, Storage};

use super::media::Media;
use crate::checker::{Check, check_now, find_prefix};
use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::model::{Event, Model, Record};
use crate::observe::{History, Observed, SharedHistory, lock};
use crate::rng::Rng;
use crate::workload::{Client, Plan};
use crate::world::admin::Copy;
use crate::world::{Errors, World};

/// The state that is passed from one life of a store to the next.
pub(crate) struct Run {
    pub(crate) runtime: Runtime,
    pub(crate) history: SharedHistory,
    pub(crate) plan: Arc<Plan>,
    pub(crate) coverage: Coverage,
    next_name: Arc<AtomicU64>,
    /// The storage of tables that belong to no store.
    pub(crate) outside: MemoryStorage,
    /// The same storage, as the clients get it.
    pub(crate) outside_seen: Arc<dyn Storage>,
    /// The number of times that clients were started.
    works: Arc<AtomicU32>,
    /// The checkpoints of all lives.
    pub(crate) copies: Arc<Mutex<Vec<Copy>>>,
    /// The random numbers for the executors of each life, if there are any.
    other_executors: RefCell<Option<Rng>>,
    /// The executors of the last store that was closed, with the number of their jobs that hung at
    /// the close.
    earlier: Option<(OtherExecutors, usize)>,
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
            other_executors: RefCell::default(),
            earlier: None,
        }
    }

    /// Another run that continues from here independently: one of the possible futures.
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
            other_executors: self.other_executors.clone(),
            earlier: None,
        }
    }

    /// In a part of the seeds, gives the stores that [`Run::open`] opens executors of their own.
    /// The draw depends only on the seed, so the other seeds run unchanged.
    pub(crate) fn offer_other_executors(&mut self, seed: u64, percent: u64) {
        let mut rng = Rng::new(seed ^ 0x0057_4A6E_6765_7221);
        if rng.chance(percent) {
            self.coverage.add("elsewhere.executors");
            self.other_executors = RefCell::new(Some(rng));
        }
    }

    /// The executors of the next life.
    pub(crate) fn other_executors(&self) -> OtherExecutors {
        match &mut *self.other_executors.borrow_mut() {
            Some(rng) => OtherExecutors::draw_some(&self.runtime, &mut rng.fork(1)),
            None => OtherExecutors::default(),
        }
    }

    /// Opens the store on `storage`, whose bytes are on `medium`.
    pub(crate) fn open(
        &self,
        medium: &MemoryStorage,
        storage: Arc<dyn Storage>,
        options: &Options,
        errors: Errors,
    ) -> siltstone::Result<Arc<World>> {
        let other_executors = self.other_executors();
        self.open_on(
            medium,
            Storages::on(storage),
            other_executors,
            options,
            errors,
        )
    }

    /// Like [`Run::open`], for a store whose log or tables may be on other storages, and whose jobs
    /// are offered to `other_executors`. `medium` holds the manifest, and the marks are made in its
    /// journal.
    pub(crate) fn open_on(
        &self,
        medium: &MemoryStorage,
        storages: Storages,
        other_executors: OtherExecutors,
        options: &Options,
        errors: Errors,
    ) -> siltstone::Result<Arc<World>> {
        let log: Arc<dyn Storage> = Arc::new(Observed::new(
            storages.log.clone(),
            self.history.clone(),
            medium.clone(),
        ));
        // Parts that share the log's storage also share the storage that observes the log.
        let beside = |storage: &Arc<dyn Storage>| match Arc::ptr_eq(storage, &storages.log) {
            true => log.clone(),
            false => storage.clone(),
        };
        let seen = Storages {
            manifest: beside(&storages.manifest),
            tables: beside(&storages.tables),
            redirect: storages.redirect.clone(),
            log,
        };
        let storage = seen.tables.clone();
        let redirect = seen.redirect.clone();
        {
            let mut history = lock(&self.history);
            let names = history.model.all_keyspaces();
            history.settings.wish(&names, &options.keyspaces);
        }
        let components = Components {
            executors: other_executors.executors(),
            listener: other_executors.listener(),
            ..Components::of(seen, self.runtime.clone())
        };
        let mut options = options.clone();
        if !components.executors.is_empty() {
            // Half of the lives with other executors have queues with two ends.
            options.schedule.third_score = match options.subjobs_max {
                2 => ThirdScore::Ends,
                4 => ThirdScore::EndsFrozen,
                _ => options.schedule.third_score,
            };
        }
        let store = Store::open_with(components, options.clone())?;
        store.test_hooks().set_subjob_min_bytes(64 << 10);
        // The keys are few, so runs of hidden keys are short.
        store.test_hooks().set_gap_min(2);
        Ok(Arc::new(World {
            runtime: self.runtime.clone(),
            store,
            medium: medium.clone(),
            storage,
            redirect,
            history: self.history.clone(),
            plan: self.plan.clone(),
            other_executors,
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

    /// Like [`Run::open`], for an open that must succeed.
    pub(crate) fn must_open(
        &self,
        medium: &MemoryStorage,
        options: &Options,
        what: &str,
    ) -> Result<Arc<World>, String> {
        self.must_open_on(&Media::one(medium.clone()), options, what)
    }

    /// Like [`Run::must_open`], for a store on several media.
    pub(crate) fn must_open_on(
        &self,
        media: &Media,
        options: &Options,
        what: &str,
    ) -> Result<Arc<World>, String> {
        let (other_executors, storages) = (self.other_executors(), media.storages());
        self.open_on(
            media.main(),
            storages,
            other_executors,
            options,
            Errors::Fatal,
        )
        .map_err(|e| format!("{what}: open: {e}"))
    }

    /// Runs `clients` clients concurrently, with `count` operations each.
    pub(crate) fn work(
        &self,
        world: &Arc<World>,
        clients: u64,
        count: u64,
        rng: &mut Rng,
    ) -> Check {
        Run::join(self.start(world, clients, count, rng)?)
    }

    /// Starts the clients of [`Run::work`] and does not wait for them.
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

    /// Compares everything after all work, then lets the background work finish and compares again.
    pub(crate) fn check_all(&self, world: &Arc<World>, rng: &mut Rng) -> Check {
        check_now(&world.store, &self.history, &world.plan.keys, rng)?;
        if world.errors == Errors::Fatal {
            world.slots_meet()?;
        }
        let hooks = world.store.test_hooks();
        hooks.pause_compaction(false);
        for name in world.store.keyspaces() {
            hooks.release(&world.store.keyspace(&name).map_err(|e| e.to_string())?);
        }
        // Jobs that failed are retried after a pause. Until then a waiter gets their error.
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
                // This is not always checked, because it leaves nothing for the next life to
                // recover.
                match rng.clone().fork(9).chance(40) {
                    true => world.nothing_is_pending(),
                    false => Ok(()),
                }
            }
            Errors::Expected | Errors::Outages => {
                world.nothing_is_pending()?;
                world.nothing_is_left_over()
            }
            Errors::Damaged => Ok(()),
        }
    }

    /// Lets clients work on a store whose storage was repaired. It must execute every call.
    pub(crate) fn work_repaired(&mut self, world: &World, rng: &mut Rng) -> Check {
        let repaired = world.repaired();
        let worked = self.work(&repaired, 1 + rng.below(2), 25, rng);
        worked.map_err(|e| format!("on the repaired storage: {e}"))?;
        self.coverage
            .merge(&repaired.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        self.coverage.add("repaired.worked");
        check_now(&world.store, &self.history, &world.plan.keys, rng)
    }

    /// Adds the store's statistics to the coverage, closes the store, and checks that it leaves
    /// nothing behind. No cursor and no snapshot may exist.
    pub(crate) fn close(&mut self, world: &World) -> siltstone::Result<()> {
        let leaves_nothing = world.leaves_nothing();
        let closed = self.close_beside_clients(world);
        if closed.is_ok() && leaves_nothing {
            world
                .nothing_is_left_behind()
                .map_err(|difference| siltstone::Error::new(ErrorKind::Corruption, difference))?;
            self.coverage.add("folder.exact");
        }
        // The close of a poisoned store may fail with any error, but this check must not fail.
        let unchanged = self.late_executors_change_nothing(world);
        unchanged.unwrap_or_else(|difference| panic!("{difference}"));
        closed
    }

    /// Waits until the executors of a closed store have returned, and compares its folders.
    pub(crate) fn late_executors_change_nothing(&mut self, world: &World) -> Check {
        let of_tables = [&world.storage].into_iter().chain(&world.redirect);
        let of_tables = of_tables.filter_map(|storage| storage.base()?.downcast_ref());
        let media: Vec<&MemoryStorage> = [&world.medium].into_iter().chain(of_tables).collect();
        let (other_executors, runtime) = (&world.other_executors, &self.runtime);
        other_executors.change_nothing(runtime, &media, &mut self.coverage)
    }

    /// Adds the store's statistics to the coverage and closes the store. Clients may still be
    /// working.
    pub(crate) fn close_beside_clients(&mut self, world: &World) -> siltstone::Result<()> {
        self.coverage.take_stats(&world.store.stats());
        self.coverage
            .merge(&world.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        let last = lock(&self.history).model.last();
        world.closing.store(true, Ordering::Relaxed);
        let hung = world.other_executors.hung();
        let closed = world.store.clone().close();
        if hung > 0 {
            self.coverage.add("elsewhere.closed_with_a_hung_job");
        }
        if let Some((earlier, hung)) = self.earlier.take() {
            if earlier.hung() < hung {
                self.coverage.add("elsewhere.woke_in_the_next_life");
            }
            earlier.take_reached(&mut self.coverage);
        }
        world.other_executors.take_reached(&mut self.coverage);
        self.earlier = Some((world.other_executors.clone(), hung));
        closed?;
        // A close syncs everything.
        world.synced(last);
        Ok(())
    }

    /// Finds the prefix of the history that a freshly opened store shows, which must end at `least`
    /// or later, and continues from there. A failed drop without a record may be part of it. This
    /// failure poisons the store, so the drop is the last change.
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

    /// Makes the next life begin at `end`, as if nothing had happened after it.
    pub(crate) fn settle_at(&self, end: u64) {
        let mut history = lock(&self.history);
        let mut next = history.clone();
        next.model.cut(end);
        (next.acked, next.synced) = (end, end);
        next.doubtful_drop = None;
        next.forget_announced();
        *history = next;
    }

    /// Begins the next life. Only the first `settled` changes of settings are known to be over.
    pub(crate) fn restart_settings(&self, settled: usize) {
        lock(&self.history).settings.restart(settled);
    }

    /// Forbids the next life to give any number up to `given` again.
    pub(crate) fn restart_numbers(&self, given: u64) {
        lock(&self.history).given = given;
    }

    /// Checks all checkpoints again. They must be unchanged, whatever happened to their source
    /// since.
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

    /// A copy of the present model.
    pub(crate) fn model(&self) -> Model {
        lock(&self.history).model.clone()
    }
}
