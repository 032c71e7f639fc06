//! The executors of a store, the questions that they are asked, and what the store knows about
//! each.
//!
//! `Sides` holds the executors, with the host's own as the last one, and a record of each
//! ([`super::record`]): its speed and its failures. An executor that fails too often is suspended
//! for a while. The host is never suspended, because some side must run the jobs. A failure of the
//! host is reported as a failure of the job ([RFC 7](../../../../docs/rfc/0007-slots.md), section
//! 6).
//!
//! Threading: shared. One mutex protects the records, and no call is made while it is held. Events
//! are emitted after it is released.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::planted;
use siltstone_storage::{Instant, Mutex, Runtime};
use siltstone_table::exec::Costs as JobCosts;
use siltstone_table::exec::{CpuExecutor, Executor, ExecutorState, JobSize, Progress};
use siltstone_table::job::Job;

use crate::env::failures::JobKind;
use crate::jobs::choice::{Answer, SideView};
use crate::jobs::costs::{Compacted, Costs};
use crate::jobs::ended::Ended;
use crate::jobs::record::{Record, Speed, Took, Trouble};
use crate::types::event::{Event, Events};
use crate::types::job_stats::SideStats;
use crate::types::metrics::Counter;

/// The index of a side in the list of executors.
pub(crate) type SideId = usize;

/// The maximum number of slots of a side, whatever its executor reports.
const SLOTS_MAX: usize = 64;

/// The jobs of one side together may open at most one in this many of the files that the process
/// may open.
const FILES_SHARE: u64 = 8;

/// The maximum number of subjobs of a job, whatever its executor reports.
const PARALLELISM_MAX: usize = 256;

/// The failure that is recorded when an executor panics while it answers a question.
const PANICKED: &str = "it panicked when it was asked what it can do";

/// Calls foreign code. Returns `None` if it panics; in a simulated run a panic ends the run.
pub(crate) fn guarded<T>(runtime: &Runtime, call: impl FnOnce() -> T) -> Option<T> {
    if runtime.is_simulated() {
        return Some(call());
    }
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// Why the side has no slots, if it has none, as text for people.
fn no_slots(record: &Record, asked: &Asked, now: Instant) -> &'static str {
    if record.is_suspended(now) {
        "is suspended"
    } else if asked.state != ExecutorState::Ready {
        "is not ready"
    } else if asked.slots > 0 {
        "has lost its slots"
    } else {
        "has no slots"
    }
}

/// Counts of the failures of a side, by kind. Counting takes no lock.
#[derive(Default)]
struct Ends {
    /// Jobs that failed, panicked or hung.
    failed: Counter,
    /// Jobs that the side declined after it had accepted them.
    declined: Counter,
    /// Outcomes that were rejected.
    rejected: Counter,
}

/// An executor's answers about its state.
pub(crate) struct Asked {
    state: ExecutorState,
    /// The number of jobs that the executor may run at once.
    slots: usize,
}

/// The maximum length of an executor's name, in characters. Longer names are truncated.
const NAME_MAX: usize = 64;

/// An executor's name, and where it computes. The name comes from foreign code, so it is made safe
/// to print and to use in a task's name.
fn names_of(runtime: &Runtime, executor: &dyn Executor) -> (String, String) {
    let names = || (executor.name().to_string(), executor.side().to_string());
    let (name, side) = guarded(runtime, names).unwrap_or_default();
    let printable = |c: char| if c.is_control() { '?' } else { c };
    let name: String = name.chars().take(NAME_MAX).map(printable).collect();
    match name.is_empty() {
        true => ("unnamed".to_string(), side),
        false => (name, side),
    }
}

/// What jobs cost an executor. Costs that make no sense are replaced, because they come from
/// foreign code.
fn job_costs(runtime: &Runtime, executor: &dyn Executor) -> JobCosts {
    let costs = guarded(runtime, || executor.costs());
    costs.filter(JobCosts::are_sound).unwrap_or(JobCosts::CORE)
}

/// The names of all executors. Users know an executor by its name alone, so one whose name is taken
/// gets a number: `gpu`, `gpu#2`. The host's own executor is the last in the list, and keeps its
/// name.
fn all_names(runtime: &Runtime, executors: &[Arc<dyn Executor>]) -> Vec<(String, String)> {
    // Placements call the store's own executor the host.
    let mut taken = BTreeSet::from(["host".to_string()]);
    let mut with_number = |executor: &Arc<dyn Executor>| {
        let (given, side) = names_of(runtime, &**executor);
        let mut name = given.clone();
        let mut number = 1;
        while !taken.insert(name.clone()) {
            number += 1;
            name = format!("{given}#{number}");
        }
        (name, side)
    };
    let last = executors.last().map(&mut with_number);
    let others = &executors[..executors.len().saturating_sub(1)];
    others.iter().map(with_number).chain(last).collect()
}

/// See the module.
pub(crate) struct Sides {
    runtime: Runtime,
    events: Arc<Events>,
    executors: Vec<Arc<dyn Executor>>,
    /// The name of each executor, and where it computes, as of the open. No two executors have the
    /// same name.
    names: Vec<(String, String)>,
    /// The number of files that the jobs of one side may have open.
    files_max: usize,
    /// For each executor, in their order.
    records: Mutex<Vec<Record>>,
    /// For each executor, in their order.
    ends: Vec<Ends>,
    /// For each executor, in their order.
    costs: Vec<Costs>,
    /// What jobs cost each executor, as of the open, in their order.
    job_costs: Vec<JobCosts>,
    fallbacks: Counter,
}

impl Sides {
    /// The sides of a store, in a process that may have `open_objects_max` files open.
    pub(crate) fn new(
        runtime: &Runtime,
        mut executors: Vec<Arc<dyn Executor>>,
        events: &Arc<Events>,
        open_objects_max: Option<u64>,
    ) -> Sides {
        executors.push(Arc::new(CpuExecutor::new()));
        let records = executors.iter().map(|_| Record::default()).collect();
        let files_max = open_objects_max.map_or(u64::MAX, |max| max / FILES_SHARE);
        Sides {
            records: runtime.mutex(records),
            ends: executors.iter().map(|_| Ends::default()).collect(),
            costs: executors.iter().map(|_| Costs::default()).collect(),
            job_costs: executors.iter().map(|e| job_costs(runtime, &**e)).collect(),
            names: all_names(runtime, &executors),
            runtime: runtime.clone(),
            events: events.clone(),
            executors,
            files_max: usize::try_from(files_max).unwrap_or(usize::MAX),
            fallbacks: Counter::default(),
        }
    }

    /// The host alone, for jobs that do not belong to an open store.
    pub(crate) fn host_only(&self) -> Sides {
        Sides::new(&self.runtime, Vec::new(), &self.events, None)
    }

    /// The host's own executor.
    pub(crate) fn host(&self) -> SideId {
        self.executors.len() - 1
    }

    pub(crate) fn executor(&self, side: SideId) -> &Arc<dyn Executor> {
        &self.executors[side]
    }

    /// An executor's name.
    pub(crate) fn name(&self, side: SideId) -> &str {
        &self.names[side].0
    }

    /// An executor's name, and where it computes.
    pub(crate) fn name_of(&self, side: SideId) -> (String, String) {
        self.names[side].clone()
    }

    /// Asks the sides whether they accept a job. Must not be called under a lock, because executors
    /// are foreign code.
    pub(crate) fn ask(&self, job: &Job) -> Vec<Answer> {
        let host = self.host();
        let accepts = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            if i == host {
                return Answer::Accepts;
            }
            let refusal = match self.ask_one(i, || executor.accepts(job)) {
                Some(answer) => answer.err(),
                None => Some(PANICKED.to_string()),
            };
            let answer = match refusal {
                None => Answer::Accepts,
                Some(_) => Answer::Refuses,
            };
            self.records.lock()[i].refusal = refusal;
            answer
        };
        self.executors.iter().enumerate().map(accepts).collect()
    }

    /// The answers of [`Sides::ask`] when no executor accepts the job, so that only the host runs
    /// it.
    pub(crate) fn nobody(&self) -> Vec<Answer> {
        vec![Answer::Refuses; self.executors.len()]
    }

    /// Asks an executor something. A panic counts as a failure of the side.
    fn ask_one<T>(&self, side: SideId, question: impl FnOnce() -> T) -> Option<T> {
        let answer = guarded(&self.runtime, question);
        if answer.is_none() {
            self.records.lock()[side].last_failure = Some(PANICKED.to_string());
            self.count_trouble(side, Trouble::Failure, PANICKED);
        }
        answer
    }

    /// Asks each executor except the host's own whether it takes jobs, and how many. Must not be
    /// called under a lock, because executors are foreign code.
    pub(crate) fn ask_all(&self) -> Vec<Asked> {
        let asked = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            if i == self.host() {
                let (state, slots) = (ExecutorState::Ready, 0);
                return Asked { state, slots };
            }
            let answer = self.ask_one(i, || match executor.state() {
                ExecutorState::Ready => {
                    let parallelism = executor.parallelism().clamp(1, PARALLELISM_MAX);
                    let slots = self.slots_at_most(parallelism).min(executor.slots());
                    (ExecutorState::Ready, slots)
                }
                state => (state, 0),
            });
            let (state, slots) =
                answer.unwrap_or_else(|| (ExecutorState::Down(PANICKED.to_string()), 0));
            Asked { state, slots }
        };
        self.executors.iter().enumerate().map(asked).collect()
    }

    /// The maximum number of slots of a side whose jobs have `parallelism` subjobs. Each subjob has
    /// one unfinished table open. `env::descriptors` limits open input tables. With a very low
    /// limit a side still has one slot, because a limit must make the store slower and not stop a
    /// part of it.
    fn slots_at_most(&self, parallelism: usize) -> usize {
        (self.files_max / parallelism).clamp(1, SLOTS_MAX)
    }

    /// The maximum number of subjobs of a job for this side.
    pub(crate) fn parallelism(&self, side: SideId) -> usize {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.parallelism());
        answer.unwrap_or(1).clamp(1, PARALLELISM_MAX)
    }

    /// The memory of this process that executors hold whether they run jobs or not.
    pub(crate) fn held_bytes(&self) -> u64 {
        let bytes = |side| self.ask_one(side, || self.executors[side].held_bytes());
        let all = (0..self.host()).filter_map(bytes);
        all.fold(0, u64::saturating_add)
    }

    /// Whether jobs on this side drop what they may if they merge into this level, counted from the
    /// first one below level 0.
    pub(crate) fn drops_into(&self, side: SideId, depth: u32) -> bool {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.drops_into(depth));
        answer.unwrap_or(true)
    }

    /// Whether each outcome of this side is verified completely.
    pub(crate) fn is_verified_whole(&self, side: SideId) -> bool {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.is_verified_whole());
        answer.unwrap_or(true)
    }

    /// The number of tasks that a job on this side may use at once.
    pub(crate) fn tasks(&self, side: SideId) -> usize {
        let executor = &self.executors[side];
        let answer = self.ask_one(side, || executor.tasks());
        answer.unwrap_or(1).clamp(1, PARALLELISM_MAX)
    }

    /// The share of the input bytes that the first part of a job should have, if the side's
    /// executor divides jobs in two.
    pub(crate) fn first_share(&self, side: SideId) -> Option<f64> {
        let executor = &self.executors[side];
        let share = self.ask_one(side, || executor.first_share())??;
        (share > 0.0 && share < 1.0).then_some(share)
    }

    /// What is known about each side now, except the jobs that it runs. `asked` are the answers of
    /// the executors.
    pub(crate) fn view(&self, asked: &[Asked]) -> Vec<SideView<'_>> {
        let host = self.host();
        let now = self.runtime.now();
        let records = self.records.lock();
        let view = records.iter().enumerate().map(|(i, record)| {
            let is_suspended = record.is_suspended(now) && !planted!(OfferToLiars);
            let speeds = record.speeds.each_ref();
            // The host runs jobs whatever its speed, so it is measured in any case.
            let holds = |speed: &Speed| i == host || speed.holds(now);
            let compactions = speeds[JobKind::Compaction as usize];
            SideView {
                name: match i == host {
                    true => "host",
                    false => self.name(i),
                },
                slots: match is_suspended {
                    true => 0,
                    false => asked[i].slots.saturating_sub(record.lost.len()),
                },
                no_slots: no_slots(record, &asked[i], now),
                running: Vec::new(),
                costs: self.job_costs[i],
                factor: speeds.map(|speed| speed.factor().filter(|_| holds(speed))),
                compaction_ns_per_byte: compactions.ns_per_byte().filter(|_| holds(compactions)),
                measured_jobs: speeds.map(|speed| match holds(speed) {
                    true => speed.job_count(),
                    false => 0,
                }),
                is_on_trial: record.is_on_trial() && !planted!(OfferToLiars),
            }
        });
        view.collect()
    }

    /// Counts an abandoned attempt. Its slot is lost until the executor returns.
    pub(crate) fn count_lost(&self, side: SideId, progress: &Arc<Progress>) {
        self.records.lock()[side].lost.push(progress.clone());
    }

    /// Removes an abandoned attempt that has returned.
    pub(crate) fn count_found(&self, side: SideId, progress: &Arc<Progress>) {
        let lost = &mut self.records.lock()[side].lost;
        lost.retain(|p| !Arc::ptr_eq(p, progress));
    }

    /// Memory of the abandoned attempts that have not returned, in bytes.
    pub(crate) fn lost_buffer_bytes(&self) -> u64 {
        if !self.has_others() {
            return 0;
        }
        let records = self.records.lock();
        let lost = records.iter().flat_map(|record| &record.lost);
        let bytes = lost.map(|p| p.buffer_bytes.load(Ordering::Relaxed));
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether there is a side other than the host.
    pub(crate) fn has_others(&self) -> bool {
        self.host() > 0
    }

    /// Counts a job that a side has completed. `took` is the job's size and its nanoseconds. It is
    /// `None` if the attempt took over a part of an earlier one, because then they do not show the
    /// side's speed.
    pub(crate) fn count_believed(&self, side: SideId, kind: JobKind, took: Option<(JobSize, u64)>) {
        let now = self.runtime.now();
        let took = took.map(|(size, ns)| Took {
            bytes: size.bytes.max(1),
            cost: self.job_costs[side].of(&size),
            ns,
        });
        let is_resumed = self.records.lock()[side].believed(kind, took, now);
        if is_resumed {
            let (executor, side) = self.name_of(side);
            self.events.emit(|| Event::SideResumed { executor, side });
        }
    }

    /// Counts a compaction that a side has completed, and that began at this time.
    pub(crate) fn count_compacted(&self, side: SideId, begun: Instant, done: &Compacted) {
        self.costs[side].add(done);
        self.records.lock()[side].busy.add(begun, done.took);
    }

    /// Counts the processor time of the host for a compaction of a side.
    pub(crate) fn count_host_cpu(&self, side: SideId, ns: u64) {
        self.costs[side].host_cpu_ns.add(ns);
    }

    /// Counts a job that a side has not completed. `falls_back` says whether the host may run the
    /// job then. If the store itself may be at fault, the caller counts the trouble once another
    /// side has completed the job.
    pub(crate) fn count_ended(&self, side: SideId, ended: &Ended, falls_back: bool) {
        let trouble = match ended {
            Ended::Cancelled => return,
            Ended::Rejected(_) => Trouble::Lie,
            Ended::Hung => Trouble::Silence,
            Ended::Declined(_) | Ended::Failed(_) => Trouble::Failure,
        };
        let ends = &self.ends[side];
        match ended {
            Ended::Rejected(_) => ends.rejected.add(1),
            Ended::Declined(_) => ends.declined.add(1),
            _ => ends.failed.add(1),
        };
        if side == self.host() {
            return;
        }
        if falls_back && matches!(ended, Ended::Failed(_) | Ended::Hung) {
            self.fallbacks.add(1);
        }
        let said = ended.to_string();
        self.records.lock()[side].last_failure = Some(said.clone());
        if !ended.may_be_the_stores() {
            self.count_trouble(side, trouble, &said);
        }
    }

    /// Counts a failure of a side, which `said` describes. This may suspend the side.
    pub(crate) fn count_trouble(&self, side: SideId, trouble: Trouble, said: &str) {
        let now = self.runtime.now();
        let pause = self.records.lock()[side].trouble(trouble, now);
        let Some(pause) = pause else { return };
        let (executor, side) = self.name_of(side);
        tracing::warn!(
            executor,
            pause_us = pause.as_micros() as u64,
            reason = said,
            "an executor is suspended"
        );
        self.events.emit(|| Event::SideSuspended {
            executor,
            side,
            reason: said.to_string(),
            pause_us: pause.as_micros() as u64,
        });
    }

    /// Counts work that the executor which stands in for the host's cores has failed with.
    pub(crate) fn count_fallback(&self) {
        self.fallbacks.add(1);
    }

    pub(crate) fn declined_count(&self) -> u64 {
        self.ends.iter().map(|ends| ends.declined.get()).sum()
    }

    pub(crate) fn rejected_count(&self) -> u64 {
        self.ends.iter().map(|ends| ends.rejected.get()).sum()
    }

    pub(crate) fn fallback_count(&self) -> u64 {
        self.fallbacks.get()
    }

    pub(crate) fn suspended_count(&self) -> u64 {
        self.records.lock().iter().map(|r| r.suspended).sum()
    }

    /// The counters that the executors keep. Must not be called under a lock.
    pub(crate) fn counters(&self) -> Vec<(String, u64)> {
        let counters = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            self.ask_one(i, || executor.counters()).unwrap_or_default()
        };
        self.executors
            .iter()
            .enumerate()
            .flat_map(counters)
            .collect()
    }

    /// The statistics of each side, except the jobs that it runs or that wait for it. Must not be
    /// called under a lock, because it calls executors.
    pub(crate) fn stats(&self) -> Vec<SideStats> {
        let asked = self.ask_all();
        let link = |(i, executor): (SideId, &Arc<dyn Executor>)| {
            self.ask_one(i, || executor.link_use()).flatten()
        };
        let links: Vec<_> = self.executors.iter().enumerate().map(link).collect();
        let host_cpu = self.costs[self.host()].cpu_ns_per_byte();
        let now = self.runtime.now();
        let records = self.records.lock();
        let of = |(i, record): (SideId, &Record)| {
            let (name, side) = self.name_of(i);
            let left = record.suspended_until.unwrap_or(now).since(now);
            let speed = |kind: JobKind| record.speeds[kind as usize].bytes_per_s();
            let costs = &self.costs[i];
            SideStats {
                name,
                side,
                state: asked[i].state.to_string(),
                slot_count: asked[i].slots as u64,
                lost_slot_count: record.lost.len() as u64,
                running_job_count: 0,
                running_in_bytes: 0,
                running_read_bytes: 0,
                running_out_bytes: 0,
                running_left_us: None,
                waiting_job_count: 0,
                flush_bytes_per_s: speed(JobKind::Flush),
                compaction_bytes_per_s: speed(JobKind::Compaction),
                compaction_ns_per_byte: record.speeds[JobKind::Compaction as usize].ns_per_byte(),
                queue_end: String::new(),
                refusal: record.refusal.clone(),
                failed_count: self.ends[i].failed.get(),
                declined_count: self.ends[i].declined.get(),
                rejected_count: self.ends[i].rejected.get(),
                last_failure: record.last_failure.clone(),
                suspended_count: record.suspended,
                suspended_us: left.as_micros() as u64,
                compaction_count: costs.compaction_count.get(),
                compaction_in_bytes: costs.in_bytes.get(),
                compaction_out_bytes: costs.out_bytes.get(),
                compaction_us: costs.run_ns.get() / 1000,
                compaction_busy_us: record.busy.ns() / 1000,
                compaction_cpu_us: costs.cpu_ns.get() / 1000,
                host_cpu_us: costs.host_cpu_ns.get() / 1000,
                saved_cpu_us: match i == self.host() {
                    true => None,
                    false => costs.saved_cpu_us(host_cpu.or(costs.cpu_ns_per_byte())),
                },
                link_bytes: links[i].map(|link| link.bytes),
                saved_link_bytes: links[i].map(|link| link.spared_bytes),
            }
        };
        records.iter().enumerate().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::sim::{SimConfig, run};

    use super::*;
    use crate::jobs::ended::rejection;
    use crate::types::error::{Error, ErrorKind};

    fn simulated(story: impl FnOnce(Runtime) + Send + 'static) {
        let report = run(SimConfig::new(5), story);
        report.result.unwrap();
    }

    fn sides(rt: &Runtime, open_objects_max: Option<u64>) -> Sides {
        let events = Events::start(rt, None).unwrap();
        let other: Arc<dyn Executor> = Arc::new(CpuExecutor::new());
        Sides::new(rt, vec![other], &events, open_objects_max)
    }

    #[test]
    fn open_files_bound_slots() {
        simulated(|rt| {
            for (files, parallelism, slots) in [
                (None, 1, SLOTS_MAX),
                (None, PARALLELISM_MAX, SLOTS_MAX),
                (Some(u64::MAX), 1, SLOTS_MAX),
                (Some(1024), 1, SLOTS_MAX),
                (Some(1024), 4, 32),
                (Some(1024), 100, 1),
                (Some(1024), PARALLELISM_MAX, 1),
                (Some(0), 1, 1),
            ] {
                let sides = sides(&rt, files);
                assert_eq!(sides.slots_at_most(parallelism), slots, "{files:?}");
            }
        });
    }

    #[test]
    fn each_end_of_a_job_is_counted_and_named() {
        simulated(|rt| {
            let sides = sides(&rt, None);
            let io = || Error::new(ErrorKind::Io, "its link is down");
            let last = |side: &SideStats| side.last_failure.clone().unwrap();
            sides.count_ended(0, &Ended::Declined("no kernel".into()), true);
            let side = &sides.stats()[0];
            assert_eq!((side.declined_count, side.suspended_us), (1, 0));
            assert!(last(side).contains("no kernel"), "{side:?}");
            sides.count_ended(0, &Ended::Failed(io()), true);
            sides.count_ended(0, &Ended::Cancelled, true);
            sides.count_ended(
                0,
                &Ended::Rejected(rejection("a count is wrong", "gpu0")),
                true,
            );
            let side = &sides.stats()[0];
            assert_eq!((side.failed_count, side.rejected_count), (1, 1));
            assert!(last(side).contains("a count is wrong"), "{side:?}");
            assert_eq!((side.suspended_count, side.suspended_us), (1, 30_000_000));
            // Failures of the host are counted, but the host is never suspended.
            (0..5).for_each(|_| sides.count_ended(1, &Ended::Failed(io()), true));
            let host = &sides.stats()[1];
            assert_eq!((host.failed_count, host.suspended_count), (5, 0));
            assert_eq!(host.last_failure, None);
            assert_eq!((sides.declined_count(), sides.rejected_count()), (1, 1));
            assert_eq!((sides.fallback_count(), sides.suspended_count()), (1, 1));
        });
    }
}
