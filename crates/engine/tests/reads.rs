//! Reads beyond get, compared with a model over random histories: many keys at once, seeks at
//! bounds in both directions, cursors that are refreshed; and what scans leave of the block cache.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::history::{Change, Model, Reader, Workload, World, simulate};
use common::{Dice, Disk, key, small, two, with_seeds};
use siltstone::{Compression, ErrorKind, IterOptions, Keyspace, Options, Snapshot, Store};
use siltstone_storage::{Runtime, Storage};

const CHANGES: &[(u64, Change)] = &[
    (24, Change::Put),
    (5, Change::Delete),
    (3, Change::DeleteRange),
    (4, Change::Flush),
    (1, Change::Compact),
    (1, Change::Ingest),
    (1, Change::Hold),
    (1, Change::Release),
];

/// Some hundred keys in groups with a common prefix.
fn grouped_keys() -> Vec<Vec<u8>> {
    let of = |i: u64| match i % 10 {
        0 => format!("{:02}", i / 30).into_bytes(),
        1 => vec![0xff; (i / 100) as usize],
        _ => format!("{:02}/{i:04}", i / 30).into_bytes(),
    };
    let keys: BTreeSet<Vec<u8>> = (0..300).map(of).collect();
    keys.into_iter().collect()
}

fn workload() -> Workload {
    Workload {
        keys: grouped_keys(),
        options: |dice| Options {
            map_tables: dice.below(2) == 0,
            compression: [Compression::None, Compression::Lz4][dice.below(2) as usize].into(),
            block_cache_bytes: [0, 8 << 10, 1 << 20][dice.below(3) as usize],
            bloom_bits_per_key: [0, 4, 10][dice.below(3) as usize].into(),
            open_tables_max: 16,
            ..small()
        },
        gap_mins: &[16],
        changes: CHANGES,
        run_max: 10,
    }
}

/// Some keys in any order, some of them twice, and some that were never written.
fn some_keys(world: &mut World) -> Vec<Vec<u8>> {
    let count = [0, 1, 3, 40, 300][world.dice.below(5) as usize];
    let mut keys: Vec<Vec<u8>> = Vec::new();
    for _ in 0..count {
        let key = match world.dice.below(8) {
            0 => format!("{:02}/absent", world.dice.below(12)).into_bytes(),
            1 => keys.last().cloned().unwrap_or_default(),
            _ => world.key(),
        };
        keys.push(key);
    }
    keys
}

fn values_of(model: &Model, keys: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
    keys.iter().map(|k| model.get(k).cloned()).collect()
}

#[test]
fn many_keys_at_once_read_as_single_ones() {
    simulate(40, |rt, seed| {
        let mut world = World::new(&rt, seed, workload());
        let mut snapshots: Vec<(Snapshot, Model)> = Vec::new();
        for _ in 0..40 {
            for _ in 0..20 {
                world.change();
            }
            let keys = some_keys(&mut world);
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

/// A table has both a value that a snapshot needs and the range delete that hides it. The value was
/// copied into the buffer, and stayed there although `get_into` returned that there is none.
#[test]
fn a_buffer_is_empty_when_there_is_no_value() {
    let rt = Runtime::threads();
    let store = Disk::new(&rt).open();
    let keyspace = store.create_keyspace("k").unwrap();
    let check_is_gone = |what: &str| {
        let mut buffer = vec![1, 2];
        assert!(!keyspace.get_into("b", &mut buffer).unwrap(), "{what}");
        assert_eq!(buffer, b"", "{what}");
    };
    keyspace.put("b", "old value").unwrap();
    let snapshot = store.snapshot();
    keyspace.delete_range("a", "d").unwrap();
    check_is_gone("in a memtable");
    keyspace.flush().unwrap();
    check_is_gone("in a table of level 0");
    keyspace.compact_range(None, None).unwrap();
    check_is_gone("in a table of a lower level");
    let then = keyspace.get_at(&snapshot, "b").unwrap();
    assert_eq!(then, Some(b"old value".to_vec()));

    // An error leaves nothing in it, either.
    let other = keyspace.clone();
    store.close().unwrap();
    let mut buffer = vec![1, 2];
    let error = other.get_into("b", &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    assert_eq!(buffer, b"");
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

#[test]
fn cursors_agree_with_the_model_also_after_a_refresh() {
    simulate(60, |rt, seed| {
        let mut world = World::new(&rt, seed, workload());
        for _ in 0..200 {
            world.change();
        }
        for _ in 0..8 {
            let options = IterOptions {
                fill_cache: world.dice.below(2) == 0,
                ..world.bounds()
            };
            let snapshot = world.store.snapshot();
            let mut reader = match world.dice.below(3) {
                0 => {
                    let cursor = world.keyspace.cursor_at(&snapshot, options.clone());
                    Reader::new(cursor.unwrap(), options, &world.model)
                }
                _ => world.reader(options),
            };
            for _ in 0..60 {
                if world.dice.below(7) > 0 {
                    world.walk(&mut reader, 1);
                } else {
                    change_around(&mut world, &reader);
                    reader.refresh(&world.model);
                }
                if world.dice.below(10) == 0 {
                    // A cursor does not see the change without a refresh.
                    world.change();
                }
            }
        }
    });
}

/// Makes some changes, also of the key at which a reader is and of those near it.
fn change_around(world: &mut World, reader: &Reader) {
    for _ in 0..world.dice.below(30) {
        world.change();
    }
    let Some(at) = &reader.at else { return };
    match world.dice.below(4) {
        0 => {
            world.keyspace.delete(at).unwrap();
            world.model.remove(at);
        }
        1 => world.delete_range(at, &[&at[..], b"5"].concat()),
        _ => {}
    }
}

#[test]
fn a_refresh_releases_the_old_view_and_survives_a_drop() {
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

/// A store with about 3 MB of tables that are not mapped, and a cache of a tenth of that.
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
fn a_scan_does_not_evict_the_hot_blocks() {
    let store = cached_store(small());
    let keyspace = store.default_keyspace().unwrap();
    // The hot set is a quarter of the cache: one key from each of 64 blocks of 1 KiB.
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
        // Ten times the size of the cache went through it.
        assert!(scanned > 2000, "{scanned} blocks");
        assert!(after.memory.block_cache_bytes <= CACHE_BYTES);
        assert!(after.memory.block_cache_bytes > CACHE_BYTES / 2);
        let lost = misses("after a scan");
        assert!(lost <= 6, "scan {round} evicted {lost} of 64 hot blocks");
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
fn a_scan_may_bypass_the_cache() {
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
    // Blocks that are in the cache are used.
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

/// Approximate sizes differ from the true ones by no more than the error that they state.
#[test]
fn approximate_sizes_keep_their_bounds() {
    with_seeds(3, |rt, seed| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(Options { ..small() });
        let ks = store.default_keyspace().unwrap();
        let mut dice = Dice::new(seed);
        // No key twice: what is stored is what a scan shows.
        let mut order: Vec<u64> = (0..4000).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, dice.below(i as u64 + 1) as usize);
        }
        let mut model = BTreeMap::new();
        for (n, i) in order.into_iter().enumerate() {
            let value = vec![7; dice.below(200) as usize];
            ks.put(&key(i), &value).unwrap();
            model.insert(key(i), value);
            if n == 1500 {
                ks.compact_range(None, None).unwrap();
            }
            if n == 3000 {
                ks.flush().unwrap();
            }
        }
        let raw = |range: &dyn Fn(&Vec<u8>) -> bool| -> (u64, u64) {
            let inside = model.iter().filter(|(k, _)| range(k));
            inside.fold((0, 0), |(n, raw), (k, v)| {
                (n + 1, raw + (k.len() + v.len()) as u64 + 12)
            })
        };
        let within = |e: siltstone::Estimate, truth: u64, what: &str| {
            assert!(
                e.value.abs_diff(truth) <= e.error,
                "{what}: {e:?}, in truth {truth}"
            );
        };
        let whole = ks.approximate_size(&IterOptions::default()).unwrap();
        let (count, bytes) = raw(&|_| true);
        assert_eq!(
            (whole.entry_count.value, whole.entry_count.error),
            (count, 0)
        );
        assert_eq!((whole.raw_bytes.value, whole.raw_bytes.error), (bytes, 0));
        let properties = ks.properties().unwrap();
        assert_eq!(whole.file_bytes.value, properties.file_bytes);
        assert_eq!(
            properties.entry_count + properties.memtable_entry_count,
            count
        );
        let mut file_bytes = 0;
        for _ in 0..50 {
            let (x, y) = (dice.below(4000), dice.below(4000));
            let (from, to) = (key(x.min(y)), key(x.max(y)));
            let size = ks
                .approximate_size(&IterOptions::range(from.clone()..to.clone()))
                .unwrap();
            let (count, bytes) = raw(&|k| from <= *k && *k < to);
            within(size.entry_count, count, "entries");
            within(size.raw_bytes, bytes, "raw bytes");
            // In practice much closer than promised: a few blocks of 1 KiB.
            assert!(
                size.entry_count.value.abs_diff(count) < 150,
                "{size:?}, in truth {count}"
            );
            file_bytes = file_bytes.max(size.file_bytes.error);
        }
        // Half of two blocks for each of a few runs and levels.
        assert!((1..64_000).contains(&file_bytes), "{file_bytes}");
        let empty = ks
            .approximate_size(&IterOptions::range(key(9)..key(9)))
            .unwrap();
        assert_eq!(empty, siltstone::ApproximateSize::default());
        // Two halves are the whole, within their errors.
        let (low, high) = (
            ks.approximate_size(&IterOptions::range(..key(2000)))
                .unwrap(),
            ks.approximate_size(&IterOptions::range(key(2000)..))
                .unwrap(),
        );
        let sum = low.file_bytes.value + high.file_bytes.value;
        let error = low.file_bytes.error + high.file_bytes.error;
        assert!(sum.abs_diff(whole.file_bytes.value) <= error + 2);
    });
}

/// The verification of an open store finds what is damaged, and goes on.
#[test]
fn an_open_store_is_verified() {
    with_seeds(2, |rt, _| {
        let disk = Disk::new(&rt);
        let store = disk.open();
        let (a, b) = two(&store);
        // The range delete hides nothing and would be dropped.
        store.test_hooks().pause_compaction(true);
        for i in 0..2000 {
            a.put(&key(i), &[7; 100]).unwrap();
        }
        b.put(b"k", b"v").unwrap();
        b.delete_range(b"a", b"c").unwrap();
        store.flush().unwrap();
        let mut progress = Vec::new();
        let report = store.verify(&mut |p| progress.push(p)).unwrap();
        assert!(report.is_sound(), "{:?}", report.problems);
        assert_eq!((report.entry_count, report.range_delete_count), (2001, 1));
        assert_eq!(progress.len() as u64, report.table_count);
        let last = progress.last().unwrap();
        assert_eq!(last.done_bytes, last.total_bytes);
        assert_eq!(last.total_bytes, report.table_bytes);
        let of_a = report.keyspaces.iter().find(|k| k.name == "a").unwrap();
        assert_eq!(of_a.entry_count, 2000);
        let p = b.properties().unwrap();
        assert_eq!(
            (p.entry_count, p.range_delete_count, p.table_count),
            (1, 1, 1)
        );
        assert!(p.oldest_number.unwrap() < p.newest_number.unwrap());

        // One byte of one table.
        let victim = disk.names(".tbl")[0].clone();
        let mut bytes = disk.memory.read_small(&victim).unwrap();
        bytes[100] ^= 8;
        let epoch = store.test_hooks().epoch();
        disk.memory.delete(epoch, &victim).unwrap();
        let file = disk.memory.create(epoch, &victim).unwrap();
        file.append(&[&bytes]).unwrap();
        let report = store.verify(&mut |_| ()).unwrap();
        assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
        assert_eq!(report.problems[0].file(), Some(&victim[..]));
        assert!(report.problems[0].is_corruption());
        store.close().unwrap();
    });
}
