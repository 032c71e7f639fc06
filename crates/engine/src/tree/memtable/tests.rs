//! The memtable is compared with a sorted map, is read beside a writer, and reuses its memory.
// Real threads: nothing here runs simulated.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;

mod stamps;

fn memtable(bytes: usize) -> Arc<Memtable> {
    let pool = ArenaPool::new(scaled(bytes, 256 << 10), 1, false);
    Arc::new(Memtable::new(pool.take(0).expect("memory for a test")))
}

/// A small random generator, seeded by each test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

const fn scaled(full: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { full }
}

type InternalKey = (Vec<u8>, Reverse<u64>);
type Content = (u8, Vec<u8>);

/// The model: entries in the order of internal keys.
#[derive(Default)]
struct Model {
    entries: BTreeMap<InternalKey, Content>,
}

impl Model {
    fn insert(&mut self, key: &[u8], seq: u64, kind: u8, value: &[u8]) {
        self.entries
            .insert((key.to_vec(), Reverse(seq)), (kind, value.to_vec()));
    }

    fn get(&self, key: &[u8], seq: u64) -> Option<(u64, u8, &[u8])> {
        let from = (key.to_vec(), Reverse(seq));
        let ((found, Reverse(seq)), (kind, value)) = self.entries.range(from..).next()?;
        (found == key).then_some((*seq, *kind, value.as_slice()))
    }
}

type Owned = (Vec<u8>, u64, u8, Vec<u8>);

fn standing(iter: &MemtableIter) -> Option<Owned> {
    iter.is_valid().then(|| {
        (
            iter.key().to_vec(),
            iter.seq(),
            iter.kind(),
            iter.value().to_vec(),
        )
    })
}

fn owned(entry: Option<(&InternalKey, &Content)>) -> Option<Owned> {
    entry.map(|((key, Reverse(seq)), (kind, value))| (key.clone(), *seq, *kind, value.clone()))
}

fn compare(memtable: &Arc<Memtable>, model: &Model, probes: &[Vec<u8>], max_seq: u64) {
    assert_eq!(memtable.entry_count(), model.entries.len() as u64);
    let mut iter = memtable.iter();
    iter.seek_to_first();
    for entry in &model.entries {
        assert_eq!(standing(&iter), owned(Some(entry)));
        iter.next();
    }
    assert!(!iter.is_valid());
    iter.seek_to_last();
    for entry in model.entries.iter().rev() {
        assert_eq!(standing(&iter), owned(Some(entry)));
        iter.prev();
    }
    assert!(!iter.is_valid());
    assert_eq!(
        memtable.first_key(),
        model
            .entries
            .first_key_value()
            .map(|entry| entry.0.0.as_slice())
    );
    assert_eq!(
        memtable.last_key(),
        model
            .entries
            .last_key_value()
            .map(|entry| entry.0.0.as_slice())
    );
    let raw: usize = model
        .entries
        .iter()
        .map(|((key, _), (_, value))| key.len() + value.len() + 12)
        .sum();
    assert_eq!(memtable.raw_bytes(), raw as u64);
    assert_eq!(
        memtable.min_seq(),
        model.entries.keys().map(|key| key.1.0).min()
    );
    assert_eq!(
        memtable.max_seq(),
        model.entries.keys().map(|key| key.1.0).max()
    );
    for key in probes {
        for seq in [0, 1, max_seq / 3, max_seq / 2, max_seq, MAX_SEQ] {
            let found = memtable
                .get(key, seq)
                .map(|found| (found.seq, found.kind, found.value));
            assert_eq!(found, model.get(key, seq), "get {key:?} at {seq}");
            let place = (key.clone(), Reverse(seq));
            iter.seek(key, seq);
            assert_eq!(
                standing(&iter),
                owned(model.entries.range(place.clone()..).next()),
                "seek {key:?} {seq}"
            );
            if iter.is_valid() {
                iter.prev();
                assert_eq!(
                    standing(&iter),
                    owned(model.entries.range(..place.clone()).next_back())
                );
            }
            iter.seek_for_prev(key, seq);
            assert_eq!(
                standing(&iter),
                owned(model.entries.range(..=place.clone()).next_back()),
                "prev {key:?} {seq}"
            );
            if iter.is_valid() {
                iter.next();
                let after = (std::ops::Bound::Excluded(place), std::ops::Bound::Unbounded);
                assert_eq!(standing(&iter), owned(model.entries.range(after).next()));
            }
        }
    }
}

/// Keys whose shapes are hard for heads and skips.
fn key_of(shape: u64, random: &mut Random, spread: u64) -> Vec<u8> {
    let number = random.below(spread);
    match shape {
        0 => number
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_be_bytes()
            .to_vec(),
        1 => [
            &b"a/shared/prefix/of/some/length/"[..],
            &number.to_be_bytes(),
        ]
        .concat(),
        2 => format!("{number:010}").into_bytes(),
        3 => vec![0; (number % 40) as usize],
        4 => (0..number % 12)
            .map(|_| (random.below(2) * 255) as u8)
            .collect(),
        5 => {
            let mut key = vec![b'x'; (number % 3 * 50) as usize];
            key.extend_from_slice(&number.to_be_bytes()[6..]);
            key
        }
        6 => [
            &number.to_be_bytes()[6..],
            &[7; 30][..],
            &random.below(50).to_be_bytes(),
        ]
        .concat(),
        _ => key_of(random.below(7), random, spread),
    }
}

fn run_model(seed: u64, shape: u64, count: usize, spread: u64, group: usize, order: u64) {
    let mut random = Random(seed);
    let memtable = memtable(8 << 20);
    let mut model = Model::default();
    let mut keys: Vec<Vec<u8>> = (0..count)
        .map(|_| key_of(shape, &mut random, spread))
        .collect();
    match order {
        1 => keys.sort(),
        2 => {
            keys.sort();
            keys.reverse();
        }
        _ => {}
    }
    let values: Vec<Vec<u8>> = (0..count)
        .map(|_| vec![random.next() as u8; random.below(20) as usize])
        .collect();
    let mut seq = 0;
    let mut writer = memtable.writer();
    let entries: Vec<Entry<'_>> = keys
        .iter()
        .zip(&values)
        .map(|(user_key, value)| {
            seq += 1 + random.below(2);
            Entry {
                user_key,
                seq,
                kind: (seq % 2) as u8,
                value,
            }
        })
        .collect();
    for chunk in entries.chunks(group.max(1)) {
        let bytes = |of: fn(&Entry<'_>) -> usize| chunk.iter().map(of).sum::<usize>();
        assert!(memtable.room_for(
            chunk.len(),
            bytes(|e| e.user_key.len()),
            bytes(|e| e.value.len())
        ));
        if group == 0 {
            let entry = chunk[0];
            writer
                .insert(entry.user_key, entry.seq, entry.kind, entry.value)
                .expect("room");
        } else {
            writer.insert_group(chunk).expect("room");
        }
    }
    for entry in &entries {
        model.insert(entry.user_key, entry.seq, entry.kind, entry.value);
    }
    let mut probes: Vec<Vec<u8>> = (0..30)
        .map(|_| key_of(random.below(8), &mut random, spread))
        .collect();
    probes.extend(keys.iter().step_by(count / 40 + 1).cloned());
    probes.extend(
        keys.iter()
            .step_by(count / 10 + 1)
            .map(|key| [&key[..], &[0]].concat()),
    );
    probes.extend(
        keys.iter()
            .step_by(count / 10 + 1)
            .map(|key| key[..key.len() / 2].to_vec()),
    );
    probes.push(Vec::new());
    probes.push(vec![255; 60]);
    compare(&memtable, &model, &probes, seq);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: scaled(150, 2) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn a_memtable_equals_a_sorted_map(
        seed: u64,
        shape in 0..8u64,
        count in 1..scaled(4000, 80),
        spread in prop_oneof![Just(10u64), Just(3000), Just(u64::MAX)],
        group in prop_oneof![Just(0usize), Just(1), 2..100usize],
        order in 0..3u64,
    ) {
        run_model(seed, shape, count, spread, group, order);
    }
}

#[test]
fn a_tree_of_many_levels_equals_a_sorted_map() {
    for order in 0..3 {
        run_model(7 + order, 0, scaled(60_000, 100), u64::MAX, 64, order);
        run_model(17 + order, 1, scaled(60_000, 100), u64::MAX, 0, order);
    }
}

#[test]
fn every_version_of_a_key_is_found() {
    let count = scaled(66_000, 60) as u64;
    let memtable = memtable(16 << 20);
    let mut writer = memtable.writer();
    for seq in 1..=count {
        writer
            .insert(b"key", seq * 2, 1, &seq.to_le_bytes())
            .expect("room");
    }
    assert_eq!(
        writer.insert(b"key", 5, 1, b"late"),
        Err(InsertError::SequenceNotRising {
            newest: count * 2,
            given: 5
        })
    );
    assert_eq!(memtable.entry_count(), count);
    let mut iter = memtable.iter();
    for seq in (0..=2 * count + 1).step_by(scaled(97, 1)) {
        let found = memtable.get(b"key", seq).map(|found| found.seq);
        assert_eq!(found, (seq >= 2).then_some(seq / 2 * 2));
        iter.seek_for_prev(b"key", seq);
        let above = seq.max(1).div_ceil(2) * 2;
        assert_eq!(
            iter.is_valid().then(|| iter.seq()),
            (above <= 2 * count).then_some(above)
        );
    }
    iter.seek_to_last();
    for seq in 1..=count {
        assert_eq!(iter.seq(), seq * 2);
        iter.prev();
    }
    assert!(!iter.is_valid());
}

#[test]
fn a_version_is_found_in_few_steps() {
    // The chain is walked by jumps. Their number is counted, since tests do not measure time.
    let memtable = memtable(16 << 20);
    let mut writer = memtable.writer();
    let count = scaled(66_000, 200) as u64;
    for seq in 1..=count {
        writer.insert(b"key", seq, 1, b"").expect("room");
    }
    let records = &memtable.tree.records;
    let newest = memtable.tree.find(b"key");
    for seq in (1..=count).step_by(scaled(997, 29)) {
        let (record, steps) = records.visible_counting(newest, seq);
        assert_eq!(records.seq(record), seq);
        assert!(steps <= 3 * 17, "{steps} steps to version {seq} of {count}");
    }
}

#[test]
fn a_group_with_room_is_never_refused_as_full() {
    for seed in 0..scaled(40, 2) as u64 {
        let mut random = Random(seed);
        let memtable = memtable(scaled(1 << 20, 64 << 10));
        let mut writer = memtable.writer();
        let mut model = Model::default();
        let shape = random.below(8);
        let (mut seq, mut last_used) = (0, 0);
        loop {
            let size = 1 + random.below(100) as usize;
            let keys: Vec<Vec<u8>> = (0..size)
                .map(|_| key_of(shape, &mut random, u64::MAX))
                .collect();
            let value = vec![1; random.below(200) as usize];
            let entries: Vec<Entry<'_>> = keys
                .iter()
                .map(|user_key| {
                    seq += 1;
                    Entry {
                        user_key,
                        seq,
                        kind: 1,
                        value: &value,
                    }
                })
                .collect();
            let room = memtable.room_for(size, keys.iter().map(Vec::len).sum(), size * value.len());
            let outcome = writer.insert_group(&entries);
            let before = model.entries.len() as u64;
            let done = (memtable.entry_count() - before) as usize;
            for entry in &entries[..done] {
                model.insert(entry.user_key, entry.seq, entry.kind, entry.value);
            }
            assert!(memtable.used_bytes() > last_used || done == 0);
            assert!(memtable.used_bytes() <= memtable.arena_bytes() as u64);
            last_used = memtable.used_bytes();
            match outcome {
                Ok(()) => assert_eq!(done, size),
                Err(error) => {
                    assert!(!room, "seed {seed}: {error} after a promise of room");
                    assert_eq!(error, InsertError::Full);
                    break;
                }
            }
        }
        compare(&memtable, &model, &[b"a".to_vec()], seq);
        assert!(
            memtable.used_bytes() * 100 >= memtable.arena_bytes() as u64 * 95,
            "seed {seed}: full at {} of {}",
            memtable.used_bytes(),
            memtable.arena_bytes()
        );
    }
}

#[test]
fn a_prepared_arena_is_the_next_one_taken() {
    let pool = ArenaPool::new(MIN_ARENA_BYTES, 1, false);
    pool.prepare(1).expect("memory");
    pool.prepare(1)
        .expect("one is kept, so there is nothing to do");
    assert_eq!(pool.held_bytes(), MIN_ARENA_BYTES as u64);
    let taken = pool.take(0).expect("kept");
    assert_eq!(pool.held_bytes(), MIN_ARENA_BYTES as u64);
    pool.prepare(1).expect("memory");
    assert_eq!(pool.held_bytes(), 2 * MIN_ARENA_BYTES as u64);
    drop(taken);
    assert_eq!(
        pool.held_bytes(),
        MIN_ARENA_BYTES as u64,
        "the shelf keeps one"
    );
}

#[test]
fn an_arena_of_the_size_asked_for_is_large_enough() {
    let pool = ArenaPool::new(1 << 20, 1, false);
    for (count, key_bytes, value_bytes) in [
        (1usize, 65_536, 5 << 20),
        (scaled(50_000, 200), 8, 100),
        (3, 0, 0),
    ] {
        let bytes = Memtable::arena_bytes_for(count, count * key_bytes, count * value_bytes);
        let memtable = Arc::new(Memtable::new(pool.take(bytes).expect("memory")));
        assert!(memtable.room_for(count, count * key_bytes, count * value_bytes));
        let mut random = Random(3);
        let value = vec![9; value_bytes];
        let mut writer = memtable.writer();
        for seq in 1..=count as u64 {
            let mut key = vec![3; key_bytes];
            if key_bytes >= 8 {
                key[key_bytes - 8..].copy_from_slice(&random.next().to_be_bytes());
            }
            writer.insert(&key, seq, 1, &value).expect("room");
        }
        let mut iter = memtable.iter();
        iter.seek_to_first();
        let mut seen = 0;
        while iter.is_valid() {
            assert_eq!(
                (iter.key().len(), iter.value().len()),
                (key_bytes, value_bytes)
            );
            seen += 1;
            iter.next();
        }
        assert_eq!(seen, count);
    }
}

#[test]
fn keys_and_numbers_above_the_limits_are_refused() {
    let memtable = memtable(1 << 20);
    let mut writer = memtable.writer();
    let long = vec![1; MAX_KEY_BYTES + 1];
    assert_eq!(
        writer.insert(&long, 1, 1, b""),
        Err(InsertError::KeyTooLong {
            bytes: MAX_KEY_BYTES + 1
        })
    );
    assert_eq!(
        writer.insert(b"k", MAX_SEQ + 1, 1, b""),
        Err(InsertError::SequenceTooLarge { given: MAX_SEQ + 1 })
    );
    assert!(memtable.is_empty() && memtable.first_key().is_none() && memtable.last_key().is_none());
    assert_eq!(
        (memtable.min_seq(), memtable.max_seq(), memtable.raw_bytes()),
        (None, None, 0)
    );
    writer.insert(&long[1..], MAX_SEQ, 1, b"").expect("room");
    writer.insert(b"", 0, 0, b"").expect("room");
    assert_eq!(
        memtable.get(b"", 0),
        Some(Found {
            seq: 0,
            kind: 0,
            value: b""
        })
    );
    assert_eq!(
        memtable.get(&long[1..], MAX_SEQ).map(|found| found.seq),
        Some(MAX_SEQ)
    );
    assert_eq!(memtable.get(&long[1..], MAX_SEQ - 1), None);
    assert_eq!(
        (memtable.min_seq(), memtable.max_seq()),
        (Some(0), Some(MAX_SEQ))
    );
    assert_eq!(
        (memtable.first_key(), memtable.last_key()),
        (Some(&b""[..]), Some(&long[1..]))
    );
}

#[test]
#[should_panic(expected = "two writers")]
fn two_writers_are_refused() {
    let memtable = memtable(1 << 20);
    let _first = memtable.writer();
    let _second = memtable.writer();
}

#[test]
fn arenas_are_reused() {
    let pool = ArenaPool::new(scaled(4 << 20, 64 << 10), 2, true);
    let bytes = pool.arena_bytes() as u64;
    let fill = |arena: Arena| {
        let memtable = Arc::new(Memtable::new(arena));
        let mut random = Random(1);
        let mut seq = 0;
        while memtable.room_for(1, 8, 8) {
            seq += 1;
            memtable
                .writer()
                .insert(&random.next().to_be_bytes(), seq, 1, &seq.to_le_bytes())
                .expect("room");
        }
        memtable
    };
    let first = fill(pool.take(0).expect("memory"));
    let second = fill(pool.take(0).expect("memory"));
    let third = fill(pool.take(0).expect("memory"));
    assert_eq!(pool.held_bytes(), 3 * bytes);
    drop((first, second, third));
    assert_eq!(
        pool.held_bytes(),
        2 * bytes,
        "the pool keeps two and returns the third"
    );
    let memtable = Memtable::new(pool.take(0).expect("memory"));
    assert_eq!(pool.held_bytes(), 2 * bytes);
    // No data of the last memtable remains, not even in the filter.
    let mut random = Random(1);
    for _ in 0..1000 {
        let key = random.next().to_be_bytes();
        assert_eq!(memtable.get(&key, MAX_SEQ), None);
        assert!(!memtable.filter.may_contain(Filter::hash(&key)));
    }
    let large = pool.take(3 * bytes as usize).expect("memory");
    assert_eq!(pool.held_bytes(), 5 * bytes);
    drop(large);
    drop(memtable);
    assert_eq!(pool.held_bytes(), 2 * bytes);
    assert!(matches!(
        pool.take(MAX_ARENA_BYTES),
        Err(ArenaError::TooLarge { .. })
    ));
}

/// A memtable that may stay small takes no arena that is in memory as a whole, and does not pass on
/// one that was written in part.
#[test]
fn lazily_taken_arenas_are_not_kept() {
    let pool = ArenaPool::new(scaled(8 << 20, 64 << 10), 2, true);
    let bytes = pool.arena_bytes() as u64;
    drop(pool.take(0).expect("memory"));
    assert_eq!(pool.held_bytes(), bytes, "kept");
    let mut memtable = Memtable::new(pool.take_lazily(0).expect("memory"));
    assert_eq!(pool.held_bytes(), 2 * bytes, "not the kept one");
    for round in 0..2 {
        let mut seq = 0;
        while memtable.room_for(1, 8, 8) {
            seq += 1;
            memtable
                .writer()
                .insert(&u64::to_be_bytes(seq), seq, 1, &seq.to_le_bytes())
                .expect("room");
        }
        assert_eq!(
            memtable.get(&u64::to_be_bytes(seq), MAX_SEQ).map(|f| f.seq),
            Some(seq)
        );
        // Does the same with an arena that is larger than the pool's.
        let larger = pool.take_lazily(bytes as usize + 1).expect("memory");
        assert!(larger.bytes() as u64 > bytes, "{round}");
        memtable = Memtable::new(larger);
    }
    drop(memtable);
    assert_eq!(pool.held_bytes(), bytes);
    assert!(pool.take(0).expect("memory").is_used(), "the kept one");
    assert!(matches!(
        pool.take_lazily(usize::MAX),
        Err(ArenaError::TooLarge { .. })
    ));
}

#[test]
fn readers_see_everything_published_beside_a_writer() {
    let count = scaled(120_000, 100) as u64;
    for (group, overwrite) in [(1, 2), (64, 3), (16, u64::MAX)] {
        let memtable = memtable(32 << 20);
        let published = AtomicU64::new(0);
        let stop = AtomicBool::new(false);
        // The entry `seq` has this key. Its value has both.
        let key_of = |seq: u64| {
            let number = if seq.is_multiple_of(overwrite) {
                seq / 7
            } else {
                seq
            };
            [
                &b"pre/"[..],
                &number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes(),
            ]
            .concat()
        };
        std::thread::scope(|scope| {
            for reader in 0..2u64 {
                let (memtable, published, stop) = (&memtable, &published, &stop);
                scope.spawn(move || {
                    let mut random = Random(reader);
                    let mut iter = memtable.iter();
                    let mut rounds = 0;
                    while !stop.load(Ordering::Relaxed) || rounds < 5 {
                        rounds += 1;
                        let seq = published.load(Ordering::Acquire);
                        if seq == 0 {
                            std::thread::yield_now();
                            continue;
                        }
                        for _ in 0..20 {
                            let wanted = 1 + random.below(seq);
                            let key = key_of(wanted);
                            let found = memtable.get(&key, seq).expect("published, so there");
                            assert!(found.seq >= wanted && found.seq <= seq);
                            assert_eq!(found.value, [&key[..], &found.seq.to_le_bytes()].concat());
                            let found = memtable.get(&key, wanted).expect("published, so there");
                            assert_eq!(found.seq, wanted);
                        }
                        let wanted = 1 + random.below(seq);
                        iter.seek(&key_of(wanted), wanted);
                        assert_eq!(iter.seq(), wanted);
                        let forward = random.below(2) == 0;
                        let mut last = (iter.key().to_vec(), Reverse(iter.seq()));
                        for _ in 0..200 {
                            if forward {
                                iter.next()
                            } else {
                                iter.prev()
                            }
                            if !iter.is_valid() {
                                break;
                            }
                            let at = (iter.key().to_vec(), Reverse(iter.seq()));
                            assert!(if forward { at > last } else { at < last });
                            assert_eq!(
                                iter.value(),
                                [iter.key(), &iter.seq().to_le_bytes()].concat()
                            );
                            last = at;
                        }
                        // Now and then a pass over everything: all published entries are found.
                        if rounds % 50 == 1 {
                            let mut seen = 0;
                            if forward {
                                iter.seek_to_first()
                            } else {
                                iter.seek_to_last()
                            }
                            while iter.is_valid() {
                                seen += u64::from(iter.seq() <= seq);
                                if forward { iter.next() } else { iter.prev() }
                            }
                            assert_eq!(seen, seq);
                        }
                    }
                });
            }
            let mut writer = memtable.writer();
            let mut seq = 1;
            while seq <= count {
                let end = (seq + group).min(count + 1);
                let made: Vec<(Vec<u8>, Vec<u8>)> = (seq..end)
                    .map(|seq| (key_of(seq), [&key_of(seq)[..], &seq.to_le_bytes()].concat()))
                    .collect();
                let entries: Vec<Entry<'_>> = made
                    .iter()
                    .zip(seq..)
                    .map(|((user_key, value), seq)| Entry {
                        user_key,
                        seq,
                        kind: 1,
                        value,
                    })
                    .collect();
                writer.insert_group(&entries).expect("room");
                published.store(end - 1, Ordering::Release);
                seq = end;
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

fn slow_covering(deletes: &[(Vec<u8>, Vec<u8>, u64)], key: &[u8], seq: u64) -> Option<u64> {
    deletes
        .iter()
        .rev()
        .find(|(start, end, at)| *at <= seq && &start[..] <= key && key < &end[..])
        .map(|d| d.2)
}

#[test]
fn range_deletes_equal_a_list() {
    for seed in 0..scaled(60, 2) as u64 {
        let mut random = Random(seed);
        let memtable = memtable(4 << 20);
        let mut writer = memtable.writer();
        let count = 1 + random.below(scaled(2500, 90) as u64);
        let spread = [20, 1000, 1 << 30][random.below(3) as usize];
        let width = [1, 10, spread][random.below(3) as usize];
        let prefix: &[u8] = [&b""[..], b"a common prefix of bounds/"][random.below(2) as usize];
        let key = |number: u64| [prefix, &number.to_be_bytes()[4..]].concat();
        let mut deletes = Vec::new();
        for seq in 1..=count {
            let start = random.below(spread);
            let (start, end) = (key(start), key(start + random.below(width + 1)));
            writer
                .add_range_delete(&start, &end, 10 + seq * 3)
                .expect("room");
            if start < end {
                deletes.push((start, end, 10 + seq * 3));
            }
            if seq % 100 == 0 || seq == count {
                for _ in 0..20 {
                    let key = key(random.below(spread + 2));
                    let at = [MAX_SEQ, 10 + random.below(seq * 3 + 3)][random.below(2) as usize];
                    let expected = slow_covering(&deletes, &key, at);
                    assert_eq!(
                        memtable.newest_range_delete_covering(&key, at),
                        expected,
                        "seed {seed}, {key:?} at {at}"
                    );
                }
            }
        }
        for key in [
            &b""[..],
            b"a",
            b"a common prefix of bounds/",
            b"b",
            &[255; 40],
        ] {
            assert_eq!(
                memtable.newest_range_delete_covering(key, MAX_SEQ),
                slow_covering(&deletes, key, MAX_SEQ)
            );
        }
        let listed: Vec<_> = memtable
            .range_deletes()
            .map(|d| (d.start.to_vec(), d.end.to_vec(), d.seq))
            .collect();
        assert_eq!(listed, deletes);
        if let Some(last) = deletes.last() {
            assert_eq!(
                writer.add_range_delete(b"a", b"b", last.2),
                Err(InsertError::SequenceNotRising {
                    newest: last.2,
                    given: last.2
                })
            );
            assert!(!memtable.is_empty());
        }
        assert_eq!(memtable.entry_count(), 0);
    }
}

#[test]
fn a_hundred_thousand_range_deletes_take_bounded_memory() {
    let count = scaled(100_000, 130) as u64;
    // Nested deletes are the worst case for fragments; separate ones have the most bounds.
    for nested in [true, false] {
        let memtable = memtable(16 << 20);
        let mut writer = memtable.writer();
        let bounds = |i: u64| {
            if nested {
                (i, 4 * count - i)
            } else {
                (4 * (i * 7919 % count), 4 * (i * 7919 % count) + 2)
            }
        };
        for i in 0..count {
            let (start, end) = bounds(i);
            writer
                .add_range_delete(&start.to_be_bytes(), &end.to_be_bytes(), i + 1)
                .expect("room");
        }
        assert!(
            memtable.used_bytes() < memtable.arena_bytes() as u64 + count * 200,
            "{}",
            memtable.used_bytes()
        );
        let mut random = Random(5);
        for _ in 0..scaled(200, 20) {
            let (i, key) = (random.below(count), random.below(4 * count));
            let expected = (0..=i)
                .rev()
                .find(|&i| (bounds(i).0..bounds(i).1).contains(&key))
                .map(|i| i + 1);
            assert_eq!(
                memtable.newest_range_delete_covering(&key.to_be_bytes(), i + 1),
                expected
            );
        }
    }
}

#[test]
fn readers_see_every_published_range_delete() {
    let memtable = memtable(4 << 20);
    let published = AtomicU64::new(0);
    let count = scaled(20_000, 80) as u64;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            while published.load(Ordering::Acquire) < count {
                let seq = published.load(Ordering::Acquire);
                if seq == 0 {
                    std::thread::yield_now();
                    continue;
                }
                // The delete with number `seq` covers exactly the key `seq`.
                let wanted = 1 + random.below(seq);
                let key = wanted.to_be_bytes();
                assert_eq!(
                    memtable.newest_range_delete_covering(&key, seq),
                    Some(wanted)
                );
                assert_eq!(
                    memtable.newest_range_delete_covering(&key, wanted - 1),
                    None
                );
            }
        });
        let mut writer = memtable.writer();
        for seq in 1..=count {
            writer
                .add_range_delete(&seq.to_be_bytes(), &(seq + 1).to_be_bytes(), seq)
                .expect("room");
            published.store(seq, Ordering::Release);
        }
    });
}
