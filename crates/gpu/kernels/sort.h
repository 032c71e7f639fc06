// Sorting: merges runs of entries that ascend (the paper's sort unit). An item is the head of an
// entry's key and the entry's number. Of entries with one user key, the one with the larger trailer
// comes first. Of equal ones, the one of the earlier run, which has the smaller number.
#ifndef SILTSTONE_SORT_H
#define SILTSTONE_SORT_H
#include "unpack.h"

typedef struct {
    u64s high;
    u64s low;
    u32s entries;
} Items;

// What comparing two items needs beyond their heads.
typedef struct {
    Keys keys;
    u64s trailers;
} Entries;

// Whether the keys of two items with equal heads may differ: they have more bytes than the head.
DEVICE u32 is_head_whole(u64 low) { return (low & 0xff) <= 15; }

DEVICE i32 compare_entry_keys(const Keys *keys, u32 x, u32 y) {
    return compare_keys(keys->words, AT(keys->places, x), AT(keys->lens, x), keys->words,
                        AT(keys->places, y), AT(keys->lens, y), 0);
}

// Whether item x comes before item y.
DEVICE u32 comes_before(const Entries *e, u64 x_high, u64 x_low, u32 x, u64 y_high, u64 y_low,
                        u32 y) {
    if (x_high != y_high) {
        return x_high < y_high;
    }
    if (x_low != y_low) {
        return x_low < y_low;
    }
    if (!is_head_whole(x_low)) {
        i32 order = compare_entry_keys(&e->keys, x, y);
        if (order != 0) {
            return order < 0;
        }
    }
    u64 x_trailer = AT(e->trailers, x), y_trailer = AT(e->trailers, y);
    return x_trailer != y_trailer ? x_trailer > y_trailer : x < y;
}

typedef struct {
    u64s heads_high; // of each entry
    u64s heads_low;
    Items items;
    u32s firsts; // for each input: its first item; then the number of items
    u32s ranges; // for each input: its first entry within bounds, and the one after
    Entries entries;
    u32s run_starts; // for each input: whether it begins a run
    u64s errors;
    u32 inputs;
    u32 unused;
    u64 count;
} GatherItems;

// A thread for each item: the entries within bounds, run after run. Compares the first entry of
// each input with the last one of the input before it in the same run.
KERNEL(gather_items, GatherItems) {
    if (ITEM >= a->count) {
        return;
    }
    u64 input = last_at_most32(a->firsts, 0, a->inputs, ITEM);
    // Inputs without entries have the first item of the next one.
    u32 within = (u32)ITEM - AT(a->firsts, input);
    u32 entry = AT(a->ranges, 2 * input) + within;
    AT(a->items.high, ITEM) = AT(a->heads_high, entry);
    AT(a->items.low, ITEM) = AT(a->heads_low, entry);
    AT(a->items.entries, ITEM) = entry;
    if (within != 0 || ITEM == 0) {
        return;
    }
    // The inputs between this one and the last one with entries have none, and may begin a run.
    for (u64 i = input; !AT(a->run_starts, i); i--) {
        if (i == 0 || AT(a->firsts, i - 1) < ITEM) {
            if (i > 0) {
                u32 last = AT(a->ranges, 2 * (i - 1) + 1) - 1;
                if (is_before(&a->entries.keys, a->entries.trailers, entry, last)) {
                    report(a->errors, entry, WRONG_ORDER);
                }
            }
            return;
        }
    }
}

typedef struct {
    u64s heads_high; // of each entry
    u64s heads_low;
    Items items; // of which the host has sorted the entries
    u64 count;
} OrderItems;

// A thread for each item: its head.
KERNEL(order_items, OrderItems) {
    if (ITEM < a->count) {
        u32 entry = AT(a->items.entries, ITEM);
        AT(a->items.high, ITEM) = AT(a->heads_high, entry);
        AT(a->items.low, ITEM) = AT(a->heads_low, entry);
    }
}

// The number of items that a thread of `merge_pairs` makes.
#define MERGE_ITEMS 8

typedef struct {
    Items from;
    Items to;
    u32s bounds; // the first item of each run, and the number of items
    Entries entries;
    u32 runs;
    u32 unused;
    u64 count;
} MergePairs;

// How many of the first `diagonal` items of two runs merged are of the left run. This is the merge
// path of Green, McColl and Bader.
DEVICE u64 merge_path(const Items *items, const Entries *e, u64 left, u64 left_count, u64 right,
                      u64 right_count, u64 diagonal) {
    u64 low = diagonal > right_count ? diagonal - right_count : 0;
    u64 high = min64(diagonal, left_count);
    while (low < high) {
        u64 middle = low + (high - low) / 2;
        u64 x = left + middle, y = right + diagonal - 1 - middle;
        if (comes_before(e, AT(items->high, x), AT(items->low, x), AT(items->entries, x),
                         AT(items->high, y), AT(items->low, y), AT(items->entries, y))) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// A thread for each MERGE_ITEMS items of the output: merges runs 0 and 1, 2 and 3, and so on. A
// last run without a partner is copied.
KERNEL(merge_pairs, MergePairs) {
    u64 at = ITEM * MERGE_ITEMS, end = min64(at + MERGE_ITEMS, a->count);
    if (at >= a->count) {
        return;
    }
    while (at < end) {
        u64 run = last_at_most32(a->bounds, 0, a->runs, at) & ~1ull;
        u64 left = AT(a->bounds, run), left_end = AT(a->bounds, run + 1);
        u64 right = left_end;
        u64 right_end = run + 2 <= a->runs ? AT(a->bounds, run + 2) : left_end;
        u64 diagonal = at - left;
        u64 taken = merge_path(&a->from, &a->entries, left, left_end - left, right,
                               right_end - right, diagonal);
        u64 x = left + taken, y = right + diagonal - taken;
        u64 stop = min64(end, right_end);
        u64 x_high = 0, x_low = 0, y_high = 0, y_low = 0;
        u32 x_entry = 0, y_entry = 0;
        if (x < left_end) {
            x_high = AT(a->from.high, x), x_low = AT(a->from.low, x);
            x_entry = AT(a->from.entries, x);
        }
        if (y < right_end) {
            y_high = AT(a->from.high, y), y_low = AT(a->from.low, y);
            y_entry = AT(a->from.entries, y);
        }
        for (; at < stop; at++) {
            u32 takes_left = y >= right_end ||
                             (x < left_end && comes_before(&a->entries, x_high, x_low, x_entry,
                                                           y_high, y_low, y_entry));
            if (takes_left) {
                AT(a->to.high, at) = x_high;
                AT(a->to.low, at) = x_low;
                AT(a->to.entries, at) = x_entry;
                if (++x < left_end) {
                    x_high = AT(a->from.high, x), x_low = AT(a->from.low, x);
                    x_entry = AT(a->from.entries, x);
                }
            } else {
                AT(a->to.high, at) = y_high;
                AT(a->to.low, at) = y_low;
                AT(a->to.entries, at) = y_entry;
                if (++y < right_end) {
                    y_high = AT(a->from.high, y), y_low = AT(a->from.low, y);
                    y_entry = AT(a->from.entries, y);
                }
            }
        }
    }
}

typedef MergePairs RankItems;

// The paper's sort unit: a thread for each item searches its place in all other runs. The place of
// an item in the output is the number of items before it.
KERNEL(rank_items, RankItems) {
    if (ITEM >= a->count) {
        return;
    }
    u64 run = last_at_most32(a->bounds, 0, a->runs, ITEM);
    u64 high = AT(a->from.high, ITEM), low = AT(a->from.low, ITEM);
    u32 entry = AT(a->from.entries, ITEM);
    u64 place = ITEM - AT(a->bounds, run);
    for (u64 other = 0; other < a->runs; other++) {
        if (other == run) {
            continue;
        }
        u64 begin = AT(a->bounds, other), from = begin, to = AT(a->bounds, other + 1);
        while (from < to) {
            u64 middle = from + (to - from) / 2;
            if (comes_before(&a->entries, AT(a->from.high, middle), AT(a->from.low, middle),
                             AT(a->from.entries, middle), high, low, entry)) {
                from = middle + 1;
            } else {
                to = middle;
            }
        }
        place += from - begin;
    }
    AT(a->to.high, place) = high;
    AT(a->to.low, place) = low;
    AT(a->to.entries, place) = entry;
}

#endif
