//! The executor: jobs on a GPU.
//!
//! Each job takes a lane, plans its subjobs as the host's executor does, and computes them one
//! after the other. Whatever goes wrong on the GPU ends the attempt with a decline, and the job's
//! objects are deleted: another side runs the job.
//!
//! Threading: shared. A job uses two tasks at most, see `pipeline`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::Runtime;
use siltstone_table::compress::Codec;
use siltstone_table::exec::JobOutput;
use siltstone_table::exec::plan::JobPlan;
use siltstone_table::exec::{
    Costs, CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, Side,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use crate::device::{Device, DeviceFacts, DirectMode};
use crate::error::{GpuError, Result};
use crate::lane::{LaneSizes, Pool};
use crate::pipeline::{self, Shared};
use crate::profile::{KernelTime, Profile};
use crate::strategy::{Strategy, Transfer};
use crate::subjob::{Checks, Tuning};

/// How many levels below level 0 quick compactions merge into (the paper, section III).
const QUICK_DEPTH: u32 = 2;

/// After this many mismatches in a row the executor is off.
const MISMATCHES_MAX: u64 = 3;

/// The most jobs at once: a store gives no side more.
const JOBS_MAX: usize = 64;

/// Each job has at least this much memory of the GPU.
const JOB_MEMORY_BYTES_MIN: u64 = 16 << 20;

/// Each job has at least this much pinned memory.
const JOB_PINNED_BYTES_MIN: u64 = 1 << 20;

/// How much of a device and of the host's memory an executor takes, and what it checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuOptions {
    /// Which parts of a job the GPU computes.
    pub strategy: Strategy,
    /// How the bytes of tables get to the GPU and back.
    pub transfer: Transfer,
    /// Memory of the device, for all jobs together, in bytes. 0: half of what is free, and 16 GiB
    /// at most.
    pub memory_bytes_max: u64,
    /// Pinned memory of the host, for all jobs together, in bytes.
    pub pinned_bytes_max: u64,
    /// The number of jobs at once.
    pub jobs: usize,
    /// The parts of the memory that each job has: with 2, a piece is computed while the one before
    /// is written.
    pub lanes: usize,
    /// Whether the host checks all blocks of all jobs.
    pub verifies_all: bool,
    /// Whether a store derives all entries of all outcomes again, too. See
    /// [`Executor::is_verified_whole`].
    pub verifies_outcomes: bool,
    /// Without `verifies_all`, the host checks the blocks of this number of jobs after the open,
    /// and then those of one job in `verified_share` (0: of none).
    pub verified_first: u64,
    /// See [`GpuOptions::verified_first`].
    pub verified_share: u64,
    /// Jobs with fewer bytes of inputs are declined.
    pub job_bytes_min: u64,
    /// Up to this many runs are sorted by rank, as in the paper, and more are merged in pairs. Both
    /// give the same order.
    pub rank_runs_max: usize,
    /// Whether the time of each kernel is measured, which [`GpuExecutor::profile`] returns. It
    /// costs some microseconds for each launch.
    pub profiles: bool,
}

impl GpuOptions {
    /// Whether an executor can be opened with these options on this GPU. Its memory is compared as
    /// a whole, because how much of it is free is only known later.
    ///
    /// # Errors
    /// What is wrong, and what is possible.
    pub fn check(&self, facts: &DeviceFacts) -> std::result::Result<(), String> {
        let jobs = self.jobs;
        if !(1..=JOBS_MAX).contains(&jobs) {
            return Err(format!("{jobs} jobs at once; 1 to {JOBS_MAX} are possible"));
        }
        let (memory, all) = (self.memory_bytes_max, facts.memory_bytes);
        let name = &facts.name;
        if memory > all {
            return Err(format!(
                "{memory} bytes of memory were asked for, and the GPU {} ({name}) has {all}; take \
                 less, or 0 for half of what is free",
                facts.index
            ));
        }
        let least = JOB_MEMORY_BYTES_MIN * jobs as u64;
        if memory != 0 && memory < least {
            return Err(format!(
                "{memory} bytes of the GPU's memory are too few for {jobs} jobs at once; {least} \
                 are the least, and 0 means half of what is free"
            ));
        }
        let (pinned, least) = (self.pinned_bytes_max, JOB_PINNED_BYTES_MIN * jobs as u64);
        if pinned < least {
            return Err(format!(
                "{pinned} bytes of pinned memory are too few for {jobs} jobs at once; {least} are \
                 the least"
            ));
        }
        Ok(())
    }
}

impl Default for GpuOptions {
    fn default() -> Self {
        GpuOptions {
            strategy: Strategy::Full,
            transfer: Transfer::Pipeline,
            memory_bytes_max: 0,
            pinned_bytes_max: 64 << 20,
            jobs: 2,
            lanes: 2,
            verifies_all: false,
            verifies_outcomes: false,
            verified_first: 8,
            verified_share: 16,
            job_bytes_min: 16 << 20,
            rank_runs_max: 0,
            profiles: false,
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
    pool: Arc<Pool>,
    /// How direct transfers are made, if they are asked for.
    direct_mode: Option<DirectMode>,
    profile: Option<Arc<Profile>>,
    counts: Counts,
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
        let jobs = options.jobs.max(1);
        let all = match options.memory_bytes_max {
            0 => memory_of(&device.facts(), jobs)?,
            most => most,
        };
        // Each job computes in one lane and writes from another one.
        let count = jobs * options.lanes.max(1);
        let sizes = lane_sizes(all / count as u64, options.pinned_bytes_max / count as u64);
        let profile = options.profiles.then(|| Arc::new(Profile::new(runtime)));
        let pool = Pool::open(&device, runtime, sizes, count, profile.as_ref());
        let pool = pool.map_err(|error| text_of(&error))?;
        let direct_mode = match options.transfer {
            Transfer::Direct => Some(begin_direct(&*device)?),
            Transfer::Plain | Transfer::Pipeline => None,
        };
        Ok(GpuExecutor {
            direct_mode,
            name: name.to_string(),
            runtime: runtime.clone(),
            options,
            pool,
            profile,
            device,
            counts: Counts::default(),
        })
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Whether a call failed in such a way that all later ones fail.
    pub fn is_broken(&self) -> bool {
        self.pool.is_broken()
    }

    /// How direct transfers are made. `None` with another transfer.
    pub fn direct_mode(&self) -> Option<&DirectMode> {
        self.direct_mode.as_ref()
    }

    /// How long each kernel took in the jobs that have ended, by name: see
    /// [`GpuOptions::profiles`]. Copies between ring and device are named `copy in` and `copy out`.
    pub fn profile(&self) -> Vec<(&'static str, KernelTime)> {
        let profile = self.profile.as_ref();
        profile.map_or_else(Vec::new, |profile| profile.sums())
    }

    /// What the host checks of this job.
    fn checks(&self) -> Checks {
        let number = self.counts.jobs.fetch_add(1, Ordering::Relaxed);
        let options = &self.options;
        let is_drawn = || {
            let share = options.verified_share;
            share > 0 && self.runtime.random_u64().is_multiple_of(share)
        };
        let all = options.verifies_all || number < options.verified_first || is_drawn();
        Checks {
            outputs: all,
            inputs: all,
        }
    }

    fn run_in(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome> {
        let began_ns = ctx.runtime.task_cpu_ns();
        let Some(mut work) = self.pool.take(ctx) else {
            return Err(ExecError::declined("all lanes of the GPU are in use").into());
        };
        if let Some(mode) = &self.direct_mode {
            ctx.remark(&format!("direct transfers: {mode}"));
        }
        let plan = JobPlan::open(job, ctx)?;
        if !plan.are_tables() {
            return Err(ExecError::declined("a stream cannot be read by a GPU").into());
        }
        let shared = Arc::new(Shared {
            job: job.clone(),
            plan,
            checks: self.checks(),
            tuning: Tuning {
                strategy: self.options.strategy,
                transfer: self.options.transfer,
                rank_runs_max: self.options.rank_runs_max,
            },
        });
        // Nothing is handed over to another attempt, and parts are not reported, because their
        // counts would be those of whole pieces.
        let quiet = ExecContext {
            handover: None,
            part_listener: None,
            ..ctx.clone()
        };
        let output = JobOutput::new(job, &quiet);
        let mut parts = Vec::with_capacity(job.subjobs());
        let mut helpers_ns = 0;
        for subjob in 0..job.subjobs() {
            let overlaps = self.options.transfer != Transfer::Plain && ctx.max_parallel > 1;
            let spare = overlaps.then(|| self.pool.take_now(ctx)).flatten();
            match pipeline::run(&shared, subjob, &output, work, spare) {
                Ok(done) => {
                    self.counts.pieces.fetch_add(done.pieces, Ordering::Relaxed);
                    helpers_ns += done.helper_cpu_ns;
                    parts.push(done.part);
                    work = done.work;
                }
                Err(error) => {
                    output.discard();
                    return Err(error);
                }
            }
        }
        drop(work);
        let mut outcome = output.finish(parts)?;
        let own_ns = ctx.runtime.task_cpu_ns().saturating_sub(began_ns);
        outcome.counters.cpu_ns = own_ns.saturating_add(helpers_ns);
        Ok(outcome)
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
                self.pool.note(&error);
                ExecError::declined(error.to_string())
            }
            error => ExecError::declined(text_of(&error)),
        }
    }
}

/// The memory that an executor takes of a device unless an option says how much: half of what is
/// free, if that is enough for so many jobs at once.
fn memory_of(facts: &DeviceFacts, jobs: usize) -> std::result::Result<u64, String> {
    let free = facts.memory_free_bytes.unwrap_or(0);
    let least = JOB_MEMORY_BYTES_MIN * jobs as u64;
    if free / 2 < least {
        return Err(format!(
            "{free} bytes of the memory of GPU {} ({}) are free, and half of it is less than the \
             {least} bytes that {jobs} jobs at once need at least; end other programs that use \
             the GPU (see `nvidia-smi`), or say how much memory to take",
            facts.index, facts.name
        ));
    }
    Ok((free / 2).min(16 << 30))
}

/// Prepares direct transfers.
fn begin_direct(device: &dyn Device) -> std::result::Result<DirectMode, String> {
    device
        .begin_direct()
        .map_err(|why| format!("the transfer `direct` is not possible, and `pipeline` is: {why}"))
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
    // Parts of arrays that are copied begin at multiples of half of this.
    let staging_bytes = (pinned_bytes as usize / 8).clamp(64 << 10, 4 << 20) / 4096 * 4096;
    let left = (pinned_bytes as usize).saturating_sub(staging_bytes);
    LaneSizes {
        memory_bytes,
        staging_bytes,
        ring_bytes: (left / ring_count).clamp(4 << 10, 8 << 20) / 4096 * 4096,
        ring_count,
    }
}

/// Whether an executor with these options can run this job. The answer does not depend on its
/// state, so it is the same before the GPU is open.
pub(crate) fn accepts(job: &Job, options: &GpuOptions) -> std::result::Result<(), String> {
    CpuExecutor::new().accepts(job)?;
    if let Some(input) = job.inputs.iter().find(|i| i.kind != InputKind::Table) {
        return Err(format!(
            "{} is not a table; a GPU runs compactions of tables, and no flushes",
            input.name
        ));
    }
    if options.strategy == Strategy::Cpu {
        return Err("the strategy `cpu` leaves all jobs to the host".into());
    }
    if job.format.codec == Codec::Zstd {
        return Err("a GPU does not compress with zstd; with lz4 it does".into());
    }
    let bytes: u64 = job
        .inputs
        .iter()
        .map(|i| i.len_bytes)
        .fold(0, u64::saturating_add);
    if bytes < options.job_bytes_min {
        let least = options.job_bytes_min;
        return Err(format!(
            "a job with {bytes} bytes of inputs is too small for a GPU; the least is {least} bytes"
        ));
    }
    Ok(())
}

/// What jobs cost: each byte is read, copied to the GPU and back, and written, and the kernels take
/// little time beside that (RFC 14, section 3). Nothing of this was measured on a GPU; a store
/// measures by which factor it is wrong.
pub(crate) const COSTS: Costs = Costs {
    job_ns: 2e6,
    byte_ns: 0.5,
    entry_ns: 5.0,
    packed_byte_ns: 0.1,
};

/// Whether jobs with these options drop what they may in this level.
pub(crate) fn drops_into(depth: u32, options: &GpuOptions) -> bool {
    depth > QUICK_DEPTH || !options.strategy.is_quick_above()
}

impl Executor for GpuExecutor {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Gpu
    }

    fn accepts(&self, job: &Job) -> std::result::Result<(), String> {
        accepts(job, &self.options)
    }

    /// Lanes in which work of an abandoned job may still go on are not counted.
    fn slots(&self) -> usize {
        self.options.jobs.max(1).min(self.pool.usable())
    }

    /// One task computes, and one writes.
    fn tasks(&self) -> usize {
        2
    }

    fn is_verified_whole(&self) -> bool {
        self.options.verifies_outcomes
    }

    fn costs(&self) -> Costs {
        COSTS
    }

    fn held_bytes(&self) -> u64 {
        self.pool.pinned_bytes()
    }

    fn drops_into(&self, depth: u32) -> bool {
        drops_into(depth, &self.options)
    }

    fn state(&self) -> ExecutorState {
        if self.is_broken() {
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
        let direct = self.pool.direct_counts();
        let direct_counts = [
            ("gpu_direct_read_bytes", &direct.read_bytes),
            ("gpu_direct_written_bytes", &direct.written_bytes),
            ("gpu_direct_refused_files", &direct.refused_files),
            ("gpu_direct_repeated_pieces", &direct.repeated_pieces),
        ];
        let shown = match self.options.transfer {
            Transfer::Direct => &direct_counts[..],
            Transfer::Plain | Transfer::Pipeline => &[],
        };
        let load =
            |(name, count): &(&str, &AtomicU64)| (name.to_string(), count.load(Ordering::Relaxed));
        let mut all: Vec<_> = counts.iter().chain(shown).map(load).collect();
        let busy = self.profile.as_ref().map(|profile| profile.busy_us());
        all.extend(busy.map(|busy_us| ("gpu_busy_us".to_string(), busy_us)));
        all
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> std::result::Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        match self.run_in(job, ctx) {
            Ok(outcome) => {
                self.counts.mismatches_in_a_row.store(0, Ordering::Relaxed);
                Ok(outcome)
            }
            Err(error) => Err(self.ended(error).declined_if_unsupported()),
        }
    }
}
