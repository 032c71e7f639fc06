//! How a job on a device ends: with success, with a failure, with a wrong outcome, or with a hang
//! and its consequences.
//!
//! Threading: the task that runs the job; [`Ending::Detached`] leaves one more task behind.

use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{OpKind, Storage, StorageErrorKind, WriteFile};
use siltstone_table::error::TableError;
use siltstone_table::exec::{CancelToken, CpuExecutor, ExecContext, ExecError, Executor};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;

use super::{Device, Fate, State};

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The job succeeds.
    Done,
    /// The device declines the job, although it had accepted it.
    Declined,
    /// The job fails before it makes a table.
    Failed,
    /// The job fails after it has finished this many tables, and leaves them to the next attempt.
    FailedAfter(u64),
    /// The job fails after it has made all tables, and leaves them against the executor's promise.
    LeavesOrphans,
    /// The job returns an outcome in which this field is wrong.
    Lie(WrongField),
    /// The job panics.
    Panic,
    /// For this long the job shows no sign of life and does not notice that it is cancelled. Then
    /// it runs as if nothing had happened.
    Hang(Duration),
    /// The job hangs, and then ends as [`Late`] says.
    HangIn(Hang),
    /// The job takes this long and shows signs of life, but does not notice that it is cancelled.
    Uncancellable(Duration),
    /// The job fails after its time, but a task of the device still works on it, hangs, and
    /// continues later.
    Detached(Hang),
}

/// A hang of a job, during which the job does not notice that it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// The call for the job's output at which the hang begins, counted from 0 among the calls of
    /// its kind. `None` for the beginning of the job.
    pub at: Option<(OpKind, u64)>,
    /// How long the job shows no sign of life.
    pub silence: Duration,
    /// What the job does afterwards.
    pub late: Late,
}

/// What a job does after a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// The job runs as if nothing had happened.
    GoesOn,
    /// The job fails after it has finished this many tables, and leaves them to the next attempt.
    Leaves(u64),
    /// If the engine has abandoned the job, it tries to change everything that it can reach.
    /// Otherwise it runs as if nothing had happened.
    Attacks,
}

/// The field of an outcome that is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrongField {
    /// The number of entries of a table.
    Entries,
    /// The digest of a table.
    Digest,
    /// The highest sequence number of a table.
    MaxSeq,
    /// The length of a table.
    FileBytes,
    /// The left bound of a table.
    LeftBound,
    /// The name of a table.
    Name,
    /// The length of a table's entries.
    RawBytes,
    /// The number of puts in a table. The number of its entries is changed with it, so that the two
    /// still fit together.
    Puts,
    /// The identity of the job.
    Job,
}

impl WrongField {
    /// All fields.
    pub const ALL: [WrongField; 9] = [
        WrongField::Entries,
        WrongField::Digest,
        WrongField::MaxSeq,
        WrongField::FileBytes,
        WrongField::LeftBound,
        WrongField::Name,
        WrongField::RawBytes,
        WrongField::Puts,
        WrongField::Job,
    ];

    /// Makes this field of an outcome wrong.
    fn falsify(self, outcome: &mut Outcome) {
        let index = outcome.tables.len() / 2;
        let Some(table) = outcome.tables.get_mut(index) else {
            outcome.job ^= 1;
            return;
        };
        match self {
            WrongField::Entries => table.entries += 1,
            WrongField::Digest => table.digest ^= 1,
            WrongField::MaxSeq => table.max_seq += 1,
            WrongField::FileBytes => table.file_bytes += 1,
            WrongField::LeftBound => table.left_bound.push(1),
            WrongField::Name => table.name.push_str("-other"),
            WrongField::RawBytes => table.raw_bytes = table.raw_bytes.saturating_sub(1),
            WrongField::Puts => {
                table.puts += 1;
                table.entries += 1;
            }
            WrongField::Job => outcome.job ^= 1,
        }
    }
}

impl Ending {
    /// Whether the job may leave tables that no outcome names.
    pub(super) fn may_leave_orphans(self) -> bool {
        matches!(
            self,
            Ending::LeavesOrphans | Ending::Lie(WrongField::Name) | Ending::Detached(_)
        )
    }

    /// Whether the engine may have to abandon the job.
    pub(super) fn may_be_abandoned(self) -> bool {
        matches!(
            self,
            Ending::Hang(_) | Ending::HangIn(_) | Ending::Uncancellable(_)
        )
    }
}

/// How long a job sleeps before it shows a sign of life and checks whether it was cancelled.
const NAP: Duration = Duration::from_millis(100);

/// A job that a device runs.
pub(super) struct Given<'a> {
    pub(super) device: &'a Device,
    pub(super) job: &'a Job,
    pub(super) ctx: &'a ExecContext,
}

/// Counts a job, or a task that it left behind, as hung while this value lives.
struct Hung(Device);

impl Hung {
    fn new(device: &Device) -> Hung {
        device.lock().hung += 1;
        Hung(device.clone())
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.0.lock().hung -= 1;
    }
}

fn failed() -> ExecError {
    TableError::Misuse("the device failed").into()
}

/// The kind of a storage error. `None` for other errors.
pub(super) fn storage_kind(error: &ExecError) -> Option<StorageErrorKind> {
    match error {
        ExecError::Failed(TableError::Storage(error)) => Some(error.kind),
        _ => None,
    }
}

fn is_fenced(outputs: &dyn Storage) -> bool {
    let listed = outputs.list();
    listed.is_err_and(|error| error.kind == StorageErrorKind::Fenced)
}

impl Given<'_> {
    pub(super) fn run(&self, fate: &Fate) -> Result<Outcome, ExecError> {
        // Another machine does not know the tables that the host's attempts left, unless it gets
        // the handover.
        let own = ExecContext {
            handover: self.ctx.handover.clone().filter(|_| fate.adopts),
            max_parallel: fate.tasks.unwrap_or(self.ctx.max_parallel),
            ..self.ctx.clone()
        };
        let host = CpuExecutor::new();
        match fate.ending {
            Ending::Declined => Err(ExecError::declined("the device has changed its mind")),
            Ending::Panic => panic!("the device panics"),
            Ending::Hang(silence) => {
                let hang = Hang {
                    at: None,
                    silence,
                    late: Late::GoesOn,
                };
                self.hang(hang, own, Hung::new(self.device))
            }
            Ending::HangIn(hang) => self.hang(hang, own, Hung::new(self.device)),
            Ending::Uncancellable(time) => {
                let _hung = Hung::new(self.device);
                let uncancellable = uncancellable(own);
                self.sleep(time, &uncancellable)?;
                let result = host.run(self.job, &uncancellable);
                self.note_end(&result);
                result
            }
            Ending::Detached(hang) => {
                let hung = Hung::new(self.device);
                let (device, job, ctx) = (self.device.clone(), self.job.clone(), own.clone());
                let work = move || {
                    let given = Given {
                        device: &device,
                        job: &job,
                        ctx: &ctx,
                    };
                    drop(given.hang(hang, own, hung));
                };
                let _ = self.ctx.runtime.spawn("detached", work);
                // The detached task works meanwhile.
                self.ctx.runtime.sleep(fate.time);
                Err(failed())
            }
            ending => {
                self.sleep(fate.time, self.ctx)?;
                match ending {
                    Ending::Failed => Err(failed()),
                    Ending::FailedAfter(tables) => self.leave(tables, own),
                    Ending::LeavesOrphans => {
                        host.run(self.job, &own)?;
                        Err(failed())
                    }
                    Ending::Lie(field) => {
                        let mut outcome = host.run(self.job, &own)?;
                        field.falsify(&mut outcome);
                        Ok(outcome)
                    }
                    _ => host.run(self.job, &own),
                }
            }
        }
    }

    /// Sleeps and shows signs of life.
    fn sleep(&self, time: Duration, ctx: &ExecContext) -> Result<(), ExecError> {
        let end = ctx.runtime.now() + time;
        loop {
            if ctx.cancel.is_cancelled() {
                return Err(ExecError::Cancelled);
            }
            ctx.progress.beat();
            let left = end.since(ctx.runtime.now());
            if left.is_zero() {
                return Ok(());
            }
            ctx.runtime.sleep(left.min(NAP));
        }
    }

    /// Fails after this many tables are finished, and leaves them.
    fn leave(&self, tables: u64, own: ExecContext) -> Result<Outcome, ExecError> {
        let faults = FaultStorage::new(own.outputs.clone(), &own.runtime);
        let fault = Fault::Fail(StorageErrorKind::Io);
        faults.add(Rule::on(OpKind::Create, fault).nth(tables));
        let before = self
            .ctx
            .handover
            .as_ref()
            .map(|h| (h.clone(), h.adopted_count()));
        let fails = ExecContext {
            outputs: Arc::new(faults),
            handover: self.ctx.handover.clone(),
            ..own
        };
        let result = CpuExecutor::new().run(self.job, &fails);
        if let Some((handover, _)) = &before
            && handover.left_count() > 0
        {
            let mut state = self.device.lock();
            state.reached.add("elsewhere.left_tables");
            state.left.extend(before);
        }
        result
    }

    /// Hangs, and then does what `hang.late` says.
    fn hang(&self, hang: Hang, own: ExecContext, _hung: Hung) -> Result<Outcome, ExecError> {
        let runtime = own.runtime.clone();
        let mut late = uncancellable(own);
        let attack = match hang.late {
            Late::Attacks => Some(Attack::prepare(self.job, &late)?),
            _ => None,
        };
        match hang.at {
            None => runtime.sleep(hang.silence),
            Some((kind, nth)) => {
                let slow = FaultStorage::new(late.outputs.clone(), &runtime);
                slow.add(Rule::on(kind, Fault::Delay(hang.silence)).nth(nth));
                late.outputs = Arc::new(slow);
            }
        }
        if let Some(attack) = attack {
            match is_fenced(&*self.ctx.outputs) {
                true => {
                    let refused = attack.make(self.job, &late);
                    let reached = &mut self.device.lock().reached;
                    reached.add_count("elsewhere.attack_refused", refused);
                }
                false => attack.end(&late)?,
            }
        }
        let result = match hang.late {
            Late::Leaves(tables) => self.leave(tables, late),
            Late::GoesOn | Late::Attacks => CpuExecutor::new().run(self.job, &late),
        };
        self.note_end(&result);
        result
    }

    /// Records the end of a job that may have been abandoned.
    fn note_end(&self, result: &Result<Outcome, ExecError>) {
        let is_abandoned = is_fenced(&*self.ctx.outputs);
        let mut state = self.device.lock();
        if is_abandoned {
            state.reached.add("elsewhere.abandoned");
        }
        let refused = result.as_ref().err().and_then(storage_kind);
        if refused == Some(StorageErrorKind::Fenced) {
            state.reached.add("elsewhere.refused_when_late");
        }
    }
}

/// The same context with a cancel token that the engine does not have.
fn uncancellable(own: ExecContext) -> ExecContext {
    ExecContext {
        cancel: CancelToken::new(),
        ..own
    }
}

/// The preparations of a job before it hangs, to test afterwards whether any change passes the
/// gate.
struct Attack {
    file: Arc<dyn WriteFile>,
    /// The names of the files in the folder before the hang.
    names: Vec<String>,
}

impl Attack {
    fn prepare(job: &Job, ctx: &ExecContext) -> Result<Attack, ExecError> {
        let names = ctx.outputs.list()?.into_iter().map(|o| o.name).collect();
        let name = job.output.table_name(9999, 1);
        let create = || {
            let file = ctx.outputs.create(ctx.epoch, &name)?;
            file.append(&[b"a table that is never finished"])?;
            Ok::<_, ExecError>(file)
        };
        // A failed call may have made the file.
        let file = create().inspect_err(|_| drop(ctx.outputs.delete(ctx.epoch, &name)))?;
        Ok(Attack { file, names })
    }

    /// Deletes the prepared file when the job was not abandoned.
    fn end(&self, ctx: &ExecContext) -> Result<(), ExecError> {
        Ok(ctx.outputs.delete(ctx.epoch, self.file.name())?)
    }

    /// Tries every change, and returns the number of refused changes.
    ///
    /// # Panics
    /// If a change is not refused, because then an abandoned executor changes the store.
    fn make(&self, job: &Job, ctx: &ExecContext) -> u64 {
        let mut refused = 0;
        let mut must_fail = |what: &str, is_refused: bool| {
            assert!(is_refused, "an abandoned executor may still {what}");
            refused += 1;
        };
        let (outputs, epoch, file) = (&ctx.outputs, ctx.epoch, &self.file);
        must_fail("append", file.append(&[b"late"]).is_err());
        must_fail("reserve", file.reserve(1 << 10).is_err());
        must_fail("sync a file", file.sync().is_err());
        must_fail("cut a file", file.truncate_to_position().is_err());
        let new = job.output.table_name(9999, 2);
        must_fail("create", outputs.create(epoch, &new).is_err());
        must_fail("create", outputs.create_direct(epoch, &new).is_err());
        must_fail("publish", outputs.publish(epoch, &new, b"late").is_err());
        must_fail("sync the folder", outputs.sync_dir(epoch).is_err());
        for name in &self.names {
            must_fail("delete", outputs.delete(epoch, name).is_err());
            must_fail("rename", outputs.rename(epoch, name, &new).is_err());
            must_fail("replace", outputs.replace(epoch, name, b"late").is_err());
            must_fail("rewrite", outputs.rewrite_object(epoch, name).is_err());
        }
        for input in &job.inputs {
            let table = ctx.inputs.table(input.location, &input.name);
            let stream = ctx.inputs.stream(input.location, &input.name);
            must_fail("get inputs", table.is_err() && stream.is_err());
        }
        refused
    }
}

impl State {
    /// Records the end of a job.
    pub(super) fn note(&mut self, ending: Ending, result: &Result<Outcome, ExecError>) {
        let is_lie = matches!(ending, Ending::Lie(_));
        let name = match result {
            Ok(_) if is_lie => "elsewhere.lied",
            Ok(_) => "elsewhere.done",
            Err(ExecError::Cancelled) => "elsewhere.cancelled",
            Err(ExecError::Declined { .. }) => "elsewhere.declined",
            Err(error) if storage_kind(error) == Some(StorageErrorKind::NoSpace) => {
                "elsewhere.no_space"
            }
            Err(_) => "elsewhere.failed",
        };
        self.reached.add(name);
        match result {
            Ok(_) if !is_lie => self.troubles = 0,
            Err(ExecError::Cancelled) => {}
            _ => self.troubles += 1,
        }
    }
}
