//! The parts that the stories of `docs/stories.md` share: a store on the simulated runtime, on a
//! memory storage that can lose power, behind injected faults.
//!
//! A story is a function of a runtime and a seed that panics if the store does not survive it.
//! [`run`] plays it for each of its seeds. The test binary `planted` plays the same functions with
//! a rule switched off and expects them to fail.

#![allow(dead_code)] // Each test binary uses some of it.

pub mod budget;
pub mod cancelled;
pub mod closing;
pub mod closing_attacks;
pub mod creates_and_drops;
pub mod damaged_logs;
pub mod deletes;
pub mod disk_full;
pub mod durability;
pub mod executor_stories;
pub mod folders;
pub mod group_commit;
pub mod history;
pub mod ingests;
pub mod locations;
pub mod log_backed;
pub mod log_stories;
pub mod rate;
pub mod resumption;
pub mod unreachable;
pub mod view_stories;
pub mod wait_until_idle;
pub mod waits;

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::testing::TestHooks;
use siltstone::version::{End, KeyRange, TableMeta};
use siltstone::{Batch, Components, Keyspace, Options, Store, WriteOptions};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{CrashPolicy, FaultStorage, MemoryStorage, Runtime, Storage};
use siltstone_table::writer::{TableWriter, WriterOptions};

/// The story's name, the number of seeds that it is played with, and its function.
pub type Story = (&'static str, u64, fn(Runtime, u64));

/// All stories.
pub fn all() -> impl Iterator<Item = &'static Story> {
    log_stories::ALL
        .iter()
        .chain(view_stories::ALL)
        .chain(executor_stories::ALL)
        .chain(durability::ALL)
        .chain(disk_full::ALL)
        .chain(ingests::ALL)
        .chain(group_commit::ALL)
        .chain(cancelled::ALL)
        .chain(closing::ALL)
        .chain(closing_attacks::ALL)
        .chain(creates_and_drops::ALL)
        .chain(budget::ALL)
        .chain(deletes::ALL)
        .chain(wait_until_idle::ALL)
        .chain(waits::ALL)
        .chain(rate::ALL)
        .chain(resumption::ALL)
        .chain(unreachable::ALL)
        .chain(locations::ALL)
        .chain(log_backed::ALL)
}

fn config(seed: u64) -> SimConfig {
    SimConfig {
        stack_bytes: 1 << 20,
        max_steps: 3_000_000,
        ..SimConfig::new(seed)
    }
}

/// Plays a story with each of its seeds; the first failure names the seed.
pub fn play(name: &str) -> Result<(), String> {
    let (_, seeds, story) = *all()
        .find(|(n, ..)| *n == name)
        .unwrap_or_else(|| panic!("there is no story {name}"));
    each_seed(seeds, story).map_err(|failure| format!("{name}, {failure}"))
}

fn each_seed(
    seeds: u64,
    story: impl FnOnce(Runtime, u64) + Clone + Send + 'static,
) -> Result<(), String> {
    for seed in 0..seeds {
        let story = story.clone();
        if let Err(failure) = sim::run(config(seed), move |rt| story(rt, seed)).result {
            return Err(format!("seed {seed}: {failure}"));
        }
    }
    Ok(())
}

/// Runs a test on the simulated runtime with each of so many seeds; a failure names its seed.
pub fn with_seeds(seeds: u64, test: fn(Runtime, u64)) {
    if let Err(failure) = each_seed(seeds, test) {
        panic!("{failure}");
    }
}

/// Runs a test on the simulated runtime, with a few seeds.
pub fn simulate(test: fn(Runtime)) {
    if let Err(failure) = each_seed(3, move |rt, _| test(rt)) {
        panic!("{failure}");
    }
}

/// Plays a story as a test.
pub fn run(name: &str) {
    if let Err(failure) = play(name) {
        panic!("{failure}");
    }
}

/// Small sizes, with which everything happens early.
pub fn small() -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 8 << 20,
        block_bytes: 1 << 10,
        block_cache_bytes: 1 << 20,
        ..Options::default()
    }
}

/// A disk that can fail, fill up and lose power.
#[derive(Clone)]
pub struct Disk {
    pub rt: Runtime,
    pub memory: MemoryStorage,
    pub faults: FaultStorage,
}

impl Disk {
    pub fn new(rt: &Runtime) -> Disk {
        Disk::on(rt, MemoryStorage::new(rt))
    }

    pub fn on(rt: &Runtime, memory: MemoryStorage) -> Disk {
        Disk {
            rt: rt.clone(),
            faults: FaultStorage::new(Arc::new(memory.clone()), rt),
            memory,
        }
    }

    /// What is left after a power loss that takes everything unsynced.
    pub fn lose_power(&self) -> Disk {
        self.crash(CrashPolicy::LoseUnsynced)
    }

    pub fn crash(&self, policy: CrashPolicy) -> Disk {
        Disk::on(&self.rt, self.memory.crash(policy))
    }

    /// What kill -9 leaves.
    pub fn kill(&self) -> Disk {
        Disk::on(&self.rt, self.memory.kill())
    }

    pub fn open(&self) -> Store {
        self.open_with(small())
    }

    pub fn open_with(&self, options: Options) -> Store {
        self.try_open(options)
            .unwrap_or_else(|e| panic!("the store does not open: {e}"))
    }

    pub fn try_open(&self, options: Options) -> siltstone::Result<Store> {
        let storage: Arc<dyn Storage> = Arc::new(self.faults.clone());
        Store::open_with(Components::on(storage, self.rt.clone()), options)
    }

    pub fn names(&self, suffix: &str) -> Vec<String> {
        self.memory
            .list()
            .unwrap()
            .into_iter()
            .map(|o| o.name)
            .filter(|n| n.ends_with(suffix))
            .collect()
    }
}

/// A prefix of the names of log segments and of nothing else.
pub const LOG: &str = "000000000";

pub const SYNC: WriteOptions = WriteOptions::SYNC;
pub const NO_SYNC: WriteOptions = WriteOptions::NO_SYNC;

pub fn key(i: u64) -> Vec<u8> {
    format!("key{i:06}").into_bytes()
}

/// Creates the keyspaces `a` and `b`.
pub fn two(store: &Store) -> (Keyspace, Keyspace) {
    (
        store.create_keyspace("a").unwrap(),
        store.create_keyspace("b").unwrap(),
    )
}

/// Puts the same pair into each of some keyspaces, as one batch.
pub fn put_in_all(
    store: &Store,
    keyspaces: &[&Keyspace],
    key: &[u8],
    value: &[u8],
    options: WriteOptions,
) {
    let mut batch = Batch::new();
    for keyspace in keyspaces {
        batch.put(keyspace, key, value).unwrap();
    }
    store.write(&batch, options).unwrap();
}

/// A put that is synced before it is acknowledged.
pub fn put_synced(keyspace: &Keyspace, key: &[u8], value: &[u8]) {
    put_in_all(keyspace.store(), &[keyspace], key, value, SYNC);
}

/// How many of the keys 0, 1, 2, ... exist. Panics if there is a hole.
pub fn prefix_len(keyspace: &Keyspace) -> u64 {
    let all: Vec<Vec<u8>> = keyspace
        .iter()
        .unwrap()
        .map(|pair| pair.unwrap().0)
        .collect();
    for (i, found) in all.iter().enumerate() {
        assert_eq!(
            *found,
            key(i as u64),
            "what is left is no prefix: {} keys, a hole before this one",
            all.len()
        );
    }
    all.len() as u64
}

/// Checks that the keyspace has exactly the pairs of the model: forward, backward and one by one.
pub fn check(keyspace: &Keyspace, model: &BTreeMap<Vec<u8>, Vec<u8>>, when: &str) {
    let all: Vec<_> = keyspace.iter().unwrap().map(Result::unwrap).collect();
    let (found, wanted): (Vec<_>, Vec<_>) = (
        all.iter()
            .map(|(k, _)| String::from_utf8_lossy(k))
            .collect(),
        model.keys().map(|k| String::from_utf8_lossy(k)).collect(),
    );
    assert_eq!(found, wanted, "{when}: keys");
    assert!(
        all.iter().map(|(k, v)| (k, v)).eq(model.iter()),
        "{when}: values"
    );
    let back: Vec<_> = keyspace.iter().unwrap().rev().map(Result::unwrap).collect();
    assert!(
        back.iter().map(|(k, v)| (k, v)).eq(model.iter().rev()),
        "{when}: backwards"
    );
    for (k, v) in model {
        assert_eq!(
            keyspace.get(k).unwrap().as_ref(),
            Some(v),
            "{when}: {}",
            String::from_utf8_lossy(k)
        );
    }
}

/// Writes a table of these pairs and ingests it.
pub fn ingest(
    disk: &Disk,
    hooks: &TestHooks,
    keyspace: &Keyspace,
    pairs: &[(&[u8], &[u8])],
) -> u64 {
    let table = table(disk, hooks, pairs);
    hooks.ingest(keyspace, vec![table]).unwrap()
}

/// Writes a table of puts that can be ingested.
pub fn table(disk: &Disk, hooks: &TestHooks, pairs: &[(&[u8], &[u8])]) -> TableMeta {
    let puts: Vec<_> = pairs.iter().map(|(k, v)| (*k, Some(*v))).collect();
    table_of(disk, hooks, &puts)
}

/// Writes a table that can be ingested: its entries have the number 0, and the file and its name
/// are synced. A key without a value is a delete.
pub fn table_of(disk: &Disk, hooks: &TestHooks, entries: &[(&[u8], Option<&[u8]>)]) -> TableMeta {
    let id = hooks.new_table_id();
    let name = format!("00000000-{id:08x}-0000-00000.tbl");
    let file = disk.faults.create(hooks.epoch(), &name).unwrap();
    let mut writer = TableWriter::new(
        file.clone(),
        WriterOptions {
            block_size_bytes: 1 << 10,
            ..WriterOptions::default()
        },
    )
    .unwrap();
    for (key, value) in entries {
        let kind = u64::from(value.is_some());
        writer.add(key, kind, value.unwrap_or_default()).unwrap();
        // Blocks keep only a bounded part of a key.
        if key.len() > 1 << 10 {
            writer.end_block().unwrap();
        }
    }
    let summary = writer.finish().unwrap();
    file.sync().unwrap();
    disk.faults.sync_dir(hooks.epoch()).unwrap();
    let (first, last): (&[u8], &[u8]) = (entries[0].0, entries[entries.len() - 1].0);
    TableMeta {
        id,
        location: 0,
        name,
        min_seq: 0,
        max_seq: 0,
        raw_bytes: summary.raw_bytes,
        file_bytes: summary.file_bytes,
        entries: entries.len() as u64,
        deletes: entries.iter().filter(|(_, value)| value.is_none()).count() as u64,
        range_deletes: 0,
        digest: summary.digest.into(),
        points: Some((first.into(), last.into())),
        bounds: KeyRange {
            start: first.into(),
            end: End::Included(last.into()),
        },
        sequence_override: None,
        flags: 0,
    }
}

/// Everything that a store has, by keyspace.
pub type Contents = BTreeMap<String, Vec<(Vec<u8>, Vec<u8>)>>;

/// The contents of a store.
pub fn contents(store: &Store) -> Contents {
    let all = |name: &String| {
        let pairs = store.keyspace(name).unwrap().iter().unwrap();
        (name.clone(), pairs.map(Result::unwrap).collect())
    };
    store.keyspaces().iter().map(all).collect()
}

/// Writes for a short time: batches over keyspaces, deletes, range deletes, ingests, creates and
/// drops, flushes and compactions.
pub fn live(disk: &Disk, store: &Store, dice: &mut Dice) {
    let hooks = store.test_hooks();
    for step in 0..60 {
        let names = store.keyspaces();
        let keyspace = store
            .keyspace(&names[dice.below(names.len() as u64) as usize])
            .unwrap();
        let options = WriteOptions {
            sync: dice.below(5) == 0,
            ..WriteOptions::default()
        };
        match dice.below(20) {
            0 => drop(store.open_keyspace(&format!("k{step}")).unwrap()),
            1 if names.len() > 2 => store.drop_keyspace(keyspace.name()).unwrap(),
            2 => keyspace.flush().unwrap(),
            3 => keyspace.compact_range(None, None).unwrap(),
            4 => drop(ingest(
                disk,
                &hooks,
                &keyspace,
                &[(&key(dice.below(50)), b"ingested")],
            )),
            5 => {
                let from = dice.below(50);
                let (a, b) = (key(from), key(from + 1 + dice.below(20)));
                keyspace.delete_range(&a, &b).unwrap();
            }
            6 => {
                // Only one is kept, because writers wait if there are more.
                hooks.release(&keyspace);
                keyspace.flush().unwrap();
                hooks.seal_and_hold(&keyspace).unwrap();
            }
            _ => {
                let mut batch = Batch::new();
                for name in &names {
                    let keyspace = store.keyspace(name).unwrap();
                    for _ in 0..dice.below(4) {
                        let value = vec![step as u8; dice.below(600) as usize];
                        batch.put(&keyspace, &key(dice.below(50)), &value).unwrap();
                    }
                    batch.delete(&keyspace, &key(dice.below(50))).unwrap();
                }
                store.write(&batch, options).unwrap();
            }
        }
    }
    for name in store.keyspaces() {
        hooks.release(&store.keyspace(&name).unwrap());
    }
}

/// The number of entries in all tables of a keyspace.
pub fn table_entries(store: &Store, name: &str) -> u64 {
    stats_of(store, name)
        .levels
        .iter()
        .map(|l| l.entry_count)
        .sum()
}

pub fn stats_of(store: &Store, name: &str) -> siltstone::KeyspaceStats {
    store
        .stats()
        .keyspaces
        .into_iter()
        .find(|k| k.name == name)
        .unwrap()
}

/// A small random generator for a story's own choices.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
