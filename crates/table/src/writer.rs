//! Writes one table file from a stream of entries.
//!
//! The caller decides where tables end, because the layout is a function of the whole run (see
//! `layout`). The writer ends blocks (see `block::extent`), checks limits and collects columns. Its
//! [`TableAssembler`] makes a table of the finished blocks, and writes it in large pieces. Values
//! go directly to the output buffer. A value that is too large for it is written from the caller's
//! memory without a copy.
//!
//! Invariants: the written bytes are a function of the entries and the options, and of the block
//! ends that the caller asked for, if any.
//! Memory is bounded by the output buffer, one block, the index, and eight bytes per distinct user
//! key for the filter. Nothing is synced: a finished table is durable when the caller has synced
//! file and folder.
//!
//! Threading: one owner.

use std::sync::Arc;

use siltstone_storage::WriteFile;

use crate::assembly::{
    AssemblyBuffers, DIRECT_BYTES, EntryCounts, FilterBytes, FinishedBlock, TableAssembler,
};
pub use crate::assembly::{TableSummary, WriterOptions};
use crate::block::{BlockBuilder, BlockEnd, BlockRule, Stored};
use crate::checksum::crc32c_append;
use crate::compress::{Codec, MAX_COMPRESSED_PART_BYTES};
use crate::error::{Result, TableError};
use crate::key::{HIGHEST_TRAILER, Kind, common_prefix, hash, kind_of, seq_of};
use crate::limits::{
    MAX_BLOCK_ENTRIES, MAX_BLOCK_TAIL_BYTES, MAX_BLOCK_VALUE_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES,
};
use crate::rangedel::RangeDelete;

/// Values of this size or larger are passed to the file without a copy, if they are not compressed.
pub const DIRECT_VALUE_BYTES: usize = DIRECT_BYTES;

/// A table being written.
pub struct TableWriter {
    /// The finished blocks. Its buffer ends with the current block's values.
    assembly: TableAssembler,
    /// The offset in the assembly's buffer of the current block's values that no checksum covers
    /// yet.
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
    hashes: Vec<u64>,
    counts: EntryCounts,
    scratch: Vec<u8>,
}

struct Pending {
    anchor: u64,
    end: u64,
    checksum: u32,
}

impl TableWriter {
    /// A writer of a table to `file`, whose position must be 0.
    ///
    /// # Errors
    /// If an option is outside its limits.
    pub fn new(file: Arc<dyn WriteFile>, options: WriterOptions) -> Result<TableWriter> {
        TableWriter::with_buffers(file, options, WriterBuffers::default())
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
        let WriterBuffers {
            assembly,
            mut hashes,
            mut builder,
        } = buffers;
        hashes.clear();
        builder.clear();
        Ok(TableWriter {
            assembly: TableAssembler::with_buffers(file, options, assembly)?,
            block_start: 0,
            values_crc: 0,
            values_written: false,
            builder,
            rule: BlockRule::new(options.block_size_bytes, options.codec != Codec::None),
            block_offset: 0,
            pending: None,
            previous_key: Vec::new(),
            previous_trailer: 0,
            hashes,
            counts: EntryCounts::default(),
            scratch: Vec::new(),
        })
    }

    /// The memory in bytes for data that is not written yet, for the filter and the index, and of
    /// the file.
    pub fn buffer_bytes(&self) -> u64 {
        let own = self.scratch.capacity() + 8 * self.hashes.capacity();
        own as u64 + self.assembly.buffer_bytes()
    }

    /// The number of entries so far.
    pub fn entries(&self) -> u64 {
        self.counts.entries
    }

    /// The raw bytes of all entries so far.
    pub fn raw_bytes(&self) -> u64 {
        self.counts.raw_bytes()
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
        let first = self.counts.entries == 0;
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
                return misuse("entries must be added in order, each internal key once");
            }
            (shared, same_key)
        };
        let kind = match kind_of(trailer) {
            Some(kind) if kind != Kind::RangeDelete => kind,
            _ => {
                return misuse("an entry's kind must be put, delete, merge or value address");
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
        if self.pending.is_some() {
            let separator = match same_key {
                true => None,
                false => Some(&user_key[..shared + 1]),
            };
            self.push_pending(separator)?;
        }
        if !same_key {
            self.counts.user_keys += 1;
            if self.assembly.options().bits_per_key > 0 {
                self.hashes.push(hash(user_key));
            }
        }
        let counts = &mut self.counts;
        if first {
            counts.smallest_key = Some(user_key.to_vec());
        }
        counts.entries += 1;
        counts.puts += (kind == Kind::Put) as u64;
        counts.deletes += (kind == Kind::Delete) as u64;
        counts.key_bytes += user_key.len() as u64;
        counts.value_bytes += value.len() as u64;
        counts.smallest_seq = counts.smallest_seq.min(seq_of(trailer));
        counts.largest_seq = counts.largest_seq.max(seq_of(trailer));
        self.previous_trailer = trailer;
        self.builder.push(user_key, trailer, extent);
        let direct = value.len() >= DIRECT_VALUE_BYTES
            && (self.assembly.options().codec == Codec::None
                || value.len() > MAX_COMPRESSED_PART_BYTES);
        if direct {
            return self.write_value(value);
        }
        self.assembly.out.extend_from_slice(value);
        Ok(())
    }

    /// Adds the last finished block to the table, now that its separator is known: `separator` with
    /// the highest trailer, or the last internal key of the block.
    #[cold]
    fn push_pending(&mut self, separator: Option<&[u8]>) -> Result<()> {
        let Some(pending) = self.pending.take() else {
            return Ok(());
        };
        let (separator, separator_trailer) = match separator {
            Some(separator) => (separator, HIGHEST_TRAILER),
            None => (self.previous_key.as_slice(), self.previous_trailer),
        };
        self.assembly.add_block(&FinishedBlock {
            anchor: pending.anchor,
            end: pending.end,
            checksum: pending.checksum,
            separator,
            separator_trailer,
        })
    }

    #[inline]
    fn check_limits(&self, user_key: &[u8], value: &[u8]) -> Result<()> {
        if user_key.len() > MAX_KEY_BYTES {
            return too_large(
                "length of a user key in bytes",
                MAX_KEY_BYTES as u64,
                user_key.len() as u64,
            );
        }
        if value.len() > MAX_VALUE_BYTES {
            return too_large(
                "length of a value in bytes",
                MAX_VALUE_BYTES as u64,
                value.len() as u64,
            );
        }
        if self.builder.len() >= MAX_BLOCK_ENTRIES {
            return too_large(
                "entries of a block",
                MAX_BLOCK_ENTRIES as u64,
                self.builder.len() as u64 + 1,
            );
        }
        let values = self.builder.value_bytes() + value.len() as u64;
        if values > MAX_BLOCK_VALUE_BYTES {
            return too_large("value bytes of a block", MAX_BLOCK_VALUE_BYTES, values);
        }
        // The rule ends a block whose keys have 32 KiB, so this limit is never exceeded.
        let keys = self.builder.key_bytes() + user_key.len() as u64;
        if keys > MAX_BLOCK_TAIL_BYTES {
            return too_large("key bytes of a block", MAX_BLOCK_TAIL_BYTES, keys);
        }
        Ok(())
    }

    /// Writes everything that was collected, and then `value`, which is part of the current block.
    #[cold]
    fn write_value(&mut self, value: &[u8]) -> Result<()> {
        self.values_crc = crc32c_append(
            crc32c_append(self.values_crc, &self.assembly.out[self.block_start..]),
            value,
        );
        self.values_written = true;
        self.assembly.put_directly(value)?;
        self.block_start = 0;
        Ok(())
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
        let WriterOptions { codec, level, .. } = *self.assembly.options();
        let out = &mut self.assembly.out;
        let mut values_compressed = false;
        if codec != Codec::None && !self.values_written {
            self.scratch.clear();
            if codec.compress(level, &out[self.block_start..], &mut self.scratch) {
                out.truncate(self.block_start);
                out.extend_from_slice(&self.scratch);
                values_compressed = true;
            }
        }
        let values_crc = crc32c_append(self.values_crc, &out[self.block_start..]);
        let anchor = self.assembly.bytes();
        let stored = Stored {
            values_crc,
            values_compressed,
            codec,
            level,
            offset: anchor,
            end: at,
        };
        let checksum = self.builder.encode(stored, &mut self.assembly.out);
        self.previous_key.clear();
        self.previous_key.extend_from_slice(self.builder.last_key());
        self.builder.clear();
        self.assembly.flush_if_full()?;
        let end = self.assembly.bytes();
        self.pending = Some(Pending {
            anchor,
            end,
            checksum,
        });
        self.block_offset = end;
        self.block_start = self.assembly.out.len();
        self.values_crc = 0;
        self.values_written = false;
        Ok(())
    }

    /// Sets the table's range deletes. They are fragments as made by [`crate::rangedel::joined`],
    /// clipped to the table.
    ///
    /// # Errors
    /// If they are not in order.
    pub fn set_range_deletes(&mut self, fragments: Vec<RangeDelete>) -> Result<()> {
        self.assembly.set_range_deletes(fragments)
    }

    /// Sets the table's left bound, if it is not its first user key.
    pub fn set_left_bound(&mut self, bound: &[u8]) {
        self.assembly.set_left_bound(bound);
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
        if self.pending.is_some() {
            self.push_pending(None)?;
            self.counts.largest_key = Some(self.previous_key);
        }
        self.assembly.set_entries(self.counts);
        self.assembly
            .write_filter(FilterBytes::Hashes(&self.hashes))?;
        let (summary, assembly) = self.assembly.finish()?;
        Ok((
            summary,
            WriterBuffers {
                assembly,
                hashes: self.hashes,
                builder: self.builder,
            },
        ))
    }
}

/// The error for something that is larger than the format allows. It is cold, as is the next one:
/// the compiler then knows that entries are mostly right, and inlines what happens to them.
#[cold]
fn too_large(what: &'static str, limit: u64, found: u64) -> Result<()> {
    Err(TableError::Limit { what, limit, found })
}

/// The error for a call that violates a rule.
#[cold]
fn misuse(what: &'static str) -> Result<()> {
    Err(TableError::Misuse(what))
}

/// The buffers of a finished writer, for the next one.
#[derive(Default)]
pub struct WriterBuffers {
    assembly: AssemblyBuffers,
    hashes: Vec<u64>,
    builder: BlockBuilder,
}
