//! Compression of blocks: none, lz4 or zstd. The values and the columns of a block are compressed
//! separately.
//!
//! A part is stored compressed only if that saves at least an eighth of its size. Its uncompressed
//! length follows from the block's header. Decoding allocates no more than the codec can expand the
//! stored bytes to (lz4 255 times, zstd 32,768 times), and never more than 16 MiB per part.
//!
//! Threading: pure functions.

use crate::error::Damage;

/// How blocks are compressed. The numbers are part of the format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Codec {
    /// The block is stored uncompressed.
    #[default]
    None = 0,
    /// The block format of lz4.
    Lz4 = 1,
    /// A zstd frame.
    Zstd = 2,
}

/// Larger parts are never compressed, because both forms would have to be in memory.
pub const MAX_COMPRESSED_PART_BYTES: usize = 16 << 20;

/// The highest zstd level that is used. Higher ones take hundreds of megabytes to compress.
pub const MAX_ZSTD_LEVEL: u8 = 19;

impl Codec {
    /// The codec with this number.
    pub fn from_u8(number: u8) -> Option<Codec> {
        match number {
            0 => Some(Codec::None),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            _ => None,
        }
    }

    /// The codec's name.
    pub fn word(self) -> &'static str {
        match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        }
    }

    /// The levels of the codec; only 0 if there is no choice.
    pub fn levels(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Codec::None | Codec::Lz4 => 0..=0,
            Codec::Zstd => 1..=MAX_ZSTD_LEVEL,
        }
    }

    /// The maximum factor by which a stored part can expand: one byte of lz4 adds at most 255
    /// bytes, and zstd makes a block of at most 128 KiB from at least four bytes.
    fn max_expansion(self) -> usize {
        match self {
            Codec::None => 1,
            Codec::Lz4 => 255,
            Codec::Zstd => 32 << 10,
        }
    }

    /// Appends the compressed form of `part` to `out` if that saves enough. Otherwise leaves `out`
    /// unchanged.
    pub fn compress(self, level: u8, part: &[u8], out: &mut Vec<u8>) -> bool {
        if self == Codec::None || part.len() < 64 || part.len() > MAX_COMPRESSED_PART_BYTES {
            return false;
        }
        let start = out.len();
        let most = part.len() - part.len() / 8;
        let len = match self {
            Codec::None => None,
            Codec::Lz4 => {
                out.resize(
                    start + lz4_flex::block::get_maximum_output_size(part.len()),
                    0,
                );
                lz4_flex::block::compress_into(part, &mut out[start..]).ok()
            }
            Codec::Zstd => {
                // zstd stops when this is full: a longer result is not used anyway.
                out.resize(start + most, 0);
                zstd::bulk::compress_to_buffer(part, &mut out[start..], level.into()).ok()
            }
        };
        let len = len.filter(|len| *len <= most);
        out.truncate(start + len.unwrap_or(0));
        len.is_some()
    }

    /// Decodes a compressed part into exactly `into`.
    pub fn decompress(self, stored: &[u8], into: &mut [u8]) -> Result<(), Damage> {
        let decoded = match self {
            Codec::None => None,
            Codec::Lz4 => lz4_flex::block::decompress_into(stored, into).ok(),
            Codec::Zstd => zstd::bulk::decompress_to_buffer(stored, into).ok(),
        };
        let (expected, found) = (into.len() as u64, stored.len() as u64);
        match (decoded, self) {
            (Some(len), _) if len == into.len() => Ok(()),
            (Some(len), _) => Err(Damage::new(
                "length of a decompressed part",
                0,
                expected,
                len as u64,
            )),
            (None, Codec::Zstd) => Err(Damage::new("zstd data", 0, expected, found)),
            (None, _) => Err(Damage::new("lz4 data", 0, expected, found)),
        }
    }

    /// Checks that a part of `stored` bytes can decode to `len` bytes, before memory is allocated.
    pub fn check_expansion(self, stored: usize, len: usize) -> Result<(), Damage> {
        let bound = stored
            .saturating_mul(self.max_expansion())
            .min(MAX_COMPRESSED_PART_BYTES);
        if len > bound {
            return Err(Damage::new(
                "length of a compressed part",
                0,
                bound as u64,
                len as u64,
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODECS: &[(Codec, u8)] = if cfg!(miri) {
        // Miri cannot run C.
        &[(Codec::Lz4, 0)]
    } else {
        &[
            (Codec::Lz4, 0),
            (Codec::Zstd, 1),
            (Codec::Zstd, 3),
            (Codec::Zstd, MAX_ZSTD_LEVEL),
        ]
    };

    #[test]
    fn parts_round_trip_or_stay_uncompressed() {
        let text: Vec<u8> = (0..4000u32)
            .map(|i| b"siltstone"[(i * i / 7) as usize % 3])
            .collect();
        let mut x = 1u64;
        let noise: Vec<u8> = (0..4000)
            .map(|_| {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect();
        for &(codec, level) in CODECS {
            assert!(codec.levels().contains(&level));
            let mut out = vec![9];
            assert!(codec.compress(level, &text, &mut out));
            assert!(out.len() < text.len() * 7 / 8 && out[0] == 9);
            codec.check_expansion(out.len() - 1, text.len()).unwrap();
            let mut back = vec![0; text.len()];
            codec.decompress(&out[1..], &mut back).unwrap();
            assert_eq!(back, text);
            for (stored, len) in [
                (&out[1..], text.len() - 1),
                (&out[1..], text.len() + 1),
                (&out[1..out.len() - 3], text.len()),
                (&[][..], text.len()),
            ] {
                codec
                    .decompress(stored, &mut vec![0; len])
                    .expect_err("lengths differ");
            }
            out.truncate(1);
            assert!(!codec.compress(level, &noise, &mut out) && out == [9]);
        }
        assert!(!Codec::None.compress(0, &text, &mut Vec::new()));
    }

    #[test]
    fn zeros_expand_within_the_bound() {
        let zeros = vec![0; MAX_COMPRESSED_PART_BYTES >> if cfg!(miri) { 8 } else { 0 }];
        for &(codec, level) in CODECS {
            let mut out = Vec::new();
            assert!(codec.compress(level, &zeros, &mut out));
            codec.check_expansion(out.len(), zeros.len()).unwrap();
            let mut back = vec![1; zeros.len()];
            codec.decompress(&out, &mut back).unwrap();
            assert_eq!(back, zeros);
            assert!(
                codec
                    .check_expansion(usize::MAX, 1 + MAX_COMPRESSED_PART_BYTES)
                    .is_err()
            );
        }
        assert!(Codec::Lz4.check_expansion(10, 1 << 20).is_err());
        assert!(Codec::Zstd.check_expansion(10, 1 << 20).is_err());
    }

    /// Damaged parts decode to something or are refused. They never cause a panic or a write out of
    /// bounds.
    #[test]
    fn damaged_parts_never_panic() {
        let text: Vec<u8> = (0..600u32)
            .map(|i| b"siltstone"[(i * i / 7) as usize % 3])
            .collect();
        for &(codec, level) in CODECS {
            let mut out = Vec::new();
            assert!(codec.compress(level, &text, &mut out));
            let mut back = vec![0; text.len()];
            for bit in 0..out.len() * 8 {
                let mut bad = out.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                let _ = codec.decompress(&bad, &mut back);
            }
            for len in 0..out.len() {
                codec
                    .decompress(&out[..len], &mut back)
                    .expect_err("cut short");
            }
        }
    }
}
