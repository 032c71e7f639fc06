//! The block cache: blocks on the heap, of tables that are not read through maps, and of values
//! that users keep.
//!
//! It is a `quick_cache`, weighted by bytes. Hasher and number of shards are fixed, so that two
//! runs of one seed evict the same blocks. A block stays for long only if it is read again, so a
//! scan does not evict blocks that are read often. The insert of `quick_cache` that waits for
//! another loader is not used, because it would block threads outside the runtime: if two readers
//! miss the same block, both read it.
//!
//! Point reads use the cache itself. Cursors use a [`ScanCache`], which has its own counters and
//! may leave the cache unchanged.
//!
//! Threading: shared. No lock is held while a block is read.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use siltstone_table::block::Block;
use siltstone_table::reader::BlockCache as TableBlockCache;

use crate::types::striped::StripedCounter;

/// A multiplicative hasher for (table id, block number).
#[derive(Default)]
pub(crate) struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }
}

#[derive(Clone)]
struct BlockWeight;

impl Weighter<(u64, u32), Arc<Block>> for BlockWeight {
    fn weight(&self, _key: &(u64, u32), block: &Arc<Block>) -> u64 {
        block.memory_bytes() as u64 + 64
    }
}

type Blocks = Cache<
    (u64, u32),
    Arc<Block>,
    BlockWeight,
    BuildHasherDefault<BlockHasher>,
    DefaultLifecycle<(u64, u32), Arc<Block>>,
>;

/// The numbers of lookups that found a block, and that did not.
#[derive(Default)]
pub(crate) struct Lookups {
    hits: StripedCounter,
    misses: StripedCounter,
}

impl Lookups {
    pub(crate) fn hit_count(&self) -> u64 {
        self.hits.get()
    }

    pub(crate) fn miss_count(&self) -> u64 {
        self.misses.get()
    }

    fn count(&self, found: bool) {
        let count = if found { &self.hits } else { &self.misses };
        count.add(1);
    }
}

/// See the module.
pub(crate) struct BlockCache {
    blocks: Option<Blocks>,
    /// The capacity with which the cache was made, in bytes.
    given_bytes: u64,
    /// The capacity now, in bytes.
    capacity_bytes: AtomicU64,
    /// Lookups of point reads.
    pub(crate) points: Lookups,
    /// Lookups of cursors.
    pub(crate) scans: Lookups,
}

/// The number of shards is fixed, so that eviction does not depend on the number of cores.
const SHARDS: usize = 8;

impl BlockCache {
    /// A cache of at most `bytes`. With 0 bytes there is no cache.
    pub(crate) fn new(bytes: u64) -> BlockCache {
        let blocks = (bytes > 0).then(|| {
            let options = OptionsBuilder::new()
                .estimated_items_capacity((bytes / 4096).clamp(16, 1 << 24) as usize)
                .weight_capacity(bytes)
                .shards(SHARDS)
                .build()
                .expect("all required options are set");
            Cache::with_options(
                options,
                BlockWeight,
                BuildHasherDefault::default(),
                DefaultLifecycle::default(),
            )
        });
        BlockCache {
            blocks,
            given_bytes: bytes,
            capacity_bytes: AtomicU64::new(bytes),
            points: Lookups::default(),
            scans: Lookups::default(),
        }
    }

    /// Sets the capacity to `bytes`, but not above the one with which the cache was made. Blocks
    /// beyond it are evicted at once.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        let bytes = bytes.min(self.given_bytes);
        if let Some(blocks) = &self.blocks
            && self.capacity_bytes.swap(bytes, Ordering::Relaxed) != bytes
        {
            blocks.set_capacity(bytes);
        }
    }

    /// The capacity now, in bytes.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
    }

    /// Whether the cache has a block. It is no use of the block, and not counted.
    pub(crate) fn has(&self, table: u64, block: u32) -> bool {
        let blocks = self.blocks.as_ref();
        blocks.is_some_and(|blocks| blocks.peek(&(table, block)).is_some())
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
    }
}

impl TableBlockCache for BlockCache {
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        let found = self.blocks.as_ref()?.get(&(table, block));
        self.points.count(found.is_some());
        found
    }

    fn insert(&self, table: u64, block: u32, read: &Arc<Block>) {
        if let Some(blocks) = &self.blocks {
            blocks.insert((table, block), read.clone());
        }
    }
}

/// The block cache for a cursor.
pub(crate) struct ScanCache {
    cache: Arc<BlockCache>,
    /// Whether reads change the contents of the cache.
    fill: bool,
}

impl ScanCache {
    pub(crate) fn new(cache: &Arc<BlockCache>, fill: bool) -> ScanCache {
        ScanCache {
            cache: cache.clone(),
            fill,
        }
    }
}

impl TableBlockCache for ScanCache {
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        let blocks = self.cache.blocks.as_ref()?;
        let found = if self.fill {
            blocks.get(&(table, block))
        } else {
            blocks.peek(&(table, block))
        };
        self.cache.scans.count(found.is_some());
        found
    }

    fn insert(&self, table: u64, block: u32, read: &Arc<Block>) {
        if self.fill {
            self.cache.insert(table, block, read);
        }
    }
}
