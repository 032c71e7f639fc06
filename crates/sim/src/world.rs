//! One open store, and its operations: every operation announces its writes, makes them, records
//! the promises of the store, and checks the result.
//!
//! [`World`] is shared by the clients of a store and used by stories. [`write`](World::write),
//! [`create`](World::create) and [`drop_keyspace`](World::drop_keyspace) are here; tables from
//! outside are in [`outside`], and checkpoints, settings and verification in [`admin`].
//!
//! Invariant: an operation that fails in a way that its documentation does not allow ends the run.
//!
//! Threading: shared by the tasks of a run. Its contents are under std mutexes that are not held
//! where tasks can be switched, except `turn`.

pub mod admin;
pub(crate) mod leaks;
pub mod outside;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use siltstone::batch::BatchBody;
use siltstone::{ErrorKind, Keyspace, KeyspaceOptions, Store, WriteOptions};
use siltstone_storage::{Instant, MemoryStorage, Mutex, Runtime, Storage};

use crate::checker::Check;
use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::model::{Event, Op, Record};
use crate::observe::{SharedHistory, lock};
use crate::rng::Rng;
use crate::workload::Plan;
use admin::Copy;

/// Kinds of [`Promise`]: the remainder of a number in a mark says which it is.
pub(crate) const PROMISES: u64 = 8;

/// How a run treats errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// Any error is a failure of the run.
    Fatal,
    /// Storage faults are injected: calls may fail, but must not return wrong answers.
    Expected,
    /// Files were damaged while the store was open: calls may fail with an error that names one of
    /// them, but must not return wrong answers.
    Damaged,
    /// The storage cannot be reached now and then: calls may fail, but only because of that, and
    /// nothing is poisoned.
    Outages,
}

/// The world; see the module.
pub struct World {
    /// The runtime.
    pub runtime: Runtime,
    /// The store.
    pub store: Store,
    /// The medium below all other storages, for marks in its journal.
    pub medium: MemoryStorage,
    /// The storage that the store uses: ingested tables are written here.
    pub storage: Arc<dyn Storage>,
    /// The storage of the second location of tables, if there is one.
    pub redirect: Option<Arc<dyn Storage>>,
    /// A folder of tables that belong to no store.
    pub outside: Arc<dyn Storage>,
    /// The history of all writes.
    pub history: SharedHistory,
    /// The seed's plan.
    pub plan: Arc<Plan>,
    /// The executors that are offered jobs besides the host's own.
    pub other_executors: OtherExecutors,
    /// The coverage of this store.
    pub coverage: StdMutex<Coverage>,
    /// How errors are treated.
    pub errors: Errors,
    /// Whether storage faults were injected earlier in this life. Settings may then be in force
    /// without being stored, and drops may have no number.
    pub was_faulty: bool,
    /// Files that were damaged.
    pub damaged: StdMutex<BTreeSet<String>>,
    /// Whether the store syncs every write.
    pub synced_writes: bool,
    /// The interval of the store's own sync, if it has one.
    pub interval: Option<Duration>,
    /// The acknowledged numbers that may be younger than the interval, with their times.
    pub young: StdMutex<VecDeque<(Instant, u64)>>,
    /// The options for single keyspaces with which the store was opened.
    pub wishes: BTreeMap<String, KeyspaceOptions>,
    /// Numbers for names of ingested tables.
    pub next_name: Arc<AtomicU64>,
    /// Checkpoints that are compared again later.
    pub copies: Arc<StdMutex<Vec<Copy>>>,
    /// The number of promises that were begun.
    pub begun: AtomicU64,
    /// Held while a keyspace is created or settings are changed: one at a time, so that the model
    /// knows the order.
    pub turn: Mutex<()>,
    /// Whether a task is closing the store, or has closed it: from then on any call may be refused.
    pub closing: AtomicBool,
    /// The keyspaces whose groups may be too large for the memory, if memory for memtables is
    /// refused.
    pub starved: StdMutex<Option<BTreeSet<u32>>>,
}

/// The store's message when the system has no memory for a memtable.
const NO_MEMORY: &str = "no memory for a memtable";

/// The minimum size in bytes at which a memtable's memory is refused, if a run asks for this. Only
/// memtables that are made for one large batch are so large.
const REFUSED_BYTES: usize = 900 << 10;

/// Batches with fewer bytes than this never come close to [`REFUSED_BYTES`], however many of them
/// share a group.
const SMALL_BYTES: usize = 128 << 10;

/// An operation that promises durability when it ends. Runs are cut off inside each kind equally
/// often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A batch with a sync.
    Batch,
    /// A sync of the log.
    SyncLog,
    /// A flush.
    Flush,
    /// The creation of a keyspace.
    Create,
    /// The drop of a keyspace.
    Drop,
    /// An ingest of tables.
    Ingest,
    /// A checkpoint.
    Checkpoint,
    /// A change of a keyspace's settings.
    Settings,
}

/// Records the end of an operation.
pub struct Begun<'a> {
    medium: &'a MemoryStorage,
    number: u64,
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.medium.mark(format!("e{}", self.number));
    }
}

impl World {
    /// The same open store after its storage executes all calls again. No error is allowed from now
    /// on.
    pub fn repaired(&self) -> Arc<World> {
        Arc::new(World {
            runtime: self.runtime.clone(),
            store: self.store.clone(),
            medium: self.medium.clone(),
            storage: self.storage.clone(),
            redirect: self.redirect.clone(),
            outside: self.outside.clone(),
            history: self.history.clone(),
            plan: self.plan.clone(),
            other_executors: self.other_executors.clone(),
            coverage: StdMutex::default(),
            errors: Errors::Fatal,
            was_faulty: true,
            damaged: StdMutex::default(),
            synced_writes: self.synced_writes,
            // It is not known when writes during failing syncs were synced.
            interval: None,
            young: StdMutex::default(),
            wishes: self.wishes.clone(),
            next_name: self.next_name.clone(),
            copies: self.copies.clone(),
            begun: AtomicU64::new(self.begun.load(Ordering::Relaxed)),
            turn: self.runtime.mutex(()),
            closing: AtomicBool::new(false),
            starved: StdMutex::default(),
        })
    }

    /// Notes in the journal that an operation is running that will end with a promise, from here
    /// until the returned value is dropped.
    pub fn begin(&self, promise: Promise) -> Begun<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) * PROMISES + promise as u64;
        self.medium.mark(format!("b{number}"));
        Begun {
            medium: &self.medium,
            number,
        }
    }

    /// Adds a named event to the coverage.
    pub fn reach(&self, name: &str) {
        self.coverage
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .add(name);
    }

    /// Records that everything up to `number` was acknowledged.
    pub fn acked(&self, number: u64) {
        let mut history = lock(&self.history);
        let number = history.model.end_at(number);
        if number > history.acked {
            history.acked = number;
            drop(history);
            self.medium.mark(format!("a{number}"));
        }
    }

    /// Records that everything up to `number` was promised to survive power loss.
    pub fn synced(&self, number: u64) {
        self.acked(number);
        let mut history = lock(&self.history);
        let number = history.model.end_at(number);
        if number > history.synced {
            history.synced = number;
            drop(history);
            self.medium.mark(format!("s{number}"));
        }
    }

    /// Records the writes that have become older than the interval of the store's own sync as
    /// synced. As long as no fault is injected, nothing that a sync waits for takes simulated time,
    /// so all older writes are synced.
    fn age(&self) {
        let Some(interval) = self.interval.filter(|_| self.errors == Errors::Fatal) else {
            return;
        };
        let now = self.runtime.now();
        let mut young = self.young.lock().unwrap_or_else(|e| e.into_inner());
        let mut old = None;
        while let Some((at, number)) = young.front().copied()
            && at + interval < now
        {
            old = old.max(Some(number));
            young.pop_front();
        }
        drop(young);
        // A store that lost its lease promises nothing.
        if let Some(number) = old
            && self.store.stats().health == "good"
        {
            self.synced(number);
            self.reach("synced.by_interval");
        }
    }

    /// Returns `Ok` if the error is allowed, otherwise the run's failure.
    ///
    /// # Errors
    /// The run's failure.
    pub fn allow(&self, error: &siltstone::Error, also: &[ErrorKind], what: &str) -> Check {
        if also.contains(&error.kind()) {
            self.reach(&format!("error.{}", error.kind()));
            return Ok(());
        }
        let injected = matches!(
            error.kind(),
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned
        );
        let is_allowed = match self.errors {
            Errors::Fatal => false,
            Errors::Expected => injected && !error.to_string().contains(NO_MEMORY),
            Errors::Damaged => {
                (injected || error.kind() == ErrorKind::Corruption)
                    && self.names_damage(&error.to_string())
            }
            Errors::Outages => {
                let in_doubt = self.closing.load(Ordering::Relaxed);
                matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unsynced)
                    || in_doubt && matches!(error.kind(), ErrorKind::Poisoned | ErrorKind::Closed)
            }
        };
        if is_allowed {
            self.reach(&format!("fault.error.{}", error.kind()));
            return Ok(());
        }
        Err(format!("{what}: {error}"))
    }

    /// Announces `ops`, calls `write` to write them as one batch, and records the promises of the
    /// store.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn write(
        &self,
        ops: Vec<Op>,
        sync: bool,
        write: impl FnOnce(&Store, bool) -> siltstone::Result<()>,
    ) -> Check {
        self.age();
        self.note_large(&ops);
        let _begun = (sync || self.synced_writes).then(|| self.begin(Promise::Batch));
        let before = self.store.snapshot().number();
        lock(&self.history).announce(ops.clone());
        match write(&self.store, sync) {
            Ok(()) => self.is_written(&ops, before, sync || self.synced_writes),
            Err(e) if e.kind() == ErrorKind::Unsynced && self.errors == Errors::Outages => {
                if !sync && !self.synced_writes {
                    return Err(format!("a write that is not synced: {e}"));
                }
                self.reach("outage.write_in_doubt");
                self.is_written(&ops, before, false)
            }
            Err(e) => {
                lock(&self.history).withdraw(&ops);
                if e.to_string().contains(NO_MEMORY) && self.is_starved(&ops) {
                    return Ok(());
                }
                self.allow(&e, &[ErrorKind::KeyspaceDropped], "write")
            }
        }
    }

    /// Records that a batch was written above the number `before`, and whether it is promised to
    /// survive power loss.
    ///
    /// # Errors
    /// It is not in the log, or cannot be read.
    fn is_written(&self, ops: &[Op], before: u64, synced: bool) -> Check {
        let published = self.store.snapshot().number();
        let own = {
            let history = lock(&self.history);
            let has = |e: &Event| match e {
                Event::Group(all) => all.windows(ops.len()).any(|w| w == ops),
                _ => false,
            };
            // If two clients write the same batch at the same time, this may be the other client's
            // write, which came first.
            history.model.first_above(before, has)
        };
        let Some(last) = own else {
            return Err("an acknowledged batch is not in the log".into());
        };
        if last > published {
            return Err(format!(
                "acknowledged with number {last}, but only {published} is published"
            ));
        }
        if synced {
            self.synced(last);
            return Ok(());
        }
        self.acked(last);
        if self.interval.is_some() {
            let now = self.runtime.now();
            let mut young = self.young.lock().unwrap_or_else(|e| e.into_inner());
            young.push_back((now, last));
        }
        Ok(())
    }

    /// If the store has a second location of tables, draws the one to which flushes go from now on.
    /// Without pressure they would all go to the first one.
    pub fn choose_location(&self, rng: &mut Rng) {
        if self.redirect.is_some() {
            let location = *rng.pick(&[None, Some(0), Some(1), Some(1)]);
            self.store.test_hooks().force_location(location);
        }
    }

    /// Makes the store refuse memory for large memtables from now on.
    pub fn starve(&self) {
        let mut starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        starved.get_or_insert_default();
    }

    /// If memory is refused, records the keyspaces whose groups a large batch makes too large.
    fn note_large(&self, ops: &[Op]) {
        let mut starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(starved) = &mut *starved
            && bytes_of(ops) > SMALL_BYTES
        {
            starved.extend(ops.iter().map(Op::keyspace));
        }
    }

    /// Whether a batch may be refused memory, because it, or a batch that may share its group, is
    /// large in one of its keyspaces.
    fn is_starved(&self, ops: &[Op]) -> bool {
        let starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        let is_starved = |op: &Op| starved.as_ref().is_some_and(|s| s.contains(&op.keyspace()));
        ops.iter().any(is_starved)
    }

    /// Writes a value for which no memtable gets memory. Other clients' batches that share its
    /// group must not be refused because of it.
    ///
    /// # Errors
    /// As [`World::write`].
    pub fn write_too_much(&self, keyspace: &Keyspace) -> Check {
        let hooks = self.store.test_hooks();
        hooks.refuse_arenas_from(REFUSED_BYTES);
        let value = vec![0x67; REFUSED_BYTES].into();
        let op = Op::Put(keyspace.id(), b"too much".as_slice().into(), value);
        self.write_batch(vec![op], false)?;
        self.reach("memory.refused");
        Ok(())
    }

    /// Writes `ops` as a batch.
    ///
    /// # Errors
    /// As [`World::write`].
    pub fn write_batch(&self, ops: Vec<Op>, sync: bool) -> Check {
        // The body names keyspaces by number, so it can also name a keyspace that was dropped
        // meanwhile.
        let mut batch = BatchBody::new();
        for op in &ops {
            match op {
                Op::Put(id, key, value) => batch.put(*id, key, value),
                Op::Delete(id, key) => batch.delete(*id, key),
                Op::DeleteRange(id, start, end) => batch.delete_range(*id, start, end),
            }
            .map_err(|e| e.to_string())?;
        }
        let batch = self.store.test_hooks().batch_of(batch);
        self.write(ops, sync, |store, sync| {
            store.write(
                &batch,
                WriteOptions {
                    sync,
                    ..WriteOptions::default()
                },
            )
        })
    }

    /// Creates a keyspace with its own settings. Returns `None` if it could not be created.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn create(&self, name: &str, own: &KeyspaceOptions) -> Result<Option<Keyspace>, String> {
        let _turn = self.turn.lock();
        let mut wanted = self.wishes.get(name).cloned().unwrap_or_default();
        wanted.merge(own);
        lock(&self.history).settings.announce_create(wanted.clone());
        let _begun = self.begin(Promise::Create);
        match self.store.create_keyspace_with(name, own) {
            Ok(keyspace) => {
                let id = keyspace.id();
                let number = lock(&self.history)
                    .model
                    .number_of_change(|e| matches!(e, Event::Create(i, n) if *i == id && n == name))
                    .ok_or(format!("create of {name} ({id}) left no record"))?;
                self.synced(number);
                self.settled();
                if keyspace.own_options() != wanted {
                    return Err(format!(
                        "{name} was created with {:?}, expected {wanted:?}",
                        keyspace.own_options()
                    ));
                }
                self.reach("keyspace.created");
                Ok(Some(keyspace))
            }
            Err(e) => {
                self.allow(&e, &[ErrorKind::InvalidArgument], "create")?;
                Ok(None)
            }
        }
    }

    /// Records that all settings so far are durable.
    fn settled(&self) {
        let number = lock(&self.history).settings.settle();
        self.medium.mark(format!("o{number}"));
    }

    /// Drops a keyspace.
    ///
    /// # Errors
    /// A wrong answer, or an error that is not allowed.
    pub fn drop_keyspace(&self, keyspace: &Keyspace) -> Check {
        let id = keyspace.id();
        let hangs = self.other_executors.hangs_in(id);
        let _begun = self.begin(Promise::Drop);
        if let Err(e) = self.store.drop_keyspace(keyspace.name()) {
            let mut history = lock(&self.history);
            let dropped = |e: &Event| matches!(e, Event::Drop(i) if *i == id);
            if e.kind() == ErrorKind::Poisoned && history.model.number_of_change(dropped).is_none()
            {
                history.doubtful_drop = Some(id);
            }
            drop(history);
            let also = [ErrorKind::NotFound, ErrorKind::KeyspaceDropped];
            return self.allow(&e, &also, "drop");
        }
        // A keyspace with the same name may have been created in between: the record names the
        // dropped one.
        let error = keyspace.get(b"x").err().map(|e| e.kind());
        let closing = self.closing.load(Ordering::Relaxed);
        let gone = error == Some(ErrorKind::KeyspaceDropped)
            || closing && error == Some(ErrorKind::Closed);
        let mut history = lock(&self.history);
        let number = history.model.number_of_change(
            |e| matches!(e, Event::Drop(i) | Event::DropWithoutRecord(i) if *i == id),
        );
        if number.is_some() && !gone {
            return Err(format!("a get from a dropped keyspace gives {error:?}"));
        }
        let number = number.or_else(|| {
            // On a full disk only the manifest has the drop.
            let silent = gone && self.errors != Errors::Fatal;
            silent.then(|| {
                history.model.push(Record {
                    first: 0,
                    event: Event::DropWithoutRecord(id),
                });
                history.model.last()
            })
        });
        drop(history);
        if let Some(number) = number {
            self.synced(number);
        }
        self.reach("keyspace.dropped");
        if hangs {
            self.reach("elsewhere.dropped_with_a_hung_job");
        }
        Ok(())
    }

    /// Whether a message names a file that was damaged.
    fn names_damage(&self, message: &str) -> bool {
        let damaged = self.damaged.lock().unwrap_or_else(|e| e.into_inner());
        damaged.iter().any(|name| message.contains(name.as_str()))
    }

    /// Whether a message is about an injected fault.
    pub(crate) fn is_excused(&self, message: &str) -> bool {
        match self.errors {
            Errors::Fatal => false,
            Errors::Expected | Errors::Outages => message.contains("injected"),
            Errors::Damaged => self.names_damage(message),
        }
    }

    /// Checks that a store at rest whose storage executes all calls has no pending work: no edit
    /// waits, every ingest is in the manifest, and no empty part of the log is held. Then it
    /// flushes everything and checks that the log is not needed any more.
    ///
    /// # Errors
    /// Work is pending; the error says what.
    pub fn nothing_is_pending(&self) -> Check {
        let hooks = self.store.test_hooks();
        let mut pending = String::new();
        // The store retries work that found no space or met a fault, in rounds.
        for round in 0..8 {
            if round > 0 {
                self.runtime.sleep(Duration::from_secs(1));
            }
            match self.pending_work(&hooks)? {
                None => {
                    self.reach("nothing.pending");
                    return Ok(());
                }
                Some(work) => pending = work,
            }
        }
        Err(format!("a store at rest: {pending}"))
    }

    fn pending_work(
        &self,
        hooks: &siltstone::testing::TestHooks,
    ) -> Result<Option<String>, String> {
        let edits = hooks.pending_edit_count();
        if edits > 0 {
            return Ok(Some(format!("{edits} edits wait for room")));
        }
        for name in self.store.keyspaces() {
            let keyspace = self.store.keyspace(&name).map_err(|e| e.to_string())?;
            let runs = hooks.unsettled_run_count(&keyspace);
            if runs > 0 {
                return Ok(Some(format!(
                    "{runs} ingested runs of {name} are not settled"
                )));
            }
        }
        if let Err(holes) = self.slots_meet() {
            return Ok(Some(holes));
        }
        let holds = hooks.needless_log_holds();
        if !holds.is_empty() {
            return Ok(Some(format!("the log is kept for nothing: {holds:?}")));
        }
        let flushed = self
            .store
            .flush()
            .and_then(|()| self.store.wait_until_idle());
        if let Err(e) = flushed {
            return Ok(Some(format!("everything is to be flushed: {e}")));
        }
        let (needed, end) = hooks.log_need();
        Ok((needed != end).then(|| {
            format!(
                "all is flushed, and the log is needed from segment {needed} on; it ends in {end}"
            )
        }))
    }

    /// Checks that the sources of each keyspace cover all numbers between them: sources on both
    /// sides of a hole would never merge.
    ///
    /// # Errors
    /// There is a hole.
    pub fn slots_meet(&self) -> Check {
        let hooks = self.store.test_hooks();
        for name in self.store.keyspaces() {
            let Ok(keyspace) = self.store.keyspace(&name) else {
                continue;
            };
            let holes = hooks.slot_holes(&keyspace);
            if !holes.is_empty() {
                return Err(format!(
                    "numbers between sources of {name} are nobody's: {holes:?}"
                ));
            }
        }
        Ok(())
    }

    /// Whether a message only says that the store is closed, if a task closed it.
    pub(crate) fn is_closed(&self, message: &str) -> bool {
        self.closing.load(Ordering::Relaxed) && message.contains("the store is closed")
    }

    /// Returns `Ok` if a message is about an injected fault.
    pub(crate) fn excuse(&self, message: String) -> Check {
        if self.is_excused(&message) {
            self.reach("fault.excused");
            return Ok(());
        }
        Err(message)
    }
}

/// The number of bytes of keys and values.
fn bytes_of(ops: &[Op]) -> usize {
    let bytes = |op: &Op| match op {
        Op::Put(_, key, value) => key.len() + value.len(),
        Op::Delete(_, key) => key.len(),
        Op::DeleteRange(_, start, end) => start.len() + end.len(),
    };
    ops.iter().map(bytes).sum()
}
