// A library that looks like libcufile: the memory of the fake driver is the process's memory, so
// files are read into it and written from it. It checks how it is used, fails where a variable says
// so, and says at exit what it saw.
//
// Variables of the environment:
//
// FAKE_FILE_FAIL_AT    the number of the call that fails, from 1, and
// FAKE_FILE_FAIL_WITH  its code. 5 is an error of the system (EIO) for reads and writes.
// FAKE_FILE_NVFS       the major version of the kernel's module, 0 if it is not loaded (2)
// FAKE_FILE_SHORT      reads and writes move no more bytes than this at once
//
// Compiled with WITHOUT_WRITE it lacks a call.

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
    int err, cu_err;
} Status;

typedef struct {
    int type;
    union {
        int fd;
        void *handle;
    } handle;
    const void *fs_ops;
} Description;

typedef struct {
    unsigned major, minor;
    size_t poll_threshold, direct_bytes_max;
    unsigned status, control;
    unsigned others[6];
} Properties;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int calls, wrong, is_open, buffers, handles;

static int setting(const char *name, int otherwise) {
    const char *value = getenv(name);
    return value ? atoi(value) : otherwise;
}

static void complain(const char *call, const char *what) {
    wrong++;
    fprintf(stderr, "cufile: %s: %s\n", call, what);
}

// Counts a call. Returns the code with which it fails, or 0.
static int begin(const char *call) {
    pthread_mutex_lock(&lock);
    int is_failing = ++calls == setting("FAKE_FILE_FAIL_AT", 0);
    pthread_mutex_unlock(&lock);
    if (!is_open && strcmp(call, "cuFileDriverOpen")) complain(call, "the driver is not open");
    if (is_failing) fprintf(stderr, "cufile: failed %s\n", call);
    return is_failing ? setting("FAKE_FILE_FAIL_WITH", 5008) : 0;
}

static Status status(int code) {
    return (Status){.err = code, .cu_err = code == 5011 ? 201 : 0};
}

Status cuFileDriverOpen(void) {
    int code = begin("cuFileDriverOpen");
    if (is_open) complain("cuFileDriverOpen", "it is open");
    if (!code) is_open = 1;
    return status(code);
}

Status cuFileDriverGetProperties(Properties *properties) {
    int code = begin("cuFileDriverGetProperties");
    memset(properties, 0xff, sizeof *properties);
    properties->major = (unsigned)setting("FAKE_FILE_NVFS", 2);
    properties->minor = properties->major ? 17 : 0;
    return status(code);
}

Status cuFileBufRegister(const void *at, size_t bytes, int flags) {
    int code = begin("cuFileBufRegister");
    if (!at || !bytes || flags) complain("cuFileBufRegister", "no memory");
    if (!code) buffers++;
    return status(code);
}

Status cuFileBufDeregister(const void *at) {
    int code = begin("cuFileBufDeregister");
    if (!at || !buffers) complain("cuFileBufDeregister", "it was not registered");
    buffers--;
    return status(code);
}

Status cuFileHandleRegister(void **handle, Description *description) {
    int code = begin("cuFileHandleRegister");
    if (description->type != 1 || description->fs_ops)
        complain("cuFileHandleRegister", "another kind of file");
    if (code) return status(code);
    int *fd = malloc(sizeof *fd);
    *fd = description->handle.fd;
    *handle = fd;
    handles++;
    return status(0);
}

void cuFileHandleDeregister(void *handle) {
    begin("cuFileHandleDeregister");
    if (!handle || !handles) complain("cuFileHandleDeregister", "it was not registered");
    free(handle);
    handles--;
}

static ssize_t result(int code) {
    if (code == 5) errno = EIO;
    return code == 5 ? -1 : -code;
}

static size_t most(size_t bytes) {
    size_t limit = (size_t)setting("FAKE_FILE_SHORT", 1 << 30);
    return bytes < limit ? bytes : limit;
}

// Memory that is not aligned is read and written through a buffer that is, as the true library does
// with the files that are open for direct I/O.
static ssize_t move_bytes(int is_write, void *handle, char *memory, size_t bytes, off_t at) {
    enum { ALIGN = 4096 };
    int fd = *(int *)handle;
    void *buffer = memory;
    int is_aligned = (uintptr_t)memory % ALIGN == 0;
    if (!is_aligned && posix_memalign(&buffer, ALIGN, bytes)) abort();
    if (!is_aligned && is_write) memcpy(buffer, memory, bytes);
    ssize_t moved = is_write ? pwrite(fd, buffer, bytes, at) : pread(fd, buffer, bytes, at);
    if (!is_aligned && !is_write && moved > 0) memcpy(memory, buffer, (size_t)moved);
    int error = errno;
    if (!is_aligned) free(buffer);
    errno = error;
    return moved;
}

ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t from, off_t at) {
    int code = begin("cuFileRead");
    return code ? result(code) : move_bytes(0, handle, (char *)base + at, most(bytes), from);
}

#ifndef WITHOUT_WRITE
ssize_t cuFileWrite(void *handle, const void *base, size_t bytes, off_t to, off_t at) {
    int code = begin("cuFileWrite");
    return code ? result(code) : move_bytes(1, handle, (char *)base + at, most(bytes), to);
}
#endif

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "cufile: calls=%d wrong=%d buffers=%d handles=%d\n", calls, wrong, buffers,
            handles);
}
