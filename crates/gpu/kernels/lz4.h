// Compressed parts of blocks: the block format of lz4, in both directions, a thread for each part.
//
// The decoder accepts exactly what `lz4_flex` accepts with a destination of the right length, and
// stays within its part and its destination whatever the bytes are. It is as lax as `lz4_flex`: the
// last sequence has literals only, and how many does not matter.
//
// The encoder keeps the rules of the format: the last five bytes are literals, and the last match
// begins at least twelve bytes before the end.
#ifndef SILTSTONE_LZ4_H
#define SILTSTONE_LZ4_H
#include "pack.h"

// A part that a thread decodes or encodes.
typedef struct {
    u64 from;       // where its bytes begin
    u64 to;         // where the result begins, a multiple of 8
    u64 from_bytes;
    u32 to_bytes;   // the length of the result when decoding, the most that it may be when encoding
    u32 is_used;    // 0: the part stays as it is
} Lz4Part;

ARRAY(Lz4Parts, Lz4Part);

DEVICE Lz4Part no_part(void) {
    Lz4Part part;
    part.from = part.to = part.from_bytes = 0;
    part.to_bytes = part.is_used = 0;
    return part;
}

// What a thread writes from a multiple of 8 on, a word at a time. The bytes after the last whole
// word are in `word`.
typedef struct {
    u8s bytes;
    u64 at;
    u64 word;
} Lz4Out;

DEVICE Lz4Out begin_out(u8s bytes, u64 at) {
    Lz4Out out;
    out.bytes = bytes;
    out.at = at;
    out.word = 0;
    return out;
}

// Appends 1 to 8 bytes. The other bytes of `value` are 0.
DEVICE void append(Lz4Out *out, u64 value, u32 count) {
    u32 shift = 8 * (u32)(out->at & 7);
    out->word |= value << shift;
    if (shift + 8 * count >= 64) {
        put_word(out->bytes, out->at & ~7ull, out->word);
        out->word = shift == 0 ? 0 : value >> (64 - shift);
    }
    out->at += count;
}

// Writes the bytes after the last whole word, and zeros after them.
DEVICE void end_out(const Lz4Out *out) {
    if ((out->at & 7) != 0) {
        put_word(out->bytes, out->at & ~7ull, out->word);
    }
}

// Bytes of an input. It has 16 bytes of slack.
DEVICE void append_from(Lz4Out *out, u8s in, u64 from, u64 count) {
    while (count > 0) {
        u32 take = count < 8 ? (u32)count : 8;
        append(out, bytes_of_width(in, from, take), take);
        from += take;
        count -= take;
    }
}

// 1 to 8 bytes that were appended before.
DEVICE u64 appended(const Lz4Out *out, u64 at, u32 count) {
    u64 first = at & ~7ull, last = out->at & ~7ull;
    u32 shift = 8 * (u32)(at & 7);
    u64 value = (first == last ? out->word : word_at(out->bytes, first)) >> shift;
    if (shift + 8 * count > 64) {
        u64 next = first + 8 == last ? out->word : word_at(out->bytes, first + 8);
        value |= next << (64 - shift);
    }
    return value & ~0ull >> (64 - 8 * count);
}

// Appends bytes again that were appended `distance` bytes before.
DEVICE void append_again(Lz4Out *out, u64 distance, u64 count) {
    while (count > 0) {
        u32 take = (u32)min64(min64(distance, 8), count);
        append(out, appended(out, out->at - distance, take), take);
        count -= take;
        // The bytes repeat, so those at twice the distance are equal.
        distance += distance < 8 ? distance : 0;
    }
}

// Adds the bytes after a token to a length. Returns 0 if the part ends before it does, or if it is
// more than `most`, which is an error in every case.
DEVICE u32 read_length(u8s in, u64 *at, u64 end, u64 most, u64 *length) {
    for (;;) {
        if (*at >= end || *length > most) {
            return 0;
        }
        u32 byte = AT(in, *at);
        *at += 1;
        *length += byte;
        if (byte != 255) {
            return 1;
        }
    }
}

// Decodes a part. Returns whether it is sound.
DEVICE u32 decode_part(u8s in, u8s bytes, const Lz4Part *part) {
    u64 at = part->from, end = at + part->from_bytes, to_end = part->to + part->to_bytes;
    Lz4Out out = begin_out(bytes, part->to);
    for (;;) {
        if (at >= end) {
            return 0;
        }
        u32 token = AT(in, at);
        at++;
        u64 literals = token >> 4, match = (token & 15) + 4;
        if (literals == 15 && !read_length(in, &at, end, to_end - out.at, &literals)) {
            return 0;
        }
        if (literals > end - at || literals > to_end - out.at) {
            return 0;
        }
        append_from(&out, in, at, literals);
        at += literals;
        if (at == end) {
            end_out(&out);
            return out.at == to_end;
        }
        if (end - at < 2) {
            return 0;
        }
        u32 distance = AT(in, at) | (u32)AT(in, at + 1) << 8;
        at += 2;
        if (match == 19 && !read_length(in, &at, end, to_end - out.at, &match)) {
            return 0;
        }
        if (distance == 0 || distance > out.at - part->to || match > to_end - out.at) {
            return 0;
        }
        append_again(&out, distance, match);
    }
}

typedef struct {
    u8s bytes;
    Places places;
    Blocks blocks;
    u64s raw_bytes; // prefix sums: where the parts of each block go, after `raw`
    Lz4Parts parts; // the columns of each block, then the values of each block
    u64 count;
    u64 raw; // a multiple of 8
} ListStoredParts;

// A thread for each block: what is decoded, and where. Copies the headers of compressed columns.
KERNEL(list_stored_parts, ListStoredParts) {
    if (ITEM >= a->count) {
        return;
    }
    Place p = AT(a->places, ITEM);
    Block b = AT(a->blocks, ITEM);
    Lz4Part columns = no_part(), values = no_part();
    u64 to = a->raw + AT(a->raw_bytes, ITEM);
    if (b.n > 0 && (b.flags & FLAG_COLUMNS_COMPRESSED) != 0) {
        for (u32 i = 0; i < HEADER_BYTES; i += 8) {
            put_word(a->bytes, to + i, bytes8(a->bytes, p.anchor + i));
        }
        columns.from = p.anchor + HEADER_BYTES;
        columns.from_bytes = p.end - CHECKSUM_BYTES - columns.from;
        columns.to = to + HEADER_BYTES;
        columns.to_bytes = b.columns_end - HEADER_BYTES;
        columns.is_used = 1;
        b.columns = to;
        to += (b.columns_end + 7) & ~7u;
    }
    if (b.n > 0 && (b.flags & FLAG_VALUES_COMPRESSED) != 0) {
        values.from = p.start;
        values.from_bytes = p.anchor - p.start;
        values.to = to;
        values.to_bytes = b.value_bytes;
        values.is_used = 1;
        b.values = to;
    }
    AT(a->blocks, ITEM) = b;
    AT(a->parts, ITEM) = columns;
    AT(a->parts, a->count + ITEM) = values;
}

typedef struct {
    u8s bytes;
    Lz4Parts parts;
    u64s errors;
    u64 count; // of blocks
} Lz4Decode;

// A thread for each part.
KERNEL(lz4_decode, Lz4Decode) {
    if (ITEM >= 2 * a->count) {
        return;
    }
    Lz4Part part = AT(a->parts, ITEM);
    if (part.is_used && !decode_part(a->bytes, a->bytes, &part)) {
        report(a->errors, ITEM % a->count, WRONG_BLOCK);
    }
}

#define MIN_COMPRESSED_PART 64

// Parts of this many bytes or more are large: they are encoded with larger tables, by launches of
// their own.
#define LARGE_PART 8192

// In parts of this many bytes or more, the table says where five bytes were seen, not four: most
// matches are longer there, and the table would be full of short ones.
#define LONG_PART 65536

// The slot of the next bytes in a table.
DEVICE u32 slot_of(u64 bytes, u32 is_long, u32 bits) {
    if (is_long) {
        return (u32)((bytes << 24) * 889523592379ull >> (64 - bits));
    }
    return (u32)bytes * 2654435761u >> (32 - bits);
}

// The number of bytes after a token that a length needs. 15 of it are in the token.
DEVICE u32 length_bytes(u32 length) { return length < 15 ? 0 : (length - 15) / 255 + 1; }

DEVICE void append_length(Lz4Out *out, u32 length) {
    if (length >= 15) {
        for (length -= 15; length >= 255; length -= 255) {
            append(out, 255, 1);
        }
        append(out, length, 1);
    }
}

typedef struct {
    u8s in;
    u8s out;
    Lz4Parts parts;
    // One for each thread, of 2^table_bits slots: where bytes of each slot were seen last, modulo
    // 2^16. They have zeros before.
    u16s tables;
    u32s sizes; // of each part: the bytes of the result, or 0 if the part stays as it is
    u64 first;  // the part of the first thread
    u64 count;  // of threads
    u32 table_bits;
    u32 is_large; // whether this launch is for large parts; it leaves the others alone
} Lz4Encode;

// The bytes at `at` in a part, and at `at - distance`, that are equal, before `end`.
DEVICE u32 equal_bytes(u8s in, u64 from, u32 at, u32 distance, u32 end) {
    u32 begin = at;
    while (at < end) {
        u64 differs = bytes8(in, from + at) ^ bytes8(in, from + at - distance);
        if (differs != 0) {
            at += trailing_zeros64(differs) / 8;
            break;
        }
        at += 8;
    }
    return min32(at, end) - begin;
}

// Encodes a part of at least 64 bytes. Returns the bytes of the result, or 0 if they are more than
// what is allowed.
DEVICE u32 encode_part(const Lz4Encode *a, const Lz4Part *part, u64 table) {
    u64 from = part->from;
    u32 bytes = (u32)part->from_bytes, last = bytes - 12, done = 0, next = 1;
    u32 is_long = bytes >= LONG_PART;
    u64 to_end = part->to + part->to_bytes;
    Lz4Out out = begin_out(a->out, part->to);
    // The table has zeros, so it knows the first place.
    for (;;) {
        // The next four bytes that were there before, with longer steps as long as there are none.
        u32 at = 0, distance = 0, found = 0;
        for (u32 tries = 32; !found; tries++) {
            at = next;
            if (at > last) {
                break;
            }
            u64 eight = bytes8(a->in, from + at);
            u64 slot = table + slot_of(eight, is_long, a->table_bits);
            distance = (at - AT(a->tables, slot)) & 0xffff;
            AT(a->tables, slot) = (u16)at;
            found = distance > 0 && distance <= at &&
                    bytes4(a->in, from + at - distance) == (u32)eight;
            next = at + (tries >> 5);
        }
        if (!found) {
            break;
        }
        while (at > done && at > distance &&
               AT(a->in, from + at - 1) == AT(a->in, from + at - 1 - distance)) {
            at--;
        }
        u32 literals = at - done;
        u32 match = equal_bytes(a->in, from, at + 4, distance, bytes - 5);
        u64 size = 3ull + length_bytes(literals) + literals + length_bytes(match);
        if (size > to_end - out.at) {
            return 0;
        }
        append(&out, min32(literals, 15) << 4 | min32(match, 15), 1);
        append_length(&out, literals);
        append_from(&out, a->in, from + done, literals);
        append(&out, distance, 2);
        append_length(&out, match);
        done = next = at + 4 + match;
        if (done <= last) {
            u64 eight = bytes8(a->in, from + done - 2);
            u64 slot = table + slot_of(eight, is_long, a->table_bits);
            AT(a->tables, slot) = (u16)(done - 2);
        }
    }
    u32 literals = bytes - done;
    if (1ull + length_bytes(literals) + literals > to_end - out.at) {
        return 0;
    }
    append(&out, min32(literals, 15) << 4, 1);
    append_length(&out, literals);
    append_from(&out, a->in, from + done, literals);
    end_out(&out);
    return (u32)(out.at - part->to);
}

// A thread for each part, from `first` on.
KERNEL(lz4_encode, Lz4Encode) {
    if (ITEM >= a->count) {
        return;
    }
    Lz4Part part = AT(a->parts, a->first + ITEM);
    if ((part.from_bytes >= LARGE_PART) == a->is_large) {
        u32 size = part.is_used ? encode_part(a, &part, ITEM << a->table_bits) : 0;
        AT(a->sizes, a->first + ITEM) = size;
    }
}

typedef struct {
    OutBlocks blocks;
    Lz4Parts parts; // the columns of each block, then the values of each block
    u64s large;     // 0 before: the number of large parts
    u64 count;
} ListOutputParts;

DEVICE Lz4Part output_part(u64 from, u64 bytes, u64 to) {
    Lz4Part part;
    part.from = from;
    part.to = to;
    part.from_bytes = bytes;
    part.to_bytes = (u32)(bytes - bytes / 8);
    part.is_used = bytes >= MIN_COMPRESSED_PART && bytes <= MAX_COMPRESSED_PART;
    return part;
}

// A thread for each block: what is encoded, and where. The results of neighbouring parts share no
// word: there are 16 bytes more for each block than the blocks have.
KERNEL(list_output_parts, ListOutputParts) {
    if (ITEM >= a->count) {
        return;
    }
    OutBlock b = AT(a->blocks, ITEM);
    u64 anchor = b.at + b.value_bytes, more = 16 * ITEM;
    AT(a->parts, ITEM) =
        output_part(anchor + HEADER_BYTES, b.bytes - b.value_bytes - HEADER_BYTES - CHECKSUM_BYTES,
                    (anchor & ~7ull) + more + 8);
    AT(a->parts, a->count + ITEM) = output_part(b.at, b.value_bytes, (b.at & ~7ull) + more);
    u64 columns = AT(a->parts, ITEM).from_bytes;
    u64 large = (columns >= LARGE_PART) + (u64)(b.value_bytes >= LARGE_PART);
    if (large > 0) {
        atomic_add64(&AT(a->large, 0), large);
    }
}

typedef struct {
    OutBlocks blocks;
    u32s sizes;       // of each part
    u64s places;      // of each block: its bytes as stored, from which a prefix sum makes its place
    OutBlocks stored; // the blocks with the lengths and flags of what is stored
    u64 count;
} MeasureStored;

// A thread for each block.
KERNEL(measure_stored, MeasureStored) {
    if (ITEM >= a->count) {
        return;
    }
    OutBlock b = AT(a->blocks, ITEM);
    u32 columns = AT(a->sizes, ITEM), values = AT(a->sizes, a->count + ITEM);
    u32 columns_before = b.bytes - b.value_bytes - HEADER_BYTES - CHECKSUM_BYTES;
    b.flags |= (u8)((columns != 0 ? FLAG_COLUMNS_COMPRESSED : 0) |
                    (values != 0 ? FLAG_VALUES_COMPRESSED : 0));
    b.value_bytes = values != 0 ? values : b.value_bytes;
    b.bytes = b.value_bytes + HEADER_BYTES + (columns != 0 ? columns : columns_before) +
              CHECKSUM_BYTES;
    AT(a->stored, ITEM) = b;
    AT(a->places, ITEM) = b.bytes;
}

// A thread for each block, after the prefix sum.
KERNEL(number_stored, MeasureStored) {
    if (ITEM < a->count) {
        AT(a->stored, ITEM).at = AT(a->places, ITEM);
    }
}

typedef struct {
    u8s raw;          // the blocks without compression
    u8s encoded;      // the results
    Lz4Parts parts;
    OutBlocks blocks; // as in `raw`
    OutBlocks stored; // as in `out`
    u8s out;
    u64 count;
} PlaceParts;

// Copies bytes, a word a thread. The bytes before the first and after the last whole word of `to`
// belong to words that others write too.
DEVICE void copy_bytes(u8s in, u64 from, u8s out, u64 to, u64 bytes, u32 thread, u32 threads) {
    u64 end = to + bytes, whole = min64((to + 7) & ~7ull, end);
    if (thread == 0) {
        u32 count = (u32)(whole - to);
        put_bytes(out, to, bytes_of_width(in, from, count), count);
    }
    for (u64 at = whole + 8ull * thread; at < end; at += 8ull * threads) {
        u64 source = from + (at - to);
        if (at + 8 <= end) {
            put_word(out, at, bytes8(in, source));
        } else {
            u32 count = (u32)(end - at);
            put_bytes(out, at, bytes_of_width(in, source, count), count);
        }
    }
}

// A CUDA block for each block: values, header and columns as stored. The checksums come later.
KERNEL(place_parts, PlaceParts) {
    OutBlock b = AT(a->blocks, block), s = AT(a->stored, block);
    u64 raw_anchor = b.at + b.value_bytes, anchor = s.at + s.value_bytes;
    if ((s.flags & FLAG_VALUES_COMPRESSED) != 0) {
        u64 from = AT(a->parts, a->count + block).to;
        copy_bytes(a->encoded, from, a->out, s.at, s.value_bytes, thread, threads);
    } else {
        copy_bytes(a->raw, b.at, a->out, s.at, s.value_bytes, thread, threads);
    }
    if (thread < HEADER_BYTES) {
        for (u32 i = thread; i < HEADER_BYTES; i += threads) {
            AT(a->out, anchor + i) = i == 6 ? s.flags : AT(a->raw, raw_anchor + i);
        }
    }
    u64 to = anchor + HEADER_BYTES, bytes = s.bytes - s.value_bytes - HEADER_BYTES - CHECKSUM_BYTES;
    if ((s.flags & FLAG_COLUMNS_COMPRESSED) != 0) {
        copy_bytes(a->encoded, AT(a->parts, block).to, a->out, to, bytes, thread, threads);
    } else {
        copy_bytes(a->raw, raw_anchor + HEADER_BYTES, a->out, to, bytes, thread, threads);
    }
}

#endif
