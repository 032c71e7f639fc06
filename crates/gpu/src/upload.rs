//! The way of input blocks to the device.
//!
//! Blocks go there as they are stored, so that the device verifies their checksums and decodes lz4.
//! The host decodes what the device does not: zstd, and parts so large that one thread would take
//! too long. Such a block is uploaded in its uncompressed form, with checksums that are computed
//! here after those of the file were verified.
//!
//! A file that is open for direct I/O is read in ranges that begin and end at multiples of
//! [`direct::ALIGN_BYTES`], so that no core copies its bytes. The bytes of such a range before and
//! after the blocks go to the device, too, and no kernel reads them.
//!
//! Threading: see `lane`.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use siltstone_storage::ReadFile;
use siltstone_table::block::header::{
    FLAG_COLUMNS_COMPRESSED, FLAG_VALUES_COMPRESSED, FLAG_ZSTD, HEADER_BYTES, Header,
};
use siltstone_table::block::open_stored;
use siltstone_table::checksum::{crc32c, crc32c_append};
use siltstone_table::compress::Codec;
use siltstone_table::exec::ExecError;
use siltstone_table::merge::table::InputTable;

use crate::device::Event;
use crate::direct;
use crate::error::{GpuError, Result};
use crate::kernels::{Array, Place};
use crate::lane::{Mark, SLACK_BYTES, Work};
use crate::piece::PieceInput;
use crate::strategy::Transfer;

/// Larger parts are decoded by the host: `MAX_DECODED_PART` of the kernels.
const DECODED_PART_MAX: usize = 256 << 10;

/// A range of a file that contains neighbouring blocks, and whose borders suit direct I/O.
#[derive(Clone, Copy)]
struct Around {
    start: u64,
    /// The multiple of the alignment up to which the file can be read without copies.
    aligned_end: u64,
    end: u64,
    /// The bytes before the first block.
    before: u64,
}

impl Around {
    /// The range around the bytes from `start` to `end` of a file, which is exactly theirs if it is
    /// not open for direct I/O.
    fn new(file: &dyn ReadFile, start: u64, end: u64) -> Result<Around> {
        if !direct::is_open(file)? {
            return Ok(Around {
                start,
                aligned_end: end,
                end,
                before: 0,
            });
        }
        let align = direct::ALIGN_BYTES;
        let from = start / align * align;
        let aligned_end = end.next_multiple_of(align).min(file.len() / align * align);
        let aligned_end = aligned_end.max(from);
        Ok(Around {
            start: from,
            aligned_end,
            end: aligned_end.max(end),
            before: start - from,
        })
    }

    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Reads a part of the range that begins at `at`. Bytes after the aligned end are read by a
    /// call of their own, because the host copies them.
    fn read(&self, file: &dyn ReadFile, at: u64, to: &mut [u8]) -> Result<()> {
        let aligned = self.aligned_end.saturating_sub(at).min(to.len() as u64);
        let (aligned, other) = to.split_at_mut(aligned as usize);
        let middle = at + aligned.len() as u64;
        for (at, to) in [(at, aligned), (middle, other)] {
            if !to.is_empty() {
                file.read_at(at, to)?;
            }
        }
        Ok(())
    }
}

/// The blocks of a piece's inputs on the device.
pub(crate) struct Uploaded {
    /// Their bytes, followed by slack.
    pub bytes: Array<u8>,
    /// Where each is in them.
    pub places: Vec<Place>,
    /// The memory before the bytes, after which nothing else was taken.
    pub mark: Mark,
}

impl Uploaded {
    /// The bytes of the blocks, without slack.
    pub fn len(&self) -> u64 {
        self.bytes.count() - SLACK_BYTES
    }

    /// Takes the same memory again, with room for more bytes after those of the blocks.
    pub fn extend(&mut self, work: &mut Work, bytes: u64) -> Result<()> {
        work.release(self.mark);
        self.bytes = work.take(bytes.saturating_add(SLACK_BYTES))?;
        Ok(())
    }
}

/// How blocks are uploaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// Checksums are verified.
    pub verify: bool,
    /// The host verifies them, too.
    pub is_checked: bool,
    pub transfer: Transfer,
}

/// Reads the blocks of the inputs, and copies them to the device. `uncounted_bytes` are those of
/// the subjob that progress has not counted yet.
pub(crate) fn upload(
    work: &mut Work,
    inputs: &[PieceInput],
    how: How,
    uncounted_bytes: &mut u64,
) -> Result<Uploaded> {
    // Direct transfers are fastest to addresses that are multiples of this.
    work.align(direct::ALIGN_BYTES);
    let mark = work.mark();
    let to = work.take_all()?;
    let mut upload = Upload {
        feed: Feed {
            work,
            to,
            sent: 0,
            filled: 0,
            buffer: 0,
            flying: VecDeque::new(),
            transfer: how.transfer,
        },
        places: Vec::new(),
        how,
        uncounted_bytes,
        stored: Vec::new(),
        raw: Vec::new(),
    };
    for (number, input) in inputs.iter().enumerate() {
        let Some(table) = input.planned.table() else {
            return Err(ExecError::declined("a stream cannot be read by a GPU").into());
        };
        let blocks = input.blocks.clone();
        match table.properties().codec {
            Codec::None => upload.as_stored(table, input, number, blocks)?,
            codec => upload.compressed(table, input, number, blocks, codec)?,
        }
    }
    let bytes = upload.feed.end()?;
    let places = upload.places;
    work.release(mark);
    Ok(Uploaded {
        bytes: work.take(bytes + SLACK_BYTES)?,
        places,
        mark,
    })
}

/// Whether the host decodes this block. One whose header is damaged is left to the host, too.
fn is_for_host(stored: &[u8], anchor: usize) -> bool {
    let Ok(header) = Header::parse(stored, anchor) else {
        return true;
    };
    let is_large = |flag, bytes| header.has(flag) && bytes > DECODED_PART_MAX;
    header.has(FLAG_ZSTD)
        || is_large(FLAG_VALUES_COMPRESSED, header.value_bytes)
        || is_large(FLAG_COLUMNS_COMPRESSED, header.end - HEADER_BYTES)
}

struct Upload<'x> {
    feed: Feed<'x>,
    places: Vec<Place>,
    how: How,
    uncounted_bytes: &'x mut u64,
    /// Blocks as read.
    stored: Vec<u8>,
    /// A block that the host decoded.
    raw: Vec<u8>,
}

impl Upload<'_> {
    /// Uploads neighbouring blocks as they are stored, in pieces of the size of a buffer.
    fn as_stored(
        &mut self,
        table: &InputTable,
        input: &PieceInput,
        number: usize,
        blocks: Range<usize>,
    ) -> Result<()> {
        let Some(last) = blocks.clone().next_back() else {
            return Ok(());
        };
        let file = &**table.file();
        let around = Around::new(file, table.place(blocks.start).start, table.place(last).end)?;
        self.feed.align()?;
        let is_checked = self.how.is_checked;
        let mut checking = is_checked.then(|| CheckingInput::new(input, blocks.clone()));
        self.add_places(table, number, blocks, around.before);
        let mut at = around.start;
        let mut before = around.before as usize;
        if self.is_direct(file)? && at < around.aligned_end {
            let range = at..around.aligned_end;
            if let Some(to) = self.read_directly(file, range.clone())? {
                at = range.end;
                if let Some(checking) = &mut checking {
                    self.compare(file, range, to, (checking, &mut before))?;
                }
            }
        }
        while at < around.end {
            let to = self.feed.space()?;
            let len = (to.len() as u64).min(around.end - at);
            let to = &mut to[..len as usize];
            around.read(file, at, to)?;
            if let Some(checking) = &mut checking {
                checking.add(&to[before.min(to.len())..])?;
            }
            before = before.saturating_sub(to.len());
            self.feed.fill(len as usize)?;
            self.count(len)?;
            at += len;
        }
        Ok(())
    }

    /// Whether the device reads this file by itself.
    fn is_direct(&self, file: &dyn ReadFile) -> Result<bool> {
        Ok(self.how.transfer == Transfer::Direct && direct::is_open(file)?)
    }

    /// Lets the device read a range of a file by itself. Returns where, or `None` if it refuses the
    /// file.
    fn read_directly(
        &mut self,
        file: &dyn ReadFile,
        range: Range<u64>,
    ) -> Result<Option<Array<u8>>> {
        let bytes = range.end - range.start;
        let to = self.feed.next(bytes)?;
        let uncounted = &mut *self.uncounted_bytes;
        let spend = |work: &Work, bytes| count(work, uncounted, bytes);
        if !direct::read(self.feed.work, file, range, to, spend)? {
            return Ok(None);
        }
        self.feed.sent += bytes;
        Ok(Some(to))
    }

    /// Compares what the device has read with what the host reads, and checks the blocks in it.
    /// `before` bytes come before the first block.
    fn compare(
        &mut self,
        file: &dyn ReadFile,
        range: Range<u64>,
        of_device: Array<u8>,
        (checking, before): (&mut CheckingInput<'_>, &mut usize),
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let to = self.feed.space()?;
            let len = (to.len() as u64).min(range.end - at);
            let to = &mut to[..len as usize];
            file.read_at(at, to)?;
            checking.add(&to[(*before).min(to.len())..])?;
            *before = before.saturating_sub(to.len());
            let expected = crc32c(to);
            let found = of_device.part(at - range.start, len);
            let found = self.feed.work.checksum(found, 0)?;
            if found != expected {
                return Err(GpuError::Mismatch(format!(
                    "{len} bytes at offset {at} of {} have the checksum {found:08x} after a direct \
                     transfer, and {expected:08x} in the file",
                    file.name()
                )));
            }
            self.feed.work.spend(len)?;
            at += len;
        }
        Ok(())
    }

    /// Adds the places of blocks that are uploaded next, as they are stored, after `before` other
    /// bytes.
    fn add_places(&mut self, table: &InputTable, input: usize, blocks: Range<usize>, before: u64) {
        let from = table.place(blocks.start).start;
        let to = self.feed.position() + before;
        for block in blocks {
            let place = table.place(block);
            self.places.push(Place {
                start: to + (place.start - from),
                anchor: to + (place.anchor - from),
                end: to + (place.end - from),
                input: input as u32,
                unused: 0,
            });
        }
    }

    /// Uploads blocks of which some may be for the host.
    fn compressed(
        &mut self,
        table: &Arc<InputTable>,
        input: &PieceInput,
        number: usize,
        blocks: Range<usize>,
        codec: Codec,
    ) -> Result<()> {
        if codec == Codec::Lz4 && self.is_direct(&**table.file())? {
            // If a part is too large for the device, it says so, and the piece is begun again.
            return self.as_stored(table, input, number, blocks);
        }
        // A range that is read is a little larger than its blocks.
        let room = self
            .feed
            .buffer_bytes()
            .saturating_sub(2 * direct::ALIGN_BYTES);
        let mut block = blocks.start;
        while block < blocks.end {
            // As many blocks as fit into a buffer, or one that does not.
            let first = table.place(block);
            let fits = |next: &usize| table.place(*next).end - first.start <= room;
            let end = 1
                + (block + 1..blocks.end)
                    .take_while(fits)
                    .last()
                    .unwrap_or(block);
            let run = block..end;
            block = end;
            let len = table.place(end - 1).end - first.start;
            if len > room {
                let anchor = (first.anchor - first.start) as usize;
                let mut header = [0; HEADER_BYTES];
                let has_header = first.end - first.anchor >= HEADER_BYTES as u64;
                if has_header {
                    table.file().read_at(first.anchor, &mut header)?;
                }
                if has_header && !is_for_host(&header, 0) {
                    self.as_stored(table, input, number, run)?;
                    continue;
                }
                let mut stored = std::mem::take(&mut self.stored);
                stored.resize(len as usize, 0);
                table.file().read_at(first.start, &mut stored)?;
                self.convert(input, number, run.start, &stored, anchor)?;
                self.stored = stored;
            } else {
                self.run(table, input, number, run, codec)?;
            }
            self.count(len)?;
        }
        Ok(())
    }

    /// Uploads blocks that fit into a buffer together.
    fn run(
        &mut self,
        table: &Arc<InputTable>,
        input: &PieceInput,
        number: usize,
        run: Range<usize>,
        codec: Codec,
    ) -> Result<()> {
        let file = &**table.file();
        let from = table.place(run.start).start;
        let len = (table.place(run.end - 1).end - from) as usize;
        let is_kept = |stored: &[u8], block| {
            !is_for_host(stored, (table.place(block).anchor - from) as usize)
        };
        let mut stored = std::mem::take(&mut self.stored);
        stored.clear();
        if codec == Codec::Lz4 {
            // Mostly the device takes all of them, and the host need not copy them.
            self.feed.send()?;
            let around = Around::new(file, from, from + len as u64)?;
            let all = &mut self.feed.space()?[..around.len() as usize];
            around.read(file, around.start, all)?;
            let to = &all[around.before as usize..][..len];
            if self.how.is_checked {
                CheckingInput::new(input, run.clone()).add(to)?;
            }
            if run.clone().all(|block| is_kept(to, block)) {
                let filled = all.len();
                self.add_places(table, number, run, around.before);
                self.stored = stored;
                return self.feed.fill(filled);
            }
            stored.extend_from_slice(to);
        } else {
            stored.resize(len, 0);
            file.read_at(from, &mut stored)?;
            if self.how.is_checked {
                CheckingInput::new(input, run.clone()).add(&stored)?;
            }
        }
        for block in run {
            let place = table.place(block);
            let own = &stored[(place.start - from) as usize..(place.end - from) as usize];
            if is_kept(&stored, block) {
                self.add_places(table, number, block..block + 1, 0);
                self.feed.put(own)?;
            } else {
                let anchor = (place.anchor - place.start) as usize;
                self.convert(input, number, block, own, anchor)?;
            }
        }
        self.stored = stored;
        Ok(())
    }

    /// Uploads the uncompressed form of a block.
    fn convert(
        &mut self,
        input: &PieceInput,
        number: usize,
        block: usize,
        stored: &[u8],
        anchor: usize,
    ) -> Result<()> {
        let Ok(view) = open_stored(stored, anchor, self.how.verify, &mut self.raw) else {
            return Err(GpuError::BadBlock {
                input: input.planned.number,
                block,
            });
        };
        let (values, columns) = view.bytes().split_at(view.at());
        let (header, columns) = columns[..view.header().columns_bytes()].split_at(HEADER_BYTES);
        let mut header = header.to_vec();
        header[6] &= !(FLAG_VALUES_COMPRESSED | FLAG_COLUMNS_COMPRESSED | FLAG_ZSTD);
        header[24..28].copy_from_slice(&crc32c(values).to_le_bytes());
        let crc = crc32c_append(crc32c(&header), columns);
        let start = self.feed.position();
        self.feed.put(values)?;
        let anchor = self.feed.position();
        self.feed.put(&header)?;
        self.feed.put(columns)?;
        self.feed.put(&crc.to_le_bytes())?;
        self.places.push(Place {
            start,
            anchor,
            end: self.feed.position(),
            input: number as u32,
            unused: 0,
        });
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        count(self.feed.work, self.uncounted_bytes, bytes)
    }
}

/// Counts bytes that were read. Bytes that are read again for the next piece count once.
fn count(work: &Work, uncounted_bytes: &mut u64, bytes: u64) -> Result<()> {
    let counted = bytes.min(*uncounted_bytes);
    *uncounted_bytes -= counted;
    let progress = &work.ctx.progress;
    progress.bytes_in.fetch_add(counted, Ordering::Relaxed);
    progress.beat();
    work.spend(bytes)
}

/// Computes the checksums of input blocks that arrive in pieces.
struct CheckingInput<'a> {
    input: &'a PieceInput,
    /// The blocks that are not complete, and the bytes of the first of them so far.
    blocks: Range<usize>,
    block: Vec<u8>,
}

impl CheckingInput<'_> {
    fn new(input: &PieceInput, blocks: Range<usize>) -> CheckingInput<'_> {
        CheckingInput {
            input,
            blocks,
            block: Vec::new(),
        }
    }

    /// Fails if a block is damaged.
    fn add(&mut self, mut bytes: &[u8]) -> Result<()> {
        let Some(table) = self.input.planned.table() else {
            return Ok(());
        };
        while !self.blocks.is_empty() {
            let place = table.place(self.blocks.start);
            let missing = place.stored_bytes() as usize - self.block.len();
            if bytes.len() < missing {
                break;
            }
            let (first, others) = bytes.split_at(missing);
            bytes = others;
            let anchor = (place.anchor - place.start) as usize;
            let is_sound = match self.block.is_empty() {
                true => has_sums(first, anchor),
                false => {
                    self.block.extend_from_slice(first);
                    has_sums(&self.block, anchor)
                }
            };
            self.block.clear();
            if !is_sound {
                return Err(GpuError::BadBlock {
                    input: self.input.planned.number,
                    block: self.blocks.start,
                });
            }
            self.blocks.start += 1;
        }
        self.block.extend_from_slice(bytes);
        Ok(())
    }
}

/// Whether a stored block has the two checksums that are stored in it.
pub(crate) fn has_sums(block: &[u8], values_bytes: usize) -> bool {
    let (values, columns) = block.split_at(values_bytes.min(block.len()));
    let word = |at: usize| {
        let bytes = columns.get(at..at.saturating_add(4))?;
        Some(u32::from_le_bytes(*bytes.first_chunk()?))
    };
    let end = columns.len().saturating_sub(4);
    word(end) == Some(crc32c(&columns[..end])) && word(24) == Some(crc32c(values))
}

/// Fills the buffers of the ring one after the other, and starts their copies to the device.
struct Feed<'x> {
    work: &'x mut Work,
    /// Where the bytes go.
    to: Array<u8>,
    /// The bytes whose copies were started.
    sent: u64,
    /// The bytes in the present buffer.
    filled: usize,
    /// The present buffer.
    buffer: usize,
    /// The events of the copies that were started last, at most one for each buffer.
    flying: VecDeque<Event>,
    transfer: Transfer,
}

impl Feed<'_> {
    /// The offset of the next byte.
    fn position(&self) -> u64 {
        self.sent + self.filled as u64
    }

    fn buffer_bytes(&self) -> u64 {
        self.work.lane.ring[self.buffer].len() as u64
    }

    /// The free bytes of the present buffer, at least one.
    fn space(&mut self) -> Result<&mut [u8]> {
        if self.flying.len() == self.work.lane.ring.len()
            && let Some(event) = self.flying.pop_front()
        {
            self.work.take_event(event)?;
        }
        Ok(&mut self.work.lane.ring[self.buffer].bytes_mut()?[self.filled..])
    }

    /// Goes on after bytes that were written to the free ones.
    fn fill(&mut self, bytes: usize) -> Result<()> {
        self.filled += bytes;
        match self.filled as u64 == self.buffer_bytes() {
            true => self.send(),
            false => Ok(()),
        }
    }

    /// Makes the next bytes begin at an aligned address, in the ring and on the device, so that
    /// direct I/O can fill it.
    fn align(&mut self) -> Result<()> {
        let align = direct::ALIGN_BYTES;
        if !self.position().is_multiple_of(align) || !(self.filled as u64).is_multiple_of(align) {
            self.send()?;
            self.sent = self.sent.next_multiple_of(align);
        }
        Ok(())
    }

    /// The next part of the target, which is filled in another way. Nothing is in the ring.
    fn next(&mut self, bytes: u64) -> Result<Array<u8>> {
        self.send()?;
        self.check_room(bytes)?;
        Ok(self.to.part(self.sent, bytes))
    }

    /// Fails if there is no room for this many bytes after those that were sent.
    fn check_room(&mut self, bytes: u64) -> Result<()> {
        let wanted_bytes = self.sent.saturating_add(bytes).saturating_add(SLACK_BYTES);
        if wanted_bytes > self.to.count() {
            self.wait()?;
            return Err(GpuError::NoRoom { wanted_bytes });
        }
        Ok(())
    }

    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let to = self.space()?;
            let (now, later) = bytes.split_at(to.len().min(bytes.len()));
            to[..now.len()].copy_from_slice(now);
            self.fill(now.len())?;
            bytes = later;
        }
        Ok(())
    }

    /// Starts the copy of what is in the present buffer.
    fn send(&mut self) -> Result<()> {
        if self.filled == 0 {
            return Ok(());
        }
        self.check_room(self.filled as u64)?;
        let to = self.to.part(self.sent, self.filled as u64);
        let event = self.work.copy_in(self.buffer, self.filled, to)?;
        self.flying.push_back(event);
        self.buffer = (self.buffer + 1) % self.work.lane.ring.len();
        self.sent += self.filled as u64;
        self.filled = 0;
        match self.transfer {
            Transfer::Plain => self.wait(),
            Transfer::Pipeline | Transfer::Direct => Ok(()),
        }
    }

    fn wait(&mut self) -> Result<()> {
        while let Some(event) = self.flying.pop_front() {
            self.work.take_event(event)?;
        }
        Ok(())
    }

    /// Waits for all copies. Returns the number of bytes.
    fn end(mut self) -> Result<u64> {
        self.send()?;
        self.wait()?;
        Ok(self.sent)
    }
}
