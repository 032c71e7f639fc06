//! The output side of a job: the tables of its subjobs, and what becomes of them when the job ends.
//!
//! A [`JobOutput`] belongs to one attempt of a job. It creates the tables under the attempt's names
//! and remembers each name, so that an attempt without an outcome can delete what it made (E4). The
//! host's executor has one. An executor that computes blocks elsewhere has one too, and writes each
//! subjob through a [`SubjobOutput`], which gives it a [`TableAssembler`] for each table.
//!
//! Such an executor, in this order:
//! 1. takes over what an earlier attempt left ([`JobOutput::adopt`]). Without this, the attempt
//!    leaves nothing either, because that would replace the tables that were left before;
//! 2. runs each subjob from the point of its part: it starts a table wherever the layout says so,
//!    gives the table its blocks, counts and filter, and ends the subjob;
//! 3. calls [`JobOutput::finish`] with the parts of all subjobs, or else [`JobOutput::leave`] or
//!    [`JobOutput::discard`].
//!
//! Invariants: the name of an object is noted before anything else can fail. Every finished table
//! is synced. Destructors make no storage calls, so an output that is only dropped leaves its
//! objects behind, as orphans.
//!
//! Threading: a [`JobOutput`] is shared by the tasks of an attempt. Each [`SubjobOutput`] has one
//! owner.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use siltstone_storage::{StorageErrorKind, planted};

use super::handover::Handover;
use super::output::{Created, Output, delete_names};
use super::part::{Part, Point};
use super::plan::SubjobPlan;
use super::{ExecContext, ExecError};
use crate::assembly::TableAssembler;
use crate::error::TableError;
use crate::job::Job;
use crate::job::outcome::{Counters, Outcome};
use crate::job::verify::{Sample, TrustSyncs, verify_tables_until};
use crate::layout::{LayoutState, TableStart};

/// The number of blocks of each adopted table that are verified.
const ADOPTED_BLOCKS: usize = 8;

/// The outputs of an attempt of a job. See the module.
pub struct JobOutput {
    job: Job,
    ctx: ExecContext,
    created: Created,
    /// What an earlier attempt left was taken over.
    has_adopted: AtomicBool,
}

impl JobOutput {
    /// The outputs of an attempt that has created nothing yet. The attempt's names are those of
    /// [`Job::output`].
    pub fn new(job: &Job, ctx: &ExecContext) -> JobOutput {
        JobOutput {
            job: job.clone(),
            ctx: ctx.clone(),
            created: Created::new(&ctx.runtime),
            has_adopted: AtomicBool::new(false),
        }
    }

    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The context in which the job runs.
    pub fn context(&self) -> &ExecContext {
        &self.ctx
    }

    pub(super) fn created(&self) -> &Created {
        &self.created
    }

    /// Takes over the tables that an earlier attempt of the job left in the handover, under this
    /// attempt's names, and returns them by subjob. They are verified like foreign tables. Tables
    /// that fail are deleted, to be made again, and so are those that are not verified yet when the
    /// job is cancelled. Call this at most once, before any subjob begins.
    pub fn adopt(&self) -> BTreeMap<u32, Part> {
        self.has_adopted.store(true, Ordering::Relaxed);
        match &self.ctx.handover {
            Some(handover) => self.adopt_from(handover),
            None => BTreeMap::new(),
        }
    }

    fn adopt_from(&self, handover: &Handover) -> BTreeMap<u32, Part> {
        let (job, ctx) = (&self.job, &self.ctx);
        let delete_all = |part: &Part| delete_names(part.tables.iter().map(|t| &t.name[..]), ctx);
        let mut adopted = BTreeMap::new();
        let parts = match handover.take(job.identity()) {
            Ok(parts) => parts,
            Err(others) => {
                delete_names(others.iter().map(String::as_str), ctx);
                return adopted;
            }
        };
        for mut part in parts.into_iter().filter(|p| !p.tables.is_empty()) {
            // Two parts of one subjob cannot both be continued, so one of them is wrong.
            if part.check(job).is_err() || adopted.contains_key(&part.subjob) {
                delete_all(&part);
                continue;
            }
            if !self.rename(&mut part) {
                delete_all(&part);
                continue;
            }
            let bytes = part.tables.iter().map(|t| t.file_bytes).sum();
            let count = part.tables.len();
            ctx.progress.bytes_out.fetch_add(bytes, Ordering::Relaxed);
            ctx.progress
                .tables
                .fetch_add(count as u64, Ordering::Relaxed);
            handover.note_adopted(count);
            ctx.note_finished(&part);
            adopted.insert(part.subjob, part);
        }
        adopted
    }

    /// Verifies the tables of a part and gives them this attempt's names. Returns false if they
    /// cannot be adopted.
    fn rename(&self, part: &mut Part) -> bool {
        let (job, ctx) = (&self.job, &self.ctx);
        let claimed = Outcome {
            tables: part.tables.clone(),
            ..Outcome::default()
        };
        let sample = Sample::Blocks(ADOPTED_BLOCKS);
        let outputs = &*ctx.outputs;
        let verified =
            verify_tables_until(job, &claimed, outputs, &TrustSyncs, sample, &ctx.cancel);
        let mut holds = matches!(verified, Ok(Ok(())));
        for (number, table) in part.tables.iter_mut().enumerate() {
            let name = job.table_name(part.subjob, number as u32);
            if holds && name != table.name {
                self.created.note(&name);
                // The `sync_dir` at the end of the job makes the rename durable.
                holds = ctx.outputs.rename(ctx.epoch, &table.name, &name).is_ok();
                if !holds {
                    delete_names([&name[..]], ctx);
                }
            } else if holds {
                self.created.note(&name);
            }
            if holds {
                table.name = name;
            }
        }
        holds
    }

    /// The output of a subjob that continues at the point of `part`, for which `plan` was made.
    /// Finished tables are added to `part`.
    pub fn subjob<'a>(&'a self, plan: &SubjobPlan<'_>, part: &'a mut Part) -> SubjobOutput<'a> {
        SubjobOutput {
            output: Output::new(
                &self.job,
                plan.bounds.clone(),
                plan.surviving.clone(),
                &self.ctx,
                &self.created,
                part,
            ),
        }
    }

    /// Ends an attempt whose subjobs are all complete: syncs the folder, unless the caller of the
    /// job does that, and returns the outcome. `parts` are those of all subjobs, in any order. The
    /// processor time in the outcome is 0, and the executor sets it. If this fails, the tables are
    /// left or deleted as by [`JobOutput::leave`].
    ///
    /// # Errors
    /// If the folder cannot be synced. A `Misuse` if `parts` are not those of all subjobs, or not
    /// all complete.
    pub fn finish(&self, mut parts: Vec<Part>) -> Result<Outcome, ExecError> {
        parts.sort_by_key(|part| part.subjob);
        let outcome = self.outcome(&parts);
        if let Err(error) = &outcome {
            self.leave(error, parts);
        }
        outcome
    }

    fn outcome(&self, parts: &[Part]) -> Result<Outcome, ExecError> {
        let mut outcome = Outcome {
            job: self.job.identity(),
            output: self.job.output.clone(),
            ..Outcome::default()
        };
        if !(0..self.job.subjobs()).eq(parts.iter().map(|part| part.subjob as usize)) {
            return Err(TableError::Misuse("a job ends with one part of each subjob").into());
        }
        for part in parts {
            let Point::End(counters) = &part.next else {
                return Err(TableError::Misuse("a job ends when its subjobs are complete").into());
            };
            outcome.tables.extend(part.tables.iter().cloned());
            outcome.counters.add(counters);
        }
        let is_synced_here = self.ctx.syncs_folder && !planted!(FolderIsNotSynced);
        if !outcome.tables.is_empty() && is_synced_here {
            let synced = self.ctx.outputs.sync_dir(self.ctx.epoch);
            synced.inspect_err(|_| self.created.note_failed_sync(&self.ctx))?;
        }
        Ok(outcome)
    }

    /// Ends an attempt that failed with `error`: leaves the finished tables of `parts` to the next
    /// attempt, if there can be one, and deletes all other objects. `parts` contain those that were
    /// adopted and not continued. No task may work on the outputs any more.
    pub fn leave(&self, error: &ExecError, mut parts: Vec<Part>) {
        let storage_said = match error {
            ExecError::Failed(TableError::Storage(error)) => Some(error),
            _ => None,
        };
        // On a full disk, finished tables would keep space that a flush or the log may need.
        // Without the lease, the files may belong to another writer.
        let in_the_way =
            storage_said.is_some_and(|e| e.is_no_space() || e.kind == StorageErrorKind::Fenced);
        let may_leave = self.has_adopted.load(Ordering::Relaxed)
            && !in_the_way
            && !self.created.has_failed_sync();
        let Some(handover) = self.ctx.handover.as_ref().filter(|_| may_leave) else {
            return self.discard();
        };
        parts.retain(|part| !part.tables.is_empty());
        let kept: BTreeSet<&str> = parts
            .iter()
            .flat_map(|p| p.tables.iter().map(|t| &t.name[..]))
            .collect();
        self.created.delete_all_but(&self.ctx, &kept);
        let names = handover.leave(self.job.identity(), parts);
        delete_names(names.iter().map(String::as_str), &self.ctx);
    }

    /// Ends an attempt of which nothing is to be kept: deletes all objects that it created, as far
    /// as the storage allows it. No task may work on the outputs any more.
    pub fn discard(&self) {
        self.created.delete_all_but(&self.ctx, &BTreeSet::new());
    }
}

/// The tables of a subjob whose blocks are computed elsewhere. See the module.
pub struct SubjobOutput<'a> {
    output: Output<'a, TableAssembler>,
}

impl SubjobOutput<'_> {
    /// Finishes the open table, if there is one, and starts the next one where
    /// [`Layout::start_key`](crate::layout::Layout::start_key) returned `start` and
    /// [`Layout::state`](crate::layout::Layout::state) returned `layout`. `counters` are the counts
    /// of what was read and dropped before this key, for an attempt that continues here. The open
    /// table must have all of its blocks, its counts and its filter.
    ///
    /// # Errors
    /// If the open table is not complete or cannot be written, or if the next one cannot be
    /// created.
    pub fn start_table(
        &mut self,
        start: TableStart<'_>,
        layout: LayoutState,
        counters: Counters,
    ) -> Result<(), ExecError> {
        self.output.start_table(start, layout, counters)
    }

    /// The open table, if one was started. Its range deletes and its left bound are set when it is
    /// finished.
    pub fn table(&mut self) -> Option<&mut TableAssembler> {
        self.output.table()
    }

    /// The number of bytes given to the storage so far, including those of the open table.
    pub fn bytes_written(&self) -> u64 {
        self.output.bytes_written()
    }

    /// The memory of the open table, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.output.buffer_bytes()
    }

    /// Finishes the last table, and completes the part. If the subjob keeps no entries, this makes
    /// a table for the fragments alone, if there are any. `counters` are the counts of everything
    /// that the subjob read and dropped; what it wrote is added to them. Returns them, and the
    /// number of bytes that were written since the part was continued.
    ///
    /// # Errors
    /// If the open table is not complete, or cannot be written.
    pub fn finish(self, counters: Counters) -> Result<(Counters, u64), ExecError> {
        self.output.finish(counters)
    }
}
