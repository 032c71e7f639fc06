//! Jobs on sides other than the host. Each runs in a task of its own, and occupies no worker.
//!
//! [`Slots::start`] spawns a task for one piece of work that was placed on such a side. The task
//! has the executor run the job. Then it verifies, installs and reports as a worker does, and ends.
//! The placing task ([`Slots::place`]) fills free slots while all workers are busy, and watches the
//! attempts. It cancels an attempt that shows no sign of life. An attempt that continues although
//! it was cancelled is *abandoned*, and its work is returned
//! ([RFC 7](../../../../docs/rfc/0007-slots.md), sections 4 and 7).
//!
//! Invariants: while an attempt is being executed, its work lies in its slot. Exactly one task
//! takes the work out, and this ends the attempt: the slot's own task when the executor returns, or
//! the task that abandons the attempt. So an outcome that arrives after that is never installed.
//! When [`Slots::end`] returns, no task of a slot changes anything any more. The task of an
//! abandoned attempt may still exist then, but it holds nothing of the store except a gate that is
//! shut.
//!
//! Threading: the placing task and the closing thread hold the lock of the list, and that of one
//! slot, only briefly, and make no storage calls under them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use siltstone_storage::{Instant, Mutex};
use siltstone_table::exec::{CancelToken, Progress};
use siltstone_table::job::OutputPrefix;
use siltstone_table::job::outcome::Outcome;

use super::panics::{guarded, repeat};
use super::worker::{LOOK_AGAIN, end_work, lost};
use crate::env::failures::JobKind;
use crate::env::notify::Notify;
use crate::jobs::Jobs;
use crate::jobs::cpu::CpuUse;
use crate::jobs::ended::Ended;
use crate::jobs::gate::Gate;
use crate::jobs::leftovers::Leftover;
use crate::jobs::life::Stopped;
use crate::jobs::schedule;
use crate::jobs::take::{Taker, take};
use crate::jobs::work::Work;

/// How long the placing task pauses after it could not start the task of a slot.
const SPAWN_PAUSE: Duration = Duration::from_millis(100);

/// How long an attempt may continue after it was cancelled. Then it is abandoned.
const CANCEL_TAKES: Duration = Duration::from_secs(2);

/// How long an attempt may show no sign of life: a multiple of the time that its job was expected
/// to take, within bounds. An executor promises a sign of life every second in a flush, because
/// writers wait for flushes, and every ten seconds in a compaction.
fn silence_of(kind: JobKind, expected: Duration) -> Duration {
    let (times, least, most) = match kind {
        JobKind::Flush => (8, 5, 30),
        JobKind::Compaction => (16, 30, 600),
    };
    let (least, most) = (Duration::from_secs(least), Duration::from_secs(most));
    expected.saturating_mul(times).clamp(least, most)
}

/// How long an attempt may take in all. The time in which calls of the storage are in progress does
/// not count. There is a limit because an executor whose signs of life are wrong must not keep
/// tables reserved for ever. `bytes` is the size of the job's inputs. `bytes_per_s` is the rate
/// limit of all jobs together; 0 means no limit.
fn longest_of(kind: JobKind, expected: Duration, bytes: u64, bytes_per_s: u64) -> Duration {
    let (times, least) = match kind {
        JobKind::Flush => (16, 60),
        JobKind::Compaction => (64, 600),
    };
    let takes = |rate: u64| Duration::from_secs(bytes.checked_div(rate).unwrap_or(0));
    Duration::from_secs(least)
        .saturating_add(expected.saturating_mul(times))
        .saturating_add(takes(SLOWEST_BYTES_PER_S))
        .saturating_add(takes(bytes_per_s).saturating_mul(times))
}

/// The lowest rate at which an attempt is expected to read its inputs. It is low because the inputs
/// of a lent job may cross a slow link, and because the speed of the side may not be measured yet.
const SLOWEST_BYTES_PER_S: u64 = 64 << 10;

/// The jobs of a store that run on sides other than the host.
pub(super) struct Slots {
    jobs: Arc<Jobs>,
    taken: Mutex<Vec<Arc<Slot>>>,
    /// Notified when a slot becomes free.
    freed: Notify,
}

/// A slot that is occupied.
struct Slot {
    kind: JobKind,
    side: usize,
    expected: Duration,
    attempt: Mutex<Option<Watched>>,
}

/// An attempt that an executor is running.
struct Watched {
    work: Work,
    gate: Arc<Gate>,
    output: OutputPrefix,
    /// The names of the tables that earlier attempts had left to it. It may have taken these tables
    /// over without having renamed them yet.
    handed_over: Vec<String>,
    progress: Arc<Progress>,
    cancel: CancelToken,
    /// The count of signs of life when it last changed, and the time of that change.
    signs: u64,
    changed: Instant,
    begun: Instant,
    /// When the attempt was last checked, and the total time in which its calls of the storage
    /// were in progress.
    looked: Instant,
    in_calls: Duration,
    /// How long the attempt may take in all. This never becomes shorter, even if the rate limit is
    /// raised later.
    longest: Duration,
    cancelled: Option<Instant>,
    /// Whether it was cancelled because it showed no sign of life, or took much too long.
    is_hung: bool,
}

impl Slots {
    pub(super) fn new(jobs: &Arc<Jobs>) -> Arc<Slots> {
        let runtime = jobs.env().runtime();
        Arc::new(Slots {
            jobs: jobs.clone(),
            taken: runtime.mutex(Vec::new()),
            freed: Notify::new(runtime),
        })
    }

    /// The placing task. It ends when the store is being closed.
    pub(super) fn place(self: &Arc<Slots>) {
        let mut looked = self.jobs.env().now();
        let turn = || self.turn(&mut looked);
        repeat(self.jobs.catalog(), "the placing task", turn);
    }

    /// One turn of the placing task. `looked` is the time when it last went through all work.
    /// Returns false if the store is being closed.
    fn turn(self: &Arc<Slots>, looked: &mut Instant) -> bool {
        let jobs = &self.jobs;
        let seen = jobs.env().work().count();
        if jobs.env().is_closing() {
            return false;
        }
        self.watch(jobs.env().health().check_manifest().is_ok());
        // Each write that is stopped notifies this task too, so it does not go through all work
        // each time.
        let now = jobs.env().now();
        let anyway = now.since(*looked) >= LOOK_AGAIN;
        if anyway {
            *looked = now;
        }
        match take(jobs, Taker::Placer { anyway }) {
            Some(work) => self.start(work),
            None => {
                let next = LOOK_AGAIN.saturating_sub(now.since(*looked));
                jobs.env().work().wait_past(seen, next);
            }
        }
        true
    }

    /// Starts work in a slot of its side.
    pub(super) fn start(self: &Arc<Slots>, work: Work) {
        let runtime = self.jobs.env().runtime();
        let slot = Arc::new(Slot {
            kind: work.kind(),
            side: work.placed.side,
            expected: Duration::from_nanos(work.placed.expected_ns),
            attempt: runtime.mutex(None),
        });
        self.taken.lock().push(slot.clone());
        let name = self.jobs.runner().sides.name(slot.side);
        let in_hand = Arc::new(runtime.mutex(Some(work)));
        let spawned = {
            let (slots, slot, in_hand) = (self.clone(), slot.clone(), in_hand.clone());
            let run = move || {
                let work = in_hand.lock().take();
                drop(in_hand);
                if let Some(work) = work {
                    run(slots, &slot, work);
                }
            };
            runtime.spawn(&format!("silt-slot-{name}"), run)
        };
        if spawned.is_err() {
            self.free(&slot);
            let work = in_hand.lock().take();
            if let Some(work) = work {
                schedule::put_back(&self.jobs, work);
            }
            // If no other side may run the work, it would be placed on this side again at once.
            self.jobs.env().runtime().sleep(SPAWN_PAUSE);
        }
    }

    /// Ends an attempt whose executor has returned: verifies and installs what it made, or returns
    /// the work.
    fn conclude(
        &self,
        mut work: Work,
        cpu: CpuUse,
        end: impl FnOnce(&Jobs, &mut Work) -> std::result::Result<(), Stopped>,
    ) {
        let what = work.describe();
        let result = guarded(self.jobs.env(), || what, || end(&self.jobs, &mut work));
        cpu.end(&self.jobs);
        end_work(&self.jobs, work, result);
    }

    fn free(&self, slot: &Arc<Slot>) {
        self.taken.lock().retain(|s| !Arc::ptr_eq(s, slot));
        self.freed.notify();
        self.jobs.env().work().notify();
    }

    /// Cancels attempts that hang. If `is_sound` is false, cancels all attempts, because no outcome
    /// can be installed any more. Abandons attempts that continue although they were cancelled.
    fn watch(&self, is_sound: bool) {
        let now = self.jobs.env().now();
        let rate = self.jobs.runner().rate.bytes_per_s();
        let taken = self.taken.lock().clone();
        for slot in taken {
            let mut attempt = slot.attempt.lock();
            if let Some(watched) = &mut *attempt
                && watched.is_due(&slot, now, is_sound, rate)
                && let Some(watched) = self.take_lost(&slot, &mut attempt)
            {
                drop(attempt);
                self.give_up(&slot, watched);
            }
        }
    }

    /// Removes an attempt from its slot before its executor has returned. The slot is counted as
    /// lost before its own task can notice that the attempt is gone, because that task then counts
    /// the slot as found again.
    fn take_lost(&self, slot: &Slot, attempt: &mut Option<Watched>) -> Option<Watched> {
        let watched = attempt.take()?;
        let sides = &self.jobs.runner().sides;
        sides.count_lost(slot.side, &watched.progress);
        Some(watched)
    }

    /// Abandons an attempt whose executor has not returned. Even if this code panics, nothing stays
    /// reserved.
    fn give_up(&self, slot: &Arc<Slot>, watched: Watched) {
        let reserved = watched.work.reserved();
        let what = format!("the end of {}", watched.work.describe());
        let abandon = || self.abandon(slot, watched);
        if let Err(error) = guarded(self.jobs.env(), || what, abandon) {
            self.free(slot);
            lost(&self.jobs, None, &reserved, error);
        }
    }

    fn abandon(&self, slot: &Arc<Slot>, mut watched: Watched) {
        watched.gate.shut();
        let mut names = watched.work.end();
        names.append(&mut watched.handed_over);
        let left = Leftover {
            gate: watched.gate.clone(),
            output: watched.output.clone(),
            names,
        };
        self.jobs.leftovers().add(vec![left]);
        let sides = &self.jobs.runner().sides;
        if watched.is_hung {
            let falls_back = self.jobs.env().options().schedule.fallback;
            sides.count_ended(slot.side, &Ended::Hung, falls_back);
            watched.renew_token();
        }
        tracing::warn!(
            executor = sides.name(slot.side),
            work = watched.work.describe(),
            "an executor does not return; its attempt is abandoned"
        );
        self.free(slot);
        schedule::put_back(&self.jobs, watched.work);
    }

    /// Ends all attempts, and waits until none of them can change anything any more. The store is
    /// being closed, so no new attempt begins.
    pub(super) fn end(&self) {
        let begin = self.jobs.env().now();
        loop {
            let seen = self.freed.count();
            let taken = self.taken.lock().clone();
            if taken.is_empty() {
                break;
            }
            let is_late = self.jobs.env().now().since(begin) >= CANCEL_TAKES;
            for slot in &taken {
                let mut attempt = slot.attempt.lock();
                if let Some(watched) = &*attempt {
                    watched.cancel.cancel();
                }
                if is_late && let Some(watched) = self.take_lost(slot, &mut attempt) {
                    drop(attempt);
                    self.give_up(slot, watched);
                }
            }
            self.freed.wait_past(seen, Duration::from_millis(100));
        }
        self.jobs.leftovers().wait_idle();
    }
}

impl Watched {
    /// Whether the attempt is to be abandoned. It is cancelled before that.
    fn is_due(&mut self, slot: &Slot, now: Instant, is_sound: bool, rate: u64) -> bool {
        let signs = self.progress.signs_of_life();
        // A call of the storage that takes long is not the executor's fault.
        let is_in_call = self.gate.is_in_call();
        if signs != self.signs || is_in_call {
            (self.signs, self.changed) = (signs, now);
        }
        if is_in_call {
            self.in_calls = self.in_calls.saturating_add(now.since(self.looked));
        }
        self.looked = now;
        let longest = longest_of(slot.kind, slot.expected, self.work.bytes(), rate);
        self.longest = self.longest.max(longest);
        let is_hung = now.since(self.changed) >= silence_of(slot.kind, slot.expected)
            || now.since(self.begun) >= self.longest.saturating_add(self.in_calls);
        if !self.cancel.is_cancelled() && (is_hung || !is_sound) {
            self.is_hung = is_hung;
            self.cancel.cancel();
        }
        if !self.cancel.is_cancelled() {
            return false;
        }
        now.since(*self.cancelled.get_or_insert(now)) >= CANCEL_TAKES
    }

    /// Gives the work a new token, because the work is still wanted although its attempt was
    /// cancelled for hanging.
    fn renew_token(&mut self) {
        self.work.cancel = CancelToken::new();
    }
}

/// Frees a slot when its task ends, even by a panic.
struct FreedAtEnd {
    slots: Weak<Slots>,
    slot: Arc<Slot>,
}

impl Drop for FreedAtEnd {
    fn drop(&mut self) {
        if let Some(slots) = self.slots.upgrade() {
            slots.free(&self.slot);
        }
    }
}

/// Runs one piece of work in the task of its slot.
fn run(slots: Arc<Slots>, slot: &Arc<Slot>, mut work: Work) {
    let _freed = FreedAtEnd {
        slots: Arc::downgrade(&slots),
        slot: slot.clone(),
    };
    let start = slots.jobs.env().now();
    let cpu = CpuUse::begin(slots.jobs.env(), &work);
    let what = work.describe();
    let begin = || slots.jobs.begin_elsewhere(&mut work);
    let (attempt, prepared) = match guarded(slots.jobs.env(), || what, begin) {
        Ok(Some(begun)) => begun,
        // There is nothing to execute.
        Ok(None) => {
            let complete = |jobs: &Jobs, work: &mut Work| {
                Ok(jobs.complete(work, Outcome::default(), start)?)
            };
            return slots.conclude(work, cpu, complete);
        }
        // The code that begins the job panicked.
        Err(error) => return end_work(&slots.jobs, work, Err(error)),
    };
    slots.jobs.report_placed(&work);
    let now = slots.jobs.env().now();
    *slot.attempt.lock() = Some(Watched {
        gate: attempt.gate.clone().expect("it runs elsewhere"),
        output: attempt.output.clone(),
        handed_over: work
            .begun
            .as_ref()
            .map_or_else(Vec::new, |begun| begun.left_names()),
        progress: attempt.progress.clone(),
        cancel: attempt.cancel.clone(),
        signs: attempt.progress.signs_of_life(),
        changed: now,
        begun: now,
        looked: now,
        in_calls: Duration::ZERO,
        longest: Duration::ZERO,
        cancelled: None,
        is_hung: false,
        work,
    });
    // While the executor has the job, this task keeps no part of the store alive.
    let weak: Weak<Slots> = Arc::downgrade(&slots);
    drop(slots);
    let executed = prepared.execute();
    drop(prepared);
    if let Some(gate) = &attempt.gate {
        // Calls that the executor makes from now on are not part of the attempt, and calls that
        // still run end before the outcome is looked at.
        gate.shut();
        gate.wait_idle();
    }
    let watched = slot.attempt.lock().take();
    let Some(slots) = weak.upgrade() else { return };
    let Some(mut watched) = watched else {
        // The attempt was abandoned.
        let sides = &slots.jobs.runner().sides;
        sides.count_found(slot.side, &attempt.progress);
        slots.jobs.env().work().notify();
        return;
    };
    let is_hung = watched.is_hung;
    if is_hung {
        // It was cancelled because it hangs. The work is still wanted.
        watched.renew_token();
    }
    slots.conclude(watched.work, cpu, |jobs, work| {
        let executed = match (is_hung, executed) {
            (true, Ok(outcome)) => {
                jobs.runner().discard_outputs(&attempt, &outcome);
                Err(Ended::Hung)
            }
            (true, Err(_)) => Err(Ended::Hung),
            (false, executed) => executed,
        };
        let outcome = jobs.judge(work, &attempt, executed, start)?;
        Ok(jobs.complete(work, outcome, start)?)
    });
}
