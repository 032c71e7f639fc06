//! A subjob in two halves: one side decides which entries are kept, and another side makes the
//! tables ([RFC 11](../../../../docs/rfc/0011-separated.md)).
//!
//! [`Planner`](super::planner::Planner) is the first half, and [`RebuildExecutor`] contains the
//! second one. Chunks of [`Survivors`] connect them. A [`SurvivorSource`] delivers these, from
//! another process or from a planner of this one. With `columns_first` in its context, the host's
//! executor is both halves, so values of dropped entries are not read.
//!
//! Threading: each subjob has a stream of its own, which is read by the subjob's task.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::cpu::{self, How};
use super::part::Point;
use super::survivors::Survivors;
use super::{CpuExecutor, ExecContext, ExecError, Executor, Side};
use crate::job::outcome::Outcome;
use crate::job::{InputKind, Job};

/// The survivors of a subjob, chunk by chunk.
pub trait SurvivorStream {
    /// The next chunk, or `None` after the last one. An implementation that gets chunks from
    /// another process keeps at most a fixed number of them in memory. While it waits for a chunk,
    /// it shows signs of life ([`super::Progress::beat`]). It fails if the other side is silent or
    /// the context is cancelled.
    ///
    /// # Errors
    /// If the next chunk cannot be delivered. The job fails with this error.
    fn next_chunk(&mut self) -> Result<Option<Survivors>, ExecError>;

    /// The memory that the stream has now for what it will deliver, in bytes, as far as it belongs
    /// to the job: not what lies in shared buffers.
    fn buffer_bytes(&self) -> u64 {
        0
    }
}

/// Delivers the survivors of subjobs.
pub trait SurvivorSource: Send + Sync {
    /// The survivors of a subjob that continues at `next`. Several tasks call this at the same
    /// time, for different subjobs.
    ///
    /// # Errors
    /// If the survivors cannot be delivered. The job fails with this error.
    fn open<'a>(
        &'a self,
        job: &'a Job,
        subjob: u32,
        next: &Point,
        ctx: &'a ExecContext,
    ) -> Result<Box<dyn SurvivorStream + 'a>, ExecError>;
}

/// Makes the tables of a job from survivors that another side decided on. It reads only blocks that
/// have survivors, and makes the same tables as [`CpuExecutor`]. If the survivors are wrong, the
/// job fails or its tables are wrong, as with any executor outside the process. It never reads or
/// writes anything but the inputs and outputs of the job.
#[derive(Clone)]
pub struct RebuildExecutor {
    source: Arc<dyn SurvivorSource>,
}

impl RebuildExecutor {
    /// An executor that rebuilds tables from the survivors that `source` delivers.
    pub fn new(source: Arc<dyn SurvivorSource>) -> RebuildExecutor {
        RebuildExecutor { source }
    }
}

impl Executor for RebuildExecutor {
    fn name(&self) -> &str {
        "rebuild"
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        CpuExecutor::new().accepts(job)?;
        match job.inputs.iter().find(|i| i.kind != InputKind::Table) {
            Some(input) => Err(format!("input {} is not a table", input.name)),
            None => Ok(()),
        }
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        cpu::run(job, ctx, How::Survivors(self.source.clone()))
            .map_err(ExecError::declined_if_unsupported)
    }
}

/// Counts the entries in chunks that another side has read.
pub(super) struct Counted<'a> {
    pub stream: Box<dyn SurvivorStream + 'a>,
    pub ctx: &'a ExecContext,
}

impl SurvivorStream for Counted<'_> {
    fn next_chunk(&mut self) -> Result<Option<Survivors>, ExecError> {
        let chunk = self.stream.next_chunk()?;
        let extents = chunk.iter().flat_map(|chunk| &chunk.extents);
        let entries = extents.map(|extent| u64::from(extent.count)).sum();
        let progress = &self.ctx.progress;
        progress.entries.fetch_add(entries, Ordering::Relaxed);
        Ok(chunk)
    }
}
