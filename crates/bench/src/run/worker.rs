//! The loop of one thread: it does operations and records how long they take.
//!
//! In a closed loop an operation starts when the last one has ended. In an open loop it starts at
//! its intended time, or at once if that is past, and its latency counts from the intended time
//! (see `generate/arrival.rs`). If the time is over while operations are due that were not begun,
//! what they have waited is recorded as a lower bound of their latencies: they are those that wait
//! longest, and without them a store that is too slow would look fast.
//!
//! Threading: each thread runs [`work`] by itself. A flag ends all of them.

use std::ops::AddAssign;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::operations::{Failure, Operation, Tools};
use crate::generate::arrival::Arrivals;
use crate::measure::{Role, Times};
use crate::settings::Kind;

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

/// What was due in an open loop; nothing in a closed one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Due {
    /// Operations that were due until the time was over, begun or not.
    pub operations: u64,
}

impl AddAssign for Due {
    fn add_assign(&mut self, other: Due) {
        self.operations += other.operations;
    }
}

/// Does operations until there are none left, the time is over, or the run is stopped. Returns what
/// was due.
pub(super) fn work(
    common: &Common<'_>,
    mut operation: Box<dyn Operation + Send + '_>,
    mut tools: Tools<'_>,
    arrivals: Option<Arrivals>,
    role: Role,
) -> Result<Due, Failure> {
    common.ready.wait();
    let start = tools.recorder.begin();
    let end = common.limit.map(|limit| start + limit);
    let result = match arrivals {
        None => closed(common, &mut *operation, &mut tools, end),
        Some(arrivals) => {
            let arrivals = Intended { arrivals, start };
            open(common, &mut *operation, &mut tools, end, arrivals)
        }
    };
    let is_measured = role == Role::Measured;
    let is_last = is_measured && common.working.fetch_sub(1, Ordering::AcqRel) == 1;
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
) -> Result<Due, Failure> {
    while !common.stop.load(Ordering::Relaxed) {
        let Some(done) = operation.step(tools)? else {
            break;
        };
        let now = tools.recorder.lap(&done);
        if end.is_some_and(|end| now >= end) {
            break;
        }
    }
    Ok(Due::default())
}

/// The moments at which operations should begin.
struct Intended {
    arrivals: Arrivals,
    start: Instant,
}

impl Intended {
    fn next(&mut self) -> Instant {
        self.start + Duration::from_nanos(self.arrivals.next_nanoseconds())
    }
}

fn open(
    common: &Common<'_>,
    operation: &mut dyn Operation,
    tools: &mut Tools<'_>,
    end: Option<Instant>,
    mut arrivals: Intended,
) -> Result<Due, Failure> {
    let mut due = Due::default();
    loop {
        let intended = arrivals.next();
        if end.is_some_and(|end| intended >= end) {
            return Ok(due);
        }
        let Some(began) = wait_until(intended, common.stop) else {
            return Ok(due);
        };
        let Some(done) = operation.step(tools)? else {
            return Ok(due);
        };
        due.operations += 1;
        let ended = Instant::now();
        let times = Times {
            intended,
            began,
            ended,
        };
        tools.recorder.record_open(&done, &times);
        if let Some(end) = end.filter(|end| ended >= *end) {
            due.operations += give_up(operation.kind(), tools, &mut arrivals, end, ended);
            return Ok(due);
        }
    }
}

/// Records what was due before `end` and had not begun at `given_up`, and returns how many they
/// were.
fn give_up(
    kind: Option<Kind>,
    tools: &mut Tools<'_>,
    arrivals: &mut Intended,
    end: Instant,
    given_up: Instant,
) -> u64 {
    let mut count = 0;
    loop {
        let intended = arrivals.next();
        if intended >= end {
            return count;
        }
        tools.recorder.record_censored(kind, intended, given_up);
        count += 1;
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
