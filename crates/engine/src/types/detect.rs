//! The detector: when will the writers of a keyspace have to wait, and for what?
//!
//! [`forecast`] is a pure function of the last [`Sample`]s of a keyspace. It extrapolates each load
//! to its limit at the rates of the last seconds, and says whether a stall is *ahead*. (KVAccel's
//! detector compares the loads with thresholds every 100 ms. Here a limit is ahead if it is near in
//! time, and samples are taken where the loads change.)
//!
//! Threading: pure functions.

use std::time::Duration;

/// A limit at which writers wait or are slowed down.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum Limit {
    /// The memory of the memtables that are not flushed.
    Memory = 0,
    /// The depth of level 0.
    L0Depth = 1,
    /// The bytes that compactions still have to read.
    PendingBytes = 2,
    /// The bytes of the log that memtables hold.
    LogBytes = 3,
    /// Free bytes.
    Space = 4,
}

impl Limit {
    /// All limits, in the order of their numbers.
    pub const ALL: [Limit; 5] = [
        Limit::Memory,
        Limit::L0Depth,
        Limit::PendingBytes,
        Limit::LogBytes,
        Limit::Space,
    ];

    /// The name of the limit, in metrics and tables.
    pub fn word(self) -> &'static str {
        match self {
            Limit::Memory => "memory",
            Limit::L0Depth => "l0_depth",
            Limit::PendingBytes => "pending_bytes",
            Limit::LogBytes => "log_bytes",
            Limit::Space => "space",
        }
    }
}

/// What a keyspace has done and holds at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Microseconds since the store was opened.
    pub at_us: u64,
    /// Bytes that were written into its memtables since the store was opened.
    pub written_bytes: u64,
    /// Of these, the bytes that were flushed.
    pub flushed_bytes: u64,
    /// Bytes in memtables that are not flushed.
    pub memory_bytes: u64,
    /// The depth of level 0.
    pub depth: u64,
    /// The bytes that compactions still have to read.
    pub pending_bytes: u64,
    /// The bytes of the log that memtables hold.
    pub log_bytes: u64,
    /// Free bytes where tables are written. `None` if the storage does not know them.
    pub free_bytes: Option<u64>,
}

impl Sample {
    /// What the sample says of this limit, and the bound of it.
    pub fn against(&self, limit: Limit, bounds: &Bounds) -> (u64, u64) {
        match limit {
            Limit::Memory => (self.memory_bytes, bounds.memory_bytes),
            Limit::L0Depth => (self.depth, bounds.depth),
            Limit::PendingBytes => (self.pending_bytes, bounds.pending_bytes),
            Limit::LogBytes => (self.log_bytes, bounds.log_bytes),
            Limit::Space => (self.free_bytes.unwrap_or(u64::MAX), bounds.free_bytes),
        }
    }
}

/// The limits of a keyspace, in the units of [`Sample`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Writers wait at this number of bytes in memtables.
    pub memory_bytes: u64,
    /// Writers wait or are slowed down at this depth.
    pub depth: u64,
    /// The same for bytes that compactions have to read.
    pub pending_bytes: u64,
    /// The same for bytes of the log.
    pub log_bytes: u64,
    /// The same for free bytes, if there are no more than these.
    pub free_bytes: u64,
}

/// What [`forecast`] says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forecast {
    /// Bytes a second that are written into memtables.
    pub written_bytes_per_s: u64,
    /// Bytes a second that are flushed.
    pub flushed_bytes_per_s: u64,
    /// By [`Limit`]: the time until it is reached at the present rates, in microseconds; 0 if it is
    /// reached already, and `None` if it does not get nearer.
    pub left_us: [Option<u64>; Limit::ALL.len()],
    /// The limit that is about to be reached.
    pub stall_ahead: Option<Limit>,
}

/// Rates are taken over this time.
pub const WINDOW: Duration = Duration::from_secs(10);

/// A stall is ahead if a limit is nearer than this many flushes take, ...
const BEGINS: u32 = 2;

/// ... until no limit is nearer than this many.
const ENDS: u32 = 6;

/// Extrapolates the samples, which are in the order of their times. `before` is what the last
/// forecast said of a stall, and a flush of a memtable takes `flush`. Of samples before the last
/// [`WINDOW`], only the newest one counts.
pub fn forecast(
    samples: &[Sample],
    bounds: &Bounds,
    before: Option<Limit>,
    flush: Duration,
) -> Forecast {
    let Some(last) = samples.last() else {
        return Forecast::default();
    };
    let since = last.at_us.saturating_sub(WINDOW.as_micros() as u64);
    let from = samples.partition_point(|sample| sample.at_us < since);
    let first = &samples[from.saturating_sub(1)];
    let passed_us = last.at_us.saturating_sub(first.at_us);
    let per_s = |from: u64, to: u64| {
        let bytes = u128::from(to.saturating_sub(from));
        let rate = bytes * 1_000_000 / u128::from(passed_us.max(1));
        rate.min(u128::from(u64::MAX)) as u64
    };
    let written = per_s(first.written_bytes, last.written_bytes);
    let flushed = per_s(first.flushed_bytes, last.flushed_bytes);
    // The time until a load that grew from `from` to `to` reaches its limit.
    let left = |from: u64, to: u64, limit: u64| -> Option<u64> {
        let missing = u128::from(limit.saturating_sub(to));
        if missing == 0 {
            return Some(0);
        }
        let grown = u128::from(to.checked_sub(from).filter(|grown| *grown > 0)?);
        let us = missing * u128::from(passed_us) / grown;
        Some(us.min(u128::from(u64::MAX)) as u64)
    };
    let memory = match last.memory_bytes >= bounds.memory_bytes {
        true => Some(0),
        // The loads at two moments depend on where in a memtable they were taken, so the flows
        // count.
        false => written
            .checked_sub(flushed)
            .filter(|growth| *growth > 0)
            .map(|growth| {
                let missing = u128::from(bounds.memory_bytes - last.memory_bytes);
                let us = missing * 1_000_000 / u128::from(growth);
                us.min(u128::from(u64::MAX)) as u64
            }),
    };
    let space = match (first.free_bytes, last.free_bytes) {
        (_, Some(free)) if free <= bounds.free_bytes => Some(0),
        (Some(from), Some(to)) => {
            // The used bytes above the first sample grow towards what may still be used.
            let used = from.saturating_sub(to);
            left(0, used, from.saturating_sub(bounds.free_bytes))
        }
        _ => None,
    };
    let left_us = [
        memory,
        left(first.depth, last.depth, bounds.depth),
        left(
            first.pending_bytes,
            last.pending_bytes,
            bounds.pending_bytes,
        ),
        left(first.log_bytes, last.log_bytes, bounds.log_bytes),
        space,
    ];
    let within = |flushes: u32| {
        let limit_us = flush.saturating_mul(flushes).as_micros() as u64;
        let near = left_us.iter().zip(Limit::ALL);
        let near = near.filter_map(|(left, limit)| Some(((*left)?, limit)));
        near.filter(|(left, _)| *left < limit_us.max(1)).min()
    };
    let stall_ahead = match before {
        None => within(BEGINS),
        Some(_) => within(ENDS),
    };
    Forecast {
        written_bytes_per_s: written,
        flushed_bytes_per_s: flushed,
        left_us,
        stall_ahead: stall_ahead.map(|(_, limit)| limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds {
        memory_bytes: 3_000,
        depth: 36,
        pending_bytes: 100_000,
        log_bytes: 10_000,
        free_bytes: 5_000,
    };

    const FLUSH: Duration = Duration::from_secs(1);

    fn sample(at_s: u64) -> Sample {
        Sample {
            at_us: at_s * 1_000_000,
            free_bytes: Some(1_000_000),
            ..Sample::default()
        }
    }

    fn left(samples: &[Sample]) -> [Option<u64>; 5] {
        let forecast = forecast(samples, &BOUNDS, None, FLUSH);
        forecast.left_us.map(|us| us.map(|us| us / 1000))
    }

    #[test]
    fn nothing_is_near_while_nothing_grows() {
        assert_eq!(forecast(&[], &BOUNDS, None, FLUSH), Forecast::default());
        assert_eq!(left(&[sample(1)]), [None; 5]);
        let busy = |at: u64| Sample {
            written_bytes: 1000 * at,
            flushed_bytes: 1000 * at,
            memory_bytes: 900,
            depth: 7,
            ..sample(at)
        };
        assert_eq!(left(&[busy(1), busy(3)]), [None; 5]);
        // What shrinks does not get nearer either.
        let shrinks = |at: u64| Sample {
            depth: 20 - at,
            pending_bytes: 1000 - at,
            free_bytes: Some(10_000 + at),
            ..sample(at)
        };
        assert_eq!(left(&[shrinks(1), shrinks(3)]), [None; 5]);
    }

    #[test]
    fn each_limit_is_extrapolated() {
        let grows = |at: u64| Sample {
            written_bytes: 300 * at,
            flushed_bytes: 100 * at,
            memory_bytes: 1_000,
            depth: 4 * at,
            pending_bytes: 10_000 * at,
            log_bytes: 1_000 * at,
            free_bytes: Some(105_000 - 10_000 * at),
            ..sample(at)
        };
        let seconds = [10, 7, 8, 8, 8].map(|s| Some(1000 * s));
        assert_eq!(left(&[grows(1), grows(2)]), seconds);
    }

    #[test]
    fn what_is_reached_is_near_whatever_the_rates_are() {
        let full = Sample {
            memory_bytes: 3_000,
            depth: 40,
            pending_bytes: 100_000,
            log_bytes: 20_000,
            free_bytes: Some(5_000),
            ..sample(1)
        };
        assert_eq!(left(&[full]), [Some(0); 5]);
        let forecast = forecast(&[full], &BOUNDS, None, FLUSH);
        assert_eq!(forecast.stall_ahead, Some(Limit::Memory));
    }

    #[test]
    fn old_samples_do_not_count_except_the_newest_of_them() {
        let at = |at: u64, depth: u64| Sample {
            depth,
            ..sample(at)
        };
        // From second 5 to second 20 depth grew by 15.
        let depth = left(&[at(0, 90), at(5, 5), at(12, 12), at(20, 20)])[1];
        assert_eq!(depth, Some(16_000));
    }

    #[test]
    fn a_stall_that_is_ahead_ends_later_than_it_began() {
        let at = |at: u64, depth: u64| Sample {
            depth,
            ..sample(at)
        };
        // One run each second: the limit is `36 - depth` seconds away.
        let ahead = |depth: u64, before: Option<Limit>| {
            let samples = [at(1, depth - 1), at(2, depth)];
            forecast(&samples, &BOUNDS, before, FLUSH).stall_ahead
        };
        let depth = Some(Limit::L0Depth);
        assert_eq!(ahead(34, None), None);
        assert_eq!(ahead(35, None), depth);
        assert_eq!(ahead(31, depth), depth);
        assert_eq!(ahead(30, depth), None);
        assert!(Limit::ALL.iter().enumerate().all(|(i, l)| *l as usize == i));
    }
}
