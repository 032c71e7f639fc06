//! The tasks of a subjob: one computes pieces, and the one that runs the job writes them.
//!
//! With one lane both are one task, and a piece is written before the next one begins. With two
//! lanes a helper computes a piece in one lane while the piece before it is written from the other.
//! The pieces are written in their order.
//!
//! Invariants: a lane is either with the helper, or in one of two queues, or with the writer. The
//! task that ends first closes both queues, so the other one does not wait for it. The helper has
//! ended when [`run`] returns.
//!
//! Threading: the two tasks share two queues, each with one lock. A wait looks every 100 ms whether
//! the job was cancelled.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use siltstone_storage::{Condvar, Mutex, Runtime};
use siltstone_table::TableError;
use siltstone_table::exec::part::{Part, Point};
use siltstone_table::exec::plan::JobPlan;
use siltstone_table::exec::{CancelToken, ExecError, JobOutput};
use siltstone_table::job::Job;

use crate::buffers::Buffers;
use crate::error::{GpuError, Result};
use crate::lane::Work;
use crate::subjob::{Checks, Done, SubjobRun, Tuning};
use crate::write::Writer;

/// How often a task that waits looks whether the job was cancelled.
const LOOK: Duration = Duration::from_millis(100);

/// What the tasks of a job share.
pub(crate) struct Shared {
    pub job: Job,
    pub plan: JobPlan,
    pub checks: Checks,
    pub tuning: Tuning,
}

/// A subjob that is complete.
pub(crate) struct Complete {
    pub part: Part,
    pub pieces: u64,
    /// The processor time of the helper.
    pub helper_cpu_ns: u64,
    /// The lane, for the next subjob.
    pub work: Work,
}

/// A queue between two tasks. It is closed when either of them has ended.
struct Queue<T> {
    state: Mutex<(VecDeque<T>, bool)>,
    changed: Condvar,
    cancel: CancelToken,
}

impl<T> Queue<T> {
    fn new(runtime: &Runtime, cancel: &CancelToken) -> Arc<Queue<T>> {
        Arc::new(Queue {
            state: runtime.mutex((VecDeque::new(), false)),
            changed: runtime.condvar(),
            cancel: cancel.clone(),
        })
    }

    /// Adds an item. If nobody will take it, it is dropped.
    fn send(&self, item: T) {
        let mut state = self.state.lock();
        let dropped = match state.1 {
            true => Some(item),
            false => {
                state.0.push_back(item);
                None
            }
        };
        drop(state);
        drop(dropped);
        self.changed.notify_all();
    }

    /// Waits for an item. Returns `None` if the queue was closed or the job cancelled.
    fn receive(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.0.pop_front() {
                return Some(item);
            }
            if state.1 || self.cancel.is_cancelled() {
                return None;
            }
            state = self.changed.wait_timeout(state, LOOK).0;
        }
    }

    fn close(&self) {
        let mut state = self.state.lock();
        state.1 = true;
        let items = std::mem::take(&mut state.0);
        drop(state);
        drop(items);
        self.changed.notify_all();
    }
}

/// A piece on its way to the writer: what it is, and the lane that has its blocks.
type Sent = Result<(Done, Work)>;

/// The queues of a subjob.
struct Queues {
    free: Arc<Queue<Work>>,
    pieces: Arc<Queue<Sent>>,
}

/// Closes both queues when its task ends, also by a panic.
struct Closing<'a>(&'a Queues);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.free.close();
    }
}

/// Runs a subjob. `spare` is a second lane.
pub(crate) fn run(
    shared: &Arc<Shared>,
    subjob: usize,
    output: &JobOutput,
    work: Work,
    spare: Option<Work>,
) -> Result<Complete> {
    let job = &shared.job;
    let mut part = Part::new(subjob as u32);
    let Some(plan) = shared.plan.subjob(job, subjob, &Point::Start)? else {
        return Err(TableError::Misuse("a subjob was complete before it began").into());
    };
    let mut tables = output.subjob(&plan, &mut part);
    let mut writer = Writer {
        job,
        bounds: plan.bounds.clone(),
        checks: shared.checks,
        transfer: shared.tuning.transfer,
        tables: 0,
        buffers: Buffers::new(&work.ctx.progress),
    };
    let options = (shared.checks, shared.tuning);
    let (counters, pieces, helper_cpu_ns, work) = match spare {
        None => {
            let mut run = SubjobRun::new(job, plan, work, options);
            let counters = loop {
                let done = run.next_piece()?;
                if let Some((begun, packed)) = &done.made {
                    writer.write(&mut run.work, begun, packed, done.counters, &mut tables)?;
                }
                run.work.wait()?;
                run.work.release_all();
                if done.is_last {
                    break done.counters;
                }
            };
            (counters, run.pieces, 0, run.work)
        }
        Some(spare) => {
            drop(plan);
            let ctx = work.ctx.clone();
            let queues = Arc::new(Queues {
                free: Queue::new(&ctx.runtime, &ctx.cancel),
                pieces: Queue::new(&ctx.runtime, &ctx.cancel),
            });
            queues.free.send(spare);
            let helper = {
                let (shared, queues) = (Arc::clone(shared), Arc::clone(&queues));
                let (runtime, progress) = (ctx.runtime.clone(), Arc::clone(&ctx.progress));
                let help = move || {
                    compute(&shared, subjob, work, &queues);
                    let used_ns = runtime.task_cpu_ns();
                    progress
                        .helpers_cpu_ns
                        .fetch_add(used_ns, Ordering::Relaxed);
                    used_ns
                };
                ctx.runtime.spawn("gpu-compute", help)
            };
            let Ok(helper) = helper else {
                return Err(ExecError::declined("a task could not be started").into());
            };
            let written = write_all(&mut writer, &queues, &mut tables);
            queues.free.close();
            queues.pieces.close();
            match (helper.join(), written) {
                (Ok(used_ns), Ok((counters, pieces, work))) => (counters, pieces, used_ns, work),
                (Ok(_), Err(error)) => return Err(error),
                (Err(_), _) => {
                    return Err(TableError::Misuse("the task that computes panicked").into());
                }
            }
        }
    };
    tables.finish(counters).map_err(GpuError::of_table)?;
    Ok(Complete {
        part,
        pieces,
        helper_cpu_ns,
        work,
    })
}

/// The helper: computes all pieces of a subjob, and sends each to the writer.
fn compute(shared: &Shared, subjob: usize, work: Work, queues: &Queues) {
    struct Ends<'a>(&'a Queues);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            // A writer that waits for a piece that will not come gets an error.
            let what = "the task that computes has ended early";
            self.0.pieces.send(Err(TableError::Misuse(what).into()));
        }
    }
    let _ends = Ends(queues);
    let options = (shared.checks, shared.tuning);
    let begin = || -> Result<SubjobRun<'_>> {
        let plan = shared.plan.subjob(&shared.job, subjob, &Point::Start)?;
        let missing = || TableError::Misuse("a subjob was complete before it began");
        Ok(SubjobRun::new(
            &shared.job,
            plan.ok_or_else(missing)?,
            work,
            options,
        ))
    };
    let mut run = match begin() {
        Ok(run) => run,
        Err(error) => return queues.pieces.send(Err(error)),
    };
    loop {
        let done = match run.next_piece() {
            Ok(done) => done,
            Err(error) => return queues.pieces.send(Err(error)),
        };
        if done.is_last {
            return queues.pieces.send(Ok((done, run.work)));
        }
        // The other lane is free when the piece before this one was written.
        let Some(other) = queues.free.receive() else {
            return;
        };
        let full = std::mem::replace(&mut run.work, other);
        queues.pieces.send(Ok((done, full)));
    }
}

/// Writes the pieces that the helper sends, and gives the lanes back to it. Returns the counts of
/// the subjob, the number of pieces, and a lane.
fn write_all(
    writer: &mut Writer<'_>,
    queues: &Queues,
    tables: &mut siltstone_table::exec::SubjobOutput<'_>,
) -> Result<(siltstone_table::job::outcome::Counters, u64, Work)> {
    let _closing = Closing(queues);
    let mut pieces = 0;
    loop {
        let Some(sent) = queues.pieces.receive() else {
            return Err(GpuError::Exec(ExecError::Cancelled));
        };
        let (done, mut work) = sent?;
        pieces += 1;
        if let Some((begun, packed)) = &done.made {
            writer.write(&mut work, begun, packed, done.counters, tables)?;
        }
        work.wait()?;
        work.release_all();
        if done.is_last {
            return Ok((done.counters, pieces, work));
        }
        queues.free.send(work);
    }
}
