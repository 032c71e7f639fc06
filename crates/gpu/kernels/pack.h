// Packing: the blocks of output tables from the survivors (the paper's pack unit), their checksums,
// separators, filters, and the sums that a table's properties need.
#ifndef SILTSTONE_PACK_H
#define SILTSTONE_PACK_H
#include "layout.h"
#include "xxh3.h"

// A block of an output table.
typedef struct {
    u64 at; // where its values begin, among the bytes of all output blocks
    u64 base;
    u32 first; // its first survivor
    u32 n;
    u32 value_bytes;
    u32 tail_bytes;
    u32 bytes; // as stored, with padding and checksum
    u32 padding;
    u32 table;
    u32 fixed_value; // the length of every value, if they have one
    u16 prefix_len;
    u16 key_len;
    u8 head_width;
    u8 seq_width;
    u8 flags;
    u8 value_width;
    u8 tail_end_width;
    u8 unused[7];
} OutBlock;

ARRAY(OutBlocks, OutBlock);

typedef struct {
    u32s begins; // prefix sums
    u32s firsts; // of each block: its first survivor; then the number of survivors
    u32s block_bytes;
    u64s places; // of each block: its bytes, from which a prefix sum makes its place
    u32s bytes;  // of each survivor: of the block that begins with it
    u64 survivors;
    u64 blocks;
} ListBlocks;

// A thread for each survivor.
KERNEL(list_blocks, ListBlocks) {
    if (ITEM >= a->survivors) {
        return;
    }
    if (ITEM == 0) {
        AT(a->firsts, a->blocks) = (u32)a->survivors;
    }
    u32 block_number = AT(a->begins, ITEM);
    if (block_number != AT(a->begins, ITEM + 1)) {
        AT(a->firsts, block_number) = (u32)ITEM;
        AT(a->block_bytes, block_number) = AT(a->bytes, ITEM);
        AT(a->places, block_number) = AT(a->bytes, ITEM);
    }
}

typedef struct {
    Survivors survivors;
    u32s tables; // prefix sums
    u32s firsts;
    u32s block_bytes;
    u64s places;
    OutBlocks blocks;
    u64 count;
} PlanBlocks;

// A thread for each block.
KERNEL(plan_blocks, PlanBlocks) {
    if (ITEM >= a->count) {
        return;
    }
    const Survivors *s = &a->survivors;
    u64 first = AT(a->firsts, ITEM), next = AT(a->firsts, ITEM + 1);
    Extent e = block_of(s, first);
    for (u64 i = first + 1; i < next; i++) {
        join(&e, extent_of(s, i));
    }
    OutBlock b;
    b.at = AT(a->places, ITEM);
    b.first = (u32)first;
    b.n = (u32)(next - first);
    b.value_bytes = (u32)e.value_bytes;
    b.tail_bytes = tail_bytes_of(&e);
    b.bytes = AT(a->block_bytes, ITEM);
    b.padding = b.bytes - (u32)exact_bytes(&e);
    b.table = AT(a->tables, first + 1) - 1;
    b.fixed_value = e.has_fixed_values ? e.first_value : 0;
    b.prefix_len = (u16)e.prefix_len;
    b.key_len = has_fixed_keys(&e) ? (u16)e.longest_key : 0;
    b.head_width = (u8)head_width(&e);
    b.seq_width = (u8)seq_width(&e);
    b.value_width = (u8)value_width(&e);
    b.tail_end_width = has_fixed_keys(&e) ? 0 : b.tail_bytes <= 65535 ? 2 : 4;
    b.flags = (u8)((has_pads(&e) ? FLAG_PADS : 0) | (e.has_kinds ? FLAG_KINDS : 0) |
                   (has_fixed_keys(&e) ? FLAG_FIXED_KEYS : 0));
    b.base = e.min_trailer >> 8 << 8 | (e.has_kinds ? 0 : e.min_trailer & 0xff);
    for (u32 i = 0; i < 7; i++) {
        b.unused[i] = 0;
    }
    AT(a->blocks, ITEM) = b;
}

typedef struct {
    Survivors survivors;
    u32s begins; // prefix sums
    OutBlocks blocks;
    u32s tails; // of each survivor: the bytes of its tail
    u64 count;
} MeasureTails;

// A thread for each survivor.
KERNEL(measure_tails, MeasureTails) {
    if (ITEM >= a->count) {
        return;
    }
    OutBlock b = AT(a->blocks, AT(a->begins, ITEM + 1) - 1);
    u32 skip = b.prefix_len + b.head_width, len = AT(a->survivors.keys.lens, ITEM);
    AT(a->tails, ITEM) = len > skip ? len - skip : 0;
}

typedef struct {
    Survivors survivors;
    u32s tails;        // prefix sums, modulo 2^32
    u64s value_starts; // prefix sums of the lengths of values
    OutBlocks blocks;
    u8s out;
    u64 count;
} PackColumns;

// A CUDA block for each block, an entry a thread: header and columns, without checksums.
KERNEL(pack_columns, PackColumns) {
    OutBlock b = AT(a->blocks, block);
    const Survivors *s = &a->survivors;
    u64s words = s->keys.words;
    u64 header = b.at + b.value_bytes, heads = header + HEADER_BYTES;
    u64 tails = heads + (u64)b.n * b.head_width, tail_ends = tails + b.tail_bytes;
    u64 pads = tail_ends + (u64)b.n * b.tail_end_width;
    u64 seqs = pads + ((b.flags & FLAG_PADS) != 0 ? b.n : 0);
    u64 kinds = seqs + (u64)b.n * b.seq_width;
    u64 value_starts = kinds + ((b.flags & FLAG_KINDS) != 0 ? b.n : 0);
    u64 prefix = value_starts + (u64)b.n * b.value_width, padding = prefix + b.prefix_len;
    u32 skip = b.prefix_len + b.head_width;
    for (u32 i = thread; i < b.n; i += threads) {
        u64 entry = (u64)b.first + i, place = AT(s->keys.places, entry);
        u32 len = AT(s->keys.lens, entry);
        // A head is stored as an integer, so its bytes are in reverse order.
        u64 head = swap64(key_bytes8(words, place, len, b.prefix_len));
        put_bytes(a->out, heads + (u64)i * b.head_width, b.head_width == 4 ? head >> 32 : head,
                  b.head_width);
        u32 tail = AT(a->tails, entry) - AT(a->tails, b.first);
        u32 tail_len = len > skip ? len - skip : 0;
        for (u32 j = 0; j < tail_len; j += 8) {
            put_bytes(a->out, tails + tail + j, key_bytes8(words, place, len, skip + j),
                      min32(8, tail_len - j));
        }
        put_bytes(a->out, tail_ends + (u64)i * b.tail_end_width, tail + tail_len,
                  b.tail_end_width);
        if ((b.flags & FLAG_PADS) != 0) {
            AT(a->out, pads + i) = (u8)(len < skip ? skip - len : 0);
        }
        u64 trailer = AT(s->trailers, entry);
        put_bytes(a->out, seqs + (u64)i * b.seq_width, (trailer >> 8) - (b.base >> 8),
                  b.seq_width);
        if ((b.flags & FLAG_KINDS) != 0) {
            AT(a->out, kinds + i) = (u8)trailer;
        }
        put_bytes(a->out, value_starts + (u64)i * b.value_width,
                  AT(a->value_starts, entry) - AT(a->value_starts, b.first), b.value_width);
    }
    u64 first_key = AT(s->keys.places, b.first);
    for (u32 i = thread; i < b.prefix_len; i += threads) {
        AT(a->out, prefix + i) = key_byte(words, first_key, i);
    }
    for (u32 i = thread; i < b.padding; i += threads) {
        AT(a->out, padding + i) = 0;
    }
    if (thread == 0) {
        put_bytes(a->out, header, b.n, 2);
        put_bytes(a->out, header + 2, b.prefix_len, 2);
        put_bytes(a->out, header + 4, b.head_width, 1);
        put_bytes(a->out, header + 5, b.seq_width, 1);
        put_bytes(a->out, header + 6, b.flags, 1);
        put_bytes(a->out, header + 7, b.value_width, 1);
        put_bytes(a->out, header + 8, b.base, 8);
        put_bytes(a->out, header + 16, b.value_bytes, 4);
        put_bytes(a->out, header + 20, b.tail_bytes, 4);
        put_bytes(a->out, header + 24, 0, 4);
        put_bytes(a->out, header + 28, b.key_len, 2);
        put_bytes(a->out, header + 30, b.padding, 2);
    }
}

typedef struct {
    u8s in;
    Survivors survivors;
    u64s value_starts; // prefix sums of the lengths of values
    OutBlocks blocks;
    u8s out;
    u64 count;
} PackValues;

// The survivor of block b with the byte `at` of its values, and where its value begins. Empty
// values have no byte.
DEVICE u64 value_with(const PackValues *a, const OutBlock *b, u32 at, u32 *begin) {
    if (b->value_width == 0) {
        u64 i = at / b->fixed_value;
        *begin = (u32)i * b->fixed_value;
        return b->first + i;
    }
    u64 base = AT(a->value_starts, b->first);
    u64 entry = last_at_most64(a->value_starts, b->first, (u64)b->first + b->n, base + at);
    *begin = (u32)(AT(a->value_starts, entry) - base);
    return entry;
}

// Up to eight bytes of the values of block b from `at` on.
DEVICE u64 values8(const PackValues *a, const OutBlock *b, u32 at, u32 count) {
    u64 word = 0;
    for (u32 done = 0; done < count;) {
        u32 begin = 0;
        u64 entry = value_with(a, b, at + done, &begin);
        u32 within = at + done - begin, left = AT(a->survivors.value_lens, entry) - within;
        u32 take = min32(count - done, left);
        u64 bytes = bytes_of_width(a->in, AT(a->survivors.value_places, entry) + within, take);
        word |= bytes << 8 * done;
        done += take;
    }
    return word;
}

// A CUDA block for each block: its values, 8 bytes a thread. The bytes before the first and after
// the last whole word belong to other threads.
KERNEL(pack_values, PackValues) {
    OutBlock b = AT(a->blocks, block);
    u64 end = b.at + b.value_bytes, whole = (b.at + 7) & ~7ull;
    if (thread == 0) {
        u32 count = (u32)(min64(whole, end) - b.at);
        put_bytes(a->out, b.at, values8(a, &b, 0, count), count);
    }
    for (u64 at = whole + 8ull * thread; at < end; at += 8ull * threads) {
        u32 within = (u32)(at - b.at);
        if (at + 8 <= end) {
            put_word(a->out, at, values8(a, &b, within, 8));
        } else {
            put_bytes(a->out, at, values8(a, &b, within, (u32)(end - at)), (u32)(end - at));
        }
    }
}

typedef struct {
    OutBlocks blocks;
    u8s out;
    u32s tables;
    u32s crcs; // of each block, 0 before
    u64 count;
} PackChecksums;

// A CUDA block for each block: the checksums of the values.
KERNEL(checksum_values, PackChecksums) {
    OutBlock b = AT(a->blocks, block);
    crc_add(a->tables, a->out, b.at, b.at + b.value_bytes, &AT(a->crcs, block), thread, threads);
}

// A thread for each block: puts the checksum of the values into the header, and begins that of the
// columns.
KERNEL(put_value_checksums, PackChecksums) {
    if (ITEM < a->count) {
        OutBlock b = AT(a->blocks, ITEM);
        put_bytes(a->out, b.at + b.value_bytes + 24, AT(a->crcs, ITEM), 4);
        AT(a->crcs, ITEM) = 0;
    }
}

// A CUDA block for each block: the checksums of header and columns.
KERNEL(checksum_columns, PackChecksums) {
    OutBlock b = AT(a->blocks, block);
    crc_add(a->tables, a->out, b.at + b.value_bytes, b.at + b.bytes - CHECKSUM_BYTES,
            &AT(a->crcs, block), thread, threads);
}

// A thread for each block.
KERNEL(put_checksums, PackChecksums) {
    if (ITEM < a->count) {
        OutBlock b = AT(a->blocks, ITEM);
        put_bytes(a->out, b.at + b.bytes - CHECKSUM_BYTES, AT(a->crcs, ITEM), 4);
    }
}

// What the index needs of a block.
typedef struct {
    u64 trailer; // of its separator
    u32 bytes;
    u32 value_bytes;
    u32 crc;
    u32 separator_bytes;
    u32 table;
    u32 unused;
} IndexEntry;

ARRAY(IndexEntries, IndexEntry);

typedef struct {
    Survivors survivors;
    OutBlocks blocks;
    u32s crcs;
    IndexEntries entries;
    u32s separator_bytes; // of each block
    u64 count;
} MeasureSeparators;

// The survivor of whose key the separator of block i is the beginning.
DEVICE u64 separator_source(const Survivors *s, OutBlocks blocks, u64 count, u64 i, u32 *len,
                            u64 *trailer) {
    OutBlock b = AT(blocks, i);
    u64 last = (u64)b.first + b.n - 1, next = last + 1;
    if (i + 1 < count && AT(blocks, i + 1).table == b.table && AT(s->is_new, next)) {
        *len = AT(s->shared, next) + 1u;
        *trailer = ~0ull;
        return next;
    }
    *len = AT(s->keys.lens, last);
    *trailer = AT(s->trailers, last);
    return last;
}

// A thread for each block.
KERNEL(measure_separators, MeasureSeparators) {
    if (ITEM >= a->count) {
        return;
    }
    OutBlock b = AT(a->blocks, ITEM);
    IndexEntry entry;
    u32 len = 0;
    (void)separator_source(&a->survivors, a->blocks, a->count, ITEM, &len, &entry.trailer);
    entry.bytes = b.bytes;
    entry.value_bytes = b.value_bytes;
    entry.crc = AT(a->crcs, ITEM);
    entry.separator_bytes = len;
    entry.table = b.table;
    entry.unused = 0;
    AT(a->entries, ITEM) = entry;
    AT(a->separator_bytes, ITEM) = len;
}

typedef struct {
    Survivors survivors;
    OutBlocks blocks;
    u32s places; // prefix sums
    u8s out;
    u64 count;
} WriteSeparators;

// A thread for each block.
KERNEL(write_separators, WriteSeparators) {
    if (ITEM >= a->count) {
        return;
    }
    u32 len = 0;
    u64 trailer = 0;
    u64 source = separator_source(&a->survivors, a->blocks, a->count, ITEM, &len, &trailer);
    u64 place = AT(a->survivors.keys.places, source);
    u32 key_len = AT(a->survivors.keys.lens, source);
    for (u32 i = 0; i < len; i += 8) {
        put_bytes(a->out, AT(a->places, ITEM) + i,
                  key_bytes8(a->survivors.keys.words, place, key_len, i), min32(8, len - i));
    }
}

// What the properties need of a table. `crates/gpu/src/kernels.rs` has the same structure.
typedef struct {
    u64 puts;
    u64 user_keys;
    u64 key_bytes;
    u64 value_bytes;
    u64 smallest_seq;
    u64 largest_seq;
    u64 filter_word;  // where its filter begins, in words of 4 bytes
    u64 filter_lines; // the number of its filter's blocks of 64 bytes
    u32 first;
    u32 last;
    u32 first_key_len;
    u32 unused;
} TableSums;

ARRAY(TableSumsArray, TableSums);

typedef struct {
    TableStarts starts;
    Survivors survivors;
    TableSumsArray sums;
    u64 tables;
    u64 survivor_count;
} BeginSums;

DEVICE TableSums no_sums(void) {
    TableSums sums;
    sums.puts = sums.user_keys = sums.key_bytes = sums.value_bytes = 0;
    sums.smallest_seq = ~0ull;
    sums.largest_seq = 0;
    sums.filter_word = sums.filter_lines = 0;
    sums.first = sums.last = sums.first_key_len = sums.unused = 0;
    return sums;
}

// A thread for each table.
KERNEL(begin_sums, BeginSums) {
    if (ITEM >= a->tables) {
        return;
    }
    u32 first = AT(a->starts, ITEM).first;
    TableSums sums = no_sums();
    sums.first = first;
    sums.last = ITEM + 1 < a->tables ? AT(a->starts, ITEM + 1).first - 1
                                     : (u32)a->survivor_count - 1;
    sums.first_key_len = AT(a->survivors.keys.lens, first);
    AT(a->sums, ITEM) = sums;
}

typedef struct {
    Survivors survivors;
    u32s tables; // prefix sums
    TableSumsArray sums;
    u64 count;
} SumTables;

DEVICE void add_sums(TableSums *to, const TableSums *sums) {
    atomic_add64(&to->puts, sums->puts);
    atomic_add64(&to->user_keys, sums->user_keys);
    atomic_add64(&to->key_bytes, sums->key_bytes);
    atomic_add64(&to->value_bytes, sums->value_bytes);
    atomic_min64(&to->smallest_seq, sums->smallest_seq);
    atomic_max64(&to->largest_seq, sums->largest_seq);
}

// A thread for each COUNT_GROUP survivors.
KERNEL(sum_tables, SumTables) {
    u64 from = ITEM * COUNT_GROUP, to = min64(from + COUNT_GROUP, a->count);
    const Survivors *s = &a->survivors;
    TableSums sums = no_sums();
    for (u64 i = from; i < to; i++) {
        if (i > from && AT(a->tables, i) != AT(a->tables, i + 1)) {
            add_sums(&AT(a->sums, AT(a->tables, i) - 1), &sums);
            sums = no_sums();
        }
        u64 trailer = AT(s->trailers, i);
        sums.puts += (trailer & 0xff) == 1;
        sums.user_keys += AT(s->is_new, i);
        sums.key_bytes += AT(s->keys.lens, i);
        sums.value_bytes += AT(s->value_lens, i);
        sums.smallest_seq = min64(sums.smallest_seq, trailer >> 8);
        sums.largest_seq = max64(sums.largest_seq, trailer >> 8);
    }
    if (from < to) {
        add_sums(&AT(a->sums, AT(a->tables, to) - 1), &sums);
    }
}

typedef struct {
    Survivors survivors;
    u32s tables; // prefix sums
    TableSumsArray sums;
    u32s filters; // 0 before
    u64 count;
    u32 probes;
    u32 unused;
} SetFilterBits;

// A thread for each survivor: the bits of its user key in the filter of its table.
KERNEL(set_filter_bits, SetFilterBits) {
    if (ITEM >= a->count || !AT(a->survivors.is_new, ITEM)) {
        return;
    }
    const TableSums *sums = &AT(a->sums, AT(a->tables, ITEM + 1) - 1);
    u64 hash = xxh3_of_key(a->survivors.keys.words, AT(a->survivors.keys.places, ITEM),
                           AT(a->survivors.keys.lens, ITEM));
    u64 line = (hash >> 32) * sums->filter_lines >> 32;
    u64 words = sums->filter_word + 16 * line;
    u64 low = hash & 0xffffffffull, x = low * 0x9E3779B97F4A7C15ull;
    for (u32 i = 0; i < a->probes; i++) {
        if (i == 7) {
            x = low * 0xC2B2AE3D27D4EB4Full;
        }
        u32 bit = (u32)(x >> 55);
        atomic_or32(&AT(a->filters, words + bit / 32), 1u << bit % 32);
        x <<= 9;
    }
}

typedef struct {
    Survivors survivors;
    TableSumsArray sums;
    u32s places; // where the first key of each table goes
    u8s out;
    u64 tables;
} WriteFirstKeys;

// A thread for each table.
KERNEL(write_first_keys, WriteFirstKeys) {
    if (ITEM >= a->tables) {
        return;
    }
    u32 first = AT(a->sums, ITEM).first, len = AT(a->sums, ITEM).first_key_len;
    u64 place = AT(a->survivors.keys.places, first);
    for (u32 i = 0; i < len; i += 8) {
        put_bytes(a->out, AT(a->places, ITEM) + i,
                  key_bytes8(a->survivors.keys.words, place, len, i), min32(8, len - i));
    }
}

#endif
