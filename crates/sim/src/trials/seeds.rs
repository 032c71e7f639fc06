//! Runs many seeds of a trial on all cores, as the test or the environment requests.
//!
//! [`seeds`] runs a trial with a range of seeds, prints their coverage, and prints the command that
//! repeats each seed that failed. It also reduces a failing seed to a small test
//! ([`crate::reduce`]) on request.
//!
//! Invariants: every seed of the range runs exactly once, on whichever thread takes it. A seed that
//! fails does not stop the others, unless `SILT_STOP` asks for the first failure.
//!
//! Threading: the threads share a counter of seeds and, under a mutex, the results.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::coverage::Coverage;
use crate::reduce::{as_test, reduce};

/// Runs `trial` with `count` seeds starting from `first`, on every core.
///
/// Prints each seed that fails with the command that repeats it. The environment changes which
/// seeds run:
/// - `SILT_SEED=K` runs only seed K.
/// - `SILT_SEED=K` and `SILT_COUNT=N` run N seeds starting from K, sequentially.
/// - `SILT_SEED=K` and `SILT_REDUCE=N` reduce seed K in at most N runs ([`crate::reduce`]).
/// - `SILT_SEEDS=N` runs N percent of `count`.
/// - `SILT_STOP=N` stops at the first seed that fails and prints how many seeds that took, or stops
///   after N seconds. The coverage in `wanted` is not required then. `cargo xtask planted` uses
///   this.
///
/// # Panics
/// At the end, if a seed failed, or if a name in `wanted` was never reached. The coverage is not
/// checked for seeds that `SILT_SEED` requests, nor for fewer seeds than `count`.
pub fn seeds(
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    seeds_on(cores, test, first, count, wanted, trial)
}

/// Does the same as [`seeds`] with one seed after the other, for trials that share a folder or that
/// start processes and threads of their own.
///
/// # Panics
/// In the same cases as [`seeds`].
pub fn seeds_in_turn(
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    seeds_on(1, test, first, count, wanted, trial)
}

/// Does the same as [`seeds`] on at most `cores` threads.
fn seeds_on(
    cores: usize,
    test: &str,
    first: u64,
    count: u64,
    wanted: &[&str],
    trial: impl Fn(u64) -> Coverage + Sync,
) -> Coverage {
    let number = |name: &str| {
        std::env::var(name).ok().map(|v| {
            v.parse::<u64>()
                .unwrap_or_else(|_| panic!("{name}={v} is no number"))
        })
    };
    let single = number("SILT_SEED");
    if let (Some(seed), Some(runs_max)) = (single, number("SILT_REDUCE")) {
        return reduced(test, seed, runs_max, trial);
    }
    let range = match single {
        Some(seed) => seed..seed + number("SILT_COUNT").unwrap_or(1).max(1),
        None => first..first + (count * number("SILT_SEEDS").unwrap_or(100) / 100).max(1),
    };
    let stop = number("SILT_STOP").map(Duration::from_secs);
    // If particular seeds or the first failure were requested, other runs already use the other
    // cores.
    let threads = match single.is_some() || stop.is_some() {
        true => 1,
        false => cores,
    };
    let start = Instant::now();
    let Tried {
        total,
        coverage,
        failed,
    } = try_seeds(test, range, threads, stop, &trial);
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{test}: {total} seeds in {seconds:.1} s ({:.0} a second)\n{coverage}",
        total as f64 / seconds
    );
    assert!(
        failed.is_empty(),
        "{test}: {} of {total} seeds failed: {failed:?}",
        failed.len()
    );
    let missing = coverage.missing(wanted);
    assert!(
        single.is_some() || stop.is_some() || total < count || missing.is_empty(),
        "{test}: never reached: {missing:?}"
    );
    coverage
}

/// The results of a batch of seeds.
#[derive(Default)]
struct Tried {
    /// The number of seeds that ran.
    total: u64,
    coverage: Coverage,
    /// The seeds that failed, in ascending order.
    failed: Vec<u64>,
}

/// Runs the seeds of `range` on `threads` threads, each of which takes the next free seed. With
/// `stop`, ends at the first failure or when that much time has passed.
fn try_seeds<F: Fn(u64) -> Coverage + Sync>(
    test: &str,
    range: Range<u64>,
    threads: usize,
    stop: Option<Duration>,
    trial: &F,
) -> Tried {
    let start = Instant::now();
    let next = AtomicU64::new(range.start);
    let tried = Mutex::new(Tried::default());
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= range.end || stop.is_some_and(|stop| start.elapsed() > stop) {
                return;
            }
            let reached = catch_unwind(AssertUnwindSafe(|| trial(seed)));
            let mut tried = tried.lock().unwrap_or_else(PoisonError::into_inner);
            tried.total += 1;
            match reached {
                Ok(reached) => tried.coverage.merge(&reached),
                Err(_) => {
                    eprintln!(
                        "FAILED: {test}, seed {seed}; repeat: SILT_SEED={seed} cargo test \
                         -p siltstone-sim --test {} {test} -- --nocapture",
                        test_binary()
                    );
                    tried.failed.push(seed);
                    if stop.is_some() {
                        println!("CAUGHT: {test} after {} seeds", tried.total);
                        return;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            // The test's own thread always takes part, so a worker thread that fails to start only
            // makes the run slower.
            let _ = std::thread::Builder::new()
                .name(test.to_string())
                .spawn_scoped(scope, work);
        }
        work();
    });
    let mut tried = tried.into_inner().unwrap_or_else(PoisonError::into_inner);
    tried.failed.sort_unstable();
    tried
}

/// The name of the test binary that is running, as cargo's `--test` takes it.
fn test_binary() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    match name.rsplit_once('-') {
        Some((test, _)) => test.to_string(),
        None => name.into_owned(),
    }
}

/// Reduces a seed that fails to the operations that it needs, in at most `runs_max` runs.
///
/// # Panics
/// If the seed fails, with a test that runs only the remaining operations.
fn reduced<F: Fn(u64) -> Coverage>(test: &str, seed: u64, runs_max: u64, trial: F) -> Coverage {
    let fails = || {
        let caught = catch_unwind(AssertUnwindSafe(|| trial(seed)));
        let payload = caught.err()?;
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|s| s.to_string()));
        Some(text.unwrap_or_else(|| "it panics".to_string()))
    };
    let Some((cut, how)) = reduce(runs_max, fails) else {
        println!("{test}: seed {seed} does not fail");
        return Coverage::default();
    };
    // The printed test calls a trial that is a function by its name. A closure has none, so the
    // test's name stands for it.
    let name = std::any::type_name::<F>();
    let name = match name.rsplit("::").next() {
        Some(function) if !name.contains("{{closure}}") => function,
        _ => test,
    };
    panic!("reduced:\n{}", as_test(name, seed, &cut, &how));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_tried_once_and_those_that_fail_are_reported_in_order() {
        let trial = |seed: u64| {
            assert!(!seed.is_multiple_of(40), "one that fails");
            let mut reached = Coverage::default();
            reached.add(&format!("seed.{seed:03}"));
            reached
        };
        for threads in [1, 3] {
            let tried = try_seeds("none", 10..130, threads, None, &trial);
            assert_eq!((tried.total, &tried.failed[..]), (120, &[40, 80, 120][..]));
            for seed in 10..130 {
                let times = tried.coverage.of(&format!("seed.{seed:03}"));
                assert_eq!(times, u64::from(seed % 40 != 0), "seed {seed}");
            }
        }
        let first = try_seeds("none", 10..130, 1, Some(Duration::from_secs(60)), &trial);
        assert_eq!((first.total, &first.failed[..]), (31, &[40][..]));
    }
}
