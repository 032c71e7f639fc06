//! One subjob: the only path from sorted entries to tables, for flushes and compactions alike.
//!
//! Threading: each subjob has one task. Only counters are shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::output::{Created, Output};
use super::part::{Part, Point};
use super::{ExecContext, ExecError};
use crate::error::TableError;
use crate::job::outcome::Counters;
use crate::job::{Input, InputKind, Job, KeyBounds};
use crate::key::{common_prefix, raw_bytes};
use crate::layout::Layout;
use crate::merge::Merge;
use crate::merge::input_run::{InputRun, Origin, RunInput};
use crate::merge::table::InputTable;
use crate::retain::{RangeDelete, Retain, Stripes, Verdict, fragment};

/// Whether to stop, because the caller cancelled the job or another subjob failed.
pub(super) struct Stop<'a> {
    pub ctx: &'a ExecContext,
    pub abandoned: &'a AtomicBool,
}

impl Stop<'_> {
    fn check(&self) -> Result<(), ExecError> {
        if self.ctx.cancel.is_cancelled() || self.abandoned.load(Ordering::Relaxed) {
            return Err(ExecError::Cancelled);
        }
        Ok(())
    }

    /// Reports the bytes that were read and written to the throttle, if there is one, and waits
    /// until the job may continue.
    fn spent(&self, bytes: u64) -> Result<(), ExecError> {
        if let Some(throttle) = &self.ctx.throttle {
            throttle.spent(bytes, &|| self.check().is_err());
            self.check()?;
        }
        Ok(())
    }
}

/// The inputs of a subjob: runs of inputs, range deletes, and the common prefix of all keys.
struct Opened {
    runs: Vec<Vec<RunInput>>,
    range_deletes: Vec<RangeDelete>,
    prefix: Arc<[u8]>,
}

/// A common prefix of all keys, computed from first and last keys.
#[derive(Default)]
struct Prefix(Option<Vec<u8>>);

impl Prefix {
    fn include(&mut self, key: &[u8]) {
        match &mut self.0 {
            Some(prefix) => prefix.truncate(common_prefix(prefix, key)),
            None => self.0 = Some(key.to_vec()),
        }
    }
}

/// Opens the inputs for entries from `first_key` on (if the subjob continues an earlier attempt),
/// and the range deletes of the whole subjob.
fn open_inputs(
    job: &Job,
    bounds: &KeyBounds,
    first_key: Option<&[u8]>,
    ctx: &ExecContext,
) -> Result<Opened, ExecError> {
    let ahead = KeyBounds {
        start: first_key.unwrap_or(&[]).to_vec(),
        end: None,
    };
    // Runs are sorted by their numbers, so that a job's tables do not depend on the order in which
    // its inputs are listed.
    let mut order: Vec<usize> = (0..job.inputs.len()).collect();
    order.sort_by_key(|i| job.inputs[*i].run);
    let mut runs: Vec<Vec<RunInput>> = Vec::new();
    let mut last_run = None;
    let mut range_deletes = Vec::new();
    let mut prefix = Prefix::default();
    for i in order {
        let input = &job.inputs[i];
        let clip = input.clip.intersect(bounds);
        if clip.is_empty() {
            continue;
        }
        let mut run_input = RunInput {
            name: input.name.clone(),
            origin: match input.kind {
                InputKind::Table => {
                    let file = ctx.inputs.table(input.location, &input.name)?;
                    Origin::Table(Arc::new(InputTable::open(file)?))
                }
                InputKind::Stream => {
                    Origin::Stream(ctx.inputs.stream(input.location, &input.name)?)
                }
                InputKind::Unsorted => {
                    return Err(ExecError::declined("unsorted inputs are not supported yet"));
                }
            },
            bounds: clip.intersect(&ahead),
            seqs: (input.min_seq, input.max_seq),
            seq_override: input.seq_override,
        };
        let found: Vec<RangeDelete>;
        match &run_input.origin {
            Origin::Table(table) => {
                super::output::check_identity(input, table)?;
                match table.key_bounds() {
                    Some((first, last)) => {
                        let after = run_input
                            .bounds
                            .end
                            .as_deref()
                            .is_some_and(|end| end <= first);
                        if !after && run_input.bounds.start.as_slice() <= last {
                            prefix.include(first);
                            prefix.include(last);
                        } else {
                            run_input.bounds = KeyBounds {
                                start: Vec::new(),
                                end: Some(Vec::new()),
                            };
                        }
                    }
                    None => {
                        run_input.bounds = KeyBounds {
                            start: Vec::new(),
                            end: Some(Vec::new()),
                        }
                    }
                }
                found = table.range_deletes().fragments().to_vec();
            }
            Origin::Stream(stream) => {
                match stream.key_bounds() {
                    Some((first, last)) => {
                        prefix.include(&first);
                        prefix.include(&last);
                    }
                    None => prefix.include(&[]),
                }
                found = stream.range_deletes()?;
            }
        }
        range_deletes.extend(input_range_deletes(input, &clip, found)?);
        if run_input.bounds.is_empty() {
            continue;
        }
        if last_run == Some(input.run)
            && let Some(run) = runs.last_mut()
        {
            run.push(run_input);
        } else {
            runs.push(vec![run_input]);
            last_run = Some(input.run);
        }
    }
    for run in &mut runs {
        sort_run(run)?;
    }
    Ok(Opened {
        runs,
        range_deletes,
        prefix: prefix.0.unwrap_or_default().into(),
    })
}

/// The range deletes `found` in an input as its job sees them: clipped to `clip`, and with the
/// sequence number that the job gives to all entries of the input, if it gives one.
///
/// # Errors
/// `TableError::Corruption` if a number is not in the range that the job states for the input.
pub(crate) fn input_range_deletes(
    input: &Input,
    clip: &KeyBounds,
    found: Vec<RangeDelete>,
) -> Result<Vec<RangeDelete>, TableError> {
    let mut own = Vec::with_capacity(found.len());
    for mut r in found {
        r.start = r.start.max(clip.start.clone());
        if let Some(end) = &clip.end {
            r.end = r.end.min(end.clone());
        }
        r.seq = input.seq_override.unwrap_or(r.seq);
        if r.seq > input.max_seq || r.seq < input.min_seq {
            let what = "sequence number of a range delete";
            let damage = crate::error::Damage::new(what, 0, input.max_seq, r.seq);
            return Err(damage.in_file(&input.name, 0));
        }
        if r.start < r.end {
            own.push(r);
        }
    }
    Ok(own)
}

/// Sorts the tables of a run by key. A stream must be a run of its own.
fn sort_run(run: &mut [RunInput]) -> Result<(), ExecError> {
    if run.len() < 2 {
        return Ok(());
    }
    let first = |run_input: &RunInput| match &run_input.origin {
        Origin::Table(table) => table.key_bounds().map(|(first, _)| first.to_vec()),
        Origin::Stream(_) => None,
    };
    if run.iter().any(|run_input| first(run_input).is_none()) {
        return Err(TableError::Misuse(
            "a stream shares its run number with another input of the job",
        )
        .into());
    }
    run.sort_by_cached_key(|run_input| (first(run_input), run_input.bounds.start.clone()));
    Ok(())
}

/// The measured memory of a range delete in a job with its fragments, in bytes.
const RANGE_DELETE_BYTES: u64 = 400;

/// A subjob's share of its job's buffers, which is subtracted when it ends.
struct Buffers<'a> {
    all: &'a AtomicU64,
    own: u64,
}

impl Buffers<'_> {
    fn set(&mut self, bytes: u64) {
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

/// Runs a subjob to its end, from the point that `part` states. The names of created objects go to
/// `created` at once, so that they can be deleted whatever happens. Finished tables go to `part`,
/// so that another attempt can continue after them.
pub(super) fn run(
    job: &Job,
    subjob: usize,
    ctx: &ExecContext,
    stop: &Stop<'_>,
    created: &Created,
    part: &mut Part,
) -> Result<Counters, ExecError> {
    stop.check()?;
    let bounds = job.subjob_bounds(subjob);
    let (goes_on_at, mut counters) = match &part.next {
        Point::Start => (None, Counters::default()),
        Point::Table {
            layout, counters, ..
        } => (Some(layout.clone()), *counters),
        Point::End(counters) => return Ok(*counters),
    };
    let first_key = goes_on_at.as_ref().map(|l| &l.first_key[..]);
    let opened = open_inputs(job, &bounds, first_key, ctx)?;
    counters.range_deletes_read = opened.range_deletes.len() as u64;
    let stripes = Stripes::new(&job.snapshots, job.published);
    let fragments = fragment(
        &opened.range_deletes,
        &stripes,
        &bounds.start,
        bounds.end.as_deref(),
    );
    drop(opened.range_deletes);
    let mut retain = Retain::new(job.rules, stripes, &job.older, fragments);
    let (surviving, dropped) = retain.surviving_fragments();
    counters.fragments_dropped = dropped;
    let soft_cuts = job.subjob_soft_cuts(&bounds);
    let mut layout = match &goes_on_at {
        None => Layout::new(job.limits.layout, soft_cuts),
        Some(state) => Layout::resume(job.limits.layout, soft_cuts, state),
    };
    let mut output = Output::new(
        job,
        subjob as u32,
        &bounds,
        surviving,
        ctx,
        created,
        &mut *part,
    );

    let verify = job.format.verify;
    let runs = opened
        .runs
        .into_iter()
        .map(|inputs| InputRun::new(inputs, opened.prefix.clone(), verify));
    let mut merge = Merge::new(runs.collect())?;
    // Whether a version of the current user key was kept.
    let mut in_table = false;
    // The counts of what was dropped before the current user key.
    let mut dropped = (0, 0, 0);
    let mut written = 0;
    let fixed = counters.range_deletes_read * RANGE_DELETE_BYTES;
    let mut buffers = Buffers {
        all: &ctx.progress.buffer_bytes,
        own: 0,
    };
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
                        let (ahead, ahead_raw) = merge.ahead();
                        // Versions of this key that were dropped will be read again.
                        let again = counters.dropped() - (dropped.0 + dropped.1 + dropped.2);
                        let before = Counters {
                            entries_read: (counters.entries_read as i64 - ahead) as u64 - again,
                            raw_bytes_read: (counters.raw_bytes_read as i64 - ahead_raw) as u64,
                            shadowed: dropped.0,
                            covered: dropped.1,
                            tombstones: dropped.2,
                            ..counters
                        };
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
    let all = output.finish()?;
    for table in &part.tables {
        counters.entries_written += table.entries;
        counters.bytes_written += table.file_bytes;
    }
    part.next = Point::End(counters);
    stop.spent(bytes + all.saturating_sub(written))?;
    Ok(counters)
}
