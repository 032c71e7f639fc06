// Unpacking: from the stored bytes of input blocks to arrays of entries (the paper's unpack unit,
// with columnar blocks in place of groups of entries).
//
// Hostile bytes stay within bounds: a header is checked as `Header::from_bytes` does, and every
// offset from a column is checked before it is used. A damaged block is reported and has no
// entries. The host then lets the CPU's own check say what is wrong with it.
#ifndef SILTSTONE_UNPACK_H
#define SILTSTONE_UNPACK_H
#include "common.h"
#include "crc.h"

#define HEADER_BYTES 32
#define CHECKSUM_BYTES 4
#define MAX_BLOCK_ENTRIES 4096
#define MAX_PADDING_BYTES 512
#define MAX_BLOCK_VALUE_BYTES ((1ull << 30) + (32 << 10) + (2 << 10))
#define MAX_BLOCK_TAIL_BYTES (65535ull + (32 << 10))
#define MAX_SEQ ((1ull << 56) - 1)
#define MAX_COMPRESSED_PART (16ull << 20)

// Larger parts are not decoded here, because one thread would take too long: the host decodes them
// before it copies their blocks. `upload.rs` has the same number.
#define MAX_DECODED_PART (256u << 10)

enum {
    FLAG_PADS = 1,
    FLAG_KINDS = 2,
    FLAG_FIXED_KEYS = 4,
    FLAG_VALUES_COMPRESSED = 8,
    FLAG_COLUMNS_COMPRESSED = 16,
    FLAG_ZSTD = 32
};

// Where a block is among the stored bytes, and which input it is of.
typedef struct {
    u64 start;
    u64 anchor;
    u64 end;
    u32 input;
    u32 unused;
} Place;

// What the job says about an input.
typedef struct {
    u64 min_seq;
    u64 max_seq;
    u64 seq_override; // if has_override
    u32 has_override;
    u32 first_block; // its blocks are numbered from here on
} Input;

// A block whose header was checked.
typedef struct {
    u64 values;  // the offset of its first value, uncompressed
    u64 columns; // the offset of its header, followed by uncompressed columns
    u64 base;
    u32 value_bytes;
    u32 tail_bytes;
    u32 values_crc;
    u32 n; // 0 if the block is damaged
    u32 tails; // the offsets of columns are relative to the header
    u32 tail_ends;
    u32 pads;
    u32 seqs;
    u32 kinds;
    u32 value_starts;
    u32 prefix;
    u32 padding;
    u32 columns_end;
    u16 prefix_len;
    u16 key_len;
    u8 head_width;
    u8 seq_width;
    u8 flags;
    u8 value_width;
    u8 tail_end_width;
    u8 unused[3];
} Block;

ARRAY(Places, Place);
ARRAY(InputArray, Input);
ARRAY(Blocks, Block);

// Reads and checks a header. Returns 0, or what is wrong.
DEVICE_CALL u32 read_header(u8s bytes, u64 at, Block *b) {
    u64 w0 = bytes8(bytes, at), w1 = bytes8(bytes, at + 8);
    u64 w2 = bytes8(bytes, at + 16), w3 = bytes8(bytes, at + 24);
    u32 n = (u32)w0 & 0xffff, flags = (u32)(w0 >> 48) & 0xff;
    u32 head_width = (u32)(w0 >> 32) & 0xff, value_width = (u32)(w0 >> 56);
    u32 seq_width = (u32)(w0 >> 40) & 0xff;
    b->prefix_len = (u16)(w0 >> 16);
    b->base = w1;
    b->value_bytes = (u32)w2;
    b->tail_bytes = (u32)(w2 >> 32);
    b->values_crc = (u32)w3;
    b->key_len = (u16)(w3 >> 32);
    u32 padding = (u32)(w3 >> 48), tail_len = 0, tail_end_width = 0;
    if (n == 0 || n > MAX_BLOCK_ENTRIES || (head_width != 4 && head_width != 8) || seq_width > 7) {
        return WRONG_BLOCK;
    }
    if ((flags & ~63u) != 0) {
        return WRONG_BLOCK;
    }
    if ((flags & FLAG_ZSTD) != 0) {
        // Sound or not, the host has to look at it.
        return UNSUPPORTED_BLOCK;
    }
    if (w1 >> 8 > MAX_SEQ || (w1 & 0xff) > 4 || b->value_bytes > MAX_BLOCK_VALUE_BYTES ||
        b->tail_bytes > MAX_BLOCK_TAIL_BYTES) {
        return WRONG_BLOCK;
    }
    if (padding > ((flags & FLAG_COLUMNS_COMPRESSED) != 0 ? 0 : MAX_PADDING_BYTES)) {
        return WRONG_BLOCK;
    }
    if (value_width == 0 ? b->value_bytes % n != 0
        : value_width == 2 ? b->value_bytes > 65535
                           : value_width != 4) {
        return WRONG_BLOCK;
    }
    if ((flags & FLAG_FIXED_KEYS) != 0) {
        u32 skip = b->prefix_len + head_width;
        tail_len = b->key_len > skip ? b->key_len - skip : 0;
        if ((flags & FLAG_PADS) != 0 || b->key_len < b->prefix_len ||
            b->tail_bytes != tail_len * n) {
            return WRONG_BLOCK;
        }
    } else {
        if (b->key_len != 0) {
            return WRONG_BLOCK;
        }
        tail_end_width = b->tail_bytes <= 65535 ? 2 : 4;
    }
    b->n = n;
    b->head_width = (u8)head_width;
    b->seq_width = (u8)seq_width;
    b->flags = (u8)flags;
    b->value_width = (u8)value_width;
    b->tail_end_width = (u8)tail_end_width;
    b->tails = HEADER_BYTES + n * head_width;
    b->tail_ends = b->tails + b->tail_bytes;
    b->pads = b->tail_ends + n * tail_end_width;
    b->seqs = b->pads + ((flags & FLAG_PADS) != 0 ? n : 0);
    b->kinds = b->seqs + n * seq_width;
    b->value_starts = b->kinds + ((flags & FLAG_KINDS) != 0 ? n : 0);
    b->prefix = b->value_starts + n * value_width;
    b->padding = b->prefix + b->prefix_len;
    b->columns_end = b->padding + padding;
    return 0;
}

typedef struct {
    u8s bytes;
    Places places;
    Blocks blocks;
    u64s raw_bytes;   // of each block: what its uncompressed parts take, a multiple of 8
    u32s entries;     // of each block
    u64s key_words;   // of each block: the most words that its keys can take
    u64s errors;
    u64 count;
    u64 stored_bytes; // all places are below this
} UnpackHeaders;

// A thread for each block.
KERNEL(unpack_headers, UnpackHeaders) {
    if (ITEM >= a->count) {
        return;
    }
    Place p = AT(a->places, ITEM);
    Block b;
    u32 wrong = 0;
    u64 raw = 0, words = 0;
    if (p.start > p.anchor || p.anchor > p.end || p.end > a->stored_bytes ||
        p.end - p.anchor < HEADER_BYTES + CHECKSUM_BYTES) {
        wrong = WRONG_BLOCK;
        b.n = 0;
    } else {
        wrong = read_header(a->bytes, p.anchor, &b);
    }
    if (wrong == 0) {
        u64 columns = p.end - CHECKSUM_BYTES - p.anchor - HEADER_BYTES;
        u64 unpacked = b.columns_end - HEADER_BYTES, values = p.anchor - p.start;
        u32 is_bad = 0, is_large = 0;
        if ((b.flags & FLAG_COLUMNS_COMPRESSED) != 0) {
            is_bad |= unpacked > min64(columns * 255, MAX_COMPRESSED_PART);
            is_large |= unpacked > MAX_DECODED_PART;
            raw += (b.columns_end + 7) & ~7ull;
        } else {
            is_bad |= unpacked != columns;
        }
        if ((b.flags & FLAG_VALUES_COMPRESSED) != 0) {
            is_bad |= b.value_bytes > min64(values * 255, MAX_COMPRESSED_PART);
            is_large |= b.value_bytes > MAX_DECODED_PART;
            raw += (b.value_bytes + 7) & ~7ull;
        } else {
            is_bad |= b.value_bytes != values;
        }
        wrong = is_bad ? WRONG_BLOCK : is_large ? UNSUPPORTED_BLOCK : 0;
        u64 whole = (u64)b.n * (b.prefix_len + b.head_width) + b.tail_bytes;
        words = whole / 8 + b.n;
    }
    if (wrong != 0) {
        report(a->errors, ITEM, wrong);
        b.n = 0;
        raw = words = 0;
    }
    b.values = p.start;
    b.columns = p.anchor;
    AT(a->blocks, ITEM) = b;
    AT(a->raw_bytes, ITEM) = raw;
    AT(a->entries, ITEM) = b.n;
    AT(a->key_words, ITEM) = words;
}

typedef struct {
    u8s bytes;
    Places places;
    u32s tables;
    u32s crcs; // two for each block, which are 0 before: of columns and of values
    u64 count;
} ChecksumBlocks;

// A CUDA block for each block: the checksums of header and columns, and of the values, as stored.
KERNEL(checksum_blocks, ChecksumBlocks) {
    Place p = AT(a->places, block);
    if (p.start > p.anchor || p.end < p.anchor + CHECKSUM_BYTES || p.end > a->bytes.count) {
        return;
    }
    crc_add(a->tables, a->bytes, p.anchor, p.end - CHECKSUM_BYTES, &AT(a->crcs, 2 * block), thread,
            threads);
    crc_add(a->tables, a->bytes, p.start, p.anchor, &AT(a->crcs, 2 * block + 1), thread, threads);
}

typedef struct {
    u8s bytes;
    Places places;
    Blocks blocks;
    u32s crcs;
    u64s errors;
    u64 count;
} CompareChecksums;

// A thread for each block.
KERNEL(compare_checksums, CompareChecksums) {
    if (ITEM >= a->count || AT(a->blocks, ITEM).n == 0) {
        return;
    }
    Place p = AT(a->places, ITEM);
    if (bytes4(a->bytes, p.end - CHECKSUM_BYTES) != AT(a->crcs, 2 * ITEM) ||
        AT(a->blocks, ITEM).values_crc != AT(a->crcs, 2 * ITEM + 1)) {
        report(a->errors, ITEM, WRONG_BLOCK);
    }
}

typedef struct {
    u8s bytes;
    Places places;
    InputArray inputs;
    Blocks blocks;
    u32s first_entries; // of each block
    u64s trailers;      // of each entry
    u16s key_lens;
    u32s key_words; // of each entry, rounded up
    u64s value_places;
    u32s value_lens;
    u64s errors;
    u64 count;
} UnpackEntries;

DEVICE u32 tail_end_of(u8s bytes, const Block *b, u32 i) {
    u64 at = b->columns + b->tail_ends + (u64)i * b->tail_end_width;
    return b->tail_end_width == 2 ? bytes2(bytes, at) : bytes4(bytes, at);
}

DEVICE u32 value_start_of(u8s bytes, const Block *b, u32 i) {
    u64 at = b->columns + b->value_starts + (u64)i * b->value_width;
    return b->value_width == 2 ? bytes2(bytes, at) : bytes4(bytes, at);
}

// The tail of entry i: where it begins among the tails, and its length. Returns whether it is
// within the tails.
DEVICE u32 tail_of(u8s bytes, const Block *b, u32 i, u32 *start, u32 *len) {
    if ((b->flags & FLAG_FIXED_KEYS) != 0) {
        *len = b->tail_bytes / b->n;
        *start = i * *len;
        return 1;
    }
    *start = i == 0 ? 0 : tail_end_of(bytes, b, i - 1);
    u32 end = tail_end_of(bytes, b, i);
    *len = end - *start;
    return *start <= end && end <= b->tail_bytes;
}

// The length of the key of entry i after the prefix. `tail` is the length of its tail. Returns
// whether its pad is allowed.
DEVICE u32 suffix_of(u8s bytes, const Block *b, u32 i, u32 tail, u32 *suffix) {
    if ((b->flags & FLAG_FIXED_KEYS) != 0) {
        *suffix = b->key_len - b->prefix_len;
        return 1;
    }
    *suffix = b->head_width + tail;
    if ((b->flags & FLAG_PADS) != 0) {
        u32 pad = AT(bytes, b->columns + b->pads + i);
        if (pad > 0 && (pad > b->head_width || tail > 0)) {
            return 0;
        }
        *suffix -= pad;
    }
    return 1;
}

// The head of entry i: the bytes of the key in their order from the highest byte on, in 8 bytes.
DEVICE u64 block_head(u8s bytes, const Block *b, u32 i) {
    u64 at = b->columns + HEADER_BYTES + (u64)i * b->head_width;
    return b->head_width == 4 ? (u64)bytes4(bytes, at) << 32 : bytes8(bytes, at);
}

// A CUDA block for each block, an entry a thread.
KERNEL(unpack_entries, UnpackEntries) {
    Block b = AT(a->blocks, block);
    Input input = AT(a->inputs, AT(a->places, block).input);
    u32 is_bad = 0;
    for (u32 i = thread; i < b.n; i += threads) {
        u64 entry = (u64)AT(a->first_entries, block) + i;
        // The trailer.
        u64 seq = (b.base >> 8) +
                  bytes_of_width(a->bytes, b.columns + b.seqs + (u64)i * b.seq_width, b.seq_width);
        u32 kind = (b.flags & FLAG_KINDS) != 0 ? AT(a->bytes, b.columns + b.kinds + i)
                                               : (u32)b.base & 0xff;
        u64 trailer = seq << 8 | kind;
        is_bad |= kind > 1;
        if (input.has_override) {
            trailer = input.seq_override << 8 | kind;
        } else {
            is_bad |= trailer > (min64(input.max_seq, MAX_SEQ) << 8 | 0xff);
            is_bad |= trailer < input.min_seq << 8;
        }
        AT(a->trailers, entry) = trailer;
        // The value.
        u32 value = 0, value_end = b.value_bytes;
        if (b.value_width == 0) {
            value = i * (b.value_bytes / b.n);
            value_end = value + b.value_bytes / b.n;
        } else {
            value = value_start_of(a->bytes, &b, i);
            if (i + 1 < b.n) {
                value_end = value_start_of(a->bytes, &b, i + 1);
            }
            is_bad |= i == 0 && value != 0;
            if (value > value_end || value_end > b.value_bytes) {
                is_bad = 1;
                value = value_end = 0;
            }
        }
        AT(a->value_places, entry) = b.values + value;
        AT(a->value_lens, entry) = value_end - value;
        // The key.
        u32 tail = 0, tail_len = 0, suffix = 0;
        u32 is_key = tail_of(a->bytes, &b, i, &tail, &tail_len);
        is_key = is_key && suffix_of(a->bytes, &b, i, tail_len, &suffix);
        u32 len = b.prefix_len + suffix;
        if (is_key && len > 65535) {
            // The CPU refuses such a key only if the job keeps it.
            report(a->errors, block, UNSUPPORTED_BLOCK);
            is_key = 0;
        }
        if (suffix < b.head_width) {
            // The padding of a head is zeros.
            is_bad |= is_key && (block_head(a->bytes, &b, i) << 8 * suffix) != 0;
        }
        if (!is_key) {
            is_bad |= len <= 65535;
            len = 0;
        }
        AT(a->key_lens, entry) = (u16)len;
        AT(a->key_words, entry) = (len + 7) / 8;
    }
    for (u32 i = b.padding + thread; b.n > 0 && i < b.columns_end; i += threads) {
        is_bad |= AT(a->bytes, b.columns + i) != 0;
    }
    if (is_bad) {
        report(a->errors, block, WRONG_BLOCK);
    }
}

typedef struct {
    u8s bytes;
    Blocks blocks;
    u32s first_entries;
    Keys keys;
    u64s heads_high; // of each entry
    u64s heads_low;
    u64s prefix; // the prefix that all keys share, as a key
    u64s errors;
    u32 prefix_len;
    u32 unused;
    u64 count;
} UnpackKeys;

// A key of a block by its parts.
typedef struct {
    u64 prefix;
    u64 tail;
    u64 head;
    u32 prefix_len;
    u32 head_end; // the length of prefix and head
    u32 len;
} Parts;

DEVICE u8 byte_of_parts(u8s bytes, const Parts *k, u32 at) {
    if (at < k->prefix_len) {
        return AT(bytes, k->prefix + at);
    }
    if (at < k->head_end) {
        return (u8)(k->head >> (56 - 8 * (at - k->prefix_len)));
    }
    return AT(bytes, k->tail + (at - k->head_end));
}

// A word of a key, zeros after its end.
DEVICE u64 word_of_parts(u8s bytes, const Parts *k, u32 from) {
    if (from >= k->head_end && from + 8 <= k->len) {
        return bytes8(bytes, k->tail + (from - k->head_end));
    }
    if (from + 8 <= k->prefix_len) {
        return bytes8(bytes, k->prefix + from);
    }
    u64 word = 0;
    for (u32 i = 0; i < 8 && from + i < k->len; i++) {
        word |= (u64)byte_of_parts(bytes, k, from + i) << 8 * i;
    }
    return word;
}

// The first 15 bytes of a key after the shared prefix, and their number (16: there are more), as
// `merge::tree` has them.
DEVICE void head_of(u64s words, u64 place, u32 len, u32 skip, u64 *high, u64 *low) {
    u32 rest = len > skip ? len - skip : 0;
    *high = swap64(key_bytes8(words, place, len, skip));
    *low = (swap64(key_bytes8(words, place, len, skip + 8)) & ~0xffull) | min32(rest, 16);
}

// A CUDA block for each block, an entry a thread: writes all keys and their heads.
KERNEL(unpack_keys, UnpackKeys) {
    Block b = AT(a->blocks, block);
    for (u32 i = thread; i < b.n; i += threads) {
        u64 entry = (u64)AT(a->first_entries, block) + i;
        u32 len = AT(a->keys.lens, entry);
        u64 place = AT(a->keys.places, entry);
        u32 tail = 0, tail_len = 0;
        (void)tail_of(a->bytes, &b, i, &tail, &tail_len);
        Parts parts;
        parts.prefix = b.columns + b.prefix;
        parts.tail = b.columns + b.tails + tail;
        parts.head = block_head(a->bytes, &b, i);
        parts.prefix_len = b.prefix_len;
        parts.head_end = b.prefix_len + b.head_width;
        parts.len = len;
        for (u32 at = 0; at < len; at += 8) {
            AT(a->keys.words, place + at / 8) = word_of_parts(a->bytes, &parts, at);
        }
        u64 high, low;
        head_of(a->keys.words, place, len, a->prefix_len, &high, &low);
        AT(a->heads_high, entry) = high;
        AT(a->heads_low, entry) = low;
        u32 differs = len < a->prefix_len;
        for (u32 at = 0; at < a->prefix_len; at += 8) {
            u64 mask = a->prefix_len - at >= 8 ? ~0ull : ~(~0ull << 8 * (a->prefix_len - at));
            u64 word = at < len ? AT(a->keys.words, place + at / 8) : 0;
            differs |= ((word ^ AT(a->prefix, at / 8)) & mask) != 0;
        }
        if (differs) {
            report(a->errors, entry, WRONG_PREFIX);
        }
    }
}

typedef struct {
    Keys keys;
    u64s trailers;
    u32s first_entries; // of each input, and the number of all entries
    u64s errors;
    u32 inputs;
    u32 unused;
    u64 count;
} CheckOrder;

// Whether entry `b` must not follow entry `a`: its key is less, or equal with a larger trailer.
DEVICE u32 is_before(const Keys *keys, u64s trailers, u64 b, u64 a) {
    i32 order = compare_keys(keys->words, AT(keys->places, b), AT(keys->lens, b), keys->words,
                             AT(keys->places, a), AT(keys->lens, a), 0);
    return order < 0 || (order == 0 && AT(trailers, b) > AT(trailers, a));
}

// The last index in `from..to` with `array[index] <= value`. array[from] is at most `value`.
DEVICE u64 last_at_most32(u32s array, u64 from, u64 to, u64 value) {
    while (from + 1 < to) {
        u64 middle = from + (to - from) / 2;
        if (AT(array, middle) <= value) {
            from = middle;
        } else {
            to = middle;
        }
    }
    return from;
}

// A thread for each entry: compares it with the one before it in its input.
KERNEL(check_order, CheckOrder) {
    if (ITEM == 0 || ITEM >= a->count) {
        return;
    }
    u64 input = last_at_most32(a->first_entries, 0, a->inputs, ITEM);
    if (AT(a->first_entries, input) < ITEM && is_before(&a->keys, a->trailers, ITEM, ITEM - 1)) {
        report(a->errors, ITEM, WRONG_ORDER);
    }
}

typedef struct {
    Keys keys;
    u64s bounds;        // words of the bounds' keys
    u32s bound_places;  // of each input: start and end
    u32s bound_lens;    // the same; an end of 0xffffffff is no end
    u32s first_entries; // of each input, and the number of all entries
    u32s ranges;        // of each input: the first entry within its bounds, and the one after
    u32 inputs;
    u32 unused;
} Clip;

// The first entry in `from..to` whose key is not below a key.
DEVICE u64 first_not_below(const Keys *keys, u64 from, u64 to, u64s words, u64 place, u32 len) {
    while (from < to) {
        u64 middle = from + (to - from) / 2;
        i32 order = compare_keys(keys->words, AT(keys->places, middle), AT(keys->lens, middle),
                                 words, place, len, 0);
        if (order < 0) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

// A thread for each input.
KERNEL(clip, Clip) {
    if (ITEM >= a->inputs) {
        return;
    }
    u64 from = AT(a->first_entries, ITEM), to = AT(a->first_entries, ITEM + 1);
    u32 end_len = AT(a->bound_lens, 2 * ITEM + 1);
    if (end_len != 0xffffffffu) {
        to = first_not_below(&a->keys, from, to, a->bounds, AT(a->bound_places, 2 * ITEM + 1),
                             end_len);
    }
    from = first_not_below(&a->keys, from, to, a->bounds, AT(a->bound_places, 2 * ITEM),
                           AT(a->bound_lens, 2 * ITEM));
    AT(a->ranges, 2 * ITEM) = (u32)from;
    AT(a->ranges, 2 * ITEM + 1) = (u32)to;
}

typedef struct {
    u32s first_entries; // of each block
    u32s inputs;        // replaced: of each input, its first entry, and the number of all entries
    InputArray input_array;
    u64 count; // of inputs
    u64 blocks;
} InputEntries;

// A thread for each input and one more.
KERNEL(input_entries, InputEntries) {
    if (ITEM > a->count) {
        return;
    }
    u64 first = ITEM == a->count ? a->blocks : AT(a->input_array, ITEM).first_block;
    AT(a->inputs, ITEM) = AT(a->first_entries, first);
}

#endif
