//! Lent work: a device that does not have the store's tables is sent those that a job needs, and
//! its outputs are fetched.
//!
//! The executor has a session of its own on a scratch folder of the device. Tables are found there
//! by their digest, so a table that was sent or made once is not sent again as long as it is kept.
//! The bytes that are kept are bounded by what the device allows. The least recently used tables
//! are dropped first.
//!
//! Invariants: tables that a running job needs are not dropped. No file of this host is made or
//! deleted before the outcome that names it was verified, and an attempt deletes no file that it
//! did not make. A fetched table is complete and synced before its outcome is returned. The
//! session's lease and folder end with the session, so nothing is left on the device. If a call
//! does not reach the device, the attempt makes no further calls there. The tables that the attempt
//! would have deleted count as kept and unfinished, and they are deleted when room is needed. The
//! session is left only if it failed itself. If the host's own storage fails, its error is the
//! attempt's.
//!
//! A job that is cancelled while tables are copied ends when the present piece is copied. The bytes
//! that were appended and not sent yet are dropped with their connection. Pieces are so small that
//! this takes well under a second on a link that carries a megabyte per second. If what was sent
//! cannot be deleted soon, the session is left.
//!
//! Threading: shared. The lock is not held during a call.

mod failed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{
    Access, Epoch, Lease, Mutex, ReadFile, Result, Storage, StorageError, StorageErrorKind,
    WriteFile,
};
use siltstone_table::TableError;
use siltstone_table::exec::{ExecContext, ExecError};
use siltstone_table::job::outcome::{Outcome, OutputTable};
use siltstone_table::job::verify::verify_outcome;
use siltstone_table::job::{Input, Job};

use failed::{
    Failed, Step, check_cancel, here, no_room, not_undone, outage, there, there_or_cancelled,
};

use super::file::RemoteFile;
use super::jobs::{CANCEL_LIMIT, delete_tables};
use super::session::Limit;
use super::storage::DeviceStorage;
use super::{Client, Device};
use crate::wire::hello::FolderWanted;
use crate::wire::job::{JobOrder, LOCATION};

/// The number of bytes that are sent at once.
const SEND_BYTES: usize = 256 << 10;

/// How many bytes are fetched at once: at first, and at most. The first answer is large enough to
/// measure the link.
const FETCH_BYTES: (usize, usize) = (64 << 10, 1 << 20);

/// How long it may take to fetch a piece. A read cannot be interrupted.
const FETCH_TIME: Duration = Duration::from_millis(100);

/// A table on the device.
struct Kept {
    len: u64,
    /// The number of jobs that need it now.
    users: usize,
    last_use: u64,
    /// Whether all its bytes were sent.
    is_complete: bool,
}

/// The result of `Scratch::claim`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Claim {
    /// The device has the table.
    There,
    /// The caller must send the table.
    New,
    /// Another job is sending the table.
    Busy,
}

#[derive(Default)]
struct Tables {
    kept: BTreeMap<String, Kept>,
    bytes: u64,
    clock: u64,
}

/// The scratch folder.
struct Scratch {
    device: Arc<Device>,
    storage: Arc<DeviceStorage>,
    lease: Box<dyn Lease>,
    tables: Mutex<Tables>,
    keep_bytes: u64,
}

/// See the module.
pub(super) struct Lent {
    device: Arc<Device>,
    /// The bytes of tables that were sent.
    pub(super) sent_bytes: AtomicU64,
    scratch: Mutex<Option<Arc<Scratch>>>,
}

/// The name of a table on the device.
fn content_name(digest: u64, len: u64) -> String {
    format!("t-{digest:016x}-{len}.tbl")
}

/// The tables of a job that are in use. Dropping this value ends the use.
struct InUse<'a> {
    scratch: &'a Scratch,
    names: Vec<String>,
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        let mut tables = self.scratch.tables.lock();
        for name in &self.names {
            if let Some(kept) = tables.kept.get_mut(name) {
                kept.users -= 1;
            }
        }
    }
}

impl Lent {
    pub(super) fn new(device: &Arc<Device>) -> Lent {
        Lent {
            device: Arc::clone(device),
            sent_bytes: AtomicU64::new(0),
            scratch: device.client.session.runtime.mutex(None),
        }
    }

    /// Makes the next job open a session of its own. This session ends with the last job that uses
    /// it.
    fn leave_session(&self, scratch: &Arc<Scratch>) {
        let mut current = self.scratch.lock();
        let is_current = current.as_ref().is_some_and(|s| Arc::ptr_eq(s, scratch));
        let left = if is_current { current.take() } else { None };
        drop(current);
        drop(left);
    }

    /// Returns the error of an attempt after one of its steps failed. If the session is of no use
    /// any more, the next job opens another one.
    fn ended(&self, scratch: &Arc<Scratch>, failed: Failed, ctx: &ExecContext) -> ExecError {
        let is_gone = failed.is_gone();
        if is_gone {
            self.leave_session(scratch);
        }
        match failed {
            Failed::NotUndone => ExecError::Cancelled,
            Failed::There(_) if is_gone && ctx.cancel.is_cancelled() => ExecError::Cancelled,
            Failed::There(ExecError::Failed(TableError::Storage(error))) => outage(error).into(),
            Failed::Here(error) | Failed::There(error) => error,
        }
    }

    /// Begins [`Lent::close`], without waiting for its end.
    pub(super) fn begin_close(&self) {
        let scratch = self.scratch.lock().clone();
        if let Some(scratch) = scratch {
            scratch.device.begin_close();
        }
    }

    /// Ends the session on the scratch folder, which the device then empties.
    pub(super) fn close(&self) {
        let scratch = self.scratch.lock().take();
        if let Some(scratch) = scratch {
            scratch.device.close();
        }
    }

    /// Returns the scratch folder. A new one is made if there is none, or if the device has
    /// forgotten it.
    fn scratch(&self) -> Result<Arc<Scratch>> {
        let known = self.scratch.lock().clone();
        if let Some(scratch) = known {
            if scratch.is_usable() {
                return Ok(scratch);
            }
            scratch.device.close();
        }
        let device = self.device.reconnect(FolderWanted::Scratch)?;
        let storage = Arc::new(DeviceStorage::new(Arc::clone(&device.client)));
        let lease = storage.lease("scratch")?;
        let welcome = device.client.session.welcome();
        let runtime = &device.client.session.runtime;
        let scratch = Arc::new(Scratch {
            tables: runtime.mutex(Tables::default()),
            storage,
            lease,
            keep_bytes: welcome.map_or(0, |w| w.keep_bytes),
            device,
        });
        let sooner = {
            let mut current = self.scratch.lock();
            let sooner = current.clone().filter(|other| other.is_usable());
            if sooner.is_none() {
                *current = Some(Arc::clone(&scratch));
            }
            sooner
        };
        let Some(sooner) = sooner else {
            return Ok(scratch);
        };
        // Another job has made one meanwhile.
        scratch.device.close();
        Ok(sooner)
    }

    /// Runs a job: sends its inputs, has the device run it, and fetches its outputs.
    pub(super) fn run(
        &self,
        job: &Job,
        ctx: &ExecContext,
        order: impl FnOnce(&Client, u64) -> JobOrder,
    ) -> std::result::Result<Outcome, ExecError> {
        let scratch = self.scratch().map_err(outage)?;
        let sent = scratch.send_inputs(job, ctx, &self.sent_bytes);
        let in_use = sent.map_err(|failed| self.ended(&scratch, failed, ctx))?;
        let theirs = Job {
            inputs: job.inputs.iter().map(renamed).collect(),
            ..job.clone()
        };
        let client = &scratch.device.client;
        // The host's rate limit is about its own disks. The bytes that are sent and fetched count
        // against it. The bytes that the device reads and writes in its scratch folder do not.
        let order = JobOrder {
            bytes_per_s: 0,
            ..order(client, scratch.lease.epoch().0)
        };
        // The tables that this attempt finishes lie on the device, so no attempt here can continue
        // after them. The tables that earlier attempts left lie here, so the device begins from the
        // start.
        let there = ExecContext {
            outputs: Arc::clone(&scratch.storage) as Arc<dyn Storage>,
            epoch: scratch.epoch(),
            handover: None,
            throttle: None,
            ..ctx.clone()
        };
        let outcome = client.run_job(&theirs, order, &there);
        // The tables that the attempt made may still lie there, and nobody would count them.
        let outcome = outcome.map_err(|error| self.ended(&scratch, Failed::There(error), ctx));
        let mut outcome = outcome.map_err(no_room)?.outcome;
        if outcome.job != theirs.identity() {
            let detail = "the device's outcome is that of another job";
            return Err(scratch.error(detail).into());
        }
        outcome.job = job.identity();
        if verify_outcome(job, &outcome).is_err() {
            // The outcome may name any file of this host, so nothing is fetched. The store rejects
            // it, and does not trust the device any more.
            if outcome
                .names_of(&job.output)
                .any(|name| scratch.delete(name, &scratch.limit()).is_err())
            {
                self.leave_session(&scratch);
            }
            return Ok(outcome);
        }
        let mut made = Vec::new();
        let fetched = scratch.fetch(&outcome, ctx, &mut made);
        drop(in_use);
        if let Err(failed) = fetched {
            // Nothing refers to the fetched tables, nor to the tables on the device. There they
            // would take room that this host counts as free. A name that was taken before belongs
            // to somebody else.
            delete_tables(made.iter().map(String::as_str), ctx);
            // The caller of a cancelled job does not wait for a call for each table.
            let mut is_left = failed.is_gone();
            for table in &outcome.tables {
                is_left = is_left
                    || ctx.cancel.is_cancelled()
                    || scratch.delete(&table.name, &scratch.limit()).is_err();
                if is_left {
                    scratch.leave(&table.name, table.file_bytes);
                }
            }
            return Err(self.ended(&scratch, failed, ctx));
        }
        scratch.keep_outputs(&outcome, ctx);
        Ok(outcome)
    }
}

/// Counts bytes that this host read or wrote, and waits until its rate limit allows more.
fn copied(len: usize, ctx: &ExecContext) {
    ctx.progress.beat();
    if let Some(throttle) = &ctx.throttle {
        throttle.spent(len as u64, &|| ctx.cancel.is_cancelled());
    }
}

/// The input, with the name and the location that it has on the device.
fn renamed(input: &Input) -> Input {
    Input {
        name: content_name(input.digest, input.len_bytes),
        location: LOCATION,
        ..input.clone()
    }
}

impl Scratch {
    fn error(&self, detail: impl Into<String>) -> StorageError {
        let name = self.device.client.session.describe();
        StorageError::new(StorageErrorKind::Io, "run a job", name, detail)
    }

    /// Whether the session has not ended.
    fn is_usable(&self) -> bool {
        self.device.client.session.ended().is_none()
    }

    fn epoch(&self) -> Epoch {
        self.lease.epoch()
    }

    fn limit(&self) -> Limit {
        self.device.client.session.limit()
    }

    /// The limit of a call that gives up when the job is cancelled.
    fn until_cancelled(&self, ctx: &ExecContext) -> Limit {
        self.limit().until(&ctx.cancel)
    }

    /// The limit of a call that undoes what an attempt has begun.
    fn limit_to_undo(&self, ctx: &ExecContext) -> Limit {
        match ctx.cancel.is_cancelled() {
            true => self.device.client.session.limit_of(CANCEL_LIMIT),
            false => self.until_cancelled(ctx),
        }
    }

    /// Sends the inputs that the device does not have.
    fn send_inputs(&self, job: &Job, ctx: &ExecContext, sent_bytes: &AtomicU64) -> Step<InUse<'_>> {
        let total: u64 = job.inputs.iter().map(|input| input.len_bytes).sum();
        // Outputs need about as many bytes as inputs.
        if total.saturating_mul(2) > self.keep_bytes {
            return Err(here(ExecError::declined(format!(
                "the job reads {total} bytes of tables, and the device keeps {} for this host",
                self.keep_bytes
            ))));
        }
        let mut in_use = InUse {
            scratch: self,
            names: Vec::new(),
        };
        // The tables that the device has already are claimed first, so that none of them is dropped
        // to make room.
        let mut missing = Vec::new();
        for input in &job.inputs {
            let name = content_name(input.digest, input.len_bytes);
            match self.claim_complete(&name) {
                true => in_use.names.push(name),
                false => missing.push((input, name)),
            }
        }
        let missing_bytes: u64 = missing.iter().map(|(input, _)| input.len_bytes).sum();
        self.make_room(missing_bytes.saturating_add(total), ctx)?;
        for (input, name) in missing {
            check_cancel(ctx)?;
            match self.claim(&name, input.len_bytes) {
                Claim::There => {
                    in_use.names.push(name);
                    continue;
                }
                Claim::New => in_use.names.push(name.clone()),
                Claim::Busy => {
                    return Err(here(ExecError::declined(format!(
                        "another job is sending {} to the device now",
                        input.name
                    ))));
                }
            }
            let table = ctx.inputs.table(input.location, &input.name);
            let sent = table
                .map_err(here)
                .and_then(|table| self.send(&*table, &name, ctx));
            if let Err(failed) = sent {
                // If the device cannot be reached, the table stays there unfinished until somebody
                // sends it again.
                if !failed.is_gone() {
                    in_use.names.pop();
                    let forgotten = self.forget(&name, &self.limit_to_undo(ctx));
                    forgotten.map_err(|error| not_undone(error, ctx))?;
                }
                return Err(match failed {
                    Failed::There(error) => Failed::There(no_room(error)),
                    failed => failed,
                });
            }
            sent_bytes.fetch_add(input.len_bytes, Ordering::Relaxed);
            if let Some(kept) = self.tables.lock().kept.get_mut(&name) {
                kept.is_complete = true;
            }
        }
        Ok(in_use)
    }

    /// Marks a table as in use, if all of it is on the device.
    fn claim_complete(&self, name: &str) -> bool {
        let mut tables = self.tables.lock();
        tables.clock += 1;
        let clock = tables.clock;
        let kept = tables.kept.get_mut(name).filter(|kept| kept.is_complete);
        let is_complete = kept.is_some();
        if let Some(kept) = kept {
            kept.users += 1;
            kept.last_use = clock;
        }
        is_complete
    }

    /// Marks a table as in use.
    fn claim(&self, name: &str, len: u64) -> Claim {
        let mut tables = self.tables.lock();
        tables.clock += 1;
        let clock = tables.clock;
        match tables.kept.get_mut(name) {
            Some(kept) if !kept.is_complete && kept.users > 0 => Claim::Busy,
            Some(kept) => {
                kept.users += 1;
                kept.last_use = clock;
                match kept.is_complete {
                    true => Claim::There,
                    // The job that began to send the table gave up.
                    false => Claim::New,
                }
            }
            None => {
                tables.bytes += len;
                let kept = Kept {
                    len,
                    users: 1,
                    last_use: clock,
                    is_complete: false,
                };
                tables.kept.insert(name.to_string(), kept);
                Claim::New
            }
        }
    }

    /// Deletes a table from the device.
    ///
    /// # Errors
    /// If the device cannot be reached. Other failures are ignored, because they change nothing.
    fn delete(&self, name: &str, limit: &Limit) -> Result<()> {
        match self.storage.delete_within(limit, self.epoch(), name) {
            Err(error) if error.kind == StorageErrorKind::Unreachable => Err(error),
            _ => Ok(()),
        }
    }

    /// Notes that an unfinished table may be on the device, because it could not be deleted there.
    fn leave(&self, name: &str, len: u64) {
        let mut tables = self.tables.lock();
        if !tables.kept.contains_key(name) {
            tables.bytes += len;
            let kept = Kept {
                len,
                users: 0,
                last_use: 0,
                is_complete: false,
            };
            tables.kept.insert(name.to_string(), kept);
        }
    }

    /// Deletes a kept table. If the device cannot be reached, it is noted with `leave`.
    fn forget(&self, name: &str, limit: &Limit) -> Result<()> {
        let mut tables = self.tables.lock();
        let removed = tables.kept.remove(name);
        let len = removed.map_or(0, |kept| kept.len);
        tables.bytes -= len;
        drop(tables);
        let deleted = self.delete(name, limit);
        deleted.inspect_err(|_| self.leave(name, len))
    }

    /// Drops the least recently used tables until there is room, or until all remaining tables are
    /// in use.
    ///
    /// # Errors
    /// If the device cannot be reached, or the job is cancelled.
    fn make_room(&self, bytes: u64, ctx: &ExecContext) -> Step<()> {
        loop {
            check_cancel(ctx)?;
            let name = {
                let tables = self.tables.lock();
                if tables.bytes + bytes <= self.keep_bytes {
                    return Ok(());
                }
                let unused = tables.kept.iter().filter(|(_, kept)| kept.users == 0);
                let oldest = unused.min_by_key(|(_, kept)| kept.last_use);
                oldest.map(|(name, _)| name.clone())
            };
            let Some(name) = name else {
                return Ok(());
            };
            let forgotten = self.forget(&name, &self.until_cancelled(ctx));
            forgotten.map_err(|error| there_or_cancelled(error, ctx))?;
        }
    }

    /// Sends a table. If that fails, the device takes nothing of it any more, unless it cannot be
    /// reached.
    fn send(&self, table: &dyn ReadFile, name: &str, ctx: &ExecContext) -> Step<()> {
        let created = self.create(name, ctx);
        let file = created.map_err(|error| there_or_cancelled(error, ctx))?;
        let sent = self.send_into(&file, table, name, ctx);
        if sent.as_ref().is_err_and(|failed| !failed.is_gone()) {
            file.0.give_up();
            drop(file);
            // If appends were still executed after the table was deleted, the device would count
            // their bytes until the end of the session.
            let client = &self.device.client;
            let closed = client.close_dropped(name, &self.limit_to_undo(ctx));
            closed.map_err(|error| not_undone(error, ctx))?;
        }
        sent
    }

    /// Creates a table.
    fn create(&self, name: &str, ctx: &ExecContext) -> Result<RemoteFile> {
        let (storage, limit) = (&self.storage, self.until_cancelled(ctx));
        match storage.create_file(&limit, self.epoch(), name) {
            // An earlier attempt left an unfinished table of this name.
            Err(e) if e.kind == StorageErrorKind::AlreadyExists => {
                storage.delete_within(&limit, self.epoch(), name)?;
                storage.create_file(&limit, self.epoch(), name)
            }
            created => created,
        }
    }

    fn send_into(
        &self,
        file: &RemoteFile,
        table: &dyn ReadFile,
        name: &str,
        ctx: &ExecContext,
    ) -> Step<()> {
        table.advise(Access::Sequential, 0, table.len());
        let mut buf = vec![0; SEND_BYTES.min(table.len() as usize)];
        let mut at = 0;
        while at < table.len() {
            check_cancel(ctx)?;
            let len = (table.len() - at).min(SEND_BYTES as u64) as usize;
            table.read_at(at, &mut buf[..len]).map_err(here)?;
            let limit = self.until_cancelled(ctx);
            let appended = file.0.append_within(&[&buf[..len]], &limit);
            appended.map_err(|error| there_or_cancelled(error, ctx))?;
            at += len as u64;
            copied(len, ctx);
        }
        // Appends do not wait for their answers. No sync is needed.
        let drained = file.0.drain(&self.until_cancelled(ctx), "append");
        drained.map_err(|error| there_or_cancelled(error, ctx))?;
        let arrived = self.storage.open(name).map_err(there)?.len();
        if arrived != table.len() {
            file.sync().map_err(there)?;
            let detail = format!("{arrived} of {} bytes of {name} arrived", table.len());
            return Err(there(self.error(detail)));
        }
        Ok(())
    }

    /// How many bytes are fetched at once on the link as it was measured.
    fn fetch_bytes(&self) -> usize {
        let (first, most) = FETCH_BYTES;
        match self.device.client.session.vital.rate.ns_per_byte() {
            Some(ns) => ((FETCH_TIME.as_nanos() as f64 / ns) as usize).clamp(first, most),
            None => first,
        }
    }

    /// Fetches the outputs and makes them durable. Adds the name of each file that it makes to
    /// `made`.
    fn fetch(&self, outcome: &Outcome, ctx: &ExecContext, made: &mut Vec<String>) -> Step<()> {
        for table in &outcome.tables {
            let theirs = self.storage.open(&table.name).map_err(there)?;
            if theirs.len() != table.file_bytes {
                let detail = format!(
                    "the table {} has {} bytes on the device, and the outcome says {}",
                    table.name,
                    theirs.len(),
                    table.file_bytes
                );
                return Err(there(self.error(detail)));
            }
            let created = ctx.outputs.create(ctx.epoch, &table.name);
            let file = created.map_err(here)?;
            made.push(table.name.clone());
            let mut buf = vec![0; FETCH_BYTES.1.min(theirs.len() as usize)];
            let mut announced = None;
            let mut at = 0;
            while at < theirs.len() {
                check_cancel(ctx)?;
                let most = self.fetch_bytes();
                // What is read ahead has to arrive before a later read.
                let access = match most == FETCH_BYTES.1 {
                    true => Access::Sequential,
                    false => Access::Random,
                };
                if announced != Some(access) {
                    theirs.advise(access, at, theirs.len() - at);
                    announced = Some(access);
                }
                let len = (theirs.len() - at).min(most as u64) as usize;
                theirs.read_at(at, &mut buf[..len]).map_err(there)?;
                file.append(&[&buf[..len]]).map_err(here)?;
                at += len as u64;
                copied(len, ctx);
            }
            file.sync().map_err(here)?;
        }
        if !outcome.tables.is_empty() {
            ctx.outputs.sync_dir(ctx.epoch).map_err(here)?;
        }
        Ok(())
    }

    /// Keeps the outputs on the device, under their digests, for later jobs.
    fn keep_outputs(&self, outcome: &Outcome, ctx: &ExecContext) {
        let mut is_gone = false;
        for table in &outcome.tables {
            is_gone = is_gone || self.keep_output(table).is_err();
            if is_gone {
                self.leave(&table.name, table.file_bytes);
            }
        }
        if !is_gone {
            let _ = self.make_room(0, ctx);
        }
    }

    /// Keeps one output.
    ///
    /// # Errors
    /// If the device cannot be reached.
    fn keep_output(&self, table: &OutputTable) -> Result<()> {
        let name = content_name(table.digest, table.file_bytes);
        let claim = self.claim(&name, table.file_bytes);
        let renamed = match claim {
            Claim::New => self.storage.rename(self.epoch(), &table.name, &name),
            Claim::There | Claim::Busy => Ok(()),
        };
        // If the claim is `Busy`, the job that sends the table has it in use.
        if let (Claim::New, Err(error)) = (claim, &renamed)
            && error.kind != StorageErrorKind::Unreachable
        {
            self.forget(&name, &self.limit())?;
        } else if claim != Claim::Busy
            && let Some(kept) = self.tables.lock().kept.get_mut(&name)
        {
            kept.is_complete |= renamed.is_ok();
            kept.users -= 1;
        }
        match renamed {
            Err(error) if error.kind == StorageErrorKind::Unreachable => Err(error),
            Ok(()) if claim == Claim::New => Ok(()),
            // The table is there already, or will be, or could not be renamed.
            _ => self.delete(&table.name, &self.limit()),
        }
    }
}
