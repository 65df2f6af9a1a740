/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/value_pieces.c - published values of a bucket (contract in value_pieces.h). Parts and matrices both
 * rise with their place in the bucket, so one pass meets all pieces. */
#include "ranks/value_pieces.h"

typedef struct walk {
    zfi_value_piece_fn fn;
    void *arg;
    uint32_t rank;     /* whose part the walk has come to */
    uint64_t at, most; /* elements of that rank so far; of the rank that has most */
} walk_t;

/* The pieces of a matrix that lies `from` elements from the bucket's start. */
static void walk_matrix(zfi_ranks_t *ranks, walk_t *walk, uint32_t number, uint64_t from, uint64_t part) {
    const zfi_matrix_t *matrix = &ranks->plan->matrices[number];
    uint64_t n = matrix->rows * matrix->cols, end;
    for (uint64_t first = 0; first < n; first = end) {
        zfi_value_piece_t piece = {number, (uint32_t)((from + first) / part), first, 0, 0};
        uint64_t part_end = (piece.rank + 1) * part - from;
        end = part_end < n ? part_end : n;
        if (piece.rank != walk->rank)
            walk->at = 0;
        walk->rank = piece.rank;
        piece.end = end;
        piece.at = walk->at;
        if (walk->fn)
            walk->fn(ranks, &piece, walk->arg);
        walk->at += end - first;
        walk->most = walk->at > walk->most ? walk->at : walk->most;
    }
}

uint64_t zfi_value_pieces(zfi_ranks_t *ranks, uint32_t number, zfi_value_piece_fn fn, void *arg) {
    const zfi_bucket_t *bucket = &ranks->buckets->all[number];
    walk_t walk = {.fn = fn, .arg = arg};
    for (uint32_t i = 0; i < bucket->n_params; i++) {
        const zfi_param_t *param = &ranks->params[ranks->buckets->params[bucket->first + i]];
        if (param->is_sharded) /* shown where it is fetched */
            continue;
        for (uint32_t m = param->first_matrix; m < param->first_matrix + param->n_matrices; m++)
            if (ranks->reduction->is_published[ranks->plan->matrices[m].cohort])
                walk_matrix(ranks, &walk, m, ranks->buckets->offset[param->id] + ranks->plan->matrices[m].param_offset,
                            bucket->part_elems);
    }
    return walk.most;
}
