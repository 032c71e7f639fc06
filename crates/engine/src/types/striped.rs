//! Counters that many threads add to at the same time.
//!
//! Cost: one relaxed add to a cache line that few threads share.
//!
//! Threading: any thread.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::thread_number;

/// The number of cells of a [`StripedCounter`].
const STRIPES: usize = 8;

/// A cell of a [`StripedCounter`], in two cache lines of its own, because processors fetch lines in
/// pairs.
#[derive(Default)]
#[repr(align(128))]
struct Stripe(AtomicU64);

/// A counter that many threads add to at the same time, such as that of all gets. Each thread adds
/// to the cell that belongs to it, so threads do not wait for each other's cache line. If there are
/// more threads than cells, some share one.
#[derive(Default)]
pub(crate) struct StripedCounter([Stripe; STRIPES]);

impl StripedCounter {
    /// Adds to the counter. Returns what this thread's cell had before, which suffices to do
    /// something in one of every N calls.
    #[inline]
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0[thread_number() % STRIPES]
            .0
            .fetch_add(n, Ordering::Relaxed)
    }

    /// The sum of all cells.
    pub(crate) fn get(&self) -> u64 {
        let cells = self.0.iter();
        cells.fold(0, |sum, cell| {
            sum.wrapping_add(cell.0.load(Ordering::Relaxed))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::disallowed_methods)]
    fn a_striped_counter_has_the_sum_of_all_threads() {
        let counter = StripedCounter::default();
        std::thread::scope(|scope| {
            for thread in 0..3 * STRIPES as u64 {
                let counter = &counter;
                scope.spawn(move || (0..100).for_each(|_| _ = counter.add(thread)));
            }
        });
        let threads = 3 * STRIPES as u64;
        assert_eq!(counter.get(), 100 * threads * (threads - 1) / 2);
        let used = counter.0.iter();
        let used = used.filter(|cell| cell.0.load(Ordering::Relaxed) > 0);
        assert!(used.count() > 1);
    }
}
