//! The decision whether a batch may pass: a pure function, and the one place that names the thresholds.

use crate::options::{KeyspaceSettings, Options};

/// Why a writer is delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(usize)]
pub enum Cause {
    /// Too many sealed memtables wait for their flush.
    SealedMemtables = 0,
    /// Many level-0 runs: slowed by a millisecond a batch.
    L0Slowdown = 1,
    /// Too many level-0 runs: stopped.
    L0Stop = 2,
    /// Too many log bytes are pinned by unflushed memtables.
    LogBytes = 3,
}

impl Cause {
    /// All causes, in the order of their numbers.
    pub const ALL: [Cause; 4] = [
        Cause::SealedMemtables,
        Cause::L0Slowdown,
        Cause::L0Stop,
        Cause::LogBytes,
    ];

    /// The cause's name in metrics and tables.
    pub fn word(self) -> &'static str {
        match self {
            Cause::SealedMemtables => "sealed_memtables",
            Cause::L0Slowdown => "l0_slowdown",
            Cause::L0Stop => "l0_stop",
            Cause::LogBytes => "log_bytes",
        }
    }
}

/// What a decision looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Sealed memtables of the keyspace that are not installed as runs.
    pub sealed_memtable_count: u64,
    /// Level-0 runs of the keyspace.
    pub l0_run_count: u64,
    /// Bytes of log segments that unflushed memtables pin.
    pub log_bytes: u64,
}

/// The thresholds, from the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Stop at this many sealed memtables.
    pub sealed_memtables: u64,
    /// Slow at this many level-0 runs.
    pub l0_slowdown: u64,
    /// Stop at this many level-0 runs.
    pub l0_stop: u64,
    /// Stop at this many log bytes: twice the bound at which flushes are forced.
    pub log_bytes: u64,
}

impl Limits {
    /// The thresholds of a keyspace with these settings in a store with these options.
    pub fn of(keyspace: &KeyspaceSettings, options: &Options) -> Limits {
        Limits {
            sealed_memtables: keyspace.sealed_memtables_max.into(),
            l0_slowdown: keyspace.l0_slowdown_count.into(),
            l0_stop: keyspace.l0_stop_count.into(),
            log_bytes: options.log_bytes_max.saturating_mul(2),
        }
    }
}

/// What happens to a batch. (A redirect joins these two when devices arrive.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Join the queue.
    Pass,
    /// Wait a millisecond once, then join.
    Slow {
        /// Why.
        cause: Cause,
        /// The threshold that was met.
        limit: u64,
    },
    /// Wait until it passes.
    Stop {
        /// Why.
        cause: Cause,
        /// The threshold that was met.
        limit: u64,
    },
}

/// Decides for one keyspace. Harder causes first.
pub fn decide(load: &Load, limits: &Limits) -> Decision {
    if load.sealed_memtable_count >= limits.sealed_memtables {
        return Decision::Stop {
            cause: Cause::SealedMemtables,
            limit: limits.sealed_memtables,
        };
    }
    if load.l0_run_count >= limits.l0_stop {
        return Decision::Stop {
            cause: Cause::L0Stop,
            limit: limits.l0_stop,
        };
    }
    if load.log_bytes >= limits.log_bytes && load.sealed_memtable_count > 0 {
        // Without a sealed memtable of its own this keyspace does not pin the log, or its flush is about to be forced.
        return Decision::Stop {
            cause: Cause::LogBytes,
            limit: limits.log_bytes,
        };
    }
    if load.l0_run_count >= limits.l0_slowdown {
        return Decision::Slow {
            cause: Cause::L0Slowdown,
            limit: limits.l0_slowdown,
        };
    }
    Decision::Pass
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        let limits = Limits {
            sealed_memtables: 3,
            l0_slowdown: 20,
            l0_stop: 36,
            log_bytes: 1000,
        };
        let load = |m, l0, log| Load {
            sealed_memtable_count: m,
            l0_run_count: l0,
            log_bytes: log,
        };
        let table = [
            (load(0, 0, 0), Decision::Pass),
            (load(2, 19, 999), Decision::Pass),
            (
                load(3, 0, 0),
                Decision::Stop {
                    cause: Cause::SealedMemtables,
                    limit: 3,
                },
            ),
            (
                load(0, 20, 0),
                Decision::Slow {
                    cause: Cause::L0Slowdown,
                    limit: 20,
                },
            ),
            (
                load(0, 36, 0),
                Decision::Stop {
                    cause: Cause::L0Stop,
                    limit: 36,
                },
            ),
            (
                load(1, 20, 1000),
                Decision::Stop {
                    cause: Cause::LogBytes,
                    limit: 1000,
                },
            ),
            (load(0, 0, 1000), Decision::Pass),
            (
                load(3, 36, 1000),
                Decision::Stop {
                    cause: Cause::SealedMemtables,
                    limit: 3,
                },
            ),
        ];
        for (load, expected) in table {
            assert_eq!(decide(&load, &limits), expected, "{load:?}");
        }
        assert!(Cause::ALL.iter().enumerate().all(|(i, c)| *c as usize == i));
    }
}
