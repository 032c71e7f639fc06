//! Tests of what all distributions have in common, and of those that have no file of their own.

use super::super::mixgraph::PREFIX_DIST;
use super::*;
use proptest::prelude::*;

fn all(expected_records: u64) -> [Distribution; 7] {
    [
        Distribution::Sequential,
        Distribution::Uniform,
        Distribution::Permutation,
        Distribution::ScrambledZipfian {
            theta: 0.99,
            expected_records,
        },
        Distribution::Latest { theta: 0.99 },
        Distribution::Hotspot {
            data_fraction: 0.2,
            operation_fraction: 0.8,
        },
        Distribution::Mixgraph {
            parameters: PREFIX_DIST,
            expected_records,
        },
    ]
}

fn only_thread() -> Stream {
    Stream::new(1, 0, 1).unwrap()
}

fn draws(distribution: &Distribution, seed: u64, thread: u32, items: u64) -> Vec<u64> {
    let mut pick = Pick::new(distribution, Stream::new(seed, thread, 4).unwrap()).unwrap();
    (0..1000).map(|_| pick.next(items)).collect()
}

#[test]
fn a_seed_repeats_its_draws_and_threads_differ() {
    for distribution in all(10_000) {
        let name = distribution.name();
        let first = draws(&distribution, 1, 0, 10_000);
        assert_eq!(first, draws(&distribution, 1, 0, 10_000), "{name}");
        assert_ne!(first, draws(&distribution, 1, 1, 10_000), "{name}");
        let other_seed = draws(&distribution, 2, 0, 10_000);
        assert_eq!(first == other_seed, name == "sequential", "{name}");
    }
}

/// Two threads do not follow each other: equal draws at equal times are as rare as the distribution
/// makes them.
#[test]
fn uniform_threads_are_independent() {
    let (a, b) = (
        draws(&Distribution::Uniform, 1, 0, 100),
        draws(&Distribution::Uniform, 1, 3, 100),
    );
    let equal = a.iter().zip(&b).filter(|(a, b)| a == b).count();
    assert!(equal < 30, "{equal}");
}

#[test]
fn uniform_records_are_equally_frequent() {
    let mut pick = Pick::new(&Distribution::Uniform, only_thread()).unwrap();
    let mut counts = [0u32; 100];
    (0..100_000).for_each(|_| counts[pick.next(100) as usize] += 1);
    let chi: f64 = counts
        .iter()
        .map(|&c| (f64::from(c) - 1000.0).powi(2) / 1000.0)
        .sum();
    // Chi-square with 99 degrees of freedom exceeds 180 once in a million.
    assert!(chi < 180.0, "{chi}");
}

#[test]
fn uniform_reaches_records_that_are_added() {
    let mut pick = Pick::new(&Distribution::Uniform, only_thread()).unwrap();
    assert!((0..100).all(|_| pick.next(10) < 10));
    assert!((0..100).any(|_| pick.next(1000) >= 500));
}

/// What all threads draw in one pass, sorted.
fn one_pass(distribution: &Distribution, threads: u32, items: u64, passes: u64) -> Vec<u64> {
    let mut drawn = Vec::new();
    for thread in 0..threads {
        let mut pick = Pick::new(distribution, Stream::new(7, thread, threads).unwrap()).unwrap();
        let share = (items - u64::from(thread)).div_ceil(u64::from(threads));
        (0..share * (passes - 1)).for_each(|_| _ = pick.next(items));
        drawn.extend((0..share).map(|_| pick.next(items)));
    }
    drawn.sort_unstable();
    drawn
}

#[test]
fn threads_share_a_pass_over_all_records() {
    for distribution in [Distribution::Sequential, Distribution::Permutation] {
        for (threads, items) in [(1, 1), (1, 100), (3, 100), (7, 1000), (5, 5)] {
            for passes in [1, 2, 3] {
                let drawn = one_pass(&distribution, threads, items, passes);
                assert_eq!(
                    drawn,
                    (0..items).collect::<Vec<_>>(),
                    "{distribution:?} {threads}"
                );
            }
        }
    }
}

#[test]
fn sequential_records_are_in_order() {
    let mut pick = Pick::new(&Distribution::Sequential, Stream::new(1, 1, 3).unwrap()).unwrap();
    let drawn: Vec<u64> = (0..6).map(|_| pick.next(10)).collect();
    assert_eq!(drawn, [1, 4, 7, 1, 4, 7]);
    let mut growing = Pick::new(&Distribution::Sequential, only_thread()).unwrap();
    let drawn: Vec<u64> = (1..=5).map(|items| growing.next(items)).collect();
    assert_eq!(drawn, [0, 1, 2, 3, 4]);
}

#[test]
fn passes_have_different_orders_and_take_new_records_from_the_next_one_on() {
    let mut pick = Pick::new(&Distribution::Permutation, only_thread()).unwrap();
    let first: Vec<u64> = (0..50).map(|_| pick.next(50)).collect();
    let second: Vec<u64> = (0..50).map(|i| pick.next(50 + i)).collect();
    assert_ne!(first, second);
    assert!(second.iter().all(|&record| record < 50));
    let mut third: Vec<u64> = (0..99).map(|_| pick.next(99)).collect();
    third.sort_unstable();
    assert_eq!(third, (0..99).collect::<Vec<_>>());
}

#[test]
fn lanes_of_a_thread_differ() {
    for distribution in all(10_000) {
        let first = |lane| -> Vec<u64> {
            let mut pick = Pick::new(&distribution, only_thread().lane(lane)).unwrap();
            (0..100).map(|_| pick.next(10_000)).collect()
        };
        let equal = first(0) == first(1);
        assert_eq!(equal, distribution == Distribution::Sequential);
    }
}

#[test]
fn bad_parameters_are_refused() {
    let refused = |distribution| Pick::new(&distribution, only_thread()).is_err();
    let zipfian = |theta| Distribution::ScrambledZipfian {
        theta,
        expected_records: 100,
    };
    assert!(refused(zipfian(1.0)));
    assert!(refused(Distribution::Latest { theta: f64::NAN }));
}

/// It does not compile if they cannot, so nothing is asserted when it runs.
#[test]
fn picks_can_be_moved_to_threads() {
    fn is_send<T: Send>() {}
    is_send::<Pick>();
}

proptest! {
    /// Records come and go, and every draw stays below their number.
    #[test]
    fn draws_keep_their_bounds(
        seed: u64, expected: u64, thread in 0u32..5,
        items in prop::collection::vec(prop_oneof![0u64..5, 0u64..10_000, any::<u64>()], 1..40),
    ) {
        for distribution in all(expected) {
            let mut pick = Pick::new(&distribution, Stream::new(seed, thread, 5).unwrap()).unwrap();
            for &items in &items {
                let record = pick.next(items);
                prop_assert!(record < items.max(1), "{}: {record} of {items}", distribution.name());
            }
        }
    }
}
