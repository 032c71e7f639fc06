//! The side that decides: it reads the columns of a subjob's inputs, and says which entries the
//! subjob keeps.
//!
//! A [`Planner`] does what `subjob.rs` does, with the same merge, drop rules and layout, but
//! without values: their lengths are in the columns. The planner knows where tables begin, because
//! the layout depends on lengths only. So the other side can say how far the planner had got when
//! each table began, and an attempt can continue after these tables.
//!
//! Invariants: if the job asks for it, the checksum of a block's header and columns is verified
//! before anything in them is used. Memory is bounded: one piece of columns for each run, and one
//! chunk.
//!
//! Threading: [`Plans`] is immutable and shared; each planner has one owner.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::inputs::merge_runs;
use super::part::Point;
use super::plan::{JobPlan, SubjobPlan};
use super::separated::SurvivorStream;
use super::subjob::counters_before;
use super::survivors::{EXTENTS_MAX, Extent, Survivors};
use super::{ExecContext, ExecError};
use crate::job::Job;
use crate::job::outcome::Counters;
use crate::key::raw_bytes;
use crate::layout::Layout;
use crate::merge::Merge;
pub use crate::merge::ahead::ColumnsAhead;
use crate::merge::input_run::Reads;
use crate::retain::{Retain, Verdict};

/// The maximum number of extents that a planner puts into a chunk, unless another number is set.
const CHUNK_EXTENTS: usize = EXTENTS_MAX / 4;

/// The open inputs of a job whose subjobs are planned here and rebuilt elsewhere.
pub struct Plans {
    plan: JobPlan,
}

impl Plans {
    /// Opens the inputs of a job through the context.
    ///
    /// # Errors
    /// `Declined` if an input is not a table, or if the job is malformed. `Cancelled` if the
    /// context says so. Others if an input cannot be opened or is not the one that the job names.
    pub fn open(job: &Job, ctx: &ExecContext) -> Result<Plans, ExecError> {
        let plan = JobPlan::open(job, ctx)?;
        match plan.are_tables() {
            true => Ok(Plans { plan }),
            false => Err(ExecError::declined("a stream has no columns to read")),
        }
    }

    /// The number of bytes of the inputs' blocks that a whole merge of the job reads, and the
    /// number of these bytes that are headers and columns. The caller compares the two to decide
    /// whether it pays to send only columns and survivors.
    pub fn bytes(&self, job: &Job) -> (u64, u64) {
        let mut sums = (0u64, 0u64);
        for (i, input) in job.inputs.iter().enumerate() {
            let clip = input.clip.intersect(&job.bounds);
            if let Some(table) = self.plan.table(i).filter(|_| !clip.is_empty()) {
                sums.0 = sums.0.saturating_add(table.stored_bytes(&clip));
                sums.1 = sums.1.saturating_add(table.columns_bytes(&clip));
            }
        }
        sums
    }

    /// A planner for a subjob that continues at `next`. It reads no outputs of the context.
    ///
    /// # Errors
    /// If an input cannot be read or is damaged, or if the job does not have the subjob.
    pub fn subjob<'a>(
        &self,
        job: &'a Job,
        subjob: u32,
        next: &Point,
        ctx: &'a ExecContext,
    ) -> Result<Planner<'a>, ExecError> {
        Planner::new(job, subjob, &self.plan, next, ctx, None)
    }

    /// As [`Plans::subjob`], for inputs behind a link: `reader` reads pieces of columns ahead. The
    /// reader belongs to this planner alone, and the caller has a task that runs it.
    ///
    /// # Errors
    /// As [`Plans::subjob`].
    pub fn subjob_ahead<'a>(
        &self,
        job: &'a Job,
        subjob: u32,
        next: &Point,
        ctx: &'a ExecContext,
        reader: &Arc<ColumnsAhead>,
    ) -> Result<Planner<'a>, ExecError> {
        Planner::new(job, subjob, &self.plan, next, ctx, Some(reader))
    }
}

/// The survivors of a subjob, chunk by chunk. See the module.
pub struct Planner<'a> {
    ctx: &'a ExecContext,
    subjob: u32,
    chunk: u32,
    chunk_extents: usize,
    /// `None` when nothing is left to plan.
    state: Option<State<'a>>,
    /// The counts to report if the subjob was complete from the start.
    complete: Option<Counters>,
}

struct State<'a> {
    counters: Counters,
    merge: Merge,
    retain: Retain,
    layout: Layout<'a>,
    /// Whether a version of the current user key was kept.
    in_table: bool,
    /// The counts of what was dropped before the current user key.
    dropped: (u64, u64, u64),
}

impl<'a> Planner<'a> {
    pub(super) fn new(
        job: &'a Job,
        subjob: u32,
        plan: &JobPlan,
        next: &Point,
        ctx: &'a ExecContext,
        reader: Option<&Arc<ColumnsAhead>>,
    ) -> Result<Planner<'a>, ExecError> {
        let state = match plan.subjob(job, subjob as usize, next)? {
            None => None,
            Some(SubjobPlan {
                counters,
                runs,
                prefix,
                retain,
                layout,
                ..
            }) => {
                let mut runs = merge_runs(runs, &prefix, job.format.verify, Reads::Columns);
                if let Some(reader) = reader {
                    runs.iter_mut().for_each(|run| run.read_ahead(reader));
                }
                Some(State {
                    counters,
                    merge: Merge::new(runs)?,
                    retain,
                    layout,
                    in_table: false,
                    dropped: (0, 0, 0),
                })
            }
        };
        Ok(Planner {
            ctx,
            subjob,
            chunk: 0,
            chunk_extents: CHUNK_EXTENTS,
            state,
            complete: match next {
                Point::End(counters) => Some(*counters),
                _ => None,
            },
        })
    }

    /// Makes chunks of at most this many extents. The number is raised to 1 if it is 0.
    pub fn set_chunk_extents(&mut self, chunk_extents: usize) {
        self.chunk_extents = chunk_extents.clamp(1, EXTENTS_MAX);
    }
}

impl State<'_> {
    /// Counts what was read since the last call, and waits until the job may read more.
    fn count(&mut self, ctx: &ExecContext) -> Result<(), ExecError> {
        let (entries, raw, bytes) = self.merge.take_counts();
        self.counters.entries_read += entries;
        self.counters.raw_bytes_read += raw;
        self.counters.bytes_read += bytes;
        ctx.progress.entries.fetch_add(entries, Ordering::Relaxed);
        ctx.progress.bytes_in.fetch_add(bytes, Ordering::Relaxed);
        if let Some(throttle) = ctx.throttle.as_ref().filter(|_| bytes > 0) {
            throttle.spent(bytes, &|| ctx.cancel.is_cancelled());
        }
        match ctx.cancel.is_cancelled() {
            true => Err(ExecError::Cancelled),
            false => Ok(()),
        }
    }

    /// Adds survivors to a chunk until it is full. Returns whether the end of the subjob was
    /// reached.
    fn fill(
        &mut self,
        ctx: &ExecContext,
        chunk_extents: usize,
        out: &mut Survivors,
    ) -> Result<bool, ExecError> {
        // The position of the entry that would continue the last extent of this chunk.
        let mut next = None;
        while self.merge.current().is_some() {
            if out.extents.len() >= chunk_extents {
                return Ok(false);
            }
            let new_key = self.merge.note()?;
            let Some(entry) = self.merge.current() else {
                break;
            };
            let (key, trailer) = (entry.key(), entry.trailer());
            let counters = &mut self.counters;
            if new_key {
                self.retain.start_key(key);
                self.in_table = false;
                self.dropped = (counters.shadowed, counters.covered, counters.tombstones);
            }
            match self.retain.judge(key, trailer) {
                Verdict::Keep => {
                    let raw = raw_bytes(key.len(), entry.value_len());
                    let at = entry.position();
                    if !self.in_table {
                        if self.layout.start_key(key).is_some() {
                            let before = counters_before(&self.merge, *counters, self.dropped);
                            out.tables.push((out.extents.len() as u32, before));
                            next = None;
                        }
                        self.in_table = true;
                    }
                    match out.extents.last_mut() {
                        Some(extent) if next == Some(at) => extent.count += 1,
                        _ => out.extents.push(Extent {
                            input: at.0,
                            block: at.1,
                            first: at.2,
                            count: 1,
                        }),
                    }
                    next = Some((at.0, at.1, at.2 + 1));
                    self.layout.add(raw);
                }
                Verdict::Shadowed => counters.shadowed += 1,
                Verdict::Covered => counters.covered += 1,
                Verdict::Tombstone => counters.tombstones += 1,
            }
            if self.merge.advance()? {
                self.count(ctx)?;
            }
        }
        self.count(ctx)?;
        Ok(true)
    }
}

impl SurvivorStream for Planner<'_> {
    /// The memory of the planner's pieces and blocks.
    fn buffer_bytes(&self) -> u64 {
        self.state.as_ref().map_or(0, |s| s.merge.buffer_bytes())
    }

    fn next_chunk(&mut self) -> Result<Option<Survivors>, ExecError> {
        let mut out = Survivors {
            subjob: self.subjob,
            chunk: self.chunk,
            ..Survivors::default()
        };
        let Some(state) = &mut self.state else {
            out.end = self.complete.take();
            return Ok(out.end.is_some().then_some(out));
        };
        if self.ctx.cancel.is_cancelled() {
            return Err(ExecError::Cancelled);
        }
        if state.fill(self.ctx, self.chunk_extents, &mut out)? {
            out.end = Some(state.counters);
            self.state = None;
        }
        self.chunk += 1;
        Ok(Some(out))
    }
}
