//! The options of a keyspace, as the manifest and the log's create record keep them.
//!
//! Invariants: encoding and decoding gives the same options, including those that this build does
//! not know and need not understand.
//!
//! Threading: plain values.

use std::collections::BTreeMap;

use crate::types::error::Result;
use crate::types::fields::{
    Fields, MUST_UNDERSTAND, Writer, malformed, unknown_tag, unsupported_feature,
};

/// Tags of a keyspace's stored options. A value is a `u64` unless its tag says otherwise.
pub mod option {
    use super::MUST_UNDERSTAND as M;
    /// The size at which a memtable is sealed, in bytes.
    pub const MEMTABLE_BYTES: u16 = 1;
    /// The target size of a table, in raw bytes (T).
    pub const TABLE_BYTES: u16 = 2;
    /// The size of a block, in bytes before compression (B).
    pub const BLOCK_BYTES: u16 = 3;
    /// The target size of level 1, in bytes.
    pub const LEVEL1_BYTES: u16 = 4;
    /// How many times larger the target of each further level is.
    pub const LEVEL_FACTOR: u16 = 5;
    /// Level-0 runs that make a compaction due.
    pub const L0_TRIGGER_COUNT: u16 = 6;
    /// Level-0 runs at which writers are slowed down.
    pub const L0_SLOWDOWN_COUNT: u16 = 7;
    /// Level-0 runs at which writers stop.
    pub const L0_STOP_COUNT: u16 = 8;
    /// Sealed memtables at which writers stop.
    pub const MEMTABLE_STOP_COUNT: u16 = 13;
    // Tags 9 to 12 were assigned to options that were never written.
    /// How targets of levels are chosen: 0 fixed, 1 dynamic.
    pub const LEVEL_TARGETS: u16 = 16;
    /// Filter bits for each key: one byte for each level; the last one is that of all deeper
    /// levels.
    pub const FILTER_BITS_BY_LEVEL: u16 = 17;
    /// The codec (a number of the table format) and its compression level: two bytes for each
    /// level; the last pair is that of all deeper levels.
    pub const CODECS_BY_LEVEL: u16 = 18;
    /// The shape of the keyspace: 0 levelled, 1 deferred, 2 memory-speed. Options with another
    /// value than 0 are refused.
    pub const SHAPE: u16 = M | 14;
    /// Whether its writes go to the log: 1 yes, 0 no. Options with another value than 1 are
    /// refused.
    pub const LOGGED: u16 = M | 15;

    /// Bytes that compactions have to read at which writers are slowed down.
    pub const PENDING_SLOWDOWN_BYTES: u16 = 20;
    /// Bytes that compactions have to read at which writers stop.
    pub const PENDING_STOP_BYTES: u16 = 21;

    /// The merge operator: its version u32, then its name in UTF-8 (1 to 255 bytes). Reserved:
    /// options with it are refused.
    pub const MERGE_OPERATOR: u16 = M | 19;

    /// Tags with the must-understand bit that this build knows.
    pub(super) const REQUIRED_KNOWN: [u16; 2] = [SHAPE, LOGGED];
}

/// The options of a keyspace as the manifest keeps them: values by tag. Tags that this build does
/// not know and need not understand are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOptions {
    values: BTreeMap<u16, Vec<u8>>,
}

impl StoredOptions {
    /// No options. Every value is the default.
    pub fn new() -> StoredOptions {
        StoredOptions::default()
    }

    /// The number stored under `tag`; `None` if there is none, or if its length is not 8 bytes.
    pub fn get_u64(&self, tag: u16) -> Option<u64> {
        Some(u64::from_le_bytes(
            self.values.get(&tag)?.as_slice().try_into().ok()?,
        ))
    }

    /// Stores a number.
    pub fn set_u64(&mut self, tag: u16, value: u64) {
        self.values.insert(tag, value.to_le_bytes().to_vec());
    }

    /// The bytes stored under `tag`.
    pub fn get(&self, tag: u16) -> Option<&[u8]> {
        self.values.get(&tag).map(|v| v.as_slice())
    }

    /// Stores bytes.
    pub fn set(&mut self, tag: u16, value: &[u8]) {
        self.values.insert(tag, value.to_vec());
    }

    /// Removes what is stored under `tag`.
    pub fn remove(&mut self, tag: u16) {
        self.values.remove(&tag);
    }

    /// All tags and values, in the order of the tags.
    pub fn iter(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.values
            .iter()
            .map(|(tag, value)| (*tag, value.as_slice()))
    }

    /// The options as bytes: fields {tag u16, length u32, value} in ascending order of tags. The
    /// log's create record uses the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        self.encode_to(&mut out);
        out.bytes
    }

    /// Reads what [`StoredOptions::encode`] made.
    ///
    /// # Errors
    /// `Corruption` if the bytes are not fields, `Unsupported` for an unknown tag that must be
    /// understood.
    pub fn decode(bytes: &[u8]) -> Result<StoredOptions> {
        let mut options = StoredOptions::default();
        for field in Fields::new(bytes) {
            let (tag, value) = field?;
            if tag & MUST_UNDERSTAND != 0 && !option::REQUIRED_KNOWN.contains(&tag) {
                let place = "a keyspace's options";
                return Err(match tag {
                    option::MERGE_OPERATOR => unsupported_feature(place, "merge operands"),
                    tag => unknown_tag(place, tag),
                });
            }
            check_shape(tag, value)?;
            if options.values.insert(tag, value.to_vec()).is_some() {
                return Err(malformed(format!("option {tag:#06x} occurs twice")));
            }
        }
        Ok(options)
    }

    pub(crate) fn encode_to(&self, out: &mut Writer) {
        for (tag, value) in &self.values {
            out.field(*tag, value);
        }
    }
}

/// Refuses a keyspace of a shape that this build does not have, which it would open as a levelled
/// one with a log.
fn check_shape(tag: u16, value: &[u8]) -> Result<()> {
    let (known, feature) = match tag {
        option::SHAPE => (0u64, "another shape than levelled"),
        option::LOGGED => (1, "no log"),
        _ => return Ok(()),
    };
    if value == known.to_le_bytes() {
        return Ok(());
    }
    Err(unsupported_feature("a keyspace", feature)
        .expected(format_args!("{known} in option {tag:#06x}"))
        .found(format_args!("{value:?}")))
}
