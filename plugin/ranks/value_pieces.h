/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/ranks/value_pieces.h - which published values of a bucket travel, and in which order.
 *
 * Model. Of each matrix that is published every rank has its slice: a piece. Each rank packs its pieces one behind the
 * other, in the order of the bucket:
 *
 *   parts   | a a b c c | a a b c | a b b c |      slices of three ranks; b is not published
 *   travel  | a a c c   | a a c   | a c     |      each as many bytes as the rank sends that has most
 *
 * All of it follows from the layout and from the cohorts that are published, so it is the same on every rank. */
#ifndef ZFI_VALUE_PIECES_H
#define ZFI_VALUE_PIECES_H

#include "instance/run.h"

/* Elements [first, first + n) of a matrix, which a rank sends behind `at` others. */
typedef struct zfi_value_piece {
    uint32_t matrix, rank;
    uint64_t first, n, at;
} zfi_value_piece_t;

typedef void (*zfi_value_piece_fn)(zfi_ranks_t *ranks, const zfi_value_piece_t *piece, void *arg);

/* [hook] Calls fn (or not, NULL) for all pieces of the matrices of a bucket whose cohorts are marked
 * (ranks->reduction->is_published): by rank, and in the order in which they travel. Returns how many elements every
 * rank sends: as many as the one that has most. */
uint64_t zfi_value_pieces(zfi_ranks_t *ranks, uint32_t bucket, zfi_value_piece_fn fn, void *arg);

#endif
