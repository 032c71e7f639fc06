//! A device as an executor of jobs.
//!
//! How a job is run depends on where its tables lie (RFC 9, section 1):
//! - *held*: the store's folder is on this device, which the base of the job's storage shows;
//! - *shared*: the folder is on this machine, and the device proves that it sees the folder;
//! - *lent*: any other folder. The inputs are sent, and the outputs are fetched (`lent.rs`).
//!
//! Invariants: E1 to E4 of executors. Bytes are durable when the device says so. Names are made
//! durable here, by the job's own storage. A device whose machine was restarted while a job ran may
//! have lost the names, so the attempt fails.
//!
//! Threading: shared.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Mutex, StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::exec::{ExecContext, ExecError, Executor, ExecutorState, LinkUse, Side};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use super::jobs::{JobRun, delete_tables};
use super::lent::Lent;
use super::storage::DeviceStorage;
use super::{Client, Device};
use crate::server::{proof_of, random_id};
use crate::wire::job::{JobOrder, Place, check_locations};
use crate::wire::{Answer, Request};

/// The time without progress after which the device ends a job.
const SILENCE: Duration = Duration::from_secs(30);

/// See the module.
pub struct DeviceExecutor {
    name: String,
    device: Arc<Device>,
    seen: Mutex<Seen>,
    lent: Lent,
    /// Bytes of tables that jobs read and wrote on the device that holds them, and that crossed no
    /// link.
    spared_bytes: AtomicU64,
}

/// Which folders of this machine the device can see.
#[derive(Default)]
struct Seen {
    /// The state of the server that was asked. A restarted server may share other folders.
    state: [u8; 16],
    /// The answers of the server, by the paths of the folders: why it does not see a folder, or
    /// `None` if it sees it.
    folders: Vec<(String, Option<String>)>,
}

/// Whether the device sees a folder of this machine, and the reason if it does not.
enum Proof {
    Seen,
    Unseen(String),
    /// The device gave an answer that does not decide this, for this reason.
    Unknown(String),
}

impl Proof {
    fn why(&self) -> Option<String> {
        match self {
            Proof::Seen => None,
            Proof::Unseen(why) | Proof::Unknown(why) => Some(why.clone()),
        }
    }
}

/// Where a job's tables lie, as the device sees it.
enum Shape {
    Held(Arc<Client>),
    Shared(String),
    Lent,
}

impl DeviceExecutor {
    /// An executor for a device. The session of `device` needs no folder.
    pub fn new(name: &str, device: &Arc<Device>) -> DeviceExecutor {
        let runtime = &device.client.session.runtime;
        DeviceExecutor {
            name: name.to_string(),
            device: Arc::clone(device),
            seen: runtime.mutex(Seen::default()),
            lent: Lent::new(device),
            spared_bytes: AtomicU64::new(0),
        }
    }

    /// The bytes of input tables that were sent for lent work.
    pub fn sent_table_bytes(&self) -> u64 {
        self.lent.sent_bytes.load(Ordering::Relaxed)
    }

    /// Ends the session that the executor has for lent work, if it has one. Call this when no more
    /// jobs will come. Otherwise the device keeps the tables that were sent until it has heard
    /// nothing for [`state_silence`](crate::ServerOptions::state_silence).
    pub fn close(&self) {
        self.lent.close();
    }

    /// Begins [`DeviceExecutor::close`], without waiting for its end.
    pub(crate) fn begin_close(&self) {
        self.lent.begin_close();
    }

    /// The session of the job's tables, if this device holds them.
    pub(super) fn held(&self, ctx: &ExecContext) -> Option<Arc<Client>> {
        let storage = ctx.outputs.base()?.downcast_ref::<DeviceStorage>()?;
        let device = |client: &Client| client.session.welcome().map(|w| w.device);
        let is_held = device(&storage.client) == device(&self.device.client);
        is_held.then(|| Arc::clone(&storage.client))
    }

    /// The epoch of a session's lease.
    pub(super) fn epoch_of(client: &Client) -> Result<u64, ExecError> {
        let epoch = client.session.writer_epoch().ok_or_else(|| {
            let detail = "the store's session does not have the lease any more";
            let kind = StorageErrorKind::Fenced;
            let name = client.session.describe();
            TableError::from(StorageError::new(kind, "run a job", name, detail))
        })?;
        Ok(epoch.0)
    }

    fn shape(&self, ctx: &ExecContext, job: &Job) -> Result<Shape, ExecError> {
        let session = &self.device.client.session;
        if let Some(client) = self.held(ctx) {
            return Ok(Shape::Held(client));
        }
        let mut why = "the device does not hold it".to_string();
        if ctx.outputs.capabilities().has_path {
            let path = ctx.outputs.location();
            match self.why_unseen(ctx, job, &path)? {
                None => return Ok(Shape::Shared(path)),
                Some(reason) => why = reason,
            }
        }
        if session.welcome().is_some_and(|w| w.keep_bytes > 0) {
            return Ok(Shape::Lent);
        }
        Err(ExecError::declined(format!(
            "the device cannot use the folder of tables: {why}; and it takes no tables to keep, \
             which --keep BYTES would allow"
        )))
    }

    /// Why the device does not see the folder of the job's tables. `None` if it sees it. The device
    /// is asked once for each state of the server, and again after an answer that does not decide
    /// the question.
    fn why_unseen(
        &self,
        ctx: &ExecContext,
        job: &Job,
        path: &str,
    ) -> Result<Option<String>, ExecError> {
        let welcome = self.device.client.session.welcome();
        let state = welcome.map_or([0; 16], |welcome| welcome.state);
        {
            let mut seen = self.seen.lock();
            if seen.state != state {
                *seen = Seen {
                    state,
                    ..Seen::default()
                };
            }
            if let Some((_, why)) = seen.folders.iter().find(|(known, _)| known == path) {
                return Ok(why.clone());
            }
        }
        let proof = self.prove(ctx, job, path)?;
        let mut seen = self.seen.lock();
        if seen.state == state
            && let Proof::Seen | Proof::Unseen(_) = &proof
        {
            seen.folders.push((path.to_string(), proof.why()));
        }
        Ok(proof.why())
    }

    /// Lets the device prove that it sees the folder of the job's tables, by reading an object
    /// there whose content nobody else knows.
    fn prove(&self, ctx: &ExecContext, job: &Job, path: &str) -> Result<Proof, ExecError> {
        let session = &self.device.client.session;
        // The name is one of this attempt's outputs, so the next open of the store deletes the
        // object if nobody else does.
        let name = job.table_name(9999, 99_999);
        let bytes = random_id(&session.runtime);
        let salt = random_id(&session.runtime);
        ctx.outputs.publish(ctx.epoch, &name, &bytes)?;
        let request = Request::ProveFolder {
            name: name.clone(),
            salt,
            path: path.to_string(),
        };
        let answer = session.ask(&session.limit(), "share", &name, &request, &[]);
        ctx.outputs.delete(ctx.epoch, &name)?;
        match answer {
            Ok((Answer::Proof(proof), _)) if proof == proof_of(&bytes, &salt) => Ok(Proof::Seen),
            Ok((Answer::Proof(_), _)) => Ok(Proof::Unseen(
                "the device's machine has another folder at this path".to_string(),
            )),
            Err(e) if e.kind == StorageErrorKind::Unreachable => Err(e.into()),
            Err(e)
                if matches!(
                    e.kind,
                    StorageErrorKind::PermissionDenied
                        | StorageErrorKind::NotFound
                        | StorageErrorKind::Unsupported
                        | StorageErrorKind::InvalidInput
                ) =>
            {
                Ok(Proof::Unseen(e.detail))
            }
            Err(e) => Ok(Proof::Unknown(e.detail)),
            Ok(_) => Ok(Proof::Unknown("the device gave no proof".to_string())),
        }
    }

    pub(super) fn order(
        &self,
        client: &Client,
        ctx: &ExecContext,
        place: Place,
        epoch: u64,
    ) -> JobOrder {
        JobOrder {
            attempt: client.new_attempt(),
            store: ctx.store,
            place,
            epoch,
            max_parallel: u32::try_from(ctx.max_parallel).unwrap_or(u32::MAX),
            bytes_per_s: ctx.throttle.as_ref().map_or(0, |limit| limit.bytes_per_s()),
            silence_ms: SILENCE.as_millis() as u64,
        }
    }

    /// Runs a job whose tables the device can reach, and makes the names of the job's outputs
    /// durable.
    fn run_there(
        &self,
        client: &Arc<Client>,
        place: Place,
        epoch: u64,
        job: &Job,
        ctx: &ExecContext,
    ) -> Result<Outcome, ExecError> {
        let is_held = place == Place::Session;
        let order = self.order(client, ctx, place, epoch);
        let JobRun { outcome, boot } = client.run_job(job, order, ctx)?;
        if outcome.tables.is_empty() {
            return Ok(outcome);
        }
        let synced = match is_held {
            true => sync_made(client, &outcome, &boot, ctx),
            false => sync_shared(client, &boot, ctx),
        };
        synced.inspect_err(|_| delete_made(&outcome, job, ctx))?;
        Ok(outcome)
    }
}

/// Makes the names of a job in the session's folder durable. Until then they are unsynced names of
/// the session, and the session knows whether the device's machine may have lost them.
pub(super) fn sync_made(
    client: &Client,
    outcome: &Outcome,
    boot: &[u8],
    ctx: &ExecContext,
) -> Result<(), ExecError> {
    let session = &client.session;
    let made: BTreeSet<String> = outcome.tables.iter().map(|t| t.name.clone()).collect();
    if !client
        .names
        .note_made(session, &made, boot, &session.limit())?
    {
        return Err(was_started_again(client));
    }
    let synced = ctx.outputs.sync_dir(ctx.epoch);
    let are_there = client
        .names
        .made_are_there(session, &made, &session.limit())?;
    synced?;
    match are_there {
        true => Ok(()),
        false => Err(was_started_again(client)),
    }
}

/// As `sync_made`, for a folder that both sides see.
fn sync_shared(client: &Client, boot: &[u8], ctx: &ExecContext) -> Result<(), ExecError> {
    ctx.outputs.sync_dir(ctx.epoch)?;
    match client.session.welcome().is_some_and(|w| w.boot == boot) {
        true => Ok(()),
        false => Err(was_started_again(client)),
    }
}

/// Deletes the tables of a job whose names may be lost. Nothing refers to these tables.
pub(super) fn delete_made(outcome: &Outcome, job: &Job, ctx: &ExecContext) {
    delete_tables(outcome.names_of(&job.output), ctx);
}

fn was_started_again(client: &Client) -> ExecError {
    let detail = "the device's machine was started again before the names of the job's tables were \
                  durable";
    let name = client.session.describe();
    StorageError::new(StorageErrorKind::Io, "run a job", name, detail).into()
}

impl Executor for DeviceExecutor {
    fn name(&self) -> &str {
        &self.name
    }

    fn side(&self) -> Side {
        Side::Device
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        for input in &job.inputs {
            match input.kind {
                InputKind::Table => {}
                InputKind::Stream => {
                    let why = "flushes stay on the host, because memtables do not cross a link";
                    return Err(why.into());
                }
                InputKind::Unknown(number) => {
                    return Err(format!(
                        "input {} has kind {number}, which this build does not know",
                        input.name
                    ));
                }
            }
        }
        check_locations(job)
    }

    fn slots(&self) -> usize {
        let welcome = self.device.client.session.welcome();
        welcome.map_or(1, |w| w.slots.0 as usize)
    }

    fn parallelism(&self) -> usize {
        let welcome = self.device.client.session.welcome();
        welcome.map_or(1, |w| w.slots.1 as usize)
    }

    fn state(&self) -> ExecutorState {
        let session = &self.device.client.session;
        if let Some(error) = session.ended() {
            return ExecutorState::Down(error.to_string());
        }
        match session.down() {
            Some((_, why)) => ExecutorState::Down(why),
            None => ExecutorState::Ready,
        }
    }

    fn link_use(&self) -> Option<LinkUse> {
        Some(LinkUse {
            bytes: self.device.client.session.vital.traffic.of_jobs(),
            spared_bytes: self.spared_bytes.load(Ordering::Relaxed),
        })
    }

    fn counters(&self) -> Vec<(String, u64)> {
        // The session for lent work adds its counts to those of this session. If a session has a
        // folder, the storage reports the counters.
        let session = &self.device.client.session;
        match session.is_for_jobs() {
            true => session.vital.traffic.counters(),
            false => Vec::new(),
        }
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        check_locations(job).map_err(ExecError::declined)?;
        match self.shape(ctx, job)? {
            Shape::Held(client) => {
                let epoch = DeviceExecutor::epoch_of(&client)?;
                let outcome = self.run_there(&client, Place::Session, epoch, job, ctx)?;
                let read = job.inputs.iter().map(|input| input.len_bytes);
                let made = outcome.tables.iter().map(|table| table.file_bytes);
                let spared = read.chain(made).sum();
                self.spared_bytes.fetch_add(spared, Ordering::Relaxed);
                Ok(outcome)
            }
            Shape::Shared(path) => {
                let place = Place::Shared { path };
                self.run_there(&self.device.client, place, ctx.epoch.0, job, ctx)
            }
            Shape::Lent => self.lent.run(job, ctx, |client, epoch| {
                self.order(client, ctx, Place::Session, epoch)
            }),
        }
    }
}
