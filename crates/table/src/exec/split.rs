//! An executor that divides each job between two others: the first subjobs go to one executor, the
//! remaining ones to the other, in proportion to their measured speeds. The job is done when both
//! have finished.
//!
//! This is the rule of the system TStore, which is used as a comparison for near-data compaction
//! (ProckStore, section 5; policy `sync-split` of the engine). Each of the two executors runs one
//! subjob at a time.
//!
//! A part of a job is a job of its own, with the bounds of its subjobs. So its tables are the same
//! that the whole job would make (the layout of a subjob depends on its bounds alone). The second
//! part has an output prefix of its own, and its tables are renamed when both parts are done.
//!
//! Invariants: E1 to E4. If one part fails, the other one is cancelled, and the tables of both are
//! deleted. A job with one subjob goes to the faster executor as a whole. A job that failed is not
//! part of the measured speeds. What each executor did of a job is written into its progress
//! ([`Progress::divided`]), so that it can be counted for each of the two machines.
//!
//! Threading: shared. Each part has a task. The calling task waits, shows the progress of the
//! parts, and passes on a cancellation. A part that ends wakes it. No lock is held during any call
//! of an executor or a storage.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Condvar, Mutex, Runtime, StorageErrorKind};

use super::output::delete_names;
use super::{
    CancelToken, Costs, ExecContext, ExecError, Executor, ExecutorState, LinkUse, PartDone,
    Progress, Side,
};
use crate::error::TableError;
use crate::job::Job;
use crate::job::outcome::{Counters, Outcome};
use crate::job::verify::verify_outcome;

/// The longest wait of the calling task for the end of a part. After it, the task shows the
/// progress of the parts and checks whether the job was cancelled.
const LOOK: Duration = Duration::from_millis(20);

/// The smallest share of a job that a side gets. Each side gets a share of each divided job, so
/// that its speed stays known.
const LEAST: f64 = 1.0 / 32.0;

/// The number of jobs over which speeds are measured.
const MEASURED_JOBS: usize = 5;

/// Nanoseconds per byte of each side's last jobs.
type Speeds = [VecDeque<f64>; 2];

/// See the module.
pub struct SplitExecutor {
    name: String,
    sides: [Arc<dyn Executor>; 2],
    speeds: Mutex<Speeds>,
}

impl SplitExecutor {
    /// Divides jobs between two executors.
    pub fn new(
        runtime: &Runtime,
        name: &str,
        first: Arc<dyn Executor>,
        second: Arc<dyn Executor>,
    ) -> SplitExecutor {
        SplitExecutor {
            name: name.to_string(),
            sides: [first, second],
            speeds: runtime.mutex(Speeds::default()),
        }
    }

    /// The share of a job's bytes that the first side gets.
    fn share(&self) -> f64 {
        match self.mean_speeds() {
            // A side that needs twice as long per byte gets half as many.
            [Some(first), Some(second)] => (second / (first + second)).clamp(LEAST, 1.0 - LEAST),
            _ => 0.5,
        }
    }

    /// How many of this many subjobs the first side gets. Each side gets at least one.
    fn first_count(&self, subjobs: usize) -> usize {
        let count = (subjobs as f64 * self.share()).round() as usize;
        count.clamp(1, subjobs - 1)
    }

    fn mean_speeds(&self) -> [Option<f64>; 2] {
        let speeds = self.speeds.lock();
        let mean = |all: &VecDeque<f64>| {
            let sum: f64 = all.iter().sum();
            (!all.is_empty()).then(|| sum / all.len() as f64)
        };
        [mean(&speeds[0]), mean(&speeds[1])]
    }

    fn measured(&self, side: usize, bytes: u64, took: Duration) {
        if bytes == 0 {
            return;
        }
        let speed = &mut self.speeds.lock()[side];
        speed.push_back(took.as_nanos() as f64 / bytes as f64);
        if speed.len() > MEASURED_JOBS {
            speed.pop_front();
        }
    }
}

/// One side's part.
struct Part {
    job: Job,
    context: ExecContext,
}

/// How a part ended, and how long it took.
type Ended = (Result<Outcome, ExecError>, Duration);

/// What an executor did of a job.
#[derive(Clone, Copy, Default)]
struct Done {
    bytes_in: u64,
    bytes_out: u64,
    run_ns: u64,
    cpu_ns: u64,
}

impl Done {
    fn of(bytes_in: u64, outcome: &Outcome, took: Duration) -> Done {
        // Another machine may report any numbers.
        let bytes = outcome.tables.iter().map(|table| table.file_bytes);
        Done {
            bytes_in: bytes_in.max(1),
            bytes_out: bytes.fold(0, u64::saturating_add),
            run_ns: u64::try_from(took.as_nanos()).unwrap_or(u64::MAX),
            cpu_ns: outcome.counters.cpu_ns,
        }
    }

    fn write(self, part: &PartDone) {
        for (count, of) in [
            (self.bytes_in, &part.bytes_in),
            (self.bytes_out, &part.bytes_out),
            (self.run_ns, &part.run_ns),
            (self.cpu_ns, &part.cpu_ns),
        ] {
            of.store(count, Ordering::Relaxed);
        }
    }
}

/// Stores in the progress what each executor did of a job that is done.
fn write_parts(done: [Done; 2], progress: &Progress) {
    for (done, part) in done.into_iter().zip(&progress.divided) {
        done.write(part);
    }
}

fn run(executor: &dyn Executor, part: &Part) -> Ended {
    let runtime = &part.context.runtime;
    let begun = runtime.now();
    let cpu_begun_ns = runtime.task_cpu_ns();
    let result = executor.run(&part.job, &part.context);
    // This task counts as a helper of the task that runs the whole job, even if it only sends
    // requests to another machine.
    let used_ns = runtime.task_cpu_ns().saturating_sub(cpu_begun_ns);
    let helpers = &part.context.progress.helpers_cpu_ns;
    helpers.fetch_add(used_ns, Ordering::Relaxed);
    (result, runtime.now().since(begun))
}

/// Which parts have ended.
struct Ends {
    have_ended: Mutex<[bool; 2]>,
    changed: Condvar,
}

impl Ends {
    fn new(runtime: &Runtime) -> Arc<Ends> {
        Arc::new(Ends {
            have_ended: runtime.mutex([false; 2]),
            changed: runtime.condvar(),
        })
    }

    /// Waits until a part has ended that is not among the `known` ones, but no longer than
    /// [`LOOK`]. Returns which parts have ended.
    fn wait(&self, known: [bool; 2]) -> [bool; 2] {
        let mut have_ended = self.have_ended.lock();
        if *have_ended == known {
            have_ended = self.changed.wait_timeout(have_ended, LOOK).0;
        }
        *have_ended
    }
}

/// Records the end of a part when this value is dropped. So a task that panics also ends its part.
struct Ending {
    ends: Arc<Ends>,
    part: usize,
}

impl Drop for Ending {
    fn drop(&mut self) {
        self.ends.have_ended.lock()[self.part] = true;
        self.ends.changed.notify_all();
    }
}

/// Shows the sums over both parts as the progress of the job. Processor time is added to
/// `cpu_before_ns`, the time that earlier attempts of the job used. `beats` is the sum of the
/// parts' beats at the last call. Only what was added since then is added to the beats of the job,
/// because the job's own throttle also beats while a part waits for it.
fn show(parts: [&Progress; 2], whole: &Progress, cpu_before_ns: u64, beats: &mut u64) {
    let sum = |count: fn(&Progress) -> &AtomicU64, before: u64| {
        let of = |part: &Progress| count(part).load(Ordering::Relaxed);
        // Another machine may report any numbers.
        let sum = before
            .saturating_add(of(parts[0]))
            .saturating_add(of(parts[1]));
        count(whole).store(sum, Ordering::Relaxed);
    };
    sum(|p| &p.entries, 0);
    sum(|p| &p.bytes_in, 0);
    sum(|p| &p.bytes_out, 0);
    sum(|p| &p.tables, 0);
    sum(|p| &p.buffer_bytes, 0);
    sum(|p| &p.helpers_cpu_ns, cpu_before_ns);
    let of = |part: &Progress| part.beats.load(Ordering::Relaxed);
    let now = of(parts[0]).wrapping_add(of(parts[1]));
    let more = now.wrapping_sub(std::mem::replace(beats, now));
    whole.beats.fetch_add(more, Ordering::Relaxed);
}

/// Deletes the tables of a part whose outcome does not count. Only tables whose names begin with
/// the prefix of the part are deleted, because a lying outcome must not make the host delete other
/// files.
fn delete(outcome: &Outcome, part: &Part, ctx: &ExecContext) {
    delete_names(outcome.names_of(&part.job.output), ctx);
}

impl Executor for SplitExecutor {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        self.sides[1].side()
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        self.sides[0].accepts(job)?;
        self.sides[1].accepts(job)
    }

    /// Two slots at most: while the outcome of one job is being verified, the next job can run.
    fn slots(&self) -> usize {
        self.sides[1].slots().min(2)
    }

    fn parallelism(&self) -> usize {
        2
    }

    fn first_share(&self) -> Option<f64> {
        Some(self.share())
    }

    fn held_bytes(&self) -> u64 {
        let bytes = self.sides.iter().map(|side| side.held_bytes());
        bytes.fold(0, u64::saturating_add)
    }

    /// Both parts of a job have the same rules.
    fn drops_into(&self, depth: u32) -> bool {
        self.sides.iter().all(|side| side.drops_into(depth))
    }

    fn is_verified_whole(&self) -> bool {
        self.sides.iter().any(|side| side.is_verified_whole())
    }

    /// The part that ends last decides, and both end at about the same time.
    fn costs(&self) -> Costs {
        self.sides[1].costs()
    }

    fn state(&self) -> ExecutorState {
        match self.sides[0].state() {
            ExecutorState::Ready => self.sides[1].state(),
            state => state,
        }
    }

    fn link_use(&self) -> Option<LinkUse> {
        self.sides[1].link_use()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let sides = self.sides.iter();
        sides.flat_map(|side| side.counters()).collect()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let subjobs = job.subjobs();
        if subjobs == 1 {
            return self.run_undivided(job, ctx);
        }
        let share = self.first_count(subjobs);
        let second_output = job.output.second_part();
        let part = |from, to, output| {
            Arc::new(Part {
                job: job.part(from..to, output),
                context: ExecContext {
                    progress: Arc::default(),
                    cancel: CancelToken::new(),
                    max_parallel: 1,
                    handover: None,
                    part_listener: None,
                    // `join` syncs the folder for both parts.
                    syncs_folder: false,
                    ..ctx.clone()
                },
            })
        };
        let parts = [
            part(0, share, job.output.clone()),
            part(share, subjobs, second_output),
        ];
        let ended = self.run_parts(&parts, ctx)?;
        for (side, (part, (result, took))) in parts.iter().zip(&ended).enumerate() {
            // A part that failed or was cancelled does not show how fast its side is.
            if result.is_ok() {
                let bytes = part.context.progress.bytes_in.load(Ordering::Relaxed);
                self.measured(side, bytes, *took);
            }
        }
        let [(first, first_took), (second, second_took)] = ended;
        match (first, second) {
            (Ok(first), Ok(second)) => {
                let outcomes = [first, second];
                let took = [first_took, second_took];
                let is_wrong =
                    |at: &usize| verify_outcome(&parts[*at].job, &outcomes[*at]).is_err();
                let Some(wrong) = (0..2).find(is_wrong) else {
                    let done = [0, 1].map(|at: usize| {
                        let bytes = &parts[at].context.progress.bytes_in;
                        Done::of(bytes.load(Ordering::Relaxed), &outcomes[at], took[at])
                    });
                    let [first, second] = outcomes;
                    let joined = join(job, ctx, share, first, second)?;
                    write_parts(done, &ctx.progress);
                    return Ok(joined);
                };
                // The wrong outcome may name any files, so none of these is deleted. It is
                // returned, and because it is not an outcome of the whole job, the store rejects it
                // and verifies the next outcome of the side whole.
                delete(&outcomes[1 - wrong], &parts[1 - wrong], ctx);
                let [first, second] = outcomes;
                Ok(if wrong == 0 { first } else { second })
            }
            (first, second) => {
                for (outcome, part) in [&first, &second].into_iter().zip(&parts) {
                    if let Ok(outcome) = outcome {
                        delete(outcome, part, ctx);
                    }
                }
                // If one part was cancelled only because the other one failed, the error of the
                // part that failed is returned.
                let errors = [first.err(), second.err()].into_iter().flatten();
                let reason = errors.reduce(|reason, error| match reason {
                    ExecError::Cancelled => error,
                    reason => reason,
                });
                Err(reason.unwrap_or(ExecError::Cancelled))
            }
        }
    }
}

impl SplitExecutor {
    /// Runs a job as a whole on the faster side. A side that was not measured yet comes first.
    fn run_undivided(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let side = match self.mean_speeds() {
            [None, _] => 0,
            [Some(_), None] => 1,
            [Some(first), Some(second)] => usize::from(first > second),
        };
        let context = ExecContext {
            max_parallel: 1,
            ..ctx.clone()
        };
        let bytes = || ctx.progress.bytes_in.load(Ordering::Relaxed);
        // Some executors add to the bytes of an earlier attempt, others replace them. So only an
        // attempt that begins without bytes is measured.
        let is_first_attempt = bytes() == 0;
        let begun = ctx.runtime.now();
        let result = self.sides[side].run(job, &context);
        let took = ctx.runtime.now().since(begun);
        if let Ok(outcome) = &result {
            if is_first_attempt {
                self.measured(side, bytes(), took);
            }
            let mut done = [Done::default(); 2];
            done[side] = Done::of(bytes(), outcome, took);
            write_parts(done, &ctx.progress);
        }
        result
    }

    /// Runs both parts at the same time.
    fn run_parts(
        &self,
        parts: &[Arc<Part>; 2],
        ctx: &ExecContext,
    ) -> Result<[Ended; 2], ExecError> {
        let ends = Ends::new(&ctx.runtime);
        let mut tasks = Vec::new();
        for (at, (executor, part)) in self.sides.iter().zip(parts).enumerate() {
            let (executor, task_part) = (Arc::clone(executor), Arc::clone(part));
            let ending = Ending {
                ends: Arc::clone(&ends),
                part: at,
            };
            let task = move || {
                let _ending = ending;
                run(&*executor, &task_part)
            };
            match ctx.runtime.spawn("part of a job", task) {
                Ok(task) => tasks.push(task),
                Err(error) => {
                    parts.iter().for_each(|part| part.context.cancel.cancel());
                    for (task, part) in tasks.into_iter().zip(parts) {
                        if let Ok((Ok(outcome), _)) = task.join() {
                            delete(&outcome, part, ctx);
                        }
                    }
                    let reason = format!("a task could not be started: {error}");
                    return Err(ExecError::declined(reason));
                }
            }
        }
        let mut ended: [Option<Ended>; 2] = [None, None];
        let mut tasks: Vec<Option<_>> = tasks.into_iter().map(Some).collect();
        let mut has_panicked = false;
        let cpu_before_ns = ctx.progress.helpers_cpu_ns.load(Ordering::Relaxed);
        let mut beats = 0;
        while tasks.iter().any(Option::is_some) {
            let have_ended = ends.wait([0, 1].map(|at: usize| tasks[at].is_none()));
            if ctx.cancel.is_cancelled() {
                parts.iter().for_each(|part| part.context.cancel.cancel());
            }
            for (at, slot) in tasks.iter_mut().enumerate() {
                let Some(task) = slot.take_if(|_| have_ended[at]) else {
                    continue;
                };
                match task.join() {
                    Ok(end) => {
                        if end.0.is_err() {
                            parts[1 - at].context.cancel.cancel();
                        }
                        ended[at] = Some(end);
                    }
                    Err(_) => {
                        has_panicked = true;
                        parts[1 - at].context.cancel.cancel();
                    }
                }
            }
            let progress = [&*parts[0].context.progress, &*parts[1].context.progress];
            show(progress, &ctx.progress, cpu_before_ns, &mut beats);
        }
        match ended {
            [Some(first), Some(second)] if !has_panicked => Ok([first, second]),
            ended => {
                for (ended, part) in ended.iter().zip(parts) {
                    if let Some((Ok(outcome), _)) = ended {
                        delete(outcome, part, ctx);
                    }
                }
                Err(TableError::Misuse("an executor panicked; its job failed").into())
            }
        }
    }
}

/// Joins the outcomes of both parts. The outcomes were verified, so the names of their tables begin
/// with the prefixes of the parts.
fn join(
    job: &Job,
    ctx: &ExecContext,
    share: usize,
    first: Outcome,
    mut second: Outcome,
) -> Result<Outcome, ExecError> {
    let (mut subjob, mut number) = (u32::MAX, 0);
    let mut failed = None;
    for table in &mut second.tables {
        number = if table.subjob == subjob {
            number + 1
        } else {
            0
        };
        subjob = table.subjob;
        let name = job.table_name(subjob + share as u32, number);
        if let Err(error) = ctx.outputs.rename(ctx.epoch, &table.name, &name) {
            failed = Some((error, name));
            break;
        }
        table.name = name;
    }
    let is_empty = first.tables.is_empty() && second.tables.is_empty();
    let (synced, maybe_renamed) = match failed {
        Some((error, name)) => (Err(error), Some(name)),
        None if is_empty => (Ok(()), None),
        None => (ctx.outputs.sync_dir(ctx.epoch), None),
    };
    if let Err(error) = synced {
        if error.kind != StorageErrorKind::Unreachable {
            let tables = first.tables.iter().chain(&second.tables);
            let names = tables.map(|table| table.name.as_str());
            // A rename may have taken effect although it failed.
            delete_names(maybe_renamed.as_deref().into_iter().chain(names), ctx);
        }
        return Err(error.into());
    }
    for table in &mut second.tables {
        table.subjob += share as u32;
    }
    let mut counters = Counters::default();
    counters.add(&first.counters);
    counters.add(&second.counters);
    let mut tables = first.tables;
    tables.extend(second.tables);
    Ok(Outcome {
        job: job.identity(),
        output: job.output.clone(),
        tables,
        counters,
        ..Outcome::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::CpuExecutor;

    fn executor() -> SplitExecutor {
        let cpu = || Arc::new(CpuExecutor::new()) as Arc<dyn Executor>;
        SplitExecutor::new(&Runtime::threads(), "split", cpu(), cpu())
    }

    #[test]
    fn shares_follow_the_measured_speeds() {
        let split = executor();
        assert_eq!(split.first_count(16), 8, "nothing is measured");
        split.measured(0, 1000, Duration::from_micros(3));
        assert_eq!(split.first_count(16), 8, "one side is not measured");
        split.measured(1, 1000, Duration::from_micros(1));
        assert_eq!(split.first_count(16), 4, "the first is three times as slow");
        assert_eq!(split.first_share(), Some(0.25));
        // Each side gets at least one subjob, and a share, no matter how slow it is.
        (0..5).for_each(|_| split.measured(0, 1000, Duration::from_secs(1)));
        assert_eq!((split.first_count(16), split.first_count(2)), (1, 1));
        assert_eq!(split.first_share(), Some(LEAST));
        // Only the last five jobs count.
        (0..5).for_each(|_| split.measured(0, 1000, Duration::from_micros(1)));
        assert_eq!(split.first_count(16), 8);
    }
}
