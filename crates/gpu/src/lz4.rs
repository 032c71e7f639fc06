//! The phases that decode and encode compressed parts of blocks. The kernels are in
//! `kernels/lz4.h`.
//!
//! Threading: see `lane`.

use crate::error::{Result, check};
use crate::kernels::{
    Array, Block, ListOutputParts, ListStoredParts, Lz4Decode, Lz4Encode, Lz4Part, MeasureStored,
    OutBlock, Place, PlaceParts,
};
use crate::lane::{SLACK_BYTES, Work};
use crate::layout::OutBlocks;

/// The threads of a CUDA block for a block of a table.
const BLOCK_THREADS: u32 = 64;

/// The most bytes of tables that are in use at a time. Each thread of the encoder has a table.
const TABLES_BYTES_MAX: u64 = 512 << 20;

/// The tables take at most this share of the free memory.
const TABLES_SHARE: u64 = 8;

/// Tables have 2^10 slots of 2 bytes, and those of large parts 2^12.
const TABLE_BITS: u32 = 10;
const LARGE_TABLE_BITS: u32 = 12;

/// The input blocks of a piece, after their headers were checked.
pub(crate) struct StoredBlocks {
    /// The stored bytes, and room for the uncompressed parts behind them.
    pub bytes: Array<u8>,
    pub places: Array<Place>,
    pub blocks: Array<Block>,
    /// For each block, how many bytes the uncompressed parts before it take.
    pub raw_bytes: Array<u64>,
    pub errors: Array<u64>,
    pub count: u64,
    /// Where the uncompressed parts begin.
    pub raw: u64,
}

/// Decodes all compressed parts, and changes the blocks so that they lie where their parts are
/// uncompressed. Reports blocks that are damaged.
pub(crate) fn decode(work: &mut Work, stored: &StoredBlocks) -> Result<()> {
    let count = stored.count;
    let mark = work.mark();
    let parts: Array<Lz4Part> = work.take(2 * count)?;
    let args = ListStoredParts {
        bytes: stored.bytes,
        places: stored.places,
        blocks: stored.blocks,
        raw_bytes: stored.raw_bytes,
        parts,
        count,
        raw: stored.raw,
    };
    work.launch("list_stored_parts", count, &args)?;
    let args = Lz4Decode {
        bytes: stored.bytes,
        parts,
        errors: stored.errors,
        count,
    };
    work.launch("lz4_decode", 2 * count, &args)?;
    work.release(mark);
    Ok(())
}

/// Output blocks as they are stored.
pub(crate) struct Encoded {
    pub blocks: Array<OutBlock>,
    /// The bytes of all blocks, without checksums.
    pub out: Array<u8>,
}

/// Compresses the parts of the output blocks, whose uncompressed bytes are in `raw`, followed by
/// slack.
pub(crate) fn encode(work: &mut Work, blocks: &OutBlocks, raw: Array<u8>) -> Result<Encoded> {
    let count = blocks.count;
    let parts: Array<Lz4Part> = work.take(2 * count)?;
    let large = work.take_zeros(1)?;
    let args = ListOutputParts {
        blocks: blocks.blocks,
        parts,
        large,
        count,
    };
    work.launch("list_output_parts", count, &args)?;
    let large = work.read(large)?[0];
    let encoded = work.take(blocks.bytes + 16 * count + SLACK_BYTES)?;
    let sizes = work.take(2 * count)?;
    encode_parts(work, raw, encoded, parts, sizes, false)?;
    if large > 0 {
        encode_parts(work, raw, encoded, parts, sizes, true)?;
    }
    let stored = work.take(count)?;
    let places = work.take(count + 1)?;
    let args = MeasureStored {
        blocks: blocks.blocks,
        sizes,
        places,
        stored,
        count,
    };
    work.launch("measure_stored", count, &args)?;
    work.scan64(places, count)?;
    work.launch("number_stored", count, &args)?;
    let bytes = work.read(places.part(count, 1))?[0];
    check(bytes <= blocks.bytes, "the bytes of compressed blocks")?;
    let out = work.take(bytes)?;
    let args = PlaceParts {
        raw,
        encoded,
        parts,
        blocks: blocks.blocks,
        stored,
        out,
        count,
    };
    work.launch_blocks("place_parts", count, BLOCK_THREADS, &args)?;
    Ok(Encoded {
        blocks: stored,
        out,
    })
}

/// Encodes the parts that are large, or the others: as many at a time as there is room for tables.
fn encode_parts(
    work: &mut Work,
    from: Array<u8>,
    to: Array<u8>,
    parts: Array<Lz4Part>,
    sizes: Array<u32>,
    is_large: bool,
) -> Result<()> {
    let table_bits = if is_large {
        LARGE_TABLE_BITS
    } else {
        TABLE_BITS
    };
    let mark = work.mark();
    let room = (work.free_bytes() / TABLES_SHARE).min(TABLES_BYTES_MAX);
    let most = (room >> (table_bits + 1)).clamp(1, parts.count());
    let tables: Array<u16> = work.take(most << table_bits)?;
    let mut first = 0;
    while first < parts.count() {
        let count = most.min(parts.count() - first);
        work.fill(tables.first(count << table_bits), 0)?;
        let args = Lz4Encode {
            from,
            to,
            parts,
            tables,
            sizes,
            first,
            count,
            table_bits,
            is_large: u32::from(is_large),
        };
        work.launch("lz4_encode", count, &args)?;
        first += count;
    }
    work.release(mark);
    Ok(())
}

#[cfg(all(test, feature = "emulate"))]
mod tests;
