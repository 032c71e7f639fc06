//! The order in which the tasks of a job take its subjobs.
//!
//! With [`SubjobOrder::Sizes`], helpers take the largest remaining subjob, so that no large one
//! begins last. The task that called `run` takes the smallest, because it also waits for the
//! helpers and returns the outcome. Results are sorted by subjob afterwards, so tables and outcome
//! do not depend on the order.
//!
//! Invariant: each subjob is taken once.
//!
//! Threading: shared by the tasks of a job; one atomic.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};

/// The order in which subjobs are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SubjobOrder {
    /// In the order of their keys.
    Keys,
    /// By the bytes of their inputs: helpers take the largest, and the calling task takes the
    /// smallest. If there is only one task, it takes the subjobs in the order of their keys.
    #[default]
    Sizes,
}

/// Who takes a subjob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taker {
    /// The task that called `run`.
    Caller,
    /// Another task.
    Helper,
}

/// The subjobs that no task has taken yet.
pub(super) struct Queue {
    /// All subjobs, in the order in which they are taken from the front.
    order: Vec<usize>,
    /// Whether the calling task takes from the back.
    has_two_ends: bool,
    /// In the lower half, the number of subjobs that were taken from the front; in the upper half,
    /// the number that were taken from the back.
    taken: AtomicU64,
}

impl Queue {
    /// A queue of the subjobs with these bytes of inputs.
    pub fn new(order: SubjobOrder, bytes: &[u64]) -> Queue {
        let mut subjobs: Vec<usize> = (0..bytes.len()).collect();
        if order == SubjobOrder::Sizes {
            subjobs.sort_by_key(|subjob| (Reverse(bytes[*subjob]), *subjob));
        }
        Queue {
            order: subjobs,
            has_two_ends: order == SubjobOrder::Sizes,
            taken: AtomicU64::new(0),
        }
    }

    /// Takes the next subjob, or returns `None` if all were taken.
    pub fn take(&self, taker: Taker) -> Option<usize> {
        let from_back = self.has_two_ends && taker == Taker::Caller;
        let step = if from_back { 1 << 32 } else { 1 };
        let parts = |taken: u64| {
            (
                (taken & u64::from(u32::MAX)) as usize,
                (taken >> 32) as usize,
            )
        };
        let is_left = |taken: u64| {
            let (front, back) = parts(taken);
            (front + back < self.order.len()).then_some(taken + step)
        };
        let relaxed = Ordering::Relaxed;
        let before = self.taken.fetch_update(relaxed, relaxed, is_left).ok()?;
        let (front, back) = parts(before);
        match from_back {
            true => self.order.get(self.order.len() - 1 - back).copied(),
            false => self.order.get(front).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(order: SubjobOrder, takers: &[Taker]) -> Vec<Option<usize>> {
        let queue = Queue::new(order, &[30, 10, 30, 20, 50]);
        takers.iter().map(|taker| queue.take(*taker)).collect()
    }

    #[test]
    fn helpers_take_the_largest_and_the_caller_the_smallest() {
        use Taker::{Caller, Helper};
        let sizes = taken(
            SubjobOrder::Sizes,
            &[Helper, Caller, Helper, Caller, Helper, Helper, Caller],
        );
        let some = |subjobs: [usize; 5]| subjobs.map(Some);
        assert_eq!(sizes[..5], some([4, 1, 0, 3, 2]));
        assert_eq!(sizes[5..], [None, None]);
        let keys = taken(
            SubjobOrder::Keys,
            &[Helper, Caller, Helper, Caller, Caller, Caller],
        );
        assert_eq!(keys[..5], some([0, 1, 2, 3, 4]));
        assert_eq!(keys[5], None);
    }

    #[test]
    fn each_subjob_is_taken_once_whoever_takes() {
        for pattern in 0..1 << 6 {
            let queue = Queue::new(SubjobOrder::Sizes, &[3, 1, 2, 2, 9, 0]);
            let mut seen: Vec<usize> = (0..6)
                .map(|i| match pattern >> i & 1 {
                    0 => Taker::Caller,
                    _ => Taker::Helper,
                })
                .filter_map(|taker| queue.take(taker))
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4, 5], "pattern {pattern:b}");
            assert_eq!(queue.take(Taker::Helper), None);
        }
    }
}
