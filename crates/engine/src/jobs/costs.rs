//! What each side has done for compactions, what that cost, and what it saved the host.
//!
//! The processor time of a side is what its executor reports for the attempts that made outcomes.
//! The host's part is measured here: building, verifying, installing, waiting, and attempts that
//! failed. The time that the host would have needed for the compactions of another side is an
//! estimate. It is based on the processor time per byte of the host's own compactions or, if the
//! host has run none, on the processor time that the other side needed.
//!
//! Invariant: sums only rise. Flushes do not count.
//!
//! Threading: atomics.

use std::time::Duration;

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
    /// The time from the beginning of the compactions to the end of their verification.
    pub(super) run_ns: Counter,
}

/// A compaction whose outcome was believed.
pub(crate) struct Compacted {
    pub(crate) in_bytes: u64,
    pub(crate) out_bytes: u64,
    /// Processor time of the machine that ran it. `None` if two machines ran parts of it.
    pub(crate) cpu_ns: Option<u64>,
    pub(crate) took: Duration,
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
