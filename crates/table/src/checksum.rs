//! Checksums: crc32c over the bytes of blocks and sections, xxh3 over the checksums of a table's blocks.
//!
//! crc32c is the checksum of everything on disk, because checksums of pieces combine: a GPU or a device computes
//! them in parallel. A table's digest is the 64-bit xxh3 of its blocks' checksums, in order, each as a little-endian
//! u32, then the range-delete block's; so a table written in pieces has the digest of one written whole.
//!
//! Threading: pure functions.

use xxhash_rust::xxh3::Xxh3Default;

/// crc32c of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// crc32c of what `crc` covers, followed by `bytes`.
#[inline]
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// crc32c of a first piece followed by a second piece of `second_len` bytes, from their checksums.
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
    /// The digest of nothing.
    pub fn new() -> Digest {
        Digest::default()
    }

    /// Adds the next block's checksum.
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
