/* SPDX-License-Identifier: Apache-2.0 */
/* tests/cuda/fakenccl/config.c - the environment, findings, and the double of the driver underneath. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "double.h"

static fn_config_t config;
static fn_driver_t driver;
static int has_driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint64_t n_drawn, n_findings;

static uint64_t number_of(const char *name, uint64_t unset) {
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : unset;
}

/* FAKENCCL_FAULT=RANK:KIND:N */
static void read_fault(void) {
    static const char *const kinds[] = {"", "late", "slow", "die", "error", "short", "init"};
    const char *text = getenv("FAKENCCL_FAULT");
    char kind[16] = "";
    unsigned long long at = 1;
    if (!text || sscanf(text, "%d:%15[a-z]:%llu", &config.fault_rank, kind, &at) < 2)
        return;
    config.fault_at = at;
    for (int i = 1; i < (int)(sizeof kinds / sizeof *kinds); i++)
        if (strcmp(kinds[i], kind) == 0)
            config.fault = (fn_fault_t)i;
    if (!config.fault)
        fn_finding("FAKENCCL_FAULT=%s: no such fault", text);
}

static void find_driver(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct function {
        const char *name;
        void *at;
    } functions[] = {
#define ROW(name) {#name, &driver.name}
        ROW(cuCtxGetCurrent),      ROW(cuCtxPushCurrent_v2),   ROW(cuCtxPopCurrent_v2),
        ROW(fakecuda_launch_work), ROW(fakecuda_device_bytes),
#undef ROW
    };
    has_driver = library != NULL;
    for (size_t i = 0; i < sizeof functions / sizeof *functions && has_driver; i++) {
        *(void **)functions[i].at = dlsym(library, functions[i].name);
        has_driver = *(void **)functions[i].at != NULL;
    }
}

static void read_all(void) {
    config.seed = number_of("FAKENCCL_SEED", 1);
    config.delay_us = number_of("FAKENCCL_DELAY_US", 300);
    config.version = number_of("FAKENCCL_VERSION", 22304);
    read_fault();
    find_driver();
}

const fn_config_t *fn_config(void) {
    pthread_once(&once, read_all);
    return &config;
}

const fn_driver_t *fn_driver(void) {
    pthread_once(&once, read_all);
    return has_driver ? &driver : NULL;
}

void fn_finding(const char *format, ...) {
    va_list args;
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    __atomic_add_fetch(&n_findings, 1, __ATOMIC_RELAXED);
    fprintf(stderr, "fakenccl: %s\n", text);
}

FN_API uint64_t fakenccl_n_findings(void);
uint64_t fakenccl_n_findings(void) { return __atomic_load_n(&n_findings, __ATOMIC_RELAXED); }

__attribute__((destructor)) static void report(void) {
    if (fakenccl_n_findings() == 0)
        return;
    fprintf(stderr, "fakenccl: %llu findings\n", (unsigned long long)fakenccl_n_findings());
    fflush(stderr);
    _exit(95);
}

uint64_t fn_random(void) {
    uint64_t n = __atomic_add_fetch(&n_drawn, 1, __ATOMIC_RELAXED);
    uint64_t z = fn_config()->seed * 0x9e3779b97f4a7c15u + n + (uint64_t)getpid();
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void fn_pause_us(uint64_t us) {
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}
