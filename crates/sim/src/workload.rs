//! What is done to a store, from a seed: option sets, shapes of keys and values, and clients that mix all operations.
//!
//! What it is: [`Plan`] is a seed's draw (keys, weights, options); [`Client`] is one writer and reader that works through its own random operations
//! against the [`World`] that it shares with others. Every read is compared with the model at the number at which it was made.
//!
//! Invariants: a client announces what it writes before it writes it (see [`crate::observe`]); everything decided comes from the seed.
//!
//! Threading: clients are tasks of the simulated runtime; what they share is under std mutexes that are held over no point of it.

mod reads;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use siltstone::version::{KeyRange, TableMeta};
use siltstone::{
    Batch, ByLevel, Compression, DirectIo, ErrorKind, Keyspace, KeyspaceOptions, LevelTargets,
    Options, Snapshot, StallPolicy, Store, SyncMode, Verify, WriteOptions,
};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::writer::{TableWriter, WriterOptions};

use crate::checker::Check;
use crate::coverage::Coverage;
use crate::model::{Bytes, Event, Op, Record};
use crate::observe::{SharedHistory, lock};
use crate::rng::Rng;

/// Names that keyspaces are given, over and over.
const NAMES: [&str; 4] = ["default", "a", "b", "c"];

/// A seed's draw of options: small sizes, so that a few hundred operations reach every mechanism.
pub fn draw_options(rng: &mut Rng) -> Options {
    // What came later draws from a stream of its own, so that kept seeds keep their options.
    let mut more = rng.clone().fork(1);
    let table_bytes = 64 << 10 << rng.below(2);
    let trigger = 1 + rng.below(5) as u32;
    let slowdown = trigger + rng.below(6) as u32;
    let segment = *rng.pick(&[64 << 10, 64 << 10, 96 << 10, 256 << 10]);
    Options {
        sync: match rng.below(5) {
            0 => SyncMode::Always,
            1 => SyncMode::Interval(Duration::from_micros(100 + rng.below(20_000))),
            _ => SyncMode::Never,
        },
        memtable_bytes: *rng.pick(&[64 << 10, 64 << 10, 100_000, 256 << 10]),
        sealed_memtables_max: 1 + rng.below(4) as u32,
        table_bytes,
        block_bytes: 1 << 10 << rng.below(4),
        l0_trigger_count: trigger,
        l0_slowdown_count: slowdown,
        l0_stop_count: slowdown + rng.below(8) as u32,
        level1_bytes: table_bytes << rng.below(2),
        level_factor: 2 + rng.below(3) as u32,
        bloom_bits_per_key: (*rng.pick(&[0, 1, 4, 10, 20])).into(),
        compression: (*rng.pick(&[Compression::None, Compression::Lz4])).into(),
        level_targets: *more.pick(&[LevelTargets::Fixed, LevelTargets::Dynamic]),
        keyspaces: draw_own(&mut more, table_bytes),
        stats_publish_ms: *more.pick(&[1000, 1000, 0, 10]),
        verify: *rng.pick(&[Verify::Once, Verify::Always]),
        log_segment_bytes: segment,
        log_bytes_max: segment * (2 + rng.below(5)),
        block_cache_bytes: *rng.pick(&[0, 8 << 10, 1 << 20]),
        open_tables_max: 16 + rng.below(64) as u32,
        map_tables: rng.chance(50),
        background_tasks: 1 + rng.below(3) as u32,
        subjobs_max: 1 + rng.below(4) as u32,
        background_bytes_per_s: *rng.pick(&[0, 0, 0, 4 << 20]),
        direct_io: *more.pick(&[DirectIo::None, DirectIo::Compaction, DirectIo::All]),
        stall_policy: *more.pick(&[
            StallPolicy::Slowdown,
            StallPolicy::Slowdown,
            StallPolicy::Stop,
        ]),
        ..Options::default()
    }
}

/// What some keyspaces are to have of their own: kept from life to life, and changed by each open that wishes something else.
fn draw_own(rng: &mut Rng, table_bytes: u64) -> BTreeMap<String, KeyspaceOptions> {
    let codecs = [
        Compression::None,
        Compression::Lz4,
        Compression::Zstd { level: 1 },
    ];
    let mut all = BTreeMap::new();
    for name in NAMES {
        if !rng.chance(40) {
            continue;
        }
        let by_level: Vec<Compression> =
            (0..1 + rng.below(4)).map(|_| *rng.pick(&codecs)).collect();
        let bits: Vec<u32> = (0..1 + rng.below(4))
            .map(|_| rng.below(21) as u32)
            .collect();
        let stop = 2 + rng.below(12) as u32;
        let own = KeyspaceOptions {
            memtable_bytes: rng.chance(50).then(|| 64 << 10 << rng.below(3)),
            table_bytes: rng.chance(30).then_some(table_bytes),
            block_bytes: rng.chance(30).then(|| 1 << 10 << rng.below(4)),
            l0_stop_count: rng.chance(50).then_some(stop),
            level_targets: rng
                .chance(50)
                .then(|| *rng.pick(&[LevelTargets::Fixed, LevelTargets::Dynamic])),
            compression: ByLevel::of(&by_level),
            bloom_bits_per_key: ByLevel::of(&bits).filter(|_| rng.chance(50)),
            ..KeyspaceOptions::default()
        };
        all.insert(name.to_string(), own);
    }
    all
}

/// The keys of a run: few enough that they meet, of all shapes.
fn draw_keys(rng: &mut Rng) -> Vec<Bytes> {
    let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0], vec![0xff], vec![0xff; 9]];
    let prefix: Vec<u8> = (0..8 + rng.index(40)).map(|_| b'p').collect();
    for i in 0..30 + rng.below(120) {
        keys.push(match rng.below(6) {
            0 => format!("k{i:05}").into_bytes(),
            1 => [&prefix[..], &i.to_be_bytes()[6..]].concat(),
            2 => [&prefix[..], format!("/{}/", i % 7).as_bytes(), &[i as u8]].concat(),
            3 => (0..1 + rng.index(4)).map(|_| rng.draw() as u8).collect(),
            4 => rng.draw().to_be_bytes().to_vec(),
            _ => vec![i as u8; 1 + rng.index(24)],
        });
    }
    for _ in 0..rng.below(4) {
        let len = *rng.pick(&[300, 1000, 5000]);
        let byte = rng.draw() as u8;
        keys.push(
            (0..len)
                .map(|i| if i == len - 1 { rng.draw() as u8 } else { byte })
                .collect(),
        );
    }
    keys.sort();
    keys.dedup();
    keys.into_iter().map(Bytes::from).collect()
}

/// What a seed decides before anything runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All keys, ascending.
    pub keys: Vec<Bytes>,
    /// Largest usual value in bytes.
    pub value_bytes: u64,
    /// In how many of a hundred a value compresses.
    pub compressible_percent: u64,
    /// By [`Action`].
    weights: [u64; ACTIONS.len()],
}

/// What a client can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Put,
    Delete,
    DeleteRange,
    Batch,
    Get,
    MultiGet,
    Scan,
    TakeSnapshot,
    ReadSnapshot,
    DropSnapshot,
    OpenCursor,
    StepCursor,
    RefreshCursor,
    DropCursor,
    Create,
    DropKeyspace,
    Ingest,
    Flush,
    FlushStore,
    CompactRange,
    SyncLog,
    HoldFlush,
    PauseCompaction,
    WaitIdle,
    DeleteObsolete,
}

use Action as A;
const ACTIONS: [(Action, u64); 25] = [
    (A::Put, 220),
    (A::Delete, 60),
    (A::DeleteRange, 25),
    (A::Batch, 200),
    (A::Get, 120),
    (A::MultiGet, 30),
    (A::Scan, 12),
    (A::TakeSnapshot, 15),
    (A::ReadSnapshot, 15),
    (A::DropSnapshot, 12),
    (A::OpenCursor, 12),
    (A::StepCursor, 40),
    (A::RefreshCursor, 10),
    (A::DropCursor, 10),
    (A::Create, 12),
    (A::DropKeyspace, 6),
    (A::Ingest, 14),
    (A::Flush, 16),
    (A::FlushStore, 3),
    (A::CompactRange, 5),
    (A::SyncLog, 12),
    (A::HoldFlush, 12),
    (A::PauseCompaction, 6),
    (A::WaitIdle, 3),
    (A::DeleteObsolete, 6),
];

impl Plan {
    /// A seed's plan.
    pub fn draw(rng: &mut Rng) -> Plan {
        // Each run leans towards other operations: some are rare enough to be left out.
        let weights = ACTIONS.map(|(_, weight)| match rng.below(6) {
            0 => weight / 4,
            1 => weight * 3,
            _ => weight,
        });
        Plan {
            keys: draw_keys(rng),
            value_bytes: *rng.pick(&[40, 300, 1500, 4000]),
            compressible_percent: *rng.pick(&[0, 50, 100]),
            weights,
        }
    }

    fn action(&self, rng: &mut Rng) -> Action {
        let mut at = rng.below(self.weights.iter().sum());
        for ((action, _), weight) in ACTIONS.iter().zip(self.weights) {
            if at < weight {
                return *action;
            }
            at -= weight;
        }
        A::Put
    }

    fn key(&self, rng: &mut Rng) -> Bytes {
        // Some keys are hot.
        let all = if rng.chance(30) {
            self.keys.len().min(8)
        } else {
            self.keys.len()
        };
        self.keys[rng.index(all)].clone()
    }

    fn value(&self, rng: &mut Rng) -> Bytes {
        let len = match rng.below(100) {
            0..8 => 0,
            8..12 => self.value_bytes * 8,
            12 => 70_000,
            _ => rng.below(self.value_bytes),
        } as usize;
        let same = rng.chance(self.compressible_percent);
        let byte = rng.draw();
        let mut value: Vec<u8> = Vec::with_capacity(len + 8);
        while value.len() < len {
            value.extend_from_slice(&if same { byte } else { rng.draw() }.to_le_bytes());
        }
        value.truncate(len);
        value.into()
    }

    fn range(&self, rng: &mut Rng) -> (Bytes, Bytes) {
        let (start, end) = self.any_range(rng);
        // A key of many 0xff lies above the end of everything.
        if start <= end {
            (start, end)
        } else {
            (end, start)
        }
    }

    fn any_range(&self, rng: &mut Rng) -> (Bytes, Bytes) {
        match rng.below(10) {
            // Everything, and everything from somewhere on.
            0 => (Bytes::from(&[][..]), Bytes::from(&[0xff; 12][..])),
            1 => (self.key(rng), Bytes::from(&[0xff; 12][..])),
            // One key.
            2 | 3 => {
                let start = self.key(rng);
                let end = [&start[..], &[0]].concat();
                (start, end.into())
            }
            4..8 => {
                let at = rng.index(self.keys.len());
                let end = (at + 1 + rng.index(6)).min(self.keys.len() - 1).max(at);
                (self.keys[at].clone(), self.keys[end].clone())
            }
            _ => {
                let (a, b) = (self.key(rng), self.key(rng));
                if a <= b { (a, b) } else { (b, a) }
            }
        }
    }

    fn op(&self, id: u32, rng: &mut Rng) -> Op {
        match rng.below(20) {
            0 => {
                let (start, end) = self.range(rng);
                if start < end {
                    Op::DeleteRange(id, start, end)
                } else {
                    Op::Delete(id, start)
                }
            }
            1..5 => Op::Delete(id, self.key(rng)),
            _ => Op::Put(id, self.key(rng), self.value(rng)),
        }
    }
}

/// How a run takes errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// Any is a failure.
    Fatal,
    /// Storage faults are injected: calls may fail, but never lie.
    Expected,
}

/// What the clients of one open store share.
pub struct World {
    /// The runtime.
    pub runtime: Runtime,
    /// The store.
    pub store: Store,
    /// The medium below everything, for marks in its journal.
    pub medium: MemoryStorage,
    /// As the store sees it: ingested tables are written here.
    pub storage: Arc<dyn Storage>,
    /// What was written.
    pub history: SharedHistory,
    /// The seed's plan.
    pub plan: Arc<Plan>,
    /// What was reached.
    pub coverage: Mutex<Coverage>,
    /// How errors are taken.
    pub errors: Errors,
    /// The store syncs every write.
    pub synced_writes: bool,
    /// Numbers for names of ingested tables.
    pub next_name: Arc<AtomicU64>,
}

/// One task that works on the store.
pub struct Client {
    world: Arc<World>,
    rng: Rng,
    snapshots: Vec<Snapshot>,
    cursors: Vec<reads::HeldCursor>,
}

impl World {
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

    /// Ok if the error may come, else the run's failure.
    fn allow(&self, error: &siltstone::Error, also: &[ErrorKind], what: &str) -> Check {
        if also.contains(&error.kind()) {
            self.reach(&format!("error.{}", error.kind()));
            return Ok(());
        }
        let injected = matches!(
            error.kind(),
            ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned
        );
        if self.errors == Errors::Expected && injected {
            self.reach(&format!("fault.error.{}", error.kind()));
            return Ok(());
        }
        Err(format!("{what}: {error}"))
    }
}

impl Client {
    /// A client with its own random numbers.
    pub fn new(world: &Arc<World>, rng: Rng) -> Client {
        Client {
            world: world.clone(),
            rng,
            snapshots: Vec::new(),
            cursors: Vec::new(),
        }
    }

    /// Does `count` operations.
    ///
    /// # Errors
    /// The first wrong answer or unexpected error.
    pub fn work(&mut self, count: u64) -> Check {
        for i in 0..count {
            let action = self.world.plan.action(&mut self.rng);
            self.act(action)
                .map_err(|e| format!("operation {i}, {action:?}: {e}"))?;
            self.world.reach(&format!("op.{action:?}"));
        }
        // What was held to the end is looked at once more.
        while !self.snapshots.is_empty() {
            self.read_snapshot()?;
            self.snapshots.pop();
        }
        while let Some(mut held) = self.cursors.pop() {
            self.step(&mut held)?;
        }
        Ok(())
    }

    fn keyspace(&mut self) -> std::result::Result<Option<Keyspace>, String> {
        let names = self.world.store.keyspaces();
        if names.is_empty() {
            return Ok(None);
        }
        let name = self.rng.pick(&names).clone();
        match self.world.store.keyspace(&name) {
            Ok(keyspace) => Ok(Some(keyspace)),
            Err(e) => self
                .world
                .allow(&e, &[ErrorKind::NotFound], "keyspace")
                .map(|()| None),
        }
    }

    fn act(&mut self, action: Action) -> Check {
        let world = self.world.clone();
        match action {
            A::Put | A::Delete | A::DeleteRange => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let id = keyspace.id();
                let op = match action {
                    A::Put => Op::Put(
                        id,
                        world.plan.key(&mut self.rng),
                        world.plan.value(&mut self.rng),
                    ),
                    A::Delete => Op::Delete(id, world.plan.key(&mut self.rng)),
                    _ => {
                        let (start, end) = world.plan.range(&mut self.rng);
                        if start == end {
                            return Ok(());
                        }
                        Op::DeleteRange(id, start, end)
                    }
                };
                self.write(vec![op.clone()], false, |_, _| match &op {
                    Op::Put(_, key, value) => keyspace.put(key, value),
                    Op::Delete(_, key) => keyspace.delete(key),
                    Op::DeleteRange(_, start, end) => keyspace.delete_range(start, end),
                })
            }
            A::Batch => self.batch(),
            A::Get => self.get(),
            A::MultiGet => self.multi_get(),
            A::Scan => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let snapshot = world.store.snapshot();
                self.compare(&keyspace, &snapshot)
            }
            A::TakeSnapshot => {
                if self.snapshots.len() < 4 {
                    self.snapshots.push(world.store.snapshot());
                }
                Ok(())
            }
            A::ReadSnapshot => self.read_snapshot(),
            A::DropSnapshot => {
                if !self.snapshots.is_empty() {
                    let at = self.rng.index(self.snapshots.len());
                    drop(self.snapshots.swap_remove(at));
                }
                Ok(())
            }
            A::OpenCursor => self.open_cursor(),
            A::StepCursor => {
                if self.cursors.is_empty() {
                    return Ok(());
                }
                let at = self.rng.index(self.cursors.len());
                let mut held = self.cursors.swap_remove(at);
                self.step(&mut held)?;
                self.cursors.push(held);
                Ok(())
            }
            A::RefreshCursor => {
                if self.cursors.is_empty() {
                    return Ok(());
                }
                let at = self.rng.index(self.cursors.len());
                let mut held = self.cursors.swap_remove(at);
                self.refresh(&mut held)?;
                self.cursors.push(held);
                Ok(())
            }
            A::DropCursor => {
                if !self.cursors.is_empty() {
                    let at = self.rng.index(self.cursors.len());
                    drop(self.cursors.swap_remove(at));
                }
                Ok(())
            }
            A::Create => {
                let name = *self.rng.pick(&NAMES);
                match world.store.create_keyspace(name) {
                    Ok(keyspace) => {
                        let id = keyspace.id();
                        let number = lock(&world.history)
                            .model
                            .number_of_change(
                                |e| matches!(e, Event::Create(i, n) if *i == id && n == name),
                            )
                            .ok_or(format!("create of {name} ({id}) left no record"))?;
                        world.synced(number);
                        world.reach("keyspace.created");
                        Ok(())
                    }
                    Err(e) => world.allow(&e, &[ErrorKind::InvalidArgument], "create"),
                }
            }
            A::DropKeyspace => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let id = keyspace.id();
                match world.store.drop_keyspace(keyspace.name()) {
                    Ok(()) => {
                        // Another of the same name may have come in between: the record names the one that went.
                        let error = keyspace.get(b"x").err().map(|e| e.kind());
                        let gone = error == Some(ErrorKind::KeyspaceDropped);
                        let mut history = lock(&world.history);
                        let number = history.model.number_of_change(
                            |e| matches!(e, Event::Drop(i) | Event::DropWithoutRecord(i) if *i == id),
                        );
                        if number.is_some() && !gone {
                            return Err(format!("a get from a dropped keyspace gives {error:?}"));
                        }
                        let number = number.or_else(|| {
                            // Without room the manifest alone says it.
                            let silent = gone && world.errors == Errors::Expected;
                            silent.then(|| {
                                history.model.push(Record {
                                    first: 0,
                                    event: Event::DropWithoutRecord(id),
                                })
                            });
                            silent.then(|| history.model.last())
                        });
                        drop(history);
                        if let Some(number) = number {
                            world.synced(number);
                        }
                        world.reach("keyspace.dropped");
                        Ok(())
                    }
                    Err(e) => world.allow(
                        &e,
                        &[ErrorKind::NotFound, ErrorKind::KeyspaceDropped],
                        "drop",
                    ),
                }
            }
            A::Ingest => self.ingest(),
            A::Flush | A::FlushStore => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let result = if action == A::Flush {
                    keyspace.flush()
                } else {
                    world.store.flush()
                };
                result.or_else(|e| world.allow(&e, &[ErrorKind::KeyspaceDropped], "flush"))
            }
            A::CompactRange => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let (start, end) = world.plan.range(&mut self.rng);
                let whole = self.rng.chance(60);
                let result = if whole {
                    keyspace.compact_range(None, None)
                } else {
                    keyspace.compact_range(Some(&start), Some(&end))
                };
                result.or_else(|e| world.allow(&e, &[ErrorKind::KeyspaceDropped], "compact_range"))
            }
            A::SyncLog => {
                let number = world.store.snapshot().number();
                match world.store.sync_log() {
                    Ok(()) => {
                        world.synced(number);
                        Ok(())
                    }
                    Err(e) => world.allow(&e, &[], "sync_log"),
                }
            }
            A::HoldFlush => {
                let Some(keyspace) = self.keyspace()? else {
                    return Ok(());
                };
                let held = world.store.core_for_tests().seal_and_hold(&keyspace);
                let held = match held {
                    Ok(held) => held,
                    Err(e) => return world.allow(&e, &[ErrorKind::KeyspaceDropped], "seal"),
                };
                if held {
                    world.reach("memtable.held");
                    let pause = Duration::from_micros(self.rng.below(40_000));
                    self.later(pause, move |world| {
                        world.store.core_for_tests().release(&keyspace)
                    })
                } else {
                    Ok(())
                }
            }
            A::PauseCompaction => {
                world.store.core_for_tests().pause_compaction(true);
                let pause = Duration::from_micros(self.rng.below(40_000));
                self.later(pause, |world| {
                    world.store.core_for_tests().pause_compaction(false)
                })
            }
            A::WaitIdle => {
                world.store.core_for_tests().pause_compaction(false);
                // Held memtables are let go by their own tasks, others may pause compaction again: no wait for idleness without a bound.
                Ok(())
            }
            A::DeleteObsolete => {
                world.store.core_for_tests().delete_obsolete();
                Ok(())
            }
        }
    }

    /// Does something after a while, in a task of its own.
    fn later(&self, pause: Duration, then: impl FnOnce(&World) + Send + 'static) -> Check {
        let world = self.world.clone();
        let spawned = world.runtime.clone().spawn("later", move || {
            world.runtime.sleep(pause);
            then(&world);
        });
        spawned.map(|_| ()).map_err(|e| e.to_string())
    }

    /// Announces, writes, and notes what was promised.
    fn write(
        &mut self,
        ops: Vec<Op>,
        sync: bool,
        write: impl FnOnce(&Store, bool) -> siltstone::Result<()>,
    ) -> Check {
        let world = &self.world;
        let before = world.store.snapshot().number();
        lock(&world.history).announce(ops.clone());
        let result = write(&world.store, sync);
        match result {
            Ok(()) => {
                let published = world.store.snapshot().number();
                let own = {
                    let history = lock(&world.history);
                    let has = |e: &Event| matches!(e, Event::Group(all) if all.windows(ops.len()).any(|w| w == &ops[..]));
                    // If two clients write the same at the same time, it may be the other's, which came first.
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
                if sync || world.synced_writes {
                    world.synced(last)
                } else {
                    world.acked(last)
                }
                Ok(())
            }
            Err(e) => {
                lock(&world.history).withdraw(&ops);
                world.allow(&e, &[ErrorKind::KeyspaceDropped], "write")
            }
        }
    }

    fn batch(&mut self) -> Check {
        let world = self.world.clone();
        let mut ids = Vec::new();
        for _ in 0..1 + self.rng.below(3) {
            ids.extend(self.keyspace()?.map(|k| k.id()));
        }
        if ids.is_empty() {
            return Ok(());
        }
        let count = if self.rng.chance(4) {
            100 + self.rng.below(150)
        } else {
            1 + self.rng.below(8)
        };
        let ops: Vec<Op> = (0..count)
            .map(|_| {
                let id = *self.rng.pick(&ids);
                world.plan.op(id, &mut self.rng)
            })
            .collect();
        if ids.iter().any(|id| *id != ids[0]) {
            world.reach("batch.over_keyspaces");
        }
        let mut batch = Batch::new();
        for op in &ops {
            match op {
                Op::Put(id, key, value) => batch.put(*id, key, value),
                Op::Delete(id, key) => batch.delete(*id, key),
                Op::DeleteRange(id, start, end) => batch.delete_range(*id, start, end),
            }
            .map_err(|e| e.to_string())?;
        }
        let sync = self.rng.chance(15);
        self.write(ops, sync, |store, sync| {
            store.write(&mut batch, WriteOptions { sync })
        })
    }

    fn ingest(&mut self) -> Check {
        let world = self.world.clone();
        let Some(keyspace) = self.keyspace()? else {
            return Ok(());
        };
        let mut pairs: BTreeMap<Bytes, Option<Bytes>> = BTreeMap::new();
        for _ in 0..1 + self.rng.below(20) {
            let value = (!self.rng.chance(15)).then(|| world.plan.value(&mut self.rng));
            pairs.insert(world.plan.key(&mut self.rng), value);
        }
        let pairs: Arc<Vec<(Bytes, Option<Bytes>)>> = Arc::new(pairs.into_iter().collect());
        let hooks = world.store.core_for_tests();
        let name = format!(
            "{:08x}-99999999-0000-{:05}.tbl",
            hooks.open_number(),
            world.next_name.fetch_add(1, Ordering::Relaxed)
        );
        let failed = |e: String| -> Check {
            // Only the storage below can fail while the table is written.
            if world.errors == Errors::Expected && e.contains("injected") {
                Ok(())
            } else {
                Err(format!("table to ingest: {e}"))
            }
        };
        let meta = match write_table(
            &*world.storage,
            &name,
            &pairs,
            hooks.epoch(),
            hooks.new_table_id(),
        ) {
            Ok(meta) => meta,
            Err(e) => return failed(e),
        };
        if let Err(e) = hooks.sync_table_names() {
            return failed(e.to_string());
        }
        lock(&world.history).announce_table(&name, pairs);
        match hooks.ingest(&keyspace, vec![meta]) {
            Ok(number) => {
                world.synced(number);
                world.reach("ingest.done");
                Ok(())
            }
            Err(e) => world.allow(&e, &[ErrorKind::KeyspaceDropped], "ingest"),
        }
    }
}

/// Writes a table as an ingest wants it: number 0 in all entries, synced. Its name is the caller's to sync, through the store.
fn write_table(
    storage: &dyn Storage,
    name: &str,
    pairs: &[(Bytes, Option<Bytes>)],
    epoch: siltstone_storage::Epoch,
    id: u64,
) -> std::result::Result<TableMeta, String> {
    let options = WriterOptions {
        block_size_bytes: 1 << 10,
        ..WriterOptions::default()
    };
    let file = storage.create(epoch, name).map_err(|e| e.to_string())?;
    let mut writer = TableWriter::new(file.clone(), options).map_err(|e| e.to_string())?;
    for (key, value) in pairs {
        if writer.block_raw_bytes() >= options.block_size_bytes {
            writer.end_block().map_err(|e| e.to_string())?;
        }
        let kind = if value.is_some() {
            Kind::Put
        } else {
            Kind::Delete
        };
        writer
            .add(key, trailer(0, kind), value.as_deref().unwrap_or_default())
            .map_err(|e| e.to_string())?;
    }
    let summary = writer.finish().map_err(|e| e.to_string())?;
    file.sync().map_err(|e| e.to_string())?;
    let (first, last) = (&pairs[0].0, &pairs[pairs.len() - 1].0);
    Ok(TableMeta {
        id,
        location: 0,
        name: name.into(),
        min_seq: 0,
        max_seq: 0,
        raw_bytes: summary.raw_bytes,
        file_bytes: summary.file_bytes,
        entries: summary.properties.entries,
        deletes: summary.properties.deletes,
        range_deletes: 0,
        digest: summary.digest.into(),
        points: Some((first[..].into(), last[..].into())),
        bounds: KeyRange::closed(first, last),
        sequence_override: None,
        flags: 0,
    })
}
