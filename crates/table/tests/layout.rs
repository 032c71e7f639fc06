//! The streamed layout compared with prefix sums over all entries at once, which are computed from
//! the definition by separate code.

use proptest::prelude::*;
use siltstone_table::layout::{Layout, LayoutLimits, LayoutState};

/// An entry: user key, whether it is the newest version of its key, raw bytes.
#[derive(Clone, Debug)]
struct Entry {
    key: Vec<u8>,
    newest: bool,
    raw: u64,
}

/// The starts of tables: entry and left cut.
type Starts = Vec<(usize, Option<Vec<u8>>)>;

/// The definition, with passes over whole arrays only: search each cut in the keys, sum, scan,
/// divide, compare neighbours.
fn by_prefix_sums(entries: &[Entry], cuts: &[Vec<u8>], l: &LayoutLimits) -> Starts {
    if entries.is_empty() {
        return vec![];
    }
    // The first entry right of each cut. Span i is between bounds i and i + 1.
    let mut bounds = vec![0];
    bounds.extend(
        cuts.iter()
            .map(|cut| entries.partition_point(|e| e.key < *cut)),
    );
    bounds.push(entries.len());
    // Exclusive prefix sums of raw bytes.
    let mut sums = vec![0u64];
    for e in entries {
        sums.push(sums[sums.len() - 1] + e.raw);
    }
    // The weights of spans, from that of the first entry on.
    let first_span = cuts.iter().filter(|cut| **cut <= entries[0].key).count();
    let weights: Vec<u64> = (0..=cuts.len())
        .map(|i| {
            if i < first_span {
                0
            } else {
                (sums[bounds[i + 1]] - sums[bounds[i]]).max(l.min_span_bytes)
            }
        })
        .collect();
    let mut before = vec![0u64];
    for w in &weights {
        before.push(before[before.len() - 1].saturating_add(*w));
    }
    let span_of = |i: usize| bounds[1..=cuts.len()].partition_point(|b| *b <= i);
    let newest: Vec<usize> = (0..entries.len()).filter(|i| entries[*i].newest).collect();
    let number = |i: usize| {
        let span = span_of(i);
        let w = sums[i] - sums[bounds[span]];
        before[span].saturating_add(w.saturating_sub(l.delay_bytes)) / l.table_bytes
    };
    let mut starts = vec![];
    for (n, i) in newest.iter().enumerate() {
        if n == 0 || number(*i) != number(newest[n - 1]) {
            let span = span_of(*i);
            let starts_span = span > 0 && bounds[span] == *i;
            starts.push((*i, starts_span.then(|| cuts[span - 1].clone())));
        }
    }
    starts
}

/// Passes some of the entries to a layout.
fn stream(
    layout: &mut Layout<'_>,
    entries: &[Entry],
    from: usize,
    starts: &mut Starts,
    states: &mut Vec<LayoutState>,
) {
    for (i, e) in entries.iter().enumerate() {
        if e.newest
            && let Some(start) = layout.start_key(&e.key)
        {
            assert_eq!(start.table as usize, starts.len());
            starts.push((from + i, start.left_cut.map(<[u8]>::to_vec)));
            states.push(layout.state(&e.key));
        }
        layout.add(e.raw);
    }
}

#[derive(Clone, Debug)]
struct Case {
    entries: Vec<Entry>,
    soft: Vec<Vec<u8>>,
    limits: LayoutLimits,
}

fn case() -> impl Strategy<Value = Case> {
    let key = prop_oneof![
        6 => (0u16..600).prop_map(|n| n.to_be_bytes().to_vec()),
        1 => prop::collection::vec(0u8..3, 0..4),
        1 => (0u16..600, 0usize..300)
            .prop_map(|(n, len)| [&n.to_be_bytes()[..], &vec![7; len]].concat()),
    ];
    let value = prop_oneof![3 => Just(0u64), 6 => 0u64..200, 2 => 0u64..3000, 1 => 0u64..100_000];
    let versions = prop_oneof![8 => Just(1usize), 2 => 1usize..5, 1 => 1usize..60];
    let rows = prop::collection::btree_map(key.clone(), (versions, value), 0..120);
    let soft = prop_oneof![
        1 => Just(std::collections::BTreeSet::new()),
        2 => prop::collection::btree_set(key.clone(), 0..5),
        2 => prop::collection::btree_set(key, 0..80),
    ];
    (rows, soft, 9u32..16, any::<bool>()).prop_map(|(rows, soft, log, derived)| {
        let mut entries = vec![];
        for (key, (versions, value)) in rows {
            for v in 0..versions {
                let raw = key.len() as u64 + value / (v as u64 + 1) + 12;
                entries.push(Entry {
                    key: key.clone(),
                    newest: v == 0,
                    raw,
                });
            }
        }
        let table_bytes = 1 << log;
        let limits = if derived {
            LayoutLimits::new(table_bytes, !soft.is_empty())
        } else {
            // Any limits, because the layout must not depend on M and D having their usual values.
            LayoutLimits {
                table_bytes,
                min_span_bytes: table_bytes / 3,
                delay_bytes: table_bytes * 2 / 3 + 5,
            }
        };
        Case {
            entries,
            soft: soft.into_iter().collect(),
            limits,
        }
    })
}

const CASES: u32 = if cfg!(debug_assertions) {
    4_000
} else {
    60_000
};

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn streaming_equals_prefix_sums_also_in_pieces_and_resumed(
        case in case(),
        hard in prop::collection::vec(any::<prop::sample::Index>(), 0..3),
        pieces in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
    ) {
        // The counts restart at hard cuts. A soft cut that equals a hard cut is dropped. Cuts
        // outside a subjob may stay.
        let mut bounds: Vec<Vec<u8>> = if case.entries.is_empty() {
            vec![]
        } else {
            hard.iter().map(|i| case.entries[i.index(case.entries.len())].key.clone()).collect()
        };
        bounds.sort();
        bounds.dedup();
        let mut from = 0;
        for n in 0..=bounds.len() {
            let to = bounds.get(n).map_or(case.entries.len(), |b| {
                case.entries.partition_point(|e| e.key < *b)
            });
            let entries = &case.entries[from..to];
            let lower = if n == 0 { None } else { bounds.get(n - 1) };
            let soft: Vec<Vec<u8>> = case.soft.iter()
                .filter(|c| lower.is_none_or(|b| b < c) && bounds.get(n).is_none_or(|b| *c < b))
                .cloned().collect();
            let want = by_prefix_sums(entries, &soft, &case.limits);

            // As one stream, with the state at the start of each table.
            let (mut got, mut states) = (vec![], vec![]);
            stream(&mut Layout::new(case.limits, &soft), entries, 0, &mut got, &mut states);
            prop_assert_eq!(&got, &want);

            // In pieces that end anywhere, also between the versions of a key.
            let mut ends: Vec<usize> = pieces.iter().map(|p| p.index(entries.len() + 1)).collect();
            ends.push(entries.len());
            ends.sort();
            let mut layout = Layout::new(case.limits, &soft);
            let (mut got, mut at) = (vec![], 0);
            for end in ends {
                stream(&mut layout, &entries[at..end], at, &mut got, &mut vec![]);
                layout = layout.clone();
                at = end;
            }
            prop_assert_eq!(&got, &want);

            // Resumed after each finished table.
            for (table, state) in states.iter().enumerate() {
                let first = want[table].0;
                let mut layout = Layout::resume(case.limits, &soft, state);
                let mut got = want[..table].to_vec();
                stream(&mut layout, &entries[first..], first, &mut got, &mut vec![]);
                prop_assert_eq!(&got, &want, "resumed at table {}", table);
            }
            from = to;
        }
    }
}

/// A table has at most `table_bytes + delay_bytes` before its last user key.
#[test]
fn sizes_are_bounded_and_cuts_are_met() {
    let cuts: Vec<Vec<u8>> = (1..32u32)
        .map(|i| (i * 250).to_be_bytes().to_vec())
        .collect();
    let limits = LayoutLimits::new(1 << 14, true);
    let mut layout = Layout::new(limits, &cuts);
    let mut sizes = vec![];
    let mut at_cuts = 0;
    for i in 0..8000u32 {
        let key = i.to_be_bytes();
        if let Some(start) = layout.start_key(&key) {
            at_cuts += start.left_cut.is_some() as u32;
            sizes.push(0u64);
        }
        layout.add(16);
        *sizes.last_mut().unwrap() += 16;
    }
    assert!(
        sizes
            .iter()
            .all(|s| *s <= limits.table_bytes + limits.delay_bytes + 16),
        "{sizes:?}"
    );
    assert_eq!(sizes.iter().sum::<u64>(), 8000 * 16);
    // Spans are lighter than D, so every table but the first begins at a cut.
    assert_eq!(at_cuts as usize, sizes.len() - 1);
    assert!(sizes.len() >= 7);
}

/// The weights of spans are more than a number can hold. The last table has all keys from there on.
#[test]
fn a_sum_that_saturates_begins_no_more_tables() {
    let keys = (0u16..200).map(|n| n.to_be_bytes().to_vec());
    let entry = |key: Vec<u8>| Entry {
        key,
        newest: true,
        raw: 14,
    };
    let entries: Vec<Entry> = keys.map(entry).collect();
    // A span for each key.
    let cuts: Vec<Vec<u8>> = entries[1..].iter().map(|e| e.key.clone()).collect();
    for log in [62, 63] {
        let limits = LayoutLimits::new(1 << log, true);
        let (mut starts, mut states) = (vec![], vec![]);
        let mut layout = Layout::new(limits, &cuts);
        stream(&mut layout, &entries, 0, &mut starts, &mut states);
        // Each span weighs a 32nd of a table.
        let begins: Vec<usize> = starts.iter().map(|(entry, _)| *entry).collect();
        let all = [0, 32, 64, 96];
        assert_eq!(begins, all[..1 << (64 - log)]);
        assert_eq!(starts, by_prefix_sums(&entries, &cuts, &limits));
    }
}
