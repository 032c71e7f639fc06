//! One open store, and what is done to it: every operation announces what it is about to write,
//! does it, notes what was promised, and checks what it gave.
//!
//! What it is: [`World`] is what the clients of a store share, and what stories play on.
//! [`write`](World::write), [`create`](World::create) and [`drop_keyspace`](World::drop_keyspace)
//! are here; tables from outside in [`outside`], checkpoints, settings and verification in
//! [`upkeep`].
//!
//! Invariants: an operation that failed in a way that its documentation does not allow ends the
//! run.
//!
//! Threading: shared by the tasks of a run; what it holds is under std mutexes that are held over
//! no point of the runtime, but for `turn`.

mod leaks;
pub mod outside;
pub mod upkeep;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex as StdMutex};
use std::time::Duration;

use siltstone::batch::BatchBody;
use siltstone::{ErrorKind, Keyspace, KeyspaceOptions, Store, WriteOptions};
use siltstone_storage::{Instant, MemoryStorage, Mutex, Runtime, Storage};

use crate::checker::Check;
use crate::coverage::Coverage;
use crate::model::{Event, Op, Record};
use crate::observe::{SharedHistory, lock};
use crate::workload::Plan;
use upkeep::Copy;

/// Kinds of [`Promise`]: the remainder of a number in a mark says which it is.
pub(crate) const PROMISES: u64 = 8;

/// How a run takes errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// Any is a failure.
    Fatal,
    /// Storage faults are injected: calls may fail, but never lie.
    Expected,
    /// Files were damaged behind the store's back: calls may fail, naming one of them, but never
    /// lie.
    Damaged,
}

/// See the module.
pub struct World {
    /// The runtime.
    pub runtime: Runtime,
    /// The store.
    pub store: Store,
    /// The medium below everything, for marks in its journal.
    pub medium: MemoryStorage,
    /// As the store sees it: ingested tables are written here.
    pub storage: Arc<dyn Storage>,
    /// A folder of tables that belong to no store.
    pub outside: Arc<dyn Storage>,
    /// What was written.
    pub history: SharedHistory,
    /// The seed's plan.
    pub plan: Arc<Plan>,
    /// Executors beside the host's own are offered jobs.
    pub has_strangers: bool,
    /// What was reached.
    pub coverage: StdMutex<Coverage>,
    /// How errors are taken.
    pub errors: Errors,
    /// Storage faults were injected earlier in this life: settings may count that were not kept,
    /// drops may have no number.
    pub was_faulty: bool,
    /// Files that were damaged.
    pub damaged: StdMutex<BTreeSet<String>>,
    /// The store syncs every write.
    pub synced_writes: bool,
    /// The store syncs by itself what is older than this.
    pub interval: Option<Duration>,
    /// What was acknowledged since, and when.
    pub young: StdMutex<VecDeque<(Instant, u64)>>,
    /// What the store was opened with for single keyspaces.
    pub wishes: BTreeMap<String, KeyspaceOptions>,
    /// Numbers for names of ingested tables.
    pub next_name: Arc<AtomicU64>,
    /// Checkpoints that are looked at again later.
    pub copies: Arc<StdMutex<Vec<Copy>>>,
    /// How many promises were begun.
    pub begun: AtomicU64,
    /// Whoever creates a keyspace or changes settings: one at a time, so that the model knows the
    /// order.
    pub turn: Mutex<()>,
    /// Somebody is closing the store, or has closed it: from then on any call may be refused.
    pub closing: AtomicBool,
    /// Where memory for memtables is refused: the keyspaces whose groups may be too large for what
    /// there is.
    pub starved: StdMutex<Option<BTreeSet<u32>>>,
}

/// What the store says when it gets no memory for a memtable.
const NO_MEMORY: &str = "no memory for a memtable";

/// From this size on a memtable's memory is refused where a run says so, in bytes: more than any
/// that is not made for one large batch.
const REFUSED_BYTES: usize = 900 << 10;

/// Batches of fewer bytes than this do not come near [`REFUSED_BYTES`], however many of them share
/// a group.
const SMALL_BYTES: usize = 128 << 10;

/// What promises to be durable when it ends: a run is cut off inside each kind as often as inside
/// any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// A batch that is to be synced.
    Batch,
    /// A sync of the log.
    SyncLog,
    /// A flush.
    Flush,
    /// A keyspace is created.
    Create,
    /// A keyspace is dropped.
    Drop,
    /// Tables are ingested.
    Ingest,
    /// A checkpoint.
    Checkpoint,
    /// Settings of a keyspace.
    Settings,
}

/// Notes the end of what was begun.
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
    /// The same open store once its storage does all that it is told: from now on no error may
    /// come.
    pub fn mended(&self) -> Arc<World> {
        Arc::new(World {
            runtime: self.runtime.clone(),
            store: self.store.clone(),
            medium: self.medium.clone(),
            storage: self.storage.clone(),
            outside: self.outside.clone(),
            history: self.history.clone(),
            plan: self.plan.clone(),
            has_strangers: self.has_strangers,
            coverage: StdMutex::default(),
            errors: Errors::Fatal,
            was_faulty: true,
            damaged: StdMutex::default(),
            synced_writes: self.synced_writes,
            // Of what was written while syncs failed nobody knows when it was synced.
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

    /// Notes in the journal, from here until what it gives is dropped, that something is under way
    /// that will be a promise.
    pub fn begin(&self, promise: Promise) -> Begun<'_> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed) * PROMISES + promise as u64;
        self.medium.mark(format!("b{number}"));
        Begun {
            medium: &self.medium,
            number,
        }
    }

    /// Counts something that was reached.
    pub fn reach(&self, name: &str) {
        self.coverage
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .add(name);
    }

    /// Notes that everything up to `number` was acknowledged.
    pub fn acked(&self, number: u64) {
        let mut history = lock(&self.history);
        let number = history.model.end_at(number);
        if number > history.acked {
            history.acked = number;
            drop(history);
            self.medium.mark(format!("a{number}"));
        }
    }

    /// Notes that everything up to `number` was promised to survive power loss.
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

    /// Notes what has become older than the interval of the store's own sync. Nothing that a sync
    /// waits for takes simulated time, as long as no fault is injected; so what is older by any
    /// time is synced.
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

    /// Ok if the error may come, else the run's failure.
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
        let told = match self.errors {
            Errors::Fatal => false,
            Errors::Expected => injected && !error.to_string().contains(NO_MEMORY),
            Errors::Damaged => {
                (injected || error.kind() == ErrorKind::Corruption)
                    && self.names_damage(&error.to_string())
            }
        };
        if told {
            self.reach(&format!("fault.error.{}", error.kind()));
            return Ok(());
        }
        Err(format!("{what}: {error}"))
    }

    /// Announces `ops`, has `write` write them as one batch, and notes what was promised.
    ///
    /// # Errors
    /// A wrong answer or an error that may not come.
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
            Ok(()) => {
                let published = self.store.snapshot().number();
                let own = {
                    let history = lock(&self.history);
                    let has = |e: &Event| match e {
                        Event::Group(all) => all.windows(ops.len()).any(|w| w == &ops[..]),
                        _ => false,
                    };
                    // If two clients write the same at the same time, it may be the other's, which
                    // came first.
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
                if sync || self.synced_writes {
                    self.synced(last);
                } else {
                    self.acked(last);
                    if self.interval.is_some() {
                        let now = self.runtime.now();
                        let mut young = self.young.lock().unwrap_or_else(|e| e.into_inner());
                        young.push_back((now, last));
                    }
                }
                Ok(())
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

    /// From now on large memtables get no memory.
    pub fn starve(&self) {
        let mut starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        starved.get_or_insert_default();
    }

    /// Notes, where memory is refused, whose groups a large batch makes too large.
    fn note_large(&self, ops: &[Op]) {
        let mut starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(starved) = &mut *starved
            && bytes_of(ops) > SMALL_BYTES
        {
            starved.extend(ops.iter().map(Op::keyspace));
        }
    }

    /// Whether a batch may be refused memory: it, or one that may share its group, is large, in one
    /// of the keyspaces that it touches.
    fn is_starved(&self, ops: &[Op]) -> bool {
        let starved = self.starved.lock().unwrap_or_else(|e| e.into_inner());
        let is_starved = |op: &Op| starved.as_ref().is_some_and(|s| s.contains(&op.keyspace()));
        ops.iter().any(is_starved)
    }

    /// Writes a value for which no memtable gets memory; batches of others, which may share its
    /// group, are not to be refused with it.
    ///
    /// # Errors
    /// As [`World::write`].
    pub fn write_too_much(&self, keyspace: &Keyspace) -> Check {
        let hooks = self.store.core_for_tests();
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
        // The body names keyspaces by number, so it can also name one that was dropped meanwhile.
        let mut batch = BatchBody::new();
        for op in &ops {
            match op {
                Op::Put(id, key, value) => batch.put(*id, key, value),
                Op::Delete(id, key) => batch.delete(*id, key),
                Op::DeleteRange(id, start, end) => batch.delete_range(*id, start, end),
            }
            .map_err(|e| e.to_string())?;
        }
        let batch = self.store.core_for_tests().batch_of(batch);
        self.write(ops, sync, |store, sync| {
            store.write(&batch, WriteOptions { sync })
        })
    }

    /// Creates a keyspace with settings of its own; none if it could not be.
    ///
    /// # Errors
    /// A wrong answer or an error that may not come.
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

    /// Everything that was set so far is durable.
    fn settled(&self) {
        let number = lock(&self.history).settings.settle();
        self.medium.mark(format!("o{number}"));
    }

    /// Drops a keyspace.
    ///
    /// # Errors
    /// A wrong answer or an error that may not come.
    pub fn drop_keyspace(&self, keyspace: &Keyspace) -> Check {
        let id = keyspace.id();
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
        // Another of the same name may have come in between: the record names the one that went.
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
            // Without room the manifest alone says it.
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
        Ok(())
    }

    /// Whether a message names a file that was damaged.
    fn names_damage(&self, message: &str) -> bool {
        let damaged = self.damaged.lock().unwrap_or_else(|e| e.into_inner());
        damaged.iter().any(|name| message.contains(name.as_str()))
    }

    /// Whether a message is of a fault that was injected.
    pub(crate) fn is_excused(&self, message: &str) -> bool {
        match self.errors {
            Errors::Fatal => false,
            Errors::Expected => message.contains("injected"),
            Errors::Damaged => self.names_damage(message),
        }
    }

    /// Asks of a store at rest, whose storage does all it is told, that it owes nothing: no edit
    /// waits, no ingest is unsettled, nothing keeps the log that has nothing in it. Then everything
    /// can be flushed, and the log is not needed any more.
    ///
    /// # Errors
    /// What it owes.
    pub fn nothing_is_owed(&self) -> Check {
        let hooks = self.store.core_for_tests();
        let mut told = String::new();
        // What found no room or met a fault is tried again in rounds.
        for round in 0..8 {
            if round > 0 {
                self.runtime.sleep(Duration::from_secs(1));
            }
            match self.owed(&hooks)? {
                None => {
                    self.reach("nothing.owed");
                    return Ok(());
                }
                Some(owed) => told = owed,
            }
        }
        Err(format!("a store at rest: {told}"))
    }

    fn owed(&self, hooks: &siltstone::testing::TestHooks) -> Result<Option<String>, String> {
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
        let pins = hooks.needless_log_pins();
        if !pins.is_empty() {
            return Ok(Some(format!("the log is kept for nothing: {pins:?}")));
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

    /// Asks that the sources of each keyspace have all numbers between them: those on both sides of
    /// a hole would never merge.
    ///
    /// # Errors
    /// A hole.
    pub fn slots_meet(&self) -> Check {
        let hooks = self.store.core_for_tests();
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

    /// Whether a message says no more than that the store is closed, where somebody closed it.
    pub(crate) fn is_closed(&self, message: &str) -> bool {
        self.closing.load(Ordering::Relaxed) && message.contains("the store is closed")
    }

    /// Ok if a message is of a fault that was injected.
    pub(crate) fn excuse(&self, message: String) -> Check {
        if self.is_excused(&message) {
            self.reach("fault.excused");
            return Ok(());
        }
        Err(message)
    }
}

/// Bytes of keys and values.
fn bytes_of(ops: &[Op]) -> usize {
    let bytes = |op: &Op| match op {
        Op::Put(_, key, value) => key.len() + value.len(),
        Op::Delete(_, key) => key.len(),
        Op::DeleteRange(_, start, end) => start.len() + end.len(),
    };
    ops.iter().map(bytes).sum()
}
