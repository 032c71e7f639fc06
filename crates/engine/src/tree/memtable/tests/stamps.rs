//! Tests that the stamps lead to all entries that are newer than a range delete, and skip older
//! ones.

use super::*;

/// The keys between `from` and the key at which `find_newer` lets the reader continue, in either
/// direction.
fn passed_over<'k>(
    keys: impl Iterator<Item = &'k Vec<u8>>,
    from: &[u8],
    newer: Newer<'_>,
    forward: bool,
) -> Vec<&'k Vec<u8>> {
    let is_passed = |key: &&Vec<u8>| match (newer, forward) {
        (Newer::Here, _) => false,
        (Newer::Nowhere, true) => &key[..] >= from,
        (Newer::Nowhere, false) => &key[..] <= from,
        (Newer::Beyond(to), true) => &key[..] >= from && &key[..] < to,
        (Newer::Beyond(to), false) => &key[..] <= from && &key[..] >= to,
    };
    keys.filter(is_passed).collect()
}

#[test]
fn no_newer_entry_is_skipped() {
    for seed in 0..scaled(60, 2) as u64 {
        let mut random = Random(seed);
        let memtable = memtable(4 << 20);
        let mut writer = memtable.writer();
        let spread = [50, 3000, 1 << 30][random.below(3) as usize];
        let key = |random: &mut Random| (random.below(spread) as u32).to_be_bytes().to_vec();
        let before = random.below(scaled(4000, 100) as u64);
        // The largest number of each key, and the numbers of the range deletes.
        let mut newest: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut deletes = Vec::new();
        let count = before + random.below(scaled(1500, 50) as u64);
        for seq in 1..=count {
            if seq == before || seq > before && random.below(300) == 0 {
                writer.add_range_delete(b"", &[255; 5], seq).expect("room");
                deletes.push(seq);
                continue;
            }
            let key = key(&mut random);
            writer.insert(&key, seq, 1, b"v").expect("room");
            newest.insert(key, seq);
        }
        for &delete in &deletes {
            for _ in 0..40 {
                let from = key(&mut random);
                for forward in [true, false] {
                    let found = memtable.find_newer(&from, delete, forward);
                    for key in passed_over(newest.keys(), &from, found, forward) {
                        let story = format!("seed {seed}: {from:?} under {delete}, {found:?}");
                        assert!(newest[key] < delete, "{key:?}: {story}");
                    }
                    if newest.values().all(|seq| *seq < delete) {
                        assert_eq!(found, Newer::Nowhere, "seed {seed}");
                    }
                }
            }
        }
        // Everything may be newer than a range delete that is older than the stamps.
        if before > 1 {
            assert_eq!(memtable.find_newer(b"\0", before - 1, true), Newer::Here);
        }
    }
}

#[test]
fn older_entries_are_skipped() {
    let memtable = memtable(16 << 20);
    let mut writer = memtable.writer();
    let count = scaled(100_000, 1000) as u32;
    for i in 0..count {
        let key = i.wrapping_mul(7919) % count;
        writer
            .insert(&key.to_be_bytes(), u64::from(i) + 1, 1, b"v")
            .expect("room");
    }
    let delete = u64::from(count) + 1;
    writer
        .add_range_delete(b"", &[255; 5], delete)
        .expect("room");
    let find = |from: u32, forward| memtable.find_newer(&from.to_be_bytes(), delete, forward);
    assert_eq!(find(7, true), Newer::Nowhere);
    writer
        .insert(&(count / 2).to_be_bytes(), delete + 1, 1, b"v")
        .expect("room");
    // The result is in the leaf that begins (backward: ends) near this key.
    let near = |found: Newer<'_>| match found {
        Newer::Beyond(key) => {
            let key = u32::from_be_bytes(key.try_into().expect("a key of this test"));
            key.abs_diff(count / 2) <= tree::NODE_SLOTS as u32
        }
        _ => false,
    };
    assert!(near(find(7, true)), "{:?}", find(7, true));
    assert!(near(find(count - 7, false)), "{:?}", find(count - 7, false));
    assert_eq!(find(count - 7, true), Newer::Nowhere);
    assert_eq!(find(7, false), Newer::Nowhere);
    assert_eq!(find(count / 2, true), Newer::Here);
}

#[test]
fn readers_miss_no_published_entry() {
    let memtable = memtable(8 << 20);
    let published = AtomicU64::new(0);
    let count = scaled(60_000, 300) as u64;
    let before = count / 4;
    // The key of the entry `seq`. The range delete has the number `before`.
    let key = |seq: u64| (seq.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(1);
            loop {
                let seq = published.load(Ordering::Acquire);
                if seq == count {
                    break;
                }
                if seq <= before {
                    std::thread::yield_now();
                    continue;
                }
                let wanted = before + 1 + random.below(seq - before);
                let wanted = [key(wanted).to_be_bytes().to_vec()];
                let from = key(random.next()).to_be_bytes();
                for forward in [true, false] {
                    let found = memtable.find_newer(&from, before, forward);
                    let passed = passed_over(wanted.iter(), &from, found, forward);
                    assert!(passed.is_empty(), "{passed:?} from {from:?}: {found:?}");
                }
            }
        });
        let mut writer = memtable.writer();
        for seq in 1..=count {
            if seq == before {
                writer.add_range_delete(b"", &[255; 5], seq).expect("room");
            } else {
                writer
                    .insert(&key(seq).to_be_bytes(), seq, 1, b"v")
                    .expect("room");
            }
            published.store(seq, Ordering::Release);
        }
    });
}
