// Extents: what decides how many bytes a block takes and where it ends (`block/extent.rs` of the
// table crate).
//
// An extent describes neighbouring survivors. Each of its fields is a sum, a minimum, a maximum, a
// statement about all of them, or a histogram. So two extents can be joined, and the result does
// not depend on how the survivors were divided. Therefore the extents of groups of survivors are
// computed once, and the search for the end of a block joins groups instead of single entries.
//
// The table crate combines kinds by exclusive or, and only asks whether the result is 0, which
// means that all kinds are equal. That is a statement about all survivors, so it is kept instead.
#ifndef SILTSTONE_EXTENT_H
#define SILTSTONE_EXTENT_H
#include "retain.h"

typedef struct {
    u64 value_bytes;
    u64 min_trailer;
    u64 max_trailer;
    // How many keys have the length of the shortest one, and 1 to 3 bytes more: 16 bits for each.
    u64 short_keys;
    u64 less_short_keys; // 4 to 7 bytes more
    u32 key_bytes;
    u32 first_value;
    u16 entries;
    u16 prefix_len;     // the least that a key shares with the one before it
    u16 longest_shared; // the most, among survivors that begin a user key
    u16 shortest_key;
    u16 longest_key;
    u8 has_fixed_values;
    u8 has_kinds; // whether kinds differ
    u32 unused;
} Extent;

ARRAY(Extents, Extent);

// The extent of one survivor.
DEVICE Extent extent_of(const Survivors *s, u64 i) {
    u32 key_len = AT(s->keys.lens, i), value_len = AT(s->value_lens, i), shared = AT(s->shared, i);
    Extent e;
    e.value_bytes = value_len;
    e.min_trailer = e.max_trailer = AT(s->trailers, i);
    e.short_keys = 1;
    e.less_short_keys = 0;
    e.entries = 1;
    e.key_bytes = key_len;
    e.shortest_key = e.longest_key = (u16)key_len;
    e.prefix_len = (u16)shared;
    e.longest_shared = AT(s->is_new, i) ? (u16)shared : 0;
    e.first_value = value_len;
    e.has_fixed_values = 1;
    e.has_kinds = 0;
    e.unused = 0;
    return e;
}

// The extent of a block that has one survivor yet. Blocks share nothing with those before them.
DEVICE Extent block_of(const Survivors *s, u64 i) {
    Extent e = extent_of(s, i);
    e.prefix_len = e.shortest_key;
    e.longest_shared = 0;
    return e;
}

// Counts keys by their length above a shortest key that has `by` bytes less.
DEVICE void lower_shortest(Extent *e, u32 by) {
    u64 low = e->short_keys, high = e->less_short_keys;
    u32 shift = 16 * (by & 3);
    if (shift != 0) {
        high = high << shift | low >> (64 - shift);
        low <<= shift;
    }
    e->short_keys = by < 4 ? low : 0;
    e->less_short_keys = by < 4 ? high : by < 8 ? low : 0;
    e->shortest_key -= (u16)by;
}

// Adds to an extent that of the survivors that follow.
DEVICE void join(Extent *e, Extent next) {
    // If the kinds of both do not differ, each has that of its smallest trailer.
    e->has_kinds |= next.has_kinds | (u8)(((e->min_trailer ^ next.min_trailer) & 0xff) != 0);
    e->min_trailer = min64(e->min_trailer, next.min_trailer);
    e->max_trailer = max64(e->max_trailer, next.max_trailer);
    e->has_fixed_values &= next.has_fixed_values & (u8)(e->first_value == next.first_value);
    e->value_bytes += next.value_bytes;
    u32 shortest = min32(e->shortest_key, next.shortest_key);
    lower_shortest(e, e->shortest_key - shortest);
    lower_shortest(&next, next.shortest_key - shortest);
    e->short_keys += next.short_keys;
    e->less_short_keys += next.less_short_keys;
    e->longest_key = (u16)max32(e->longest_key, next.longest_key);
    e->entries += next.entries;
    e->key_bytes += next.key_bytes;
    e->prefix_len = (u16)min32(e->prefix_len, next.prefix_len);
    e->longest_shared = (u16)max32(e->longest_shared, next.longest_shared);
}

DEVICE u32 head_width(const Extent *e) { return e->longest_shared < e->prefix_len + 4 ? 4 : 8; }

DEVICE u32 has_fixed_keys(const Extent *e) { return e->shortest_key == e->longest_key; }

DEVICE u32 has_pads(const Extent *e) {
    return !has_fixed_keys(e) && e->shortest_key < e->prefix_len + head_width(e);
}

DEVICE u32 seq_width(const Extent *e) {
    u64 range = (e->max_trailer >> 8) - (e->min_trailer >> 8);
    return (64 - leading_zeros64(range) + 7) / 8;
}

DEVICE u32 value_width(const Extent *e) {
    return e->has_fixed_values ? 0 : e->value_bytes <= 65535 ? 2 : 4;
}

// An upper bound: `Extent::stored_bytes` of every block that has the first entries of `e`, any
// number of them, and whose prefix has at most `prefix` bytes, is at most this. For `e` itself,
// with the length of its own prefix, this is its `stored_bytes`.
//
// Let a block have n entries, a shortest key of s bytes, a prefix of f bytes, and heads of h bytes.
// Its keys, their pads, and the prefix together take the larger of these two sums over its entries,
// of which the first one counts if f + h <= s, so that no key is padded:
//
//     f + sum(length - f)
//     f + sum(length - s + h)
//
// Let the block grow by an entry. Then f and s do not grow. h does not fall: a head has 8 bytes if
// `longest_shared`, which does not fall, is at least f + 4. So
//
// - the first sum does not fall: the new entry adds at least 0, and if f falls by d, the n terms of
//   the others grow by d, and the prefix loses d only once;
// - no term of the second sum falls, and f stays at most `prefix`;
// - the widths of tail ends, sequence numbers, kinds and value starts do not fall;
// - a block on the way to `e` may have a byte for each pad where `e` has none, but not if the keys
//   of `e` have one length, or if the shortest one is as long as `prefix` and a head.
DEVICE u64 most_stored_bytes(const Extent *e, u32 prefix) {
    u64 n = e->entries;
    u32 head = head_width(e), is_fixed = has_fixed_keys(e);
    u64 plain = e->key_bytes - (n - 1) * e->prefix_len;
    u64 padded = prefix + e->key_bytes + n * head - n * e->shortest_key;
    u32 tail_end = is_fixed ? 0 : e->key_bytes <= 65535 ? 2 : 4;
    u32 pad = !is_fixed && e->shortest_key < prefix + head;
    u64 each = tail_end + pad + seq_width(e) + e->has_kinds + value_width(e);
    return e->value_bytes + HEADER_BYTES + max64(plain, padded) + n * each + CHECKSUM_BYTES;
}

// `Extent::stored_bytes`.
DEVICE u64 stored_bytes(const Extent *e) { return most_stored_bytes(e, e->prefix_len); }

// `Extent::most_bytes`: no less than the bytes of the block, however many of its entries it has.
DEVICE u64 most_bytes(const Extent *e) {
    return e->value_bytes + HEADER_BYTES + e->key_bytes + (u64)e->entries * 26 + CHECKSUM_BYTES;
}

// The bytes of all tails of a block. Keys that end within their head have none. No key is shorter
// than the prefix, and a head has 8 bytes at most, so all of these are counted by their lengths.
DEVICE u32 tail_bytes_of(const Extent *e) {
    u32 skip = e->prefix_len + head_width(e), bytes = e->key_bytes - e->entries * skip;
    u64 low = e->short_keys, high = e->less_short_keys;
    for (u32 len = e->shortest_key; len < skip; len++) {
        bytes += (u32)(low & 0xffff) * (skip - len);
        low = low >> 16 | high << 48;
        high >>= 16;
    }
    return bytes;
}

// The bytes that a block takes uncompressed: values, header, columns and checksum.
DEVICE u64 exact_bytes(const Extent *e) {
    u32 tail_bytes = tail_bytes_of(e);
    u32 tail_end = has_fixed_keys(e) ? 0 : tail_bytes <= 65535 ? 2 : 4;
    u64 each = head_width(e) + tail_end + has_pads(e) + seq_width(e) + e->has_kinds +
               value_width(e);
    return e->value_bytes + HEADER_BYTES + e->entries * each + tail_bytes + e->prefix_len +
           CHECKSUM_BYTES;
}

#endif
