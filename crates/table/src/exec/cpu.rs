//! The executor of the host's cores.
//!
//! The inputs of a job are opened once, by the calling task, and shared by its subjobs. The outcome
//! contains the processor time of the whole attempt: the time of the calling task from the
//! beginning of `run` to its end, and the time of the helpers.
//!
//! Threading: [`CpuExecutor`] has no state. The calling task runs subjobs itself. If `max_parallel`
//! is greater than 1, it has up to `max_parallel - 1` helpers. All of these tasks take subjobs from
//! one queue.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::Mutex;

use super::job_output::JobOutput;
use super::order::{Queue, SubjobOrder, Taker};
use super::part::{Part, Point};
use super::plan::JobPlan;
use super::planner::Planner;
use super::rebuild;
use super::separated::{Counted, SurvivorSource};
use super::subjob::{self, Stop};
use super::{ExecContext, ExecError, Executor, Side};
use crate::error::TableError;
use crate::job::outcome::Outcome;
use crate::job::{InputKind, Job, LAYOUT_VERSION};

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
    plan: JobPlan,
    how: How,
    queue: Queue,
    /// The processor time of the helpers that have ended, in nanoseconds.
    helpers_cpu_ns: AtomicU64,
    abandoned: AtomicBool,
    output: JobOutput,
    /// The tables that an earlier attempt left, for subjobs that have not begun yet.
    adopted: Mutex<BTreeMap<u32, Part>>,
    results: Mutex<Vec<Ended>>,
}

/// A subjob that has ended, with the tables that it finished.
struct Ended {
    part: Part,
    result: Result<(), ExecError>,
}

impl Shared {
    /// The work of a helper: it runs subjobs, and counts the processor time that it used.
    fn help(&self) {
        self.work(Taker::Helper);
        let ctx = self.output.context();
        let used_ns = ctx.runtime.task_cpu_ns();
        self.helpers_cpu_ns.fetch_add(used_ns, Ordering::Relaxed);
        let helpers = &ctx.progress.helpers_cpu_ns;
        helpers.fetch_add(used_ns, Ordering::Relaxed);
    }

    fn run(&self, subjob: usize, stop: &Stop<'_>, part: &mut Part) -> Result<(), ExecError> {
        let (output, plan) = (&self.output, &self.plan);
        let (job, ctx, created) = (output.job(), output.context(), output.created());
        let number = subjob as u32;
        if let Point::End(_) = &part.next {
            return Ok(());
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
                ctx: self.output.context(),
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
    let output = JobOutput::new(job, ctx);
    let adopted = output.adopt();
    let shared = Arc::new(Shared {
        plan,
        how,
        queue,
        helpers_cpu_ns: AtomicU64::new(0),
        abandoned: AtomicBool::new(false),
        output,
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
    let failed = failure(&shared, &ended, panicked);
    let mut parts: Vec<Part> = ended.into_iter().map(|e| e.part).collect();
    let mut result = match failed {
        None => shared.output.finish(parts),
        Some(error) => {
            parts.extend(std::mem::take(&mut *shared.adopted.lock()).into_values());
            match panicked {
                true => shared.output.discard(),
                false => shared.output.leave(&error, parts),
            }
            Err(error)
        }
    };
    if let Ok(outcome) = &mut result {
        let own_ns = ctx.runtime.task_cpu_ns().saturating_sub(began_ns);
        let helpers_ns = shared.helpers_cpu_ns.load(Ordering::Relaxed);
        outcome.counters.cpu_ns = own_ns.saturating_add(helpers_ns);
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
    result
}

/// Why the job failed, if it did. The failure of the lowest subjob that failed counts, and a subjob
/// that was only stopped because of it never hides the reason.
fn failure(shared: &Shared, ended: &[Ended], panicked: bool) -> Option<ExecError> {
    if panicked {
        let error = TableError::Misuse("a subjob's task panicked; its job failed");
        return Some(error.into());
    }
    let mut failed = None;
    for error in ended.iter().filter_map(|e| e.result.as_ref().err()) {
        if failed.is_none() || matches!(failed, Some(ExecError::Cancelled)) {
            failed = Some(error.clone());
        }
    }
    let is_unfinished = ended.len() != shared.output.job().subjobs();
    failed.or(is_unfinished.then_some(ExecError::Cancelled))
}
