//! What the workers do next: flushes first, then whatever compaction is due.
//!
//! What it is: a free worker asks [`next`]. It looks for a sealed memtable, then for a manual
//! request, then asks `pick` for each keyspace in turn, and `pick_deletes` once no level is due.
//! What it gives out is reserved, so that several jobs run at once. [`finish`] takes the
//! reservation back, unless the work is a compaction that failed and finished tables: then the
//! reservation stands, with everything that the job was made from, until another attempt has
//! resumed behind these tables, has made none, or was cancelled.
//!
//! Invariants: a memtable is flushed by one worker at a time; reservations of running jobs are
//! disjoint (`pick` sees them all, under this lock); the version, the unsettled slots and the
//! reservations that a choice is made from are read under the lock, so what a job counts as older
//! cannot shrink behind its back (RFC 1, V5).
//!
//! Threading: one mutex (`Jobs::schedule`); no I/O under it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::planted::{self, Bug};
use siltstone_table::exec::{CancelToken, Progress};

use crate::catalog::KeyspaceMap;
use crate::env::failures::JobKind;
use crate::formats::version::{SeqRange, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::work::{Compaction, Reason, What, Work};
use crate::tree::Tree;
use crate::tree::pick::{self, Choice, Deletes, ManualRange, ManualStep, PickInput, Reservation};
use crate::tree::settings::Settings;
use crate::tree::tables::TableHandle;
use crate::tree::view::{KeyspaceCore, KeyspaceView};
use crate::types::error::{ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// A running job as `stats` shows it.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct JobStats {
    /// The keyspace.
    pub keyspace: String,
    /// What it does, and why.
    pub what: String,
    /// Entries read so far.
    #[serde(rename = "entry_count")]
    pub entries: u64,
    /// Input bytes read so far.
    #[serde(rename = "in_bytes")]
    pub bytes_in: u64,
    /// Bytes of finished output tables.
    #[serde(rename = "out_bytes")]
    pub bytes_out: u64,
}

/// Work that has not ended, as others see it.
struct Running {
    id: u64,
    kind: JobKind,
    keyspace: KeyspaceId,
    name: String,
    what: String,
    reservation: Option<Reservation>,
    progress: Arc<Progress>,
    cancel: CancelToken,
}

pub(crate) struct ManualRequest {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) range: ManualRange,
    pub(crate) done: bool,
}

/// See the module.
pub(crate) struct Schedule {
    /// By kind and keyspace, the jobs in a row that panicked.
    panicked: BTreeMap<(JobKind, KeyspaceId), u32>,
    /// Those that wait for their next attempt are among them: their reservations stand.
    running: Vec<Running>,
    /// Compactions whose last attempt failed and left tables to the next one.
    unfinished: Vec<Work>,
    pub(crate) manual: Vec<ManualRequest>,
    next_id: u64,
    /// Keyspaces take turns.
    turn: KeyspaceId,
    /// Tables whose rewriting for their tombstones gave nothing back: not begun again.
    futile: BTreeSet<u64>,
    /// Tests stop automatic compaction.
    pub(crate) paused: bool,
}

impl Schedule {
    /// Whether a job of this kind runs.
    fn runs(&self, kind: JobKind) -> bool {
        self.running.iter().any(|r| r.kind == kind)
    }

    pub(crate) fn new() -> Schedule {
        Schedule {
            panicked: BTreeMap::new(),
            running: Vec::new(),
            unfinished: Vec::new(),
            manual: Vec::new(),
            next_id: 1,
            turn: 0,
            futile: BTreeSet::new(),
            paused: false,
        }
    }

    pub(crate) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Gives up the unfinished work that `which` selects. The caller ends it without the lock.
    #[must_use]
    fn give_up(&mut self, which: impl Fn(&Work) -> bool) -> Vec<Work> {
        let unfinished = std::mem::take(&mut self.unfinished).into_iter();
        let (given_up, kept): (Vec<Work>, Vec<Work>) = unfinished.partition(which);
        self.unfinished = kept;
        let running = &mut self.running;
        running.retain(|r| !given_up.iter().any(|work| work.id == r.id));
        given_up
    }

    /// Notes work that was picked, and gives it to the caller.
    fn start(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        what: What,
        reservation: Option<Reservation>,
    ) -> Work {
        let work = Work {
            id: self.new_id(),
            keyspace: keyspace.clone(),
            what,
            progress: Arc::default(),
            cancel: CancelToken::new(),
            begun: None,
        };
        let described = match &work.what {
            What::Flush(_) => "flush".into(),
            What::Compaction(compaction) => {
                let choice = &compaction.choice;
                let (kind, from, to) = (choice.kind, choice.from, choice.to);
                format!("{kind:?} {from} -> {to}: {}", choice.reason)
            }
        };
        self.running.push(Running {
            id: work.id,
            kind: work.kind(),
            keyspace: keyspace.id,
            name: keyspace.name.clone(),
            what: described,
            reservation,
            progress: work.progress.clone(),
            cancel: work.cancel.clone(),
        });
        work
    }

    /// Notes a compaction that was picked, and gives it to the caller.
    fn start_compaction(
        &mut self,
        keyspace: &Arc<KeyspaceCore>,
        state: PickState,
        choice: Choice,
        reason: Reason,
    ) -> Work {
        let reservation = choice.reservation();
        let compaction = Compaction {
            choice,
            version: state.view.version.clone(),
            unsettled: state.unsettled,
            reason,
        };
        let what = What::Compaction(Box::new(compaction));
        self.start(keyspace, what, Some(reservation))
    }

    /// What picks for a keyspace are made from.
    fn pick_state(&self, keyspace: &KeyspaceCore) -> PickState {
        let (view, settings) = (keyspace.pin(), keyspace.load_settings());
        PickState {
            reserved: self.reservations(keyspace.id),
            unsettled: unsettled(&view),
            settings,
            view,
        }
    }

    fn reservations(&self, keyspace: KeyspaceId) -> Vec<Reservation> {
        self.running
            .iter()
            .filter(|r| r.keyspace == keyspace)
            .filter_map(|r| r.reservation.clone())
            .collect()
    }

    /// Memory of the running jobs' buffers, in bytes.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        let of = |r: &Running| r.progress.buffer_bytes.load(Ordering::Relaxed);
        self.running.iter().map(of).sum()
    }

    pub(crate) fn jobs(&self) -> Vec<JobStats> {
        let of = |r: &Running| JobStats {
            keyspace: r.name.clone(),
            what: r.what.clone(),
            entries: r.progress.entries.load(Ordering::Relaxed),
            bytes_in: r.progress.bytes_in.load(Ordering::Relaxed),
            bytes_out: r.progress.bytes_out.load(Ordering::Relaxed),
        };
        self.running.iter().map(of).collect()
    }
}

/// What picks for one keyspace are made from, as of one moment.
struct PickState {
    view: Arc<KeyspaceView>,
    settings: Arc<Settings>,
    reserved: Vec<Reservation>,
    unsettled: Vec<SeqRange>,
}

impl PickState {
    fn input(&self) -> PickInput<'_> {
        PickInput {
            version: &self.view.version,
            options: &self.settings.pick,
            jobs: &self.reserved,
            unsettled: &self.unsettled,
        }
    }
}

/// Slots of what is not installed.
fn unsettled(view: &KeyspaceView) -> Vec<SeqRange> {
    if planted::is(Bug::IgnoreUnsettled) {
        return Vec::new();
    }
    view.sources
        .iter()
        .filter(|s| s.is_unsettled())
        .map(|s| s.seqs())
        .collect()
}

/// The keyspaces after the last one served, then the others.
fn in_turn(map: &KeyspaceMap, turn: KeyspaceId) -> impl Iterator<Item = &Arc<KeyspaceCore>> {
    let after = map.by_id.range(turn + 1..).chain(map.by_id.range(..=turn));
    after.map(|(_, keyspace)| keyspace)
}

/// The next piece of work, reserved for the caller.
pub(crate) fn next(jobs: &Jobs, flush_only: bool) -> Option<Work> {
    #[cfg(feature = "planted")]
    if planted::is(Bug::UnseededOrder) {
        jobs.env.runtime().yield_point_at(planted::unseeded());
    }
    let map = jobs.catalog.keyspaces();
    let mut schedule = jobs.schedule.lock();
    // Under the lock: a job that poisons the store does so before it leaves the schedule, so what
    // it could not do is not begun again.
    if jobs.env.health().check_manifest().is_err() {
        return None;
    }
    for keyspace in map.by_id.values() {
        if let Some(work) = next_flush(&mut schedule, keyspace) {
            return Some(work);
        }
    }
    if !schedule.runs(JobKind::Flush) {
        jobs.env.failures().forget_kind(JobKind::Flush);
    }
    if flush_only {
        return None;
    }
    if schedule.paused {
        let given_up = schedule.give_up(|_| true);
        if !given_up.is_empty() {
            drop(schedule);
            end(jobs, given_up);
            jobs.env.work().notify();
            return None;
        }
    } else if let Some(work) = schedule.unfinished.pop() {
        return Some(work);
    }
    if let Some(work) = next_manual(&mut schedule) {
        return Some(work);
    }
    if schedule.paused {
        return None;
    }
    for keyspace in in_turn(&map, schedule.turn) {
        let state = schedule.pick_state(keyspace);
        if let Some(choice) = pick::pick(&state.input()) {
            schedule.turn = keyspace.id;
            return Some(schedule.start_compaction(keyspace, state, choice, Reason::Due));
        }
    }
    drop(schedule);
    next_for_deletes(jobs, &map)
}

/// Work that is only worth it for what was deleted: nothing else is due.
fn next_for_deletes(jobs: &Jobs, map: &KeyspaceMap) -> Option<Work> {
    // Tables are opened without the lock.
    for keyspace in map.by_id.values() {
        for handle in with_range_deletes(&keyspace.pin()) {
            if handle.deleted_ranges().is_none() {
                jobs.tree.tables().learn_deleted_ranges(handle);
            }
        }
    }
    let mut schedule = jobs.schedule.lock();
    if schedule.paused {
        return None;
    }
    for keyspace in in_turn(map, schedule.turn) {
        let state = schedule.pick_state(keyspace);
        let deletes = deletes(&jobs.tree, &schedule, &state.view);
        if let Some(choice) = pick::pick_deletes(&state.input(), &deletes) {
            schedule.turn = keyspace.id;
            return Some(schedule.start_compaction(keyspace, state, choice, Reason::Deletes));
        }
    }
    if !schedule.runs(JobKind::Compaction) {
        jobs.env.failures().forget_kind(JobKind::Compaction);
    }
    None
}

/// The tables of a view that have range deletes.
fn with_range_deletes(view: &KeyspaceView) -> impl Iterator<Item = &Arc<TableHandle>> {
    view.level_views()
        .filter(|(_, level)| level.has_range_deletes)
        .flat_map(|(_, level)| &level.handles)
        .filter(|handle| handle.meta.range_deletes > 0)
}

/// What `pick_deletes` knows besides the version.
fn deletes(tree: &Tree, schedule: &Schedule, view: &KeyspaceView) -> Deletes {
    let published = tree.snapshots().published();
    let mut oldest_read = tree
        .snapshots()
        .oldest()
        .unwrap_or(published)
        .min(published);
    if planted::is(Bug::DropUnderSnapshots) {
        oldest_read = u64::MAX;
    }
    Deletes {
        oldest_read,
        ranges: with_range_deletes(view)
            .filter_map(|handle| Some((handle.meta.id, handle.deleted_ranges()?)))
            .collect(),
        unproductive: schedule.futile.clone(),
    }
}

/// Remembers tables whose tombstones stayed although they were rewritten for them.
pub(crate) fn remember_futile(jobs: &Jobs, tables: &[Arc<TableMeta>]) {
    const REMEMBERED_MAX: usize = 4096;
    let mut schedule = jobs.schedule.lock();
    schedule.futile.extend(tables.iter().map(|t| t.id));
    // The oldest ids are those of tables that have probably gone. Forgetting one costs one more
    // attempt.
    while schedule.futile.len() > REMEMBERED_MAX {
        schedule.futile.pop_first();
    }
}

fn next_flush(schedule: &mut Schedule, keyspace: &Arc<KeyspaceCore>) -> Option<Work> {
    // Its create edit goes first, and a notification follows that.
    if !keyspace.is_created() {
        return None;
    }
    let view = keyspace.view();
    // Oldest first.
    let source = view
        .sealed()
        .rev()
        .find(|m| !m.flushing.load(Ordering::Acquire) && !m.held.load(Ordering::Acquire))?
        .clone();
    source.flushing.store(true, Ordering::Release);
    Some(schedule.start(keyspace, What::Flush(source), None))
}

fn next_manual(schedule: &mut Schedule) -> Option<Work> {
    for i in 0..schedule.manual.len() {
        let request = &schedule.manual[i];
        if request.done {
            continue;
        }
        let (keyspace, range) = (request.keyspace.clone(), request.range.clone());
        let state = schedule.pick_state(&keyspace);
        match pick::pick_manual(&state.input(), &range) {
            ManualStep::Job(choice) => {
                return Some(schedule.start_compaction(&keyspace, state, choice, Reason::Manual));
            }
            ManualStep::Wait => {}
            ManualStep::Done => schedule.manual[i].done = true,
        }
    }
    None
}

/// Ends work and deletes what its attempts left. Not under the schedule's lock.
fn end(jobs: &Jobs, works: Vec<Work>) {
    for mut work in works {
        jobs.runner.discard_names(&work.end());
    }
}

/// Ends all work that waits for another attempt. A worker calls this last when the store closes.
pub(crate) fn end_unfinished(jobs: &Jobs) {
    let given_up = jobs.schedule.lock().give_up(|_| true);
    end(jobs, given_up);
}

/// Work panicked: what it made is of no use, and no further attempt resumes behind it. Returns the
/// number of panics in a row of its kind and keyspace.
pub(crate) fn count_panic(jobs: &Jobs, work: &Work) -> u32 {
    work.cancel.cancel();
    let mut schedule = jobs.schedule.lock();
    let of = (work.kind(), work.keyspace.id);
    let count = schedule.panicked.entry(of).or_insert(0);
    *count = count.saturating_add(1);
    *count
}

/// Takes the work's reservation back, unless another attempt is to be made, and wakes those who
/// wait.
pub(crate) fn finish(jobs: &Jobs, work: Work, result: &Result<()>) {
    let (id, kind, keyspace) = (work.id, work.kind(), work.keyspace.id);
    // A flushed memtable is dropped before the schedule shows that nothing runs any more: a caller
    // that waited for that finds its memory given back.
    let mut work = match (&work.what, result) {
        (What::Flush(_), Ok(())) => {
            drop(work);
            None
        }
        _ => Some(work),
    };
    let may_resume = match &mut work {
        Some(work) => result.is_err() && work.may_resume(),
        None => false,
    };
    let mut schedule = jobs.schedule.lock();
    if let Some(Work {
        what: What::Flush(source),
        ..
    }) = &work
    {
        source.flushing.store(false, Ordering::Release);
    }
    // Asked again under the lock: whoever cancels jobs looks for unfinished ones under it.
    let resumed = work.take_if(|work| may_resume && !work.cancel.is_cancelled());
    if resumed.is_none() {
        schedule.running.retain(|r| r.id != id);
    }
    // Under the schedule's lock: nobody sees that nothing runs and misses a failure.
    match result {
        Ok(()) => {
            schedule.panicked.remove(&(kind, keyspace));
            jobs.env.failures().succeeded(kind);
        }
        // Nobody waits for the work of a keyspace that is gone.
        Err(error) if error.kind() == ErrorKind::KeyspaceDropped => {}
        Err(_) => jobs.env.failures().failed(kind),
    }
    jobs.env.work().notify();
    jobs.env.job_ended().notify();
    schedule.unfinished.extend(resumed);
    // The work's views and tables are let go without the lock.
    drop(schedule);
    end(jobs, work.into_iter().collect());
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

/// Cancels all running jobs: the store closes.
pub(crate) fn cancel_all(jobs: &Jobs) {
    let schedule = jobs.schedule.lock();
    for running in &schedule.running {
        running.cancel.cancel();
    }
}

/// Whether nothing runs, nothing is sealed (but what tests hold back), and nothing is due.
pub(crate) fn is_idle(jobs: &Jobs) -> bool {
    let map = jobs.catalog.keyspaces();
    let schedule = jobs.schedule.lock();
    if !schedule.running.is_empty() {
        return false;
    }
    map.by_id.values().all(|keyspace| {
        let view = keyspace.pin();
        let sealed = view.sealed().any(|m| !m.held.load(Ordering::Acquire));
        if sealed || schedule.paused {
            return !sealed;
        }
        let state = schedule.pick_state(keyspace);
        let view = &state.view;
        // What range deletes cover is learned by a worker that finds nothing else to do.
        pick::pick(&state.input()).is_none()
            && with_range_deletes(view).all(|handle| handle.deleted_ranges().is_some())
            && pick::pick_deletes(&state.input(), &deletes(&jobs.tree, &schedule, view)).is_none()
    })
}
