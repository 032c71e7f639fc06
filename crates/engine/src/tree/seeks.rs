//! Counts what lookups read of tables without finding their key there. The choice of compactions
//! uses these counts ([`super::pick::PickOptions::seek_compaction`]).
//!
//! A lookup passes a [`SeekReads`] to the reader of a table instead of the block cache. So it knows
//! what it has read itself, whatever other lookups read at the same time. If it did not find its
//! key, it adds that to the count of the table ([`TableSet::count_seek`]).
//!
//! Threading: shared. Counts are relaxed atomics; a count that is a little behind only means that a
//! compaction is due a little later.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use siltstone_table::block::Block;
use siltstone_table::reader::BlockCache;

use crate::env::Env;
use crate::tree::tables::{TableHandle, TableSet};

/// The block cache for one lookup, with a count of what is read from the file because the cache
/// does not have it.
pub(crate) struct SeekReads<C> {
    cache: C,
    bytes: AtomicU64,
}

impl<C> SeekReads<C> {
    #[inline]
    pub(crate) fn new(cache: C) -> SeekReads<C> {
        SeekReads {
            cache,
            bytes: AtomicU64::new(0),
        }
    }

    /// The bytes that were read since the last call.
    #[inline]
    pub(crate) fn take(&self) -> u64 {
        match self.bytes.load(Ordering::Relaxed) {
            0 => 0,
            _ => self.bytes.swap(0, Ordering::Relaxed),
        }
    }
}

impl<C> BlockCache for SeekReads<C>
where
    C: Deref<Target: BlockCache> + Send + Sync,
{
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        self.cache.get(table, block)
    }

    fn insert(&self, table: u64, block: u32, read: &Arc<Block>) {
        self.cache.insert(table, block, read);
    }

    fn note_read(&self, _: u64, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// The time between two notifications of workers because of counts. Without one they look once a
/// second.
const NOTIFIED_EVERY: Duration = Duration::from_millis(100);

/// The state of [`TableSet::count_seek`].
pub(super) struct SeekCounts {
    /// Whether anything is counted.
    is_on: bool,
    /// When workers were notified last, in nanoseconds.
    notified_ns: AtomicU64,
}

impl SeekCounts {
    pub(super) fn new(is_on: bool) -> SeekCounts {
        SeekCounts {
            is_on,
            notified_ns: AtomicU64::new(0),
        }
    }
}

impl TableSet {
    /// A lookup of a key has read these bytes of a table and did not find the key there, or a
    /// cursor has read them to go to its place in a run of level 0. If that may have made a
    /// compaction due, a worker is woken.
    #[inline]
    pub(crate) fn count_seek(&self, env: &Env, table: &TableHandle, bytes: u64) {
        if bytes > 0 {
            self.count_seek_with_reads(env, table, bytes);
        }
    }

    #[cold]
    fn count_seek_with_reads(&self, env: &Env, table: &TableHandle, bytes: u64) {
        let seeks = self.seeks();
        if !seeks.is_on || !table.add_seek_bytes(bytes) {
            return;
        }
        let (now, last) = (
            env.now().as_nanos(),
            seeks.notified_ns.load(Ordering::Relaxed),
        );
        let is_time = now.saturating_sub(last) >= NOTIFIED_EVERY.as_nanos() as u64;
        let set = |now| {
            let order = Ordering::Relaxed;
            let notified = &seeks.notified_ns;
            notified.compare_exchange(last, now, order, order).is_ok()
        };
        if is_time && set(now) {
            env.work().notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siltstone_table::reader::NoCache;

    #[test]
    fn a_lookup_counts_its_own_reads() {
        let (one, other) = (SeekReads::new(&NoCache), SeekReads::new(&NoCache));
        one.note_read(7, 100);
        one.note_read(7, 20);
        other.note_read(7, 1);
        assert_eq!((one.take(), one.take()), (120, 0));
        assert_eq!(other.take(), 1);
    }
}
