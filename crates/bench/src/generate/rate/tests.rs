//! Tests of rates: their integral, its inverse, cycles and bounds.

use super::*;
use proptest::prelude::*;

fn nanoseconds(rate: &Rate, arrivals: u64) -> u64 {
    Schedule::new(rate)
        .unwrap()
        .nanoseconds(u128::from(arrivals) << 64)
}

#[test]
fn a_constant_rate_is_exact_after_ten_hours() {
    for per_second in [3u64, 7, 999, 123_457, 1_000_000] {
        let rate = Rate::Constant(per_second as f64);
        for arrivals in [0, 1, 2, 36_000 * per_second, 36_000 * per_second + 1] {
            let exact = u128::from(arrivals) * 1_000_000_000 / u128::from(per_second);
            let found = u128::from(nanoseconds(&rate, arrivals));
            assert!(
                found.abs_diff(exact) <= 1,
                "{per_second} {arrivals}: {found}, {exact}"
            );
        }
    }
}

#[test]
fn phases_repeat_exactly() {
    let phases = vec![
        Phase {
            seconds: 2.0,
            per_second: 100.0,
        },
        Phase {
            seconds: 3.0,
            per_second: 0.0,
        },
        Phase {
            seconds: 0.5,
            per_second: 1000.0,
        },
    ];
    let rate = Rate::Phases(phases);
    // A cycle has 200 + 500 arrivals in 5.5 seconds.
    for cycle in [0u64, 1, 1_000_000] {
        let begin = cycle * 5_500_000_000;
        assert_eq!(nanoseconds(&rate, cycle * 700), begin);
        assert_eq!(nanoseconds(&rate, cycle * 700 + 1), begin + 10_000_000);
        assert_eq!(nanoseconds(&rate, cycle * 700 + 200), begin + 5_000_000_000);
        assert_eq!(nanoseconds(&rate, cycle * 700 + 201), begin + 5_001_000_000);
    }
    assert!((rate.mean_per_second() - 700.0 / 5.5).abs() < 1e-9);
}

/// The last fraction of an arrival before the end of a cycle belongs to the last phase with a rate,
/// not to the phase without one that follows.
#[test]
fn a_cycle_may_end_with_a_phase_without_arrivals() {
    let [busy, idle] = [0.7, 0.0].map(|per_second| Phase {
        seconds: 1.0,
        per_second,
    });
    let mut schedule = Schedule::new(&Rate::Phases(vec![busy, idle])).unwrap();
    let end = schedule.cycle_arrivals;
    assert!(schedule.nanoseconds(end - 1).abs_diff(1_000_000_000) <= 1);
    assert_eq!(schedule.nanoseconds(end), 2_000_000_000);
}

#[test]
fn the_rates_of_silk_differ_by_ten() {
    assert!((SILK_PEAK.per_second - 71_428.57).abs() < 0.01);
    assert!((SILK_PEAK.per_second / SILK_VALLEY.per_second - 10.0).abs() < 1e-9);
    let rate = Rate::Phases(vec![SILK_PEAK, SILK_VALLEY]);
    assert!((rate.mean_per_second() - 60_714.3).abs() < 0.1);
}

#[test]
fn senseless_rates_are_refused() {
    let nan = f64::NAN;
    let phase = |seconds, per_second| {
        Rate::Phases(vec![Phase {
            seconds,
            per_second,
        }])
    };
    for bad in [
        Rate::Constant(0.0),
        Rate::Constant(-1.0),
        Rate::Constant(nan),
        Rate::Constant(f64::INFINITY),
        Rate::Phases(vec![]),
        phase(0.0, 1.0),
        phase(nan, 1.0),
        phase(1.0, 0.0),
        phase(1.0, -1.0),
        phase(1.0, nan),
    ] {
        assert!(bad.check().is_err(), "{bad:?}");
    }
}

#[test]
fn an_extremely_slow_rate_ends_at_the_end_of_time() {
    let mut schedule = Schedule::new(&Rate::Constant(1e-6)).unwrap();
    let first = schedule.nanoseconds(1 << 64);
    assert!(first.abs_diff(1_000_000_000_000_000) < 1000, "{first}");
    assert_eq!(schedule.nanoseconds(u128::MAX), u64::MAX);
    assert_eq!(schedule.nanoseconds(u128::MAX), u64::MAX);
}

proptest! {
    #[test]
    fn times_ascend(
        rates in prop::collection::vec((0.001f64..100.0, 0.0f64..1e6), 1..6),
        steps in prop::collection::vec(0u64.., 1..50),
    ) {
        let phases: Vec<Phase> =
            rates.into_iter().map(|(seconds, per_second)| Phase { seconds, per_second }).collect();
        let Ok(mut schedule) = Schedule::new(&Rate::Phases(phases)) else {
            return Ok(());
        };
        let (mut arrivals, mut last) = (0u128, 0);
        for step in steps {
            arrivals += u128::from(step) << 32;
            let time = schedule.nanoseconds(arrivals);
            prop_assert!(time >= last);
            last = time;
        }
    }
}
