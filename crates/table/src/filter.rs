//! The blocked Bloom filter over the distinct user keys of a table.
//!
//! It has 512-bit blocks, one cache line each. One half of a key's hash selects the block, the
//! other half the bits. The bits depend only on the set of keys and the bits per key, not on the
//! order of the keys, so a filter is the same wherever it is built. With `n` distinct keys it has
//! `ceil(bits_per_key * n / 512)` blocks, and `block = (hash >> 32) * blocks >> 32`. With
//! `x = low32(hash) * 0x9E3779B97F4A7C15`, each of the first seven bits of a key is the top 9 bits
//! of `x`, after which `x` is shifted left by 9. From the eighth bit on, `x` starts with
//! `low32 * 0xC2B2AE3D27D4EB4F`. A table without entries, or with 0 bits per key, has no filter. A
//! filter without blocks contains no key.
//!
//! Threading: built by one owner, then shared and immutable.

use std::sync::atomic::{AtomicUsize, Ordering};

use siltstone_storage::{HugeSlice, prefetch_address, prefetch_line};

use crate::coding::Bytes;
use crate::error::Damage;
use crate::limits::MAX_BITS_PER_KEY;

const FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
const SECOND: u64 = 0xC2B2_AE3D_27D4_EB4F;

/// The number of bits set per key, for each number of bits per key: the whole number that gives the
/// fewest false positives in 512-bit blocks, or one less if that adds less than 5% of them.
const PROBES: [u8; MAX_BITS_PER_KEY as usize + 1] = [
    0, 1, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 7, 8, 8, 8, 8, 9, 9, 10, 10,
];

/// The size of a filter block in bytes.
pub const FILTER_BLOCK_BYTES: usize = 64;

/// The number of bits of a filter block that a key sets.
pub fn probes(bits_per_key: u8) -> u32 {
    PROBES[bits_per_key.min(MAX_BITS_PER_KEY) as usize] as u32
}

/// The number of 512-bit blocks of a filter over `keys` distinct user keys.
pub fn filter_blocks(keys: u64, bits_per_key: u8) -> u64 {
    keys.saturating_mul(bits_per_key.min(MAX_BITS_PER_KEY) as u64)
        .div_ceil(512)
}

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(align(64))]
struct Line([u64; 8]);

/// A filter in memory.
#[derive(Clone, PartialEq, Eq)]
pub struct Filter {
    lines: HugeSlice<Line>,
    probes: u32,
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Filter")
            .field("blocks", &self.lines.len())
            .field("probes", &self.probes)
            .finish()
    }
}

/// Calls `f` with the numbers (0 to 511) of the bits of a hash.
#[inline(always)]
fn each_bit(hash: u64, probes: u32, mut f: impl FnMut(usize)) {
    let low = hash & 0xffff_ffff;
    let mut x = low.wrapping_mul(FIRST);
    for _ in 0..probes.min(7) {
        f((x >> 55) as usize);
        x <<= 9;
    }
    if probes > 7 {
        let mut x = low.wrapping_mul(SECOND);
        for _ in 7..probes {
            f((x >> 55) as usize);
            x <<= 9;
        }
    }
}

impl Filter {
    /// The filter over the user keys with these hashes. Each hash occurs once.
    pub fn build(hashes: &[u64], bits_per_key: u8) -> Filter {
        let mut filter = Filter::empty(hashes.len() as u64, bits_per_key);
        filter.insert_all(hashes);
        filter
    }

    /// A filter for `keys` distinct user keys in which no bit is set.
    pub fn empty(keys: u64, bits_per_key: u8) -> Filter {
        let blocks = filter_blocks(keys, bits_per_key) as usize;
        Filter {
            lines: HugeSlice::from_fn(blocks, |_| Line([0; 8])),
            probes: probes(bits_per_key),
        }
    }

    /// Sets the bits of several keys.
    pub fn insert_all(&mut self, hashes: &[u64]) {
        const AHEAD: usize = 16;
        for (i, hash) in hashes.iter().enumerate() {
            if let Some(next) = hashes.get(i + AHEAD) {
                self.prefetch(*next);
            }
            self.insert(*hash);
        }
    }

    #[inline(always)]
    fn line_of(&self, hash: u64) -> usize {
        (((hash >> 32) * self.lines.len() as u64) >> 32) as usize
    }

    /// Sets the bits of one key.
    #[inline]
    pub fn insert(&mut self, hash: u64) {
        if self.lines.is_empty() {
            return;
        }
        let line = self.line_of(hash);
        let line = &mut self.lines[line].0;
        each_bit(hash, self.probes, |bit| line[bit >> 6] |= 1 << (bit & 63));
    }

    /// Decodes a stored filter of a table with this many bits per key.
    pub fn decode(bytes: &[u8], bits_per_key: u8) -> Result<Filter, Damage> {
        if !bytes.len().is_multiple_of(FILTER_BLOCK_BYTES) {
            let whole = bytes.len() / FILTER_BLOCK_BYTES * FILTER_BLOCK_BYTES;
            return Err(Damage::new(
                "filter length",
                0,
                whole as u64,
                bytes.len() as u64,
            ));
        }
        let lines = HugeSlice::from_fn(bytes.len() / FILTER_BLOCK_BYTES, |line| {
            let at = line * FILTER_BLOCK_BYTES;
            Line(std::array::from_fn(|i| bytes.u64(at + 8 * i)))
        });
        Ok(Filter {
            lines,
            probes: probes(bits_per_key),
        })
    }

    /// Appends the stored form: the words of the blocks, little-endian.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(self.lines.len() * FILTER_BLOCK_BYTES);
        for line in &*self.lines {
            for word in line.0 {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
    }

    /// Prefetches the one cache line that [`Filter::may_contain`] will read.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if !self.lines.is_empty() {
            prefetch_line(&self.lines[self.line_of(hash)]);
        }
    }

    /// Returns false only if the key is not in the table.
    #[inline]
    pub fn may_contain(&self, hash: u64) -> bool {
        if self.lines.is_empty() {
            return false;
        }
        let line = &self.lines[self.line_of(hash)].0;
        let mut all = 1;
        each_bit(hash, self.probes, |bit| all &= line[bit >> 6] >> (bit & 63));
        all & 1 == 1
    }

    /// Heap memory in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.lines.len() * FILTER_BLOCK_BYTES
    }
}

/// Where a filter lies in memory, so that its lines can be prefetched by a thread that does not
/// keep the filter alive. If the filter was dropped meanwhile, the prefetch brings in something
/// else, and no harm is done.
#[derive(Debug, Default)]
pub struct FilterPlace {
    address: AtomicUsize,
    lines: AtomicUsize,
}

impl FilterPlace {
    /// Notes where a filter lies, or that there is none.
    pub fn set(&self, filter: Option<&Filter>) {
        let lines = filter.map_or(&[][..], |filter| &*filter.lines);
        self.address.store(lines.as_ptr().addr(), Ordering::Relaxed);
        self.lines.store(lines.len(), Ordering::Relaxed);
    }

    /// Prefetches the line of a key, as [`Filter::prefetch`] does.
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        let lines = self.lines.load(Ordering::Relaxed);
        if lines > 0 {
            let line = (((hash >> 32) * lines as u64) >> 32) as usize;
            let address = self.address.load(Ordering::Relaxed);
            prefetch_address(std::ptr::without_provenance(
                address.wrapping_add(line * FILTER_BLOCK_BYTES),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::hash;

    fn hashes(range: std::ops::Range<u64>) -> Vec<u64> {
        range.map(|i| hash(&i.to_le_bytes())).collect()
    }

    #[test]
    fn no_false_negatives_and_few_false_positives() {
        let inside = hashes(0..20_000);
        let outside = hashes(1 << 32..(1 << 32) + 40_000);
        // (bits per key, upper bound on false positives in parts of 10,000)
        for (bits, bound) in [
            (1, 6600),
            (2, 4100),
            (4, 1560),
            (6, 620),
            (8, 260),
            (10, 112),
            (12, 52),
            (16, 16),
            (20, 8),
        ] {
            let filter = Filter::build(&inside, bits);
            assert!(inside.iter().all(|h| filter.may_contain(*h)));
            let wrong = outside.iter().filter(|h| filter.may_contain(**h)).count();
            assert!(
                wrong * 10_000 <= bound * outside.len(),
                "{bits} bits a key: {wrong} of {}",
                outside.len()
            );
        }
    }

    #[test]
    fn bits_do_not_depend_on_order() {
        let mut hashes = hashes(0..3_000);
        let one = Filter::build(&hashes, 10);
        hashes.reverse();
        assert!(one == Filter::build(&hashes, 10));
        assert_eq!(one.lines.len() as u64, (3_000u64 * 10).div_ceil(512));
    }

    #[test]
    fn stored_form_round_trips() {
        let filter = Filter::build(&hashes(0..500), 16);
        let mut bytes = Vec::new();
        filter.encode(&mut bytes);
        assert!(filter == Filter::decode(&bytes, 16).unwrap());
        assert!(Filter::decode(&bytes[1..], 16).is_err());
    }

    #[test]
    fn a_filter_over_no_keys_contains_no_key() {
        assert!(!Filter::build(&[], 10).may_contain(hash(b"x")));
    }

    /// The bits of one key, written out, because they are part of the format.
    #[test]
    fn bits_of_one_key_are_fixed() {
        let h = 0x8000_0000_0000_0001;
        let mut bits = Vec::new();
        each_bit(h, 10, |b| bits.push(b));
        let x = |m: u64, i: u32| ((m << (9 * i)) >> 55) as usize;
        let want: Vec<usize> = (0..7)
            .map(|i| x(FIRST, i))
            .chain((0..3).map(|i| x(SECOND, i)))
            .collect();
        assert_eq!(bits, want);
        assert_eq!(&bits[..3], &[316, 221, 461]);
    }
}
