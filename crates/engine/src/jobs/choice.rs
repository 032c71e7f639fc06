//! Chooses the side that runs a job, as a pure function of what is known of the sides.
//!
//! [`choose`] compares when each side would have done the job, from the side's recent speed and its
//! running jobs. If it chooses a busy side, the job waits for that side ([RFC
//! 7](../../../../docs/rfc/0007-slots.md), section 5).
//!
//! Invariants: the host is always a candidate, so there is always an answer. A job that may not
//! wait is given to a free slot or to the host. At most as many jobs wait for a side as it has
//! slots. A side whose speed is not known gets one job of a kind at a time.
//!
//! Threading: pure functions.

use std::fmt::Write;
use std::time::Duration;

use crate::env::failures::{JOB_KINDS, JobKind};

/// A job that a side runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningJob {
    pub(crate) kind: JobKind,
    /// The time that it will probably still take.
    pub(crate) remaining: Duration,
}

/// A side's answer to a job, or its failure with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepts,
    Refuses,
    /// The side was given the job and failed.
    Failed,
}

/// What is known of a side at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SideView<'a> {
    pub(crate) name: &'a str,
    /// The number of jobs that the side may run at once. With 0 it gets no job.
    pub(crate) slots: usize,
    /// Why it has no slots, if it has none, as text for people.
    pub(crate) no_slots: &'static str,
    pub(crate) running: Vec<RunningJob>,
    /// Nanoseconds per byte, by kind. `None` if the speed is not measured.
    pub(crate) speed: [Option<f64>; JOB_KINDS],
    /// The side was suspended, and gets one job as a trial.
    pub(crate) is_on_trial: bool,
}

/// A job that waits for a busy side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) side: usize,
    pub(crate) kind: JobKind,
    pub(crate) bytes: u64,
}

/// The job for which a side is chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) kind: JobKind,
    /// Bytes of its inputs.
    pub(crate) bytes: u64,
    /// Whether the job may wait for a busy side. It may not if writers or callers wait for the job.
    pub(crate) may_wait: bool,
    /// The answer of each side.
    pub(crate) answers: &'a [Answer],
}

/// An answer of [`choose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The index of the side in the list.
    pub(crate) side: usize,
    /// All slots of the side are taken, so the job waits for it.
    pub(crate) is_busy: bool,
    /// When each side would have done the job, or why it is no candidate, as text.
    pub(crate) reason: String,
}

/// Chooses the side that will probably have done the job first. Of sides that are equally fast, the
/// first one in the list is chosen. The host is the last one in the list.
pub(crate) fn choose(sides: &[SideView<'_>], ask: &Ask<'_>, waiting: &[Waiting]) -> Decision {
    let host = sides.len() - 1;
    let mut best: Option<(f64, usize, bool)> = None;
    let mut reason = String::new();
    for (i, side) in sides.iter().enumerate() {
        let separator = if reason.is_empty() { "" } else { ", " };
        let _ = write!(reason, "{separator}{} ", side.name);
        let (wait, total) = match done_in(side, i, i == host, ask, waiting) {
            Ok(times) => times,
            Err(why_not) => {
                reason.push_str(why_not);
                continue;
            }
        };
        let _ = match side.speed[ask.kind as usize] {
            Some(_) => write!(reason, "{:.3} s", total / 1e9),
            None => write!(reason, "is not measured yet"),
        };
        if best.is_none_or(|(least, ..)| total < least) {
            best = Some((total, i, wait > 0.0));
        }
    }
    let (_, side, is_busy) = best.unwrap_or((0.0, host, false));
    Decision {
        side,
        is_busy,
        reason,
    }
}

/// Returns the nanoseconds until a slot of the side is free, and until the side would have done the
/// job. Returns an error that says why, if the side is no candidate.
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
    let measured = side.speed[ask.kind as usize];
    let is_being_measured = || side.running.iter().any(|job| job.kind == ask.kind);
    if measured.is_none() && !is_host && is_being_measured() {
        return Err("is being measured");
    }
    let mut count = 0;
    let mut ends = free_at(side, slots);
    for job in waiting.iter().filter(|job| job.side == index) {
        count += 1;
        let speed = side.speed[job.kind as usize].unwrap_or(0.0);
        ends[0] += job.bytes as f64 * speed;
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
    Ok((wait, wait + ask.bytes as f64 * measured.unwrap_or(0.0)))
}

/// The nanoseconds until each slot is free, ascending. If the side runs more jobs than it has slots
/// now, the jobs that end last occupy the slots.
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
    /// Bytes of its inputs, and how many of them it has read.
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

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;

    fn job(kind: JobKind, seconds: f64) -> RunningJob {
        RunningJob {
            kind,
            remaining: Duration::from_secs_f64(seconds),
        }
    }

    /// A side that compacts at `ns` per byte and runs compactions that still need these seconds.
    fn side<'a>(name: &'a str, slots: usize, ns: f64, remaining: &[f64]) -> SideView<'a> {
        let running = remaining.iter().map(|s| job(JobKind::Compaction, *s));
        SideView {
            name,
            slots,
            no_slots: "has no slots",
            running: running.collect(),
            speed: [Some(ns); JOB_KINDS],
            is_on_trial: false,
        }
    }

    fn of(bytes: u64) -> Ask<'static> {
        Ask {
            kind: JobKind::Compaction,
            bytes,
            may_wait: true,
            answers: &[Answer::Accepts; 4],
        }
    }

    /// Places jobs one after the other. Jobs that wait count for the placement of later ones.
    fn places(sides: &[SideView<'_>], asks: &[Ask<'_>]) -> Vec<(usize, bool)> {
        let mut waiting = Vec::new();
        let place = |ask: &Ask<'_>| {
            let decision = choose(sides, ask, &waiting);
            if decision.is_busy {
                waiting.push(Waiting {
                    side: decision.side,
                    kind: ask.kind,
                    bytes: ask.bytes,
                });
            }
            (decision.side, decision.is_busy)
        };
        asks.iter().map(place).collect()
    }

    /// The example of RFC 7, section 5.
    #[test]
    fn a_faster_side_does_not_get_every_job() {
        let host = side("host", 1, 4.0, &[]);
        let two = [side("gpu0", 2, 1.0, &[0.10, 0.30]), host.clone()];
        let works = [of(134 * MB); 3];
        assert_eq!(places(&two, &works), [(0, true), (0, true), (1, false)]);
        let words = choose(&two, &works[0], &[]).reason;
        assert_eq!(words, "gpu0 0.234 s, host 0.536 s");
        let one = [side("gpu0", 1, 1.0, &[0.5]), host.clone()];
        assert_eq!(places(&one, &works[..1]), [(1, false)]);
        // The faster side has a free slot, so it gets the job.
        let free = [side("gpu0", 2, 1.0, &[9.0]), host];
        assert_eq!(places(&free, &works[..1]), [(0, false)]);
    }

    #[test]
    fn equal_sides_are_taken_in_order_and_the_host_last() {
        let sides = [
            side("a", 1, 1.0, &[]),
            side("b", 1, 1.0, &[]),
            side("host", 1, 1.0, &[]),
        ];
        assert_eq!(choose(&sides, &of(MB), &[]).side, 0);
        let only = |answers: &[Answer]| {
            let ask = Ask { answers, ..of(MB) };
            choose(&sides, &ask, &[])
        };
        let (yes, no) = (Answer::Accepts, Answer::Refuses);
        assert_eq!(only(&[no, yes, yes]).side, 1);
        assert_eq!(only(&[no, no, yes]).side, 2);
        let decision = only(&[no, Answer::Failed, no]);
        assert_eq!(decision.side, 2, "the host is always a candidate");
        let reason = "a does not accept it, b has failed with it, host 0.001 s";
        assert_eq!(decision.reason, reason);
    }

    #[test]
    fn what_may_not_wait_gets_a_free_slot_or_the_host() {
        let sides = [side("gpu0", 1, 1.0, &[0.01]), side("host", 1, 9.0, &[])];
        assert_eq!(places(&sides, &[of(100 * MB)]), [(0, true)]);
        let urgent = Ask {
            may_wait: false,
            ..of(100 * MB)
        };
        assert_eq!(places(&sides, &[urgent]), [(1, false)]);
        let free = [side("gpu0", 2, 1.0, &[0.01]), side("host", 1, 9.0, &[])];
        assert_eq!(places(&free, &[urgent]), [(0, false)]);
        // The job waits for the host if no other side is a candidate.
        let busy = [side("gpu0", 1, 1.0, &[5.0]), side("host", 1, 9.0, &[5.0])];
        assert_eq!(places(&busy, &[urgent]), [(1, true)]);
    }

    #[test]
    fn a_side_that_is_not_measured_gets_one_job_of_a_kind() {
        let host = side("host", 1, 1.0, &[]);
        let mut new = side("new", 4, 0.0, &[]);
        new.speed = [None, None];
        let at = |new: &SideView<'_>, ask: Ask<'_>| choose(&[new.clone(), host.clone()], &ask, &[]);
        assert_eq!(at(&new, of(MB)).side, 0);
        new.running.push(job(JobKind::Compaction, 1.0));
        assert_eq!(at(&new, of(MB)).side, 1, "it is being measured");
        let flush = Ask {
            kind: JobKind::Flush,
            may_wait: false,
            ..of(MB)
        };
        assert_eq!(at(&new, flush).side, 0, "but not with flushes");
        // No job waits for a side whose speed is not measured.
        new.slots = 1;
        assert_eq!(
            at(
                &new,
                Ask {
                    may_wait: true,
                    ..flush
                }
            )
            .side,
            1
        );
        // The host is measured in the same way.
        let slow = side("slow", 1, 50.0, &[]);
        let mut unknown = side("host", 1, 0.0, &[]);
        unknown.speed = [None, None];
        assert_eq!(choose(&[slow, unknown], &of(MB), &[]).side, 1);
    }

    #[test]
    fn the_reason_says_why_a_side_is_no_candidate() {
        let host = side("host", 1, 4.0, &[]);
        let reason = |side: &SideView<'_>, ask: Ask<'_>, waiting: &[Waiting]| {
            let decision = choose(&[side.clone(), host.clone()], &ask, waiting);
            let (gpu, rest) = decision.reason.split_once(", ").unwrap();
            assert!(rest == "host 0.004 s" && decision.side == 1, "{decision:?}");
            gpu.strip_prefix("gpu0 ").unwrap().to_string()
        };
        let free = side("gpu0", 1, 1.0, &[]);
        let busy = side("gpu0", 1, 1.0, &[0.001]);
        let answered = |answers: &'static [Answer]| Ask { answers, ..of(MB) };
        let refuses = answered(&[Answer::Refuses; 2]);
        assert_eq!(reason(&free, refuses, &[]), "does not accept it");
        let failed = answered(&[Answer::Failed; 2]);
        assert_eq!(reason(&free, failed, &[]), "has failed with it");
        let urgent = Ask {
            may_wait: false,
            ..of(MB)
        };
        assert_eq!(reason(&busy, urgent, &[]), "has no free slot");
        let waiting = Waiting {
            side: 0,
            kind: JobKind::Compaction,
            bytes: 1,
        };
        let said = "has as many jobs waiting as slots";
        assert_eq!(reason(&busy, of(MB), &[waiting]), said);
        let mut other = busy.clone();
        other.is_on_trial = true;
        let said = "has one job to show that it works again";
        assert_eq!(reason(&other, of(MB), &[]), said);
        other = busy.clone();
        other.speed = [None; JOB_KINDS];
        assert_eq!(reason(&other, of(MB), &[]), "is being measured");
        other = busy.clone();
        (other.slots, other.no_slots) = (0, "is suspended");
        assert_eq!(reason(&other, of(MB), &[]), "is suspended");
        // The side is a candidate, but its time is not known.
        other = free.clone();
        other.speed = [None; JOB_KINDS];
        let decision = choose(&[other, host.clone()], &of(MB), &[]);
        let said = "gpu0 is not measured yet, host 0.004 s";
        assert_eq!((decision.side, &decision.reason[..]), (0, said));
    }

    #[test]
    fn a_side_on_trial_gets_one_job_at_all() {
        let mut sides = [side("gpu0", 4, 1.0, &[]), side("host", 1, 9.0, &[])];
        sides[0].is_on_trial = true;
        assert_eq!(choose(&sides, &of(MB), &[]).side, 0);
        sides[0].running.push(job(JobKind::Flush, 0.001));
        assert_eq!(choose(&sides, &of(MB), &[]).side, 1);
    }

    #[test]
    fn slots_that_went_away_are_not_given_out() {
        let host = side("host", 1, 100.0, &[]);
        let gone = [side("gpu0", 0, 1.0, &[]), host.clone()];
        assert_eq!(choose(&gone, &of(MB), &[]).side, 1);
        // Three jobs run and one slot remains, which is free when the last job ends.
        let fewer = [side("gpu0", 1, 1.0, &[1.0, 2.0, 3.0]), host];
        let decision = choose(&fewer, &of(100 * MB), &[]);
        assert_eq!(decision.reason, "gpu0 3.100 s, host 10.000 s");
        assert_eq!((decision.side, decision.is_busy), (0, true));
    }

    #[test]
    fn the_time_to_go_grows_while_nothing_moves() {
        let s = Duration::from_secs;
        let after = |elapsed, read| Advance {
            elapsed: s(elapsed),
            expected: s(10),
            bytes: 100,
            read,
            still: s(0),
        };
        let left = |elapsed, read| after(elapsed, read).remaining();
        assert_eq!([left(0, 0), left(4, 0), left(8, 0)], [s(10), s(6), s(8)]);
        assert_eq!(left(500, 0), s(500));
        // A quarter was read in two seconds.
        assert_eq!(left(2, 25), s(6));
        assert_eq!([left(2, 100), left(2, 1000)], [s(0), s(0)]);
        let still = |read, still| Advance {
            still: s(still),
            ..after(60, read)
        };
        assert_eq!(still(60, 5).remaining(), s(40));
        assert_eq!(still(60, 50).remaining(), s(50));
        assert_eq!(still(100, 50).remaining(), s(50), "all is read");
        let flush = Advance {
            bytes: 0,
            ..after(3, 7)
        };
        assert_eq!(flush.remaining(), s(7), "a flush reads no table");
    }
}
