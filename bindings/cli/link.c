/* SPDX-License-Identifier: Apache-2.0 */
/* bindings/cli/link.c - how fast page-locked memory travels to a CUDA device and back (contract in ask.h), by the
 * driver, which is opened at run time. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ask.h"
#include "lib/cuda_driver.h"

enum { BUFFER_NBYTES = 64 << 20, N_COPIES = 8, N_ROUNDS = 3 };
enum { UP, DOWN, N_WAYS };

typedef struct link {
    zf_cuda_driver_t cuda;
    void *context, *stream[N_WAYS], *host[N_WAYS];
    zf_cuda_address_t there[N_WAYS];
} link_t;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* NULL, or what failed. */
static const char *open_buffers(link_t *link) {
    for (int way = 0; way < N_WAYS; way++) {
        if (link->cuda.StreamCreate(&link->stream[way], ZF_CUDA_STREAM_NON_BLOCKING))
            return "no stream";
        if (link->cuda.MemAlloc_v2(&link->there[way], BUFFER_NBYTES))
            return "no memory on the device";
        if (link->cuda.MemHostAlloc(&link->host[way], BUFFER_NBYTES, 0))
            return "no page-locked memory (ulimit -l)";
        memset(link->host[way], 1, BUFFER_NBYTES);
    }
    return NULL;
}

static void close_buffers(link_t *link) {
    for (int way = 0; way < N_WAYS; way++) {
        if (link->stream[way])
            link->cuda.StreamDestroy_v2(link->stream[way]);
        if (link->there[way])
            link->cuda.MemFree_v2(link->there[way]);
        if (link->host[way])
            link->cuda.MemFreeHost(link->host[way]);
    }
}

/* Bytes per second of the ways in `ways` (bits) together, the best of a few rounds; 0: a copy failed. */
static double measure(const link_t *link, unsigned ways) {
    double best = 0;
    for (int round = 0; round < N_ROUNDS; round++) {
        uint64_t start = now_ns(), nbytes = 0;
        int has_failed = 0;
        for (int i = 0; i < N_COPIES; i++) {
            if (ways & 1 << UP)
                has_failed |=
                    link->cuda.MemcpyHtoDAsync_v2(link->there[UP], link->host[UP], BUFFER_NBYTES, link->stream[UP]);
            if (ways & 1 << DOWN)
                has_failed |= link->cuda.MemcpyDtoHAsync_v2(link->host[DOWN], link->there[DOWN], BUFFER_NBYTES,
                                                            link->stream[DOWN]);
            nbytes += ways == (1 << UP | 1 << DOWN) ? 2u * BUFFER_NBYTES : BUFFER_NBYTES;
        }
        has_failed |= link->cuda.StreamSynchronize(link->stream[UP]) | link->cuda.StreamSynchronize(link->stream[DOWN]);
        if (has_failed)
            return 0;
        double rate = 1e9 * (double)nbytes / (double)(now_ns() - start + 1);
        best = rate > best ? rate : best;
    }
    return best;
}

const char *zf_speed_link(int device, zf_link_speed_t *out) {
    link_t link = {.context = NULL};
    char unused[256];
    *out = (zf_link_speed_t){.up = 0};
    if (zf_cuda_driver_open(&link.cuda, unused, sizeof unused) != 0)
        return "the driver lacks functions";
    if (link.cuda.Init(0))
        return "the driver does not start";
    if (link.cuda.DevicePrimaryCtxRetain(&link.context, device))
        return "no context on the device";
    const char *why = link.cuda.CtxSetCurrent(link.context) ? "no context on the device" : open_buffers(&link);
    if (!why) {
        out->up = measure(&link, 1 << UP) / 1e9;
        out->down = measure(&link, 1 << DOWN) / 1e9;
        out->both = measure(&link, 1 << UP | 1 << DOWN) / 1e9;
        why = out->up > 0 && out->down > 0 && out->both > 0 ? NULL : "a copy failed";
    }
    close_buffers(&link);
    link.cuda.CtxSetCurrent(NULL);
    link.cuda.DevicePrimaryCtxRelease_v2(device);
    return why;
}
