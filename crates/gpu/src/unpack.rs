//! The phase that makes entries of stored blocks: headers, checksums, columns, keys, order, clips.
//!
//! Threading: see `lane`.

use crate::error::{GpuError, Result, check};
use crate::kernels::{
    Array, Block, CheckOrder, ChecksumBlocks, Clip, CompareChecksums, Entries, Input, InputEntries,
    Keys, Place, UnpackEntries, UnpackHeaders, UnpackKeys,
};
use crate::lane::{Batch, Slot, Work};
use crate::lz4::{self, StoredBlocks};
use crate::piece::{Found, PieceInput};
use crate::upload::Uploaded;

/// The threads of a CUDA block for a block of a table.
const BLOCK_THREADS: u32 = 64;

/// A length that stands for no bound.
const NO_BOUND: u32 = u32::MAX;

/// Stands for the place of a block that is not known yet.
const NO_PLACE: Place = Place {
    start: 0,
    anchor: 0,
    end: 0,
    input: 0,
    unused: 0,
};

/// The entries of a piece's inputs.
pub(crate) struct Unpacked {
    /// The stored bytes of the inputs, and what was compressed in them behind.
    pub bytes: Array<u8>,
    /// Keys and trailers of all entries, input after input.
    pub entries: Entries,
    pub heads_high: Array<u64>,
    pub heads_low: Array<u64>,
    pub value_places: Array<u64>,
    pub value_lens: Array<u32>,
    /// For each input: its first entry within its bounds, and the one after the last.
    pub ranges: Array<u32>,
    /// The same, on the host.
    pub host_ranges: Vec<u32>,
}

/// Keys on the device, each padded to a multiple of 8 bytes.
#[derive(Default)]
pub(crate) struct KeyList {
    pub words: Vec<u64>,
    pub places: Vec<u32>,
    pub lens: Vec<u32>,
}

impl KeyList {
    pub fn push(&mut self, key: &[u8]) {
        self.places.push(self.words.len() as u32);
        self.lens.push(key.len() as u32);
        self.words.extend(words_of(key));
    }

    pub fn push_none(&mut self) {
        self.places.push(self.words.len() as u32);
        self.lens.push(NO_BOUND);
    }
}

/// A key as little-endian words, padded with zeros.
pub(crate) fn words_of(key: &[u8]) -> impl Iterator<Item = u64> + '_ {
    key.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    })
}

/// Arrays for what is known of the inputs, and for what is found in their blocks. They are taken
/// before the blocks are read, so that memory behind the blocks can be added to them.
pub(crate) struct Frame {
    /// What is copied to the device when the places of the blocks are known, too.
    batch: Batch,
    batch_array: Array<u8>,
    places_slot: Slot<Place>,
    inputs: Array<Input>,
    bounds: Array<u64>,
    bound_places: Array<u32>,
    bound_lens: Array<u32>,
    prefix: Array<u64>,
    prefix_len: u32,
    places: Array<Place>,
    blocks: Array<Block>,
    raw_bytes: Array<u64>,
    first_entries: Array<u32>,
    key_words: Array<u64>,
    crcs: Array<u32>,
    input_entries: Array<u32>,
    errors: Array<u64>,
}

/// Takes the arrays.
pub(crate) fn prepare(work: &mut Work, inputs: &[PieceInput], prefix: &[u8]) -> Result<Frame> {
    let blocks: u64 = inputs.iter().map(|input| input.blocks.len() as u64).sum();
    let mut batch = Batch::default();
    // The places of the blocks are known when the blocks have been read.
    let places_slot = batch.add(&vec![NO_PLACE; blocks as usize]);
    let rows: Vec<Input> = inputs.iter().map(row_of).collect();
    let inputs_slot = batch.add(&rows);
    let mut keys = KeyList::default();
    for input in inputs {
        keys.push(&input.bounds.start);
        match &input.bounds.end {
            Some(end) => keys.push(end),
            None => keys.push_none(),
        }
    }
    // An array needs an item that a kernel may name, even if nothing reads it.
    keys.words.push(0);
    let bound_words = batch.add(&keys.words);
    let bound_places = batch.add(&keys.places);
    let bound_lens = batch.add(&keys.lens);
    let mut prefix_words: Vec<u64> = words_of(prefix).collect();
    prefix_words.push(0);
    let prefix_slot = batch.add(&prefix_words);
    let array = work.take_batch(&batch)?;
    let frame = Frame {
        batch_array: array,
        inputs: inputs_slot.of(array),
        bounds: bound_words.of(array),
        bound_places: bound_places.of(array),
        bound_lens: bound_lens.of(array),
        prefix: prefix_slot.of(array),
        prefix_len: prefix.len() as u32,
        places: places_slot.of(array),
        places_slot,
        batch,
        blocks: work.take(blocks)?,
        raw_bytes: work.take(blocks + 1)?,
        first_entries: work.take(blocks + 1)?,
        key_words: work.take(blocks + 1)?,
        crcs: work.take_zeros(2 * blocks)?,
        input_entries: work.take(inputs.len() as u64 + 1)?,
        errors: work.take(1)?,
    };
    work.fill(frame.errors, 0xff)?;
    Ok(frame)
}

/// Checks headers and checksums, and computes how much is in the blocks.
fn read_headers(work: &mut Work, frame: &Frame, uploaded: &Uploaded, verify: bool) -> Result<()> {
    let (blocks, bytes) = (frame.blocks.count(), uploaded.bytes);
    let args = UnpackHeaders {
        bytes,
        places: frame.places,
        blocks: frame.blocks,
        raw_bytes: frame.raw_bytes,
        entries: frame.first_entries,
        key_words: frame.key_words,
        errors: frame.errors,
        count: blocks,
        stored_bytes: uploaded.len(),
    };
    work.launch("unpack_headers", blocks, &args)?;
    if verify {
        let tables = work.lane.crc_tables;
        let args = ChecksumBlocks {
            bytes,
            places: frame.places,
            tables,
            crcs: frame.crcs,
            count: blocks,
        };
        work.launch_blocks("checksum_blocks", blocks, BLOCK_THREADS, &args)?;
        let args = CompareChecksums {
            bytes,
            places: frame.places,
            blocks: frame.blocks,
            crcs: frame.crcs,
            errors: frame.errors,
            count: blocks,
        };
        work.launch("compare_checksums", blocks, &args)?;
    }
    work.scan64(frame.raw_bytes, blocks)?;
    work.scan64(frame.key_words, blocks)?;
    work.scan32(frame.first_entries, blocks)
}

/// Unpacks the blocks of the inputs.
pub(crate) fn unpack(
    work: &mut Work,
    inputs: &[PieceInput],
    mut frame: Frame,
    mut uploaded: Uploaded,
    verify: bool,
) -> Result<Unpacked> {
    frame.batch.replace(&frame.places_slot, &uploaded.places);
    work.put_batch(&frame.batch, frame.batch_array)?;
    let Frame {
        raw_bytes,
        first_entries,
        key_words,
        input_entries,
        errors,
        ..
    } = frame;
    let blocks = frame.blocks.count();
    read_headers(work, &frame, &uploaded, verify)?;
    let input_count = inputs.len() as u64;
    let args = InputEntries {
        first_entries,
        inputs: input_entries,
        input_array: frame.inputs,
        count: input_count,
        blocks,
    };
    work.launch("input_entries", input_count + 1, &args)?;
    let found = work.download(&[
        errors.cast(),
        raw_bytes.part(blocks, 1).cast(),
        key_words.part(blocks, 1).cast(),
        first_entries.part(blocks, 1).cast(),
    ])?;
    let found = Found::new(&found);
    found.check_blocks(inputs)?;
    let compressed_bytes = found.u64(1);
    // Keys are numbered by words of 8 bytes, in 32 bits, and entries too.
    let (all_words, entries) = (found.u64(2), u64::from(found.u32(3)));
    if all_words >= 1 << 32 || entries >= 1 << 31 || all_words < entries / 2 {
        return Err(GpuError::NoRoom {
            wanted_bytes: all_words.saturating_mul(8),
        });
    }
    if compressed_bytes > 0 {
        let raw = uploaded.len().next_multiple_of(8);
        uploaded.extend(work, raw.saturating_add(compressed_bytes))?;
        let stored = StoredBlocks {
            bytes: uploaded.bytes,
            places: frame.places,
            blocks: frame.blocks,
            raw_bytes,
            errors,
            count: blocks,
            raw,
        };
        lz4::decode(work, &stored)?;
    }
    let bytes = uploaded.bytes;

    let trailers = work.take(entries + 1)?;
    let key_lens = work.take(entries + 1)?;
    let key_places = work.take(entries + 1)?;
    let value_places = work.take(entries + 1)?;
    let value_lens = work.take(entries + 1)?;
    let args = UnpackEntries {
        bytes,
        places: frame.places,
        inputs: frame.inputs,
        blocks: frame.blocks,
        first_entries,
        trailers,
        key_lens,
        key_words: key_places,
        value_places,
        value_lens,
        errors,
        count: blocks,
    };
    work.launch_blocks("unpack_entries", blocks, BLOCK_THREADS, &args)?;
    let found = work.download(&[errors.cast()])?;
    Found::new(&found).check_blocks(inputs)?;
    work.scan32(key_places, entries)?;
    let keys = Keys {
        words: work.take(all_words + 1)?,
        places: key_places,
        lens: key_lens,
    };
    let heads_high = work.take(entries + 1)?;
    let heads_low = work.take(entries + 1)?;
    let args = UnpackKeys {
        bytes,
        blocks: frame.blocks,
        first_entries,
        keys,
        heads_high,
        heads_low,
        prefix: frame.prefix,
        errors,
        prefix_len: frame.prefix_len,
        unused: 0,
        count: blocks,
    };
    work.launch_blocks("unpack_keys", blocks, BLOCK_THREADS, &args)?;
    let args = CheckOrder {
        keys,
        trailers,
        first_entries: input_entries,
        errors,
        inputs: input_count as u32,
        unused: 0,
        count: entries,
    };
    work.launch("check_order", entries, &args)?;
    let ranges = work.take(2 * input_count)?;
    let args = Clip {
        keys,
        bounds: frame.bounds,
        bound_places: frame.bound_places,
        bound_lens: frame.bound_lens,
        first_entries: input_entries,
        ranges,
        inputs: input_count as u32,
        unused: 0,
    };
    work.launch("clip", input_count, &args)?;
    let found = work.download(&[errors.cast(), ranges.cast()])?;
    let found = Found::new(&found);
    found.check_entries()?;
    let host_ranges: Vec<u32> = found.items(1);
    let is_range = |range: &[u32]| range[0] <= range[1] && u64::from(range[1]) <= entries;
    check(
        host_ranges.chunks_exact(2).all(is_range),
        "the entries within the bounds of an input",
    )?;
    Ok(Unpacked {
        bytes,
        entries: Entries { keys, trailers },
        heads_high,
        heads_low,
        value_places,
        value_lens,
        ranges,
        host_ranges,
    })
}

fn row_of(input: &PieceInput) -> Input {
    Input {
        min_seq: input.seqs.0,
        max_seq: input.seqs.1,
        seq_override: input.seq_override.unwrap_or(0),
        has_override: u32::from(input.seq_override.is_some()),
        first_block: input.first_block,
    }
}
