//! Counters and latency histograms, always on.
//!
//! Cost: a counter is one relaxed add, and a histogram a few more. Counters of calls by users are
//! divided into cells, so that threads do not wait for each other's cache lines. Of gets and
//! unsynced puts, one call in [`SAMPLE`] is timed, because two clock reads cost more than a hit in
//! the memtable; all other calls are always timed. Bytes are counted by cause, so write
//! amplification is exact: it is the bytes written for each cause, divided by the bytes of user
//! data.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::types::striped::StripedCounter;

/// One in this many gets and puts is timed.
pub(crate) const SAMPLE: u64 = 16;

/// A counter.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self, n: u64) -> u64 {
        self.0.fetch_add(n, Ordering::Relaxed)
    }
    /// Adds to a counter that only the holder of a lock changes. This costs much less than an
    /// atomic addition.
    #[inline]
    pub(crate) fn add_alone(&self, n: u64) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(n);
        self.0.store(sum, Ordering::Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

const SUB_BITS: u32 = 3;
const BUCKETS: usize = ((64 - SUB_BITS as usize) << SUB_BITS) + (1 << SUB_BITS);

/// A log-linear histogram of nanoseconds: eight buckets for each power of two, so percentiles are
/// within 12.5%.
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
    count: AtomicU64,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            count: AtomicU64::new(0),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < (1 << SUB_BITS) {
        return ns as usize;
    }
    let octave = 63 - ns.leading_zeros();
    let sub = (ns >> (octave - SUB_BITS)) & ((1 << SUB_BITS) - 1);
    ((((octave - SUB_BITS + 1) as usize) << SUB_BITS) + sub as usize).min(BUCKETS - 1)
}

fn bucket_top(bucket: usize) -> u64 {
    if bucket < (1 << SUB_BITS) {
        return bucket as u64;
    }
    let octave = (bucket >> SUB_BITS) as u32 + SUB_BITS - 1;
    let sub = (bucket & ((1 << SUB_BITS) - 1)) as u64;
    let base = ((1u64 << SUB_BITS) + sub) as u128;
    (((base + 1) << (octave - SUB_BITS)) - 1).min(u64::MAX as u128) as u64
}

impl Histogram {
    /// Adds one observation.
    #[inline]
    pub fn record(&self, duration: Duration) {
        let ns = duration.as_nanos().min(u64::MAX as u128) as u64;
        self.buckets[bucket_of(ns)].fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// A copy of the figures.
    pub fn summary(&self) -> LatencySummary {
        let counts: Vec<u64> = self
            .buckets
            .iter()
            .map(|b| b.load(Ordering::Relaxed))
            .collect();
        let total: u64 = counts.iter().sum();
        let max_ns = self.max_ns.load(Ordering::Relaxed);
        let at = |q: f64| {
            let rank = ((total as f64 * q).ceil() as u64).max(1);
            let mut seen = 0;
            for (i, c) in counts.iter().enumerate() {
                seen += c;
                if seen >= rank && total > 0 {
                    return bucket_top(i).min(max_ns);
                }
            }
            0
        };
        LatencySummary {
            count: self.count.load(Ordering::Relaxed),
            mean_ns: self.sum_ns.load(Ordering::Relaxed) / total.max(1),
            p50_ns: at(0.5),
            p90_ns: at(0.9),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            max_ns,
        }
    }
}

/// Percentiles of a [`Histogram`], in nanoseconds, with an error of at most 12.5%.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct LatencySummary {
    /// Observations: of gets and unsynced puts one call in sixteen, of everything else each call.
    pub count: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// The 90th percentile.
    pub p90_ns: u64,
    /// The 99th percentile.
    pub p99_ns: u64,
    /// The 99.9th percentile.
    pub p999_ns: u64,
    /// The largest observation.
    pub max_ns: u64,
}

/// All counters of a store. `Stats` shows them to users.
#[derive(Default)]
pub(crate) struct Metrics {
    pub(crate) get_count: StripedCounter,
    pub(crate) get_hit_count: StripedCounter,
    pub(crate) multi_get_count: Counter,
    pub(crate) put_count: StripedCounter,
    pub(crate) batch_count: Counter,
    pub(crate) group_count: Counter,
    pub(crate) seek_count: StripedCounter,
    /// Entries that cursors stepped over without showing them, gaps that they jumped over, and gaps
    /// that they remembered.
    pub(crate) hidden_count: Counter,
    pub(crate) gap_jump_count: Counter,
    pub(crate) gap_count: Counter,
    pub(crate) user_bytes: Counter,
    pub(crate) flush_in_bytes: Counter,
    pub(crate) flush_out_bytes: Counter,
    pub(crate) flush_count: Counter,
    /// Processor time of this machine for flushes and for compactions, in microseconds, that of
    /// attempts that failed included.
    pub(crate) flush_cpu_us: Counter,
    pub(crate) compaction_cpu_us: Counter,
    /// Pauses of compactions for flushes, and their total time.
    pub(crate) pause_count: Counter,
    pub(crate) pause_us: Counter,
    /// Memtables that left values in the log, and the bytes that they had.
    pub(crate) log_backed_count: Counter,
    pub(crate) log_backed_bytes: Counter,
    pub(crate) compaction_in_bytes: Counter,
    pub(crate) compaction_out_bytes: Counter,
    pub(crate) compaction_count: Counter,
    pub(crate) trivial_move_count: Counter,
    /// Flushes to the second location of tables, and the bytes of their memtables.
    pub(crate) redirected_flush_count: Counter,
    pub(crate) redirected_flush_bytes: Counter,
    /// Tables at the second location that compactions read, to bring them back, and their bytes.
    pub(crate) returned_table_count: Counter,
    pub(crate) returned_table_bytes: Counter,
    /// Flushes there that hung, and whose memtables were flushed again at the first location.
    pub(crate) abandoned_flush_count: Counter,
    /// How often flushes there had failed so often that it was not used for a while, or for longer.
    pub(crate) location_suspended_count: Counter,
    pub(crate) intra_l0_count: Counter,
    /// Merges that were due only because of lookups in vain.
    pub(crate) seek_compaction_count: Counter,
    pub(crate) manual_count: Counter,
    pub(crate) delete_compaction_count: Counter,
    pub(crate) dropped_table_count: Counter,
    pub(crate) sealed_for_deletes_count: Counter,
    pub(crate) sealed_for_memory_count: Counter,
    /// Rounds of the memory budget that found more memory in use than allowed, and nothing left to
    /// give back.
    pub(crate) memory_over_count: Counter,
    pub(crate) job_failed_count: Counter,
    /// Compactions that resumed behind tables of a failed attempt, and the number of those tables.
    pub(crate) resumed_job_count: Counter,
    pub(crate) adopted_table_count: Counter,
    pub(crate) out_of_order_install_count: Counter,
    pub(crate) dropped_shadowed_count: Counter,
    pub(crate) dropped_tombstone_count: Counter,
    pub(crate) dropped_covered_count: Counter,
    pub(crate) dropped_fragment_count: Counter,
    pub(crate) deleted_file_count: Counter,
    pub(crate) log_sync_count: Counter,
    pub(crate) replayed_record_count: Counter,
    pub(crate) ingest_count: Counter,
    pub(crate) ingest_bytes: Counter,
    pub(crate) discarded_log_bytes: Counter,
    /// Damaged parts of the log that were not needed, and that the open skipped.
    pub(crate) skipped_log_damage_count: Counter,
    /// Bytes from the first damage in these parts to the log's start.
    pub(crate) skipped_log_damage_bytes: Counter,
    pub(crate) stats_file_failed_count: Counter,
    pub(crate) get_time: Histogram,
    pub(crate) multi_get_time: Histogram,
    pub(crate) put_time: Histogram,
    pub(crate) commit_time: Histogram,
    pub(crate) flush_time: Histogram,
    pub(crate) compaction_time: Histogram,
    pub(crate) sync_time: Histogram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_monotonic_and_hold_their_values() {
        let mut last = 0;
        for shift in 0..63 {
            for offset in [0u64, 1, 3] {
                let ns = (1u64 << shift).saturating_add(offset << shift.clamp(4, 40) >> 4);
                let b = bucket_of(ns);
                assert!(
                    bucket_top(b) >= ns,
                    "{ns} in bucket {b} with top {}",
                    bucket_top(b)
                );
                assert!(b == 0 || bucket_top(b - 1) < ns, "{ns} in bucket {b}");
                last = last.max(b);
            }
        }
        assert!(last < BUCKETS);
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn percentiles_are_within_an_eighth() {
        let h = Histogram::default();
        for i in 1..=1000u64 {
            h.record(Duration::from_nanos(i * 1000));
        }
        let s = h.summary();
        assert_eq!(s.count, 1000);
        assert!((500_000..=562_500).contains(&s.p50_ns), "{}", s.p50_ns);
        assert!((990_000..=1_000_000).contains(&s.p99_ns), "{}", s.p99_ns);
        assert_eq!(s.max_ns, 1_000_000);
    }
}
