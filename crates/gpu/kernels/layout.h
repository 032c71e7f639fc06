// Layout: where tables begin (`layout.rs` of the table crate), and where blocks end
// (`block/extent.rs`).
//
// Tables are a function of prefix sums: the raw bytes before each survivor, and a walk over the
// soft cuts. Blocks are a chain, because where a block ends depends on the entry with which it
// begins and on its offset modulo 4096. So the end of every block that could begin at a multiple of
// 4096 is computed at once, and the chain of each table is followed from end to end. Both searches
// skip groups of survivors, within which the block cannot end.
#ifndef SILTSTONE_LAYOUT_H
#define SILTSTONE_LAYOUT_H
#include "extent.h"

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
                  now->key_bytes >= KEY_LIMIT_BYTES;
    return is_full ? ENDS_BY_SIZE : NOT_YET;
}

// The survivors are divided into groups: those of the first level have 2^GROUP_BITS survivors, and
// those of each later level have 2^GROUP_BITS groups of the level before. `layout.rs` has the same
// numbers. What is left over at the end is in no group.
#define GROUP_BITS 2
#define GROUP_LEVELS 4

typedef struct {
    Survivors survivors;
    Extents groups; // all of the first level, then all of the second one, and so on
    u64 count;
} GroupSurvivors;

// The number of survivors in a group.
DEVICE u64 group_len(u32 level) { return 1ull << GROUP_BITS * level; }

// The index of a level's first group.
DEVICE u64 first_group(u64 survivors, u32 level) {
    u64 index = 0;
    for (u32 i = 1; i < level; i++) {
        index += survivors / group_len(i);
    }
    return index;
}

// A thread for each group of the first level.
KERNEL(group_survivors, GroupSurvivors) {
    if (ITEM >= a->count / group_len(1)) {
        return;
    }
    u64 first = ITEM * group_len(1);
    Extent e = extent_of(&a->survivors, first);
    for (u64 i = 1; i < group_len(1); i++) {
        join(&e, extent_of(&a->survivors, first + i));
    }
    AT(a->groups, ITEM) = e;
}

typedef struct {
    Extents groups;
    u64 count;
    u32 level;
    u32 unused;
} GroupExtents;

// A thread for each group of a level, when the groups of the level before are there.
KERNEL(group_extents, GroupExtents) {
    if (ITEM >= a->count / group_len(a->level)) {
        return;
    }
    u64 first = first_group(a->count, a->level - 1) + ITEM * group_len(1);
    Extent e = AT(a->groups, first);
    for (u64 i = 1; i < group_len(1); i++) {
        join(&e, AT(a->groups, first + i));
    }
    AT(a->groups, first_group(a->count, a->level) + ITEM) = e;
}

typedef struct {
    Survivors survivors;
    Extents groups;
    u32s tables; // prefix sums: the number of tables that begin before each survivor
    Rule rule;
    u64 count;
} Chain;

// Whether the block cannot end before any of the entries with which it becomes `then`. Neither
// `then` nor a block on the way to it takes more than `bytes`.
//
// `room` is what is left up to the end of the block's page, or, without pages, one byte less than
// the block size. Let the block fit into the room with each of these entries. Then none of the
// rule's conditions holds before any of them: a block ends with its page before an entry with which
// it does not fit; with pages, it ends by its size only if it does not fit itself; and without
// pages, it is below the block size. Entries and bytes of keys only grow, so it is enough that
// `then` keeps their limits.
DEVICE u32 has_room(const Extent *then, u64 bytes, u64 room) {
    return bytes <= room && then->entries <= MAX_BLOCK_ENTRIES &&
           then->key_bytes < KEY_LIMIT_BYTES;
}

// Adds the group that begins with survivor `next` to the block `e`, if the group is of the same
// table and the block cannot end before any entry of it. Returns whether it was added.
DEVICE u32 add_group(const Chain *c, u32 level, u64 next, u32 table, u64 room, Extent *e) {
    u64 after = next + group_len(level);
    // A table that began within the group would count.
    if (after > c->count || AT(c->tables, after) != table) {
        return 0;
    }
    Extent then = *e;
    join(&then, AT(c->groups, first_group(c->count, level) + next / group_len(level)));
    if (!has_room(&then, most_stored_bytes(&then, e->prefix_len), room)) {
        return 0;
    }
    *e = then;
    return 1;
}

// Adds groups to the block `e` from survivor `next` on, the largest ones that can be added. Returns
// the survivor after them.
DEVICE u64 add_groups(const Chain *c, u64 next, u32 table, u64 room, Extent *e) {
    u32 level = GROUP_LEVELS;
    while (level > 0) {
        if (next % group_len(level) == 0 && add_group(c, level, next, table, room, e)) {
            next += group_len(level);
            level = GROUP_LEVELS;
        } else {
            level--;
        }
    }
    return next;
}

// The end of the block that begins with survivor `first` at offset `start`: the next block's first
// survivor. Also the bytes that the block takes, with padding.
DEVICE u64 scan_block(const Chain *c, u64 first, u64 start, u32 *bytes) {
    const Survivors *s = &c->survivors;
    Extent e = block_of(s, first);
    u32 table = AT(c->tables, first + 1), end = NOT_YET, is_done = 0;
    u64 next = first + 1, page = 0;
    u64 room = c->rule.block_bytes - 1;
    if (c->rule.is_paged) {
        room = (start + c->rule.block_bytes + PAGE_BYTES / 2) / PAGE_BYTES * PAGE_BYTES - start;
    }
    while (!is_done) {
        next = add_groups(c, next, table, room, &e);
        // One by one up to where the next group begins.
        do {
            if (next == c->count || AT(c->tables, next + 1) != table) {
                is_done = 1;
                break;
            }
            Extent then = e;
            join(&then, extent_of(s, next));
            if (!has_room(&then, most_bytes(&then), room)) {
                end = block_ends(&c->rule, start, &e, &then, &page);
                if (end != NOT_YET) {
                    is_done = 1;
                    break;
                }
            }
            e = then;
            next++;
        } while (next % group_len(1) != 0);
    }
    u64 exact = exact_bytes(&e), padding = 0;
    if (end == ENDS_WITH_PAGE && start + exact <= page &&
        page - (start + exact) <= MAX_PADDING_BYTES) {
        padding = page - (start + exact);
    }
    *bytes = (u32)(exact + padding);
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
    u32 bytes = 0;
    AT(a->nexts, ITEM) = (u32)scan_block(&a->chain, ITEM, 0, &bytes);
    AT(a->bytes, ITEM) = bytes;
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
            u32 bytes = 0;
            AT(a->nexts, at) = (u32)scan_block(&a->chain, at, offset, &bytes);
            AT(a->bytes, at) = bytes;
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
