//! Writes one table file from a stream of entries.
//!
//! The caller decides where tables end, because the layout is a function of the whole run (see
//! `layout`). The writer ends blocks (see `block::extent`), checks limits, collects columns and
//! writes in large pieces. Values go directly to the output buffer. A value that is too large for
//! it is written from the caller's memory without a copy.
//!
//! Invariants: the written bytes are a function of the entries and the options, and of the block
//! ends that the caller asked for, if any.
//! Memory is bounded by the output buffer, one block, the index, and eight bytes per distinct user
//! key for the filter. Nothing is synced: a finished table is durable when the caller has synced
//! file and folder. But write-back is started every 2 MiB, so that the disk works during the merge
//! and the caller's final sync finds little left. Measured for a 64 MiB table, that sync takes 2 ms
//! instead of 35, and the whole merge takes a third less time.
//!
//! Threading: one owner.

use std::sync::Arc;

use siltstone_storage::WriteFile;

use crate::block::{BlockBuilder, BlockEnd, BlockRule, PAGE_BYTES, Stored};
use crate::checksum::{Digest, crc32c, crc32c_append};
use crate::compress::{Codec, MAX_COMPRESSED_PART_BYTES};
use crate::error::{Damage, Result, TableError};
use crate::filter::Filter;
use crate::footer::Footer;
use crate::index::IndexBuilder;
use crate::key::{HIGHEST_TRAILER, Kind, common_prefix, hash, kind_of, seq_of};
use crate::limits::{
    MAX_BITS_PER_KEY, MAX_BLOCK_ENTRIES, MAX_BLOCK_SIZE_BYTES, MAX_BLOCK_TAIL_BYTES,
    MAX_BLOCK_VALUE_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, MIN_BLOCK_SIZE_BYTES,
};
use crate::properties::{LAYOUT_VERSION, Properties};
use crate::rangedel::{RangeDelete, RangeDeletes, stored_key_bytes};

/// Values of this size or larger are passed to the file without a copy, if they are not compressed.
pub const DIRECT_VALUE_BYTES: usize = 1 << 20;

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
    /// multiples of it, except around large values and at the end of the file.
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

/// A table being written.
pub struct TableWriter {
    file: Arc<dyn WriteFile>,
    options: WriterOptions,
    /// Bytes that were not yet written. They end with the current block's values.
    out: Vec<u8>,
    /// The number of bytes of the table before `out`.
    flushed_bytes: u64,
    /// The number of bytes of the table whose write-back was started.
    behind_bytes: u64,
    /// The offset in `out` of the current block's values that no checksum covers yet.
    block_start: usize,
    /// The checksum of the block's values that were already written.
    values_crc: u32,
    /// Whether some of the block's values were already written. Then they can no longer be
    /// compressed.
    values_written: bool,
    builder: BlockBuilder,
    rule: BlockRule,
    /// The offset in the file at which the current block begins.
    block_offset: u64,
    /// The last finished block. Its separator is known only when the next key is added.
    pending: Option<Pending>,
    previous_key: Vec<u8>,
    previous_trailer: u64,
    index: IndexBuilder,
    digest: Digest,
    hashes: Vec<u64>,
    range_deletes: RangeDeletes,
    properties: Properties,
    scratch: Vec<u8>,
}

impl TableWriter {
    /// The memory in bytes for data that is not written yet, for the filter and the index, and of
    /// the file.
    pub fn buffer_bytes(&self) -> u64 {
        let own = self.out.capacity() + self.scratch.capacity() + 8 * self.hashes.capacity();
        own as u64 + self.index.memory_bytes() as u64 + self.file.buffer_bytes()
    }
}

struct Pending {
    anchor: u64,
    end: u64,
}

impl TableWriter {
    /// A writer of a table to `file`, whose position must be 0.
    ///
    /// # Errors
    /// If an option is outside its limits.
    pub fn new(file: Arc<dyn WriteFile>, options: WriterOptions) -> Result<TableWriter> {
        if options.bits_per_key > MAX_BITS_PER_KEY {
            let found = options.bits_per_key as u64;
            return Err(TableError::Limit {
                what: "filter bits per key",
                limit: MAX_BITS_PER_KEY as u64,
                found,
            });
        }
        if options.block_size_bytes > MAX_BLOCK_SIZE_BYTES {
            let found = options.block_size_bytes;
            return Err(TableError::Limit {
                what: "block size in bytes",
                limit: MAX_BLOCK_SIZE_BYTES,
                found,
            });
        }
        if options.block_size_bytes < MIN_BLOCK_SIZE_BYTES {
            return Err(TableError::Misuse(
                "a block size must be at least 512 bytes",
            ));
        }
        if file.position() != 0 {
            return Err(TableError::Misuse(
                "a table must start at its file's first byte",
            ));
        }
        Ok(TableWriter {
            file,
            options,
            out: Vec::new(),
            flushed_bytes: 0,
            behind_bytes: 0,
            block_start: 0,
            values_crc: 0,
            values_written: false,
            builder: BlockBuilder::new(),
            rule: BlockRule::new(options.block_size_bytes, options.codec != Codec::None),
            block_offset: 0,
            pending: None,
            previous_key: Vec::new(),
            previous_trailer: 0,
            index: IndexBuilder::new(),
            digest: Digest::new(),
            hashes: Vec::new(),
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
            scratch: Vec::new(),
        })
    }

    /// As [`TableWriter::new`], but reuses the buffers of a finished writer, so that their pages
    /// are not faulted in again.
    ///
    /// # Errors
    /// As [`TableWriter::new`].
    pub fn with_buffers(
        file: Arc<dyn WriteFile>,
        options: WriterOptions,
        buffers: WriterBuffers,
    ) -> Result<TableWriter> {
        let mut writer = TableWriter::new(file, options)?;
        let WriterBuffers {
            mut out,
            mut hashes,
            mut builder,
        } = buffers;
        out.clear();
        hashes.clear();
        builder.clear();
        (writer.out, writer.hashes, writer.builder) = (out, hashes, builder);
        Ok(writer)
    }

    /// The number of entries so far.
    pub fn entries(&self) -> u64 {
        self.properties.entries
    }

    /// The raw bytes of all entries so far.
    pub fn raw_bytes(&self) -> u64 {
        self.properties.raw_bytes()
    }

    /// Adds the next entry in the order of entries.
    ///
    /// # Errors
    /// If a limit is exceeded, the order is violated or the file cannot be written. After an error
    /// the table cannot be continued.
    #[inline]
    pub fn add(&mut self, user_key: &[u8], trailer: u64, value: &[u8]) -> Result<()> {
        self.add_inlined(user_key, trailer, value)
    }

    /// [`TableWriter::add`] for the loop of a merge, of which it is a tenth if it is a call.
    #[inline(always)]
    pub(crate) fn add_inlined(
        &mut self,
        user_key: &[u8],
        trailer: u64,
        value: &[u8],
    ) -> Result<()> {
        let first = self.properties.entries == 0;
        let (shared, same_key) = {
            let previous = if self.builder.is_empty() {
                self.previous_key.as_slice()
            } else {
                self.builder.last_key()
            };
            let shared = common_prefix(previous, user_key);
            let same_key = !first && shared == user_key.len() && shared == previous.len();
            // The next byte decides the order, so this check is nearly free.
            let ordered = first
                || if same_key {
                    trailer < self.previous_trailer
                } else {
                    shared < user_key.len()
                        && (shared == previous.len() || previous[shared] < user_key[shared])
                };
            if !ordered {
                return Err(TableError::Misuse(
                    "entries must be added in order, each internal key once",
                ));
            }
            (shared, same_key)
        };
        let kind = match kind_of(trailer) {
            Some(kind) if kind != Kind::RangeDelete => kind,
            _ => {
                return Err(TableError::Misuse(
                    "an entry's kind must be put, delete, merge or value address",
                ));
            }
        };
        let (key_len, value_len) = (user_key.len(), value.len());
        let mut extent = self
            .builder
            .extent_with(key_len, trailer, value_len, shared);
        if let Some(now) = self.builder.extent()
            && let Some(end) = self.rule.end(self.block_offset, now, &extent)
        {
            self.end_block_at(end)?;
            extent = self
                .builder
                .extent_with(key_len, trailer, value_len, shared);
        }
        self.check_limits(user_key, value)?;
        if let Some(pending) = self.pending.take() {
            let (separator, separator_trailer) = if same_key {
                (self.previous_key.as_slice(), self.previous_trailer)
            } else {
                (&user_key[..shared + 1], HIGHEST_TRAILER)
            };
            self.index
                .push(pending.anchor, pending.end, separator, separator_trailer)?;
        }
        if !same_key {
            self.properties.user_keys += 1;
            if self.options.bits_per_key > 0 {
                self.hashes.push(hash(user_key));
            }
        }
        let p = &mut self.properties;
        if first {
            p.smallest_key = Some(user_key.to_vec());
        }
        p.entries += 1;
        p.puts += (kind == Kind::Put) as u64;
        p.deletes += (kind == Kind::Delete) as u64;
        p.key_bytes += user_key.len() as u64;
        p.value_bytes += value.len() as u64;
        p.smallest_seq = p.smallest_seq.min(seq_of(trailer));
        p.largest_seq = p.largest_seq.max(seq_of(trailer));
        self.previous_trailer = trailer;
        self.builder.push(user_key, trailer, extent);
        let direct = value.len() >= DIRECT_VALUE_BYTES
            && (self.options.codec == Codec::None || value.len() > MAX_COMPRESSED_PART_BYTES);
        if direct {
            return self.write_value(value);
        }
        self.out.extend_from_slice(value);
        Ok(())
    }

    #[inline]
    fn check_limits(&self, user_key: &[u8], value: &[u8]) -> Result<()> {
        let limit = |what, limit, found| Err(TableError::Limit { what, limit, found });
        if user_key.len() > MAX_KEY_BYTES {
            return limit(
                "length of a user key in bytes",
                MAX_KEY_BYTES as u64,
                user_key.len() as u64,
            );
        }
        if value.len() > MAX_VALUE_BYTES {
            return limit(
                "length of a value in bytes",
                MAX_VALUE_BYTES as u64,
                value.len() as u64,
            );
        }
        if self.builder.len() >= MAX_BLOCK_ENTRIES {
            return limit(
                "entries of a block",
                MAX_BLOCK_ENTRIES as u64,
                self.builder.len() as u64 + 1,
            );
        }
        let values = self.builder.value_bytes() + value.len() as u64;
        if values > MAX_BLOCK_VALUE_BYTES {
            return limit("value bytes of a block", MAX_BLOCK_VALUE_BYTES, values);
        }
        // The rule ends a block whose keys have 32 KiB, so this limit is never exceeded.
        let keys = self.builder.key_bytes() + user_key.len() as u64;
        if keys > MAX_BLOCK_TAIL_BYTES {
            return limit("key bytes of a block", MAX_BLOCK_TAIL_BYTES, keys);
        }
        Ok(())
    }

    /// Writes everything that was collected, and then `value`, which is part of the current block.
    #[cold]
    fn write_value(&mut self, value: &[u8]) -> Result<()> {
        self.values_crc = crc32c_append(
            crc32c_append(self.values_crc, &self.out[self.block_start..]),
            value,
        );
        self.values_written = true;
        self.file.append(&[&self.out, value])?;
        self.flushed_bytes += (self.out.len() + value.len()) as u64;
        self.out.clear();
        self.block_start = 0;
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

    /// Ends the current block before the layout does, so that the next entry begins another one.
    /// Does nothing if the block has no entries.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn end_block(&mut self) -> Result<()> {
        self.end_block_at(BlockEnd::Size)
    }

    fn end_block_at(&mut self, at: BlockEnd) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let mut values_compressed = false;
        if self.options.codec != Codec::None && !self.values_written {
            self.scratch.clear();
            if self.options.codec.compress(
                self.options.level,
                &self.out[self.block_start..],
                &mut self.scratch,
            ) {
                self.out.truncate(self.block_start);
                self.out.extend_from_slice(&self.scratch);
                values_compressed = true;
            }
        }
        let values_crc = crc32c_append(self.values_crc, &self.out[self.block_start..]);
        let anchor = self.flushed_bytes + self.out.len() as u64;
        let stored = Stored {
            values_crc,
            values_compressed,
            codec: self.options.codec,
            level: self.options.level,
            offset: anchor,
            end: at,
        };
        let crc = self.builder.encode(stored, &mut self.out);
        self.digest.push(crc);
        self.previous_key.clear();
        self.previous_key.extend_from_slice(self.builder.last_key());
        self.builder.clear();
        self.properties.blocks += 1;
        if self.out.len() >= self.options.write_piece_bytes {
            self.flush_whole_pieces()?;
        }
        let end = self.flushed_bytes + self.out.len() as u64;
        self.pending = Some(Pending { anchor, end });
        self.block_offset = end;
        self.block_start = self.out.len();
        self.values_crc = 0;
        self.values_written = false;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.flush_part(self.out.len())
    }

    /// Writes what was collected up to the last multiple of the piece size. With pieces of 2 MiB
    /// that begin at multiples of 2 MiB, the page cache takes one huge page for each, which a
    /// reader's map can map as one: a random read then misses neither the TLB nor its page tables.
    fn flush_whole_pieces(&mut self) -> Result<()> {
        let piece = self.options.write_piece_bytes.max(1) as u64;
        let end = (self.flushed_bytes + self.out.len() as u64) / piece * piece;
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

    /// Ends the last block and writes filter, index, range deletes, properties and footer. Syncs
    /// nothing.
    ///
    /// # Errors
    /// If the file cannot be written, or if the table has neither entries nor range deletes.
    pub fn finish(self) -> Result<TableSummary> {
        Ok(self.finish_with_buffers()?.0)
    }

    /// As [`TableWriter::finish`], and also returns the buffers for the next table.
    ///
    /// # Errors
    /// As [`TableWriter::finish`].
    pub fn finish_with_buffers(mut self) -> Result<(TableSummary, WriterBuffers)> {
        self.end_block()?;
        if self.properties.entries == 0 && self.range_deletes.is_empty() {
            return Err(TableError::Misuse(
                "a table must have an entry or a range delete",
            ));
        }
        if let Some(pending) = self.pending.take() {
            self.index.push(
                pending.anchor,
                pending.end,
                &self.previous_key,
                self.previous_trailer,
            )?;
            self.properties.largest_key = Some(self.previous_key.clone());
        }
        if let Some((smallest, largest)) = self.range_deletes.seq_range() {
            self.properties.smallest_seq = self.properties.smallest_seq.min(smallest);
            self.properties.largest_seq = self.properties.largest_seq.max(largest);
            self.properties.range_deletes = self.range_deletes.fragments().len() as u64;
        }
        if self.properties.left_bound.is_some()
            && self.properties.left_bound > self.properties.smallest_key
            && self.properties.smallest_key.is_some()
        {
            return Err(TableError::Misuse(
                "a table's left bound must not lie above its first user key",
            ));
        }
        let mut footer = Footer {
            blocks_bytes: self.flushed_bytes + self.out.len() as u64,
            ..Footer::default()
        };
        if self.options.bits_per_key > 0 && self.properties.entries > 0 {
            let mut filter = Filter::empty(self.hashes.len() as u64, self.options.bits_per_key);
            filter.insert_all(&self.hashes);
            footer.filter_bytes = self.section(|out| filter.encode(out)).0;
        }
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
        self.flush()?;
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
        Ok((
            summary,
            WriterBuffers {
                out: self.out,
                hashes: self.hashes,
                builder: self.builder,
            },
        ))
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

/// The buffers of a finished writer, for the next one.
#[derive(Default)]
pub struct WriterBuffers {
    out: Vec<u8>,
    hashes: Vec<u64>,
    builder: BlockBuilder,
}
