//! The executor of the host's cores.
//!
//! The inputs of a job are opened once, by the calling task, and shared by its subjobs. The outcome
//! contains the processor time of the whole attempt: the time of the calling task from the
//! beginning of `run` to its end, and the time of the helpers.
//!
//! Threading: [`CpuExecutor`] has no state. The calling task runs subjobs itself. If `max_parallel`
//! is greater than 1, it has up to `max_parallel - 1` helpers. All of these tasks take subjobs from
//! one queue.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::{Mutex, StorageErrorKind};

use super::handover::Handover;
use super::order::{Queue, SubjobOrder, Taker};
use super::output::{Created, delete_names};
use super::part::{Part, Point};
use super::plan::JobPlan;
use super::planner::Planner;
use super::rebuild;
use super::separated::{Counted, SurvivorSource};
use super::subjob::{self, Stop};
use super::{ExecContext, ExecError, Executor, Side};
use crate::error::TableError;
use crate::job::outcome::{Counters, Outcome};
use crate::job::verify::{Sample, TrustSyncs, verify_tables_until};
use crate::job::{InputKind, Job, LAYOUT_VERSION};
use siltstone_storage::planted;

/// Runs jobs on the host's cores.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuExecutor;

impl CpuExecutor {
    /// A new executor.
    pub fn new() -> CpuExecutor {
        CpuExecutor
    }
}

/// How subjobs are run.
pub(super) enum How {
    /// Each block of the inputs is read once.
    Whole,
    /// Columns are read first, and then the blocks with entries that are kept.
    ColumnsFirst,
    /// Another side decides which entries are kept.
    Survivors(Arc<dyn SurvivorSource>),
}

/// The state that the tasks of one run share.
struct Shared {
    job: Job,
    ctx: ExecContext,
    plan: JobPlan,
    how: How,
    queue: Queue,
    /// The processor time of the helpers that have ended, in nanoseconds.
    helpers_cpu_ns: AtomicU64,
    abandoned: AtomicBool,
    created: Created,
    /// The tables that an earlier attempt left, for subjobs that have not begun yet.
    adopted: Mutex<BTreeMap<u32, Part>>,
    results: Mutex<Vec<Ended>>,
}

/// A subjob that has ended, with the tables that it finished.
struct Ended {
    part: Part,
    result: Result<Counters, ExecError>,
}

impl Shared {
    /// The work of a helper: it runs subjobs, and counts the processor time that it used.
    fn help(&self) {
        self.work(Taker::Helper);
        let used_ns = self.ctx.runtime.task_cpu_ns();
        self.helpers_cpu_ns.fetch_add(used_ns, Ordering::Relaxed);
        let helpers = &self.ctx.progress.helpers_cpu_ns;
        helpers.fetch_add(used_ns, Ordering::Relaxed);
    }

    fn run(&self, subjob: usize, stop: &Stop<'_>, part: &mut Part) -> Result<Counters, ExecError> {
        let (job, ctx, plan) = (&self.job, &self.ctx, &self.plan);
        let created = &self.created;
        let number = subjob as u32;
        if let Point::End(counters) = &part.next {
            return Ok(*counters);
        }
        match &self.how {
            How::Whole => subjob::run(job, subjob, plan, ctx, stop, created, part),
            How::ColumnsFirst => {
                let mut planner = Planner::new(job, number, plan, &part.next, ctx, None)?;
                rebuild::run(job, subjob, plan, &mut planner, ctx, stop, created, part)
            }
            How::Survivors(source) => {
                let stream = source.open(job, number, &part.next, ctx)?;
                let mut stream = Counted { stream, ctx };
                rebuild::run(job, subjob, plan, &mut stream, ctx, stop, created, part)
            }
        }
    }

    /// Runs subjobs until none is left or one has failed.
    fn work(&self, taker: Taker) {
        while !self.abandoned.load(Ordering::Relaxed)
            && let Some(subjob) = self.queue.take(taker)
        {
            let stop = Stop {
                ctx: &self.ctx,
                abandoned: &self.abandoned,
            };
            let adopted = self.adopted.lock().remove(&(subjob as u32));
            let mut part = adopted.unwrap_or_else(|| Part::new(subjob as u32));
            let result = self.run(subjob, &stop, &mut part);
            if result.is_err() {
                self.abandoned.store(true, Ordering::Relaxed);
            }
            self.results.lock().push(Ended { part, result });
        }
    }
}

impl Executor for CpuExecutor {
    fn name(&self) -> &str {
        "cpu"
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        if job.layout_version != LAYOUT_VERSION {
            return Err(format!(
                "layout version {}, this executor has {LAYOUT_VERSION}",
                job.layout_version
            ));
        }
        if let Some(extension) = job.extensions.first() {
            return Err(format!(
                "extension {} version {} is not known",
                extension.name, extension.version
            ));
        }
        for input in &job.inputs {
            if let InputKind::Unknown(number) = input.kind {
                return Err(format!(
                    "input {} has kind {number}, this executor knows tables (0) and streams (1)",
                    input.name
                ));
            }
        }
        let checked = job.check();
        checked.map_err(|reason| format!("malformed job: {reason}"))
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        run(job, ctx, How::Whole).map_err(ExecError::declined_if_unsupported)
    }
}

/// Runs a job that was accepted. `how` is [`How::Whole`] unless the caller has survivors.
pub(super) fn run(job: &Job, ctx: &ExecContext, how: How) -> Result<Outcome, ExecError> {
    let began_ns = ctx.runtime.task_cpu_ns();
    if ctx.cancel.is_cancelled() {
        return Err(ExecError::Cancelled);
    }
    // Nothing has been taken over or created yet, so an input that cannot be opened leaves
    // everything as it was.
    let plan = JobPlan::open(job, ctx)?;
    let how = match how {
        How::Whole if ctx.columns_first && plan.are_tables() => How::ColumnsFirst,
        how => how,
    };
    let tasks = ctx.max_parallel.min(job.subjobs());
    let queue = match tasks {
        0 | 1 => Queue::new(SubjobOrder::Keys, &vec![0; job.subjobs()]),
        _ => {
            let bytes = |i| plan.table_bytes(job, &job.subjob_bounds(i));
            let bytes: Vec<u64> = (0..job.subjobs()).map(bytes).collect();
            Queue::new(ctx.subjob_order, &bytes)
        }
    };
    let created = Created::new(&ctx.runtime);
    let adopted = match &ctx.handover {
        Some(handover) => adopt(job, ctx, handover, &created),
        None => BTreeMap::new(),
    };
    let shared = Arc::new(Shared {
        job: job.clone(),
        ctx: ctx.clone(),
        plan,
        how,
        queue,
        helpers_cpu_ns: AtomicU64::new(0),
        abandoned: AtomicBool::new(false),
        created,
        adopted: ctx.runtime.mutex(adopted),
        results: ctx.runtime.mutex(Vec::new()),
    });
    let mut helpers = Vec::new();
    for i in 1..tasks {
        let shared = shared.clone();
        // If a further task cannot be started, the other tasks do its work.
        match ctx
            .runtime
            .spawn(&format!("subjob-{i}"), move || shared.help())
        {
            Ok(helper) => helpers.push(helper),
            Err(_) => break,
        }
    }
    let mut panic = None;
    if ctx.runtime.is_simulated() {
        shared.work(Taker::Caller);
    } else {
        // The panic is resumed below, after the last helper has ended. Subjobs share lists only
        // under locks, each change of a list is one call, and the results of a job that
        // panicked are not used.
        panic = catch_unwind(AssertUnwindSafe(|| shared.work(Taker::Caller))).err();
        if panic.is_some() {
            shared.abandoned.store(true, Ordering::Relaxed);
        }
    }
    let mut panicked = panic.is_some();
    for helper in helpers {
        if let Err(payload) = helper.join() {
            panicked = true;
            panic.get_or_insert(payload);
        }
    }
    let mut ended = std::mem::take(&mut *shared.results.lock());
    ended.sort_by_key(|e| e.part.subjob);
    let mut result = collect(&shared, &ended, panicked);
    if let Ok(outcome) = &mut result {
        let own_ns = ctx.runtime.task_cpu_ns().saturating_sub(began_ns);
        let helpers_ns = shared.helpers_cpu_ns.load(Ordering::Relaxed);
        outcome.counters.cpu_ns = own_ns.saturating_add(helpers_ns);
    }
    if let Err(error) = &result {
        let mut parts: Vec<Part> = ended.into_iter().map(|e| e.part).collect();
        parts.extend(std::mem::take(&mut *shared.adopted.lock()).into_values());
        leave(&shared, error, panicked, parts);
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
    result
}

/// The number of blocks of each adopted table that are verified.
const ADOPTED_BLOCKS: usize = 8;

/// Takes over the tables that an earlier attempt of the job left, under this attempt's names. They
/// are verified like foreign tables. Tables that fail are deleted and made again, and so are those
/// that are not verified yet when the job is cancelled.
fn adopt(
    job: &Job,
    ctx: &ExecContext,
    handover: &Handover,
    created: &Created,
) -> BTreeMap<u32, Part> {
    let delete_all = |part: &Part| delete_names(part.tables.iter().map(|t| &t.name[..]), ctx);
    let mut adopted = BTreeMap::new();
    let parts = match handover.take(job.identity()) {
        Ok(parts) => parts,
        Err(others) => {
            delete_names(others.iter().map(String::as_str), ctx);
            return adopted;
        }
    };
    for mut part in parts.into_iter().filter(|p| !p.tables.is_empty()) {
        // Two parts of one subjob cannot both be continued, so one of them is wrong.
        if part.check(job).is_err() || adopted.contains_key(&part.subjob) {
            delete_all(&part);
            continue;
        }
        let claimed = Outcome {
            tables: part.tables.clone(),
            ..Outcome::default()
        };
        let sample = Sample::Blocks(ADOPTED_BLOCKS);
        let outputs = &*ctx.outputs;
        let verified =
            verify_tables_until(job, &claimed, outputs, &TrustSyncs, sample, &ctx.cancel);
        let mut holds = matches!(verified, Ok(Ok(())));
        for (number, table) in part.tables.iter_mut().enumerate() {
            let name = job.table_name(part.subjob, number as u32);
            if holds && name != table.name {
                created.note(&name);
                // The `sync_dir` at the end of the job makes the rename durable.
                holds = ctx.outputs.rename(ctx.epoch, &table.name, &name).is_ok();
                if !holds {
                    delete_names([&name[..]], ctx);
                }
            } else if holds {
                created.note(&name);
            }
            if holds {
                table.name = name;
            }
        }
        if !holds {
            delete_all(&part);
            continue;
        }
        let bytes = part.tables.iter().map(|t| t.file_bytes).sum();
        let count = part.tables.len();
        ctx.progress.bytes_out.fetch_add(bytes, Ordering::Relaxed);
        ctx.progress
            .tables
            .fetch_add(count as u64, Ordering::Relaxed);
        handover.note_adopted(count);
        ctx.note_finished(&part);
        adopted.insert(part.subjob, part);
    }
    adopted
}

/// Leaves finished tables to the next attempt, if there can be one, and deletes all others.
fn leave(shared: &Shared, error: &ExecError, panicked: bool, mut parts: Vec<Part>) {
    let storage_said = match error {
        ExecError::Failed(TableError::Storage(error)) => Some(error),
        _ => None,
    };
    // On a full disk, finished tables would keep space that a flush or the log may need. Without
    // the lease, the files may belong to another writer.
    let in_the_way =
        storage_said.is_some_and(|e| e.is_no_space() || e.kind == StorageErrorKind::Fenced);
    let handover = shared.ctx.handover.as_ref();
    let handover =
        handover.filter(|_| !panicked && !in_the_way && !shared.created.has_failed_sync());
    match handover {
        Some(handover) => {
            parts.retain(|part| !part.tables.is_empty());
            let kept: BTreeSet<&str> = parts
                .iter()
                .flat_map(|p| p.tables.iter().map(|t| &t.name[..]))
                .collect();
            shared.created.delete_all_but(&shared.ctx, &kept);
            let names = handover.leave(shared.job.identity(), parts);
            delete_names(names.iter().map(String::as_str), &shared.ctx);
        }
        None => shared.created.delete_all_but(&shared.ctx, &BTreeSet::new()),
    }
}

/// Combines the results of the subjobs. The failure of the lowest subjob that failed counts, and a
/// subjob that was only stopped because of it never hides the reason.
fn collect(shared: &Shared, ended: &[Ended], panicked: bool) -> Result<Outcome, ExecError> {
    if panicked {
        return Err(TableError::Misuse("a subjob's task panicked; its job failed").into());
    }
    let mut outcome = Outcome {
        job: shared.job.identity(),
        output: shared.job.output.clone(),
        ..Outcome::default()
    };
    let mut failed = None;
    let mut finished = 0;
    for Ended { part, result } in ended {
        match result {
            Ok(counters) => {
                outcome.tables.extend(part.tables.iter().cloned());
                outcome.counters.add(counters);
                finished += 1;
            }
            Err(error) => {
                if failed.is_none() || matches!(failed, Some(ExecError::Cancelled)) {
                    failed = Some(error.clone());
                }
            }
        }
    }
    if let Some(error) = failed {
        return Err(error);
    }
    if finished != shared.job.subjobs() {
        return Err(ExecError::Cancelled);
    }
    let is_synced_here = shared.ctx.syncs_folder && !planted!(FolderIsNotSynced);
    if !outcome.tables.is_empty() && is_synced_here {
        let synced = shared.ctx.outputs.sync_dir(shared.ctx.epoch);
        synced.inspect_err(|_| shared.created.note_failed_sync(&shared.ctx))?;
    }
    Ok(outcome)
}
