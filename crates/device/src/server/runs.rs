//! The counts of an attempt whose job may be run more than once: by an executor that declined after
//! it had begun, and then by another one.
//!
//! Each run has a [`Progress`] of its own. A host is shown the largest of each count of all runs
//! (RFC 9, section 21).
//!
//! Invariants: no count that is shown goes down. The sum of the counts of [`Runs::counts`] without
//! the processor time is that of all runs, so it rises exactly when a run counts something.
//!
//! Threading: shared. One runtime mutex guards the list of runs, and is held for moments.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{Mutex, Runtime};
use siltstone_table::exec::Progress;

use crate::wire::job::JobCounts;

/// See the module.
pub(super) struct Runs {
    /// What belongs to no run: waits for the rate limit, and the processor time of the task that
    /// runs the job.
    own: Arc<Progress>,
    runs: Mutex<Vec<Arc<Progress>>>,
}

impl Runs {
    pub(super) fn new(runtime: &Runtime) -> Runs {
        Runs {
            own: Arc::default(),
            runs: runtime.mutex(Vec::new()),
        }
    }

    /// The counts of the attempt that belong to no run.
    pub(super) fn own(&self) -> &Arc<Progress> {
        &self.own
    }

    /// The counts of another run, which begins now.
    pub(super) fn begin(&self) -> Arc<Progress> {
        let progress = Arc::<Progress>::default();
        self.runs.lock().push(Arc::clone(&progress));
        progress
    }

    /// What the host is shown. The bytes for the rate limit are not known here, and are 0.
    pub(super) fn counts(&self) -> JobCounts {
        let mut counts = JobCounts::default();
        let mut signs = 0u64;
        let runs = self.runs.lock();
        for progress in std::iter::once(&self.own).chain(&*runs) {
            // Each count is read once, so that what is shown as signs of life is the difference
            // between the sum and the counts that are shown.
            let mut larger = |of: &AtomicU64, shown: &mut u64| {
                let count = of.load(Ordering::Relaxed);
                signs = signs.wrapping_add(count);
                *shown = (*shown).max(count);
            };
            larger(&progress.entries, &mut counts.entries);
            larger(&progress.bytes_in, &mut counts.bytes_in);
            larger(&progress.bytes_out, &mut counts.bytes_out);
            larger(&progress.tables, &mut counts.tables);
            signs = signs.wrapping_add(progress.beats.load(Ordering::Relaxed));
            counts.cpu_ns += progress.helpers_cpu_ns.load(Ordering::Relaxed);
        }
        let shown = [
            counts.entries,
            counts.bytes_in,
            counts.bytes_out,
            counts.tables,
        ];
        counts.beats = shown.into_iter().fold(signs, u64::wrapping_sub);
        counts
    }

    /// A number that differs from an earlier one if any run has shown a sign of life in between.
    pub(super) fn signs_of_life(&self) -> u64 {
        let runs = self.runs.lock();
        let all = std::iter::once(&self.own).chain(&*runs);
        all.map(|progress| progress.signs_of_life())
            .fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(counts: &JobCounts) -> [u64; 4] {
        [
            counts.entries,
            counts.bytes_in,
            counts.bytes_out,
            counts.tables,
        ]
    }

    fn count(progress: &Progress, by: u64) {
        progress.entries.fetch_add(by, Ordering::Relaxed);
        progress.bytes_in.fetch_add(by * 100, Ordering::Relaxed);
    }

    #[test]
    fn one_run_is_shown_as_it_is() {
        let runs = Runs::new(&Runtime::threads());
        assert_eq!(runs.counts(), JobCounts::default());
        let run = runs.begin();
        count(&run, 7);
        run.beat();
        run.helpers_cpu_ns.fetch_add(5, Ordering::Relaxed);
        runs.own().beat();
        runs.own().helpers_cpu_ns.fetch_add(6, Ordering::Relaxed);
        let counts = runs.counts();
        assert_eq!(numbers(&counts), [7, 700, 0, 0]);
        assert_eq!((counts.beats, counts.cpu_ns), (2, 11));
    }

    #[test]
    fn a_second_run_is_alive_before_it_has_come_as_far_as_the_first() {
        let runs = Runs::new(&Runtime::threads());
        let first = runs.begin();
        count(&first, 10);
        first.tables.fetch_add(1, Ordering::Relaxed);
        let mut last = runs.counts();
        let mut signs = runs.signs_of_life();
        let second = runs.begin();
        for step in 1..=20 {
            count(&second, 1);
            let now = runs.counts();
            let (before, after) = (numbers(&last), numbers(&now));
            assert!(before.iter().zip(after).all(|(b, a)| *b <= a), "{now:?}");
            assert!(last.beats <= now.beats, "{now:?}");
            assert_ne!(last, now, "the host sees that it is alive");
            assert!(runs.signs_of_life() > signs);
            signs = runs.signs_of_life();
            assert_eq!(now.entries, step.max(10), "nothing counts twice");
            assert_eq!(now.tables, 1);
            let shown: u64 = numbers(&now).iter().sum();
            assert_eq!(shown + now.beats, signs);
            last = now;
        }
    }
}
