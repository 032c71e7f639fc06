// crc32c (Castagnoli) of many ranges at once.
//
// The checksum is linear: the checksum of a range is the exclusive or of what each of its pieces
// adds, multiplied by x^(8 * bytes after the piece). So each piece of 256 bytes is one thread's
// work, and the threads add to the checksum of the range by an atomic exclusive or.
#ifndef SILTSTONE_CRC_H
#define SILTSTONE_CRC_H
#include "common.h"

#define CRC_POLYNOMIAL 0x82f63b78u
#define CRC_PIECE 256

// a * b modulo the polynomial. Bit 31 is x^0.
DEVICE u32 crc_multiply(u32 a, u32 b) {
    u32 product = 0;
    for (u32 i = 0; i < 32; i++) {
        product ^= b & (0u - (a >> 31));
        a <<= 1;
        b = (b >> 1) ^ (CRC_POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

// The tables: 8 * 256 entries for eight bytes at a time, then x^(8 * 2^k) for k = 0 to 39.
#define CRC_TABLE_POWERS 2048
#define CRC_TABLE_COUNT (2048 + 40)

typedef struct {
    u32s tables;
} CrcTables;

KERNEL(crc_tables, CrcTables) {
    u64 i = ITEM;
    if (i < 2048) {
        u32 crc = (u32)(i % 256);
        for (u32 bit = 0; bit < 8 * (u32)(i / 256 + 1); bit++) {
            crc = (crc >> 1) ^ (CRC_POLYNOMIAL & (0u - (crc & 1)));
        }
        AT(a->tables, i) = crc;
    } else if (i < CRC_TABLE_COUNT) {
        u32 power = 0x00800000u; // x^8
        for (u32 k = 0; k < (u32)i - CRC_TABLE_POWERS; k++) {
            power = crc_multiply(power, power);
        }
        AT(a->tables, i) = power;
    }
}

// crc * x^(8 * bytes)
DEVICE u32 crc_shift(u32s tables, u32 crc, u64 bytes) {
    for (u32 k = 0; bytes != 0; k++, bytes >>= 1) {
        if (bytes & 1) {
            crc = crc_multiply(crc, AT(tables, CRC_TABLE_POWERS + k));
        }
    }
    return crc;
}

// The remainder of the bytes `from..to`, from the remainder of what is before them.
DEVICE u32 crc_bytes(u32s tables, u8s bytes, u64 from, u64 to, u32 crc) {
    while (from < to && (from & 7) != 0) {
        crc = AT(tables, (crc ^ AT(bytes, from)) & 0xff) ^ (crc >> 8);
        from++;
    }
    for (; from + 8 <= to; from += 8) {
        u64 word = word_at(bytes, from) ^ crc;
        u32 low = (u32)word, high = (u32)(word >> 32);
        crc = AT(tables, 7 * 256 + (low & 0xff)) ^ AT(tables, 6 * 256 + (low >> 8 & 0xff)) ^
              AT(tables, 5 * 256 + (low >> 16 & 0xff)) ^ AT(tables, 4 * 256 + (low >> 24)) ^
              AT(tables, 3 * 256 + (high & 0xff)) ^ AT(tables, 2 * 256 + (high >> 8 & 0xff)) ^
              AT(tables, 256 + (high >> 16 & 0xff)) ^ AT(tables, high >> 24);
    }
    for (; from < to; from++) {
        crc = AT(tables, (crc ^ AT(bytes, from)) & 0xff) ^ (crc >> 8);
    }
    return crc;
}

// Adds what the pieces number `thread`, `thread + threads`, ... of a range add to its checksum. All
// threads of a block do this for one range, whose checksum begins with 0.
DEVICE void crc_add(u32s tables, u8s bytes, u64 from, u64 to, u32 *crc, u32 thread, u32 threads) {
    u64 first = from / CRC_PIECE, last = to == from ? first : (to - 1) / CRC_PIECE + 1;
    u32 sum = 0;
    if (thread == 0) {
        // The initial and the final exclusive or with ones.
        sum = crc_shift(tables, 0xffffffffu, to - from) ^ 0xffffffffu;
    }
    for (u64 piece = first + thread; piece < last; piece += threads) {
        u64 begin = max64(from, piece * CRC_PIECE), end = min64(to, (piece + 1) * CRC_PIECE);
        sum ^= crc_shift(tables, crc_bytes(tables, bytes, begin, end, 0), to - end);
    }
    if (sum != 0) {
        atomic_xor32(crc, sum);
    }
}

typedef struct {
    u8s bytes;
    u32s tables;
    u32s crcs;
    u64 slot; // of the checksum, which is 0 before
} ChecksumRegion;

// The checksum of a whole array, in as many threads as it has pieces: for arrays that are copied to
// or from the host and are not in blocks.
KERNEL(checksum_region, ChecksumRegion) {
    u64 all = (a->bytes.count + CRC_PIECE - 1) / CRC_PIECE;
    if (ITEM == 0 || ITEM < all) {
        crc_add(a->tables, a->bytes, 0, a->bytes.count, &AT(a->crcs, a->slot), (u32)ITEM,
                (u32)max64(all, 1));
    }
}

#endif
