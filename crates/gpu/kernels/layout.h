// Layout: where tables begin (`layout.rs` of the table crate), and where blocks end
// (`block/extent.rs`).
//
// Tables are a function of prefix sums: the raw bytes before each survivor, and a walk over the soft
// cuts. Blocks are a chain, because where a block ends depends on the entry with which it begins and
// on its offset modulo 4096. So the end of every block that could begin at a multiple of 4096 is
// computed at once, and the chain of each table is followed from end to end.
#ifndef SILTSTONE_LAYOUT_H
#define SILTSTONE_LAYOUT_H
#include "retain.h"

typedef struct {
    Keys keys;
    u64s words; // the cuts
    u32s places;
    u32s lens;
    u32s firsts; // of each cut: the first survivor that is not below it
    u64 survivors;
    u64 count;
} FindCuts;

// A thread for each soft cut.
KERNEL(find_cuts, FindCuts) {
    if (ITEM < a->count) {
        AT(a->firsts, ITEM) =
            (u32)first_not_below(&a->keys, 0, a->survivors, a->words, AT(a->places, ITEM),
                                 AT(a->lens, ITEM));
    }
}

typedef struct {
    u32s firsts;   // of each cut
    u64s raw;      // prefix sums of the raw bytes of the survivors
    u64s earlier;  // S of each span from the first survivor's span on; span c begins with cut c - 1
    u64 cuts;
    u64 survivors;
    u64 min_span_bytes;
    u64 earlier_spans_bytes; // S and w at the first survivor
    u64 span_bytes;
} WalkSpans;

DEVICE u64 saturating_add(u64 a, u64 b) { return a + b < a ? ~0ull : a + b; }

// One thread: S of each span.
KERNEL(walk_spans, WalkSpans) {
    if (ITEM != 0) {
        return;
    }
    u64 sum = a->earlier_spans_bytes, before = a->span_bytes, begin = 0;
    // The span of the first survivor is the one after the cuts at or below it.
    u64 span = 0;
    while (span < a->cuts && AT(a->firsts, span) == 0) {
        AT(a->earlier, span) = sum;
        span++;
    }
    AT(a->earlier, span) = sum;
    for (; span < a->cuts; span++) {
        u64 end = AT(a->firsts, span);
        u64 raw = saturating_add(AT(a->raw, end) - AT(a->raw, begin), before);
        sum = saturating_add(sum, max64(raw, a->min_span_bytes));
        AT(a->earlier, span + 1) = sum;
        begin = end;
        before = 0;
    }
}

// The begin of a table.
typedef struct {
    u64 earlier_spans_bytes;
    u64 span_bytes;
    u32 first; // the survivor
    u32 span;
} TableStart;

ARRAY(TableStarts, TableStart);

typedef struct {
    u8s is_new;
    u64s raw;
    u32s firsts; // of each cut
    u64s earlier;
    u32s begins; // of each survivor: 1 if a table begins with it
    u64 cuts;
    u64 survivors;
    u64 table_bytes;
    u64 delay_bytes;
    u64 span_bytes; // w at the first survivor
} BeginTables;

// The span of a survivor, and the raw bytes before it in its span.
DEVICE void span_of(u32s firsts, u64s raw, u64 cuts, u64 first_span_bytes, u64 i, u64 *span,
                    u64 *within) {
    // The number of cuts whose first survivor is at or before i.
    u64 from = 0, to = cuts;
    while (from < to) {
        u64 middle = from + (to - from) / 2;
        if (AT(firsts, middle) <= i) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    u64 begin = from == 0 ? 0 : AT(firsts, from - 1);
    *span = from;
    *within = AT(raw, i) - AT(raw, begin);
    if (begin == 0) {
        *within = saturating_add(*within, first_span_bytes);
    }
}

DEVICE u64 table_number(const BeginTables *a, u64 i) {
    u64 span = 0, within = 0;
    span_of(a->firsts, a->raw, a->cuts, a->span_bytes, i, &span, &within);
    u64 delayed = within > a->delay_bytes ? within - a->delay_bytes : 0;
    return saturating_add(AT(a->earlier, span), delayed) / a->table_bytes;
}

// A thread for each survivor.
KERNEL(begin_tables, BeginTables) {
    if (ITEM >= a->survivors) {
        return;
    }
    u32 begins = ITEM == 0;
    if (ITEM > 0 && AT(a->is_new, ITEM)) {
        u64 before = ITEM - 1;
        while (!AT(a->is_new, before)) {
            before--;
        }
        begins = table_number(a, ITEM) != table_number(a, before);
    }
    AT(a->begins, ITEM) = begins;
}

typedef struct {
    u32s numbers; // prefix sums of `begins`
    u64s raw;
    u32s firsts;
    u64s earlier;
    TableStarts starts;
    u64 cuts;
    u64 survivors;
    u64 span_bytes;
} ListTables;

// A thread for each survivor.
KERNEL(list_tables, ListTables) {
    if (ITEM >= a->survivors || AT(a->numbers, ITEM) == AT(a->numbers, ITEM + 1)) {
        return;
    }
    u64 span = 0, within = 0;
    span_of(a->firsts, a->raw, a->cuts, a->span_bytes, ITEM, &span, &within);
    TableStart start;
    start.earlier_spans_bytes = AT(a->earlier, span);
    start.span_bytes = within;
    start.first = (u32)ITEM;
    start.span = (u32)span;
    AT(a->starts, AT(a->numbers, ITEM)) = start;
}

// What decides how many bytes a block takes: `Extent` of the table crate.
typedef struct {
    u64 value_bytes;
    u64 min_trailer;
    u64 max_trailer;
    u32 entries;
    u32 key_bytes;
    u32 prefix_len;
    u32 longest_shared;
    u32 shortest_key;
    u32 longest_key;
    u32 last_key;
    u32 first_value;
    u32 has_fixed_values;
    u32 kind_bits;
} Extent;

DEVICE void first_extent(Extent *e, u32 key_len, u64 trailer, u32 value_len) {
    e->value_bytes = value_len;
    e->min_trailer = e->max_trailer = trailer;
    e->entries = 1;
    e->key_bytes = e->prefix_len = e->shortest_key = e->longest_key = e->last_key = key_len;
    e->longest_shared = 0;
    e->first_value = value_len;
    e->has_fixed_values = 1;
    e->kind_bits = 0;
}

DEVICE void add_to_extent(Extent *e, u32 key_len, u64 trailer, u32 value_len, u32 shared) {
    u32 differs = shared < key_len || shared < e->last_key;
    e->entries++;
    e->key_bytes += key_len;
    e->value_bytes += value_len;
    e->prefix_len = min32(e->prefix_len, shared);
    e->longest_shared = max32(e->longest_shared, differs ? shared : 0);
    e->shortest_key = min32(e->shortest_key, key_len);
    e->longest_key = max32(e->longest_key, key_len);
    e->last_key = key_len;
    e->has_fixed_values &= value_len == e->first_value;
    e->kind_bits |= (u32)(trailer ^ e->min_trailer) & 0xff;
    e->min_trailer = min64(e->min_trailer, trailer);
    e->max_trailer = max64(e->max_trailer, trailer);
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

// `Extent::stored_bytes`.
DEVICE u64 stored_bytes(const Extent *e) {
    u64 n = e->entries;
    u32 filled = e->prefix_len + head_width(e);
    u64 pad = filled > e->shortest_key ? filled - e->shortest_key : 0;
    u64 keys = e->key_bytes - n * e->prefix_len + n * pad;
    u32 tail_end = has_fixed_keys(e) ? 0 : e->key_bytes <= 65535 ? 2 : 4;
    u64 each = tail_end + has_pads(e) + seq_width(e) + (e->kind_bits != 0) + value_width(e);
    return e->value_bytes + HEADER_BYTES + keys + n * each + e->prefix_len + CHECKSUM_BYTES;
}

#define PAGE_BYTES 4096ull
#define KEY_LIMIT_BYTES (32u << 10)

// Where blocks end: `BlockRule`.
typedef struct {
    u64 block_bytes;
    u32 is_paged;
    u32 unused;
} Rule;

enum { NOT_YET = 0, ENDS_WITH_PAGE = 1, ENDS_BY_SIZE = 2 };

// Whether the block that begins at `start` ends before the entry with which it would be `then`. It
// is `now` without this entry.
DEVICE u32 block_ends(const Rule *rule, u64 start, const Extent *now, const Extent *then,
                      u64 *page) {
    u64 without = stored_bytes(now);
    u32 may_be_full = 1;
    if (rule->is_paged) {
        u64 end = (start + rule->block_bytes + PAGE_BYTES / 2) / PAGE_BYTES * PAGE_BYTES;
        u64 with = start + stored_bytes(then);
        if (start + without <= end && end < with &&
            end - (start + without) <= MAX_PADDING_BYTES) {
            *page = end;
            return ENDS_WITH_PAGE;
        }
        may_be_full = start + without > end;
    }
    u32 is_full = (may_be_full && without >= rule->block_bytes) ||
                  then->entries > MAX_BLOCK_ENTRIES ||
                  then->key_bytes - then->last_key >= KEY_LIMIT_BYTES;
    return is_full ? ENDS_BY_SIZE : NOT_YET;
}

// `Extent::most_bytes`: no less than the bytes of the block, however many of its entries it has.
DEVICE u64 most_bytes(const Extent *e) {
    return e->value_bytes + HEADER_BYTES + e->key_bytes + (u64)e->entries * 26 + CHECKSUM_BYTES;
}

typedef struct {
    Survivors survivors;
    u32s tables; // prefix sums: the number of tables that begin before each survivor
    Rule rule;
    u64 count;
} Chain;

// The bytes of all tails of the block of survivors `first..next`. Keys that end within their head
// have none.
DEVICE u32 tail_bytes_of(const Survivors *s, const Extent *e, u64 first, u64 next) {
    u32 skip = e->prefix_len + head_width(e);
    if (skip <= e->shortest_key) {
        return e->key_bytes - e->entries * skip;
    }
    u32 sum = 0;
    for (u64 i = first; i < next; i++) {
        u32 len = AT(s->keys.lens, i);
        sum += len > skip ? len - skip : 0;
    }
    return sum;
}

// The bytes that a block takes uncompressed: values, header, columns and checksum.
DEVICE u64 exact_bytes(const Extent *e, u32 tail_bytes) {
    u32 tail_end = has_fixed_keys(e) ? 0 : tail_bytes <= 65535 ? 2 : 4;
    u64 each = head_width(e) + tail_end + has_pads(e) + seq_width(e) + (e->kind_bits != 0) +
               value_width(e);
    return e->value_bytes + HEADER_BYTES + e->entries * each + tail_bytes + e->prefix_len +
           CHECKSUM_BYTES;
}

// The end of the block that begins with survivor `first` at offset `start`: the next block's first
// survivor. Also the extent, the bytes of the tails, and the padding.
DEVICE u64 scan_block(const Chain *c, u64 first, u64 start, Extent *e, u32 *tail_bytes,
                      u32 *padding) {
    const Survivors *s = &c->survivors;
    first_extent(e, AT(s->keys.lens, first), AT(s->trailers, first), AT(s->value_lens, first));
    u32 table = AT(c->tables, first + 1), end = NOT_YET;
    u64 next = first + 1, page = 0;
    u64 room = c->rule.block_bytes - 1;
    if (c->rule.is_paged) {
        room = (start + c->rule.block_bytes + PAGE_BYTES / 2) / PAGE_BYTES * PAGE_BYTES - start;
    }
    while (next < c->count && AT(c->tables, next + 1) == table) {
        Extent then = *e;
        add_to_extent(&then, AT(s->keys.lens, next), AT(s->trailers, next),
                      AT(s->value_lens, next), AT(s->shared, next));
        if (most_bytes(&then) > room || then.entries > MAX_BLOCK_ENTRIES ||
            then.key_bytes >= KEY_LIMIT_BYTES) {
            end = block_ends(&c->rule, start, e, &then, &page);
            if (end != NOT_YET) {
                break;
            }
        }
        *e = then;
        next++;
    }
    *tail_bytes = tail_bytes_of(s, e, first, next);
    *padding = 0;
    if (end == ENDS_WITH_PAGE) {
        u64 bytes = start + exact_bytes(e, *tail_bytes);
        if (bytes <= page && page - bytes <= MAX_PADDING_BYTES) {
            *padding = (u32)(page - bytes);
        }
    }
    return next;
}

typedef struct {
    Chain chain;
    u32s nexts; // of each survivor: where the block ends that begins with it
    u32s bytes; // and how many bytes it takes, with padding
} BlockEnds;

// A thread for each survivor: the block that begins with it at a multiple of 4096.
KERNEL(find_block_ends, BlockEnds) {
    if (ITEM >= a->chain.count) {
        return;
    }
    Extent e;
    u32 tail_bytes = 0, padding = 0;
    AT(a->nexts, ITEM) = (u32)scan_block(&a->chain, ITEM, 0, &e, &tail_bytes, &padding);
    AT(a->bytes, ITEM) = (u32)(exact_bytes(&e, tail_bytes) + padding);
}

// No step: the chain is followed block by block from here.
#define NO_JUMP 0xffffffffu

typedef struct {
    Chain chain;
    u32s nexts;
    u32s bytes;
    u32s jumps; // of each survivor: the block after the one that begins with it
} BeginJumps;

// A thread for each survivor. A jump leads from a multiple of 4096 to one, within a table.
KERNEL(begin_jumps, BeginJumps) {
    if (ITEM >= a->chain.count) {
        return;
    }
    u32 next = AT(a->nexts, ITEM);
    u32 is_within =
        next < a->chain.count && AT(a->chain.tables, next + 1) == AT(a->chain.tables, ITEM + 1);
    u32 is_aligned = !a->chain.rule.is_paged || AT(a->bytes, ITEM) % PAGE_BYTES == 0;
    AT(a->jumps, ITEM) = is_within && is_aligned ? next : NO_JUMP;
}

typedef struct {
    u32s from;
    u32s to; // twice as many blocks further
    u64 count;
} DoubleJumps;

// A thread for each survivor.
KERNEL(double_jumps, DoubleJumps) {
    if (ITEM < a->count) {
        u32 middle = AT(a->from, ITEM);
        AT(a->to, ITEM) = middle == NO_JUMP ? NO_JUMP : AT(a->from, middle);
    }
}

typedef struct {
    Chain chain;
    TableStarts starts;
    u32s nexts; // changed for blocks that begin elsewhere
    u32s bytes;
    u32s jumps;
    u32s begins; // of each survivor, 0 before: 1 if a block begins with it
    u32s jumped; // of each survivor, 0 before: 1 if the chain jumped from it
    u64 table_count;
} FollowChain;

// A thread for each table. It marks only the first of the blocks over which it jumps.
KERNEL(follow_chain, FollowChain) {
    if (ITEM >= a->table_count) {
        return;
    }
    u64 at = AT(a->starts, ITEM).first;
    u64 end = ITEM + 1 < a->table_count ? AT(a->starts, ITEM + 1).first : a->chain.count;
    u64 offset = 0; // modulo 4096
    while (at < end) {
        AT(a->begins, at) = 1;
        if (!a->chain.rule.is_paged || offset == 0) {
            u32 jump = AT(a->jumps, at);
            if (jump != NO_JUMP) {
                AT(a->jumped, at) = 1;
                at = jump;
                continue;
            }
        } else {
            Extent e;
            u32 tail_bytes = 0, padding = 0;
            AT(a->nexts, at) = (u32)scan_block(&a->chain, at, offset, &e, &tail_bytes, &padding);
            AT(a->bytes, at) = (u32)(exact_bytes(&e, tail_bytes) + padding);
        }
        offset = (offset + AT(a->bytes, at)) % PAGE_BYTES;
        at = AT(a->nexts, at);
    }
}

typedef struct {
    u32s nexts;
    u32s jumped;
    u32s begins;
    u64 count;
    u64 blocks; // over which a jump leads
} ExpandJumps;

// A thread for each survivor: marks the blocks over which the chain jumped from it.
KERNEL(expand_jumps, ExpandJumps) {
    if (ITEM >= a->count || !AT(a->jumped, ITEM)) {
        return;
    }
    u64 at = ITEM;
    for (u64 i = 1; i < a->blocks; i++) {
        at = AT(a->nexts, at);
        AT(a->begins, at) = 1;
    }
}

#endif
