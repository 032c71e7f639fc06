//! How a job on a device ends: well, with a failure, with a lie, or with a hang and what follows.
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
    /// As it should.
    Done,
    /// Declined, although it was accepted.
    Declined,
    /// Failed before a table was made.
    Failed,
    /// Failed when this many tables were finished. They are left to the next attempt.
    FailedAfter(u64),
    /// Failed when everything was made. It stays where it is, against the executor's promise.
    LeavesOrphans,
    /// With an outcome in which this is wrong.
    Lie(WrongField),
    /// With a panic.
    Panic,
    /// For this long the job shows no sign of life and does not notice that it is cancelled. Then
    /// it runs as if nothing had happened.
    Hang(Duration),
    /// It hangs, and then does something else.
    HangIn(Hang),
    /// It takes this long and shows signs of life, but does not notice that it is cancelled.
    Uncancellable(Duration),
    /// Failed after its time, but a task of the device works on the job, hangs, and goes on later.
    Detached(Hang),
}

/// A hang of a job that does not notice meanwhile that it is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hang {
    /// Where it begins: at this call for the job's output, counted from 0 among those of its kind;
    /// or else at the beginning of the job.
    pub at: Option<(OpKind, u64)>,
    /// For how long there is no sign of life.
    pub silence: Duration,
    /// What follows.
    pub late: Late,
}

/// What a job does after a hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// It runs as if nothing had happened.
    GoesOn,
    /// It fails when this many tables were finished, and leaves them to the next attempt.
    Leaves(u64),
    /// If the engine has abandoned it, it tries to change everything that it can reach. Otherwise
    /// it runs as if nothing had happened.
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
    /// The number of puts, with a number of entries that fits.
    Puts,
    /// The job.
    Job,
}

impl WrongField {
    /// All of them.
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
    /// Whether tables may stay that no outcome names.
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

/// How long a job sleeps before it shows a sign of life and asks whether it was cancelled.
const NAP: Duration = Duration::from_millis(100);

/// A job that a device has in hand.
pub(super) struct Given<'a> {
    pub(super) device: &'a Device,
    pub(super) job: &'a Job,
    pub(super) ctx: &'a ExecContext,
}

/// Counts a job, or a task that it left behind, as hung.
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

/// The kind of the storage's error, if it is one.
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
        // Another machine does not know what the host's attempts left, unless it gets the handover.
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
                // Meanwhile that task works.
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

    /// Sleeps, and shows signs of life meanwhile.
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

    /// Fails when this many tables are finished, and leaves them.
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

    /// Hangs, and then does what is to follow.
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

    /// Records how a job ended that may have been abandoned.
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

/// The same context without the engine's way to cancel it.
fn uncancellable(own: ExecContext) -> ExecContext {
    ExecContext {
        cancel: CancelToken::new(),
        ..own
    }
}

/// What a job prepares before it hangs, to try afterwards whether anything passes the gate.
struct Attack {
    file: Arc<dyn WriteFile>,
    /// The files that were there.
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
        // A call that failed may have made the file.
        let file = create().inspect_err(|_| drop(ctx.outputs.delete(ctx.epoch, &name)))?;
        Ok(Attack { file, names })
    }

    /// There is nothing to attack.
    fn end(&self, ctx: &ExecContext) -> Result<(), ExecError> {
        Ok(ctx.outputs.delete(ctx.epoch, self.file.name())?)
    }

    /// Tries every change, and gives the number of those that were refused.
    ///
    /// # Panics
    /// If one is not refused: then an executor that the engine has given up changes the store.
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
    /// Records how a job ended.
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
