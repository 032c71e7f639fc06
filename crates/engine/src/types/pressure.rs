//! Decides whether a batch may pass: a pure function, and the only place that names the thresholds.

use crate::types::options::{KeyspaceSettings, Options, StallPolicy};

/// Why a writer is delayed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum StallCause {
    /// Stop: too many sealed memtables wait for their flush.
    SealedMemtables = 0,
    /// Slowdown: there are many level-0 runs.
    L0Slowdown = 1,
    /// Stop: there are too many level-0 runs.
    L0Stop = 2,
    /// Stop: unflushed memtables need too many bytes of the log.
    LogBytes = 3,
    /// Slowdown: sealed memtables are one below the limit, and the active one is more than half
    /// full.
    MemtableSlowdown = 4,
    /// Slowdown: unflushed memtables need nearly as many bytes of the log as are allowed.
    LogSlowdown = 5,
}

impl StallCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [StallCause; 6] = [
        StallCause::SealedMemtables,
        StallCause::L0Slowdown,
        StallCause::L0Stop,
        StallCause::LogBytes,
        StallCause::MemtableSlowdown,
        StallCause::LogSlowdown,
    ];

    /// The name of the cause, in metrics and tables.
    pub fn word(self) -> &'static str {
        match self {
            StallCause::SealedMemtables => "sealed_memtables",
            StallCause::L0Slowdown => "l0_slowdown",
            StallCause::L0Stop => "l0_stop",
            StallCause::LogBytes => "log_bytes",
            StallCause::MemtableSlowdown => "memtable_slowdown",
            StallCause::LogSlowdown => "log_slowdown",
        }
    }

    /// What a writer waits for and which settings decide it, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            StallCause::SealedMemtables => {
                "writers wait for a flush: sealed memtables reached sealed_memtables_max"
            }
            StallCause::L0Slowdown => {
                "bytes a second are limited: level-0 runs are between l0_slowdown_count and \
                 l0_stop_count"
            }
            StallCause::L0Stop => {
                "writers wait for a compaction: level-0 runs reached l0_stop_count"
            }
            StallCause::LogBytes => {
                "writers wait for flushes: the log that replay would read is twice log_bytes_max"
            }
            StallCause::MemtableSlowdown => {
                "bytes a second are limited: one more sealed memtable is sealed_memtables_max"
            }
            StallCause::LogSlowdown => {
                "bytes a second are limited: the log that replay would read is near twice \
                 log_bytes_max"
            }
        }
    }
}

/// What a decision is based on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Load {
    /// Sealed memtables of the keyspace that are not yet installed as runs.
    pub sealed_memtable_count: u64,
    /// Level-0 runs of the keyspace.
    pub l0_run_count: u64,
    /// Bytes of the log segments that unflushed memtables need.
    pub log_bytes: u64,
    /// Bytes in the active memtable, if there is a sealed one; else 0.
    pub active_bytes: u64,
}

/// The thresholds of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Writers stop at this number of sealed memtables.
    pub sealed_memtables: u64,
    /// Writers are slowed down from this number of level-0 runs on, if `slows`.
    pub l0_slowdown: u64,
    /// Writers stop at this number of level-0 runs.
    pub l0_stop: u64,
    /// Writers stop at this number of log bytes: twice the number at which flushes are forced.
    pub log_bytes: u64,
    /// The size of a memtable, in bytes.
    pub memtable_bytes: u64,
    /// Whether writers are slowed down before they are stopped.
    pub slows: bool,
}

impl Limits {
    /// The thresholds of a keyspace with these settings in a store with these options.
    pub fn of(keyspace: &KeyspaceSettings, options: &Options) -> Limits {
        Limits {
            sealed_memtables: keyspace.sealed_memtables_max.into(),
            l0_slowdown: keyspace.l0_slowdown_count.into(),
            l0_stop: keyspace.l0_stop_count.into(),
            log_bytes: options.log_bytes_max.saturating_mul(2),
            memtable_bytes: keyspace.memtable_bytes,
            slows: options.stall_policy == StallPolicy::Slowdown,
        }
    }
}

/// What happens to a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It joins the queue.
    Pass,
    /// It joins the queue when the write rate of the keyspace (`commit/write_rate.rs`) admits it.
    Slow {
        /// Why it is slowed down.
        cause: StallCause,
        /// The threshold that was reached.
        limit: u64,
        /// How near the load is to where writers stop: 1 to 999 thousandths of the way from the
        /// threshold.
        pressure_permille: u32,
    },
    /// It waits until the load is below the limit.
    Stop {
        /// Why it waits.
        cause: StallCause,
        /// The limit that was reached.
        limit: u64,
    },
}

/// Whether every batch passes in a keyspace with these numbers of sealed memtables and level-0
/// runs, however much the log and the active memtable hold.
pub fn is_calm(sealed_memtable_count: u64, l0_run_count: u64, limits: &Limits) -> bool {
    sealed_memtable_count == 0
        && limits.sealed_memtables > 0
        && l0_run_count < limits.l0_stop
        && (l0_run_count < limits.l0_slowdown || !limits.slows)
}

/// Decides for one keyspace. Causes that stop writers come first.
pub fn decide(load: &Load, limits: &Limits) -> Decision {
    if load.sealed_memtable_count >= limits.sealed_memtables {
        return Decision::Stop {
            cause: StallCause::SealedMemtables,
            limit: limits.sealed_memtables,
        };
    }
    if load.l0_run_count >= limits.l0_stop {
        return Decision::Stop {
            cause: StallCause::L0Stop,
            limit: limits.l0_stop,
        };
    }
    if load.log_bytes >= limits.log_bytes && load.sealed_memtable_count > 0 {
        // A keyspace without a sealed memtable does not hold the log, or its flush is about to be
        // forced.
        return Decision::Stop {
            cause: StallCause::LogBytes,
            limit: limits.log_bytes,
        };
    }
    if limits.slows {
        slow(load, limits)
    } else {
        Decision::Pass
    }
}

/// Whether and how much to slow down. Slowing begins at three quarters of the limit of log bytes,
/// and at half of the last memtable.
fn slow(load: &Load, limits: &Limits) -> Decision {
    if load.l0_run_count < limits.l0_slowdown && load.sealed_memtable_count == 0 {
        return Decision::Pass;
    }
    // Thousandths of the way from `from` to `to`, for an `at` below `to`.
    let way = |from: u64, at: u64, to: u64| {
        let (done, all) = (at.saturating_sub(from), to.saturating_sub(from).max(1));
        (u128::from(done) * 1000 / u128::from(all)).min(999) as u32
    };
    let l0 = match limits.l0_slowdown {
        // The first run above the threshold counts as one step.
        from if load.l0_run_count >= from => way(from - 1, load.l0_run_count, limits.l0_stop),
        _ => 0,
    };
    // With a limit of one or two, every memtable would be slowed down from its middle on.
    let last =
        limits.sealed_memtables >= 3 && load.sealed_memtable_count + 1 == limits.sealed_memtables;
    let memtable = match limits.memtable_bytes {
        full if last => way(full / 2, load.active_bytes, full),
        _ => 0,
    };
    let log_from = limits.log_bytes / 4 * 3;
    let log = match load.sealed_memtable_count {
        0 => 0,
        _ => way(log_from, load.log_bytes, limits.log_bytes),
    };
    let causes = [
        (l0, StallCause::L0Slowdown, limits.l0_slowdown),
        (
            memtable,
            StallCause::MemtableSlowdown,
            limits.sealed_memtables - 1,
        ),
        (log, StallCause::LogSlowdown, log_from),
    ];
    // Of equal pressures the first counts.
    let (pressure_permille, cause, limit) = causes
        .into_iter()
        .reduce(|most, next| if next.0 > most.0 { next } else { most })
        .expect("there are three");
    match pressure_permille {
        0 => Decision::Pass,
        pressure_permille => Decision::Slow {
            cause,
            limit,
            pressure_permille,
        },
    }
}

impl Load {
    /// The part of the load that the rate limit of a slowed keyspace uses.
    pub(crate) fn nearness(&self, limits: &Limits, pressure_permille: u32) -> Nearness {
        Nearness {
            pressure_permille,
            debt_count: self.sealed_memtable_count + self.l0_run_count,
            memtable_bytes: limits.memtable_bytes,
        }
    }
}

/// How near a keyspace is to its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nearness {
    /// Thousandths of the way from where slowing begins to where writers stop, below 1000.
    pub(crate) pressure_permille: u32,
    /// The number of sealed memtables and level-0 runs.
    pub(crate) debt_count: u64,
    /// The size of a memtable, in bytes.
    pub(crate) memtable_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_calm_keyspace_every_batch_passes() {
        let mut calm = 0;
        for case in 0..2_u64.pow(10) {
            let bits = |at: u32, count: u32| case >> at & ((1 << count) - 1);
            let limits = Limits {
                sealed_memtables: bits(0, 2),
                l0_slowdown: 2,
                l0_stop: 2 + bits(2, 1),
                log_bytes: 1000 * bits(3, 1),
                memtable_bytes: 400,
                slows: bits(4, 1) == 1,
            };
            let load = Load {
                sealed_memtable_count: bits(5, 1),
                l0_run_count: bits(6, 2),
                log_bytes: 2000 * bits(8, 1),
                active_bytes: 400 * bits(9, 1),
            };
            if is_calm(load.sealed_memtable_count, load.l0_run_count, &limits) {
                calm += 1;
                assert_eq!(
                    decide(&load, &limits),
                    Decision::Pass,
                    "{load:?} {limits:?}"
                );
            }
        }
        assert!(calm > 100, "{calm} of the cases are calm");
    }

    #[test]
    fn thresholds() {
        let limits = Limits {
            sealed_memtables: 3,
            l0_slowdown: 20,
            l0_stop: 36,
            log_bytes: 1000,
            memtable_bytes: 400,
            slows: true,
        };
        let load = |m, l0, log| Load {
            sealed_memtable_count: m,
            l0_run_count: l0,
            log_bytes: log,
            active_bytes: 0,
        };
        let table = [
            (load(0, 0, 0), Decision::Pass),
            (load(2, 19, 750), Decision::Pass),
            (load(0, 19, 999), Decision::Pass),
            (
                load(3, 0, 0),
                Decision::Stop {
                    cause: StallCause::SealedMemtables,
                    limit: 3,
                },
            ),
            (
                load(0, 20, 0),
                Decision::Slow {
                    cause: StallCause::L0Slowdown,
                    limit: 20,
                    pressure_permille: 58,
                },
            ),
            (
                load(1, 35, 950),
                Decision::Slow {
                    cause: StallCause::L0Slowdown,
                    limit: 20,
                    pressure_permille: 941,
                },
            ),
            (
                load(1, 20, 999),
                Decision::Slow {
                    cause: StallCause::LogSlowdown,
                    limit: 750,
                    pressure_permille: 996,
                },
            ),
            (
                Load {
                    active_bytes: 300,
                    ..load(2, 0, 0)
                },
                Decision::Slow {
                    cause: StallCause::MemtableSlowdown,
                    limit: 2,
                    pressure_permille: 500,
                },
            ),
            (
                Load {
                    active_bytes: 200,
                    ..load(2, 0, 0)
                },
                Decision::Pass,
            ),
            (
                Load {
                    active_bytes: 399,
                    ..load(1, 0, 0)
                },
                Decision::Pass,
            ),
            (
                load(0, 36, 0),
                Decision::Stop {
                    cause: StallCause::L0Stop,
                    limit: 36,
                },
            ),
            (
                load(1, 20, 1000),
                Decision::Stop {
                    cause: StallCause::LogBytes,
                    limit: 1000,
                },
            ),
            (load(0, 0, 1000), Decision::Pass),
            (
                load(3, 36, 1000),
                Decision::Stop {
                    cause: StallCause::SealedMemtables,
                    limit: 3,
                },
            ),
        ];
        for (load, expected) in table {
            assert_eq!(decide(&load, &limits), expected, "{load:?}");
            let stops = Limits {
                slows: false,
                ..limits
            };
            let expected = match expected {
                Decision::Slow { .. } => Decision::Pass,
                expected => expected,
            };
            assert_eq!(decide(&load, &stops), expected, "{load:?}");
        }
        // Limits that are equal leave no room for slowing.
        let narrow = Limits {
            sealed_memtables: 1,
            l0_slowdown: 1,
            l0_stop: 1,
            ..limits
        };
        assert_eq!(decide(&load(0, 0, 0), &narrow), Decision::Pass);
        assert!(
            StallCause::ALL
                .iter()
                .enumerate()
                .all(|(i, c)| *c as usize == i)
        );
    }
}
