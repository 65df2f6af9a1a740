/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/buffers.c - buffers of buckets (contract in buffers.h). */
#include "ranks/buffers.h"

#include <stdlib.h>

#include "instance/memory.h"
#include "ranks/mirror.h"

/* ---- what is kept of the sums ------------------------------------------------------------------------------------ */

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

zf_status_t zfi_buffers_plan(zfi_ranks_t *ranks) {
    zfi_reduction_t *reduction = ranks->reduction;
    uint64_t at = 0;
    zfi_buffers_free(reduction);
    if (!zfi_is_sharded(ranks->engine) || ranks->buckets->n == 0)
        return ZF_OK;
    reduction->buffers = calloc(ranks->buckets->n, sizeof *reduction->buffers);
    reduction->opened = calloc(ranks->buckets->n, sizeof *reduction->opened);
    if (!reduction->buffers || !reduction->opened)
        return ZF_ERR_MEMORY;
    for (uint32_t i = 0; i < ranks->buckets->n; i++) {
        reduction->opened[i] = (zfi_opened_t){.buffer = ZF_NO_ID, .kept_at = at};
        at += zfi_kept_nbytes(&ranks->buckets->all[i]);
    }
    return ZF_OK;
}

void zfi_buffers_free(zfi_reduction_t *reduction) {
    free(reduction->buffers);
    free(reduction->opened);
    reduction->buffers = NULL;
    reduction->opened = NULL;
    reduction->n_buffers = 0;
}

/* ---- how many ---------------------------------------------------------------------------------------------------- */

static zf_status_t map_buffer(zfi_ranks_t *ranks, zfi_bucket_buffer_t *buffer, zf_error_t *err) {
    uint64_t nbytes = ranks->buckets->most_nbytes;
    zf_status_t st = zfi_mirror_map(ranks, &buffer->mirror, NULL, nbytes, err);
    if (!st)
        st = zfi_memory_map_more(ranks, &buffer->arena, nbytes, "a bucket of gradients", err);
    if (st)
        zfi_mirror_free(ranks->engine, ranks->mem, &buffer->mirror);
    else
        buffer->mirror.device = buffer->arena.base;
    return st;
}

zf_status_t zfi_buffers_need(zfi_ranks_t *ranks, uint32_t n, zf_error_t *err) {
    zfi_reduction_t *reduction = ranks->reduction;
    uint32_t needed = (uint32_t)smaller(larger(ZFI_LEAST_BUFFERS, n + 1), ranks->buckets->n);
    uint32_t wanted = (uint32_t)larger(needed, reduction->trial_n_open + reduction->trial_n_on_way);
    zf_status_t st = ZF_OK;
    while (reduction->opened && reduction->n_buffers < wanted && !st) {
        int is_needed = reduction->n_buffers < needed;
        st = map_buffer(ranks, &reduction->buffers[reduction->n_buffers], is_needed ? err : NULL);
        if (st && !is_needed)
            return ZF_OK;
        reduction->n_buffers += !st;
    }
    return st;
}

/* The bucket as the calls before this one have left it. */
static zfi_opened_t *trial_of(zfi_reduction_t *reduction, uint64_t call, uint32_t bucket) {
    zfi_opened_t *opened = &reduction->opened[bucket];
    if (opened->trial_call != call) {
        opened->trial_call = call;
        opened->trial_n_final = reduction->n_final[bucket];
        opened->trial_is_open = opened->buffer != ZF_NO_ID;
    }
    return opened;
}

/* Buffers of this step's buckets that are on their way. What the step before handed over comes by itself. */
static uint32_t count_on_way(const zfi_ranks_t *ranks) {
    const zfi_reduction_t *reduction = ranks->reduction;
    uint64_t over = larger(zfi_timeline_now(&ranks->engine->lines.exchanged), reduction->former_number);
    uint32_t n = 0;
    for (uint32_t i = 0; i < reduction->n_buffers; i++)
        n += !reduction->buffers[i].is_taken && reduction->buffers[i].number > over;
    return n;
}

static void begin_trial(zfi_ranks_t *ranks, uint64_t call, int is_host_thread) {
    zfi_reduction_t *reduction = ranks->reduction;
    if (reduction->trial_call == call)
        return;
    reduction->trial_call = call;
    reduction->trial_next = reduction->next;
    reduction->trial_n_open = reduction->trial_most = reduction->n_open;
    reduction->trial_n_on_way = is_host_thread ? count_on_way(ranks) : 0;
}

uint32_t zfi_buffers_try(zfi_ranks_t *ranks, uint64_t call, uint32_t param, int final, int is_host_thread) {
    const zfi_buckets_t *buckets = ranks->buckets;
    zfi_reduction_t *reduction = ranks->reduction;
    uint32_t bucket = buckets->of_param[param];
    zfi_opened_t *opened;
    if (!reduction->opened || bucket == ZF_NO_ID)
        return 0;
    begin_trial(ranks, call, is_host_thread);
    opened = trial_of(reduction, call, bucket);
    reduction->trial_n_open += !opened->trial_is_open;
    opened->trial_is_open = 1;
    opened->trial_n_final += (uint32_t) final;
    if (reduction->trial_n_open > reduction->trial_most)
        reduction->trial_most = reduction->trial_n_open;
    while (reduction->trial_next < buckets->n) {
        zfi_opened_t *next = trial_of(reduction, call, reduction->trial_next);
        if (!next->trial_is_open || next->trial_n_final < buckets->all[reduction->trial_next].n_params)
            break;
        reduction->trial_n_open--;
        reduction->trial_n_on_way += is_host_thread != 0;
        reduction->trial_next++;
    }
    return reduction->trial_most;
}

/* ---- whose ------------------------------------------------------------------------------------------------------- */

zf_status_t zfi_buffers_open(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t bucket) {
    zfi_opened_t *opened = reduction->opened ? &reduction->opened[bucket] : NULL;
    zfi_bucket_buffer_t *oldest = NULL;
    if (!opened || opened->buffer != ZF_NO_ID)
        return ZF_OK;
    for (uint32_t i = 0; i < reduction->n_buffers; i++) {
        zfi_bucket_buffer_t *buffer = &reduction->buffers[i];
        if (!buffer->is_taken && (!oldest || buffer->number < oldest->number))
            oldest = buffer;
    }
    oldest->is_taken = 1; /* there is one: zfi_buffers_need() */
    opened->buffer = (uint32_t)(oldest - reduction->buffers);
    opened->after = oldest->number;
    reduction->n_open++;
    zfi_list_add(&engine->to_device,
                 zfi_op_wait(&engine->lines.exchanged, opened->after, &engine->count.stall_ranks_ns));
    return zfi_send(engine);
}

zf_status_t zfi_buffers_wait(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t bucket) {
    uint64_t number = reduction->opened ? reduction->opened[bucket].after : reduction->former_number;
    return zfi_wait(engine, &engine->lines.exchanged, number, &engine->count.host_wait_ns);
}

void zfi_buffers_close(zfi_reduction_t *reduction, uint32_t bucket, uint64_t number) {
    zfi_opened_t *opened = reduction->opened ? &reduction->opened[bucket] : NULL;
    if (!opened)
        return;
    reduction->buffers[opened->buffer].number = number;
    reduction->buffers[opened->buffer].is_taken = 0;
    opened->buffer = ZF_NO_ID;
    reduction->n_open--;
}
