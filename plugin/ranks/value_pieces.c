/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/value_pieces.c - published values of a bucket (contract in value_pieces.h). */
#include "ranks/value_pieces.h"

#include <string.h>

/* The pieces of a matrix, of all ranks. */
static void walk_matrix(zfi_ranks_t *ranks, uint32_t number, uint32_t n_ranks, zfi_value_piece_fn fn, void *arg) {
    const zfi_matrix_t *matrix = &ranks->plan->matrices[number];
    uint64_t *done = ranks->reduction->value_done;
    for (uint32_t r = 0; r < n_ranks; r++) {
        const zfi_slice_t *slice = &matrix->slices[r];
        zfi_value_piece_t piece = {number, r, slice->first, slice->n, done[r]};
        if (fn && slice->n)
            fn(ranks, &piece, arg);
        done[r] += slice->n;
    }
}

uint64_t zfi_value_pieces(zfi_ranks_t *ranks, uint32_t number, zfi_value_piece_fn fn, void *arg) {
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    uint32_t n_ranks = bucket->place.n_ranks;
    uint64_t *done = ranks->reduction->value_done, most = 0;
    memset(done, 0, n_ranks * sizeof *done);
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        if (param->is_sharded) /* shown where it is fetched */
            continue;
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++)
            if (ranks->reduction->is_published[ranks->plan->matrices[m].cohort])
                walk_matrix(ranks, m, n_ranks, fn, arg);
    }
    for (uint32_t r = 0; r < n_ranks; r++)
        most = done[r] > most ? done[r] : most;
    return most;
}
