//! Histories of overlapping operations, and whether they are linearizable ([`crate::linear`]).
//!
//! Clients write and read a few keys of two keyspaces in a store whose memtables are so small that
//! flushes and compactions run all the time. [`linearizable_trial`] does this on the simulated
//! runtime, in several lives: the process dies at a storage call, or the power fails too if every
//! write was synced, and the history continues with the remaining data. [`threads`] does it with
//! threads of the operating system on a folder, in processes that are killed or closed.
//!
//! Every value is written once, so that an answer identifies the write that it saw. An operation
//! whose end a client did not see is cut off: it took effect or not, permanently.
//!
//! Threading: a client is one thread or task; it records its operations in a list of its own.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::{
    Batch, Components, DEFAULT_KEYSPACE, FlushVerify, IterOptions, Keyspace, Options, Snapshot,
    Store, SyncMode, WriteOptions,
};
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::sim::{Reclaim, SimConfig, run};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::linear::{Action, End, Key, Operation, Value, check};
use crate::rng::Rng;

mod history_file;
pub mod threads;

use history_file::HistoryFile;

/// The number of keys of one keyspace; there are two keyspaces.
const KEYS: Key = 8;

/// The number of operations of a history.
const OPERATIONS: usize = 1000;

/// The maximum number of steps of the search for an order; a history of this size takes a hundred
/// thousand.
const STEPS_MAX: u64 = 10_000_000;

/// The time that all clients of a history share.
#[derive(Clone)]
pub(super) enum Clock {
    /// A counter that grows with every read of it, because simulated time stands still. It orders
    /// the operations that read it, so real threads do not use it.
    Ticks(Arc<AtomicU64>),
    /// Nanoseconds of the machine's monotonic clock, relative to this instant.
    Machine(u64),
}

impl Clock {
    /// A clock for one simulated run.
    pub(super) fn ticks() -> Clock {
        Clock::Ticks(Arc::default())
    }

    pub(super) fn now(&self) -> u64 {
        match self {
            Clock::Ticks(ticks) => ticks.fetch_add(1, Ordering::Relaxed),
            Clock::Machine(base) => base + threads::machine_nanos(),
        }
    }
}

/// The operations of one client, which outlive it.
#[derive(Clone)]
pub(super) struct Notes {
    clock: Clock,
    client: u32,
    operations: Arc<Mutex<Vec<Operation>>>,
    /// A file to which the operations are also written, so that they outlive the process.
    history_file: Option<Arc<HistoryFile>>,
}

impl Notes {
    pub(super) fn new(clock: &Clock, client: u32) -> Notes {
        Notes {
            clock: clock.clone(),
            client,
            operations: Arc::default(),
            history_file: None,
        }
    }

    pub(super) fn client(&self) -> u32 {
        self.client
    }

    fn with<T>(&self, f: impl FnOnce(&mut Vec<Operation>) -> T) -> T {
        f(&mut self.operations.lock().unwrap_or_else(|e| e.into_inner()))
    }

    fn push(&self, name: &'static str, called: u64, end: End, action: Action) -> usize {
        let operation = Operation {
            name,
            client: self.client,
            called,
            end,
            action,
        };
        if let Some(history_file) = &self.history_file {
            history_file.began(&operation);
        }
        self.with(|operations| {
            operations.push(operation);
            operations.len() - 1
        })
    }

    /// Adds the pairs that a later read of the snapshot showed.
    fn more(&self, at: usize, pairs: Vec<(Key, Value)>) {
        if let Some(history_file) = &self.history_file {
            history_file.more(at, &pairs);
        }
        self.with(|operations| match &mut operations[at].action {
            Action::Read(all) | Action::Write(all) => all.extend(pairs),
        });
    }

    /// Makes a write. It is recorded before it is made, because a client that is cut off may have
    /// called it.
    fn write(
        &self,
        name: &'static str,
        pairs: Vec<(Key, Value)>,
        write: impl FnOnce() -> siltstone::Result<()>,
    ) -> Result<(), String> {
        let at = self.push(
            name,
            self.clock.now(),
            End::Cut(u64::MAX),
            Action::Write(pairs),
        );
        write().map_err(|e| format!("{name}: {e}"))?;
        let returned = self.clock.now();
        if let Some(history_file) = &self.history_file {
            history_file.returned(at, returned);
        }
        self.with(|operations| operations[at].end = End::Returned(returned));
        Ok(())
    }

    /// Makes a read, and records it with its answer. A read without an answer is no constraint.
    fn read<T>(
        &self,
        name: &'static str,
        read: impl FnOnce() -> siltstone::Result<T>,
        pairs: impl FnOnce(&T) -> Result<Vec<(Key, Value)>, String>,
    ) -> Result<(usize, T), String> {
        let called = self.clock.now();
        let answer = read().map_err(|e| format!("{name}: {e}"))?;
        let end = End::Returned(self.clock.now());
        let pairs = pairs(&answer).map_err(|e| format!("{name}: {e}"))?;
        Ok((self.push(name, called, end, Action::Read(pairs)), answer))
    }

    /// All operations. Operations without an end were cut off by `over`.
    pub(super) fn take(&self, over: u64) -> Vec<Operation> {
        let mut operations = self.with(std::mem::take);
        for operation in &mut operations {
            if operation.end == End::Cut(u64::MAX) {
                operation.end = End::Cut(over);
            }
        }
        operations
    }
}

/// The bytes of a value: its number, and enough bytes to fill memtables soon.
fn bytes_of(number: u64) -> Vec<u8> {
    let mut rng = Rng::new(number);
    let len = 8 + rng.index(1500);
    let filler = rng.draw().to_le_bytes();
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(filler.iter().cycle().take(len - 8));
    bytes
}

fn number_of(bytes: &[u8]) -> Result<u64, String> {
    let number = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
    match number {
        Some(number) if bytes_of(number) == bytes => Ok(number),
        _ => Err(format!("{} bytes that nobody wrote", bytes.len())),
    }
}

fn key_bytes(key: Key) -> [u8; 2] {
    [b'k', (key % KEYS) as u8]
}

/// A client.
pub(super) struct Client {
    runtime: Runtime,
    store: Store,
    keyspaces: [Keyspace; 2],
    notes: Notes,
    rng: Rng,
    /// The number of its next value.
    next: u64,
    /// Snapshots that the client holds, with their indexes in the notes.
    snapshots: Vec<(Snapshot, usize)>,
    buffer: Vec<u8>,
    /// The percentage of operations after which the client sleeps, in simulation only.
    sleeps: u64,
}

/// The keyspaces, created by the first client that needs them.
fn keyspaces(store: &Store) -> siltstone::Result<[Keyspace; 2]> {
    Ok([
        store.keyspace(DEFAULT_KEYSPACE)?,
        store.open_keyspace("other")?,
    ])
}

impl Client {
    pub(super) fn new(
        runtime: &Runtime,
        store: &Store,
        notes: &Notes,
        seed: u64,
    ) -> Result<Client, String> {
        let mut rng = Rng::new(seed);
        let sleeps = match runtime.is_simulated() {
            true => *rng.pick(&[0, 0, 20]),
            false => 0,
        };
        Ok(Client {
            runtime: runtime.clone(),
            keyspaces: keyspaces(store).map_err(|e| format!("keyspaces: {e}"))?,
            store: store.clone(),
            rng,
            sleeps,
            next: u64::from(notes.client) << 32,
            notes: notes.clone(),
            snapshots: Vec::new(),
            buffer: Vec::new(),
        })
    }

    fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn key(&mut self) -> Key {
        self.rng.below(2 * u64::from(KEYS)) as Key
    }

    fn keyspace(&self, key: Key) -> &Keyspace {
        &self.keyspaces[(key / KEYS) as usize]
    }

    /// A few neighbouring keys of one keyspace: the first one, and their number.
    fn span(&mut self) -> std::ops::Range<Key> {
        let first = self.key();
        let end = (first / KEYS + 1) * KEYS;
        first..(first + 1 + self.rng.below(5) as Key).min(end)
    }

    pub(super) fn work(&mut self, count: usize) -> Result<(), String> {
        for _ in 0..count {
            self.step()?;
            if self.rng.chance(self.sleeps) {
                self.runtime
                    .sleep(Duration::from_micros(1 + self.rng.below(500)));
            }
            if self.rng.chance(30) {
                self.runtime.yield_point();
                if !self.runtime.is_simulated() {
                    std::thread::yield_now();
                }
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        match self.rng.below(100) {
            0..20 => self.put(),
            20..27 => self.delete(),
            27..41 => self.batch(),
            41..44 => self.delete_range(),
            44..66 => self.get(),
            66..73 => self.multi_get(),
            73..83 => self.scan(),
            83..89 => self.snapshot(),
            89..98 => self.read_snapshot(),
            98 => self.maintain(),
            _ => {
                self.snapshots.clear();
                Ok(())
            }
        }
    }

    fn put(&mut self) -> Result<(), String> {
        let (key, value) = (self.key(), self.value());
        let keyspace = self.keyspace(key);
        self.notes.write("put", vec![(key, Some(value))], || {
            keyspace.put(&key_bytes(key), &bytes_of(value))
        })
    }

    fn delete(&mut self) -> Result<(), String> {
        let key = self.key();
        let keyspace = self.keyspace(key);
        self.notes.write("delete", vec![(key, None)], || {
            keyspace.delete(&key_bytes(key))
        })
    }

    fn delete_range(&mut self) -> Result<(), String> {
        let span = self.span();
        let keyspace = self.keyspace(span.start);
        let end = [b'k', ((span.end - 1) % KEYS) as u8 + 1];
        let pairs = span.clone().map(|key| (key, None)).collect();
        self.notes.write("delete_range", pairs, || {
            keyspace.delete_range(&key_bytes(span.start), &end)
        })
    }

    fn batch(&mut self) -> Result<(), String> {
        let mut batch = Batch::new();
        let mut pairs = Vec::new();
        for _ in 0..2 + self.rng.below(4) {
            let key = self.key();
            let value = (!self.rng.chance(20)).then(|| self.value());
            let keyspace = self.keyspace(key);
            let added = match value {
                Some(value) => batch.put(keyspace, &key_bytes(key), &bytes_of(value)),
                None => batch.delete(keyspace, &key_bytes(key)),
            };
            added.map_err(|e| format!("batch: {e}"))?;
            pairs.push((key, value));
        }
        let sync = self.rng.chance(10);
        self.notes.write("batch", pairs, || {
            self.store.write(
                &batch,
                WriteOptions {
                    sync,
                    ..WriteOptions::default()
                },
            )
        })
    }

    fn get(&mut self) -> Result<(), String> {
        let key = self.key();
        let keyspace = &self.keyspaces[(key / KEYS) as usize];
        let pairs = |value: Option<&[u8]>| {
            let number = value.map(number_of).transpose()?;
            Ok(vec![(key, number)])
        };
        if self.rng.chance(20) {
            let read = || keyspace.get_pinned(&key_bytes(key));
            self.notes
                .read("get_pinned", read, |found| pairs(found.as_deref()))?;
        } else {
            let buffer = &mut self.buffer;
            let read = || {
                let found = keyspace.get_into(&key_bytes(key), buffer)?;
                Ok(found.then(|| buffer.clone()))
            };
            self.notes
                .read("get", read, |found| pairs(found.as_deref()))?;
        }
        Ok(())
    }

    fn multi_get(&mut self) -> Result<(), String> {
        let span = self.span();
        let keyspace = self.keyspace(span.start);
        let keys: Vec<[u8; 2]> = span.clone().map(key_bytes).collect();
        self.notes.read(
            "multi_get",
            || keyspace.multi_get(&keys),
            |found| numbered(span, found),
        )?;
        Ok(())
    }

    fn scan(&mut self) -> Result<(), String> {
        let span = self.span();
        let backwards = self.rng.chance(40);
        let keyspace = self.keyspace(span.start);
        let name = if backwards { "scan_back" } else { "scan" };
        let read = || scan(keyspace, None, &span, backwards);
        self.notes.read(name, read, |found| shown(&span, found))?;
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), String> {
        let take = || Ok(self.store.snapshot());
        let (at, snapshot) = self.notes.read("snapshot", take, |_| Ok(Vec::new()))?;
        self.snapshots.push((snapshot, at));
        if self.snapshots.len() > 3 {
            let gone = self.rng.index(4);
            self.snapshots.swap_remove(gone);
        }
        Ok(())
    }

    /// The answer of a snapshot belongs to the moment of its creation.
    fn read_snapshot(&mut self) -> Result<(), String> {
        if self.snapshots.is_empty() {
            return self.get();
        }
        let which = self.rng.index(self.snapshots.len());
        let span = self.span();
        let way = self.rng.below(3);
        let keyspace = self.keyspace(span.start);
        let (snapshot, at) = &self.snapshots[which];
        let with_context = |e: siltstone::Error| format!("reading a snapshot: {e}");
        let pairs = match way {
            0 => {
                let key = span.start;
                let found = keyspace
                    .get_at(snapshot, &key_bytes(key))
                    .map_err(with_context)?;
                vec![(key, found.as_deref().map(number_of).transpose()?)]
            }
            1 => {
                let keys: Vec<[u8; 2]> = span.clone().map(key_bytes).collect();
                let found = keyspace
                    .multi_get_at(snapshot, &keys)
                    .map_err(with_context)?;
                numbered(span, &found)?
            }
            _ => {
                let backwards = self.rng.chance(40);
                let keyspace = self.keyspace(span.start);
                let found =
                    scan(keyspace, Some(snapshot), &span, backwards).map_err(with_context)?;
                shown(&span, &found)?
            }
        };
        self.notes.more(*at, pairs);
        Ok(())
    }

    /// Runs maintenance operations besides the automatic ones. They are not recorded.
    fn maintain(&mut self) -> Result<(), String> {
        let keyspace = self.rng.pick(&self.keyspaces);
        match self.rng.below(3) {
            0 => keyspace.compact_range(None, None),
            _ => keyspace.flush(),
        }
        .map_err(|e| format!("maintenance: {e}"))
    }

    /// Reads everything as of one moment.
    pub(super) fn look(&mut self) -> Result<(), String> {
        self.snapshot()?;
        let Some((snapshot, at)) = self.snapshots.pop() else {
            return Ok(());
        };
        for keyspace in 0..2 {
            let span = keyspace * KEYS..(keyspace + 1) * KEYS;
            let found = scan(self.keyspace(span.start), Some(&snapshot), &span, false)
                .map_err(|e| format!("looking at everything: {e}"))?;
            let pairs = shown(&span, &found)?;
            self.notes.more(at, pairs);
        }
        Ok(())
    }
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The pairs that a cursor shows in a span of keys.
fn scan(
    keyspace: &Keyspace,
    snapshot: Option<&Snapshot>,
    span: &std::ops::Range<Key>,
    backwards: bool,
) -> siltstone::Result<Pairs> {
    let range = IterOptions::range(key_bytes(span.start)..=key_bytes(span.end - 1));
    let mut cursor = match snapshot {
        Some(snapshot) => keyspace.cursor_at(snapshot, range)?,
        None => keyspace.cursor(range)?,
    };
    let mut found = Vec::new();
    if backwards {
        cursor.seek_to_last()?;
    } else {
        cursor.seek_to_first()?;
    }
    while cursor.valid() {
        found.push((cursor.key().to_vec(), cursor.value().to_vec()));
        if backwards {
            cursor.prev()?;
        } else {
            cursor.next()?;
        }
    }
    if backwards {
        found.reverse();
    }
    Ok(found)
}

/// A scan, recorded as a read of all keys of the span, including those without a value.
fn shown(span: &std::ops::Range<Key>, found: &Pairs) -> Result<Vec<(Key, Value)>, String> {
    let mut left = found.iter().peekable();
    let mut pairs = Vec::new();
    for key in span.clone() {
        let value = left.next_if(|(bytes, _)| bytes[..] == key_bytes(key));
        let number = value.map(|(_, value)| number_of(value)).transpose()?;
        pairs.push((key, number));
    }
    match left.next() {
        None => Ok(pairs),
        Some((key, _)) => Err(format!("key {key:?} out of order or out of bounds")),
    }
}

fn numbered(
    span: std::ops::Range<Key>,
    found: &[Option<Vec<u8>>],
) -> Result<Vec<(Key, Value)>, String> {
    span.zip(found)
        .map(|(key, value)| Ok((key, value.as_deref().map(number_of).transpose()?)))
        .collect()
}

/// Small sizes, so that a few hundred operations reach every mechanism.
pub(super) fn draw_options(rng: &mut Rng) -> Options {
    let trigger = 1 + rng.below(3) as u32;
    let segment = *rng.pick(&[64 << 10, 128 << 10]);
    Options {
        sync: match rng.below(4) {
            0 => SyncMode::Always,
            1 => SyncMode::Interval(Duration::from_micros(100 + rng.below(5000))),
            _ => SyncMode::Never,
        },
        flush_verify: FlushVerify::All,
        memtable_bytes: 64 << 10,
        sealed_memtables_max: 1 + rng.below(3) as u32,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        block_bytes: 1 << 10 << rng.below(3),
        l0_trigger_count: trigger,
        l0_slowdown_count: trigger + 1 + rng.below(3) as u32,
        l0_stop_count: trigger + 4 + rng.below(3) as u32,
        log_segment_bytes: segment,
        log_bytes_max: segment * (2 + rng.below(4)),
        block_cache_bytes: *rng.pick(&[0, 8 << 10, 1 << 20]),
        map_tables: rng.chance(50),
        background_tasks: 1 + rng.below(3) as u32,
        subjobs_max: 1 + rng.below(2) as u32,
        ..Options::default()
    }
}

/// Counts the events of the history, and checks that the history has an order.
pub(super) fn verdict(
    mut operations: Vec<Operation>,
    coverage: &mut Coverage,
) -> Result<(), String> {
    operations.sort_by_key(|o| o.called);
    coverage.add("history");
    coverage.add_count("history.operations", operations.len() as u64);
    let mut beside = 0;
    let mut latest = 0;
    for operation in &operations {
        coverage.add(&format!("op.{}", operation.name));
        beside += u64::from(operation.called <= latest);
        latest = latest.max(operation.end.time());
        if let End::Cut(_) = operation.end {
            let Action::Write(pairs) = &operation.action else {
                continue;
            };
            let written = pairs.iter().filter(|(_, value)| value.is_some());
            let seen = written.clone().any(|pair| {
                let later = operations
                    .iter()
                    .filter(|o| o.called > operation.end.time());
                later
                    .filter(|o| !o.action.is_write())
                    .any(|o| o.action.pairs().contains(pair))
            });
            coverage.add(match (seen, written.count()) {
                (true, _) => "cut.took_effect",
                (false, 0) => "cut.wrote_no_value",
                (false, _) => "cut.not_seen",
            });
        }
    }
    coverage.add_count("history.beside_another", beside);
    let steps = check(&operations, STEPS_MAX).result()?;
    coverage.add_count("history.steps", steps);
    Ok(())
}

/// Runs one seed on the simulated runtime: a history of about a thousand operations, through kills
/// and power losses.
///
/// # Panics
/// If no order explains the history, with the operations in conflict; at an unexpected error, panic
/// or hang.
pub fn linearizable_trial(seed: u64) -> Coverage {
    let config = SimConfig {
        max_steps: 3_000_000,
        // Destructors of a store wait for its tasks and answer its writers. The destructors of a
        // killed store cannot do this.
        reclaim: Reclaim::Never,
        ..SimConfig::new(seed)
    };
    let outcome = run(config, move |runtime| {
        history(&runtime, seed).unwrap_or_else(|e| panic!("{e}"))
    });
    let (operations, mut coverage) = outcome.unwrap();
    if let Err(why) = verdict(operations, &mut coverage) {
        panic!("seed {seed}, simulated: {why}");
    }
    coverage
}

/// The end of a life that was not killed.
struct Ended {
    coverage: Coverage,
}

fn history(runtime: &Runtime, seed: u64) -> Result<(Vec<Operation>, Coverage), String> {
    let mut rng = Rng::new(seed);
    let mut coverage = Coverage::default();
    let mut medium = MemoryStorage::new(runtime);
    let clock = Clock::ticks();
    let mut operations: Vec<Operation> = Vec::new();
    let mut next_client = 1;
    while operations.len() < OPERATIONS {
        let options = draw_options(&mut rng);
        let every_write_is_synced = options.sync == SyncMode::Always;
        let faults = FaultStorage::new(Arc::new(medium.clone()), runtime);
        let left = OPERATIONS - operations.len();
        if left > OPERATIONS / 4 {
            let most = *rng.pick(&[40, 400, 4000]);
            faults.add(Rule::on_any(Fault::Die).nth(rng.below(most)));
        }
        let clients = 3 + rng.index(6);
        let count = (20 + rng.index(200)).min(left / clients + 1);
        let notes: Vec<Notes> = (0..clients as u32)
            .map(|i| Notes::new(&clock, next_client + i))
            .collect();
        next_client += clients as u32;
        let opened = Arc::new(Mutex::new(false));
        let process = {
            let (storage, notes) = (Arc::new(faults), notes.clone());
            let (mut rng, opened) = (rng.fork(1), opened.clone());
            let mut more = rng.clone().fork(2);
            runtime.spawn_process("life", move |runtime| {
                // The executors belong to the process, and die with it.
                let other_executors = match more.chance(40) {
                    true => OtherExecutors::draw_some(&runtime, &mut more),
                    false => OtherExecutors::default(),
                };
                let begun = Begun {
                    storage,
                    options,
                    other_executors,
                    opened: &opened,
                };
                life(&runtime, begun, &notes, count, &mut rng)
            })
        };
        let ended = process.map_err(|e| e.to_string())?.join();
        let over = clock.now();
        operations.extend(notes.iter().flat_map(|notes| notes.take(over)));
        medium = match ended {
            Ok(ended) => {
                coverage.merge(&ended?.coverage);
                coverage.add("life.ended");
                medium.kill_in(runtime)
            }
            Err(_) => {
                let opened = *opened.lock().unwrap_or_else(|e| e.into_inner());
                coverage.add(if opened {
                    "life.killed"
                } else {
                    "life.killed_in_open"
                });
                // Writes that an earlier life did not sync are safe once the store was opened
                // again.
                if opened && every_write_is_synced && rng.chance(60) {
                    coverage.add("life.power_lost");
                    let policy = CrashPolicy::Seeded(rng.draw());
                    medium.crash_in(runtime, policy).0
                } else {
                    medium.kill_in(runtime)
                }
            }
        };
    }
    Ok((operations, coverage))
}

/// The state with which a life begins.
struct Begun<'a> {
    storage: Arc<dyn Storage>,
    options: Options,
    other_executors: OtherExecutors,
    /// Whether the store was opened.
    opened: &'a Mutex<bool>,
}

/// A store that is opened, read, changed by clients, and read again.
fn life(
    runtime: &Runtime,
    begun: Begun<'_>,
    notes: &[Notes],
    count: usize,
    rng: &mut Rng,
) -> Result<Ended, String> {
    let components = Components {
        executors: begun.other_executors.executors(),
        ..Components::on(begun.storage, runtime.clone())
    };
    let store = Store::open_with(components, begun.options).map_err(|e| format!("open: {e}"))?;
    *begun.opened.lock().unwrap_or_else(|e| e.into_inner()) = true;
    let mut clients = Vec::new();
    for notes in notes {
        clients.push(Client::new(runtime, &store, notes, rng.draw())?);
    }
    clients[0].look()?;
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|mut client| {
            runtime.spawn(&format!("client-{}", client.notes.client), move || {
                client.work(count).map(|()| client)
            })
        })
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    let mut last = None;
    for task in tasks {
        let client = task
            .join()
            .map_err(|_| "a client ended without an answer".to_string())?;
        last = Some(client?);
    }
    if let Some(client) = &mut last {
        client.look()?;
    }
    drop(last);
    let mut coverage = Coverage::default();
    coverage.take_stats(&store.stats());
    begun.other_executors.take_reached(&mut coverage);
    if rng.chance(50) {
        store.close().map_err(|e| format!("close: {e}"))?;
    }
    Ok(Ended { coverage })
}
