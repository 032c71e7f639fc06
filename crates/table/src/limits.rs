//! Limits of the table format, in bytes unless the name says otherwise. Documented in `docs/format/table.md`.
//!
//! They are constants: what a reader may believe about a file, and what a writer refuses with a clear error.

/// Longest user key.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Largest value: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Most entries in a block.
pub const MAX_BLOCK_ENTRIES: usize = 4096;

/// Smallest block size that options may ask for, in raw bytes.
pub const MIN_BLOCK_SIZE_BYTES: u64 = 512;

/// Largest block size that options may ask for, in raw bytes. 32 KiB of entries of 12 raw bytes are 2731, so that a
/// block never exceeds [`MAX_BLOCK_ENTRIES`].
pub const MAX_BLOCK_SIZE_BYTES: u64 = 32 << 10;

/// Most value bytes in a block: a block starts at most one entry after it is full, and that one may be the largest.
pub const MAX_BLOCK_VALUE_BYTES: u64 = MAX_VALUE_BYTES as u64 + MAX_BLOCK_SIZE_BYTES;

/// Most tail bytes (key bytes after prefix and head) in a block, by the same argument.
pub const MAX_BLOCK_TAIL_BYTES: u64 = MAX_KEY_BYTES as u64 + MAX_BLOCK_SIZE_BYTES;

/// Most blocks in a table.
pub const MAX_BLOCKS: u64 = u32::MAX as u64;

/// Largest table file: 1 TiB.
pub const MAX_TABLE_BYTES: u64 = 1 << 40;

/// Most filter bits per user key.
pub const MAX_BITS_PER_KEY: u8 = 20;

/// Largest properties section.
pub const MAX_PROPERTIES_BYTES: u64 = 1 << 20;

const _: () =
    assert!(MAX_BLOCK_SIZE_BYTES / crate::key::ENTRY_OVERHEAD_BYTES < MAX_BLOCK_ENTRIES as u64);
