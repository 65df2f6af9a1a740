/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/link.c - how fast page-locked memory travels to a CUDA device and back (contract in speed.h), by the
 * driver, which is opened at run time (drivers.c). */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "speed.h"

enum { BUFFER_NBYTES = 64 << 20, N_COPIES = 8, N_ROUNDS = 3, STREAM_NON_BLOCKING = 1 };
enum { UP, DOWN, N_WAYS };

typedef unsigned long long address_t; /* CUdeviceptr */

typedef struct link {
    int (*retain)(void **context, int device);
    int (*release)(int device);
    int (*set_current)(void *context);
    int (*allocate)(address_t *out, size_t nbytes);
    int (*free)(address_t at);
    int (*allocate_host)(void **out, size_t nbytes, unsigned flags);
    int (*free_host)(void *memory);
    int (*stream_create)(void **out, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*synchronize)(void *stream);
    int (*up)(address_t to, const void *from, size_t nbytes, void *stream);
    int (*down)(void *to, address_t from, size_t nbytes, void *stream);
    void *context, *stream[N_WAYS], *host[N_WAYS];
    address_t there[N_WAYS];
} link_t;

static int find_all(void *library, link_t *link) {
    const struct function {
        const char *name;
        void *at;
    } functions[] = {{"cuDevicePrimaryCtxRetain", &link->retain},
                     {"cuDevicePrimaryCtxRelease_v2", &link->release},
                     {"cuCtxSetCurrent", &link->set_current},
                     {"cuMemAlloc_v2", &link->allocate},
                     {"cuMemFree_v2", &link->free},
                     {"cuMemHostAlloc", &link->allocate_host},
                     {"cuMemFreeHost", &link->free_host},
                     {"cuStreamCreate", &link->stream_create},
                     {"cuStreamDestroy_v2", &link->stream_destroy},
                     {"cuStreamSynchronize", &link->synchronize},
                     {"cuMemcpyHtoDAsync_v2", &link->up},
                     {"cuMemcpyDtoHAsync_v2", &link->down}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (!symbol)
            return 0;
        memcpy(functions[i].at, &symbol, sizeof symbol);
    }
    return 1;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* NULL, or what failed. */
static const char *open_buffers(link_t *link) {
    for (int way = 0; way < N_WAYS; way++) {
        if (link->stream_create(&link->stream[way], STREAM_NON_BLOCKING))
            return "no stream";
        if (link->allocate(&link->there[way], BUFFER_NBYTES))
            return "no memory on the device";
        if (link->allocate_host(&link->host[way], BUFFER_NBYTES, 0))
            return "no page-locked memory (ulimit -l)";
        memset(link->host[way], 1, BUFFER_NBYTES);
    }
    return NULL;
}

static void close_buffers(link_t *link) {
    for (int way = 0; way < N_WAYS; way++) {
        if (link->stream[way])
            link->stream_destroy(link->stream[way]);
        if (link->there[way])
            link->free(link->there[way]);
        if (link->host[way])
            link->free_host(link->host[way]);
    }
}

/* Bytes per second of the ways in `ways` (bits) together, the best of a few rounds; 0: a copy failed. */
static double measure(const link_t *link, unsigned ways) {
    double best = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t start = now_ns(), nbytes = 0;
        int has_failed = 0;
        double rate;
        for (int i = 0; i < N_COPIES; i++) {
            if (ways & 1 << UP)
                has_failed |= link->up(link->there[UP], link->host[UP], BUFFER_NBYTES, link->stream[UP]);
            if (ways & 1 << DOWN)
                has_failed |= link->down(link->host[DOWN], link->there[DOWN], BUFFER_NBYTES, link->stream[DOWN]);
            nbytes += ways == (1 << UP | 1 << DOWN) ? 2u * BUFFER_NBYTES : BUFFER_NBYTES;
        }
        has_failed |= link->synchronize(link->stream[UP]) | link->synchronize(link->stream[DOWN]);
        if (has_failed)
            return 0;
        rate = 1e9 * (double)nbytes / (double)(now_ns() - start + 1);
        best = rate > best ? rate : best;
    }
    return best;
}

const char *zf_speed_link(int device, zf_link_speed_t *out) {
    link_t link = {.context = NULL};
    const char *why;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    *out = (zf_link_speed_t){.up = 0};
    if (!library || !find_all(library, &link))
        return "the driver lacks functions";
    if (link.retain(&link.context, device))
        return "no context on the device";
    why = link.set_current(link.context) ? "no context on the device" : open_buffers(&link);
    if (!why) {
        out->up = measure(&link, 1 << UP) / 1e9;
        out->down = measure(&link, 1 << DOWN) / 1e9;
        out->both = measure(&link, 1 << UP | 1 << DOWN) / 1e9;
        why = out->up > 0 && out->down > 0 && out->both > 0 ? NULL : "a copy failed";
    }
    close_buffers(&link);
    link.set_current(NULL);
    link.release(device);
    return why;
}
