/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/instance/residency.c - taking, giving back and taking again (contract in residency.h). */
#include "instance/residency.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/error.h"
#include "zf/ext/residency.h"

static int is_on(const zfi_engine_t *engine) { return (engine->flags & ZF_CREATE_CAP_RELEASE) != 0; }

/* ---- what is held ------------------------------------------------------------------------------------------------ */

static zf_status_t remember(zfi_engine_t *engine, const zfi_held_t *held, zf_error_t *err) {
    zfi_residency_t *residency = &engine->residency;
    if (residency->n == residency->room) {
        uint32_t room = residency->room ? 2 * residency->room : 16;
        zfi_held_t *all = realloc(residency->all, room * sizeof *all);
        if (!all)
            return zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to remember what can be released");
        residency->all = all;
        residency->room = room;
    }
    residency->all[residency->n++] = *held;
    return ZF_OK;
}

/* Zeros where it was not remembered. */
static zfi_held_t forget(zfi_engine_t *engine, const void *memory) {
    zfi_residency_t *residency = &engine->residency;
    for (uint32_t i = 0; i < residency->n; i++)
        if (residency->all[i].memory == memory) {
            zfi_held_t held = residency->all[i];
            residency->all[i] = residency->all[--residency->n];
            return held;
        }
    return (zfi_held_t){0};
}

/* ---- page-locked memory ------------------------------------------------------------------------------------------ */

zf_status_t zfi_engine_pin(zfi_engine_t *engine, const zfi_arena_t *arena, int *out_is_pageable, zf_error_t *err) {
    zfi_held_t held = {.memory = arena->base, .nbytes = arena->total_nbytes};
    zf_status_t st = engine->ops->pin(engine->device, arena->base, arena->total_nbytes, out_is_pageable, err);
    if (st || !is_on(engine))
        return st;
    st = remember(engine, &held, err);
    if (st)
        engine->ops->unpin(engine->device, arena->base, arena->total_nbytes);
    return st;
}

void zfi_engine_unpin(zfi_engine_t *engine, const zfi_arena_t *arena) {
    if (!arena->total_nbytes)
        return;
    (void)forget(engine, arena->base);
    if (!(engine->residency.released & ZF_RELEASE_PINNED))
        engine->ops->unpin(engine->device, arena->base, arena->total_nbytes);
}

/* ---- device memory ----------------------------------------------------------------------------------------------- */

static void drop_image(zfi_engine_t *engine, zfi_arena_t *image) {
    zfi_engine_unpin(engine, image);
    zfi_arena_free(image);
}

static zf_status_t add_image(zfi_engine_t *engine, zfi_held_t *held, zf_error_t *err) {
    int is_pageable;
    (void)zfi_arena_take(&held->image, held->nbytes, 1);
    zf_status_t st = zfi_arena_map(&held->image, "a copy of device memory, for release", err);
    if (st)
        return st;
    st = zfi_engine_pin(engine, &held->image, &is_pageable, err);
    if (!st) {
        st = remember(engine, held, err);
        if (st)
            zfi_engine_unpin(engine, &held->image);
    }
    if (st)
        zfi_arena_free(&held->image);
    return st;
}

zf_status_t zfi_device_take(zfi_engine_t *engine, uint64_t nbytes, const char *what, void **out, zf_error_t *err) {
    zfi_held_t held = {.nbytes = nbytes, .is_device = 1};
    void *memory;
    zf_status_t st = engine->ops->alloc(engine->device, nbytes, what, &memory, err);
    held.memory = memory;
    if (!st && is_on(engine) && nbytes) {
        st = add_image(engine, &held, err);
        if (st)
            engine->ops->free(engine->device, memory, nbytes);
    }
    if (!st)
        *out = memory;
    return st;
}

void zfi_device_give(zfi_engine_t *engine, void *memory, uint64_t nbytes) {
    if (!memory)
        return;
    zfi_held_t held = forget(engine, memory);
    if (held.image.base)
        drop_image(engine, &held.image);
    engine->ops->free(engine->device, memory, nbytes);
}

/* ---- release and resume ------------------------------------------------------------------------------------------ */

static void *image_of(const zfi_held_t *held) { return held->image.base; }

/* Blocks of device memory, and one copy of each. */
typedef struct move {
    zfi_block_t *blocks;
    zfi_range_t *ranges;
    uint32_t n;
} move_t;

static zf_status_t plan_move(const zfi_engine_t *engine, int is_up, move_t *out, zf_error_t *err) {
    const zfi_residency_t *residency = &engine->residency;
    *out = (move_t){.blocks = calloc(residency->n + 1u, sizeof *out->blocks),
                    .ranges = calloc(residency->n + 1u, sizeof *out->ranges)};
    for (uint32_t i = 0; i < residency->n && out->blocks && out->ranges; i++) {
        const zfi_held_t *held = &residency->all[i];
        if (!held->is_device)
            continue;
        out->blocks[out->n] = (zfi_block_t){held->memory, held->nbytes};
        out->ranges[out->n++] = is_up ? (zfi_range_t){held->memory, image_of(held), held->nbytes}
                                      : (zfi_range_t){image_of(held), held->memory, held->nbytes};
    }
    return out->blocks && out->ranges ? ZF_OK : zfi_error(err, ZF_ERR_MEMORY, "residency", "no memory for a list");
}

static void end_move(move_t *move) {
    free(move->blocks);
    free(move->ranges);
}

static zf_status_t copy(zfi_engine_t *engine, const move_t *move, int is_up, zf_error_t *err) {
    zfi_op_t op = is_up ? zfi_op_up(move->ranges, move->n) : zfi_op_down(move->ranges, move->n);
    zf_status_t st = move->n ? zfi_enqueue(engine, engine->stream, &op, 1) : ZF_OK;
    (void)engine->ops->synchronise(engine->stream, engine->ops->mark(engine->stream), UINT64_MAX, NULL);
    if (!st && zfi_is_poisoned(engine))
        st = ZF_ERR_POISONED;
    return st ? zfi_error(err, st, "residency", "the device's memory could not be copied") : ZF_OK;
}

static void unpin_first(zfi_engine_t *engine, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!engine->residency.all[i].is_device)
            engine->ops->unpin(engine->device, engine->residency.all[i].memory, engine->residency.all[i].nbytes);
}

/* All of it or nothing. */
static zf_status_t pin_all(zfi_engine_t *engine, zf_error_t *err) {
    const zfi_residency_t *residency = &engine->residency;
    int is_pageable;
    zf_status_t st = ZF_OK;
    for (uint32_t i = 0; i < residency->n && !st; i++) {
        if (!residency->all[i].is_device)
            st =
                engine->ops->pin(engine->device, residency->all[i].memory, residency->all[i].nbytes, &is_pageable, err);
        if (st)
            unpin_first(engine, i);
    }
    return st;
}

zf_status_t zfi_residency_release(zfi_engine_t *engine, uint32_t what, zf_error_t *err) {
    move_t move;
    zf_status_t st = plan_move(engine, 0, &move, err);
    if (!st)
        st = copy(engine, &move, 0, err);
    if (!st)
        st = engine->ops->release(engine->device, move.blocks, move.n, err);
    if (!st) {
        engine->residency.released = what;
        if (what & ZF_RELEASE_PINNED)
            unpin_first(engine, engine->residency.n);
    }
    end_move(&move);
    return st;
}

zf_status_t zfi_residency_resume(zfi_engine_t *engine, zf_error_t *err) {
    int has_unpinned = (engine->residency.released & ZF_RELEASE_PINNED) != 0;
    move_t move;
    zf_status_t st = plan_move(engine, 1, &move, err);
    if (!st && has_unpinned)
        st = pin_all(engine, err);
    if (!st) {
        st = engine->ops->resume(engine->device, move.blocks, move.n, err);
        if (st && has_unpinned)
            unpin_first(engine, engine->residency.n);
    }
    if (!st) {
        engine->residency.released = 0;
        st = copy(engine, &move, 1, err);
    }
    end_move(&move);
    return st;
}

/* ---- what is asked meanwhile ------------------------------------------------------------------------------------- */

void *zfi_residency_image(const zfi_engine_t *engine, const void *memory, uint64_t nbytes) {
    const zfi_residency_t *residency = &engine->residency;
    for (uint32_t i = 0; i < residency->n && residency->released; i++) {
        const zfi_held_t *held = &residency->all[i];
        uint64_t at = (uint64_t)((uintptr_t)memory - (uintptr_t)held->memory);
        if (held->is_device && at < held->nbytes && nbytes <= held->nbytes - at)
            return held->image.base + at;
    }
    return NULL;
}

uint64_t zfi_residency_images_nbytes(const zfi_engine_t *engine, uint64_t device_nbytes) {
    return is_on(engine) ? device_nbytes : 0;
}
