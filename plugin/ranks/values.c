/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/values.c - published values of all ranks (contract in values.h). */
#include "ranks/values.h"

#include <string.h>

#include "instance/memory.h"
#include "ranks/ranks.h"
#include "ranks/value_pieces.h"

void zfi_values_note(zfi_engine_t *engine, zfi_reduction_t *reduction, uint32_t cohort) {
    if (zfi_is_sharded(engine))
        reduction->is_published[cohort] = 1;
}

typedef struct moved {
    zfi_kernel_t kernel;
    unsigned char *values; /* [ranks][part_nbytes] */
    uint64_t part_nbytes;
    uint32_t rank; /* this one, among those who hold the bucket */
    int is_own;    /* this rank's pieces, or those of the others */
} moved_t;

static void move(zfi_ranks_t *ranks, const zfi_value_piece_t *piece, void *arg) {
    const moved_t *moved = arg;
    size_t elem = zfi_dtype_nbytes(ranks->plan->matrices[piece->matrix].place.dtype);
    zfi_place_args_t args = {.data = ranks->dev->data, .matrix = piece->matrix, .first = piece->first};
    if ((piece->rank == moved->rank) != moved->is_own)
        return;
    args.n = piece->n;
    args.bits = moved->values + piece->rank * moved->part_nbytes + piece->at * elem;
    zfi_list_add(&ranks->engine->to_device, zfi_op_launch(moved->kernel, &args, sizeof args));
}

/* This rank's slices from what the model reads into its part of the bucket's memory; then those of others back. */
static void pack(zfi_ranks_t *ranks, uint32_t number, uint64_t part_nbytes) {
    uint32_t rank = ranks->buckets->all[number].place.rank;
    moved_t moved = {ZFI_KERNEL_READ_PLACE, zfi_values(ranks, number), part_nbytes, rank, 1};
    (void)zfi_value_pieces(ranks, number, move, &moved);
}

static void show(zfi_ranks_t *ranks, uint32_t number, uint64_t part_nbytes) {
    uint32_t rank = ranks->buckets->all[number].place.rank;
    moved_t moved = {ZFI_KERNEL_WRITE_PLACE, zfi_values(ranks, number), part_nbytes, rank, 0};
    (void)zfi_value_pieces(ranks, number, move, &moved);
}

static int has_any(const zfi_plan_t *plan, const zfi_reduction_t *reduction) {
    for (uint32_t c = 0; c < plan->n_cohorts; c++)
        if (reduction->is_published[c])
            return 1;
    return 0;
}

void zfi_values_free_memory(zfi_engine_t *engine) {
    if (engine->n_taken < engine->n_shared)
        zfi_list_add(&engine->to_device, zfi_op_signal(&engine->lines.taken, engine->n_shared));
    engine->n_taken = engine->n_shared;
}

int zfi_values_share(zfi_ranks_t *ranks, uint64_t step) {
    zfi_engine_t *engine = ranks->engine;
    uint64_t *numbers = ranks->reduction->value_number, *nbytes = ranks->reduction->value_nbytes;
    if (!zfi_is_sharded(engine) || !has_any(ranks->plan, ranks->reduction))
        return 0;
    for (uint32_t b = ranks->buckets->n; b-- > 0;) {
        zf_status_t st;
        numbers[b] = 0;
        nbytes[b] = zfi_value_pieces(ranks, b, NULL, NULL) * zfi_dtype_nbytes(ranks->buckets->all[b].value_dtype);
        if (!nbytes[b])
            continue;
        pack(ranks, b, nbytes[b]);
        st = zfi_ranks_share(ranks, &engine->to_device, b, step, nbytes[b], &numbers[b]);
        if (st)
            zfi_list_fail(&engine->to_device, st);
    }
    for (uint32_t b = ranks->buckets->n; b-- > 0;) {
        if (!numbers[b])
            continue;
        zfi_ranks_await_values(ranks, b);
        show(ranks, b, nbytes[b]);
    }
    zfi_values_free_memory(ranks->engine);
    memset(ranks->reduction->is_published, 0, ranks->plan->n_cohorts);
    return 1;
}
