use super::*;

/// Whether `found` is `expected` or up to 0.1% more.
fn is_near(found: f64, expected: f64) -> bool {
    (expected..=expected * 1.001).contains(&found)
}

fn of(latencies_ns: impl IntoIterator<Item = u64>) -> Latencies {
    let mut latencies = Latencies::new();
    latencies_ns
        .into_iter()
        .for_each(|ns| latencies.record_ns(ns));
    latencies
}

#[test]
fn no_latencies_have_no_figures() {
    let none = Latencies::new();
    assert!(none.is_empty());
    assert_eq!(none.summary(), None);
    assert_eq!(none.quantile_us(0.5), None);
    assert_eq!(none.longest_us(), None);
    assert_eq!(none.distribution(), []);
}

#[test]
fn all_figures_of_one_latency_are_that_latency() {
    for ns in [0, 1, 999, 123_456_789, 7_200_000_000_001, u64::MAX] {
        let found = of([ns]).summary().unwrap();
        let expected_us = ns as f64 / 1e3;
        for figure in [
            found.mean_us,
            found.min_us,
            found.p50_us,
            found.p9999_us,
            found.max_us,
        ] {
            assert_eq!(figure, expected_us);
        }
        assert_eq!(found.count, 1);
        assert_eq!(found.cdf, [(expected_us, 1.0)]);
    }
}

#[test]
fn quantiles_are_within_a_thousandth() {
    let found = of((1..=100_000).map(|us| us * 1000)).summary().unwrap();
    assert_eq!(found.count, 100_000);
    assert_eq!(found.mean_us, 50_000.5);
    assert_eq!((found.min_us, found.max_us), (1.0, 100_000.0));
    for (figure, expected_us) in [
        (found.p50_us, 50_000.0),
        (found.p90_us, 90_000.0),
        (found.p99_us, 99_000.0),
        (found.p999_us, 99_900.0),
        (found.p9999_us, 99_990.0),
    ] {
        assert!(is_near(figure, expected_us), "{figure} {expected_us}");
    }
}

#[test]
fn merged_latencies_are_those_of_one_histogram() {
    let mut short = of([100, 200, 300]);
    // Longer than anything that the first histogram has room for.
    let long = of([5_000_000_000, 400]);
    short.merge(&long);
    let all = of([100, 200, 300, 5_000_000_000, 400]);
    assert_eq!(short.summary(), all.summary());

    let mut none = Latencies::new();
    none.merge(&Latencies::new());
    assert!(none.is_empty());
    none.merge(&all);
    assert_eq!(none.summary(), all.summary());
}

#[test]
fn cleared_latencies_are_empty() {
    let mut latencies = of([7, 9_000_000]);
    latencies.clear();
    assert_eq!(latencies.summary(), None);
    latencies.record(Duration::from_micros(3));
    let found = latencies.summary().unwrap();
    assert_eq!((found.min_us, found.max_us, found.count), (3.0, 3.0, 1));
}

#[test]
fn slow_operations_are_those_above_a_millisecond() {
    let found = of([1_000, 500_000, 2_000_000, 3_000_000_000]);
    let slow_s = found.summary().unwrap().slow_s;
    assert!((slow_s - 3.002).abs() < 0.003, "{slow_s}");
    assert_eq!(of([1_000, 900_000]).summary().unwrap().slow_s, 0.0);
}

#[test]
fn the_distribution_ascends_to_the_longest_in_few_points() {
    let mut latencies = of((0..200_000).map(|n| 800 + n * 7));
    latencies.record_ns(4_000_000_000);
    let points = latencies.distribution();
    assert!(points.len() <= 100, "{}", points.len());
    assert!(
        points
            .windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1)
    );
    assert_eq!(points.last(), Some(&(4_000_000.0, 1.0)));
    assert!(points[0].0 < 1.0, "{points:?}");
}
