//! The properties of a table: counts, bounds and how it was made, as tag-length-value fields.
//!
//! They do not say who wrote the table, when, or into which file, so tables made of the same
//! entries are identical. A tag with the top bit set must be understood: a reader that does not
//! know it refuses the table. Tags ascend.
//!
//! Threading: plain data.

use siltstone_storage::ReadFile;

use crate::checksum::crc32c;
use crate::coding::{Bytes, Cursor};
use crate::compress::Codec;
use crate::error::{Damage, Feature, Result, TableError};
use crate::footer::{FOOTER_BYTES, Footer};
use crate::key::MAX_SEQ;
use crate::limits::{
    MAX_BITS_PER_KEY, MAX_BLOCK_SIZE_BYTES, MAX_KEY_BYTES, MAX_PROPERTIES_BYTES,
    MIN_BLOCK_SIZE_BYTES,
};

/// This bit is set in tags that a reader must understand.
pub const MUST_UNDERSTAND: u16 = 0x8000;

/// The version of the layout rules (which decide where tables and blocks begin) that this crate
/// implements.
pub const LAYOUT_VERSION: u64 = 2;

/// The properties of a table. Sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// The number of entries, without range deletes.
    pub entries: u64,
    /// The number of entries of kind put.
    pub puts: u64,
    /// The number of entries of kind delete.
    pub deletes: u64,
    /// The number of range-delete fragments.
    pub range_deletes: u64,
    /// The number of distinct user keys of entries.
    pub user_keys: u64,
    /// The bytes of the user keys of all entries.
    pub key_bytes: u64,
    /// The bytes of all values, uncompressed.
    pub value_bytes: u64,
    /// The user key of the first entry, if there is one.
    pub smallest_key: Option<Vec<u8>>,
    /// The user key of the last entry, if there is one.
    pub largest_key: Option<Vec<u8>>,
    /// The table's left bound, if it is not the first user key. Range deletes extend down to it.
    pub left_bound: Option<Vec<u8>>,
    /// The smallest sequence number, including those of range deletes.
    pub smallest_seq: u64,
    /// The largest sequence number, including those of range deletes.
    pub largest_seq: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// How blocks are compressed.
    pub codec: Codec,
    /// The number of filter bits per distinct user key. 0 means that there is no filter.
    pub bits_per_key: u8,
    /// The block size of the layout.
    pub block_size_bytes: u64,
    /// The version of the layout rules.
    pub layout_version: u64,
    /// The keyspace that the table was written for, or `None` for a table that belongs to no store.
    /// Only `repair` uses it, to assign a table that no manifest refers to back to its keyspace.
    pub keyspace: Option<u32>,
}

const SMALLEST_KEY: u16 = 8;
const LARGEST_KEY: u16 = 9;
const LEFT_BOUND: u16 = 10;
const CODEC: u16 = 14 | MUST_UNDERSTAND;
const BITS_PER_KEY: u16 = 15 | MUST_UNDERSTAND;
const LAYOUT: u16 = 17 | MUST_UNDERSTAND;
const KEYSPACE: u16 = 18;

/// Properties that are reserved for features (RFC 12). A table with one of them is refused.
const MERGE_OPERATOR: u16 = 19 | MUST_UNDERSTAND;
const VALUE_LOGS: u16 = 20 | MUST_UNDERSTAND;
const EXPIRIES: u16 = 21 | MUST_UNDERSTAND;

/// The feature that a table with this property has.
#[cold]
fn feature_of(tag: u16) -> Feature {
    match tag {
        MERGE_OPERATOR => Feature::MergeOperands,
        VALUE_LOGS => Feature::ValueAddresses,
        EXPIRIES => Feature::Expiries,
        tag => Feature::Property(tag),
    }
}

/// Refuses a table of another version of the layout rules, once its property was read. `seen` has a
/// bit for each property that was read.
fn refuse_layout(p: &Properties, seen: u32, file: &str) -> Result<()> {
    if seen & 1 << (LAYOUT & !MUST_UNDERSTAND) != 0 && p.layout_version != LAYOUT_VERSION {
        return Err(TableError::UnsupportedLayout {
            file: file.to_string(),
            found: p.layout_version,
            supported: LAYOUT_VERSION,
        });
    }
    Ok(())
}

impl Properties {
    /// Reads, verifies and decodes the properties of a table with this footer, and nothing else.
    ///
    /// # Errors
    /// Storage errors, damage, or what this program does not have.
    pub fn read(file: &dyn ReadFile, footer: &Footer) -> Result<Properties> {
        let len = footer.properties_bytes;
        let at = file.len().saturating_sub(FOOTER_BYTES as u64 + len);
        let damaged = |what, expected, found| {
            Err(Damage::new(what, 0, expected, found).in_file(file.name(), at))
        };
        if !(4..=MAX_PROPERTIES_BYTES).contains(&len) {
            return damaged("length of the properties", MAX_PROPERTIES_BYTES, len);
        }
        let mut bytes = vec![0; len as usize];
        file.read_at(at, &mut bytes)?;
        let end = bytes.len() - 4;
        let (stored, found) = (bytes.as_slice().u32(end), crc32c(&bytes[..end]));
        if stored != found {
            return damaged("checksum of the properties", found.into(), stored.into());
        }
        Properties::decode(&bytes[..end], file.name(), at)
    }

    /// The raw size of all entries in bytes, as layouts count it.
    pub fn raw_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + crate::key::ENTRY_OVERHEAD_BYTES * self.entries
    }

    /// The lower end of this table's range deletes: the left bound, or else the first user key.
    pub fn left_bound(&self) -> Option<&[u8]> {
        self.left_bound.as_deref().or(self.smallest_key.as_deref())
    }

    /// Appends the stored form, without its checksum.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut put = |tag: u16, value: &[u8]| {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&(value.len() as u32).to_le_bytes());
            out.extend_from_slice(value);
        };
        let counts = [
            self.entries,
            self.puts,
            self.deletes,
            self.range_deletes,
            self.user_keys,
            self.key_bytes,
            self.value_bytes,
        ];
        for (i, count) in counts.iter().enumerate() {
            put(i as u16 + 1, &count.to_le_bytes());
        }
        for (tag, key) in [
            (SMALLEST_KEY, &self.smallest_key),
            (LARGEST_KEY, &self.largest_key),
            (LEFT_BOUND, &self.left_bound),
        ] {
            if let Some(key) = key {
                put(tag, key);
            }
        }
        put(11, &self.smallest_seq.to_le_bytes());
        put(12, &self.largest_seq.to_le_bytes());
        put(13, &self.blocks.to_le_bytes());
        put(CODEC, &[self.codec as u8]);
        put(BITS_PER_KEY, &[self.bits_per_key]);
        put(16, &self.block_size_bytes.to_le_bytes());
        put(LAYOUT, &self.layout_version.to_le_bytes());
        if let Some(keyspace) = self.keyspace {
            put(KEYSPACE, &keyspace.to_le_bytes());
        }
    }

    /// Decodes the stored form, which is at `base` of `file`.
    pub fn decode(bytes: &[u8], file: &str, base: u64) -> Result<Properties> {
        let damaged = |d: Damage| d.in_file(file, base);
        let mut p = Properties::default();
        let mut c = Cursor::new(bytes);
        let (mut last, mut seen) = (0, 0u32);
        while c.remaining() > 0 {
            let at = c.position() as u64;
            let tag = c.u16("property tag").map_err(damaged)?;
            let len = c.u32("property length").map_err(damaged)? as usize;
            let value = c.take("property", len).map_err(damaged)?;
            let number = tag & !MUST_UNDERSTAND;
            if number <= last {
                return Err(damaged(Damage::new(
                    "order of property tags",
                    at,
                    last as u64 + 1,
                    number as u64,
                )));
            }
            last = number;
            let expect = |want: usize| {
                if len == want {
                    Ok(())
                } else {
                    Err(damaged(Damage::new(
                        "property length",
                        at + 2,
                        want as u64,
                        len as u64,
                    )))
                }
            };
            let count = || expect(8).map(|()| value.u64(0));
            let byte = || expect(1).map(|()| value.u8(0));
            let key = || {
                if len <= MAX_KEY_BYTES {
                    Ok(Some(value.to_vec()))
                } else {
                    Err(damaged(Damage::new(
                        "property length",
                        at + 2,
                        MAX_KEY_BYTES as u64,
                        len as u64,
                    )))
                }
            };
            match tag {
                1 => p.entries = count()?,
                2 => p.puts = count()?,
                3 => p.deletes = count()?,
                4 => p.range_deletes = count()?,
                5 => p.user_keys = count()?,
                6 => p.key_bytes = count()?,
                7 => p.value_bytes = count()?,
                SMALLEST_KEY => p.smallest_key = key()?,
                LARGEST_KEY => p.largest_key = key()?,
                LEFT_BOUND => p.left_bound = key()?,
                11 => p.smallest_seq = count()?,
                12 => p.largest_seq = count()?,
                13 => p.blocks = count()?,
                CODEC => {
                    let number = byte()?;
                    p.codec = Codec::from_u8(number).ok_or_else(|| {
                        damaged(Damage::unsupported(Feature::Codec(number), at + 6))
                    })?;
                }
                BITS_PER_KEY => {
                    p.bits_per_key = byte()?;
                    if p.bits_per_key > MAX_BITS_PER_KEY {
                        let found = p.bits_per_key as u64;
                        return Err(damaged(Damage::new(
                            "filter bits per key",
                            at + 6,
                            MAX_BITS_PER_KEY as u64,
                            found,
                        )));
                    }
                }
                16 => p.block_size_bytes = count()?,
                LAYOUT => p.layout_version = count()?,
                KEYSPACE => {
                    expect(4)?;
                    p.keyspace = Some(value.u32(0));
                }
                _ if tag & MUST_UNDERSTAND != 0 => {
                    // If the version of the layout rules is another one too, the table is refused
                    // for that reason, which helps a user more than the name of a feature.
                    refuse_layout(&p, seen, file)?;
                    return Err(damaged(Damage::unsupported(feature_of(tag), at)));
                }
                _ => {}
            }
            if number < 32 {
                seen |= 1 << number;
            }
        }
        refuse_layout(&p, seen, file)?;
        // All fields except the keys and the keyspace are always present.
        let always = ((1u32 << 18) - 2) & !(1 << SMALLEST_KEY | 1 << LARGEST_KEY | 1 << LEFT_BOUND);
        if seen & always != always {
            return Err(damaged(Damage::new(
                "properties present",
                0,
                always as u64,
                (seen & always) as u64,
            )));
        }
        p.check().map_err(damaged)?;
        Ok(p)
    }

    fn check(&self) -> std::result::Result<(), Damage> {
        let rules = [
            ("largest entry count", self.entries <= 1 << 40, self.entries),
            (
                "user keys, puts and deletes among entries",
                {
                    let some = self.puts.checked_add(self.deletes);
                    self.user_keys <= self.entries && some.is_some_and(|s| s <= self.entries)
                },
                self.entries,
            ),
            (
                "block count",
                self.blocks <= self.entries && (self.blocks == 0) == (self.entries == 0),
                self.blocks,
            ),
            (
                "key and value bytes",
                self.key_bytes <= 1 << 48 && self.value_bytes <= 1 << 48,
                self.key_bytes,
            ),
            (
                "bounds of a table",
                self.smallest_key.is_some() == (self.entries > 0)
                    && self.smallest_key.is_some() == self.largest_key.is_some()
                    && self.smallest_key <= self.largest_key,
                self.entries,
            ),
            (
                "left bound",
                match (&self.left_bound, &self.smallest_key) {
                    (Some(left), Some(smallest)) => left <= smallest,
                    _ => true,
                },
                self.entries,
            ),
            (
                "sequence range",
                self.smallest_seq <= self.largest_seq && self.largest_seq <= MAX_SEQ,
                self.largest_seq,
            ),
            (
                "block size",
                (MIN_BLOCK_SIZE_BYTES..=MAX_BLOCK_SIZE_BYTES).contains(&self.block_size_bytes),
                self.block_size_bytes,
            ),
        ];
        for (what, kept, found) in rules {
            if !kept {
                return Err(Damage::new(what, 0, 0, found));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Properties {
        Properties {
            entries: 5,
            puts: 4,
            deletes: 1,
            user_keys: 3,
            smallest_key: Some(vec![]),
            largest_key: Some(b"z".to_vec()),
            smallest_seq: 1,
            largest_seq: 9,
            blocks: 2,
            bits_per_key: 10,
            block_size_bytes: 8192,
            layout_version: LAYOUT_VERSION,
            ..Properties::default()
        }
    }

    #[test]
    fn round_trip_and_unknown_tags() {
        let p = some();
        let mut bytes = Vec::new();
        p.encode(&mut bytes);
        assert_eq!(Properties::decode(&bytes, "t", 0).unwrap(), p);
        let known = bytes.len();
        bytes.extend_from_slice(&[100, 0, 1, 0, 0, 0, 7]);
        assert_eq!(Properties::decode(&bytes, "t", 0).unwrap(), p);
        bytes[known + 1] = 0x80;
        let e = Properties::decode(&bytes, "t", 0).unwrap_err();
        assert!(
            matches!(
                e,
                TableError::UnsupportedFeature {
                    feature: Feature::Property(0x8064),
                    ..
                }
            ),
            "{e}"
        );
        for len in 0..known {
            assert!(Properties::decode(&bytes[..len], "t", 0).is_err(), "{len}");
        }
    }

    #[test]
    fn a_keyspace_is_stored_and_may_be_missing() {
        let p = Properties {
            keyspace: Some(0x0102_0304),
            ..some()
        };
        let mut bytes = Vec::new();
        p.encode(&mut bytes);
        assert_eq!(bytes[bytes.len() - 10..], [18, 0, 4, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(Properties::decode(&bytes, "t", 0).unwrap(), p);
        let len = bytes.len();
        bytes[len - 8] = 3;
        assert!(Properties::decode(&bytes[..len - 1], "t", 0).is_err());
        assert_eq!(some().keyspace, None);
    }

    #[test]
    fn contradictions_are_damage() {
        for change in [
            |p: &mut Properties| p.user_keys = 6,
            |p: &mut Properties| p.blocks = 0,
            |p: &mut Properties| p.largest_key = None,
            |p: &mut Properties| p.smallest_seq = 10,
            |p: &mut Properties| p.block_size_bytes = 0,
        ] {
            let mut p = some();
            change(&mut p);
            let mut bytes = Vec::new();
            p.encode(&mut bytes);
            assert!(
                Properties::decode(&bytes, "t", 0)
                    .unwrap_err()
                    .is_corruption()
            );
        }
    }
}
