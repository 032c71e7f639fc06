//! What the workers do next: flushes first, then whatever compaction is due, with reservations so that several run at once.
//!
//! What it is: `next` is asked by a worker that is free. It looks for a sealed memtable, then for a manual request, then asks
//! `pick` for each keyspace in turn (then `pick_deletes`, once no level is due), and reserves what it gives out. `finish` takes the reservation back,
//! but from a compaction that failed and finished tables before: it stands, with everything that its job was made from, until another attempt has
//! gone on behind these tables, made none, or was cancelled.
//!
//! Invariants: a memtable is flushed by one worker at a time; reservations of running jobs are disjoint (`pick` sees them all, under this
//! lock); the version, the unsettled slots and the reservations that a choice is made from are read under the lock, so
//! what a job counts as older cannot shrink behind its back (RFC 1, V5).
//!
//! Threading: one mutex (`Core::schedule`); no I/O under it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::planted::{self, Bug};
use siltstone_table::exec::{CancelToken, Progress};

use super::install::{Cause, CompactionTask};
use crate::catalog::KeyspaceMap;
use crate::env::failures::JobKind;
use crate::formats::version::{SeqRange, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::flush::FlushTask;
use crate::tree::Tree;
use crate::tree::pick::{self, Choice, Deletes, ManualRange, ManualStep, PickInput, Reservation};
use crate::tree::tables::TableHandle;
use crate::tree::view::{KeyspaceCore, KeyspaceView};
use crate::types::error::{ErrorKind, Result};
use crate::types::limits::KeyspaceId;

/// Work for one worker.
pub(crate) enum Task {
    Flush(FlushTask),
    Compaction(Box<CompactionTask>),
}

impl Task {
    fn kind(&self) -> JobKind {
        match self {
            Task::Flush(_) => JobKind::Flush,
            Task::Compaction(_) => JobKind::Compaction,
        }
    }

    /// For people.
    pub(crate) fn what(&self) -> String {
        match self {
            Task::Flush(task) => format!("a flush of keyspace `{}`", task.keyspace.name),
            Task::Compaction(task) => format!("a compaction of keyspace `{}`", task.keyspace.name),
        }
    }

    fn keyspace(&self) -> KeyspaceId {
        match self {
            Task::Flush(task) => task.keyspace.id,
            Task::Compaction(task) => task.keyspace.id,
        }
    }
}

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

struct Running {
    id: u64,
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
    unfinished: Vec<CompactionTask>,
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
        let is_flush = kind == JobKind::Flush;
        let mut running = self.running.iter();
        running.any(|r| (r.id & FLUSH_ID != 0) == is_flush)
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

    /// Gives up the unfinished compactions that `which` says. They are to be ended without the lock.
    #[must_use]
    fn give_up(&mut self, which: impl Fn(&CompactionTask) -> bool) -> Vec<CompactionTask> {
        let (given_up, kept) = std::mem::take(&mut self.unfinished)
            .into_iter()
            .partition(|task| which(task));
        self.unfinished = kept;
        let given_up: Vec<CompactionTask> = given_up;
        self.running
            .retain(|r| !given_up.iter().any(|task| task.id == r.id));
        given_up
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

/// The next piece of work, reserved for the caller.
pub(crate) fn next(jobs: &Jobs, flush_only: bool) -> Option<Task> {
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
        if let Some(task) = next_flush(&mut schedule, keyspace) {
            return Some(Task::Flush(task));
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
    } else if let Some(task) = schedule.unfinished.pop() {
        return Some(Task::Compaction(Box::new(task)));
    }
    if let Some(task) = next_manual(&mut schedule) {
        return Some(Task::Compaction(task));
    }
    if schedule.paused {
        return None;
    }
    // Keyspaces after the last one served come first.
    let turn = schedule.turn;
    let after = map.by_id.range(turn + 1..).chain(map.by_id.range(..=turn));
    for (id, keyspace) in after {
        let (view, settings) = (keyspace.pin(), keyspace.load_settings());
        let (reserved, unsettled) = (schedule.reservations(*id), unsettled(&view));
        let input = PickInput {
            version: &view.version,
            options: &settings.pick,
            jobs: &reserved,
            unsettled: &unsettled,
        };
        if let Some(choice) = pick::pick(&input) {
            schedule.turn = *id;
            return Some(Task::Compaction(start(
                &mut schedule,
                keyspace,
                &view,
                choice,
                unsettled,
                Cause::Due,
            )));
        }
    }
    drop(schedule);
    next_for_deletes(jobs, &map).map(Task::Compaction)
}

/// Work that is only worth it for what was deleted: nothing else is due.
fn next_for_deletes(jobs: &Jobs, map: &KeyspaceMap) -> Option<Box<CompactionTask>> {
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
    let turn = schedule.turn;
    let after = map.by_id.range(turn + 1..).chain(map.by_id.range(..=turn));
    for (id, keyspace) in after {
        let (view, settings) = (keyspace.pin(), keyspace.load_settings());
        let (reserved, unsettled) = (schedule.reservations(*id), unsettled(&view));
        let input = PickInput {
            version: &view.version,
            options: &settings.pick,
            jobs: &reserved,
            unsettled: &unsettled,
        };
        let deletes = deletes(&jobs.tree, &schedule, &view);
        if let Some(choice) = pick::pick_deletes(&input, &deletes) {
            schedule.turn = *id;
            let cause = Cause::Deletes;
            return Some(start(
                &mut schedule,
                keyspace,
                &view,
                choice,
                unsettled,
                cause,
            ));
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
    // The oldest ids are those of tables that have probably gone; forgetting one costs one more attempt.
    while schedule.futile.len() > REMEMBERED_MAX {
        schedule.futile.pop_first();
    }
}

fn next_flush(schedule: &mut Schedule, keyspace: &Arc<KeyspaceCore>) -> Option<FlushTask> {
    // Its create edit goes first; whoever commits that wakes us.
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
    let task = FlushTask {
        keyspace: keyspace.clone(),
        source,
        progress: Arc::default(),
        cancel: CancelToken::new(),
    };
    let id = task.source.id;
    schedule.running.push(Running {
        id: FLUSH_ID | id,
        keyspace: keyspace.id,
        name: keyspace.name.clone(),
        what: "flush".into(),
        reservation: None,
        progress: task.progress.clone(),
        cancel: task.cancel.clone(),
    });
    Some(task)
}

/// Ids of flushes are those of their memtables, with this bit.
const FLUSH_ID: u64 = 1 << 63;

fn next_manual(schedule: &mut Schedule) -> Option<Box<CompactionTask>> {
    let mut i = 0;
    while i < schedule.manual.len() {
        let (keyspace, range) = (
            schedule.manual[i].keyspace.clone(),
            schedule.manual[i].range.clone(),
        );
        let (view, settings) = (keyspace.pin(), keyspace.load_settings());
        let (reserved, unsettled) = (schedule.reservations(keyspace.id), unsettled(&view));
        let input = PickInput {
            version: &view.version,
            options: &settings.pick,
            jobs: &reserved,
            unsettled: &unsettled,
        };
        if !schedule.manual[i].done {
            match pick::pick_manual(&input, &range) {
                ManualStep::Job(choice) => {
                    return Some(start(
                        schedule,
                        &keyspace,
                        &view,
                        choice,
                        unsettled,
                        Cause::Manual,
                    ));
                }
                ManualStep::Wait => {}
                ManualStep::Done => schedule.manual[i].done = true,
            }
        }
        i += 1;
    }
    None
}

fn start(
    schedule: &mut Schedule,
    keyspace: &Arc<KeyspaceCore>,
    view: &KeyspaceView,
    choice: Choice,
    unsettled: Vec<SeqRange>,
    cause: Cause,
) -> Box<CompactionTask> {
    let id = schedule.new_id();
    let task = Box::new(CompactionTask {
        id,
        keyspace: keyspace.clone(),
        reservation: choice.reservation(),
        version: view.version.clone(),
        unsettled,
        cause,
        progress: Arc::default(),
        cancel: CancelToken::new(),
        begun: None,
        choice,
    });
    schedule.running.push(Running {
        id,
        keyspace: keyspace.id,
        name: keyspace.name.clone(),
        what: format!(
            "{:?} {} -> {}: {}",
            task.choice.kind, task.choice.from, task.choice.to, task.choice.reason
        ),
        reservation: Some(task.reservation.clone()),
        progress: task.progress.clone(),
        cancel: task.cancel.clone(),
    });
    task
}

/// Deletes what these compactions left. Not under the schedule's lock.
fn end(jobs: &Jobs, tasks: Vec<CompactionTask>) {
    for mut task in tasks {
        jobs.runner.discard_names(&task.end());
    }
}

/// Ends all compactions that wait for another attempt: a worker's last deed when the store closes.
pub(crate) fn end_unfinished(jobs: &Jobs) {
    let given_up = jobs.schedule.lock().give_up(|_| true);
    end(jobs, given_up);
}

/// A task panicked: what it made is of no use, no further attempt goes on behind it. How many of its kind and keyspace have, in a row.
pub(crate) fn count_panic(jobs: &Jobs, task: &Task) -> u32 {
    match task {
        Task::Flush(flush) => flush.cancel.cancel(),
        Task::Compaction(compaction) => compaction.cancel.cancel(),
    }
    let mut schedule = jobs.schedule.lock();
    let count = schedule
        .panicked
        .entry((task.kind(), task.keyspace()))
        .or_insert(0);
    *count = count.saturating_add(1);
    *count
}

/// Takes a task's reservation back, unless another attempt is to be made, and tells who waits.
pub(crate) fn finish(jobs: &Jobs, task: Task, result: &Result<()>) {
    let (kind, keyspace) = (task.kind(), task.keyspace());
    let id = match &task {
        Task::Flush(flush) => FLUSH_ID | flush.source.id,
        Task::Compaction(compaction) => compaction.id,
    };
    // A flushed memtable is dropped before the schedule shows that nothing runs any more: a caller
    // that waited for that finds its memory given back.
    let mut task = match task {
        Task::Flush(flush) if result.is_ok() => {
            drop(flush);
            None
        }
        task => Some(task),
    };
    let goes_on = match &mut task {
        Some(Task::Compaction(compaction)) => result.is_err() && compaction.goes_on(),
        _ => false,
    };
    let mut schedule = jobs.schedule.lock();
    if let Some(Task::Flush(flush)) = &task {
        flush.source.flushing.store(false, Ordering::Release);
    }
    // Asked again under the lock: whoever cancels jobs looks for unfinished ones under it.
    let goes_on = goes_on
        && match &task {
            Some(Task::Compaction(compaction)) => !compaction.cancel.is_cancelled(),
            _ => false,
        };
    if !goes_on {
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
    match task {
        Some(Task::Compaction(compaction)) if goes_on => schedule.unfinished.push(*compaction),
        Some(Task::Compaction(compaction)) => {
            // The task's views and tables are let go without the lock.
            drop(schedule);
            end(jobs, vec![*compaction]);
        }
        Some(Task::Flush(flush)) => {
            drop(schedule);
            drop(flush);
        }
        None => {}
    }
}

/// Cancels the running jobs of a dropped keyspace.
pub(crate) fn cancel_keyspace(jobs: &Jobs, keyspace: KeyspaceId) {
    let mut schedule = jobs.schedule.lock();
    for running in schedule.running.iter().filter(|r| r.keyspace == keyspace) {
        running.cancel.cancel();
    }
    let given_up = schedule.give_up(|task| task.keyspace.id == keyspace);
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
        let settings = keyspace.load_settings();
        let unsettled = unsettled(&view);
        let input = PickInput {
            version: &view.version,
            options: &settings.pick,
            jobs: &[],
            unsettled: &unsettled,
        };
        // What range deletes cover is learned by a worker that finds nothing else to do.
        pick::pick(&input).is_none()
            && with_range_deletes(&view).all(|handle| handle.deleted_ranges().is_some())
            && pick::pick_deletes(&input, &deletes(&jobs.tree, &schedule, &view)).is_none()
    })
}
