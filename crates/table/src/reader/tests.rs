//! Whole tables: round trips compared with a model, every byte flipped, every truncation, large
//! values, failed maps.

use std::sync::Arc;

use proptest::prelude::*;
use siltstone_storage::Map;

use super::*;
use crate::key::{Kind, MAX_SEQ, compare_internal, hash, seek_trailer, trailer};
use crate::testing::{Entries, Input, in_order, open, write};
use crate::{Codec, WriterOptions};

const WAYS: [ReaderOptions; 4] = [
    ReaderOptions {
        verify: Verify::FirstTouch,
        map: true,
        id: None,
    },
    ReaderOptions {
        verify: Verify::FirstTouch,
        map: false,
        id: None,
    },
    ReaderOptions {
        verify: Verify::Always,
        map: true,
        id: None,
    },
    ReaderOptions {
        verify: Verify::Always,
        map: false,
        id: None,
    },
];

/// The codecs that can run here. Miri cannot run C.
const CODECS: &[Codec] = if cfg!(miri) {
    &[Codec::None, Codec::Lz4]
} else {
    &[Codec::None, Codec::Lz4, Codec::Zstd]
};

fn small(codec: Codec, bits_per_key: u8) -> WriterOptions {
    WriterOptions {
        codec,
        level: *codec.levels().start(),
        bits_per_key,
        block_size_bytes: 512,
        write_piece_bytes: 700,
        ..WriterOptions::default()
    }
}

fn some_entries(n: u64) -> Entries {
    let mut entries = Entries::new();
    for i in 0..n {
        let key = format!("key{:05}", i * 7 % n).into_bytes();
        for version in 0..=(i % 5 / 3) {
            let kind = if i % 11 == 0 { Kind::Delete } else { Kind::Put };
            let value = if kind == Kind::Delete {
                vec![]
            } else {
                vec![b'a' + (i % 23) as u8; (i % 40) as usize]
            };
            entries.push((key.clone(), trailer(10 + i + 1000 * version, kind), value));
        }
    }
    in_order(entries)
}

fn check_iter(iter: &mut TableIter, want: Option<&(Vec<u8>, u64, Vec<u8>)>) {
    assert_eq!(iter.valid(), want.is_some());
    if let Some((key, trailer, value)) = want {
        assert_eq!(
            (iter.key(), iter.trailer(), iter.value_len()),
            (key.as_slice(), *trailer, value.len())
        );
        assert_eq!(iter.value().unwrap(), value.as_slice());
    }
}

fn check_table(bytes: &[u8], entries: &Entries, probes: &[(Vec<u8>, u64)], options: ReaderOptions) {
    let table = open(bytes, options).unwrap();
    let mut value = Vec::new();
    let own = entries
        .iter()
        .map(|e| (e.0.clone(), crate::key::seq_of(e.1)));
    for (key, seq) in own.chain(probes.iter().cloned()) {
        let at = entries
            .partition_point(|e| compare_internal(&e.0, e.1, &key, seek_trailer(seq)).is_lt());
        let want = entries.get(at).filter(|e| e.0 == key);
        let found = table
            .get(&NoCache, &key, hash(&key), seq, &mut value)
            .unwrap();
        assert_eq!(found, want.map(|e| e.1), "{key:?} at {seq}");
        if let Some(want) = want {
            assert_eq!(value, want.2);
            let block = table.find_block(&key, seek_trailer(seq)).unwrap();
            let (t, in_block) = table
                .get_value_in_block(&NoCache, block, &key, seq)
                .unwrap()
                .unwrap();
            assert_eq!((t, in_block.as_slice()), (want.1, want.2.as_slice()));
        }
    }
    check_many(&table, entries, probes);
    let mut iter = table.iter(Arc::new(NoCache));
    iter.seek_to_first().unwrap();
    for e in entries {
        check_iter(&mut iter, Some(e));
        iter.next().unwrap();
    }
    check_iter(&mut iter, None);
    iter.seek_to_last().unwrap();
    for e in entries.iter().rev() {
        check_iter(&mut iter, Some(e));
        iter.prev().unwrap();
    }
    check_iter(&mut iter, None);
    for (key, seq) in probes {
        let t = seek_trailer(*seq);
        let at = entries.partition_point(|e| compare_internal(&e.0, e.1, key, t).is_lt());
        iter.seek(key, t).unwrap();
        check_iter(&mut iter, entries.get(at));
        iter.seek_for_prev(key, t).unwrap();
        check_iter(&mut iter, at.checked_sub(1).map(|i| &entries[i]));
    }
    if let Some(e) = entries.get(entries.len() / 2) {
        iter.seek_for_prev(&e.0, e.1).unwrap();
        check_iter(&mut iter, Some(e));
    }
}

/// Many lookups at once find what single lookups find: in key order, and (without sharing blocks)
/// in any other order.
fn check_many(table: &TableReader, entries: &Entries, probes: &[(Vec<u8>, u64)]) {
    let own = entries
        .iter()
        .map(|e| (e.0.clone(), crate::key::seq_of(e.1)));
    let mut all: Vec<_> = own.chain(probes.iter().cloned()).collect();
    for sorted in [false, true] {
        if sorted {
            all.sort();
        }
        let mut lookups: Vec<Lookup<'_>> = all
            .iter()
            .map(|(key, seq)| Lookup::new(table, key, hash(key), *seq))
            .collect();
        get_many(&NoCache, &mut lookups).unwrap();
        for ((key, seq), lookup) in all.iter().zip(&lookups) {
            let mut value = Vec::new();
            let want = table
                .get(&NoCache, key, hash(key), *seq, &mut value)
                .unwrap();
            assert_eq!(lookup.found, want, "{key:?} at {seq}");
            assert_eq!(lookup.value, value, "{key:?} at {seq}");
        }
    }
}

/// A cache that keeps everything and counts.
struct CountingCache {
    kept: siltstone_storage::Mutex<std::collections::BTreeMap<(u64, u32), Arc<Block>>>,
    asked: AtomicU64,
    inserted: AtomicU64,
}

impl BlockCache for CountingCache {
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.kept.lock().get(&(table, block)).cloned()
    }
    fn insert(&self, table: u64, block: u32, read: &Arc<Block>) {
        self.inserted.fetch_add(1, Ordering::Relaxed);
        let old = self.kept.lock().insert((table, block), read.clone());
        assert!(old.is_none(), "block {block} was read twice");
    }
}

#[test]
fn many_lookups_open_each_block_once() {
    // There are more keys than in one batch, several in each block, and two tables.
    let entries = some_entries(1000);
    let (bytes, _) = write(&entries, vec![], small(Codec::Lz4, 10));
    let tables = [
        open(&bytes, WAYS[1]).unwrap(),
        open(&bytes, WAYS[0]).unwrap(),
    ];
    let blocks = tables[0].index().len() as u64;
    let cache = CountingCache {
        kept: siltstone_storage::Runtime::threads().mutex(Default::default()),
        asked: AtomicU64::new(0),
        inserted: AtomicU64::new(0),
    };
    for again in [false, true] {
        let mut lookups = Vec::new();
        for table in &tables {
            lookups.extend(
                entries
                    .iter()
                    .map(|e| Lookup::new(table, &e.0, hash(&e.0), crate::key::seq_of(e.1))),
            );
        }
        get_many(&cache, &mut lookups).unwrap();
        for (e, lookup) in entries.iter().chain(&entries).zip(&lookups) {
            assert_eq!((lookup.found, &lookup.value), (Some(e.1), &e.2));
        }
        let rounds = 1 + u64::from(again);
        assert_eq!(cache.asked.load(Ordering::Relaxed), 2 * rounds * blocks);
        assert_eq!(cache.inserted.load(Ordering::Relaxed), 2 * blocks);
    }
}

#[test]
fn many_lookups_report_damage_and_failed_maps() {
    let entries = some_entries(60);
    let (mut bytes, _) = write(&entries, vec![], small(Codec::None, 10));
    let all = |table: &TableReader| {
        let mut lookups: Vec<Lookup<'_>> = entries
            .iter()
            .map(|e| Lookup::new(table, &e.0, hash(&e.0), crate::key::seq_of(e.1)))
            .collect();
        get_many(&NoCache, &mut lookups)
    };
    let failed = Input {
        map: Some(Map::from_bytes(bytes.clone().into(), true)),
        bytes: bytes.clone().into(),
    };
    let table = TableReader::open(Arc::new(failed), ReaderOptions::default()).unwrap();
    let error = all(&table).unwrap_err();
    assert!(
        matches!(&error, TableError::Storage(e) if e.kind == StorageErrorKind::MapFailed),
        "{error}"
    );
    let at = bytes.windows(2).position(|w| w == b"cc").unwrap();
    bytes[at] ^= 1;
    for way in WAYS {
        let table = open(&bytes, way).unwrap();
        let error = all(&table).unwrap_err();
        assert!(error.is_corruption(), "{error}");
    }
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    let narrow = prop::sample::select(vec![0u8, 1, 0x80, 0xff]);
    prop_oneof![
        prop::collection::vec(narrow, 0..=6),
        prop::collection::vec(any::<u8>(), 0..=52),
        (0u32..300).prop_map(|i| format!("user{i:012}").into_bytes()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_table(
        entries in prop::collection::vec(
            (key(), 0u64..50, any::<bool>(), prop::collection::vec(any::<u8>(), 0..60)),
            1..200,
        ),
        probes in prop::collection::vec((key(), 0u64..52), 0..40),
        codec in prop::sample::select(CODECS.to_vec()),
        bits in 0u8..=20,
    ) {
        let entry = |(k, s, put, v)| (k, trailer(s, if put { Kind::Put } else { Kind::Delete }), v);
        let entries = in_order(entries.into_iter().map(entry).collect());
        let (bytes, summary) = write(&entries, vec![], small(codec, bits));
        prop_assert_eq!(summary.properties.entries, entries.len() as u64);
        for way in WAYS {
            check_table(&bytes, &entries, &probes, way);
        }
        let report = crate::check::check(&open(&bytes, WAYS[1]).unwrap()).unwrap();
        prop_assert!(report.damage.is_empty());
    }
}

/// With every bit of every byte flipped in turn, each answer is correct or an error.
#[test]
fn every_flipped_byte_is_noticed() {
    for &codec in CODECS {
        let n = if codec == Codec::None { 40 } else { 60 };
        let entries = some_entries(n);
        let deletes = vec![
            (b"key00002".to_vec(), b"key00004".to_vec(), 5),
            (b"key00003".to_vec(), b"l".to_vec(), 7),
        ];
        let (mut bytes, _) = write(&entries, deletes, small(codec, 10));
        let (mut errors, mut opened) = (0, 0);
        for at in 0..bytes.len() {
            for bit in [0, 3, 7] {
                bytes[at] ^= 1 << bit;
                for way in &WAYS[2..] {
                    let Ok(table) = open(&bytes, *way) else {
                        continue;
                    };
                    opened += 1;
                    let mut value = Vec::new();
                    let mut failed = false;
                    for (key, t, want) in &entries {
                        match table.get(
                            &NoCache,
                            key,
                            hash(key),
                            crate::key::seq_of(*t),
                            &mut value,
                        ) {
                            Ok(found) => {
                                assert_eq!((found, &value), (Some(*t), want), "byte {at} bit {bit}")
                            }
                            Err(e) => {
                                assert!(e.is_corruption(), "{e}");
                                failed = true;
                            }
                        }
                    }
                    let mut iter = table.iter(Arc::new(NoCache));
                    let mut at_entry = 0;
                    let mut scan = iter.seek_to_first();
                    while scan.is_ok() && iter.valid() {
                        let (key, t, want) = &entries[at_entry];
                        assert_eq!((iter.key(), iter.trailer()), (key.as_slice(), *t));
                        match iter.value() {
                            Ok(value) => assert_eq!(value, want),
                            Err(_) => break,
                        }
                        at_entry += 1;
                        scan = iter.next();
                    }
                    let found = crate::check::check(&table).unwrap();
                    assert!(!found.damage.is_empty(), "check misses byte {at} bit {bit}");
                    errors += failed as u32;
                }
                bytes[at] ^= 1 << bit;
            }
        }
        // Flips in blocks pass open and fail later. All others fail open.
        assert_eq!(
            errors, opened,
            "lookups of all keys must notice all flips in blocks"
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    let (bytes, _) = write(&some_entries(40), vec![], small(Codec::None, 10));
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len], WAYS[0]).is_err(), "{len} bytes");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(open(&longer, WAYS[0]).unwrap_err().is_corruption());
}

#[test]
fn first_touch_verifies_once_and_always_verifies_always() {
    let entries = some_entries(40);
    let (bytes, _) = write(&entries, vec![], small(Codec::None, 10));
    let e = entries.iter().find(|e| e.2.len() > 20).unwrap();
    let mut bad = bytes.clone();
    let at = bad.windows(e.2.len()).position(|w| w == e.2).unwrap();
    bad[at] ^= 1;
    for way in WAYS {
        let table = open(&bad, way).unwrap();
        let result = table.get(&NoCache, &e.0, hash(&e.0), MAX_SEQ, &mut Vec::new());
        let message = result.unwrap_err().to_string();
        assert!(
            message.contains("table is damaged") || message.contains("table table is damaged"),
            "{message}"
        );
    }
}

#[test]
fn a_failed_map_is_an_error_of_the_storage() {
    let entries = some_entries(40);
    let (bytes, _) = write(&entries, vec![], small(Codec::None, 10));
    let bytes: Arc<[u8]> = bytes.into();
    let input = Input {
        map: Some(Map::from_bytes(bytes.clone(), true)),
        bytes,
    };
    let table = TableReader::open(Arc::new(input), ReaderOptions::default()).unwrap();
    let key = &entries[3].0;
    let error = table
        .get(&NoCache, key, hash(key), MAX_SEQ, &mut Vec::new())
        .unwrap_err();
    assert!(
        matches!(&error, TableError::Storage(e) if e.kind == StorageErrorKind::MapFailed),
        "{error}"
    );
    let mut iter = table.iter(Arc::new(NoCache));
    assert!(iter.seek_to_first().is_err() && !iter.valid());
}

#[test]
fn large_values() {
    let mut x = 1u64;
    let huge: Vec<u8> = std::iter::repeat_with(|| {
        x = x
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (x >> 56) as u8
    })
    .take(5_000_000)
    .collect();
    let entries = in_order(vec![
        (b"a".to_vec(), trailer(1, Kind::Put), b"small".to_vec()),
        (b"b".to_vec(), trailer(2, Kind::Put), huge.clone()),
        (b"c".to_vec(), trailer(3, Kind::Put), b"after".to_vec()),
        (
            b"d".to_vec(),
            trailer(4, Kind::Put),
            huge[..1 << 20].to_vec(),
        ),
    ]);
    for &codec in CODECS {
        let (mut bytes, _) = write(&entries, vec![], small(codec, 10));
        for way in WAYS {
            check_table(&bytes, &entries, &[(b"bb".to_vec(), 9)], way);
        }
        // A flip anywhere in the large value is found, also by a lookup of the small value beside
        // it.
        bytes[2_000_000] ^= 4;
        for way in WAYS {
            let table = open(&bytes, way).unwrap();
            for key in [b"a", b"b"] {
                assert!(
                    table
                        .get(&NoCache, key, hash(key), 9, &mut Vec::new())
                        .unwrap_err()
                        .is_corruption()
                );
            }
        }
    }
}

#[test]
fn range_deletes_alone_make_a_table() {
    let (bytes, summary) = write(
        &vec![],
        vec![(b"a".to_vec(), b"m".to_vec(), 9)],
        small(Codec::None, 10),
    );
    assert_eq!(
        (summary.properties.entries, summary.properties.range_deletes),
        (0, 1)
    );
    assert_eq!(summary.range_delete_end.as_deref(), Some(&b"m"[..]));
    let table = open(&bytes, WAYS[0]).unwrap();
    assert!(!table.may_contain(hash(b"b")) && table.find_block(b"b", seek_trailer(10)).is_none());
    assert_eq!(table.covering_seq(b"b", 9), Some(9));
    assert_eq!(table.covering_seq(b"b", 8), None);
    assert_eq!(table.covering_seq(b"m", 9), None);
    let mut iter = table.iter(Arc::new(NoCache));
    iter.seek_to_first().unwrap();
    assert!(!iter.valid());
}

#[test]
fn a_table_does_not_depend_on_the_size_of_writes() {
    let entries = some_entries(300);
    let one = write(
        &entries,
        vec![],
        WriterOptions {
            write_piece_bytes: 1,
            ..small(Codec::None, 10)
        },
    );
    let other = write(
        &entries,
        vec![],
        WriterOptions {
            write_piece_bytes: 1 << 20,
            ..small(Codec::None, 10)
        },
    );
    assert!(one == other);
}
