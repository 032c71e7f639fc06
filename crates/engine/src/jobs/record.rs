//! What is known of a side: how fast it is, and whether it fails.
//!
//! A side is measured by the jobs that it finished, by kind. A side that fails or lies costs a run
//! of each job, and of its verification. So after `TROUBLES_IN_A_ROW` failures or rejected outcomes
//! in a row it is *suspended*: it is given no job for a while, then one to try it. Each further
//! trouble doubles the pause, and a believed outcome ends the matter ([RFC
//! 7](../../../../docs/rfc/0007-slots.md), section 6).
//!
//! Threading: [`super::sides`] has a mutex around the records.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_table::exec::Progress;

use crate::env::failures::{JOB_KINDS, JobKind};

/// Jobs that a side's speed is measured over.
const MEASURED_JOBS: usize = 5;

/// For how long a measurement of a side holds.
const MEASUREMENT_HOLDS: Duration = Duration::from_secs(600);

/// Troubles in a row after which a side is suspended.
const TROUBLES_IN_A_ROW: u32 = 3;

/// What went wrong with a side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Its outcome was rejected.
    Lie,
    /// It failed, declined what it had accepted, or panicked.
    Failure,
    /// It showed no sign of life. That costs so much time that it is suspended at once.
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

/// How fast a side is with jobs of one kind.
#[derive(Default)]
pub(super) struct Speed {
    /// Bytes and nanoseconds of its last jobs.
    recent: VecDeque<(u64, u64)>,
    measured: Option<Instant>,
}

impl Speed {
    fn totals(&self) -> (u64, u64) {
        let add = |sum: (u64, u64), job: &(u64, u64)| (sum.0 + job.0, sum.1 + job.1);
        self.recent.iter().fold((0, 0), add)
    }

    /// Nanoseconds a byte.
    pub(super) fn ns_per_byte(&self) -> Option<f64> {
        let (bytes, ns) = self.totals();
        (bytes > 0).then(|| ns as f64 / bytes as f64)
    }

    /// Bytes a second.
    pub(super) fn bytes_per_s(&self) -> Option<f64> {
        let ns_per_byte = self.ns_per_byte().filter(|ns| *ns > 0.0);
        ns_per_byte.map(|ns| 1e9 / ns)
    }

    pub(super) fn holds(&self, now: Instant) -> bool {
        let holds = |at: Instant| now.since(at) < MEASUREMENT_HOLDS;
        self.measured.is_some_and(holds)
    }
}

/// What one executor has done.
#[derive(Default)]
pub(super) struct Record {
    /// By [`JobKind`].
    pub(super) speeds: [Speed; JOB_KINDS],
    /// What went wrong the last time.
    pub(super) last_failure: Option<String>,
    /// Why it did not accept the last job that it was asked about, if it did not.
    pub(super) refusal: Option<String>,
    /// Troubles since the last outcome that was believed. Those of jobs that came back while it was
    /// suspended are left out.
    troubles_in_a_row: u32,
    /// How often it was suspended.
    pub(super) suspended: u64,
    /// It is given nothing before this.
    pub(super) suspended_until: Option<Instant>,
    /// The attempts that were abandoned and have not returned. Each has a slot, and memory.
    pub(super) lost: Vec<Arc<Progress>>,
}

impl Record {
    /// Whether it is given no job now.
    pub(super) fn is_suspended(&self, now: Instant) -> bool {
        self.suspended_until.is_some_and(|until| now < until)
    }

    /// Whether it has to show that it works again.
    pub(super) fn is_on_trial(&self) -> bool {
        self.troubles_in_a_row >= TROUBLES_IN_A_ROW
    }

    /// `took`: bytes and nanoseconds, if they say something of the speed. Returns whether that ends
    /// a suspension.
    pub(super) fn believed(
        &mut self,
        kind: JobKind,
        took: Option<(u64, u64)>,
        now: Instant,
    ) -> bool {
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

    /// Returns the pause, if the side is suspended for that.
    pub(super) fn trouble(&mut self, trouble: Trouble, now: Instant) -> Option<Duration> {
        // Jobs that it had before it was suspended may still come back. They do not lengthen the
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

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (trouble, first, longest) in [(Trouble::Lie, 30, 3600), (Trouble::Failure, 1, 60)] {
            let mut record = Record::default();
            let mut now = Instant::default();
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now), "two in a row are borne");
            record.believed(JobKind::Flush, Some((1, 1)), now);
            record.trouble(trouble, now);
            record.trouble(trouble, now);
            assert!(
                !record.is_suspended(now),
                "a believed one between ends the row"
            );
            for trial in 0..40u32 {
                record.trouble(trouble, now);
                // What comes back late changes nothing.
                record.trouble(trouble, now);
                let pause = Duration::from_secs((first << trial.min(7)).min(longest));
                assert!(record.is_suspended(now + (pause - Duration::from_nanos(1))));
                now = now + pause;
                assert!(!record.is_suspended(now) && record.is_on_trial(), "{trial}");
            }
            assert_eq!(record.suspended, 40);
            record.believed(JobKind::Flush, Some((1, 1)), now);
            record.trouble(trouble, now);
            assert!(!record.is_suspended(now) && !record.is_on_trial());
        }
    }

    #[test]
    fn a_side_is_measured_by_kind_and_for_a_while() {
        let mut record = Record::default();
        let now = Instant::default();
        for n in 1..=10 {
            record.believed(JobKind::Compaction, Some((100, n * 100)), now);
        }
        let [flushes, compactions] = &record.speeds;
        assert_eq!(flushes.ns_per_byte(), None);
        assert_eq!(
            compactions.ns_per_byte(),
            Some(8.0),
            "of its last five jobs"
        );
        assert!(compactions.holds(now + Duration::from_secs(599)));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
        // A job that was resumed says nothing of the speed.
        record.believed(JobKind::Compaction, None, now + Duration::from_secs(600));
        let [_, compactions] = &record.speeds;
        assert_eq!(compactions.ns_per_byte(), Some(8.0));
        assert!(!compactions.holds(now + Duration::from_secs(600)));
    }
}
