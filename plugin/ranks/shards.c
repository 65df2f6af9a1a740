/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/shards.c - sharded parameters (contract in shards.h). */
#include "ranks/shards.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "instance/device_memory.h"
#include "instance/memory.h"
#include "ranks/mirror.h"
#include "ranks/ranks.h"

enum { KEPT_ALIGN = 64, FORWARD = -1, BACKWARD = 1 };

/* ---- what is sharded --------------------------------------------------------------------------------------------- */

static int is_resident(uint32_t resident_bytes, const zfi_param_t *param) {
    return !param->has_state || param->ndim - param->n_batch_axes <= 1 ||
           param->n_elems * zfi_dtype_nbytes(param->dtype) <= resident_bytes;
}

void zfi_shards_mark(const zfi_engine_t *engine, uint32_t resident_bytes, zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n && zfi_shards_params(engine); i++)
        params[i].is_sharded =
            params[i].owner == i ? !is_resident(resident_bytes, &params[i]) : params[params[i].owner].is_sharded;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* This rank's part of a bucket, as far as its matrices reach. Returns the sharded parameters in it. */
static uint32_t plan_bucket(zfi_ranks_t *ranks, uint32_t number) {
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    zfi_shards_t *shards = ranks->shards;
    zfi_shard_t *out = &shards->all[number];
    uint64_t first = UINT64_MAX, end = 0, nbytes = bucket->n_elems * zfi_dtype_nbytes(bucket->value_dtype);
    *out = (zfi_shard_t){.buffer = ZF_NO_ID};
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        uint32_t first_matrix, n_matrices = zfi_owned_matrices(ranks->plan, param, &first_matrix);
        const zfi_matrix_t *matrices = &ranks->plan->matrices[first_matrix], *last = matrices + n_matrices - 1;
        uint64_t offset = ranks->buckets->offset[param->id];
        out->n_sharded += param->is_sharded != 0;
        if (!param->is_sharded || !n_matrices)
            continue;
        if (offset + matrices->param_offset < first)
            first = offset + matrices->param_offset;
        if (offset + last->param_offset + last->rows * last->cols > end)
            end = offset + last->param_offset + last->rows * last->cols;
    }
    if (first < end) {
        out->first = first / KEPT_ALIGN * KEPT_ALIGN;
        out->n_elems = (end - out->first + KEPT_ALIGN - 1) / KEPT_ALIGN * KEPT_ALIGN;
    }
    out->at = shards->nbytes;
    shards->nbytes += out->n_elems * zfi_dtype_nbytes(bucket->value_dtype);
    if (out->n_sharded && nbytes > shards->buffer_nbytes)
        shards->buffer_nbytes = nbytes;
    return out->n_sharded;
}

/* Elements that a rank owns of the residents of a bucket. */
static uint64_t count_resident(const zfi_buckets_t *buckets, const zfi_param_t *params, const zfi_bucket_t *bucket,
                               uint32_t rank) {
    uint64_t n = 0, first, end;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &params[buckets->params[bucket->first + i]];
        if (param->is_sharded)
            continue;
        zfi_bucket_owned(buckets, param, rank, &first, &end);
        n += end > first ? end - first : 0;
    }
    return n;
}

/* Published values: each rank sends as many as the one that has most. */
static void plan_values(zfi_buckets_t *buckets, const zfi_param_t *params) {
    uint64_t at = 0;
    for (uint32_t b = 0; b < buckets->n; b++) {
        zfi_bucket_t *bucket = &buckets->all[b];
        uint64_t most = 0;
        for (uint32_t r = 0; r < buckets->n_ranks; r++) {
            uint64_t n = count_resident(buckets, params, bucket, r);
            most = n > most ? n : most;
        }
        most = (most + KEPT_ALIGN - 1) / KEPT_ALIGN * KEPT_ALIGN;
        bucket->values_offset_nbytes = at;
        at += most * buckets->n_ranks * zfi_dtype_nbytes(bucket->value_dtype);
    }
    buckets->values_nbytes = at;
}

zf_status_t zfi_shards_plan(zfi_ranks_t *ranks) {
    zfi_shards_t *shards = ranks->shards;
    if (!zfi_shards_params(ranks->engine) || ranks->buckets->n == 0)
        return ZF_OK;
    shards->active = ZF_NO_ID;
    shards->direction = FORWARD;
    shards->all = calloc(ranks->buckets->n, sizeof *shards->all);
    shards->buffers = calloc(ranks->buckets->n, sizeof *shards->buffers);
    shards->is_held = calloc(ranks->n_params, 1);
    shards->n_holders = calloc(ranks->n_params, sizeof *shards->n_holders);
    if (!shards->all || !shards->buffers || !shards->is_held || !shards->n_holders)
        return ZF_ERR_MEMORY;
    for (uint32_t b = 0; b < ranks->buckets->n; b++)
        shards->n_whole += plan_bucket(ranks, b) != 0;
    plan_values(ranks->buckets, ranks->params);
    return ZF_OK;
}

static zf_status_t map_buffer(zfi_ranks_t *ranks, zfi_fetch_buffer_t *buffer, zf_error_t *err) {
    uint64_t nbytes = ranks->shards->buffer_nbytes;
    zf_status_t st = zfi_mirror_map(ranks, &buffer->mirror, NULL, nbytes, err);
    if (!st)
        st = zfi_memory_map_more(ranks, &buffer->arena, nbytes, "a bucket of parameters", err);
    if (st)
        zfi_mirror_free(ranks->engine, ranks->mem, &buffer->mirror);
    else if (buffer->mirror.arena.base)
        buffer->mirror.device = buffer->arena.base;
    return st;
}

/* So many buffers are mapped, and two in any case; never more than buckets. */
static zf_status_t need_buffers(zfi_ranks_t *ranks, uint32_t n, zf_error_t *err) {
    zfi_shards_t *shards = ranks->shards;
    zf_status_t st = ZF_OK;
    n = n > ZFI_LEAST_BUFFERS ? n : ZFI_LEAST_BUFFERS;
    n = n < shards->n_whole ? n : shards->n_whole;
    while (shards->n_buffers < n && !st) {
        zfi_fetch_buffer_t *buffer = &shards->buffers[shards->n_buffers];
        buffer->bucket = ZF_NO_ID;
        st = map_buffer(ranks, buffer, err);
        shards->n_buffers += !st;
    }
    return st;
}

zf_status_t zfi_shards_new(zfi_ranks_t *ranks, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!ranks->shards->all)
        return ZF_OK;
    if (ranks->shards->nbytes)
        st = zfi_memory_map_more(ranks, &ranks->shards->arena, ranks->shards->nbytes,
                                 "this rank's parts of the parameters", err);
    return st ? st : need_buffers(ranks, 0, err);
}

void zfi_shards_free(zfi_ranks_t *ranks) {
    for (uint32_t i = 0; i < ranks->shards->n_buffers && !zfi_ranks_holds_memory(ranks->engine); i++)
        zfi_mirror_free(ranks->engine, ranks->mem, &ranks->shards->buffers[i].mirror);
    free(ranks->shards->all);
    free(ranks->shards->buffers);
    free(ranks->shards->is_held);
    free(ranks->shards->n_holders);
    ranks->shards->all = NULL;
    ranks->shards->buffers = NULL;
    ranks->shards->is_held = NULL;
    ranks->shards->n_holders = NULL;
    ranks->shards->n_buffers = ranks->shards->n_whole = 0;
}

/* ---- this rank's parts ------------------------------------------------------------------------------------------- */

/* A kernel for each of this rank's tiles of a parameter, with bits that lie in a bucket from `whole` on, or, where that
 * is NULL, among this rank's parts. */
static void move_tiles(zfi_ranks_t *ranks, const zfi_param_t *param, unsigned char *whole, zfi_kernel_t kernel) {
    uint32_t number = ranks->buckets->of_param[param->id];
    const zfi_shard_t *shard = &ranks->shards->all[number];
    size_t elem = zfi_dtype_nbytes(param->dtype);
    for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
        const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
        for (uint32_t i = matrix->first_tile; i < matrix->first_tile + matrix->n_tiles; i++) {
            const zfi_tile_t *tile = &ranks->plan->tiles[i];
            uint64_t at = ranks->buckets->offset[param->id] + matrix->param_offset + tile->matrix_offset;
            zfi_place_args_t args = {
                .data = ranks->dev->data, .matrix = m, .first = tile->matrix_offset, .n = tile->n_elems};
            args.bits = whole ? whole + at * elem : ranks->shards->arena.base + shard->at + (at - shard->first) * elem;
            zfi_list_add(&ranks->engine->to_device, zfi_op_launch(kernel, &args, sizeof args));
        }
    }
}

/* As if all of it lay here, row by row. */
static void show_here(zfi_buckets_t *buckets, zfi_shards_t *shards, zfi_param_t *param) {
    uint32_t number = buckets->of_param[param->id];
    const zfi_shard_t *shard = &shards->all[number];
    uintptr_t first = (uintptr_t)shards->arena.base + shard->at; /* may wrap around, and back */
    int64_t stride = 1;
    param->visible =
        (unsigned char *)(first + (buckets->offset[param->id] - shard->first) * zfi_dtype_nbytes(param->dtype));
    for (int i = param->ndim - 1; i >= 0; i--) {
        param->strides[i] = stride;
        stride *= param->shape[i];
    }
    param->is_contiguous = 1;
    param->row_stride = (int64_t)param->cols;
    free(param->col_offset);
    param->col_offset = NULL;
}

zf_status_t zfi_shards_keep(zfi_ranks_t *ranks) {
    zf_status_t st;
    if (!ranks->shards->all)
        return ZF_OK;
    for (uint32_t i = 0; i < ranks->n_params; i++)
        if (ranks->params[i].is_sharded && ranks->params[i].has_state)
            move_tiles(ranks, &ranks->params[i], NULL, ZFI_KERNEL_READ_PLACE);
    st = zfi_device_run(ranks->engine, NULL, 0);
    for (uint32_t i = 0; i < ranks->n_params && !st; i++)
        if (ranks->params[i].is_sharded && ranks->params[i].has_state)
            show_here(ranks->buckets, ranks->shards, &ranks->params[i]);
    if (!st)
        zfi_plan_place(ranks->plan, ranks->params);
    return st;
}

void zfi_shards_take(zfi_ranks_t *ranks, uint32_t id) {
    const zfi_param_t *param = &ranks->params[id];
    const zfi_shards_t *shards = ranks->shards;
    if (param->is_sharded)
        move_tiles(ranks, param, shards->buffers[shards->all[ranks->buckets->of_param[id]].buffer].arena.base,
                   ZFI_KERNEL_WRITE_PLACE);
}

/* ---- whole buckets ----------------------------------------------------------------------------------------------- */

/* A bucket's values are on their way into a buffer, which nobody reads any more. */
static zf_status_t gather(zfi_ranks_t *ranks, uint32_t number, uint32_t to) {
    zfi_engine_t *engine = ranks->engine;
    zfi_shards_t *shards = ranks->shards;
    zfi_fetch_buffer_t *buffer = &shards->buffers[to];
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    if (buffer->bucket != ZF_NO_ID)
        shards->all[buffer->bucket].buffer = ZF_NO_ID;
    buffer->bucket = number;
    buffer->is_awaited = 0;
    buffer->used = ++shards->n_uses;
    shards->all[number].buffer = to;
    ranks->reduction->events = zfi_crc32(ranks->reduction->events, &number, sizeof number);
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, buffer->number, &engine->count.stall_ranks_ns));
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        if (param->is_sharded)
            move_tiles(ranks, param, buffer->arena.base, ZFI_KERNEL_READ_PLACE);
    }
    return zfi_ranks_fetch(ranks, number, buffer->arena.base, &buffer->number);
}

/* The one that nobody holds and that was used longest ago; but the active one, if that is to be spared. */
static uint32_t find_free(const zfi_shards_t *shards, int spares_active) {
    uint32_t found = ZF_NO_ID;
    for (uint32_t i = 0; i < shards->n_buffers; i++) {
        const zfi_fetch_buffer_t *buffer = &shards->buffers[i];
        if (buffer->bucket != ZF_NO_ID &&
            (shards->all[buffer->bucket].n_held || (spares_active && buffer->bucket == shards->active)))
            continue;
        if (found == ZF_NO_ID || buffer->used < shards->buffers[found].used)
            found = i;
    }
    return found;
}

/* The next one with sharded parameters from `from` on, in a direction. */
static uint32_t find_next(const zfi_buckets_t *buckets, const zfi_shards_t *shards, uint32_t from, int direction) {
    for (int64_t b = from; b >= 0 && b < buckets->n; b += direction)
        if (shards->all[b].n_sharded)
            return (uint32_t)b;
    return ZF_NO_ID;
}

/* Gathers what is expected next, if there is room. */
static zf_status_t prefetch(zfi_ranks_t *ranks) {
    const zfi_shards_t *shards = ranks->shards;
    uint32_t from = shards->active == ZF_NO_ID ? ranks->buckets->n - 1 : shards->active + (uint32_t)shards->direction;
    uint32_t next = find_next(ranks->buckets, ranks->shards, from, shards->direction), to = find_free(shards, 1);
    if (next == ZF_NO_ID || to == ZF_NO_ID || shards->all[next].buffer != ZF_NO_ID)
        return ZF_OK;
    return gather(ranks, next, to);
}

/* The bucket is on its way, or here; and it is the one that the host uses now. */
static zf_status_t activate(zfi_ranks_t *ranks, uint32_t number) {
    zfi_shards_t *shards = ranks->shards;
    zf_status_t st = ZF_OK;
    if (shards->all[number].buffer == ZF_NO_ID)
        st = gather(ranks, number, find_free(shards, 0));
    if (shards->active != ZF_NO_ID && shards->active != number)
        shards->direction = number > shards->active ? BACKWARD : FORWARD;
    shards->active = number;
    shards->buffers[shards->all[number].buffer].used = ++shards->n_uses;
    return st;
}

/* ---- fetch and release ------------------------------------------------------------------------------------------- */

static uint32_t n_listed(const zfi_ids_t *ids, uint32_t n_params) { return ids->n ? ids->n : n_params; }

/* Parameter number i of a list. */
static uint32_t listed(const zfi_ids_t *ids, uint32_t i) {
    uint32_t id = i;
    if (ids->n)
        memcpy(&id, (const char *)ids->first + (size_t)i * ids->step_nbytes, sizeof id);
    return id;
}

/* The bucket that a parameter, or what it is tied to, lies in; ZF_NO_ID: it is resident. */
static uint32_t bucket_of(const zfi_buckets_t *buckets, const zfi_param_t *params, uint32_t id) {
    return params[id].is_sharded ? buckets->of_param[params[id].owner] : ZF_NO_ID;
}

/* A parameter is held, or not any more; the memory that tied ones share, as long as one of them is. Returns its bucket,
 * if it is sharded. */
static uint32_t hold(zfi_ranks_t *ranks, uint32_t id, int is_held) {
    zfi_shards_t *shards = ranks->shards;
    uint32_t bucket = bucket_of(ranks->buckets, ranks->params, id);
    if (bucket == ZF_NO_ID || shards->is_held[id] == is_held)
        return bucket;
    shards->is_held[id] = (uint8_t)is_held;
    shards->n_holders[ranks->params[id].owner] += is_held ? 1 : UINT32_MAX;
    shards->all[bucket].n_held += is_held ? 1 : UINT32_MAX;
    return bucket;
}

/* Room for the buckets that are held and those of the list. */
static zf_status_t make_room(zfi_ranks_t *ranks, const zfi_ids_t *ids, zf_error_t *err) {
    const zfi_shards_t *shards = ranks->shards;
    uint32_t n_held = ids->n ? 0 : shards->n_whole;
    for (uint32_t b = 0; b < ranks->buckets->n && ids->n; b++) {
        uint32_t is_wanted = shards->all[b].n_held != 0;
        for (uint32_t i = 0; i < ids->n && !is_wanted; i++)
            is_wanted = bucket_of(ranks->buckets, ranks->params, listed(ids, i)) == b;
        n_held += is_wanted;
    }
    return need_buffers(ranks, n_held, err);
}

zf_status_t zfi_shards_fetch(zfi_ranks_t *ranks, const zfi_ids_t *ids, zf_error_t *err) {
    zfi_engine_t *engine = ranks->engine;
    zfi_shards_t *shards = ranks->shards;
    zf_status_t st = shards->all ? make_room(ranks, ids, err) : ZF_OK;
    if (st || !shards->all)
        return st;
    for (uint32_t i = 0; i < n_listed(ids, ranks->n_params) && !st; i++) {
        uint32_t bucket = hold(ranks, listed(ids, i), 1);
        if (bucket != ZF_NO_ID)
            st = activate(ranks, bucket);
    }
    if (!st)
        st = prefetch(ranks);
    for (uint32_t i = 0; i < shards->n_buffers && !st; i++) {
        zfi_fetch_buffer_t *buffer = &shards->buffers[i];
        if (buffer->bucket == ZF_NO_ID || !shards->all[buffer->bucket].n_held || buffer->is_awaited)
            continue;
        zfi_ranks_await_fetched(ranks, buffer->bucket, buffer->arena.base, buffer->number);
        buffer->is_awaited = 1;
    }
    zfi_list_mark(&engine->to_device, &shards->newest);
    return st ? st : zfi_send(engine);
}

zf_status_t zfi_shards_release(zfi_ranks_t *ranks, const zfi_ids_t *ids) {
    for (uint32_t i = 0; i < n_listed(ids, ranks->n_params) && ranks->shards->all; i++)
        (void)hold(ranks, listed(ids, i), 0);
    return ranks->shards->active == ZF_NO_ID || !ranks->shards->all ? ZF_OK : prefetch(ranks);
}

void *zfi_shards_address(const zfi_ranks_t *ranks, uint32_t id) {
    const zfi_param_t *param = &ranks->params[ranks->params[id].owner];
    if (!param->is_sharded)
        return param->visible;
    if (!ranks->shards->n_holders[param->id])
        return NULL;
    return ranks->shards->buffers[ranks->shards->all[bucket_of(ranks->buckets, ranks->params, id)].buffer].arena.base +
           ranks->buckets->offset[param->id] * zfi_dtype_nbytes(param->dtype);
}

uint32_t zfi_shards_held(const zfi_ranks_t *ranks) {
    for (uint32_t i = 0; i < ranks->n_params && ranks->shards->all; i++)
        if (ranks->shards->is_held[i])
            return i;
    return ZF_NO_ID;
}

/* ---- between steps ----------------------------------------------------------------------------------------------- */

void zfi_shards_forget(zfi_buckets_t *buckets, zfi_shards_t *shards) {
    for (uint32_t i = 0; i < shards->n_buffers; i++)
        shards->buffers[i].bucket = ZF_NO_ID;
    for (uint32_t b = 0; b < buckets->n && shards->all; b++)
        shards->all[b].buffer = ZF_NO_ID;
    shards->active = ZF_NO_ID;
    shards->direction = FORWARD;
}

void zfi_shards_begin(zfi_ranks_t *ranks) {
    zf_status_t st;
    if (!ranks->shards->all)
        return;
    zfi_shards_forget(ranks->buckets, ranks->shards);
    st = prefetch(ranks);
    if (st)
        zfi_list_fail(&ranks->engine->to_device, st);
}
