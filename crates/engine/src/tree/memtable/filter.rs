//! A filter over the user keys of a memtable: most reads miss most memtables, and a miss then costs
//! one cache line.
//!
//! Each key sets four bits of one 64-bit word. The writer sets the bits before it publishes the
//! entry, and readers look only for published entries, so relaxed loads and stores are enough: a
//! key that exists is never denied.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::prefetch_line;

#[derive(Clone, Copy)]
pub(super) struct Filter {
    words: *const AtomicU64,
    word_count: usize,
}

impl Filter {
    /// # Safety
    /// `words` must be valid for atomic access to `word_count` (at least one) words as long as the
    /// filter is used.
    pub(super) unsafe fn new(words: *const AtomicU64, word_count: usize) -> Filter {
        Filter { words, word_count }
    }

    #[inline(always)]
    pub(super) fn hash(key: &[u8]) -> u64 {
        xxhash_rust::xxh3::xxh3_64(key)
    }

    #[inline(always)]
    fn word(&self, hash: u64) -> &AtomicU64 {
        let index = (((hash >> 32) * self.word_count as u64) >> 32) as usize;
        // SAFETY: the index is below the count (it is a 32-bit fraction of it), and the words are
        // valid by the promise of `new`.
        unsafe { &*self.words.add(index) }
    }

    #[inline(always)]
    fn bits(hash: u64) -> u64 {
        1 << (hash & 63) | 1 << (hash >> 6 & 63) | 1 << (hash >> 12 & 63) | 1 << (hash >> 18 & 63)
    }

    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        prefetch_line(self.word(hash));
    }

    /// Adds a key. Only the writer calls this.
    #[inline(always)]
    pub(super) fn add(&self, hash: u64) {
        let word = self.word(hash);
        word.store(
            word.load(Ordering::Relaxed) | Self::bits(hash),
            Ordering::Relaxed,
        );
    }

    /// Whether the key may have been added. `false` is certain.
    #[inline(always)]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let bits = Self::bits(hash);
        self.word(hash).load(Ordering::Relaxed) & bits == bits
    }
}
