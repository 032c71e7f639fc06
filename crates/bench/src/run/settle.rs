//! Brings the store to rest: flushes it if it was written to, and waits until its engine is idle.
//!
//! All engines are treated alike. Without the flush, an engine that leaves a memtable in memory
//! would have done less work than one that writes it.
//!
//! A call of an engine cannot be interrupted, and an engine may never become idle. So it is called
//! on a thread of its own. If that thread does not return by the deadline, or if the user ends the
//! run, it is left behind with its share of the store, which then cannot be closed any more.
//!
//! Threading: the caller waits for the thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::error::RunError;
use super::store::{self, Fixture};
use crate::engine::{EngineError, Result as EngineResult};
use crate::measure::idle::Limits;
use crate::measure::{Quiet, wait_until_quiet};

/// How long to wait at most: an hour.
const DEADLINE: Duration = Duration::from_secs(3600);

/// How often the waiting thread looks whether the user has ended the run.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A wait until a store is idle.
pub(super) struct Wait<'a> {
    /// Whether memtables are written first.
    pub flush: bool,
    /// Ends the wait.
    pub stop: &'a AtomicBool,
    /// How long to wait at most.
    pub deadline: Duration,
    /// Processor time so far, in seconds, of threads that are no work of the engine.
    pub exempt_cpu_s: &'a dyn Fn() -> f64,
}

impl<'a> Wait<'a> {
    /// The wait for a store that nobody has written to since it was opened.
    pub fn after_open(stop: &'a AtomicBool) -> Wait<'a> {
        Wait {
            flush: false,
            stop,
            deadline: DEADLINE,
            exempt_cpu_s: &|| 0.0,
        }
    }

    /// The wait after a workload.
    pub fn after(writes: bool, stop: &'a AtomicBool, exempt_cpu_s: &'a dyn Fn() -> f64) -> Self {
        Wait {
            flush: writes,
            stop,
            deadline: DEADLINE,
            exempt_cpu_s,
        }
    }

    /// Waits, and returns since when the store is idle.
    ///
    /// # Errors
    /// Those of the engine; if the deadline has passed or the user has ended the run.
    pub fn wait(&self, fixture: &Fixture<'_>) -> Result<Instant, RunError> {
        let begun = Instant::now();
        let answer = ask(fixture, self.flush)?;
        match self.answer(fixture, &answer, begun)? {
            Some(since) => Ok(since),
            None => self.quiet(fixture, begun),
        }
    }

    /// Since when the engine says that it is idle; `None` if it cannot say.
    fn answer(
        &self,
        fixture: &Fixture<'_>,
        answer: &Receiver<EngineResult<Option<Instant>>>,
        begun: Instant,
    ) -> Result<Option<Instant>, RunError> {
        loop {
            match answer.recv_timeout(LOOK_AGAIN) {
                Ok(found) => return found.map_err(|error| fixture.engine_error(error)),
                Err(RecvTimeoutError::Disconnected) => return Err(RunError::Panic),
                Err(RecvTimeoutError::Timeout) if self.stop.load(Ordering::Acquire) => {
                    return Err(RunError::Interrupted);
                }
                Err(RecvTimeoutError::Timeout) if begun.elapsed() >= self.deadline => {
                    return Err(self.never(fixture));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until the process does nothing, for an engine that cannot be asked.
    fn quiet(&self, fixture: &Fixture<'_>, begun: Instant) -> Result<Instant, RunError> {
        let limits = Limits {
            at_most: self.deadline.saturating_sub(begun.elapsed()),
            ..Limits::default()
        };
        let is_stopped = || self.stop.load(Ordering::Acquire);
        match wait_until_quiet(&limits, is_stopped, self.exempt_cpu_s) {
            Quiet::Since(since) => Ok(since),
            Quiet::Stopped => Err(RunError::Interrupted),
            Quiet::Never => Err(self.never(fixture)),
        }
    }

    fn never(&self, fixture: &Fixture<'_>) -> RunError {
        let seconds = self.deadline.as_secs();
        fixture.engine_error(EngineError::new(
            "wait until idle",
            format!(
                "the engine still flushes or compacts after {seconds} s; run fewer operations, or \
                 give the engine more background threads"
            ),
        ))
    }
}

/// Flushes the store if it shall, and asks the engine since when it is idle.
fn ask(
    fixture: &Fixture<'_>,
    flush: bool,
) -> Result<Receiver<EngineResult<Option<Instant>>>, RunError> {
    let engine = fixture.share()?;
    let (sender, receiver) = mpsc::channel();
    let work = move || {
        let flushed = if flush { engine.flush() } else { Ok(()) };
        let found = flushed.and_then(|()| engine.idle_since());
        // The caller may close the store as soon as it has the answer.
        drop(engine);
        // It may have given up.
        let _ = sender.send(found);
    };
    std::thread::Builder::new()
        .name("bench-settle".into())
        .spawn(work)
        .map_err(store::system("start the thread that waits until idle"))?;
    Ok(receiver)
}
