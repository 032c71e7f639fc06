//! How fast bytes arrive over a link, measured with the answers that have many bytes.
//!
//! An answer is measured from the moment at which somebody waits for it, so the time includes the
//! work of the device. If several answers are under way at once, each of them but the first takes
//! as long as the transfer of its bytes.
//!
//! Threading: shared. If two tasks measure at once, one measurement may be lost. That does not
//! matter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::transfer_cost::average;

/// Answers with fewer bytes show the time of a request rather than the time of the bytes.
const BYTES_MIN: u64 = 64 << 10;

/// See the module.
#[derive(Default)]
pub(super) struct LinkRate {
    /// Nanoseconds for each byte, as the bits of an `f64`; 0 if nothing was measured yet.
    ns_per_byte: AtomicU64,
}

impl LinkRate {
    /// Takes the measurement of an answer of this length that somebody waited for.
    pub(super) fn note(&self, bytes: u64, took: Duration) {
        if bytes < BYTES_MIN || took.is_zero() {
            return;
        }
        let new = took.as_nanos() as f64 / bytes as f64;
        let before = self.ns_per_byte();
        let now = before.map_or(new, |before| average(before, new));
        self.ns_per_byte.store(now.to_bits(), Ordering::Relaxed);
    }

    /// Nanoseconds for each byte, if any were measured.
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
