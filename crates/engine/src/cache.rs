//! The block cache: heap blocks of tables that are not read through maps, and of values that users hold on to.
//!
//! What it is: a weighted `quick_cache` with a fixed hasher and shard count (two runs of one seed evict alike). Its waiting insert is not used:
//! placeholders would park threads behind the runtime's back; two readers that miss the same block both read it.
//!
//! Threading: shared; no lock is held while a block is read.

use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use siltstone_table::block::Block;
use siltstone_table::error::TableError;
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

/// See the module.
pub(crate) struct BlockCache {
    blocks: Option<Blocks>,
    hits: AtomicU64,
    misses: AtomicU64,
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
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.blocks.as_ref().map_or(0, Cache::weight)
    }

    pub(crate) fn hit_count(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    pub(crate) fn miss_count(&self) -> u64 {
        self.misses.load(Ordering::Relaxed)
    }
}

impl TableBlockCache for BlockCache {
    fn get_or_read(
        &self,
        table: u64,
        block: u32,
        read: &mut dyn FnMut() -> Result<Arc<Block>, TableError>,
    ) -> Result<Arc<Block>, TableError> {
        let Some(blocks) = &self.blocks else {
            return read();
        };
        if let Some(found) = blocks.get(&(table, block)) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Ok(found);
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let found = read()?;
        blocks.insert((table, block), found.clone());
        Ok(found)
    }
}
