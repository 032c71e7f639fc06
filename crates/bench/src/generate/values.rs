//! Values that a reader can check completely: every byte is a function of the record and of the
//! version of the value.
//!
//! # Layout
//!
//! A value of at least 8 bytes begins with a header of 8 bytes: the record and the version,
//! scrambled by a bijection so that they do not compress. The body is a window of a pool of 64 KiB,
//! whose position depends on the header, and each of its bytes is combined (xor) with the byte of
//! the header at the same offset modulo 8. Large values go round the pool, with another key in each
//! lap. So two values have no bytes in common although the pool is small: a compressor finds
//! repetitions within a value only. (`db_bench` copies slices of a pool of one MiB, so its values
//! repeat each other after one MiB.)
//!
//! A value of less than 8 bytes is the beginning of a hash of the record and the version.
//!
//! # Compressibility
//!
//! The pool alternates random bytes with zeros, 256 bytes each pair. The zeros become repetitions
//! of the header, which compress to almost nothing, and the share of random bytes is such that a
//! block of values shrinks to about `ratio` of its size. From 64 bytes on the result is within 0.06
//! of the ratio, with LZ4 and with zstd; smaller values deviate more because of their headers.
//!
//! # Versions
//!
//! A header holds the version modulo 2^20 and the record modulo 2^44. Values of less than 8 bytes
//! hold the version modulo 16, as far as so few bytes can. The size of a value depends on the
//! record and on the version modulo 16, so the sizes of a record repeat after 16 versions.
//!
//! Threading: immutable after construction, shared by reference.

use super::error::{ParameterError, require};
use super::hash::{mix, unmix};
use super::random::Random;
use super::sizes::Sizes;

/// Versions count modulo this number, 2^20, in values with a header.
pub const VERSIONS: u64 = 1 << 20;
/// Versions count modulo this number in values of less than 8 bytes and for sizes.
pub const SMALL_VERSIONS: u64 = 16;

const HEADER_BYTES: usize = 8;
const RECORD_BITS: u32 = 44;
const RECORDS: u64 = 1 << RECORD_BITS;
const POOL_BYTES: usize = 1 << 16;
/// A piece of the pool: random bytes and then zeros.
const SEGMENT_BYTES: usize = 256;
/// What a compressor needs to describe a repetition, in bytes.
const MATCH_BYTES: f64 = 4.0;

/// Values of records, with their sizes and their compressibility.
#[derive(Debug, Clone)]
pub struct Values {
    sizes: Sizes,
    mean_bytes: f64,
    pool: Box<[u8]>,
    /// Makes the headers of two seeds differ.
    header_key: u64,
    /// Makes the sizes independent of the contents.
    size_key: u64,
}

/// What is wrong with a value that a reader found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The value has the wrong size.
    #[error(
        "the value of record {record}, version {version}, has {found} bytes; \
         it should have {expected} bytes"
    )]
    Size {
        /// The record that was asked for.
        record: u64,
        /// The version, from the caller or from the header.
        version: u64,
        /// The size that this version has, in bytes.
        expected: usize,
        /// The size that was found, in bytes.
        found: usize,
    },
    /// The header names another record: the store returned the value of another key, or the header
    /// is damaged.
    #[error("the value of record {expected} has the header of record {found}")]
    Record {
        /// The record that was asked for, modulo 2^44.
        expected: u64,
        /// The record in the header.
        found: u64,
    },
    /// The header names another version: the store returned an older or newer value.
    #[error("the value of record {record} has version {found}; it should have version {expected}")]
    Version {
        /// The record that was asked for.
        record: u64,
        /// The version that was asked for, modulo 2^20.
        expected: u64,
        /// The version in the header.
        found: u64,
    },
    /// A byte differs.
    #[error(
        "the value of record {record}, version {version}, has the byte {found:#04x} \
         at offset {offset}; it should be {expected:#04x}"
    )]
    Byte {
        /// The record that was asked for.
        record: u64,
        /// The version, from the caller or from the header.
        version: u64,
        /// The position of the first byte that differs.
        offset: usize,
        /// What the byte should be.
        expected: u8,
        /// What the byte is.
        found: u8,
    },
    /// A value without a header is not the value of any version of the record.
    #[error("the {found} bytes found for record {record} are not a value of any of its versions")]
    NoVersion {
        /// The record that was asked for.
        record: u64,
        /// The size that was found, in bytes.
        found: usize,
    },
}

impl Values {
    /// Values with these sizes that compress to `ratio` of their size, which is above 0 and at most
    /// 1 (incompressible). Two seeds give different values.
    pub fn new(sizes: Sizes, ratio: f64, seed: u64) -> Result<Values, ParameterError> {
        sizes.check()?;
        let accepted = ratio > 0.0 && ratio <= 1.0;
        require(
            accepted,
            "values",
            "compression ratio",
            ratio,
            "above 0 and at most 1",
        )?;
        let mut random = Random::new(seed, 0);
        let mean_bytes = sizes.mean_bytes();
        Ok(Values {
            sizes,
            mean_bytes,
            header_key: random.bits(),
            size_key: random.bits(),
            pool: pool(random_share(ratio, mean_bytes), &mut random),
        })
    }

    /// The size of a value in bytes.
    #[inline]
    pub fn size(&self, record: u64, version: u64) -> usize {
        self.sizes
            .of_hash(self.small_hash(record, version, self.size_key))
    }

    /// The mean size in bytes, by the formula of the distribution.
    pub fn mean_bytes(&self) -> f64 {
        self.mean_bytes
    }

    /// The largest size in bytes.
    pub fn max_bytes(&self) -> usize {
        self.sizes.max_bytes()
    }

    /// Replaces the contents of `value` by the value of a record. It allocates only if `value` has
    /// too little capacity; `max_bytes` is enough.
    pub fn write(&self, record: u64, version: u64, value: &mut Vec<u8>) {
        value.clear();
        let size = self.size(record, version);
        if size < HEADER_BYTES {
            let hash = self.small_hash(record, version, self.header_key);
            value.extend_from_slice(&hash.to_le_bytes()[..size]);
            return;
        }
        let header = self.header(record, version);
        value.extend_from_slice(&header.to_le_bytes());
        for piece in self.pieces(header, size - HEADER_BYTES) {
            let from = value.len();
            value.extend_from_slice(piece.bytes);
            piece.combine(&mut value[from..]);
        }
    }

    /// Checks that `value` is the value of a record, and reads every byte of it. Without a version,
    /// the value of any version is accepted.
    pub fn verify(&self, record: u64, version: Option<u64>, value: &[u8]) -> Result<(), Mismatch> {
        let Some((header, body)) = value.split_first_chunk::<HEADER_BYTES>() else {
            return self.verify_small(record, version, value);
        };
        let header = u64::from_le_bytes(*header);
        let found = self.check_header(record, version, header, value.len())?;
        let mut offset = HEADER_BYTES;
        let mut rest = body;
        for piece in self.pieces(header, body.len()) {
            let part;
            (part, rest) = rest.split_at(piece.bytes.len());
            if let Some(at) = piece.first_difference(part) {
                return Err(Mismatch::Byte {
                    record,
                    version: found,
                    offset: offset + at,
                    expected: piece.byte(at),
                    found: part[at],
                });
            }
            offset += part.len();
        }
        Ok(())
    }

    /// The record modulo 2^44 and the version modulo 2^20 that a header names. It is none for
    /// values of less than 8 bytes. The rest of the value is not looked at.
    pub fn identity(&self, value: &[u8]) -> Option<(u64, u64)> {
        let header = value.first_chunk::<HEADER_BYTES>()?;
        Some(self.unpack(u64::from_le_bytes(*header)))
    }

    fn header(&self, record: u64, version: u64) -> u64 {
        let packed = ((version % VERSIONS) << RECORD_BITS) | (record % RECORDS);
        mix(packed ^ self.header_key)
    }

    fn unpack(&self, header: u64) -> (u64, u64) {
        let packed = unmix(header) ^ self.header_key;
        (packed % RECORDS, packed >> RECORD_BITS)
    }

    /// A hash of a record and its version modulo 16.
    fn small_hash(&self, record: u64, version: u64, key: u64) -> u64 {
        mix(mix(record ^ key).wrapping_add(version % SMALL_VERSIONS))
    }

    /// Compares the header with what is expected and returns the version that it names.
    fn check_header(
        &self,
        record: u64,
        version: Option<u64>,
        header: u64,
        size: usize,
    ) -> Result<u64, Mismatch> {
        let (found_record, found) = self.unpack(header);
        if found_record != record % RECORDS {
            return Err(Mismatch::Record {
                expected: record % RECORDS,
                found: found_record,
            });
        }
        if let Some(expected) = version.map(|v| v % VERSIONS).filter(|&v| v != found) {
            return Err(Mismatch::Version {
                record,
                expected,
                found,
            });
        }
        self.check_size(record, found, size)?;
        Ok(found)
    }

    fn check_size(&self, record: u64, version: u64, found: usize) -> Result<(), Mismatch> {
        let expected = self.size(record, version);
        if expected == found {
            return Ok(());
        }
        Err(Mismatch::Size {
            record,
            version,
            expected,
            found,
        })
    }

    fn verify_small(
        &self,
        record: u64,
        version: Option<u64>,
        value: &[u8],
    ) -> Result<(), Mismatch> {
        if let Some(version) = version {
            return self.verify_small_version(record, version, value);
        }
        let fits = |version| self.verify_small_version(record, version, value).is_ok();
        if (0..SMALL_VERSIONS).any(fits) {
            return Ok(());
        }
        Err(Mismatch::NoVersion {
            record,
            found: value.len(),
        })
    }

    fn verify_small_version(
        &self,
        record: u64,
        version: u64,
        value: &[u8],
    ) -> Result<(), Mismatch> {
        self.check_size(record, version, value.len())?;
        let expected = self
            .small_hash(record, version, self.header_key)
            .to_le_bytes();
        match value.iter().zip(expected).position(|(&a, b)| a != b) {
            None => Ok(()),
            Some(offset) => Err(Mismatch::Byte {
                record,
                version,
                offset,
                expected: expected[offset],
                found: value[offset],
            }),
        }
    }

    /// The pieces of a body: a window of the pool, continued at the beginning of the pool.
    fn pieces(&self, header: u64, body_bytes: usize) -> impl Iterator<Item = Piece<'_>> {
        let mut start = mix(header) as usize % (POOL_BYTES / HEADER_BYTES) * HEADER_BYTES;
        let mut rest = body_bytes;
        let mut lap = 0;
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let bytes = &self.pool[start..POOL_BYTES.min(start + rest)];
            let key = if lap == 0 {
                header
            } else {
                mix(header.wrapping_add(lap))
            };
            (start, rest, lap) = (0, rest - bytes.len(), lap + 1);
            Some(Piece {
                bytes,
                key: key.to_le_bytes(),
            })
        })
    }
}

/// Bytes of the pool that are combined with a key.
struct Piece<'a> {
    bytes: &'a [u8],
    key: [u8; HEADER_BYTES],
}

impl Piece<'_> {
    fn byte(&self, at: usize) -> u8 {
        self.bytes[at] ^ self.key[at % HEADER_BYTES]
    }

    /// Combines `bytes`, which begin where the piece begins, with the key.
    #[inline]
    fn combine(&self, bytes: &mut [u8]) {
        let key = u64::from_ne_bytes(self.key);
        let (words, rest) = bytes.as_chunks_mut::<HEADER_BYTES>();
        for word in words {
            *word = (u64::from_ne_bytes(*word) ^ key).to_ne_bytes();
        }
        for (byte, key) in rest.iter_mut().zip(self.key) {
            *byte ^= key;
        }
    }

    /// The position of the first byte that is not the piece's. The common case, no difference, has
    /// no branches within the loop.
    #[inline]
    fn first_difference(&self, found: &[u8]) -> Option<usize> {
        let key = u64::from_ne_bytes(self.key);
        let (found_words, found_rest) = found.as_chunks::<HEADER_BYTES>();
        let (words, _) = self.bytes.as_chunks::<HEADER_BYTES>();
        let mut difference = 0;
        for (a, b) in found_words.iter().zip(words) {
            difference |= u64::from_ne_bytes(*a) ^ u64::from_ne_bytes(*b) ^ key;
        }
        let rest_from = found_words.len() * HEADER_BYTES;
        let rest_differs = |(i, &byte): (usize, &u8)| byte != self.byte(rest_from + i);
        if difference == 0 && !found_rest.iter().enumerate().any(rest_differs) {
            return None;
        }
        (0..found.len()).find(|&at| found[at] != self.byte(at))
    }
}

/// The share of random bytes in the pool, so that values of the mean size compress to `ratio`.
fn random_share(ratio: f64, mean_bytes: f64) -> f64 {
    let body = mean_bytes - HEADER_BYTES as f64;
    if ratio >= 1.0 || body <= 0.0 {
        return 1.0;
    }
    let incompressible = ratio * mean_bytes - HEADER_BYTES as f64 - MATCH_BYTES;
    let for_matches = MATCH_BYTES / SEGMENT_BYTES as f64;
    (incompressible / body - for_matches).clamp(0.0, 1.0)
}

/// Segments of random bytes followed by zeros. The rounding of a segment is carried to the next.
fn pool(random_share: f64, random: &mut Random) -> Box<[u8]> {
    let mut pool = vec![0; POOL_BYTES].into_boxed_slice();
    let mut owed = 0.0;
    for segment in pool.chunks_mut(SEGMENT_BYTES) {
        owed += random_share * SEGMENT_BYTES as f64;
        let bytes = (owed as usize).min(segment.len());
        owed -= bytes as f64;
        random.fill(&mut segment[..bytes]);
    }
    pool
}

#[cfg(test)]
mod tests;
