//! How many bytes of memtables the flushes of a store take in a second.
//!
//! The rate is that of the last [`REMEMBERED`] flushes of at least half a memtable: their bytes, by
//! the time during which at least one of them ran, syncs and the edit of the manifest included. The
//! rate of a single one is that of the slowest of them, by its own time. Writers that follow a flush
//! by this rate do not run out of memory before the flush ends, as long as none is slower than all
//! that are remembered.
//!
//! Threading: a plain value under the lock of `Stalls`.

use std::collections::VecDeque;

use siltstone_storage::Instant;

/// How many flushes are remembered.
const REMEMBERED: usize = 8;

/// The rate before a flush has ended.
pub(crate) const UNMEASURED_BYTES_PER_S: u64 = 64 << 20;

struct Flush {
    begun: Instant,
    ended: Instant,
    bytes: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct FlushMeter {
    /// In the order of their ends.
    flushes: VecDeque<Flush>,
    /// The rate of these flushes.
    bytes_per_s: Option<u64>,
}

impl FlushMeter {
    /// A flush of this many bytes ended.
    pub(crate) fn ended(&mut self, begun: Instant, ended: Instant, bytes: u64) {
        if self.flushes.len() == REMEMBERED {
            self.flushes.pop_front();
        }
        self.flushes.push_back(Flush {
            begun,
            ended,
            bytes,
        });
        self.bytes_per_s = self.measure();
    }

    /// Bytes a second. `None` if no flush has ended.
    pub(crate) fn bytes_per_s(&self) -> Option<u64> {
        self.bytes_per_s
    }

    /// The bytes a second of the slowest flush. `None` if no flush has ended that took time.
    pub(crate) fn single_bytes_per_s(&self) -> Option<u64> {
        let rates = self.flushes.iter().filter_map(|f| {
            let ns = f.ended.since(f.begun).as_nanos();
            (u128::from(f.bytes) * 1_000_000_000).checked_div(ns)
        });
        Some(rates.min()?.min(u128::from(u64::MAX)) as u64)
    }

    fn measure(&self) -> Option<u64> {
        let mut spans: Vec<(Instant, Instant)> = Vec::with_capacity(self.flushes.len());
        spans.extend(self.flushes.iter().map(|flush| (flush.begun, flush.ended)));
        spans.sort_unstable();
        let (mut busy_ns, mut counted) = (0, None::<Instant>);
        for (begun, ended) in spans {
            let from = counted.map_or(begun, |counted| counted.max(begun));
            if ended > from {
                busy_ns += ended.since(from).as_nanos();
                counted = Some(ended);
            }
        }
        let bytes: u128 = self.flushes.iter().map(|f| u128::from(f.bytes)).sum();
        let rate = (bytes * 1_000_000_000).checked_div(busy_ns)?;
        Some(rate.min(u128::from(u64::MAX)) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn rate(flushes: &[(u64, u64, u64)]) -> Option<u64> {
        let mut meter = FlushMeter::default();
        for (begun, ended, bytes) in flushes {
            meter.ended(at_ms(*begun), at_ms(*ended), *bytes);
        }
        meter.bytes_per_s()
    }

    #[test]
    fn only_the_time_of_flushes_counts_and_each_moment_once() {
        assert_eq!(rate(&[]), None);
        assert_eq!(rate(&[(5, 5, 100)]), None);
        assert_eq!(rate(&[(0, 500, 1000)]), Some(2000));
        // A pause between two flushes does not count.
        assert_eq!(rate(&[(0, 500, 1000), (9000, 9500, 3000)]), Some(4000));
        // Two at once share the time.
        assert_eq!(rate(&[(0, 1000, 1000), (500, 1500, 2000)]), Some(2000));
        assert_eq!(rate(&[(200, 300, 1000), (0, 1000, 1000)]), Some(2000));
        assert_eq!(rate(&[(0, 1, u64::MAX)]), Some(u64::MAX));
    }

    #[test]
    fn a_single_flush_is_as_fast_as_the_slowest() {
        let mut meter = FlushMeter::default();
        assert_eq!(meter.single_bytes_per_s(), None);
        meter.ended(at_ms(0), at_ms(1000), 1000);
        meter.ended(at_ms(500), at_ms(1500), 1000);
        assert_eq!(meter.single_bytes_per_s(), Some(1000));
        assert_eq!(meter.bytes_per_s(), Some(1333));
        meter.ended(at_ms(2000), at_ms(4000), 1000);
        assert_eq!(meter.single_bytes_per_s(), Some(500));
        // It is forgotten after some more.
        (5..12).for_each(|s| meter.ended(at_ms(s * 1000), at_ms(s * 1000 + 900), 900));
        assert_eq!(meter.single_bytes_per_s(), Some(500));
        meter.ended(at_ms(12_000), at_ms(12_900), 900);
        assert_eq!(meter.single_bytes_per_s(), Some(1000));
    }

    #[test]
    fn the_last_flushes_count() {
        let slow = (0..20).map(|i| (1000 * i, 1000 * i + 1000, 10));
        let fast = (20..28).map(|i| (1000 * i, 1000 * i + 500, 10));
        let all: Vec<_> = slow.chain(fast).collect();
        assert_eq!(rate(&all), Some(20));
    }
}
