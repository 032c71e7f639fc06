// Exclusive prefix sums, as maps: sums of groups, the scan of these sums by recursion, and the
// prefixes within each group. `scan32` and `scan64` in `crates/gpu/src/lane.rs` do the recursion.
#ifndef SILTSTONE_SCAN_H
#define SILTSTONE_SCAN_H
#include "common.h"

// The number of items that one thread adds.
#define SCAN_GROUP 32

typedef struct {
    u64s items;
    u64s sums; // one for each group
    u64 count;
} ScanSums64;

KERNEL(scan_sums64, ScanSums64) {
    u64 from = ITEM * SCAN_GROUP, to = min64(from + SCAN_GROUP, a->count);
    if (from >= a->count) {
        return;
    }
    u64 sum = 0;
    for (u64 i = from; i < to; i++) {
        sum += AT(a->items, i);
    }
    AT(a->sums, ITEM) = sum;
}

typedef struct {
    u64s items; // replaced by their prefix sums; items[count] becomes the sum of all
    u64s sums;  // the prefix sums of the groups
    u64 count;
} ScanApply64;

KERNEL(scan_apply64, ScanApply64) {
    u64 from = ITEM * SCAN_GROUP, to = min64(from + SCAN_GROUP, a->count);
    if (from >= a->count) {
        return;
    }
    u64 sum = AT(a->sums, ITEM);
    for (u64 i = from; i < to; i++) {
        u64 item = AT(a->items, i);
        AT(a->items, i) = sum;
        sum += item;
    }
    if (to == a->count) {
        AT(a->items, to) = sum;
    }
}

typedef struct {
    u32s items;
    u64s sums; // one for each group
    u64 count;
} ScanSums32;

KERNEL(scan_sums32, ScanSums32) {
    u64 from = ITEM * SCAN_GROUP, to = min64(from + SCAN_GROUP, a->count);
    if (from >= a->count) {
        return;
    }
    u64 sum = 0;
    for (u64 i = from; i < to; i++) {
        sum += AT(a->items, i);
    }
    AT(a->sums, ITEM) = sum;
}

typedef struct {
    u32s items; // replaced by their prefix sums; items[count] becomes the sum of all
    u64s sums;  // the prefix sums of the groups
    u64 count;
} ScanApply32;

KERNEL(scan_apply32, ScanApply32) {
    u64 from = ITEM * SCAN_GROUP, to = min64(from + SCAN_GROUP, a->count);
    if (from >= a->count) {
        return;
    }
    u32 sum = (u32)AT(a->sums, ITEM);
    for (u64 i = from; i < to; i++) {
        u32 item = AT(a->items, i);
        AT(a->items, i) = sum;
        sum += item;
    }
    if (to == a->count) {
        AT(a->items, to) = sum;
    }
}

#endif
