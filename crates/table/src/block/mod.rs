//! Blocks: the columnar unit in which a table stores, verifies, caches and searches entries.
//!
//! ```text
//! values | HEADER | heads | tails | tail_ends | pads | seqs | kinds | value_starts | prefix
//!        | padding | crc32c
//! ```
//! A key is the block's common prefix, a fixed-width head and a tail. No entry depends on the one
//! before it: a search touches two or three cache lines, and a device can decode each entry in its
//! own thread. The header contains the checksum of the values, and the block's own checksum covers
//! header and columns. So a lookup that finds no value reads no values, and the block's checksum
//! still covers the whole block. See `docs/format/table.md` for the bytes.
//!
//! A block is a pure function of its entries and of the offset where it begins, except that
//! compressed bytes only need to decode to them.
//!
//! Parts: [`extent`] decides where blocks end, [`encode`] builds, [`header`] parses, [`search`]
//! looks up, [`window`] decodes some entries for a scan, [`decode`] decodes a whole block.

pub mod decode;
pub mod encode;
pub mod extent;
pub mod header;
pub mod search;
#[cfg(test)]
mod tests;
pub mod window;

pub use decode::{Block, Decoded, open_columns, open_stored};
pub use encode::{BlockBuilder, Stored};
pub use extent::{BlockEnd, BlockRule, Extent, PAGE_BYTES};
pub use header::{CHECKSUM_BYTES, HEADER_BYTES, Header};
pub use search::{Entry, View};
pub use window::Window;
