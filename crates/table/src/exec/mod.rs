//! Executors, which turn a job into tables.
//!
//! [`Executor::run`] resolves a job's inputs through an [`ExecContext`], writes output tables that
//! nothing refers to yet, and returns an [`Outcome`]. It never installs anything. It may decline a
//! job because it lacks something that the job names, be cancelled, or fail. In these cases its
//! output does not count, and the host's cores can run the same job.
//!
//! Before a job is given to an executor, its methods [`accepts`](Executor::accepts),
//! [`slots`](Executor::slots), [`parallelism`](Executor::parallelism) and
//! [`state`](Executor::state) say which jobs it can run now. They answer at once, from memory.
//!
//! What an executor promises when it returns an outcome:
//! - **E1** Every output object is complete and synced, and the names are synced too (by one
//!   `sync_dir` at the end). The caller need not sync anything before it installs.
//! - **E2** The same job gives identical tables (uncompressed blocks, index keys, filter bits),
//!   whichever executor runs it and however many subjobs run at once.
//! - **E3** Every input block was verified before its contents were used, unless the job says
//!   otherwise.
//! - **E4** After an error it has tried to delete the objects that it created, except finished
//!   tables that it left in the context's [`Handover`]. Any other remaining object can be
//!   recognised as an orphan by its name.
//!
//! While an executor runs a job, it shows signs of life: a count of [`Progress`] rises, or it calls
//! [`Progress::beat`], at least every second in a flush and every ten seconds in a compaction.
//! Calls that change the context's storage, or resolve an input, may take longer.
//!
//! Threading: executors are shared; one `run` uses at most `max_parallel` tasks of the context's
//! runtime.

mod cost;
pub mod cpu;
mod handover;
pub(crate) mod inputs;
mod job_output;
mod order;
mod output;
pub mod part;
pub mod plan;
pub mod planner;
mod rebuild;
pub mod separated;
mod split;
mod subjob;
pub mod survivors;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use siltstone_storage::{Epoch, ReadFile, Runtime, Storage, StorageError, StorageErrorKind};

use crate::error::TableError;
use crate::job::outcome::Outcome;
use crate::job::{Job, KeyBounds};
use crate::retain::RangeDelete;
pub use cost::{Costs, JobSize};
pub use cpu::CpuExecutor;
pub use handover::Handover;
pub(crate) use inputs::input_range_deletes;
pub use job_output::{JobOutput, SubjobOutput};
pub use order::SubjobOrder;
use part::Part;
pub use split::SplitExecutor;

/// Where an executor computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The host's cores.
    Host,
    /// A GPU.
    Gpu,
    /// A device next to the data.
    Device,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Host => "host",
            Side::Gpu => "gpu",
            Side::Device => "device",
        })
    }
}

/// Why a job was not completed. Its output does not count.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ExecError {
    /// This executor cannot run this job; another may.
    #[error("declined: {reason}")]
    Declined {
        /// What the executor lacks, for the statistics.
        reason: String,
    },
    /// The caller cancelled the job.
    #[error("cancelled")]
    Cancelled,
    /// Storage failed, an input is damaged, or a rule is broken.
    #[error(transparent)]
    Failed(#[from] TableError),
}

impl ExecError {
    /// A declined job.
    pub fn declined(reason: impl Into<String>) -> ExecError {
        ExecError::Declined {
            reason: reason.into(),
        }
    }

    /// Turns a failure because of an input that needs what this build does not have into a decline:
    /// another executor may have it.
    pub fn declined_if_unsupported(self) -> ExecError {
        match self {
            ExecError::Failed(error) if error.is_unsupported() => {
                ExecError::declined(error.to_string())
            }
            error => error,
        }
    }
}

impl From<StorageError> for ExecError {
    fn from(error: StorageError) -> ExecError {
        ExecError::Failed(error.into())
    }
}

/// An entry of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamEntry<'a> {
    /// The user key.
    pub user_key: &'a [u8],
    /// Sequence number and kind; never a range delete.
    pub trailer: u64,
    /// The value.
    pub value: &'a [u8],
}

/// Entries in internal key order.
pub trait EntryStream: Send {
    /// The next entry, or `None` at the end.
    ///
    /// # Errors
    /// When the stream cannot be read; the job fails with it.
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError>;
}

/// A stream input: opened once for each subjob that overlaps it.
pub trait StreamSource: Send + Sync {
    /// The first and the last user key, if they are known without reading the whole stream. With
    /// them, keys can be compared by fewer bytes. They must be right if they are given.
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)>;

    /// All range deletes of the stream.
    ///
    /// # Errors
    /// When the range deletes cannot be read.
    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError>;

    /// The entries of the stream within `bounds`.
    ///
    /// # Errors
    /// When the stream cannot be opened.
    fn open(&self, bounds: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError>;
}

/// Resolves a job's inputs.
pub trait Inputs: Send + Sync {
    /// A table's file.
    ///
    /// # Errors
    /// When there is none, or it cannot be opened.
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError>;

    /// A stream.
    ///
    /// # Errors
    /// When there is none.
    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError>;
}

/// Inputs held in maps, for tests, tools and flushes.
#[derive(Clone, Default)]
pub struct InputMap {
    tables: BTreeMap<(u32, String), Arc<dyn ReadFile>>,
    streams: BTreeMap<(u32, String), Arc<dyn StreamSource>>,
}

impl InputMap {
    /// No inputs.
    pub fn new() -> InputMap {
        InputMap::default()
    }

    /// Adds a table.
    pub fn add_table(&mut self, location: u32, name: &str, table: Arc<dyn ReadFile>) {
        self.tables.insert((location, name.to_string()), table);
    }

    /// Adds a stream.
    pub fn add_stream(&mut self, location: u32, name: &str, stream: Arc<dyn StreamSource>) {
        self.streams.insert((location, name.to_string()), stream);
    }
}

fn no_input(location: u32, name: &str) -> TableError {
    StorageError::new(
        StorageErrorKind::NotFound,
        "resolve input",
        name,
        format!("the job names it at location {location}, but the context does not hold it"),
    )
    .into()
}

impl Inputs for InputMap {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        self.tables
            .get(&(location, name.to_string()))
            .cloned()
            .ok_or_else(|| no_input(location, name))
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        self.streams
            .get(&(location, name.to_string()))
            .cloned()
            .ok_or_else(|| no_input(location, name))
    }
}

/// The progress of a job. The executor writes it, and any task may read it.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of entries read.
    pub entries: AtomicU64,
    /// Bytes read from input tables. In a job that reads a stream, the raw bytes of all entries
    /// that were read: keys, values and 12 bytes per entry.
    pub bytes_in: AtomicU64,
    /// Bytes of finished output tables.
    pub bytes_out: AtomicU64,
    /// The number of finished output tables.
    pub tables: AtomicU64,
    /// Memory of this process that the job uses for blocks and unfinished tables, in bytes, as of
    /// its last block. The memory of a device is not part of it.
    pub buffer_bytes: AtomicU64,
    /// Signs of life that no other count shows (see [`Progress::beat`]).
    pub beats: AtomicU64,
    /// The job waits now because its store wants it to.
    pub is_paused: AtomicBool,
    /// The time of such waits that have ended, in nanoseconds. It is no measure of the executor.
    pub paused_ns: AtomicU64,
    /// The processor time of this machine that the job used in other tasks than the one that called
    /// [`Executor::run`], in nanoseconds. An executor adds it at the latest before it returns.
    pub helpers_cpu_ns: AtomicU64,
    /// What the host's cores and another machine did of a job that an executor divided between
    /// them, in this order. The executor writes it before it returns an outcome. Executors that
    /// divide no jobs leave it as it is.
    pub divided: [PartDone; 2],
}

/// What one of two machines did of a job that was divided between them. If it had no part of the
/// job, all counts are 0.
#[derive(Debug, Default)]
pub struct PartDone {
    /// Bytes read from input tables, and at least 1 if it had a part of the job.
    pub bytes_in: AtomicU64,
    /// Bytes of the output tables.
    pub bytes_out: AtomicU64,
    /// How long the part took, in nanoseconds.
    pub run_ns: AtomicU64,
    /// The processor time of the machine for the part, in nanoseconds; 0 if it is not known.
    pub cpu_ns: AtomicU64,
}

impl Progress {
    /// Shows that the job is alive although none of the counts rises, for example while it waits
    /// for a rate limit or for a device's queue.
    #[inline]
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that differs from an earlier one if the job has shown a sign of life in between.
    pub fn signs_of_life(&self) -> u64 {
        let counts = [
            &self.entries,
            &self.bytes_in,
            &self.bytes_out,
            &self.tables,
            &self.beats,
        ];
        let load = |count: &&AtomicU64| count.load(Ordering::Relaxed);
        counts.iter().map(load).fold(0, u64::wrapping_add)
    }
}

/// Asks a running job to stop. The job checks it once per block.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// A token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks the job to stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the job was asked to stop.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Limits how many bytes jobs read and write per second.
pub trait Throttle: Send + Sync {
    /// Called by a job that has read and written this many bytes of tables since its last call.
    /// Returns when the job may continue, or soon after `stop` says that it should end.
    fn spent(&self, bytes: u64, stop: &dyn Fn() -> bool);

    /// The bytes that all jobs together may read and write per second at present; 0 means no limit.
    /// An executor whose jobs run on another machine tells that machine the limit. The machine may
    /// then run ahead of [`Throttle::spent`] for a moment.
    fn bytes_per_s(&self) -> u64 {
        0
    }
}

/// Receives the finished tables of an attempt while it runs. A device sends them to its host, so
/// that the next attempt can continue after these tables even if this one ends without an outcome.
///
/// Threading: the tasks of a job call it, several at the same time. It must not panic. The subjob
/// that calls it waits until it returns.
pub trait PartListener: Send + Sync {
    /// The last table of `part` was finished and synced, or the subjob is complete. `part` has all
    /// tables of the subjob so far, and the point at which another attempt would continue. If the
    /// attempt began with a part of an earlier one, that part is passed first, with the present
    /// names of its tables. The names are durable only when the attempt returns an outcome.
    fn finished(&self, part: &Part);

    /// A sync of this attempt failed. A read may not show what was lost, so no table of the attempt
    /// may be adopted. This method may be called more than once.
    fn sync_failed(&self) {}
}

/// Receives remarks of an executor about how it runs a job. They are shown to people.
///
/// Threading: any task of the job calls it. It must not panic.
pub trait RemarkListener: Send + Sync {
    /// A remark of a few words, which replaces the last one.
    fn remark(&self, text: &str);
}

/// The environment in which a job runs.
#[derive(Clone)]
pub struct ExecContext {
    /// Tasks and locks.
    pub runtime: Runtime,
    /// Resolves inputs.
    pub inputs: Arc<dyn Inputs>,
    /// The storage for output tables.
    pub outputs: Arc<dyn Storage>,
    /// The writer's lease.
    pub epoch: Epoch,
    /// The id of the store, for messages on other machines. Zeros if there is none.
    pub store: [u8; 16],
    /// The job's progress, which the executor updates.
    pub progress: Arc<Progress>,
    /// Stops the job early.
    pub cancel: CancelToken,
    /// The maximum number of subjobs that run at once. With 1 no task is started.
    pub max_parallel: usize,
    /// The rate limiter that counts the bytes that the job reads and writes. `None` means no limit.
    pub throttle: Option<Arc<dyn Throttle>>,
    /// The tables that attempts of the job leave to each other. With `None` each attempt starts
    /// again, and deletes all of its tables when it fails.
    pub handover: Option<Arc<Handover>>,
    /// Receives each finished table, if it is set.
    pub part_listener: Option<Arc<dyn PartListener>>,
    /// Receives remarks, if it is set.
    pub remarks: Option<Arc<dyn RemarkListener>>,
    /// The order in which the tasks of the job take its subjobs.
    pub subjob_order: SubjobOrder,
    /// Whether the host's executor reads the columns of the inputs first, and then only the blocks
    /// with entries that the job keeps. The tables are the same. This pays off if values are large,
    /// much is dropped, or reads are slow. It has no effect on a job with a stream.
    pub columns_first: bool,
    /// Whether the folder of the outputs is synced at the end of the job. It is switched off only
    /// by a caller who syncs it afterwards. Only executors with a [`JobOutput`] heed it.
    pub syncs_folder: bool,
}

impl ExecContext {
    /// A context that runs one subjob at a time.
    pub fn new(
        runtime: Runtime,
        inputs: Arc<dyn Inputs>,
        outputs: Arc<dyn Storage>,
        epoch: Epoch,
    ) -> ExecContext {
        ExecContext {
            runtime,
            inputs,
            outputs,
            epoch,
            store: [0; 16],
            progress: Arc::default(),
            cancel: CancelToken::new(),
            max_parallel: 1,
            throttle: None,
            handover: None,
            part_listener: None,
            remarks: None,
            subjob_order: SubjobOrder::default(),
            columns_first: false,
            syncs_folder: true,
        }
    }

    /// Passes a remark on how the job is run to the listener, if there is one.
    pub fn remark(&self, text: &str) {
        if let Some(remarks) = &self.remarks {
            remarks.remark(text);
        }
    }

    fn note_finished(&self, part: &Part) {
        if let Some(listener) = &self.part_listener {
            listener.finished(part);
        }
    }

    fn note_failed_sync(&self) {
        if let Some(listener) = &self.part_listener {
            listener.sync_failed();
        }
    }
}

/// Whether an executor can be given jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ExecutorState {
    /// The executor can be given jobs.
    #[default]
    Ready,
    /// The executor is not ready yet, for this reason, for example because it compiles its kernels.
    Starting(String),
    /// The executor cannot be given jobs, for this reason, for example because its link is down.
    Down(String),
}

impl fmt::Display for ExecutorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExecutorState::Ready => f.write_str("ready"),
            ExecutorState::Starting(reason) => write!(f, "starting: {reason}"),
            ExecutorState::Down(reason) => write!(f, "down: {reason}"),
        }
    }
}

/// How much the jobs of an executor have used, and spared, a link so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkUse {
    /// The bytes that crossed the link for these jobs, in both directions.
    pub bytes: u64,
    /// The bytes of tables that the jobs read and wrote, and that would have crossed the link if
    /// this process had run the jobs.
    pub spared_bytes: u64,
}

/// Runs jobs. The module describes an executor's promises.
///
/// The defaults describe an executor that takes every job and runs one at a time.
pub trait Executor: Send + Sync {
    /// The executor's name in statistics: `cpu`, `cuda`, a device's name. If a store has several
    /// executors with the same name, it adds a number to all of these names but one.
    fn name(&self) -> &str;

    /// The side on which the executor computes.
    fn side(&self) -> Side;

    /// Whether the executor can run this job. The caller has not chosen the job's hard cuts yet, so
    /// the job has none. It may also get later snapshots before it runs.
    ///
    /// # Errors
    /// What the executor lacks, for the statistics.
    fn accepts(&self, job: &Job) -> Result<(), String> {
        let _ = job;
        Ok(())
    }

    /// The number of jobs that the executor can run at the same time now. The store may give it
    /// fewer: at most 64, and at most the number that the limit of open files allows. For that
    /// limit, each job counts as one unfinished table per subjob.
    fn slots(&self) -> usize {
        1
    }

    /// The number of subjobs of one job that the executor runs at once. Jobs for it are divided
    /// into this many subjobs, if they are large enough.
    fn parallelism(&self) -> usize {
        1
    }

    /// The number of tasks of this process that one job uses at once, if it may: the executor is
    /// run with [`ExecContext::max_parallel`] of at least this. By default one task for each subjob
    /// that runs at once.
    fn tasks(&self) -> usize {
        self.parallelism()
    }

    /// The memory of this process that the executor holds as long as it exists, whether it runs
    /// jobs or not, in bytes: for example pinned memory. It counts in the memory budget of a store.
    fn held_bytes(&self) -> u64 {
        0
    }

    /// Whether jobs of this executor drop what they may if they merge into this level. `depth`
    /// counts levels from the first one below level 0, which is 1. Jobs into the last level with
    /// tables drop everything that they may, whatever the answer. The paper on GPU compaction
    /// merges into the upper two levels without dropping ("quick compaction", section III).
    fn drops_into(&self, depth: u32) -> bool {
        let _ = depth;
        true
    }

    /// For an executor that divides each job into two parts: the share of the input bytes that the
    /// first part should have, between 0 and 1. Jobs for it have two subjobs of these sizes, if
    /// they are large enough. `None` for other executors.
    fn first_share(&self) -> Option<f64> {
        None
    }

    /// Whether a store verifies each outcome of this executor completely: all blocks, and all
    /// entries between any two keys derived again from the inputs. It costs about as much as the
    /// job. Otherwise a share is verified, and everything only after an outcome was wrong.
    fn is_verified_whole(&self) -> bool {
        false
    }

    /// What jobs cost the executor. It is asked once, when the store is opened.
    fn costs(&self) -> Costs {
        Costs::CORE
    }

    /// Whether the executor can be given jobs now.
    fn state(&self) -> ExecutorState {
        ExecutorState::Ready
    }

    /// How much the executor's jobs use the link to where it computes. `None` if there is no link.
    fn link_use(&self) -> Option<LinkUse> {
        None
    }

    /// Counts that the executor keeps, by name, for the statistics of a store. They only rise. An
    /// executor behind a link counts here the bytes that the store's storages do not count.
    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// Runs a job to its end.
    ///
    /// # Errors
    /// [`ExecError`]. In that case the output does not count.
    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Plain;

    impl Executor for Plain {
        fn name(&self) -> &str {
            "plain"
        }
        fn side(&self) -> Side {
            Side::Gpu
        }
        fn run(&self, _: &Job, _: &ExecContext) -> Result<Outcome, ExecError> {
            Err(ExecError::Cancelled)
        }
    }

    #[test]
    fn the_defaults_describe_one_job_at_a_time() {
        assert_eq!((Plain.slots(), Plain.parallelism()), (1, 1));
        assert_eq!(Plain.state(), ExecutorState::Ready);
        let down = ExecutorState::Down("no link".into());
        assert_eq!(down.to_string(), "down: no link");
    }

    #[test]
    fn every_count_is_a_sign_of_life() {
        let progress = Progress::default();
        let mut seen = vec![progress.signs_of_life()];
        progress.beat();
        seen.push(progress.signs_of_life());
        for count in [
            &progress.entries,
            &progress.bytes_in,
            &progress.bytes_out,
            &progress.tables,
        ] {
            count.fetch_add(1, Ordering::Relaxed);
            seen.push(progress.signs_of_life());
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
        // The memory rises and falls, so it is not a sign of life.
        progress.buffer_bytes.fetch_add(1, Ordering::Relaxed);
        assert_eq!(seen.last(), Some(&progress.signs_of_life()));
        progress.bytes_in.store(u64::MAX, Ordering::Relaxed);
        progress.signs_of_life();
    }
}
