// The kernels, for the host. Their threads run one after the other, in an order that a seed
// decides, or, for checks of threads, on several threads of the system at once.
#include <setjmp.h>
#include <string.h>

#include "scan.h"
#include "unpack.h"
#include "sort.h"
#include "retain.h"
#include "layout.h"
#include "pack.h"
#include "lz4.h"

// What went wrong in a kernel: an index out of bounds, or an array at a wrong address. Also how
// many accesses to arrays it made.
typedef struct {
    u64 index;
    u64 count;
    const char *file;
    u32 line;
    u32 is_set;
    u64 accesses;
} Fault;

static _Thread_local Fault *fault;
static _Thread_local u64 accesses;
static _Thread_local jmp_buf *out_of_kernel;

u64 emulated_index(u64 index, u64 count, u64 misaligned, const char *file, int line) {
    accesses++;
    if (__builtin_expect(index < count && misaligned == 0, 1)) {
        return index;
    }
    fault->index = index;
    fault->count = count;
    fault->file = file;
    fault->line = (u32)line;
    fault->is_set = 1;
    longjmp(*out_of_kernel, 1);
}

// The numbers 0 to n - 1 in an order that the seed decides: every step-th one, modulo n.
static u32 step_of(u64 seed, u32 n) {
    if (n < 3) {
        return 1;
    }
    for (u32 step = 1 + (u32)(seed % (n - 1));; step = step % (n - 1) + 1) {
        u32 a = step, b = n;
        while (b != 0) {
            u32 c = a % b;
            a = b;
            b = c;
        }
        if (a == 1) {
            return step;
        }
    }
}

static u64 mix(u64 x) {
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

// A kernel that runs.
typedef struct {
    emulated_thread thread_of;
    const void *args;
    u32 blocks;
    u32 threads;
    u64 seed;
} Launch;

// Runs the threads of a kernel, or with several workers, every `workers`-th one, from a different
// one on in each block. So two threads of a block mostly have different workers, and so do the
// threads with one number in two blocks. With seed 0 the threads run in the order of their numbers.
// Returns 0, or 1 after a fault, which is written to `to`.
static int run_threads(const Launch *l, u32 worker, u32 workers, Fault *to) {
    jmp_buf out;
    memset(to, 0, sizeof *to);
    fault = to;
    accesses = 0;
    out_of_kernel = &out;
    if (setjmp(out) != 0) {
        return 1;
    }
    u32 block_step = l->seed == 0 ? 1 : step_of(mix(l->seed), l->blocks);
    u64 start = l->seed == 0 ? 0 : mix(l->seed + 1) % (l->blocks == 0 ? 1 : l->blocks);
    for (u32 i = 0; i < l->blocks; i++) {
        u64 block = (start + (u64)i * block_step) % l->blocks;
        u64 step = l->seed == 0 ? 1 : step_of(mix(l->seed + 2 + i), l->threads);
        u64 first = l->seed == 0 ? 0 : mix(l->seed + 3 + i) % l->threads;
        for (u64 j = (worker + i) % workers; j < l->threads; j += workers) {
            u64 thread = (first + j * step) % l->threads;
            l->thread_of(l->args, (u32)block, (u32)thread, l->threads);
        }
    }
    to->accesses = accesses;
    return 0;
}

#ifdef EMULATED_WORKERS
#include <pthread.h>

// Threads of the system that run a kernel at once, so that a compiler's checks find threads of the
// kernel that use one place. They are started with the first kernel and never end, because starting
// them takes longer than most kernels do. They run one kernel at a time.
static struct {
    pthread_mutex_t launching; // held during a launch
    pthread_mutex_t lock;      // of what follows
    pthread_cond_t has_begun;
    pthread_cond_t has_ended;
    Launch launch;
    u64 launches; // the number of launches that have begun
    u32 started;  // workers, without the thread that launches
    u32 running;
    int results[EMULATED_WORKERS];
    Fault faults[EMULATED_WORKERS];
} pool = {.launching = PTHREAD_MUTEX_INITIALIZER,
          .lock = PTHREAD_MUTEX_INITIALIZER,
          .has_begun = PTHREAD_COND_INITIALIZER,
          .has_ended = PTHREAD_COND_INITIALIZER};

static void *work(void *of) {
    u32 worker = (u32)(uintptr_t)of;
    u64 done = 0;
    for (;;) {
        pthread_mutex_lock(&pool.lock);
        while (pool.launches == done) {
            pthread_cond_wait(&pool.has_begun, &pool.lock);
        }
        done = pool.launches;
        Launch launch = pool.launch;
        pthread_mutex_unlock(&pool.lock);
        pool.results[worker] =
            run_threads(&launch, worker, EMULATED_WORKERS, &pool.faults[worker]);
        pthread_mutex_lock(&pool.lock);
        if (--pool.running == 0) {
            pthread_cond_signal(&pool.has_ended);
        }
        pthread_mutex_unlock(&pool.lock);
    }
    return 0;
}

// Starts the workers that are not there. A worker takes part in each launch from the first one on,
// so nothing is launched before all of them are there.
static int start_workers(void) {
    while (pool.started + 1 < EMULATED_WORKERS) {
        pthread_t id;
        if (pthread_create(&id, 0, work, (void *)(uintptr_t)(pool.started + 1)) != 0 ||
            pthread_detach(id) != 0) {
            return 1;
        }
        pool.started++;
    }
    return 0;
}

// Runs a kernel. Returns 0, or 1 after a fault, which is written to `to`.
static int run(const Launch *launch, Fault *to) {
    pthread_mutex_lock(&pool.launching);
    *to = (Fault){.file = __FILE__, .line = __LINE__};
    int failed = start_workers();
    if (!failed) {
        pthread_mutex_lock(&pool.lock);
        pool.launch = *launch;
        pool.running = pool.started;
        pool.launches++;
        pthread_cond_broadcast(&pool.has_begun);
        pthread_mutex_unlock(&pool.lock);
        pool.results[0] = run_threads(launch, 0, EMULATED_WORKERS, &pool.faults[0]);
        pthread_mutex_lock(&pool.lock);
        while (pool.running != 0) {
            pthread_cond_wait(&pool.has_ended, &pool.lock);
        }
        pthread_mutex_unlock(&pool.lock);
        u64 all_accesses = 0;
        for (u32 i = 0; i < EMULATED_WORKERS; i++) {
            all_accesses += pool.faults[i].accesses;
            if (pool.results[i] != 0 && !failed) {
                *to = pool.faults[i];
                failed = 1;
            }
        }
        to->accesses = all_accesses;
    }
    pthread_mutex_unlock(&pool.launching);
    return failed;
}
#else
// Runs a kernel. Returns 0, or 1 after a fault, which is written to `to`.
static int run(const Launch *launch, Fault *to) { return run_threads(launch, 0, 1, to); }
#endif

#define ALL_KERNELS(X)                                                                             \
    X(scan_sums64, ScanSums64)                                                                     \
    X(scan_apply64, ScanApply64)                                                                   \
    X(scan_sums32, ScanSums32)                                                                     \
    X(scan_apply32, ScanApply32)                                                                   \
    X(crc_tables, CrcTables)                                                                       \
    X(checksum_region, ChecksumRegion)                                                             \
    X(unpack_headers, UnpackHeaders)                                                               \
    X(checksum_blocks, ChecksumBlocks)                                                             \
    X(compare_checksums, CompareChecksums)                                                         \
    X(unpack_entries, UnpackEntries)                                                               \
    X(unpack_keys, UnpackKeys)                                                                     \
    X(check_order, CheckOrder)                                                                     \
    X(clip, Clip)                                                                                  \
    X(input_entries, InputEntries)                                                                 \
    X(gather_items, GatherItems)                                                                   \
    X(merge_pairs, MergePairs)                                                                     \
    X(order_items, OrderItems)                                                                     \
    X(rank_items, RankItems)                                                                       \
    X(judge, Judge)                                                                                \
    X(mark_kept, MarkKept)                                                                         \
    X(count_verdicts, CountVerdicts)                                                               \
    X(list_survivors, ListSurvivors)                                                               \
    X(gather_survivors, GatherSurvivors)                                                           \
    X(find_cut_item, FindCutItem)                                                                  \
    X(find_cuts, FindCuts)                                                                         \
    X(walk_spans, WalkSpans)                                                                       \
    X(begin_tables, BeginTables)                                                                   \
    X(list_tables, ListTables)                                                                     \
    X(group_survivors, GroupSurvivors)                                                             \
    X(group_extents, GroupExtents)                                                                 \
    X(find_block_ends, BlockEnds)                                                                  \
    X(begin_jumps, BeginJumps)                                                                     \
    X(double_jumps, DoubleJumps)                                                                   \
    X(expand_jumps, ExpandJumps)                                                                   \
    X(follow_chain, FollowChain)                                                                   \
    X(list_blocks, ListBlocks)                                                                     \
    X(plan_blocks, PlanBlocks)                                                                     \
    X(measure_tails, MeasureTails)                                                                 \
    X(pack_columns, PackColumns)                                                                   \
    X(pack_values, PackValues)                                                                     \
    X(checksum_values, PackChecksums)                                                              \
    X(put_value_checksums, PackChecksums)                                                          \
    X(checksum_columns, PackChecksums)                                                             \
    X(put_checksums, PackChecksums)                                                                \
    X(measure_separators, MeasureSeparators)                                                       \
    X(write_separators, WriteSeparators)                                                           \
    X(begin_sums, BeginSums)                                                                       \
    X(sum_tables, SumTables)                                                                       \
    X(set_filter_bits, SetFilterBits)                                                              \
    X(write_first_keys, WriteFirstKeys)                                                            \
    X(list_stored_parts, ListStoredParts)                                                          \
    X(lz4_decode, Lz4Decode)                                                                       \
    X(lz4_encode, Lz4Encode)                                                                       \
    X(list_output_parts, ListOutputParts)                                                          \
    X(measure_stored, MeasureStored)                                                               \
    X(number_stored, MeasureStored)                                                                \
    X(place_parts, PlaceParts)

typedef struct {
    const char *name;
    emulated_thread thread_of;
    u64 args_bytes;
} Kernel;

static const Kernel kernels[] = {
#define X(name, Args) {#name, name##_emulated, sizeof(Args)},
    ALL_KERNELS(X)
#undef X
};

// Runs a kernel by its name. Returns 0; 1 after a fault; 2 if there is no such kernel; 3 if its
// arguments have another size.
int siltstone_emulated_launch(const char *name, const void *args, u64 args_bytes, u32 blocks,
                              u32 threads, u64 seed, Fault *to) {
    for (u64 i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0) {
            if (kernels[i].args_bytes != args_bytes) {
                return 3;
            }
            Launch launch = {kernels[i].thread_of, args, blocks, threads, seed};
            return run(&launch, to);
        }
    }
    return 2;
}

// The name of kernel number `i`, or a null pointer, and the size of its arguments.
const char *siltstone_emulated_kernel(u64 i, u64 *args_bytes) {
    if (i >= sizeof kernels / sizeof *kernels) {
        return 0;
    }
    *args_bytes = kernels[i].args_bytes;
    return kernels[i].name;
}
