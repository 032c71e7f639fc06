//! The phase that makes the bytes of blocks, and what the host needs to make tables of them.
//!
//! Threading: see `lane`.

use siltstone_table::block::header::{CHECKSUM_BYTES, HEADER_BYTES};
use siltstone_table::compress::Codec;
use siltstone_table::filter::{FILTER_BLOCK_BYTES, filter_blocks, probes};
use siltstone_table::job::FormatOptions;
use siltstone_table::key::MAX_SEQ;
use siltstone_table::limits::MAX_KEY_BYTES;

use crate::error::{Result, check};
use crate::kernels::{
    Array, BeginSums, IndexEntry, MeasureSeparators, MeasureTails, OutBlock, PackChecksums,
    PackColumns, PackValues, SetFilterBits, SumTables, TableStart, TableSums, WriteFirstKeys,
    WriteSeparators,
};
use crate::lane::{SLACK_BYTES, Work};
use crate::layout::{OutBlocks, Tables};
use crate::lz4::{self, Encoded};
use crate::retain::{COUNT_GROUP, Kept};
use crate::unpack::Unpacked;

/// The threads of a CUDA block for a block of a table.
const BLOCK_THREADS: u32 = 64;

/// The tables of a piece, without their frames.
pub(crate) struct Packed {
    /// The bytes of all blocks, table after table, on the device.
    pub out: Array<u8>,
    /// For each block, in order.
    pub index: Vec<IndexEntry>,
    /// The separators of all blocks, one after the other.
    pub separators: Vec<u8>,
    /// For each table.
    pub sums: Vec<TableSums>,
    pub first_keys: Vec<Vec<u8>>,
    /// The filters of all tables, one after the other.
    pub filters: Vec<u8>,
}

impl Packed {
    /// The memory of this process that it takes.
    pub fn host_bytes(&self) -> u64 {
        let keys = self.first_keys.iter().map(Vec::len).sum::<usize>();
        let index = self.index.len() * size_of::<IndexEntry>();
        let sums = self.sums.len() * size_of::<TableSums>();
        (keys + index + sums + self.separators.len() + self.filters.len()) as u64
    }
}

/// Packs the blocks of the first tables.
pub(crate) fn pack(
    work: &mut Work,
    unpacked: &Unpacked,
    kept: &Kept,
    tables: &Tables,
    blocks: &OutBlocks,
    (table_count, survivors): (u64, u64),
    format: &FormatOptions,
) -> Result<Packed> {
    let raw = pack_raw(work, unpacked, kept, blocks, survivors)?;
    let Encoded {
        blocks: stored,
        out,
    } = match format.codec {
        Codec::None => Encoded {
            blocks: blocks.blocks,
            out: raw.first(blocks.bytes),
        },
        // The executor accepts no job with zstd.
        Codec::Lz4 | Codec::Zstd => lz4::encode(work, blocks, raw)?,
    };
    let count = blocks.count;
    let crcs = work.take_zeros(count)?;
    let args = PackChecksums {
        blocks: stored,
        out,
        tables: work.lane.crc_tables,
        crcs,
        count,
    };
    work.launch_blocks("checksum_values", count, BLOCK_THREADS, &args)?;
    work.launch("put_value_checksums", count, &args)?;
    work.launch_blocks("checksum_columns", count, BLOCK_THREADS, &args)?;
    work.launch("put_checksums", count, &args)?;
    let (index, separators) = separators(work, kept, stored, crcs)?;
    let all_bytes = (out.count(), separators.len() as u64);
    check(
        is_index(&index, table_count, all_bytes),
        "what is said of the blocks",
    )?;
    let Summed {
        sums,
        first_keys,
        filters,
    } = sums(
        work,
        kept,
        tables,
        (table_count, survivors),
        format.bits_per_key,
    )?;
    Ok(Packed {
        out,
        index,
        separators,
        sums,
        first_keys,
        filters,
    })
}

/// Writes values, headers and columns without compression and checksums. Slack follows them.
fn pack_raw(
    work: &mut Work,
    unpacked: &Unpacked,
    kept: &Kept,
    blocks: &OutBlocks,
    survivors: u64,
) -> Result<Array<u8>> {
    let out = work.take(blocks.bytes + SLACK_BYTES)?;
    let tails = work.take(survivors + 1)?;
    let args = MeasureTails {
        survivors: kept.survivors,
        begins: blocks.numbers,
        blocks: blocks.blocks,
        tails,
        count: survivors,
    };
    work.launch("measure_tails", survivors, &args)?;
    work.scan32(tails, survivors)?;
    let args = PackColumns {
        survivors: kept.survivors,
        tails,
        value_starts: kept.value_starts,
        blocks: blocks.blocks,
        out,
        count: blocks.count,
    };
    work.launch_blocks("pack_columns", blocks.count, BLOCK_THREADS, &args)?;
    let args = PackValues {
        bytes: unpacked.bytes,
        survivors: kept.survivors,
        value_starts: kept.value_starts,
        blocks: blocks.blocks,
        out,
        count: blocks.count,
    };
    work.launch_blocks("pack_values", blocks.count, BLOCK_THREADS, &args)?;
    Ok(out)
}

/// The entries of the indexes, and their separators.
fn separators(
    work: &mut Work,
    kept: &Kept,
    blocks: Array<OutBlock>,
    crcs: Array<u32>,
) -> Result<(Vec<IndexEntry>, Vec<u8>)> {
    let count = blocks.count();
    let entries = work.take(count)?;
    let places = work.take(count + 1)?;
    let args = MeasureSeparators {
        survivors: kept.survivors,
        blocks,
        crcs,
        entries,
        separator_bytes: places,
        count,
    };
    work.launch("measure_separators", count, &args)?;
    work.scan32(places, count)?;
    let bytes = u64::from(work.read(places.part(count, 1))?[0]);
    let out = work.take(bytes + SLACK_BYTES)?;
    let args = WriteSeparators {
        survivors: kept.survivors,
        blocks,
        places,
        out,
        count,
    };
    work.launch("write_separators", count, &args)?;
    let index = work.read(entries)?;
    let separators = work.read(out.first(bytes))?;
    Ok((index, separators))
}

/// What the properties and the filters of the tables need.
struct Summed {
    sums: Vec<TableSums>,
    first_keys: Vec<Vec<u8>>,
    filters: Vec<u8>,
}

/// The sums of the tables, their first keys, and their filters.
fn sums(
    work: &mut Work,
    kept: &Kept,
    tables: &Tables,
    (table_count, survivors): (u64, u64),
    bits_per_key: u8,
) -> Result<Summed> {
    let array = work.take(table_count)?;
    let args = BeginSums {
        starts: tables.starts,
        survivors: kept.survivors,
        sums: array,
        tables: table_count,
        survivor_count: survivors,
    };
    work.launch("begin_sums", table_count, &args)?;
    let args = SumTables {
        survivors: kept.survivors,
        tables: tables.numbers,
        sums: array,
        count: survivors,
    };
    work.launch("sum_tables", survivors.div_ceil(COUNT_GROUP), &args)?;
    let mut sums: Vec<TableSums> = work.read(array)?;
    check(
        are_sums(&sums, &tables.host_starts, survivors),
        "what is said of the tables",
    )?;
    let mut places = Vec::with_capacity(sums.len());
    let (mut key_bytes, mut lines) = (0u32, 0u64);
    for table in &mut sums {
        places.push(key_bytes);
        let end = key_bytes.checked_add(table.first_key_len);
        check(end.is_some(), "the lengths of the tables' first keys")?;
        key_bytes = end.unwrap_or(key_bytes);
        table.filter_lines = filter_blocks(table.user_keys, bits_per_key);
        table.filter_word = lines * (FILTER_BLOCK_BYTES as u64 / 4);
        lines += table.filter_lines;
    }
    let array = work.upload(&sums)?;
    let places = work.upload(&places)?;
    let keys = work.take(u64::from(key_bytes) + SLACK_BYTES)?;
    let args = WriteFirstKeys {
        survivors: kept.survivors,
        sums: array,
        places,
        out: keys,
        tables: table_count,
    };
    work.launch("write_first_keys", table_count, &args)?;
    let filters: Array<u32> = work.take_zeros(lines * (FILTER_BLOCK_BYTES as u64 / 4))?;
    if lines > 0 {
        let args = SetFilterBits {
            survivors: kept.survivors,
            tables: tables.numbers,
            sums: array,
            filters,
            count: survivors,
            probes: probes(bits_per_key),
            unused: 0,
        };
        work.launch("set_filter_bits", survivors, &args)?;
    }
    let keys = work.read(keys.first(u64::from(key_bytes)))?;
    let mut rest = &keys[..];
    let mut first_keys = Vec::with_capacity(sums.len());
    for table in &sums {
        let (key, after) = rest.split_at(table.first_key_len as usize);
        first_keys.push(key.to_vec());
        rest = after;
    }
    Ok(Summed {
        filters: work.read(filters.cast())?,
        sums,
        first_keys,
    })
}

/// Whether these can be the entries of the indexes of so many tables, whose blocks and separators
/// have so many bytes.
fn is_index(index: &[IndexEntry], table_count: u64, (bytes, separators): (u64, u64)) -> bool {
    let least = (HEADER_BYTES + CHECKSUM_BYTES) as u64;
    let is_block = |e: &IndexEntry| {
        u64::from(e.bytes) >= u64::from(e.value_bytes) + least
            && e.separator_bytes as usize <= MAX_KEY_BYTES
    };
    let sum = |of: fn(&IndexEntry) -> u32| index.iter().map(|e| u64::from(of(e))).sum::<u64>();
    // Each block is of the table of the block before it or of the next table.
    let follow = |w: &[IndexEntry]| matches!(w[1].table.checked_sub(w[0].table), Some(0 | 1));
    index.iter().all(is_block)
        && index.first().is_some_and(|first| first.table == 0)
        && index.windows(2).all(follow)
        && index.last().map(|last| u64::from(last.table) + 1) == Some(table_count)
        && (sum(|e| e.bytes), sum(|e| e.separator_bytes)) == (bytes, separators)
}

/// Whether these can be the sums of tables that begin there.
fn are_sums(sums: &[TableSums], starts: &[TableStart], survivors: u64) -> bool {
    let next_firsts = starts.iter().skip(1).map(|start| u64::from(start.first));
    let next_firsts = next_firsts.take(sums.len() - 1).chain([survivors]);
    let is_possible = |((table, start), next): ((&TableSums, &TableStart), u64)| {
        let entries = next - u64::from(start.first);
        table.first == start.first
            && u64::from(table.last) + 1 == next
            && table.puts <= entries
            && (1..=entries).contains(&table.user_keys)
            && table.key_bytes <= entries * MAX_KEY_BYTES as u64
            && table.value_bytes <= entries << 32
            && table.smallest_seq <= table.largest_seq
            && table.largest_seq <= MAX_SEQ
            && u64::from(table.first_key_len) <= table.key_bytes.min(MAX_KEY_BYTES as u64)
    };
    sums.iter().zip(starts).zip(next_firsts).all(is_possible)
}
