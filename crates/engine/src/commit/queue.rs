//! The queue of writers: it decides who leads, and which batches a leader commits as one group.
//!
//! A writer that finds no leader leads at once, without waking anybody. Other writers wait until a
//! leader has committed their batch or passes the lead on to them. A leader takes the batches that
//! wait into its group ([`Queue::join`]), commits all of them, answers each writer, and passes the
//! lead on to the first writer that waits. A caller that needs the lead without a batch (rotation,
//! ingest, create, drop) waits for it in the same order ([`Queue::lead`]).
//!
//! Invariants: there is one leader at a time. Each batch is committed once, by its own writer or by
//! a leader that took it, and its writer is answered after that. Batches are committed in the order
//! in which they joined, whoever leads. Nobody waits while nobody leads. If a leader panics, all
//! writers of its group are answered. A writer with a deadline leaves the queue only while no
//! leader has taken its batch.
//!
//! The queue knows nothing of logs and memtables ([`Writers`] says what a batch is), so that its
//! schedules can be explored without a store: `crates/sim/tests/schedules.rs` compiles this file.
//!
//! Threading: `state` is a mutex that writers take to join and leave. What the leader works on is
//! behind a second mutex, which only the leader takes.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_storage::{Condvar, Instant, Mutex, MutexGuard, Runtime};

/// The most bytes of waiting batches that a leader takes into its group beside its own batch.
pub(crate) const GROUP_BYTES: usize = 1 << 20;

/// The most bytes of a whole group, the leader's own batch included, because a group is one record
/// of the log. A single batch may be as large.
pub(crate) const RECORD_BYTES: usize = 1 << 31;

/// Whether a batch of `next` bytes may join a group that has `own` bytes of the leader and `taken`
/// bytes of other writers.
pub(crate) fn joins(own: usize, taken: usize, next: usize) -> bool {
    let others = taken.saturating_add(next);
    others <= GROUP_BYTES && own.saturating_add(others) <= RECORD_BYTES
}

/// The writers of a queue: the type of their batches, and the state that only their leader touches.
pub(crate) trait Writers {
    /// What a writer brings. The default is an empty batch.
    type Batch: Clone + Default;
    /// Why a batch was not committed.
    type Error: Clone;
    /// The state that only the leader touches.
    type State;
    /// The size of a batch, for the limits of a group.
    fn bytes(batch: &Self::Batch) -> usize;
    /// Called if a leader panics, when its group may be half committed. Returns the error that the
    /// writers of the group get.
    fn leader_panicked(&self) -> Self::Error;
    /// The error of a writer that left the queue at its deadline.
    fn deadline_passed(&self) -> Self::Error;
}

/// Batches of other writers with their results.
type Others<W> = Vec<(
    <W as Writers>::Batch,
    std::result::Result<(), <W as Writers>::Error>,
)>;

/// The batches that a leader commits: its own, then those of other writers, each with its result.
/// A result is `Ok` until the leader changes it.
pub(crate) struct Group<'a, W: Writers> {
    own: &'a W::Batch,
    own_result: Result<(), W::Error>,
    others: &'a mut Others<W>,
}

impl<W: Writers> Group<'_, W> {
    /// The leader's own batch, which comes first.
    pub(crate) fn own(&self) -> &W::Batch {
        self.own
    }

    /// The number of batches.
    pub(crate) fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// All batches, in the order in which they joined.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&W::Batch, &Result<(), W::Error>)> {
        let others = self.others.iter().map(|(batch, result)| (batch, result));
        std::iter::once((self.own, &self.own_result)).chain(others)
    }

    /// All batches, in the order in which they joined, with their results, which may be changed.
    #[inline]
    pub(crate) fn iter_mut(
        &mut self,
    ) -> impl Iterator<Item = (&W::Batch, &mut Result<(), W::Error>)> {
        let others = self.others.iter_mut();
        let others = others.map(|(batch, result)| (&*batch, result));
        std::iter::once((self.own, &mut self.own_result)).chain(others)
    }
}

enum Slot<W: Writers> {
    /// The writer waits for a leader. With `None`, it waits for the lead and brings no batch.
    Waiting(Option<W::Batch>),
    /// A leader works on it.
    Taken,
    /// The batch is done. It comes back, so that its writer frees the memory and not the leader.
    Done(Result<(), W::Error>, W::Batch),
    /// This writer leads now. It gets back the batch that it left in the queue.
    Lead(Option<W::Batch>),
}

struct Waiter<W: Writers> {
    slot: Mutex<Slot<W>>,
    answered: Condvar,
    sync: bool,
    /// The size of the batch that it left in the queue; 0 with `lead_only`.
    bytes: usize,
    /// It left no batch in the queue: it waits until it leads, and no leader takes it into a group.
    lead_only: bool,
}

struct QueueState<W: Writers> {
    led: bool,
    waiting: VecDeque<Arc<Waiter<W>>>,
}

/// See the module.
pub(crate) struct Queue<W: Writers> {
    runtime: Runtime,
    writers: W,
    state: Mutex<QueueState<W>>,
    leader: Mutex<LeaderWork<W>>,
}

/// What the leader works on.
struct LeaderWork<W: Writers> {
    state: W::State,
    group: Vec<Arc<Waiter<W>>>,
    /// The batches of `group` with their results, in the same order. Both are empty between two
    /// groups.
    others: Others<W>,
}

impl<W: Writers> Queue<W> {
    pub(crate) fn new(runtime: &Runtime, writers: W, state: W::State) -> Queue<W> {
        Queue {
            runtime: runtime.clone(),
            writers,
            state: runtime.mutex(QueueState {
                led: false,
                waiting: VecDeque::new(),
            }),
            leader: runtime.mutex(LeaderWork {
                state,
                group: Vec::new(),
                others: Vec::new(),
            }),
        }
    }

    /// Becomes the leader, in turn. Batches that wait meanwhile keep their order.
    pub(crate) fn lead(&self) -> Lead<'_, W> {
        self.lead_until(None)
            .expect("without a deadline, the caller waits until it leads")
    }

    /// As [`Queue::lead`]. Returns `None` if the caller does not lead at the deadline.
    pub(crate) fn lead_until(&self, deadline: Option<Instant>) -> Option<Lead<'_, W>> {
        let mut state = self.state.lock();
        if state.led {
            let waiter = self.waiter(None, false);
            state.waiting.push_back(waiter.clone());
            drop(state);
            drop(self.wait_for_answer(&waiter, deadline)?);
        } else {
            state.led = true;
        }
        Some(Lead {
            queue: self,
            work: Some(self.leader.lock()),
        })
    }

    /// Waits until a leader has committed the batch of this waiter, or has passed the lead on to
    /// it. Returns `None` if the waiter left the queue at its deadline.
    fn wait_for_answer<'w>(
        &self,
        waiter: &'w Arc<Waiter<W>>,
        mut deadline: Option<Instant>,
    ) -> Option<MutexGuard<'w, Slot<W>>> {
        let mut slot = waiter.slot.lock();
        while !matches!(*slot, Slot::Done(..) | Slot::Lead(_)) {
            let Some(until) = deadline else {
                slot = waiter.answered.wait(slot);
                continue;
            };
            let now = self.runtime.now();
            if now < until {
                slot = waiter.answered.wait_timeout(slot, until.since(now)).0;
                continue;
            }
            // Leaders take this lock while they hold none of `state`.
            drop(slot);
            if self.leave(waiter) || planted!(TakenBatchIsBusy) {
                return None;
            }
            // A leader has taken the batch, or passes the lead on now.
            deadline = None;
            slot = waiter.slot.lock();
        }
        Some(slot)
    }

    /// Takes the waiter out of the queue. Returns false if it is not there any more.
    fn leave(&self, waiter: &Arc<Waiter<W>>) -> bool {
        let mut state = self.state.lock();
        let is_own = |other: &Arc<Waiter<W>>| Arc::ptr_eq(other, waiter);
        let at = state.waiting.iter().position(is_own);
        at.is_some_and(|at| state.waiting.remove(at).is_some())
    }

    /// Commits a batch, in this writer's group or in that of another leader, and returns its
    /// result. If this writer leads, it calls `commit` with its group; the flag says whether any
    /// batch in it is to be synced.
    ///
    /// A borrowed batch is copied only if another leader may take it into its group: then it has at
    /// most [`GROUP_BYTES`]. A writer with a larger batch waits until it leads.
    ///
    /// A writer that is still in the queue at its deadline leaves it, and gets
    /// [`Writers::deadline_passed`].
    pub(crate) fn join(
        &self,
        batch: Cow<'_, W::Batch>,
        sync: bool,
        deadline: Option<Instant>,
        commit: impl FnOnce(&mut W::State, &mut Group<'_, W>, bool),
    ) -> Result<(), W::Error> {
        let mut own = Some(batch);
        let mut others_may_wait = true;
        let mut state = self.state.lock();
        if state.led
            && let Some(Cow::Borrowed(batch)) = own
            && W::bytes(batch) <= GROUP_BYTES
        {
            // Other writers may join and leave while this is copied.
            drop(state);
            own = Some(Cow::Owned(batch.clone()));
            state = self.state.lock();
        }
        if state.led {
            let left = own.take_if(|batch| W::bytes(batch) <= GROUP_BYTES);
            let waiter = self.waiter(left.map(Cow::into_owned), sync);
            state.waiting.push_back(waiter.clone());
            drop(state);
            let Some(mut slot) = self.wait_for_answer(&waiter, deadline) else {
                return Err(self.writers.deadline_passed());
            };
            match std::mem::replace(&mut *slot, Slot::Taken) {
                Slot::Done(result, _batch) => return result,
                Slot::Lead(returned) => own = returned.map(Cow::Owned).or(own),
                Slot::Waiting(_) | Slot::Taken => unreachable!("the wait is over"),
            }
        } else {
            // Nobody waits while nobody leads.
            state.led = true;
            others_may_wait = false;
            drop(state);
        }

        let own = own.expect("a batch that is not in the queue is its writer's");
        let mut lead = Lead {
            queue: self,
            work: Some(self.leader.lock()),
        };
        let work = lead.work_mut();
        let sync = others_may_wait && self.gather(work, W::bytes(&own)) || sync;
        let mut group = Group {
            own: &*own,
            own_result: Ok(()),
            others: &mut work.others,
        };
        commit(&mut work.state, &mut group, sync);
        let result = group.own_result;
        for (waiter, (batch, result)) in work.group.drain(..).zip(work.others.drain(..)) {
            *waiter.slot.lock() = Slot::Done(result, batch);
            waiter.answered.notify_one();
        }
        lead.finish();
        result
    }

    fn waiter(&self, batch: Option<W::Batch>, sync: bool) -> Arc<Waiter<W>> {
        Arc::new(Waiter {
            sync,
            bytes: batch.as_ref().map_or(0, W::bytes),
            lead_only: batch.is_none(),
            slot: self.runtime.mutex(Slot::Waiting(batch)),
            answered: self.runtime.condvar(),
        })
    }

    /// The error of a caller that does not lead at its deadline.
    pub(crate) fn deadline_passed(&self) -> W::Error {
        self.writers.deadline_passed()
    }

    /// The number of writers that wait in the queue and are in no group yet.
    pub(crate) fn waiting_count(&self) -> usize {
        self.state.lock().waiting.len()
    }

    /// Calls `f` while nobody can begin to lead. Its argument says whether anybody leads now.
    pub(crate) fn with_led<R>(&self, f: impl FnOnce(bool) -> R) -> R {
        let state = self.state.lock();
        f(state.led && !planted!(GapTrustsLeader))
    }

    /// Passes the lead on to the first writer that waits.
    fn pass_on(&self) {
        let next = {
            let mut state = self.state.lock();
            let next = state.waiting.pop_front();
            state.led = next.is_some();
            next
        };
        if let Some(waiter) = next {
            let mut slot = waiter.slot.lock();
            let Slot::Waiting(batch) = std::mem::replace(&mut *slot, Slot::Taken) else {
                unreachable!("a writer in the queue waits")
            };
            *slot = Slot::Lead(batch);
            waiter.answered.notify_one();
        }
    }

    /// Takes waiting batches into the leader's group. Returns whether any of them is to be synced.
    fn gather(&self, work: &mut LeaderWork<W>, own_bytes: usize) -> bool {
        let mut sync = false;
        let mut bytes = 0;
        {
            let mut state = self.state.lock();
            while let Some(first) = state.waiting.front() {
                if first.lead_only || !joins(own_bytes, bytes, first.bytes) {
                    break;
                }
                bytes += first.bytes;
                sync = first.sync || sync && !planted!(LastWishSyncs);
                let waiter = state.waiting.pop_front().expect("looked at it");
                work.group.push(waiter);
            }
        }
        for waiter in &work.group {
            let Slot::Waiting(Some(batch)) =
                std::mem::replace(&mut *waiter.slot.lock(), Slot::Taken)
            else {
                unreachable!("a writer in the queue waits with a batch")
            };
            work.others.push((batch, Ok(())));
        }
        sync
    }
}

/// The leader's role, which [`Lead::finish`] passes on.
pub(crate) struct Lead<'a, W: Writers> {
    queue: &'a Queue<W>,
    work: Option<MutexGuard<'a, LeaderWork<W>>>,
}

impl<W: Writers> Lead<'_, W> {
    fn work_mut(&mut self) -> &mut LeaderWork<W> {
        self.work
            .as_mut()
            .expect("held until the lead is passed on")
    }

    /// Calls `commit` with a group that has only this batch.
    pub(crate) fn commit(
        &mut self,
        batch: &W::Batch,
        commit: impl FnOnce(&mut W::State, &mut Group<'_, W>),
    ) -> Result<(), W::Error> {
        let work = self.work_mut();
        let mut group = Group {
            own: batch,
            own_result: Ok(()),
            others: &mut work.others,
        };
        commit(&mut work.state, &mut group);
        group.own_result
    }

    /// Passes the lead on.
    pub(crate) fn finish(mut self) {
        self.work = None;
        self.queue.pass_on();
    }
}

impl<W: Writers> std::ops::Deref for Lead<'_, W> {
    type Target = W::State;
    fn deref(&self) -> &W::State {
        let work = self.work.as_ref();
        &work.expect("held until the lead is passed on").state
    }
}

impl<W: Writers> std::ops::DerefMut for Lead<'_, W> {
    fn deref_mut(&mut self) -> &mut W::State {
        &mut self.work_mut().state
    }
}

impl<W: Writers> Drop for Lead<'_, W> {
    /// A leader that did not call [`Lead::finish`] has panicked, and its group may be half
    /// committed. Its writers get an error, and the lead is passed on.
    fn drop(&mut self) {
        let Some(mut work) = self.work.take() else {
            return;
        };
        let error = self.queue.writers.leader_panicked();
        for waiter in std::mem::take(&mut work.group) {
            *waiter.slot.lock() = Slot::Done(Err(error.clone()), W::Batch::default());
            waiter.answered.notify_one();
        }
        work.others.clear();
        drop(work);
        self.queue.pass_on();
    }
}
