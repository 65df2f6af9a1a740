/* SPDX-License-Identifier: Apache-2.0 */
/* shard_mirror.c - a rank among its own images (model in shard_mirror.h). */
#include "shard_mirror.h"

#include <string.h>

#include "harness/clock.h"

static zf_status_t find_group(void *ctx, uint32_t number, uint32_t *out_rank, uint32_t *out_size, zf_error_t *err) {
    const zs_mirror_t *mirror = ctx;
    (void)number, (void)err;
    *out_rank = mirror->rank;
    *out_size = mirror->n_ranks;
    return ZF_OK;
}

/* This rank's part, from each rank. */
static zf_status_t start(void *ctx, const zf_collective_t *call, uint64_t *out_request, zf_error_t *err) {
    zs_mirror_t *mirror = ctx;
    const uint32_t lane = call->lane % ZS_MIRROR_LANES;
    const double ns = mirror->ns_per_byte * (double)((mirror->n_ranks - 1) * call->nbytes);
    const char *own = (const char *)(call->send ? call->send : call->recv) + mirror->rank * call->nbytes;
    (void)err;
    for (uint32_t r = 0; r < mirror->n_ranks; r++)
        if (r != mirror->rank)
            memcpy((char *)call->recv + r * call->nbytes, own, call->nbytes);
    mirror->calls[lane] = *call;
    mirror->spans[lane].begin_ns = zc_now_ns();
    mirror->spans[lane].end_ns = mirror->spans[lane].begin_ns + (uint64_t)ns;
    *out_request = lane;
    return ZF_OK;
}

static void note(zs_span_t *spans, uint32_t bucket, const zs_span_t *span) {
    if (bucket < ZS_MIRROR_BUCKETS)
        spans[bucket] = *span;
}

static zf_status_t test(void *ctx, uint64_t lane, zf_error_t *err) {
    zs_mirror_t *mirror = ctx;
    const zf_collective_t *call = &mirror->calls[lane];
    const uint64_t now = zc_now_ns();
    (void)err;
    if (now < mirror->spans[lane].end_ns)
        return ZF_IN_PROGRESS;
    mirror->spans[lane].end_ns = now;
    if (call->purpose == ZF_COLLECTIVE_FOR_GRADIENTS)
        note(mirror->reduced, call->bucket, &mirror->spans[lane]);
    if (call->purpose == ZF_COLLECTIVE_FOR_VALUES)
        note(mirror->gathered, call->bucket, &mirror->spans[lane]);
    return ZF_OK;
}

static zf_status_t give_up(void *ctx, uint64_t lane, zf_error_t *err) {
    (void)ctx, (void)lane, (void)err;
    return ZF_OK;
}

void zs_mirror_init(zs_mirror_t *mirror, uint32_t rank, uint32_t n_ranks, double ns_per_byte) {
    *mirror = (zs_mirror_t){.rank = rank,
                            .n_ranks = n_ranks,
                            .ns_per_byte = ns_per_byte,
                            .table = {.struct_size = sizeof mirror->table,
                                      .ctx = mirror,
                                      .group = find_group,
                                      .start = start,
                                      .test = test,
                                      .abort = give_up}};
}
