//! Limits of the table format, in bytes unless the name says otherwise. `docs/format/table.md`
//! documents them.
//!
//! They are constants: a reader rejects a file that exceeds them, and a writer refuses to exceed
//! them with a clear error.

/// The longest user key.
pub const MAX_KEY_BYTES: usize = 65_535;

/// The largest value: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// The largest number of entries in a block.
pub const MAX_BLOCK_ENTRIES: usize = 4096;

/// The smallest block size that options may set, in bytes before compression.
pub const MIN_BLOCK_SIZE_BYTES: u64 = 512;

/// The largest block size that options may set, in bytes before compression.
pub const MAX_BLOCK_SIZE_BYTES: u64 = 32 << 10;

/// The largest number of value bytes in a block. A block exceeds its size by at most half a page
/// (see `block::extent`) and one entry, which may be the largest possible.
pub const MAX_BLOCK_VALUE_BYTES: u64 = MAX_VALUE_BYTES as u64 + MAX_BLOCK_SIZE_BYTES + (2 << 10);

/// The largest number of tail bytes (key bytes after prefix and head) in a block, for the same
/// reason.
pub const MAX_BLOCK_TAIL_BYTES: u64 = MAX_KEY_BYTES as u64 + MAX_BLOCK_SIZE_BYTES;

/// The largest number of blocks in a table.
pub const MAX_BLOCKS: u64 = u32::MAX as u64;

/// The largest table file: 1 TiB.
pub const MAX_TABLE_BYTES: u64 = 1 << 40;

/// The largest count in the record of a table: of its bytes, entries and range deletes.
pub const MAX_TABLE_COUNT: u64 = 1 << 44;

/// The largest number of filter bits per user key.
pub const MAX_BITS_PER_KEY: u8 = 20;

/// The largest properties section.
pub const MAX_PROPERTIES_BYTES: u64 = 1 << 20;
