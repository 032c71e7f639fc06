//! Assembles one table file from finished blocks.
//!
//! A [`TableAssembler`] is given the stored bytes of a table's blocks, and of each block what the
//! index says of it. It writes what follows the blocks: filter, index, range deletes, properties
//! and footer. [`TableWriter`](crate::writer::TableWriter) makes blocks of entries and has an
//! assembler for them. An executor that computes whole blocks elsewhere has one too, so there is
//! one path from blocks to a table.
//!
//! The calls for one table are, in this order: [`append`](TableAssembler::append) and
//! [`push_block`](TableAssembler::push_block) for all blocks, in any mixture; then
//! [`set_entries`](TableAssembler::set_entries); then
//! [`write_filter`](TableAssembler::write_filter), if there is a filter; then
//! [`finish`](TableAssembler::finish). Left bound and range deletes may be set at any time before.
//!
//! Invariants: the written bytes are a function of the blocks, of what the caller says of them, and
//! of the options. They do not depend on how the bytes of the blocks are divided between calls. The
//! assembler does not look into blocks: the caller answers for their bytes, checksums and counts.
//! Memory is bounded by the output buffer, the index and the filter.
//!
//! Bytes are written in large pieces. Nothing is synced: a finished table is durable when the
//! caller has synced file and folder. But write-back is started every 2 MiB, so that the disk works
//! during the merge and the caller's final sync finds little left. Measured for a 64 MiB table,
//! that sync takes 2 ms instead of 35, and the whole merge takes a third less time.
//!
//! Threading: one owner.

use std::sync::Arc;

use siltstone_storage::{WriteByDescriptor, WriteFile};

use crate::block::{CHECKSUM_BYTES, HEADER_BYTES, PAGE_BYTES};
use crate::checksum::{Digest, crc32c};
use crate::compress::Codec;
use crate::error::{Damage, Result, TableError};
use crate::filter::{FILTER_BLOCK_BYTES, Filter, filter_blocks};
use crate::footer::Footer;
use crate::index::IndexBuilder;
use crate::key::compare_internal;
use crate::limits::{MAX_BITS_PER_KEY, MAX_BLOCK_SIZE_BYTES, MAX_KEY_BYTES, MIN_BLOCK_SIZE_BYTES};
use crate::properties::{LAYOUT_VERSION, Properties};
use crate::rangedel::{RangeDelete, RangeDeletes, stored_key_bytes};

/// Bytes that are given in pieces of this size or larger are passed to the file without a copy.
pub const DIRECT_BYTES: usize = 1 << 20;

/// Write-back is started after this many bytes.
const WRITE_BEHIND_BYTES: u64 = 2 << 20;

/// How a table is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Filter bits per distinct user key, 0 to 20. 0 means no filter.
    pub bits_per_key: u8,
    /// How blocks are compressed.
    pub codec: Codec,
    /// The codec's level, one of [`Codec::levels`].
    pub level: u8,
    /// The block size of the layout in bytes before compression, 512 to 32768. It is stored as a
    /// property.
    pub block_size_bytes: u64,
    /// The number of bytes that are collected before each append to the file. Appends end at
    /// multiples of it, except around pieces of [`DIRECT_BYTES`] or more and at the end of the
    /// file.
    pub write_piece_bytes: usize,
    /// The keyspace that the table is written for (a property), or `None` for a table that belongs
    /// to no store.
    pub keyspace: Option<u32>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        WriterOptions {
            bits_per_key: 10,
            codec: Codec::None,
            level: 0,
            block_size_bytes: 4 << 10,
            write_piece_bytes: 2 << 20,
            keyspace: None,
        }
    }
}

impl WriterOptions {
    /// Checks that every option is within its limits.
    fn check(&self) -> Result<()> {
        if self.bits_per_key > MAX_BITS_PER_KEY {
            return Err(TableError::Limit {
                what: "filter bits per key",
                limit: MAX_BITS_PER_KEY as u64,
                found: self.bits_per_key as u64,
            });
        }
        if self.block_size_bytes > MAX_BLOCK_SIZE_BYTES {
            return Err(TableError::Limit {
                what: "block size in bytes",
                limit: MAX_BLOCK_SIZE_BYTES,
                found: self.block_size_bytes,
            });
        }
        if self.block_size_bytes < MIN_BLOCK_SIZE_BYTES {
            return Err(TableError::Misuse(
                "a block size must be at least 512 bytes",
            ));
        }
        Ok(())
    }
}

/// What the manifest and an outcome record of a finished table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSummary {
    /// Counts, bounds and sequence range, as stored in the table.
    pub properties: Properties,
    /// The raw size of all entries in bytes.
    pub raw_bytes: u64,
    /// The size of the file in bytes.
    pub file_bytes: u64,
    /// The digest in the footer.
    pub digest: u64,
    /// The start of the first range delete, if there is one.
    pub range_delete_start: Option<Vec<u8>>,
    /// The (exclusive) end of the last range delete, if there is one.
    pub range_delete_end: Option<Vec<u8>>,
}

/// A finished block, as the index and the digest of a table have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedBlock<'a> {
    /// The offset of its header in the file. Its values begin where the block before it ends.
    pub anchor: u64,
    /// The offset of its end in the file, after the checksum.
    pub end: u64,
    /// The checksum at its end.
    pub checksum: u32,
    /// The user key of its separator (see [`crate::index`]).
    pub separator: &'a [u8],
    /// The trailer of its separator.
    pub separator_trailer: u64,
}

/// Counts and bounds of the entries of a table. Range deletes are not part of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryCounts {
    /// The number of entries.
    pub entries: u64,
    /// The number of entries of kind put.
    pub puts: u64,
    /// The number of entries of kind delete.
    pub deletes: u64,
    /// The number of distinct user keys.
    pub user_keys: u64,
    /// The bytes of the user keys of all entries.
    pub key_bytes: u64,
    /// The bytes of all values, uncompressed.
    pub value_bytes: u64,
    /// The smallest sequence number, or `u64::MAX` if there is no entry.
    pub smallest_seq: u64,
    /// The largest sequence number, or 0 if there is no entry.
    pub largest_seq: u64,
    /// The user key of the first entry, if there is one.
    pub smallest_key: Option<Vec<u8>>,
    /// The user key of the last entry, if there is one.
    pub largest_key: Option<Vec<u8>>,
}

impl Default for EntryCounts {
    /// No entries.
    fn default() -> EntryCounts {
        EntryCounts {
            entries: 0,
            puts: 0,
            deletes: 0,
            user_keys: 0,
            key_bytes: 0,
            value_bytes: 0,
            smallest_seq: u64::MAX,
            largest_seq: 0,
            smallest_key: None,
            largest_key: None,
        }
    }
}

impl EntryCounts {
    /// The raw size of the entries in bytes, as layouts count it.
    pub fn raw_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + crate::key::ENTRY_OVERHEAD_BYTES * self.entries
    }
}

/// The filter of a table (see [`crate::filter`]).
#[derive(Clone, Copy, Debug)]
pub enum FilterBytes<'a> {
    /// It is built from the hashes of the distinct user keys, each of which occurs once.
    Hashes(&'a [u64]),
    /// It is built already: the stored blocks of the filter, without a checksum.
    Stored(&'a [u8]),
}

/// The buffers of a finished table, for the next one.
#[derive(Default)]
pub struct AssemblyBuffers {
    out: Vec<u8>,
}

/// A table that is assembled from finished blocks. See the module.
pub struct TableAssembler {
    file: Arc<dyn WriteFile>,
    options: WriterOptions,
    /// Bytes that were not yet written.
    pub(crate) out: Vec<u8>,
    /// The number of bytes of the table before `out`.
    flushed_bytes: u64,
    /// The number of bytes of the table whose write-back was started.
    behind_bytes: u64,
    /// The end of the last block in the index.
    blocks_end: u64,
    /// Whether something was written that follows the blocks.
    are_blocks_ended: bool,
    filter_bytes: u64,
    index: IndexBuilder,
    digest: Digest,
    range_deletes: RangeDeletes,
    properties: Properties,
}

impl TableAssembler {
    /// An assembler of a table in `file`, whose position must be 0.
    ///
    /// # Errors
    /// If an option is outside its limits, or if the file has bytes already.
    pub fn new(file: Arc<dyn WriteFile>, options: WriterOptions) -> Result<TableAssembler> {
        TableAssembler::with_buffers(file, options, AssemblyBuffers::default())
    }

    /// As [`TableAssembler::new`], but reuses the buffers of a finished table, so that their pages
    /// are not faulted in again.
    ///
    /// # Errors
    /// As [`TableAssembler::new`].
    pub fn with_buffers(
        file: Arc<dyn WriteFile>,
        options: WriterOptions,
        buffers: AssemblyBuffers,
    ) -> Result<TableAssembler> {
        options.check()?;
        if file.position() != 0 {
            return Err(TableError::Misuse(
                "a table must start at its file's first byte",
            ));
        }
        let AssemblyBuffers { mut out } = buffers;
        out.clear();
        Ok(TableAssembler {
            file,
            options,
            out,
            flushed_bytes: 0,
            behind_bytes: 0,
            blocks_end: 0,
            are_blocks_ended: false,
            filter_bytes: 0,
            index: IndexBuilder::new(),
            digest: Digest::new(),
            range_deletes: RangeDeletes::default(),
            properties: Properties {
                codec: options.codec,
                bits_per_key: options.bits_per_key,
                block_size_bytes: options.block_size_bytes,
                layout_version: LAYOUT_VERSION,
                keyspace: options.keyspace,
                smallest_seq: u64::MAX,
                ..Properties::default()
            },
        })
    }

    /// The name of the table's file.
    pub fn file_name(&self) -> &str {
        self.file.name()
    }

    /// The options of the table.
    #[inline(always)]
    pub fn options(&self) -> &WriterOptions {
        &self.options
    }

    /// The number of bytes of the table so far, and thus the offset of the next one that is
    /// appended.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.flushed_bytes + self.out.len() as u64
    }

    /// The number of blocks so far.
    pub fn block_count(&self) -> usize {
        self.index.len()
    }

    /// The memory in bytes for data that is not written yet, for the index, and of the file.
    pub fn buffer_bytes(&self) -> u64 {
        (self.out.capacity() + self.index.memory_bytes()) as u64 + self.file.buffer_bytes()
    }

    /// Appends the next bytes of the table's blocks. They may be any pieces of all blocks, one
    /// after the other, so a block may be divided between calls. Pieces of [`DIRECT_BYTES`] or more
    /// are passed to the file at once, together with smaller ones before them, and are not copied.
    /// If such pieces end at multiples of [`WriterOptions::write_piece_bytes`], the page cache
    /// takes whole huge pages for them.
    ///
    /// # Errors
    /// If the file cannot be written, or if the filter was already written. After an error the
    /// table cannot be continued.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        if self.are_blocks_ended {
            return Err(TableError::Misuse(
                "bytes of blocks must be appended before the filter",
            ));
        }
        self.put(bytes)
    }

    /// Appends the next `len` bytes of the table's blocks, which `write` puts into the file by
    /// itself: see [`WriteFile::append_by_descriptor`]. Returns false, and does not call `write`,
    /// if the file does not allow that now, or if bytes were collected that are not written yet.
    ///
    /// # Errors
    /// As [`TableAssembler::append`], and those of `write`.
    pub fn append_by_descriptor(
        &mut self,
        len: u64,
        write: &mut WriteByDescriptor<'_>,
    ) -> Result<bool> {
        if self.are_blocks_ended {
            return Err(TableError::Misuse(
                "bytes of blocks must be appended before the filter",
            ));
        }
        if !self.out.is_empty() || !self.file.append_by_descriptor(len, write)? {
            return Ok(false);
        }
        self.flushed_bytes += len;
        // Nothing of it is in the page cache.
        self.behind_bytes = self.flushed_bytes / PAGE_BYTES * PAGE_BYTES;
        Ok(true)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.len() >= DIRECT_BYTES {
            return self.put_directly(bytes);
        }
        self.out.extend_from_slice(bytes);
        self.flush_if_full()
    }

    /// Writes everything that was collected, and then `bytes`, which are not copied.
    pub(crate) fn put_directly(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.append(&[&self.out, bytes])?;
        self.flushed_bytes += (self.out.len() + bytes.len()) as u64;
        self.out.clear();
        self.write_behind();
        Ok(())
    }

    /// Starts write-back of the written bytes, once there are enough of them.
    fn write_behind(&mut self) {
        // A page that is still being filled would be written twice.
        let whole_pages = self.flushed_bytes / PAGE_BYTES * PAGE_BYTES;
        let waiting = whole_pages - self.behind_bytes;
        if waiting >= WRITE_BEHIND_BYTES {
            self.file.start_writeback(self.behind_bytes, waiting);
            self.behind_bytes = whole_pages;
        }
    }

    /// Writes whole pieces, if at least one was collected.
    #[inline]
    pub(crate) fn flush_if_full(&mut self) -> Result<()> {
        match self.out.len() >= self.options.write_piece_bytes {
            true => self.flush_whole_pieces(),
            false => Ok(()),
        }
    }

    /// Writes what was collected up to the last multiple of the piece size. With pieces of 2 MiB
    /// that begin at multiples of 2 MiB, the page cache takes one huge page for each, which a
    /// reader's map can map as one: a random read then misses neither the TLB nor its page tables.
    fn flush_whole_pieces(&mut self) -> Result<()> {
        let piece = self.options.write_piece_bytes.max(1) as u64;
        let end = self.bytes() / piece * piece;
        self.flush_part(end.saturating_sub(self.flushed_bytes) as usize)
    }

    /// Writes the first `len` bytes of what was collected.
    fn flush_part(&mut self, len: usize) -> Result<()> {
        if len > 0 {
            self.file.append(&[&self.out[..len]])?;
            self.flushed_bytes += len as u64;
            self.out.copy_within(len.., 0);
            self.out.truncate(self.out.len() - len);
            self.write_behind();
        }
        Ok(())
    }

    /// Adds the next block to index and digest. Its bytes may be appended before or after this
    /// call.
    ///
    /// # Errors
    /// If the block cannot follow the one before it, if the table becomes too large, or if the
    /// filter was already written. After an error the table cannot be continued.
    pub fn push_block(&mut self, block: &FinishedBlock<'_>) -> Result<()> {
        if self.are_blocks_ended {
            return Err(TableError::Misuse("blocks must be added before the filter"));
        }
        let least = (HEADER_BYTES + CHECKSUM_BYTES) as u64;
        if block.anchor < self.blocks_end || block.end < block.anchor.saturating_add(least) {
            return Err(TableError::Misuse(
                "a block must begin where the last one ends, and contain its header and checksum",
            ));
        }
        let (key, trailer) = (block.separator, block.separator_trailer);
        if key.len() > MAX_KEY_BYTES {
            return Err(TableError::Limit {
                what: "length of a separator in bytes",
                limit: MAX_KEY_BYTES as u64,
                found: key.len() as u64,
            });
        }
        let last = self.index.last_separator();
        if last.is_some_and(|(k, t)| compare_internal(k, t, key, trailer).is_ge()) {
            return Err(TableError::Misuse("separators of blocks must ascend"));
        }
        self.add_block(block)
    }

    /// [`TableAssembler::push_block`] for the writer of this crate, whose blocks follow each other
    /// and whose separators ascend, because it checks the order of entries.
    pub(crate) fn add_block(&mut self, block: &FinishedBlock<'_>) -> Result<()> {
        let (separator, trailer) = (block.separator, block.separator_trailer);
        self.index
            .push(block.anchor, block.end, separator, trailer)?;
        self.digest.push(block.checksum);
        self.properties.blocks += 1;
        self.blocks_end = block.end;
        Ok(())
    }

    /// Sets counts and bounds of the table's entries. Without this call, the table has none.
    pub fn set_entries(&mut self, counts: EntryCounts) {
        let p = &mut self.properties;
        p.entries = counts.entries;
        p.puts = counts.puts;
        p.deletes = counts.deletes;
        p.user_keys = counts.user_keys;
        p.key_bytes = counts.key_bytes;
        p.value_bytes = counts.value_bytes;
        p.smallest_seq = counts.smallest_seq;
        p.largest_seq = counts.largest_seq;
        p.smallest_key = counts.smallest_key;
        p.largest_key = counts.largest_key;
    }

    /// Sets the table's range deletes. They are fragments as made by [`crate::rangedel::joined`],
    /// clipped to the table.
    ///
    /// # Errors
    /// If they are not in order.
    pub fn set_range_deletes(&mut self, fragments: Vec<RangeDelete>) -> Result<()> {
        if stored_key_bytes(fragments.iter().map(|f| f.start.len() + f.end.len())).is_none() {
            return Err(TableError::Misuse(
                "the range deletes of a table have more than 4 GiB of keys",
            ));
        }
        self.range_deletes = RangeDeletes::new(fragments).map_err(|_: Damage| {
            TableError::Misuse("range deletes must be in order, and those of one number disjoint")
        })?;
        Ok(())
    }

    /// Sets the table's left bound, if it is not its first user key.
    pub fn set_left_bound(&mut self, bound: &[u8]) {
        self.properties.left_bound = Some(bound.to_vec());
    }

    /// The length of the stored filter without its checksum. It is 0 if the table has no filter: if
    /// it has 0 bits per key, or no entries.
    pub fn filter_len(&self) -> u64 {
        let p = &self.properties;
        match p.entries {
            0 => 0,
            _ => filter_blocks(p.user_keys, p.bits_per_key) * FILTER_BLOCK_BYTES as u64,
        }
    }

    /// Writes the filter. Call this once, after all blocks and [`TableAssembler::set_entries`]. A
    /// table that has no filter ([`TableAssembler::filter_len`]) does not need this call.
    ///
    /// # Errors
    /// If the filter is not one of as many user keys as the table has, if the blocks do not end
    /// with the appended bytes, or if the file cannot be written. After an error the table cannot
    /// be continued.
    pub fn write_filter(&mut self, filter: FilterBytes<'_>) -> Result<()> {
        if self.filter_bytes > 0 {
            return Err(TableError::Misuse("a table's filter must be written once"));
        }
        self.end_blocks()?;
        let len = self.filter_len();
        let is_of_table = match filter {
            FilterBytes::Hashes(hashes) if len > 0 => {
                hashes.len() as u64 == self.properties.user_keys
            }
            FilterBytes::Hashes(hashes) => hashes.is_empty(),
            FilterBytes::Stored(bytes) => bytes.len() as u64 == len,
        };
        if !is_of_table {
            return Err(TableError::Misuse(
                "a table's filter must be one of as many user keys as the table has",
            ));
        }
        if len == 0 {
            return Ok(());
        }
        self.filter_bytes = match filter {
            FilterBytes::Hashes(hashes) => {
                let mut filter = Filter::empty(hashes.len() as u64, self.options.bits_per_key);
                filter.insert_all(hashes);
                self.section(|out| filter.encode(out)).0
            }
            FilterBytes::Stored(bytes) => {
                self.put(bytes)?;
                self.put(&crc32c(bytes).to_le_bytes())?;
                (bytes.len() + CHECKSUM_BYTES) as u64
            }
        };
        Ok(())
    }

    /// Ends the blocks, whose bytes must all have been appended.
    fn end_blocks(&mut self) -> Result<()> {
        if !self.are_blocks_ended && self.blocks_end != self.bytes() {
            return Err(TableError::Misuse(
                "the last block of a table must end with the appended bytes",
            ));
        }
        self.are_blocks_ended = true;
        Ok(())
    }

    /// Checks that the parts of the table agree.
    fn check(&self) -> Result<()> {
        let p = &self.properties;
        let has_entries = p.entries > 0;
        if !has_entries && self.range_deletes.is_empty() {
            return Err(TableError::Misuse(
                "a table must have an entry or a range delete",
            ));
        }
        let are_any = [
            p.blocks > 0,
            p.user_keys > 0,
            p.smallest_key.is_some(),
            p.largest_key.is_some(),
        ];
        if are_any != [has_entries; 4] {
            return Err(TableError::Misuse(
                "a table must have blocks and bounds of keys if it has entries, and only then",
            ));
        }
        if p.left_bound.is_some() && p.left_bound > p.smallest_key && p.smallest_key.is_some() {
            return Err(TableError::Misuse(
                "a table's left bound must not lie above its first user key",
            ));
        }
        let filter_bytes = match self.filter_len() {
            0 => 0,
            len => len + CHECKSUM_BYTES as u64,
        };
        if self.filter_bytes != filter_bytes {
            return Err(TableError::Misuse(
                "a table's filter must be written after its counts were set, and before its end",
            ));
        }
        Ok(())
    }

    /// Writes index, range deletes, properties and footer. Syncs nothing. Returns the buffers for
    /// the next table, too.
    ///
    /// # Errors
    /// If the file cannot be written, if the table has neither entries nor range deletes, or if
    /// what was said of it does not agree.
    pub fn finish(mut self) -> Result<(TableSummary, AssemblyBuffers)> {
        self.end_blocks()?;
        self.check()?;
        if let Some((smallest, largest)) = self.range_deletes.seq_range() {
            self.properties.smallest_seq = self.properties.smallest_seq.min(smallest);
            self.properties.largest_seq = self.properties.largest_seq.max(largest);
            self.properties.range_deletes = self.range_deletes.fragments().len() as u64;
        }
        let mut footer = Footer {
            blocks_bytes: self.blocks_end,
            filter_bytes: self.filter_bytes,
            ..Footer::default()
        };
        let index = std::mem::take(&mut self.index);
        footer.index_bytes = self.section(|out| index.encode(out)).0;
        if !self.range_deletes.is_empty() {
            let range_deletes = std::mem::take(&mut self.range_deletes);
            let (bytes, crc) = self.section(|out| range_deletes.encode(out));
            footer.range_deletes_bytes = bytes;
            self.digest.push(crc);
            self.range_deletes = range_deletes;
        }
        let properties = self.properties.clone();
        footer.properties_bytes = self.section(|out| properties.encode(out)).0;
        footer.digest = self.digest.value();
        self.out.extend_from_slice(&footer.encode());
        self.flush_part(self.out.len())?;
        let range = self.range_deletes.range();
        let summary = TableSummary {
            raw_bytes: properties.raw_bytes(),
            properties,
            file_bytes: footer.file_bytes(),
            digest: footer.digest,
            range_delete_start: range.map(|(start, _)| start.to_vec()),
            range_delete_end: range.map(|(_, end)| end.to_vec()),
        };
        debug_assert_eq!(summary.file_bytes, self.flushed_bytes);
        Ok((summary, AssemblyBuffers { out: self.out }))
    }

    /// Appends a section and its checksum. Returns its length and checksum.
    fn section(&mut self, encode: impl FnOnce(&mut Vec<u8>)) -> (u64, u32) {
        let start = self.out.len();
        encode(&mut self.out);
        let crc = crc32c(&self.out[start..]);
        self.out.extend_from_slice(&crc.to_le_bytes());
        ((self.out.len() - start) as u64, crc)
    }
}
