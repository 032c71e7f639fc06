//! The memory budget: how much memory the store uses, and what is freed when that is too much.
//!
//! [`memory`] adds up what memtables, cached blocks, open tables and running jobs hold. Each of
//! these is counted where it is allocated. The maintenance task calls [`enforce`]. If
//! `memory_bytes_max` is set, the block cache may hold what the others leave. If the others alone
//! are too much, first readers of tables below level 1 are closed, then the largest active memtable
//! is sealed, so that its flush frees it. Memory that the store cannot do without (the active
//! memtables, the buffers of jobs, the filters of the upper levels) is used even above the budget;
//! `memory_over_count` counts the rounds in which that was so.
//! Large filters and indexes share huge pages (`siltstone_storage::HugeSlice`). A page goes back to
//! the system when no open table has a part of it, so the memory of a reader that was closed may be
//! freed later than it is counted.
//!
//! Invariants: nobody waits for memory, so nothing can wait for ever. At most one memtable is
//! sealed in a round, and only in a keyspace without a sealed one, so that a small budget does not
//! lead to many tiny runs. With a budget, no arenas are kept for reuse, and memtables take their
//! memory page by page, so that only the memory in use counts.
//!
//! Threading: only the maintenance task calls [`enforce`], about once a second and whenever a log
//! segment is half full. Between two rounds, the sum may exceed the budget by what was written and
//! read meanwhile.

use serde::{Deserialize, Serialize};

use crate::catalog::Catalog;
use crate::commit::Commit;
use crate::tree::view::Source;
use crate::types::error::Result;

/// A memtable is not sealed if its entries have fewer bytes, because a run of its own would not be
/// worth it.
const SEALED_MIN_BYTES: u64 = 64 << 10;

/// The memory in use now. `job_bytes` is the memory of the running jobs' buffers.
pub(crate) fn memory(catalog: &Catalog, job_bytes: u64) -> MemoryStats {
    let (env, tree) = (catalog.env(), catalog.tree());
    let (mut range_delete_bytes, mut beside_arenas) = (0, 0);
    for keyspace in catalog.keyspaces().by_id.values() {
        for source in &keyspace.pin().sources {
            if let Source::Memtable(m) = source {
                range_delete_bytes += m.mem.range_delete_held_bytes();
                beside_arenas += m.mem.beside_whole_arenas_bytes();
            }
        }
    }
    MemoryStats {
        arena_bytes: tree.arenas().held_bytes(),
        range_delete_bytes,
        block_cache_bytes: tree.tables().cache().held_bytes(),
        table_bytes: tree.tables().readers().memory_bytes(),
        memtable_bytes: tree.arenas().whole_bytes() + beside_arenas,
        job_bytes,
        block_cache_capacity_bytes: tree.tables().cache().capacity_bytes(),
        max_bytes: env.live().memory_bytes_max,
    }
}

/// One round: frees what exceeds the budget. [`memory`] says what `job_bytes` counts.
pub(crate) fn enforce(commit: &Commit, job_bytes: impl FnOnce() -> u64) -> Result<()> {
    let (env, tree) = (commit.env(), commit.tree());
    let max = env.live().memory_bytes_max;
    let cache = tree.tables().cache();
    if max == 0 {
        cache.set_capacity(u64::MAX);
        return Ok(());
    }
    tree.arenas().release_kept();
    let now = memory(commit.catalog(), job_bytes());
    let others = now.counted_bytes() - now.block_cache_bytes;
    cache.set_capacity(max.saturating_sub(others));
    if others <= max {
        return Ok(());
    }
    let closed = tree.tables().readers().close_deep(others - max);
    if others - closed.min(others) <= max {
        return Ok(());
    }
    env.metrics().memory_over_count.add(1);
    if env.health().is_no_space() {
        return Ok(());
    }
    seal_largest(commit)
}

/// Seals the largest active memtable, if that is worth a run.
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

/// The memory that an open store uses, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryStats {
    /// Arenas of memtables, in use or kept for reuse.
    pub arena_bytes: u64,
    /// Range deletes in memtables, which lie outside of the arenas.
    pub range_delete_bytes: u64,
    /// Cached blocks.
    pub block_cache_bytes: u64,
    /// Filters, indexes and range deletes of open tables.
    pub table_bytes: u64,
    /// The part of the memtables that counts for `memory_bytes_max`: arenas that are entirely in
    /// memory, the written part of other arenas, and range deletes.
    pub memtable_bytes: u64,
    /// Buffers of running jobs.
    pub job_bytes: u64,
    /// The most bytes that the block cache may hold now.
    pub block_cache_capacity_bytes: u64,
    /// The option `memory_bytes_max`; 0 means that there is no budget.
    pub max_bytes: u64,
}

impl MemoryStats {
    /// The sum that counts for `memory_bytes_max`: memtables, cached blocks, open tables and
    /// buffers of jobs.
    pub fn counted_bytes(&self) -> u64 {
        self.memtable_bytes + self.block_cache_bytes + self.table_bytes + self.job_bytes
    }

    /// How much this sum exceeds `memory_bytes_max`.
    pub fn over_bytes(&self) -> u64 {
        match self.max_bytes {
            0 => 0,
            max => self.counted_bytes().saturating_sub(max),
        }
    }
}
