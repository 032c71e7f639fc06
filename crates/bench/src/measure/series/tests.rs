use super::*;
use crate::measure::recorder::{Done, Role};
use std::sync::atomic::AtomicU64;

fn done(kind: Kind, operations: u64) -> Done {
    Done {
        kind,
        operations,
        written_bytes: operations,
        read_bytes: 2 * operations,
    }
}

/// Measures what `work` records; the engine is asked by `probe`.
fn measured(
    probe: impl FnMut(Ask) -> Option<Probe> + Send,
    work: impl FnOnce(&Meter) + Send,
) -> Measured {
    let meter = Meter::new();
    let (meter, probe) = (&meter, probe);
    std::thread::scope(|scope| {
        let sampler = Sampler::start(scope, meter, probe).unwrap();
        scope.spawn(|| work(meter)).join().unwrap();
        sampler.finish()
    })
}

fn no_engine(_: Ask) -> Option<Probe> {
    None
}

#[test]
fn seconds_without_operations_are_in_the_series() {
    let found = measured(no_engine, |meter| {
        let mut recorder = meter.recorder(Role::Measured);
        recorder.begin();
        let at = |ms| meter.start() + Duration::from_millis(ms);
        recorder.record(&done(Kind::Put, 3), at(0), at(100));
        recorder.record(&done(Kind::Put, 1), at(100), at(3_200));
        recorder.record(&done(Kind::Batch, 10), at(3_200), at(3_300));
    });
    let operations: Vec<u64> = found.seconds.iter().map(|row| row.operations).collect();
    assert_eq!(operations, [3, 0, 0, 11]);
    let numbers: Vec<u64> = found.seconds.iter().map(|row| row.second).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(found.seconds[1].latency.is_empty());
    assert_eq!(found.seconds[3].latency["put"].count, 1);
    assert_eq!(found.seconds[3].latency["put"].max_us, 3_100_000.0);
    assert_eq!(found.seconds[3].latency["batch"].p50_us, 100_000.0);
    assert_eq!(found.seconds[3].written_bytes, 11);
    assert_eq!(found.seconds[3].read_bytes, 22);

    assert_eq!(found.counts.operations, 14);
    assert_eq!(found.until_last, Duration::from_millis(3_300));
    assert_eq!(found.all.count(), 3);
    assert_eq!(found.latency[&Kind::Put].count(), 2);
    assert!(found.service.is_empty());
    assert!(found.workload_cpu_s.unwrap() >= 0.0);
}

#[test]
fn threads_are_merged_and_those_beside_are_counted_apart() {
    let found = measured(no_engine, |meter| {
        // The times are those of the future, so all have to begin before the first of them.
        let all_begun = std::sync::Barrier::new(3);
        let all_begun = &all_begun;
        std::thread::scope(|scope| {
            for (role, ends_ms) in [
                (Role::Measured, [100, 1_100]),
                (Role::Measured, [200, 2_200]),
                (Role::Beside, [300, 3_300]),
            ] {
                scope.spawn(move || {
                    let mut recorder = meter.recorder(role);
                    recorder.begin();
                    all_begun.wait();
                    let kind = match role {
                        Role::Measured => Kind::Get,
                        Role::Beside => Kind::Put,
                    };
                    for ms in ends_ms {
                        let ended = meter.start() + Duration::from_millis(ms);
                        let began = ended - Duration::from_millis(50);
                        recorder.record(&done(kind, 1), began, ended);
                    }
                });
            }
        });
    });
    let rows: Vec<(u64, u64)> = found
        .seconds
        .iter()
        .map(|row| (row.operations, row.beside_operations))
        .collect();
    assert_eq!(rows, [(2, 1), (1, 0), (1, 0), (0, 1)]);
    assert_eq!((found.counts.operations, found.beside.operations), (4, 2));
    assert_eq!(found.all.count(), 4);
    assert_eq!(found.latency[&Kind::Put].count(), 2);
    // The thread beside does not prolong the run.
    assert_eq!(found.until_last, Duration::from_millis(2_200));
}

#[test]
fn what_was_due_and_never_begun_is_a_latency_and_no_operation() {
    let found = measured(no_engine, |meter| {
        let mut recorder = meter.recorder(Role::Measured);
        let mut drawing = meter.recorder(Role::Measured);
        let mut beside = meter.recorder(Role::Beside);
        let at = |ms| meter.start() + Duration::from_millis(ms);
        for recorder in [&mut recorder, &mut drawing, &mut beside] {
            recorder.begin();
            recorder.record(&done(Kind::Get, 1), at(0), at(100));
        }
        recorder.record_censored(Some(Kind::Get), at(500), at(2_500));
        recorder.record_censored(Some(Kind::Get), at(1_500), at(2_500));
        drawing.record_censored(None, at(500), at(3_500));
        beside.record_censored(Some(Kind::Put), at(0), at(9_000));
    });
    assert_eq!(found.counts.operations, 2);
    assert_eq!(found.censored_operations, 3);
    assert_eq!(found.all.count(), 5);
    assert_eq!(found.all.longest_us(), Some(3_000_000.0));
    assert_eq!(found.latency[&Kind::Get].count(), 5);
    assert_eq!(found.latency[&Kind::Get].longest_us(), Some(2_000_000.0));
    assert_eq!(found.latency[&Kind::Put].count(), 1);
    // They ended in no second, and they do not prolong the run.
    assert_eq!(found.seconds[0].latency["get"].count, 3);
    assert_eq!(found.until_last, Duration::from_millis(100));
}

#[test]
fn failures_are_counted() {
    let found = measured(no_engine, |meter| {
        let mut recorder = meter.recorder(Role::Measured);
        recorder.count_error();
        recorder.count_wrong_answer();
        recorder.count_wrong_answer();
    });
    assert_eq!((found.errors, found.wrong_answers), (1, 2));
    assert_eq!(found.counts.operations, 0);
}

#[test]
fn counters_grow_once_and_may_begin_anew() {
    let samples = [Some(100), None, Some(130), Some(20), None];
    let mut gauges = Gauges::begin(probe_of(samples[0]));
    for (second, sample) in (0..).zip(&samples[1..]) {
        gauges.sample(second, probe_of(*sample));
    }
    let mut found = Measured::default();
    gauges.finish(&mut found);
    let rows: Vec<Option<u64>> = found.seconds.iter().map(|row| row.log_bytes).collect();
    // The third one began anew, because the store was opened again.
    assert_eq!(rows, [None, Some(30), Some(20), None]);
    assert_eq!(found.figures.log_bytes, Some(50));
    assert_eq!(found.figures.others["gets"], 50);
    assert_eq!(found.figures.stall_s["log"], 0.5);
    assert_eq!(found.figures.flush_bytes, None);
    assert_eq!(found.seconds[1].levels.as_ref().unwrap()[0].bytes, 130);
    assert_eq!(found.seconds[3].levels, None);
    assert_eq!(found.levels[0].bytes, 20);
}

/// An engine that has counted this far in everything.
fn probe_of(count: Option<u64>) -> Option<Probe> {
    let count = count?;
    let figures = Figures {
        log_bytes: Some(count),
        stall_s: BTreeMap::from([
            ("log".to_string(), count as f64 / 100.0),
            ("torn".to_string(), f64::NAN),
        ]),
        compaction_cpu_s: Some(f64::NAN),
        others: BTreeMap::from([("gets".to_string(), count)]),
        ..Figures::default()
    };
    let levels = vec![Level {
        level: 0,
        runs: 1,
        tables: 2,
        bytes: count,
    }];
    Some(Probe {
        figures,
        levels: Some(levels),
        levels_took: Duration::ZERO,
    })
}

#[test]
fn levels_that_were_not_asked_for_stay_those_of_the_last_sample() {
    let mut gauges = Gauges::begin(probe_of(Some(1)));
    gauges.sample(0, probe_of(Some(2)));
    let counters = probe_of(Some(3)).map(|probe| Probe {
        levels: None,
        ..probe
    });
    gauges.sample(1, counters);
    let mut found = Measured::default();
    gauges.finish(&mut found);
    assert_eq!(found.seconds[1].levels, None);
    assert_eq!(found.seconds[1].log_bytes, Some(1));
    assert_eq!(found.levels[0].bytes, 2);
}

/// Without this, a run of a few seconds would seem to begin with an empty tree.
#[test]
fn the_first_second_has_the_shape_at_the_start_unless_it_was_asked_at_its_end() {
    let without_levels = |count| {
        probe_of(Some(count)).map(|probe| Probe {
            levels: None,
            ..probe
        })
    };
    let first_bytes = |sample: Option<Probe>| {
        let mut gauges = Gauges::begin(probe_of(Some(1)));
        gauges.sample(0, sample);
        gauges.sample(1, probe_of(Some(3)));
        let mut found = Measured::default();
        gauges.finish(&mut found);
        found.seconds[0].levels.as_ref().unwrap()[0].bytes
    };
    assert_eq!(first_bytes(without_levels(2)), 1);
    assert_eq!(first_bytes(None), 1);
    assert_eq!(first_bytes(probe_of(Some(2))), 2);

    let mut gauges = Gauges::begin(None);
    gauges.sample(1, None);
    let mut found = Measured::default();
    gauges.finish(&mut found);
    assert_eq!(found.seconds[0].levels, None);
}

#[test]
fn the_shape_is_asked_for_every_second_while_an_answer_is_quick() {
    let probe = |levels_took| {
        probe_of(Some(1)).map(|probe| Probe {
            levels_took,
            ..probe
        })
    };
    let (quick, slow) = (QUICK / 2, QUICK);
    let mut gauges = Gauges::begin(probe(quick));
    assert_eq!(gauges.ask(1), Ask::FiguresAndLevels);
    gauges.sample(0, probe(quick));
    assert_eq!(gauges.ask(2), Ask::FiguresAndLevels);
    gauges.sample(1, probe(slow));
    for now_s in 3..12 {
        assert_eq!(gauges.ask(now_s), Ask::Figures, "{now_s}");
    }
    assert_eq!(gauges.ask(12), Ask::FiguresAndLevels);
    // The sample was late, and the store was not open.
    gauges.sample(13, None);
    assert_eq!(gauges.ask(15), Ask::FiguresAndLevels);
    gauges.sample(14, probe(quick));
    assert_eq!(gauges.ask(16), Ask::FiguresAndLevels);
}

#[test]
fn a_time_that_is_not_a_number_is_not_known() {
    let mut gauges = Gauges::begin(probe_of(Some(1)));
    gauges.sample(0, probe_of(Some(2)));
    let mut found = Measured::default();
    gauges.finish(&mut found);
    assert_eq!(found.figures.compaction_cpu_s, None);
    assert!(!found.figures.stall_s.contains_key("torn"));
    let stall_s = found.seconds[0].stall_s.as_ref().unwrap();
    assert_eq!(stall_s.keys().collect::<Vec<_>>(), ["log"]);
}

#[test]
fn a_late_sample_has_the_sum_of_the_seconds_that_it_missed() {
    let mut gauges = Gauges::begin(probe_of(Some(0)));
    gauges.sample(0, probe_of(Some(1)));
    gauges.sample(3, probe_of(Some(9)));
    let mut found = Measured::default();
    gauges.finish(&mut found);
    let rows: Vec<Option<u64>> = found.seconds.iter().map(|row| row.log_bytes).collect();
    assert_eq!(rows, [Some(1), None, None, Some(8)]);
    assert_eq!(found.seconds[1].levels, None);
    assert_eq!(found.figures.log_bytes, Some(9));
}

#[test]
fn the_sampler_samples_while_the_workload_runs() {
    let asked = AtomicU64::new(0);
    let asked_for_levels = AtomicU64::new(0);
    let probe = |ask| {
        let count = asked.fetch_add(1, Ordering::Relaxed);
        let of_levels = u64::from(ask == Ask::FiguresAndLevels);
        asked_for_levels.fetch_add(of_levels, Ordering::Relaxed);
        probe_of(Some(count))
    };
    let found = measured(probe, |meter| {
        let mut recorder = meter.recorder(Role::Measured);
        recorder.begin();
        recorder.lap(&done(Kind::Put, 1));
        // One sample is taken before, one at the end, and one while the workload runs.
        while asked.load(Ordering::Relaxed) < 2 {
            std::thread::yield_now();
        }
    });
    assert!(asked.load(Ordering::Relaxed) >= 3);
    // The answers are quick, so each sample has the shape.
    let levels = asked_for_levels.load(Ordering::Relaxed);
    assert_eq!(levels, asked.load(Ordering::Relaxed));
    let grown = found.figures.log_bytes.unwrap();
    assert_eq!(grown, asked.load(Ordering::Relaxed) - 1);
    assert!(found.seconds.len() >= 2);
    assert!(found.seconds[0].log_bytes.is_some());
    assert!(found.seconds[0].cpu_s.unwrap() > 0.0);
    assert!(found.sampler_cpu_s.unwrap() > 0.0);
    #[cfg(target_os = "linux")]
    assert!(found.thread_cpu_s.contains_key("bench-sampler"));
    assert!(found.peak_resident_bytes >= found.peak_anonymous_bytes);
}

#[test]
fn a_run_without_a_recorder_has_one_empty_second() {
    let found = measured(no_engine, |_| {});
    assert_eq!(found.start, None);
    assert_eq!(found.counts, Counts::default());
    assert_eq!(found.seconds.len(), 1);
    assert_eq!(found.seconds[0].operations, 0);
    assert!(found.all.is_empty());
}

#[test]
fn a_meter_has_one_sampler() {
    let meter = Meter::new();
    std::thread::scope(|scope| {
        let sampler = Sampler::start(scope, &meter, no_engine).unwrap();
        let second = Sampler::start(scope, &meter, no_engine);
        assert!(second.unwrap_err().to_string().contains("one sampler only"));
        sampler.finish();
    });
}

#[test]
fn a_second_is_closed_when_all_have_left_it() {
    let found = measured(no_engine, |meter| {
        // Both run on this thread, so their order is known.
        let mut ahead = meter.recorder(Role::Measured);
        let mut behind = meter.recorder(Role::Measured);
        ahead.begin();
        behind.begin();
        let at = |ms| meter.start() + Duration::from_millis(ms);
        for second in 0..5 {
            let ended = at(second * 1000 + 500);
            ahead.record(
                &done(Kind::Get, 1),
                ended,
                ended + Duration::from_micros(second),
            );
        }
        // What it did in second 0 arrives when the other one is in second 4.
        behind.record(&done(Kind::Get, 1), at(0), at(900));
        behind.record(&done(Kind::Get, 1), at(900), at(4_900));
    });
    let counts: Vec<u64> = found
        .seconds
        .iter()
        .map(|row| row.latency["get"].count)
        .collect();
    assert_eq!(counts, [2, 1, 1, 1, 2]);
    assert_eq!(found.seconds[0].latency["get"].max_us, 900_000.0);
}
