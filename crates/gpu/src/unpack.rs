//! The phase that makes entries of stored blocks: headers, checksums, columns, keys, order, clips.
//!
//! Threading: see `lane`.

use siltstone_storage::planted;

use crate::error::Result;
use crate::kernels::{
    Array, Block, CheckOrder, ChecksumBlocks, Clip, CompareChecksums, Entries, Input, InputEntries,
    Keys, Place, UnpackEntries, UnpackHeaders, UnpackKeys,
};
use crate::lane::{Batch, SLACK_BYTES, Work};
use crate::piece::{Found, PieceInput};

/// The threads of a CUDA block for a block of a table.
const BLOCK_THREADS: u32 = 64;

/// A length that stands for no bound.
const NO_BOUND: u32 = u32::MAX;

/// The entries of a piece's inputs.
pub(crate) struct Unpacked {
    /// The stored bytes of the inputs.
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

/// Unpacks the blocks of the inputs, whose stored bytes are in `bytes`, followed by slack. `places`
/// are offsets in it.
pub(crate) fn unpack(
    work: &mut Work<'_>,
    inputs: &[PieceInput],
    prefix: &[u8],
    bytes: Array<u8>,
    places: &[Place],
    verify: bool,
) -> Result<Unpacked> {
    let blocks = places.len() as u64;
    let stored_bytes = bytes.count() - SLACK_BYTES;
    let mut batch = Batch::default();
    let places_slot = batch.add(places);
    let rows: Vec<Input> = inputs.iter().map(row_of).collect();
    let inputs_slot = batch.add(&rows);
    let mut keys = KeyList::default();
    for input in inputs {
        keys.push(&input.bounds.start);
        match &input.bounds.end {
            Some(end) if !planted!(GpuClipsNoEnd) => keys.push(end),
            _ => keys.push_none(),
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
    let batch = work.upload_batch(&batch)?;
    let places = places_slot.of(batch);
    let input_array = inputs_slot.of(batch);

    let block_array: Array<Block> = work.take(blocks)?;
    let raw_bytes = work.take(blocks + 1)?;
    let first_entries: Array<u32> = work.take(blocks + 1)?;
    let key_words = work.take(blocks + 1)?;
    let errors = work.take(1)?;
    work.fill(errors, 0xff)?;
    let headers = UnpackHeaders {
        bytes,
        places,
        blocks: block_array,
        raw_bytes,
        entries: first_entries,
        key_words,
        errors,
        count: blocks,
        stored_bytes,
    };
    work.launch("unpack_headers", blocks, &headers)?;
    if verify {
        let crcs = work.take_zeros(2 * blocks)?;
        let tables = work.lane.crc_tables;
        let sums = ChecksumBlocks {
            bytes,
            places,
            tables,
            crcs,
            count: blocks,
        };
        work.launch_blocks("checksum_blocks", blocks, BLOCK_THREADS, &sums)?;
        let compare = CompareChecksums {
            bytes,
            places,
            blocks: block_array,
            crcs,
            errors,
            count: blocks,
        };
        work.launch("compare_checksums", blocks, &compare)?;
    }
    work.scan64(raw_bytes, blocks)?;
    work.scan64(key_words, blocks)?;
    work.scan32(first_entries, blocks)?;
    let input_count = inputs.len() as u64;
    let input_entries: Array<u32> = work.take(input_count + 1)?;
    let args = InputEntries {
        first_entries,
        inputs: input_entries,
        input_array,
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
    if found.u64(1) > 0 {
        return Err(Found::declined("an input has compressed blocks"));
    }
    // Keys are numbered by words of 8 bytes, in 32 bits, and entries too.
    let (all_words, entries) = (found.u64(2), u64::from(found.u32(3)));
    if all_words >= 1 << 32 || entries >= 1 << 31 || all_words < entries / 2 {
        return Err(crate::error::GpuError::NoRoom {
            wanted_bytes: 8 * all_words,
        });
    }

    let trailers = work.take(entries + 1)?;
    let key_lens = work.take(entries + 1)?;
    let key_places = work.take(entries + 1)?;
    let value_places = work.take(entries + 1)?;
    let value_lens = work.take(entries + 1)?;
    let args = UnpackEntries {
        bytes,
        places,
        inputs: input_array,
        blocks: block_array,
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
        blocks: block_array,
        first_entries,
        keys,
        heads_high,
        heads_low,
        prefix: prefix_slot.of(batch),
        errors,
        prefix_len: prefix.len() as u32,
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
        bounds: bound_words.of(batch),
        bound_places: bound_places.of(batch),
        bound_lens: bound_lens.of(batch),
        first_entries: input_entries,
        ranges,
        inputs: input_count as u32,
        unused: 0,
    };
    work.launch("clip", input_count, &args)?;
    let found = work.download(&[errors.cast(), ranges.cast()])?;
    let found = Found::new(&found);
    found.check_entries()?;
    Ok(Unpacked {
        bytes,
        entries: Entries { keys, trailers },
        heads_high,
        heads_low,
        value_places,
        value_lens,
        ranges,
        host_ranges: found.items(1),
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
