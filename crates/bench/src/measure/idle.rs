//! Waits until an engine that cannot be asked is idle.
//!
//! It is idle if the process, without the thread that waits here, uses next to no processor time
//! for a while and no thread waits for a device. What can be missed is an engine that sleeps longer
//! than that while work is due; see [`Limits::quiet`].
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
    /// The caller did not want to wait any more.
    Stopped,
}

/// How often the process is looked at.
const STEP: Duration = Duration::from_millis(10);

/// Processor time in a step up to which a process is quiet, in seconds. The sampler stays below.
const BUSY_S: f64 = 0.0007;

/// Waits until the process is quiet, or `is_stopped` says that nobody waits any more.
/// `exempt_cpu_s` is the processor time so far of threads that do not count, such as
/// [`super::Meter::sampler_cpu_s`].
pub fn wait_until_quiet(
    limits: &Limits,
    mut is_stopped: impl FnMut() -> bool,
    exempt_cpu_s: impl Fn() -> f64,
) -> Quiet {
    let begin = Instant::now();
    let mut quiet_since = begin;
    let mut cpu_s = others_cpu_s(exempt_cpu_s());
    while quiet_since.elapsed() < limits.quiet {
        if is_stopped() {
            return Quiet::Stopped;
        }
        if begin.elapsed() >= limits.at_most {
            return Quiet::Never;
        }
        std::thread::sleep(STEP.min(limits.quiet));
        let now_s = others_cpu_s(exempt_cpu_s());
        // All threads of a busy process wait for the device now and then, so the second question
        // is asked only if the first one finds nothing.
        if now_s - cpu_s > BUSY_S || waits_for_device() {
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
    fn quiet_is_a_while_without_work() {
        let begin = Instant::now();
        let found = wait_until_quiet(&limits(30, 60_000), || false, everything_else);
        let Quiet::Since(since) = found else {
            panic!("{found:?}");
        };
        assert!(since >= begin);
        assert!(since.elapsed() >= Duration::from_millis(30));
    }

    #[test]
    fn a_wait_that_is_given_up_ends() {
        let found = wait_until_quiet(&limits(60_000, 0), || false, everything_else);
        assert_eq!(found, Quiet::Never);
        let found = wait_until_quiet(&limits(60_000, 60_000), || true, everything_else);
        assert_eq!(found, Quiet::Stopped);
    }

    #[test]
    fn a_window_of_nothing_ends_at_once() {
        let found = wait_until_quiet(&limits(0, 0), || true, everything_else);
        assert!(matches!(found, Quiet::Since(_)));
    }
}
