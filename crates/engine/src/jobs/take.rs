//! Decides which work is done next and on which side: a pick and a choice, under one lock.
//!
//! A free task calls [`take`]. It goes through returned flushes, sealed memtables, returned
//! compactions, manual requests, due levels of one keyspace after the other, and last the
//! compactions that reclaim deleted space. It chooses a side for each piece of work. Work that the
//! caller can start is reserved and returned to it. Work that should wait for a busy side or for a
//! worker stays in the tree without a reservation, and is picked again after the next event ([RFC
//! 7](../../../../docs/rfc/0007-slots.md), section 4).
//!
//! Invariants: the version, the unsettled slots and the reservations that a choice is made from are
//! read under the schedule's lock, so the data that a job counts as older cannot shrink unnoticed
//! (RFC 1, V5). A slot is counted as taken under the lock under which it was chosen. Executors are
//! called without the lock.
//!
//! Threading: the schedule's mutex; no I/O under it.

pub(super) mod answers;
pub(super) mod flush_order;
pub(super) mod queues;
mod state;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::planted;

use crate::catalog::KeyspaceMap;
use crate::env::Env;
use crate::env::failures::JobKind;
use crate::jobs::Jobs;
use crate::jobs::choice::{Answer, Ask, SideView, Waiting, choose, choose_other, choose_split};
use crate::jobs::deferral::{self, Deferral};
use crate::jobs::schedule::{self, Left, Running, Schedule, Waits, deletes, with_range_deletes};
use crate::jobs::sides::{Asked, SideId};
use crate::jobs::take::answers::{Known, PickKey};
pub(super) use crate::jobs::take::state::PickState;
use crate::jobs::work::{Described, Placed, Reason, Role, What, Work};
use crate::tree::pick::{self, Choice, ManualStep, Reservation};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::limits::KeyspaceId;
use crate::types::options::{StallPolicy, ThirdScore};

/// The kind of task that takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    /// A worker runs work on the host.
    Worker(Role),
    /// A placer only starts work on sides other than the host.
    Placer {
        /// The placer looks at all work even if no slot is free, so that statistics show waiting
        /// work.
        anyway: bool,
    },
}

/// A merge within level 0 that a task of the role [`Role::MoreFlushes`] takes has at most as many
/// bytes as this number of memtables.
const SMALL_MERGE_MEMTABLES: u64 = 8;

/// A search looks at no further flush after it has left this many of them in the tree, and at no
/// further compaction after it has left twice as many. Of each keyspace it looks at fewer
/// compactions ([`Round::list_max`]).
const LEFT_MAX: usize = 32;

fn key_of(keyspace: &KeyspaceCore, what: &What) -> PickKey {
    match what {
        What::Flush(source) => (keyspace.id, JobKind::Flush, vec![source.id]),
        What::Compaction(compaction) => {
            let choice = &compaction.choice;
            let tables = choice.tables().map(|table| table.id);
            let ids = tables.chain([choice.to.into()]).collect();
            (keyspace.id, JobKind::Compaction, ids)
        }
    }
}

/// The result of [`Round::place`].
enum Step {
    /// The caller starts the work on this side.
    Start(Placed),
    /// The work stays where it is. If the sides were compared, it waits for the given side.
    Leave(Option<Waits>),
    /// The executors have not been asked yet whether they accept the work.
    Ask,
}

/// How a round ended.
enum Found {
    Work(Box<Work>),
    /// The caller must ask the executors about these works, without the lock.
    Questions(Vec<(Arc<KeyspaceCore>, What)>),
    Nothing,
}

/// One search through all work that could be done.
struct Round<'a> {
    jobs: &'a Jobs,
    taker: Taker,
    third_score: ThirdScore,
    /// Whether each side may have only one compaction at a time.
    is_single: bool,
    /// The factor by which the time of the host's cores is multiplied.
    host_weight: f64,
    /// The answers of the executors that are known.
    answers: &'a Known,
    /// The state and slots that the executors reported. `None` if the host is the only side.
    asked: Option<Vec<Asked>>,
    /// The sides as they were under the schedule's lock, without the jobs that they run.
    sides: Option<Vec<SideView<'a>>>,
    /// The work that was left in the tree, with the side that it waits for.
    waiting: Vec<Waiting>,
    /// The reservations that the compactions left in the tree would make.
    left: Vec<(KeyspaceId, Reservation)>,
    /// The same work, in the form in which statistics show it.
    shown: Vec<Left>,
    /// Whether work was left without a question, so that `shown` lacks it.
    is_partial: bool,
    /// Whether a flush waits for the end of a burst.
    defers_flushes: bool,
}

/// The next piece of work, reserved for the caller.
pub(crate) fn take(jobs: &Jobs, taker: Taker) -> Option<Work> {
    let sides = &jobs.runner.sides;
    let policy = jobs.env.options().schedule;
    let has_others = sides.has_others() && policy.third_score != ThirdScore::HostOnly;
    if !has_others && matches!(taker, Taker::Placer { .. }) {
        return None;
    }
    let mut answers = match has_others {
        true => jobs.schedule.lock().answers.at(jobs.env.now()),
        false => Arc::default(),
    };
    loop {
        let round = Round {
            jobs,
            taker,
            third_score: policy.third_score,
            is_single: !policy.multi_threading,
            host_weight: 1.0,
            answers: &answers,
            asked: has_others.then(|| sides.ask_all()),
            sides: None,
            waiting: Vec::new(),
            left: Vec::new(),
            shown: Vec::new(),
            is_partial: false,
            defers_flushes: false,
        };
        match round.walk() {
            Found::Work(work) => return Some(*work),
            Found::Questions(questions) => {
                let questions = questions.iter();
                let said = questions.map(|(keyspace, what)| {
                    let said = jobs.ask_sides(keyspace, what);
                    (key_of(keyspace, what), said)
                });
                let said: Vec<_> = said.collect();
                // A search must not ask the same again, whatever happens to what is remembered.
                Arc::make_mut(&mut answers).extend(said.iter().cloned());
                let mut schedule = jobs.schedule.lock();
                schedule.answers.note(said, jobs.env.now());
            }
            Found::Nothing => return None,
        }
    }
}

/// The most flushes that run at once with `stall_policy = "redirect"`.
pub(super) fn flushes_max(env: &Env) -> usize {
    env.options().background_tasks.max(2) as usize
}

/// All keyspaces, beginning with the one after the keyspace that was served last.
fn in_turn(map: &KeyspaceMap, turn: KeyspaceId) -> impl Iterator<Item = &Arc<KeyspaceCore>> {
    let after = map.by_id.range(turn + 1..).chain(map.by_id.range(..=turn));
    after.map(|(_, keyspace)| keyspace)
}

impl Round<'_> {
    fn walk(mut self) -> Found {
        let jobs = self.jobs;
        let map = jobs.catalog.keyspaces();
        let mut schedule = jobs.schedule.lock();
        schedule.keep_keyspaces(&map);
        schedule.abandon_hanging(&jobs.env);
        self.look_at_sides(&mut schedule);
        let metrics = jobs.env.metrics();
        let reads = metrics.get_count.get() + metrics.seek_count.get();
        let call_count = metrics.batch_count.get() + reads;
        let is_quiet = schedule.is_quiet(call_count, jobs.env.now());
        if jobs.env.options().schedule.spare_host && !is_quiet {
            let runtime = jobs.env.runtime();
            let (now, used_ns) = (runtime.now(), runtime.process_cpu_ns());
            self.host_weight = schedule.host_use.weight(now, used_ns, || runtime.cores());
        }
        // This is checked under the lock. A job that poisons the store does so before it leaves the
        // schedule, so its work is not begun again.
        if jobs.env.health().check_manifest().is_err() {
            return self.nothing(&mut schedule);
        }
        if let Taker::Placer { anyway } = self.taker
            && (schedule.paused || !anyway && !self.has_free_slot(&schedule))
        {
            return Found::Nothing;
        }
        if self.taker == Taker::Worker(Role::MoreFlushes) {
            return self.more_flushes(&mut schedule, &map);
        }
        if let Some(found) = self.flushes(&mut schedule, &map) {
            return found;
        }
        let has_none = self.waiting.is_empty() && !self.defers_flushes;
        if !schedule.runs(JobKind::Flush) && has_none {
            jobs.env.failures().forget_kind(JobKind::Flush);
        }
        let flushes_only = self.taker == Taker::Worker(Role::Flushes);
        if flushes_only && !planted!(CompactionsTakeAllTasks) {
            return Found::Nothing;
        }
        if !self.may_compact(&schedule) {
            return self.nothing(&mut schedule);
        }
        if schedule.paused {
            let given_up = schedule.give_up(|work| work.kind() == JobKind::Compaction);
            if !given_up.is_empty() {
                drop(schedule);
                schedule::end(jobs, given_up);
                jobs.env.work().notify();
                return Found::Nothing;
            }
        } else if let Some(work) = self.returned(&mut schedule, JobKind::Compaction) {
            return work;
        }
        if let Some(found) = self.manual(&mut schedule) {
            return found;
        }
        if schedule.paused {
            return self.nothing(&mut schedule);
        }
        if self.third_score.has_queues() && self.sides.is_some() {
            if let Some(found) = self.queued(&mut schedule, &map) {
                return found;
            }
        } else {
            for keyspace in in_turn(&map, schedule.turn) {
                let pick =
                    |schedule: &Schedule, state: &PickState| pick::pick(&state.due_input(schedule));
                if let Some(found) = self.compactions(&mut schedule, keyspace, Reason::Due, pick) {
                    return found;
                }
            }
        }
        if matches!(self.taker, Taker::Placer { .. }) {
            // The remaining picks need storage calls, which would delay this task.
            return self.nothing(&mut schedule);
        }
        drop(schedule);
        self.for_deletes(&map)
    }

    /// Reads the records of the sides. The schedule's lock is held so that no slot is given out
    /// twice: a slot counts as lost, and its side as suspended, before its job leaves the schedule.
    fn look_at_sides(&mut self, schedule: &mut Schedule) {
        if let Some(asked) = &self.asked {
            self.sides = Some(self.jobs.runner.sides.view(asked));
            schedule.note_reads(self.jobs.env.now());
        }
    }

    /// Whether a side other than the host could begin a job now.
    fn has_free_slot(&self, schedule: &Schedule) -> bool {
        let sides = self.sides.iter().flatten().enumerate();
        let mut others = sides.take(self.jobs.runner.sides.host());
        others.any(|(id, side)| side.slots > schedule.running_count(id))
    }

    /// Looks for compactions that reclaim deleted space, because nothing else is due.
    fn for_deletes(mut self, map: &KeyspaceMap) -> Found {
        let jobs = self.jobs;
        // This opens tables, so it runs without the lock.
        'learn: for keyspace in map.by_id.values() {
            for handle in with_range_deletes(&keyspace.pin()) {
                // If the storage cannot be reached, each attempt would wait for its own time limit.
                let is_known = handle.deleted_ranges().is_some();
                if jobs.env.is_closing()
                    || !is_known && !jobs.tree.tables().learn_deleted_ranges(handle)
                {
                    break 'learn;
                }
            }
        }
        let mut schedule = jobs.schedule.lock();
        self.look_at_sides(&mut schedule);
        // A close may have begun meanwhile. It would not cancel what begins now.
        if schedule.paused || jobs.env.health().check_manifest().is_err() {
            return self.nothing(&mut schedule);
        }
        for keyspace in in_turn(map, schedule.turn) {
            let pick = |schedule: &Schedule, state: &PickState| {
                let deletes = deletes(&jobs.tree, schedule, &state.view);
                pick::pick_deletes(&state.input(None), &deletes)
            };
            if let Some(found) = self.compactions(&mut schedule, keyspace, Reason::Deletes, pick) {
                return found;
            }
        }
        let nothing_due = self.waiting.is_empty() && self.left.is_empty();
        if !schedule.runs(JobKind::Compaction) && nothing_due {
            jobs.env.failures().forget_kind(JobKind::Compaction);
        }
        self.nothing(&mut schedule)
    }

    /// Ends the round when nothing that this task may start is due.
    fn nothing(self, schedule: &mut Schedule) -> Found {
        if self.sides.is_some() && !self.is_partial {
            schedule.set_left(self.shown);
        }
        Found::Nothing
    }

    /// Goes through returned flushes, and then through the sealed memtables, in the order of their
    /// turns ([`flush_order`]). While the log is too long, those that hold its oldest quarter come
    /// first.
    fn flushes(&mut self, schedule: &mut Schedule, map: &KeyspaceMap) -> Option<Found> {
        if let Some(found) = self.returned(schedule, JobKind::Flush) {
            return Some(found);
        }
        if self.has_enough_flushes(schedule) {
            return None;
        }
        let mut due = Vec::new();
        let since_open = self.jobs.commit.stalls().since_open();
        let mut deferral = Deferral::now(&self.jobs.catalog, since_open);
        let oldest = self.jobs.catalog.overdue_log();
        for keyspace in map.by_id.values() {
            // The keyspace's create edit must be durable first. A notification follows that edit.
            if !keyspace.is_created() {
                continue;
            }
            let view = keyspace.view();
            let is_free = |m: &&Arc<MemSource>| {
                !m.flushing.load(Ordering::Acquire) && !m.held.load(Ordering::Acquire)
            };
            let sealed = view.sealed().rev().filter(is_free);
            let is_due = |m: &&Arc<MemSource>| !deferral.defers(keyspace, m);
            let mut sealed: Vec<_> = sealed.filter(is_due).cloned().collect();
            deferral::order(&view, &keyspace.limits(), &mut sealed);
            let bytes = sealed.iter().map(|source| source.mem.data_bytes());
            let turns: Vec<u64> = schedule.flush_order.turns(keyspace.id, bytes).collect();
            for (source, turn) in sealed.into_iter().zip(turns) {
                let position = source.first_position();
                let is_overdue = position.is_some_and(|p| oldest.is_some_and(|end| p <= end));
                due.push((!is_overdue, turn, keyspace, source));
            }
        }
        deferral.note();
        self.defers_flushes = deferral.defers_any();
        due.sort_by_key(|(is_later, turn, _, source)| (*is_later, *turn, source.id));
        for (_, _, keyspace, source) in due {
            let found = self.start(schedule, keyspace, What::Flush(source));
            if found.is_some() {
                return found;
            }
            if self.waiting.len() >= LEFT_MAX {
                return None;
            }
        }
        None
    }

    /// Whether so many flushes run already that a further one would only make all of them end
    /// later. (With the other policies there are not more tasks than `background_tasks`.)
    fn has_enough_flushes(&self, schedule: &Schedule) -> bool {
        let env = &self.jobs.env;
        let running = schedule.running().iter();
        let now = env.now();
        let is_flush = |r: &&Running| r.kind == JobKind::Flush && r.placed.is_some();
        // One that hangs does not make the others slower.
        let flushes = running.filter(|r| is_flush(r) && !r.has_overrun(now));
        env.live().stall_policy == StallPolicy::Redirect && flushes.count() >= flushes_max(env)
    }

    /// Whether the policy `adoc` lets this task begin a compaction now.
    fn may_compact(&self, schedule: &Schedule) -> bool {
        let (Taker::Worker(_), Some(most)) = (self.taker, self.jobs.compactions_max()) else {
            return true;
        };
        let host = self.jobs.runner.sides.host();
        let of_host = |r: &&Running| r.placed.as_ref().is_some_and(|p| p.side == host);
        let compactions = schedule.running().iter().filter(of_host);
        let count = compactions
            .filter(|r| r.kind == JobKind::Compaction)
            .count();
        count < most as usize
    }

    /// The work of the role [`Role::MoreFlushes`].
    fn more_flushes(&mut self, schedule: &mut Schedule, map: &KeyspaceMap) -> Found {
        let env = &self.jobs.env;
        let redirects = env.live().stall_policy == StallPolicy::Redirect;
        if !redirects || planted!(CompactionsTakeAllTasks) {
            return Found::Nothing;
        }
        // If a flush hangs, the task that takes only flushes may be the one that runs it.
        let has_own_task = env.options().background_tasks > 1 && !schedule.has_abandoned();
        let sealed = map.by_id.values().map(|k| k.view().sealed_count);
        if sealed.sum::<usize>() > usize::from(has_own_task) {
            return self.flushes(schedule, map).unwrap_or(Found::Nothing);
        }
        // Without a task that takes only flushes, the next memtable would wait for the merge.
        if !has_own_task || schedule.paused {
            return Found::Nothing;
        }
        for keyspace in in_turn(map, schedule.turn) {
            let settings = keyspace.settings();
            if keyspace.view().l0_depth < settings.pick.l0_intra_count {
                continue;
            }
            let most = SMALL_MERGE_MEMTABLES * settings.limits.memtable_bytes;
            let pick = |schedule: &Schedule, state: &PickState| {
                pick::pick_within_level0(&state.due_input(schedule), most)
            };
            if let Some(found) = self.compactions(schedule, keyspace, Reason::Due, pick) {
                return found;
            }
        }
        Found::Nothing
    }

    /// Goes through the returned work of one kind.
    fn returned(&mut self, schedule: &mut Schedule, kind: JobKind) -> Option<Found> {
        for at in (0..schedule.returned.len()).rev() {
            let work = &schedule.returned[at];
            if work.kind() != kind {
                continue;
            }
            let (id, answers) = (work.id, work.answers.clone());
            match self.place(schedule, work, Some(&answers)) {
                Step::Start(mut placed) => {
                    let mut work = schedule.returned.remove(at);
                    if let What::Flush(source) = &work.what {
                        schedule.choose_location(self.jobs, &work.keyspace, source, &mut placed);
                    }
                    schedule.restart(&mut work, placed);
                    return Some(Found::Work(Box::new(work)));
                }
                Step::Leave(Some(waits)) => schedule.note_waits(id, waits),
                Step::Leave(None) | Step::Ask => {}
            }
        }
        None
    }

    fn manual(&mut self, schedule: &mut Schedule) -> Option<Found> {
        for at in 0..schedule.manual.len() {
            let request = &schedule.manual[at];
            if request.done || request.keyspace.is_dropped() {
                continue;
            }
            let (keyspace, range) = (request.keyspace.clone(), request.range.clone());
            let state = self.pick_state(schedule, &keyspace);
            match pick::pick_manual(&state.manual_input(), &range) {
                ManualStep::Job(choice) => {
                    let what = state.compaction(choice, Reason::Manual);
                    let found = self.start(schedule, &keyspace, what);
                    if found.is_some() {
                        return found;
                    }
                }
                ManualStep::Wait => {}
                ManualStep::Done => schedule.manual[at].done = true,
            }
        }
        None
    }

    /// How many compactions of one keyspace are looked at: as many as all sides could begin.
    fn list_max(&self) -> usize {
        let sides = self.sides.iter().flatten();
        let most = match self.is_single {
            true => 1 + sides.filter(|side| side.slots > 0).count(),
            false => {
                let slots: usize = sides.map(|side| side.slots).sum();
                slots.saturating_add(self.jobs.env.options().background_tasks as usize)
            }
        };
        // One more than that, because the first one may have to wait for a side that is busy.
        most.saturating_add(1).min(LEFT_MAX)
    }

    /// Whether the caller might begin a compaction now, on any side, or is to look at all work. If
    /// each side has the one compaction that it may have at a time, nobody needs to be asked about
    /// others.
    fn may_begin_compaction(&self, schedule: &Schedule) -> bool {
        let host = self.jobs.runner.sides.host();
        let sides = self.sides.iter().flatten().enumerate();
        let mut others = sides.filter(|(id, side)| *id != host && side.slots > 0);
        let is_split = self.third_score == ThirdScore::Split;
        let first = others.clone().next().filter(|(id, _)| is_split && *id == 0);
        if let Some((first, _)) = first {
            // The first side divides all compactions with the host, so the host gets none of its
            // own, whatever it could begin.
            return !self.is_occupied(schedule, first)
                || self.taker == (Taker::Placer { anyway: true });
        }
        let takes_host = match self.taker {
            Taker::Worker(_) => !self.is_occupied(schedule, host),
            Taker::Placer { anyway } => anyway,
        };
        takes_host || others.any(|(id, _)| !self.is_occupied(schedule, id))
    }

    /// Whether the executors have to be asked about a work before it can be placed.
    fn needs_answers(&self, keyspace: &KeyspaceCore, what: &What) -> bool {
        let others = self.sides.iter().flatten();
        let mut others = others.take(self.jobs.runner.sides.host());
        let is_edit = matches!(what, What::Compaction(compaction) if compaction.is_edit());
        !is_edit
            && others.any(|side| side.slots > 0)
            && !self.answers.contains_key(&key_of(keyspace, what))
    }

    /// Goes through the compactions that `pick` finds in a keyspace. If the executors have to be
    /// asked about some of them, they are asked about all of them at once, because each question
    /// ends the search.
    fn compactions(
        &mut self,
        schedule: &mut Schedule,
        keyspace: &Arc<KeyspaceCore>,
        reason: Reason,
        pick: impl Fn(&Schedule, &PickState) -> Option<Choice>,
    ) -> Option<Found> {
        // The drop of a keyspace has cancelled its work already.
        if keyspace.is_dropped() {
            return None;
        }
        let may_begin = self.may_begin_compaction(schedule);
        let list_max = self.list_max();
        let mut looked = 0;
        let mut questions = Vec::new();
        while looked < list_max && self.left.len() < 2 * LEFT_MAX {
            let state = self.pick_state(schedule, keyspace);
            if reason == Reason::Due && state.settings.pick.second_score {
                schedule.follow_overlaps(&state.view.version);
            }
            let Some(choice) = pick(schedule, &state) else {
                break;
            };
            let reservation = choice.reservation();
            let what = state.compaction(choice, reason);
            // An edit needs no side, so it takes none away from other work and does not count.
            let is_edit = matches!(&what, What::Compaction(compaction) if compaction.is_edit());
            looked += usize::from(!is_edit);
            let needs_answers = self.needs_answers(keyspace, &what);
            if needs_answers || !questions.is_empty() {
                // Work that is found later must not begin before this work has been placed.
                self.left.push((keyspace.id, reservation));
                if needs_answers && may_begin {
                    questions.push((keyspace.clone(), what));
                }
                self.is_partial |= !may_begin;
                continue;
            }
            let found = self.start(schedule, keyspace, what);
            if let Some(Found::Work(_)) = found {
                schedule.turn = keyspace.id;
            }
            if found.is_some() {
                return found;
            }
        }
        (!questions.is_empty()).then_some(Found::Questions(questions))
    }

    /// The input of a pick. Work that was left in the tree counts as reserved.
    fn pick_state(&self, schedule: &Schedule, keyspace: &KeyspaceCore) -> PickState {
        let mut reserved = schedule.reservations(keyspace.id);
        let left = self.left.iter().filter(|(id, _)| *id == keyspace.id);
        reserved.extend(left.map(|(_, reservation)| reservation.clone()));
        let unread = schedule.left_out(keyspace, self.jobs.env.now());
        PickState::of(self.jobs, keyspace, reserved, unread)
    }

    /// The role of the caller, if it is a worker.
    fn role(&self) -> Option<Role> {
        match self.taker {
            Taker::Worker(role) => Some(role),
            Taker::Placer { .. } => None,
        }
    }

    /// Starts work that was picked, unless it has to wait.
    fn start(
        &mut self,
        schedule: &mut Schedule,
        keyspace: &Arc<KeyspaceCore>,
        what: What,
    ) -> Option<Found> {
        let mut work = Work::new(keyspace, what);
        let key = self.sides.as_ref().map(|_| key_of(keyspace, &work.what));
        let answers = match &key {
            Some(key) if !work.is_edit() => self.answers.get(key),
            _ => None,
        };
        match self.place(schedule, &work, answers) {
            Step::Start(mut placed) => {
                if let What::Flush(source) = &work.what {
                    schedule.choose_location(self.jobs, keyspace, source, &mut placed);
                }
                work.answers = match (answers, &self.sides) {
                    (Some(answers), _) => answers.clone(),
                    // No executor could be asked, but the work may be placed again after a failure.
                    (None, Some(_)) => self.jobs.runner.sides.nobody(),
                    (None, None) => Vec::new(),
                };
                schedule.start(&mut work, placed);
                if let Some(key) = &key {
                    schedule.forget_left(key);
                }
                Some(Found::Work(Box::new(work)))
            }
            Step::Ask => Some(Found::Questions(vec![(keyspace.clone(), work.what)])),
            Step::Leave(waits) => {
                if let Some((key, waits)) = key.zip(waits) {
                    self.shown.push(Left {
                        key,
                        keyspace: keyspace.name.clone(),
                        described: Described::of(&work),
                        bytes: work.bytes(),
                        table_count: work.table_count(),
                        waits,
                    });
                }
                if let What::Compaction(compaction) = &work.what {
                    self.left
                        .push((keyspace.id, compaction.choice.reservation()));
                }
                None
            }
        }
    }

    /// Decides whether the work starts now, and on which side.
    fn place(&mut self, schedule: &Schedule, work: &Work, answers: Option<&Vec<Answer>>) -> Step {
        let host = self.jobs.runner.sides.host();
        let is_worker = matches!(self.taker, Taker::Worker(_));
        let mut placed = Placed {
            side: host,
            begun: self.jobs.env.now(),
            role: self.role(),
            ..Placed::default()
        };
        if work.is_edit() {
            return match is_worker {
                true => Step::Start(placed),
                false => Step::Leave(None),
            };
        }
        let kind = work.kind();
        let host_is_occupied = kind == JobKind::Compaction && self.is_occupied(schedule, host);
        let Some(sides) = &self.sides else {
            return match host_is_occupied {
                true => Step::Leave(None),
                false => Step::Start(placed),
            };
        };
        let others = &sides[..host];
        let nobody;
        let answers = match answers {
            Some(answers) => answers,
            None if others.iter().any(|side| side.slots > 0) => return Step::Ask,
            // The executors are not asked, because none of them has a slot.
            None => {
                nobody = self.jobs.runner.sides.nobody();
                &nobody
            }
        };
        let sides = self.with_running(schedule, sides, kind);
        let ask = Ask {
            kind,
            size: work.size(),
            may_wait: work.may_wait(),
            answers,
            host_weight: self.host_weight,
        };
        let decision = match self.third_score {
            _ if work.is_kept_off_host => match choose_other(&sides, &ask, &self.waiting) {
                Ok(decision) => decision,
                Err(placement) => {
                    let side = None;
                    return Step::Leave(Some(Waits { side, placement }));
                }
            },
            ThirdScore::Split => choose_split(&sides, &ask, &self.waiting),
            _ => choose(&sides, &ask, &self.waiting),
        };
        let side = decision.side;
        if match side == host {
            true => is_worker && !host_is_occupied,
            false => !decision.is_busy,
        } {
            let expected = sides[side].expected_ns(kind, &ask.size);
            placed.side = side;
            placed.reason = decision.reason;
            placed.expected_ns = expected.unwrap_or(0.0) as u64;
            return Step::Start(placed);
        }
        self.waiting.push(Waiting {
            side,
            kind,
            size: ask.size,
        });
        Step::Leave(Some(Waits {
            side: Some(side),
            placement: decision.reason,
        }))
    }

    /// Whether a side already executes the one compaction that it may have at a time. While the
    /// host verifies and installs an outcome, its side can execute the next compaction.
    fn is_occupied(&self, schedule: &Schedule, side: SideId) -> bool {
        self.is_single && schedule.executes_compaction(side)
    }

    /// The sides with their running jobs. The host's slots are the workers that take this kind of
    /// job.
    fn with_running<'b>(
        &self,
        schedule: &Schedule,
        sides: &[SideView<'b>],
        kind: JobKind,
    ) -> Vec<SideView<'b>> {
        let host = sides.len() - 1;
        let workers = self.jobs.env.options().background_tasks;
        let workers = match kind {
            JobKind::Flush => workers,
            // One of several workers takes flushes only.
            JobKind::Compaction => workers.max(2) - 1,
        };
        let now = self.jobs.env.now();
        let with_running = |(id, side): (SideId, &SideView<'b>)| {
            let mut running = schedule.running_on(id, now);
            // A side with one compaction at a time counts as one slot, if any slot is free for the
            // compaction.
            let is_single = self.is_single
                && kind == JobKind::Compaction
                && !side.is_on_trial
                && (id == host || side.slots > running.len() || self.is_occupied(schedule, id));
            if is_single {
                running.retain(|job| job.kind == kind && job.is_executed);
            }
            let slots = match (id == host, self.taker) {
                (false, _) if is_single => side.slots.min(1),
                (true, _) if is_single => 1,
                (false, _) => side.slots,
                (true, Taker::Placer { .. }) => workers as usize,
                // The calling worker is free, so the host has at least one free slot.
                (true, Taker::Worker(_)) => (workers as usize).max(running.len() + 1),
            };
            SideView {
                running,
                slots,
                ..side.clone()
            }
        };
        sides.iter().enumerate().map(with_running).collect()
    }
}
