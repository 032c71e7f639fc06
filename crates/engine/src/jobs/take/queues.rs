//! Due compactions below level 0 as queues with two ends, for one search for work.
//!
//! Without queues, work is picked one by one, and a side is chosen for each piece. With queues
//! ([`ThirdScore::Ends`](crate::types::options::ThirdScore)), the search first lists the due work,
//! by keyspace and level and sorted by size. Then each side takes from its end ([RFC
//! 10](../../../../../docs/rfc/0010-schedule.md), section 3).
//!
//! Invariants: a queue exists during one search, and reserves nothing in the schedule. The level 0
//! of a keyspace is placed before anything is listed, unless another level of the keyspace is more
//! urgent. In that case it is placed last, and the works that no side took do not keep their tables
//! from it.
//!
//! Threading: under the schedule's lock; no I/O.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use super::answers::PickKey;
use super::{Found, LEFT_MAX, Round, Taker, key_of};
use crate::catalog::KeyspaceMap;
use crate::env::failures::JobKind;
use crate::jobs::choice::ends::{EndSide, Order, PASSED_MAX, Queued, Taken, take_end};
use crate::jobs::choice::{Answer, SideView, left_to_others};
use crate::jobs::schedule::{Left, Schedule, Waits};
use crate::jobs::work::{Described, Placed, Reason, Work};
use crate::tree::pick;
use crate::tree::view::KeyspaceCore;
use crate::types::limits::{BOTTOM_LEVEL, KeyspaceId};
use crate::types::options::ThirdScore;

/// Identifies a work across searches: the keyspace, the level, and the first table. The tables in
/// the level below may change meanwhile.
type WorkKey = (KeyspaceId, u8, u64);

/// A work is forgotten if this many searches in a row did not find it. A search lists only as much
/// as the sides could begin, so it may end before it reaches the works of another keyspace.
const REMEMBERED_FOR: u64 = 64;

/// What is remembered about a work in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Age {
    /// The number of the search that found it first.
    since: u64,
    /// The number of the search that found it last.
    seen: u64,
    passed_count: u32,
}

/// What is remembered about the queues from one search to the next.
#[derive(Debug, Default)]
pub(in crate::jobs) struct Memory {
    /// `None` before the first search.
    order: Option<Order>,
    /// The side that took from the small end in the last search.
    pub(in crate::jobs) small_end: Option<usize>,
    searches: u64,
    ages: BTreeMap<WorkKey, Age>,
}

impl Memory {
    /// Notes the works that a search has found. Works that were not found for a long time are
    /// forgotten.
    fn note(&mut self, found: impl Iterator<Item = WorkKey>) {
        self.searches += 1;
        let now = self.searches;
        for key in found {
            let new = Age {
                since: now,
                seen: now,
                passed_count: 0,
            };
            self.ages.entry(key).or_insert(new).seen = now;
        }
        self.ages.retain(|_, age| now - age.seen < REMEMBERED_FOR);
    }

    /// Forgets a work that was begun. If it is found again, it counts as new.
    fn forget(&mut self, key: &WorkKey) {
        self.ages.remove(key);
    }

    fn passed_count(&self, key: &WorkKey) -> u32 {
        self.ages.get(key).map_or(0, |age| age.passed_count)
    }

    /// Counts that a work was taken, for the works of its queue that had been found earlier than
    /// it.
    fn count_passed<'a>(&mut self, taken: &WorkKey, queue: impl Iterator<Item = &'a WorkKey>) {
        let Some(taken) = self.ages.get(taken).copied() else {
            return;
        };
        for key in queue {
            if let Some(age) = self.ages.get_mut(key)
                && age.since < taken.since
            {
                age.passed_count = age.passed_count.saturating_add(1);
            }
        }
    }
}

/// A work in a queue.
struct Entry {
    work: Work,
    pick_key: PickKey,
    key: WorkKey,
    table_count: usize,
    answers: Vec<Answer>,
}

/// The works of one level of one keyspace, sorted by size.
struct Queue {
    keyspace: Arc<KeyspaceCore>,
    level: u8,
    entries: Vec<Entry>,
}

impl Queue {
    fn queued(&self, memory: &Memory) -> Vec<Queued<'_>> {
        self.entries
            .iter()
            .map(|entry| Queued {
                passed_count: memory.passed_count(&entry.key),
                answers: &entry.answers,
            })
            .collect()
    }

    fn sort(&mut self) {
        let size = |entry: &Entry| (entry.table_count, entry.work.bytes(), entry.key);
        self.entries.sort_by_key(size);
    }
}

impl Round<'_> {
    /// Places due compactions. Those of level 0 are placed in the same way as without queues. The
    /// works of the other levels are put into queues, and each side takes from its end.
    pub(super) fn queued(&mut self, schedule: &mut Schedule, map: &KeyspaceMap) -> Option<Found> {
        let mut later = Vec::new();
        for keyspace in super::in_turn(map, schedule.turn) {
            if !self.is_level0_first(schedule, keyspace) {
                later.push(keyspace);
            } else if let Some(found) = self.level0(schedule, keyspace) {
                return Some(found);
            }
        }
        let left_count = self.left.len();
        let mut queues = match self.list(schedule, map) {
            Ok(queues) => queues,
            Err(found) => return Some(found),
        };
        if self.must_ask(&queues) {
            return Some(self.questions(queues));
        }
        self.answer(&mut queues);
        queues.iter_mut().for_each(Queue::sort);
        let all = queues.iter().flat_map(|queue| &queue.entries);
        schedule.queues.note(all.map(|entry| entry.key));
        let sides = self.end_sides();
        let host = self.jobs.runner.sides.host();
        let freezes = self.third_score == ThirdScore::EndsFrozen;
        let order = schedule.queues.order.take();
        let order = order
            .unwrap_or_else(|| Order::new(sides.len()))
            .compared(&sides, freezes);
        let small = order.small_end(&sides);
        schedule.queues.small_end = small;
        let all: Vec<_> = queues
            .iter()
            .map(|queue| queue.queued(&schedule.queues))
            .collect();
        let mut able = self.able(schedule);
        let host_is_able = able[host];
        let is_spared = self.host_weight > 1.0;
        able[host] &= !is_spared;
        let mut taken = take_end(&order, small, &able, &all);
        drop(all);
        if taken.is_none() && is_spared && host_is_able {
            // No other side can begin a job. The host does not begin a job that another side will
            // finish soon enough.
            self.leave_to_others(schedule, &mut queues, small == Some(host), &able);
            let all: Vec<_> = queues
                .iter()
                .map(|queue| queue.queued(&schedule.queues))
                .collect();
            let only_host: Vec<bool> = (0..able.len()).map(|side| side == host).collect();
            taken = take_end(&order, small, &only_host, &all);
        }
        schedule.queues.order = Some(order);
        if let Some(taken) = taken {
            return Some(self.start_taken(schedule, queues, taken, small));
        }
        self.show(queues);
        // No side can begin the listed works now, so they need not keep their tables from level 0.
        self.left.truncate(left_count);
        later
            .into_iter()
            .find_map(|keyspace| self.level0(schedule, keyspace))
    }

    /// Whether level 0 of a keyspace is at least as urgent as its other levels. If level 0 always
    /// came first, its jobs would follow each other and reserve all of the level below. That level
    /// would grow without a limit, and so would these jobs.
    fn is_level0_first(&self, schedule: &Schedule, keyspace: &Arc<KeyspaceCore>) -> bool {
        let state = self.pick_state(schedule, keyspace);
        let scores = pick::scores(&state.input(None));
        scores[1..].iter().all(|score| *score <= scores[0])
    }

    /// Places the due compactions of level 0 of a keyspace.
    fn level0(&mut self, schedule: &mut Schedule, keyspace: &Arc<KeyspaceCore>) -> Option<Found> {
        let pick = |schedule: &Schedule, state: &super::PickState| {
            pick::pick_of(&state.input(schedule.overlaps(keyspace.id)), 0..1)
        };
        self.compactions(schedule, keyspace, Reason::Due, pick)
    }

    /// Lists the due compactions below level 0, at most as many as all sides could begin. Work that
    /// is only an edit is placed at once.
    fn list(
        &mut self,
        schedule: &mut Schedule,
        map: &KeyspaceMap,
    ) -> std::result::Result<Vec<Queue>, Found> {
        let workers = self.jobs.env.options().background_tasks as usize;
        let slots: usize = self.sides.iter().flatten().map(|side| side.slots).sum();
        let most = slots.saturating_add(workers).min(LEFT_MAX);
        let mut queues: Vec<Queue> = Vec::new();
        let mut count = 0;
        let live = |keyspace: &&Arc<KeyspaceCore>| !keyspace.is_dropped();
        for keyspace in super::in_turn(map, schedule.turn).filter(live) {
            while count < most && self.left.len() < 2 * LEFT_MAX {
                let state = self.pick_state(schedule, keyspace);
                if state.settings.pick.second_score {
                    schedule.follow_overlaps(&state.view.version);
                }
                let input = state.due_input(schedule);
                let Some(choice) = pick::pick_of(&input, 1..BOTTOM_LEVEL) else {
                    break;
                };
                let (level, table_count) = (choice.from, choice.tables().count());
                let first = choice.tables().next().map_or(0, |table| table.id);
                let reservation = choice.reservation();
                let work = Work::new(keyspace, state.compaction(choice, Reason::Due));
                if work.is_edit() {
                    if let Some(found) = self.start(schedule, keyspace, work.what) {
                        schedule.turn = keyspace.id;
                        return Err(found);
                    }
                    continue;
                }
                self.left.push((keyspace.id, reservation));
                count += 1;
                let entry = Entry {
                    pick_key: key_of(keyspace, &work.what),
                    key: (keyspace.id, level, first),
                    table_count,
                    answers: Vec::new(),
                    work,
                };
                let is_its = |queue: &&mut Queue| {
                    queue.level == level && Arc::ptr_eq(&queue.keyspace, keyspace)
                };
                match queues.iter_mut().find(is_its) {
                    Some(queue) => queue.entries.push(entry),
                    None => queues.push(Queue {
                        keyspace: keyspace.clone(),
                        level,
                        entries: vec![entry],
                    }),
                }
            }
        }
        Ok(queues)
    }

    /// Whether the executors have not been asked about some of the work yet.
    fn must_ask(&self, queues: &[Queue]) -> bool {
        let others = self.sides.iter().flatten();
        let mut others = others.take(self.jobs.runner.sides.host());
        let mut entries = queues.iter().flat_map(|queue| &queue.entries);
        // If no executor has a slot, none of them gets any of the work.
        others.any(|side| side.slots > 0) && entries.any(|entry| !self.is_answered(entry))
    }

    fn is_answered(&self, entry: &Entry) -> bool {
        self.answers.contains_key(&entry.pick_key)
    }

    fn questions(&self, queues: Vec<Queue>) -> Found {
        let mut questions = Vec::new();
        for queue in queues {
            let unasked = queue.entries.into_iter().filter(|e| !self.is_answered(e));
            questions.extend(unasked.map(|entry| (queue.keyspace.clone(), entry.work.what)));
        }
        Found::Questions(questions)
    }

    /// Gives each work the answers of the sides. The host accepts all work.
    fn answer(&self, queues: &mut [Queue]) {
        let sides = &self.jobs.runner.sides;
        for entry in queues.iter_mut().flat_map(|queue| &mut queue.entries) {
            let answers = self.answers.get(&entry.pick_key);
            entry.answers = answers.cloned().unwrap_or_else(|| sides.nobody());
            entry.answers[sides.host()] = Answer::Accepts;
        }
    }

    /// The properties of the sides that are needed to compare them.
    fn end_sides(&self) -> Vec<EndSide> {
        let host = self.jobs.runner.sides.host();
        let of = |(id, side): (usize, &SideView<'_>)| EndSide {
            takes_part: id == host || side.slots > 0,
            job_count: side.measured_jobs[JobKind::Compaction as usize],
            ns_per_byte: side.compaction_ns_per_byte,
        };
        self.sides.iter().flatten().enumerate().map(of).collect()
    }

    /// For each side, whether the caller can begin a compaction there now.
    fn able(&self, schedule: &Schedule) -> Vec<bool> {
        let host = self.jobs.runner.sides.host();
        let of = |(id, side): (usize, &SideView<'_>)| {
            let count = schedule.running_count(id);
            let has_room = match id == host {
                true => matches!(self.taker, Taker::Worker { .. }),
                // One of several slots is kept for level 0, because writers wait for level 0 first.
                false => slots_for_queued(side.slots) > count && (count == 0 || !side.is_on_trial),
            };
            has_room && !self.is_occupied(schedule, id)
        };
        self.sides.iter().flatten().enumerate().map(of).collect()
    }

    /// Makes the host refuse the works that other sides are expected to finish first, although
    /// these sides are busy, because the host's time is multiplied. At most as many works wait for
    /// a side as it has slots. `from_large` says that the other sides take from the large end.
    /// `able` says for each side whether the caller can begin a compaction there now.
    fn leave_to_others(
        &self,
        schedule: &Schedule,
        queues: &mut [Queue],
        from_large: bool,
        able: &[bool],
    ) {
        let Some(sides) = &self.sides else {
            return;
        };
        let host = self.jobs.runner.sides.host();
        let mut sides = self.with_running(schedule, sides, JobKind::Compaction);
        for (side, able) in sides[..host].iter_mut().zip(able) {
            side.slots = slots_for_queued(side.slots);
            // The side seems to be free but is not, for example because a flush has its slot.
            if !able && side.running.len() < side.slots {
                side.slots = 0;
            }
        }
        let mut others_take: Vec<&mut Entry> = Vec::new();
        for queue in queues {
            let from = others_take.len();
            others_take.extend(&mut queue.entries);
            if from_large {
                others_take[from..].reverse();
            }
        }
        let works = others_take.iter();
        let works = works.map(|entry| (entry.work.size(), &entry.answers[..]));
        let left = left_to_others(&sides, works, self.host_weight, &self.waiting);
        for (entry, is_left) in others_take.into_iter().zip(left) {
            if is_left {
                entry.answers[host] = Answer::Refuses;
            }
        }
    }

    /// Starts the work that a side takes from its end.
    fn start_taken(
        &self,
        schedule: &mut Schedule,
        mut queues: Vec<Queue>,
        taken: Taken,
        small: Option<usize>,
    ) -> Found {
        let queue = &mut queues[taken.queue];
        let reason = self.reason(queue, taken, small);
        let entry = queue.entries.remove(taken.position);
        let others = queue.entries.iter().map(|entry| &entry.key);
        schedule.queues.count_passed(&entry.key, others);
        schedule.queues.forget(&entry.key);
        let mut work = entry.work;
        let side = self.sides.as_ref().map(|sides| &sides[taken.side]);
        let expected = side.and_then(|s| s.expected_ns(JobKind::Compaction, &work.size()));
        let placed = Placed {
            side: taken.side,
            location: 0,
            reason,
            expected_ns: expected.unwrap_or(0.0) as u64,
            role: self.role(),
            begun: self.jobs.env.now(),
        };
        work.answers = entry.answers;
        schedule.start(&mut work, placed);
        schedule.forget_left(&entry.pick_key);
        schedule.turn = queue.keyspace.id;
        Found::Work(Box::new(work))
    }

    /// Why a side takes a work, as text for people.
    fn reason(&self, queue: &Queue, taken: Taken, small: Option<usize>) -> String {
        let sides = self.sides.iter().flatten();
        let name = sides.clone().nth(taken.side).map_or("", |side| side.name);
        let (at, length) = (taken.position + 1, queue.entries.len());
        let level = queue.level;
        let mut reason = match (taken.was_passed, small == Some(taken.side)) {
            (true, _) => format!(
                "{name} takes {at} of {length} of level {level}, which was passed over \
                 {PASSED_MAX} times"
            ),
            (false, true) => {
                format!("{name} takes from the small end of level {level}, {at} of {length}")
            }
            (false, false) => {
                format!("{name} takes from the large end of level {level}, {at} of {length}")
            }
        };
        for side in sides {
            let _ = match side.compaction_ns_per_byte {
                Some(ns) => write!(reason, ", {} {ns:.3} ns a byte", side.name),
                None => write!(reason, ", {} is not measured yet", side.name),
            };
        }
        reason
    }

    /// Notes the work that no side has taken, for statistics.
    fn show(&mut self, queues: Vec<Queue>) {
        for queue in queues {
            let length = queue.entries.len();
            for (i, entry) in queue.entries.into_iter().enumerate() {
                let placement = format!(
                    "{} of {length} in the queue of level {}, by size",
                    i + 1,
                    queue.level
                );
                self.shown.push(Left {
                    key: entry.pick_key,
                    keyspace: queue.keyspace.name.clone(),
                    described: Described::of(&entry.work),
                    bytes: entry.work.bytes(),
                    table_count: entry.table_count as u64,
                    waits: Waits {
                        side: None,
                        placement,
                    },
                });
            }
        }
    }
}

/// The number of slots of an executor that queued work may take. If there are several, one is kept
/// for level 0.
fn slots_for_queued(slots: usize) -> usize {
    slots.saturating_sub(1).max(slots.min(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn key(first: u64) -> WorkKey {
        (1, 2, first)
    }

    #[test]
    fn only_works_that_came_earlier_are_passed_over() {
        let (old, new, newer) = (key(10), key(20), key(30));
        let mut memory = Memory::default();
        memory.note([old].into_iter());
        memory.note([old, new].into_iter());
        // The work that was found first is taken, so no work is passed over.
        memory.count_passed(&old, [new].iter());
        assert_eq!(memory.passed_count(&new), 0);
        memory.count_passed(&new, [old].iter());
        memory.note([old, newer].into_iter());
        memory.count_passed(&newer, [old].iter());
        assert_eq!(memory.passed_count(&old), 2);
        // Works that were found at the same time do not pass each other.
        memory.note([old, key(40), key(50)].into_iter());
        memory.count_passed(&key(40), [old, key(50)].iter());
        assert_eq!(
            (memory.passed_count(&old), memory.passed_count(&key(50))),
            (3, 0)
        );
    }

    #[test]
    fn a_work_is_remembered_while_others_are_listed() {
        let (old, new) = (key(10), key(20));
        let mut memory = Memory::default();
        memory.note([old].into_iter());
        memory.note([old, new].into_iter());
        memory.count_passed(&new, [old].iter());
        // The next searches list the works of another keyspace.
        for first in 30..90 {
            memory.note([(2, 2, first)].into_iter());
        }
        memory.note([old].into_iter());
        assert_eq!(memory.passed_count(&old), 1);
        // A work that was not found for a long time counts as new when it is found again.
        for first in 100..100 + REMEMBERED_FOR {
            memory.note([(2, 2, first)].into_iter());
        }
        assert!(memory.ages.len() <= REMEMBERED_FOR as usize);
        memory.note([old].into_iter());
        assert_eq!(memory.passed_count(&old), 0);
    }
}
