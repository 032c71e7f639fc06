//! The host's cores.
//!
//! Threading: [`CpuExecutor`] has no state. The calling task runs subjobs itself; with `max_parallel > 1` it has up to
//! `max_parallel - 1` helpers, which take subjobs in order from one counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use siltstone_storage::Mutex;

use super::output::Created;
use super::subjob::{self, Stop, SubjobOutcome};
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

    /// Whether this executor can run the job at all.
    ///
    /// # Errors
    /// `Declined`, with what it lacks.
    pub fn accepts(job: &Job) -> Result<(), ExecError> {
        if job.layout_version != LAYOUT_VERSION {
            return Err(ExecError::declined(format!(
                "layout version {}, this executor has {LAYOUT_VERSION}",
                job.layout_version
            )));
        }
        if let Some(extension) = job.extensions.first() {
            return Err(ExecError::declined(format!(
                "extension {} version {} is not known",
                extension.name, extension.version
            )));
        }
        if let Some(input) = job.inputs.iter().find(|i| i.kind == InputKind::Unsorted) {
            return Err(ExecError::declined(format!(
                "input {} is unsorted",
                input.name
            )));
        }
        job.check()
            .map_err(|reason| ExecError::declined(format!("malformed job: {reason}")))
    }
}

/// What the tasks of one run share.
struct Shared {
    job: Job,
    ctx: ExecContext,
    next: AtomicUsize,
    abandoned: AtomicBool,
    created: Created,
    results: Mutex<Vec<(usize, Result<SubjobOutcome, ExecError>)>>,
}

impl Shared {
    /// Runs subjobs until there is none left or one failed.
    fn work(&self) {
        loop {
            let subjob = self.next.fetch_add(1, Ordering::Relaxed);
            if subjob >= self.job.subjobs() || self.abandoned.load(Ordering::Relaxed) {
                return;
            }
            let stop = Stop {
                ctx: &self.ctx,
                abandoned: &self.abandoned,
            };
            let result = subjob::run(&self.job, subjob, &self.ctx, &stop, &self.created);
            if result.is_err() {
                self.abandoned.store(true, Ordering::Relaxed);
            }
            self.results.lock().push((subjob, result));
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

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        CpuExecutor::accepts(job)?;
        let shared = Arc::new(Shared {
            job: job.clone(),
            ctx: ctx.clone(),
            next: AtomicUsize::new(0),
            abandoned: AtomicBool::new(false),
            created: Created::new(&ctx.runtime),
            results: ctx.runtime.mutex(Vec::new()),
        });
        let mut helpers = Vec::new();
        for i in 1..ctx.max_parallel.min(job.subjobs()) {
            let shared = shared.clone();
            // Without a further task the others do its work.
            match ctx
                .runtime
                .spawn(&format!("subjob-{i}"), move || shared.work())
            {
                Ok(helper) => helpers.push(helper),
                Err(_) => break,
            }
        }
        shared.work();
        let mut panicked = false;
        for helper in helpers {
            panicked |= helper.join().is_err();
        }
        let result = collect(&shared, panicked);
        if result.is_err() {
            shared.created.delete_all(ctx);
        }
        result
    }
}

/// Puts the subjobs' results together; the first failure by subjob counts, and one that was only abandoned never
/// hides the reason.
fn collect(shared: &Shared, panicked: bool) -> Result<Outcome, ExecError> {
    let mut results = std::mem::take(&mut *shared.results.lock());
    results.sort_by_key(|r| r.0);
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
    for (_, result) in results {
        match result {
            Ok(part) => {
                outcome.tables.extend(part.tables);
                outcome.counters.add(&part.counters);
                finished += 1;
            }
            Err(error) => {
                if failed.is_none() || matches!(failed, Some(ExecError::Cancelled)) {
                    failed = Some(error);
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
    if !outcome.tables.is_empty() {
        shared.ctx.outputs.sync_dir(shared.ctx.epoch)?;
    }
    Ok(outcome)
}
