//! The running work and its reservations.
//!
//! `take` reserves the work that it gives out, so that several jobs can run at once. `finish`
//! releases the reservation, unless the work is a compaction that failed after it had finished
//! tables: it then waits for another attempt, which resumes after these tables. Work that failed on
//! a side other than the host waits in the same way (`put_back`). While work waits, its reservation
//! and the input of its job stay.
//!
//! Invariants: a memtable is flushed by one task at a time, apart from a flush that was abandoned
//! because it hangs at the second location of tables and will install nothing; reservations of
//! running jobs are disjoint (`pick` sees them all, under this lock).
//!
//! Threading: one mutex (`Jobs::schedule`); no I/O under it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use litemap::LiteMap;
use siltstone_storage::Instant;
use siltstone_storage::planted;
use siltstone_table::exec::{CancelToken, Progress};

use crate::catalog::KeyspaceMap;
use crate::env::failures::JobKind;
use crate::formats::version::{KeyspaceVersion, SeqRange, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::choice::{Advance, Answer, RunningJob};
use crate::jobs::ended::cancelled;
use crate::jobs::host_use::HostUse;
use crate::jobs::location_states::{Blame, LocationStates};
use crate::jobs::sides::SideId;
use crate::jobs::take::PickState;
use crate::jobs::take::answers::{Answers, PickKey};
use crate::jobs::take::flush_order::FlushOrder;
use crate::jobs::take::queues::Memory;
use crate::jobs::work::{Described, Placed, RemarkCell, Reserved, Stage, StageCell, What, Work};
use crate::tree::Tree;
use crate::tree::pick::{
    self, Deletes, LastPicked, ManualRange, NOTHING_PICKED, Overlaps, Reservation,
};
use crate::tree::tables::TableHandle;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource};
use crate::types::error::{ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// Work that has not ended, as the rest of the store sees it.
pub(super) struct Running {
    id: u64,
    pub(super) kind: JobKind,
    keyspace: KeyspaceId,
    pub(super) name: String,
    pub(super) described: Described,
    /// Bytes of the work's inputs.
    pub(super) bytes: u64,
    reservation: Option<Reservation>,
    /// `None` while the work waits for another attempt.
    pub(super) placed: Option<Placed>,
    /// The side that the next attempt waits for, as of the last search.
    pub(super) waits: Option<Waits>,
    pub(super) progress: Arc<Progress>,
    /// The bytes that the job has read, and when that count was first seen.
    read: u64,
    read_at: Instant,
    pub(super) stage: Arc<StageCell>,
    pub(super) remark: Arc<RemarkCell>,
    pub(super) cancel: CancelToken,
    /// The memtable of a flush.
    pub(super) memtable: Weak<MemSource>,
    /// It is a compaction with inputs at the second location.
    pub(super) reads_redirected: bool,
    /// It hangs at the second location. Its memtable was released, and it will install nothing.
    pub(super) is_abandoned: bool,
    /// A task was started in place of the one that hangs.
    pub(super) has_stand_in: bool,
}

impl Running {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// For how long the job has not progressed, as far as this was noticed.
    pub(super) fn still_for(&self, now: Instant) -> Duration {
        let begun = self.placed.as_ref().map_or(now, |placed| placed.begun);
        now.since(self.read_at.max(begun))
    }

    /// Whether a side executes the job, or will begin to. Otherwise its outcome is being verified
    /// or installed.
    fn is_executed(&self) -> bool {
        matches!(self.stage.get(), Stage::Reserved | Stage::Running)
    }

    /// The progress of the job. `None` while the work waits for another attempt.
    pub(super) fn advance(&self, now: Instant) -> Option<Advance> {
        let placed = self.placed.as_ref()?;
        Some(Advance {
            elapsed: now.since(placed.begun),
            expected: Duration::from_nanos(placed.expected_ns),
            bytes: self.bytes,
            read: self.read,
            still: now.since(self.read_at.max(placed.begun)),
        })
    }
}

/// The side that work waits for.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    /// The side that the work waits for. `None` if it waits in a queue, from which any side may
    /// take it.
    pub(super) side: Option<SideId>,
    /// Why it waits for this side, or where it stands in its queue, as text for people.
    pub(super) placement: String,
}

/// Work that waits in the tree for a side, without a reservation. Only statistics use it: `take`
/// picks again.
pub(super) struct Left {
    pub(super) key: PickKey,
    pub(super) keyspace: String,
    pub(super) described: Described,
    pub(super) bytes: u64,
    /// The number of the work's input tables.
    pub(super) table_count: u64,
    pub(super) waits: Waits,
}

pub(crate) struct ManualRequest {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) range: ManualRange,
    pub(crate) done: bool,
}

/// See the module.
pub(crate) struct Schedule {
    /// The number of jobs in a row that panicked, by kind and keyspace.
    panicked: LiteMap<(JobKind, KeyspaceId), u32>,
    /// All work that has not ended. This includes work that waits for its next attempt, because it
    /// is still reserved.
    running: Vec<Running>,
    /// Work that the last complete search found and did not start. Empty if the host is the only
    /// side.
    left: Vec<Left>,
    /// Work that waits for another attempt, because that attempt can resume after finished tables,
    /// or because a side other than the host failed.
    pub(super) returned: Vec<Work>,
    pub(crate) manual: Vec<ManualRequest>,
    next_id: u64,
    /// The keyspace that was served last. Keyspaces take turns.
    pub(super) turn: KeyspaceId,
    /// Tables that were rewritten for their tombstones and did not lose them. They are not
    /// rewritten for this reason again.
    unproductive: BTreeSet<u64>,
    /// Whether a test has stopped automatic compaction.
    pub(crate) paused: bool,
    /// The overlaps of the tables of each keyspace that was picked from, as of its last pick.
    overlaps: LiteMap<KeyspaceId, Overlaps>,
    /// The last picks of each keyspace.
    last_picked: LiteMap<KeyspaceId, LastPicked>,
    /// Whose memtable is flushed next.
    pub(super) flush_order: FlushOrder,
    /// What is remembered about the queues of compactions, if the policy has queues.
    pub(super) queues: Memory,
    /// What the executors have said about works.
    pub(super) answers: Answers,
    /// How busy the host's cores are.
    pub(super) host_use: HostUse,
    /// What is known of the locations of tables.
    pub(crate) states: LocationStates,
    /// The location of all flushes of the host, if a test has set one.
    pub(crate) forced_location: Option<u32>,
    /// The number of writes and reads so far, and when a search first saw this number.
    callers: Option<(u64, Instant)>,
}

/// After this time without a write or a read, nobody needs the host's cores.
const QUIET_AFTER: Duration = Duration::from_millis(100);

impl Schedule {
    /// Whether a job of this kind runs.
    pub(super) fn runs(&self, kind: JobKind) -> bool {
        self.running
            .iter()
            .any(|r| r.kind == kind && !r.is_abandoned)
    }

    pub(crate) fn new() -> Schedule {
        Schedule {
            panicked: LiteMap::new(),
            running: Vec::new(),
            left: Vec::new(),
            returned: Vec::new(),
            manual: Vec::new(),
            next_id: 1,
            turn: 0,
            unproductive: BTreeSet::new(),
            paused: false,
            overlaps: LiteMap::new(),
            last_picked: LiteMap::new(),
            flush_order: FlushOrder::default(),
            queues: Memory::default(),
            answers: Answers::default(),
            host_use: HostUse::default(),
            states: LocationStates::default(),
            forced_location: None,
            callers: None,
        }
    }

    /// Whether there was no write or read for a while. `count` is the number of writes and reads so
    /// far.
    pub(super) fn is_quiet(&mut self, count: u64, now: Instant) -> bool {
        match &self.callers {
            Some((before, since)) if *before == count => now.since(*since) >= QUIET_AFTER,
            _ => {
                self.callers = Some((count, now));
                false
            }
        }
    }

    /// Updates the index of overlaps of a keyspace to this version.
    pub(super) fn follow_overlaps(&mut self, version: &Arc<KeyspaceVersion>) {
        let overlaps = self.overlaps.entry(version.id()).or_default();
        overlaps.follow(version);
    }

    /// The index of overlaps of a keyspace. `None` if it was not picked from.
    pub(super) fn overlaps(&self, keyspace: KeyspaceId) -> Option<&Overlaps> {
        self.overlaps.get(&keyspace)
    }

    /// Forgets the indexes and the last picks of keyspaces that do not exist any more.
    pub(super) fn keep_keyspaces(&mut self, map: &KeyspaceMap) {
        if self.overlaps.len() > map.by_id.len() {
            self.overlaps.retain(|id, _| map.by_id.contains_key(id));
        }
        if self.last_picked.len() > map.by_id.len() {
            self.last_picked.retain(|id, _| map.by_id.contains_key(id));
        }
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Gives up the returned work that `which` selects. The caller ends it without the lock.
    #[must_use]
    pub(super) fn give_up(&mut self, which: impl Fn(&Work) -> bool) -> Vec<Work> {
        let returned = std::mem::take(&mut self.returned).into_iter();
        let (given_up, kept): (Vec<Work>, Vec<Work>) = returned.partition(which);
        self.returned = kept;
        let running = &mut self.running;
        running.retain(|r| !given_up.iter().any(|work| work.id == r.id));
        given_up
    }

    /// Stores the work that a complete search left in the tree.
    pub(super) fn set_left(&mut self, left: Vec<Left>) {
        self.left = left;
    }

    /// Forgets waiting work because it is started now.
    pub(super) fn forget_left(&mut self, key: &PickKey) {
        self.left.retain(|left| left.key != *key);
    }

    pub(super) fn left(&self) -> &[Left] {
        &self.left
    }

    pub(super) fn running(&self) -> &[Running] {
        &self.running
    }

    pub(super) fn running_mut(&mut self) -> &mut [Running] {
        &mut self.running
    }

    /// Notes the side that returned work waits for.
    pub(super) fn note_waits(&mut self, id: u64, waits: Waits) {
        if let Some(running) = self.running.iter_mut().find(|r| r.id == id) {
            running.waits = Some(waits);
        }
    }

    /// Reserves work that was picked and is started now.
    pub(super) fn start(&mut self, work: &mut Work, placed: Placed) {
        work.id = self.new_id();
        let reservation = match &work.what {
            What::Flush(source) => {
                source.flushing.store(true, Ordering::Release);
                let bytes = source.mem.data_bytes();
                self.flush_order.begun(work.keyspace.id, bytes);
                None
            }
            What::Compaction(compaction) => {
                if let Some((level, first)) = compaction.choice.picked() {
                    let picked = self.last_picked.entry(work.keyspace.id);
                    let picked = picked.or_insert_with(|| NOTHING_PICKED.clone());
                    picked[usize::from(level)] = Some(first.clone());
                }
                Some(compaction.choice.reservation())
            }
        };
        work.placed = placed.clone();
        self.running.push(Running {
            id: work.id,
            kind: work.kind(),
            keyspace: work.keyspace.id,
            name: work.keyspace.name.clone(),
            described: Described::of(work),
            bytes: work.bytes(),
            reservation,
            read: 0,
            read_at: placed.begun,
            placed: Some(placed),
            waits: None,
            progress: work.progress.clone(),
            stage: work.stage.clone(),
            remark: work.remark.clone(),
            cancel: work.cancel.clone(),
            memtable: work.reserved().memtable,
            reads_redirected: match &work.what {
                What::Flush(_) => false,
                What::Compaction(compaction) => {
                    compaction.choice.tables().any(|table| table.location != 0)
                }
            },
            is_abandoned: false,
            has_stand_in: false,
        });
    }

    /// Starts another attempt of returned work.
    pub(super) fn restart(&mut self, work: &mut Work, placed: Placed) {
        if work.placed.side != placed.side {
            // The remark is that of the executor of the last attempt.
            work.remark.clear();
        }
        work.placed = placed.clone();
        if let Some(running) = self.running.iter_mut().find(|r| r.id == work.id) {
            running.placed = Some(placed);
            running.waits = None;
        }
    }

    /// Marks the work as waiting for another attempt.
    fn unplace(&mut self, work: &Work) {
        work.stage.set(Stage::Reserved);
        if let What::Flush(source) = &work.what {
            source.end_flush();
        }
        if let Some(running) = self.running.iter_mut().find(|r| r.id == work.id) {
            running.placed = None;
            running.progress = work.progress.clone();
            running.read = 0;
            running.cancel = work.cancel.clone();
        }
    }

    /// Samples how much each job has read. The comparison of sides uses these samples.
    pub(super) fn note_reads(&mut self, now: Instant) {
        for running in &mut self.running {
            let read = running.progress.bytes_in.load(Ordering::Relaxed);
            if read != running.read {
                (running.read, running.read_at) = (read, now);
            }
        }
    }

    /// The jobs that a side runs.
    pub(super) fn running_on(&self, side: SideId, now: Instant) -> Vec<RunningJob> {
        let on_side = |running: &&Running| {
            let placed = running.placed.as_ref();
            placed.is_some_and(|p| p.side == side) && !running.is_abandoned
        };
        let of = |running: &Running| {
            Some(RunningJob {
                kind: running.kind,
                remaining: running.advance(now)?.remaining(),
                is_executed: running.is_executed(),
            })
        };
        self.running.iter().filter(on_side).filter_map(of).collect()
    }

    /// The number of jobs that a side runs.
    pub(super) fn running_count(&self, side: SideId) -> usize {
        let on_side = |running: &&Running| running.placed.as_ref().is_some_and(|p| p.side == side);
        self.running.iter().filter(on_side).count()
    }

    /// Whether a side executes a compaction, or will begin to.
    pub(super) fn executes_compaction(&self, side: SideId) -> bool {
        self.running.iter().any(|running| {
            running.kind == JobKind::Compaction
                && running.placed.as_ref().is_some_and(|p| p.side == side)
                && running.is_executed()
        })
    }

    /// The last pick of each level of a keyspace.
    pub(super) fn last_picked(&self, keyspace: KeyspaceId) -> &LastPicked {
        self.last_picked.get(&keyspace).unwrap_or(&NOTHING_PICKED)
    }

    pub(super) fn reservations(&self, keyspace: KeyspaceId) -> Vec<Reservation> {
        self.running
            .iter()
            .filter(|r| r.keyspace == keyspace)
            .filter_map(|r| r.reservation.clone())
            .collect()
    }

    /// Memory of the running jobs' buffers, in bytes.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let of = |r: &Running| r.progress.buffer_bytes.load(Ordering::Relaxed);
        // Executors report these numbers, which may have any size, so the sum saturates.
        self.running.iter().map(of).fold(0, u64::saturating_add)
    }
}

/// The sequence ranges of the sources that are not installed yet.
pub(super) fn unsettled(view: &KeyspaceView) -> Vec<SeqRange> {
    view.sources
        .iter()
        .filter(|s| s.is_unsettled() && !planted!(IgnoreUnsettled))
        .map(|s| s.seqs())
        .collect()
}

/// The tables of a view that have range deletes. Those at the second location are left out: they
/// come back first, and nothing else should wait for their disk.
pub(super) fn with_range_deletes(view: &KeyspaceView) -> impl Iterator<Item = &Arc<TableHandle>> {
    view.level_views()
        .filter(|(_, level)| level.has_range_deletes)
        .flat_map(|(_, level)| &level.handles)
        .filter(|handle| handle.meta.range_deletes > 0 && handle.meta.location == 0)
}

/// The input of `pick_deletes` besides the version.
pub(super) fn deletes(tree: &Tree, schedule: &Schedule, view: &KeyspaceView) -> Deletes {
    let published = tree.snapshots().published();
    let oldest_read = tree
        .snapshots()
        .oldest()
        .unwrap_or(published)
        .min(published);
    Deletes {
        oldest_read,
        ranges: with_range_deletes(view)
            .filter_map(|handle| Some((handle.meta.id, handle.deleted_ranges()?)))
            .collect(),
        unproductive: schedule.unproductive.clone(),
    }
}

/// Remembers tables that were rewritten for their tombstones and did not lose them.
pub(crate) fn remember_unproductive(jobs: &Jobs, tables: &[Arc<TableMeta>]) {
    const REMEMBERED_MAX: usize = 4096;
    let mut schedule = jobs.schedule.lock();
    schedule.unproductive.extend(tables.iter().map(|t| t.id));
    // The tables with the oldest ids have probably been deleted. Forgetting an id costs one more
    // attempt.
    while schedule.unproductive.len() > REMEMBERED_MAX {
        schedule.unproductive.pop_first();
    }
}

/// Ends work and deletes the files that its attempts left. Must not be called under the schedule's
/// lock.
pub(super) fn end(jobs: &Jobs, works: Vec<Work>) {
    for mut work in works {
        jobs.runner.discard_names(0, &work.end());
        jobs.leftovers.add(work.unbelieved);
    }
}

/// Ends all work that waits for another attempt. A worker calls this last when the store closes.
pub(crate) fn end_returned(jobs: &Jobs) {
    let given_up = jobs.schedule.lock().give_up(|_| true);
    end(jobs, given_up);
}

/// Counts that work, or the end of work, panicked. Returns the number of panics in a row for its
/// kind and keyspace.
pub(crate) fn count_panic(jobs: &Jobs, of: &Reserved) -> u32 {
    let mut schedule = jobs.schedule.lock();
    let count = schedule.panicked.entry((of.kind, of.keyspace)).or_insert(0);
    *count = count.saturating_add(1);
    *count
}

/// Releases the work's reservation, unless another attempt follows, and wakes the tasks that wait.
/// A failure that a location of tables is to blame for is no failure of flushes or compactions.
pub(crate) fn finish(jobs: &Jobs, work: Work, result: &Result<()>, blame: Blame) {
    let (id, kind, keyspace) = (work.id, work.kind(), work.keyspace.id);
    let inputs: Vec<u64> = match &work.what {
        What::Compaction(compaction) if jobs.env.locations().exists() => {
            compaction.choice.tables().map(|table| table.id).collect()
        }
        _ => Vec::new(),
    };
    // A flushed memtable is dropped before the schedule shows that nothing runs any more: a caller
    // that waits until nothing runs finds the memory freed.
    let mut work = match (&work.what, result) {
        (What::Flush(_), Ok(())) => {
            end(jobs, vec![work]);
            None
        }
        (What::Compaction(compaction), Err(_)) if compaction.choice.by_seeks => {
            // It is not tried again before lookups have read as much in vain once more.
            let ids: Vec<u64> = compaction.choice.tables().map(|table| table.id).collect();
            jobs.tree.tables().forget_seeks(ids.into_iter());
            Some(work)
        }
        _ => Some(work),
    };
    let may_resume = match &mut work {
        Some(work) => result.is_err() && work.may_resume(),
        None => false,
    };
    let mut schedule = jobs.schedule.lock();
    // Another flush of the memtable may run.
    let is_abandoned = schedule.is_abandoned(id);
    if let Some(Work {
        what: What::Flush(source),
        ..
    }) = &work
        && !is_abandoned
    {
        source.end_flush();
        source.flushing.store(false, Ordering::Release);
    }
    // This is checked again under the lock, because a task that cancels jobs looks for returned
    // work under this lock.
    let mut resumed = work.take_if(|work| may_resume && !work.cancel.is_cancelled());
    if resumed.is_none() {
        schedule.running.retain(|r| r.id != id);
    }
    // This happens under the schedule's lock, so that nobody sees that nothing runs and misses a
    // failure.
    match result {
        Ok(()) => {
            schedule.panicked.remove(&(kind, keyspace));
            jobs.env.failures().succeeded(kind);
            schedule.states.forget_unread(inputs.into_iter());
        }
        Err(_) if matches!(blame, Blame::Location | Blame::Tables) => {}
        // Nobody waits for work that is not wanted any more.
        Err(error) if matches!(error.kind(), ErrorKind::KeyspaceDropped | ErrorKind::Closed) => {}
        Err(_) => jobs.env.failures().failed(kind),
    }
    jobs.env.work().notify();
    jobs.env.job_ended().notify();
    if let Some(work) = &mut resumed {
        work.progress = Arc::default();
        schedule.unplace(work);
    }
    schedule.returned.extend(resumed);
    // The views and tables of the work are released without the lock.
    drop(schedule);
    end(jobs, work.into_iter().collect());
}

/// Called when the end of a piece of work panicked. If that was before the work was ended or
/// returned, the work is lost, and what it had reserved is picked again.
pub(crate) fn take_back(jobs: &Jobs, reserved: &Reserved) {
    let mut schedule = jobs.schedule.lock();
    let is_lost = |r: &Running| r.id == reserved.id && Arc::ptr_eq(&r.progress, &reserved.attempt);
    let lost = schedule.running.iter().position(is_lost);
    let lost = lost.map(|at| schedule.running.remove(at));
    if lost.is_some_and(|running| !running.is_abandoned)
        && let Some(memtable) = reserved.memtable.upgrade()
    {
        memtable.end_flush();
        memtable.flushing.store(false, Ordering::Release);
    }
    drop(schedule);
    jobs.env.work().notify();
    jobs.env.job_ended().notify();
}

/// Returns work that a side other than the host has failed with. It waits for its next attempt,
/// which may run on any side, or, without fallback, on any side except the host.
pub(crate) fn put_back(jobs: &Jobs, mut work: Work) {
    let side = work.placed.side;
    let host = jobs.runner.sides.host();
    // The host can run it in another way.
    if side != host
        && let Some(answer) = work.answers.get_mut(side)
    {
        *answer = Answer::Failed;
    }
    let others = work.answers.get_mut(..host).unwrap_or_default();
    // If only the host was asked, no other side would ever take it.
    let is_for_others = side != host || others.contains(&Answer::Accepts);
    if !jobs.env.options().schedule.fallback && is_for_others {
        work.is_kept_off_host = true;
        if !others.contains(&Answer::Accepts) {
            // All of them have failed, so each gets another chance.
            let failed = others
                .iter_mut()
                .filter(|answer| **answer == Answer::Failed);
            failed.for_each(|answer| *answer = Answer::Accepts);
        }
    }
    match &mut work.begun {
        Some(begun) if begun.left_count() > 0 => begun.note_foreign_attempt(side),
        // There is nothing to resume, so the job begins again, and is divided for the side that
        // will run it. Tables that the executor may still leave are refused.
        _ => {
            jobs.runner.discard_names(0, &work.end());
            jobs.leftovers.add(std::mem::take(&mut work.unbelieved));
        }
    }
    let mut schedule = jobs.schedule.lock();
    if work.cancel.is_cancelled() || jobs.env.is_closing() || work.keyspace.is_dropped() {
        drop(schedule);
        // If the work were returned, no task would end it.
        work.cancel.cancel();
        return finish(jobs, work, &Err(cancelled()), Blame::Store);
    }
    work.progress = Arc::default();
    schedule.unplace(&work);
    schedule.returned.push(work);
    jobs.env.work().notify();
    jobs.env.job_ended().notify();
}

/// Cancels the running jobs of a dropped keyspace.
pub(crate) fn cancel_keyspace(jobs: &Jobs, keyspace: KeyspaceId) {
    let mut schedule = jobs.schedule.lock();
    for running in schedule.running.iter().filter(|r| r.keyspace == keyspace) {
        running.cancel.cancel();
    }
    let given_up = schedule.give_up(|work| work.keyspace.id == keyspace);
    drop(schedule);
    end(jobs, given_up);
}

/// Cancels all running jobs, because the store closes.
pub(crate) fn cancel_all(jobs: &Jobs) {
    let schedule = jobs.schedule.lock();
    for running in &schedule.running {
        running.cancel.cancel();
    }
}

/// Whether no job runs, no memtable is sealed (except those that tests hold back), and no work is
/// due.
pub(crate) fn is_idle(jobs: &Jobs) -> bool {
    let map = jobs.catalog.keyspaces();
    let schedule = jobs.schedule.lock();
    if schedule.running.iter().any(|r| !r.is_abandoned) {
        return false;
    }
    map.by_id.values().all(|keyspace| {
        let view = keyspace.pin();
        let sealed = view.sealed().any(|m| !m.held.load(Ordering::Acquire));
        if sealed || schedule.paused {
            return !sealed;
        }
        let left_out = schedule.left_out(keyspace, jobs.env.now());
        let state = PickState::of_idle(jobs, keyspace, left_out);
        let view = &state.view;
        // A worker that finds no other work reads the ranges that range deletes cover.
        pick::pick(&state.input(None)).is_none()
            && with_range_deletes(view).all(|handle| handle.deleted_ranges().is_some())
            && pick::pick_deletes(&state.input(None), &deletes(&jobs.tree, &schedule, view))
                .is_none()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_quiet_after_a_while_without_a_call() {
        let mut schedule = Schedule::new();
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        assert!(!schedule.is_quiet(5, at(1000)), "nothing is known yet");
        assert!(!schedule.is_quiet(5, at(1099)));
        assert!(schedule.is_quiet(5, at(1100)));
        assert!(!schedule.is_quiet(6, at(1101)), "there was a call");
        assert!(!schedule.is_quiet(6, at(1200)));
        assert!(schedule.is_quiet(6, at(1201)));
    }
}
