//! The life of a piece of work, once a task has taken it: its job begins, is executed and verified;
//! what it made is installed, counted and reported.
//!
//! What it is: [`Jobs::run`], for flushes and compactions alike. A compaction that fails can be run
//! again, and resumes behind the tables that its last attempt finished.
//!
//! Invariants: F1 the log is synced through the memtable's last record before a flush is installed.
//! Nothing of a flush is installed before a part of its tables (`flush_verify`) was read back and
//! compared with the memtable: until then the log holds what the memtable has.
//!
//! Threading: any task; the manifest role orders the edits.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::Instant;
use siltstone_table::exec::Handover;
use siltstone_table::job::Job;
use siltstone_table::job::outcome::{Counters, Outcome};

use crate::env::Env;
use crate::formats::version::{KeyRange, KeyspaceVersion, TableMeta};
use crate::jobs::Jobs;
use crate::jobs::attempt::{Attempt, Prepared};
use crate::jobs::begun::Begun;
use crate::jobs::build::{CompactionSpec, FlushSpec};
use crate::jobs::choice::Answer;
use crate::jobs::ended::{Ended, cancelled};
use crate::jobs::gate::Gate;
use crate::jobs::leftovers::Leftover;
use crate::jobs::record::Trouble;
use crate::jobs::schedule;
use crate::jobs::sides::SideId;
use crate::jobs::work::{Compaction, Reason, Stage, What, Work};
use crate::tree::pick::{Choice, ChoiceKind, older_ranges, soft_cuts, targets};
use crate::tree::settings::Settings;
use crate::tree::view::{KeyspaceCore, MemSource};
use crate::types::error::{Error, Result};
use crate::types::event::Event;

/// Why an attempt did not do its work.
pub(crate) enum Stopped {
    /// The host failed with it, or it is not wanted any more.
    Failed(Error),
    /// Another side failed with it, which is counted. The work goes back.
    Elsewhere,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        Stopped::Failed(error)
    }
}

impl Jobs {
    /// Does a piece of work where it was placed.
    ///
    /// # Errors
    /// Nothing was installed then, and the work can be run again.
    pub(crate) fn run(&self, work: &mut Work) -> std::result::Result<(), Stopped> {
        let _span = span(work).entered();
        let start = self.env.now();
        let outcome = match self.begin(work) {
            None => Outcome::default(),
            Some(attempt) => {
                let executed = self.prepare(work, &attempt).execute();
                self.judge(work, &attempt, executed, start)?
            }
        };
        Ok(self.complete(work, outcome, start)?)
    }

    /// Begins an attempt of the work's job. None if there is no job: because the work is only an
    /// edit, or because there is nothing in the memtable.
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
                    self.runner.begin_flush(&spec)
                }
                What::Compaction(compaction) => {
                    Some(self.begin_compaction(&work.keyspace, compaction, side))
                }
            };
        }
        let begun = work.begun.as_ref()?;
        let output = self.runner.next_prefix();
        work.last_output = Some(output.clone());
        work.stage.set(Stage::Running);
        Some(Attempt {
            side,
            output,
            progress: work.progress.clone(),
            cancel: work.cancel.clone(),
            gate: None,
            adopted_before: begun.adopted_count(),
        })
    }

    /// As [`Jobs::begin`], for an executor that is not the host's own: there is a gate between it
    /// and the store.
    pub(crate) fn begin_elsewhere(&self, work: &mut Work) -> Option<(Attempt, Prepared)> {
        let mut attempt = self.begin(work)?;
        let begun = work.begun.as_ref()?;
        attempt.gate = Some(Gate::new(self.env.runtime(), begun.inputs.clone()));
        let prepared = self.prepare(work, &attempt);
        Some((attempt, prepared))
    }

    fn prepare(&self, work: &Work, attempt: &Attempt) -> Prepared {
        let begun = work.begun.as_ref().expect("an attempt has a job");
        self.runner.prepare(attempt, begun)
    }

    /// Reports that a job begins elsewhere.
    pub(crate) fn report_placed(&self, work: &Work) {
        self.env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::JobPlaced {
                keyspace: work.keyspace.name.clone(),
                kind: work.kind().word(),
                in_bytes: work.bytes(),
                executor,
                side,
                placement: work.placed.reason.clone(),
            }
        });
    }

    /// Verifies what an attempt made, and counts how it ended.
    pub(crate) fn judge(
        &self,
        work: &mut Work,
        attempt: &Attempt,
        executed: std::result::Result<Outcome, Ended>,
        start: Instant,
    ) -> std::result::Result<Outcome, Stopped> {
        work.stage.set(Stage::Verifying);
        let begun = work.begun.as_ref().expect("an attempt has a job");
        let adopted = begun.adopted_count() - attempt.adopted_before;
        let metrics = self.env.metrics();
        metrics.adopted_table_count.add(adopted);
        metrics.resumed_job_count.add(u64::from(adopted > 0));
        let runner = &self.runner;
        let verified = executed.and_then(|outcome| {
            runner.verify(attempt, begun, &outcome)?;
            Ok(outcome)
        });
        let sides = &runner.sides;
        let ended = match verified {
            Ok(outcome) => {
                // What attempts left is of no use any more, unless it is part of the outcome.
                let mut left = begun.close();
                left.retain(|name| outcome.tables.iter().all(|table| table.name != *name));
                runner.discard_names(&left);
                let ns = self.env.now().since(start).as_nanos() as u64;
                let took = (adopted == 0).then(|| (work.bytes(), ns));
                sides.count_believed(attempt.side, work.kind(), took);
                // Another side has done what they failed with.
                for (suspect, said) in work.suspects.drain(..) {
                    if suspect != attempt.side {
                        sides.count_trouble(suspect, Trouble::Failure, &said);
                    }
                }
                return Ok(outcome);
            }
            Err(ended) => ended,
        };
        let is_host = attempt.side == sides.host();
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
        sides.count_ended(attempt.side, &ended);
        if !is_host {
            if ended.may_be_the_stores() {
                work.suspects.push((attempt.side, ended.to_string()));
            }
            return Err(Stopped::Elsewhere);
        }
        let is_rejected = matches!(ended, Ended::Rejected(_));
        let error = ended.into_error();
        if let What::Flush(source) = &work.what
            && is_rejected
        {
            count_rejection(&self.env, &work.keyspace, source, &error);
        }
        Err(error.into())
    }

    /// Installs what the job of a piece of work made, and reports it.
    pub(crate) fn complete(&self, work: &Work, outcome: Outcome, start: Instant) -> Result<()> {
        work.stage.set(Stage::Finishing);
        if let What::Flush(source) = &work.what {
            self.sync_log_of(source)?;
        }
        let out_bytes = outcome.tables.iter().map(|t| t.file_bytes).sum();
        let installed = self.install(work, outcome.tables)?;
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

    /// Which sides would run the job of what was picked. Not to be called under a lock.
    pub(super) fn ask_sides(&self, keyspace: &KeyspaceCore, what: &What) -> Vec<Answer> {
        let job = match what {
            What::Flush(source) => {
                let settings = keyspace.load_settings();
                self.runner
                    .flush_job(&self.flush_spec(keyspace, source, &settings))
            }
            What::Compaction(compaction) => Some(self.compaction_job(keyspace, compaction, 1)),
        };
        match job {
            Some(job) => self.runner.sides.ask(&job),
            // There is nothing to execute.
            None => self.runner.sides.nobody(),
        }
    }

    /// Everything that the job of a flush is made from.
    fn flush_spec<'a>(
        &self,
        keyspace: &KeyspaceCore,
        source: &'a MemSource,
        settings: &'a Settings,
    ) -> FlushSpec<'a> {
        let (published, snapshots) = self.tree.snapshots().for_job();
        // Level-0 runs are cut where the base level is, so that a table of the run meets few tables
        // of that level.
        let version = keyspace.view().version.clone();
        let base = targets(&version, &settings.pick, &[]).base;
        FlushSpec {
            keyspace: keyspace.id,
            settings: &settings.all,
            mem: &source.mem,
            published,
            snapshots,
            soft_cuts: base_cuts(&version, base, source),
        }
    }

    fn begin_compaction(
        &self,
        keyspace: &KeyspaceCore,
        compaction: &Compaction,
        side: SideId,
    ) -> Begun {
        let tables = compaction.choice.tables().cloned().collect();
        let inputs = self.tree.tables().inputs(tables);
        let parallelism = self.runner.parallelism(side);
        let job = self.compaction_job(keyspace, compaction, parallelism);
        Begun::compaction(job, inputs, Handover::new(self.env.runtime()))
    }

    /// The job of a compaction, cut into at most `parallelism` subjobs.
    fn compaction_job(
        &self,
        keyspace: &KeyspaceCore,
        compaction: &Compaction,
        parallelism: usize,
    ) -> Job {
        let Compaction {
            choice,
            version,
            unsettled,
            ..
        } = compaction;
        let (published, snapshots) = self.tree.snapshots().for_job();
        let older = older_ranges(version, choice, unsettled);
        let settings = keyspace.load_settings();
        let spec = CompactionSpec {
            version,
            settings: &settings.all,
            choice,
            published,
            snapshots,
            older,
        };
        let anchors = |table: &TableMeta| self.tree.tables().anchors(table);
        self.runner.compaction_job(&spec, parallelism, &anchors)
    }

    /// F1: another keyspace's half of a batch must not be lost when this half is in a table.
    fn sync_log_of(&self, source: &MemSource) -> Result<()> {
        self.wal.sync_log_through(source.last_position())
    }

    fn count_compaction(&self, compaction: &Compaction, made: &Made) {
        let choice = &compaction.choice;
        if compaction.reason == Reason::Deletes && gave_nothing_back(choice, &made.tables) {
            schedule::remember_futile(self, &made.tables);
        }
        count_dropped(&self.env, &made.counters);
        let m = self.env.metrics();
        m.compaction_in_bytes.add(choice.input_bytes);
        m.compaction_out_bytes.add(made.out_bytes);
        m.compaction_count.add(1);
        if choice.kind == ChoiceKind::IntraL0 {
            m.intra_l0_count.add(1);
        }
        match compaction.reason {
            Reason::Due => 0,
            Reason::Deletes => m.delete_compaction_count.add(1),
            Reason::Manual => m.manual_count.add(1),
        };
    }

    /// Counts a flush that was installed, and emits its event.
    fn report_flush(&self, work: &Work, made: &Made, start: Instant) {
        let env = &self.env;
        count_dropped(env, &made.counters);
        let in_bytes = made.counters.raw_bytes_read;
        let m = env.metrics();
        m.flush_in_bytes.add(in_bytes);
        let took = env.now().since(start);
        m.flush_out_bytes.add(made.out_bytes);
        m.flush_count.add(1);
        m.flush_time.record(took);
        tracing::debug!(
            in_bytes,
            out_bytes = made.out_bytes,
            table_count = made.tables.len(),
            duration_us = took.as_micros() as u64,
            "flushed"
        );
        env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::Flushed {
                keyspace: work.keyspace.name.clone(),
                in_bytes,
                out_bytes: made.out_bytes,
                table_count: made.tables.len() as u64,
                duration_us: took.as_micros() as u64,
                executor,
                side,
            }
        });
    }

    /// Counts a compaction that was installed, and emits its event.
    fn report_compaction(&self, work: &Work, compaction: &Compaction, made: &Made, start: Instant) {
        let (env, choice) = (&self.env, &compaction.choice);
        let m = env.metrics();
        match choice.kind {
            ChoiceKind::TrivialMove => {
                m.trivial_move_count.add(1);
            }
            ChoiceKind::Drop => {
                m.dropped_table_count.add(choice.tables().count() as u64);
            }
            _ => self.count_compaction(compaction, made),
        }
        let took = env.now().since(start);
        if !compaction.is_edit() {
            m.compaction_time.record(took);
            for table in &made.tables {
                let created = || table.created(&work.keyspace.name, choice.to);
                env.events().emit(created);
            }
        }
        tracing::debug!(
            out_bytes = made.out_bytes,
            out_table_count = made.tables.len(),
            duration_us = took.as_micros() as u64,
            "compacted"
        );
        env.events().emit(|| {
            let (executor, side) = self.runner.sides.name_of(work.placed.side);
            Event::Compacted {
                keyspace: work.keyspace.name.clone(),
                reason: choice.reason.clone(),
                from_level: choice.from,
                to_level: choice.to,
                in_table_count: choice.tables().count() as u64,
                in_bytes: choice.input_bytes,
                out_table_count: made.tables.len() as u64,
                out_bytes: made.out_bytes,
                duration_us: took.as_micros() as u64,
                executor,
                side,
            }
        });
    }
}

/// What a piece of work made, once it is installed.
struct Made {
    counters: Counters,
    tables: Vec<Arc<TableMeta>>,
    /// Bytes of the tables that a job wrote.
    out_bytes: u64,
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

/// Counts a flush whose tables do not hold what the memtable holds. The flush runs again. One that
/// is rejected each time would be so for ever, while log and memory grow, so the store then refuses
/// writes. The log has everything that the memtable has, and reads go on.
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

/// Where the level above the base level is cut, within the keys of a memtable.
fn base_cuts(version: &KeyspaceVersion, base: u8, source: &MemSource) -> Vec<Vec<u8>> {
    let (Some(first), Some(last)) = (source.mem.first_key(), source.mem.last_key()) else {
        return Vec::new();
    };
    let range = KeyRange::closed(first, last);
    let cuts = soft_cuts(version, base - 1, &range);
    let mut cuts: Vec<Vec<u8>> = cuts.into_iter().map(Vec::from).collect();
    cuts.dedup();
    cuts
}

/// Whether tables that were rewritten in place have as many tombstones as before. (Tables that go
/// down a level come nearer to what their tombstones delete.)
fn gave_nothing_back(choice: &Choice, outputs: &[Arc<TableMeta>]) -> bool {
    let count = |t: &Arc<TableMeta>| t.deletes + t.range_deletes;
    let before: u64 = choice.tables().map(count).sum();
    choice.kind == ChoiceKind::Rewrite && outputs.iter().map(count).sum::<u64>() >= before
}

/// Adds what a job dropped to the store's counts.
fn count_dropped(env: &Env, counters: &Counters) {
    let m = env.metrics();
    m.dropped_shadowed_count.add(counters.shadowed);
    m.dropped_tombstone_count.add(counters.tombstones);
    m.dropped_covered_count.add(counters.covered);
    m.dropped_fragment_count.add(counters.fragments_dropped);
    if counters.raw_bytes_read + RANGE_DELETE_BYTES * counters.range_deletes_read >= LARGE_JOB_BYTES
        && !env.runtime().is_simulated()
    {
        crate::types::allocator::give_back_free_pages();
    }
}

/// After a job of this size, free pages are given back to the system.
const LARGE_JOB_BYTES: u64 = 4 << 20;

/// The memory that a range delete takes in a job, about.
const RANGE_DELETE_BYTES: u64 = 400;
