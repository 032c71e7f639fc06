//! Tables and jobs of siltstone: bytes in, bytes out. The crate has no threads of its own and does
//! not know the engine.
//!
//! A table is an immutable sorted file of entries:
//! `blocks | filter | index | range deletes | properties | footer`. [`TableWriter`] writes one from
//! a stream of entries, [`TableAssembler`] from finished blocks, and [`TableReader`] looks keys up
//! in it. `docs/format/table.md` describes the bytes, `docs/rfc/0002a-table-format.md` the reasons.
//!
//! Rules of the crate: bytes from disk are checked before they are trusted, and never cause a
//! panic, an unbounded allocation or an access out of bounds. Damage is a
//! [`TableError::Corruption`] that names the file, the offset, and what was expected and found.

#![deny(unsafe_code)]

pub mod assembly;
pub mod block;
pub mod check;
pub mod checksum;
pub mod coding;
pub mod compress;
pub mod error;
pub mod exec;
pub mod fields;
pub mod filter;
pub mod footer;
pub mod index;
pub mod job;
pub mod key;
pub mod layout;
pub mod limits;
pub mod merge;
pub mod properties;
pub mod rangedel;
pub mod reader;
pub mod retain;
pub mod salvage;
#[cfg(test)]
pub(crate) mod testing;
pub mod writer;

pub use assembly::TableAssembler;
pub use compress::Codec;
pub use error::{Damage, Result, TableError};
pub use key::Kind;
pub use reader::{BlockCache, NoCache, ReaderOptions, TableIter, TableReader, Value, Verify};
pub use writer::{TableSummary, TableWriter, WriterOptions};
