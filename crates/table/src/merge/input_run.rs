//! The inputs of a run as a sequence of decoded blocks.
//!
//! An [`InputRun`] reads its inputs (tables and streams that follow each other) block by block. It
//! reads pieces of about 1 MiB into a reused buffer, verifies each block before it trusts anything
//! in it, decodes all of its keys, and computes their [`Head`]s. The merge looks only at
//! `heads[pos]`, and at key, trailer and value of the winner. With [`Reads::Columns`] it reads
//! header and columns of each block and not the values, so keys, trailers and the lengths of values
//! are known. Such inputs mostly lie behind a link, so their pieces are smaller.
//!
//! Invariants: positions `pos..end` of the current block are within the input's bounds. Every key
//! in it begins with the job's prefix. (Each key is compared with it, unless the prefix of the
//! block is at least as long. Then the first key shows that of all others.) Sequence numbers are in
//! the range that the job states for the input. Kinds are put or delete.
//!
//! Threading: one owner.

use std::ops::Range;
use std::sync::Arc;

use siltstone_storage::{Access, ReadPurpose, ReadRange};

use super::ahead::ColumnsAhead;
use super::table::InputTable;
use super::tree::{EXHAUSTED, HEAD_KEY_BYTES, Head};
use crate::block::{Decoded, open_columns, open_stored};
use crate::error::{Damage, TableError};
use crate::exec::plan::{Origin, PlannedInput};
use crate::exec::{EntryStream, ExecError};
use crate::index::Place;
use crate::key::{Kind, MAX_SEQ, kind_of, raw_bytes, seek_trailer};

/// The number of bytes of a table that are read at once, but at least one block.
const PIECE_BYTES: u64 = 1 << 20;
/// The number of bytes of columns that are read at once, but those of one block at least. A job
/// that is cancelled waits for the present piece, and a link may be slow.
const COLUMNS_PIECE_BYTES: u64 = 256 << 10;
/// The number of bytes of a stream that are copied at once, but at least one entry.
const CHUNK_BYTES: usize = 64 << 10;
/// The largest number of entries that are copied at once.
const CHUNK_ENTRIES: usize = 1024;

/// The largest number of blocks whose columns are read at once.
const COLUMNS_AT_ONCE: usize = 1024;

/// What is read of the blocks of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// Everything.
    All,
    /// Header and columns. The value of no entry is known. Streams cannot be read in this way.
    Columns,
}

enum State {
    Idle,
    Table {
        table: Arc<InputTable>,
        /// The next block.
        block: usize,
        /// The block after the last one that can have keys within the input's bounds.
        end: usize,
        /// The block after the last one of the piece in memory.
        piece_end: usize,
        /// The offset of the next block in the piece.
        piece_at: usize,
    },
    Stream(Box<dyn EntryStream>),
}

/// The inputs of a run. See the module.
pub(crate) struct InputRun {
    inputs: std::vec::IntoIter<PlannedInput>,
    input: Option<PlannedInput>,
    state: State,
    /// The prefix of all keys of the subjob.
    prefix: Arc<[u8]>,
    verify: bool,
    reads: Reads,
    /// The piece in memory, or the values of a stream.
    buffer: Vec<u8>,
    /// The uncompressed form of a compressed block.
    scratch: Vec<u8>,
    /// Whether the current block's values are in `scratch`, and the offset of its first value.
    values_in_scratch: bool,
    values_at: usize,
    entries: Decoded,
    /// The number of the block that they are from.
    block: u32,
    heads: Vec<Head>,
    pos: usize,
    end: usize,
    /// Who reads pieces of columns ahead, if anybody does.
    ahead: Option<ReadAhead>,
    /// The number of entries that were read since the counters were last taken.
    pub entries_read: u64,
    /// Their raw bytes.
    pub raw_bytes_read: u64,
    /// The bytes that were read from tables since the counters were last taken.
    pub bytes_read: u64,
}

/// A run's share of a [`ColumnsAhead`].
struct ReadAhead {
    reader: Arc<ColumnsAhead>,
    /// The piece that was asked for: its ticket, its length, the number of its input, its blocks.
    asked: Option<(u64, u64, u32, Range<usize>)>,
    /// The buffer of the piece before the one in memory.
    spare: Vec<u8>,
}

impl ReadAhead {
    /// Asks for a piece.
    fn ask(&mut self, input: u32, table: &Arc<InputTable>, (blocks, len): (Range<usize>, u64)) {
        let spare = std::mem::take(&mut self.spare);
        let ticket = self.reader.want(table, blocks.clone(), len, spare);
        self.asked = Some((ticket, len, input, blocks));
    }

    /// Takes the piece that was asked for, if it is this one.
    fn take(
        &mut self,
        input: u32,
        blocks: &Range<usize>,
        buffer: &mut Vec<u8>,
    ) -> Result<bool, ExecError> {
        let Some((ticket, _, of, asked)) = self.asked.take() else {
            return Ok(false);
        };
        let read = self.reader.take(ticket)?;
        let is_it = of == input && asked == *blocks;
        self.spare = match is_it {
            true => std::mem::replace(buffer, read),
            false => read,
        };
        Ok(is_it)
    }

    fn buffer_bytes(&self) -> u64 {
        let asked = self.asked.as_ref().map_or(0, |(_, len, ..)| *len);
        asked.max(self.spare.capacity() as u64)
    }
}

/// The bytes that are read of a block.
fn size_of_block(place: Place, reads: Reads) -> u64 {
    match reads {
        Reads::All => place.stored_bytes(),
        Reads::Columns => place.end - place.anchor,
    }
}

/// The blocks from `block` on that are read at once, and their bytes. There is one at least.
fn piece_at(table: &InputTable, reads: Reads, block: usize, end: usize) -> (Range<usize>, u64) {
    let size = |block| size_of_block(table.place(block), reads);
    let most = match reads {
        Reads::All => PIECE_BYTES,
        Reads::Columns => COLUMNS_PIECE_BYTES,
    };
    let mut len = size(block);
    let mut next = block + 1;
    while next < end && len + size(next) <= most {
        len += size(next);
        next += 1;
        if reads == Reads::Columns && next - block >= COLUMNS_AT_ONCE {
            break;
        }
    }
    (block..next, len)
}

impl InputRun {
    /// A run of inputs that follow each other. `prefix` is the prefix of all keys.
    pub fn new(
        inputs: Vec<PlannedInput>,
        prefix: Arc<[u8]>,
        verify: bool,
        reads: Reads,
    ) -> InputRun {
        InputRun {
            inputs: inputs.into_iter(),
            input: None,
            state: State::Idle,
            prefix,
            verify,
            reads,
            buffer: Vec::new(),
            scratch: Vec::new(),
            values_in_scratch: false,
            values_at: 0,
            entries: Decoded::default(),
            block: 0,
            heads: Vec::new(),
            pos: 0,
            end: 0,
            ahead: None,
            entries_read: 0,
            raw_bytes_read: 0,
            bytes_read: 0,
        }
    }

    /// Has pieces of columns read ahead by `reader`, and asks for the first one.
    pub fn read_ahead(&mut self, reader: &Arc<ColumnsAhead>) {
        self.ahead = Some(ReadAhead {
            reader: Arc::clone(reader),
            asked: None,
            spare: Vec::new(),
        });
        self.ask_for(None);
    }

    /// Asks for the piece that begins at a block of the current input, if there is one, and for the
    /// first one of the next input otherwise.
    fn ask_for(&mut self, rest: Option<(u32, &Arc<InputTable>, Range<usize>)>) {
        let Some(ahead) = &mut self.ahead else {
            return;
        };
        if let Some((input, table, blocks)) = rest
            && !blocks.is_empty()
        {
            let piece = piece_at(table, self.reads, blocks.start, blocks.end);
            return ahead.ask(input, table, piece);
        }
        if let Some(next) = self.inputs.as_slice().first()
            && let Origin::Table(table) = &next.origin
        {
            let blocks = table.blocks_of(&next.bounds);
            if !blocks.is_empty() {
                let piece = piece_at(table, self.reads, blocks.start, blocks.end);
                ahead.ask(next.number, table, piece);
            }
        }
    }

    /// The head of the current entry, or [`EXHAUSTED`] at the end.
    #[inline(always)]
    pub fn head(&self) -> Head {
        if self.pos < self.end {
            self.heads[self.pos]
        } else {
            EXHAUSTED
        }
    }

    /// The current user key.
    #[inline(always)]
    pub fn key(&self) -> &[u8] {
        self.entries.key(self.pos)
    }

    /// The current trailer.
    #[inline(always)]
    pub fn trailer(&self) -> u64 {
        self.entries.trailers[self.pos]
    }

    /// The current value. Call this only with [`Reads::All`].
    #[inline(always)]
    pub fn value(&self) -> &[u8] {
        let range = self.entries.value_range(self.pos);
        let from = if self.values_in_scratch {
            &self.scratch
        } else {
            &self.buffer
        };
        &from[self.values_at + range.start..self.values_at + range.end]
    }

    /// The length of the current value in bytes, which is known whether the value was read or not.
    #[inline(always)]
    pub fn value_len(&self) -> usize {
        self.entries.value_range(self.pos).len()
    }

    /// The bytes of the current value within the uncompressed values of its block.
    pub fn value_range(&self) -> Range<usize> {
        self.entries.value_range(self.pos)
    }

    /// Where the current entry is in its table: the number of the input, the block, and the number
    /// of the entry in the block.
    #[inline(always)]
    pub fn position(&self) -> (u32, u32, u32) {
        let input = self.input.as_ref().map_or(0, |input| input.number);
        (input, self.block, self.pos as u32)
    }

    /// The name of the input of the current entry.
    pub fn name(&self) -> &str {
        self.input.as_ref().map_or("", |input| input.name.as_str())
    }

    /// Moves to the next entry in the block. Returns false at the end of the block, when
    /// [`InputRun::refill`] must be called.
    #[inline(always)]
    pub fn step(&mut self) -> bool {
        self.pos += 1;
        self.pos < self.end
    }

    /// Loads the next block that has entries within bounds. Afterwards [`InputRun::head`] is its
    /// first entry, or the end.
    pub fn refill(&mut self) -> Result<(), ExecError> {
        loop {
            (self.pos, self.end) = (0, 0);
            let loaded = match self.state {
                State::Idle => {
                    let Some(input) = self.inputs.next() else {
                        return Ok(());
                    };
                    self.enter(input)?;
                    continue;
                }
                State::Table { .. } => self.load_block()?,
                State::Stream(_) => self.load_chunk()?,
            };
            if !loaded {
                self.state = State::Idle;
                continue;
            }
            self.check_and_clip()?;
            if self.pos < self.end {
                return Ok(());
            }
        }
    }

    fn enter(&mut self, input: PlannedInput) -> Result<(), ExecError> {
        self.state = match &input.origin {
            Origin::Table(table) => {
                let blocks = table.blocks_of(&input.bounds);
                State::Table {
                    table: table.clone(),
                    block: blocks.start,
                    end: blocks.end,
                    piece_end: blocks.start,
                    piece_at: 0,
                }
            }
            Origin::Stream(_) if self.reads == Reads::Columns => {
                return Err(TableError::Misuse("a stream has no columns to read").into());
            }
            Origin::Stream(stream) => State::Stream(stream.open(&input.bounds)?),
        };
        self.input = Some(input);
        Ok(())
    }

    /// Decodes the next block of the table. Returns false at its end.
    fn load_block(&mut self) -> Result<bool, ExecError> {
        let State::Table {
            block,
            end,
            piece_end,
            ..
        } = &self.state
        else {
            return Ok(false);
        };
        if block >= end {
            return Ok(false);
        }
        if block == piece_end {
            self.load_piece()?;
        }
        let State::Table {
            table,
            block,
            piece_at,
            ..
        } = &mut self.state
        else {
            return Ok(false);
        };
        let place = table.place(*block);
        let start = *piece_at;
        *piece_at += size_of_block(place, self.reads) as usize;
        let stored = &self.buffer[start..*piece_at];
        let (reads, verify) = (self.reads, self.verify);
        let (scratch, entries) = (&mut self.scratch, &mut self.entries);
        let values = decode_block(table, place, stored, reads, verify, scratch, entries)?;
        self.values_in_scratch = values.in_scratch;
        self.values_at = values.at + if values.in_scratch { 0 } else { start };
        self.block = *block as u32;
        *block += 1;
        Ok(true)
    }

    /// Reads the piece that begins with the next block of the table.
    fn load_piece(&mut self) -> Result<(), ExecError> {
        let State::Table {
            table,
            block,
            end,
            piece_end,
            piece_at: at,
        } = &mut self.state
        else {
            return Ok(());
        };
        let (blocks, len) = piece_at(table, self.reads, *block, *end);
        let input = self.input.as_ref().map_or(0, |input| input.number);
        let is_here = match &mut self.ahead {
            Some(ahead) => ahead.take(input, &blocks, &mut self.buffer)?,
            None => false,
        };
        if !is_here {
            self.buffer.resize(len as usize, 0);
            match self.reads {
                Reads::All => {
                    let first = table.place(*block).start;
                    table.file().read_at(first, &mut self.buffer)?;
                    let ahead = table.place(*end - 1).end - (first + len);
                    if ahead > 0 {
                        let ahead = ahead.min(2 * PIECE_BYTES);
                        table.file().advise(Access::WillNeed, first + len, ahead);
                    }
                }
                Reads::Columns => read_columns(table, blocks.clone(), &mut self.buffer)?,
            }
        }
        self.bytes_read += len;
        (*at, *piece_end) = (0, blocks.end);
        if self.ahead.is_some() {
            let (table, rest) = (table.clone(), blocks.end..*end);
            self.ask_for(Some((input, &table, rest)));
        }
        Ok(())
    }

    /// Copies the next entries of the stream. Returns false at its end.
    fn load_chunk(&mut self) -> Result<bool, ExecError> {
        let State::Stream(stream) = &mut self.state else {
            return Ok(false);
        };
        let e = &mut self.entries;
        e.keys.clear();
        e.key_ends.clear();
        e.trailers.clear();
        e.value_ends.clear();
        e.prefix_len = 0;
        self.buffer.clear();
        (self.values_in_scratch, self.values_at) = (false, 0);
        while e.trailers.len() < CHUNK_ENTRIES && self.buffer.len() < CHUNK_BYTES {
            let Some(entry) = stream.next_entry()? else {
                break;
            };
            e.keys.extend_from_slice(entry.user_key);
            e.key_ends.push(e.keys.len() as u32);
            e.trailers.push(entry.trailer);
            self.buffer.extend_from_slice(entry.value);
            e.value_ends.push(self.buffer.len() as u32);
        }
        let end = e.keys.len();
        e.keys.resize(end + Decoded::SLACK, 0);
        Ok(!e.is_empty())
    }

    /// The memory of its pieces and blocks, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        let e = &self.entries;
        let decoded = e.keys.capacity()
            + 4 * (e.key_ends.capacity() + e.value_ends.capacity())
            + 8 * e.trailers.capacity();
        let heads = size_of::<Head>() * self.heads.capacity();
        let ahead = self.ahead.as_ref().map_or(0, ReadAhead::buffer_bytes);
        (self.buffer.capacity() + self.scratch.capacity() + decoded + heads) as u64 + ahead
    }

    /// The number of entries in memory from the current one on, and their raw bytes.
    pub fn unread(&self) -> (u64, u64) {
        if self.pos >= self.end {
            return (0, 0);
        }
        let e = &self.entries;
        let key_bytes = e.key_ends[self.end - 1] as usize
            - if self.pos == 0 {
                0
            } else {
                e.key_ends[self.pos - 1] as usize
            };
        let value_bytes = e.value_range(self.end - 1).end - e.value_range(self.pos).start;
        let count = (self.end - self.pos) as u64;
        (
            count,
            raw_bytes(key_bytes, value_bytes) + (count - 1) * crate::key::ENTRY_OVERHEAD_BYTES,
        )
    }

    /// Checks the block, restricts it to the input's bounds, and computes heads and overrides.
    fn check_and_clip(&mut self) -> Result<(), ExecError> {
        let Some(input) = &self.input else {
            return Ok(());
        };
        let e = &mut self.entries;
        let n = e.len();
        check_trailers(input, &mut e.trailers)?;
        let p = self.prefix.len();
        check_prefix(input, e)?;
        // Only the first and the last block of an input need a search for the bounds.
        let (start, end) = (input.bounds.start.as_slice(), input.bounds.end.as_deref());
        let search = |bound: &[u8]| crate::coding::partition_point(n, |i| e.key(i) < bound);
        self.pos = if e.key(0) < start { search(start) } else { 0 };
        self.end = match end {
            Some(end) if e.key(n - 1) >= end => search(end),
            _ => n,
        };
        if self.end < n {
            // Everything that follows is past the end and need not be read.
            self.state = State::Idle;
        }
        self.heads.clear();
        let mut at = 0;
        for key_end in &e.key_ends {
            let key_end = *key_end as usize;
            let len = key_end.saturating_sub(at + p);
            let Some(bytes) = e.keys.get(at + p..).and_then(|b| b.first_chunk::<16>()) else {
                let what = "length of an input's key";
                let damage = Damage::new(what, 0, p as u64, (key_end - at) as u64);
                return Err(ExecError::Failed(damage.in_file(&input.name, 0)));
            };
            // The 16 bytes may include bytes of the next key, which are masked.
            let mask = !(Head::MAX >> (8 * len.min(HEAD_KEY_BYTES)));
            self.heads
                .push(u128::from_be_bytes(*bytes) & mask | len.min(HEAD_KEY_BYTES + 1) as u128);
            at = key_end;
        }
        let (entries, raw) = self.unread();
        self.entries_read += entries;
        self.raw_bytes_read += raw;
        Ok(())
    }
}

/// Reads header and columns of these blocks, one after the other, into `buffer`, which has their
/// length.
pub(super) fn read_columns(
    table: &InputTable,
    blocks: Range<usize>,
    buffer: &mut [u8],
) -> Result<(), TableError> {
    let mut ranges = Vec::with_capacity(blocks.len());
    let mut rest = buffer;
    for block in blocks {
        let place = table.place(block);
        let (buf, after) = rest.split_at_mut((place.end - place.anchor) as usize);
        rest = after;
        ranges.push(ReadRange {
            offset: place.anchor,
            buf,
        });
    }
    let file = table.file();
    Ok(file.read_ranges_for(ReadPurpose::Columns, &mut ranges)?)
}

/// Where the values of a decoded block are.
pub(crate) struct ValuesAt {
    /// They are in the scratch buffer, because the block is compressed.
    pub in_scratch: bool,
    /// The offset of the first value, in the scratch buffer or in the stored bytes.
    pub at: usize,
}

/// Verifies what was read of the block at `place`, if `verify` is set, and decodes its entries. A
/// compressed block is uncompressed to `scratch`.
pub(crate) fn decode_block(
    table: &InputTable,
    place: Place,
    stored: &[u8],
    reads: Reads,
    verify: bool,
    scratch: &mut Vec<u8>,
    entries: &mut Decoded,
) -> Result<ValuesAt, TableError> {
    let anchor = (place.anchor - place.start) as usize;
    let (view, from) = match reads {
        Reads::All => (open_stored(stored, anchor, verify, scratch), place.start),
        Reads::Columns => (open_columns(stored, anchor, verify, scratch), place.anchor),
    };
    let damaged = |d: Damage| d.in_file(table.file().name(), from);
    let view = view.map_err(damaged)?;
    view.decode_all(entries).map_err(damaged)?;
    Ok(ValuesAt {
        in_scratch: !std::ptr::eq(view.bytes(), stored),
        at: view.values(),
    })
}

/// Checks that the keys of a block begin with the prefix that all keys of the subjob have.
///
/// Heads leave out the prefix. So a key with another prefix could have the head of a key that
/// differs, and be dropped as a version of it. The order of keys does not show that either, because
/// it is checked with the heads. An honest block of a table has a prefix that is long enough, and
/// one comparison is for all of its keys.
pub(crate) fn check_prefix(input: &PlannedInput, entries: &Decoded) -> Result<(), ExecError> {
    let prefix = &*input.prefix;
    let compared = match entries.prefix_len < prefix.len() {
        true => entries.len(),
        false => 1,
    };
    if let Some(i) = (0..compared).find(|i| !entries.key(*i).starts_with(prefix)) {
        let shared = crate::key::common_prefix(entries.key(i), prefix);
        let what = "prefix of an input's keys";
        let damage = Damage::new(what, 0, prefix.len() as u64, shared as u64);
        return Err(ExecError::Failed(damage.in_file(&input.name, 0)));
    }
    Ok(())
}

/// Checks that kinds and sequence numbers of a block are those that the job allows for the input,
/// and gives the entries the number that the job has for them, if it has one.
pub(crate) fn check_trailers(input: &PlannedInput, trailers: &mut [u64]) -> Result<(), ExecError> {
    let (mut min, mut max, mut kinds) = (u64::MAX, 0, 0);
    for t in trailers.iter() {
        min = min.min(*t);
        max = max.max(*t);
        kinds |= 1u64 << (*t & 0xff).min(63);
    }
    if kinds & !(1 << Kind::Delete as u8 | 1 << Kind::Put as u8) != 0 {
        return Err(bad_kind(&input.name, trailers));
    }
    let damage = |what, expected, found| -> ExecError {
        ExecError::Failed(Damage::new(what, 0, expected, found).in_file(&input.name, 0))
    };
    if let Some(seq) = input.seq_override {
        trailers.iter_mut().for_each(|t| *t = seq << 8 | *t & 0xff);
    } else if max > seek_trailer(input.seqs.1.min(MAX_SEQ)) {
        return Err(damage(
            "largest sequence number of an input",
            input.seqs.1,
            max >> 8,
        ));
    } else if min < input.seqs.0 << 8 {
        return Err(damage(
            "smallest sequence number of an input",
            input.seqs.0,
            min >> 8,
        ));
    }
    Ok(())
}

/// The error for a kind that is neither put nor delete.
#[cold]
fn bad_kind(name: &str, trailers: &[u64]) -> ExecError {
    for t in trailers {
        match kind_of(*t) {
            Some(Kind::Put | Kind::Delete) => {}
            Some(kind @ (Kind::Merge | Kind::ValueAddress)) => {
                return ExecError::declined(format!(
                    "input {name} holds entries of the reserved kind {kind:?}"
                ));
            }
            _ => {
                let damage = Damage::new("kind of an entry", 0, Kind::Put as u64, *t & 0xff);
                return ExecError::Failed(damage.in_file(name, 0));
            }
        }
    }
    ExecError::Failed(TableError::Misuse(
        "an entry's kind is neither put nor delete",
    ))
}
