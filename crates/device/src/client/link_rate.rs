//! How fast bytes come over a link, from the answers with many of them.
//!
//! An answer is measured from the moment at which somebody waits for it, so the time of the device
//! is part of it. Of several answers that are under way at once, each but the first takes as long
//! as its bytes.
//!
//! Threading: shared. Two measurements at once may lose one of them, which does not matter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::transfer_cost::average;

/// Answers with fewer bytes show the time of a request, and not that of bytes.
const BYTES_MIN: u64 = 64 << 10;

/// See the module.
#[derive(Default)]
pub(super) struct LinkRate {
    /// Nanoseconds for a byte, as the bits of an `f64`; 0 for none yet.
    ns_per_byte: AtomicU64,
}

impl LinkRate {
    /// Takes an answer of this length that was waited for.
    pub(super) fn note(&self, bytes: u64, took: Duration) {
        if bytes < BYTES_MIN || took.is_zero() {
            return;
        }
        let new = took.as_nanos() as f64 / bytes as f64;
        let before = self.ns_per_byte();
        let now = before.map_or(new, |before| average(before, new));
        self.ns_per_byte.store(now.to_bits(), Ordering::Relaxed);
    }

    /// Nanoseconds for a byte, if any were measured.
    pub(super) fn ns_per_byte(&self) -> Option<f64> {
        match self.ns_per_byte.load(Ordering::Relaxed) {
            0 => None,
            bits => Some(f64::from_bits(bits)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_answers_are_measured() {
        let rate = LinkRate::default();
        rate.note(BYTES_MIN - 1, Duration::from_secs(1));
        rate.note(BYTES_MIN, Duration::ZERO);
        assert_eq!(rate.ns_per_byte(), None);
        rate.note(1_000_000, Duration::from_millis(8));
        assert_eq!(rate.ns_per_byte(), Some(8.0));
        rate.note(1_000_000, Duration::from_millis(16));
        assert_eq!(rate.ns_per_byte(), Some(9.0));
    }
}
