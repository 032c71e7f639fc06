//! Decides whether a batch may pass: a pure function, and the only place that names the thresholds
//! ([RFC 13](../../../../docs/rfc/0013-pressure.md), sections 3 and 4).
//!
//! Three policies stop writers at limits of memory, of the log, of level 0 and of the bytes that
//! compactions have to read; `slowdown` and `adoc` take fewer bytes a second before that. With
//! `redirect`, writers stop only for memory, and for the log that it holds: they are admitted at
//! the rate of the flushes when memory is nearly used up, and at a lower one when compactions have
//! too much to do (the idea of KVAccel, whose device takes the writes meanwhile).
//!
//! Threading: pure functions.

use crate::types::options::{KeyspaceSettings, Options, StallPolicy};

/// Why a writer is delayed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
#[repr(usize)]
pub enum StallCause {
    /// Stop: the memory of memtables that are not flushed is used up, or there are too many of
    /// them.
    SealedMemtables = 0,
    /// Slowdown: level 0 is deep.
    L0Slowdown = 1,
    /// Stop: level 0 is too deep.
    L0Stop = 2,
    /// Stop: unflushed memtables need too many bytes of the log.
    LogBytes = 3,
    /// Slowdown: the memory of memtables that are not flushed is nearly used up.
    MemtableSlowdown = 4,
    /// Slowdown: unflushed memtables need nearly as many bytes of the log as are allowed.
    LogSlowdown = 5,
    /// Slowdown: compactions have many bytes to read.
    PendingSlowdown = 6,
    /// Stop: compactions have too many bytes to read.
    PendingStop = 7,
    /// Slowdown: the disk is nearly too full for a compaction.
    SpaceSlowdown = 8,
    /// The leader made a log segment, because none was ready.
    LogSegment = 9,
    /// The leader allocated the memory of a memtable, because none was ready.
    Arena = 10,
    /// The leader raised the ceiling of sequence numbers.
    Ceiling = 11,
    /// The operating system took longer than a millisecond to take a record of the log.
    LogWrite = 12,
    /// The leader synced the log, because a writer of its group asked for it.
    LogSync = 13,
    /// A caller that is no writer had the lead: an ingest, a create, a drop, a flush or a
    /// checkpoint.
    Lead = 14,
}

impl StallCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [StallCause; 15] = [
        StallCause::SealedMemtables,
        StallCause::L0Slowdown,
        StallCause::L0Stop,
        StallCause::LogBytes,
        StallCause::MemtableSlowdown,
        StallCause::LogSlowdown,
        StallCause::PendingSlowdown,
        StallCause::PendingStop,
        StallCause::SpaceSlowdown,
        StallCause::LogSegment,
        StallCause::Arena,
        StallCause::Ceiling,
        StallCause::LogWrite,
        StallCause::LogSync,
        StallCause::Lead,
    ];

    /// Whether the leader waited, and all writers with it. The other causes are waits of one
    /// writer.
    pub fn is_of_leader(self) -> bool {
        self >= StallCause::LogSegment
    }

    /// The name of the cause, in metrics and tables.
    pub fn word(self) -> &'static str {
        match self {
            StallCause::SealedMemtables => "sealed_memtables",
            StallCause::L0Slowdown => "l0_slowdown",
            StallCause::L0Stop => "l0_stop",
            StallCause::LogBytes => "log_bytes",
            StallCause::MemtableSlowdown => "memtable_slowdown",
            StallCause::LogSlowdown => "log_slowdown",
            StallCause::PendingSlowdown => "pending_slowdown",
            StallCause::PendingStop => "pending_stop",
            StallCause::SpaceSlowdown => "space_slowdown",
            StallCause::LogSegment => "log_segment",
            StallCause::Arena => "arena",
            StallCause::Ceiling => "ceiling",
            StallCause::LogWrite => "log_write",
            StallCause::LogSync => "log_sync",
            StallCause::Lead => "lead",
        }
    }

    /// What a writer waits for and which settings decide it, in one line.
    pub fn meaning(self) -> &'static str {
        match self {
            StallCause::SealedMemtables => {
                "writers wait for a flush: unflushed memtables reached sealed_memtables_max"
            }
            StallCause::L0Slowdown => {
                "bytes a second are limited: level 0 is deeper than l0_slowdown_count, or with \
                 \"redirect\" than l0_stop_count"
            }
            StallCause::L0Stop => {
                "writers wait for a compaction: level 0 is as deep as l0_stop_count"
            }
            StallCause::LogBytes => {
                "writers wait for flushes: the log that replay would read is twice log_bytes_max, \
                 or with \"redirect\" redirect_log_bytes_max"
            }
            StallCause::MemtableSlowdown => {
                "bytes a second are limited: unflushed memtables are near sealed_memtables_max"
            }
            StallCause::LogSlowdown => {
                "bytes a second are limited: the log that replay would read is near twice \
                 log_bytes_max, or with \"redirect\" redirect_log_bytes_max"
            }
            StallCause::PendingSlowdown => {
                "bytes a second are limited: compactions have more than pending_slowdown_bytes to \
                 read"
            }
            StallCause::PendingStop => {
                "writers wait for compactions, which have pending_stop_bytes to read"
            }
            StallCause::SpaceSlowdown => {
                "bytes a second are limited: there is hardly enough free space for a compaction"
            }
            StallCause::LogSegment => "all writers waited for a log segment that was not ready",
            StallCause::Arena => "all writers waited for the memory of a memtable",
            StallCause::Ceiling => "all writers waited for the ceiling of sequence numbers",
            StallCause::LogWrite => "all writers waited for the system to take a log record",
            StallCause::LogSync => "all writers waited for a sync of the log that one asked for",
            StallCause::Lead => {
                "all writers waited for an ingest, a create, a drop, a flush or a checkpoint"
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
    /// Of these, the ones whose values are in the log.
    pub log_backed_memtable_count: u64,
    /// The bytes that these have in memory.
    pub log_backed_memory_bytes: u64,
    /// About the bytes of the log that log-backed memtables of all keyspaces need.
    pub log_backed_bytes: u64,
    /// Level-0 runs of the keyspace.
    pub l0_run_count: u64,
    /// The most level-0 runs that have tables over one key.
    pub l0_depth: u64,
    /// Bytes of the log segments that unflushed memtables need.
    pub log_bytes: u64,
    /// Bytes in the active memtable, if there is a sealed one; else 0.
    pub active_bytes: u64,
    /// Bytes in the sealed memtables whose values are in memory.
    pub sealed_bytes: u64,
    /// Of these, the bytes whose flush has progressed beyond them.
    pub flushed_bytes: u64,
    /// Bytes that compactions have to read until each level is within its target.
    pub pending_bytes: u64,
    /// Free bytes where the tables are. `None` if they suffice in any case, or are not known.
    pub free_bytes: Option<u64>,
    /// Bytes of the largest compaction that may be due.
    pub job_bytes: u64,
}

/// The thresholds of a keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What happens at them.
    pub policy: StallPolicy,
    /// Writers stop at this number of sealed memtables. With `redirect` they stop when the
    /// unflushed memtables have as many bytes as this number of full ones.
    pub sealed_memtables: u64,
    /// Writers are slowed down from this depth of level 0 on (`slowdown` and `adoc`).
    pub l0_slowdown: u64,
    /// Writers stop at this depth of level 0. With `redirect` they are slowed down from here on.
    pub l0_stop: u64,
    /// Writers are slowed down when compactions have this many bytes to read.
    pub pending_slowdown: u64,
    /// Writers stop when compactions have this many bytes to read.
    pub pending_stop: u64,
    /// Writers stop at this number of log bytes: twice the number at which flushes are forced.
    /// [`Limits::log_limit`] adds what log-backed memtables need.
    pub log_bytes: u64,
    /// The number of log bytes up to which memtables may leave their values in the log; 0 except
    /// with `redirect`.
    pub redirect_log_bytes: u64,
    /// The size of a memtable, in bytes.
    pub memtable_bytes: u64,
}

impl Limits {
    /// The thresholds of a keyspace with these settings in a store with these options.
    pub fn of(keyspace: &KeyspaceSettings, options: &Options) -> Limits {
        Limits {
            policy: options.stall_policy,
            sealed_memtables: keyspace.sealed_memtables_max.into(),
            l0_slowdown: keyspace.l0_slowdown_count.into(),
            l0_stop: keyspace.l0_stop_count.into(),
            pending_slowdown: keyspace.pending_slowdown_bytes,
            pending_stop: keyspace.pending_stop_bytes,
            log_bytes: options.log_bytes_max.saturating_mul(2),
            redirect_log_bytes: match options.stall_policy {
                StallPolicy::Redirect => options.redirect_log_bytes_max,
                _ => 0,
            },
            memtable_bytes: keyspace.memtable_bytes,
        }
    }

    /// The depth of level 0 up to which no writer waits soon: half of that at which the first one
    /// is slowed down.
    pub(crate) fn calm_depth(&self) -> u64 {
        let first = match self.policy {
            StallPolicy::Redirect => self.l0_stop,
            _ => self.l0_slowdown,
        };
        first / 2
    }

    /// Whether writers are slowed down before they are stopped.
    fn slows(&self) -> bool {
        matches!(self.policy, StallPolicy::Slowdown | StallPolicy::Adoc)
    }

    /// The number of log bytes at which writers of a keyspace with this load stop. A keyspace that
    /// has left values in the log stops at the limit for that. Another one does not pay for what it
    /// has not left there.
    pub fn log_limit(&self, load: &Load) -> u64 {
        match load.log_backed_memtable_count > 0 && self.policy == StallPolicy::Redirect {
            true => self.log_bytes.max(self.redirect_log_bytes),
            false => self.log_bytes.saturating_add(load.log_backed_bytes),
        }
    }

    /// The bytes that memtables whose values are in the log may take in memory, besides
    /// [`Limits::memory_bytes`], before their flushes begin in a burst. At one and a half times as
    /// many writers are slowed down, and at twice as many they stop.
    pub fn key_bytes(&self) -> u64 {
        // With one sealed memtable, half of it would be too little for the keys of a few.
        let least = self.memtable_bytes.saturating_mul(2);
        self.memory_bytes().max(least) / 2
    }

    /// The bytes of unflushed memtables at which writers stop with `redirect`.
    pub fn memory_bytes(&self) -> u64 {
        self.sealed_memtables.saturating_mul(self.memtable_bytes)
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
    /// It joins the queue when this part of the rate of the flushes admits it.
    Pace {
        /// Why it is slowed down.
        cause: StallCause,
        /// The threshold that was reached.
        limit: u64,
        /// Thousandths of the rate of the flushes.
        flush_permille: u32,
    },
    /// It waits until the load is below the limit.
    Stop {
        /// Why it waits.
        cause: StallCause,
        /// The limit that was reached.
        limit: u64,
    },
}

/// Whether every batch passes in a keyspace with this load, however much the log and the active
/// memtable hold, unless free bytes are short.
pub fn is_calm(load: &Load, limits: &Limits) -> bool {
    let (l0, pending) = match limits.policy {
        StallPolicy::Stop => (limits.l0_stop, limits.pending_stop),
        StallPolicy::Slowdown | StallPolicy::Adoc => (
            limits.l0_slowdown.min(limits.l0_stop),
            limits.pending_slowdown.min(limits.pending_stop),
        ),
        StallPolicy::Redirect => (limits.l0_stop, limits.pending_slowdown),
    };
    load.sealed_memtable_count == 0
        && limits.sealed_memtables > 0
        && load.l0_depth < l0
        && load.pending_bytes < pending
}

/// Decides for one keyspace. Causes that stop writers come first.
pub fn decide(load: &Load, limits: &Limits) -> Decision {
    if limits.policy == StallPolicy::Redirect {
        return redirect(load, limits);
    }
    let stop = |cause, limit| Decision::Stop { cause, limit };
    if load.whole_memtable_count() >= limits.sealed_memtables {
        return stop(StallCause::SealedMemtables, limits.sealed_memtables);
    }
    if load.l0_depth >= limits.l0_stop {
        return stop(StallCause::L0Stop, limits.l0_stop);
    }
    if load.pending_bytes >= limits.pending_stop {
        return stop(StallCause::PendingStop, limits.pending_stop);
    }
    let log_limit = limits.log_limit(load);
    if load.log_bytes >= log_limit && load.sealed_memtable_count > 0 {
        // A keyspace without a sealed memtable does not hold the log, or its flush is about to be
        // forced.
        return stop(StallCause::LogBytes, log_limit);
    }
    match limits.slows() {
        true => slow(load, limits),
        false => Decision::Pass,
    }
}

/// `whole` times the way that `at` has come from `from` to `to`, if it has not reached `to`.
fn way(whole: u32, from: u64, at: u64, to: u64) -> u32 {
    let (done, all) = (at.saturating_sub(from), to.saturating_sub(from).max(1));
    let way = u128::from(done) * u128::from(whole) / u128::from(all);
    way.min(u128::from(whole)) as u32
}

/// Whether and how much to slow down. Slowing begins at three quarters of the limit of log bytes,
/// and at half of the last memtable.
fn slow(load: &Load, limits: &Limits) -> Decision {
    let is_calm = load.sealed_memtable_count == 0
        && load.l0_depth < limits.l0_slowdown
        && load.pending_bytes < limits.pending_slowdown;
    if is_calm {
        return Decision::Pass;
    }
    // Thousandths of the way from `from` to `to`, for an `at` below `to`.
    let way = |from: u64, at: u64, to: u64| way(1000, from, at, to).min(999);
    let l0 = match limits.l0_slowdown {
        // The first run above the threshold counts as one step.
        from if load.l0_depth >= from => way(from.saturating_sub(1), load.l0_depth, limits.l0_stop),
        _ => 0,
    };
    let pending = match limits.pending_slowdown {
        from if load.pending_bytes >= from => {
            way(from, load.pending_bytes, limits.pending_stop).max(1)
        }
        _ => 0,
    };
    // With a limit of one or two, every memtable would be slowed down from its middle on.
    let last =
        limits.sealed_memtables >= 3 && load.whole_memtable_count() + 1 == limits.sealed_memtables;
    let memtable = match limits.memtable_bytes {
        full if last => way(full / 2, load.active_bytes, full),
        _ => 0,
    };
    let log_limit = limits.log_limit(load);
    let log_from = log_limit / 4 * 3;
    let log = match load.sealed_memtable_count {
        0 => 0,
        _ => way(log_from, load.log_bytes, log_limit),
    };
    let causes = [
        (l0, StallCause::L0Slowdown, limits.l0_slowdown),
        (
            memtable,
            StallCause::MemtableSlowdown,
            limits.sealed_memtables.saturating_sub(1),
        ),
        (log, StallCause::LogSlowdown, log_from),
        (
            pending,
            StallCause::PendingSlowdown,
            limits.pending_slowdown,
        ),
    ];
    // Of equal pressures the first counts.
    let (pressure_permille, cause, limit) = causes
        .into_iter()
        .reduce(|most, next| if next.0 > most.0 { next } else { most })
        .expect("there are four");
    match pressure_permille {
        0 => Decision::Pass,
        pressure_permille => Decision::Slow {
            cause,
            limit,
            pressure_permille,
        },
    }
}

/// Where the pace of the flushes begins, and where it ends: at the limit.
const PACE_PERMILLE: (u32, u32) = (1250, 800);

/// The pace for a load between `from` and `to`. `None` below `from`.
fn pace(from: u64, at: u64, to: u64) -> Option<u32> {
    let (first, last) = PACE_PERMILLE;
    (at >= from).then(|| first - way(first - last, from, at, to))
}

/// The policy `redirect`: stops only for memory, and for the log that it holds.
fn redirect(load: &Load, limits: &Limits) -> Decision {
    let stop = |cause, limit| Decision::Stop { cause, limit };
    let full = limits.memory_bytes();
    let active = load.active_bytes.min(limits.memtable_bytes);
    let held = load.sealed_bytes.saturating_add(active);
    let held = held.saturating_sub(load.flushed_bytes);
    let has_sealed = load.sealed_memtable_count > 0;
    let log_limit = limits.log_limit(load);
    // The flush of a log-backed memtable frees little memory. A stop would have to wait for many,
    // so before that comes a long way at the pace of the flushes.
    let keys_full = limits.key_bytes().saturating_mul(2);
    let keys_from = keys_full / 4 * 3;
    // Without one, the active memtable can be sealed whatever it holds.
    let has_whole = load.whole_memtable_count() > 0;
    if has_sealed {
        // Full memtables reach the limit of bytes first.
        let is_full = load.whole_memtable_count() > limits.sealed_memtables || held >= full;
        if has_whole && is_full {
            return stop(StallCause::SealedMemtables, limits.sealed_memtables);
        }
        if load.log_backed_memory_bytes >= keys_full && keys_full > 0 {
            return stop(StallCause::SealedMemtables, limits.sealed_memtables);
        }
        if load.log_bytes >= log_limit {
            return stop(StallCause::LogBytes, log_limit);
        }
    }
    let memory_from = full / 8 * 7;
    let log_from = log_limit / 4 * 3;
    let memory = pace(memory_from, held, full).filter(|_| has_whole);
    let log = pace(log_from, load.log_bytes, log_limit).filter(|_| has_sealed);
    let keys = pace(keys_from, load.log_backed_memory_bytes, keys_full);
    let keys = keys.filter(|_| load.log_backed_memtable_count > 0);
    let depth = load.l0_depth.checked_sub(limits.l0_stop).map(|beyond| {
        // A tenth less for each run, in whole thousandths.
        (0..beyond.min(100)).fold(1000, |pace: u32, _| pace - pace.div_ceil(10))
    });
    let pending = (load.pending_bytes >= limits.pending_slowdown).then(|| {
        let left = 1000
            - way(
                1000,
                limits.pending_slowdown,
                load.pending_bytes,
                limits.pending_stop,
            );
        left * left / 1000
    });
    let least_free = load.job_bytes.saturating_mul(3);
    let space = load.free_bytes.filter(|free| *free < least_free);
    let space = space.map(|free| way(1000, load.job_bytes, free, least_free));
    let causes = [
        (memory, StallCause::MemtableSlowdown, memory_from),
        (keys, StallCause::MemtableSlowdown, keys_from),
        (log, StallCause::LogSlowdown, log_from),
        (depth, StallCause::L0Slowdown, limits.l0_stop),
        (
            pending,
            StallCause::PendingSlowdown,
            limits.pending_slowdown,
        ),
        (space, StallCause::SpaceSlowdown, least_free),
    ];
    let paces = causes
        .into_iter()
        .filter_map(|(pace, cause, limit)| Some((pace?, cause, limit)));
    // Of equal paces the first counts.
    let slowest = paces.reduce(|least, next| if next.0 < least.0 { next } else { least });
    match slowest {
        None => Decision::Pass,
        Some((flush_permille, cause, limit)) => Decision::Pace {
            cause,
            limit,
            flush_permille,
        },
    }
}

impl Load {
    /// The number of sealed memtables that have their values in memory.
    fn whole_memtable_count(&self) -> u64 {
        self.sealed_memtable_count
            .saturating_sub(self.log_backed_memtable_count)
    }

    /// The part of the load that the rate limit of a slowed keyspace uses.
    pub(crate) fn nearness(&self, limits: &Limits, pressure_permille: u32) -> Nearness {
        Nearness {
            pressure_permille,
            debt_count: self.sealed_memtable_count + self.l0_depth,
            memtable_bytes: limits.memtable_bytes,
        }
    }
}

/// How near a keyspace is to its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nearness {
    /// Thousandths of the way from where slowing begins to where writers stop, below 1000.
    pub(crate) pressure_permille: u32,
    /// The number of sealed memtables, and the depth of level 0.
    pub(crate) debt_count: u64,
    /// The size of a memtable, in bytes.
    pub(crate) memtable_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICIES: [StallPolicy; 4] = [
        StallPolicy::Stop,
        StallPolicy::Slowdown,
        StallPolicy::Adoc,
        StallPolicy::Redirect,
    ];

    const LIMITS: Limits = Limits {
        policy: StallPolicy::Slowdown,
        sealed_memtables: 3,
        l0_slowdown: 20,
        l0_stop: 36,
        pending_slowdown: 64_000,
        pending_stop: 256_000,
        log_bytes: 1000,
        redirect_log_bytes: 0,
        memtable_bytes: 400,
    };

    fn load(sealed: u64, depth: u64, log: u64) -> Load {
        Load {
            sealed_memtable_count: sealed,
            l0_depth: depth,
            log_bytes: log,
            ..Load::default()
        }
    }

    fn stop(cause: StallCause, limit: u64) -> Decision {
        Decision::Stop { cause, limit }
    }

    fn slow(cause: StallCause, limit: u64, pressure_permille: u32) -> Decision {
        Decision::Slow {
            cause,
            limit,
            pressure_permille,
        }
    }

    fn pace(cause: StallCause, limit: u64, flush_permille: u32) -> Decision {
        Decision::Pace {
            cause,
            limit,
            flush_permille,
        }
    }

    #[test]
    fn the_keys_of_values_in_the_log_slow_writers_down_long_before_they_stop() {
        let limits = Limits {
            policy: StallPolicy::Redirect,
            memtable_bytes: 100,
            sealed_memtables: 4,
            ..LIMITS
        };
        let with = |log_backed_memory_bytes| {
            let load = Load {
                log_backed_memtable_count: 30,
                log_backed_memory_bytes,
                ..load(30, 0, 0)
            };
            decide(&load, &limits)
        };
        assert_eq!(with(299), Decision::Pass);
        assert_eq!(with(300), pace(StallCause::MemtableSlowdown, 300, 1250));
        assert_eq!(with(350), pace(StallCause::MemtableSlowdown, 300, 1025));
        assert_eq!(with(400), stop(StallCause::SealedMemtables, 4));
    }

    #[test]
    fn values_in_the_log_stop_only_the_keyspace_that_left_them() {
        let limits = Limits {
            policy: StallPolicy::Redirect,
            redirect_log_bytes: 8000,
            ..LIMITS
        };
        let owner = Load {
            log_backed_memtable_count: 30,
            log_backed_bytes: 7500,
            ..load(31, 0, 8000)
        };
        assert_eq!(decide(&owner, &limits), stop(StallCause::LogBytes, 8000));
        let earlier = Load {
            log_bytes: 5900,
            ..owner
        };
        assert_eq!(decide(&earlier, &limits), Decision::Pass);
        let other = Load {
            log_backed_memtable_count: 0,
            sealed_memtable_count: 1,
            log_bytes: 6300,
            ..owner
        };
        assert_eq!(decide(&other, &limits), Decision::Pass);
        assert_eq!(
            decide(
                &Load {
                    log_bytes: 8500,
                    ..other
                },
                &limits
            ),
            stop(StallCause::LogBytes, 8500)
        );
        // Memtables that left their values there do not stop writers after a change of the policy.
        for policy in [StallPolicy::Stop, StallPolicy::Slowdown, StallPolicy::Adoc] {
            let limits = Limits { policy, ..LIMITS };
            assert_eq!(decide(&earlier, &limits), Decision::Pass, "{policy:?}");
        }
    }

    #[test]
    fn in_a_calm_keyspace_every_batch_passes() {
        let mut calm = 0;
        for case in 0..2_u64.pow(13) {
            let bits = |at: u32, count: u32| case >> at & ((1 << count) - 1);
            let limits = Limits {
                policy: POLICIES[bits(0, 2) as usize],
                sealed_memtables: bits(2, 2),
                l0_slowdown: 2,
                l0_stop: 2 + bits(4, 1),
                pending_slowdown: 100,
                pending_stop: 100 * bits(5, 1),
                log_bytes: 1000 * bits(6, 1),
                redirect_log_bytes: 0,
                memtable_bytes: 400,
            };
            let load = Load {
                sealed_memtable_count: bits(7, 1),
                l0_depth: bits(8, 2),
                log_bytes: 2000 * bits(10, 1),
                active_bytes: 400 * bits(11, 1),
                pending_bytes: 99 * bits(12, 1),
                ..Load::default()
            };
            if is_calm(&load, &limits) {
                calm += 1;
                let decided = decide(&load, &limits);
                assert_eq!(decided, Decision::Pass, "{load:?} {limits:?}");
            }
        }
        assert!(calm > 400, "{calm} of the cases are calm");
    }

    #[test]
    fn the_thresholds_of_stop_slowdown_and_adoc() {
        use StallCause::*;
        let active = |active_bytes, load| Load {
            active_bytes,
            ..load
        };
        let pending = |pending_bytes| Load {
            pending_bytes,
            ..Load::default()
        };
        let table = [
            (load(0, 0, 0), Decision::Pass),
            (load(2, 19, 750), Decision::Pass),
            (load(0, 19, 999), Decision::Pass),
            (load(3, 0, 0), stop(SealedMemtables, 3)),
            (load(0, 20, 0), slow(L0Slowdown, 20, 58)),
            (load(1, 35, 950), slow(L0Slowdown, 20, 941)),
            (load(1, 20, 999), slow(LogSlowdown, 750, 996)),
            (active(300, load(2, 0, 0)), slow(MemtableSlowdown, 2, 500)),
            (active(200, load(2, 0, 0)), Decision::Pass),
            (active(399, load(1, 0, 0)), Decision::Pass),
            (load(0, 36, 0), stop(L0Stop, 36)),
            (load(1, 20, 1000), stop(LogBytes, 1000)),
            (load(0, 0, 1000), Decision::Pass),
            (load(3, 36, 1000), stop(SealedMemtables, 3)),
            (pending(63_999), Decision::Pass),
            (pending(64_000), slow(PendingSlowdown, 64_000, 1)),
            (pending(160_000), slow(PendingSlowdown, 64_000, 500)),
            (pending(256_000), stop(PendingStop, 256_000)),
        ];
        for (load, expected) in table {
            for policy in [StallPolicy::Slowdown, StallPolicy::Adoc] {
                let limits = Limits { policy, ..LIMITS };
                assert_eq!(decide(&load, &limits), expected, "{load:?}");
            }
            let stops = Limits {
                policy: StallPolicy::Stop,
                ..LIMITS
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
            ..LIMITS
        };
        assert_eq!(decide(&load(0, 0, 0), &narrow), Decision::Pass);
    }

    #[test]
    fn redirect_stops_for_memory_and_the_log_only() {
        use StallCause::*;
        let limits = Limits {
            policy: StallPolicy::Redirect,
            ..LIMITS
        };
        // The limit is 1,200 bytes of memory, and 1,050 of them are seven eighths.
        let memory = |count, sealed_bytes, active_bytes, flushed_bytes| Load {
            sealed_memtable_count: count,
            sealed_bytes,
            active_bytes,
            flushed_bytes,
            ..Load::default()
        };
        let short = |free, job_bytes| Load {
            free_bytes: Some(free),
            job_bytes,
            ..Load::default()
        };
        let table = [
            (memory(0, 0, 0, 0), Decision::Pass),
            (memory(2, 800, 249, 0), Decision::Pass),
            (memory(2, 800, 250, 0), pace(MemtableSlowdown, 1050, 1250)),
            (memory(2, 800, 325, 0), pace(MemtableSlowdown, 1050, 1025)),
            (memory(2, 800, 399, 0), pace(MemtableSlowdown, 1050, 803)),
            (memory(2, 800, 400, 0), stop(SealedMemtables, 3)),
            // The progress of flushes makes room.
            (memory(3, 1200, 200, 200), stop(SealedMemtables, 3)),
            (
                memory(3, 1200, 200, 275),
                pace(MemtableSlowdown, 1050, 1025),
            ),
            (memory(3, 1200, 200, 400), Decision::Pass),
            // An active memtable with one large batch counts as one full memtable.
            (memory(1, 400, 90_000, 0), Decision::Pass),
            // Many small memtables have little memory, and are limited by their number.
            (memory(3, 3, 0, 0), Decision::Pass),
            (memory(4, 4, 0, 0), stop(SealedMemtables, 3)),
            (load(1, 0, 750), pace(LogSlowdown, 750, 1250)),
            (load(1, 0, 1000), stop(LogBytes, 1000)),
            (load(0, 0, 5000), Decision::Pass),
            (load(0, 35, 0), Decision::Pass),
            (load(0, 36, 0), pace(L0Slowdown, 36, 1000)),
            (load(0, 38, 0), pace(L0Slowdown, 36, 810)),
            (load(0, 5000, 0), pace(L0Slowdown, 36, 0)),
            (
                Load {
                    pending_bytes: 160_000,
                    ..Load::default()
                },
                pace(PendingSlowdown, 64_000, 250),
            ),
            (
                Load {
                    pending_bytes: u64::MAX,
                    ..Load::default()
                },
                pace(PendingSlowdown, 64_000, 0),
            ),
            (short(300, 100), Decision::Pass),
            (short(200, 100), pace(SpaceSlowdown, 300, 500)),
            (short(0, 100), pace(SpaceSlowdown, 300, 0)),
            // The slowest counts.
            (
                Load {
                    l0_depth: 40,
                    ..short(290, 100)
                },
                pace(L0Slowdown, 36, 656),
            ),
        ];
        for (load, expected) in table {
            assert_eq!(decide(&load, &limits), expected, "{load:?}");
        }
        let one = Limits {
            sealed_memtables: 1,
            ..limits
        };
        assert_eq!(decide(&memory(1, 100, 200, 0), &one), Decision::Pass);
        let full = stop(SealedMemtables, 1);
        assert_eq!(decide(&memory(1, 200, 200, 0), &one), full);
    }

    #[test]
    fn causes_are_numbered_in_order() {
        let causes = StallCause::ALL.iter().enumerate();
        assert!(causes.into_iter().all(|(i, cause)| *cause as usize == i));
    }
}
