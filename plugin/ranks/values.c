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
    int is_own; /* this rank's pieces, or those of the others */
} moved_t;

static void move(zfi_run_t *run, const zfi_value_piece_t *piece, void *arg) {
    const moved_t *moved = arg;
    size_t elem = zfi_dtype_nbytes(run->plan.matrices[piece->matrix].place.dtype);
    zfi_place_args_t args = {.data = run->dev.data, .matrix = piece->matrix, .first = piece->first};
    if ((piece->rank == zfi_rank(run->engine)) != moved->is_own)
        return;
    args.n = piece->end - piece->first;
    args.bits = moved->values + piece->rank * moved->part_nbytes + piece->at * elem;
    zfi_list_add(&run->engine->to_device, zfi_op_launch(moved->kernel, &args, sizeof args));
}

/* This rank's elements from what the model reads into its part of the bucket's memory; then those of others back. */
static void pack(zfi_run_t *run, uint32_t number, uint64_t part_nbytes) {
    moved_t moved = {ZFI_KERNEL_READ_PLACE, zfi_values(run, number), part_nbytes, 1};
    (void)zfi_value_pieces(run, number, move, &moved);
}

static void show(zfi_run_t *run, uint32_t number, uint64_t part_nbytes) {
    moved_t moved = {ZFI_KERNEL_WRITE_PLACE, zfi_values(run, number), part_nbytes, 0};
    (void)zfi_value_pieces(run, number, move, &moved);
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

int zfi_values_share(zfi_run_t *run, uint64_t step) {
    zfi_engine_t *engine = run->engine;
    uint64_t *numbers = run->reduction.value_number, *nbytes = run->reduction.value_nbytes;
    if (!zfi_is_sharded(engine) || !has_any(&run->plan, &run->reduction))
        return 0;
    for (uint32_t b = run->buckets.n; b-- > 0;) {
        zf_status_t st;
        numbers[b] = 0;
        nbytes[b] = zfi_value_pieces(run, b, NULL, NULL) * zfi_dtype_nbytes(run->buckets.all[b].value_dtype);
        if (!nbytes[b])
            continue;
        pack(run, b, nbytes[b]);
        st = zfi_ranks_share(run, &engine->to_device, b, step, nbytes[b], &numbers[b]);
        if (st)
            zfi_list_fail(&engine->to_device, st);
    }
    for (uint32_t b = run->buckets.n; b-- > 0;) {
        if (!numbers[b])
            continue;
        zfi_ranks_await_values(run, b);
        show(run, b, nbytes[b]);
    }
    zfi_values_free_memory(run->engine);
    memset(run->reduction.is_published, 0, run->plan.n_cohorts);
    return 1;
}
