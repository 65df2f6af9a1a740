/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/value_pieces.c - published values of a bucket (contract in value_pieces.h). */
#include "ranks/value_pieces.h"

#include <stdlib.h>

#include "base/error.h"
#include "instance/memory.h"

/* [cohorts + 1][ranks] elements of a bucket, and behind those of all buckets the table. */
static uint64_t *of_cohort(const zfi_ranks_t *ranks, uint32_t bucket) {
    return (uint64_t *)(void *)ranks->mem->pieces.arena.base +
           bucket * (ranks->plan->n_cohorts + 1ull) * ranks->buckets->most_ranks;
}
static zfi_placed_t *table(const zfi_ranks_t *ranks) {
    return (zfi_placed_t *)(void *)of_cohort(ranks, ranks->buckets->n);
}

/* The pieces of a matrix; what is sharded is shown where it is fetched. */
static void list_matrix(const zfi_ranks_t *ranks, uint32_t number, const zfi_bucket_t *bucket, uint64_t *of,
                        zfi_placed_t *out) {
    const zfi_matrix_t *matrix = &ranks->plan->matrices[number];
    uint32_t n_ranks = bucket->place.n_ranks, cohort = zfi_listed_cohort(ranks->plan, matrix);
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint32_t part = zfi_part_of(ranks->engine, bucket->group, r);
        uint64_t *before = &of[(uint64_t)cohort * n_ranks + part], n = matrix->is_sharded ? 0 : matrix->slices[r].n;
        out[r] = (zfi_placed_t){.matrix = number,
                                .cohort = (uint16_t)cohort,
                                .part = (uint16_t)part,
                                .first = matrix->slices[r].first,
                                .n = n,
                                .at = *before};
        *before += n;
    }
}

zf_status_t zfi_value_pieces_new(zfi_ranks_t *ranks, zf_error_t *err) {
    zfi_reduction_t *reduction = ranks->reduction;
    uint64_t n = 0;
    zf_status_t st = zfi_memory_map_pinned(ranks, &ranks->mem->pieces.arena, zfi_memory_pieces_nbytes(ranks),
                                           "where values travel to", err);
    reduction->first_listed = calloc(2ull * ranks->buckets->n + 1, sizeof *reduction->first_listed);
    reduction->listed = calloc(ranks->plan->n_matrices, sizeof *reduction->listed);
    if (!st && (!reduction->first_listed || !reduction->listed))
        st = zfi_error(err, ZF_ERR_MEMORY, "bind_params", "no memory to exchange %u matrices", ranks->plan->n_matrices);
    for (uint32_t turn = 0; turn < 2 * ranks->buckets->n && !st; turn++) { /* of each bucket, residents come last */
        const zfi_bucket_t *bucket = &ranks->buckets->all[turn / 2];
        for (uint32_t i = 0; i < bucket->n_params; i++) {
            const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
            for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++) {
                if (ranks->plan->matrices[m].is_resident != (int)(turn % 2))
                    continue;
                list_matrix(ranks, m, bucket, of_cohort(ranks, turn / 2), table(ranks) + n);
                reduction->listed[m] = n;
                n += bucket->place.n_ranks;
            }
        }
        reduction->first_listed[turn + 1] = n;
    }
    return st;
}

uint64_t zfi_value_pieces_sent(const zfi_ranks_t *ranks, uint32_t bucket) {
    const uint64_t *of = of_cohort(ranks, bucket);
    uint64_t n_ranks = ranks->buckets->all[bucket].place.n_ranks, most = 0;
    for (uint32_t r = 0; r < n_ranks; r++) {
        uint64_t n = 0;
        for (uint32_t c = 0; c <= ranks->plan->n_cohorts; c++)
            if (zfi_has_cohort(&ranks->reduction->published, c))
                n += of[c * n_ranks + r];
        most = n > most ? n : most;
    }
    return most * zfi_dtype_nbytes(ranks->buckets->all[bucket].value_dtype);
}

/* n entries of the table, from `first` on. */
static zfi_place_args_t listed(const zfi_ranks_t *ranks, uint32_t bucket, uint64_t first, uint64_t n) {
    uint32_t n_ranks = ranks->buckets->all[bucket].place.n_ranks;
    uint64_t elem = zfi_dtype_nbytes(ranks->buckets->all[bucket].value_dtype);
    return (zfi_place_args_t){.data = ranks->dev->data,
                              .bits = zfi_values(ranks, bucket),
                              .table = table(ranks) + first,
                              .of_cohort = of_cohort(ranks, bucket),
                              .part_elems = ranks->reduction->value_nbytes[bucket] / elem,
                              .cohorts = ranks->reduction->published,
                              .n = (uint32_t)n,
                              .step = 1,
                              .n_parts = n_ranks,
                              .skipped = n_ranks};
}

zfi_place_args_t zfi_value_pieces(const zfi_ranks_t *ranks, uint32_t bucket) {
    const uint64_t *first = &ranks->reduction->first_listed[2 * bucket];
    return listed(ranks, bucket, first[0], first[2] - first[0]);
}

/* Lists this rank's pieces of a bucket: each part has one in turn, so those of one rank are n_parts entries apart. */
zfi_place_args_t zfi_value_pieces_own(const zfi_ranks_t *ranks, uint32_t bucket, int are_resident) {
    const uint64_t *first = &ranks->reduction->first_listed[2 * bucket];
    uint64_t from = first[are_resident];
    zfi_place_args_t own = listed(ranks, bucket, from + ranks->buckets->all[bucket].place.rank, first[2] - from);
    own.step = own.n_parts;
    own.n /= own.n_parts;
    return own;
}

zfi_place_args_t zfi_value_pieces_of(const zfi_ranks_t *ranks, uint32_t matrix) {
    uint32_t bucket = ranks->buckets->of_param[ranks->plan->matrices[matrix].param];
    return listed(ranks, bucket, ranks->reduction->listed[matrix], ranks->buckets->all[bucket].place.n_ranks);
}
