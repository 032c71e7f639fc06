// What all kernels share: types, arrays, and what a kernel is.
//
// The kernels are written in the subset of C that is also CUDA C++. `kernels.cu` includes all of
// them for a GPU, and `emulated.c` for the host, where the logic of every kernel is tested.
//
// A kernel is a map: a function of its arguments, a block number and a thread number. It reads what
// earlier kernels wrote, and writes places that no other thread of the same kernel reads or writes,
// except by an atomic operation whose result does not depend on the order of the threads. So it has
// no barrier, and its result is the same in whatever order its threads run.
//
// Every access to an array goes through AT. In the host's build, AT ends the kernel with an error
// if the index is out of bounds.
#ifndef SILTSTONE_COMMON_H
#define SILTSTONE_COMMON_H

#ifdef __CUDACC__

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;

#define DEVICE static __device__ __forceinline__
#define DEVICE_CALL static __device__ __noinline__
#define CONSTANT static __device__ const
#define AT(array, index) ((array).at[(index)])

#define KERNEL(name, Args)                                                                         \
    DEVICE void name##_thread(const Args *a, u32 block, u32 thread, u32 threads);                  \
    extern "C" __global__ void name(const __grid_constant__ Args args) {                           \
        name##_thread(&args, blockIdx.x, threadIdx.x, blockDim.x);                                 \
    }                                                                                              \
    DEVICE void name##_thread(const Args *a, u32 block, u32 thread, u32 threads)

DEVICE void atomic_add64(u64 *to, u64 value) { atomicAdd(to, value); }
DEVICE void atomic_min64(u64 *to, u64 value) { atomicMin(to, value); }
DEVICE void atomic_max64(u64 *to, u64 value) { atomicMax(to, value); }
DEVICE void atomic_or32(u32 *to, u32 value) { atomicOr(to, value); }
DEVICE void atomic_xor32(u32 *to, u32 value) { atomicXor(to, value); }
DEVICE u64 multiply_high(u64 a, u64 b) { return __umul64hi(a, b); }
DEVICE u32 leading_zeros64(u64 x) { return (u32)__clzll((long long)x); }
DEVICE u32 trailing_zeros64(u64 x) { return (u32)__ffsll((long long)x) - 1; }
DEVICE u64 swap64(u64 x) {
    u32 low = __byte_perm((u32)x, 0, 0x0123), high = __byte_perm((u32)(x >> 32), 0, 0x0123);
    return (u64)low << 32 | high;
}

#else

#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;

#define DEVICE static inline
#define DEVICE_CALL static
#define CONSTANT static const

// Ends the kernel if the index is out of bounds, or if the array does not begin where a GPU could
// read its items. See `emulated.c`.
u64 emulated_index(u64 index, u64 count, u64 misaligned, const char *file, int line);

#define MISALIGNED(array, T) ((u64)(uintptr_t)(array).at & (_Alignof(T) - 1))
#define AT(array, index)                                                                           \
    ((array).at[emulated_index((u64)(index), (array).count,                                        \
                               MISALIGNED(array, __typeof__(*(array).at)), __FILE__, __LINE__)])

typedef void (*emulated_thread)(const void *args, u32 block, u32 thread, u32 threads);

#define KERNEL(name, Args)                                                                         \
    static void name##_thread(const Args *a, u32 block, u32 thread, u32 threads);                  \
    static void name##_emulated(const void *args, u32 block, u32 thread, u32 threads) {            \
        name##_thread((const Args *)args, block, thread, threads);                                 \
    }                                                                                              \
    static void name##_thread(const Args *a, u32 block, u32 thread, u32 threads)

// The threads of an emulated kernel may run on several threads of the system.
DEVICE void atomic_add64(u64 *to, u64 value) { __atomic_fetch_add(to, value, __ATOMIC_RELAXED); }
DEVICE void atomic_min64(u64 *to, u64 value) {
    u64 seen = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (value < seen && !__atomic_compare_exchange_n(to, &seen, value, 1, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
}
DEVICE void atomic_max64(u64 *to, u64 value) {
    u64 seen = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (value > seen && !__atomic_compare_exchange_n(to, &seen, value, 1, __ATOMIC_RELAXED,
                                                        __ATOMIC_RELAXED)) {
    }
}
DEVICE void atomic_or32(u32 *to, u32 value) { __atomic_fetch_or(to, value, __ATOMIC_RELAXED); }
DEVICE void atomic_xor32(u32 *to, u32 value) { __atomic_fetch_xor(to, value, __ATOMIC_RELAXED); }
DEVICE u64 multiply_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
DEVICE u32 leading_zeros64(u64 x) { return x == 0 ? 64 : (u32)__builtin_clzll(x); }
DEVICE u32 trailing_zeros64(u64 x) { return (u32)__builtin_ctzll(x); }
DEVICE u64 swap64(u64 x) { return __builtin_bswap64(x); }

#endif

// Arrays in the memory of the device. `crates/gpu/src/kernels.rs` has the same structures.
#define ARRAY(Name, T)                                                                             \
    typedef struct {                                                                               \
        T *at;                                                                                     \
        u64 count;                                                                                 \
    } Name

ARRAY(u8s, u8);
ARRAY(u16s, u16);
ARRAY(u32s, u32);
ARRAY(u64s, u64);

// The number of this thread among all threads of the kernel.
#define ITEM ((u64)block * threads + thread)

// No error. An error word holds the smallest number of what is wrong, so it begins with this.
#define NO_ERROR 0xffffffffffffffffull

// What is wrong with a block or an entry: the low byte of an error word, whose other bytes are the
// number of the block or the entry. The module `wrong` in `crates/gpu/src/piece.rs` has the same
// numbers.
enum {
    WRONG_BLOCK = 1,       // a block is damaged; the host's check says how
    UNSUPPORTED_BLOCK = 2, // a block needs what the GPU cannot do
    WRONG_ORDER = 3,       // an entry comes before the one before it
    EQUAL_ENTRIES = 4,     // two entries that are kept have one user key and one trailer
    WRONG_PREFIX = 5       // a key does not have the prefix that all keys share
};

DEVICE void report(u64s errors, u64 number, u32 what) {
    atomic_min64(&AT(errors, 0), number << 8 | what);
}

DEVICE u32 min32(u32 a, u32 b) { return a < b ? a : b; }
DEVICE u32 max32(u32 a, u32 b) { return a > b ? a : b; }
DEVICE u64 min64(u64 a, u64 b) { return a < b ? a : b; }
DEVICE u64 max64(u64 a, u64 b) { return a > b ? a : b; }

// Eight bytes at an offset that is a multiple of 8. Arrays of bytes begin at multiples of 256.
DEVICE u64 word_at(u8s bytes, u64 at) {
#ifdef __CUDACC__
    return *(const u64 *)(bytes.at + at);
#else
    u64 word = 0;
    u64 misaligned = ((u64)(uintptr_t)bytes.at + at) & 7;
    (void)emulated_index(at, bytes.count, misaligned, __FILE__, __LINE__);
    (void)AT(bytes, at + 7);
    __builtin_memcpy(&word, bytes.at + at, 8);
    return word;
#endif
}

DEVICE void put_word(u8s bytes, u64 at, u64 word) {
#ifdef __CUDACC__
    *(u64 *)(bytes.at + at) = word;
#else
    u64 misaligned = ((u64)(uintptr_t)bytes.at + at) & 7;
    (void)emulated_index(at, bytes.count, misaligned, __FILE__, __LINE__);
    (void)AT(bytes, at + 7);
    __builtin_memcpy(bytes.at + at, &word, 8);
#endif
}

// Eight bytes at any offset, as a little-endian integer. Reads up to 15 bytes from the multiple of
// 8 below the offset on, so an array of bytes that is read in this way has 16 bytes of slack.
DEVICE u64 bytes8(u8s bytes, u64 at) {
    u32 shift = 8 * (u32)(at & 7);
    u64 low = word_at(bytes, at & ~7ull);
    if (shift == 0) {
        return low;
    }
    return low >> shift | word_at(bytes, (at & ~7ull) + 8) << (64 - shift);
}

DEVICE u32 bytes4(u8s bytes, u64 at) { return (u32)bytes8(bytes, at); }
DEVICE u32 bytes2(u8s bytes, u64 at) { return (u32)bytes8(bytes, at) & 0xffff; }

// An integer of `width` bytes, 0 to 8.
DEVICE u64 bytes_of_width(u8s bytes, u64 at, u32 width) {
    if (width == 0) {
        return 0;
    }
    return bytes8(bytes, at) & ~0ull >> (64 - 8 * width);
}

// Writes the low `width` bytes of an integer. Neighbouring bytes may be written by other threads.
DEVICE void put_bytes(u8s bytes, u64 at, u64 value, u32 width) {
    for (u32 i = 0; i < width; i++) {
        AT(bytes, at + i) = (u8)(value >> 8 * i);
    }
}

// The first index in `from..to` for which `value <= array[index]`, or `to`. The array ascends
// there.
DEVICE u64 lower_bound64(u64s array, u64 from, u64 to, u64 value) {
    while (from < to) {
        u64 middle = from + (to - from) / 2;
        if (AT(array, middle) < value) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

// The last index in `from..to` with `array[index] <= value`. array[from] is at most `value`.
DEVICE u64 last_at_most64(u64s array, u64 from, u64 to, u64 value) {
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

// User keys: each begins at a multiple of 8 bytes and is padded with zeros to the next one.
// `places` counts words of 8 bytes.
typedef struct {
    u64s words;
    u32s places;
    u16s lens;
} Keys;

// Compares two user keys: negative, 0 or positive. `skip` bytes, a multiple of 8, are known to be
// equal.
DEVICE i32 compare_keys(u64s a_words, u64 a_at, u32 a_len, u64s b_words, u64 b_at, u32 b_len,
                        u32 skip) {
    u32 common = min32(a_len, b_len);
    for (u32 i = skip; i < common; i += 8) {
        u64 x = AT(a_words, a_at + i / 8), y = AT(b_words, b_at + i / 8);
        if (x != y) {
            // Bytes after the shorter key are zeros in it, and may be anything in the longer one.
            u32 at = i + trailing_zeros64(x ^ y) / 8;
            if (at >= common) {
                break;
            }
            return swap64(x) < swap64(y) ? -1 : 1;
        }
    }
    return a_len < b_len ? -1 : a_len > b_len;
}

DEVICE u32 shared_bytes(u64s words, u64 a_at, u32 a_len, u64 b_at, u32 b_len) {
    u32 common = min32(a_len, b_len);
    for (u32 i = 0; i < common; i += 8) {
        u64 x = AT(words, a_at + i / 8), y = AT(words, b_at + i / 8);
        if (x != y) {
            return min32(common, i + trailing_zeros64(x ^ y) / 8);
        }
    }
    return common;
}

// One byte of a key.
DEVICE u8 key_byte(u64s words, u64 place, u32 at) {
    return (u8)(AT(words, place + at / 8) >> 8 * (at % 8));
}

// Up to eight bytes of a key from `at` on, as a little-endian integer, zeros after its end.
DEVICE u64 key_bytes8(u64s words, u64 place, u32 len, u32 at) {
    if (at >= len) {
        return 0;
    }
    u32 shift = 8 * (at % 8);
    u64 low = AT(words, place + at / 8) >> shift;
    // The padding of the last word is zero.
    if (shift != 0 && (at / 8 + 1) * 8 < len) {
        low |= AT(words, place + at / 8 + 1) << (64 - shift);
    }
    return low;
}

#endif
