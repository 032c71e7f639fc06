//! From finished pieces to files: the blocks of each table are copied from the device to its file,
//! and the frame of the table is made of what the pack phase says about them.
//!
//! Threading: one owner, in the task that runs the job.

use std::collections::VecDeque;

use siltstone_storage::planted;
use siltstone_table::assembly::{EntryCounts, FilterBytes, FinishedBlock};
use siltstone_table::block::header::CHECKSUM_BYTES;
use siltstone_table::checksum::crc32c;
use siltstone_table::exec::SubjobOutput;
use siltstone_table::job::outcome::Counters;
use siltstone_table::job::{Job, KeyBounds};
use siltstone_table::layout::{LayoutState, TableStart};

use crate::buffers::Buffers;
use crate::device::Event;
use crate::direct;
use crate::error::{GpuError, Result};
use crate::kernels::{Array, IndexEntry};
use crate::lane::Work;
use crate::layout::Tables;
use crate::pack::Packed;
use crate::strategy::Transfer;
use crate::subjob::Checks;
use crate::upload::has_sums;

/// The tables of a subjob, as far as they were written.
pub(crate) struct Writer<'a> {
    pub job: &'a Job,
    pub bounds: KeyBounds,
    pub checks: Checks,
    pub transfer: Transfer,
    /// The number of tables that were begun.
    pub tables: u32,
    /// The memory of the open table, and of what is known of the tables of the piece.
    pub buffers: Buffers,
}

impl Writer<'_> {
    /// Writes the tables of a piece.
    pub fn write(
        &mut self,
        work: &mut Work,
        tables: &Tables,
        packed: &Packed,
        counters: Counters,
        output: &mut SubjobOutput<'_>,
    ) -> Result<()> {
        let cuts = self.job.subjob_soft_cuts(&self.bounds);
        let (mut index, mut separators) = (&packed.index[..], &packed.separators[..]);
        let mut filters = &packed.filters[..];
        let mut at = 0;
        for (number, sums) in packed.sums.iter().enumerate() {
            let begin = tables.host_starts[number];
            let first_key = &packed.first_keys[number];
            let left_cut = match begin.span {
                span if span > 0 && begin.span_bytes == 0 => Some(&cuts[span as usize - 1][..]),
                _ => None,
            };
            let start = TableStart {
                table: self.tables,
                left_cut,
            };
            let state = LayoutState {
                first_key: first_key.clone(),
                earlier_spans_bytes: begin.earlier_spans_bytes,
                span_bytes: begin.span_bytes,
                table: self.tables,
            };
            let started = output.start_table(start, state, counters);
            started.map_err(GpuError::of_table)?;
            self.tables += 1;
            let entries = u64::from(sums.last - sums.first) + 1;
            let own_count = index.partition_point(|entry| entry.table as usize <= number);
            let (own, rest) = index.split_at(own_count);
            index = rest;
            let bytes: u64 = own.iter().map(|entry| u64::from(entry.bytes)).sum();
            let known_bytes = packed.host_bytes();
            self.buffers.set(known_bytes + output.buffer_bytes());
            self.download(work, packed.out.part(at, bytes), own, output)?;
            self.buffers.set(known_bytes + output.buffer_bytes());
            at += bytes;
            let missing = || GpuError::Mismatch("a table was not begun".into());
            let table = output.table().ok_or_else(missing)?;
            let mut end = 0;
            let mut last_separator = &[][..];
            for entry in own {
                let (separator, rest) = separators.split_at(entry.separator_bytes as usize);
                separators = rest;
                last_separator = separator;
                let anchor = end + u64::from(entry.value_bytes);
                end += u64::from(entry.bytes);
                let block = FinishedBlock {
                    anchor,
                    end,
                    checksum: entry.crc,
                    separator,
                    separator_trailer: entry.trailer,
                };
                table.push_block(&block).map_err(GpuError::of_table)?;
            }
            table.set_entries(EntryCounts {
                entries,
                puts: sums.puts,
                deletes: entries - sums.puts,
                user_keys: sums.user_keys,
                key_bytes: sums.key_bytes,
                value_bytes: sums.value_bytes,
                smallest_seq: sums.smallest_seq,
                largest_seq: sums.largest_seq,
                smallest_key: Some(first_key.clone()),
                largest_key: Some(last_separator.to_vec()),
            });
            let len = table.filter_len();
            if len > 0 {
                let (own, rest) = filters.split_at(len as usize);
                filters = rest;
                let written = table.write_filter(FilterBytes::Stored(own));
                written.map_err(GpuError::of_table)?;
            }
        }
        Ok(())
    }

    /// Copies the blocks of a table from the device to its file, through the ring, unless the
    /// device writes them by itself.
    fn download(
        &self,
        work: &mut Work,
        from: Array<u8>,
        index: &[IndexEntry],
        output: &mut SubjobOutput<'_>,
    ) -> Result<()> {
        let missing = || GpuError::Mismatch("a table was not begun".into());
        let mut checking = Checking::new(index);
        let mut from = from;
        if self.transfer == Transfer::Direct {
            let table = output.table().ok_or_else(missing)?;
            let done = direct::append(work, from, table)?;
            from = from.part(done, from.count() - done);
            if self.checks.outputs {
                check_written(work, table.file_name(), done, &mut checking)?;
            }
        }
        let buffers = match self.transfer {
            Transfer::Plain => 1,
            Transfer::Pipeline | Transfer::Direct => work.lane.ring.len(),
        };
        let mut flying: VecDeque<(usize, u64, Event)> = VecDeque::new();
        let (mut asked, mut buffer) = (0, 0);
        while asked < from.count() || !flying.is_empty() {
            if asked < from.count() && flying.len() < buffers {
                let room = work.lane.ring[buffer].len() as u64;
                let chunk = room.min(from.count() - asked);
                let event = work.copy_out(from.part(asked, chunk), buffer)?;
                flying.push_back((buffer, chunk, event));
                asked += chunk;
                buffer = (buffer + 1) % buffers;
                continue;
            }
            let Some((full, chunk, event)) = flying.pop_front() else {
                break;
            };
            work.take_event(event)?;
            let bytes = &work.lane.ring[full].bytes()?[..chunk as usize];
            if self.checks.outputs && !planted!(GpuBlocksAreBelieved) {
                checking.add(bytes)?;
            }
            output.table().ok_or_else(missing)?.append(bytes)?;
            work.spend(chunk)?;
        }
        Ok(())
    }
}

/// Reads the first `len` bytes of a file that the device has written by itself, and checks the
/// blocks in them.
fn check_written(work: &mut Work, name: &str, len: u64, checking: &mut Checking<'_>) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let file = work.ctx.outputs.open(name)?;
    if file.len() < len {
        let found = file.len();
        return Err(GpuError::Mismatch(format!(
            "{name} has {found} bytes after a direct transfer of {len}"
        )));
    }
    let mut at = 0;
    while at < len {
        // Nothing is in the ring: the lane has waited before the device has written.
        let buffer = work.lane.ring[0].bytes_mut()?;
        let chunk = (buffer.len() as u64).min(len - at);
        let bytes = &mut buffer[..chunk as usize];
        file.read_at(at, bytes)?;
        checking.add(bytes)?;
        at += chunk;
        work.ctx.progress.beat();
        work.spend(chunk)?;
    }
    Ok(())
}

/// Computes the checksums of output blocks that arrive in pieces.
struct Checking<'a> {
    index: &'a [IndexEntry],
    /// The bytes of the present block so far.
    block: Vec<u8>,
}

impl Checking<'_> {
    fn new(index: &[IndexEntry]) -> Checking<'_> {
        Checking {
            index,
            block: Vec::new(),
        }
    }

    fn add(&mut self, mut bytes: &[u8]) -> Result<()> {
        while let Some(entry) = self.index.first() {
            let missing = entry.bytes as usize - self.block.len();
            if bytes.len() < missing {
                break;
            }
            let (first, rest) = bytes.split_at(missing);
            bytes = rest;
            match self.block.is_empty() {
                true => check_output(entry, first)?,
                false => {
                    self.block.extend_from_slice(first);
                    check_output(entry, &self.block)?;
                    self.block.clear();
                }
            }
            self.index = &self.index[1..];
        }
        self.block.extend_from_slice(bytes);
        Ok(())
    }
}

/// Compares the checksums of an output block with those that the GPU computed.
fn check_output(entry: &IndexEntry, block: &[u8]) -> Result<()> {
    let values_bytes = entry.value_bytes as usize;
    let columns = &block[values_bytes..block.len() - CHECKSUM_BYTES];
    let found = crc32c(columns);
    if found != entry.crc {
        return Err(GpuError::Mismatch(format!(
            "the columns of an output block have the checksum {:08x} on the GPU and {found:08x} \
             here",
            entry.crc
        )));
    }
    if !has_sums(block, values_bytes) {
        let what = "an output block does not have the checksums that are stored in it";
        return Err(GpuError::Mismatch(what.into()));
    }
    Ok(())
}
