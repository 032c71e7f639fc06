//! Seals an active memtable before it is full, if its range deletes would free space.
//!
//! A range delete takes only a few bytes of a memtable. So it could stay there for days until the
//! memtable is full, while the tables that it covers keep their space. The maintenance task watches
//! memtables with range deletes ([`SealWatch`]). It judges a memtable when nothing was written to
//! it for [`QUIET`], or when [`PATIENCE`] has passed since the first change after it was judged
//! last. If [`frees_enough`], it seals the memtable. The flush writes little, and what it covers is
//! then dropped or compacted like anything that range deletes cover (`tree/pick`).
//!
//! Invariants: a flush that is made for this writes at most an eighth of what it covers. A memtable
//! is judged at most once in [`QUIET`], so even a hundred thousand range deletes cost little. All
//! times are the runtime's.
//!
//! Threading: the maintenance task alone, which takes the lead to seal.

use std::time::Duration;

use litemap::LiteMap;
use siltstone_storage::Instant;

use crate::commit::Commit;
use crate::formats::version::{KeyRange, KeyspaceVersion};
use crate::tree::memtable::Memtable;
use crate::tree::pick::{covered_bytes, joined_ranges};
use crate::types::error::Result;
use crate::types::limits::KeyspaceId;

/// A memtable is judged when nothing was written to it for this long. A program that goes on
/// writing either fills the memtable or pauses.
const QUIET: Duration = Duration::from_secs(5);

/// A memtable that keeps getting a few writes is judged after this time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The least bytes of covered tables for which a memtable is sealed: fewer are not worth a table
/// and an edit.
const COVERED_MIN_BYTES: u64 = 64 << 10;

/// At least this many times more bytes must be covered than the flush writes.
const GAIN: u64 = 8;

/// At least this part (one divided by it) of a keyspace's tables must be covered, or the target
/// size of a table.
const SHARE: u64 = 8;

/// The number of ranges that are looked at, which are enough to judge a memtable.
const RANGES_MAX: usize = 4096;

/// An active memtable with range deletes.
struct SealWatch {
    /// The id of its source, and its bytes when it was last looked at.
    source: u64,
    raw_bytes: u64,
    /// When its bytes first changed after it was judged last, or when it was first seen.
    changed_since: Instant,
    /// When its bytes changed last.
    written: Instant,
    /// When it was judged last.
    judged: Option<Instant>,
}

/// The memtables that are watched, by keyspace.
#[derive(Default)]
pub(crate) struct SealWatches(LiteMap<KeyspaceId, SealWatch>);

/// Whether a flush of the memtable frees enough space to be worth it.
fn frees_enough(mem: &Memtable, version: &KeyspaceVersion, table_bytes: u64) -> bool {
    let mut ranges = joined_ranges(
        mem.range_deletes()
            .map(|d| KeyRange::half_open(d.start, d.end)),
    );
    ranges.truncate(RANGES_MAX);
    let covered = covered_bytes(version, &ranges);
    let all: u64 = version.tables().map(|(_, t)| t.file_bytes).sum();
    let gains = covered >= COVERED_MIN_BYTES && covered / GAIN >= mem.raw_bytes();
    gains && (covered >= table_bytes || covered >= all / SHARE)
}

impl SealWatch {
    /// Whether it is time to judge the memtable.
    fn is_due(&self, now: Instant) -> bool {
        !self.is_judged()
            && (now.since(self.written) >= QUIET || now.since(self.changed_since) >= PATIENCE)
    }

    /// Whether nothing was written since the memtable was judged.
    fn is_judged(&self) -> bool {
        self.judged.is_some_and(|judged| judged >= self.written)
    }
}

/// Seals the memtables of all keyspaces that are due and free enough space.
pub(crate) fn for_deletes(commit: &Commit, watches: &mut SealWatches) -> Result<()> {
    let map = commit.catalog().keyspaces();
    watches.0.retain(|id, _| map.by_id.contains_key(id));
    let now = commit.env().now();
    for (id, keyspace) in &map.by_id {
        let view = keyspace.pin();
        let active = view.active();
        if active.mem.range_delete_count() == 0 {
            watches.0.remove(id);
            continue;
        }
        let raw_bytes = active.mem.raw_bytes();
        let fresh = || SealWatch {
            source: active.id,
            raw_bytes,
            changed_since: now,
            written: now,
            judged: None,
        };
        let watch = watches.0.entry(*id).or_insert_with(fresh);
        if watch.source != active.id {
            *watch = fresh();
        } else if watch.raw_bytes != raw_bytes {
            if watch.is_judged() {
                watch.changed_since = now;
            }
            (watch.raw_bytes, watch.written) = (raw_bytes, now);
        }
        if !watch.is_due(now) {
            continue;
        }
        watch.judged = Some(now);
        let table_bytes = keyspace.load_settings().all.table_bytes;
        if !frees_enough(&active.mem, &view.version, table_bytes) {
            continue;
        }
        if commit.seal([&**keyspace])? > 0 {
            commit.env().metrics().sealed_for_deletes_count.add(1);
        }
    }
    Ok(())
}
