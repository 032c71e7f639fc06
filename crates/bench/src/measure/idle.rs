//! Waits until an engine that cannot be asked is idle.
//!
//! It is idle if the process, without the thread that waits here, uses next to no processor time
//! for a while, no thread waits for a device, and the engine does not say that it is busy. What can
//! be missed is an engine that sleeps longer than that while work is due; see [`Limits::quiet`].
//!
//! Threading: the caller waits. The threads of the workload must have ended before.

use std::time::{Duration, Instant};

use super::process;

/// How long to wait, and for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// How long the process must be quiet. Engines that wait before they look for work, such as
    /// fjall with 100 ms, need more than that.
    pub quiet: Duration,
    /// How long to wait at most.
    pub at_most: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            quiet: Duration::from_millis(300),
            at_most: Duration::from_secs(3600),
        }
    }
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quiet {
    /// The process has been quiet since this moment. The engine had no work from then on, so time
    /// is counted until then.
    Since(Instant),
    /// It was still busy when the wait was given up.
    Never,
}

/// How often the process is looked at.
const STEP: Duration = Duration::from_millis(10);

/// Processor time in a step up to which a process is quiet, in seconds. The sampler stays below.
const BUSY_S: f64 = 0.0007;

/// Waits until the process is quiet. `is_busy` is asked at every step and may know better; it
/// should be cheap. `exempt_cpu_s` is the processor time so far of threads that do not count, such
/// as [`super::Meter::sampler_cpu_s`].
pub fn wait_until_quiet(
    limits: &Limits,
    mut is_busy: impl FnMut() -> bool,
    exempt_cpu_s: impl Fn() -> f64,
) -> Quiet {
    let begin = Instant::now();
    let mut quiet_since = begin;
    let mut cpu_s = others_cpu_s(exempt_cpu_s());
    while quiet_since.elapsed() < limits.quiet {
        if begin.elapsed() >= limits.at_most {
            return Quiet::Never;
        }
        std::thread::sleep(STEP.min(limits.quiet));
        let now_s = others_cpu_s(exempt_cpu_s());
        // All threads of a busy process wait for the device now and then, so the second question
        // is asked only if the first one finds nothing.
        if now_s - cpu_s > BUSY_S || waits_for_device() || is_busy() {
            quiet_since = Instant::now();
        }
        cpu_s = now_s;
    }
    Quiet::Since(quiet_since)
}

/// Processor time of all threads but this one and the exempt ones.
fn others_cpu_s(exempt_s: f64) -> f64 {
    let all_s = process::cpu_s().unwrap_or_default();
    all_s - process::thread_cpu_s().unwrap_or_default() - exempt_s
}

fn waits_for_device() -> bool {
    let threads = process::threads().unwrap_or_default();
    threads.iter().any(|thread| thread.waits_for_device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Exempts everything that the other threads of the tests do at the same time.
    fn everything_else() -> f64 {
        process::cpu_s().unwrap() - process::thread_cpu_s().unwrap()
    }

    fn limits(quiet_ms: u64, at_most_ms: u64) -> Limits {
        Limits {
            quiet: Duration::from_millis(quiet_ms),
            at_most: Duration::from_millis(at_most_ms),
        }
    }

    #[test]
    fn quiet_begins_when_the_engine_stops_being_busy() {
        let begin = Instant::now();
        let asked = Cell::new(0);
        let is_busy = || {
            asked.set(asked.get() + 1);
            asked.get() <= 3
        };
        let found = wait_until_quiet(&limits(30, 60_000), is_busy, everything_else);
        let Quiet::Since(since) = found else {
            panic!("{found:?}");
        };
        assert!(asked.get() > 3);
        // It was busy in three steps of ten milliseconds.
        assert!(since >= begin + Duration::from_millis(30));
        assert!(since.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_wait_for_a_busy_engine_ends() {
        let found = wait_until_quiet(&limits(30, 50), || true, everything_else);
        assert_eq!(found, Quiet::Never);
    }

    #[test]
    fn a_window_of_nothing_ends_at_once() {
        let found = wait_until_quiet(&limits(0, 0), || true, everything_else);
        assert!(matches!(found, Quiet::Since(_)));
    }
}
