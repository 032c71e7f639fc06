//! Reads a table: its sections, its blocks, and what lies between damaged ones.

use siltstone_storage::ReadFile;
use siltstone_table::block::Header;
use siltstone_table::block::header::{FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED, FLAG_ZSTD};
use siltstone_table::compress::Codec;
use siltstone_table::key::seq_of;
use siltstone_table::salvage::{Expect, Piece, PieceReader, Salvage, salvage};

use super::shrank;
use crate::formats::file_bytes;
use crate::types::error::Result;

/// A table that is being read.
pub struct TableFile<'a> {
    file: &'a dyn ReadFile,
    found: Salvage,
    reader: PieceReader,
}

/// What a block says about itself. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The smallest and the largest sequence number of its entries.
    pub seqs: (u64, u64),
    /// The size of its values, uncompressed.
    pub value_bytes: u64,
    /// The size of its header and columns, uncompressed.
    pub column_bytes: u64,
    /// The length of the common prefix of its user keys.
    pub prefix_bytes: u64,
    /// How its values are compressed.
    pub values_codec: Codec,
    /// How its columns are compressed.
    pub columns_codec: Codec,
}

impl<'a> TableFile<'a> {
    /// Reads and verifies every section and every block, and finds what can be read of a damaged
    /// table, as a repair does.
    ///
    /// # Errors
    /// Those of the storage, a lack of memory, and a version or a feature that this build does not
    /// have. Damage is part of the result.
    pub fn open(file: &'a dyn ReadFile) -> Result<TableFile<'a>> {
        Ok(TableFile {
            file,
            found: salvage(file, &Expect::default())?,
            reader: PieceReader::default(),
        })
    }

    /// Everything that was found in the table.
    pub fn found(&self) -> &Salvage {
        &self.found
    }

    /// Reads a block. [`PieceReader`] has its entries.
    ///
    /// # Errors
    /// Those of the storage; damage that happened since the block was found.
    pub fn entries(&mut self, piece: &Piece) -> Result<&PieceReader> {
        self.reader.read(self.file, piece.place)?;
        Ok(&self.reader)
    }

    /// Reads what a block says about itself.
    ///
    /// # Errors
    /// Those of [`TableFile::entries`].
    pub fn block(&mut self, piece: &Piece) -> Result<BlockInfo> {
        let place = piece.place;
        let stored = file_bytes::read(self.file, place.start, place.stored_bytes());
        let stored = stored.map_err(shrank)?;
        let header = Header::parse(&stored[..], (place.anchor - place.start) as usize)
            .map_err(|d| d.in_file(self.file.name(), place.anchor))?;
        self.reader.read(self.file, place)?;
        let seqs = (0..self.reader.len()).map(|i| seq_of(self.reader.trailer(i)));
        let codec = |flag| match (header.flags & flag != 0, header.flags & FLAG_ZSTD != 0) {
            (false, _) => Codec::None,
            (true, false) => Codec::Lz4,
            (true, true) => Codec::Zstd,
        };
        Ok(BlockInfo {
            seqs: (seqs.clone().min().unwrap_or(0), seqs.max().unwrap_or(0)),
            value_bytes: header.value_bytes as u64,
            column_bytes: header.end as u64,
            prefix_bytes: header.prefix_len as u64,
            values_codec: codec(FLAG_VALUES_COMPRESSED),
            columns_codec: codec(FLAG_COLUMNS_COMPRESSED),
        })
    }
}
