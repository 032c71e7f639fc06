// The 64-bit xxh3 without a seed of user keys of any length, as the filter uses it. The algorithm
// is that of the xxHash specification.
#ifndef SILTSTONE_XXH3_H
#define SILTSTONE_XXH3_H
#include "common.h"

#define XXH32_1 0x9E3779B1ull
#define XXH32_2 0x85EBCA77ull
#define XXH32_3 0xC2B2AE3Dull
#define XXH64_1 0x9E3779B185EBCA87ull
#define XXH64_2 0xC2B2AE3D27D4EB4Full
#define XXH64_3 0x165667B19E3779F9ull
#define XXH64_4 0x85EBCA77C2B2AE63ull
#define XXH64_5 0x27D4EB2F165667C5ull

// The default secret, as 24 little-endian words.
CONSTANT u64 XXH3_SECRET[24] = {
    0xbe4ba423396cfeb8ull, 0x1cad21f72c81017cull, 0xdb979083e96dd4deull, 0x1f67b3b7a4a44072ull,
    0x78e5c0cc4ee679cbull, 0x2172ffcc7dd05a82ull, 0x8e2443f7744608b8ull, 0x4c263a81e69035e0ull,
    0xcb00c391bb52283cull, 0xa32e531b8b65d088ull, 0x4ef90da297486471ull, 0xd8acdea946ef1938ull,
    0x3f349ce33f76faa8ull, 0x1d4f0bc7c7bbdcf9ull, 0x3159b4cd4be0518aull, 0x647378d9c97e9fc8ull,
    0xc3ebd33483acc5eaull, 0xeb6313faffa081c5ull, 0x49daf0b751dd0d17ull, 0x9e68d429265516d3ull,
    0xfca1477d58be162bull, 0xce31d07ad1b8f88full, 0x280416958f3acb45ull, 0x7e404bbbcafbd7afull};

// Eight bytes of the secret at any offset below 185.
DEVICE u64 xxh3_secret(u32 at) {
    u32 shift = 8 * (at % 8);
    u64 low = XXH3_SECRET[at / 8];
    return shift == 0 ? low : low >> shift | XXH3_SECRET[at / 8 + 1] << (64 - shift);
}

DEVICE u64 xxh3_avalanche(u64 x) {
    x ^= x >> 37;
    x *= 0x165667919E3779F9ull;
    return x ^ x >> 32;
}

DEVICE u64 xxh64_avalanche(u64 x) {
    x ^= x >> 33;
    x *= XXH64_2;
    x ^= x >> 29;
    x *= XXH64_3;
    return x ^ x >> 32;
}

DEVICE u64 multiply_fold(u64 a, u64 b) { return a * b ^ multiply_high(a, b); }

// The eight bytes of a key at `at`, all within the key.
DEVICE u64 xxh3_read(u64s words, u64 place, u32 at) {
    u32 shift = 8 * (at % 8);
    u64 low = AT(words, place + at / 8);
    return shift == 0 ? low : low >> shift | AT(words, place + at / 8 + 1) << (64 - shift);
}

DEVICE u64 xxh3_mix16(u64s words, u64 place, u32 at, u32 secret) {
    u64 low = xxh3_read(words, place, at) ^ xxh3_secret(secret);
    u64 high = xxh3_read(words, place, at + 8) ^ xxh3_secret(secret + 8);
    return multiply_fold(low, high);
}

// Up to 16 bytes.
DEVICE u64 xxh3_short(u64s words, u64 place, u32 len) {
    if (len > 8) {
        u64 flip_low = xxh3_secret(24) ^ xxh3_secret(32);
        u64 flip_high = xxh3_secret(40) ^ xxh3_secret(48);
        u64 low = xxh3_read(words, place, 0) ^ flip_low;
        u64 high = xxh3_read(words, place, len - 8) ^ flip_high;
        return xxh3_avalanche(len + swap64(low) + high + multiply_fold(low, high));
    }
    if (len >= 4) {
        u64 first = AT(words, place) & 0xffffffffull;
        u64 last = AT(words, place) >> 8 * (len - 4) & 0xffffffffull;
        u64 flip = xxh3_secret(8) ^ xxh3_secret(16);
        u64 x = (last + (first << 32)) ^ flip;
        x ^= (x << 49 | x >> 15) ^ (x << 24 | x >> 40);
        x *= 0x9FB21C651E98DF25ull;
        x ^= (x >> 35) + len;
        x *= 0x9FB21C651E98DF25ull;
        return x ^ x >> 28;
    }
    if (len > 0) {
        u64 first = key_byte(words, place, 0), middle = key_byte(words, place, len >> 1);
        u64 last = key_byte(words, place, len - 1);
        u64 combined = first << 16 | middle << 24 | last | (u64)len << 8;
        u64 flip = (xxh3_secret(0) & 0xffffffffull) ^ (xxh3_secret(0) >> 32);
        return xxh64_avalanche(combined ^ flip);
    }
    return xxh64_avalanche(xxh3_secret(56) ^ xxh3_secret(64));
}

// 17 to 240 bytes.
DEVICE_CALL u64 xxh3_middle(u64s words, u64 place, u32 len) {
    u64 sum = len * XXH64_1;
    if (len <= 128) {
        for (u32 i = (len - 1) / 32 + 1; i-- > 0;) {
            sum += xxh3_mix16(words, place, 16 * i, 32 * i);
            sum += xxh3_mix16(words, place, len - 16 * (i + 1), 32 * i + 16);
        }
        return xxh3_avalanche(sum);
    }
    u32 rounds = len / 16;
    for (u32 i = 0; i < 8; i++) {
        sum += xxh3_mix16(words, place, 16 * i, 16 * i);
    }
    sum = xxh3_avalanche(sum);
    for (u32 i = 8; i < rounds; i++) {
        sum += xxh3_mix16(words, place, 16 * i, 16 * (i - 8) + 3);
    }
    sum += xxh3_mix16(words, place, len - 16, 136 - 17);
    return xxh3_avalanche(sum);
}

DEVICE void xxh3_stripe(u64 *sums, u64s words, u64 place, u32 at, u32 secret) {
    for (u32 i = 0; i < 8; i++) {
        u64 word = xxh3_read(words, place, at + 8 * i);
        u64 keyed = word ^ xxh3_secret(secret + 8 * i);
        sums[i ^ 1] += word;
        sums[i] += (keyed & 0xffffffffull) * (keyed >> 32);
    }
}

// More than 240 bytes.
DEVICE_CALL u64 xxh3_long(u64s words, u64 place, u32 len) {
    u64 sums[8] = {XXH32_3, XXH64_1, XXH64_2, XXH64_3, XXH64_4, XXH32_2, XXH64_5, XXH32_1};
    // 16 stripes of 64 bytes make a block; after each the sums are scrambled.
    u32 stripes = (len - 1) / 64;
    for (u32 stripe = 0; stripe < stripes; stripe++) {
        xxh3_stripe(sums, words, place, 64 * stripe, 8 * (stripe % 16));
        if (stripe % 16 == 15) {
            for (u32 i = 0; i < 8; i++) {
                sums[i] ^= sums[i] >> 47;
                sums[i] ^= xxh3_secret(128 + 8 * i);
                sums[i] *= XXH32_1;
            }
        }
    }
    xxh3_stripe(sums, words, place, len - 64, 192 - 64 - 7);
    u64 result = len * XXH64_1;
    for (u32 i = 0; i < 4; i++) {
        result += multiply_fold(sums[2 * i] ^ xxh3_secret(11 + 16 * i),
                                sums[2 * i + 1] ^ xxh3_secret(11 + 16 * i + 8));
    }
    return xxh3_avalanche(result);
}

DEVICE u64 xxh3_of_key(u64s words, u64 place, u32 len) {
    if (len <= 16) {
        return xxh3_short(words, place, len);
    }
    return len <= 240 ? xxh3_middle(words, place, len) : xxh3_long(words, place, len);
}

#endif
