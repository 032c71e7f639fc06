//! One attempt of a job: a side executes it, and the engine verifies what came back.
//!
//! Invariant: an outcome that leaves this module is verified. Its structure is always verified. If
//! an executor other than the host's own made any of its tables, tables are read back and ranges of
//! them are compared with the inputs. The tables of a flush are compared with the memtable
//! (`flush_verify`).
//!
//! Threading: any task; no lock is held.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{ReadPurpose, Storage, planted};
use siltstone_table::exec::{CancelToken, ExecContext, ExecError, Executor, PartDone, Progress};
use siltstone_table::job::fragments::verify_range_deletes;
use siltstone_table::job::outcome::{Outcome, OutputTable};
use siltstone_table::job::ranges::{RangeSample, SAMPLED_PER_MILLE, verify_ranges};
use siltstone_table::job::verify::{
    AskStorage, Rejected, Sample, verify_outcome, verify_stream, verify_tables_until,
};
use siltstone_table::job::{Job, OutputPrefix};

use crate::env::reading_for::{inputs_for, storage_for};
use crate::env::repeating::repeating_inputs;
use crate::jobs::begun::Begun;
use crate::jobs::build::FlushSpec;
use crate::jobs::carry_over::CarryOver;
use crate::jobs::ended::{Ended, rejection};
use crate::jobs::gate::Gate;
use crate::jobs::rate::Spender;
use crate::jobs::runner::JobRunner;
use crate::jobs::sides::{SideId, guarded};
use crate::jobs::work::RemarkCell;
use crate::tree::memtable::Memtable;
use crate::types::error::{self, Error, ErrorKind};
use crate::types::limits::KeyspaceId;
use crate::types::options::KeyspaceSettings;

/// The maximum number of blocks of each table that are read back as blocks if its executor is not
/// the host's own. Of small tables a share is read back, because [`verify_ranges`] also reads
/// places of each table.
const SAMPLED_BLOCKS: usize = 8;

/// See the module.
pub(crate) struct Attempt {
    pub(crate) side: SideId,
    /// The location of its outputs.
    pub(crate) location: u32,
    /// The prefix of the names of its outputs.
    pub(crate) output: OutputPrefix,
    pub(crate) progress: Arc<Progress>,
    pub(crate) cancel: CancelToken,
    /// The gate between an executor that is not the host's own and the store. Side `host` has one
    /// if another executor runs the job in place of the host's cores.
    pub(crate) gate: Option<Arc<Gate>>,
    /// Tables that earlier attempts of the job took over.
    pub(crate) adopted_before: u64,
}

/// An attempt that is ready to be executed. It holds nothing of the store except what the executor
/// may use.
pub(crate) struct PreparedJob {
    executor: Arc<dyn Executor>,
    name: String,
    is_host: bool,
    job: Job,
    context: ExecContext,
}

impl PreparedJob {
    /// Runs the job on the executor. If an executor that is not the host's own panics, the attempt
    /// has failed.
    pub(crate) fn execute(&self) -> Result<Outcome, Ended> {
        let run = || self.executor.run(&self.job, &self.context);
        if self.is_host {
            return Ok(run()?);
        }
        let panicked = || {
            let message = format!("the executor {} panicked", self.name);
            Ended::Failed(Error::new(ErrorKind::Io, message).advice("report it to its makers"))
        };
        Ok(guarded(&self.context.runtime, run).ok_or_else(panicked)??)
    }
}

impl JobRunner {
    /// Flushes a memtable before the store exists, when nobody reads and there are no snapshots.
    /// Returns the location of the tables: the first one that has room.
    pub(crate) fn flush_for_recovery(
        &self,
        keyspace: KeyspaceId,
        settings: &KeyspaceSettings,
        mem: &Arc<Memtable>,
        published: u64,
    ) -> error::Result<(u32, Vec<OutputTable>)> {
        let at = |location| -> error::Result<(u32, Vec<OutputTable>)> {
            let tables = self.recover_at(location, keyspace, settings, mem, published)?;
            Ok((location, tables))
        };
        match (at(0), self.other_location()) {
            (Err(error), Some(other)) if error.is_no_space() => at(other).map_err(|failed| {
                tracing::warn!(error = %failed, "nor could a table be made at location {other}");
                error
            }),
            (flushed, _) => flushed,
        }
    }

    fn recover_at(
        &self,
        location: u32,
        keyspace: KeyspaceId,
        settings: &KeyspaceSettings,
        mem: &Arc<Memtable>,
        published: u64,
    ) -> error::Result<Vec<OutputTable>> {
        let spec = FlushSpec {
            keyspace,
            settings,
            mem,
            published,
            snapshots: Vec::new(),
            soft_cuts: Vec::new(),
        };
        let Some(begun) = self.begin_flush(&spec) else {
            return Ok(Vec::new());
        };
        let attempt = Attempt {
            side: self.sides.host(),
            location,
            output: self.next_prefix(),
            progress: Arc::default(),
            cancel: CancelToken::new(),
            gate: None,
            adopted_before: 0,
        };
        let outcome = self.run_attempt(&attempt, &begun);
        Ok(outcome.map_err(Ended::into_error)?.tables)
    }

    /// Executes a job and verifies its outcome.
    pub(crate) fn run_attempt(&self, attempt: &Attempt, begun: &Begun) -> Result<Outcome, Ended> {
        let outcome = self.prepare(attempt, begun, &Arc::default()).execute()?;
        self.verify(attempt, begun, &outcome, None)?;
        Ok(outcome)
    }

    /// The executor that may run a job in place of the host's cores. There is none for flushes.
    pub(crate) fn separated_for(&self, begun: &Begun) -> Option<&Arc<dyn Executor>> {
        let separated = self.separated.as_ref();
        separated.filter(|_| begun.compared.is_none())
    }

    /// Whether the host's own cores run the attempt.
    pub(crate) fn is_host(&self, attempt: &Attempt) -> bool {
        attempt.side == self.sides.host() && attempt.gate.is_none()
    }

    /// The executor of an attempt, and its name.
    fn executor_of(&self, attempt: &Attempt) -> (&Arc<dyn Executor>, &str) {
        match &self.separated {
            Some(executor) if attempt.side == self.sides.host() && attempt.gate.is_some() => {
                (executor, "separated")
            }
            _ => (
                self.sides.executor(attempt.side),
                self.sides.name(attempt.side),
            ),
        }
    }

    /// Prepares an attempt of a job.
    pub(crate) fn prepare(
        &self,
        attempt: &Attempt,
        begun: &Begun,
        remarks: &Arc<RemarkCell>,
    ) -> PreparedJob {
        let (inputs, outputs) = match &attempt.gate {
            Some(gate) => (gate.inputs(), gate.outputs(self.outputs_elsewhere())),
            None => (
                repeating_inputs(begun.inputs.clone(), &self.outage),
                self.outputs_at(attempt.location).clone(),
            ),
        };
        let inputs = inputs_for(ReadPurpose::Compaction, inputs);
        let is_host = self.is_host(attempt);
        let context = ExecContext {
            runtime: self.runtime.clone(),
            inputs,
            outputs,
            epoch: self.epoch,
            store: self.store,
            progress: attempt.progress.clone(),
            cancel: attempt.cancel.clone(),
            max_parallel: self.tasks(attempt.side),
            throttle: Some(Arc::new(Spender {
                limit: self.rate.clone(),
                // Writers wait for flushes, so flushes do not wait.
                waits: begun.compared.is_none(),
                progress: attempt.progress.clone(),
                relief: begun.relief.clone(),
                pauses: begun.pauses.clone().filter(|_| is_host),
                reported_bytes: AtomicU64::new(0),
            })),
            handover: begun.handover.clone(),
            part_listener: None,
            remarks: Some(remarks.clone()),
            subjob_order: self.subjob_order,
            columns_first: self.columns_first && is_host,
            syncs_folder: attempt.location == 0 || !planted!(RedirectedFolderIsNotSynced),
        };
        let (executor, name) = self.executor_of(attempt);
        PreparedJob {
            executor: executor.clone(),
            name: name.to_string(),
            is_host,
            job: begun.attempt(attempt.output.clone()),
            context,
        }
    }

    /// Verifies an outcome. If it is foreign, its tables are opened through `carry_over`. If the
    /// outcome is not believed, its tables are deleted.
    pub(crate) fn verify(
        &self,
        attempt: &Attempt,
        begun: &Begun,
        outcome: &Outcome,
        carry_over: Option<&CarryOver>,
    ) -> Result<(), Ended> {
        let job = begun.attempt(attempt.output.clone());
        let made_by = self.made_by(attempt, begun);
        let is_whole =
            self.is_foreign(attempt, begun) && made_by.iter().any(|side| self.checks_whole(*side));
        let set = |checks_whole: bool| {
            let sides = made_by.iter();
            sides.for_each(|side| self.set_checks_whole(*side, checks_whole));
        };
        let carried = carry_over.map(CarryOver::storage);
        let to_verify = self.outputs_at(attempt.location).clone();
        let to_verify = storage_for(ReadPurpose::Verify, to_verify);
        let outputs = carried.unwrap_or(&*to_verify);
        let verified = self.check(attempt, begun, &job, outcome, (outputs, is_whole));
        match &verified {
            // A sample of an outcome does not show that the side is honest again.
            Ok(()) if !is_whole => {}
            Err(Ended::Rejected(_)) => set(true),
            Ok(()) => set(false),
            Err(_) => {}
        }
        if verified.is_err() {
            self.discard_outputs(attempt, outcome);
        }
        verified
    }

    /// The sides that may have made tables of an outcome, other than the host's own executor.
    fn made_by(&self, attempt: &Attempt, begun: &Begun) -> BTreeSet<SideId> {
        let own = (!self.is_host(attempt)).then_some(attempt.side);
        own.into_iter().chain(begun.left_by()).collect()
    }

    /// Deletes the tables of an outcome that is not believed.
    pub(crate) fn discard_outputs(&self, attempt: &Attempt, outcome: &Outcome) {
        self.discard_names(attempt.location, outcome.names_of(&attempt.output));
    }

    fn check(
        &self,
        attempt: &Attempt,
        begun: &Begun,
        job: &Job,
        outcome: &Outcome,
        (outputs, is_whole): (&dyn Storage, bool),
    ) -> Result<(), Ended> {
        let mut verified = verify_outcome(job, outcome);
        if verified.is_ok() && self.is_foreign(attempt, begun) {
            verified = self.check_foreign(attempt, begun, job, outcome, (outputs, is_whole))?;
        }
        if let Some((stream, sample)) = &begun.compared
            && verified.is_ok()
            && *sample != Sample::None
        {
            let compared =
                verify_stream(job, outcome, &**stream, outputs, *sample, &attempt.cancel);
            verified = compared.map_err(|error| match error {
                ExecError::Failed(error) => {
                    Ended::Failed(Error::from(error).context("reading a flushed table back"))
                }
                ExecError::Cancelled | ExecError::Declined { .. } => Ended::Cancelled,
            })?;
        }
        verified.map_err(|rejected| {
            let (_, executor) = self.executor_of(attempt);
            Ended::Rejected(rejection(&rejected.reason, executor))
        })
    }

    /// Whether an executor other than the host's own made tables of the outcome. The host's own
    /// executor syncs and checks what it writes.
    pub(crate) fn is_foreign(&self, attempt: &Attempt, begun: &Begun) -> bool {
        !self.is_host(attempt) || begun.is_foreign() && !planted!(ForeignTablesAreBelieved)
    }

    /// The number of subjobs, from the first one on, that the host's own executor ran as its part
    /// of a divided job.
    fn own_subjobs(&self, attempt: &Attempt, begun: &Begun, job: &Job) -> usize {
        if !self.is_divided || attempt.side == self.sides.host() || begun.is_foreign() {
            return 0;
        }
        // Here the engine's own executor divides jobs, so what it reports is true.
        let [host, other] = &attempt.progress.divided;
        let has_part = |part: &PartDone| part.bytes_in.load(Ordering::Relaxed) > 0;
        match (has_part(host), has_part(other)) {
            (true, false) => job.subjobs(),
            (true, true) if job.subjobs() == 2 => 1,
            _ => 0,
        }
    }

    /// Checks tables that an executor other than the host's own made: that they are synced, some
    /// blocks of each table, its range deletes, and some ranges of its contents. With `is_whole`,
    /// all blocks and all ranges are checked.
    fn check_foreign(
        &self,
        attempt: &Attempt,
        begun: &Begun,
        job: &Job,
        outcome: &Outcome,
        (outputs, is_whole): (&dyn Storage, bool),
    ) -> Result<Result<(), Rejected>, Ended> {
        let epoch = self.epoch;
        let failed = |e| Ended::Failed(Error::from(e).context("reading an executor's table back"));
        let (sample, ranges) = match is_whole {
            true => (Sample::All, RangeSample::All),
            false => {
                // The executor could not know these places when it made the tables.
                let seed = self.runtime.random_u64();
                let sample = Sample::Share {
                    per_mille: SAMPLED_PER_MILLE,
                    most: SAMPLED_BLOCKS,
                    seed,
                };
                (sample, RangeSample::drawn(seed))
            }
        };
        let synced = AskStorage {
            storage: outputs,
            epoch,
        };
        let cancel = &attempt.cancel;
        let ended = |error| match error {
            ExecError::Failed(error) => failed(error),
            ExecError::Cancelled | ExecError::Declined { .. } => Ended::Cancelled,
        };
        // The host's own executor, which made the first part of a divided job, syncs and checks
        // what it writes.
        let own_count = match is_whole {
            true => 0,
            false => self.own_subjobs(attempt, begun, job),
        };
        let part;
        let (job, outcome) = match own_count {
            0 => (job, outcome),
            all if all == job.subjobs() => return Ok(Ok(())),
            first => {
                part = part_after(job, outcome, first);
                (&part.0, &part.1)
            }
        };
        let verified = verify_tables_until(job, outcome, outputs, &synced, sample, cancel);
        let verified = verified.map_err(ended)?;
        if verified.is_err() {
            return Ok(verified);
        }
        let inputs = repeating_inputs(begun.inputs.clone(), &self.outage);
        let inputs = &*inputs_for(ReadPurpose::Verify, inputs);
        let verified = verify_range_deletes(job, outcome, inputs, outputs).map_err(failed)?;
        // A flush is compared with its memtable below, unless the options say otherwise.
        let is_compared = |(_, sample): &(_, Sample)| *sample != Sample::None;
        let is_compared = begun.compared.as_ref().is_some_and(is_compared);
        if verified.is_err() || is_compared && !is_whole {
            return Ok(verified);
        }
        let checked = verify_ranges(job, outcome, inputs, outputs, ranges, cancel);
        Ok(checked.map_err(ended)?.map(|checked| {
            self.checked.place_count.add(checked.places);
            self.checked.bytes.add(checked.bytes);
        }))
    }
}

/// A job without its first subjobs, and the part of its outcome that belongs to it.
fn part_after(job: &Job, outcome: &Outcome, first: usize) -> (Job, Outcome) {
    let part = job.part(first..job.subjobs(), job.output.clone());
    let first = first as u32;
    let tables = outcome.tables.iter().filter(|table| table.subjob >= first);
    let shifted = |table: &OutputTable| OutputTable {
        subjob: table.subjob - first,
        ..table.clone()
    };
    let tables = tables.map(shifted).collect();
    let outcome = Outcome {
        tables,
        ..outcome.clone()
    };
    (part, outcome)
}
