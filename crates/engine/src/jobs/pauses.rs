//! Pauses of an executor that fails again and again, and that is not a side of its own.
//!
//! A separated compaction is an attempt of the host, which is never suspended. Without pauses, a
//! device that fails each of them would cost each compaction of the host a second attempt.
//!
//! Threading: plain data, under a lock of its owner.

use std::time::Duration;

use siltstone_storage::Instant;

/// The number of failures in a row after which the executor is not asked for a while.
const FAILURES: u32 = 3;

/// The first pause. Each further failure doubles it.
const FIRST: Duration = Duration::from_secs(10);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(300);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Pauses {
    failures: u32,
    until: Option<Instant>,
}

impl Pauses {
    /// An attempt has ended.
    pub(crate) fn ended(&mut self, succeeded: bool, now: Instant) {
        if succeeded {
            *self = Pauses::default();
            return;
        }
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            let doublings = (self.failures - FAILURES).min(16);
            self.until = Some(now + FIRST.saturating_mul(1 << doublings).min(LONGEST));
        }
    }

    /// The end of the last pause, if there was one since the last success.
    pub(crate) fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the executor is not asked now.
    pub(crate) fn is_paused(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_the_failures_in_a_row() {
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        let mut pauses = Pauses::default();
        for _ in 0..2 {
            pauses.ended(false, at(0));
            assert!(!pauses.is_paused(at(0)));
        }
        pauses.ended(false, at(0));
        assert!(pauses.is_paused(at(9)) && !pauses.is_paused(at(10)));
        pauses.ended(false, at(10));
        assert!(pauses.is_paused(at(29)) && !pauses.is_paused(at(30)));
        for _ in 0..30 {
            pauses.ended(false, at(30));
        }
        assert!(pauses.is_paused(at(329)) && !pauses.is_paused(at(330)));
        pauses.ended(true, at(330));
        pauses.ended(false, at(330));
        assert!(!pauses.is_paused(at(330)));
    }
}
