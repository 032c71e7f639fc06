//! The jobs of a session. They run in tasks of their own, and the host asks for their progress.
//!
//! Invariants (RFC 9, section 8):
//! - D4: an attempt changes to done, or to ended without an outcome, in one step under its lock.
//!   The executor deletes outputs only before that. The tables of an attempt that has ended, with
//!   an outcome or without one, belong to the host once the host was told of its end. Tables that
//!   the host was not told of are deleted when it forgets the attempt, or when the state of the
//!   session ends.
//! - D5: an attempt's number begins once (D1, the lane of names).
//! - D6: an attempt has ended when its executor has returned. [`Jobs::end_all`] waits for that.
//! - D8: a job makes bytes durable and leaves names to the host.
//! - An attempt continues after the tables that came with its order. Until it takes them over, they
//!   belong to the host, which knows them. If the attempt ends before that, nothing has happened to
//!   them.
//!
//! Threading: shared. An attempt's lock is never held during a call of a storage.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::planted;
use siltstone_storage::token_bucket::TokenBucket;
use siltstone_storage::{
    Condvar, Epoch, Instant, Mutex, ReadFile, Runtime, Storage, StorageError, StorageErrorKind,
};
use siltstone_table::TableError;
use siltstone_table::exec::part::Part;
use siltstone_table::exec::separated::RebuildExecutor;
use siltstone_table::exec::{
    CancelToken, ExecContext, ExecError, Executor, Handover, Inputs, PartListener, Progress,
    StreamSource, SubjobOrder, Throttle,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Job, OutputPrefix};

use super::Inner;
use super::executors::{Executors, ToRun};
use super::names_kept::NamesKept;
use super::rebuild::{ChunkSource, Chunks};
use super::runs::Runs;
use super::session::SessionState;
use crate::wire::job::{JobCounts, JobEnd, JobOrder, JobStatus, Place, check_locations, get_work};
use crate::wire::survivors::SurvivorsPiece;
use crate::wire::{Answer, Frame};

/// The longest time for which an answer about a job may be delayed.
const WAIT_MAX: Duration = Duration::from_millis(500);

/// A part with more than [`SMALL_PART`] bytes is reported only after this much time has passed
/// since the host began to wait. A part lists all tables of its subjob, so a report after each
/// table would cost a request with more and more bytes for each table.
const PARTS_PAUSE: Duration = Duration::from_millis(100);

/// The maximum number of bytes of a part that is reported at once.
const SMALL_PART: usize = 4 << 10;

/// The maximum number of attempts of a session that are remembered. Most of them have ended. A host
/// makes the device forget an attempt when it knows its end.
const ATTEMPTS_MAX: usize = 256;

/// What the host can learn about an attempt.
#[derive(Default)]
struct Told {
    /// Finished parts, in the order in which they were finished. A later part of a subjob lists all
    /// tables of its earlier parts. It replaces an earlier part that was not reported to the host
    /// yet. The first part of a subjob is never replaced, because the attempt may have begun with
    /// it. A part that the host says it knows is empty, because parts list all tables so far, and
    /// all of them together would take too much memory.
    parts: Vec<Vec<u8>>,
    /// The number of parts that were reported to the host.
    told_count: usize,
    /// The index of the last part of each subjob, or `None` for a subjob that has only one part.
    last: BTreeMap<u32, Option<usize>>,
    /// Set if a sync failed, or if the executor deleted its tables.
    parts_are_lost: bool,
    end: Option<JobEnd>,
    outcome: Vec<u8>,
    /// The tables of an attempt that has ended, until the host was told of the end.
    left: Vec<String>,
    /// Set if the host does not wait for the end. Then the attempt is forgotten when it has ended.
    is_forgotten: bool,
}

struct Attempt {
    /// The survivors that the host sends, if the host decides what is kept.
    chunks: Option<Arc<Chunks>>,
    runs: Runs,
    limit: Arc<Limit>,
    cancel: CancelToken,
    silence: Duration,
    /// The job's identity.
    job: u128,
    /// Where the tables are that may have to be deleted. `None` once there are none, because the
    /// storage of a shared folder keeps a file open.
    outputs: Mutex<Option<Arc<dyn Storage>>>,
    epoch: Epoch,
    told: Mutex<Told>,
    changed: Condvar,
    /// The signs of life at the last check of progress, and when they last changed.
    watched: Mutex<(u64, Instant)>,
}

impl Attempt {
    fn has_ended(&self) -> bool {
        self.told.lock().end.is_some()
    }

    /// Deletes the tables of an attempt that has ended, if the host does not know that it has.
    fn delete_left(&self) {
        let left = std::mem::take(&mut self.told.lock().left);
        self.delete(left);
    }

    /// Deletes tables that nobody will adopt.
    fn delete(&self, names: Vec<String>) {
        let Some(outputs) = self.outputs.lock().take() else {
            return;
        };
        for name in names {
            if let Err(error) = outputs.delete(self.epoch, &name) {
                tracing::debug!(%error, "a table of an attempt that ended stays");
            }
        }
    }
}

impl PartListener for Attempt {
    fn finished(&self, part: &Part) {
        let bytes = part.encode(self.job);
        let mut told = self.told.lock();
        let end = told.parts.len();
        match told.last.get(&part.subjob).copied() {
            Some(Some(last)) if last >= told.told_count => told.parts[last] = bytes,
            before => {
                told.last.insert(part.subjob, before.map(|_| end));
                told.parts.push(bytes);
            }
        }
        self.changed.notify_all();
    }

    fn sync_failed(&self) {
        self.told.lock().parts_are_lost = true;
    }
}

/// See the module.
pub(super) struct Jobs {
    runtime: Runtime,
    attempts: Mutex<BTreeMap<u64, Arc<Attempt>>>,
}

fn unknown(attempt: u64) -> StorageError {
    let detail = "the device does not know this attempt";
    let kind = StorageErrorKind::NotFound;
    StorageError::new(kind, "run a job", format!("attempt {attempt}"), detail)
}

impl Jobs {
    pub(super) fn new(runtime: &Runtime) -> Jobs {
        Jobs {
            runtime: runtime.clone(),
            attempts: runtime.mutex(BTreeMap::new()),
        }
    }

    fn all(&self) -> Vec<Arc<Attempt>> {
        self.attempts.lock().values().cloned().collect()
    }

    /// Takes a piece of survivors, or says that there is no room for it now.
    pub(super) fn survivors(
        &self,
        piece: &SurvivorsPiece,
        crc: u32,
        bytes: &[u8],
    ) -> Result<Answer, StorageError> {
        let attempt = self.attempt(piece.attempt)?;
        match &attempt.chunks {
            Some(chunks) => chunks.take(piece, crc, bytes),
            None => {
                let detail = "the device decides what this job keeps, and takes no survivors";
                let name = format!("attempt {}", piece.attempt);
                let kind = StorageErrorKind::InvalidInput;
                Err(StorageError::new(kind, "run a job", name, detail))
            }
        }
    }

    fn attempt(&self, number: u64) -> Result<Arc<Attempt>, StorageError> {
        let attempts = self.attempts.lock();
        attempts
            .get(&number)
            .cloned()
            .ok_or_else(|| unknown(number))
    }

    /// The number of attempts that are running.
    pub(super) fn running(&self) -> usize {
        let all = self.all();
        all.iter().filter(|attempt| !attempt.has_ended()).count()
    }

    /// Cancels all attempts, and waits until they have ended.
    pub(super) fn end_all(&self) {
        let all = self.all();
        all.iter().for_each(|attempt| attempt.cancel.cancel());
        for attempt in all {
            let mut told = attempt.told.lock();
            while told.end.is_none() && !planted!(JobOutlivesItsLease) {
                told = attempt.changed.wait(told);
            }
            drop(told);
            attempt.delete_left();
        }
    }

    /// Cancels all attempts, for example because the host is silent.
    pub(super) fn cancel_all(&self) {
        self.all()
            .iter()
            .for_each(|attempt| attempt.cancel.cancel());
    }

    /// Treats all attempts as if they had made progress at this time.
    pub(super) fn moved_at(&self, now: Instant) {
        self.all()
            .iter()
            .for_each(|attempt| attempt.watched.lock().1 = now);
    }

    /// Cancels the attempts that made no progress within their time limit (D7).
    pub(super) fn watch(&self) {
        let now = self.runtime.now();
        for attempt in self.all() {
            let signs = attempt.runs.signs_of_life();
            let mut watched = attempt.watched.lock();
            if watched.0 != signs {
                *watched = (signs, now);
            } else if now.since(watched.1) > attempt.silence {
                attempt.cancel.cancel();
            }
        }
    }

    pub(super) fn cancel(&self, number: u64) {
        if let Ok(attempt) = self.attempt(number) {
            attempt.cancel.cancel();
        }
    }

    /// Notes the host's rate limit, and how many bytes of the attempt the host has counted.
    pub(super) fn pay(&self, number: u64, bytes_per_s: u64, paid_bytes: u64) {
        if let Ok(attempt) = self.attempt(number) {
            let limit = &attempt.limit;
            limit.bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
            limit.paid.fetch_max(paid_bytes, Ordering::Relaxed);
        }
    }

    /// Forgets an attempt, now or as soon as it has ended.
    pub(super) fn forget(&self, number: u64) {
        let attempt = {
            let mut attempts = self.attempts.lock();
            let Some(attempt) = attempts.get(&number) else {
                return;
            };
            let mut told = attempt.told.lock();
            if told.end.is_none() {
                told.is_forgotten = true;
                return;
            }
            drop(told);
            attempts.remove(&number)
        };
        if let Some(attempt) = attempt {
            attempt.delete_left();
        }
    }

    /// Reports the state of an attempt. Waits until there is a part that the host does not know, or
    /// the end.
    pub(super) fn wait(
        &self,
        number: u64,
        parts_known: u32,
        wait_ms: u32,
    ) -> Result<Answer, StorageError> {
        let attempt = self.attempt(number)?;
        if let Some(chunks) = &attempt.chunks {
            chunks.asked();
        }
        let wait = Duration::from_millis(wait_ms.into()).min(WAIT_MAX);
        let begun = self.runtime.now();
        let known = parts_known as usize;
        let mut told = attempt.told.lock();
        while told.end.is_none() {
            let until = match told.parts.get(known) {
                None => begun + wait,
                Some(part) if part.len() > SMALL_PART => begun + wait.min(PARTS_PAUSE),
                Some(_) => break,
            };
            let now = self.runtime.now();
            if now >= until {
                break;
            }
            told = attempt.changed.wait_timeout(told, until.since(now)).0;
        }
        for part in told.parts.iter_mut().take(known) {
            *part = Vec::new();
        }
        // A frame has a maximum size. The host asks again for the parts that did not fit. A part
        // that never fits is left empty, and the host reads it with requests of its own.
        let most = crate::wire::frame::FIELDS_MAX / 2;
        let new = told.parts.iter().skip(known).map(|part| match part.len() {
            len if len + 4 <= most => part.clone(),
            _ => Vec::new(),
        });
        let mut bytes = 0;
        let parts = new.take_while(|part| {
            bytes += part.len() + 4;
            bytes <= most
        });
        let parts: Vec<Vec<u8>> = parts.collect();
        // A host cannot know more parts than there are.
        let told_count = (known + parts.len()).min(told.parts.len());
        told.told_count = told.told_count.max(told_count);
        let is_complete = known + parts.len() >= told.parts.len();
        let end = told.end.clone().filter(|_| is_complete);
        if end.is_some() && !told.is_forgotten {
            // From here on the host may know the end, and adopt the tables.
            told.left.clear();
        }
        Ok(Answer::Job(JobStatus {
            counts: JobCounts {
                spent_bytes: attempt.limit.spent.load(Ordering::Relaxed),
                ..attempt.runs.counts()
            },
            parts,
            parts_hold: !told.parts_are_lost || planted!(FailedTablesAreAdopted),
            end,
        }))
    }

    /// Returns a piece of an attempt's part. The piece is empty if `offset` is not below the length
    /// of the part, or if the host has said that it knows the part.
    pub(super) fn read_part(
        &self,
        number: u64,
        index: u32,
        offset: u64,
        most: usize,
    ) -> Result<Vec<u8>, StorageError> {
        let attempt = self.attempt(number)?;
        let told = attempt.told.lock();
        let Some(part) = told.parts.get(index as usize) else {
            let detail = format!("the attempt has {} parts", told.parts.len());
            let name = format!("part {index} of attempt {number}");
            let kind = StorageErrorKind::NotFound;
            return Err(StorageError::new(kind, "run a job", name, detail));
        };
        let from = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(part.len());
        let to = part.len().min(from.saturating_add(most));
        Ok(part[from..to].to_vec())
    }

    /// Returns a piece of the bytes of an outcome.
    pub(super) fn read_outcome(
        &self,
        number: u64,
        offset: u64,
        most: usize,
    ) -> Result<Vec<u8>, StorageError> {
        let attempt = self.attempt(number)?;
        let told = attempt.told.lock();
        let from = (offset as usize).min(told.outcome.len());
        let to = (from + most).min(told.outcome.len());
        Ok(told.outcome[from..to].to_vec())
    }
}

/// The inputs of a job, in the storage that has them. All of them are at [`LOCATION`], which was
/// checked when the job began.
///
/// [`LOCATION`]: crate::wire::job::LOCATION
struct StorageInputs(Arc<dyn Storage>);

impl Inputs for StorageInputs {
    fn table(&self, _: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        Ok(self.0.open(name)?)
    }

    fn stream(&self, _: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        let detail = "a stream does not cross a link";
        let kind = StorageErrorKind::Unsupported;
        Err(StorageError::new(kind, "resolve input", name, detail).into())
    }
}

/// Counts the bytes that one job reads and writes, and limits their rate if the host has a limit.
///
/// The limit applies to all jobs of the host together, wherever they run, so the host counts the
/// bytes of this job too. The job keeps to the rate by itself. It also waits when it has read and
/// written more than the host has counted, by more than the bytes of [`AHEAD`] at that rate.
struct Limit {
    runtime: Runtime,
    progress: Arc<Progress>,
    /// 0 means no limit.
    bytes_per_s: AtomicU64,
    spent: AtomicU64,
    paid: AtomicU64,
    bucket: Mutex<TokenBucket>,
}

/// The burst of a limited job, as time at its rate.
const BURST: Duration = Duration::from_millis(100);

/// How far a job may be ahead of what the host has counted, as time at its rate. A host asks five
/// times per second.
const AHEAD: Duration = Duration::from_secs(1);

/// How often a job that waits for its rate checks whether it should end.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Limit {
    fn new(runtime: &Runtime, progress: &Arc<Progress>, bytes_per_s: u64) -> Limit {
        Limit {
            runtime: runtime.clone(),
            progress: Arc::clone(progress),
            bytes_per_s: AtomicU64::new(bytes_per_s),
            spent: AtomicU64::new(0),
            paid: AtomicU64::new(0),
            bucket: runtime.mutex(TokenBucket::new(runtime.now(), BURST)),
        }
    }

    /// Whether the job must wait.
    fn is_over(&self) -> bool {
        let rate = self.bytes_per_s.load(Ordering::Relaxed);
        let mut bucket = self.bucket.lock();
        bucket.fill(self.runtime.now(), rate);
        if rate == 0 {
            bucket.clear();
            return false;
        }
        let spent = self.spent.load(Ordering::Relaxed);
        let paid = self.paid.load(Ordering::Relaxed);
        let ahead = rate.saturating_mul(AHEAD.as_secs());
        bucket.is_in_debt() || spent > paid.saturating_add(ahead)
    }
}

impl Throttle for Limit {
    fn spent(&self, bytes: u64, stop: &dyn Fn() -> bool) {
        self.spent.fetch_add(bytes, Ordering::Relaxed);
        if self.bytes_per_s() == 0 {
            return;
        }
        self.bucket.lock().spend(bytes);
        while self.is_over() && !stop() {
            // A job that waits because of its rate limit is alive.
            self.progress.beat();
            self.runtime.sleep(STOP_CHECK_INTERVAL);
        }
    }

    fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s.load(Ordering::Relaxed)
    }
}

/// Decodes a part that an earlier attempt of the job left and that the host passes on. Checks that
/// the names of all its tables are names that one attempt of the same writer gives. So the part
/// cannot name other files.
fn part_of(job: &Job, bytes: &[u8]) -> Result<Part, String> {
    let (of, part) = Part::decode(bytes).map_err(|damage| damage.to_string())?;
    if of != job.identity() {
        return Err("a part is one of another job".into());
    }
    part.check(job)?;
    let Some(first) = part.tables.first() else {
        return Err("a part has no tables".into());
    };
    let mut numbers = first.name.split('-');
    let mut number = || u64::from_str_radix(numbers.next().unwrap_or_default(), 16).ok();
    let (Some(epoch), Some(attempt)) = (number(), number()) else {
        return Err(format!("no attempt gives a table the name {}", first.name));
    };
    let output = OutputPrefix { epoch, attempt };
    if epoch != job.output.epoch {
        return Err(format!("{} is a table of another writer", first.name));
    }
    part.check_names(&output)?;
    Ok(part)
}

/// Who decides what a job keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decides {
    /// The device, which runs the whole job.
    Device,
    /// The host, which sends survivors.
    Host,
}

/// Begins a job. The caller has the lane of names.
pub(super) fn begin(
    inner: &Arc<Inner>,
    session: &Arc<SessionState>,
    order: JobOrder,
    decides: Decides,
    frame: &Frame,
) -> Result<Answer, StorageError> {
    const OP: &str = "run a job";
    let shown = format!("attempt {}", order.attempt);
    let invalid = |detail: String| {
        StorageError::new(StorageErrorKind::InvalidInput, OP, shown.clone(), detail)
    };
    let (job, parts) = get_work(frame.bulk()).map_err(|damage| invalid(damage.to_string()))?;
    let job = Job::decode(job).map_err(|damage| invalid(damage.to_string()))?;
    job.check().map_err(|damage| invalid(damage.to_string()))?;
    let parts = parts.into_iter().map(|bytes| part_of(&job, bytes));
    let parts = parts
        .collect::<Result<Vec<Part>, String>>()
        .map_err(invalid)?;
    let (storage, epoch) = match &order.place {
        Place::Session => {
            let folder = session.folder.as_ref();
            let folder = folder.ok_or_else(|| invalid("the session has no folder".into()))?;
            let epoch = session.local_epoch(OP, order.epoch)?;
            (Arc::clone(&folder.storage), epoch)
        }
        Place::Shared { path } => (inner.shared_folder(session, path)?, Epoch(order.epoch)),
    };
    let runtime = &inner.runtime;
    let silence = Duration::from_millis(order.silence_ms.max(1000));
    let chunks =
        (decides == Decides::Host).then(|| Chunks::new(runtime, order.attempt, &job, silence));
    let runs = Runs::new(runtime);
    let new_attempt = |outputs: Option<Arc<dyn Storage>>| Attempt {
        chunks,
        limit: Arc::new(Limit::new(runtime, runs.own(), order.bytes_per_s)),
        runs,
        cancel: CancelToken::new(),
        silence,
        job: job.identity(),
        outputs: runtime.mutex(outputs),
        epoch,
        told: runtime.mutex(Told::default()),
        changed: runtime.condvar(),
        watched: runtime.mutex((0, runtime.now())),
    };
    let mut attempts = session.jobs.attempts.lock();
    if attempts.contains_key(&order.attempt) {
        return Err(invalid("the attempt has begun before".into()));
    }
    if attempts.len() >= ATTEMPTS_MAX {
        let detail = format!("the device knows {ATTEMPTS_MAX} attempts of this host already");
        let kind = StorageErrorKind::TooManyOpen;
        return Err(StorageError::new(kind, OP, shown, detail));
    }
    // The inputs are opened by their names alone, so a name at another location could be that of
    // another table here.
    let declined = match check_locations(&job) {
        Err(reason) => Some(reason),
        Ok(()) if inner.take_slot(decides) => None,
        Ok(()) => Some("the device is busy".into()),
    };
    if let Some(reason) = declined {
        let attempt = new_attempt(None);
        attempt.told.lock().end = Some(JobEnd::Declined(reason));
        attempts.insert(order.attempt, Arc::new(attempt));
        return Ok(Answer::Done);
    }
    let attempt = Arc::new(new_attempt(Some(Arc::clone(&storage))));
    let handed_over = parts.iter().flat_map(|part| &part.tables);
    let handed_over: BTreeSet<String> = handed_over.map(|table| table.name.clone()).collect();
    // A preferred executor begins at the start of the job.
    let is_whole = handed_over.is_empty();
    let names = Arc::new(NamesKept::new(runtime, Arc::clone(&storage), handed_over));
    let handover = Handover::with_parts(runtime, job.identity(), parts);
    let context = ExecContext {
        progress: Arc::clone(attempt.runs.own()),
        cancel: attempt.cancel.clone(),
        max_parallel: order.max_parallel.clamp(1, inner.options.parallelism) as usize,
        throttle: Some(Arc::clone(&attempt.limit) as Arc<dyn Throttle>),
        store: order.store,
        handover: Some(Arc::new(handover)),
        part_listener: Some(Arc::clone(&attempt) as Arc<dyn PartListener>),
        // A host that decides what is kept also plans the subjobs in the order of their keys.
        subjob_order: match decides {
            Decides::Device => SubjobOrder::default(),
            Decides::Host => SubjobOrder::Keys,
        },
        ..ExecContext::new(
            runtime.clone(),
            Arc::new(StorageInputs(storage)),
            Arc::clone(&names) as Arc<dyn Storage>,
            epoch,
        )
    };
    let store = format!("{:032x}", u128::from_be_bytes(order.store));
    tracing::debug!(
        host = session.host,
        attempt = order.attempt,
        store,
        "a job begins"
    );
    let run = Arc::clone(&attempt);
    let task_inner = Arc::clone(inner);
    let (session, number) = (Arc::downgrade(session), order.attempt);
    let lowered_by = lowered_by(&job);
    let task = move || {
        task_inner.runtime.lower_priority(lowered_by);
        let to_run = ToRun {
            job: &job,
            context: &context,
            names: &names,
            runs: &run.runs,
        };
        let ran = execute(&task_inner.executors, &to_run, is_whole, &run);
        // A host that knows the end may begin its next job at once.
        task_inner.give_slot_back(decides);
        note_end(ran, &context, &run);
        let is_forgotten = run.told.lock().is_forgotten;
        if let Some(session) = session.upgrade().filter(|_| is_forgotten) {
            session.jobs.forget(number);
        }
    };
    if let Err(error) = runtime.spawn("job", task) {
        inner.give_slot_back(decides);
        let reason = format!("the device could not start a task: {error}");
        attempt.told.lock().end = Some(JobEnd::Declined(reason));
    }
    attempts.insert(order.attempt, attempt);
    Ok(Answer::Done)
}

/// By how much the priority of a job's tasks is lowered. Requests have the highest priority,
/// because a writer on the host may wait for the answer to an append. Jobs from level 0 come next,
/// because writers are slowed down when level 0 grows. The device recognises these jobs by their
/// number of runs: most other jobs merge the tables of two levels, which are two runs.
fn lowered_by(job: &Job) -> i32 {
    let runs: BTreeSet<u32> = job.inputs.iter().map(|input| input.run).collect();
    match runs.len() {
        0..=2 => 10,
        _ => 3,
    }
}

/// How a job ended. An error of the outer result is a panic.
type Ran = std::thread::Result<Result<Outcome, ExecError>>;

/// Runs a job. `is_whole` is false if the attempt begins with tables of an earlier one.
fn execute(executors: &Executors, to_run: &ToRun<'_>, is_whole: bool, attempt: &Attempt) -> Ran {
    let (job, context) = (to_run.job, to_run.context);
    let begun = context.runtime.task_cpu_ns();
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match &attempt.chunks {
        None => executors.run(to_run, is_whole),
        Some(chunks) => {
            let source = Arc::new(ChunkSource(Arc::clone(chunks)));
            RebuildExecutor::new(source).run(job, context)
        }
    }));
    if let Some(chunks) = &attempt.chunks {
        chunks.end();
    }
    let used = context.runtime.task_cpu_ns().saturating_sub(begun);
    let progress = attempt.runs.own();
    progress.helpers_cpu_ns.fetch_add(used, Ordering::Relaxed);
    ran
}

/// Notes how an attempt ended.
fn note_end(ran: Ran, context: &ExecContext, attempt: &Attempt) {
    let mut outcome = Vec::new();
    let handover = context.handover.as_ref();
    let mut left = handover.map_or_else(Vec::new, |handover| handover.end());
    let is_done = matches!(ran, Ok(Ok(_)));
    let end = match ran {
        Ok(Ok(done)) => {
            outcome = done.encode();
            left.extend(done.tables.into_iter().map(|table| table.name));
            let outcome_bytes = outcome.len() as u64;
            JobEnd::Done { outcome_bytes }
        }
        Ok(Err(ExecError::Declined { reason })) => JobEnd::Declined(reason),
        Ok(Err(ExecError::Cancelled)) => JobEnd::Cancelled,
        Ok(Err(ExecError::Failed(TableError::Storage(error)))) => JobEnd::Storage(error),
        Ok(Err(ExecError::Failed(error))) => JobEnd::Failed(error.to_string()),
        Err(_) => JobEnd::Failed("the device's executor panicked".into()),
    };
    if left.is_empty() {
        *attempt.outputs.lock() = None;
    }
    let told = attempt.told.lock();
    // A caller that ends the session waits for this end, so tables that nobody will adopt are
    // deleted before it.
    let (mut told, left) = match told.is_forgotten {
        false => (told, left),
        true => {
            drop(told);
            attempt.delete(left);
            (attempt.told.lock(), Vec::new())
        }
    };
    told.outcome = outcome;
    // The parts of an attempt with an outcome are not adopted.
    told.parts_are_lost |= is_done || left.is_empty();
    told.left = left;
    told.end = Some(end);
    attempt.changed.notify_all();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn an_attempt(runtime: &Runtime) -> Arc<Attempt> {
        let runs = Runs::new(runtime);
        Arc::new(Attempt {
            chunks: None,
            limit: Arc::new(Limit::new(runtime, runs.own(), 0)),
            runs,
            cancel: CancelToken::new(),
            silence: Duration::from_secs(1),
            job: 7,
            outputs: runtime.mutex(None),
            epoch: Epoch(1),
            told: runtime.mutex(Told::default()),
            changed: runtime.condvar(),
            watched: runtime.mutex((0, runtime.now())),
        })
    }

    #[test]
    fn parts_that_the_host_knows_are_not_kept() {
        let runtime = Runtime::threads();
        let jobs = Jobs::new(&runtime);
        let attempt = an_attempt(&runtime);
        jobs.attempts.lock().insert(1, Arc::clone(&attempt));
        let wait = |known| match jobs.wait(1, known, 0) {
            Ok(Answer::Job(status)) => status.parts,
            other => panic!("{other:?}"),
        };
        let kept = || {
            let told = attempt.told.lock();
            told.parts.iter().map(Vec::len).sum::<usize>()
        };
        (0..3).for_each(|subjob| attempt.finished(&Part::new(subjob)));
        let parts = wait(0);
        assert_eq!(parts.len(), 3);
        // A host that has not received this answer asks for the same parts again.
        assert_eq!(wait(0), parts);
        assert_eq!(wait(2), [parts[2].clone()]);
        assert_eq!(kept(), parts[2].len());
        let read = |index| jobs.read_part(1, index, 0, 1 << 20).unwrap();
        assert_eq!((read(1), read(2)), (Vec::new(), parts[2].clone()));
        // The numbers of later parts do not change.
        attempt.finished(&Part::new(0));
        assert_eq!(wait(3), [parts[0].clone()]);
        attempt.finished(&Part::new(0));
        assert_eq!(wait(4), [parts[0].clone()]);
        assert!(wait(5).is_empty());
        assert_eq!(kept(), 0);
    }
}
