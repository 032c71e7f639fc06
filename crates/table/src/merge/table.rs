//! A table as an input of a merge: it is opened from a file and read from front to back.
//!
//! A merge needs neither filter nor cache, only the locations of the blocks, the range deletes and
//! the properties. So an executor needs only files, wherever it runs, and no open store.
//!
//! Invariants: the locations of blocks were checked to ascend within the file when the index was
//! decoded. The checksum of every section was verified before anything in it was trusted.
//!
//! Threading: immutable and shared.

use std::ops::Range;
use std::sync::Arc;

use siltstone_storage::ReadFile;

use crate::checksum::crc32c;
use crate::coding::Bytes;
use crate::error::{Damage, Result};
use crate::footer::Footer;
use crate::index::{Index, Place};
use crate::job::KeyBounds;
use crate::key::HIGHEST_TRAILER;
use crate::properties::Properties;
use crate::rangedel::RangeDeletes;

/// A table that is opened to be read completely.
pub struct InputTable {
    file: Arc<dyn ReadFile>,
    footer: Footer,
    index: Index,
    range_deletes: RangeDeletes,
    properties: Properties,
}

/// Reads a section of `len` bytes, of which the last four are its checksum, and verifies it.
fn section(file: &dyn ReadFile, offset: u64, len: u64, what: &'static str) -> Result<Vec<u8>> {
    // The length is at most the file's, because the footer's lengths add up to it.
    let mut bytes = vec![0; len as usize];
    file.read_at(offset, &mut bytes)?;
    let Some(end) = bytes.len().checked_sub(4) else {
        return Err(Damage::new(what, 0, 4, len).in_file(file.name(), offset));
    };
    let (stored, found) = (bytes.as_slice().u32(end), crc32c(&bytes[..end]));
    if stored != found {
        return Err(
            Damage::new(what, end as u64, stored as u64, found as u64).in_file(file.name(), offset)
        );
    }
    bytes.truncate(end);
    Ok(bytes)
}

impl InputTable {
    /// Opens a table and reads footer, index, range deletes and properties.
    ///
    /// # Errors
    /// Storage errors, and damage with file and offset.
    pub fn open(file: Arc<dyn ReadFile>) -> Result<InputTable> {
        let name = file.name().to_string();
        let footer = Footer::read(&*file)?;
        let [
            blocks,
            filter,
            index_bytes,
            range_deletes_bytes,
            properties_bytes,
        ] = footer.sections();
        let index_at = blocks + filter;
        let index = section(&*file, index_at, index_bytes, "checksum of the index")?;
        let index = Index::decode(&index, blocks).map_err(|d| d.in_file(&name, index_at))?;
        let range_deletes_at = index_at + index_bytes;
        let range_deletes = if range_deletes_bytes == 0 {
            RangeDeletes::default()
        } else {
            let bytes = section(
                &*file,
                range_deletes_at,
                range_deletes_bytes,
                "checksum of the range deletes",
            )?;
            RangeDeletes::decode(&bytes).map_err(|d| d.in_file(&name, range_deletes_at))?
        };
        let properties_at = range_deletes_at + range_deletes_bytes;
        let bytes = section(
            &*file,
            properties_at,
            properties_bytes,
            "checksum of the properties",
        )?;
        let properties = Properties::decode(&bytes, &name, properties_at)?;
        Ok(InputTable {
            file,
            footer,
            index,
            range_deletes,
            properties,
        })
    }

    /// The file.
    pub fn file(&self) -> &Arc<dyn ReadFile> {
        &self.file
    }

    /// The length of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.footer.file_bytes()
    }

    /// The digest in the footer.
    pub fn digest(&self) -> u64 {
        self.footer.digest
    }

    /// The properties of the table.
    pub fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Its range deletes.
    pub fn range_deletes(&self) -> &RangeDeletes {
        &self.range_deletes
    }

    /// The first and the last user key, or `None` if there is no entry.
    pub fn key_bounds(&self) -> Option<(&[u8], &[u8])> {
        self.properties
            .smallest_key
            .as_deref()
            .zip(self.properties.largest_key.as_deref())
    }

    /// The number of blocks.
    pub fn block_count(&self) -> usize {
        self.index.len()
    }

    /// The location of a block.
    pub fn place(&self, block: usize) -> Place {
        self.index.place(block)
    }

    /// The first block that can contain `user_key` or a greater key.
    pub fn seek_block(&self, user_key: &[u8]) -> usize {
        self.index.find(user_key, HIGHEST_TRAILER)
    }

    /// Whether the table has keys within `bounds`, according to its first and last user key.
    pub fn overlaps(&self, bounds: &KeyBounds) -> bool {
        self.key_bounds().is_some_and(|(first, last)| {
            let is_after = bounds.end.as_deref().is_some_and(|end| end <= first);
            !is_after && bounds.start.as_slice() <= last
        })
    }

    /// The blocks that can contain keys of `bounds`.
    pub fn blocks_of(&self, bounds: &KeyBounds) -> Range<usize> {
        let start = self.seek_block(&bounds.start);
        let end = match &bounds.end {
            // The block in which the end would be may hold keys before it.
            Some(end) => (self.seek_block(end) + 1).min(self.block_count()),
            None => self.block_count(),
        };
        start..end.max(start)
    }

    /// The stored bytes of the blocks that can contain keys of `bounds`.
    pub fn stored_bytes(&self, bounds: &KeyBounds) -> u64 {
        let blocks = self.blocks_of(bounds);
        match blocks.clone().next_back() {
            Some(last) => self.place(last).end - self.place(blocks.start).start,
            None => 0,
        }
    }

    /// The stored bytes of header, columns and checksum of the blocks that can contain keys of
    /// `bounds`.
    pub fn columns_bytes(&self, bounds: &KeyBounds) -> u64 {
        let columns = |block| {
            let place = self.place(block);
            place.end - place.anchor
        };
        self.blocks_of(bounds).map(columns).sum()
    }

    /// The separator of a block, which is at or after its last entry and before the first entry of
    /// the next block: user key and trailer.
    pub fn separator(&self, block: usize) -> (Vec<u8>, u64) {
        self.index.separator(block)
    }
}
