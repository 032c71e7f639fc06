//! The block cache: heap blocks of tables that are not read through maps, and of values that users hold on to.
//!
//! What it is: a `quick_cache`, weighted by bytes, with a fixed hasher and shard count (two runs of one seed evict alike). A block is kept for
//! long only if it was asked for again, so a scan does not drive out what is read often. Its waiting insert is not used:
//! placeholders would park threads behind the runtime's back; two readers that miss the same block both read it.
//!
//! Point reads ask the cache itself; cursors go through a [`ScanCache`], which counts apart and may leave everything as it was.
//!
//! Threading: shared; no lock is held while a block is read.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use siltstone_table::block::Block;
use siltstone_table::reader::BlockCache as TableBlockCache;

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

/// Blocks that were asked for and found, or not.
#[derive(Default)]
pub(crate) struct Lookups {
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Lookups {
    pub(crate) fn hit_count(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn miss_count(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }

    fn count(&self, found: bool) {
        let count = if found { &self.hits } else { &self.misses };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// See the module.
pub(crate) struct BlockCache {
    blocks: Option<Blocks>,
    /// What it was given, and what it may hold now, in bytes.
    given_bytes: u64,
    capacity_bytes: AtomicU64,
    /// By gets.
    pub(crate) points: Lookups,
    /// By cursors.
    pub(crate) scans: Lookups,
}

/// Shards are fixed, so that eviction does not depend on the machine's cores.
const SHARDS: usize = 8;

impl BlockCache {
    /// A cache of at most `bytes`; none at 0.
    pub(crate) fn new(bytes: u64) -> BlockCache {
        let blocks = (bytes > 0).then(|| {
            let options = OptionsBuilder::new()
                .estimated_items_capacity((bytes / 8192).clamp(16, 1 << 24) as usize)
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

    /// Lets it hold at most `bytes`, and never more than it was given; what is too much goes at once.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        let bytes = bytes.min(self.given_bytes);
        if let Some(blocks) = &self.blocks
            && self.capacity_bytes.swap(bytes, Ordering::Relaxed) != bytes
        {
            blocks.set_capacity(bytes);
        }
    }

    /// What it may hold now, in bytes.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes.load(Ordering::Relaxed)
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

/// The cache as a cursor sees it.
pub(crate) struct ScanCache {
    cache: Arc<BlockCache>,
    /// Whether its reads change what the cache holds.
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
