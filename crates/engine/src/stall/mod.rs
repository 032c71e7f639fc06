//! Pressure: whether a batch may join the write queue, and the record of every delay.
//!
//! What it is: [`policy::decide`] is a pure function of a keyspace's [`Load`] and the [`Limits`]; `Stalls` holds the condition on which
//! writers wait, and every delay with its keyspace, cause, numbers and duration, readable while it lasts.
//!
//! Invariants: a batch is asked *before* it joins the queue, so a keyspace that must wait delays nobody else (RFC 1, P4); a
//! waiting writer is woken by every event that can lower the load (a flush or a compaction was installed, space came back, the store
//! closed) and asks again; a delay is counted once, by the cause it began with.
//!
//! Threading: one runtime mutex; nothing else is locked while waiting.

pub mod policy;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use siltstone_storage::{Condvar, Instant, Mutex, Runtime};

pub use policy::{Cause, Decision, Limits, Load};

/// A finished or present delay of a writer.
#[derive(Clone, Debug)]
pub struct Delay {
    /// The keyspace whose load caused it.
    pub keyspace: String,
    /// Why.
    pub cause: Cause,
    /// The load that caused it, as it was at the beginning.
    pub load: Load,
    /// The limit that the load met, in the unit of the cause.
    pub limit: u64,
    /// Start, in microseconds since the store was opened.
    pub start_us: u64,
    /// How long it took, or has taken so far, in microseconds.
    pub duration_us: u64,
    /// Whether it still lasts.
    pub waiting: bool,
}

/// Totals of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayTotal {
    /// Delays that began.
    pub count: u64,
    /// Time spent in the finished ones, in microseconds.
    pub total_us: u64,
    /// The longest finished one, in microseconds.
    pub max_us: u64,
}

/// Finished delays that are kept for reading.
const KEPT: usize = 256;

struct Inner {
    next: u64,
    present: Vec<(u64, Delay, Instant)>,
    past: VecDeque<Delay>,
    totals: [DelayTotal; Cause::ALL.len()],
    /// Raised by every event that may lower a load, so that a wake-up between asking and waiting is not lost.
    events: u64,
}

/// See the module.
pub(crate) struct Stalls {
    runtime: Runtime,
    opened: Instant,
    inner: Mutex<Inner>,
    relieved: Condvar,
    waiting: AtomicUsize,
}

impl Stalls {
    pub(crate) fn new(runtime: &Runtime) -> Stalls {
        Stalls {
            runtime: runtime.clone(),
            opened: runtime.now(),
            inner: runtime.mutex(Inner {
                next: 0,
                present: Vec::new(),
                past: VecDeque::new(),
                totals: Default::default(),
                events: 0,
            }),
            relieved: runtime.condvar(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Tells waiting writers to ask again.
    pub(crate) fn relieve(&self) {
        let mut inner = self.inner.lock();
        inner.events += 1;
        self.relieved.notify_all();
    }

    /// Writers that wait right now.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits as `decide` says until it says `Pass` (true), or `give_up` says that waiting is pointless (false).
    pub(crate) fn wait_for(
        &self,
        keyspace: &str,
        mut decide: impl FnMut() -> (Decision, Load),
        mut give_up: impl FnMut() -> bool,
    ) -> bool {
        let mut slowed = false;
        let mut entry: Option<(u64, Instant)> = None;
        let passed = loop {
            let events = self.inner.lock().events;
            let (decision, load) = decide();
            let (cause, limit) = match decision {
                Decision::Pass => break true,
                // One millisecond a batch, once: it gives the background time without a long pause (LevelDB's rule).
                Decision::Slow { .. } if slowed => break true,
                Decision::Slow { cause, limit } | Decision::Stop { cause, limit } => (cause, limit),
            };
            if give_up() {
                break false;
            }
            if entry.is_none() {
                entry = Some(self.begin(keyspace, cause, load, limit));
            }
            if matches!(decision, Decision::Slow { .. }) {
                slowed = true;
                self.runtime.sleep(Duration::from_millis(1));
                continue;
            }
            let inner = self.inner.lock();
            if inner.events == events {
                // Bounded, so that a load that falls without an event (a view that was dropped) is seen too.
                let _ = self
                    .relieved
                    .wait_timeout(inner, Duration::from_millis(100));
            }
        };
        if let Some((id, start)) = entry {
            self.end(id, start);
        }
        passed
    }

    #[cold]
    fn begin(&self, keyspace: &str, cause: Cause, load: Load, limit: u64) -> (u64, Instant) {
        let now = self.runtime.now();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let id = inner.next;
        inner.next += 1;
        inner.totals[cause as usize].count += 1;
        let start_us = now.since(self.opened).as_micros() as u64;
        inner.present.push((
            id,
            Delay {
                keyspace: keyspace.to_string(),
                cause,
                load,
                limit,
                start_us,
                duration_us: 0,
                waiting: true,
            },
            now,
        ));
        (id, now)
    }

    #[cold]
    fn end(&self, id: u64, start: Instant) {
        let us = self.runtime.now().since(start).as_micros() as u64;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        if let Some(at) = inner.present.iter().position(|(i, ..)| *i == id) {
            let (_, mut delay, _) = inner.present.swap_remove(at);
            delay.duration_us = us;
            delay.waiting = false;
            let total = &mut inner.totals[delay.cause as usize];
            total.total_us += us;
            total.max_us = total.max_us.max(us);
            if inner.past.len() == KEPT {
                inner.past.pop_front();
            }
            inner.past.push_back(delay);
        }
    }

    /// The last delays, then the present ones with their time so far.
    pub(crate) fn delays(&self) -> Vec<Delay> {
        let now = self.runtime.now();
        let inner = self.inner.lock();
        let mut all: Vec<Delay> = inner.past.iter().cloned().collect();
        all.extend(inner.present.iter().map(|(_, delay, start)| Delay {
            duration_us: now.since(*start).as_micros() as u64,
            ..delay.clone()
        }));
        all
    }

    /// Totals by cause.
    pub(crate) fn totals(&self) -> Vec<(Cause, DelayTotal)> {
        let inner = self.inner.lock();
        Cause::ALL
            .iter()
            .map(|&c| (c, inner.totals[c as usize]))
            .collect()
    }
}
