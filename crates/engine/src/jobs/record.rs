//! The record of a side: its speed and its failures.
//!
//! A side's speed is measured by the jobs that it finished, by kind. Each job given to a failing
//! side wastes one run and one verification. So after `TROUBLES_IN_A_ROW` failures or rejected
//! outcomes in a row it is *suspended*: it gets no job during a pause, and then one job as a trial.
//! Each further failure doubles the pause, and a believed outcome ends the trial ([RFC
//! 7](../../../../docs/rfc/0007-slots.md), section 6).
//!
//! Threading: [`super::sides`] has a mutex around the records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_table::exec::Progress;

use crate::env::failures::{JOB_KINDS, JobKind};
use crate::jobs::choice::ends::COMPARED_JOBS;
use crate::jobs::costs::Busy;

/// The number of a side's last jobs over which its speed is measured.
const MEASURED_JOBS: usize = COMPARED_JOBS;

/// How long a measurement of a side stays valid.
const MEASUREMENT_HOLDS: Duration = Duration::from_secs(600);

/// The number of failures in a row after which a side is suspended.
const TROUBLES_IN_A_ROW: u32 = 3;

/// The way in which a side failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// The store rejected its outcome.
    Lie,
    /// It failed, declined a job that it had accepted, or panicked.
    Failure,
    /// It showed no sign of life. This costs so much time that the side is suspended at once.
    Silence,
}

impl Trouble {
    /// The first pause, and the longest one.
    fn pauses(self) -> (Duration, Duration) {
        match self {
            Trouble::Lie => (Duration::from_secs(30), Duration::from_secs(3600)),
            Trouble::Failure | Trouble::Silence => {
                (Duration::from_secs(1), Duration::from_secs(60))
            }
        }
    }
}

/// What a job took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Took {
    /// The bytes of its inputs.
    pub(crate) bytes: u64,
    /// What it should have cost according to the side's [`Costs`](siltstone_table::exec::Costs).
    pub(crate) cost: f64,
    pub(crate) ns: u64,
}

/// The speed of a side for jobs of one kind.
#[derive(Default)]
pub(super) struct Speed {
    /// Its last jobs.
    recent: VecDeque<Took>,
    measured: Option<Instant>,
}

impl Speed {
    fn ns(&self) -> f64 {
        self.recent.iter().map(|took| took.ns as f64).sum()
    }

    /// Nanoseconds per byte.
    pub(super) fn ns_per_byte(&self) -> Option<f64> {
        let bytes: u64 = self.recent.iter().map(|took| took.bytes).sum();
        (bytes > 0).then(|| self.ns() / bytes as f64)
    }

    /// By which factor the jobs took longer than their costs.
    pub(super) fn factor(&self) -> Option<f64> {
        let cost: f64 = self.recent.iter().map(|took| took.cost).sum();
        (cost > 0.0).then(|| self.ns() / cost)
    }

    /// Bytes per second.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        let ns_per_byte = self.ns_per_byte().filter(|ns| *ns > 0.0);
        ns_per_byte.map(|ns| 1e9 / ns)
    }

    /// The number of jobs over which the speed is measured.
    pub(super) fn job_count(&self) -> usize {
        self.recent.len()
    }

    pub(super) fn holds(&self, now: Instant) -> bool {
        let holds = |at: Instant| now.since(at) < MEASUREMENT_HOLDS;
        self.measured.is_some_and(holds)
    }
}

/// The record of one executor.
#[derive(Default)]
pub(super) struct Record {
    /// By [`JobKind`].
    pub(super) speeds: [Speed; JOB_KINDS],
    /// The last failure.
    pub(super) last_failure: Option<String>,
    /// Why the side refused the last job that it was asked about. `None` if it accepted that job.
    pub(super) refusal: Option<String>,
    /// Failures since the last believed outcome. Jobs that returned while the side was suspended do
    /// not count.
    troubles_in_a_row: u32,
    /// The number of suspensions.
    pub(super) suspended: u64,
    /// The side gets no job before this time.
    pub(super) suspended_until: Option<Instant>,
    /// The abandoned attempts that have not returned yet. Each occupies a slot and memory.
    pub(super) lost: Vec<Arc<Progress>>,
    /// The time in which at least one compaction of the side was running. Only compactions whose
    /// outcomes were believed count.
    pub(super) busy: Busy,
}

impl Record {
    /// Whether the side gets no job now.
    pub(super) fn is_suspended(&self, now: Instant) -> bool {
        self.suspended_until.is_some_and(|until| now < until)
    }

    /// Whether the next job is a trial after a suspension.
    pub(super) fn is_on_trial(&self) -> bool {
        self.troubles_in_a_row >= TROUBLES_IN_A_ROW
    }

    /// Counts a believed outcome. `took` is what the job took, if that is a measure of the speed.
    /// Returns whether this ends a suspension.
    pub(super) fn believed(&mut self, kind: JobKind, took: Option<Took>, now: Instant) -> bool {
        if let Some(took) = took {
            let speed = &mut self.speeds[kind as usize];
            if speed.recent.len() == MEASURED_JOBS {
                speed.recent.pop_front();
            }
            speed.recent.push_back(took);
            speed.measured = Some(now);
        }
        self.troubles_in_a_row = 0;
        self.suspended_until.take().is_some()
    }

    /// Counts a failure. Returns the pause if this suspends the side.
    pub(super) fn trouble(&mut self, trouble: Trouble, now: Instant) -> Option<Duration> {
        // Jobs that the side got before it was suspended may still return. They do not lengthen the
        // pause.
        if self.is_suspended(now) {
            return None;
        }
        self.troubles_in_a_row = self.troubles_in_a_row.saturating_add(1);
        if trouble == Trouble::Silence {
            self.troubles_in_a_row = self.troubles_in_a_row.max(TROUBLES_IN_A_ROW);
        }
        let before = self.troubles_in_a_row.checked_sub(TROUBLES_IN_A_ROW)?;
        let (first, longest) = trouble.pauses();
        let pause = first.saturating_mul(1 << before.min(16)).min(longest);
        self.suspended += 1;
        self.suspended_until = Some(now + pause);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job that should have cost two nanoseconds a byte.
    fn took(bytes: u64, ns: u64) -> Took {
        Took {
            bytes,
            cost: 2.0 * bytes as f64,
            ns,
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (trouble, first, longest) in [(Trouble::Lie, 30, 3600), (Trouble::Failure, 1, 60)] {
            let mut record = Record::default();
            let mut now = Instant::default();
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now), "two in a row are borne");
            record.believed(JobKind::Flush, Some(took(1, 1)), now);
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(
                !record.is_suspended(now),
                "a believed one between ends the row"
            );
            for trial in 0..40u32 {
                record.trouble(trouble, now);
                // A failure during the pause changes nothing.
                record.trouble(trouble, now);
                let pause = Duration::from_secs((first << trial.min(7)).min(longest));
                assert!(record.is_suspended(now + (pause - Duration::from_nanos(1))));
                now = now + pause;
                assert!(!record.is_suspended(now) && record.is_on_trial(), "{trial}");
            }
            assert_eq!(record.suspended, 40);
            record.believed(JobKind::Flush, Some(took(1, 1)), now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now) && !record.is_on_trial());
        }
    }

    #[test]
    fn a_side_is_measured_by_kind_and_for_a_while() {
        let mut record = Record::default();
        let now = Instant::default();
        for n in 1..=10 {
            record.believed(JobKind::Compaction, Some(took(100, n * 100)), now);
        }
        let [flushes, compactions] = &record.speeds;
        assert_eq!((flushes.ns_per_byte(), flushes.factor()), (None, None));
        assert_eq!(
            (compactions.ns_per_byte(), compactions.factor()),
            (Some(8.0), Some(4.0)),
            "of its last five jobs"
        );
        assert!(compactions.holds(now + Duration::from_secs(599)));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
        // A resumed job does not count as a measurement.
        record.believed(JobKind::Compaction, None, now + Duration::from_secs(600));
        let [_, compactions] = &record.speeds;
        assert_eq!(compactions.ns_per_byte(), Some(8.0));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
    }
}
