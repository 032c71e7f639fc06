//! Supplies: one task prepares log segments and the memory of memtables, so that a leader, for whom
//! all writers wait, finds them ready.
//!
//! How many are prepared depends on how fast the log grows. A failure is harmless, except for a
//! failed sync of the log's folder: the leader makes what it needs itself, and `StallCause` counts
//! that.
//!
//! Threading: one runtime task. It does nothing else, because everything else may take long.

use std::time::Duration;

use siltstone_storage::Instant;

use super::panics::repeat;
use super::worker::{FLUSH_NICE, yield_cores};
use crate::catalog::Catalog;
use crate::formats::log::format::READY_SEGMENTS_MAX;
use crate::services::parts::Parts;

/// The longest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// As many segments are kept ready as the log fills in this time, ...
const AHEAD: Duration = Duration::from_millis(500);

/// ... but not more than a repair expects.
const SEGMENTS_MAX: usize = READY_SEGMENTS_MAX;

/// Two arenas are kept ready for a keyspace if the log fills a memtable in this time.
const FAST: Duration = Duration::from_secs(1);

/// The log's end at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    appended_bytes: u64,
}

/// Prepares until the store closes.
pub(super) fn supply(parts: &Parts) {
    let env = &parts.env;
    // What a leader does not find ready, it makes itself.
    yield_cores(env, FLUSH_NICE);
    let mark = || Mark {
        at: env.now(),
        appended_bytes: parts.wal.appended_bytes(),
    };
    let mut seen = 0;
    let mut last = mark();
    repeat(&parts.catalog, "the task of supplies", || {
        env.supplies().wait_past(seen, ROUND_INTERVAL);
        seen = env.supplies().count();
        if env.is_closing() {
            return false;
        }
        let now = mark();
        let rate = bytes_per_s(&last, &now);
        // A round that follows at once says little of the rate.
        if now.at.since(last.at) >= AHEAD {
            last = now;
        }
        if !env.health().is_poisoned() && !env.outage().is_unreachable() {
            prepare_segments(parts, rate);
            prepare_arenas(&parts.catalog, rate);
        }
        true
    });
}

/// Bytes a second that were appended to the log between two moments. A very short time counts as a
/// millisecond.
fn bytes_per_s(from: &Mark, to: &Mark) -> u64 {
    let ns = to.at.since(from.at).as_nanos().max(1_000_000);
    let bytes = to.appended_bytes.saturating_sub(from.appended_bytes);
    (u128::from(bytes) * 1_000_000_000 / ns) as u64
}

/// The bytes that come in this time.
fn within(rate: u64, time: Duration) -> u64 {
    (u128::from(rate) * time.as_millis() / 1000) as u64
}

/// The number of segments of this size to keep ready.
fn segments_wanted(rate: u64, segment_bytes: u64) -> usize {
    let filled = within(rate, AHEAD) / segment_bytes.max(1);
    (1 + filled as usize).min(SEGMENTS_MAX)
}

fn prepare_segments(parts: &Parts, rate: u64) {
    let wanted = segments_wanted(rate, parts.env.options().log_segment_bytes);
    if !parts.wal.needs_prepare(wanted) {
        return;
    }
    if let Err(error) = parts.wal.prepare(wanted) {
        parts.env.outage().count_failure(&error);
        // A leader finds the one that is ready.
        if error.is_no_space() && parts.wal.needs_prepare(1) {
            parts.env.health().set_no_space(&error);
        }
    }
}

/// Prepares arenas for each keyspace whose memtable is being filled; a store that is only read
/// needs none.
fn prepare_arenas(catalog: &Catalog, rate: u64) {
    for keyspace in catalog.keyspaces().by_id.values() {
        // The guard of the settings is not held while an arena is made.
        if keyspace.load_settings().lean {
            continue;
        }
        let arenas = keyspace.arenas();
        let bytes = arenas.arena_bytes() as u64;
        if keyspace.view().active().mem.used_bytes() > bytes / 4 {
            let is_fast = within(rate, FAST) > bytes;
            let _ = arenas.prepare(1 + usize::from(is_fast));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_segments_are_kept_ready_for_a_faster_log() {
        const MIB: u64 = 1 << 20;
        assert_eq!(segments_wanted(0, 64 * MIB), 1);
        assert_eq!(segments_wanted(100 * MIB, 64 * MIB), 1);
        assert_eq!(segments_wanted(130 * MIB, 64 * MIB), 2);
        assert_eq!(segments_wanted(u64::MAX, 64 * MIB), SEGMENTS_MAX);
        let mark = |ms: u64, appended_bytes| Mark {
            at: Instant::from_nanos(ms * 1_000_000),
            appended_bytes,
        };
        assert_eq!(bytes_per_s(&mark(5, 100), &mark(505, 1100)), 2000);
        assert_eq!(bytes_per_s(&mark(5, 100), &mark(5, 101)), 1000);
    }
}
