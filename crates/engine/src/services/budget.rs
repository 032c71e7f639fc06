//! The memory budget: what the store has in memory, and what goes when that is too much.
//!
//! What it is: [`memory`] adds up what memtables, cached blocks, open tables and running jobs hold, each counted where it is allocated.
//! [`keep`] is the maintenance task's: with `memory_bytes_max` set the cache may hold what the others leave; if even they are too much, arenas kept
//! for reuse go, then readers of tables below level 1, then the largest active memtable is sealed, so that its flush frees it. What cannot be
//! done without (a memtable that is written, a job's buffers, filters of the upper levels) is used all the same; `memory_over_count` says how often.
//!
//! Invariants: nobody waits for memory, so nothing can wait for ever; one memtable a round is sealed, and only of a keyspace without a sealed one, so
//! a small budget does not end in a heap of tiny runs. With a budget memtables take their memory page by page, so that it counts what is used.
//!
//! Threading: the maintenance task alone, about once a second and whenever a log segment is half full; between two rounds the sum may be over by what
//! was written and read meanwhile.

use serde::{Deserialize, Serialize};

use crate::commit::Commit;
use crate::jobs::Jobs;
use crate::tree::view::Source;
use crate::types::error::Result;

/// A memtable with less is not worth a run of its own, in bytes of its entries.
const SEALED_MIN_BYTES: u64 = 64 << 10;

/// What is in memory now.
pub(crate) fn memory(jobs: &Jobs) -> MemoryStats {
    let (mut range_delete_bytes, mut beside_arenas) = (0, 0);
    for keyspace in jobs.catalog().keyspaces().by_id.values() {
        for source in &keyspace.pin().sources {
            if let Source::Memtable(m) = source {
                range_delete_bytes += m.mem.range_delete_held_bytes();
                beside_arenas += m.mem.beside_whole_arenas_bytes();
            }
        }
    }
    let job_bytes = jobs.buffer_bytes();
    MemoryStats {
        arena_bytes: jobs.tree().arenas().held_bytes(),
        range_delete_bytes,
        block_cache_bytes: jobs.tree().tables().cache.held_bytes(),
        table_bytes: jobs.tree().tables().memory_bytes(),
        memtable_bytes: jobs.tree().arenas().whole_bytes() + beside_arenas,
        job_bytes,
        block_cache_capacity_bytes: jobs.tree().tables().cache.capacity_bytes(),
        max_bytes: jobs.env().live().memory_bytes_max,
    }
}

/// One round: gives back what is too much.
pub(crate) fn keep(jobs: &Jobs) -> Result<()> {
    let max = jobs.env().live().memory_bytes_max;
    let cache = &jobs.tree().tables().cache;
    if max == 0 {
        cache.set_capacity(u64::MAX);
        return Ok(());
    }
    jobs.tree().arenas().release_kept();
    let now = memory(jobs);
    let others = now.counted_bytes() - now.block_cache_bytes;
    cache.set_capacity(max.saturating_sub(others));
    if others <= max {
        return Ok(());
    }
    let closed = jobs.tree().tables().close_deep(others - max);
    if others - closed.min(others) <= max {
        return Ok(());
    }
    jobs.env().metrics().memory_over_count.add(1);
    if jobs.env().health().is_no_space() {
        return Ok(());
    }
    seal_largest(jobs.commit())
}

/// Seals the largest active memtable, if it is worth it.
fn seal_largest(commit: &Commit) -> Result<()> {
    let map = commit.catalog().keyspaces();
    let largest = map
        .by_id
        .values()
        .filter(|keyspace| keyspace.view().sealed_count == 0)
        .map(|keyspace| (keyspace.view().active().mem.raw_bytes(), keyspace))
        .filter(|(bytes, _)| *bytes >= SEALED_MIN_BYTES)
        .max_by_key(|(bytes, _)| *bytes);
    let Some((_, keyspace)) = largest else {
        return Ok(());
    };
    if commit.seal([&**keyspace])? > 0 {
        commit.env().metrics().sealed_for_memory_count.add(1);
    }
    Ok(())
}

/// Memory by use, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStats {
    /// Arenas of memtables, in use or kept.
    pub arena_bytes: u64,
    /// What range deletes in memtables take beside the arenas.
    pub range_delete_bytes: u64,
    /// Cached blocks.
    pub block_cache_bytes: u64,
    /// Filters, indexes and range deletes of open tables.
    pub table_bytes: u64,
    /// Of memtables what counts for `memory_bytes_max`: arenas that are in memory whole, of others
    /// what was written to them, and range deletes.
    pub memtable_bytes: u64,
    /// Buffers of running jobs.
    pub job_bytes: u64,
    /// What the block cache may hold now.
    pub block_cache_capacity_bytes: u64,
    /// `memory_bytes_max`; 0: none.
    pub max_bytes: u64,
}

impl MemoryStats {
    /// What counts for `memory_bytes_max`: memtables, cached blocks, open tables, buffers of jobs.
    pub fn counted_bytes(&self) -> u64 {
        self.memtable_bytes + self.block_cache_bytes + self.table_bytes + self.job_bytes
    }

    /// How much more that is than `memory_bytes_max` allows.
    pub fn over_bytes(&self) -> u64 {
        match self.max_bytes {
            0 => 0,
            max => self.counted_bytes().saturating_sub(max),
        }
    }
}
