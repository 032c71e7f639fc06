//! Reads beyond get, against a model over random histories: many keys at once, seeks at bounds in both directions, cursors that are
//! refreshed; and what scans leave of the block cache.

mod common;

use std::collections::BTreeMap;
use std::ops::Bound;

use common::{Dice, Disk, small};
use siltstone::{Compression, Cursor, ErrorKind, IterOptions, Keyspace, Options, Snapshot, Store};
use siltstone_storage::Runtime;
use siltstone_storage::sim::{self, SimConfig};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Plays a story for some seeds in the simulated runtime.
fn simulate(seeds: u64, story: fn(Runtime, u64)) {
    for seed in 0..seeds {
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 3_000_000,
            ..SimConfig::new(seed)
        };
        if let Err(failure) = sim::run(config, move |rt| story(rt, seed)).result {
            panic!("seed {seed}: {failure}");
        }
    }
}

/// A store with a random history and the model of it.
struct World {
    disk: Disk,
    store: Store,
    keyspace: Keyspace,
    model: Model,
    dice: Dice,
    /// A sealed memtable is kept from being flushed: what waits for flushes would wait for ever.
    held: bool,
}

impl World {
    fn new(rt: &Runtime, seed: u64) -> World {
        let mut dice = Dice::new(seed);
        let disk = Disk::new(rt);
        let store = disk.open_with(Options {
            map_tables: dice.below(2) == 0,
            compression: [Compression::None, Compression::Lz4][dice.below(2) as usize].into(),
            block_cache_bytes: [0, 8 << 10, 1 << 20][dice.below(3) as usize],
            bloom_bits_per_key: [0, 4, 10][dice.below(3) as usize].into(),
            open_tables_max: 16,
            ..small()
        });
        World {
            keyspace: store.default_keyspace().unwrap(),
            disk,
            store,
            model: Model::new(),
            dice,
            held: false,
        }
    }

    /// A key of a few hundred, in groups with a common prefix.
    fn key(&mut self) -> Vec<u8> {
        let i = self.dice.below(300);
        match i % 10 {
            0 => format!("{:02}", i / 30).into_bytes(),
            1 => vec![0xff; (i / 100) as usize],
            _ => format!("{:02}/{i:04}", i / 30).into_bytes(),
        }
    }

    fn delete_range(&mut self, start: Vec<u8>, end: Vec<u8>) {
        self.keyspace.delete_range(&start, &end).unwrap();
        self.model.retain(|k, _| *k < start || *k >= end);
    }

    fn release(&mut self) {
        self.store.core_for_tests().release(&self.keyspace);
        self.held = false;
    }

    /// One random change.
    fn change(&mut self) {
        match self.dice.below(40) {
            0..24 => {
                let len = [0, 10, 200, 1500][self.dice.below(4) as usize];
                let value = vec![self.dice.below(256) as u8; len];
                let key = self.key();
                self.keyspace.put(&key, &value).unwrap();
                self.model.insert(key, value);
            }
            24..29 => {
                let key = self.key();
                self.keyspace.delete(&key).unwrap();
                self.model.remove(&key);
            }
            29..32 => {
                let (a, b) = (self.key(), self.key());
                let (start, end) = if a < b { (a, b) } else { (b, a) };
                // Mostly short ones, or nothing is ever left.
                let end = match self.model.range(start.clone()..).nth(4) {
                    Some((near, _)) if self.dice.below(4) > 0 => near.clone().min(end),
                    _ => end,
                };
                self.delete_range(start, end);
            }
            32..36 => {
                self.release();
                self.keyspace.flush().unwrap();
            }
            36 => {
                self.release();
                let whole = self.dice.below(3) == 0;
                let (a, b) = (self.key(), self.key());
                if whole {
                    self.keyspace.compact_range(None, None).unwrap();
                } else if a <= b {
                    self.keyspace.compact_range(Some(&a), Some(&b)).unwrap();
                }
            }
            37 => {
                let pairs: Model = (0..1 + self.dice.below(6))
                    .map(|i| (self.key(), vec![b'i', i as u8]))
                    .collect();
                let borrowed: Vec<(&[u8], &[u8])> =
                    pairs.iter().map(|(k, v)| (&k[..], &v[..])).collect();
                let hooks = self.store.core_for_tests();
                common::ingest(&self.disk, &hooks, &self.keyspace, &borrowed);
                self.model.extend(pairs);
            }
            38 if !self.held => {
                // With the next ingest, a memtable between runs.
                let hooks = self.store.core_for_tests();
                self.held = hooks.seal_and_hold(&self.keyspace).unwrap();
            }
            _ => self.release(),
        }
    }

    /// Some keys in any order, some of them twice, some that were never written.
    fn some_keys(&mut self) -> Vec<Vec<u8>> {
        let count = [0, 1, 3, 40, 300][self.dice.below(5) as usize];
        let mut keys: Vec<Vec<u8>> = Vec::new();
        for _ in 0..count {
            let key = match self.dice.below(8) {
                0 => format!("{:02}/absent", self.dice.below(12)).into_bytes(),
                1 => keys.last().cloned().unwrap_or_default(),
                _ => self.key(),
            };
            keys.push(key);
        }
        keys
    }
}

fn values_of(model: &Model, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|k| model.get(k).cloned()).collect()
}

#[test]
fn many_keys_at_once_read_as_single_ones() {
    simulate(40, |rt, seed| {
        let mut world = World::new(&rt, seed);
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for _ in 0..40 {
            for _ in 0..20 {
                world.change();
            }
            let keys = world.some_keys();
            let found = world.keyspace.multi_get(&keys).unwrap();
            let single: Vec<_> = keys
                .iter()
                .map(|k| world.keyspace.get(k).unwrap())
                .collect();
            assert_eq!(found, single);
            assert_eq!(found, values_of(&world.model, &keys));
            if world.dice.below(4) == 0 {
                snapshots.push((world.store.snapshot(), world.model.clone()));
            }
            if snapshots.len() > 2 {
                let at = world.dice.below(snapshots.len() as u64) as usize;
                snapshots.swap_remove(at);
            }
            for (snapshot, model) in &snapshots {
                let found = world.keyspace.multi_get_at(snapshot, &keys).unwrap();
                assert_eq!(found, values_of(model, &keys), "at {snapshot:?}");
            }
        }
        let stats = world.store.stats();
        assert_eq!(
            stats.counter("multi_get_count"),
            stats.latencies["multi_get"].count
        );
    });
}

#[test]
fn many_keys_fail_as_one() {
    let rt = Runtime::threads();
    let disk = Disk::new(&rt);
    let (store, other) = (disk.open(), Disk::new(&rt).open());
    let gone = store.create_keyspace("gone").unwrap();
    gone.put(b"a", b"1").unwrap();
    let error = gone.multi_get_at(&other.snapshot(), &["a"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    store.drop_keyspace("gone").unwrap();
    let error = gone.multi_get(&["a"]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceDropped);
}

/// What a cursor with these bounds shows of a model.
fn within(model: &Model, options: &IterOptions) -> Model {
    let inside = |k: &[u8]| {
        options.lower.as_ref().is_none_or(|l| k >= &l[..])
            && options.upper.as_ref().is_none_or(|u| k < &u[..])
    };
    let mut shown = model.clone();
    shown.retain(|k, _| inside(k));
    shown
}

fn check_stand(cursor: &Cursor, wanted: Option<(&Vec<u8>, &Vec<u8>)>, story: &[String]) {
    let shown = cursor.valid().then(|| (cursor.key(), cursor.value()));
    let wanted = wanted.map(|(k, v)| (&k[..], &v[..]));
    assert_eq!(shown, wanted, "after {}", story.join(", "));
}

/// Bounds of all kinds: none, a prefix, two keys, nothing in between.
fn some_bounds(world: &mut World) -> IterOptions {
    let (a, b) = (world.key(), world.key());
    match world.dice.below(6) {
        0 => IterOptions::default(),
        1 | 2 => IterOptions::prefix(format!("{:02}", world.dice.below(11)).as_bytes()),
        3 => IterOptions::range(a.clone()..a),
        4 if a <= b => IterOptions::range(a..=b),
        _ => IterOptions {
            lower: (world.dice.below(3) > 0).then(|| a.clone().min(b.clone())),
            upper: (world.dice.below(3) > 0).then(|| a.max(b)),
            ..IterOptions::default()
        },
    }
}

/// Places that seeks find hard: the bounds, what is next to them, and a prefix without its rest.
fn some_place(world: &mut World, options: &IterOptions) -> Vec<u8> {
    let bound = match world.dice.below(2) {
        0 => options.lower.clone(),
        _ => options.upper.clone(),
    };
    match (world.dice.below(6), bound) {
        (0, Some(bound)) => bound,
        (1, Some(mut bound)) => {
            bound.push(0);
            bound
        }
        (2, Some(mut bound)) => {
            bound.pop();
            bound
        }
        (3, _) => format!("{:02}/", world.dice.below(11)).into_bytes(),
        (4, _) => [vec![], vec![0xff; 5]][world.dice.below(2) as usize].clone(),
        _ => world.key(),
    }
}

#[test]
fn cursors_stand_where_the_model_does_also_after_refresh() {
    simulate(60, |rt, seed| {
        let mut world = World::new(&rt, seed);
        for _ in 0..200 {
            world.change();
        }
        for _ in 0..8 {
            let options = IterOptions {
                fill_cache: world.dice.below(2) == 0,
                ..some_bounds(&mut world)
            };
            let snapshot = world.store.snapshot();
            let mut shown = within(&world.model, &options);
            let mut cursor = if world.dice.below(3) == 0 {
                world.keyspace.cursor_at(&snapshot, options.clone())
            } else {
                world.keyspace.cursor(options.clone())
            }
            .unwrap();
            let mut story = vec![format!("{options:?}")];
            let mut at: Option<Vec<u8>> = None;
            for _ in 0..60 {
                let after = |at: &Vec<u8>| (Bound::Excluded(at.clone()), Bound::Unbounded);
                let before = |at: &Vec<u8>| (Bound::Unbounded, Bound::Excluded(at.clone()));
                let stand = match (world.dice.below(14), &at) {
                    (0..4, Some(at)) => {
                        story.push("next".into());
                        cursor.next().unwrap();
                        shown.range(after(at)).next()
                    }
                    (4..8, Some(at)) => {
                        story.push("prev".into());
                        cursor.prev().unwrap();
                        shown.range(before(at)).next_back()
                    }
                    (8 | 0 | 1 | 2, _) => {
                        let place = some_place(&mut world, &options);
                        story.push(format!("seek {}", place.escape_ascii()));
                        cursor.seek(&place).unwrap();
                        shown.range(place..).next()
                    }
                    (9 | 3 | 4 | 5, _) => {
                        let place = some_place(&mut world, &options);
                        story.push(format!("seek_for_prev {}", place.escape_ascii()));
                        cursor.seek_for_prev(&place).unwrap();
                        shown.range(..=place).next_back()
                    }
                    (10 | 6, _) => {
                        story.push("first".into());
                        cursor.seek_to_first().unwrap();
                        shown.iter().next()
                    }
                    (11 | 7, _) => {
                        story.push("last".into());
                        cursor.seek_to_last().unwrap();
                        shown.iter().next_back()
                    }
                    _ => {
                        for _ in 0..world.dice.below(30) {
                            world.change();
                        }
                        // What it stands on, and around it, is what matters.
                        if let Some(at) = at.clone() {
                            match world.dice.below(4) {
                                0 => {
                                    world.keyspace.delete(&at).unwrap();
                                    world.model.remove(&at);
                                }
                                1 => {
                                    let end = [&at[..], b"5"].concat();
                                    world.delete_range(at, end);
                                }
                                _ => {}
                            }
                        }
                        story.push("refresh".into());
                        let before = cursor.number();
                        cursor.refresh().unwrap();
                        assert!(cursor.number() >= before);
                        shown = within(&world.model, &options);
                        at.as_ref().and_then(|at| shown.range(at.clone()..).next())
                    }
                };
                check_stand(&cursor, stand, &story);
                at = stand.map(|(k, _)| k.clone());
                if world.dice.below(10) == 0 {
                    // Without a refresh, a cursor does not see it.
                    world.change();
                }
            }
        }
    });
}

#[test]
fn a_refresh_lets_go_of_what_is_obsolete_and_survives_a_drop() {
    let disk = Disk::new(&Runtime::threads());
    let store = disk.open();
    let keyspace = store.create_keyspace("k").unwrap();
    let fill = |value: &[u8]| {
        for i in 0..100u32 {
            keyspace.put(&i.to_be_bytes(), value).unwrap();
        }
        keyspace.flush().unwrap();
    };
    fill(b"old");
    let snapshot = store.snapshot();
    let mut cursor = keyspace
        .cursor_at(&snapshot, IterOptions::default())
        .unwrap();
    drop(snapshot);
    cursor.seek(&7u32.to_be_bytes()).unwrap();
    fill(b"new");
    keyspace.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    assert_eq!(cursor.value(), b"old");
    assert!(store.stats().pinned_table_count > 0);
    cursor.refresh().unwrap();
    assert_eq!(
        (cursor.key(), cursor.value()),
        (&7u32.to_be_bytes()[..], &b"new"[..])
    );
    assert_eq!(store.stats().pinned_table_count, 0);

    store.drop_keyspace("k").unwrap();
    let error = cursor.refresh().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::KeyspaceDropped);
    assert_eq!(cursor.key(), 7u32.to_be_bytes());
    cursor.prev().unwrap();
    assert_eq!(
        (cursor.key(), cursor.value()),
        (&6u32.to_be_bytes()[..], &b"new"[..])
    );
    store.close().unwrap();
    assert_eq!(cursor.refresh().unwrap_err().kind(), ErrorKind::Closed);
    cursor.next().unwrap();
    assert_eq!(cursor.key(), 7u32.to_be_bytes());
}

const KEYS: u32 = 20_000;
const CACHE_BYTES: u64 = 256 << 10;

fn wide_key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

/// A store of about 3 MB of tables that are not mapped, and a cache of a tenth of it.
fn cached_store(options: Options) -> Store {
    let disk = Disk::new(&Runtime::threads());
    let store = disk.open_with(Options {
        map_tables: false,
        block_cache_bytes: CACHE_BYTES,
        ..options
    });
    let keyspace = store.default_keyspace().unwrap();
    for i in 0..KEYS {
        keyspace.put(&wide_key(i), &[i as u8; 120]).unwrap();
    }
    keyspace.flush().unwrap();
    keyspace.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    store
}

fn scan(keyspace: &Keyspace, fill_cache: bool) {
    let options = IterOptions {
        fill_cache,
        ..IterOptions::default()
    };
    let mut cursor = keyspace.cursor(options).unwrap();
    let mut count = 0;
    cursor.seek_to_first().unwrap();
    while cursor.valid() {
        count += 1;
        cursor.next().unwrap();
    }
    assert_eq!(count, KEYS);
}

#[test]
fn a_scan_does_not_drive_the_hot_blocks_out() {
    let store = cached_store(small());
    let keyspace = store.default_keyspace().unwrap();
    // A hot set of a quarter of the cache: a key from each of 64 blocks of a KiB.
    let hot: Vec<[u8; 4]> = (0..64).map(|i| wide_key(i * (KEYS / 64))).collect();
    let misses = |what: &str| {
        let before = store.stats().counter("block_cache_miss_count");
        for key in &hot {
            assert!(keyspace.get(key).unwrap().is_some(), "{what}");
        }
        store.stats().counter("block_cache_miss_count") - before
    };
    assert_eq!(misses("cold"), 64);
    for _ in 0..3 {
        assert_eq!(misses("warm"), 0);
    }
    for round in 0..3 {
        let before = store.stats();
        scan(&keyspace, true);
        let after = store.stats();
        let scanned = after.counter("block_cache_scan_miss_count")
            - before.counter("block_cache_scan_miss_count");
        // Ten times what the cache holds went through it.
        assert!(scanned > 2000, "{scanned} blocks");
        assert!(after.memory.block_cache_bytes <= CACHE_BYTES);
        assert!(after.memory.block_cache_bytes > CACHE_BYTES / 2);
        let lost = misses("after a scan");
        assert!(lost <= 6, "scan {round} drove {lost} of 64 hot blocks out");
    }
    // The same blocks for many keys at once.
    let before = store.stats().counter("block_cache_hit_count");
    assert!(
        keyspace
            .multi_get(&hot)
            .unwrap()
            .iter()
            .all(Option::is_some)
    );
    assert!(store.stats().counter("block_cache_hit_count") - before >= 58);
}

#[test]
fn a_scan_may_leave_the_cache_alone() {
    let store = cached_store(small());
    let keyspace = store.default_keyspace().unwrap();
    let read = |store: &Store| {
        let stats = store.stats();
        (
            stats.memory.block_cache_bytes,
            stats.counter("block_cache_scan_hit_count"),
            stats.counter("block_cache_scan_miss_count"),
        )
    };
    scan(&keyspace, false);
    let (held, hits, first) = read(&store);
    assert_eq!((held, hits), (0, 0));
    for i in 0..50 {
        keyspace.get(&wide_key(i * 100)).unwrap().unwrap();
    }
    let held = store.stats().memory.block_cache_bytes;
    scan(&keyspace, false);
    let (after, hits, misses) = read(&store);
    assert_eq!(after, held);
    // What is there is used.
    assert!(hits > 0);
    assert_eq!(hits + misses, 2 * first);
}

#[test]
fn upper_levels_stay_open() {
    let store = cached_store(Options {
        open_tables_max: 16,
        ..small()
    });
    let deep = store.default_keyspace().unwrap();
    let levels = &store.stats().keyspaces[0].levels;
    let (upper, lower) = levels.split_at(2);
    let count = |levels: &[siltstone::LevelStats]| levels.iter().map(|l| l.table_count).sum();
    let (upper, lower): (u64, u64) = (count(upper), count(lower));
    assert!(upper == 0 && lower > 32, "{upper} above, {lower} below");
    // A run and, in another keyspace, a level 1.
    let (run, level) = common::two(&store);
    for keyspace in [&run, &level] {
        for i in 0..10 {
            keyspace.put(&wide_key(i), b"upper").unwrap();
        }
        keyspace.flush().unwrap();
    }
    for i in 0..2 {
        level.put(&wide_key(i), b"upper").unwrap();
    }
    level.compact_range(None, None).unwrap();
    store.wait_until_idle().unwrap();
    let stats = store.stats();
    let tables = |i: usize, level: usize| stats.keyspaces[i].levels[level].table_count;
    assert_eq!(
        (tables(1, 0), tables(2, 1)),
        (1, 1),
        "{:?}",
        stats.keyspaces
    );
    let counts = || {
        let stats = store.stats();
        (
            stats.counter("table_open_count"),
            stats.counter("table_close_count"),
        )
    };
    let read_upper = || {
        let before = counts().0;
        for keyspace in [&run, &level] {
            assert_eq!(keyspace.get(&wide_key(5)).unwrap().unwrap(), b"upper");
        }
        counts().0 - before
    };
    assert_eq!(read_upper(), 2);
    for _ in 0..3 {
        let closed = counts().1;
        for i in (0..KEYS).step_by(97) {
            deep.get(&wide_key(i)).unwrap().unwrap();
        }
        assert!(counts().1 - closed > lower / 2, "deep tables are closed");
        assert_eq!(read_upper(), 0, "upper ones are not");
    }
}
