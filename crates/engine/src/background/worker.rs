//! Workers: they wait until the schedule has work, and run it.
//!
//! A failed job is retried after a pause. A worker ends when the store closes.
//!
//! Threading: each worker is a runtime task. A compaction for which no writer will wait soon runs
//! in a task of its own, whose priority is lower, while its worker waits. Otherwise writers and
//! readers would wait for a core while compactions run: a thread that is preempted waits for
//! several milliseconds.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use super::panics::{failed, guarded, panicked, repeat};
use super::slots::Slots;
use crate::env::Env;
use crate::env::failures::JobKind;
use crate::jobs::Jobs;
use crate::jobs::cpu::CpuUse;
use crate::jobs::life::Stopped;
use crate::jobs::location_states::Blame;
use crate::jobs::schedule;
use crate::jobs::take::{Taker, take};
use crate::jobs::work::{Reserved, Role, Work};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::StallPolicy;

/// How long a worker waits at most before it looks for work again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Runs a worker with this role until the store closes. It starts work in the slots of other sides,
/// but runs only work of the host. If it stands in for the worker of work that hangs, it ends when
/// that work does.
pub(super) fn worker(
    jobs: &Arc<Jobs>,
    slots: Option<&Arc<Slots>>,
    role: Role,
    stands_in_for: Option<u64>,
) {
    yield_cores(
        jobs.env(),
        match role {
            Role::MoreFlushes => u32::MAX,
            Role::All | Role::Flushes | Role::Tuned => FLUSH_NICE,
        },
    );
    repeat(jobs.catalog(), "a worker", || {
        work(jobs, slots, role, stands_in_for)
    });
}

/// By how much the nice value of a task that flushes exceeds that of the process, at most. A writer
/// and a flush that compete for a core then get two thirds and one third of it. A writer that is
/// too fast for the flushes waits for memory, and leaves its core to them.
pub(super) const FLUSH_NICE: u32 = 3;

/// Lowers the priority of this task by `most` steps, or by `compaction_nice` if that is less.
pub(super) fn yield_cores(env: &Env, most: u32) {
    let by = env.live().compaction_nice.min(most);
    if by > 0 && env.runtime().has_priorities() {
        env.runtime().lower_priority(by as i32);
    }
}

/// Waits for work and does it. Returns false if the worker ends.
fn work(
    jobs: &Arc<Jobs>,
    slots: Option<&Arc<Slots>>,
    role: Role,
    stands_in_for: Option<u64>,
) -> bool {
    let work = loop {
        let seen = jobs.env().work().count();
        if jobs.env().is_closing() {
            schedule::end_returned(jobs);
            return false;
        }
        if stands_in_for.is_some_and(|id| !jobs.hangs(id)) {
            return false;
        }
        if role == Role::Tuned && jobs.compactions_max().is_none() {
            return false;
        }
        if role == Role::MoreFlushes && jobs.env().live().stall_policy != StallPolicy::Redirect {
            jobs.env().work().wait_past(seen, LOOK_AGAIN);
            continue;
        }
        if let Some(work) = take(jobs, Taker::Worker(role)) {
            break work;
        }
        jobs.env().job_ended().notify();
        jobs.env().work().wait_past(seen, LOOK_AGAIN);
    };
    match slots {
        Some(slots) if work.placed.side != jobs.runner().sides.host() => slots.start(work),
        _ if yields(jobs, &work) => run_with_lower_priority(jobs, work),
        _ => run(jobs, work),
    }
    true
}

/// Whether work of the host should leave the cores to other tasks of the process: a compaction for
/// which no writer will wait soon, because level 0 has at most half of the depth at which writers
/// are slowed down.
fn yields(jobs: &Jobs, work: &Work) -> bool {
    let env = jobs.env();
    work.kind() == JobKind::Compaction
        && env.live().compaction_nice > 0
        && env.runtime().has_priorities()
        && work.keyspace.view().l0_depth as u64 <= work.keyspace.limits().calm_depth()
}

/// Runs a compaction in a task of its own with a lower priority than the worker has, and waits for
/// it. A task cannot raise its priority again, so the worker itself keeps its own.
fn run_with_lower_priority(jobs: &Arc<Jobs>, work: Work) {
    let runtime = jobs.env().runtime();
    let by = jobs.env().live().compaction_nice.saturating_sub(FLUSH_NICE) as i32;
    let in_hand = Arc::new(runtime.mutex(Some(work)));
    let task = {
        let (jobs, in_hand) = (jobs.clone(), in_hand.clone());
        move || {
            jobs.env().runtime().lower_priority(by);
            let work = in_hand.lock().take();
            if let Some(work) = work {
                run(&jobs, work);
            }
        }
    };
    match runtime.spawn("silt-compaction", task) {
        // The panics of the work are caught where it runs. Any other panic continues here.
        Ok(task) => task.join().unwrap_or_else(|panic| resume_unwind(panic)),
        // The system gives no thread, so the worker does the work.
        Err(_) => {
            let work = in_hand.lock().take();
            if let Some(work) = work {
                run(jobs, work);
            }
        }
    }
}

fn run(jobs: &Jobs, mut work: Work) {
    let what = work.describe();
    let cpu = CpuUse::begin(jobs.env(), &work);
    let result = guarded(jobs.env(), || what, || jobs.run(&mut work));
    // The time is counted before the work ends. So a caller that waits until the store is idle
    // finds it counted.
    cpu.end(jobs);
    end_work(jobs, work, result);
}

/// Ends a piece of work, or returns it for another attempt. If the code that does so panics (a
/// subscriber of `tracing` or a storage may), the work has failed, and nothing of it stays
/// reserved.
pub(super) fn end_work(jobs: &Jobs, work: Work, result: Result<std::result::Result<(), Stopped>>) {
    let reserved = work.reserved();
    let what = format!("the end of {}", work.describe());
    let mut work = Some(work);
    let end = || conclude(jobs, &mut work, result);
    if let Err(error) = guarded(jobs.env(), || what, end) {
        lost(jobs, work, &reserved, error);
    }
}

/// Handles a panic at the end of a piece of work. `work` is `None` if the work was being passed to
/// the schedule.
pub(super) fn lost(jobs: &Jobs, work: Option<Work>, reserved: &Reserved, error: Error) {
    // This pauses before the work is due again.
    failed(jobs.env(), error.clone());
    let count = schedule::count_panic(jobs, reserved);
    if let Some(work) = work {
        let what = format!("the end of {}", work.describe());
        let result = Err(error.clone());
        let finish = || schedule::finish(jobs, work, &result, Blame::Store);
        let _ = guarded(jobs.env(), || what, finish);
    }
    schedule::take_back(jobs, reserved);
    panicked(jobs.catalog(), &error, count);
}

/// Ends the work, or returns it. `in_hand` is `None` once the schedule has the work.
fn conclude(
    jobs: &Jobs,
    in_hand: &mut Option<Work>,
    result: Result<std::result::Result<(), Stopped>>,
) {
    let Some(work) = in_hand else { return };
    let result = match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(Stopped::Failed(error))) => Err(error),
        Ok(Err(Stopped::Elsewhere)) => {
            if let Some(work) = in_hand.take() {
                schedule::put_back(jobs, work);
            }
            return;
        }
        Err(error) => {
            // Nothing that it made is used, and no further attempt may resume after its tables.
            work.cancel.cancel();
            let count = schedule::count_panic(jobs, &work.reserved());
            panicked(jobs.catalog(), &error, count);
            Err(error)
        }
    };
    let blame = match &result {
        Err(error) => jobs.blame(work, error),
        Ok(()) => Blame::Store,
    };
    // The health is set before the schedule shows that nothing runs any more. Work that nobody
    // waits for does not make the store refuse writes.
    if let Err(error) = &result
        && error.kind() == ErrorKind::NoSpace
        && blame == Blame::Store
        && !work.is_by_seeks()
    {
        jobs.env().health().set_no_space(error);
    }
    // Work for a keyspace that was dropped, or of a store that closes, has not failed. It is not
    // wanted any more.
    let is_failure =
        |error: &&Error| !matches!(error.kind(), ErrorKind::Closed | ErrorKind::KeyspaceDropped);
    let failure = result.as_ref().err().filter(is_failure).cloned();
    // The flush runs at the other location at once.
    let failure = match blame {
        Blame::Location => {
            if let Some(error) = failure {
                tracing::warn!(%error, "a flush runs again at another location");
                jobs.env().failures().set_last(error);
            }
            None
        }
        Blame::Store | Blame::Room | Blame::Tables => failure,
    };
    // Once the work is finished, it occupies no slot, and failed work is due again at once. So a
    // slot pauses before that. Otherwise each failure would start another task at once. A worker
    // may pause afterwards, because it begins nothing while it pauses.
    let is_elsewhere = work.placed.side != jobs.runner().sides.host();
    let (before, after) = match is_elsewhere {
        true => (failure, None),
        false => (None, failure),
    };
    if let Some(error) = before {
        failed(jobs.env(), error);
    }
    if let Some(work) = in_hand.take() {
        schedule::finish(jobs, work, &result, blame);
    }
    if let Some(error) = after {
        failed(jobs.env(), error);
    }
    jobs.env().pressure().notify();
    jobs.env().maintenance().notify();
}
