//! The side that rebuilds: it makes the tables of one subjob from the survivors that another side
//! chose.
//!
//! It reads the blocks that have survivors, including their values, and writes them through the
//! same [`Output`] and [`Layout`] as `subjob.rs`. It computes from the inputs which range deletes
//! the tables get.
//!
//! The survivors are not believed. An extent must lie in a block of an input that the subjob reads,
//! its keys must be within the input's bounds, all entries must be in order, and tables must begin
//! where the layout says. So wrong survivors fail the job or leave out entries, but never lead out
//! of the inputs. This side cannot know which entries should have been kept.
//!
//! Invariants: a block is verified before anything in it is used (E3). Memory is bounded: one
//! chunk, and one piece for each input.
//!
//! Threading: each subjob has one task.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::output::{Created, Output};
use super::part::Part;
use super::plan::{JobPlan, Origin, PlannedInput, SubjobPlan};
use super::separated::SurvivorStream;
use super::subjob::{Buffers, IS_COMPLETE, RANGE_DELETE_BYTES, Stop};
use super::survivors::{Extent, Survivors};
use super::{ExecContext, ExecError};
use crate::block::Decoded;
use crate::error::{Damage, TableError};
use crate::job::Job;
use crate::job::outcome::Counters;
use crate::key::raw_bytes;
use crate::layout::Layout;
use crate::merge::input_run::{Reads, check_trailers, decode_block};
use crate::merge::table::InputTable;

/// The maximum number of bytes of neighbouring blocks that are read at once. At least one block is
/// read.
const PIECE_BYTES: u64 = 256 << 10;

/// The error for survivors that the inputs cannot have, or that another side should not have sent.
fn wrong(what: &'static str, expected: u64, found: u64) -> ExecError {
    ExecError::Failed(Damage::new(what, 0, expected, found).in_file("survivors of a subjob", 0))
}

/// An input from which entries are taken.
struct Cursor {
    input: PlannedInput,
    table: Arc<InputTable>,
    /// The blocks that the current chunk still needs, in the order in which it needs them.
    wanted: VecDeque<u32>,
    /// The blocks in memory that were not decoded yet, and the offset of the first of them in the
    /// buffer.
    piece: VecDeque<u32>,
    piece_at: usize,
    buffer: Vec<u8>,
    /// The uncompressed form of a compressed block.
    scratch: Vec<u8>,
    values_in_scratch: bool,
    values_at: usize,
    /// The number of the decoded block.
    block: Option<u32>,
    entries: Decoded,
}

impl Cursor {
    /// Decodes `block`, unless it is the decoded one already. Returns the number of bytes that were
    /// read.
    fn load(&mut self, block: u32, verify: bool) -> Result<u64, ExecError> {
        if self.block == Some(block) {
            return Ok(0);
        }
        let count = self.table.block_count();
        if block as usize >= count {
            return Err(wrong("block of an extent", count as u64, block.into()));
        }
        self.block = None;
        let mut read = 0;
        if self.piece.front() != Some(&block) {
            read = self.read_piece(block)?;
        }
        self.piece.pop_front();
        let place = self.table.place(block as usize);
        let start = self.piece_at;
        self.piece_at += place.stored_bytes() as usize;
        let stored = &self.buffer[start..self.piece_at];
        let (scratch, entries) = (&mut self.scratch, &mut self.entries);
        let values = decode_block(
            &self.table,
            place,
            stored,
            Reads::All,
            verify,
            scratch,
            entries,
        )?;
        self.values_in_scratch = values.in_scratch;
        self.values_at = values.at + if values.in_scratch { 0 } else { start };
        check_trailers(&self.input, &mut self.entries.trailers)?;
        self.block = Some(block);
        Ok(read)
    }

    /// Reads `block` and the wanted blocks that directly follow it.
    fn read_piece(&mut self, block: u32) -> Result<u64, ExecError> {
        while self.wanted.front().is_some_and(|wanted| *wanted != block) {
            self.wanted.pop_front();
        }
        let first = self.table.place(block as usize);
        let mut len = first.stored_bytes();
        self.piece.clear();
        self.piece.push_back(block);
        self.wanted.pop_front();
        let mut next = block + 1;
        while self.wanted.front() == Some(&next) && (next as usize) < self.table.block_count() {
            let more = self.table.place(next as usize).stored_bytes();
            if len + more > PIECE_BYTES {
                break;
            }
            len += more;
            self.piece.push_back(next);
            self.wanted.pop_front();
            next += 1;
        }
        self.buffer.resize(len as usize, 0);
        self.table.file().read_at(first.start, &mut self.buffer)?;
        self.piece_at = 0;
        Ok(len)
    }

    fn value(&self, entry: usize) -> &[u8] {
        let range = self.entries.value_range(entry);
        let from = match self.values_in_scratch {
            true => &self.scratch,
            false => &self.buffer,
        };
        &from[self.values_at + range.start..self.values_at + range.end]
    }

    /// Checks that the entries of an extent are in the block and within the input's bounds.
    fn check(&self, extent: &Extent) -> Result<std::ops::Range<usize>, ExecError> {
        let first = extent.first as usize;
        let end = first.saturating_add(extent.count as usize);
        let count = self.entries.len();
        if first >= end || end > count {
            return Err(wrong("entries of an extent", count as u64, end as u64));
        }
        let is_inside = |entry: usize| self.input.bounds.contains(self.entries.key(entry));
        // Whether the keys between these two are in order is checked when they are added.
        match is_inside(first) && is_inside(end - 1) {
            true => Ok(first..end),
            false => Err(wrong("bounds of an extent's keys", 0, extent.block.into())),
        }
    }

    fn buffer_bytes(&self) -> u64 {
        let e = &self.entries;
        let decoded = e.keys.capacity()
            + 4 * (e.key_ends.capacity() + e.value_ends.capacity())
            + 8 * e.trailers.capacity();
        let blocks = 4 * (self.wanted.capacity() + self.piece.capacity());
        (self.buffer.capacity() + self.scratch.capacity() + decoded + blocks) as u64
    }
}

/// The inputs of a subjob, by their numbers.
struct Cursors(BTreeMap<u32, Cursor>);

impl Cursors {
    fn new(inputs: impl Iterator<Item = PlannedInput>) -> Cursors {
        let cursor = |input: PlannedInput| {
            let Origin::Table(table) = &input.origin else {
                return None;
            };
            let table = table.clone();
            let number = input.number;
            let cursor = Cursor {
                input,
                table,
                wanted: VecDeque::new(),
                piece: VecDeque::new(),
                piece_at: 0,
                buffer: Vec::new(),
                scratch: Vec::new(),
                values_in_scratch: false,
                values_at: 0,
                block: None,
                entries: Decoded::default(),
            };
            Some((number, cursor))
        };
        Cursors(inputs.filter_map(cursor).collect())
    }

    fn get(&mut self, input: u32) -> Result<&mut Cursor, ExecError> {
        let count = self.0.len() as u64;
        let cursor = self.0.get_mut(&input);
        cursor.ok_or_else(|| wrong("input of an extent", count, input.into()))
    }

    /// Notes which blocks a chunk needs, so that neighbouring ones are read together.
    fn begin(&mut self, chunk: &Survivors) -> Result<(), ExecError> {
        for extent in &chunk.extents {
            let wanted = &mut self.get(extent.input)?.wanted;
            if wanted.back() != Some(&extent.block) {
                wanted.push_back(extent.block);
            }
        }
        Ok(())
    }

    fn buffer_bytes(&self) -> u64 {
        self.0.values().map(Cursor::buffer_bytes).sum()
    }
}

/// The entry that was last added.
#[derive(Default)]
struct Last {
    key: Vec<u8>,
    trailer: u64,
    is_any: bool,
}

impl Last {
    /// Notes the next entry. Returns whether it is the first one of its user key.
    fn note(&mut self, key: &[u8], trailer: u64) -> Result<bool, ExecError> {
        let order = match self.is_any {
            true => key.cmp(&self.key),
            false => std::cmp::Ordering::Greater,
        };
        let is_in_order = order.is_gt() || order.is_eq() && trailer < self.trailer;
        if !is_in_order {
            let (last, found) = (self.trailer >> 8, trailer >> 8);
            return Err(wrong("order of survivors", last, found));
        }
        self.is_any = true;
        self.trailer = trailer;
        if order.is_gt() {
            self.key.clear();
            self.key.extend_from_slice(key);
        }
        Ok(order.is_gt())
    }
}

/// Runs a subjob to its end, in the same way as `subjob::run`, with the survivors of `stream`.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    job: &Job,
    subjob: usize,
    plan: &JobPlan,
    stream: &mut dyn SurvivorStream,
    ctx: &ExecContext,
    stop: &Stop<'_>,
    created: &Created,
    part: &mut Part,
) -> Result<(), ExecError> {
    stop.check()?;
    let Some(plan) = plan.subjob(job, subjob, &part.next)? else {
        return Err(TableError::Misuse(IS_COMPLETE).into());
    };
    let SubjobPlan {
        bounds,
        counters,
        runs,
        surviving,
        layout,
        ..
    } = plan;
    let fixed = counters.range_deletes_read * RANGE_DELETE_BYTES;
    let output = Output::new(job, bounds, surviving, ctx, created, part);
    let rebuilding = Rebuilding {
        verify: job.format.verify,
        cursors: Cursors::new(runs.into_iter().flatten()),
        layout,
        output,
        last: Last::default(),
        in_table: false,
        bytes_read: 0,
        unreported: 0,
        written: 0,
        fixed,
        stream_bytes: 0,
        buffers: Buffers::new(ctx),
        ctx,
        stop,
    };
    let unreported = rebuilding.run(job, subjob, stream)?;
    stop.spent(unreported)
}

/// The state of a subjob that is being rebuilt.
struct Rebuilding<'a> {
    verify: bool,
    cursors: Cursors,
    layout: Layout<'a>,
    output: Output<'a>,
    last: Last,
    /// Whether a version of the current user key was added.
    in_table: bool,
    /// The bytes of blocks that were read.
    bytes_read: u64,
    /// The part of these bytes that was not reported to the throttle yet.
    unreported: u64,
    /// The bytes written that were reported to the throttle.
    written: u64,
    /// The memory of range deletes.
    fixed: u64,
    /// The memory of the stream of survivors, after its last chunk.
    stream_bytes: u64,
    buffers: Buffers<'a>,
    ctx: &'a ExecContext,
    stop: &'a Stop<'a>,
}

impl Rebuilding<'_> {
    /// Adds all survivors, and completes the part. Returns the number of bytes that were not
    /// reported to the throttle yet.
    fn run(
        mut self,
        job: &Job,
        subjob: usize,
        stream: &mut dyn SurvivorStream,
    ) -> Result<u64, ExecError> {
        let mut number = 0;
        loop {
            self.stop.check()?;
            let Some(chunk) = stream.next_chunk()? else {
                return Err(wrong("last chunk of survivors", 1, 0));
            };
            if (chunk.subjob as usize, chunk.chunk) != (subjob, number) {
                let (expected, found) = (number.into(), chunk.chunk.into());
                return Err(wrong("number of a chunk of survivors", expected, found));
            }
            number = number.saturating_add(1);
            self.stream_bytes = stream.buffer_bytes();
            if chunk.check(job).is_err() {
                return Err(wrong("chunk of survivors", 0, chunk.chunk.into()));
            }
            self.chunk(&chunk)?;
            if let Some(counters) = chunk.end {
                self.report()?;
                let bytes_read = counters.bytes_read.saturating_add(self.bytes_read);
                let (_, all) = self.output.finish(Counters {
                    bytes_read,
                    entries_written: 0,
                    bytes_written: 0,
                    cpu_ns: 0,
                    ..counters
                })?;
                return Ok(all.saturating_sub(self.written));
            }
        }
    }

    /// Adds the entries of a chunk.
    fn chunk(&mut self, chunk: &Survivors) -> Result<(), ExecError> {
        self.cursors.begin(chunk)?;
        let mut tables = chunk.tables.iter().peekable();
        for (number, extent) in chunk.extents.iter().enumerate() {
            let begins = tables.next_if(|(first, _)| *first as usize == number);
            self.extent(extent, begins.map(|(_, before)| before))?;
        }
        Ok(())
    }

    /// Adds the entries of an extent. If a table begins with the extent, `begins` is the counts
    /// before that table.
    fn extent(&mut self, extent: &Extent, begins: Option<&Counters>) -> Result<(), ExecError> {
        // The extents of a whole chunk may lie in a few blocks, whose entries alternate.
        self.stop.check()?;
        let cursor = self.cursors.get(extent.input)?;
        let read = cursor.load(extent.block, self.verify)?;
        if read > 0 {
            self.bytes_read += read;
            self.unreported += read;
            self.report()?;
        }
        let cursor = self.cursors.get(extent.input)?;
        let entries = cursor.check(extent)?;
        let mut begins = begins;
        for i in entries {
            let (key, trailer) = (cursor.entries.key(i), cursor.entries.trailers[i]);
            if self.last.note(key, trailer)? {
                self.in_table = false;
            }
            if !self.in_table {
                if let Some(start) = self.layout.start_key(key) {
                    let Some(before) = begins.take() else {
                        return Err(wrong("begin of a table", 1, 0));
                    };
                    let before = Counters {
                        bytes_read: before.bytes_read.saturating_add(self.bytes_read),
                        ..*before
                    };
                    let state = self.layout.state(key);
                    self.output.start_table(start, state, before)?;
                }
                self.in_table = true;
            }
            let value = cursor.value(i);
            self.output.add(key, trailer, value)?;
            self.layout.add(raw_bytes(key.len(), value.len()));
            if begins.is_some() {
                return Err(wrong("begin of a table", 0, 1));
            }
        }
        Ok(())
    }

    /// Reports progress and memory, and the bytes that were read and written.
    fn report(&mut self) -> Result<(), ExecError> {
        self.stop.check()?;
        let read = std::mem::take(&mut self.unreported);
        let progress = &self.ctx.progress;
        progress.bytes_in.fetch_add(read, Ordering::Relaxed);
        let own = self.cursors.buffer_bytes() + self.output.buffer_bytes();
        self.buffers.set(self.fixed + self.stream_bytes + own);
        let before = std::mem::replace(&mut self.written, self.output.bytes_written());
        self.stop.spent(read + (self.written - before))
    }
}
