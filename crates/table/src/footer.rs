//! The footer: the last 64 bytes of a table file, from which everything else is found.
//!
//! Sections follow each other without gaps, so their lengths determine their offsets. The lengths
//! and the footer's own length must add up to the file's length. Magic number and version are at
//! the same offsets in every version.
//!
//! Threading: plain data.

use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::{Damage, Result, TableError};
use siltstone_storage::ReadFile;

/// The size of a footer in bytes.
pub const FOOTER_BYTES: usize = 64;

/// The last eight bytes of every table file: `SILTTABL`.
pub const MAGIC: [u8; 8] = *b"SILTTABL";

/// The version of the format that is written and read.
pub const VERSION: u32 = 2;

/// The lengths of a table's sections in bytes, each with its checksum, and the table's digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footer {
    /// All blocks.
    pub blocks_bytes: u64,
    /// The filter; 0 if there is none.
    pub filter_bytes: u64,
    /// The index.
    pub index_bytes: u64,
    /// The range deletes; 0 if there are none.
    pub range_deletes_bytes: u64,
    /// The properties.
    pub properties_bytes: u64,
    /// xxh3-64 of the checksums of all blocks and of the range deletes.
    pub digest: u64,
}

impl Footer {
    /// Encodes the footer.
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut out = [0; FOOTER_BYTES];
        let fields = [
            self.blocks_bytes,
            self.filter_bytes,
            self.index_bytes,
            self.range_deletes_bytes,
            self.properties_bytes,
            self.digest,
        ];
        for (i, field) in fields.iter().enumerate() {
            out[8 * i..8 * i + 8].copy_from_slice(&field.to_le_bytes());
        }
        out[48..52].copy_from_slice(&VERSION.to_le_bytes());
        let crc = crc32c(&out[..52]);
        out[52..56].copy_from_slice(&crc.to_le_bytes());
        out[56..].copy_from_slice(&MAGIC);
        out
    }

    /// Reads, decodes and checks the footer of a table.
    ///
    /// # Errors
    /// Storage errors, damage, or an unknown version.
    pub fn read(file: &dyn ReadFile) -> Result<Footer> {
        let (name, len) = (file.name(), file.len());
        let Some(at) = len.checked_sub(FOOTER_BYTES as u64) else {
            let least = FOOTER_BYTES as u64;
            return Err(Damage::new("length of a table file", 0, least, len).in_file(name, 0));
        };
        let mut raw = [0; FOOTER_BYTES];
        file.read_at(at, &mut raw)?;
        Footer::decode(&raw, name, len)
    }

    /// Decodes and checks the footer of `file`, which is `file_len` bytes long.
    pub fn decode(raw: &[u8; FOOTER_BYTES], file: &str, file_len: u64) -> Result<Footer> {
        let base = file_len.saturating_sub(FOOTER_BYTES as u64);
        let damaged = |what, at, expected, found| {
            Err(Damage::new(what, at, expected, found).in_file(file, base))
        };
        let raw = raw.as_slice();
        let magic = u64::from_le_bytes(MAGIC);
        if raw.u64(56) != magic {
            return damaged("magic number of a table", 56, magic, raw.u64(56));
        }
        let crc = crc32c(&raw[..52]);
        if raw.u32(48) != VERSION {
            // This is a flipped bit or really another version. The checksum, which is at the same
            // offset in every version, tells which.
            if crc != raw.u32(52) {
                return damaged("checksum of the footer", 52, crc as u64, raw.u32(52) as u64);
            }
            return Err(TableError::UnsupportedVersion {
                file: file.to_string(),
                found: raw.u32(48),
                supported: VERSION,
            });
        }
        if crc != raw.u32(52) {
            return damaged("checksum of the footer", 52, crc as u64, raw.u32(52) as u64);
        }
        let footer = Footer {
            blocks_bytes: raw.u64(0),
            filter_bytes: raw.u64(8),
            index_bytes: raw.u64(16),
            range_deletes_bytes: raw.u64(24),
            properties_bytes: raw.u64(32),
            digest: raw.u64(40),
        };
        let sum = footer
            .sections()
            .iter()
            .try_fold(FOOTER_BYTES as u64, |sum, len| sum.checked_add(*len));
        if sum != Some(file_len) {
            return damaged(
                "sum of the section lengths",
                0,
                file_len,
                sum.unwrap_or(u64::MAX),
            );
        }
        Ok(footer)
    }

    /// The lengths of the sections in file order: blocks, filter, index, range deletes, properties.
    pub fn sections(&self) -> [u64; 5] {
        [
            self.blocks_bytes,
            self.filter_bytes,
            self.index_bytes,
            self.range_deletes_bytes,
            self.properties_bytes,
        ]
    }

    /// The length of the file.
    pub fn file_bytes(&self) -> u64 {
        self.sections().iter().sum::<u64>() + FOOTER_BYTES as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_is_found() {
        let footer = Footer {
            blocks_bytes: 1000,
            filter_bytes: 68,
            index_bytes: 50,
            digest: 77,
            ..Footer::default()
        };
        let raw = footer.encode();
        assert_eq!(
            Footer::decode(&raw, "t", footer.file_bytes()).unwrap(),
            footer
        );
        assert!(
            Footer::decode(&raw, "t", footer.file_bytes() + 1)
                .unwrap_err()
                .is_corruption()
        );
        for bit in 0..8 * FOOTER_BYTES {
            let mut bad = raw;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(
                Footer::decode(&bad, "t", footer.file_bytes())
                    .unwrap_err()
                    .is_corruption()
            );
        }
    }

    #[test]
    fn other_versions_are_refused_by_name() {
        let mut raw = Footer::default().encode();
        raw[48] = 1;
        let crc = crc32c(&raw[..52]);
        raw[52..56].copy_from_slice(&crc.to_le_bytes());
        let e = Footer::decode(&raw, "t", 64).unwrap_err();
        assert!(
            matches!(
                e,
                TableError::UnsupportedVersion {
                    found: 1,
                    supported: 2,
                    ..
                }
            ),
            "{e}"
        );
    }
}
