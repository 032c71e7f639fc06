// A library that looks like libnvrtc: the PTX of a program is its options and its source.
//
// Variables of the environment:
//
// FAKE_NVRTC_FAIL  the number of the call that fails, from 1 (create, compile, size, PTX)

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program {
    char ptx[4096];
};

static int calls, alive;

static int begin(void) {
    const char *value = getenv("FAKE_NVRTC_FAIL");
    return ++calls == (value ? atoi(value) : 0) ? 6 : 0;
}

int nvrtcCreateProgram(struct program **program, const char *source, const char *name, int headers,
                       const char **texts, const char **names) {
    if (begin() || headers || texts || names || strcmp(name, "kernels.cu")) return 6;
    *program = calloc(1, sizeof **program);
    snprintf((*program)->ptx, sizeof (*program)->ptx, "%s", source);
    alive++;
    return 0;
}

int nvrtcCompileProgram(struct program *program, int count, const char **options) {
    for (int i = 0; i < count; i++) {
        strcat(program->ptx, "option ");
        strcat(program->ptx, options[i]);
        strcat(program->ptx, "\n");
    }
    return begin();
}

static const char LOG[] = "kernels.cu(3): error: a mistake\n";

int nvrtcGetProgramLogSize(struct program *program, size_t *size) {
    (void)program;
    *size = sizeof LOG;
    return 0;
}

int nvrtcGetProgramLog(struct program *program, char *log) {
    (void)program;
    memcpy(log, LOG, sizeof LOG);
    return 0;
}

int nvrtcGetPTXSize(struct program *program, size_t *size) {
    *size = strlen(program->ptx) + 1;
    return begin();
}

int nvrtcGetPTX(struct program *program, char *ptx) {
    strcpy(ptx, program->ptx);
    return begin();
}

int nvrtcDestroyProgram(struct program **program) {
    free(*program);
    *program = NULL;
    alive--;
    return 0;
}

__attribute__((destructor)) static void report(void) {
    fprintf(stderr, "nvrtc: calls=%d alive=%d\n", calls, alive);
}
