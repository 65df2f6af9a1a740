/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakecuda/calls.c - what every call passes first: counting, failures on demand, what the caller may not do.
 */
#define _GNU_SOURCE
#include "fake.h"
#include "traffic.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_FUNCTIONS = 256 };

static struct {
    const char *name;
    uint64_t n;
} calls[MAX_FUNCTIONS];
static uint32_t n_functions;
static uint64_t n_all, n_findings, n_pageable;
static fc_lock_t lock;

__thread int fc_in_host_function;

void fc_finding(const char *format, ...) {
    va_list args;
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    __atomic_add_fetch(&n_findings, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fakecuda: %s\n", text);
    if (fc_config.is_fatal)
        _exit(96);
}

uint64_t fakecuda_n_findings(void) { return __atomic_load_n(&n_findings, __ATOMIC_RELAXED) + emu_n_findings(); }

static uint64_t count(const char *function) {
    uint32_t i = 0;
    fc_lock(&lock);
    while (i < n_functions && strcmp(calls[i].name, function) != 0)
        i++;
    if (i == n_functions && i < MAX_FUNCTIONS)
        calls[n_functions++].name = function;
    uint64_t n = ++calls[i].n;
    fc_unlock(&lock);
    return n;
}

uint64_t fakecuda_n_calls(const char *prefix) {
    uint64_t n = 0;
    fc_lock(&lock);
    for (uint32_t i = 0; i < n_functions; i++)
        if (strncmp(calls[i].name, prefix, strlen(prefix)) == 0)
            n += calls[i].n;
    fc_unlock(&lock);
    return n;
}

uint64_t fakecuda_n_pageable(void) { return __atomic_load_n(&n_pageable, __ATOMIC_RELAXED); }
void fc_count_pageable(void) { __atomic_add_fetch(&n_pageable, 1, __ATOMIC_RELAXED); }

/* FAKECUDA_FAIL=NAME:N[:CODE]: the N-th call of a function whose name starts with NAME fails with CODE (default 999,
 * CUDA_ERROR_UNKNOWN); NAME * counts all calls that need a context. */
static CUresult wanted_failure(const char *function, uint64_t n, int is_after_init) {
    const char *colon = fc_config.fail ? strchr(fc_config.fail, ':') : NULL;
    if (colon == NULL)
        return CUDA_SUCCESS;
    char *end = NULL;
    uint64_t wanted = strtoull(colon + 1, &end, 10);
    int code = *end == ':' ? atoi(end + 1) : CUDA_ERROR_UNKNOWN;
    if (fc_config.fail[0] == '*')
        return is_after_init && __atomic_add_fetch(&n_all, 1, __ATOMIC_RELAXED) == wanted ? (CUresult)code
                                                                                          : CUDA_SUCCESS;
    size_t length = (size_t)(colon - fc_config.fail);
    return strncmp(function, fc_config.fail, length) == 0 && n == wanted ? (CUresult)code : CUDA_SUCCESS;
}

CUresult fc_enter(const char *function, fc_need_t need) {
    uint64_t n = count(function);
    if (fc_in_host_function && need != FC_NEEDS_NOTHING) {
        fc_finding("%s is called by a host function", function);
        return CUDA_ERROR_NOT_PERMITTED;
    }
    if (need == FC_NEEDS_NOTHING)
        return CUDA_SUCCESS;
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
    CUresult wanted = wanted_failure(function, n, need == FC_NEEDS_CONTEXT);
    if (wanted)
        fprintf(stderr, "fakecuda: call %llu of %s fails as asked for, with %d\n", (unsigned long long)n, function,
                (int)wanted);
    return wanted;
}

static int64_t n_plugin_objects;

int fc_is_plugin(const void *caller) {
    Dl_info info;
    return dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "zfplugin");
}

void fc_count_plugin_object(int is_plugin, int by) {
    if (is_plugin)
        fc_count_object(&n_plugin_objects, by);
}

static int has_sticky_error(void) {
    for (int d = 0; d < FC_MAX_DEVICES; d++)
        if (fc_context_of(d)->sticky)
            return 1;
    return 0;
}

/* At the end of the process: what the plugin left behind, and the tables that were asked for. */
__attribute__((destructor)) static void report(void) {
    if (fc_is_initialised() && n_plugin_objects && !has_sticky_error())
        fc_finding("leaks of libzfplugin: %lld memory, registrations, streams, events, modules and contexts",
                   (long long)n_plugin_objects);
    if (fc_config.traffic)
        emu_traffic_print(stderr);
    for (uint32_t i = 0; fc_config.counts && i < n_functions; i++)
        fprintf(stderr, "calls %s %llu\n", calls[i].name, (unsigned long long)calls[i].n);
    if (fakecuda_n_findings() > 0) {
        fprintf(stderr, "fakecuda: %llu findings\n", (unsigned long long)fakecuda_n_findings());
        fflush(stderr);
        _exit(96);
    }
}
