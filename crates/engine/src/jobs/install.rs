//! Running a compaction and installing its outcome.
//!
//! What it is: [`run`] executes a choice (or just moves tables) and commits the edit; if it fails it can be asked to run again, and goes on behind
//! the tables that it finished; [`refresh_view`] replaces a keyspace's view after any edit.
//!
//! Invariants: F2 outputs are synced before the edit, the edit before the view; F3 the outcome is verified before the manifest role is taken, and
//! under it the keyspace must live; inputs are reserved, so they are current; views change in the order of edits, because
//! both happen under the role.
//!
//! Threading: workers; no lock that a read or a write takes is held over I/O.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::planted::{self, Bug};
use siltstone_table::exec::{CancelToken, Handover, Inputs, Progress};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Counters;

use crate::catalog::edits::refresh_view;
use crate::env::Env;
use crate::formats::version::{
    AddTable, Edit, KeyspaceEdit, KeyspaceVersion, RunSlot, SeqRange, TableMeta,
};
use crate::jobs::Jobs;
use crate::jobs::build::JobRunner;
use crate::tree::pick::{Choice, ChoiceKind, Reservation, older_ranges};
use crate::tree::view::KeyspaceCore;
use crate::types::error::Result;
use crate::types::event::Event;

/// A compaction that was given to a worker.
pub(crate) struct CompactionTask {
    pub(crate) id: u64,
    pub(crate) keyspace: Arc<KeyspaceCore>,
    pub(crate) choice: Choice,
    pub(crate) reservation: Reservation,
    /// What the choice was made from: the job's cuts and older ranges come from the same version.
    pub(crate) version: Arc<KeyspaceVersion>,
    pub(crate) unsettled: Vec<SeqRange>,
    pub(crate) cause: Cause,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cancel: CancelToken,
    /// Set by the first attempt: those that follow run the same job.
    pub(crate) begun: Option<Begun>,
}

/// A job that was begun, for further attempts: its bytes, its inputs, held until it is over, and what the last attempt finished. As long as it lasts
/// the task's reservation stands, so nothing is installed where the job counted on nothing (RFC 1, V5), and it keeps its number and its
/// snapshots: those that came later are above it (V6).
pub(crate) struct Begun {
    job: Job,
    inputs: Arc<dyn Inputs>,
    handover: Arc<Handover>,
    /// Tables that were there when the last attempt began.
    left_count: usize,
}

impl CompactionTask {
    /// Whether another attempt is worth being made: the one that failed finished tables that were not there before. To be asked once an attempt.
    pub(crate) fn goes_on(&mut self) -> bool {
        let Some(begun) = &mut self.begun else {
            return false;
        };
        let before = std::mem::replace(&mut begun.left_count, begun.handover.left_count());
        begun.left_count > before && !self.cancel.is_cancelled() && !self.keyspace.is_dropped()
    }

    /// No further attempt: the names of what the last one left.
    pub(crate) fn end(&mut self) -> Vec<String> {
        self.begun.take().map_or(Vec::new(), |b| b.handover.end())
    }
}

/// Who asked for a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A level is due.
    Due,
    /// Tombstones are worth it.
    Deletes,
    /// The user.
    Manual,
}

/// Executes and installs one compaction.
pub(crate) fn run(jobs: &Jobs, task: &mut CompactionTask) -> Result<()> {
    let choice = &task.choice;
    let _span = tracing::debug_span!(
        "compaction",
        keyspace = &*task.keyspace.name,
        from_level = choice.from,
        to_level = choice.to,
        in_bytes = choice.input_bytes,
        reason = &*choice.reason,
    )
    .entered();
    let start = jobs.env.now();
    if task.choice.kind == ChoiceKind::TrivialMove {
        let moved: Vec<_> = task.choice.tables().cloned().collect();
        let count = moved.len();
        commit(jobs, task, moved)?;
        jobs.env.metrics().trivial_move_count.add(1);
        tell(&jobs.env, task, count, 0, jobs.env.now().since(start));
        return Ok(());
    }
    if task.choice.kind == ChoiceKind::Drop {
        commit(jobs, task, Vec::new())?;
        let count = task.choice.tables().count() as u64;
        jobs.env.metrics().dropped_table_count.add(count);
        tell(&jobs.env, task, 0, 0, jobs.env.now().since(start));
        return Ok(());
    }
    if task.begun.is_none() {
        task.begun = Some(begin(jobs, task));
    }
    let begun = task.begun.as_ref().expect("set just now");
    let job = Job {
        output: jobs.runner.next_prefix(),
        ..begun.job.clone()
    };
    let adopted_before = begun.handover.adopted_count();
    let executed = jobs.runner.execute(
        &job,
        begun.inputs.clone(),
        &task.progress,
        &task.cancel,
        Some(&begun.handover),
    );
    let adopted = begun.handover.adopted_count() - adopted_before;
    jobs.env.metrics().adopted_table_count.add(adopted);
    jobs.env
        .metrics()
        .resumed_job_count
        .add(u64::from(adopted > 0));
    let outcome = executed?;
    let tables = outcome.tables.clone();
    let mut next_id = jobs.catalog.take_table_ids(tables.len() as u64 + 1);
    let metas = JobRunner::metas(outcome.tables, &mut next_id);
    if let Err(error) = commit(jobs, task, metas.clone()) {
        if !jobs.env.health().is_poisoned() {
            // See `flush`: an edit in doubt keeps its tables.
            jobs.runner.discard(&tables);
        }
        return Err(error);
    }
    if task.cause == Cause::Deletes && gave_nothing_back(&task.choice, &metas) {
        super::schedule::remember_futile(jobs, &metas);
    }
    count_outcome(&jobs.env, &outcome.counters);
    let m = &jobs.env.metrics();
    m.compaction_in_bytes.add(task.choice.input_bytes);
    let out_bytes = tables.iter().map(|t| t.file_bytes).sum();
    m.compaction_out_bytes.add(out_bytes);
    m.compaction_count.add(1);
    if task.choice.kind == ChoiceKind::IntraL0 {
        m.intra_l0_count.add(1);
    }
    match task.cause {
        Cause::Due => {}
        Cause::Deletes => drop(m.delete_compaction_count.add(1)),
        Cause::Manual => drop(m.manual_count.add(1)),
    }
    let took = jobs.env.now().since(start);
    m.compaction_time.record(took);
    for table in &metas {
        jobs.env
            .events()
            .emit(|| table.created(&task.keyspace.name, task.choice.to));
    }
    tell(&jobs.env, task, metas.len(), out_bytes, took);
    Ok(())
}

/// Tells of a compaction that was installed.
fn tell(env: &Env, task: &CompactionTask, out_count: usize, out_bytes: u64, took: Duration) {
    tracing::debug!(
        out_bytes,
        out_table_count = out_count,
        duration_us = took.as_micros() as u64,
        "compacted"
    );
    env.events().emit(|| Event::Compacted {
        keyspace: task.keyspace.name.clone(),
        reason: task.choice.reason.clone(),
        from_level: task.choice.from,
        to_level: task.choice.to,
        in_table_count: task.choice.tables().count() as u64,
        in_bytes: task.choice.input_bytes,
        out_table_count: out_count as u64,
        out_bytes,
        duration_us: took.as_micros() as u64,
    });
}

/// The job of a choice: everything that its attempts share.
fn begin(jobs: &Jobs, task: &CompactionTask) -> Begun {
    let (mut published, mut snapshots) = jobs.tree.snapshots().for_job();
    if planted::is(Bug::JobKeepsNewestOnly) {
        (published, snapshots) = (crate::formats::log::format::MAX_SEQUENCE, Vec::new());
    }
    let mut older = older_ranges(&task.version, &task.choice, &task.unsettled);
    if planted::is(Bug::OlderByNumber) {
        let oldest = task.choice.tables().map(|t| t.visible_seqs().0).min();
        older = task
            .version
            .tables()
            .filter(|(_, t)| Some(t.visible_seqs().1) < oldest)
            .map(|(_, t)| t.bounds.clone())
            .collect();
    }
    let inputs = jobs
        .tree
        .tables()
        .inputs(task.choice.tables().cloned().collect());
    let anchors = |table: &TableMeta| jobs.tree.tables().anchors(table);
    let job = jobs.runner.compaction_job(
        &task.version,
        &task.keyspace.load_settings().all,
        &task.choice,
        (published, snapshots),
        &older,
        &anchors,
    );
    Begun {
        job,
        inputs,
        handover: Arc::new(Handover::new(jobs.env.runtime())),
        left_count: 0,
    }
}

/// Whether tables that were rewritten in place have as many tombstones as before. (What goes down a level comes nearer to what it deletes.)
fn gave_nothing_back(choice: &Choice, outputs: &[Arc<TableMeta>]) -> bool {
    let count = |t: &Arc<TableMeta>| t.deletes + t.range_deletes;
    let before: u64 = choice.tables().map(count).sum();
    choice.kind == ChoiceKind::Rewrite && outputs.iter().map(count).sum::<u64>() >= before
}

/// Commits the edit that replaces the choice's inputs by `outputs`.
fn commit(jobs: &Jobs, task: &CompactionTask, outputs: Vec<Arc<TableMeta>>) -> Result<()> {
    let choice = &task.choice;
    let mut role = jobs.catalog.role();
    task.keyspace.check()?;
    if task.cancel.is_cancelled() {
        return Err(crate::jobs::sides::cancelled());
    }
    let add = match choice.output_seqs {
        Some(seqs) => {
            let run_id = jobs.catalog.take_table_ids(1);
            add_run(outputs, run_id, seqs)
        }
        None => outputs
            .into_iter()
            .map(|table| AddTable {
                level: choice.to,
                run: None,
                table,
            })
            .collect(),
    };
    let edit = Edit {
        keyspaces: vec![KeyspaceEdit {
            id: task.keyspace.id,
            remove: choice.removals(),
            add,
            ..KeyspaceEdit::default()
        }],
        ..Edit::default()
    };
    jobs.catalog.commit_edit(&mut role, edit)?;
    refresh_view(&jobs.tree, &role, &task.keyspace, &[]);
    Ok(())
}

/// The tables of a level-0 run as an edit adds them.
pub(crate) fn add_run(tables: Vec<Arc<TableMeta>>, run_id: u64, seqs: SeqRange) -> Vec<AddTable> {
    let slot = RunSlot { id: run_id, seqs };
    tables
        .into_iter()
        .map(|table| AddTable {
            level: 0,
            run: Some(slot),
            table,
        })
        .collect()
}

/// Adds what a job dropped to the store's counts.
pub(crate) fn count_outcome(env: &Env, counters: &Counters) {
    let m = &env.metrics();
    m.dropped_shadowed_count.add(counters.shadowed);
    m.dropped_tombstone_count.add(counters.tombstones);
    m.dropped_covered_count.add(counters.covered);
    m.dropped_fragment_count.add(counters.fragments_dropped);
    if counters.raw_bytes_read + RANGE_DELETE_BYTES * counters.range_deletes_read >= LARGE_JOB_BYTES
        && !env.runtime().is_simulated()
    {
        crate::types::allocator::give_back_free_pages();
    }
}

/// A job of this size leaves enough behind to be worth a call.
const LARGE_JOB_BYTES: u64 = 4 << 20;

/// What a range delete takes in a job's memory, about.
const RANGE_DELETE_BYTES: u64 = 400;
