//! One subjob: the only path from sorted entries to tables, for flushes and compactions alike.
//!
//! Threading: each subjob has one task. Only counters are shared.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::inputs::merge_runs;
use super::output::{Created, Output};
use super::part::Part;
use super::plan::{JobPlan, SubjobPlan};
use super::{ExecContext, ExecError};
use crate::error::TableError;
use crate::job::outcome::Counters;
use crate::job::{InputKind, Job};
use crate::key::raw_bytes;
use crate::merge::Merge;
use crate::merge::input_run::Reads;
use crate::retain::Verdict;

/// Whether to stop, because the caller cancelled the job or another subjob failed.
pub(super) struct Stop<'a> {
    pub ctx: &'a ExecContext,
    pub abandoned: &'a AtomicBool,
}

impl Stop<'_> {
    pub fn check(&self) -> Result<(), ExecError> {
        if self.ctx.cancel.is_cancelled() || self.abandoned.load(Ordering::Relaxed) {
            return Err(ExecError::Cancelled);
        }
        Ok(())
    }

    /// Reports the bytes that were read and written to the throttle, if there is one, and waits
    /// until the job may continue.
    pub fn spent(&self, bytes: u64) -> Result<(), ExecError> {
        if let Some(throttle) = &self.ctx.throttle {
            throttle.spent(bytes, &|| self.check().is_err());
            self.check()?;
        }
        Ok(())
    }
}

/// The measured memory of a range delete in a job with its fragments, in bytes.
pub(super) const RANGE_DELETE_BYTES: u64 = 400;

/// A subjob's share of its job's buffers, which is subtracted when it ends.
pub(super) struct Buffers<'a> {
    all: &'a AtomicU64,
    own: u64,
}

impl<'a> Buffers<'a> {
    pub fn new(ctx: &'a ExecContext) -> Buffers<'a> {
        Buffers {
            all: &ctx.progress.buffer_bytes,
            own: 0,
        }
    }

    pub fn set(&mut self, bytes: u64) {
        self.all
            .fetch_add(bytes.wrapping_sub(self.own), Ordering::Relaxed);
        self.own = bytes;
    }
}

impl Drop for Buffers<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// The error message if the caller began a subjob whose part is complete.
pub(super) const IS_COMPLETE: &str = "a complete subjob was begun";

/// The counts of what was read and dropped before the current user key of `merge`. No version of
/// this key was kept yet. `counters` contains what was taken from the merge so far. `dropped` are
/// the counts of shadowed entries, covered entries and tombstones before the key.
#[cold]
pub(super) fn counters_before(
    merge: &Merge,
    counters: Counters,
    dropped: (u64, u64, u64),
) -> Counters {
    let (ahead, ahead_raw) = merge.ahead();
    // Versions of this key that were dropped will be read again.
    let again = counters.dropped() - (dropped.0 + dropped.1 + dropped.2);
    Counters {
        entries_read: (counters.entries_read as i64 - ahead) as u64 - again,
        raw_bytes_read: (counters.raw_bytes_read as i64 - ahead_raw) as u64,
        shadowed: dropped.0,
        covered: dropped.1,
        tombstones: dropped.2,
        ..counters
    }
}

/// Runs a subjob to its end, from the point that `part` states. That point must not be the end. The
/// names of created objects are noted in `created` at once, so that they can be deleted whatever
/// happens. Finished tables are added to `part`, so that another attempt can continue after them.
#[inline(never)] // `cargo xtask instructions` counts what happens in here.
pub(super) fn run(
    job: &Job,
    subjob: usize,
    plan: &JobPlan,
    ctx: &ExecContext,
    stop: &Stop<'_>,
    created: &Created,
    part: &mut Part,
) -> Result<(), ExecError> {
    stop.check()?;
    let Some(plan) = plan.subjob(job, subjob, &part.next)? else {
        return Err(TableError::Misuse(IS_COMPLETE).into());
    };
    let SubjobPlan {
        bounds,
        mut counters,
        runs,
        prefix,
        mut retain,
        surviving,
        mut layout,
        ..
    } = plan;
    let mut output = Output::new(job, bounds, surviving, ctx, created, part);

    let runs = merge_runs(runs, &prefix, job.format.verify, Reads::All);
    let mut merge = Merge::new(runs)?;
    // Whether a version of the current user key was kept.
    let mut in_table = false;
    // The counts of what was dropped before the current user key.
    let mut dropped = (0, 0, 0);
    let mut written = 0;
    let fixed = counters.range_deletes_read * RANGE_DELETE_BYTES;
    let mut buffers = Buffers::new(ctx);
    buffers.set(fixed + merge.buffer_bytes());
    let reads_stream = job.inputs.iter().any(|i| i.kind == InputKind::Stream);
    // Counts what was read since the last call. Returns the bytes of tables among it.
    let count = |merge: &mut Merge, counters: &mut Counters| {
        let (entries, raw, bytes) = merge.take_counts();
        counters.entries_read += entries;
        counters.raw_bytes_read += raw;
        counters.bytes_read += bytes;
        let progress = &ctx.progress;
        progress.entries.fetch_add(entries, Ordering::Relaxed);
        let read = if reads_stream { raw } else { bytes };
        progress.bytes_in.fetch_add(read, Ordering::Relaxed);
        bytes
    };
    while merge.current().is_some() {
        let new_key = merge.note()?;
        let Some(entry) = merge.current() else { break };
        let (key, trailer) = (entry.key(), entry.trailer());
        if new_key {
            retain.start_key(key);
            in_table = false;
            dropped = (counters.shadowed, counters.covered, counters.tombstones);
        }
        match retain.judge(key, trailer) {
            Verdict::Keep => {
                let value = entry.value();
                if !in_table {
                    if let Some(start) = layout.start_key(key) {
                        let state = layout.state(key);
                        let before = counters_before(&merge, counters, dropped);
                        output.start_table(start, state, before)?;
                    }
                    in_table = true;
                }
                output.add(key, trailer, value)?;
                layout.add(raw_bytes(key.len(), value.len()));
            }
            Verdict::Shadowed => counters.shadowed += 1,
            Verdict::Covered => counters.covered += 1,
            Verdict::Tombstone => counters.tombstones += 1,
        }
        if merge.advance()? {
            stop.check()?;
            buffers.set(fixed + merge.buffer_bytes() + output.buffer_bytes());
            let bytes = count(&mut merge, &mut counters);
            let before = std::mem::replace(&mut written, output.bytes_written());
            stop.spent(bytes + (written - before))?;
        }
    }
    let bytes = count(&mut merge, &mut counters);
    let (_, all) = output.finish(counters)?;
    stop.spent(bytes + all.saturating_sub(written))
}
