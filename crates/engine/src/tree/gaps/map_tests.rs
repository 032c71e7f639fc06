//! Compares the map of gaps with a set of keys.

use super::map::*;
use std::collections::BTreeSet;

fn gap(start: u8, end: u8, number: u64) -> Gap {
    Gap {
        start: vec![start],
        end: vec![end],
        number,
        hidden: 1,
    }
}

fn assert_whole(map: &GapMap) {
    let gaps: Vec<_> = map.leaves.iter().flat_map(|leaf| leaf.iter()).collect();
    assert!(gaps.iter().all(|gap| gap.start < gap.end));
    assert!(gaps.windows(2).all(|pair| pair[0].end < pair[1].start));
    assert!(map.leaves.iter().all(|leaf| !leaf.is_empty()));
    assert!(map.leaves.iter().all(|leaf| leaf.len() <= LEAF_MAX));
    assert_eq!(map.len(), gaps.len());
    let bytes: usize = gaps.iter().map(|gap| gap.key_bytes()).sum();
    assert_eq!(map.key_bytes(), bytes);
}

#[test]
fn gaps_that_touch_become_one_of_the_newest_number() {
    let mut map = GapMap::default();
    map.join(gap(10, 20, 5));
    map.join(gap(30, 40, 9));
    map.join(gap(20, 30, 7));
    assert_eq!(map.len(), 1);
    let found = map.find(&[25]).expect("it is in the gap");
    assert_eq!((&found.start[..], &found.end[..]), (&[10][..], &[40][..]));
    assert_eq!((found.number, found.hidden), (9, 3));
    assert!(map.find(&[40]).is_none() && map.find(&[9]).is_none());
}

#[test]
fn a_key_is_cut_out_of_its_gap_alone() {
    let mut map = GapMap::default();
    map.join(gap(10, 20, 5));
    map.cut(&[15], &[15]);
    assert!(map.find(&[15]).is_none());
    assert!(map.find(&[14, 255]).is_some() && map.find(&[15, 0]).is_some());
    map.cut(&[10], &[10]);
    assert!(map.find(&[10]).is_none() && map.find(&[10, 0]).is_some());
    map.cut(&[], &[255]);
    assert_eq!(map.len(), 0);
    assert_whole(&map);
}

#[test]
fn the_gaps_found_last_stay() {
    let mut map = GapMap::default();
    for i in 0..100 {
        map.join(gap(2 * i, 2 * i + 1, u64::from(i)));
    }
    map.drop_oldest();
    assert_eq!(map.len(), 74);
    assert!(map.find(&[2 * 99]).is_some() && map.find(&[0]).is_none());
    assert_whole(&map);
    GapMap::default().drop_oldest();
}

/// One cursor leaves all of its gaps behind at one number.
#[test]
fn of_gaps_found_together_most_stay() {
    let mut map = GapMap::default();
    for i in 0..100 {
        map.join(Gap {
            hidden: u64::from(i % 10),
            ..gap(2 * i, 2 * i + 1, 7)
        });
    }
    map.drop_oldest();
    assert_eq!(map.len(), 74);
    // The gaps that hide the fewest entries were dropped: 10 that hide no entry, 10 that hide one,
    // and 6 that hide two.
    assert!(map.find(&[0]).is_none() && map.find(&[2]).is_none());
    assert!(map.find(&[6]).is_some() && map.find(&[2 * 99]).is_some());
    assert_whole(&map);
}

/// Compares random joins and cuts with the set of the single keys (of two bytes) in gaps.
#[test]
fn a_map_is_the_set_of_its_keys() {
    let mut state = 1u64;
    let mut below = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % n
    };
    let key = |i: u64| (i as u16).to_be_bytes().to_vec();
    for _ in 0..30 {
        let mut map = GapMap::default();
        let mut model: BTreeSet<u64> = BTreeSet::new();
        for step in 0..400 {
            let from = below(2000);
            let to = from + 1 + below(8);
            if below(3) > 0 {
                map.join(Gap {
                    start: key(from),
                    end: key(to),
                    number: step,
                    hidden: 1,
                });
                model.extend(from..to);
            } else {
                // A gap may also lie between two of these keys.
                let is_hit = model.range(from..=to).next().is_some();
                assert!(map.overlaps(&key(from), &key(to)) || !is_hit);
                map.cut(&key(from), &key(to));
                for i in from..=to {
                    model.remove(&i);
                }
            }
        }
        assert_whole(&map);
        for i in 0..2010 {
            assert_eq!(map.find(&key(i)).is_some(), model.contains(&i), "key {i}");
        }
    }
}
