//! Checksums: crc32c over the bytes of blocks and sections, and xxh3 over the checksums of a
//! table's blocks.
//!
//! Everything on disk is checked with crc32c, because the checksums of pieces can be combined: a
//! GPU or a device computes them in parallel. A table's digest is the 64-bit xxh3 of the checksums
//! of its blocks, in order, each as a little-endian u32, followed by that of the range-delete
//! section. So a table that is written in pieces has the same digest as one that is written whole.
//!
//! Threading: pure functions.

use xxhash_rust::xxh3::Xxh3Default;

/// The crc32c of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// The crc32c of the bytes that `crc` covers, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The crc32c of two pieces, from the checksums of both and the length `second_len` of the second
/// one.
#[inline]
pub fn crc32c_combine(first: u32, second: u32, second_len: usize) -> u32 {
    crc32c::crc32c_combine(first, second, second_len)
}

/// Builds the digest of a table from the checksums of its blocks.
#[derive(Clone, Default)]
pub struct Digest {
    state: Xxh3Default,
}

impl Digest {
    /// The digest of no blocks.
    pub fn new() -> Digest {
        Digest::default()
    }

    /// Adds the checksum of the next block.
    pub fn push(&mut self, block_checksum: u32) {
        self.state.update(&block_checksum.to_le_bytes());
    }

    /// The digest of all blocks so far.
    pub fn value(&self) -> u64 {
        self.state.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_combine() {
        let bytes: Vec<u8> = (0..999u32).map(|i| (i * 7) as u8).collect();
        for cut in [0, 1, 500, 998, 999] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(
                crc32c_combine(crc32c(a), crc32c(b), b.len()),
                crc32c(&bytes)
            );
            assert_eq!(crc32c_append(crc32c(a), b), crc32c(&bytes));
        }
        // The check value of crc32c.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_digest_is_xxh3_of_the_checksums() {
        let mut d = Digest::new();
        d.push(1);
        d.push(0xffff_fffe);
        assert_eq!(
            d.value(),
            xxhash_rust::xxh3::xxh3_64(&[1, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff])
        );
    }
}
