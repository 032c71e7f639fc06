//! The executor: jobs on a GPU.
//!
//! Each job takes a lane, plans its subjobs as the host's executor does, and computes them one after
//! the other. Whatever goes wrong on the GPU ends the attempt with a decline, and the job's objects
//! are deleted: another side runs the job.
//!
//! Threading: shared. One lock guards the list of lanes that no job has.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::{Mutex, Runtime};
use siltstone_table::compress::Codec;
use siltstone_table::exec::JobOutput;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::plan::JobPlan;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use crate::device::Device;
use crate::error::{GpuError, Result};
use crate::lane::{Lane, LaneSizes, Work};
use crate::subjob::{Checks, SubjobRun};

/// The first jobs after an open, whose blocks the host checks too.
const CHECKED_FIRST: u64 = 8;

/// After these, it checks the blocks of one job in so many.
const CHECKED_SHARE: u64 = 16;

/// After this many mismatches in a row the executor is off.
const MISMATCHES_MAX: u64 = 3;

/// How much of a device and of the host's memory an executor takes, and what it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Memory of the device, for all jobs together, in bytes. 0: half of what is free, and 16 GiB
    /// at most.
    pub memory_bytes_max: u64,
    /// Pinned memory of the host, for all jobs together, in bytes.
    pub pinned_bytes_max: u64,
    /// The number of jobs at once.
    pub jobs: usize,
    /// Whether the host checks all blocks of all jobs.
    pub verifies_all: bool,
    /// Jobs with fewer bytes of inputs are declined.
    pub job_bytes_min: u64,
    /// Up to this many runs are sorted by rank, as in the paper, and more are merged in pairs. Both
    /// give the same order.
    pub rank_runs_max: usize,
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            memory_bytes_max: 0,
            pinned_bytes_max: 64 << 20,
            jobs: 2,
            verifies_all: false,
            job_bytes_min: 16 << 20,
            rank_runs_max: 0,
        }
    }
}

/// The counts of an executor.
#[derive(Debug, Default)]
struct Counts {
    jobs: AtomicU64,
    pieces: AtomicU64,
    mismatches: AtomicU64,
    mismatches_in_a_row: AtomicU64,
    device_errors: AtomicU64,
}

/// Runs jobs on a device. See the module.
pub struct GpuExecutor {
    name: String,
    device: Arc<dyn Device>,
    runtime: Runtime,
    options: GpuOptions,
    lanes: Mutex<Vec<Lane>>,
    lane_count: usize,
    counts: Counts,
    /// A call failed in such a way that all later ones fail.
    is_broken: AtomicBool,
}

impl GpuExecutor {
    /// Takes the memory of the device and of the host that jobs will need.
    ///
    /// # Errors
    /// What could not be taken, as text.
    pub fn open(
        name: &str,
        device: Arc<dyn Device>,
        runtime: &Runtime,
        options: GpuOptions,
    ) -> std::result::Result<GpuExecutor, String> {
        let free = device.facts().memory_free_bytes.unwrap_or(0);
        let all = match options.memory_bytes_max {
            0 => (free / 2).min(16 << 30),
            most => most,
        };
        let jobs = options.jobs.max(1);
        let sizes = lane_sizes(all / jobs as u64, options.pinned_bytes_max / jobs as u64);
        let open = || Lane::open(&device, runtime, sizes);
        let lanes: Result<Vec<Lane>> = (0..jobs).map(|_| open()).collect();
        let lanes = lanes.map_err(|error| text_of(&error))?;
        Ok(GpuExecutor {
            name: name.to_string(),
            runtime: runtime.clone(),
            options,
            lane_count: lanes.len(),
            lanes: runtime.mutex(lanes),
            device,
            counts: Counts::default(),
            is_broken: AtomicBool::new(false),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn lane(&self) -> Option<Lane> {
        let mut lanes = self.lanes.lock();
        let idle = lanes.iter_mut().position(Lane::is_idle)?;
        Some(lanes.swap_remove(idle))
    }

    /// What the host checks of this job.
    fn checks(&self) -> Checks {
        let number = self.counts.jobs.fetch_add(1, Ordering::Relaxed);
        let is_drawn = || self.runtime.random_u64().is_multiple_of(CHECKED_SHARE);
        let all = self.options.verifies_all || number < CHECKED_FIRST || is_drawn();
        Checks {
            outputs: all,
            inputs: all,
        }
    }

    fn run_in(&self, lane: &mut Lane, job: &Job, ctx: &ExecContext) -> Result<Outcome> {
        let began_ns = ctx.runtime.task_cpu_ns();
        let plan = JobPlan::open(job, ctx)?;
        if !plan.are_tables() {
            return Err(ExecError::declined("a stream cannot be read by a GPU").into());
        }
        let checks = self.checks();
        // Nothing is left to another attempt, and nobody hears of parts: their counts would be those
        // of whole pieces.
        let quiet = ExecContext {
            handover: None,
            part_listener: None,
            ..ctx.clone()
        };
        let output = JobOutput::new(job, &quiet);
        let mut parts = Vec::with_capacity(job.subjobs());
        for subjob in 0..job.subjobs() {
            match self.run_subjob(lane, job, subjob, &plan, &output, (ctx, checks)) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    output.discard();
                    return Err(error);
                }
            }
        }
        let mut outcome = output.finish(parts)?;
        outcome.counters.cpu_ns = ctx.runtime.task_cpu_ns().saturating_sub(began_ns);
        Ok(outcome)
    }

    fn run_subjob(
        &self,
        lane: &mut Lane,
        job: &Job,
        subjob: usize,
        plan: &JobPlan,
        output: &JobOutput,
        (ctx, checks): (&ExecContext, Checks),
    ) -> Result<Part> {
        let mut part = Part::new(subjob as u32);
        let Some(plan) = plan.subjob(job, subjob, &Point::Start)? else {
            return Ok(part);
        };
        let mut tables = output.subjob(&plan, &mut part);
        let mut run = SubjobRun {
            job,
            plan,
            work: Work::new(lane, ctx)?,
            checks,
            rank_runs_max: self.options.rank_runs_max,
            pieces: 0,
            tables: 0,
            uncounted_bytes: 0,
        };
        let counters = run.run(&mut tables)?;
        self.counts.pieces.fetch_add(run.pieces, Ordering::Relaxed);
        drop(run);
        tables.finish(counters)?;
        Ok(part)
    }

    /// What an error means for the job and for the executor.
    fn ended(&self, error: GpuError) -> ExecError {
        match error {
            GpuError::Exec(error) => error,
            GpuError::Mismatch(what) => {
                self.counts.mismatches.fetch_add(1, Ordering::Relaxed);
                self.counts
                    .mismatches_in_a_row
                    .fetch_add(1, Ordering::Relaxed);
                ExecError::declined(format!("the GPU was wrong: {what}"))
            }
            GpuError::Device(error) => {
                self.counts.device_errors.fetch_add(1, Ordering::Relaxed);
                if error.is_sticky() {
                    self.is_broken.store(true, Ordering::Relaxed);
                }
                ExecError::declined(error.to_string())
            }
            error => ExecError::declined(text_of(&error)),
        }
    }
}

fn text_of(error: &GpuError) -> String {
    match error {
        GpuError::Device(error) => error.to_string(),
        GpuError::NoRoom { wanted_bytes } => {
            format!("the GPU's memory is full: {wanted_bytes} more bytes were needed")
        }
        GpuError::Mismatch(what) => format!("the GPU was wrong: {what}"),
        GpuError::BadBlock { input, block } => format!("block {block} of input {input} is damaged"),
        GpuError::Exec(error) => error.to_string(),
    }
}

fn lane_sizes(memory_bytes: u64, pinned_bytes: u64) -> LaneSizes {
    let ring_count = 4;
    let staging_bytes = (pinned_bytes as usize / 8).clamp(64 << 10, 4 << 20);
    let left = (pinned_bytes as usize).saturating_sub(staging_bytes);
    LaneSizes {
        memory_bytes,
        staging_bytes,
        ring_bytes: (left / ring_count).clamp(4 << 10, 8 << 20) / 4096 * 4096,
        ring_count,
    }
}

impl Executor for GpuExecutor {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, job: &Job) -> std::result::Result<(), String> {
        CpuExecutor::new().accepts(job)?;
        if let Some(input) = job.inputs.iter().find(|i| i.kind != InputKind::Table) {
            return Err(format!("input {} is not a table", input.name));
        }
        if job.format.codec != Codec::None {
            return Err(format!(
                "tables with {} are not packed here",
                job.format.codec.word()
            ));
        }
        let bytes: u64 = job
            .inputs
            .iter()
            .map(|i| i.len_bytes)
            .fold(0, u64::saturating_add);
        if bytes < self.options.job_bytes_min {
            let least = self.options.job_bytes_min;
            return Err(format!(
                "{bytes} bytes are too few to pay; {least} are the least"
            ));
        }
        Ok(())
    }

    fn slots(&self) -> usize {
        // A lane whose work does not end has no room for a job, until it ends after all.
        let mut lanes = self.lanes.lock();
        let stuck = lanes.iter_mut().map(|lane| usize::from(!lane.is_idle()));
        self.lane_count - stuck.sum::<usize>()
    }

    fn state(&self) -> ExecutorState {
        if self.is_broken.load(Ordering::Relaxed) {
            return ExecutorState::Down("the GPU failed and has to be opened again".into());
        }
        let wrong = self.counts.mismatches_in_a_row.load(Ordering::Relaxed);
        match wrong >= MISMATCHES_MAX {
            true => ExecutorState::Down(format!("it was wrong {wrong} times in a row")),
            false => ExecutorState::Ready,
        }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let c = &self.counts;
        let counts = [
            ("gpu_jobs", &c.jobs),
            ("gpu_pieces", &c.pieces),
            ("gpu_mismatches", &c.mismatches),
            ("gpu_device_errors", &c.device_errors),
        ];
        let load =
            |(name, count): (&str, &AtomicU64)| (name.to_string(), count.load(Ordering::Relaxed));
        counts.map(load).into()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> std::result::Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        let Some(mut lane) = self.lane() else {
            return Err(ExecError::declined("all lanes of the GPU are in use"));
        };
        let result = self.run_in(&mut lane, job, ctx);
        self.lanes.lock().push(lane);
        match result {
            Ok(outcome) => {
                self.counts.mismatches_in_a_row.store(0, Ordering::Relaxed);
                Ok(outcome)
            }
            Err(error) => Err(self.ended(error).declined_if_unsupported()),
        }
    }
}
