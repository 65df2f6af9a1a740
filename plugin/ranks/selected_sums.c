/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/selected_sums.c - the packed gradient of selected channels (contract in selected_sums.h). */
#include "ranks/selected_sums.h"

#include <string.h>

#include "instance/gradient_place.h"
#include "instance/memory.h"
#include "instance/tables.h"
#include "ranks/collective.h"
#include "ranks/mirror.h"

/* ---- which elements of a slice are selected ---------------------------------------------------------------------- */

/* Rows are channels: one by one, or all of them. */
static uint64_t take_rows(const zfi_matrix_t *matrix, const uint32_t *index, const zfi_slice_t *slice,
                          zfi_selected_fn fn, void *arg) {
    uint64_t first_row = slice->first / matrix->cols, n_rows = slice->n / matrix->cols, n = 0;
    for (uint32_t pos = 0; pos < matrix->k; pos++) {
        if (index[pos] - first_row >= n_rows) /* before it: wraps around */
            continue;
        if (fn)
            fn(pos * matrix->cols, matrix->cols, arg);
        n += matrix->cols;
    }
    return n;
}

uint64_t zfi_selected_stretches(const zfi_matrix_t *matrix, const uint32_t *index, const zfi_slice_t *slice,
                                zfi_selected_fn fn, void *arg) {
    uint64_t row_elems = matrix->is_choosable ? matrix->k : matrix->cols; /* where columns, or all, are selected */
    uint64_t at = slice->first / matrix->cols * row_elems, n = slice->n / matrix->cols * row_elems;
    if (matrix->k == 0)
        return 0;
    if (matrix->channels_are_rows && matrix->is_choosable)
        return take_rows(matrix, index, slice, fn, arg);
    if (fn && n)
        fn(at, n, arg);
    return n;
}

/* ---- a bucket ---------------------------------------------------------------------------------------------------- */

/* Between the compact gradient and what travels: at once, or noted for the device to do. */
typedef struct moving {
    unsigned char *grad;   /* the compact gradient, where the host finds it */
    const uint32_t *index; /* the selected channels. The device's list: the host's may not have followed a choice */
    unsigned char *all;    /* what travels, of all ranks */
    uint64_t from, packed; /* elements: of the present matrix from `grad` on, of what comes next from `all` on */
    int is_counting, is_unpacking;
    size_t elem;       /* bytes of an element */
    zfi_move_t *moves; /* NULL: at once */
    uint64_t n;
} moving_t;

static void note(moving_t *moving, uint64_t from, uint64_t n) {
    zfi_move_t *last = moving->n ? &moving->moves[moving->n - 1] : NULL;
    if (last && last->from + last->n_elems == from && last->to + last->n_elems == moving->packed)
        last->n_elems += n;
    else
        moving->moves[moving->n++] = (zfi_move_t){from, moving->packed, n};
}

static void move(uint64_t at, uint64_t n, void *arg) {
    moving_t *moving = arg;
    unsigned char *grad = moving->grad + (moving->from + at) * moving->elem;
    unsigned char *there = moving->all + moving->packed * moving->elem;
    if (moving->moves)
        note(moving, moving->from + at, n);
    else
        memcpy(moving->is_unpacking ? grad : there, moving->is_unpacking ? there : grad, n * moving->elem);
    moving->packed += n;
}

/* What a rank owns of the selected channels of a bucket is moved, or counted. Returns its elements. */
static uint64_t take_part(const zfi_ranks_t *ranks, moving_t *moving, const zfi_bucket_t *bucket, uint32_t rank) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        if (param->is_sharded)
            continue;
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
            moving->from = matrix->grad_base / moving->elem;
            n += zfi_selected_stretches(matrix, moving->index + matrix->index_base, &matrix->slices[rank],
                                        moving->is_counting ? NULL : move, moving);
        }
    }
    return n;
}

/* Noted moves, on the stream of gradients. */
static void send(zfi_engine_t *engine, moving_t *moving, zfi_dtype_t dtype) {
    zfi_move_args_t args = {moving->moves, moving->n, dtype, moving->is_unpacking, moving->grad, moving->all};
    zfi_op_t op = zfi_op_launch(ZFI_KERNEL_MOVE, &args, sizeof args);
    if (!moving->n)
        return;
    (void)zfi_enqueue(engine, engine->ranks_stream, &op, 1); /* a failure has ended the instance */
    moving->moves += moving->n;
    moving->n = 0;
}

enum { MOST_LAUNCHES = 64 };

/* Launches that are sent together. */
typedef struct launches {
    zfi_gather_args_t args[MOST_LAUNCHES];
    zfi_op_t ops[MOST_LAUNCHES];
    uint32_t n;
} launches_t;

static void launch(zfi_engine_t *engine, launches_t *launches) {
    if (launches->n)
        (void)zfi_enqueue(engine, engine->ranks_stream, launches->ops,
                          launches->n); /* a failure has ended the instance */
    launches->n = 0;
}

static void add_launch(zfi_engine_t *engine, launches_t *launches, const zfi_gather_args_t *args) {
    if (launches->n == MOST_LAUNCHES)
        launch(engine, launches);
    launches->args[launches->n] = *args;
    launches->ops[launches->n] = zfi_op_launch(ZFI_KERNEL_GATHER, &launches->args[launches->n], sizeof *args);
    launches->n++;
}

/* At once, in tables of this matrix alone: the device's may be out of the thread's reach. */
static void gather_here(const zfi_ranks_t *ranks, const zfi_param_t *param, const zfi_gather_args_t *args) {
    const zfi_data_param_t dtype = {.grad_dtype = param->grad_dtype};
    zfi_data_matrix_t row = zfi_tables_own_row(param, &ranks->plan->matrices[args->matrix]);
    const zfi_data_t data = {.params = &dtype,
                             .matrices = &row,
                             .grad = zfi_mirrored(ranks, ranks->dev->head.grad),
                             .index = zfi_mirrored(ranks, ranks->dev->head.index)};
    const zfi_gather_args_t here = {&data, 0, zfi_mirrored(ranks, args->grad)};
    row.param = 0;
    zfi_launch_cpu[ZFI_KERNEL_GATHER](ranks->engine->kernels, &here);
}

/* This rank's own elements of a bucket's compact gradient, from the sums of its slices. */
static void gather_own(const zfi_ranks_t *ranks, const zfi_bucket_t *bucket) {
    launches_t launches = {.n = 0};
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        const unsigned char *sums = zfi_gradient_summed(zfi_gradient_place(ranks), param->id);
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &ranks->plan->matrices[m];
            uint64_t at = matrix->grad_offset + matrix->own.first;
            zfi_gather_args_t args = {ranks->dev->own, m, sums + at * zfi_dtype_nbytes(param->grad_dtype)};
            if (!matrix->k || !matrix->own.n)
                continue;
            if (ranks->engine->ranks_stream)
                add_launch(ranks->engine, &launches, &args);
            else
                gather_here(ranks, param, &args);
        }
    }
    launch(ranks->engine, &launches);
}

zf_status_t zfi_selected_sums_gather(zfi_ranks_t *ranks, uint32_t number, uint64_t t) {
    zfi_engine_t *engine = ranks->engine;
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    unsigned char *all = zfi_mirrored(ranks, zfi_arriving(ranks));
    moving_t moving = {.grad = zfi_mirrored(ranks, ranks->dev->head.grad),
                       .index = zfi_mirrored(ranks, ranks->dev->head.index),
                       .all = all,
                       .is_counting = 1,
                       .elem = zfi_dtype_nbytes(bucket->dtype),
                       .moves = (zfi_move_t *)(void *)ranks->mem->moves.arena.base};
    zfi_exchange_t sums = {
        .purpose = ZF_COLLECTIVE_FOR_SUMS, .bucket = number, .step = t, .recv = all, .group = bucket->group};
    uint32_t n_ranks = bucket->place.n_ranks, rank = bucket->place.rank;
    uint64_t most = 0;
    sums.stream = engine->ranks_stream;
    gather_own(ranks, bucket);
    for (uint32_t b = 0; b < number && moving.moves; b++)
        moving.moves += zfi_memory_n_moves(ranks, b);
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = take_part(ranks, &moving, bucket, r);
        most = n > most ? n : most;
    }
    if (!most)
        return ZF_OK;
    sums.nbytes = most * moving.elem;
    moving.is_counting = 0;
    moving.packed = zfi_part_of(engine, bucket->group, rank) * most;
    (void)take_part(ranks, &moving, bucket, rank);
    send(ranks->engine, &moving, bucket->dtype);
    zf_status_t st = zfi_gather_parts(engine, &sums);
    moving.is_unpacking = 1;
    for (uint32_t r = 0; r < n_ranks && !st; r++) {
        moving.packed = zfi_part_of(engine, bucket->group, r) * most;
        if (r != rank)
            (void)take_part(ranks, &moving, bucket, r);
    }
    if (!st)
        send(ranks->engine, &moving, bucket->dtype);
    return st;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static uint64_t selected_nbytes(const zfi_plan_t *plan, const zfi_device_state_t *dev) {
    const zfi_data_t *head = &dev->head;
    return (uint64_t)((const unsigned char *)(head->index + plan->n_index) - head->grad);
}

static uint64_t index_nbytes(const zfi_plan_t *plan, const zfi_device_state_t *dev) {
    return plan->n_index * sizeof *dev->head.index;
}

/* The host finds the lengths of what travels by the device's list of selected channels. */
zf_status_t zfi_selected_sums_map(zfi_ranks_t *ranks, zf_error_t *err) {
    uint64_t n_moves = 0;
    zf_status_t st;
    if (!zfi_exchanges_on_device(ranks->engine))
        return zfi_mirror_map(ranks, &ranks->mem->selected_mirror, ranks->dev->head.grad,
                              selected_nbytes(ranks->plan, ranks->dev), err);
    for (uint32_t b = 0; b < ranks->buckets->n; b++)
        n_moves += zfi_memory_n_moves(ranks, b);
    st = zfi_memory_map_pinned(ranks, &ranks->mem->selected_mirror.arena, index_nbytes(ranks->plan, ranks->dev),
                               "the selected channels", err);
    if (st)
        return st;
    ranks->mem->selected_mirror.device = ranks->dev->head.index;
    ranks->mem->selected_mirror.nbytes = index_nbytes(ranks->plan, ranks->dev);
    return zfi_memory_map_pinned(ranks, &ranks->mem->moves.arena, n_moves * sizeof(zfi_move_t),
                                 "where selected channels travel to", err);
}

void zfi_selected_sums_down(zfi_ranks_t *ranks) {
    zfi_mirror_down(ranks, &ranks->engine->to_device, ranks->dev->head.index, index_nbytes(ranks->plan, ranks->dev));
}
