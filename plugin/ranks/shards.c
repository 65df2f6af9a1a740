/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/shards.c - sharded parameters (contract in shards.h). */
#include "ranks/shards.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/error.h"
#include "instance/device_memory.h"
#include "instance/memory.h"
#include "instance/tables.h"
#include "ranks/mirror.h"
#include "ranks/ranks.h"

enum { KEPT_ALIGN = 64, FORWARD = -1, BACKWARD = 1 };

/* ---- what is sharded --------------------------------------------------------------------------------------------- */

static int is_resident(const zfi_engine_t *engine, const zfi_param_t *param) {
    return !param->has_state || param->ndim - param->n_batch_axes <= 1 ||
           param->n_elems * zfi_dtype_nbytes(param->dtype) <= engine->config.resident_bytes;
}

void zfi_shards_mark(const zfi_engine_t *engine, zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n && zfi_shards_params(engine); i++)
        params[i].is_sharded =
            params[i].owner == i ? !is_resident(engine, &params[i]) : params[params[i].owner].is_sharded;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* This rank's part of a bucket, as far as its matrices reach. Returns the sharded parameters in it. */
static uint32_t plan_bucket(zfi_run_t *run, uint32_t number) {
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    zfi_shards_t *shards = &run->shards;
    zfi_shard_t *out = &shards->all[number];
    uint64_t first = UINT64_MAX, end = 0, nbytes = bucket->n_elems * zfi_dtype_nbytes(bucket->value_dtype);
    *out = (zfi_shard_t){.buffer = ZF_NO_ID};
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[bucket->first + i]];
        uint32_t first_matrix, n_matrices = zfi_owned_matrices(&run->plan, param, &first_matrix);
        const zfi_matrix_t *matrices = &run->plan.matrices[first_matrix], *last = matrices + n_matrices - 1;
        uint64_t offset = run->buckets.offset[param->id];
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

zf_status_t zfi_shards_plan(zfi_run_t *run) {
    zfi_shards_t *shards = &run->shards;
    if (!zfi_shards_params(run->engine) || run->buckets.n == 0)
        return ZF_OK;
    shards->active = ZF_NO_ID;
    shards->direction = FORWARD;
    shards->all = calloc(run->buckets.n, sizeof *shards->all);
    shards->buffers = calloc(run->buckets.n, sizeof *shards->buffers);
    shards->is_held = calloc(run->n_params, 1);
    shards->n_holders = calloc(run->n_params, sizeof *shards->n_holders);
    if (!shards->all || !shards->buffers || !shards->is_held || !shards->n_holders)
        return ZF_ERR_MEMORY;
    for (uint32_t b = 0; b < run->buckets.n; b++)
        shards->n_whole += plan_bucket(run, b) != 0;
    plan_values(&run->buckets, run->params);
    return ZF_OK;
}

static zf_status_t map_buffer(zfi_run_t *run, zfi_fetch_buffer_t *buffer, zf_error_t *err) {
    uint64_t nbytes = run->shards.buffer_nbytes;
    zf_status_t st = zfi_mirror_map(run, &buffer->mirror, NULL, nbytes, err);
    if (!st)
        st = zfi_memory_map_more(run, &buffer->arena, nbytes, "a bucket of parameters", err);
    if (st)
        zfi_mirror_free(run->engine, &run->mem, &buffer->mirror);
    else if (buffer->mirror.arena.base)
        buffer->mirror.device = buffer->arena.base;
    return st;
}

/* So many buffers are mapped, and two in any case; never more than buckets. */
static zf_status_t need_buffers(zfi_run_t *run, uint32_t n, zf_error_t *err) {
    zfi_shards_t *shards = &run->shards;
    zf_status_t st = ZF_OK;
    n = n > ZFI_LEAST_BUFFERS ? n : ZFI_LEAST_BUFFERS;
    n = n < shards->n_whole ? n : shards->n_whole;
    while (shards->n_buffers < n && !st) {
        zfi_fetch_buffer_t *buffer = &shards->buffers[shards->n_buffers];
        buffer->bucket = ZF_NO_ID;
        st = map_buffer(run, buffer, err);
        shards->n_buffers += !st;
    }
    return st;
}

zf_status_t zfi_shards_new(zfi_run_t *run, zf_error_t *err) {
    zf_status_t st = ZF_OK;
    if (!run->shards.all)
        return ZF_OK;
    if (run->shards.nbytes)
        st = zfi_memory_map_more(run, &run->shards.arena, run->shards.nbytes, "this rank's parts of the parameters",
                                 err);
    return st ? st : need_buffers(run, 0, err);
}

void zfi_shards_free(zfi_run_t *run) {
    for (uint32_t i = 0; i < run->shards.n_buffers && !zfi_ranks_holds_memory(run->engine); i++)
        zfi_mirror_free(run->engine, &run->mem, &run->shards.buffers[i].mirror);
    free(run->shards.all);
    free(run->shards.buffers);
    free(run->shards.is_held);
    free(run->shards.n_holders);
    run->shards.all = NULL;
    run->shards.buffers = NULL;
    run->shards.is_held = NULL;
    run->shards.n_holders = NULL;
    run->shards.n_buffers = run->shards.n_whole = 0;
}

/* ---- this rank's parts ------------------------------------------------------------------------------------------- */

/* A kernel for each of this rank's tiles of a parameter, with bits that lie in a bucket from `whole` on, or, where that
 * is NULL, among this rank's parts. */
static void move_tiles(zfi_run_t *run, const zfi_param_t *param, unsigned char *whole, zfi_kernel_t kernel) {
    uint32_t number = run->buckets.of_param[param->id];
    const zfi_shard_t *shard = &run->shards.all[number];
    size_t elem = zfi_dtype_nbytes(param->dtype);
    for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
        const zfi_matrix_t *matrix = &run->plan.matrices[m];
        for (uint32_t i = matrix->first_tile; i < matrix->first_tile + matrix->n_tiles; i++) {
            const zfi_tile_t *tile = &run->plan.tiles[i];
            uint64_t at = run->buckets.offset[param->id] + matrix->param_offset + tile->matrix_offset;
            zfi_place_args_t args = {
                .data = run->dev.data, .matrix = m, .first = tile->matrix_offset, .n = tile->n_elems};
            args.bits = whole ? whole + at * elem : run->shards.arena.base + shard->at + (at - shard->first) * elem;
            zfi_list_add(&run->engine->to_device, zfi_op_launch(kernel, &args, sizeof args));
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

zf_status_t zfi_shards_keep(zfi_run_t *run) {
    zf_status_t st;
    if (!run->shards.all)
        return ZF_OK;
    for (uint32_t i = 0; i < run->n_params; i++)
        if (run->params[i].is_sharded && run->params[i].has_state)
            move_tiles(run, &run->params[i], NULL, ZFI_KERNEL_READ_PLACE);
    st = zfi_device_run(run->engine, NULL, 0);
    for (uint32_t i = 0; i < run->n_params && !st; i++)
        if (run->params[i].is_sharded && run->params[i].has_state)
            show_here(&run->buckets, &run->shards, &run->params[i]);
    if (st)
        return st;
    zfi_plan_place(&run->plan, run->params);
    return zfi_tables_place(run, NULL);
}

void zfi_shards_take(zfi_run_t *run, uint32_t id) {
    const zfi_param_t *param = &run->params[id];
    const zfi_shards_t *shards = &run->shards;
    if (param->is_sharded)
        move_tiles(run, param, shards->buffers[shards->all[run->buckets.of_param[id]].buffer].arena.base,
                   ZFI_KERNEL_WRITE_PLACE);
}

/* ---- whole buckets ----------------------------------------------------------------------------------------------- */

/* A bucket's values are on their way into a buffer, which nobody reads any more. */
static zf_status_t gather(zfi_run_t *run, uint32_t number, uint32_t to) {
    zfi_engine_t *engine = run->engine;
    zfi_shards_t *shards = &run->shards;
    zfi_fetch_buffer_t *buffer = &shards->buffers[to];
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    if (buffer->bucket != ZF_NO_ID)
        shards->all[buffer->bucket].buffer = ZF_NO_ID;
    buffer->bucket = number;
    buffer->is_awaited = 0;
    buffer->used = ++shards->n_uses;
    shards->all[number].buffer = to;
    run->reduction.events = zfi_crc32(run->reduction.events, &number, sizeof number);
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, buffer->number, &engine->count.stall_ranks_ns));
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[bucket->first + i]];
        if (param->is_sharded)
            move_tiles(run, param, buffer->arena.base, ZFI_KERNEL_READ_PLACE);
    }
    return zfi_ranks_fetch(run, number, buffer->arena.base, &buffer->number);
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
static zf_status_t prefetch(zfi_run_t *run) {
    const zfi_shards_t *shards = &run->shards;
    uint32_t from = shards->active == ZF_NO_ID ? run->buckets.n - 1 : shards->active + (uint32_t)shards->direction;
    uint32_t next = find_next(&run->buckets, &run->shards, from, shards->direction), to = find_free(shards, 1);
    if (next == ZF_NO_ID || to == ZF_NO_ID || shards->all[next].buffer != ZF_NO_ID)
        return ZF_OK;
    return gather(run, next, to);
}

/* The bucket is on its way, or here; and it is the one that the host uses now. */
static zf_status_t activate(zfi_run_t *run, uint32_t number) {
    zfi_shards_t *shards = &run->shards;
    zf_status_t st = ZF_OK;
    if (shards->all[number].buffer == ZF_NO_ID)
        st = gather(run, number, find_free(shards, 0));
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
static uint32_t hold(zfi_run_t *run, uint32_t id, int is_held) {
    zfi_shards_t *shards = &run->shards;
    uint32_t bucket = bucket_of(&run->buckets, run->params, id);
    if (bucket == ZF_NO_ID || shards->is_held[id] == is_held)
        return bucket;
    shards->is_held[id] = (uint8_t)is_held;
    shards->n_holders[run->params[id].owner] += is_held ? 1 : UINT32_MAX;
    shards->all[bucket].n_held += is_held ? 1 : UINT32_MAX;
    return bucket;
}

/* Room for the buckets that are held and those of the list. */
static zf_status_t make_room(zfi_run_t *run, const zfi_ids_t *ids, zf_error_t *err) {
    const zfi_shards_t *shards = &run->shards;
    uint32_t n_held = ids->n ? 0 : shards->n_whole;
    for (uint32_t b = 0; b < run->buckets.n && ids->n; b++) {
        uint32_t is_wanted = shards->all[b].n_held != 0;
        for (uint32_t i = 0; i < ids->n && !is_wanted; i++)
            is_wanted = bucket_of(&run->buckets, run->params, listed(ids, i)) == b;
        n_held += is_wanted;
    }
    return need_buffers(run, n_held, err);
}

zf_status_t zfi_shards_fetch(zfi_run_t *run, const zfi_ids_t *ids, zf_error_t *err) {
    zfi_engine_t *engine = run->engine;
    zfi_shards_t *shards = &run->shards;
    zf_status_t st = shards->all ? make_room(run, ids, err) : ZF_OK;
    if (st || !shards->all)
        return st;
    for (uint32_t i = 0; i < n_listed(ids, run->n_params) && !st; i++) {
        uint32_t bucket = hold(run, listed(ids, i), 1);
        if (bucket != ZF_NO_ID)
            st = activate(run, bucket);
    }
    if (!st)
        st = prefetch(run);
    for (uint32_t i = 0; i < shards->n_buffers && !st; i++) {
        zfi_fetch_buffer_t *buffer = &shards->buffers[i];
        if (buffer->bucket == ZF_NO_ID || !shards->all[buffer->bucket].n_held || buffer->is_awaited)
            continue;
        zfi_ranks_await_fetched(run, buffer->bucket, buffer->arena.base, buffer->number);
        buffer->is_awaited = 1;
    }
    zfi_list_mark(&engine->to_device, &shards->newest);
    return st ? st : zfi_send(engine);
}

zf_status_t zfi_shards_release(zfi_run_t *run, const zfi_ids_t *ids) {
    for (uint32_t i = 0; i < n_listed(ids, run->n_params) && run->shards.all; i++)
        (void)hold(run, listed(ids, i), 0);
    return run->shards.active == ZF_NO_ID || !run->shards.all ? ZF_OK : prefetch(run);
}

void *zfi_shards_address(const zfi_run_t *run, uint32_t id) {
    const zfi_param_t *param = &run->params[run->params[id].owner];
    if (!param->is_sharded)
        return param->visible;
    if (!run->shards.n_holders[param->id])
        return NULL;
    return run->shards.buffers[run->shards.all[bucket_of(&run->buckets, run->params, id)].buffer].arena.base +
           run->buckets.offset[param->id] * zfi_dtype_nbytes(param->dtype);
}

uint32_t zfi_shards_held(const zfi_run_t *run) {
    for (uint32_t i = 0; i < run->n_params && run->shards.all; i++)
        if (run->shards.is_held[i])
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

void zfi_shards_begin(zfi_run_t *run) {
    zf_status_t st;
    if (!run->shards.all)
        return;
    zfi_shards_forget(&run->buckets, &run->shards);
    st = prefetch(run);
    if (st)
        zfi_list_fail(&run->engine->to_device, st);
}
