//! When an active memtable is sealed although it is not full: its range deletes would give space back.
//!
//! What it is: a range delete takes a few bytes of a memtable, so alone it would wait there for the memtable to fill, for days perhaps, while the
//! tables that it covers keep their space. The maintenance task watches memtables with range deletes ([`Watch`]) and seals one that is *worth* it
//! ([`is_worth`]) when nothing was written to it for [`QUIET`], or [`PATIENCE`] after the first change since it was looked at: a flush writes little, and
//! what it covers is then dropped or compacted as ever (`compaction/pick_deletes.rs`).
//!
//! Invariants: what is written for it is at most an eighth of what it covers; a memtable is judged at most once in [`QUIET`], so a hundred thousand
//! range deletes cost little; times are the runtime's.
//!
//! Threading: the maintenance task alone; it takes the lead to seal.

use std::collections::BTreeMap;
use std::time::Duration;

use siltstone_storage::Instant;

use crate::commit::Commit;
use crate::formats::version::{KeyRange, KeyspaceVersion};
use crate::tree::memtable::Memtable;
use crate::tree::pick::{covered_bytes, joined_ranges};
use crate::types::error::Result;
use crate::types::limits::KeyspaceId;

/// Nothing was written for so long: whoever deletes and goes on writing fills the memtable or pauses.
const QUIET: Duration = Duration::from_secs(5);

/// So long a range delete waits at most where few writes go on.
const PATIENCE: Duration = Duration::from_secs(60);

/// Less than this is not worth a table and an edit, in bytes of tables.
const WORTH_BYTES: u64 = 64 << 10;

/// As many times more must be covered than is written.
const GAIN: u64 = 8;

/// This part of a keyspace's tables is worth it, or a table's target.
const SHARE: u64 = 8;

/// Ranges that are looked at: enough to see what is worth it.
const RANGES_MAX: usize = 4096;

/// An active memtable with range deletes.
struct Watch {
    /// Its source's id and its bytes, as they were when it was last looked at.
    source: u64,
    raw_bytes: u64,
    /// When its bytes changed for the first time since it was judged, or it was first seen.
    waits_since: Instant,
    /// When its bytes changed last.
    written: Instant,
    /// When it was judged last.
    judged: Option<Instant>,
}

/// The memtables that are watched, by keyspace.
#[derive(Default)]
pub(crate) struct Watches(BTreeMap<KeyspaceId, Watch>);

/// Whether sealing the memtable lets enough go: the bytes that it covers, if so.
pub(crate) fn is_worth(mem: &Memtable, version: &KeyspaceVersion, table_bytes: u64) -> Option<u64> {
    let mut ranges = joined_ranges(
        mem.range_deletes()
            .map(|d| KeyRange::half_open(d.start, d.end)),
    );
    ranges.truncate(RANGES_MAX);
    let covered = covered_bytes(version, &ranges);
    let all: u64 = version.tables().map(|(_, t)| t.file_bytes).sum();
    let gains = covered >= WORTH_BYTES && covered / GAIN >= mem.raw_bytes();
    (gains && (covered >= table_bytes || covered >= all / SHARE)).then_some(covered)
}

impl Watch {
    /// Whether it is time to judge it.
    fn is_due(&self, now: Instant) -> bool {
        !self.is_judged()
            && (now.since(self.written) >= QUIET || now.since(self.waits_since) >= PATIENCE)
    }

    /// Whether nothing is new since it was judged.
    fn is_judged(&self) -> bool {
        self.judged.is_some_and(|judged| judged >= self.written)
    }
}

/// Looks at all keyspaces, and seals what is due and worth it.
pub(crate) fn for_deletes(commit: &Commit, watches: &mut Watches) -> Result<()> {
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
        let fresh = || Watch {
            source: active.id,
            raw_bytes,
            waits_since: now,
            written: now,
            judged: None,
        };
        let watch = watches.0.entry(*id).or_insert_with(fresh);
        if watch.source != active.id {
            *watch = fresh();
        } else if watch.raw_bytes != raw_bytes {
            if watch.is_judged() {
                watch.waits_since = now;
            }
            (watch.raw_bytes, watch.written) = (raw_bytes, now);
        }
        if !watch.is_due(now) {
            continue;
        }
        watch.judged = Some(now);
        let table_bytes = keyspace.load_settings().all.table_bytes;
        if is_worth(&active.mem, &view.version, table_bytes).is_none() {
            continue;
        }
        if commit.seal([&**keyspace])? > 0 {
            commit.env().metrics().sealed_for_deletes_count.add(1);
        }
    }
    Ok(())
}
