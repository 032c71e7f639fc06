//! Stores at rest: before the clock starts, and when it stops.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::spy::{Event, Habit, Spy};
use super::{Control, Progress, RunError, run, run_in, small};
use crate::run::settle::Wait;
use crate::run::store::Fixture;
use crate::settings::{Amount, Arrival, Cache, Kind, Settings, Workload};

/// The calls in short, without repetitions.
fn calls(spy: &Spy) -> Vec<&'static str> {
    let mut all: Vec<&str> = spy
        .events()
        .iter()
        .map(|event| match event {
            Event::Open(_) => "open",
            Event::Close => "close",
            Event::Flush => "flush",
            Event::Wait => "wait",
            Event::Put { .. } => "put",
            Event::Get(_) => "get",
        })
        .collect();
    all.dedup();
    all
}

#[test]
fn writes_are_flushed_and_every_open_is_followed_by_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    run_in(&spy, folder.path(), &small(Workload::FillRandom));
    let fill = ["open", "wait", "put", "flush", "wait", "close"];
    assert_eq!(calls(&spy), fill);
    run_in(&spy, folder.path(), &small(Workload::ReadRandom));
    assert_eq!(calls(&spy), ["open", "wait", "get", "wait", "close"]);
    let cold = Settings {
        cache: Cache::Cold,
        ..small(Workload::ReadRandom)
    };
    run_in(&spy, folder.path(), &cold);
    assert_eq!(
        calls(&spy),
        [
            "open", "wait", "close", "open", "wait", "get", "wait", "close"
        ]
    );
}

#[test]
fn the_time_until_idle_ends_when_the_engine_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::with(Habit::IdleLater(Duration::from_secs(3)));
    let found = run_in(&spy, folder.path(), &small(Workload::FillRandom));
    let start = found.measured.start.unwrap();
    let idle = start + found.measured.until_last + found.settled_after;
    assert_eq!(Some(idle), *spy.idle_since.lock().unwrap());
}

#[test]
fn an_engine_that_never_becomes_idle_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::with(Habit::NeverIdle);
    let fixture = Fixture::create(&spy, folder.path(), &small(Workload::FillSeq)).unwrap();
    let stop = AtomicBool::new(false);
    let wait = Wait {
        deadline: Duration::ZERO,
        ..Wait::after_open(&stop)
    };
    let error = wait.wait(&fixture).unwrap_err().to_string();
    assert!(
        error.contains("still flushes or compacts after 0 s"),
        "{error}"
    );
    stop.store(true, Ordering::Release);
    let stopped = Wait::after_open(&stop).wait(&fixture);
    assert!(matches!(stopped, Err(RunError::Interrupted)));
}

#[test]
fn the_user_can_end_a_wait() {
    let folder = tempfile::tempdir().unwrap();
    run_in(&Spy::default(), folder.path(), &small(Workload::FillSeq));
    let control = Control::default();
    let stop_at_once = |progress| {
        if progress == Progress::Preparing {
            control.stop.store(true, Ordering::Release);
        }
    };
    let spy = Spy::with(Habit::NeverIdle);
    let settings = small(Workload::ReadRandom);
    let result = run(&spy, folder.path(), &settings, &control, &stop_at_once);
    assert!(matches!(result, Err(RunError::Interrupted)));
}

#[test]
fn sizes_are_read_open_and_closed() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::with(Habit::TableAtClose);
    let found = run_in(&spy, folder.path(), &small(Workload::FillSeq));
    let (open, closed) = (found.sizes.tables, found.closed_sizes.tables);
    assert_eq!(closed.files, open.files + 1);
    assert_eq!(closed.bytes, open.bytes + 5000);
}

#[test]
fn what_was_due_and_not_begun_is_in_the_latencies() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::with(Habit::SlowPuts(Duration::from_millis(20)));
    let settings = Settings {
        arrival: Arrival::Constant(1000.0),
        amount: Some(Amount::Seconds(0.1)),
        ..small(Workload::FillRandom)
    };
    let found = run_in(&spy, folder.path(), &settings);
    let measured = &found.measured;
    let (done, censored) = (measured.counts.operations, measured.censored_operations);
    assert_eq!(found.open_loop.unwrap().due_operations, 100);
    assert_eq!(done + censored, 100);
    assert!(censored > 90, "{censored}");
    assert_eq!(measured.all.count(), 100);
    assert_eq!(measured.latency[&Kind::Put].count(), 100);
    assert_eq!(measured.service[&Kind::Put].count(), done);
    // The last one was due 1 ms before the end, the first one that waited nearly 100 ms before.
    assert!(measured.all.quantile_us(0.5) > Some(20_000.0));
}

#[test]
fn the_writer_beside_reads_keeps_to_its_rate() {
    let folder = tempfile::tempdir().unwrap();
    let spy = Spy::default();
    run_in(&spy, folder.path(), &small(Workload::FillSeq));
    let settings = Settings {
        write_rate: Some(100.0),
        amount: Some(Amount::Seconds(0.3)),
        ..small(Workload::ReadWhileWriting)
    };
    let found = run_in(&spy, folder.path(), &settings);
    // Thirty writes are due in that time; a busy machine may do fewer.
    let writes = found.measured.beside.operations;
    assert!((1..=30).contains(&writes), "{writes}");
    assert_eq!(found.open_loop, None);
    // Their latencies count from the intended start.
    assert_eq!(found.measured.service[&Kind::Put].count(), writes);
}
