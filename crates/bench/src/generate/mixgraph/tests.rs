//! Tests of mixgraph: the hotness of ranges and records, operations, sizes and bounds.

use super::*;
use proptest::prelude::*;

fn counts(parameters: &MixgraphParameters, records: u64, draws: u32) -> Vec<u32> {
    let mixgraph = MixgraphRecords::new(parameters, records).unwrap();
    let mut random = Random::new(1, 0);
    let mut counts = vec![0; records as usize];
    (0..draws).for_each(|_| counts[mixgraph.next(&mut random, records) as usize] += 1);
    counts
}

/// The draws of each of the 30 ranges of 3000 records, the hottest first.
fn by_range(parameters: &MixgraphParameters) -> Vec<f64> {
    let counts = counts(parameters, 3000, 200_000);
    let mut ranges: Vec<f64> = counts
        .chunks(100)
        .map(|c| f64::from(c.iter().sum::<u32>()) / 2e5)
        .collect();
    ranges.sort_by(|a, b| b.total_cmp(a));
    ranges
}

#[test]
fn ranges_are_as_hot_as_the_two_exponentials() {
    let hotness =
        |x: i32| 14.18 * (-2.917 * f64::from(x)).exp() + 0.0164 * (-0.08082 * f64::from(x)).exp();
    let all: f64 = (1..=30).map(hotness).sum();
    for parameters in [PREFIX_RANDOM, PREFIX_DIST] {
        let ranges = by_range(&parameters);
        for (x, share) in (1..).zip(&ranges) {
            // Five standard deviations of the hottest range are 0.0045. The sorted shares of ranges
            // that are almost equally hot differ less.
            let expected = hotness(x) / all;
            assert!(
                (share - expected).abs() < 0.0045,
                "range {x}: {share}, {expected}"
            );
        }
        // The hottest range has about four fifths of all accesses.
        assert!((ranges[0] - 0.79).abs() < 0.006, "{}", ranges[0]);
    }
}

#[test]
fn hot_ranges_are_shuffled_but_the_same_in_every_run() {
    let hottest = |seed| {
        let mixgraph = MixgraphRecords::new(&PREFIX_RANDOM, 3000).unwrap();
        let mut random = Random::new(seed, 0);
        let mut counts = [0; 30];
        (0..2000).for_each(|_| counts[mixgraph.next(&mut random, 3000) as usize / 100] += 1);
        (0..30).max_by_key(|&range| counts[range]).unwrap()
    };
    assert_eq!(hottest(1), hottest(2));
    assert_ne!(hottest(1), 0);
    assert_ne!(hottest(1), 29);
}

/// The number of draws of a rank up to `r` is `a * r^b`, so rank 1 has 0.23 % of them, and the
/// hundred hottest records have 1.14 %, whatever their number.
#[test]
fn records_are_hot_by_the_power_of_their_rank() {
    let mut counts = counts(&ALL_DIST, 1_000_000, 400_000);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    for (records, tolerance) in [(1usize, 0.0004), (10, 0.0006), (100, 0.0015)] {
        let share = f64::from(counts[..records].iter().sum::<u32>()) / 4e5;
        let expected = 0.002312 * (records as f64).powf(0.3467);
        assert!(
            (share - expected).abs() < tolerance,
            "{records}: {share}, {expected}"
        );
    }
}

#[test]
fn without_distributions_records_are_uniform() {
    let counts = counts(&ALL_RANDOM, 100, 100_000);
    let chi: f64 = counts
        .iter()
        .map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0)
        .sum();
    // Chi-square with 99 degrees of freedom exceeds 180 once in a million.
    assert!(chi < 180.0, "{chi}");
}

#[test]
fn operations_have_their_ratios_and_scans_their_lengths() {
    let operations = MixgraphOperations::new(&ALL_RANDOM).unwrap();
    let mut random = Random::new(3, 0);
    let (mut gets, mut puts, mut scans) = (0, 0, Vec::new());
    for _ in 0..200_000 {
        match operations.next(&mut random) {
            MixgraphOperation::Get => gets += 1,
            MixgraphOperation::Put => puts += 1,
            MixgraphOperation::Seek { records } => scans.push(records),
        }
    }
    // Five standard deviations are at most 840.
    assert!(i32::abs_diff(gets, 166_000) < 840, "{gets}");
    assert!(i32::abs_diff(puts, 28_000) < 800, "{puts}");
    assert!(scans.len().abs_diff(6000) < 390, "{}", scans.len());
    assert!(scans.iter().all(|&length| length < 10_000));
    // The median of the distribution is 14.236 * (2^2.517 - 1) / 2.517 = 26.7.
    scans.sort_unstable();
    let median = scans[scans.len() / 2];
    assert!((23..=30).contains(&median), "{median}");
}

#[test]
fn the_published_values_have_a_mean_of_about_35_bytes() {
    let mean = PREFIX_DIST.sizes().mean_bytes();
    // Sizes below 10 bytes become 10, which adds 1.6 to the mean of 34.96.
    assert!((mean - 36.5).abs() < 0.3, "{mean}");
}

#[test]
fn hot_records_stay_while_the_records_grow() {
    let hottest = |records: u64| {
        let mixgraph = MixgraphRecords::new(&PREFIX_DIST, 4000).unwrap();
        let mut random = Random::new(5, 0);
        let mut counts = vec![0; 4000];
        (0..60_000).for_each(|_| counts[mixgraph.next(&mut random, records) as usize] += 1);
        assert!(counts[records as usize..].iter().all(|&c| c == 0));
        (0..4000).max_by_key(|&record| counts[record]).unwrap()
    };
    assert_eq!(hottest(4000), hottest(3999));
}

#[test]
fn senseless_parameters_are_refused() {
    let nan = f64::NAN;
    for bad in [
        MixgraphParameters {
            keyrange_num: 0,
            ..PREFIX_DIST
        },
        MixgraphParameters {
            keyrange_dist_a: nan,
            ..PREFIX_DIST
        },
        MixgraphParameters {
            keyrange_dist_b: 1e9,
            ..PREFIX_DIST
        },
        MixgraphParameters {
            keyrange_dist_a: -14.0,
            keyrange_dist_c: 0.0,
            ..PREFIX_DIST
        },
        MixgraphParameters {
            key_dist_a: nan,
            ..PREFIX_DIST
        },
        MixgraphParameters {
            key_dist_b: -1.0,
            ..PREFIX_DIST
        },
    ] {
        assert!(MixgraphRecords::new(&bad, 100).is_err(), "{bad:?}");
    }
    for bad in [
        MixgraphParameters {
            mix_get_ratio: nan,
            ..ALL_RANDOM
        },
        MixgraphParameters {
            mix_put_ratio: -1.0,
            ..ALL_RANDOM
        },
        MixgraphParameters {
            mix_max_scan_len: 0,
            ..ALL_RANDOM
        },
        MixgraphParameters {
            iter: Pareto {
                sigma: 0.0,
                ..ALL_RANDOM.iter
            },
            ..ALL_RANDOM
        },
        MixgraphParameters {
            mix_get_ratio: 0.0,
            mix_put_ratio: 0.0,
            mix_seek_ratio: 0.0,
            ..ALL_RANDOM
        },
    ] {
        assert!(MixgraphOperations::new(&bad).is_err(), "{bad:?}");
    }
}

proptest! {
    #[test]
    fn draws_keep_their_bounds(
        seed: u64, records: u64, expected: u64, ranges in 1u32..200,
        a in 0.0f64..1.0, b in 0.0f64..3.0,
    ) {
        let parameters = MixgraphParameters {
            keyrange_num: ranges,
            key_dist_a: a,
            key_dist_b: b,
            ..PREFIX_RANDOM
        };
        let mixgraph = MixgraphRecords::new(&parameters, expected).unwrap();
        let mut random = Random::new(seed, 0);
        for records in [records, 0, 1, 2, u64::MAX] {
            prop_assert!(mixgraph.next(&mut random, records) < records.max(1));
        }
    }
}
