// Garbage collection: which entries the job keeps (`retain.rs` of the table crate, with its rules
// and their proofs). An entry is compared with the one before it in the merged order, dropped or
// not; so nothing is serial. Then the arrays of the survivors.
#ifndef SILTSTONE_RETAIN_H
#define SILTSTONE_RETAIN_H
#include "sort.h"

enum { KEEP = 0, SHADOWED = 1, COVERED = 2, TOMBSTONE = 3 };
enum { RULE_SHADOWED = 1, RULE_TOMBSTONES = 2, RULE_COVERED = 4 };

// Key ranges, ascending and disjoint.
typedef struct {
    u64s words;  // the keys
    u32s places; // start and end of each
    u32s lens;
    u32s ends; // how each ends: 0 before its end, 1 with it, 2 nowhere
} Ranges;

typedef struct {
    Items items;
    Entries entries;
    u64s stripe_ends;
    Ranges fragments;   // stripe after stripe, in the order of their starts
    u64s fragment_seqs; // of each
    u32s stripe_firsts; // the first fragment of each stripe, and the number of all
    Ranges older;
    u8s verdicts; // of each item
    u32s kept;    // of each item: 1 or 0
    u32 stripes;
    u32 older_count;
    u32 rules;
    u32 unused;
    u64 count;
} Judge;

DEVICE u32 stripe_of(u64s ends, u32 stripes, u64 seq) {
    return seq <= AT(ends, 0) ? 0 : (u32)lower_bound64(ends, 0, stripes, seq);
}

// Whether the range number `i` reaches the key, which is entry number `entry`.
DEVICE u32 reaches(const Ranges *ranges, u64 i, const Keys *keys, u32 entry) {
    u32 how = AT(ranges->ends, i);
    if (how == 2) {
        return 1;
    }
    i32 order = compare_keys(keys->words, AT(keys->places, entry), AT(keys->lens, entry),
                             ranges->words, AT(ranges->places, 2 * i + 1),
                             AT(ranges->lens, 2 * i + 1), 0);
    return how == 0 ? order < 0 : order <= 0;
}

DEVICE u32 starts_at_or_before(const Ranges *ranges, u64 i, const Keys *keys, u32 entry) {
    return compare_keys(keys->words, AT(keys->places, entry), AT(keys->lens, entry), ranges->words,
                        AT(ranges->places, 2 * i), AT(ranges->lens, 2 * i), 0) >= 0;
}

// Whether a fragment of the stripe hides the entry. The fragments of a stripe do not overlap.
DEVICE_CALL u32 is_covered(const Judge *a, u32 entry, u64 seq, u32 stripe) {
    u64 from = AT(a->stripe_firsts, stripe), to = AT(a->stripe_firsts, stripe + 1), first = from;
    while (from < to) {
        u64 middle = from + (to - from) / 2;
        if (starts_at_or_before(&a->fragments, middle, &a->entries.keys, entry)) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from > first && AT(a->fragment_seqs, from - 1) > seq &&
           reaches(&a->fragments, from - 1, &a->entries.keys, entry);
}

DEVICE_CALL u32 older_can_hold(const Judge *a, u32 entry) {
    u64 from = 0, to = a->older_count;
    while (from < to) {
        u64 middle = from + (to - from) / 2;
        if (reaches(&a->older, middle, &a->entries.keys, entry)) {
            to = middle;
        } else {
            from = middle + 1;
        }
    }
    return from < a->older_count && starts_at_or_before(&a->older, from, &a->entries.keys, entry);
}

// Whether item i has the user key of the item before it.
DEVICE u32 is_same_key(const Items *items, const Keys *keys, u64 i) {
    if (i == 0 || AT(items->high, i) != AT(items->high, i - 1) ||
        AT(items->low, i) != AT(items->low, i - 1)) {
        return 0;
    }
    return is_head_whole(AT(items->low, i)) ||
           compare_entry_keys(keys, AT(items->entries, i), AT(items->entries, i - 1)) == 0;
}

// A thread for each item.
KERNEL(judge, Judge) {
    if (ITEM >= a->count) {
        return;
    }
    u32 entry = AT(a->items.entries, ITEM);
    u64 trailer = AT(a->entries.trailers, entry), seq = trailer >> 8;
    u32 stripe = stripe_of(a->stripe_ends, a->stripes, seq), verdict = KEEP;
    u32 is_shadowed = 0;
    if ((a->rules & RULE_SHADOWED) != 0 && is_same_key(&a->items, &a->entries.keys, ITEM)) {
        u64 newer = AT(a->entries.trailers, AT(a->items.entries, ITEM - 1)) >> 8;
        is_shadowed = stripe_of(a->stripe_ends, a->stripes, newer) == stripe;
    }
    if (is_shadowed) {
        verdict = SHADOWED;
    } else if ((a->rules & RULE_COVERED) != 0 && is_covered(a, entry, seq, stripe)) {
        verdict = COVERED;
    } else if ((trailer & 0xff) == 0 && stripe == 0 && (a->rules & RULE_TOMBSTONES) != 0 &&
               !older_can_hold(a, entry)) {
        verdict = TOMBSTONE;
    }
    AT(a->verdicts, ITEM) = (u8)verdict;
    AT(a->kept, ITEM) = verdict == KEEP;
}

typedef struct {
    u8s verdicts;
    u32s kept; // of each item: 1 or 0
    u64 count;
} MarkKept;

// A thread for each item that the host has judged.
KERNEL(mark_kept, MarkKept) {
    if (ITEM < a->count) {
        AT(a->kept, ITEM) = AT(a->verdicts, ITEM) == KEEP;
    }
}

// The number of items or survivors that a thread of a counting kernel looks at.
#define COUNT_GROUP 256

typedef struct {
    u8s verdicts;
    Items items;
    Keys keys;
    u32s value_lens;
    u64s counts; // shadowed, covered, tombstones, raw bytes of all items
    u64 count;
} CountVerdicts;

// A thread for each COUNT_GROUP items.
KERNEL(count_verdicts, CountVerdicts) {
    u64 from = ITEM * COUNT_GROUP, to = min64(from + COUNT_GROUP, a->count);
    if (from >= a->count) {
        return;
    }
    u64 shadowed = 0, covered = 0, tombstones = 0, raw = 0;
    for (u64 i = from; i < to; i++) {
        u32 verdict = AT(a->verdicts, i), entry = AT(a->items.entries, i);
        shadowed += verdict == SHADOWED;
        covered += verdict == COVERED;
        tombstones += verdict == TOMBSTONE;
        raw += 12ull + AT(a->keys.lens, entry) + AT(a->value_lens, entry);
    }
    atomic_add64(&AT(a->counts, 0), shadowed);
    atomic_add64(&AT(a->counts, 1), covered);
    atomic_add64(&AT(a->counts, 2), tombstones);
    atomic_add64(&AT(a->counts, 3), raw);
}

// The entries that are kept, in order.
typedef struct {
    Keys keys;
    u64s trailers;
    u64s value_places;
    u32s value_lens;
    u16s shared; // how many bytes its user key shares with that of the survivor before it
    u8s is_new;  // whether it has another user key than the survivor before it
} Survivors;

typedef struct {
    u32s kept; // prefix sums: the place of each item that is kept
    u8s verdicts;
    Items items;
    u32s entries; // of each survivor
    u64 count;
} ListSurvivors;

// A thread for each item.
KERNEL(list_survivors, ListSurvivors) {
    if (ITEM < a->count && AT(a->verdicts, ITEM) == KEEP) {
        AT(a->entries, AT(a->kept, ITEM)) = AT(a->items.entries, ITEM);
    }
}

typedef struct {
    u32s entries; // of each survivor
    Keys keys;    // of all entries
    u64s trailers;
    u64s value_places;
    u32s value_lens;
    Survivors survivors; // with the words of the entries' keys
    u64s raw_bytes;      // of each survivor
    u64s value_bytes;
    u64s errors;
    u64 count;
} GatherSurvivors;

// A thread for each survivor.
KERNEL(gather_survivors, GatherSurvivors) {
    if (ITEM >= a->count) {
        return;
    }
    u32 entry = AT(a->entries, ITEM), len = AT(a->keys.lens, entry);
    u32 place = AT(a->keys.places, entry), value_len = AT(a->value_lens, entry), shared = 0;
    u64 trailer = AT(a->trailers, entry);
    u32 is_new = 1;
    if (ITEM > 0) {
        u32 before = AT(a->entries, ITEM - 1), before_len = AT(a->keys.lens, before);
        shared = shared_bytes(a->keys.words, place, len, AT(a->keys.places, before), before_len);
        is_new = shared != len || shared != before_len;
        if (!is_new && AT(a->trailers, before) == trailer) {
            report(a->errors, entry, EQUAL_ENTRIES);
        }
    }
    AT(a->survivors.keys.places, ITEM) = place;
    AT(a->survivors.keys.lens, ITEM) = (u16)len;
    AT(a->survivors.trailers, ITEM) = trailer;
    AT(a->survivors.value_places, ITEM) = AT(a->value_places, entry);
    AT(a->survivors.value_lens, ITEM) = value_len;
    AT(a->survivors.shared, ITEM) = (u16)shared;
    AT(a->survivors.is_new, ITEM) = (u8)is_new;
    AT(a->raw_bytes, ITEM) = 12ull + len + value_len;
    AT(a->value_bytes, ITEM) = value_len;
}

typedef struct {
    Items items;
    Keys keys;
    u32s places; // prefix sums of those kept
    u64s found;
    u64 survivor;
    u64 count;
} FindCutItem;

// One thread: the first item, kept or not, with the user key of a survivor.
KERNEL(find_cut_item, FindCutItem) {
    if (ITEM != 0) {
        return;
    }
    // The last item before which `survivor` items are kept is the survivor's.
    u64 item = last_at_most32(a->places, 0, a->count, a->survivor);
    while (is_same_key(&a->items, &a->keys, item)) {
        item--;
    }
    AT(a->found, 0) = item;
}

#endif
