//! The loop of one thread: it does operations and records how long they take.
//!
//! In a closed loop an operation starts when the last one has ended. In an open loop it starts at
//! its intended time, or at once if that is past, and its latency counts from the intended time
//! (see `generate/arrival.rs`).
//!
//! Threading: each thread runs [`work`] by itself. A flag ends all of them.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::operations::{Failure, Operation, Tools};
use crate::generate::arrival::Arrivals;
use crate::measure::Times;

/// A thread that waits for its next operation sleeps until this long before it, and spins for the
/// last part: a sleep may end this much late.
const SPIN: Duration = Duration::from_micros(100);

/// The longest sleep, after which the flag is looked at again.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// What the threads of a run share.
pub(super) struct Common<'a> {
    /// All threads are ready when they meet here.
    pub ready: &'a Barrier,
    /// Ends the run.
    pub stop: &'a AtomicBool,
    /// The measured threads that still work.
    pub working: &'a AtomicU32,
    /// How long the run lasts, if time decides.
    pub limit: Option<Duration>,
}

/// Does operations until there are none left, the time is over, or the run is stopped. Returns how
/// many operations of an open loop were due by then, done or not; 0 in a closed loop.
pub(super) fn work(
    common: &Common<'_>,
    mut operation: Box<dyn Operation + Send + '_>,
    mut tools: Tools<'_>,
    arrivals: Option<Arrivals>,
    is_background: bool,
) -> Result<u64, Failure> {
    common.ready.wait();
    let start = tools.recorder.begin();
    let end = common.limit.map(|limit| start + limit);
    let result = match arrivals {
        None => closed(common, &mut *operation, &mut tools, end),
        Some(arrivals) => open(common, &mut *operation, &mut tools, end, arrivals, start),
    };
    let is_last = !is_background && common.working.fetch_sub(1, Ordering::AcqRel) == 1;
    if is_last || result.is_err() {
        common.stop.store(true, Ordering::Release);
    }
    if let Err(failure) = &result {
        match failure {
            Failure::Engine(_) => tools.recorder.count_error(),
            Failure::Wrong(_) => tools.recorder.count_wrong_answer(),
        }
    }
    result
}

fn closed(
    common: &Common<'_>,
    operation: &mut dyn Operation,
    tools: &mut Tools<'_>,
    end: Option<Instant>,
) -> Result<u64, Failure> {
    while !common.stop.load(Ordering::Relaxed) {
        let Some(done) = operation.step(tools)? else {
            break;
        };
        let now = tools.recorder.lap(&done);
        if end.is_some_and(|end| now >= end) {
            break;
        }
    }
    Ok(0)
}

fn open(
    common: &Common<'_>,
    operation: &mut dyn Operation,
    tools: &mut Tools<'_>,
    end: Option<Instant>,
    mut arrivals: Arrivals,
    start: Instant,
) -> Result<u64, Failure> {
    let mut due = 0;
    loop {
        let intended = start + Duration::from_nanos(arrivals.next_nanoseconds());
        if end.is_some_and(|end| intended >= end) {
            return Ok(due);
        }
        let Some(began) = wait_until(intended, common.stop) else {
            return Ok(due);
        };
        let Some(done) = operation.step(tools)? else {
            return Ok(due);
        };
        due += 1;
        let ended = Instant::now();
        let times = Times {
            intended,
            began,
            ended,
        };
        tools.recorder.record_open(&done, &times);
        // What is still due when the time is over is counted, and not done any more.
        if let Some(end) = end.filter(|end| ended >= *end) {
            let mut next = || start + Duration::from_nanos(arrivals.next_nanoseconds());
            while next() < end {
                due += 1;
            }
            return Ok(due);
        }
    }
}

/// Waits until `intended` and returns the time then; `None` if the run was stopped.
fn wait_until(intended: Instant, stop: &AtomicBool) -> Option<Instant> {
    loop {
        if stop.load(Ordering::Relaxed) {
            return None;
        }
        let now = Instant::now();
        let Some(left) = intended.checked_duration_since(now) else {
            return Some(now);
        };
        if left > SPIN {
            std::thread::sleep((left - SPIN).min(SLEEP_MAX));
        } else {
            std::hint::spin_loop();
        }
    }
}
