//! The steps of a piece of work after a task has taken it: its job begins, is executed and
//! verified, and its result is installed, counted and reported.
//!
//! [`Jobs::run`] takes all steps on the host, for flushes and compactions alike. For a job on
//! another side, the task of its slot takes the same steps one by one. A failed compaction can run
//! again, and resumes after the tables that its last attempt finished.
//!
//! Invariants: F1 the log is synced through the memtable's last record before a flush is installed.
//! A flush is not installed before a part of its tables (`flush_verify`) was read back and compared
//! with the memtable. Until then the log holds the memtable's entries.
//!
//! Threading: any task; the manifest role orders the edits.

use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_table::exec::RemarkListener;
use siltstone_table::job::outcome::{Counters, Outcome};

use crate::commit::detector::Happened;
use crate::env::Env;
use crate::env::failures::JobKind;
use crate::jobs::Jobs;
use crate::jobs::attempt::{Attempt, PreparedJob};
use crate::jobs::begun::{Begun, Relief};
use crate::jobs::carry_over::CarryOver;
use crate::jobs::costs::Compacted;
use crate::jobs::ended::{Ended, cancelled};
use crate::jobs::flush_pauses::FlushPauses;
use crate::jobs::gate::Gate;
use crate::jobs::leftovers::Leftover;
use crate::jobs::record::Trouble;
use crate::jobs::report::Made;
use crate::jobs::sides::SideId;
use crate::jobs::work::{Stage, What, Work};
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::allocator;
use crate::types::error::{Error, Result};
use crate::types::options::DirectIo;

/// Why an attempt did not complete its work.
pub(crate) enum Stopped {
    /// The host failed, or the work is not needed any more.
    Failed(Error),
    /// Another side failed, and the failure was counted. The work is returned.
    Elsewhere,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Failed(error)
    }
}

impl Jobs {
    /// Runs a piece of work on the side where it was placed.
    ///
    /// # Errors
    /// After an error nothing was installed, and the work can be run again.
    pub(crate) fn run(&self, work: &mut Work) -> std::result::Result<(), Stopped> {
        let _span = span(work).entered();
        let start = self.env.now();
        let is_flush = matches!(work.what, What::Flush(_));
        let _flushing = is_flush.then(|| self.env.flush_load().flushing());
        let outcome = match self.begin(work) {
            None => Outcome::default(),
            Some(mut attempt) => {
                let executed = match self.execute_separated(work, &mut attempt) {
                    Some(executed) => executed,
                    None => self.prepare(work, &attempt).execute(),
                };
                self.judge(work, &attempt, executed, start)?
            }
        };
        Ok(self.complete(work, outcome, start)?)
    }

    /// Begins an attempt of the work's job. Returns `None` if there is no job, because the work is
    /// only an edit or the memtable is empty.
    pub(crate) fn begin(&self, work: &mut Work) -> Option<Attempt> {
        if work.is_edit() {
            return None;
        }
        let side = work.placed.side;
        if work.begun.is_none() {
            work.begun = match &work.what {
                What::Flush(source) => {
                    let settings = work.keyspace.load_settings();
                    let spec = self.flush_spec(&work.keyspace, source, &settings);
                    self.runner.begin_flush(&spec).map(|mut begun| {
                        begun.relief = Some(Relief {
                            load: self.env.flush_load().clone(),
                            pressure: self.env.pressure().clone(),
                            every_bytes: (source.mem.data_bytes() / RELIEFS).max(1),
                        });
                        begun
                    })
                }
                What::Compaction(compaction) => {
                    let mut begun = self.begin_compaction(&work.keyspace, compaction, side);
                    begun.pauses = Some(FlushPauses::new(&self.env, &work.keyspace));
                    Some(begun)
                }
            };
        }
        let begun = work.begun.as_ref()?;
        let output = self.runner.next_prefix();
        work.last_output = Some(output.clone());
        work.stage.set(Stage::Running);
        if let What::Flush(source) = &work.what {
            source.begin_flush(self.env.now(), &work.progress);
        }
        Some(Attempt {
            side,
            location: work.placed.location,
            output,
            progress: work.progress.clone(),
            cancel: work.cancel.clone(),
            gate: None,
            adopted_before: begun.adopted_count(),
        })
    }

    /// Like [`Jobs::begin`], for an executor other than the host's own. A gate stands between that
    /// executor and the store.
    pub(crate) fn begin_elsewhere(&self, work: &mut Work) -> Option<(Attempt, PreparedJob)> {
        let mut attempt = self.begin(work)?;
        let begun = work.begun.as_ref()?;
        attempt.gate = Some(Gate::new(self.env.runtime(), begun.inputs.clone()));
        let prepared = self.prepare(work, &attempt);
        Some((attempt, prepared))
    }

    fn prepare(&self, work: &Work, attempt: &Attempt) -> PreparedJob {
        let begun = work.begun.as_ref().expect("an attempt has a job");
        self.runner.prepare(attempt, begun, &work.remark)
    }

    /// Runs the job on the executor that stands in for the host's cores. Returns `None` if there is
    /// no such executor, or if it declines.
    fn execute_separated(
        &self,
        work: &mut Work,
        attempt: &mut Attempt,
    ) -> Option<std::result::Result<Outcome, Ended>> {
        let begun = work.begun.as_ref().filter(|_| !work.is_whole)?;
        self.runner.separated_for(begun)?;
        if self
            .runner
            .separated_pauses
            .lock()
            .is_paused(self.env.now())
        {
            work.remark
                .remark("whole: attempts without values failed several times in a row");
            return None;
        }
        let left_before = begun.left_names();
        let gate = Gate::new(self.env.runtime(), begun.inputs.clone());
        attempt.gate = Some(gate.clone());
        let executed = self.prepare(work, attempt).execute();
        gate.shut();
        gate.wait_idle();
        match executed {
            Err(Ended::Declined(reason)) => {
                work.remark.remark(&reason);
                // The executor may have begun, and may even have left tables. This attempt will
                // take them over.
                let progress = &work.progress;
                for count in [
                    &progress.entries,
                    &progress.bytes_in,
                    &progress.bytes_out,
                    &progress.tables,
                ] {
                    count.store(0, Ordering::Relaxed);
                }
                if let Some(begun) = &mut work.begun
                    && begun.left_names() != left_before
                {
                    begun.note_foreign_attempt(attempt.side);
                }
                attempt.gate = None;
                None
            }
            executed => Some(executed),
        }
    }

    /// Carries over what is read when the tables of a foreign outcome are verified. With direct
    /// I/O, nothing is carried over.
    fn carry_over(&self) -> Option<CarryOver> {
        let direct_io = self.env.options().direct_io;
        let (runner, tables) = (&self.runner, self.tree.tables());
        (direct_io == DirectIo::None).then(|| {
            let outage = self.env.outage();
            CarryOver::new(self.env.runtime(), tables, runner.outputs(), outage)
        })
    }

    /// Verifies the outcome of an attempt, and counts how the attempt ended.
    pub(crate) fn judge(
        &self,
        work: &mut Work,
        attempt: &Attempt,
        executed: std::result::Result<Outcome, Ended>,
        start: Instant,
    ) -> std::result::Result<Outcome, Stopped> {
        work.stage.set(Stage::Verifying);
        let is_single = !self.env.options().schedule.multi_threading;
        // A job that was paused for flushes does not make its side slower.
        let paused = attempt.progress.paused_ns.load(Ordering::Relaxed);
        let since_start = |now: Instant| {
            let paused = Duration::from_nanos(paused);
            now.since(start).saturating_sub(paused)
        };
        let executed_for = since_start(self.env.now());
        if is_single {
            // The side can execute its next compaction now.
            self.env.work().notify();
        }
        let begun = work.begun.as_ref().expect("an attempt has a job");
        let adopted = begun.adopted_count() - attempt.adopted_before;
        let metrics = self.env.metrics();
        metrics.adopted_table_count.add(adopted);
        metrics.resumed_job_count.add(u64::from(adopted > 0));
        let runner = &self.runner;
        let is_host = runner.is_host(attempt);
        let is_separated = !is_host && attempt.side == runner.sides.host();
        let carry_over = runner
            .is_foreign(attempt, begun)
            .then(|| self.carry_over())
            .flatten();
        let verified = executed.and_then(|outcome| {
            runner.verify(attempt, begun, &outcome, carry_over.as_ref())?;
            Ok(outcome)
        });
        // The time ends before blocks are carried over. If each side executes one compaction at a
        // time, it also ends before the verification, which is then not counted as work of the
        // side.
        let time = match is_single {
            true => executed_for,
            false => since_start(self.env.now()),
        };
        if let (Ok(_), Some(carry_over), What::Compaction(compaction)) =
            (&verified, &carry_over, &work.what)
        {
            let inputs = compaction.choice.tables();
            let most = runner.carry_over_bytes();
            carry_over.keep(inputs, most, &work.cancel, &runner.carried_over);
        }
        let sides = &runner.sides;
        let ended = match verified {
            Ok(outcome) => {
                // Tables that attempts left are not needed any more, unless they are part of the
                // outcome.
                let mut left = begun.close();
                left.retain(|name| outcome.tables.iter().all(|table| table.name != *name));
                runner.discard_names(0, &left);
                if is_separated {
                    runner.separated_pauses.lock().ended(true, self.env.now());
                }
                // An abandoned flush says nothing of the side.
                let is_whole = adopted == 0 && !work.cancel.is_cancelled();
                let took = is_whole.then(|| (work.size(), time.as_nanos() as u64));
                sides.count_believed(attempt.side, work.kind(), took);
                if work.kind() == JobKind::Compaction {
                    let compacted = Compacted {
                        in_bytes: work.bytes(),
                        out_bytes: outcome.tables.iter().map(|t| t.file_bytes).sum(),
                        // For a separated compaction, this is what the device used.
                        cpu_ns: (!is_separated).then_some(outcome.counters.cpu_ns),
                        took: executed_for,
                    };
                    let [host, own] = compacted.parts(&attempt.progress.divided);
                    for (side, part) in [(sides.host(), host), (attempt.side, own)] {
                        if let Some(part) = part {
                            sides.count_compacted(side, start, &part);
                        }
                    }
                }
                // Another side has done the job, so the failures of the suspects were their own
                // fault.
                for (suspect, said) in work.suspects.drain(..) {
                    if suspect != attempt.side {
                        sides.count_trouble(suspect, Trouble::Failure, &said);
                    }
                }
                return Ok(outcome);
            }
            Err(ended) => ended,
        };
        if let Some(gate) = &attempt.gate {
            work.unbelieved.push(Leftover {
                gate: gate.clone(),
                output: attempt.output.clone(),
                names: Vec::new(),
            });
        }
        if !is_host && work.cancel.is_cancelled() {
            return Err(cancelled().into());
        }
        let ended = ended.unless_unasked(is_host);
        let falls_back = self.env.options().schedule.fallback;
        sides.count_ended(attempt.side, &ended, falls_back);
        if is_separated {
            tracing::warn!(error = %ended, "a separated compaction failed; it runs whole");
            sides.count_fallback();
            runner.separated_pauses.lock().ended(false, self.env.now());
            work.is_whole = true;
            work.remark
                .remark("whole: the attempt without values failed");
            return Err(Stopped::Elsewhere);
        }
        let is_rejected = matches!(ended, Ended::Rejected(_));
        // A separated attempt is an attempt of the host. The host is never suspended, so it is left
        // out below.
        let has_foreign = work.begun.as_ref().is_some_and(Begun::is_foreign);
        let left_by = work.begun.iter().flat_map(Begun::left_by);
        let others = left_by.filter(|side| *side != attempt.side && *side != sides.host());
        let others: Vec<SideId> = others.collect();
        if is_rejected {
            // The wrong data may be in the tables that these sides left.
            for side in &others {
                sides.count_trouble(*side, Trouble::Lie, &ended.to_string());
            }
        }
        if is_host && is_rejected && has_foreign {
            // The host's own tables are not wrong, so this is not a failure of the store. The job
            // begins again without the tables that were left.
            tracing::warn!(error = %ended, "tables that another executor left are not believed");
            sides.count_fallback();
            // A separated attempt could leave such tables again.
            work.is_whole = true;
            let mut left_by = work.begun.iter().flat_map(Begun::left_by);
            if left_by.any(|side| side == sides.host()) {
                runner.separated_pauses.lock().ended(false, self.env.now());
            }
            return Err(Stopped::Elsewhere);
        }
        if !is_host {
            if !falls_back {
                // No other side will show whose fault it was. A side that fails again and again is
                // suspended for a while.
                if ended.may_be_the_stores() {
                    sides.count_trouble(attempt.side, Trouble::Failure, &ended.to_string());
                }
            } else if ended.may_be_the_stores() {
                work.suspects.push((attempt.side, ended.to_string()));
            }
            return Err(Stopped::Elsewhere);
        }
        let error = ended.into_error();
        if let What::Flush(source) = &work.what {
            if is_rejected && attempt.location == 0 {
                count_rejection(&self.env, &work.keyspace, source, &error);
            }
            refuse_damaged_log(&self.env, &work.keyspace, source, &error);
        }
        Err(error.into())
    }

    /// Installs the outcome of a piece of work and reports it.
    pub(crate) fn complete(&self, work: &Work, outcome: Outcome, start: Instant) -> Result<()> {
        if !self.begin_to_finish(work) {
            // Another flush of the memtable runs, or is installed.
            self.runner.discard(work.placed.location, &outcome.tables);
            return Err(cancelled());
        }
        // This happens before the installation, because the installation wakes those who wait for
        // the job, and they should find the job's memory released.
        if work.placed.side == self.runner.sides.host() {
            give_back_memory(&self.env, &outcome.counters);
        }
        if let What::Flush(source) = &work.what {
            self.sync_log_of(source)?;
        }
        let out_bytes = outcome.tables.iter().map(|t| t.file_bytes).sum();
        let installed = self.install(work, outcome.tables)?;
        if let What::Flush(source) = &work.what {
            let memtable_bytes = work.keyspace.limits().memtable_bytes;
            let bytes = source.mem.data_bytes();
            self.commit.stalls().flushed(start, bytes, memtable_bytes);
            self.note_flushed(work, start, bytes);
        }
        let happened = match &work.what {
            What::Flush(source) => Happened::Flushed(source.mem.data_bytes()),
            What::Compaction(_) => Happened::Nothing,
        };
        self.commit.observe(&work.keyspace, happened);
        let made = Made {
            counters: outcome.counters,
            tables: installed,
            out_bytes,
        };
        match &work.what {
            What::Flush(_) => self.report_flush(work, &made, start),
            What::Compaction(compaction) => self.report_compaction(work, compaction, &made, start),
        }
        Ok(())
    }

    /// F1: another keyspace's half of a batch must not be lost when this half is in a table.
    fn sync_log_of(&self, source: &MemSource) -> Result<()> {
        self.wal.sync_log_for_background(source.last_position())
    }
}

/// How many times a flush wakes the writers that wait for the memory of its memtable.
const RELIEFS: u64 = 64;

/// After a job of this size, free pages are given back to the system.
const LARGE_JOB_BYTES: u64 = 4 << 20;

/// The approximate memory that a range delete takes in a job, in bytes.
const RANGE_DELETE_BYTES: u64 = 400;

/// Gives the memory of an executed job back to the system.
fn give_back_memory(env: &Env, counters: &Counters) {
    let deletes = RANGE_DELETE_BYTES.saturating_mul(counters.range_deletes_read);
    let bytes = counters.raw_bytes_read.saturating_add(deletes);
    if bytes >= LARGE_JOB_BYTES && !env.runtime().is_simulated() {
        allocator::give_back_free_pages();
    }
}

fn span(work: &Work) -> tracing::Span {
    match &work.what {
        What::Flush(_) => tracing::debug_span!("flush", keyspace = &*work.keyspace.name),
        What::Compaction(compaction) => tracing::debug_span!(
            "compaction",
            keyspace = &*work.keyspace.name,
            from_level = compaction.choice.from,
            to_level = compaction.choice.to,
            in_bytes = compaction.choice.input_bytes,
            reason = &*compaction.choice.reason,
        ),
    }
}

/// After this many rejected flushes of one memtable the store refuses writes.
const REJECTIONS_MAX: u32 = 3;

/// Refuses writes if flushes of a memtable have met [`REJECTIONS_MAX`] times a value in the log
/// that is not what was written: otherwise the flush would run again for ever.
fn refuse_damaged_log(env: &Env, keyspace: &KeyspaceCore, source: &MemSource, error: &Error) {
    let count = source.mem.damaged_count();
    if count >= REJECTIONS_MAX {
        let name = &keyspace.name;
        env.health().poison(&error.clone().context(format!(
            "keyspace `{name}` cannot be flushed: {count} times a value in the log was not what \
             was written"
        )));
    }
}

/// Counts a flush whose tables differ from the memtable. The flush runs again. After
/// [`REJECTIONS_MAX`] rejections the store refuses writes, because otherwise the log and the memory
/// would grow for ever. The log has all entries of the memtable, and reads still work.
fn count_rejection(env: &Env, keyspace: &KeyspaceCore, source: &MemSource, error: &Error) {
    let count = source.rejections.fetch_add(1, Ordering::AcqRel) + 1;
    if count >= REJECTIONS_MAX {
        let name = &keyspace.name;
        env.health().poison(&error.clone().context(format!(
            "keyspace `{name}` cannot be flushed: {count} times in a row its tables did not hold \
             what was written (the log keeps all of it)"
        )));
    }
}
