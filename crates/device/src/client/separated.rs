//! The host's half of separated transfer ([RFC 11](../../../../docs/rfc/0011-separated.md),
//! sections 10 to 14): compactions that the host runs on tables that lie on a device, without
//! sending the values over the link.
//!
//! The host reads columns, merges them, and sends the survivors. The device makes the tables. For
//! each subjob three tasks run at the same time: the reader, the planner and the sender.
//!
//! Invariants:
//! - E1 to E4 of executors. The device's half is an attempt like any other attempt on it
//!   (`jobs.rs`).
//! - For a subjob, memory holds two pieces of columns of each run, and four encoded chunks.
//! - When [`Executor::run`] returns, none of its tasks runs any more.
//! - The tables come from a device, so they must be verified like every table from outside.
//!
//! Threading: shared. No lock is held during a request.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::{Condvar, JoinHandle, Mutex, Runtime, StorageError, planted};
use siltstone_table::TableError;
use siltstone_table::exec::part::Point;
use siltstone_table::exec::planner::{ColumnsAhead, Plans};
use siltstone_table::exec::separated::SurvivorStream;
use siltstone_table::exec::{
    CancelToken, ExecContext, ExecError, Executor, ExecutorState, Progress, Side,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{InputKind, Job};

use super::executor::{delete_made, sync_made};
use super::jobs::Beside;
use super::transfer_cost::{Measured, Ran, TransferBytes, choose};
use super::{Client, Device, DeviceExecutor};
use crate::wire::frame::BULK_MAX;
use crate::wire::job::{JobCounts, Place, check_locations};
use crate::wire::request::NamesChange;
use crate::wire::survivors::SurvivorsPiece;
use crate::wire::{Answer, Request};

/// The maximum number of chunks that wait to be sent.
const CHUNKS_MAX: usize = 2;

/// The number of bytes of survivors that are sent at once. A job that is cancelled waits until they
/// are sent, and the link may be slow.
const PIECE_BYTES: usize = 256 << 10;

/// How often a waiting task checks whether the job has ended.
const LOOK: Duration = Duration::from_millis(100);

/// How long the device may be unreachable before the job fails.
const DOWN_LIMIT: Duration = Duration::from_secs(10);

const OP: &str = "run a job";

/// What separated transfer did and saved since the executor was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeparatedStats {
    /// Jobs that ran in this way and succeeded.
    pub job_count: u64,
    /// Jobs that were left to the executor of the host's cores, because moving whole blocks is
    /// cheaper or the job cannot be run in this way.
    pub declined_count: u64,
    /// Jobs that failed.
    pub failed_count: u64,
    /// The bytes of columns that were read.
    pub columns_bytes: u64,
    /// The bytes of survivors that were sent.
    pub survivor_bytes: u64,
    /// The bytes of blocks and tables that would have crossed the link, minus the bytes that did.
    pub saved_bytes: u64,
}

#[derive(Default)]
struct Counts {
    jobs: AtomicU64,
    declined: AtomicU64,
    failed: AtomicU64,
    columns: AtomicU64,
    survivors: AtomicU64,
    saved: AtomicU64,
}

/// See the module.
pub struct SeparatedExecutor {
    device: DeviceExecutor,
    measured: Mutex<Measured>,
    counts: Counts,
    /// Whether every job that can run in this way does, whatever it costs.
    always: bool,
    sizes: Sizes,
}

/// How survivors are cut into chunks and pieces.
#[derive(Clone, Copy)]
struct Sizes {
    /// The number of extents in a chunk. `None` lets the planners choose.
    chunk_extents: Option<usize>,
    /// The number of bytes in a piece.
    piece_bytes: usize,
}

impl SeparatedExecutor {
    /// An executor for a device that holds the tables.
    pub fn new(device: &Arc<Device>) -> SeparatedExecutor {
        let runtime = &device.client.session.runtime;
        SeparatedExecutor {
            device: DeviceExecutor::new("separated", device),
            measured: runtime.mutex(Measured::default()),
            counts: Counts::default(),
            always: false,
            sizes: Sizes {
                chunk_extents: None,
                piece_bytes: PIECE_BYTES,
            },
        }
    }

    /// Makes every job that can run in this way do so, for tests and measurements. Otherwise the
    /// cost model chooses.
    #[must_use]
    pub fn always(mut self) -> SeparatedExecutor {
        self.always = true;
        self
    }

    /// Cuts survivors into chunks of this many extents and pieces of this many bytes, for tests
    /// with small jobs.
    #[must_use]
    pub fn cut_into(mut self, chunk_extents: usize, piece_bytes: usize) -> SeparatedExecutor {
        self.sizes = Sizes {
            chunk_extents: Some(chunk_extents),
            piece_bytes: piece_bytes.clamp(1, BULK_MAX),
        };
        self
    }

    /// What the executor did and saved so far.
    pub fn stats(&self) -> SeparatedStats {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let counts = &self.counts;
        SeparatedStats {
            job_count: load(&counts.jobs),
            declined_count: load(&counts.declined),
            failed_count: load(&counts.failed),
            columns_bytes: load(&counts.columns),
            survivor_bytes: load(&counts.survivors),
            saved_bytes: load(&counts.saved),
        }
    }

    /// The context of the planners. They have a progress and a cancel token of their own, no
    /// handover and no part listener. The rest is as in the job's context.
    fn context_of(ctx: &ExecContext) -> ExecContext {
        ExecContext {
            progress: Arc::default(),
            cancel: CancelToken::new(),
            handover: None,
            part_listener: None,
            ..ctx.clone()
        }
    }

    fn run_if_it_pays(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        self.accepts(job).map_err(ExecError::declined)?;
        let client = self.device.held(ctx);
        let client = client
            .ok_or_else(|| ExecError::declined("whole: the tables do not lie on this device"))?;
        if let ExecutorState::Down(why) = self.device.state() {
            return Err(ExecError::declined(format!(
                "whole: the device is down: {why}"
            )));
        }
        if ctx.handover.as_ref().is_some_and(|h| h.left_count() > 0) {
            let reason = "whole: it goes on after the tables of an earlier attempt";
            return Err(ExecError::declined(reason));
        }
        let epoch = DeviceExecutor::epoch_of(&client)?;
        let plans = Plans::open(job, ctx)?;
        let own = SeparatedExecutor::context_of(ctx);
        let (blocks, columns) = plans.bytes(job);
        let device_parallel = client.session.welcome().map_or(1, |w| w.slots.1 as usize);
        let parallel = ctx
            .max_parallel
            .min(device_parallel)
            .min(job.subjobs())
            .max(1);
        let bytes = TransferBytes {
            blocks,
            columns,
            parallel: parallel as u32,
        };
        let choice = {
            let mut measured = self.measured.lock();
            measured.link_ns_per_byte = client.session.vital.rate.ns_per_byte();
            let choice = choose(&bytes, &measured);
            measured.note_choice(&choice);
            choice
        };
        let reason = match self.always && !choice.separated {
            true => "separated, as always".to_string(),
            false => choice.reason,
        };
        if !choice.separated && !self.always {
            return Err(ExecError::declined(reason));
        }
        ctx.remark(&reason);
        let halves = Arc::new(Halves::new(
            &client,
            job,
            plans,
            own,
            ctx,
            (parallel, self.sizes),
        ));
        let outcome = self.run_there(&client, job, epoch, &halves, ctx);
        let ran = halves.ran(blocks);
        self.count(&ran, &halves, outcome.as_ref().ok());
        outcome
    }

    /// Has the device make the tables as this host decides, and makes the names of the tables
    /// durable.
    fn run_there(
        &self,
        client: &Arc<Client>,
        job: &Job,
        epoch: u64,
        halves: &Arc<Halves>,
        ctx: &ExecContext,
    ) -> Result<Outcome, ExecError> {
        let mut order = self.device.order(client, ctx, Place::Session, epoch);
        order.max_parallel = halves.parallel as u32;
        let attempt = order.attempt;
        let change = NamesChange::BeginRebuild(order);
        let beside = Running(Arc::clone(halves));
        let ran = client.run_attempt(job, (attempt, epoch, change), ctx, &beside)?;
        let outcome = ran.outcome;
        if !outcome.tables.is_empty() {
            let synced = sync_made(client, &outcome, &ran.boot, ctx);
            synced.inspect_err(|_| delete_made(&outcome, job, ctx))?;
        }
        Ok(outcome)
    }

    fn count(&self, ran: &Ran, halves: &Halves, outcome: Option<&Outcome>) {
        let add = |count: &AtomicU64, n: u64| count.fetch_add(n, Ordering::Relaxed);
        let counts = &self.counts;
        let survivors = halves.sent_bytes.load(Ordering::Relaxed);
        add(&counts.columns, ran.columns);
        add(&counts.survivors, survivors);
        let Some(outcome) = outcome else { return };
        let tables = outcome.tables.iter().map(|table| table.file_bytes).sum();
        let ran = Ran { tables, ..*ran };
        self.measured.lock().note(&ran);
        add(&counts.jobs, 1);
        let whole = ran.blocks.saturating_add(tables);
        let crossed = ran.columns.saturating_add(survivors);
        add(&counts.saved, whole.saturating_sub(crossed));
    }
}

impl Executor for SeparatedExecutor {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn side(&self) -> Side {
        Side::Host
    }

    fn accepts(&self, job: &Job) -> Result<(), String> {
        if job.inputs.iter().any(|i| i.kind != InputKind::Table) {
            return Err("whole: a stream has no columns to read".into());
        }
        check_locations(job).map_err(|reason| format!("whole: {reason}"))
    }

    fn state(&self) -> ExecutorState {
        self.device.state()
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let result = self
            .run_if_it_pays(job, ctx)
            .map_err(ExecError::declined_if_unsupported);
        let count = match &result {
            Err(ExecError::Declined { .. }) => &self.counts.declined,
            Err(ExecError::Failed(_)) => &self.counts.failed,
            _ => return result,
        };
        count.fetch_add(1, Ordering::Relaxed);
        result
    }
}

/// Chunks of one subjob that wait to be sent to the device.
struct Outbox {
    state: Mutex<OutboxState>,
    changed: Condvar,
}

#[derive(Default)]
struct OutboxState {
    chunks: VecDeque<Vec<u8>>,
    /// Set when no more chunks will follow.
    is_complete: bool,
    /// Set when nothing is sent any more.
    is_closed: bool,
}

impl Outbox {
    fn new(runtime: &Runtime) -> Arc<Outbox> {
        Arc::new(Outbox {
            state: runtime.mutex(OutboxState::default()),
            changed: runtime.condvar(),
        })
    }

    /// Adds a chunk, as soon as there is room.
    fn push(&self, chunk: Vec<u8>, cancel: &CancelToken) -> Result<(), ExecError> {
        let mut state = self.state.lock();
        while state.chunks.len() >= CHUNKS_MAX {
            if state.is_closed || cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            state = self.changed.wait_timeout(state, LOOK).0;
        }
        state.chunks.push_back(chunk);
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Returns the next chunk, or `None` after the last one.
    fn next(&self, cancel: &CancelToken) -> Result<Option<Vec<u8>>, ExecError> {
        let mut state = self.state.lock();
        loop {
            if cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            if let Some(chunk) = state.chunks.pop_front()
                && !(state.is_complete && planted!(LastChunkIsNotSent))
            {
                drop(state);
                self.changed.notify_all();
                return Ok(Some(chunk));
            }
            if state.is_complete {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, LOOK).0;
        }
    }

    fn set(&self, change: impl FnOnce(&mut OutboxState)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

/// The host's tasks of one attempt.
struct Halves {
    client: Arc<Client>,
    job: Job,
    plans: Plans,
    /// The context of the planners.
    ctx: ExecContext,
    /// The progress of the whole job.
    all: Arc<Progress>,
    parallel: usize,
    sizes: Sizes,
    attempt: AtomicU64,
    next_subjob: AtomicU32,
    failed: Mutex<Option<ExecError>>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    sent_bytes: AtomicU64,
    plan_cpu_ns: AtomicU64,
    /// The latest counts of the device.
    there: Mutex<JobCounts>,
}

/// The memory of one planner, which is counted as part of the job's memory.
struct PlannerMemory<'a> {
    all: &'a AtomicU64,
    own: u64,
}

impl PlannerMemory<'_> {
    fn set(&mut self, bytes: u64) {
        let more = bytes.wrapping_sub(self.own);
        self.all.fetch_add(more, Ordering::Relaxed);
        self.own = bytes;
    }
}

impl Drop for PlannerMemory<'_> {
    fn drop(&mut self) {
        self.set(0);
    }
}

impl Halves {
    fn new(
        client: &Arc<Client>,
        job: &Job,
        plans: Plans,
        own: ExecContext,
        ctx: &ExecContext,
        (parallel, sizes): (usize, Sizes),
    ) -> Halves {
        let runtime = &ctx.runtime;
        Halves {
            client: Arc::clone(client),
            job: job.clone(),
            plans,
            ctx: own,
            all: Arc::clone(&ctx.progress),
            parallel,
            sizes,
            attempt: AtomicU64::new(0),
            next_subjob: AtomicU32::new(0),
            failed: runtime.mutex(None),
            tasks: runtime.mutex(Vec::new()),
            sent_bytes: AtomicU64::new(0),
            plan_cpu_ns: AtomicU64::new(0),
            there: runtime.mutex(JobCounts::default()),
        }
    }

    /// What was measured in the attempt, without its tables.
    fn ran(&self, blocks: u64) -> Ran {
        let there = *self.there.lock();
        Ran {
            columns: self.ctx.progress.bytes_in.load(Ordering::Relaxed),
            plan_cpu_ns: self.plan_cpu_ns.load(Ordering::Relaxed),
            blocks_read: there.bytes_in,
            blocks,
            tables: 0,
            rebuild_cpu_ns: there.cpu_ns,
        }
    }

    /// Notes a failure, and cancels the other tasks.
    fn fail(&self, error: ExecError) {
        if self.ctx.cancel.is_cancelled() {
            return;
        }
        self.failed.lock().get_or_insert(error);
        self.ctx.cancel.cancel();
    }

    /// A task that plans subjobs until none is left.
    fn plan_all(self: &Arc<Halves>) {
        let _guard = FailOnPanic(self);
        loop {
            let subjob = self.next_subjob.fetch_add(1, Ordering::Relaxed);
            if subjob as usize >= self.job.subjobs() || self.ctx.cancel.is_cancelled() {
                break;
            }
            if let Err(error) = self.plan(subjob) {
                self.fail(error);
                break;
            }
        }
        let used = self.ctx.runtime.task_cpu_ns();
        self.plan_cpu_ns.fetch_add(used, Ordering::Relaxed);
        self.add_cpu(used);
    }

    fn add_cpu(&self, ns: u64) {
        self.all.helpers_cpu_ns.fetch_add(ns, Ordering::Relaxed);
    }

    fn spawn(
        self: &Arc<Halves>,
        name: &str,
        run: impl FnOnce(&Halves) + Send + 'static,
    ) -> Result<JoinHandle<()>, ExecError> {
        let halves = Arc::clone(self);
        let task = move || {
            let _guard = FailOnPanic(&halves);
            run(&halves);
            halves.add_cpu(halves.ctx.runtime.task_cpu_ns());
        };
        let spawned = self.ctx.runtime.spawn(name, task);
        let failed = |e| StorageError::from_io(OP, self.client.session.describe(), &e);
        spawned.map_err(|e| failed(e).into())
    }

    /// Plans a subjob, together with a task that reads ahead and a task that sends.
    fn plan(self: &Arc<Halves>, subjob: u32) -> Result<(), ExecError> {
        let runtime = &self.ctx.runtime;
        let reader = ColumnsAhead::new(runtime, &self.ctx.cancel);
        let outbox = Outbox::new(runtime);
        let reading = {
            let reader = Arc::clone(&reader);
            self.spawn("columns", move |_| reader.run())?
        };
        let sending = {
            let outbox = Arc::clone(&outbox);
            self.spawn("survivors", move |halves| {
                if let Err(error) = halves.send(subjob, &outbox) {
                    // The error is noted first, because the planner fails as soon as the outbox is
                    // closed, and only the first error counts.
                    halves.fail(error);
                    outbox.set(|state| state.is_closed = true);
                }
            })
        };
        let planned = match &sending {
            Ok(_) => self.merge(subjob, &reader, &outbox),
            Err(error) => Err(error.clone()),
        };
        reader.close();
        match &planned {
            Ok(()) => outbox.set(|state| state.is_complete = true),
            // The sender ends without sending the remaining chunks.
            Err(error) => self.fail(error.clone()),
        }
        let reading = reading.join();
        let sending = sending.map_or(Ok(()), JoinHandle::join);
        if reading.is_err() || sending.is_err() {
            let what = "a task of a separated job panicked; its job failed";
            return Err(TableError::Misuse(what).into());
        }
        planned
    }

    fn merge(
        &self,
        subjob: u32,
        reader: &Arc<ColumnsAhead>,
        outbox: &Outbox,
    ) -> Result<(), ExecError> {
        let identity = self.job.identity();
        let mut memory = PlannerMemory {
            all: &self.all.buffer_bytes,
            own: 0,
        };
        let (job, ctx) = (&self.job, &self.ctx);
        let mut planner = self
            .plans
            .subjob_ahead(job, subjob, &Point::Start, ctx, reader)?;
        if let Some(extents) = self.sizes.chunk_extents {
            planner.set_chunk_extents(extents);
        }
        while let Some(chunk) = planner.next_chunk()? {
            let bytes = chunk.encode(identity);
            drop(chunk);
            // Besides this chunk and those that wait, one is being sent. They are about equally
            // large.
            memory.set(planner.buffer_bytes() + (CHUNKS_MAX as u64 + 2) * bytes.len() as u64);
            outbox.push(bytes, &ctx.cancel)?;
        }
        Ok(())
    }

    /// Sends the chunks of a subjob.
    fn send(&self, subjob: u32, outbox: &Outbox) -> Result<(), ExecError> {
        let mut number = 0;
        while let Some(chunk) = outbox.next(&self.ctx.cancel)? {
            let mut pieces = chunk.chunks(self.sizes.piece_bytes).peekable();
            while let Some(bytes) = pieces.next() {
                number += 1;
                let piece = SurvivorsPiece {
                    attempt: self.attempt.load(Ordering::Relaxed),
                    subjob,
                    number,
                    ends_chunk: pieces.peek().is_none(),
                };
                self.send_piece(piece, bytes)?;
                let sent = &self.sent_bytes;
                sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Sends a piece, again and again until the device has taken it.
    fn send_piece(&self, piece: SurvivorsPiece, bytes: &[u8]) -> Result<(), ExecError> {
        let session = &self.client.session;
        let request = Request::Survivors(piece);
        let name = session.describe();
        loop {
            if self.ctx.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            let limit = session.limit_of(DOWN_LIMIT);
            match session.ask(&limit, OP, &name, &request, &[bytes])?.0 {
                Answer::Done => return Ok(()),
                // The device has no room, so it is the slowest stage.
                Answer::Later => self.ctx.progress.beat(),
                _ => return Err(session.wrong_answer(OP, &name).into()),
            }
        }
    }
}

/// Makes the attempt end if the task panics. Otherwise the device would wait for survivors that
/// never arrive.
struct FailOnPanic<'a>(&'a Halves);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = "a task of a separated job panicked; its job failed";
            self.0.fail(TableError::Misuse(what).into());
        }
    }
}

/// The host's tasks, as the attempt sees them.
struct Running(Arc<Halves>);

impl Beside for Running {
    fn begin(&self, attempt: u64) {
        let halves = &self.0;
        halves.attempt.store(attempt, Ordering::Relaxed);
        for i in 0..halves.parallel {
            let task_halves = Arc::clone(halves);
            let task = move || task_halves.plan_all();
            match halves.ctx.runtime.spawn(&format!("plan-{i}"), task) {
                Ok(task) => halves.tasks.lock().push(task),
                // The tasks that could be started do the work of this one.
                Err(_) if i > 0 => break,
                Err(e) => {
                    let name = halves.client.session.describe();
                    return halves.fail(StorageError::from_io(OP, name, &e).into());
                }
            }
        }
    }

    fn has_failed(&self) -> bool {
        self.0.failed.lock().is_some()
    }

    fn cancel(&self) {
        self.0.ctx.cancel.cancel();
    }

    fn show(&self, counts: &JobCounts, progress: &Progress) {
        let halves = &self.0;
        *halves.there.lock() = *counts;
        let own = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let planned = &halves.ctx.progress;
        let set = |count: &AtomicU64, n: u64| count.store(n, Ordering::Relaxed);
        set(&progress.entries, own(&planned.entries));
        let read = own(&planned.bytes_in).saturating_add(counts.bytes_in);
        set(&progress.bytes_in, read);
        set(&progress.bytes_out, counts.bytes_out);
        set(&progress.tables, counts.tables);
        let beats = own(&planned.beats).saturating_add(counts.beats);
        set(&progress.beats, beats);
    }

    fn end(&self) -> Option<ExecError> {
        let halves = &self.0;
        let failed = halves.failed.lock().clone();
        halves.ctx.cancel.cancel();
        let tasks = std::mem::take(&mut *halves.tasks.lock());
        let mut has_panicked = false;
        for task in tasks {
            has_panicked |= task.join().is_err();
        }
        if has_panicked {
            let what = "a task of a separated job panicked; its job failed";
            return Some(TableError::Misuse(what).into());
        }
        failed
    }
}
