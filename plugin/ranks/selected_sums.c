/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/selected_sums.c - the packed gradient of selected channels (contract in selected_sums.h). */
#include "ranks/selected_sums.h"

#include <string.h>

#include "instance/memory.h"
#include "ranks/collective.h"
#include "ranks/mirror.h"

/* ---- which elements of the compact gradient a rank owns ---------------------------------------------------------- */

/* n neighbours in the compact gradient of a matrix, from element `at` on. */
typedef void (*stretch_fn)(unsigned char *grad, uint64_t nbytes, void *arg);

typedef struct walk {
    const zfi_run_t *run;
    unsigned char *grad; /* the compact gradient, where the host finds it, ... */
    const uint32_t
        *index;  /* ... and the selected channels. The device's list: the host's may not have followed a choice */
    size_t elem; /* bytes of an element */
    stretch_fn fn;
    void *arg;
} walk_t;

static uint64_t take(const walk_t *walk, const zfi_matrix_t *matrix, uint64_t at, uint64_t n) {
    if (walk->fn)
        walk->fn(walk->grad + matrix->grad_base + at * walk->elem, n * walk->elem, walk->arg);
    return n;
}

/* NULL: all of them are selected. */
static const uint32_t *selected_of(const walk_t *walk, const zfi_matrix_t *matrix) {
    return matrix->is_choosable ? walk->index + matrix->index_base : NULL;
}

static uint64_t take_rows(const walk_t *walk, const zfi_matrix_t *matrix, const zfi_rect_t *rect) {
    const uint32_t *index = selected_of(walk, matrix);
    uint64_t n = 0;
    for (uint32_t pos = 0; pos < matrix->k; pos++)
        if ((index ? index[pos] : pos) - rect->first_row < rect->n_rows) /* before it: wraps around */
            n += take(walk, matrix, pos * matrix->cols + rect->first_col, rect->n_cols);
    return n;
}

static uint64_t take_columns(const walk_t *walk, const zfi_matrix_t *matrix, const zfi_rect_t *rect) {
    const uint32_t *index = selected_of(walk, matrix);
    uint64_t n = 0;
    if (rect->n_cols == matrix->cols)
        return take(walk, matrix, rect->first_row * matrix->k, rect->n_rows * matrix->k);
    for (uint32_t pos = 0; pos < matrix->k; pos++) /* a part of one row */
        if ((index ? index[pos] : pos) - rect->first_col < rect->n_cols)
            n += take(walk, matrix, rect->first_row * matrix->k + pos, 1);
    return n;
}

/* Elements [first, end) of a matrix. */
static uint64_t take_range(const walk_t *walk, const zfi_matrix_t *matrix, uint64_t first, uint64_t end) {
    zfi_rect_t rects[ZFI_MOST_TILES];
    uint32_t n_rects = zfi_tiles_of_range(matrix->rows, matrix->cols, first, end, rects);
    uint64_t n = 0;
    for (uint32_t i = 0; i < n_rects; i++)
        n += matrix->channels_are_rows ? take_rows(walk, matrix, &rects[i]) : take_columns(walk, matrix, &rects[i]);
    return n;
}

/* What a rank owns of the selected channels of a bucket's present parameters. Returns its elements. */
static uint64_t take_part(const walk_t *walk, const zfi_bucket_t *bucket, const uint8_t *present, uint32_t rank) {
    const zfi_run_t *run = walk->run;
    uint64_t n = 0, owned_first, owned_end, first, end;
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &run->params[run->buckets.params[bucket->first + i]];
        zfi_bucket_owned(&run->buckets, param, rank, &owned_first, &owned_end);
        if (!present[param->id] || param->is_sharded || owned_first >= owned_end)
            continue;
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
            const zfi_matrix_t *matrix = &run->plan.matrices[m];
            zfi_overlap(matrix->param_offset, matrix->rows * matrix->cols, owned_first, owned_end, &first, &end);
            if (matrix->k && first < end)
                n += take_range(walk, matrix, first, end);
        }
    }
    return n;
}

/* ---- a bucket ---------------------------------------------------------------------------------------------------- */

/* Between the compact gradient and what travels: at once, or noted for the device to do. */
typedef struct moving {
    unsigned char *packed;
    int is_unpacking;
    size_t elem;
    zfi_move_t *moves; /* NULL: at once */
    uint64_t n;
} moving_t;

static void note(moving_t *moving, const zfi_move_t *move) {
    zfi_move_t *last = moving->n ? &moving->moves[moving->n - 1] : NULL;
    if (last && (const unsigned char *)last->from + last->n_elems * moving->elem == move->from &&
        (unsigned char *)last->to + last->n_elems * moving->elem == move->to)
        last->n_elems += move->n_elems;
    else
        moving->moves[moving->n++] = *move;
}

static void move(unsigned char *grad, uint64_t nbytes, void *arg) {
    moving_t *moving = arg;
    zfi_move_t one = {grad, moving->packed, nbytes / moving->elem};
    if (moving->is_unpacking)
        one = (zfi_move_t){moving->packed, grad, nbytes / moving->elem};
    if (moving->moves)
        note(moving, &one);
    else
        memcpy(one.to, one.from, nbytes);
    moving->packed += nbytes;
}

/* Noted moves, on the stream of gradients. */
static void send(zfi_engine_t *engine, moving_t *moving, zfi_dtype_t dtype) {
    zfi_move_args_t args = {moving->moves, moving->n, dtype};
    zfi_op_t op = zfi_op_launch(ZFI_KERNEL_MOVE, &args, sizeof args);
    if (!moving->n)
        return;
    (void)zfi_enqueue(engine, engine->ranks_stream, &op, 1); /* a failure has ended the instance */
    moving->moves += moving->n;
    moving->n = 0;
}

/* moves: the bucket's part of the table of moves; NULL where there is none. */
static zf_status_t gather_bucket(zfi_run_t *run, uint32_t number, uint64_t t, zfi_move_t *moves) {
    zfi_engine_t *engine = run->engine;
    const zfi_bucket_t *bucket = &run->buckets.all[number];
    const uint8_t *present = zfi_row(run, t)->present;
    unsigned char *all = zfi_mirrored(run, zfi_arriving(run));
    moving_t moving = {.elem = zfi_dtype_nbytes(bucket->dtype), .moves = moves};
    walk_t walk = {.run = run,
                   .grad = zfi_mirrored(run, run->dev.head.grad),
                   .index = zfi_mirrored(run, run->dev.head.index),
                   .elem = moving.elem,
                   .arg = &moving};
    zfi_exchange_t sums = {
        .purpose = ZF_COLLECTIVE_FOR_SUMS, .bucket = number, .step = t, .recv = all, .stream = engine->ranks_stream};
    uint64_t most = 0;
    zf_status_t st;
    for (uint32_t r = 0; r < zfi_n_ranks(engine); r++) {
        uint64_t n = take_part(&walk, bucket, present, r);
        most = n > most ? n : most;
    }
    if (!most)
        return ZF_OK;
    sums.nbytes = most * walk.elem;
    walk.fn = move;
    moving.packed = all + zfi_rank(engine) * sums.nbytes;
    (void)take_part(&walk, bucket, present, zfi_rank(engine));
    send(run->engine, &moving, bucket->dtype);
    st = zfi_collective(engine, &sums);
    moving.is_unpacking = 1;
    for (uint32_t r = 0; r < zfi_n_ranks(engine) && !st; r++) {
        moving.packed = all + r * sums.nbytes;
        if (r != zfi_rank(engine))
            (void)take_part(&walk, bucket, present, r);
    }
    if (!st)
        send(run->engine, &moving, bucket->dtype);
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
zf_status_t zfi_selected_sums_map(zfi_run_t *run, zf_error_t *err) {
    uint64_t n_moves = 0;
    zf_status_t st;
    if (!zfi_exchanges_on_device(run->engine))
        return zfi_mirror_map(run, &run->mem.selected_mirror, run->dev.head.grad,
                              selected_nbytes(&run->plan, &run->dev), err);
    for (uint32_t b = 0; b < run->buckets.n; b++)
        n_moves += zfi_memory_n_moves(run, b);
    st = zfi_memory_map_pinned(run, &run->mem.selected_mirror.arena, index_nbytes(&run->plan, &run->dev),
                               "the selected channels", err);
    if (st)
        return st;
    run->mem.selected_mirror.device = run->dev.head.index;
    run->mem.selected_mirror.nbytes = index_nbytes(&run->plan, &run->dev);
    return zfi_memory_map_pinned(run, &run->mem.moves.arena, n_moves * sizeof(zfi_move_t),
                                 "where selected channels travel to", err);
}

void zfi_selected_sums_down(zfi_run_t *run) {
    if (zfi_exchanges_on_device(run->engine))
        zfi_mirror_down(run, &run->engine->to_device, run->dev.head.index, index_nbytes(&run->plan, &run->dev));
    else
        zfi_mirror_down(run, &run->engine->to_device, run->dev.head.grad, selected_nbytes(&run->plan, &run->dev));
}

zf_status_t zfi_selected_sums_gather(zfi_run_t *run, uint64_t t) {
    zfi_move_t *moves = (zfi_move_t *)(void *)run->mem.moves.arena.base;
    zf_status_t st = ZF_OK;
    for (uint32_t b = 0; b < run->buckets.n && !st; b++) {
        st = gather_bucket(run, b, t, moves);
        moves = moves ? moves + zfi_memory_n_moves(run, b) : NULL;
    }
    return st;
}
