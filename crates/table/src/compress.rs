//! Compression of blocks: none, or lz4, for the values and the columns of a block each on their own.
//!
//! A part is stored compressed only if that saves at least an eighth of it. Its uncompressed length follows from the
//! block's header, and decoding allocates no more than lz4 can expand the stored bytes to (255 times).
//!
//! Threading: pure functions.

use crate::error::Damage;

/// How blocks are compressed. The numbers are part of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// Stored as it is.
    #[default]
    None = 0,
    /// lz4's block format.
    Lz4 = 1,
}

/// Parts larger than this are never compressed: both forms would have to be in memory.
pub const MAX_COMPRESSED_PART_BYTES: usize = 16 << 20;

/// No lz4 block expands by more than this.
const MAX_EXPANSION: usize = 255;

impl Codec {
    /// The codec with this number.
    pub fn from_u8(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::None),
            1 => Some(Codec::Lz4),
            _ => None,
        }
    }

    /// Appends the compressed form of `part` to `out` if that gains enough; otherwise leaves `out` as it was.
    pub fn compress(self, part: &[u8], out: &mut Vec<u8>) -> bool {
        if self == Codec::None || part.len() < 64 || part.len() > MAX_COMPRESSED_PART_BYTES {
            return false;
        }
        let start = out.len();
        out.resize(
            start + lz4_flex::block::get_maximum_output_size(part.len()),
            0,
        );
        let len = lz4_flex::block::compress_into(part, &mut out[start..]).unwrap_or(usize::MAX);
        if len > part.len() - part.len() / 8 {
            out.truncate(start);
            return false;
        }
        out.truncate(start + len);
        true
    }
}

/// Decodes a compressed part into exactly `into`.
pub fn decompress(stored: &[u8], into: &mut [u8]) -> Result<(), Damage> {
    match lz4_flex::block::decompress_into(stored, into) {
        Ok(len) if len == into.len() => Ok(()),
        Ok(len) => Err(Damage::new(
            "length of a decompressed part",
            0,
            into.len() as u64,
            len as u64,
        )),
        Err(_) => Err(Damage::new(
            "lz4 data",
            0,
            into.len() as u64,
            stored.len() as u64,
        )),
    }
}

/// Whether a part of `stored` bytes may decode to `len` bytes at all; asked before memory is taken.
pub fn check_expansion(stored: usize, len: usize) -> Result<(), Damage> {
    if len > MAX_COMPRESSED_PART_BYTES || len > stored.saturating_mul(MAX_EXPANSION) {
        let bound = stored
            .saturating_mul(MAX_EXPANSION)
            .min(MAX_COMPRESSED_PART_BYTES);
        return Err(Damage::new(
            "length of a compressed part",
            0,
            bound as u64,
            len as u64,
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_round_trip_or_stay() {
        let text: Vec<u8> = (0..4000u32)
            .map(|i| b"siltstone"[(i * i / 7) as usize % 3])
            .collect();
        let mut out = vec![9];
        assert!(Codec::Lz4.compress(&text, &mut out));
        assert!(out.len() < text.len() * 7 / 8 && out[0] == 9);
        check_expansion(out.len() - 1, text.len()).unwrap();
        let mut back = vec![0; text.len()];
        decompress(&out[1..], &mut back).unwrap();
        assert_eq!(back, text);
        assert!(decompress(&out[1..], &mut vec![0; text.len() - 1]).is_err());
        assert!(decompress(&out[1..], &mut vec![0; text.len() + 1]).is_err());
        assert!(decompress(&out[1..out.len() - 3], &mut back).is_err());

        let mut x = 1u64;
        let noise: Vec<u8> = (0..4000)
            .map(|_| {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect();
        assert!(!Codec::Lz4.compress(&noise, &mut out) && out[0] == 9);
        assert!(!Codec::None.compress(&text, &mut out));
    }

    #[test]
    fn zeros_expand_within_the_bound() {
        let zeros = vec![0; 1 << 20];
        let mut out = Vec::new();
        assert!(Codec::Lz4.compress(&zeros, &mut out));
        check_expansion(out.len(), zeros.len()).unwrap();
        assert!(check_expansion(10, 1 << 20).is_err());
    }
}
