//! The factor by which the time of the host's cores is multiplied when the side of a compaction is
//! chosen.
//!
//! Writers and readers need these cores, so a compaction should run elsewhere, even if that takes
//! longer. But cores that nobody uses cost nothing: over a slow link, writers wait for syncs, and
//! the host could compact in that time. So the weight follows the share of the host's cores that
//! this process has used lately, including its own compactions. A host that compacts becomes busy
//! by that, and takes no more compactions until its writers leave time again.
//!
//! Threading: plain data, under the lock of the schedule.

use std::time::Duration;

use siltstone_storage::Instant;

/// The weight of a host whose cores are busy.
pub(crate) const WEIGHT_MAX: f64 = 4.0;

/// Up to this share of the cores in use, the weight is 1.
const IDLE: f64 = 1.0 / 3.0;

/// From this share on, the weight is [`WEIGHT_MAX`].
const BUSY: f64 = 2.0 / 3.0;

/// The share is measured over at least this time, because the clock of a process advances in steps.
const MEASURED_OVER: Duration = Duration::from_millis(100);

/// A measurement over this time counts as much as all earlier ones together.
const MEMORY: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct HostUse {
    /// When the share was last measured, and the processor time of the process at that time.
    last: Option<(Instant, u64)>,
    share: Option<f64>,
    /// The number of cores that the process may use, once it has been determined.
    cores: Option<usize>,
}

impl HostUse {
    /// The present weight. `used_ns` is the processor time that this process has used so far, or
    /// `None` if it is not known. `cores` returns the number of cores that the process may use, and
    /// is called once.
    pub(crate) fn weight(
        &mut self,
        now: Instant,
        used_ns: Option<u64>,
        cores: impl FnOnce() -> usize,
    ) -> f64 {
        let Some(used_ns) = used_ns else {
            return WEIGHT_MAX;
        };
        let (since, before) = *self.last.get_or_insert((now, used_ns));
        let passed = now.since(since);
        if passed >= MEASURED_OVER {
            let used = used_ns.saturating_sub(before) as f64;
            let cores = *self.cores.get_or_insert_with(cores);
            let measured = used / (passed.as_nanos() as f64 * cores.max(1) as f64);
            let weight = passed.as_secs_f64() / (passed + MEMORY).as_secs_f64();
            let share = self
                .share
                .map_or(measured, |share| share + weight * (measured - share));
            (self.last, self.share) = (Some((now, used_ns)), Some(share));
        }
        // Until something is measured, the host is spared.
        let busy = self
            .share
            .map_or(1.0, |share| (share - IDLE) / (BUSY - IDLE));
        1.0 + (WEIGHT_MAX - 1.0) * busy.clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn the_weight_follows_the_use_of_the_cores() {
        let mut host = HostUse::default();
        assert_eq!(host.weight(at(0), None, || 2), WEIGHT_MAX);
        assert_eq!(
            host.weight(at(0), Some(0), || 2),
            WEIGHT_MAX,
            "nothing is known"
        );
        // Half of two cores is one core's time.
        let used = |ms: u64| Some(ms * 1_000_000);
        let is_half = |weight: f64| (weight - 2.5).abs() < 1e-9;
        assert!(is_half(host.weight(at(1000), used(1000), || 2)));
        // Too little time has passed for another measurement.
        assert!(is_half(host.weight(at(1050), used(1000), || 2)));
        // The process does nothing for a while.
        let mut weight = 0.0;
        for s in 2..8 {
            weight = host.weight(at(s * 1000), used(1000), || 2);
        }
        assert_eq!(weight, 1.0);
        // Then it uses all cores.
        for s in 8..20 {
            weight = host.weight(at(s * 1000), used(1000 + 2000 * (s - 7)), || 2);
        }
        assert_eq!(weight, WEIGHT_MAX);
    }
}
