//! Stalls: whether a batch may join the queue of writers, and a record of every delay.
//!
//! [`pressure::decide`] is a pure function of a keyspace's [`Load`] and its [`Limits`]. `Stalls` is
//! where writers wait. It has the write rate of each keyspace that is slowed down
//! (`write_rate.rs`), and a record of each delay with its keyspace, cause, load and duration, which
//! can be read while the delay lasts.
//!
//! Invariants: a writer asks *before* it joins the queue, so a keyspace that must wait delays
//! nobody else (RFC 1, P4). Everything that can lower a load (a flush or a compaction was
//! installed, there is space again, the store closes) wakes the writers that wait, and they ask
//! again. A delay is counted once, under the cause that it began with. Each keyspace is slowed down
//! by itself. Who waits gives up when its caller says so: the store closes, background work fails
//! for good, or has waited too long for a storage that does not answer
//! (`Outage::stalled_too_long`). After `Stalls::cancel` nobody waits.
//!
//! Threading: one runtime mutex, which is not held while a writer waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use litemap::LiteMap;
use siltstone_storage::{Instant, Mutex, Runtime};

use crate::commit::write_rate::{Turn, WriteRate};
use crate::env::notify::Notify;
pub use crate::types::pressure::{self, Decision, Limits, Load, StallCause};

use crate::types::event::{Event, Events};
use crate::types::limits::KeyspaceId;

/// A delay of a writer, which has ended or still lasts.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Delay {
    /// The keyspace whose load caused it.
    pub keyspace: String,
    /// Why the writer was delayed.
    pub cause: StallCause,
    /// The load at the beginning of the delay.
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

/// The totals of one cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct DelayTotal {
    /// The number of delays that began.
    pub count: u64,
    /// The time spent in finished delays, in microseconds.
    pub total_us: u64,
    /// The duration of the longest finished delay, in microseconds.
    pub max_us: u64,
}

/// The longest time that a writer waits before it asks again.
const RECHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The number of finished delays that are kept for reading.
const FINISHED_MAX: usize = 256;

struct Inner {
    next: u64,
    present: Vec<(u64, Delay, Instant)>,
    past: VecDeque<Delay>,
    totals: [DelayTotal; StallCause::ALL.len()],
    write_rates: LiteMap<KeyspaceId, WriteRate>,
}

/// See the module.
pub(crate) struct Stalls {
    runtime: Runtime,
    events: Arc<Events>,
    opened: Instant,
    inner: Mutex<Inner>,
    /// Notified by everything that may lower a load or let the next writer go on.
    pressure: Arc<Notify>,
    waiting: AtomicUsize,
    is_cancelled: AtomicBool,
}

impl Stalls {
    pub(crate) fn new(runtime: &Runtime, events: Arc<Events>, pressure: Arc<Notify>) -> Stalls {
        Stalls {
            runtime: runtime.clone(),
            events,
            opened: runtime.now(),
            inner: runtime.mutex(Inner {
                next: 0,
                present: Vec::new(),
                past: VecDeque::new(),
                totals: Default::default(),
                write_rates: LiteMap::new(),
            }),
            pressure,
            waiting: AtomicUsize::new(0),
            is_cancelled: AtomicBool::new(false),
        }
    }

    /// From now on nobody waits: who does, and who would have to, gives up.
    pub(crate) fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
        self.pressure.notify();
    }

    /// Whether `Stalls::cancel` was called.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Acquire)
    }

    /// The number of writers that wait now.
    pub(crate) fn waiting_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// A memtable of the keyspace with this many bytes was sealed. The rate limit measures the
    /// speed of the writers by this.
    pub(crate) fn sealed(&self, keyspace: KeyspaceId, bytes: u64) {
        let now = self.runtime.now();
        let mut inner = self.inner.lock();
        let write_rate = inner.write_rates.entry(keyspace);
        write_rate
            .or_insert_with(|| WriteRate::new(self.opened))
            .sealed(now, bytes);
    }

    /// The keyspace was dropped. Its waiting writers are woken and get an error.
    pub(crate) fn forget(&self, keyspace: KeyspaceId) {
        self.inner.lock().write_rates.remove(&keyspace);
        self.pressure.notify();
    }

    /// Waits until `decide` lets a batch of `bytes` join the queue, and returns true. Returns false
    /// if `give_up` says that waiting is pointless, or after `Stalls::cancel`.
    pub(crate) fn wait_for(
        &self,
        (keyspace, name): (KeyspaceId, &str),
        bytes: u64,
        mut decide: impl FnMut() -> (Decision, Load, Limits),
        mut give_up: impl FnMut() -> bool,
    ) -> bool {
        let mut ticket = None;
        let mut entry: Option<(u64, Instant)> = None;
        let passed = loop {
            let seen = self.pressure.count();
            let (decision, load, limits) = decide();
            if decision == Decision::Pass {
                break true;
            }
            if give_up() || self.is_cancelled() {
                break false;
            }
            let (cause, limit, wait) = match decision {
                Decision::Pass => break true,
                Decision::Slow {
                    cause,
                    limit,
                    pressure_permille,
                } => {
                    let near = load.nearness(&limits, pressure_permille);
                    let now = self.runtime.now();
                    let mut inner = self.inner.lock();
                    let inner = &mut *inner;
                    let write_rate = inner.write_rates.entry(keyspace);
                    let write_rate = write_rate.or_insert_with(|| WriteRate::new(now));
                    match write_rate.ask(now, &near, bytes, &mut ticket) {
                        Turn::Go => {
                            if !write_rate.is_idle() {
                                self.pressure.notify();
                            }
                            break true;
                        }
                        Turn::Wait(wait) => (cause, limit, wait),
                    }
                }
                Decision::Stop { cause, limit } => (cause, limit, RECHECK_INTERVAL),
            };
            if entry.is_none() {
                entry = Some(self.begin(name, cause, load, limit));
            }
            // Bounded, so that a load that falls without a notification (a view was dropped) is
            // seen too.
            self.pressure.wait_past(seen, wait.min(RECHECK_INTERVAL));
        };
        if ticket.is_some() {
            let mut inner = self.inner.lock();
            if let Some(write_rate) = inner.write_rates.get_mut(&keyspace)
                && write_rate.give_back(&mut ticket)
            {
                self.pressure.notify();
            }
        }
        if let Some((id, start)) = entry {
            self.end(id, start);
        }
        passed
    }

    #[cold]
    fn begin(&self, keyspace: &str, cause: StallCause, load: Load, limit: u64) -> (u64, Instant) {
        let now = self.runtime.now();
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let mut inner = self.inner.lock();
        let id = inner.next;
        inner.next += 1;
        inner.totals[cause as usize].count += 1;
        self.events.emit(|| Event::StallBegan {
            keyspace: keyspace.to_string(),
            cause,
            load,
            limit,
        });
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
            self.events.emit(|| Event::StallEnded {
                keyspace: delay.keyspace.clone(),
                cause: delay.cause,
                duration_us: us,
            });
            if inner.past.len() == FINISHED_MAX {
                inner.past.pop_front();
            }
            inner.past.push_back(delay);
        }
    }

    /// The last finished delays, then the present ones with their duration so far.
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

    /// The totals of each cause.
    pub(crate) fn totals(&self) -> Vec<(StallCause, DelayTotal)> {
        let inner = self.inner.lock();
        StallCause::ALL
            .iter()
            .map(|&c| (c, inner.totals[c as usize]))
            .collect()
    }
}

#[cfg(test)]
mod tests;
