// A library that looks like the driver's: device memory is the process's memory, and what is put
// into streams is done later, when an event or a stream is asked for the second time. It checks how
// it is used, fails where a variable says so, and says at exit what it saw.
//
// Variables of the environment:
//
// FAKE_VERSION, FAKE_DEVICES, FAKE_CAPABILITY
//                  what it says about itself (12040, 1, 90)
// FAKE_INIT        the code that cuInit returns
// FAKE_FAIL_AT     the number of the call that fails, from 1, and
// FAKE_FAIL_WITH   its code. If the code is 700 (illegal address), all later calls fail too, except
//                  those that push, pop and destroy contexts
// FAKE_STUCK       streams never come to rest, and events never pass
//
// Compiled with WITHOUT_LAUNCH it lacks two calls. Compiled with WITH_KERNELS, and with
// `kernels/emulated.c`, it runs the kernels of this crate; otherwise it has one kernel, `prove`.

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned int CUresult;

enum { INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_CONTEXT = 201 };
enum { INVALID_PTX = 218, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, LOST = 700 };

// --- What it saw ---

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls, wrong, pushed, lost;

static void complain(const char *call, const char *what) {
    wrong++;
    fprintf(stderr, "fake: %s: %s\n", call, what);
}

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

// --- Things that are made and destroyed ---

enum kind { CONTEXT, MODULE, FUNCTION, MEMORY, PINNED, STREAM, EVENT };

struct thing {
    enum kind kind;
    char *at;
    struct thing *owner; // its context, or a function's module
    size_t bytes;
    int is_alive;
    // Of an event: how many operations come before it, and how often it was asked.
    size_t place;
    int asked, is_recorded;
};

static struct thing *things[4096];
static int thing_count;
static int made, freed, left;

static struct thing *make(enum kind kind, size_t bytes, struct thing *owner) {
    struct thing *thing = calloc(1, sizeof *thing);
    void *at = NULL;
    if (posix_memalign(&at, 4096, bytes ? bytes : 1) || thing_count == 4096) abort();
    memset(at, 0xa5, bytes);
    *thing = (struct thing){.kind = kind, .at = at, .owner = owner, .bytes = bytes, .is_alive = 1};
    things[thing_count++] = thing;
    made++;
    return thing;
}

static struct thing *find(enum kind kind, const void *at) {
    for (int i = 0; i < thing_count; i++)
        if (things[i]->at == at && things[i]->is_alive && things[i]->kind == kind) return things[i];
    return NULL;
}

// The memory stays allocated, so that no address is used twice and a use afterwards is seen.
static void destroy(struct thing *thing) {
    thing->is_alive = 0;
    freed++;
}

static int is_within(enum kind kind, const char *at, size_t bytes) {
    for (int i = 0; i < thing_count; i++) {
        struct thing *thing = things[i];
        if (thing->kind == kind && thing->is_alive && at >= thing->at &&
            at + bytes <= thing->at + thing->bytes)
            return 1;
    }
    return 0;
}

// --- Work in streams ---

struct prove_args {
    uint64_t out, count, begin;
};

// CUDA takes no more bytes of arguments than this for all GPUs.
enum { ARGS_BYTES_MAX = 4096 };

struct operation {
    enum { COPY_IN, COPY_OUT, FILL, LAUNCH } kind;
    char *to;
    const char *from;
    size_t bytes;
    unsigned char byte;
    unsigned blocks, threads;
    const char *kernel;
    void *args; // a copy
    size_t args_bytes;
};

// The operations that were not done yet, in the order in which they came, and how many there were.
enum { OPERATIONS_MAX = 4096 };
static struct operation operations[OPERATIONS_MAX];
static size_t operation_count, done_count;

static void run_until(size_t place);

// If there are too many, the oldest one is done.
static void put(struct operation operation) {
    if (operation_count - done_count == OPERATIONS_MAX) run_until(done_count + 1);
    operations[operation_count++ % OPERATIONS_MAX] = operation;
}

#ifdef WITH_KERNELS
// See `kernels/emulated.c`, which is linked in.
struct fault {
    uint64_t index, count;
    const char *file;
    uint32_t line, is_set;
    uint64_t accesses;
};
int siltstone_emulated_launch(const char *name, const void *args, uint64_t args_bytes,
                              uint32_t blocks, uint32_t threads, uint64_t seed, struct fault *to);
#endif

// Returns what is wrong, if anything is.
static const char *run_kernel(const struct operation *op) {
    if (!strcmp(op->kernel, "prove")) {
        const struct prove_args *args = op->args;
        uint64_t *out = (uint64_t *)(uintptr_t)args->out;
        if (!is_within(MEMORY, (char *)out, args->count * 8)) return "memory that is not there";
        for (uint64_t i = 0; i < (uint64_t)op->blocks * op->threads; i++)
            if (i < args->count) out[i] = args->begin + i;
        return NULL;
    }
#ifdef WITH_KERNELS
    static char text[200];
    struct fault wrong_access;
    // The threads run in another order in each launch.
    int code = siltstone_emulated_launch(op->kernel, op->args, op->args_bytes, op->blocks,
                                         op->threads, done_count + 1, &wrong_access);
    if (code == 1) {
        snprintf(text, sizeof text, "an index out of bounds in %s, %s:%u", op->kernel,
                 wrong_access.file, wrong_access.line);
        return text;
    }
    return code ? "not a kernel, or other arguments" : NULL;
#else
    return "not a kernel";
#endif
}

static void run_until(size_t place) {
    for (; done_count < place; done_count++) {
        struct operation *op = &operations[done_count % OPERATIONS_MAX];
        enum kind to = op->kind == COPY_OUT ? PINNED : MEMORY;
        enum kind from = op->kind == COPY_OUT ? MEMORY : PINNED;
        const char *trouble = NULL;
        int is_good = 1;
        switch (op->kind) {
        case COPY_IN:
        case COPY_OUT:
            is_good = is_within(to, op->to, op->bytes) && is_within(from, op->from, op->bytes);
            if (is_good) memcpy(op->to, op->from, op->bytes);
            break;
        case FILL:
            is_good = is_within(MEMORY, op->to, op->bytes);
            if (is_good) memset(op->to, op->byte, op->bytes);
            break;
        case LAUNCH:
            trouble = run_kernel(op);
            free(op->args);
            break;
        }
        if (trouble) complain("a launch", trouble);
        if (!is_good) complain("an operation", "memory that is not there");
    }
}

// --- The context of a thread ---

static __thread struct thing *stack[16];
static __thread int depth;

static struct thing *current(void) {
    return depth && stack[depth - 1]->is_alive ? stack[depth - 1] : NULL;
}

__attribute__((destructor)) static void report(void) {
    int alive = 0;
    for (int i = 0; i < thing_count; i++) alive += things[i]->is_alive;
    if (calls)
        fprintf(stderr, "fake: calls=%d made=%d freed=%d left=%d alive=%d wrong=%d pushed=%d\n",
                calls, made, freed, left, alive, wrong, pushed);
}

// --- The calls ---

// The code with which this call fails, or 0.
static CUresult begin(const char *name, int needs_context, int survives) {
    calls++;
    if (calls == setting("FAKE_FAIL_AT", 0)) {
        CUresult code = (CUresult)setting("FAKE_FAIL_WITH", OUT_OF_MEMORY);
        fprintf(stderr, "fake: failed %s\n", name);
        if (code == LOST) lost = 1;
        return code;
    }
    if (lost && !survives) return LOST;
    if (needs_context && !current()) {
        complain(name, "without a context");
        return INVALID_CONTEXT;
    }
    return 0;
}

#define CALL(name, parameters, needs_context, survives)                                           \
    static CUresult do_##name parameters;                                                         \
    static const char *const name##_name = #name;                                                 \
    enum { name##_needs = needs_context, name##_survives = survives };                            \
    CUresult name parameters
// The body of a call: what it does unless it fails.
#define RUN(name, ...)                                                                            \
    {                                                                                             \
        pthread_mutex_lock(&lock);                                                                \
        CUresult code = begin(name##_name, name##_needs, name##_survives);                        \
        if (!code) code = do_##name(__VA_ARGS__);                                                 \
        pthread_mutex_unlock(&lock);                                                              \
        return code;                                                                              \
    }

CUresult cuGetErrorName(CUresult code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == NO_DEVICE   ? "CUDA_ERROR_NO_DEVICE"
            : code == INVALID_PTX ? "CUDA_ERROR_INVALID_PTX"
            : code == LOST        ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                  : NULL;
    return *text ? 0 : INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = code == OUT_OF_MEMORY ? "out of memory"
            : code == NO_DEVICE   ? "no CUDA-capable device is detected"
            : code == LOST        ? "an illegal memory access was encountered"
                                  : NULL;
    return *text ? 0 : INVALID_VALUE;
}

CALL(cuDriverGetVersion, (int *version), 0, 0) RUN(cuDriverGetVersion, version)
static CUresult do_cuDriverGetVersion(int *version) {
    *version = setting("FAKE_VERSION", 12040);
    return 0;
}

CALL(cuInit, (unsigned flags), 0, 0) RUN(cuInit, flags)
static CUresult do_cuInit(unsigned flags) {
    return flags ? INVALID_VALUE : (CUresult)setting("FAKE_INIT", 0);
}

CALL(cuDeviceGetCount, (int *count), 0, 0) RUN(cuDeviceGetCount, count)
static CUresult do_cuDeviceGetCount(int *count) {
    *count = setting("FAKE_DEVICES", 1);
    return 0;
}

CALL(cuDeviceGet, (int *device, int index), 0, 0) RUN(cuDeviceGet, device, index)
static CUresult do_cuDeviceGet(int *device, int index) {
    if (index < 0 || index >= setting("FAKE_DEVICES", 1)) return 101;
    *device = 40 + index;
    return 0;
}

CALL(cuDeviceGetName, (char *name, int bytes, int device), 0, 0)
RUN(cuDeviceGetName, name, bytes, device)
static CUresult do_cuDeviceGetName(char *name, int bytes, int device) {
    snprintf(name, (size_t)bytes, "Fake %d", device - 40);
    return 0;
}

CALL(cuDeviceGetPCIBusId, (char *id, int bytes, int device), 0, 0)
RUN(cuDeviceGetPCIBusId, id, bytes, device)
static CUresult do_cuDeviceGetPCIBusId(char *id, int bytes, int device) {
    snprintf(id, (size_t)bytes, "0000:%02x:00.0", device);
    return 0;
}

CALL(cuDeviceGetAttribute, (int *value, int attribute, int device), 0, 0)
RUN(cuDeviceGetAttribute, value, attribute, device)
static CUresult do_cuDeviceGetAttribute(int *value, int attribute, int device) {
    int capability = setting("FAKE_CAPABILITY", 90);
    if (device < 40) return 101;
    switch (attribute) {
    case 16: *value = 132; return 0;
    case 75: *value = capability / 10; return 0;
    case 76: *value = capability % 10; return 0;
    default: return INVALID_VALUE;
    }
}

CALL(cuDeviceTotalMem_v2, (size_t * bytes, int device), 0, 0)
RUN(cuDeviceTotalMem_v2, bytes, device)
static CUresult do_cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)1 << 34;
    return device < 40 ? 101 : 0;
}

CALL(cuCtxCreate_v2, (void **context, unsigned flags, int device), 0, 0)
RUN(cuCtxCreate_v2, context, flags, device)
static CUresult do_cuCtxCreate_v2(void **context, unsigned flags, int device) {
    if (flags != 4 || device < 40) return INVALID_VALUE;
    struct thing *thing = make(CONTEXT, 1, NULL);
    stack[depth++] = thing;
    pushed++;
    *context = thing->at;
    return 0;
}

CALL(cuCtxPushCurrent_v2, (void *context), 0, 1) RUN(cuCtxPushCurrent_v2, context)
static CUresult do_cuCtxPushCurrent_v2(void *context) {
    struct thing *thing = find(CONTEXT, context);
    if (!thing) {
        complain("cuCtxPushCurrent_v2", "not a context");
        return INVALID_CONTEXT;
    }
    if (depth == 16) abort();
    stack[depth++] = thing;
    pushed++;
    return 0;
}

CALL(cuCtxPopCurrent_v2, (void **context), 0, 1) RUN(cuCtxPopCurrent_v2, context)
static CUresult do_cuCtxPopCurrent_v2(void **context) {
    if (!depth) {
        complain("cuCtxPopCurrent_v2", "an empty stack");
        return INVALID_CONTEXT;
    }
    *context = stack[--depth]->at;
    pushed--;
    return 0;
}

// Takes with it what belongs to the context.
CALL(cuCtxDestroy_v2, (void *context), 0, 1) RUN(cuCtxDestroy_v2, context)
static CUresult do_cuCtxDestroy_v2(void *context) {
    struct thing *thing = find(CONTEXT, context);
    if (!thing) {
        complain("cuCtxDestroy_v2", "not a context");
        return INVALID_CONTEXT;
    }
    for (int i = 0; i < thing_count; i++) {
        struct thing *owner = things[i]->owner;
        int is_its = owner == thing || (owner && owner->owner == thing);
        if (things[i]->is_alive && is_its) {
            things[i]->is_alive = 0;
            left++;
        }
    }
    destroy(thing);
    done_count = operation_count;
    return 0;
}

CALL(cuMemGetInfo_v2, (size_t * free, size_t *total), 1, 0) RUN(cuMemGetInfo_v2, free, total)
static CUresult do_cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = (size_t)3 << 32;
    *total = (size_t)1 << 34;
    return 0;
}

CALL(cuModuleLoadDataEx, (void **module, const char *text, unsigned count, const int *options,
                          void **values), 1, 0)
RUN(cuModuleLoadDataEx, module, text, count, options, values)
static CUresult do_cuModuleLoadDataEx(void **module, const char *text, unsigned count,
                                      const int *options, void **values) {
    if (count != 2 || options[0] != 5 || options[1] != 6) return INVALID_VALUE;
    if (strstr(text, "mistake")) {
        snprintf(values[0], (size_t)values[1], "line 3: a mistake");
        return INVALID_PTX;
    }
    if (!strstr(text, ".version")) return INVALID_PTX;
    struct thing *thing = make(MODULE, strlen(text) + 1, current());
    strcpy(thing->at, text);
    *module = thing->at;
    return 0;
}

CALL(cuModuleGetFunction, (void **function, void *module, const char *name), 1, 0)
RUN(cuModuleGetFunction, function, module, name)
static CUresult do_cuModuleGetFunction(void **function, void *module, const char *name) {
    struct thing *thing = find(MODULE, module);
    char entry[256];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    if (!thing || !strstr(thing->at, entry)) return NOT_FOUND;
    struct thing *made_here = make(FUNCTION, strlen(name) + 1, current());
    strcpy(made_here->at, name);
    // A function goes with its module.
    made_here->owner = thing;
    *function = made_here->at;
    return 0;
}

// Things are destroyed when nothing uses them: the streams have come to rest.
static CUresult end(const char *call, enum kind kind, void *at) {
    struct thing *thing = find(kind, at);
    if (!thing) {
        complain(call, "not there, or destroyed twice");
        return INVALID_HANDLE;
    }
    if (done_count < operation_count) complain(call, "while work is under way");
    if (thing->owner != current()) complain(call, "in another context");
    for (int i = 0; i < thing_count; i++)
        if (things[i]->is_alive && things[i]->owner == thing) destroy(things[i]);
    destroy(thing);
    return 0;
}

CALL(cuModuleUnload, (void *module), 1, 0) RUN(cuModuleUnload, module)
static CUresult do_cuModuleUnload(void *module) { return end("cuModuleUnload", MODULE, module); }

CALL(cuMemAlloc_v2, (uint64_t * at, size_t bytes), 1, 0) RUN(cuMemAlloc_v2, at, bytes)
static CUresult do_cuMemAlloc_v2(uint64_t *at, size_t bytes) {
    if (!bytes) return INVALID_VALUE;
    if (bytes > (size_t)1 << 30) return OUT_OF_MEMORY;
    *at = (uint64_t)(uintptr_t)make(MEMORY, bytes, current())->at;
    return 0;
}

CALL(cuMemFree_v2, (uint64_t at), 1, 0) RUN(cuMemFree_v2, at)
static CUresult do_cuMemFree_v2(uint64_t at) {
    return end("cuMemFree_v2", MEMORY, (void *)(uintptr_t)at);
}

CALL(cuMemHostAlloc, (void **at, size_t bytes, unsigned flags), 1, 0)
RUN(cuMemHostAlloc, at, bytes, flags)
static CUresult do_cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    if (!bytes || flags) return INVALID_VALUE;
    *at = make(PINNED, bytes, current())->at;
    return 0;
}

CALL(cuMemFreeHost, (void *at), 1, 0) RUN(cuMemFreeHost, at)
static CUresult do_cuMemFreeHost(void *at) { return end("cuMemFreeHost", PINNED, at); }

CALL(cuStreamCreate, (void **stream, unsigned flags), 1, 0) RUN(cuStreamCreate, stream, flags)
static CUresult do_cuStreamCreate(void **stream, unsigned flags) {
    if (flags != 1) return INVALID_VALUE;
    *stream = make(STREAM, 1, current())->at;
    return 0;
}

CALL(cuStreamQuery, (void *stream), 1, 0) RUN(cuStreamQuery, stream)
static CUresult do_cuStreamQuery(void *stream) {
    struct thing *thing = find(STREAM, stream);
    if (!thing) return INVALID_HANDLE;
    if (thing->asked++ == 0 || setting("FAKE_STUCK", 0)) return NOT_READY;
    run_until(operation_count);
    return 0;
}

CALL(cuStreamWaitEvent, (void *stream, void *event, unsigned flags), 1, 0)
RUN(cuStreamWaitEvent, stream, event, flags)
static CUresult do_cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    return !find(STREAM, stream) || !find(EVENT, event) || flags ? INVALID_HANDLE : 0;
}

CALL(cuStreamDestroy_v2, (void *stream), 1, 0) RUN(cuStreamDestroy_v2, stream)
static CUresult do_cuStreamDestroy_v2(void *stream) {
    return end("cuStreamDestroy_v2", STREAM, stream);
}

CALL(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream), 1, 0)
RUN(cuMemcpyHtoDAsync_v2, to, from, bytes, stream)
static CUresult do_cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    if (!find(STREAM, stream)) return INVALID_HANDLE;
    char *at = (char *)(uintptr_t)to;
    put((struct operation){.kind = COPY_IN, .to = at, .from = from, .bytes = bytes});
    return 0;
}

CALL(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream), 1, 0)
RUN(cuMemcpyDtoHAsync_v2, to, from, bytes, stream)
static CUresult do_cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    if (!find(STREAM, stream)) return INVALID_HANDLE;
    const char *at = (const char *)(uintptr_t)from;
    put((struct operation){.kind = COPY_OUT, .to = to, .from = at, .bytes = bytes});
    return 0;
}

CALL(cuMemsetD8Async, (uint64_t to, unsigned char byte, size_t bytes, void *stream), 1, 0)
RUN(cuMemsetD8Async, to, byte, bytes, stream)
static CUresult do_cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *stream) {
    if (!find(STREAM, stream)) return INVALID_HANDLE;
    char *at = (char *)(uintptr_t)to;
    put((struct operation){.kind = FILL, .to = at, .byte = byte, .bytes = bytes});
    return 0;
}

#ifndef WITHOUT_LAUNCH
CALL(cuLaunchKernel, (void *function, unsigned x, unsigned y, unsigned z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                      void **params, void **extra), 1, 0)
RUN(cuLaunchKernel, function, x, y, z, block_x, block_y, block_z, shared, stream, params, extra)
static CUresult do_cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z,
                                  unsigned block_x, unsigned block_y, unsigned block_z,
                                  unsigned shared, void *stream, void **params, void **extra) {
    struct thing *thing = find(FUNCTION, function);
    if (!thing || !find(STREAM, stream)) return INVALID_HANDLE;
    int is_good = x && y == 1 && z == 1 && block_x && block_y == 1 && block_z == 1 && !shared &&
                  !params && extra[0] == (void *)1 && extra[2] == (void *)2 && !extra[4];
    if (!is_good) return INVALID_VALUE;
    size_t bytes = *(size_t *)extra[3];
    int is_prove = !strcmp(thing->at, "prove");
#ifndef WITH_KERNELS
    if (!is_prove) return INVALID_VALUE;
#endif
    if (is_prove ? bytes != sizeof(struct prove_args) : bytes > ARGS_BYTES_MAX)
        return INVALID_VALUE;
    struct operation op = {.kind = LAUNCH, .blocks = x, .threads = block_x, .kernel = thing->at,
                           .args = malloc(bytes), .args_bytes = bytes};
    if (!op.args) abort();
    memcpy(op.args, extra[1], bytes);
    if (is_prove) fprintf(stderr, "fake: launch %s %u*%u\n", thing->at, x, block_x);
    put(op);
    return 0;
}

CALL(cuEventQuery, (void *event), 1, 0) RUN(cuEventQuery, event)
static CUresult do_cuEventQuery(void *event) {
    struct thing *thing = find(EVENT, event);
    if (!thing || !thing->is_recorded) return INVALID_HANDLE;
    if (thing->asked++ == 0 || setting("FAKE_STUCK", 0)) return NOT_READY;
    run_until(thing->place);
    return 0;
}
#endif

CALL(cuEventCreate, (void **event, unsigned flags), 1, 0) RUN(cuEventCreate, event, flags)
static CUresult do_cuEventCreate(void **event, unsigned flags) {
    if (flags) return INVALID_VALUE;
    *event = make(EVENT, 1, current())->at;
    return 0;
}

CALL(cuEventRecord, (void *event, void *stream), 1, 0) RUN(cuEventRecord, event, stream)
static CUresult do_cuEventRecord(void *event, void *stream) {
    struct thing *thing = find(EVENT, event);
    if (!thing || !find(STREAM, stream)) return INVALID_HANDLE;
    thing->place = operation_count;
    thing->asked = 0;
    thing->is_recorded = 1;
    return 0;
}

CALL(cuEventElapsedTime, (float *milliseconds, void *a, void *b), 1, 0)
RUN(cuEventElapsedTime, milliseconds, a, b)
static CUresult do_cuEventElapsedTime(float *milliseconds, void *a, void *b) {
    struct thing *from = find(EVENT, a), *to = find(EVENT, b);
    if (!from || !to || !from->is_recorded || !to->is_recorded) return INVALID_HANDLE;
    if (from->place > done_count || to->place > done_count) return NOT_READY;
    // Half a millisecond for each operation.
    *milliseconds = 0.5f * (float)((double)to->place - (double)from->place);
    return 0;
}

CALL(cuEventDestroy_v2, (void *event), 1, 0) RUN(cuEventDestroy_v2, event)
static CUresult do_cuEventDestroy_v2(void *event) { return end("cuEventDestroy_v2", EVENT, event); }
