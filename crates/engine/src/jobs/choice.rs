//! Chooses the side that runs a job, as a pure function of what is known about the sides.
//!
//! [`choose`] compares when each side would have finished the job, computed from what jobs of this
//! size cost the side, from its recent speed, and from its running jobs. If it chooses a busy side,
//! the job waits for that side ([RFC 7](../../../../docs/rfc/0007-slots.md), section 5). [`ends`]
//! has the other method: queues with two ends.
//!
//! Invariants: the host is always a candidate, so there is always an answer, except for a job that
//! is kept off the host ([`choose_other`]). A job that may not wait is given to a free slot or to
//! the host. At most as many jobs wait for a side as it has slots. A side whose speed is not known
//! gets one job of a kind at a time.
//!
//! Threading: pure functions.

use std::fmt::Write;
use std::time::Duration;

use siltstone_table::exec::{Costs, JobSize};

use crate::env::failures::{JOB_KINDS, JobKind};

/// A job that a side runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningJob {
    pub(crate) kind: JobKind,
    /// The time that it will probably still take.
    pub(crate) remaining: Duration,
    /// Whether the side executes it. Otherwise its outcome is being verified or installed.
    pub(crate) is_executed: bool,
}

/// A side's answer to a job, or its failure with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepts,
    Refuses,
    /// The side was given the job and failed.
    Failed,
}

/// What is known about a side at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SideView<'a> {
    pub(crate) name: &'a str,
    /// The number of jobs that the side may run at once. With 0 it gets no job.
    pub(crate) slots: usize,
    /// The reason why the side has no slots, if it has none, as text for people.
    pub(crate) no_slots: &'static str,
    pub(crate) running: Vec<RunningJob>,
    /// What jobs cost the side, apart from a factor.
    pub(crate) costs: Costs,
    /// That factor, by kind. `None` if the speed is not measured.
    pub(crate) factor: [Option<f64>; JOB_KINDS],
    /// Nanoseconds per input byte over the side's last compactions. People are shown it, and queues
    /// with two ends compare the sides by it.
    pub(crate) compaction_ns_per_byte: Option<f64>,
    /// The number of jobs over which the speed is measured, by kind.
    pub(crate) measured_jobs: [usize; JOB_KINDS],
    /// The side was suspended, and gets one job as a trial.
    pub(crate) is_on_trial: bool,
}

impl SideView<'_> {
    /// How many nanoseconds the side needs for a job of this kind and size. `None` if it is not
    /// measured.
    pub(crate) fn expected_ns(&self, kind: JobKind, size: &JobSize) -> Option<f64> {
        self.factor[kind as usize].map(|factor| factor * self.costs.of(size))
    }
}

/// A job that waits for a busy side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) side: usize,
    pub(crate) kind: JobKind,
    pub(crate) size: JobSize,
}

/// The job for which a side is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) kind: JobKind,
    /// The size of the job's inputs.
    pub(crate) size: JobSize,
    /// Whether the job may wait for a busy side. It may not if writers or callers wait for the job.
    pub(crate) may_wait: bool,
    /// The answer of each side.
    pub(crate) answers: &'a [Answer],
    /// The factor by which the time of the host's cores is multiplied
    /// ([`spare_host`](crate::types::options::ScheduleOptions::spare_host)).
    pub(crate) host_weight: f64,
}

/// An answer of [`choose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The index of the side in the list.
    pub(crate) side: usize,
    /// Whether all slots of the side are taken, so that the job waits for it.
    pub(crate) is_busy: bool,
    /// When each side would have finished the job, or why it is not a candidate, as text.
    pub(crate) reason: String,
}

/// Gives a compaction to the first side, which divides it between itself and the host. If that side
/// has another compaction, this one waits. Everything else, and what that side cannot run, is
/// chosen as by [`choose`].
pub(crate) fn choose_split(sides: &[SideView<'_>], ask: &Ask<'_>, waiting: &[Waiting]) -> Decision {
    let takes_it = ask.kind == JobKind::Compaction
        && sides.len() > 1
        && sides[0].slots > 0
        && ask.answers.first() == Some(&Answer::Accepts);
    if !takes_it {
        return choose(sides, ask, waiting);
    }
    Decision {
        side: 0,
        is_busy: !sides[0].running.is_empty(),
        reason: format!("{} divides it between itself and the host", sides[0].name),
    }
}

/// Chooses the side that will probably finish the job first. Of sides that are equally fast, the
/// first one in the list is chosen. The host is the last one in the list.
pub(crate) fn choose(sides: &[SideView<'_>], ask: &Ask<'_>, waiting: &[Waiting]) -> Decision {
    let host = sides.len() - 1;
    let (best, reason) = first_done(sides, sides.len(), ask, waiting);
    let (side, is_busy) = best.unwrap_or((host, false));
    Decision {
        side,
        is_busy,
        reason,
    }
}

/// As [`choose`] without the host. If no other side is a candidate, the reason says why.
pub(crate) fn choose_other(
    sides: &[SideView<'_>],
    ask: &Ask<'_>,
    waiting: &[Waiting],
) -> Result<Decision, String> {
    let host = sides.len() - 1;
    let (best, mut reason) = first_done(sides, host, ask, waiting);
    reason.push_str(", and the host does not get what another side has failed with");
    match best {
        Some((side, is_busy)) => Ok(Decision {
            side,
            is_busy,
            reason,
        }),
        None => Err(reason),
    }
}

/// Says for each of these compactions whether a side other than the host is expected to finish it
/// first, even if that side is busy now. The works are in the order in which the other sides take
/// them, each with its size and its answers. The more works wait for a side, the longer the next
/// one would wait for it.
pub(crate) fn left_to_others<'a>(
    sides: &[SideView<'_>],
    works: impl Iterator<Item = (JobSize, &'a [Answer])>,
    host_weight: f64,
    waiting: &[Waiting],
) -> Vec<bool> {
    let host = sides.len() - 1;
    let mut waiting = waiting.to_vec();
    let mut is_left = |(size, answers): (JobSize, &[Answer])| {
        let kind = JobKind::Compaction;
        let ask = Ask {
            kind,
            size,
            may_wait: true,
            answers,
            host_weight,
        };
        let side = choose(sides, &ask, &waiting).side;
        if side != host {
            waiting.push(Waiting { side, kind, size });
        }
        side != host
    };
    works.map(&mut is_left).collect()
}

/// Which of the first `count` sides will finish the job first, and whether the job waits for it.
fn first_done(
    sides: &[SideView<'_>],
    count: usize,
    ask: &Ask<'_>,
    waiting: &[Waiting],
) -> (Option<(usize, bool)>, String) {
    let host = sides.len() - 1;
    let mut best: Option<(f64, usize, bool)> = None;
    let mut reason = String::new();
    for (i, side) in sides.iter().enumerate().take(count) {
        let separator = if reason.is_empty() { "" } else { ", " };
        let _ = write!(reason, "{separator}{} ", side.name);
        let (wait, total) = match done_in(side, i, i == host, ask, waiting) {
            Ok(times) => times,
            Err(why_not) => {
                reason.push_str(why_not);
                continue;
            }
        };
        let _ = match side.factor[ask.kind as usize] {
            Some(_) => write!(reason, "{:.3} s", total / 1e9),
            None => write!(reason, "is not measured yet"),
        };
        // The time of a flush is not multiplied, because a writer may wait for the flush.
        let is_spared = i == host && ask.host_weight > 1.0 && ask.kind == JobKind::Compaction;
        let total = match is_spared && total > 0.0 {
            true => {
                let shown = (ask.host_weight * 10.0).round() / 10.0;
                let _ = write!(reason, " (counts {shown} times)");
                ask.host_weight * total
            }
            false => total,
        };
        if best.is_none_or(|(least, ..)| total < least) {
            best = Some((total, i, wait > 0.0));
        }
    }
    (best.map(|(_, side, is_busy)| (side, is_busy)), reason)
}

/// Returns the nanoseconds until a slot of the side is free, and until the side would have finished
/// the job. If the side is not a candidate, returns an error that says why.
fn done_in(
    side: &SideView<'_>,
    index: usize,
    is_host: bool,
    ask: &Ask<'_>,
    waiting: &[Waiting],
) -> Result<(f64, f64), &'static str> {
    let mut slots = side.slots;
    if is_host {
        slots = slots.max(1);
    } else if ask.answers[index] == Answer::Failed {
        return Err("has failed with it");
    } else if slots == 0 {
        return Err(side.no_slots);
    } else if ask.answers[index] == Answer::Refuses {
        return Err("does not accept it");
    } else if side.is_on_trial && !side.running.is_empty() {
        return Err("has one job to show that it works again");
    }
    let measured = side.expected_ns(ask.kind, &ask.size);
    let is_being_measured = || side.running.iter().any(|job| job.kind == ask.kind);
    if measured.is_none() && !is_host && is_being_measured() {
        return Err("is being measured");
    }
    let mut count = 0;
    let mut ends = free_at(side, slots);
    for job in waiting.iter().filter(|job| job.side == index) {
        count += 1;
        ends[0] += side.expected_ns(job.kind, &job.size).unwrap_or(0.0);
        ends.sort_by(f64::total_cmp);
    }
    let wait = ends[0];
    if wait > 0.0 && !is_host {
        if !ask.may_wait || measured.is_none() {
            return Err("has no free slot");
        }
        if count >= slots {
            return Err("has as many jobs waiting as slots");
        }
    }
    Ok((wait, wait + measured.unwrap_or(0.0)))
}

/// The nanoseconds until each slot is free, in ascending order. If the side runs more jobs than it
/// has slots now, the jobs that end last occupy the slots.
fn free_at(side: &SideView<'_>, slots: usize) -> Vec<f64> {
    let of = |job: &RunningJob| (job.remaining.as_nanos() as f64).max(1.0);
    let mut ends: Vec<f64> = side.running.iter().map(of).collect();
    ends.resize(ends.len().max(slots), 0.0);
    ends.sort_by(f64::total_cmp);
    ends.split_off(ends.len() - slots)
}

/// The progress of a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advance {
    /// The time since the job began.
    pub(crate) elapsed: Duration,
    /// The time that it was expected to take.
    pub(crate) expected: Duration,
    /// The bytes of its inputs, and how many of them it has read.
    pub(crate) bytes: u64,
    pub(crate) read: u64,
    /// The time since the job last read something.
    pub(crate) still: Duration,
}

impl Advance {
    /// The time that the job will probably still take. It grows while the job reads nothing, even
    /// after it has read everything, so that no job waits long for one that hangs.
    pub(crate) fn remaining(&self) -> Duration {
        if self.read == 0 || self.bytes == 0 {
            return self.expected.saturating_sub(self.elapsed).max(self.elapsed);
        }
        let done = (self.read as f64 / self.bytes as f64).min(1.0);
        self.elapsed.mul_f64((1.0 - done) / done).max(self.still)
    }
}

pub(crate) mod ends;

#[cfg(test)]
mod tests;
