//! A token bucket, which limits the rate of bytes that are paid for after they are spent.
//!
//! The bucket fills at the rate up to a burst. Whoever has spent bytes takes them out, so the
//! bucket may become negative, and others wait until the debt is paid. So the sums are exact
//! whatever the size of a piece is, and nobody needs to know the size in advance.
//!
//! Invariant: in any period, at most the highest rate times the period is spent while the bucket is
//! not in debt, plus the burst at that rate and the last piece.
//!
//! Threading: a plain value. The caller passes the time and holds the lock.

use std::time::Duration;

use crate::runtime::Instant;

const NANOS: i128 = 1_000_000_000;

/// See the module.
pub struct TokenBucket {
    /// Bytes times 10^9, so that no time is lost by rounding; negative is debt.
    level: i128,
    filled: Instant,
    /// The most that a pause saves up, as time at the full rate.
    burst: Duration,
}

impl TokenBucket {
    /// A bucket that is empty and not in debt.
    pub fn new(now: Instant, burst: Duration) -> TokenBucket {
        TokenBucket {
            level: 0,
            filled: now,
            burst,
        }
    }

    /// Adds the bytes that this rate has given since the last call.
    pub fn fill(&mut self, now: Instant, bytes_per_s: u64) {
        let rate = i128::from(bytes_per_s);
        let passed = now.since(self.filled).as_nanos() as i128;
        let full = rate * self.burst.as_nanos() as i128;
        self.level = (self.level + rate * passed).min(full);
        self.filled = now;
    }

    /// Takes bytes out.
    pub fn spend(&mut self, bytes: u64) {
        self.level -= i128::from(bytes) * NANOS;
    }

    /// Takes as many of these bytes as the bucket has, and returns how many these are.
    pub fn take(&mut self, bytes: u64) -> u64 {
        let has = (self.level.max(0) / NANOS).min(i128::from(bytes)) as u64;
        self.spend(has);
        has
    }

    /// Puts bytes back that were spent and are not used after all.
    pub fn give_back(&mut self, bytes: u64) {
        self.level += i128::from(bytes) * NANOS;
    }

    /// Forgets the part of the debt that exceeds what comes in `most` at this rate.
    pub fn limit_debt(&mut self, most: Duration, bytes_per_s: u64) {
        let least = -(i128::from(bytes_per_s) * most.as_nanos() as i128);
        self.level = self.level.max(least);
    }

    /// Forgets the debt and the bytes that were saved up.
    pub fn clear(&mut self) {
        self.level = 0;
    }

    /// Whether bytes that were spent are not paid for.
    pub fn is_in_debt(&self) -> bool {
        self.level < 0
    }

    /// How long it takes at this rate, which is not 0, until the debt is paid, but at most a
    /// second.
    pub fn debt_takes(&self, bytes_per_s: u64) -> Duration {
        let ns = -self.level.min(0) / i128::from(bytes_per_s) + 1;
        Duration::from_nanos(ns.min(NANOS) as u64)
    }

    /// Whether the debt is more than what comes in `time` at this rate.
    pub fn owes_more_than(&self, time: Duration, bytes_per_s: u64) -> bool {
        self.level < -(i128::from(bytes_per_s) * time.as_nanos() as i128)
    }
}
