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
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use litemap::LiteMap;
use siltstone_storage::{Instant, Mutex, Runtime};

use crate::commit::flush_meter::{FlushMeter, UNMEASURED_BYTES_PER_S};
use crate::commit::write_rate::{Ticket, Turn, WriteRate};
use crate::env::notify::Notify;
pub use crate::types::pressure::{self, Decision, Limits, Load, StallCause};

use crate::types::event::{Event, Events};
use crate::types::limits::KeyspaceId;
use crate::types::options::StallPolicy;

/// A delay of a writer, or of all writers in the leader's turn, which has ended or still lasts.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Delay {
    /// The keyspace whose load caused it. Empty if the writers of all keyspaces waited in the
    /// leader's turn.
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

/// A keyspace shares the rate of the flushes for this long after one of its writers was limited.
const PACED_FOR: Duration = Duration::from_secs(1);

/// With `redirect`, the progress of a flush admits its memtable in this many steps.
const STEPS: u64 = 512;

/// A writer that waits for such a step asks again after this time at the earliest.
const STEP_MIN: Duration = Duration::from_micros(200);

/// With `redirect`, a shorter wait is counted and neither listed nor an event: writers that are
/// admitted in small steps wait thousands of times a second.
const BRIEF: Duration = Duration::from_millis(1);

/// A wait in the leader's turn that is shorter than this does not count.
const LEADER_WAIT_MIN: Duration = Duration::from_micros(100);

/// The number of finished delays that are kept for reading.
const FINISHED_MAX: usize = 256;

struct Inner {
    next: u64,
    present: Vec<(u64, Delay, Instant)>,
    past: VecDeque<Delay>,
    totals: [DelayTotal; StallCause::ALL.len()],
    write_rates: LiteMap<KeyspaceId, WriteRate>,
    flush_meter: FlushMeter,
}

impl Inner {
    /// The part of the rate of the flushes that a keyspace gets: all keyspaces that were limited in
    /// the last second share it.
    fn pace(&self, now: Instant) -> u64 {
        let is_paced = |rate: &&WriteRate| {
            let paced = rate.paced;
            paced.is_some_and(|paced| now.since(paced) <= PACED_FOR)
        };
        let paced = self.write_rates.values().filter(is_paced).count();
        let measured = self.flush_meter.bytes_per_s();
        measured.unwrap_or(UNMEASURED_BYTES_PER_S) / paced.max(1) as u64
    }

    /// Whether a writer may go on now, why not, and the limit that was reached.
    fn ask(
        &mut self,
        now: Instant,
        keyspace: KeyspaceId,
        bytes: u64,
        asked: &(Decision, Load, Limits),
        ticket: &mut Option<Ticket>,
    ) -> (StallCause, u64, Turn) {
        let (decision, load, limits) = asked;
        let redirects = limits.policy == StallPolicy::Redirect;
        let write_rate = self.write_rates.entry(keyspace);
        let write_rate = write_rate.or_insert_with(|| WriteRate::new(now));
        // Before a flush has ended, the rate of flushes is not known, and memory is not short.
        let is_unmeasured = self.flush_meter.bytes_per_s().is_none();
        let of_memory = |cause: &StallCause| {
            matches!(
                cause,
                StallCause::MemtableSlowdown | StallCause::LogSlowdown
            )
        };
        match decision {
            Decision::Pass if !redirects => (StallCause::SealedMemtables, 0, Turn::Go),
            Decision::Pass => {
                let (cause, limit) = write_rate.last;
                (cause, limit, write_rate.next_in_line(bytes, ticket))
            }
            Decision::Pace { cause, limit, .. } if is_unmeasured && of_memory(cause) => {
                (*cause, *limit, write_rate.next_in_line(bytes, ticket))
            }
            Decision::Slow {
                cause,
                limit,
                pressure_permille,
            } => {
                let near = load.nearness(limits, *pressure_permille);
                (*cause, *limit, write_rate.ask(now, &near, bytes, ticket))
            }
            Decision::Pace {
                cause,
                limit,
                flush_permille,
            } => {
                write_rate.paced = Some(now);
                write_rate.last = (*cause, *limit);
                let pace = u128::from(self.pace(now)) * u128::from(*flush_permille) / 1000;
                let pace = pace.min(u128::from(u64::MAX)) as u64;
                let write_rate = self.write_rates.get_mut(&keyspace);
                let write_rate = write_rate.expect("it was inserted above");
                let turn = write_rate.ask_for_flushes(now, pace, bytes, ticket);
                (*cause, *limit, turn)
            }
            Decision::Stop { cause, limit } if redirects => {
                write_rate.paced = Some(now);
                write_rate.last = (*cause, *limit);
                write_rate.line_up(bytes, ticket);
                // The progress of a flush makes room for as long as it runs, also while it is
                // synced and notifies nobody.
                let step = u128::from(limits.memtable_bytes / STEPS) * 1_000_000_000;
                let ns = step / u128::from(self.pace(now).max(1));
                let wait = Duration::from_nanos(ns.min(1_000_000_000) as u64);
                (*cause, *limit, Turn::Wait(wait.max(STEP_MIN)))
            }
            Decision::Stop { cause, limit } => (*cause, *limit, Turn::Wait(RECHECK_INTERVAL)),
        }
    }

    /// Adds a delay that has ended to the totals.
    fn add(&mut self, delay: &Delay) {
        let total = &mut self.totals[delay.cause as usize];
        total.total_us += delay.duration_us;
        total.max_us = total.max_us.max(delay.duration_us);
    }

    /// Counts a delay that has ended, and keeps it for reading.
    fn finish(&mut self, delay: Delay) {
        self.add(&delay);
        if self.past.len() == FINISHED_MAX {
            self.past.pop_front();
        }
        self.past.push_back(delay);
    }
}

/// How the wait of a writer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The batch may join the queue. Its bytes were taken from the rate of the keyspace if `paid`.
    Passed { paid: bool },
    /// Waiting is pointless.
    GaveUp,
    /// The deadline has passed, and the writer would have to wait on for this cause.
    TimedOut(StallCause),
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
    /// The rate of the flushes; 0 if none was measured.
    flush_bytes_per_s: AtomicU64,
    /// The rate of the slowest of the last flushes; 0 if none was measured.
    single_flush_bytes_per_s: AtomicU64,
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
                flush_meter: FlushMeter::default(),
            }),
            pressure,
            waiting: AtomicUsize::new(0),
            is_cancelled: AtomicBool::new(false),
            flush_bytes_per_s: AtomicU64::new(0),
            single_flush_bytes_per_s: AtomicU64::new(0),
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

    /// The time since the store was opened.
    pub(crate) fn since_open(&self) -> Duration {
        self.runtime.now().since(self.opened)
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

    /// Waits until `decide` lets a batch of `bytes` join the queue, or the writer gives up: because
    /// `give_up` says that waiting is pointless, at the deadline, or after `Stalls::cancel`.
    pub(crate) fn wait_for(
        &self,
        (keyspace, name): (KeyspaceId, &str),
        bytes: u64,
        deadline: Option<Instant>,
        mut decide: impl FnMut() -> (Decision, Load, Limits),
        mut give_up: impl FnMut() -> bool,
    ) -> Waited {
        let mut ticket = None;
        let mut entry: Option<(u64, Instant)> = None;
        let mut first: Option<(Instant, StallCause)> = None;
        let waited = loop {
            let seen = self.pressure.count();
            let asked = decide();
            let (decision, load, limits) = asked;
            let redirects = limits.policy == StallPolicy::Redirect;
            // With `redirect`, nobody overtakes the writers that wait.
            if decision == Decision::Pass && !redirects {
                break Waited::Passed { paid: false };
            }
            if give_up() || self.is_cancelled() {
                break Waited::GaveUp;
            }
            let now = self.runtime.now();
            let (cause, limit, wait) = {
                let mut inner = self.inner.lock();
                let (cause, limit, turn) = inner.ask(now, keyspace, bytes, &asked, &mut ticket);
                match turn {
                    Turn::Go | Turn::GoFree => {
                        let write_rate = inner.write_rates.get(&keyspace);
                        if write_rate.is_some_and(|rate| !rate.is_idle()) {
                            self.pressure.notify();
                        }
                        break Waited::Passed {
                            paid: turn == Turn::Go,
                        };
                    }
                    Turn::Wait(wait) => (cause, limit, wait),
                }
            };
            let left = deadline.map_or(RECHECK_INTERVAL, |deadline| deadline.since(now));
            if left.is_zero() {
                break Waited::TimedOut(cause);
            }
            let (start, first_cause) = *first.get_or_insert((now, cause));
            // A flush that does not progress (its storage may not answer) is not asked thousands of
            // times a second.
            let wait = match decision {
                Decision::Stop { .. } => wait.max(now.since(start) / 16),
                _ => wait,
            };
            // Bounded, so that a load that falls without a notification (a view was dropped) is
            // seen too.
            let wait = wait.min(RECHECK_INTERVAL).min(left);
            let is_brief = redirects && now.since(start) + wait < BRIEF;
            if entry.is_none() && !is_brief {
                entry = Some(self.begin(name, first_cause, load, limit, start));
            }
            self.pressure.wait_past(seen, wait);
        };
        if ticket.is_some() {
            let mut inner = self.inner.lock();
            if let Some(write_rate) = inner.write_rates.get_mut(&keyspace)
                && write_rate.give_back(&mut ticket)
            {
                self.pressure.notify();
            }
        }
        match (entry, first) {
            (Some((id, start)), _) => self.end(id, start),
            (None, Some((start, cause))) => self.count_brief(cause, start),
            (None, None) => {}
        }
        waited
    }

    /// A batch that was admitted to a keyspace was not written.
    pub(crate) fn refund(&self, keyspace: KeyspaceId, bytes: u64) {
        if let Some(write_rate) = self.inner.lock().write_rates.get_mut(&keyspace) {
            write_rate.refund(bytes);
        }
    }

    /// A flush of a memtable with this many bytes ended. Flushes of nearly empty memtables say
    /// nothing of the rate, because most of their time is that of syncs.
    pub(crate) fn flushed(&self, begun: Instant, bytes: u64, memtable_bytes: u64) {
        if bytes < memtable_bytes / 2 {
            return;
        }
        let ended = self.runtime.now();
        let mut inner = self.inner.lock();
        inner.flush_meter.ended(begun, ended, bytes);
        let meter = &inner.flush_meter;
        let (all, single) = (meter.bytes_per_s(), meter.single_bytes_per_s());
        self.flush_bytes_per_s
            .store(all.unwrap_or(0), Ordering::Relaxed);
        self.single_flush_bytes_per_s
            .store(single.unwrap_or(0), Ordering::Relaxed);
    }

    /// The bytes of a memtable that its flush takes in a second, as flushes have been lately.
    /// `None` if none was measured.
    pub(crate) fn single_flush_bytes_per_s(&self) -> Option<u64> {
        let rate = self.single_flush_bytes_per_s.load(Ordering::Relaxed);
        (rate > 0).then_some(rate)
    }

    /// The bytes of memtables that flushes take in a second. `None` if none was measured.
    pub(crate) fn flush_bytes_per_s(&self) -> Option<u64> {
        let rate = self.flush_bytes_per_s.load(Ordering::Relaxed);
        (rate > 0).then_some(rate)
    }

    /// Counts a wait in the leader's turn that began then. All writers waited for it.
    pub(crate) fn count_turn(&self, cause: StallCause, start: Instant) {
        self.count_turn_of(cause, self.runtime.now().since(start));
    }

    /// Counts a wait in the leader's turn that took this long and has just ended. The shortest ones
    /// do not count, except syncs. Syncs are not kept for reading, because there may be one for
    /// each write.
    #[cold]
    pub(crate) fn count_turn_of(&self, cause: StallCause, duration: Duration) {
        let is_sync = cause == StallCause::LogSync;
        if duration < LEADER_WAIT_MIN && !is_sync {
            return;
        }
        let since_open = self.runtime.now().since(self.opened);
        let duration_us = duration.as_micros() as u64;
        let mut inner = self.inner.lock();
        let delay = Delay {
            keyspace: String::new(),
            cause,
            load: Load::default(),
            limit: 0,
            start_us: since_open.saturating_sub(duration).as_micros() as u64,
            duration_us,
            waiting: false,
        };
        inner.totals[cause as usize].count += 1;
        match is_sync {
            true => inner.add(&delay),
            false => inner.finish(delay),
        }
    }

    /// Counts a wait that began then, has just ended and is not listed.
    fn count_brief(&self, cause: StallCause, start: Instant) {
        let us = self.runtime.now().since(start).as_micros() as u64;
        let mut inner = self.inner.lock();
        let total = &mut inner.totals[cause as usize];
        total.count += 1;
        total.total_us += us;
        total.max_us = total.max_us.max(us);
    }

    /// Lists a wait that began at `start`.
    #[cold]
    fn begin(
        &self,
        keyspace: &str,
        cause: StallCause,
        load: Load,
        limit: u64,
        start: Instant,
    ) -> (u64, Instant) {
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
        let start_us = start.since(self.opened).as_micros() as u64;
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
            start,
        ));
        (id, start)
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
            self.events.emit(|| Event::StallEnded {
                keyspace: delay.keyspace.clone(),
                cause: delay.cause,
                duration_us: us,
            });
            inner.finish(delay);
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
