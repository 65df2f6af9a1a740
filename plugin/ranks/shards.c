/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/shards.c - sharded parameters (contract in shards.h). */
#include "ranks/shards.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "instance/device_memory.h"
#include "instance/memory.h"
#include "ranks/mirror.h"
#include "ranks/ranks.h"
#include "ranks/sums.h"

enum { LINE = 64, FORWARD = -1, BACKWARD = 1 };

static uint64_t up_to_line(uint64_t nbytes) { return (nbytes + LINE - 1) / LINE * LINE; }

/* ---- what is sharded --------------------------------------------------------------------------------------------- */

static int is_whole(uint32_t whole_nbytes, const zfi_param_t *param) {
    return !param->has_state || param->ndim - param->n_batch_axes <= 1 ||
           param->n_elems * zfi_dtype_nbytes(param->dtype) <= whole_nbytes;
}

void zfi_shards_mark(const zfi_engine_t *engine, uint32_t whole_nbytes, zfi_param_t *params, uint32_t n) {
    for (uint32_t i = 0; i < n && zfi_shards_params(engine); i++)
        params[i].is_sharded =
            params[i].owner == i ? !is_whole(whole_nbytes, &params[i]) : params[params[i].owner].is_sharded;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Room for this rank's part of a bucket, and for all of it. Returns the sharded parameters in it. */
static uint32_t plan_bucket(zfi_ranks_t *ranks, uint32_t number) {
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    zfi_shards_t *shards = ranks->shards;
    zfi_shard_t *out = &shards->all[number];
    uint64_t elem = zfi_dtype_nbytes(bucket->value_dtype), part = bucket->part_elems * elem;
    *out = (zfi_shard_t){.buffer = ZF_NO_ID, .at = shards->nbytes};
    for (uint32_t i = 0; i < bucket->n_params; i++)
        out->n_sharded += ranks->params[ranks->buckets->params[bucket->first + i]].is_sharded != 0;
    if (!out->n_sharded)
        return 0;
    shards->nbytes += up_to_line(part);
    if (bucket->n_elems * elem > shards->buffer_nbytes)
        shards->buffer_nbytes = bucket->n_elems * elem;
    if (bucket->place.n_ranks * part > shards->parts_nbytes)
        shards->parts_nbytes = bucket->place.n_ranks * part;
    return out->n_sharded;
}

zf_status_t zfi_shards_plan(zfi_ranks_t *ranks) {
    zfi_shards_t *shards = ranks->shards;
    zfi_shards_free(ranks);
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
    return ZF_OK;
}

/* As many buffers are mapped, and two in any case; never more than buckets. */
static zf_status_t need_buffers(zfi_ranks_t *ranks, uint32_t n, zf_error_t *err) {
    zfi_shards_t *shards = ranks->shards;
    zf_status_t st = ZF_OK;
    n = n > ZFI_LEAST_BUFFERS ? n : ZFI_LEAST_BUFFERS;
    n = n < shards->n_whole ? n : shards->n_whole;
    while (shards->n_buffers < n && !st) {
        zfi_fetch_buffer_t *buffer = &shards->buffers[shards->n_buffers];
        buffer->bucket = ZF_NO_ID;
        st = zfi_memory_map_more(ranks, &buffer->arena, shards->buffer_nbytes, "a bucket of parameters", err);
        shards->n_buffers += !st;
    }
    return st;
}

zf_status_t zfi_shards_new(zfi_ranks_t *ranks, zf_error_t *err) {
    zfi_shards_t *shards = ranks->shards;
    zf_status_t st;
    if (!shards->all || !shards->n_whole)
        return ZF_OK;
    shards->parts.bucket = ZF_NO_ID;
    st = zfi_memory_map_more(ranks, &shards->arena, shards->nbytes, "this rank's parts of the parameters", err);
    if (!st)
        st = zfi_memory_map_more(ranks, &shards->parts.arena, shards->parts_nbytes, "the parts of a bucket", err);
    if (!st)
        st = zfi_mirror_map(ranks, &shards->parts.mirror, shards->parts.arena.base, shards->parts_nbytes, err);
    return st ? st : need_buffers(ranks, 0, err);
}

void zfi_shards_free(zfi_ranks_t *ranks) {
    if (ranks->shards->parts.mirror.device && !zfi_ranks_holds_memory(ranks->engine))
        zfi_mirror_free(ranks->engine, ranks->mem, &ranks->shards->parts.mirror);
    free(ranks->shards->all);
    free(ranks->shards->buffers);
    free(ranks->shards->is_held);
    free(ranks->shards->n_holders);
    *ranks->shards = (zfi_shards_t){0};
}

/* ---- this rank's parts ------------------------------------------------------------------------------------------- */

/* The place where this rank's slice of a matrix is kept. */
static unsigned char *kept(const zfi_ranks_t *ranks, const zfi_matrix_t *matrix) {
    uint32_t number = ranks->buckets->of_param[matrix->param];
    return ranks->shards->arena.base + ranks->shards->all[number].at +
           matrix->own.at * zfi_dtype_nbytes(ranks->buckets->all[number].value_dtype);
}

/* A kernel for each of this rank's slices of a parameter: its bits lie in a bucket's flat memory, or, where that is
 * NULL, among this rank's parts. */
static void move_slices(zfi_ranks_t *ranks, const zfi_param_t *param, unsigned char *flat, zfi_kernel_t kernel) {
    for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
        const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
        uint64_t at = ranks->buckets->offset[param->id] + matrix->param_offset + matrix->own.first;
        zfi_place_args_t args = {.data = ranks->dev->data, .one = {.matrix = m, .n = matrix->own.n}};
        args.bits = flat ? flat + at * zfi_dtype_nbytes(param->dtype) : kept(ranks, matrix);
        if (args.one.n)
            zfi_list_add(&ranks->engine->to_device, zfi_op_launch(kernel, &args, sizeof args));
    }
}

/* Its slices lie here from now on, one behind the other, row by row, and it is fetched so, too: whatever strides it was
 * bound with. */
static void show_here(const zfi_ranks_t *ranks, zfi_param_t *param) {
    param->visible = kept(ranks, &ranks->plan->matrices[param->first_matrix]);
    param->is_kept = param->is_contiguous = 1;
    free(param->col_offset);
    param->col_offset = NULL;
}

zf_status_t zfi_shards_keep(zfi_ranks_t *ranks) {
    if (!ranks->shards->all)
        return ZF_OK;
    for (uint32_t i = 0; i < ranks->n_params; i++)
        if (ranks->params[i].is_sharded && ranks->params[i].has_state)
            move_slices(ranks, &ranks->params[i], NULL, ZFI_KERNEL_READ_PLACE);
    zf_status_t st = zfi_device_run(ranks->engine, NULL, 0);
    for (uint32_t i = 0; i < ranks->n_params && !st; i++)
        if (ranks->params[i].is_sharded && ranks->params[i].has_state)
            show_here(ranks, &ranks->params[i]);
    if (!st)
        zfi_plan_place(ranks->plan, ranks->params);
    return st;
}

/* The memory where the host finds a bucket that is fetched. */
static unsigned char *flat_of(const zfi_shards_t *shards, uint32_t number) {
    return shards->buffers[shards->all[number].buffer].arena.base;
}

void zfi_shards_take(zfi_ranks_t *ranks, uint32_t id) {
    const zfi_param_t *param = &ranks->params[id];
    const zfi_shards_t *shards = ranks->shards;
    if (param->is_sharded)
        move_slices(ranks, param, flat_of(shards, ranks->buckets->of_param[id]), ZFI_KERNEL_WRITE_PLACE);
}

/* ---- whole buckets ----------------------------------------------------------------------------------------------- */

/* A bucket's parts are on their way. Those that were there before are taken apart, or void. */
static zf_status_t gather(zfi_ranks_t *ranks, uint32_t number) {
    zfi_engine_t *engine = ranks->engine;
    zfi_shards_t *shards = ranks->shards;
    zfi_fetch_parts_t *parts = &shards->parts;
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    uint64_t part = bucket->part_elems * zfi_dtype_nbytes(bucket->value_dtype);
    uint32_t to = zfi_own_part(engine, bucket);
    zfi_move_args_t own =
        zfi_sums_cut(ranks, number, shards->arena.base + shards->all[number].at, parts->arena.base + to * part);
    parts->bucket = number;
    ranks->reduction->events = zfi_crc32(ranks->reduction->events, &number, sizeof number);
    zfi_list_add(&engine->to_device, zfi_op_wait(&engine->lines.shared, parts->number, &engine->count.stall_ranks_ns));
    own.moves += bucket->n_moves;
    own.n = 1;
    own.dtype = bucket->value_dtype;
    zfi_list_add(&engine->to_device, zfi_op_launch(ZFI_KERNEL_MOVE, &own, sizeof own));
    return zfi_ranks_fetch(ranks, number, parts->arena.base, &parts->number);
}

/* The one that nobody holds and that was used longest ago. */
static uint32_t find_free(const zfi_shards_t *shards) {
    uint32_t found = ZF_NO_ID;
    for (uint32_t i = 0; i < shards->n_buffers; i++) {
        const zfi_fetch_buffer_t *buffer = &shards->buffers[i];
        if (buffer->bucket != ZF_NO_ID && shards->all[buffer->bucket].n_held)
            continue;
        if (found == ZF_NO_ID || buffer->used < shards->buffers[found].used)
            found = i;
    }
    return found;
}

/* The device stream takes the slices of all ranks from their parts to where they lie in the bucket, in a buffer. */
static void take_apart(zfi_ranks_t *ranks, uint32_t number) {
    zfi_shards_t *shards = ranks->shards;
    uint32_t to = find_free(shards);
    zfi_fetch_buffer_t *buffer = &shards->buffers[to];
    zfi_move_args_t args = zfi_sums_cut(ranks, number, buffer->arena.base, shards->parts.arena.base);
    if (buffer->bucket != ZF_NO_ID)
        shards->all[buffer->bucket].buffer = ZF_NO_ID;
    buffer->bucket = number;
    shards->all[number].buffer = to;
    zfi_ranks_await_fetched(ranks, number, shards->parts.arena.base, shards->parts.number);
    args.dtype = ranks->buckets->all[number].value_dtype;
    args.goes_back = 1;
    zfi_list_add(&ranks->engine->to_device, zfi_op_launch(ZFI_KERNEL_MOVE, &args, sizeof args));
    shards->parts.bucket = ZF_NO_ID;
}

/* The next one with sharded parameters from `from` on, in a direction. */
static uint32_t find_next(const zfi_buckets_t *buckets, const zfi_shards_t *shards, uint32_t from, int direction) {
    for (int64_t b = from; b >= 0 && b < buckets->n; b += direction)
        if (shards->all[b].n_sharded)
            return (uint32_t)b;
    return ZF_NO_ID;
}

/* Gathers what is expected next, if it is not here. */
static zf_status_t prefetch(zfi_ranks_t *ranks) {
    const zfi_shards_t *shards = ranks->shards;
    uint32_t from = shards->active == ZF_NO_ID ? ranks->buckets->n - 1 : shards->active + (uint32_t)shards->direction;
    uint32_t next = find_next(ranks->buckets, ranks->shards, from, shards->direction);
    if (next == ZF_NO_ID || shards->parts.bucket == next || shards->all[next].buffer != ZF_NO_ID)
        return ZF_OK;
    return gather(ranks, next);
}

/* The bucket is here, in the order of the device stream; and it is the one that the host uses now. */
static zf_status_t activate(zfi_ranks_t *ranks, uint32_t number) {
    zfi_shards_t *shards = ranks->shards;
    if (shards->all[number].buffer == ZF_NO_ID) {
        zf_status_t st = shards->parts.bucket == number ? ZF_OK : gather(ranks, number);
        if (st)
            return st;
        take_apart(ranks, number);
    }
    if (shards->active != ZF_NO_ID && shards->active != number)
        shards->direction = number > shards->active ? BACKWARD : FORWARD;
    shards->active = number;
    shards->buffers[shards->all[number].buffer].used = ++shards->n_uses;
    return ZF_OK;
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

/* The bucket that a parameter, or what it is tied to, lies in; ZF_NO_ID: it is whole. */
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
    zfi_list_mark(&engine->to_device, &shards->newest);
    if (!st)
        st = prefetch(ranks);
    return st ? st : zfi_send(engine);
}

void zfi_shards_release(zfi_ranks_t *ranks, const zfi_ids_t *ids) {
    for (uint32_t i = 0; i < n_listed(ids, ranks->n_params) && ranks->shards->all; i++)
        (void)hold(ranks, listed(ids, i), 0);
}

void *zfi_shards_address(const zfi_ranks_t *ranks, uint32_t id) {
    const zfi_param_t *param = &ranks->params[ranks->params[id].owner];
    if (!param->is_sharded)
        return param->visible;
    if (!ranks->shards->n_holders[param->id])
        return NULL;
    return flat_of(ranks->shards, bucket_of(ranks->buckets, ranks->params, id)) +
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
    shards->parts.bucket = shards->active = ZF_NO_ID;
    shards->direction = FORWARD;
}

void zfi_shards_begin(zfi_ranks_t *ranks) {
    if (!ranks->shards->all)
        return;
    zfi_shards_forget(ranks->buckets, ranks->shards);
    zf_status_t st = prefetch(ranks);
    if (st)
        zfi_list_fail(&ranks->engine->to_device, st);
}
