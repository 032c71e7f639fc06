//! Jobs that a session runs on its device, from the host's side.
//!
//! Invariants (RFC 9, section 8): an attempt begins once. A caller that returns before the attempt
//! has ended leaves it to the keeper, which asks the device to end it. The finished tables of an
//! attempt are left to the next attempt only if the attempt is known to have ended, and the device
//! says that none of its syncs failed. The tables with which an attempt began belong to it until it
//! has ended.
//!
//! Threading: any task may call this. No lock is held during a request.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::{Result, StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::exec::part::Part;
use siltstone_table::exec::{ExecContext, ExecError, Progress};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use super::Client;
use super::object_name::ObjectName;
use super::session::Limit;
use crate::wire::frame::BULK_MAX;
use crate::wire::job::{JobCounts, JobEnd, JobOrder, JobStatus, check_locations, put_work};
use crate::wire::request::NamesChange;
use crate::wire::{Answer, Request};

/// How long the device may delay its answer while there is nothing new.
const WAIT_MS: u32 = 200;

/// How long a link may be down before an attempt fails, so that the host can run the job.
pub(super) const DOWN_LIMIT: Duration = Duration::from_secs(10);

/// How long the host waits for a cancelled attempt to end.
pub(super) const CANCEL_LIMIT: Duration = Duration::from_millis(1500);

/// How long a job on a device may make no progress while the device answers. The device ends such a
/// job sooner, if it can.
const STILL_MAX: Duration = Duration::from_secs(120);

/// The maximum length of an outcome from a device, in bytes.
const OUTCOME_MAX: u64 = 256 << 20;

/// How many of a frame's bulk bytes a job cannot use.
const WORK_OVERHEAD: usize = 8;

const OP: &str = "run a job";

/// The present rate limit of this host, and the bytes of an attempt that were counted against it.
#[derive(Clone, Copy, Default)]
struct Paid {
    bytes_per_s: u64,
    bytes: u64,
}

fn failed(error: StorageError) -> ExecError {
    ExecError::Failed(TableError::Storage(error))
}

/// Whether an attempt failed because the device, or a storage, could not be reached.
fn is_unreachable<T>(ended: &std::result::Result<T, ExecError>) -> bool {
    matches!(
        ended,
        Err(ExecError::Failed(TableError::Storage(error)))
            if error.kind == StorageErrorKind::Unreachable
    )
}

/// What the host does for an attempt while the device runs it.
pub(super) trait Beside {
    /// The attempt has begun.
    fn begin(&self, attempt: u64);

    /// Whether the host's part has failed, so that the attempt must end.
    fn has_failed(&self) -> bool;

    /// The attempt is being cancelled. The host's tasks end as soon as they can.
    fn cancel(&self);

    /// Adds the host's own counts to those of the device, and shows them as the counts of the
    /// attempt.
    fn show(&self, counts: &JobCounts, progress: &Progress);

    /// Called when the attempt has ended, or nobody waits for it any more. Returns when the host's
    /// tasks have ended, with their error if one of them failed.
    fn end(&self) -> Option<ExecError>;
}

/// The host does nothing while the device runs the attempt.
struct Nothing;

impl Beside for Nothing {
    fn begin(&self, _: u64) {}

    fn has_failed(&self) -> bool {
        false
    }

    fn cancel(&self) {}

    fn show(&self, counts: &JobCounts, progress: &Progress) {
        show(counts, progress);
    }

    fn end(&self) -> Option<ExecError> {
        None
    }
}

impl Client {
    /// A number for an attempt. The numbers rise within the session.
    pub(super) fn new_attempt(&self) -> u64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has the device run a job, and waits for its end. The attempt continues after the tables that
    /// earlier attempts left in the context's handover. These must lie where the job runs.
    pub(super) fn run_job(
        &self,
        job: &Job,
        order: JobOrder,
        ctx: &ExecContext,
    ) -> std::result::Result<JobRun, ExecError> {
        let (attempt, epoch) = (order.attempt, order.epoch);
        let change = NamesChange::BeginJob(order);
        self.run_attempt(job, (attempt, epoch, change), ctx, &Nothing)
    }

    /// Has the device begin an attempt of a job, and waits for its end. The arguments are the
    /// number of the attempt, the epoch of the lease, and the change that begins it.
    pub(super) fn run_attempt(
        &self,
        job: &Job,
        (attempt, epoch, change): (u64, u64, NamesChange),
        ctx: &ExecContext,
        beside: &dyn Beside,
    ) -> std::result::Result<JobRun, ExecError> {
        // A device of an older build does not look at locations.
        check_locations(job).map_err(ExecError::declined)?;
        if ctx.cancel.is_cancelled() {
            return Err(ExecError::Cancelled);
        }
        let identity = job.identity();
        let bytes = job.encode();
        if bytes.len() > BULK_MAX - WORK_OVERHEAD {
            return Err(ExecError::declined(format!(
                "the job has {} bytes, more than fit into a frame",
                bytes.len()
            )));
        }
        let mut finished = Finished::new(take_left(job, ctx));
        let parts: Vec<Vec<u8>> = finished
            .parts
            .values()
            .map(|part| part.encode(identity))
            .collect();
        let (work, count) = put_work(&bytes, &parts, BULK_MAX);
        finished.keep_first(count, ctx);
        let inputs = job.inputs.iter().map(|input| input.name.clone());
        let parts = finished.parts.values().flat_map(|part| &part.tables);
        let left = parts.map(|table| table.name.clone());
        let reads: BTreeSet<String> = inputs.chain(left).collect();
        // What this session wrote to these objects must have arrived. On a slow link this takes
        // long. Other objects, which the host's own jobs are writing, are not waited for.
        let limit = self.session.limit_of(DOWN_LIMIT).until(&ctx.cancel);
        let is_read = |own: &ObjectName| reads.iter().any(|name| own.may_be(name));
        let arrived = self.drain_these(is_read, &limit, OP);
        let is_asked = arrived.is_ok();
        let begun = arrived.and_then(|()| self.begin_job(change, epoch, &work));
        let boot = match begun {
            Ok(boot) => boot,
            Err(error) => {
                // The attempt may still begin later, unless the request was refused or never sent.
                let is_unanswered = error.kind == StorageErrorKind::Unreachable;
                match is_asked && is_unanswered && self.names.has_pending_job() {
                    true => self.leave_attempt(attempt),
                    false => finished.leave(job, ctx),
                }
                return Err(match is_unanswered && ctx.cancel.is_cancelled() {
                    true => ExecError::Cancelled,
                    false => failed(error),
                });
            }
        };
        beside.begin(attempt);
        let mut ended = self.wait_for(attempt, job, ctx, beside, &mut finished);
        let failed_beside = beside.end();
        // Without a handover the tables are deleted. If the device is gone, these deletions would
        // not be answered.
        let is_gone = ctx.handover.is_none() && is_unreachable(&ended);
        if ended.is_err() && !is_gone {
            if finished.may_be_adopted {
                finished.leave(job, ctx);
            } else if finished.has_ended {
                finished.delete(ctx);
            }
        }
        match &ended {
            Err(_) if !finished.has_ended => self.leave_attempt(attempt),
            _ => self.forget_attempt(attempt),
        }
        // If the host's part failed, its error is the reason why the attempt was cancelled.
        if let (Err(ExecError::Cancelled), Some(error)) = (&ended, failed_beside)
            && !ctx.cancel.is_cancelled()
        {
            ended = Err(error);
        }
        ended.map(|outcome| JobRun { outcome, boot })
    }

    /// Begins a job, and returns the boot of the device's machine in which the job runs. A cancel
    /// does not end this call, because the job could begin nevertheless.
    fn begin_job(&self, change: NamesChange, epoch: u64, work: &[u8]) -> Result<Vec<u8>> {
        let limit = self.session.limit_of(DOWN_LIMIT);
        let names = &self.names;
        let changed = names.change(&self.session, OP, epoch, change, work, &limit);
        changed.map(|(changed, _)| changed.boot)
    }

    /// Waits for the end of an attempt.
    fn wait_for(
        &self,
        attempt: u64,
        job: &Job,
        ctx: &ExecContext,
        beside: &dyn Beside,
        finished: &mut Finished,
    ) -> std::result::Result<Outcome, ExecError> {
        let session = &self.session;
        let mut cancelled = None;
        let mut paid_bytes = 0;
        let mut last = (JobCounts::default(), session.runtime.now());
        loop {
            let is_over = ctx.cancel.is_cancelled() || beside.has_failed();
            if is_over {
                let now = session.runtime.now();
                let since = *cancelled.get_or_insert_with(|| {
                    beside.cancel();
                    self.cancel_attempt(attempt);
                    now
                });
                if now.since(since) >= CANCEL_LIMIT {
                    return Err(ExecError::Cancelled);
                }
            }
            let limit = match cancelled {
                None => session.limit_of(DOWN_LIMIT),
                Some(_) => session.limit_of(CANCEL_LIMIT),
            };
            let paid = Paid {
                bytes_per_s: ctx.throttle.as_ref().map_or(0, |t| t.bytes_per_s()),
                bytes: paid_bytes,
            };
            let must_stop = || match cancelled {
                None => ctx.cancel.is_cancelled() || beside.has_failed(),
                Some(since) => session.runtime.now().since(since) >= CANCEL_LIMIT,
            };
            let asked = self.ask_status(attempt, finished.known, paid, &limit);
            let status = asked.and_then(|mut status| {
                let all = self.read_large_parts(attempt, finished, &mut status, &must_stop)?;
                Ok(all.then_some(status))
            });
            let status = match status {
                Ok(Some(status)) => status,
                // The device reports these parts again, if somebody still asks.
                Ok(None) => continue,
                Err(error) => {
                    // A device that does not know the attempt was restarted, or has ended the
                    // session's state. In both cases the attempt has ended.
                    if error.kind == StorageErrorKind::NotFound {
                        finished.has_ended = true;
                        finished.may_be_adopted = finished.hold;
                    }
                    return Err(failed(error));
                }
            };
            let now = session.runtime.now();
            if last.0 != status.counts || status.end.is_some() {
                last = (status.counts, now);
            } else if now.since(last.1) >= STILL_MAX {
                // The device ends jobs that make no progress, but it cannot end a call that hangs.
                let seconds = STILL_MAX.as_secs();
                let detail = format!("the device answers, and it made no progress for {seconds} s");
                return Err(failed(self.job_error(attempt, &detail)));
            }
            beside.show(&status.counts, &ctx.progress);
            finished.take(&status, job, ctx);
            if status.counts.spent_bytes > most_spent_bytes(job) {
                // The host's own jobs would have to wait until these bytes are paid for.
                let detail = format!(
                    "it says that it has read and written {} bytes for inputs of {}",
                    status.counts.spent_bytes,
                    input_bytes(job)
                );
                self.cancel_attempt(attempt);
                return Err(failed(self.job_error(attempt, &detail)));
            }
            let spent = status.counts.spent_bytes.saturating_sub(paid_bytes);
            if let Some(throttle) = &ctx.throttle
                && spent > 0
            {
                // What the device read and wrote counts against the rate limit of this host. While
                // this waits, the device waits too, because each status request says how many bytes
                // were paid for.
                throttle.spent(spent, &|| ctx.cancel.is_cancelled());
            }
            paid_bytes += spent;
            if status.end.is_some() {
                finished.has_ended = true;
                finished.may_be_adopted = finished.hold;
            }
            match status.end {
                None => {}
                Some(JobEnd::Done { outcome_bytes }) => {
                    return self.read_outcome(attempt, outcome_bytes).map_err(failed);
                }
                Some(JobEnd::Declined(reason)) => return Err(ExecError::Declined { reason }),
                Some(JobEnd::Cancelled) if is_over => {
                    return Err(ExecError::Cancelled);
                }
                Some(JobEnd::Cancelled) => {
                    let detail = "the device ended the job, because the job made no progress, or \
                                  because the device heard nothing from this host";
                    return Err(failed(self.job_error(attempt, detail)));
                }
                Some(JobEnd::Storage(error)) => return Err(failed(error)),
                Some(JobEnd::Failed(reason)) => {
                    return Err(failed(self.job_error(attempt, &reason)));
                }
            }
        }
    }

    fn job_error(&self, attempt: u64, detail: &str) -> StorageError {
        let name = format!("attempt {attempt} on {}", self.session.describe());
        StorageError::new(StorageErrorKind::Io, OP, name, detail)
    }

    fn ask_status(
        &self,
        attempt: u64,
        parts_known: u32,
        paid: Paid,
        limit: &Limit,
    ) -> Result<JobStatus> {
        let request = Request::WaitJob {
            attempt,
            parts_known,
            wait_ms: WAIT_MS,
            bytes_per_s: paid.bytes_per_s,
            paid_bytes: paid.bytes,
        };
        let name = self.session.describe();
        match self.session.ask(limit, OP, &name, &request, &[])? {
            (Answer::Job(status), _) => Ok(status),
            _ => Err(self.session.wrong_answer(OP, &name)),
        }
    }

    /// Reads the parts for which the status had no room. Together with the parts that are kept,
    /// they may have about as many bytes as an outcome. Returns false if `must_stop` ended this
    /// before all of them were read.
    fn read_large_parts(
        &self,
        attempt: u64,
        finished: &Finished,
        status: &mut JobStatus,
        must_stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let session = &self.session;
        let mut total: u64 = finished.part_bytes.values().sum();
        let empty = |part: &(u32, &mut Vec<u8>)| part.1.is_empty();
        let parts = (finished.known..).zip(&mut status.parts);
        for (index, part) in parts.filter(empty) {
            loop {
                if must_stop() {
                    return Ok(false);
                }
                let request = Request::ReadPart {
                    attempt,
                    index,
                    offset: part.len() as u64,
                };
                let limit = session.limit_of(DOWN_LIMIT);
                match session.ask(&limit, OP, &session.describe(), &request, &[])? {
                    (Answer::Bytes, frame) if frame.bulk().is_empty() => break,
                    (Answer::Bytes, frame) if total <= OUTCOME_MAX => {
                        total += frame.bulk().len() as u64;
                        part.extend_from_slice(frame.bulk());
                        if frame.bulk().len() < BULK_MAX {
                            break;
                        }
                    }
                    _ => return Err(self.job_error(attempt, "a part of it could not be read")),
                }
            }
        }
        Ok(true)
    }

    fn read_outcome(&self, attempt: u64, len: u64) -> Result<Outcome> {
        let session = &self.session;
        if len > OUTCOME_MAX {
            return Err(self.job_error(attempt, &format!("its outcome has {len} bytes")));
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < len {
            let request = Request::ReadOutcome {
                attempt,
                offset: bytes.len() as u64,
            };
            let limit = session.limit_of(DOWN_LIMIT);
            match session.ask(&limit, OP, &session.describe(), &request, &[])? {
                (Answer::Bytes, frame) if !frame.bulk().is_empty() => {
                    bytes.extend_from_slice(frame.bulk());
                }
                _ => return Err(self.job_error(attempt, "its outcome ended too early")),
            }
        }
        let decoded = Outcome::decode(&bytes);
        decoded.map_err(|damage| self.job_error(attempt, &format!("its outcome: {damage}")))
    }

    fn cancel_attempt(&self, attempt: u64) {
        let limit = self.session.limit_of(CANCEL_LIMIT);
        self.tell(&Request::CancelJob { attempt }, &limit);
    }

    fn forget_attempt(&self, attempt: u64) {
        let limit = self.session.limit_of(CANCEL_LIMIT);
        if !self.tell(&Request::ForgetJob { attempt }, &limit) {
            self.leave_attempt(attempt);
        }
    }

    /// Leaves an attempt to the keeper, which will end it.
    fn leave_attempt(&self, attempt: u64) {
        self.left_attempts.lock().insert(attempt);
        self.drops.fetch_add(1, Ordering::AcqRel);
    }

    /// Ends the attempts that were left to the keeper. Returns false if that must be tried again.
    pub(super) fn end_left_attempts(&self, limit: &Limit) -> bool {
        let left: Vec<u64> = self.left_attempts.lock().iter().copied().collect();
        for attempt in left {
            let is_told = self.tell(&Request::CancelJob { attempt }, limit)
                && self.tell(&Request::ForgetJob { attempt }, limit);
            if !is_told {
                return false;
            }
            // A device that does not know the attempt has either forgotten it, or has not begun it
            // yet: a request whose caller gave up may still arrive.
            if self.names.has_pending_job() {
                return false;
            }
            match self.ask_status(attempt, 0, Paid::default(), limit) {
                // The attempt still runs. It is forgotten once it has ended.
                Ok(status) if status.end.is_none() => continue,
                Err(error) if error.kind == StorageErrorKind::Unreachable => return false,
                Ok(_) if !self.tell(&Request::ForgetJob { attempt }, limit) => return false,
                _ => {}
            }
            self.left_attempts.lock().remove(&attempt);
        }
        self.left_attempts.lock().is_empty()
    }
}

/// The finished tables of an attempt, as the device reported them.
struct Finished {
    /// The last part of each subjob: the one that the device reported, or the one with which the
    /// attempt began.
    parts: BTreeMap<u32, Part>,
    /// The encoded bytes of those of them that the device reported.
    part_bytes: BTreeMap<u32, u64>,
    /// The subjobs with which the attempt began and about which the device has reported nothing
    /// yet.
    sent: BTreeSet<u32>,
    /// The number of parts that the device has reported.
    known: u32,
    /// Whether the device says that none of the attempt's syncs failed, and every part was well
    /// formed.
    hold: bool,
    has_ended: bool,
    may_be_adopted: bool,
}

/// A job that is done.
pub(super) struct JobRun {
    pub(super) outcome: Outcome,
    /// The boot of the device's machine in which the job ran.
    pub(super) boot: Vec<u8>,
}

/// Takes the parts that earlier attempts of the job left.
fn take_left(job: &Job, ctx: &ExecContext) -> Vec<Part> {
    let Some(handover) = &ctx.handover else {
        return Vec::new();
    };
    match handover.take(job.identity()) {
        Ok(parts) => parts,
        Err(others) => {
            delete_tables(others.iter().map(String::as_str), ctx);
            Vec::new()
        }
    }
}

/// Deletes tables that nobody needs. If their storage cannot be reached, the remaining tables stay,
/// because each further call would wait for its time limit.
pub(super) fn delete_tables<'a>(names: impl Iterator<Item = &'a str>, ctx: &ExecContext) {
    for name in names {
        if let Err(error) = ctx.outputs.delete(ctx.epoch, name) {
            tracing::debug!(%error, "a table of an attempt that ended stays");
            if error.kind == StorageErrorKind::Unreachable {
                return;
            }
        }
    }
}

impl Finished {
    fn new(left: Vec<Part>) -> Finished {
        let left = left.into_iter().filter(|part| !part.tables.is_empty());
        let parts: BTreeMap<u32, Part> = left.map(|part| (part.subjob, part)).collect();
        Finished {
            sent: parts.keys().copied().collect(),
            parts,
            part_bytes: BTreeMap::new(),
            known: 0,
            // The tables with which the attempt began were synced by earlier attempts.
            hold: true,
            has_ended: false,
            may_be_adopted: false,
        }
    }

    /// Keeps the first `count` parts. Deletes the tables of the other parts, which were not sent.
    fn keep_first(&mut self, count: usize, ctx: &ExecContext) {
        while self.parts.len() > count
            && let Some((subjob, part)) = self.parts.pop_last()
        {
            self.sent.remove(&subjob);
            delete_tables(part.tables.iter().map(|table| &table.name[..]), ctx);
        }
    }

    /// Deletes the tables. The device has tried to delete them too.
    fn delete(&mut self, ctx: &ExecContext) {
        let parts = std::mem::take(&mut self.parts);
        let tables = parts.values().flat_map(|part| &part.tables);
        delete_tables(tables.map(|table| &table.name[..]), ctx);
    }

    /// Takes the parts that a status reports.
    fn take(&mut self, status: &JobStatus, job: &Job, ctx: &ExecContext) {
        self.hold = status.parts_hold && (self.known == 0 || self.hold);
        for bytes in &status.parts {
            self.known += 1;
            let checked = match Part::decode(bytes) {
                Err(damage) => Err(damage.to_string()),
                Ok((of, _)) if of != job.identity() => Err("a part of another job".into()),
                Ok((_, part)) => part
                    .check(job)
                    .and_then(|()| part.check_names(&job.output))
                    .map(|()| part),
            };
            match checked {
                Ok(part) => {
                    // A part with which the attempt began is reported first, with the new names of
                    // its tables.
                    if let Some(handover) = &ctx.handover
                        && self.sent.remove(&part.subjob)
                    {
                        handover.note_adopted(part.tables.len());
                    }
                    self.part_bytes.insert(part.subjob, bytes.len() as u64);
                    self.parts.insert(part.subjob, part);
                }
                Err(wrong) => {
                    tracing::warn!(wrong, "a device reported a wrong part of a job");
                    self.hold = false;
                }
            }
        }
    }

    /// Leaves the tables to the next attempt of the job.
    fn leave(&mut self, job: &Job, ctx: &ExecContext) {
        let parts = std::mem::take(&mut self.parts).into_values();
        let parts: Vec<Part> = parts.filter(|part| !part.tables.is_empty()).collect();
        let handover = ctx.handover.as_ref();
        // Another attempt may have left tables since this one began. Those stay in the handover.
        let handover = handover.filter(|handover| handover.left_count() == 0);
        let names = match handover {
            Some(handover) => handover.leave(job.identity(), parts),
            None => {
                let tables = parts.into_iter().flat_map(|part| part.tables);
                tables.map(|table| table.name).collect()
            }
        };
        delete_tables(names.iter().map(String::as_str), ctx);
    }
}

/// Shows the counts of the device as those of the attempt.
fn show(counts: &JobCounts, progress: &Progress) {
    progress.entries.store(counts.entries, Ordering::Relaxed);
    progress.bytes_in.store(counts.bytes_in, Ordering::Relaxed);
    progress
        .bytes_out
        .store(counts.bytes_out, Ordering::Relaxed);
    progress.tables.store(counts.tables, Ordering::Relaxed);
    progress.beats.store(counts.beats, Ordering::Relaxed);
}

/// The stored bytes of the tables that a job reads.
fn input_bytes(job: &Job) -> u64 {
    job.inputs
        .iter()
        .fold(0, |sum, input| sum.saturating_add(input.len_bytes))
}

/// The maximum number of bytes that an attempt can read and write. Uncompressed outputs of
/// compressed inputs may be much larger than the inputs. The length of a stream is not known.
fn most_spent_bytes(job: &Job) -> u64 {
    if job
        .inputs
        .iter()
        .any(|input| input.kind == InputKind::Stream)
    {
        return u64::MAX;
    }
    (64 << 20) + input_bytes(job).saturating_mul(64)
}
