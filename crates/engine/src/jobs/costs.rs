//! What each side has done for compactions, what that cost, and what it saved the host.
//!
//! The processor time of a side is what its executor reports for the attempts that made outcomes.
//! The host's part is measured here: building, verifying, installing, waiting, and attempts that
//! failed. The time that the host would have needed for the compactions of another side is an
//! estimate. It is based on the processor time per byte of the host's own compactions or, if the
//! host has run none, on the processor time that the other side needed.
//!
//! If an executor divides a compaction between the host and another machine, each of the two counts
//! what it did of it ([`Compacted::parts`]).
//!
//! Invariant: sums only rise. Flushes do not count.
//!
//! Threading: atomics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_storage::Instant;
use siltstone_table::exec::PartDone;

use crate::types::metrics::Counter;

/// The sums of one side. They cover the compactions whose outcomes were believed.
#[derive(Default)]
pub(super) struct Costs {
    pub(super) compaction_count: Counter,
    pub(super) in_bytes: Counter,
    pub(super) out_bytes: Counter,
    /// Processor time of the machine that ran the compactions, and the input bytes of those
    /// compactions for which it is known.
    pub(super) cpu_ns: Counter,
    measured_bytes: Counter,
    /// Processor time of the host, including that of attempts that failed.
    pub(super) host_cpu_ns: Counter,
    /// The time from the beginning of the compactions to the end of their execution.
    pub(super) run_ns: Counter,
}

/// A compaction whose outcome was believed, or a side's part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Compacted {
    pub(crate) in_bytes: u64,
    pub(crate) out_bytes: u64,
    /// Processor time of the machine that ran it. `None` if two machines ran parts of it.
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) took: Duration,
}

impl Compacted {
    /// The parts of the host and of the side whose executor ran the compaction. `done` is what that
    /// executor says that each of them did. The sums of the parts are those of the whole, except
    /// for the time. Without a part of the host, the side did all of it.
    pub(super) fn parts(self, done: &[PartDone; 2]) -> [Option<Compacted>; 2] {
        // Executors report these numbers, which may have any size.
        let load = |count: fn(&PartDone) -> &AtomicU64| {
            done.each_ref()
                .map(|part| count(part).load(Ordering::Relaxed))
        };
        let [host_in, other_in] = load(|part| &part.bytes_in);
        if host_in == 0 {
            return [None, Some(self)];
        }
        if other_in == 0 {
            return [Some(self), None];
        }
        let [host_out, _] = load(|part| &part.bytes_out);
        let [host_cpu_ns, _] = load(|part| &part.cpu_ns);
        let [host_ns, other_ns] = load(|part| &part.run_ns);
        let both_in = u128::from(host_in) + u128::from(other_in);
        let in_bytes = u128::from(self.in_bytes) * u128::from(host_in) / both_in;
        let host = Compacted {
            in_bytes: u64::try_from(in_bytes).unwrap_or(self.in_bytes),
            out_bytes: host_out.min(self.out_bytes),
            cpu_ns: self.cpu_ns.map(|whole| host_cpu_ns.min(whole)),
            took: Duration::from_nanos(host_ns).min(self.took),
        };
        // The time in which only the host's part was running does not count for the other side. The
        // time in which the job was built does.
        let idle = Duration::from_nanos(host_ns.saturating_sub(other_ns));
        let other = Compacted {
            in_bytes: self.in_bytes - host.in_bytes,
            out_bytes: self.out_bytes - host.out_bytes,
            cpu_ns: self.cpu_ns.map(|whole| whole.saturating_sub(host_cpu_ns)),
            took: self.took.saturating_sub(idle),
        };
        [Some(host), Some(other)]
    }
}

/// The maximum number of intervals that [`Busy`] keeps.
const INTERVALS_MAX: usize = 64;

/// The length of the union of intervals of time, which may overlap.
#[derive(Default)]
pub(super) struct Busy {
    /// The length of the intervals that are not kept any more, in nanoseconds.
    before_ns: u64,
    /// The end of the last of these.
    before: u64,
    /// The begin and the end of each kept interval, in nanoseconds. The intervals are in ascending
    /// order, and no two of them overlap or touch.
    kept: Vec<(u64, u64)>,
}

impl Busy {
    /// Adds an interval.
    pub(super) fn add(&mut self, begin: Instant, took: Duration) {
        let mut to = (begin + took).as_nanos();
        let mut from = begin.as_nanos().max(self.before);
        if from >= to {
            return;
        }
        let first = self.kept.partition_point(|(_, end)| *end < from);
        let behind = self.kept.partition_point(|(begin, _)| *begin <= to);
        for (begin, end) in self.kept.drain(first..behind) {
            (from, to) = (from.min(begin), to.max(end));
        }
        self.kept.insert(first, (from, to));
        if self.kept.len() > INTERVALS_MAX {
            let (begin, end) = self.kept.remove(0);
            self.before_ns += end - begin;
            self.before = end;
        }
    }

    pub(super) fn ns(&self) -> u64 {
        let kept = self.kept.iter().map(|(begin, end)| end - begin);
        self.before_ns + kept.sum::<u64>()
    }
}

impl Costs {
    pub(super) fn add(&self, done: &Compacted) {
        self.compaction_count.add(1);
        self.in_bytes.add(done.in_bytes);
        self.out_bytes.add(done.out_bytes);
        if let Some(cpu_ns) = done.cpu_ns {
            self.cpu_ns.add(cpu_ns);
            self.measured_bytes.add(done.in_bytes);
        }
        self.run_ns.add(done.took.as_nanos() as u64);
    }

    /// The processor time for each input byte, in nanoseconds, if it is known.
    pub(super) fn cpu_ns_per_byte(&self) -> Option<f64> {
        let (bytes, ns) = (self.measured_bytes.get(), self.cpu_ns.get());
        (bytes > 0 && ns > 0).then(|| ns as f64 / bytes as f64)
    }

    /// The processor time that the side saved the host, in microseconds: what the host would have
    /// needed for the side's compactions, minus what it spent on them. Negative if they cost the
    /// host more than they saved. `host` is the host's time for each byte, in nanoseconds.
    pub(super) fn saved_cpu_us(&self, host: Option<f64>) -> Option<i64> {
        let spent = self.host_cpu_ns.get() as f64;
        let bytes = self.in_bytes.get();
        let saved = host? * bytes as f64 - spent;
        (bytes > 0).then_some((saved / 1000.0) as i64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divided_compaction_counts_for_both_sides() {
        let whole = || Compacted {
            in_bytes: 1000,
            out_bytes: 900,
            cpu_ns: Some(5000),
            took: Duration::from_nanos(70_000),
        };
        let set = |part: &PartDone, [bytes_in, bytes_out, run_ns, cpu_ns]: [u64; 4]| {
            part.bytes_in.store(bytes_in, Ordering::Relaxed);
            part.bytes_out.store(bytes_out, Ordering::Relaxed);
            part.run_ns.store(run_ns, Ordering::Relaxed);
            part.cpu_ns.store(cpu_ns, Ordering::Relaxed);
        };
        let parts = |host: [u64; 4], other: [u64; 4]| {
            let done: [PartDone; 2] = Default::default();
            set(&done[0], host);
            set(&done[1], other);
            whole().parts(&done)
        };
        let nothing = [0; 4];
        let all = [1100, 900, 60_000, 5000];
        assert_eq!(parts(nothing, nothing), [None, Some(whole())]);
        assert_eq!(parts(nothing, all), [None, Some(whole())]);
        assert_eq!(parts(all, nothing), [Some(whole()), None]);
        // The parts read a little more than the inputs have, because both read the blocks at the
        // cut. The host's part took 20 us longer than the other one, and verifying took 10 us.
        let [host, other] = parts([275, 300, 60_000, 2000], [825, 600, 40_000, 3000]);
        let expected = Compacted {
            in_bytes: 250,
            out_bytes: 300,
            cpu_ns: Some(2000),
            took: Duration::from_nanos(60_000),
        };
        assert_eq!(host, Some(expected));
        let expected = Compacted {
            in_bytes: 750,
            out_bytes: 600,
            cpu_ns: Some(3000),
            took: Duration::from_nanos(50_000),
        };
        assert_eq!(other, Some(expected));
        // Numbers that cannot be do no harm.
        let [host, other] = parts([u64::MAX; 4], [1; 4]).map(Option::unwrap);
        assert_eq!(host.in_bytes + other.in_bytes, 1000);
        assert_eq!((host.out_bytes, other.out_bytes), (900, 0));
        assert_eq!((host.cpu_ns, other.cpu_ns), (Some(5000), Some(0)));
    }

    #[test]
    fn time_in_which_several_intervals_run_counts_once() {
        let mut busy = Busy::default();
        let mut add = |from: u64, to: u64| {
            busy.add(Instant::from_nanos(from), Duration::from_nanos(to - from));
            busy.ns()
        };
        assert_eq!(add(10, 20), 10);
        assert_eq!(add(30, 40), 20);
        // One that is inside another one, one that overlaps, and one that touches.
        assert_eq!(add(32, 38), 20);
        assert_eq!(add(35, 45), 25);
        assert_eq!(add(45, 50), 30);
        // One that began long ago spans the others and the gap between them.
        assert_eq!(add(5, 55), 50);
        assert_eq!(add(55, 55), 50);
        // Many intervals with gaps. What overlaps intervals that are forgotten does not count
        // twice.
        let sum = (10..300).map(|i| add(i * 10, i * 10 + 5)).last();
        assert_eq!(sum, Some(50 + 290 * 5));
        assert!(add(0, 3000) <= 3000);
        assert!(busy.kept.len() <= INTERVALS_MAX);
    }

    #[test]
    fn savings_are_what_the_host_would_have_needed() {
        let done = |in_bytes, cpu_ns| Compacted {
            in_bytes,
            out_bytes: in_bytes / 2,
            cpu_ns: Some(cpu_ns),
            took: Duration::from_micros(7),
        };
        let (host, device) = (Costs::default(), Costs::default());
        assert_eq!(host.cpu_ns_per_byte(), None);
        assert_eq!(device.saved_cpu_us(Some(4.0)), None, "nothing was done");
        host.add(&done(1000, 3000));
        host.add(&done(1000, 5000));
        assert_eq!(host.cpu_ns_per_byte(), Some(4.0));
        // A compaction that two machines shared says nothing about either.
        host.add(&Compacted {
            cpu_ns: None,
            ..done(0, 0)
        });
        assert_eq!(host.cpu_ns_per_byte(), Some(4.0));
        device.add(&done(1_000_000, 0));
        device.host_cpu_ns.add(500_000);
        assert_eq!(device.cpu_ns_per_byte(), None, "nobody measured it");
        assert_eq!(device.saved_cpu_us(host.cpu_ns_per_byte()), Some(3500));
        assert_eq!(device.saved_cpu_us(None), None);
        device.host_cpu_ns.add(9_000_000);
        assert_eq!(device.saved_cpu_us(Some(4.0)), Some(-5500));
        assert_eq!(
            (host.compaction_count.get(), host.out_bytes.get()),
            (3, 1000)
        );
        assert_eq!(host.run_ns.get(), 21_000);
    }
}
