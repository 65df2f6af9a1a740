/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/calls.c - what every call passes first: counting, failures on demand, what callers may not do. */
#define _GNU_SOURCE
#include "fake.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

static uint64_t n_matching, n_findings;

__thread int fc_in_host_function;

void fc_finding(const char *format, ...) {
    va_list args;
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    __atomic_add_fetch(&n_findings, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fakecuda: %s\n", text);
}

uint64_t fakecuda_n_findings(void) { return __atomic_load_n(&n_findings, __ATOMIC_RELAXED); }

/* FAKECUDA_FAIL=NAME:N[:CODE]: the N-th call of functions whose names start with NAME fails with CODE (default 999,
 * CUDA_ERROR_UNKNOWN); NAME * counts all calls that need a context. */
static CUresult wanted_failure(const char *function, int has_context) {
    const char *colon = fc_config.fail ? strchr(fc_config.fail, ':') : NULL;
    if (colon == NULL)
        return CUDA_SUCCESS;
    char *end = NULL;
    uint64_t wanted = strtoull(colon + 1, &end, 10);
    if (fc_config.fail[0] == '*' ? !has_context : strncmp(function, fc_config.fail, (size_t)(colon - fc_config.fail)))
        return CUDA_SUCCESS;
    if (__atomic_add_fetch(&n_matching, 1, __ATOMIC_RELAXED) != wanted)
        return CUDA_SUCCESS;
    int code = *end == ':' ? atoi(end + 1) : CUDA_ERROR_UNKNOWN;
    fprintf(stderr, "fakecuda: call %llu of %s fails as asked for, with %d\n", (unsigned long long)wanted, function,
            code);
    return (CUresult)code;
}

static _Atomic int is_torn_down;

/* What a driver does at exit, while threads of the process go on. */
static void tear_down(void) {
    is_torn_down = 1;
    usleep((useconds_t)fc_config.teardown_ms * 1000);
}

void fc_tear_down_at_exit(void) {
    if (fc_config.teardown_ms)
        atexit(tear_down);
}

CUresult fc_enter(const char *function, fc_need_t need) {
    if (is_torn_down)
        return CUDA_ERROR_DEINITIALIZED;
    if (fc_in_host_function && need != FC_NEEDS_NOTHING) {
        fc_finding("%s is called by a host function", function);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    fc_stand_behind(function);
    if (need == FC_NEEDS_NOTHING)
        return wanted_failure(function, 0);
    if (!fc_is_initialised())
        return CUDA_ERROR_NOT_INITIALIZED;
    if (need == FC_NEEDS_CONTEXT) {
        fc_context_t *c = fc_current();
        if (c == NULL)
            return CUDA_ERROR_INVALID_CONTEXT;
        int sticky = __atomic_load_n(&c->sticky, __ATOMIC_RELAXED);
        if (sticky)
            return (CUresult)sticky;
    }
    return wanted_failure(function, need == FC_NEEDS_CONTEXT);
}

static int64_t n_plugin_objects;
static uint64_t n_plugin_makes;

uint64_t fakecuda_n_makes(void) { return __atomic_load_n(&n_plugin_makes, __ATOMIC_RELAXED); }

void fc_count_make(int is_plugin) { __atomic_add_fetch(&n_plugin_makes, is_plugin ? 1 : 0, __ATOMIC_RELAXED); }

int fc_is_plugin(const void *caller) {
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "zfplugin");
}

void fc_count(fc_context_t *c, int is_plugin, int by) {
    if (c)
        __atomic_add_fetch(&c->n_objects, by, __ATOMIC_RELAXED);
    fc_count_make(is_plugin);
    if (is_plugin)
        __atomic_add_fetch(&n_plugin_objects, by, __ATOMIC_RELAXED);
}

/* At the end of the process: what the plugin left behind, and the tables that were asked for. */
__attribute__((destructor)) static void report(void) {
    if (fc_is_initialised() && n_plugin_objects && !fc_primary.sticky && !is_torn_down)
        fc_finding("leaks of libzfplugin: %lld memory, registrations, streams, events, modules and contexts",
                   (long long)n_plugin_objects);
    if (fc_config.traffic)
        emu_traffic_print(stderr);
    if (fakecuda_n_findings() > 0) {
        fprintf(stderr, "fakecuda: %llu findings\n", (unsigned long long)fakecuda_n_findings());
        fflush(stderr);
        _exit(96);
    }
}
